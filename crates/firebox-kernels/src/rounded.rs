//! Operands of products rounded to a narrower type and back: what a device that multiplies in that
//! type computes with, wherever the product itself runs.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex, TensorMetadata};
use burn::tensor::{DType, FloatDType, Tensor};
use firebox_core::Precision;

use crate::cpu::{self, CpuKernels, Narrow};
use crate::device::{flex, flex_in_graph, is_flex};
use crate::dropout::in_place;
use crate::profile::kernel_span;

/// The operand of a product, rounded to the type it is computed in and back: the product of such
/// operands in f32 is that of a matrix unit that adds up in f32. Its gradient is rounded, too, as it
/// is where it has that type: what is too large for f16 becomes infinite, what is too small zero.
///
/// On Burn's CPU backend it is one pass over memory in each direction.
pub fn rounded<const D: usize>(tensor: Tensor<D>, precision: Precision) -> Tensor<D> {
    let kept = tensor.dtype();
    let (narrow, float) = match precision {
        Precision::Bf16 if kept == DType::F32 => (Narrow::Bf16, FloatDType::BF16),
        Precision::F16 if kept == DType::F32 => (Narrow::F16, FloatDType::F16),
        _ => return tensor,
    };
    let fits = is_flex(&tensor) && tensor.shape().num_elements() > 0;
    if !fits || CpuKernels::fused().is_none() {
        refuse_missing(&tensor, float.into());
        return tensor.cast(float).cast(kept);
    }
    let run = |tensor: FloatTensor<Flex>| {
        let count = tensor.shape().num_elements();
        let _span = kernel_span!("rounding", [count], 0, 2 * count, false);
        in_place(tensor, |values| cpu::round(narrow, values))
    };
    if !tensor.is_autodiff() {
        return Tensor::from_primitive::<Flex>(run(flex(tensor)));
    }
    let (tensor, guard) = flex_in_graph(tensor).into_parts();
    let prepared = Rounded.prepare::<NoCheckpointing>([guard]).compute_bound().stateful();
    let result = run(tensor);
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => prepared.finish(narrow, result),
        OpsKind::UnTracked(prepared) => prepared.finish(result),
    })
}

/// Refuses a type that a GPU does not have: it would keep the numbers as they are, or make others of them, without a word.
///
/// # Panics
/// Then.
#[track_caller]
pub(crate) fn refuse_missing<const D: usize>(tensor: &Tensor<D>, dtype: DType) {
    #[cfg(feature = "cube")]
    {
        use crate::cuts::{GpuKernels, NoGpuKernels};
        let has = GpuKernels::computes(&tensor.device(), dtype);
        assert!(
            !matches!(has, Err(NoGpuKernels::Type { .. })),
            "{:?} has no numbers in {dtype:?}: compute in f32 there, or in another type that it has",
            tensor.device()
        );
    }
    #[cfg(not(feature = "cube"))]
    let _ = (tensor, dtype);
}

/// The operand of a product that the CPU kernels compute in f32: rounded where it is one in f16, for
/// which they have no words of their own.
pub(crate) fn halved<const D: usize>(tensor: Tensor<D>, precision: Precision) -> Tensor<D> {
    match precision {
        Precision::F16 => rounded(tensor, precision),
        Precision::F32 | Precision::Tf32 | Precision::Bf16 => tensor,
    }
}

/// The type that a GPU's kernel computes in: that of the tensors, or the narrower one that is asked of f32.
pub(crate) fn compute_type(given: DType, precision: Precision) -> DType {
    match (given, precision) {
        (DType::F32, Precision::Bf16) => DType::BF16,
        (DType::F32, Precision::F16) => DType::F16,
        (given, _) => given,
    }
}

/// The type that a normalisation of many operations computes in: in f16 a square ends at a distance of 256, a sum in
/// either narrow type loses what is small beside it, and a small epsilon is 0.
pub(crate) fn exact_type(given: DType) -> DType {
    match given {
        DType::F16 | DType::BF16 => DType::F32,
        given => given,
    }
}

/// The same numbers in a type; the tensor itself if it has that.
pub(crate) fn cast<const D: usize>(tensor: Tensor<D>, dtype: DType) -> Tensor<D> {
    if tensor.dtype() == dtype { tensor } else { tensor.cast(dtype) }
}

