//! The short way for one series without a defect: checked and laid out in one pass over its columns.
//!
//! It finds out whether there is any defect, and not which: as soon as anything is odd, the table goes
//! the long way, through [`clean`](crate::clean), whose result for such a series is the same.

use std::ops::Range;

use firebox_core::{Channel, Role, Series, SeriesSet, StepLabels};
use polars::prelude::*;
use rayon::prelude::*;

use crate::frame::{self, Reading, Table};
use crate::input::Input;
use crate::mapping::Mapping;
use crate::time::Zone;
use crate::{Checks, DataConfig, Interval};

/// Rows that one thread checks before it looks for more work: 512 KiB of four channels.
const ROWS: usize = 1 << 14;
/// Channels beyond which nobody counts: their differences are kept as the bits of a number.
const MOST_CHANNELS: usize = 64;

/// The series of a table and what is to be said of it; none if it has to go the long way.
pub(crate) fn clean(table: &Table<'_>, zone: &Zone) -> Option<(SeriesSet, Checks)> {
    let reading = table.reading(zone);
    let mut short = Short::new(&reading, reading.frame.height())?;
    short.add(&reading)?;
    short.finish(&reading)
}

/// The same of a Parquet file, some groups of rows at a time, so that no more of it is in memory than
/// the series and one part.
pub(crate) fn clean_by_parts(
    input: &Input,
    config: &DataConfig,
    zone: &Zone,
) -> Option<(SeriesSet, Checks)> {
    let rows = frame::row_groups(input)?;
    let total: usize = rows.iter().sum();
    let mut groups = rows.into_iter().peekable();
    let (mut start, mut short) = (0, None::<Short>);
    while groups.peek().is_some() {
        let mut count = 0;
        while count < PART
            && let Some(group) = groups.next()
        {
            count += group;
        }
        // Whatever is wrong with a part is found again on the long way, and told from there.
        let table = frame::load_part(input, config, start..start + count).ok()?;
        let reading = table.reading(zone);
        if short.is_none() {
            short = Some(Short::new(&reading, total)?);
        }
        short.as_mut()?.add(&reading)?;
        start += count;
        if groups.peek().is_none() {
            return short?.finish(&reading);
        }
    }
    None
}

/// Rows of a part: enough to keep all threads busy.
const PART: usize = 1 << 20;

/// A series as far as its rows have been added.
struct Short {
    times: Option<Vec<i64>>,
    values: Vec<f64>,
    steps: usize,
    /// Rows that are there.
    rows: usize,
    /// First value of each channel.
    firsts: Vec<f64>,
    /// Channels that have another value than their first, as bits.
    varies: u64,
}

impl Short {
    fn new(reading: &Reading<'_>, steps: usize) -> Option<Self> {
        let Mapping { time, series, label, channels, .. } = reading.mapping;
        let alone = series.is_none() && label.is_none();
        if !alone || steps < 2 || channels.len() > MOST_CHANNELS {
            return None;
        }
        let times = time.as_ref().map(|_| Vec::with_capacity(steps));
        let values = vec![0.0; steps * channels.len()];
        Some(Self { times, values, steps, rows: 0, firsts: vec![], varies: 0 })
    }

    /// Adds the rows of a table; none if one has a defect.
    fn add(&mut self, reading: &Reading<'_>) -> Option<()> {
        let Mapping { time, channels, .. } = reading.mapping;
        let width = channels.len();
        let columns: Vec<Pieces<'_>> = channels
            .iter()
            .map(|channel| Pieces::of(reading.column(&channel.name).ok()?))
            .collect::<Option<_>>()?;
        if self.firsts.is_empty() {
            self.firsts = columns.iter().map(Pieces::first).collect();
        }
        if let (Some(times), Some(name)) = (&mut self.times, time) {
            let part = reading.times(name).ok()?;
            match times.is_empty() {
                true if part.len() == self.steps => *times = part,
                _ => times.extend(part),
            }
        }
        let rows = reading.frame.height();
        let out = self.values.get_mut(self.rows * width..(self.rows + rows) * width)?;
        self.varies |= interleave(&columns, &Bars::of(channels), &self.firsts, out)?;
        self.rows += rows;
        Some(())
    }

