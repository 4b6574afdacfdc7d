//! Several trained classifiers and several baselines on the same test windows.
//!
//! Where the predictions come from is not known here. Nothing is chosen by what is measured: every
//! classifier that was trained stands in the table and in the verdict.

use std::collections::BTreeMap;

use firebox_core::Stream;
use serde::{Deserialize, Serialize};

use crate::bootstrap::have_intervals;
use crate::text::{capitalised, count, list, percent, signed_points};
use crate::verdict::{FEWEST_WINDOWS, TOO_FEW, conclusion, percent_interval};
use crate::{
    Comparison, Confusion, Estimate, EvalConfig, Metric, Outcome, Predictions, Resampling, Table,
    TestScore, Together, Verdict,
};

/// One classifier with what it predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Contender {
    /// Its name in running text.
    pub name: String,
    /// Whether the others are to beat it.
    pub baseline: bool,
    /// What it predicted for the test windows, in their order.
    pub predicted: Vec<u32>,
}

/// One classifier's scores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// Its name.
    pub name: String,
    /// Whether the others are to beat it.
    pub baseline: bool,
    /// Every metric with its interval.
    pub metrics: BTreeMap<Metric, Estimate>,
    /// Its predictions by true class.
    pub confusion: Confusion,
}

/// A trained classifier's score minus a baseline's, on the same resamples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lead {
    /// The trained classifier.
    pub name: String,
    /// What it is compared with.
    pub baseline: String,
    /// The difference of the headline metric.
    pub difference: Estimate,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contest {
    /// Names of the classes.
    pub classes: Vec<String>,
    /// Test windows.
    pub windows: usize,
    /// Consecutive windows drawn together by the bootstrap.
    pub block: usize,
    /// The metric of the leads and of the verdict.
    pub metric: Metric,
    /// Share of the resamples within an interval of a score.
    pub confidence: f64,
    /// The same for the leads: raised so that it holds for all trained classifiers together
    /// (Bonferroni's correction by their number).
    pub lead_confidence: f64,
    /// Resamples drawn.
    pub resamples: u32,
    /// Scores, in the order of the contenders.
    pub standings: Vec<Standing>,
    /// Every trained classifier against every baseline.
    pub leads: Vec<Lead>,
}

/// Measures all contenders on the same resamples.
///
/// `together` says which test windows hang together; the bootstrap draws so many at once, unless `config.block` says
/// otherwise.
///
/// # Panics
///
/// When a contender has another number of predictions than `truth`, or a class is out of range.
pub fn contest(
    config: &EvalConfig,
    classes: &[String],
    truth: &[u32],
    together: &Together,
    contenders: &[Contender],
) -> Contest {
    let together = &together.asked(config.block);
    let block = together.block.max(1);
    let truth = &together.sorted(truth)[..];
    let resampling = Resampling {
        stream: Stream::new(config.seed, "bootstrap"),
        resamples: config.resamples,
        block,
        units: together.units_in_order(),
        whole_units: together.whole_units,
        confidence: config.confidence,
    };
    let predictions: Vec<Predictions> = contenders
        .iter()
        .map(|contender| Predictions::single(contender.predicted.clone()).sorted(together))
        .collect();
    let comparison = Comparison::new(&resampling, classes.len(), truth, &predictions);
    let trained = contenders.iter().filter(|contender| !contender.baseline).count();
    let lead_confidence = 1.0 - (1.0 - config.confidence) / trained.max(1) as f64;
    let strict = comparison.at(lead_confidence);
    let independent = resampling.independent(truth.len()) as f64;
    let score = |at: usize, metric: Metric| {
        comparison.estimate(at, metric).unless_all_agree(independent, config.confidence)
    };
    let standing = |(at, contender): (usize, &Contender)| Standing {
        name: contender.name.clone(),
        baseline: contender.baseline,
        metrics: Metric::ALL.map(|metric| (metric, score(at, metric))).into(),
        confusion: Confusion::of(classes.len(), truth, &predictions[at].runs[0]),
    };
    let mut leads = Vec::new();
    for (at, contender) in contenders.iter().enumerate().filter(|(_, c)| !c.baseline) {
        for (other, baseline) in contenders.iter().enumerate().filter(|(_, c)| c.baseline) {
            let agree =
                [at, other].map(|place| comparison.estimate(place, config.metric).low == 1.0);
            let difference = strict.difference(at, other, config.metric);
            leads.push(Lead {
                name: contender.name.clone(),
                baseline: baseline.name.clone(),
                difference: difference.unless_either_agrees(agree, independent, lead_confidence),
            });
        }
    }
    Contest {
        classes: classes.to_vec(),
        windows: truth.len(),
        block,
        metric: config.metric,
        confidence: config.confidence,
        lead_confidence,
        resamples: config.resamples,
        standings: contenders.iter().enumerate().map(standing).collect(),
        leads,
    }
}

impl Contest {
    /// Test windows that do not overlap.
    pub fn independent_windows(&self) -> usize {
        self.windows / self.block.max(1)
    }

