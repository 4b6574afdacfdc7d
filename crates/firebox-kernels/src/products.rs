//! Which kernels multiply on a GPU: how exact products of f32 are, and that those of f16 and bf16 are on tensor cores.
//!
//! Burn takes the kernel that is fastest for a shape, and those on tensor cores take TF32 where the device has it,
//! which nothing says and no setting prevents (tracel-ai/burn#5696). The products here name their kernel. On a
//! processor nothing is decided here: products of f32 are f32, or by AMX in pieces of bf16 ([`CpuKernels::exact`]).
//!
//! [`CpuKernels::exact`]: crate::CpuKernels::exact

use std::cell::Cell;

#[cfg(feature = "cube")]
use burn::backend::Dispatch;
#[cfg(feature = "cube")]
use burn::tensor::DType;
use burn::tensor::{Device, Tensor};
use firebox_core::Precision;

use crate::device::{lift, tied};
use crate::operands::{alike, listed, operand};
#[cfg(feature = "cube")]
use crate::rounded::compute_type;
use crate::rounded::rounded;
use crate::scoped::while_set;

#[cfg(feature = "cube")]
use crate::cube::{ProductOps, has_cores, has_tf32, kernel_names};
#[cfg(feature = "cube")]
use crate::cuts::GpuKernels;

/// What products of f32 are made of on a GPU. Sums are f32 in all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum F32Products {
    /// f32: by whatever kernel Burn finds fastest, and where the device has TF32, which Burn would take then, as
    /// [`Exact`](Self::Exact).
    #[default]
    Tuned,
    /// f32: none of tensor cores.
    Exact,
    /// TF32, which is f32 with 10 bits of mantissa in place of 23, on tensor cores. A shape that they do not take is
    /// multiplied in f32.
    Tf32,
}

/// How a product is made by a kernel that is named.
#[cfg(feature = "cube")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProductWay {
    /// Of f32.
    pub(crate) f32: F32Products,
    /// The type that operands are rounded to before, if they have another.
    pub(crate) rounded: Option<DType>,
    /// The type of the result, if not that of the left operand.
    pub(crate) to: Option<DType>,
    /// The kernel of this number alone, for comparisons.
    pub(crate) asked: Option<usize>,
}

#[cfg(feature = "cube")]
impl ProductWay {
    /// How a device makes products of a type by a kernel that is named; `None` if Burn's own are taken.
    pub(crate) fn on(precision: Precision, device: &Device, dtype: DType) -> Option<Self> {
        // What f32 is does not depend on which kernels are asked for.
        let client = GpuKernels::computes(device, dtype).ok()?;
        let asked = ASKED.get();
        let f32 = match (dtype, F32Products::of(precision)) {
            (DType::F32, F32Products::Tuned) if has_tf32(&client) => F32Products::Exact,
            (DType::F32, F32Products::Tuned) => return None,
            (DType::F32, way) => way,
            _ if has_cores(&client, dtype) && !GpuKernels::composes() => F32Products::Tuned,
            _ => return None,
        };
        Some(Self { f32, rounded: None, to: None, asked })
    }

    /// How a product of tensors like this one is made in half precision, from operands that are rounded to it where the
    /// precision says so; `None` where they are multiplied in f32, or by no kernel that is named.
    pub(crate) fn in_halves<const D: usize>(precision: Precision, x: &Tensor<D>) -> Option<Self> {
        let narrow = Some(compute_type(x.dtype(), precision)).filter(|of| *of != DType::F32)?;
        let way = Self::on(precision, &x.device(), narrow)?;
        Some(Self { rounded: Some(narrow), ..way })
    }
}

/// Names of the kernels of products that [`with_product_kernel`] takes, for comparisons.
#[doc(hidden)]
#[cfg(feature = "cube")]
pub fn product_kernels() -> Vec<String> {
    kernel_names()
}