    /// The series; none if a channel is constant or times are not even.
    fn finish(self, reading: &Reading<'_>) -> Option<(SeriesSet, Checks)> {
        let Self { times, values, steps, rows, varies, .. } = self;
        let mapping = reading.mapping;
        let channels = &mapping.channels;
        let all = u64::MAX >> (MOST_CHANNELS - channels.len());
        let declared = reading.config.interval.map(Interval::microseconds);
        let interval = times.as_deref().map(|times| times[1].wrapping_sub(times[0]));
        let contradicts = declared.is_some() && interval.is_some() && declared != interval;
        let uneven = times.as_deref().is_some_and(|times| !even(times));
        if rows != steps || varies != all || contradicts || uneven {
            return None;
        }
        let span = times.as_ref().map(|times| [times[0], times[steps - 1]]);
        let series = Series {
            name: reading.input.stem(),
            time: times.unwrap_or_else(|| (0..steps as i64).collect()),
            values,
            labels: StepLabels::None,
            segments: std::iter::once(0..steps).collect(),
            origin: reading.input.origin,
        };
        let checks = Checks {
            rows: steps as u64,
            steps: steps as u64,
            series: 1,
            segments: 1,
            time_column: mapping.time.clone(),
            label_like: mapping.label_like.clone(),
            channels: channels.clone(),
            interval: interval.and_then(Interval::from_microseconds),
            interval_declared: declared.is_some(),
            span,
            ..Checks::default()
        };
        let set = SeriesSet::new(channels.clone(), vec![], vec![series]).ok()?;
        Some((set, checks))
    }
}

/// Whether every time lies as far behind the one before it as the second behind the first.
fn even(times: &[i64]) -> bool {
    let interval = times[1].wrapping_sub(times[0]);
    let part = |start: usize| {
        // Parts overlap by one step, so that no difference is left out.
        let part = &times[start..(start + ROWS + 1).min(times.len())];
        part.windows(2).fold(true, |even, pair| even & (pair[1].wrapping_sub(pair[0]) == interval))
    };
    interval > 0 && (0..times.len()).into_par_iter().step_by(ROWS).all(part)
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
    let blocks = values.par_chunks_mut(ROWS * width).enumerate();
    let varies = blocks.map(|(block, out)| {
        let rows = block * ROWS..(block * ROWS + out.len() / width);
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

    /// What the short way and the long way say.
    fn both(text: &str, config: impl Fn(&mut DataConfig)) -> [Found; 2] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("bars.csv");
        std::fs::write(&file, text).unwrap();
        let mut settings = DataConfig::new(&file);
        config(&mut settings);
        let inputs = inputs(&settings).unwrap();
        let zone = Zone::named(None).unwrap();
        let table = frame::load(&inputs[0], &settings).unwrap();
        let reading = table.reading(&zone);
        let mut raw = Raw::default();
        raw.add(reading.series().unwrap()).unwrap();
        let long = crate::clean::clean(raw, settings.interval, &settings.checks).ok();
        [clean(&table, &zone), long]
    }

    #[test]
    fn both_ways_say_the_same_of_a_clean_series() {
        for rows in [2, 3, 1000, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS + 77] {
            let text = bars(rows, |_, _| ());
            let [short, long] = both(&text, |_| ());
            assert!(short.is_some() && short == long, "{rows} rows");
        }
        let untimed: Vec<String> = bars(50, |_, _| ())
            .lines()
            .map(|line| line.split_once(',').unwrap().1.to_owned())
            .collect();
        let [short, long] = both(&untimed.join("\n"), |_| ());
        assert!(short.is_some() && short == long);
        let [short, long] = both(&bars(50, |_, _| ()), |config| {
            config.interval = Interval::from_microseconds(60_000_000);
        });
        assert!(short.is_some() && short == long);
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
            let mut config = DataConfig::new(&path);
            config.columns.time_unit = crate::TimeUnit::S;
            config
        };
        let config = write("good.parquet", None);
        let files = inputs(&config).unwrap();
        let zone = Zone::named(None).unwrap();
        let table = frame::load(&files[0], &config).unwrap();
        let whole = clean(&table, &zone);
        assert!(whole.is_some() && whole == clean_by_parts(&files[0], &config, &zone));
        let config = write("bad.parquet", Some(299_999));
        let files = inputs(&config).unwrap();
        assert!(clean_by_parts(&files[0], &config, &zone).is_none());
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
                let [short, _] = both(&text, |_| ());
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
        assert!(both(&constant, |_| ())[0].is_none());
        let [short, long] = both(&bars(50, |_, _| ()), |config| {
            config.interval = Interval::from_microseconds(3_600_000_000);
        });
        assert!(short.is_none() && long.is_none(), "a declared interval that contradicts");
    }
}
