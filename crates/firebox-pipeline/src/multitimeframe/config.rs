//! `[multitimeframe]`: what reference system R3 needs beside the tables that all pipelines have.

use firebox_core::WalkForward;
use firebox_export::Architecture;
use firebox_loader::Masking;
use firebox_models::{BiLstmAttentionConfig, MlpConfig, TransformerConfig};
use firebox_monitor::SettingKeys;
use firebox_train::{ConfigError, Mix, Optimizer, TrainConfig};
use serde::{Deserialize, Serialize};

use crate::PipelineConfig;
use crate::config::check_masking;
use crate::error::PipelineError;
use crate::page::setting_keys;

/// `[multitimeframe]`: several models, each trained and tested on the same folds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MultitimeframeConfig {
    /// Folds in the order of time.
    pub folds: WalkForward,
    /// The models, in the order in which they are trained: `lstm`, `transformer`, `mlp`.
    pub models: Vec<ModelName>,
    /// Share of each target that is spread evenly over all classes, `0 ≤ share < 1`; R3: 0.1.
    pub label_smoothing: f64,
    /// How training windows are mixed; not by default.
    #[serde(skip_serializing_if = "is_unmixed")]
    pub mix: Mix,
    /// Stretches of steps, and channels, that are hidden of training windows, drawn anew in each epoch; none by default.
    #[serde(skip_serializing_if = "Masking::is_off")]
    pub masking: Masking,
    /// The bidirectional LSTM with attention.
    pub lstm: LstmTable,
    /// The Transformer.
    pub transformer: TransformerTable,
    /// The dense network.
    pub mlp: MlpTable,
}

impl Default for MultitimeframeConfig {
    fn default() -> Self {
        Self {
            folds: WalkForward::default(),
            models: ModelName::ALL.to_vec(),
            label_smoothing: 0.1,
            mix: Mix::None,
            masking: Masking::default(),
            lstm: LstmTable::default(),
            transformer: TransformerTable::default(),
            mlp: MlpTable::default(),
        }
    }
}

fn is_unmixed(mix: &Mix) -> bool {
    *mix == Mix::None
}

/// One of the models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelName {
    /// The bidirectional LSTM with attention.
    Lstm,
    /// The Transformer.
    Transformer,
    /// The dense network.
    Mlp,
}

impl ModelName {
    const ALL: [Self; 3] = [Self::Lstm, Self::Transformer, Self::Mlp];

    /// Its name in settings and folders.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lstm => "lstm",
            Self::Transformer => "transformer",
            Self::Mlp => "mlp",
        }
    }

    /// Its name in running text.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Lstm => "BiLSTM with attention",
            Self::Transformer => "Transformer",
            Self::Mlp => "MLP",
        }
    }
}

macro_rules! model_tables {
    ($($(#[$doc:meta])* $Table:ident, $Config:ident, $rate:literal, $batch:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $Table {
            /// Peak learning rate, in place of the one in `[train.optimizer]`.
            pub learning_rate: f64,
            /// Windows of a training batch, in place of `loader.batch_size`; at least 1.
            pub batch_size: usize,
            /// The model itself.
            pub settings: $Config,
        }

        impl Default for $Table {
            fn default() -> Self {
                Self { learning_rate: $rate, batch_size: $batch, settings: $Config::default() }
            }
        }
    )*};
}

model_tables! {
    /// `[multitimeframe.lstm]`. Defaults are R3's.
    LstmTable, BiLstmAttentionConfig, 5e-4, 256;
    /// `[multitimeframe.transformer]`. Defaults are R3's.
    TransformerTable, TransformerConfig, 3e-4, 256;
    /// `[multitimeframe.mlp]`. Defaults are R3's.
    MlpTable, MlpConfig, 1e-3, 512;
}

