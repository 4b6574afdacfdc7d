//! Kernels that stay compiled from one process to the next.

use burn_cubecl::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

/// Has CubeCL keep what it compiles for devices, so that the next process loads it instead of compiling it
/// anew, which for CUDA takes a tenth of a second to seconds a kernel. It lies beside the tunings that CubeCL
/// keeps (`environment` in `cubecl.toml` says where), and is told apart by compiler, device and program.
///
/// Everything else stays as `cubecl.toml` and the variables `CUBECL_…` have it. To be called before the first
/// device is asked for; returns whether it was: later it changes nothing.
pub fn keep_compiled_kernels() -> bool {
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    config.compilation.cache = true;
    CubeClRuntimeConfig::try_set(config)
}
