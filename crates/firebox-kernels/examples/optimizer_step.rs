//! Times an optimizer step: the sweep over gradients and the sweep over weights and moments.
//!
//!     cargo run --release --example optimizer_step [small|lstm-mae|bert-base] [steps]
//!
//! Prints milliseconds and the bytes moved per second, beside those of a copy of the same memory
//! by all threads. `torch_optimizer.py` times PyTorch on the same sizes.

use std::time::Instant;

use burn::tensor::{Device, Tensor};
use firebox_kernels::{
    Clip, ParameterUpdate, SquaredNorm, StepState, UpdateRule, squared_norm, update_parameters,
};
use rayon::prelude::*;

/// Allocates as the program does.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Elements of each parameter.
fn sizes(model: &str) -> Vec<usize> {
    match model {
        "small" => [32 * 64, 64, 64 * 64, 64].repeat(5),
        "lstm-mae" => [4 * 512, 128 * 512, 512, 256 * 512, 128 * 512, 512]
            .repeat(2)
            .into_iter()
            .chain([256, 256, 256 * 512, 128 * 512, 512, 128 * 4, 4])
            .collect(),
        _ => {
            let (width, wide) = (768, 3072);
            let layer = [width * width, width].repeat(4).into_iter().chain([
                width * wide,
                wide,
                wide * width,
                width,
                width,
                width,
                width,
                width,
            ]);
            let layers = layer.collect::<Vec<_>>().repeat(12);
            [30_522 * width, 512 * width, 2 * width].into_iter().chain(layers).collect()
        }
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().unwrap_or_else(|| "bert-base".to_owned());
    let steps = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(11);
    let device = Device::flex();
    let filled = |size, value: f64| Tensor::<1>::full([size], value, &device);
    let mut updates: Vec<ParameterUpdate> = sizes(&model)
        .into_iter()
        .map(|size| ParameterUpdate {
            parameter: filled(size, 1.0),
            gradient: filled(size, 1e-3),
            moments: vec![filled(size, 0.0), filled(size, 0.0)],
            missed: 0,
            rate: 1.0,
            weight_decay: 0.01,
        })
        .collect();
    let count: usize = sizes(&model).iter().sum();
    let rule = UpdateRule::AdamW { betas: [0.9, 0.999], eps: 1e-8 };
    let (mut norms, mut steps_taken) = (vec![], vec![]);
    for step in 0..steps {
        let start = Instant::now();
        let gradients: Vec<&Tensor<1>> = updates.iter().map(|update| &update.gradient).collect();
        let SquaredNorm::Known(squared_norm) = squared_norm(&gradients) else {
            return println!("the norm is not computed on the host");
        };
        norms.push(start.elapsed().as_secs_f64());
        let state = StepState { learning_rate: 1e-3, loss_scale: 1.0, squared_norm, updates: step };
        let start = Instant::now();
        updates = update_parameters(&rule, Clip::Norm(1.0), &state, updates);
        steps_taken.push(start.elapsed().as_secs_f64());
    }
    drop(updates);
    let (from, mut to) = (vec![1.0f32; 2 * count], vec![0.0f32; 2 * count]);
    let copies = (0..steps).map(|_| {
        let start = Instant::now();
        to.par_chunks_mut(1 << 15)
            .zip(from.par_chunks(1 << 15))
            .for_each(|(to, from)| to.copy_from_slice(from));
        start.elapsed().as_secs_f64()
    });
    let copy = median(copies.collect());
    let (norm, step) = (median(norms), median(steps_taken));
    let rate = |bytes: usize, seconds: f64| (bytes * count) as f64 / seconds / 1e9;
    println!("{model}: {count} parameters, {} threads", rayon::current_num_threads());
    println!("norm   {:10.3} ms {:7.1} GB/s", norm * 1e3, rate(4, norm));
    println!("update {:10.3} ms {:7.1} GB/s", step * 1e3, rate(28, step));
    println!("both   {:10.3} ms", (norm + step) * 1e3);
    println!("copy              {:7.1} GB/s ({} bytes)", rate(16, copy), 8 * count);
}
