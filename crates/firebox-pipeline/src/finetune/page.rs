//! What the report says of fine-tuning: scores by share of the labels, differences, confusion.

use firebox_core::count;
use firebox_eval::{
    Arm, Card, Chart, Confusion, Fact, FewLabels, Interval, Line, Metric, Outcome, Part, Report,
    Table, Tone, percent, share_text, signed,
};

use super::Begin;
use super::arms::Fitted;
use crate::PipelineConfig;
use crate::measure::{data_tables, table};
use crate::page::batch;
use crate::stages::{Run, Windows};
use crate::test_table::FILE;

/// The filled part of the report.
pub(super) fn report(
    run: &Run<'_>,
    title: &str,
    windows: &Windows,
    fitted: &Fitted,
    scores: FewLabels,
    begin: Option<&Begin>,
) -> Report {
    let settings = super::settings(run.config);
    let verdict = scores.verdict();
    let mut report = Report::new(title, "", verdict);
    report.cards = cards(&scores, report.verdict.outcome);
    report.parts =
        vec![by_share(&scores), differences(&scores), confusion(&scores), trainings(fitted)];
    if let Some(matched) = &fitted.matched {
        report.parts.push(weights(matched, begin));
    }
    report.warnings = warnings(&scores, &fitted.truth);
    report.warnings.extend(still_frozen(&fitted.fine_tuned(), settings.frozen_epochs));
    report.warnings.extend(mostly_skipped(&fitted.steps()));
    // A struct of numbers and texts has nothing that could fail.
    report.figures = serde_json::to_value(&scores).unwrap_or_default();
    report.data = data_tables(windows);
    report.facts = vec![
        Fact::new("training windows", windows.parts.train.len().to_string()),
        Fact::new("labelled test windows", scores.windows.to_string()),
        Fact::new("model", run.config.model.name()),
        Fact::new("seeds of each arm", fitted.seeds().to_string()),
        Fact::new("fresh versions of a window", settings.versions.to_string()),
        Fact::new("batch", batches(run.config, settings.encoder.is_none() && begin.is_some())),
        Fact::new("the classifier that is kept, on the test windows", kept(fitted, windows)),
    ];
    report
}

/// How large batches are: of the classifiers, and of the pre-training if there is one here.
fn batches(config: &PipelineConfig, pretrains: bool) -> String {
    let own = batch(config, super::settings(config).batch_size);
    let before = batch(config, config.loader.batch_size);
    match pretrains && before != own {
        true => format!("{before} in the pre-training, {own} of the classifiers"),
        false => own,
    }
}

impl Fitted {
    fn seeds(&self) -> usize {
        let runs = self.shares.iter().flat_map(|share| share.arms.values());
        runs.map(|predictions| predictions.runs.len()).max().unwrap_or(0)
    }
}

fn cards(scores: &FewLabels, outcome: Outcome) -> Vec<Card> {
    let tone = match outcome {
        Outcome::Beats => Tone::Good,
        Outcome::DoesNotBeat => Tone::Bad,
        Outcome::TooFewWindows | Outcome::NoLabels | Outcome::NotMeasured => Tone::Open,
    };
    let mut cards: Vec<Card> = scores
        .shares
        .iter()
        .filter_map(|share| {
            let of = |arm| {
                let score = share.arms.iter().find(|score| score.arm == arm)?;
                score.metrics.get(&scores.metric).copied()
            };
            let own = of(Arm::FineTuned)?;
            let scratch = of(Arm::FromScratch);
            let scratch = scratch.map(|score| format!("from scratch: {}", percent(score.value)));
            let notes = [own.ends(percent), scratch].into_iter().flatten().collect();
            let title = format!("Fine-tuned, {} of the labels", percent(share.share));
            Some(Card { title, value: percent(own.value), notes, tone })
        })
        .collect();
    cards.push(Card {
        title: "Majority class".to_owned(),
        value: percent(scores.majority.value),
        notes: vec![format!("always `{}`", scores.majority_class)],
        tone: Tone::Neutral,
    });
    cards
}

