//! Rows of one series, looked at part by part: what a part says, laying it out step by step, and putting
//! parts together. Which parts there are, where their rows go, and what is done about odd ones, is not decided here.

use std::ops::Range;

use firebox_core::{Channel, Role};
use polars::prelude::{Column, DataType};
use rayon::prelude::*;

use crate::frame::Reading;
use crate::mapping::Mapping;

/// Rows that one thread looks at before it looks for more work: 512 KiB of four channels.
pub(crate) const ROWS: usize = 1 << 14;
/// Rows whose values the nearest cache holds while they are laid out column by column and looked at.
const NEAR: usize = 512;

/// What is known of consecutive rows in which nothing is odd.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Look {
    /// How many there are, at least one.
    pub(crate) rows: usize,
    /// First value of each channel.
    pub(crate) firsts: Vec<f64>,
    /// Whether each channel has another value than its first.
    varies: Vec<bool>,
    /// First and last time.
    pub(crate) span: [i64; 2],
    /// What lies between the first two times.
    pub(crate) interval: Option<i64>,
    /// Whether every time lies as far behind the one before it as the second behind the first.
    pub(crate) even: bool,
}

impl Look {
    /// Of rows that lie one behind the other, and are all right; `even` is what is known of their times. None of none.
    ///
    /// # Shapes
    ///
    /// - `values`: `[time, channel]`
    pub(crate) fn of(values: &[f64], times: &[i64], even: bool) -> Option<Self> {
        let span = [*times.first()?, *times.last()?];
        let width = values.len() / times.len();
        let firsts = values[..width].to_vec();
        let differs = |channel: usize| {
            values[channel..].iter().step_by(width).any(|value| *value != firsts[channel])
        };
        let varies = (0..width).map(differs).collect();
        let interval = times.get(1).map(|second| second.wrapping_sub(times[0]));
        Some(Self { rows: times.len(), firsts, varies, span, interval, even })
    }

    /// Both, one behind the other; none if the times do not increase there.
    fn then(mut self, next: Self) -> Option<Self> {
        (next.span[0] > self.span[1]).then_some(())?;
        let step = next.span[0].wrapping_sub(self.span[1]);
        let interval = self.interval.unwrap_or(step);
        let follows = next.interval.is_none_or(|next| next == interval);
        let others = self.firsts.iter().zip(&next.firsts).zip(&next.varies);
        for (varies, ((own, other), varies_there)) in self.varies.iter_mut().zip(others) {
            *varies |= *varies_there || own != other;
        }
        Some(Self {
            rows: self.rows + next.rows,
            span: [self.span[0], next.span[1]],
            interval: Some(interval),
            even: self.even && next.even && follows && step == interval,
            ..self
        })
    }

    /// The same with what comes behind it, if anything was before.
    pub(crate) fn after(before: Option<Self>, next: Self) -> Option<Self> {
        match before {
            None => Some(next),
            Some(before) => before.then(next),
        }
    }

    /// Whether a channel has one value in several rows.
    pub(crate) fn is_constant(&self, channel: usize) -> bool {
        self.rows > 1 && !self.varies[channel]
    }
}

/// Rows of a table that are one series without labels, in columns.
pub(crate) struct Part<'a> {
    columns: Vec<Pieces<'a>>,
    bars: Bars,
    /// Of each row.
    pub(crate) times: Vec<i64>,
}

impl<'a> Part<'a> {
    /// The rows of a table, of which the first is the `start`-th of the series; none if they are not of one
    /// series, or a value or a time is missing.
    pub(crate) fn of(reading: &Reading<'a>, start: usize) -> Option<Self> {
        let Mapping { time, series, label, channels, .. } = reading.mapping;
        let alone = series.is_none() && label.is_none();
        alone.then_some(())?;
        let frame = reading.frame;
        let column = |channel: &Channel| Pieces::of(frame.column(&channel.name).ok()?);
        let columns = channels.iter().map(column).collect::<Option<_>>()?;
        let times = match time {
            // Where clocks were put back, the rows before say which of two moments it is.
            Some(name) => {
                let (times, zone) = reading.times_of_clocks(name).ok()?;
                (!zone.shows_twice(&times)).then_some(times)?
            }
            None => (start as i64..(start + frame.height()) as i64).collect(),
        };
        Some(Self { columns, bars: Bars::of(channels), times })
    }

