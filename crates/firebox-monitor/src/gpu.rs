//! GPUs: NVIDIA's through the driver's management library, which is loaded at run time, AMD's through
//! the kernel's files, and Apple's through `macmon`. Where none of them is there, there is a reason
//! instead, and nothing fails.

use std::path::{Path, PathBuf};

use firebox_core::GpuSample;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};

use crate::amd;
use crate::apple::Apple;
use crate::cuda::{Counting, Identity, driver_number};

/// How GPUs are counted where one of them is named by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// NVIDIA's, as CUDA counts them.
    Nvidia,
    /// AMD's, as the kernel counts them.
    Amd,
    /// In another way: which one is meant is known only where there is one.
    Other,
}

/// A GPU that can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Card<'a> {
    /// By the driver's number.
    Nvidia(u32),
    /// By the folder of its device.
    Amd(&'a Path),
}

/// Free memory of a GPU in bytes, now; none where nothing tells it, or it is not sure which one is meant.
pub fn free_gpu_memory(index: u32, numbering: Numbering) -> Option<u64> {
    Gpus::find().free(index, numbering)
}

/// What does not change of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuCard {
    /// Its memory, bytes.
    pub memory: u64,
    /// Version of the driver.
    pub driver: Option<String>,
}

/// Memory and driver of a GPU, where it is sure which one is meant. `numbered` says whether `index` counts as CUDA
/// does; otherwise it is known only where there is one GPU.
pub fn gpu_card(index: u32, numbered: bool) -> Option<GpuCard> {
    let gpus = Gpus::find();
    let numbering = if numbered { Numbering::Nvidia } else { Numbering::Other };
    match gpus.place(index, numbering)? {
        Card::Nvidia(index) => {
            let library = gpus.library.as_ref().ok()?;
            let memory = library.device_by_index(index).ok()?.memory_info().ok()?.total;
            Some(GpuCard { memory, driver: library.sys_driver_version().ok() })
        }
        Card::Amd(device) => {
            Some(GpuCard { memory: amd::sample(device, 0).memory_bytes?, driver: None })
        }
    }
}

/// The GPUs that can be asked, or why none can.
pub(crate) struct Gpus {
    library: Result<Nvml, String>,
    count: u32,
    amd: Vec<PathBuf>,
    apple: Option<Apple>,
    /// The one that is sampled, by its number among all; all where there is none.
    only: Option<u32>,
}

impl Gpus {
    /// Loads the library, and looks for cards.
    pub(crate) fn find() -> Self {
        let amd = amd::find(Path::new(amd::CARDS));
        let library = Nvml::init().map_err(|error| {
            format!(
                "NVIDIA's management library says: {error}; there is neither an AMD card that the kernel shows nor Apple silicon"
            )
        });
        let counted = library.and_then(|library| match library.device_count() {
            Ok(0) => Err("the driver shows no GPU".to_owned()),
            Ok(count) => Ok((library, count)),
            Err(error) => Err(error.to_string()),
        });
        let (library, count) = match counted {
            Ok((library, count)) => (Ok(library), count),
            Err(reason) => (Err(reason), 0),
        };
        Self { library, count, amd, apple: Apple::find(), only: None }
    }

    /// Samples only the one that is meant, where it is sure which that is: others may be at work on the others.
    pub(crate) fn only(self, index: u32, numbering: Numbering) -> Self {
        let only = match (numbering, self.place(index, numbering)) {
            // Where others count, it is likely, and not sure.
            (Numbering::Other, _) => None,
            (_, Some(Card::Nvidia(number))) => Some(number),
            // Behind NVIDIA's, and the only one.
            (_, Some(Card::Amd(_))) if self.amd.len() == 1 => Some(self.count),
            _ => None,
        };
        Self { only, ..self }
    }

