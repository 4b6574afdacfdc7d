//! `firebox export`: the trained model of a run as files for other programs.

use std::path::{Path, PathBuf};

use firebox_export::{
    CARD, PYTORCH, Part, SavedModel, TOKENIZER, Task, WEIGHTS, write_together, write_whole,
};

use crate::apply::replaceable;
use crate::error::{PipelineError, at};
use crate::kept::read_model;

/// What a model is exported as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExportFormat {
    /// One file of weights under PyTorch's names, whose metadata is the card.
    #[default]
    Safetensors,
    /// A graph of standard operators.
    Onnx,
    /// A folder with weights, card, and a Python module that loads them.
    Torch,
}

/// What is exported, and where to.
#[derive(Clone, Debug)]
pub struct ExportRequest {
    /// The run, by its folder or name, or the folder of a model.
    pub run: PathBuf,
    /// As what.
    pub format: ExportFormat,
    /// What of the model, in ONNX; by default the head of a classifier and the encoder of any other
    /// model.
    pub part: Option<Part>,
    /// The file, or the folder for PyTorch; by default named after the run, here.
    pub output: Option<PathBuf>,
    /// Whether what is there is replaced.
    pub force: bool,
}

/// What was exported.
#[derive(Clone, Debug)]
pub struct Exported {
    /// The file or folder.
    pub output: PathBuf,
    /// The card for people, beside or in it.
    pub card: PathBuf,
    /// How it is used, in a few lines.
    pub usage: String,
}

/// Exports the trained model of a run.
///
/// # Errors
///
/// When the run or its model is not there, something is in the way, or nothing can be written.
pub fn export(request: &ExportRequest) -> Result<Exported, PipelineError> {
    let (model, own) = read_model(&request.run)?;
    let extension = match request.format {
        ExportFormat::Safetensors => ".safetensors",
        ExportFormat::Onnx => ".onnx",
        ExportFormat::Torch => "-torch",
    };
    let named = || PathBuf::from(format!("{}{extension}", model.card.run));
    let output = request.output.clone().unwrap_or_else(named);
    match request.format {
        ExportFormat::Torch => torch(&model, &own, &output, request.force),
        ExportFormat::Safetensors => {
            let shown = output.display();
            let usage = format!(
                "load it: model.load_state_dict(safetensors.torch.load_file(\"{shown}\"))\n         \
                 the module's source: firebox export {} --format torch",
                request.run.display()
            );
            refuse_name_of(&output, "onnx", "--format safetensors", "--format onnx")?;
            let written =
                Written { output: &output, is_onnx: false, content: model.safetensors()? };
            file(&model, &own, written, request.force, usage)
        }
        ExportFormat::Onnx => {
            let part = request.part.unwrap_or(match model.card.task {
                Task::Pretraining => Part::Encoder,
                Task::Classification | Task::Forecasting | Task::Labelling => Part::Head,
            });
            let usage = format!(
                "run it: onnxruntime.InferenceSession(\"{}\").run(None, {{...}})\n        \
                 inputs and outputs are in the card",
                output.display()
            );
            refuse_name_of(&output, "safetensors", "--format onnx", "--format safetensors")?;
            let written = Written { output: &output, is_onnx: true, content: model.onnx(part)? };
            file(&model, &own, written, request.force, usage)
        }
    }
}

/// Refuses a name that says another format than the one that is written.
fn refuse_name_of(
    output: &Path,
    other: &str,
    format: &str,
    other_format: &str,
) -> Result<(), PipelineError> {
    let ending = output.extension().unwrap_or_default().to_string_lossy();
    if !ending.eq_ignore_ascii_case(other) {
        return Ok(());
    }
    Err(PipelineError::Setting(format!(
        "{} is not written: the format is {format}, and the name says otherwise\n  take {other_format}, or another name",
        output.display()
    )))
}

/// What is written, and where to.
struct Written<'a> {
    output: &'a Path,
    is_onnx: bool,
    content: Vec<u8>,
}

