//! Values so far from all others of their channel that its scale is made by them and not by the others: a wrong reading, or
//! a code for a missing value, such as -9999. They are told by quartiles, which nothing rare can move. No value is changed.

use std::ops::Range;

use rayon::prelude::*;

use crate::{Channel, SeriesSet, Steps, Windows};

/// Interquartile ranges beyond a quartile from which on a value is told of, once or often. Tukey calls what lies beyond 3
/// of them far out (Exploratory Data Analysis, 1977); honest data with heavy tails have many such values. A choice.
const FAR: f64 = 1000.0;

/// The same of one value that is there again and again, as a code is. Codes of several categories are several values. A
/// choice.
const APART: f64 = 10.0;

/// Steps that have it at least. A choice.
const AGAIN: usize = 3;

/// Different values out there at most: where there are more, the channel has heavy tails, or is mostly at rest. A choice.
const DIFFERENT: usize = 16;

/// Share of the squares around the median beyond which they are made by such values: by all that are [`FAR`] out, or by one
/// that is [`APART`]. A choice.
const RULED: f64 = 0.5;

/// Fewest steps whose quartiles say anything. A choice.
const FEWEST: usize = 50;

/// Places that quartiles are taken from in data of more steps than the sample has: their shares are right to one percent. A choice.
const PLACES: usize = 2048;

/// Steps of each, which lie in one page of a mapped file, about.
const TOGETHER: usize = 16;

/// Values of all channels that are held for it, as far as there are places enough left: 32 MB.
const SAMPLED: usize = 4 << 20;

/// Parts that are looked through side by side: a fixed number, so that all machines find the same.
const PARTS: usize = 16;

/// An odd number near 2⁶⁴ divided by the golden ratio: its multiples, modulo 2⁶⁴, are spread evenly.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c55;

/// A value of a part that rules the scale of its channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Outlier {
    /// The channel.
    pub channel: String,
    /// The value: the farthest, or one nearer that repeats and rules by itself.
    pub value: f64,
    /// Steps that have it.
    pub count: usize,
    /// Steps with another value that is as far out.
    pub others: usize,
    /// Steps of the part.
    pub steps: usize,
    /// The first that has it: index of its series, and step.
    pub first: (usize, usize),
    /// Half of all values lie between these, about.
    pub quartiles: [f64; 2],
}

/// Those of the steps that some windows cover, one a channel at most.
pub fn outliers(part: &Windows) -> Vec<Outlier> {
    let set = part.set();
    let steps = Steps::of_windows(set, part.windows());
    let runs = steps.runs();
    let all: usize = runs.iter().map(|(_, steps)| steps.len()).sum();
    if all < FEWEST {
        return vec![];
    }
    let fences = fences(set, runs, all);
    let cut = parts(runs, all.div_ceil(PARTS));
    let looks: Vec<Vec<Look>> = cut.par_iter().map(|runs| look(set, &fences, runs)).collect();
    let mut found = vec![Look::default(); fences.len()];
    for look in looks {
        found.iter_mut().zip(look).for_each(|(all, part)| all.join(part));
    }
    let channels = set.channels().iter().enumerate();
    let outlier = |((place, channel), (fence, look)): ((usize, &Channel), (&Fence, Look))| {
        let (seen, others) = look.outlier(fence, |seen| is_still(set, place, seen))?;
        let Seen { value, count, first } = seen;
        let (channel, quartiles) = (channel.name.clone(), fence.quartiles);
        Some(Outlier { channel, value, count, others, steps: all, first, quartiles })
    };
    channels.zip(fences.iter().zip(found)).filter_map(outlier).collect()
}

/// A run of steps of a series.
type Run = (usize, Range<usize>);

/// The same steps in parts of so many, in their order.
fn parts(runs: &[Run], most: usize) -> Vec<Vec<Run>> {
    let (mut parts, mut part, mut room) = (vec![], vec![], most);
    for (series, steps) in runs {
        let mut start = steps.start;
        while start < steps.end {
            let end = steps.end.min(start + room);
            part.push((*series, start..end));
            room -= end - start;
            start = end;
            if room == 0 {
                parts.push(std::mem::take(&mut part));
                room = most;
            }
        }
    }
    parts.push(part);
    parts
}

