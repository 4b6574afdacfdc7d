//! From files to the windows of each part: the stages `ingest` and `windows`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use firebox_cache::{Hold, REMOTE, Store};
use firebox_core::{
    Event, Key, Labels, Normaliser, SeriesSet, Split, SplitError, SplitRule, TrainWindows, count,
    outliers, quoted, split, telling_channels, unchanging_channels,
};
use firebox_data::{Checks, DataConfig, Ingested};

use super::Run;
use super::derived::{one_class_each, rule_for};
use super::outliers::TEST_PART;
use crate::cut::Cut;
use crate::error::PipelineError;
use crate::feed::local;
use crate::fewest;
use crate::filled::in_steps;
use crate::moments::told_of_moments;

/// Validation windows of which fewer tell no epoch from another. A choice.
const FEW_WINDOWS: usize = 5;

/// The data, ready to be read in windows.
pub(crate) struct Windows {
    pub(crate) ingested: Ingested,
    pub(crate) parts: Split,
    pub(crate) normaliser: Normaliser,
    /// The split, and why it is this one.
    pub(crate) rule: SplitRule,
    pub(crate) chosen: &'static str,
    /// Keeps the series in the cache: a run that prunes must leave what this one, killed, would
    /// start again from.
    #[expect(dead_code, reason = "it is held and not read")]
    pub(crate) hold: Hold,
}

/// Refuses data that are not those which a run is named after: their files were changed since.
pub(crate) fn same_data(wanted: Key, found: Key) -> Result<(), PipelineError> {
    if wanted == found { Ok(()) } else { Err(PipelineError::OtherData) }
}

/// Keeps copies of remote files from being pruned while they are read.
fn hold_copies(data: &DataConfig, cache: &Path) -> Result<Vec<Hold>, PipelineError> {
    let bucket = cache.join(REMOTE);
    let key = |path: &PathBuf| {
        let folder = path.parent().filter(|folder| folder.parent() == Some(&bucket))?;
        folder.file_name()?.to_str()?.parse::<Key>().ok()
    };
    let store = Store::open(cache)?;
    let held = data.paths().filter_map(key).map(|key| store.hold(REMOTE, key));
    Ok(held.collect::<Result<_, _>>()?)
}

