//! The `[train]` table: what a person decides about training. What follows from it is computed in
//! the loop.

use firebox_kernels::Clip;
use serde::{Deserialize, Serialize};

use crate::average::AverageConfig;
use crate::groups::{self, LayerDecay, ParameterGroup};
use crate::scaler::LossScale;
use crate::schedule::Schedule;

mod optimizer;

pub use optimizer::{AdamWConfig, Decay, Optimizer, SgdConfig};

/// Settings of a training run. Every default is that of reference system R1 unless it says
/// otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Passes over the training windows; at least 1.
    pub epochs: u64,
    /// Optimizer steps after which training ends even within an epoch, those included whose update was not
    /// applied, such as overflows: as a loop around PyTorch's `GradScaler` counts them, and so that a storm
    /// without an end ends the run. None: no such limit.
    pub max_steps: Option<u64>,
    /// The optimizer, with the peak learning rate.
    pub optimizer: Optimizer,
    /// How the learning rate changes over the steps of the run. It follows the updates that were applied: a
    /// skipped step leaves it where it is, and a run that skipped `n` of its steps ends `n` steps short of
    /// the schedule's end.
    pub schedule: Schedule,
    /// Largest global L2 norm of the gradient; larger ones are scaled down to it. `false`: never.
    #[serde(with = "crate::off")]
    pub clip: Option<f64>,
    /// Largest magnitude of each number of the gradient, above 0; larger ones are cut off. In place
    /// of `clip`, not beside it. `false`: any. Both act on gradients without their loss scale.
    #[serde(with = "crate::off")]
    pub clip_value: Option<f64>,
    /// Parameters with settings of their own.
    pub groups: Vec<ParameterGroup>,
    /// Layers nearer to the input learn more slowly. `false`: all learn alike.
    #[serde(with = "crate::off")]
    pub layer_decay: Option<LayerDecay>,
    /// A moving average of the weights. `false`: none.
    #[serde(with = "crate::off")]
    pub average: Option<AverageConfig>,
    /// Factor on the loss by which small gradients survive f16.
    pub loss_scale: LossScale,
    /// Whether f16 may do without a loss scale, so that gradients below 6e-8 vanish.
    pub allow_unscaled_f16: bool,
    /// Batches whose gradients are averaged into one optimizer step, weighted by the elements that
    /// each batch's loss is a mean of; at least 1. The last step of an epoch takes what is left.
    pub accumulate: u64,
    /// Ends training when the validation loss has stopped falling. `false`: never.
    #[serde(with = "crate::off")]
    pub early_stopping: Option<EarlyStopping>,
    /// Epochs between two validations, at least 1. The last epoch is always validated.
    pub validate_every: u64,
    /// What happens when a loss or gradient is not finite.
    pub non_finite: NonFinite,
    /// Consecutive non-finite steps that end the run as failed although `non_finite` would go on;
    /// at least 1. Default 10 (Firebox's own).
    pub non_finite_limit: u64,
    /// Which checkpoints are written and kept.
    pub checkpoint: CheckpointConfig,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            epochs: 50,
            max_steps: None,
            optimizer: Optimizer::default(),
            schedule: Schedule::default(),
            clip: Some(1.0),
            clip_value: None,
            groups: vec![],
            layer_decay: None,
            average: None,
            loss_scale: LossScale::default(),
            allow_unscaled_f16: false,
            accumulate: 1,
            early_stopping: Some(EarlyStopping::default()),
            validate_every: 1,
            non_finite: NonFinite::default(),
            non_finite_limit: 10,
            checkpoint: CheckpointConfig::default(),
        }
    }
}

/// Ends training when the watched loss has not fallen for a while. The watched loss is the
/// validation loss, or the epoch's mean training loss where there is no validation data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EarlyStopping {
    /// Validations without an improvement after which training ends; at least 1. R1: 5 for
    /// pre-training, 20 for fine-tuning.
    pub patience: u64,
    /// An improvement is a loss below the best one minus this; absolute, in units of the loss, 0
    /// or more.
    pub min_delta: f64,
}

impl Default for EarlyStopping {
    fn default() -> Self {
        Self { patience: 5, min_delta: 0.001 }
    }
}

/// What happens when the loss or the gradient of a step is not finite. In each case the step is
/// counted and its update is not applied. Running statistics of batch normalisations have moved by
/// then, as in PyTorch; only a rollback takes that back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NonFinite {
    /// The run ends as failed.
    #[default]
    Stop,
    /// Training goes on with the next batches.
    Skip,
    /// Weights and optimizer go back to the last checkpoint (or to the start) that no interruption
    /// wrote and from which a later step was finite, and training goes on with the next batches.
    Rollback,
}

