//! Buckets within windows of blocks: an epoch whose samples come block by block from the disk, and leave in batches of
//! similar length.
//!
//! The samples come in the order that they would have without buckets, window by window, and wait in the bucket of
//! their length. A batch leaves as soon as its bucket holds enough for it, so less than a batch of each length waits
//! from window to window, whatever the size of the set. The batches that a window completes are shuffled among
//! themselves. A bucket has one short batch an epoch, as with a full shuffle, at a place that is drawn: so the number
//! of batches and their shapes follow from the lengths alone, and are the same in every epoch.

use std::ops::Range;

use firebox_core::Stream;

/// What of a source the order needs.
pub(crate) struct Lengths {
    /// The bucket of each sample.
    pub(crate) of: Vec<u32>,
    /// Samples of a batch of each bucket, and those of the bucket.
    pub(crate) sizes: Vec<[usize; 2]>,
}

/// An epoch: a function of the lengths, the blocks and the stream.
pub(crate) struct Sorted {
    /// The samples, batch by batch.
    samples: Vec<u32>,
    batches: Vec<Start>,
    /// Blocks in the order in which they are read.
    blocks: Vec<u32>,
    windows: Vec<Ends>,
    /// Samples of batches that were completed by a later window than that of the samples, by that window.
    carried: Vec<u32>,
    /// Blocks of a window, and samples of a block.
    shape: [usize; 2],
}

/// Where a batch begins, and its bucket.
struct Start {
    first: u32,
    bucket: u32,
}

/// Batches that are complete, and samples that were carried, up to the end of a window.
#[derive(Clone, Copy, Default)]
struct Ends {
    batches: usize,
    carried: usize,
}

/// A bucket that fills.
struct Filling {
    waiting: Vec<u32>,
    /// Samples of all its batches but the short one.
    size: usize,
    /// Batches that it has given, and how many it is to give before the short one; none if all are full.
    given: usize,
    short: Option<(usize, usize)>,
    /// How many of the waiting ones are of earlier windows.
    old: usize,
}

impl Filling {
    fn new([size, samples]: [usize; 2], stream: Stream) -> Self {
        let rest = samples % size;
        let place = |rest| (stream.draws().below(samples.div_ceil(size) as u64) as usize, rest);
        let short = (rest > 0).then_some(rest).map(place);
        Self { waiting: Vec::new(), size, given: 0, short, old: 0 }
    }

    /// Samples of the batch that it fills.
    fn wanted(&self) -> usize {
        match self.short {
            Some((place, rest)) if place == self.given => rest,
            _ => self.size,
        }
    }
}

impl Sorted {
    /// The epoch of `stream` for windows of so many blocks of so many samples each. `windows` gives each window's
    /// samples in their order; `blocks` are those of all windows.
    pub(crate) fn new(
        lengths: &Lengths,
        stream: Stream,
        blocks: Vec<u32>,
        shape: [usize; 2],
        windows: impl Iterator<Item = Vec<u32>>,
    ) -> Self {
        let [short, order] = [2, 3].map(|purpose| stream.substream(purpose));
        let mut buckets: Vec<Filling> = (0..)
            .zip(&lengths.sizes)
            .map(|(bucket, sizes)| Filling::new(*sizes, short.substream(bucket)))
            .collect();
        let all = blocks.len().div_ceil(shape[0]);
        let mut sorted = Self {
            samples: Vec::with_capacity(lengths.of.len()),
            batches: Vec::new(),
            blocks,
            windows: Vec::with_capacity(all),
            carried: Vec::new(),
            shape,
        };
        for (index, window) in (0..).zip(windows) {
            sorted.add(&mut buckets, lengths, window, order.substream(index));
        }
        sorted
    }

    /// Divides a window among the buckets, and puts the batches that it completes behind those that are there.
    fn add(&mut self, buckets: &mut [Filling], lengths: &Lengths, window: Vec<u32>, order: Stream) {
        let mut complete: Vec<(u32, Range<usize>)> = Vec::new();
        let mut taken: Vec<u32> = Vec::with_capacity(window.len());
        for sample in window {
            let number = lengths.of[sample as usize];
            let bucket = &mut buckets[number as usize];
            bucket.waiting.push(sample);
            if bucket.waiting.len() == bucket.wanted() {
                self.carried.extend_from_slice(&bucket.waiting[..bucket.old]);
                (bucket.given, bucket.old) = (bucket.given + 1, 0);
                let first = taken.len();
                taken.append(&mut bucket.waiting);
                complete.push((number, first..taken.len()));
            }
        }
        for bucket in buckets {
            bucket.old = bucket.waiting.len();
        }
        order.draws().shuffle(&mut complete);
        for (bucket, places) in complete {
            self.batches.push(Start { first: self.samples.len() as u32, bucket });
            self.samples.extend_from_slice(&taken[places]);
        }
        self.windows.push(Ends { batches: self.batches.len(), carried: self.carried.len() });
    }