/// Where the values of a channel lie, and from where on they are out there.
struct Fence {
    median: f64,
    quartiles: [f64; 2],
    /// Least and greatest value that is not [`APART`].
    apart: [f64; 2],
    /// The same of [`FAR`].
    far: [f64; 2],
}

impl Fence {
    /// Of some values of the channel. One without a spread has none beyond.
    fn of(values: &mut [f64]) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let [low, median, high] = [0.25, 0.5, 0.75].map(|share| quantile(values, share));
        let mut spread = high - low;
        if spread == 0.0 {
            // Mostly at rest: what it is otherwise says how large its values are.
            let moving: Vec<f64> = values.iter().copied().filter(|v| *v != median).collect();
            let [low, high] = [0.25, 0.75].map(|share| quantile(&moving, share));
            spread = high.max(median) - low.min(median);
        }
        let within = |ranges: f64| match spread > 0.0 && spread.is_finite() {
            true => [low - ranges * spread, high + ranges * spread],
            false => [f64::NEG_INFINITY, f64::INFINITY],
        };
        Self { median, quartiles: [low, high], apart: within(APART), far: within(FAR) }
    }
}

/// NaN of no values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = (sorted.len().saturating_sub(1) as f64 * share).round() as usize;
    sorted.get(place).copied().unwrap_or(f64::NAN)
}

/// The fences of all channels, by some steps of each of so many blocks of equal length. Where in its block they lie differs,
/// so that no period of the data hides from them.
fn fences(set: &SeriesSet, runs: &[Run], all: usize) -> Vec<Fence> {
    let width = set.channels().len();
    let block = all.div_ceil((SAMPLED / width / TOGETHER).clamp(8, PLACES)).max(1);
    let together = block.min(TOGETHER);
    let place = |number: usize| {
        let spread = (number as u64).wrapping_mul(SPREAD) >> 32;
        number * block + ((spread * (block - together + 1) as u64) >> 32) as usize
    };
    let mut columns = vec![vec![]; width];
    let mut before = 0;
    for (series, steps) in runs {
        let values = &set.series()[*series].values;
        let own = before..before + steps.len();
        for number in own.start / block..own.end.div_ceil(block) {
            let first = place(number);
            let (first, end) = (first.max(own.start), own.end.min(first + together));
            if first < end {
                let [first, end] =
                    [first, end].map(|step| (steps.start + step - own.start) * width);
                values.rows(first..end, width, |rows| {
                    for row in rows.chunks_exact(width) {
                        columns.iter_mut().zip(row).for_each(|(all, value)| all.push(*value));
                    }
                });
            }
        }
        before = own.end;
    }
    columns.into_par_iter().map(|mut column| Fence::of(&mut column)).collect()
}

/// A value, how many steps have it, and the first of them.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    value: f64,
    count: usize,
    first: (usize, usize),
}

impl Seen {
    /// The squares of all steps that have it around a centre.
    fn squares(&self, center: f64) -> f64 {
        self.count as f64 * (self.value - center).powi(2)
    }
}

/// The different values beyond a fence, in the order in which they come; none of more than [`DIFFERENT`].
#[derive(Clone, Default)]
struct Beyond {
    seen: Vec<Seen>,
    many: bool,
}

impl Beyond {
    fn add(&mut self, new: Seen) {
        if self.many {
            return;
        }
        if let Some(seen) = self.seen.iter_mut().find(|seen| seen.value == new.value) {
            seen.count += new.count;
        } else if self.seen.len() < DIFFERENT {
            self.seen.push(new);
        } else {
            *self = Self { seen: vec![], many: true };
        }
    }

    fn join(&mut self, other: Self) {
        self.many |= other.many;
        other.seen.into_iter().for_each(|seen| self.add(seen));
        if self.many {
            self.seen.clear();
        }
    }

    /// The squares of all of them around a centre.
    fn squares(&self, center: f64) -> f64 {
        self.seen.iter().map(|seen| seen.squares(center)).sum()
    }

    fn steps(&self) -> usize {
        self.seen.iter().map(|seen| seen.count).sum()
    }
}

/// What was seen of a channel.
#[derive(Clone, Default)]
struct Look {
    /// Of all values around the median.
    squares: f64,
    apart: Beyond,
    far: Beyond,
}

impl Look {
    fn join(&mut self, other: Self) {
        self.squares += other.squares;
        self.apart.join(other.apart);
        self.far.join(other.far);
    }

