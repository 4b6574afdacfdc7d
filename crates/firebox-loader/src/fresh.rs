//! Versions of windows that a device draws by itself, whole batches at a time: what `Augmenter` of
//! firebox-cache does to one window after the other on a processor.
//!
//! What is drawn of a version as a whole (coins, factors, speeds of time) is drawn on the host by the
//! same [`Recipe`], and crosses with the indices: some numbers for each row. The noise of single values,
//! the only draws that are as many as the values, comes from the same streams on the device. So a
//! version is the same on both, but for rounding, and depends on the seed, the epoch, the window and the
//! version's number alone.

mod prices;
mod warp;

use burn::tensor::{Device, Int, Tensor, TensorData};
use firebox_cache::{Drawn, PriceScale, Recipe};
use firebox_kernels::add_row_noise;

use self::prices::{Layout, Prices};
use self::warp::Warp;
use crate::augmented::Versions;
use crate::{AugmentedWindows, Source};

/// Numbers of a [`PriceScale`].
pub(crate) const SCALE_WIDTH: usize = 12;

/// How versions are drawn of the originals that lie on a device.
pub(crate) struct Fresh {
    recipe: Recipe,
    versions: Versions,
    /// The place of each window among all, which its versions depend on.
    places: Vec<u32>,
    /// Standard deviation of the jitter of each channel, `[window, channel]`.
    deviations: Tensor<2>,
    /// The maps between prices and the scale that they share, `[window, 12]`, or `[1, 12]` where those of all windows are
    /// the same; none where prices share one scale.
    scales: Option<Tensor<2>>,
    /// Where prices stand whose order is kept.
    layout: Option<Layout>,
}

/// The same while the originals are read.
pub(crate) struct Begun {
    recipe: Recipe,
    versions: Versions,
    places: Vec<u32>,
    deviations: Vec<f32>,
    scales: Vec<PriceScale>,
}

impl Begun {
    /// Takes what depends on the valid values of an original; all come in their order.
    pub(crate) fn add(&mut self, windows: &AugmentedWindows, index: usize, values: &[f32]) {
        let place = windows.originals().place(index);
        self.places.push(place as u32);
        self.recipe.deviations(values, &mut self.deviations);
        if self.recipe.bars().is_some() {
            self.scales.push(windows.scale(place));
        }
    }

    pub(crate) fn upload(self, device: &Device) -> Fresh {
        let Self { recipe, versions, places, deviations, mut scales } = self;
        let count = places.len();
        if scales.windows(2).all(|pair| pair[0] == pair[1]) {
            scales.truncate(1);
        }
        // As one run each, which no device pads.
        let rows = |values: Vec<f32>, rows: usize, width: usize| {
            Tensor::<1>::from_data(TensorData::new(values, [rows * width]), device)
                .reshape([rows, width])
        };
        let shared = scales.iter().all(|scale| *scale == PriceScale::SHARED);
        let scales = (!shared).then(|| {
            let maps = scales.iter().flat_map(|scale| scale.maps().into_iter().flatten());
            rows(maps.collect(), scales.len(), SCALE_WIDTH)
        });
        let deviations = rows(deviations, count, recipe.channels());
        let layout = recipe.bars().map(|bars| Layout::new(bars, recipe.channels(), device));
        Fresh { recipe, versions, places, deviations, scales, layout }
    }
}

impl Fresh {
    /// Begins with no original.
    pub(crate) fn begin(windows: &AugmentedWindows) -> Begun {
        let count = windows.originals().len();
        Begun {
            recipe: windows.recipe().clone(),
            versions: windows.versions(),
            places: Vec::with_capacity(count),
            deviations: Vec::with_capacity(count * windows.recipe().channels()),
            scales: Vec::new(),
        }
    }

    /// Samples of each window.
    pub(crate) fn slots(&self) -> usize {
        self.versions.slots()
    }

    /// What is drawn of these samples in an epoch.
    pub(crate) fn drawn(&self, epoch: u64, indices: &[usize]) -> Vec<Drawn> {
        let draw = |index: &usize| {
            let mut drawn = Drawn::default();
            let window = u64::from(self.places[index / self.slots()]);
            self.recipe.draw(window, self.versions.of(epoch, *index), &mut drawn);
            drawn
        };
        indices.iter().map(draw).collect()
    }

