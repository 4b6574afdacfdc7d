//! Data larger than the memory that the process may have: tables that are read, checked, stored and read back,
//! and converted samples that are trained on in their shards.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use firebox_cache::{CacheError, SampleSpec, Samples};
use firebox_core::{
    Event, Key, Labels, Normalisation, Normaliser, SeriesSet, Silent, SplitRule, Storage,
    WindowRule, split,
};
use firebox_data::{
    CheckPolicies, ConstantPolicy, CrowdedPolicy, DataConfig, GapPolicy, Interval, Paths, Policy,
    Timeframes, ingest, read,
};
use polars::prelude::*;

const ROWS: usize = 2_500_000;
/// Rows between two gaps.
const RUN: usize = 300_000;
/// KiB that the series take, values and times.
const SERIES: usize = ROWS * 5 * 8 / 1024;
/// KiB of private memory that the process may have, with the stacks of its threads.
const LIMIT: usize = 160 << 10;
/// KiB of anonymous memory that may be resident beyond that of the program itself.
const RESIDENT: usize = 48 << 10;
/// The same where rows are mended, columns of a part beside its rows: less than the series take.
const RESIDENT_MENDED: usize = 80 << 10;
/// The same where rows are sorted by series, some of them at once.
const RESIDENT_SORTED: usize = 88 << 10;
/// Rows between two that have a defect.
const ODD: usize = 100_003;

fn time(row: usize) -> i64 {
    1_700_000_000 + ((row + row / RUN * 1000) * 60) as i64
}

/// Open, high, low and close.
fn bar(row: usize) -> [f64; 4] {
    let close = 100.0 + (row % 977) as f64 / 8.0;
    [close - 0.25, close + 0.5, close - 0.5, close]
}

/// Tables of the same rows, of which some lack their open, and some are there twice.
fn write_odd(folder: &Path) {
    let rows =
        || (0..ROWS).flat_map(|row| std::iter::repeat_n(row, 1 + usize::from(row % ODD == 7)));
    let lacks = |row: usize| row % ODD == 5;
    let csv = std::fs::File::create(folder.join("odd.csv")).unwrap();
    let mut csv = std::io::BufWriter::new(csv);
    writeln!(csv, "time,open,high,low,close").unwrap();
    for row in rows() {
        let [open, high, low, close] = bar(row);
        let open = if lacks(row) { String::new() } else { open.to_string() };
        writeln!(csv, "{},{open},{high},{low},{close}", time(row)).unwrap();
    }
    csv.into_inner().unwrap();
    let mut columns = vec![Column::new("time".into(), rows().map(time).collect::<Vec<i64>>())];
    for (at, name) in ["open", "high", "low", "close"].into_iter().enumerate() {
        let value = |row| if at == 0 && lacks(row) { f64::NAN } else { bar(row)[at] };
        columns.push(Column::new(name.into(), rows().map(value).collect::<Vec<f64>>()));
    }
    let mut frame = DataFrame::new(rows().count(), columns).unwrap();
    let file = std::fs::File::create(folder.join("odd.parquet")).unwrap();
    ParquetWriter::new(file).with_row_group_size(Some(100_000)).finish(&mut frame).unwrap();
}

/// Bars of these rows, as CSV and Parquet.
fn write_bars<R: Iterator<Item = usize>>(folder: &Path, name: &str, rows: impl Fn() -> R) {
    let csv = std::fs::File::create(folder.join(format!("{name}.csv"))).unwrap();
    let mut csv = std::io::BufWriter::new(csv);
    writeln!(csv, "time,open,high,low,close").unwrap();
    for row in rows() {
        let [open, high, low, close] = bar(row);
        writeln!(csv, "{},{open},{high},{low},{close}", time(row)).unwrap();
    }
    csv.into_inner().unwrap();
    let mut columns = vec![Column::new("time".into(), rows().map(time).collect::<Vec<i64>>())];
    for (at, name) in ["open", "high", "low", "close"].into_iter().enumerate() {
        let values: Vec<f64> = rows().map(|row| bar(row)[at]).collect();
        columns.push(Column::new(name.into(), values));
    }
    let mut frame = DataFrame::new(rows().count(), columns).unwrap();
    let file = std::fs::File::create(folder.join(format!("{name}.parquet"))).unwrap();
    ParquetWriter::new(file).with_row_group_size(Some(100_000)).finish(&mut frame).unwrap();
}

fn write(folder: &Path) {
    write_bars(folder, "bars", || 0..ROWS);
}

fn config(folder: &Path, name: &str) -> DataConfig {
    let mut config = DataConfig::new(folder.join(name));
    config.columns.time_unit = firebox_data::TimeUnit::S;
    config.checks.gaps = GapPolicy::Split;
    config
}

/// Rows of each of the series that a column names.
const NAMED: usize = 100_000;

/// Tables of the same rows, so many of each of several series. The batches of the Arrow file end within them.
fn write_named(folder: &Path) {
    let name = |row: usize| format!("s{:02}", row / NAMED);
    let csv = std::fs::File::create(folder.join("named.csv")).unwrap();
    let mut csv = std::io::BufWriter::new(csv);
    writeln!(csv, "symbol,time,open,high,low,close").unwrap();
    for row in 0..ROWS {
        let [open, high, low, close] = bar(row);
        writeln!(csv, "{},{},{open},{high},{low},{close}", name(row), time(row)).unwrap();
    }
    csv.into_inner().unwrap();
    let mut columns = vec![
        Column::new("symbol".into(), (0..ROWS).map(name).collect::<Vec<String>>()),
        Column::new("time".into(), (0..ROWS).map(time).collect::<Vec<i64>>()),
    ];
    for (at, name) in ["open", "high", "low", "close"].into_iter().enumerate() {
        let values: Vec<f64> = (0..ROWS).map(|row| bar(row)[at]).collect();
        columns.push(Column::new(name.into(), values));
    }
    let mut frame = DataFrame::new(ROWS, columns).unwrap();
    let file = std::fs::File::create(folder.join("named.parquet")).unwrap();
    ParquetWriter::new(file).with_row_group_size(Some(70_000)).finish(&mut frame).unwrap();
    let mut batches = frame.slice(0, 70_000);
    for start in (70_000..ROWS).step_by(70_000) {
        batches.vstack_mut_owned(frame.slice(start as i64, 70_000)).unwrap();
    }
    for (name, compression) in [("named.arrow", None), ("packed.arrow", Some(IpcCompression::LZ4))]
    {
        let file = std::fs::File::create(folder.join(name)).unwrap();
        IpcWriter::new(file).with_compression(compression).finish(&mut batches).unwrap();
    }
}

