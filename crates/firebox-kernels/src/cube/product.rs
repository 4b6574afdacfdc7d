//! Products by a kernel that is named, forward and back, where Burn's own would be tuned: those of f32 as exact as
//! they are told, those of f16 and bf16 on tensor cores.
//!
//! Burn's tuning compiles some twenty kernels for each shape, type and layout that it meets, most of them for a
//! second and more, before the first step of a training is over: minutes, and again for each new size of a batch. What
//! it takes then depends on what else the device did meanwhile.

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
use cubek::matmul::multi_level::components::tile::TileMatmulKind;
use cubek::matmul::multi_level::routines::batch::double_buffering::DoubleBufferingArgs;
use cubek::matmul::multi_level::routines::batch::ordered_double_buffering::OrderedSelectionArgs;
use cubek::matmul::multi_level::routines::batch::simple::SimpleArgs;
use cubek::matmul::routine::BlueprintStrategy;
use cubek::std::InputBinding;

use super::device::summed_in_f32;
use super::sums::over_rows;
use super::tensors::empty;
use super::watch::{LaunchedWork, launching};
use crate::cuts::product_parts;
use crate::products::F32Products;
use crate::products::ProductWay;

/// TF32 as CubeCL names it.
const TF32: ElemType = ElemType::Float(FloatKind::TF32);

/// Whether the tensor cores of a device multiply TF32 and sum in f32.
pub(crate) fn has_tf32(client: &Client) -> bool {
    multiplies(client, TF32)
}

/// Whether the tensor cores of a device multiply a half-precision type and sum in f32.
pub(crate) fn has_cores(client: &Client, dtype: DType) -> bool {
    multiplies(client, dtype_to_storage_type(dtype))
}

fn multiplies(client: &Client, of: ElemType) -> bool {
    summed_in_f32(client).any(|config| config.a_type == of)
}

/// A product of matrices, `[.., rows, inner]` and `[.., inner, columns]`, whose other axes are broadcast.
#[backend_extension(Cube, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait ProductOps: Backend {
    /// The differentiable operation; without a graph, the same as `firebox_multiply`.
    #[fusion(default)]
    fn firebox_product(
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        way: ProductWay,
    ) -> FloatTensor<Self> {
        Self::firebox_multiply(left, right, way)
    }

    /// The product alone.
    #[fusion(meta = |left, right, _way| spec(left, right))]
    fn firebox_multiply(
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        way: ProductWay,
    ) -> FloatTensor<Self>;

    /// `y`, `[matrices, rows, width]`, with a number added to each column, `[matrices, width]`.
    #[fusion(default)]
    fn firebox_add_bias(y: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        shifted::<Self>(y, bias)
    }

    /// The sums over the rows of each matrix, `[matrices, width]`, of numbers that lie as `[matrices, rows, width]`, summed
    /// in f32.
    #[fusion(meta = |x, sizes| TensorSpec::new([sizes[0], sizes[2]].into(), x.dtype))]
    fn firebox_sum_rows(x: FloatTensor<Self>, sizes: [usize; 3]) -> FloatTensor<Self>;
}

/// A sum that Burn fuses with what is around it.
fn shifted<B: Backend>(y: FloatTensor<B>, bias: FloatTensor<B>) -> FloatTensor<B> {
    let [matrices, width] = bias.shape().dims();
    B::float_add(y, B::float_reshape(bias, [matrices, 1, width].into()))
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
        way: ProductWay,
    ) -> FloatTensor<Self> {
        let out = empty(&left, shape(&left.shape(), &right.shape()), left.dtype);
        let inner = left.shape()[left.shape().num_dims() - 1];
        let numbers = |tensor: &CubeTensor| tensor.shape().num_elements();
        let all = numbers(&left) + numbers(&right) + numbers(&out);
        let work = || LaunchedWork {
            name: "product",
            shape: out.shape().iter().copied().chain([inner]).collect(),
            operations: (2 * numbers(&out) * inner) as f64,
            bytes: (left.dtype.size() * all) as f64,
            bf16: left.dtype == DType::BF16,
        };
        launching(work, || multiply(left.clone(), right.clone(), &out, way));
        out
    }

    fn firebox_sum_rows(x: FloatTensor<Self>, sizes: [usize; 3]) -> FloatTensor<Self> {
        over_rows(x, sizes)
    }
}

