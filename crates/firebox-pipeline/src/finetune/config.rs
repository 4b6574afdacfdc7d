//! The `[finetune]` table of a pipeline file.

use std::path::PathBuf;

use firebox_eval::Arm;
use firebox_loader::Masking;
use firebox_models::ClassifierConfig;
use firebox_monitor::SettingKeys;
use firebox_train::{
    AdamWConfig, CheckpointConfig, ClassLoss, ClassWeights, ConfigError, Cosine, EarlyStopping,
    Keep, Mix, Optimizer, ParameterGroup, Schedule, TrainConfig,
};
use serde::{Deserialize, Serialize};

use crate::config::check_masking;
use crate::error::PipelineError;

/// Share of the peak learning rate that is left at the end of R1's cosine: 1e-5 of 5e-4.
const LOWEST: f64 = 0.02;

/// How an encoder is fine-tuned to tell classes apart, and what that is compared with. Every default is
/// reference system R1's unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FinetuneConfig {
    /// The pre-trained weights: a run's folder or name, a checkpoint's folder, or a `.safetensors` file
    /// with PyTorch's names. Left out, the encoder is pre-trained first, by `[model]`, `[augment]` and
    /// `[train]`, on the same training part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoder: Option<PathBuf>,
    /// Share of the encoder's numbers that the weights must have, above 0 and at most 1; less is
    /// refused. Firebox's own default.
    pub least_match: f64,
    /// Shares of the labelled training windows to learn from, above 0 and at most 1; the labelled
    /// validation windows are cut to the same share. Where the split is by whole series, whole series
    /// (or groups) are drawn, and a share is rounded to them; shares that come to the same windows are
    /// learnt from once.
    pub shares: Vec<f64>,
    /// What is trained at each share.
    pub arms: Vec<Arm>,
    /// Seeds of each arm at each share, at least 1: of the drawn windows, the head, the random encoders,
    /// mixing and order. Firebox's own default.
    pub seeds: u32,
    /// Versions of each drawn window beside the original, drawn anew in each epoch by the amplitudes of
    /// `[augment]`; all arms see the same ones. 0: none.
    pub versions: u32,
    /// Passes over the drawn windows and their versions, at least 1.
    pub epochs: u64,
    /// Epochs that `fine-tuned` keeps the encoder frozen, below `epochs`.
    pub frozen_epochs: u64,
    /// Peak learning rate of AdamW; it falls along half a cosine to 1e-5, or to 0.02 times the peak where that is no
    /// higher than 1e-5.
    pub learning_rate: f64,
    /// What the learning rate of the encoder is multiplied by in `fine-tuned`, above 0.
    pub encoder_rate: f64,
    /// Weight decay of AdamW, 0 or more.
    pub weight_decay: f64,
    /// Windows of a batch, at least 1. Firebox's own default.
    pub batch_size: usize,
    /// Validations without a better loss after which a training ends; at least 1.
    pub patience: u64,
    /// Attention and head.
    pub head: ClassifierConfig,
    /// The loss.
    pub loss: ClassLoss,
    /// What each class counts.
    pub class_weights: ClassWeights,
    /// How training windows are mixed.
    pub mix: Mix,
    /// Stretches of steps, and channels, that are hidden of training windows, drawn anew in each epoch
    /// (SpecAugment's masks); none by default.
    #[serde(skip_serializing_if = "Masking::is_off")]
    pub masking: Masking,
}

impl Default for FinetuneConfig {
    fn default() -> Self {
        Self {
            encoder: None,
            least_match: 0.9,
            shares: vec![0.05, 0.1, 0.5, 1.0],
            arms: Arm::ALL.to_vec(),
            seeds: 3,
            versions: 1,
            epochs: 60,
            frozen_epochs: 10,
            learning_rate: 5e-4,
            encoder_rate: 0.3,
            weight_decay: 1e-4,
            batch_size: 32,
            patience: 20,
            head: ClassifierConfig::default(),
            loss: ClassLoss::default(),
            class_weights: ClassWeights::default(),
            mix: Mix::Mixup { alpha: 0.4 },
            masking: Masking::default(),
        }
    }
}

