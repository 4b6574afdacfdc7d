//! Convolution, batch normalisation with its epilogue, and pooling against golden files that
//! `golden_blocks.py` wrote with PyTorch; and, with products, at both ends of the range of f32. Linear layers with what
//! follows them, layer normalisation and GELU are in `dense`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod dense;
mod differences;
mod edges;
mod empty;
mod run;

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::{Module, Param};
use burn::nn::conv::Conv1d;
use burn::nn::{Linear, PaddingConfig1d};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    BatchNorm, BatchNormConfig, CpuKernels, NormEpilogue, conv1d, layer_norm, linear, max_pool1d,
};
use safetensors::SafeTensors;
use serde_json::Value;

struct Golden {
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    config: Value,
    bf16: Value,
}

impl Golden {
    fn read(name: &str) -> Self {
        let folder = Path::new("tests/golden");
        let bytes = std::fs::read(folder.join(format!("blocks-{name}.safetensors"))).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = header.metadata().clone().unwrap();
        let json = |key: &str| {
            metadata.get(key).map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
        };
        let tensors = file.tensors().into_iter().map(|(name, view)| {
            let values = view.data().as_chunks::<4>().0.iter();
            let values = values.map(|bytes| f32::from_le_bytes(*bytes)).collect();
            (name, (view.shape().to_vec(), values))
        });
        Self { tensors: tensors.collect(), config: json("config"), bf16: json("bf16") }
    }

    fn size(&self, key: &str) -> usize {
        self.config[key].as_u64().unwrap() as usize
    }

    fn pool(&self) -> [usize; 3] {
        std::array::from_fn(|at| self.config["pool"][at].as_u64().unwrap() as usize)
    }

    fn tensor<const D: usize>(&self, name: &str, device: &Device) -> Tensor<D> {
        let (shape, values) = &self.tensors[name];
        Tensor::from_data(TensorData::new(values.clone(), shape.clone()), device)
    }

    /// ‖found − expected‖ / ‖expected‖
    fn error<const D: usize>(&self, name: &str, found: Tensor<D>) -> f64 {
        let (shape, expected) = &self.tensors[name];
        assert_eq!(found.dims().as_slice(), shape.as_slice(), "{name}");
        let found: Vec<f32> = found.into_data().iter::<f32>().collect();
        let pairs = found.iter().zip(expected).map(|(a, b)| (f64::from(*a), f64::from(*b)));
        let error: f64 = pairs.clone().map(|(a, b)| (a - b).powi(2)).sum();
        let norm: f64 = pairs.map(|(_, b)| b * b).sum();
        (error / norm).sqrt()
    }

    #[track_caller]
    fn check<const D: usize>(&self, name: &str, found: Tensor<D>) {
        let error = self.error(name, found);
        assert!(error < 1e-5, "{name}: relative error {error:.1e}");
    }

    fn conv(&self, device: &Device) -> Conv1d {
        Conv1d {
            weight: Param::from_tensor(self.tensor("conv.weight", device)),
            bias: Some(Param::from_tensor(self.tensor("conv.bias", device))),
            stride: self.size("stride"),
            kernel_size: self.size("kernel"),
            dilation: self.size("dilation"),
            groups: 1,
            padding: PaddingConfig1d::Explicit(self.size("padding"), self.size("padding")),
        }
    }

    fn norm(&self, device: &Device) -> BatchNorm {
        let mut norm = BatchNormConfig::new(self.size("output")).init(device);
        norm.gamma = Param::from_tensor(self.tensor("norm.weight", device));
        norm.beta = Param::from_tensor(self.tensor("norm.bias", device));
        norm
    }

    /// Normalisation, rectifier and maximum; the maximum apart where windows overlap.
    fn rest(&self, norm: &BatchNorm, y: Tensor<3>) -> Tensor<3> {
        let [kernel, stride, padding] = self.pool();
        let epilogue = NormEpilogue { rectify: true, pool: kernel, dropout: 0.0 };
        if kernel == stride && padding == 0 {
            return norm.forward_with(y, epilogue, None);
        }
        let y = norm.forward_with(y, NormEpilogue { pool: 1, ..epilogue }, None);
        max_pool1d(y, kernel, stride, padding)
    }
}

fn gradient<const D: usize>(tensor: &Tensor<D>, all: &Gradients) -> Tensor<D> {
    tensor.grad(all).expect("tracked")
}

