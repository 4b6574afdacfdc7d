//! Rows that are not in the order of their times, or follow too soon.

use super::apart::in_all_sorted_ways;
use super::named::{of_files, text};
use super::parted::Parted;
use super::seen::Seen;
use super::*;
use crate::raw::{Piece, RawLabels, RawSeries, Rows};
use firebox_core::Origin;
use std::path::PathBuf;

/// Another order of so many rows.
fn moved(seed: u64, rows: usize) -> Vec<u32> {
    let mut draws = Stream::new(seed, "moved").draws();
    let mut draw = |of: usize| (draws.uniform_f64() * of as f64) as usize % of;
    let mut order: Vec<u32> = (0..rows as u32).collect();
    match draw(5) {
        0 => order.reverse(),
        1 => order.rotate_left(1 + draw(rows - 1)),
        kind => {
            let swaps = if kind == 2 { rows } else { 1 + draw(3) };
            (0..swaps).for_each(|_| order.swap(draw(rows), draw(rows)));
        }
    }
    order
}

/// Files of such rows, with some of each defect; the rows of each, and whether a column names the series.
fn case(seed: u64, folder: &Path) -> (DataConfig, Vec<usize>, bool) {
    let mut draws = Stream::new(seed, "order").draws();
    let mut draw = |of: usize| (draws.uniform_f64() * of as f64) as usize % of;
    let rows = 3 + draw(80);
    let mut table = odd_bars(seed, rows);
    let mut config = DataConfig::new(folder);
    if draw(4) == 0 {
        table = labelled(table, seed, &mut config);
    }
    let named = draw(2) == 0;
    if named {
        let several = 1 + draw(3);
        let names: Vec<&str> = (0..rows).map(|_| ["a", "b", "c"][draw(several)]).collect();
        table.with_column(Column::new("symbol".into(), names)).unwrap();
    }
    let table = table.take(&IdxCa::from_vec("row".into(), moved(seed, rows))).unwrap();
    let more = draw(4);
    let (paths, rows) = write_files(&table, &some_borders(rows, more, &mut draw), folder);
    config.path.0 = paths;
    config.columns.time_unit = crate::TimeUnit::S;
    config.checks = policies(seed);
    config.checks.unsorted = [Policy::Error, Policy::Drop, Policy::Fill, Policy::Fill][draw(4)];
    config.interval = Interval::from_microseconds(60_000_000).filter(|_| seed.is_multiple_of(3));
    (config, rows, named)
}

#[test]
fn rows_in_any_order_of_time_are_told_and_put_in_order_as_on_the_long_way() {
    let (mut taken, mut refused, mut crowded) = (0, 0, 0);
    for seed in 0..150 {
        let folder = tempfile::tempdir().unwrap();
        let (config, rows, named) = case(seed, folder.path());
        let files = inputs(&config).unwrap();
        let expected = long(&files, &config);
        let mut draws = Stream::new(seed, "parts").draws();
        let ends: Vec<_> = rows.iter().map(|rows| some_ends(*rows, &mut draws)).collect();
        // From one row to all of them.
        let block = (48.0 * 2f64.powf(draws.uniform_f64() * 8.0)) as usize;
        let ways = in_all_sorted_ways(&files, &config, &ends, (folder.path(), block));
        let mut found = Vec::from(ways);
        if config.checks.unsorted == Policy::Drop && !named {
            found.extend(in_all_ways(&files, &config, &ends, folder.path()));
        }
        for found in found {
            taken += usize::from(found.is_ok());
            refused += usize::from(found.as_ref().is_err_and(|said| said != "odd"));
            let is_dropped = |(_, checks): &(SeriesSet, Checks)| {
                let mut all = checks.findings.iter();
                all.any(|one| {
                    one.defect == crate::Defect::Crowded
                        && config.checks.crowded == CrowdedPolicy::Drop
                })
            };
            crowded += usize::from(found.as_ref().is_ok_and(is_dropped));
            let errors = [found.as_ref().err(), expected.as_ref().err()];
            let says = format!(
                "{seed}, blocks of {block}, parts {ends:?}: {errors:?}, {:?}",
                config.checks
            );
            assert!(is_left(&found, &expected) || found == expected, "{says}");
        }
    }
    let counts = format!("{taken} taken, {refused} refused, {crowded} without crowded rows");
    assert!(taken > 200 && refused > 120 && crowded > 15, "{counts}");
}