/// Runs a function whose products on this thread, as far as they have named kernels, are made by that of a number. A shape
/// that it does not take is a panic.
#[doc(hidden)]
#[cfg(feature = "cube")]
pub fn with_product_kernel<T>(index: usize, f: impl FnOnce() -> T) -> T {
    while_set(&ASKED, Some(index), f)
}

/// A device that cannot multiply as was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoF32Products {
    /// It has no tensor cores for TF32, or its driver does not tell of them.
    #[error(
        "the device {device} has no tensor cores for TF32, or its driver does not tell of them"
    )]
    NoTf32 {
        /// The device.
        device: String,
    },
    /// Products are named on devices of CubeCL alone, in builds with the feature `cube`.
    #[error(
        "the device {device} takes no named products: they are for GPUs, in builds with GPU kernels"
    )]
    NotGpu {
        /// The device.
        device: String,
    },
}

thread_local! {
    static CURRENT: Cell<F32Products> = const { Cell::new(F32Products::Tuned) };
    #[cfg(feature = "cube")]
    static ASKED: Cell<Option<usize>> = const { Cell::new(None) };
}

impl F32Products {
    /// Runs `f` with products of f32 made so on this thread: those of linear and recurrent layers, of attention that
    /// is composed, and of convolutions. Gradients of what was computed inside are made so, too.
    pub fn during<T>(self, f: impl FnOnce() -> T) -> T {
        while_set(&CURRENT, self, f)
    }

    /// What layers of this precision take on this thread.
    pub(crate) fn of(precision: Precision) -> Self {
        match precision {
            Precision::Tf32 => Self::Tf32,
            _ => CURRENT.get(),
        }
    }

    /// Whether a device multiplies so.
    ///
    /// # Errors
    /// Why it does not.
    pub fn check(self, device: &Device) -> Result<(), NoF32Products> {
        let named = || format!("{:?}", device.clone().without_autodiff());
        #[cfg(feature = "cube")]
        let client = GpuKernels::takes(device, burn::tensor::DType::F32).ok();
        match self {
            Self::Tuned => Ok(()),
            #[cfg(feature = "cube")]
            Self::Exact if client.is_some() => Ok(()),
            #[cfg(feature = "cube")]
            Self::Tf32 if let Some(client) = client => match has_tf32(&client) {
                true => Ok(()),
                false => Err(NoF32Products::NoTf32 { device: named() }),
            },
            Self::Exact | Self::Tf32 => Err(NoF32Products::NotGpu { device: named() }),
        }
    }
}

/// `left · right`, with their axes before the last two broadcast, in the type of both. On a GPU products of f32 are as
/// exact as this precision and thread have it, and those of f16 and bf16 are made on tensor cores, where it has them for
/// the type, and summed in f32.
///
/// On a CPU it is Burn's own product. [`batched_product`](crate::batched_product()) has a kernel there, and rounds its
/// operands where the precision says so.
///
/// # Shapes
/// - left: `[..., rows, inner]`
/// - right: `[..., inner, columns]`
/// - the result: `[..., rows, columns]`
///
/// # Panics
/// If the shapes do not fit, or types or devices differ; the message holds the shapes and types.
#[track_caller]
pub fn product<const D: usize>(
    precision: Precision,
    left: Tensor<D>,
    right: Tensor<D>,
) -> Tensor<D> {
    check("a product", &left, &right);
    #[cfg(feature = "cube")]
    {
        let way = ProductWay::on(precision, &left.device(), left.dtype());
        if let Some(way) = way.filter(|_| some(&left) && some(&right)) {
            return Tensor::from_dispatch(<Dispatch as ProductOps>::firebox_product(
                left.into_dispatch(),
                right.into_dispatch(),
                way,
            ));
        }
    }
    let _ = precision;
    if let Some(zeros) = of_nothing(&left, &right) {
        return zeros;
    }
    left.matmul(right)
}

