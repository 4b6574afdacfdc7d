//! Reads what this process and its machine do. One reading costs a fraction of a millisecond.
//!
//! Linux is asked by its files in `/proc`; a crate that knows other systems too tells the rest. Nothing
//! here fails: what cannot be read is left out.

use std::time::Instant;

use firebox_core::MachineSample;
use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

use crate::gpu::Gpus;
use crate::groups::{Limited, MemoryGroups};
use crate::linux::{Counters, Process, Reader};

/// Readings of the machine, each with the rates since the one before.
pub(crate) struct Machine {
    linux: Reader,
    /// Where Linux does not tell.
    system: System,
    own: Option<Pid>,
    /// Control groups, one of which may give this process less memory than the machine has.
    groups: MemoryGroups,
    /// Hardware threads that this process computes with.
    threads: u32,
    gpus: Gpus,
    since: Instant,
    before: Totals,
}

/// What was counted until a reading.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Totals {
    process: Process,
    linux: Counters,
}

impl Machine {
    /// A first reading, which those that follow are measured from, of a process that computes with so many threads, or
    /// fewer where it may not use as many.
    pub(crate) fn new(gpus: Gpus, threads: usize) -> Self {
        let usable = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.min(usable) as u32;
        let mut machine = Self {
            linux: Reader::open(),
            groups: MemoryGroups::own(),
            system: System::new(),
            own: sysinfo::get_current_pid().ok(),
            threads,
            gpus,
            since: Instant::now(),
            before: Totals::default(),
        };
        machine.before = machine.totals();
        machine
    }

    /// What was done since the reading before.
    pub(crate) fn sample(&mut self) -> MachineSample {
        let seconds = self.since.elapsed().as_secs_f64().max(1e-9);
        let now = self.totals();
        self.since = Instant::now();
        let (linux, before) = (now.linux, self.before.linux);
        let (process, process_before) = (now.process, self.before.process);
        let rate = |now: f64, before: f64| (now - before).max(0.0) / seconds;
        let rates = |now: Option<f64>, before: Option<f64>| Some(rate(now?, before?));
        let cpu_threads = rate(process.cpu_seconds, process_before.cpu_seconds);
        let disk_read = rate(process.disk_read, process_before.disk_read);
        let by_calls = rates(linux.read_by_calls, before.read_by_calls);
        let busy = linux.busy_since(&before, self.threads);
        let (memory_bytes, available_bytes, page_cache_bytes) = self.memory();
        let sample = MachineSample {
            seconds,
            cpu_threads,
            threads: self.threads,
            other_threads: busy.map(|busy| (busy - cpu_threads).max(0.0)),
            resident_bytes: process.resident_bytes,
            memory_bytes,
            available_bytes,
            page_cache_bytes,
            minor_faults: rates(linux.minor_faults, before.minor_faults),
            major_faults: rates(linux.major_faults, before.major_faults),
            disk_read,
            disk_written: rate(process.disk_written, process_before.disk_written),
            cache_read: by_calls.map(|all| (all - disk_read).max(0.0)),
            gpus: self.gpus.sample(),
            // Whoever runs the work knows them.
            pools: vec![],
        };
        self.before = now;
        sample
    }

    fn totals(&mut self) -> Totals {
        let (process, linux) = self.linux.counters();
        Totals { process: process.unwrap_or_else(|| self.process()), linux }
    }

    fn process(&mut self) -> Process {
        let Some(own) = self.own else { return Process::default() };
        let what = ProcessRefreshKind::nothing().with_cpu().with_memory().with_disk_usage();
        let only = ProcessesToUpdate::Some(&[own]);
        self.system.refresh_processes_specifics(only, false, what.without_tasks());
        let Some(process) = self.system.process(own) else { return Process::default() };
        let disk = process.disk_usage();
        Process {
            cpu_seconds: process.accumulated_cpu_time() as f64 / 1e3,
            resident_bytes: process.memory(),
            disk_read: disk.total_read_bytes as f64,
            disk_written: disk.total_written_bytes as f64,
        }
    }

