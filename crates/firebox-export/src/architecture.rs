//! Which model it is: one of the zoo with its settings and the sizes that its data gave it.

use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_models::{
    Bert, BertConfig, BiLstmMae, BiLstmMaeConfig, CnnBiLstm, CnnBiLstmConfig, Encoder, Mismatch,
    Mlp, MlpConfig, ModelError, Parameter, PatchTransformer, PatchTransformerConfig, Transformer,
    TransformerConfig, layouts, read_parameters, write_parameters,
};
use serde::{Deserialize, Serialize};

use crate::ExportError;

/// A model of the zoo, with all that is needed to build it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Architecture {
    /// The masked autoencoder of reference system R1.
    BilstmMae {
        /// Its settings.
        config: BiLstmMaeConfig,
        /// Channels of a window.
        channels: usize,
    },
    /// The convolutional classifier of reference system R4.
    CnnBilstm {
        /// Its settings.
        config: CnnBiLstmConfig,
        /// Channels of a window.
        channels: usize,
        /// Classes.
        classes: usize,
    },
    /// The Transformer of reference system R3.
    Transformer {
        /// Its settings.
        config: TransformerConfig,
        /// Channels of a window.
        channels: usize,
        /// Steps of the longest window.
        time: usize,
        /// Classes.
        classes: usize,
    },
    /// The dense classifier of reference system R3.
    Mlp {
        /// Its settings.
        config: MlpConfig,
        /// Steps of every window.
        time: usize,
        /// Channels of a window.
        channels: usize,
        /// Classes.
        classes: usize,
    },
    /// The patch Transformer, pre-trained by masking.
    PatchTransformer {
        /// Its settings.
        config: PatchTransformerConfig,
        /// Channels of a window.
        channels: usize,
    },
    /// The text model of reference system R5.
    Bert {
        /// Its settings.
        config: BertConfig,
    },
}

/// A model of the zoo, in evaluation.
#[derive(Clone, Debug)]
pub enum Model {
    /// R1's masked autoencoder.
    BilstmMae(BiLstmMae),
    /// R4's classifier.
    CnnBilstm(CnnBiLstm),
    /// R3's Transformer.
    Transformer(Transformer),
    /// R3's dense classifier.
    Mlp(Mlp),
    /// The patch Transformer.
    PatchTransformer(PatchTransformer),
    /// R5's text model.
    Bert(Bert),
}

/// Does the same with the model, whichever it is.
macro_rules! each_model {
    ($model:expr, $inner:ident => $value:expr) => {
        match $model {
            Model::BilstmMae($inner) => $value,
            Model::CnnBilstm($inner) => $value,
            Model::Transformer($inner) => $value,
            Model::Mlp($inner) => $value,
            Model::PatchTransformer($inner) => $value,
            Model::Bert($inner) => $value,
        }
    };
}

impl Architecture {
    /// Its name, as in `[model.NAME]`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::BilstmMae { .. } => "bilstm-mae",
            Self::CnnBilstm { .. } => "cnn-bilstm",
            Self::Transformer { .. } => "transformer",
            Self::Mlp { .. } => "mlp",
            Self::PatchTransformer { .. } => "patch-transformer",
            Self::Bert { .. } => "bert",
        }
    }

    /// Whether it gives windows a vector.
    pub fn is_encoder(&self) -> bool {
        !matches!(self, Self::Mlp { .. })
    }

    /// Classes that it tells apart, if it is a classifier.
    pub fn classes(&self) -> Option<usize> {
        match self {
            Self::BilstmMae { .. } | Self::PatchTransformer { .. } => None,
            Self::CnnBilstm { classes, .. }
            | Self::Transformer { classes, .. }
            | Self::Mlp { classes, .. } => Some(*classes),
            Self::Bert { config } => Some(config.labels),
        }
    }

    /// Builds the model with fresh weights.
    fn init(&self, device: &Device) -> Result<Model, ModelError> {
        let stream = Stream::new(0, "weights");
        Ok(match self {
            Self::BilstmMae { config, channels } => {
                Model::BilstmMae(config.init(stream, *channels, device)?)
            }
            Self::CnnBilstm { config, channels, classes } => {
                Model::CnnBilstm(config.init(stream, *channels, *classes, device)?)
            }
            Self::Transformer { config, channels, time, classes } => {
                Model::Transformer(config.init(stream, *channels, *time, *classes, device)?)
            }
            Self::Mlp { config, time, channels, classes } => {
                Model::Mlp(config.init(stream, [*time, *channels], *classes, device)?)
            }
            Self::PatchTransformer { config, channels } => {
                Model::PatchTransformer(config.init(stream, *channels, device)?)
            }
            Self::Bert { config } => Model::Bert(config.init(stream, device)?),
        })
    }

    /// Builds the model with these weights, in evaluation.
    ///
    /// # Errors
    /// If a setting is out of its range, or the weights are not exactly those of the model.
    pub fn build(&self, weights: Vec<Parameter>, device: &Device) -> Result<Model, ExportError> {
        let mut model = self.init(device)?;
        each_model!(&mut model, inner => write_parameters(inner, weights))?;
        Ok(model)
    }

    /// Checks that these are the weights of the model.
    pub(crate) fn check(&self, parameters: &[Parameter]) -> Result<(), ExportError> {
        let model = self.init(&Device::default())?;
        let mismatch = each_model!(&model, inner => {
            firebox_models::compare_parameters(inner, parameters)
        });
        if mismatch.is_empty() { Ok(()) } else { Err(mismatch.into()) }
    }
}

