//! The content keys of a pipeline's results, from settings alone: nothing is read but the files
//! whose content the first key is.

use firebox_core::{EqualPolicy, Key, KeyBuilder, Labels, Normalisation, SplitRule};
use firebox_loader::Shuffle;
use firebox_train::{AverageConfig, CheckpointConfig, NonFinite, TrainConfig};
use serde::Serialize;

use crate::feed::{drawn_on_device, effective};
use crate::moments::horizon;
use crate::{Kind, PipelineConfig, WindowConfig};

/// Keys of every result, each containing those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) series: Key,
    pub(crate) windows: Key,
    pub(crate) augmented: Key,
    pub(crate) training: Key,
    pub(crate) evaluation: Key,
}

/// Version of what is measured after training: raised when it says something else of the same model, such as intervals
/// that know of more, so that finished runs are measured anew.
pub(crate) const EVALUATION: u32 = 9;

impl Keys {
    /// The keys below the series of this key. `arithmetic` (backend and kernels) is part of them,
    /// because results differ in their last bits between backends; threads and prefetching are not,
    /// because they change nothing.
    pub(crate) fn new(config: &PipelineConfig, series: Key, arithmetic: &str) -> Self {
        let seed = config.run.seed;
        let mut windows = Key::builder("windows", 1)
            .upstream("series", series)
            .field("window", json(&cut(config.window)))
            .field("labels", json(&config.labels))
            .field("split", json(&config.split));
        // Series that both sides have were trained on once where no split was written, and are refused.
        if config.split.is_none() && config.data.test.is_some() {
            windows = windows.field("equal", json(&EqualPolicy::Error));
        }
        // So are, or are left out, those with steps of test series. A run of one value that others had, too, once hid those
        // that go on behind it.
        let keeps = matches!(config.split, Some(SplitRule::Given { equal: EqualPolicy::Keep, .. }));
        if config.data.test.is_some() && !keeps {
            windows = windows.field("steps", "refused, each series by itself");
        }
        // Of a training set that is given, validation is drawn.
        let of_given = match config.split {
            Some(SplitRule::Given { validation, .. }) => validation > 0.0,
            Some(_) => false,
            None => config.data.test.is_some(),
        };
        // What does not move stays, which a threshold of 0 once said falls.
        if let Labels::Forward { threshold, .. } | Labels::Return { threshold, .. } = config.labels
            && threshold == 0.0
        {
            windows = windows.field("unmoved", "stays");
        }
        // Series of one class each were once divided by time where no split was written.
        if config.split.is_none()
            && config.data.test.is_none()
            && matches!(config.labels, Labels::Last | Labels::Majority { .. })
        {
            windows = windows.field("classes", "of series");
        }
        // Series whose steps are all of one class of a column were once drawn regardless of classes.
        if config.data.columns.label.is_some()
            && (of_given || matches!(config.split, Some(SplitRule::Series { .. })))
        {
            windows = windows.field("classes", "of columns");
        }
        // Series that have steps of each other were once drawn for several parts.
        let may_draw = config.pipeline != Kind::Multitimeframe
            && config.split.is_none()
            && (config.data.is_grouped()
                || matches!(config.labels, Labels::Last | Labels::Majority { .. }));
        if of_given || may_draw || matches!(config.split, Some(SplitRule::Series { .. })) {
            windows = windows.field("steps", "together, each series by itself");
        }
        // Series of one class in nine of ten steps are drawn evenly, and copies that were stored as f32 together; what small
        // classes cannot give is not taken from the next ones.
        let folds = config.pipeline == Kind::Multitimeframe;
        if !folds && !matches!(config.split, Some(SplitRule::Time { .. })) {
            windows = windows.field("draw", "by main class, each its own");
        }
        // Groups that have the same times were once drawn as a whole, whatever was told of them.
        if config.split.is_none()
            && config.data.test.is_none()
            && config.data.is_grouped()
            && horizon(config) > 0
        {
            windows = windows.field("moments", "in common");
        }
        // What rounding leaves of an even rise was once the volatility of a window.
        if config.window.normalise == Normalisation::WindowRelative
            || matches!(config.labels, Labels::Forward { .. })
        {
            windows = windows.field("volatility", "above rounding");
        }
        // A move of exactly the threshold was once missed by rounding, above all upwards.
        if matches!(config.labels, Labels::Return { threshold, .. } if threshold > 0.0) {
            windows = windows.field("threshold", "is met");
        }
        // The mean of many equal numbers was once off by their rounding, and that a scale: of 18,000 and more, as each sum is
        // off by half a unit in the last place at most, and 1e-12 was none. Up to 10,000 it is below that for certain.
        let is_long = config.window.length > 10_000;
        let normalise = config.window.normalise;
        if normalise == Normalisation::Standard
            || (is_long && normalise == Normalisation::WindowStandard)
        {
            windows = windows.field("constant", "is none");
        }
        // A share that is met exactly was once missed by rounding, as 11 of 20 is 0.55; halves never were.
        if matches!(config.labels, Labels::Majority { share } if share != 0.5) {
            windows = windows.field("majority", "of the share");
        }
        let windows = windows.finish();
        let augmented = firebox_cache::augmented_key(windows, &effective(&config.augment), seed);
        let mut training = Key::builder("training", 1).upstream("augmented", augmented);
        training = newest(ordered(training, config), &config.train, validates(config));
        // The last bits of such batches are the device's; all others are the same wherever they come from.
        if drawn_on_device(config, arithmetic) {
            training = training.field("drawn", "device");
        }
        let training = training
            .field("model", json(&config.model))
            .field("train", json(&learnt_by(&config.train)))
            .field("batch_size", config.loader.batch_size.to_le_bytes())
            .field("precision", config.run.precision.to_string())
            .field("seed", seed.to_le_bytes())
            .field("arithmetic", arithmetic)
            .finish();
        Self { series, windows, augmented, training, evaluation: training }
            .trained(training, config)
    }

