//! Which model of the zoo a `[model.NAME]` is, where code is written for any that can be pre-trained.

use burn::tensor::Device;
use firebox_core::{Precision, Stream};
use firebox_export::Architecture;
use firebox_models::{
    AnyEncoder, BiLstmMae, ClassifierConfig, Encoder, Masked, PatchTransformer, Pretrain,
    RecurrentConfig, RecurrentEncoder,
};

use crate::PipelineConfig;
use crate::bench::Probe;
use crate::config::ModelConfig;
use crate::device::ChosenDevice;
use crate::error::PipelineError;

/// Does the same with the type of the model that is chosen, or refuses one that is not pre-trained.
macro_rules! with_pretrainable {
    ($model:expr, $Model:ident => $value:expr) => {
        match $model {
            $crate::ModelConfig::BilstmMae(_) => {
                type $Model = firebox_models::BiLstmMae;
                $value
            }
            $crate::ModelConfig::PatchTransformer(_) => {
                type $Model = firebox_models::PatchTransformer;
                $value
            }
            $crate::ModelConfig::Masked(_) => {
                type $Model = firebox_models::Masked;
                $value
            }
            other => Err(other.cannot_pretrain()),
        }
    };
}
pub(crate) use with_pretrainable;

/// A model that can be pre-trained, and the encoder that a classifier takes of it.
pub(crate) trait Pretrainable: Pretrain {
    /// The part that a classifier stands on; its parameters have the same names as in the model.
    type Encoder: Encoder;

    /// The model as it is initialised.
    fn build(model: &ModelConfig, at: &Place<'_>) -> Result<Self, PipelineError>;

    /// What it is, for those who use it after training. `shape`: steps of the longest window, channels.
    fn architecture(model: &ModelConfig, shape: [usize; 2]) -> Result<Architecture, PipelineError>;

    /// What a classifier on its encoder is.
    fn classifier(
        model: &ModelConfig,
        head: &ClassifierConfig,
        shape: [usize; 2],
        classes: usize,
    ) -> Result<Architecture, PipelineError>;

    /// Its encoder as it is initialised.
    fn encoder(model: &ModelConfig, at: &Place<'_>) -> Result<Self::Encoder, PipelineError>;
}

/// What a model is built for.
pub(crate) struct Place<'a> {
    /// Where its weights are drawn from.
    pub(crate) stream: Stream,
    pub(crate) channels: usize,
    /// Steps of the longest window.
    pub(crate) time: usize,
    pub(crate) precision: Precision,
    /// Whether layers are computed again for their gradients.
    pub(crate) recompute: bool,
    pub(crate) device: &'a Device,
}

impl<'a> Place<'a> {
    /// For windows of `[time, channel]`, as the run computes.
    pub(crate) fn of(
        config: &PipelineConfig,
        seed: u64,
        [time, channels]: [usize; 2],
        device: &'a ChosenDevice,
    ) -> Self {
        Self {
            stream: Stream::new(seed, "weights"),
            channels,
            time,
            precision: config.run.precision,
            recompute: config.run.recompute,
            device: &device.device,
        }
    }

    /// For windows of `[time, channel]`, in the precision that is tried.
    pub(crate) fn probing(
        config: &PipelineConfig,
        shape: [usize; 2],
        probe: &Probe<'_>,
        device: &'a ChosenDevice,
    ) -> Self {
        Self { precision: probe.precision, ..Self::of(config, config.run.seed, shape, device) }
    }

    /// For a look at the names of its parameters, which depend neither on the number of channels nor on
    /// the weights.
    pub(crate) fn naming(config: &PipelineConfig, device: &'a ChosenDevice) -> Self {
        Self { recompute: false, ..Self::of(config, 0, [config.window.length, 2], device) }
    }
}

impl Pretrainable for BiLstmMae {
    type Encoder = RecurrentEncoder;

    fn build(model: &ModelConfig, at: &Place<'_>) -> Result<Self, PipelineError> {
        let ModelConfig::BilstmMae(config) = model else { return Err(model.is_not("bilstm-mae")) };
        let model = config.init(at.stream, at.channels, at.device)?;
        Ok(model.in_precision(at.precision).recomputed(at.recompute))
    }

    fn architecture(
        model: &ModelConfig,
        [_, channels]: [usize; 2],
    ) -> Result<Architecture, PipelineError> {
        let ModelConfig::BilstmMae(config) = model else { return Err(model.is_not("bilstm-mae")) };
        Ok(Architecture::BilstmMae { config: config.clone(), channels })
    }

    fn classifier(
        model: &ModelConfig,
        head: &ClassifierConfig,
        [_, channels]: [usize; 2],
        classes: usize,
    ) -> Result<Architecture, PipelineError> {
        let (config, encoder) = (head.clone(), recurrent(model)?);
        Ok(Architecture::RecurrentClassifier { config, encoder, channels, classes })
    }

