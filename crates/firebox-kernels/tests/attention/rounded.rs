//! Operands in bf16: the gradient of scores is a difference, of which nothing may be left but what the scores say.

use firebox_core::{Precision, Stream};
use firebox_kernels::{AttentionWindow, CpuKernels};

use crate::case::{NAMES, problem, relative_error, run, run_packed};
use crate::reference::Problem;

#[test]
fn of_one_key_scores_have_no_slope() {
    let stream = Some(Stream::new(5, "probabilities"));
    let alone = problem(500, [3, 1, 1, 2, 16]);
    let own = Some(AttentionWindow { reach: 0, global: 0 });
    for problem in [
        alone.clone(),
        Problem { dropout: 0.1, stream, ..alone },
        Problem { key_lengths: Some(vec![1, 1]), ..problem(501, [2, 40, 20, 1, 24]) },
        Problem { window: own, ..problem(502, [1, 70, 70, 2, 16]) },
    ] {
        for kernels in CpuKernels::available() {
            let [_, dq, dk, _] = kernels.force(|| run(&problem, Precision::Bf16));
            // Two sums of the same products in two orders.
            let largest = dq.iter().chain(&dk).fold(0.0, |most: f32, d| most.max(d.abs()));
            assert!(largest < 2e-5, "{kernels:?}: {largest:e}");
        }
    }
}

/// What all keys and all values have in common changes no score beside others, and no difference of slopes.
#[test]
fn what_keys_and_values_have_in_common_takes_no_part() {
    let stream = Some(Stream::new(6, "probabilities"));
    let short = problem(510, [2, 48, 48, 2, 32]);
    let long = problem(511, [1, 150, 150, 2, 32]);
    let window = Some(AttentionWindow { reach: 9, global: 1 });
    for mut problem in [
        short.clone(),
        Problem { dropout: 0.1, stream, ..short },
        long.clone(),
        Problem { causal: true, ..long.clone() },
        Problem { causal: true, dropout: 0.3, stream, ..long.clone() },
        Problem { window, ..long },
    ] {
        // Operands that bf16 holds, so that all that is rounded is what is computed, and the gradient of the result.
        for (values, shift) in problem.values[..3].iter_mut().zip([0.0, 5.0, 5.0]) {
            values.iter_mut().for_each(|x| *x = half::bf16::from_f64(*x + shift).to_f64());
        }
        let exact = problem.solve();
        for kernels in CpuKernels::available().into_iter().skip(1) {
            let (apart, packed) = kernels
                .force(|| (run(&problem, Precision::Bf16), run_packed(&problem, Precision::Bf16)));
            for found in [apart, packed] {
                let bounds = [1e-3, 1.6e-2, 5e-3, 5e-3];
                for (part, (name, bound)) in NAMES.iter().zip(bounds).enumerate() {
                    let error = relative_error(&found[part], &exact[part]);
                    assert!(error < bound, "{kernels:?}: {name} is off by {error:.2e}");
                }
            }
        }
    }
}
