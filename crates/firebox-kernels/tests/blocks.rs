//! Convolution, batch normalisation with its epilogue, and pooling against golden files that
//! `golden_blocks.py` wrote with PyTorch.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::{Module, Param};
use burn::nn::PaddingConfig1d;
use burn::nn::conv::Conv1d;
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use firebox_core::Precision;
use firebox_kernels::{BatchNorm, BatchNormConfig, CpuKernels, NormEpilogue, conv1d, max_pool1d};
use safetensors::SafeTensors;
use serde_json::Value;

struct Golden {
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    config: Value,
    bf16: Value,
}

impl Golden {
    fn read(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
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
                for (found, expected) in found.iter().zip(&golden.tensors[name].1) {
                    let close = (found - expected).abs() < 1e-5 * (1.0 + expected.abs());
                    assert!(close || (found.is_nan() && expected.is_nan()), "{name}");
                }
            };
            same("y", y.clone());
            same("result", golden.rest(&norm, y));
            // PyTorch's would be NaN from here on, for good; a step that is skipped must leave no trace.
            assert!(!norm.running_mean.value().is_nan().any().into_scalar::<bool>());
        });
    }
}
