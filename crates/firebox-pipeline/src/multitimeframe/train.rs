//! The trainings: each model on each fold, one after the other, and what they predict.

use std::path::Path;
use std::sync::Arc;

use burn::tensor::Device;
use firebox_core::{
    Event, Fold, HeldOutWindows, Key, Normalisation, Normaliser, Stream, TrainWindows, count,
};
use firebox_kernels::KeptWeights;
use firebox_loader::{
    HeldOutLoader, LoadError, LoaderConfig, NormalisedWindows, Source, TrainSource,
};
use firebox_models::{Classify, Parameter, layouts, read_parameters};
use firebox_train::{
    ClassLoss, Classification, Data, Outcome, TrainError, check_groups_of_several, groups_of,
};

use super::{ModelName, MultitimeframeConfig};
use crate::PipelineConfig;
use crate::bench::{Measured, Probe};
use crate::cached::cached_if;
use crate::chain::{Work, names_parameters};
use crate::config::RunConfig;
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::keys::json;
use crate::online::source;
use crate::pretrain::probe_shape;
use crate::stages::{Run, training};
use crate::sub::{self, Sub, sub_trained_before};

/// The labelled windows of a fold, scaled by what was fitted on its training part.
pub(super) struct FoldParts {
    pub(super) normaliser: Normaliser,
    pub(super) train: Arc<NormalisedWindows<TrainWindows>>,
    pub(super) validation: Arc<NormalisedWindows<HeldOutWindows>>,
    pub(super) test: Arc<NormalisedWindows<HeldOutWindows>>,
}

impl FoldParts {
    pub(super) fn new(fold: &Fold, normalise: Normalisation) -> Result<Self, PipelineError> {
        let normaliser = Normaliser::fit(normalise, &fold.split.train)?;
        let held_out = |windows: &HeldOutWindows| {
            Arc::new(NormalisedWindows::new(windows.labelled(), normaliser.clone()))
        };
        Ok(Self {
            validation: held_out(&fold.split.validation),
            test: held_out(&fold.split.test),
            train: Arc::new(NormalisedWindows::new(
                fold.split.train.labelled(),
                normaliser.clone(),
            )),
            normaliser,
        })
    }

    /// The classes of the test windows.
    pub(super) fn truth(&self) -> Vec<u32> {
        self.test.windows().windows().iter().filter_map(|window| window.label).collect()
    }
}

/// What came of all trainings.
#[derive(Default)]
pub(super) struct Trained {
    /// `[model][test window]`, the windows of one fold after those of another.
    pub(super) predicted: Vec<Vec<u32>>,
    pub(super) lines: Vec<Line>,
    /// Weights of each model after the last fold, in the order of the models.
    pub(super) last: Vec<Vec<Parameter>>,
}

/// One training.
pub(super) struct Line {
    pub(super) fold: usize,
    pub(super) model: ModelName,
    pub(super) windows: usize,
    pub(super) parameters: u64,
    pub(super) steps: u64,
    pub(super) epochs: u64,
    pub(super) best: Option<(u64, f64)>,
    pub(super) outcome: Outcome,
    pub(super) seconds: f64,
}

impl Trained {
    /// The place of the model with the lowest mean of its validation losses over the folds, and that
    /// mean: what a validation loss is does not depend on the model.
    pub(super) fn best(&self, models: &[ModelName]) -> (usize, f64) {
        let mean = |model: &ModelName| {
            let own = self.lines.iter().filter(|line| line.model == *model);
            let losses: Vec<f64> =
                own.map(|line| line.best.map_or(f64::INFINITY, |best| best.1)).collect();
            losses.iter().sum::<f64>() / losses.len().max(1) as f64
        };
        let all = models.iter().map(mean).enumerate();
        all.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, f64::INFINITY))
    }

    /// Steps of all trainings together.
    pub(super) fn steps(&self) -> u64 {
        self.lines.iter().map(|line| line.steps).sum()
    }
}

/// A model and what it is trained with.
struct Task<'a> {
    name: String,
    model: ModelName,
    parts: &'a FoldParts,
    settings: &'a MultitimeframeConfig,
    key: Key,
}

