//! Inverted dropout whose mask is a function of a [`Stream`] and nothing else, alone and after a
//! rectifier.

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
use crate::cube::{ActivationOps, ActivationSettings, DeviceMask, DropoutOps};
#[cfg(feature = "cube")]
use crate::cuts::GpuKernels;
use crate::device::{constant_like, flex, flex_in_graph, is_flex};
use crate::operands::{Operand, operand};
use crate::profile::kernel_span;

/// Sets each element to zero with this `probability` and divides the others by `1 - probability`.
///
/// Element `i`, in row-major order, is kept if word `i` of the stream's
/// [`fill_uniform`](Stream::fill_uniform) is at least `probability`: the same on every device.
/// Without a stream, or with probability 0, `x` comes back untouched. NaN stays NaN.
///
/// # Panics
/// If `probability` is not in `[0, 1]`.
#[track_caller]
pub fn dropout<const D: usize>(
    x: Tensor<D>,
    probability: f64,
    stream: Option<Stream>,
) -> Tensor<D> {
    check(probability, operand("x", &x));
    let Some(stream) = stream.filter(|_| probability > 0.0 && x.shape().num_elements() > 0) else {
        return x;
    };
    match CpuKernels::fused().filter(|_| is_flex(&x)) {
        Some(kernels) => fused(kernels, x, Mask::new(probability, scale(probability), stream)),
        None => elsewhere(x, probability, stream),
    }
}

#[track_caller]
pub(crate) fn check(probability: f64, x: Operand<'_>) {
    assert!(
        (0.0..=1.0).contains(&probability),
        "dropout probability {probability} is not between 0 and 1 (of {x})"
    );
}

/// Where the CPU kernels do not run: in a GPU kernel, else composed.
fn elsewhere<const D: usize>(x: Tensor<D>, probability: f64, stream: Stream) -> Tensor<D> {
    #[cfg(feature = "cube")]
    if on_gpu(&x) {
        let mask = DeviceMask::new(probability, scale(probability), stream);
        let dropped = <Dispatch as DropoutOps>::firebox_dropout(x.into_dispatch(), mask);
        return Tensor::from_dispatch(dropped);
    }
    composed(x, probability, stream)
}

/// Whether the kernels of a GPU that draw masks take this tensor.
#[cfg(feature = "cube")]
pub(crate) fn on_gpu<const D: usize>(x: &Tensor<D>) -> bool {
    (1..=u32::MAX as usize).contains(&x.shape().num_elements())
        && GpuKernels::takes(&x.device(), x.dtype()).is_ok()
}

/// What is dropped on a GPU, if anything.
#[cfg(feature = "cube")]
pub(crate) fn device_mask(probability: f64, stream: Option<Stream>) -> Option<DeviceMask> {
    let stream = stream.filter(|_| probability > 0.0);
    stream.map(|stream| DeviceMask::new(probability, scale(probability), stream))
}

/// [`dropout`] of an activation where the CPU kernels do not run: in a GPU kernel, else composed.
#[track_caller]
pub(crate) fn activated_elsewhere<const D: usize>(
    x: Tensor<D>,
    activation: Activation,
    probability: f64,
    stream: Option<Stream>,
) -> Tensor<D> {
    // Burn's activations on a GPU may not take a tensor without elements.
    #[cfg(feature = "cube")]
    if x.shape().num_elements() == 0 {
        return x;
    }
    #[cfg(feature = "cube")]
    let mask = device_mask(probability, stream);
    // Burn's fusion joins a rectifier with the sum before it, as it does a sum without a mask.
    #[cfg(feature = "cube")]
    let joined = cfg!(feature = "fusion") && activation == Activation::Relu && mask.is_none();
    #[cfg(feature = "cube")]
    if !joined && on_gpu(&x) {
        let settings = ActivationSettings { activation, mask };
        let y = <Dispatch as ActivationOps>::firebox_activate(x.into_dispatch(), settings);
        return Tensor::from_dispatch(y);
    }
    let y = match activation {
        Activation::Gelu => burn::tensor::activation::gelu(x),
        Activation::Relu => burn::tensor::activation::relu(x),
    };
    dropout(y, probability, stream)
}

