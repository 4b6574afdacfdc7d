//! What is stored is reused while it is whole, and made anew when it is not.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use firebox_core::{Event, Listener, Silent};
use firebox_data::{DataConfig, Ingested, fingerprint, ingest, stored_at};

use crate::{Files, bars, render};

fn setup() -> (Files, DataConfig) {
    let files = Files::new();
    let text: String = bars(50)
        .lines()
        .enumerate()
        .map(|(row, line)| match row {
            0 => format!("{line},label\n"),
            row => format!("{line},{}\n", ["", "b", "a"][row % 3]),
        })
        .collect();
    files.write("a.csv", text);
    let config = files.config("a.csv", "columns = { label = 'label' }");
    (files, config)
}

fn run(files: &Files, config: &DataConfig) -> Ingested {
    ingest(config, &files.cache(), &Silent).unwrap()
}

#[test]
fn what_is_stored_is_known_without_reading_it() {
    let files = Files::new();
    files.write("a.csv", bars(9));
    let data = files.ingest("a.csv", "").unwrap();
    let peek = || firebox_data::stored_checks(&files.cache(), data.key);
    assert_eq!(peek(), Some(data.checks.clone()));
    let file = firebox_data::stored_at(&files.cache(), data.key).join("values.npy");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    assert_eq!(peek(), None);
}

#[test]
fn a_second_run_reuses_and_gives_the_same() {
    let (files, config) = setup();
    let first = run(&files, &config);
    assert!(!first.reused);
    assert_eq!(fingerprint(&config).unwrap(), first.key);
    let second = run(&files, &config);
    assert!(second.reused);
    assert_eq!((&second.set, &second.checks, second.key), (&first.set, &first.checks, first.key));
    let bucket = files.cache().join("series-v2");
    assert_eq!(std::fs::read_dir(bucket).unwrap().count(), 1, "nothing else is left there");
}

#[test]
fn the_key_changes_with_content_and_settings_and_not_with_the_folder() {
    let (files, config) = setup();
    let key = fingerprint(&config).unwrap();
    let mut other = config.clone();
    other.checks.longest_fill += 1;
    assert_ne!(fingerprint(&other).unwrap(), key);
    let (moved, same) = setup();
    assert_eq!(fingerprint(&same).unwrap(), key);
    moved.write("a.csv", bars(51));
    assert_ne!(fingerprint(&same).unwrap(), key);
    files.write("b.csv", std::fs::read(files.path("a.csv")).unwrap());
    let renamed = DataConfig { path: firebox_data::Paths(vec![files.path("b.csv")]), ..config };
    assert_ne!(fingerprint(&renamed).unwrap(), key, "the file's name is its series' name");
}

#[test]
fn any_damage_is_found_and_made_good() {
    let (files, config) = setup();
    let first = run(&files, &config);
    let folder = stored_at(&files.cache(), first.key);
    let damage: [&dyn Fn(); 10] = [
        &|| {
            let mut bytes = std::fs::read(folder.join("values.npy")).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(folder.join("values.npy"), bytes).unwrap();
        },
        &|| std::fs::write(folder.join("values.npy"), "").unwrap(),
        &|| std::fs::remove_file(folder.join("values.npy")).unwrap(),
        &|| std::fs::remove_file(folder.join("labels.npy")).unwrap(),
        &|| {
            let bytes = std::fs::read(folder.join("time.npy")).unwrap();
            std::fs::write(folder.join("time.npy"), &bytes[..bytes.len() - 8]).unwrap();
        },
        &|| std::fs::write(folder.join("manifest.json"), "{}").unwrap(),
        &|| std::fs::write(folder.join("manifest.json"), "").unwrap(),
        &|| std::fs::remove_file(folder.join("manifest.json")).unwrap(),
        &|| {
            let text = std::fs::read_to_string(folder.join("manifest.json")).unwrap();
            std::fs::write(folder.join("manifest.json"), &text[..text.len() / 2]).unwrap();
        },
        &|| {
            // A single bit, with which it is as good a manifest as before: the end of a segment.
            let text = std::fs::read_to_string(folder.join("manifest.json")).unwrap();
            let digit = text.find("\"end\": ").unwrap() + "\"end\": ".len();
            let mut bytes = text.into_bytes();
            bytes[digit] ^= 1;
            std::fs::write(folder.join("manifest.json"), bytes).unwrap();
        },
    ];
    for (index, damage) in damage.into_iter().enumerate() {
        damage();
        let warnings = Arc::new(Mutex::new(Vec::new()));
        let listener = |event: &Event| {
            if let Event::Warning { message } = event {
                warnings.lock().unwrap().push(message.clone());
            }
        };
        let again = ingest(&config, &files.cache(), &listener).unwrap();
        assert!(!again.reused, "damage {index}");
        assert_eq!(again.set, first.set, "damage {index}");
        assert!(warnings.lock().unwrap()[0].contains("made anew"), "damage {index}");
        assert!(run(&files, &config).reused, "damage {index}");
    }
}

