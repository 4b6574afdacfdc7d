//! Times attention forward and back on a GPU, on tensor cores and with a row a thread beside Burn's own
//! operations, and prints one line of JSON each:
//!
//! ```text
//! cargo run --release -p firebox-kernels --example gpu_attention_step \
//!     --features cube,fusion,autotune,burn/cuda -- [batch] [steps] [type] [time] [heads] [size] [fused]
//! ```
//!
//! Queries, keys and values lie side by side, a tenth of the probabilities is dropped, and the gradient of
//! all is computed: what a layer of an encoder does. By default, in windows of 105 steps with 8 heads of 16
//! numbers, as the Transformer of the benchmark suite has them; BERT's are `128 12 64`. The type is `f32`,
//! `f16` or `bf16`. The device is Burn's default one; `BURN_DEVICE` chooses another. `fused` leaves Burn's
//! own operations out. The clock stops when the device has finished.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::time::Instant;

use burn::tensor::{DType, Device, Tensor};
use firebox_core::Stream;
use firebox_kernels::{Attention, CpuKernels, GpuKernels, self_attention, uniform};

const WARM_UP: usize = 5;

/// Median, least, and median of the forward pass alone, in milliseconds.
fn time(qkv: &Tensor<3>, weights: &Tensor<3>, settings: &Attention, steps: usize) -> [f64; 3] {
    let device = qkv.device();
    let (mut forward, mut whole) = (vec![], vec![]);
    for step in 0..steps + WARM_UP {
        device.sync().unwrap();
        let start = Instant::now();
        let x = qkv.clone().detach().require_grad();
        let dropped = Stream::new(1337, "dropout").substream(step as u64);
        let out = self_attention(x.clone(), None, Some(dropped), settings);
        device.sync().unwrap();
        let middle = start.elapsed();
        // One product with a tensor stands for whatever comes after.
        let grads = (out * weights.clone()).sum().backward();
        let gradient = x.grad(&grads).expect("the input has a gradient");
        assert_eq!(gradient.dims(), qkv.dims());
        device.sync().unwrap();
        if step >= WARM_UP {
            forward.push(middle.as_secs_f64() * 1e3);
            whole.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    [median(&mut whole), whole[0], median(&mut forward)]
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize, default: &str| {
        arguments.get(index).map_or(default.to_owned(), String::clone)
    };
    let number = |index, default| argument(index, default).parse::<usize>().expect("a number");
    let (batch, steps, rows) = (number(0, "512"), number(1, "15"), number(3, "105"));
    let (heads, size) = (number(4, "8"), number(5, "16"));
    let precision = argument(2, "bf16");
    let dtype = match precision.as_str() {
        "f32" => DType::F32,
        "f16" => DType::F16,
        "bf16" => DType::BF16,
        found => panic!("the type is `{found}`; allowed are `f32`, `f16` and `bf16`"),
    };
    let device = Device::default().autodiff();
    let noise = |seed, width, scale: f64| {
        let shape = [batch, rows, width];
        uniform::<3>(Stream::new(seed, "noise"), shape, -scale, scale, &device).cast(dtype)
    };
    let (qkv, weights) = (noise(1, 3 * heads * size, 1.0), noise(2, heads * size, 1e-3));
    let settings = Attention { dropout: 0.1, ..Attention::new(heads) };
    let line = |kernels: &str| {
        let [median, least, forward] = time(&qkv, &weights, &settings, steps);
        println!(
            r#"{{"workload": "attention", "device": "{device:?}", "precision": "{precision}", "batch": {batch}, "time": {rows}, "heads": {heads}, "size": {size}, "fusion": {}, "kernels": "{kernels}", "median_ms": {median:.3}, "least_ms": {least:.3}, "forward_ms": {forward:.3}}}"#,
            cfg!(feature = "fusion"),
        );
    };
    if GpuKernels::attends_on_tensor_cores(&device, dtype, size) {
        line("TensorCores");
    } else {
        println!(
            r#"{{"kernels": "TensorCores", "why_not": "none for {size} numbers in {precision}"}}"#
        );
    }
    GpuKernels::Resident.force(|| line("a row a thread"));
    if argument(6, "all") != "fused" {
        CpuKernels::Composed.force(|| line("Composed"));
    }
}
