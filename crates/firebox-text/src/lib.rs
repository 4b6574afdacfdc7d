//! Text encoders in Firebox: models and tokenizers from Hugging Face folders, labels and evidence.
//!
//! [`read_encoder`] reads `config.json` and `model.safetensors` into a
//! [`TextEncoder`](firebox_models::TextEncoder), strictly: every weight must be there and fit.
//! [`Tokenizer`] reads `tokenizer.json`, or is made from texts ([`WordPieceTraining`]).
//!
//! Supported families: see [`SUPPORTED`]. Nothing is downloaded, no pickled file is read, and nothing
//! here trains.

mod error;
mod family;
mod folder;
mod tokenizer;
mod weights;

pub use error::TextError;
pub use family::{Family, SUPPORTED, read_config};
pub use folder::{Loaded, read_encoder, read_tokenizer};
pub use tokenizer::{Token, Tokenizer, WordPieceTraining};
pub use weights::MatchReport;