    fn encoder(model: &ModelConfig, at: &Place<'_>) -> Result<RecurrentEncoder, PipelineError> {
        let encoder = recurrent(model)?.init(at.stream, at.channels, at.device)?;
        Ok(encoder.in_precision(at.precision).recomputed(at.recompute))
    }
}

/// The encoder within R1's autoencoder.
fn recurrent(model: &ModelConfig) -> Result<RecurrentConfig, PipelineError> {
    let ModelConfig::BilstmMae(config) = model else { return Err(model.is_not("bilstm-mae")) };
    let (hidden, layers, dropout) = (config.hidden, config.layers, config.dropout);
    Ok(RecurrentConfig { hidden, layers, dropout, ..RecurrentConfig::default() })
}

impl Pretrainable for PatchTransformer {
    type Encoder = Self;

    fn build(model: &ModelConfig, at: &Place<'_>) -> Result<Self, PipelineError> {
        let ModelConfig::PatchTransformer(config) = model else {
            return Err(model.is_not("patch-transformer"));
        };
        let model = config.init(at.stream, at.channels, at.device)?;
        Ok(model.in_precision(at.precision).recomputed(at.recompute))
    }

    fn architecture(
        model: &ModelConfig,
        [_, channels]: [usize; 2],
    ) -> Result<Architecture, PipelineError> {
        let ModelConfig::PatchTransformer(config) = model else {
            return Err(model.is_not("patch-transformer"));
        };
        Ok(Architecture::PatchTransformer { config: config.clone(), channels })
    }

    fn classifier(
        model: &ModelConfig,
        head: &ClassifierConfig,
        [_, channels]: [usize; 2],
        classes: usize,
    ) -> Result<Architecture, PipelineError> {
        let ModelConfig::PatchTransformer(encoder) = model else {
            return Err(model.is_not("patch-transformer"));
        };
        let (config, encoder) = (head.clone(), encoder.clone());
        Ok(Architecture::PatchClassifier { config, encoder, channels, classes })
    }

    fn encoder(model: &ModelConfig, at: &Place<'_>) -> Result<Self, PipelineError> {
        Self::build(model, at)
    }
}

impl Pretrainable for Masked {
    type Encoder = AnyEncoder;

    fn build(model: &ModelConfig, at: &Place<'_>) -> Result<Self, PipelineError> {
        let ModelConfig::Masked(config) = model else { return Err(model.is_not("masked")) };
        let model = config.init(at.stream, at.channels, at.time, at.device)?;
        Ok(model.in_precision(at.precision).recomputed(at.recompute))
    }

    fn architecture(
        model: &ModelConfig,
        [time, channels]: [usize; 2],
    ) -> Result<Architecture, PipelineError> {
        let ModelConfig::Masked(config) = model else { return Err(model.is_not("masked")) };
        Ok(Architecture::Masked { config: config.clone(), channels, time })
    }

    fn classifier(
        model: &ModelConfig,
        head: &ClassifierConfig,
        [time, channels]: [usize; 2],
        classes: usize,
    ) -> Result<Architecture, PipelineError> {
        let ModelConfig::Masked(config) = model else { return Err(model.is_not("masked")) };
        let (config, encoder) = (head.clone(), config.encoder.clone());
        Ok(Architecture::EncoderClassifier { config, encoder, channels, time, classes })
    }

    fn encoder(model: &ModelConfig, at: &Place<'_>) -> Result<AnyEncoder, PipelineError> {
        let ModelConfig::Masked(config) = model else { return Err(model.is_not("masked")) };
        let encoder = config.encoder.init(at.stream, at.channels, at.time, at.device)?;
        Ok(encoder.in_precision(at.precision).recomputed(at.recompute))
    }
}

impl ModelConfig {
    /// Its name in a pipeline file.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::BilstmMae(_) => "bilstm-mae",
            Self::PatchTransformer(_) => "patch-transformer",
            Self::Masked(_) => "masked",
            Self::StackedLstm(_) => "stacked-lstm",
            Self::Bert(_) => "bert",
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
            Self::Masked(model) => Ok(model.validate()?),
            Self::StackedLstm(_) | Self::Bert(_) => Err(self.cannot_pretrain()),
        }
    }

    /// What is said of a model that does not learn by masking.
    pub(crate) fn cannot_pretrain(&self) -> PipelineError {
        PipelineError::Setting(format!(
            "[model.{}] is not pre-trained by masking\n  set [model.bilstm-mae], [model.patch-transformer] or [model.masked], or leave the model out",
            self.name()
        ))
    }
}
