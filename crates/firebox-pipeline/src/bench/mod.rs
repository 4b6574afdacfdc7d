//! Times whole training steps of the reference workloads, through the loop that training runs.
//!
//! Models, sizes and losses are those of the peer's script for PyTorch, and so are the keys of the
//! result, so that both can be read together. Each workload has a file of its own; [`suite`] runs
//! many of them, in turn, and writes what they tell. Accuracy is not measured here.

mod bert_base;
mod ceilings;
mod cnn_lstm;
mod config;
mod labels;
mod lstm_forecast;
mod lstm_mae;
mod mlp;
mod noise;
mod on_device;
mod parts;
mod probe;
mod processor;
mod small;
mod stored;
pub(crate) mod suite;
mod timing;
mod transformer;
mod watch;
mod work;

use firebox_core::{Listener, Precision, PrecisionRule, Silent};
use firebox_kernels::CpuKernels;
use serde::{Deserialize, Serialize};

pub use self::ceilings::Ceilings;
pub(crate) use self::config::GPU_WARMUP;
use self::config::Sizes;
pub use self::config::{BenchConfig, Workload};
pub use self::on_device::KernelShare;
pub use self::parts::{ADDED_AIM, Share, StepParts, UPDATE_AIM, Verdict};
pub(crate) use self::probe::Probe;
pub use self::small::SmallModel;
pub(crate) use self::small::measure_small;
use self::timing::Beside;
pub(crate) use self::timing::{Measured, in_a_step};
pub use self::watch::Watching;
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::precision::{Abilities, PolicyError, resolve};

/// The result: one line of JSON, with the keys of `torch_steps.py` and more of our own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BenchResult {
    /// `firebox` with its version.
    pub engine: String,
    /// The workload's name.
    pub workload: String,
    /// `train` or `eval`.
    pub mode: String,
    /// The device with its threads.
    pub device: String,
    /// Precision, such as `f32`; of a peer as it spells it (`fp32`).
    pub precision: String,
    /// Samples of a batch.
    pub batch: usize,
    /// Median wall-clock time of a step, milliseconds.
    pub step_ms: f64,
    /// The shortest step.
    pub min_ms: f64,
    /// The longest step.
    pub max_ms: f64,
    /// The first step of all, which is not among the timed ones where there are others before them:
    /// kernels are compiled and tuned in it, milliseconds.
    #[serde(default)]
    pub first_ms: f64,
    /// Samples a second at the median.
    pub samples_per_s: f64,
    /// Most memory up to the last step, MiB; `None` where it is not known. On a processor the largest resident memory of
    /// this process; on another device what its allocator had of the device's memory.
    pub peak_mib: Option<f64>,
    /// Loss of the first step.
    pub first_loss: f64,
    /// Loss of the last step.
    pub last_loss: f64,
    /// Variant of the kernels.
    #[serde(default)]
    pub kernels: String,
    /// Mean time of a step that went by waiting for data, milliseconds.
    #[serde(default)]
    pub data_ms: f64,
    /// Mean wall-clock time of a step, milliseconds; `None` of a peer that does not tell it.
    #[serde(default)]
    pub mean_ms: Option<f64>,
    /// Standard deviation of the steps, milliseconds.
    #[serde(default)]
    pub sd_ms: f64,
    /// Share of the device's time that the timed steps kept it busy; `None` where it is not known.
    #[serde(default)]
    pub utilisation: Option<f64>,
    /// Page faults of this process in the timed steps, for each of them; `None` where they are not known,
    /// elsewhere than on Unix. Next to none where the allocator gives steps the memory of those before.
    #[serde(default)]
    pub page_faults: Option<PageFaults>,
    /// Parameters of the model.
    #[serde(default)]
    pub parameters: usize,
    /// Operations that a step cannot do without, 10⁹.
    #[serde(default)]
    pub gflop: f64,
    /// What watching cost, where it was on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watching: Option<Watching>,
    /// Where the time of a step goes, where it was taken apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<StepParts>,
    /// The kernels of a step on a GPU, the longest first, where they were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_device: Option<Vec<KernelShare>>,
    /// Where the samples lay that batches are made of: `device`, `memory` or `stream`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident: Option<String>,
}

/// Page faults, a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PageFaults {
    /// Those that memory served: pages that were written to for the first time.
    pub minor: f64,
    /// Those that a disk served.
    pub major: f64,
}