#[derive(Debug)]
struct Rounded;

impl Backward<Flex, 1> for Rounded {
    type State = Narrow;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<Flex>(&ops.node);
        if let [Some(parent)] = ops.parents {
            let gradient = in_place(gradient, |values| cpu::round(ops.state, values));
            grads.register::<Flex>(parent.id, gradient);
        }
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
mod tests {
    use burn::tensor::{Device, TensorData};
    use firebox_core::Stream;

    use super::*;

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
        tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
    }

    /// Ends of the types, ties, subnormal numbers, and noise over all exponents that matter.
    fn numbers(count: usize) -> Vec<f32> {
        let mut numbers = vec![
            0.0,
            -0.0,
            1.0,
            65_504.0,
            65_519.9,
            65_520.0,
            -7e4,
            3.4e38,
            f32::INFINITY,
            f32::NEG_INFINITY,
            6e-8,
            2.9e-8,
            2.980_232e-8,
            2.99e-8,
            -5e-8,
            1e-40,
            1.000_488_3,
            1.001_464_8,
            2049.0,
            2051.0,
        ];
        let mut draws = Stream::new(1, "rounded").draws();
        numbers.extend(
            (numbers.len()..count)
                .map(|_| (draws.normal() * (2.0f64).powi(draws.below(48) as i32 - 28)) as f32),
        );
        numbers
    }

    #[test]
    fn numbers_and_gradients_are_rounded_as_one_by_one() {
        let f16 = |x: f32| half::f16::from_f32(x).to_f32();
        let bf16 = |x: f32| half::bf16::from_f32(x).to_f32();
        let device = Device::flex().autodiff();
        for shape in [[4, 5], [1, 1031], [300, 701]] {
            let numbers = numbers(shape[0] * shape[1]);
            let numbers = &numbers[..shape[0] * shape[1]];
            let tensor = |numbers: Vec<f32>| {
                Tensor::<2>::from_data(TensorData::new(numbers, shape), &device)
            };
            for precision in [Precision::F16, Precision::Bf16] {
                let one = |x: &f32| if precision == Precision::F16 { f16(*x) } else { bf16(*x) };
                let exact: Vec<u32> = numbers.iter().map(one).map(f32::to_bits).collect();
                for kernels in CpuKernels::available() {
                    kernels.force(|| {
                        let x = tensor(numbers.to_vec()).require_grad();
                        let d = tensor(numbers.to_vec());
                        let y = rounded(x.clone(), precision);
                        // What is read elsewhere stays as it was.
                        assert_eq!(values(x.clone()), values(d.clone()), "{kernels:?}");
                        assert_eq!(values(y.clone()), exact, "{kernels:?} {precision}");
                        assert_eq!(values(rounded(d.clone().inner(), precision)), exact);
                        // The factor of `y` in the sum is its gradient, not a number that overflows.
                        let grads =
                            (y.mul_scalar(0.0) + d.clone().mul_scalar(0.0)).sum().backward();
                        let zero = x.grad(&grads).expect("tracked");
                        assert!(zero.into_data().iter::<f32>().all(|zero| zero == 0.0));
                    });
                }
            }
        }
    }

    #[test]
    fn a_gradient_beyond_f16_is_infinite_and_one_below_it_zero() {
        let device = Device::flex().autodiff();
        for kernels in CpuKernels::available() {
            kernels.force(|| {
                let x = Tensor::<1>::from_data([1.0, 2.0, 3.0], &device).require_grad();
                let factors = Tensor::<1>::from_data([7e4, 1e-8, 2.000_7], &device);
                let grads = (rounded(x.clone(), Precision::F16) * factors).sum().backward();
                let found = values(x.grad(&grads).expect("tracked"));
                let exact = [f32::INFINITY, 0.0, half::f16::from_f32(2.000_7).to_f32()];
                assert_eq!(found, exact.map(f32::to_bits), "{kernels:?}");
            });
        }
    }

    #[test]
    fn other_types_are_left_alone() {
        let x = Tensor::<1>::from_data([1.1, 70_000.0], &Device::flex());
        for precision in [Precision::F32, Precision::Tf32] {
            assert_eq!(values(rounded(x.clone(), precision)), values(x.clone()));
        }
    }
}
