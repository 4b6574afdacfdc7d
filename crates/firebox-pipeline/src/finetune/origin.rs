//! Where given weights come from: what is known of the windows that their encoder saw, and whether this pipeline can
//! show it the same and measure it by windows that it did not see.
//!
//! A run's folder says all of that, a file that was exported says what its windows were. Of other weights nothing is
//! known, and nothing is refused.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use firebox_core::{Channel, Event, Normalisation, Normaliser, SplitRule, count};
use firebox_data::{DataConfig, Paths, content_hash};
use firebox_export::{CARD, ModelCard};
use serde_json::Value;

use crate::PipelineConfig;
use crate::error::PipelineError;
use crate::folder::{PIPELINE, begun};
use crate::kept::MODEL;
use crate::keys::json;
use crate::stages::{Run, Windows};

/// Most bytes that the header of a safetensors file may have, by its format.
const HEADER: u64 = 100_000_000;

/// What is known of the training of some weights.
pub(super) struct Origin {
    path: PathBuf,
    settings: Option<PipelineConfig>,
    normaliser: Option<Normaliser>,
}

impl Origin {
    /// Of weights in a file, a checkpoint or a run.
    pub(super) fn of(path: &Path) -> Self {
        let exported = exported(path);
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        // weights.safetensors in step-1 in checkpoints in seed-1 in fine-tuned in share-1 in parts in the run. Other
        // folders may have a pipeline, too, that is none of the weights' own.
        let run = real.ancestors().take(9).find(|at| begun(at).is_some());
        // The model that a run keeps is written as an exported file is; what else was exported into its folder may be
        // another's.
        let run = run.filter(|run| {
            exported.is_none() || real.parent().is_some_and(|at| at == run.join(MODEL))
        });
        let folders: Vec<&Path> = match run {
            Some(run) => real.ancestors().take_while(|at| at.starts_with(run)).collect(),
            None => vec![],
        };
        let pipeline = run.map(|run| run.join(PIPELINE)).filter(|at| at.is_file());
        let cards = folders.iter().flat_map(|at| [at.join(CARD), at.join(MODEL).join(CARD)]);
        let card = cards
            .into_iter()
            .find_map(|card| serde_json::from_slice::<ModelCard>(&fs::read(card).ok()?).ok());
        Self {
            path: path.to_owned(),
            settings: pipeline.and_then(|file| crate::load(&file, [], &[]).ok()),
            normaliser: exported.or(card.map(|card| card.normaliser)),
        }
    }

    /// Refuses weights of a run that saw its windows in other units.
    pub(super) fn check_normalisation(&self, config: &PipelineConfig) -> Result<(), PipelineError> {
        let of_settings = self.settings.as_ref().map(|theirs| theirs.window.normalise);
        let theirs = self.normaliser.as_ref().map(Normaliser::kind).or(of_settings);
        let ours = config.window.normalise;
        let Some(theirs) = theirs.filter(|theirs| *theirs != ours) else { return Ok(()) };
        let name = |kind: &Normalisation| json(kind).replace('"', "");
        Err(PipelineError::Setting(format!(
            "the encoder of {} was trained on windows normalised by `{}`, and this pipeline has `{}`\n  set window.normalise = \"{}\", or name other weights",
            self.path.display(),
            name(&theirs),
            name(&ours),
            name(&theirs)
        )))
    }

    /// Refuses an encoder that saw the channels in another order, or what is tested on here; warns where that may be.
    pub(super) fn check_windows(
        &self,
        run: &Run<'_>,
        windows: &Windows,
    ) -> Result<(), PipelineError> {
        let warn = |message: String| run.listener.on(&Event::Warning { message });
        let seen = self.normaliser.as_ref().map(Normaliser::channels);
        if let Some(said) = seen.map(|seen| self.channels(seen, windows.normaliser.channels())) {
            said?.into_iter().for_each(warn);
        }
        if let Some(theirs) = &self.settings {
            let (clock, series) =
                (windows.ingested.checks.span.is_some(), windows.ingested.set.series().len());
            let rule = theirs.split.unwrap_or_else(|| {
                SplitRule::automatic(theirs.data.test.is_some(), clock, series).0
            });
            let [theirs, ours] = [&theirs.data, &run.config.data];
            self.test_part(theirs, rule, ours, windows.rule)?.into_iter().for_each(warn);
        }
        Ok(())
    }

