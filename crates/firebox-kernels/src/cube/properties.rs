//! What a GPU has, as its driver tells CubeCL.

use std::collections::BTreeSet;

use burn::backend::DispatchDevice;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Device};
use burn_cubecl::cubecl::features::TypeUsage;

/// What a GPU has, as its driver tells CubeCL. Types of numbers are asked of
/// [`Device::supports_dtype`](burn::tensor::Device::supports_dtype).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProperties {
    /// Bytes of the largest tensor that the device's memory is given out for.
    pub largest_tensor: u64,
    /// Shared memory that one cube (a block of CUDA, a workgroup of Vulkan) may have, bytes.
    pub shared_memory: usize,
    /// Fewest and most threads that run in step (a warp, a subgroup).
    pub plane: [u32; 2],
    /// Streaming multiprocessors, where they are told.
    pub multiprocessors: Option<u32>,
    /// What its matrix units (tensor cores) multiply and sum in, such as `bf16 → f32`. Empty without such
    /// units, and where this backend does not reach them.
    pub matrix_units: Vec<String>,
    /// Whether it computes with integers of 8 bits.
    pub int8: bool,
}

impl GpuProperties {
    /// Asks the device; `None` if it is not one of CubeCL's.
    pub fn of(device: &Device) -> Option<Self> {
        let device = device.clone().without_autodiff();
        let DispatchDevice::Cube(cube) = device.as_dispatch() else { return None };
        let client = cube.client();
        let properties = client.properties();
        let hardware = &properties.hardware;
        let units = properties.features.matmul.cmma.iter();
        let units: BTreeSet<String> =
            units.map(|unit| format!("{} → {}", unit.a_type, unit.cd_type)).collect();
        let int8 = properties.type_usage(dtype_to_storage_type(DType::I8));
        Some(Self {
            largest_tensor: properties.memory.max_page_size,
            shared_memory: hardware.max_shared_memory_size,
            plane: [hardware.plane_size_min, hardware.plane_size_max],
            multiprocessors: hardware.num_streaming_multiprocessors,
            matrix_units: units.into_iter().collect(),
            int8: int8.contains(TypeUsage::Arithmetic),
        })
    }
}
