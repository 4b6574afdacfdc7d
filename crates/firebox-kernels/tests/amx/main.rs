//! The products of recurrent and linear layers, convolutions and attention in the tiles of AMX, in bf16 and those
//! of recurrent and linear layers in f32, against float64 and beside vectors. On a processor without AMX its
//! instructions are [emulated], one by one, as they stand in the kernels.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
#![allow(unreachable_pub, reason = "nothing outside of this program can name its modules")]

mod disentangled;
mod emulated;
#[path = "../lstm/support/mod.rs"]
mod support;

use burn::nn::conv::Conv1dConfig;
use burn::nn::{Linear, LinearConfig, PaddingConfig1d};
use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    Activation, Attention, AttentionWindow, CpuKernels, GruConfig, LstmConfig, attention, conv1d,
    feed_forward, gelu, linear_in,
};
use support::case::{Case, float, noise, values};
use support::reference::{self, Inputs, Outputs};
use support::relative_error;

/// The widest vectors that this processor has.
fn vectors() -> CpuKernels {
    let mut all = CpuKernels::available().into_iter();
    all.rfind(|kernels| *kernels != CpuKernels::Amx).expect("one")
}

/// How far an output and the gradients of a loss of its squares may be from those by vectors. What differs
/// by the order of sums may be rounded to another number of bf16: one of some ten thousand, by 2^-9.
const BOUNDS: [f64; 3] = [2e-6, 3e-4, 3e-4];

/// The case by some kernels.
fn run(kernels: CpuKernels, case: &Case) -> (Outputs, Inputs) {
    kernels.force(|| case.run(&Device::flex().autodiff()))
}

fn config(input: usize, hidden: usize, layers: usize, bidirectional: bool) -> LstmConfig {
    LstmConfig { layers, bidirectional, ..LstmConfig::new(input, hidden) }
}

/// Errors of every output and gradient against float64.
fn errors(case: &Case, (outputs, grads): &(Outputs, Inputs)) -> Vec<f64> {
    let (expected, mut expected_grads) = reference::run(&case.sizes, &case.inputs, Some(&case.d));
    if !case.state {
        expected_grads.h_0.fill(0.0);
        expected_grads.c_0.fill(0.0);
    }
    let outputs = [
        relative_error(&outputs.output, &expected.output),
        relative_error(&outputs.h_n, &expected.h_n),
        relative_error(&outputs.c_n, &expected.c_n),
    ];
    let parts = grads.parts().into_iter().zip(expected_grads.parts());
    let grads = parts.map(|((_, actual), (_, expected))| relative_error(actual, expected));
    outputs.into_iter().chain(grads).collect()
}

/// Tiles are as exact as vectors, and their results are those of one thread.
#[track_caller]
fn check(config: LstmConfig, lengths: &[usize], time: usize, state: bool) {
    emulated::emulate();
    for precision in [Precision::Bf16, Precision::F32] {
        check_in(precision, config.clone(), lengths, time, state);
    }
}

