//! The short way for tables that have at most gaps in time: checked and laid out part by part, so that
//! no more of a file is in memory than one part, and the series lie where a [`Sink`] puts them.
//!
//! It finds out whether there is any other defect, and not which: as soon as anything is odd, all goes
//! the long way, through [`clean`](crate::clean::clean), whose result for such series is the same.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::clean;
use crate::groups::{GroupRange, Groups};
use crate::input::Input;
use crate::look::{Look, Part};
use crate::mapping::Mapping;
use crate::parts;
use crate::plain::Mapped;
use crate::raw::{Piece, RawLabels, RawSeries, Rows};
use crate::store::{About, Entry, LabelKind, Making};
use crate::time::Zone;
use crate::turns::in_turn;
use crate::work::{Work, is_soon};
use crate::{Checks, DataConfig, DataError, Format, GapPolicy, Interval};
use firebox_core::{Backing, Channel, Key, Series, SeriesSet, StepLabels};

/// Rows of a part of a Parquet file, at least: enough that asking for it costs little.
const PART: usize = 1 << 17;

/// Why the short way ends.
pub(crate) enum Stop {
    /// Something is odd: the long way finds out what.
    Odd,
    /// The disk refuses.
    Failed(DataError),
}

impl From<DataError> for Stop {
    fn from(error: DataError) -> Self {
        Self::Failed(error)
    }
}

/// `Some` or the long way.
fn known<T>(found: Option<T>) -> Result<T, Stop> {
    found.ok_or(Stop::Odd)
}

/// Where rows go.
pub(crate) enum Sink<'a> {
    /// Into memory.
    Memory,
    /// Into the store, with no more than a part of them in memory.
    Store { cache: &'a Path, key: Key, stop: &'a AtomicBool, making: Option<Box<Making>> },
}

impl<'a> Sink<'a> {
    pub(crate) fn store(cache: &'a Path, key: Key, stop: &'a AtomicBool) -> Self {
        Self::Store { cache, key, stop, making: None }
    }

    /// Puts rows into the store, if that is where they go.
    fn store_rows(&mut self, width: usize, values: &[f64], times: &[i64]) -> Result<(), Stop> {
        let Self::Store { cache, stop, making, .. } = self else { return Ok(()) };
        DataError::heed(stop)?;
        if making.is_none() {
            *making = Some(Box::new(Making::begin(cache, width)?));
        }
        let making = known(making.as_mut())?;
        making.values.push(values)?;
        making.time.push(times)?;
        Ok(())
    }
}

/// The series of these files and what is to be said of them. `done` is told of each file.
pub(crate) fn read(
    inputs: &[Input],
    config: &DataConfig,
    zone: &Zone,
    mut sink: Sink<'_>,
    done: &dyn Fn(usize),
) -> Result<(SeriesSet, Checks), Stop> {
    let mut read = Vec::with_capacity(inputs.len());
    let mut first = None;
    for (index, input) in inputs.iter().enumerate() {
        let same = |mapping: &Mapping| {
            let same = first.get_or_insert_with(|| mapping.clone()) == mapping;
            known(same.then_some(()))
        };
        let short = match input.format {
            Format::Parquet => in_groups(input, config, zone, &mut sink, same)?,
            _ => one_by_one(input, config, zone, &mut sink, same)?,
        };
        read.push(short);
        done(index + 1);
    }
    let mapping = known(first)?;
    let whole = finish(read, inputs, config, &mapping, &mut sink)?;
    let channels = mapping.channels;
    match sink {
        Sink::Memory => {
            let series = whole.series.into_iter().map(|(series, _)| series).collect();
            let set = SeriesSet::looked_at(channels, vec![], series).map_err(DataError::from)?;
            Ok((set, whole.checks))
        }
        Sink::Store { cache, key, making, .. } => {
            let checks = whole.checks;
            let series = whole.series.into_iter().map(|(_, entry)| entry).collect();
            let about = About { channels, classes: vec![], series, labels: None, checks };
            Ok(known(making)?.finish(cache, key, about)?.open()?)
        }
    }
}

/// A series, whose values and times are here if they stay in memory.
struct Short {
    values: Vec<f64>,
    times: Vec<i64>,
    look: Look,
}

