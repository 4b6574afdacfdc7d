//! The sets of a folder, and one set ready to be trained on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use firebox_core::{
    EqualPolicy, EqualSeries, Event, HeldOutWindows, Key, Labels, Listener, Normalisation,
    Normaliser, SplitError, SplitRule, TrainWindows, WindowRule, Windows, split,
};
use firebox_data::{Checks, DataConfig};
use firebox_eval::ArchiveDefect;
use firebox_loader::NormalisedWindows;

use super::UcrConfig;
use crate::cut::Cut;
use crate::error::{PipelineError, at};

/// How the name of a training file ends.
const TRAIN: &str = "_TRAIN.ts";
const TEST: &str = "_TEST.ts";

/// The two files of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) name: String,
    pub(super) train: PathBuf,
    pub(super) test: PathBuf,
}

/// What a folder has of an archive.
#[derive(Debug)]
pub(super) struct Sets {
    pub(super) pairs: Vec<Pair>,
    /// Sets of which there is one file, and what is missing.
    pub(super) alone: Vec<(String, String)>,
}

/// Every pair of files in a folder and in the folders right below it, by name: archives come as one
/// folder for all sets, or one for each. Sets of one name have that of their folder before it.
pub(super) fn pairs(folder: &Path) -> Result<Sets, PipelineError> {
    let list = |folder: &Path| -> Result<Vec<PathBuf>, PipelineError> {
        let entries = std::fs::read_dir(folder).map_err(at(folder))?;
        let mut paths = vec![];
        for entry in entries {
            paths.push(entry.map_err(at(folder))?.path());
        }
        paths.sort();
        Ok(paths)
    };
    if !folder.is_dir() {
        return Err(PipelineError::Setting(format!(
            "there is no folder {}\n  name a folder with NAME_TRAIN.ts and NAME_TEST.ts, in it or in folders of their own below it",
            folder.display()
        )));
    }
    let mut files = vec![];
    for path in list(folder)? {
        match path.is_dir() {
            true => files.extend(list(&path)?),
            false => files.push(path),
        }
    }
    let mut pairs: Vec<Pair> = vec![];
    let mut alone = vec![];
    for path in &files {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        for (own, other) in [(TRAIN, TEST), (TEST, TRAIN)] {
            let Some(name) = file.strip_suffix(own).filter(|name| !name.is_empty()) else {
                continue;
            };
            let beside = path.with_file_name(format!("{name}{other}"));
            match (beside.is_file(), own == TRAIN) {
                (true, true) => {
                    let (name, train) = (name.to_owned(), path.clone());
                    pairs.push(Pair { name, train, test: beside });
                }
                (true, false) => {}
                (false, _) => {
                    let lacks = format!("`{name}{own}` without its `{name}{other}`");
                    alone.push((name.to_owned(), lacks));
                }
            }
        }
    }
    if pairs.is_empty() {
        let found = match alone.first() {
            None => format!("{} files, none of which ends in `{TRAIN}`", files.len()),
            Some((_, lacks)) => lacks.clone(),
        };
        return Err(PipelineError::Setting(format!(
            "{} has no set of the UCR or UEA archive: it has {found}\n  \
             name a folder with NAME_TRAIN.ts and NAME_TEST.ts, in it or in folders of their own below it",
            folder.display()
        )));
    }
    let names: Vec<String> = pairs.iter().map(|pair| pair.name.clone()).collect();
    for pair in &mut pairs {
        if names.iter().filter(|name| **name == pair.name).count() > 1
            && let Some(within) = pair.train.parent().and_then(Path::file_name)
        {
            pair.name = format!("{}/{}", within.to_string_lossy(), pair.name);
        }
    }
    pairs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Sets { pairs, alone })
}

/// A set, read and normalised.
pub(super) struct Set {
    pub(super) key: Key,
    pub(super) train: Arc<NormalisedWindows<TrainWindows>>,
    pub(super) test: Arc<NormalisedWindows<HeldOutWindows>>,
    pub(super) classes: Vec<String>,
    pub(super) channels: usize,
    /// What its files have that was mended, or left as it is.
    pub(super) defects: Vec<ArchiveDefect>,
}

