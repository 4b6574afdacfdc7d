//! The one sentence on a forecaster. As for encoders, a gain whose interval includes zero is never a
//! win, and "beats" needs a win over every baseline at every output.

use super::{ForecastEvaluation, Forecaster};
use crate::text::{list, percent, significant};
use crate::verdict::FEWEST_WINDOWS;
use crate::{Outcome, Verdict};

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
    let losses = losses(evaluation);
    let baselines: Vec<String> =
        evaluation.baselines().iter().map(|one| format!("the {}", one.name())).collect();
    if losses.is_empty() {
        let everywhere = match evaluation.outputs.len() {
            1 => String::new(),
            _ => " at every horizon".to_owned(),
        };
        let sentence = format!(
            "The model beats {}{everywhere}: it errs {} less than the best baseline; {reach}.",
            list(&baselines),
            percent(least(evaluation).max(0.0))
        );
        return Verdict { outcome: Outcome::Beats, sentence };
    }
    let sentence =
        format!("The model does not beat every baseline: {}; {reach}.", losses.join("; "));
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
            1 => format!("{} step ahead", first.horizon),
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

/// For each baseline that is not beaten everywhere: where.
fn losses(evaluation: &ForecastEvaluation) -> Vec<String> {
    let mut said = vec![];
    for baseline in evaluation.baselines() {
        let (mut worse, mut open) = (vec![], vec![]);
        for (place, output) in evaluation.outputs.iter().enumerate() {
            let Some(gain) = evaluation.gain(baseline, Some(place)) else { continue };
            let name = format!("`{}` +{}", output.target, output.horizon);
            match gain.gain {
                gain if gain.is_below_zero() => worse.push(name),
                gain if !gain.is_above_zero() => open.push(name),
                _ => {}
            }
        }
        let of = |places: &[String]| match places.len() {
            all if all == evaluation.outputs.len() => "everywhere".to_owned(),
            _ => format!("at {}", list(places)),
        };
        let name = baseline.name();
        if !worse.is_empty() {
            said.push(format!("the {name} is better {}", of(&worse)));
        }
        if !open.is_empty() {
            said.push(format!("the {name} is as good {}", of(&open)));
        }
    }
    said
}