    /// What is to be said of channels that are others than the encoder saw.
    fn channels(
        &self,
        seen: &[Channel],
        ours: &[Channel],
    ) -> Result<Option<String>, PipelineError> {
        let names = |channels: &[Channel]| -> Vec<String> {
            channels.iter().map(|channel| channel.name.clone()).collect()
        };
        let (seen, ours) = (names(seen), names(ours));
        if seen == ours {
            return Ok(None);
        }
        let [of_them, of_us] = [&seen, &ours].map(|names| names.join(", "));
        let path = self.path.display();
        let sorted = |names: &[String]| {
            let mut names = names.to_vec();
            names.sort();
            names
        };
        if sorted(&seen) == sorted(&ours) {
            return Err(PipelineError::Setting(format!(
                "the encoder of {path} saw its channels in another order: {of_them}, and this pipeline has {of_us}\n  \
                 set data.columns.channels = {}, or name other weights",
                json(&seen)
            )));
        }
        Ok(Some(format!(
            "the encoder of {path} saw other channels ({of_them}) than this pipeline has ({of_us}): what it learnt of them may mean nothing here"
        )))
    }

    /// Refuses an encoder that was trained or chosen by windows that are tested on here, and says where that may be.
    fn test_part(
        &self,
        theirs: &DataConfig,
        their_rule: SplitRule,
        ours: &DataConfig,
        our_rule: SplitRule,
    ) -> Result<Option<String>, PipelineError> {
        let path = self.path.display();
        let tested = ours.test.as_ref().unwrap_or(&ours.path);
        let (Some(trained), Some(tested_files)) =
            (files(theirs, &theirs.path), files(ours, tested))
        else {
            return Ok(None);
        };
        let common = common(&trained, &tested_files);
        let Some(first) = common.first() else { return Ok(None) };
        let first = first.display();
        let refuse = |what: String| {
            Err(PipelineError::Setting(format!(
                "the encoder of {path} was trained on what this pipeline tests on: {what}\n  \
                 pre-train it without that part, by the same data and split as here, or leave `finetune.encoder` out"
            )))
        };
        if ours.test.is_some() {
            return refuse(format!("{first} is among the files of its `data.path`"));
        }
        let same_files = common.len() == trained.len() && trained.len() == tested_files.len();
        let same_labels = theirs.columns.label == ours.columns.label;
        match (their_rule, our_rule) {
            (SplitRule::Time { test: theirs, .. }, SplitRule::Time { test: ours, .. })
                if same_files =>
            {
                if theirs < ours {
                    return refuse(format!(
                        "it left the last {theirs} of the steps of {first} out (`split.time.test`), and this pipeline the last {ours}"
                    ));
                }
                Ok(None)
            }
            // The draw of series is even over classes, and so another with other labels.
            (theirs, ours) if theirs == ours && same_files && same_labels => Ok(None),
            _ => Ok(Some(format!(
                "the encoder of {path} was trained on {} of this pipeline, such as {first}, by another split: it may have seen windows that are tested on here, and what is measured may be too good",
                count(common.len() as u64, "file")
            ))),
        }
    }
}

/// The files of some paths; none if they cannot be told, such as those on servers.
fn files(data: &DataConfig, paths: &Paths) -> Option<Vec<PathBuf>> {
    firebox_data::files(&DataConfig { path: paths.clone(), test: None, ..data.clone() }).ok()
}

/// Those of `files` whose content one of `others` has. What lies under another name is the same data.
fn common(others: &[PathBuf], files: &[PathBuf]) -> Vec<PathBuf> {
    let length = |path: &PathBuf| fs::metadata(path).ok().map(|found| found.len());
    let lengths: HashSet<Option<u64>> = files.iter().map(length).collect();
    let alike = others.iter().filter(|path| lengths.contains(&length(path)));
    let known: HashSet<_> = alike.filter_map(|path| content_hash(path).ok()).collect();
    let is_known = |path: &&PathBuf| content_hash(path).is_ok_and(|hash| known.contains(&hash));
    files.iter().filter(is_known).cloned().collect()
}

