//! Features beside a polars script, and the test that a feature which looks ahead does not pass.

use std::path::Path;

use firebox_core::{Series, SeriesSet, Silent};

use super::*;
use crate::{Change, DataConfig, GapPolicy, Original, first_difference, ingest};

mod stored;
mod whole;

const ROWS: &str = include_str!("../../tests/fixtures/timeframes_rows.csv");
const FEATURES: &str = include_str!("../../tests/fixtures/timeframes_features.csv");

fn config(folder: &Path, frames: Timeframes) -> DataConfig {
    let file = folder.join("bars.csv");
    std::fs::write(&file, ROWS).unwrap();
    let mut config = DataConfig::new(&file);
    config.checks.gaps = GapPolicy::Split;
    config.timeframes = Some(frames);
    config
}

fn short() -> Timeframes {
    Timeframes {
        periods: Periods { average: 7, strength: 5, fast: 4, slow: 9, signal: 3 },
        higher_periods: HigherPeriods { average: 4, strength: 3 },
        ..Timeframes::default()
    }
}

#[test]
fn features_are_those_of_the_script() {
    let folder = tempfile::tempdir().unwrap();
    let data = ingest(&config(folder.path(), short()), folder.path(), &Silent).unwrap();
    let mut lines = FEATURES.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').skip(2).collect();
    let found: Vec<&str> = data.set.channels().iter().map(|c| c.name.as_str()).collect();
    assert_eq!((found.clone(), found.len()), (names, 29));
    assert_eq!(data.set.channels()[0].role, Role::Return);
    let series = &data.set.series()[0];
    let mut rows = 0;
    let mut runs = std::collections::BTreeMap::<&str, usize>::new();
    for (line, step) in lines.zip(0..) {
        let mut fields = line.split(',');
        let (closed, run) = (fields.next().unwrap(), fields.next().unwrap());
        assert_eq!(series.time[step].to_string(), closed);
        *runs.entry(run).or_default() += 1;
        for (at, field) in fields.enumerate() {
            let (expected, found) =
                (field.parse::<f64>().unwrap(), series.values.at(step * 29 + at));
            let error = (found - expected).abs() / (1e-2 + expected.abs());
            assert!(error < 1e-9, "{closed} {}: {found} is not {expected}", found_name(&data, at));
        }
        rows += 1;
    }
    assert_eq!(rows, series.len());
    let lengths: Vec<usize> = series.segments.iter().map(ExactSizeIterator::len).collect();
    assert_eq!(lengths, runs.into_values().collect::<Vec<_>>());
    let checks = data.checks.timeframes.unwrap();
    assert_eq!(checks.bars, checks.warmup + rows as u64);
    assert!(checks.runs as usize > lengths.len() && checks.lost_runs > 0, "{checks:?}");
}

fn found_name(data: &crate::Ingested, at: usize) -> &str {
    &data.set.channels()[at].name
}

/// The first feature that the future changes.
fn leak(config: &DataConfig, change: fn(i64) -> Change) -> Option<String> {
    let (original, before, _) = Original::read(config, &Silent).unwrap();
    let times = &before.series()[0].time;
    let moments = [1, 2, 3].map(|part| times[times.len() * part / 4]);
    // Also moments in the middle of a bar, and just before and after its end.
    let moments = moments.into_iter().flat_map(|t| [-420_000_000, -1, 0, 1].map(|by| t + by));
    // And around gaps, where no row is next to the end of a bar.
    let ends = before.series()[0].segments.iter().flat_map(|run| [run.start, run.end - 1]);
    let ends = ends.flat_map(|step| {
        [-900_000_000, -60_000_000, -1, 0, 1, 60_000_000].map(|by| times[step] + by)
    });
    // Not those of the last bars, behind which nothing is left to change.
    let within = times[0]..times[times.len() - 20];
    let moments = moments.chain(ends.filter(|moment| within.contains(moment)));
    moments.into_iter().find_map(|moment| {
        let after = original.changed(&change(moment)).unwrap();
        let last = [&before, &after].map(|set| *set.series()[0].values.all().last().unwrap());
        assert_ne!(before, after, "the change changes something: {last:?}");
        Some(first_difference(&before, &after, moment)?.told(true))
    })
}