#[test]
fn a_file_whose_last_row_comes_first_is_sorted() {
    let lines: Vec<String> = bars(2 * ROWS, |_, _| ()).lines().map(str::to_owned).collect();
    let rows: Vec<&str> = lines[1..].iter().rev().map(String::as_str).collect();
    let turned = format!("{}\n{}\n", lines[0], rows.join("\n"));
    let [short, long] = ways(&turned, |config| config.checks.unsorted = Policy::Fill);
    let (set, checks) = short.as_ref().unwrap();
    assert_eq!((set.steps(), checks.findings[0].count), (2 * ROWS, 2 * ROWS as u64 - 1));
    assert!(short == long);
    let [refused, long] = ways(&turned, |_| ());
    assert!(refused.as_ref().unwrap_err().contains("row 2 of bars.csv"), "{refused:?}");
    assert!(refused == long);
}

#[test]
fn a_series_of_several_files_is_sorted_and_files_of_one_name_are_not_one_series() {
    let texts = [text("aabb", 10), text("abab", 0)];
    let fill = |config: &mut DataConfig| {
        config.checks.unsorted = Policy::Fill;
        config.checks.gaps = GapPolicy::Split;
    };
    let [short, long] = of_files(&texts, 2, fill);
    assert!(short.is_ok() && short == long, "{:?}", short.err());
    let folder = tempfile::tempdir().unwrap();
    let paths = ["one/bars.csv", "two/bars.csv", "two/bars.tsv"].map(|name| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = "time,x\n2024-01-02,1\n2024-01-01,2\n2024-01-03,4\n";
        let separator = if name.ends_with("tsv") { "\t" } else { "," };
        std::fs::write(&path, text.replace(',', separator)).unwrap();
        path
    });
    let mut config = DataConfig::new(&paths[0]);
    fill(&mut config);
    let mut taken = |paths: &[PathBuf]| {
        config.path.0 = paths.to_vec();
        let files = inputs(&config).unwrap();
        let (key, stop) = (Key::builder("test", 1).finish(), AtomicBool::new(false));
        said(short_of(&files, &config, &folder.path().join("cache"), key, &stop))
    };
    let (set, _) = taken(&paths[..2]).unwrap();
    let names: Vec<&str> = set.series().iter().map(|series| &*series.name).collect();
    assert_eq!(names, ["one/bars", "two/bars"]);
    // Who gives the second of one folder another name is the long way.
    assert_eq!(taken(&paths[1..]).unwrap_err(), "odd");
}

fn short_of(
    files: &[Input],
    config: &DataConfig,
    cache: &Path,
    key: Key,
    stop: &AtomicBool,
) -> Result<(SeriesSet, Checks), Stop> {
    short(files, config, Sink::store(cache, key, stop))
}

#[test]
fn rows_that_a_number_of_32_bits_does_not_count_are_told_by_their_numbers() {
    let names = ["time", "x"].map(str::to_owned);
    let mapping = Mapping::new(Path::new("a.csv"), &names, &crate::Columns::default()).unwrap();
    let policies = CheckPolicies { duplicates: Policy::Fill, ..CheckPolicies::default() };
    for first in [11, (1 << 32) + 11] {
        let how = (policies, Some(60), None);
        let mut series = Parted::new("a".to_owned(), Origin::Unassigned, &mapping, how);
        let mut row = first;
        for times in [vec![0, 60, 70, 120], vec![120, 180, 190, 240]] {
            let path = Path::new("a.csv");
            let pieces =
                vec![Piece { path: path.into(), steps: times.len(), rows: Rows::From(row) }];
            let raw = RawSeries {
                name: "a".to_owned(),
                origin: Origin::Unassigned,
                columns: vec![times.iter().map(|time| *time as f64).collect()],
                time: Some(times),
                labels: RawLabels::None,
                pieces,
            };
            series.at(path, row);
            row += raw.len();
            series.add(Seen::Odd(raw, Zone::Utc), &mut Sink::Memory).unwrap();
        }
        let (short, work) = series.finish(&mut Sink::Memory).unwrap();
        assert_eq!((short.times, work.counts.rows_dropped), (vec![0, 60, 120, 180, 240], 3));
        let rows: Vec<usize> = (0..5).map(|step| work.raw.place(step).1 - first).collect();
        assert_eq!(rows, [0, 1, 4, 5, 7]);
    }
}

