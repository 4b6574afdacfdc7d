//! Where given weights come from: what is known of the windows that their encoder saw, and whether this pipeline can
//! show it the same and measure it by windows that it did not see.
//!
//! A run's folder says all of that, a file that was exported says what its windows were. Of other weights nothing is
//! known, and nothing is refused.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use firebox_core::{
    Channel, EqualPolicy, Event, Key, LEAST_STRETCH, Normalisation, Normaliser, SeriesSet,
    SharedStretch, Silent, Split, SplitRule, Steps, Window, WindowList, count, quoted,
    shared_stretches, split, walk_forward,
};
use firebox_data::{Checks, DataConfig, DataError, Paths, content_hash_until, fingerprint_until};
use firebox_export::{CARD, ModelCard};
use firebox_remote::is_remote;
use serde_json::Value;

use crate::error::PipelineError;
use crate::feed::local;
use crate::folder::{PIPELINE, begun, is_run};
use crate::kept::MODEL;
use crate::keys::json;
use crate::stages::{Run, Windows, automatic};
use crate::{Kind, PipelineConfig};

/// Most bytes that the header of a safetensors file may have, by its format.
const HEADER: u64 = 100_000_000;

/// Of files that are missing.
const GONE: &str = "the files of its data are not all there";

/// What is known of the training of some weights.
pub(super) struct Origin {
    path: PathBuf,
    settings: Option<PipelineConfig>,
    normaliser: Option<Normaliser>,
    /// The key of the series that it was trained on, which tells the same data read the same way, wherever they lie.
    data_key: Option<Key>,
}

/// What windows are made of, and how they are divided.
#[derive(Clone, Copy)]
struct Divided<'a> {
    data: &'a DataConfig,
    rule: SplitRule,
}

impl Origin {
    /// Of weights in a file, a checkpoint or a run.
    ///
    /// # Errors
    ///
    /// When they lie in a run that does not say any more what it is.
    pub(super) fn of(path: &Path) -> Result<Self, PipelineError> {
        let exported = exported(path);
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        // weights.safetensors in step-1 in checkpoints in seed-1 in fine-tuned in share-1 in parts in the run. Other
        // folders may have a pipeline, too, that is none of the weights' own.
        let run = real.ancestors().take(9).find(|at| is_run(at));
        // The model that a run keeps is written as an exported file is; what else was exported into its folder may be
        // another's.
        let run = run.filter(|run| {
            exported.is_none() || real.parent().is_some_and(|at| at == run.join(MODEL))
        });
        // One that is damaged says nothing of what it was.
        let run = match run {
            Some(at) => begun(at)?.map(|_| at),
            None => None,
        };
        let folders: Vec<&Path> = match run {
            Some(run) => real.ancestors().take_while(|at| at.starts_with(run)).collect(),
            None => vec![],
        };
        let pipeline = run.map(|run| run.join(PIPELINE)).filter(|at| at.is_file());
        let cards = folders.iter().flat_map(|at| [at.join(CARD), at.join(MODEL).join(CARD)]);
        let card = cards.into_iter().find_map(|card| ModelCard::read(&card).ok());
        Ok(Self {
            path: path.to_owned(),
            settings: pipeline.and_then(|file| crate::load(&file, [], &[]).ok()),
            data_key: card.as_ref().map(|card| card.data_key),
            normaliser: exported.or(card.map(|card| card.normaliser)),
        })
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
        if self.settings.is_none() {
            warn(self.unknown(
                "no run with a `pipeline.toml` that can be read is known to have trained it",
            ));
        }
        if let Some(theirs) = &self.settings {
            let clock = windows.ingested.checks.span.is_some();
            let rule =
                theirs.split.unwrap_or_else(|| automatic(theirs, &windows.ingested.set, clock).0);
            let ours = without_urls(&run.config.data, run.config, run.stop)?;
            let fetched = fetched(&theirs.data, run.config, run.stop)?;
            if self.data_key == Some(run.keys.series) {
                self.equal_series(rule, &windows.parts.equal.left_out)?;
            }
            let theirs = Divided { data: fetched.as_deref().unwrap_or(&theirs.data), rule };
            let ours = Divided { data: &ours, rule: windows.rule };
            let by_files = self.test_part(theirs, ours, run.keys.series, run.stop)?;
            self.by_steps(by_files, theirs, run, windows)?.into_iter().for_each(warn);
        }
        Ok(())
    }

