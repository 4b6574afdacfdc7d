//! Trains every arm at every share with every seed, and predicts the test windows.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::activation::softmax;
use firebox_core::{Augmentation, Event, Key, Stream, count, quoted};
use firebox_eval::{Arm, FewLabels, Predictions, SharePredictions};
use firebox_kernels::KeptWeights;
use firebox_loader::{
    AugmentedWindows, HeldOutLoader, LoaderConfig, NormalisedWindows, Source, TrainSource,
};
use firebox_models::{Classifier, Classify, Parameter, read_parameters};
use firebox_train::{
    Classification, Data, MatchReport, Outcome, Summary, TrainConfig, load_matching,
};

use super::draw::{DRAW, counts, draw, is_far, labelled};
use super::page::in_steps;
use super::{Begin, FinetuneConfig};
use crate::chain::Work;
use crate::error::PipelineError;
use crate::feed::Placed;
use crate::keys::json;
use crate::stages::{Run, Windows, training};
use crate::sub::{Sub, sub_trained_before};
use crate::together::together;
use crate::zoo::Pretrainable;

/// What is needed to train the arms.
pub(super) struct Fitting<'a> {
    pub(super) run: &'a Run<'a>,
    pub(super) settings: &'a FinetuneConfig,
    pub(super) windows: &'a Windows,
    pub(super) by_series: bool,
    /// Shares of the labels, from the smallest on, each of which comes to windows of its own.
    pub(super) shares: &'a [f64],
}

/// What the arms predicted, and how they were trained.
pub(super) struct Fitted {
    pub(super) shares: Vec<SharePredictions>,
    /// True classes of the labelled test windows.
    pub(super) truth: Vec<u32>,
    /// The most frequent class of all labelled training windows.
    pub(super) majority: u32,
    /// Share, arm, seed and what its training says of itself.
    pub(super) trainings: Vec<(f64, Arm, u64, Summary)>,
    /// What of the weights fitted.
    pub(super) matched: Option<MatchReport>,
    /// Whether nothing had to be trained.
    pub(super) reused: bool,
    /// Weights of the classifier to be used later: the first arm (`fine-tuned`, where that is one) at
    /// the largest share, with the seed of the run.
    pub(super) kept: Vec<Parameter>,
    /// The probability of each class of each labelled test window by that classifier, `[window, class]`.
    pub(super) probabilities: Vec<f32>,
}

/// The windows of one draw.
struct Drawing {
    train: Arc<dyn TrainSource>,
    /// Drawn windows, without their versions.
    windows: usize,
    validation: Option<Arc<dyn Source>>,
    weights: Vec<f32>,
}

impl Fitted {
    /// One line.
    pub(super) fn detail(&self) -> String {
        let trainings = count(self.trainings.len() as u64, "classifier");
        let matched = self.matched.as_ref().map_or(String::new(), |report| format!("; {report}"));
        format!("{trainings} trained in {}{matched}", in_steps(&self.steps()))
    }

    /// Steps of each training, and those that were skipped.
    pub(super) fn steps(&self) -> Vec<[u64; 2]> {
        let of = |summary: &Summary| [summary.steps, summary.counts.skipped];
        self.trainings.iter().map(|(.., summary)| of(summary)).collect()
    }

    /// Share, seed and kept epoch of each training of `fine-tuned`.
    pub(super) fn fine_tuned(&self) -> Vec<(f64, u64, u64)> {
        let own = self.trainings.iter().filter(|(_, arm, ..)| *arm == Arm::FineTuned);
        own.map(|(share, _, seed, summary)| (*share, *seed, summary.kept_epoch())).collect()
    }

