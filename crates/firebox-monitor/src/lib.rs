//! Watches training at negligible cost: what the machine does, and who is told.
//!
//! [`sampled`] sends an [`Event::Machine`](firebox_core::Event::Machine) each second while some work
//! goes on; [`Usage`] makes averages, peaks and a judgement of the utilisation out of the events of
//! a run; [`Trackers`] pass them on to TensorBoard, MLflow and Prometheus.
//!
//! Everything here listens. Nothing changes a result, holds training up, or ends it: what goes wrong
//! is said once.
//!
//! # Example
//!
//! ```
//! use std::sync::Mutex;
//! use firebox_core::Event;
//! use firebox_monitor::{Usage, WatchGpus, sampled};
//!
//! let usage = Mutex::new(Usage::default());
//! let listener = |event: &Event| usage.lock().unwrap().record(event);
//! listener(&Event::StageStarted { stage: "train".to_owned() });
//! let sum: f64 = sampled(0.1, 1, WatchGpus::No, &listener, || {
//!     let start = std::time::Instant::now();
//!     let mut sum = 0.0;
//!     while start.elapsed().as_millis() < 250 {
//!         sum += 1.0f64.sqrt();
//!     }
//!     sum
//! });
//! assert!(sum > 0.0);
//! let utilisation = usage.lock().unwrap().utilisation(false).unwrap();
//! println!("{}", utilisation.sentence);
//! ```

mod advice;
mod amd;
mod apple;
mod config;
mod control;
mod cuda;
mod gpu;
mod groups;
mod linux;
mod machine;
mod profile;
mod sampler;
#[cfg(test)]
mod testing;
mod text;
mod times;
mod track;
mod trainings;
mod usage;
mod watch;

pub use advice::{
    Advice, Faster, Padding, Scaling, SettingKeys, Settings, Training, advice, advice_on_trainings,
    timings_of_trainings,
};
pub use config::{ConfigError, MlflowConfig, MonitorConfig, PrometheusConfig, TensorBoardConfig};
pub use control::obeying;
pub use gpu::{GpuCard, Numbering, free_gpu_memory, gpu_card};
pub use groups::{group_free, group_leaves, group_limit};
pub use profile::{
    Counted, DeviceKernel, DeviceTimer, Place, Profile, ProfileConfig, ProfileError, Profiler, Ran,
    Span, SpanTotal,
};
pub use sampler::{WatchGpus, sampled, sampled_with};
pub use track::{Picture, TrackedRun, Trackers};
pub use trainings::{PARTS, trainings};
pub use usage::{Measure, MemoryCurve, Usage, Utilisation};
pub use watch::{WatchError, request, watch, watch_once};
