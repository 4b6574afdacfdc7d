//! Whether the labels of windows are what was asked for: classes, that are there, in every part.

use std::collections::BTreeSet;

use firebox_core::{Event, Labels, SeriesSet, Split, SplitRule, count};
use firebox_data::{Checks, Format, Ingested};
use firebox_eval::{unlearnt_classes, untested_classes};

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
        let Some(asked) = asked(&self.config.labels) else { return Ok(()) };
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

    /// Refuses labels of whole series that are measurements, where the split leaves a part empty: each class is of one
    /// series, and more series of each class would be asked for.
    pub(super) fn refuse_measured(
        &self,
        ingested: &Ingested,
        rule: &SplitRule,
    ) -> Result<(), PipelineError> {
        let of_data = matches!(self.config.labels, Labels::Last | Labels::Majority { .. });
        let whole = !matches!(rule, SplitRule::Time { .. });
        let Some(asked) = asked(&self.config.labels).filter(|_| of_data && whole) else {
            return Ok(());
        };
        let Some([classes, labelled]) = measured_series(&ingested.set) else { return Ok(()) };
        let column = about_column(ingested.set.classes(), &ingested.checks);
        let without = without_labels(self.config.pipeline);
        Err(measurements(asked, &format!("{labelled} labelled series"), classes, &column, without))
    }

    /// Warns of parts in which nothing can be told apart, of classes that nothing is learnt of, or measured of, and of such as
    /// seem to be measurements.
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
        for message in untested(names, by_part).into_iter().chain(fractions(names, by_part)) {
            self.listener.on(&Event::Warning { message });
        }
    }
}

/// The name of labels that are asked for; none where windows have none.
fn asked(labels: &Labels) -> Option<&'static str> {
    match labels {
        Labels::None | Labels::Ahead { .. } => None,
        Labels::Last => Some("last"),
        Labels::Majority { .. } => Some("majority"),
        Labels::Forward { .. } => Some("forward"),
        Labels::Return { .. } => Some("return"),
    }
}

/// Classes that are numbers, some of them with a fraction, of which more are told of. A choice: ratings by halves are fewer.
const FRACTIONS: usize = 10;

/// Whether so many classes of so many labelled windows or series are too many to be any.
fn are_too_many(classes: usize, labelled: usize) -> bool {
    classes > 20 && 2 * classes > labelled
}

/// The numbers that these classes are, if all are.
fn numbers(names: &[String], classes: &BTreeSet<u32>) -> Option<Vec<f64>> {
    let number = |class: &u32| names.get(*class as usize)?.trim().parse::<f64>().ok();
    classes.iter().map(|class| number(class).filter(|number| number.is_finite())).collect()
}

/// Whether not all numbers are whole.
fn has_fractions(numbers: &[f64]) -> bool {
    numbers.iter().any(|number| number.fract() != 0.0)
}

/// How many classes there are and how many series of one class each, where these are measurements: numbers, too many for
/// classes, and with fractions or hardly one of two series. Numbers of persons are none, of whom some have two.
fn measured_series(set: &SeriesSet) -> Option<[usize; 2]> {
    let (mut classes, mut labelled) = (BTreeSet::new(), 0);
    for series in set.series().iter().filter(|series| series.is_labelled()) {
        let counts = series.class_counts();
        if counts.len() != 1 {
            return None;
        }
        classes.extend(counts.into_keys());
        labelled += 1;
    }
    let different = classes.len();
    let numbers = numbers(set.classes(), &classes).filter(|_| are_too_many(different, labelled))?;
    (has_fractions(&numbers) || 10 * different > 9 * labelled).then_some([different, labelled])
}

/// What is said of labels that are measurements, of so many `labelled` windows or series.
fn measurements(
    asked: &str,
    labelled: &str,
    classes: usize,
    column: &str,
    without: &str,
) -> PipelineError {
    PipelineError::Setting(format!(
        "`labels` is {asked}, and the {labelled} have {classes} classes{column}: labels are classes, not measurements\n  declare a column of classes in `data.columns.label`{without}"
    ))
}