    /// The same with another training, and what is measured after it.
    pub(crate) fn trained(self, training: Key, config: &PipelineConfig) -> Self {
        let evaluation = Key::builder("evaluation", EVALUATION)
            .upstream("training", training)
            .field("evaluate", json(&config.evaluate))
            .finish();
        Self { training, evaluation, ..self }
    }

    /// The stages of a kind that trains on windows as they are, with the keys of their results.
    pub(crate) fn stages(&self) -> Vec<(&'static str, Option<Key>)> {
        vec![
            ("ingest", Some(self.series)),
            ("windows", Some(self.windows)),
            ("train", Some(self.training)),
            ("evaluate", Some(self.evaluation)),
            ("report", None),
        ]
    }
}

/// The key of a training with the order of its batches, which is left out where every batch is of all samples, so that
/// such runs keep their keys. Where a batch of one window may come first, statistics of averages were once begun with
/// it.
pub(crate) fn ordered(training: KeyBuilder, config: &PipelineConfig) -> KeyBuilder {
    let loader = &config.loader;
    let training = match (loader.shuffle, loader.buckets, loader.tokens) {
        (Shuffle::Full, 0, 0) => training,
        order => training.field("order", json(&order)),
    };
    let average = config.train.average.map(AverageConfig::in_full);
    let renews = average.is_some_and(|average| average.statistics_batches.is_some());
    match renews && loader.buckets > 0 {
        true => training.field("statistics", "begun with several"),
        false => training,
    }
}

/// What of `[train]` decides what is learnt. How often, and by which thread, a checkpoint is written that nothing but a
/// resume reads does not: such settings are as if nobody had made them. They do where training goes back to a checkpoint,
/// and where a budget removes some.
pub(crate) fn learnt_by(train: &TrainConfig) -> TrainConfig {
    let CheckpointConfig { keep, size_budget, .. } = train.checkpoint;
    let read = matches!(train.non_finite, NonFinite::Rollback) || size_budget.is_some();
    let checkpoint = match read {
        true => train.checkpoint.clone(),
        false => CheckpointConfig { keep, ..CheckpointConfig::default() },
    };
    // Averages had no statistics of their own once.
    let average = train.average.map(AverageConfig::in_full);
    TrainConfig { checkpoint, average, ..train.clone() }
}

/// The key of a training that returns averaged weights of which nothing is held out to choose an epoch: it was once chosen by
/// the loss of the weights that are trained.
pub(crate) fn newest(training: KeyBuilder, train: &TrainConfig, validates: bool) -> KeyBuilder {
    let is_newest = !validates && train.average.is_some_and(|average| average.evaluate);
    if is_newest { training.field("average", "newest") } else { training }
}

/// Whether a share of the data is held out to validate on.
pub(crate) fn validates(config: &PipelineConfig) -> bool {
    if let Some(text) = &config.text {
        return text.split.validation > 0.0;
    }
    match &config.split {
        Some(
            SplitRule::Time { validation, .. }
            | SplitRule::Series { validation, .. }
            | SplitRule::Given { validation, .. },
        ) => *validation > 0.0,
        None => true,
    }
}