/// Reads a file part by part, each on all processors.
fn one_by_one(
    input: &Input,
    config: &DataConfig,
    zone: &Zone,
    sink: &mut Sink<'_>,
    mut same: impl FnMut(&Mapping) -> Result<(), Stop>,
) -> Result<Short, Stop> {
    let (mut values, mut times, mut look) = (vec![], vec![], None::<Look>);
    parts::each(input, config, |table, expected| {
        let reading = table.reading(zone);
        same(reading.mapping)?;
        let rows = look.as_ref().map_or(0, |look| look.rows);
        let part = known(Part::of(&reading, rows))?;
        let width = reading.mapping.channels.len();
        let in_memory = matches!(sink, Sink::Memory);
        let begin = if in_memory { rows * width } else { 0 };
        if in_memory && values.is_empty() {
            // Memory that is never touched costs nothing, and what grows is copied; without it, it grows.
            let _ = values.try_reserve_exact(expected * width);
            let _ = times.try_reserve_exact(expected);
        }
        values.resize(begin + part.times.len() * width, 0.0);
        let seen = known(part.lay_out_in_parallel(&mut values[begin..]))?;
        look = Some(known(Look::after(look.take(), seen))?);
        if in_memory {
            times.extend(part.times);
            Ok(())
        } else {
            sink.store_rows(width, &values, &part.times)
        }
    })?;
    if matches!(sink, Sink::Store { .. }) {
        values = vec![];
    }
    known(look.filter(Look::is_series)).map(|look| Short { values, times, look })
}

/// Reads a Parquet file, of which every processor takes some groups of rows from the disk to their place.
fn in_groups(
    input: &Input,
    config: &DataConfig,
    zone: &Zone,
    sink: &mut Sink<'_>,
    mut same: impl FnMut(&Mapping) -> Result<(), Stop>,
) -> Result<Short, Stop> {
    let groups = known(Groups::open(input, config))?;
    same(groups.mapping())?;
    let (parts, threads) = (groups.parts(PART), rayon::current_num_threads());
    let width = groups.mapping().channels.len();
    // A file of few groups has work for all processors within each.
    let by_columns = parts.len() < threads;
    let look_at = |group: &GroupRange, out: &mut [f64]| {
        let table = groups.part(group, by_columns)?;
        let part = Part::of(&table.reading(zone), group.rows.start)?;
        let look = part.lay_out(out)?;
        Some((look, part.times))
    };
    let mut all = None;
    let mut add = |look| -> Result<(), Stop> {
        all = Some(known(Look::after(all.take(), look))?);
        Ok(())
    };
    let (mut values, mut times) = (vec![], vec![]);
    match sink {
        Sink::Memory => {
            (values, times) = (vec![0.0; groups.rows() * width], vec![0; groups.rows()]);
            let places = places(&parts, width, &mut values, &mut times);
            let work = |(group, values, times): (&GroupRange, &mut [f64], &mut [i64])| {
                let (look, read) = known(look_at(group, values))?;
                times.copy_from_slice(&read);
                Ok(look)
            };
            in_turn(threads, places.into_iter(), work, add)?;
        }
        Sink::Store { .. } => {
            let work = |group: &GroupRange| {
                let mut values = vec![0.0; group.rows.len() * width];
                let (look, times) = known(look_at(group, &mut values))?;
                Ok((look, values, times))
            };
            let take = |(look, values, times): (Look, Vec<f64>, Vec<i64>)| {
                add(look)?;
                sink.store_rows(width, &values, &times)
            };
            in_turn(threads, parts.iter(), work, take)?;
        }
    }
    known(all.filter(Look::is_series)).map(|look| Short { values, times, look })
}

/// The place of each part among the values and times of all.
fn places<'a>(
    parts: &'a [GroupRange],
    width: usize,
    mut values: &'a mut [f64],
    mut times: &'a mut [i64],
) -> Vec<(&'a GroupRange, &'a mut [f64], &'a mut [i64])> {
    let mut place = |part: &'a GroupRange| {
        let rows = part.rows.len();
        let own_values = values.split_off_mut(..rows * width).unwrap_or_default();
        let own_times = times.split_off_mut(..rows).unwrap_or_default();
        (part, own_values, own_times)
    };
    parts.iter().map(&mut place).collect()
}

/// Series with their entries in the store; those of the store have no values here.
struct Whole {
    series: Vec<(Series, Entry)>,
    checks: Checks,
}

