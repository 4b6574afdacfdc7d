//! The vector instructions that the kernels are written in, once for each kind of processor.
//!
//! Kernels are generic over [`Simd`] and inlined as a whole into a function that switches the
//! features on (see `mod.rs`), so nothing here is called from afar.

use std::marker::PhantomData;

/// Vectors of f32.
///
/// # Safety
/// Every method needs a processor with the features of the implementing type, and a pointer must be
/// valid for [`LANES`](Simd::LANES) numbers, without any alignment.
pub(super) trait Simd: Copy {
    /// One register.
    type Vector: Copy;
    /// Numbers in a vector; divides [`BLOCK`](super::BLOCK).
    const LANES: usize;
    /// Rows of a register tile that is four vectors wide, or one where [`APART`](Simd::APART): as many
    /// as leave room in the registers for one row of the other operand.
    const ROWS: usize;
    /// Whether the vectors of a register tile are computed one after the other: where the registers have
    /// no room for so many that each row of the other operand is worth its way from the second cache.
    const APART: bool = false;

    unsafe fn splat(x: f32) -> Self::Vector;
    unsafe fn load(at: *const f32) -> Self::Vector;
    unsafe fn store(at: *mut f32, x: Self::Vector);
    unsafe fn add(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    unsafe fn sub(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    unsafe fn mul(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    unsafe fn div(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `1 / x` within 2^-14; infinite for a number too small for that.
    #[inline(always)]
    unsafe fn reciprocal(x: Self::Vector) -> Self::Vector {
        // SAFETY: the caller's promise is the same.
        unsafe { Self::div(Self::splat(1.0), x) }
    }
    /// `a * b + c`
    unsafe fn fma(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// `x` between the bounds; NaN stays NaN.
    unsafe fn clamp(x: Self::Vector, low: f32, high: f32) -> Self::Vector;
    /// The nearest integer.
    unsafe fn round(x: Self::Vector) -> Self::Vector;
    /// `x * 2^n` for an integer `n` from -126 to 127.
    unsafe fn scale(x: Self::Vector, n: Self::Vector) -> Self::Vector;
    /// `a` where `|x|` is below the bound, else `b`.
    unsafe fn where_small(
        x: Self::Vector,
        bound: f32,
        a: Self::Vector,
        b: Self::Vector,
    ) -> Self::Vector;
    /// In each lane a word of two bf16, `low` in its lower half, rounded to nearest even; NaN stays
    /// NaN, and denormals may become zero.
    unsafe fn pair(low: Self::Vector, high: Self::Vector) -> Self::Vector;
    /// The lower and the upper halves of such words.
    unsafe fn unpair(words: Self::Vector) -> (Self::Vector, Self::Vector);
    /// The nearest bf16 as f32, as [`pair`](Simd::pair) rounds.
    #[inline(always)]
    unsafe fn rounded(x: Self::Vector) -> Self::Vector {
        // SAFETY: the caller's promise is the same.
        unsafe { Self::unpair(Self::pair(x, x)).1 }
    }
    /// Numbers from 0 to 1, those above ½ as `x - 1`, of which 1 itself is -0: in a type of fewer digits they are then as
    /// exact near 1 as they are near 0. A number a rounding beyond 1 is taken for the one as far below it.
    unsafe fn fold(x: Self::Vector) -> Self::Vector;
    /// What was [folded](Simd::fold): `1 + x` where the sign is set.
    unsafe fn unfold(x: Self::Vector) -> Self::Vector;
    /// A word of two numbers' first sixteen bits, those of `low` in its lower half.
    #[inline(always)]
    unsafe fn cut(low: Self::Vector, high: Self::Vector) -> Self::Vector {
        // SAFETY: the caller's promise is the same. What has no more bits is not rounded.
        unsafe { Self::pair(Self::unpair(low).1, Self::unpair(high).1) }
    }
    /// Asks for the cache line at this address, which need not be valid, to be brought into the
    /// core's second cache.
    #[inline(always)]
    unsafe fn prefetch(_: *const f32) {}
    /// `c` and the products of both halves of `a` and `b`.
    #[inline(always)]
    unsafe fn dot(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        // SAFETY: the caller's promise is the same.
        unsafe {
            let ((a_low, a_high), (b_low, b_high)) = (Self::unpair(a), Self::unpair(b));
            Self::fma(a_low, b_low, Self::fma(a_high, b_high, c))
        }
    }
}

/// [`Simd::pair`] of one lane.
#[inline(always)]
pub(super) fn pair(low: f32, high: f32) -> f32 {
    let round = |x: f32| {
        let bits = x.to_bits();
        if x.is_nan() { 0x7fc0_0000 } else { bits + 0x7fff + (bits >> 16 & 1) }
    };
    f32::from_bits(round(high) & 0xffff_0000 | round(low) >> 16)
}

/// Four numbers in plain Rust: what every processor can do, and what compilers turn into SSE or
/// NEON instructions.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Portable {
    #[inline(always)]
    fn each(a: [f32; 4], b: [f32; 4], f: impl Fn(f32, f32) -> f32) -> [f32; 4] {
        [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
    }
}

impl Simd for Portable {
    type Vector = [f32; 4];
    const LANES: usize = 4;
    const ROWS: usize = 2;

    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 4] {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load(at: *const f32) -> [f32; 4] {
        // SAFETY: the caller's pointer is valid for four numbers.
        unsafe { at.cast::<[f32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(at: *mut f32, x: [f32; 4]) {
        // SAFETY: the caller's pointer is valid for four numbers.
        unsafe { at.cast::<[f32; 4]>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn add(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        Self::each(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        Self::each(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        Self::each(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        Self::each(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn fma(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        // Two roundings: without the instruction, `mul_add` is a slow call into the C library.
        Self::each(Self::each(a, b, |a, b| a * b), c, |ab, c| ab + c)
    }
    #[inline(always)]
    unsafe fn clamp(x: [f32; 4], low: f32, high: f32) -> [f32; 4] {
        Self::each(x, x, |x, _| x.clamp(low, high))
    }
    #[inline(always)]
    unsafe fn round(x: [f32; 4]) -> [f32; 4] {
        // Adding 1.5 * 2^23 leaves no bits for a fraction.
        Self::each(x, x, |x, _| (x + 12_582_912.0) - 12_582_912.0)
    }
    #[inline(always)]
    unsafe fn scale(x: [f32; 4], n: [f32; 4]) -> [f32; 4] {
        Self::each(x, n, |x, n| x * f32::from_bits((((n as i32) + 127) << 23) as u32))
    }
    #[inline(always)]
    unsafe fn where_small(x: [f32; 4], bound: f32, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        let mut chosen = b;
        for lane in 0..4 {
            if x[lane].abs() < bound {
                chosen[lane] = a[lane];
            }
        }
        chosen
    }
    #[inline(always)]
    unsafe fn pair(low: [f32; 4], high: [f32; 4]) -> [f32; 4] {
        Self::each(low, high, pair)
    }
    #[inline(always)]
    unsafe fn unpair(words: [f32; 4]) -> ([f32; 4], [f32; 4]) {
        let low = Self::each(words, words, |word, _| f32::from_bits(word.to_bits() << 16));
        let high = Self::each(words, words, |word, _| f32::from_bits(word.to_bits() & 0xffff_0000));
        (low, high)
    }
    #[inline(always)]
    unsafe fn fold(x: [f32; 4]) -> [f32; 4] {
        Self::each(x, x, |x, _| if x > 0.5 { -(1.0 - x).abs() } else { x.abs() })
    }
    #[inline(always)]
    unsafe fn unfold(x: [f32; 4]) -> [f32; 4] {
        Self::each(x, x, |x, _| if x.is_sign_negative() { 1.0 + x } else { x })
    }
}

/// Two vectors as one, so that it fills a cache line: a tile of one such column reads whole lines.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "vectors of other processors stand alone")
)]
pub(super) struct Twice<S>(PhantomData<S>);

// SAFETY, for every block below: the caller's promise is the same.
impl<S: Simd> Simd for Twice<S> {
    type Vector = [S::Vector; 2];
    const LANES: usize = 2 * S::LANES;
    const ROWS: usize = 6;
    const APART: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::Vector {
        // SAFETY: see above.
        unsafe { [S::splat(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self::Vector {
        // SAFETY: see above.
        unsafe { [S::load(at), S::load(at.add(S::LANES))] }
    }
    #[inline(always)]
    unsafe fn store(at: *mut f32, x: Self::Vector) {
        // SAFETY: see above.
        unsafe {
            S::store(at, x[0]);
            S::store(at.add(S::LANES), x[1]);
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: see above.
        unsafe { [S::add(a[0], b[0]), S::add(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: see above.
        unsafe { [S::sub(a[0], b[0]), S::sub(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: see above.
        unsafe { [S::mul(a[0], b[0]), S::mul(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn div(a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: see above.
        unsafe { [S::div(a[0], b[0]), S::div(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn reciprocal(x: Self::Vector) -> Self::Vector {
        // SAFETY: see above.
        unsafe { [S::reciprocal(x[0]), S::reciprocal(x[1])] }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        // SAFETY: see above.
        unsafe { [S::fma(a[0], b[0], c[0]), S::fma(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    unsafe fn clamp(x: Self::Vector, low: f32, high: f32) -> Self::Vector {
        // SAFETY: see above.
        unsafe { [S::clamp(x[0], low, high), S::clamp(x[1], low, high)] }
    }
    #[inline(always)]
    unsafe fn round(x: Self::Vector) -> Self::Vector {
        // SAFETY: see above.
        unsafe { [S::round(x[0]), S::round(x[1])] }
    }
    #[inline(always)]
    unsafe fn scale(x: Self::Vector, n: Self::Vector) -> Self::Vector {
        // SAFETY: see above.
        unsafe { [S::scale(x[0], n[0]), S::scale(x[1], n[1])] }
    }
    #[inline(always)]
    unsafe fn where_small(
        x: Self::Vector,
        bound: f32,
        a: Self::Vector,
        b: Self::Vector,
    ) -> Self::Vector {
        // SAFETY: see above.
        unsafe {
            [S::where_small(x[0], bound, a[0], b[0]), S::where_small(x[1], bound, a[1], b[1])]
        }
    }
    #[inline(always)]
    unsafe fn pair(low: Self::Vector, high: Self::Vector) -> Self::Vector {
        // SAFETY: see above.
        unsafe { [S::pair(low[0], high[0]), S::pair(low[1], high[1])] }
    }
    #[inline(always)]
    unsafe fn unpair(words: Self::Vector) -> (Self::Vector, Self::Vector) {
        // SAFETY: see above.
        let (first, second) = unsafe { (S::unpair(words[0]), S::unpair(words[1])) };
        ([first.0, second.0], [first.1, second.1])
    }
    #[inline(always)]
    unsafe fn fold(x: Self::Vector) -> Self::Vector {
        // SAFETY: see above.
        unsafe { [S::fold(x[0]), S::fold(x[1])] }
    }
    #[inline(always)]
    unsafe fn unfold(x: Self::Vector) -> Self::Vector {
        // SAFETY: see above.
        unsafe { [S::unfold(x[0]), S::unfold(x[1])] }
    }
    #[inline(always)]
    unsafe fn rounded(x: Self::Vector) -> Self::Vector {
        // SAFETY: see above.
        unsafe { [S::rounded(x[0]), S::rounded(x[1])] }
    }
    #[inline(always)]
    unsafe fn prefetch(at: *const f32) {
        // SAFETY: see above.
        unsafe { S::prefetch(at) }
    }
    #[inline(always)]
    unsafe fn dot(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        // SAFETY: see above.
        unsafe { [S::dot(a[0], b[0], c[0]), S::dot(a[1], b[1], c[1])] }
    }
}

/// AVX2 with FMA.
#[cfg(target_arch = "x86_64")]
pub(super) type Avx2 = Twice<Ymm>;

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx512, Ymm};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Simd;

    /// AVX2 with FMA: 16 registers of eight numbers.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Ymm;

    impl Ymm {
        /// The nearest bf16, in the upper half of each lane. (Not a closure in `pair`: closures are
        /// compiled without the features of the function around them, and so not inlined.)
        ///
        /// # Safety
        /// The processor has AVX2.
        #[inline(always)]
        unsafe fn bf16(x: __m256) -> __m256i {
            // SAFETY: the caller vouches for AVX2.
            unsafe {
                let bits = _mm256_castps_si256(x);
                let even = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let half = _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff));
                let rounded = _mm256_castsi256_ps(_mm256_add_epi32(bits, half));
                let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x);
                _mm256_castps_si256(_mm256_blendv_ps(rounded, _mm256_set1_ps(f32::NAN), nan))
            }
        }
    }

    // SAFETY, for every block below: the caller vouches for AVX2 and FMA and for the pointers.
    impl Simd for Ymm {
        type Vector = __m256;
        const LANES: usize = 8;
        const ROWS: usize = 2;

        #[inline(always)]
        unsafe fn splat(x: f32) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(at: *const f32) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_loadu_ps(at) }
        }
        #[inline(always)]
        unsafe fn store(at: *mut f32, x: __m256) {
            // SAFETY: see above.
            unsafe { _mm256_storeu_ps(at, x) }
        }
        #[inline(always)]
        unsafe fn add(a: __m256, b: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn sub(a: __m256, b: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_sub_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: __m256, b: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn div(a: __m256, b: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_div_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn clamp(x: __m256, low: f32, high: f32) -> __m256 {
            // SAFETY: see above. The second operand is what comes back for NaN.
            unsafe { _mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), x)) }
        }
        #[inline(always)]
        unsafe fn round(x: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x) }
        }
        #[inline(always)]
        unsafe fn scale(x: __m256, n: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe {
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
            }
        }
        #[inline(always)]
        unsafe fn where_small(x: __m256, bound: f32, a: __m256, b: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe {
                let magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0), x);
                let small = _mm256_cmp_ps::<_CMP_LT_OQ>(magnitude, _mm256_set1_ps(bound));
                _mm256_blendv_ps(b, a, small)
            }
        }
        #[inline(always)]
        unsafe fn prefetch(at: *const f32) {
            // SAFETY: a prefetch never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
        }
        #[inline(always)]
        unsafe fn pair(low: __m256, high: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe {
                let (low, high) = (Self::bf16(low), Self::bf16(high));
                let low = _mm256_srli_epi32::<16>(low);
                _mm256_castsi256_ps(_mm256_blend_epi16::<0b1010_1010>(low, high))
            }
        }
        #[inline(always)]
        unsafe fn rounded(x: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe {
                let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
                _mm256_castsi256_ps(_mm256_and_si256(Self::bf16(x), upper))
            }
        }
        #[inline(always)]
        unsafe fn unpair(words: __m256) -> (__m256, __m256) {
            // SAFETY: see above.
            unsafe {
                let words = _mm256_castps_si256(words);
                let high = _mm256_and_si256(words, _mm256_set1_epi32(0xffff_0000_u32 as i32));
                (_mm256_castsi256_ps(_mm256_slli_epi32::<16>(words)), _mm256_castsi256_ps(high))
            }
        }
        #[inline(always)]
        unsafe fn fold(x: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe {
                let sign = _mm256_set1_ps(-0.0);
                let missing = _mm256_or_ps(_mm256_sub_ps(_mm256_set1_ps(1.0), x), sign);
                let large = _mm256_cmp_ps::<_CMP_GT_OQ>(x, _mm256_set1_ps(0.5));
                _mm256_blendv_ps(_mm256_andnot_ps(sign, x), missing, large)
            }
        }
        #[inline(always)]
        unsafe fn unfold(x: __m256) -> __m256 {
            // SAFETY: see above. By the sign of `x`, `1 + x` or itself.
            unsafe { _mm256_blendv_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0), x), x) }
        }
    }

    /// Halves of words from sixteen lower halves and sixteen upper ones.
    static INTERLEAVED: [u16; 32] = [
        0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27, 12,
        28, 13, 29, 14, 30, 15, 31,
    ];

    /// AVX-512 (the F subset): 32 registers of sixteen numbers. With `DOT`, also AVX-512-BF16.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx512<const DOT: bool>;

    impl<const DOT: bool> Avx512<DOT> {
        /// The nearest bf16, in the upper half of each lane.
        ///
        /// # Safety
        /// The processor has AVX-512F.
        #[inline(always)]
        unsafe fn bf16(x: __m512) -> __m512i {
            // SAFETY: the caller vouches for AVX-512F.
            unsafe {
                let bits = _mm512_castps_si512(x);
                let even = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let half = _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff));
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
                let quiet = _mm512_set1_epi32(0x7fc0_0000);
                _mm512_mask_blend_epi32(nan, _mm512_add_epi32(bits, half), quiet)
            }
        }
    }

    // SAFETY, for every block below: the caller vouches for AVX-512F (with `DOT`, for AVX-512-BF16)
    // and for the pointers.
    impl<const DOT: bool> Simd for Avx512<DOT> {
        type Vector = __m512;
        const LANES: usize = 16;
        const ROWS: usize = 6;

        #[inline(always)]
        unsafe fn splat(x: f32) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(at: *const f32) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_loadu_ps(at) }
        }
        #[inline(always)]
        unsafe fn store(at: *mut f32, x: __m512) {
            // SAFETY: see above.
            unsafe { _mm512_storeu_ps(at, x) }
        }
        #[inline(always)]
        unsafe fn add(a: __m512, b: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn sub(a: __m512, b: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_sub_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: __m512, b: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn div(a: __m512, b: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_div_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn reciprocal(x: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_rcp14_ps(x) }
        }
        #[inline(always)]
        unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn clamp(x: __m512, low: f32, high: f32) -> __m512 {
            // SAFETY: see above. The second operand is what comes back for NaN.
            unsafe { _mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), x)) }
        }
        #[inline(always)]
        unsafe fn round(x: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_roundscale_ps::<0>(x) }
        }
        #[inline(always)]
        unsafe fn scale(x: __m512, n: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_scalef_ps(x, n) }
        }
        #[inline(always)]
        unsafe fn where_small(x: __m512, bound: f32, a: __m512, b: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe {
                let bound = _mm512_set1_ps(bound);
                let small = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(_mm512_abs_ps(x), bound);
                _mm512_mask_blend_ps(small, b, a)
            }
        }
        #[inline(always)]
        unsafe fn prefetch(at: *const f32) {
            // SAFETY: a prefetch never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
        }
        #[inline(always)]
        unsafe fn pair(low: __m512, high: __m512) -> __m512 {
            // SAFETY: see above; the instruction is used with `DOT` alone.
            unsafe {
                if DOT {
                    // The same rounding, but denormals become zero, as which `dot` reads them anyway.
                    let both = _mm512_cvtne2ps_pbh(high, low);
                    let both = std::mem::transmute::<__m512bh, __m512i>(both);
                    let order = _mm512_loadu_si512(INTERLEAVED.as_ptr().cast());
                    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, both));
                }
                let (low, high) = (Self::bf16(low), Self::bf16(high));
                let high = _mm512_and_si512(high, _mm512_set1_epi32(0xffff_0000_u32 as i32));
                _mm512_castsi512_ps(_mm512_or_si512(high, _mm512_srli_epi32::<16>(low)))
            }
        }
        #[inline(always)]
        unsafe fn rounded(x: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe {
                if DOT {
                    return Self::unpair(Self::pair(x, x)).1;
                }
                let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
                _mm512_castsi512_ps(_mm512_and_si512(Self::bf16(x), upper))
            }
        }
        #[inline(always)]
        unsafe fn cut(low: __m512, high: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe {
                let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(low));
                let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
                // low | high & upper
                let both = _mm512_ternarylogic_epi32::<0xf8>(low, _mm512_castps_si512(high), upper);
                _mm512_castsi512_ps(both)
            }
        }
        #[inline(always)]
        unsafe fn unpair(words: __m512) -> (__m512, __m512) {
            // SAFETY: see above.
            unsafe {
                let words = _mm512_castps_si512(words);
                let high = _mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32 as i32));
                (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)), _mm512_castsi512_ps(high))
            }
        }
        #[inline(always)]
        unsafe fn fold(x: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe {
                let sign = _mm512_set1_epi32(i32::MIN);
                let missing = _mm512_castps_si512(_mm512_sub_ps(_mm512_set1_ps(1.0), x));
                let missing = _mm512_castsi512_ps(_mm512_or_si512(missing, sign));
                let large = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, _mm512_set1_ps(0.5));
                _mm512_mask_blend_ps(large, _mm512_abs_ps(x), missing)
            }
        }
        #[inline(always)]
        unsafe fn unfold(x: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe {
                let zero = _mm512_setzero_si512();
                let negative = _mm512_cmplt_epi32_mask(_mm512_castps_si512(x), zero);
                _mm512_mask_add_ps(x, negative, _mm512_set1_ps(1.0), x)
            }
        }
        #[inline(always)]
        unsafe fn dot(a: __m512, b: __m512, c: __m512) -> __m512 {
            // SAFETY: see above; the instruction is used with `DOT` alone.
            unsafe {
                if DOT {
                    // The same bits: there is no cast between these two types of vectors.
                    let a = std::mem::transmute::<__m512, __m512bh>(a);
                    return _mm512_dpbf16_ps(c, a, std::mem::transmute::<__m512, __m512bh>(b));
                }
                let ((a_low, a_high), (b_low, b_high)) = (Self::unpair(a), Self::unpair(b));
                Self::fma(a_low, b_low, Self::fma(a_high, b_high, c))
            }
        }
    }
}
