//! The evaluation proper: the pre-trained encoder beside its baselines, on the same test windows.
//!
//! It works on features that were computed before; `embed` computes them. Nothing here sees a test
//! label before the last prediction is made.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use firebox_core::{Event, Listener, Stream, count, quoted};
use serde::{Deserialize, Serialize};

use crate::bootstrap::{FEWEST_BLOCKS, bound_when_all_agree, have_intervals};
use crate::probe::{HeadPredictions, fit_and_predict};
use crate::together::{independent, number_of_units};
use crate::verdict::FEWEST_WINDOWS;
use crate::{
    Comparison, Confusion, Estimate, EvalConfig, EvalError, Features, Metric, Parts, Predictions,
    Resampling, Together,
};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// The frozen pre-trained encoder.
    PreTrained,
    /// The same encoder as it was initialised, never trained; several seeds.
    RandomEncoder,
    /// The normalised windows themselves, flattened.
    RawWindows,
    /// The most frequent class of the training windows, whatever the window.
    Majority,
}

impl Subject {
    /// Its name in running text.
    pub fn name(self) -> &'static str {
        match self {
            Self::PreTrained => "pre-trained encoder",
            Self::RandomEncoder => "randomly initialised encoder",
            Self::RawWindows => "raw windows",
            Self::Majority => "majority class",
        }
    }
}

/// What is fitted on a subject's features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Head {
    /// Multinomial logistic regression.
    Logistic,
    /// The vote of the nearest training rows.
    Neighbours,
}

impl Head {
    /// Its name in running text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Logistic => "linear probe",
            Self::Neighbours => "nearest neighbours",
        }
    }
}

/// Features of the same windows from everything that is compared, except the random encoders.
#[derive(Clone, Copy, Debug)]
pub struct Subjects<'a> {
    /// Names of the classes.
    pub classes: &'a [String],
    /// From the pre-trained encoder.
    pub pretrained: &'a Parts,
    /// The normalised windows, flattened and padded with zeros.
    pub raw: &'a Parts,
    /// Which test windows hang together.
    pub together: &'a Together,
}

/// One subject's scores under one head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// What is measured.
    pub subject: Subject,
    /// What was fitted on it; nothing for the majority class.
    pub head: Option<Head>,
    /// Seeds that it was measured with.
    pub runs: usize,
    /// The penalty of each run of a linear probe.
    pub l2: Vec<f64>,
    /// Standard deviation of the headline metric over the seeds, where there are several.
    pub spread: Option<f64>,
    /// Every metric with its interval.
    pub metrics: BTreeMap<Metric, Estimate>,
}

impl Score {
    /// One of its metrics.
    pub fn metric(&self, metric: Metric) -> Estimate {
        self.metrics.get(&metric).copied().unwrap_or_default()
    }
}

/// What one subject under one head predicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What is measured.
    pub subject: Subject,
    /// What was fitted on it; nothing for the majority class.
    pub head: Option<Head>,
    /// Classes, `[run][window]`, the windows as in [`Answers::windows`].
    pub runs: Vec<Vec<u32>>,
}

/// Every prediction that scores are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Which windows were predicted: their indices within the test part that features or windows were taken of.
    pub windows: Vec<usize>,
    /// What was predicted for them, in the order of [`Evaluation::scores`].
    pub all: Vec<Answer>,
}

/// The pre-trained encoder's score minus a baseline's, on the same resamples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The head that both have; the majority class has none.
    pub head: Head,
    /// What the pre-trained encoder is compared with.
    pub baseline: Subject,
    /// Which metric.
    pub metric: Metric,
    /// Pre-trained minus baseline.
    pub difference: Estimate,
}