/// Reads a set. Every sample is a window, cut at `longest` steps, in units of the training file's
/// standard deviations. What is to be known of the data is told with the name of the set.
pub(super) fn read(
    pair: &Pair,
    cache: &Path,
    settings: &UcrConfig,
    listener: &dyn Listener,
) -> Result<Set, PipelineError> {
    let mut config = DataConfig::new(&pair.train);
    config.test = Some(DataConfig::new(&pair.test).path);
    config.checks = settings.data.checks;
    let warn = |message: &str| {
        let message = format!("{}: {message}", pair.name);
        listener.on(&Event::Warning { message });
    };
    let named = |event: &Event| {
        if let Event::Warning { message } = event {
            warn(message);
        }
    };
    let ingested = firebox_data::ingest(&config, cache, &named)?;
    let rule = WindowRule { length: settings.longest, stride: 1, whole: true };
    // The protocol is what was published: what both files have is told, and stays.
    let equal = EqualPolicy::Keep;
    let given = SplitRule::Given { validation: 0.0, seed: 0, equal };
    let parts = split(&ingested.set, &rule, &given, &Labels::Last).map_err(in_pieces)?;
    check(pair, &parts.train, &parts.test)?;
    let mut defects = found(&ingested.checks);
    defects.iter().for_each(|defect| warn(&format!("{}: {}", defect.found, defect.done)));
    parts.equal.warnings().iter().for_each(|message| warn(message));
    let mut cut = Cut::new(rule, 0);
    cut.look(&ingested.set);
    cut.said().iter().for_each(|message| warn(&format!("{message}; `longest` says how many are")));
    defects.extend(shared(&parts.equal));
    let normaliser = Normaliser::fit(Normalisation::Standard, &parts.train)?;
    Ok(Set {
        key: ingested.key,
        classes: parts.train.classes().to_vec(),
        channels: ingested.set.channels().len(),
        defects,
        train: Arc::new(NormalisedWindows::new(parts.train, normaliser.clone())),
        test: Arc::new(NormalisedWindows::new(parts.test, normaliser)),
    })
}

/// The defects that the settings allow, with what was done about them.
fn found(checks: &Checks) -> Vec<ArchiveDefect> {
    let defect = |finding: &firebox_data::Finding| ArchiveDefect {
        found: finding.to_string(),
        count: finding.count,
        samples: finding.series,
        done: finding.action.to_string(),
    };
    checks.findings.iter().map(defect).collect()
}

/// Training samples that are test samples, too: the archive has them, and they stay.
fn shared(equal: &EqualSeries) -> Option<ArchiveDefect> {
    let [train, test] = equal.given.as_ref()?;
    let samples = equal.tested as u64;
    Some(ArchiveDefect {
        found: format!("training samples that equal a test sample, such as `{train}` and `{test}`"),
        count: samples,
        samples,
        done: "kept".to_owned(),
    })
}

/// Every sample is one window here, so what would make it several is no way out.
fn in_pieces(error: SplitError) -> PipelineError {
    match error {
        SplitError::Pieces { count, series, example, pieces, .. } => {
            PipelineError::Setting(format!(
                "{count} of {series} samples are cut into pieces (`{example}` into {pieces}) by missing values that were dropped, and the protocol takes each as one window\n  \
             set `data.checks.not_finite` to \"fill\", or raise `data.checks.longest_fill` if runs are longer than that"
            ))
        }
        error => error.into(),
    }
}

