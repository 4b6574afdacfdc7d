//! What an encoder's pre-training is worth to a classifier, by how many labels there are.
//!
//! Arms are ways of beginning and freezing the encoder; each is trained at each share of the labels with
//! several seeds. Here are only their predictions for the same test windows: scores, paired differences,
//! and the one sentence that is left of them. Nothing here trains.

use std::collections::BTreeMap;

use firebox_core::Stream;
use serde::{Deserialize, Serialize};

use crate::bootstrap::{FEWEST_BLOCKS, bound_when_all_agree, have_intervals};
use crate::text::{count, list, percent, points, signed_points};
use crate::together::independent;
use crate::verdict::{FEWEST_WINDOWS, Outcome, Verdict, conclusion, percent_interval};
use crate::{
    Comparison, Confusion, Estimate, EvalConfig, Metric, Predictions, Resampling, TestScore,
    Together,
};

/// A way of beginning and freezing the encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// Begun with the pre-trained weights, frozen at first, then trained.
    FineTuned,
    /// Begun with the pre-trained weights and frozen: only the head is trained.
    PreTrainedFrozen,
    /// Begun at random and trained as a whole from the first epoch.
    FromScratch,
    /// Begun at random and frozen: only the head is trained.
    RandomFrozen,
}

impl Arm {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::FineTuned, Self::PreTrainedFrozen, Self::FromScratch, Self::RandomFrozen];

    /// Its name in running text.
    pub fn name(self) -> &'static str {
        match self {
            Self::FineTuned => "pre-trained, fine-tuned",
            Self::PreTrainedFrozen => "pre-trained, frozen",
            Self::FromScratch => "from scratch",
            Self::RandomFrozen => "random, frozen",
        }
    }

    /// Whether it begins with the pre-trained weights.
    pub fn is_pretrained(self) -> bool {
        matches!(self, Self::FineTuned | Self::PreTrainedFrozen)
    }
}

/// What arms predicted at one share of the labels.
#[derive(Clone, Debug, PartialEq)]
pub struct SharePredictions {
    /// Share of the labelled training windows, above 0 and at most 1.
    pub share: f64,
    /// Training windows of each seed, in the mean.
    pub windows: f64,
    /// The share of the labelled windows that these are, where whole series make another one of it.
    pub drawn: Option<f64>,
    /// Test predictions of each arm, `[seed][window]`.
    pub arms: BTreeMap<Arm, Predictions>,
}

/// One arm at one share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmScore {
    /// The arm.
    pub arm: Arm,
    /// Seeds.
    pub seeds: usize,
    /// Standard deviation of the headline metric over the seeds, where there are several.
    pub spread: Option<f64>,
    /// Every metric, in the mean over the seeds, with its interval over seeds and test windows.
    pub metrics: BTreeMap<Metric, Estimate>,
    /// Seeds that predicted a single class for every test window.
    pub constant: usize,
}

/// The fine-tuned encoder minus something else at one share, in the headline metric, on the same
/// resamples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmDifference {
    /// The other arm; none for the majority class.
    pub baseline: Option<Arm>,
    /// Fine-tuned minus the other.
    pub difference: Estimate,
}

/// Everything at one share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShareScores {
    /// Share of the labelled training windows.
    pub share: f64,
    /// Training windows, in the mean over the seeds.
    pub windows: f64,
    /// The share of the labelled windows that these are, where whole series make another one of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drawn: Option<f64>,
    /// Scores, in the order of [`Arm::ALL`].
    pub arms: Vec<ArmScore>,
    /// The fine-tuned encoder against each other arm and the majority class.
    pub differences: Vec<ArmDifference>,
}

impl ShareScores {
    /// Whether every fine-tuned encoder answers one class for every test window: whatever its score, it
    /// tells nothing apart.
    pub fn is_constant(&self) -> bool {
        let own = self.arms.iter().find(|score| score.arm == Arm::FineTuned);
        own.is_some_and(|own| own.constant == own.seeds)
    }
}