#[test]
fn runs_at_the_same_time_all_succeed() {
    let (files, config) = setup();
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..8).map(|_| scope.spawn(|| run(&files, &config))).collect();
        let sets: Vec<_> = runs.into_iter().map(|run| run.join().unwrap().set).collect();
        assert!(sets.windows(2).all(|pair| pair[0] == pair[1]));
    });
    assert!(run(&files, &config).reused);
    let bucket = files.cache().join("series-v2");
    assert_eq!(std::fs::read_dir(bucket).unwrap().count(), 1);
}

#[test]
fn a_refused_run_leaves_nothing() {
    let files = Files::new();
    files.write("a.csv", "time,x\n2024-01-02,1\n2024-01-02,2\n");
    files.error("a.csv", "");
    // At most a folder without anything in it.
    let left = std::fs::read_dir(files.cache().join("series-v2")).into_iter().flatten();
    assert_eq!(left.count(), 0);
}

#[test]
fn what_a_killed_run_left_goes_with_the_next_one_and_what_another_makes_stays() {
    let (files, config) = setup();
    let bucket = files.cache().join(firebox_cache::SERIES);
    let left = |name: &str| {
        let folder = bucket.join(name);
        fs::create_dir_all(folder.join("result")).unwrap();
        fs::write(folder.join("rows"), [0; 4096]).unwrap();
        fs::File::create(folder.join("making")).unwrap()
    };
    drop(left(".making-killed"));
    let alive = left(".making-alive");
    alive.try_lock().unwrap();
    let store = firebox_cache::Store::open(&files.cache()).unwrap();
    let mut found = store.list().unwrap().leftovers;
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert_eq!(found.iter().map(|left| left.alive).collect::<Vec<_>>(), [true, false]);
    assert!(!run(&files, &config).reused);
    assert!(!bucket.join(".making-killed").exists() && bucket.join(".making-alive").exists());
    drop(alive);
    assert_eq!(store.prune(u64::MAX).unwrap().leftovers.len(), 1);
    assert!(!bucket.join(".making-alive").exists());
}

#[test]
fn a_cache_that_cannot_be_written_is_an_error() {
    let (files, config) = setup();
    files.write("cache", "a file where the folder should be");
    let error = ingest(&config, &files.cache(), &Silent).unwrap_err();
    assert!(
        crate::render(&error, files.0.path()).starts_with("cannot make the folder cache/series-v2")
    );
}

/// Changes a file once something was read of it.
struct Meddler(PathBuf);

impl Listener for Meddler {
    fn on(&self, event: &Event) {
        if let Event::Progress { .. } = event {
            std::fs::write(&self.0, bars(31)).unwrap();
        }
    }
}

#[test]
fn what_is_changed_while_it_is_read_is_not_stored() {
    let files = Files::new();
    // The second is read as a whole, because of its local times.
    for settings in ["", "columns = { time_zone = 'America/New_York' }"] {
        let path = files.write("bars.csv", bars(30));
        let config = files.config("bars.csv", settings);
        let error = ingest(&config, &files.cache(), &Meddler(path)).unwrap_err();
        let said = render(&error, files.0.path());
        assert!(said.contains("bars.csv was changed while it was read"), "{said}");
        let stored = files.cache().join("series-v2");
        let left = std::fs::read_dir(&stored).map_or(0, Iterator::count);
        assert_eq!(left, 0, "under the key of what was there before");
    }
    let ingested = files.ingest("bars.csv", "").unwrap();
    assert_eq!((ingested.set.steps(), ingested.reused), (31, false));
}