    /// What is said where it cannot be found out which windows the encoder saw.
    fn unknown(&self, why: &str) -> String {
        format!(
            "whether the encoder of {} saw windows that are tested on here was not checked: {why}; name the run that trained it, if it is there, with its data",
            self.path.display()
        )
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
                 set data.columns.channels = {} (in files that do not name their channels, such as .npy, that only renames them: reorder them there), or name other weights",
                json(&seen)
            )));
        }
        Ok(Some(format!(
            "the encoder of {path} saw other channels ({of_them}) than this pipeline has ({of_us}): what it learnt of them may mean nothing here"
        )))
    }

    /// Refuses an encoder of the same data that saw the training series which are `left_out` here, because they equal test
    /// series: no pipeline that refuses them has trained it.
    fn equal_series(&self, theirs: SplitRule, left_out: &[usize]) -> Result<(), PipelineError> {
        let left_out_there = matches!(theirs, SplitRule::Given { equal: EqualPolicy::Drop, .. });
        if left_out.is_empty() || left_out_there {
            return Ok(());
        }
        Err(PipelineError::Setting(format!(
            "the encoder of {} was trained on what this pipeline tests on: it saw {} training series that equal test series and are left out here (`split.given.equal`)\n  \
             pre-train it with split.given.equal = \"drop\", too, or leave `finetune.encoder` out",
            self.path.display(),
            left_out.len()
        )))
    }

    /// What is to be said after steps were compared where files say too little; refuses an encoder that saw steps that are
    /// tested on here.
    fn by_steps(
        &self,
        by_files: ByFiles,
        theirs: Divided<'_>,
        run: &Run<'_>,
        windows: &Windows,
    ) -> Result<Option<String>, PipelineError> {
        let (set, tested) = (&windows.ingested.set, windows.parts.test.windows());
        let by_steps = match &by_files {
            ByFiles::Apart => return Ok(None),
            // Of the same data, the rules say it all.
            ByFiles::Otherwise { is_same: true, .. } => self.drawn_again(theirs.rule, set, tested),
            _ => self.compared(theirs.data, (set, tested), &run.config.run.cache, run.stop)?,
        };
        self.decided(by_files, by_steps)
    }

    /// What is to be said after files and steps were compared; refuses an encoder that saw what is tested on here.
    fn decided(
        &self,
        by_files: ByFiles,
        by_steps: BySteps,
    ) -> Result<Option<String>, PipelineError> {
        Ok(match (by_files, by_steps) {
            (_, BySteps::Shared(what)) => return self.refused(&what).map(|()| None),
            (ByFiles::Otherwise { said, .. }, BySteps::Apart) => self.has_folds().then_some(said),
            (ByFiles::May(said) | ByFiles::Otherwise { said, .. }, _) => Some(said),
            (ByFiles::Gone, BySteps::Apart) => Some(format!(
                "{GONE} that the encoder of {} was trained on: its series, which the cache still has, have no {LEAST_STRETCH} steps in common with those that are tested on here",
                self.path.display()
            )),
            (ByFiles::Gone, BySteps::Unknown(_)) => Some(self.unknown(GONE)),
            (ByFiles::NoneShared, BySteps::Unknown(why)) => Some(self.unknown(why)),
            (ByFiles::NoneShared, BySteps::Apart) | (ByFiles::Apart, _) => None,
        })
    }

    /// Whether its run has folds, which are not divided as parts are: what was not found among parts may be in one of them.
    fn has_folds(&self) -> bool {
        self.settings.as_ref().is_some_and(|own| own.pipeline == Kind::Multitimeframe)
    }

    /// Divides the series that both have as the encoder's run did, and looks for what is tested on here among what that
    /// trained and chose by.
    fn drawn_again(&self, rule: SplitRule, set: &Arc<SeriesSet>, tested: &WindowList) -> BySteps {
        let Some(settings) = &self.settings else { return BySteps::Apart };
        let Some(seen) = saw(settings, set, rule) else {
            return BySteps::Unknown("its series cannot be divided as they were");
        };
        let seen = Steps::of_windows(set, seen);
        let found = Steps::of_windows(set, tested).series_in_both(&seen);
        if found.is_empty() {
            return BySteps::Apart;
        }
        let names: Vec<&str> =
            found.into_iter().map(|index| set.series()[index].name.as_str()).collect();
        BySteps::Shared(format!(
            "its run, which divided the same data otherwise, saw steps that are tested on here, of {}",
            quoted(&names, 4)
        ))
    }

    /// Compares the steps that the encoder was trained and chosen by with those that are tested on here.
    fn compared(
        &self,
        data: &DataConfig,
        ours: (&SeriesSet, &WindowList),
        cache: &Path,
        stop: &AtomicBool,
    ) -> Result<BySteps, PipelineError> {
        let Some(settings) = &self.settings else { return Ok(BySteps::Apart) };
        let Some((set, checks)) = self.series_seen(settings, data, cache, stop)? else {
            return Ok(BySteps::Unknown(
                "other files are tested on than it was trained on, and the cache does not have its series any more",
            ));
        };
        let clock = checks.span.is_some();
        let rule = settings.split.unwrap_or_else(|| automatic(settings, &set, clock).0);
        let Some(seen) = saw(settings, &set, rule) else {
            return Ok(BySteps::Unknown(
                "other files are tested on than it was trained on, and its series cannot be divided as they were",
            ));
        };
        let found = compared_steps((&set, seen), ours);
        // What was lost reads as zeros.
        Ok(match set.check_read() {
            Ok(()) => found,
            Err(_) => BySteps::Unknown("its series in the cache are damaged"),
        })
    }

    /// The series that it was trained on: as they are stored, or made again from files that are as they were.
    fn series_seen(
        &self,
        settings: &PipelineConfig,
        data: &DataConfig,
        cache: &Path,
        stop: &AtomicBool,
    ) -> Result<Option<(Arc<SeriesSet>, Checks)>, PipelineError> {
        let stored = self.data_key.and_then(|key| {
            let mut caches = [cache, &settings.run.cache].into_iter();
            caches.find_map(|cache| firebox_data::stored(cache, key))
        });
        if let Some((set, checks)) = stored {
            return Ok(Some((Arc::new(set), checks)));
        }
        let now = unless_stopped(fingerprint_until(stop, data))?;
        if now.is_none() || self.data_key.is_some_and(|key| now != Some(key)) {
            return Ok(None);
        }
        let made = unless_stopped(firebox_data::ingest_until(stop, data, cache, &Silent))?;
        Ok(made.map(|made| (made.set, made.checks)))
    }

    /// Refuses the encoder because of what it saw.
    fn refused(&self, what: &str) -> Result<(), PipelineError> {
        Err(PipelineError::Setting(format!(
            "the encoder of {} was trained on what this pipeline tests on: {what}\n  \
             pre-train it without that part, by the same data and split as here, or leave `finetune.encoder` out",
            self.path.display()
        )))
    }

    /// Refuses an encoder that was trained or chosen by windows that are tested on here, and says where that may be.
    fn test_part(
        &self,
        theirs: Divided<'_>,
        ours: Divided<'_>,
        our_key: Key,
        stop: &AtomicBool,
    ) -> Result<ByFiles, PipelineError> {
        let same = self.data_key == Some(our_key);
        if same && ours.data.test.is_some() {
            // A file for training and for the test at once is refused where files are read.
            return Ok(ByFiles::Apart);
        }
        let common = match same {
            true => Shared::whole(ours.data),
            false => Shared::of(theirs.data, ours.data, stop)?,
        };
        let common = match common {
            Shared::Files(common) => common,
            Shared::Nothing => return Ok(ByFiles::NoneShared),
            Shared::Unknown => return Ok(ByFiles::Gone),
        };
        let (path, first) = (self.path.display(), common.first.display());
        let refuse = |what: String| self.refused(&what).map(|()| ByFiles::Apart);
        if ours.data.test.is_some() {
            return refuse(format!("{first} is among the files of its `data.path`"));
        }
        let now = match same {
            true => self.data_key,
            false => unless_stopped(fingerprint_until(stop, theirs.data))?,
        };
        if self.data_key.is_some() && self.data_key != now {
            return Ok(ByFiles::May(format!(
                "the encoder of {path} was trained on files of this pipeline, such as {first}, and its data have changed since, or how they are read: it may have seen windows that are tested on here, and what is measured may be too good; pre-train it again"
            )));
        }
        let has_folds = self.has_folds();
        match (theirs.rule, ours.rule) {
            (SplitRule::Time { test: theirs, .. }, SplitRule::Time { test: ours, .. })
                if common.is_all && !has_folds =>
            {
                if theirs < ours {
                    return refuse(format!(
                        "it left the last {theirs} of the steps of {first} out (`split.time.test`), and this pipeline the last {ours}"
                    ));
                }
                // Shares are of the steps that each has kept: the same moments only of the same series.
                Ok(if now == Some(our_key) { ByFiles::Apart } else { ByFiles::NoneShared })
            }
            // The test part is drawn before the validation part, from the series as the data have them, which their key
            // says.
            (
                SplitRule::Series { test, seed, .. },
                SplitRule::Series { test: our_test, seed: our_seed, .. },
            ) if now == Some(our_key) && (test, seed) == (our_test, our_seed) && !has_folds => {
                Ok(ByFiles::Apart)
            }
            _ => Ok(ByFiles::Otherwise {
                is_same: now == Some(our_key),
                said: format!(
                    "the encoder of {path} was trained on {} of this pipeline, such as {first}, that were read or divided otherwise: it may have seen windows that are tested on here, and what is measured may be too good",
                    count(common.files, "file")
                ),
            }),
        }
    }
}

