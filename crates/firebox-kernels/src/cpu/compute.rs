//! What the operands of products are: f32, pairs of bf16 that are summed in f32, f32 that were rounded to bf16, or f32
//! as sums of three bf16.
//!
//! All packed operands are made of words of 32 bits, one f32 or two bf16, so that the same kernels
//! walk over all. A row of `n` numbers takes `words(n)` words; with pairs, word `w` holds the
//! numbers `w` and `w + words(n)`, so that rows are packed by whole vectors. Rows in pieces are laid out
//! [by groups](super::product::words).

use super::kernels::CompiledFor;
use super::simd::{Simd, pair};
use super::{BLOCK, CpuKernels, GATES};

/// What the words of packed operands are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    F32,
    Bf16,
    Rounded,
    Split,
}

impl Words {
    /// What products without pieces are computed from, in f32 or in bf16.
    pub(super) fn of(kernels: CpuKernels, bf16: bool) -> Self {
        match bf16 {
            true if kernels.multiplies_pairs() => Self::Bf16,
            true => Self::Rounded,
            false => Self::F32,
        }
    }
}

/// `$call` with the type `$C` of these words, which are no pieces.
macro_rules! in_whole_words {
    ($packing:expr, $C:ident => $call:expr) => {
        match $packing {
            $crate::cpu::compute::Words::F32 => {
                type $C = $crate::cpu::compute::F32;
                $call
            }
            $crate::cpu::compute::Words::Bf16 => {
                type $C = $crate::cpu::compute::Bf16;
                $call
            }
            $crate::cpu::compute::Words::Rounded => {
                type $C = $crate::cpu::compute::Rounded;
                $call
            }
            $crate::cpu::compute::Words::Split => unreachable!("numbers that are not cut"),
        }
    };
}
pub(super) use in_whole_words;

/// `$call` with the type `$C` of these words.
macro_rules! in_words {
    ($packing:expr, $C:ident => $call:expr) => {
        match $packing {
            $crate::cpu::compute::Words::Split => {
                type $C = $crate::cpu::compute::Split;
                $call
            }
            whole => $crate::cpu::compute::in_whole_words!(whole, $C => $call),
        }
    };
}
pub(super) use in_words;

/// The type of the operands. Sums, gate functions and states are f32 whatever it is.
pub(super) trait Compute: CompiledFor + Copy {
    /// Numbers in a word.
    const PAIR: usize;
    /// Whether a number is its own word: operands are then read where they lie.
    const VERBATIM: bool = false;
    /// bf16 that a number is the sum of, each in words of its own.
    const PIECES: usize = 1;
    /// Whether gate functions need no more digits than operands in bf16 have.
    const COARSE: bool = Self::PAIR > 1;
    /// Numbers that [`save`](Compute::save) keeps of the gates of a block.
    const KEPT: usize = GATES / Self::PAIR;

    /// `a * b + c`, for a word of a product's operands in each lane.
    ///
    /// # Safety
    /// That of [`Simd`].
    unsafe fn fma<S: Simd>(a: S::Vector, b: S::Vector, c: S::Vector) -> S::Vector;

    /// In each lane the word of `low`, and of `high` as well if words are pairs.
    ///
    /// # Safety
    /// That of [`Simd`].
    #[inline(always)]
    unsafe fn join<S: Simd>(low: S::Vector, high: S::Vector) -> S::Vector {
        // SAFETY: the caller's promise is the same.
        unsafe { S::pair(low, high) }
    }

    /// [`join`](Compute::join) of one lane.
    #[inline(always)]
    fn join_one(low: f32, high: f32) -> f32 {
        pair(low, high)
    }

    /// [`join`](Compute::join) of each of two rows of numbers that lie apart.
    ///
    /// # Safety
    /// That of [`Simd`].
    #[inline(always)]
    unsafe fn join_rows<S: Simd>(low: &[f32], high: &[f32], words: &mut [f32]) {
        let count = words.len();
        assert!(low.len() == count && high.len() == count, "rows of {count}");
        let whole = count / S::LANES * S::LANES;
        for at in (0..whole).step_by(S::LANES) {
            // SAFETY: `at + LANES` is within all three.
            unsafe {
                let (low, high) = (S::load(low.as_ptr().add(at)), S::load(high.as_ptr().add(at)));
                S::store(words.as_mut_ptr().add(at), Self::join::<S>(low, high));
            }
        }
        for at in whole..count {
            words[at] = Self::join_one(low[at], high[at]);
        }
    }

    /// Keeps the four gates of a block for the backward pass, in `KEPT / BLOCK` vectors, a block apart; in bf16
    /// [folded](Simd::fold), those of them that lie from 0 to 1. Gradients are multiplied by such a gate at each step:
    /// 0.9985, rounded to the 1 that is next to it, would be 1 and not 0.22 after a thousand.
    ///
    /// # Safety
    /// That of [`Simd`], with room for those vectors.
    unsafe fn save<S: Simd>(at: *mut f32, gates: [S::Vector; 4], are_shares: [bool; 4]);