    /// Rows of one series, each channel in pieces that lie one behind the other.
    pub(crate) fn of_pieces(
        channels: &[Channel],
        columns: &[Vec<&'a [f64]>],
        times: Vec<i64>,
    ) -> Self {
        let columns = columns.iter().map(|pieces| Pieces::new(pieces.iter().copied())).collect();
        Self { columns, bars: Bars::of(channels), times }
    }

    /// Writes the rows one behind the other, and says what they are; none if a time does not lie behind the one
    /// before it, a value does not fit f32, or a bar is out of order.
    ///
    /// # Shapes
    ///
    /// - `out`: `[time, channel]`
    pub(crate) fn lay_out(&self, out: &mut [f64]) -> Option<Look> {
        self.blocks(out).map(|(rows, out)| self.look(rows, out)).reduce(both).flatten()
    }

    /// The same on all processors.
    pub(crate) fn lay_out_in_parallel(&self, out: &mut [f64]) -> Option<Look> {
        if self.times.len() <= ROWS {
            return self.lay_out(out);
        }
        let blocks: Vec<_> = self.blocks(out).collect();
        let looks: Vec<_> =
            blocks.into_par_iter().map(|(rows, out)| self.look(rows, out)).collect();
        looks.into_iter().reduce(both).flatten()
    }

    /// Blocks of rows with their places.
    fn blocks<'b>(
        &self,
        out: &'b mut [f64],
    ) -> impl Iterator<Item = (Range<usize>, &'b mut [f64])> + use<'a, 'b> {
        let width = self.columns.len();
        let blocks = out.chunks_mut(ROWS * width).enumerate();
        blocks.map(move |(block, out)| (block * ROWS..block * ROWS + out.len() / width, out))
    }

    fn look(&self, rows: Range<usize>, out: &mut [f64]) -> Option<Look> {
        let times = &self.times[rows.clone()];
        let interval = times.get(1).map(|second| second.wrapping_sub(times[0]));
        let (rising, even) = times.windows(2).fold((true, true), |(rising, even), pair| {
            (rising & (pair[1] > pair[0]), even & (Some(pair[1].wrapping_sub(pair[0])) == interval))
        });
        rising.then_some(())?;
        let firsts: Vec<f64> = self.columns.iter().map(|column| column.at(rows.start)).collect();
        let varies = self.interleave(rows.clone(), &firsts, out)?;
        let span = [times[0], times[times.len() - 1]];
        Some(Look { rows: rows.len(), firsts, varies, span, interval, even })
    }

    /// Writes columns as rows and says which channels have another value than their first.
    fn interleave(&self, rows: Range<usize>, firsts: &[f64], out: &mut [f64]) -> Option<Vec<bool>> {
        let width = self.columns.len();
        let mut scratch = vec![0.0; NEAR * width];
        let mut varies = vec![false; width];
        for (part, out) in out.chunks_mut(NEAR * width).enumerate() {
            let start = rows.start + part * NEAR;
            let rows = start..start + out.len() / width;
            let places = self.columns.iter().zip(scratch.chunks_mut(NEAR));
            let near: Vec<&[f64]> =
                places.map(|(column, scratch)| column.slice(rows.clone(), scratch)).collect();
            // Loops over neighbours in memory, and without a way out, are done by wide instructions.
            let mut fits = self.bars.in_order(&near);
            for (channel, (values, first)) in near.iter().zip(firsts).enumerate() {
                let (inside, other) =
                    values.iter().fold((true, false), |(inside, other), value| {
                        (inside & (value.abs() <= f64::from(f32::MAX)), other | (value != first))
                    });
                fits &= inside;
                varies[channel] |= other;
            }
            fits.then_some(())?;
            match *near {
                [one] => out.copy_from_slice(one),
                // Bars without and with a volume, the tables that are largest.
                [a, b, c, d] => spread([a, b, c, d], out),
                [a, b, c, d, e] => spread([a, b, c, d, e], out),
                _ => {
                    for (channel, values) in near.iter().enumerate() {
                        let places = out[channel..].iter_mut().step_by(width);
                        places.zip(*values).for_each(|(out, value)| *out = *value);
                    }
                }
            }
        }
        Some(varies)
    }
}

