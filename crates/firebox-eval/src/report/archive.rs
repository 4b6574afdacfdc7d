//! The page of `firebox evaluate ucr`: one configuration on many sets of an archive, beside what others
//! have published.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::html::{Section, facts, page, table};
use super::markdown::write_table;
use super::plot::{escape, words};
use super::published::{Published, published};
use super::write::replace;
use super::{Fact, Table};
use crate::EvalError;
use crate::text::{count, list, number};

/// A way from a set's training file to predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recipe {
    /// Always the most frequent class of the training file.
    Majority,
    /// An encoder as it is initialised, frozen, under a support vector machine.
    RandomSvm,
    /// Features of fixed kernels ([`RandomKernels`](crate::RandomKernels)), under ridge regression
    /// ([`Ridge`](crate::Ridge)). Nothing is pre-trained.
    RandomKernels,
    /// The pre-trained encoder, frozen, under logistic regression.
    FrozenLogistic,
    /// The pre-trained encoder, frozen, under a support vector machine.
    FrozenSvm,
    /// The pre-trained encoder, trained on with the labels.
    FineTuned,
    /// The mean of the shares that the fine-tuned encoders, the support vector machines on the frozen
    /// ones, and ridge regressions on fixed kernels give each class, of all seeds.
    Ensemble,
}

impl Recipe {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 7] = [
        Self::Majority,
        Self::RandomSvm,
        Self::RandomKernels,
        Self::FrozenLogistic,
        Self::FrozenSvm,
        Self::FineTuned,
        Self::Ensemble,
    ];

    /// Its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Majority => "majority class",
            Self::RandomSvm => "random + SVM",
            Self::RandomKernels => "kernels + ridge",
            Self::FrozenLogistic => "frozen + logistic",
            Self::FrozenSvm => "frozen + SVM",
            Self::FineTuned => "fine-tuned",
            Self::Ensemble => "ensemble of seeds",
        }
    }
}

/// One set of an archive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArchiveSet {
    /// Its name.
    pub name: String,
    /// Training and test samples.
    pub samples: [usize; 2],
    /// Channels.
    pub channels: usize,
    /// Steps of the longest sample.
    pub steps: usize,
    /// Classes.
    pub classes: usize,
    /// Test accuracy of each recipe, once for each seed, or once if it has none.
    pub accuracies: BTreeMap<Recipe, Vec<f64>>,
    /// Seconds that it took.
    pub seconds: f64,
    /// What its files have that was mended, or left as it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub defects: Vec<ArchiveDefect>,
}

/// One kind of defect of a set's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveDefect {
    /// What was found, in words.
    pub found: String,
    /// How many.
    pub count: u64,
    /// Samples that have it.
    pub samples: u64,
    /// What was done about it.
    pub done: String,
}

impl ArchiveSet {
    /// The mean over the seeds.
    pub fn mean(&self, recipe: Recipe) -> Option<f64> {
        mean(self.accuracies.get(&recipe)?)
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// One configuration on many sets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArchiveReport {
    /// When it was made, as text.
    pub created: String,
    /// The device.
    pub device: String,
    /// Seeds of every recipe that draws something.
    pub seeds: usize,
    /// Seconds of all of it.
    pub seconds: f64,
    /// The one configuration, as TOML.
    pub configuration: String,
    /// The file that it came from, if it is not the built-in one.
    pub file: Option<String>,
    /// The sets, in the order of their names.
    pub sets: Vec<ArchiveSet>,
    /// Sets that could not be measured, with the reason.
    pub failed: Vec<(String, String)>,
    /// Sets that are to be measured, those that could not be among them; 0 where it is not known, as in files of before.
    #[serde(default)]
    pub of: usize,
}

impl ArchiveReport {
    /// Sets that are still to be measured.
    pub fn left(&self) -> usize {
        self.of.saturating_sub(self.sets.len() + self.failed.len())
    }

    /// `So far, 2 of 9 sets: `, or nothing where none is left.
    fn so_far(&self) -> String {
        match self.left() {
            0 => String::new(),
            left => format!("So far, {} of {}: ", self.of - left, count(self.of, "set")),
        }
    }