impl MultitimeframeConfig {
    /// Checks every setting by itself.
    pub(crate) fn validate(&self) -> Result<(), PipelineError> {
        let refuse = |key: &str, found: String, allowed: &str| {
            Err(PipelineError::Setting(format!(
                "`multitimeframe.{key}` is {found}; it must be {allowed}"
            )))
        };
        let mut names: Vec<&str> = self.models.iter().map(|model| model.name()).collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() || names.len() < self.models.len() {
            let found = format!("{:?}", self.models);
            return refuse("models", found, "a list of `lstm`, `transformer` and `mlp`, each once");
        }
        let WalkForward { folds, validation, .. } = self.folds;
        if !(1..=1000).contains(&folds) {
            return refuse("folds.folds", folds.to_string(), "from 1 to 1000");
        }
        if !(validation > 0.0 && validation < 1.0) {
            return refuse("folds.validation", validation.to_string(), "above 0 and below 1");
        }
        if !(0.0..1.0).contains(&self.label_smoothing) {
            let found = self.label_smoothing.to_string();
            return refuse("label_smoothing", found, "at least 0 and below 1");
        }
        if let Err(ConfigError { key, found, allowed }) = self.mix.validate() {
            return refuse(key, found, allowed);
        }
        check_masking(&self.masking, "multitimeframe")?;
        for model in &self.models {
            let (name, rate, batch) =
                (model.name(), self.learning_rate(*model), self.batch(*model));
            // Computed with in f32, in which what is below 1e-45 is zero.
            let allowed = "above 0 in f32, and finite";
            if !(rate as f32 > 0.0 && (rate as f32).is_finite()) {
                return refuse(&format!("{name}.learning_rate"), format!("{rate:?}"), allowed);
            }
            if batch == 0 {
                return refuse(&format!("{name}.batch_size"), "0".to_owned(), "at least 1");
            }
        }
        self.lstm.settings.validate()?;
        self.transformer.settings.validate()?;
        self.mlp.settings.validate()?;
        Ok(())
    }

    /// The models that are not trained, whose settings decide nothing.
    pub(crate) fn untrained(&self) -> impl Iterator<Item = ModelName> {
        ModelName::ALL.into_iter().filter(|model| !self.models.contains(model))
    }

    /// The same with defaults for them.
    pub(crate) fn trained_only(mut self) -> Self {
        let lacks = |model| !self.models.contains(&model);
        let [lstm, transformer, mlp] = ModelName::ALL.map(lacks);
        if lstm {
            self.lstm = LstmTable::default();
        }
        if transformer {
            self.transformer = TransformerTable::default();
        }
        if mlp {
            self.mlp = MlpTable::default();
        }
        self
    }

    fn learning_rate(&self, model: ModelName) -> f64 {
        match model {
            ModelName::Lstm => self.lstm.learning_rate,
            ModelName::Transformer => self.transformer.learning_rate,
            ModelName::Mlp => self.mlp.learning_rate,
        }
    }

    /// Windows of a training batch of a model.
    pub(crate) fn batch(&self, model: ModelName) -> usize {
        match model {
            ModelName::Lstm => self.lstm.batch_size,
            ModelName::Transformer => self.transformer.batch_size,
            ModelName::Mlp => self.mlp.batch_size,
        }
    }

    /// The settings of a model's training: the shared ones with its own learning rate.
    pub(crate) fn training(&self, model: ModelName, shared: &TrainConfig) -> TrainConfig {
        let mut own = shared.clone();
        match &mut own.optimizer {
            Optimizer::AdamW(adamw) => adamw.learning_rate = self.learning_rate(model),
            Optimizer::Sgd(sgd) => sgd.learning_rate = self.learning_rate(model),
        }
        own
    }

    /// Where the settings of a model's training are written.
    pub(crate) fn keys(&self, model: ModelName, config: &PipelineConfig) -> SettingKeys {
        let (rate, batch_size) = match model {
            ModelName::Lstm => {
                ("multitimeframe.lstm.learning_rate", "multitimeframe.lstm.batch_size")
            }
            ModelName::Transformer => (
                "multitimeframe.transformer.learning_rate",
                "multitimeframe.transformer.batch_size",
            ),
            ModelName::Mlp => ("multitimeframe.mlp.learning_rate", "multitimeframe.mlp.batch_size"),
        };
        SettingKeys { rate, batch_size, ..setting_keys(config) }
    }

