//! What the examined device has besides types of numbers.

use serde::Serialize;

use crate::device::ChosenDevice;

/// What the examined device has besides types of numbers, as far as it can be asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Hardware {
    /// Memory, MiB; of a processor what this process may use, which its control group may limit.
    pub memory_mib: Option<f64>,
    /// Version of the driver.
    pub driver: Option<String>,
    /// What its matrix units (tensor cores) multiply and sum in; empty without them.
    pub matrix_units: Vec<String>,
    /// Whether it has instructions for integers of 8 bits. Nothing here trains in them.
    pub int8: bool,
    /// Shared memory that one cube (block, workgroup) may have, KiB.
    pub shared_memory_kib: Option<f64>,
    /// Whether a step can be recorded and replayed as a graph of launches.
    pub graph_capture: bool,
}

impl Hardware {
    pub(super) fn of(device: &ChosenDevice) -> Self {
        if device.backend == "cpu" { Self::of_processor() } else { Self::of_gpu(device) }
    }

    fn of_processor() -> Self {
        let mut system = sysinfo::System::new();
        system.refresh_memory();
        let machine = system.total_memory();
        let memory = firebox_monitor::group_limit().map_or(machine, |limit| limit.min(machine));
        Self {
            memory_mib: Some(mib(memory)).filter(|mib| *mib > 0.0),
            int8: has_int8(),
            ..Self::default()
        }
    }

    #[cfg(feature = "gpu")]
    fn of_gpu(device: &ChosenDevice) -> Self {
        let properties = firebox_kernels::GpuProperties::of(&device.device);
        let card = firebox_monitor::gpu_card(device.index(), device.backend == "cuda");
        let shared = properties.as_ref().map(|found| found.shared_memory as f64 / 1024.0);
        Self {
            memory_mib: card.as_ref().map(|card| mib(card.memory)),
            driver: card.and_then(|card| card.driver),
            int8: properties.as_ref().is_some_and(|found| found.int8),
            matrix_units: properties.map_or(vec![], |found| found.matrix_units),
            shared_memory_kib: shared,
            graph_capture: false,
        }
    }

    #[cfg(not(feature = "gpu"))]
    fn of_gpu(_: &ChosenDevice) -> Self {
        Self::default()
    }

    /// Each with its name.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let or = |text: Option<String>, none: &str| text.unwrap_or_else(|| none.to_owned());
        let units = match self.matrix_units.as_slice() {
            [] => "none, or none that this backend reaches".to_owned(),
            units => units.join(", "),
        };
        let int8 = if self.int8 { "there; nothing here trains in it" } else { "no instructions" };
        vec![
            ("memory", or(self.memory_mib.map(|mib| format!("{mib:.0} MiB")), "not reported")),
            ("driver", or(self.driver.clone(), "none, or not reported")),
            ("tensor cores", units),
            ("int8", int8.to_owned()),
            (
                "shared memory of a cube",
                or(self.shared_memory_kib.map(|kib| format!("{kib:.0} KiB")), "none"),
            ),
            (
                "graph capture",
                "no: Burn 0.22 records no step that has gradients, on any device".to_owned(),
            ),
        ]
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(target_arch = "x86_64")]
fn has_int8() -> bool {
    let either = [
        std::arch::is_x86_feature_detected!("avx512vnni"),
        std::arch::is_x86_feature_detected!("avxvnni"),
    ];
    either.contains(&true)
}

#[cfg(target_arch = "aarch64")]
fn has_int8() -> bool {
    std::arch::is_aarch64_feature_detected!("dotprod")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has_int8() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_has_memory_and_no_matrix_units() {
        let found = Hardware::of(&ChosenDevice::named("cpu"));
        assert!(found.memory_mib.is_none_or(|mib| mib > 100.0), "{found:?}");
        let lines = found.lines();
        let of = |name: &str| lines.iter().find(|(one, _)| *one == name).unwrap().1.as_str();
        assert!(of("memory").ends_with(" MiB") || of("memory") == "not reported");
        assert!(of("tensor cores").starts_with("none"));
        assert_eq!(of("shared memory of a cube"), "none");
    }

    #[test]
    fn a_gpu_has_what_it_reports() {
        let hardware = Hardware {
            memory_mib: Some(81_559.0),
            driver: Some("570.1".to_owned()),
            matrix_units: vec!["bf16 → f32".to_owned(), "f16 → f32".to_owned()],
            int8: true,
            shared_memory_kib: Some(227.0),
            graph_capture: false,
        };
        let lines: Vec<String> = hardware.lines().into_iter().map(|(_, text)| text).collect();
        assert_eq!(lines[..3], ["81559 MiB", "570.1", "bf16 → f32, f16 → f32"]);
        assert!(lines[3].starts_with("there") && lines[4] == "227 KiB", "{lines:?}");
    }
}
