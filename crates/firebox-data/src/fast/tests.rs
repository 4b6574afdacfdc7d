//! Both ways say the same of any table.

mod apart;
mod arrow;
mod clocks;
mod named;
mod order;
mod told;

use super::files::PART;
use super::taken::Part;
use super::*;
use crate::frame::{self, Table};
use crate::groups::Groups;
use crate::ingest::cleaned;
use crate::input::inputs;
use crate::look::ROWS;
use crate::raw::Gathered;
use crate::{CheckPolicies, ConstantPolicy, CrowdedPolicy, GapPolicy, Interval, Policy};
use firebox_core::Stream;
use polars::prelude::*;
use std::fmt::Write as _;

/// Rows of bars; `edit` changes the fields of one.
fn bars(rows: usize, edit: impl Fn(usize, &mut [String; 5])) -> String {
    let mut draws = Stream::new(1, "bars").draws();
    let mut text = "time,open,high,low,close\n".to_owned();
    for row in 0..rows {
        let [open, close] = [100.0 + draws.normal(), 100.0 + draws.normal()];
        let (high, low) = (open.max(close) + 0.5, open.min(close));
        let time = format!("2024-01-{:02}T{:02}:{:02}", 1 + row / 1440, row / 60 % 24, row % 60);
        let mut fields =
            [time, open.to_string(), high.to_string(), low.to_string(), close.to_string()];
        edit(row, &mut fields);
        writeln!(text, "{}", fields.join(",")).unwrap();
    }
    text
}

/// Series and checks, or what is said instead; "odd" where the short way leaves it to the long one.
type Found = Result<(SeriesSet, Checks), String>;

fn said(found: Result<(SeriesSet, Checks), Stop>) -> Found {
    found.map_err(|stop| match stop {
        Stop::Failed(error) => error.to_string(),
        _ => "odd".to_owned(),
    })
}

fn short(
    inputs: &[Input],
    config: &DataConfig,
    sink: Sink<'_>,
) -> Result<(SeriesSet, Checks), Stop> {
    let zone = zone_of(config);
    read(inputs, config, &zone, sink, &Told { progress: &Progress::untold(), timed: &|_| () })
}

fn zone_of(config: &DataConfig) -> Zone {
    Zone::named(config.columns.time_zone.as_deref()).unwrap()
}

fn long(inputs: &[Input], config: &DataConfig) -> Found {
    let zone = zone_of(config);
    let mut all = Gathered::default();
    let said = |error: DataError| error.to_string();
    for input in inputs {
        let table = frame::load(input, config).map_err(said)?;
        all.add(table.reading(&zone).series().map_err(said)?).map_err(said)?;
    }
    let mut all = all.finish();
    all.sort_classes();
    all.separate_names();
    cleaned(all, config).map_err(said)
}

/// What the short way says, in memory and from the store, and the long way.
fn ways(text: &str, config: impl Fn(&mut DataConfig)) -> [Found; 2] {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bars.csv");
    std::fs::write(&file, text).unwrap();
    let mut settings = DataConfig::new(&file);
    config(&mut settings);
    let inputs = inputs(&settings).unwrap();
    let key = Key::builder("test", 1).finish();
    let in_memory = said(short(&inputs, &settings, Sink::Memory));
    let (cache, stop) = (folder.path().join("stopped"), AtomicBool::new(true));
    let stopped = short(&inputs, &settings, Sink::store(&cache, key, &stop));
    let is_stopped = matches!(stopped, Err(Stop::Failed(DataError::Stopped)));
    let is_odd = in_memory.as_ref().is_err_and(|said| said == "odd");
    assert!(is_stopped || is_odd, "who is stopped stores nothing");
    let (cache, stop) = (folder.path().join("cache"), AtomicBool::new(false));
    let stored = said(short(&inputs, &settings, Sink::store(&cache, key, &stop)));
    let expected = long(&inputs, &settings);
    // Rows that are sorted by time are sorted on the disk.
    let is_sorted = is_odd && settings.checks.unsorted != Policy::Drop && stored == expected;
    assert!(in_memory == stored || is_sorted, "{:?}, {:?}", in_memory.err(), stored.err());
    [stored, expected]
}

#[test]
fn both_ways_say_the_same_of_a_clean_series() {
    for rows in [2, 3, 1000, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS + 77] {
        let text = bars(rows, |_, _| ());
        let [short, long] = ways(&text, |_| ());
        assert!(short.is_ok() && short == long, "{rows} rows");
    }
    let [short, long] = ways(&format!("{}\r\n\n", bars(50, |_, _| ())), |_| ());
    assert!(short.is_ok() && short == long, "blank lines at the end");
    let untimed: Vec<String> = bars(50, |_, _| ())
        .lines()
        .map(|line| line.split_once(',').unwrap().1.to_owned())
        .collect();
    let [short, long] = ways(&untimed.join("\n"), |_| ());
    assert!(short.is_ok() && short == long);
    let [short, long] = ways(&bars(50, |_, _| ()), |config| {
        config.interval = Interval::from_microseconds(60_000_000);
    });
    assert!(short.is_ok() && short == long);
}