/// All scores of an evaluation with labels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Names of the classes.
    pub classes: Vec<String>,
    /// Labelled training, validation and test windows.
    pub windows: [usize; 3],
    /// Test windows of each class.
    pub support: Vec<u64>,
    /// The metric that the verdict is about.
    pub metric: Metric,
    /// Share of the resamples within an interval.
    pub confidence: f64,
    /// Bootstrap resamples.
    pub resamples: u32,
    /// Consecutive test windows that were drawn together; where whole units were, those of one in the mean.
    pub block: usize,
    /// How many whole series or groups of equal size those of the test windows are as good as
    /// ([`equal_units`](crate::equal_units)), if these were drawn: they are new to the model.
    #[serde(rename = "equal_units", default, skip_serializing_if = "Option::is_none")]
    pub units: Option<usize>,
    /// Scores, the pre-trained encoder first.
    pub scores: Vec<Score>,
    /// The pre-trained encoder against each baseline.
    pub differences: Vec<Difference>,
    /// Of the linear probe on the pre-trained encoder.
    pub confusion: Confusion,
    /// What a reader must know to trust the figures.
    pub warnings: Vec<String>,
    /// What was predicted for each test window. It is not serialised.
    #[serde(skip)]
    pub answers: Answers,
}

impl Evaluation {
    /// The scores of one subject under one head.
    pub fn score(&self, subject: Subject, head: Option<Head>) -> Option<&Score> {
        self.scores.iter().find(|score| score.subject == subject && score.head == head)
    }

    /// Test windows that are independent of each other: the windows over the block, or the units that were drawn.
    pub fn independent_windows(&self) -> usize {
        independent(self.windows[2], self.block, self.units)
    }

    /// Whether any score has an interval; of too few independent windows none has.
    pub fn has_intervals(&self) -> bool {
        have_intervals(self.scores.iter().map(|score| &score.metrics))
    }
}

/// Runs every probe, on the pre-trained features, on raw windows, and on random encoders whose
/// features `random` makes for a seed.
///
/// Without a class, or without labelled training or test windows, there is nothing to measure: the
/// answer is `None`.
///
/// # Errors
///
/// When settings or features cannot be used, and whatever `random` reports.
pub fn evaluate(
    config: &EvalConfig,
    subjects: &Subjects<'_>,
    random: impl FnMut(u64) -> Result<Parts, EvalError>,
    listener: &dyn Listener,
) -> Result<Option<Evaluation>, EvalError> {
    evaluate_watched(config, subjects, random, &AtomicBool::new(false), listener)
}

/// [`evaluate`], which ends once `halt` is true: after the iteration of a fit that it is in.
///
/// # Errors
///
/// As there, and [`EvalError::Stopped`].
pub(crate) fn evaluate_watched(
    config: &EvalConfig,
    subjects: &Subjects<'_>,
    mut random: impl FnMut(u64) -> Result<Parts, EvalError>,
    halt: &AtomicBool,
    listener: &dyn Listener,
) -> Result<Option<Evaluation>, EvalError> {
    config.validate()?;
    let Subjects { classes, pretrained, raw, together } = *subjects;
    if classes.is_empty() || pretrained.train.is_empty() || pretrained.test.is_empty() {
        return Ok(None);
    }
    pretrained.check(classes.len())?;
    raw.check(classes.len())?;
    same_windows("raw windows", pretrained, raw)?;
    let mut progress = Progress { listener, done: 0, total: 2 + u64::from(config.seeds) };
    progress.tell();
    let mut fit = |parts: &Parts| {
        let fitted = fit_and_predict(config, classes.len(), parts, halt)?;
        progress.advance();
        Ok::<_, EvalError>(fitted)
    };
    let of_pretrained = vec![fit(pretrained)?];
    let of_raw = vec![fit(raw)?];
    let mut of_random = Vec::new();
    for seed in random_seeds(config) {
        let parts = random(seed)?;
        parts.check(classes.len())?;
        same_windows("random encoder", pretrained, &parts)?;
        of_random.push(fit(&parts)?);
    }
    let together = together.asked(config.block);
    let block = together.block.clamp(1, pretrained.test.len());
    let together = Together { block, ..together };
    Ok(Some(measure(config, classes, pretrained, &together, [of_pretrained, of_random, of_raw])))
}

/// Seeds of the random encoders.
pub fn random_seeds(config: &EvalConfig) -> impl Iterator<Item = u64> + use<> {
    let first = config.seed;
    (0..u64::from(config.seeds)).map(move |index| first.wrapping_add(index))
}

struct Progress<'a> {
    listener: &'a dyn Listener,
    done: u64,
    total: u64,
}

