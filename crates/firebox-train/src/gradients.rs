//! Gradients of a model: accumulated over batches, averaged, measured and clipped.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients as Recorded, Tensor};

/// One gradient per float parameter, in the order of
/// [`layouts`](firebox_models::layouts), each flattened; `None` where the loss does not reach a
/// parameter or the parameter is frozen.
#[derive(Clone, Debug, Default)]
pub struct Gradients(Vec<Option<Tensor<1>>>);

impl Gradients {
    /// Takes the gradients of `model` out of what a backward pass recorded.
    pub fn take<M: Module>(model: &M, recorded: Recorded) -> Self {
        struct Visitor(Recorded, Vec<Option<Tensor<1>>>);
        impl ModuleVisitor for Visitor {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let gradient = param.base().grad_remove(&mut self.0);
                self.1.push(gradient.map(|gradient| {
                    let size = gradient.shape().num_elements();
                    gradient.reshape([size])
                }));
            }
        }
        let mut visitor = Visitor(recorded, vec![]);
        model.visit(&mut visitor);
        Self(visitor.1)
    }

    /// The gradient of the `index`-th parameter, `[elements]`.
    pub fn get(&self, index: usize) -> Option<&Tensor<1>> {
        self.0.get(index)?.as_ref()
    }

    /// Multiplies every gradient.
    pub fn scale(self, factor: f64) -> Self {
        if factor == 1.0 {
            return self;
        }
        Self(self.0.into_iter().map(|g| g.map(|g| g * factor)).collect())
    }

    /// Adds other gradients of the same model. An empty sum takes them as they are.
    pub fn plus(self, other: Self) -> Self {
        if self.0.is_empty() {
            return other;
        }
        let pairs = self.0.into_iter().zip(other.0);
        Self(
            pairs
                .map(|pair| match pair {
                    (Some(a), Some(b)) => Some(a + b),
                    (a, b) => a.or(b),
                })
                .collect(),
        )
    }

    /// The squared L2 norm of each gradient, each `[1]`, still on the device.
    pub fn squares(&self) -> Vec<Tensor<1>> {
        /// The CPU backend sums a tensor of more elements than this in an order that depends on
        /// its threads.
        const AT_ONCE: usize = 1 << 20;
        let square = |gradient: &Tensor<1>| {
            let [size] = gradient.dims();
            let squares = gradient.clone().square();
            if size <= AT_ONCE {
                return squares.sum();
            }
            let parts = squares.split(AT_ONCE, 0).into_iter().map(|part| part.sum()).collect();
            Tensor::cat(parts, 0).sum()
        };
        self.0.iter().flatten().map(square).collect()
    }

    /// Scales the gradients so that their global norm, which is `norm` now, is at most `limit`:
    /// `torch.nn.utils.clip_grad_norm_`.
    pub fn clip(self, norm: f64, limit: f64) -> Self {
        let factor = limit / (norm + 1e-6);
        if factor < 1.0 { self.scale(factor) } else { self }
    }
}

/// The global L2 norm of gradients whose squared norms have been read.
pub fn global_norm(squares: &[f32]) -> f64 {
    squares.iter().map(|square| f64::from(*square)).sum::<f64>().sqrt()
}
