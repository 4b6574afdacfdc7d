//! What is asked of vectors beyond arithmetic: the larger of two, random words, masks, and rows that become
//! columns.

use firebox_core::Stream;

use super::BLOCK;
use super::simd::{Portable, Simd, Twice};

/// More instructions on vectors.
///
/// # Safety
/// As for [`Simd`].
pub(super) trait Lanes: Simd {
    /// The larger of two; either where one of them is NaN.
    unsafe fn max(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The four words of a block of the stream in each lane: block `query + lane` of `group`, which
    /// is position `query + lane + group · 2^32`.
    unsafe fn draw(stream: Stream, query: u32, group: u32) -> [Self::Vector; 4];
    /// `x` where the lower 16 bits of the word are at least the threshold, else zero.
    unsafe fn keep_low(x: Self::Vector, words: Self::Vector, threshold: u16) -> Self::Vector;
    /// The same by the upper 16 bits.
    unsafe fn keep_high(x: Self::Vector, words: Self::Vector, threshold: u16) -> Self::Vector;
    /// Transposes 16 rows of 16 numbers; `from_row` and `to_row` are the distances between rows, and
    /// the pointers are valid for all of them.
    unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize);
}

/// Makes columns, `to_row` apart, of sixteen rows of a whole number of blocks, `columns` numbers.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
pub(super) unsafe fn turn<S: Lanes>(from: &[f32], columns: usize, to: &mut [f32], to_row: usize) {
    assert!(from.len() >= BLOCK * columns && columns.is_multiple_of(BLOCK), "{columns} columns");
    assert!(to.len() >= (columns - 1) * to_row + BLOCK, "{columns} columns, {to_row} apart");
    for column in (0..columns).step_by(BLOCK) {
        // SAFETY: sixteen rows of sixteen numbers from there are within both.
        unsafe {
            let from = from.as_ptr().add(column);
            S::transpose(from, columns, to.as_mut_ptr().add(column * to_row), to_row);
        }
    }
}

impl Lanes for Portable {
    #[inline(always)]
    unsafe fn max(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        let larger = |a: f32, b: f32| if a > b { a } else { b };
        [larger(a[0], b[0]), larger(a[1], b[1]), larger(a[2], b[2]), larger(a[3], b[3])]
    }
    #[inline(always)]
    unsafe fn draw(stream: Stream, query: u32, group: u32) -> [[f32; 4]; 4] {
        let mut words = [[0.0; 4]; 4];
        for lane in 0..4 {
            let position = u64::from(query) + lane as u64 + (u64::from(group) << 32);
            for (words, word) in words.iter_mut().zip(stream.block(position)) {
                words[lane] = f32::from_bits(word);
            }
        }
        words
    }
    #[inline(always)]
    unsafe fn keep_low(mut x: [f32; 4], words: [f32; 4], threshold: u16) -> [f32; 4] {
        for (x, word) in x.iter_mut().zip(words) {
            *x = if word.to_bits() as u16 >= threshold { *x } else { 0.0 };
        }
        x
    }
    #[inline(always)]
    unsafe fn keep_high(mut x: [f32; 4], words: [f32; 4], threshold: u16) -> [f32; 4] {
        for (x, word) in x.iter_mut().zip(words) {
            *x = if (word.to_bits() >> 16) as u16 >= threshold { *x } else { 0.0 };
        }
        x
    }
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
        for row in 0..BLOCK {
            for column in 0..BLOCK {
                // SAFETY: the caller vouches for 16 rows of 16 numbers on both sides.
                unsafe { *to.add(column * to_row + row) = *from.add(row * from_row + column) };
            }
        }
    }
}