/// The product of operands rounded to half precision, in the type that they come in; `None` where no kernel does that.
///
/// # Shapes
/// As those of [`product()`].
#[cfg(feature = "cube")]
pub(crate) fn product_in_halves<const D: usize>(
    precision: Precision,
    left: &Tensor<D>,
    right: &Tensor<D>,
) -> Option<Tensor<D>> {
    let way = ProductWay::in_halves(precision, left).filter(|_| some(left) && some(right))?;
    check("a product", left, right);
    let [left, right] = [left, right].map(|operand| operand.clone().into_dispatch());
    Some(Tensor::from_dispatch(<Dispatch as ProductOps>::firebox_product(left, right, way)))
}

/// The product of operands that are rounded where the precision says so, summed in f32, in the type that they come in: on
/// tensor cores where the device has them, else in f32.
pub(crate) fn product_of_rounded<const D: usize>(
    precision: Precision,
    left: Tensor<D>,
    right: Tensor<D>,
) -> Tensor<D> {
    #[cfg(feature = "cube")]
    if let Some(product) = product_in_halves(precision, &left, &right) {
        return product;
    }
    product(precision, rounded(left, precision), rounded(right, precision))
}

/// The same as [`product_in_halves`] with a number added to each column, in the type of these numbers: `[columns]`, or as
/// many for each matrix along the first axis.
#[cfg(feature = "cube")]
pub(crate) fn shifted_in_halves<const D: usize, const B: usize>(
    precision: Precision,
    left: &Tensor<D>,
    right: &Tensor<D>,
    bias: &Tensor<B>,
) -> Option<Tensor<D>> {
    let way = ProductWay::in_halves(precision, left).filter(|_| some(left) && some(right))?;
    let way = ProductWay { to: Some(bias.dtype()), ..way };
    let [left, right] = [left, right].map(|operand| operand.clone().into_dispatch());
    let bias = bias.clone().into_dispatch();
    let y = <Dispatch as ProductOps>::firebox_shifted_product(left, right, bias, way);
    Some(Tensor::from_dispatch(y))
}

/// Whether there are numbers.
#[cfg(feature = "cube")]
fn some<const D: usize>(x: &Tensor<D>) -> bool {
    x.dims().iter().all(|size| *size > 0)
}

/// The numbers of a tensor on a GPU in another float type, as they lie; the tensor itself if it has that.
#[cfg(feature = "cube")]
pub(crate) fn cast<const D: usize>(x: Tensor<D>, to: DType) -> Tensor<D> {
    if x.dtype() == to {
        return x;
    }
    if !some(&x) {
        return x.cast(to);
    }
    Tensor::from_dispatch(<Dispatch as ProductOps>::firebox_cast(x.into_dispatch(), to))
}

/// A number added to each column of matrices on a GPU whose kernels take their type. Its gradient is summed by one of ours.
///
/// # Shapes
/// - y: `[matrices, rows, width]`, with numbers
/// - bias: `[matrices, width]`
#[cfg(feature = "cube")]
pub(crate) fn add_bias(y: Tensor<3>, bias: Tensor<2>) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as ProductOps>::firebox_add_bias(
        y.into_dispatch(),
        bias.into_dispatch(),
    ))
}

/// A number, `[width]`, added to each column of a matrix, `[rows, width]`, on any device and with any number of rows.
pub(crate) fn add_to_columns(y: Tensor<2>, bias: Tensor<1>) -> Tensor<2> {
    #[cfg(feature = "cube")]
    {
        if y.dtype() == bias.dtype()
            && some(&y)
            && GpuKernels::takes(&y.device(), y.dtype()).is_ok()
        {
            return add_bias(y.unsqueeze_dim(0), bias.unsqueeze_dim(0)).squeeze_dim(0);
        }
    }
    y + bias.unsqueeze()
}

/// Refuses operands of a product that do not go together.
#[track_caller]
pub(crate) fn check<const D: usize>(operation: &str, left: &Tensor<D>, right: &Tensor<D>) {
    let operands = [operand("left", left), operand("right", right)];
    alike(operation, operands);
    assert!(
        fits(&left.dims(), &right.dims()),
        "{operation} of {}: the left ([..., rows, inner]) must be as wide as the right ([..., inner, columns]) is high, \
         and axes before these as long in both, or 1 in one",
        listed(operands)
    );
}

