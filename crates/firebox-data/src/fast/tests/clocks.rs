//! Local times, some of which clocks show twice.

use super::apart::in_all_sorted_ways;
use super::*;
use chrono::{TimeZone as _, Utc};

/// Zones, and when clocks are put back there: by an hour, or half of one, or never.
const ZONES: [(&str, i64); 5] = [
    ("Europe/Zurich", 1_698_541_200),
    ("America/New_York", 1_699_164_000),
    ("Australia/Lord_Howe", 1_680_361_200),
    ("Asia/Tokyo", 1_698_541_200),
    // At a minute past midnight, which is no full quarter hour.
    ("America/St_Johns", 1_162_089_060),
];

/// What clocks show, as text or as a type.
fn shown(times: &[i64], zone: chrono_tz::Tz, typed: bool) -> Column {
    let local = times
        .iter()
        .map(|time| Utc.timestamp_opt(*time, 0).unwrap().with_timezone(&zone).naive_local());
    let typed_times = || {
        Int64Chunked::from_vec(
            "time".into(),
            local.clone().map(|t| t.and_utc().timestamp_micros()).collect(),
        )
    };
    match typed {
        true => typed_times().into_datetime(TimeUnit::Microseconds, None).into_column(),
        false => Column::new("time".into(), local.map(|time| time.to_string()).collect::<Vec<_>>()),
    }
}

/// Rows of one series, or of several in turn, over the moment at which clocks are put back, and their moments.
struct Case {
    config: DataConfig,
    rows: Vec<usize>,
    /// Of each series.
    moments: Vec<Vec<i64>>,
    /// Whether a column names the series, the last row comes first, and one row is there twice.
    named: bool,
    turned: bool,
    twice: bool,
}

fn case(seed: u64, folder: &Path) -> Case {
    let mut draws = Stream::new(seed, "clocks").draws();
    let mut draw = |of: usize| (draws.uniform_f64() * of as f64) as usize % of;
    let (zone, around) = ZONES[draw(5)];
    let (named, together, typed) = (draw(3) > 0, draw(2) == 0, draw(2) == 0);
    let series = if named { 1 + draw(3) } else { 1 };
    let (steps, minutes): (usize, usize) = (4 + draw(40), [1, 10, 15, 17][draw(4)]);
    // Not in the second of the two hours: nothing says which one the first row is of.
    let before = 1 + draw(minutes * steps);
    let (turned, twice) = (draw(3) == 0, draw(3) == 0);
    // Nor does anything where the last row comes first.
    let steps = if turned { steps.max((before + 62).div_ceil(minutes) + 1) } else { steps };
    let start = around - 60 * before as i64;
    let moment = |step: usize| start + 60 * (minutes * step) as i64;
    let moments = vec![(0..steps).map(moment).collect::<Vec<i64>>(); series];
    let rows = (0..series * steps).map(|row| match together {
        true => (row / steps, row % steps),
        false => (row % series, row / series),
    });
    let mut rows: Vec<(usize, usize)> = rows.collect();
    if turned {
        rows.reverse();
    }
    if twice {
        // Once it is known how the times go on.
        let at = series * 3 - 1 + draw(rows.len() - (series * 3 - 1));
        let at = if together { 2 + draw(steps - 2) } else { at };
        rows.insert(at, rows[at]);
    }
    let times: Vec<i64> = rows.iter().map(|(series, step)| moments[*series][*step]).collect();
    let values: Vec<f64> = (0..rows.len()).map(|row| (row * 7 % 11) as f64).collect();
    let mut columns =
        vec![shown(&times, zone.parse().unwrap(), typed), Column::new("x".into(), values)];
    if named {
        let names: Vec<&str> = rows.iter().map(|(series, _)| ["a", "b", "c"][*series]).collect();
        columns.push(Column::new("symbol".into(), names));
    }
    let table = DataFrame::new(rows.len(), columns).unwrap();
    // A series that is named by its file is all of it.
    let files = if named { 1 + draw(3) } else { 1 };
    let borders = some_borders(rows.len(), files - 1, &mut draw);
    let (paths, rows) = write_files(&table, &borders, folder);
    let mut config = DataConfig::new(folder);
    config.path.0 = paths;
    config.columns.time_zone = Some(zone.to_owned());
    config.checks.unsorted = Policy::Fill;
    config.checks.duplicates = Policy::Drop;
    Case { config, rows, moments, named, turned, twice }
}

