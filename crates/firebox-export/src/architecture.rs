//! Which model it is: one of the zoo with its settings and the sizes that its data gave it.

use burn::tensor::{Device, Int, Tensor};
use firebox_core::{Precision, Stream};
use firebox_models::{
    AnyEncoder, AnyEncoderConfig, Bert, BertConfig, BiLstmAttention, BiLstmAttentionConfig,
    BiLstmMae, BiLstmMaeConfig, Classifier, ClassifierConfig, Classify, CnnBiLstm, CnnBiLstmConfig,
    DilatedConfig, DilatedEncoder, Encoder, Masked, MaskedConfig, Mismatch, Mlp, MlpConfig,
    ModelError, Parameter, PatchTransformer, PatchTransformerConfig, RecurrentConfig,
    RecurrentEncoder, StackedLstm, StackedLstmConfig, TextEncoderConfig, TextHeadsConfig,
    TextModel, TextScores, Transformer, TransformerConfig, layouts, read_parameters,
    write_parameters,
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
    /// The text model of reference system R5.
    Bert {
        /// Its settings.
        config: BertConfig,
    },
    /// The forecaster of reference system R2.
    StackedLstm {
        /// Its settings.
        config: StackedLstmConfig,
        /// Channels of a window.
        channels: usize,
        /// Static features of a window.
        statics: usize,
        /// Targets times horizons.
        outputs: usize,
    },
    /// The masked autoencoder of patches.
    PatchTransformer {
        /// Its settings.
        config: PatchTransformerConfig,
        /// Channels of a window.
        channels: usize,
    },
    /// The recurrent classifier of reference system R3.
    BilstmAttention {
        /// Its settings.
        config: BiLstmAttentionConfig,
        /// Channels of a window.
        channels: usize,
        /// Classes.
        classes: usize,
    },
    /// The encoder of dilated convolutions, trained by contrast.
    Dilated {
        /// Its settings.
        config: DilatedConfig,
        /// Channels of a window.
        channels: usize,
    },
    /// An LSTM or a GRU alone: the encoder of the masked autoencoder of reference system R1.
    Recurrent {
        /// Its settings.
        config: RecurrentConfig,
        /// Channels of a window.
        channels: usize,
    },
    /// R1's fine-tuned classifier on a recurrent encoder.
    RecurrentClassifier {
        /// Its settings.
        config: ClassifierConfig,
        /// Those of its encoder.
        encoder: RecurrentConfig,
        /// Channels of a window.
        channels: usize,
        /// Classes.
        classes: usize,
    },
    /// The same classifier on the encoder of patches.
    PatchClassifier {
        /// Its settings.
        config: ClassifierConfig,
        /// Those of its encoder.
        encoder: PatchTransformerConfig,
        /// Channels of a window.
        channels: usize,
        /// Classes.
        classes: usize,
    },
    /// Any encoder of windows that restores hidden steps.
    Masked {
        /// Its settings.
        config: MaskedConfig,
        /// Channels of a window.
        channels: usize,
        /// Steps of the longest window.
        time: usize,
    },
    /// R1's classifier on any encoder of windows.
    EncoderClassifier {
        /// Its settings.
        config: ClassifierConfig,
        /// Those of its encoder.
        encoder: AnyEncoderConfig,
        /// Channels of a window.
        channels: usize,
        /// Steps of the longest window.
        time: usize,
        /// Classes.
        classes: usize,
    },
    /// An encoder of texts of any family, with its heads.
    Text {
        /// Settings of its heads.
        config: TextHeadsConfig,
        /// Those of its encoder.
        encoder: TextEncoderConfig,
    },
}

/// A model of the zoo, in evaluation.
#[allow(clippy::large_enum_variant, reason = "a program holds one or few")]
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
    /// R5's text model.
    Bert(Bert),
    /// R2's forecaster.
    StackedLstm(StackedLstm),
    /// The masked autoencoder of patches.
    PatchTransformer(PatchTransformer),
    /// R3's recurrent classifier.
    BilstmAttention(BiLstmAttention),
    /// Dilated convolutions.
    Dilated(DilatedEncoder),
    /// An LSTM or a GRU.
    Recurrent(RecurrentEncoder),
    /// R1's fine-tuned classifier.
    RecurrentClassifier(Classifier<RecurrentEncoder>),
    /// The same on patches.
    PatchClassifier(Classifier<PatchTransformer>),
    /// Any encoder that restores hidden steps.
    Masked(Masked),
    /// R1's classifier on any encoder.
    EncoderClassifier(Classifier<AnyEncoder>),
    /// An encoder of texts with its heads.
    Text(TextModel),
}

