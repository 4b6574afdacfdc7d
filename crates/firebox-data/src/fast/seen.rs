//! Consecutive rows of one series, as a part of a file gives them.

use std::ops::Range;
use std::path::Path;

use bytemuck::cast_slice;

use crate::Format;
use crate::frame::Reading;
use crate::look::{Look, MOST_CHANNELS, Part};
use crate::mapping::Mapping;
use crate::raw::{Piece, RawLabels, RawSeries, Rows};

use super::sorted::Sorted;
use super::{Stop, labels};

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

    /// Some rows of a series that were sorted.
    pub(super) fn sorted(
        sorted: &Sorted,
        series: usize,
        rows: &Range<usize>,
        mapping: &Mapping,
    ) -> Result<Self, Stop> {
        let columns = sorted.rows(series, rows)?;
        let (others, channels) = columns.split_at(columns.len() - mapping.channels.len());
        // Places come first, which nothing is to be said of.
        let times = others.get(1).map(|pieces| {
            let pieces: Vec<&[i64]> = pieces.iter().map(|piece| cast_slice(piece)).collect();
            pieces.concat()
        });
        let channels: Vec<Vec<&[f64]>> = channels.iter().map(|pieces| floats(pieces)).collect();
        let numbers = times.clone().unwrap_or_else(|| (0..rows.len() as i64).collect());
        let part = Part::of_pieces(&mapping.channels, &channels, numbers);
        let mut values = vec![0.0; rows.len() * channels.len()];
        let seen = match part.lay_out(&mut values) {
            Some(look) => Self::Clean(look, values, part.times),
            None => Self::Odd(RawSeries {
                name: sorted.series[series].name.clone(),
                origin: sorted.series[series].origin,
                time: times,
                columns: channels.iter().map(|pieces| pieces.concat()).collect(),
                labels: RawLabels::None,
                pieces: vec![Piece {
                    path: Path::new("").into(),
                    steps: rows.len(),
                    rows: Rows::From(rows.start + 1),
                }],
            }),
        };
        sorted.check()?;
        Ok(seen)
    }
}

fn floats<'a>(pieces: &[&'a [u64]]) -> Vec<&'a [f64]> {
    pieces.iter().map(|piece| cast_slice(piece)).collect()
}

/// Rows that are one series without labels, whatever is wrong with them.
pub(super) fn columns(reading: &Reading<'_>, start: usize) -> Option<RawSeries> {
    let Mapping { series, label, channels, .. } = reading.mapping;
    let alone = series.is_none() && label.is_none();
    (alone && channels.len() <= MOST_CHANNELS).then_some(())?;
    // A row without any value may be a blank line of CSV, which is none.
    if reading.input.format == Format::Csv {
        labels::holds_values(reading.frame).then_some(())?;
    }
    let mut raw = reading.series().ok()?.series.pop()?;
    raw.pieces.iter_mut().for_each(|piece| piece.rows = Rows::From(start + 1));
    Some(raw)
}
