//! Operations on a GPU, through CubeCL (CUDA, ROCm, Metal, Vulkan and WebGPU): the LSTM or GRU layer,
//! attention, layer normalisation, cross-entropy, dropout, noise and optimizer steps. Each has its own file with
//! the operation and most another with its kernels; which tensors take which way is decided outside.
//!
//! Of a recurrent layer, one launch walks all steps and directions; a second one walks them back. A
//! cube (workgroup) owns a tile of samples in one direction. Samples do not depend on each other, so
//! no cube ever waits for another one, and barriers within a cube are enough on every runtime. Large
//! matmuls before and after the launches do what is not recurrent: the input projection, and the
//! gradients of weights and input. The four columns of a cell (an LSTM's gates) lie next to each other,
//! so that a thread reads and writes them at once.
//!
//! Numbers are stored in the type of the tensors; sums, states, and the cells and moments that are saved
//! for the way back are f32.
//!
//! In half precision, recurrent layers run on [`tensor_cores`] where the device has them, and attention does
//! in [`strips`]. Recurrent layers take the tile that needs the least time at first use ([`cut`]); how
//! attention is cut follows from the device's properties.

#![allow(clippy::manual_is_multiple_of, reason = "kernels have no such method")]

mod attend;
mod attend_back;
mod attention;
mod autodiff;
mod backward;
mod cell;
mod cut;
mod dropout;
mod forward;
mod kernels;
mod launch;
mod list;
mod loss;
mod math;
mod norm;
mod op;
mod optimizer;
mod properties;
mod row_noise;
mod rows;
mod softmax;
mod strips;
mod sweep;
mod team;
mod tensor_cores;
mod tensors;
mod tile;
mod watch;

pub(crate) use attention::{AttentionCall, AttentionOps};
pub(crate) use dropout::{DeviceMask, DropoutOps};
pub use kernels::{GpuKernels, NoGpuKernels};
pub(crate) use list::TensorList;
pub(crate) use loss::{EntropyOps, EntropySettings};
pub(crate) use norm::{NormOps, NormSettings, norm_fits};
pub(crate) use op::{LstmOps, Way};
pub(crate) use optimizer::{AdamWSettings, OptimizerOps, StepNumbers, has_room};
pub use properties::GpuProperties;
pub(crate) use row_noise::{RowNoiseOps, threads as row_noise_threads};
pub(crate) use sweep::COLUMNS;
pub use watch::{LaunchWatch, Launched, LaunchedRun, LaunchedWork};

/// How many parts a batch is cut into for the gradients of the weights. Those are sums over all
/// samples and steps for few numbers: as one matmul they would keep a few processors of the device
/// busy. The largest divisor of the batch up to 16, which also keeps each sum shorter.
pub(crate) fn parts(batch: usize) -> usize {
    (1..=16.min(batch)).rev().find(|parts| batch.is_multiple_of(*parts)).unwrap_or(1)
}

/// A device for tests of how launches are cut: planes of 32, and with this much shared memory, as many threads
/// of a cube, and, if they are told, processors.
#[cfg(test)]
fn hardware(
    shared: usize,
    threads: u32,
    processors: Option<u32>,
) -> burn_cubecl::cubecl::ir::HardwareProperties {
    burn_cubecl::cubecl::ir::HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: 32,
        plane_size_max: 32,
        max_bindings: 16,
        max_shared_memory_size: shared,
        max_cube_count: (65_535, 65_535, 65_535),
        max_units_per_cube: threads,
        max_cube_dim: (threads, threads, 64),
        num_streaming_multiprocessors: processors,
        num_cpu_cores: None,
        last_level_cache_size: None,
        num_tensor_cores: None,
        min_tensor_cores_dim: None,
        max_vector_size: 4,
        cube_mma_reserved_shared_memory: 0,
    }
}
