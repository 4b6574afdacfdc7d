//! Products of halves on tensor cores, by the kernel of [`tiled`](super::tiled), and of f32 by that of
//! [`exact`](super::exact), each in the tile that suits their sizes, or by one of cubek's ([`named`]) where that takes less
//! time, or operands lie as no tile reads them.

use std::fmt;
use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::cubecl::CubeCount;
use burn_cubecl::cubecl::tune::{
    AutotuneKey, LocalTuner, Tunable, TunableSet, TuneGroup, local_tuner,
};
use burn_cubecl::kernel::{cast, into_contiguous};
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeTuneId};
use serde::{Deserialize, Serialize};

use super::device::{self, hardware};
use super::exact;
use super::named;
use super::product::shifted;
use super::tensors::empty;
use super::tiled::{self, PlaceLaunch, PlacesLaunch};
use crate::cuts::{
    EXACT_TILES, ExactTile, Hardware, PRODUCT_TILES, ProductSizes, ProductTile, vector,
};
use crate::products::{F32Products, ProductWay};

/// Names of the kernels that [`ProductWay::asked`] counts: those of cubek, then the tiles of the type.
pub(crate) fn kernel_names() -> Vec<String> {
    let tiles = (0..TILES).map(|index| format!("tile {index}"));
    named::names().into_iter().chain(tiles).collect()
}

/// A product to be made.
#[derive(Clone)]
pub(super) struct Task {
    pub(super) left: CubeTensor,
    pub(super) right: CubeTensor,
    /// A number for each column, contiguous, in the type of the result: `[columns]`, or as many for each matrix along the
    /// first axis, however many matrices follow along the others.
    pub(super) bias: Option<CubeTensor>,
    /// The type of the result.
    pub(super) to: DType,
    /// The result's shape.
    pub(super) shape: burn::tensor::Shape,
}

/// One of the ways to make it.
#[derive(Clone, Copy, Debug)]
enum Kernel {
    Halves(ProductTile),
    F32(ExactTile),
    Named,
}

/// Tiles of the type that has most.
const TILES: usize = if PRODUCT_TILES > EXACT_TILES { PRODUCT_TILES } else { EXACT_TILES };

impl Kernel {
    /// Which of the tiles of its type it is.
    fn index(&self) -> Option<usize> {
        match self {
            Self::Halves(tile) => tile.index(),
            Self::F32(tile) => tile.index(),
            Self::Named => None,
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Halves(tile) => write!(f, "{tile}"),
            Self::F32(tile) => write!(f, "{tile}"),
            Self::Named => write!(f, "cubek"),
        }
    }
}

/// How both operands lie: along up to two axes of matrices.
#[derive(Clone, Copy, Debug)]
struct Lie {
    sizes: ProductSizes,
    /// Matrices along the last of two axes.
    matrices: usize,
    operands: [Operand; 2],
}

#[derive(Clone, Copy, Debug)]
struct Operand {
    /// Whether its columns are the runs that it lies in, not its rows.
    turned: bool,
    /// Elements from a run to the next.
    stride: usize,
    /// Elements from a matrix to the next along both axes.
    steps: [usize; 2],
    /// Elements that are read at once.
    vector: usize,
}

/// An axis of matrices: how many, and elements from one to the next in both operands.
#[derive(Clone, Copy)]
struct Axis {
    count: usize,
    steps: [usize; 2],
}

