//! One set: pre-training, probes and fine-tuning for each seed, and their test accuracies.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use burn::tensor::activation::softmax;
use firebox_core::{Key, Listener, Requests, Silent, Stream};
use firebox_eval::{
    ArchiveSet, Features, Logistic, RandomKernels, Recipe, Ridge, Stop, Svm, choose_penalty,
};
use firebox_kernels::KeptWeights;
use firebox_loader::{HeldOutLoader, LoaderConfig, Source};
use firebox_models::{Classify, DilatedEncoder};
use firebox_train::{
    ClassWeights, Classification, Contrasting, Data, Objective, Outcome, Run, TrainConfig, train,
};

use super::features::{features, raw};
use super::sets::{self, Pair, Set};
use super::{FINETUNE, PRETRAIN, UcrConfig, key};
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::feed::auto_loader;

/// When a fit of logistic regression ends.
const STOP: Stop = Stop { iterations: 300, gradient: 1e-6 };

/// What is done to a set.
pub(super) struct Job<'a> {
    pub(super) config: &'a UcrConfig,
    pub(super) device: &'a ChosenDevice,
    pub(super) stop: &'a Arc<AtomicBool>,
    pub(super) output: &'a Path,
    pub(super) pair: &'a Pair,
    /// Told what there is to know of the data.
    pub(super) listener: &'a dyn Listener,
}

/// What one seed gives: accuracies, and the shares of the classes for the ensemble.
struct OfSeed {
    accuracies: Vec<(Recipe, f64)>,
    shares: Vec<f64>,
}

impl Job<'_> {
    /// Measures the set; `progress` is told of each seed.
    pub(super) fn run(&self, progress: &mut dyn FnMut(u64)) -> Result<ArchiveSet, PipelineError> {
        let Self { config, output, pair, .. } = *self;
        let set = sets::read(pair, &output.join("cache"), config, self.listener)?;
        let truth = labels(set.test.as_ref())?;
        let mut accuracies = BTreeMap::<Recipe, Vec<f64>>::new();
        let mut sum = vec![0.0; truth.len() * set.classes.len()];
        for seed in (0..u64::from(config.seeds)).map(|index| config.seed.wrapping_add(index)) {
            let of_seed = self.seed(&set, &truth, seed)?;
            for (recipe, accuracy) in of_seed.accuracies {
                accuracies.entry(recipe).or_default().push(accuracy);
            }
            sum.iter_mut().zip(of_seed.shares).for_each(|(sum, share)| *sum += share);
            progress(1);
        }
        let together = largest(&sum, set.classes.len());
        accuracies.insert(Recipe::Ensemble, vec![accuracy(&truth, &together)]);
        let constant = majority(&labels(set.train.as_ref())?, set.classes.len());
        let always = vec![constant; truth.len()];
        accuracies.insert(Recipe::Majority, vec![accuracy(&truth, &always)]);
        Ok(ArchiveSet {
            name: pair.name.clone(),
            samples: [set.train.len(), set.test.len()],
            channels: set.channels,
            steps: set.train.shape()[0].max(set.test.shape()[0]),
            classes: set.classes.len(),
            accuracies,
            seconds: 0.0,
            defects: set.defects,
        })
    }

    /// Everything with one seed.
    fn seed(&self, set: &Set, truth: &[u32], seed: u64) -> Result<OfSeed, PipelineError> {
        let config = self.config;
        let classes = set.classes.len();
        let untrained = || {
            let stream = Stream::new(seed, "weights");
            config.encoder.init(stream, set.channels, &self.device.device)
        };
        let (random_train, random_test) = self.both(&untrained()?, set)?;
        let (random, _) = self.svm(&random_train, &random_test, classes);

        let samples = set.train.len();
        let pretraining = (config.pretraining.batch_size, config.pretraining.config(samples));
        let encoder = self.train(untrained()?, &Contrasting, set, pretraining, PRETRAIN, seed)?;
        let (train_features, test_features) = self.both(&encoder, set)?;
        let (svm, shares) = self.svm(&train_features, &test_features, classes);
        let (penalties, folds) = (&config.penalties, config.folds);
        let l2 = choose_penalty(&train_features, classes, penalties, folds, self.stop)?;
        let logistic = Logistic::fit(&train_features, classes, l2, STOP);
        let logistic = logistic.predict(&test_features.rows);

        let (by_kernels, kernel_shares) = self.kernels(set, classes, seed)?;
        let tuned = self.finetune(encoder, set, seed)?;
        let fine_tuned = largest(&tuned, classes);
        let all = shares.iter().zip(&tuned).zip(&kernel_shares);
        Ok(OfSeed {
            accuracies: vec![
                (Recipe::RandomSvm, accuracy(truth, &random)),
                (Recipe::RandomKernels, accuracy(truth, &by_kernels)),
                (Recipe::FrozenSvm, accuracy(truth, &svm)),
                (Recipe::FrozenLogistic, accuracy(truth, &logistic)),
                (Recipe::FineTuned, accuracy(truth, &fine_tuned)),
            ],
            shares: all.map(|((svm, tuned), kernels)| svm + tuned + kernels).collect(),
        })
    }

    /// The features of both files.
    fn both(
        &self,
        encoder: &DilatedEncoder,
        set: &Set,
    ) -> Result<(Features, Features), PipelineError> {
        let of = |part, source: Arc<dyn Source>| {
            features(encoder, (part, source), &self.config.levels, &self.device.device)
        };
        Ok((of("training", set.train.clone())?, of("test", set.test.clone())?))
    }

    /// Predictions for the test file by fixed kernels, and shares of the classes.
    fn kernels(
        &self,
        set: &Set,
        classes: usize,
        seed: u64,
    ) -> Result<(Vec<u32>, Vec<f64>), PipelineError> {
        let (train, train_labels) = raw(set.train.as_ref())?;
        let (test, test_labels) = raw(set.test.as_ref())?;
        let stream = Stream::new(seed, "kernels");
        let kernels = RandomKernels::fit(&train, set.channels, self.config.kernels, stream);
        let of = |part, windows: &[Vec<f32>], labels| {
            let (rows, width) = (kernels.features(windows), kernels.width());
            let of = Features { rows, width, labels };
            of.check(part, width, classes)?;
            Ok::<_, PipelineError>(of)
        };
        let train = of("training", &train, train_labels)?;
        let fitted = Ridge::fit(&train, classes, &self.config.ridge);
        let test = of("test", &test, test_labels)?;
        Ok((fitted.predict(&test.rows), fitted.shares(&test.rows)))
    }

    /// Predictions for the test file, and shares of the classes.
    fn svm(&self, train: &Features, test: &Features, classes: usize) -> (Vec<u32>, Vec<f64>) {
        let (c, _) = Svm::choose(train, &self.config.strengths, self.config.folds);
        let fitted = Svm::fit(train, classes, c);
        (fitted.predict(&test.rows), fitted.shares(&test.rows))
    }

    /// Trains an encoder on with labels; the probability of each class for each test sample.
    fn finetune(
        &self,
        encoder: DilatedEncoder,
        set: &Set,
        seed: u64,
    ) -> Result<Vec<f64>, PipelineError> {
        let config = self.config;
        let (classes, device) = (set.classes.len(), &self.device.device);
        let model = config.head.init(Stream::new(seed, "head"), encoder, classes, device)?;
        let mut counts = vec![0; classes];
        labels(set.train.as_ref())?.iter().for_each(|label| counts[*label as usize] += 1);
        let weights = ClassWeights::None.of(&counts);
        let objective = Classification::new(config.loss, weights, config.mix);
        let training = (config.finetuning.batch_size, config.finetuning.config(set.train.len()));
        let model = self.train(model, &objective, set, training, FINETUNE, seed)?;
        let source: Arc<dyn Source> = set.test.clone();
        let loader = LoaderConfig { batch_size: 64, workers: 0, ..LoaderConfig::default() };
        let mut shares = vec![];
        let kept = KeptWeights::new();
        for batch in HeldOutLoader::new(source, loader, device.clone())?.batches() {
            let batch = batch?;
            let logits = kept.during(|| model.logits(batch.inputs, Some(&batch.lengths), None));
            shares.extend(softmax(logits, 1).into_data().iter::<f32>().map(f64::from));
        }
        Ok(shares)
    }

    /// Trains a model in a folder of its own, or goes on with it, or reads it back.
    fn train<M, O>(
        &self,
        model: M,
        objective: &O,
        set: &Set,
        (batch_size, config): (usize, TrainConfig),
        kind: &str,
        seed: u64,
    ) -> Result<M, PipelineError>
    where
        M: burn::module::Module,
        O: Objective<M>,
    {
        let loader = LoaderConfig { batch_size, workers: 0, seed, ..LoaderConfig::default() };
        let loader = auto_loader(self.device, set.train.clone(), loader)?;
        let own: Key = key(kind, set.key, self.config, seed, &self.device.arithmetic()?);
        let folder: PathBuf =
            self.output.join(&self.pair.name).join(format!("{kind}-{seed}-{}", own.short()));
        let requests = Requests::new();
        let run = Run {
            folder: &folder,
            key: own,
            seed,
            resume: true,
            stop: self.stop,
            requests: &requests,
            listener: &Silent,
        };
        let data = Data { train: &loader, validation: None };
        let trained = self.device.run(|| train(model, objective, data, &config, &run))?;
        match trained.summary.outcome {
            Outcome::Interrupted => Err(PipelineError::Interrupted),
            Outcome::Finished | Outcome::StoppedEarly => Ok(trained.model),
        }
    }
}

