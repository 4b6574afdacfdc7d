//! The logistic function and the hyperbolic tangent of recurrent cells, both from one power of two.
//!
//! `2^t` is split into `2^n` for the nearest integer `n`, and `1 + q` for the rest, with `q` from a
//! polynomial without a constant term. So `e^2x - 1`, from which the tangent is made, keeps all its
//! digits near zero, and no second formula is needed there.
//!
//! Largest errors against float64, relative to the result, where that is a normal number:
//!
//! | operands of products | logistic function | tangent |
//! |---|---|---|
//! | f32 | 4e-7, and 1e-7 for each unit that `x` is below zero | 4e-7 |
//! | bf16 (themselves within 2e-3) | 2e-4; of what a state keeps, 3e-5 of what is missing to 1 | 2e-4 |
//!
//! The tests below sweep them for every kind of vector.

use super::compute::Compute;
use super::simd::Simd;

/// Beyond this power of two both functions have reached their limits.
const POWER: f32 = 126.0;

/// `2^n` and `2^(t - n) - 1` for the integer `n` nearest to `t`, which is cut to ±126. Coefficients
/// fitted for the least relative error of the second one on [-½, ½], 1.3e-8 and 1.5e-5.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn power_of_two<S: Simd, C: Compute>(t: S::Vector) -> (S::Vector, S::Vector) {
    // SAFETY: the caller's promise is the one that `Simd` asks for.
    unsafe {
        let t = S::clamp(t, -POWER, POWER);
        let n = S::round(t);
        let f = S::sub(t, n);
        let p = if !C::COARSE {
            let p = S::fma(S::splat(1.538_223_2e-4), f, S::splat(1.338_737_7e-3));
            let p = S::fma(p, f, S::splat(9.618_311e-3));
            let p = S::fma(p, f, S::splat(5.550_367_4e-2));
            let p = S::fma(p, f, S::splat(2.402_264_9e-1));
            S::fma(p, f, S::splat(6.931_472e-1))
        } else {
            let p = S::fma(S::splat(9.618_079e-3), f, S::splat(5.583_721_8e-2));
            let p = S::fma(p, f, S::splat(2.402_325_3e-1));
            S::fma(p, f, S::splat(6.931_369e-1))
        };
        (S::scale(S::splat(1.0), n), S::mul(p, f))
    }
}

/// `a / b`, for products in bf16 with the processor's estimate of `1 / b`.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn quotient<S: Simd, C: Compute>(a: S::Vector, b: S::Vector) -> S::Vector {
    // SAFETY: the caller's promise is the one that `Simd` asks for.
    unsafe { if C::COARSE { S::mul(a, S::reciprocal(b)) } else { S::div(a, b) } }
}

/// `e^-x`
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn falling<S: Simd, C: Compute>(x: S::Vector) -> S::Vector {
    // SAFETY: the caller's promise is the one that `Simd` asks for.
    unsafe {
        let (scale, q) = power_of_two::<S, C>(S::mul(x, S::splat(-std::f32::consts::LOG2_E)));
        S::fma(scale, q, scale)
    }
}

/// `1 / (1 + e^-x)`
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
pub(super) unsafe fn sigmoid<S: Simd, C: Compute>(x: S::Vector) -> S::Vector {
    // SAFETY: the caller's promise is the one that `Simd` asks for.
    unsafe {
        let one = S::splat(1.0);
        quotient::<S, C>(one, S::add(one, falling::<S, C>(x)))
    }
}

/// The logistic function, for the share of a state that is kept from step to step: in every precision within what f32
/// gives near 1, because what is missing there is missing once more with each step.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
pub(super) unsafe fn share_kept<S: Simd, C: Compute>(x: S::Vector) -> S::Vector {
    // SAFETY: the caller's promise is the one that `Simd` asks for.
    unsafe {
        let estimate = sigmoid::<S, C>(x);
        if !C::COARSE {
            return estimate;
        }
        // Newton's step for the reciprocal doubles the digits of the processor's estimate.
        let rest = falling::<S, C>(x);
        let error = S::sub(S::sub(S::splat(1.0), estimate), S::mul(rest, estimate));
        S::fma(estimate, error, estimate)
    }
}

