//! Whether the labels of windows are what was asked for: classes, that are there, in every part.

use std::collections::BTreeSet;

use firebox_core::{Event, Labels, Split, count};
use firebox_data::{Checks, Format, Ingested};
use firebox_eval::unlearnt_classes;

use super::Run;
use crate::error::PipelineError;
use crate::filled::in_labels;
use crate::{Kind, PipelineConfig};

impl Run<'_> {
    /// Refuses labels that were asked for and are not there, or are no classes; a score of them would
    /// say nothing. Warns where a part has none.
    pub(super) fn check_labels(
        &self,
        ingested: &Ingested,
        parts: &Split,
    ) -> Result<(), PipelineError> {
        let asked = match self.config.labels {
            Labels::None | Labels::Ahead { .. } => return Ok(()),
            Labels::Last => "last",
            Labels::Majority { .. } => "majority",
            Labels::Forward { .. } => "forward",
            Labels::Return { .. } => "return",
        };
        let all: [&firebox_core::Windows; 3] = [&parts.train, &parts.validation, &parts.test];
        let labels = |part: &firebox_core::Windows| {
            part.windows().iter().filter_map(|window| window.label).collect::<Vec<_>>()
        };
        let by_part = all.map(labels);
        let names = parts.train.classes();
        let without = without_labels(self.config.pipeline);
        let ways_out = || ways_out(self.config);
        refuse_useless(asked, names, &by_part, &ingested.checks, without, ways_out)?;
        self.warn_of_labels(names, &by_part);
        let windows: usize = all.iter().map(|part| part.len()).sum();
        let labelled: usize = by_part.iter().map(Vec::len).sum();
        // Where values were put in, they are why.
        let filled = in_labels(&self.config.labels, &ingested.set).map(|said| {
            format!("{said} ({} of {windows} windows have none in all)", windows - labelled)
        });
        let unlabelled = || unlabelled(&self.config.labels, [labelled, windows]);
        if let Some(message) = filled.or_else(unlabelled) {
            self.listener.on(&Event::Warning { message });
        }
        Ok(())
    }

    /// Warns of parts in which nothing can be told apart, and of classes that nothing is learnt of.
    fn warn_of_labels(&self, names: &[String], by_part: &[Vec<u32>; 3]) {
        for (part, labels) in ["training", "validation", "test"].iter().zip(by_part) {
            let different = labels.iter().collect::<BTreeSet<_>>().len();
            let (what, so) = match (different, *part) {
                (0, "validation") | (2.., _) => continue,
                (0, _) => ("no labelled window", "so nothing can be scored"),
                (_, "validation") => (
                    "windows of one class only",
                    match self.config.pipeline {
                        Kind::Finetune => "so the best epoch is chosen blindly",
                        _ => "so penalties are chosen blindly",
                    },
                ),
                (_, _) => ("labelled windows of one class only", "so the scores say nothing"),
            };
            self.listener.on(&Event::Warning {
                message: format!(
                    "the {part} part has {what}, {so}: choose another split, or more data"
                ),
            });
        }
        // Fine-tuning refuses them.
        if self.config.pipeline != Kind::Finetune
            && let Some(message) = unlearnt(names, by_part)
        {
            self.listener.on(&Event::Warning { message });
        }
    }
}

/// Share of windows without a class, which prices give, from which it is told of. A choice.
const UNLABELLED: f64 = 0.05;

/// What is to be said where many windows have no class because of their prices: so many are labelled of so many.
fn unlabelled(labels: &Labels, [labelled, windows]: [usize; 2]) -> Option<String> {
    let why = match labels {
        Labels::Forward { .. } => {
            "the close does not move within them, so that a move after them has no scale; leave such times out, or make windows longer"
        }
        Labels::Return { .. } => {
            "their last close is not above 0, and a return is a share of it; use `labels.forward`, or a channel with the role `return`"
        }
        Labels::None | Labels::Last | Labels::Majority { .. } | Labels::Ahead { .. } => {
            return None;
        }
    };
    let without = windows - labelled;
    (without as f64 > UNLABELLED * windows as f64).then(|| {
        format!(
            "{without} of {} have no class, and no part in what is learnt and measured of classes: {why}",
            count(windows as u64, "window")
        )
    })
}