impl Progress<'_> {
    fn advance(&mut self) {
        self.done += 1;
        self.tell();
    }

    fn tell(&self) {
        self.listener.on(&Event::Progress {
            stage: "evaluate".to_owned(),
            done: self.done,
            total: self.total,
            unit: "probes".to_owned(),
        });
    }
}

fn same_windows(subject: &'static str, expected: &Parts, found: &Parts) -> Result<(), EvalError> {
    let pairs: [(_, &Features, &Features); 3] = [
        ("training", &expected.train, &found.train),
        ("validation", &expected.validation, &found.validation),
        ("test", &expected.test, &found.test),
    ];
    for (part, expected, found) in pairs {
        if expected.labels != found.labels {
            let (found, expected) = (found.len(), expected.len());
            return Err(EvalError::Windows { subject, part, found, expected });
        }
    }
    Ok(())
}

/// Everything that is known once all predictions are made.
fn measure(
    config: &EvalConfig,
    classes: &[String],
    parts: &Parts,
    together: &Together,
    fitted: [Vec<HeadPredictions>; 3],
) -> Evaluation {
    let (block, truth) = (together.block, &together.sorted(&parts.test.labels));
    let count = classes.len();
    let order = [Subject::PreTrained, Subject::RandomEncoder, Subject::RawWindows];
    let mut named = Vec::new();
    let mut all = Vec::new();
    let mut penalties = Vec::new();
    let mut warnings = Vec::new();
    for (subject, runs) in order.into_iter().zip(fitted) {
        let stuck = runs.iter().filter(|run| !run.converged).count();
        if stuck > 0 {
            warnings.push(format!(
                "{stuck} of {} linear probes on the {} stopped after {} iterations without converging; raise `evaluate.probe.iterations`",
                runs.len(), subject.name(), config.probe.iterations
            ));
        }
        penalties.push(runs.iter().map(|run| run.l2).collect::<Vec<_>>());
        let (logistic, neighbours) =
            runs.into_iter().map(|run| (run.logistic, run.neighbours)).unzip();
        for (head, runs) in [(Head::Logistic, logistic), (Head::Neighbours, neighbours)] {
            named.push((subject, Some(head)));
            all.push(Predictions { runs });
        }
    }
    named.push((Subject::Majority, None));
    all.push(Predictions::single(vec![majority(parts, count); truth.len()]));
    let classifiers: Vec<Predictions> = all.iter().map(|own| own.sorted(together)).collect();

    let resampling = Resampling {
        stream: Stream::new(config.seed, "evaluation bootstrap"),
        resamples: config.resamples,
        block,
        units: together.units_in_order(),
        whole_units: together.whole_units,
        confidence: config.confidence,
    };
    let comparison = Comparison::new(&resampling, count, truth, &classifiers);
    let independent = resampling.independent(truth.len()) as f64;
    let scores = (0..named.len()).map(|place| {
        let (subject, head) = named[place];
        let l2 = if head == Some(Head::Logistic) { penalties[place / 2].clone() } else { vec![] };
        score(config, count, truth, &classifiers[place], (subject, head, l2), |metric| {
            honest(comparison.estimate(place, metric), metric, independent, config.confidence)
        })
    });
    let scores: Vec<Score> = scores.collect();
    let confusion = Confusion::of(count, truth, &classifiers[0].runs[0]);
    let support: Vec<u64> = (0..count).map(|class| confusion.row(class).iter().sum()).collect();
    warnings.extend(coverage_warnings(classes, parts, &support));
    let has_intervals = have_intervals(scores.iter().map(|score| &score.metrics));
    warnings.extend(few_windows(truth.len(), together, has_intervals));
    let answer = |(&(subject, head), own): (&(Subject, Option<Head>), Predictions)| Answer {
        subject,
        head,
        runs: own.runs,
    };
    let answers = Answers {
        windows: (0..truth.len()).collect(),
        all: named.iter().zip(all).map(answer).collect(),
    };
    Evaluation {
        classes: classes.to_vec(),
        windows: [parts.train.len(), parts.validation.len(), truth.len()],
        metric: config.metric,
        confidence: config.confidence,
        resamples: config.resamples,
        block,
        units: together.drawn_units(),
        scores,
        differences: differences(config, &named, &comparison, independent),
        confusion,
        support,
        warnings,
        answers,
    }
}