/// A convolution with these weights, `[output, input, tap]`, without a shift, over rows padded by one.
fn convolution(weight: Tensor<3>) -> Conv1d {
    Conv1d {
        kernel_size: weight.dims()[2],
        weight: Param::from_tensor(weight),
        bias: None,
        stride: 1,
        dilation: 1,
        groups: 1,
        padding: PaddingConfig1d::Explicit(1, 1),
    }
}

const CASES: [&str; 4] = ["same", "strided", "wide", "valid"];

#[test]
fn training_and_evaluation_agree_with_pytorch() {
    let device = Device::flex().autodiff();
    for name in CASES {
        let golden = Golden::read(name);
        for kernels in CpuKernels::available() {
            kernels.force(|| {
                let (conv, norm) = (golden.conv(&device), golden.norm(&device));
                let x = golden.tensor::<3>("input", &device).require_grad();
                let y = conv1d(x.clone(), &conv, Precision::F32, None);
                golden.check("y", y.clone());
                golden.check("normal", golden.norm(&device).forward(y.clone()));
                let result = golden.rest(&norm, y);
                golden.check("result", result.clone());
                let all = (result * golden.tensor("d", &device)).sum().backward();
                golden.check("grad.input", gradient(&x, &all));
                golden.check("grad.conv.weight", gradient(&conv.weight.val(), &all));
                golden.check("grad.norm.weight", gradient(&norm.gamma.val(), &all));
                golden.check("grad.norm.bias", gradient(&norm.beta.val(), &all));
                // A shift before a normalisation has no influence; what is left is rounding.
                let d_bias = gradient(&conv.bias.as_ref().unwrap().val(), &all);
                assert!(d_bias.abs().max().into_scalar::<f32>() < 1e-4);
                golden.check("running_mean", norm.running_mean.value());
                golden.check("running_var", norm.running_var.value());
                let (conv, norm) = (conv.valid(), norm.valid());
                let y = conv1d(x.inner(), &conv, Precision::F32, None);
                golden.check("eval", golden.rest(&norm, y));
            });
        }
    }
}

#[test]
fn in_bf16_the_convolution_errs_no_more_than_pytorchs() {
    let device = Device::flex().autodiff();
    for name in CASES {
        let golden = Golden::read(name);
        for kernels in CpuKernels::available() {
            kernels.force(|| {
                let conv = golden.conv(&device);
                let x = golden.tensor::<3>("input", &device).require_grad();
                let y = conv1d(x.clone(), &conv, Precision::Bf16, None);
                let all = (y.clone() * golden.tensor("dy", &device)).sum().backward();
                let weight = gradient(&conv.weight.val(), &all);
                let bias = gradient(&conv.bias.as_ref().unwrap().val(), &all);
                for (name, error) in [
                    ("y", golden.error("y", y)),
                    ("grad.x", golden.error("conv only.grad.x", gradient(&x, &all))),
                    ("grad.weight", golden.error("conv only.grad.weight", weight)),
                    ("grad.bias", golden.error("conv only.grad.bias", bias)),
                ] {
                    let theirs = golden.bf16[name].as_f64().unwrap();
                    assert!(
                        theirs > 0.0 && error <= 1.5 * theirs,
                        "{name}: {error:.1e} {theirs:.1e}"
                    );
                }
            });
        }
    }
}

/// Numbers from the smallest to the largest that products of two of them have in f32, with both signs.
fn across_the_range(count: usize, seed: u64) -> Vec<f32> {
    let mut draws = Stream::new(seed, "edges").draws();
    let exponents = [-149, -140, -127, -126, -100, -60, 0, 40];
    let number = |_| {
        let exponent = exponents[draws.below(exponents.len() as u64) as usize];
        let sign = if draws.chance(0.5) { 1.0 } else { -1.0 };
        (sign * (1.0 + f64::from(draws.uniform())) * 2f64.powi(exponent)) as f32
    };
    (0..count).map(number).collect()
}

/// All variants that compute f32 in f32: pieces of AMX have tests of their own.
fn of_f32() -> impl Iterator<Item = CpuKernels> {
    CpuKernels::available().into_iter().filter(|kernels| *kernels == kernels.exact())
}

fn as_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

