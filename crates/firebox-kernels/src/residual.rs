//! Linear layers with what follows them in a Transformer's training step: activation, dropout and residual sum
//! are computed while a part of the product lies in the cache of the core that computed it, forward and back,
//! and not in passes over memory of their own. Results and gradients are those of the operations one by one,
//! to the bit.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex};
use burn::nn::Linear;
use burn::tensor::{Tensor, TensorData};
use firebox_core::{Precision, Stream};

use crate::cpu::{self, Activation, Before, Mask, Matrix, Products};
use crate::device::{flex_in_graph, is_flex};
use crate::dropout::{check, relu_dropout};
use crate::gelu::{dropout_add, gelu_dropout, mask};
use crate::linear::{gradients, linear_in, register, span};
use crate::operands::{alike, listed, operand};
use crate::profile::kernel_span;
use crate::strides::{matrix, readable};

type Primitive = FloatTensor<Flex>;

/// The feed-forward network of a Transformer's layer in training.
#[derive(Clone, Copy, Debug)]
pub struct FeedForward<'a> {
    /// The type that operands of products are rounded to, as [`linear_in`] has it.
    pub precision: Precision,
    /// `[width, between]`
    pub first: &'a Linear,
    /// What stands between the layers.
    pub activation: Activation,
    /// `[between, width]`
    pub second: &'a Linear,
    /// Probability of dropout behind the activation and behind the second layer.
    pub dropout: f64,
    /// What is dropped at either place; nothing without a stream.
    pub streams: [Option<Stream>; 2],
}

/// `residual + dropout(second(dropout(activation(first(x)))))` as one operation on Burn's CPU backend, where a
/// gradient is wanted; elsewhere composed. [`feed_forward`](crate::feed_forward) is the network without gradients.
///
/// # Shapes
/// - residual: `[rows, output]`
/// - x: `[rows, input]`
/// - the result: `[rows, output]`
///
/// # Panics
/// If a shape does not fit, if types or devices differ, or if the probability is not in `[0, 1]`; the message holds the
/// shapes and types.
#[track_caller]
pub fn feed_forward_add(residual: Tensor<2>, x: Tensor<2>, network: &FeedForward<'_>) -> Tensor<2> {
    let FeedForward { precision, first, activation, second, dropout, streams } = *network;
    check(dropout, operand("x", &x));
    check_layers("a feed-forward network and residual sum", &residual, &x, &[first, second]);
    let masks = streams.map(|stream| mask(dropout, stream));
    let halves = Half::new(precision, &x, first, masks[0]).zip(Half::of(
        precision,
        x.dims()[0],
        second,
        masks[1],
    ));
    let Some((one, two)) = halves.filter(|(_, two)| two.ends_at(&residual)) else {
        return composed(residual, x, network);
    };
    let cpu::Linear { products, rows, input, output: between } = one.sizes;
    let output = two.sizes.output;
    let _span = kernel_span!(
        "feed-forward network",
        [rows, input, between, output],
        2 * rows * between * (input + output),
        rows * (input + 2 * between + 2 * output) + between * (input + output),
        products.bf16
    );
    let sizes = [one.sizes, two.sizes];
    let tensors = [
        flex_in_graph(residual),
        flex_in_graph(x),
        flex_in_graph(one.weight),
        flex_in_graph(one.bias),
        flex_in_graph(two.weight),
        flex_in_graph(two.bias),
    ];
    let [residual, x, weight1, bias1, weight2, bias2] = tensors.map(|tensor| tensor.into_parts());
    let guards = [residual.1, x.1, weight1.1, bias1.1, weight2.1, bias2.1];
    let [residual, bias1, bias2] = [residual.0, bias1.0, bias2.0].map(|one| one.to_contiguous());
    let [x, weight1, weight2] = [x.0, weight1.0, weight2.0].map(readable);
    let prepared = Fed.prepare::<NoCheckpointing>(guards).compute_bound().stateful();
    let (between, before) = sizes[0].activated(
        matrix(&x),
        matrix(&weight1),
        Some(bias1.storage::<f32>()),
        activation,
        masks[0],
    );
    let y = sizes[1].added(
        Matrix::new(&between, rows, sizes[1].input),
        matrix(&weight2),
        Some(bias2.storage::<f32>()),
        masks[1],
        residual.storage::<f32>(),
    );
    let y = Primitive::from_data(TensorData::new(y, [rows, output]));
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => {
            let weights = [weight1, weight2];
            prepared.finish(FedTape { sizes, masks, x, between, before, weights }, y)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(y),
    })
}