/// The scores of all arms at all shares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FewLabels {
    /// Names of the classes.
    pub classes: Vec<String>,
    /// The metric of the verdict.
    pub metric: Metric,
    /// Share of the resamples within an interval of a score.
    pub confidence: f64,
    /// The same for differences: raised so that it holds for all shares together (Bonferroni's correction by their number),
    /// because a win at any of them is told.
    #[serde(default)]
    pub lead_confidence: f64,
    /// Test windows.
    pub windows: usize,
    /// Consecutive test windows that were drawn together.
    pub block: usize,
    /// How many whole series or groups of equal size those of the test windows are as good as
    /// ([`equal_units`](crate::equal_units)), if these were drawn.
    #[serde(rename = "equal_units", default, skip_serializing_if = "Option::is_none")]
    pub units: Option<usize>,
    /// Scores, from the smallest share on.
    pub shares: Vec<ShareScores>,
    /// The headline metric of always answering the majority class.
    pub majority: Estimate,
    /// Name of that class.
    pub majority_class: String,
    /// Of the first arm that was trained, the fine-tuned encoder if it was, at the largest share, summed over the seeds.
    pub confusion: Confusion,
}

impl FewLabels {
    /// Compares predictions. `majority` is the most frequent class among all labelled training windows,
    /// `together` says which test windows hang together.
    ///
    /// # Panics
    ///
    /// When an arm has another number of predictions than there are test windows, or a class is not
    /// below the number of classes.
    pub fn of(
        config: &EvalConfig,
        classes: &[String],
        truth: &[u32],
        majority: u32,
        together: &Together,
        mut shares: Vec<SharePredictions>,
    ) -> Self {
        shares.sort_by(|a, b| a.share.total_cmp(&b.share));
        let together = &together.asked(config.block);
        let block = together.block.clamp(1, truth.len().max(1));
        let truth = &together.sorted(truth)[..];
        for predictions in shares.iter_mut().flat_map(|share| share.arms.values_mut()) {
            *predictions = predictions.sorted(together);
        }
        let resampling = Resampling {
            stream: Stream::new(config.seed, "evaluation bootstrap"),
            resamples: config.resamples,
            block,
            units: together.units_in_order(),
            whole_units: together.whole_units,
            confidence: config.confidence,
        };
        let count = classes.len();
        let constant = Predictions::single(vec![majority; truth.len()]);
        let first = shares.last().and_then(|share| share.arms.values().next());
        let confusion = summed(count, truth, first);
        let base = Comparison::new(&resampling, count, truth, std::slice::from_ref(&constant));
        let lead_confidence = 1.0 - (1.0 - config.confidence) / shares.len().max(1) as f64;
        let how = (&resampling, lead_confidence);
        let scored = shares.iter().map(|share| score(config, how, count, truth, share, &constant));
        Self {
            classes: classes.to_vec(),
            metric: config.metric,
            confidence: config.confidence,
            lead_confidence,
            windows: truth.len(),
            block,
            units: together.drawn_units(),
            shares: scored.collect(),
            majority: base.estimate(0, config.metric),
            majority_class: classes.get(majority as usize).cloned().unwrap_or_default(),
            confusion,
        }
    }

    /// The first arm that was trained with the most labels: the fine-tuned encoder, if it was.
    pub fn first_arm(&self) -> Option<Arm> {
        self.shares.last()?.arms.iter().map(|score| score.arm).min()
    }

    /// The score that a run tells first: of the first arm at the largest share.
    pub fn main_score(&self) -> Option<TestScore> {
        let (share, arm) = (self.shares.last()?, self.first_arm()?);
        let own = share.arms.iter().find(|score| score.arm == arm)?;
        let estimate = *own.metrics.get(&self.metric)?;
        let (of, metric) = (percent(share.share), self.metric.name());
        let name = match arm {
            Arm::FineTuned => format!("{metric} with {of} of the labels"),
            other => format!("{metric} with {of} of the labels, {}", other.name()),
        };
        Some(TestScore::share(name, estimate))
    }