/// The learning curves over the share of the labels, the intervals at each, and all figures.
fn by_share(scores: &FewLabels) -> Part {
    let arms: Vec<Arm> =
        scores.shares.first().map_or(vec![], |share| share.arms.iter().map(|a| a.arm).collect());
    let name = scores.metric.name();
    let points = |arm: Arm| {
        let of = scores.shares.iter().filter_map(|share| {
            let score = share.arms.iter().find(|score| score.arm == arm)?;
            Some((100.0 * share.share, 100.0 * score.metrics.get(&scores.metric)?.value))
        });
        of.collect::<Vec<(f64, f64)>>()
    };
    let mut lines: Vec<Line> =
        arms.iter().map(|arm| Line { name: arm.name().to_owned(), points: points(*arm) }).collect();
    let majority = 100.0 * scores.majority.value;
    let flat = scores.shares.iter().map(|share| (100.0 * share.share, majority)).collect();
    lines.push(Line { name: "majority class".to_owned(), points: flat });
    let mut charts = vec![];
    // One share is no curve, and its axis would go on beyond all labels.
    if scores.shares.len() > 1 {
        charts.push(Chart::Lines {
            title: format!("Test {name} by share of the labels"),
            axis: "labels, %".to_owned(),
            value: format!("{name}, %"),
            lines,
        });
    }
    for share in &scores.shares {
        let rows = share.arms.iter().filter_map(|score| {
            let estimate = *score.metrics.get(&scores.metric)?;
            let own = score.arm == Arm::FineTuned;
            Some(Interval { name: score.arm.name().to_owned(), estimate, own })
        });
        let majority =
            Interval { name: "majority class".to_owned(), estimate: scores.majority, own: false };
        charts.push(Chart::Intervals {
            title: format!("{} of the labels", percent(share.share)),
            rows: rows.chain([majority]).collect(),
            share: true,
            from_zero: false,
        });
    }
    let seeds = scores.shares.iter().flat_map(|share| &share.arms).map(|arm| arm.seeds).max();
    let (of, covered) = match seeds.unwrap_or(0) {
        ..=1 => ("Of one training each", "test windows, and say nothing of other seeds"),
        _ => ("Mean over the seeds", "seeds and test windows"),
    };
    let intervals = scores.no_intervals().unwrap_or_else(|| format!("intervals cover {covered}"));
    Part {
        title: "Scores".to_owned(),
        lead: format!("{of}; {intervals}."),
        charts,
        tables: vec![score_table(scores)],
    }
}

fn score_table(scores: &FewLabels) -> Table {
    let mut rows = vec![];
    for share in &scores.shares {
        for score in &share.arms {
            let of = |metric: Metric| {
                score
                    .metrics
                    .get(&metric)
                    .map_or("–".to_owned(), |estimate| estimate.with_interval(percent))
            };
            let spread = score.spread.map_or("–".to_owned(), percent);
            rows.push(vec![
                percent(share.share),
                format!("{:.0}", share.windows),
                score.arm.name().to_owned(),
                of(Metric::Accuracy),
                of(Metric::BalancedAccuracy),
                of(Metric::MacroF1),
                spread,
            ]);
        }
    }
    let columns =
        ["labels", "windows", "arm", "accuracy", "balanced accuracy", "macro F1", "over seeds"];
    let note = format!(
        "`over seeds` is the standard deviation of {} over the seeds.",
        scores.metric.name()
    );
    table("All scores", note, &columns, rows)
}

fn differences(scores: &FewLabels) -> Part {
    let signed = |value: f64| signed(100.0 * value, 1);
    let rows = scores.shares.iter().flat_map(|share| {
        share.differences.iter().map(move |other| {
            let name = other.baseline.map_or("majority class", Arm::name);
            let d = other.difference;
            let said = match () {
                () if share.is_constant() => "not said: it answers one class alone",
                () => scores.conclusion(&d),
            };
            let points = d.with_interval(signed);
            vec![percent(share.share), name.to_owned(), points, said.to_owned()]
        })
    });
    let columns = ["labels", "fine-tuned against", "points", "so it is"];
    let how = match (scores.no_intervals(), scores.shares.len()) {
        (Some(why), _) => format!("; {why}"),
        (None, 0 | 1) => ", on the same resamples of test windows".to_owned(),
        (None, _) => format!(
            ", on the same resamples of test windows, at {} % for each, which holds for all shares together",
            share_text(scores.lead_confidence)
        ),
    };
    let note = format!("Differences of test {} in percentage points{how}.", scores.metric.name());
    let table = table("Differences", note, &columns, rows.collect());
    Part { title: "Differences".to_owned(), tables: vec![table], ..Part::default() }
}