    /// What it comes to, in one sentence.
    pub fn verdict(&self) -> String {
        let parts: Vec<String> = self
            .archives()
            .into_iter()
            .map(|(archive, sets)| {
                let own = means(&sets, |set| set.mean(Recipe::Ensemble));
                let mut text = format!(
                    "on {} of {archive} the ensemble's mean test accuracy is {}",
                    count(sets.len(), "set"),
                    share(own)
                );
                if let Some((method, theirs)) = best(&sets) {
                    let word = match own {
                        Some(own) if own + 5e-4 >= theirs => "at or above",
                        _ => "below",
                    };
                    let _ = write!(
                        text,
                        ", {word} the best published here, {method} with {}",
                        share(Some(theirs))
                    );
                }
                text
            })
            .collect();
        let failed = match self.failed.len() {
            0 => String::new(),
            some => format!("; {} could not be measured", count(some, "set")),
        };
        match parts.is_empty() {
            true => format!("No set was measured{failed}."),
            false => {
                format!("{}{}: {}{failed}.", self.so_far(), self.what(), parts.join("; "))
            }
        }
    }

    /// The configuration, as a sentence begins.
    fn what(&self) -> String {
        match &self.file {
            None => "One untuned configuration".to_owned(),
            Some(file) => format!("One configuration, from {file}"),
        }
    }

