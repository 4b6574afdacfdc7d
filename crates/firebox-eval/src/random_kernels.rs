//! Features of windows by convolution with fixed kernels: MultiRocket's.
//!
//! ```text
//! a window, and its changes from step to step
//!   → 84 kernels of 9 steps (six weights of −1, three of 2), each with up to 32 dilations
//!   → of each, above each of some thresholds: the share of positive steps, their longest run, their mean,
//!     and their mean place
//! ```
//!
//! Nothing is learnt but the thresholds, which are quantiles of what the kernels give on training
//! windows. Sources: Dempster, Schmidt and Webb, "MiniRocket: a very fast (almost) deterministic transform
//! for time series classification", 2021; Tan, Dempster, Bergmeir and Webb, "MultiRocket: multiple pooling
//! operators and transformations for fast and effective time series classification", 2022. Unlike in the
//! authors' program, runs and places are shares of a window's own length, so that windows of unequal length
//! compare, a mean is that of the distances above the threshold, as in the paper, and thresholds are quantiles of the steps
//! that are pooled, which are those without padding for every other kernel.

use firebox_core::Stream;
use rayon::prelude::*;

/// Steps of a kernel.
const LENGTH: usize = 9;
/// Dilations of a kernel, at most.
const MOST_DILATIONS: usize = 32;
/// Numbers that a kernel gives above one threshold.
const POOLED: usize = 4;

/// Places of the three weights of 2 in each kernel.
fn kernels() -> Vec<[usize; 3]> {
    let triples =
        |a: usize| (a + 1..LENGTH).flat_map(move |b| (b + 1..LENGTH).map(move |c| [a, b, c]));
    (0..LENGTH).flat_map(triples).collect()
}

/// Fixed kernels with their thresholds.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomKernels {
    channels: usize,
    /// For the values of a window, and for their changes.
    parts: [Bank; 2],
}

/// The kernels of one of both series.
#[derive(Clone, Debug, PartialEq)]
struct Bank {
    dilations: Vec<usize>,
    /// Thresholds of each kernel with each dilation.
    thresholds: Vec<usize>,
    /// Channels that each kernel adds up, `[dilation, kernel]`.
    channels: Vec<Vec<usize>>,
    /// `[dilation, kernel, threshold]`
    biases: Vec<f32>,
}

impl RandomKernels {
    /// Chooses dilations by the longest window, and draws channels and, by single windows, thresholds.
    /// `count` is that of the thresholds of all kernels, of values and of changes each: at least 84.
    ///
    /// # Shapes
    ///
    /// - `windows`: `[time, channel]` each, row-major.
    ///
    /// # Panics
    ///
    /// When there is no window or no channel.
    pub fn fit(windows: &[Vec<f32>], channels: usize, count: usize, stream: Stream) -> Self {
        assert!(!windows.is_empty() && channels > 0, "nothing to fit to");
        let changes: Vec<Vec<f32>> = windows.iter().map(|own| changes(own, channels)).collect();
        let bank = |index: u64, windows: &[Vec<f32>]| {
            Bank::fit(windows, channels, count, stream.substream(index))
        };
        Self { channels, parts: [bank(0, windows), bank(1, &changes)] }
    }

    /// Numbers of a window.
    pub fn width(&self) -> usize {
        self.parts.iter().map(|bank| POOLED * bank.biases.len()).sum()
    }

    /// The features of windows.
    ///
    /// # Shapes
    ///
    /// - `windows`: `[time, channel]` each, row-major; returns `[window, feature]`, row-major: those of
    ///   the values, then those of the changes; of each all shares, then all runs, means and places.
    pub fn features(&self, windows: &[Vec<f32>]) -> Vec<f32> {
        let mut out = vec![0.0; windows.len() * self.width()];
        let rows = out.par_chunks_exact_mut(self.width().max(1));
        rows.zip(windows).for_each(|(row, window)| {
            let [values, after] = &self.parts;
            let (first, second) = row.split_at_mut(POOLED * values.biases.len());
            values.apply(window, self.channels, first);
            after.apply(&changes(window, self.channels), self.channels, second);
        });
        out
    }
}