    /// Whether any score has an interval; of too few independent windows none has.
    fn has_intervals(&self) -> bool {
        have_intervals(self.standings.iter().map(|standing| &standing.metrics))
    }

    /// The trained classifiers that beat every baseline, each by an interval above zero.
    pub fn winners(&self) -> Vec<&str> {
        let trained = self.standings.iter().filter(|standing| !standing.baseline);
        let wins = |name: &str| {
            let mut own = self.leads.iter().filter(|lead| lead.name == name).peekable();
            own.peek().is_some() && own.all(|lead| lead.difference.is_above_zero())
        };
        trained.map(|standing| standing.name.as_str()).filter(|name| wins(name)).collect()
    }

    /// The scores that a run tells first: of every trained classifier.
    pub fn main_scores(&self) -> Vec<TestScore> {
        let trained = self.standings.iter().filter(|standing| !standing.baseline);
        let score = |standing: &Standing| {
            let estimate = *standing.metrics.get(&self.metric)?;
            let own = TestScore::share(self.metric.name(), estimate);
            Some(TestScore { model: standing.name.clone(), ..own })
        };
        trained.filter_map(score).collect()
    }

    /// The sentence that a report begins with.
    pub fn verdict(&self) -> Verdict {
        let metric = self.metric.name();
        let reached: Vec<String> = self
            .standings
            .iter()
            .filter(|standing| !standing.baseline)
            .map(|standing| format!("{} {}", standing.name, percent(self.value(standing))))
            .collect();
        let best = self.standings.iter().filter(|standing| standing.baseline);
        let best = best.max_by(|a, b| self.value(a).total_cmp(&self.value(b)));
        let against = best.map_or_else(String::new, |best| {
            format!("; the best baseline, {}, reaches {}", best.name, percent(self.value(best)))
        });
        let reach = format!("test {metric}: {}{against}", reached.join(", "));
        let independent = self.independent_windows();
        let interval = percent_interval(self.lead_confidence);
        let winners = self.winners();
        let (outcome, sentence) = if independent < FEWEST_WINDOWS {
            let said = format!(
                "Too few test windows to say whether a model beats the baselines ({}; it takes {FEWEST_WINDOWS}): {reach}.",
                count(independent, "independent one")
            );
            (Outcome::TooFewWindows, said)
        } else if winners.is_empty() {
            let said = format!(
                "No model beats every baseline: {reach}; a win takes a {interval} above zero against each."
            );
            (Outcome::DoesNotBeat, said)
        } else {
            let names: Vec<String> = winners.iter().map(|name| (*name).to_owned()).collect();
            let verb = if names.len() == 1 { "beats" } else { "beat" };
            let said = format!(
                "{} {verb} every baseline ({interval} above zero against each): {reach}.",
                capitalised(&list(&names))
            );
            (Outcome::Beats, said)
        };
        Verdict { outcome, sentence }
    }

    fn value(&self, standing: &Standing) -> f64 {
        standing.metrics.get(&self.metric).map_or(0.0, |estimate| estimate.value)
    }

    /// The scores, the leads and the confusion matrices.
    pub fn tables(&self) -> Vec<Table> {
        let mut tables = vec![self.scores(), self.all_leads()];
        tables.extend(self.standings.iter().filter(|s| !s.baseline).map(|s| self.matrix(s)));
        tables
    }

    fn scores(&self) -> Table {
        let metrics = [
            Metric::Accuracy,
            Metric::BalancedAccuracy,
            Metric::WeightedPrecision,
            Metric::WeightedRecall,
            Metric::WeightedF1,
        ];
        let mut columns = vec!["model".to_owned()];
        columns.extend(metrics.map(|metric| metric.name().to_owned()));
        let cell = |standing: &Standing, metric: Metric| {
            standing.metrics.get(&metric).copied().unwrap_or_default().with_interval(percent)
        };
        let row = |standing: &Standing| {
            let role = if standing.baseline { " (baseline)" } else { "" };
            let mut row = vec![format!("{}{role}", standing.name)];
            row.extend(metrics.map(|metric| cell(standing, metric)));
            row
        };
        Table {
            title: "Models and baselines".to_owned(),
            note: format!(
                "On the {} test windows of all folds together, each predicted by a model that was trained on what came before. {}",
                self.windows,
                match self.has_intervals() {
                    true => format!(
                        "In parentheses the {} of {} bootstrap resamples in blocks of {} windows.",
                        percent_interval(self.confidence),
                        self.resamples,
                        self.block
                    ),
                    false => "They are too few for intervals.".to_owned(),
                }
            ),
            columns,
            rows: self.standings.iter().map(row).collect(),
        }
    }

