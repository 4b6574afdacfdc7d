//! Features that are made bar by bar, in memory and in the store, beside those of whole series at once.

use std::sync::atomic::AtomicBool;

use firebox_core::{
    Channel, Draws, Filled, Key, Role, Series, SeriesSet, Silent, StepLabels, Stream,
};

use super::super::derive::{Plan, derive};
use super::super::stored::{AT_ONCE, make_at};
use super::super::{HigherPeriods, Periods, Stamp, TimeframeChecks, Timeframes};
use super::whole;
use crate::fast::{self, Sink, Told};
use crate::input::inputs;
use crate::progress::Progress;
use crate::raw::NO_LABEL;
use crate::store::{About, Entry, LabelKind, Making};
use crate::time::Zone;
use crate::{
    Checks, ConstantPolicy, DataConfig, DataError, GapPolicy, Interval, Original, ingest, read,
};

const MINUTE: i64 = 60_000_000;

/// What is made with blocks of so many bytes in the store.
fn in_store(
    set: &SeriesSet,
    frames: &Timeframes,
    source: Option<Interval>,
    at_once: usize,
) -> Made {
    in_store_until(&AtomicBool::new(false), set, frames, source, at_once)
}

fn in_store_until(
    stop: &AtomicBool,
    set: &SeriesSet,
    frames: &Timeframes,
    source: Option<Interval>,
    at_once: usize,
) -> Made {
    let folder = tempfile::tempdir().unwrap();
    let labelled = !set.classes().is_empty();
    let mut making = Making::begin(folder.path(), set.channels().len(), labelled).unwrap();
    for series in set.series() {
        let codes: Vec<u32> = match &series.labels {
            StepLabels::PerStep(labels) => labels.iter().map(|l| l.unwrap_or(NO_LABEL)).collect(),
            StepLabels::None | StepLabels::Whole(_) => vec![],
        };
        making.arrays.push(&series.values.all(), &series.time, &codes).unwrap();
    }
    let entry = |series: &Series| Entry {
        name: series.name.clone(),
        origin: series.origin,
        steps: series.len(),
        segments: series.segments.clone(),
        labels: if labelled { LabelKind::PerStep } else { LabelKind::None },
        filled: series.filled.clone(),
        group: None,
    };
    let about = About {
        channels: set.channels().to_vec(),
        classes: set.classes().to_vec(),
        series: set.series().iter().map(entry).collect(),
        checks: Checks { interval: source, ..Checks::default() },
    };
    let progress = Progress::untold();
    let heard = (stop, &progress.all());
    let made = make_at(frames, (making, about), (folder.path(), at_once), heard);
    let bucket = folder.path().join(firebox_cache::SERIES);
    let there = || std::fs::read_dir(&bucket).unwrap().count();
    assert_eq!(there(), usize::from(made.is_ok()), "the source bars are gone");
    let (making, about) = made?;
    let key = Key::builder("test", 1).finish();
    let (set, checks) = making.finish((folder.path(), key), about, heard)?.open()?;
    assert_eq!(there(), 1);
    Ok((set, checks.timeframes.unwrap()))
}

