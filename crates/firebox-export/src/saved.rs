//! A trained model as files in a folder: `model.safetensors` and `model.json`, and the `tokenizer.json`
//! of a model of texts.

use std::fs;
use std::io::Write;
use std::path::Path;

use burn::tensor::Device;
use firebox_models::Parameter;

use crate::card::checksum;
use crate::error::at;
use crate::{
    ExportError, Model, ModelCard, Part, Port, onnx, parameters_from_safetensors, ports,
    safetensors,
};

/// Name of the file of weights.
pub const WEIGHTS: &str = "model.safetensors";
/// Name of the card, which is written last: without it there is no model.
pub const CARD: &str = "model.json";

/// Name of the tokenizer of a model of texts.
pub const TOKENIZER: &str = "tokenizer.json";

/// A trained model with all that is needed to use it.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedModel {
    /// What is known of it.
    pub card: ModelCard,
    /// Its weights, by PyTorch's names.
    pub parameters: Vec<Parameter>,
    /// The content of `tokenizer.json`, of a model of texts.
    pub tokenizer: Option<String>,
}

impl SavedModel {
    /// Reads a model from its folder.
    ///
    /// # Errors
    /// If there is none, or a file is damaged or of another version.
    pub fn read(folder: &Path) -> Result<Self, ExportError> {
        let path = folder.join(CARD);
        let card = match ModelCard::read(&path) {
            Err(ExportError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                return Err(ExportError::NoModel { path: folder.to_path_buf() });
            }
            read => read?,
        };
        let path = folder.join(WEIGHTS);
        let bytes = std::fs::read(&path).map_err(at(&path))?;
        if hash(&bytes) != card.weights {
            return Err(ExportError::Damaged { path });
        }
        let parameters = parameters_from_safetensors(&bytes, &path)?;
        let tokenizer = match &card.texts {
            None => None,
            Some(texts) => {
                let path = folder.join(TOKENIZER);
                let text = std::fs::read_to_string(&path).map_err(at(&path))?;
                if hash(text.as_bytes()) != texts.tokenizer {
                    return Err(ExportError::Damaged { path });
                }
                Some(text)
            }
        };
        Ok(Self { card, parameters, tokenizer })
    }

    /// Writes the model into a folder, which is made if it is not there. Files are whole or not
    /// there, and the card comes last, so that a folder with a card has a whole model.
    ///
    /// # Errors
    /// If the file system refuses.
    pub fn write(&self, folder: &Path) -> Result<(), ExportError> {
        std::fs::create_dir_all(folder).map_err(at(folder))?;
        let weights = self.safetensors()?;
        let mut card = ModelCard { weights: hash(&weights), ..self.card.clone() };
        if let (Some(texts), Some(tokenizer)) = (&mut card.texts, &self.tokenizer) {
            texts.tokenizer = hash(tokenizer.as_bytes());
        }
        // Of what a reader finds, who does not know which numbers were f32.
        card.checksum = String::new();
        let said = serde_json::to_vec(&card).and_then(|text| serde_json::from_slice(&text));
        card.checksum = checksum(&said.map_err(|e| at(folder)(e.into()))?);
        let text = serde_json::to_vec_pretty(&card).map_err(|e| at(folder)(e.into()))?;
        let known = folder.join(CARD);
        match std::fs::remove_file(&known) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(at(&known)(error));
            }
            _ => {}
        }
        write_whole(&folder.join(WEIGHTS), &weights)?;
        if let Some(tokenizer) = &self.tokenizer {
            write_whole(&folder.join(TOKENIZER), tokenizer.as_bytes())?;
        }
        write_whole(&known, &text)
    }

    /// The weights as a safetensors file whose metadata is the card.
    ///
    /// # Errors
    /// If two parameters have one name.
    pub fn safetensors(&self) -> Result<Vec<u8>, ExportError> {
        safetensors(&self.parameters, &self.card.metadata())
    }

    /// The model as an ONNX graph whose metadata is the card; of an encoder alone, what the card says of that.
    ///
    /// # Errors
    /// As [`onnx()`].
    pub fn onnx(&self, part: Part) -> Result<Vec<u8>, ExportError> {
        let metadata = match part {
            Part::Encoder => self.card.without_head().metadata(),
            Part::Head => self.card.metadata(),
        };
        onnx(&self.card.architecture, &self.parameters, part, &metadata)
    }

    /// The inputs and the outputs of that graph.
    ///
    /// # Errors
    /// As [`ports()`].
    pub fn ports(&self, part: Part) -> Result<[Vec<Port>; 2], ExportError> {
        ports(&self.card.architecture, &self.parameters, part)
    }

    /// Builds the model on a device, in evaluation and in the precision of its training.
    ///
    /// # Errors
    /// If the weights are not those of the model.
    pub fn build(&self, device: &Device) -> Result<Model, ExportError> {
        self.model_of(self.parameters.clone(), device)
    }

    /// The same of weights that are not needed otherwise: the model has them afterwards, and they are not in memory
    /// twice.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_once(&mut self, device: &Device) -> Result<Model, ExportError> {
        let parameters = std::mem::take(&mut self.parameters);
        self.model_of(parameters, device)
    }

    fn model_of(&self, parameters: Vec<Parameter>, device: &Device) -> Result<Model, ExportError> {
        let model = self.card.architecture.build(parameters, device)?;
        Ok(model.in_precision(self.card.precision))
    }
}

fn hash(content: &[u8]) -> String {
    blake3::hash(content).to_hex().to_string()
}

/// Writes a file so that it is either whole or not there, whatever was there before.
///
/// # Errors
/// If the file system refuses.
pub fn write_whole(path: &Path, content: &[u8]) -> Result<(), ExportError> {
    write_together(&[(path, content)])
}

/// Writes files in this order, and none of them if one cannot be written whole: what is there would be in the way of
/// the next try.
///
/// # Errors
/// If the file system refuses.
pub fn write_together(files: &[(impl AsRef<Path>, &[u8])]) -> Result<(), ExportError> {
    let mut written = vec![];
    for (path, content) in files {
        let path = path.as_ref();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let mut file = temporary().tempfile_in(folder).map_err(at(path))?;
        file.write_all(content).and_then(|()| file.as_file().sync_all()).map_err(at(path))?;
        written.push((file, path));
    }
    // What is there, but for the last one, which may be large: it is never put back.
    let mut former = vec![];
    for (_, path) in &written[..written.len().saturating_sub(1)] {
        former.push(match fs::read(path) {
            Ok(content) => Some(content),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(at(path)(error)),
        });
    }
    for (place, (file, path)) in written.into_iter().enumerate() {
        if let Err(error) = file.persist(path) {
            for ((path, _), former) in files.iter().zip(&former[..place]) {
                let _ = match former {
                    Some(content) => write_whole(path.as_ref(), content),
                    None => fs::remove_file(path).map_err(at(path.as_ref())),
                };
            }
            return Err(at(path)(error.error));
        }
    }
    Ok(())
}

/// Temporary files that others may read as they may any file, once these are in their place.
fn temporary() -> tempfile::Builder<'static, 'static> {
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder
}