    /// Sets by archive; those without published figures are in one of their own.
    fn archives(&self) -> Vec<(&'static str, Vec<&ArchiveSet>)> {
        let mut archives: Vec<(&'static str, Vec<&ArchiveSet>)> = vec![];
        for set in &self.sets {
            let archive = published(&set.name).map_or("other archives", |known| known.archive);
            match archives.iter_mut().find(|(name, _)| *name == archive) {
                Some((_, sets)) => sets.push(set),
                None => archives.push((archive, vec![set])),
            }
        }
        archives
    }

    /// Our own accuracies.
    fn scores(&self) -> Table {
        let recipes: Vec<Recipe> = Recipe::ALL
            .into_iter()
            .filter(|recipe| self.sets.iter().any(|set| set.accuracies.contains_key(recipe)))
            .collect();
        let mut rows: Vec<Vec<String>> = self
            .sets
            .iter()
            .map(|set| {
                let cells = recipes.iter().map(|recipe| {
                    set.accuracies.get(recipe).map_or("–".to_owned(), |values| spread(values))
                });
                std::iter::once(set.name.clone()).chain(cells).collect()
            })
            .collect();
        for (archive, sets) in self.archives() {
            let cells = recipes.iter().map(|recipe| share(means(&sets, |set| set.mean(*recipe))));
            rows.push(std::iter::once(format!("mean of {archive}")).chain(cells).collect());
        }
        let names = recipes.iter().map(|recipe| recipe.name().to_owned());
        Table {
            title: "Test accuracy".to_owned(),
            note: format!(
                "Mean over {}, lowest to highest in parentheses. Penalties and strengths were chosen by cross-validation on the training files; nothing was chosen by a test file.",
                count(self.seeds, "seed")
            ),
            columns: std::iter::once("set".to_owned()).chain(names).collect(),
            rows,
        }
    }

    /// What others published, one table an archive.
    fn others(&self) -> Vec<Table> {
        let known = self.archives().into_iter().filter_map(|(archive, sets)| {
            let figures: Vec<&Published> =
                sets.iter().filter_map(|set| published(&set.name)).collect();
            let methods = figures.first()?.accuracies.iter().map(|(method, _)| *method);
            let mut rows: Vec<Vec<String>> = sets
                .iter()
                .zip(&figures)
                .map(|(set, known)| {
                    let theirs = known.accuracies.iter().map(|(_, value)| share(Some(*value)));
                    let own = share(set.mean(Recipe::Ensemble));
                    [set.name.clone(), own].into_iter().chain(theirs).collect()
                })
                .collect();
            let own = share(means(&sets, |set| set.mean(Recipe::Ensemble)));
            let theirs = (0..figures[0].accuracies.len()).map(|place| {
                let all: Vec<f64> = figures.iter().map(|one| one.accuracies[place].1).collect();
                share(mean(&all))
            });
            rows.push(["mean".to_owned(), own].into_iter().chain(theirs).collect());
            let columns = ["set", "ensemble of seeds"].into_iter().chain(methods);
            Some(Table {
                title: format!("Beside published figures: {archive}"),
                note: "On the same split; sources are in the documentation of firebox-eval's `published`.".to_owned(),
                columns: columns.map(str::to_owned).collect(),
                rows,
            })
        });
        known.collect()
    }

    fn data(&self) -> Table {
        let rows = self.sets.iter().map(|set| {
            let [train, test] = set.samples;
            let numbers =
                [train, test, set.channels, set.steps, set.classes].map(|n| n.to_string());
            let seconds = format!("{} s", number(set.seconds, 0));
            std::iter::once(set.name.clone()).chain(numbers).chain([seconds]).collect()
        });
        let columns = ["set", "training", "test", "channels", "longest", "classes", "time"];
        Table {
            title: "Sets".to_owned(),
            note: String::new(),
            columns: columns.map(str::to_owned).to_vec(),
            rows: rows.collect(),
        }
    }

    fn defects(&self) -> Table {
        let rows = self.sets.iter().flat_map(|set| {
            set.defects.iter().map(move |ArchiveDefect { found, count, samples, done }| {
                let [count, samples] = [count, samples].map(u64::to_string);
                vec![set.name.clone(), found.clone(), count, samples, done.clone()]
            })
        });
        let columns = ["set", "found", "count", "samples", "done about it"];
        Table {
            title: "Data checks".to_owned(),
            note: String::new(),
            columns: columns.map(str::to_owned).to_vec(),
            rows: rows.collect(),
        }
    }

    fn failures(&self) -> Table {
        let rows = self.failed.iter().map(|(set, why)| vec![set.clone(), why.clone()]);
        Table {
            title: "Not measured".to_owned(),
            note: String::new(),
            columns: vec!["set".to_owned(), "why".to_owned()],
            rows: rows.collect(),
        }
    }

    fn facts(&self) -> Vec<Fact> {
        vec![
            Fact::new("Made", self.created.clone()),
            Fact::new("Device", self.device.clone()),
            Fact::new("Seeds", self.seeds.to_string()),
            Fact::new("Time", format!("{} s", number(self.seconds, 0))),
        ]
    }

    /// The page.
    pub fn html(&self) -> String {
        let head = format!(
            "<header>\n<p class=\"verdict open\"><span>{}</span></p>\n<h1>{TITLE}</h1>\n{}</header>\n",
            words(&self.verdict()),
            facts(self.facts().iter().map(|fact| (fact.name.as_str(), fact.value.as_str())))
        );
        let others: String = self.others().iter().map(|one| table(one, true)).collect();
        let sections = [
            ("scores", "Scores", table(&self.scores(), false)),
            ("published", "Published figures", others),
            ("sets", "Sets", table(&self.data(), false)),
            ("checks", "Data checks", table(&self.defects(), false)),
            ("failed", "Not measured", table(&self.failures(), false)),
            (
                "configuration",
                "Configuration",
                format!("<pre><code>{}</code></pre>\n", escape(&self.configuration)),
            ),
        ];
        let sections: Vec<Section> = sections
            .into_iter()
            .filter(|(.., body)| !body.is_empty())
            .map(|(id, title, body)| Section { id: id.into(), title: title.into(), body })
            .collect();
        page(TITLE, &head, &sections, "all figures are in <code>scores.json</code> beside it")
    }

    /// The same as text.
    pub fn markdown(&self) -> String {
        let mut out = format!("**{}**\n\n# {TITLE}\n\n", self.verdict());
        for Fact { name, value } in self.facts() {
            let _ = writeln!(out, "- {name}: {value}");
        }
        out.push('\n');
        write_table(&mut out, &self.scores(), true);
        self.others().iter().for_each(|one| write_table(&mut out, one, true));
        write_table(&mut out, &self.data(), true);
        write_table(&mut out, &self.defects(), true);
        write_table(&mut out, &self.failures(), true);
        let _ =
            write!(out, "## Configuration\n\n```toml\n{}\n```\n", self.configuration.trim_end());
        out
    }

    /// Writes `report.html`, `summary.md` and `scores.json` into a folder, each whole or not at all.
    ///
    /// # Errors
    ///
    /// When the folder cannot be made or a file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), EvalError> {
        let error = |source| EvalError::Write { path: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(error)?;
        replace(&folder.join("report.html"), &self.html())?;
        replace(&folder.join("summary.md"), &self.markdown())?;
        let scores = json!({ "verdict": self.verdict(), "report": self });
        replace(&folder.join("scores.json"), &format!("{scores:#}\n"))
    }
}

const TITLE: &str = "Archive sets by one configuration";

/// The best published method by its mean over sets that all have figures.
fn best(sets: &[&ArchiveSet]) -> Option<(String, f64)> {
    let figures: Vec<&Published> = sets.iter().filter_map(|set| published(&set.name)).collect();
    if figures.len() != sets.len() {
        return None;
    }
    let methods = figures.first()?.accuracies;
    let values: Vec<(&str, f64)> = methods
        .iter()
        .enumerate()
        .filter_map(|(place, (method, _))| {
            let all: Vec<f64> = figures.iter().map(|one| one.accuracies[place].1).collect();
            Some((*method, mean(&all)?))
        })
        .collect();
    let highest = values.iter().map(|(_, value)| *value).fold(f64::NEG_INFINITY, f64::max);
    let names: Vec<&str> =
        values.iter().filter(|(_, value)| *value == highest).map(|(name, _)| *name).collect();
    Some((list(&names), highest))
}

/// The mean over sets that all have a value.
fn means(sets: &[&ArchiveSet], value: impl Fn(&ArchiveSet) -> Option<f64>) -> Option<f64> {
    let all: Option<Vec<f64>> = sets.iter().map(|set| value(set)).collect();
    mean(&all?)
}

/// `0.947`, or a dash.
fn share(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.3}"))
}

/// `0.947 (0.940 to 0.953)`.
fn spread(values: &[f64]) -> String {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match values.len() {
        0 | 1 => share(mean(values)),
        _ => format!("{} ({low:.3} to {high:.3})", share(mean(values))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, ensemble: f64) -> ArchiveSet {
        ArchiveSet {
            name: name.to_owned(),
            samples: [50, 150],
            channels: 1,
            steps: 150,
            classes: 2,
            accuracies: BTreeMap::from([
                (Recipe::FrozenSvm, vec![0.9, 0.92, 0.94]),
                (Recipe::Ensemble, vec![ensemble]),
            ]),
            seconds: 12.0,
            defects: vec![],
        }
    }

    fn report(sets: Vec<ArchiveSet>) -> ArchiveReport {
        ArchiveReport {
            file: None,
            created: "2026-01-01".to_owned(),
            device: "cpu".to_owned(),
            seeds: 3,
            seconds: 30.0,
            configuration: "seed = 1\n".to_owned(),
            of: sets.len(),
            sets,
            failed: vec![],
        }
    }

    #[test]
    fn the_verdict_compares_means_over_the_same_sets() {
        let sets = vec![set("GunPoint", 1.0), set("ItalyPowerDemand", 0.9)];
        let text = report(sets).verdict();
        assert_eq!(
            text,
            "One untuned configuration: on 2 sets of UCR the ensemble's mean test accuracy is 0.950, below the best published here, InceptionTime with 0.982."
        );
        let text = report(vec![set("GunPoint", 1.0)]).verdict();
        assert!(
            text.contains("at or above the best published here, FCN and InceptionTime"),
            "{text}"
        );
        let text = report(vec![set("GunPoint", 1.0), set("Unknown", 0.5)]).verdict();
        assert!(text.contains("on 1 set of other archives") && text.contains("is 0.500"), "{text}");
    }

    #[test]
    fn a_report_of_some_of_the_sets_says_so() {
        let mut report = ArchiveReport { of: 3, ..report(vec![set("GunPoint", 1.0)]) };
        report.failed.push(("Broken".to_owned(), "it has one class".to_owned()));
        assert_eq!(report.left(), 1);
        let begins = "So far, 2 of 3 sets: One untuned configuration: on 1 set of UCR";
        assert!(report.verdict().starts_with(begins), "{}", report.verdict());
        assert!(report.html().contains(begins) && report.markdown().contains(begins));
        for of in [2, 0] {
            let whole = ArchiveReport { of, ..report.clone() };
            assert_eq!(whole.left(), 0, "a file of before does not say how many there were");
            assert!(whole.verdict().starts_with("One untuned configuration: on 1 set of UCR"));
        }
    }

    #[test]
    fn all_three_files_hold_the_figures_and_a_failure_is_named() {
        let mut report = report(vec![set("GunPoint", 0.987)]);
        report.failed.push(("Broken<Set>".to_owned(), "it has one class".to_owned()));
        assert!(!report.html().contains("Data checks"));
        let before = serde_json::to_value(&report).unwrap();
        assert!(before["sets"][0].get("defects").is_none(), "as files of before");
        assert_eq!(serde_json::from_value::<ArchiveReport>(before).unwrap(), report);
        report.sets[0].defects.push(ArchiveDefect {
            found: "values are missing".to_owned(),
            count: 1234,
            samples: 17,
            done: "filled".to_owned(),
        });
        let (page, text) = (report.html(), report.markdown());
        let mended = ["values are missing", "1234", "filled"];
        let scored = ["0.987", "0.920", "0.900 to 0.940", "it has one class"];
        for part in scored.into_iter().chain(mended) {
            assert!(page.contains(part) && text.contains(part), "{part}");
        }
        assert!(page.contains("Broken&lt;Set&gt;") && !page.contains("<Set>"));
        assert!(text.contains("| GunPoint") && text.contains("1 set could not be measured"));
        let folder = tempfile::tempdir().unwrap();
        report.write(folder.path()).unwrap();
        let scores = fs::read_to_string(folder.path().join("scores.json")).unwrap();
        let scores: serde_json::Value = serde_json::from_str(&scores).unwrap();
        assert_eq!(scores["report"]["sets"][0]["accuracies"]["ensemble"][0], 0.987);
    }
}
