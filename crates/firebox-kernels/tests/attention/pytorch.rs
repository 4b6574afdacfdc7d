//! Golden files that `attention_golden.py` wrote with PyTorch's `scaled_dot_product_attention`.

use std::collections::BTreeMap;

use firebox_core::Precision;
use firebox_kernels::CpuKernels;
use safetensors::SafeTensors;

use crate::case::{NAMES, relative_error, run};
use crate::reference::Problem;

/// A problem, its solution by PyTorch, and the errors of PyTorch's bf16.
fn golden(name: &str) -> (Problem, [Vec<f64>; 4], [f64; 4]) {
    let folder = "tests/golden";
    let bytes = std::fs::read(format!("{folder}/attention-{name}.safetensors")).expect("a file");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("a header");
    let metadata = header.metadata().clone().expect("metadata");
    let values = |name: &str| -> Vec<f64> {
        let view = file.tensor(name).expect("a tensor");
        let numbers = view.data().as_chunks::<4>().0.iter();
        numbers.map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
    };
    let [batch, queries, keys, heads, size]: [usize; 5] =
        serde_json::from_str(&metadata["sizes"]).expect("sizes");
    let lengths: Option<Vec<usize>> = serde_json::from_str(&metadata["lengths"]).expect("lengths");
    let problem = Problem {
        batch,
        queries,
        keys,
        heads,
        size,
        query_lengths: lengths.clone(),
        key_lengths: lengths,
        query_mask: None,
        key_mask: None,
        causal: metadata["causal"] == "true",
        scale: serde_json::from_str(&metadata["scale"]).expect("a scale"),
        dropout: 0.0,
        stream: None,
        window: None,
        values: ["q", "k", "v", "d"].map(values),
    };
    let results = ["out", "grad.q", "grad.k", "grad.v"];
    let theirs: BTreeMap<String, f64> =
        serde_json::from_str(&metadata["bf16"]).expect("errors of PyTorch");
    (problem, results.map(values), results.map(|name| theirs[name]))
}

const CASES: [&str; 5] = ["plain", "lengths", "causal", "cross", "wide"];

#[test]
fn agrees_with_pytorch() {
    for case in CASES {
        let (problem, exact, _) = golden(case);
        for kernels in CpuKernels::available() {
            let results = kernels.force(|| run(&problem, Precision::F32));
            for ((name, ours), exact) in NAMES.iter().zip(&results).zip(&exact) {
                let error = relative_error(ours, exact);
                assert!(error < 1e-5, "{kernels:?}, {case}: {name} is off by {error:.2e}");
            }
        }
    }
}

/// Rounded operands: off by at most so many times the error of PyTorch's bf16, and by no less than
/// rounding makes.
fn check_rounded(precision: Precision, times: f64, least: f64) {
    for case in CASES {
        let (problem, exact, theirs) = golden(case);
        for kernels in CpuKernels::available() {
            let results = kernels.force(|| run(&problem, precision));
            for (index, name) in NAMES.iter().enumerate() {
                let (error, theirs) =
                    (relative_error(&results[index], &exact[index]), theirs[index]);
                assert!(
                    error < times * theirs,
                    "{kernels:?} {precision}, {case}: {name} is off by {error:.2e}, PyTorch's bf16 by {theirs:.2e}"
                );
                // Rounding happened: this is not f32 under another name.
                assert!(error > least, "{kernels:?} {precision}, {case}: {name}: {error:.2e} only");
            }
        }
    }
}

#[test]
fn bf16_is_as_exact_as_pytorchs() {
    check_rounded(Precision::Bf16, 1.5, 1e-4);
}

/// It has three bits more.
#[test]
fn f16_is_four_times_as_exact_as_pytorchs_bf16() {
    check_rounded(Precision::F16, 0.25, 1e-5);
}