/// The normalisation that the metadata of an exported file of weights tells.
fn exported(path: &Path) -> Option<Normaliser> {
    let mut file = File::open(path).ok().filter(|_| path.is_file())?;
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let length = u64::from_le_bytes(length);
    let mut header = vec![];
    file.take(length.min(HEADER)).read_to_end(&mut header).ok()?;
    let header: Value = serde_json::from_slice(&header).ok()?;
    serde_json::from_str(header["__metadata__"]["firebox.normaliser"].as_str()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> Origin {
        Origin { path: "runs/a".into(), settings: None, normaliser: None }
    }

    #[test]
    fn channels_are_those_that_the_encoder_saw() {
        let channels = |names: &[&str]| -> Vec<Channel> {
            names.iter().map(|name| Channel::new(*name, firebox_core::Role::Other)).collect()
        };
        let said = |ours: &[&str]| origin().channels(&channels(&["x", "y"]), &channels(ours));
        assert_eq!(said(&["x", "y"]).unwrap(), None);
        let swapped = said(&["y", "x"]).unwrap_err().to_string();
        assert!(
            swapped.contains("in another order: x, y, and this pipeline has y, x"),
            "{swapped}"
        );
        assert!(swapped.contains("set data.columns.channels = [\"x\",\"y\"]"), "{swapped}");
        for (ours, shown) in [(&["x"][..], "(x)"), (&["x", "z"], "(x, z)")] {
            let warning = said(ours).unwrap().unwrap();
            assert!(
                warning.contains("other channels (x, y)") && warning.contains(shown),
                "{warning}"
            );
        }
    }

    #[test]
    fn an_encoder_is_not_measured_by_what_it_was_trained_on() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &str| {
            let path = folder.path().join(name);
            fs::write(&path, content).unwrap();
            path
        };
        let (a, b, copy) = (file("a.csv", "one"), file("b.csv", "two"), file("copy.csv", "one"));
        let data = |path: &[&PathBuf], test: Option<&PathBuf>| DataConfig {
            path: Paths(path.iter().copied().cloned().collect()),
            test: test.map(|test| Paths(vec![test.clone()])),
            ..DataConfig::new(&a)
        };
        let time = |test| SplitRule::time(0.1, test);
        let said = |theirs: &DataConfig, rule, ours: &DataConfig, our_rule| {
            origin().test_part(theirs, rule, ours, our_rule).map_err(|error| error.to_string())
        };
        let (one, other, both) = (data(&[&a], None), data(&[&b], None), data(&[&a, &b], None));
        assert_eq!(said(&one, time(0.2), &one, time(0.2)), Ok(None));
        assert_eq!(said(&one, time(0.4), &one, time(0.2)), Ok(None));
        assert_eq!(said(&other, time(0.1), &one, time(0.2)), Ok(None));
        // The same bars under another name.
        let refused = said(&data(&[&copy], None), time(0.05), &one, time(0.2)).unwrap_err();
        assert!(refused.contains("left the last 0.05 of the steps"), "{refused}");
        assert!(refused.contains("this pipeline the last 0.2"), "{refused}");
        let warned = said(&both, time(0.2), &one, time(0.2)).unwrap().unwrap();
        assert!(warned.contains("trained on 1 file of this pipeline"), "{warned}");
        let series = |seed| SplitRule::Series { validation: 0.1, test: 0.2, seed };
        assert_eq!(said(&one, series(1), &one, series(1)), Ok(None));
        assert!(said(&one, series(1), &one, series(2)).unwrap().is_some());
        let mut labelled = one.clone();
        labelled.columns.label = Some("class".to_owned());
        assert!(said(&one, series(1), &labelled, series(1)).unwrap().is_some());
        let given = SplitRule::Given { validation: 0.1, seed: 1 };
        let with_test = data(&[&b], Some(&a));
        assert_eq!(said(&with_test, given, &with_test, given), Ok(None));
        let refused = said(&both, time(0.2), &with_test, given).unwrap_err();
        assert!(refused.contains("a.csv is among the files of its `data.path`"), "{refused}");
    }

    #[test]
    fn exported_weights_say_how_their_windows_were_normalised() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.st");
        // A pipeline that happens to lie beside it is none of its own.
        fs::write(folder.path().join(PIPELINE), "[window]\nnormalise = \"robust\"\n").unwrap();
        let normaliser = serde_json::json!({
            "kind": "window-standard", "channels": [{ "name": "x", "role": "other" }],
            "fitted": [{ "center": 0.0, "scale": 1.0 }]
        });
        let header = serde_json::json!({
            "__metadata__": { "firebox.normaliser": normaliser.to_string() }
        });
        let header = header.to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.into_bytes());
        fs::write(&path, file).unwrap();
        let said = |normalise: &str| {
            let config = format!("[window]\nnormalise = \"{normalise}\"\n");
            let config: PipelineConfig = toml::from_str(&config).unwrap();
            Origin::of(&path).check_normalisation(&config).map_err(|error| error.to_string())
        };
        assert_eq!(said("window-standard"), Ok(()));
        let refused = said("robust").unwrap_err();
        assert!(refused.contains("normalised by `window-standard`"), "{refused}");
        // What is no file of weights says nothing.
        fs::write(&path, [0xff; 64]).unwrap();
        assert!(exported(&path).is_none() && exported(folder.path()).is_none());
    }
}
