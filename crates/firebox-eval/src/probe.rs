//! Fits the heads of one subject and predicts its test windows, without looking at them before.

use std::sync::atomic::AtomicBool;

use crate::features::stratified_folds;
use crate::logistic::{Logistic, LogisticProblem, Stop};
use crate::{EvalConfig, EvalError, Features, Neighbours, Parts, ProbeConfig};

/// While choosing a penalty, a gradient this small is near enough.
const CHOOSING: f64 = 1e-5;
/// The final fit goes on to this gradient of the mean loss.
const FINAL: f64 = 1e-6;

/// The test predictions of both heads.
pub(crate) struct HeadPredictions {
    pub(crate) logistic: Vec<u32>,
    pub(crate) neighbours: Vec<u32>,
    /// The penalty chosen.
    pub(crate) l2: f64,
    /// Whether the final fit converged.
    pub(crate) converged: bool,
}

/// Chooses the penalty on training and validation windows, fits both heads on the two together, and
/// predicts the test windows.
///
/// # Errors
///
/// [`EvalError::Stopped`] once `halt` is true.
pub(crate) fn fit_and_predict(
    config: &EvalConfig,
    classes: usize,
    parts: &Parts,
    halt: &AtomicBool,
) -> Result<HeadPredictions, EvalError> {
    let train = &parts.train;
    let all = train.joined(&parts.validation);
    let l2 = choose(&config.probe, classes, train, &parts.validation, &all, halt)?;
    let fitted = last_fit(&config.probe, classes, &all, l2, halt)?;
    let neighbours = Neighbours::fit(&all, classes, config.knn.distance);
    Ok(HeadPredictions {
        logistic: fitted.predict(&parts.test.rows),
        neighbours: neighbours.predict(&parts.test.rows, config.knn.neighbours),
        l2,
        converged: fitted.converged,
    })
}

/// What logistic regression on these features predicts for the test rows. Its penalty is chosen on
/// training and validation rows, on which it is fitted then. Once `halt` is true, it ends after the iteration of a fit
/// that it is in.
///
/// # Errors
///
/// Names the part and row of the first value that cannot be used. [`EvalError::Stopped`] by `halt`.
pub fn logistic_predictions(
    config: &EvalConfig,
    classes: usize,
    parts: &Parts,
    halt: &AtomicBool,
) -> Result<Vec<u32>, EvalError> {
    parts.check(classes)?;
    let all = parts.train.joined(&parts.validation);
    let l2 = choose(&config.probe, classes, &parts.train, &parts.validation, &all, halt)?;
    Ok(last_fit(&config.probe, classes, &all, l2, halt)?.predict(&parts.test.rows))
}

/// The fit with the penalty that was chosen, to the end.
fn last_fit(
    config: &ProbeConfig,
    classes: usize,
    all: &Features,
    l2: f64,
    halt: &AtomicBool,
) -> Result<Logistic, EvalError> {
    let stop = Stop { iterations: config.iterations, gradient: FINAL };
    let fitted = LogisticProblem::new(all, classes).fit_watched(l2, None, stop, halt);
    EvalError::heed(halt)?;
    Ok(fitted)
}

/// The penalty of logistic regression with the smallest log-loss in stratified cross-validation over
/// the training rows; of equal ones the strongest. Once `halt` is true, it ends after the iteration of a fit that it is in.
///
/// # Errors
///
/// [`EvalError::Stopped`] by `halt`.
///
/// # Panics
///
/// When there is no row or no strength.
pub fn choose_penalty(
    train: &Features,
    classes: usize,
    strengths: &[f64],
    folds: usize,
    halt: &AtomicBool,
) -> Result<f64, EvalError> {
    assert!(!train.is_empty() && !strengths.is_empty(), "nothing to choose from");
    let config = ProbeConfig { l2: strengths.to_vec(), folds, ..ProbeConfig::default() };
    choose(&config, classes, train, &Features::default(), train, halt)
}

/// The penalty with the smallest log-loss on windows that were not fitted; of equal ones the
/// strongest.
fn choose(
    config: &ProbeConfig,
    classes: usize,
    train: &Features,
    validation: &Features,
    all: &Features,
    halt: &AtomicBool,
) -> Result<f64, EvalError> {
    let strengths = strengths(config);
    if let [only] = strengths[..] {
        return Ok(only);
    }
    let mut losses = vec![0.0; strengths.len()];
    // Of no windows the loss is 0 with any penalty.
    if !validation.is_empty() && validation.len() >= config.validation_minimum {
        add_losses(config, classes, &strengths, [train, validation], &mut losses, halt)?;
    } else {
        let folds = config.folds.min(all.len()).max(2);
        let fold_of = stratified_folds(&all.labels, folds);
        for fold in 0..folds {
            let (held, fitted): (Vec<usize>, Vec<usize>) =
                (0..all.len()).partition(|row| fold_of[*row] == fold);
            if !held.is_empty() && !fitted.is_empty() {
                let (fitted, held) = (all.select(&fitted), all.select(&held));
                add_losses(config, classes, &strengths, [&fitted, &held], &mut losses, halt)?;
            }
        }
    }
    let mut best = 0;
    for (place, loss) in losses.iter().enumerate() {
        if *loss < losses[best] {
            best = place;
        }
    }
    Ok(strengths[best])
}