/// [`dropout`] of `max(x, 0)`, in one pass over memory where the CPU kernels or those of a GPU run.
///
/// # Panics
/// If `probability` is not in `[0, 1]`.
#[track_caller]
pub fn relu_dropout<const D: usize>(
    x: Tensor<D>,
    probability: f64,
    stream: Option<Stream>,
) -> Tensor<D> {
    check(probability, operand("x", &x));
    let Some(kernels) = CpuKernels::fused().filter(|_| is_flex(&x)) else {
        return activated_elsewhere(x, Activation::Relu, probability, stream);
    };
    let mask = stream.filter(|_| probability > 0.0);
    let mask = mask.map(|stream| Mask::new(probability, scale(probability), stream));
    let rectify = |x| {
        in_place(x, |values| {
            let count = values.len();
            let _span = kernel_span!("rectifier and dropout", [count], 0, 2 * count, false);
            cpu::relu(kernels, mask, values);
        })
    };
    if !x.is_autodiff() {
        return Tensor::from_primitive::<Flex>(rectify(flex(x)));
    }
    let (x, guard) = flex_in_graph(x).into_parts();
    let prepared = Rectified.prepare::<NoCheckpointing>([guard]).compute_bound().stateful();
    let y = rectify(x);
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => prepared.finish((mask, y.clone()), y),
        OpsKind::UnTracked(prepared) => prepared.finish(y),
    })
}

/// Changes a tensor's values where they are if nobody else holds them, else in a copy.
pub(crate) fn in_place(
    mut x: FloatTensor<Flex>,
    change: impl FnOnce(&mut [f32]),
) -> FloatTensor<Flex> {
    if x.is_contiguous() && x.layout().start_offset() == 0 {
        let count = x.shape().num_elements();
        if let Some(values) = x.try_storage_mut::<f32>()
            && values.len() == count
        {
            change(values);
            return x;
        }
    }
    let x = x.to_contiguous();
    let mut values = cpu::copy(&x.storage::<f32>()[..x.shape().num_elements()]);
    change(&mut values);
    FloatTensor::<Flex>::from_data(TensorData::new(values, x.shape()))
}

/// The factor of the elements that are kept; those that are dropped have the factor 0.
pub(crate) fn scale(probability: f64) -> f32 {
    (1.0 / (1.0 - probability)) as f32
}

/// The mask is made on the host and multiplied on the device.
fn composed<const D: usize>(x: Tensor<D>, probability: f64, stream: Stream) -> Tensor<D> {
    let mut mask = vec![0.0; x.shape().num_elements()];
    stream.fill_uniform(0, &mut mask);
    let scale = scale(probability);
    for value in &mut mask {
        *value = if f64::from(*value) >= probability { scale } else { 0.0 };
    }
    let mask = constant_like(&x, TensorData::new(mask, x.shape()));
    x * mask
}

/// On the CPU the mask is never stored: it is drawn again for the gradient.
fn fused<const D: usize>(kernels: CpuKernels, x: Tensor<D>, mask: Mask) -> Tensor<D> {
    if !x.is_autodiff() {
        return Tensor::from_primitive::<Flex>(apply(kernels, flex(x), mask));
    }
    let (x, guard) = flex_in_graph(x).into_parts();
    let prepared = Dropped.prepare::<NoCheckpointing>([guard]).compute_bound().stateful();
    let y = apply(kernels, x, mask);
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => prepared.finish((kernels, mask), y),
        OpsKind::UnTracked(prepared) => prepared.finish(y),
    })
}

/// Multiplies by the mask.
fn apply(kernels: CpuKernels, x: FloatTensor<Flex>, mask: Mask) -> FloatTensor<Flex> {
    in_place(x, |values| cpu::dropout(kernels, mask, values))
}

#[derive(Debug)]
struct Dropped;

impl Backward<Flex, 1> for Dropped {
    type State = (CpuKernels, Mask);

    fn backward(
        self,
        ops: Ops<(CpuKernels, Mask), 1>,
        grads: &mut Gradients,
        _: &mut Checkpointer,
    ) {
        let d = grads.consume::<Flex>(&ops.node);
        if let [Some(x)] = ops.parents {
            let (kernels, mask) = ops.state;
            grads.register::<Flex>(x.id, apply(kernels, d, mask));
        }
    }
}

#[derive(Debug)]
struct Rectified;

impl Backward<Flex, 1> for Rectified {
    type State = (Option<Mask>, FloatTensor<Flex>);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<Flex>(&ops.node);
        if let [Some(x)] = ops.parents {
            let (mask, y) = ops.state;
            let y = y.to_contiguous();
            let y = y.storage::<f32>();
            grads.register::<Flex>(x.id, in_place(d, |d| cpu::relu_backward(mask, y, d)));
        }
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
mod tests {
    use burn::tensor::{DType, Device};

    use super::*;

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().iter::<f32>().collect()
    }

    /// What the documentation promises, element by element.
    fn expected(x: &[f32], probability: f64, stream: Stream) -> Vec<f32> {
        let mut draws = stream.draws();
        x.iter()
            .map(|x| {
                if f64::from(draws.uniform()) >= probability {
                    (f64::from(*x) / (1.0 - probability)) as f32
                } else {
                    0.0
                }
            })
            .collect()
    }

    #[test]
    fn keeps_what_the_stream_says_forward_and_backward() {
        for kernels in CpuKernels::available() {
            kernels.force(keeps_what_the_stream_says);
        }
    }