impl FinetuneConfig {
    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), PipelineError> {
        let refuse = |key: &str, found: String, allowed: &str| {
            Err(PipelineError::Setting(format!("`finetune.{key}` is {found}; {allowed}")))
        };
        let share = |share: f64| share > 0.0 && share <= 1.0;
        if !share(self.least_match) {
            let allowed = "it must be above 0 and at most 1";
            return refuse("least_match", self.least_match.to_string(), allowed);
        }
        let mut shares = self.shares.clone();
        shares.sort_by(f64::total_cmp);
        shares.dedup();
        if shares.is_empty()
            || shares.len() < self.shares.len()
            || !shares.iter().all(|s| share(*s))
        {
            let allowed = "name at least one share above 0 and at most 1, each once";
            return refuse("shares", format!("{:?}", self.shares), allowed);
        }
        let mut arms = self.arms.clone();
        arms.sort();
        arms.dedup();
        if arms.is_empty() || arms.len() < self.arms.len() {
            let allowed = "name at least one arm, each once: fine-tuned, pre-trained-frozen, from-scratch, random-frozen";
            let found = serde_json::to_string(&self.arms).unwrap_or_default();
            return refuse("arms", found, allowed);
        }
        let counts = [
            ("seeds", u64::from(self.seeds)),
            ("epochs", self.epochs),
            ("batch_size", self.batch_size as u64),
            ("patience", self.patience),
        ];
        if let Some((key, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return refuse(key, "0".to_owned(), "it must be at least 1");
        }
        if self.arms.contains(&Arm::FineTuned) && self.frozen_epochs >= self.epochs {
            let allowed = "it must be below `finetune.epochs`; for an encoder that is never trained there is the arm pre-trained-frozen";
            return refuse("frozen_epochs", self.frozen_epochs.to_string(), allowed);
        }
        if !(self.learning_rate as f32 > 0.0 && (self.learning_rate as f32).is_finite()) {
            let allowed = "it must be above 0, and finite in f32";
            return refuse("learning_rate", self.learning_rate.to_string(), allowed);
        }
        let of_encoder = (self.learning_rate * self.encoder_rate) as f32;
        if !(self.encoder_rate > 0.0 && of_encoder.is_normal()) {
            let allowed = "it must be above 0, and times `finetune.learning_rate` a normal number of f32 (1.2e-38 to 3.4e38); for an encoder that is never trained there is the arm pre-trained-frozen";
            return refuse("encoder_rate", self.encoder_rate.to_string(), allowed);
        }
        if !(self.weight_decay >= 0.0 && (self.weight_decay as f32).is_finite()) {
            let allowed = "it must be 0 or more, and finite in f32";
            return refuse("weight_decay", self.weight_decay.to_string(), allowed);
        }
        check_masking(&self.masking, "finetune")?;
        self.head.validate()?;
        for checked in [self.loss.validate(), self.mix.validate()] {
            if let Err(ConfigError { key, found, allowed }) = checked {
                return refuse(key, found, &format!("it must be {allowed}"));
            }
        }
        self.arms.iter().try_for_each(|arm| Ok(self.training(*arm).validate()?))
    }

    /// Whether an encoder is pre-trained here: no weights are named, and an arm begins with such ones.
    pub(crate) fn pretrains(&self) -> bool {
        self.encoder.is_none() && self.arms.iter().any(|arm| arm.is_pretrained())
    }

    /// What is said, before anything is trained, of a patience that may not last until the encoder is trained.
    pub(crate) fn impatience(&self) -> Option<String> {
        let Self { patience, frozen_epochs, .. } = self;
        let may_end = self.arms.contains(&Arm::FineTuned) && patience < frozen_epochs;
        may_end.then(|| {
            format!(
                "`finetune.patience` is {patience}, and `finetune.frozen_epochs` {frozen_epochs}: a training of `{}` may end before its \
                 encoder is trained; raise the patience, or freeze the encoder for fewer epochs",
                Arm::FineTuned.name()
            )
        })
    }

    /// What the learning rate falls to where the usual minimum of a cosine is not below its peak.
    pub(crate) fn lowered_minimum(&self) -> Option<f64> {
        let is_low = self.learning_rate <= Cosine::default().minimum;
        is_low.then_some(LOWEST * self.learning_rate)
    }

    /// The settings of the training loop for an arm.
    pub(crate) fn training(&self, arm: Arm) -> TrainConfig {
        let adamw = AdamWConfig {
            learning_rate: self.learning_rate,
            weight_decay: self.weight_decay,
            ..AdamWConfig::default()
        };
        let encoder = ParameterGroup {
            parameters: vec!["encoder.*".to_owned()],
            ..ParameterGroup::default()
        };
        let groups = match arm {
            Arm::FromScratch => vec![],
            Arm::PreTrainedFrozen | Arm::RandomFrozen => {
                vec![ParameterGroup { frozen: true, ..encoder }]
            }
            Arm::FineTuned => vec![ParameterGroup {
                learning_rate: Some(self.learning_rate * self.encoder_rate),
                unfreeze_at: (self.frozen_epochs > 0).then_some(self.frozen_epochs + 1),
                ..encoder
            }],
        };
        let early = EarlyStopping { patience: self.patience, ..EarlyStopping::default() };
        let usual = Cosine::default();
        let minimum = self.lowered_minimum().unwrap_or(usual.minimum);
        TrainConfig {
            epochs: self.epochs,
            optimizer: Optimizer::AdamW(adamw),
            schedule: Schedule::Cosine(Cosine { minimum, ..usual }),
            groups,
            early_stopping: Some(early),
            checkpoint: CheckpointConfig { keep: Keep::BestOnly, ..CheckpointConfig::default() },
            ..TrainConfig::default()
        }
    }

    /// Where the settings of an arm's training are written.
    pub(crate) fn keys() -> SettingKeys {
        SettingKeys {
            rate: "finetune.learning_rate",
            epochs: "finetune.epochs",
            patience: "finetune.patience",
            least_improvement: None,
            batch_size: "finetune.batch_size",
            clips: false,
        }
    }

    /// The seeds of each arm, from this one on.
    pub(crate) fn seeds_from(&self, first: u64) -> Vec<u64> {
        (0..u64::from(self.seeds)).map(|index| first.wrapping_add(index)).collect()
    }

    /// The shares from the smallest on.
    pub(crate) fn sorted_shares(&self) -> Vec<f64> {
        let mut shares = self.shares.clone();
        shares.sort_by(f64::total_cmp);
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_table_is_the_default_and_bad_settings_are_named() {
        let read = |text: &str| toml::from_str::<FinetuneConfig>(text).unwrap();
        assert_eq!(read(""), FinetuneConfig::default());
        FinetuneConfig::default().validate().unwrap();
        let check = |text: &str, expected: &str| {
            let message = read(text).validate().unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        };
        check("shares = []", "`finetune.shares` is []");
        check("shares = [0.1, 0.1]", "each once");
        check("shares = [1.5]", "at most 1");
        check("least_match = 0", "`finetune.least_match` is 0");
        check("arms = []", "random-frozen");
        check("seeds = 0", "`finetune.seeds` is 0");
        check("epochs = 5", "`finetune.frozen_epochs` is 10; it must be below");
        check("learning_rate = -1", "`finetune.learning_rate` is -1");
        check("weight_decay = -1", "`finetune.weight_decay` is -1");
        check("[loss.focal]\ngamma = -1", "`finetune.loss.focal.gamma` is -1");
        check("encoder_rate = 0", "`finetune.encoder_rate` is 0");
        check("encoder_rate = 1e-50", "times `finetune.learning_rate` a normal number of f32");
        check("[mix.mixup]\nalpha = 0", "`finetune.mix.mixup.alpha` is 0");
        check("[masking]\nlongest = 2", "`finetune.masking.longest` is 2; it must be from 0 to 1");
        check(
            "[masking]\nchannels = 1",
            "`finetune.masking.channels` is 1; it must be from 0 to below 1",
        );
        assert!(toml::from_str::<FinetuneConfig>("epoch = 3").is_err());
    }

    #[test]
    fn the_encoder_is_frozen_then_trained_more_slowly() {
        let config = FinetuneConfig::default();
        let [group] = &config.training(Arm::FineTuned).groups[..] else { panic!("one group") };
        assert_eq!((group.unfreeze_at, group.learning_rate), (Some(11), Some(1.5e-4)));
        let [group] = &config.training(Arm::RandomFrozen).groups[..] else { panic!("one group") };
        assert!(group.frozen);
        assert!(config.training(Arm::FromScratch).groups.is_empty());
        let at_once = FinetuneConfig { frozen_epochs: 0, ..config };
        assert_eq!(at_once.training(Arm::FineTuned).groups[0].unfreeze_at, None);
    }

    #[test]
    fn a_rate_below_the_usual_minimum_falls_to_the_same_share_of_itself() {
        for (learning_rate, expected) in [(5e-4, 1e-5), (1.1e-5, 1e-5), (1e-5, 2e-7), (5e-6, 1e-7)]
        {
            let config = FinetuneConfig { learning_rate, ..FinetuneConfig::default() };
            let Schedule::Cosine(cosine) = config.training(Arm::FromScratch).schedule else {
                panic!("a cosine")
            };
            assert!((cosine.minimum / expected - 1.0).abs() < 1e-12, "{}", cosine.minimum);
            assert_eq!(config.lowered_minimum().is_some(), learning_rate < 1.05e-5);
        }
    }

    #[test]
    fn a_patience_that_may_end_before_the_encoder_is_trained_is_told_of() {
        let said = |text: &str| toml::from_str::<FinetuneConfig>(text).unwrap().impatience();
        assert_eq!(said(""), None);
        // The first epoch has nothing to undercut.
        assert_eq!(said("patience = 10"), None);
        assert_eq!(
            said("patience = 9").unwrap(),
            "`finetune.patience` is 9, and `finetune.frozen_epochs` 10: a training of `pre-trained, fine-tuned` may end before its encoder is trained; raise the patience, or freeze the encoder for fewer epochs"
        );
        assert_eq!(said("patience = 9\narms = [\"pre-trained-frozen\"]"), None);
    }
}