/// What files tell of whether an encoder saw windows that are tested on.
enum ByFiles {
    /// It did not.
    Apart,
    /// It was trained on other files, whose series may be the same.
    NoneShared,
    /// It may have, as this says.
    May(String),
    /// That is for its steps to tell, and where they do not, it may have, as this says.
    Otherwise {
        said: String,
        /// Whether the series are the same ones, divided otherwise.
        is_same: bool,
    },
    /// Not all files are there.
    Gone,
}

/// What the steps themselves tell of it.
enum BySteps {
    Apart,
    /// It did, as this says.
    Shared(String),
    /// They cannot be compared, for this reason.
    Unknown(&'static str),
}

/// Steps that an encoder `saw` and that are `tested` on, told apart by their times and the channels of both.
fn compared_steps(
    (theirs, saw): (&SeriesSet, impl IntoIterator<Item = Window>),
    (ours, tested): (&SeriesSet, &WindowList),
) -> BySteps {
    let is_ours = |name: &&str| ours.channels().iter().any(|channel| channel.name == *name);
    let names = theirs.channels().iter().map(|channel| channel.name.as_str());
    let common: Vec<&str> = names.filter(is_ours).collect();
    if common.is_empty() {
        return BySteps::Unknown("other files with other channels are tested on than it saw");
    }
    let saw = Steps::of_windows(theirs, saw).told_by(&common);
    let tested = Steps::of_windows(ours, tested).told_by(&common);
    match shared_stretches(&saw, &tested).first() {
        None => BySteps::Apart,
        Some(SharedStretch { series: [saw, tested], steps, .. }) => BySteps::Shared(format!(
            "{} of its series `{}` are in the test part, in `{}`, with the same times and values of {}",
            count(*steps as u64, "step"),
            theirs.series()[*saw].name,
            ours.series()[*tested].name,
            quoted(&common, 4)
        )),
    }
}

/// A rule as it was followed: what both sides have was trained on until it was refused.
fn as_then(rule: SplitRule) -> SplitRule {
    match rule {
        SplitRule::Given { validation, seed, equal: EqualPolicy::Error } => {
            SplitRule::Given { validation, seed, equal: EqualPolicy::Keep }
        }
        rule => rule,
    }
}

/// Files that an encoder was trained on and a pipeline tests on.
struct Common {
    first: PathBuf,
    files: u64,
    /// Whether neither has another file.
    is_all: bool,
}

/// What of that is known.
enum Shared {
    Nothing,
    Files(Common),
    /// Their files cannot be told.
    Unknown,
}

impl Shared {
    /// All files of data.
    fn whole(data: &DataConfig) -> Self {
        let Some(files) = files(data, &data.path) else { return Self::Unknown };
        let Some(first) = files.first().cloned() else { return Self::Nothing };
        Self::Files(Common { first, files: files.len() as u64, is_all: true })
    }

