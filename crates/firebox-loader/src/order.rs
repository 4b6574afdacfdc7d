//! Which samples each batch of an epoch holds: a function of the settings, the seed and the epoch.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use firebox_core::Stream;

use crate::sorted::{Lengths, Sorted};
use crate::{LoaderConfig, Position, Shuffle, Source};

/// The samples of a batch, and the steps that they are padded to.
pub(crate) struct Chosen {
    pub(crate) indices: Vec<usize>,
    pub(crate) steps: usize,
    /// Samples that will be read from here on and were not announced before, where reading keeps
    /// to a window of the source.
    pub(crate) announce: Vec<Range<usize>>,
}

/// The batches of every epoch.
pub(crate) struct Plan {
    config: LoaderConfig,
    samples: usize,
    longest: usize,
    kind: Kind,
    orders: Recent<u64, Vec<u32>>,
    /// Blocks of an epoch in their order.
    blocks: Recent<u64, Vec<u32>>,
    /// Where the last block stands in the order of an epoch, if it has fewer samples than the others.
    short: Recent<u64, Option<usize>>,
    /// Samples of a window of an epoch in their order.
    windows: Recent<(u64, usize), Vec<u32>>,
    sorted: Recent<u64, Sorted>,
    members: Mutex<Members>,
}

/// The samples of buckets in their orders, by epoch and bucket, of the last two epochs.
type Members = BTreeMap<(u64, u64), Arc<Vec<u32>>>;

/// What belongs to the last two epochs, or windows of them, that were asked for, the newest last: threads work at the end of
/// one and at the beginning of the next.
struct Recent<K, T>(Mutex<Vec<(K, Arc<T>)>>);

impl<K, T> Default for Recent<K, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: PartialEq, T> Recent<K, T> {
    /// That of an epoch, or a window; one thread makes it, and others wait for it.
    fn get(&self, of: K, make: impl FnOnce() -> T) -> Arc<T> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, made)) = all.iter().find(|(own, _)| *own == of) {
            return Arc::clone(made);
        }
        let made = Arc::new(make());
        if all.len() > 1 {
            all.remove(0);
        }
        all.push((of, Arc::clone(&made)));
        made
    }
}

enum Kind {
    /// In the order of the source, padded to the batch's own longest if lengths are quantised.
    InOrder,
    Shuffled,
    /// Lengths in steps with the samples that have them, and where their batches begin.
    Buckets(Vec<Bucket>),
    /// Buckets within windows of blocks.
    Sorted {
        lengths: Lengths,
        /// Of each bucket.
        steps: Vec<usize>,
        /// Blocks of a window, and samples of a block.
        shape: [usize; 2],
    },
}

struct Bucket {
    steps: usize,
    members: Vec<u32>,
    /// Samples of a batch.
    size: usize,
}

impl Bucket {
    fn batches(&self) -> usize {
        self.members.len().div_ceil(self.size)
    }
}

impl Plan {
    /// Every sample once an epoch, in an order of its own. The caller has checked that indices fit.
    pub(crate) fn shuffled(source: &dyn Source, config: LoaderConfig) -> Self {
        let kind = match (config.buckets, config.shuffle) {
            (0, _) => Kind::Shuffled,
            (quantum, Shuffle::Full) => Kind::Buckets(buckets(source, quantum, &config)),
            (quantum, Shuffle::Blocks { block, window }) => {
                let buckets = buckets(source, quantum, &config);
                let mut of = vec![0; source.len()];
                for (number, bucket) in (0..).zip(&buckets) {
                    bucket.members.iter().for_each(|member| of[*member as usize] = number);
                }
                let sizes = buckets.iter().map(|own| [own.size, own.members.len()]).collect();
                let steps = buckets.iter().map(|own| own.steps).collect();
                let shape = [window / block, block];
                Kind::Sorted { lengths: Lengths { of, sizes }, steps, shape }
            }
        };
        Self::new(source, config, kind)
    }

    /// Every sample once, in the order of the source.
    pub(crate) fn in_order(source: &dyn Source, config: LoaderConfig) -> Self {
        Self::new(source, config, Kind::InOrder)
    }

    fn new(source: &dyn Source, config: LoaderConfig, kind: Kind) -> Self {
        let [longest, _] = source.shape();
        Self {
            config,
            samples: source.len(),
            longest,
            kind,
            orders: Recent::default(),
            blocks: Recent::default(),
            short: Recent::default(),
            windows: Recent::default(),
            sorted: Recent::default(),
            members: Mutex::default(),
        }
    }