#[test]
fn gaps_are_cut_as_on_the_long_way() {
    let rows = 2 * ROWS + 77;
    let late = |row: usize| row + [0, 3][row / 9000 % 2] + row / 9000 * 700;
    let text = |uneven: usize| {
        bars(rows, |row, fields| {
            let seconds = late(row) * 60 + usize::from(row == uneven) * 20;
            fields[0] = crate::time::format(1_700_000_000_000_000 + seconds as i64 * 1_000_000);
        })
    };
    let split = |config: &mut DataConfig| config.checks.gaps = GapPolicy::Split;
    for uneven in [usize::MAX, 5, ROWS, rows - 1] {
        let [short, long] = ways(&text(uneven), split);
        let checks = &short.as_ref().unwrap().1;
        assert!(checks.segments > 3 && !checks.findings.is_empty(), "{checks:?}");
        assert!(short == long, "{uneven}");
    }
    // A declared interval that is shorter makes every step a gap of one length; a longer one contradicts.
    for (declared, fits) in [(20_000_000, false), (60_000_000, true), (3_600_000_000, false)] {
        let [short, long] = ways(&text(9), |config| {
            split(config);
            config.interval = Interval::from_microseconds(declared);
        });
        assert!(short.is_ok() == fits && short == long, "{declared}");
    }
    let [short, long] = ways(&text(9), |_| ());
    assert!(short.is_err() && short == long, "without the policy, it is refused");
    // Longer ones than are filled are cut.
    let fill = |longest: usize| {
        move |config: &mut DataConfig| {
            config.checks.gaps = GapPolicy::Fill;
            config.checks.longest_fill = longest;
        }
    };
    let [short, long] = ways(&text(9), fill(5));
    assert!(short.is_ok() && short == long, "gaps that are not filled");
    for longest in [710, 1000] {
        let [short, long] = ways(&text(9), fill(longest));
        assert!(short.as_ref().unwrap().1.steps > rows as u64 && short == long, "{longest}");
    }
}

#[test]
fn a_price_is_constant_no_more_where_the_last_close_fills_a_gap() {
    let text = |close: &'static str| {
        bars(100, |row, fields| {
            let minute = row + if row < 50 { 0 } else { 5 };
            fields[0] = format!("2024-01-01T{:02}:{:02}", minute / 60, minute % 60);
            (fields[1], fields[3]) = ("50".to_owned(), "50".to_owned());
            (fields[2], fields[4]) = ("150".to_owned(), close.to_owned());
        })
    };
    for close in ["50", "60"] {
        let [short, long] = ways(&text(close), |config| {
            (config.checks.gaps, config.checks.longest_fill) = (GapPolicy::Fill, 5);
            config.checks.constant = ConstantPolicy::Keep;
        });
        let of = |found: &Found| found.as_ref().unwrap().1.findings.len();
        assert_eq!((of(&short), of(&long)), if close == "50" { (4, 4) } else { (2, 2) });
        assert!(short == long, "{close}");
    }
}

