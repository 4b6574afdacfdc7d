//! The one sentence that a report begins with.
//!
//! A difference whose interval includes zero is never called a win. The claim "beats its baselines"
//! needs a win over every one of them, so testing several of them takes no correction (an
//! intersection-union test).

use serde::{Deserialize, Serialize};

use crate::bootstrap::FEWEST_BLOCKS;
use crate::text::{count, list, percent, points, signed_points, significant};
use crate::{Difference, Estimate, Evaluation, Head, Reconstruction, Reduction, Score, Subject};

/// Independent test windows below which nothing is claimed.
pub const FEWEST_WINDOWS: usize = 20;

/// What is said of a difference in fewer.
pub(crate) const TOO_FEW: &str = "too few windows to tell";

/// Share from which on a reader is told how many times something is as large, and not by how many per cent it is larger.
const MOST_PERCENT: f64 = 10.0;

/// What the verdict says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Better than every baseline, each by an interval above zero.
    Beats,
    /// Not better than every baseline.
    DoesNotBeat,
    /// Too few independent test windows for a claim.
    TooFewWindows,
    /// No labels: only reconstruction was measured, if anything.
    NoLabels,
    /// Something that would have to be beaten was not trained.
    NotMeasured,
}

/// The first line of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// What it says, as a value.
    pub outcome: Outcome,
    /// What it says, as a sentence.
    pub sentence: String,
}

/// The verdict on an evaluation, or on the reconstruction where there are no labels.
pub fn verdict(
    evaluation: Option<&Evaluation>,
    reconstruction: Option<&Reconstruction>,
) -> Verdict {
    match evaluation {
        Some(evaluation) => on_labels(evaluation),
        None => Verdict { outcome: Outcome::NoLabels, sentence: on_reconstruction(reconstruction) },
    }
}

fn on_labels(evaluation: &Evaluation) -> Verdict {
    let metric = evaluation.metric;
    let score = evaluation.score(Subject::PreTrained, Some(Head::Logistic));
    let own = score.map(|score| score.metric(metric)).unwrap_or_default();
    let interval = percent_interval(evaluation.confidence);
    let within = |estimate: &Estimate| {
        estimate.ends(percent).map_or_else(String::new, |ends| format!(" ({interval} {ends})"))
    };
    let reach = format!(
        "a linear probe on the frozen encoder reaches {} test {}{}",
        percent(own.value),
        metric.name(),
        within(&own)
    );
    let against: Vec<&Difference> = evaluation
        .differences
        .iter()
        .filter(|difference| difference.head == Head::Logistic && difference.metric == metric)
        .collect();
    let independent = evaluation.independent_windows();
    let few = independent < FEWEST_WINDOWS;
    let is_lost = |difference: &&Difference| difference.difference.is_below_zero();
    // A baseline that is better is told of, but of so few that an interval means nothing.
    if few && (independent < FEWEST_BLOCKS || !against.iter().any(is_lost)) {
        let sentence = format!(
            "Too few test windows to say whether pre-training helps ({}; it takes {FEWEST_WINDOWS}): {reach}.",
            count(independent, "independent one")
        );
        return Verdict { outcome: Outcome::TooFewWindows, sentence };
    }
    let (won, open): (Vec<&Difference>, Vec<&Difference>) =
        against.iter().partition(|difference| difference.difference.is_above_zero());
    let least = |of: &[&Difference]| {
        of.iter().copied().min_by(|a, b| a.difference.value.total_cmp(&b.difference.value)).cloned()
    };
    let lost: Vec<&Difference> = open.iter().copied().filter(is_lost).collect();
    let beside = match few {
        true => format!(
            " With {} these are rough figures.",
            count(independent, "independent test window")
        ),
        false => beaten(&won),
    };
    let stronger = stronger(evaluation);
    let reached = |other: &Score| {
        let value = other.metric(metric);
        let (subject, share) = (baseline(other.subject), percent(value.value));
        format!("nearest neighbours on {subject} reach {share}{}", within(&value))
    };
    let also = stronger.map_or_else(String::new, |other| {
        let mut said = format!(" {}.", reached(other));
        if let Some(first) = said.get_mut(1..2) {
            first.make_ascii_uppercase();
        }
        said
    });
    match (least(&lost).or_else(|| least(&open)), least(&won)) {
        (None, Some(best)) => {
            let lead = || {
                let Estimate { value, low, high } = best.difference;
                let [value, low, high] = [value, low, high].map(points);
                let name = baseline(best.baseline);
                format!(
                    "{value} points above the best of the others by such a probe, {name} ({interval} {low} to {high} points)"
                )
            };
            let (outcome, sentence) = match stronger {
                Some(other) => (
                    Outcome::DoesNotBeat,
                    format!(
                        "Pre-training does not beat its baselines: {reach}, {}, and {}.",
                        lead(),
                        reached(other)
                    ),
                ),
                None => (
                    Outcome::Beats,
                    format!("Pre-training beats its baselines: {reach}, {}.", lead()),
                ),
            };
            Verdict { outcome, sentence }
        }
        (Some(worst), _) => Verdict {
            outcome: Outcome::DoesNotBeat,
            sentence: format!(
                "Pre-training does not beat its baselines: {reach}; against {} the difference is {} points ({interval} {} to {}), {}.{}{also}",
                baseline(worst.baseline),
                signed_points(worst.difference.value),
                signed_points(worst.difference.low),
                signed_points(worst.difference.high),
                if worst.difference.is_below_zero() {
                    "which is worse"
                } else {
                    "an interval that includes zero"
                },
                beside
            ),
        },
        (None, None) => Verdict {
            outcome: Outcome::DoesNotBeat,
            sentence: format!("Pre-training was compared with no baseline: {reach}."),
        },
    }
}

