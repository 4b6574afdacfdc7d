//! Gates near 1, which carry a state over hundreds of steps, in bf16: an error of what a kernel keeps of them for the
//! gradients is multiplied as often. Beside Burn's own operations, which round the same operands and keep gates as f32.

use crate::gru;
use crate::support::case::Case;
use crate::support::relative_error;
use burn::tensor::Device;
use firebox_core::{Precision, Stream};
use firebox_kernels::{CpuKernels, GruConfig, LstmConfig};

const CHANNELS: usize = 8;
const HIDDEN: usize = 32;
const SAMPLES: usize = 4;
const TIME: usize = 600;

/// Largest relative error of a gradient. Gates that are rounded to bf16 make it 0.05 to 0.5, those of which what is
/// missing to 1 is rounded 0.002.
const LIMIT: f64 = 0.05;

/// The gradients of what reaches back over all steps, by name.
type Gradients = [(&'static str, Vec<f64>); 3];

/// Biases of gates that keep from 0.98 to 0.9995 of the state of a unit: `ln u`, with `u` uniform from 49 to 1,999.
/// Source: Tallec and Ollivier, "Can recurrent neural networks warp time?", 2018.
fn biases() -> Vec<f64> {
    let mut draws = Stream::new(23, "biases").draws();
    (0..HIDDEN).map(|_| (49.0 + 1950.0 * f64::from(draws.uniform())).ln()).collect()
}

/// The gradients of every fused variant are those of Burn's operations.
#[track_caller]
fn check(run: &dyn Fn() -> Gradients) {
    let expected = CpuKernels::Composed.force(run);
    let fused = CpuKernels::available().into_iter();
    for kernels in fused.filter(|kernels| *kernels != CpuKernels::Composed) {
        for ((name, found), (_, expected)) in kernels.force(run).iter().zip(&expected) {
            let error = relative_error(found, expected);
            assert!(error < LIMIT, "{kernels:?}: d {name} is off by {error:.2e}");
        }
    }
}

#[test]
fn an_lstm_learns_of_what_it_remembers_for_long() {
    let mut case = Case::new(LstmConfig::new(CHANNELS, HIDDEN), &[TIME; SAMPLES], TIME, 23);
    case.precision = Precision::Bf16;
    let bias = &mut case.inputs.directions[0].bias_ih;
    for (unit, kept) in biases().into_iter().enumerate() {
        // As much is let in as is lost.
        bias[unit] = -kept;
        bias[HIDDEN + unit] = kept;
    }
    check(&|| {
        let (_, mut grads) = case.run(&Device::flex().autodiff());
        let direction = grads.directions.remove(0);
        [
            ("weight_ih", direction.weight_ih),
            ("bias", direction.bias_ih),
            ("the initial cell", grads.c_0),
        ]
    });
}

#[test]
fn a_gru_learns_of_what_it_remembers_for_long() {
    let mut case = gru::Case::new(GruConfig::new(CHANNELS, HIDDEN), &[TIME; SAMPLES], TIME, 24);
    case.precision = Precision::Bf16;
    let [_, _, _, _, bias, _] = &mut case.numbers[..] else { panic!("the numbers of a layer") };
    bias[HIDDEN..2 * HIDDEN].copy_from_slice(&biases());
    check(&|| {
        let (_, mut grads) = case.run();
        let [bias, weight, state] = [4, 2, 1].map(|part| grads.swap_remove(part));
        [("weight_ih", weight), ("bias", bias), ("the initial state", state)]
    });
}
