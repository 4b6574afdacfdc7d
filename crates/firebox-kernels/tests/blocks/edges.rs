//! What is denormal counts in gradients, and what is no number spoils those that see it and no others.

use burn::tensor::{Device, Tensor, TensorData};
use firebox_core::Precision;
use firebox_kernels::{
    Activation, CpuKernels, FeedForward, conv1d, feed_forward_add, gelu, layer_norm, linear_add,
    max_pool1d,
};

use crate::run::{Operation, layer, noise, numbers, run};
use crate::{across_the_range, as_f64, convolution, gradient, near, of_f32, sums};

/// Denormal numbers of some ten thousand units.
fn denormal(seed: u64, count: usize) -> Vec<f32> {
    noise(seed, count).iter().map(|x| (f64::from(*x) * 1e-40) as f32).collect()
}

#[test]
fn denormal_numbers_count_in_the_gradients_of_convolutions() {
    let [samples, time, channels, output, kernel] = [2, 9, 5, 6, 3];
    let device = Device::flex().autodiff();
    let x = across_the_range(samples * time * channels, 1);
    let weights = across_the_range(output * channels * kernel, 2);
    let dy = across_the_range(samples * time * output, 3);
    let [x64, w64, dy64] = [&x, &weights, &dy].map(|values| as_f64(values));
    let of_x = |at: usize| {
        let (sample, source, from) = (at / (time * channels), at / channels % time, at % channels);
        let places = (0..output * kernel).map(|place| (place / kernel, place % kernel));
        sums(places.filter_map(|(to, tap)| {
            let step = (source + 1).checked_sub(tap).filter(|step| *step < time)?;
            let weight = w64[(to * channels + from) * kernel + tap];
            Some(dy64[(sample * time + step) * output + to] * weight)
        }))
    };
    let of_weight = |at: usize| {
        let (to, from, tap) = (at / (channels * kernel), at / kernel % channels, at % kernel);
        let places = (0..samples * time).map(|place| (place / time, place % time));
        sums(places.filter_map(|(sample, step)| {
            let source = (step + tap).checked_sub(1).filter(|source| *source < time)?;
            let x = x64[(sample * time + source) * channels + from];
            Some(dy64[(sample * time + step) * output + to] * x)
        }))
    };
    let (dx, all_dx): (Vec<f64>, Vec<f64>) = (0..x.len()).map(of_x).unzip();
    let (dw, all_dw): (Vec<f64>, Vec<f64>) = (0..weights.len()).map(of_weight).unzip();
    for kernels in of_f32() {
        kernels.force(|| {
            let tensor = |values: &[f32], shape: [usize; 3]| {
                Tensor::<3>::from_data(TensorData::new(values.to_vec(), shape), &device)
            };
            let layer = convolution(tensor(&weights, [output, channels, kernel]));
            let leaf = tensor(&x, [samples, time, channels]).require_grad();
            let y = conv1d(leaf.clone(), &layer, Precision::F32, None);
            let all = (y * tensor(&dy, [samples, time, output])).sum().backward();
            near(&format!("{kernels:?}, dx"), &numbers(gradient(&leaf, &all)), &dx, &all_dx);
            let found = numbers(gradient(&layer.weight.val(), &all));
            near(&format!("{kernels:?}, dweight"), &found, &dw, &all_dw);
        });
    }
}

#[test]
fn denormal_numbers_count_in_the_gradients_of_layer_normalisation() {
    let [rows, width] = [3, 43];
    let leaves = [noise(1, rows * width), noise(2, width), noise(3, width)];
    let d = denormal(4, rows * width);
    let operation = |leaves: &[Tensor<1>]| {
        let [x, gamma, beta] = [0, 1, 2].map(|at| leaves[at].clone());
        layer_norm(x.reshape([rows, width]), gamma, Some(beta), 1e-5).reshape([rows * width])
    };
    let mut dx = vec![];
    let [mut dgamma, mut dbeta] = [vec![0.0; width], vec![0.0; width]];
    for (x, d) in leaves[0].chunks(width).zip(d.chunks(width)) {
        let (x, d) = (as_f64(x), as_f64(d));
        let mean = x.iter().sum::<f64>() / width as f64;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
        let scale = (variance + 1e-5).sqrt().recip();
        let n: Vec<f64> = x.iter().map(|x| (x - mean) * scale).collect();
        let dn: Vec<f64> = d.iter().zip(&leaves[1]).map(|(d, g)| d * f64::from(*g)).collect();
        let plain = dn.iter().sum::<f64>() / width as f64;
        let weighted = dn.iter().zip(&n).map(|(d, n)| d * n).sum::<f64>() / width as f64;
        for at in 0..width {
            dx.push((dn[at] - plain - n[at] * weighted) * scale);
            dgamma[at] += d[at] * n[at];
            dbeta[at] += d[at];
        }
    }
    for kernels in CpuKernels::available() {
        let found = kernels.force(|| run(&operation, &leaves, &d));
        for (part, exact) in [&dx, &dgamma, &dbeta].into_iter().enumerate() {
            for (found, exact) in found[part + 1].iter().zip(exact) {
                // Some units of the smallest number, of numbers of some ten thousand.
                let error = (f64::from(*found) - exact).abs();
                assert!(error < 64.0 * 2f64.powi(-149), "{kernels:?} {part}: {found:e} {exact:e}");
            }
        }
    }
}