fn ingest_named(folder: &Path) {
    let cache = folder.join("cache");
    for name in ["named.csv", "named.parquet", "named.arrow", "packed.arrow"] {
        let most = peak(|| {
            let data = ingest(&config(folder, name), &cache, &Silent).unwrap();
            assert_eq!((data.reused, data.set.steps()), (false, ROWS));
            assert_eq!(data.set.series().len(), ROWS / NAMED);
            for (number, series) in data.set.series().iter().enumerate() {
                assert!(series.values.is_elsewhere() && series.len() == NAMED);
                assert_eq!(series.name, format!("s{number:02}"));
                for step in (0..NAMED).step_by(997) {
                    let row = number * NAMED + step;
                    assert_eq!(series.values.part(step * 4..step * 4 + 4)[..], bar(row));
                    assert_eq!(series.time[step], time(row) * 1_000_000);
                }
                assert_eq!(series.segments.len(), 1);
            }
        });
        println!("{name}: {most} KiB of anonymous memory");
        assert!(most < RESIDENT_MENDED, "{name}: {most} KiB of anonymous memory for {SERIES}");
    }
}

#[test]
fn a_table_of_series_that_a_column_names_larger_than_memory_is_ingested() {
    if let Some(folder) = std::env::var_os("FIREBOX_TEST_STREAMING") {
        ingest_named(Path::new(&folder));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_named(folder.path());
    let test = "a_table_of_series_that_a_column_names_larger_than_memory_is_ingested";
    in_little_memory(test, LIMIT + (32 << 10), folder.path());
    let config = config(folder.path(), "packed.arrow");
    assert_stored_is_read(&config, folder.path());
}

/// Samples of an array, and the steps of each, of four channels.
const ARRAY: [usize; 2] = [2_500, 1_000];
/// The step of each that lacks a value.
const MISSING: usize = 3;

/// The same values as one array of samples, which has a channel more that never changes and lacks a value in each, as an
/// array for each, and as a `.ts` file of classes.
fn write_arrays(folder: &Path) {
    let begin = |path: &Path, shape: &str| {
        let mut file = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
        let text = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}");
        file.write_all(b"\x93NUMPY\x01\x00").unwrap();
        file.write_all(&(text.len() as u16).to_le_bytes()).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    };
    let [samples, steps] = ARRAY;
    let mut whole = begin(&folder.join("whole.npy"), &format!("({samples}, {steps}, 5)"));
    let each = folder.join("each");
    std::fs::create_dir(&each).unwrap();
    let mut ts = std::io::BufWriter::new(std::fs::File::create(folder.join("text.ts")).unwrap());
    writeln!(ts, "@dimensions 4\n@classLabel true a b\n@data").unwrap();
    for sample in 0..samples {
        let mut own = begin(&each.join(format!("{sample:04}.npy")), &format!("({steps}, 4)"));
        for row in sample * steps..(sample + 1) * steps {
            for value in bar(row) {
                whole.write_all(&value.to_le_bytes()).unwrap();
                own.write_all(&value.to_le_bytes()).unwrap();
            }
            let more = if row % steps == MISSING { f64::NAN } else { 7.0 };
            whole.write_all(&more.to_le_bytes()).unwrap();
        }
        for channel in 0..4 {
            let rows = sample * steps..(sample + 1) * steps;
            let text: Vec<String> = rows.map(|row| bar(row)[channel].to_string()).collect();
            write!(ts, "{}:", text.join(",")).unwrap();
        }
        writeln!(ts, "{}", ["a", "b"][sample % 2]).unwrap();
    }
    whole.into_inner().unwrap();
    ts.into_inner().unwrap();
}

fn ingest_arrays(folder: &Path) {
    let cache = folder.join("cache");
    let [samples, steps] = ARRAY;
    let cases = [
        ("whole.npy", ConstantPolicy::Keep),
        ("whole.npy", ConstantPolicy::Drop),
        ("each", ConstantPolicy::Error),
        ("text.ts", ConstantPolicy::Error),
    ];
    for (name, constant) in cases {
        let most = peak(|| {
            let mut config = DataConfig::new(folder.join(name));
            config.checks.constant = constant;
            let kept = constant == ConstantPolicy::Keep;
            config.checks.not_finite = if kept { Policy::Drop } else { Policy::Fill };
            let data = ingest(&config, &cache, &Silent).unwrap();
            assert_eq!((data.reused, data.set.series().len()), (false, samples));
            let (width, left_out) = if kept { (5, 1) } else { (4, 0) };
            for (number, series) in data.set.series().iter().enumerate() {
                assert!(series.values.is_elsewhere() && series.len() == steps - left_out);
                for step in (0..series.len()).step_by(97) {
                    let values = series.values.part(step * width..(step + 1) * width);
                    let row = if step >= MISSING { step + left_out } else { step };
                    assert_eq!(values[..4], bar(number * steps + row));
                }
            }
        });
        println!("{name}, {constant:?}: {most} KiB of anonymous memory");
        assert!(most < RESIDENT_SORTED, "{name}: {most} KiB of anonymous memory for {SERIES}");
    }
}