#[test]
fn a_row_that_was_left_out_still_says_what_was_before_the_next() {
    // Hours on a Sunday: a moment that is there twice an hour after the row before it is one that clocks showed twice.
    let rows = |times: &[&str]| {
        let rows =
            times.iter().enumerate().map(|(row, time)| format!("2024-01-07T{time},a,{row}\n"));
        format!("time,symbol,x\n{}", rows.collect::<String>())
    };
    let later = ["02:00", "03:00", "04:00", "05:00", "06:00", "07:00"];
    for before in [&["00:00", "01:00", "01:20", "02:00"][..], &["00:00", "01:00", "02:00"]] {
        let [short, long] = of_files(&[rows(before), rows(&later)], 2, |config| {
            config.checks.crowded = CrowdedPolicy::Drop;
        });
        let said = long.as_ref().unwrap_err();
        assert_eq!(said.contains("time_zone"), before.len() == 3, "{said}");
        assert!(short == long, "{:?}", short.err());
    }
}

#[test]
fn of_rows_of_a_higher_rate_those_at_whole_intervals_stay() {
    for seconds in [1, 5, 7, 10, 13] {
        let minutes = (0..1000).map(|minute| 60 * minute);
        let burst = (1..900).filter(|second| second % seconds == 0).map(|second| 3000 + second);
        let mut times: Vec<i64> = minutes.clone().chain(burst).collect();
        times.sort_unstable();
        times.dedup();
        let row = |time: &i64| {
            format!(
                "{},{}\n",
                crate::time::format(1_700_000_040_000_000 + time * 1_000_000),
                time % 997
            )
        };
        let text = format!("time,x\n{}", times.iter().map(row).collect::<String>());
        let [short, long] = ways(&text, |config| {
            config.checks.crowded = CrowdedPolicy::Drop;
        });
        let (set, _) = short.as_ref().unwrap();
        let found: Vec<i64> =
            set.series()[0].time.iter().map(|time| time / 1_000_000 - 1_700_000_040).collect();
        // Where no row of theirs is at a whole minute, those stay that are near.
        if 60 % seconds == 0 {
            assert_eq!(found, minutes.collect::<Vec<_>>(), "{seconds}");
        } else {
            let near = |pair: &[i64]| (54..=66).contains(&(pair[1] - pair[0]));
            assert!(found.windows(2).all(near), "{seconds}");
        }
        assert!(short == long, "{seconds}");
    }
}

#[test]
fn times_whose_differences_cannot_be_counted_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let times = [i64::MIN + 5, 1_700_000_000_000_000, 1_700_000_060_000_000];
    let times = Int64Chunked::from_vec("time".into(), times.to_vec());
    let columns = vec![
        times.into_datetime(TimeUnit::Microseconds, None).into_column(),
        Column::new("x".into(), vec![1.0, 2.0, 3.0]),
    ];
    let mut frame = DataFrame::new(3, columns).unwrap();
    ParquetWriter::new(std::fs::File::create(&path).unwrap()).finish(&mut frame).unwrap();
    let config = DataConfig::new(&path);
    let files = inputs(&config).unwrap();
    assert_eq!(said(short(&files, &config, Sink::Memory)).unwrap_err(), "odd");
    let said = long(&files, &config).unwrap_err();
    assert!(said.contains("row 1") && said.contains("64 bits of microseconds"), "{said}");
}

#[test]
fn ends_of_csv_files_are_those_of_the_long_way() {
    let rows = "time,x\n2024-01-01,1\n2024-01-02,2\n2024-01-03,3";
    for end in ["", "\n", "\r\n", "\n\n", "\n\r\n\n", "\n\r", "\r", "\n\n\r\n\r\r\n\n"] {
        for text in [
            format!("{rows}{end}"),
            format!("{rows}{end}").replacen("\n2024-01-03", "\n\n2024-01-03", 1),
        ] {
            let [short, long] = ways(&text, |_| ());
            let is_odd = short.as_ref().is_err_and(|said| said == "odd");
            assert!(is_odd || short == long, "{text:?}: {:?}, {:?}", short.err(), long.err());
            assert!(end.contains("\r\r") || end.ends_with('\r') || !is_odd, "{text:?}");
        }
    }
}

#[test]
fn more_channels_than_a_number_has_bits_are_taken() {
    let names: Vec<String> = (0..130).map(|channel| format!("c{channel}")).collect();
    let value =
        |row: usize, channel: usize| if channel == 100 { 7 } else { row * 31 % (channel + 2) };
    let row = |row: usize| {
        let values: Vec<String> = (0..130).map(|channel| value(row, channel).to_string()).collect();
        values.join(",") + "\n"
    };
    let text = format!("{}\n{}", names.join(","), (0..500).map(row).collect::<String>());
    for policy in [ConstantPolicy::Error, ConstantPolicy::Drop] {
        let [short, long] = ways(&text, |config| config.checks.constant = policy);
        assert_eq!(short.is_ok(), policy == ConstantPolicy::Drop);
        assert!(short == long, "{:?}, {:?}", short.err(), long.err());
    }
}
