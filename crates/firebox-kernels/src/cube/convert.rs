//! Numbers in another float type on a GPU: several tensors in one launch, and each as it lies, where Burn's own pads rows,
//! which whoever wants them whole has to copy.

use burn_cubecl::cubecl::{self, prelude::*};
use burn_cubecl::kernel::{cast, into_contiguous};
use burn_cubecl::tensor::CubeTensor;

use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;

use super::device::{self, without_cores};
use super::sweep::{is_of, strided};
use super::tensors::{arguments, empty};
use super::watch::{LaunchedWork, launching};
use crate::cuts::{Sweep, Team, tensors_at_once};

/// Numbers that a thread reads at once, where their counts allow it.
const VECTOR: usize = 4;

/// Writes tensors in another type.
#[cube(launch_unchecked)]
fn convert<F: Float, T: Float, N: Size>(
    from: &Sequence<Box<[Vector<F, N>]>>,
    to: &mut Sequence<Box<[Vector<T, N>]>>,
    sizes: &Sequence<u32>,
    ends: &Sequence<u32>,
    #[define(F)] _given: ElemType,
    #[define(T)] _wanted: ElemType,
) {
    #[unroll]
    for i in 0..from.len() {
        if is_of(ends, i) {
            let (begin, stride) = strided(ends, i);
            let (from, to) = (&from[i], &mut to[i]);
            for at in range_stepped(begin, sizes[i] as usize, stride) {
                to[at] = Vector::cast_from(from[at]);
            }
        }
    }
}

/// A tensor whose numbers fill its memory, in whatever order.
fn dense(x: CubeTensor) -> CubeTensor {
    if x.is_contiguous_buffer() && x.is_nonoverlapping() { x } else { into_contiguous(x) }
}

/// Tensors of one other float type in this one; each has the order in memory that it had, if it filled its memory. There
/// are numbers.
pub(super) fn converted(tensors: Vec<CubeTensor>, dtype: DType) -> Vec<CubeTensor> {
    let count = |x: &CubeTensor| x.shape().num_elements();
    // Places are numbers of 32 bits here.
    if tensors.iter().any(|x| count(x) > i32::MAX as usize) {
        return tensors.into_iter().map(|x| cast(x, dtype)).collect();
    }
    let tensors: Vec<CubeTensor> = tensors.into_iter().map(dense).collect();
    let from = tensors[0].dtype;
    debug_assert!(tensors.iter().all(|x| x.dtype == from), "operands have one type");
    let new = |x: &CubeTensor| CubeTensor { meta: x.meta.clone(), ..empty(x, x.shape(), dtype) };
    let out: Vec<CubeTensor> = tensors.iter().map(new).collect();
    let client = tensors[0].client.clone();
    let hardware = without_cores(&client);
    let team = Team::whole(&hardware);
    let at_once = tensors_at_once(&hardware, 2).max(1);
    let vector = if tensors.iter().all(|x| count(x).is_multiple_of(VECTOR)) { VECTOR } else { 1 };
    for (given, made) in tensors.chunks(at_once).zip(out.chunks(at_once)) {
        let sweep = Sweep::new(&hardware, team, given.iter().map(|x| count(x) / vector));
        let numbers = given.iter().map(count).sum::<usize>();
        let work = || LaunchedWork {
            name: "conversion",
            shape: vec![numbers],
            operations: 0.0,
            bytes: (numbers * (from.size() + dtype.size())) as f64,
            bf16: false,
        };
        // SAFETY: a cube compares every index with the size of its tensor, which both have, as they fill their memory; no
        // two cubes write the same number.
        launching(work, || unsafe {
            convert::launch_unchecked(
                &client,
                device::count([sweep.cubes() as usize, 1]),
                device::dim(team.dim()),
                vector,
                arguments(given),
                arguments(made),
                sweep.sizes.iter().copied().collect(),
                sweep.ends.iter().copied().collect(),
                dtype_to_storage_type(from),
                dtype_to_storage_type(dtype),
            );
        });
    }
    out
}