/// The way out of all useless labels, where nothing but scores needs any.
fn without_labels(pipeline: Kind) -> &'static str {
    match pipeline {
        Kind::Finetune => "",
        _ => ", or train without (--set labels=none)",
    }
}

/// What may be done about windows of which none has a class, and about those that are all of one: that depends on where
/// classes come from.
fn ways_out(config: &PipelineConfig) -> [&'static str; 2] {
    if config.labels.horizon() > 0 {
        return [
            "give the channel of prices the role `close` in `data.columns.channels`, or choose another horizon in `[labels]`",
            "choose another threshold or horizon in `[labels]`",
        ];
    }
    let files = firebox_data::files(&config.data).unwrap_or_default();
    let another = "add series of another class to the files";
    match files.first().and_then(|file| Format::of_listed(file)) {
        Some(Format::Samples) => {
            ["convert arrays that lie in a folder for each class (`firebox data convert`)", another]
        }
        Some(Format::Ts) => ["give files whose series have classes (`@classLabel true`)", another],
        Some(Format::Market | Format::Clips) => ["let the file make several classes"; 2],
        _ => [
            "declare the column of classes in `data.columns.label`, lower `labels.majority.share`",
            "declare another column in `data.columns.label`",
        ],
    }
}

/// Refuses labels that no window has, that are measurements, or that are all the same. `by_part` has those of training,
/// validation and test. `ways_out` are looked for only then: the files say which there are; `without` goes behind each.
fn refuse_useless(
    asked: &str,
    names: &[String],
    by_part: &[Vec<u32>; 3],
    checks: &Checks,
    without: &str,
    ways_out: impl Fn() -> [&'static str; 2],
) -> Result<(), PipelineError> {
    let setting = |what: String| Err(PipelineError::Setting(what));
    let labelled: usize = by_part.iter().map(Vec::len).sum();
    let classes: BTreeSet<u32> = by_part.iter().flatten().copied().collect();
    let column = about_column(names, checks);
    if labelled == 0 {
        return setting(format!(
            "`labels` is {asked}, and no window has a label{column}\n  {}{without}",
            ways_out()[0]
        ));
    }
    if classes.len() > 20 && 2 * classes.len() > labelled {
        return setting(format!(
            "`labels` is {asked}, and the {labelled} labelled windows have {} classes{column}: labels are classes, not measurements\n  declare a column of classes in `data.columns.label`{without}",
            classes.len()
        ));
    }
    if let [only] = Vec::from_iter(&classes)[..] {
        let name = names.get(*only as usize).map_or("", String::as_str);
        return setting(format!(
            "`labels` is {asked}, and all {labelled} labelled windows are of the class `{name}`: there is nothing to tell apart\n  {}{without}",
            ways_out()[1]
        ));
    }
    Ok(())
}

/// What is to be said of the column of labels, or of one that may be meant.
fn about_column(names: &[String], checks: &Checks) -> String {
    checks.label_column.as_ref().map_or_else(
        || match &checks.label_like {
            Some(name) => format!(
                "; the files have a column `{name}`: is data.columns.label = \"{name}\" meant?"
            ),
            None => String::new(),
        },
        |name| format!("; the column `{name}` has {}", classes_of(names)),
    )
}

/// What is to be said of classes that only the test part has. `by_part` has the labels of training, validation and test:
/// probes are fitted on the first two.
fn unlearnt(names: &[String], by_part: &[Vec<u32>; 3]) -> Option<String> {
    let [train, validation, test] = by_part;
    let mut learnt = vec![false; names.len()];
    train.iter().chain(validation).for_each(|label| learnt[*label as usize] = true);
    let mut tested = vec![0; names.len()];
    test.iter().for_each(|label| tested[*label as usize] += 1);
    unlearnt_classes(names, &learnt, &tested)
}

fn classes_of(names: &[String]) -> String {
    match names {
        [] => "no value".to_owned(),
        [only] => format!("the one class `{only}`"),
        [first, second, ..] => {
            format!("{} different values, such as `{first}` and `{second}`", names.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use firebox_core::Labels;

    use super::{refuse_useless, unlabelled, unlearnt, ways_out, without_labels};
    use crate::{Kind, PipelineConfig};

    #[test]
    fn windows_whose_prices_give_no_class_are_told_of() {
        let forward = Labels::Forward { horizon: 3, threshold: 0.5 };
        let returned = Labels::Return { horizon: 3, threshold: 0.01 };
        let said = unlabelled(&forward, [7, 198]).unwrap();
        assert!(said.starts_with("191 of 198 windows have no class, and no part"), "{said}");
        assert!(unlabelled(&returned, [940, 1000]).unwrap().contains("is not above 0"));
        // A few are no matter, and labels of the data may be missing on purpose.
        assert_eq!(unlabelled(&forward, [950, 1000]), None);
        assert_eq!(unlabelled(&Labels::Last, [7, 198]), None);
    }

    #[test]
    fn a_way_out_is_one_that_the_data_take() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str, labels: Labels| {
            let mut config = PipelineConfig { labels, ..PipelineConfig::default() };
            std::fs::write(folder.path().join(name), "x,y\n1,2\n").unwrap();
            config.data.path = firebox_data::Paths(vec![folder.path().join(name)]);
            ways_out(&config)[1]
        };
        let column = "declare another column in `data.columns.label`";
        assert_eq!(of("a.csv", Labels::Last), column);
        assert_eq!(of("a.ts", Labels::Last), "add series of another class to the files");
        let forward = Labels::Forward { horizon: 3, threshold: 0.5 };
        assert!(of("a.csv", forward).starts_with("choose another threshold or horizon"));
        // Samples as `firebox data convert` makes them.
        let manifest = r#"{"format": "samples-v1"}"#;
        std::fs::write(folder.path().join("manifest.json"), manifest).unwrap();
        let mut config = PipelineConfig { labels: Labels::Last, ..PipelineConfig::default() };
        config.data.path = firebox_data::Paths(vec![folder.path().to_owned()]);
        assert!(ways_out(&config)[0].contains("a folder for each class"));
        config.data.path = firebox_data::Paths(vec!["nowhere.csv".into()]);
        assert_eq!(ways_out(&config)[1], column);
    }

    #[test]
    fn labels_are_done_without_only_where_they_can_be() {
        let checks = firebox_data::Checks::default();
        let said = |pipeline| {
            let without = without_labels(pipeline);
            let by_part = [vec![0, 0], vec![], vec![0]];
            let names = ["run".to_owned()];
            refuse_useless("last", &names, &by_part, &checks, without, || ["none", "one"])
                .unwrap_err()
                .to_string()
        };
        let start = "`labels` is last, and all 3 labelled windows are of the class `run`: there is nothing to tell apart\n  one";
        assert_eq!(said(Kind::Finetune), start);
        assert_eq!(said(Kind::Pretrain), format!("{start}, or train without (--set labels=none)"));
    }

    #[test]
    fn a_class_that_only_the_test_part_has_is_named() {
        let names = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(unlearnt(&names, &[vec![0, 0], vec![2], vec![0, 2]]), None);
        assert_eq!(
            unlearnt(&names, &[vec![0, 0], vec![2], vec![1, 0, 1]]).unwrap(),
            "class `b` has 2 test windows and no training window: no probe can find it"
        );
    }
}