/// The hyperbolic tangent, `(e^2x - 1) / (e^2x + 1)`.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
pub(super) unsafe fn tanh<S: Simd, C: Compute>(x: S::Vector) -> S::Vector {
    // SAFETY: the caller's promise is the one that `Simd` asks for.
    unsafe {
        let t = S::mul(x, S::splat(2.0 * std::f32::consts::LOG2_E));
        let (scale, q) = power_of_two::<S, C>(t);
        let less_one = S::fma(scale, q, S::sub(scale, S::splat(1.0)));
        quotient::<S, C>(less_one, S::add(less_one, S::splat(2.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::CpuKernels;
    use super::super::compute::{Bf16, F32, Rounded};
    use super::super::kernels::dispatch;
    use super::*;

    struct Values {
        x: Vec<f32>,
        sigmoid: Vec<f32>,
        kept: Vec<f32>,
        tanh: Vec<f32>,
    }

    dispatch!(fn run<C: Compute> = evaluate(values: &mut Values));

    /// All functions over all of `x`, whose length must be a multiple of 16.
    #[inline(always)]
    unsafe fn evaluate<S: Simd, C: Compute>(values: &mut Values) {
        for at in (0..values.x.len()).step_by(S::LANES) {
            // SAFETY: `at + LANES` is within all four, the lengths being multiples of 16.
            unsafe {
                let x = S::load(values.x.as_ptr().add(at));
                S::store(values.sigmoid.as_mut_ptr().add(at), sigmoid::<S, C>(x));
                S::store(values.kept.as_mut_ptr().add(at), share_kept::<S, C>(x));
                S::store(values.tanh.as_mut_ptr().add(at), tanh::<S, C>(x));
            }
        }
    }

    fn values(kernels: CpuKernels, bf16: bool, mut x: Vec<f32>) -> Values {
        x.resize(x.len().next_multiple_of(16), 0.0);
        let [sigmoid, kept, tanh] = [0.0; 3].map(|zero| vec![zero; x.len()]);
        let mut values = Values { x, sigmoid, kept, tanh };
        match bf16 {
            false => run::<F32>(kernels, &mut values),
            true if kernels.multiplies_pairs() => run::<Bf16>(kernels, &mut values),
            true => run::<Rounded>(kernels, &mut values),
        }
        values
    }

    fn variants() -> impl Iterator<Item = (CpuKernels, bool)> {
        let kernels = CpuKernels::available().into_iter().skip(1);
        kernels.flat_map(|kernels| [(kernels, false), (kernels, true)])
    }

    #[test]
    fn errors_stay_within_the_stated_bounds() {
        // Every 997th f32, of both signs, and a fine sweep where the functions bend.
        let mut x: Vec<f32> = (0..=f32::MAX.to_bits())
            .step_by(997)
            .flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)])
            .collect();
        x.extend((-200_000..200_000).map(|i| i as f32 * 1e-4));
        for (kernels, bf16) in variants() {
            let (bound, slope) = if bf16 { (2e-4, 0.0) } else { (4e-7, 1e-7) };
            let Values { x, sigmoid, kept, tanh } = values(kernels, bf16, x.clone());
            let both = sigmoid.iter().zip(&kept);
            for ((x, (s, kept)), t) in x.iter().map(|x| f64::from(*x)).zip(both).zip(tanh) {
                let s = *s;
                let exact = 1.0 / (1.0 + (-x).exp());
                let error = (f64::from(s) - exact).abs();
                assert!(
                    error <= (bound - slope * x.min(0.0)) * exact || (exact < 2e-38 && s < 2e-38),
                    "{kernels:?} {bf16}: sigmoid({x:e}) = {s:e}, not {exact:e}"
                );
                // In every precision as exact as that: of what is missing to 1, and of what is there.
                let missing = 1.0 / (1.0 + x.exp());
                let off = (f64::from(*kept) - exact).abs();
                assert!(
                    off <= 3e-5 * exact.min(missing) + 1.2e-7 * exact
                        || (exact < 2e-38 && *kept < 2e-38),
                    "{kernels:?} {bf16}: share_kept({x:e}) = {kept:e}, not {exact:e}"
                );
                let exact = x.tanh();
                let error = (f64::from(t) - exact).abs();
                assert!(
                    error <= bound * exact.abs() || exact.abs() < 1.2e-38,
                    "{kernels:?} {bf16}: tanh({x:e}) = {t:e}, not {exact:e}"
                );
            }
        }
    }

    #[test]
    fn limits_and_nan() {
        for (kernels, bf16) in variants() {
            let x = vec![f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 0.0];
            let Values { sigmoid: s, kept, tanh: t, .. } = values(kernels, bf16, x);
            let near = |value: f32, limit: f32| (value - limit).abs() <= 1e-4;
            assert!(near(s[0], 1.0) && s[1] < 2e-38 && s[2].is_nan() && near(s[3], 0.5), "{s:?}");
            assert!(near(t[0], 1.0) && near(t[1], -1.0) && t[2].is_nan() && t[3] == 0.0, "{t:?}");
            assert!(kept[0] == 1.0 && kept[1] < 2e-38 && kept[2].is_nan() && kept[3] == 0.5);
            assert!(bf16 || (s[0] == 1.0 && s[3] == 0.5 && t[0] == 1.0 && t[1] == -1.0));
        }
    }
}
