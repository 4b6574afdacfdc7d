//! What kernels and their cuts are called in reports.

use std::fmt;

use super::{Cut, FragmentTile, Place};

impl Place {
    fn name(self) -> &'static str {
        match self {
            Self::Registers => "registers",
            Self::Shared => "shared memory",
            Self::Global => "global memory",
        }
    }
}

/// Where a tile's weights are, with the share of each place if there are several.
fn places(tile: &FragmentTile) -> String {
    let all = tile.steps();
    let count = |place| {
        let [first, end] = tile.steps_in(place);
        end - first
    };
    let places = [Place::Registers, Place::Shared, Place::Global];
    let named =
        places.into_iter().filter(|place| count(*place) > 0).map(|place| match count(place) {
            some if some == all => place.name().to_owned(),
            some => format!("{} ({some} of {all})", place.name()),
        });
    named.collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (samples, threads, places) = match self {
            Self::Plain(tile) => {
                let place = if tile.resident { Place::Shared } else { Place::Global };
                (tile.samples(), tile.threads(), place.name().to_owned())
            }
            Self::Fragments(tile) => (tile.samples(), tile.threads(), places(tile)),
            Self::Cores(tile) => (tile.samples(), tile.threads(), tile.place.name().to_owned()),
        };
        // What was tuned is kept by these names.
        let kind = if matches!(self, Self::Fragments(_)) { " in fragments" } else { "" };
        write!(f, "{samples} samples{kind}, {threads} threads, weights in {places}")
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
    use super::super::{GpuKernels, Hardware, Layer, Pass};
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
        let by_hand = Hardware { by_hand: vec![DType::BF16], ..hopper.clone() };
        let name = |hardware: &Hardware, kernels, dtype, units| {
            let (pass, gru) = (Pass::Forward, false);
            let layer = Layer { kernels, pass, dtype, directions: 2, batch: 512, units, gru };
            layer.cuts(hardware)[0].to_string()
        };
        let check = |kernels, dtype, units, expected: &str| {
            assert_eq!(name(&hopper, kernels, dtype, units), expected);
        };
        let [cores, resident, streamed] = GpuKernels::ALL;
        let bf16 = DType::BF16;
        check(cores, bf16, 128, "8 samples, 512 threads, weights in registers");
        check(cores, bf16, 256, "8 samples, 512 threads, weights in global memory");
        check(resident, bf16, 128, "8 samples, 256 threads, weights in shared memory");
        check(streamed, DType::F32, 128, "8 samples, 256 threads, weights in global memory");
        let expected = "8 samples in fragments, 512 threads, weights in registers";
        assert_eq!(name(&by_hand, cores, bf16, 128), expected);
        let expected = "8 samples in fragments, 512 threads, weights in registers (3 of 16), shared memory (6 of 16), global memory (7 of 16)";
        assert_eq!(name(&by_hand, cores, bf16, 256), expected);
    }
}