    /// Whose weights are kept, and their own scores on the test windows: not the mean over the seeds.
    pub(super) fn kept_score(
        &self,
        run: &Run<'_>,
        classes: usize,
    ) -> (String, Vec<(&'static str, f64)>) {
        let seed = run.config.run.seed;
        let kept = self.shares.last().and_then(|share| {
            let (arm, predictions) = share.arms.first_key_value()?;
            Some((share.share, *arm, predictions.runs.first()?))
        });
        let Some((share, arm, own)) = kept else { return (String::new(), vec![]) };
        let metrics = &Predictions::single(own.clone()).metrics(classes, &self.truth)[0];
        let whose = format!(
            "`{}` with {} % of the labels and seed {seed}",
            arm.name(),
            (1000.0 * share).round() / 10.0
        );
        let scores = vec![
            ("test/accuracy", metrics.accuracy),
            ("test/balanced_accuracy", metrics.balanced_accuracy),
            ("test/macro_f1", metrics.macro_f1),
        ];
        (whose, scores)
    }

    /// What every training predicted, by the name of its folder: the class of each labelled test window.
    pub(super) fn predicted(&self, run: &Run<'_>) -> Vec<(String, &[u32])> {
        let mut all = vec![];
        for share in &self.shares {
            for (arm, predictions) in &share.arms {
                for (index, predicted) in (0..).zip(&predictions.runs) {
                    let seed = run.config.run.seed.wrapping_add(index);
                    all.push((training_name(share.share, *arm, seed), predicted.as_slice()));
                }
            }
        }
        all
    }

    /// The classes that the kept classifier predicts.
    pub(super) fn kept_classes(&self) -> &[u32] {
        let first = self.shares.last().and_then(|share| share.arms.first_key_value());
        let own = first.and_then(|(_, predictions)| predictions.runs.first());
        own.map(Vec::as_slice).unwrap_or_default()
    }

    /// The comparison of the arms.
    pub(super) fn scores(&self, run: &Run<'_>, windows: &Windows) -> FewLabels {
        let classes = windows.parts.train.classes();
        let shares = self.shares.clone();
        let together = together(run.config, windows, &windows.parts.test.labelled());
        FewLabels::of(&run.config.evaluate, classes, &self.truth, self.majority, &together, shares)
    }
}

impl Fitting<'_> {
    /// Everything. The arms of one share and seed learn from the same windows.
    pub(super) fn all<M: Pretrainable>(
        &self,
        work: &Work<'_>,
        begin: Option<&Begin>,
    ) -> Result<Fitted, PipelineError> {
        let parts = &self.windows.parts;
        let test = parts.test.labelled();
        let truth = test.windows().iter().filter_map(|window| window.label).collect();
        let test = NormalisedWindows::new(test, self.windows.normaliser.clone());
        let test: Arc<dyn Source> = Arc::new(test);
        let majority = most_frequent(&counts(&parts.train, &labelled(&parts.train)));
        let (shares, seeds) = (self.shares, self.settings.seeds_from(self.run.config.run.seed));
        let total = (shares.len() * seeds.len() * self.settings.arms.len()) as u64;
        let (mut scored, mut trainings, mut matched) = (vec![], vec![], None);
        let (mut reused, mut kept, mut probabilities) = (true, vec![], vec![]);
        let wanted = self.settings.arms.iter().min().copied();
        let all_labelled = labelled(&parts.train).len();
        for share in shares.iter().copied() {
            let mut arms = BTreeMap::<Arm, Predictions>::new();
            let mut windows = 0;
            for seed in seeds.iter().copied() {
                let drawing = self.drawing(share, seed)?;
                windows += drawing.windows;
                for arm in &self.settings.arms {
                    let name = training_name(share, *arm, seed);
                    reused &= sub_trained_before(work, &name);
                    let (mut model, report) = self.model::<M>(*arm, seed, begin)?;
                    matched = matched.or(report);
                    let summary;
                    (model, summary) = self.fit(work, &name, model, &drawing, *arm, share, seed)?;
                    // Shares ascend, so that the largest is the last to be kept.
                    let is_kept = Some(*arm) == wanted && seed == self.run.config.run.seed;
                    let (predicted, own) = self.predict(&model, &test, is_kept)?;
                    if is_kept {
                        (kept, probabilities) = (read_parameters(&model), own);
                    }
                    arms.entry(*arm)
                        .or_insert_with(|| Predictions { runs: vec![] })
                        .runs
                        .push(predicted);
                    trainings.push((share, *arm, seed, summary));
                    self.run.listener.on(&Event::Progress {
                        stage: "finetune".to_owned(),
                        done: trainings.len() as u64,
                        total,
                        unit: "classifiers".to_owned(),
                    });
                }
            }
            let windows = windows as f64 / seeds.len() as f64;
            let drawn = windows / all_labelled.max(1) as f64;
            let drawn = (self.by_series && is_far(share, drawn)).then_some(drawn);
            scored.push(SharePredictions { share, windows, drawn, arms });
        }
        Ok(Fitted {
            shares: scored,
            truth,
            majority,
            trainings,
            matched,
            reused,
            kept,
            probabilities,
        })
    }

