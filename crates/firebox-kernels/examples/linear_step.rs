//! Times a linear layer, forward and backward, as multiplications and additions a second.
//!
//!     cargo run --release --example linear_step [rows] [input] [output] [steps]
//!
//! `FIREBOX_KERNELS=composed` times Burn's own operations, whose products are those of the `gemm`
//! crate.

use std::time::Instant;

use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{CpuKernels, init_linear, linear_in, uniform};

/// Allocates as the program does.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let number = |index: usize, default| numbers.get(index).copied().unwrap_or(default);
    let (rows, input, output, steps) =
        (number(0, 2048), number(1, 768), number(2, 3072), number(3, 9).max(1));
    let device = Device::flex().autodiff();
    let stream = Stream::new(1, "linear step");
    let layer = init_linear(stream.substream(0), input, output, &device);
    let x: Tensor<2> = uniform(stream.substream(1), [rows, input], -1.0, 1.0, &device);
    let d: Tensor<2> =
        uniform(stream.substream(2), [rows, output], -1.0, 1.0, &device.without_autodiff());
    let (x, d) = (x.require_grad(), Tensor::from_inner(d));
    for precision in [Precision::F32, Precision::Bf16] {
        let (mut forward, mut backward) = (vec![], vec![]);
        for _ in 0..steps {
            let start = Instant::now();
            let y = linear_in(precision, x.clone(), &layer);
            forward.push(start.elapsed().as_secs_f64());
            // The gradient of the sum is `d`, which costs a pass over the result.
            let loss = (y * d.clone()).sum();
            let start = Instant::now();
            drop(loss.backward());
            backward.push(start.elapsed().as_secs_f64());
        }
        let rate = |mut times: Vec<f64>, products: f64| {
            times.sort_by(f64::total_cmp);
            2e-9 * products * (rows * input * output) as f64 / times[times.len() / 2]
        };
        println!(
            "{rows} × {input} × {output}, {precision}, {:?}: forward {:.0} GFLOP/s, backward {:.0}",
            CpuKernels::current(),
            rate(forward, 1.0),
            rate(backward, 2.0)
        );
    }
}
