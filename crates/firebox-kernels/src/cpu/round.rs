//! Numbers rounded to a narrower type and back, in place.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;

/// Numbers that a thread takes at once.
const TASK: usize = 64 * PART;
/// Numbers whose narrow copies stay in the first cache.
const PART: usize = 1024;

/// A type that is narrower than f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Narrow {
    /// 5 bits of exponent, 10 of fraction: up to 65,504.
    F16,
    /// f32 with 7 bits of fraction.
    Bf16,
}

/// Rounds to the nearest number of the type, ties to even, by the processor's instructions where it
/// has them.
pub(crate) fn round(narrow: Narrow, values: &mut [f32]) {
    values.par_chunks_mut(TASK).for_each(|task| {
        for part in task.chunks_mut(PART) {
            match narrow {
                Narrow::F16 => through(part, &mut [f16::ZERO; PART]),
                Narrow::Bf16 => through(part, &mut [bf16::ZERO; PART]),
            }
        }
    });
}

fn through<T>(part: &mut [f32], narrow: &mut [T; PART])
where
    [T]: HalfFloatSliceExt,
{
    let narrow = &mut narrow[..part.len()];
    narrow.convert_from_f32_slice(part);
    narrow.convert_to_f32_slice(part);
}