    /// What a model is, with the sizes that its data gives it.
    pub(super) fn architecture(
        &self,
        model: ModelName,
        time: usize,
        channels: usize,
        classes: usize,
    ) -> Architecture {
        match model {
            ModelName::Lstm => {
                let config = self.lstm.settings.clone();
                Architecture::BilstmAttention { config, channels, classes }
            }
            ModelName::Transformer => {
                let config = self.transformer.settings.clone();
                Architecture::Transformer { config, channels, time, classes }
            }
            ModelName::Mlp => {
                let config = self.mlp.settings.clone();
                Architecture::Mlp { config, time, channels, classes }
            }
        }
    }

    /// What of these settings shapes a model, as text.
    pub(crate) fn settings(&self, model: ModelName) -> String {
        let text = match model {
            ModelName::Lstm => serde_json::to_string(&self.lstm.settings),
            ModelName::Transformer => serde_json::to_string(&self.transformer.settings),
            ModelName::Mlp => serde_json::to_string(&self.mlp.settings),
        };
        // Plain structs of numbers, texts and lists: there is nothing to fail on.
        format!("{} {}", model.name(), text.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MultitimeframeConfig, String> {
        let config: MultitimeframeConfig =
            toml::from_str(text).map_err(|error| error.to_string())?;
        config.validate().map_err(|error| error.to_string()).map(|()| config)
    }

    #[test]
    fn defaults_are_the_reference_systems_key_by_key() {
        let config =
            parse("lstm = { batch_size = 8 }\nmlp = { settings = { gate = false } }").unwrap();
        let rates = ModelName::ALL.map(|model| config.learning_rate(model));
        assert_eq!(rates, [5e-4, 3e-4, 1e-3]);
        assert_eq!(ModelName::ALL.map(|model| config.batch(model)), [8, 256, 512]);
        assert!(!config.mlp.settings.gate && config.folds.folds == 5);
        let own = config.training(ModelName::Transformer, &TrainConfig::default());
        assert_eq!(own.optimizer.learning_rate(), 3e-4);
    }

    #[test]
    fn tables_of_models_that_are_not_trained_decide_nothing() {
        let two = parse("models = ['lstm', 'mlp']\nmlp = { batch_size = 8 }").unwrap();
        let more = parse(
            "models = ['lstm', 'mlp']\nmlp = { batch_size = 8 }\ntransformer = { batch_size = 7 }",
        );
        assert_eq!(two.clone().trained_only(), two);
        assert_eq!(more.unwrap().trained_only(), two);
    }

    #[test]
    fn what_cannot_be_is_named() {
        let refused = |text: &str, expected: &str| {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        refused("models = []", "`multitimeframe.models` is []");
        refused("models = ['mlp', 'mlp']", "each once");
        refused("models = ['gru']", "gru");
        refused("label_smoothing = 1.0", "`multitimeframe.label_smoothing` is 1");
        refused("mix = { mixup = { alpha = 0.0 } }", "`multitimeframe.mix.mixup.alpha` is 0");
        refused("masking = { longest = 2.0 }", "`multitimeframe.masking.longest` is 2");
        refused("lstm = { learning_rate = 0.0 }", "`multitimeframe.lstm.learning_rate` is 0");
        refused("mlp = { batch_size = 0 }", "`multitimeframe.mlp.batch_size` is 0");
        refused("mlp = { settings = { dropout = 2.0 } }", "`dropout` is 2");
        refused("folds = { fold = 3 }", "fold");
        refused("folds = { folds = 0 }", "`multitimeframe.folds.folds` is 0");
        refused("folds = { validation = 1.0 }", "`multitimeframe.folds.validation` is 1");
    }
}
