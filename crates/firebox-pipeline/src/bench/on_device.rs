//! Where the time of a step goes on a GPU: by kernel, from the times that the device wrote down.

use firebox_monitor::{Place, Profile};
use serde::{Deserialize, Serialize};

use super::config::BenchConfig;
use super::parts::profiled;
use crate::error::PipelineError;
use crate::profile::device_timer;

/// What a kernel takes of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelShare {
    /// Its name.
    pub name: String,
    /// Its sizes, where it is one of firebox-kernels.
    #[serde(default)]
    pub shape: String,
    /// Launches of a step.
    pub launches: f64,
    /// Milliseconds of a step that the device computed it.
    pub ms: f64,
    /// 10⁹ operations of a step; 0 where they are not known.
    #[serde(default)]
    pub gflop: f64,
}

/// Does training whose kernels are measured, if that is asked for.
pub(super) fn measured<T>(
    config: &BenchConfig,
    work: impl FnOnce() -> Result<T, PipelineError>,
) -> Result<(T, Option<Vec<KernelShare>>), PipelineError> {
    if !config.kernels {
        return Ok((work()?, None));
    }
    let (done, profile) = profiled(config, device_timer(), work)?;
    Ok((done, Some(shares(&profile))))
}

/// The kernels of a step, the longest first.
fn shares(profile: &Profile) -> Vec<KernelShare> {
    let steps = profile.steps.max(1) as f64;
    let on_device = profile.totals().into_iter().filter(|total| total.place == Place::Device);
    let mut shares: Vec<_> = on_device
        .map(|total| KernelShare {
            name: total.name,
            shape: total.shape,
            launches: total.count as f64 / steps,
            ms: total.total_ms / steps,
            gflop: total.operations / 1e9 / steps,
        })
        .collect();
    shares.sort_by(|a, b| b.ms.total_cmp(&a.ms).then_with(|| a.name.cmp(&b.name)));
    shares
}

#[cfg(test)]
mod tests {
    use firebox_monitor::Span;

    use super::*;

    #[test]
    fn kernels_of_one_name_and_shape_are_one_line_and_the_longest_is_first() {
        let span = |name: &str, shape: &str, duration_us: f64, on_device| Span {
            name: name.to_owned().into(),
            fields: vec![("shape", shape.to_owned()), ("operations", "2000000000".to_owned())],
            thread: 1,
            thread_name: String::new(),
            on_device,
            start_us: 0.0,
            duration_us,
        };
        let spans = vec![
            span("fused", "", 1000.0, true),
            span("lstm", "[8]", 3000.0, true),
            span("lstm", "[9]", 500.0, true),
            span("lstm", "[8]", 5000.0, true),
            span("step", "", 9000.0, false),
        ];
        let found = shares(&Profile {
            steps: 2,
            spans,
            left_out: 0,
            launched: 4,
            unmeasured: 0,
            by_host: 0,
            allocations: None,
        });
        let lines: Vec<_> = found
            .iter()
            .map(|share| (share.name.as_str(), share.shape.as_str(), share.launches, share.ms))
            .collect();
        let expected =
            [("lstm", "[8]", 1.0, 4.0), ("fused", "", 0.5, 0.5), ("lstm", "[9]", 0.5, 0.25)];
        assert_eq!(lines, expected);
        assert_eq!(found[0].gflop, 2.0);
    }
}
