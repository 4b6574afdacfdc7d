//! What is said of how far ingestion is, and what stops it meanwhile.

use super::*;
use crate::timeframes::Timeframes;
use crate::{TimeUnit, fingerprint_heard, ingest, ingest_until};
use firebox_core::{Event, Listener, Silent};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// Parts that the file has.
const PARTS: usize = 4;

/// Bars of a minute in one Parquet file; `minute` says when each row is.
fn file(folder: &Path, minute: impl Fn(usize) -> usize) -> (DataConfig, u64) {
    let rows = PARTS * PART;
    let time: Vec<i64> = (0..rows).map(|row| 1_700_000_040 + 60 * minute(row) as i64).collect();
    let column = |add: f64| (0..rows).map(|row| 100.0 + (row % 7) as f64 + add).collect::<Vec<_>>();
    let mut frame = df!(
        "time" => time,
        "open" => column(0.0),
        "high" => column(2.0),
        "low" => column(-1.0),
        "close" => column(1.0),
    )
    .unwrap();
    let path = folder.join("bars.parquet");
    let file = std::fs::File::create(&path).unwrap();
    ParquetWriter::new(file).with_row_group_size(Some(PART)).finish(&mut frame).unwrap();
    let bytes = std::fs::metadata(&path).unwrap().len();
    let mut config = DataConfig::new(&path);
    config.columns.time_unit = TimeUnit::S;
    (config, bytes)
}

/// Rows that are in order, but for two in the third part.
fn swapped(row: usize) -> usize {
    match row {
        row if row == 5 * PART / 2 => row + 1,
        row if row == 5 * PART / 2 + 1 => row - 1,
        row => row,
    }
}

/// Rows with a gap of three minutes in the third part.
fn with_gap(row: usize) -> usize {
    row + 3 * usize::from(row > 5 * PART / 2)
}

/// Each way of reading one file: what it is, and the passes over all rows that it takes.
fn cases(folder: &Path) -> Vec<(&'static str, DataConfig, u64, u64)> {
    let of = |name: &str, minute: &dyn Fn(usize) -> usize| {
        let folder = folder.join(name);
        std::fs::create_dir(&folder).unwrap();
        file(&folder, minute)
    };
    let (plain, bytes) = of("plain", &|row| row);
    let mut cases = vec![("plain", plain.clone(), bytes, 2)];
    let timeframes = Some(Timeframes { higher: vec![], ..Timeframes::default() });
    cases.push(("timeframes", DataConfig { timeframes, ..plain }, bytes, 3));
    let (mut sorted, bytes) = of("sorted", &swapped);
    sorted.checks.unsorted = Policy::Fill;
    cases.push(("sorted", sorted, bytes, 3));
    let (mut copied, bytes) = of("copied", &with_gap);
    copied.checks.gaps = GapPolicy::Fill;
    cases.push(("copied", copied, bytes, 3));
    cases
}

#[test]
fn one_file_is_told_part_by_part_over_all_that_is_done_with_it() {
    let folder = tempfile::tempdir().unwrap();
    for (name, config, bytes, passes) in cases(folder.path()) {
        let told = Mutex::new(vec![]);
        let listener = |event: &Event| {
            if let Event::Progress { stage, done, total, unit } = event {
                assert_eq!((&stage[..], &unit[..]), ("ingest", "bytes"));
                told.lock().unwrap().push([*done, *total]);
            }
        };
        let cache = folder.path().join(format!("cache of {name}"));
        let made = ingest(&config, &cache, &listener).unwrap();
        let told = std::mem::take(&mut *told.lock().unwrap());
        assert!(told.is_sorted_by(|a, b| a[0] <= b[0] && a != b), "{name}: {told:?}");
        // Where reading begins anew, what was read before is counted, too.
        let before = if name == "sorted" { bytes / 2..=bytes } else { 0..=0 };
        let end = told.last().unwrap();
        let extra = end[1] - passes * bytes;
        assert!(end[0] == end[1] && before.contains(&extra), "{name}: {end:?}");
        // What is stored at the end is hashed in larger parts.
        let before = told.iter().filter(|told| told[0] <= end[0] - bytes).collect::<Vec<_>>();
        let longest = before.windows(2).map(|pair| pair[1][0] - pair[0][0]).max().unwrap();
        assert!(longest <= bytes / 3, "{name}: {longest} of {bytes} bytes without a word");
        assert!(told.len() <= 110 * (passes + 1) as usize, "{name}: {} times", told.len());
        // Of what is there already nothing is told, and nobody who listens changes it.
        let again = ingest(&config, &cache, &|event: &Event| {
            assert!(!matches!(event, Event::Progress { .. }));
        });
        let again = again.unwrap();
        assert!(again.reused && again.set == made.set && again.key == made.key);
        let silent = ingest(&config, &folder.path().join("silent"), &Silent).unwrap();
        assert!(silent.set == made.set && silent.checks == made.checks && silent.key == made.key);
    }
}