/// Refuses what no score of could be believed.
fn check(pair: &Pair, train: &Windows, test: &Windows) -> Result<(), PipelineError> {
    let refuse = |what: String| Err(PipelineError::Setting(what));
    let counts = |windows: &Windows| {
        let mut counts = vec![0usize; windows.classes().len()];
        for label in windows.windows().iter().filter_map(|window| window.label) {
            counts[label as usize] += 1;
        }
        counts
    };
    let (fitted, asked) = (counts(train), counts(test));
    let (fitted_all, asked_all) = (fitted.iter().sum::<usize>(), asked.iter().sum::<usize>());
    for (file, found, all) in
        [(&pair.train, fitted_all, train.len()), (&pair.test, asked_all, test.len())]
    {
        if found < all {
            return refuse(format!(
                "{} of {all} samples of {} have no class\n  the protocol needs one for each: add them to the file, or leave these samples out",
                all - found,
                file.display()
            ));
        }
    }
    if let [only] = fitted.iter().enumerate().filter(|c| *c.1 > 0).collect::<Vec<_>>()[..] {
        return refuse(format!(
            "all {} samples of {} are of the class `{}`: there is nothing to tell apart\n  add samples of another class",
            train.len(),
            pair.train.display(),
            train.classes()[only.0]
        ));
    }
    let foreign = (0..asked.len()).find(|class| asked[*class] > 0 && fitted[*class] == 0);
    if let Some(class) = foreign {
        return refuse(format!(
            "{} has {} of the class `{}`, and {} has none: no classifier could find it\n  are these two files of one set?",
            pair.test.display(),
            asked[class],
            test.classes()[class],
            pair.train.display()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use firebox_core::Silent;

    /// A file of samples of 8 steps: class and a value that it begins with.
    fn write(path: &Path, classes: &str, samples: &[(&str, f64)]) {
        let mut text = format!(
            "@problemName t\n@timeStamps false\n@univariate true\n@equalLength true\n@seriesLength 8\n@classLabel true {classes}\n@data\n"
        );
        for (class, value) in samples {
            let steps: Vec<String> = (0..8).map(|t| format!("{}", value + f64::from(t))).collect();
            text += &format!("{}:{class}\n", steps.join(","));
        }
        std::fs::write(path, text).unwrap();
    }

    fn refused(train: &[(&str, f64)], test: &[(&str, f64)]) -> String {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("A_TRAIN.ts"), "a b", train);
        write(&folder.path().join("A_TEST.ts"), "a b", test);
        let pair = &pairs(folder.path()).unwrap().pairs[0];
        match read(pair, &folder.path().join("cache"), &UcrConfig::default(), &Silent) {
            Ok(_) => panic!("it was taken"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn pairs_are_found_in_the_folder_and_below_it() {
        let folder = tempfile::tempdir().unwrap();
        let refused = pairs(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("none of which ends in `_TRAIN.ts`"), "{refused}");
        std::fs::write(folder.path().join("B_TRAIN.ts"), "").unwrap();
        let refused = pairs(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("`B_TRAIN.ts` without its `B_TEST.ts`"), "{refused}");
        std::fs::write(folder.path().join("B_TEST.ts"), "").unwrap();
        std::fs::create_dir(folder.path().join("A")).unwrap();
        for file in ["A/A_TRAIN.ts", "A/A_TEST.ts", "A/notes.txt"] {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        let names = || -> Vec<String> {
            pairs(folder.path()).unwrap().pairs.into_iter().map(|pair| pair.name).collect()
        };
        assert_eq!(names(), ["A", "B"]);
        // Two of one name, and two of which one file is there.
        std::fs::create_dir(folder.path().join("later")).unwrap();
        for file in ["later/A_TRAIN.ts", "later/A_TEST.ts", "C_TRAIN.ts", "D_TEST.ts"] {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        assert_eq!(names(), ["A/A", "B", "later/A"]);
        let alone = pairs(folder.path()).unwrap().alone;
        let of = |at: usize| (alone[at].0.as_str(), alone[at].1.as_str());
        assert_eq!(of(0), ("C", "`C_TRAIN.ts` without its `C_TEST.ts`"));
        assert_eq!((of(1), alone.len()), (("D", "`D_TEST.ts` without its `D_TRAIN.ts`"), 2));
    }

    #[test]
    fn sets_that_say_nothing_are_refused_by_their_cause() {
        let two = [("a", 1.0), ("b", 2.0), ("a", 3.0)];
        let message = refused(&[("a", 1.0), ("a", 2.0)], &two);
        assert!(message.contains("all 2 samples of") && message.contains("class `a`"), "{message}");
    }

    #[test]
    fn a_class_that_only_the_test_file_has_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let three = "a b c";
        write(&folder.path().join("A_TRAIN.ts"), three, &[("a", 1.0), ("b", 2.0)]);
        write(&folder.path().join("A_TEST.ts"), three, &[("a", 1.0), ("c", 2.0)]);
        let pair = &pairs(folder.path()).unwrap().pairs[0];
        let cache = folder.path().join("cache");
        let error = read(pair, &cache, &UcrConfig::default(), &Silent).err().unwrap();
        let message = error.to_string();
        assert!(message.contains("has 1 of the class `c`"), "{message}");
        assert!(message.contains("are these two files of one set?"), "{message}");
    }

    #[test]
    fn what_was_filled_and_what_both_files_have_is_told_with_the_name_of_the_set() {
        let folder = tempfile::tempdir().unwrap();
        for (file, second) in [("A_TRAIN.ts", 2.0), ("A_TEST.ts", 3.0)] {
            let file = folder.path().join(file);
            write(&file, "a b", &[("a", 1.0), ("b", second)]);
            // A value of the second sample is missing.
            let text = std::fs::read_to_string(&file).unwrap();
            let text = text.replace(&format!("\n{second},"), &format!("\n{second},?,"));
            let text = text.replace(&format!(",{}:b", second + 7.0), ":b");
            std::fs::write(&file, text).unwrap();
        }
        let pair = &pairs(folder.path()).unwrap().pairs[0];
        let config = UcrConfig::default().with(&["data.checks.not_finite=fill".to_owned()]);
        let config = config.unwrap();
        let read = || {
            let said = std::sync::Mutex::new(Vec::new());
            let listener = |event: &Event| match event {
                Event::Warning { message } => said.lock().unwrap().push(message.clone()),
                other => panic!("{other:?}"),
            };
            let set = read(pair, &folder.path().join("cache"), &config, &listener).unwrap();
            (set.defects, said.into_inner().unwrap())
        };
        let (defects, said) = read();
        let [filled, shared] = &defects[..] else { panic!("{defects:?}") };
        assert_eq!((filled.count, filled.samples, &*filled.done), (2, 2, "filled"));
        assert_eq!((shared.count, &*shared.done), (1, "kept"));
        assert!(said[0].starts_with("A: channel `value`: 2 values missing, NaN"), "{said:?}");
        assert!(said[0].ends_with("): filled"), "{said:?}");
        assert!(said[1].starts_with("A: 1 series of the training files equals one"), "{said:?}");
        assert_eq!((said.len(), read()), (2, (defects, said.clone())), "told every time");
    }

    #[test]
    fn missing_values_are_taken_as_the_settings_say() {
        let folder = tempfile::tempdir().unwrap();
        for (file, first) in [("A_TRAIN.ts", 1.0), ("A_TEST.ts", 0.0)] {
            let file = folder.path().join(file);
            write(&file, "a b", &[("a", first), ("b", first + 2.5)]);
            let text = std::fs::read_to_string(&file).unwrap().replace(",3,4,", ",?,?,");
            std::fs::write(&file, text).unwrap();
        }
        let pair = &pairs(folder.path()).unwrap().pairs[0];
        let taken = |settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(|text| (*text).to_owned()).collect();
            let config = UcrConfig::default().with(&settings).unwrap();
            let set = read(pair, &folder.path().join("cache"), &config, &Silent);
            set.map(|set| [set.train.windows().len(), set.test.windows().len()])
        };
        let refused = |settings: &[&str]| crate::stages::failed(&taken(settings).err().unwrap());
        let said = refused(&[]);
        assert!(said.contains("set `data.checks.not_finite` to"), "{said}");
        assert_eq!(taken(&["data.checks.not_finite=fill"]).unwrap(), [2, 2]);
        for cut in [
            &["data.checks.not_finite=drop"][..],
            &["data.checks.not_finite=fill", "data.checks.longest_fill=1"],
        ] {
            let said = refused(cut);
            assert!(said.contains("2 of 4 samples are cut into pieces"), "{said}");
            assert!(!said.contains("window.whole"), "{said}");
        }
    }
}
