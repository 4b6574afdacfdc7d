//! What is told of data, whether they were read now or by an earlier run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use firebox_core::{Event, Listener, SeriesSet, quoted};

use crate::frame::names_of;
use crate::input::{Input, unread};
use crate::mapping::Mapping;
use crate::raw::as_number;
use crate::{Checks, DataConfig, Defect, Format, npy, time};

/// The end of 1970.
const EARLIEST: i64 = 31_536_000_000_000;

/// What to know of data that was read of these files, now or by an earlier run.
pub(crate) fn warn_of(
    listener: &dyn Listener,
    (config, inputs): (&DataConfig, &[Input]),
    (set, checks): (&SeriesSet, &Checks),
) {
    for (folder, names) in unread(config, inputs[0].format) {
        let is = if names.len() == 1 { "is" } else { "are" };
        let message = format!(
            "{} in {} {is} not read: unpack such files, or name such folders in `data.path`, if they are meant to be",
            quoted(&names, 5),
            folder.display()
        );
        warn(listener, message);
    }
    warn_of_unit(listener, config, checks);
    warn_of_lost(listener, checks);
    warn_of_missing(listener, checks);
    warn_of_duplicates(listener, checks);
    warn_of_index(listener, config, &inputs[0]);
    let classes = checks.classes.iter().map(String::as_str);
    // Of files, nobody means the same by two names.
    let named = set.series().iter().filter(|_| checks.series_column.is_some());
    let groups: BTreeSet<&str> =
        set.series().iter().filter_map(|series| series.group.as_deref()).collect();
    let names = [
        alike(["classes", "class"], classes),
        alike(["names of series", "series"], named.map(|series| &*series.name)),
        alike(["groups of series", "group"], groups.into_iter()),
    ];
    names.into_iter().flatten().for_each(|message| warn(listener, message));
}

/// What is said of names, such as those of classes, that are the same word or number, written in several ways.
fn alike<'a>([all, one]: [&str; 2], names: impl Iterator<Item = &'a str>) -> Option<String> {
    const NAMED: usize = 4;
    let mut by_word = BTreeMap::<String, Vec<&str>>::new();
    for name in names {
        let words = || name.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
        by_word.entry(as_number(name).unwrap_or_else(words)).or_default().push(name);
    }
    let several: Vec<Vec<&str>> = by_word.into_values().filter(|all| all.len() > 1).collect();
    if several.is_empty() {
        return None;
    }
    let shown = several.iter().take(NAMED).map(|same| quoted(same, NAMED));
    let shown: Vec<String> = shown.map(|names| names.replace("`, `", "` and `")).collect();
    let more = match several.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    Some(format!(
        "{all} differ by letter case, spaces or how a number is written alone: {}{more}: each is a {one} of its own; write them alike if they are one",
        shown.join("; ")
    ))
}

/// Of so many rows, one that is left out as having the time of another is worth a word.
const FEW_TWICE: u64 = 10;

/// Rows that are left out because of their times, where these are too many for mistakes: times lack the hour, or rows the
/// name of their series.
fn warn_of_duplicates(listener: &dyn Listener, checks: &Checks) {
    let twice = checks.findings.iter().find(|found| found.defect == Defect::Duplicates);
    let Some(found) = twice.filter(|found| FEW_TWICE * found.count > checks.rows) else { return };
    warn(
        listener,
        format!(
            "{} of {} rows have the time of another and are left out, as `data.checks.duplicates` says: check that `data.columns.time` names the column that has the time of day, too, and `data.columns.series` the one that tells series apart",
            found.count, checks.rows
        ),
    );
}

/// Columns that are the numbers of rows, and no channels.
fn warn_of_index(listener: &dyn Listener, config: &DataConfig, input: &Input) {
    let found = || {
        let (names, _) = names_of(input, config)?;
        let mapping = Mapping::new(&input.path, &names, &config.columns).ok()?;
        Some(mapping.index_columns(&names))
    };
    let columns = found().unwrap_or_default();
    if !columns.is_empty() {
        warn(
            listener,
            format!(
                "{} in {} is not learnt from: a column of such a name is the numbering of rows that pandas writes (`to_csv(index=False)` leaves it out); name it in `data.columns.channels` beside the others if it is more",
                quoted(&columns, 4),
                input.path.display()
            ),
        );
    }
}

/// Texts that would have been read as missing values.
fn warn_of_missing(listener: &dyn Listener, checks: &Checks) {
    let nowhere = &checks.missing_nowhere;
    if !nowhere.is_empty() {
        warn(
            listener,
            format!(
                "`data.csv.missing` names what no cell of the files is: {}; texts are compared as they stand there (-9999 is not -9999.0): correct them, or leave them out",
                crate::error::List(nowhere)
            ),
        );
    }
}

