//! An infinite number in the input of an LSTM: what is finite in float64 is finite, and the same.

use crate::support::case::Case;
use crate::support::reference::{self, Inputs, Outputs};
use crate::support::relative_error;
use burn::tensor::Device;
use firebox_kernels::{CpuKernels, LstmConfig};

const CHANNELS: usize = 3;
const TIME: usize = 4;

/// The channel that is infinite in a step of the first of two samples.
const CHANNEL: usize = 1;

/// An LSTM of so many units, infinity in step 2 of its first sample, and the sum of all outputs for its loss.
fn case(hidden: usize) -> Case {
    let mut case = Case::new(LstmConfig::new(CHANNELS, hidden), &[TIME, TIME], TIME, 21);
    case.inputs.input[2 * CHANNELS + CHANNEL] = f64::INFINITY;
    case.d.output.fill(1.0);
    case.d.h_n.fill(0.0);
    case.d.c_n.fill(0.0);
    case
}

/// All results and gradients by name.
fn parts((outputs, grads): &(Outputs, Inputs)) -> Vec<(String, &Vec<f64>)> {
    let Outputs { output, h_n, c_n } = outputs;
    let results = [("output", output), ("h_n", h_n), ("c_n", c_n)];
    let results = results.map(|(name, values)| (name.to_owned(), values));
    let grads = grads.parts().into_iter().map(|(name, values)| (format!("d {name}"), values));
    results.into_iter().chain(grads).collect()
}

/// Finite numbers are expected where the reference has them, and those.
#[track_caller]
fn check(what: &str, found: &[f64], expected: &[f64]) {
    let finite = |values: &[f64]| values.iter().map(|value| value.is_finite()).collect::<Vec<_>>();
    assert_eq!(finite(found), finite(expected), "{what}: {found:?}");
    let kept = |values: &[f64]| -> Vec<f64> {
        values.iter().copied().filter(|value| value.is_finite()).collect()
    };
    let error = relative_error(&kept(found), &kept(expected));
    assert!(error < 1e-5, "{what} is off by {error:.2e}");
}

#[test]
fn infinity_is_felt_by_the_weights_of_its_channel_alone() {
    // Units that fill a block of sixteen, and that fill none or not their last one.
    for hidden in [10, 16, 20] {
        let case = case(hidden);
        let expected = reference::run(&case.sizes, &case.inputs, Some(&case.d));
        let weights = &case.inputs.directions[0].weight_ih;
        assert!(weights.iter().all(|weight| *weight != 0.0));
        // Gates are at their ends, where their slopes are zero: what is left is zero times infinity.
        for (name, values) in parts(&expected) {
            for (at, value) in values.iter().enumerate() {
                let is_its_weight = name == "d weight_ih 0" && at % CHANNELS == CHANNEL;
                assert_eq!(value.is_finite(), !is_its_weight, "{name} at {at}");
            }
        }
        for kernels in CpuKernels::available() {
            let found = kernels.force(|| case.run(&Device::flex().autodiff()));
            for ((name, found), (_, expected)) in parts(&found).into_iter().zip(parts(&expected)) {
                check(&format!("{kernels:?}, {hidden} units: {name}"), found, expected);
            }
        }
    }
}
