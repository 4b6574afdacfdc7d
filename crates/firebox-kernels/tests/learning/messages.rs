//! What every operation says of operands that do not go together: its name, and the shapes and types that it was given.
//!
//! One list holds all of them, and a test compares it with what the crate exports: a new operation is in it, or among
//! those that have nothing to compare.

mod of_attention;

use std::collections::BTreeSet;
use std::panic::catch_unwind;

use burn::module::Param;
use burn::nn::{Embedding, EmbeddingConfig, Linear};
use burn::tensor::{DType, Device, Int, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    Activation, Attention, BatchNormConfig, BinaryCrossEntropy, Clip, CpuKernels, CrossEntropy,
    DenseLayer, DeviceStep, DisentangledAttention, DistanceRows, FeedForward, GruConfig, LossError,
    LstmConfig, LstmState, MeanLoss, ParameterUpdate, ScaleRule, StepState, UpdateRule,
    add_row_noise, add_scaled, approach, approach_on_device, attention, attention_masked,
    batched_product, binary_cross_entropy, conv1d, conv1d_channels_first, cross_entropy,
    dense_layers, disentangled_attention, dropout, dropout_add, embedding, feed_forward,
    feed_forward_add, gelu_dropout, huber, indicator, init_conv1d, layer_norm, linear,
    linear_activated, linear_add, linear_in, masked_squared_error, max_pool1d, product,
    relu_dropout, rescale_on_device, squared_error, update_on_device, update_parameters,
};

/// A call that is refused, and what its message holds.
struct Case {
    /// As the crate exports it, and the method if it is one.
    operation: &'static str,
    call: fn(),
    said: &'static [&'static str],
}

const fn case(operation: &'static str, call: fn(), said: &'static [&'static str]) -> Case {
    Case { operation, call, said }
}

fn zeros<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::zeros(shape, (&Device::flex(), DType::F32))
}

fn half<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::zeros(shape, (&Device::flex(), DType::F16))
}

fn dense(weight: [usize; 2], bias: usize) -> Linear {
    let bias = Some(Param::from_tensor(zeros([bias])));
    Linear { weight: Param::from_tensor(zeros(weight)), bias }
}

fn stream() -> Stream {
    Stream::new(1, "messages")
}

const HEADS: Attention = Attention {
    heads: 2,
    causal: false,
    window: None,
    scale: None,
    dropout: 0.0,
    precision: Precision::F32,
};

const SGD: UpdateRule = UpdateRule::Sgd { momentum: 0.0, dampening: 0.0, nesterov: false };

const STATE: StepState =
    StepState { learning_rate: 0.1, loss_scale: 1.0, squared_norm: 1.0, updates: 0 };

fn update(parameter: Tensor<1>, gradient: Tensor<1>) -> Vec<ParameterUpdate> {
    let moments = vec![];
    vec![ParameterUpdate { parameter, gradient, moments, missed: 0, rate: 1.0, weight_decay: 0.0 }]
}

fn on_device(parameter: Tensor<1>, gradient: Tensor<1>) {
    let step = DeviceStep::new(&STATE, &Device::flex());
    update_on_device(&SGD, Clip::Never, step, update(parameter, gradient));
}

fn feed_add(residual: Tensor<2>, x: Tensor<2>) {
    let (first, second) = (dense([4, 6], 6), dense([6, 4], 4));
    let network = FeedForward {
        precision: Precision::F32,
        first: &first,
        activation: Activation::Gelu,
        second: &second,
        dropout: 0.0,
        streams: [None; 2],
    };
    feed_forward_add(residual, x, &network);
}

fn activated(x: Tensor<2>, dropout: f64) {
    linear_activated(Precision::F32, x, &dense([4, 3], 3), Activation::Relu, dropout, None);
}

fn lstm(input: Tensor<3>, state: Option<Tensor<3>>) {
    let module = LstmConfig::new(3, 4).init(stream(), &Device::flex());
    let state = state.map(|state| LstmState { hidden: state.clone(), cell: state });
    module.forward(input, None, state, None);
}

fn lstm_of_lengths(input: Tensor<3>, lengths: &[usize]) {
    let module = LstmConfig::new(3, 4).init(stream(), &Device::flex());
    module.forward(input, Some(lengths), None, None);
}