/// One file with its card beside it, and none of the model's `own`.
fn file(
    model: &SavedModel,
    own: &[PathBuf],
    written: Written<'_>,
    force: bool,
    usage: String,
) -> Result<Exported, PipelineError> {
    let output = replaceable(written.output, force, own)?;
    let name = output.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let card = replaceable(&output.with_file_name(format!("{name}.md")), force, own)?;
    let text = model.card.markdown(&how(&name, model, written.is_onnx));
    let mut files: Vec<(PathBuf, &[u8])> = vec![];
    if let Some(tokenizer) = &model.tokenizer {
        let beside = output.with_file_name(tokenizer_of(&name));
        files.push((replaceable(&beside, force, own)?, tokenizer.as_bytes()));
    }
    // The card before the file: whoever sees that finds its card.
    files.push((card.clone(), text.as_bytes()));
    files.push((output.clone(), written.content.as_slice()));
    write_together(&files)?;
    Ok(Exported { output, card, usage })
}

/// Name of the tokenizer beside a file.
fn tokenizer_of(name: &str) -> String {
    format!("{name}.{TOKENIZER}")
}

/// How a file of a model of texts is used, for its card.
fn how_of_texts(name: &str, longest: usize, is_onnx: bool) -> String {
    let lead = format!(
        "Texts become tokens by `{}`. The probability of a label is the logistic function of its logit; it holds from the \
         threshold below on.",
        tokenizer_of(name)
    );
    if is_onnx {
        return format!(
            "`{name}` is an ONNX graph of standard operators. {lead}\n\n\
             ```python\nimport onnxruntime, tokenizers\nsession = onnxruntime.InferenceSession(\"{name}\")\n\
             tokenizer = tokenizers.Tokenizer.from_file(\"{}\")\n\
             tokenizer.no_padding()\ntokenizer.enable_truncation({longest})\n\
             # tokens: int64 [batch, time]; lengths: int64 [batch], the valid tokens of each text\n\
             outputs = session.run(None, {{\"tokens\": tokens, \"lengths\": lengths}})\n```",
            tokenizer_of(name)
        );
    }
    format!(
        "`{name}` holds the weights under PyTorch's names. {lead}\n\n\
         ```python\nfrom safetensors.torch import load_file\nmodel.load_state_dict(load_file(\"{name}\"))\n```\n\n\
         The folder of `firebox export --format torch` has the class of `model`."
    )
}

/// How a file is used, for its card.
fn how(name: &str, model: &SavedModel, is_onnx: bool) -> String {
    if let Some(texts) = &model.card.texts {
        return how_of_texts(name, texts.longest, is_onnx);
    }
    let classes = match model.card.classes.is_empty() {
        true => "",
        false => " Logits and probabilities are in the order of the classes below.",
    };
    let mut lead =
        "Windows are cut and normalised before they are given to the model, as stated below."
            .to_owned();
    if model.card.forecast.is_some() {
        lead += " Outputs and static features are scaled: `firebox_models.py` of `firebox export --format torch` has \
                 `statics`, which makes the one, and `restore`, which brings the other to the units of the data.";
    }
    if is_onnx {
        return format!(
            "`{name}` is an ONNX graph of standard operators. {lead}{classes}\n\n\
             ```python\nimport onnxruntime\nsession = onnxruntime.InferenceSession(\"{name}\")\n\
             # input: float32 [batch, time, channel]; lengths: int64 [batch], the valid steps of each window\n\
             outputs = session.run(None, {{\"input\": windows, \"lengths\": lengths}})\n```"
        );
    }
    format!(
        "`{name}` holds the weights under PyTorch's names. {lead}{classes}\n\n\
         ```python\nfrom safetensors.torch import load_file\nmodel.load_state_dict(load_file(\"{name}\"))\n```\n\n\
         That module also has the class of `model`."
    )
}