/// Bars of several series, with gaps and with rows that are no multiple of the interval apart.
fn random(draws: &mut Draws, extreme: bool) -> SeriesSet {
    let mut below = |most: u32| draws.below(u64::from(most)) as u32;
    let width = 4 + below(2) as usize;
    let labelled = below(2) == 0;
    let series = (0..1 + below(5)).map(|number| {
        let rows = match below(4) {
            0 => below(30),
            1 => below(3000),
            _ => 500 + below(3000),
        } as usize;
        let (mut at, mut price) = (i64::from(below(4000)) - 2000, 100.0);
        let (mut time, mut values, mut labels) = (vec![], vec![], vec![]);
        let gaps = [5, 100, 1000, 100_000][below(4) as usize];
        let flat = below(4) == 0;
        for _ in 0..=rows {
            at += 1;
            if below(gaps) == 0 {
                at += i64::from(below(900));
            }
            let mut step = || if flat { 0.0 } else { f64::from(below(2001)) / 1000.0 - 1.0 };
            let open = price;
            price = (price + step()).abs() + 1.0;
            let mut row = [open, open.max(price) + 0.25, open.min(price) - 0.125, price];
            row[1] += step().abs();
            if extreme && below(3000) == 0 {
                row = [[1e-300, 3e38, 1e-300, 1e-300], [-1.0; 4], [1e308; 4]][below(3) as usize];
            }
            time.push(at * MINUTE);
            values.extend_from_slice(&row);
            values.extend(std::iter::repeat_n(0.5, width - 4));
            labels.push([None, Some(0), Some(1)][below(3) as usize]);
        }
        let segments = std::iter::once(0..time.len()).collect();
        let labels = if labelled { StepLabels::PerStep(labels) } else { StepLabels::None };
        let mut filled = Filled::default();
        for _ in 0..below(2) * below(100) {
            let start = below(rows as u32 + 1) as usize;
            let channel = below(width as u32) as usize;
            filled.add(channel, start..(start + below(20) as usize).min(rows + 1));
        }
        let (name, time, values) = (format!("s{number}"), time.into(), values.into());
        Series { name, time, values, labels, segments, filled, ..Series::default() }
    });
    let series: Vec<Series> = series.collect();
    let roles = [Role::Open, Role::High, Role::Low, Role::Close, Role::Other];
    let channels = (0..width).map(|at| Channel::new(format!("c{at}"), roles[at])).collect();
    let classes = if labelled { vec!["a".to_owned(), "b".to_owned()] } else { vec![] };
    SeriesSet::new(channels, classes, series).unwrap()
}

fn random_frames(draws: &mut Draws) -> Timeframes {
    let mut period = || {
        let most = [3, 12][draws.below(2) as usize];
        1 + draws.below(most) as usize
    };
    let periods = Periods {
        average: period(),
        strength: period(),
        fast: period(),
        slow: period(),
        signal: period(),
    };
    let higher_periods = HigherPeriods { average: period(), strength: period() };
    let minutes = |count: i64| Interval::whole(count * MINUTE);
    let (base, higher): (i64, &[i64]) = [
        (1, &[5, 15][..]),
        (5, &[15, 60, 240]),
        (15, &[]),
        (15, &[60, 240]),
        (1, &[2]),
        (30, &[1440]),
    ][draws.below(6) as usize];
    let stamp = [Stamp::Open, Stamp::Close][draws.below(2) as usize];
    let (base, higher) = (minutes(base), higher.iter().copied().map(minutes).collect());
    Timeframes { base, higher, stamp, periods, higher_periods, ..Timeframes::default() }
}

type Made = Result<(SeriesSet, TimeframeChecks), DataError>;

/// The same errors, or the same series, their values bit by bit.
fn check(found: Made, expected: &Made, what: &str) {
    match (found, expected) {
        (Ok((found, checks)), Ok((expected, of))) => {
            assert!(found == *expected && checks == *of, "{what}: {checks:?} is not {of:?}");
            let bits = |series: &Series| -> Vec<u64> {
                series.values.all().iter().map(|value| value.to_bits()).collect()
            };
            let same = |(a, b): (&Series, &Series)| bits(a) == bits(b);
            assert!(found.series().iter().zip(expected.series()).all(same), "{what}");
        }
        (Err(found), Err(expected)) => {
            assert_eq!(found.to_string(), expected.to_string(), "{what}");
        }
        (found, expected) => {
            let is_taken = [found.is_ok(), expected.is_ok()];
            panic!("{what}: {is_taken:?}, {:?} {:?}", found.err(), expected.as_ref().err());
        }
    }
}