fn gru(input: Tensor<3>, state: Option<Tensor<3>>) {
    let module = GruConfig::new(3, 4).init(stream(), &Device::flex());
    module.forward(input, None, state, None);
}

fn disentangled(qkv: Tensor<3>, positions: Tensor<2>, time: usize) {
    let distances = DistanceRows::new(time, |distance| (distance + 2).clamp(0, 4) as usize);
    disentangled_attention(qkv, positions, &distances, None, None, &DisentangledAttention::new(2));
}

/// An error is a message, too.
fn told(loss: Result<MeanLoss, LossError>) {
    if let Err(error) = loss {
        panic!("{error}");
    }
}

/// An embedding by the number of a row that its table lacks.
fn outside(dtype: DType) {
    let weight = Tensor::zeros([4, 3], (&Device::flex(), dtype));
    let table = Embedding { weight: Param::from_tensor(weight) };
    let indices = Tensor::<2, Int>::full([2, 5], 4, (&Device::flex(), DType::I64));
    embedding(&table, indices, None);
}

/// In the fastest kernels of this processor, whatever `FIREBOX_KERNELS` says: composed of Burn's operations, a layer as
/// one operation is `None`.
fn in_kernels<T>(f: impl FnOnce() -> T) -> T {
    CpuKernels::available().last().unwrap().force(f)
}

fn all() -> Vec<Case> {
    let mut all = types();
    all.extend(shapes());
    all.extend(of_attention::shapes());
    all
}