impl PageFaults {
    /// Of so many steps, from what was counted before and after them; `None` without a step.
    fn between(before: [u64; 2], after: [u64; 2], steps: u64) -> Option<Self> {
        let a_step = |kind: usize| after[kind].saturating_sub(before[kind]) as f64 / steps as f64;
        (steps > 0).then(|| Self { minor: a_step(0), major: a_step(1) })
    }
}

/// Times a workload on a device.
///
/// # Errors
/// When a setting cannot be, or training fails.
pub fn bench(config: &BenchConfig, device: &ChosenDevice) -> Result<BenchResult, PipelineError> {
    bench_shown(config, device, &Silent)
}

/// The same; where it is watched, `progress` is told of everything that a run tells.
///
/// # Errors
/// When a setting cannot be, or training fails.
pub fn bench_shown(
    config: &BenchConfig,
    device: &ChosenDevice,
    progress: &dyn Listener,
) -> Result<BenchResult, PipelineError> {
    let sizes = config.sizes()?;
    check_precision(config.precision, device)?;
    if config.parts && device.backend != "cpu" {
        return Err(PipelineError::Setting(
            "--parts is of a processor: a GPU takes steps that the host does not wait for, so that the host's times are not theirs\n  \
             take --kernels, which times the kernels of a GPU"
                .to_owned(),
        ));
    }
    if config.kernels && device.backend == "cpu" {
        return Err(PipelineError::Setting(
            "--kernels times what is launched on a GPU, and this device is a processor\n  \
             take --parts, or name a GPU with --device"
                .to_owned(),
        ));
    }
    let kernels = device.arithmetic()?;
    let measured = measure(config, device, progress)?;
    let Measured {
        times,
        first,
        waits,
        losses,
        peak_mib,
        parameters,
        utilisation,
        page_faults,
        watching,
        parts,
        on_device,
        place,
    } = measured;
    let mut sorted = times.clone();
    sorted.sort_by(f64::total_cmp);
    let (median, count) = (median(&sorted), times.len() as f64);
    let mean = times.iter().sum::<f64>() / count;
    let squares = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>();
    Ok(BenchResult {
        engine: format!("firebox {}", env!("CARGO_PKG_VERSION")),
        workload: config.workload.name().to_owned(),
        mode: if config.evaluate { "eval" } else { "train" }.to_owned(),
        device: short_name(device),
        precision: config.precision.to_string(),
        batch: sizes.batch,
        step_ms: median,
        min_ms: sorted[0],
        max_ms: sorted[sorted.len() - 1],
        first_ms: first,
        samples_per_s: 1e3 * sizes.batch as f64 / median,
        peak_mib,
        first_loss: losses.first().copied().unwrap_or(f64::NAN),
        last_loss: losses.last().copied().unwrap_or(f64::NAN),
        kernels,
        data_ms: waits.iter().sum::<f64>() / count,
        mean_ms: Some(mean),
        sd_ms: (squares / (count - 1.0).max(1.0)).sqrt(),
        utilisation,
        page_faults,
        parameters,
        gflop: work::operations(config.workload, sizes, config.evaluate) / 1e9,
        watching,
        parts,
        on_device,
        resident: place.map(|place| place.to_string()),
    })
}

impl BenchResult {
    /// Share of the time of all steps that went by waiting for data, 0 to 1; `None` of a peer that does not tell it. Beside
    /// the median it would be no share: one long wait of many steps leaves that where it is.
    pub(crate) fn waiting_share(&self) -> Option<f64> {
        Some(self.data_ms / self.mean_ms?)
    }
}

/// The middle one of at least one figure in order, or of an even number the mean of the middle two.
fn median(sorted: &[f64]) -> f64 {
    let (lower, upper) = ((sorted.len() - 1) / 2, sorted.len() / 2);
    (sorted[lower] + sorted[upper]) / 2.0
}

/// Refuses a type that the device does not have: none is timed as another.
pub(crate) fn check_precision(
    precision: Precision,
    device: &ChosenDevice,
) -> Result<(), PipelineError> {
    match resolve(PrecisionRule::Fixed(precision), None, &Abilities::of(device)?) {
        Err(PolicyError::Missing { asked, why, alternatives }) => {
            Err(PipelineError::Setting(format!(
                "--precision is {asked}, and this device does not compute in it: {why}\n  use one of {alternatives}"
            )))
        }
        other => Ok(other.map(|_| ())?),
    }
}

