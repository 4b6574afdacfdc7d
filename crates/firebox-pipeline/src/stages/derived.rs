//! Settings that were not written but follow from others, from the device or from the data, each with
//! its reason.

use firebox_core::{EqualPolicy, Precision, SplitRule, StepLabels};
use firebox_data::Ingested;
use firebox_eval::Reason;
use firebox_train::{LossScale, TrainConfig};

use super::Windows;
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::{PipelineConfig, Prepared};

/// The settings of training, with the loss scale that the precision asks for.
pub(crate) fn training(config: &PipelineConfig) -> TrainConfig {
    let f16 = config.run.precision == Precision::F16;
    let loss_scale = config.train.loss_scale.resolve(f16);
    TrainConfig { loss_scale, ..config.train.clone() }
}

/// Values that were not written but derived, each with its reason.
pub(super) fn reasons(
    prepared: &Prepared,
    device: &ChosenDevice,
) -> Result<Vec<Reason>, PipelineError> {
    let config = prepared.config();
    let mut reasons = vec![reason("run.device", device.backend.clone(), &device.reason)];
    reasons.extend_from_slice(prepared.settled_reasons());
    if let (LossScale::Auto, LossScale::Dynamic(scale)) =
        (config.train.loss_scale, training(config).loss_scale)
    {
        let value = format!("dynamic from {}", scale.initial);
        reasons.push(reason("train.loss_scale", value, "f16 needs it: small gradients vanish"));
    }
    if let Some(kernels) = device.cpu_kernels()? {
        let why =
            "the fastest LSTM kernels that this processor runs, or what FIREBOX_KERNELS asks for";
        reasons.push(reason("kernels", kernels, why));
    }
    Ok(reasons)
}

/// The split, as far as it was not written but follows from the data. `horizon` is the number of steps
/// after a window that its labels or targets look at.
pub(crate) fn split_reasons(
    config: &PipelineConfig,
    windows: &Windows,
    horizon: usize,
) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if config.split.is_none() {
        reasons.push(reason("split", written(&windows.rule), windows.chosen));
    }
    if let SplitRule::Time { gap: None, .. } = windows.rule {
        let gap = config.window.length + horizon;
        let why = "one window and the horizon of its label or targets, so that no held-out window begins in steps that a training window has seen";
        reasons.push(reason("split.time.gap", gap.to_string(), why));
    }
    reasons
}

/// A split as a person would write it.
pub(crate) fn written(rule: &SplitRule) -> String {
    match *rule {
        SplitRule::Time { validation, test, .. } => {
            format!("time (validation {validation}, test {test})")
        }
        SplitRule::Series { validation, test, seed } => {
            format!("series (validation {validation}, test {test}, seed {seed})")
        }
        SplitRule::Given { validation, seed, equal } => {
            let equal = match equal {
                EqualPolicy::Error => "",
                EqualPolicy::Drop => ", equal series left out",
                EqualPolicy::Keep => ", equal series kept",
            };
            format!("given (validation {validation}, seed {seed}{equal})")
        }
    }
}

/// The split that was written, or the one that follows from the data, with its reason.
pub(crate) fn rule_for(
    config: &PipelineConfig,
    ingested: &Ingested,
) -> Result<(SplitRule, &'static str), PipelineError> {
    let (series, clock) = (ingested.set.series(), ingested.checks.span.is_some());
    let Some(rule) = config.split else {
        let (given, grouped) = (config.data.test.is_some(), ingested.set.groups() > 0);
        return Ok(SplitRule::automatic(given, grouped, clock, series.len()));
    };
    let labelled = series.iter().filter(|one| matches!(one.labels, StepLabels::Whole(_))).count();
    if matches!(rule, SplitRule::Time { .. }) && !clock && series.len() > 1 && labelled > 0 {
        return Err(PipelineError::Setting(format!(
            "[split.time] would put parts of one sample into training and test: {labelled} of {} series have one label each, and none has times\n  \
             replace it with [split.series] (--set split.series.test=0.2), with [split.given] and `data.test`, or leave the split out",
            series.len()
        )));
    }
    Ok((rule, "as written"))
}

fn reason(key: &str, value: String, reason: &str) -> Reason {
    Reason { key: key.to_owned(), value, reason: reason.to_owned() }
}
