//! A counter-based random generator: Philox4x32-10.
//!
//! A draw is a pure function of a key and a position, so it is the same on any number of threads,
//! on any device, and after a resume; there is no hidden state to save. Source: Salmon, Moraes,
//! Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The known-answer vectors
//! of its reference implementation are in the tests below.
//!
//! This is not a generator for secrets.

/// A stream of random numbers, named by a seed and the path of purposes that led to it.
///
/// Streams are values: copying one and drawing from both gives the same numbers twice. Make a
/// substream for each independent use instead.
///
/// # Example
///
/// ```
/// use firebox_core::Stream;
/// let noise = Stream::new(1337, "jitter").substream(7);
/// assert_eq!(noise.draws().uniform(), noise.draws().uniform());
/// assert_ne!(noise.draws().uniform(), noise.substream(1).draws().uniform());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    key: [u32; 2],
}

const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
/// The counter words that no draw uses mark the derivation of a substream's key.
const DERIVE: [u32; 2] = [0x5EED_0001, 0xF1EB_0C5E];

#[inline(always)]
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let a = u64::from(MULTIPLIER[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIER[1]) * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
    }
    counter
}

impl Stream {
    /// The stream of a run's `seed` for one `purpose`, such as `"dropout"` or `"order"`.
    pub fn new(seed: u64, purpose: &str) -> Self {
        // FNV-1a: stable across versions and platforms, unlike the standard library's hasher.
        let hash = purpose.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self { key: [seed as u32, (seed >> 32) as u32] }.substream(hash)
    }

    /// An independent stream for the `index`-th use: a window, a version, a step, a layer.
    pub fn substream(self, index: u64) -> Self {
        let [a, b, _, _] =
            philox([index as u32, (index >> 32) as u32, DERIVE[0], DERIVE[1]], self.key);
        Self { key: [a, b] }
    }

    /// The two words that name this stream on a device: the key of its Philox blocks.
    pub fn key(self) -> [u32; 2] {
        self.key
    }

    /// The `position`-th block of four uniform 32-bit words.
    #[inline(always)]
    pub fn block(self, position: u64) -> [u32; 4] {
        philox([position as u32, (position >> 32) as u32, 0, 0], self.key)
    }

    /// The numbers of this stream, one after the other, from its start.
    pub fn draws(self) -> Draws {
        Draws { stream: self, position: 0, block: [0; 4], used: 4 }
    }

    /// Fills `out` with uniform numbers in `[0, 1)`: element `i` is word `(offset + i) % 4` of block
    /// `(offset + i) / 4`, so any part of a long array can be made alone. `offset` must be a
    /// multiple of 4.
    pub fn fill_uniform(self, offset: u64, out: &mut [f32]) {
        debug_assert_eq!(offset % 4, 0, "offset must be a multiple of 4");
        for (chunk, position) in out.chunks_mut(4).zip(offset / 4..) {
            for (value, word) in chunk.iter_mut().zip(self.block(position)) {
                *value = unit(word);
            }
        }
    }
}

/// A uniform number in `[0, 1)` from the upper 24 bits of a word: every value is exact in f32.
fn unit(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Draws from a [`Stream`] in order.
#[derive(Clone, Debug)]
pub struct Draws {
    stream: Stream,
    position: u64,
    block: [u32; 4],
    used: usize,
}

impl Draws {
    /// The next uniform 32-bit word.
    pub fn word(&mut self) -> u32 {
        if self.used == 4 {
            self.block = self.stream.block(self.position);
            self.position += 1;
            self.used = 0;
        }
        self.used += 1;
        self.block[self.used - 1]
    }

    /// A uniform number in `[0, 1)`.
    pub fn uniform(&mut self) -> f32 {
        unit(self.word())
    }

    /// A uniform number in `[0, 1)` with 53 random bits.
    pub fn uniform_f64(&mut self) -> f64 {
        let bits = (u64::from(self.word()) << 32 | u64::from(self.word())) >> 11;
        bits as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// A standard normal number (Box–Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform_f64()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform_f64()).cos()
    }

    /// `true` with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.uniform_f64() < p
    }

    /// A uniform integer below `bound`, without bias (Lemire's method). Zero when `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        below(bound, || self.word())
    }

    /// Puts `items` in a uniformly random order (Fisher–Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        let mut words = Words::after(self);
        for last in (1..items.len()).rev() {
            items.swap(last, below(last as u64 + 1, || words.next()) as usize);
        }
        *self = words.draws();
    }
}

#[inline(always)]
fn below(bound: u64, mut word: impl FnMut() -> u32) -> u64 {
    loop {
        let drawn = u64::from(word()) << 32 | u64::from(word());
        let product = u128::from(drawn) * u128::from(bound);
        let low = product as u64;
        // What is refused lies below 2⁶⁴ mod bound, so a division is hardly ever needed.
        if low >= bound || low >= bound.wrapping_neg().checked_rem(bound).unwrap_or(0) {
            return (product >> 64) as u64;
        }
    }
}

/// Blocks that are made at a time: one does not wait for another, so that a processor works at several.
const BLOCKS: usize = 16;