impl Run<'_> {
    /// Files → series → parts of windows.
    pub(crate) fn windows(&self, remade: &mut usize) -> Result<Arc<Windows>, PipelineError> {
        let make = || self.make_windows(remade);
        let (windows, there) = self.shared.get("windows", self.keys.windows, make)?;
        if there {
            self.shared_stage("ingest", Some(self.keys.series));
        }
        // Trials of one worker share windows, and not the encoder.
        fewest::check_windows(self.config, &windows.parts)?;
        Ok(windows)
    }

    /// Files → series, which stay in the cache as long as they are held.
    pub(crate) fn ingest(&self, remade: &mut usize) -> Result<(Ingested, Hold), PipelineError> {
        let config = self.config;
        let series = self.keys.series;
        // From before they are there: whoever prunes meanwhile must leave what was just made.
        let hold = Store::open(&config.run.cache)?.hold(firebox_cache::SERIES, series)?;
        let ingested = self.stage("ingest", Some(series), remade, || {
            let data = local(&config.data, &config.run, self.stop, self.listener)?;
            let cache = &config.run.cache;
            let _copies = hold_copies(&data, cache)?;
            let ingested = firebox_data::ingest_until(self.stop, &data, cache, self.listener)?;
            same_data(self.keys.series, ingested.key)?;
            let detail = format!(
                "{} of {} in {} series, {} of defect",
                count(ingested.set.steps() as u64, "step"),
                count(ingested.set.channels().len() as u64, "channel"),
                ingested.set.series().len(),
                count(ingested.checks.findings.len() as u64, "kind")
            );
            let reused = ingested.reused;
            Ok((ingested, reused, detail))
        })?;
        Ok((ingested, hold))
    }

    fn make_windows(&self, remade: &mut usize) -> Result<Windows, PipelineError> {
        let config = self.config;
        let (ingested, hold) = self.ingest(remade)?;
        // Windows are views: making them is never work that could be reused.
        self.stage("windows", None, &mut 0, || {
            let (rule, chosen) = rule_for(config, &ingested)?;
            if config.window.length < 3 {
                self.listener.on(&Event::Warning {
                    message: format!(
                        "`window.length` is {}: so short a window leaves nothing beside a masked step to reconstruct it from; 16 steps and more are usual",
                        config.window.length
                    ),
                });
            }
            let parts = match split(&ingested.set, &config.window.rule(), &rule, &config.labels) {
                Err(error @ SplitError::Empty { .. }) => {
                    self.refuse_measured(&ingested, &rule)?;
                    return Err(error.into());
                }
                made => made?,
            };
            self.check_labels(&ingested, &parts)?;
            if parts.test.is_empty() {
                self.listener.on(&Event::Warning {
                    message: format!(
                        "the test part has no window (`split.{}.test` is 0): nothing is measured on one",
                        rule.name()
                    ),
                });
            }
            self.warn_of_cut(&ingested.set, &config.labels);
            if let SplitRule::Time { .. } = rule
                && let Some(series) = one_class_each(&config.labels, &ingested.set)
            {
                let message = format!(
                    "{series} series have one class each throughout, or nearly so, and the split by time trains on the begin of each: a model that tells series apart scores, whatever it learnt of classes\n  draw whole series, by [split.series] (--set split.series.test=0.2)"
                );
                self.listener.on(&Event::Warning { message });
            }
            self.warn_of_equal(&parts);
            self.warn_of_filled(&ingested.checks, config.labels.horizon());
            self.warn_of_known(&parts, ingested.checks.span.is_some());
            self.warn_of_unused([&parts], config.labels.horizon());
            self.warn_of_few(&parts);
            let normaliser = Normaliser::fit(config.window.normalise, &parts.train)?;
            self.warn_of_unchanging("the training part", &unchanging_channels(&parts.train));
            self.warn_of_unscaled(&normaliser, &parts.train);
            let (found, timed) = (outliers(&parts.train), ingested.checks.span.is_some());
            self.warn_of_outliers("the training part", &ingested.set, &found, timed);
            let found = outliers(&parts.test);
            self.warn_of_outliers(TEST_PART, &ingested.set, &found, timed);
            self.warn_of_telling(&telling_channels(&parts.train, &config.labels));
            let detail = format!(
                "{} training, {} validation, {} test windows by {}; {} across a boundary left out",
                parts.train.len(),
                parts.validation.len(),
                parts.test.len(),
                rule.name(),
                parts.left_out
            );
            let windows = Windows { ingested, parts, normaliser, rule, chosen, hold };
            Ok((windows, false, detail))
        })
    }

    /// Warns of channels that `robust` does not scale; those that never change are told of by themselves.
    pub(crate) fn warn_of_unscaled(&self, normaliser: &Normaliser, train: &TrainWindows) {
        let mut names = normaliser.without_range();
        if !names.is_empty() {
            let unchanging = unchanging_channels(train);
            names.retain(|name| unchanging.iter().all(|own| own.channel != *name));
        }
        if names.is_empty() {
            return;
        }
        self.listener.on(&Event::Warning {
            message: format!(
                "the interquartile range of {} is 0 in the training part, because half of the values or more are alike: `robust` leaves such channels as large as they are, and large ones \
                 decide the loss\n  \
                 set window.normalise = \"standard\", or leave them out",
                quoted(&names, NAMED)
            ),
        });
    }

    /// Warns of many steps that nobody measured. `horizon` is the number of steps after a window that its label or targets
    /// look at.
    pub(crate) fn warn_of_filled(&self, checks: &Checks, horizon: usize) {
        if let Some(message) = in_steps(checks, self.config.window.length + horizon) {
            self.listener.on(&Event::Warning { message });
        }
    }

    /// Warns of a test part that lies at the times of the training part, or may, where what is told comes after a window.
    pub(crate) fn warn_of_known(&self, parts: &Split, clock: bool) {
        if let Some(message) = told_of_moments(self.config, parts, clock) {
            self.listener.on(&Event::Warning { message });
        }
    }

    /// Warns of a validation part by which no epoch can be told from another.
    pub(crate) fn warn_of_few(&self, parts: &Split) {
        let windows = parts.validation.len();
        if (1..FEW_WINDOWS).contains(&windows) {
            let message = format!(
                "the validation part has no more than {}: which epoch is kept, and when training ends, is chance; give it a larger share, or more data",
                count(windows as u64, "window")
            );
            self.listener.on(&Event::Warning { message });
        }
    }

    /// Warns of series that are longer than their window with the steps after it that its label or targets look at.
    pub(crate) fn warn_of_cut(&self, set: &SeriesSet, labels: &Labels) {
        let latest = matches!(labels, Labels::Ahead { .. });
        let mut cut = Cut::new(self.config.window.rule(), labels.horizon()).latest(latest);
        cut.look(set);
        if let Some(message) = cut.said() {
            let message =
                format!("{message}\n  make `window.length` larger to learn from all of it");
            self.listener.on(&Event::Warning { message });
        }
    }

    /// Warns of series that equal another one.
    pub(crate) fn warn_of_equal(&self, parts: &Split) {
        for message in parts.equal.warnings() {
            self.listener.on(&Event::Warning { message });
        }
    }

    /// Warns of series that no part of a split has a window of: they would be gone without a word. `horizon` is the number of
    /// steps after a window that its label or targets look at.
    pub(crate) fn warn_of_unused<'a>(
        &self,
        splits: impl IntoIterator<Item = &'a Split>,
        horizon: usize,
    ) {
        let splits: Vec<&Split> = splits.into_iter().collect();
        if let [split] = splits[..]
            && let Some(message) = untested(split)
        {
            self.listener.on(&Event::Warning { message });
        }
        let parts = splits.iter().flat_map(|split| -> [&firebox_core::Windows; 3] {
            [&split.train, &split.validation, &split.test]
        });
        let mut parts = parts.peekable();
        let Some(series) = parts.peek().map(|part| part.set().series()) else { return };
        let mut used = vec![false; series.len()];
        // Those that are left out on purpose are told by themselves.
        let left_out = splits.iter().flat_map(|split| &split.equal.left_out);
        left_out.for_each(|index| used[*index] = true);
        for window in parts.flat_map(|part| part.windows()) {
            used[window.series as usize] = true;
        }
        let unused = series.iter().zip(&used).filter(|(_, used)| !**used);
        let unused: Vec<&str> = unused.map(|(series, _)| series.name.as_str()).collect();
        if unused.is_empty() {
            return;
        }
        self.listener.on(&Event::Warning {
            message: format!(
                "{} of {} series have no window and are not used ({}): a window takes {} steps without a gap on one side of each boundary; make windows shorter, fill gaps (`data.checks.gaps`) where rows are missing, correct `data.interval` if it is shorter than the steps between rows, or leave these series out",
                unused.len(),
                series.len(),
                quoted(&unused, NAMED),
                self.config.window.length + horizon
            ),
        });
    }
}