/// Which checkpoints are written and kept: `[train.checkpoint]`.
///
/// While a run goes on, its newest checkpoint is kept whatever the rule says, because a resume
/// starts from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// The rule.
    pub keep: Keep,
    /// Besides the rule: optimizer steps between two saves that a killed run can go on from. Only
    /// the newest of these is kept. None: only what the rule asks for.
    pub resume_every: Option<u64>,
    /// Bytes that all checkpoints of the run together may take between two saves (one more is
    /// there while it is being written). The oldest go first, the best one late, the newest and
    /// what `non_finite = "rollback"` needs never, nor the best one where [`keep`](Self::keep) is
    /// [`Keep::BestOnly`] or [`Keep::Best`]; a budget without room for these is refused. None: no limit.
    pub size_budget: Option<u64>,
    /// Whether files are written by a background thread, from a copy of the state, while training
    /// goes on.
    pub asynchronous: bool,
    /// With `keep = "best-only"`: least seconds between two saves of epochs. An epoch that ends sooner
    /// is held in memory if it is the best so far, and written with the next save, or at the end; so a
    /// killed run does that much again, or an epoch if that is longer. 0: every epoch is saved, as it
    /// is with `non_finite = "rollback"`. None: [`CHECKPOINT_INTERVAL`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<u64>,
}

/// Seconds between two saves of epochs, where nothing else is asked for. A choice: little to do again,
/// and next to no time for saves, of which one takes some hundredths of a second.
pub const CHECKPOINT_INTERVAL: u64 = 10;

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self {
            keep: Keep::BestOnly,
            resume_every: None,
            size_budget: None,
            asynchronous: true,
            interval: None,
        }
    }
}

/// The rule that decides which checkpoints remain. "Best" is by the validation loss (the mean
/// training loss of the epoch where there is no validation data); equal ones go by age. Without validation data no
/// epoch is the best where an average of the weights is what the run returns: then the newest remains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Keep {
    /// Saved after epochs, not more often than [`CheckpointConfig::interval`] says; the best one
    /// remains.
    #[serde(alias = "best_only")]
    BestOnly,
    /// Saved after every epoch; the best `n` remain.
    Best(u64),
    /// Saved after every epoch; the newest `n` remain.
    Last(u64),
    /// Saved after every epoch; all remain.
    #[serde(alias = "every_epoch")]
    EveryEpoch,
    /// Saved every `n` optimizer steps and at the end; all remain.
    #[serde(alias = "every_steps")]
    EverySteps(u64),
    /// Saved at the end only.
    #[serde(alias = "final_only")]
    FinalOnly,
    /// Nothing is saved, whatever is asked for, and the model is that of the last step: for steps that are taken for
    /// their time. No file can say it.
    #[doc(hidden)]
    #[serde(skip)]
    Nothing,
}

impl Keep {
    /// Whether the rule saves after every epoch.
    pub fn saves_epochs(self) -> bool {
        !matches!(self, Self::EverySteps(_) | Self::FinalOnly | Self::Nothing)
    }
}

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`train.{key}` is {found}; it must be {allowed}")]
pub struct ConfigError {
    /// The key within the `[train]` table.
    pub key: &'static str,
    /// Its value.
    pub found: String,
    /// The values that it may have.
    pub allowed: &'static str,
}