    fn keeps_what_the_stream_says() {
        let device = Device::default().autodiff();
        for (index, (shape, probability)) in [
            ([1, 1, 1], 0.5),
            ([3, 5, 7], 0.2),
            ([2, 1, 9], 0.0),
            ([4, 3, 3], 1.0),
            ([40, 33, 65], 0.37),
        ]
        .into_iter()
        .enumerate()
        {
            let stream = Stream::new(index as u64, "dropout");
            let data: Vec<f32> =
                (0..shape.iter().product()).map(|i: usize| i as f32 - 4.5).collect();
            let x = Tensor::<3>::from_data(TensorData::new(data.clone(), shape), &device)
                .require_grad();
            let y = dropout(x.clone(), probability, Some(stream));
            let close = |actual: Vec<f32>, expected: Vec<f32>| {
                for (a, e) in actual.iter().zip(&expected) {
                    assert!((a - e).abs() <= 1e-6 * e.abs(), "{shape:?} {probability}: {a} {e}");
                }
                assert_eq!(actual.len(), expected.len());
            };
            close(values(y.clone()), expected(&data, probability, stream));
            let grads = (y * 3.0).sum().backward();
            let grad = values(x.grad(&grads).expect("x is tracked"));
            close(grad, expected(&vec![3.0; data.len()], probability, stream));
        }
    }

    #[test]
    fn half_precision_stays_what_it_is() {
        let data: Vec<f32> = (0..60).map(|i| i as f32 / 4.0 - 3.0).collect();
        let stream = Stream::new(6, "dropout");
        for dtype in [DType::F16, DType::BF16] {
            let x = Tensor::<2>::from_data(TensorData::new(data.clone(), [4, 15]), &Device::flex());
            let y = dropout(x.cast(dtype), 0.5, Some(stream));
            assert_eq!(y.dtype(), dtype);
            // These numbers, doubled, are exact in both.
            assert_eq!(values(y), expected(&data, 0.5, stream));
        }
    }

    #[test]
    fn after_a_rectifier_it_is_the_same_as_both_apart() {
        let device = Device::default().autodiff();
        for (shape, probability) in [([1, 1], 0.5), ([7, 5], 0.0), ([90, 133], 0.3), ([2, 3], 1.0)]
        {
            for stream in [None, Some(Stream::new(3, "dropout"))] {
                let mut draws = Stream::new(4, "x").draws();
                let count = shape[0] * shape[1];
                let data: Vec<f32> = (0..count).map(|_| draws.normal() as f32).collect();
                let run = |fused: bool| {
                    let x = Tensor::<2>::from_data(TensorData::new(data.clone(), shape), &device)
                        .require_grad();
                    let y = match fused {
                        true => relu_dropout(x.clone(), probability, stream),
                        false => {
                            let relu = burn::tensor::activation::relu(x.clone());
                            dropout(relu, probability, stream)
                        }
                    };
                    let grads = (y.clone() * 3.0).sum().backward();
                    (values(y), values(x.grad(&grads).expect("tracked")))
                };
                let apart = CpuKernels::Composed.force(|| run(false));
                for kernels in CpuKernels::available() {
                    let (y, d) = kernels.force(|| run(true));
                    let both = y.iter().chain(&d).zip(apart.0.iter().chain(&apart.1));
                    for (ours, theirs) in both {
                        assert!((ours - theirs).abs() <= 1e-6 * theirs.abs(), "{ours} {theirs}");
                    }
                }
            }
        }
        let x = Tensor::<1>::from_data([f32::NAN, -1.0, 2.0], &Device::default());
        let y = values(relu_dropout(x, 0.5, None));
        assert!(y[0].is_nan() && y[1] == 0.0 && y[2] == 2.0);
    }

    #[test]
    fn reads_tensors_in_row_major_order_whatever_their_strides() {
        let device = Device::default();
        let x = Tensor::<2>::from_data(
            TensorData::new((0..35).map(|i| i as f32 + 1.0).collect::<Vec<_>>(), [5, 7]),
            &device,
        )
        .transpose();
        let stream = Stream::new(9, "dropout");
        let flat: Vec<f32> = values(x.clone());
        let close = values(dropout(x, 0.5, Some(stream)));
        assert_eq!(close, expected(&flat, 0.5, stream));
    }

    #[test]
    fn evaluation_changes_nothing() {
        let x = Tensor::<1>::from_data([1.0, f32::NAN, -3.0], &Device::default());
        let y = values(dropout(x, 0.9, None));
        assert!(y[0] == 1.0 && y[1].is_nan() && y[2] == -3.0);
    }

    #[test]
    #[should_panic(expected = "dropout probability 1.5 is not between 0 and 1")]
    fn a_wrong_probability_is_refused() {
        dropout(Tensor::<1>::from_data([1.0], &Device::default()), 1.5, None);
    }
}