/// What logistic regression, fitted on the training rows alone, predicts for the validation rows. Its
/// penalty is the one with the smallest log-loss there; of equal ones the strongest.
///
/// # Errors
///
/// [`EvalError::Stopped`] once `halt` is true.
pub(crate) fn validation_predictions(
    config: &ProbeConfig,
    classes: usize,
    train: &Features,
    validation: &Features,
    halt: &AtomicBool,
) -> Result<Vec<u32>, EvalError> {
    let mut best: Option<(f64, Logistic)> = None;
    each_fit(config, classes, &strengths(config), train, halt, |_, fitted| {
        let loss = fitted.log_loss(validation);
        if best.as_ref().is_none_or(|(least, _)| loss < *least) {
            best = Some((loss, fitted.clone()));
        }
    })?;
    Ok(best.map_or_else(Vec::new, |(_, fitted)| fitted.predict(&validation.rows)))
}

/// The penalties to choose from, from strong to weak.
fn strengths(config: &ProbeConfig) -> Vec<f64> {
    let mut strengths = config.l2.clone();
    strengths.sort_unstable_by(|a, b| b.total_cmp(a));
    strengths.dedup();
    strengths
}

/// Fits with each penalty, each from its stronger neighbour; `take` gets the place of each and its fit.
fn each_fit(
    config: &ProbeConfig,
    classes: usize,
    strengths: &[f64],
    train: &Features,
    halt: &AtomicBool,
    mut take: impl FnMut(usize, &Logistic),
) -> Result<(), EvalError> {
    let problem = LogisticProblem::new(train, classes);
    let stop = Stop { iterations: config.iterations, gradient: CHOOSING };
    let mut previous = None;
    for (place, l2) in strengths.iter().enumerate() {
        let fitted = problem.fit_watched(*l2, previous.as_ref(), stop, halt);
        EvalError::heed(halt)?;
        take(place, &fitted);
        previous = Some(fitted);
    }
    Ok(())
}

fn add_losses(
    config: &ProbeConfig,
    classes: usize,
    strengths: &[f64],
    [train, held]: [&Features; 2],
    losses: &mut [f64],
    halt: &AtomicBool,
) -> Result<(), EvalError> {
    each_fit(config, classes, strengths, train, halt, |place, fitted| {
        losses[place] += fitted.log_loss(held) * held.len() as f64;
    })
}

#[cfg(test)]
mod tests {
    use firebox_core::Stream;

    use super::*;

    /// Class-dependent means in the first column, noise in the others.
    fn sample(rows: usize, width: usize, seed: u64) -> Features {
        let mut draws = Stream::new(seed, "probe").draws();
        let labels: Vec<u32> = (0..rows).map(|_| draws.below(2) as u32).collect();
        let mut values = Vec::with_capacity(rows * width);
        for label in &labels {
            values.push((draws.normal() + f64::from(*label)) as f32);
            values.extend((1..width).map(|_| draws.normal() as f32));
        }
        Features { rows: values, width, labels }
    }

    #[test]
    fn noise_asks_for_a_strong_penalty_by_either_way_of_choosing() {
        let config = EvalConfig::default();
        for validation in [0, 30, 300] {
            let train = sample(80, 60, 1);
            let validation = sample(validation, 60, 2);
            let all = train.joined(&validation);
            let never = AtomicBool::new(false);
            let l2 = choose(&config.probe, 2, &train, &validation, &all, &never).unwrap();
            assert!(l2 >= 10.0, "{} windows of validation: {l2}", validation.len());
        }
    }

    #[test]
    fn without_validation_windows_the_penalty_is_chosen_on_folds_whatever_their_minimum() {
        let labels: Vec<u32> = (0..80).map(|row| row % 2).collect();
        let rows = labels.iter().map(|label| *label as f32).collect();
        let train = Features { rows, width: 1, labels };
        let probe = ProbeConfig { validation_minimum: 0, ..ProbeConfig::default() };
        let (none, never) = (Features::default(), AtomicBool::new(false));
        // Held rows are like the fitted ones: the weaker the penalty, the smaller their loss.
        let l2 = choose(&probe, 2, &train, &none, &train, &never).unwrap();
        assert!(l2 <= 1.0, "{l2}");
    }

    #[test]
    fn the_test_part_changes_nothing_that_is_fitted() {
        let config = EvalConfig::default();
        let mut parts =
            Parts { train: sample(90, 8, 1), validation: sample(20, 8, 2), test: sample(40, 8, 3) };
        let never = AtomicBool::new(false);
        let before = fit_and_predict(&config, 2, &parts, &never).unwrap();
        let first = parts.test.select(&[0]);
        parts.test = first;
        parts.test.labels[0] ^= 1;
        let after = fit_and_predict(&config, 2, &parts, &never).unwrap();
        assert_eq!((before.l2, before.logistic[0]), (after.l2, after.logistic[0]));
        assert_eq!(before.neighbours[0], after.neighbours[0]);
        assert!(before.converged);
    }

    #[test]
    fn a_probe_ends_within_a_fit_once_it_is_asked_to_stop() {
        let (config, halt) = (EvalConfig::default(), AtomicBool::new(true));
        let parts =
            Parts { train: sample(90, 8, 1), validation: sample(20, 8, 2), test: sample(40, 8, 3) };
        let is_stopped =
            |error: Option<EvalError>| assert!(matches!(error, Some(EvalError::Stopped)));
        is_stopped(fit_and_predict(&config, 2, &parts, &halt).err());
        is_stopped(logistic_predictions(&config, 2, &parts, &halt).err());
        is_stopped(choose_penalty(&parts.train, 2, &[1.0, 10.0], 5, &halt).err());
        let (train, validation) = (&parts.train, &parts.validation);
        is_stopped(validation_predictions(&config.probe, 2, train, validation, &halt).err());
        // With one penalty there is nothing to choose, and the last fit looks at it.
        let probe = ProbeConfig { l2: vec![1.0], ..ProbeConfig::default() };
        let only = EvalConfig { probe, ..config };
        is_stopped(fit_and_predict(&only, 2, &parts, &halt).err());
    }
}