#[test]
fn a_changed_future_changes_no_feature_and_one_that_looks_ahead_is_found() {
    let folder = tempfile::tempdir().unwrap();
    for stamp in [Stamp::Open, Stamp::Close] {
        let config = config(folder.path(), Timeframes { stamp, ..short() });
        for change in [Change::After, Change::Gone] {
            assert_eq!(leak(&config, change), None);
        }
    }
    // By one row, as where the time of a row is taken for its end. It shows at the first end of a bar that is tried, and not
    // only where the row that opens then is missing; and two bars ahead.
    let next = config(folder.path(), Timeframes { leak: 1, ..short() });
    let found = leak(&next, Change::After).unwrap();
    assert!(found.contains("2024-05-06T22:30:00Z, feature `15min_body`"), "{found}");
    let config = config(folder.path(), Timeframes { leak: 30, ..short() });
    let found = leak(&config, Change::After).unwrap();
    assert!(found.contains("feature `15min_body`"), "{found}");
    let found = leak(&config, Change::Gone).unwrap();
    assert!(found.contains("feature `15min_body`") || found.contains("one of the two"), "{found}");
}

#[test]
fn longer_bars_among_those_of_a_minute_are_refused_where_they_would_look_ahead() {
    let folder = tempfile::tempdir().unwrap();
    let read = |longer: i64, stamp| {
        let mut times: Vec<i64> = (0..longer).map(|row| row * 600).collect();
        let first = longer * 600;
        times.extend((0..4 * 1440).map(|row| first + row * 60));
        let bar = |(row, second): (usize, &i64)| {
            let price = 100.0 + (row % 7) as f64;
            let time = crate::time::format(second * 1_000_000);
            format!("{time},{price},{},{},{price}\n", price + 1.0, price - 1.0)
        };
        let rows: String = times.iter().enumerate().map(bar).collect();
        let config = config(folder.path(), Timeframes { stamp, ..short() });
        std::fs::write(folder.path().join("bars.csv"), format!("time,open,high,low,close\n{rows}"))
            .unwrap();
        ingest(&config, folder.path(), &Silent).map(|data| data.set.series()[0].len())
    };
    // As many gaps of one length may come one after the other.
    assert!(read(19, Stamp::Open).unwrap() > 100);
    assert!(read(200, Stamp::Close).unwrap() > 100);
    let error = read(200, Stamp::Open).unwrap_err().to_string();
    let expected = "series `bars`, from 1970-01-01T00:00:00Z on: 20 rows in a row are 10min apart, and a bar takes 1min";
    assert!(error.starts_with(expected), "{error}");
    assert!(error.contains("set data.interval to 10min if all bars take as long"), "{error}");
}

#[test]
fn only_closed_bars_are_visible() {
    // One price a minute: the close of a bar is the number of the minute in which it ends.
    let minutes = 3 * 1440;
    let rows: Vec<f64> = (0..minutes).flat_map(|t| [f64::from(t) + 1.0; 4]).collect();
    let roles = [Role::Open, Role::High, Role::Low, Role::Close];
    let channels = roles.iter().enumerate().map(|(i, role)| Channel::new(format!("c{i}"), *role));
    let series = Series::regular("a", 0, 60_000_000, rows, 4);
    let set = SeriesSet::new(channels.collect(), vec![], vec![series]).unwrap();
    let frames = Timeframes {
        periods: Periods { average: 1, strength: 1, fast: 1, slow: 1, signal: 1 },
        higher_periods: HigherPeriods { average: 1, strength: 1 },
        ..Timeframes::default()
    };
    let (made, _) = derive(&set, &frames, Interval::from_microseconds(60_000_000)).unwrap();
    let names = frames.names();
    let at = names.iter().position(|name| name == "4h_return").unwrap();
    let series = &made.series()[0];
    for (step, time) in series.time.iter().enumerate() {
        let minute = time / 60_000_000;
        let last = (minute / 240 * 240) as f64;
        let expected = (last / (last - 240.0)).ln();
        let found = series.values.at(step * 29 + at);
        assert!((found - expected).abs() < 1e-12, "minute {minute}: {found} {expected}");
    }
    assert_eq!(series.time[0], 480 * 60_000_000);
}