#[test]
fn denormal_numbers_go_back_through_maxima_and_gelu_as_they_are() {
    let [samples, time, width] = [2, 11, 19];
    let x = noise(1, samples * time * width);
    // The windows of three steps before, at and behind each.
    let d = denormal(2, samples * time * width);
    let mut expected = vec![0.0_f32; x.len()];
    for (at, d) in d.iter().enumerate() {
        let (sample, step, channel) = (at / (time * width), at / width % time, at % width);
        let place = |step: usize| (sample * time + step) * width + channel;
        let window = (step.saturating_sub(1)..=(step + 1).min(time - 1)).map(place);
        let most = window.reduce(|most, other| if x[other] > x[most] { other } else { most });
        // The sum of denormal numbers is exact.
        expected[most.expect("a step")] += d;
    }
    let operation = |leaves: &[Tensor<1>]| {
        let x = leaves[0].clone().reshape([samples, time, width]);
        max_pool1d(x, 3, 1, 1).reshape([samples * time * width])
    };
    let leaves = [x];
    for kernels in CpuKernels::available() {
        let found = kernels.force(|| run(&operation, &leaves, &d));
        assert_eq!(found[1], expected, "{kernels:?}");
    }
    // At zero the slope of GELU is a half, and of numbers of an even count of units so is the result.
    let unit = f32::from_bits(1);
    let d: Vec<f32> = [2.0, -2.0, 4.0, 71_362.0, -1e6].map(|units| units * unit).to_vec();
    let half: Vec<f32> = d.iter().map(|d| d / 2.0).collect();
    let operation = |leaves: &[Tensor<1>]| gelu(leaves[0].clone());
    for kernels in CpuKernels::available().into_iter().skip(1) {
        let found = kernels.force(|| run(&operation, &[vec![0.0; 5]], &d));
        assert_eq!(found[1], half, "{kernels:?}");
    }
}

/// Which numbers of a result or a gradient are none, by their place.
type Nan<'a> = &'a dyn Fn(usize) -> bool;

const NONE: Nan<'static> = &|_| false;
const ALL: Nan<'static> = &|_| true;

/// Where NaN is put: into a leaf, or, behind the last of them, into the gradient of the result.
struct Spoilt {
    leaf: usize,
    place: usize,
}