/// Refuses layers, one after the other, that do not go together with what goes into them or with what their result is
/// added to.
#[track_caller]
fn check_layers(operation: &str, residual: &Tensor<2>, x: &Tensor<2>, layers: &[&Linear]) {
    let weights = layers.iter().map(|layer| operand("weight", &*layer.weight));
    let biases = layers.iter().filter_map(|layer| Some(operand("bias", &**layer.bias.as_ref()?)));
    let ends = [operand("residual", residual), operand("input", x)];
    let operands = ends.into_iter().chain(weights).chain(biases);
    alike(operation, operands.clone());
    let [rows, input] = x.dims();
    let fits = |width: usize, layer: &&Linear| {
        let [high, output] = layer.weight.dims();
        let shifts = layer.bias.as_ref().is_none_or(|bias| bias.dims() == [output]);
        (width == high && shifts).then_some(output)
    };
    let output = layers.iter().try_fold(input, fits);
    assert!(
        output.is_some_and(|output| residual.dims() == [rows, output]),
        "{operation} of {}: each weight ([input, output]) must be as high as what goes into it ([rows, input]) is \
         wide, each bias ([output]) as long as its weight is wide, and residual and result ([rows, output]) must \
         have the same shape",
        listed(operands)
    );
}

/// The same of operations one by one.
fn composed(residual: Tensor<2>, x: Tensor<2>, network: &FeedForward<'_>) -> Tensor<2> {
    let FeedForward { precision, first, activation, second, dropout, streams } = *network;
    let between = linear_in(precision, x, first);
    let between = match activation {
        Activation::Gelu => gelu_dropout(between, dropout, streams[0]),
        Activation::Relu => relu_dropout(between, dropout, streams[0]),
    };
    dropout_add(residual, linear_in(precision, between, second), dropout, streams[1])
}

/// `residual + dropout(layer(x))` as one operation on Burn's CPU backend, where a gradient is wanted; elsewhere
/// composed of [`linear_in`] and [`dropout_add`].
///
/// # Shapes
/// - residual: `[rows, output]`
/// - x: `[rows, input]`
/// - the result: `[rows, output]`
///
/// # Panics
/// If a shape does not fit, if types or devices differ, or if the probability is not in `[0, 1]`; the message holds the
/// shapes and types.
#[track_caller]
pub fn linear_add(
    precision: Precision,
    residual: Tensor<2>,
    x: Tensor<2>,
    layer: &Linear,
    dropout: f64,
    stream: Option<Stream>,
) -> Tensor<2> {
    check(dropout, operand("x", &x));
    check_layers("a linear layer and residual sum", &residual, &x, &[layer]);
    let mask = mask(dropout, stream);
    let half = Half::new(precision, &x, layer, mask).filter(|half| half.ends_at(&residual));
    let Some(Half { sizes, weight, bias }) = half else {
        return dropout_add(residual, linear_in(precision, x, layer), dropout, stream);
    };
    let cpu::Linear { products, rows, input, output } = sizes;
    let _span = kernel_span!(
        "linear and residual sum",
        [rows, input, output],
        2 * rows * input * output,
        rows * (input + 2 * output) + input * output,
        products.bf16
    );
    let tensors =
        [flex_in_graph(residual), flex_in_graph(x), flex_in_graph(weight), flex_in_graph(bias)];
    let [residual, x, weight, bias] = tensors.map(|tensor| tensor.into_parts());
    let guards = [residual.1, x.1, weight.1, bias.1];
    let [residual, bias] = [residual.0, bias.0].map(|one| one.to_contiguous());
    let [x, weight] = [x.0, weight.0].map(readable);
    let prepared = Added.prepare::<NoCheckpointing>(guards).compute_bound().stateful();
    let y = sizes.added(
        matrix(&x),
        matrix(&weight),
        Some(bias.storage::<f32>()),
        mask,
        residual.storage::<f32>(),
    );
    let y = Primitive::from_data(TensorData::new(y, [rows, output]));
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => prepared.finish(AddedTape { sizes, mask, x, weight }, y),
        OpsKind::UnTracked(prepared) => prepared.finish(y),
    })
}