/// Differences of neighbouring steps.
fn changes(window: &[f32], channels: usize) -> Vec<f32> {
    let later = window.iter().skip(channels);
    later.zip(window).map(|(after, before)| after - before).collect()
}

/// Dilations up to what the longest window has room for, and how many thresholds each gets.
fn dilations(longest: usize, each: usize) -> (Vec<usize>, Vec<usize>) {
    let most = each.clamp(1, MOST_DILATIONS);
    let exponent = (longest.saturating_sub(1) as f64 / (LENGTH - 1) as f64).max(1.0).log2();
    let (mut dilations, mut counts): (Vec<usize>, Vec<usize>) = (vec![], vec![]);
    for index in 0..most {
        let at = exponent * index as f64 / (most - 1).max(1) as f64;
        let dilation = at.exp2() as usize;
        match (dilations.last() == Some(&dilation), counts.last_mut()) {
            (true, Some(count)) => *count += 1,
            _ => {
                dilations.push(dilation);
                counts.push(1);
            }
        }
    }
    let ratio = each.max(1) as f64 / most as f64;
    counts.iter_mut().for_each(|count| *count = (*count as f64 * ratio) as usize);
    let left = each.saturating_sub(counts.iter().sum());
    let places = counts.len();
    (0..left).for_each(|index| counts[index % places] += 1);
    (dilations, counts)
}

impl Bank {
    fn fit(windows: &[Vec<f32>], channels: usize, count: usize, stream: Stream) -> Self {
        let kernels = kernels();
        let longest = windows.iter().map(|own| own.len() / channels).max().unwrap_or(0);
        let (dilations, thresholds) = dilations(longest, count / kernels.len());
        let mut draws = stream.draws();
        let mut bank = Self { dilations, thresholds, channels: vec![], biases: vec![] };
        let most = channels.min(LENGTH) as f64;
        for (place, dilation) in bank.dilations.iter().enumerate() {
            for (number, kernel) in kernels.iter().enumerate() {
                let chosen = (most + 1.0).powf(draws.uniform_f64()) as usize;
                let mut all: Vec<usize> = (0..channels).collect();
                draws.shuffle(&mut all);
                all.truncate(chosen.clamp(1, channels));
                all.sort_unstable();
                // The quantiles of one window at places that fill the unit evenly (multiples of the
                // golden ratio).
                let window = &windows[draws.below(windows.len() as u64) as usize];
                let lagged = Lagged::new(&summed(window, channels, &all), *dilation);
                let mut found = lagged.kernel(kernel);
                let padded = (place + number).is_multiple_of(2);
                found = inner(&found, *dilation, padded).to_vec();
                found.sort_unstable_by(f32::total_cmp);
                for _ in 0..bank.thresholds[place] {
                    let golden = (5f64.sqrt() + 1.0) / 2.0;
                    let at = ((bank.biases.len() + 1) as f64 * golden).fract();
                    bank.biases.push(quantile(&found, at));
                }
                bank.channels.push(all);
            }
        }
        bank
    }

    /// Writes shares, runs, means and places, `[pooled, dilation, kernel, threshold]`.
    fn apply(&self, window: &[f32], channels: usize, out: &mut [f32]) {
        let kernels = kernels();
        let count = self.biases.len();
        let (mut at, mut lagged, mut shown) = (0, None, None);
        for (place, dilation) in self.dilations.iter().enumerate() {
            for (number, kernel) in kernels.iter().enumerate() {
                let own = &self.channels[place * kernels.len() + number];
                // With one channel all kernels of a dilation share their lagged values.
                if shown != Some((*dilation, own)) {
                    lagged = Some(Lagged::new(&summed(window, channels, own), *dilation));
                    shown = Some((*dilation, own));
                }
                let Some(lagged) = &lagged else { continue };
                let found = lagged.kernel(kernel);
                let found = inner(&found, *dilation, (place + number).is_multiple_of(2));
                for bias in &self.biases[at..at + self.thresholds[place]] {
                    for (pooled, value) in pool(found, *bias).into_iter().enumerate() {
                        out[pooled * count + at] = value;
                    }
                    at += 1;
                }
            }
        }
    }
}

/// The sum of some channels at each step.
fn summed(window: &[f32], channels: usize, chosen: &[usize]) -> Vec<f32> {
    let of = |step: &[f32]| chosen.iter().map(|channel| step[*channel]).sum();
    window.chunks_exact(channels).map(of).collect()
}