impl TrainConfig {
    /// Checks every setting by itself.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let keep = match self.checkpoint.keep {
            Keep::Best(n) | Keep::Last(n) | Keep::EverySteps(n) => n,
            Keep::BestOnly | Keep::EveryEpoch | Keep::FinalOnly | Keep::Nothing => 1,
        };
        let patience = self.early_stopping.map_or(1, |early| early.patience);
        for (key, count) in [
            ("epochs", self.epochs),
            ("max_steps", self.max_steps.unwrap_or(1)),
            ("accumulate", self.accumulate),
            ("validate_every", self.validate_every),
            ("non_finite_limit", self.non_finite_limit),
            ("early_stopping.patience", patience),
            ("checkpoint.keep", keep),
            ("checkpoint.resume_every", self.checkpoint.resume_every.unwrap_or(1)),
            ("checkpoint.size_budget", self.checkpoint.size_budget.unwrap_or(1)),
        ] {
            check(key, count, |count| count >= 1, "at least 1")?;
        }
        for (key, value) in
            [("clip", self.clip.unwrap_or(1.0)), ("clip_value", self.clip_value.unwrap_or(1.0))]
        {
            let allowed = "above 0 and a normal number of f32 (1.2e-38 to 3.4e38), or false";
            check_in_f32(key, value, 0.0, allowed)?;
        }
        let min_delta = self.early_stopping.map_or(0.0, |early| early.min_delta);
        let (key, allowed) = ("early_stopping.min_delta", "0 or more and finite");
        check(key, min_delta, |v| v >= 0.0 && v.is_finite(), allowed)?;
        if let (Some(norm), Some(value)) = (self.clip, self.clip_value) {
            let found = format!("{value} beside a `train.clip` of {norm}");
            let allowed = "false, or `train.clip` be false";
            return Err(ConfigError { key: "clip_value", found, allowed });
        }
        let share = self.average.map_or(0.5, |average| average.decay);
        check("average.decay", share, |v| (0.0..1.0).contains(&v), "at least 0 and below 1")?;
        if let Some(own) = self.average
            && own.equal
            && own.decay != AverageConfig::default().decay
        {
            let found = format!("{} beside `equal = true`, which takes its place", own.decay);
            let allowed = "left out there, or `equal` be left out";
            return Err(ConfigError { key: "average.decay", found, allowed });
        }
        if let Some(batches) = self.average.and_then(|own| own.statistics_batches)
            && batches > 0
            && self.average.is_some_and(|own| !own.evaluate)
        {
            let found = format!("{batches} beside `evaluate = false`: nothing would use them");
            let allowed = "left out there, or `evaluate` be true";
            return Err(ConfigError { key: "average.statistics_batches", found, allowed });
        }
        let every = self.average.map_or(1, |average| average.every);
        check("average.every", every, |v| v >= 1, "at least 1")?;
        let begins = self.average.map_or(0, |average| average.from_epoch);
        let allowed = "below `train.epochs`: no update would be averaged";
        check("average.from_epoch", begins, |epoch| epoch < self.epochs, allowed)?;
        self.optimizer.validate()?;
        groups::validate(self)?;
        self.loss_scale.validate()?;
        self.schedule.validate()
    }

    /// Optimizer steps of the whole run, if it is not ended early.
    pub fn total_steps(&self, batches_per_epoch: u64) -> u64 {
        let steps = self.epochs.saturating_mul(self.steps_per_epoch(batches_per_epoch));
        self.max_steps.map_or(steps, |limit| limit.min(steps))
    }

    /// Optimizer steps of one epoch: the tail of an accumulation counts as a step.
    pub fn steps_per_epoch(&self, batches_per_epoch: u64) -> u64 {
        batches_per_epoch.div_ceil(self.accumulate.max(1))
    }

    /// The peak learning rate.
    pub fn learning_rate(&self) -> f64 {
        self.optimizer.learning_rate()
    }

    /// What is done to gradients that are too large.
    pub fn clipping(&self) -> Clip {
        match (self.clip, self.clip_value) {
            (Some(norm), _) => Clip::Norm(norm),
            (None, Some(value)) => Clip::Value(value),
            (None, None) => Clip::Never,
        }
    }
}

pub(crate) fn check<T: Copy + std::fmt::Display>(
    key: &'static str,
    value: T,
    good: impl Fn(T) -> bool,
    allowed: &'static str,
) -> Result<(), ConfigError> {
    if good(value) { Ok(()) } else { Err(ConfigError { key, found: value.to_string(), allowed }) }
}

