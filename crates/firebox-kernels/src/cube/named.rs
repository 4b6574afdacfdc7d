//! The kernels of cubek that products are made by, by their names: TF32, and f32 and halves where
//! [`tiles`](super::tiles) does not.

use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
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
use crate::products::{F32Products, ProductWay};

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

/// Multiplies into `out`, which is contiguous and may be f32 where the operands are halves: they are summed in f32. Kernels
/// of single threads multiply in the type of their operands; those of tensor cores take f32 as TF32 where the device has it
/// (`adjust_dtypes` of cubek), and are refused where not.
///
/// # Panics
/// If no kernel can be launched: the simplest takes every shape.
pub(super) fn multiply(left: CubeTensor, right: CubeTensor, out: &CubeTensor, way: ProductWay) {
    let axes = left.shape().num_dims();
    let inner = left.shape()[axes - 1];
    let mut refused = vec![];
    for strategy in kernels(left.dtype, out, inner, way) {
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

/// The kernels for a product of operands of a type, the first that can be launched to be taken. Those that read by the tensor memory
/// accelerator are refused where the device has none, or an operand lies as it does not read it.
fn kernels(of: DType, out: &CubeTensor, inner: usize, way: ProductWay) -> Vec<Strategy> {
    use TileMatmulKind::{Cmma, Mma};
    if let Some(asked) = way.asked.and_then(|asked| on_cores().into_iter().nth(asked)) {
        return vec![asked];
    }
    let unit = || Strategy::SimpleUnit(Default::default());
    let axes = out.shape().num_dims();
    let (rows, numbers) = (out.shape()[axes - 2], out.shape()[axes - 2] * out.shape()[axes - 1]);
    match of {
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

/// Names of all that could be taken.
pub(super) fn names() -> Vec<String> {
    on_cores().iter().map(ToString::to_string).collect()
}

fn launch(
    strategy: &Strategy,
    left: &CubeTensor,
    right: &CubeTensor,
    out: &CubeTensor,
) -> Result<(), MatmulSetupError> {
    let [of, to] = [left, out].map(|tensor| dtype_to_storage_type(tensor.dtype));
    let operand = |tensor: &CubeTensor| InputBinding::new(tensor.clone().binding(), of);
    let mut types = MatmulElems::from_globals(&MatmulGlobalElems { lhs: of, rhs: of, out: to });
    let (strategy, out) = (strategy.clone().into(), out.clone());
    let client = out.client.clone();
    launch_ref(&strategy, &client, operand(left), operand(right), out.binding(), &mut types)
}
