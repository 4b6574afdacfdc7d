//! The GPU kernels against a float64 reference that was written independently of them, and against
//! the composed variant on the same device.
//!
//! The device is Burn's default one, so any CubeCL runtime can be tested. Without a GPU, SwiftShader
//! (a Vulkan driver in software; f32 only, slow) does; Debian's `chromium` package has it. Through
//! `wgpu`, because CubeCL 0.11.3 miscompiles shared memory to SPIR-V for it:
//!
//! ```text
//! export VK_DRIVER_FILES=/usr/lib/chromium/vk_swiftshader_icd.json XDG_RUNTIME_DIR=/tmp
//! export __EGL_VENDOR_LIBRARY_DIRS=/none
//! cargo test -p firebox-kernels --features cube,burn/wgpu --test cube
//! cargo test -p firebox-kernels --features cube,fusion,burn/wgpu --test cube
//! ```
//!
//! It needs the loader (`libvulkan1`), too. Where that is missing, `wgpu` takes OpenGL without a word, if
//! Mesa's is there; the last variable hides it, so that all tests are skipped instead.
//!
//! In half precision, Mesa's software driver (lavapipe, `mesa-vulkan-drivers`) does f16 the same way.
//!
//! A test that finds no device prints a line that begins with `skipped: ` and passes (seen with
//! `-- --nocapture`).

#![allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
#![allow(unreachable_pub, reason = "nothing outside of this program can name its modules")]

#[path = "../lstm/support/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of the other variants")]
mod support;

mod activation;
mod attention;
mod averages;
mod batch_norm;
#[path = "../attention/case.rs"]
#[allow(dead_code, reason = "shared with the tests of the other variants")]
mod case;
mod conv;
mod element_loss;
mod embedding;
#[path = "../learning/entropy.rs"]
mod entropy;
mod indicator;
mod loss;
mod noise;
mod norm;
mod optimizer;
mod pool;
mod product;
mod recompute;
mod recurrent;
#[path = "../attention/reference.rs"]
mod reference;
mod row_noise;
mod strips;
mod tensor_cores;
mod watch;

use std::sync::{Mutex, OnceLock, PoisonError};

use burn::tensor::{DType, Device, Tensor};
use firebox_kernels::{GpuKernels, NoGpuKernels};

/// The default device, if it is one of CubeCL that computes.
fn gpu() -> Option<Device> {
    static FOUND: OnceLock<Result<(), String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let computes = std::panic::catch_unwind(|| {
            let device = Device::default();
            let sum = Tensor::<1>::ones([3], &device).sum().into_scalar::<f32>();
            assert_eq!(sum, 3.0);
            match GpuKernels::of_layer(&device, DType::F32, 1, 1, 1) {
                Err(error @ NoGpuKernels::NotGpu { .. }) => Err(error.to_string()),
                _ => Ok(()),
            }
        });
        computes.unwrap_or_else(|_| Err("no device computes".to_owned()))
    });
    match found {
        Ok(()) => Some(Device::default()),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// Runs one test at a time: a software device has only the processors that all tests share.
fn alone(test: impl FnOnce(Device)) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = gpu() {
        test(device);
    }
}
