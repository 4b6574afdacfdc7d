//! Times products of matrices in pairs beside Burn's own, forward and backward, as multiplications and additions a second;
//! and a linear layer with its activation beside both one by one.
//!
//!     cargo run --release --example batched_product [steps]

use std::time::Instant;

use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    Activation, CpuKernels, batched_product, init_linear, linear_activated, linear_in,
    relu_dropout, uniform,
};

/// Allocates as the program does.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let steps = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(15usize).max(1);
    println!("{:?}, {} threads", CpuKernels::current(), rayon::current_num_threads());
    for [pairs, size] in [[384, 64], [8, 512], [5000, 16], [96, 128]] {
        pair(steps, pairs, size);
    }
    for [rows, input, output] in [[2048, 256, 128], [12288, 256, 128], [64, 128, 64]] {
        layer(steps, [rows, input, output]);
    }
}

/// Square matrices, each pair for itself; the right ones transposed in the second line of each.
fn pair(steps: usize, pairs: usize, size: usize) {
    let device = Device::flex().autodiff();
    let stream = Stream::new(1, "batched product");
    let tensor = |index: u64| -> Tensor<3> {
        uniform(stream.substream(index), [pairs, size, size], -1.0, 1.0, &device)
    };
    let (left, right) = (tensor(0).require_grad(), tensor(1).require_grad());
    let d = tensor(2);
    type Multiply = fn(Tensor<3>, Tensor<3>) -> Tensor<3>;
    let ways: [(&str, Multiply); 3] = [
        ("Burn's", |left, right| left.matmul(right)),
        ("f32", |left, right| batched_product(Precision::F32, left, right)),
        ("bf16", |left, right| batched_product(Precision::Bf16, left, right)),
    ];
    for transposed in [false, true] {
        for (name, multiply) in ways {
            let (mut forward, mut backward) = (vec![], vec![]);
            for _ in 0..steps {
                let right = if transposed { right.clone().swap_dims(1, 2) } else { right.clone() };
                let start = Instant::now();
                let y = multiply(left.clone(), right);
                forward.push(start.elapsed().as_secs_f64());
                // The gradient of the sum is `d`, which costs a pass over the result.
                let loss = (y * d.clone()).sum();
                let start = Instant::now();
                drop(loss.backward());
                backward.push(start.elapsed().as_secs_f64());
            }
            let work = 2e-9 * (pairs * size * size * size) as f64;
            println!(
                "{pairs} × {size}³, {name}, transposed {transposed}: forward {:.3} ms, {:.0} GFLOP/s; backward {:.3} ms, {:.0}",
                1e3 * median(&mut forward),
                work / median(&mut forward),
                1e3 * median(&mut backward),
                2.0 * work / median(&mut backward)
            );
        }
    }
}

fn layer(steps: usize, [rows, input, output]: [usize; 3]) {
    let device = Device::flex().autodiff();
    let stream = Stream::new(2, "activated");
    let layer = init_linear(stream.substream(0), input, output, &device);
    let x: Tensor<2> = uniform(stream.substream(1), [rows, input], -1.0, 1.0, &device);
    let d: Tensor<2> = uniform(stream.substream(2), [rows, output], -1.0, 1.0, &device);
    let x = x.require_grad();
    let dropped = Some(stream.substream(3));
    for whole in [false, true, false, true] {
        let mut times = vec![];
        for _ in 0..4 * steps {
            let start = Instant::now();
            let y = match whole {
                true => linear_activated(
                    Precision::F32,
                    x.clone(),
                    &layer,
                    Activation::Relu,
                    0.1,
                    dropped,
                ),
                false => relu_dropout(linear_in(Precision::F32, x.clone(), &layer), 0.1, dropped),
            };
            drop((y * d.clone()).sum().backward());
            times.push(start.elapsed().as_secs_f64());
        }
        let name = if whole { "one operation" } else { "two operations" };
        let time = 1e3 * median(&mut times);
        println!("{rows} × {input} × {output}, rectifier and dropout, {name}: {time:.3} ms");
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