/// Checks a number that is used in f32, where a smaller one than the normal numbers would be 0 or
/// lose its digits and a larger one infinite: positive, and at least `least`.
pub(crate) fn check_in_f32(
    key: &'static str,
    value: f64,
    least: f64,
    allowed: &'static str,
) -> Result<(), ConfigError> {
    if value > 0.0 && value >= least && (value as f32).is_normal() {
        return Ok(());
    }
    let readable = value == 0.0 || !value.is_finite() || (1e-6..1e15).contains(&value.abs());
    let found = if readable { value.to_string() } else { format!("{value:e}") };
    Err(ConfigError { key, found, allowed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Cosine, Warmup};

    #[test]
    fn the_table_is_strict_and_choices_are_tagged_outside() {
        let read = |text: &str| serde_json::from_str::<TrainConfig>(text);
        let config = read(
            r#"{"epochs": 3, "schedule": {"cosine": {"warmup": {"steps": 10}}},
                "checkpoint": {"keep": {"best": 2}}, "non_finite": "rollback"}"#,
        )
        .unwrap();
        let cosine = Cosine { warmup: Warmup::Steps(10), ..Cosine::default() };
        assert_eq!(config.schedule, Schedule::Cosine(cosine));
        assert_eq!(config.checkpoint.keep, Keep::Best(2));
        assert_eq!(config.optimizer, Optimizer::default());
        for bad in [
            r#"{"epoch": 3}"#,
            r#"{"checkpoint": {"keep": "best"}}"#,
            r#"{"optimizer": {"adamw": {"lr": 1}}}"#,
            r#"{"schedule": {"cosine": {"minimun": 0}}}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let off = TrainConfig { clip: None, early_stopping: None, ..TrainConfig::default() };
        for config in [TrainConfig::default(), off.clone()] {
            let text = serde_json::to_string(&config).unwrap();
            assert_eq!(read(&text).unwrap(), config);
        }
        assert_eq!(read(r#"{"clip": false, "early_stopping": false}"#).unwrap(), off);
        assert_eq!(read(r#"{"clip": 2}"#).unwrap().clip, Some(2.0));
        assert!(read(r#"{"clip": true}"#).is_err());
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let check = |text: &str, expected: &str| {
            let config: TrainConfig = serde_json::from_str(text).unwrap();
            let message = config.validate().unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        };
        check(r#"{"epochs": 0}"#, "`train.epochs` is 0; it must be at least 1");
        check(r#"{"clip": -1}"#, "`train.clip` is -1");
        check(r#"{"clip": 1e-60}"#, "a normal number of f32 (1.2e-38 to 3.4e38), or false");
        check(r#"{"clip": false, "clip_value": 1e-60}"#, "`train.clip_value` is 1e-60");
        check(r#"{"optimizer": {"adamw": {"betas": [0.9, 1.0]}}}"#, "betas` is 1");
        check(
            r#"{"optimizer": {"adamw": {"eps": 1e-46}}}"#,
            "adamw.eps` is 1e-46; it must be above 0 and a normal number of f32",
        );
        check(r#"{"checkpoint": {"keep": {"last": 0}}}"#, "checkpoint.keep");
        check(r#"{"early_stopping": {"min_delta": -0.1}}"#, "min_delta` is -0.1");
        check(
            r#"{"clip_value": 2}"#,
            "2 beside a `train.clip` of 1; it must be false, or `train.clip`",
        );
        check(r#"{"average": {"decay": 1}}"#, "average.decay` is 1");
        check(r#"{"average": {"every": 0}}"#, "average.every` is 0");
        check(
            r#"{"average": {"equal": true, "decay": 0.5}}"#,
            "average.decay` is 0.5 beside `equal = true`",
        );
        check(
            r#"{"average": {"evaluate": false, "statistics_batches": 7}}"#,
            "average.statistics_batches` is 7 beside `evaluate = false`",
        );
        check(
            r#"{"groups": [{"parameters": ["a"], "frozen": true, "weight_decay": 0.1}]}"#,
            "groups.weight_decay` is 0.1 in a group that is frozen",
        );
        check(
            r#"{"layer_decay": {"factor": 1e-300, "layers": ["a", "b"]}}"#,
            "layer_decay.factor` is 1e-300; it must be above 0 and at most 1, and no rate",
        );
        check(
            r#"{"epochs": 5, "average": {"from_epoch": 5}}"#,
            "average.from_epoch` is 5; it must be below `train.epochs`",
        );
        check(
            r#"{"groups": [{"parameters": ["a"], "frozen": true, "learning_rate": 0.1}]}"#,
            "groups.learning_rate` is 0.1 in a group that is frozen",
        );
        check(r#"{"optimizer": {"sgd": {"momentum": 1}}}"#, "sgd.momentum` is 1");
        check(r#"{"optimizer": {"sgd": {"momentum": 0, "nesterov": true}}}"#, "nesterov` is true");
        check(r#"{"schedule": {"cosine": {"minimum": -1}}}"#, "schedule.cosine.minimum");
        assert_eq!(TrainConfig::default().validate(), Ok(()));
        let adamw = AdamWConfig { learning_rate: f64::INFINITY, ..AdamWConfig::default() };
        let config = TrainConfig { optimizer: Optimizer::AdamW(adamw), ..TrainConfig::default() };
        let message = config.validate().unwrap_err().to_string();
        assert!(message.contains("learning_rate` is inf; it must be above 0"), "{message}");
    }

    #[test]
    fn the_tail_of_an_accumulation_is_a_step() {
        let config = TrainConfig { epochs: 3, accumulate: 4, ..TrainConfig::default() };
        assert_eq!((config.steps_per_epoch(9), config.total_steps(9)), (3, 9));
        let config = TrainConfig { max_steps: Some(5), ..config };
        assert_eq!(config.total_steps(9), 5);
    }
}
