//! A trained model on new data: `firebox embed` and `firebox predict`.
//!
//! New data is read with the settings that the training data was read with, file by file while the
//! model works on the one before, and cut and normalised as the card says; texts are cut into tokens
//! by the model's own tokenizer. Nothing of it is stored but the result.

mod data;
mod left_out;
mod run;
mod strange;
#[cfg(test)]
pub(crate) mod tests;
mod texts;

use std::path::{Path, PathBuf};

use firebox_core::{Precision, WindowRule};
use firebox_export::{Model, SavedModel};

use crate::bench::check_precision;
use crate::device::ChosenDevice;
use crate::error::PipelineError;

pub(crate) use run::Columns;
pub use run::apply;
pub(crate) use texts::{
    Likeliest, PLACE, TRUE_EVIDENCE, UNIT, clash, evidence, first_odd, probability_of, true_of,
    words_of,
};

/// What is made of each window, or of each text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Its vector: one column of lists, or one column for each number.
    Embedding {
        /// One column for each number.
        wide: bool,
    },
    /// What the model was trained to tell: its class with the probability of each; the values that
    /// follow it, in their own units; or the labels of a text and the place of their evidence.
    Prediction,
}

/// What is applied to what.
#[derive(Clone, Debug)]
pub struct ApplyRequest {
    /// The run, by its folder or name, or the folder of a model.
    pub run: PathBuf,
    /// Files or folders: of series, all files of one format in them are read; of texts, all tables.
    pub inputs: Vec<PathBuf>,
    /// The Parquet file to write.
    pub output: PathBuf,
    /// What is made of each window.
    pub wanted: Wanted,
    /// Whether a file that is there is replaced.
    pub force: bool,
    /// Windows of a batch.
    pub batch: usize,
    /// Steps between the starts of two windows, in place of the model's own.
    pub stride: Option<usize>,
    /// Type of the operands of products, in place of the model's own.
    pub precision: Option<Precision>,
    /// Keys of `[data]` over those of the model, such as `data.checks.gaps=split`.
    pub settings: Vec<String>,
}

impl ApplyRequest {
    /// Where the result is written, which is none of the files that are read.
    fn target(&self, files: &[PathBuf]) -> Result<PathBuf, PipelineError> {
        let output = replaceable(&self.output, self.force, files)?;
        parquet_named(&self.output)?;
        Ok(output)
    }

    /// The model, in the precision that is asked for. It takes the weights that were read.
    fn build(&self, saved: &mut SavedModel, device: &ChosenDevice) -> Result<Model, PipelineError> {
        if let Some(precision) = self.precision {
            check_precision(precision, device)?;
        }
        let model = saved.build_once(&device.device)?;
        Ok(match self.precision {
            Some(precision) => model.in_precision(precision),
            None => model,
        })
    }
}

/// What was made.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The file.
    pub output: PathBuf,
    /// Its rows: windows, or texts.
    pub windows: u64,
    /// Series that they are from; 0 for texts.
    pub series: u64,
    /// Files that were read.
    pub files: usize,
    /// Numbers of a vector, classes, forecasts or labels.
    pub width: usize,
    /// What a row says, in words.
    pub what: String,
    /// Wall-clock time from the first file on.
    pub seconds: f64,
}

/// Refuses a file that is named twice, also by way of its folder or a link.
fn named_once(files: &[PathBuf]) -> Result<(), PipelineError> {
    let mut seen = std::collections::HashMap::new();
    for file in files {
        let Ok(real) = file.canonicalize() else { continue };
        let Some(first) = seen.insert(real, file) else { continue };
        let (file, first) = (file.display().to_string(), first.display().to_string());
        let (what, way_out) = match file == first {
            true => ("is named twice".to_owned(), "name each file once, or its folder alone"),
            false => {
                let way_out = "name one of them alone; of a folder with a link, name the files";
                (format!("and {first} are one file"), way_out)
            }
        };
        return Err(PipelineError::Setting(format!(
            "{file} {what}, and its rows would be written twice\n  {way_out}"
        )));
    }
    Ok(())
}

/// The model's own rule with what the user put in its place.
fn window_rule(own: WindowRule, stride: Option<usize>) -> Result<WindowRule, PipelineError> {
    match stride {
        Some(0) => Err(PipelineError::Setting("the stride is 0; it must be at least 1".to_owned())),
        Some(_) if own.whole => Err(PipelineError::Setting(
            "the model takes one window of each series, which has no stride\n  leave --stride out"
                .to_owned(),
        )),
        stride => Ok(WindowRule { stride: stride.unwrap_or(own.stride), ..own }),
    }
}

/// Refuses a name that says another format than Parquet, in which results are written.
fn parquet_named(output: &Path) -> Result<(), PipelineError> {
    named_as(output, "Parquet", &["parquet"])
}

/// Refuses a name that ends as files of other formats do than of the one that is written, whose endings are `own`.
pub(crate) fn named_as(output: &Path, format: &str, own: &[&str]) -> Result<(), PipelineError> {
    const ALL: [&str; 15] = [
        "parquet",
        "csv",
        "tsv",
        "arrow",
        "feather",
        "ipc",
        "npy",
        "ts",
        "json",
        "jsonl",
        "txt",
        "html",
        "xlsx",
        "safetensors",
        "onnx",
    ];
    let ending = output.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    if !ALL.contains(&ending.as_str()) || own.contains(&ending.as_str()) {
        return Ok(());
    }
    Err(PipelineError::Setting(format!(
        "{} is not written: the file is {format}, and its name says otherwise\n  name it with .{}",
        output.display(),
        own.first().unwrap_or(&"")
    )))
}

/// Where a result may be written: a new path, or with `force` a file that may be written, through its links; never one
/// of `sources`.
pub(crate) fn replaceable(
    output: &Path,
    force: bool,
    sources: &[PathBuf],
) -> Result<PathBuf, PipelineError> {
    let refuse = |what: &str| {
        Err(PipelineError::Setting(format!("{} is not written: {what}", output.display())))
    };
    if output.as_os_str().is_empty() {
        return Err(PipelineError::Setting("the name of the file to write is empty".to_owned()));
    }
    let parent = output.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(parent) = parent
        && !parent.is_dir()
    {
        return refuse("there is no such folder\n  make it, or name another file");
    }
    if output.is_dir() {
        return refuse("it is there and no regular file, but a folder\n  name a file in it");
    }
    if output.to_string_lossy().ends_with(std::path::is_separator) {
        return refuse(
            "it is the name of a folder\n  make it and name a file in it, or leave out what separates folders at its end",
        );
    }
    let Ok(found) = output.symlink_metadata() else { return Ok(output.to_path_buf()) };
    let Ok(target) = output.canonicalize() else {
        return refuse("it is a link that leads nowhere\n  remove it, or name another file");
    };
    if sources.iter().any(|source| source.canonicalize().is_ok_and(|source| source == target)) {
        return refuse("it is a file that is read\n  name another file");
    }
    if !target.is_file() {
        return refuse("it is there and no regular file\n  name another file");
    }
    if !force {
        return refuse("it is there already\n  replace it with --force, or name another file");
    }
    if target.metadata().is_ok_and(|found| found.permissions().readonly()) {
        return refuse(
            "it is there and read-only, which --force does not change\n  make it writable, or name another file",
        );
    }
    // What the user called it, but for links, which stay.
    Ok(if found.is_symlink() { target } else { output.to_path_buf() })
}