/// The product where an operand has no numbers: zeros, if it has any itself, in the graph of both in f32, else a constant of one. Burn's CPU backend
/// (0.22.1) reads what is not there where an axis of 1 stands beside one of 0; other devices have products of nothing.
pub(crate) fn of_nothing<const D: usize>(left: &Tensor<D>, right: &Tensor<D>) -> Option<Tensor<D>> {
    let device = left.device().without_autodiff();
    let (mut shape, others) = (left.dims(), right.dims());
    if device != Device::flex() || !shape.iter().chain(&others).any(|size| *size == 0) {
        return None;
    }
    for (size, other) in shape.iter_mut().zip(others).take(D - 2) {
        *size = if *size == 1 { other } else { *size };
    }
    shape[D - 1] = others[D - 1];
    let zeros = Tensor::zeros(shape, (&device, left.dtype()));
    let zeros = tied(tied(zeros, left), right);
    // Of types that are tied to nothing, it is a constant.
    Some(if left.is_autodiff() || right.is_autodiff() { lift(zeros) } else { zeros })
}

/// Both with the axes before their matrices as long as the longer one of both; a gradient is summed over what was 1.
pub(crate) fn spread<const D: usize>(operands: [Tensor<D>; 2]) -> [Tensor<D>; 2] {
    let [left, right] = operands.each_ref().map(|operand| operand.dims());
    operands.map(|operand| {
        let mut shape = operand.dims();
        for (axis, size) in shape.iter_mut().enumerate().take(D - 2) {
            *size = if left[axis] == 1 { right[axis] } else { left[axis] };
        }
        if operand.dims() == shape { operand } else { operand.expand(shape) }
    })
}

/// Whether matrices of these shapes can be multiplied.
fn fits(left: &[usize], right: &[usize]) -> bool {
    let ([outer @ .., _, inner], [others @ .., rows, _]) = (left, right) else { return false };
    inner == rows && outer.iter().zip(others).all(|(a, b)| a == b || *a == 1 || *b == 1)
}

/// Whether layers of this precision take products of tensors of f32 by name on a device.
#[cfg(feature = "cube")]
pub(crate) fn named(precision: Precision, device: &Device) -> bool {
    ProductWay::on(precision, device, compute_type(DType::F32, precision)).is_some()
}

/// Without kernels for GPUs no product is named.
#[cfg(not(feature = "cube"))]
pub(crate) fn named(_: Precision, _: &Device) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_lasts_as_long_as_its_closure() {
        assert_eq!(F32Products::of(Precision::F32), F32Products::Tuned);
        F32Products::Exact.during(|| {
            assert_eq!(F32Products::of(Precision::F32), F32Products::Exact);
            assert_eq!(F32Products::of(Precision::Tf32), F32Products::Tf32);
            F32Products::Tf32.during(|| {
                assert_eq!(F32Products::of(Precision::F32), F32Products::Tf32);
            });
            assert_eq!(F32Products::of(Precision::Bf16), F32Products::Exact);
        });
        assert_eq!(F32Products::of(Precision::F32), F32Products::Tuned);
    }

    #[test]
    fn a_processor_takes_none_by_name_and_multiplies_in_f32() {
        let device = Device::flex();
        assert_eq!(F32Products::Tuned.check(&device), Ok(()));
        for way in [F32Products::Exact, F32Products::Tf32] {
            assert!(matches!(way.check(&device), Err(NoF32Products::NotGpu { .. })));
        }
        let left = Tensor::<2>::from_data([[1.0f32, 1.0 + f32::EPSILON]], &device);
        let right = Tensor::<2>::from_data([[1.0f32], [-1.0]], &device);
        let found = F32Products::Tf32.during(|| product(Precision::Tf32, left, right));
        assert_eq!(found.into_scalar::<f32>(), -f32::EPSILON);
    }
}
