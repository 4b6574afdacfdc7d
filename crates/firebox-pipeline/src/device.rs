//! The device of a run, as the binary chose it. Which backends exist is not known here.

use burn::tensor::Device;
use firebox_core::{MatmulPrecision, Precision, count};
use firebox_kernels::{CpuKernels, CpuKernelsError};
use firebox_monitor::{Numbering, WatchGpus};
use sysinfo::System;

use crate::config::PipelineConfig;
use crate::error::PipelineError;

/// A device with what a log should say of it.
#[derive(Clone, Debug)]
pub struct ChosenDevice {
    /// The device.
    pub device: Device,
    /// Name of its backend: `cpu`, `cuda`, …. Results of different backends have different keys.
    pub backend: String,
    /// Name, memory, driver and abilities, in one line.
    pub description: String,
    /// Why it was chosen.
    pub reason: String,
}

impl ChosenDevice {
    /// What decides the last bits of a run with these settings: backend and kernels, how they multiply bf16, layers that
    /// are computed again, and products that are named.
    pub(crate) fn arithmetic_of(&self, config: &PipelineConfig) -> Result<String, PipelineError> {
        if self.backend == "cpu" && config.run.matmul == Some(MatmulPrecision::Highest) {
            let exact = CpuKernels::current()?.exact();
            return Ok(exact.force(|| self.arithmetic())?);
        }
        let mut arithmetic = self.arithmetic()?;
        let narrow = self.backend == "cpu" && config.run.precision == Precision::Bf16;
        if narrow && !CpuKernels::current()?.multiplies_pairs() {
            arithmetic += ", bf16 as f32";
        }
        // What is fused with what is another there, and so is how it is rounded.
        if config.run.recompute && self.backend != "cpu" && cfg!(feature = "fusion") {
            arithmetic += ", recomputed";
        }
        Ok(match config.run.matmul {
            Some(matmul) => format!("{arithmetic}, matmul {matmul}"),
            None => arithmetic,
        })
    }

    /// A processor under the name of a backend, for tests.
    #[cfg(test)]
    pub(crate) fn named(backend: &str) -> Self {
        Self {
            device: Device::flex(),
            backend: backend.to_owned(),
            description: format!("{backend}: test"),
            reason: String::new(),
        }
    }

    /// What decides the last bits of every result on this device: the backend, on a CPU which of the
    /// kernels run, and on a GPU what of Burn's is not in the build.
    ///
    /// # Errors
    ///
    /// If `FIREBOX_KERNELS` asks for what this processor cannot run.
    pub(crate) fn arithmetic(&self) -> Result<String, CpuKernelsError> {
        Ok(match self.cpu_kernels()? {
            Some(kernels) => format!("{} {kernels}", self.backend),
            None => {
                let unfused = if cfg!(feature = "fusion") { "" } else { ", unfused" };
                let untuned = if cfg!(feature = "autotune") { "" } else { ", untuned" };
                format!("{}{unfused}{untuned}", self.backend)
            }
        })
    }

    /// Runs work on a thread of a pool of its own if this is a processor: what it spreads over the pool then starts
    /// without waking a thread first, which takes a fifth of a step of two milliseconds.
    ///
    /// Never on the common pool. One of its threads that waits for a part of something would take the whole work
    /// meanwhile, be it a training of hours: what it had begun would wait for that, and what it had said of its thread
    /// would hold within. Where the system gives no threads, the work runs where it is.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.own_pool().run(work)
    }

    /// The pool of [`run`](Self::run), for work that comes bit by bit.
    pub(crate) fn own_pool(&self) -> OwnPool {
        let threads = rayon::current_num_threads();
        let build = || rayon::ThreadPoolBuilder::new().num_threads(threads).build().ok();
        OwnPool(if self.backend == "cpu" { build() } else { None })
    }

    /// Its number among those of its backend.
    pub(crate) fn index(&self) -> u32 {
        let name = self.description.split_whitespace().next().unwrap_or_default();
        name.split_once(':').and_then(|(_, index)| index.parse().ok()).unwrap_or(0)
    }

    /// How its backend counts, for whoever asks drivers about it.
    pub(crate) fn numbering(&self) -> Numbering {
        match self.backend.as_str() {
            "cuda" => Numbering::Nvidia,
            "rocm" => Numbering::Amd,
            _ => Numbering::Other,
        }
    }

    /// Bytes that its allocator has of the device; `None` where it has none of its own, or does not count. It keeps the
    /// pages that steps had needed, so that these are their peak.
    pub(crate) fn reserved(&self) -> Option<u64> {
        self.device.memory_pool_usage().map(|usage| usage.bytes_reserved)
    }

    /// Which GPUs are looked at while it is worked with.
    pub(crate) fn watched(&self) -> WatchGpus {
        match self.backend.as_str() {
            "cpu" => WatchGpus::No,
            backend => WatchGpus::Own {
                index: self.index(),
                numbering: self.numbering(),
                expected: matches!(backend, "cuda" | "rocm" | "metal"),
            },
        }
    }

    /// Which of the kernels for processors run, if this is one.
    ///
    /// # Errors
    ///
    /// As [`arithmetic`](Self::arithmetic).
    pub(crate) fn cpu_kernels(&self) -> Result<Option<String>, CpuKernelsError> {
        if self.backend != "cpu" {
            return Ok(None);
        }
        Ok(Some(format!("{:?}", CpuKernels::current()?).to_lowercase()))
    }
}