/// Operands of different types.
fn types() -> Vec<Case> {
    const ONE: &str = "takes operands of one float type";
    vec![
        case(
            "linear",
            || drop(linear(half([2, 4]), &dense([4, 3], 3))),
            &[
                "a linear layer",
                ONE,
                "input [2, 4] in F16",
                "weight [4, 3] in F32",
                "bias [3] in F32",
            ],
        ),
        case(
            "linear_in",
            || drop(linear_in(Precision::Bf16, half([2, 4]), &dense([4, 3], 3))),
            &["a linear layer", ONE, "input [2, 4] in F16", "weight [4, 3] in F32"],
        ),
        case(
            "linear_activated",
            || activated(half([2, 4]), 0.0),
            &["a linear layer", ONE, "input [2, 4] in F16", "weight [4, 3] in F32"],
        ),
        case(
            "linear_add",
            || {
                let layer = dense([4, 4], 4);
                linear_add(Precision::F32, half([2, 4]), zeros([2, 4]), &layer, 0.0, None);
            },
            &[
                "linear layer and residual sum",
                ONE,
                "residual [2, 4] in F16",
                "input [2, 4] in F32",
            ],
        ),
        case(
            "feed_forward_add",
            || feed_add(zeros([2, 4]), half([2, 4])),
            &[
                "feed-forward network and residual sum",
                ONE,
                "residual [2, 4] in F32",
                "[2, 4] in F16",
            ],
        ),
        case(
            "dropout_add",
            || drop(dropout_add(zeros([2, 3]), half([2, 3]), 0.1, None)),
            &["a residual sum", ONE, "x [2, 3] in F32", "y [2, 3] in F16"],
        ),
        case(
            "layer_norm",
            || drop(layer_norm(half([2, 5]), zeros([5]), Some(zeros([5])), 1e-5)),
            &["layer normalisation", ONE, "x [2, 5] in F16", "gamma [5] in F32", "beta [5] in F32"],
        ),
        case(
            "attention",
            || {
                let (q, k, v) = (zeros([2, 3, 8]), half([2, 5, 8]), zeros([2, 5, 8]));
                attention(q, k, v, None, None, None, &HEADS);
            },
            &["attention", ONE, "queries [2, 3, 8] in F32", "keys [2, 5, 8] in F16"],
        ),
        case(
            "attention_masked",
            || {
                let (q, k, v) = (zeros([2, 3, 8]), half([2, 5, 8]), zeros([2, 5, 8]));
                attention_masked(q, k, v, Some(&[true; 6]), None, None, &HEADS);
            },
            &["attention", ONE, "queries [2, 3, 8] in F32", "keys [2, 5, 8] in F16"],
        ),
        case(
            "disentangled_attention",
            || disentangled(zeros([2, 3, 12]), half([5, 8]), 3),
            &["disentangled attention", ONE, "qkv [2, 3, 12] in F32", "positions [5, 8] in F16"],
        ),
        case(
            "BatchNorm::forward",
            || {
                let norm = BatchNormConfig::new(4).init(&Device::flex());
                norm.forward(half([2, 5, 4]));
            },
            &["batch normalisation", ONE, "x [2, 5, 4] in F16", "gamma [4] in F32"],
        ),
        case(
            "conv1d",
            || {
                let layer = init_conv1d(stream(), 4, 8, 3, &Device::flex());
                conv1d(half([2, 5, 4]), &layer, Precision::F32, None);
            },
            &["a convolution", ONE, "x [2, 5, 4] in F16", "weight [8, 4, 3] in F32"],
        ),
        case(
            "conv1d_channels_first",
            || {
                let layer = init_conv1d(stream(), 4, 8, 3, &Device::flex());
                conv1d_channels_first(half([2, 4, 5]), &layer, Precision::F32);
            },
            &["a convolution", ONE, "in F16", "weight [8, 4, 3] in F32"],
        ),
        case(
            "batched_product",
            || drop(batched_product(Precision::Bf16, half([2, 3, 4]), zeros([2, 4, 3]))),
            &["a batched product", ONE, "left [2, 3, 4] in F16", "right [2, 4, 3] in F32"],
        ),
        case(
            "product",
            || drop(product(Precision::F32, half([2, 4]), zeros([4, 3]))),
            &["a product", ONE, "left [2, 4] in F16", "right [4, 3] in F32"],
        ),
        case(
            "add_row_noise",
            || drop(add_row_noise(half([2, 5, 4]), zeros([2, 4]), &[Some(stream()), None])),
            &["noise on rows", ONE, "x [2, 5, 4] in F16", "deviations [2, 4] in F32"],
        ),
        case(
            "update_parameters",
            || drop(update_parameters(&SGD, Clip::Never, &STATE, update(zeros([3]), half([3])))),
            &["an update of a parameter", ONE, "parameter [3] in F32", "gradient [3] in F16"],
        ),
        case(
            "update_on_device",
            || on_device(zeros([3]), half([3])),
            &["an update of a parameter", ONE, "parameter [3] in F32", "gradient [3] in F16"],
        ),
        case(
            "rescale_on_device",
            || {
                let rule = ScaleRule { growth: 2.0, backoff: 0.5, interval: 9, floor: 1.0 };
                drop(rescale_on_device(&rule, [zeros([1]), zeros([3])], &zeros([1])));
            },
            &["the good steps of a loss scale on the device is [3] in F32", "must be [1]"],
        ),
        case(
            "add_scaled",
            || drop(add_scaled(vec![zeros([3])], &[&half([3])], 0.5)),
            &["a scaled sum", ONE, "sum [3] in F32", "value [3] in F16"],
        ),
        case(
            "approach",
            || drop(approach(vec![zeros([3])], &[&half([3])], 0.5)),
            &["a moving average", ONE, "mean [3] in F32", "value [3] in F16"],
        ),
        case(
            "approach_on_device",
            || drop(approach_on_device(vec![zeros([3])], &[&half([3])], zeros([1]))),
            &["a moving average", ONE, "mean [3] in F32", "value [3] in F16"],
        ),
        case(
            "Lstm::forward",
            || lstm(half([2, 5, 3]), None),
            &["layer 0 of the LSTM", ONE, "input [2, 5, 3] in F16", "weight_ih [16, 3] in F32"],
        ),
        case(
            "Lstm::forward",
            || lstm(zeros([2, 5, 3]), Some(half([1, 2, 4]))),
            &["the LSTM", ONE, "input [2, 5, 3] in F32", "hidden state [1, 2, 4] in F16"],
        ),
        case(
            "Gru::forward",
            || gru(zeros([2, 5, 3]), Some(half([1, 2, 4]))),
            &["the GRU", ONE, "input [2, 5, 3] in F32", "hidden state [1, 2, 4] in F16"],
        ),
    ]
}