    /// The value that rules, and how many steps have others that are as far out. What is still in its series describes
    /// the series, and is no code.
    fn outlier(&self, fence: &Fence, is_still: impl Fn(&Seen) -> bool) -> Option<(Seen, usize)> {
        let rule = |squares: f64| squares > RULED * self.squares;
        let away = |seen: &&Seen| (seen.value - fence.median).abs();
        let of = |seen: &Seen, beyond: &Beyond| (*seen, beyond.steps() - seen.count);
        let farthest = self.far.seen.iter().max_by(|a, b| away(a).total_cmp(&away(b)));
        let far = farthest.filter(|&seen| rule(self.far.squares(fence.median)) && !is_still(seen));
        // More than half is made by one value at most.
        let mut apart = self.apart.seen.iter().filter(|seen| rule(seen.squares(fence.median)));
        let again = apart.find(|&seen| seen.count >= AGAIN && !is_still(seen));
        far.map(|seen| of(seen, &self.far)).or_else(|| again.map(|seen| of(seen, &self.apart)))
    }
}

/// Whether a channel never changes in the series that has the value first.
fn is_still(set: &SeriesSet, channel: usize, seen: &Seen) -> bool {
    let (width, series) = (set.channels().len(), &set.series()[seen.first.0]);
    let mut values = (0..series.len()).map(|step| series.values.at(step * width + channel));
    set.series().len() > 1 && values.all(|value| value == seen.value)
}

