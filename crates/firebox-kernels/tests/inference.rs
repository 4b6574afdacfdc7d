//! Layers at once against the operations that they are made of, and against float64.

#![allow(clippy::expect_used, reason = "a test says why it fails by panicking")]

use burn::module::{Module, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear};
use burn::tensor::{Device, Tensor, TensorData};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    Activation, Attention, AttentionWindow, BatchNorm, BatchNormConfig, CpuKernels, DenseLayer,
    EncoderParameters, EncoderSettings, NormEpilogue, dense_layers, dropout_add, encoder_layer,
    feed_forward, gelu, layer_norm, linear_in, normal, relu_dropout, self_attention,
};

const EPSILON: f64 = 1e-5;

fn tensor<const D: usize>(seed: u64, shape: [usize; D], deviation: f64) -> Tensor<D> {
    normal(Stream::new(seed, "inference"), shape, 0.0, deviation, &Device::flex())
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn dense(seed: u64, input: usize, output: usize, biased: bool) -> Linear {
    let weight = tensor(seed, [input, output], (input as f64).sqrt().recip());
    let bias = biased.then(|| Param::from_tensor(tensor(seed + 1, [output], 0.5)));
    Linear { weight: Param::from_tensor(weight), bias }
}

/// A layer's parameters.
struct Layer {
    dense: [Linear; 4],
    norms: [LayerNorm; 2],
}

impl Layer {
    fn new(width: usize, between: usize) -> Self {
        let norm = |seed| {
            let mut norm = LayerNormConfig::new(width).init(&Device::flex());
            norm.gamma = Param::from_tensor(tensor(seed, [width], 0.3) + 1.0);
            norm.beta = Some(Param::from_tensor(tensor(seed + 1, [width], 0.3)));
            norm
        };
        Self {
            dense: [
                dense(10, width, 3 * width, true),
                dense(20, width, width, false),
                dense(30, width, between, true),
                dense(40, between, width, true),
            ],
            norms: [norm(50), norm(60)],
        }
    }

    fn parameters(&self) -> EncoderParameters<'_> {
        let [in_proj, out_proj, first, second] = &self.dense;
        let [norm1, norm2] = &self.norms;
        EncoderParameters { in_proj, out_proj, feed: [first, second], norms: [norm1, norm2] }
    }

    /// The layer made of operations one by one.
    fn composed(
        &self,
        x: Tensor<3>,
        lengths: Option<&[usize]>,
        settings: &EncoderSettings,
    ) -> Tensor<3> {
        let [batch, time, width] = x.dims();
        let precision = settings.attention.precision;
        let norm = |index: usize, x: Tensor<2>| {
            let LayerNorm { gamma, beta, .. } = &self.norms[index];
            layer_norm(x, gamma.val(), beta.as_ref().map(|beta| beta.val()), EPSILON)
        };
        let attend = |x: Tensor<2>| {
            let qkv = linear_in(precision, x, &self.dense[0]).reshape([batch, time, 3 * width]);
            let attended = self_attention(qkv, lengths, None, &settings.attention);
            linear_in(precision, attended.reshape([batch * time, width]), &self.dense[1])
        };
        let feed = |x: Tensor<2>| {
            let between = linear_in(precision, x, &self.dense[2]);
            linear_in(precision, bent(settings.activation, between), &self.dense[3])
        };
        let add = |x: Tensor<2>, part: Tensor<2>| dropout_add(x, part, 0.0, None);
        let x = x.reshape([batch * time, width]);
        let y = if settings.norm_first {
            let x = add(x.clone(), attend(norm(0, x)));
            add(x.clone(), feed(norm(1, x)))
        } else {
            let x = norm(0, add(x.clone(), attend(x)));
            norm(1, add(x.clone(), feed(x)))
        };
        y.reshape([batch, time, width])
    }
}

fn bent(activation: Activation, x: Tensor<2>) -> Tensor<2> {
    match activation {
        Activation::Gelu => gelu(x),
        Activation::Relu => relu_dropout(x, 0.0, None),
    }
}

fn settings(heads: usize, precision: Precision) -> EncoderSettings {
    EncoderSettings {
        attention: Attention { precision, ..Attention::new(heads) },
        activation: Activation::Gelu,
        epsilon: EPSILON,
        norm_first: false,
    }
}

