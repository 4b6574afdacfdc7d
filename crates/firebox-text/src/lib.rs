//! Text encoders in Firebox: models and tokenizers from Hugging Face folders, labels and evidence.
//!
//! [`read_encoder`] reads `config.json` and `model.safetensors` into a
//! [`TextEncoder`](firebox_models::TextEncoder), strictly: every weight must be there and fit.
//! [`Tokenizer`] reads `tokenizer.json`, which [`check_tokenizer_config`] holds against what `transformers`
//! goes by, or is made from texts ([`WordPieceTraining`]); [`tokenise`] finds the evidence of a text among its tokens. [`split_texts`] divides texts without a leak,
//! [`label_scores`] and [`span_score`] measure answers, and [`WordWeights`] gives a baseline its rows.
//! [`TextSampleConfig`] makes texts to try things on.
//!
//! Supported families: see [`SUPPORTED`]. Nothing is downloaded, no pickled file is read, and nothing
//! here trains.
//!
//! # Example
//!
//! ```
//! use firebox_text::{TextSampleConfig, WordPieceTraining, tokenise};
//!
//! fn main() -> Result<(), firebox_text::TextError> {
//!     let letters = TextSampleConfig { texts: 50, ..TextSampleConfig::default() }.make()?;
//!     let texts = letters.texts.iter().map(String::as_str);
//!     let tokenizer = WordPieceTraining { vocabulary: 300, ..Default::default() }.train(texts)?;
//!
//!     let text = tokenise(&tokenizer, &letters.texts[0], letters.spans[0], 128)?;
//!     assert_eq!(text.tokens.first().copied(), tokenizer.id("[CLS]"));
//!     Ok(())
//! }
//! ```

mod config;
mod error;
mod family;
mod folder;
mod overruled;
mod prepare;
mod sample;
mod scores;
mod split;
mod tokenizer;
mod weights;
mod words;

pub use config::{
    BertFromScratch, EncoderSource, TextHeads, TextLossConfig, TextSplit, check_settings,
};
pub use error::TextError;
pub use family::{Family, SUPPORTED, read_config};
pub use folder::{Loaded, read_encoder, read_tokenizer};
pub use overruled::check_tokenizer_config;
pub use prepare::{TokenisedText, tokenise, unknown_tokens};
pub use sample::TextSampleConfig;
pub use scores::{
    LabelScore, LabelScores, SpanScores, best_span, choose_thresholds, label_scores,
    span_probability, span_score, span_scores,
};
pub use split::{TextParts, as_compared, split_texts};
pub use tokenizer::{Token, Tokenizer, WordPieceTraining};
pub use weights::MatchReport;
pub use words::WordWeights;