/// Each number is within some units in the last place of the largest summand, which denormal numbers have, too.
#[track_caller]
fn near(what: &str, found: &[f32], exact: &[f64], summands: &[f64]) {
    for (at, found) in found.iter().enumerate() {
        let (exact, largest) = (exact[at], summands[at]);
        let bound = (largest * 2f64.powi(-20)).max(64.0 * 2f64.powi(-149));
        let error = (f64::from(*found) - exact).abs();
        assert!(error <= bound, "{what} at {at}: {found:e}, not {exact:e}");
    }
}

/// The sum of some numbers, and that of their absolute values.
fn sums(summands: impl Iterator<Item = f64>) -> (f64, f64) {
    summands.fold((0.0, 0.0), |(sum, all), summand| (sum + summand, all + summand.abs()))
}

/// `a · b` in float64 with the sums of the absolute summands, `[rows, inner] · [inner, columns]`.
fn product(a: &[f64], b: &[f64], [rows, inner, columns]: [usize; 3]) -> (Vec<f64>, Vec<f64>) {
    let at = |at: usize| {
        let (row, column) = (at / columns, at % columns);
        sums((0..inner).map(|place| a[row * inner + place] * b[place * columns + column]))
    };
    (0..rows * columns).map(at).unzip()
}

#[test]
fn denormal_numbers_count_in_products_and_their_gradients() {
    let device = Device::flex().autodiff();
    let transposed = |values: &[f64], rows: usize, columns: usize| -> Vec<f64> {
        (0..rows * columns).map(|at| values[at % rows * columns + at / rows]).collect()
    };
    for [rows, input, output] in [[1, 3, 2], [7, 33, 17], [40, 64, 65]] {
        let (x, dy) = (across_the_range(rows * input, 1), across_the_range(rows * output, 2));
        let weight = across_the_range(input * output, 3);
        let [x64, dy64, weight64] = [&x, &dy, &weight].map(|values| as_f64(values));
        let y_exact = product(&x64, &weight64, [rows, input, output]);
        let dx_exact = product(&dy64, &transposed(&weight64, input, output), [rows, output, input]);
        let dw_exact = product(&transposed(&x64, rows, input), &dy64, [input, rows, output]);
        for kernels in of_f32() {
            kernels.force(|| {
                let tensor = |values: &[f32], shape: [usize; 2]| {
                    Tensor::<2>::from_data(TensorData::new(values.to_vec(), shape), &device)
                };
                let x = tensor(&x, [rows, input]).require_grad();
                let weight = Param::from_tensor(tensor(&weight, [input, output]));
                let layer = Linear { weight, bias: None };
                let y = linear(x.clone(), &layer);
                let dy = tensor(&dy, [rows, output]);
                let gradients = (y.clone() * dy).sum().backward();
                let name = format!("{kernels:?} {rows}x{input}x{output}");
                let of = |tensor: Tensor<2>| tensor.into_data().iter::<f32>().collect::<Vec<_>>();
                near(&format!("{name}, y"), &of(y), &y_exact.0, &y_exact.1);
                let dx = of(gradient(&x, &gradients));
                near(&format!("{name}, dx"), &dx, &dx_exact.0, &dx_exact.1);
                let dw = of(gradient(&layer.weight.val(), &gradients));
                near(&format!("{name}, dw"), &dw, &dw_exact.0, &dw_exact.1);
            });
        }
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row_of_a_product() {
    let [rows, input, output] = [19, 40, 33];
    let mut values: Vec<f32> = (0..rows * input).map(|at| (at % 7) as f32 - 3.0).collect();
    let bad = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX];
    for (row, value) in bad.into_iter().enumerate() {
        values[(4 * row + 1) * input + 5] = value;
    }
    let weights: Vec<f32> = (0..input * output).map(|at| 1.0 + (at % 5) as f32).collect();
    let device = Device::flex();
    for kernels in of_f32() {
        let y = kernels.force(|| {
            let x = Tensor::<2>::from_data(TensorData::new(values.clone(), [rows, input]), &device);
            let weight = TensorData::new(weights.clone(), [input, output]);
            let weight = Param::from_tensor(Tensor::<2>::from_data(weight, &device));
            linear(x, &Linear { weight, bias: None }).into_data().iter::<f32>().collect::<Vec<_>>()
        });
        for (row, y) in y.chunks(output).enumerate() {
            let fits = |y: f32| match row {
                1 => y == f32::INFINITY,
                5 => y == f32::NEG_INFINITY,
                9 => y.is_nan(),
                // The largest number times two and more.
                13 => y >= f32::MAX,
                _ => y.is_finite(),
            };
            assert!(y.iter().all(|y| fits(*y)), "{kernels:?}, row {row}: {y:?}");
        }
    }
}

#[test]
fn denormal_numbers_count_in_convolutions_normalisations_and_maxima() {
    let [samples, time, channels, output, kernel] = [2, 9, 5, 6, 3];
    let device = Device::flex();
    let x = across_the_range(samples * time * channels, 1);
    let weights = across_the_range(output * channels * kernel, 2);
    let (x64, w64) = (as_f64(&x), as_f64(&weights));
    let at = |at: usize| {
        let (sample, step, to) = (at / (time * output), at / output % time, at % output);
        let places = (0..channels * kernel).map(|place| (place / kernel, place % kernel));
        sums(places.filter_map(|(from, tap)| {
            let source = (step + tap).checked_sub(1).filter(|source| *source < time)?;
            let weight = w64[(to * channels + from) * kernel + tap];
            Some(x64[(sample * time + source) * channels + from] * weight)
        }))
    };
    let (exact, all): (Vec<f64>, Vec<f64>) = (0..samples * time * output).map(at).unzip();
    // A row of 40 numbers that are far below the ε of a normalisation, and what they come to.
    let row: Vec<f32> = (0..40).map(|at| (at - 20) as f32 * 1e-40).collect();
    let mean = as_f64(&row).iter().sum::<f64>() / 40.0;
    let variance = as_f64(&row).iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 40.0;
    let scale = (variance + 1e-30).sqrt().recip();
    let normal: Vec<f64> = as_f64(&row).iter().map(|x| (x - mean) * scale).collect();
    for kernels in of_f32() {
        kernels.force(|| {
            let of = |y: Tensor<3>| y.into_data().iter::<f32>().collect::<Vec<_>>();
            let tensor = |values: &[f32], shape: [usize; 3]| {
                Tensor::<3>::from_data(TensorData::new(values.to_vec(), shape), &device)
            };
            let x = tensor(&x, [samples, time, channels]);
            let layer = convolution(tensor(&weights, [output, channels, kernel]));
            let y = of(conv1d(x, &layer, Precision::F32, None));
            near(&format!("{kernels:?}, convolution"), &y, &exact, &all);
            let x = tensor(&row, [1, 1, 40]);
            let y = of(layer_norm(x.clone(), Tensor::ones([40], &device), None, 1e-30));
            for (found, exact) in y.iter().zip(&normal) {
                assert!((f64::from(*found) / exact - 1.0).abs() < 1e-4 || exact.abs() < 1e-30);
            }
            let most = of(max_pool1d(x.reshape([1, 40, 1]), 2, 2, 0));
            let expected: Vec<f32> = row.chunks(2).map(|pair| pair[1]).collect();
            assert_eq!(most, expected, "{kernels:?}");
        });
    }
}

#[test]
fn nan_spreads_as_in_pytorch() {
    let golden = Golden::read("nan");
    let device = Device::flex().autodiff();
    for kernels in CpuKernels::available().into_iter().skip(1) {
        kernels.force(|| {
            let (conv, norm) = (golden.conv(&device), golden.norm(&device));
            let y = conv1d(golden.tensor("input", &device), &conv, Precision::F32, None);
            let same = |name: &str, found: Tensor<3>| {
                let found: Vec<f32> = found.into_data().iter::<f32>().collect();
                let expected = &golden.tensors[name].1;
                assert_eq!(found.len(), expected.len(), "{name}");
                for (found, expected) in found.iter().zip(expected) {
                    let close = (found - expected).abs() < 1e-5 * (1.0 + expected.abs());
                    assert!(close || (found.is_nan() && expected.is_nan()), "{name}");
                }
            };
            same("y", y.clone());
            same("normal", golden.norm(&device).forward(y.clone()));
            same("result", golden.rest(&norm, y));
            // PyTorch's would be NaN from here on, for good; a step that is skipped must leave no trace.
            assert!(!norm.running_mean.value().is_nan().any().into_scalar::<bool>());
        });
    }
}
