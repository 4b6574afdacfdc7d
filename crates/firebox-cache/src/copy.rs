//! Copying stored numbers: those of half the size on their way, and more than the processor's caches hold.
//!
//! A store usually fetches the line that it changes. Where a copy is not read again before the caches have
//! forgotten it, that is a third of the traffic for nothing: stores past the caches leave it out.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Numbers that a wide instruction takes.
#[cfg(target_arch = "x86_64")]
const WIDE: usize = 8;
/// Bytes from which on a copy goes past the caches: about what the second of them holds.
const LARGE: usize = 1 << 20;

/// Whether a copy of so many numbers is better made past the caches.
pub(crate) fn is_large(numbers: usize) -> bool {
    numbers >= LARGE / size_of::<f32>()
}

/// Copies numbers; past the caches if they are part of a `large` copy.
///
/// # Panics
///
/// When `out` has another length.
pub(crate) fn copy(values: &[f32], large: bool, out: &mut [f32]) {
    assert_eq!(out.len(), values.len(), "one place for each value");
    #[cfg(target_arch = "x86_64")]
    if large && is_x86_feature_detected!("avx") {
        // SAFETY: the processor has AVX, and the lengths are equal.
        unsafe { past_the_caches(values, out) };
        return;
    }
    let _ = large;
    out.copy_from_slice(values);
}

/// Copies numbers by stores of half a line each, of which the processor makes whole lines.
///
/// # Safety
///
/// The processor has AVX, and both slices have the same length.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn past_the_caches(from: &[f32], to: &mut [f32]) {
    use std::arch::x86_64::{_mm_sfence, _mm256_loadu_ps, _mm256_stream_ps};
    let head = to.as_ptr().align_offset(WIDE * size_of::<f32>()).min(to.len());
    let length = to.len();
    let tail = head + (length - head) / WIDE * WIDE;
    let (from, to) = (from.as_ptr(), to.as_mut_ptr());
    // SAFETY: all places lie within the slices, whose lengths are equal, and wide stores begin at multiples
    // of their size, from the `head`-th number on.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for place in (head..tail).step_by(WIDE) {
            _mm256_stream_ps(to.add(place), _mm256_loadu_ps(from.add(place)));
        }
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), length - tail);
        // Whoever reads on another thread finds what was stored.
        _mm_sfence();
    }
}

/// Whether the processor makes f32 of f16 by whole vectors.
pub(crate) fn has_f16() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx") && is_x86_feature_detected!("f16c");
    #[cfg(not(target_arch = "x86_64"))]
    return cfg!(target_arch = "aarch64");
}

/// Makes f32 of f16, bit for bit as `half` does.
///
/// # Panics
///
/// When `out` has another length.
pub(crate) fn widen_f16(values: &[f16], out: &mut [f32]) {
    assert_eq!(out.len(), values.len(), "one value for each stored value");
    #[cfg(target_arch = "x86_64")]
    if has_f16() {
        // SAFETY: the processor has both, and the lengths are equal.
        unsafe { widen_f16_wide(values, out) };
        return;
    }
    values.convert_to_f32_slice(out);
}

/// # Safety
///
/// The processor has AVX and F16C, and both slices have the same length.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx,f16c")]
unsafe fn widen_f16_wide(values: &[f16], out: &mut [f32]) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
    let wide = values.len() / WIDE * WIDE;
    for place in (0..wide).step_by(WIDE) {
        // SAFETY: eight values from `place` on lie within both slices.
        unsafe {
            let halves = _mm_loadu_si128(values.as_ptr().add(place).cast());
            _mm256_storeu_ps(out.as_mut_ptr().add(place), _mm256_cvtph_ps(halves));
        }
    }
    values[wide..].convert_to_f32_slice(&mut out[wide..]);
}

/// Makes f32 of bf16, whose bits are the upper half of theirs.
///
/// # Panics
///
/// When `out` has another length.
pub(crate) fn widen_bf16(values: &[bf16], out: &mut [f32]) {
    assert_eq!(out.len(), values.len(), "one value for each stored value");
    let bits = values.reinterpret_cast();
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        unsafe { widen_bits_wide(bits, out) };
        return;
    }
    widen_bits(bits, out);
}

/// The same loop with wide instructions.
///
/// # Safety
///
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn widen_bits_wide(bits: &[u16], out: &mut [f32]) {
    widen_bits(bits, out);
}

#[inline(always)]
fn widen_bits(bits: &[u16], out: &mut [f32]) {
    for (out, bits) in out.iter_mut().zip(bits) {
        *out = f32::from_bits(u32::from(*bits) << 16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_becomes_the_number_that_it_is() {
        for bits in 0..=u16::MAX {
            let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            for place in [0, 6, 8] {
                let mut out = [0.0; 9];
                let (mut halves, mut brains) = ([f16::ONE; 9], [bf16::ONE; 9]);
                (halves[place], brains[place]) = (half, brain);
                let same = |found: f32, expected: f32| {
                    found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan())
                };
                widen_f16(&halves, &mut out);
                assert!(same(out[place], half.to_f32()) && out[7] == 1.0, "{bits:x}");
                widen_bf16(&brains, &mut out);
                assert!(same(out[place], brain.to_f32()) && out[7] == 1.0, "{bits:x}");
            }
        }
    }

    #[test]
    fn copies_past_the_caches_are_copies() {
        let values: Vec<f32> = (0..1000).map(|value| value as f32).collect();
        for start in 0..20 {
            for length in [0, 1, 7, 8, 9, 31, 64, 900] {
                for before in 0..10 {
                    let mut out = vec![-1.0; before + length + 3 + 1];
                    let (here, behind) = out[before..before + length + 3].split_at_mut(length);
                    copy(&values[start..start + length], true, here);
                    copy(&values[..3], false, behind);
                    let (head, tail) = (vec![-1.0; before], [-1.0]);
                    let expected =
                        [&head, &values[start..start + length], &values[..3], tail.as_slice()];
                    assert_eq!(out, expected.concat());
                }
            }
        }
    }
}