fn confusion(scores: &FewLabels) -> Part {
    let columns: Vec<&str> =
        std::iter::once("true class").chain(scores.classes.iter().map(String::as_str)).collect();
    let rows = scores.classes.iter().enumerate().map(|(class, name)| {
        let counts = scores.confusion.row(class).iter().map(u64::to_string);
        std::iter::once(name.clone()).chain(counts).collect()
    });
    let share = scores.shares.last().map_or(1.0, |share| share.share);
    let arm = scores.first_arm().unwrap_or(Arm::FineTuned).name();
    let lead = format!(
        "Predictions of the arm “{arm}” with {} of the labels, summed over the seeds. `{FILE}` beside this page has those of every training, window by window.",
        percent(share)
    );
    let table = table("Confusion", String::new(), &columns, rows.collect());
    Part { title: "Confusion".to_owned(), lead, tables: vec![table], ..Part::default() }
}

fn trainings(fitted: &Fitted) -> Part {
    let rows = fitted.trainings.iter().map(|(share, arm, seed, summary)| {
        let best = summary.best.map_or("–".to_owned(), |best| format!("{:.4}", best.loss));
        let epoch = summary.best.map_or("–".to_owned(), |best| best.epoch.to_string());
        vec![
            percent(*share),
            arm.name().to_owned(),
            seed.to_string(),
            summary.epochs.to_string(),
            summary.steps.to_string(),
            summary.counts.skipped.to_string(),
            epoch,
            best,
            summary.outcome.to_string(),
        ]
    });
    let columns = [
        "labels",
        "arm",
        "seed",
        "epochs",
        "steps",
        "skipped",
        "best epoch",
        "its loss",
        "outcome",
    ];
    let note = "Each lies below `parts/` in the run's folder, with its history. A step is skipped where its loss or a gradient is not finite.".to_owned();
    let table = table("Trainings", note, &columns, rows.collect());
    Part { title: "Trainings".to_owned(), tables: vec![table], ..Part::default() }
}

/// The steps of some trainings together, each with those that were skipped.
pub(super) fn in_steps(trainings: &[[u64; 2]]) -> String {
    let [steps, skipped] = [0, 1].map(|which| trainings.iter().map(|one| one[which]).sum::<u64>());
    let steps = count(steps, "step");
    match skipped {
        0 => steps,
        1 => format!("{steps}, of which 1 was skipped: its loss or a gradient was not finite"),
        _ => format!(
            "{steps}, of which {skipped} were skipped: their loss or a gradient was not finite"
        ),
    }
}

/// Trainings of `fine-tuned` whose encoder is the frozen one, at each share: the epoch that is kept is one before it was
/// trained. Of each its share, seed and kept epoch, by ascending shares.
fn still_frozen(trainings: &[(f64, u64, u64)], frozen_epochs: u64) -> Vec<String> {
    let of = |share: &[(f64, u64, u64)]| {
        let frozen = share.iter().filter(|(.., epoch)| *epoch <= frozen_epochs);
        let seeds: Vec<String> = frozen.map(|(_, seed, _)| seed.to_string()).collect();
        let (share, trained) = (share.first()?.0, share.len() as u64);
        (!seeds.is_empty()).then(|| {
            format!(
                "with {} of the labels, the encoder of `{}` is the frozen one in {} of {} ({} {}): the epoch that is kept is one of the first \
                 {frozen_epochs}, in which it is not trained yet; raise `finetune.patience`, or lower `finetune.frozen_epochs`",
                percent(share),
                Arm::FineTuned.name(),
                seeds.len(),
                count(trained, "training"),
                if seeds.len() == 1 { "seed" } else { "seeds" },
                seeds.join(", ")
            )
        })
    };
    trainings.chunk_by(|one, next| one.0 == next.0).filter_map(of).collect()
}

/// Trainings that hardly learnt, because most of their steps were no updates.
fn mostly_skipped(trainings: &[[u64; 2]]) -> Option<String> {
    let mostly = trainings.iter().filter(|[steps, skipped]| 2 * skipped > *steps);
    let mostly: Vec<_> = mostly.collect();
    let [steps, skipped] = mostly.first()?;
    Some(format!(
        "in {} of {}, most steps were skipped and learnt nothing, as {skipped} of {steps} in the first: gradients overflowed or were not finite; in f16 lower \
         `train.loss_scale.dynamic.initial`, or train longer",
        mostly.len(),
        count(trainings.len() as u64, "training")
    ))
}