    /// The samples of a batch, and its bucket.
    pub(crate) fn batch(&self, place: usize) -> Option<(&[u32], usize)> {
        let start = self.batches.get(place)?;
        let end =
            self.batches.get(place + 1).map_or(self.samples.len(), |next| next.first as usize);
        Some((&self.samples[start.first as usize..end], start.bucket as usize))
    }

    /// What is read after the window whose first batch this is, so that it is on its way from the disk while that
    /// one is used: the next windows up to one that completes a batch, and what such a batch takes of earlier ones. At
    /// the beginning of an epoch also the window itself. Empty for batches within a window.
    pub(crate) fn announce(&self, place: usize) -> Vec<Range<usize>> {
        let ends = |window: usize| self.windows.get(window).copied().unwrap_or_default();
        let window = self.windows.partition_point(|ends| ends.batches <= place);
        let before = window.checked_sub(1).map(ends).unwrap_or_default();
        if place != before.batches {
            return vec![];
        }
        let now = ends(window);
        // One behind the last window that is announced.
        let until = self.windows.partition_point(|ends| ends.batches <= now.batches) + 1;
        let from = if place == 0 { 0 } else { window + 1 };
        let [per_window, block] = self.shape;
        let mut ranges: Vec<Range<usize>> = (self.blocks.iter())
            .take(until * per_window)
            .skip(from * per_window)
            .map(|number| {
                let first = *number as usize * block;
                first..(first + block).min(self.samples.len())
            })
            .collect();
        if place > 0 {
            let until = self.windows.get(until - 1).map_or(self.carried.len(), |last| last.carried);
            ranges.extend(runs(&self.carried[now.carried..until]));
        }
        ranges
    }
}

