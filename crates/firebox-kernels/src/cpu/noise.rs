//! Standard normal numbers by their position, sixteen blocks of random words at a time.
//!
//! Plain Rust without fused products, which compilers turn into vectors: the numbers are the same to
//! the bit with every kind of instructions, so that a gradient may draw them again and a device
//! without kernels may be given them.

use firebox_core::Stream;
use rayon::prelude::*;

use super::CpuKernels;
use super::kernels::dispatch;
use super::simd::Simd;

/// Blocks of four words that are drawn side by side.
const LANES: usize = 16;
/// Numbers of these blocks.
const GROUP: usize = 4 * LANES;
/// Numbers that a thread takes at once; a multiple of [`GROUP`].
const TASK: usize = 256 * GROUP;

/// Normal numbers with mean 0. Number `e` is made of block `16 · (e / 64) + e % 16` of the stream:
/// its words 0 and 1 give the numbers 0 and 1 of that block, words 2 and 3 the numbers 2 and 3, and
/// `e` is number `e / 16 % 4`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noise {
    pub(crate) stream: Stream,
    pub(crate) deviation: f32,
}

impl Noise {
    /// `out = x + noise` for the numbers from `first` on.
    #[inline(always)]
    pub(super) fn add(self, first: u64, x: &[f32], out: &mut [f32]) {
        let mut at = 0;
        while at < x.len() {
            let position = first + at as u64;
            let skipped = (position % GROUP as u64) as usize;
            let count = (GROUP - skipped).min(x.len() - at);
            let numbers = normals(self.stream, position / GROUP as u64);
            let numbers = &numbers.as_flattened()[skipped..][..count];
            for ((out, x), number) in out[at..][..count].iter_mut().zip(&x[at..]).zip(numbers) {
                *out = x + self.deviation * number;
            }
            at += count;
        }
    }
}

/// `x + noise`, for any number of threads the same.
pub(crate) fn add_noise(kernels: CpuKernels, noise: Noise, x: &[f32]) -> Vec<f32> {
    let mut out = super::zeros(x.len());
    out.par_chunks_mut(TASK).zip(x.par_chunks(TASK)).enumerate().for_each(|(task, (out, x))| {
        add(kernels, noise, (task * TASK) as u64, x, out);
    });
    out
}

dispatch!(fn add = add_part(noise: Noise, first: u64, x: &[f32], out: &mut [f32]));

/// # Safety
/// That of [`Simd`], whose type only names the instructions that the loops may be compiled to.
#[inline(always)]
unsafe fn add_part<S: Simd>(noise: Noise, first: u64, x: &[f32], out: &mut [f32]) {
    noise.add(first, x, out);
}

/// The numbers of a group. Source: Box and Muller, 1958.
#[inline(always)]
fn normals(stream: Stream, group: u64) -> [[f32; LANES]; 4] {
    let mut words = [[0; LANES]; 4];
    for lane in 0..LANES {
        let block = stream.block(LANES as u64 * group + lane as u64);
        for (words, word) in words.iter_mut().zip(block) {
            words[lane] = word;
        }
    }
    let mut numbers = [[0.0; LANES]; 4];
    for pair in [0, 2] {
        for lane in 0..LANES {
            let radius = (-2.0 * log_of_uniform(words[pair][lane])).sqrt();
            let (across, up) = point(words[pair + 1][lane]);
            numbers[pair][lane] = radius * across;
            numbers[pair + 1][lane] = radius * up;
        }
    }
    numbers
}

/// The logarithm of `(⌊word / 2⌋ + 1/2) / 2^31` rounded to f32, which is in (0, 1]. Polynomial of
/// Cephes' `logf` (Moshier).
#[inline(always)]
fn log_of_uniform(word: u32) -> f32 {
    const STEP: f32 = 1.0 / 2_147_483_648.0;
    /// √½, below which a mantissa counts to the next smaller power.
    const LOW: u32 = 0x3f35_04f3;
    // Through a signed integer, which every processor converts by vectors.
    let uniform = (word >> 1) as i32 as f32 * STEP + 0.5 * STEP;
    let above = uniform.to_bits().wrapping_sub(LOW);
    let exponent = ((above as i32) >> 23) as f32;
    let m = f32::from_bits((above & 0x007f_ffff) + LOW) - 1.0;
    let mut p = 7.037_683_6e-2_f32;
    for factor in [
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ] {
        p = p * m + factor;
    }
    let square = m * m;
    (p * m * square - 0.5 * square + m) + exponent * std::f32::consts::LN_2
}