    /// Makes versions of originals. What lies behind a row's length stays zero.
    ///
    /// # Shapes
    ///
    /// - `x`, output: `[batch, time, channel]`
    /// - `rows`, the rows of the originals; `drawn`; `lengths`: `[batch]`
    pub(crate) fn vary(
        &self,
        x: Tensor<3>,
        rows: Tensor<1, Int>,
        drawn: &[Drawn],
        lengths: &[usize],
    ) -> Tensor<3> {
        let [_, time, _] = x.dims();
        if time == 0 || drawn.iter().all(Drawn::is_original) {
            return x;
        }
        let mut table = Table::default();
        let jitter = table.coin(drawn.iter().map(|drawn| drawn.jitter.is_some()));
        let scaling = table.factor(drawn.iter().map(|drawn| drawn.scaling));
        let stretch = table.factor(drawn.iter().map(|drawn| drawn.stretch));
        let warp = Warp::of(&self.recipe, drawn, lengths, &mut table);
        let padded = lengths.iter().any(|length| *length < time);
        let ends = padded.then(|| table.column(lengths.iter().map(|length| *length as f32)));
        let table = table.upload(&x.device());
        let prices = self.layout.as_ref().map(|layout| {
            let scales = self.scales.clone().map(|scales| match scales.dims() {
                [1, width] => scales.expand([drawn.len(), width]),
                _ => scales.select(0, rows.clone()),
            });
            Prices::new(layout, scales)
        });
        let ordered = |x: Tensor<3>, coin: &Coin| match &prices {
            Some(prices) => prices.ordered(x, table.rows(coin)),
            None => x,
        };
        let mut x = x;
        if let Some(coin) = &jitter {
            let streams: Vec<_> = drawn.iter().map(|drawn| drawn.jitter).collect();
            x = add_row_noise(x, self.deviations.clone().select(0, rows), &streams);
            x = ordered(x, coin);
        }
        if let Some((coin, factor)) = &scaling {
            x = ordered(x * table.numbers(*factor), coin);
        }
        if let Some(warp) = warp {
            x = ordered(warp.apply(x, &table), &warp.coin);
        }
        if let (Some((coin, factor)), Some(prices)) = (&stretch, &prices) {
            x = prices.stretched(x, table.rows(coin), table.numbers(*factor));
            x = ordered(x, coin);
        }
        match ends {
            // Maps of prices, noise and warps have written behind the ends.
            Some(ends) => {
                let steps = Tensor::<1, Int>::arange(0..time as i64, &x.device()).float();
                let steps = steps.reshape([1, time, 1]).expand(x.dims());
                let behind = steps.greater_equal(table.numbers(ends).expand(x.dims()));
                x.mask_fill(behind, 0.0)
            }
            None => x,
        }
    }
}

/// A column of a [`Table`].
#[derive(Clone, Copy, Debug)]
struct Column(usize);

/// A column of ones and zeros: what fell for which rows.
#[derive(Clone, Copy, Debug)]
struct Coin(Column);

/// Numbers of each row, which cross to the device together.
#[derive(Default)]
struct Table {
    /// One column behind the other.
    values: Vec<f32>,
    columns: usize,
}

impl Table {
    fn column(&mut self, values: impl Iterator<Item = f32>) -> Column {
        self.values.extend(values);
        self.columns += 1;
        Column(self.columns - 1)
    }

    /// None where it fell for no row.
    fn coin(&mut self, fell: impl Iterator<Item = bool> + Clone) -> Option<Coin> {
        if !fell.clone().any(|fell| fell) {
            return None;
        }
        Some(Coin(self.column(fell.map(|fell| f32::from(u8::from(fell))))))
    }

    /// A factor, 1 where there is none, and the rows that have one.
    fn factor(
        &mut self,
        factors: impl Iterator<Item = Option<f32>> + Clone,
    ) -> Option<(Coin, Column)> {
        let coin = self.coin(factors.clone().map(|factor| factor.is_some()))?;
        Some((coin, self.column(factors.map(|factor| factor.unwrap_or(1.0)))))
    }

    fn upload(self, device: &Device) -> Uploaded {
        let rows = self.values.len() / self.columns.max(1);
        let data = TensorData::new(self.values, [self.columns, rows]);
        Uploaded(Tensor::from_data(data, device))
    }
}

/// A [`Table`] on the device, `[column, batch]`.
struct Uploaded(Tensor<2>);

impl Uploaded {
    /// A number for each row: `[batch, 1, 1]`.
    fn numbers(&self, Column(column): Column) -> Tensor<3> {
        let [_, rows] = self.0.dims();
        self.0.clone().narrow(0, column, 1).reshape([rows, 1, 1])
    }

    /// The rows that something fell for: `[batch, 1, 1]`.
    fn rows(&self, Coin(column): &Coin) -> Tensor<3, burn::tensor::Bool> {
        self.numbers(*column).greater_elem(0.5)
    }
}

#[cfg(test)]
mod tests;
