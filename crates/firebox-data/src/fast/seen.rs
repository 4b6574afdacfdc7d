//! Consecutive rows of one series, as a part of a file gives them.

use crate::Format;
use crate::frame::Reading;
use crate::look::{Look, MOST_CHANNELS, Part};
use crate::mapping::Mapping;
use crate::raw::{RawSeries, Rows};

/// A part of a file.
pub(super) enum Seen {
    /// Rows in which nothing is odd: values, `[time, channel]`, and times, which are the numbers of the rows, from 0, in
    /// data without times.
    Clean(Look, Vec<f64>, Vec<i64>),
    /// Rows as the long way reads them.
    Odd(RawSeries),
}

impl Seen {
    /// The rows of a table, of which the first is the `start`-th of the file.
    pub(super) fn of(reading: &Reading<'_>, start: usize) -> Option<Self> {
        let clean = || {
            let part = Part::of(reading, 0)?;
            let mut values = vec![0.0; part.times.len() * reading.mapping.channels.len()];
            let look = part.lay_out(&mut values)?;
            Some(Self::Clean(look, values, part.times))
        };
        clean().or_else(|| columns(reading, start).map(Self::Odd))
    }
}

/// Rows that are one series without labels, whatever is wrong with them.
pub(super) fn columns(reading: &Reading<'_>, start: usize) -> Option<RawSeries> {
    let Mapping { series, label, channels, .. } = reading.mapping;
    let alone = series.is_none() && label.is_none();
    (alone && channels.len() <= MOST_CHANNELS).then_some(())?;
    // A row without any value may be a blank line of CSV, which is none.
    if reading.input.format == Format::Csv {
        let columns = reading.frame.columns().iter();
        let holds = columns.map(|column| column.is_not_null()).reduce(|a, b| a | b)?;
        holds.all().then_some(())?;
    }
    let mut raw = reading.series().ok()?.series.pop()?;
    raw.pieces.iter_mut().for_each(|piece| piece.rows = Rows::From(start + 1));
    Some(raw)
}
