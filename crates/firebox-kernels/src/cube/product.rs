//! Products by a kernel that is named or ours, forward and back, where Burn's own would be tuned: those of f32 as exact as
//! they are told, those of f16 and bf16 on tensor cores.
//!
//! Burn's tuning compiles some twenty kernels for each shape, type and layout that it meets, most of them for a
//! second and more, before the first step of a training is over: minutes, and again for each new size of a batch. What
//! it takes then depends on what else the device did meanwhile.

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata, backend_extension};
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::convert;
use super::list::TensorList;
use super::sums::over_rows;
use super::tensors::hand_on;
use super::tiles::{self, Task};
use super::watch::{LaunchedWork, launching};
use crate::cuts::product_parts;
use crate::products::ProductWay;

/// A product of matrices, `[.., rows, inner]` and `[.., inner, columns]`, whose other axes are broadcast.
#[backend_extension(Cube, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait ProductOps: Backend {
    /// The differentiable operation, in the type of the operands.
    #[fusion(default)]
    fn firebox_product(
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        way: ProductWay,
    ) -> FloatTensor<Self> {
        let Tape { left, right, to, .. } = Tape::<Self>::new(left, right, way);
        Self::firebox_multiply(left, right, way, to)
    }

    /// The same with a number added to each column: `[columns]`, or as many for each matrix along the first axis.
    #[fusion(default)]
    fn firebox_shifted_product(
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        way: ProductWay,
    ) -> FloatTensor<Self> {
        let Tape { left, right, to, .. } = Tape::<Self>::new(left, right, way);
        Self::firebox_multiply_and_shift(left, right, bias, way, to)
    }

    /// The product alone, in a type.
    #[fusion(meta = |left, right, _way, to| spec(left, right, *to))]
    fn firebox_multiply(
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        way: ProductWay,
        to: DType,
    ) -> FloatTensor<Self>;

    /// The product with a number added to each column, in the type of these numbers.
    #[fusion(meta = |left, right, _bias, _way, to| spec(left, right, *to))]
    fn firebox_multiply_and_shift(
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        way: ProductWay,
        to: DType,
    ) -> FloatTensor<Self>;

    /// `y`, `[matrices, rows, width]`, with a number added to each column, `[matrices, width]`.
    #[fusion(default)]
    fn firebox_add_bias(y: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        shifted::<Self>(y, bias)
    }

    /// The differentiable operation: numbers in another float type.
    #[fusion(default)]
    fn firebox_cast(x: FloatTensor<Self>, to: DType) -> FloatTensor<Self> {
        one(Self::firebox_convert(TensorList(vec![x]), to))
    }

    /// Tensors of one float type in another, in one launch.
    #[fusion(meta = |tensors, to| converted(tensors, *to))]
    fn firebox_convert(#[extension_type] tensors: TensorList<Self>, to: DType) -> TensorList<Self>;

    /// The sums over the rows of each matrix, `[matrices, width]`, of numbers that lie as `[matrices, rows, width]`, summed
    /// in f32, in a type.
    #[fusion(meta = |_x, sizes, to| TensorSpec::new([sizes[0], sizes[2]].into(), *to))]
    fn firebox_sum_rows(x: FloatTensor<Self>, sizes: [usize; 3], to: DType) -> FloatTensor<Self>;
}

/// A sum that Burn fuses with what is around it, of numbers that lie as `[matrices, rows, width]`.
pub(super) fn shifted<B: Backend>(y: FloatTensor<B>, bias: FloatTensor<B>) -> FloatTensor<B> {
    let shape = y.shape();
    let width = shape[shape.num_dims() - 1];
    let matrices = bias.shape().num_elements() / width;
    let y = B::float_reshape(y, [matrices, shape.num_elements() / width / matrices, width].into());
    let sum = B::float_add(y, B::float_reshape(bias, [matrices, 1, width].into()));
    B::float_reshape(sum, shape)
}

