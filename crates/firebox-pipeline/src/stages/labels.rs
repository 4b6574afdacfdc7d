//! Whether the labels of windows are what was asked for: classes, that are there, in every part.

use std::collections::BTreeSet;

use firebox_core::{Event, Labels, Split};
use firebox_data::{Checks, Ingested};
use firebox_eval::unlearnt_classes;

use super::Run;
use crate::Kind;
use crate::error::PipelineError;

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
        refuse_useless(asked, names, &by_part, &ingested.checks)?;
        self.warn_of_labels(names, &by_part);
        Ok(())
    }

    /// Warns of parts in which nothing can be told apart, and of classes that nothing is learnt of.
    fn warn_of_labels(&self, names: &[String], by_part: &[Vec<u32>; 3]) {
        for (part, labels) in ["training", "validation", "test"].iter().zip(by_part) {
            let different = labels.iter().collect::<BTreeSet<_>>().len();
            let (what, so) = match (different, *part) {
                (0, "validation") | (2.., _) => continue,
                (0, _) => ("no labelled window", "so nothing can be scored"),
                (_, "validation") => {
                    ("windows of one class only", "so penalties are chosen blindly")
                }
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

/// Refuses labels that no window has, that are measurements, or that are all the same. `by_part` has those of training,
/// validation and test.
fn refuse_useless(
    asked: &str,
    names: &[String],
    by_part: &[Vec<u32>; 3],
    checks: &Checks,
) -> Result<(), PipelineError> {
    let setting = |what: String| Err(PipelineError::Setting(what));
    let labelled: usize = by_part.iter().map(Vec::len).sum();
    let classes: BTreeSet<u32> = by_part.iter().flatten().copied().collect();
    let column = about_column(names, checks);
    if labelled == 0 {
        return setting(format!(
            "`labels` is {asked}, and no window has a label{column}\n  \
             declare the column of classes in `data.columns.label`, lower `labels.majority.share`, or train without (--set labels=none)"
        ));
    }
    if classes.len() > 20 && 2 * classes.len() > labelled {
        return setting(format!(
            "`labels` is {asked}, and the {labelled} labelled windows have {} classes{column}: labels are classes, not measurements\n  \
             declare a column of classes in `data.columns.label`, or train without (--set labels=none)",
            classes.len()
        ));
    }
    if let [only] = Vec::from_iter(&classes)[..] {
        let name = names.get(*only as usize).map_or("", String::as_str);
        return setting(format!(
            "`labels` is {asked}, and all {labelled} labelled windows are of the class `{name}`: there is nothing to tell apart\n  \
             declare another column in `data.columns.label`, or train without (--set labels=none)"
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
    use super::unlearnt;

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