/// Runs on so many threads.
fn on<T: Send>(threads: usize, run: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.expect("a pool").install(run)
}

#[test]
fn a_layer_gives_the_bits_of_its_operations() {
    for ([batch, time, heads, size, between], lengths) in [
        ([1, 1, 1, 1, 1], None),
        ([3, 7, 2, 5, 9], Some(vec![7, 0, 3])),
        ([2, 33, 3, 16, 70], Some(vec![20, 33])),
        ([3, 150, 2, 24, 300], None),
    ] {
        let layer = Layer::new(heads * size, between);
        let x = tensor(1, [batch, time, heads * size], 1.0);
        for kernels in CpuKernels::available().into_iter().skip(1) {
            for (precision, activation, norm_first) in [
                (Precision::F32, Activation::Gelu, false),
                (Precision::F32, Activation::Relu, true),
                (Precision::Bf16, Activation::Gelu, true),
                (Precision::Bf16, Activation::Relu, false),
            ] {
                let mut settings =
                    EncoderSettings { activation, norm_first, ..settings(heads, precision) };
                if norm_first {
                    settings.attention.window = Some(AttentionWindow { reach: 9, global: 1 });
                }
                let (at_once, composed) = on(1, || {
                    kernels.force(|| {
                        let parameters = layer.parameters();
                        let y = encoder_layer(&x, lengths.as_deref(), &parameters, &settings);
                        let composed = layer.composed(x.clone(), lengths.as_deref(), &settings);
                        (values(y.expect("on the CPU")), values(composed))
                    })
                });
                assert!(at_once.iter().all(|value| value.is_finite()));
                assert!(at_once == composed, "{kernels:?} {batch} × {time}, {settings:?}");
            }
        }
    }
}

#[test]
fn a_feed_forward_network_agrees_with_float64_and_gives_the_bits_of_its_operations() {
    for ([rows, input, between, output], biased) in [
        ([1, 1, 1, 1], true),
        ([7, 5, 33, 4], false),
        ([300, 256, 128, 4], true),
        ([530, 70, 590, 65], true),
        ([53, 600, 140, 33], false),
    ] {
        let (first, second) = (dense(1, input, between, biased), dense(5, between, output, biased));
        let x = tensor(9, [rows, input], 1.0);
        for precision in [Precision::F32, Precision::Bf16] {
            for activation in [Activation::Gelu, Activation::Relu] {
                let exact = reference(precision, &x, [&first, &second], activation);
                for kernels in CpuKernels::available().into_iter().skip(1) {
                    let (at_once, composed) = kernels.force(|| {
                        let between = linear_in(precision, x.clone(), &first);
                        let composed = linear_in(precision, bent(activation, between), &second);
                        let y = feed_forward(precision, &x, &first, activation, &second);
                        (values(y.expect("on the CPU")), values(composed))
                    });
                    assert!(at_once == composed, "{kernels:?} {precision} {rows} × {input}");
                    let square = |sum: f64, (a, e): (&f32, &f64)| sum + (f64::from(*a) - e).powi(2);
                    let error = at_once.iter().zip(&exact).fold(0.0, square).sqrt();
                    let norm = exact.iter().map(|e| e * e).sum::<f64>().sqrt();
                    // A number between the layers may be rounded to the other neighbour.
                    let bound = if precision == Precision::Bf16 { 1e-3 } else { 1e-5 };
                    assert!(
                        error <= bound * norm,
                        "{kernels:?} {precision}: {error:e} of {norm:e}"
                    );
                }
            }
        }
    }
}

