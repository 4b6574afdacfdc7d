//! Part of a model's weights from elsewhere: the encoder of another run, with a report on what fitted.
//!
//! A checkpoint of the same model is read by [`load_weights`](crate::load_weights), which accepts
//! nothing but a whole match.

use std::fs;
use std::path::{Path, PathBuf};

use burn::module::Module;
use firebox_core::quoted;
use firebox_models::{Parameter, layouts, read_parameters, write_parameters};
use serde::{Deserialize, Serialize};

use crate::checkpoint::{AVERAGE, Checkpoint, CheckpointError, checkpoints};
use crate::run::{CHECKPOINT_FOLDER, SUMMARY_FILE, Summary};
use crate::snapshot::parse_weights;

/// Why weights from elsewhere were not put into a model.
#[derive(Debug, thiserror::Error)]
pub enum LoadEncoder {
    /// Nothing is there, or nothing that has weights.
    #[error(
        "`{}` has no weights: {what}\n  name a run's folder, a checkpoint's folder, or a .safetensors file",
        path.display()
    )]
    Nothing {
        /// The path.
        path: PathBuf,
        /// What is there.
        what: &'static str,
    },
    /// The checkpoint or file cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Too little of it fits the model.
    #[error(
        "`{}` does not fit the encoder: {report}; at least {} % must match\n  \
         set the model's sizes to those that the weights were trained with, name other weights, or lower \
         that share, `finetune.least_match` of a pipeline file",
        path.display(),
        (least * 100.0).round()
    )]
    Ratio {
        /// The checkpoint or file.
        path: PathBuf,
        /// What fitted and what did not.
        report: Box<MatchReport>,
        /// Share of the encoder's numbers that must match.
        least: f64,
    },
}

/// What of the weights from elsewhere fitted. Lists are sorted by name; names are those of the model,
/// but for `unexpected`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatchReport {
    /// Parameters that were given the weights of their name.
    pub matched: Vec<String>,
    /// Parameters that the weights lack.
    pub missing: Vec<String>,
    /// Weights that no parameter has the name of, such as those of a decoder.
    pub unexpected: Vec<String>,
    /// Name, shape of the parameter, shape of the weights, both in PyTorch's layout.
    pub shapes: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// What names in the file begin with beside the model's own, such as `module.`.
    pub prefix: String,
    /// Numbers in the matched parameters, and in all that were looked for.
    pub numbers: [u64; 2],
}

impl MatchReport {
    /// Share of the numbers looked for that were found; 0 if none was looked for.
    pub fn ratio(&self) -> f64 {
        let [matched, all] = self.numbers;
        if all == 0 { 0.0 } else { matched as f64 / all as f64 }
    }
}

impl std::fmt::Display for MatchReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = self.matched.len() + self.missing.len() + self.shapes.len();
        let percent = (self.ratio() * 1000.0).round() / 10.0;
        write!(
            f,
            "{} of {all} parameters match ({percent} % of their numbers)",
            self.matched.len()
        )?;
        for (what, names) in [("missing", &self.missing), ("not used", &self.unexpected)] {
            if !names.is_empty() {
                write!(f, "; {what}: {}", quoted(names, 4))?;
            }
        }
        for (name, wanted, found) in self.shapes.iter().take(4) {
            write!(f, "; `{name}` has shape {found:?} where the model has {wanted:?}")?;
        }
        match self.shapes.len().saturating_sub(4) {
            0 => Ok(()),
            rest => write!(f, "; {rest} more of another shape"),
        }
    }
}

/// What files of PyTorch put before names.
const PREFIXES: [&str; 6] = ["", "encoder.", "module.", "_orig_mod.", "model.", "backbone."];

/// Reads the weights of a run's folder (its selected checkpoint, the average in it where that is the model of the run), of a
/// checkpoint's folder (the weights that were trained, whether or not there is an average beside them), or of a safetensors
/// file, in the order of their names, and says where they were. Of a run that has not ended, they are those of its newest
/// checkpoint.
///
/// # Errors
/// If nothing is there, or it is damaged.
pub fn read_weights(path: &Path) -> Result<(Vec<Parameter>, PathBuf), LoadEncoder> {
    let nothing = |what| LoadEncoder::Nothing { path: path.to_owned(), what };
    if path.is_dir() {
        let (folder, averaged) =
            checkpoint_of(path)?.ok_or_else(|| nothing("it is a folder without a checkpoint"))?;
        let checkpoint = Checkpoint::open(&folder)?;
        return Ok(match averaged {
            true => (checkpoint.average()?, folder.join(AVERAGE)),
            false => (checkpoint.parameters()?, folder),
        });
    }
    if !path.exists() {
        return Err(nothing("it is not there"));
    }
    let read = |source| CheckpointError::Read { path: path.to_owned(), source };
    let bytes = fs::read(path).map_err(read)?;
    let failed = |source| CheckpointError::Weights { path: path.to_owned(), source };
    Ok((parse_weights(&bytes).map_err(failed)?, path.to_owned()))
}

