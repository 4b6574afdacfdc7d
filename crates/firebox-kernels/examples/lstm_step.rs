//! Times the forward and backward pass of a stack of LSTM layers and prints one line of JSON:
//!
//! ```text
//! cargo run --release -p firebox-kernels --example lstm_step -- [batch] [steps] [channels] [bf16]
//! ```
//!
//! Two bidirectional layers of 128 units on windows of 105 steps, dropout 0.2 between them, the
//! gradient of all parameters and of the input: the encoder of the reference workload `lstm-mae`.
//! `torch_lstm.py` beside this file times the same in PyTorch. `FIREBOX_KERNELS` and
//! `RAYON_NUM_THREADS` choose variant and threads.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::time::Instant;

use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{CpuKernels, LstmConfig, uniform};

// As in the `firebox` binary: fresh memory for each large tensor costs a fifth of a step.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Time that all threads of this process have run, in ticks of 10 ms (Linux; elsewhere 0): a measure
/// that other processes disturb less than they disturb the clock.
fn processor_ms() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() * 10.0
}

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let number = |index: usize, default| numbers.get(index).copied().unwrap_or(default);
    let (batch, steps, channels) = (number(0, 512), number(1, 15), number(2, 4));
    let time = 105;

    let bf16 = std::env::args().any(|argument| argument == "bf16");
    let precision = if bf16 { Precision::Bf16 } else { Precision::F32 };
    let device = Device::flex().autodiff();
    let config = LstmConfig {
        layers: 2,
        bidirectional: true,
        dropout: 0.2,
        ..LstmConfig::new(channels, 128)
    };
    let lstm = config.init(Stream::new(1337, "lstm"), &device).in_precision(precision);
    let input =
        uniform::<3>(Stream::new(1337, "input"), [batch, time, channels], -1.0, 1.0, &device);
    let weights = uniform::<3>(Stream::new(7, "loss"), [batch, time, 256], -1e-3, 1e-3, &device);

    let (mut forward, mut backward, mut whole) = (vec![], vec![], vec![]);
    let mut used_before = 0.0;
    for step in 0..steps + 3 {
        if step == 3 {
            used_before = processor_ms();
        }
        let start = Instant::now();
        let x = input.clone().detach().require_grad();
        let dropout = Stream::new(1337, "dropout").substream(step as u64);
        let (output, _) = lstm.forward(x.clone(), None, None, Some(dropout));
        let middle = Instant::now();
        // One product with a tensor stands for whatever comes after the encoder.
        let loss = (output * weights.clone()).sum();
        let grads = loss.backward();
        assert!(
            x.grad(&grads).is_some_and(|grad: Tensor<3>| grad.dims() == [batch, time, channels])
        );
        drop(grads);
        if step >= 3 {
            forward.push((middle - start).as_secs_f64() * 1e3);
            backward.push(middle.elapsed().as_secs_f64() * 1e3);
            whole.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    let used = (processor_ms() - used_before) / steps as f64;
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let least = whole.iter().copied().fold(f64::INFINITY, f64::min);
    println!(
        r#"{{"workload": "bilstm-2x128", "device": "cpu", "precision": "{precision}", "batch": {batch}, "kernels": "{:?}", "threads": {}, "median_ms": {:.1}, "least_ms": {least:.1}, "forward_ms": {:.1}, "backward_ms": {:.1}, "processor_ms": {used:.1}}}"#,
        CpuKernels::current().ok(),
        rayon::current_num_threads(),
        median(&mut whole),
        median(&mut forward),
        median(&mut backward),
    );
}
