//! NVIDIA GPUs through the driver's management library, which is loaded at run time. Where it is
//! not there, there is a reason instead, and nothing fails.

use firebox_core::GpuSample;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};

/// Free memory of a GPU in bytes, now. `numbered` says whether `index` counts as the driver does, as
/// CUDA's does; otherwise it is known only where there is one GPU.
pub fn free_gpu_memory(index: u32, numbered: bool) -> Option<u64> {
    let gpus = Gpus::find();
    let library = gpus.library.ok()?;
    let index = if numbered { index } else { (gpus.count == 1).then_some(0)? };
    Some(library.device_by_index(index).ok()?.memory_info().ok()?.free)
}

/// The GPUs that can be asked, or why none can.
pub(crate) struct Gpus {
    library: Result<Nvml, String>,
    count: u32,
}

impl Gpus {
    /// Loads the library.
    pub(crate) fn find() -> Self {
        let library = Nvml::init().map_err(|error| error.to_string());
        match library {
            Ok(library) => match library.device_count() {
                Ok(0) => Self { library: Err("the driver shows no GPU".to_owned()), count: 0 },
                Ok(count) => Self { library: Ok(library), count },
                Err(error) => Self { library: Err(error.to_string()), count: 0 },
            },
            Err(reason) => Self { library: Err(reason), count: 0 },
        }
    }

    /// None, as on a machine without a driver.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self { library: Err("not asked for".to_owned()), count: 0 }
    }

    /// Why there is nothing to ask.
    pub(crate) fn absence(&self) -> Option<&str> {
        self.library.as_ref().err().map(String::as_str)
    }

    /// What each GPU does now.
    pub(crate) fn sample(&self) -> Vec<GpuSample> {
        let Ok(library) = &self.library else { return vec![] };
        (0..self.count)
            .filter_map(|index| {
                let device = library.device_by_index(index).ok()?;
                let memory = device.memory_info().ok();
                Some(GpuSample {
                    index,
                    name: device.name().unwrap_or_default(),
                    utilisation: device.utilization_rates().ok().map(|u| f64::from(u.gpu) / 100.0),
                    memory_used_bytes: memory.as_ref().map(|memory| memory.used),
                    memory_bytes: memory.as_ref().map(|memory| memory.total),
                    clock_mhz: device.clock_info(Clock::SM).ok(),
                    power_watts: device.power_usage().ok().map(|mw| f64::from(mw) / 1e3),
                    temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_says_why_and_has_no_samples() {
        let gpus = Gpus::find();
        match gpus.absence() {
            Some(reason) => assert!(!reason.is_empty() && gpus.sample().is_empty()),
            None => assert!(gpus.sample().iter().all(|gpu| !gpu.name.is_empty())),
        }
        assert!(Gpus::none().absence().is_some() && Gpus::none().sample().is_empty());
    }
}
