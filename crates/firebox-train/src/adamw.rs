//! AdamW as `torch.optim.AdamW` computes it, on Burn tensors.
//!
//! ```text
//! θ ← θ · (1 − lr·λ)
//! m ← m + (1 − β₁)·(g − m)          v ← β₂·v + (1 − β₂)·g²
//! θ ← θ − lr/(1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + ε)
//! ```
//!
//! Source: Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019. Scalars are
//! computed in f64 and meet the tensors in f32, as in PyTorch. `t` counts the updates of each
//! parameter, so one that is frozen for a while is corrected by its own count.

use burn::module::Module;
use burn::tensor::Tensor;
use firebox_models::{Layout, MapParameter, layouts, map_parameters};

use crate::config::{AdamWConfig, Decay};
use crate::gradients::Gradients;

/// The optimizer and its moments.
#[derive(Clone, Debug)]
pub struct AdamW {
    config: AdamWConfig,
    layouts: Vec<Layout>,
    pub(crate) moments: Vec<Option<Moments>>,
}

/// Running means of one parameter's gradient and of its square, flattened.
#[derive(Clone, Debug)]
pub(crate) struct Moments {
    pub(crate) first: Tensor<1>,
    pub(crate) second: Tensor<1>,
    pub(crate) updates: u64,
}

impl AdamW {
    /// An optimizer for the parameters of `model`, with moments of zero.
    pub fn new<M: Module>(model: &M, config: AdamWConfig) -> Self {
        let layouts = layouts(model);
        let moments = vec![None; layouts.len()];
        Self { config, layouts, moments }
    }

    /// Layouts of the parameters, in the order of the moments.
    pub(crate) fn layouts(&self) -> &[Layout] {
        &self.layouts
    }

    /// Updates every parameter that has a gradient.
    pub fn step<M: Module>(&mut self, model: M, gradients: &Gradients, learning_rate: f64) -> M {
        map_parameters(model, &mut Update { optimizer: self, gradients, learning_rate })
    }

    fn update(
        &mut self,
        index: usize,
        value: Tensor<1>,
        gradient: &Tensor<1>,
        rate: f64,
    ) -> Tensor<1> {
        let AdamWConfig { betas: [beta1, beta2], eps, weight_decay, decay, .. } = self.config;
        let (first, second, updates) = match self.moments[index].take() {
            Some(Moments { first, second, updates }) => (first, second, updates + 1),
            None => (gradient.zeros_like(), gradient.zeros_like(), 1),
        };
        let first = first.clone() + (gradient.clone() - first) * (1.0 - beta1);
        let second = second * beta2 + gradient.clone().square() * (1.0 - beta2);
        let power = updates.min(i32::MAX as u64) as i32;
        let step_size = rate / (1.0 - beta1.powi(power));
        let correction = (1.0 - beta2.powi(power)).sqrt();
        let denominator = second.clone().sqrt() / correction + eps;
        let decays = decay == Decay::All || self.layouts[index].shape.len() >= 2;
        let value =
            if decays && weight_decay > 0.0 { value * (1.0 - rate * weight_decay) } else { value };
        let value = value - first.clone() / denominator * step_size;
        self.moments[index] = Some(Moments { first, second, updates });
        value
    }
}

struct Update<'a> {
    optimizer: &'a mut AdamW,
    gradients: &'a Gradients,
    learning_rate: f64,
}

impl MapParameter for Update<'_> {
    fn map<const D: usize>(&mut self, index: usize, value: Tensor<D>) -> Tensor<D> {
        let Some(gradient) = self.gradients.get(index) else { return value };
        let shape = value.dims();
        let [size] = gradient.dims();
        let flat = value.reshape([size]);
        self.optimizer.update(index, flat, gradient, self.learning_rate).reshape(shape)
    }
}