#[test]
fn the_hashing_of_a_file_is_told_and_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bars.csv");
    let bytes = 30 << 20;
    std::fs::write(&path, vec![b'1'; bytes]).unwrap();
    let (config, told) = (DataConfig::new(&path), Mutex::new(vec![]));
    let stop = AtomicBool::new(false);
    let hashed = |listener: &dyn Listener| fingerprint_heard(&stop, &config, listener);
    let listener = |event: &Event| {
        if let Event::Progress { done, total, .. } = event {
            told.lock().unwrap().push([*done, *total]);
        }
    };
    let key = hashed(&listener).unwrap();
    let told = told.lock().unwrap();
    assert!(told.len() > 5 && told.is_sorted() && told.ends_with(&[[bytes as u64; 2]]), "{told:?}");
    assert_eq!(crate::fingerprint(&config).unwrap(), key);
    let stopped = hashed(&|_: &Event| stop.store(true, Ordering::Relaxed));
    assert!(matches!(stopped, Err(DataError::Stopped)));
}

#[test]
fn who_is_stopped_wherever_it_is_ends_there_and_keeps_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let left = || std::fs::read_dir(cache.join(firebox_cache::SERIES)).map_or(0, Iterator::count);
    for (name, config, ..) in cases(folder.path()) {
        // Each fifth word, which are those of all passes.
        for after in (0..).step_by(5) {
            let (stop, words) = (AtomicBool::new(false), Mutex::new((0, 0)));
            let listener = |event: &Event| {
                if let Event::Progress { done, total, .. } = event {
                    let mut words = words.lock().unwrap();
                    if words.0 == after && done < total {
                        stop.store(true, Ordering::Relaxed);
                    }
                    words.0 += 1;
                    words.1 += usize::from(stop.load(Ordering::Relaxed));
                }
            };
            let found = ingest_until(&stop, &config, &cache, &listener);
            if !stop.into_inner() {
                assert!(found.is_ok() && after > 5, "{name}");
                std::fs::remove_dir_all(&cache).unwrap();
                break;
            }
            assert!(matches!(found, Err(DataError::Stopped)), "{name}, {after}");
            let (_, afterwards) = words.into_inner().unwrap();
            // No more than what the processors have in hand.
            assert!(afterwards <= 2, "{name}, {after}: {afterwards} words");
            assert_eq!(left(), 0, "{name}, {after}");
        }
    }
}

#[test]
fn what_is_stored_is_not_compared_to_its_end_for_who_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bars.csv");
    std::fs::write(&path, bars(50, |_, _| ())).unwrap();
    let config = DataConfig::new(&path);
    let made = ingest(&config, folder.path(), &Silent).unwrap();
    let load = |stop| crate::store::load(folder.path(), made.key, vec![], &AtomicBool::new(stop));
    assert!(load(false).unwrap().is_some() && load(true).is_err());
    // It is no damage: it stays, and nobody is told of any.
    let said = |event: &Event| panic!("{event:?}");
    let stop = AtomicBool::new(true);
    assert!(matches!(ingest_until(&stop, &config, folder.path(), &said), Err(DataError::Stopped)));
    assert!(ingest(&config, folder.path(), &Silent).unwrap().reused);
}
