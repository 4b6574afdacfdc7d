//! How launches on a GPU are cut into cubes, and which variant of the kernels runs: plain arithmetic on what
//! a device offers ([`Hardware`]) and on the sizes of an operation.
//!
//! Nothing here asks a device, launches anything or uses CubeCL. [`cube`](crate::cube) makes the [`Hardware`]
//! of a device's properties, and compiles kernels for the cuts that come out: they read strides, counts and
//! places from them. Builds without GPU kernels compile this for its tests alone.
//!
//! Threads of a cube and cubes of a launch are given along two axes, `[x, y]`.

mod attention;
mod cores;
mod exact;
mod fragments;
mod hardware;
mod names;
mod plain;
mod product;
mod recurrent;
mod strips;
mod sweep;
mod teams;
#[cfg(test)]
mod tests;

pub(crate) use attention::{AttentionCut, AttentionPlan, AttentionTask};
pub(crate) use cores::{ALIGN, CoreTile, Place, Shape};
pub(crate) use exact::{EXACT_TILES, ExactTile};
pub(crate) use fragments::FragmentTile;
pub(crate) use hardware::Hardware;
pub(crate) use names::without_modules;
pub(crate) use plain::Tile;
pub(crate) use product::{PRODUCT_TILES, ProductSizes, ProductTile, Runs, vector};
pub(crate) use recurrent::{CUTS, Cut, Layer, Pass, parts};
pub use recurrent::{GpuKernels, NoGpuKernels};
pub(crate) use strips::Strips;
pub(crate) use sweep::{Sweep, is_countable, tensors_at_once};
pub(crate) use teams::{Columns, Scatter, Spread, Team, batch_norm_fits, norm_fits, product_parts};