#[test]
fn moments_that_clocks_show_twice_are_those_of_each_series() {
    let mut twice = 0;
    for seed in 0..60 {
        let folder = tempfile::tempdir().unwrap();
        let Case { config, rows, moments, named, turned, twice: doubled } =
            case(seed, folder.path());
        let files = inputs(&config).unwrap();
        let expected = long(&files, &config);
        let (set, checks) = expected.as_ref().unwrap();
        let odd = usize::from(turned) + usize::from(doubled);
        assert_eq!(checks.findings.len(), odd, "{seed}: {:?}", checks.findings);
        for (series, moments) in set.series().iter().zip(&moments) {
            let found: Vec<i64> = series.time.iter().map(|time| time / 1_000_000).collect();
            assert_eq!(found, *moments, "{seed}");
        }
        let zone = zone_of(&config);
        let of_all: Vec<i64> = moments[0].iter().map(|time| time * 1_000_000).collect();
        twice += usize::from(zone.shows_twice(&of_all));
        let mut draws = Stream::new(seed, "parts").draws();
        let ends: Vec<_> = rows.iter().map(|rows| some_ends(*rows, &mut draws)).collect();
        let block = (48.0 * 2f64.powf(draws.uniform_f64() * 8.0)) as usize;
        let sorted = in_all_sorted_ways(&files, &config, &ends, (folder.path(), block));
        for found in sorted {
            assert!(found == expected, "{seed}: {:?}", found.err());
        }
        for found in in_all_ways(&files, &config, &ends, folder.path()) {
            let is_apart = (named || turned) && found.as_ref().is_err_and(|said| said == "odd");
            assert!(is_apart || found == expected, "{seed}: {:?}", found.err());
        }
    }
    assert!(twice > 20, "{twice}");
}

#[test]
fn times_of_which_some_have_a_zone_go_the_long_way_wherever_they_are() {
    let zurich = Some("Europe/Zurich");
    // Without a zone of the others, UTC is what they are.
    for (zone, offset, is_mixed) in [
        (zurich, "Z", true),
        (zurich, "+02:00", true),
        (None, "Z", false),
        (None, "+00:00", false),
        (None, "+02:00", true),
    ] {
        let row = |minute: usize| {
            let offset = if minute < 10 { offset } else { "" };
            let hour = if offset == "+02:00" { 2 } else { 0 };
            format!("2023-10-29 {hour:02}:{minute:02}{offset},{minute}\n")
        };
        let text = format!("time,x\n{}", (0..20).map(row).collect::<String>());
        let [short, long] = ways(&text, |config| {
            config.columns.time_zone = zone.map(str::to_owned);
        });
        match is_mixed {
            true => {
                assert_eq!(short.unwrap_err(), "odd");
                assert!(long.unwrap_err().contains("row 1, column `time`"));
            }
            false => assert!(short.is_ok() && short == long, "{:?}", long.err()),
        }
        // In parts of which each is alike.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        let times: Vec<String> =
            (0..20).map(|minute| row(minute).split_once(',').unwrap().0.to_owned()).collect();
        let values: Vec<f64> = (0..20).map(f64::from).collect();
        let columns = vec![Column::new("time".into(), times), Column::new("x".into(), values)];
        let mut table = DataFrame::new(20, columns).unwrap();
        let file = std::fs::File::create(&path).unwrap();
        ParquetWriter::new(file).with_row_group_size(Some(10)).finish(&mut table).unwrap();
        let mut config = DataConfig::new(&path);
        config.columns.time_zone = zone.map(str::to_owned);
        let files = inputs(&config).unwrap();
        for found in in_all_ways(&files, &config, &[vec![10, 20]], folder.path()) {
            assert_eq!(found.is_err_and(|said| said == "odd"), is_mixed, "{offset}");
        }
    }
}

#[test]
fn rows_in_a_wrong_place_are_not_taken_for_the_other_hour() {
    let zone = "Europe/Zurich".parse().unwrap();
    let moment = |minute: i64| 1_698_541_200 + 60 * (minute - 70);
    for (at, minutes) in [(25, vec![1]), (40, vec![1]), (85, vec![1]), (110, vec![1, 2])] {
        let mut rows: Vec<i64> = (0..200).collect();
        minutes.iter().for_each(|by| rows.swap(at, at + by));
        let times: Vec<i64> = rows.iter().map(|row| moment(*row)).collect();
        let columns = vec![
            shown(&times, zone, true),
            Column::new("x".into(), rows.iter().map(|row| *row as f64).collect::<Vec<_>>()),
        ];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        let mut table = DataFrame::new(200, columns).unwrap();
        ParquetWriter::new(std::fs::File::create(&path).unwrap()).finish(&mut table).unwrap();
        let mut config = DataConfig::new(&path);
        config.columns.time_zone = Some("Europe/Zurich".to_owned());
        config.checks.unsorted = Policy::Fill;
        let files = inputs(&config).unwrap();
        let (set, _) = long(&files, &config).unwrap();
        let found: Vec<i64> = set.series()[0].time.iter().map(|time| time / 1_000_000).collect();
        assert_eq!(found, (0..200).map(moment).collect::<Vec<_>>(), "{at}");
        assert!((0..200).all(|row| set.series()[0].values.at(row) == row as f64), "{at}");
    }
}