    /// What is said of the fine-tuned encoder's difference from something else: of few independent test windows, no more
    /// than that they are few, or that it is worse.
    pub fn conclusion(&self, difference: &Estimate) -> &'static str {
        conclusion(self.independent_windows(), difference)
    }

    /// Whether any score has an interval; of too few independent windows none has.
    fn has_intervals(&self) -> bool {
        let arms = self.shares.iter().flat_map(|share| &share.arms);
        have_intervals(arms.map(|arm| &arm.metrics))
    }

    /// Why no score has an interval, where none has.
    pub fn no_intervals(&self) -> Option<String> {
        if self.has_intervals() {
            return None;
        }
        let independent = self.independent_windows();
        Some(match independent < FEWEST_BLOCKS {
            true => format!(
                "there are no intervals: {}, and an interval takes at least {FEWEST_BLOCKS}",
                count(independent, "independent test window")
            ),
            false => "there are no intervals, for which the test windows are too few".to_owned(),
        })
    }

    /// Test windows that are independent of each other: the windows over the block, or the units that were drawn.
    fn independent_windows(&self) -> usize {
        independent(self.windows, self.block, self.units)
    }

    /// One sentence on whether pre-training helps, and at which shares.
    pub fn verdict(&self) -> Verdict {
        let independent = self.independent_windows();
        let lines: Vec<String> = self.shares.iter().filter_map(|share| self.line(share)).collect();
        if lines.is_empty() {
            let reached = self.main_score().map_or(String::new(), |score| {
                let value = percent(score.estimate.value);
                format!("; {} {value}{}", score.metric, within(&score.estimate, percent))
            });
            let sentence = format!(
                "Nothing was fine-tuned from pre-trained weights, so nothing can be said of them{reached}."
            );
            return Verdict { outcome: Outcome::NotMeasured, sentence };
        }
        let range = match self.has_intervals() {
            true if self.shares.len() > 1 => format!(
                " ({}s; of differences {}s, which hold for all shares together)",
                percent_interval(self.confidence),
                percent_interval(self.lead_confidence)
            ),
            true => format!(" ({}s)", percent_interval(self.confidence)),
            false => String::new(),
        };
        let said = format!("fine-tuned test scores{range}: {}", lines.join("; "));
        if independent < FEWEST_WINDOWS {
            let sentence = format!(
                "Too few test windows to say whether pre-training helps ({}; it takes {FEWEST_WINDOWS}): {said}.",
                count(independent, "independent one")
            );
            return Verdict { outcome: Outcome::TooFewWindows, sentence };
        }
        let wins = |share: &&ShareScores| {
            !share.is_constant()
                && rivals(share).count() > 0
                && rivals(share).all(|other| other.difference.is_above_zero())
        };
        let name = |share: &ShareScores| percent(share.share);
        let won: Vec<String> = self.shares.iter().filter(wins).map(name).collect();
        let loses = |share: &&ShareScores| losses(share).next().is_some();
        let lost: Vec<String> = self.shares.iter().filter(loses).map(name).collect();
        let missing: Vec<String> =
            self.missing().into_iter().map(|arm| format!("`{}`", arm.name())).collect();
        let all = self.shares.len();
        let chance = self.shares.iter().filter(|share| self.is_majority(share)).count();
        let (outcome, start) = match won.len() {
            0 if chance == all => (
                Outcome::DoesNotBeat,
                format!(
                    "Fine-tuning is {} than always answering {}, so nothing is shown to be learnt",
                    not_better(self.shares.iter().filter_map(against_majority)),
                    self.named_majority()
                ),
            ),
            0 if self.shares.iter().all(ShareScores::is_constant) => (
                Outcome::DoesNotBeat,
                "Fine-tuning answers one class for every test window, so nothing was learnt"
                    .to_owned(),
            ),
            0 if self.shares.iter().any(|share| {
                losses(share).any(|other| missing.is_empty() || other.baseline.is_some())
            }) =>
            {
                (Outcome::DoesNotBeat, "Pre-training does not help".to_owned())
            }
            0 => (Outcome::DoesNotBeat, "Pre-training is not shown to help".to_owned()),
            // A win over what was trained is no win over what was not.
            _ if !missing.is_empty() => (
                Outcome::NotMeasured,
                format!(
                    "Whether pre-training helps was not measured, because {} not trained (`finetune.arms`)",
                    match missing.as_slice() {
                        [one] => format!("the arm {one} was"),
                        all => format!("the arms {} were", list(all)),
                    }
                ),
            ),
            count if count == all => (Outcome::Beats, "Pre-training helps".to_owned()),
            _ if !lost.is_empty() => (
                Outcome::DoesNotBeat,
                format!(
                    "Pre-training helps with {} of the labels, and is worse with {}",
                    list(&won),
                    list(&lost)
                ),
            ),
            _ => (
                Outcome::Beats,
                format!(
                    "Pre-training helps with {} of the labels, not with all shares",
                    list(&won)
                ),
            ),
        };
        Verdict { outcome, sentence: format!("{start}: {said}.") }
    }

    /// The arms without pre-training that were not trained, at some share.
    fn missing(&self) -> Vec<Arm> {
        let is_there =
            |share: &ShareScores, arm: Arm| share.arms.iter().any(|score| score.arm == arm);
        let without = Arm::ALL.into_iter().filter(|arm| !arm.is_pretrained());
        without.filter(|arm| !self.shares.iter().all(|share| is_there(share, *arm))).collect()
    }

    /// Whether the fine-tuned encoder's score cannot be told from that of the majority class.
    pub fn is_majority(&self, share: &ShareScores) -> bool {
        against_majority(share).is_some_and(|difference| !difference.is_above_zero())
    }

    fn named_majority(&self) -> String {
        format!("the majority class `{}` ({})", self.majority_class, percent(self.majority.value))
    }

    /// What one share says.
    fn line(&self, share: &ShareScores) -> Option<String> {
        let own = share.arms.iter().find(|score| score.arm == Arm::FineTuned)?;
        let value = own.metrics.get(&self.metric)?;
        let truly = share
            .drawn
            .map_or(String::new(), |drawn| format!(", in whole series {} of them", percent(drawn)));
        let mut line = format!(
            "with {} of the labels (about {:.0} windows{truly}) {} {}{}",
            percent(share.share),
            share.windows,
            percent(value.value),
            self.metric.name(),
            within(value, percent)
        );
        if share.is_constant() {
            let who = if own.seeds > 1 { "each training answering" } else { "answering" };
            return Some(format!("{line}, {who} one class for every test window"));
        }
        // Whatever is better comes first, then what cannot be told from it.
        let rank = |other: &ArmDifference| match other.difference {
            difference if difference.is_below_zero() => 0u8,
            difference if difference.is_above_zero() => 2,
            _ => 1,
        };
        let hardest = rivals(share).min_by(|a, b| {
            let by_value = a.difference.value.total_cmp(&b.difference.value);
            rank(a).cmp(&rank(b)).then(by_value)
        });
        if let Some(ArmDifference { baseline, difference }) = hardest {
            let name = baseline.map_or_else(|| self.named_majority(), |arm| arm.name().to_owned());
            let range = within(difference, signed_points);
            line += &match () {
                () if difference.is_above_zero() => format!(
                    ", {} points above {}{name}{range}",
                    points(difference.value),
                    if rivals(share).count() > 1 { "the best without pre-training, " } else { "" }
                ),
                () if difference.is_below_zero() => format!(
                    ", worse than {name} by {} points{range}",
                    points(difference.value.abs())
                ),
                () => format!(
                    ", {} than {name}: {} points{range}",
                    not_better([difference]),
                    signed_points(difference.value)
                ),
            };
        }
        let is_told = hardest.is_some_and(|hardest| hardest.baseline.is_none());
        let majority = against_majority(share).filter(|found| !found.is_above_zero() && !is_told);
        if let Some(difference) = majority {
            line += &format!(", {} than {}", not_better([difference]), self.named_majority());
        }
        Some(line)
    }
}