/// A pool for what one thread asks for; none where work runs where it is.
pub(crate) struct OwnPool(Option<rayon::ThreadPool>);

impl OwnPool {
    /// Runs work on a thread of it.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let Some(pool) = &self.0 else { return work() };
        // Which kernels run is said by thread.
        match CpuKernels::current() {
            Ok(kernels) => pool.install(|| kernels.force(work)),
            Err(_) => pool.install(work),
        }
    }
}

/// Free memory of the machine in bytes, if the system tells it.
pub(crate) fn free_of_machine() -> Option<u64> {
    let mut system = System::new();
    system.refresh_memory();
    Some(system.available_memory()).filter(|free| *free > 0)
}

/// The processor, its vector extensions, threads and memory, in one line.
pub fn describe_cpu() -> String {
    let mut system = System::new();
    system.refresh_cpu_all();
    system.refresh_memory();
    let brand = system.cpus().first().map_or("unknown processor", |cpu| cpu.brand().trim());
    let gib = system.total_memory() as f64 / (1u64 << 30) as f64;
    format!(
        "cpu: {brand}, {}, {gib:.1} GiB memory, {}",
        count(rayon::current_num_threads() as u64, "thread"),
        vector_extensions()
    )
}

#[cfg(target_arch = "x86_64")]
fn vector_extensions() -> String {
    let all = [
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
        ("fma", std::arch::is_x86_feature_detected!("fma")),
        ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
        ("avx512bf16", std::arch::is_x86_feature_detected!("avx512bf16")),
        // Where the system lets this process use it.
        ("amx", CpuKernels::available().contains(&CpuKernels::Amx)),
    ];
    let found: Vec<_> = all.iter().filter(|(_, found)| *found).map(|(name, _)| *name).collect();
    if found.is_empty() { "sse2".to_owned() } else { found.join(" ") }
}

#[cfg(not(target_arch = "x86_64"))]
fn vector_extensions() -> String {
    std::env::consts::ARCH.to_owned()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Barrier;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use rayon::prelude::*;

    use super::*;

    #[test]
    fn a_device_has_the_number_that_its_description_begins_with() {
        let index = |description: &str| {
            ChosenDevice { description: description.to_owned(), ..ChosenDevice::named("cuda") }
                .index()
        };
        assert_eq!(["cuda:3 H200; f32", "cpu: AMD", "cuda:0 a:7"].map(index), [3, 0, 0]);
    }

    #[test]
    fn layers_that_are_computed_again_have_bits_of_their_own_where_kernels_are_fused() {
        let differs = |backend: &str| {
            let of = |recompute| {
                let mut config = PipelineConfig::default();
                config.run.recompute = recompute;
                ChosenDevice::named(backend).arithmetic_of(&config).unwrap()
            };
            of(true) != of(false)
        };
        assert_eq!([differs("cpu"), differs("cuda")], [false, cfg!(feature = "fusion")]);
    }

    #[test]
    fn kernels_that_are_forced_run_on_the_other_thread_too() {
        let device = ChosenDevice::named("cpu");
        let run = || CpuKernels::Portable.force(|| device.run(CpuKernels::current));
        assert_eq!(run(), Ok(CpuKernels::Portable));
        let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert_eq!(alone.install(run), Ok(CpuKernels::Portable));
    }

    #[test]
    fn no_work_is_done_within_another() {
        thread_local! {
            static WITHIN: Cell<bool> = const { Cell::new(false) };
        }
        let device = ChosenDevice::named("cpu");
        // A thread of it waits for the parts of others most of the time. On one pool, a third of all are done within.
        let work = || {
            let within = WITHIN.replace(true);
            for _ in 0..10 {
                let part = |_| std::thread::sleep(Duration::from_micros(100));
                (0..4 * rayon::current_num_threads()).into_par_iter().for_each(part);
            }
            WITHIN.set(within);
            within
        };
        for _ in 0..20 {
            let found = std::thread::scope(|scope| {
                let all = [(); 3].map(|()| scope.spawn(|| device.run(work)));
                all.map(|one| one.join().unwrap())
            });
            assert_eq!(found, [false; 3]);
        }
    }

    #[test]
    fn works_that_wait_for_threads_that_need_the_pool_do_not_stop_each_other() {
        let device = ChosenDevice::named("cpu");
        // As many works as the pool has threads, all of them begun before any waits.
        let works = rayon::current_num_threads();
        let begun = Barrier::new(works);
        let wait = || {
            begun.wait();
            let (told, heard) = channel();
            std::thread::spawn(move || told.send((0..1000_u64).into_par_iter().sum::<u64>()));
            heard.recv_timeout(Duration::from_secs(20))
        };
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..works).map(|_| scope.spawn(|| device.run(wait))).collect();
            for one in all {
                assert_eq!(one.join().unwrap(), Ok(499_500));
            }
        });
    }
}
