//! Gradients of a model: taken from a backward pass, accumulated over batches, measured.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients as Recorded, Tensor};
use firebox_kernels::{SquaredNorm, add_scaled, squared_norm};

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

    /// Those that a test makes.
    #[cfg(test)]
    pub(crate) fn of(gradients: Vec<Option<Tensor<1>>>) -> Self {
        Self(gradients)
    }

    /// The gradient of the `index`-th parameter, `[elements]`.
    pub fn get(&self, index: usize) -> Option<&Tensor<1>> {
        self.0.get(index)?.as_ref()
    }

    /// Adds other gradients of the same model times a factor, in the memory of these. Where there
    /// was no gradient yet, there is one afterwards.
    pub fn add(&mut self, other: Self, factor: f64) {
        let mut others = other.0.into_iter();
        let (mut places, mut sums, mut values) = (vec![], vec![], vec![]);
        for (place, sum) in self.0.iter_mut().enumerate() {
            match (sum.take(), others.next().flatten()) {
                (Some(a), Some(b)) => {
                    places.push(place);
                    sums.push(a);
                    values.push(b);
                }
                (None, Some(b)) => *sum = Some(b * factor),
                (a, None) => *sum = a,
            }
        }
        let sums = add_scaled(sums, &values.iter().collect::<Vec<_>>(), factor);
        for (place, sum) in places.into_iter().zip(sums) {
            self.0[place] = Some(sum);
        }
        self.0.extend(others.map(|other| other.map(|other| other * factor)));
    }

    /// The squared L2 norm of all gradients together: known, or still on the device.
    pub fn squared_norm(&self) -> SquaredNorm {
        squared_norm(&self.0.iter().flatten().collect::<Vec<_>>())
    }
}