/// A linear layer that the CPU kernels compute with what follows it.
pub(crate) struct Half {
    pub(crate) sizes: cpu::Linear,
    pub(crate) weight: Tensor<2>,
    pub(crate) bias: Tensor<1>,
}

impl Half {
    /// Of a layer that some rows go into; `None` where the operations one by one are taken: where no gradient
    /// is wanted of anything, without a bias, and in f16, whose operands are rounded one by one.
    pub(crate) fn new(
        precision: Precision,
        x: &Tensor<2>,
        layer: &Linear,
        mask: Option<Mask>,
    ) -> Option<Self> {
        let half = Self::of(precision, x.dims()[0], layer, mask)?;
        let fits = is_flex(x) && x.dims()[1] == half.sizes.input;
        let wanted = x.is_autodiff() || half.weight.is_autodiff() || half.bias.is_autodiff();
        (fits && wanted).then_some(half)
    }

    fn of(precision: Precision, rows: usize, layer: &Linear, mask: Option<Mask>) -> Option<Self> {
        let (weight, bias) = (layer.weight.val(), layer.bias.as_ref()?.val());
        let products = Products::of(precision)?;
        let [input, output] = weight.dims();
        // Words of a mask come in fours, and parts of rows begin with one of them.
        let drawn = mask.is_none() || output.is_multiple_of(4);
        let fits = is_flex(&weight) && is_flex(&bias) && bias.dims() == [output];
        let sizes = cpu::Linear { products, rows, input, output };
        (fits && drawn && rows * input * output > 0).then_some(Self { sizes, weight, bias })
    }

    /// Whether its result is added to this.
    fn ends_at(&self, residual: &Tensor<2>) -> bool {
        is_flex(residual) && residual.dims() == [self.sizes.rows, self.sizes.output]
    }
}

/// What the gradients are computed from.
#[derive(Clone, Debug)]
struct AddedTape {
    sizes: cpu::Linear,
    mask: Option<Mask>,
    x: Primitive,
    weight: Primitive,
}

#[derive(Debug)]
struct Added;

impl Backward<Flex, 4> for Added {
    type State = AddedTape;

    fn backward(self, ops: Ops<AddedTape, 4>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<Flex>(&ops.node).to_contiguous();
        let AddedTape { sizes, mask, x, weight } = ops.state;
        let [to_residual, to_x, to_weight, to_bias] =
            ops.parents.map(|parent| parent.map(|parent| parent.id));
        let dy = dropped(sizes, mask, &d);
        let dy = dy.as_ref().unwrap_or(&d);
        register(grads, to_residual, || d.clone());
        let operands = [matrix(&x), matrix(&weight)];
        gradients(grads, sizes, operands, dy.storage::<f32>(), [to_x, to_weight, to_bias]);
    }
}

/// What the gradients are computed from.
#[derive(Clone, Debug)]
struct FedTape {
    sizes: [cpu::Linear; 2],
    masks: [Option<Mask>; 2],
    x: Primitive,
    between: Vec<f32>,
    before: Before,
    weights: [Primitive; 2],
}

#[derive(Debug)]
struct Fed;

impl Backward<Flex, 6> for Fed {
    type State = FedTape;