/// The baseline that by its nearest neighbours reaches at least what the pre-trained encoder does by anything, if there is
/// one: whoever has it needs no encoder.
fn stronger(evaluation: &Evaluation) -> Option<&Score> {
    let value = |score: &Score| score.metric(evaluation.metric).value;
    let own = evaluation.scores.iter().filter(|score| score.subject == Subject::PreTrained);
    let own = own.map(value).fold(f64::NEG_INFINITY, f64::max);
    let others = evaluation.scores.iter().filter(|score| {
        let is_other = score.subject != Subject::PreTrained && score.head == Some(Head::Neighbours);
        is_other && value(score) >= own
    });
    others.max_by(|a, b| value(a).total_cmp(&value(b)))
}

fn beaten(won: &[&Difference]) -> String {
    if won.is_empty() {
        return String::new();
    }
    let names: Vec<_> = won.iter().map(|difference| baseline(difference.baseline)).collect();
    format!(" By such a probe it does beat {}.", list(&names))
}

fn on_reconstruction(reconstruction: Option<&Reconstruction>) -> String {
    let start = "There are no labels, so whether pre-training helps a task was not measured";
    match reconstruction.and_then(compared) {
        Some(compared) => format!("{start}; {compared}."),
        None => format!("{start}, and no masked window was reconstructed either."),
    }
}

/// How the reconstruction compares with the naive fill that is hardest to beat.
pub(crate) fn compared(reconstruction: &Reconstruction) -> Option<String> {
    let Reduction { fill, reduction } = reconstruction.hardest()?;
    let (size, fill) = (percent(reduction.value.abs()), fill.name());
    let interval = percent_interval(reconstruction.confidence);
    let [low, high] = if reduction.value >= 0.0 {
        [reduction.low, reduction.high]
    } else {
        [-reduction.high, -reduction.low]
    };
    let ends = Estimate { low, high, ..*reduction }.ends(percent);
    let word = if reduction.value >= 0.0 { "below" } else { "above" };
    let error = "the model's error on masked steps is";
    let by = match reduction.value.is_finite() {
        true => format!("{size} {word} that of {fill}"),
        false => format!("above that of {fill}, which errs nowhere"),
    };
    let Some(range) = ends.map(|ends| format!("({interval} {ends})")) else {
        return Some(format!(
            "{error} {by}, and the test windows are too few to say more: they are as good as {}",
            count(reconstruction.independent_windows(), "independent one")
        ));
    };
    Some(if !reduction.value.is_finite() {
        format!("{error} {by}")
    } else if reduction.is_above_zero() {
        format!("{error} {size} below that of the best naive fill, {fill} {range}")
    } else if is_many_times(reduction) {
        let Estimate { value, low, high } = times_of(reduction);
        let [value, low, high] = [value, low, high].map(significant);
        format!("{error} {value} times that of {fill} ({interval} {low} to {high})")
    } else if reduction.is_below_zero() {
        format!("{error} worse than that of {fill}, by {size} {range}")
    } else {
        format!(
            "{error} not shown to be below that of {fill}: {size} {word} it {range}, an interval that includes zero"
        )
    })
}

/// Whether an error is so much larger that a reader is told how many times as large it is.
pub(crate) fn is_many_times(reduction: &Estimate) -> bool {
    reduction.is_below_zero() && reduction.value <= -MOST_PERCENT
}

/// How many times as large an error is whose reduction is given.
pub(crate) fn times_of(reduction: &Estimate) -> Estimate {
    let [value, low, high] =
        [reduction.value, reduction.high, reduction.low].map(|reduction| 1.0 - reduction);
    Estimate { value, low, high }
}

/// What is said of a difference from a baseline on windows that are as good as so many independent ones: a baseline
/// that is better is told of in few, too, as the verdict does.
pub(crate) fn conclusion(independent: usize, difference: &Estimate) -> &'static str {
    match () {
        () if difference.is_below_zero() && independent >= FEWEST_BLOCKS => "worse",
        () if independent < FEWEST_WINDOWS => TOO_FEW,
        () if difference.is_above_zero() => "better",
        () => "no difference shown",
    }
}

/// A share below 1 in per cent, with as few decimals as tell it from a whole, one at most where that is enough: 95, 97.5,
/// 98.3, 99.99.
pub fn share_text(share: f64) -> String {
    let percent = 100.0 * share;
    let rounded = |places: i32| (percent * 10f64.powi(places)).round() / 10f64.powi(places);
    let told = (1..=6).map(rounded).find(|rounded| *rounded < 100.0);
    told.unwrap_or(percent).to_string()
}

/// `95 % interval`.
pub(crate) fn percent_interval(confidence: f64) -> String {
    format!("{} % interval", share_text(confidence))
}

/// A baseline with its article.
pub(crate) fn baseline(subject: Subject) -> &'static str {
    match subject {
        Subject::PreTrained => "the pre-trained encoder",
        Subject::RandomEncoder => "the randomly initialised encoder",
        Subject::RawWindows => "raw windows",
        Subject::Majority => "the majority class",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_told_from_a_whole() {
        let told = [0.95, 0.975, 1.0 - 0.05 / 3.0, 0.995, 0.9999, 0.99999].map(share_text);
        assert_eq!(told, ["95", "97.5", "98.3", "99.5", "99.99", "99.999"]);
    }
}
