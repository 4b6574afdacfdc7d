//! How good clusters and encoder are, by the true classes of test windows, where there are any.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use firebox_core::{Event, Stream, count};
use firebox_eval::{
    Agreement, Estimate, Evaluation, FEWEST_WINDOWS, Outcome, Resampling, Sources, Together,
    Verdict, evaluate_encoder, number,
};
use firebox_loader::{NormalisedWindows, Source};
use serde::Serialize;

use super::PseudolabelConfig;
use super::iterate::{ClusterParts, Iterated};
use crate::error::PipelineError;
use crate::measure::channel_names;
use crate::stages::{Run, Windows};
use crate::test_table::{FILE, Said, TestTable};
use crate::together::{as_labelled, together};

/// Clusters of the test windows beside their true classes.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Judged {
    /// Test windows with a true class.
    pub(super) windows: usize,
    /// Those of them that are independent of each other.
    pub(super) independent: usize,
    /// Clusters of each iteration's encoder as it began, then of the last one.
    pub(super) by_iteration: Vec<Agreement>,
    /// The last encoder, the encoder before any training, and the windows themselves.
    pub(super) subjects: Vec<Judgement>,
    /// What the last encoder has more than each of the others, in the order of `subjects`.
    pub(super) leads: Vec<Estimate>,
    /// Confidence of the intervals.
    pub(super) confidence: f64,
    /// The probe on the last encoder beside its baselines.
    #[serde(skip)]
    pub(super) evaluation: Option<Evaluation>,
}

/// Agreement with intervals.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Judgement {
    pub(super) name: &'static str,
    pub(super) purity: Estimate,
    pub(super) normalised_information: Estimate,
    pub(super) adjusted_rand: Estimate,
}

impl Judged {
    /// What trackers compare runs by.
    pub(super) fn scores(&self) -> Vec<(&'static str, f64)> {
        self.subjects.first().map_or_else(Vec::new, |own| {
            vec![
                ("test/purity", own.purity.value),
                ("test/nmi", own.normalised_information.value),
                ("test/ari", own.adjusted_rand.value),
            ]
        })
    }

    /// The sentence that the report begins with.
    pub(super) fn verdict(&self) -> Verdict {
        let Some(own) = self.subjects.first() else {
            let sentence = "There are no true labels in the test part, so the clusters cannot be judged: how well an encoder tells its own clusters apart says nothing.".to_owned();
            return Verdict { outcome: Outcome::NoLabels, sentence };
        };
        let text = |Estimate { value, low, high }: Estimate| {
            format!("{} ({} to {})", number(value, 3), number(low, 3), number(high, 3))
        };
        let others = self.subjects[1..].iter().zip(&self.leads);
        let others: Vec<String> = others
            .map(|(other, lead)| {
                let value = other.normalised_information.value;
                format!("{value:.3} by {} (difference {})", other.name, text(*lead))
            })
            .collect();
        let reach = format!(
            "normalised mutual information with the true classes of {} test windows: {} by {}, {}",
            self.windows,
            text(own.normalised_information),
            own.name,
            others.join(", ")
        );
        let beats = self.leads.iter().all(Estimate::is_above_zero);
        let (outcome, begin) = match () {
            () if self.independent < FEWEST_WINDOWS => (
                Outcome::TooFewWindows,
                &*format!(
                    "Too few test windows to say whether training on clusters helps ({}; it takes {FEWEST_WINDOWS})",
                    count(self.independent as u64, "independent one")
                ),
            ),
            () if beats => (
                Outcome::Beats,
                "Clusters agree better with the true classes after training on them",
            ),
            () if self.leads.first().is_some_and(Estimate::is_above_zero)
                && !self.leads.iter().any(Estimate::is_below_zero) =>
            {
                (
                    Outcome::DoesNotBeat,
                    "Clusters agree better with the true classes than before training on them, and are not shown to agree better than those of the windows themselves",
                )
            }
            () => (
                Outcome::DoesNotBeat,
                "Training on clusters is not shown to make them agree better with the true classes",
            ),
        };
        Verdict { outcome, sentence: format!("{begin}: {reach}.") }
    }
}

