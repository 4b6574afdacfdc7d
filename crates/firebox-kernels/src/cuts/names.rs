//! What kernels and their cuts are called in reports.

use std::fmt;

use super::{Cut, Place};

impl Place {
    fn name(self) -> &'static str {
        match self {
            Self::Registers => "registers",
            Self::Shared => "shared memory",
            Self::Global => "global memory",
        }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (samples, threads, place) = match self {
            Self::Plain(tile) => {
                let place = if tile.resident { Place::Shared } else { Place::Global };
                (tile.samples(), tile.threads(), place)
            }
            Self::Cores(tile) => (tile.samples(), tile.threads(), tile.place),
        };
        write!(f, "{samples} samples, {threads} threads, weights in {}", place.name())
    }
}

/// The name of a type without the modules that it and its parameters are in.
pub(crate) fn without_modules(name: &str) -> String {
    let mut plain = String::new();
    // Where the word in hand begins.
    let mut word = 0;
    let mut rest = name.chars().peekable();
    while let Some(letter) = rest.next() {
        match letter {
            ':' if rest.peek() == Some(&':') => {
                rest.next();
                plain.truncate(word);
            }
            letter => {
                plain.push(letter);
                if !(letter.is_alphanumeric() || letter == '_') {
                    word = plain.len();
                }
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;

    use super::super::tests::{CUDA, hardware, with_cores};
    use super::super::{GpuKernels, Layer, Pass};
    use super::*;

    #[test]
    fn names_lose_their_modules_and_nothing_else() {
        let check = |name: &str, expected: &str| assert_eq!(without_modules(name), expected);
        check("a::b::Unary<f32, c::Tensor<_>::d::Copy>", "Unary<f32, Tensor<_>Copy>");
        check("burn_cubecl::kernel::Fill", "Fill");
        check("Fill", "Fill");
        check("", "");
    }

    #[test]
    fn a_cut_is_called_by_its_samples_threads_and_place() {
        let hopper = with_cores(hardware(227 * 1024, 1024, Some(132)), &CUDA);
        let check = |kernels, dtype, units, expected: &str| {
            let (pass, gru) = (Pass::Forward, false);
            let layer = Layer { kernels, pass, dtype, directions: 2, batch: 512, units, gru };
            assert_eq!(layer.cuts(&hopper)[0].to_string(), expected);
        };
        let [cores, resident, streamed] = GpuKernels::ALL;
        let bf16 = DType::BF16;
        check(cores, bf16, 128, "8 samples, 512 threads, weights in registers");
        check(cores, bf16, 256, "8 samples, 512 threads, weights in global memory");
        check(resident, bf16, 128, "8 samples, 256 threads, weights in shared memory");
        check(streamed, DType::F32, 128, "8 samples, 256 threads, weights in global memory");
    }
}
