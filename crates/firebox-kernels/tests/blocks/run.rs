//! Operations on flat leaves: what they give, and the gradients of `Σ d · result`.

use burn::module::{Param, ParamId};
use burn::nn::Linear;
use burn::tensor::{Device, Tensor, TensorData};
use firebox_core::Stream;

/// What is made of the leaves, flat as they are.
pub(crate) type Operation<'a> = &'a dyn Fn(&[Tensor<1>]) -> Tensor<1>;

pub(crate) fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut draws = Stream::new(seed, "blocks").draws();
    (0..count).map(|_| draws.normal() as f32).collect()
}

pub(crate) fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn vector(values: &[f32]) -> Tensor<1> {
    let data = TensorData::new(values.to_vec(), [values.len()]);
    Tensor::from_data(data, &Device::flex().autodiff())
}

/// The result, and then the gradient of `Σ d · result` by each leaf.
pub(crate) fn run(operation: Operation<'_>, leaves: &[Vec<f32>], d: &[f32]) -> Vec<Vec<f32>> {
    let leaves: Vec<_> = leaves.iter().map(|leaf| vector(leaf).require_grad()).collect();
    let result = operation(&leaves);
    let all = (result.clone() * vector(d)).sum().backward();
    let mut found = vec![numbers(result)];
    found.extend(leaves.iter().map(|leaf| numbers(leaf.grad(&all).expect("tracked"))));
    found
}

/// A layer of a weight of `[input, output]` and a bias that are parts of a graph.
pub(crate) fn layer([weight, bias]: [&Tensor<1>; 2], sizes: [usize; 2]) -> Linear {
    let weight = weight.clone().reshape(sizes);
    Linear {
        weight: Param::initialized(ParamId::new(), weight),
        bias: Some(Param::initialized(ParamId::new(), bias.clone())),
    }
}