/// Operands in the type that they are multiplied in; several are converted in one launch.
fn rounded<B: ProductOps, const N: usize>(
    operands: [FloatTensor<B>; N],
    way: ProductWay,
) -> [FloatTensor<B>; N] {
    let Some(narrow) = way.rounded else { return operands };
    let wide = |x: &FloatTensor<B>| x.dtype() != narrow;
    let given: Vec<_> = operands.iter().filter(|x| wide(x)).cloned().collect();
    if given.is_empty() {
        return operands;
    }
    let mut made = B::firebox_convert(TensorList(given), narrow).0.into_iter();
    operands.map(|x| {
        if wide(&x) {
            made.next().unwrap_or_else(|| unreachable!("one was made for each"))
        } else {
            x
        }
    })
}

/// The tensor of a list of one.
fn one<B: Backend>(mut list: TensorList<B>) -> FloatTensor<B> {
    list.0.remove(0)
}

#[cfg(feature = "fusion")]
fn converted(tensors: &[TensorSpec], to: DType) -> Vec<TensorSpec> {
    tensors.iter().map(|x| TensorSpec::new(x.shape.clone(), to)).collect()
}

#[cfg(feature = "fusion")]
fn spec(left: &TensorSpec, right: &TensorSpec, to: DType) -> TensorSpec {
    TensorSpec::new(shape(&left.shape, &right.shape), to)
}

/// The shape of a product.
fn shape(left: &Shape, right: &Shape) -> Shape {
    let axes = left.num_dims();
    let size = |axis: usize| match axes - axis {
        1 => right[axis],
        2 => left[axis],
        _ => left[axis].max(right[axis]),
    };
    (0..axes).map(size).collect::<Vec<_>>().into()
}

impl ProductOps for CubeBackend {
    fn firebox_multiply(
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        way: ProductWay,
        to: DType,
    ) -> FloatTensor<Self> {
        multiply(left, right, None, way, to)
    }

    fn firebox_multiply_and_shift(
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        way: ProductWay,
        to: DType,
    ) -> FloatTensor<Self> {
        multiply(left, right, Some(into_contiguous(bias)), way, to)
    }

    fn firebox_convert(tensors: TensorList<Self>, to: DType) -> TensorList<Self> {
        TensorList(convert::converted(tensors.0, to))
    }

    fn firebox_sum_rows(x: FloatTensor<Self>, sizes: [usize; 3], to: DType) -> FloatTensor<Self> {
        over_rows(x, sizes, to)
    }
}

fn multiply(
    left: CubeTensor,
    right: CubeTensor,
    bias: Option<CubeTensor>,
    way: ProductWay,
    to: DType,
) -> CubeTensor {
    let shape = shape(&left.shape(), &right.shape());
    let inner = left.shape()[left.shape().num_dims() - 1];
    let numbers = shape.num_elements();
    let read = left.shape().num_elements() + right.shape().num_elements();
    let work = || LaunchedWork {
        name: "product",
        shape: shape.iter().copied().chain([inner]).collect(),
        operations: (2 * numbers * inner) as f64,
        bytes: (left.dtype.size() * read + to.size() * numbers) as f64,
        bf16: left.dtype == DType::BF16,
    };
    let task = Task { left: left.clone(), right: right.clone(), bias, to, shape: shape.clone() };
    launching(work, || tiles::multiply(task, way))
}

/// What the gradients are computed from.
#[derive(Clone, Debug)]
struct Tape<B: Backend> {
    /// As they were multiplied.
    left: FloatTensor<B>,
    right: FloatTensor<B>,
    /// The types that they came in, and that of the result.
    types: [DType; 2],
    to: DType,
    way: ProductWay,
}

impl<B: ProductOps> Tape<B> {
    fn new(left: FloatTensor<B>, right: FloatTensor<B>, way: ProductWay) -> Self {
        let types @ [given, _] = [left.dtype(), right.dtype()];
        let [left, right] = rounded::<B, 2>([left, right], way);
        Self { left, right, types, to: way.to.unwrap_or(given), way }
    }

