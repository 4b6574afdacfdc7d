//! Convolution along time as one operation, forward and backward, channels last.

#[cfg(feature = "cube")]
use burn::backend::Dispatch;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex};
use burn::module::Param;
use burn::nn::PaddingConfig1d;
use burn::nn::conv::Conv1d;
use burn::tensor::{DType, Device, Tensor, TensorData, ops::ConvOptions, s};
use firebox_core::{Precision, Stream};
use tracing::span::EnteredSpan;

use crate::GaussianNoise;
use crate::cpu::{self, Conv, ConvArithmetic, CpuKernels};
#[cfg(feature = "cube")]
use crate::cube::UnfoldOps;
#[cfg(feature = "cube")]
use crate::cuts::GpuKernels;
use crate::device::{flex, flex_in_graph, is_flex, tied};
use crate::init::uniform;
use crate::operands::{Operand, alike, operand, types};
#[cfg(feature = "cube")]
use crate::products::shifted_in_halves;
use crate::products::{add_to_columns, named, product};
use crate::profile::kernel_span;
use crate::rounded::{cast, compute_type, halved, rounded};

type Primitive = FloatTensor<Flex>;

/// A convolution along time of sequences whose channels lie side by side, with the parameters,
/// stride, padding and dilation of burn-nn's [`Conv1d`], which has the layout of PyTorch's. `PaddingConfig1d::Same` keeps the
/// length (over the stride) with any dilation, as PyTorch's `padding="same"` does; burn-nn 0.22 pads as if it were 1.
///
/// On Burn's CPU backend in f32 the matrix of all windows is never made: forward pass, gradient of
/// the input (only if the input wants one), of the weight and of the bias read `x` and `dy` as they
/// are. In [`Precision::Bf16`] the operands of all products are rounded to bf16 and summed in f32;
/// [`Precision::Tf32`] is computed as f32 there. With `noise`, it is as if that had been added to `x`
/// before; it is drawn while `x` is read, for the gradient of the weight once more, and never stored.
/// Grouped convolutions, other types and devices are Burn's own operations.
///
/// # Shapes
/// - x: `[batch, time, channel]`; see [`conv1d_channels_first`] for the other order
/// - the layer's weight: `[output channel, channel, kernel]`
/// - the result: `[batch, (time + padding - dilation · (kernel - 1) - 1) / stride + 1, output channel]`,
///   without a step where the kernel reaches farther than the padded input
///
/// # Panics
/// If `x` has other channels than the weight, the bias another length than output channels, or, where the result has
/// a step, if types or devices differ; the message holds the shapes and types.
#[track_caller]
pub fn conv1d(
    x: Tensor<3>,
    layer: &Conv1d,
    precision: Precision,
    noise: Option<GaussianNoise>,
) -> Tensor<3> {
    let conv = check(operand("x", &x), x.dims(), "[batch, time, channel]", layer);
    of_checked(conv, x, layer, precision, noise)
}

/// [`conv1d`] of sequences in burn-nn's and PyTorch's order, `[batch, channel, time]`, whose result
/// is in the same order. Both are transposed on the way: keep channels last where you can.
///
/// # Panics
/// As [`conv1d`].
#[track_caller]
pub fn conv1d_channels_first(x: Tensor<3>, layer: &Conv1d, precision: Precision) -> Tensor<3> {
    let [batch, channels, time] = x.dims();
    let order = "[batch, channel, time]";
    let conv = check(operand("x", &x), [batch, time, channels], order, layer);
    of_checked(conv, x.swap_dims(1, 2), layer, precision, None).swap_dims(1, 2)
}

/// A convolution with stride 1 whose result has as many steps as its input, for an odd `kernel`:
/// `kernel / 2` zeros on either side. Weight and bias are uniform in ±1/√(`input` · `kernel`), as
/// PyTorch's `nn.Conv1d` starts.
pub fn init_conv1d(
    stream: Stream,
    input: usize,
    output: usize,
    kernel: usize,
    device: &Device,
) -> Conv1d {
    let bound = ((input * kernel).max(1) as f64).sqrt().recip();
    let weight = uniform(stream.substream(0), [output, input, kernel], -bound, bound, device);
    let bias = uniform(stream.substream(1), [output], -bound, bound, device);
    Conv1d {
        weight: Param::from_tensor(weight),
        bias: Some(Param::from_tensor(bias)),
        stride: 1,
        kernel_size: kernel,
        dilation: 1,
        groups: 1,
        padding: PaddingConfig1d::Explicit(kernel / 2, kernel / 2),
    }
}

