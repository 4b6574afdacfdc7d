//! Values far from all others of their channel: wrong readings, by which its scale is made and not by the others, and
//! codes for a missing value, such as -9999, whether it is made by them or not. They are told by quartiles, which
//! nothing rare can move, and by the hole between them and the others. No value is changed.

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

/// Times as far from the median as every other value that those are that are [`FAR`] out: tails reach as far, and have no hole. A choice.
const HOLE: f64 = 10.0;

/// Different values out there at most: where there are more, the channel has heavy tails, or is mostly at rest. A choice.
const DIFFERENT: usize = 16;

/// Share of the squares around the median beyond which they are made by such values: by all that are [`FAR`] out, or by one
/// that is [`APART`]. A choice.
const RULED: f64 = 0.5;

/// Steps of few values, or a thousandth of all where that is more, and never more than a twentieth. A choice.
const FEW: usize = 10;

/// Times as far from the median as every other value from which on few values stand alone. A choice: of 10,000 steps that are
/// drawn from a log-normal distribution of sigma 2, or from Student's t of 2 degrees of freedom, four samples in
/// a thousand are told of by this and all else here; with 3 degrees of freedom, hardly any.
const ALONE: f64 = 20.0;

/// Share of the squares around the median beyond which few values make the scale: the standard deviation is a third without
/// them. A choice.
const SCALED: f64 = 8.0 / 9.0;

/// [`ALONE`] of values that mostly are codes: hardly any measurement is one of them. A choice.
const CODE_ALONE: f64 = 3.0;

/// Sizes of values that programs write for what is missing, of either sign.
const CODES: [f32; 8] = [999.0, 9_999.0, 99_999.0, 999_999.0, 9_999_999.0, 32_768.0, 1e20, 1e30];

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