/// Series that are named where there may be many.
const NAMED: usize = 5;

/// What is said of series that are trained on and not tested, where others are both: by time, those that end before the
/// test part begins, or soon after. Scores say nothing of them.
fn untested(split: &Split) -> Option<String> {
    let series = split.train.set().series();
    let of = |part: &firebox_core::Windows| {
        let mut has = vec![false; series.len()];
        part.windows().iter().for_each(|window| has[window.series as usize] = true);
        has
    };
    let [train, test] = [of(&split.train), of(&split.test)];
    let both = train.iter().zip(&test).any(|(train, test)| *train && *test);
    let names = series.iter().zip(train.iter().zip(&test));
    let names = names.filter(|(_, (train, test))| **train && !**test);
    let names: Vec<&str> = names.map(|(series, _)| series.name.as_str()).collect();
    (both && !names.is_empty()).then(|| {
        format!(
            "{} of {} series are trained on and have no test window ({}): they end before the test part, or too soon in it, and the scores say nothing of them",
            names.len(),
            series.len(),
            quoted(&names, NAMED)
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use firebox_core::{Channel, Labels, Role, Series, SeriesSet, SplitRule, WindowRule, split};

    use super::*;

    #[test]
    fn copies_of_remote_files_are_held_and_other_files_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let bucket = cache.join(REMOTE);
        let keys = [1, 2].map(|version| Key::builder("copy", version).finish());
        let [first, second] = keys.map(|key| {
            let own = bucket.join(key.to_string());
            fs::create_dir_all(&own).unwrap();
            fs::write(own.join("bars.csv"), "close\n1\n").unwrap();
            let manifest = r#"{"url":"https://host/bars.csv","blake3":""}"#;
            fs::write(own.join("manifest.json"), manifest).unwrap();
            own.join("bars.csv")
        });
        let name = keys[0].to_string();
        let others = [
            PathBuf::from("bars.csv"),
            folder.path().join("bars.csv"),
            bucket.join("notes").join("bars.csv"),
            bucket.join(format!("{name}0")).join("bars.csv"),
            bucket.join(&name),
            bucket.join(&name).join("days").join("a.csv"),
            cache.join("series-v0").join(&name).join("bars.csv"),
            folder.path().join("elsewhere").join(REMOTE).join(&name).join("bars.csv"),
        ];
        let mut data = DataConfig::new(&others[0]);
        data.path = firebox_data::Paths(others.to_vec());
        assert_eq!(hold_copies(&data, &cache).unwrap().len(), 0);
        data.path.0.push(first.clone());
        data.test = Some(firebox_data::Paths(vec![second.clone()]));
        let held = hold_copies(&data, &cache).unwrap();
        assert_eq!(held.len(), 2, "that of the test set, too");
        let store = Store::open(&cache).unwrap();
        let pruned = store.prune(0).unwrap();
        assert_eq!((pruned.removed.len(), pruned.kept_in_use.len()), (0, 2));
        drop(held);
        assert_eq!(store.prune(0).unwrap().removed.len(), 2);
        assert!(!first.exists() && !second.exists());
    }

    #[test]
    fn series_that_end_before_the_test_part_are_named() {
        let parts = |steps: &[usize]| {
            let series = steps.iter().zip(["long", "short", "brief"]).map(|(steps, name)| {
                let values = (0..*steps).map(|step| step as f64).collect();
                Series::regular(name, 0, 60_000_000, values, 1)
            });
            let channels = vec![Channel::new("x", Role::Other)];
            let set = Arc::new(SeriesSet::new(channels, vec![], series.collect()).unwrap());
            let rule = WindowRule { length: 8, stride: 4, whole: false };
            split(&set, &rule, &SplitRule::time(0.1, 0.2), &Labels::None).unwrap()
        };
        assert_eq!(untested(&parts(&[200])), None);
        assert_eq!(untested(&parts(&[200, 200])), None);
        let said = untested(&parts(&[200, 60, 40])).unwrap();
        assert!(
            said.starts_with(
                "2 of 3 series are trained on and have no test window (`short`, `brief`)"
            ),
            "{said}"
        );
    }
}