/// [`conv1d`] of what fits.
#[track_caller]
fn of_checked(
    conv: Conv,
    x: Tensor<3>,
    layer: &Conv1d,
    precision: Precision,
    noise: Option<GaussianNoise>,
) -> Tensor<3> {
    let (weight, bias) = (layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val()));
    let on_cpu = is_flex(&x) && is_flex(&weight) && bias.as_ref().is_none_or(is_flex);
    let taken = layer.groups == 1 && conv.input > 0;
    let noise = noise.filter(|noise| noise.deviation != 0.0);
    let shape = [conv.batch, conv.steps(), conv.output];
    if shape.contains(&0) {
        let nothing = Tensor::zeros(shape, (&weight.device(), x.dtype()));
        let nothing = tied(tied(nothing, &x), &weight);
        return bias.iter().fold(nothing, tied);
    }
    let shift = bias.as_ref().map(|bias| operand("bias", bias));
    let operands = [operand("x", &x), operand("weight", &weight)].into_iter().chain(shift);
    alike("a convolution", operands);
    // Operands that are rounded are rounded with what is added to them.
    let (x, noise) = match (precision, noise) {
        (Precision::F16, Some(noise)) => (noise.add_to(x), None),
        (_, noise) => (x, noise),
    };
    match CpuKernels::fused().filter(|_| on_cpu && taken) {
        Some(kernels) => {
            let arithmetic = ConvArithmetic { kernels, bf16: precision == Precision::Bf16 };
            fused(
                Fused { arithmetic, conv, noise: noise.map(GaussianNoise::kernel) },
                halved(x, precision),
                halved(weight, precision),
                bias,
            )
        }
        None => composed(conv, x, weight, bias, layer.groups, precision, noise),
    }
}

/// What is computed of `x`, whose axes lie in an order.
#[track_caller]
fn check(x: Operand<'_>, [batch, time, channels]: [usize; 3], order: &str, layer: &Conv1d) -> Conv {
    let [output, input, kernel] = layer.weight.dims();
    let Conv1d { stride, dilation, groups, .. } = *layer;
    assert!(
        channels == input * groups && kernel > 0 && stride > 0 && dilation > 0,
        "a convolution of {} ({order}) with a weight of {:?} ([output channel, \
         channel / groups, kernel]), {groups} groups, stride {stride} and dilation {dilation}: the \
         channels must be the same, and kernel, stride and dilation at least 1 ({})",
        x.dims(),
        [output, input, kernel],
        types([x, operand("weight", &*layer.weight)])
    );
    if let Some(bias) = &layer.bias {
        let [found] = bias.dims();
        assert!(
            found == output,
            "a convolution with a weight of {:?} ([output channel, channel / groups, kernel]) and a bias of \
             [{found}]: the bias must have a number for each of {output} output channels ({})",
            [output, input, kernel],
            types([operand("weight", &*layer.weight), operand("bias", &**bias)])
        );
    }
    let explicit = match layer.padding {
        PaddingConfig1d::Explicit(before, after) => [before, after],
        PaddingConfig1d::Valid | PaddingConfig1d::Same => [0, 0],
    };
    // What is read at once has steps of all windows of a piece, and sixteen windows more.
    let whole = |number: usize| number as u128;
    let taps = whole(dilation).saturating_mul(whole(kernel - 1));
    let steps = whole(stride).saturating_mul(256).saturating_add(taps.saturating_mul(2));
    let steps = explicit.map(whole).into_iter().fold(steps, u128::saturating_add);
    let numbers = [time, batch.max(1), channels.max(output).max(1)].map(whole);
    let [time_steps, samples, width] = numbers;
    let most = steps.saturating_add(time_steps).saturating_mul(samples).saturating_mul(width);
    assert!(
        most < whole(isize::MAX as usize / size_of::<f64>()),
        "a convolution of {} ({order}) with a kernel of {kernel} taps, stride {stride}, dilation {dilation} and padding \
         {explicit:?} reaches over more numbers than any memory has ({})",
        x.dims(),
        types([x, operand("weight", &*layer.weight)])
    );
    let padding = match layer.padding {
        PaddingConfig1d::Valid | PaddingConfig1d::Explicit(..) => explicit,
        PaddingConfig1d::Same => {
            let reach =
                time.div_ceil(stride).saturating_sub(1) * stride + dilation * (kernel - 1) + 1;
            let all = if time == 0 { 0 } else { reach.saturating_sub(time) };
            [all / 2, all - all / 2]
        }
    };
    Conv { batch, time, input: channels, output, kernel, stride, padding, dilation }
}