/// A value of a part that makes the scale of its channel, or is a code for a missing one.
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
    /// Whether it makes most of the scale, with the others.
    pub rules: bool,
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
        for ((all, part), fence) in found.iter_mut().zip(look).zip(&fences) {
            all.join(part, fence.median);
        }
    }
    let channels = set.channels().iter().enumerate();
    let outlier = |((place, channel), (fence, look)): ((usize, &Channel), (&Fence, Look))| {
        let found = look.outlier(fence, all, |seen| is_still(set, place, seen))?;
        let Found { seen: Seen { value, count, first }, others, rules } = found;
        let (channel, quartiles) = (channel.name.clone(), fence.quartiles);
        Some(Outlier { channel, value, count, others, steps: all, first, quartiles, rules })
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
    /// How far it is from a centre.
    fn away(&self, center: f64) -> f64 {
        (self.value - center).abs()
    }

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

/// The different values that lie farthest from a centre, of all beyond a fence, the farthest first: [`DIFFERENT`] of them, and
/// the next one. How often each is there is known of all that are left: what goes has as many farther ones before it.
#[derive(Clone, Default)]
struct Farthest(Vec<Seen>);

impl Farthest {
    fn add(&mut self, new: Seen, center: f64) {
        let (own, is_full) = (new.away(center), self.0.len() > DIFFERENT);
        if is_full && self.0.last().is_some_and(|last| last.away(center) > own) {
            return;
        }
        if let Some(seen) = self.0.iter_mut().find(|seen| seen.value == new.value) {
            seen.count += new.count;
            return;
        }
        let place = self.0.partition_point(|seen| seen.away(center) >= own);
        self.0.insert(place, new);
        self.0.truncate(DIFFERENT + 1);
    }
}

/// A value that is told of, how many steps have others that are as far out, and whether they make most of the scale.
struct Found {
    seen: Seen,
    others: usize,
    rules: bool,
}

/// What was seen of a channel.
#[derive(Clone, Default)]
struct Look {
    /// Of all values around the median.
    squares: f64,
    apart: Beyond,
    far: Beyond,
    /// Of those that are [`APART`].
    farthest: Farthest,
    /// How far from the median the others are at most.
    within: f64,
}

impl Look {
    fn join(&mut self, other: Self, center: f64) {
        self.squares += other.squares;
        self.apart.join(other.apart);
        self.far.join(other.far);
        self.within = self.within.max(other.within);
        other.farthest.0.into_iter().for_each(|seen| self.farthest.add(seen, center));
    }

    /// The first values of the farthest, at least one, behind which the next is nearer by as much as is asked for.
    fn first_alone(&self, center: f64, times: f64, most: usize) -> Option<&[Seen]> {
        let all = &self.farthest.0;
        let is_alone =
            |count: &usize| self.next(*count, center) > 0.0 && self.is_hole(*count, center, times);
        let count = (1..=most.min(all.len()).min(DIFFERENT)).rev().find(is_alone)?;
        Some(&all[..count])
    }

    /// How far the next is behind so many of the farthest.
    fn next(&self, count: usize, center: f64) -> f64 {
        self.farthest.0.get(count).map_or(self.within, |next| next.away(center))
    }

    /// Whether the next behind so many of the farthest, at least one, is nearer by as much as that.
    fn is_hole(&self, count: usize, center: f64, times: f64) -> bool {
        let last = count.checked_sub(1).and_then(|last| self.farthest.0.get(last));
        last.is_some_and(|last| last.away(center) >= times * self.next(count, center))
    }

    /// Few values that stand alone and make the scale.
    fn alone(&self, center: f64, steps: usize) -> Option<Found> {
        let few = FEW.max(steps / 1000).min(steps / 20);
        let mut count = 0;
        let is_of_few = |seen: &&Seen| {
            count += seen.count;
            count <= few
        };
        let most = self.farthest.0.iter().take_while(is_of_few).count();
        let alone = self.first_alone(center, ALONE, most)?;
        let squares: f64 = alone.iter().map(|seen| seen.squares(center)).sum();
        (squares > SCALED * self.squares).then(|| Found::of(alone, true))
    }

    /// Codes for missing values that stand alone, whether they make the scale or not.
    fn codes(&self, center: f64) -> Option<Found> {
        let is_code = |seen: &&Seen| CODES.contains(&(seen.value as f32).abs());
        let most = self.farthest.0.iter().take_while(is_code).count();
        let alone = self.first_alone(center, CODE_ALONE, most)?;
        let squares: f64 = alone.iter().map(|seen| seen.squares(center)).sum();
        Some(Found::of(alone, squares > RULED * self.squares))
    }

    /// The value that rules, or is a code. What is still in its series describes the series, and is no code.
    fn outlier(
        &self,
        fence: &Fence,
        steps: usize,
        is_still: impl Fn(&Seen) -> bool,
    ) -> Option<Found> {
        let center = fence.median;
        let rule = |squares: f64| squares > RULED * self.squares;
        let of = |seen: &Seen, beyond: &Beyond| {
            let others = beyond.steps() - seen.count;
            Found { seen: *seen, others, rules: true }
        };
        let farthest =
            self.far.seen.iter().max_by(|a, b| a.away(center).total_cmp(&b.away(center)));
        let is_far =
            rule(self.far.squares(center)) && self.is_hole(self.far.seen.len(), center, HOLE);
        let far = farthest.filter(|&seen| is_far && !is_still(seen));
        // More than half is made by one value at most.
        let mut apart = self.apart.seen.iter().filter(|seen| rule(seen.squares(center)));
        let again = apart.find(|&seen| seen.count >= AGAIN && !is_still(seen));
        let moves = |found: &Found| !is_still(&found.seen);
        far.map(|seen| of(seen, &self.far))
            .or_else(|| again.map(|seen| of(seen, &self.apart)))
            .or_else(|| self.alone(center, steps).filter(moves))
            .or_else(|| self.codes(center).filter(moves))
    }
}

impl Found {
    /// The farthest of some values, which come first.
    fn of(values: &[Seen], rules: bool) -> Self {
        let others = values[1..].iter().map(|seen| seen.count).sum();
        Self { seen: values[0], others, rules }
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
                    let away = (value - fence.median).abs();
                    look.squares += away.powi(2);
                    let is_beyond = |[low, high]: [f64; 2]| *value < low || *value > high;
                    if is_beyond(fence.apart) {
                        let seen = Seen { value: *value, count: 1, first: (*series, step) };
                        look.apart.add(seen);
                        look.farthest.add(seen, fence.median);
                        if is_beyond(fence.far) {
                            look.far.add(seen);
                        }
                    } else {
                        look.within = look.within.max(away);
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
    fn a_wrong_reading_that_is_there_once_or_twice_is_found_where_it_makes_the_scale() {
        let warm: Vec<f64> = normal(6000).iter().map(|value| 20.0 + 5.0 * value).collect();
        let with = |wrong: &[(usize, f64)]| {
            let mut values = warm.clone();
            wrong.iter().for_each(|(step, value)| values[*step] = *value);
            values
        };
        let only = |wrong: &[(usize, f64)]| {
            let [one] = &found(&[with(wrong)])[..] else { panic!("{wrong:?}") };
            (one.value, one.count, one.others, one.first.1, one.rules)
        };
        // No code, 230 interquartile ranges away.
        assert_eq!(only(&[(1234, -1500.5)]), (-1500.5, 1, 0, 1234, true));
        assert_eq!(only(&[(1234, -1500.5), (77, -1500.5)]), (-1500.5, 2, 0, 77, true));
        assert_eq!(only(&[(1234, 900.0), (77, -1500.5)]), (-1500.5, 1, 1, 77, true));
        // Ten of them, which differ, and more than a few are no wrong readings.
        let many = |count: usize| -> Vec<(usize, f64)> {
            (0..count).map(|number| (40 * number, 1000.0 + number as f64)).collect()
        };
        assert_eq!(only(&many(10)), (1009.0, 1, 9, 360, true));
        nothing(&[with(&many(11))]);
        // Nor is what is not so far, though it is alone.
        nothing(&[with(&[(1234, -200.0)])]);
    }

    #[test]
    fn a_code_is_found_once_although_the_scale_is_that_of_the_others() {
        let wide: Vec<f64> = normal(9000).iter().map(|value| 200.0 * value).collect();
        let with = |value: f64| {
            let mut values = wide.clone();
            values[1234] = value;
            values
        };
        let [one] = &found(&[with(-9999.0)])[..] else { panic!("one") };
        assert_eq!((one.value, one.count, one.first.1, one.rules), (-9999.0, 1, 1234, false));
        let mut both = with(-9999.0);
        both[4321] = 99_999.0;
        let [one] = &found(&[both])[..] else { panic!("one") };
        assert_eq!((one.value, one.others, one.rules), (99_999.0, 1, true));
        nothing(&[with(-9998.5)]);
        // What others come near is a measurement.
        let mut near = with(9999.0);
        (0..8).for_each(|number| near[1000 * number] = 9000.0 + number as f64);
        nothing(&[near]);
    }

    #[test]
    fn heavy_tails_are_hardly_ever_told_of() {
        let mut told = 0;
        for seed in 0..30 {
            let mut draws = Stream::new(seed, "heavy tails").draws();
            let mut squares =
                |count: usize| -> f64 { (0..count).map(|_| draws.normal().powi(2)).sum::<f64>() };
            // Student's t of two and of three degrees of freedom, with a sign of their own.
            let mut t = |freedom: usize, step: usize| {
                let size = (squares(1) / (squares(freedom) / freedom as f64)).sqrt();
                if step.is_multiple_of(2) { size } else { -size }
            };
            let of = |draw: &mut dyn FnMut(usize) -> f64| (0..9000).map(draw).collect::<Vec<f64>>();
            let [two, three] = [of(&mut |step| t(2, step)), of(&mut |step| t(3, step))];
            let mut draws = Stream::new(seed, "log-normal").draws();
            let volume = of(&mut |_| (2.0 * draws.normal()).exp());
            told += [two, three, volume]
                .into_iter()
                .filter(|one| !found(std::slice::from_ref(one)).is_empty())
                .count();
        }
        // Of four in a thousand.
        assert!(told <= 2, "{told} of 90");
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