/// A series as each weight of a dilated kernel sees it, zeros beyond its ends.
struct Lagged {
    /// Three times the series under each weight, `[weight, time]`.
    under: [Vec<f32>; LENGTH],
    /// Minus the sum under all weights.
    base: Vec<f32>,
}

impl Lagged {
    fn new(series: &[f32], dilation: usize) -> Self {
        let time = series.len();
        let mut base = vec![0.0; time];
        let under = std::array::from_fn(|weight| {
            let mut own = vec![0.0; time];
            let middle = LENGTH / 2;
            let offset = weight.abs_diff(middle) * dilation;
            if offset < time {
                match weight < middle {
                    true => own[offset..].copy_from_slice(&series[..time - offset]),
                    false => own[..time - offset].copy_from_slice(&series[offset..]),
                }
            }
            base.iter_mut().zip(&own).for_each(|(base, value)| *base -= value);
            own.iter_mut().for_each(|value| *value *= 3.0);
            own
        });
        Self { under, base }
    }

    /// What a kernel gives at each step.
    fn kernel(&self, [a, b, c]: &[usize; 3]) -> Vec<f32> {
        let [a, b, c] = [a, b, c].map(|weight| &self.under[*weight]);
        let all = self.base.iter().zip(a).zip(b).zip(c);
        all.map(|(((base, a), b), c)| base + a + b + c).collect()
    }
}

/// All steps, or those under which no weight lies beyond an end. A window too short for that has all.
fn inner(found: &[f32], dilation: usize, padded: bool) -> &[f32] {
    let edge = LENGTH / 2 * dilation;
    if padded || found.len() <= 2 * edge { found } else { &found[edge..found.len() - edge] }
}

/// Linear between the sorted values, as NumPy's.
fn quantile(sorted: &[f32], at: f64) -> f32 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = at * last as f64;
    let (low, part) = (place as usize, place.fract());
    let high = sorted[(low + 1).min(last)];
    (f64::from(sorted[low]) * (1.0 - part) + f64::from(high) * part) as f32
}

