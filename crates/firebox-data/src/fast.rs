//! The short way for tables that have at most gaps in time: checked and laid out part by part, so that
//! no more of a file is in memory than one part, and the series lie where a [`Sink`] puts them.
//!
//! It finds out whether there is any other defect, and not which: as soon as anything is odd, all goes
//! the long way, through [`clean`](crate::clean::clean), whose result for such series is the same.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use firebox_core::{Backing, Channel, Key, Role, Series, SeriesSet, StepLabels};
use polars::prelude::*;
use rayon::prelude::*;

use crate::clean;
use crate::frame::Reading;
use crate::input::Input;
use crate::mapping::Mapping;
use crate::parts;
use crate::plain::Mapped;
use crate::raw::{Piece, RawLabels, RawSeries, Rows};
use crate::store::{About, Entry, LabelKind, Making};
use crate::time::Zone;
use crate::work::Work;
use crate::{Checks, DataConfig, DataError, GapPolicy, Interval};

/// Rows that one thread checks before it looks for more work: 512 KiB of four channels.
const ROWS: usize = 1 << 14;
/// Rows whose values the nearest cache holds while they are laid out column by column and looked at.
const NEAR: usize = 512;
/// Channels beyond which nobody counts: their differences are kept as the bits of a number.
const MOST_CHANNELS: usize = 64;

/// Rows of a part, which keep all threads busy; a second one is decoded meanwhile.
const PART: usize = 1 << 19;

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
    Store { cache: &'a Path, key: Key, making: Option<Box<Making>>, buffer: Vec<f64> },
}