/// What can be said only when all files have been read.
fn finish(
    read: Vec<Short>,
    inputs: &[Input],
    config: &DataConfig,
    mapping: &Mapping,
    sink: &mut Sink<'_>,
) -> Result<Whole, Stop> {
    let names: std::collections::HashSet<String> = inputs.iter().map(Input::stem).collect();
    known((names.len() == inputs.len()).then_some(()))?;
    let declared = config.interval.map(Interval::microseconds);
    let first = read.first().and_then(|short| short.look.interval);
    let timed = mapping.time.is_some();
    let even = read.iter().all(|short| short.look.even && short.look.interval == first);
    let contradicts = declared.is_some() && timed && declared != first;
    let mut works: Vec<Work> = inputs
        .iter()
        .zip(&read)
        .map(|(input, short)| work(input, short, &mapping.channels))
        .collect();
    let interval = match timed {
        true if even && !contradicts => first,
        true => Some(gaps(&mut works, &read, config, sink)?),
        false => None,
    };
    for (work, short) in works.iter_mut().zip(&read) {
        if work.segments.is_empty() {
            work.cut(vec![], short.look.rows);
        }
        work.counts.segments = work.segments.len() as u64;
    }
    let of_rows = interval.and_then(Interval::from_microseconds);
    let findings = clean::findings(&works, &mapping.channels, &[], of_rows, &config.checks);
    let spans = read.iter().map(|short| short.look.span);
    let checks = Checks {
        time_column: mapping.time.clone(),
        label_like: mapping.label_like.clone(),
        interval: of_rows,
        interval_declared: declared.is_some(),
        span: spans.reduce(|a, b| [a[0].min(b[0]), a[1].max(b[1])]).filter(|_| timed),
        ..clean::summary(&works, &mapping.channels, findings)
    };
    let series = read.into_iter().zip(works).zip(inputs).map(|((short, work), input)| {
        let (name, origin, segments) = (work.raw.name, input.origin, work.segments);
        let labels = LabelKind::None;
        let (name_kept, kept) = (name.clone(), segments.clone());
        let entry =
            Entry { name: name_kept, origin, steps: short.look.rows, segments: kept, labels };
        let (time, values) = (short.times.into(), short.values.into());
        (Series { name, time, values, labels: StepLabels::None, segments, origin }, entry)
    });
    Ok(Whole { series: series.collect(), checks })
}

/// A series as the long way has it, without its rows.
fn work(input: &Input, short: &Short, channels: &[Channel]) -> Work {
    let path = Arc::from(input.path.as_path());
    let raw = RawSeries {
        name: input.stem(),
        origin: input.origin,
        time: None,
        columns: vec![],
        labels: RawLabels::None,
        pieces: vec![Piece { path, steps: short.look.rows, rows: Rows::From(1) }],
    };
    let mut work = Work::new(raw, channels);
    (work.counts.rows, work.counts.steps) = (short.look.rows as u64, short.look.rows as u64);
    work
}