/// Numbers of a finer unit than the declared one end up far in the future, which is refused; those of a coarser one
/// end up in 1970, as do clocks that begin with a device. Dates without separators are numbers of no unit.
fn warn_of_unit(listener: &dyn Listener, config: &DataConfig, checks: &Checks) {
    let unit = config.columns.time_unit;
    let Some(span) = checks.span.filter(|_| unit != crate::TimeUnit::Auto) else { return };
    let numbers = span.map(|time| time::in_units(time, unit));
    let [first, last] = span.map(time::format);
    if let [Some(from), Some(to)] = numbers.map(time::as_date) {
        warn(
            listener,
            format!(
                "the times look like dates without separators, from {from} to {to}, and `data.columns.time_unit` reads them as numbers since 1970, from {first} to {last}: write them as {from}, and leave the unit out"
            ),
        );
        return;
    }
    let early = span[0] > 0 && span[1] < EARLIEST;
    if let Some(likely) = time::likely_unit(numbers[0]).filter(|_| early) {
        warn(
            listener,
            format!(
                "all times lie in 1970, from {first} to {last}: check `data.columns.time_unit`; `time_unit = \"{likely}\"` would be likely"
            ),
        );
    }
}

/// Series of which timeframes left nothing.
fn warn_of_lost(listener: &dyn Listener, checks: &Checks) {
    let lost = checks.timeframes.as_ref().map_or(&[][..], |made| &made.lost_series);
    if !lost.is_empty() {
        warn(
            listener,
            format!(
                "nothing is left of {} series after the warm-up of the indicators, and they are not used: {}",
                lost.len(),
                crate::error::List(lost)
            ),
        );
    }
}

/// Bytes of arrays from which on it is told that they are copied.
pub(crate) const LARGE: u64 = 256 << 20;

/// Arrays of so many bytes or more that could be converted, and are read in place then: those of fractions, without files
/// of labels.
pub(crate) fn warn_of_arrays(
    listener: &dyn Listener,
    config: &DataConfig,
    inputs: &[Input],
    large: u64,
) {
    let length = |input: &Input| fs::metadata(&input.path).map_or(0, |found| found.len());
    let is_of_arrays = inputs.first().is_some_and(|input| input.format == Format::Npy);
    if !is_of_arrays || config.columns.label.is_some() {
        return;
    }
    let bytes: u64 = inputs.iter().map(length).sum();
    let header = npy::header_of(&inputs[0].path).filter(|header| header.element.is_float());
    if let Some(header) = header.filter(|_| bytes >= large) {
        let width = match header.shape[..] {
            [.., _, width] => width.max(1) as u64,
            _ => 1,
        };
        // A step is its channels and its number.
        let steps = bytes / width.saturating_mul(header.element.bytes as u64);
        let stored = steps.saturating_mul(8).saturating_mul(width.saturating_add(1));
        warn(
            listener,
            format!(
                "{} MB of .npy arrays are copied to the cache, where they take {} MB, as float64 beside the number of each step: `firebox data convert FOLDER SAMPLES` makes samples of them, which are read in place and may be float16; then name SAMPLES in `data.path`",
                bytes / 1_000_000,
                stored / 1_000_000
            ),
        );
    }
}

pub(crate) fn warn(listener: &dyn Listener, message: String) {
    listener.on(&Event::Warning { message });
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::input::inputs;

    #[test]
    fn classes_that_are_written_in_several_ways_are_told_of() {
        let said = |classes: &[&str]| alike(["classes", "class"], classes.iter().copied());
        assert_eq!(said(&["sit", "stand", "1", "2", "10", "sit down", "sitdown"]), None);
        assert_eq!(said(&[]), None);
        let found = said(&["1", "1.0", "Lie  down", "Sit", "lie down", "sit", "walk"]).unwrap();
        let expected = "classes differ by letter case, spaces or how a number is written alone: `1` and `1.0`; `Lie  down` and `lie down`; `Sit` and `sit`: each is";
        assert!(found.starts_with(expected), "{found}");
        let many: Vec<String> =
            (0..6).flat_map(|at| [format!("a{at}"), format!("A{at}")]).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(said(&many).unwrap().contains("`a3` and `A3`; and 2 more: each"));
        let groups = alike(["groups of series", "group"], ["Ann", "ann", "Bob"].into_iter());
        let expected = "groups of series differ by letter case, spaces or how a number is written alone: `Ann` and `ann`: each is a group of its own; write them alike if they are one";
        assert_eq!(groups.unwrap(), expected);
    }

    #[test]
    fn large_arrays_that_could_be_converted_are_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let write = |descr: &str| {
            let text =
                format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (250000,), }}");
            let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
            bytes.extend((text.len() as u16).to_le_bytes());
            bytes.extend(text.as_bytes());
            bytes.extend([0; 1_000_000]);
            std::fs::write(folder.path().join("a.npy"), &bytes).unwrap();
            bytes.len() as u64
        };
        let said = |config: &DataConfig, large: u64| {
            let said = Mutex::new(String::new());
            let listener = |event: &Event| {
                if let Event::Warning { message } = event {
                    *said.lock().unwrap() += message;
                }
            };
            warn_of_arrays(&listener, config, &inputs(config).unwrap(), large);
            said.into_inner().unwrap()
        };
        let mut config = DataConfig::new(folder.path());
        let bytes = write("<f4");
        let found = said(&config, bytes);
        assert!(found.contains("`firebox data convert FOLDER SAMPLES`"));
        assert!(found.starts_with("1 MB of .npy arrays") && found.contains("take 4 MB"), "{found}");
        assert_eq!(said(&config, bytes + 1), "");
        // Whole numbers are none that are converted, nor are arrays with labels beside them.
        write("<i4");
        assert_eq!(said(&config, bytes), "");
        write("<f4");
        config.columns.label = Some("state".to_owned());
        assert_eq!(said(&config, bytes), "");
    }
}
