//! A device that was looked for, and what can be said of it without an examination.

use serde::Serialize;

use super::Hardware;
use crate::device::ChosenDevice;
use crate::precision::{Abilities, Support};

/// A device that was looked for.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// Its name as `--device` takes it, such as `cuda:1`; the backend's where it has no device.
    pub name: String,
    /// What kind of adapter it is, such as `discrete`, where its backend says so.
    pub kind: Option<String>,
    /// What it is, or why it is not there.
    pub description: String,
    /// Whether it can be used.
    pub there: bool,
    /// What it can compute in, if it can be used and says so.
    pub abilities: Option<Abilities>,
    /// What else it has, if it can be used.
    pub hardware: Option<Hardware>,
}

impl Found {
    /// One that can be used.
    pub fn of(name: &str, device: &ChosenDevice) -> Self {
        Self {
            name: name.to_owned(),
            kind: None,
            description: device.description.clone(),
            there: true,
            abilities: Abilities::of(device).ok(),
            hardware: Some(Hardware::of(device)),
        }
    }

    /// One that cannot, and why.
    pub fn absent(name: &str, why: &str) -> Self {
        Self {
            name: name.to_owned(),
            kind: None,
            description: why.to_owned(),
            there: false,
            abilities: None,
            hardware: None,
        }
    }

    /// Its kind and what it is, or why it is not there, without the name that it stands behind.
    pub(super) fn said(&self) -> String {
        let said = self.description.strip_prefix(&format!("{} ", self.name));
        let said = said.unwrap_or(&self.description);
        self.kind.as_ref().map_or(said.to_owned(), |kind| format!("{kind}: {said}"))
    }

    /// Its types of numbers, matrix units, integers of 8 bits and memory, in one line.
    pub(super) fn able(&self) -> Option<String> {
        let abilities = self.abilities.as_ref()?;
        let mut said: Vec<String> = vec![];
        for (precision, support) in &abilities.precisions {
            said.push(match support {
                Support::Native(_) => precision.to_string(),
                Support::Emulated(_) => format!("{precision} emulated"),
                Support::Missing(_) => format!("no {precision}"),
            });
        }
        if let Some(hardware) = &self.hardware {
            said.push(if hardware.int8 { "int8" } else { "no int8" }.to_owned());
            if !hardware.matrix_units.is_empty() {
                said.push("tensor cores".to_owned());
            }
            let memory = hardware.memory_mib.map(|mib| format!("{mib:.0} MiB"));
            said.push(memory.unwrap_or_else(|| "memory not reported".to_owned()));
        }
        Some(said.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use firebox_core::Precision;

    use super::*;

    #[test]
    fn a_device_stands_behind_its_name_once() {
        let absent = Found::absent("vulkan", "no driver");
        assert_eq!(absent.said(), "no driver");
        let kind = Some("discrete".to_owned());
        let found = Found { name: "cuda:1".to_owned(), kind, ..absent };
        let found = Found { description: "cuda:1 H200; f32".to_owned(), ..found };
        assert_eq!(found.said(), "discrete: H200; f32");
        let other = Found { description: "cuda:12 H200".to_owned(), kind: None, ..found };
        assert_eq!(other.said(), "cuda:12 H200");
    }

    #[test]
    fn each_device_says_what_it_can_compute_in() {
        let native = |precision| (precision, Support::Native("units".to_owned()));
        let abilities = Abilities {
            precisions: vec![
                native(Precision::F32),
                (Precision::Tf32, Support::Missing("none".to_owned())),
                native(Precision::F16),
            ],
            processor: false,
            inexact: None,
        };
        let hardware = Hardware {
            memory_mib: Some(8188.0),
            matrix_units: vec!["f16 → f32".to_owned()],
            ..Hardware::default()
        };
        let absent = Found::absent("vulkan", "no driver");
        assert!(absent.able().is_none() && !absent.there);
        let found =
            Found { there: true, abilities: Some(abilities), hardware: Some(hardware), ..absent };
        assert_eq!(found.able().unwrap(), "f32, no tf32, f16, no int8, tensor cores, 8188 MiB");
        let cpu = Found::of("cpu", &ChosenDevice::named("cpu"));
        let said = cpu.able().unwrap();
        assert!(cpu.there && said.starts_with("f32, no tf32, bf16"), "{said}");
        assert!(said.contains("f16 emulated") && said.contains("int8"), "{said}");
    }
}