/// What pre-training must beat to help: everything that is begun without it, and the majority class.
fn rivals(share: &ShareScores) -> impl Iterator<Item = &ArmDifference> {
    let without = |other: &&ArmDifference| other.baseline.is_none_or(|arm| !arm.is_pretrained());
    share.differences.iter().filter(without)
}

/// The fine-tuned encoder minus the majority class.
fn against_majority(share: &ShareScores) -> Option<&Estimate> {
    let against = share.differences.iter().find(|other| other.baseline.is_none());
    against.map(|other| &other.difference)
}

/// What is said of differences that are not above zero. Means of equal scores differ by their rounding.
fn not_better<'a>(differences: impl IntoIterator<Item = &'a Estimate>) -> &'static str {
    let none_is = differences.into_iter().all(|difference| difference.high <= 1e-12);
    if none_is { "no better" } else { "not shown to be better" }
}

/// Those of them that are better.
fn losses(share: &ShareScores) -> impl Iterator<Item = &ArmDifference> {
    rivals(share).filter(|other| other.difference.is_below_zero())
}

fn summed(classes: usize, truth: &[u32], predictions: Option<&Predictions>) -> Confusion {
    let mut sum = Confusion { classes, counts: vec![0; classes * classes] };
    for run in predictions.iter().flat_map(|predictions| &predictions.runs) {
        let one = Confusion::of(classes, truth, run);
        sum.counts.iter_mut().zip(one.counts).for_each(|(sum, count)| *sum += count);
    }
    sum
}