#[track_caller]
fn check_in(precision: Precision, config: LstmConfig, lengths: &[usize], time: usize, state: bool) {
    let mut case = Case::new(config, lengths, time, 7);
    case.precision = precision;
    let case = if state { case } else { case.without_state() };
    // What is left in memory is not multiplied, not even with zeros.
    let mut other = Case::new(case.config.clone(), lengths, time, 7);
    other.precision = precision;
    other.inputs.input.fill(f64::NAN);
    run(CpuKernels::Amx, &other);
    let tiles = run(CpuKernels::Amx, &case);
    let by_vectors = run(vectors(), &case);
    let (ours, others) = (errors(&case, &tiles), errors(&case, &by_vectors));
    if precision == Precision::F32 {
        // From so many samples and units on.
        let many = lengths.len() >= 32 && case.config.hidden >= 64;
        assert_eq!(tiles.0.output != by_vectors.0.output, many, "multiplied by tiles");
    }
    for (part, (ours, other)) in ours.iter().zip(&others).enumerate() {
        if precision == Precision::F32 {
            let beside = format!("part {part}: {ours:e}, with vectors {other:e}");
            assert!(*ours <= 2.0 * other + 1e-7 && *ours < 1e-6, "{beside}");
            continue;
        }
        assert!(*ours <= 1.1 * other, "part {part}: {ours:e}, with vectors {other:e}");
        // Operands are rounded, and this is no f32.
        assert!((1e-4..2e-2).contains(ours) || *ours == 0.0, "part {part}: {ours:e}");
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
    let alone = pool.install(|| run(CpuKernels::Amx, &case));
    assert!(alone.0.output == tiles.0.output && alone.1.parts() == tiles.1.parts(), "threads");
}

#[test]
fn lstm_of_many_sizes() {
    // Words that are a whole number of groups, more, and fewer; sizes that are no multiple of anything.
    for (input, hidden, batch, time) in [
        (4, 32, 16, 5),
        (64, 64, 32, 3),
        (3, 70, 17, 4),
        (65, 33, 5, 3),
        (40, 128, 1, 6),
        (1, 3, 35, 3),
        // Enough for f32, with inputs of fewer numbers than a group, of just one, and of some more.
        (1, 64, 32, 3),
        (31, 65, 47, 3),
        (32, 79, 33, 3),
        (33, 96, 40, 2),
        (96, 100, 70, 2),
    ] {
        check(config(input, hidden, 1, true), &vec![time; batch], time, true);
    }
}

#[test]
fn lstm_in_layers_from_zeros_and_with_lengths() {
    check(config(5, 40, 2, true), &[6; 20], 6, false);
    check(
        config(70, 48, 2, false),
        &[7, 3, 0, 1, 6, 7, 2, 7, 7, 7, 5, 5, 4, 7, 7, 1, 7, 6],
        7,
        true,
    );
    check(config(4, 64, 1, true), &[9, 2, 1], 12, false);
    // Tiles of 32 samples, and one of twelve.
    let lengths: Vec<usize> = (0..300).map(|sample| sample * 7 % 4).collect();
    check(config(20, 40, 1, true), &lengths, 3, true);
    check(config(20, 66, 2, true), &lengths, 3, false);
    // So many rows that the gradient of the weights is brought up to date more than once.
    check(config(8, 32, 1, false), &[40; 16], 40, true);
    check(config(8, 32, 1, false), &[40; 9], 40, false);
    check(config(40, 64, 1, false), &[12; 36], 12, true);
}

#[test]
fn what_is_not_a_number_reaches_its_own_sample_of_a_layer_in_f32() {
    emulated::emulate();
    let lengths: Vec<usize> = (0..40).map(|sample| 4 - sample % 3).collect();
    let make = || Case::new(config(36, 64, 1, true), &lengths, 4, 3);
    let (mut case, mut padded) = (make(), make());
    let width = 2 * 64;
    // A value of the first sample; and what lies behind the others' ends.
    case.inputs.input[40] = f64::NAN;
    for (sample, length) in lengths.iter().enumerate() {
        padded.inputs.input[(sample * 4 + length) * 36..(sample + 1) * 4 * 36].fill(f64::NAN);
    }
    let [clean, spoiled, padded] = [make(), case, padded].map(|case| run(CpuKernels::Amx, &case).0);
    assert!(clean.output == padded.output && clean.h_n == padded.h_n);
    let samples = |outputs: &Outputs| {
        outputs.output.chunks(4 * width).map(<[f64]>::to_vec).collect::<Vec<_>>()
    };
    let (clean, spoiled) = (samples(&clean), samples(&spoiled));
    assert!(clean[1..] == spoiled[1..]);
    assert!(spoiled[0].iter().any(|value| value.is_nan()));
}

#[test]
fn gru() {
    emulated::emulate();
    let device = Device::flex().autodiff();
    let config = GruConfig { bidirectional: true, layers: 2, ..GruConfig::new(6, 72) };
    let module = config.init(Stream::new(1, "gru"), &device);
    let x = float(&noise(Stream::new(2, "gru"), 35 * 7 * 6, 1.0), [35, 7, 6], &device);
    // A state on the border between two numbers of bf16 is rounded either way.
    for (precision, bound) in [(Precision::Bf16, 1e-3), (Precision::F32, 2e-6)] {
        let run = |kernels: CpuKernels| {
            kernels.force(|| {
                let x = x.clone().require_grad();
                let module = module.clone().in_precision(precision);
                let (output, last) = module.forward(x.clone(), None, None, None);
                let grads = (output.clone().powi_scalar(2).sum() + last.sum()).backward();
                [values(output), values(x.grad(&grads).expect("a gradient"))]
            })
        };
        for (tiles, vectors) in run(CpuKernels::Amx).iter().zip(&run(vectors())) {
            let error = relative_error(tiles, vectors);
            assert!(error < bound, "{precision}: {error:e}");
        }
    }
}

/// The number as an operand of bf16.
fn rounded(x: f64) -> f64 {
    let bits = (x as f32).to_bits();
    f64::from(f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000))
}

