//! Which model of the zoo a `[model.NAME]` is, where code is written for any that can be pre-trained.

use burn::tensor::Device;
use firebox_core::{Precision, Stream};
use firebox_export::Architecture;
use firebox_models::{
    BiLstmMae, Encoder, PatchTransformer, Pretrain, RecurrentConfig, RecurrentEncoder,
};

use crate::config::ModelConfig;
use crate::error::PipelineError;

/// A model that can be pre-trained, and the encoder that a classifier takes of it.
pub(crate) trait Pretrainable: Pretrain {
    /// The part that a classifier stands on; its parameters have the same names as in the model.
    type Encoder: Encoder;

    /// The model as it is initialised.
    fn build(model: &ModelConfig, at: &Place<'_>) -> Result<Self, PipelineError>;

    /// What it is, for those who use it after training.
    fn architecture(model: &ModelConfig, channels: usize) -> Result<Architecture, PipelineError>;

    /// Its encoder as it is initialised.
    fn encoder(model: &ModelConfig, at: &Place<'_>) -> Result<Self::Encoder, PipelineError>;
}

/// What a model is built for.
pub(crate) struct Place<'a> {
    /// Where its weights are drawn from.
    pub(crate) stream: Stream,
    pub(crate) channels: usize,
    pub(crate) precision: Precision,
    pub(crate) device: &'a Device,
}

impl Pretrainable for BiLstmMae {
    type Encoder = RecurrentEncoder;

    fn build(model: &ModelConfig, at: &Place<'_>) -> Result<Self, PipelineError> {
        let ModelConfig::BilstmMae(config) = model else { return Err(model.is_not("bilstm-mae")) };
        Ok(config.init(at.stream, at.channels, at.device)?.in_precision(at.precision))
    }

    fn architecture(model: &ModelConfig, channels: usize) -> Result<Architecture, PipelineError> {
        let ModelConfig::BilstmMae(config) = model else { return Err(model.is_not("bilstm-mae")) };
        Ok(Architecture::BilstmMae { config: config.clone(), channels })
    }

    fn encoder(model: &ModelConfig, at: &Place<'_>) -> Result<RecurrentEncoder, PipelineError> {
        let ModelConfig::BilstmMae(config) = model else { return Err(model.is_not("bilstm-mae")) };
        let (hidden, layers, dropout) = (config.hidden, config.layers, config.dropout);
        let config = RecurrentConfig { hidden, layers, dropout, ..RecurrentConfig::default() };
        Ok(config.init(at.stream, at.channels, at.device)?.in_precision(at.precision))
    }
}

impl Pretrainable for PatchTransformer {
    type Encoder = Self;

    fn build(model: &ModelConfig, at: &Place<'_>) -> Result<Self, PipelineError> {
        let ModelConfig::PatchTransformer(config) = model else {
            return Err(model.is_not("patch-transformer"));
        };
        Ok(config.init(at.stream, at.channels, at.device)?.in_precision(at.precision))
    }

    fn architecture(model: &ModelConfig, channels: usize) -> Result<Architecture, PipelineError> {
        let ModelConfig::PatchTransformer(config) = model else {
            return Err(model.is_not("patch-transformer"));
        };
        Ok(Architecture::PatchTransformer { config: config.clone(), channels })
    }

    fn encoder(model: &ModelConfig, at: &Place<'_>) -> Result<Self, PipelineError> {
        Self::build(model, at)
    }
}

impl ModelConfig {
    /// Its name in a pipeline file.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::BilstmMae(_) => "bilstm-mae",
            Self::PatchTransformer(_) => "patch-transformer",
            Self::StackedLstm(_) => "stacked-lstm",
        }
    }

    fn is_not(&self, wanted: &str) -> PipelineError {
        PipelineError::Setting(format!(
            "the model is {} where {wanted} is built\n  set [model.{wanted}]",
            self.name()
        ))
    }

    /// Checks the settings of a model that can be pre-trained, and refuses any other.
    pub(crate) fn check_pretrainable(&self) -> Result<(), PipelineError> {
        match self {
            Self::BilstmMae(model) => Ok(model.validate()?),
            Self::PatchTransformer(model) => Ok(model.validate()?),
            Self::StackedLstm(_) => Err(self.cannot_pretrain()),
        }
    }

    /// What is said of a model that does not learn by masking.
    pub(crate) fn cannot_pretrain(&self) -> PipelineError {
        PipelineError::Setting(format!(
            "[model.{}] is not pre-trained by masking\n  set [model.bilstm-mae] or [model.patch-transformer], or leave the model out",
            self.name()
        ))
    }
}