#[test]
fn arrays_and_ts_files_larger_than_memory_are_ingested() {
    if let Some(folder) = std::env::var_os("FIREBOX_TEST_STREAMING") {
        ingest_arrays(Path::new(&folder));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_arrays(folder.path());
    in_little_memory("arrays_and_ts_files_larger_than_memory_are_ingested", LIMIT, folder.path());
}

/// Series of a panel, whose rows are in turn.
const IN_TURN: usize = 500;

/// Tables of the same rows, one of each series for each time. Of days there are several files.
fn write_panel(folder: &Path) {
    let name = |row: usize| format!("s{:03}", row % IN_TURN);
    let moment = |row: usize| time(row / IN_TURN);
    let csv = std::fs::File::create(folder.join("panel.csv")).unwrap();
    let mut csv = std::io::BufWriter::new(csv);
    writeln!(csv, "time,symbol,open,high,low,close").unwrap();
    for row in 0..ROWS {
        let [open, high, low, close] = bar(row);
        writeln!(csv, "{},{},{open},{high},{low},{close}", moment(row), name(row)).unwrap();
    }
    csv.into_inner().unwrap();
    let mut columns = vec![
        Column::new("time".into(), (0..ROWS).map(moment).collect::<Vec<i64>>()),
        Column::new("symbol".into(), (0..ROWS).map(name).collect::<Vec<String>>()),
    ];
    for (at, name) in ["open", "high", "low", "close"].into_iter().enumerate() {
        let values: Vec<f64> = (0..ROWS).map(|row| bar(row)[at]).collect();
        columns.push(Column::new(name.into(), values));
    }
    let frame = DataFrame::new(ROWS, columns).unwrap();
    let write = |path: &str, rows: &mut DataFrame| {
        let file = std::fs::File::create(folder.join(path)).unwrap();
        ParquetWriter::new(file).with_row_group_size(Some(70_000)).finish(rows).unwrap();
    };
    write("panel.parquet", &mut frame.clone());
    std::fs::create_dir(folder.join("days")).unwrap();
    let day = ROWS / 10;
    (0..10).for_each(|number| {
        write(&format!("days/{number}.parquet"), &mut frame.slice((number * day) as i64, day));
    });
    let mut batches = frame.slice(0, 70_000);
    for start in (70_000..ROWS).step_by(70_000) {
        batches.vstack_mut_owned(frame.slice(start as i64, 70_000)).unwrap();
    }
    let file = std::fs::File::create(folder.join("panel.arrow")).unwrap();
    IpcWriter::new(file).finish(&mut batches).unwrap();
}

fn ingest_panel(folder: &Path) {
    let cache = folder.join("cache");
    for name in ["panel.csv", "panel.parquet", "panel.arrow", "days"] {
        let most = peak(|| {
            let data = ingest(&config(folder, name), &cache, &Silent).unwrap();
            assert_eq!((data.reused, data.set.steps()), (false, ROWS));
            assert_eq!(data.set.series().len(), IN_TURN);
            for (number, series) in data.set.series().iter().enumerate() {
                assert!(series.values.is_elsewhere() && series.len() == ROWS / IN_TURN);
                assert_eq!(series.name, format!("s{number:03}"));
                for step in (0..series.len()).step_by(97) {
                    let row = step * IN_TURN + number;
                    assert_eq!(series.values.part(step * 4..step * 4 + 4)[..], bar(row));
                    assert_eq!(series.time[step], time(step) * 1_000_000);
                }
                assert_eq!(series.segments.len(), 1);
            }
        });
        println!("{name}: {most} KiB of anonymous memory");
        assert!(most < RESIDENT_SORTED, "{name}: {most} KiB of anonymous memory for {SERIES}");
    }
    // What was sorted there is gone.
    let stored = std::fs::read_dir(cache.join(firebox_cache::SERIES)).unwrap().count();
    assert_eq!(stored, 4);
}

#[test]
fn a_panel_larger_than_memory_whose_series_are_in_turn_is_ingested() {
    if let Some(folder) = std::env::var_os("FIREBOX_TEST_STREAMING") {
        ingest_panel(Path::new(&folder));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_panel(folder.path());
    let test = "a_panel_larger_than_memory_whose_series_are_in_turn_is_ingested";
    in_little_memory(test, LIMIT + (48 << 10), folder.path());
    let config = config(folder.path(), "panel.parquet");
    assert_stored_is_read(&config, folder.path());
}

/// Rows between two of which the next is not there.
const LACKS: usize = 50_021;
/// KiB that the labels of all steps take in memory, where they are held.
const LABELS: usize = ROWS * 8 / 1024;

/// Tables of the same rows with labels and a constant channel, some of which are not there.
fn write_changed(folder: &Path) {
    let rows = || (0..ROWS).filter(|row| row % LACKS != 9);
    let label = |row: usize| ["calm", "", "wild"][row % 3];
    let csv = std::fs::File::create(folder.join("changed.csv")).unwrap();
    let mut csv = std::io::BufWriter::new(csv);
    writeln!(csv, "time,state,x,y,same").unwrap();
    for row in rows() {
        let [_, x, y, _] = bar(row);
        writeln!(csv, "{},{},{x},{y},7", time(row), label(row)).unwrap();
    }
    csv.into_inner().unwrap();
    let value = |at: usize| rows().map(|row| bar(row)[at]).collect::<Vec<f64>>();
    let columns = vec![
        Column::new("time".into(), rows().map(time).collect::<Vec<i64>>()),
        Column::new("state".into(), rows().map(label).collect::<Vec<&str>>()),
        Column::new("x".into(), value(1)),
        Column::new("y".into(), value(2)),
        Column::new("same".into(), vec![7.0; rows().count()]),
    ];
    let mut frame = DataFrame::new(rows().count(), columns).unwrap();
    let file = std::fs::File::create(folder.join("changed.parquet")).unwrap();
    ParquetWriter::new(file).with_row_group_size(Some(100_000)).finish(&mut frame).unwrap();
}

fn changed(folder: &Path, name: &str, gaps: GapPolicy) -> DataConfig {
    let mut config = config(folder, name);
    config.columns.label = Some("state".to_owned());
    (config.checks.constant, config.checks.gaps) = (ConstantPolicy::Drop, gaps);
    config
}

fn ingest_changed(folder: &Path) {
    let cache = folder.join("cache");
    let lacking = (0..ROWS).filter(|row| row % LACKS == 9).count();
    for name in ["changed.csv", "changed.parquet"] {
        for (gaps, filled) in [(GapPolicy::Split, 0), (GapPolicy::Fill, lacking)] {
            let most = peak(|| {
                let data = ingest(&changed(folder, name, gaps), &cache, &Silent).unwrap();
                assert_eq!((data.reused, data.set.steps()), (false, ROWS - lacking + filled));
                assert_eq!((data.set.channels().len(), data.set.classes().len()), (2, 2));
                assert!(data.set.series()[0].values.is_elsewhere());
            });
            println!("{name}, {gaps:?}: {most} KiB of anonymous memory");
            assert!(most < RESIDENT_MENDED + LABELS, "{name}: {most} KiB of anonymous memory");
        }
    }
}

#[test]
fn a_table_larger_than_memory_with_labels_is_changed_once_it_is_known_how() {
    if let Some(folder) = std::env::var_os("FIREBOX_TEST_STREAMING") {
        ingest_changed(Path::new(&folder));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_changed(folder.path());
    let test = "a_table_larger_than_memory_with_labels_is_changed_once_it_is_known_how";
    in_little_memory(test, LIMIT + (64 << 10), folder.path());
    let config = changed(folder.path(), "changed.parquet", GapPolicy::Fill);
    assert_stored_is_read(&config, folder.path());
}

/// A table of the same rows, of which the last comes first.
fn write_turned(folder: &Path) {
    write_bars(folder, "turned", || (0..ROWS).rev());
}

fn turned(folder: &Path, name: &str) -> DataConfig {
    let mut config = config(folder, name);
    config.checks.unsorted = Policy::Fill;
    config
}

fn ingest_turned(folder: &Path) {
    let cache = folder.join("cache");
    for name in ["turned.csv", "turned.parquet"] {
        let most = peak(|| {
            let data = ingest(&turned(folder, name), &cache, &Silent).unwrap();
            assert_eq!((data.reused, data.set.steps()), (false, ROWS));
            let series = &data.set.series()[0];
            assert!(series.values.is_elsewhere());
            for row in (0..ROWS).step_by(997) {
                assert_eq!(series.values.part(row * 4..row * 4 + 4)[..], bar(row));
                assert_eq!(series.time[row], time(row) * 1_000_000);
            }
            assert_eq!(data.checks.findings[0].count, ROWS as u64 - 1);
        });
        println!("{name}: {most} KiB of anonymous memory");
        assert!(most < RESIDENT_SORTED, "{name}: {most} KiB of anonymous memory for {SERIES}");
        let mut refused = turned(folder, name);
        refused.checks.unsorted = Policy::Error;
        let most = peak(|| {
            let said = ingest(&refused, &cache, &Silent).unwrap_err().to_string();
            assert!(said.contains("not in the order of time"), "{said}");
        });
        println!("{name}, refused: {most} KiB of anonymous memory");
        assert!(most < RESIDENT_SORTED, "{name}: {most} KiB of anonymous memory to refuse it");
    }
    let stored = std::fs::read_dir(cache.join(firebox_cache::SERIES)).unwrap().count();
    assert_eq!(stored, 2);
}

#[test]
fn a_table_larger_than_memory_whose_last_row_comes_first_is_sorted() {
    if let Some(folder) = std::env::var_os("FIREBOX_TEST_STREAMING") {
        ingest_turned(Path::new(&folder));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_turned(folder.path());
    let test = "a_table_larger_than_memory_whose_last_row_comes_first_is_sorted";
    in_little_memory(test, LIMIT + (48 << 10), folder.path());
    let config = turned(folder.path(), "turned.parquet");
    assert_stored_is_read(&config, folder.path());
}

/// What clocks in Zurich show at the time of a row, and seconds after it.
fn clock(row: usize, after: i64) -> chrono::NaiveDateTime {
    let time = chrono::DateTime::from_timestamp(time(row) + after, 0).unwrap();
    time.with_timezone(&chrono_tz::Europe::Zurich).naive_local()
}

/// Tables of the same rows by local times, some of them followed by another too soon, with a channel without any value,
/// and blank lines.
fn write_local(folder: &Path) {
    let rows = || {
        let after = |row: usize| [0, 10].into_iter().take(1 + usize::from(row % ODD == 11));
        (0..ROWS).flat_map(move |row| after(row).map(move |after| (row, after)))
    };
    let csv = std::fs::File::create(folder.join("local.csv")).unwrap();
    let mut csv = std::io::BufWriter::new(csv);
    writeln!(csv, "time,x,y,never").unwrap();
    for (row, after) in rows() {
        let [_, x, y, _] = bar(row);
        let blank = if row % ODD == 1 { "\n" } else { "" };
        writeln!(csv, "{},{x},{y},{blank}", clock(row, after)).unwrap();
    }
    csv.into_inner().unwrap();
    let times = rows().map(|(row, after)| clock(row, after).and_utc().timestamp_micros());
    let times = Int64Chunked::from_vec("time".into(), times.collect());
    let value = |at: usize| rows().map(|(row, _)| bar(row)[at]).collect::<Vec<f64>>();
    let many = rows().count();
    let columns = vec![
        times.into_datetime(TimeUnit::Microseconds, None).into_column(),
        Column::new("x".into(), value(1)),
        Column::new("y".into(), value(2)),
        Column::new("never".into(), vec![f64::NAN; many]),
    ];
    let mut frame = DataFrame::new(many, columns).unwrap();
    let file = std::fs::File::create(folder.join("local.parquet")).unwrap();
    ParquetWriter::new(file).with_row_group_size(Some(100_000)).finish(&mut frame).unwrap();
}

fn local(folder: &Path, name: &str) -> DataConfig {
    let mut config = DataConfig::new(folder.join(name));
    config.columns.time_zone = Some("Europe/Zurich".to_owned());
    config.checks.gaps = GapPolicy::Split;
    config.checks.crowded = CrowdedPolicy::Drop;
    config.checks.constant = ConstantPolicy::Drop;
    config
}

fn ingest_local(folder: &Path) {
    let cache = folder.join("cache");
    for name in ["local.csv", "local.parquet"] {
        let mut refused = local(folder, name);
        refused.checks = CheckPolicies { gaps: GapPolicy::Split, ..CheckPolicies::default() };
        let most = peak(|| {
            let said = ingest(&refused, &cache, &Silent).unwrap_err().to_string();
            assert!(said.contains("`never`"), "{said}");
        });
        println!("{name}, refused: {most} KiB of anonymous memory");
        assert!(most < RESIDENT_MENDED, "{name}: {most} KiB of anonymous memory to refuse it");
        let most = peak(|| {
            let data = ingest(&local(folder, name), &cache, &Silent).unwrap();
            assert_eq!((data.reused, data.set.steps()), (false, ROWS));
            assert_eq!(data.set.channels().len(), 2);
            let series = &data.set.series()[0];
            assert!(series.values.is_elsewhere());
            for row in (0..ROWS).step_by(59) {
                assert_eq!(series.values.part(row * 2..row * 2 + 2)[..], bar(row)[1..3]);
                assert_eq!(series.time[row], time(row) * 1_000_000);
            }
        });
        println!("{name}: {most} KiB of anonymous memory");
        assert!(most < RESIDENT_MENDED, "{name}: {most} KiB of anonymous memory");
    }
}

#[test]
fn a_table_larger_than_memory_by_local_times_is_ingested_without_rows_that_follow_too_soon() {
    if let Some(folder) = std::env::var_os("FIREBOX_TEST_STREAMING") {
        ingest_local(Path::new(&folder));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_local(folder.path());
    let test =
        "a_table_larger_than_memory_by_local_times_is_ingested_without_rows_that_follow_too_soon";
    in_little_memory(test, LIMIT + (32 << 10), folder.path());
    let config = local(folder.path(), "local.csv");
    assert_stored_is_read(&config, folder.path());
}

/// KiB of anonymous memory, as proc(5) has it.
fn anonymous() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// The most anonymous memory beyond that before.
fn peak(work: impl FnOnce()) -> usize {
    let (done, before) = (AtomicBool::new(false), anonymous());
    let most = AtomicUsize::new(before);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(anonymous(), Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        work();
        done.store(true, Ordering::Relaxed);
    });
    most.load(Ordering::Relaxed) - before
}

fn ingest_both(folder: &Path) {
    let cache = folder.join("cache");
    for name in ["bars.csv", "bars.parquet"] {
        for reused in [false, true] {
            let most = peak(|| {
                let data = ingest(&config(folder, name), &cache, &Silent).unwrap();
                assert_eq!((data.reused, data.set.steps()), (reused, ROWS));
                let series = &data.set.series()[0];
                assert!(series.values.is_elsewhere());
                for row in (0..ROWS).step_by(997) {
                    assert_eq!(series.values.part(row * 4..row * 4 + 4)[..], bar(row));
                    assert_eq!(series.time[row], time(row) * 1_000_000);
                }
                assert_eq!(series.segments.len(), ROWS.div_ceil(RUN));
            });
            println!("{name}, reused {reused}: {most} KiB of anonymous memory");
            assert!(most < RESIDENT, "{name}: {most} KiB of anonymous memory for {SERIES}");
        }
    }
}

fn mended(folder: &Path, name: &str) -> DataConfig {
    let mut config = config(folder, name);
    (config.checks.not_finite, config.checks.duplicates) = (Policy::Fill, Policy::Drop);
    config
}

fn ingest_odd(folder: &Path) {
    let cache = folder.join("cache");
    for name in ["odd.csv", "odd.parquet"] {
        let refused = peak(|| {
            let error = ingest(&config(folder, name), &cache, &Silent).unwrap_err().to_string();
            assert!(error.contains("row 6 of") && error.contains("row 9 of"), "{error}");
        });
        let taken = peak(|| {
            let data = ingest(&mended(folder, name), &cache, &Silent).unwrap();
            assert_eq!((data.reused, data.set.steps()), (false, ROWS));
            let series = &data.set.series()[0];
            for row in (0..ROWS).step_by(997).chain((5..ROWS).step_by(ODD)) {
                let mut expected = bar(row);
                if row % ODD == 5 {
                    expected[0] = bar(row - 1)[0];
                }
                assert_eq!(series.values.part(row * 4..row * 4 + 4)[..], expected, "row {row}");
                assert_eq!(series.time[row], time(row) * 1_000_000);
            }
            assert_eq!(series.segments.len(), ROWS.div_ceil(RUN));
        });
        for (most, what) in [(refused, "refused"), (taken, "taken")] {
            println!("{name}, {what}: {most} KiB of anonymous memory");
            assert!(most < RESIDENT_MENDED, "{name}, {what}: {most} KiB of anonymous memory");
        }
    }
}

/// Tables of a series, and of a second one that has too large a value in each row.
fn write_lost(folder: &Path) {
    let name = |row: usize| if row < ROWS - NAMED { "all" } else { "lost" };
    let close = |row: usize| if row < ROWS - NAMED { bar(row)[3] } else { 1e39 };
    let csv = std::fs::File::create(folder.join("lost.csv")).unwrap();
    let mut csv = std::io::BufWriter::new(csv);
    writeln!(csv, "symbol,time,first,second,third,last").unwrap();
    for row in 0..ROWS {
        let [first, second, third, _] = bar(row);
        let last = close(row);
        writeln!(csv, "{},{},{first},{second},{third},{last}", name(row), time(row)).unwrap();
    }
    csv.into_inner().unwrap();
    let mut columns = vec![
        Column::new("symbol".into(), (0..ROWS).map(name).collect::<Vec<_>>()),
        Column::new("time".into(), (0..ROWS).map(time).collect::<Vec<i64>>()),
    ];
    for (at, name) in ["first", "second", "third", "last"].into_iter().enumerate() {
        let value = |row| if at == 3 { close(row) } else { bar(row)[at] };
        columns.push(Column::new(name.into(), (0..ROWS).map(value).collect::<Vec<f64>>()));
    }
    let mut frame = DataFrame::new(ROWS, columns).unwrap();
    let file = std::fs::File::create(folder.join("lost.parquet")).unwrap();
    ParquetWriter::new(file).with_row_group_size(Some(100_000)).finish(&mut frame).unwrap();
}

fn refuse_lost(folder: &Path) {
    let cache = folder.join("cache");
    for name in ["lost.csv", "lost.parquet"] {
        for policy in [Policy::Drop, Policy::Fill] {
            let most = peak(|| {
                let mut config = config(folder, name);
                config.checks.not_finite = policy;
                let error = ingest(&config, &cache, &Silent).unwrap_err().to_string();
                let lost = format!("nothing is left of series `lost` ({NAMED} rows)");
                assert!(error.replace(',', "").starts_with(&lost), "{error}");
                assert!(error.contains("its channel `last` are too large"), "{error}");
            });
            println!("{name}, {policy:?}: {most} KiB of anonymous memory");
            assert!(most < RESIDENT_MENDED, "{name}: {most} KiB of anonymous memory for {SERIES}");
        }
    }
    let left = std::fs::read_dir(cache.join(firebox_cache::SERIES)).map_or(0, Iterator::count);
    assert_eq!(left, 0);
}

#[test]
fn a_table_larger_than_memory_of_which_nothing_is_left_of_a_series_is_refused() {
    if let Some(folder) = std::env::var_os("FIREBOX_TEST_STREAMING") {
        refuse_lost(Path::new(&folder));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_lost(folder.path());
    let test = "a_table_larger_than_memory_of_which_nothing_is_left_of_a_series_is_refused";
    in_little_memory(test, LIMIT + (32 << 10), folder.path());
}

/// Whether what lies in the cache of a folder is what is read into memory.
fn assert_stored_is_read(config: &DataConfig, folder: &Path) {
    let (set, checks) = read(config, &Silent).unwrap();
    let stored = ingest(config, &folder.join("cache"), &Silent).unwrap();
    assert!(stored.reused && *stored.set == set && stored.checks == checks);
}

/// Runs a test in a process that may have so many KiB of memory of its own.
fn in_little_memory(test: &str, limit: usize, folder: &Path) {
    let program = std::env::current_exe().unwrap();
    let output = Command::new("sh")
        .args(["-c", &format!("ulimit -d {limit} && exec \"$0\" --nocapture --exact {test}")])
        .arg(&program)
        .env("FIREBOX_TEST_STREAMING", folder)
        .envs([("RAYON_NUM_THREADS", "2"), ("POLARS_MAX_THREADS", "2")])
        // glibc keeps large blocks that are given back, by when which thread gives back what; and a backtrace
        // for which there is no memory waits for itself.
        .envs([("MALLOC_MMAP_THRESHOLD_", "131072"), ("RUST_BACKTRACE", "0")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    print_figures(&said, 4);
}

/// Prints what a test in a process of its own has measured, so often, and nothing else of it: it is no further test.
fn print_figures(said: &str, count: usize) {
    let figures = said.lines().filter(|line| line.contains("KiB of anonymous memory"));
    assert_eq!(figures.clone().count(), count, "{said}");
    // The name of the test may stand before the first one.
    figures.for_each(|line| println!("{}", line.rsplit(" ... ").next().unwrap_or(line)));
}

#[test]
fn a_table_with_defects_that_is_larger_than_memory_is_mended() {
    if let Some(folder) = std::env::var_os("FIREBOX_TEST_STREAMING") {
        ingest_odd(Path::new(&folder));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_odd(folder.path());
    let test = "a_table_with_defects_that_is_larger_than_memory_is_mended";
    in_little_memory(test, LIMIT + (32 << 10), folder.path());
    let config = mended(folder.path(), "odd.parquet");
    assert_stored_is_read(&config, folder.path());
}

#[test]
fn a_table_larger_than_memory_is_ingested() {
    if let Some(folder) = std::env::var_os("FIREBOX_TEST_STREAMING") {
        ingest_both(Path::new(&folder));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    in_little_memory("a_table_larger_than_memory_is_ingested", LIMIT, folder.path());
    // In memory it is the same: series, segments, and what is said of the gaps.
    let config = config(folder.path(), "bars.parquet");
    let (set, checks) = read(&config, &Silent).unwrap();
    assert!(!set.series()[0].values.is_elsewhere());
    let stored = ingest(&config, &folder.path().join("cache"), &Silent).unwrap();
    assert!(stored.reused && *stored.set == set && stored.checks == checks);
}

/// Features of 5-minute bars of the same rows.
fn with_timeframes(folder: &Path, name: &str) -> DataConfig {
    let mut config = config(folder, name);
    let minutes = |count: i64| Interval::from_microseconds(count * 60_000_000).unwrap();
    let (base, higher) = (minutes(5), vec![minutes(15), minutes(60)]);
    config.timeframes = Some(Timeframes { base, higher, ..Timeframes::default() });
    config
}

fn ingest_timeframes(folder: &Path) {
    let cache = folder.join("cache");
    for name in ["bars.csv", "bars.parquet", "named.csv", "named.parquet"] {
        let (mut bytes, mut series) = (0, 0);
        let most = peak(|| {
            let data = ingest(&with_timeframes(folder, name), &cache, &Silent).unwrap();
            assert!(!data.reused && data.set.series()[0].values.is_elsewhere());
            let made = data.checks.timeframes.as_ref().unwrap();
            assert!(made.bars as usize > ROWS / 5 - 100 && made.lost_runs == 0, "{made:?}");
            assert_eq!(data.set.steps() as u64, made.bars - made.warmup);
            bytes = data.set.steps() * 30 * 8 / 1024;
            series = data.set.series().len();
        });
        assert_eq!(series, if name.starts_with("bars") { 1 } else { ROWS / NAMED });
        println!("{name}: {most} KiB of anonymous memory for {SERIES} and {bytes}");
        assert!(
            most < RESIDENT_MENDED && most < bytes.min(SERIES),
            "{name}: {most} KiB of anonymous memory"
        );
    }
    // The source bars are gone.
    let stored = std::fs::read_dir(cache.join(firebox_cache::SERIES)).unwrap().count();
    assert_eq!(stored, 4);
}

#[test]
fn timeframes_of_a_table_larger_than_memory_are_made() {
    if let Some(folder) = std::env::var_os("FIREBOX_TEST_STREAMING") {
        ingest_timeframes(Path::new(&folder));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    write_named(folder.path());
    let test = "timeframes_of_a_table_larger_than_memory_are_made";
    in_little_memory(test, LIMIT + (32 << 10), folder.path());
    for name in ["bars.parquet", "named.parquet"] {
        let config = with_timeframes(folder.path(), name);
        let (set, checks) = read(&config, &Silent).unwrap();
        assert!(!set.series()[0].values.is_elsewhere());
        let stored = ingest(&config, &folder.path().join("cache"), &Silent).unwrap();
        assert!(stored.reused && *stored.set == set && stored.checks == checks);
    }
}

#[test]
fn a_stored_file_that_shrinks_under_a_run_is_told_of_and_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let cache = folder.path().join("cache");
    let config = config(folder.path(), "bars.parquet");
    let data = ingest(&config, &cache, &Silent).unwrap();
    data.set.check_read().unwrap();
    let file = firebox_data::stored_at(&cache, data.key).join("values.npy");
    std::fs::File::options().write(true).open(&file).unwrap().set_len(1 << 20).unwrap();
    // Zeros instead of a signal, and an error for whoever asks before using them.
    assert_eq!(data.set.series()[0].values.at(ROWS * 4 - 1), 0.0);
    let said = data.set.check_read().unwrap_err();
    assert!(said.contains("values.npy` changed while it was being read"), "{said}");
    let again = ingest(&config, &cache, &Silent).unwrap();
    assert!(!again.reused);
    assert_eq!(again.set.series()[0].values.at(ROWS * 4 - 1), bar(ROWS - 1)[3]);
    // A file that is deleted stays readable.
    std::fs::remove_dir_all(&cache).unwrap();
    assert_eq!(again.set.series()[0].values.at(0), bar(0)[0]);
    again.set.check_read().unwrap();
}

/// Samples, steps of the longest, channels.
const SAMPLES: [usize; 3] = [160, 300, 1024];

/// Samples of different lengths, as `firebox data convert` writes them.
fn convert(folder: &Path, storage: Storage) -> Samples {
    let [count, time, channels] = SAMPLES;
    let spec = SampleSpec {
        key: Key::builder("test", 1).finish(),
        source: String::new(),
        shape: [time, channels],
        storage,
        classes: vec!["even".to_owned(), "odd".to_owned()],
        samples: (0..count).map(|at| ((time - at) as u32, Some(at as u32 % 2))).collect(),
        names: vec![],
        shard_bytes: 8 << 20,
    };
    Samples::write::<CacheError>(folder, &spec, &Silent, |sample, out| {
        let value = |at: usize| ((at * 7 + sample * 13) % 509) as f32 / 64.0;
        out.extend((0..(time - sample) * channels).map(value));
        Ok(())
    })
    .unwrap()
}

/// Everything that a training does with the values: a scale is fitted, and each window is read.
fn train(set: &Arc<SeriesSet>, kind: Normalisation) -> Vec<u32> {
    let [_, time, channels] = SAMPLES;
    let rule = WindowRule { length: time - 20, stride: 1, whole: true };
    let by_series = SplitRule::Series { validation: 0.1, test: 0.2, seed: 1 };
    let parts = split(set, &rule, &by_series, &Labels::Last).unwrap();
    let normaliser = Normaliser::fit(kind, &parts.train).unwrap();
    let mut out = vec![0.0; rule.length * channels];
    let mut all = Vec::new();
    for window in parts.train.windows() {
        let out = &mut out[..window.length as usize * channels];
        normaliser.apply(set, &window, out);
        set.check_series([window.series as usize]).unwrap();
        all.push(out.iter().fold(window.length, |sum, value| sum.rotate_left(5) ^ value.to_bits()));
    }
    all
}

#[test]
fn converted_samples_are_read_where_they_are() {
    if std::env::var_os("FIREBOX_TEST_IN_PLACE").is_some() {
        return read_in_place();
    }
    // In a process of its own: what other tests hold would count.
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--nocapture", "--exact", "converted_samples_are_read_where_they_are"])
        .env("FIREBOX_TEST_IN_PLACE", "1")
        .envs([("MALLOC_MMAP_THRESHOLD_", "131072"), ("RUST_BACKTRACE", "0")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    print_figures(&said, 6);
}

fn read_in_place() {
    let kinds = [Normalisation::Standard, Normalisation::WindowStandard, Normalisation::None];
    for storage in [Storage::F16, Storage::Bf16, Storage::F32] {
        let folder = tempfile::tempdir().unwrap();
        let samples = convert(&folder.path().join("samples"), storage);
        let (config, cache) = (DataConfig::new(samples.path()), folder.path().join("cache"));
        // Half of what the values take in half precision, an eighth of what they take as f64.
        let limit = SAMPLES.iter().product::<usize>() / 1024;
        let mut found = Vec::new();
        for reused in [false, true] {
            let most = peak(|| {
                let data = ingest(&config, &cache, &Silent).unwrap();
                assert_eq!((data.reused, data.set.series().len()), (reused, SAMPLES[0]));
                assert!(data.set.series().iter().all(|series| series.values.is_elsewhere()));
                found = kinds.map(|kind| train(&data.set, kind)).to_vec();
                data.set.check_read().unwrap();
            });
            println!("{storage:?}, reused {reused}: {most} KiB of anonymous memory");
            assert!(most < limit, "{most} KiB of anonymous memory, limit {limit}");
        }
        let key = firebox_data::fingerprint(&config).unwrap();
        let stored: Vec<_> =
            std::fs::read_dir(firebox_data::stored_at(&cache, key)).unwrap().collect();
        assert_eq!(stored.len(), 1, "the manifest alone: {stored:?}");
        // The same bits as from f64 in memory.
        let (set, checks) = read(&config, &Silent).unwrap();
        assert!(!set.series()[0].values.is_elsewhere());
        let data = ingest(&config, &cache, &Silent).unwrap();
        assert!(*data.set == set && data.checks == checks);
        let set = Arc::new(set);
        assert_eq!(kinds.map(|kind| train(&set, kind)).to_vec(), found);
        if storage == Storage::F16 {
            let shard = samples.path().join("shard-00000.arrow");
            std::fs::File::options().write(true).open(&shard).unwrap().set_len(1 << 20).unwrap();
            let said = data.set.check_series([0]).unwrap_err();
            assert!(said.contains("shard-00000.arrow` changed while it was being read"), "{said}");
            assert!(said.contains("convert the arrays again"), "{said}");
            data.set.check_series([SAMPLES[0] - 1]).unwrap();
            let error = ingest(&config, &cache, &Silent).unwrap_err().to_string();
            assert!(error.contains("convert the arrays again"), "{error}");
        }
    }
}

/// Two converted samples, of four steps and of three, with the two values that `row` says of a sample's step.
fn convert_two(
    folder: &Path,
    storage: Storage,
    row: impl Fn(usize, usize) -> [f32; 2] + Sync,
) -> DataConfig {
    let spec = SampleSpec {
        key: Key::builder("test", 1).finish(),
        source: String::new(),
        shape: [4, 2],
        storage,
        classes: vec![],
        samples: vec![(4, None), (3, None)],
        names: vec![],
        shard_bytes: 1 << 20,
    };
    let written = Samples::write::<CacheError>(folder, &spec, &Silent, |sample, out| {
        (0..4 - sample).for_each(|step| out.extend(row(sample, step)));
        Ok(())
    });
    DataConfig::new(written.unwrap().path())
}

#[test]
fn converted_samples_whose_small_values_became_zeros_are_told_of_in_each_run() {
    let folder = tempfile::tempdir().unwrap();
    // One channel of the first sample: 4 of 14 values.
    let config = convert_two(folder.path(), Storage::F16, |sample, step| {
        let small = if sample == 0 { 1e-9 } else { step as f32 + 2.5 };
        [step as f32 + 1.0, small]
    });
    let cache = folder.path().join("cache");
    for reused in [false, true] {
        let told = Mutex::new(Vec::new());
        let listener = |event: &Event| {
            if let Event::Warning { message } = event {
                told.lock().unwrap().push(message.clone());
            }
        };
        assert_eq!(ingest(&config, &cache, &listener).unwrap().reused, reused);
        let told = told.into_inner().unwrap();
        let of_zeros = "28.6 % of the values are nearer to 0 than f16 can tell";
        assert_eq!(told.iter().filter(|said| said.contains(of_zeros)).count(), 1, "{told:?}");
    }
}

#[test]
fn a_constant_channel_of_converted_samples_is_refused_or_kept_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = convert_two(folder.path(), Storage::F32, |_, step| [step as f32, 2.5]);
    let cache = folder.path().join("cache");
    let error = ingest(&config, &cache, &Silent).unwrap_err().to_string();
    assert!(error.contains("is constant"), "{error}");
    config.checks.constant = ConstantPolicy::Keep;
    let data = ingest(&config, &cache, &Silent).unwrap();
    assert!(data.set.series()[0].values.is_elsewhere());
    let (set, checks) = read(&config, &Silent).unwrap();
    assert!(*data.set == set);
    assert_eq!(data.checks.findings, checks.findings);
}

#[test]
fn converted_samples_have_the_names_of_their_files_whichever_way_they_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let make = |name: &str, names: &[&str]| {
        let spec = SampleSpec {
            key: Key::builder(name, 1).finish(),
            source: String::new(),
            shape: [4, 1],
            storage: Storage::F32,
            classes: vec![],
            samples: vec![(4, None), (3, None)],
            names: names.iter().map(ToString::to_string).collect(),
            shard_bytes: 1 << 20,
        };
        let to = folder.path().join(name);
        let written = Samples::write::<CacheError>(&to, &spec, &Silent, |sample, out| {
            out.extend((0..4 - sample).map(|step| step as f32));
            Ok(())
        });
        written.unwrap().path().to_owned()
    };
    let cache = folder.path().join("cache");
    let names = |config: &DataConfig| -> Vec<String> {
        let data = ingest(config, &cache, &Silent).unwrap();
        assert!(data.set.series().iter().all(|series| series.values.is_elsewhere()));
        assert!(*data.set == read(config, &Silent).unwrap().0);
        data.set.series().iter().map(|series| series.name.clone()).collect()
    };
    let mut config = DataConfig::new(make("train", &["cats/a", "b"]));
    assert_eq!(names(&config), ["cats/a", "b"]);
    // Of several folders, each name says which it is of: they may hold files of one name.
    config.test = Some(Paths(vec![make("test", &["cats/a", "b"])]));
    assert_eq!(names(&config), ["train/cats/a", "train/b", "test/cats/a", "test/b"]);
    // Folders that were made before names were kept.
    assert_eq!(names(&DataConfig::new(make("old", &[]))), ["old/1", "old/2"]);
}
