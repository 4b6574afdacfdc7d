//! Test windows that hang together, which intervals have to know: those that share a step, are of one subject or of one
//! moment, or have labels that persist. What is alike in them says nothing of other windows.

/// Which test windows are drawn together by a bootstrap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Together {
    /// Consecutive windows of [`order`](Self::order) that are drawn together, at least 1.
    pub block: usize,
    /// The windows in an order in which those that hang together follow on one another, such as by time where several series
    /// have the same times. Empty: as they come.
    pub order: Vec<u32>,
    /// The unit of each window, by any number of it, as they come, where windows of one hang together beside those of a block,
    /// such as those of one series beside those of a moment. Empty: there is none.
    pub units: Vec<u32>,
    /// Windows hang together by their units alone, so that whole ones are drawn; the block is then how many windows of a unit
    /// there are in the mean.
    pub whole_units: bool,
}

impl Default for Together {
    fn default() -> Self {
        Self::every(1)
    }
}

impl Together {
    /// So many consecutive windows as they come.
    pub fn every(block: usize) -> Self {
        Self { block: block.max(1), order: Vec::new(), units: Vec::new(), whole_units: false }
    }

    /// The same with blocks of this size, which then say all that is known of what hangs together, if it was asked for.
    pub fn asked(&self, block: Option<usize>) -> Self {
        match block {
            Some(block) => {
                Self { block: block.max(1), units: vec![], whole_units: false, ..self.clone() }
            }
            None => self.clone(),
        }
    }

    /// The values of all windows, in the order of these.
    ///
    /// # Panics
    ///
    /// When there are more or fewer values than windows in the order.
    pub fn sorted<T: Clone>(&self, values: &[T]) -> Vec<T> {
        if self.order.is_empty() {
            return values.to_vec();
        }
        assert_eq!(values.len(), self.order.len(), "one value for each window");
        self.order.iter().map(|window| values[*window as usize].clone()).collect()
    }

    /// The same of some of the windows, by their indices in increasing order, of which each stands for `every` of all.
    pub fn of_chosen(&self, indices: &[usize], every: usize) -> Self {
        let place = |window: &u32| indices.binary_search(&(*window as usize)).ok();
        let order = self.order.iter().filter_map(place).map(|place| place as u32).collect();
        let mut units: Vec<u32> = match self.units.is_empty() {
            true => vec![],
            false => indices.iter().map(|index| self.units[*index]).collect(),
        };
        number_anew(&mut units);
        // Of units that are drawn whole, it is told how large what is left of them is. Chosen windows of neighbouring
        // stretches of `every` may stand side by side, so that as many are within a block of the first.
        let block = match self.whole_units {
            true => size_of_units(&units),
            false => 1 + (self.block.max(1) - 1).div_ceil(every.max(1)),
        };
        Self { block, order, units, whole_units: self.whole_units }
    }

    /// The same by units alone, if there are units beside blocks.
    pub fn by_units(&self) -> Option<Self> {
        let crossed = !self.units.is_empty() && !self.whole_units;
        crossed.then(|| Self { order: vec![], whole_units: true, ..self.clone() })
    }

    /// How many units of equal size the units are as good as ([`equal_units`]), if whole ones are drawn.
    pub fn drawn_units(&self) -> Option<usize> {
        drawn_units(&self.units, self.whole_units)
    }

    /// The units of all windows, in the order of these.
    pub fn units_in_order(&self) -> Vec<u32> {
        if self.units.is_empty() { vec![] } else { self.sorted(&self.units) }
    }
}

/// How many windows a unit has that a window is of, in the mean over all windows, to the nearest: the units are as good as
/// so many of equal size as there are windows over this (Kish, "Survey sampling", 1965). `units` has the unit of each window.
pub fn size_of_units(units: &[u32]) -> usize {
    let [all, squares] = sums_of_sizes(units);
    (squares + all / 2).checked_div(all).map_or(1, |size| size.max(1) as usize)
}

/// How many units of equal size the units of all windows are as good as, to the nearest: the square of all windows over the
/// sum of the squared sizes (Kish, "Survey sampling", 1965), at most as many as there are. All that is said of windows of
/// whole units counts so many as independent.
pub fn equal_units(units: &[u32]) -> usize {
    let [all, squares] = sums_of_sizes(units);
    (all * all + squares / 2).checked_div(squares).map_or(0, |units| units as usize)
}