impl Model {
    /// The same model with its products in this type.
    #[must_use]
    pub fn in_precision(self, precision: Precision) -> Self {
        match self {
            Self::BilstmMae(model) => Self::BilstmMae(model.in_precision(precision)),
            Self::CnnBilstm(model) => Self::CnnBilstm(model.in_precision(precision)),
            Self::Transformer(model) => Self::Transformer(model.in_precision(precision)),
            Self::Mlp(model) => Self::Mlp(model.in_precision(precision)),
            Self::PatchTransformer(model) => Self::PatchTransformer(model.in_precision(precision)),
            Self::Bert(model) => Self::Bert(model.in_precision(precision)),
        }
    }

    /// All its parameters, by PyTorch's names.
    pub fn parameters(&self) -> Vec<Parameter> {
        each_model!(self, inner => read_parameters(inner))
    }

    /// Number of its parameters, running statistics among them.
    pub fn size(&self) -> usize {
        let all = each_model!(self, inner => layouts(inner));
        all.iter().map(|layout| layout.shape.iter().product::<usize>()).sum()
    }

    /// One vector for each window; `None` of a model that makes none of windows.
    ///
    /// # Shapes
    /// - input: `[batch, time, channel]`, normalised; lengths: `[batch]`
    /// - the result: `[batch, embedding]`
    pub fn embed(&self, input: Tensor<3>, lengths: &[usize]) -> Option<Tensor<2>> {
        match self {
            Self::BilstmMae(model) => Some(model.embed(input, Some(lengths))),
            Self::CnnBilstm(model) => Some(model.embed(input, Some(lengths))),
            Self::Transformer(model) => Some(model.embed(input, Some(lengths))),
            Self::PatchTransformer(model) => Some(model.embed(input, Some(lengths))),
            Self::Mlp(_) | Self::Bert(_) => None,
        }
    }

    /// Width of [`embed`](Self::embed)'s vectors.
    pub fn embedding_width(&self) -> Option<usize> {
        match self {
            Self::BilstmMae(model) => Some(model.embedding_width()),
            Self::CnnBilstm(model) => Some(model.embedding_width()),
            Self::Transformer(model) => Some(model.embedding_width()),
            Self::PatchTransformer(model) => Some(model.embedding_width()),
            Self::Mlp(_) | Self::Bert(_) => None,
        }
    }

    /// Scores of the classes of windows, before softmax; `None` of a model that does not classify
    /// windows.
    ///
    /// # Shapes
    /// - input: `[batch, time, channel]`, normalised; lengths: `[batch]`
    /// - the result: `[batch, class]`
    pub fn logits(&self, input: Tensor<3>, lengths: &[usize]) -> Option<Tensor<2>> {
        match self {
            Self::CnnBilstm(model) => Some(model.logits(input, Some(lengths), None, None)),
            Self::Transformer(model) => Some(model.logits(input, Some(lengths), None)),
            Self::Mlp(model) => Some(model.logits(input, None)),
            Self::BilstmMae(_) | Self::PatchTransformer(_) | Self::Bert(_) => None,
        }
    }
}

impl From<Mismatch> for ExportError {
    fn from(mismatch: Mismatch) -> Self {
        Self::Model(ModelError::Mismatch(mismatch))
    }
}