impl Lie {
    /// `None` where rows and columns of an operand both lie apart, matrices along more than two axes, or more numbers than
    /// 32 bits count.
    fn of(task: &Task) -> Option<Self> {
        let axes = task.shape.num_dims();
        let tensors = [&task.left, &task.right];
        let shapes = [task.left.shape(), task.right.shape(), task.shape.clone()];
        if shapes.iter().any(|shape| u32::try_from(shape.num_elements()).is_err()) {
            return None;
        }
        let mut outer: Vec<Axis> = vec![];
        for axis in 0..axes - 2 {
            let count = task.shape[axis];
            let step =
                |x: &&CubeTensor| if x.shape()[axis] == 1 { 0 } else { x.meta.strides()[axis] };
            let next = Axis { count, steps: tensors.each_ref().map(step) };
            match outer.last_mut() {
                _ if count == 1 => {}
                Some(last) if (0..2).all(|of| last.steps[of] == next.steps[of] * count) => {
                    *last = Axis { count: last.count * count, ..next };
                }
                _ => outer.push(next),
            }
        }
        let none = Axis { count: 1, steps: [0; 2] };
        let [first, last] = match outer[..] {
            [] => [none, none],
            [one] => [none, one],
            [first, last] => [first, last],
            _ => return None,
        };
        let operand = |of: usize| Operand::of(tensors[of], [first.steps[of], last.steps[of]]);
        Some(Self {
            sizes: ProductSizes {
                matrices: first.count * last.count,
                rows: task.shape[axes - 2],
                inner: task.left.shape()[axes - 1],
                columns: task.shape[axes - 1],
            },
            matrices: last.count,
            operands: [operand(0)?, operand(1)?],
        })
    }

    /// The tiles for a product of these sizes that lies so, the one to take untried first.
    fn tiles(
        &self,
        hardware: &Hardware,
        task: &Task,
        way: ProductWay,
        sizes: ProductSizes,
    ) -> Vec<Kernel> {
        let turned = self.operands.map(|operand| operand.turned);
        if task.left.dtype != DType::F32 {
            let (dtype, biased) = (task.left.dtype, task.bias.is_some());
            let tiles = ProductTile::candidates(hardware, dtype, sizes, turned, biased);
            return tiles.into_iter().map(Kernel::Halves).collect();
        }
        // Only products of halves have a bias, or a result of another type.
        let plain = task.bias.is_none() && task.to == DType::F32;
        let by_four = self.operands.iter().all(|operand| operand.vector.is_multiple_of(4));
        if way.f32 != F32Products::Exact || !by_four || !plain {
            return vec![];
        }
        let tiles = ExactTile::candidates(hardware, sizes, turned);
        tiles.into_iter().map(Kernel::F32).collect()
    }
}

impl Operand {
    fn of(x: &CubeTensor, steps: [usize; 2]) -> Option<Self> {
        let (shape, strides) = (x.shape(), x.meta.strides());
        let axes = shape.num_dims();
        let [rows, columns] = [shape[axes - 2], shape[axes - 1]];
        let [down, along] = [strides[axes - 2], strides[axes - 1]];
        let (turned, length, count, stride) = match () {
            () if along == 1 || columns == 1 => (false, columns, rows, down),
            () if down == 1 || rows == 1 => (true, rows, columns, along),
            () => return None,
        };
        // Where there is no next run, nobody asks how far it is.
        let stride = if count == 1 { length } else { stride };
        let widths = x.client.io_optimized_vector_sizes(x.dtype.size());
        let begin = x.handle.offset_start.unwrap_or(0) as usize / x.dtype.size();
        let vector = vector(widths, length, &[stride, steps[0], steps[1], begin]);
        Some(Self { turned, stride, steps, vector })
    }

    fn place(&self) -> PlaceLaunch {
        let [outer, matrix] = self.steps.map(|step| step as u32);
        PlaceLaunch::new(self.stride as u32, outer, matrix)
    }
}

/// Products from which on kernels are timed for a shape, where a build times any: what takes less, the launch outlasts.
const TIMED: usize = 1 << 28;

/// Tiles that are timed beside the kernel of cubek.
const TIMED_TILES: usize = 2;