/// Multiplies into `out`, which is contiguous. Kernels of single threads multiply in the type of their operands; those
/// of tensor cores take f32 as TF32 where the device has it (`adjust_dtypes` of cubek), and are refused where not.
///
/// # Panics
/// If no kernel can be launched: the simplest takes every shape.
fn multiply(left: CubeTensor, right: CubeTensor, out: &CubeTensor, way: ProductWay) {
    let axes = left.shape().num_dims();
    let inner = left.shape()[axes - 1];
    let mut refused = vec![];
    for strategy in kernels(out, inner, way) {
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

// Chosen by times in TF32 on an H200 (LOG.md); of the kernels for halves only the first of those for small products has
// been timed.

/// Numbers of a result from which on a product of halves takes the largest tiles.
const LARGE: usize = 1 << 20;
/// Rows from which on a group of threads takes several rows of tiles.
const HIGH: usize = 4096;
/// Products of a sum from which on threads of their own wait for memory.
const DEEP: usize = 256;

/// The kernels for a product, the first that can be launched to be taken. Those that read by the tensor memory
/// accelerator are refused where the device has none, or an operand lies as it does not read it.
fn kernels(out: &CubeTensor, inner: usize, way: ProductWay) -> Vec<Strategy> {
    use TileMatmulKind::{Cmma, Mma};
    if let Some(asked) = way.asked.and_then(|asked| on_cores().into_iter().nth(asked)) {
        return vec![asked];
    }
    let unit = || Strategy::SimpleUnit(Default::default());
    let axes = out.shape().num_dims();
    let (rows, numbers) = (out.shape()[axes - 2], out.shape()[axes - 2] * out.shape()[axes - 1]);
    match out.dtype {
        DType::F32 if way.f32 == F32Products::Tf32 && has_tf32(&out.client) => {
            vec![simple(Cmma, false), unit(), Strategy::Naive]
        }
        DType::F32 => vec![unit(), Strategy::Naive],
        _ => {
            let first = match (numbers >= LARGE, inner >= DEEP) {
                (true, true) => vec![specialised_by_tma(), simple(Mma, true)],
                (true, false) => vec![by_tma(true), simple(Mma, true)],
                _ if rows >= HIGH => vec![simple(Mma, true)],
                _ => vec![],
            };
            let others = [simple(Mma, false), simple(Cmma, false), unit(), Strategy::Naive];
            first.into_iter().chain(others).collect()
        }
    }
}

/// A product whose operands the tensor memory accelerator reads, with threads of their own that wait for it.
fn specialised_by_tma() -> Strategy {
    Strategy::SpecializedTmaMma(BlueprintStrategy::Inferred(().into()))
}

/// A product whose operands the tensor memory accelerator reads.
fn by_tma(multi_rows: bool) -> Strategy {
    let tile_matmul = TileMatmulKind::Mma;
    Strategy::SimpleTmaMma(BlueprintStrategy::Inferred(SimpleArgs { multi_rows, tile_matmul }))
}

/// A product in one stage of shared memory.
fn simple(tile_matmul: TileMatmulKind, multi_rows: bool) -> Strategy {
    let args = BlueprintStrategy::Inferred(SimpleArgs { multi_rows, tile_matmul });
    match tile_matmul {
        TileMatmulKind::Mma => Strategy::SimpleCyclicMma(args),
        _ => Strategy::SimpleCyclicCmma(args),
    }
}

/// All that could be taken, for comparisons.
fn on_cores() -> Vec<Strategy> {
    use BlueprintStrategy::Inferred;
    use TileMatmulKind::{Cmma, Mma};
    let double = |specialized| {
        Strategy::DoubleCyclicMma(Inferred(DoubleBufferingArgs { specialized, tile_matmul: Mma }))
    };
    let ordered = |rows| {
        Strategy::OrderedDoubleMma(Inferred(OrderedSelectionArgs {
            partition_k: Some(2),
            row_count: Some(rows),
            rows_per_plane: Some(2),
            tile_matmul: Mma,
        }))
    };
    vec![
        simple(Mma, false),
        simple(Mma, true),
        simple(Cmma, false),
        simple(Cmma, true),
        double(false),
        double(true),
        ordered(4),
        ordered(8),
        Strategy::SpecializedCyclicMma(Inferred(().into())),
        by_tma(false),
        by_tma(true),
        specialised_by_tma(),
        Strategy::SimpleUnit(Default::default()),
        Strategy::DoubleUnit(Default::default()),
    ]
}

/// Names of the kernels that [`ProductWay::asked`] counts.
pub(crate) fn kernel_names() -> Vec<String> {
    on_cores().iter().map(ToString::to_string).collect()
}

fn launch(
    strategy: &Strategy,
    left: &CubeTensor,
    right: &CubeTensor,
    out: &CubeTensor,
) -> Result<(), MatmulSetupError> {
    let of = dtype_to_storage_type(out.dtype);
    let operand = |tensor: &CubeTensor| InputBinding::new(tensor.clone().binding(), of);
    let mut types = MatmulElems::from_globals(&MatmulGlobalElems { lhs: of, rhs: of, out: of });
    let (strategy, out) = (strategy.clone().into(), out.clone());
    let client = out.client.clone();
    launch_ref(&strategy, &client, operand(left), operand(right), out.binding(), &mut types)
}

/// What the gradient is computed from.
#[derive(Clone, Debug)]
struct Tape<B: Backend> {
    left: FloatTensor<B>,
    right: FloatTensor<B>,
    way: ProductWay,
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
            let gradient = match in_parts::<B>(&left, &d) {
                Some([left, d]) => {
                    let products = B::firebox_multiply(turned(left), d, way);
                    let [parts, high, wide] = products.shape().dims();
                    let sum = B::firebox_sum_rows(products, [1, parts, high * wide]);
                    B::float_reshape(sum, right_shape.clone())
                }
                None => B::firebox_multiply(turned(left), d, way),
            };
            grads.register::<B>(parent.id, summed::<B>(gradient, &right_shape));
        }
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

/// The sum over the axes that were broadcast.
fn summed<B: ProductOps>(mut gradient: FloatTensor<B>, shape: &Shape) -> FloatTensor<B> {
    for axis in 0..shape.num_dims() {
        let mut now = gradient.shape();
        if shape[axis] < now[axis] {
            let size = |axes: std::ops::Range<usize>| axes.map(|axis| now[axis]).product();
            let sizes = [size(0..axis), now[axis], size(axis + 1..now.num_dims())];
            let sum = B::firebox_sum_rows(gradient, sizes);
            now[axis] = 1;
            gradient = B::float_reshape(sum, now);
        }
    }
    gradient
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
            grads.register::<B>(parent.id, B::firebox_sum_rows(d.clone(), sizes));
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
        _: ProductWay,
    ) -> FloatTensor<Self> {
        unreachable!("the product is called below the graph, by `firebox_product`")
    }

    fn firebox_add_bias(y: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        let [(y, y_guard), (bias, bias_guard)] = [y, bias].map(|tensor| tensor.into_parts());
        match Bias.prepare::<C>([y_guard, bias_guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((), shifted::<B>(y, bias)),
            OpsKind::UnTracked(prep) => prep.finish(shifted::<B>(y, bias)),
        }
    }

    fn firebox_sum_rows(_: FloatTensor<Self>, _: [usize; 3]) -> FloatTensor<Self> {
        unreachable!("sums are of gradients, which have no graph")
    }
}