/// Operands whose shapes do not fit.
fn shapes() -> Vec<Case> {
    vec![
        case(
            "linear",
            || drop(linear(zeros([2, 5]), &dense([4, 3], 3))),
            &[
                "linear layer",
                "[2, 5] ([rows, input])",
                "[4, 3] ([input, output])",
                "weight in F32",
            ],
        ),
        case(
            "linear",
            || drop(linear(zeros([2, 4]), &dense([4, 3], 2))),
            &[
                "linear layer",
                "[2] ([output])",
                "[4, 3] ([input, output])",
                "must be [3]",
                "in F32",
            ],
        ),
        case(
            "linear_in",
            || drop(linear_in(Precision::Bf16, half([2, 5]), &dense([5, 3], 3))),
            &["linear layer", "input [2, 5] in F16", "weight [5, 3] in F32"],
        ),
        case(
            "linear_activated",
            || activated(zeros([2, 5]), 0.0),
            &[
                "linear layer",
                "[2, 5] ([rows, input])",
                "[4, 3] ([input, output])",
                "weight in F32",
            ],
        ),
        case(
            "linear_activated",
            || activated(zeros([2, 4]), 1.5),
            &["dropout probability 1.5", "x [2, 4] in F32"],
        ),
        case(
            "linear_add",
            || {
                let layer = dense([4, 4], 4);
                linear_add(Precision::F32, zeros([2, 3]), zeros([2, 4]), &layer, 0.0, None);
            },
            &["linear layer and residual sum", "residual [2, 3] in F32", "weight [4, 4] in F32"],
        ),
        case(
            "feed_forward_add",
            || feed_add(zeros([2, 4]), zeros([2, 5])),
            &["feed-forward network", "input [2, 5] in F32", "weight [4, 6] in F32"],
        ),
        case(
            "feed_forward",
            || {
                let (first, second) = (dense([4, 3], 3), dense([3, 2], 2));
                let x = zeros([2, 5]);
                in_kernels(|| feed_forward(Precision::F32, &x, &first, Activation::Relu, &second));
            },
            &["feed-forward network", "[2, 5] ([rows, width])", "[4, 3] ([input, output])", "F32"],
        ),
        case(
            "dense_layers",
            || {
                let linear = dense([4, 3], 2);
                let layers = [DenseLayer { linear: &linear, norm: None }];
                in_kernels(|| dense_layers(Precision::F32, &zeros([2, 4]), None, &layers));
            },
            &[
                "dense layers",
                "[2, 4] ([rows, width])",
                "[4, 3] ([input, output])",
                "bias [2]",
                "F32",
            ],
        ),
        case(
            "dropout_add",
            || drop(dropout_add(zeros([2, 3]), zeros([3, 2]), 0.1, None)),
            &["a residual sum", "x is [2, 3]", "y [3, 2]", "x in F32, y in F32"],
        ),
        case(
            "layer_norm",
            || drop(layer_norm(zeros([2, 5]), zeros([4]), None, 1e-5)),
            &["layer normalisation of [2, 5]", "a scale of 4", "x in F32, gamma in F32"],
        ),
        case(
            "BatchNorm::forward",
            || {
                let norm = BatchNormConfig::new(4).init(&Device::flex());
                norm.forward(zeros([2, 5, 3]));
            },
            &["batch normalisation of [2, 5, 3]", "gamma [4]", "running mean [4]", "x in F32"],
        ),
        case(
            "conv1d",
            || {
                let layer = init_conv1d(stream(), 4, 8, 3, &Device::flex());
                conv1d(zeros([2, 5, 3]), &layer, Precision::F32, None);
            },
            &["a convolution of [2, 5, 3] ([batch, time, channel])", "[8, 4, 3]", "weight in F32"],
        ),
        case(
            "conv1d_channels_first",
            || {
                let layer = init_conv1d(stream(), 4, 8, 3, &Device::flex());
                conv1d_channels_first(zeros([2, 3, 5]), &layer, Precision::F32);
            },
            &["a convolution of [2, 3, 5] ([batch, channel, time])", "[8, 4, 3]", "weight in F32"],
        ),
        case(
            "max_pool1d",
            || drop(max_pool1d(zeros([1, 3, 1]), 3, 1, 2)),
            &["pooling", "kernel of 3", "padding 2", "[1, 3, 1]", "F32"],
        ),
        case(
            "dropout",
            || drop(dropout(zeros([2, 3]), 1.5, None)),
            &["dropout probability 1.5", "x [2, 3] in F32"],
        ),
        case(
            "relu_dropout",
            || drop(relu_dropout(zeros([2, 3]), 1.5, None)),
            &["dropout probability 1.5", "x [2, 3] in F32"],
        ),
        case(
            "gelu_dropout",
            || drop(gelu_dropout(zeros([2, 3]), 1.5, None)),
            &["dropout probability 1.5", "x [2, 3] in F32"],
        ),
        case(
            "embedding",
            || {
                let table = EmbeddingConfig::new(4, 3).init(&Device::flex());
                let indices = Tensor::<2, Int>::zeros([2, 5], (&Device::flex(), DType::I64));
                embedding(&table, indices, Some(4));
            },
            &["embedding", "indices [2, 5] in I64", "table [4, 3] in F32"],
        ),
        case(
            "embedding",
            || in_kernels(|| outside(DType::F32)),
            &["the index 4 names no row", "(indices [2, 5] in I64, table [4, 3] in F32)"],
        ),
        case(
            "embedding",
            || CpuKernels::Composed.force(|| outside(DType::F32)),
            &["the index 4 names no row", "(indices [2, 5] in I64, table [4, 3] in F32)"],
        ),
        case(
            "embedding",
            || in_kernels(|| outside(DType::F16)),
            &["the index 4 names no row", "(indices [2, 5] in I64, table [4, 3] in F16)"],
        ),
        case(
            "batched_product",
            || drop(batched_product(Precision::F32, zeros([2, 3, 4]), zeros([2, 5, 3]))),
            &["a batched product of left [2, 3, 4] in F32, right [2, 5, 3] in F32"],
        ),
        case(
            "batched_product",
            || drop(batched_product(Precision::F32, zeros([2, 3, 4]), zeros([3, 4, 3]))),
            &["a batched product of left [2, 3, 4] in F32, right [3, 4, 3] in F32"],
        ),
        case(
            "product",
            || drop(product(Precision::F32, zeros([2, 4]), zeros([5, 3]))),
            &["a product of left [2, 4] in F32, right [5, 3] in F32"],
        ),
        case(
            "indicator",
            || drop(indicator(&[true; 5], [2, 3], &Device::flex())),
            &["an indicator in F32", "5 values", "[2, 3]"],
        ),
        case(
            "add_row_noise",
            || drop(add_row_noise(zeros([2, 5, 4]), zeros([2, 4]), &[None])),
            &["noise for 1 rows", "deviations of [2, 4]", "[2, 5, 4]", "deviations in F32"],
        ),
        case(
            "cross_entropy",
            || told(cross_entropy(zeros([2, 3]), &[0], &CrossEntropy::default())),
            &["1 targets were given for [2, 3]", "must be 2", "F32"],
        ),
        case(
            "binary_cross_entropy",
            || {
                let config = BinaryCrossEntropy::default();
                told(binary_cross_entropy(zeros([2, 3]), half([3, 2]), None, &config));
            },
            &["targets were given for [2, 3]", "not [3, 2] in F16", "F32"],
        ),
        case(
            "squared_error",
            || told(squared_error(zeros([2, 3]), half([3, 2]), None)),
            &["targets were given for [2, 3]", "not [3, 2] in F16", "F32"],
        ),
        case(
            "masked_squared_error",
            || drop(masked_squared_error(zeros([2, 3]), zeros([2, 3]), zeros([2, 3]), 1.0)),
            &["predictions [2, 3] in F32", "counted [2, 3] in F32", "[2, 1], one for each row"],
        ),
        case(
            "masked_squared_error",
            || drop(masked_squared_error(zeros([2, 3]), half([2, 3]), zeros([2, 1]), 1.0)),
            &["a masked squared error", "targets [2, 3] in F16"],
        ),
        case(
            "huber",
            || told(huber(zeros([2, 3]), half([3, 2]), None, 1.0)),
            &["targets were given for [2, 3]", "not [3, 2] in F16", "F32"],
        ),
        case(
            "update_parameters",
            || drop(update_parameters(&SGD, Clip::Never, &STATE, update(zeros([3]), zeros([2])))),
            &["a parameter of 3 elements has a gradient of 2", "parameter in F32, gradient in F32"],
        ),
        case(
            "update_on_device",
            || {
                let mut step = DeviceStep::new(&STATE, &Device::flex());
                step.squared_norm = zeros([2]);
                update_on_device(&SGD, Clip::Never, step, update(zeros([3]), zeros([3])));
            },
            &["the squared norm of an optimizer step on the device is [2] in F32", "must be [1]"],
        ),
        case(
            "add_scaled",
            || drop(add_scaled(vec![zeros([3])], &[&zeros([1])], 0.5)),
            &["a scaled sum", "sum [3] in F32", "value [1] in F32"],
        ),
        case(
            "approach",
            || drop(approach(vec![zeros([3])], &[&zeros([1])], 0.5)),
            &["a moving average", "mean [3] in F32", "value [1] in F32"],
        ),
        case(
            "approach_on_device",
            || drop(approach_on_device(vec![zeros([3])], &[&zeros([1])], zeros([1]))),
            &["a moving average", "mean [3] in F32", "value [1] in F32"],
        ),
        case(
            "approach_on_device",
            || drop(approach_on_device(vec![zeros([3])], &[&zeros([3])], zeros([2]))),
            &["the share of a moving average on the device is [2] in F32", "must be [1]"],
        ),
        case(
            "Lstm::forward",
            || lstm(zeros([2, 5, 4]), None),
            &[
                "the input of the LSTM is [2, 5, 4] ([batch, time, input]) in F32",
                "3 input channels",
            ],
        ),
        case(
            "Lstm::forward",
            || lstm(zeros([2, 5, 3]), Some(zeros([1, 3, 4]))),
            &["the hidden state of the LSTM is [1, 3, 4]", "[1, 2, 4]", "hidden state in F32"],
        ),
        case(
            "Lstm::forward",
            || lstm_of_lengths(zeros([2, 5, 3]), &[5, 6]),
            &["sample 1 has length 6, longer than its input of 5 steps", "[2, 5, 3]", "in F32"],
        ),
        case(
            "Gru::forward",
            || gru(zeros([2, 5, 4]), None),
            &[
                "the input of the GRU is [2, 5, 4] ([batch, time, input]) in F32",
                "3 input channels",
            ],
        ),
    ]
}

