//! The exponential moving average of a model's weights.
//!
//! The first average is the weights after the first update; from then on, after every update,
//! `average ← average + (1 − decay)·(weights − average)`, as `torch.optim.swa_utils` computes it
//! with `get_ema_multi_avg_fn(decay)`. A step that changed nothing leaves the average alone.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Shape, Tensor};
use firebox_kernels::approach;
use firebox_models::{MapParameter, map_parameters};
use serde::{Deserialize, Serialize};

/// A moving average of the weights: `[train.average]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AverageConfig {
    /// Share of the average that each update leaves; at least 0 and below 1. PyTorch's default.
    pub decay: f64,
    /// Whether the averaged weights are what is validated, and what the run returns.
    pub evaluate: bool,
}

impl Default for AverageConfig {
    fn default() -> Self {
        Self { decay: 0.999, evaluate: true }
    }
}

/// The average, one flat tensor for each float parameter; none before the first update.
#[derive(Clone, Debug, Default)]
pub struct Average {
    pub(crate) values: Vec<Tensor<1>>,
}

impl Average {
    /// Takes the weights of a model after an update.
    pub fn update<M: Module>(&mut self, model: &M, decay: f64) {
        struct Visitor(Vec<Tensor<1>>);
        impl ModuleVisitor for Visitor {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let value = param.base().inner();
                let size = value.shape().num_elements();
                self.0.push(value.reshape([size]));
            }
        }
        let mut visitor = Visitor(vec![]);
        model.visit(&mut visitor);
        let weights = visitor.0;
        self.values = match self.values.is_empty() {
            true => weights,
            false => {
                let means = std::mem::take(&mut self.values);
                approach(means, &weights.iter().collect::<Vec<_>>(), 1.0 - decay)
            }
        };
    }

    /// The model with the averaged weights; as it is before the first update.
    pub fn apply<M: Module>(&self, model: M) -> M {
        struct Change<'a>(&'a [Tensor<1>]);
        impl MapParameter for Change<'_> {
            fn map<const D: usize>(&mut self, index: usize, value: Tensor<D>) -> Tensor<D> {
                let Some(average) = self.0.get(index) else { return value };
                average.clone().reshape(Shape::from(value.dims().to_vec()))
            }
        }
        map_parameters(model, &mut Change(&self.values))
    }
}
