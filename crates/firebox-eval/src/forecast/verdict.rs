//! The one sentence on a forecaster. As for encoders, a gain whose interval includes zero is never a
//! win. "Beats" needs a win over every baseline, over all outputs together, and none that is better
//! at any of them; where one is as good, the sentence says so.

use super::{ForecastEvaluation, Forecaster};
use crate::text::{count, list, percent, significant};
use crate::verdict::FEWEST_WINDOWS;
use crate::{Estimate, Outcome, Verdict};

/// The verdict on forecasts.
pub fn forecast_verdict(evaluation: &ForecastEvaluation) -> Verdict {
    let independent = evaluation.windows / evaluation.block.max(1);
    let reach = reach(evaluation);
    if independent < FEWEST_WINDOWS {
        let sentence = format!(
            "Nothing is claimed: {} test windows that overlap in blocks of {} are as good as {independent} independent ones, and {FEWEST_WINDOWS} are needed; {reach}.",
            evaluation.windows, evaluation.block
        );
        return Verdict { outcome: Outcome::TooFewWindows, sentence };
    }
    let baselines: Vec<String> =
        evaluation.baselines().iter().map(|one| format!("the {}", one.name())).collect();
    let (worse, open) = (worse(evaluation), unclear(evaluation));
    let mut overall = evaluation.gains.iter().filter(|gain| gain.output.is_none());
    let wins = overall.all(|gain| gain.gain.is_above_zero());
    let several = evaluation.outputs.len() > 1;
    if wins && worse.is_empty() {
        let (everywhere, but) = match (several, open.as_slice()) {
            (false, _) => ("", String::new()),
            (true, []) => (" at every horizon", String::new()),
            (true, open) => (" over all horizons together", format!(" (but {})", open.join("; "))),
        };
        let sentence = format!(
            "The model beats {}{everywhere}{but}: it errs {} less than the best baseline; {reach}.",
            list(&baselines),
            percent(least(evaluation).max(0.0))
        );
        return Verdict { outcome: Outcome::Beats, sentence };
    }
    let mut losses = [worse, open].concat();
    if losses.is_empty() {
        losses.push("over all horizons together its gain is not above zero".to_owned());
    }
    let losses = losses.join("; ");
    let sentence = format!("The model does not beat every baseline: {losses}; {reach}.");
    Verdict { outcome: Outcome::DoesNotBeat, sentence }
}

/// What its error is.
fn reach(evaluation: &ForecastEvaluation) -> String {
    let one_target = evaluation.outputs.windows(2).all(|pair| pair[0].target == pair[1].target);
    let first = evaluation.outputs.first();
    let score = evaluation.score(Forecaster::Model, None);
    let (Some(first), Some(score)) = (first, score) else {
        return "nothing was forecast".to_owned();
    };
    if one_target {
        let of = match evaluation.outputs.len() {
            1 => format!("{} ahead", count(first.horizon, "step")),
            horizons => format!("over {horizons} horizons"),
        };
        format!(
            "its mean absolute error of `{}` {of} is {}",
            first.target,
            significant(score.mae.value)
        )
    } else {
        let outputs = evaluation.outputs.len();
        format!(
            "its mean absolute scaled error over {outputs} targets and horizons is {}",
            significant(score.mase.value)
        )
    }
}

/// The least gain over all baselines, of all outputs together.
fn least(evaluation: &ForecastEvaluation) -> f64 {
    let all = evaluation.gains.iter().filter(|gain| gain.output.is_none());
    all.map(|gain| gain.gain.value).fold(f64::INFINITY, f64::min)
}

/// For each baseline: where the gain over it is so, if it is so anywhere.
fn said(
    evaluation: &ForecastEvaluation,
    what: &str,
    so: impl Fn(&Estimate) -> bool,
) -> Vec<String> {
    let mut said = vec![];
    for baseline in evaluation.baselines() {
        let holds = |place: &usize| {
            evaluation.gain(baseline, Some(*place)).is_some_and(|gain| so(&gain.gain))
        };
        let places: Vec<usize> = (0..evaluation.outputs.len()).filter(holds).collect();
        let name = |place: &usize| {
            let output = &evaluation.outputs[*place];
            format!("`{}` +{}", output.target, output.horizon)
        };
        let names: Vec<String> = places.iter().map(name).collect();
        let of = match names.len() {
            0 => continue,
            1 if evaluation.outputs.len() == 1 => String::new(),
            all if all == evaluation.outputs.len() => " everywhere".to_owned(),
            _ => format!(" at {}", list(&names)),
        };
        said.push(format!("the {} is {what}{of}", baseline.name()));
    }
    said
}

/// Where a baseline is better.
fn worse(evaluation: &ForecastEvaluation) -> Vec<String> {
    said(evaluation, "better", Estimate::is_below_zero)
}

/// Where it cannot be told.
fn unclear(evaluation: &ForecastEvaluation) -> Vec<String> {
    said(evaluation, "as good", |gain| !gain.is_above_zero() && !gain.is_below_zero())
}