    /// The place for what is drawn: that of all labelled training windows, more than which no arm
    /// learns from.
    pub(super) fn placed(&self) -> Result<Placed, PipelineError> {
        let labelled = labelled(&self.windows.parts.train);
        self.run.placed(self.source(labelled, self.run.config.run.seed)?.as_ref())
    }

    /// Training windows at these places, with their fresh versions.
    fn source(&self, chosen: Vec<usize>, seed: u64) -> Result<Arc<dyn TrainSource>, PipelineError> {
        let (all, own) = (self.windows.parts.train.clone(), self.windows.normaliser.clone());
        Ok(match self.settings.versions {
            0 => Arc::new(NormalisedWindows::new(all, own).only(chosen)),
            versions => {
                let augment = Augmentation { versions, ..self.run.config.augment.clone() };
                Arc::new(AugmentedWindows::new(all, own, &augment, seed)?.only(chosen))
            }
        })
    }

    /// The windows that all arms of a share and seed learn from, and their fresh versions.
    fn drawing(&self, share: f64, seed: u64) -> Result<Drawing, PipelineError> {
        let parts = &self.windows.parts;
        let normaliser = &self.windows.normaliser;
        let stream = |purpose| Stream::new(seed, purpose);
        let chosen = draw(&parts.train, share, self.by_series, stream(DRAW));
        let counts = counts(&parts.train, &chosen);
        let windows = chosen.len();
        let train = self.source(chosen, seed)?;
        let held = draw(&parts.validation, share, self.by_series, stream("few validation labels"));
        let validation = NormalisedWindows::new(parts.validation.clone(), normaliser.clone());
        Ok(Drawing {
            train,
            windows,
            validation: (!held.is_empty())
                .then(|| Arc::new(validation.only(held)) as Arc<dyn Source>),
            weights: self.settings.class_weights.of(&counts),
        })
    }

    /// The classifier of an arm as it begins.
    fn model<M: Pretrainable>(
        &self,
        arm: Arm,
        seed: u64,
        begin: Option<&Begin>,
    ) -> Result<(Classifier<M::Encoder>, Option<MatchReport>), PipelineError> {
        let (run, settings) = (self.run, self.settings);
        let channels = self.windows.ingested.set.channels().len();
        let classes = self.windows.parts.train.classes().len();
        let encoder = M::encoder(&run.config.model, &run.place(seed, channels))?;
        let stream = Stream::new(seed, "head");
        let model = settings.head.init(stream, encoder, classes, &run.device.device)?;
        let mut model = model.in_precision(run.config.run.precision);
        let Some(begin) = begin.filter(|_| arm.is_pretrained()) else { return Ok((model, None)) };
        let least = settings.least_match;
        let report = load_matching(&mut model, "encoder.", &begin.weights, least, &begin.path)?;
        Ok((model, Some(report)))
    }

    /// Warns of parameters of the encoder that given weights do not have: drawn at random, they are what a frozen
    /// encoder looks through.
    pub(super) fn warn_of_unmatched<M: Pretrainable>(
        &self,
        begin: &Begin,
    ) -> Result<(), PipelineError> {
        let (_, report) = self.model::<M>(Arm::FineTuned, self.run.config.run.seed, Some(begin))?;
        let report = report.unwrap_or_default();
        let shapes = report.shapes.iter().map(|(name, _, _)| name);
        let names: Vec<&String> = report.missing.iter().chain(shapes).collect();
        if !names.is_empty() {
            let frozen = match self.settings.arms.contains(&Arm::PreTrainedFrozen) {
                true => "; a frozen encoder looks through them",
                false => "",
            };
            let message = format!(
                "{} of the encoder {} not among the weights of {} in this shape, and begin{} at random: {}{frozen}",
                count(names.len() as u64, "parameter"),
                if names.len() == 1 { "is" } else { "are" },
                begin.path.display(),
                if names.len() == 1 { "s" } else { "" },
                quoted(&names, 4)
            );
            self.run.listener.on(&Event::Warning { message });
        }
        Ok(())
    }

