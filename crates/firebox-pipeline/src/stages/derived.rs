//! Settings that were not written but follow from others, from the device or from the data, each with
//! its reason.

use std::collections::BTreeMap;

use firebox_core::{EqualPolicy, Labels, Precision, SeriesSet, SplitRule, StepLabels};
use firebox_data::Ingested;
use firebox_eval::Reason;
use firebox_train::{LossScale, TrainConfig};

use super::Windows;
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::moments::{are_in_common, horizon};
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
        let why = match std::env::var_os("FIREBOX_KERNELS").filter(|asked| !asked.is_empty()) {
            Some(_) => "the LSTM kernels that FIREBOX_KERNELS asks for",
            None => "the fastest LSTM kernels that this processor runs",
        };
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

/// Series of one class each from which on whole series are drawn without being asked for: of fewer, a part may have none.
const FEWEST_TO_DRAW: usize = 10;

/// The split that follows from the data where none is written, and why.
pub(crate) fn automatic(
    config: &PipelineConfig,
    set: &SeriesSet,
    clock: bool,
) -> (SplitRule, &'static str) {
    let (given, grouped) = (config.data.test.is_some(), set.groups() > 0);
    let follows = SplitRule::automatic(given, grouped, clock, set.series().len());
    if !given && grouped && horizon(config) > 0 && are_in_common(set, clock) {
        return (
            SplitRule::automatic(false, false, clock, set.series().len()).0,
            "groups have the same times, and what is told of a window comes after it: of whole groups, what moves all of them would be known from training",
        );
    }
    let of_one_class = || one_class_each(&config.labels, set);
    if matches!(follows.0, SplitRule::Time { .. })
        && of_one_class().is_some_and(|series| series >= FEWEST_TO_DRAW)
    {
        let (rule, _) = SplitRule::automatic(false, false, false, set.series().len());
        return (
            rule,
            "each series has one class throughout, or nearly so, which a part of it in training would tell of the rest: whole series are drawn for each part",
        );
    }
    follows
}

/// How many series have labels, if the series tells nine tenths of what the most frequent class leaves open: then a part of a
/// series tells the class of another. As good as that are series of one class each.
pub(crate) fn one_class_each(labels: &Labels, set: &SeriesSet) -> Option<usize> {
    if !matches!(labels, Labels::Last | Labels::Majority { .. }) {
        return None;
    }
    let (mut series, mut told, mut all) = (0, 0u64, BTreeMap::<u32, u64>::new());
    for one in set.series().iter().filter(|one| one.is_labelled()) {
        let counts = one.class_counts();
        told += counts.values().max().copied().unwrap_or_default();
        counts.into_iter().for_each(|(class, count)| *all.entry(class).or_default() += count);
        series += 1;
    }
    let (steps, most) =
        (all.values().sum::<u64>(), all.values().max().copied().unwrap_or_default());
    (series > 1 && all.len() > 1 && 10 * (steps - told) <= steps - most).then_some(series)
}

/// The split that was written, or the one that follows from the data, with its reason.
pub(crate) fn rule_for(
    config: &PipelineConfig,
    ingested: &Ingested,
) -> Result<(SplitRule, &'static str), PipelineError> {
    let (series, clock) = (ingested.set.series(), ingested.checks.span.is_some());
    let Some(rule) = config.split else {
        return Ok(automatic(config, &ingested.set, clock));
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

#[cfg(test)]
mod tests {
    use firebox_core::{Channel, Role, Series};

    use super::*;

    /// Series of ten steps with the class of each step, by series.
    fn set(classes: &[Vec<Option<u32>>]) -> SeriesSet {
        let series = classes.iter().enumerate().map(|(index, labels)| Series {
            labels: StepLabels::PerStep(labels.clone()),
            ..Series::regular(format!("s{index}"), 0, 1, vec![0.5; labels.len()], 1)
        });
        let names = ["a", "b", "c"].map(str::to_owned).to_vec();
        let channels = vec![Channel::new("x", Role::Other)];
        SeriesSet::new(channels, names, series.collect()).unwrap()
    }

    /// Two labelled steps of one class each.
    fn one_each(series: u32) -> Vec<Vec<Option<u32>>> {
        (0..series).map(|index| vec![None, Some(index % 2), Some(index % 2)]).collect()
    }

    #[test]
    fn series_of_one_class_each_are_drawn_as_a_whole_and_others_are_divided_by_time() {
        let name = |set: &SeriesSet, labels: Labels| {
            let config = PipelineConfig { labels, ..PipelineConfig::default() };
            automatic(&config, set, true).0.name()
        };
        let last = || Labels::Last;
        assert_eq!(name(&set(&one_each(10)), last()), "series");
        assert_eq!(name(&set(&one_each(10)), Labels::Majority { share: 0.5 }), "series");
        // Too few, of one class alone, of several classes, or labels that are made of prices.
        assert_eq!(name(&set(&one_each(9)), last()), "time");
        assert_eq!(name(&set(&vec![vec![Some(1); 5]; 20]), last()), "time");
        let mut several = one_each(20);
        several[7] = vec![Some(0), Some(1)];
        // One of twenty, a step of which is of the other class: the series still tell nearly all.
        assert_eq!(name(&set(&several), last()), "series");
        for index in [0, 3, 5, 9] {
            several[index] = vec![Some(0), Some(1)];
        }
        assert_eq!(name(&set(&several), last()), "time");
        // One class is most of all series, which tell nothing of the rest.
        let mut mostly = vec![vec![Some(0); 20]; 15];
        mostly.iter_mut().for_each(|labels| labels[3] = Some(1));
        assert_eq!(name(&set(&mostly), last()), "time");
        let forward = Labels::Forward { horizon: 5, threshold: 0.0 };
        assert_eq!(name(&set(&one_each(10)), forward), "time");
        assert_eq!(one_class_each(&last(), &set(&one_each(9))), Some(9));
        assert_eq!(one_class_each(&last(), &set(&several)), None);
        assert_eq!(one_class_each(&last(), &set(&mostly)), None);
        // What has no label says nothing.
        let mut some = one_each(10);
        some.push(vec![None; 4]);
        assert_eq!(one_class_each(&last(), &set(&some)), Some(10));
    }

    #[test]
    fn groups_of_common_times_are_divided_by_time_where_what_is_told_lies_ahead() {
        let year = 2 * 365 * 24 * 3_600_000_000i64;
        let set = |begin: &dyn Fn(usize) -> i64| {
            let series = (0..6).map(|index| Series {
                group: Some(format!("g{}", index / 2).into()),
                ..Series::regular(format!("s{index}"), begin(index), 60_000_000, vec![0.5; 100], 1)
            });
            let channels = vec![Channel::new("x", Role::Close)];
            SeriesSet::new(channels, vec![], series.collect()).unwrap()
        };
        let name = |set: &SeriesSet, labels: Labels, clock: bool| {
            let config = PipelineConfig { labels, ..PipelineConfig::default() };
            automatic(&config, set, clock).0.name()
        };
        let ahead = Labels::Return { horizon: 5, threshold: 0.0 };
        let (at_once, apart) =
            (set(&|_| year), set(&|index| year + 600_000_000_000 * index as i64));
        assert_eq!(name(&at_once, ahead, true), "time");
        assert_eq!(name(&at_once, Labels::Last, true), "series");
        assert_eq!(name(&apart, ahead, true), "series");
        // Times that begin anew with each recording are no moments, and without a clock there are none.
        assert_eq!(name(&set(&|_| 0), ahead, true), "series");
        assert_eq!(name(&at_once, ahead, false), "series");
    }
}
