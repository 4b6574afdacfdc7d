//! Sums over the rows of matrices: gradients of biases and of weights that were broadcast, and of products that were
//! made in parts.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::{self, CubeCount, prelude::*};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::columns::{add_down, column, first_row, stride};
use super::device::{self, without_cores};
use super::tensors::empty;
use super::watch::{LaunchedWork, launching};
use crate::cuts::{Columns, Team, is_countable};

/// What the rows of each cube add up to, in f32. `CUBE_POS_Z` is the matrix, `CUBE_POS_X` a block of columns, and the
/// cubes along y share the rows.
///
/// # Shapes
/// - x: `[matrices, rows, width]`
/// - sums: `[matrices, cubes along y, width]`
#[cube(launch_unchecked)]
fn row_sums<F: Float, S: Float>(
    x: &[F],
    sums: &mut [S],
    rows: u32,
    width: u32,
    #[comptime] team: Team,
    #[define(F)] _of: ElemType,
    #[define(S)] _to: ElemType,
) {
    let (rows, width) = (rows as usize, width as usize);
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(team.threads()));
    let (column, matrix) = (column(team), CUBE_POS_Z as usize);
    // A thread without a column takes part in the sums.
    let end = select::<usize>(column < width, rows, 0usize);
    let mut sum = 0.0f32;
    for row in range_stepped(first_row(team), end, stride(team)) {
        sum += f32::cast_from(x[(matrix * rows + row) * width + column]);
    }
    scratch[UNIT_POS as usize] = sum;
    add_down(&mut scratch, 1usize, team);
    if UNIT_POS_Y == 0 && column < width {
        let to = (matrix * CUBE_COUNT_Y as usize + CUBE_POS_Y as usize) * width + column;
        sums[to] = S::cast_from(scratch[UNIT_POS as usize]);
    }
}

/// The sums over the rows of each matrix, `[matrices, width]`, of numbers that lie as `[matrices, rows, width]`, in a type;
/// summed in f32.
pub(super) fn over_rows(
    x: CubeTensor,
    [matrices, rows, width]: [usize; 3],
    to: DType,
) -> CubeTensor {
    let hardware = without_cores(&x.client);
    let columns = Columns::summed(&hardware, matrices, rows, width);
    let few = Columns::summed(&hardware, matrices, columns.cubes, width).alone();
    let fit = [columns, few].iter().all(|columns| columns.fit(&hardware, matrices));
    if !is_countable(matrices * rows * width) || !fit {
        // Burn's own sum counts in 64 bits where it has to, and spreads its cubes along all axes.
        let x = CubeBackend::float_reshape(x, [matrices, rows, width].into());
        let sums = CubeBackend::float_cast(CubeBackend::float_sum_dim(x, 1), to.into());
        return CubeBackend::float_reshape(sums, [matrices, width].into());
    }
    let x = into_contiguous(x);
    if columns.cubes == 1 {
        return launch(&x, [matrices, rows, width], columns, to);
    }
    let parts = launch(&x, [matrices, rows, width], columns, DType::F32);
    launch(&parts, [matrices, columns.cubes, width], few, to)
}

fn launch(
    x: &CubeTensor,
    [matrices, rows, width]: [usize; 3],
    columns: Columns,
    dtype: DType,
) -> CubeTensor {
    let sums = match columns.cubes {
        1 => empty(x, [matrices, width], dtype),
        cubes => empty(x, [matrices, cubes, width], dtype),
    };
    let work = || LaunchedWork {
        name: "sums over rows",
        shape: vec![matrices, rows, width],
        operations: (matrices * rows * width) as f64,
        bytes: (x.dtype.size() * matrices * rows * width) as f64,
        bf16: x.dtype == DType::BF16,
    };
    let count = CubeCount::Static(columns.blocks as u32, columns.cubes as u32, matrices as u32);
    // SAFETY: the kernel compares rows and columns with the sizes that both buffers were allocated for, and there is a cube
    // for each part of each matrix.
    launching(work, || unsafe {
        row_sums::launch_unchecked(
            &x.client,
            count,
            device::dim(columns.team.dim()),
            x.clone().into_buffer_arg(),
            sums.clone().into_buffer_arg(),
            rows as u32,
            width as u32,
            columns.team,
            dtype_to_storage_type(x.dtype),
            dtype_to_storage_type(dtype),
        );
    });
    sums
}