/// The network in float64, with operands rounded to bf16 if asked.
fn reference(
    precision: Precision,
    x: &Tensor<2>,
    layers: [&Linear; 2],
    activation: Activation,
) -> Vec<f64> {
    let round = |value: f64| match precision {
        Precision::Bf16 => half::bf16::from_f64(value).to_f64(),
        _ => value,
    };
    let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<_>>();
    let [rows, mut width] = x.dims();
    let mut numbers = wide(values(x.clone()));
    for (index, layer) in layers.into_iter().enumerate() {
        let [_, output] = layer.weight.val().dims();
        let weight = wide(values(layer.weight.val()));
        let bias = layer.bias.as_ref().map(|bias| wide(values(bias.val())));
        let mut next = vec![0.0; rows * output];
        for (row, to) in numbers.chunks_exact(width).zip(next.chunks_exact_mut(output)) {
            for (column, to) in to.iter_mut().enumerate() {
                let terms = row.iter().enumerate();
                let sum: f64 =
                    terms.map(|(k, x)| round(*x) * round(weight[k * output + column])).sum();
                *to = sum + bias.as_ref().map_or(0.0, |bias| bias[column]);
                if index == 0 {
                    *to = match activation {
                        Activation::Gelu => *to * distribution(*to),
                        Activation::Relu => to.max(0.0),
                    };
                }
            }
        }
        (numbers, width) = (next, output);
    }
    numbers
}

/// Φ by its series and, far from zero, its continued fraction.
fn distribution(x: f64) -> f64 {
    let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if x.abs() < 4.0 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= x * x / (2 * n + 1) as f64;
            sum += term;
        }
        return 0.5 + density * sum;
    }
    let tail = density / (1..60).rev().fold(x.abs(), |rest, n| x.abs() + f64::from(n) / rest);
    if x > 0.0 { 1.0 - tail } else { tail }
}

/// A batch normalisation that has seen some batches.
fn batch_norm(seed: u64, channels: usize) -> BatchNorm {
    let device = Device::flex().autodiff();
    let norm = BatchNormConfig::new(channels).init(&device);
    for index in 0..3 {
        let rows = tensor(seed + index, [1, 40, channels], 2.0) + 1.0;
        norm.forward(Tensor::from_data(rows.into_data(), &device));
    }
    let mut norm = norm.valid();
    norm.gamma = Param::from_tensor(tensor(seed + 3, [channels], 0.3) + 1.0);
    norm.beta = Param::from_tensor(tensor(seed + 4, [channels], 0.5));
    norm
}

/// Layers of these widths: with a normalisation and a rectifier, with one alone, and with neither, in turn.
struct Stack {
    before: Option<BatchNorm>,
    layers: Vec<(Linear, Option<(BatchNorm, bool)>)>,
}

impl Stack {
    fn new(widths: &[usize], before: bool) -> Self {
        let layer = |(index, sizes): (usize, &[usize])| {
            let seed = 100 * index as u64;
            let norm = (index % 3 < 2).then(|| (batch_norm(seed + 200, sizes[1]), index % 3 == 0));
            (dense(seed, sizes[0], sizes[1], index % 2 == 0), norm)
        };
        let before = before.then(|| batch_norm(7, widths[0]));
        Self { before, layers: widths.windows(2).enumerate().map(layer).collect() }
    }

    fn at_once(&self, precision: Precision, x: &Tensor<2>) -> Option<Tensor<2>> {
        let layers: Vec<_> = (self.layers.iter())
            .map(|(linear, norm)| DenseLayer {
                linear,
                norm: norm.as_ref().map(|(norm, rectify)| (norm, *rectify)),
            })
            .collect();
        dense_layers(precision, x, self.before.as_ref(), &layers)
    }

    fn composed(&self, precision: Precision, x: &Tensor<2>) -> Tensor<2> {
        let normalised = |norm: &BatchNorm, rectify: bool, x: Tensor<2>| {
            let [rows, width] = x.dims();
            let epilogue = NormEpilogue { rectify, pool: 1, dropout: 0.0 };
            norm.forward_with(x.reshape([rows, 1, width]), epilogue, None).reshape([rows, width])
        };
        let start = match &self.before {
            Some(norm) => normalised(norm, false, x.clone()),
            None => x.clone(),
        };
        self.layers.iter().fold(start, |x, (linear, norm)| {
            let y = linear_in(precision, x, linear);
            match norm {
                Some((norm, rectify)) => normalised(norm, *rectify, y),
                None => y,
            }
        })
    }