/// Of the steps above a threshold: their share, their longest run and their mean place as shares of all
/// steps, and the mean distance above the threshold. Without such a step the place is −1.
fn pool(found: &[f32], bias: f32) -> [f32; POOLED] {
    // Places of 100,000 steps add up to more than a u32 holds.
    let (mut count, mut sum, mut places) = (0u32, 0.0f64, 0u64);
    let (mut run, mut longest) = (0u32, 0u32);
    for (place, value) in (0u32..).zip(found) {
        if *value > bias {
            count += 1;
            sum += f64::from(value - bias);
            places += u64::from(place);
            run += 1;
            longest = longest.max(run);
        } else {
            run = 0;
        }
    }
    let steps = found.len().max(1) as f64;
    if count == 0 {
        return [0.0, 0.0, 0.0, -1.0];
    }
    let own = f64::from(count);
    [own / steps, f64::from(longest) / steps, sum / own, places as f64 / own / steps]
        .map(|value| value as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(count: usize, time: usize, channels: usize) -> Vec<Vec<f32>> {
        let of = |index: u64| {
            let mut draws = Stream::new(index, "window").draws();
            // Windows of unequal length.
            let time = time - index as usize % 3;
            (0..time * channels).map(|_| draws.normal() as f32).collect()
        };
        (0..count as u64).map(of).collect()
    }

    /// Every feature by its definition, in f64; NaN where a step lies so near to the threshold that
    /// rounding decides.
    fn direct(bank: &Bank, window: &[f32], channels: usize) -> Vec<f64> {
        let time = window.len() / channels;
        let (mut pooled, mut at) = (vec![vec![]; POOLED], 0);
        for (place, dilation) in bank.dilations.iter().enumerate() {
            for (number, kernel) in kernels().iter().enumerate() {
                let own = &bank.channels[place * 84 + number];
                let value = |step: i64| -> f64 {
                    let inside = (0..time as i64).contains(&step);
                    let of =
                        |channel: &usize| f64::from(window[step as usize * channels + channel]);
                    if inside { own.iter().map(of).sum() } else { 0.0 }
                };
                let weight = |index: usize| if kernel.contains(&index) { 2.0 } else { -1.0 };
                let at_step = |step: usize| -> f64 {
                    let lag = |index: usize| (index as i64 - 4) * *dilation as i64;
                    (0..9).map(|index| weight(index) * value(step as i64 + lag(index))).sum()
                };
                let edge = 4 * dilation;
                let all = (place + number) % 2 == 0 || time <= 2 * edge;
                let steps = if all { 0..time } else { edge..time - edge };
                let found: Vec<f64> = steps.map(at_step).collect();
                for _ in 0..bank.thresholds[place] {
                    let bias = f64::from(bank.biases[at]);
                    at += 1;
                    if found.iter().any(|value| (value - bias).abs() < 1e-5) {
                        pooled.iter_mut().for_each(|own| own.push(f64::NAN));
                        continue;
                    }
                    let above: Vec<usize> =
                        (0..found.len()).filter(|step| found[*step] > bias).collect();
                    let (own, steps) = (above.len() as f64, found.len() as f64);
                    let runs = found.split(|value| *value <= bias).map(<[f64]>::len);
                    pooled[0].push(own / steps);
                    pooled[1].push(runs.max().unwrap_or(0) as f64 / steps);
                    let (mut mean, mut mid) = (0.0, -1.0);
                    if own > 0.0 {
                        mean = above.iter().map(|step| found[*step] - bias).sum::<f64>() / own;
                        mid = above.iter().map(|step| *step as f64).sum::<f64>() / own / steps;
                    }
                    pooled[2].push(mean);
                    pooled[3].push(mid);
                }
            }
        }
        pooled.concat()
    }

    #[test]
    fn features_are_what_their_definition_gives() {
        for (channels, time, count) in [(1, 40, 300), (3, 25, 84), (1, 5, 168)] {
            let windows = windows(6, time, channels);
            let kernels = RandomKernels::fit(&windows, channels, count, Stream::new(1, "kernels"));
            let rows = kernels.features(&windows);
            assert_eq!(rows.len(), windows.len() * kernels.width());
            for (window, row) in windows.iter().zip(rows.chunks_exact(kernels.width())) {
                let mut expected = direct(&kernels.parts[0], window, channels);
                let after = changes(window, channels);
                expected.extend(direct(&kernels.parts[1], &after, channels));
                let undecided = expected.iter().filter(|value| value.is_nan()).count();
                assert!(undecided * 4 < row.len(), "{undecided} of {}", row.len());
                for (place, (found, expected)) in row.iter().zip(&expected).enumerate() {
                    let off = (f64::from(*found) - expected).abs();
                    assert!(expected.is_nan() || off < 2e-5, "{place}: {found} {expected}");
                }
            }
            assert!(rows.iter().all(|value| value.is_finite()));
        }
    }

    #[test]
    fn dilations_and_thresholds_are_the_papers() {
        // As `_fit_dilations` of aeon 1.6 gives for 6,250 features and these lengths.
        let (found, counts) = dilations(150, 74);
        assert_eq!(found, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 18]);
        assert_eq!(counts, [19, 10, 7, 7, 3, 5, 5, 2, 2, 2, 2, 2, 2, 2, 2, 2]);
        assert_eq!(dilations(37, 74), (vec![1, 2, 3, 4], vec![35, 19, 14, 6]));
        assert_eq!(dilations(9, 74), (vec![1], vec![74]));
        assert_eq!(dilations(3, 1), (vec![1], vec![1]));
        let all = kernels();
        assert_eq!((all.len(), all[0], all[83]), (84, [0, 1, 2], [6, 7, 8]));
        assert_eq!(quantile(&[1.0, 2.0, 4.0], 0.75), 3.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(pool(&[0.0, 2.0, 3.0, -1.0], 1.0), [0.5, 0.5, 1.5, 0.375]);
        assert_eq!(pool(&[], 1.0), [0.0, 0.0, 0.0, -1.0]);
        let [share, run, mean, place] = pool(&vec![1.25; 200_000], 1.0);
        assert_eq!([share, run, mean], [1.0, 1.0, 0.25]);
        assert!((place - 0.5).abs() < 1e-5, "{place}");
    }
}
