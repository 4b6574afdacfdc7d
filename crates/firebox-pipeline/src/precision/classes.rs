//! Settings to start from on a kind of device: the data are in `classes.toml` beside this file.
//! They are guesses; whoever uses one measures afterwards.

use std::sync::OnceLock;

use firebox_core::Precision;
use serde::{Deserialize, Serialize};

/// A kind of device with the settings to start from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceClass {
    /// What it is called.
    pub name: String,
    /// Texts of which a device's description has one, whatever its case.
    pub matches: Vec<String>,
    /// Texts of which a device's description has none.
    #[serde(default)]
    pub except: Vec<String>,
    /// The type that is probably the fastest.
    pub precision: Precision,
    /// Windows of a batch of R1's pre-training.
    pub batch_size: usize,
    /// Threads of the loader.
    pub workers: usize,
    /// Where the values are from.
    pub why: String,
}

/// Every class, in the order in which they are tried.
pub fn device_classes() -> &'static [DeviceClass] {
    #[derive(Deserialize)]
    struct File {
        class: Vec<DeviceClass>,
    }
    static CLASSES: OnceLock<Vec<DeviceClass>> = OnceLock::new();
    CLASSES.get_or_init(|| match toml::from_str::<File>(include_str!("classes.toml")) {
        Ok(file) => file.class,
        Err(error) => unreachable!("classes.toml is part of the program: {error}"),
    })
}

/// The class of a device, from its description.
pub fn device_class(description: &str) -> &'static DeviceClass {
    let text = description.to_lowercase();
    let has = |parts: &[String]| parts.iter().any(|part| text.contains(part.as_str()));
    let classes = device_classes();
    let found = classes.iter().find(|class| has(&class.matches) && !has(&class.except));
    // The last class matches everything.
    found.unwrap_or(&classes[classes.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_recognised_by_their_descriptions() {
        let check = |description: &str, name: &str, precision| {
            let class = device_class(description);
            assert_eq!((class.name.as_str(), class.precision), (name, precision), "{description}");
        };
        check("cuda:0 NVIDIA GeForce RTX 4090; f32 f16 bf16", "RTX 4090", Precision::Bf16);
        check("vulkan:0 NVIDIA GeForce RTX 4060 Laptop GPU", "RTX 4060 laptop", Precision::Bf16);
        check("cuda:0 NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti", Precision::F16);
        check("cuda:0 Tesla V100-SXM2-32GB", "V100", Precision::F16);
        check("cuda:0 NVIDIA GeForce GTX 1080 Ti", "GTX 1080 Ti", Precision::F32);
        check("cuda:0 Tesla P100-PCIE-16GB", "P100", Precision::F16);
        check("cuda:0 Tesla T4", "T4", Precision::F16);
        check("metal:0 Apple M2 Pro", "Apple", Precision::F16);
        check("vulkan:0 Intel(R) UHD Graphics 620", "integrated GPU", Precision::F32);
        check("cpu: Intel(R) Core(TM) i5, 4 threads, avx2 fma", "processor", Precision::F32);
        check("cpu: AMD EPYC, avx512f avx512bf16", "processor with bf16", Precision::Bf16);
        check("cpu: Intel(R) Xeon(R), avx512f avx512bf16", "processor", Precision::F32);
        check("cpu: Intel(R) Xeon(R), avx512bf16 amx", "processor with AMX", Precision::Bf16);
        check("something new", "unknown device", Precision::F32);
    }

    #[test]
    fn every_class_can_be_used() {
        for class in device_classes() {
            assert!(class.batch_size >= 1 && !class.why.is_empty(), "{}", class.name);
            assert!(class.matches.iter().all(|text| *text == text.to_lowercase()));
        }
    }
}
