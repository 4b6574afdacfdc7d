//! The Gaussian error linear unit, alone and before dropout, and the residual sum after dropout: what
//! a Transformer's layers do between their products, each as one operation.

#[cfg(feature = "cube")]
use burn::backend::Dispatch;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex, TensorMetadata};
use burn::tensor::{Tensor, TensorData};
use firebox_core::Stream;

use crate::cpu::{self, Activation, CpuKernels, Mask};
#[cfg(feature = "cube")]
use crate::cube::ResidualOps;
use crate::device::{flex, flex_in_graph, is_flex};
use crate::dropout::{activated_elsewhere, check, dropout, in_place, scale};
#[cfg(feature = "cube")]
use crate::dropout::{device_mask, on_gpu};
use crate::operands::{alike, operand, types};
use crate::profile::kernel_span;

type Primitive = FloatTensor<Flex>;

/// `x · Φ(x)`, with Φ the distribution function of the normal distribution: PyTorch's `F.gelu` as it
/// is by default. Source: Hendrycks and Gimpel, "Gaussian error linear units", 2016.
///
/// On Burn's CPU backend in f32 it is one pass over memory in each direction, within `4e-7 · |x|` of
/// float64, and so it is on a GPU with kernels of this crate, to the rounding of the device. Elsewhere it is
/// Burn's own, whose gradient on other devices than a CPU is that of the approximation by tanh.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    gelu_dropout(x, 0.0, None)
}

/// [`dropout()`] of [`gelu`], in one pass over memory where the CPU kernels or those of a GPU run.
///
/// # Panics
/// If `probability` is not in `[0, 1]`.
#[track_caller]
pub fn gelu_dropout<const D: usize>(
    x: Tensor<D>,
    probability: f64,
    stream: Option<Stream>,
) -> Tensor<D> {
    check(probability, operand("x", &x));
    let fits = is_flex(&x) && x.shape().num_elements() > 0;
    let Some(kernels) = CpuKernels::fused().filter(|_| fits) else {
        return activated_elsewhere(x, Activation::Gelu, probability, stream);
    };
    let mask = mask(probability, stream);
    let count = x.shape().num_elements();
    let _span = kernel_span!("GELU and dropout", [count], 0, 2 * count, false);
    if !x.is_autodiff() {
        let y = in_place(flex(x), |x| cpu::gelu_in_place(kernels, mask, x));
        return Tensor::from_primitive::<Flex>(y);
    }
    let (x, guard) = flex_in_graph(x).into_parts();
    let x = x.to_contiguous();
    let prepared = Bent.prepare::<NoCheckpointing>([guard]).compute_bound().stateful();
    let y = cpu::gelu(kernels, mask, x.storage::<f32>());
    let y = Primitive::from_data(TensorData::new(y, x.shape()));
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => prepared.finish((kernels, mask, x), y),
        OpsKind::UnTracked(prepared) => prepared.finish(y),
    })
}

/// What is dropped, if anything.
pub(crate) fn mask(probability: f64, stream: Option<Stream>) -> Option<Mask> {
    let stream = stream.filter(|_| probability > 0.0);
    stream.map(|stream| Mask::new(probability, scale(probability), stream))
}

#[derive(Debug)]
struct Bent;

impl Backward<Flex, 1> for Bent {
    type State = (CpuKernels, Option<Mask>, Primitive);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<Flex>(&ops.node);
        if let [Some(parent)] = ops.parents {
            let (kernels, mask, x) = ops.state;
            let x = x.storage::<f32>();
            let _span =
                kernel_span!("GELU and dropout, gradients", [x.len()], 0, 3 * x.len(), false);
            let d = in_place(d, |d| cpu::gelu_backward(kernels, mask, x, d));
            grads.register::<Flex>(parent.id, d);
        }
    }
}

