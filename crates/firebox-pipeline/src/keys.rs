//! The content keys of a pipeline's results, from settings alone: nothing is read but the files
//! whose content the first key is.

use firebox_core::Key;
use serde::Serialize;

use crate::PipelineConfig;

/// Keys of every result, each containing those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) series: Key,
    pub(crate) windows: Key,
    pub(crate) augmented: Key,
    pub(crate) training: Key,
    pub(crate) evaluation: Key,
}

impl Keys {
    /// The keys below the series of this key. `arithmetic` (backend and kernels) is part of them,
    /// because results differ in their last bits between backends; threads and prefetching are not,
    /// because they change nothing.
    pub(crate) fn new(config: &PipelineConfig, series: Key, arithmetic: &str) -> Self {
        let seed = config.run.seed;
        let windows = Key::builder("windows", 1)
            .upstream("series", series)
            .field("window", json(&config.window))
            .field("labels", json(&config.labels))
            .field("split", json(&config.split))
            .finish();
        let augmented = firebox_cache::augmented_key(windows, &config.augment, seed);
        let training = Key::builder("training", 1)
            .upstream("augmented", augmented)
            .field("model", json(&config.model))
            .field("train", json(&config.train))
            .field("batch_size", config.loader.batch_size.to_le_bytes())
            .field("precision", config.run.precision.to_string())
            .field("seed", seed.to_le_bytes())
            .field("arithmetic", arithmetic)
            .finish();
        let evaluation = Key::builder("evaluation", 1)
            .upstream("training", training)
            .field("evaluate", json(&config.evaluate))
            .finish();
        Self { series, windows, augmented, training, evaluation }
    }
}

/// A component's settings as text in which every value reads back as it was.
pub(crate) fn json(settings: &impl Serialize) -> String {
    // Plain structs of numbers, texts and lists: there is no map with other keys to fail on.
    serde_json::to_string(settings).unwrap_or_default()
}

#[cfg(test)]
mod tests {
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
        let evaluation = keys(|c| c.evaluate.seeds += 1);
        assert_eq!(evaluation.training, base.training);
        assert_ne!(evaluation.evaluation, base.evaluation);
        let threads = keys(|c| c.loader.workers += 3);
        assert_eq!(threads, base);
        assert_eq!(keys(|c| c.monitor.period = 0.0), base);
    }
}