fn weights(matched: &firebox_train::MatchReport, begin: Option<&Begin>) -> Part {
    let row = |what: &str, names: &[String]| {
        vec![what.to_owned(), names.len().to_string(), names.join(", ")]
    };
    let shapes: Vec<String> = matched
        .shapes
        .iter()
        .map(|(name, wanted, found)| format!("{name} {found:?}, wanted {wanted:?}"))
        .collect();
    let rows = vec![
        row("matched", &matched.matched),
        row("missing, left random", &matched.missing),
        row("of another shape, left random", &shapes),
        row("not used", &matched.unexpected),
    ];
    let from = begin.map_or(String::new(), |begin| format!(" {}.", begin.from));
    let lead = format!(
        "{} % of the encoder's numbers matched.{from}",
        (matched.ratio() * 1000.0).round() / 10.0
    );
    let table = table("Weights", String::new(), &["parameters", "count", "names"], rows);
    Part { title: "Weights".to_owned(), lead, tables: vec![table], ..Part::default() }
}

fn warnings(scores: &FewLabels, truth: &[u32]) -> Vec<String> {
    if truth.windows(2).all(|pair| pair[0] == pair[1]) {
        // One answer for all of them is right there. The split has warned of it.
        return vec![];
    }
    let mut warnings = vec![];
    for share in &scores.shares {
        for score in share.arms.iter().filter(|score| score.constant > 0) {
            let (answer, they) = match score.constant {
                1 => ("answers", "it has"),
                _ => ("answer", "they have"),
            };
            warnings.push(format!(
                "with {} of the labels, {} of {} of `{}` {answer} one class for every test window: {they} learnt nothing",
                percent(share.share),
                score.constant,
                count(score.seeds as u64, "training"),
                score.arm.name()
            ));
        }
    }
    warnings
}

/// What the one classifier that is kept scores, which the means over all seeds do not say.
fn kept(fitted: &Fitted, windows: &Windows) -> String {
    let (truth, predicted) = (&fitted.truth, fitted.kept_classes());
    if truth.len() != predicted.len() {
        return "not measured".to_owned();
    }
    let classes = windows.parts.train.classes().len();
    let metrics = Confusion::of(classes, truth, predicted).metrics();
    format!("accuracy {}, macro F1 {}", percent(metrics.accuracy), percent(metrics.macro_f1))
}

#[cfg(test)]
mod tests {
    use firebox_eval::{EvalConfig, Predictions, SharePredictions, Together};

    use super::*;

    const TRUTH: [u32; 4] = [0, 1, 0, 1];

    /// Fine-tuning at these shares, by this many seeds of which the first so many answer one class.
    fn scores(shares: &[f64], constant: usize, seeds: usize) -> FewLabels {
        scores_on(&TRUTH, shares, constant, seeds)
    }

    /// The same on these test windows.
    fn scores_on(truth: &[u32], shares: &[f64], constant: usize, seeds: usize) -> FewLabels {
        let of = |share: &f64| {
            let run = |seed| if seed < constant { vec![0; truth.len()] } else { truth.to_vec() };
            let predictions = Predictions { runs: (0..seeds).map(run).collect() };
            let arms = [(Arm::FineTuned, predictions)].into_iter().collect();
            SharePredictions { share: *share, windows: 4.0, drawn: None, arms }
        };
        let config = EvalConfig { resamples: 50, ..EvalConfig::default() };
        let classes = ["a", "b"].map(str::to_owned);
        let apart = Together::default();
        FewLabels::of(&config, &classes, truth, 0, &apart, shares.iter().map(of).collect())
    }

    #[test]
    fn intervals_of_one_seed_are_not_said_to_cover_seeds() {
        let lead = |seeds| by_share(&scores_on(&TRUTH.repeat(10), &[0.5, 1.0], 0, seeds)).lead;
        assert!(lead(1).ends_with("say nothing of other seeds."), "{}", lead(1));
        assert!(lead(2).contains("intervals cover seeds and test windows"), "{}", lead(2));
    }

    #[test]
    fn without_intervals_neither_they_nor_resamples_are_spoken_of() {
        // Four test windows, each by itself.
        let why = "; there are no intervals: 4 independent test windows, and an interval takes at least 5.";
        for (seeds, of) in [(1, "Of one training each"), (2, "Mean over the seeds")] {
            let few = scores(&[0.5, 1.0], 0, seeds);
            assert_eq!(by_share(&few).lead, format!("{of}{why}"));
            let start = "Differences of test accuracy in percentage points";
            assert_eq!(differences(&few).tables[0].note, format!("{start}{why}"));
        }
        let many = differences(&scores_on(&TRUTH.repeat(10), &[0.5, 1.0], 0, 1));
        let note = &many.tables[0].note;
        let end = "on the same resamples of test windows, at 97.5 % for each, which holds for all shares together.";
        assert!(note.ends_with(end), "{note}");
    }

