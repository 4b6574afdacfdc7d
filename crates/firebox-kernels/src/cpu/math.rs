//! Vectorised exponential, logistic function and hyperbolic tangent.
//!
//! Largest relative error against float64, over all finite inputs whose result is a normal number:
//! `SIGMOID_ERROR` and `TANH_ERROR`. The tests below sweep them for every kind of vector.

use super::simd::Simd;

/// Bound on the relative error of [`sigmoid`] where its result is above 1.7e-38; below that the
/// result is 1.6e-38.
#[cfg(test)]
const SIGMOID_ERROR: f64 = 4e-7;
/// Bound on the relative error of [`tanh`].
#[cfg(test)]
const TANH_ERROR: f64 = 4e-7;

/// `e^x`, for `x` cut to ±87. Polynomial of Cephes' `expf` (Moshier).
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
pub(super) unsafe fn exp<S: Simd>(x: S::Vector) -> S::Vector {
    // SAFETY: the caller's promise is the one that `Simd` asks for.
    unsafe {
        let x = S::clamp(x, -87.0, 87.0);
        let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
        // ln 2 in two parts, so that the reduction is exact.
        let r = S::fma(n, S::splat(-0.693_359_4), x);
        let r = S::fma(n, S::splat(2.121_944_4e-4), r);
        let mut p = S::splat(1.987_569_1e-4);
        p = S::fma(p, r, S::splat(1.398_199_9e-3));
        p = S::fma(p, r, S::splat(8.333_452e-3));
        p = S::fma(p, r, S::splat(4.166_579_6e-2));
        p = S::fma(p, r, S::splat(1.666_666_5e-1));
        p = S::fma(p, r, S::splat(0.5));
        let p = S::add(S::fma(S::mul(p, r), r, r), S::splat(1.0));
        S::scale(p, n)
    }
}

/// `1 / (1 + e^-x)`
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
pub(super) unsafe fn sigmoid<S: Simd>(x: S::Vector) -> S::Vector {
    // SAFETY: the caller's promise is the one that `Simd` asks for.
    unsafe {
        let one = S::splat(1.0);
        S::div(one, S::add(one, exp::<S>(S::sub(S::splat(0.0), x))))
    }
}

/// The hyperbolic tangent: Cephes' `tanhf` polynomial near zero, where the exponential would lose
/// all digits, and `1 - 2 / (e^2x + 1)` elsewhere.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
pub(super) unsafe fn tanh<S: Simd>(x: S::Vector) -> S::Vector {
    // SAFETY: the caller's promise is the one that `Simd` asks for.
    unsafe {
        let z = S::mul(x, x);
        let mut p = S::splat(-5.704_988_7e-3);
        p = S::fma(p, z, S::splat(2.063_909e-2));
        p = S::fma(p, z, S::splat(-5.373_971_6e-2));
        p = S::fma(p, z, S::splat(1.333_144_2e-1));
        p = S::fma(p, z, S::splat(-3.333_328e-1));
        let near = S::fma(S::mul(p, z), x, x);
        let one = S::splat(1.0);
        let e = exp::<S>(S::add(x, x));
        let far = S::sub(one, S::div(S::splat(2.0), S::add(one, e)));
        S::where_small(x, 0.625, near, far)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CpuKernels, simd};
    use super::*;

    /// Both functions over all of `x`, whose length must be a multiple of 16.
    #[inline(always)]
    unsafe fn evaluate<S: Simd>(x: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (mut s, mut t) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        for at in (0..x.len()).step_by(S::LANES) {
            // SAFETY: `at + LANES` is within all three, the lengths being multiples of 16.
            unsafe {
                let v = S::load(x.as_ptr().add(at));
                S::store(s.as_mut_ptr().add(at), sigmoid::<S>(v));
                S::store(t.as_mut_ptr().add(at), tanh::<S>(v));
            }
        }
        (s, t)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    fn avx512(x: &[f32]) -> (Vec<f32>, Vec<f32>) {
        // SAFETY: the feature is on in this function.
        unsafe { evaluate::<simd::Avx512<false>>(x) }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn avx2(x: &[f32]) -> (Vec<f32>, Vec<f32>) {
        // SAFETY: the features are on in this function.
        unsafe { evaluate::<simd::Avx2>(x) }
    }

    fn run(kernels: CpuKernels, x: &[f32]) -> (Vec<f32>, Vec<f32>) {
        match kernels {
            // SAFETY: needs no feature.
            CpuKernels::Portable => unsafe { evaluate::<simd::Portable>(x) },
            // SAFETY: only available kernels are tested.
            #[cfg(target_arch = "x86_64")]
            CpuKernels::Avx2 => unsafe { avx2(x) },
            // SAFETY: only available kernels are tested.
            #[cfg(target_arch = "x86_64")]
            CpuKernels::Avx512 | CpuKernels::Avx512Bf16 => unsafe { avx512(x) },
            _ => unreachable!("not a kind of vector, or not available"),
        }
    }

    #[test]
    fn errors_stay_within_the_stated_bounds() {
        // Every 997th f32, of both signs, and a fine sweep where the functions bend.
        let mut x: Vec<f32> = (0..=f32::MAX.to_bits())
            .step_by(997)
            .flat_map(|b| [f32::from_bits(b), -f32::from_bits(b)])
            .collect();
        x.extend((-200_000..200_000).map(|i| i as f32 * 1e-4));
        x.resize(x.len().next_multiple_of(16), 0.0);
        for kernels in CpuKernels::available().into_iter().skip(1) {
            let (s, t) = run(kernels, &x);
            for ((x, s), t) in x.iter().zip(s).zip(t) {
                let exact = 1.0 / (1.0 + (-f64::from(*x)).exp());
                let error = (f64::from(s) - exact).abs();
                assert!(
                    error <= SIGMOID_ERROR * exact || (exact < 1.7e-38 && s < 1.7e-38),
                    "{kernels:?}: sigmoid({x:e}) = {s:e}, not {exact:e}"
                );
                let exact = f64::from(*x).tanh();
                let error = (f64::from(t) - exact).abs();
                assert!(
                    error <= TANH_ERROR * exact.abs() || exact.abs() < 1.2e-38,
                    "{kernels:?}: tanh({x:e}) = {t:e}, not {exact:e}"
                );
            }
        }
    }

    #[test]
    fn limits_and_nan() {
        let x: Vec<f32> = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 0.0].repeat(4);
        for kernels in CpuKernels::available().into_iter().skip(1) {
            let (s, t) = run(kernels, &x);
            assert!(s[0] == 1.0 && s[1] < 1.7e-38 && s[2].is_nan() && s[3] == 0.5, "{s:?}");
            assert!(t[0] == 1.0 && t[1] == -1.0 && t[2].is_nan() && t[3] == 0.0, "{t:?}");
        }
    }
}