/// How many units of equal size these are as good as, if whole ones are drawn.
pub(crate) fn drawn_units(units: &[u32], whole: bool) -> Option<usize> {
    (whole && !units.is_empty()).then(|| equal_units(units))
}

/// How many independent ones windows are as good as: their blocks, or the units that are drawn whole, if they are.
pub(crate) fn independent(windows: usize, block: usize, units: Option<usize>) -> usize {
    units.unwrap_or(windows / block.max(1))
}

/// The sizes of all units, summed up, and their squares.
fn sums_of_sizes(units: &[u32]) -> [u64; 2] {
    let mut sizes = std::collections::BTreeMap::<u32, u64>::new();
    units.iter().for_each(|unit| *sizes.entry(*unit).or_default() += 1);
    sizes.values().fold([0, 0], |[all, squares], size| [all + size, squares + size * size])
}

/// Blocks that are left where more than what windows share is drawn together: more than a verdict takes.
const FEWEST_OF_OVERLAP: f64 = 25.0;

/// How many units windows are of, if there are any.
pub(crate) fn number_of_units(units: &[u32]) -> Option<usize> {
    Some(each_once(units).len()).filter(|units| *units > 0)
}

/// Numbers units from 0 on, without those of which there is no window, and says how many there are.
pub(crate) fn number_anew(units: &mut [u32]) -> usize {
    let known = each_once(units);
    for unit in units {
        *unit = known.partition_point(|own| own < unit) as u32;
    }
    known.len()
}

/// The units that there are, in their order.
fn each_once(units: &[u32]) -> Vec<u32> {
    let mut known = units.to_vec();
    known.sort_unstable();
    known.dedup();
    known
}

/// Windows in a block where each shares steps with the `share_a_step − 1` behind it, so that their correlation falls in a
/// straight line to none: the best length of a circular block bootstrap for that, `((m − 1/m)² · n / 6)^⅓` of `m` windows
/// that share a step and `n` in all, but not less than `m`, of which blocks would have two thirds of the variance, and beyond
/// it not so long that fewer than 25 are left. Source: Politis and White, "Automatic block-length selection for the dependent
/// bootstrap", 2004, as corrected by Patton, Politis and White, 2009: `(2 G² n / D)^⅓` with `G = (m² − 1) / 3` and
/// `D = 4 m² / 3`.
pub fn block_of_overlap(share_a_step: usize, windows: f64) -> usize {
    let share = share_a_step.max(1) as f64;
    let best = ((share - 1.0 / share).powi(2) * windows / 6.0).cbrt().round();
    best.min((windows / FEWEST_OF_OVERLAP).floor()).max(share) as usize
}

/// Windows in a block where the labels of consecutive ones agree more often than by chance, so that those of a run count
/// little more than one: the best length of a circular block bootstrap for a process whose correlation falls by the factor
/// `ρ` from window to window, `(3/2)^⅓ · (2ρ / (1 − ρ²))^⅔ · n^⅓`, where `ρ` is the agreement of neighbours beyond that of
/// any two windows. Source: Politis and White, "Automatic block-length selection for the dependent bootstrap", 2004, as
/// corrected by Patton, Politis and White, 2009, for an autoregression of the first order.
///
/// `labels` has the class of each labelled window, cut where a series ends, and `at_once`, at least 1, how many series go
/// on at a time whose windows of a moment are drawn together: the block is of windows of one of them, and `n` is what each
/// of them has in the mean, so that more series of the same time do not make it longer.
pub fn block_of_labels(labels: &[Vec<u32>], at_once: f64) -> usize {
    let (mut pairs, mut agreeing) = (0u64, 0u64);
    let mut counts = std::collections::BTreeMap::<u32, u64>::new();
    for series in labels {
        series.iter().for_each(|label| *counts.entry(*label).or_default() += 1);
        pairs += series.len().saturating_sub(1) as u64;
        agreeing += series.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64;
    }
    let all = counts.values().sum::<u64>() as f64;
    let chance: f64 = counts.values().map(|count| (*count as f64 / all).powi(2)).sum();
    if pairs == 0 || chance >= 1.0 {
        return 1;
    }
    let agreement = agreeing as f64 / pairs as f64;
    let windows = all as usize;
    // Of labels that never change but from series to series, all of a series are one.
    let correlation = ((agreement - chance) / (1.0 - chance)).min(1.0 - 1.0 / all);
    if correlation <= 0.0 {
        return 1;
    }
    let ratio = 2.0 * correlation / (1.0 - correlation * correlation);
    let block = 1.5f64.cbrt() * ratio.powf(2.0 / 3.0) * (all / at_once.max(1.0)).cbrt();
    (block.round() as usize).clamp(1, windows)
}