/// The checkpoint that a folder is, or that the run in it ended with, or its newest; and whether the average in it is the
/// model.
fn checkpoint_of(folder: &Path) -> Result<Option<(PathBuf, bool)>, CheckpointError> {
    if folder.join("manifest.json").is_file() && folder.join("weights.safetensors").is_file() {
        return Ok(Some((folder.to_owned(), false)));
    }
    let summary = fs::read(folder.join(SUMMARY_FILE)).ok();
    let summary = summary.and_then(|text| serde_json::from_slice::<Summary>(&text).ok());
    if let Some((selected, averaged)) =
        summary.map(|summary| (summary.selected_path(folder), summary.averaged))
        && selected.is_dir()
    {
        return Ok(Some((selected, averaged)));
    }
    let newest = checkpoints(&folder.join(CHECKPOINT_FOLDER))?.into_iter().next();
    Ok(newest.map(|checkpoint| (checkpoint.path().to_owned(), false)))
}

/// Gives the parameters of `model` whose names begin with `part` (`encoder.`) the weights of the same
/// name, with or without that beginning, and reports. All other parameters stay as they are.
///
/// # Errors
/// If fewer than `least` (a share, 0 to 1) of the numbers looked for are found, or none; the model is
/// then unchanged.
pub fn load_matching<M: Module>(
    model: &mut M,
    part: &str,
    weights: &[Parameter],
    least: f64,
    path: &Path,
) -> Result<MatchReport, LoadEncoder> {
    let compared = PREFIXES.map(|prefix| compare(model, part, weights, prefix));
    // Where no shape fits, the names do under one beginning. Of equal ones the first.
    let fit = |report: &MatchReport| (report.numbers[0], report.shapes.len());
    let best = compared.into_iter().reduce(|best, next| match fit(&next.0) > fit(&best.0) {
        true => next,
        false => best,
    });
    let (report, found) = best.unwrap_or_default();
    if report.numbers[0] == 0 || report.ratio() < least {
        let (path, report) = (path.to_owned(), Box::new(report));
        return Err(LoadEncoder::Ratio { path, report, least });
    }
    let mut all = read_parameters(model);
    for own in &mut all {
        if let Some(parameter) = found.iter().find(|found| found.name == own.name) {
            own.values.clone_from(&parameter.values);
        }
    }
    write_parameters(model, all).map_err(|mismatch| CheckpointError::Weights {
        path: path.to_owned(),
        source: mismatch.into(),
    })?;
    Ok(report)
}