/// What is to be said of classes that are numbers with fractions: they may be measurements, of which values are near to each
/// other, as classes are not. `by_part` has the labels of training, validation and test.
fn fractions(names: &[String], by_part: &[Vec<u32>; 3]) -> Option<String> {
    let classes: BTreeSet<u32> = by_part.iter().flatten().copied().collect();
    let numbers = numbers(names, &classes).filter(|numbers| has_fractions(numbers))?;
    let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    let most = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (numbers.len() > FRACTIONS).then(|| {
        format!(
            "all {} classes are numbers, from {least} to {most}, and not all of them whole: to a class, all others are as far; if they are measurements, make a column of a few classes of them, such as low and high",
            numbers.len()
        )
    })
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
    if are_too_many(classes.len(), labelled) {
        let labelled = format!("{labelled} labelled windows");
        return Err(measurements(asked, &labelled, classes.len(), &column, without));
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
    let (learnt, tested) = learnt_and_tested(names, by_part);
    unlearnt_classes(names, &learnt, &tested)
}

/// Whether training or validation has each class, and how many test windows are of it.
fn learnt_and_tested(names: &[String], by_part: &[Vec<u32>; 3]) -> (Vec<bool>, Vec<u64>) {
    let [train, validation, test] = by_part;
    let mut learnt = vec![false; names.len()];
    train.iter().chain(validation).for_each(|label| learnt[*label as usize] = true);
    let mut tested = vec![0; names.len()];
    test.iter().for_each(|label| tested[*label as usize] += 1);
    (learnt, tested)
}

/// What is to be said of classes that training or validation has and the test part has not, where that has several others:
/// what is said of one class alone says as much.
fn untested(names: &[String], by_part: &[Vec<u32>; 3]) -> Option<String> {
    let (learnt, tested) = learnt_and_tested(names, by_part);
    let several = tested.iter().filter(|windows| **windows > 0).count() > 1;
    untested_classes(names, &learnt, &tested).filter(|_| several)
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
    use firebox_core::{Channel, Labels, Role, Series, SeriesSet, StepLabels};

    use super::{
        fractions, measured_series, refuse_useless, unlabelled, unlearnt, untested, ways_out,
        without_labels,
    };
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

    /// Series of one class each, of these names.
    fn of_classes(names: &[String], labels: &[u32]) -> SeriesSet {
        let series = labels.iter().enumerate().map(|(at, label)| Series {
            labels: StepLabels::Whole(*label),
            ..Series::regular(format!("s{at}"), 0, 1, vec![0.0; 4], 1)
        });
        let channels = vec![Channel::new("x", Role::Other)];
        SeriesSet::new(channels, names.to_vec(), series.collect()).unwrap()
    }

    #[test]
    fn measurements_of_series_are_told_before_these_are_divided() {
        let of = |name: &dyn Fn(u32) -> String, classes: u32, series: u32| {
            let names: Vec<String> = (0..classes).map(name).collect();
            let labels: Vec<u32> = (0..series).map(|at| at % classes).collect();
            measured_series(&of_classes(&names, &labels))
        };
        let fraction = |at: u32| format!("1.{at:04}");
        let whole = |at: u32| at.to_string();
        assert_eq!(of(&fraction, 199, 200), Some([199, 200]));
        assert_eq!(of(&fraction, 26, 51), Some([26, 51]));
        assert_eq!(of(&fraction, 26, 52), None, "two series of each");
        assert_eq!(of(&fraction, 20, 20), None);
        assert_eq!(of(&whole, 199, 200), Some([199, 200]));
        assert_eq!(of(&whole, 26, 40), None, "persons, of whom some have two series");
        assert_eq!(of(&|at| format!("person {at}"), 199, 200), None);
    }

    #[test]
    fn classes_that_are_numbers_with_fractions_are_told_of() {
        let said = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let all: Vec<u32> = (0..names.len() as u32).collect();
            fractions(&names, &[all.clone(), vec![], all])
        };
        let halves: Vec<String> =
            (1..=11).map(|at| format!("{:.1}", 0.5 * f64::from(at))).collect();
        let mut halves: Vec<&str> = halves.iter().map(String::as_str).collect();
        let found = said(&halves).unwrap();
        assert!(
            found.starts_with("all 11 classes are numbers, from 0.5 to 5.5, and not"),
            "{found}"
        );
        assert_eq!(said(&halves[1..]), None, "few, as of ratings");
        halves.push("other");
        assert_eq!(said(&halves), None);
        let whole: Vec<String> = (0..30).map(|at| at.to_string()).collect();
        assert_eq!(said(&whole.iter().map(String::as_str).collect::<Vec<_>>()), None);
    }

    #[test]
    fn a_class_that_is_learnt_and_never_tested_is_named() {
        let names = ["sit", "walk", "fall"].map(str::to_owned);
        assert_eq!(untested(&names, &[vec![0, 1, 2], vec![], vec![2, 1, 0]]), None);
        assert_eq!(
            untested(&names, &[vec![0, 1, 2], vec![0], vec![0, 1]]).unwrap(),
            "no test window is of `fall`: scores say nothing of that, and macro averages count 0 for one that is answered"
        );
        // That a part has one class alone is told by itself, and nothing is tested of what nobody learns.
        assert_eq!(untested(&names, &[vec![0, 1, 2], vec![], vec![0]]), None);
        assert_eq!(untested(&names, &[vec![0, 1], vec![], vec![0, 1]]), None);
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