/// What of `[window]` decides anything: whole series have no strides between windows.
fn cut(window: WindowConfig) -> WindowConfig {
    match window.whole {
        true => WindowConfig { stride: WindowConfig::default().stride, ..window },
        false => window,
    }
}

/// A component's settings as text in which every value reads back as it was.
pub(crate) fn json(settings: &impl Serialize) -> String {
    // Plain structs of numbers, texts and lists: there is no map with other keys to fail on.
    serde_json::to_string(settings).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use firebox_train::Keep;

    use super::*;

    fn keys(edit: impl FnOnce(&mut PipelineConfig)) -> Keys {
        let mut config = PipelineConfig::default();
        edit(&mut config);
        Keys::new(&config, Key::builder("series", 1).finish(), "cpu")
    }

    #[test]
    fn a_change_reaches_what_is_below_it_and_nothing_above() {
        let base = keys(|_| ());
        let model = keys(|c| c.train.epochs += 1);
        assert_eq!((model.windows, model.augmented), (base.windows, base.augmented));
        assert_ne!(model.training, base.training);
        let augmentation = keys(|c| c.augment.jitter.sigma *= 2.0);
        assert_eq!(augmentation.windows, base.windows);
        assert!(augmentation.augmented != base.augmented && augmentation.training != base.training);
        let whole = |stride| keys(|c| (c.window.whole, c.window.stride) = (true, stride));
        assert_eq!(whole(3), whole(1), "a whole series has no stride");
        assert_ne!(keys(|c| c.window.stride = 3).windows, base.windows);
        let evaluation = keys(|c| c.evaluate.seeds += 1);
        assert_eq!(evaluation.training, base.training);
        assert_ne!(evaluation.evaluation, base.evaluation);
        let threads = keys(|c| c.loader.workers += 3);
        assert_eq!(threads, base);
        let place = keys(|c| c.loader.resident = firebox_loader::Resident::Memory);
        assert_eq!(place, base, "batches are the same wherever they come from");
        let order = keys(|c| c.loader.buckets = 8);
        assert_eq!(order.augmented, base.augmented);
        assert_ne!(order.training, base.training);
        let online = keys(|c| c.augment.mode = firebox_core::AugmentMode::Online);
        assert_ne!(online.training, base.training);
        let drawn = keys(|c| {
            c.augment.mode = firebox_core::AugmentMode::Online;
            c.loader.resident = firebox_loader::Resident::Device;
        });
        assert_eq!(drawn.augmented, online.augmented);
        assert_ne!(drawn.training, online.training, "a device rounds warped times in its own way");
        assert_eq!(keys(|c| c.monitor.period = 0.0), base);
        let saves = |edit: fn(&mut CheckpointConfig), more: fn(&mut TrainConfig)| {
            let saved = keys(|c| {
                edit(&mut c.train.checkpoint);
                more(&mut c.train);
            });
            saved == keys(|c| more(&mut c.train))
        };
        let rollback: fn(&mut TrainConfig) = |train| train.non_finite = NonFinite::Rollback;
        let budget: fn(&mut TrainConfig) = |train| train.checkpoint.size_budget = Some(1 << 30);
        let edits: [fn(&mut CheckpointConfig); 3] = [
            |own| own.resume_every = Some(7),
            |own| own.interval = Some(0),
            |own| own.asynchronous = false,
        ];
        for edit in edits {
            assert!(saves(edit, |_| ()), "a checkpoint that only a resume reads");
            assert!(!saves(edit, rollback) && !saves(edit, budget));
        }
        assert!(!saves(|own| own.keep = Keep::EveryEpoch, |_| ()), "which are kept is a result");
        assert_eq!(learnt_by(&TrainConfig::default()), TrainConfig::default());
    }

    #[test]
    fn statistics_are_other_ones_where_a_batch_of_one_window_may_come_first() {
        // What the key was of the same settings.
        let is_anew = |(buckets, equal)| {
            let mut config = PipelineConfig::default();
            (config.loader.buckets, config.loader.tokens) = (buckets, 4096);
            config.train.average = Some(AverageConfig { equal, ..AverageConfig::default() });
            let order = (config.loader.shuffle, config.loader.buckets, config.loader.tokens);
            let begin = || Key::builder("training", 1);
            let before = begin().field("order", json(&order)).finish();
            ordered(begin(), &config).finish() != before
        };
        let found = [(8, true), (8, false), (0, true)].map(is_anew);
        assert_eq!(found, [true, false, false]);
    }
}
