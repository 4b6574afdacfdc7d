//! Consecutive rows of one series, as a part of a file gives them.

use std::ops::Range;
use std::path::Path;

use bytemuck::cast_slice;

use crate::frame::Reading;
use crate::look::{Look, Part};
use crate::mapping::Mapping;
use crate::raw::{Piece, Raw, RawLabels, RawSeries, Rows};
use crate::time::Zone;

use super::Stop;
use super::sorted::{Sorted, by_time};

/// A part of a file.
pub(super) enum Seen {
    /// Rows in which nothing is odd: values, `[time, channel]`, and times, which are the numbers of the rows, from 0, in
    /// data without times.
    Clean(Look, Vec<f64>, Vec<i64>),
    /// Rows as the long way reads them, and the zone by which their times are still to be settled.
    Odd(RawSeries, Zone),
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
        clean().or_else(|| columns(reading, start).map(|(raw, zone)| Self::Odd(raw, zone)))
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
        let mut times = others.get(1).map(|pieces| {
            let pieces: Vec<&[i64]> = pieces.iter().map(|piece| cast_slice(piece)).collect();
            pieces.concat()
        });
        let mut channels: Vec<Vec<&[f64]>> = channels.iter().map(|pieces| floats(pieces)).collect();
        // Of several blocks, whose times are in between one another.
        let ordered = times.as_mut().filter(|_| sorted.is_by_time());
        let ordered = ordered.and_then(|times| put_in_order(times, &channels));
        if let Some(ordered) = &ordered {
            channels = ordered.iter().map(|values| vec![&values[..]]).collect();
        }
        let timed = times.is_some();
        let numbers = times.unwrap_or_else(|| (0..rows.len() as i64).collect());
        let part = Part::of_pieces(&mapping.channels, &channels, numbers);
        let mut values = vec![0.0; rows.len() * channels.len()];
        let seen = match part.lay_out(&mut values) {
            Some(look) => Self::Clean(look, values, part.times),
            None => {
                let raw = RawSeries {
                    name: sorted.series[series].name.clone(),
                    origin: sorted.series[series].origin,
                    time: timed.then_some(part.times),
                    columns: channels.iter().map(|pieces| pieces.concat()).collect(),
                    labels: RawLabels::None,
                    pieces: vec![Piece {
                        path: Path::new("").into(),
                        steps: rows.len(),
                        rows: Rows::From(rows.start + 1),
                    }],
                };
                Self::Odd(raw, Zone::Utc)
            }
        };
        sorted.check()?;
        Ok(seen)
    }
}

/// Puts times in order, and returns the columns in it, if they are in another.
fn put_in_order(times: &mut Vec<i64>, columns: &[Vec<&[f64]>]) -> Option<Vec<Vec<f64>>> {
    let order = by_time(times)?;
    *times = order.iter().map(|row| times[*row as usize]).collect();
    let in_order = |pieces: &Vec<&[f64]>| {
        let values = pieces.concat();
        order.iter().map(|row| values[*row as usize]).collect()
    };
    Some(columns.iter().map(in_order).collect())
}

fn floats<'a>(pieces: &[&'a [u64]]) -> Vec<&'a [f64]> {
    pieces.iter().map(|piece| cast_slice(piece)).collect()
}

/// Rows that are one series without labels, whatever is wrong with them, and the zone by which their times are still to
/// be settled.
pub(super) fn columns(reading: &Reading<'_>, start: usize) -> Option<(RawSeries, Zone)> {
    let Mapping { series: named, label, .. } = reading.mapping;
    let alone = named.is_none() && label.is_none();
    alone.then_some(())?;
    let Raw { mut series, zone, .. } = reading.series().ok()?;
    let mut raw = series.pop()?;
    raw.pieces.iter_mut().for_each(|piece| piece.rows = Rows::From(start + 1));
    Some((raw, zone))
}