/// The class of each sample.
fn labels(source: &dyn Source) -> Result<Vec<u32>, PipelineError> {
    let [time, channels] = source.shape();
    let mut window = vec![0.0; time * channels];
    let read = |index| {
        window.fill(0.0);
        Ok(source.read(index, &mut window)?.label.unwrap_or_default())
    };
    (0..source.len()).map(read).collect()
}

fn majority(labels: &[u32], classes: usize) -> u32 {
    let count = |class: &u32| labels.iter().filter(|label| *label == class).count();
    // Of equal ones the first: `max_by_key` takes the last.
    (0..classes as u32).rev().max_by_key(count).unwrap_or_default()
}

fn accuracy(truth: &[u32], predicted: &[u32]) -> f64 {
    let right = truth.iter().zip(predicted).filter(|(truth, predicted)| truth == predicted).count();
    right as f64 / truth.len().max(1) as f64
}

/// The class with the largest share of each row; of equal ones the first.
fn largest(shares: &[f64], classes: usize) -> Vec<u32> {
    let of = |row: &[f64]| {
        let first = |best: usize, class: usize| if row[class] > row[best] { class } else { best };
        (0..row.len()).fold(0, first) as u32
    };
    shares.chunks_exact(classes.max(1)).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_first_class() {
        assert_eq!(largest(&[0.2, 0.4, 0.4, 0.5, 0.5, 0.0], 3), [1, 0]);
        assert_eq!(majority(&[2, 1, 1, 2], 3), 1);
        assert_eq!(accuracy(&[1, 2, 0, 1], &[1, 2, 1, 1]), 0.75);
    }
}