#[test]
fn parts_of_a_parquet_file_are_put_together() {
    let folder = tempfile::tempdir().unwrap();
    let rows = 300_000;
    let write = |name: &str, group: usize, edit: &dyn Fn(&mut [f64], &mut [i64])| {
        let mut close: Vec<f64> = (0..rows).map(|row| (row % 977) as f64).collect();
        let mut time: Vec<i64> = (0..rows as i64).map(|row| 1_700_000_000 + row * 60).collect();
        edit(&mut close, &mut time);
        let columns = vec![Column::new("time".into(), time), Column::new("close".into(), close)];
        let mut frame = DataFrame::new(rows, columns).unwrap();
        let path = folder.path().join(name);
        let file = std::fs::File::create(&path).unwrap();
        ParquetWriter::new(file).with_row_group_size(Some(group)).finish(&mut frame).unwrap();
        path
    };
    let read_all = |paths: &[&std::path::PathBuf], checks: CheckPolicies| {
        let mut config = DataConfig::new(paths[0]);
        config.path.0 = paths.iter().map(|path| (*path).clone()).collect();
        config.columns.time_unit = crate::TimeUnit::S;
        config.checks = checks;
        let files = inputs(&config).unwrap();
        let in_memory = said(short(&files, &config, Sink::Memory));
        let cache = tempfile::tempdir().unwrap();
        let (key, stop) = (Key::builder("test", 1).finish(), AtomicBool::new(false));
        let stored = said(short(&files, &config, Sink::store(cache.path(), key, &stop)));
        assert!(in_memory == stored);
        assert!(in_memory == long(&files, &config));
        in_memory
    };
    let strict = CheckPolicies::default();
    let nothing = |_: &mut [f64], _: &mut [i64]| ();
    let [good, other] = ["good.parquet", "other.parquet"].map(|name| write(name, 7000, &nothing));
    let (set, checks) = read_all(&[&good], strict).unwrap();
    let values = &set.series()[0].values.all();
    assert!(values.iter().enumerate().all(|(row, value)| *value == (row % 977) as f64));
    assert_eq!((checks.rows, checks.segments, checks.findings.len()), (300_000, 1, 0));
    let (two, checks) = read_all(&[&good, &other], strict).unwrap();
    assert_eq!((two.series().len(), checks.series, checks.rows), (2, 2, 600_000));
    assert_eq!(two.series()[1].values, two.series()[0].values);
    // One group, whose columns are decoded at once.
    let whole = write("whole.parquet", rows, &nothing);
    let (one, _) = read_all(&[&whole], strict).unwrap();
    assert_eq!(one.series()[0].values, set.series()[0].values);
    // The last row; and the first of the second part, behind a time like it.
    let second = PART.div_ceil(7000) * 7000;
    let missing = write("missing.parquet", 7000, &|close, _| close[rows - 1] = f64::NAN);
    let twice = write("twice.parquet", 7000, &|_, time| time[second] = time[second - 1]);
    for (bad, place) in [(&missing, rows), (&twice, second + 1)] {
        for files in [&[bad][..], &[&good, bad]] {
            let error = read_all(files, strict).unwrap_err();
            assert!(error.contains(&format!("row {place} of")), "{error}");
        }
    }
    let mended = CheckPolicies {
        not_finite: Policy::Fill,
        duplicates: Policy::Drop,
        gaps: GapPolicy::Split,
        ..strict
    };
    let (set, checks) = read_all(&[&missing, &twice, &good], mended).unwrap();
    assert_eq!(set.series()[0].values.at(rows - 1), ((rows - 2) % 977) as f64);
    assert_eq!(set.series()[1].time.len(), rows - 1);
    assert_eq!((checks.segments, checks.findings.len()), (4, 3));
}

#[test]
fn what_would_be_told_otherwise_or_wait_too_long_goes_the_long_way() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, close: Vec<f64>| {
        let rows = close.len();
        let time: Vec<i64> = (0..rows as i64).map(|row| 1_700_000_000 + row * 60).collect();
        let columns = vec![Column::new("time".into(), time), Column::new("close".into(), close)];
        let mut frame = DataFrame::new(rows, columns).unwrap();
        let path = folder.path().join(name);
        let file = std::fs::File::create(&path).unwrap();
        ParquetWriter::new(file).with_row_group_size(Some(100_000)).finish(&mut frame).unwrap();
        path
    };
    let read = |paths: &[&std::path::PathBuf], longest_fill: usize| {
        let mut config = DataConfig::new(paths[0]);
        config.path.0 = paths.iter().map(|path| (*path).clone()).collect();
        config.columns.time_unit = crate::TimeUnit::S;
        config.checks.not_finite = Policy::Fill;
        config.checks.longest_fill = longest_fill;
        (inputs(&config).unwrap(), config)
    };
    let taken =
        |(files, config): &(Vec<Input>, DataConfig)| said(short(files, config, Sink::Memory));
    let missing = write("missing.parquet", vec![1.0, f64::NAN, 3.0]);
    let empty = write("empty.parquet", vec![]);
    let both = read(&[&missing, &empty], 5);
    assert_eq!(taken(&both).unwrap_err(), "odd");
    // There the file is told of, whatever is wrong with the others.
    let loaded = frame::load(&both.0[1], &both.1).map(|table| table.rows());
    assert!(loaded.unwrap_err().to_string().contains("has no row of data"));
    // A run that may be filled waits for its end; one that may not is left out at once.
    let mut close = vec![f64::NAN; 1_400_000];
    (close[0], close[1]) = (1.0, 2.0);
    let run = write("run.parquet", close);
    assert_eq!(taken(&read(&[&run], usize::MAX)).unwrap_err(), "odd");
    let cut = read(&[&run], 1000);
    let found = taken(&cut);
    assert!(found.is_ok() && found == long(&cut.0, &cut.1));
}

fn same_policy(policy: Policy) -> impl Fn(&mut DataConfig) {
    move |config| {
        let checks = &mut config.checks;
        (checks.not_finite, checks.duplicates, checks.ohlc) = (policy, policy, policy);
        checks.unsorted = policy;
        checks.gaps = GapPolicy::Split;
    }
}

