//! Times what a language model adds to a step: the embedding of its tokens and the cross-entropy of
//! its classes, forward and backward.
//!
//!     cargo run --release --example loss_step [rows] [classes] [width] [steps]
//!
//! `FIREBOX_KERNELS=composed` times Burn's own operations; `torch_loss.py` times PyTorch.

use std::time::Instant;

use burn::module::Param;
use burn::nn::Embedding;
use burn::tensor::{Device, Int, Tensor, TensorData};
use firebox_core::Stream;
use firebox_kernels::{CpuKernels, CrossEntropy, cross_entropy, embedding, uniform};

/// Allocates as the program does.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2] * 1e3
}

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let number = |index: usize, default| numbers.get(index).copied().unwrap_or(default);
    let (rows, classes, width, steps) =
        (number(0, 1024), number(1, 30_522), number(2, 768), number(3, 9));
    let device = Device::flex().autodiff();
    let stream = Stream::new(1, "loss step");
    let mut draws = stream.draws();
    let tokens: Vec<i64> = (0..rows).map(|_| draws.below(classes as u64) as i64).collect();
    let table = uniform::<2>(stream, [classes, width], -1.0, 1.0, &device).require_grad();
    let layer = Embedding { weight: Param::from_tensor(table) };
    let indices: Tensor<2, Int> =
        Tensor::from_data(TensorData::new(tokens.clone(), [1, rows]), &device);
    let leaf = uniform::<2>(stream, [rows, classes], -4.0, 4.0, &device).require_grad();
    let (mut losses, mut embeddings) = (vec![], vec![]);
    for _ in 0..steps {
        // As a product leaves them: held by nobody else.
        let logits = leaf.clone() * 1.0;
        let start = Instant::now();
        let Ok(loss) = cross_entropy(logits, &tokens, &CrossEntropy::default()) else {
            return println!("the targets are no classes");
        };
        let mut gradients = loss.value.backward();
        losses.push(start.elapsed().as_secs_f64());
        drop(leaf.grad_remove(&mut gradients));
        let start = Instant::now();
        let mut gradients = embedding(&layer, indices.clone(), None).sum().backward();
        drop(layer.weight.val().grad_remove(&mut gradients));
        embeddings.push(start.elapsed().as_secs_f64());
    }
    println!(
        "{rows} rows of {classes}, {:?}: cross-entropy {:.2} ms, embedding of {width} {:.2} ms",
        CpuKernels::current(),
        median(losses),
        median(embeddings)
    );
}
