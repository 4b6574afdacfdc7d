//! Between CubeCL and [`cuts`](crate::cuts): what a device offers, and cubes and threads as a launch takes
//! them.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::features::{MmaConfig, Plane};
use burn_cubecl::cubecl::ir::{ElemType, FloatKind};
use burn_cubecl::cubecl::{CubeCount, CubeDim};

use crate::cuts::{Hardware, Shape};

/// Types that the kernels take.
pub(super) const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// What a device offers.
pub(super) fn hardware(client: &Client) -> Hardware {
    Hardware { cores: cores(client), by_hand: by_hand(client), ..without_cores(client) }
}

/// The same but for tensor cores, of which there is a list to be made: for launches that have no use for them.
pub(super) fn without_cores(client: &Client) -> Hardware {
    let properties = client.properties();
    let has = &properties.hardware;
    Hardware {
        shared_memory: has.max_shared_memory_size,
        threads: has.max_units_per_cube as usize,
        dim: [has.max_cube_dim.0 as usize, has.max_cube_dim.1 as usize],
        count: [has.max_cube_count.0 as usize, has.max_cube_count.1 as usize],
        bindings: has.max_bindings as usize,
        plane: [has.plane_size_min as usize, has.plane_size_max as usize],
        plane_barrier: properties.features.plane.contains(Plane::Sync),
        processors: has.num_streaming_multiprocessors.map(|count| count as usize),
        cores: vec![],
        by_hand: vec![],
    }
}

/// What tensor cores multiply two of, and sum in f32.
pub(super) fn summed_in_f32(client: &Client) -> impl Iterator<Item = &MmaConfig> {
    let f32 = ElemType::Float(FloatKind::F32);
    let configs = client.properties().features.matmul.cmma.iter();
    configs.filter(move |c| c.a_type == c.b_type && c.cd_type == f32)
}

/// The same in types that the kernels take there, f16 and bf16.
fn cores(client: &Client) -> Vec<(DType, Shape)> {
    summed_in_f32(client)
        .filter_map(|c| {
            let mut halves = TYPES.into_iter().filter(|of| *of != DType::F32);
            let dtype = halves.find(|of| dtype_to_storage_type(*of) == c.a_type)?;
            Some((dtype, Shape { m: c.m as usize, n: c.n as usize, k: c.k as usize }))
        })
        .collect()
}

/// What kernels can multiply register by register, as NVIDIA's devices do.
fn by_hand(client: &Client) -> Vec<DType> {
    let (features, f32) = (&client.properties().features.matmul, ElemType::Float(FloatKind::F32));
    let takes = |dtype: &DType| {
        let of = dtype_to_storage_type(*dtype);
        let config = MmaConfig { a_type: of, b_type: of, cd_type: f32, m: 16, n: 8, k: 16 };
        features.mma.contains(&config) && features.ldmatrix.contains(&of)
    };
    TYPES.into_iter().filter(|dtype| *dtype != DType::F32).filter(takes).collect()
}

/// Cubes of a launch.
pub(super) fn count([x, y]: [usize; 2]) -> CubeCount {
    CubeCount::Static(x as u32, y as u32, 1)
}

/// Threads of a cube.
pub(super) fn dim([x, y]: [usize; 2]) -> CubeDim {
    CubeDim::new_2d(x as u32, y as u32)
}