/// Writes columns as rows of a width that is known beforehand.
fn spread<const WIDTH: usize>(columns: [&[f64]; WIDTH], out: &mut [f64]) {
    let (rows, _) = out.as_chunks_mut::<WIDTH>();
    for (place, row) in rows.iter_mut().enumerate() {
        *row = columns.map(|column| column[place]);
    }
}

fn both(a: Option<Look>, b: Option<Look>) -> Option<Look> {
    a?.then(b?)
}

/// A column of f64 without a missing value, in the pieces that it was read in.
struct Pieces<'a>(Vec<(usize, &'a [f64])>);

impl<'a> Pieces<'a> {
    fn of(column: &'a Column) -> Option<Self> {
        (*column.dtype() == DataType::Float64).then_some(())?;
        let numbers = column.f64().ok().filter(|numbers| numbers.null_count() == 0)?;
        Some(Self::new(numbers.downcast_iter().map(|chunk| &chunk.values()[..])))
    }

    fn new(pieces: impl Iterator<Item = &'a [f64]>) -> Self {
        let mut start = 0;
        let pieces = pieces.map(|values| {
            start += values.len();
            (start - values.len(), values)
        });
        Self(pieces.collect())
    }

    /// The values of these rows, put together in `scratch` if they do not lie one behind the other.
    fn slice<'b>(&'b self, rows: Range<usize>, scratch: &'b mut [f64]) -> &'b [f64] {
        let first = self.0.partition_point(|(start, values)| start + values.len() <= rows.start);
        let mut filled = 0;
        for (start, values) in &self.0[first..] {
            let end = rows.end.min(start + values.len());
            let begin = rows.start.max(*start);
            if begin >= end {
                break;
            }
            let part = &values[begin - start..end - start];
            if part.len() == rows.len() {
                return part;
            }
            scratch[filled..filled + part.len()].copy_from_slice(part);
            filled += part.len();
        }
        &scratch[..filled]
    }

    fn at(&self, row: usize) -> f64 {
        self.slice(row..row + 1, &mut [0.0])[0]
    }
}

/// Where the prices of a bar stand, as far as their order is checked.
struct Bars {
    high: Option<(usize, Vec<usize>)>,
    low: Option<(usize, Vec<usize>)>,
}

impl Bars {
    fn of(channels: &[Channel]) -> Self {
        let role = |role| channels.iter().position(|channel| channel.role == role);
        // As in `Work::ohlc`: the other extreme counts only where nothing else can.
        let beside = |this, other| {
            let inner: Vec<usize> =
                [Role::Open, Role::Close].into_iter().filter_map(role).collect();
            let prices = if inner.is_empty() { role(other).into_iter().collect() } else { inner };
            role(this).filter(|_| !prices.is_empty()).map(|extreme| (extreme, prices))
        };
        Self { high: beside(Role::High, Role::Low), low: beside(Role::Low, Role::High) }
    }

    /// Whether each high is at least, and each low at most, the prices beside it, in these columns.
    fn in_order(&self, columns: &[&[f64]]) -> bool {
        holds(columns, &self.high, |high, price| high >= price)
            & holds(columns, &self.low, |low, price| low <= price)
    }
}

/// Whether `right` holds between an extreme and each of the prices beside it, in all rows.
fn holds(
    columns: &[&[f64]],
    extreme: &Option<(usize, Vec<usize>)>,
    right: impl Fn(f64, f64) -> bool,
) -> bool {
    let Some((extreme, prices)) = extreme else { return true };
    prices.iter().fold(true, |so_far, price| {
        let pairs = columns[*extreme].iter().zip(columns[*price]);
        so_far & pairs.fold(true, |so_far, (extreme, price)| so_far & right(*extreme, *price))
    })
}
