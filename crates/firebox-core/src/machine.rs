//! What the machine did while a run went on, as plain values. Nothing is measured here.

use serde::{Deserialize, Serialize};

/// What this process and its machine did since the sample before. What the system does not tell is
/// `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineSample {
    /// Time since the sample before, which all rates are over.
    pub seconds: f64,
    /// Hardware threads that this process kept busy: its CPU time over wall-clock time.
    pub cpu_threads: f64,
    /// Hardware threads that this process computes with: those that it may use, or fewer where it was told so.
    pub threads: u32,
    /// Hardware threads that all other processes of the machine kept busy; `None`, too, where the machine has more
    /// threads than this process computes with: what goes on on the others takes nothing of it.
    pub other_threads: Option<f64>,
    /// Resident memory of this process, bytes.
    pub resident_bytes: u64,
    /// Memory that this process may use at most: the machine's, or its control group's.
    pub memory_bytes: u64,
    /// Memory that is still to be had of it.
    pub available_bytes: u64,
    /// Memory that the system's page cache holds.
    pub page_cache_bytes: Option<u64>,
    /// Page faults a second that memory served, page cache included.
    pub minor_faults: Option<f64>,
    /// Page faults a second that a disk served.
    pub major_faults: Option<f64>,
    /// Bytes a second that this process made a disk read.
    pub disk_read: f64,
    /// Bytes a second that this process made a disk write.
    pub disk_written: f64,
    /// Bytes a second that this process read by calls and no disk served: the page cache did.
    pub cache_read: Option<f64>,
    /// The GPUs that the driver shows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuSample>,
    /// Where the run's memory is taken from, as far as each of them tells.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<MemoryPool>,
}

/// A place that memory is taken from, such as the heap of the process or an allocator on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryPool {
    /// Its name.
    pub name: String,
    /// Bytes in use.
    pub allocated_bytes: u64,
    /// Bytes that it holds, those in use among them; `None` if it does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<u64>,
    /// The most bytes in use at any time of the run; `None` if nobody counts between samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
}

/// What a GPU did. What its driver does not tell is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuSample {
    /// Its number, from 0.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Share of the driver's last sampling period in which a kernel ran, from 0 to 1.
    pub utilisation: Option<f64>,
    /// Memory in use by all processes, bytes.
    pub memory_used_bytes: Option<u64>,
    /// Memory in all, bytes.
    pub memory_bytes: Option<u64>,
    /// Clock of its multiprocessors, MHz.
    pub clock_mhz: Option<u32>,
    /// Power, watts.
    pub power_watts: Option<f64>,
    /// Temperature, degrees Celsius.
    pub temperature_celsius: Option<u32>,
}
