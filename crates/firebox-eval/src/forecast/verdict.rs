//! The one sentence on a forecaster. As for encoders, a gain whose interval includes zero is never a
//! win. "Beats" needs a win over every baseline, over all outputs together, and none that is better
//! at any of them; where no difference from one is shown, the sentence says so.

use super::{ForecastEvaluation, ForecastGain, Forecaster};
use crate::text::{count, list, percent, significant};
use crate::verdict::FEWEST_WINDOWS;
use crate::{Outcome, Verdict};

/// The verdict on forecasts.
pub fn forecast_verdict(evaluation: &ForecastEvaluation) -> Verdict {
    let reach = reach(evaluation);
    let few = (evaluation.independent() < FEWEST_WINDOWS)
        .then(|| format!("{}, and {FEWEST_WINDOWS} are needed", evaluation.worth()));
    let (worse, open) = (worse(evaluation), unclear(evaluation));
    // A baseline that is better is told of however few there are, if they are enough for intervals.
    if let Some(few) = few.as_ref().filter(|_| worse.is_empty()) {
        let sentence = format!("Nothing is claimed: {few}; {reach}.");
        return Verdict { outcome: Outcome::TooFewWindows, sentence };
    }
    let baselines: Vec<String> =
        evaluation.baselines().iter().map(|one| format!("the {}", one.name())).collect();
    // What the mean over all outputs leaves out has to be won by itself.
    let left_out = if evaluation.one_target() { vec![] } else { evaluation.unscaled() };
    let counted = evaluation.measured_outputs();
    let all_left_out = left_out.len() == counted;
    let mut counting = evaluation.gains.iter().filter(|gain| match gain.output {
        Some(place) => left_out.contains(&place),
        None => !all_left_out,
    });
    let wins = counting.all(|gain| gain.gain.is_above_zero());
    let several = evaluation.outputs.len() > 1;
    let all_measured = counted == evaluation.outputs.len();
    let measured = if all_measured { "" } else { " that was measured" };
    let (every, together) = match evaluation.one_target() {
        true => (format!(" at every horizon{measured}"), " over all horizons together"),
        false => (
            format!(" at every target and horizon{measured}"),
            " over all targets and horizons together",
        ),
    };
    if wins && worse.is_empty() {
        let (everywhere, but) = match (several, open.as_slice()) {
            (false, _) => ("", String::new()),
            (true, []) => (every.as_str(), String::new()),
            (true, open) => (together, format!(" (but {})", open.join("; "))),
        };
        let sentence = format!(
            "The model beats {}{everywhere}{but}: it errs {} less than the best baseline{}; {reach}.",
            list(&baselines),
            percent(least(evaluation, all_left_out).max(0.0)),
            if all_left_out { " where it gains least" } else { "" }
        );
        return Verdict { outcome: Outcome::Beats, sentence };
    }
    let mut losses = [worse, open].concat();
    if losses.is_empty() {
        losses.push(format!("{} its gain is not above zero", together.trim_start()));
    }
    let losses = losses.join("; ");
    let few = few.map_or_else(String::new, |few| format!("; {few} for a claim that it is better"));
    let sentence = format!("The model does not beat every baseline: {losses}; {reach}{few}.");
    Verdict { outcome: Outcome::DoesNotBeat, sentence }
}

/// Why a target has no scaled error.
const NO_SCALE: &str =
    "training windows cover no two of its values a season apart, or these never differ";

/// What its error is, and of which outputs it says nothing.
fn reach(evaluation: &ForecastEvaluation) -> String {
    let names: Vec<String> =
        evaluation.unmeasured().iter().map(|place| name(evaluation, *place)).collect();
    match names.len() {
        0 => error_of(evaluation),
        _ => format!(
            "{}; nothing is said of {}, of which no test value was measured",
            error_of(evaluation),
            list(&names)
        ),
    }
}

fn error_of(evaluation: &ForecastEvaluation) -> String {
    let first = evaluation.outputs.first();
    let score = evaluation.score(Forecaster::Model, None);
    let (Some(first), Some(score)) = (first, score) else {
        return "nothing was forecast".to_owned();
    };
    if evaluation.one_target() {
        let of = match evaluation.outputs.len() {
            1 => format!("{} ahead", count(first.horizon, "step")),
            _ => format!("over {}", count(evaluation.measured_outputs(), "horizon")),
        };
        match evaluation.by_scale {
            true => format!(
                "its mean absolute scaled error of `{}` {of} is {} (series are of unlike size, so errors count by each one's own scale)",
                first.target,
                significant(score.mase.value)
            ),
            false => format!(
                "its mean absolute error of `{}` {of} is {}",
                first.target,
                significant(score.mae.value)
            ),
        }
    } else {
        let without = evaluation.unscaled();
        let outputs = evaluation.measured_outputs();
        let names: Vec<String> = without.iter().map(|place| name(evaluation, *place)).collect();
        let scaled = significant(score.mase.value);
        match outputs - without.len() {
            0 => format!("no target has a scaled error: {NO_SCALE}"),
            scale if scale == outputs => format!(
                "its mean absolute scaled error over {outputs} targets and horizons is {scaled}"
            ),
            scale => format!(
                "its mean absolute scaled error over {scale} of {outputs} targets and horizons is {scaled} ({} {} no scaled error: {NO_SCALE})",
                list(&names),
                if names.len() == 1 { "has" } else { "have" }
            ),
        }
    }
}

/// An output, as a reader finds it in the tables.
fn name(evaluation: &ForecastEvaluation, place: usize) -> String {
    let output = &evaluation.outputs[place];
    format!("`{}` +{}", output.target, output.horizon)
}

/// The least gain over all baselines, of all outputs together or of `each`.
fn least(evaluation: &ForecastEvaluation, each: bool) -> f64 {
    let all = evaluation.gains.iter().filter(|gain| gain.output.is_some() == each);
    all.map(|gain| gain.gain.value).fold(f64::INFINITY, f64::min)
}

/// For each baseline, which `what` is said of: where the gain over it is so, if it is so anywhere.
fn said(
    evaluation: &ForecastEvaluation,
    what: impl Fn(&str) -> String,
    so: impl Fn(&ForecastGain) -> bool,
) -> Vec<String> {
    let mut said = vec![];
    let measured = evaluation.measured_outputs();
    for baseline in evaluation.baselines() {
        let holds = |place: &usize| evaluation.gain(baseline, Some(*place)).is_some_and(&so);
        let places: Vec<usize> = (0..evaluation.outputs.len()).filter(holds).collect();
        let names: Vec<String> = places.iter().map(|place| name(evaluation, *place)).collect();
        let of = match names.len() {
            0 => continue,
            1 if evaluation.outputs.len() == 1 => String::new(),
            all if all == measured => " everywhere".to_owned(),
            _ => format!(" at {}", list(&names)),
        };
        said.push(what(&baseline.name()) + &of);
    }
    said
}

/// Where a baseline is better, which is asked of each output and baseline, so that their number counts.
fn worse(evaluation: &ForecastEvaluation) -> Vec<String> {
    said(evaluation, |name| format!("the {name} is better"), ForecastGain::is_loss)
}

/// Where it cannot be told.
fn unclear(evaluation: &ForecastEvaluation) -> Vec<String> {
    let what = |name: &str| format!("no difference from the {name} is shown");
    let so = |gain: &ForecastGain| {
        !gain.gain.value.is_nan() && !gain.gain.is_above_zero() && !gain.is_loss()
    };
    said(evaluation, what, so)
}