/// The words of a [`Stream`] in order, for whoever needs many.
struct Words {
    stream: Stream,
    /// The first block that has not been made.
    position: u64,
    made: [[u32; 4]; BLOCKS],
    used: usize,
}

impl Words {
    /// Those that come after what was drawn.
    fn after(draws: &Draws) -> Self {
        let mut made = [[0; 4]; BLOCKS];
        made[BLOCKS - 1] = draws.block;
        let used = 4 * (BLOCKS - 1) + draws.used;
        Self { stream: draws.stream, position: draws.position, made, used }
    }

    #[inline(always)]
    fn next(&mut self) -> u32 {
        if self.used == 4 * BLOCKS {
            self.made =
                std::array::from_fn(|block| self.stream.block(self.position + block as u64));
            self.position += BLOCKS as u64;
            self.used = 0;
        }
        self.used += 1;
        self.made.as_flattened()[self.used - 1]
    }

    /// The draws that come next.
    fn draws(&self) -> Draws {
        let block = self.used.div_ceil(4).max(1);
        let position = self.position - (BLOCKS - block) as u64;
        let used = self.used - 4 * (block - 1);
        Draws { stream: self.stream, position, block: self.made[block - 1], used }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_draws_one_number_after_the_other() {
        for length in [0, 1, 2, 3, 31, 32, 33, 34, 63, 64, 65, 66, 97, 1000] {
            for before in 0..9 {
                let mut draws = Stream::new(3, "shuffle").draws();
                (0..before).for_each(|_| {
                    draws.word();
                });
                let mut singly = draws.clone();
                let mut shuffled: Vec<usize> = (0..length).collect();
                let mut expected = shuffled.clone();
                draws.shuffle(&mut shuffled);
                for last in (1..length).rev() {
                    expected.swap(last, singly.below(last as u64 + 1) as usize);
                }
                assert_eq!(shuffled, expected);
                assert_eq!([(); 9].map(|()| draws.word()), [(); 9].map(|()| singly.word()));
            }
        }
    }

    #[test]
    fn numbers_below_a_bound_are_refused_where_they_would_be_uneven() {
        // 2⁶⁴ mod 3 is 1: of all low halves only 0 is refused; with 2⁶³ + 1, almost half of them are.
        let words = |bound: u64, words: &[u32]| {
            let mut words = words.iter().copied();
            let drawn = below(bound, || words.next().unwrap());
            (drawn, words.len())
        };
        assert_eq!(words(3, &[0, 0, 0, 1, 9]), (0, 1));
        assert_eq!(words(3, &[u32::MAX, u32::MAX, 9]), (2, 1));
        assert_eq!(words(0, &[5, 6]), (0, 0));
        let bound = (1 << 63) + 1;
        // 2⁶⁴ mod bound is 2⁶³ - 1: a low half of 2⁶³ + 1 (from 1) is taken, one of 2 (from 2) is not.
        assert_eq!(words(bound, &[0, 1]), (0, 0));
        assert_eq!(words(bound, &[0, 2, 0, 1, 9]), (0, 1));
        // One between the two: below the bound, and taken.
        assert_eq!(words(bound, &[1 << 31, 0, 9]).1, 1);
    }

    #[test]
    fn philox_matches_the_known_answers() {
        // Random123 1.14, kat_vectors, philox4x32 10.
        let check = |counter, key, expected: [u32; 4]| assert_eq!(philox(counter, key), expected);
        check([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        check([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        check(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        );
    }

    #[test]
    fn a_part_of_an_array_equals_that_part_of_the_whole() {
        let stream = Stream::new(1, "dropout");
        let mut whole = [0.0; 103];
        stream.fill_uniform(0, &mut whole);
        let mut part = [0.0; 51];
        stream.fill_uniform(52, &mut part);
        assert_eq!(whole[52..], part);
        assert!(whole.iter().all(|v| (0.0..1.0).contains(v)));
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        let mut draws = Stream::new(3, "moments").draws();
        let n = 200_000;
        let (mut mean, mut square, mut uniform) = (0.0, 0.0, 0.0);
        for _ in 0..n {
            let z = draws.normal();
            mean += z / f64::from(n);
            square += z * z / f64::from(n);
            uniform += draws.uniform_f64() / f64::from(n);
        }
        assert!(mean.abs() < 0.01 && (square - 1.0).abs() < 0.02 && (uniform - 0.5).abs() < 0.005);
    }

    #[test]
    fn below_covers_its_range_evenly_and_shuffle_keeps_every_item() {
        let mut draws = Stream::new(5, "below").draws();
        let mut counts = [0; 7];
        for _ in 0..70_000 {
            counts[draws.below(7) as usize] += 1;
        }
        assert!(counts.iter().all(|c| (9_500..10_500).contains(c)), "{counts:?}");
        let mut items: Vec<_> = (0..1000).collect();
        draws.shuffle(&mut items);
        assert_ne!(items, (0..1000).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..1000).collect::<Vec<_>>());
        assert_eq!(draws.below(0), 0);
    }
}