    /// Those that have the same content, under whatever names.
    fn of(
        theirs: &DataConfig,
        ours: &DataConfig,
        stop: &AtomicBool,
    ) -> Result<Self, PipelineError> {
        let tested = ours.test.as_ref().unwrap_or(&ours.path);
        let (Some(trained), Some(tested)) = (files(theirs, &theirs.path), files(ours, tested))
        else {
            return Ok(Self::Unknown);
        };
        let length = |path: &Path| fs::metadata(path).ok().map(|found| found.len());
        let lengths: HashSet<Option<u64>> = tested.iter().map(|path| length(path)).collect();
        let hash = |path: &PathBuf| unless_stopped(content_hash_until(path, stop));
        let alike = trained.iter().filter(|path| lengths.contains(&length(path)));
        let known = alike.map(hash).collect::<Result<HashSet<_>, _>>()?;
        let mut common = vec![];
        for path in &tested {
            let hash = hash(path)?;
            common.extend((hash.is_some() && known.contains(&hash)).then_some(path));
        }
        let Some(first) = common.first() else { return Ok(Self::Nothing) };
        let is_all = common.len() == trained.len() && trained.len() == tested.len();
        Ok(Self::Files(Common { first: (*first).clone(), files: common.len() as u64, is_all }))
    }
}

/// What was read; none if it cannot be, which is told elsewhere if it matters.
fn unless_stopped<T>(read: Result<T, DataError>) -> Result<Option<T>, PipelineError> {
    match read {
        Err(DataError::Stopped) => Err(PipelineError::Interrupted),
        read => Ok(read.ok()),
    }
}

/// The data of an encoder with copies in place of the URLs that this pipeline has, too, whose other files are fetched
/// already. None if it has others, which nobody asked to fetch.
fn fetched<'a>(
    theirs: &'a DataConfig,
    ours: &'a PipelineConfig,
    stop: &AtomicBool,
) -> Result<Option<Cow<'a, DataConfig>>, PipelineError> {
    let known: HashSet<&PathBuf> = ours.data.paths().collect();
    if theirs.paths().any(|path| is_remote(path) && !known.contains(path)) {
        return Ok(None);
    }
    Ok(Some(without_urls(theirs, ours, stop)?))
}