/// Cuts the series at their gaps, and returns the interval.
fn gaps(
    works: &mut [Work],
    read: &[Short],
    config: &DataConfig,
    sink: &mut Sink<'_>,
) -> Result<i64, Stop> {
    let stored: Option<Arc<Mapped<i64>>> = match sink {
        Sink::Memory => None,
        Sink::Store { making, .. } => Some(known(making.as_mut())?.time.so_far()?),
    };
    let mut start = 0;
    let times = read.iter().map(|short| match &stored {
        Some(stored) => {
            start += short.look.rows;
            &stored.all()[start - short.look.rows..start]
        }
        None => &short.times[..],
    });
    let times: Vec<&[i64]> = times.collect();
    let found = clean::most_frequent(times.iter().copied());
    clean::refuse_contradiction(config.interval, found).map_err(|_| Stop::Odd)?;
    let interval = known(config.interval.map(Interval::microseconds).or(found))?;
    for (work, times) in works.iter_mut().zip(times) {
        let mut cuts = Vec::new();
        work.find_gaps(times, interval, |step, _| cuts.push(step));
        // Rows that follow too soon are looked at, and left out, on the long way.
        let soon = |pair: &[i64]| is_soon(pair[1] - pair[0], interval);
        known((!times.windows(2).any(soon)).then_some(()))?;
        known((cuts.is_empty() || config.checks.gaps == GapPolicy::Split).then_some(()))?;
        work.cut(cuts, times.len());
    }
    Ok(interval)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;
    use crate::input::inputs;
    use crate::look::ROWS;
    use crate::raw::Gathered;
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
            let time =
                format!("2024-01-{:02}T{:02}:{:02}", 1 + row / 1440, row / 60 % 24, row % 60);
            let mut fields =
                [time, open.to_string(), high.to_string(), low.to_string(), close.to_string()];
            edit(row, &mut fields);
            writeln!(text, "{}", fields.join(",")).unwrap();
        }
        text
    }

    type Found = Option<(SeriesSet, Checks)>;

    /// What the short way says, in memory and from the store, and the long way.
    fn ways(text: &str, config: impl Fn(&mut DataConfig)) -> [Found; 2] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("bars.csv");
        std::fs::write(&file, text).unwrap();
        let mut settings = DataConfig::new(&file);
        config(&mut settings);
        let inputs = inputs(&settings).unwrap();
        let zone = Zone::named(None).unwrap();
        let short = |sink| read(&inputs, &settings, &zone, sink, &|_| ()).ok();
        let key = Key::builder("test", 1).finish();
        let in_memory = short(Sink::Memory);
        let (cache, stop) = (folder.path().join("stopped"), AtomicBool::new(true));
        let stopped = read(&inputs, &settings, &zone, Sink::store(&cache, key, &stop), &|_| ());
        let is_stopped = matches!(stopped, Err(Stop::Failed(DataError::Stopped)));
        assert!(is_stopped || in_memory.is_none(), "who is stopped stores nothing");
        assert!(
            in_memory
                == short(Sink::store(&folder.path().join("cache"), key, &AtomicBool::new(false)))
        );
        let table = frame::load(&inputs[0], &settings).unwrap();
        let reading = table.reading(&zone);
        let mut raw = Gathered::default();
        raw.add(reading.series().unwrap()).unwrap();
        let long = crate::clean::clean(raw.finish(), settings.interval, &settings.checks).ok();
        [in_memory, long]
    }

    #[test]
    fn both_ways_say_the_same_of_a_clean_series() {
        for rows in [2, 3, 1000, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS + 77] {
            let text = bars(rows, |_, _| ());
            let [short, long] = ways(&text, |_| ());
            assert!(short.is_some() && short == long, "{rows} rows");
        }
        let [short, long] = ways(&format!("{}\r\n\n", bars(50, |_, _| ())), |_| ());
        assert!(short.is_some() && short == long, "blank lines at the end");
        let untimed: Vec<String> = bars(50, |_, _| ())
            .lines()
            .map(|line| line.split_once(',').unwrap().1.to_owned())
            .collect();
        let [short, long] = ways(&untimed.join("\n"), |_| ());
        assert!(short.is_some() && short == long);
        let [short, long] = ways(&bars(50, |_, _| ()), |config| {
            config.interval = Interval::from_microseconds(60_000_000);
        });
        assert!(short.is_some() && short == long);
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
        // A declared interval that is shorter makes every step a gap; a longer one contradicts.
        for (declared, fits) in [(20_000_000, true), (60_000_000, true), (3_600_000_000, false)] {
            let [short, long] = ways(&text(9), |config| {
                split(config);
                config.interval = Interval::from_microseconds(declared);
            });
            assert!(short.is_some() == fits && short == long, "{declared}");
        }
        // Without the policy, the long way refuses it.
        let [short, long] = ways(&text(9), |_| ());
        assert!(short.is_none() && long.is_none());
    }

    #[test]
    fn parts_of_a_parquet_file_are_put_together() {
        let folder = tempfile::tempdir().unwrap();
        let rows = 300_000;
        let write = |name: &str, group: usize, edit: &dyn Fn(&mut [f64], &mut [i64])| {
            let mut close: Vec<f64> = (0..rows).map(|row| (row % 977) as f64).collect();
            let mut time: Vec<i64> = (0..rows as i64).map(|row| 1_700_000_000 + row * 60).collect();
            edit(&mut close, &mut time);
            let columns =
                vec![Column::new("time".into(), time), Column::new("close".into(), close)];
            let mut frame = DataFrame::new(rows, columns).unwrap();
            let path = folder.path().join(name);
            let file = std::fs::File::create(&path).unwrap();
            ParquetWriter::new(file).with_row_group_size(Some(group)).finish(&mut frame).unwrap();
            path
        };
        let zone = Zone::named(None).unwrap();
        let read_all = |paths: &[&std::path::PathBuf]| {
            let mut config = DataConfig::new(paths[0]);
            config.path.0 = paths.iter().map(|path| (*path).clone()).collect();
            config.columns.time_unit = crate::TimeUnit::S;
            let files = inputs(&config).unwrap();
            let short = read(&files, &config, &zone, Sink::Memory, &|_| ()).ok();
            let key = Key::builder("test", 1).field("files", paths.len().to_le_bytes()).finish();
            let cache = folder.path().join("cache");
            let stored = read(
                &files,
                &config,
                &zone,
                Sink::store(&cache, key, &AtomicBool::new(false)),
                &|_| (),
            )
            .ok();
            assert!(short == stored);
            short
        };
        let nothing = |_: &mut [f64], _: &mut [i64]| ();
        let [good, other] =
            ["good.parquet", "other.parquet"].map(|name| write(name, 7000, &nothing));
        let (set, checks) = read_all(&[&good]).unwrap();
        let values = &set.series()[0].values.all();
        assert!(values.iter().enumerate().all(|(row, value)| *value == (row % 977) as f64));
        assert_eq!((checks.rows, checks.segments, checks.findings.len()), (300_000, 1, 0));
        let (two, checks) = read_all(&[&good, &other]).unwrap();
        assert_eq!((two.series().len(), checks.series, checks.rows), (2, 2, 600_000));
        assert_eq!(two.series()[1].values, two.series()[0].values);
        // One group, whose columns are decoded at once.
        let whole = write("whole.parquet", rows, &nothing);
        let (one, _) = read_all(&[&whole]).unwrap();
        assert_eq!(one.series()[0].values, set.series()[0].values);
        // The last row; and the first of the second part, behind a time like it.
        let second = PART.div_ceil(7000) * 7000;
        let missing = write("missing.parquet", 7000, &|close, _| close[rows - 1] = f64::NAN);
        let twice = write("twice.parquet", 7000, &|_, time| time[second] = time[second - 1]);
        for bad in [missing, twice] {
            assert!(read_all(&[&bad]).is_none() && read_all(&[&good, &bad]).is_none());
        }
    }

    #[test]
    fn decimals_are_the_numbers_that_are_written_on_both_ways() {
        let folder = tempfile::tempdir().unwrap();
        let price = |row: usize| format!("{}.{:02}", row % 977, row % 100).parse().unwrap();
        let prices: Vec<f64> = (0..1000).map(price).collect();
        let time: Vec<i64> = (0..1000).map(|row| 1_700_000_000 + row * 60).collect();
        let close = Column::new("close".into(), prices.clone());
        let close = close.cast(&DataType::Decimal(12, 2)).unwrap();
        let columns = vec![Column::new("time".into(), time), close];
        let mut table = DataFrame::new(1000, columns).unwrap();
        let paths = ["a.parquet", "a.arrow"].map(|name| folder.path().join(name));
        let [parquet, arrow] = paths.each_ref().map(|path| std::fs::File::create(path).unwrap());
        ParquetWriter::new(parquet).with_row_group_size(Some(300)).finish(&mut table).unwrap();
        IpcWriter::new(arrow).finish(&mut table).unwrap();
        let zone = Zone::named(None).unwrap();
        for path in &paths {
            let mut config = DataConfig::new(path);
            config.columns.time_unit = crate::TimeUnit::S;
            let files = inputs(&config).unwrap();
            let short = read(&files, &config, &zone, Sink::Memory, &|_| ()).ok().unwrap();
            assert_eq!(*short.0.series()[0].values.all(), *prices);
            let loaded = frame::load(&files[0], &config).unwrap();
            let raw = loaded.reading(&zone).series().unwrap();
            let long = crate::clean::clean(raw, config.interval, &config.checks).unwrap();
            assert!(short == long, "{}", path.display());
        }
    }

    #[test]
    fn any_defect_anywhere_goes_the_long_way() {
        let rows = ROWS + 10;
        for at in [0, 1, 700, ROWS - 1, ROWS, rows - 1] {
            let check = |what: &str, field: usize, value: &dyn Fn(&str) -> String| {
                let text = bars(rows, |row, fields| {
                    if row == at {
                        fields[field] = value(&fields[field]);
                    }
                });
                let [short, _] = ways(&text, |_| ());
                assert!(short.is_none(), "{what} in row {at}");
            };
            check("a missing value", 2, &|_| String::new());
            check("a value beyond f32", 4, &|_| "1e39".to_owned());
            check("a low high", 2, &|_| "1".to_owned());
            check("a high low", 3, &|_| "1000".to_owned());
            check("another time", 0, &|_| "2023-12-31T23:00".to_owned());
        }
        let constant = bars(rows, |_, fields| {
            fields[1..].iter_mut().for_each(|field| *field = "5".to_owned());
        });
        assert!(ways(&constant, |_| ())[0].is_none());
        let [short, long] = ways(&bars(50, |_, _| ()), |config| {
            config.interval = Interval::from_microseconds(3_600_000_000);
        });
        assert!(short.is_none() && long.is_none(), "a declared interval that contradicts");
    }
}