/// Burn's own operations, channels first.
fn composed(
    conv: Conv,
    x: Tensor<3>,
    weight: Tensor<3>,
    bias: Option<Tensor<1>>,
    groups: usize,
    precision: Precision,
    noise: Option<GaussianNoise>,
) -> Tensor<3> {
    let x = match noise {
        Some(noise) => noise.add_to(x),
        None => x,
    };
    if named(precision, &x.device()) {
        return by_product(conv, x, weight, bias, groups, precision);
    }
    let (x, weight) = (rounded(x, precision), rounded(weight, precision));
    let x = x.swap_dims(1, 2);
    let [before, after] = conv.padding;
    let mut options = ConvOptions::new([conv.stride], [0], [conv.dilation], groups);
    options.padding = [(before, after)];
    burn::tensor::module::conv1d(x, weight, bias, options).swap_dims(1, 2)
}

/// The same by one product for each group of the steps that each result takes, laid side by side, with the weights: for devices
/// whose convolutions do not say in which type they multiply.
fn by_product(
    conv: Conv,
    x: Tensor<3>,
    weight: Tensor<3>,
    bias: Option<Tensor<1>>,
    groups: usize,
    precision: Precision,
) -> Tensor<3> {
    let Conv { batch, input, output, kernel, .. } = conv;
    let (steps, given) = (conv.steps(), x.dtype());
    // On a GPU that is the type of what is laid side by side, too.
    let narrow = compute_type(given, precision);
    let rows = batch * steps;
    let columns = side_by_side(conv, x, narrow);
    #[cfg(feature = "cube")]
    if let (1, Some(bias)) = (groups, &bias) {
        let weight = by_place(weight.clone());
        let columns = columns.clone().reshape([rows, kernel * input]);
        if let Some(y) = shifted_in_halves(precision, &columns, &weight, bias) {
            return y.reshape([batch, steps, output]);
        }
    }
    let weight = cast(weight, narrow);
    let y = if groups == 1 {
        product(precision, columns.reshape([rows, kernel * input]), by_place(weight))
    } else {
        // A product for each group of channels.
        let [taken, made] = [input, output].map(|count| count / groups);
        let columns: Tensor<4> = columns.reshape([rows, kernel, groups, taken]);
        let columns = columns.permute([2, 0, 1, 3]).reshape([groups, rows, kernel * taken]);
        let weight: Tensor<4> = weight.reshape([groups, made, taken, kernel]);
        let weight = weight.permute([0, 3, 2, 1]).reshape([groups, kernel * taken, made]);
        product(precision, columns, weight).permute([1, 0, 2]).reshape([rows, output])
    };
    let y = cast(y, given);
    let y = match bias {
        Some(bias) => add_to_columns(y, bias),
        None => y,
    };
    y.reshape([batch, steps, output])
}

/// The weights as steps lie side by side, `[kernel · channel, output channel]`.
fn by_place(weight: Tensor<3>) -> Tensor<2> {
    let [output, input, kernel] = weight.dims();
    weight.permute([2, 1, 0]).reshape([kernel * input, output])
}

/// The steps that each result takes, side by side, `[batch, step, kernel · channel]`, in a type.
fn side_by_side(conv: Conv, x: Tensor<3>, narrow: DType) -> Tensor<3> {
    let Conv { batch, input, kernel, stride, padding, dilation, .. } = conv;
    let (steps, device) = (conv.steps(), x.device());
    #[cfg(feature = "cube")]
    {
        let time = conv.time;
        let padded = time + padding[0] + padding[1];
        let numbers = [batch * time * input, batch * steps * kernel * input, padded + stride];
        let fits = numbers.iter().all(|count| (1..=u32::MAX as usize).contains(count));
        if fits && GpuKernels::takes(&device, x.dtype()).is_ok() {
            let windows = <Dispatch as UnfoldOps>::firebox_unfold(x.into_dispatch(), conv, narrow);
            return Tensor::from_dispatch(windows);
        }
    }
    let x = cast(x, narrow);
    let zeros = |count: &usize| Tensor::zeros([batch, *count, input], (&device, x.dtype()));
    let [before, after] = padding.map(|count| Some(count).filter(|count| *count > 0));
    let (before, after) = (before.as_ref().map(zeros), after.as_ref().map(zeros));
    let parts = before.into_iter().chain([x.clone()]).chain(after);
    let padded = Tensor::cat(parts.collect(), 1);
    let last = (steps - 1) * stride + 1;
    let taken = |place: usize| {
        let from = padded.clone().narrow(1, place * dilation, last);
        if stride == 1 { from } else { from.slice_dim(1, s![..; stride as isize]) }
    };
    Tensor::cat((0..kernel).map(taken).collect(), 2)
}

