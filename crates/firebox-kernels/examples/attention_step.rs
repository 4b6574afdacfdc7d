//! Times self-attention forward and backward and prints one line of JSON:
//!
//! ```text
//! cargo run --release -p firebox-kernels --example attention_step -- \
//!     [batch] [time] [heads] [size] [steps] [bf16] [plain]
//! ```
//!
//! Dropout is 0.1, or none with `plain`. The floor beside the times is that of the products alone, at
//! the peak that `GFLOPS` names for all threads together (default 530 in f32 and 1,060 in bf16, that
//! of two Zen 5 cores with AVX-512). `FIREBOX_KERNELS` and `RAYON_NUM_THREADS` choose variant and
//! threads.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::time::Instant;

use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{Attention, CpuKernels, self_attention, uniform};

// As in the `firebox` binary: fresh memory for each large tensor costs a fifth of a step.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let number = |index: usize, default| numbers.get(index).copied().unwrap_or(default);
    let [batch, time, heads, size, steps] =
        [(0, 256), (1, 105), (2, 8), (3, 16), (4, 15)].map(|(at, default)| number(at, default));
    let flag = |name: &str| std::env::args().any(|argument| argument == name);
    let settings = Attention {
        dropout: if flag("plain") { 0.0 } else { 0.1 },
        precision: if flag("bf16") { Precision::Bf16 } else { Precision::F32 },
        ..Attention::new(heads)
    };
    let device = Device::flex().autodiff();
    let width = heads * size;
    let input =
        uniform::<3>(Stream::new(1337, "input"), [batch, time, 3 * width], -2.0, 2.0, &device);
    let (mut forward, mut backward) = (vec![], vec![]);
    for step in 0..steps + 3 {
        let x = input.clone().detach().require_grad();
        let dropout = Stream::new(1337, "dropout").substream(step as u64);
        let start = Instant::now();
        let out = self_attention(x.clone(), None, Some(dropout), &settings);
        let middle = Instant::now();
        // The gradient of the sum is all ones: what it costs beside attention is a few percent.
        let grads = out.sum().backward();
        let end = Instant::now();
        assert!(x.grad(&grads).is_some_and(|d: Tensor<3>| d.dims() == [batch, time, 3 * width]));
        if step >= 3 {
            forward.push((middle - start).as_secs_f64() * 1e3);
            backward.push((end - middle).as_secs_f64() * 1e3);
        }
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let peak = match settings.precision {
        Precision::Bf16 => 1060.0,
        _ => 530.0,
    };
    let peak = std::env::var("GFLOPS").ok().and_then(|text| text.parse().ok()).unwrap_or(peak);
    // Seven products of T × T × size: two forward, five backward.
    let floor = 14.0 * (batch * heads * time * time * size) as f64 / (peak * 1e6);
    let (forward, backward) = (median(&mut forward), median(&mut backward));
    println!(
        r#"{{"workload": "self-attention", "batch": {batch}, "time": {time}, "heads": {heads}, "size": {size}, "dropout": {}, "precision": "{}", "kernels": "{:?}", "threads": {}, "forward_ms": {forward:.2}, "backward_ms": {backward:.2}, "floor_ms": {floor:.2}, "of_floor": {:.2}}}"#,
        settings.dropout,
        settings.precision,
        CpuKernels::current().ok(),
        rayon::current_num_threads(),
        floor / (forward + backward),
    );
}