impl<'a> Sink<'a> {
    pub(crate) fn store(cache: &'a Path, key: Key) -> Self {
        Self::Store { cache, key, making: None, buffer: vec![] }
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
    // Beside the whole series in memory, a larger part does not matter, and each has its price.
    let at_once = if matches!(sink, Sink::Memory) { PART } else { PART / 2 };
    for (index, input) in inputs.iter().enumerate() {
        let mut short = None::<Short>;
        parts::each(input, config, at_once, |table, rows| {
            let reading = table.reading(zone);
            let same = first.get_or_insert_with(|| reading.mapping.clone()) == reading.mapping;
            if short.is_none() {
                let rows = if matches!(sink, Sink::Memory) { rows } else { 0 };
                short = Some(known(Short::new(&reading, rows).filter(|_| same))?);
            }
            known(short.as_mut())?.add(&reading, &mut sink)
        })?;
        read.push(known(short.and_then(Short::finish))?);
        done(index + 1);
    }
    let mapping = known(first)?;
    let whole = finish(read, inputs, config, &mapping, &mut sink)?;
    let channels = mapping.channels;
    match sink {
        Sink::Memory => {
            let series = whole.series.into_iter().map(|(series, _)| series).collect();
            let set = SeriesSet::new(channels, vec![], series).map_err(DataError::from)?;
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

/// A series as far as its rows have been added.
struct Short {
    /// Values and times that stay in memory.
    values: Vec<f64>,
    times: Vec<i64>,
    /// Rows that are there.
    rows: usize,
    /// First value of each channel.
    firsts: Vec<f64>,
    /// Channels that have another value than their first, as bits.
    varies: u64,
    all: u64,
    /// First and last time.
    span: Option<[i64; 2]>,
    interval: Option<i64>,
    /// Whether every time lies as far behind the one before it as the second behind the first.
    even: bool,
}

impl Short {
    /// `rows` is how many there will be, if that is known.
    fn new(reading: &Reading<'_>, rows: usize) -> Option<Self> {
        let Mapping { time, series, label, channels, .. } = reading.mapping;
        let alone = series.is_none() && label.is_none();
        (alone && channels.len() <= MOST_CHANNELS).then(|| Self {
            values: vec![0.0; rows * channels.len()],
            times: Vec::with_capacity(if time.is_some() { rows } else { 0 }),
            rows: 0,
            firsts: vec![],
            varies: 0,
            all: u64::MAX >> (MOST_CHANNELS - channels.len()),
            span: None,
            interval: None,
            even: true,
        })
    }

    /// Adds the rows of a table.
    fn add(&mut self, reading: &Reading<'_>, sink: &mut Sink<'_>) -> Result<(), Stop> {
        let Mapping { time, channels, .. } = reading.mapping;
        let width = channels.len();
        let columns: Vec<Pieces<'_>> = known(
            channels
                .iter()
                .map(|channel| Pieces::of(reading.column(&channel.name).ok()?))
                .collect::<Option<_>>(),
        )?;
        if self.firsts.is_empty() {
            self.firsts = columns.iter().map(Pieces::first).collect();
        }
        let rows = reading.frame.height();
        let times = match time {
            Some(name) => known(reading.times(name).ok())?,
            None => (self.rows as i64..(self.rows + rows) as i64).collect(),
        };
        known(self.follow(&times))?;
        let bars = Bars::of(channels);
        match sink {
            Sink::Memory => {
                let end = (self.rows + rows) * width;
                self.values.resize(end.max(self.values.len()), 0.0);
                let out = &mut self.values[self.rows * width..end];
                self.varies |= known(interleave(&columns, &bars, &self.firsts, out))?;
                // The first of a file of unknown length may be all of it.
                match self.times.capacity() {
                    0 => self.times = times,
                    _ => self.times.extend(times),
                }
            }
            Sink::Store { cache, making, buffer, .. } => {
                buffer.resize(rows * width, 0.0);
                self.varies |= known(interleave(&columns, &bars, &self.firsts, buffer))?;
                if making.is_none() {
                    *making = Some(Box::new(Making::begin(cache, width)?));
                }
                let making = known(making.as_mut())?;
                making.values.push(buffer)?;
                making.time.push(&times)?;
            }
        }
        self.rows += rows;
        Ok(())
    }

    /// Looks at the times that come next; none if they do not increase.
    fn follow(&mut self, times: &[i64]) -> Option<()> {
        let (first, last) = (*times.first()?, *times.last()?);
        if self.interval.is_none() && times.len() > 1 && self.span.is_none() {
            self.interval = Some(times[1].wrapping_sub(times[0]));
        }
        if let Some([_, before]) = self.span {
            let interval = *self.interval.get_or_insert(first.wrapping_sub(before));
            self.even &= first.wrapping_sub(before) == interval;
            (first > before).then_some(())?;
        }
        let interval = self.interval.unwrap_or(1);
        let part = |start: usize| {
            // Parts overlap by one step, so that no difference is left out.
            let part = &times[start..(start + ROWS + 1).min(times.len())];
            part.windows(2).fold((true, true), |(rising, even), pair| {
                (rising & (pair[1] > pair[0]), even & (pair[1].wrapping_sub(pair[0]) == interval))
            })
        };
        let both = |a: (bool, bool), b: (bool, bool)| (a.0 & b.0, a.1 & b.1);
        let blocks = (0..times.len()).into_par_iter().step_by(ROWS);
        let (rising, even) = blocks.map(part).reduce(|| (true, true), both);
        self.even &= even;
        self.span = Some([self.span.map_or(first, |[start, _]| start), last]);
        rising.then_some(())
    }

    /// The series; none if it is too short or a channel is constant.
    fn finish(self) -> Option<Self> {
        (self.rows > 1 && self.varies == self.all).then_some(self)
    }
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
    let first = read.first().and_then(|short| short.interval);
    let timed = mapping.time.is_some();
    let even = read.iter().all(|short| short.even && short.interval == first);
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
            work.cut(vec![], short.rows);
        }
        work.counts.segments = work.segments.len() as u64;
    }
    let findings = clean::findings(&works, &mapping.channels, &[], &config.checks);
    let spans = read.iter().filter_map(|short| short.span);
    let checks = Checks {
        time_column: mapping.time.clone(),
        label_like: mapping.label_like.clone(),
        interval: interval.and_then(Interval::from_microseconds),
        interval_declared: declared.is_some(),
        span: spans.reduce(|a, b| [a[0].min(b[0]), a[1].max(b[1])]).filter(|_| timed),
        ..clean::summary(&works, &mapping.channels, findings)
    };
    let series = read.into_iter().zip(works).zip(inputs).map(|((short, work), input)| {
        let (name, origin, segments) = (work.raw.name, input.origin, work.segments);
        let labels = LabelKind::None;
        let (name_kept, kept) = (name.clone(), segments.clone());
        let entry = Entry { name: name_kept, origin, steps: short.rows, segments: kept, labels };
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
        pieces: vec![Piece { path, steps: short.rows, rows: Rows::From(1) }],
    };
    let mut work = Work::new(raw, channels);
    (work.counts.rows, work.counts.steps) = (short.rows as u64, short.rows as u64);
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
            start += short.rows;
            &stored.all()[start - short.rows..start]
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
        known((cuts.is_empty() || config.checks.gaps == GapPolicy::Split).then_some(()))?;
        work.cut(cuts, times.len());
    }
    Ok(interval)
}

/// A column of f64 without a missing value, in the pieces that it was read in.
struct Pieces<'a>(Vec<(usize, &'a [f64])>);