    /// In float64.
    fn exact(&self, x: &Tensor<2>) -> Vec<f64> {
        let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<_>>();
        let normalise = |norm: &BatchNorm, rectify: bool, numbers: &mut [f64]| {
            let of = |tensor: Tensor<1>| wide(values(tensor));
            let (mean, variance) = (of(norm.running_mean.value()), of(norm.running_var.value()));
            let (gamma, beta) = (of(norm.gamma.val()), of(norm.beta.val()));
            for row in numbers.chunks_exact_mut(mean.len()) {
                for (at, value) in row.iter_mut().enumerate() {
                    let z = (*value - mean[at]) / (variance[at] + 1e-5).sqrt();
                    *value = z * gamma[at] + beta[at];
                    *value = if rectify { value.max(0.0) } else { *value };
                }
            }
        };
        let [_, mut width] = x.dims();
        let mut numbers = wide(values(x.clone()));
        if let Some(norm) = &self.before {
            normalise(norm, false, &mut numbers);
        }
        for (linear, norm) in &self.layers {
            let [_, output] = linear.weight.val().dims();
            let weight = wide(values(linear.weight.val()));
            let bias = linear.bias.as_ref().map(|bias| wide(values(bias.val())));
            let sums = |row: &[f64]| {
                let column = |column: usize| {
                    let terms = row.iter().enumerate();
                    terms.map(|(k, x)| x * weight[k * output + column]).sum::<f64>()
                        + bias.as_ref().map_or(0.0, |bias| bias[column])
                };
                (0..output).map(column).collect::<Vec<_>>()
            };
            numbers = numbers.chunks_exact(width).flat_map(sums).collect();
            if let Some((norm, rectify)) = norm {
                normalise(norm, *rectify, &mut numbers);
            }
            width = output;
        }
        numbers
    }
}

#[test]
fn dense_layers_agree_with_float64_and_give_the_bits_of_their_operations() {
    for (rows, widths, before) in [
        (1, &[1, 1][..], true),
        (5, &[3, 17, 1], false),
        (512, &[420, 128, 96, 64, 32, 3], true),
        (131, &[33, 70, 40, 65, 7], true),
        (700, &[40, 300, 33], false),
    ] {
        let stack = Stack::new(widths, before);
        let x = tensor(3, [rows, widths[0]], 2.0);
        let exact = stack.exact(&x);
        for precision in [Precision::F32, Precision::Bf16, Precision::Tf32] {
            for kernels in CpuKernels::available().into_iter().skip(1) {
                let results = [1, 2, 3].map(|threads| {
                    on(threads, || {
                        kernels.force(|| {
                            let y = stack.at_once(precision, &x).expect("on the CPU");
                            (values(y), values(stack.composed(precision, &x)))
                        })
                    })
                });
                assert!(results.iter().all(|(y, composed)| y == composed), "{kernels:?} {rows}");
                assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{kernels:?} {rows}");
                let square = |sum: f64, (a, e): (&f32, &f64)| sum + (f64::from(*a) - e).powi(2);
                let error = results[0].0.iter().zip(&exact).fold(0.0, square).sqrt();
                let norm = exact.iter().map(|e| e * e).sum::<f64>().sqrt();
                let bound = if precision == Precision::Bf16 { 2e-2 } else { 1e-5 };
                assert!(error <= bound * norm, "{kernels:?} {precision}: {error:e} of {norm:e}");
            }
        }
    }
}

#[test]
fn dense_layers_are_left_to_the_caller_where_they_do_not_run() {
    let stack = Stack::new(&[12, 8, 4], true);
    let x = tensor(1, [60, 12], 1.0);
    assert!(stack.at_once(Precision::F32, &x).is_some());
    assert!(stack.at_once(Precision::F16, &x).is_none());
    assert!(CpuKernels::Composed.force(|| stack.at_once(Precision::F32, &x)).is_none());
    assert!(stack.at_once(Precision::F32, &tensor(1, [0, 12], 1.0)).is_none());
    assert!(Stack { before: None, layers: vec![] }.at_once(Precision::F32, &x).is_none());
    let tracked = Tensor::<2>::from_data(x.to_data(), &Device::flex().autodiff());
    assert!(stack.at_once(Precision::F32, &tracked).is_none());
    // Of few rows, products of large weights are divided among threads by their columns.
    let large = Stack::new(&[400, 500, 3], false);
    for (rows, some) in [(40, false), (300, true)] {
        let y = on(2, || large.at_once(Precision::F32, &tensor(2, [rows, 400], 1.0)).is_some());
        assert_eq!(y, some, "{rows} rows");
    }
}