#[test]
fn linear_layers() {
    emulated::emulate();
    let device = Device::flex().autodiff();
    for (seed, (rows, input, output)) in [
        (48, 64, 64),
        (7, 31, 5),
        (100, 300, 70),
        (17, 33, 16),
        (1, 257, 90),
        (200, 40, 130),
        // Several chunks of each of the three products, with edges.
        (600, 70, 130),
        (70, 600, 40),
        (40, 70, 530),
        // Rows of the result that lie whole pages apart, with little and with nothing left for vectors at the end.
        (40, 260, 1024),
        (33, 285, 2048),
        (40, 528, 1024),
        (260, 70, 1024),
    ]
    .into_iter()
    .enumerate()
    {
        let stream = Stream::new(seed as u64, "linear");
        let numbers = noise(stream, rows * input, 1.0);
        let layer = LinearConfig::new(input, output).init(&device);
        let run = |kernels: CpuKernels| {
            kernels.force(|| {
                let x = float(&numbers, [rows, input], &device).require_grad();
                let y = linear_in(Precision::Bf16, x.clone(), &layer);
                let grads = y.clone().powi_scalar(2).sum().backward();
                let of = |tensor: Option<Tensor<2>>| values(tensor.expect("a gradient"));
                [values(y), of(x.grad(&grads)), of(layer.weight.val().grad(&grads))]
            })
        };
        // What is left in memory is not read.
        let spoilt = float(&vec![f64::NAN; rows * input], [rows, input], &device);
        CpuKernels::Amx.force(|| drop(values(linear_in(Precision::Bf16, spoilt, &layer))));
        let tiles = run(CpuKernels::Amx);
        let (weight, bias) = (values(layer.weight.val()), layer.bias.clone().expect("a bias"));
        let bias = values(bias.val());
        let exact: Vec<f64> = (0..rows * output)
            .map(|at| {
                let (row, column) = (at / output, at % output);
                let products = (0..input).map(|k| {
                    rounded(numbers[row * input + k]) * rounded(weight[k * output + column])
                });
                bias[column] + products.sum::<f64>()
            })
            .collect();
        let error = relative_error(&tiles[0], &exact);
        assert!(error < 1e-6, "{rows} × {input} × {output}: {error:e}");
        for (part, (tiles, vectors)) in tiles.iter().zip(&run(vectors())).enumerate() {
            let error = relative_error(tiles, vectors);
            assert!(error < BOUNDS[part], "{rows} × {input} × {output}, part {part}: {error:e}");
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().expect("threads");
        assert_eq!(pool.install(|| run(CpuKernels::Amx)), tiles);
    }
}

/// A linear layer forward and back in f32: its result, and the gradients of input and weight of half the sum of
/// squares.
fn in_f32(kernels: CpuKernels, x: &Tensor<2>, layer: &Linear) -> [Vec<f64>; 3] {
    kernels.force(|| {
        let x = x.clone().require_grad();
        let y = linear_in(Precision::F32, x.clone(), layer);
        let grads = (y.clone().powi_scalar(2) * 0.5).sum().backward();
        let of = |tensor: Option<Tensor<2>>| values(tensor.expect("a gradient"));
        [values(y), of(x.grad(&grads)), of(layer.weight.val().grad(&grads))]
    })
}

#[test]
fn linear_layers_in_f32_are_as_exact_as_by_vectors() {
    emulated::emulate();
    let device = Device::flex().autodiff();
    // Sizes from the fewest that are multiplied in tiles; several chunks, panels and rectangles, rows that lie whole
    // pages apart, and edges of all.
    for (seed, ([rows, input, output], scale)) in [
        ([16, 32, 32], 1.0),
        ([17, 33, 47], 1e6),
        ([100, 300, 70], 1e-12),
        ([48, 64, 64], 1.0),
        ([53, 95, 129], 1e15),
        ([530, 70, 1024], 1.0),
        ([40, 530, 100], 1e-15),
        ([33, 2049, 33], 1.0),
    ]
    .into_iter()
    .enumerate()
    {
        let stream = Stream::new(seed as u64, "linear in f32");
        let numbers = noise(stream, rows * input, scale);
        // Beside numbers far from 1 it would be all that is left, or nothing.
        let config = LinearConfig::new(input, output).with_bias(scale == 1.0);
        let layer = config.init(&device);
        // What is left in memory is not read.
        let spoilt = float(&vec![f64::NAN; rows * input], [rows, input], &device);
        drop(in_f32(CpuKernels::Amx, &spoilt, &layer));
        let x = float(&numbers, [rows, input], &device);
        let tiles = in_f32(CpuKernels::Amx, &x, &layer);
        let (x, weight) = (values(x), values(layer.weight.val()));
        let bias = layer.bias.as_ref().map_or(vec![0.0; output], |bias| values(bias.val()));
        let product = |sizes: [usize; 3],
                       a: &dyn Fn(usize, usize) -> f64,
                       b: &dyn Fn(usize, usize) -> f64| {
            let [rows, inner, columns] = sizes;
            let at = |at: usize| {
                let (row, column) = (at / columns, at % columns);
                (0..inner).map(|k| a(row, k) * b(k, column)).sum::<f64>()
            };
            (0..rows * columns).map(at).collect::<Vec<f64>>()
        };
        let mut y = product([rows, input, output], &|m, k| x[m * input + k], &|k, n| {
            weight[k * output + n]
        });
        y.iter_mut().enumerate().for_each(|(at, y)| *y += bias[at % output]);
        let dx = product([rows, output, input], &|m, k| y[m * output + k], &|k, n| {
            weight[n * output + k]
        });
        let dw =
            product([input, rows, output], &|m, k| x[k * input + m], &|k, n| y[k * output + n]);
        for (part, (tiles, exact)) in tiles.iter().zip([y, dx, dw]).enumerate() {
            let error = relative_error(tiles, &exact);
            assert!(error < 1e-6, "{rows} × {input} × {output}, part {part}: {error:e}");
        }
        // No vectors: those take their sums in another order.
        let x = float(&numbers, [rows, input], &device);
        let other = in_f32(vectors(), &x, &layer);
        assert!(tiles[0] != other[0], "{rows} × {input} × {output}: no tiles");
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().expect("threads");
        let again = pool.install(|| in_f32(CpuKernels::Amx, &x, &layer));
        assert!(again == tiles, "{rows} × {input} × {output}: threads");
    }
}

#[test]
fn numbers_that_lose_most_by_cutting_lose_little() {
    emulated::emulate();
    let device = Device::flex();
    // All pieces but the first are as large as they can be, and all errors point the same way.
    let number = 1.0 + 2f64.powi(-7) - 2f64.powi(-23);
    let mut layer = LinearConfig::new(200, 40).with_bias(false).init(&device);
    let weight = float(&vec![number; 200 * 40], [200, 40], &device);
    layer.weight = layer.weight.map(|_| weight.clone());
    let x = float(&vec![-number; 50 * 200], [50, 200], &device);
    let y = CpuKernels::Amx.force(|| values(linear_in(Precision::F32, x, &layer)));
    let exact = vec![-200.0 * number * number; 50 * 40];
    let error = relative_error(&y, &exact);
    assert!(error < 6e-7, "{error:e}");
    // Small ones keep their bits down to 2^-103, and below 2^-126 count as zero.
    for (exponent, bound) in [(-100, 6e-7), (-120, 2f64.powi(-7)), (-135, 1.0)] {
        let scale = 2f64.powi(exponent);
        let x = float(&vec![-number * scale; 50 * 200], [50, 200], &device);
        let large = weight.clone() * 2f64.powi(100);
        layer.weight = layer.weight.map(|_| large.clone());
        let y = CpuKernels::Amx.force(|| values(linear_in(Precision::F32, x, &layer)));
        let exact: Vec<f64> = exact.iter().map(|y| y * scale * 2f64.powi(100)).collect();
        let error = relative_error(&y, &exact);
        assert!(error <= bound, "2^{exponent}: {error:e}");
    }
}

#[test]
fn what_is_not_finite_in_f32_reaches_its_row_alone() {
    emulated::emulate();
    let device = Device::flex();
    let layer = LinearConfig::new(80, 70).init(&device);
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let mut numbers = noise(Stream::new(4, "not finite"), 40 * 80, 1.0);
        numbers[5 * 80 + 77] = value;
        let x = float(&numbers, [40, 80], &device);
        let y = CpuKernels::Amx.force(|| values(linear_in(Precision::F32, x, &layer)));
        for (row, y) in y.chunks(70).enumerate() {
            assert!(y.iter().all(|y| y.is_finite() == (row != 5)), "{value} in row {row}");
        }
    }
}

