//! Normal noise of rows that have streams of their own, drawn where it is added: `Stream::fill_normal` of
//! `firebox_core` on a GPU, number by number.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::{self, prelude::*};
use burn_cubecl::kernel::into_contiguous;

use super::dropout::philox;
use super::math::{log_series, sine_and_cosine};
use super::tensors::{each_of, empty};
use super::watch::{LaunchedWork, launching};

/// Blocks whose numbers lie side by side.
pub(super) const LANES: usize = 16;
/// Their numbers.
pub(super) const GROUP: usize = 4 * LANES;

/// `√(−2 ln u)` of the uniform number `u` in `(0, 1]` that the upper 24 bits of a word give. By a
/// polynomial: a device's own logarithm may lose its digits next to 1.
#[cube]
fn radius(word: u32) -> f32 {
    // Times 2^-24, exactly.
    let uniform = f32::cast_from((word >> 8u32) + 1u32) * 5.960_464_5e-8f32;
    // Mantissas from √½, whose bits are 0x3f3504f3, to √2; with 25 added to the exponent, which is -24 or
    // more, so that no number is negative.
    let above = u32::reinterpret(uniform) - 0x32b5_04f3u32;
    let exponent = f32::cast_from(above >> 23u32) - 25.0f32;
    let f = f32::reinterpret((above & 0x007f_ffffu32) + 0x3f35_04f3u32) - 1.0f32;
    let square = f * f;
    let p = log_series(f);
    let small = p * f * square - exponent * 2.121_944_4e-4f32 - square * 0.5f32;
    let logarithm = f + small + exponent * 0.693_359_4f32;
    // Rounding may bring the logarithm of a number near 1 a hair above zero.
    (0.0f32 - logarithm * 2.0f32).max(0.0f32).sqrt()
}

/// Cosine and sine of the angle of a word: its upper two bits choose a quarter turn, the next 22 an angle
/// from −45° to 45°.
#[cube]
fn direction(word: u32) -> (f32, f32) {
    // Times 2^-22, exactly.
    let fraction = f32::cast_from((word >> 8u32) & 0x003f_ffffu32) * 2.384_185_8e-7f32;
    let x = (fraction - 0.5f32) * 1.570_796_4f32;
    let (sine, cosine) = sine_and_cosine(x);
    // Odd quarters: (−sine, cosine); quarters 2 and 3 turn by half a circle more.
    let odd = (word >> 30u32) & 1u32 == 1u32;
    let sign = 1.0f32 - f32::cast_from(word >> 31u32) * 2.0f32;
    (select(odd, -sine, cosine) * sign, select(odd, cosine, sine) * sign)
}

/// Each thread draws one block of a row's stream and adds its four numbers. `blocks` are those of a row,
/// a multiple of [`LANES`].
///
/// # Shapes
/// - x, y: `[rows, width]`; deviations: `[rows, channels]`
/// - keys: the two words of a stream and whether there is one, `[rows, 3]`
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel takes plain numbers")]
fn noisy(
    x: &[f32],
    deviations: &[f32],
    keys: &[i32],
    y: &mut [f32],
    rows: u32,
    width: u32,
    channels: u32,
    blocks: u32,
) {
    let (width, channels, blocks) = (width as usize, channels as usize, blocks as usize);
    let row = ABSOLUTE_POS / blocks;
    let block = ABSOLUTE_POS % blocks;
    if row < rows as usize {
        let first = (block / LANES) * GROUP + block % LANES;
        let drawn = keys[row * 3 + 2] == 1i32;
        let key_0 = u32::reinterpret(keys[row * 3]);
        let key_1 = u32::reinterpret(keys[row * 3 + 1]);
        let words = philox(block as u32, 0u32.runtime(), key_0, key_1);
        #[unroll]
        for pair in 0..2usize {
            let distance = radius(words[2 * pair]);
            let (cosine, sine) = direction(words[2 * pair + 1]);
            let at = first + 2 * pair * LANES;
            // Chosen, not added as zero: a row without a stream stays as it is.
            if at < width {
                let value = x[row * width + at];
                let noise = deviations[row * channels + at % channels] * (distance * cosine);
                y[row * width + at] = select(drawn, value + noise, value);
            }
            let at = at + LANES;
            if at < width {
                let value = x[row * width + at];
                let noise = deviations[row * channels + at % channels] * (distance * sine);
                y[row * width + at] = select(drawn, value + noise, value);
            }
        }
    }
}

/// Threads for a batch, or elements if those are more.
pub(crate) fn threads([rows, time, channels]: [usize; 3]) -> usize {
    let width = time * channels;
    rows.saturating_mul(width.max(width.div_ceil(GROUP) * LANES))
}

/// Noise of rows. All tensors are in no graph, floats in f32.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(crate) trait RowNoiseOps: Backend {
    /// `x + noise`, whose elements and threads fit into 31 bits ([`threads`]).
    ///
    /// # Shapes
    /// - x: `[batch, time, channel]`; deviations: `[batch, channel]`
    /// - keys: `[batch, 3]` in i32, as the kernel takes them
    #[fusion(meta = |x, _deviations, _keys| x.clone())]
    fn firebox_row_noise(
        x: FloatTensor<Self>,
        deviations: FloatTensor<Self>,
        keys: IntTensor<Self>,
    ) -> FloatTensor<Self>;
}

impl RowNoiseOps for CubeBackend {
    fn firebox_row_noise(
        x: FloatTensor<Self>,
        deviations: FloatTensor<Self>,
        keys: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let [x, deviations, keys] = [x, deviations, keys].map(into_contiguous);
        let [rows, time, channels] = x.shape().dims();
        let width = time * channels;
        let blocks = width.div_ceil(GROUP) * LANES;
        let (client, dtype) = (x.client.clone(), x.dtype);
        let y = empty(&x, x.shape(), dtype);
        let (cubes, dim) = each_of(rows * blocks, &client);
        let work = || LaunchedWork {
            name: "noise of rows",
            shape: vec![rows, time, channels],
            // Two polynomials and a root of each number.
            operations: (30 * rows * width) as f64,
            bytes: (8 * rows * width) as f64,
            bf16: false,
        };
        // SAFETY: the kernel compares rows and places with the shape of `x`, which `y` has; there are
        // as many rows of deviations, each of as many channels, and of keys (`add_row_noise` has
        // checked both).
        let launch = || unsafe {
            noisy::launch_unchecked(
                &client,
                cubes,
                dim,
                x.clone().into_buffer_arg(),
                deviations.into_buffer_arg(),
                keys.into_buffer_arg(),
                y.clone().into_buffer_arg(),
                rows as u32,
                width as u32,
                channels as u32,
                blocks as u32,
            );
        };
        launching(work, launch);
        y
    }
}