/// Takes the steps of a workload.
///
/// # Errors
/// When a setting cannot be, or training fails.
pub(crate) fn measure(
    config: &BenchConfig,
    device: &ChosenDevice,
    progress: &dyn Listener,
) -> Result<Measured, PipelineError> {
    let sizes = config.sizes()?;
    device.run(|| steps(sizes, config, device, &Beside { progress, train: None }))
}

/// [`measure`] with Burn's own operations alone, whatever kernels there are.
///
/// # Errors
/// As [`measure`].
pub(crate) fn measure_composed(
    config: &BenchConfig,
    device: &ChosenDevice,
) -> Result<Measured, PipelineError> {
    let sizes = config.sizes()?;
    let beside = Beside { progress: &Silent, train: None };
    device.run(|| CpuKernels::Composed.force(|| steps(sizes, config, device, &beside)))
}

fn steps(
    sizes: Sizes,
    config: &BenchConfig,
    device: &ChosenDevice,
    beside: &Beside<'_>,
) -> Result<Measured, PipelineError> {
    match config.workload {
        Workload::LstmMae => lstm_mae::run(sizes, config, device, beside),
        Workload::LstmForecast => lstm_forecast::run(sizes, config, device, beside),
        Workload::Transformer => transformer::run(sizes, config, device, beside),
        Workload::Mlp => mlp::run(sizes, config, device, beside),
        Workload::CnnLstm => cnn_lstm::run(sizes, config, device, beside),
        Workload::BertBase => bert_base::run(sizes, config, device, beside),
    }
}

/// The device as the peer's script names its own.
pub(crate) fn short_name(device: &ChosenDevice) -> String {
    match device.backend.as_str() {
        "cpu" => format!("cpu x{}", rayon::current_num_threads()),
        _ => device.description.clone(),
    }
}

#[cfg(test)]
mod tests {
    use firebox_loader::Resident;

    use super::*;

    /// Sizes at which a step of any workload takes milliseconds.
    fn small(workload: Workload) -> BenchConfig {
        let some = |size, there: bool| there.then_some(size);
        BenchConfig {
            precision: Precision::Bf16,
            batch: Some(4),
            steps: 3,
            warmup: 1,
            length: some(16, workload != Workload::LstmForecast),
            hidden: some(16, workload.default_hidden().is_some()),
            ..BenchConfig::new(workload)
        }
    }

    #[test]
    fn a_line_has_the_peers_keys_and_trains() {
        let both = Workload::ALL.into_iter().flat_map(|(one, _)| [(one, false), (one, true)]);
        for (workload, evaluate) in both {
            let result =
                bench(&BenchConfig { evaluate, ..small(workload) }, &ChosenDevice::named("cpu"))
                    .unwrap();
            assert!(result.min_ms > 0.0 && result.min_ms <= result.step_ms);
            assert!(result.first_ms > 0.0, "{result:?}");
            // Noise has the variance 1, and an untrained model predicts next to nothing; the
            // cross-entropy of chance is ln 3 or ln 5.
            assert!((0.2..3.5).contains(&result.first_loss), "{result:?}");
            assert!(result.gflop > 0.0 && result.parameters > 100, "{result:?}");
            let line = serde_json::to_value(&result).unwrap();
            for key in ["engine", "workload", "mode", "device", "precision", "batch", "step_ms"] {
                assert!(!line[key].is_null(), "{key}");
            }
            assert_eq!(line["mode"], if evaluate { "eval" } else { "train" });
            assert_eq!(line["precision"], "bf16");
            let faults = &line["page_faults"];
            assert_eq!(faults.is_null(), cfg!(not(unix)), "{line}");
            let counted = |kind: &str| faults[kind].as_f64().is_some_and(|count| count >= 0.0);
            assert!(faults.is_null() || counted("minor") && counted("major"), "{line}");
        }
    }

    #[test]
    fn types_are_called_as_everywhere_else_and_the_peers_names_are_taken() {
        let config = BenchConfig { precision: "fp32".parse().unwrap(), ..small(Workload::Mlp) };
        assert_eq!(bench(&config, &ChosenDevice::named("cpu")).unwrap().precision, "f32");
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(
            [median(&[7.0]), median(&[1.0, 4.0]), median(&[1.0, 2.0, 9.0])],
            [7.0, 2.5, 2.0]
        );
        let config = BenchConfig { steps: 2, ..small(Workload::Mlp) };
        let result = bench(&config, &ChosenDevice::named("cpu")).unwrap();
        let middle = (result.min_ms + result.max_ms) / 2.0;
        assert!((result.step_ms / middle - 1.0).abs() < 1e-12, "{result:?}");
    }