    /// Which GPU is meant. Beside one of NVIDIA's, a card of AMD's mostly is the processor's own, and not meant.
    fn place(&self, index: u32, numbering: Numbering) -> Option<Card<'_>> {
        let amd = |index: usize| self.amd.get(index).map(|device| Card::Amd(device));
        match (numbering, self.count, self.amd.len()) {
            (Numbering::Nvidia, ..) => self.nvidia_number(index).map(Card::Nvidia),
            (Numbering::Amd, ..) => amd(index as usize),
            (Numbering::Other, 1, _) => Some(Card::Nvidia(0)),
            (Numbering::Other, 0, 1) => amd(0),
            (Numbering::Other, ..) => None,
        }
    }

    /// The driver's number of the card that CUDA calls `index`.
    fn nvidia_number(&self, index: u32) -> Option<u32> {
        let library = self.library.as_ref().ok()?;
        let card = |device: nvml_wrapper::Device<'_>| Identity {
            name: device.name().ok(),
            uuid: device.uuid().ok(),
        };
        let cards = (0..self.count)
            .map(|number| library.device_by_index(number).map(card).unwrap_or_default());
        driver_number(index, &cards.collect::<Vec<_>>(), &Counting::now())
    }

    /// Bytes that nobody uses of a GPU's memory.
    fn free(&self, index: u32, numbering: Numbering) -> Option<u64> {
        match self.place(index, numbering)? {
            Card::Nvidia(index) => {
                let library = self.library.as_ref().ok()?;
                Some(library.device_by_index(index).ok()?.memory_info().ok()?.free)
            }
            // ROCm leaves cards out of its numbers, by variables of its own or because it does not know them.
            Card::Amd(device) if numbering == Numbering::Amd && self.amd.len() == 1 => {
                amd::free(device)
            }
            Card::Amd(_) => None,
        }
    }

    /// None: they are not asked for.
    pub(crate) fn unasked() -> Self {
        let library = Err("not asked for".to_owned());
        Self { library, count: 0, amd: vec![], apple: None, only: None }
    }

    /// Why there is nothing to ask.
    pub(crate) fn absence(&self) -> Option<&str> {
        let none = self.amd.is_empty() && self.apple.is_none();
        self.library.as_ref().err().map(String::as_str).filter(|_| none)
    }

    /// What each GPU does now that is sampled, NVIDIA's first.
    pub(crate) fn sample(&self) -> Vec<GpuSample> {
        let amd = self.amd.iter().zip(self.count..).filter(|(_, index)| self.is_sampled(*index));
        let amd = amd.map(|(device, index)| amd::sample(device, index));
        // There is no other beside Apple's.
        let apple = self.apple.as_ref().and_then(|apple| apple.sample(0));
        self.nvidia().into_iter().chain(amd).chain(apple).collect()
    }

    fn is_sampled(&self, index: u32) -> bool {
        self.only.is_none_or(|only| only == index)
    }

    fn nvidia(&self) -> Vec<GpuSample> {
        let Ok(library) = &self.library else { return vec![] };
        (0..self.count)
            .filter(|index| self.is_sampled(*index))
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
        assert!(Gpus::unasked().absence().is_some() && Gpus::unasked().sample().is_empty());
    }

    #[test]
    fn cards_of_the_kernel_count_where_the_library_is_not() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("gpu_busy_percent"), "40\n").unwrap();
        let gpus = Gpus { amd: vec![folder.path().to_path_buf()], ..Gpus::unasked() };
        assert_eq!(gpus.absence(), None);
        assert_eq!(gpus.sample()[0].utilisation, Some(0.4));
    }

    #[test]
    fn a_card_is_sampled_alone_where_it_is_sure_which_one_is_meant() {
        let folder = tempfile::tempdir().unwrap();
        let card = |name: &str, percent: u32| {
            let device = folder.path().join(name);
            std::fs::create_dir(&device).unwrap();
            std::fs::write(device.join("gpu_busy_percent"), format!("{percent}\n")).unwrap();
            device
        };
        let (first, second) = (card("0", 40), card("1", 90));
        let sampled = |count, amd: &[&PathBuf], numbering| {
            let amd = amd.iter().map(|device| (*device).clone()).collect();
            let gpus = Gpus { count, amd, ..Gpus::unasked() }.only(0, numbering);
            let samples = gpus.sample().into_iter();
            samples.map(|gpu| (gpu.index, gpu.utilisation)).collect::<Vec<_>>()
        };
        assert_eq!(sampled(0, &[&first], Numbering::Amd), [(0, Some(0.4))]);
        // Behind one of NVIDIA's.
        assert_eq!(sampled(1, &[&second], Numbering::Amd), [(1, Some(0.9))]);
        // Nobody says which of two is meant, though one of NVIDIA's is likely.
        assert_eq!(sampled(1, &[&first], Numbering::Other), [(1, Some(0.4))]);
        let both = [(0, Some(0.4)), (1, Some(0.9))];
        for numbering in [Numbering::Amd, Numbering::Other] {
            assert_eq!(sampled(0, &[&first, &second], numbering), both);
        }
        // Of all that could be sampled, the one.
        let amd = vec![first.clone(), second];
        let gpus = Gpus { count: 1, amd, only: Some(2), ..Gpus::unasked() };
        assert_eq!(gpus.sample().iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [2]);
        let one = Gpus { count: 1, amd: vec![first], ..Gpus::unasked() };
        assert_eq!(one.only(0, Numbering::Amd).only, Some(1));
    }

    #[test]
    fn free_memory_is_that_of_the_card_that_is_meant() {
        let folder = tempfile::tempdir().unwrap();
        let card = |name: &str, total: u64, used: u64| {
            let device = folder.path().join(name);
            std::fs::create_dir(&device).unwrap();
            for (name, bytes) in [("mem_info_vram_total", total), ("mem_info_vram_used", used)] {
                std::fs::write(device.join(name), format!("{bytes}\n")).unwrap();
            }
            device
        };
        let (first, second) = (card("0", 100, 30), card("1", 200, 50));
        let two = Gpus { amd: vec![first.clone(), second], ..Gpus::unasked() };
        // Nobody says which of two is meant, and NVIDIA's are not there.
        for numbering in [Numbering::Amd, Numbering::Other, Numbering::Nvidia] {
            assert_eq!(two.free(0, numbering), None);
        }
        let one = Gpus { amd: vec![first.clone()], ..Gpus::unasked() };
        assert_eq!((one.free(0, Numbering::Amd), one.free(1, Numbering::Amd)), (Some(70), None));
        // It may be another than the one that is computed on.
        assert_eq!(one.free(0, Numbering::Other), None);
        // A processor's own card has a part of the machine's memory, and takes more of it.
        std::fs::write(first.join("mem_info_gtt_total"), "1000\n").unwrap();
        assert_eq!(one.free(0, Numbering::Amd), None);
        std::fs::write(first.join("mem_info_gtt_total"), "120\n").unwrap();
        assert_eq!(one.free(0, Numbering::Amd), Some(70));
        // Beside one of NVIDIA's, that is meant.
        let beside = Gpus { count: 1, amd: vec![first.clone()], ..Gpus::unasked() };
        assert_eq!(beside.place(0, Numbering::Other), Some(Card::Nvidia(0)));
        // A card that does not tell.
        std::fs::remove_file(first.join("mem_info_vram_used")).unwrap();
        assert_eq!(one.free(0, Numbering::Amd), None);
    }
}
