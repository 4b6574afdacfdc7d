//! The profiler: where the time of some training steps goes, from the spans of [`tracing`].
//!
//! Whatever opens a span whose target begins with `firebox` is recorded while the profiled steps are
//! taken: the training loop does, and kernels and loaders may. Spans are times of the host. On a GPU
//! the host only asks for work, and waits for it where it reads a result back; what the device does
//! meanwhile is measured by a [`DeviceTimer`], if there is one, and laid over the same time.

mod allocations;
mod device;
mod recorder;
mod trace;

use std::str::FromStr;

pub use allocations::Counted;
pub use device::{DeviceKernel, DeviceTimer, Ran};
pub use recorder::{ProfileError, Profiler};
pub use trace::{Place, Profile, Span, SpanTotal};

/// Name of the span that a training step is.
const STEP: &str = "step";
/// Name of the span in which the host waits for the device.
const WAITING: &str = "read back";

/// Which steps are profiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileConfig {
    /// Steps that are taken before.
    pub warmup: u64,
    /// Steps that are profiled, at least 1.
    pub active: u64,
}

impl Default for ProfileConfig {
    fn default() -> Self {
        Self { warmup: 5, active: 10 }
    }
}

impl FromStr for ProfileConfig {
    type Err = String;

    /// Reads `warmup=5,active=10`; what is left out has this value.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut config = Self::default();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let value = value.trim().parse::<u64>();
            match (key.trim(), value) {
                ("warmup", Ok(steps)) => config.warmup = steps,
                ("active", Ok(steps)) if steps > 0 => config.active = steps,
                ("active", Ok(_)) => return Err("at least 1 step is profiled".to_owned()),
                ("warmup" | "active", Err(_)) => {
                    return Err(format!("`{}` is no number of steps", part.trim()));
                }
                (other, _) => {
                    return Err(format!("`{other}` is unknown; write warmup=5,active=10"));
                }
            }
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_left_out_has_its_default() {
        let check = |text: &str, warmup, active| {
            assert_eq!(text.parse(), Ok(ProfileConfig { warmup, active }), "{text}");
        };
        check("warmup=2,active=3", 2, 3);
        check(" active = 7 ", 5, 7);
        check("", 5, 10);
        for bad in ["active=0", "warm=1", "active", "warmup=-1"] {
            assert!(bad.parse::<ProfileConfig>().is_err(), "{bad}");
        }
    }
}