    /// Words of the four gates of a block that tiles or vectors multiply, [`gate_words`](Compute::gate_words) of
    /// them; where the numbers are the words, there is nothing to do.
    ///
    /// # Safety
    /// That of [`Simd`], with room for those vectors.
    #[inline(always)]
    unsafe fn save_words<S: Simd>(at: *mut f32, gates: [S::Vector; 4]) {
        if Self::PAIR > 1 {
            // SAFETY: the caller's promise is the same.
            unsafe { Self::save::<S>(at, gates, [false; 4]) }
        }
    }

    /// What [`save`](Compute::save) kept.
    ///
    /// # Safety
    /// That of [`Simd`]; the vectors are there.
    unsafe fn restore<S: Simd>(at: *const f32, are_shares: [bool; 4]) -> [S::Vector; 4];

    /// Words of the four gates of a block.
    #[inline(always)]
    fn gate_words() -> usize {
        GATES / Self::PAIR * Self::PIECES
    }

    /// Words of a row of `count` numbers.
    #[inline(always)]
    fn words(count: usize) -> usize {
        count.div_ceil(Self::PAIR)
    }

    /// The word `word` of a row of `count` numbers.
    #[inline(always)]
    fn word(count: usize, word: usize, number: impl Fn(usize) -> f32) -> f32 {
        let second = word + Self::words(count);
        let high = if Self::PAIR == 2 && second < count { number(second) } else { 0.0 };
        Self::join_one(number(word), high)
    }

    /// Packs a row.
    ///
    /// # Safety
    /// That of [`Simd`].
    #[inline(always)]
    unsafe fn pack<S: Simd>(row: &[f32], words: &mut [f32]) {
        let count = row.len();
        let half = Self::words(count);
        assert_eq!(words.len(), half);
        let high = if Self::PAIR == 2 { &row[half..] } else { row };
        let (joined, last) = words.split_at_mut(high.len());
        // SAFETY: the caller's promise is the same.
        unsafe { Self::join_rows::<S>(&row[..joined.len()], high, joined) };
        // The last word of an odd count has one number.
        for word in last {
            *word = Self::join_one(row[half - 1], 0.0);
        }
    }
}

/// IEEE single precision.
#[derive(Clone, Copy)]
pub(super) struct F32;

impl CompiledFor for F32 {
    const AVX512_BF16: bool = false;
}

impl Compute for F32 {
    const PAIR: usize = 1;
    const VERBATIM: bool = true;

    #[inline(always)]
    unsafe fn fma<S: Simd>(a: S::Vector, b: S::Vector, c: S::Vector) -> S::Vector {
        // SAFETY: the caller's promise is the one that `Simd` asks for.
        unsafe { S::fma(a, b, c) }
    }

    #[inline(always)]
    unsafe fn join<S: Simd>(low: S::Vector, _: S::Vector) -> S::Vector {
        low
    }

    #[inline(always)]
    fn join_one(low: f32, _: f32) -> f32 {
        low
    }

    #[inline(always)]
    unsafe fn save<S: Simd>(at: *mut f32, gates: [S::Vector; 4], _: [bool; 4]) {
        for (index, gate) in gates.into_iter().enumerate() {
            // SAFETY: as above, and there is room for four vectors.
            unsafe { S::store(at.add(index * BLOCK), gate) };
        }
    }

    #[inline(always)]
    unsafe fn restore<S: Simd>(at: *const f32, _: [bool; 4]) -> [S::Vector; 4] {
        // SAFETY: as above; the four vectors are there.
        unsafe {
            let (i, f) = (S::load(at), S::load(at.add(BLOCK)));
            [i, f, S::load(at.add(2 * BLOCK)), S::load(at.add(3 * BLOCK))]
        }
    }
}

/// Eight bits of mantissa, two numbers a word: for processors that multiply such pairs as fast as words of f32.
#[derive(Clone, Copy)]
pub(super) struct Bf16;

/// Nothing else multiplies them: where tiles do, there is that instruction, too.
impl CompiledFor for Bf16 {
    const AVX2: bool = false;
    const AVX512: bool = false;
}

impl Compute for Bf16 {
    const PAIR: usize = 2;

    #[inline(always)]
    unsafe fn fma<S: Simd>(a: S::Vector, b: S::Vector, c: S::Vector) -> S::Vector {
        // SAFETY: the caller's promise is the one that `Simd` asks for.
        unsafe { S::dot(a, b, c) }
    }