/// How the folder of a model of windows is used in Python.
const HOW_WINDOWS: &str = "`model.safetensors` holds the weights under PyTorch's names, `firebox_models.py` the module that takes them, \
    `model.json` all that is stated below. Windows are cut and normalised before they are given to the model.\n\n\
    ```python\nimport firebox_models\n\nmodel, card = firebox_models.load(\".\")\n\
    windows = [firebox_models.normalise(window, card) for window in raw]  # each [time, channel]\n\
    MADE(*firebox_models.batch(windows))\n```";

fn how_of_windows(is_encoder: bool) -> String {
    let made = if is_encoder { "vectors = model.embed" } else { "logits = model" };
    HOW_WINDOWS.replace("MADE", made)
}

/// The same of a model of texts.
const HOW_TEXTS: &str = "`model.safetensors` holds the weights under PyTorch's names, `firebox_models.py` the module that takes them, \
    `tokenizer.json` how texts become tokens, `model.json` all that is stated below.\n\n\
    ```python\nimport firebox_models, tokenizers, torch\n\nmodel, card = firebox_models.load(\".\")\n\
    tokenizer = tokenizers.Tokenizer.from_file(\"tokenizer.json\")\n\
    tokenizer.no_padding()\ntokenizer.enable_truncation(card[\"texts\"][\"longest\"])\n\
    tokens = torch.tensor([tokenizer.encode(text).ids])\n\
    probabilities = model(tokens, torch.tensor([tokens.shape[1]])).sigmoid()\n```";

/// What a folder for Python is made of, and what Python adds to it.
const OF_TORCH: [&str; 6] = [WEIGHTS, CARD, TOKENIZER, MODULE, README, "__pycache__"];
const MODULE: &str = "firebox_models.py";
const README: &str = "README.md";

/// A folder that Python can load, which is there whole or not at all.
fn torch(
    model: &SavedModel,
    own: &[PathBuf],
    output: &Path,
    force: bool,
) -> Result<Exported, PipelineError> {
    let target = replaceable_folder(output, force, own)?;
    let parent = target.parent().filter(|folder| !folder.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let temporary = || tempfile::Builder::new().prefix(".export-").tempdir_in(parent);
    let made = temporary().map_err(at(parent))?;
    model.write(made.path())?;
    write_whole(&made.path().join(MODULE), PYTORCH.as_bytes())?;
    let how = match model.card.texts.is_some() {
        true => HOW_TEXTS.to_owned(),
        false => how_of_windows(model.card.architecture.is_encoder()),
    };
    write_whole(&made.path().join(README), model.card.markdown(&how).as_bytes())?;
    open_to_all(made.path())?;
    if target.is_dir() {
        // What was there goes only once its successor is in its place.
        let before = temporary().map_err(at(parent))?;
        let aside = before.path().join("before");
        std::fs::rename(&target, &aside).map_err(at(&target))?;
        if let Err(error) = std::fs::rename(made.path(), &target) {
            if std::fs::rename(&aside, &target).is_err() {
                // What cannot go back to its place is not lost.
                return Err(at(&before.keep().join("before"))(error));
            }
            return Err(at(&target)(error));
        }
    } else {
        std::fs::rename(made.path(), &target).map_err(at(&target))?;
    }
    let shown = output.display();
    Ok(Exported {
        output: output.to_path_buf(),
        card: output.join(README),
        usage: format!(
            "try it: python {shown}/{MODULE} {shown}\n        {WEIGHTS} is for load_state_dict"
        ),
    })
}

/// Where a folder may be written: a new path, or with `force` one that holds nothing but an earlier export, through its
/// links; never the folder of one of `sources`.
fn replaceable_folder(
    output: &Path,
    force: bool,
    sources: &[PathBuf],
) -> Result<PathBuf, PipelineError> {
    let refuse = |what: &str| {
        Err(PipelineError::Setting(format!("{} is not written: {what}", output.display())))
    };
    let parent = output.parent().filter(|folder| !folder.as_os_str().is_empty());
    if output.as_os_str().is_empty() || parent.is_some_and(|parent| !parent.is_dir()) {
        return refuse("there is no folder to put it in\n  make it, or name another place");
    }
    // A slash at its end would look through a link.
    let named: PathBuf = output.components().collect();
    let Ok(found) = named.symlink_metadata() else { return Ok(named) };
    if !output.is_dir() {
        return refuse("it is there and no folder\n  name another place");
    }
    let real = output.canonicalize().map_err(at(output))?;
    let is_real = |folder: &Path| folder.canonicalize().is_ok_and(|folder| folder == real);
    if sources.iter().filter_map(|source| source.parent()).any(is_real) {
        return refuse("the model is read from it\n  name another place");
    }
    if !force {
        return refuse("it is there already\n  replace it with --force, or name another place");
    }
    let names = std::fs::read_dir(output).map_err(at(output))?;
    let names: Vec<String> =
        names.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let is_ours = [CARD, MODULE].iter().all(|own| names.iter().any(|name| name == own));
    if !names.is_empty() && !is_ours {
        return refuse(
            "it is a folder of something else, which --force does not remove\n  name another place",
        );
    }
    if let Some(other) = names.iter().find(|name| !OF_TORCH.contains(&name.as_str())) {
        return refuse(&format!(
            "it holds {other}, too, which no export has made and --force does not remove\n  move it, or name another place"
        ));
    }
    if found.permissions().readonly() {
        return refuse(
            "it is there and read-only, which --force does not change\n  make it writable, or name another place",
        );
    }
    // What the user called it, but for links and such names as `.`, which say nothing of what is above.
    Ok(if found.is_symlink() || named.file_name().is_none() { real } else { named })
}

/// Temporary folders are for their owner alone; an exported one is as any other.
#[cfg(unix)]
fn open_to_all(folder: &Path) -> Result<(), PipelineError> {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder, mode).map_err(at(folder))
}

