//! Sequence encoders for Burn: the Firebox model zoo.
//!
//! A model is a configuration that serde reads (`BiLstmMaeConfig`), its `init`, and a Burn module.
//! Most are an [`Encoder`], which turns a padded batch of windows into a vector per step and an
//! embedding per window. [`Classifier`] puts attention and a head on any of them. [`BiLstmAttention`],
//! [`CnnBiLstm`], [`Transformer`] and [`Mlp`] (no encoder: it has no steps) classify by themselves,
//! [`StackedLstm`] forecasts, and [`Bert`] labels texts, given as tokens. [`TextEncoder`] is the encoder
//! of published text models, and [`TextModel`] puts R5's heads on it. Those that learn without labels are also
//! [`Pretrain`]: they hide steps from themselves and score how well these are restored.
//!
//! Everything random (weights, masks, dropout) is drawn from a [`Stream`](firebox_core::Stream)
//! that the caller gives, never from Burn's global generator. Parameters are exchanged with the
//! outside under PyTorch's names and in PyTorch's layout ([`read_parameters`],
//! [`write_parameters`]).
//!
//! There is no loader, no optimizer and no file here.
//!
//! # Example
//!
//! ```
//! use burn::module::Module;
//! use burn::tensor::{Device, Tensor};
//! use firebox_core::Stream;
//! use firebox_models::{BiLstmMaeConfig, Encoder, Pretrain, PretrainBatch};
//!
//! fn main() -> Result<(), firebox_models::ModelError> {
//!     let device = Device::default();
//!     let config = BiLstmMaeConfig { hidden: 8, decoder_hidden: 8, ..BiLstmMaeConfig::default() };
//!     let model = config.init(Stream::new(1337, "weights"), 4, &device)?;
//!
//!     // Three windows of up to 21 steps and four channels.
//!     let inputs = Tensor::<3>::zeros([3, 21, 4], &device);
//!     let batch = PretrainBatch { inputs, lengths: &[21, 14, 5], indices: &[0, 1, 2] };
//!
//!     // A loss with gradients, its masks and dropout drawn from streams of this step.
//!     let model = model.train();
//!     let step = 7;
//!     let masks = Stream::new(1337, "masks").substream(step);
//!     let dropout = Stream::new(1337, "dropout").substream(step);
//!     let gradients = model.pretrain_loss(&batch, masks, Some(dropout)).value.backward();
//!
//!     let embedding = model.valid().embed(batch.inputs.clone(), Some(batch.lengths));
//!     assert_eq!(embedding.dims(), [3, 32]);
//!     drop(gradients);
//!     Ok(())
//! }
//! ```

mod bert;
mod bilstm_attention;
mod bilstm_mae;
mod classifier;
mod cnn_bilstm;
mod dilated;
mod encoder;
mod encoder_layer;
mod error;
mod mask;
mod masked;
mod mlp;
mod parameters;
mod patch_transformer;
mod pretrain;
mod recurrent;
mod size;
mod stacked_lstm;
mod text;
mod transformer;

pub use firebox_kernels::KeptWeights;

pub use bert::{Bert, BertConfig};
pub use bilstm_attention::{BiLstmAttention, BiLstmAttentionConfig};
pub use bilstm_mae::{BiLstmMae, BiLstmMaeConfig};
pub use classifier::{Classifier, ClassifierConfig, Classify, StepPooling};
pub use cnn_bilstm::{CnnBiLstm, CnnBiLstmConfig};
pub use dilated::{DilatedConfig, DilatedEncoder, hierarchical_contrast};
pub use encoder::{Encoder, pool_mean_max, valid_steps};
pub use encoder_layer::{Activation, EncoderLayer, EncoderLayerConfig};
pub use error::{Mismatch, ModelError};
pub use mask::{MaskRule, StepMask};
pub use masked::{AnyEncoder, AnyEncoderConfig, Masked, MaskedConfig};
pub use mlp::{Mlp, MlpConfig};
pub use parameters::{
    Layout, MapParameter, Parameter, Path, compare_parameters, layouts, map_parameters,
    read_parameters, write_parameters,
};
pub use patch_transformer::{PatchTransformer, PatchTransformerConfig};
pub use pretrain::{Loss, Pretrain, PretrainBatch};
pub use recurrent::{Cell, RecurrentConfig, RecurrentEncoder};
pub use stacked_lstm::{StackedLstm, StackedLstmConfig};
pub use text::{
    Disentangled, Pooling, TextAttention, TextEncoder, TextEncoderConfig, TextHeadsConfig,
    TextLoss, TextModel, TextScores, TextTargets, Windowed,
};
pub use transformer::{Positions, Transformer, TransformerConfig};