// SAFETY, for every block below: the caller's promise is the same.
impl<S: Lanes> Lanes for Twice<S> {
    #[inline(always)]
    unsafe fn max(a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: see above.
        unsafe { [S::max(a[0], b[0]), S::max(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn draw(stream: Stream, query: u32, group: u32) -> [Self::Vector; 4] {
        // SAFETY: see above.
        let [a, b, c, d] = unsafe { S::draw(stream, query, group) };
        // SAFETY: see above.
        let [e, f, g, h] = unsafe { S::draw(stream, query + S::LANES as u32, group) };
        [[a, e], [b, f], [c, g], [d, h]]
    }
    #[inline(always)]
    unsafe fn keep_low(x: Self::Vector, words: Self::Vector, threshold: u16) -> Self::Vector {
        // SAFETY: see above.
        unsafe { [S::keep_low(x[0], words[0], threshold), S::keep_low(x[1], words[1], threshold)] }
    }
    #[inline(always)]
    unsafe fn keep_high(x: Self::Vector, words: Self::Vector, threshold: u16) -> Self::Vector {
        // SAFETY: see above.
        unsafe {
            [S::keep_high(x[0], words[0], threshold), S::keep_high(x[1], words[1], threshold)]
        }
    }
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
        // SAFETY: see above.
        unsafe { S::transpose(from, from_row, to, to_row) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use firebox_core::Stream;

    use super::super::BLOCK;
    use super::super::simd::{Avx512, Ymm};
    use super::Lanes;

    // Philox4x32-10, as in `firebox_core::random`: a lane of 64 bits holds one of its words in the
    // lower half, which is all that a multiplication reads; what stands above it is never cleared.
    const MULTIPLIER: [i64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

    // SAFETY, for every block below: the caller vouches for AVX2.
    impl Lanes for Ymm {
        #[inline(always)]
        unsafe fn max(a: __m256, b: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_max_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn draw(stream: Stream, query: u32, group: u32) -> [__m256; 4] {
            // SAFETY: see above.
            unsafe {
                let even = _mm256_add_epi64(
                    _mm256_set1_epi64x(i64::from(query)),
                    _mm256_setr_epi64x(0, 2, 4, 6),
                );
                let odd = _mm256_add_epi64(even, _mm256_set1_epi64x(1));
                let (multiplier_0, multiplier_1) =
                    (_mm256_set1_epi64x(MULTIPLIER[0]), _mm256_set1_epi64x(MULTIPLIER[1]));
                let [mut key_0, mut key_1] = stream.key();
                let zero = _mm256_setzero_si256();
                let high = _mm256_set1_epi64x(i64::from(group));
                let (mut c, mut d) = ([even, high, zero, zero], [odd, high, zero, zero]);
                for _ in 0..10 {
                    let k_0 = _mm256_set1_epi32(key_0 as i32);
                    let k_1 = _mm256_set1_epi32(key_1 as i32);
                    for counter in [&mut c, &mut d] {
                        let a = _mm256_mul_epu32(counter[0], multiplier_0);
                        let b = _mm256_mul_epu32(counter[2], multiplier_1);
                        let from_b = _mm256_xor_si256(_mm256_srli_epi64::<32>(b), counter[1]);
                        let from_a = _mm256_xor_si256(_mm256_srli_epi64::<32>(a), counter[3]);
                        *counter =
                            [_mm256_xor_si256(from_b, k_0), b, _mm256_xor_si256(from_a, k_1), a];
                    }
                    key_0 = key_0.wrapping_add(WEYL[0]);
                    key_1 = key_1.wrapping_add(WEYL[1]);
                }
                let mut words = [_mm256_setzero_ps(); 4];
                for (word, into) in words.iter_mut().enumerate() {
                    let d = _mm256_slli_epi64::<32>(d[word]);
                    *into = _mm256_castsi256_ps(_mm256_blend_epi32::<0b1010_1010>(c[word], d));
                }
                words
            }
        }
        #[inline(always)]
        unsafe fn keep_low(x: __m256, words: __m256, threshold: u16) -> __m256 {
            // SAFETY: see above.
            unsafe {
                let up = _mm256_slli_epi32::<16>(_mm256_castps_si256(words));
                Self::keep_high(x, _mm256_castsi256_ps(up), threshold)
            }
        }
        #[inline(always)]
        unsafe fn keep_high(x: __m256, words: __m256, threshold: u16) -> __m256 {
            // SAFETY: see above.
            unsafe {
                let words = _mm256_castps_si256(words);
                let threshold = _mm256_set1_epi32((u32::from(threshold) << 16) as i32);
                let kept = _mm256_cmpeq_epi32(_mm256_max_epu32(words, threshold), words);
                _mm256_and_ps(x, _mm256_castsi256_ps(kept))
            }
        }
        #[inline(always)]
        unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
            for tile in 0..4 {
                let (row, column) = (tile / 2 * 8, tile % 2 * 8);
                // SAFETY: see above; eight rows and columns from there are within the 16.
                unsafe {
                    let from = from.add(row * from_row + column);
                    let to = to.add(column * to_row + row);
                    let mut a = [_mm256_setzero_ps(); 8];
                    for (index, a) in a.iter_mut().enumerate() {
                        *a = _mm256_loadu_ps(from.add(index * from_row));
                    }
                    let mut b = a;
                    for pair in 0..4 {
                        b[2 * pair] = _mm256_unpacklo_ps(a[2 * pair], a[2 * pair + 1]);
                        b[2 * pair + 1] = _mm256_unpackhi_ps(a[2 * pair], a[2 * pair + 1]);
                    }
                    // Of four rows each: in either half column `index` or, in the upper, 4 further.
                    for four in 0..2 {
                        let b = &b[4 * four..];
                        a[4 * four] = _mm256_shuffle_ps::<0x44>(b[0], b[2]);
                        a[4 * four + 1] = _mm256_shuffle_ps::<0xee>(b[0], b[2]);
                        a[4 * four + 2] = _mm256_shuffle_ps::<0x44>(b[1], b[3]);
                        a[4 * four + 3] = _mm256_shuffle_ps::<0xee>(b[1], b[3]);
                    }
                    for index in 0..4 {
                        let (low, high) = (a[index], a[4 + index]);
                        let first = _mm256_permute2f128_ps::<0x20>(low, high);
                        let second = _mm256_permute2f128_ps::<0x31>(low, high);
                        _mm256_storeu_ps(to.add(index * to_row), first);
                        _mm256_storeu_ps(to.add((4 + index) * to_row), second);
                    }
                }
            }
        }
    }

    // SAFETY, for every block below: the caller vouches for AVX-512F.
    impl<const DOT: bool> Lanes for Avx512<DOT> {
        #[inline(always)]
        unsafe fn max(a: __m512, b: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_max_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn draw(stream: Stream, query: u32, group: u32) -> [__m512; 4] {
            // SAFETY: see above.
            unsafe {
                let even = _mm512_add_epi64(
                    _mm512_set1_epi64(i64::from(query)),
                    _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14),
                );
                let odd = _mm512_add_epi64(even, _mm512_set1_epi64(1));
                let (multiplier_0, multiplier_1) =
                    (_mm512_set1_epi64(MULTIPLIER[0]), _mm512_set1_epi64(MULTIPLIER[1]));
                let [mut key_0, mut key_1] = stream.key();
                let zero = _mm512_setzero_si512();
                let high = _mm512_set1_epi64(i64::from(group));
                let (mut c, mut d) = ([even, high, zero, zero], [odd, high, zero, zero]);
                for _ in 0..10 {
                    let k_0 = _mm512_set1_epi32(key_0 as i32);
                    let k_1 = _mm512_set1_epi32(key_1 as i32);
                    for counter in [&mut c, &mut d] {
                        let a = _mm512_mul_epu32(counter[0], multiplier_0);
                        let b = _mm512_mul_epu32(counter[2], multiplier_1);
                        let from_b = _mm512_srli_epi64::<32>(b);
                        let from_a = _mm512_srli_epi64::<32>(a);
                        // 0x96: exclusive or of three.
                        *counter = [
                            _mm512_ternarylogic_epi32::<0x96>(from_b, counter[1], k_0),
                            b,
                            _mm512_ternarylogic_epi32::<0x96>(from_a, counter[3], k_1),
                            a,
                        ];
                    }
                    key_0 = key_0.wrapping_add(WEYL[0]);
                    key_1 = key_1.wrapping_add(WEYL[1]);
                }
                let mut words = [_mm512_setzero_ps(); 4];
                for (word, into) in words.iter_mut().enumerate() {
                    let d = _mm512_slli_epi64::<32>(d[word]);
                    *into = _mm512_castsi512_ps(_mm512_mask_blend_epi32(0xaaaa, c[word], d));
                }
                words
            }
        }
        #[inline(always)]
        unsafe fn keep_low(x: __m512, words: __m512, threshold: u16) -> __m512 {
            // SAFETY: see above.
            unsafe {
                let up = _mm512_slli_epi32::<16>(_mm512_castps_si512(words));
                Self::keep_high(x, _mm512_castsi512_ps(up), threshold)
            }
        }
        #[inline(always)]
        unsafe fn keep_high(x: __m512, words: __m512, threshold: u16) -> __m512 {
            // SAFETY: see above.
            unsafe {
                let threshold = _mm512_set1_epi32((u32::from(threshold) << 16) as i32);
                let kept = _mm512_cmpge_epu32_mask(_mm512_castps_si512(words), threshold);
                _mm512_maskz_mov_ps(kept, x)
            }
        }
        #[inline(always)]
        unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
            // SAFETY: see above.
            unsafe {
                let mut a = [_mm512_setzero_ps(); BLOCK];
                for (index, a) in a.iter_mut().enumerate() {
                    *a = _mm512_loadu_ps(from.add(index * from_row));
                }
                let mut b = a;
                for pair in 0..8 {
                    b[2 * pair] = _mm512_unpacklo_ps(a[2 * pair], a[2 * pair + 1]);
                    b[2 * pair + 1] = _mm512_unpackhi_ps(a[2 * pair], a[2 * pair + 1]);
                }
                // Of four rows each: in quarter `q` column `4 q + index`.
                for four in 0..4 {
                    let b = &b[4 * four..];
                    a[4 * four] = _mm512_shuffle_ps::<0x44>(b[0], b[2]);
                    a[4 * four + 1] = _mm512_shuffle_ps::<0xee>(b[0], b[2]);
                    a[4 * four + 2] = _mm512_shuffle_ps::<0x44>(b[1], b[3]);
                    a[4 * four + 3] = _mm512_shuffle_ps::<0xee>(b[1], b[3]);
                }
                for index in 0..4 {
                    let even_low = _mm512_shuffle_f32x4::<0x88>(a[index], a[4 + index]);
                    let odd_low = _mm512_shuffle_f32x4::<0xdd>(a[index], a[4 + index]);
                    let even_high = _mm512_shuffle_f32x4::<0x88>(a[8 + index], a[12 + index]);
                    let odd_high = _mm512_shuffle_f32x4::<0xdd>(a[8 + index], a[12 + index]);
                    let quarters = [
                        _mm512_shuffle_f32x4::<0x88>(even_low, even_high),
                        _mm512_shuffle_f32x4::<0x88>(odd_low, odd_high),
                        _mm512_shuffle_f32x4::<0xdd>(even_low, even_high),
                        _mm512_shuffle_f32x4::<0xdd>(odd_low, odd_high),
                    ];
                    for (quarter, column) in quarters.iter().enumerate() {
                        _mm512_storeu_ps(to.add((4 * quarter + index) * to_row), *column);
                    }
                }
            }
        }
    }
}