    fn backward(self, ops: Ops<FedTape, 6>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<Flex>(&ops.node).to_contiguous();
        let FedTape { sizes: [one, two], masks, x, between, before, weights } = ops.state;
        let [to_residual, to_x, to_weight1, to_bias1, to_weight2, to_bias2] =
            ops.parents.map(|parent| parent.map(|parent| parent.id));
        let dy = dropped(two, masks[1], &d);
        let dy = dy.as_ref().unwrap_or(&d);
        let first = to_x.is_some() || to_weight1.is_some() || to_bias1.is_some();
        let d_between = first.then(|| {
            let _span = span(two, 1);
            two.activated_input_gradient(
                matrix(&weights[1]),
                dy.storage::<f32>(),
                &between,
                &before,
                masks[0],
            )
        });
        drop(before);
        let operands = [Matrix::new(&between, two.rows, two.input), matrix(&weights[1])];
        gradients(grads, two, operands, dy.storage::<f32>(), [None, to_weight2, to_bias2]);
        drop(between);
        register(grads, to_residual, || d.clone());
        let Some(d_between) = d_between else { return };
        let operands = [matrix(&x), matrix(&weights[0])];
        gradients(grads, one, operands, &d_between, [to_x, to_weight1, to_bias1]);
    }
}

/// The gradient before dropout, if there is any.
fn dropped(sizes: cpu::Linear, mask: Option<Mask>, d: &Primitive) -> Option<Primitive> {
    let mask = mask?;
    let dy = cpu::dropout_of(sizes.products.kernels, mask, d.storage::<f32>());
    Some(Primitive::from_data(TensorData::new(dy, [sizes.rows, sizes.output])))
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
mod tests {
    use burn::module::{Module, Param};
    use burn::tensor::Device;

    use super::*;
    use crate::cpu::CpuKernels;

    fn noise(seed: u64, shape: [usize; 2]) -> TensorData {
        let mut draws = Stream::new(seed, "feed forward").draws();
        TensorData::new((0..shape[0] * shape[1]).map(|_| draws.normal() as f32).collect(), shape)
    }

    fn layer(seed: u64, [input, output]: [usize; 2], device: &Device) -> Linear {
        let weight = Tensor::<2>::from_data(noise(seed, [input, output]), device);
        let bias = Tensor::<2>::from_data(noise(seed + 1, [1, output]), device);
        Linear {
            weight: Param::from_tensor(weight),
            bias: Some(Param::from_tensor(bias.squeeze::<1>())),
        }
    }

    fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
        tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
    }

    type Apply = fn(Tensor<2>, Tensor<2>, &FeedForward<'_>) -> Tensor<2>;

    /// Result and all gradients of `Σ dy * y`; the residual is the input, or another tensor.
    fn run(
        apply: Apply,
        [rows, width, between]: [usize; 3],
        (precision, activation, dropped, same): (Precision, Activation, bool, bool),
    ) -> Vec<Vec<u32>> {
        let device = Device::flex().autodiff();
        let of = |seed| Tensor::<2>::from_data(noise(seed, [rows, width]), &device).require_grad();
        let x = of(1);
        let residual = if same { x.clone() } else { of(2) };
        let (first, second) =
            (layer(3, [width, between], &device), layer(5, [between, width], &device));
        let stream = |seed| dropped.then(|| Stream::new(seed, "dropout"));
        let network = FeedForward {
            precision,
            first: &first,
            activation,
            second: &second,
            dropout: 0.3,
            streams: [stream(7), stream(8)],
        };
        let y = apply(residual.clone(), x.clone(), &network);
        let grads =
            (y.clone() * Tensor::from_data(noise(9, [rows, width]), &device)).sum().backward();
        let mut found = vec![bits(y)];
        for tensor in [&x, &residual, &first.weight.val(), &second.weight.val()] {
            found.push(tensor.grad(&grads).map_or(vec![], bits));
        }
        for layer in [&first, &second] {
            let bias = layer.bias.as_ref().expect("a bias").val();
            found.push(bias.grad(&grads).map_or(vec![], bits));
        }
        found
    }

    #[test]
    fn is_the_operations_one_by_one_to_the_bit() {
        for sizes in [[1, 4, 8], [37, 20, 36], [700, 64, 260], [5, 7, 13], [130, 8, 30]] {
            for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
                for activation in [Activation::Gelu, Activation::Relu] {
                    for (dropped, same) in [(false, false), (true, false), (true, true)] {
                        let settings = (precision, activation, dropped, same);
                        for kernels in CpuKernels::available() {
                            let [one, other] = [feed_forward_add, composed as Apply]
                                .map(|apply: Apply| kernels.force(|| run(apply, sizes, settings)));
                            assert!(one == other, "{kernels:?} {sizes:?} {settings:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_layer_with_its_residual_sum_is_the_operations_one_by_one_to_the_bit() {
        let fused: Apply = |residual, x, network| {
            let FeedForward { precision, first, dropout, streams, .. } = *network;
            linear_add(precision, residual, x, first, dropout, streams[0])
        };
        let apart: Apply = |residual, x, network| {
            let FeedForward { precision, first, dropout, streams, .. } = *network;
            dropout_add(residual, linear_in(precision, x, first), dropout, streams[0])
        };
        for size in [4, 7, 96] {
            for precision in [Precision::F32, Precision::Bf16] {
                for (dropped, same) in [(false, true), (true, false)] {
                    let settings = (precision, Activation::Relu, dropped, same);
                    for kernels in CpuKernels::available() {
                        let [one, other] = [fused, apart]
                            .map(|apply| kernels.force(|| run(apply, [411, size, size], settings)));
                        assert!(one == other, "{kernels:?} {size} {settings:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let one: Apply = |residual, x, network| {
            let FeedForward { precision, first, dropout, streams, .. } = *network;
            linear_add(precision, residual, x, first, dropout, streams[0])
        };
        // Of the layer alone, input and output are as wide; odd widths have no mask of their own.
        let (both, odd) = ([900, 64, 256], [1101, 67, 67]);
        let cases: [(Apply, [usize; 3]); 3] =
            [(feed_forward_add, both), (feed_forward_add, odd), (one, odd)];
        for kernels in CpuKernels::available().into_iter().skip(1) {
            for (apply, sizes) in cases {
                for precision in [Precision::F32, Precision::Bf16] {
                    for activation in [Activation::Gelu, Activation::Relu] {
                        let settings = (precision, activation, sizes == both, true);
                        let found = [1, 2, 3].map(|threads| {
                            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                            let run = || kernels.force(|| run(apply, sizes, settings));
                            pool.expect("a pool").install(run)
                        });
                        let same = found[0] == found[1] && found[0] == found[2];
                        assert!(same, "{kernels:?} {sizes:?} {settings:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn gradients_that_nobody_wants_are_not_made() {
        let device = Device::flex().autodiff();
        let (first, second) = (layer(3, [8, 16], &device).no_grad(), layer(5, [16, 8], &device));
        let x = Tensor::<2>::from_data(noise(1, [6, 8]), &device);
        let network = FeedForward {
            precision: Precision::F32,
            first: &first,
            activation: Activation::Gelu,
            second: &second,
            dropout: 0.0,
            streams: [None; 2],
        };
        let y = feed_forward_add(x.clone(), x.clone(), &network);
        let grads = y.sum().backward();
        assert!(x.grad(&grads).is_none() && first.weight.val().grad(&grads).is_none());
        let d = second.weight.val().grad(&grads).expect("tracked");
        assert_eq!(d.dims(), [16, 8]);
    }

    #[test]
    #[should_panic(expected = "must have the same shape")]
    fn a_residual_of_another_shape_is_refused() {
        let device = Device::flex().autodiff();
        let x = Tensor::<2>::from_data(noise(1, [6, 8]), &device);
        let residual = Tensor::<2>::from_data(noise(1, [6, 4]), &device);
        linear_add(Precision::F32, residual, x, &layer(3, [8, 8], &device), 0.0, None);
    }
}