#[test]
fn any_defect_anywhere_is_told_and_mended_as_on_the_long_way() {
    let rows = ROWS + 10;
    for at in [0, 1, ROWS, rows - 1] {
        let check = |what: &str, field: usize, value: &dyn Fn(&str) -> String| {
            let text = bars(rows, |row, fields| {
                if row == at {
                    fields[field] = value(&fields[field]);
                }
            });
            for policy in [Policy::Error, Policy::Drop, Policy::Fill] {
                let [short, long] = ways(&text, same_policy(policy));
                let says = format!(
                    "{what} in row {at}: {:?}, {:?}",
                    short.as_ref().err(),
                    long.as_ref().err()
                );
                assert!(short == long, "{says}");
            }
        };
        check("a missing value", 2, &|_| String::new());
        check("a value beyond f32", 4, &|_| "1e39".to_owned());
        check("a low high", 2, &|_| "1".to_owned());
        check("another time", 0, &|_| "2023-12-31T23:00".to_owned());
    }
}

#[test]
fn what_was_put_in_is_what_nobody_measured() {
    let rows = ROWS + 40;
    let (mut put_in, mut stored) = (0, 0);
    for seed in 0..12 {
        let draws = std::cell::RefCell::new(Stream::new(seed, "holes").draws());
        let chance = |p: f64| draws.borrow_mut().chance(p);
        let (share, minute) = (0.002 * (1 + seed % 4) as f64, std::cell::Cell::new(0));
        let text = bars(rows, |_, fields| {
            let missing = if chance(share) { 1 + draws.borrow_mut().below(4) } else { 0 };
            minute.set(minute.get() + 1 + missing as i64);
            fields[0] = crate::time::format(1_700_000_000_000_000 + minute.get() * 60_000_000);
            fields[1..].iter_mut().filter(|_| chance(share)).for_each(String::clear);
            // One that is left out, between others.
            if seed % 3 == 1 && !fields[3].is_empty() {
                fields[3] = "50".to_owned();
            }
        });
        let names = if seed % 3 == 1 { "time,a,b,c,d" } else { "time,open,high,low,close" };
        let text = text.replacen("time,open,high,low,close", names, 1);
        let [short, long] = ways(&text, |config| {
            config.checks = CheckPolicies {
                not_finite: Policy::Fill,
                ohlc: Policy::Fill,
                gaps: if seed % 2 == 0 { GapPolicy::Fill } else { GapPolicy::Split },
                longest_fill: 3,
                constant: ConstantPolicy::Drop,
                ..CheckPolicies::default()
            };
        });
        assert!(short == long, "{seed}: {:?}, {:?}", short.err(), long.err());
        let (set, checks) = short.unwrap();
        let header: Vec<&str> = text.lines().next().unwrap().split(',').collect();
        let rows = text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
        let read: std::collections::HashMap<&str, Vec<&str>> =
            rows.map(|row| (row[0], row)).collect();
        let (series, width) = (&set.series()[0], set.channels().len());
        assert_eq!(width, if seed % 3 == 1 { 3 } else { 4 });
        for (channel, of) in set.channels().iter().enumerate() {
            let column = header.iter().position(|name| *name == of.name).unwrap();
            for (step, time) in series.time.iter().enumerate() {
                let value = series.values.at(step * width + channel);
                let time = crate::time::format(*time);
                let field = read.get(time.as_str()).map(|row| row[column]);
                let measured = field.is_some_and(|field| field.parse() == Ok(value));
                assert_eq!(series.filled.holds(channel, step), !measured, "{seed} {of:?} {step}");
            }
            let told = &checks.by_series[0];
            let own: u64 = told
                .channels
                .iter()
                .filter(|own| own.channel == of.name)
                .map(|own| own.filled)
                .sum();
            // A high that was put in may have been raised, too.
            let count = series.filled.count(channel) as u64;
            let most = own + told.steps_filled;
            assert!(count == most || (count < most && ["high", "low"].contains(&of.name.as_str())));
            put_in += series.filled.count(channel);
        }
        stored += usize::from(!series.filled.is_empty());
    }
    assert!(stored == 12 && put_in > 1000, "{stored} {put_in}");
}

#[test]
fn nothing_is_carried_over_a_gap_that_is_found_once_all_is_read() {
    let rows = 2 * ROWS + 50;
    let text = bars(rows, |row, fields| {
        let minute = row + 1440 * usize::from(row > ROWS);
        fields[0] = crate::time::format(1_700_000_000_000_000 + minute as i64 * 60_000_000);
        if row == 7 || (ROWS + 1..ROWS + 4).contains(&row) {
            fields[4].clear();
        }
    });
    for (gaps, declared) in [
        (GapPolicy::Split, None),
        (GapPolicy::Fill, None),
        (GapPolicy::Split, Interval::from_microseconds(60_000_000)),
    ] {
        let [short, long] = ways(&text, |config| {
            (config.checks.not_finite, config.checks.gaps) = (Policy::Fill, gaps);
            config.interval = declared;
        });
        let (set, checks) = short.as_ref().unwrap();
        // Of the four, that within the first part alone.
        let closes = &checks.by_series[0].channels;
        assert_eq!((closes.len(), closes[0].missing, closes[0].filled), (1, 4, 1), "{gaps:?}");
        assert_eq!((set.steps(), checks.segments), (rows - 3, 2), "{gaps:?}");
        assert!(short == long, "{gaps:?}: {:?}", long.err());
    }
}