#[cfg(test)]
mod tests {
    use firebox_core::Stream;

    use super::*;
    use crate::Resampling;

    #[test]
    fn chosen_windows_keep_their_order() {
        let all = Together {
            block: 12,
            order: vec![4, 0, 5, 1, 2, 3],
            units: vec![0, 0, 1, 1, 2, 2],
            whole_units: false,
        };
        assert_eq!(all.units_in_order(), [2, 0, 2, 0, 1, 1]);
        assert_eq!(all.sorted(&[10, 11, 12, 13, 14, 15]), [14, 10, 15, 11, 12, 13]);
        let chosen = all.of_chosen(&[1, 3, 4], 2);
        let units = vec![0, 1, 2];
        let order = vec![2, 0, 1];
        assert_eq!(chosen, Together { block: 7, order, units, whole_units: false });
        assert_eq!(chosen.sorted(&["one", "three", "four"]), ["four", "one", "three"]);
        assert_eq!(Together::every(5).of_chosen(&[0, 2], 2), Together::every(3));
        assert_eq!(Together::every(0).sorted(&[1, 2]), [1, 2]);
    }

    #[test]
    fn units_of_unlike_sizes_count_as_fewer() {
        // 37 units of one window and one of two are as good as 39² / 41 = 37.1, and not as 19.
        let units: Vec<u32> = (0..39).map(|window| window.min(37)).collect();
        assert_eq!(size_of_units(&units), 1);
        // One has nearly all of a hundred: the three are as good as 1.2.
        let of = |window: u32| window.saturating_sub(85) / 5;
        assert_eq!(size_of_units(&(0..100).map(of).collect::<Vec<_>>()), 82);
        assert_eq!(size_of_units(&[]), 1);
        assert_eq!(equal_units(&units), 37);
        assert_eq!([equal_units(&(0..100).map(of).collect::<Vec<_>>()), equal_units(&[])], [1, 0]);
    }

    #[test]
    fn units_of_almost_equal_size_count_as_there_are() {
        // Units of the one size, then of the other.
        let of = |[[many, size], [more, other]]: [[u32; 2]; 2]| {
            let sizes = (0..many).map(|_| size).chain((0..more).map(|_| other));
            let each = sizes.zip(0..).flat_map(|(size, unit)| (0..size).map(move |_| unit));
            each.collect::<Vec<u32>>()
        };
        // 99² / 491 = 19.96, 90² / 410 = 19.76, and 39² / 65 = 23.4; by the rounded mean sizes 19, 18 and 19 of 26.
        for (sizes, expected) in
            [([[19, 5], [1, 4]], 20), ([[10, 5], [10, 4]], 20), ([[13, 1], [13, 2]], 23)]
        {
            let units = of(sizes);
            assert_eq!(equal_units(&units), expected, "{sizes:?}");
            let windows = units.len();
            let whole = Together { block: size_of_units(&units), units, ..Together::every(1) };
            let whole = Together { whole_units: true, ..whole };
            assert_eq!(whole.drawn_units(), Some(expected), "{sizes:?}");
            let resampling = Resampling {
                stream: Stream::new(1, "units"),
                resamples: 10,
                block: whole.block,
                units: whole.units,
                whole_units: true,
                confidence: 0.95,
            };
            assert_eq!(resampling.independent(windows), expected, "{sizes:?}");
        }
        // Three subjects of 24, 28 and 21 windows are three.
        let three = (0..73).map(|at| u32::from(at >= 24) + u32::from(at >= 52));
        assert_eq!(equal_units(&three.collect::<Vec<_>>()), 3);
    }

    #[test]
    fn units_beside_blocks_can_be_drawn_alone_and_blocks_that_are_asked_for_have_none() {
        let (order, units) = (vec![1, 0, 2], vec![0, 1, 0]);
        let crossed = Together { order, units: units.clone(), ..Together::every(2) };
        let alone = crossed.by_units().unwrap();
        assert_eq!((alone.whole_units, &alone.units, &alone.order), (true, &units, &vec![]));
        assert_eq!(alone.units_in_order(), units);
        assert!(alone.of_chosen(&[0, 1], 1).whole_units);
        assert_eq!((crossed.drawn_units(), alone.drawn_units()), (None, Some(2)));
        // Of eight units of 1249 windows, every second one and a few more are looked at: some 625 of each.
        let units = (0..9992).map(|window| window / 1249).collect();
        let whole = Together { units, whole_units: true, ..Together::every(1249) };
        let chosen: Vec<usize> = (0..5000).map(|at| at * 9992 / 5000).collect();
        assert_eq!(whole.of_chosen(&chosen, 1).block, 625);
        assert_eq!(alone.asked(Some(3)), Together::every(3));
        assert_eq!((alone.by_units(), Together::every(2).by_units()), (None, None));
    }

