//! Bits as numbers on a GPU.

#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::{self, prelude::*};
use burn_cubecl::kernel::into_contiguous;

use super::tensors::{each_of, empty};
use super::watch::{LaunchedWork, launching};

/// Each thread has a number: one where its bit is set, and zero elsewhere; the lowest bit of a word comes first.
///
/// # Shapes
/// - words: `[count / 32, rounded up]`; numbers: `[count]`
#[cube(launch_unchecked)]
fn bits(words: &[i32], numbers: &mut [f32], count: u32) {
    let at = ABSOLUTE_POS as u32;
    if at < count {
        let word = words[(at / 32) as usize];
        // The sign goes down with it, above the bit that is asked for.
        let bit = (word >> i32::cast_from(at % 32)) & 1;
        numbers[at as usize] = f32::cast_from(bit);
    }
}

/// Bits of words in i32; there are some.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(crate) trait BitOps: Backend {
    /// The first `count` of them as numbers in f32, `[count]`.
    #[fusion(meta = |_words, count| TensorSpec::new([*count].into(), DType::F32))]
    fn firebox_bits(words: IntTensor<Self>, count: usize) -> FloatTensor<Self>;
}

impl BitOps for CubeBackend {
    fn firebox_bits(words: IntTensor<Self>, count: usize) -> FloatTensor<Self> {
        let words = into_contiguous(words);
        let numbers = empty(&words, [count], DType::F32);
        let (cubes, dim) = each_of(count, &words.client);
        let client = words.client.clone();
        let work = || LaunchedWork {
            name: "bits as numbers",
            shape: vec![count],
            operations: 0.0,
            bytes: (4 * count) as f64,
            bf16: false,
        };
        // SAFETY: a thread compares its place with the count, for which there are words (`indicator` makes them).
        launching(work, || unsafe {
            bits::launch_unchecked(
                &client,
                cubes,
                dim,
                words.into_buffer_arg(),
                numbers.clone().into_buffer_arg(),
                count as u32,
            );
        });
        numbers
    }
}