/// Looks through all values of some steps.
fn look(set: &SeriesSet, fences: &[Fence], part: &[Run]) -> Vec<Look> {
    let width = fences.len();
    let mut looks = vec![Look::default(); width];
    for (series, steps) in part {
        let mut step = steps.start;
        let values = &set.series()[*series].values;
        values.rows(steps.start * width..steps.end * width, width, |rows| {
            for row in rows.chunks_exact(width) {
                for ((look, fence), value) in looks.iter_mut().zip(fences).zip(row) {
                    look.squares += (value - fence.median).powi(2);
                    let is_beyond = |[low, high]: [f64; 2]| *value < low || *value > high;
                    if is_beyond(fence.apart) {
                        let seen = Seen { value: *value, count: 1, first: (*series, step) };
                        look.apart.add(seen);
                        if is_beyond(fence.far) {
                            look.far.add(seen);
                        }
                    }
                }
                step += 1;
            }
        });
    }
    looks
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Channel, Labels, Role, Series, SplitRule, Stream, WindowRule, split};

    /// What is found in series of two channels, of which the second always changes.
    fn found(series: &[Vec<f64>]) -> Vec<Outlier> {
        let made = series.iter().enumerate().map(|(index, values)| {
            let both = values.iter().enumerate().flat_map(|(at, value)| [*value, (at % 7) as f64]);
            Series::regular(format!("s{index}"), 0, 1, both.collect(), 2)
        });
        let channels = ["load", "other"].map(|name| Channel::new(name, Role::Other));
        let set = Arc::new(SeriesSet::new(channels.to_vec(), vec![], made.collect()).unwrap());
        let windows = WindowRule { length: 10, stride: 3, whole: false };
        let by_time = SplitRule::Time { validation: 0.0, test: 0.1, gap: Some(0) };
        let parts = split(&set, &windows, &by_time, &Labels::None).unwrap();
        outliers(&parts.train)
    }

    fn nothing(series: &[Vec<f64>]) {
        let found = found(series);
        assert!(found.is_empty(), "{found:?}");
    }

    fn normal(steps: usize) -> Vec<f64> {
        let mut draws = Stream::new(3, "values").draws();
        (0..steps).map(|_| draws.normal()).collect()
    }

    #[test]
    fn one_absurd_value_is_found_with_its_place() {
        let mut values = normal(6000);
        nothing(&[values.clone()]);
        values[4711] = 1e20;
        let [one] = &found(&[normal(3000), values.clone()])[..] else { panic!() };
        assert_eq!((one.channel.as_str(), one.value, one.count, one.others), ("load", 1e20, 1, 0));
        assert_eq!((one.first, one.steps > 7000), ((1, 4711), true));
        let [low, high] = one.quartiles;
        assert!((low + 0.6745).abs() < 0.1 && (high - 0.6745).abs() < 0.1, "{low} {high}");
        // Beside another one, and not where training does not look.
        values[10] = -1e19;
        assert_eq!(found(&[values])[0].others, 1);
        let mut held_out = normal(6000);
        held_out[5990] = 1e20;
        nothing(&[held_out]);
    }

    #[test]
    fn a_code_for_what_is_missing_is_found() {
        let mut values: Vec<f64> = normal(6000).iter().map(|value| 20.0 + 5.0 * value).collect();
        (0..6000).step_by(97).for_each(|step| values[step] = -9999.0);
        let [one] = &found(&[values.clone()])[..] else { panic!() };
        assert_eq!((one.value, one.first, one.others), (-9999.0, (0, 0), 0));
        assert!((50..=62).contains(&one.count), "{}", one.count);
        (0..6000).step_by(97).for_each(|step| values[step] = -500.0);
        assert_eq!(found(&[values.clone()])[0].value, -500.0);
        // Beside rare ones of another kind.
        (0..6000).step_by(970).for_each(|step| values[step] = -600.0);
        let [one] = &found(&[values])[..] else { panic!() };
        assert!(one.value == -500.0 && (5..=7).contains(&one.others), "{one:?}");
    }

    #[test]
    fn honest_data_are_not_told_of() {
        let normal = normal(9000);
        let of = |value: &dyn Fn(usize, f64) -> f64| -> Vec<f64> {
            normal.iter().enumerate().map(|(step, draw)| value(step, *draw)).collect()
        };
        let heavy = of(&|_, draw| (1.5 * draw).exp());
        let rare = of(&|step, _| f64::from(u8::from(step % 500 == 0)));
        let once = of(&|step, _| f64::from(u8::from(step == 70)));
        let rain = of(&|step, draw| if step % 9 == 0 { draw.exp() } else { 0.0 });
        let at_rest = of(&|step, draw| if step % 100 < 3 { 400.0 + draw } else { 1e-3 * draw });
        let clipped = of(&|_, draw| (draw * draw * draw).min(20.0));
        let still = of(&|_, _| 5.0);
        // What the weather is, by number: mostly of the first few, and now and then rain of some kind.
        let codes = of(&|step, _| match step % 10 {
            0 => [51.0, 53.0, 61.0, 63.0][step / 10 % 4],
            _ => (step % 4) as f64,
        });
        for values in [heavy, rare, once, rain, at_rest, clipped, still, codes] {
            nothing(&[values]);
        }
        // What describes series is no code: one of them is large.
        let mut sizes: Vec<Vec<f64>> = (0..40).map(|size| vec![f64::from(size); 400]).collect();
        sizes[17] = vec![5e6; 400];
        nothing(&sizes);
    }

    #[test]
    fn a_period_of_the_data_does_not_hide_from_the_sample() {
        let of = |steps: usize| {
            let values = (0..steps).map(|step| (step % 100) as f64).collect();
            let series = vec![Series::regular("a", 0, 1, values, 1)];
            let channels = vec![Channel::new("x", Role::Other)];
            let set = SeriesSet::new(channels, vec![], series).unwrap();
            // In two runs, of which no block is aware.
            let runs = [(0, 0..steps / 3), (0, steps / 3..steps)];
            fences(&set, &runs, steps)[0].quartiles
        };
        assert_eq!(of(PLACES * TOGETHER - 68), [25.0, 74.0], "all of them");
        // Blocks of one period.
        let [low, high] = of(100 * PLACES);
        assert!((low - 25.0).abs() < 10.0 && (high - 75.0).abs() < 10.0, "{low} {high}");
    }

    #[test]
    fn parts_hold_all_steps_in_their_order() {
        let runs = [(0, 3..10), (2, 0..1), (5, 7..20)];
        let each = |(series, steps): &Run| {
            let series = *series;
            steps.clone().map(move |step| (series, step)).collect::<Vec<_>>()
        };
        let all: Vec<(usize, usize)> = runs.iter().flat_map(each).collect();
        for most in [1, 4, 7, 100] {
            let parts = parts(&runs, most);
            let same: Vec<(usize, usize)> = parts.iter().flatten().flat_map(each).collect();
            assert_eq!(same, all, "{most}");
            let steps = |part: &Vec<Run>| part.iter().map(|run| run.1.len()).sum::<usize>();
            assert!(parts.iter().all(|part| steps(part) <= most));
        }
    }
}
