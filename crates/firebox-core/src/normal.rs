//! Standard normal numbers in bulk: Box–Muller on blocks of the counter-based generator. Single ones come
//! from [`Draws`](crate::Draws).
//!
//! Written in plain arithmetic over fixed lanes, so that the compiler vectorises it, and compiled
//! once for each instruction set that matters. Every operation rounds as IEEE 754 says and none is
//! fused, so all of them give the same bits.

use crate::Stream;

/// Blocks made together; each gives four normal numbers.
const LANES: usize = 16;
/// Numbers made together.
const GROUP: usize = 4 * LANES;

impl Stream {
    /// Fills `out` with standard normal numbers, within 1e-6 relative of float64 but next to zero. The
    /// first `n` of them do not depend on how many more are asked for. The largest possible magnitude
    /// is 5.77: uniform numbers have 24 bits.
    ///
    /// Number `e` is made of block `16 · (e / 64) + e % 16`: its words 0 and 1 give the numbers 0 and
    /// 1 of that block, words 2 and 3 the numbers 2 and 3, and `e` is number `e / 16 % 4`. So a device
    /// can make any of them alone.
    pub fn fill_normal(self, out: &mut [f32]) {
        fill(self, out);
    }
}

fn fill(stream: Stream, out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
        {
            // SAFETY: the processor has the instructions that the function is compiled for.
            return unsafe { fill_avx512(stream, out) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { fill_avx2(stream, out) };
        }
    }
    fill_portable(stream, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2")]
fn fill_avx512(stream: Stream, out: &mut [f32]) {
    fill_portable(stream, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn fill_avx2(stream: Stream, out: &mut [f32]) {
    fill_portable(stream, out);
}

#[inline(always)]
fn fill_portable(stream: Stream, out: &mut [f32]) {
    let mut groups = out.chunks_exact_mut(GROUP);
    let mut position = 0;
    for group in &mut groups {
        if let Ok(group) = group.try_into() {
            fill_group(stream, position, group);
        }
        position += LANES as u64;
    }
    let rest = groups.into_remainder();
    if !rest.is_empty() {
        let mut group = [0.0; GROUP];
        fill_group(stream, position, &mut group);
        rest.copy_from_slice(&group[..rest.len()]);
    }
}

/// Two pairs of words of each block become two pairs of normal numbers.
#[expect(clippy::needless_range_loop, reason = "lanes of four arrays at once")]
#[inline(always)]
fn fill_group(stream: Stream, position: u64, out: &mut [f32; GROUP]) {
    let mut words = [[0; LANES]; 4];
    for lane in 0..LANES {
        let block = stream.block(position + lane as u64);
        for word in 0..4 {
            words[word][lane] = block[word];
        }
    }
    for pair in 0..2 {
        for lane in 0..LANES {
            let radius = radius(words[2 * pair][lane]);
            let [cosine, sine] = direction(words[2 * pair + 1][lane]);
            out[2 * pair * LANES + lane] = radius * cosine;
            out[(2 * pair + 1) * LANES + lane] = radius * sine;
        }
    }
}

/// `√(−2 ln u)` of the uniform number `u` in `(0, 1]` that the upper 24 bits of a word give.
#[inline(always)]
fn radius(word: u32) -> f32 {
    let uniform = ((word >> 8) as i32 + 1) as f32 * (1.0 / 16_777_216.0);
    // Rounding may bring the logarithm of a number near 1 a hair above zero.
    (-2.0 * logarithm(uniform)).max(0.0).sqrt()
}

/// The natural logarithm of a positive normal number. Polynomial of Cephes' `logf`
/// (S. L. Moshier); relative error below 1e-6 except next to 1.
#[inline(always)]
fn logarithm(x: f32) -> f32 {
    /// The bits of √½: mantissas are taken from √½ to √2.
    const ROOT_HALF: i32 = 0x3f35_04f3;
    let bits = x.to_bits() as i32;
    let exponent = (bits - ROOT_HALF) >> 23;
    let f = f32::from_bits((bits - (exponent << 23)) as u32) - 1.0;
    let exponent = exponent as f32;
    let square = f * f;
    let mut p = 7.037_683_6e-2;
    p = p * f - 1.151_461e-1;
    p = p * f + 1.167_699_87e-1;
    p = p * f - 1.242_014_1e-1;
    p = p * f + 1.424_932_3e-1;
    p = p * f - 1.666_805_8e-1;
    p = p * f + 2.000_071_5e-1;
    p = p * f - 2.499_999_4e-1;
    p = p * f + 3.333_333e-1;
    // ln 2 in two parts: the first has few bits, so that its product with the exponent is exact.
    let small = p * f * square - 2.121_944_4e-4 * exponent - 0.5 * square;
    f + small + 0.693_359_4 * exponent
}

/// Cosine and sine of a uniformly random angle: the upper two bits of the word choose a quarter
/// turn, the next 22 an angle from −45° to 45°. Polynomials of Cephes' `sinf` and `cosf`.
#[inline(always)]
fn direction(word: u32) -> [f32; 2] {
    let fraction = ((word >> 8) & 0x003f_ffff) as i32 as f32 * (1.0 / 4_194_304.0) - 0.5;
    let x = fraction * std::f32::consts::FRAC_PI_2;
    let square = x * x;
    let sine =
        ((-1.951_529_6e-4 * square + 8.332_161e-3) * square - 1.666_665_5e-1) * square * x + x;
    let cosine =
        ((2.443_315_7e-5 * square - 1.388_731_6e-3) * square + 4.166_664_6e-2) * square * square
            - 0.5 * square
            + 1.0;
    // Odd quarters: (−sine, cosine); quarters 2 and 3 turn by half a circle more.
    let odd = (word >> 30) & 1 == 1;
    let sign = word & 0x8000_0000;
    let first = if odd { -sine } else { cosine };
    let second = if odd { cosine } else { sine };
    [first, second].map(|value| f32::from_bits(value.to_bits() ^ sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_agree_with_f64() {
        for word in (0..u32::MAX).step_by(65_521) {
            let uniform = (f64::from(word >> 8) + 1.0) / 16_777_216.0;
            let expected = (-2.0 * uniform.ln()).sqrt();
            let error = (f64::from(radius(word)) - expected).abs();
            assert!(
                error <= 1e-6 * expected + 4e-5 * f64::from(u8::from(uniform > 0.999)),
                "{word}"
            );
            let quarter = f64::from(word >> 30);
            let angle = (f64::from(word >> 8 & 0x3f_ffff) / 4_194_304.0 - 0.5 + quarter)
                * std::f64::consts::FRAC_PI_2;
            let [cosine, sine] = direction(word).map(f64::from);
            assert!((cosine - angle.cos()).abs() < 2e-7 && (sine - angle.sin()).abs() < 2e-7);
        }
        assert_eq!(radius(u32::MAX), 0.0);
        assert!((radius(0) - 5.768).abs() < 1e-3);
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let stream = Stream::new(9, "lanes");
        for length in [1, 63, 64, 65, 420, 1000] {
            let (mut a, mut b) = (vec![0.0; length], vec![0.0; length]);
            fill(stream, &mut a);
            fill_portable(stream, &mut b);
            assert_eq!(a, b);
            let mut longer = vec![0.0; length + 77];
            fill(stream, &mut longer);
            assert_eq!(a, longer[..length]);
        }
    }

    #[test]
    fn moments_and_tails_are_normal() {
        let mut z = vec![0.0; 1 << 20];
        fill(Stream::new(4, "moments"), &mut z);
        let n = z.len() as f64;
        let moment = |k| z.iter().map(|z| f64::from(*z).powi(k)).sum::<f64>() / n;
        // Standard errors of the first four moments: √(1, 2, 15, 96) / 1024.
        assert!(moment(1).abs() < 0.004, "{}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.006, "{}", moment(2));
        assert!(moment(3).abs() < 0.016, "{}", moment(3));
        assert!((moment(4) - 3.0).abs() < 0.04, "{}", moment(4));
        let beyond = |limit: f32| z.iter().filter(|z| z.abs() > limit).count() as f64 / n;
        assert!((beyond(1.959_964) - 0.05).abs() < 0.001);
        assert!((beyond(3.290_527) - 0.001).abs() < 0.000_15);
        // Neighbours, and values that share a radius, are uncorrelated.
        for lag in [1, LANES, GROUP] {
            let products = z.iter().zip(&z[lag..]).map(|(a, b)| f64::from(a * b));
            assert!((products.sum::<f64>() / n).abs() < 0.004, "{lag}");
        }
    }
}