#[test]
fn a_refusal_names_the_operation_with_shapes_and_types() {
    for Case { operation, call, said } in all() {
        let panic = catch_unwind(call).expect_err(operation);
        let message = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        for part in said {
            assert!(message.contains(part), "{operation} does not say {part:?}: {message:?}");
        }
    }
}

#[test]
fn losses_measure_any_type() {
    let device = Device::flex();
    let half = Tensor::<2>::ones([2, 3], (&device, DType::F16));
    let found = squared_error(half, zeros([2, 3]), None).unwrap().value;
    assert_eq!((found.dtype(), found.into_scalar::<f32>()), (DType::F32, 1.0));
}

/// Operations of one tensor or none, in any type and shape, that refuse nothing.
const NOTHING_TO_COMPARE: [&str; 16] = [
    "buffer_bytes",
    "gelu",
    "init_conv1d",
    "init_linear",
    "keep_compiled_kernels",
    "normal",
    "product_kernels",
    "recomputed",
    "recomputed_beside",
    "recomputes_on",
    "release_buffers",
    "rounded",
    "squared_norm",
    "uniform",
    "with_batch_statistics",
    "with_product_kernel",
];

#[test]
fn every_operation_is_in_the_list() {
    let listed: BTreeSet<_> = all().iter().map(|case| case.operation).collect();
    let known: BTreeSet<_> = listed.iter().copied().chain(NOTHING_TO_COMPARE).collect();
    let exported = exported();
    assert!(exported.len() > 30, "{exported:?}");
    let missing: Vec<_> = exported.iter().filter(|name| !known.contains(**name)).collect();
    assert!(missing.is_empty(), "no case in tests/learning/messages.rs: {missing:?}");
    let gone: Vec<_> =
        known.iter().filter(|name| !name.contains(':') && !exported.contains(**name)).collect();
    assert!(gone.is_empty(), "in the list, but not exported: {gone:?}");
}

/// The functions that the crate exports.
fn exported() -> BTreeSet<&'static str> {
    let source = include_str!("../../src/lib.rs");
    let uses = source.split("\npub use ").skip(1).filter_map(|rest| rest.split(';').next());
    let names = uses.filter_map(|path| path.split_once("::")).flat_map(|(_, names)| {
        names.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|name| !name.is_empty())
    });
    names.filter(|name| name.starts_with(|c: char| c.is_lowercase())).collect()
}