/// The data with the copies that this pipeline has of what URLs name.
fn without_urls<'a>(
    data: &'a DataConfig,
    ours: &PipelineConfig,
    stop: &AtomicBool,
) -> Result<Cow<'a, DataConfig>, PipelineError> {
    let data = local(data, &ours.run, stop, &Silent);
    data.map_err(|error| PipelineError::from(error).or_interrupted())
}

/// The files of some paths; none if they cannot be told.
fn files(data: &DataConfig, paths: &Paths) -> Option<Vec<PathBuf>> {
    firebox_data::files(&DataConfig { path: paths.clone(), test: None, ..data.clone() }).ok()
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

/// The windows that a run with these settings trained and chose by: those of parts by this rule, or of all its folds. None
/// where the series cannot be divided so.
fn saw(settings: &PipelineConfig, set: &Arc<SeriesSet>, rule: SplitRule) -> Option<Vec<Window>> {
    let windows = settings.window.rule();
    let parts = match settings.pipeline {
        Kind::Multitimeframe => {
            let folds = settings.multitimeframe.clone().unwrap_or_default().folds;
            let folds = walk_forward(set, &windows, &folds, &settings.labels).ok()?;
            folds.into_iter().map(|fold| fold.split).collect()
        }
        _ => vec![split(set, &windows, &as_then(rule), &settings.labels).ok()?],
    };
    let of = |parts: &Split| -> Vec<Window> {
        parts.train.windows().iter().chain(parts.validation.windows()).collect()
    };
    Some(parts.iter().flat_map(of).collect())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::ops::Range;

    use firebox_core::{Role, Series, Stream};

    use super::*;

    fn origin() -> Origin {
        Origin { path: "runs/a".into(), settings: None, normaliser: None, data_key: None }
    }

    /// What is said of an encoder of data under a key, by a pipeline of data under another.
    fn said(
        origin: &Origin,
        theirs: (&DataConfig, SplitRule),
        ours: (&DataConfig, SplitRule),
    ) -> Result<Option<String>, String> {
        let divided = |(data, rule)| Divided { data, rule };
        let key = fingerprint_until(&AtomicBool::new(false), ours.0).unwrap();
        let by_files =
            origin.test_part(divided(theirs), divided(ours), key, &AtomicBool::new(false));
        match by_files.map_err(|error| error.to_string())? {
            ByFiles::May(said) | ByFiles::Otherwise { said, .. } => Ok(Some(said)),
            ByFiles::Gone => Ok(Some("gone".to_owned())),
            ByFiles::Apart | ByFiles::NoneShared => Ok(None),
        }
    }

    /// An encoder that was trained on data as they are now.
    fn trained_on(data: &DataConfig) -> Origin {
        Origin {
            data_key: Some(fingerprint_until(&AtomicBool::new(false), data).unwrap()),
            ..origin()
        }
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
        // Weights that say what their data were, and others.
        let said = |theirs: &DataConfig, rule, ours: &DataConfig, our_rule| {
            let known = said(&trained_on(theirs), (theirs, rule), (ours, our_rule));
            assert_eq!(known, said(&origin(), (theirs, rule), (ours, our_rule)));
            known
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
        // The test part is drawn first.
        let less = SplitRule::Series { validation: 0.05, test: 0.2, seed: 1 };
        assert_eq!(said(&one, less, &one, series(1)), Ok(None));
        // Series are drawn by their places.
        let turned = data(&[&b, &a], None);
        assert_eq!(said(&both, series(1), &both, series(1)), Ok(None));
        assert!(said(&turned, series(1), &both, series(1)).unwrap().is_some());
        assert_eq!(said(&turned, time(0.2), &both, time(0.2)), Ok(None));
        assert!(said(&one, series(1), &one, series(2)).unwrap().is_some());
        let mut labelled = one.clone();
        labelled.columns.label = Some("class".to_owned());
        assert!(said(&one, series(1), &labelled, series(1)).unwrap().is_some());
        let given = SplitRule::Given { validation: 0.1, seed: 1, equal: EqualPolicy::Error };
        let with_test = data(&[&b], Some(&a));
        assert_eq!(said(&with_test, given, &with_test, given), Ok(None));
        let refused = said(&both, time(0.2), &with_test, given).unwrap_err();
        assert!(refused.contains("a.csv is among the files of its `data.path`"), "{refused}");
    }

    #[test]
    fn an_encoder_is_told_by_the_steps_that_it_saw_whatever_file_they_are_in() {
        let bars = |seed: u64, channels: &[&str], steps: Range<usize>| {
            let mut draws = Stream::new(seed, "bars").draws();
            let all: Vec<[f64; 2]> =
                (0..500).map(|_| [draws.uniform_f64(), draws.uniform_f64()]).collect();
            let width = channels.len();
            let rows = all[steps.clone()].iter().flat_map(|row| row.iter().cycle().take(width));
            let values = rows.copied().collect();
            let start = 1_700_000_000_000_000 + steps.start as i64 * 1000;
            let channels = channels.iter().map(|name| Channel::new(*name, Role::Other));
            let series = vec![Series::regular("bars", start, 1000, values, width)];
            SeriesSet::new(channels.collect(), vec![], series).unwrap()
        };
        let window = |start, length| Window { series: 0, start, length, label: None };
        let (theirs, theirs_saw) = (bars(1, &["x", "y"], 0..500), [window(0, 300)]);
        let said = |ours: &SeriesSet, tested: Window| match compared_steps(
            (&theirs, theirs_saw),
            (ours, &WindowList::from_iter([tested])),
        ) {
            BySteps::Shared(what) => what,
            BySteps::Apart => "apart".to_owned(),
            BySteps::Unknown(why) => why.to_owned(),
        };
        // Labels that became a channel, and a part of the bars.
        let labelled = bars(1, &["x", "y", "label"], 100..500);
        let shared = said(&labelled, window(150, 100));
        let expected = "50 steps of its series `bars` are in the test part, in `bars`, with the same times and values of ";
        assert!(shared.starts_with(expected), "{shared}");
        assert_eq!(said(&labelled, window(200, 100)), "apart");
        // Another market of the same name and times.
        assert_eq!(said(&bars(2, &["x", "y"], 0..500), window(0, 500)), "apart");
        assert!(said(&bars(1, &["z"], 0..500), window(0, 500)).contains("other channels"));
    }

    #[test]
    fn of_the_same_series_divided_otherwise_the_draw_of_the_run_says_which_it_saw() {
        let series = (0..20).map(|index| {
            Series::regular(format!("s{index}"), 0, 1000, vec![f64::from(index); 12], 1)
        });
        let channels = vec![Channel::new("x", Role::Other)];
        let set = Arc::new(SeriesSet::new(channels, vec![], series.collect()).unwrap());
        let pipeline = "[window]\nlength = 6\nstride = 2\n[split.series]\ntest = 0.2\nseed = 1\n";
        let settings: PipelineConfig = toml::from_str(pipeline).unwrap();
        let (rule, window) = (settings.split.unwrap(), settings.window.rule());
        let tested = |rule: SplitRule| {
            let parts = split(&set, &window, &rule, &firebox_core::Labels::None).unwrap();
            parts.test.windows().clone()
        };
        let origin = Origin { settings: Some(settings.clone()), ..origin() };
        let decided = |tested: &WindowList| {
            let said = "it may have seen windows".to_owned();
            let by_files = ByFiles::Otherwise { said, is_same: true };
            let decided = origin.decided(by_files, origin.drawn_again(rule, &set, tested));
            decided.map_err(|error| error.to_string())
        };
        let own = tested(rule);
        assert_eq!(decided(&own), Ok(None));
        // A smaller share of the same draw holds nothing that it saw.
        let smaller = tested(SplitRule::Series { validation: 0.1, test: 0.1, seed: 1 });
        assert!(smaller.iter().all(|window| own.iter().any(|one| one == window)));
        assert_eq!(decided(&smaller), Ok(None));
        // Too short and too even to be found by its values.
        let other = tested(SplitRule::Series { validation: 0.1, test: 0.2, seed: 2 });
        let seen = other.iter().find(|window| own.iter().all(|one| one != *window)).unwrap();
        let refused = decided(&other).unwrap_err();
        assert!(refused.contains("saw steps that are tested on here, of `s"), "{refused}");
        let name = format!("`{}`", set.series()[seen.series as usize].name);
        assert!(refused.contains(&name), "{refused}");
        // Of folds it is not known.
        let folds = PipelineConfig { pipeline: Kind::Multitimeframe, ..settings };
        let origin = Origin { settings: Some(folds), ..origin };
        let by_files = ByFiles::Otherwise { said: "may".to_owned(), is_same: true };
        let said = origin.decided(by_files, BySteps::Apart).unwrap();
        assert_eq!(said.as_deref(), Some("may"));
        let by_files = ByFiles::Otherwise { said: "may".to_owned(), is_same: false };
        let said = origin.decided(by_files, BySteps::Unknown("no reason")).unwrap();
        assert_eq!(said.as_deref(), Some("may"));
    }

    #[test]
    fn folds_saw_what_the_split_by_time_of_other_kinds_tests_on() {
        let values: Vec<f64> = (0..1000).map(|step| f64::from(step % 37)).collect();
        let series = vec![Series::regular("bars", 0, 1000, values, 1)];
        let channels = vec![Channel::new("x", Role::Close)];
        let set = Arc::new(SeriesSet::new(channels, vec![], series).unwrap());
        let pipeline = "pipeline = 'multitimeframe'\n[window]\nlength = 6\nstride = 2\n[labels.return]\nhorizon = 1\nthreshold = 0.0\n";
        let settings: PipelineConfig = toml::from_str(pipeline).unwrap();
        let rule = SplitRule::time(0.1, 0.2);
        let last = |settings: &PipelineConfig| {
            let seen = saw(settings, &set, rule).unwrap();
            seen.iter().map(|window| window.steps().end).max().unwrap()
        };
        // Five folds: the last one is tested on the last sixth.
        assert!((820..834).contains(&last(&settings)), "{}", last(&settings));
        let pretrain = PipelineConfig { pipeline: Kind::Pretrain, ..settings };
        assert!((780..801).contains(&last(&pretrain)), "{}", last(&pretrain));
    }

    #[test]
    fn bars_with_labels_added_are_those_that_the_encoder_saw_as_long_as_they_can_be_compared() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let mut draws = Stream::new(1, "bars").draws();
        let walk: Vec<f64> = (0..200).map(|_| draws.uniform_f64()).collect();
        let write = |name: &str, labelled: bool| {
            let (head, label) = if labelled { (",class", ",a") } else { ("", "") };
            let mut text = format!("time,x{head}\n");
            for (step, value) in walk.iter().enumerate() {
                let (hour, minute) = (step / 60, step % 60);
                writeln!(text, "2024-01-02T{hour:02}:{minute:02}:00,{value}{label}").unwrap();
            }
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let path = write("bars.csv", false);
        let pipeline = "[window]\nlength = 8\nstride = 2\n[split.time]\ntest = 0.2\n";
        let mut settings: PipelineConfig = toml::from_str(pipeline).unwrap();
        settings.data = DataConfig::new(&path);
        settings.run.cache = cache.clone();
        let data = settings.data.clone();
        let seen = firebox_data::ingest(&data, &cache, &Silent).unwrap();
        let origin = Origin { settings: Some(settings), data_key: Some(seen.key), ..origin() };
        let mut ours = DataConfig::new(write("labelled.csv", true));
        ours.columns.label = Some("class".to_owned());
        let ours = firebox_data::ingest(&ours, &cache, &Silent).unwrap();
        let said = |start: u32| {
            let tested = Window { series: 0, start, length: 200 - start, label: None };
            let tested = WindowList::from_iter([tested]);
            let never = AtomicBool::new(false);
            match origin.compared(&data, (&ours.set, &tested), &cache, &never).unwrap() {
                BySteps::Shared(what) => what,
                BySteps::Apart => "apart".to_owned(),
                BySteps::Unknown(why) => why.to_owned(),
            }
        };
        // It saw what comes before the last fifth.
        assert_eq!(said(160), "apart");
        assert!(said(100).contains("are in the test part, in `"), "{}", said(100));
        // Its file was labelled in its place: the cache has what it was.
        fs::rename(folder.path().join("labelled.csv"), &path).unwrap();
        assert!(said(100).contains("steps of its series `"), "{}", said(100));
        fs::remove_dir_all(&cache).unwrap();
        assert!(said(100).contains("the cache does not have its series any more"));
        // Without a cache, the file as it was says it again.
        write("bars.csv", false);
        assert!(said(100).contains("steps of its series `"), "{}", said(100));
    }

    #[test]
    fn an_encoder_that_saw_what_is_left_out_here_is_not_measured_by_it() {
        let said = |equal, left_out: &[usize]| {
            let rule = SplitRule::Given { validation: 0.1, seed: 1, equal };
            origin().equal_series(rule, left_out).map_err(|error| error.to_string())
        };
        // Until series that both sides have were refused, they were trained on.
        for equal in [EqualPolicy::Keep, EqualPolicy::Error] {
            let refused = said(equal, &[3, 4]).unwrap_err();
            assert!(
                refused.contains("it saw 2 training series that equal test series"),
                "{refused}"
            );
            assert_eq!(said(equal, &[]), Ok(()));
        }
        assert_eq!(said(EqualPolicy::Drop, &[3, 4]), Ok(()));
    }

    #[test]
    fn an_encoder_did_not_see_what_its_files_were_given_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        fs::write(&path, "one").unwrap();
        let data = DataConfig::new(&path);
        let before = trained_on(&data);
        fs::write(&path, "one and more").unwrap();
        let (theirs, ours) = (SplitRule::time(0.1, 0.1), SplitRule::time(0.1, 0.2));
        let warned = said(&before, (&data, theirs), (&data, ours)).unwrap().unwrap();
        assert!(warned.contains("a.csv, and its data have changed since"), "{warned}");
        let refused = said(&trained_on(&data), (&data, theirs), (&data, ours)).unwrap_err();
        assert!(refused.contains("left the last 0.1 of the steps"), "{refused}");
    }

    #[test]
    fn of_servers_the_files_are_known_that_this_pipeline_has_too() {
        let config = |path: &str| -> PipelineConfig {
            toml::from_str(&format!("[data]\npath = {path}\n")).unwrap()
        };
        let (ours, theirs) = (config("[\"a.csv\"]"), config("[\"https://127.0.0.1:9/a.csv\"]"));
        let never = AtomicBool::new(false);
        assert_eq!(fetched(&theirs.data, &ours, &never).unwrap(), None);
        let local = fetched(&ours.data, &theirs, &never).unwrap();
        assert_eq!(local.as_deref(), Some(&ours.data));
        // What both have is fetched, which no server does here.
        assert!(fetched(&theirs.data, &theirs, &AtomicBool::new(true)).is_err());
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
            let origin = Origin::of(&path).unwrap();
            origin.check_normalisation(&config).map_err(|error| error.to_string())
        };
        assert_eq!(said("window-standard"), Ok(()));
        let refused = said("robust").unwrap_err();
        assert!(refused.contains("normalised by `window-standard`"), "{refused}");
        // What is no file of weights says nothing.
        fs::write(&path, [0xff; 64]).unwrap();
        assert!(exported(&path).is_none() && exported(folder.path()).is_none());
    }
}