impl Run<'_> {
    /// Trains every model on every fold, or reads back what was trained: `Err` with the steps taken
    /// if it was interrupted.
    pub(super) fn train_folds(
        &self,
        work: &mut Work<'_>,
        settings: &MultitimeframeConfig,
        folds: &[Fold],
        parts: &[FoldParts],
    ) -> Result<Result<Trained, u64>, PipelineError> {
        let mut remade = 0;
        let result = self.stage("train", Some(self.keys.training), &mut remade, || {
            let total = (folds.len() * settings.models.len()) as u64;
            let mut trained = Trained::default();
            let mut reused = true;
            for model in &settings.models {
                let mut predicted = Vec::new();
                for (parts, fold) in parts.iter().zip(1..) {
                    let name = format!("fold-{fold}/{}", model.name());
                    reused &= sub_trained_before(work, &name);
                    let key = self.fold_key(settings, *model, fold);
                    let task = Task { name, model: *model, parts, settings, key };
                    let (line, own, weights) = self.train_one(work, &task, fold)?;
                    if line.outcome == Outcome::Interrupted {
                        let steps = trained.steps() + line.steps;
                        return Ok((Err(steps), false, "interrupted".to_owned()));
                    }
                    predicted.extend(own);
                    trained.lines.push(line);
                    if fold == folds.len() {
                        trained.last.push(weights);
                    }
                    self.listener.on(&Event::Progress {
                        stage: "train".to_owned(),
                        done: trained.lines.len() as u64,
                        total,
                        unit: "trainings".to_owned(),
                    });
                }
                trained.predicted.push(predicted);
            }
            let detail =
                format!("{} in {}", count(trained.steps(), "step"), count(total, "training"));
            Ok((Ok(trained), reused, detail))
        })?;
        work.remade += remade;
        Ok(result)
    }

    fn fold_key(&self, settings: &MultitimeframeConfig, model: ModelName, fold: usize) -> Key {
        Key::builder("fold-training", 1)
            .upstream("training", self.keys.training)
            .field("folds", json(&settings.folds))
            .field("fold", (fold as u64).to_le_bytes())
            .field("model", settings.settings(model))
            .finish()
    }

    fn train_one(
        &self,
        work: &Work<'_>,
        task: &Task<'_>,
        fold: usize,
    ) -> Result<(Line, Vec<u32>, Vec<Parameter>), PipelineError> {
        let device = &self.device.device;
        let Task { settings, parts, .. } = task;
        let windows = parts.train.windows();
        let (time, channels) = (self.config.window.length, windows.set().channels().len());
        let (classes, stream) =
            (windows.classes().len(), Stream::new(self.config.run.seed, "weights"));
        let RunConfig { precision, recompute, .. } = self.config.run;
        let result = match task.model {
            ModelName::Lstm => {
                let model = settings.lstm.settings.init(stream, channels, classes, device)?;
                let model = model.in_precision(precision).recomputed(recompute);
                self.trained(work, task, model, fold)
            }
            ModelName::Transformer => {
                let config = &settings.transformer.settings;
                let model = config.init(stream, channels, time, classes, device)?;
                let model = model.in_precision(precision).recomputed(recompute);
                self.trained(work, task, model, fold)
            }
            ModelName::Mlp => {
                let model =
                    settings.mlp.settings.init(stream, [time, channels], classes, device)?;
                self.trained(work, task, model.in_precision(precision), fold)
            }
        };
        // The model is gone: what the device has kept of its memory is given back for the next.
        device.memory_cleanup();
        result
    }

    /// The training windows of a fold as models learn from them: with their versions, if any are drawn.
    pub(super) fn learnt(&self, parts: &FoldParts) -> Result<Arc<dyn TrainSource>, PipelineError> {
        let (windows, normaliser) = (parts.train.windows().clone(), parts.normaliser.clone());
        source(windows, normaliser, &self.config.augment, self.config.run.seed)
    }

    fn trained<M: Classify>(
        &self,
        work: &Work<'_>,
        task: &Task<'_>,
        model: M,
        fold: usize,
    ) -> Result<(Line, Vec<u32>, Vec<Parameter>), PipelineError> {
        let Task { name, model: which, parts, settings, key } = task;
        let device = &self.device.device;
        let loader = LoaderConfig { batch_size: settings.batch(*which), ..self.loader() };
        let train = self.placed_loader(self.learnt(parts)?, None, loader)?;
        let train = train.with_masking(settings.masking)?;
        let validation = self.validation_loader(parts.validation.clone(), &train, None, loader)?;
        let data = Data { train: &train, validation: Some(&validation) };
        let config = groups_of(&model, &settings.training(*which, &training(self.config)));
        let loss = ClassLoss::CrossEntropy { label_smoothing: settings.label_smoothing };
        let weights = vec![1.0; parts.train.windows().classes().len()];
        let objective = Classification::new(loss, weights, settings.mix);
        let (seed, batch_size) = (self.config.run.seed, loader.batch_size);
        let keys = settings.keys(*which, self.config);
        let sub = Sub { name, key: *key, seed, batch_size, keys };
        let firebox_train::Trained { model, summary } =
            self.train_sub(work, &sub, model, &objective, data, &config)?;
        let predicted = match summary.outcome {
            Outcome::Interrupted => vec![],
            Outcome::Finished | Outcome::StoppedEarly => {
                let own = Key::builder("predictions", 1)
                    .upstream("training", *key)
                    .field("best", json(&summary.best))
                    .finish();
                predictions(&sub::path(work, name), &own, parts, || {
                    Ok(predict(&model, &parts.test, loader, device)?)
                })?
            }
        };
        let line = Line {
            fold,
            model: *which,
            windows: parts.train.len(),
            parameters: summary.parameters,
            steps: summary.steps,
            epochs: summary.epochs,
            best: summary.best.map(|best| (best.epoch, best.loss)),
            outcome: summary.outcome,
            seconds: summary.seconds,
        };
        Ok((line, predicted, read_parameters(&model)))
    }
}