    fn all_leads(&self) -> Table {
        let row = |lead: &Lead| {
            // The verdict says nothing of few either.
            let said = match self.independent_windows() {
                few if few < FEWEST_WINDOWS => TOO_FEW,
                enough => conclusion(enough, &lead.difference),
            };
            let points = lead.difference.with_interval(signed_points);
            vec![lead.name.clone(), lead.baseline.clone(), said.to_owned(), points]
        };
        Table {
            title: "Models against baselines".to_owned(),
            note: format!(
                "Difference of the {} in percentage points, on the same windows{}",
                self.metric.name(),
                match self.has_intervals() {
                    true => format!(
                        "; in parentheses the {}, which allows for the number of models.",
                        percent_interval(self.lead_confidence)
                    ),
                    false => ", which are too few for intervals.".to_owned(),
                }
            ),
            columns: ["model", "baseline", "conclusion", "difference"].map(str::to_owned).to_vec(),
            rows: self.leads.iter().map(row).collect(),
        }
    }

    fn matrix(&self, standing: &Standing) -> Table {
        let mut columns = vec!["true class".to_owned()];
        columns.extend(self.classes.iter().map(|class| format!("predicted {class}")));
        let row = |(at, class): (usize, &String)| {
            let counts = standing.confusion.row(at).iter().map(u64::to_string);
            std::iter::once(class.clone()).chain(counts).collect()
        };
        Table {
            title: format!("Confusion matrix: {}", standing.name),
            note: String::new(),
            columns,
            rows: self.classes.iter().enumerate().map(row).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contenders(skills: &[(&str, bool, f64)], windows: usize) -> (Vec<u32>, Vec<Contender>) {
        let mut draws = Stream::new(3, "contest").draws();
        let truth: Vec<u32> = (0..windows).map(|_| draws.below(3) as u32).collect();
        let of = |(name, baseline, skill): &(&str, bool, f64)| {
            let mut draws = Stream::new(4, name).draws();
            let guess = |truth: &u32| {
                if draws.chance(*skill) { *truth } else { draws.below(3) as u32 }
            };
            let predicted = truth.iter().map(guess).collect();
            Contender { name: (*name).to_owned(), baseline: *baseline, predicted }
        };
        let all = skills.iter().map(of).collect();
        (truth, all)
    }

    fn measured(skills: &[(&str, bool, f64)], windows: usize, overlap: usize) -> Contest {
        let (truth, all) = contenders(skills, windows);
        let classes = ["falls", "stays", "rises"].map(str::to_owned);
        let config = EvalConfig { resamples: 400, ..EvalConfig::default() };
        contest(&config, &classes, &truth, &Together::every(overlap), &all)
    }

    #[test]
    fn only_what_beats_every_baseline_wins() {
        let skills = [
            ("lstm", false, 0.6),
            ("mlp", false, 0.0),
            ("majority", true, 0.0),
            ("logistic", true, 0.3),
        ];
        let found = measured(&skills, 1500, 1);
        assert_eq!(found.winners(), ["lstm"]);
        let said = found.verdict();
        assert_eq!(said.outcome, Outcome::Beats);
        assert!(
            said.sentence.starts_with("Lstm beats every baseline (97.5 % interval"),
            "{said:?}"
        );
        assert!(said.sentence.contains("the best baseline, logistic"), "{said:?}");
        assert_eq!(found.leads.len(), 4);
        let tables = found.tables();
        assert_eq!(tables.len(), 4);
        assert_eq!((tables[0].rows.len(), tables[0].columns.len()), (4, 6));
        let total: u64 = found.standings[0].confusion.total();
        assert_eq!(total, 1500);
        let told = found.main_scores();
        let told: Vec<(&str, &str)> =
            told.iter().map(|score| (score.metric.as_str(), score.model.as_str())).collect();
        assert_eq!(told, [("accuracy", "lstm"), ("accuracy", "mlp")]);
    }

    #[test]
    fn all_right_is_no_certainty() {
        let skills = [("lstm", false, 1.0), ("logistic", true, 1.0)];
        // scipy.stats.binomtest(40, 40).proportion_ci(0.95, "exact").low, and the same of 5 of 5: 0.025^(1/5).
        for (block, least) in [(1, 0.911_902_8), (8, 0.478_176_2)] {
            let found = measured(&skills, 40, block);
            let score = found.standings[0].metrics[&Metric::Accuracy];
            assert!((score.low - least).abs() < 1e-6 && score.high == 1.0, "{score:?}");
            let lead = found.leads[0].difference;
            assert_eq!(lead.value, 0.0);
            assert!((lead.low - (least - 1.0)).abs() < 1e-6, "{lead:?}");
            assert!((lead.high - (1.0 - least)).abs() < 1e-6, "{lead:?}");
        }
    }

    #[test]
    fn chance_is_not_called_a_win_and_overlap_is_counted() {
        let skills = [("mlp", false, 0.02), ("majority", true, 0.0)];
        let found = measured(&skills, 600, 28);
        assert_eq!(found.verdict().outcome, Outcome::DoesNotBeat);
        let few = measured(&[("mlp", false, 0.9), ("majority", true, 0.0)], 300, 28);
        assert_eq!(
            (few.independent_windows(), few.verdict().outcome),
            (10, Outcome::TooFewWindows)
        );
    }
}
