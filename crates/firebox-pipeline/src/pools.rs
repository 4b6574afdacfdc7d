//! Where the memory of a run is taken from, for the samples of the machine: the heap of the process and
//! what the kernels keep of it, files that are mapped, and the allocator of a device.

use std::path::Path;

use firebox_core::MemoryPool;
use firebox_train::memory;

use crate::batch_size::field;
use crate::device::ChosenDevice;

/// What each of them holds now.
pub(crate) fn pools(device: &ChosenDevice) -> Vec<MemoryPool> {
    let status = |name| field(Path::new("/proc/self/status"), name);
    let mut pools = vec![];
    if let Some(allocated_bytes) = memory::held() {
        pools.push(MemoryPool {
            name: "heap".to_owned(),
            allocated_bytes,
            // What the allocator keeps for the next step is among the pages of the process.
            reserved_bytes: status("RssAnon:"),
            peak_bytes: memory::peak(),
        });
    }
    if device.backend == "cpu" {
        let [allocated_bytes, reserved] = firebox_kernels::buffer_bytes();
        pools.push(MemoryPool {
            name: "buffers of the kernels, on the heap".to_owned(),
            allocated_bytes,
            reserved_bytes: Some(reserved),
            peak_bytes: None,
        });
    } else if let Some(usage) = device.device.memory_pool_usage() {
        pools.push(MemoryPool {
            name: "device".to_owned(),
            allocated_bytes: usage.bytes_in_use,
            reserved_bytes: Some(usage.bytes_reserved),
            peak_bytes: None,
        });
    }
    if let Some(allocated_bytes) = status("RssFile:") {
        pools.push(MemoryPool {
            name: "mapped files".to_owned(),
            allocated_bytes,
            ..MemoryPool::default()
        });
    }
    pools
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_tells_of_mapped_files_and_the_kernels_of_their_buffers() {
        let device = ChosenDevice::named("cpu");
        let pools = pools(&device);
        let of = |name: &str| pools.iter().find(|pool| pool.name.starts_with(name));
        let buffers = of("buffers of the kernels").unwrap();
        assert!(buffers.reserved_bytes.unwrap() >= buffers.allocated_bytes);
        if cfg!(target_os = "linux") {
            // At least this program itself.
            assert!(of("mapped files").unwrap().allocated_bytes > 1 << 20);
        }
    }
}
