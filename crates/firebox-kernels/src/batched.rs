//! Products of matrices in pairs as one operation, forward and backward.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex, TensorMetadata};
use burn::tensor::{Tensor, TensorData};
use firebox_core::Precision;

use crate::cpu::{CpuKernels, Matrices, Products};
use crate::device::{flex, flex_in_graph, is_flex};
use crate::linear::{matmul, register};
use crate::products::{check, of_nothing, spread};
use crate::profile::kernel_span;
use crate::rounded::halved;
use crate::strides::{matrices, readable};

type Primitive = FloatTensor<Flex>;

/// `left · right` for each pair of matrices, axes before the last two broadcast, with the operands of the products,
/// forward and backward, rounded to a type: in bf16 they are summed in f32, and the result has the type of the
/// operands.
///
/// On Burn's CPU backend in f32 it is one operation, with the kernels of [`linear_in`](crate::linear_in()) and its types.
/// Many small products are each computed by one thread, few large ones each by all of them, with the same bits on any
/// number. Operands are read where they lie in any strides (transposed, narrowed, expanded), as long as the rows or the
/// columns of the matrices are each in one piece; others, and those that run backwards, are copied first. Elsewhere it is
/// composed of Burn's matmul, on GPUs as exact as [`product`](crate::product()) has it.
///
/// A matrix that is broadcast is multiplied, and its gradient made, for each pair: one matrix for all of them is a weight,
/// for which [`linear_in`](crate::linear_in()) is made.
///
/// # Shapes
/// - left: `[..., rows, inner]`
/// - right: `[..., inner, columns]`
/// - the result: `[..., rows, columns]`
///
/// # Panics
/// If the shapes do not fit, or types or devices differ; the message holds the shapes and types.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebox_core::Precision;
/// use firebox_kernels::batched_product;
///
/// let queries = Tensor::<3>::ones([12, 20, 8], &Device::flex());
/// let keys = Tensor::<3>::ones([12, 30, 8], &Device::flex());
/// let scores = batched_product(Precision::Bf16, queries, keys.swap_dims(1, 2));
/// assert_eq!(scores.dims(), [12, 20, 30]);
/// ```
#[track_caller]
pub fn batched_product<const D: usize>(
    precision: Precision,
    left: Tensor<D>,
    right: Tensor<D>,
) -> Tensor<D> {
    check("a batched product", &left, &right);
    if let Some(zeros) = of_nothing(&left, &right) {
        return zeros;
    }
    let on_cpu = is_flex(&left) && is_flex(&right);
    let Some(kernels) = CpuKernels::fused().filter(|_| on_cpu) else {
        return matmul(precision, left, right);
    };
    let products = Products { kernels, bf16: precision == Precision::Bf16 };
    let [left, right] = spread([left, right].map(|operand| halved(operand, precision)));
    if !left.is_autodiff() && !right.is_autodiff() {
        let [left, right] = [left, right].map(|operand| readable(flex(operand)));
        return Tensor::from_primitive::<Flex>(run(products, &left, &right));
    }
    let [(left, left_guard), (right, right_guard)] =
        [left, right].map(|operand| flex_in_graph(operand).into_parts());
    let [left, right] = [left, right].map(readable);
    let prepared =
        Multiplied.prepare::<NoCheckpointing>([left_guard, right_guard]).compute_bound().stateful();
    let y = run(products, &left, &right);
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => prepared.finish(Tape { products, left, right }, y),
        OpsKind::UnTracked(prepared) => prepared.finish(y),
    })
}

fn run(products: Products, left: &Primitive, right: &Primitive) -> Primitive {
    multiply(products, &matrices(left), &matrices(right), left)
}

/// The products of pairs of matrices, as a tensor with the axes before those of the matrices of another one.
fn multiply(
    products: Products,
    left: &Matrices<'_>,
    right: &Matrices<'_>,
    like: &Primitive,
) -> Primitive {
    let ([rows, inner], [_, columns], count) = (left.sizes, right.sizes, left.starts.len());
    let _span = kernel_span!(
        "batched product",
        [count, rows, inner, columns],
        2 * count * rows * inner * columns,
        count * (rows * (inner + columns) + inner * columns),
        products.bf16
    );
    let mut shape = like.shape().to_vec();
    let matrix = shape.len() - 2;
    shape[matrix..].copy_from_slice(&[rows, columns]);
    Primitive::from_data(TensorData::new(products.products(left, right), shape))
}

/// What the gradients are computed from.
#[derive(Clone, Debug)]
struct Tape {
    products: Products,
    left: Primitive,
    right: Primitive,
}

#[derive(Debug)]
struct Multiplied;

impl Backward<Flex, 2> for Multiplied {
    type State = Tape;

    /// `dleft = d · rightᵀ` and `dright = leftᵀ · d`.
    fn backward(self, ops: Ops<Tape, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = readable(grads.consume::<Flex>(&ops.node));
        let Tape { products, left, right } = ops.state;
        let [to_left, to_right] = ops.parents.map(|parent| parent.map(|parent| parent.id));
        register(grads, to_left, || {
            multiply(products, &matrices(&d), &matrices(&right).transposed(), &d)
        });
        register(grads, to_right, || {
            multiply(products, &matrices(&left).transposed(), &matrices(&d), &d)
        });
    }
}