/// Samples as ranges of neighbours.
fn runs(samples: &[u32]) -> Vec<Range<usize>> {
    let mut samples: Vec<usize> = samples.iter().map(|sample| *sample as usize).collect();
    samples.sort_unstable();
    let mut runs: Vec<Range<usize>> = Vec::new();
    for sample in samples {
        match runs.last_mut() {
            Some(run) if run.end == sample => run.end += 1,
            _ => runs.push(sample..sample + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use crate::order::Plan;
    use crate::{LoadError, LoaderConfig, Position, Sample, Shuffle, Source};

    use super::*;

    /// Samples of these lengths, of which none is longer than the last number.
    struct Ragged(Vec<usize>, usize);

    impl Source for Ragged {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn shape(&self) -> [usize; 2] {
            [self.1, 1]
        }

        fn length(&self, index: usize) -> usize {
            self.0[index]
        }

        fn read(&self, index: usize, _: &mut [f32]) -> Result<Sample, LoadError> {
            Ok(Sample { length: self.0[index] as u32, label: None })
        }

        fn classes(&self) -> &[String] {
            &[]
        }
    }

    /// Settings and lengths as they may come: windows of two samples and of more than there are, buckets of one step and
    /// of more than the longest sample has, batches of one and of more than a bucket holds.
    fn drawn(case: u64) -> (Ragged, LoaderConfig) {
        let mut draws = Stream::new(case, "cases").draws();
        let mut to = |most: u64| 1 + draws.below(most) as usize;
        let (samples, longest) = (to(400), to(40));
        let (block, blocks) = (to(20), 1 + to(30));
        let config = LoaderConfig {
            batch_size: to(60),
            buckets: to(longest as u64 + 3),
            tokens: if to(2) == 1 { 0 } else { longest + to(200) },
            shuffle: Shuffle::Blocks { block, window: block * blocks + to(block as u64) - 1 },
            seed: case,
            ..LoaderConfig::default()
        };
        // Some are of one length, and some are in the order of their lengths.
        let one = to(5) == 1;
        let mut lengths: Vec<usize> =
            (0..samples).map(|_| if one { longest } else { to(longest as u64 + 1) - 1 }).collect();
        if to(3) == 1 {
            lengths.sort_unstable();
        }
        (Ragged(lengths, longest), config)
    }

    #[test]
    fn every_order_is_whole_has_known_shapes_and_keeps_little() {
        for case in 0..300 {
            let (source, config) = drawn(case);
            config.validate().unwrap();
            let plan = Plan::shuffled(&source, config);
            let full = Plan::shuffled(&source, LoaderConfig { shuffle: Shuffle::Full, ..config });
            assert_eq!(plan.batches(), full.batches(), "{case}");
            // How often a batch of each size and length comes is what a full shuffle has.
            let shapes = |plan: &Plan, epoch| {
                let mut shapes = BTreeMap::<[usize; 2], usize>::new();
                for batch in 0..plan.batches() {
                    let chosen = plan.batch(&source, Position { epoch, batch });
                    *shapes.entry([chosen.indices.len(), chosen.steps]).or_default() += 1;
                }
                shapes
            };
            let expected = shapes(&full, 0);
            for epoch in [0, 1, 7] {
                assert_eq!(shapes(&plan, epoch), expected, "{case}");
                check_epoch(&source, &config, &plan, epoch);
            }
        }
    }

    fn check_epoch(source: &Ragged, config: &LoaderConfig, plan: &Plan, epoch: u64) {
        let Shuffle::Blocks { block, window } = config.shuffle else { panic!() };
        let (case, per_window) = (config.seed, window / block);
        let blocks = plan.blocks(epoch, block);
        let mut place_of = vec![0; blocks.len()];
        for (place, number) in blocks.iter().enumerate() {
            place_of[*number as usize] = place / per_window;
        }
        let window_of = |sample: usize| place_of[sample / block];
        let (mut seen, mut announced) = (BTreeSet::new(), BTreeSet::new());
        let mut now = 0;
        for batch in 0..plan.batches() {
            let chosen = plan.batch(source, Position { epoch, batch });
            let announces = !chosen.announce.is_empty();
            announced.extend(chosen.announce.into_iter().flatten());
            let lengths = chosen.indices.iter().map(|index| source.length(*index).max(1));
            let rounded = |length: usize| length.next_multiple_of(config.buckets).min(source.1);
            assert!(lengths.clone().all(|length| rounded(length) == chosen.steps), "{case}");
            let most = config.samples_of(chosen.steps);
            assert!((1..=most).contains(&chosen.indices.len()), "{case}");
            assert!(config.tokens == 0 || chosen.indices.len() * chosen.steps <= config.tokens);
            // Whoever reads it was told before, and a batch comes in the window of its last sample.
            assert!(chosen.indices.iter().all(|index| announced.contains(index)), "{case}");
            let own = chosen.indices.iter().map(|index| window_of(*index)).max().unwrap();
            assert!(own >= now, "{case}");
            let last = (blocks.len() - 1) / per_window;
            assert!(own == now || announces || own == last, "{case}");
            now = own;
            for index in &chosen.indices {
                assert!(seen.insert(*index), "{case}: {index} comes twice");
            }
            // What was read of earlier windows and is not delivered: less than a batch of each length.
            let mut waiting = BTreeMap::<usize, usize>::new();
            for sample in (0..source.len()).filter(|sample| window_of(*sample) < now) {
                if !seen.contains(&sample) {
                    *waiting.entry(rounded(source.length(sample).max(1))).or_default() += 1;
                }
            }
            for (steps, samples) in waiting {
                assert!(samples < config.samples_of(steps), "{case}: {samples} of {steps}");
            }
        }
        assert_eq!(seen.len(), source.len(), "{case}");
    }

    #[test]
    fn a_position_gives_its_batch_without_those_before_it() {
        for case in 0..40 {
            let (source, config) = drawn(case);
            let plan = Plan::shuffled(&source, config);
            for epoch in [3, 0] {
                let batches: Vec<_> = (0..plan.batches())
                    .map(|batch| plan.batch(&source, Position { epoch, batch }).indices)
                    .collect();
                for (batch, expected) in batches.iter().enumerate().rev() {
                    let batch = batch as u64;
                    let other = Plan::shuffled(&source, config);
                    let found = other.batch(&source, Position { epoch, batch }).indices;
                    assert_eq!(found, *expected, "{case}");
                }
            }
        }
    }

    #[test]
    fn the_short_batch_of_a_length_may_stand_anywhere() {
        // 95 samples of one length in batches of 10: the tenth part of all epochs has the short one at each place.
        let source = Ragged(vec![3; 95], 3);
        let shuffle = Shuffle::Blocks { block: 1, window: 95 };
        let config =
            LoaderConfig { batch_size: 10, buckets: 1, shuffle, ..LoaderConfig::default() };
        let plan = Plan::shuffled(&source, config);
        let mut places = [0; 10];
        for epoch in 0..2000 {
            let short = (0..10).find(|batch| {
                plan.batch(&source, Position { epoch, batch: *batch }).indices.len() == 5
            });
            places[short.unwrap() as usize] += 1;
        }
        // A binomial count of 200 with a deviation of 13.4.
        assert!(places.iter().all(|count| (140..260).contains(count)), "{places:?}");
    }

    #[test]
    fn neighbours_are_told_as_one() {
        assert_eq!(runs(&[5, 3, 9, 4, 0]), [0..1, 3..6, 9..10]);
        assert!(runs(&[]).is_empty());
    }
}
