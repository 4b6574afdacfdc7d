//! A folder of a Hugging Face model as an encoder and its tokenizer.

use std::path::Path;

use burn::tensor::Device;
use firebox_core::Stream;
use firebox_models::TextEncoder;

use crate::family::read_config;
use crate::overruled::check_tokenizer_config;
use crate::{Family, MatchReport, TextError, Tokenizer, weights};

/// Name of the tokenizer's file.
pub(crate) const TOKENIZER: &str = "tokenizer.json";

/// An encoder that was read from files.
#[derive(Debug)]
pub struct Loaded {
    /// Its family.
    pub family: Family,
    /// The encoder.
    pub encoder: TextEncoder,
    /// Which weights went into it.
    pub report: MatchReport,
}

/// Reads the encoder of a folder: `config.json` with `model.safetensors`, or with
/// `model.safetensors.index.json` and its shards. Heads of pre-training are left out.
///
/// # Errors
/// If a file is missing or damaged, the family is not supported, or a weight is missing, left over
/// or of another shape.
pub fn read_encoder(folder: &Path, device: &Device) -> Result<Loaded, TextError> {
    let (family, config) = read_config(folder)?;
    let mut encoder = config.init(Stream::new(0, "weights"), device)?;
    let report = weights::load(&mut encoder, family, folder)?;
    Ok(Loaded { family, encoder, report })
}

/// Reads the tokenizer of a folder and checks it against the model there.
///
/// # Errors
/// If `tokenizer.json` is missing, does what is not supported, or has tokens without a vector, or as
/// [`check_tokenizer_config`].
pub fn read_tokenizer(folder: &Path) -> Result<Tokenizer, TextError> {
    let (_, config) = read_config(folder)?;
    let path = folder.join(TOKENIZER);
    if !path.is_file() {
        return Err(TextError::NoTokenizer { path: folder.to_owned() });
    }
    let tokenizer = Tokenizer::read(&path)?;
    tokenizer.check(config.vocabulary)?;
    check_tokenizer_config(folder)?;
    Ok(tokenizer)
}
