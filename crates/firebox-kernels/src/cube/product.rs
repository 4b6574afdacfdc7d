//! Products of f32 by a kernel that is named, forward and back, where Burn's own would be tuned.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::cubecl::dtype_to_storage_type;
#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata, backend_extension};
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::ir::{ElemType, FloatKind};
use burn_cubecl::tensor::CubeTensor;
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems, MatmulSetupError};
use cubek::matmul::launch::launch_ref;
use cubek::matmul::multi_level::Strategy;
use cubek::std::InputBinding;

use super::tensors::empty;
use super::watch::{LaunchedWork, launching};
use crate::products::F32Products;

/// TF32 as CubeCL names it.
const TF32: ElemType = ElemType::Float(FloatKind::TF32);

/// Whether the tensor cores of a device multiply TF32 and sum in f32.
pub(crate) fn has_tf32(client: &Client) -> bool {
    let f32 = dtype_to_storage_type(DType::F32);
    let mut configs = client.properties().features.matmul.cmma.iter();
    configs.any(|c| c.a_type == TF32 && c.b_type == TF32 && c.cd_type == f32)
}

/// A product of matrices in f32, `[.., rows, inner]` and `[.., inner, columns]`, whose other axes are broadcast.
#[backend_extension(Cube, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait ProductOps: Backend {
    /// The differentiable operation; without a graph, the same as `firebox_multiply`.
    #[fusion(default)]
    fn firebox_product(
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        way: F32Products,
    ) -> FloatTensor<Self> {
        Self::firebox_multiply(left, right, way)
    }

    /// The product alone.
    #[fusion(meta = |left, right, _way| spec(left, right))]
    fn firebox_multiply(
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        way: F32Products,
    ) -> FloatTensor<Self>;
}

#[cfg(feature = "fusion")]
fn spec(left: &TensorSpec, right: &TensorSpec) -> TensorSpec {
    TensorSpec::new(shape(&left.shape, &right.shape), left.dtype)
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
        way: F32Products,
    ) -> FloatTensor<Self> {
        let out = empty(&left, shape(&left.shape(), &right.shape()), left.dtype);
        let inner = left.shape()[left.shape().num_dims() - 1];
        let numbers = |tensor: &CubeTensor| tensor.shape().num_elements();
        let all = numbers(&left) + numbers(&right) + numbers(&out);
        let work = || LaunchedWork {
            name: "product",
            shape: out.shape().iter().copied().chain([inner]).collect(),
            operations: (2 * numbers(&out) * inner) as f64,
            bytes: (4 * all) as f64,
            bf16: false,
        };
        launching(work, || multiply(left.clone(), right.clone(), &out, way));
        out
    }
}

/// Multiplies into `out`, which is contiguous. Kernels of single threads multiply in the type of their operands; those
/// of tensor cores take f32 as TF32 where the device has it (`adjust_dtypes` of cubek), and are refused where not.
///
/// # Panics
/// If no kernel can be launched: the simplest takes every shape.
fn multiply(left: CubeTensor, right: CubeTensor, out: &CubeTensor, way: F32Products) {
    let client = &out.client;
    let cores = (way == F32Products::Tf32 && has_tf32(client))
        .then(|| Strategy::SimpleCyclicCmma(Default::default()));
    let others = [Strategy::SimpleUnit(Default::default()), Strategy::Naive];
    let mut refused = vec![];
    for strategy in cores.into_iter().chain(others) {
        match launch(&strategy, &left, &right, out) {
            Ok(()) => return,
            Err(error) => refused.push(format!("{strategy}: {error:?}")),
        }
    }
    panic!(
        "no kernel multiplies {:?} and {:?}: {}",
        left.shape(),
        right.shape(),
        refused.join("; ")
    );
}

fn launch(
    strategy: &Strategy,
    left: &CubeTensor,
    right: &CubeTensor,
    out: &CubeTensor,
) -> Result<(), MatmulSetupError> {
    let f32 = dtype_to_storage_type(DType::F32);
    let operand = |tensor: &CubeTensor| InputBinding::new(tensor.clone().binding(), f32);
    let mut types = MatmulElems::from_globals(&MatmulGlobalElems { lhs: f32, rhs: f32, out: f32 });
    let (strategy, out) = (strategy.clone().into(), out.clone());
    let client = out.client.clone();
    launch_ref(&strategy, &client, operand(left), operand(right), out.binding(), &mut types)
}

/// What the gradient is computed from.
#[derive(Clone, Debug)]
struct Tape<B: Backend> {
    left: FloatTensor<B>,
    right: FloatTensor<B>,
    way: F32Products,
}

#[derive(Debug)]
struct Product;

impl<B: ProductOps> Backward<B, 2> for Product {
    type State = Tape<B>;

    fn backward(self, ops: Ops<Tape<B>, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<B>(&ops.node);
        let Tape { left, right, way } = ops.state;
        let [to_left, to_right] = ops.parents;
        let turned = |x: FloatTensor<B>| {
            let axes = x.shape().num_dims();
            B::float_swap_dims(x, axes - 2, axes - 1)
        };
        let (left_shape, right_shape) = (left.shape(), right.shape());
        if let Some(parent) = to_left {
            let gradient = B::firebox_multiply(d.clone(), turned(right), way);
            grads.register::<B>(parent.id, summed::<B>(gradient, &left_shape));
        }
        if let Some(parent) = to_right {
            let gradient = B::firebox_multiply(turned(left), d, way);
            grads.register::<B>(parent.id, summed::<B>(gradient, &right_shape));
        }
    }
}

/// The sum over the axes that were broadcast.
fn summed<B: Backend>(mut gradient: FloatTensor<B>, shape: &Shape) -> FloatTensor<B> {
    for axis in 0..shape.num_dims() {
        if shape[axis] < gradient.shape()[axis] {
            gradient = B::float_sum_dim(gradient, axis);
        }
    }
    gradient
}

impl<B: ProductOps, C: CheckpointStrategy> ProductOps for Autodiff<B, C> {
    fn firebox_product(
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        way: F32Products,
    ) -> FloatTensor<Self> {
        let [(left, left_guard), (right, right_guard)] =
            [left, right].map(|tensor| tensor.into_parts());
        match Product.prepare::<C>([left_guard, right_guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let tape = Tape { left: left.clone(), right: right.clone(), way };
                prep.finish(tape, B::firebox_multiply(left, right, way))
            }
            OpsKind::UnTracked(prep) => prep.finish(B::firebox_multiply(left, right, way)),
        }
    }

    fn firebox_multiply(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: F32Products,
    ) -> FloatTensor<Self> {
        unreachable!("the product is called below the graph, by `firebox_product`")
    }
}
