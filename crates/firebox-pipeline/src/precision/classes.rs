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
    /// Whether it is a class of processors. No other one is ever a processor's.
    #[serde(default)]
    pub processor: bool,
    /// Words of a device's name of which it has one, or several words that follow each other, in lower case.
    pub matches: Vec<String>,
    /// Words of which it has none.
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

/// The class of a device, from its description: `cuda:0 NAME; …`, or `cpu: NAME, …, instructions`.
pub fn device_class(description: &str) -> &'static DeviceClass {
    let processor = description.starts_with("cpu:");
    // What stands behind a GPU's name are types and numbers of bytes.
    let words = words(if processor { description } else { name_of(description) });
    let has = |phrases: &[String]| phrases.iter().any(|phrase| follow(&words, phrase));
    let classes = device_classes();
    let found = classes
        .iter()
        .find(|class| class.processor == processor && has(&class.matches) && !has(&class.except));
    // The last class is everything else's.
    found.unwrap_or(&classes[classes.len() - 1])
}

/// The name in a GPU's description, which stands between its backend and what it can do.
fn name_of(description: &str) -> &str {
    let name = description.split(';').next().unwrap_or_default();
    name.split_once(' ').map_or(name, |(_, name)| name)
}

/// Runs of letters and digits, in lower case, without what lawyers add to names.
fn words(text: &str) -> Vec<String> {
    let text = ["(r)", "(tm)", "(c)"]
        .iter()
        .fold(text.to_lowercase(), |text, mark| text.replace(mark, " "));
    let words = text.split(|character: char| !character.is_alphanumeric());
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Whether the words of a phrase follow each other among these.
fn follow(words: &[String], phrase: &str) -> bool {
    let phrase: Vec<&str> = phrase.split(' ').collect();
    words.windows(phrase.len()).any(|some| some.iter().zip(&phrase).all(|(a, b)| a == b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names as drivers and processors report them, those among them that hold another's as a part.
    #[test]
    fn devices_are_recognised_by_the_words_of_their_names() {
        let gpu = [
            ("NVIDIA GeForce RTX 4090", "RTX 4090"),
            ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX since Ampere"),
            ("NVIDIA GeForce RTX 3090", "RTX 3090"),
            ("NVIDIA GeForce RTX 3090 Ti", "RTX 3090"),
            ("NVIDIA GeForce RTX 4060 Laptop GPU", "RTX 4060 laptop"),
            ("NVIDIA GeForce RTX 4060", "RTX since Ampere"),
            ("NVIDIA GeForce RTX 4060 Ti", "RTX since Ampere"),
            // By its chip, if not by its name.
            ("NVIDIA GeForce RTX 2050", "RTX since Ampere"),
            ("NVIDIA RTX A400", "RTX since Ampere"),
            ("NVIDIA RTX A1000", "RTX since Ampere"),
            ("NVIDIA RTX A1000 Laptop GPU", "RTX since Ampere"),
            ("NVIDIA RTX A3000 Laptop GPU", "RTX since Ampere"),
            ("NVIDIA RTX A4000", "RTX since Ampere"),
            ("NVIDIA RTX 4000 Ada Generation", "RTX since Ampere"),
            ("GeForce RTX 2080 Ti", "RTX 2080 Ti"),
            ("NVIDIA GeForce RTX 2080 SUPER", "RTX of Turing"),
            ("Quadro RTX 4000", "RTX of Turing"),
            ("Tesla V100-SXM2-16GB", "V100"),
            ("Tesla V100S-PCIE-32GB", "V100"),
            ("GeForce GTX 1080 Ti", "GTX 1080 Ti"),
            ("NVIDIA GeForce GTX 1080", "Pascal but the P100"),
            ("Quadro P1000", "Pascal but the P100"),
            ("Tesla P40", "Pascal but the P100"),
            ("Tesla P100-PCIE-16GB", "P100"),
            ("Tesla P100-SXM2-16GB", "P100"),
            ("Tesla T4", "T4"),
            ("NVIDIA T400 4GB", "unknown device"),
            ("NVIDIA T4", "T4"),
            ("A100-SXM4-80GB", "data-centre GPU since Ampere"),
            ("NVIDIA A100 80GB PCIe", "data-centre GPU since Ampere"),
            ("NVIDIA A10", "data-centre GPU since Ampere"),
            ("NVIDIA A10G", "data-centre GPU since Ampere"),
            ("NVIDIA A40", "data-centre GPU since Ampere"),
            ("NVIDIA L4", "data-centre GPU since Ampere"),
            ("NVIDIA H100 80GB HBM3", "data-centre GPU since Ampere"),
            ("NVIDIA H200", "data-centre GPU since Ampere"),
            ("Apple M2 Max", "Apple"),
            ("Intel(R) Arc(TM) A770 Graphics", "Arc or other card of Intel's"),
            ("Mesa Intel(R) Arc(tm) A380 Graphics (DG2)", "Arc or other card of Intel's"),
            ("Intel(R) Arc(TM) Pro A40 Graphics", "Arc or other card of Intel's"),
            // The one within Core Ultra processors.
            ("Intel(R) Arc(TM) Graphics", "integrated GPU"),
            ("Intel(R) UHD Graphics 630", "integrated GPU"),
            ("Intel(R) Iris(R) Xe Graphics", "integrated GPU"),
            ("AMD Radeon(TM) Graphics", "integrated GPU"),
            ("AMD Radeon Graphics (RADV RENOIR)", "integrated GPU"),
            ("AMD Radeon RX 7900 XTX", "unknown device"),
            ("AMD Radeon Pro 5500M", "unknown device"),
            ("llvmpipe (LLVM 15.0.7, 256 bits)", "software in place of a GPU"),
            ("something new", "unknown device"),
            ("", "unknown device"),
        ];
        for (name, expected) in gpu {
            for backend in ["cuda:0", "vulkan:1", "metal:0"] {
                // Numbers behind the name are none of its words.
                let description = format!("{backend} {name}; f32 f16 bf16; 4090 a100 of 1080 MiB");
                assert_eq!(device_class(&description).name, expected, "{description}");
            }
        }
        let processors = [
            ("AMD A10-7850K Radeon R7, 12 Compute Cores 4C+8G", "avx fma", "processor"),
            ("AMD Ryzen 7 5700G with Radeon Graphics", "avx2 fma", "processor"),
            ("Intel(R) Core(TM) i5-6500 CPU @ 3.20GHz", "avx2 fma", "processor"),
            ("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", "avx2 fma", "processor"),
            ("Intel(R) Xeon(R) Gold 6226R", "avx512f avx512bf16", "processor"),
            ("Intel(R) Xeon(R) Platinum 8480+", "avx512f avx512bf16 amx", "processor with AMX"),
            ("AMD EPYC 9B14", "avx512f avx512bf16", "processor with bf16"),
            ("AMD Ryzen 9 7950X 16-Core Processor", "avx512f avx512bf16", "processor with bf16"),
            ("Apple M2 Max", "aarch64", "processor"),
            ("unknown processor", "sse2", "processor"),
        ];
        for (name, instructions, expected) in processors {
            let description = format!("cpu: {name}, 4 threads, 10.0 GiB memory, {instructions}");
            let class = device_class(&description);
            assert_eq!(class.name, expected, "{description}");
            assert!(class.processor, "{description}");
        }
    }

    #[test]
    fn a_class_says_what_its_devices_are_fast_in() {
        let precision = |description: &str| device_class(description).precision;
        assert_eq!(precision("cuda:0 NVIDIA GeForce RTX 4060"), Precision::Bf16);
        assert_eq!(precision("cuda:0 Tesla V100-SXM2-16GB"), Precision::F16);
        assert_eq!(precision("cuda:0 Quadro P1000"), Precision::F32);
        assert_eq!(precision("vulkan:0 Intel(R) UHD Graphics 620"), Precision::F32);
        assert_eq!(precision("cpu: AMD EPYC, 2 threads, avx512bf16"), Precision::Bf16);
    }

    #[test]
    fn every_class_can_be_used() {
        for class in device_classes() {
            let DeviceClass { name, matches, except, .. } = class;
            assert!(class.batch_size >= 4 && !class.why.is_empty(), "{name}");
            // The search for a batch goes by factors of two.
            assert!(class.batch_size.is_power_of_two() && class.workers >= 1, "{name}");
            for phrase in matches.iter().chain(except) {
                assert_eq!(words(phrase).join(" "), *phrase, "{name}");
            }
        }
        let (last, others) = device_classes().split_last().unwrap();
        assert!(last.matches.is_empty() && !last.processor);
        assert!(others.iter().all(|class| !class.matches.is_empty()));
    }
}