/// Does the same with the model, whichever it is.
macro_rules! each_model {
    ($model:expr, $inner:ident => $value:expr) => {
        match $model {
            Model::BilstmMae($inner) => $value,
            Model::CnnBilstm($inner) => $value,
            Model::Transformer($inner) => $value,
            Model::Mlp($inner) => $value,
            Model::Bert($inner) => $value,
            Model::StackedLstm($inner) => $value,
            Model::PatchTransformer($inner) => $value,
            Model::BilstmAttention($inner) => $value,
            Model::Dilated($inner) => $value,
            Model::Recurrent($inner) => $value,
            Model::RecurrentClassifier($inner) => $value,
            Model::PatchClassifier($inner) => $value,
            Model::Masked($inner) => $value,
            Model::EncoderClassifier($inner) => $value,
            Model::Text($inner) => $value,
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
            Self::Bert { .. } => "bert",
            Self::StackedLstm { .. } => "stacked-lstm",
            Self::PatchTransformer { .. } => "patch-transformer",
            Self::BilstmAttention { .. } => "bilstm-attention",
            Self::Dilated { .. } => "dilated",
            Self::Recurrent { .. } => "recurrent",
            Self::RecurrentClassifier { .. } => "recurrent-classifier",
            Self::PatchClassifier { .. } => "patch-classifier",
            Self::Masked { .. } => "masked",
            Self::EncoderClassifier { .. } => "encoder-classifier",
            Self::Text { .. } => "text",
        }
    }

    /// Whether it has something on its encoder that is exported as [`Part::Head`](crate::Part::Head).
    pub fn has_head(&self) -> bool {
        !matches!(self, Self::Recurrent { .. } | Self::Dilated { .. })
    }

    /// Whether it gives windows, or texts, a vector.
    pub fn is_encoder(&self) -> bool {
        !matches!(self, Self::Mlp { .. })
    }

    /// Steps of the shortest window that it tells from another: more than 1 where its encoder shortens windows.
    pub fn fewest_steps(&self) -> usize {
        match self {
            Self::CnnBilstm { config, .. } => config.fewest_steps(),
            Self::Masked { config, .. } => config.encoder.fewest_steps(),
            Self::EncoderClassifier { encoder, .. } => encoder.fewest_steps(),
            _ => 1,
        }
    }

    /// Most steps of a window, of a model that has a position, or weights, for each.
    pub fn most_steps(&self) -> Option<usize> {
        match self {
            Self::Transformer { time, .. }
            | Self::Mlp { time, .. }
            | Self::Masked {
                config: MaskedConfig { encoder: AnyEncoderConfig::Transformer(_), .. },
                time,
                ..
            }
            | Self::EncoderClassifier { encoder: AnyEncoderConfig::Transformer(_), time, .. } => {
                Some(*time)
            }
            _ => None,
        }
    }

    /// Classes that it tells apart, if it is a classifier.
    pub fn classes(&self) -> Option<usize> {
        match self {
            Self::BilstmMae { .. }
            | Self::StackedLstm { .. }
            | Self::PatchTransformer { .. }
            | Self::Dilated { .. }
            | Self::Masked { .. }
            | Self::Recurrent { .. } => None,
            Self::CnnBilstm { classes, .. }
            | Self::Transformer { classes, .. }
            | Self::Mlp { classes, .. }
            | Self::BilstmAttention { classes, .. }
            | Self::RecurrentClassifier { classes, .. }
            | Self::EncoderClassifier { classes, .. }
            | Self::PatchClassifier { classes, .. } => Some(*classes),
            Self::Bert { config } => Some(config.labels),
            Self::Text { config, .. } => Some(config.labels),
        }
    }

    /// Builds the model with fresh weights.
    ///
    /// # Errors
    /// If a setting or size is out of its range.
    pub fn init(&self, device: &Device) -> Result<Model, ModelError> {
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
            Self::Bert { config } => Model::Bert(config.init(stream, device)?),
            Self::StackedLstm { config, channels, statics, outputs } => {
                let model = config.init(stream, *channels, *statics, *outputs, device)?;
                Model::StackedLstm(model)
            }
            Self::PatchTransformer { config, channels } => {
                Model::PatchTransformer(config.init(stream, *channels, device)?)
            }
            Self::BilstmAttention { config, channels, classes } => {
                Model::BilstmAttention(config.init(stream, *channels, *classes, device)?)
            }
            Self::Dilated { config, channels } => {
                Model::Dilated(config.init(stream, *channels, device)?)
            }
            Self::Recurrent { config, channels } => {
                Model::Recurrent(config.init(stream, *channels, device)?)
            }
            Self::RecurrentClassifier { config, encoder, channels, classes } => {
                let encoder = encoder.init(stream, *channels, device)?;
                Model::RecurrentClassifier(config.init(stream, encoder, *classes, device)?)
            }
            Self::PatchClassifier { config, encoder, channels, classes } => {
                let encoder = encoder.init(stream, *channels, device)?;
                Model::PatchClassifier(config.init(stream, encoder, *classes, device)?)
            }
            Self::Masked { config, channels, time } => {
                Model::Masked(config.init(stream, *channels, *time, device)?)
            }
            Self::EncoderClassifier { config, encoder, channels, time, classes } => {
                let encoder = encoder.init(stream, *channels, *time, device)?;
                Model::EncoderClassifier(config.init(stream, encoder, *classes, device)?)
            }
            Self::Text { config, encoder } => {
                Model::Text(config.init(encoder.init(stream, device)?, stream, device)?)
            }
        })
    }

    /// Builds the model with these weights, in evaluation.
    ///
    /// # Errors
    /// If a setting is out of its range, or the weights are not exactly those of the model.
    pub fn build(&self, weights: Vec<Parameter>, device: &Device) -> Result<Model, ExportError> {
        self.check_size(&weights)?;
        let mut model = self.init(device)?;
        each_model!(&mut model, inner => write_parameters(inner, weights))?;
        Ok(model)
    }

    /// Refuses settings of a far larger model before there is one, which may not fit in memory.
    fn check_size(&self, weights: &[Parameter]) -> Result<(), ExportError> {
        let (asked, given) = (self.numbers(), weights.iter().map(|one| one.values.len()).sum());
        match asked > 2.0 * given as f64 + 1e6 {
            true => Err(ExportError::Size { asked, given }),
            false => Ok(()),
        }
    }

    /// How many numbers a model of these settings has; of one with a head on an encoder, at least.
    fn numbers(&self) -> f64 {
        match self {
            Self::BilstmMae { config, channels } => config.parameters(*channels),
            Self::CnnBilstm { config, channels, classes } => config.parameters(*channels, *classes),
            Self::Transformer { config, channels, time, classes } => {
                config.parameters(*channels, *time, *classes)
            }
            Self::Mlp { config, time, channels, classes } => {
                config.parameters([*time, *channels], *classes)
            }
            Self::Bert { config } => config.parameters(),
            Self::StackedLstm { config, channels, statics, outputs } => {
                config.parameters(*channels, *statics, *outputs)
            }
            Self::PatchTransformer { config, channels }
            | Self::PatchClassifier { encoder: config, channels, .. } => {
                config.parameters(*channels)
            }
            Self::BilstmAttention { config, channels, classes } => {
                config.parameters(*channels, *classes)
            }
            Self::Dilated { config, channels } => config.parameters(*channels),
            Self::Recurrent { config, channels }
            | Self::RecurrentClassifier { encoder: config, channels, .. } => {
                config.parameters(*channels)
            }
            Self::Masked { config, channels, time } => config.parameters(*channels, *time),
            Self::EncoderClassifier { encoder, channels, time, .. } => {
                encoder.parameters(*channels, *time)
            }
            Self::Text { encoder, .. } => encoder.parameters(),
        }
    }

    /// Checks that these are the weights of the model.
    pub(crate) fn check(&self, parameters: &[Parameter]) -> Result<(), ExportError> {
        self.check_size(parameters)?;
        // Names and shapes are the same everywhere, and a GPU may be missing or full.
        let model = self.init(&Device::flex())?;
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
            Self::Bert(model) => Self::Bert(model.in_precision(precision)),
            Self::StackedLstm(model) => Self::StackedLstm(model.in_precision(precision)),
            Self::PatchTransformer(model) => Self::PatchTransformer(model.in_precision(precision)),
            Self::BilstmAttention(model) => Self::BilstmAttention(model.in_precision(precision)),
            Self::Dilated(model) => Self::Dilated(model.in_precision(precision)),
            Self::Recurrent(model) => Self::Recurrent(model.in_precision(precision)),
            Self::RecurrentClassifier(model) => {
                let model = model.map_encoder(|encoder| encoder.in_precision(precision));
                Self::RecurrentClassifier(model.in_precision(precision))
            }
            Self::PatchClassifier(model) => {
                let model = model.map_encoder(|encoder| encoder.in_precision(precision));
                Self::PatchClassifier(model.in_precision(precision))
            }
            Self::EncoderClassifier(model) => {
                let model = model.map_encoder(|encoder| encoder.in_precision(precision));
                Self::EncoderClassifier(model.in_precision(precision))
            }
            Self::Masked(model) => Self::Masked(model.in_precision(precision)),
            Self::Text(model) => Self::Text(model.in_precision(precision)),
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
            Self::StackedLstm(model) => Some(model.embed(input, Some(lengths))),
            Self::PatchTransformer(model) => Some(model.embed(input, Some(lengths))),
            Self::BilstmAttention(model) => Some(model.embed(input, Some(lengths))),
            Self::Dilated(model) => Some(model.embed(input, Some(lengths))),
            Self::Recurrent(model) => Some(model.embed(input, Some(lengths))),
            Self::RecurrentClassifier(model) => Some(model.encoder().embed(input, Some(lengths))),
            Self::PatchClassifier(model) => Some(model.encoder().embed(input, Some(lengths))),
            Self::EncoderClassifier(model) => Some(model.encoder().embed(input, Some(lengths))),
            Self::Masked(model) => Some(model.embed(input, Some(lengths))),
            Self::Mlp(_) | Self::Bert(_) | Self::Text(_) => None,
        }
    }

    /// Width of [`embed`](Self::embed)'s vectors.
    pub fn embedding_width(&self) -> Option<usize> {
        match self {
            Self::BilstmMae(model) => Some(model.embedding_width()),
            Self::CnnBilstm(model) => Some(model.embedding_width()),
            Self::Transformer(model) => Some(model.embedding_width()),
            Self::StackedLstm(model) => Some(model.embedding_width()),
            Self::PatchTransformer(model) => Some(model.embedding_width()),
            Self::BilstmAttention(model) => Some(model.embedding_width()),
            Self::Dilated(model) => Some(model.embedding_width()),
            Self::Recurrent(model) => Some(model.embedding_width()),
            Self::RecurrentClassifier(model) => Some(model.encoder().embedding_width()),
            Self::PatchClassifier(model) => Some(model.encoder().embedding_width()),
            Self::EncoderClassifier(model) => Some(model.encoder().embedding_width()),
            Self::Masked(model) => Some(model.embedding_width()),
            Self::Mlp(_) | Self::Bert(_) | Self::Text(_) => None,
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
            Self::BilstmAttention(model) => Some(model.logits(input, Some(lengths), None)),
            Self::RecurrentClassifier(model) => Some(model.logits(input, Some(lengths), None)),
            Self::PatchClassifier(model) => Some(model.logits(input, Some(lengths), None)),
            Self::EncoderClassifier(model) => Some(model.logits(input, Some(lengths), None)),
            Self::BilstmMae(_)
            | Self::Bert(_)
            | Self::Text(_)
            | Self::StackedLstm(_)
            | Self::PatchTransformer(_)
            | Self::Masked(_)
            | Self::Dilated(_)
            | Self::Recurrent(_) => None,
        }
    }

    /// Forecasts of windows, in units of their scale; `None` of a model that forecasts nothing.
    ///
    /// # Shapes
    /// - input: `[batch, time, channel]`, normalised; lengths: `[batch]`
    /// - statics: `[batch, static]`, of a model that has some
    /// - the result: `[batch, output]`
    pub fn forecast(
        &self,
        input: Tensor<3>,
        lengths: &[usize],
        statics: Option<Tensor<2>>,
    ) -> Option<Tensor<2>> {
        match self {
            Self::StackedLstm(model) => Some(model.forecast(input, Some(lengths), statics, None)),
            _ => None,
        }
    }

    /// Scores of the labels and the evidence of texts; `None` of a model of windows.
    ///
    /// # Shapes
    /// - tokens: `[batch, time]`; lengths: `[batch]`
    pub fn scores(&self, tokens: Tensor<2, Int>, lengths: &[usize]) -> Option<TextScores> {
        match self {
            Self::Text(model) => Some(model.forward(tokens, Some(lengths), None)),
            Self::Bert(model) => {
                let labels = model.logits(tokens, Some(lengths), None);
                Some(TextScores { labels, span: None })
            }
            _ => None,
        }
    }

    /// One vector for each text; `None` of a model of windows.
    ///
    /// # Shapes
    /// - tokens: `[batch, time]`; lengths: `[batch]`
    /// - the result: `[batch, width]`
    pub fn embed_texts(&self, tokens: Tensor<2, Int>, lengths: &[usize]) -> Option<Tensor<2>> {
        match self {
            Self::Text(model) => Some(model.embed(tokens, Some(lengths))),
            _ => None,
        }
    }
}

impl From<Mismatch> for ExportError {
    fn from(mismatch: Mismatch) -> Self {
        Self::Model(ModelError::Mismatch(mismatch))
    }
}