#[test]
fn rows_that_follow_too_soon_and_values_behind_a_gap_make_reading_begin_anew_once() {
    let text = bars(300, |row, fields| {
        let minute = row + 1440 * usize::from(row > 200);
        let early = if row == 20 { 40_000_000 } else { 0 };
        let at = 1_700_000_000_000_000 + minute as i64 * 60_000_000 - early;
        fields[0] = crate::time::format(at);
        if row == 7 || (201..204).contains(&row) {
            fields[4].clear();
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bars.csv");
    std::fs::write(&file, text).unwrap();
    let mut config = DataConfig::new(&file);
    (config.checks.not_finite, config.checks.gaps) = (Policy::Fill, GapPolicy::Split);
    config.checks.crowded = CrowdedPolicy::Drop;
    let (inputs, zone) = (inputs(&config).unwrap(), zone_of(&config));
    let (readings, progress) = (std::cell::Cell::new(0), Progress::untold());
    let found = again_if_told(How::default(), true, |how| {
        readings.set(readings.get() + 1);
        let told = Told { progress: &progress, timed: &|_| () };
        super::all((&inputs[..], &config, &zone), how, Sink::Memory, &told)
    });
    let found = said(found);
    let (set, checks) = found.as_ref().unwrap();
    // One row follows too soon, and three have nothing before them.
    assert_eq!((readings.get(), set.steps(), checks.segments), (2, 296, 3));
    assert!(found == long(&inputs, &config), "{:?}", found.err());
}

#[test]
fn constant_channels_are_refused_and_kept_as_on_the_long_way() {
    let constant = bars(100, |_, fields| {
        fields[1..].iter_mut().for_each(|field| *field = "5".to_owned());
    });
    for policy in [ConstantPolicy::Error, ConstantPolicy::Keep] {
        let [short, long] = ways(&constant, |config| config.checks.constant = policy);
        assert!(short == long && short.is_ok() == (policy == ConstantPolicy::Keep));
    }
    let drop = |config: &mut DataConfig| config.checks.constant = ConstantPolicy::Drop;
    let [short, long] = ways(&constant, drop);
    assert!(short.as_ref().unwrap_err().contains("no channel has more than one value"));
    assert!(short == long);
    let some = bars(ROWS + 100, |row, fields| {
        (fields[1], fields[3]) = ("5".to_owned(), (row % 5).to_string());
        fields[4] = "6".to_owned();
    });
    for close in ["6,state", "close,state", "close,close2"] {
        let gap = |row: usize| row % 1000 == 500;
        let rows = some.lines().enumerate().filter(|(row, _)| !gap(*row));
        let text: String = rows.map(|(_, text)| format!("{text},9\n")).collect();
        let text = text.replacen("close,9", close, 1);
        for gaps in [GapPolicy::Split, GapPolicy::Fill] {
            let [short, long] = ways(&text, |config| {
                drop(config);
                config.checks.gaps = gaps;
                config.columns.label = close.contains("state").then(|| "state".to_owned());
            });
            let (set, checks) = short.as_ref().unwrap();
            assert!(set.channels().len() < 4 && checks.findings.len() > 1, "{checks:?}");
            assert!(short == long, "{close}, {gaps:?}");
        }
    }
    let [short, long] = ways(&bars(50, |_, _| ()), |config| {
        config.interval = Interval::from_microseconds(3_600_000_000);
    });
    assert!(short.is_err() && short == long, "a declared interval that contradicts");
}

#[test]
fn rows_of_csv_without_any_value_are_those_of_the_long_way() {
    for text in ["x,y\n1,2\n,\n3,4\n", "x,y\n1,2\n\n3,4\n", "x,y\n\n\r\n1,2\n\n3,4\n,\n\n"] {
        for policy in [Policy::Error, Policy::Drop, Policy::Fill] {
            let [short, long] = ways(text, same_policy(policy));
            assert!(short == long, "{text}: {:?}, {:?}", short.err(), long.err());
        }
        assert!(ways(text, same_policy(Policy::Drop))[0].is_ok());
    }
    // Within quotes, or where a line has one field, a blank line may be something else.
    for text in ["x,y\n1,\"2\"\n\n3,4\n", "x\n1\n\n3\n"] {
        assert_eq!(ways(text, |_| ())[0].as_ref().unwrap_err(), "odd");
    }
    let [short, long] = ways("x,y\n1,2\n,5\n3,4\n", same_policy(Policy::Drop));
    assert!(short.is_ok() && short == long, "rows without times keep their numbers");
}

#[test]
fn labels_are_those_of_the_long_way() {
    let text = |class: &dyn Fn(usize) -> String| {
        let rows = bars(200, |_, _| ());
        let rows = rows.lines().enumerate();
        rows.map(|(row, text)| match row {
            0 => format!("{text},state\n"),
            row => format!("{text},{}\n", class(row)),
        })
        .collect::<String>()
    };
    let label = |config: &mut DataConfig| config.columns.label = Some("state".to_owned());
    let [short, long] = ways(&text(&|row| ["calm", "", "wild"][row % 3].to_owned()), label);
    let (set, checks) = short.as_ref().unwrap();
    assert_eq!(
        (set.classes(), checks.label_column.as_deref()),
        (&checks.classes[..], Some("state"))
    );
    assert_eq!(checks.classes, ["calm", "wild"]);
    assert!(short == long);
    // NaN is what programs write for a class that is missing; a series may be called so, if not in small letters.
    let [nan, long] = ways(&text(&|row| ["calm", "NaN", "wild"][row % 3].to_owned()), label);
    assert!(nan == long && nan == short, "{nan:?}");
    let [nan, _] = ways(&text(&|row| ["calm", " nan ", "wild"][row % 3].to_owned()), label);
    assert!(nan == short, "{nan:?}");
    let series = |config: &mut DataConfig| config.columns.series = Some("state".to_owned());
    let [short, long] = ways(&text(&|row| ["a", "NaN"][row / 101].to_owned()), series);
    let names = short.as_ref().map(|(set, _)| set.series()[1].name.clone());
    assert!(short == long && names == Ok("NaN".to_owned()), "{names:?}");
    let [short, long] = ways(&text(&|row| (row * 7 % 12).to_string()), label);
    let (set, _) = short.as_ref().unwrap();
    assert_eq!((set.classes().len(), &*set.classes()[11]), (12, "11"), "by their values");
    assert!(short == long);
    let [short, long] = ways(&text(&|_| String::new()), label);
    assert!(short.is_ok() && short == long, "none has a label");
    // Which of them comes first depends on their order in the file.
    let [short, long] = ways(&text(&|row| ["1", "1.0"][row % 2].to_owned()), label);
    assert_eq!((short.unwrap_err().as_str(), long.is_ok()), ("odd", true));
    let blank = text(&|_| "1".to_owned()).replacen("\n", "\n\n", 3);
    let [short, long] = ways(&blank, label);
    assert!(short.is_ok() && short == long, "lines without a value");
}

/// Bars with some of each defect, single ones and runs.
fn odd_bars(seed: u64, rows: usize) -> DataFrame {
    let mut draws = Stream::new(seed, "odd").draws();
    let rates: [f64; 6] =
        std::array::from_fn(|_| [0.0, 0.0, 0.03, 0.3][(draws.uniform_f64() * 4.0) as usize % 4]);
    let (mut times, mut prices) = (Vec::new(), [const { Vec::<Option<f64>>::new() }; 4]);
    let (mut time, mut missing) = (1_700_000_000_i64, [false; 4]);
    // Where a minute is declared, that is another rate.
    let usual = if seed % 7 == 3 { 45 } else { 60 };
    for row in 0..rows {
        let mut is = |rate: f64| draws.uniform_f64() < rate;
        let step = match [is(rates[0]), is(rates[1]), is(rates[2])] {
            _ if row < 2 => usual,
            [true, ..] => 0,
            [_, true, _] => 600,
            [.., true] => 10,
            _ => usual,
        };
        time += step;
        times.push(time);
        let open = 100.0 + (row * 7919 % 31) as f64;
        let close = 100.0 + (row * 104_729 % 29) as f64;
        let mut bar = [open, open.max(close) + 0.5, open.min(close) - 0.5, close];
        if is(rates[3]) {
            bar[1] = 99.5;
        }
        if is(rates[4]) {
            bar[2] = 140.5;
        }
        for (channel, value) in bar.into_iter().enumerate() {
            missing[channel] = is(if missing[channel] { 0.7 } else { rates[5] });
            let odd = [None, Some(f64::NAN), Some(f64::INFINITY), Some(-1e39)][row % 4];
            prices[channel].push(if missing[channel] { odd } else { Some(value) });
        }
    }
    let mut columns = vec![Column::new("time".into(), times)];
    for (name, values) in ["open", "high", "low", "close"].into_iter().zip(prices) {
        columns.push(Column::new(name.into(), values));
    }
    if seed.is_multiple_of(5) {
        columns[4] = columns[4].cast(&DataType::Float32).unwrap();
    }
    DataFrame::new(rows, columns).unwrap()
}

/// The same with labels of one of some kinds, and rows without any.
fn labelled(mut table: DataFrame, seed: u64, config: &mut DataConfig) -> DataFrame {
    let kinds = [["up", " down ", "10", ""], ["10", "9", "-1", " "], ["b", "a", "b ", "a"]];
    let mut draws = Stream::new(seed, "labels").draws();
    let kind = kinds[(draws.uniform_f64() * 3.0) as usize % 3];
    let mut label = || {
        let drawn = (draws.uniform_f64() * 5.0) as usize % 5;
        kind.get(drawn).map(ToString::to_string)
    };
    let labels: Vec<Option<String>> = (0..table.height()).map(|_| label()).collect();
    table.with_column(Column::new("state".into(), labels)).unwrap();
    config.columns.label = Some("state".to_owned());
    table
}

/// Where files of so many rows begin, at most one more than so many, and the last ends, drawn.
fn some_borders(rows: usize, more: usize, draw: &mut dyn FnMut(usize) -> usize) -> Vec<usize> {
    let mut borders = vec![0, rows];
    (0..more).for_each(|_| borders.push(1 + draw(rows - 1)));
    borders.sort_unstable();
    borders.dedup();
    borders
}

/// Writes the rows between these borders as files, with groups of five rows. Their paths, and the rows of each.
fn write_files(
    table: &DataFrame,
    borders: &[usize],
    folder: &Path,
) -> (Vec<std::path::PathBuf>, Vec<usize>) {
    let write = |(number, border): (usize, &[usize])| {
        let path = folder.join(format!("{number}.parquet"));
        let file = std::fs::File::create(&path).unwrap();
        let mut part = table.slice(border[0] as i64, border[1] - border[0]);
        ParquetWriter::new(file).with_row_group_size(Some(5)).finish(&mut part).unwrap();
        (path, part.height())
    };
    borders.windows(2).enumerate().map(write).unzip()
}

/// Ends of parts of so many rows, drawn.
fn some_ends(rows: usize, draws: &mut firebox_core::Draws) -> Vec<usize> {
    let mut ends: Vec<usize> = (1..rows).filter(|_| draws.uniform_f64() < 0.3).collect();
    ends.push(rows);
    ends
}

/// Whether the short way leaves it to the long one as it should: nothing was there. Where nothing is left, it says so.
fn is_left(found: &Found, expected: &Found) -> bool {
    let is_other = |said: &String| !said.contains("nothing is left of");
    found.as_ref().is_err_and(|said| said == "odd") && expected.as_ref().is_err_and(is_other)
}

/// What is said of files that are read in parts that end there, and in groups; in memory, and in stores in a folder.
fn in_all_ways(
    inputs: &[Input],
    config: &DataConfig,
    ends: &[Vec<usize>],
    folder: &Path,
) -> [Found; 6] {
    let (key, stop) = (Key::builder("test", 1).finish(), AtomicBool::new(false));
    let [tables, seen, groups] = ["tables", "seen", "groups"].map(|name| folder.join(name));
    [
        said(in_parts(inputs, config, ends, Sink::Memory, true)),
        said(in_parts(inputs, config, ends, Sink::Memory, false)),
        said(in_parts(inputs, config, ends, Sink::store(&tables, key, &stop), true)),
        said(in_parts(inputs, config, ends, Sink::store(&seen, key, &stop), false)),
        said(in_groups(inputs, config, (7, true), Sink::Memory)),
        said(in_groups(inputs, config, (7, true), Sink::store(&groups, key, &stop))),
    ]
}

/// The short way with parts that end at these rows of each file.
fn in_parts(
    inputs: &[Input],
    config: &DataConfig,
    ends: &[Vec<usize>],
    sink: Sink<'_>,
    by_table: bool,
) -> Result<(SeriesSet, Checks), Stop> {
    take_parts(inputs, config, ends, (How::default(), sink), by_table)
}

/// The same into what takes them.
fn take_parts(
    inputs: &[Input],
    config: &DataConfig,
    ends: &[Vec<usize>],
    (how, sink): (How, Sink<'_>),
    by_table: bool,
) -> Result<(SeriesSet, Checks), Stop> {
    // As in memory: rows are not sorted if that is not asked for.
    again_if_told(how, true, |how| {
        let to = (Taken::new(config.checks, how), sink.anew());
        parts_once(inputs, config, ends, to, by_table)
    })
}

fn parts_once(
    inputs: &[Input],
    config: &DataConfig,
    ends: &[Vec<usize>],
    (mut taken, mut sink): (Taken, Sink<'_>),
    by_table: bool,
) -> Result<(SeriesSet, Checks), Stop> {
    let zone = zone_of(config);
    let mapping = Groups::open(&inputs[0], config).unwrap().mapping().clone();
    let (apart, layout) = (taken.is_apart(), taken.of_next_file());
    let coded = layout.mapping(&mapping);
    sink = sink.of(config);
    for (input, ends) in inputs.iter().zip(ends) {
        taken.of_next_file();
        let frame = frame::load(input, config).unwrap().into_frame();
        let mut start = 0;
        for end in ends {
            let part = frame.slice(start as i64, end - start);
            let table = Table::of(input, config, part, mapping.clone());
            let table = known(layout.coded(table, &zone))?;
            let reading = table.reading(&zone);
            match by_table {
                true => taken.add_table(&reading, start, &mut sink)?,
                false => {
                    taken.add(Part::of(&reading, start, apart)?, (input, &coded), &mut sink)?;
                }
            }
            start = *end;
        }
        taken.end_file(&mut sink)?;
    }
    let told = Told { progress: &Progress::untold(), timed: &|_| () };
    whole(taken.finish(&mut sink, told.progress)?, (&[], config), mapping, sink, &told)
}

/// The short way by groups of rows of the file, some at once.
fn in_groups(
    inputs: &[Input],
    config: &DataConfig,
    how: (usize, bool),
    sink: Sink<'_>,
) -> Result<(SeriesSet, Checks), Stop> {
    take_groups(inputs, config, how, (How::default(), sink))
}

/// The same into what takes them.
fn take_groups(
    inputs: &[Input],
    config: &DataConfig,
    groups: (usize, bool),
    (how, sink): (How, Sink<'_>),
) -> Result<(SeriesSet, Checks), Stop> {
    again_if_told(how, true, |how| {
        groups_once(inputs, config, groups, (Taken::new(config.checks, how), sink.anew()))
    })
}

fn groups_once(
    inputs: &[Input],
    config: &DataConfig,
    (at_once, in_turn): (usize, bool),
    (mut taken, mut sink): (Taken, Sink<'_>),
) -> Result<(SeriesSet, Checks), Stop> {
    let zone = zone_of(config);
    let mut mapping = None;
    sink = sink.of(config);
    let mut same = |of: &Mapping| {
        mapping = Some(of.clone());
        Ok(())
    };
    for input in inputs {
        let (groups, to) = (Groups::open(input, config).unwrap(), (&mut taken, &mut sink));
        let (of, how, progress) =
            ((&groups, input, &zone), (at_once, &mut same), Progress::untold());
        match in_turn {
            true => files::in_groups(of, to, how, &progress.all())?,
            false => files::in_order(of, to, how, &progress.all())?,
        }
    }
    let told = Told { progress: &Progress::untold(), timed: &|_| () };
    whole(taken.finish(&mut sink, told.progress)?, (&[], config), known(mapping)?, sink, &told)
}

/// Policies that the short way follows.
fn policies(seed: u64) -> CheckPolicies {
    let mut draws = Stream::new(seed, "policies").draws();
    let mut draw = |of: usize| (draws.uniform_f64() * of as f64) as usize % of;
    // Most tables have some of each defect, and would be refused.
    let policy = |drawn: usize| {
        [
            Policy::Error,
            Policy::Drop,
            Policy::Drop,
            Policy::Drop,
            Policy::Fill,
            Policy::Fill,
            Policy::Fill,
        ][drawn]
    };
    CheckPolicies {
        not_finite: policy(draw(7)),
        duplicates: policy(draw(7)),
        ohlc: policy(draw(7)),
        crowded: [
            CrowdedPolicy::Error,
            CrowdedPolicy::Keep,
            CrowdedPolicy::Keep,
            CrowdedPolicy::Drop,
            CrowdedPolicy::Drop,
        ][draw(5)],
        gaps: [GapPolicy::Error, GapPolicy::Split, GapPolicy::Fill, GapPolicy::Fill][draw(4)],
        constant: [ConstantPolicy::Error, ConstantPolicy::Keep, ConstantPolicy::Drop][draw(3)],
        longest_fill: [1, 2, 3, 10][draw(4)],
        ..CheckPolicies::default()
    }
}

#[test]
fn any_mix_of_defects_at_any_border_is_told_and_mended_as_on_the_long_way() {
    let folder = tempfile::tempdir().unwrap();
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..400 {
        let mut draws = Stream::new(seed, "parts").draws();
        let rows = 2 + (draws.uniform_f64() * 60.0) as usize;
        let path = folder.path().join(format!("{seed}.parquet"));
        let file = std::fs::File::create(&path).unwrap();
        let mut config = DataConfig::new(&path);
        let mut table = odd_bars(seed, rows);
        if seed % 4 == 1 {
            table = labelled(table, seed, &mut config);
        }
        ParquetWriter::new(file).with_row_group_size(Some(5)).finish(&mut table).unwrap();
        config.columns.time_unit = crate::TimeUnit::S;
        config.checks = policies(seed);
        config.interval =
            Interval::from_microseconds(60_000_000).filter(|_| seed.is_multiple_of(3));
        let files = inputs(&config).unwrap();
        let expected = long(&files, &config);
        let ends = [some_ends(rows, &mut draws)];
        for found in in_all_ways(&files, &config, &ends, &folder.path().join(seed.to_string())) {
            let is_odd = is_left(&found, &expected);
            match &found {
                _ if is_odd => {}
                Ok(_) => taken += 1,
                Err(_) => refused += 1,
            }
            let (errors, policies) =
                ([found.as_ref().err(), expected.as_ref().err()], config.checks);
            assert!(
                is_odd || found == expected,
                "{seed}, parts {ends:?}: {errors:?}, {policies:?}"
            );
        }
    }
    assert!(taken > 400 && refused > 200, "{taken} taken, {refused} refused");
}