    #[inline(always)]
    unsafe fn save<S: Simd>(at: *mut f32, mut gates: [S::Vector; 4], are_shares: [bool; 4]) {
        // SAFETY: as above, and there is room for two vectors.
        unsafe {
            for (gate, is_share) in gates.iter_mut().zip(are_shares) {
                if is_share {
                    *gate = S::fold(*gate);
                }
            }
            let [i, f, g, o] = gates;
            S::store(at, S::pair(i, f));
            S::store(at.add(BLOCK), S::pair(g, o));
        }
    }

    #[inline(always)]
    unsafe fn restore<S: Simd>(at: *const f32, are_shares: [bool; 4]) -> [S::Vector; 4] {
        // SAFETY: as above; the two vectors are there.
        unsafe {
            let (i, f) = S::unpair(S::load(at));
            let (g, o) = S::unpair(S::load(at.add(BLOCK)));
            let mut gates = [i, f, g, o];
            for (gate, is_share) in gates.iter_mut().zip(are_shares) {
                if is_share {
                    *gate = S::unfold(*gate);
                }
            }
            gates
        }
    }
}

/// Numbers that were rounded to bf16, as f32: for processors that multiply pairs of them more slowly, or not at all. To
/// take words of pairs apart for each product would take longer than the products.
#[derive(Clone, Copy)]
pub(super) struct Rounded;

impl CompiledFor for Rounded {
    const AVX512_BF16: bool = false;
}

impl Compute for Rounded {
    const PAIR: usize = 1;
    const COARSE: bool = true;
    const KEPT: usize = Bf16::KEPT;

    #[inline(always)]
    unsafe fn fma<S: Simd>(a: S::Vector, b: S::Vector, c: S::Vector) -> S::Vector {
        // SAFETY: the caller's promise is the one that `Simd` asks for.
        unsafe { S::fma(a, b, c) }
    }

    #[inline(always)]
    unsafe fn join<S: Simd>(low: S::Vector, _: S::Vector) -> S::Vector {
        // SAFETY: the caller's promise is the same.
        unsafe { S::rounded(low) }
    }

    #[inline(always)]
    fn join_one(low: f32, _: f32) -> f32 {
        f32::from_bits(pair(0.0, low).to_bits() & 0xffff_0000)
    }

    /// As pairs: they are read once, and half as much memory is.
    #[inline(always)]
    unsafe fn save<S: Simd>(at: *mut f32, gates: [S::Vector; 4], are_shares: [bool; 4]) {
        // SAFETY: the caller's promise is the same.
        unsafe { Bf16::save::<S>(at, gates, are_shares) }
    }

    #[inline(always)]
    unsafe fn restore<S: Simd>(at: *const f32, are_shares: [bool; 4]) -> [S::Vector; 4] {
        // SAFETY: as above.
        unsafe { Bf16::restore::<S>(at, are_shares) }
    }
}

/// f32 as the sum of three bf16, for the tiles of AMX: eight bits of mantissa each, cut off one after the other,
/// which are the 24 of f32. A product of two is the sum of the six larger ones of the nine products of pieces, in f32
/// (Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
/// Computations", ARITH 2019, who round the pieces). What the other three leave out is below 2^-21 of it, 2^-24 on
/// average. Below 2^-103 the last pieces are denormal, and count as zero; infinity becomes NaN.
#[derive(Clone, Copy)]
pub(super) struct Split;

/// Where there are tiles, there is AVX-512.
impl CompiledFor for Split {
    const AVX2: bool = false;
    const AVX512_BF16: bool = false;
}

impl Compute for Split {
    const PAIR: usize = 2;
    const PIECES: usize = 3;
    const COARSE: bool = false;
    const KEPT: usize = GATES;

    /// Of numbers as they are: words of pieces are multiplied in tiles.
    #[inline(always)]
    unsafe fn fma<S: Simd>(a: S::Vector, b: S::Vector, c: S::Vector) -> S::Vector {
        // SAFETY: the caller's promise is the one that `Simd` asks for.
        unsafe { S::fma(a, b, c) }
    }

    #[inline(always)]
    unsafe fn save<S: Simd>(at: *mut f32, gates: [S::Vector; 4], are_shares: [bool; 4]) {
        // SAFETY: the caller's promise is the same.
        unsafe { F32::save::<S>(at, gates, are_shares) }
    }

    #[inline(always)]
    unsafe fn restore<S: Simd>(at: *const f32, are_shares: [bool; 4]) -> [S::Vector; 4] {
        // SAFETY: as above.
        unsafe { F32::restore::<S>(at, are_shares) }
    }