#[test]
fn times_of_a_coarser_unit_than_the_declared_one_are_told_each_time() {
    let files = Files::new();
    files.write("a.csv", "time,x\n1704153600,1\n1704153660,2\n1704153720,4\n");
    files.write("b.csv", "time,x\n0,1\n60,2\n120,4\n");
    let said = |name: &str| files.warnings(name, "columns = { time_unit = 'ms' }").concat();
    for _ in 0..2 {
        let said = said("a.csv");
        assert!(said.contains(r#"`time_unit = "s"` would be likely"#), "{said}");
    }
    assert_eq!(said("b.csv"), "");
}

#[test]
fn dates_without_separators_are_no_numbers_of_a_unit() {
    let files = Files::new();
    files.write("a.csv", "time,x\n20240101,1\n20240102,2\n20240103,4\n");
    files.write("b.csv", "time,x\n202401010000,1\n202401010001,2\n202401010002,4\n");
    let refused = |name: &str, unit: &str| {
        let config = files.config(name, &format!("columns = {{ time_unit = '{unit}' }}"));
        ingest(&config, &files.cache(), &Silent).unwrap_err().to_string()
    };
    for (name, unit, number, date) in [
        ("a.csv", "s", "20240101", "2024-01-01"),
        ("b.csv", "ms", "202401010000", "2024-01-01T00:00"),
    ] {
        let found = refused(name, unit);
        let expected =
            format!("row 1, column `time`: `{number}` looks like a date without separators");
        assert!(found.contains(&expected), "{found}");
        assert!(found.contains(&format!("write it as {date}")), "{found}");
    }
}

#[test]
fn times_that_begin_and_end_like_dates_are_told_beside_what_their_unit_makes_of_them() {
    let files = Files::new();
    files.write("a.csv", "time,x\n20240131,1\n20240166,2\n20240201,4\n");
    // date -u -d @20240131, and of 20240201.
    let expected = "the times look like dates without separators, from 2024-01-31 to 2024-02-01, and `data.columns.time_unit` reads them as numbers since 1970, from 1970-08-23T06:15:31Z to 1970-08-23T06:16:41Z: write them as 2024-01-31, and leave the unit out";
    for _ in 0..2 {
        assert_eq!(files.warnings("a.csv", "columns = { time_unit = 's' }").concat(), expected);
    }
}

#[test]
fn declared_missing_texts_that_stand_nowhere_are_told_each_time() {
    let files = Files::new();
    files.write("a.csv", "time,x\n2024-01-01,1\n2024-01-02,-9999.0\n2024-01-03,4\n");
    files.write("both/a.csv", "time,x\n2024-01-01,1\n2024-01-02,-9999.0\n2024-01-03,4\n");
    files.write("both/b.csv", "time,x\n2024-01-01,1\n2024-01-02,-9999\n2024-01-03,4\n");
    let said = |name: &str, missing: &str| {
        let settings =
            format!("csv = {{ missing = [{missing}] }}\nchecks = {{ not_finite = 'drop' }}");
        files.warnings(name, &settings).concat()
    };
    for _ in 0..2 {
        let told = said("a.csv", "'-9999', 'NA'");
        let expected = "`data.csv.missing` names what no cell of the files is: `-9999`, `NA`; texts are compared as they stand there";
        assert!(told.starts_with(expected), "{told}");
        assert_eq!(said("a.csv", "'-9999.0'"), "");
        assert_eq!(said("both", "'-9999', '-9999.0'"), "");
    }
}

#[test]
fn a_reading_that_is_stopped_keeps_nothing_and_is_no_bad_input() {
    use std::sync::atomic::AtomicBool;
    let files = Files::new();
    files.write("a.csv", "time,x\n2024-01-01T00:00,1\n2024-01-01T00:01,2\n");
    let config = files.config("a.csv", "");
    let stop = AtomicBool::new(true);
    let stopped = firebox_data::ingest_until(&stop, &config, &files.cache(), &Silent);
    let error = stopped.unwrap_err();
    assert!(matches!(error, firebox_data::DataError::Stopped) && !error.is_bad_input(), "{error}");
    let left = std::fs::read_dir(files.cache().join("series-v2")).into_iter().flatten().count();
    assert_eq!(left, 0);
    assert!(!files.ingest("a.csv", "").unwrap().reused);
}