/// `x + dropout(y)`, a residual connection, in one pass over memory where the CPU kernels or those of
/// a GPU run. What is dropped is what [`dropout()`] drops of `y`.
///
/// # Shapes
/// - x, y and the result have the same
///
/// # Panics
/// If shapes, types or devices differ, or `probability` is not in `[0, 1]`; the message holds the shapes and types.
#[track_caller]
pub fn dropout_add<const D: usize>(
    x: Tensor<D>,
    y: Tensor<D>,
    probability: f64,
    stream: Option<Stream>,
) -> Tensor<D> {
    check(probability, operand("x", &x));
    alike("a residual sum", [operand("x", &x), operand("y", &y)]);
    assert!(
        x.dims() == y.dims(),
        "the two sides of a residual sum must have the same shape, but x is {:?} and y {:?} ({})",
        x.dims(),
        y.dims(),
        types([operand("x", &x), operand("y", &y)])
    );
    let fits = is_flex(&x) && is_flex(&y) && x.shape().num_elements() > 0;
    let Some(kernels) = CpuKernels::fused().filter(|_| fits) else {
        return added_elsewhere(x, y, probability, stream);
    };
    let mask = mask(probability, stream);
    let add = |x: Primitive, y: Primitive| {
        let x = x.to_contiguous();
        in_place(y, |y| cpu::dropout_add(kernels, mask, x.storage::<f32>(), y))
    };
    if !x.is_autodiff() && !y.is_autodiff() {
        return Tensor::from_primitive::<Flex>(add(flex(x), flex(y)));
    }
    let [(x, x_guard), (y, y_guard)] =
        [flex_in_graph(x), flex_in_graph(y)].map(|tensor| tensor.into_parts());
    let prepared = Summed.prepare::<NoCheckpointing>([x_guard, y_guard]).compute_bound().stateful();
    let sum = add(x, y);
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => prepared.finish((kernels, mask), sum),
        OpsKind::UnTracked(prepared) => prepared.finish(sum),
    })
}

/// Where the CPU kernels do not run: in a GPU kernel, else composed.
#[track_caller]
fn added_elsewhere<const D: usize>(
    x: Tensor<D>,
    y: Tensor<D>,
    probability: f64,
    stream: Option<Stream>,
) -> Tensor<D> {
    // Without a mask the sum is one pass as it is.
    #[cfg(feature = "cube")]
    if let Some(mask) = device_mask(probability, stream).filter(|_| on_gpu(&y)) {
        let (x, y) = (x.into_dispatch(), y.into_dispatch());
        return Tensor::from_dispatch(<Dispatch as ResidualOps>::firebox_dropout_add(x, y, mask));
    }
    x + dropout(y, probability, stream)
}

#[derive(Debug)]
struct Summed;

