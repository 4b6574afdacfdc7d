//! Reads what this process and its machine do. One reading costs a fraction of a millisecond.
//!
//! What Linux alone tells (page faults, page cache, other processes) is read from `/proc`; all else
//! comes from crates that know other systems too. Nothing here fails: what cannot be read is
//! left out.

use std::time::Instant;

use firebox_core::MachineSample;
use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

use crate::gpu::Gpus;
use crate::linux::Counters;

/// Readings of the machine, each with the rates since the one before.
pub(crate) struct Machine {
    system: System,
    own: Option<Pid>,
    threads: u32,
    gpus: Gpus,
    since: Instant,
    before: Totals,
}

/// What only grows. `None` where the system does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Totals {
    cpu_seconds: f64,
    disk_read: f64,
    disk_written: f64,
    linux: Counters,
}

impl Machine {
    /// A first reading, which those that follow are measured from.
    pub(crate) fn new(gpus: Gpus) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let mut machine = Self {
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
        let rate = |now: f64, before: f64| (now - before).max(0.0) / seconds;
        let rates = |now: Option<f64>, before: Option<f64>| Some(rate(now?, before?));
        let cpu_threads = rate(now.cpu_seconds, self.before.cpu_seconds);
        let disk_read = rate(now.disk_read, self.before.disk_read);
        let by_calls = rates(linux.read_by_calls, before.read_by_calls);
        let busy = linux.busy_since(&before);
        self.system.refresh_memory();
        let (memory_bytes, available_bytes) = self.memory();
        let sample = MachineSample {
            seconds,
            cpu_threads,
            threads: self.threads,
            other_threads: busy.map(|busy| (busy - cpu_threads).max(0.0)),
            resident_bytes: self.process().map_or(0, sysinfo::Process::memory),
            memory_bytes,
            available_bytes,
            page_cache_bytes: crate::linux::page_cache_bytes(),
            minor_faults: rates(linux.minor_faults, before.minor_faults),
            major_faults: rates(linux.major_faults, before.major_faults),
            disk_read,
            disk_written: rate(now.disk_written, self.before.disk_written),
            cache_read: by_calls.map(|all| (all - disk_read).max(0.0)),
            gpus: self.gpus.sample(),
            // Whoever runs the work knows them.
            pools: vec![],
        };
        self.before = now;
        sample
    }

    fn process(&self) -> Option<&sysinfo::Process> {
        self.system.process(self.own?)
    }

    fn totals(&mut self) -> Totals {
        if let Some(own) = self.own {
            let what = ProcessRefreshKind::nothing().with_cpu().with_memory().with_disk_usage();
            let only = ProcessesToUpdate::Some(&[own]);
            self.system.refresh_processes_specifics(only, false, what.without_tasks());
        }
        let process = self.process();
        let disk = process.map(sysinfo::Process::disk_usage).unwrap_or_default();
        Totals {
            cpu_seconds: process.map_or(0.0, |p| p.accumulated_cpu_time() as f64 / 1e3),
            disk_read: disk.total_read_bytes as f64,
            disk_written: disk.total_written_bytes as f64,
            linux: Counters::read(),
        }
    }

    /// Memory that this process may use, and what is left of it: its control group's where that is
    /// less than the machine's.
    fn memory(&self) -> (u64, u64) {
        let (total, available) = (self.system.total_memory(), self.system.available_memory());
        match self.system.cgroup_limits() {
            Some(group) if group.total_memory > 0 && group.total_memory < total => {
                (group.total_memory, group.free_memory.min(available))
            }
            _ => (total, available),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_seen_in_the_next_sample() {
        let mut machine = Machine::new(Gpus::none());
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
            assert!(sample.page_cache_bytes.unwrap() > 0 && sample.other_threads.is_some());
        }
    }

    #[test]
    fn reading_is_cheap() {
        let mut machine = Machine::new(Gpus::none());
        let start = Instant::now();
        (0..20).for_each(|_| drop(machine.sample()));
        // At one sample a second, 5 ms would be half a percent of one thread.
        assert!(start.elapsed().as_secs_f64() / 20.0 < 0.05, "{:?}", start.elapsed());
    }
}
