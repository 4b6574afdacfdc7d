//! A linear layer with the activation that follows it: computed, with dropout, while a part of the product lies in the
//! cache of the core that computed it, and not in a pass over memory of its own.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex};
use burn::nn::Linear;
use burn::tensor::{Tensor, TensorData};
use firebox_core::{Precision, Stream};

use crate::cpu::{self, Activation, Before, Mask};
use crate::device::flex_in_graph;
use crate::dropout::{check, in_place, relu_dropout};
use crate::gelu::{gelu_dropout, mask};
use crate::linear::{check as check_layer, gradients, linear_in};
use crate::operands::operand;
use crate::profile::kernel_span;
use crate::residual::Half;
use crate::strides::{matrix, readable};

type Primitive = FloatTensor<Flex>;

/// `dropout(activation(layer(x)))` as one operation on Burn's CPU backend, where a gradient is wanted, and elsewhere
/// composed of [`linear_in`] and [`relu_dropout`] or [`gelu_dropout`]: with the same results and gradients, to the bit.
///
/// # Shapes
/// - x: `[rows, input]`
/// - the result: `[rows, output]`
///
/// # Panics
/// As [`linear_in`] does, and if the probability is not in `[0, 1]`.
#[track_caller]
pub fn linear_activated(
    precision: Precision,
    x: Tensor<2>,
    layer: &Linear,
    activation: Activation,
    dropout: f64,
    stream: Option<Stream>,
) -> Tensor<2> {
    check(dropout, operand("x", &x));
    check_layer(&x, &layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val()).as_ref());
    let mask = mask(dropout, stream);
    let Some(Half { sizes, weight, bias }) = Half::new(precision, &x, layer, mask) else {
        let y = linear_in(precision, x, layer);
        return match activation {
            Activation::Gelu => gelu_dropout(y, dropout, stream),
            Activation::Relu => relu_dropout(y, dropout, stream),
        };
    };
    let cpu::Linear { products, rows, input, output } = sizes;
    let _span = kernel_span!(
        "linear and activation",
        [rows, input, output],
        2 * rows * input * output,
        rows * (input + output) + input * output,
        products.bf16
    );
    let tensors = [flex_in_graph(x), flex_in_graph(weight), flex_in_graph(bias)];
    let [x, weight, bias] = tensors.map(|tensor| tensor.into_parts());
    let guards = [x.1, weight.1, bias.1];
    let ([x, weight], bias) = ([x.0, weight.0].map(readable), bias.0.to_contiguous());
    let prepared = Activated.prepare::<NoCheckpointing>(guards).compute_bound().stateful();
    let bias = Some(bias.storage::<f32>());
    let (y, before) = sizes.activated(matrix(&x), matrix(&weight), bias, activation, mask);
    let y = Primitive::from_data(TensorData::new(y, [rows, output]));
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => {
            let bent = match before {
                Before::Result => Bent::Result(y.clone()),
                Before::Numbers(numbers) => Bent::Numbers(numbers),
            };
            prepared.finish(Tape { sizes, mask, x, weight, bent }, y)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(y),
    })
}

/// What the gradient of the activation is computed from.
#[derive(Clone, Debug)]
enum Bent {
    /// The rectifier's result.
    Result(Primitive),
    /// The numbers that it was applied to.
    Numbers(Vec<f32>),
}

/// What the gradients are computed from.
#[derive(Clone, Debug)]
struct Tape {
    sizes: cpu::Linear,
    mask: Option<Mask>,
    x: Primitive,
    weight: Primitive,
    bent: Bent,
}

#[derive(Debug)]
struct Activated;

impl Backward<Flex, 3> for Activated {
    type State = Tape;

    fn backward(self, ops: Ops<Tape, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<Flex>(&ops.node);
        let Tape { sizes, mask, x, weight, bent } = ops.state;
        let d = in_place(d, |d| match &bent {
            Bent::Result(y) => cpu::relu_backward(mask, y.storage::<f32>(), d),
            Bent::Numbers(x) => cpu::gelu_backward(sizes.products.kernels, mask, x, d),
        });
        drop(bent);
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        let operands = [matrix(&x), matrix(&weight)];
        gradients(grads, sizes, operands, d.storage::<f32>(), parents);
    }
}