    /// Two groups: of the first two gates, and of the others.
    #[inline(always)]
    unsafe fn save_words<S: Simd>(at: *mut f32, [i, f, g, o]: [S::Vector; 4]) {
        for (group, (low, high)) in [(i, f), (g, o)].into_iter().enumerate() {
            // SAFETY: as above, and there is room for two groups.
            unsafe { Self::store::<S>(at.add(group * Self::PIECES * BLOCK), low, high, BLOCK) };
        }
    }
}

impl Split {
    /// Stores the words of the pieces of numbers, so many numbers apart.
    ///
    /// # Safety
    /// That of [`Simd`], with room for three vectors.
    #[inline(always)]
    pub(super) unsafe fn store<S: Simd>(
        at: *mut f32,
        low: S::Vector,
        high: S::Vector,
        apart: usize,
    ) {
        // SAFETY: the caller's promise is the same.
        unsafe {
            let [first, second, third] = Self::pieces::<S>(low, high);
            S::store(at, first);
            S::store(at.add(apart), second);
            S::store(at.add(2 * apart), third);
        }
    }

    /// A word of a piece of two numbers, the first one of which is the largest.
    #[inline(always)]
    pub(super) fn piece(low: f32, high: f32, piece: usize) -> f32 {
        let cut = |x: f32| x.to_bits() & 0xffff_0000;
        let cut = |mut x: f32| {
            for _ in 0..piece {
                x -= f32::from_bits(cut(x));
            }
            cut(x)
        };
        f32::from_bits(cut(high) | cut(low) >> 16)
    }

    /// The three pieces of numbers, the largest first, each in words of `low` and `high`.
    ///
    /// # Safety
    /// That of [`Simd`].
    #[inline(always)]
    pub(super) unsafe fn pieces<S: Simd>(low: S::Vector, high: S::Vector) -> [S::Vector; 3] {
        // SAFETY: the caller's promise is the same.
        unsafe {
            // Exact: what is left has no more bits than were not cut off.
            let (low2, high2) = (S::sub(low, S::unpair(low).1), S::sub(high, S::unpair(high).1));
            let low3 = S::sub(low2, S::unpair(low2).1);
            let high3 = S::sub(high2, S::unpair(high2).1);
            [S::cut(low, high), S::cut(low2, high2), S::cut(low3, high3)]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernels::dispatch;
    use super::*;

    dispatch!(fn run<C: Compute> = keep(from: &[f32], to: &mut [f32]));

    /// What is kept of the four gates of a block, the third of them from -1 to 1.
    #[inline(always)]
    unsafe fn keep<S: Simd, C: Compute>(from: &[f32], to: &mut [f32]) {
        let mut kept = [0.0; GATES];
        let shares = [true, true, false, true];
        for lane in (0..BLOCK).step_by(S::LANES) {
            let (at, kept) = (from[lane..].as_ptr(), kept[lane..].as_mut_ptr());
            // SAFETY: four vectors, a block apart, are within all three.
            unsafe {
                let gate = |gate: usize| S::load(at.add(gate * BLOCK));
                C::save::<S>(kept, [gate(0), gate(1), gate(2), gate(3)], shares);
                for (gate, x) in C::restore::<S>(kept, shares).into_iter().enumerate() {
                    S::store(to[lane..].as_mut_ptr().add(gate * BLOCK), x);
                }
            }
        }
    }

    #[test]
    fn kept_gates_are_as_exact_near_one_as_near_zero() {
        // From 0 to 1, finer towards both ends, and the two ends.
        let near = (0..4 * BLOCK).map(|i| 0.5 * 0.75_f32.powi(i as i32));
        let mut shares: Vec<f32> = near.flat_map(|x| [x, 1.0 - x]).collect();
        shares.extend([0.0, 1.0, f32::NAN, 1.0 - f32::EPSILON / 2.0]);
        for kernels in CpuKernels::available().into_iter().skip(1) {
            for (x, other) in shares.iter().zip(shares.iter().rev()) {
                let mut gates = [*x; GATES];
                gates[2 * BLOCK..3 * BLOCK].fill(-x);
                gates[3 * BLOCK..].fill(*other);
                let mut exact = [0.0; GATES];
                run::<F32>(kernels, &gates, &mut exact);
                assert!(x.is_nan() || other.is_nan() || exact == gates, "{kernels:?}");
                let mut found = [0.0; GATES];
                if kernels.multiplies_pairs() {
                    run::<Bf16>(kernels, &gates, &mut found);
                } else {
                    run::<Rounded>(kernels, &gates, &mut found);
                }
                for (index, (found, gate)) in found.into_iter().zip(gates).enumerate() {
                    let room = if index / BLOCK == 2 { gate.abs() } else { gate.min(1.0 - gate) };
                    let is_near = (found - gate).abs() <= room / 256.0;
                    assert!(
                        is_near || found.is_nan() && gate.is_nan(),
                        "{kernels:?}: {gate}, {found}"
                    );
                }
            }
        }
    }
}
