//! Figures of the machine, averaged over time, with their peaks.

use firebox_core::{MachineSample, MemoryPool};

pub(super) const CPU: &str = "processor, this process";
pub(super) const CPU_SHARE: &str = "share of the processor";
pub(super) const OTHERS: &str = "processor, other processes";
pub(crate) const MEMORY_IN_USE: &str = "memory in use, all processes";
pub(crate) const MAJOR_FAULTS: &str = "page faults that a disk served";

/// A figure over time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Gauge {
    pub(super) name: String,
    pub(super) unit: &'static str,
    /// Sum of values by the seconds that each was over, and these seconds.
    sum: f64,
    seconds: f64,
    pub(super) peak: f64,
}

impl Gauge {
    pub(super) fn mean(&self) -> f64 {
        self.sum / self.seconds.max(f64::MIN_POSITIVE)
    }
}

/// Figures in the order in which they were first seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Gauges(pub(super) Vec<Gauge>);

impl Gauges {
    pub(super) fn get(&self, name: &str) -> Option<&Gauge> {
        self.0.iter().find(|gauge| gauge.name == name)
    }

    pub(super) fn see(&mut self, sample: &MachineSample) {
        let threads = f64::from(sample.threads.max(1));
        let in_use = sample.memory_bytes.saturating_sub(sample.available_bytes);
        let whole = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
        let all = [
            (CPU, "threads", Some(sample.cpu_threads)),
            // Threads that wait for files or fill batches come on top of those that compute.
            (CPU_SHARE, "share", Some((sample.cpu_threads / threads).min(1.0))),
            (OTHERS, "threads", sample.other_threads),
            ("resident memory of this process", "bytes", Some(sample.resident_bytes as f64)),
            (MEMORY_IN_USE, "bytes", Some(in_use as f64)),
            ("page cache of the machine", "bytes", whole(sample.page_cache_bytes)),
            ("page faults that memory served", "1/s", sample.minor_faults),
            (MAJOR_FAULTS, "1/s", sample.major_faults),
            ("read from a disk", "bytes/s", Some(sample.disk_read)),
            ("read from the page cache", "bytes/s", sample.cache_read),
            ("written to a disk", "bytes/s", Some(sample.disk_written)),
        ];
        for (name, unit, value) in all {
            self.add(name, unit, value, sample.seconds);
        }
        for MemoryPool { name, allocated_bytes, reserved_bytes, peak_bytes } in &sample.pools {
            let in_use = format!("{name}, in use");
            self.add(&in_use, "bytes", Some(*allocated_bytes as f64), sample.seconds);
            self.raise(&in_use, whole(*peak_bytes));
            self.add(&format!("{name}, reserved"), "bytes", whole(*reserved_bytes), sample.seconds);
        }
        for gpu in &sample.gpus {
            let all = [
                ("utilisation", "share", gpu.utilisation),
                ("memory", "bytes", whole(gpu.memory_used_bytes)),
                ("clock", "MHz", gpu.clock_mhz.map(f64::from)),
                ("power", "W", gpu.power_watts),
                ("temperature", "°C", gpu.temperature_celsius.map(f64::from)),
            ];
            for (name, unit, value) in all {
                self.add(&format!("GPU {} {name}", gpu.index), unit, value, sample.seconds);
            }
        }
    }

    /// The peak of a figure that somebody counted between two samples.
    fn raise(&mut self, name: &str, peak: Option<f64>) {
        let gauge = self.0.iter_mut().find(|gauge| gauge.name == name);
        if let Some((gauge, peak)) = gauge.zip(peak) {
            gauge.peak = gauge.peak.max(peak);
        }
    }

    fn add(&mut self, name: &str, unit: &'static str, value: Option<f64>, seconds: f64) {
        let Some(value) = value.filter(|value| value.is_finite()) else { return };
        let place = self.0.iter().position(|gauge| gauge.name == name).unwrap_or_else(|| {
            let name = name.to_owned();
            self.0.push(Gauge { name, unit, sum: 0.0, seconds: 0.0, peak: value });
            self.0.len() - 1
        });
        let gauge = &mut self.0[place];
        gauge.sum += value * seconds;
        gauge.seconds += seconds;
        gauge.peak = gauge.peak.max(value);
    }
}