fn score(
    config: &EvalConfig,
    (resampling, lead_confidence): (&Resampling, f64),
    classes: usize,
    truth: &[u32],
    share: &SharePredictions,
    majority: &Predictions,
) -> ShareScores {
    let (arms, mut all): (Vec<Arm>, Vec<Predictions>) =
        share.arms.iter().map(|(arm, predictions)| (*arm, predictions.clone())).unzip();
    all.push(majority.clone());
    let comparison = Comparison::new(resampling, classes, truth, &all);
    let strict = comparison.at(lead_confidence);
    let independent = resampling.independent(truth.len()) as f64;
    let bound = bound_when_all_agree(independent, config.confidence);
    let scores = arms.iter().enumerate().map(|(place, arm)| {
        let metrics = Metric::ALL.into_iter().map(|metric| {
            let mut estimate = comparison.estimate(place, metric);
            // All right in every resample is no certainty.
            if estimate.low == 1.0 {
                estimate.low = bound;
            }
            (metric, estimate)
        });
        let runs = &all[place].runs;
        let values = all[place].metrics(classes, truth);
        let values: Vec<f64> = values.iter().map(|metrics| config.metric.of(metrics)).collect();
        let constant = |run: &&Vec<u32>| run.windows(2).all(|pair| pair[0] == pair[1]);
        ArmScore {
            arm: *arm,
            seeds: runs.len(),
            spread: deviation(&values),
            metrics: metrics.collect(),
            constant: runs.iter().filter(constant).count(),
        }
    });
    let own = arms.iter().position(|arm| *arm == Arm::FineTuned);
    let others = arms.iter().map(|arm| Some(*arm)).chain([None]).enumerate();
    let differences = others.filter(|(_, other)| *other != Some(Arm::FineTuned)).filter_map(
        |(place, baseline)| {
            let agree =
                [own?, place].map(|place| comparison.estimate(place, config.metric).low == 1.0);
            let difference = strict.difference(own?, place, config.metric);
            let difference = difference.unless_either_agrees(agree, independent, lead_confidence);
            Some(ArmDifference { baseline, difference })
        },
    );
    ShareScores {
        share: share.share,
        windows: share.windows,
        drawn: share.drawn,
        arms: scores.collect(),
        differences: differences.collect(),
    }
}

/// The unbiased standard deviation of several values.
fn deviation(values: &[f64]) -> Option<f64> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let square: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1).then(|| (square / (count - 1.0)).sqrt())
}