    /// Trains a classifier in a folder of its own, or reads it back.
    #[expect(clippy::too_many_arguments, reason = "each names one part of what is trained")]
    fn fit<C: Classify>(
        &self,
        work: &Work<'_>,
        name: &str,
        model: C,
        drawing: &Drawing,
        arm: Arm,
        share: f64,
        seed: u64,
    ) -> Result<(C, Summary), PipelineError> {
        let (run, settings) = (self.run, self.settings);
        let loader = LoaderConfig { batch_size: settings.batch_size, ..run.loader() };
        let loader = LoaderConfig { seed, ..loader };
        let train = run.placed_loader(drawing.train.clone(), None, loader)?;
        let train = train.with_masking(settings.masking)?;
        let validation = drawing.validation.clone();
        let validation = validation.map(|held| run.validation_loader(held, &train, None, loader));
        let validation = validation.transpose()?;
        let objective = Classification::new(settings.loss, drawing.weights.clone(), settings.mix);
        let key = Key::builder("finetune arm", 1)
            .upstream("finetune", run.keys.training)
            .field("arm", json(&arm))
            .field("share", share.to_le_bytes())
            .field("seed", seed.to_le_bytes())
            .finish();
        let (batch_size, keys) = (settings.batch_size, FinetuneConfig::keys());
        let sub = Sub { name, key, seed, batch_size, keys };
        let data = Data { train: &train, validation: validation.as_ref() };
        let of_run = training(run.config);
        let config = TrainConfig {
            loss_scale: of_run.loss_scale,
            allow_unscaled_f16: of_run.allow_unscaled_f16,
            ..settings.training(arm)
        };
        let trained = run.train_sub(work, &sub, model, &objective, data, &config)?;
        match trained.summary.outcome {
            Outcome::Interrupted => Err(PipelineError::Interrupted),
            Outcome::Finished | Outcome::StoppedEarly => Ok((trained.model, trained.summary)),
        }
    }

    /// The most probable class of each labelled test window and, if they are asked for, the probabilities of all classes,
    /// `[window, class]`, as `firebox predict` has them.
    fn predict<C: Classify>(
        &self,
        model: &C,
        test: &Arc<dyn Source>,
        with_probabilities: bool,
    ) -> Result<(Vec<u32>, Vec<f32>), PipelineError> {
        let batch_size = self.run.config.evaluate.batch_size;
        let loader = LoaderConfig { batch_size, ..self.run.loader() };
        let loader = HeldOutLoader::new(Arc::clone(test), loader, self.run.device.device.clone())?;
        let (mut predicted, mut probabilities) = (vec![], vec![]);
        let weights = KeptWeights::new();
        for batch in loader.batches() {
            let batch = batch?;
            let logits = weights.during(|| model.logits(batch.inputs, Some(&batch.lengths), None));
            let [_, classes] = logits.dims();
            if with_probabilities {
                let own = softmax(logits.clone(), 1).into_data();
                probabilities.extend(own.iter::<f32>());
            }
            let values: Vec<f32> = logits.into_data().iter::<f32>().collect();
            predicted.extend(values.chunks_exact(classes).map(largest));
        }
        Ok((predicted, probabilities))
    }
}

/// Name of a training, and of its folder below `parts/`.
fn training_name(share: f64, arm: Arm, seed: u64) -> String {
    format!("share-{share}/{}/seed-{seed}", folder_name(arm))
}

/// Name of an arm's folder.
fn folder_name(arm: Arm) -> &'static str {
    match arm {
        Arm::FineTuned => "fine-tuned",
        Arm::PreTrainedFrozen => "pre-trained-frozen",
        Arm::FromScratch => "from-scratch",
        Arm::RandomFrozen => "random-frozen",
    }
}

/// The class with the largest logit; of equal ones the first.
fn largest(row: &[f32]) -> u32 {
    let better = |best: usize, class: usize| if row[class] > row[best] { class } else { best };
    (0..row.len()).fold(0, better) as u32
}

/// The class that occurs most; of equal ones the first.
fn most_frequent(counts: &[usize]) -> u32 {
    let better =
        |best: usize, class: usize| if counts[class] > counts[best] { class } else { best };
    (0..counts.len()).fold(0, better) as u32
}
