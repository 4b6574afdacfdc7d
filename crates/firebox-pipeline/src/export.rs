//! `firebox export`: the trained model of a run as files for other programs.

mod how;
mod texts;

use std::path::{Path, PathBuf};

use firebox_export::{
    CARD, ModelCard, PYTORCH, Part, SavedModel, TOKENIZER, Task, WEIGHTS, write_together,
    write_whole,
};

use crate::apply::{named_as, replaceable};
use crate::error::{PipelineError, at};
use crate::kept::read_model;
use crate::shell::quoted_for_a_shell;

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
    /// What of the model, in ONNX; by default the encoder of a pre-trained model, and the head of any
    /// other.
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
                quoted_for_a_shell(&request.run.to_string_lossy())
            );
            refuse_name_of(&output, "onnx", "--format safetensors", "--format onnx")?;
            named_as(&output, "safetensors", &["safetensors"])?;
            let written = Written { output: &output, graph: None, content: model.safetensors()? };
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
            named_as(&output, "ONNX", &["onnx"])?;
            let written =
                Written { output: &output, graph: Some(part), content: model.onnx(part)? };
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
    /// The part of the model, if it is a graph.
    graph: Option<Part>,
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
    let how = match written.graph {
        Some(part) => how::of_graph(&name, model, part)?,
        None => how::of_weights(&name, &model.card),
    };
    let text = shown(&model.card, written.graph).markdown(&how);
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

/// The card of a file: that of the model, or of its encoder alone.
fn shown(card: &ModelCard, graph: Option<Part>) -> ModelCard {
    match graph {
        Some(Part::Encoder) => card.without_head(),
        Some(Part::Head) | None => card.clone(),
    }
}

/// Name of the tokenizer beside a file.
fn tokenizer_of(name: &str) -> String {
    format!("{name}.{TOKENIZER}")
}

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
    let how = how::of_folder(&model.card);
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
    let word = |path: &Path| quoted_for_a_shell(&path.to_string_lossy());
    let usage = format!(
        "try it: python {} {}\n        {WEIGHTS} is for load_state_dict",
        word(&output.join(MODULE)),
        word(output)
    );
    Ok(Exported { output: output.to_path_buf(), card: output.join(README), usage })
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