/// Demands NaN in the result and in the gradient of each leaf where it is told, and there alone.
#[track_caller]
fn check(
    name: &str,
    operation: Operation<'_>,
    counts: &[usize],
    results: usize,
    spoilt: &Spoilt,
    expected: &[Nan<'_>],
) {
    let mut numbers: Vec<Vec<f32>> = (0..).zip(counts).map(|(seed, n)| noise(seed, *n)).collect();
    numbers.push(noise(99, results));
    numbers[spoilt.leaf][spoilt.place] = f32::NAN;
    let d = numbers.pop().expect("the gradient of the result");
    for kernels in CpuKernels::available().into_iter().skip(1) {
        let found = kernels.force(|| run(operation, &numbers, &d));
        assert_eq!(found.len(), expected.len(), "{name}");
        for (part, (found, nan)) in found.iter().zip(expected).enumerate() {
            let wrong = (0..found.len()).find(|at| found[*at].is_nan() != nan(*at));
            let Spoilt { leaf, place } = spoilt;
            assert_eq!(wrong, None, "{kernels:?}, {name}, part {part}, by {place} of {leaf}");
        }
    }
}

#[test]
fn nan_in_layer_normalisation() {
    let [rows, width] = [4, 20];
    let operation = |leaves: &[Tensor<1>]| {
        let [x, gamma, beta] = [0, 1, 2].map(|at| leaves[at].clone());
        layer_norm(x.reshape([rows, width]), gamma, Some(beta), 1e-5).reshape([rows * width])
    };
    let (row, column, channel) =
        (|at: usize| at / width == 1, |at: usize| at % width == 5, |at: usize| at == 5);
    let counts = [rows * width, width, width];
    let check = |leaf: usize, place: usize, expected: [Nan<'_>; 4]| {
        let spoilt = Spoilt { leaf, place };
        check("layer normalisation", &operation, &counts, rows * width, &spoilt, &expected);
    };
    check(0, width + 5, [&row, &row, ALL, NONE]);
    check(1, 5, [&column, ALL, NONE, NONE]);
    check(2, 5, [&column, NONE, NONE, NONE]);
    check(3, width + 5, [NONE, &row, &channel, &channel]);
}

#[test]
fn nan_in_gelu() {
    let operation = |leaves: &[Tensor<1>]| gelu(leaves[0].clone());
    let own = |at: usize| at == 21;
    for (leaf, result) in [(0, &own as Nan<'_>), (1, NONE)] {
        check("GELU", &operation, &[37], 37, &Spoilt { leaf, place: 21 }, &[result, &own]);
    }
}

#[test]
fn nan_in_a_linear_layer_and_its_residual_sum() {
    // As large as what AMX multiplies in pieces.
    let [rows, input, output] = [19, 40, 33];
    for precision in [Precision::F32, Precision::Bf16] {
        let operation = |leaves: &[Tensor<1>]| {
            let residual = leaves[0].clone().reshape([rows, output]);
            let x = leaves[1].clone().reshape([rows, input]);
            let layer = layer([&leaves[2], &leaves[3]], [input, output]);
            linear_add(precision, residual, x, &layer, 0.0, None).reshape([rows * output])
        };
        let counts = [rows * output, rows * input, input * output, output];
        let name = format!("linear and residual sum in {precision}");
        let check = |leaf: usize, place: usize, expected: [Nan<'_>; 5]| {
            let spoilt = Spoilt { leaf, place };
            check(&name, &operation, &counts, rows * output, &spoilt, &expected);
        };
        let of_y = |at: usize| at / output == 4;
        let of_x = |at: usize| at / input == 4;
        let (one, column) = (|at: usize| at == 4 * output + 5, |at: usize| at % output == 5);
        let (of_weight, own) = (|at: usize| at / output == 7, |at: usize| at == 5);
        // The residual, the input, the weight, the bias, and what arrives.
        check(0, 4 * output + 5, [&one, NONE, NONE, NONE, NONE]);
        check(1, 4 * input + 7, [&of_y, NONE, NONE, &of_weight, NONE]);
        check(2, 7 * output + 5, [&column, NONE, &|at| at % input == 7, NONE, NONE]);
        check(3, 5, [&column, NONE, NONE, NONE, NONE]);
        check(4, 4 * output + 5, [NONE, &one, &of_x, &column, &own]);
    }
}

#[test]
fn nan_in_a_feed_forward_network() {
    let [rows, width, between] = [19, 33, 40];
    for precision in [Precision::F32, Precision::Bf16] {
        for activation in [Activation::Gelu, Activation::Relu] {
            let operation = |leaves: &[Tensor<1>]| {
                let [residual, x] = [0, 1].map(|at| leaves[at].clone().reshape([rows, width]));
                let first = layer([&leaves[2], &leaves[3]], [width, between]);
                let second = layer([&leaves[4], &leaves[5]], [between, width]);
                let network = FeedForward {
                    precision,
                    first: &first,
                    activation,
                    second: &second,
                    dropout: 0.0,
                    streams: [None; 2],
                };
                feed_forward_add(residual, x, &network).reshape([rows * width])
            };
            let inner = width * between;
            let counts = [rows * width, rows * width, inner, between, inner, width];
            let name = format!("feed-forward network with {activation:?} in {precision}");
            let check = |leaf: usize, place: usize, expected: [Nan<'_>; 7]| {
                let spoilt = Spoilt { leaf, place };
                check(&name, &operation, &counts, rows * width, &spoilt, &expected);
            };
            let row = |at: usize| at / width == 4;
            let (one, column) = (|at: usize| at == 4 * width + 5, |at: usize| at % width == 5);
            let (of_input, own) = (|at: usize| at / between == 7, |at: usize| at == 5);
            check(0, 4 * width + 5, [&one, NONE, NONE, NONE, NONE, NONE, NONE]);
            // What is between becomes NaN in one row. The slope of a rectifier there is 1, that of GELU is NaN.
            match activation {
                Activation::Gelu => {
                    check(1, 4 * width + 7, [&row, NONE, &row, ALL, ALL, ALL, NONE]);
                    check(6, 4 * width + 5, [NONE, &one, &row, ALL, ALL, &column, &own]);
                }
                Activation::Relu => {
                    check(1, 4 * width + 7, [&row, NONE, NONE, &of_input, NONE, ALL, NONE]);
                }
            }
            check(5, 5, [&column, NONE, NONE, NONE, NONE, NONE, NONE]);
        }
    }
}
