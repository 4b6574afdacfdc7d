//! Operations on a GPU, through CubeCL (CUDA, ROCm, Metal, Vulkan and WebGPU): the LSTM or GRU layer,
//! attention, layer and batch normalisation, losses, maxima of steps, embeddings, GELU, rectifier, dropout, noise
//! and optimizer steps. Each has its own file with the operation and most another with its kernels; which tensors
//! take which way is decided outside.
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
//! in [`strips`]. How launches are cut follows from the device's properties ([`cuts`](crate::cuts)); of the
//! tiles of a recurrent layer, the one that needs the least time at first use is taken ([`cut`]).

#![allow(
    clippy::manual_is_multiple_of,
    clippy::manual_div_ceil,
    clippy::manual_clamp,
    reason = "kernels have no such methods, or others"
)]

mod activation;
mod attend;
mod attend_back;
mod attention;
mod autodiff;
mod backward;
mod batch_norm;
mod bits;
mod by_unit;
mod cell;
mod columns;
mod convert;
mod cut;
mod device;
mod dropout;
mod element;
mod element_loss;
mod embedding;
mod exact;
mod forward;
mod fragments;
#[cfg(feature = "persistence")]
mod kept;
mod kernels;
mod launch;
mod list;
mod loss;
mod math;
mod named;
mod noise;
mod norm;
mod op;
mod optimizer;
mod permutation;
mod pool;
mod product;
mod properties;
mod residual;
mod row_noise;
mod rows;
mod softmax;
mod strips;
mod sums;
mod sweep;
mod team;
mod tensor_cores;
mod tensors;
mod tiled;
mod tiles;
mod unfold;
mod watch;

pub(crate) use activation::{ActivationOps, ActivationSettings};
pub(crate) use attention::{AttentionCall, AttentionOps};
pub(crate) use batch_norm::{BatchMoments, BatchNormOps, BatchNormSettings, batch_norm_fits};
pub(crate) use bits::BitOps;
pub(crate) use by_unit::{Factor, Parameters, UnitOps};
pub(crate) use dropout::{DeviceMask, DropoutOps};
pub(crate) use element::{Formula, WeightsOf};
pub(crate) use element_loss::{ElementOps, ElementSettings};
pub(crate) use embedding::EmbeddingOps;
#[cfg(feature = "persistence")]
pub use kept::keep_compiled_kernels;
pub(crate) use list::TensorList;
pub(crate) use loss::{EntropyOps, EntropySettings};
pub(crate) use named::{has_cores, has_tf32};
pub(crate) use noise::{DeviceNoise, NoiseOps};
pub(crate) use norm::{NormOps, NormSettings, norm_fits};
pub(crate) use op::{LstmOps, Way};
pub(crate) use optimizer::{
    Combination, OptimizerOps, ScaleState, StepNumbers, StepSettings, has_room,
};
pub(crate) use permutation::PermutationOps;
pub(crate) use pool::PoolOps;
pub(crate) use product::ProductOps;
pub use properties::GpuProperties;
pub(crate) use residual::ResidualOps;
pub(crate) use row_noise::{RowNoiseOps, threads as row_noise_threads};
pub(crate) use sweep::{COLUMNS, DESCENT_COLUMNS};
pub(crate) use tiles::kernel_names;
pub(crate) use unfold::UnfoldOps;
pub use watch::{LaunchWatch, Launched, LaunchedRun, LaunchedWork};