#[test]
fn nan_spoils_its_own_row_of_dense_layers() {
    let stack = Stack::new(&[12, 8, 4], true);
    let x = tensor(1, [60, 12], 1.0).slice_fill([17..18, 3..4], f32::NAN);
    let y = values(stack.at_once(Precision::F32, &x).expect("on the CPU"));
    for (row, y) in y.chunks(4).enumerate() {
        assert!(y.iter().all(|value| value.is_nan() == (row == 17)), "{row}: {y:?}");
    }
}

#[test]
#[should_panic(expected = "a batch normalisation of 9 channels for rows of 8")]
fn a_normalisation_of_another_width_is_told() {
    let mut stack = Stack::new(&[12, 8, 4], true);
    stack.layers[0].1 = Some((batch_norm(1, 9), true));
    let _ = stack.at_once(Precision::F32, &tensor(1, [60, 12], 1.0));
}

#[test]
fn threads_do_not_change_a_bit() {
    let layer = Layer::new(40, 90);
    let (x, settings) = (tensor(1, [12, 50, 40], 1.0), settings(4, Precision::Bf16));
    let rows = tensor(2, [900, 40], 1.0);
    let results = [1, 2, 3, 4].map(|threads| {
        on(threads, || {
            let y = encoder_layer(&x, None, &layer.parameters(), &settings).expect("on the CPU");
            let [_, _, first, second] = &layer.dense;
            let fed = feed_forward(Precision::F32, &rows, first, Activation::Gelu, second);
            (values(y), values(fed.expect("on the CPU")))
        })
    });
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn nan_spoils_its_own_sample() {
    let layer = Layer::new(16, 24);
    let mut numbers = values(tensor(1, [3, 5, 16], 1.0));
    numbers[5 * 16 + 3] = f32::NAN;
    let x = Tensor::<3>::from_data(TensorData::new(numbers, [3, 5, 16]), &Device::flex());
    for precision in [Precision::F32, Precision::Bf16] {
        let y = on(1, || encoder_layer(&x, None, &layer.parameters(), &settings(2, precision)));
        let y = values(y.expect("on the CPU"));
        for (sample, values) in y.chunks(5 * 16).enumerate() {
            assert!(values.iter().all(|value| value.is_nan() == (sample == 1)), "{sample}");
        }
    }
}

#[test]
#[should_panic(expected = "layer normalisation of")]
fn a_shift_that_is_too_short_is_refused_and_not_read_beyond_its_end() {
    let mut layer = Layer::new(8, 12);
    layer.norms[1].beta = Some(Param::from_tensor(tensor(1, [4], 1.0)));
    let (x, settings) = (tensor(1, [2, 3, 8], 1.0), settings(2, Precision::F32));
    let run = || encoder_layer(&x, None, &layer.parameters(), &settings).is_some();
    assert!(!on(1, run), "left to the operations one by one, which say what does not fit");
    layer.composed(x.clone(), None, &settings);
}

#[test]
fn a_gradient_another_type_or_idle_threads_leave_it_to_the_caller() {
    let layer = Layer::new(8, 12);
    let parameters = layer.parameters();
    let run = |x: &Tensor<3>, precision| {
        encoder_layer(x, None, &parameters, &settings(2, precision)).is_some()
    };
    let x = tensor(1, [2, 3, 8], 1.0);
    on(1, || {
        assert!(run(&x, Precision::F32) && run(&x, Precision::Bf16));
        assert!(!run(&x, Precision::F16));
        let tracked = Tensor::from_inner(x.clone()).require_grad();
        assert!(!run(&tracked, Precision::F32));
        assert!(!run(&Tensor::zeros([0, 3, 8], &Device::flex()), Precision::F32));
        assert!(!CpuKernels::Composed.force(|| run(&x, Precision::F32)));
    });
    assert!(!on(4, || run(&x, Precision::F32)));
}

#[test]
#[should_panic(
    expected = "the input of a feed-forward network is [2, 5] ([rows, width]), but a weight"
)]
fn sizes_must_fit() {
    let (first, second) = (dense(1, 4, 3, true), dense(5, 3, 2, true));
    feed_forward(Precision::F32, &tensor(1, [2, 5], 1.0), &first, Activation::Relu, &second);
}