#[cfg(not(unix))]
fn open_to_all(_: &Path) -> Result<(), PipelineError> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_without_vectors_is_not_asked_for_them() {
        let [encoder, other] = [true, false].map(how_of_windows);
        assert!(
            encoder.contains("vectors = model.embed(*firebox_models.batch(windows))"),
            "{encoder}"
        );
        assert!(other.contains("logits = model(*firebox_models.batch(windows))"), "{other}");
    }

    #[test]
    fn a_folder_is_replaced_if_it_is_an_export_and_the_model_is_not_read_from_it() {
        let project = tempfile::tempdir().unwrap();
        let model = project.path().join("model");
        std::fs::create_dir(&model).unwrap();
        for name in [CARD, WEIGHTS, MODULE, README] {
            std::fs::write(model.join(name), "one").unwrap();
        }
        let may = |output: &Path, sources: &[PathBuf]| {
            replaceable_folder(output, true, sources).map_err(|error| error.to_string())
        };
        assert_eq!(may(&model, &[]), Ok(model.clone()));
        assert_eq!(may(&model, &[project.path().join(CARD)]), Ok(model.clone()));
        // By whichever name.
        for output in [model.clone(), model.join("."), project.path().join("model/../model")] {
            let refused = may(&output, &[model.join(CARD)]).unwrap_err();
            assert!(refused.contains("the model is read from it"), "{refused}");
        }
        #[cfg(unix)]
        {
            let link = project.path().join("link");
            std::os::unix::fs::symlink(&model, &link).unwrap();
            // The folder is renamed, which no link with a slash at its end can be.
            let real = model.canonicalize().unwrap();
            for output in [link.clone(), link.join("")] {
                assert_eq!(may(&output, &[]).map(PathBuf::into_os_string), Ok(real.clone().into()));
            }
        }
        std::fs::write(model.join("notes.txt"), "mine").unwrap();
        assert!(may(&model, &[]).unwrap_err().contains("it holds notes.txt, too"));
    }
}
