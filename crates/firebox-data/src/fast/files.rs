//! The parts of a file, decoded on all processors and taken in order. What is done with them is in
//! [`parted`](super::parted).

use crate::groups::{GroupRange, Groups};
use crate::input::Input;
use crate::look::{Look, Part};
use crate::mapping::Mapping;
use crate::time::Zone;
use crate::turns::in_turn;
use crate::work::Work;
use crate::{DataConfig, parts};

use super::parted::{Parted, Seen, Short};
use super::{Sink, Stop, known};

/// Rows of a part of a Parquet file, at least: enough that asking for it costs little.
pub(super) const PART: usize = 1 << 17;

/// Reads a file part by part, each on all processors.
pub(super) fn one_by_one(
    input: &Input,
    config: &DataConfig,
    zone: &Zone,
    sink: &mut Sink<'_>,
    mut same: impl FnMut(&Mapping) -> Result<(), Stop>,
) -> Result<(Short, Work), Stop> {
    let mut series = None;
    parts::each(input, config, |table, expected| {
        let reading = table.reading(zone);
        same(reading.mapping)?;
        let series = series.get_or_insert_with(|| {
            let mut series = Parted::new(input, reading.mapping, config.checks);
            if sink.is_memory() {
                series.expect(expected);
            }
            series
        });
        series.add_table(&reading, sink)
    })?;
    known(series)?.finish(sink)
}

/// Reads a Parquet file, of which every processor takes some groups of rows from the disk, so many rows at once or more.
pub(super) fn in_groups(
    input: &Input,
    config: &DataConfig,
    zone: &Zone,
    sink: &mut Sink<'_>,
    (at_once, mut same): (usize, impl FnMut(&Mapping) -> Result<(), Stop>),
) -> Result<(Short, Work), Stop> {
    let groups = known(Groups::open(input, config))?;
    // A file without rows is told of before anything else.
    known((groups.rows() > 0).then_some(()))?;
    same(groups.mapping())?;
    let mut series = Parted::new(input, groups.mapping(), config.checks);
    if sink.is_memory() {
        match to_their_places(&groups, at_once, zone) {
            Ok((look, values, times)) => {
                series.adopt(look, values, times);
                return series.finish(sink);
            }
            // Rows may be left out, and those behind them lie elsewhere: once more, one part behind the other.
            Err(Stop::Odd) => series.expect(groups.rows()),
            Err(failed) => return Err(failed),
        }
    }
    let (parts, threads, by_columns) = division(&groups, at_once);
    let work = |group: &GroupRange| {
        let table = known(groups.part(group, by_columns))?;
        known(Seen::of(&table.reading(zone), group.rows.start))
    };
    in_turn(threads, parts.iter(), work, |seen| series.add(seen, sink))?;
    series.finish(sink)
}

/// The parts of a file, the threads that take them, and whether each is decoded by all processors.
fn division(groups: &Groups<'_>, at_once: usize) -> (Vec<GroupRange>, usize, bool) {
    let (parts, threads) = (groups.parts(at_once), rayon::current_num_threads());
    // A file of few groups has work for all processors within each.
    let by_columns = parts.len() < threads;
    (parts, threads, by_columns)
}

/// Values, `[time, channel]`, and times of a file in which nothing is odd, each group laid out where it belongs.
fn to_their_places(
    groups: &Groups<'_>,
    at_once: usize,
    zone: &Zone,
) -> Result<(Look, Vec<f64>, Vec<i64>), Stop> {
    let (parts, threads, by_columns) = division(groups, at_once);
    let width = groups.mapping().channels.len();
    let (mut values, mut times) = (vec![0.0; groups.rows() * width], vec![0; groups.rows()]);
    let places = places(&parts, width, &mut values, &mut times);
    let look_at = |group: &GroupRange, out: &mut [f64]| {
        let table = groups.part(group, by_columns)?;
        let part = Part::of(&table.reading(zone), group.rows.start)?;
        let look = part.lay_out(out)?;
        Some((look, part.times))
    };
    let work = |(group, values, times): (&GroupRange, &mut [f64], &mut [i64])| {
        let (look, read) = known(look_at(group, values))?;
        times.copy_from_slice(&read);
        Ok(look)
    };
    let mut all = None;
    let add = |look| -> Result<(), Stop> {
        all = Some(known(Look::after(all.take(), look))?);
        Ok(())
    };
    in_turn(threads, places.into_iter(), work, add)?;
    Ok((known(all)?, values, times))
}

/// The place of each part among the values and times of all.
fn places<'a>(
    parts: &'a [GroupRange],
    width: usize,
    mut values: &'a mut [f64],
    mut times: &'a mut [i64],
) -> Vec<(&'a GroupRange, &'a mut [f64], &'a mut [i64])> {
    let mut place = |part: &'a GroupRange| {
        let rows = part.rows.len();
        let own_values = values.split_off_mut(..rows * width).unwrap_or_default();
        let own_times = times.split_off_mut(..rows).unwrap_or_default();
        (part, own_values, own_times)
    };
    parts.iter().map(&mut place).collect()
}