/// The report for one beginning of names, and what matched, under the model's names.
fn compare<M: Module>(
    model: &M,
    part: &str,
    weights: &[Parameter],
    prefix: &str,
) -> (MatchReport, Vec<Parameter>) {
    let mut report = MatchReport { prefix: prefix.to_owned(), ..MatchReport::default() };
    let (mut found, mut used) = (vec![], vec![false; weights.len()]);
    for layout in layouts(model) {
        let Some(own) = layout.name.strip_prefix(part) else { continue };
        let numbers: usize = layout.shape.iter().product();
        report.numbers[1] += numbers as u64;
        let name = format!("{prefix}{own}");
        match weights.iter().position(|weight| weight.name == name) {
            None => report.missing.push(layout.name),
            Some(at) if weights[at].shape != layout.torch_shape() => {
                used[at] = true;
                let shape = layout.torch_shape();
                report.shapes.push((layout.name, shape, weights[at].shape.clone()));
            }
            Some(at) => {
                used[at] = true;
                report.numbers[0] += numbers as u64;
                found.push(Parameter { name: layout.name.clone(), ..weights[at].clone() });
                report.matched.push(layout.name);
            }
        }
    }
    let unused = weights.iter().zip(used).filter(|(_, used)| !used);
    report.unexpected = unused.map(|(weight, _)| weight.name.clone()).collect();
    for list in [&mut report.matched, &mut report.missing, &mut report.unexpected] {
        list.sort();
    }
    report.shapes.sort();
    (report, found)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use firebox_core::Stream;
    use firebox_models::RecurrentEncoder;
    use firebox_models::{BiLstmMaeConfig, Classifier, ClassifierConfig, RecurrentConfig};

    use super::*;

    fn weights() -> Vec<Parameter> {
        let config = BiLstmMaeConfig { hidden: 4, decoder_hidden: 3, ..BiLstmMaeConfig::default() };
        read_parameters(&config.init(Stream::new(5, "weights"), 2, &Device::default()).unwrap())
    }

    fn classifier(hidden: usize) -> Classifier<RecurrentEncoder> {
        let device = Device::default();
        let encoder = RecurrentConfig { hidden, ..RecurrentConfig::default() };
        let encoder = encoder.init(Stream::new(1, "encoder"), 2, &device).unwrap();
        ClassifierConfig::default().init(Stream::new(1, "head"), encoder, 3, &device).unwrap()
    }

    #[test]
    fn weights_are_read_in_the_order_of_their_names() {
        use safetensors::tensor::{Dtype, TensorView};

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        let value = 1.0_f32.to_le_bytes();
        let names: Vec<String> = (0..12).map(|number| format!("weight.{number:02}")).collect();
        let one = |name| (name, TensorView::new(Dtype::F32, vec![1], &value).unwrap());
        let file = safetensors::serialize(names.iter().rev().map(one), None).unwrap();
        fs::write(&path, file).unwrap();
        let (weights, _) = read_weights(&path).unwrap();
        assert_eq!(weights.into_iter().map(|one| one.name).collect::<Vec<_>>(), names);
    }

    #[test]
    fn the_encoder_of_a_masked_autoencoder_fits_a_classifier_whole() {
        let mut model = classifier(4);
        let before = read_parameters(&model);
        let report =
            load_matching(&mut model, "encoder.", &weights(), 1.0, Path::new("w")).unwrap();
        assert_eq!((report.ratio(), report.missing.len(), report.shapes.len()), (1.0, 0, 0));
        assert_eq!(report.matched.len(), 16 + 2);
        assert!(report.unexpected.contains(&"mask_token".to_owned()));
        assert!(report.to_string().starts_with("18 of 18 parameters match (100 %"), "{report}");
        for (old, new) in before.iter().zip(read_parameters(&model)) {
            match new.name.strip_prefix("encoder.") {
                Some(name) => {
                    let given = weights().into_iter().find(|w| w.name == name).unwrap();
                    assert_eq!(new.values, given.values);
                }
                None => assert_eq!(*old, new, "the head stays"),
            }
        }
    }

    #[test]
    fn names_may_have_the_beginning_of_another_program() {
        for prefix in ["encoder.", "module.", "backbone."] {
            let renamed = weights().into_iter();
            let renamed = renamed.map(|w| Parameter { name: format!("{prefix}{}", w.name), ..w });
            let renamed: Vec<Parameter> = renamed.collect();
            let mut model = classifier(4);
            let report =
                load_matching(&mut model, "encoder.", &renamed, 0.9, Path::new("w")).unwrap();
            assert_eq!((report.prefix.as_str(), report.ratio()), (prefix, 1.0));
        }
    }

    #[test]
    fn too_little_is_refused_with_all_that_differs_and_nothing_changes() {
        let mut model = classifier(4);
        let before = read_parameters(&model);
        let mut partial = weights();
        partial.retain(|weight| !weight.name.contains("_l1"));
        let error =
            load_matching(&mut model, "encoder.", &partial, 0.9, Path::new("w.safetensors"));
        let message = error.unwrap_err().to_string();
        for part in [
            "`w.safetensors` does not fit the encoder: 10 of 18 parameters match",
            "missing: `encoder.lstm.bias_hh_l1`",
            "and 4 more",
            "not used: `decoder.hidden.bias`",
            "at least 90 % must match",
            "or lower that share, `finetune.least_match`",
        ] {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(read_parameters(&model), before);
        let report = load_matching(&mut model, "encoder.", &partial, 0.2, Path::new("w")).unwrap();
        assert!(report.ratio() > 0.2 && report.ratio() < 0.9);

        let mut wider = classifier(5);
        let error = load_matching(&mut wider, "encoder.", &weights(), 0.5, Path::new("w"));
        let message = error.unwrap_err().to_string();
        assert!(message.contains("0 of 18 parameters match"), "{message}");
        assert!(message.contains("has shape [16] where the model has [20]"), "{message}");
        // Whatever their names begin with, the shapes are what differs.
        let renamed = weights().into_iter();
        let renamed = renamed.map(|w| Parameter { name: format!("encoder.{}", w.name), ..w });
        let renamed: Vec<Parameter> = renamed.collect();
        let error = load_matching(&mut wider, "encoder.", &renamed, 0.5, Path::new("w"));
        let message = error.unwrap_err().to_string();
        assert!(message.contains("has shape [16] where the model has [20]"), "{message}");
        assert!(!message.contains("missing"), "{message}");
        let error = load_matching(&mut wider, "encoder.", &[], 0.0, Path::new("w"));
        assert!(error.is_err(), "nothing at all is never enough");
    }

    #[test]
    fn a_path_without_weights_says_what_would_have_them() {
        let folder = tempfile::tempdir().unwrap();
        let message = |path: &Path| read_weights(path).unwrap_err().to_string();
        assert!(message(folder.path()).contains("a folder without a checkpoint"));
        assert!(message(&folder.path().join("x")).contains("it is not there"));
        let file = folder.path().join("x.safetensors");
        fs::write(&file, b"not weights").unwrap();
        assert!(message(&file).contains("x.safetensors` cannot be loaded"));
    }
}