impl<'a> Pieces<'a> {
    fn of(column: &'a Column) -> Option<Self> {
        let numbers = column.f64().ok().filter(|numbers| numbers.null_count() == 0)?;
        let mut start = 0;
        let pieces = numbers.downcast_iter().map(|chunk| {
            let values = &chunk.values()[..];
            start += values.len();
            (start - values.len(), values)
        });
        Some(Self(pieces.collect()))
    }

    /// Calls `each` with the place and the values of what lies within these rows.
    fn within(&self, rows: Range<usize>, mut each: impl FnMut(usize, &[f64])) {
        let first = self.0.partition_point(|(start, values)| start + values.len() <= rows.start);
        for (start, values) in &self.0[first..] {
            let end = rows.end.min(start + values.len());
            let begin = rows.start.max(*start);
            if begin >= end {
                break;
            }
            each(begin - rows.start, &values[begin - start..end - start]);
        }
    }

    fn first(&self) -> f64 {
        self.0.iter().find_map(|(_, values)| values.first()).copied().unwrap_or(f64::NAN)
    }
}

/// Writes columns as rows and says which channels have another value than their first; none if a value
/// does not fit f32, or a bar is out of order.
fn interleave(
    columns: &[Pieces<'_>],
    bars: &Bars,
    firsts: &[f64],
    values: &mut [f64],
) -> Option<u64> {
    let width = columns.len();
    let near = |start: usize, out: &mut [f64]| {
        let rows = start..start + out.len() / width;
        let (mut fits, mut varies) = (true, 0u64);
        for (channel, (column, first)) in columns.iter().zip(firsts).enumerate() {
            column.within(rows.clone(), |place, part| {
                let out = out[place * width + channel..].iter_mut().step_by(width);
                let (mut inside, mut other) = (true, false);
                for (out, value) in out.zip(part) {
                    *out = *value;
                    inside &= value.abs() <= f64::from(f32::MAX);
                    other |= value != first;
                }
                fits &= inside;
                varies |= u64::from(other) << channel;
            });
        }
        (fits && bars.in_order(out, width)).then_some(varies)
    };
    let blocks = values.par_chunks_mut(ROWS * width).enumerate();
    let varies = blocks.map(|(block, out)| {
        let parts = out.chunks_mut(NEAR * width).enumerate();
        let parts = parts.map(|(part, out)| near(block * ROWS + part * NEAR, out));
        parts.reduce(|a, b| Some(a? | b?)).unwrap_or(Some(0))
    });
    blocks_agree(varies)
}

/// What differs in any block; none if one is not in order.
fn blocks_agree(blocks: impl ParallelIterator<Item = Option<u64>>) -> Option<u64> {
    blocks.try_reduce(|| 0, |a, b| Some(a | b))
}

/// Where the prices of a bar stand, as far as their order is checked.
struct Bars {
    high: Option<(usize, Vec<usize>)>,
    low: Option<(usize, Vec<usize>)>,
}

impl Bars {
    fn of(channels: &[Channel]) -> Self {
        let role = |role| channels.iter().position(|channel| channel.role == role);
        // As in `Work::ohlc`: the other extreme counts only where nothing else can.
        let beside = |this, other| {
            let inner: Vec<usize> =
                [Role::Open, Role::Close].into_iter().filter_map(role).collect();
            let prices = if inner.is_empty() { role(other).into_iter().collect() } else { inner };
            role(this).filter(|_| !prices.is_empty()).map(|extreme| (extreme, prices))
        };
        Self { high: beside(Role::High, Role::Low), low: beside(Role::Low, Role::High) }
    }

    /// Whether each high is at least, and each low at most, the prices beside it.
    fn in_order(&self, rows: &[f64], width: usize) -> bool {
        let mut right = true;
        for row in rows.chunks_exact(width) {
            if let Some((high, prices)) = &self.high {
                prices.iter().for_each(|price| right &= row[*high] >= row[*price]);
            }
            if let Some((low, prices)) = &self.low {
                prices.iter().for_each(|price| right &= row[*low] <= row[*price]);
            }
        }
        right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;
    use crate::input::inputs;
    use crate::raw::Raw;
    use firebox_core::Stream;
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
        assert!(in_memory == short(Sink::store(&folder.path().join("cache"), key)));
        let table = frame::load(&inputs[0], &settings).unwrap();
        let reading = table.reading(&zone);
        let mut raw = Raw::default();
        raw.add(reading.series().unwrap()).unwrap();
        let long = crate::clean::clean(raw, settings.interval, &settings.checks).ok();
        [in_memory, long]
    }

    #[test]
    fn both_ways_say_the_same_of_a_clean_series() {
        for rows in [2, 3, 1000, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS + 77] {
            let text = bars(rows, |_, _| ());
            let [short, long] = ways(&text, |_| ());
            assert!(short.is_some() && short == long, "{rows} rows");
        }
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
        let write = |name: &str, bad: Option<usize>| {
            let rows = 300_000;
            let mut close: Vec<f64> = (0..rows).map(|row| (row % 977) as f64).collect();
            bad.iter().for_each(|row| close[*row] = f64::NAN);
            let time: Vec<i64> = (0..rows as i64).map(|row| 1_700_000_000 + row * 60).collect();
            let columns =
                vec![Column::new("time".into(), time), Column::new("close".into(), close)];
            let mut frame = DataFrame::new(rows, columns).unwrap();
            let path = folder.path().join(name);
            let file = std::fs::File::create(&path).unwrap();
            ParquetWriter::new(file).with_row_group_size(Some(7000)).finish(&mut frame).unwrap();
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
            let stored = read(&files, &config, &zone, Sink::store(&cache, key), &|_| ()).ok();
            assert!(short == stored);
            short
        };
        let (good, other) = (write("good.parquet", None), write("other.parquet", None));
        let (set, checks) = read_all(&[&good]).unwrap();
        let values = &set.series()[0].values;
        assert!(values.iter().enumerate().all(|(row, value)| *value == (row % 977) as f64));
        assert_eq!((checks.rows, checks.segments, checks.findings.len()), (300_000, 1, 0));
        let (two, checks) = read_all(&[&good, &other]).unwrap();
        assert_eq!((two.series().len(), checks.series, checks.rows), (2, 2, 600_000));
        assert_eq!(two.series()[1].values, two.series()[0].values);
        let bad = write("bad.parquet", Some(299_999));
        assert!(read_all(&[&bad]).is_none() && read_all(&[&good, &bad]).is_none());
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