/// A tensor whose numbers all lie within 32 bits of each other, if they are that few: a view of part of a larger one may lie
/// over more.
fn within_reach(x: CubeTensor) -> CubeTensor {
    let few = u32::try_from(x.shape().num_elements()).is_ok();
    let axes = 0..x.shape().num_dims();
    let reach = axes.map(|axis| x.shape()[axis].saturating_sub(1) * x.meta.strides()[axis]);
    match few && reach.sum::<usize>() > u32::MAX as usize {
        true => into_contiguous(x),
        false => x,
    }
}

/// The product.
pub(super) fn multiply(task: Task, way: ProductWay) -> CubeTensor {
    let Task { left, right, .. } = task;
    let task = Task { left: within_reach(left), right: within_reach(right), ..task };
    let hardware = hardware(&task.left.client);
    let Some(lie) = Lie::of(&task) else { return by_name(task, way) };
    let tiles = lie.tiles(&hardware, &task, way, lie.sizes);
    if let Some(asked) = way.asked {
        let tile = asked.checked_sub(named::names().len());
        let tile = tile.map(|tile| tiles.iter().find(|of| of.index() == Some(tile)));
        return match tile {
            Some(Some(tile)) => launch(&task, &lie, *tile, way),
            Some(None) => panic!("no tile {asked} for {:?}", lie.sizes),
            None => by_name(task, way),
        };
    }
    let Some(first) = tiles.first() else { return by_name(task, way) };
    let ProductSizes { matrices, rows, inner, columns } = lie.sizes;
    match cfg!(feature = "autotune") && matrices * rows * inner * columns >= TIMED {
        true => tuned(task, lie, &tiles, &hardware, way),
        false => launch(&task, &lie, *first, way),
    }
}

/// The product by a kernel of cubek, which sums in f32 and rounds to a half only where that is wanted.
fn by_name(Task { left, right, bias, to, shape }: Task, way: ProductWay) -> CubeTensor {
    let out = empty(&left, shape, if to == DType::F32 { to } else { left.dtype });
    named::multiply(left, right, &out, way);
    let out = cast(out, to);
    match bias {
        Some(bias) => shifted::<CubeBackend>(out, bias),
        None => out,
    }
}

fn launch(task: &Task, lie: &Lie, kernel: Kernel, way: ProductWay) -> CubeTensor {
    let Task { left, right, bias, to, shape } = task;
    let sizes = lie.sizes;
    let ([along, down], dim) = match kernel {
        Kernel::Halves(tile) => (tile.count(sizes), tile.dim()),
        Kernel::F32(tile) => (tile.count(sizes), tile.dim()),
        Kernel::Named => return by_name(task.clone(), way),
    };
    let out = empty(left, shape.clone(), *to);
    let count = CubeCount::Static(along as u32, down as u32, sizes.matrices as u32);
    let [left_place, right_place] = lie.operands.map(|operand| operand.place());
    let biases = bias.as_ref().map_or(1, |bias| bias.shape().num_elements() / sizes.columns);
    let bias_step = if biases == 1 { 0 } else { sizes.columns };
    let places = PlacesLaunch::new(
        sizes.rows as u32,
        sizes.columns as u32,
        sizes.inner as u32,
        lie.matrices as u32,
        (sizes.matrices / biases) as u32,
        bias_step as u32,
        left_place,
        right_place,
    );
    // What is not there is not read.
    let bias = bias.as_ref().unwrap_or(&out);
    let width = if sizes.columns.is_multiple_of(4) { 4 } else { 1 };
    let [left_vector, right_vector] = lie.operands.map(|operand| operand.vector);
    // SAFETY: the kernel compares rows, columns and what it sums over with the sizes of the matrices, which lie in the
    // buffers as the places say, and a vector begins and ends in a run; there is a number of the bias for each column.
    unsafe {
        if let Kernel::F32(tile) = kernel {
            exact::product::launch_unchecked(
                &left.client,
                count,
                device::dim(dim),
                width,
                left.clone().into_buffer_arg(),
                right.clone().into_buffer_arg(),
                out.clone().into_buffer_arg(),
                places,
                tile,
            );
        } else if let Kernel::Halves(tile) = kernel {
            tiled::product::launch_unchecked(
                &left.client,
                count,
                device::dim(dim),
                left_vector,
                right_vector,
                width,
                left.clone().into_buffer_arg(),
                right.clone().into_buffer_arg(),
                bias.clone().into_buffer_arg(),
                out.clone().into_buffer_arg(),
                places,
                tile,
                dtype_to_storage_type(left.dtype),
                dtype_to_storage_type(*to),
            );
        }
    }
    out
}

