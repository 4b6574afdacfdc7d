//! Intervals of statistics that a bootstrap misjudges, such as the agreement of clusters with classes:
//! drawn with replacement, a window comes several times, each time with itself in class and cluster,
//! and the agreement seems higher than it is.
//!
//! Halves of the windows are drawn without replacement instead (Politis, Romano and Wolf,
//! "Subsampling", 1999). The difference of a half and the whole varies as much as the whole does with
//! other windows: `σ²(2/n − 1/n) = σ²/n`. A half is also further from the limit of very many windows
//! than the whole is, which moves all halves alike, so only their spread around their mean counts.

use rayon::prelude::*;

use crate::bootstrap::{FEWEST_BLOCKS, Unit, quantile};
use crate::{Estimate, Resampling};

impl Resampling {
    /// Evaluates a statistic on random halves of the windows, in parallel: every second block of them,
    /// at random, without replacement, or every second unit where these are drawn whole. Nothing where there are fewer than
    /// five of them, too few for an interval.
    pub fn map_halves<T: Send>(
        &self,
        windows: usize,
        statistic: impl Fn(&[u32]) -> T + Sync,
    ) -> Vec<T> {
        let block = self.block.clamp(1, windows.max(1));
        let in_blocks = (0..windows).step_by(block).map(|at| vec![(at, block.min(windows - at))]);
        let blocks: Vec<Unit> = self.units_to_draw().unwrap_or_else(|| in_blocks.collect());
        // Units of unlike sizes are as good as fewer.
        if self.drawn_units().unwrap_or(blocks.len()) < FEWEST_BLOCKS {
            return vec![];
        }
        let half = |resample| {
            let mut drawn: Vec<usize> = (0..blocks.len()).collect();
            self.stream.substream(resample).draws().shuffle(&mut drawn);
            let of = |at: &usize| blocks[*at].iter().copied();
            let runs = drawn[..blocks.len() / 2].iter().flat_map(of);
            let indices = runs.flat_map(|(start, length)| start..start + length);
            statistic(&indices.map(|index| index as u32).collect::<Vec<u32>>())
        };
        (0..u64::from(self.resamples)).into_par_iter().map(half).collect()
    }
}

impl Estimate {
    /// The interval of a value from those of halves, symmetric around it, within the bounds that such
    /// a value has. It is of what as many other windows would give in the mean. Without halves nothing
    /// is known but the bounds.
    pub fn from_halves(value: f64, halves: &[f64], confidence: f64, bounds: [f64; 2]) -> Self {
        let [least, most] = bounds;
        if halves.is_empty() {
            return Self { value, low: least, high: most };
        }
        let mut sorted = halves.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let mean = halves.iter().sum::<f64>() / halves.len() as f64;
        let tail = (1.0 - confidence) / 2.0;
        let reach = (mean - quantile(&sorted, tail)).max(quantile(&sorted, 1.0 - tail) - mean);
        Self { value, low: (value - reach).max(least), high: (value + reach).min(most) }
    }
}

#[cfg(test)]
mod tests {
    use firebox_core::Stream;

    use super::*;
    use crate::Agreement;

    fn resampling(block: usize, resamples: u32) -> Resampling {
        Resampling {
            stream: Stream::new(1, "halves"),
            resamples,
            block,
            units: vec![],
            whole_units: false,
            confidence: 0.95,
        }
    }

    #[test]
    fn halves_have_each_window_at_most_once_and_depend_on_no_thread() {
        let halves = resampling(3, 50).map_halves(20, <[u32]>::to_vec);
        assert_eq!(halves, resampling(3, 50).map_halves(20, <[u32]>::to_vec));
        for half in &halves {
            let mut seen = half.clone();
            seen.sort_unstable();
            seen.dedup();
            assert!(seen.len() == half.len() && seen.iter().all(|index| *index < 20));
            // Three of seven blocks, one of which has two windows.
            assert!(half.len() == 9 || half.len() == 8, "{half:?}");
        }
        assert!(resampling(20, 50).map_halves(20, <[u32]>::len).is_empty());
        assert!(resampling(5, 50).map_halves(20, <[u32]>::len).is_empty());
        assert_eq!(resampling(4, 50).map_halves(20, <[u32]>::len).len(), 50);
        let nothing = Estimate::from_halves(0.4, &[], 0.95, [0.0, 1.0]);
        assert_eq!((nothing.low, nothing.value, nothing.high), (0.0, 0.4, 1.0));
    }

    /// Classes of windows, and clusters that are those of the class with probability `known`.
    fn drawn(seed: u64, windows: usize, known: f64) -> [Vec<u32>; 2] {
        let mut draws = Stream::new(seed, "clusters").draws();
        let classes: Vec<u32> = (0..windows).map(|_| draws.below(5) as u32).collect();
        let clusters = classes.iter().map(|class| match draws.chance(known) {
            true => *class,
            false => draws.below(5) as u32,
        });
        let clusters = clusters.collect();
        [classes, clusters]
    }

    #[test]
    fn intervals_of_agreement_hold_their_estimate_and_cover_what_other_windows_give() {
        for known in [0.0, 0.15, 0.5, 0.9] {
            let of = |seed| {
                let [classes, clusters] = drawn(seed, 200, known);
                Agreement::of(&classes, &clusters).normalised_information
            };
            let mean = (1000..3000).map(of).sum::<f64>() / 2000.0;
            let mut covered = 0;
            for seed in 0..200 {
                let [classes, clusters] = drawn(seed, 200, known);
                let pick = |of: &[u32], indices: &[u32]| -> Vec<u32> {
                    indices.iter().map(|index| of[*index as usize]).collect()
                };
                let halves = resampling(1, 200).map_halves(200, |indices| {
                    Agreement::of(&pick(&classes, indices), &pick(&clusters, indices))
                        .normalised_information
                });
                let own = Estimate::from_halves(of(seed), &halves, 0.95, [0.0, 1.0]);
                assert!(own.low <= own.value && own.value <= own.high, "{own:?}");
                covered += usize::from(own.low <= mean && mean <= own.high);
            }
            // 95 % of 200, less two standard deviations of such a count and the error of 200 halves.
            assert!(covered >= 180, "{covered} of 200 hold {mean}, with {known} known");
        }
    }
}