    #[test]
    fn an_error_is_not_rounded_away() {
        // One answer for all, of which one in 3,000 is wrong.
        let truth: Vec<u32> = (0..3000).map(|at| u32::from(at == 7)).collect();
        let made = cards(&scores_on(&truth, &[1.0], 1, 1), Outcome::DoesNotBeat);
        assert_eq!(made[0].title, "Fine-tuned, 100 % of the labels");
        assert_eq!(made[0].value, "99.96 %");
    }

    #[test]
    fn one_share_is_drawn_as_intervals_alone() {
        let lines = |scores: &FewLabels| {
            let charts = by_share(scores).charts;
            charts.iter().filter(|chart| matches!(chart, Chart::Lines { .. })).count()
        };
        assert_eq!([lines(&scores(&[1.0], 0, 1)), lines(&scores(&[0.5, 1.0], 0, 1))], [0, 1]);
    }

    #[test]
    fn batches_are_those_that_were_trained_with() {
        let mut config = PipelineConfig { pipeline: crate::Kind::Finetune, ..Default::default() };
        config.loader.batch_size = 64;
        config.finetune = Some(crate::FinetuneConfig { batch_size: 32, ..Default::default() });
        assert_eq!(batches(&config, false), "32");
        assert_eq!(batches(&config, true), "64 in the pre-training, 32 of the classifiers");
        config.loader.batch_size = 32;
        assert_eq!(batches(&config, true), "32");
        // Where steps are counted, both have as many.
        config.loader.tokens = 4096;
        assert_eq!(batches(&config, true), "4096 steps with their padding");
    }

    #[test]
    fn of_few_windows_no_difference_is_called_one() {
        let part = differences(&scores(&[1.0], 0, 1));
        let [table] = &part.tables[..] else { panic!("one table") };
        // All four windows right, and half of them by the majority class.
        assert_eq!(table.rows[0][1..2], ["majority class"]);
        assert_eq!(table.rows[0][3], "too few windows to tell");
    }

    #[test]
    fn steps_that_were_skipped_are_told_with_the_others() {
        let ordinary = [[84, 7], [84, 0]];
        let said = "168 steps, of which 7 were skipped: their loss or a gradient was not finite";
        assert_eq!(in_steps(&ordinary), said);
        assert_eq!(in_steps(&[[84, 0], [1, 0]]), "85 steps");
        assert!(in_steps(&[[84, 1]]).contains(", of which 1 was skipped"));
        assert_eq!(mostly_skipped(&ordinary), None);
        let said = mostly_skipped(&[[84, 7], [84, 82], [84, 83]]).unwrap();
        assert!(said.starts_with("in 2 of 3 trainings, most steps were skipped"), "{said}");
        assert!(said.contains("as 82 of 84 in the first"), "{said}");
    }

    #[test]
    fn trainings_whose_encoder_is_the_frozen_one_are_told_by_their_seeds() {
        let trainings =
            [(0.05, 7, 10), (0.05, 8, 11), (0.5, 7, 11), (0.5, 8, 30), (1.0, 7, 1), (1.0, 8, 4)];
        let rest = "the epoch that is kept is one of the first 10, in which it is not trained yet; raise `finetune.patience`, or lower `finetune.frozen_epochs`";
        let start = |share: &str| {
            format!(
                "with {share} % of the labels, the encoder of `pre-trained, fine-tuned` is the frozen one in"
            )
        };
        let expected = [
            format!("{} 1 of 2 trainings (seed 7): {rest}", start("5.0")),
            format!("{} 2 of 2 trainings (seeds 7, 8): {rest}", start("100")),
        ];
        assert_eq!(still_frozen(&trainings, 10), expected);
        assert_eq!(still_frozen(&trainings, 0), Vec::<String>::new());
    }

    #[test]
    fn trainings_that_answer_one_class_are_counted_in_whole_sentences() {
        let said = |constant, seeds| warnings(&scores(&[1.0], constant, seeds), &TRUTH);
        assert_eq!(said(0, 2), Vec::<String>::new());
        let start = "with 100 % of the labels, ";
        for (constant, seeds, rest) in [
            (
                1,
                1,
                "1 of 1 training of `pre-trained, fine-tuned` answers one class for every test window: it has learnt nothing",
            ),
            (
                1,
                2,
                "1 of 2 trainings of `pre-trained, fine-tuned` answers one class for every test window: it has learnt nothing",
            ),
            (
                2,
                2,
                "2 of 2 trainings of `pre-trained, fine-tuned` answer one class for every test window: they have learnt nothing",
            ),
        ] {
            assert_eq!(said(constant, seeds), [format!("{start}{rest}")]);
        }
    }
}
