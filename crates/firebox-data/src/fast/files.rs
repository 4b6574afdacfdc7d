//! The parts of a file, decoded on all processors and taken in order. What is done with them is in
//! [`parted`](super::parted).

use crate::frame::Table;
use crate::groups::{GroupRange, Groups};
use crate::input::Input;
use crate::look::{self, Look};
use crate::mapping::Mapping;
use crate::progress::Share;
use crate::time::Zone;
use crate::turns::in_turn;
use crate::{DataConfig, Format, parts};

use super::taken::{Part, Taken};
use super::{Sink, Stop, known};

/// Rows of a part of a Parquet or Arrow file, at least: enough that asking for it costs little.
pub(super) const PART: usize = 1 << 17;

/// Channels from which on a part has fewer rows, so that it takes no more memory.
const WIDE: usize = 16;

/// Rows of a part of tables of these columns, at least.
fn rows_of_part(mapping: &Mapping) -> usize {
    (PART * WIDE / mapping.channels.len().max(WIDE)).max(PART >> 7)
}

/// Reads a file part by part.
pub(super) fn read(
    (input, config, zone): (&Input, &DataConfig, &Zone),
    to: (&mut Taken, &mut Sink<'_>),
    same: impl FnMut(&Mapping) -> Result<(), Stop>,
    share: &Share<'_>,
) -> Result<(), Stop> {
    let groups = match input.format {
        Format::Parquet | Format::Arrow => Groups::open(input, config),
        _ => None,
    };
    match groups {
        Some(groups) => {
            let how = (rows_of_part(groups.mapping()), same);
            match input.format == Format::Arrow && !are_many(&groups, how.0) {
                true => in_order((&groups, input, zone), to, how, share),
                false => in_groups((&groups, input, zone), to, how, share),
            }
        }
        // Polars may have more to say of other files.
        None if input.format == Format::Parquet => Err(Stop::Odd),
        None => one_by_one((input, config, zone), to, same, share),
    }
}

/// Whether there are parts of so many rows for every processor, and several of them may be held at once. Of one that has
/// eight times as many there is work for all processors.
fn are_many(groups: &Groups<'_>, at_once: usize) -> bool {
    let (parts, threads, _) = division(groups, at_once);
    parts.len() >= threads && parts.iter().all(|part| part.rows.len() < 8 * at_once)
}

/// Reads a file part by part, each on one processor, and laid out on all.
pub(super) fn in_order(
    (groups, input, zone): (&Groups<'_>, &Input, &Zone),
    (taken, sink): (&mut Taken, &mut Sink<'_>),
    (at_once, mut same): (usize, impl FnMut(&Mapping) -> Result<(), Stop>),
    share: &Share<'_>,
) -> Result<(), Stop> {
    known((groups.rows() > 0).then_some(()))?;
    same(groups.mapping())?;
    let layout = taken.of_next_file();
    let coded = layout.mapping(groups.mapping());
    let of = (input, &coded);
    taken.expect(of, groups.rows(), sink)?;
    for part in groups.parts(at_once) {
        let table = groups.part(&part, false).and_then(|table| layout.coded(table, zone));
        let table = known(table)?;
        taken.add_table(&table.reading(zone), part.rows.start, sink)?;
        share.reached(part.rows.end, groups.rows());
    }
    taken.end_file(sink)
}

/// Reads a file part by part, each on all processors.
fn one_by_one(
    (input, config, zone): (&Input, &DataConfig, &Zone),
    (taken, sink): (&mut Taken, &mut Sink<'_>),
    mut same: impl FnMut(&Mapping) -> Result<(), Stop>,
    share: &Share<'_>,
) -> Result<(), Stop> {
    let (mut rows, layout) = (0, taken.of_next_file());
    parts::each(input, config, |table, expected| {
        same(table.mapping())?;
        let table = known(layout.coded(table, zone))?;
        let reading = table.reading(zone);
        if rows == 0 {
            taken.expect((input, reading.mapping), expected, sink)?;
        }
        taken.add_table(&reading, rows, sink)?;
        rows += table.rows();
        share.reached(rows, expected);
        Ok(())
    })?;
    // A file without rows is told of before anything else.
    known((rows > 0).then_some(()))?;
    taken.end_file(sink)
}

/// Reads a file of which every processor takes some groups of rows from the disk, so many rows at once or more.
pub(super) fn in_groups(
    (groups, input, zone): (&Groups<'_>, &Input, &Zone),
    (taken, sink): (&mut Taken, &mut Sink<'_>),
    (at_once, mut same): (usize, impl FnMut(&Mapping) -> Result<(), Stop>),
    share: &Share<'_>,
) -> Result<(), Stop> {
    // A file without rows is told of before anything else.
    known((groups.rows() > 0).then_some(()))?;
    same(groups.mapping())?;
    let layout = taken.of_next_file();
    let coded = layout.mapping(groups.mapping());
    let of = (input, &coded);
    let table_of =
        |group: &GroupRange, by_columns| layout.coded(groups.part(group, by_columns)?, zone);
    if sink.is_memory() && of.1.series.is_none() && taken.keeps_all() {
        match to_their_places((groups, share), at_once, (zone, coded.channels.len()), table_of) {
            Ok((look, values, times)) => {
                taken.series(&input.name(), of, 0, sink)?.adopt(look, values, times);
                return taken.end_file(sink);
            }
            // Rows may be left out, and those behind them lie elsewhere: once more, one part behind the other.
            Err(Stop::Odd) => {}
            Err(failed) => return Err(failed),
        }
    }
    taken.expect(of, groups.rows(), sink)?;
    let (parts, threads, by_columns) = division(groups, at_once);
    let apart = taken.is_apart();
    let work = |group: &GroupRange| {
        let table = known(table_of(group, by_columns))?;
        Part::of(&table.reading(zone), group.rows.start, apart)
    };
    let mut ends = parts.iter().map(|part| part.rows.end);
    in_turn(threads, parts.iter(), work, |part| {
        taken.add(part, of, sink)?;
        share.reached(ends.next().unwrap_or_default(), groups.rows());
        Ok(())
    })?;
    taken.end_file(sink)
}

/// The parts of a file, the threads that take them, and whether each is decoded by all processors.
fn division(groups: &Groups<'_>, at_once: usize) -> (Vec<GroupRange>, usize, bool) {
    let (parts, threads) = (groups.parts(at_once), rayon::current_num_threads());
    // A file of few groups has work for all processors within each.
    let by_columns = parts.len() < threads;
    (parts, threads, by_columns)
}

/// Values, `[time, channel]`, and times of a file in which nothing is odd, each group laid out where it belongs.
fn to_their_places<'a>(
    (groups, share): (&Groups<'a>, &Share<'_>),
    at_once: usize,
    (zone, width): (&Zone, usize),
    table_of: impl Fn(&GroupRange, bool) -> Option<Table<'a>> + Sync,
) -> Result<(Look, Vec<f64>, Vec<i64>), Stop> {
    let (parts, threads, by_columns) = division(groups, at_once);
    let (mut values, mut times) = (vec![0.0; groups.rows() * width], vec![0; groups.rows()]);
    let places = places(&parts, width, &mut values, &mut times);
    let look_at = |group: &GroupRange, out: &mut [f64]| {
        let table = table_of(group, by_columns)?;
        let part = look::Part::of(&table.reading(zone), group.rows.start)?;
        let look = part.lay_out(out)?;
        Some((look, part.times))
    };
    let work = |(group, values, times): (&GroupRange, &mut [f64], &mut [i64])| {
        let (look, read) = known(look_at(group, values))?;
        times.copy_from_slice(&read);
        Ok(look)
    };
    let (mut all, mut done) = (None, 0);
    let add = |look: Look| -> Result<(), Stop> {
        done += look.rows;
        share.reached(done, groups.rows());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Columns;
    use std::path::Path;

    #[test]
    fn parts_of_wide_tables_have_fewer_rows() {
        let of = |channels: usize| {
            let names: Vec<String> = (0..channels).map(|channel| format!("c{channel}")).collect();
            let mapping = Mapping::new(Path::new("a"), &names, &Columns::default()).unwrap();
            rows_of_part(&mapping)
        };
        assert_eq!([of(1), of(16), of(64)], [PART, PART, PART / 4]);
        assert_eq!(of(100_000), 1024);
    }
}
