//! Functions that keep their digits where a device's own would lose them.

use burn_cubecl::cubecl::{self, prelude::*};

/// `1 - e^x` for `x` up to 0, without the loss of digits near it.
#[cube]
pub(super) fn one_minus_exp(x: f32) -> f32 {
    let mut result = 1.0f32 - x.exp();
    if x > -0.5f32 {
        // Taylor's series to the ninth power; what follows is below 1e-8 of the result.
        let mut sum = x * 2.755_731_9e-6f32 + 2.480_158_7e-5f32;
        sum = sum * x + 1.984_127e-4f32;
        sum = sum * x + 1.388_888_9e-3f32;
        sum = sum * x + 8.333_333e-3f32;
        sum = sum * x + 4.166_666_6e-2f32;
        sum = sum * x + 1.666_666_7e-1f32;
        sum = sum * x + 0.5f32;
        sum = sum * x + 1.0f32;
        result = -(sum * x);
    }
    result
}

/// `ln(1 + x)` for `x` of 0 or more, without the loss of digits near it.
#[cube]
pub(super) fn ln_one_plus(x: f32) -> f32 {
    let mut result = (1.0f32 + x).ln();
    if x < 0.5f32 {
        // The series of 2·artanh(x / (2 + x)); what follows is below 1e-8 of the result.
        let t = x / (2.0f32 + x);
        let s = t * t;
        let mut sum = s * 9.090_909e-2f32 + 1.111_111_1e-1f32;
        sum = sum * s + 1.428_571_5e-1f32;
        sum = sum * s + 0.2f32;
        sum = sum * s + 3.333_333_4e-1f32;
        sum = sum * s + 1.0f32;
        result = 2.0f32 * t * sum;
    }
    result
}

/// The polynomial `p` of `ln(1 + f) = f - f²/2 + f³ · p` for `1 + f` from √½ to √2. Source: Cephes' `logf`
/// (S. L. Moshier).
#[cube]
pub(super) fn log_series(f: f32) -> f32 {
    let mut p = f * 7.037_683_6e-2f32 - 1.151_461e-1f32;
    p = p * f + 1.167_699_87e-1f32;
    p = p * f - 1.242_014_1e-1f32;
    p = p * f + 1.424_932_3e-1f32;
    p = p * f - 1.666_805_8e-1f32;
    p = p * f + 2.000_071_5e-1f32;
    p = p * f - 2.499_999_4e-1f32;
    p = p * f + 3.333_333e-1f32;
    p
}

/// Sine and cosine of an angle from -π/4 to π/4. Source: Cephes' `sinf` and `cosf` (S. L. Moshier).
#[cube]
pub(super) fn sine_and_cosine(x: f32) -> (f32, f32) {
    let square = x * x;
    let p = (8.332_161e-3f32 - square * 1.951_529_6e-4f32) * square - 1.666_665_5e-1f32;
    let sine = p * square * x + x;
    let p = (square * 2.443_315_7e-5f32 - 1.388_731_6e-3f32) * square + 4.166_664_6e-2f32;
    (sine, p * square * square - square * 0.5f32 + 1.0f32)
}

/// The error function, which is 1 to all of its digits from 3.9 on: that of the CPU kernels (`cpu::math`), the
/// rational approximation of Eigen's `generic_fast_erf_float`. Of NaN, any number.
#[cube]
pub(super) fn error_function(x: f32) -> f32 {
    let near = x.max(-4.0f32).min(4.0f32);
    let z = near * near;
    let mut p = z * -2.726_142_3e-10f32 + 2.770_681_4e-8f32;
    p = p * z - 2.101_024e-6f32;
    p = p * z - 5.692_506_4e-5f32;
    p = p * z - 7.349_906_3e-4f32;
    p = p * z - 2.954_6e-3f32;
    p = p * z - 1.609_603_3e-2f32;
    let mut q = z * -1.456_607_2e-5f32 - 2.133_740_6e-4f32;
    q = q * z - 1.682_827e-3f32;
    q = q * z - 7.373_329e-3f32;
    q = q * z - 1.426_473_9e-2f32;
    let sign = x.max(-1.0f32).min(1.0f32);
    select(x.abs() < 3.9f32, near * p / q, sign)
}