    #[test]
    fn waiting_is_a_share_of_all_steps_and_not_of_the_median_one() {
        // The last of five steps waited for nearly all of its time: 190 of 240 ms.
        let result = bench(&small(Workload::Mlp), &ChosenDevice::named("cpu")).unwrap();
        let (mean, share) = (result.mean_ms.unwrap(), result.waiting_share().unwrap());
        assert!((result.min_ms..=result.max_ms).contains(&mean), "{result:?}");
        assert!((share - result.data_ms / mean).abs() < 1e-12 && share < 1.0, "{result:?}");
        let waited = BenchResult { data_ms: 190.0 / 5.0, mean_ms: Some(240.0 / 5.0), ..result };
        assert!((waited.waiting_share().unwrap() - 190.0 / 240.0).abs() < 1e-12, "{waited:?}");
    }

    #[test]
    fn page_faults_are_those_of_a_step() {
        let found = PageFaults::between([1000, 7], [1010, 8], 4);
        assert_eq!(found, Some(PageFaults { minor: 2.5, major: 0.25 }));
        assert_eq!(PageFaults::between([0; 2], [3; 2], 0), None);
    }

    #[test]
    fn a_type_that_the_device_lacks_is_not_timed_as_another() {
        let config = BenchConfig { precision: Precision::Tf32, ..small(Workload::Mlp) };
        let error = bench(&config, &ChosenDevice::named("cpu")).unwrap_err();
        assert!(error.is_bad_input() && error.to_string().contains("TF32"), "{error}");
    }

    #[test]
    fn steps_go_on_for_as_long_as_is_asked() {
        let config = BenchConfig { seconds: 0.5, watched: true, ..small(Workload::Mlp) };
        let measured = measure(&config, &ChosenDevice::named("cpu"), &Silent).unwrap();
        let (count, all) = (measured.times.len(), measured.times.iter().sum::<f64>());
        assert!(count >= 3 && measured.losses.len() == count + 1, "{count}");
        let seconds = measured.watching.unwrap().seconds;
        assert!(seconds >= 0.5 && all <= 1e3 * seconds, "{seconds} s, steps of {all} ms");
    }

    #[test]
    fn neither_watching_nor_the_loader_changes_a_loss_and_a_cost_is_told() {
        let config = BenchConfig { samples: Some(9), ..small(Workload::LstmMae) };
        let alone = bench(&config, &ChosenDevice::named("cpu")).unwrap();
        let watched =
            bench(&BenchConfig { watched: true, ..config }, &ChosenDevice::named("cpu")).unwrap();
        let at_once =
            bench(&BenchConfig { workers: 0, ..config }, &ChosenDevice::named("cpu")).unwrap();
        assert_eq!([alone.last_loss; 2], [watched.last_loss, at_once.last_loss]);
        assert_eq!(alone.resident.as_deref(), Some("stream"));
        // Wherever they lie, the samples of one batch come in the same order.
        for (resident, name) in &Resident::ALL[1..3] {
            let there = BenchConfig { resident: *resident, samples: None, ..config };
            let stream = BenchConfig { resident: Resident::Stream, ..there };
            let [there, stream] =
                [there, stream].map(|config| bench(&config, &ChosenDevice::named("cpu")).unwrap());
            assert_eq!(there.last_loss, stream.last_loss);
            assert_eq!(there.resident.as_deref(), Some(*name));
        }
        assert!(alone.watching.is_none());
        let cost = watched.watching.unwrap();
        assert!(cost.loop_us > 0.0 && cost.seconds > 0.0, "{cost:?}");
        if cfg!(target_os = "linux") {
            // Other tests open files meanwhile, which their process takes time for.
            let once = [cost.begin_ms, cost.end_ms].map(Option::unwrap);
            assert!(
                once.iter().all(|time| *time > 0.0) && cost.threads_us >= Some(0.0),
                "{cost:?}"
            );
        }
        assert!(at_once.data_ms > 0.0);
        if cfg!(target_os = "linux") {
            // The tests beside it are of the same process.
            assert!(
                alone.utilisation.is_some_and(|share| share > 0.0 && share <= 1.0),
                "{alone:?}"
            );
        }
    }
}