#[test]
fn a_network_as_one_operation_has_the_bits_of_its_parts() {
    emulated::emulate();
    let device = Device::flex();
    // Without these vectors, `gelu` is computed by others than what stands between two layers.
    let are_alike = CpuKernels::available().contains(&CpuKernels::Avx512Bf16);
    // In f32, both layers in tiles, the first alone, the second alone, and none.
    for ((input, between, output), activation) in [
        ((300, 140, 33), Activation::Gelu),
        ((64, 64, 8), Activation::Relu),
        ((7, 100, 45), Activation::Gelu),
        ((40, 40, 40), Activation::Relu),
        ((20, 24, 31), Activation::Gelu),
    ] {
        let layers = [(input, between), (between, output)];
        let [first, second] =
            layers.map(|(input, output)| LinearConfig::new(input, output).init(&device));
        let x = noise(Stream::new(3, "network"), 53 * input, 1.0);
        let x = float(&x, [53, input], &device);
        for precision in [Precision::Bf16, Precision::F32] {
            CpuKernels::Amx.force(|| {
                let whole = feed_forward(precision, &x, &first, activation, &second);
                let between = linear_in(precision, x.clone(), &first);
                let between = match activation {
                    Activation::Gelu => gelu(between),
                    Activation::Relu => between.clamp_min(0.0),
                };
                let parts = linear_in(precision, between, &second);
                let (whole, parts) = (values(whole.expect("one operation")), values(parts));
                if are_alike || activation == Activation::Relu {
                    assert_eq!(whole, parts, "{precision}");
                    return;
                }
                let bound = if precision == Precision::F32 { 1e-5 } else { 1e-2 };
                let mut both = whole.iter().zip(&parts);
                assert!(both.all(|(whole, part)| (whole - part).abs() < bound), "{precision}");
            });
        }
    }
}

