//! Trained models outside their run: safetensors with a card, PyTorch's names, ONNX.
//!
//! [`SavedModel`] is a model of the zoo with its weights and a [`ModelCard`]: what it was trained
//! for, which channels a window has, how windows are cut and normalised, which classes its logits
//! stand for, where it came from and what it scored. It is stored as `model.safetensors` and
//! `model.json`, which is all that is needed to use it.
//!
//! [`onnx()`] makes a graph of standard operators of any model of the zoo, with free batch and time
//! axes and samples of different lengths. Names and layout of all weights are PyTorch's, in both
//! directions ([`safetensors()`], [`parameters_from_safetensors`]); the modules that take them over
//! are in the file `python/firebox_models.py` of this crate ([`PYTORCH`]).
//!
//! No training data is needed here, and none is read.
//!
//! # Example
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use firebox_core::Stream;
//! use firebox_export::{Architecture, Part, onnx, parameters_from_safetensors, safetensors};
//! use firebox_models::{BiLstmMaeConfig, read_parameters};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let device = Device::default();
//!     let config = BiLstmMaeConfig { hidden: 8, decoder_hidden: 8, ..BiLstmMaeConfig::default() };
//!     let model = config.init(Stream::new(1337, "weights"), 4, &device)?;
//!
//!     // For onnxruntime: windows and lengths in, encodings and embeddings out.
//!     let architecture = Architecture::BilstmMae { config, channels: 4 };
//!     let graph = onnx(&architecture, &read_parameters(&model), Part::Encoder, &[])?;
//!     assert!(graph.windows(4).any(|bytes| bytes == b"LSTM"));
//!
//!     // For PyTorch, and back again.
//!     let file = safetensors(&read_parameters(&model), &[])?;
//!     let weights = parameters_from_safetensors(&file, "model.safetensors".as_ref())?;
//!     let again = architecture.build(weights, &device)?;
//!     let windows = Tensor::<3>::ones([2, 30, 4], &device);
//!     assert_eq!(again.embed(windows, &[30, 12]).map(|vectors| vectors.dims()), Some([2, 32]));
//!     Ok(())
//! }
//! ```

mod architecture;
mod card;
mod error;
mod numbers;
mod onnx;
mod saved;
mod weights;

pub use architecture::{Architecture, Model};
pub use card::{CARD_VERSION, ModelCard, Task, TextInput};
pub use error::ExportError;
pub use onnx::{OPSET, Part, Port, onnx, ports, proto};
pub use saved::{CARD, SavedModel, TOKENIZER, WEIGHTS, write_together, write_whole};
pub use weights::{parameters_from_safetensors, safetensors};

/// A Python module with the models of the zoo in PyTorch, under the same names.
pub const PYTORCH: &str = include_str!("../python/firebox_models.py");