/// Whatever row is the last, what is made of those before it is the same, and no bar is made of a part of
/// its rows.
#[test]
fn a_cut_of_the_rows_is_a_cut_of_the_bars() {
    let roles = [Role::Open, Role::High, Role::Low, Role::Close];
    let channels: Vec<_> =
        roles.iter().enumerate().map(|(i, role)| Channel::new(format!("c{i}"), *role)).collect();
    let frames = Timeframes {
        periods: Periods { average: 1, strength: 1, fast: 1, slow: 1, signal: 1 },
        higher_periods: HigherPeriods { average: 1, strength: 1 },
        ..Timeframes::default()
    };
    let minute = 60_000_000;
    let made = |minutes: i64| {
        let price = |t: i64| 100.0 + ((t * 37) % 101) as f64 / 10.0;
        let rows: Vec<f64> = (0..minutes).flat_map(|t| [price(t); 4]).collect();
        let series = Series::regular("a", 0, minute, rows, 4);
        let set = SeriesSet::new(channels.clone(), vec![], vec![series]).unwrap();
        let (made, _) = derive(&set, &frames, Interval::from_microseconds(minute)).unwrap();
        let series = &made.series()[0];
        (series.time.to_vec(), series.values.all().into_owned())
    };
    let all = 3 * 1440;
    let (times, values) = made(all);
    for minutes in all - 40..all {
        let (time, value) = made(minutes);
        // The default base is 15 minutes; the bar that ends with the last row is closed.
        assert_eq!(*time.last().unwrap(), minutes / 15 * 15 * minute, "{minutes}");
        assert_eq!(time, times[..time.len()], "{minutes}");
        assert_eq!(value, values[..value.len()], "{minutes}");
    }
}

#[test]
fn what_cannot_be_made_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let minutes = |m: i64| Interval::whole(m * 60_000_000);
    let message = |frames: Timeframes| {
        Original::read(&config(folder.path(), frames), &Silent).unwrap_err().to_string()
    };
    let base = message(Timeframes { base: Interval::whole(90_000_000), ..short() });
    assert!(base.contains("`data.timeframes.base` is 90s") && base.contains("1min"), "{base}");
    let odd = message(Timeframes { higher: vec![minutes(50)], ..short() });
    assert!(odd.contains("50min") && odd.contains("multiple of the base, 15min"), "{odd}");
    let week = message(Timeframes { higher: vec![minutes(7 * 1440)], ..short() });
    assert!(week.contains("divide a day"), "{week}");
    let order = message(Timeframes { higher: vec![minutes(240), minutes(60)], ..short() });
    assert!(order.contains("longer than 4h"), "{order}");
    let long = HigherPeriods { average: 5000, strength: 3 };
    let long = message(Timeframes { higher_periods: long, ..short() });
    assert!(long.contains("no bar is left") && long.contains("higher_periods"), "{long}");
    let none =
        message(Timeframes { periods: Periods { average: 0, ..short().periods }, ..short() });
    assert!(none.contains("average: 0"), "{none}");
    let mut plain = config(folder.path(), short());
    plain.columns.channels = vec!["open".into(), "close".into()];
    let plain = Original::read(&plain, &Silent).unwrap_err().to_string();
    assert!(plain.contains("open, high, low and close"), "{plain}");
    let mut zero: Vec<String> = ROWS.lines().map(str::to_owned).collect();
    let time = zero[1200].split(',').next().unwrap().to_owned();
    zero[1200] = format!("{time},0,0,0,0");
    std::fs::write(folder.path().join("bars.csv"), zero.join("\n")).unwrap();
    let mut config = DataConfig::new(folder.path().join("bars.csv"));
    config.checks.gaps = GapPolicy::Split;
    config.checks.ohlc = crate::Policy::Fill;
    config.timeframes = Some(short());
    let zero = Original::read(&config, &Silent).unwrap_err().to_string();
    assert!(zero.contains("zero or negative"), "{zero}");
    let mut rows: Vec<String> = ROWS.lines().map(str::to_owned).collect();
    // The last minute of a quarter of an hour: its close is that of the longer bar.
    let last = rows.iter().position(|row| row.starts_with("2024-05-06T22:44")).unwrap();
    rows[last] = "2024-05-06T22:44,1e-300,3e38,1e-300,1e-300".to_owned();
    std::fs::write(folder.path().join("bars.csv"), rows.join("\n") + "\n").unwrap();
    let far = Original::read(&config, &Silent).unwrap_err().to_string();
    assert!(far.contains("the feature `15min_") && far.contains("too far apart"), "{far}");
}

#[test]
fn a_series_of_which_nothing_is_left_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path(), short());
    let few: String = ROWS.lines().take(60).map(|line| format!("{line}\n")).collect();
    let file = folder.path().join("few.csv");
    std::fs::write(&file, few).unwrap();
    config.path.0.push(file);
    let warnings = std::sync::Mutex::new(Vec::new());
    let listener = |event: &firebox_core::Event| {
        if let firebox_core::Event::Warning { message } = event {
            warnings.lock().unwrap().push(message.clone());
        }
    };
    let made = ingest(&config, &folder.path().join("cache"), &listener).unwrap();
    assert_eq!(made.checks.timeframes.unwrap().lost_series, ["few"]);
    assert_eq!(made.set.series().len(), 1);
    let said = warnings.into_inner().unwrap().concat();
    assert!(said.contains("nothing is left of 1 series after the warm-up"), "{said}");
}