/// What the CPU kernels compute.
#[derive(Clone, Copy, Debug)]
struct Fused {
    arithmetic: ConvArithmetic,
    conv: Conv,
    noise: Option<cpu::Noise>,
}

impl Fused {
    /// Operations and numbers of one of the three passes.
    fn work(&self) -> (usize, usize) {
        let Conv { batch, time, input, output, kernel, .. } = self.conv;
        let steps = batch * self.conv.steps();
        let numbers = batch * time * input + steps * output + kernel * input * output;
        (2 * steps * kernel * input * output, numbers)
    }

    fn span(&self) -> EnteredSpan {
        let Conv { batch, time, input, output, kernel, .. } = self.conv;
        let (operations, numbers) = self.work();
        let shape = [batch, time, input, output, kernel];
        kernel_span!("convolution", shape, operations, numbers, self.arithmetic.bf16)
    }

    fn run(&self, x: &Primitive, weight: &Primitive, bias: Option<&Primitive>) -> Primitive {
        let Self { arithmetic, conv, noise } = *self;
        let _span = self.span();
        let bias = bias.map(|bias| bias.storage::<f32>());
        let (x, weight) = (x.storage::<f32>(), weight.storage::<f32>());
        let y = conv.forward(arithmetic, x, noise, weight, bias);
        Primitive::from_data(TensorData::new(y, [conv.batch, conv.steps(), conv.output]))
    }
}

fn fused(op: Fused, x: Tensor<3>, weight: Tensor<3>, bias: Option<Tensor<1>>) -> Tensor<3> {
    let tracked =
        x.is_autodiff() || weight.is_autodiff() || bias.as_ref().is_some_and(Tensor::is_autodiff);
    if !tracked {
        let bias = bias.map(|bias| flex(bias).to_contiguous());
        let (x, weight) = (flex(x).to_contiguous(), flex(weight).to_contiguous());
        return Tensor::from_primitive::<Flex>(op.run(&x, &weight, bias.as_ref()));
    }
    let shifted = bias.is_some();
    let bias =
        bias.unwrap_or_else(|| Tensor::zeros([op.conv.output], (&weight.device(), DType::F32)));
    let (x, x_guard) = flex_in_graph(x).into_parts();
    let (weight, weight_guard) = flex_in_graph(weight).into_parts();
    let (bias, bias_guard) = flex_in_graph(bias).into_parts();
    let [x, weight, bias] = [x, weight, bias].map(|tensor| tensor.to_contiguous());
    let prepared = Convolved
        .prepare::<NoCheckpointing>([x_guard, weight_guard, bias_guard])
        .compute_bound()
        .stateful();
    let y = op.run(&x, &weight, shifted.then_some(&bias));
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => prepared.finish(Tape { op, x, weight }, y),
        OpsKind::UnTracked(prepared) => prepared.finish(y),
    })
}

/// What the gradients are computed from.
#[derive(Clone, Debug)]
struct Tape {
    op: Fused,
    x: Primitive,
    weight: Primitive,
}

#[derive(Debug)]
struct Convolved;

impl Backward<Flex, 3> for Convolved {
    type State = Tape;

    fn backward(self, ops: Ops<Tape, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<Flex>(&ops.node).to_contiguous();
        let d = d.storage::<f32>();
        let Tape { op, x, weight } = ops.state;
        let (operations, numbers) = op.work();
        let Fused { arithmetic, conv, noise } = op;
        let [to_x, to_weight, to_bias] = ops.parents;
        let wanted = usize::from(to_x.is_some()) + usize::from(to_weight.is_some());
        let _span = kernel_span!(
            "convolution, gradients",
            [conv.batch, conv.time, conv.input, conv.output, conv.kernel],
            wanted * operations,
            wanted * numbers,
            arithmetic.bf16
        );
        if let Some(parent) = to_x {
            let dx = conv.input_gradient(arithmetic, weight.storage::<f32>(), d);
            let dx = TensorData::new(dx, [conv.batch, conv.time, conv.input]);
            grads.register::<Flex>(parent.id, Primitive::from_data(dx));
        }
        if let Some(parent) = to_weight {
            let d_weight = conv.weight_gradient(arithmetic, x.storage::<f32>(), noise, d);
            let d_weight = TensorData::new(d_weight, [conv.output, conv.input, conv.kernel]);
            grads.register::<Flex>(parent.id, Primitive::from_data(d_weight));
        }
        if let Some(parent) = to_bias {
            let d_bias = TensorData::new(conv.bias_gradient(d), [conv.output]);
            grads.register::<Flex>(parent.id, Primitive::from_data(d_bias));
        }
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
mod tests;