/// ` (81.0 % to 87.1 %)`, or nothing without an interval.
fn within(estimate: &Estimate, format: fn(f64) -> String) -> String {
    estimate.ends(format).map_or_else(String::new, |ends| format!(" ({ends})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        ["rest", "move"].map(str::to_owned).to_vec()
    }

    /// Test windows of which two thirds are of class 0.
    fn truth() -> Vec<u32> {
        (0..300).map(|at| u32::from(at % 3 == 0)).collect()
    }

    /// Predictions that are right with this probability.
    fn right(share: f64, seeds: u64) -> Predictions {
        let run = |seed| {
            let mut draws = Stream::new(seed, "arm").substream((share * 1e6) as u64).draws();
            truth()
                .iter()
                .map(|class| if draws.chance(share) { *class } else { 1 - class })
                .collect()
        };
        Predictions { runs: (0..seeds).map(run).collect() }
    }

    fn compared(shares: &[(f64, [Predictions; 4])]) -> FewLabels {
        let config = EvalConfig { resamples: 400, ..EvalConfig::default() };
        let shares = shares.iter().map(|(share, arms)| SharePredictions {
            share: *share,
            windows: 200.0 * share,
            drawn: None,
            arms: Arm::ALL.into_iter().zip(arms.clone()).collect(),
        });
        FewLabels::of(&config, &names(), &truth(), 0, &Together::default(), shares.collect())
    }

    #[test]
    fn a_win_over_every_arm_and_the_majority_is_one() {
        let arms = [0.95, 0.8, 0.82, 0.6].map(|share| right(share, 3));
        let scores = compared(&[(1.0, arms.clone()), (0.05, arms)]);
        assert_eq!(scores.shares[0].share, 0.05, "in the order of the shares");
        assert_eq!(scores.shares[0].differences.len(), 4);
        let verdict = scores.verdict();
        assert_eq!(verdict.outcome, Outcome::Beats, "{}", verdict.sentence);
        assert!(verdict.sentence.starts_with(
            "Pre-training helps: fine-tuned test scores (95 % intervals; of differences 97.5 % intervals, which hold for all shares together): with 5.0 % of the"
        ));
        assert_eq!(scores.confusion.total(), 900);
        let own = &scores.shares[0].arms[0];
        assert!(own.arm == Arm::FineTuned && own.seeds == 3 && own.spread.is_some());
        let told = scores.main_score().unwrap();
        assert_eq!(told.metric, "accuracy with 100 % of the labels");
        let largest = scores.shares[1].arms[0].metrics[&Metric::Accuracy];
        assert_eq!((told.estimate, told.is_share), (largest, true));
    }

    #[test]
    fn pre_training_helps_although_fine_tuning_adds_nothing_to_the_frozen_encoder() {
        let arms = [0.9, 0.93, 0.7, 0.6].map(|share| right(share, 3));
        let verdict = compared(&[(0.1, arms)]).verdict();
        assert_eq!(verdict.outcome, Outcome::Beats, "{}", verdict.sentence);
        assert!(verdict.sentence.contains("above the best without pre-training, from scratch"));
    }

    #[test]
    fn what_equals_the_majority_class_is_said_to_be_nothing() {
        let constant = Predictions { runs: vec![vec![0; 300]; 3] };
        let arms = [(); 4].map(|()| constant.clone());
        let scores = compared(&[(0.1, arms)]);
        let verdict = scores.verdict();
        assert_eq!(verdict.outcome, Outcome::DoesNotBeat);
        assert!(
            verdict.sentence.starts_with(
                "Fine-tuning is no better than always answering the majority class `rest` (66.7 %), so nothing is shown to be learnt"
            ),
            "{}",
            verdict.sentence
        );
        assert_eq!(scores.shares[0].arms[0].constant, 3);
    }

    #[test]
    fn what_is_not_shown_to_be_better_is_not_said_to_be_no_better() {
        // Better in the mean, by an interval that touches zero.
        let arms = [0.7, 0.6, 0.6, 0.6].map(|share| right(share, 1));
        let mut scores = compared(&[(0.1, arms)]);
        let share = &mut scores.shares[0];
        for other in &mut share.differences {
            other.difference = match other.baseline {
                None => Estimate { value: 0.281, low: 0.0, high: 0.479 },
                Some(_) => Estimate { value: 0.2, low: 0.1, high: 0.3 },
            };
        }
        let said = scores.verdict();
        assert_eq!(said.outcome, Outcome::DoesNotBeat);
        let start = "Fine-tuning is not shown to be better than always answering the majority class `rest` (66.7 %), so nothing is shown";
        assert!(said.sentence.starts_with(start), "{}", said.sentence);
        let end = ", not shown to be better than the majority class `rest` (66.7 %): +28.1 points (0.0 to +47.9).";
        assert!(said.sentence.ends_with(end), "{}", said.sentence);
        // An arm that is better by little is not hidden by one that is better by more and may be worse.
        for other in &mut scores.shares[0].differences {
            other.difference = match other.baseline {
                Some(Arm::FromScratch) => Estimate { value: -0.1, low: -0.4, high: 0.2 },
                Some(Arm::RandomFrozen) => Estimate { value: -0.05, low: -0.08, high: -0.02 },
                _ => Estimate { value: 0.2, low: 0.1, high: 0.3 },
            };
        }
        let said = scores.verdict().sentence;
        assert!(said.starts_with("Pre-training does not help: "), "{said}");
        assert!(said.contains(", worse than random, frozen by 5.0 points"), "{said}");
        for other in &mut scores.shares[0].differences {
            other.difference = match other.baseline {
                Some(Arm::FromScratch) => Estimate { value: 0.1, low: -0.1, high: 0.2 },
                _ => Estimate { value: 0.05, low: 0.01, high: 0.1 },
            };
        }
        let said = scores.verdict().sentence;
        assert!(
            said.contains(", not shown to be better than from scratch: +10.0 points"),
            "{said}"
        );
    }

    #[test]
    fn a_constant_answer_wins_over_nothing_although_its_class_is_the_most_frequent_of_the_test() {
        // The majority of training, class 0, is rare among the test windows of these.
        let truth: Vec<u32> = (0..300).map(|at| u32::from(at % 5 != 0)).collect();
        let of = |class: u32| Predictions { runs: vec![vec![class; 300]; 3] };
        let arms = Arm::ALL.into_iter().zip([of(1), of(0), of(0), of(0)]).collect();
        let share = SharePredictions { share: 0.1, windows: 20.0, drawn: None, arms };
        let config = EvalConfig { resamples: 200, ..EvalConfig::default() };
        let scores = FewLabels::of(&config, &names(), &truth, 0, &Together::default(), vec![share]);
        assert!(scores.shares[0].differences.iter().all(|d| d.difference.is_above_zero()));
        let verdict = scores.verdict();
        assert_eq!(verdict.outcome, Outcome::DoesNotBeat, "{}", verdict.sentence);
        assert!(
            verdict.sentence.starts_with("Fine-tuning answers one class for every test window")
        );
    }

    #[test]
    fn a_share_that_is_not_won_is_not_claimed() {
        let won = [0.95, 0.8, 0.8, 0.6].map(|share| right(share, 3));
        let lost = [0.8, 0.8, 0.95, 0.6].map(|share| right(share, 3));
        let even = [0.8, 0.8, 0.8, 0.6].map(|share| right(share, 3));
        let verdict = compared(&[(0.05, won.clone()), (1.0, even)]).verdict();
        assert_eq!(verdict.outcome, Outcome::Beats);
        let start = "Pre-training helps with 5.0 % of the labels, not with all shares: ";
        assert!(verdict.sentence.starts_with(start), "{}", verdict.sentence);
        // Harm elsewhere is no help.
        let verdict = compared(&[(0.05, won.clone()), (1.0, lost.clone())]).verdict();
        assert_eq!(verdict.outcome, Outcome::DoesNotBeat);
        let start = "Pre-training helps with 5.0 % of the labels, and is worse with 100 %: ";
        assert!(verdict.sentence.starts_with(start), "{}", verdict.sentence);
        // Of more shares, more is needed of each.
        let of = |count: usize| {
            let shares: Vec<_> = (1..=count).map(|at| (0.1 * at as f64, won.clone())).collect();
            let scores = compared(&shares);
            let other = scores.shares[0].differences[1].difference;
            (scores.lead_confidence, other.high - other.low)
        };
        let [(one, narrow), (five, wide)] = [of(1), of(5)];
        assert!((one - 0.95).abs() < 1e-12 && (five - 0.99).abs() < 1e-12 && wide > narrow);
        let verdict = compared(&[(1.0, lost)]).verdict();
        assert_eq!(verdict.outcome, Outcome::DoesNotBeat);
        assert!(verdict.sentence.contains("worse than from scratch by"), "{}", verdict.sentence);
    }

    #[test]
    fn a_win_is_not_claimed_over_arms_that_were_not_trained() {
        let skills = [0.95, 0.9, 0.8, 0.6].map(|share| right(share, 3));
        let of = |arms: &[Arm]| {
            let all = Arm::ALL.into_iter().zip(skills.clone());
            let arms = all.filter(|(arm, _)| arms.contains(arm)).collect();
            let config = EvalConfig { resamples: 400, ..EvalConfig::default() };
            let share = SharePredictions { share: 1.0, windows: 200.0, drawn: None, arms };
            FewLabels::of(&config, &names(), &truth(), 0, &Together::default(), vec![share])
                .verdict()
        };
        use Arm::{FineTuned, FromScratch, PreTrainedFrozen, RandomFrozen};
        let neither = "because the arms `from scratch` and `random, frozen` were not trained (`finetune.arms`): ";
        let scratch = "because the arm `from scratch` was not trained (`finetune.arms`): ";
        let random = "because the arm `random, frozen` was not trained (`finetune.arms`): ";
        for (arms, why) in [
            (&[FineTuned][..], neither),
            (&[FineTuned, PreTrainedFrozen], neither),
            (&[FineTuned, RandomFrozen], scratch),
            (&[FineTuned, FromScratch], random),
        ] {
            let said = of(arms);
            assert_eq!(said.outcome, Outcome::NotMeasured, "{}", said.sentence);
            let start = format!("Whether pre-training helps was not measured, {why}");
            assert!(said.sentence.starts_with(&start), "{}", said.sentence);
        }
        assert!(
            of(&[FineTuned])
                .sentence
                .contains(" points above the majority class `rest` (66.7 %) (")
        );
        assert_eq!(of(&[FineTuned, FromScratch, RandomFrozen]).outcome, Outcome::Beats);
    }

    #[test]
    fn a_loss_to_one_arm_is_told_although_another_was_not_trained() {
        let [own, scratch] = [0.8, 0.95].map(|share| right(share, 3));
        let arms = BTreeMap::from([(Arm::FineTuned, own), (Arm::FromScratch, scratch)]);
        let config = EvalConfig { resamples: 400, ..EvalConfig::default() };
        let share = SharePredictions { share: 1.0, windows: 200.0, drawn: None, arms };
        let said = FewLabels::of(&config, &names(), &truth(), 0, &Together::default(), vec![share])
            .verdict();
        assert_eq!(said.outcome, Outcome::DoesNotBeat);
        assert!(said.sentence.starts_with("Pre-training does not help: "), "{}", said.sentence);
    }

    #[test]
    fn few_windows_and_no_fine_tuned_arm_claim_nothing() {
        let config = EvalConfig { resamples: 200, ..EvalConfig::default() };
        let of = |arm: Arm, predicted: Vec<u32>| {
            let arms = BTreeMap::from([(arm, Predictions::single(predicted))]);
            let share = SharePredictions { share: 1.0, windows: 6.0, drawn: None, arms };
            let truth = [0, 1, 0, 1, 0, 1];
            FewLabels::of(&config, &names(), &truth, 0, &Together::default(), vec![share])
        };
        let scores = of(Arm::FromScratch, vec![0; 6]);
        assert_eq!(scores.verdict().outcome, Outcome::NotMeasured);
        let scores = of(Arm::FineTuned, vec![0, 1, 0, 1, 0, 1]);
        assert_eq!(scores.verdict().outcome, Outcome::TooFewWindows);
        assert!(scores.shares[0].arms[0].metrics[&Metric::Accuracy].low < 1.0);
    }

    #[test]
    fn the_true_share_of_whole_series_is_told_beside_the_one_that_was_asked_for() {
        let said = |drawn| {
            let arms = BTreeMap::from([(Arm::FineTuned, right(0.9, 2))]);
            let share = SharePredictions { share: 0.25, windows: 73.0, drawn, arms };
            let config = EvalConfig { resamples: 200, ..EvalConfig::default() };
            FewLabels::of(&config, &names(), &truth(), 0, &Together::default(), vec![share])
                .verdict()
                .sentence
        };
        let sentence = said(Some(0.5));
        let expected =
            "with 25.0 % of the labels (about 73 windows, in whole series 50.0 % of them)";
        assert!(sentence.contains(expected), "{sentence}");
        let sentence = said(None);
        assert!(sentence.contains("with 25.0 % of the labels (about 73 windows) "), "{sentence}");
    }
}