    #[test]
    fn windows_that_overlap_are_drawn_in_blocks_that_are_longer_than_the_overlap() {
        // Of windows that share nothing, each counts.
        assert_eq!([0, 1].map(|share| block_of_overlap(share, 1e4)), [1, 1]);
        // (2 − 1/2)² · 1000 / 6 = 375 = 7.21³, and (24 − 1/24)² · 24000 / 6 = 2 296 007 = 131.9³.
        assert_eq!([block_of_overlap(2, 1000.0), block_of_overlap(24, 24_000.0)], [7, 132]);
        // Twenty-five blocks are left, unless the overlap itself leaves fewer.
        assert_eq!([block_of_overlap(24, 700.0), block_of_overlap(24, 550.0)], [28, 24]);
        let (overlap, windows, rounds) = (24, 2400, 200u64);
        let [mut best, mut shared] = [0u32; 2];
        for seed in 0..rounds {
            let mut draws = Stream::new(seed, "steps").draws();
            let steps: Vec<f64> = (0..windows + overlap).map(|_| draws.normal()).collect();
            let values: Vec<f64> =
                (0..windows).map(|at| steps[at..at + overlap].iter().sum()).collect();
            let holds = |block| {
                let resampling = Resampling {
                    stream: Stream::new(seed, "interval"),
                    resamples: 300,
                    block,
                    units: vec![],
                    whole_units: false,
                    confidence: 0.95,
                };
                let found = resampling.mean(&values);
                u32::from(found.low <= 0.0 && 0.0 <= found.high)
            };
            best += holds(block_of_overlap(overlap, windows as f64));
            shared += holds(overlap);
        }
        // 95 % of 200 is 190. Blocks of the overlap have two thirds of the variance, 89 %: 178; these have 87 %, 93 %: 186.
        assert!(best >= 178 && best > shared, "{best} {shared}");
    }

    /// Labels of two classes that change with this probability from window to window.
    fn bouts(windows: usize, change: f64, seed: u64) -> Vec<u32> {
        let mut draws = Stream::new(seed, "bouts").draws();
        let mut label = 0;
        let mut next = || {
            label ^= u32::from(draws.chance(change));
            label
        };
        (0..windows).map(|_| next()).collect()
    }

    #[test]
    fn labels_that_persist_make_blocks_and_others_do_not() {
        let of = |change, seed| block_of_labels(&[bouts(600, change, seed)], 1.0);
        for seed in 0..20 {
            assert!(of(0.5, seed) <= 3, "{}", of(0.5, seed));
            let long = of(1.0 / 30.0, seed);
            assert!((40..=160).contains(&long), "{long}");
        }
        // Most of one class is no persistence.
        let mut draws = Stream::new(3, "rare").draws();
        let rare: Vec<u32> = (0..600).map(|_| u32::from(draws.chance(0.05))).collect();
        assert!(block_of_labels(&[rare], 1.0) <= 4);
        assert_eq!(block_of_labels(&[vec![1; 50]], 1.0), 1);
        assert_eq!(block_of_labels(&[], 1.0), 1);
        assert!(block_of_labels(&[vec![0; 50], vec![1; 50]], 1.0) >= 50);
        // As many windows of a moment as there are series are drawn together: no more moments for that.
        let of = |series| {
            let labels: Vec<_> = (0..series).map(|seed| bouts(600, 1.0 / 30.0, seed)).collect();
            block_of_labels(&labels, series as f64) as f64
        };
        let alone = (0..20).map(|seed| block_of_labels(&[bouts(600, 1.0 / 30.0, seed)], 1.0));
        let (one, many) = (alone.sum::<usize>() as f64 / 20.0, of(20));
        assert!((0.8..1.25).contains(&(many / one)), "{one} {many}");
    }

