//! A stock Burn model with `burn::nn::BiLstm`, and the same model with this crate's `Lstm` in its
//! place, trained side by side from the same weights:
//!
//! ```text
//! cargo run --release -p firebox-kernels --example replace_burn_lstm
//! ```
//!
//! It prints both losses, which agree to rounding, and the time that each training step took.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "an example may")]

use std::time::Instant;

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{BiLstm, BiLstmConfig, Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Gradients, Tensor};
use firebox_kernels::Lstm;

/// The model as it was: a bidirectional LSTM and a head on its last step.
#[derive(Module, Debug)]
struct Before {
    lstm: BiLstm,
    head: Linear,
}

/// The model as it is: the type of one field has changed.
#[derive(Module, Debug)]
struct After {
    lstm: Lstm,
    head: Linear,
}

impl Before {
    fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        let [batch, time, _] = x.dims();
        let (output, _) = self.lstm.forward(x, None);
        self.head.forward(output.narrow(1, time - 1, 1).reshape([batch, 64]))
    }
}

impl After {
    fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        let [batch, time, _] = x.dims();
        let (output, _) = self.lstm.forward(x, None, None, None);
        self.head.forward(output.narrow(1, time - 1, 1).reshape([batch, 64]))
    }
}

/// Gradient descent, so that this example needs no other crate.
struct Descend(Gradients);

impl ModuleMapper for Descend {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let gradient = parameter.val().grad(&self.0);
        parameter.map(|value| match gradient {
            Some(gradient) => Tensor::from_inner(value.inner() - gradient * 0.1).require_grad(),
            None => value,
        })
    }
}

/// Trains on one batch and returns the losses and the milliseconds of the last step.
fn train<M: Module>(
    mut model: M,
    forward: impl Fn(&M, Tensor<3>) -> Tensor<2>,
    (x, y): (Tensor<3>, Tensor<2>),
) -> (Vec<f32>, f64) {
    let (mut losses, mut milliseconds) = (vec![], 0.0);
    for _ in 0..10 {
        let start = Instant::now();
        let loss = (forward(&model, x.clone()) - y.clone()).square().mean();
        losses.push(loss.clone().into_data().iter::<f32>().next().unwrap());
        model = model.map(&mut Descend(loss.backward()));
        milliseconds = start.elapsed().as_secs_f64() * 1e3;
    }
    (losses, milliseconds)
}

fn main() {
    let device = Device::flex().autodiff();
    let before = Before {
        lstm: BiLstmConfig::new(4, 32, true).init(&device),
        head: LinearConfig::new(64, 1).init(&device),
    };
    let after = After {
        lstm: Lstm::from_burn_bidirectional(std::slice::from_ref(&before.lstm)).unwrap(),
        head: before.head.clone(),
    };
    // The mean of the first channel over the sequence is to be found.
    let x = Tensor::<3>::random([64, 50, 4], Distribution::Normal(0.0, 1.0), &device);
    let y = x.clone().narrow(2, 0, 1).mean_dim(1).reshape([64, 1]);
    let (losses, slow) = train(before, Before::forward, (x.clone(), y.clone()));
    let (same, fast) = train(after, After::forward, (x, y));
    for (step, (before, after)) in losses.iter().zip(&same).enumerate() {
        println!("step {step:2}  loss {before:.6} before, {after:.6} after");
        assert!((before - after).abs() < 1e-4 * before.abs(), "the same function");
    }
    println!("a step took {slow:.1} ms before and {fast:.1} ms after");
}
