//! Vectorised exponential and error function. Those of recurrent cells are in `gates.rs`.
//!
//! Largest relative error against float64, over all finite inputs whose result is a normal number:
//! `EXP_ERROR`, `EXP2_ERROR` and `ERF_ERROR`. The tests below sweep them for every kind of vector.

use super::simd::Simd;

/// Bound on the relative error of [`exp`] between -87 and 87.
#[cfg(test)]
const EXP_ERROR: f64 = 3e-7;
/// Bound on the relative error of [`exp2`] between -126 and 126.
#[cfg(test)]
const EXP2_ERROR: f64 = 3e-7;
/// Bound on the relative error of [`erf`] where its result is above 1e-36 either way.
#[cfg(test)]
const ERF_ERROR: f64 = 5e-7;

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

/// `2^x`, for `x` cut to ±126. Polynomial of Cephes' `exp2f` (Moshier).
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
pub(super) unsafe fn exp2<S: Simd>(x: S::Vector) -> S::Vector {
    // SAFETY: the caller's promise is the one that `Simd` asks for.
    unsafe {
        let x = S::clamp(x, -126.0, 126.0);
        let n = S::round(x);
        let r = S::sub(x, n);
        let mut p = S::splat(1.535_336_2e-4);
        p = S::fma(p, r, S::splat(1.339_887_5e-3));
        p = S::fma(p, r, S::splat(9.618_437e-3));
        p = S::fma(p, r, S::splat(5.550_332_5e-2));
        p = S::fma(p, r, S::splat(2.402_264_8e-1));
        p = S::fma(p, r, S::splat(6.931_472e-1));
        S::scale(S::fma(p, r, S::splat(1.0)), n)
    }
}

/// The error function: the rational approximation of Eigen's `generic_fast_erf_float` near zero, and
/// one where f32 has no other number.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
pub(super) unsafe fn erf<S: Simd>(x: S::Vector) -> S::Vector {
    // SAFETY: the caller's promise is the one that `Simd` asks for.
    unsafe {
        let near = S::clamp(x, -4.0, 4.0);
        let z = S::mul(near, near);
        let mut p = S::splat(-2.726_142_3e-10);
        p = S::fma(p, z, S::splat(2.770_681_4e-8));
        p = S::fma(p, z, S::splat(-2.101_024e-6));
        p = S::fma(p, z, S::splat(-5.692_506_4e-5));
        p = S::fma(p, z, S::splat(-7.349_906_3e-4));
        p = S::fma(p, z, S::splat(-2.954_6e-3));
        p = S::fma(p, z, S::splat(-1.609_603_3e-2));
        let mut q = S::splat(-1.456_607_2e-5);
        q = S::fma(q, z, S::splat(-2.133_740_6e-4));
        q = S::fma(q, z, S::splat(-1.682_827e-3));
        q = S::fma(q, z, S::splat(-7.373_329e-3));
        q = S::fma(q, z, S::splat(-1.426_473_9e-2));
        S::where_small(x, 3.9, S::div(S::mul(near, p), q), S::clamp(x, -1.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CpuKernels, simd};
    use super::*;

    /// Exponentials and error function.
    type Values = [Vec<f32>; 3];

    /// All functions over all of `x`, whose length must be a multiple of 16.
    #[inline(always)]
    unsafe fn evaluate<S: Simd>(x: &[f32]) -> Values {
        let [mut e, mut two, mut f] = [(); 3].map(|()| vec![0.0; x.len()]);
        for at in (0..x.len()).step_by(S::LANES) {
            // SAFETY: `at + LANES` is within all three, the lengths being multiples of 16.
            unsafe {
                let v = S::load(x.as_ptr().add(at));
                S::store(e.as_mut_ptr().add(at), exp::<S>(v));
                S::store(two.as_mut_ptr().add(at), exp2::<S>(v));
                S::store(f.as_mut_ptr().add(at), erf::<S>(v));
            }
        }
        [e, two, f]
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    fn avx512(x: &[f32]) -> Values {
        // SAFETY: the feature is on in this function.
        unsafe { evaluate::<simd::Avx512<false>>(x) }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn avx2(x: &[f32]) -> Values {
        // SAFETY: the features are on in this function.
        unsafe { evaluate::<simd::Avx2>(x) }
    }

    fn run(kernels: CpuKernels, x: &[f32]) -> Values {
        match kernels.vectors() {
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

    /// The series around zero, and beyond 3 the continued fraction of what is missing to one.
    fn exact_erf(x: f64) -> f64 {
        let scale = std::f64::consts::FRAC_2_SQRT_PI;
        if x.abs() > 6.0 {
            return x.signum();
        }
        if x.abs() < 3.0 {
            let (mut term, mut sum) = (x, x);
            for n in 1..60 {
                term *= -x * x / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            return scale * sum;
        }
        let fraction = (1..80).rev().fold(0.0, |rest, n| f64::from(n) / 2.0 / (x.abs() + rest));
        x.signum() * (1.0 - (-x * x).exp() * scale / 2.0 / (x.abs() + fraction))
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
            let [e, two, f] = run(kernels, &x);
            for (x, two) in x.iter().zip(two) {
                let exact = f64::from(*x).exp2();
                let error = (f64::from(two) - exact).abs();
                assert!(
                    error <= EXP2_ERROR * exact || x.abs() > 126.0,
                    "{kernels:?}: exp2({x:e}) = {two:e}, not {exact:e}"
                );
            }
            for ((x, e), f) in x.iter().zip(e).zip(f) {
                let exact = f64::from(*x).exp();
                let error = (f64::from(e) - exact).abs();
                assert!(
                    error <= EXP_ERROR * exact || x.abs() > 87.0,
                    "{kernels:?}: exp({x:e}) = {e:e}, not {exact:e}"
                );
                let exact = exact_erf(f64::from(*x));
                let error = (f64::from(f) - exact).abs();
                assert!(
                    error <= ERF_ERROR * exact.abs() || exact.abs() < 1e-36,
                    "{kernels:?}: erf({x:e}) = {f:e}, not {exact:e}"
                );
            }
        }
    }

    #[test]
    fn limits_and_nan() {
        let x: Vec<f32> = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 0.0].repeat(4);
        for kernels in CpuKernels::available().into_iter().skip(1) {
            let [e, two, f] = run(kernels, &x);
            assert!(
                two[0] > 1e37 && two[1] < 1.7e-38 && two[2].is_nan() && two[3] == 1.0,
                "{two:?}"
            );
            assert!(e[0] > 1e37 && e[1] < 1.7e-38 && e[2].is_nan() && e[3] == 1.0, "{e:?}");
            assert!(f[0] == 1.0 && f[1] == -1.0 && f[2].is_nan() && f[3] == 0.0, "{f:?}");
        }
    }
}