/// What a tuning is kept for: products up to the same powers of two, of operands that lie alike, on a device of this name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Tuning {
    product: String,
    /// Indices of the tiles that are timed, and one more for cubek.
    offered: Vec<usize>,
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.product)
    }
}

impl AutotuneKey for Tuning {}

/// What makes the product by a kernel.
type Run = Arc<dyn Fn(Kernel) -> CubeTensor + Send + Sync>;

/// The product by the kernel that takes the least time, which is found out at the first of its kind and kept in CubeCL's
/// cache of tunings.
fn tuned(
    task: Task,
    lie: Lie,
    tiles: &[Kernel],
    hardware: &Hardware,
    way: ProductWay,
) -> CubeTensor {
    /// A product's tuning, its kernels by their index, and what runs them.
    type Inputs = (Tuning, Arc<[Option<Kernel>]>, Run);
    static TUNER: LocalTuner<Tuning, CubeTuneId> = local_tuner!("product");
    let (client, device) = (task.left.client.clone(), task.left.device.clone());
    let id = CubeTuneId::new(&client, &device);
    let set = TUNER.init(&id, || {
        let key = |(key, _, _): &Inputs| key.clone();
        let group = TuneGroup::<Tuning>::new("product", |_| 0);
        let mut set = TunableSet::<Tuning, Inputs, CubeTensor>::new_cloning_inputs(key);
        for index in 0..=TILES {
            let make = move |(_, kernels, run): Inputs| match kernels[index] {
                Some(kernel) => Ok(run(kernel)),
                None => Err("the product has no such tile"),
            };
            let offered = move |key: &Tuning| if key.offered.contains(&index) { 0 } else { -1 };
            set = set.with(Tunable::new(&format!("kernel {index}"), make).group(&group, offered));
        }
        set
    });
    let ProductSizes { matrices, rows, inner, columns } = lie.sizes;
    let [matrices, rows, inner, columns] =
        [matrices, rows, inner, columns].map(usize::next_power_of_two);
    let rounded = ProductSizes { matrices, rows, inner, columns };
    // Which are worth timing follows from the rounded sizes, as the key does.
    let of_rounded = lie.tiles(hardware, &task, way, rounded);
    let mut kernels = vec![None; TILES + 1];
    // In f32 the time changes no bit: all tiles sum in one order, the kernel of cubek in another.
    kernels[TILES] = Some(Kernel::Named).filter(|_| task.left.dtype != DType::F32);
    for tile in of_rounded.iter().take(TIMED_TILES).filter_map(Kernel::index) {
        kernels[tile] = tiles.iter().find(|of| of.index() == Some(tile)).copied();
    }
    let offered: Vec<_> = (0..=TILES).filter(|index| kernels[*index].is_some()).collect();
    if offered.is_empty() {
        return launch(&task, &lie, tiles[0], way);
    }
    let names: Vec<_> = kernels.iter().flatten().map(ToString::to_string).collect();
    let name = &client.properties().identity.name;
    let lies = lie.operands.map(|Operand { turned, vector, .. }| (turned, vector));
    let (from, to) = (task.left.dtype, task.to);
    let product = format!("{rounded:?} of {from:?} to {to:?}, {lies:?}, {name}: {names:?}");
    let run: Run = Arc::new(move |kernel| launch(&task, &lie, kernel, way));
    TUNER.execute(&id, &client, set, (Tuning { product, offered }, kernels.into(), run))
}