/// Classes of models of which only the names of parameters are asked, or a step is timed.
const CLASSES: usize = 2;

/// Checks names of parameters in the settings: each has to be one of some model that is trained.
pub(super) fn check_names(
    config: &PipelineConfig,
    device: &ChosenDevice,
) -> Result<(), PipelineError> {
    if !names_parameters(&config.train) {
        return Ok(());
    }
    let settings = super::settings(config);
    let (stream, time, on) = (Stream::new(0, "names"), config.window.length, &device.device);
    // Names depend neither on the number of channels nor on that of classes.
    let named = settings.models.iter().map(|name| {
        Ok::<_, PipelineError>(match name {
            ModelName::Lstm => layouts(&settings.lstm.settings.init(stream, 2, CLASSES, on)?),
            ModelName::Transformer => {
                layouts(&settings.transformer.settings.init(stream, 1, time, CLASSES, on)?)
            }
            ModelName::Mlp => {
                layouts(&settings.mlp.settings.init(stream, [time, 1], CLASSES, on)?)
            }
        })
    });
    let named: Vec<_> = named.collect::<Result<_, _>>()?;
    check_groups_of_several(&named, &config.train).map_err(|error| TrainError::from(error).into())
}

/// Steps of each model in turn, with its own batch: their times are added up.
pub(super) fn probe(
    config: &PipelineConfig,
    probe: Probe<'_>,
    device: &ChosenDevice,
) -> Result<Measured, PipelineError> {
    let (settings, shape) = (super::settings(config), probe_shape(config)?);
    let [time, channels] = shape;
    let stream = Stream::new(config.run.seed, "weights");
    let loss = ClassLoss::CrossEntropy { label_smoothing: settings.label_smoothing };
    let objective = Classification::new(loss, vec![1.0; CLASSES], settings.mix);
    let (precision, on) = (probe.precision, &device.device);
    let mut sum: Option<Measured> = None;
    for name in &settings.models {
        let train = settings.training(*name, &config.train);
        let probe = Probe { batch: settings.batch(*name), train: &train, ..probe };
        let measured = match name {
            ModelName::Lstm => {
                let model = settings.lstm.settings.init(stream, channels, CLASSES, on)?;
                let model = model.in_precision(precision).recomputed(config.run.recompute);
                probe.run_labelled(model, &objective, shape, CLASSES, device)
            }
            ModelName::Transformer => {
                let model = &settings.transformer.settings;
                let model = model.init(stream, channels, time, CLASSES, on)?;
                let model = model.in_precision(precision).recomputed(config.run.recompute);
                probe.run_labelled(model, &objective, shape, CLASSES, device)
            }
            ModelName::Mlp => {
                let model = settings.mlp.settings.init(stream, shape, CLASSES, on)?;
                let model = model.in_precision(precision);
                probe.run_labelled(model, &objective, shape, CLASSES, device)
            }
        }?;
        match &mut sum {
            None => sum = Some(measured),
            Some(sum) => {
                sum.times.iter_mut().zip(measured.times).for_each(|(all, own)| *all += own);
            }
        }
    }
    sum.ok_or_else(|| {
        PipelineError::Setting("`multitimeframe.models` is empty\n  name a model".to_owned())
    })
}

/// Classes of a fold's test windows: those that were kept under a key in a folder of the run, or what is predicted
/// now and kept, so that an evaluation that is killed goes on where it was.
pub(super) fn predictions(
    folder: &Path,
    key: &Key,
    fold: &FoldParts,
    predict: impl FnOnce() -> Result<Vec<u32>, PipelineError>,
) -> Result<Vec<u32>, PipelineError> {
    let windows = fold.test.windows();
    let classes = windows.classes().len();
    let fits = |all: &Vec<u32>| {
        all.len() == windows.len() && all.iter().all(|class| (*class as usize) < classes)
    };
    cached_if(folder, key, fits, predict).map(|(classes, _)| classes)
}

/// The class of the highest score of each window, the first of equal ones.
pub(crate) fn predict<M: Classify>(
    model: &M,
    windows: &Arc<NormalisedWindows<HeldOutWindows>>,
    loader: LoaderConfig,
    device: &Device,
) -> Result<Vec<u32>, LoadError> {
    let mut predicted = Vec::new();
    let weights = KeptWeights::new();
    for batch in HeldOutLoader::new(windows.clone(), loader, device.clone())?.batches() {
        let batch = batch?;
        let scores = weights.during(|| model.logits(batch.inputs, Some(&batch.lengths), None));
        let [_, classes] = scores.dims();
        let scores: Vec<f32> = scores.into_data().convert::<f32>().iter::<f32>().collect();
        predicted.extend(scores.chunks_exact(classes).map(highest));
    }
    Ok(predicted)
}

fn highest(scores: &[f32]) -> u32 {
    let mut best = 0;
    for (class, score) in scores.iter().enumerate() {
        if *score > scores[best] {
            best = class;
        }
    }
    best as u32
}