fn score(
    config: &EvalConfig,
    classes: usize,
    truth: &[u32],
    predictions: &Predictions,
    (subject, head, l2): (Subject, Option<Head>, Vec<f64>),
    estimate: impl Fn(Metric) -> Estimate,
) -> Score {
    let values: Vec<f64> = predictions
        .metrics(classes, truth)
        .iter()
        .map(|metrics| config.metric.of(metrics))
        .collect();
    let runs = values.len();
    let mean = values.iter().sum::<f64>() / runs as f64;
    let square: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let spread = (runs > 1).then(|| (square / (runs - 1) as f64).sqrt());
    let metrics = Metric::ALL.into_iter().map(|metric| (metric, estimate(metric))).collect();
    Score { subject, head, runs, l2, spread, metrics }
}

/// The same where windows were all classified alike, rightly or wrongly.
fn honest(estimate: Estimate, metric: Metric, windows: f64, confidence: f64) -> Estimate {
    if estimate.high == 0.0 && metric == Metric::Accuracy {
        return Estimate { high: 1.0 - bound_when_all_agree(windows, confidence), ..estimate };
    }
    estimate.unless_all_agree(windows, confidence)
}

fn differences(
    config: &EvalConfig,
    named: &[(Subject, Option<Head>)],
    comparison: &Comparison,
    independent: f64,
) -> Vec<Difference> {
    let mut metrics = vec![config.metric];
    for metric in [Metric::Accuracy, Metric::BalancedAccuracy, Metric::MacroF1, Metric::WeightedF1]
    {
        if !metrics.contains(&metric) {
            metrics.push(metric);
        }
    }
    let mut all = Vec::new();
    for metric in metrics {
        for (own, head) in [(0, Head::Logistic), (1, Head::Neighbours)] {
            for (place, (baseline, other)) in named.iter().enumerate().skip(2) {
                if other.is_none_or(|other| other == head) {
                    // The encoder was pre-trained with one seed.
                    let difference = match baseline {
                        Subject::RandomEncoder => comparison.difference_of_one(own, place, metric),
                        _ => comparison.difference(own, place, metric),
                    };
                    let agree =
                        [own, place].map(|place| comparison.estimate(place, metric).low == 1.0);
                    let difference =
                        difference.unless_either_agrees(agree, independent, config.confidence);
                    all.push(Difference { head, baseline: *baseline, metric, difference });
                }
            }
        }
    }
    all
}

/// The most frequent class of what probes are fitted on; of equal ones the first.
fn majority(parts: &Parts, classes: usize) -> u32 {
    let mut counts = vec![0usize; classes];
    for label in parts.train.labels.iter().chain(&parts.validation.labels) {
        counts[*label as usize] += 1;
    }
    let largest = counts.iter().copied().max().unwrap_or(0);
    counts.iter().position(|count| *count == largest).unwrap_or(0) as u32
}

/// What to say of classes that are tested and were not learnt, if there are any. `learnt` says of each class whether
/// probes were fitted on a window of it, `tested` how many test windows it has.
pub fn unlearnt_classes(classes: &[String], learnt: &[bool], tested: &[u64]) -> Option<String> {
    const NAMED: usize = 5;
    let unlearnt = (0..classes.len()).filter(|class| !learnt[*class] && tested[*class] > 0);
    let windows = count(unlearnt.clone().map(|class| tested[class]).sum(), "test window");
    let names: Vec<&String> = unlearnt.map(|class| &classes[class]).collect();
    let shown = quoted(&names, NAMED);
    match names.len() {
        0 => None,
        1 => Some(format!(
            "class {shown} has {windows} and no training window: no probe can find it"
        )),
        _ => Some(format!(
            "classes {shown} have {windows} and no training window: no probe can find them"
        )),
    }
}

/// What to say of classes that are learnt and have no test window, if there are any; `learnt` and `tested` as in
/// [`unlearnt_classes`].
pub fn untested_classes(classes: &[String], learnt: &[bool], tested: &[u64]) -> Option<String> {
    const NAMED: usize = 10;
    let untested = (0..classes.len()).filter(|class| learnt[*class] && tested[*class] == 0);
    let names: Vec<&String> = untested.map(|class| &classes[class]).collect();
    (!names.is_empty()).then(|| {
        format!(
            "no test window is of {}: scores say nothing of that, and macro averages count 0 for one that is answered",
            quoted(&names, NAMED)
        )
    })
}

