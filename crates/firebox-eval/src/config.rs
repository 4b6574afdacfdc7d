//! The `[evaluate]` table of a pipeline file.

use serde::{Deserialize, Serialize};

use crate::{Distance, EvalError, Metric};

/// How a pre-trained encoder is evaluated.
///
/// # Example
///
/// ```
/// let config: firebox_eval::EvalConfig =
///     serde_json::from_str(r#"{ "metric": "balanced-accuracy", "knn": { "neighbours": 7 } }"#)?;
/// assert_eq!((config.knn.neighbours, config.seeds), (7, 5));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvalConfig {
    /// Seed of the random encoders, of the masks, and of the bootstrap.
    pub seed: u64,
    /// Randomly initialised encoders that the pre-trained one is compared with; at least 1.
    pub seeds: u32,
    /// The metric that the verdict is about. `accuracy`, `balanced-accuracy`, `macro-f1`, ….
    pub metric: Metric,
    /// Share of the resamples that an interval holds, between 0.5 and 1.
    pub confidence: f64,
    /// Bootstrap resamples; at least 100.
    pub resamples: u32,
    /// Consecutive test windows that are drawn together in a resample. By default the number of
    /// windows that overlap in time; 1 treats every window as independent.
    pub block: Option<usize>,
    /// Labelled training windows, and as many validation windows, that are encoded at most; 0 is
    /// all. One is drawn of each of so many equal stretches of the part, the same whatever the seed.
    pub train_limit: usize,
    /// Test windows that are encoded at most; 0 is all. They are chosen as those of training.
    pub test_limit: usize,
    /// Windows encoded at once; fewer where the values of so many take more than 32 MiB.
    pub batch_size: usize,
    /// The linear probe.
    pub probe: ProbeConfig,
    /// The nearest neighbours.
    pub knn: NeighboursConfig,
}

impl Default for EvalConfig {
    fn default() -> Self {
        Self {
            seed: 1337,
            seeds: 5,
            metric: Metric::Accuracy,
            confidence: 0.95,
            resamples: 2000,
            block: None,
            train_limit: 2000,
            test_limit: 5000,
            batch_size: 256,
            probe: ProbeConfig::default(),
            knn: NeighboursConfig::default(),
        }
    }
}

/// The linear probe: multinomial logistic regression on standardised features.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProbeConfig {
    /// Strengths of the L2 penalty to choose from: `l2 / 2 · ‖W‖²` beside the summed log-loss,
    /// which is scikit-learn's `1 / C`, and `2 / C` where there are two classes. The choice is made without the test windows.
    pub l2: Vec<f64>,
    /// Validation windows from which on the penalty is chosen on them; with fewer, or none, it is chosen by
    /// cross-validation over training and validation windows together.
    pub validation_minimum: usize,
    /// Folds of that cross-validation; at least 2.
    pub folds: usize,
    /// Most iterations of the optimizer for one fit.
    pub iterations: usize,
}

impl Default for ProbeConfig {
    fn default() -> Self {
        Self {
            l2: vec![1000.0, 100.0, 10.0, 1.0, 0.1, 0.01],
            validation_minimum: 100,
            folds: 5,
            iterations: 200,
        }
    }
}

/// The nearest-neighbour classifier.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NeighboursConfig {
    /// Neighbours that vote; at least 1.
    pub neighbours: usize,
    /// How far two rows of features are from each other: `euclidean` or `cosine`.
    pub distance: Distance,
}

impl Default for NeighboursConfig {
    fn default() -> Self {
        Self { neighbours: 5, distance: Distance::Euclidean }
    }
}

impl EvalConfig {
    /// Checks every setting's range.
    ///
    /// # Errors
    ///
    /// Names the first key outside its range, and the range.
    pub fn validate(&self) -> Result<(), EvalError> {
        let error = |key, found: String, allowed| Err(EvalError::Setting { key, found, allowed });
        if self.seeds == 0 {
            return error("seeds", "0".to_owned(), "at least one random encoder is compared with");
        }
        if !(0.5..1.0).contains(&self.confidence) {
            let allowed = "a confidence lies from 0.5 to below 1, such as 0.95";
            return error("confidence", self.confidence.to_string(), allowed);
        }
        if self.resamples < 100 {
            let allowed = "an interval needs at least 100 resamples; 2000 is usual";
            return error("resamples", self.resamples.to_string(), allowed);
        }
        if self.block == Some(0) {
            return error("block", "0".to_owned(), "a block has at least 1 window");
        }
        if self.batch_size == 0 {
            return error("batch_size", "0".to_owned(), "a batch has at least 1 window");
        }
        if self.probe.l2.is_empty() || self.probe.l2.iter().any(|v| !(v.is_finite() && *v >= 0.0)) {
            let allowed = "give at least one finite strength that is not negative";
            return error("probe.l2", format!("{:?}", self.probe.l2), allowed);
        }
        if self.probe.folds < 2 {
            return error("probe.folds", self.probe.folds.to_string(), "it takes at least 2 folds");
        }
        if self.probe.iterations == 0 {
            return error("probe.iterations", "0".to_owned(), "it takes at least 1 iteration");
        }
        if self.knn.neighbours == 0 {
            return error("knn.neighbours", "0".to_owned(), "at least 1 neighbour votes");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_table_is_the_default_and_a_typo_is_refused() {
        let parse = |text: &str| toml::from_str::<EvalConfig>(text);
        assert_eq!(parse("").unwrap(), EvalConfig::default());
        let error = parse("[knn]\nneighbors = 3").unwrap_err().to_string();
        assert!(error.contains("neighbors") && error.contains("neighbours"), "{error}");
    }

    #[test]
    fn every_range_is_checked_by_name() {
        let check = |text: &str, key: &str| {
            let error = toml::from_str::<EvalConfig>(text).unwrap().validate().unwrap_err();
            assert!(error.to_string().contains(&format!("`evaluate.{key}` is")), "{error}");
        };
        check("seeds = 0", "seeds");
        check("confidence = 1.0", "confidence");
        check("confidence = nan", "confidence");
        check("resamples = 10", "resamples");
        check("block = 0", "block");
        check("batch_size = 0", "batch_size");
        check("probe.l2 = []", "probe.l2");
        check("probe.l2 = [1.0, -1.0]", "probe.l2");
        check("probe.folds = 1", "probe.folds");
        check("probe.iterations = 0", "probe.iterations");
        check("knn.neighbours = 0", "knn.neighbours");
        EvalConfig::default().validate().unwrap();
    }
}
