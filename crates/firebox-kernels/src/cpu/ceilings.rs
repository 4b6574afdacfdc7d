//! The most that this processor does, measured: arithmetic from registers, and memory in place.
//!
//! What a kernel takes is judged by these. Nothing here is a kernel.

use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::amx::{self, Tiles};
use super::compute::{Bf16, Compute, Split, Words};
use super::kernels::dispatch;
use super::simd::Simd;
use super::{CpuKernels, GATES};

/// Sums that do not depend on each other: enough to fill two pipelines of four steps, and few enough
/// to stay in sixteen registers with both factors.
const CHAINS: usize = 12;
/// The same where there are 32 registers: products of bf16 have more steps, and twelve sums reach 94 %
/// of what these do on Zen 5.
const MANY_CHAINS: usize = 24;
/// Products of each chain between two looks at the clock: about a millisecond.
const ROUNDS: u64 = 1 << 19;
/// Numbers of the memory that is gone through: 256 MiB, more than any processor's caches.
const NUMBERS: usize = 64 << 20;
/// How long each ceiling is measured, so that a disturbed moment does not count.
const MEASURED: Duration = Duration::from_millis(250);

/// The most that all threads of rayon's pool reach together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuCeilings {
    /// Additions and multiplications of f32 a second, by vectors or in tiles.
    pub f32_flops: f64,
    /// The same of products of bf16 that are summed in f32, as the kernels form them here.
    pub bf16_flops: f64,
    /// Bytes a second read and written, of numbers that are updated in place.
    pub memory_bytes: f64,
}

impl CpuCeilings {
    /// Measures them, in about a second on an idle machine, with the widest vectors that it has and its tiles.
    pub fn measure() -> Self {
        let kernels = CpuKernels::available().last().copied().unwrap_or(CpuKernels::Portable);
        Self {
            f32_flops: arithmetic(kernels, false),
            bf16_flops: arithmetic(kernels, true),
            memory_bytes: memory(),
        }
    }
}

/// Operations a second of all threads, the best of several measurements.
fn arithmetic(kernels: CpuKernels, bf16: bool) -> f64 {
    let in_tiles = if bf16 { in_tiles::<Bf16>(kernels) } else { in_tiles::<Split>(kernels) };
    let vectors = best(|| {
        let operations = rayon::broadcast(|_| {
            let mut operations = 0;
            let pairs = Words::of(kernels, bf16) == Words::Bf16;
            chains(kernels, pairs, ROUNDS, &mut operations);
            operations
        });
        operations.iter().sum::<u64>() as f64
    });
    vectors.max(in_tiles)
}

/// The same in tiles of AMX; 0 without.
fn in_tiles<C: Compute>(kernels: CpuKernels) -> f64 {
    if Tiles::of::<C>(kernels).is_none() {
        return 0.0;
    }
    best(|| {
        let of_a_thread = |tiles: Tiles| products::<C>(&tiles);
        let operations =
            rayon::broadcast(|_| Tiles::of::<C>(kernels).map(of_a_thread).unwrap_or_default());
        operations.iter().sum::<u64>() as f64
    })
}

/// Products of AMX, of operands that stay in the first cache: how many operations that were.
fn products<C: Compute>(tiles: &Tiles) -> u64 {
    const TIMES: usize = 64;
    const ROUNDS: u64 = 1 << 7;
    let groups = if C::PIECES == 1 { 4 } else { 2 };
    let inner = groups * C::PIECES * amx::TILE;
    let [a, b] = [amx::TILE * inner, inner * GATES].map(|count| vec![0.0f32; count]);
    let mut sums = [0.0; amx::TILE * GATES];
    let part =
        amx::Part { a: a.as_ptr(), a_row: inner, b: b.as_ptr(), b_row: GATES, groups, ahead: None };
    for _ in 0..ROUNDS {
        let out = (sums.as_mut_ptr(), GATES);
        // SAFETY: sixteen rows of both operands and of the sums.
        unsafe { tiles.product(4, std::iter::repeat_n(part, TIMES), out, amx::kept(out)) };
    }
    std::hint::black_box(sums);
    // A word is two numbers, and each of them is multiplied and added.
    ROUNDS * (TIMES * 4 * amx::TILE * groups * amx::TILE * GATES) as u64
}

/// Bytes a second of an update in place.
fn memory() -> f64 {
    let mut numbers = super::zeros(NUMBERS);
    best(|| {
        numbers.par_chunks_mut(1 << 16).for_each(|part| {
            part.iter_mut().for_each(|number| *number = *number * 0.5 + 1.0);
        });
        2.0 * size_of_val(&numbers[..]) as f64
    })
}

/// The best rate of some work that returns how much it did.
fn best(mut work: impl FnMut() -> f64) -> f64 {
    let (begin, mut best) = (Instant::now(), 0.0f64);
    while begin.elapsed() < MEASURED {
        let start = Instant::now();
        let done = work();
        best = best.max(done / start.elapsed().as_secs_f64());
    }
    best
}

dispatch!(fn chains = chains_of(pairs: bool, rounds: u64, operations: &mut u64));

/// Sums up products of constants, and tells how many operations that were.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn chains_of<S: Simd>(pairs: bool, rounds: u64, operations: &mut u64) {
    // SAFETY: the caller's promise is the same.
    unsafe {
        match S::LANES {
            // Two registers each.
            _ if S::APART => so_many_chains::<S, { CHAINS / 2 }>(pairs, rounds, operations),
            16 => so_many_chains::<S, MANY_CHAINS>(pairs, rounds, operations),
            _ => so_many_chains::<S, CHAINS>(pairs, rounds, operations),
        }
    }
}

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn so_many_chains<S: Simd, const N: usize>(pairs: bool, rounds: u64, operations: &mut u64) {
    // SAFETY: the caller's promise is the same.
    unsafe {
        // Two halves of 1 in bf16 are small as an f32, and so are the sums.
        let factor = S::splat(f32::from_bits(0x3f80_3f80));
        let mut sums = [S::splat(0.0); N];
        // Two loops: with the choice within one, its sums went through memory.
        if pairs {
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = S::dot(factor, factor, *sum);
                }
            }
        } else {
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = S::fma(factor, factor, *sum);
                }
            }
        }
        std::hint::black_box(sums);
    }
    let of_a_lane = if pairs { 4 } else { 2 };
    *operations = rounds * N as u64 * S::LANES as u64 * of_a_lane;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wider_vectors_compute_more_and_all_ceilings_are_those_of_a_computer() {
        let ceilings = CpuCeilings::measure();
        for (rate, low, high) in [
            (ceilings.f32_flops, 1e8, 1e14),
            (ceilings.bf16_flops, 1e8, 1e15),
            (ceilings.memory_bytes, 1e8, 1e13),
        ] {
            assert!((low..high).contains(&rate), "{ceilings:?}");
        }
        if let [.., widest] = CpuKernels::available()[2..] {
            let (narrow, wide) =
                (arithmetic(CpuKernels::Portable, false), arithmetic(widest, false));
            assert!(wide > narrow, "{widest:?}: {wide}, portable: {narrow}");
        }
    }
}