fn coverage_warnings(classes: &[String], parts: &Parts, support: &[u64]) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut seen = vec![false; classes.len()];
    for label in parts.train.labels.iter().chain(&parts.validation.labels) {
        seen[*label as usize] = true;
    }
    warnings.extend(unlearnt_classes(classes, &seen, support));
    warnings.extend(untested_classes(classes, &seen, support));
    warnings
}

/// What is said of few independent test windows.
fn few_windows(windows: usize, together: &Together, has_intervals: bool) -> Option<String> {
    let block = together.block;
    let units = number_of_units(&together.units);
    let independent = independent(windows, block, together.drawn_units());
    let windows = count(windows as u64, "test window");
    let in_blocks = || {
        let independent = count(independent as u64, "independent one");
        match together.whole_units {
            true => format!(
                "{windows} of whole series or groups, {block} of each in the mean, are only {independent}"
            ),
            false => format!("{windows} in blocks of {block} are only {independent}"),
        }
    };
    let none = format!("there are no intervals, which take at least {FEWEST_BLOCKS}");
    match units {
        _ if has_intervals => {
            (independent < FEWEST_WINDOWS).then(|| format!("{}: intervals are rough", in_blocks()))
        }
        _ if independent < FEWEST_BLOCKS => Some(format!("{}: {none}", in_blocks())),
        Some(units) if units < FEWEST_BLOCKS => Some(format!(
            "{windows} are of {}, whose windows hang together: {none}",
            count(units as u64, "unit")
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use firebox_core::Silent;

    use super::*;
    use crate::{Outcome, verdict};

    /// Rows whose first columns carry the class as strongly as `signal` says.
    fn parts(signal: f64, seed: u64) -> Parts {
        let part = |rows: usize, place: u64| {
            let mut labels = Stream::new(9, "labels").substream(place).draws();
            let mut draws = Stream::new(seed, "rows").substream(place).draws();
            let labels: Vec<u32> = (0..rows).map(|_| labels.below(3) as u32).collect();
            let values = labels.iter().flat_map(|label| {
                (0..6u32)
                    .map(|column| {
                        let shift = if column == *label { signal } else { 0.0 };
                        (draws.normal() + shift) as f32
                    })
                    .collect::<Vec<_>>()
            });
            Features { rows: values.collect(), width: 6, labels }
        };
        Parts { train: part(400, 0), validation: part(120, 1), test: part(300, 2) }
    }

    fn run(config: &EvalConfig, signals: [f64; 3]) -> Evaluation {
        let classes = ["a", "b", "c"].map(str::to_owned);
        let (pretrained, raw) = (parts(signals[0], 1), parts(signals[2], 2));
        let subjects = Subjects {
            classes: &classes,
            pretrained: &pretrained,
            raw: &raw,
            together: &Together::default(),
        };
        let random = |seed| Ok(parts(signals[1], seed));
        evaluate(config, &subjects, random, &Silent).unwrap().unwrap()
    }

    #[test]
    fn a_better_representation_wins_and_an_equal_one_does_not() {
        let config = EvalConfig { resamples: 500, ..EvalConfig::default() };
        let better = run(&config, [3.0, 1.0, 0.5]);
        assert_eq!(verdict(Some(&better), None).outcome, Outcome::Beats);
        let equal = run(&config, [1.5, 0.5, 1.5]);
        assert_eq!(verdict(Some(&equal), None).outcome, Outcome::DoesNotBeat);
        let worse = run(&config, [0.5, 1.5, 3.0]);
        let verdict = verdict(Some(&worse), None);
        assert_eq!(verdict.outcome, Outcome::DoesNotBeat);
        assert!(verdict.sentence.contains("raw windows"), "{}", verdict.sentence);
        let random = better.score(Subject::RandomEncoder, Some(Head::Logistic)).unwrap();
        assert!(random.runs == 5 && random.spread.unwrap() > 0.0 && random.l2.len() == 5);
        assert_eq!(better.confusion.total(), 300);
        // The same call gives the same numbers.
        assert_eq!(better, run(&config, [3.0, 1.0, 0.5]));
    }

    #[test]
    fn classes_that_are_tested_and_not_learnt_are_said_in_one_sentence() {
        let classes = ["a", "b", "c"].map(str::to_owned);
        let said =
            |learnt: [bool; 3], tested: [u64; 3]| unlearnt_classes(&classes, &learnt, &tested);
        assert_eq!(said([true, true, false], [1, 0, 0]), None);
        assert_eq!(
            said([true, false, true], [4, 1, 0]).unwrap(),
            "class `b` has 1 test window and no training window: no probe can find it"
        );
        assert_eq!(
            said([false, false, true], [4, 1, 0]).unwrap(),
            "classes `a`, `b` have 5 test windows and no training window: no probe can find them"
        );
    }

    #[test]
    fn all_right_is_not_certainty_and_an_overlap_widens() {
        let config = EvalConfig { resamples: 300, ..EvalConfig::default() };
        let perfect = run(&config, [50.0, 1.0, 1.0]);
        let score = perfect.score(Subject::PreTrained, Some(Head::Logistic)).unwrap();
        let accuracy = score.metric(Metric::Accuracy);
        assert_eq!((accuracy.value, accuracy.high), (1.0, 1.0));
        assert!(accuracy.low > 0.98 && accuracy.low < 0.99, "{}", accuracy.low);
        let blocks = run(&EvalConfig { block: Some(30), ..config }, [50.0, 1.0, 1.0]);
        assert!(blocks.warnings.iter().any(|w| w.contains("10 independent")));
        let few = verdict(Some(&blocks), None);
        assert_eq!(few.outcome, Outcome::TooFewWindows);
        assert!(few.sentence.contains("(10 independent ones; it takes 20)"), "{}", few.sentence);
    }

    #[test]
    fn nothing_is_said_of_intervals_where_there_are_none() {
        // 300 test windows in blocks of 100 are three.
        let config = EvalConfig { resamples: 300, block: Some(100), ..EvalConfig::default() };
        let few = run(&config, [3.0, 1.0, 0.5]);
        assert!(!few.has_intervals());
        let warning = "300 test windows in blocks of 100 are only 3 independent ones: there are no intervals, which take at least 5";
        assert!(few.warnings.iter().any(|said| said == warning), "{:?}", few.warnings);
        let mut report = crate::Report::new("few", "", verdict(Some(&few), None));
        report.judge(Some(few), None);
        let text = report.markdown();
        assert!(text.contains("The test windows are too few for intervals."), "{text}");
        assert!(text.contains("on the same windows, which are too few for intervals."), "{text}");
        assert!(!text.contains("In parentheses") && !text.contains("in parentheses"), "{text}");
        let rough = run(&EvalConfig { block: Some(30), ..config }, [3.0, 1.0, 0.5]);
        assert!(rough.has_intervals());
        assert!(
            rough
                .warnings
                .iter()
                .any(|said| said.ends_with("10 independent ones: intervals are rough"))
        );
        let of = |units: u32| {
            let units = (0..300).map(|window| window % units).collect();
            Together { units, ..Together::every(1) }
        };
        assert_eq!(
            few_windows(300, &of(3), false).unwrap(),
            "300 test windows are of 3 units, whose windows hang together: there are no intervals, which take at least 5"
        );
        assert_eq!(few_windows(300, &of(30), true), None);
        assert_eq!(few_windows(300, &Together::every(1), true), None);
        let whole = Together { block: 100, whole_units: true, ..of(3) };
        assert_eq!(
            few_windows(300, &whole, false).unwrap(),
            "300 test windows of whole series or groups, 100 of each in the mean, are only 3 independent ones: there are no intervals, which take at least 5"
        );
    }

    #[test]
    fn a_baseline_that_is_better_is_told_of_in_few_windows_and_before_one_that_may_be() {
        let config = EvalConfig { resamples: 300, block: Some(30), ..EvalConfig::default() };
        let mut worse = run(&config, [0.5, 1.5, 3.0]);
        let mut of = |subject: Subject, difference: Estimate| {
            let logistic = |own: &&mut crate::Difference| {
                own.head == Head::Logistic && own.baseline == subject
            };
            worse
                .differences
                .iter_mut()
                .filter(logistic)
                .for_each(|own| own.difference = difference);
        };
        of(Subject::RandomEncoder, Estimate { value: -0.2, low: -0.5, high: 0.1 });
        of(Subject::RawWindows, Estimate { value: -0.1, low: -0.15, high: -0.05 });
        of(Subject::Majority, Estimate { value: 0.2, low: 0.1, high: 0.3 });
        let said = verdict(Some(&worse), None);
        assert_eq!(said.outcome, Outcome::DoesNotBeat);
        let of_raw = "; against raw windows the difference is −10.0 points (95 % interval −15.0 to −5.0), which is worse.";
        assert!(said.sentence.contains(of_raw), "{}", said.sentence);
        let end = " With 10 independent test windows these are rough figures.";
        assert!(said.sentence.contains(end), "{}", said.sentence);
        let also = "figures. Nearest neighbours on raw windows reach 94.3 %";
        assert!(said.sentence.contains(also), "{}", said.sentence);
        // Of many windows it is told which baselines it does beat: by a probe, since nearest neighbours may do better.
        worse.block = 1;
        let said = verdict(Some(&worse), None);
        let won = "worse. By such a probe it does beat the majority class. Nearest neighbours on";
        assert!(said.sentence.contains(won), "{}", said.sentence);
    }

    #[test]
    fn nothing_is_beaten_that_nearest_neighbours_of_a_baseline_do_better() {
        let config = EvalConfig { resamples: 300, ..EvalConfig::default() };
        let mut won = run(&config, [50.0, 0.5, 0.5]);
        assert_eq!(verdict(Some(&won), None).outcome, Outcome::Beats);
        let reach = |won: &mut Evaluation, subject: Subject, head: Head, value: f64| {
            let metric = won.metric;
            let own =
                won.scores.iter_mut().find(|own| own.subject == subject && own.head == Some(head));
            let estimate = Estimate { value, low: value - 0.01, high: value + 0.01 };
            own.unwrap().metrics.insert(metric, estimate);
        };
        reach(&mut won, Subject::PreTrained, Head::Logistic, 0.9);
        reach(&mut won, Subject::PreTrained, Head::Neighbours, 0.7);
        // Nor what they do as well.
        for (value, outcome) in [(0.9, Outcome::DoesNotBeat), (0.89, Outcome::Beats)] {
            reach(&mut won, Subject::RawWindows, Head::Neighbours, value);
            assert_eq!(verdict(Some(&won), None).outcome, outcome, "{value}");
        }
        reach(&mut won, Subject::RawWindows, Head::Neighbours, 0.95);
        let said = verdict(Some(&won), None);
        assert_eq!(said.outcome, Outcome::DoesNotBeat);
        let end =
            "and nearest neighbours on raw windows reach 95.0 % (95 % interval 94.0 % to 96.0 %).";
        assert!(said.sentence.ends_with(end), "{}", said.sentence);
        let mut report = crate::Report::new("lost", "", said);
        report.judge(Some(won), None);
        let (page, best) =
            (report.html(), "best baseline: raw windows by nearest neighbours with 95.0");
        assert!(page.contains(best), "{page}");
    }

    #[test]
    fn nothing_to_measure_is_not_an_error_and_other_windows_are() {
        let config = EvalConfig::default();
        let empty = Parts::default();
        let subjects = Subjects {
            classes: &[],
            pretrained: &empty,
            raw: &empty,
            together: &Together::default(),
        };
        let none = evaluate(&config, &subjects, |_| Ok(Parts::default()), &Silent).unwrap();
        assert!(none.is_none());
        let classes = ["a", "b", "c"].map(str::to_owned);
        let (pretrained, mut raw) = (parts(1.0, 1), parts(1.0, 2));
        raw.test.labels[0] = (raw.test.labels[0] + 1) % 3;
        let subjects = Subjects {
            classes: &classes,
            pretrained: &pretrained,
            raw: &raw,
            together: &Together::default(),
        };
        let error = evaluate(&config, &subjects, |_| Ok(Parts::default()), &Silent).unwrap_err();
        assert!(error.to_string().contains("same windows"), "{error}");
    }
}