impl Backward<Flex, 2> for Summed {
    type State = (CpuKernels, Option<Mask>);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<Flex>(&ops.node);
        let (kernels, mask) = ops.state;
        let [x, y] = ops.parents;
        if let Some(y) = y {
            let d = match mask {
                None => d.clone(),
                Some(mask) => {
                    let d = d.to_contiguous();
                    let dy = cpu::dropout_of(kernels, mask, d.storage::<f32>());
                    Primitive::from_data(TensorData::new(dy, d.shape()))
                }
            };
            grads.register::<Flex>(y.id, d);
        }
        if let Some(x) = x {
            grads.register::<Flex>(x.id, d);
        }
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn noise(seed: u64, count: usize) -> Vec<f32> {
        let mut draws = Stream::new(seed, "gelu").draws();
        (0..count).map(|_| 2.0 * draws.normal() as f32).collect()
    }

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().iter::<f32>().collect()
    }

    /// Φ(x) by integrating the density from zero, with Simpson's rule.
    fn distribution(x: f64) -> f64 {
        let density = |x: f64| (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
        let step = x / 400.0;
        let weight = |n: usize| match n {
            0 | 400 => 1.0,
            _ if n % 2 == 1 => 4.0,
            _ => 2.0,
        };
        0.5 + (0..=400).map(|n| weight(n) * density(n as f64 * step)).sum::<f64>() * step / 3.0
    }

    /// What is kept of each element, as `dropout` documents it.
    fn factors(count: usize, probability: f64, stream: Option<Stream>) -> Vec<f64> {
        let Some(stream) = stream else { return vec![1.0; count] };
        let mut draws = stream.draws();
        let keep = |draw: f32| if f64::from(draw) >= probability { 1.0 } else { 0.0 };
        (0..count).map(|_| keep(draws.uniform()) / (1.0 - probability)).collect()
    }

    #[track_caller]
    fn close(found: &[f32], exact: &[f64]) {
        assert_eq!(found.len(), exact.len());
        for (found, exact) in found.iter().zip(exact) {
            let error = (f64::from(*found) - exact).abs();
            assert!(error <= 2e-6 * exact.abs().max(1.0), "{found} is not {exact}");
        }
    }

    #[test]
    fn gelu_agrees_with_float64_forward_and_backward() {
        let device = Device::flex().autodiff();
        for (shape, stream) in [
            ([1, 1], None),
            ([3, 7], Some(Stream::new(1, "dropout"))),
            ([5, 16], None),
            ([70, 1031], Some(Stream::new(2, "dropout"))),
        ] {
            let count = shape[0] * shape[1];
            let (x, d) = (noise(1, count), noise(2, count));
            let keep = factors(count, 0.3, stream);
            let wide = |x: f32| f64::from(x);
            let y: Vec<f64> =
                (0..count).map(|i| keep[i] * wide(x[i]) * distribution(wide(x[i]))).collect();
            let dx: Vec<f64> = (0..count)
                .map(|i| {
                    let x = wide(x[i]);
                    let density = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
                    keep[i] * wide(d[i]) * (distribution(x) + x * density)
                })
                .collect();
            for kernels in CpuKernels::available() {
                kernels.force(|| {
                    let tensor = |data: &[f32]| TensorData::new(data.to_vec(), shape);
                    let x = Tensor::<2>::from_data(tensor(&x), &device).require_grad();
                    let out = gelu_dropout(x.clone(), 0.3, stream);
                    close(&values(out.clone()), &y);
                    let plain = gelu_dropout(x.clone().inner(), 0.3, stream);
                    assert_eq!(values(plain), values(out.clone()));
                    let d = Tensor::<2>::from_data(tensor(&d), &device);
                    let grads = (out * d).sum().backward();
                    close(&values(x.grad(&grads).expect("tracked")), &dx);
                });
            }
        }
    }

    #[test]
    fn gelu_at_its_ends() {
        // The smallest numbers of which f32 has the half.
        let (small, least) = (1e-40, 2.0 * f32::from_bits(1));
        let x =
            [f32::NAN, 0.0, -0.0, 50.0, -50.0, f32::INFINITY, small, -8.0, -small, least, -least];
        for kernels in CpuKernels::available().into_iter().skip(1) {
            let y = kernels.force(|| values(gelu(Tensor::<1>::from_data(x, &Device::flex()))));
            assert!(y[0].is_nan() && y[1] == 0.0 && y[2] == 0.0 && y[3] == 50.0, "{y:?}");
            assert!(y[4] == 0.0 && y[5] == f32::INFINITY, "{y:?}");
            assert!(y[7].abs() < 1e-6, "{y:?}");
            // Φ(0) is a half.
            for (place, x) in [(6, small), (8, -small), (9, least), (10, -least)] {
                assert_eq!(y[place].to_bits(), (0.5 * x).to_bits(), "{kernels:?}: {y:?}");
            }
        }
    }

    #[test]
    fn a_residual_sum_is_the_same_as_both_apart() {
        let device = Device::flex().autodiff();
        for (shape, probability) in [([1, 1], 0.5), ([7, 5], 0.0), ([90, 133], 0.3), ([2, 3], 1.0)]
        {
            for stream in [None, Some(Stream::new(3, "dropout"))] {
                let count = shape[0] * shape[1];
                let tensor = |seed| {
                    let data = TensorData::new(noise(seed, count), shape);
                    Tensor::<2>::from_data(data, &device)
                };
                let run = |kernels: CpuKernels| {
                    kernels.force(|| {
                        let (x, y) = (tensor(1).require_grad(), tensor(2).require_grad());
                        let sum = dropout_add(x.clone(), y.clone(), probability, stream);
                        let grads = (sum.clone() * tensor(3)).sum().backward();
                        [
                            sum,
                            x.grad(&grads).expect("x").autodiff(),
                            y.grad(&grads).expect("y").autodiff(),
                        ]
                        .map(values)
                    })
                };
                let apart = run(CpuKernels::Composed);
                for kernels in CpuKernels::available() {
                    for (ours, theirs) in run(kernels).iter().zip(&apart) {
                        let theirs: Vec<f64> = theirs.iter().map(|v| f64::from(*v)).collect();
                        close(ours, &theirs);
                    }
                }
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let device = Device::flex().autodiff();
        let [x, d] = [4, 6].map(|seed| TensorData::new(noise(seed, 300_300), [300, 1001]));
        let stream = Some(Stream::new(5, "dropout"));
        let run = || {
            let x = Tensor::<2>::from_data(x.clone(), &device).require_grad();
            let bent = gelu_dropout(x.clone(), 0.4, stream);
            let sum = dropout_add(x.clone(), bent, 0.2, stream);
            let d = Tensor::<2>::from_data(d.clone(), &device);
            let grads = (sum.clone() * d).sum().backward();
            [values(sum), values(x.grad(&grads).expect("tracked"))]
        };
        for kernels in CpuKernels::available() {
            let results = [1, 2, 3].map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                pool.expect("a pool").install(|| kernels.force(run))
            });
            assert!(results[0] == results[1] && results[0] == results[2], "{kernels:?}");
        }
    }

    #[test]
    #[should_panic(expected = "the two sides of a residual sum must have the same shape")]
    fn shapes_must_fit() {
        let zeros = |shape| Tensor::<2>::zeros(shape, &Device::flex());
        dropout_add(zeros([2, 3]), zeros([3, 2]), 0.1, None);
    }
}