#[test]
fn a_column_is_summed_in_one_order_wherever_it_lies() {
    emulated::emulate();
    let device = Device::flex();
    // Several chunks; the last columns of a part are an edge, and in the whole they are not.
    let (rows, inner, width) = (20, 530, 92);
    let whole = LinearConfig::new(inner, 3 * width).init(&device);
    let part = |index: usize| {
        let mut part = LinearConfig::new(inner, width).with_bias(index > 0).init(&device);
        part.weight = part.weight.map(|_| whole.weight.val().narrow(1, index * width, width));
        let bias = whole.bias.as_ref().expect("a bias").val();
        part.bias = part.bias.map(|b| b.map(|_| bias.clone().narrow(0, index * width, width)));
        part
    };
    let x = noise(Stream::new(3, "columns"), rows * inner, 1.0);
    let x = float(&x, [rows, inner], &device);
    CpuKernels::Amx.force(|| {
        let all = linear_in(Precision::Bf16, x.clone(), &whole);
        for index in 1..3 {
            let own = linear_in(Precision::Bf16, x.clone(), &part(index));
            assert_eq!(values(own), values(all.clone().narrow(1, index * width, width)), "{index}");
        }
        // Without a bias.
        let (own, mut plain) = (linear_in(Precision::Bf16, x.clone(), &part(0)), whole.clone());
        plain.bias = None;
        let all = linear_in(Precision::Bf16, x.clone(), &plain);
        assert_eq!(values(own), values(all.narrow(1, 0, width)));
    });
}