    /// Memory that this process may use, what is left of it, and what the page cache holds: its
    /// control group's where that is less than the machine's.
    fn memory(&mut self) -> (u64, u64, Option<u64>) {
        let (all, available, page_cache) = match self.linux.memory() {
            Some(memory) => (memory.all, memory.available, Some(memory.page_cache)),
            None => {
                self.system.refresh_memory();
                (self.system.total_memory(), self.system.available_memory(), None)
            }
        };
        match self.groups.below(all) {
            Some(Limited { all, available: left }) => (all, left.min(available), page_cache),
            None => (all, available, page_cache),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn work_is_seen_in_the_next_sample() {
        let mut machine = Machine::new(Gpus::unasked(), usize::MAX);
        let start = Instant::now();
        let (mut sum, mut kept) = (0.0f64, Vec::new());
        while start.elapsed().as_secs_f64() < 0.3 {
            sum += (sum + 1.0).sqrt();
        }
        // Fresh memory that is written to faults in page by page.
        kept.resize(64 << 20, 1u8);
        let sample = machine.sample();
        assert!(sum > 0.0 && kept.iter().map(|byte| u64::from(*byte)).sum::<u64>() == 64 << 20);
        assert!(sample.seconds >= 0.3 && sample.threads >= 1, "{sample:?}");
        assert!(sample.resident_bytes > 64 << 20, "{sample:?}");
        assert!(sample.memory_bytes > sample.resident_bytes && sample.available_bytes > 0);
        // A machine that is shared may give less than a whole thread, and ticks are 10 ms.
        assert!(
            (0.1..=1.5 * f64::from(sample.threads)).contains(&sample.cpu_threads),
            "{sample:?}"
        );
        if cfg!(target_os = "linux") {
            assert!(sample.minor_faults.unwrap() > 0.0, "{sample:?}");
            assert!(sample.page_cache_bytes.unwrap() > 0);
            // Others are told of where this process may use the whole machine.
            let has_all = of_machine() <= sample.threads;
            assert_eq!(sample.other_threads.is_some(), has_all, "{sample:?}");
        }
    }

    /// Threads of the whole machine.
    fn of_machine() -> u32 {
        let stat = std::fs::read_to_string("/proc/stat").unwrap();
        stat.lines().filter(|line| line.starts_with("cpu")).count() as u32 - 1
    }

    #[test]
    fn threads_are_those_that_compute() {
        let mut machine = Machine::new(Gpus::unasked(), 1);
        std::thread::sleep(Duration::from_millis(50));
        let sample = machine.sample();
        assert_eq!(sample.threads, 1);
        if cfg!(target_os = "linux") && of_machine() > 1 {
            assert_eq!(sample.other_threads, None);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn linux_tells_what_the_crate_for_every_system_tells() {
        let mut machine = Machine::new(Gpus::unasked(), usize::MAX);
        let (own, _) = machine.linux.counters();
        let (own, other) = (own.unwrap(), machine.process());
        assert!((own.cpu_seconds - other.cpu_seconds).abs() < 0.5, "{own:?} {other:?}");
        // Other tests of this process go on meanwhile.
        let share = own.resident_bytes as f64 / other.resident_bytes as f64;
        assert!((0.5..2.0).contains(&share), "{own:?} {other:?}");
        assert!(other.disk_written - own.disk_written < 1e9, "{own:?} {other:?}");
        assert!(own.disk_written <= other.disk_written && own.disk_read <= other.disk_read);
        machine.system.refresh_memory();
        let memory = machine.linux.memory().unwrap();
        assert_eq!(memory.all, machine.system.total_memory());
        let share = memory.available as f64 / machine.system.available_memory() as f64;
        assert!((0.5..2.0).contains(&share) && memory.page_cache < memory.all, "{memory:?}");
    }

    #[test]
    fn reading_is_cheap() {
        let mut machine = Machine::new(Gpus::unasked(), usize::MAX);
        let samples = (0..20).map(|_| {
            let start = Instant::now();
            drop(machine.sample());
            start.elapsed()
        });
        // At one sample a second, 5 ms would be half a percent of one thread. The quickest is the one
        // that nothing else on the machine held up.
        let quickest = samples.min().unwrap();
        assert!(quickest < Duration::from_millis(50), "{quickest:?}");
    }
}
