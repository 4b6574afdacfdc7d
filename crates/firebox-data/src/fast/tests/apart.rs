//! Series that a column names and whose rows do not stand together.

use super::named::{Case, NAMES, case, of_files, text};
use super::*;
use firebox_core::{Event, Origin};

/// The names of rows in any order, and where each file begins, and the last ends.
fn scattered_rows(seed: u64) -> (Vec<Option<&'static str>>, Vec<usize>) {
    let mut draws = Stream::new(seed, "scattered").draws();
    let mut draw = |of: usize| (draws.uniform_f64() * of as f64) as usize % of;
    let (rows, unnamed, days, series) = (2 + draw(80), draw(12) == 0, draw(2) == 0, 1 + draw(5));
    let name = |row: usize, draw: &mut dyn FnMut(usize) -> usize| match days {
        // As the usual panel has them: all series of a moment, then of the next.
        true => Some(NAMES[row % series]),
        false if unnamed && draw(9) == 0 => None,
        false => Some(NAMES[draw(series)]),
    };
    let names: Vec<_> = (0..rows).map(|row| name(row, &mut draw)).collect();
    let more = draw(6);
    let borders = some_borders(rows, more, &mut draw);
    (names, borders)
}

/// What is said of files whose rows are sorted by series, some bytes of them at once.
pub(super) fn in_all_sorted_ways(
    inputs: &[Input],
    config: &DataConfig,
    ends: &[Vec<usize>],
    (folder, block): (&Path, usize),
) -> [Found; 5] {
    let (key, stop) = (Key::builder("test", 1).finish(), AtomicBool::new(false));
    let stores = ["tables", "seen", "turns", "order", "whole"].map(|name| folder.join(name));
    let to = |store: usize| {
        (How { sorted: Some(block), ..How::default() }, Sink::store(&stores[store], key, &stop))
    };
    let found = [
        said(take_parts(inputs, config, ends, to(0), true)),
        said(take_parts(inputs, config, ends, to(1), false)),
        said(take_groups(inputs, config, (7, true), to(2))),
        said(take_groups(inputs, config, (7, false), to(3))),
        said(short(inputs, config, Sink::store(&stores[4], key, &stop))),
    ];
    for (store, found) in stores.iter().zip(&found) {
        let left = std::fs::read_dir(store.join(firebox_cache::SERIES));
        let left = left.map_or(0, Iterator::count);
        assert_eq!(left, usize::from(found.is_ok()), "what is half-made goes");
    }
    found
}

#[test]
fn series_whose_rows_are_anywhere_are_those_of_the_long_way() {
    let (mut taken, mut several, mut refused) = (0, 0, 0);
    for seed in 0..300 {
        let (names, borders) = scattered_rows(seed);
        let Case { folder, config, rows, .. } = case(seed, &names, &borders);
        let files = inputs(&config).unwrap();
        let expected = long(&files, &config);
        let is_alike = config.test.is_some() && names.contains(&Some("test/a"));
        let mut draws = Stream::new(seed, "parts").draws();
        let ends: Vec<_> = rows.iter().map(|rows| some_ends(*rows, &mut draws)).collect();
        // From one row to all of them.
        let block = (48.0 * 2f64.powf(draws.uniform_f64() * 8.0)) as usize;
        for found in in_all_sorted_ways(&files, &config, &ends, (folder.path(), block)) {
            let is_odd = found.as_ref().is_err_and(|said| said == "odd");
            taken += usize::from(found.is_ok());
            several += usize::from(found.as_ref().is_ok_and(|found| found.0.series().len() > 2));
            refused += usize::from(found.is_err() && !is_odd);
            let errors = [found.as_ref().err(), expected.as_ref().err()];
            let says = format!("{seed}, blocks of {block}, parts {ends:?}: {errors:?}");
            // Or a row has no name, or two series would have one.
            let is_left = is_left(&found, &expected) || is_odd && is_alike && expected.is_err();
            assert!(is_left || found == expected, "{says}");
        }
    }
    let counts = format!("{taken} taken, {several} several, {refused} refused");
    assert!(taken > 400 && several > 150 && refused > 150, "{counts}");
}

#[test]
fn files_that_are_days_of_all_series_are_sorted() {
    let days: Vec<String> = (0..4).map(|day| text("abcabcabc", 9 * day)).collect();
    let split = |config: &mut DataConfig| config.checks.gaps = GapPolicy::Split;
    let [short, long] = of_files(&days, 4, split);
    let set = &short.as_ref().unwrap().0;
    let lengths: Vec<_> = set.series().iter().map(|series| (&*series.name, series.len())).collect();
    assert_eq!(lengths, [("a", 12), ("b", 12), ("c", 12)]);
    assert!(short == long);
    let [short, long] = of_files(&days, 2, split);
    let set = &short.as_ref().unwrap().0;
    let names: Vec<_> = set.series().iter().map(|one| (&*one.name, one.origin)).collect();
    let [train, test] = [Origin::Train, Origin::Test];
    let tested = [("test/a", test), ("test/b", test), ("test/c", test)];
    assert_eq!(names, [&[("a", train), ("b", train), ("c", train)], &tested[..]].concat());
    assert!(short == long);
}

#[test]
fn a_place_in_a_series_is_told_by_its_file_and_row_wherever_its_rows_are() {
    let days = |edit: &dyn Fn(&mut String)| {
        let mut days = [text("abababab", 0), text("abababab", 8)];
        edit(&mut days[1]);
        days
    };
    type Edit<'a> = &'a dyn Fn(&mut String);
    let cases: [(Edit<'_>, &str); 3] = [
        (&|day| *day = text("abababab", 18), "series `a`, row 1 of 1.csv"),
        (&|day| *day = day.replace("00:13,b", "00:11,b"), "series `b`, row 6 of 1.csv"),
        (&|day| *day = day.replace(",225\n", ",\n"), "series `b`, row 8 of 1.csv"),
    ];
    for (edit, expected) in cases {
        let [short, long] = of_files(&days(edit), 2, |_| ());
        let said = short.as_ref().unwrap_err();
        assert!(said.contains(expected), "{said}");
        assert!(short == long, "{said}, {:?}", long.err());
        for policy in [Policy::Drop, Policy::Fill] {
            let [short, long] = of_files(&days(edit), 2, same_policy(policy));
            assert!(short.is_ok() && short == long, "{expected}");
        }
    }
}

#[test]
fn who_is_stopped_while_rows_are_sorted_keeps_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    std::fs::write(&path, text("abababab", 0)).unwrap();
    let config = DataConfig::new(&path);
    let files = inputs(&config).unwrap();
    let (cache, stop) = (folder.path().join("cache"), AtomicBool::new(false));
    let key = Key::builder("test", 1).finish();
    let zone = Zone::named(None).unwrap();
    // With the last file, whose rows are all waiting.
    let listener = |event: &Event| {
        if matches!(event, Event::Progress { done: 1.., .. }) {
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    };
    let progress = &Progress::of(&listener, "files", std::iter::once(1));
    let told = Told { progress, timed: &|_| () };
    let found = read(&files, &config, &zone, Sink::store(&cache, key, &stop), &told);
    assert!(matches!(found, Err(Stop::Failed(DataError::Stopped))));
    assert_eq!(std::fs::read_dir(cache.join(firebox_cache::SERIES)).unwrap().count(), 0);
}