    /// Batches of an epoch: the same number in each.
    pub(crate) fn batches(&self) -> u64 {
        match &self.kind {
            Kind::Buckets(buckets) => buckets.iter().map(|b| b.batches() as u64).sum(),
            Kind::Sorted { lengths, .. } => {
                let batches = |[size, samples]: &[usize; 2]| samples.div_ceil(*size) as u64;
                lengths.sizes.iter().map(batches).sum()
            }
            Kind::InOrder | Kind::Shuffled => self.samples.div_ceil(self.size()) as u64,
        }
    }

    /// Samples of a batch that is padded to the longest.
    fn size(&self) -> usize {
        match self.kind {
            // Held-out batches keep their number whatever they are padded to.
            Kind::InOrder => self.config.batch_size,
            _ => self.config.samples_of(self.longest),
        }
    }

    /// The position after the batch at `position`.
    pub(crate) fn after(&self, position: Position) -> Position {
        if position.batch + 1 < self.batches() {
            Position { batch: position.batch + 1, ..position }
        } else {
            Position { epoch: position.epoch + 1, batch: 0 }
        }
    }

    /// The samples of the batch at `position`, which must lie within its epoch.
    pub(crate) fn batch(&self, source: &dyn Source, position: Position) -> Chosen {
        let place = position.batch as usize;
        let full = |indices| Chosen { indices, steps: self.longest, announce: vec![] };
        match &self.kind {
            Kind::InOrder => {
                let indices: Vec<usize> = self.places(place).collect();
                let steps = match self.config.buckets {
                    0 => self.longest,
                    quantum => {
                        let lengths = indices.iter().map(|index| source.length(*index));
                        self.quantised(lengths.max().unwrap_or(0), quantum)
                    }
                };
                Chosen { steps, ..full(indices) }
            }
            Kind::Shuffled => {
                let places = self.places(place);
                let indices = self.samples(position.epoch, places.clone());
                Chosen { announce: self.announce(position.epoch, places), ..full(indices) }
            }
            Kind::Buckets(buckets) => {
                let order = self.order(position.epoch);
                let mut batch = order[place] as usize;
                // The order is that of all batches, counted bucket by bucket.
                for (index, bucket) in (0..).zip(buckets) {
                    if batch >= bucket.batches() {
                        batch -= bucket.batches();
                        continue;
                    }
                    let members = self.members(position.epoch, index, bucket);
                    let end = ((batch + 1) * bucket.size).min(members.len());
                    let chosen = &members[batch * bucket.size..end];
                    let indices = chosen.iter().map(|index| *index as usize).collect();
                    return Chosen { steps: bucket.steps, ..full(indices) };
                }
                full(vec![])
            }
            Kind::Sorted { lengths, steps, shape } => {
                let sorted = self.sorted(position.epoch, lengths, *shape);
                let Some((samples, bucket)) = sorted.batch(place) else { return full(vec![]) };
                let indices = samples.iter().map(|index| *index as usize).collect();
                Chosen { indices, steps: steps[bucket], announce: sorted.announce(place) }
            }
        }
    }

    /// The places within an epoch that a batch takes.
    fn places(&self, batch: usize) -> Range<usize> {
        let start = (batch * self.size()).min(self.samples);
        start..(start + self.size()).min(self.samples)
    }

    fn quantised(&self, steps: usize, quantum: usize) -> usize {
        // A batch of nothing but empty samples still has a step, which is padding.
        steps.max(1).next_multiple_of(quantum).min(self.longest)
    }

    /// The samples at these places of an epoch without buckets. Of windows of blocks none is made but those that are asked
    /// for: a set that is larger than memory may have more samples than fit there as numbers.
    fn samples(&self, epoch: u64, places: Range<usize>) -> Vec<usize> {
        let all = |part: &[u32]| part.iter().map(|index| *index as usize).collect();
        let Shuffle::Blocks { block, window } = self.config.shuffle else {
            return all(&self.order(epoch)[places]);
        };
        let (per_window, blocks) = (window / block, self.blocks(epoch, block));
        let span = per_window * block;
        // The window that has the last block lacks what that does, and all after it begin so much earlier.
        let lacks = self.samples.next_multiple_of(block) - self.samples;
        let last = (self.samples / block) as u32;
        let place = || blocks.iter().position(|number| *number == last);
        let short = *self.short.get(epoch, || place().filter(|_| lacks > 0));
        let begin = |index: usize| {
            let is_after = short.is_some_and(|place| place < index * per_window);
            index * span - if is_after { lacks } else { 0 }
        };
        let mut samples = Vec::with_capacity(places.len());
        for index in places.start / span.. {
            let from = begin(index);
            if from >= places.end {
                break;
            }
            if begin(index + 1) <= places.start {
                continue;
            }
            let made = || self.window(epoch, index, &blocks, [per_window, block]);
            let own = self.windows.get((epoch, index), made);
            let within = |place: usize| place.saturating_sub(from).min(own.len());
            samples.append(&mut all(&own[within(places.start)..within(places.end)]));
        }
        samples
    }