    #[test]
    fn intervals_of_persistent_labels_hold_the_truth_about_as_often_as_they_say() {
        // A guess that has nothing to do with labels in bouts, itself in bouts.
        let (mut held, mut naive) = (0, 0);
        let runs = 200;
        for seed in 0..runs {
            let (truth, guess) = (bouts(1000, 0.1, seed), bouts(1000, 0.1, seed + 10_000));
            let right: Vec<f64> =
                truth.iter().zip(&guess).map(|(a, b)| f64::from(u8::from(a == b))).collect();
            let interval = |block| {
                let stream = Stream::new(seed, "interval");
                Resampling {
                    stream,
                    resamples: 400,
                    block,
                    units: vec![],
                    whole_units: false,
                    confidence: 0.95,
                }
                .mean(&right)
            };
            let holds = |block| {
                let found = interval(block);
                found.low <= 0.5 && 0.5 <= found.high
            };
            held += u32::from(holds(block_of_labels(&[truth], 1.0)));
            naive += u32::from(holds(1));
        }
        let share = f64::from(held) / f64::from(runs as u32);
        assert!(share > 0.88, "{share}");
        assert!(f64::from(naive) / (runs as f64) < 0.75, "{naive}");
    }

    #[test]
    fn intervals_of_windows_that_move_by_moments_and_by_units_hold_the_truth() {
        let (moments, units, runs) = (20usize, 20usize, 200u64);
        let [mut crossed, mut by_moment, mut by_unit] = [0u32; 3];
        for seed in 0..runs {
            let mut draws = Stream::new(seed, "effects").draws();
            let mut signs = |count: usize| -> Vec<f64> {
                (0..count).map(|_| if draws.chance(0.5) { 0.2 } else { -0.2 }).collect()
            };
            let [of_moment, of_unit] = [signs(moments), signs(units)];
            let mut draws = Stream::new(seed, "right").draws();
            // All units of a moment, then those of the next.
            let right: Vec<f64> = (0..moments * units)
                .map(|at| 0.5 + of_moment[at / units] + of_unit[at % units])
                .map(|chance| f64::from(u8::from(draws.chance(chance))))
                .collect();
            let holds = |block, units: Vec<u32>, values: &[f64]| {
                let stream = Stream::new(seed, "interval");
                let resampling = Resampling {
                    stream,
                    resamples: 400,
                    block,
                    units,
                    whole_units: false,
                    confidence: 0.95,
                };
                let found = resampling.mean(values);
                u32::from(found.low <= 0.5 && 0.5 <= found.high)
            };
            let numbers: Vec<u32> = (0..moments * units).map(|at| (at % units) as u32).collect();
            let one_by_one: Vec<f64> =
                (0..moments * units).map(|at| right[at % moments * units + at / moments]).collect();
            crossed += holds(units, numbers, &right);
            by_moment += holds(units, vec![], &right);
            by_unit += holds(moments, vec![], &one_by_one);
        }
        let share = |held: u32| f64::from(held) / runs as f64;
        let all = [share(crossed), share(by_moment), share(by_unit)];
        assert!(all[0] >= 0.92 && all[1] <= 0.9 && all[2] <= 0.9, "{all:?}");
    }

    #[test]
    fn a_window_comes_as_often_as_its_block_and_its_unit_are_drawn() {
        let units: Vec<u32> = (0..60).map(|at| at % 6).collect();
        let stream = Stream::new(4, "crossed");
        let crossed = Resampling {
            stream,
            resamples: 1,
            block: 6,
            units,
            whole_units: false,
            confidence: 0.95,
        };
        let plain = Resampling { units: vec![], ..crossed.clone() };
        for resample in 0..50 {
            let count = |drawn: Vec<u32>| {
                let mut counts = vec![0usize; 60];
                drawn.into_iter().for_each(|at| counts[at as usize] += 1);
                counts
            };
            let (all, blocks) =
                (count(crossed.indices(60, resample)), count(plain.indices(60, resample)));
            let of_unit = |unit: usize| (0..60).filter(move |at| at % 6 == unit);
            for unit in 0..6 {
                let times: Vec<usize> = of_unit(unit)
                    .filter(|at| blocks[*at] > 0)
                    .map(|at| {
                        assert_eq!(all[at] % blocks[at], 0);
                        all[at] / blocks[at]
                    })
                    .collect();
                assert!(times.windows(2).all(|pair| pair[0] == pair[1]), "{times:?}");
                assert!(of_unit(unit).all(|at| blocks[at] > 0 || all[at] == 0));
            }
        }
    }
}