/// Measures the last encoder, and what it began as, and writes the clusters of every test window with a true class into
/// the run's folder.
pub(super) fn judge(
    run: &Run<'_>,
    path: &Path,
    settings: &PseudolabelConfig,
    windows: &Windows,
    parts: &ClusterParts,
    iterated: &Iterated,
) -> Result<Judged, PipelineError> {
    let labels = parts.test.windows().windows().iter().map(|window| window.label);
    let labels: Vec<Option<u32>> = labels.collect();
    let truth: Vec<u32> = labels.iter().flatten().copied().collect();
    if truth.is_empty() {
        let none = vec![];
        return Ok(Judged {
            windows: 0,
            independent: 0,
            by_iteration: vec![],
            subjects: vec![],
            leads: none,
            confidence: run.config.evaluate.confidence,
            evaluation: None,
        });
    }
    let of_labelled = |clusters: &[u32]| -> Vec<u32> {
        let pairs = clusters.iter().zip(&labels);
        pairs.filter(|(_, label)| label.is_some()).map(|(cluster, _)| *cluster).collect()
    };
    let starts = iterated.rounds.iter().map(|round| &round.test).chain([&iterated.last]);
    let starts: Vec<Vec<u32>> = starts.map(|clusters| of_labelled(clusters)).collect();
    let by_iteration = starts.iter().map(|found| Agreement::of(&truth, found)).collect();
    let raw = of_labelled(&raw_clusters(run, settings, parts)?);
    write_test(&path.join(FILE), windows, &starts, &raw)?;
    let (untrained, last) = (&starts[0], &starts[starts.len() - 1]);
    let subjects = [
        ("the trained encoder", last),
        ("the encoder before training", untrained),
        ("the windows themselves", &raw),
    ];
    let evaluate = &run.config.evaluate;
    let hanging =
        together(run.config, windows, &windows.parts.test.labelled()).asked(evaluate.block);
    let resampling = |hanging: &Together| Resampling {
        stream: Stream::new(evaluate.seed, "halves"),
        resamples: evaluate.resamples,
        block: hanging.block.max(1),
        units: hanging.units_in_order(),
        whole_units: hanging.whole_units,
        confidence: evaluate.confidence,
    };
    let judged = |hanging: &Together| {
        let sorted = subjects.map(|(name, clusters)| (name, hanging.sorted(clusters)));
        let subjects: [(&'static str, &Vec<u32>); 3] =
            std::array::from_fn(|place| (sorted[place].0, &sorted[place].1));
        with_intervals(&resampling(hanging), &hanging.sorted(&truth), &subjects)
    };
    let independent = resampling(&hanging).independent(truth.len());
    let (mut subjects, mut leads) = judged(&hanging);
    // Halves are drawn by moments or by units; windows hang together by both, so the wider one is told.
    if let Some(by_units) = hanging.by_units() {
        let (others, other_leads) = judged(&by_units);
        subjects.iter_mut().zip(&others).for_each(|(own, other)| own.widen(other));
        leads.iter_mut().zip(&other_leads).for_each(|(own, other)| *own = wider(*own, *other));
    }
    let evaluation = probe(run, settings, windows, parts, iterated)?;
    let (windows, confidence) = (truth.len(), evaluate.confidence);
    Ok(Judged { windows, independent, by_iteration, subjects, leads, confidence, evaluation })
}

/// Writes every test window with a true class: its cluster by the encoder that each iteration began with, by the trained
/// one, and of the window itself.
fn write_test(
    path: &Path,
    windows: &Windows,
    starts: &[Vec<u32>],
    raw: &[u32],
) -> Result<(), PipelineError> {
    let test = windows.parts.test.labelled();
    // The last are those by the trained encoder.
    let mut named: Vec<String> = (1..starts.len()).map(|at| format!("iteration_{at}")).collect();
    named.push("trained".to_owned());
    let mut said: Vec<(String, Said<'_>)> =
        named.into_iter().zip(starts.iter().map(|own| Said::Number(own))).collect();
    said.push(("windows".to_owned(), Said::Number(raw)));
    let table = TestTable {
        set: test.set(),
        has_clock: windows.ingested.checks.span.is_some(),
        classes: test.classes(),
        windows: test.windows().clone(),
        said,
    };
    Ok(table.write(path)?)
}

/// Of two estimates of one value, all that either interval holds.
fn wider(one: Estimate, other: Estimate) -> Estimate {
    Estimate { low: one.low.min(other.low), high: one.high.max(other.high), ..one }
}

impl Judgement {
    fn widen(&mut self, other: &Self) {
        self.purity = wider(self.purity, other.purity);
        self.normalised_information =
            wider(self.normalised_information, other.normalised_information);
        self.adjusted_rand = wider(self.adjusted_rand, other.adjusted_rand);
    }
}

/// Agreements and leads of the first subject, on the same halves of the windows.
fn with_intervals(
    resampling: &Resampling,
    truth: &[u32],
    subjects: &[(&'static str, &Vec<u32>)],
) -> (Vec<Judgement>, Vec<Estimate>) {
    let all = |indices: &[u32]| -> Vec<Agreement> {
        let pick = |of: &[u32]| indices.iter().map(|i| of[*i as usize]).collect::<Vec<u32>>();
        let truth = pick(truth);
        subjects.iter().map(|(_, found)| Agreement::of(&truth, &pick(found))).collect()
    };
    let every: Vec<u32> = (0..truth.len() as u32).collect();
    let values = all(&every);
    let drawn = resampling.map_halves(truth.len(), all);
    let estimate = |bounds: [f64; 2], of: &dyn Fn(&[Agreement]) -> f64| {
        let halves: Vec<f64> = drawn.iter().map(|one| of(one)).collect();
        Estimate::from_halves(of(&values), &halves, resampling.confidence, bounds)
    };
    let judgement = |(at, (name, _)): (usize, &(&'static str, &Vec<u32>))| Judgement {
        name,
        purity: estimate([0.0, 1.0], &|all| all[at].purity),
        normalised_information: estimate([0.0, 1.0], &|all| all[at].normalised_information),
        // Chance gives 0, and the least agreement -0.5.
        adjusted_rand: estimate([-0.5, 1.0], &|all| all[at].adjusted_rand),
    };
    let lead = |other: usize| {
        estimate([-1.0, 1.0], &|all| {
            all[0].normalised_information - all[other].normalised_information
        })
    };
    let leads = (1..subjects.len()).map(lead).collect();
    (subjects.iter().enumerate().map(judgement).collect(), leads)
}

/// Clusters of the normalised test windows themselves, padded with zeros. Training windows are held all at once, and test
/// windows one at a time.
fn raw_clusters(
    run: &Run<'_>,
    settings: &PseudolabelConfig,
    parts: &ClusterParts,
) -> Result<Vec<u32>, PipelineError> {
    let [train, test]: [&dyn Source; 2] = [parts.train.as_ref(), parts.test.as_ref()];
    let [time, channels] = [train.shape()[0].max(test.shape()[0]), train.shape()[1]];
    let width = time * channels;
    // They are many times as wide as embeddings, and take most of the time before the probes.
    let watch = |done: u32| {
        run.listener.on(&Event::Progress {
            stage: "evaluate".to_owned(),
            done: u64::from(done),
            total: u64::from(settings.restarts),
            unit: "starts of K-means on windows".to_owned(),
        });
    };
    watch(0);
    let mut rows = vec![0.0; train.len() * width];
    for (index, row) in rows.chunks_exact_mut(width).enumerate() {
        train.read(index, row)?;
    }
    let found = run.cluster_rows(settings, &rows, width, watch)?;
    drop(rows);
    let mut row = vec![0.0; width];
    let mut clusters = Vec::with_capacity(test.len());
    for index in 0..test.len() {
        row.fill(0.0);
        test.read(index, &mut row)?;
        clusters.extend(found.assign(&row, width));
    }
    Ok(clusters)
}

fn probe(
    run: &Run<'_>,
    settings: &PseudolabelConfig,
    windows: &Windows,
    parts: &ClusterParts,
    iterated: &Iterated,
) -> Result<Option<Evaluation>, PipelineError> {
    let normaliser = &windows.normaliser;
    let validation = NormalisedWindows::new(windows.parts.validation.clone(), normaliser.clone());
    let sources = Sources {
        train: parts.train.clone(),
        validation: Arc::new(validation),
        test: parts.test.clone(),
        held_out: None,
        channels: channel_names(windows),
        together: as_labelled(&windows.parts.test, |test| together(run.config, windows, test)),
    };
    let channels = sources.channels.len();
    let random = |seed| match run.stop.load(Ordering::Relaxed) {
        true => Err(PipelineError::Interrupted),
        false => run.initial(settings, seed, channels),
    };
    let (config, device) = (&run.config.evaluate, &run.device.device);
    let (model, halt) = (&iterated.model, run.stop);
    Ok(evaluate_encoder(config, model, random, &sources, device, halt, run.listener)?)
}
