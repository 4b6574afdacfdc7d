//! What the models must beat: predictions that need no training of a network.

use std::sync::atomic::Ordering;

use firebox_core::{Event, Key};
use firebox_eval::{Contender, Features, Parts, evenly, logistic_predictions};
use firebox_loader::{LoadError, Source};

use super::train::{FoldParts, predictions};
use crate::chain::Work;
use crate::error::PipelineError;
use crate::stages::Run;
use crate::{PipelineConfig, sub};

/// Logistic regressions, and whether each sees the whole window.
const REGRESSIONS: [(&str, bool); 2] =
    [("logistic regression on the last step", false), ("logistic regression on the window", true)];

/// The majority class, the last direction, and logistic regression on the features of the last step
/// and of the whole window; each of every fold's training part alone.
pub(super) fn all(
    run: &Run<'_>,
    work: &Work<'_>,
    folds: &[FoldParts],
    classes: usize,
) -> Result<Vec<Contender>, PipelineError> {
    let mut all = vec![contender("majority class", folds.iter().flat_map(majority).collect())];
    let directions = folds.iter().flat_map(|fold| last_direction(run.config, fold)).collect();
    let usual = folds.iter().flat_map(majority).collect();
    all.extend(directions_or(directions, usual).map(|own| contender("last direction", own)));
    let mut done = 0;
    for (name, whole) in REGRESSIONS {
        let mut predicted = Vec::new();
        for (fold, number) in folds.iter().zip(1..) {
            if run.stop.load(Ordering::SeqCst) {
                return Err(PipelineError::Interrupted);
            }
            predicted.extend(regression(run, work, (number, fold), whole, classes)?);
            done += 1;
            run.listener.on(&Event::Progress {
                stage: "evaluate".to_owned(),
                done,
                total: (REGRESSIONS.len() * folds.len()) as u64,
                unit: "baselines".to_owned(),
            });
        }
        all.push(contender(name, predicted));
    }
    Ok(all)
}

/// What a logistic regression tells of a fold, kept beside the fold's trainings.
fn regression(
    run: &Run<'_>,
    work: &Work<'_>,
    (number, fold): (u64, &FoldParts),
    whole: bool,
    classes: usize,
) -> Result<Vec<u32>, PipelineError> {
    let key = Key::builder("baseline", 1)
        .upstream("evaluation", run.keys.evaluation)
        .field("fold", number.to_le_bytes())
        .field("whole", [u8::from(whole)])
        .finish();
    predictions(&sub::path(work, &format!("fold-{number}/baselines")), &key, fold, || {
        let config = &run.config.evaluate;
        let parts = Parts {
            train: features(fold.train.as_ref(), config.train_limit, whole)?,
            validation: features(fold.validation.as_ref(), config.train_limit, whole)?,
            test: features(fold.test.as_ref(), 0, whole)?,
        };
        Ok(logistic_predictions(config, classes, &parts, run.stop)?)
    })
}

fn contender(name: &str, predicted: Vec<u32>) -> Contender {
    Contender { name: name.to_owned(), baseline: true, predicted }
}

/// The most frequent class of the training windows; of equally frequent ones the first.
fn majority(fold: &FoldParts) -> Vec<u32> {
    let mut counts = std::collections::BTreeMap::<u32, usize>::new();
    for label in fold.train.windows().windows().iter().filter_map(|window| window.label) {
        *counts.entry(label).or_default() += 1;
    }
    let most = counts.iter().rev().max_by_key(|(_, count)| **count);
    vec![most.map_or(0, |(label, _)| *label); fold.test.len()]
}

/// The last directions, and what is usual where one of them was not measured; none where no window has one, as those that
/// are shorter than the horizon have not.
fn directions_or(directions: Vec<Option<u32>>, usual: Vec<u32>) -> Option<Vec<u32>> {
    let any = directions.iter().any(Option::is_some);
    let own = || directions.iter().zip(usual).map(|(own, usual)| own.unwrap_or(usual)).collect();
    any.then(own)
}

/// The class of the move that ends with each window, as if it went on.
fn last_direction<'a>(
    config: &'a PipelineConfig,
    fold: &'a FoldParts,
) -> impl Iterator<Item = Option<u32>> + 'a {
    let windows = fold.test.windows();
    windows.windows().iter().map(|window| config.labels.last_direction(windows.set(), &window))
}

/// Normalised values of at most `limit` windows (0 is all), taken [`evenly`]: of the last step, or of all.
fn features(source: &dyn Source, limit: usize, whole: bool) -> Result<Features, LoadError> {
    let [time, channels] = source.shape();
    let width = if whole { time * channels } else { channels };
    let mut out = Features { width, ..Features::default() };
    let mut row = vec![0.0; time * channels];
    for index in evenly(source.len(), limit).0 {
        row.fill(0.0);
        let sample = source.read(index, &mut row)?;
        out.rows.extend_from_slice(&row[row.len() - width..]);
        out.labels.push(sample.label.unwrap_or_default());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_direction_that_was_not_measured_is_the_usual_one() {
        let directions = vec![Some(2), None, Some(0)];
        assert_eq!(directions_or(directions, vec![1, 1, 1]), Some(vec![2, 1, 0]));
        assert_eq!(directions_or(vec![None, None], vec![1, 1]), None);
    }
}