#[test]
fn convolutions() {
    emulated::emulate();
    let device = Device::flex().autodiff();
    // Batch, time, channels in and out, kernel, stride, padding, dilation.
    for sizes in [
        [3, 150, 64, 64, 3, 1, 1, 1],
        [2, 300, 40, 50, 5, 1, 2, 2],
        [4, 45, 70, 33, 3, 2, 0, 1],
        [9, 7, 33, 17, 3, 1, 1, 1],
        [2, 131, 4, 16, 8, 1, 0, 1],
        [2, 150, 64, 40, 3, 1, 2, 2],
        [2, 40, 64, 33, 1, 1, 0, 1],
    ] {
        let [batch, time, input, output, kernel, stride, padding, dilation] = sizes;
        let x = noise(Stream::new(5, "conv"), batch * time * input, 1.0);
        let layer = Conv1dConfig::new(input, output, kernel)
            .with_stride(stride)
            .with_padding(PaddingConfig1d::Explicit(padding, padding))
            .with_dilation(dilation)
            .init(&device);
        let run_on = |kernels: CpuKernels, x: &[f64]| {
            kernels.force(|| {
                let x = float(x, [batch, time, input], &device).require_grad();
                let y = conv1d(x.clone(), &layer, Precision::Bf16, None);
                let grads = y.clone().powi_scalar(2).sum().backward();
                let of = |tensor: Option<Tensor<3>>| values(tensor.expect("a gradient"));
                [values(y), of(x.grad(&grads)), of(layer.weight.val().grad(&grads))]
            })
        };
        let run = |kernels: CpuKernels| run_on(kernels, &x);
        // What is left in memory is not multiplied, not even with zeros.
        run_on(CpuKernels::Amx, &vec![f64::NAN; x.len()]);
        let tiles = run(CpuKernels::Amx);
        for (part, (tiles, vectors)) in tiles.iter().zip(&run(vectors())).enumerate() {
            // Sums in another order; few steps, or steps apart, are left to vectors in the weight's gradient.
            let error = relative_error(tiles, vectors);
            assert!(error < BOUNDS[part], "{sizes:?}, part {part}: {error:e}");
            assert!(part == 2 || error > 0.0, "{sizes:?}, part {part}: no tiles");
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().expect("threads");
        assert_eq!(pool.install(|| run(CpuKernels::Amx)), tiles);
    }
}

#[test]
fn attention_of_many_sizes() {
    emulated::emulate();
    let device = Device::flex().autodiff();
    // Batch, queries, keys, heads, size; whether no query sees later keys, and what is dropped.
    for (seed, ([batch, queries, keys, heads, size], causal, dropout, window)) in [
        ([2, 105, 105, 2, 16], false, 0.2, None),
        ([3, 64, 64, 1, 64], false, 0.0, None),
        ([1, 1, 1, 2, 3], false, 0.0, None),
        ([2, 33, 150, 1, 40], false, 0.1, None),
        ([1, 130, 130, 2, 8], true, 0.0, None),
        ([2, 70, 7, 1, 80], false, 0.0, None),
        ([1, 17, 17, 3, 33], true, 0.3, None),
        ([3, 65, 128, 1, 24], true, 0.1, None),
        ([2, 300, 300, 1, 24], false, 0.1, Some((37, 1))),
        ([1, 260, 260, 2, 40], true, 0.0, Some((70, 3))),
        ([2, 200, 150, 1, 16], false, 0.0, Some((3, 0))),
        ([1, 500, 500, 1, 64], false, 0.2, Some((0, 1))),
    ]
    .into_iter()
    .enumerate()
    {
        let (stream, width) = (Stream::new(seed as u64, "attention"), heads * size);
        let inputs: Vec<_> = [queries, keys, keys, queries]
            .iter()
            .zip(0..)
            .map(|(rows, part)| noise(stream.substream(part), batch * rows * width, 1.0))
            .collect();
        let window = window.map(|(reach, global)| AttentionWindow { reach, global });
        let settings = Attention {
            causal,
            dropout,
            window,
            precision: Precision::Bf16,
            ..Attention::new(heads)
        };
        // Every other case has none but short samples, so that buffers keep what longer ones left.
        let short = seed % 2 * (keys / 4);
        let lengths: Vec<_> = (0..batch).map(|sample| keys - short - sample * keys / 4).collect();
        let run_on = |kernels: CpuKernels, inputs: &[Vec<f64>], lengths: Option<&[usize]>| {
            kernels.force(|| {
                let [q, k, v, d] = [queries, keys, keys, queries].map(|rows| [batch, rows, width]);
                let x = |part: usize, shape| float(&inputs[part], shape, &device);
                let [q, k, v] = [x(0, q), x(1, k), x(2, v)].map(Tensor::require_grad);
                let dropout = (dropout > 0.0).then_some(stream);
                let [a, b, c] = [&q, &k, &v].map(Tensor::clone);
                let out = attention(a, b, c, None, lengths, dropout, &settings);
                let grads = (out.clone() * x(3, d)).sum().backward();
                let of = |x: Tensor<3>| values(x.grad(&grads).expect("a gradient"));
                [values(out), of(q), of(k), of(v)]
            })
        };
        let run = |kernels: CpuKernels| run_on(kernels, &inputs, Some(&lengths));
        // What is left in memory is not multiplied, not even with zeros.
        let nothing: Vec<_> = inputs.iter().map(|part| vec![f64::NAN; part.len()]).collect();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
        let tiles = pool.install(|| {
            run_on(CpuKernels::Amx, &nothing, None);
            run(CpuKernels::Amx)
        });
        for (part, (tiles, vectors)) in tiles.iter().zip(&run(vectors())).enumerate() {
            // Of one key alone scores have no slope: two sums of the same products in two orders.
            if keys == 1 && (part == 1 || part == 2) {
                assert!(tiles.iter().chain(vectors).all(|d| d.abs() < 1e-5), "part {part}");
                continue;
            }
            // Sums in another order, of which some are rounded to another number of bf16.
            let error = relative_error(tiles, vectors);
            assert!(error < 2e-3, "case {seed}, part {part}: {error:e}");
            assert!(seed > 0 || error > 0.0, "part {part}: no tiles");
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().expect("threads");
        assert_eq!(pool.install(|| run(CpuKernels::Amx)), tiles, "case {seed}");
    }
}

#[test]
fn nan_reaches_its_row_alone() {
    emulated::emulate();
    let device = Device::flex();
    let mut numbers = noise(Stream::new(4, "nan"), 40 * 50, 1.0);
    numbers[5 * 50 + 7] = f64::NAN;
    let layer = LinearConfig::new(50, 20).init(&device);
    let y = CpuKernels::Amx
        .force(|| linear_in(Precision::Bf16, float(&numbers, [40, 50], &device), &layer));
    for (row, values) in values(y).chunks(20).enumerate() {
        assert!(values.iter().all(|value| value.is_nan() == (row == 5)), "row {row}");
    }
}