#[test]
fn features_made_bar_by_bar_are_those_of_whole_series_bit_by_bit() {
    let stream = Stream::new(7, "timeframes");
    let (mut taken, mut refused) = (0, std::collections::BTreeSet::new());
    for case in 0..80 {
        let mut draws = stream.substream(case).draws();
        let set = random(&mut draws, case % 3 == 0);
        let frames = random_frames(&mut draws);
        let source = Interval::from_microseconds(MINUTE);
        let expected = whole::derive(&set, &frames, source);
        check(derive(&set, &frames, source), &expected, &format!("case {case}, in memory"));
        for at_once in [1, 20_000, AT_ONCE] {
            let found = in_store(&set, &frames, source, at_once);
            check(found, &expected, &format!("case {case}, {at_once} bytes at once"));
        }
        match &expected {
            Ok(_) => {
                taken += 1;
                let never = AtomicBool::new(false);
                let plan = Plan::of(&set, &frames, source, (&never, &|_| ())).unwrap();
                let found = plan.collected(0..set.series().len());
                for ((found, _), steps) in found.unwrap().iter().zip(plan.steps()) {
                    assert_eq!(found.steps, *steps, "case {case}");
                }
            }
            Err(error) => {
                let error = error.to_string();
                let kinds = ["zero or negative", "too far apart", "no bar is left"];
                refused.extend(kinds.into_iter().find(|kind| error.contains(kind)));
            }
        }
    }
    assert!(taken > 30 && refused.len() == 3, "{taken} taken, {refused:?}");
}

/// A panel of two series in turn with labels and a constant channel, some of whose rows are not there.
fn panel() -> String {
    let mut text = "time,symbol,state,open,high,low,close,same\n".to_owned();
    for (number, row) in super::ROWS.lines().skip(1).enumerate() {
        let (time, prices) = row.split_once(',').unwrap();
        let prices: Vec<&str> = prices.split(',').take(4).collect();
        for symbol in ["a", "b"].into_iter().filter(|symbol| *symbol == "a" || number % 331 > 2) {
            let state = ["calm", "", "wild"][number % 3];
            text += &format!("{time},{symbol},{state},{},7\n", prices.join(","));
        }
    }
    text
}

#[test]
fn tables_whose_rows_are_sorted_filled_and_rewritten_give_the_same_in_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("panel.csv");
    std::fs::write(&file, panel()).unwrap();
    let mut config = DataConfig::new(&file);
    config.columns.label = Some("state".to_owned());
    config.checks.constant = ConstantPolicy::Drop;
    config.timeframes = Some(super::short());
    for gaps in [GapPolicy::Split, GapPolicy::Fill] {
        config.checks.gaps = gaps;
        let (_, whole, checks) = Original::read(&config, &Silent).unwrap();
        assert!(whole.series().len() == 2 && whole.classes().len() == 2);
        let cache = folder.path().join(format!("{gaps:?}"));
        let made = ingest(&config, &cache, &Silent).unwrap();
        assert!(*made.set == whole && made.checks == checks && !made.reused);
        let again = ingest(&config, &cache, &Silent).unwrap();
        assert!(*again.set == whole && again.checks == checks && again.reused);
        let bucket = cache.join(firebox_cache::SERIES);
        assert_eq!(std::fs::read_dir(&bucket).unwrap().count(), 1);
        // Without the long way.
        let told = Told { progress: &Progress::untold(), timed: &|_| {} };
        let (never, other) = (AtomicBool::new(false), folder.path().join("other"));
        let sink = Sink::store(&other, made.key, &never);
        let short = fast::read(&inputs(&config).unwrap(), &config, &Zone::Utc, sink, &told);
        let (set, of_set) = short.unwrap();
        assert!(set == whole && of_set == checks);
        let (in_memory, said) = read(&config, &Silent).unwrap();
        assert!(in_memory == whole && said == checks);
    }
}

#[test]
fn nothing_is_left_in_the_folder_when_it_is_stopped_or_settings_are_refused() {
    let mut draws = Stream::new(8, "timeframes").draws();
    let set = random(&mut draws, false);
    let frames = random_frames(&mut draws);
    let refused = in_store(&set, &frames, None, AT_ONCE).unwrap_err().to_string();
    assert!(refused.contains("data.columns.time"), "{refused}");
    let uneven = in_store(&set, &frames, Interval::from_microseconds(7 * MINUTE), AT_ONCE);
    assert!(uneven.unwrap_err().to_string().contains("whole multiple of the 7min"));
    let (stop, source) = (AtomicBool::new(true), Interval::from_microseconds(MINUTE));
    let stopped = in_store_until(&stop, &set, &frames, source, AT_ONCE);
    assert!(matches!(stopped, Err(DataError::Stopped)));
}