    /// Registers the gradients of both operands that are wanted, from that of the product.
    fn gradients(
        self,
        d: FloatTensor<B>,
        grads: &mut Gradients,
        [to_left, to_right]: [Option<NodeId>; 2],
    ) {
        let Self { left, right, types, way, .. } = self;
        let [d] = rounded::<B, 1>([d], way);
        let turned = |x: FloatTensor<B>| {
            let axes = x.shape().num_dims();
            B::float_swap_dims(x, axes - 2, axes - 1)
        };
        if let Some(id) = to_left {
            let gradient = |to| B::firebox_multiply(d.clone(), turned(right.clone()), way, to);
            grads.register::<B>(id, summed::<B>(gradient, &d.shape(), &left.shape(), types[0]));
        }
        if let Some(id) = to_right {
            let gradient = match in_parts::<B>(&left, &d) {
                Some([left, d]) => {
                    let products = B::firebox_multiply(turned(left), d, way, DType::F32);
                    let [parts, high, wide] = products.shape().dims();
                    let sum = B::firebox_sum_rows(products, [1, parts, high * wide], types[1]);
                    B::float_reshape(sum, right.shape())
                }
                None => {
                    let gradient = |to| B::firebox_multiply(turned(left), d.clone(), way, to);
                    summed::<B>(gradient, &d.shape(), &right.shape(), types[1])
                }
            };
            grads.register::<B>(id, gradient);
        }
    }
}

#[derive(Debug)]
struct Product;

impl<B: ProductOps> Backward<B, 2> for Product {
    type State = Tape<B>;

    fn backward(self, ops: Ops<Tape<B>, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<B>(&ops.node);
        ops.state.gradients(d, grads, ops.parents.map(|parent| parent.map(|parent| parent.id)));
    }
}

/// A product with a number added to each column.
#[derive(Debug)]
struct ShiftedProduct;

impl<B: ProductOps> Backward<B, 3> for ShiftedProduct {
    /// With the shape and type of the numbers.
    type State = (Tape<B>, Shape, DType);

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<B>(&ops.node);
        let (tape, bias, to) = ops.state;
        let [to_left, to_right, to_bias] = ops.parents.map(|parent| parent.map(|parent| parent.id));
        if let Some(id) = to_bias {
            let width = d.shape()[d.shape().num_dims() - 1];
            let matrices = bias.num_elements() / width;
            let rows = d.shape().num_elements() / bias.num_elements();
            let sum = B::firebox_sum_rows(d.clone(), [matrices, rows, width], to);
            grads.register::<B>(id, B::float_reshape(sum, bias));
        }
        tape.gradients(d, grads, [to_left, to_right]);
    }
}

/// Both operands of the gradient of a weight, `[rows, high]` and `[rows, wide]`, in parts of their rows, `[parts, rows of
/// a part, ..]`, where the result is so small that one product would keep a few processors of the device busy alone.
fn in_parts<B: Backend>(left: &FloatTensor<B>, d: &FloatTensor<B>) -> Option<[FloatTensor<B>; 2]> {
    let (left_shape, d_shape) = (left.shape(), d.shape());
    let axes = left_shape.num_dims();
    let outer = |shape: &Shape| shape.iter().take(axes - 2).all(|size| *size == 1);
    if !outer(&left_shape) || !outer(&d_shape) {
        return None;
    }
    let [rows, high, wide] = [left_shape[axes - 2], left_shape[axes - 1], d_shape[axes - 1]];
    let parts = Some(product_parts(rows, high * wide)).filter(|parts| *parts > 1)?;
    let split = |x: &FloatTensor<B>, columns: usize| {
        B::float_reshape(x.clone(), [parts, rows / parts, columns].into())
    };
    Some([split(left, high), split(d, wide)])
}

/// A gradient of this shape in a type, summed over the axes before its matrix that are longer in the product.
fn summed<B: ProductOps>(
    gradient: impl FnOnce(DType) -> FloatTensor<B>,
    outer: &Shape,
    shape: &Shape,
    to: DType,
) -> FloatTensor<B> {
    let axes = shape.num_dims();
    let broadcast: Vec<_> = (0..axes - 2).filter(|axis| shape[*axis] < outer[*axis]).collect();
    let mut gradient = gradient(if broadcast.is_empty() { to } else { DType::F32 });
    for (index, axis) in broadcast.iter().enumerate() {
        let mut now = gradient.shape();
        let size = |axes: std::ops::Range<usize>| axes.map(|axis| now[axis]).product();
        let sizes = [size(0..*axis), now[*axis], size(axis + 1..axes)];
        let to = if index + 1 == broadcast.len() { to } else { DType::F32 };
        let sum = B::firebox_sum_rows(gradient, sizes, to);
        now[*axis] = 1;
        gradient = B::float_reshape(sum, now);
    }
    gradient
}