    /// The order of an epoch: of samples, or of batches where there are buckets.
    fn order(&self, epoch: u64) -> Arc<Vec<u32>> {
        let count = match &self.kind {
            Kind::Buckets(_) => self.batches() as u32,
            _ => self.samples as u32,
        };
        self.orders.get(epoch, || {
            let mut order: Vec<u32> = (0..count).collect();
            self.stream(epoch).draws().shuffle(&mut order);
            order
        })
    }

    /// The samples of a window of so many blocks of so many samples each, in the order of an epoch.
    fn window(
        &self,
        epoch: u64,
        index: usize,
        blocks: &[u32],
        [per_window, block]: [usize; 2],
    ) -> Vec<u32> {
        let blocks = blocks.iter().skip(index * per_window).take(per_window);
        let samples = blocks.flat_map(|number| self.of_block(*number, block));
        let mut samples: Vec<u32> = samples.map(|sample| sample as u32).collect();
        let stream = self.stream(epoch).substream(1).substream(index as u64);
        stream.draws().shuffle(&mut samples);
        samples
    }

    /// The batches of an epoch of buckets within windows.
    fn sorted(&self, epoch: u64, lengths: &Lengths, shape: [usize; 2]) -> Arc<Sorted> {
        self.sorted.get(epoch, || {
            let blocks = self.blocks(epoch, shape[1]);
            let windows = 0..blocks.len().div_ceil(shape[0]);
            let windows = windows.map(|index| self.window(epoch, index, &blocks, shape));
            Sorted::new(lengths, self.stream(epoch), blocks.to_vec(), shape, windows)
        })
    }

    fn stream(&self, epoch: u64) -> Stream {
        Stream::new(self.config.seed, "order").substream(epoch)
    }

    /// The blocks of an epoch in their order.
    pub(crate) fn blocks(&self, epoch: u64, block: usize) -> Arc<Vec<u32>> {
        self.blocks.get(epoch, || {
            let mut blocks: Vec<u32> = (0..self.samples.div_ceil(block) as u32).collect();
            self.stream(epoch).substream(0).draws().shuffle(&mut blocks);
            blocks
        })
    }

    /// The samples of the window after the one that begins within these places, so that they are
    /// on their way from the disk while this one is used; at the beginning of an epoch also its own.
    fn announce(&self, epoch: u64, places: Range<usize>) -> Vec<Range<usize>> {
        let Shuffle::Blocks { block, window } = self.config.shuffle else { return vec![] };
        let per_window = window / block;
        let span = per_window * block;
        let first = places.start.next_multiple_of(span);
        if !places.contains(&first) {
            return vec![];
        }
        let window = first / span;
        let blocks = self.blocks(epoch, block);
        let skip = if window == 0 { 0 } else { (window + 1) * per_window };
        let take = if window == 0 { 2 * per_window } else { per_window };
        blocks.iter().skip(skip).take(take).map(|number| self.of_block(*number, block)).collect()
    }

    /// The samples of a block.
    fn of_block(&self, number: u32, block: usize) -> Range<usize> {
        let first = number as usize * block;
        first..(first + block).min(self.samples)
    }

    /// The samples of a bucket in the order of an epoch.
    fn members(&self, epoch: u64, index: u64, bucket: &Bucket) -> Arc<Vec<u32>> {
        let mut all = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(members) = all.get(&(epoch, index)) {
            return Arc::clone(members);
        }
        let stream = Stream::new(self.config.seed, "buckets").substream(epoch);
        let mut members = bucket.members.clone();
        stream.substream(index).draws().shuffle(&mut members);
        let members = Arc::new(members);
        // Threads work at the end of one epoch and at the beginning of the next.
        all.retain(|(of, _), _| of.abs_diff(epoch) <= 1);
        all.insert((epoch, index), Arc::clone(&members));
        members
    }
}

/// The samples of a source by their length, rounded up to a multiple of `quantum`; the last bucket
/// ends at the longest sample.
fn buckets(source: &dyn Source, quantum: usize, config: &LoaderConfig) -> Vec<Bucket> {
    let [longest, _] = source.shape();
    let mut by_length = BTreeMap::<usize, Vec<u32>>::new();
    for index in 0..source.len() {
        let steps = source.length(index).max(1).next_multiple_of(quantum).min(longest);
        by_length.entry(steps).or_default().push(index as u32);
    }
    let bucket = |(steps, members)| Bucket { steps, members, size: config.samples_of(steps) };
    by_length.into_iter().map(bucket).collect()
}