/// A point of the unit circle: thirty bits for an angle in ±π/4, one for the sign of its cosine and
/// one for the exchange of the axes. Polynomials of Cephes' `sinf` and `cosf` (Moshier).
#[inline(always)]
fn point(word: u32) -> (f32, f32) {
    const STEP: f32 = std::f32::consts::FRAC_PI_2 / 1_073_741_824.0;
    let angle = ((word & 0x3fff_ffff) as i32 - 0x2000_0000) as f32 * STEP;
    let z = angle * angle;
    let sine = ((-1.951_529_6e-4 * z + 8.332_161e-3) * z - 1.666_665_5e-1) * z * angle + angle;
    let cosine = ((2.443_315_7e-5 * z - 1.388_731_6e-3) * z + 4.166_664_6e-2) * z * z;
    let cosine = cosine - 0.5 * z + 1.0;
    let cosine = f32::from_bits(cosine.to_bits() ^ (word << 1 & 0x8000_0000));
    if (word as i32) < 0 { (sine, cosine) } else { (cosine, sine) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The formula in float64, of the uniform number as f32 holds it.
    fn exact(stream: Stream, element: u64) -> f64 {
        let block = stream.block(16 * (element / 64) + element % 16);
        let number = (element / 16 % 4) as usize;
        let [first, second] = [block[number & 2], block[(number & 2) + 1]];
        let uniform = f64::from((first >> 1) as f32 / 2f32.powi(31) + 0.5 / 2f32.powi(31));
        let turn = f64::from(second & 0x3fff_ffff) - 2f64.powi(29);
        let angle = turn * std::f64::consts::FRAC_PI_2 / 2f64.powi(30);
        let cosine = angle.cos() * if second >> 30 & 1 == 1 { -1.0 } else { 1.0 };
        let swapped = second >> 31 == 1;
        let coordinate = if (number & 1 == 0) != swapped { cosine } else { angle.sin() };
        (-2.0 * uniform.ln()).sqrt() * coordinate
    }

    #[test]
    fn every_variant_draws_the_documented_numbers_wherever_it_starts() {
        let stream = Stream::new(3, "noise");
        let noise = Noise { stream, deviation: 1.0 };
        let count = 100_003;
        let expected: Vec<f64> = (0..count as u64).map(|e| exact(stream, e)).collect();
        let zero = vec![0.0; count];
        let mut first: Option<Vec<f32>> = None;
        for kernels in CpuKernels::available().into_iter().skip(1) {
            let drawn = add_noise(kernels, noise, &zero);
            for (drawn, exact) in drawn.iter().zip(&expected) {
                let error = (f64::from(*drawn) - exact).abs();
                assert!(error < 4e-7 * exact.abs() + 4e-7, "{drawn} {exact}");
            }
            for (start, length) in [(0, 1), (5, 200), (63, 2), (64, 64), (1000, 37)] {
                let mut part = vec![0.0; length];
                add(kernels, noise, start as u64, &zero[..length], &mut part);
                assert_eq!(part, drawn[start..][..length]);
            }
            assert!(first.get_or_insert_with(|| drawn.clone()) == &drawn, "{kernels:?}");
        }
    }

    #[test]
    fn extreme_words_give_finite_numbers() {
        for word in [0, 1, 2, 3, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX] {
            let exact = ((f64::from(word >> 1) + 0.5) / 2f64.powi(31)).ln();
            let log = f64::from(log_of_uniform(word));
            assert!(log <= 0.0 && (log - exact).abs() <= 2e-7 * exact.abs().max(1.0), "{word:x}");
            let (a, b) = point(word);
            assert!((f64::from(a).hypot(f64::from(b)) - 1.0).abs() < 2e-7, "{word:x}");
        }
        assert_eq!(log_of_uniform(u32::MAX), 0.0);
    }

    /// Moments, the largest distance from the normal distribution (Kolmogorov and Smirnov), and
    /// the correlation of neighbours, each against its value at five standard errors or the like.
    #[test]
    fn the_distribution_is_normal() {
        let kernels = CpuKernels::Portable;
        let count = 1 << 20;
        let noise = Noise { stream: Stream::new(11, "noise"), deviation: 1.0 };
        let drawn = add_noise(kernels, noise, &vec![0.0; count]);
        let mut sorted: Vec<f64> = drawn.iter().map(|x| f64::from(*x)).collect();
        let n = count as f64;
        let moment = |power| sorted.iter().map(|x| x.powi(power)).sum::<f64>() / n;
        // The variance of the k-th moment of n normal numbers is (E x^2k - (E x^k)²) / n.
        for (power, expected, variance) in
            [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0), (6, 15.0, 10170.0)]
        {
            let bound = 5.0 * f64::sqrt(variance / n);
            assert!((moment(power) - expected).abs() < bound, "moment {power}: {}", moment(power));
        }
        for distance in [1, 16, 32, 64] {
            let pairs = sorted.iter().zip(&sorted[distance..]);
            let correlation = pairs.map(|(a, b)| a * b).sum::<f64>() / n;
            assert!(correlation.abs() < 5.0 / n.sqrt(), "{distance}: {correlation}");
        }
        sorted.sort_by(f64::total_cmp);
        let distance =
            sorted.iter().enumerate().step_by(64).fold(0.0_f64, |most, (i, x)| {
                most.max((normal_distribution(*x) - i as f64 / n).abs())
            });
        // Exceeded by chance once in 10^6.
        assert!(distance < 2.7 / n.sqrt(), "{distance}");
        let beyond = sorted.iter().filter(|x| x.abs() > 4.0).count() as f64 / n;
        assert!((beyond - 6.334e-5).abs() < 5.0 * f64::sqrt(6.334e-5 / n), "{beyond:e}");
    }

    /// By numerical integration (Simpson) from zero.
    fn normal_distribution(x: f64) -> f64 {
        let (steps, density) = (200, |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt());
        let h = x / f64::from(steps);
        let inner: f64 = (1..steps)
            .map(|i| density(h * f64::from(i)) * if i % 2 == 1 { 4.0 } else { 2.0 })
            .sum();
        0.5 + h / 3.0 * (density(0.0) + inner + density(x))
    }
}