/// Numbers in another type.
#[derive(Debug)]
struct Cast;

impl<B: ProductOps> Backward<B, 1> for Cast {
    /// The type that they came in.
    type State = DType;

    fn backward(self, ops: Ops<DType, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        hand_on::<B, _, _, 1>(ops, grads, |d, given| {
            B::firebox_convert(TensorList(vec![d]), given).0
        });
    }
}

/// A bias, whose gradient is summed by a kernel of its own.
#[derive(Debug)]
struct Bias;

impl<B: ProductOps> Backward<B, 2> for Bias {
    type State = ();

    fn backward(self, ops: Ops<(), 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<B>(&ops.node);
        let [to_y, to_bias] = ops.parents;
        if let Some(parent) = to_bias {
            let sizes = d.shape().dims();
            grads.register::<B>(parent.id, B::firebox_sum_rows(d.clone(), sizes, d.dtype()));
        }
        if let Some(parent) = to_y {
            grads.register::<B>(parent.id, d);
        }
    }
}

impl<B: ProductOps, C: CheckpointStrategy> ProductOps for Autodiff<B, C> {
    fn firebox_product(
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        way: ProductWay,
    ) -> FloatTensor<Self> {
        let [(left, left_guard), (right, right_guard)] =
            [left, right].map(|tensor| tensor.into_parts());
        let tape = Tape::<B>::new(left, right, way);
        let out = B::firebox_multiply(tape.left.clone(), tape.right.clone(), way, tape.to);
        match Product.prepare::<C>([left_guard, right_guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(tape, out),
            OpsKind::UnTracked(prep) => prep.finish(out),
        }
    }

    fn firebox_shifted_product(
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        way: ProductWay,
    ) -> FloatTensor<Self> {
        let [(left, left_guard), (right, right_guard), (bias, bias_guard)] =
            [left, right, bias].map(|tensor| tensor.into_parts());
        let of_bias = (bias.shape(), bias.dtype());
        let tape = Tape::<B>::new(left, right, way);
        let (left, right) = (tape.left.clone(), tape.right.clone());
        let out = B::firebox_multiply_and_shift(left, right, bias, way, tape.to);
        let guards = [left_guard, right_guard, bias_guard];
        match ShiftedProduct.prepare::<C>(guards).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((tape, of_bias.0, of_bias.1), out),
            OpsKind::UnTracked(prep) => prep.finish(out),
        }
    }

    fn firebox_multiply(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: ProductWay,
        _: DType,
    ) -> FloatTensor<Self> {
        unreachable!("the product is called below the graph, by `firebox_product`")
    }

    fn firebox_multiply_and_shift(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: ProductWay,
        _: DType,
    ) -> FloatTensor<Self> {
        unreachable!("the product is called below the graph, by `firebox_shifted_product`")
    }

    fn firebox_add_bias(y: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        let [(y, y_guard), (bias, bias_guard)] = [y, bias].map(|tensor| tensor.into_parts());
        match Bias.prepare::<C>([y_guard, bias_guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((), shifted::<B>(y, bias)),
            OpsKind::UnTracked(prep) => prep.finish(shifted::<B>(y, bias)),
        }
    }

    fn firebox_cast(x: FloatTensor<Self>, to: DType) -> FloatTensor<Self> {
        let (x, guard) = x.into_parts();
        let given = x.dtype();
        let out = B::firebox_cast(x, to);
        match Cast.prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(given, out),
            OpsKind::UnTracked(prep) => prep.finish(out),
        }
    }

    fn firebox_convert(_: TensorList<Self>, _: DType) -> TensorList<Self> {
        unreachable!("operands are converted below the graph, single tensors by `firebox_cast`")
    }

    fn firebox_sum_rows(_: FloatTensor<Self>, _: [usize; 3], _: DType) -> FloatTensor<Self> {
        unreachable!("sums are of gradients, which have no graph")
    }
}
