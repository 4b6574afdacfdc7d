//! The short way for one series without a defect: checked and laid out in one pass over its columns.
//!
//! It finds out whether there is any defect, and not which: as soon as anything is odd, the table goes
//! the long way, through [`clean`](crate::clean), whose result for such a series is the same.

use std::ops::Range;

use firebox_core::{Channel, Role, Series, SeriesSet, StepLabels};
use polars::prelude::*;
use rayon::prelude::*;

use crate::frame::Reading;
use crate::{Checks, DataError, Interval};

/// Rows that one thread checks before it looks for more work: 512 KiB of four channels.
const ROWS: usize = 1 << 14;
/// Channels beyond which nobody counts: their differences are kept as the bits of a number.
const MOST_CHANNELS: usize = 64;

/// The series of a table and what is to be said of it; none if it has to go the long way.
///
/// # Errors
///
/// As the long way has them: when times cannot be read.
pub(crate) fn clean(reading: &Reading<'_>) -> Result<Option<(SeriesSet, Checks)>, DataError> {
    let mapping = reading.mapping;
    let (channels, steps) = (&mapping.channels, reading.frame.height());
    let alone = mapping.series.is_none() && mapping.label.is_none();
    if !alone || steps < 2 || channels.len() > MOST_CHANNELS {
        return Ok(None);
    }
    let mut columns = Vec::with_capacity(channels.len());
    for channel in channels {
        match Pieces::of(reading.column(&channel.name)?) {
            Some(pieces) => columns.push(pieces),
            None => return Ok(None),
        }
    }
    let times = mapping.time.as_ref().map(|name| reading.times(name)).transpose()?;
    let declared = reading.config.interval.map(Interval::microseconds);
    let interval = times.as_deref().map(|times| times[1].wrapping_sub(times[0]));
    if let (Some(times), Some(interval)) = (&times, interval) {
        let even = |part: &[i64]| {
            part.windows(2)
                .fold(true, |even, pair| even & (pair[1].wrapping_sub(pair[0]) == interval))
        };
        // Parts overlap by one step, so that no difference is left out.
        let starts = (0..steps).into_par_iter().step_by(ROWS);
        let all = starts.map(|start| even(&times[start..(start + ROWS + 1).min(steps)]));
        if interval <= 0 || declared.is_some_and(|known| known != interval) || !all.all(|even| even)
        {
            return Ok(None);
        }
    }
    let Some(values) = interleaved(&columns, channels, steps) else { return Ok(None) };
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
    Ok(Some((SeriesSet::new(channels.clone(), vec![], vec![series])?, checks)))
}

/// A column of f64 without a missing value, in the pieces that it was read in.
struct Pieces<'a>(Vec<(usize, &'a [f64])>);

impl<'a> Pieces<'a> {
    fn of(column: &'a Column) -> Option<Self> {
        let numbers = column.f64().ok().filter(|numbers| numbers.null_count() == 0)?;
        let mut start = 0;
        let pieces = numbers.downcast_iter().map(|chunk| {
            let values = chunk.values().as_slice();
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

/// The columns as rows; none if a value does not fit f32, a bar is out of order, or a channel has one
/// value only.
fn interleaved(columns: &[Pieces<'_>], channels: &[Channel], steps: usize) -> Option<Vec<f64>> {
    let width = columns.len();
    let firsts: Vec<f64> = columns.iter().map(Pieces::first).collect();
    let bars = Bars::of(channels);
    let mut values = vec![0.0; steps * width];
    let blocks = values.par_chunks_mut(ROWS * width).enumerate();
    let varies = blocks.map(|(block, out)| {
        let rows = block * ROWS..(block * ROWS + out.len() / width);
        let (mut fits, mut varies) = (true, 0u64);
        for (channel, (column, first)) in columns.iter().zip(&firsts).enumerate() {
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
    let varies = blocks_agree(varies)?;
    let all = u64::MAX >> (MOST_CHANNELS - width);
    (varies == all).then_some(values)
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
    use crate::time::Zone;
    use crate::{DataConfig, frame};
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
        [clean(&reading).unwrap(), long]
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
            check("infinity", 1, &|_| "inf".to_owned());
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
