//! The prices of bars in a batch: their order, and their distance from the middle. What `price.rs` of
//! firebox-cache does to one window, by the same formulas in the same order.

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use firebox_cache::Bars;

/// The places of the prices in the order of [`Bars::channels`].
const HIGH: usize = 1;
const LOW: usize = 2;

/// Where the prices of a step stand, on a device.
pub(super) struct Layout {
    bars: Bars,
    /// The channels of the four prices; none where they are all there is, in their usual order.
    at: Option<Tensor<1, Int>>,
    /// A price of each channel, any for channels without one; none in the usual order.
    of: Option<Tensor<1, Int>>,
    /// Which channels are a high, a low, a price: `[1, 1, channel]`.
    is_high: Tensor<3, Bool>,
    is_low: Tensor<3, Bool>,
    is_price: Tensor<3, Bool>,
}

impl Layout {
    /// That of bars in steps of so many channels.
    pub(super) fn new(bars: &Bars, channels: usize, device: &Device) -> Self {
        let at = bars.channels();
        let usual = channels == 4 && at == [0, 1, 2, 3];
        let list = |places: Vec<i32>| {
            let count = places.len();
            (!usual).then(|| Tensor::from_data(TensorData::new(places, [count]), device))
        };
        let is = |one: &dyn Fn(usize) -> bool| {
            let is: Vec<bool> = (0..channels).map(one).collect();
            Tensor::<3, Bool>::from_data(TensorData::new(is, [1, 1, channels]), device)
        };
        // Of a missing price and the one that stands for it, both give the same.
        let price = |channel| at.iter().position(|at| *at == channel);
        Self {
            bars: *bars,
            at: list(at.iter().map(|at| *at as i32).collect()),
            of: list((0..channels).map(|channel| price(channel).unwrap_or(0) as i32).collect()),
            is_high: is(&|channel| bars.have_high() && channel == at[HIGH]),
            is_low: is(&|channel| bars.have_low() && channel == at[LOW]),
            is_price: is(&|channel| price(channel).is_some()),
        }
    }
}

/// The prices of a batch.
pub(super) struct Prices<'a> {
    layout: &'a Layout,
    /// Factor, offset and inverse, each `[batch, 1, 4]`; none where all prices share a scale.
    maps: Option<[Tensor<3>; 3]>,
}

impl<'a> Prices<'a> {
    /// Prices with the maps of their rows, `[batch, 12]`.
    pub(super) fn new(layout: &'a Layout, maps: Option<Tensor<2>>) -> Self {
        let map = |maps: &Tensor<2>, map: usize| {
            let [batch, _] = maps.dims();
            maps.clone().narrow(1, 4 * map, 4).reshape([batch, 1, 4])
        };
        Self { layout, maps: maps.map(|maps| [0, 1, 2].map(|number| map(&maps, number))) }
    }

    /// The prices of each step on their shared scale, `[batch, time, 4]`.
    fn shared(&self, x: &Tensor<3>) -> Tensor<3> {
        let prices = match &self.layout.at {
            Some(at) => x.clone().select(2, at.clone()),
            None => x.clone(),
        };
        match &self.maps {
            Some([factor, offset, _]) => prices * factor.clone() + offset.clone(),
            None => prices,
        }
    }

    /// Values on the shared scale as one of the four prices has them, `[batch, time, 1]`.
    fn own(&self, shared: Tensor<3>, price: usize) -> Tensor<3> {
        match &self.maps {
            Some([_, offset, inverse]) => {
                let [offset, inverse] =
                    [offset, inverse].map(|map| map.clone().narrow(2, price, 1));
                (shared - offset) * inverse
            }
            None => shared,
        }
    }

    /// Raises each high to the largest price of its bar and lowers each low to the smallest, in the
    /// rows of `coin`, `[batch, 1, 1]`.
    pub(super) fn ordered(&self, x: Tensor<3>, coin: Tensor<3, Bool>) -> Tensor<3> {
        let ([batch, time, _], shape) = (x.dims(), x.dims());
        let prices = self.shared(&x);
        let of_bars = coin.expand([batch, time, 1]);
        let put = |x: Tensor<3>, extreme: Tensor<3>, price, is: &Tensor<3, Bool>| {
            let kept = prices.clone().narrow(2, price, 1);
            let beyond = match price {
                HIGH => extreme.clone().greater(kept),
                _ => extreme.clone().lower(kept),
            };
            let bars = beyond.bool_and(of_bars.clone()).expand(shape);
            let mask = bars.bool_and(is.clone().expand(shape));
            x.mask_where(mask, self.own(extreme, price).expand(shape))
        };
        let mut x = x;
        if self.layout.bars.have_high() {
            x = put(x, prices.clone().max_dim(2), HIGH, &self.layout.is_high);
        }
        if self.layout.bars.have_low() {
            x = put(x, prices.clone().min_dim(2), LOW, &self.layout.is_low);
        }
        x
    }

    /// Multiplies each price's distance from the middle of its bar by its row's factor, `[batch, 1, 1]`,
    /// in the rows of `coin`.
    pub(super) fn stretched(
        &self,
        x: Tensor<3>,
        coin: Tensor<3, Bool>,
        factor: Tensor<3>,
    ) -> Tensor<3> {
        let shape = x.dims();
        let prices = self.shared(&x);
        let [high, low] = [HIGH, LOW].map(|price| prices.clone().narrow(2, price, 1));
        let middle = (high + low) * 0.5;
        let moved = (prices - middle.clone()) * factor + middle;
        let moved = match &self.maps {
            Some([_, offset, inverse]) => (moved - offset.clone()) * inverse.clone(),
            None => moved,
        };
        let moved = match &self.layout.of {
            Some(of) => moved.select(2, of.clone()),
            None => moved,
        };
        let mask = coin.expand(shape).bool_and(self.layout.is_price.clone().expand(shape));
        x.mask_where(mask, moved)
    }
}
