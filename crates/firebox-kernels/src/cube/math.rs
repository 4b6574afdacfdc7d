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
