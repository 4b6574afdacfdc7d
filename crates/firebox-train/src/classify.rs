//! The objective of classifiers: cross-entropy or focal loss, with weights of classes and mixed
//! windows.

use burn::tensor::Tensor;
use firebox_kernels::{CrossEntropy, LossError, cross_entropy};
use firebox_loader::Batch;
use firebox_models::{Classify, Loss};
use serde::{Deserialize, Serialize};

use crate::ConfigError;
use crate::config::check;
use crate::mix::Mix;
use crate::objective::{Objective, Streams};

/// What a classifier minimises: `[finetune.loss]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum ClassLoss {
    /// Cross-entropy of softmax.
    CrossEntropy {
        /// Share of each target that is spread evenly over all classes, from 0 to 1. Source: Szegedy
        /// et al., 2016.
        #[serde(default)]
        label_smoothing: f64,
    },
    /// Cross-entropy in which windows that are told well count less, by `(1 − p)^γ`. Source: Lin et
    /// al., 2017.
    Focal {
        /// γ, 0 or more; R1: 2.
        #[serde(default = "two")]
        gamma: f64,
    },
}

fn two() -> f64 {
    2.0
}

impl Default for ClassLoss {
    /// R1's: focal, γ = 2.
    fn default() -> Self {
        Self::Focal { gamma: two() }
    }
}

impl ClassLoss {
    /// Checks the settings.
    ///
    /// # Errors
    /// The setting that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        match *self {
            Self::CrossEntropy { label_smoothing } => {
                let fits = |share: f64| (0.0..=1.0).contains(&share);
                check("loss.label_smoothing", label_smoothing, fits, "from 0 to 1")
            }
            Self::Focal { gamma } => {
                let fits = |gamma: f64| gamma >= 0.0 && (gamma as f32).is_finite();
                check("loss.focal.gamma", gamma, fits, "0 or more, and finite in f32")
            }
        }
    }
}

/// What each class counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClassWeights {
    /// Every window counts alike.
    None,
    /// Every class counts alike: a class with `n` of `N` windows and `k` classes has the weight
    /// `N / (k·n)`, as scikit-learn's "balanced"; one without a window has none.
    #[default]
    Balanced,
}

impl ClassWeights {
    /// The weight of each class, from how often it occurs among the training windows.
    pub fn of(self, counts: &[usize]) -> Vec<f32> {
        let all: usize = counts.iter().sum();
        let present = counts.iter().filter(|count| **count > 0).count();
        let weight = |count: &usize| match (self, count) {
            (Self::None, _) => 1.0,
            (Self::Balanced, 0) => 0.0,
            (Self::Balanced, count) => all as f32 / (present * count) as f32,
        };
        counts.iter().map(weight).collect()
    }
}

/// Classification of windows by a model that is [`Classify`]. Windows without a label are passed over.
///
/// # Panics
/// Its loss panics where a label is no class of the model, the model has another number of classes than there are weights,
/// a weight is negative or not finite, or [`ClassLoss::validate`] refuses the loss.
#[derive(Clone, Debug)]
pub struct Classification {
    loss: ClassLoss,
    weights: Vec<f32>,
    mix: Mix,
}

impl Classification {
    /// An objective over as many classes as there are weights.
    pub fn new(loss: ClassLoss, weights: Vec<f32>, mix: Mix) -> Self {
        Self { loss, weights, mix }
    }

    /// The mean loss of logits for targets with weights of rows.
    fn mean(
        &self,
        logits: Tensor<2>,
        targets: &[i64],
        shares: &[f32],
        training: bool,
    ) -> Result<Loss, LossError> {
        let (label_smoothing, focal) = match self.loss {
            // In training only, so that validation losses of different values compare.
            ClassLoss::CrossEntropy { label_smoothing } if training => (label_smoothing, 0.0),
            ClassLoss::CrossEntropy { .. } => (0.0, 0.0),
            ClassLoss::Focal { gamma } => (0.0, gamma),
        };
        let settings = CrossEntropy {
            label_smoothing,
            focal,
            class_weights: Some(&self.weights),
            sample_weights: Some(shares),
            ..CrossEntropy::default()
        };
        let mean = cross_entropy(logits, targets, &settings)?;
        Ok(Loss { value: mean.value, weight: mean.weight, parts: vec![] })
    }
}

impl<M: Classify> Objective<M> for Classification {
    fn loss(&self, model: &M, batch: &Batch, streams: Streams) -> Loss {
        let target = |row: usize| batch.labels[row].map_or(-100, i64::from);
        let own = || (0..batch.len()).map(target);
        let mixed = streams.dropout.filter(|_| self.mix != Mix::None).map(|stream| {
            let stream = stream.substream(MIXED);
            self.mix.apply(batch.inputs.clone(), &batch.lengths, stream)
        });
        let loss = match mixed {
            None => {
                let (inputs, lengths) = (batch.inputs.clone(), Some(batch.lengths.as_slice()));
                let logits = model.logits(inputs, lengths, streams.dropout);
                self.mean(
                    logits,
                    &own().collect::<Vec<_>>(),
                    &vec![1.0; batch.len()],
                    streams.dropout.is_some(),
                )
            }
            Some(mixed) => {
                let logits = model.logits(mixed.inputs, Some(&mixed.lengths), streams.dropout);
                // Each row twice: once for its own class, once for its partner's.
                let logits = Tensor::cat(vec![logits.clone(), logits], 0);
                let other = mixed.partners.iter().map(|row| target(*row));
                let targets: Vec<i64> = own().chain(other).collect();
                let rest = mixed.shares.iter().map(|share| 1.0 - share);
                let shares: Vec<f32> = mixed.shares.iter().copied().chain(rest).collect();
                self.mean(logits, &targets, &shares, true)
            }
        };
        loss.unwrap_or_else(|error| {
            panic!("labels, weights or the loss do not fit the model: {error}")
        })
    }
}

/// The substream of a step's dropout that mixing draws from; models number theirs from 0.
const MIXED: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use burn::tensor::{Device, TensorData};
    use firebox_core::Stream;
    use firebox_loader::Position;
    use firebox_models::{Classifier, ClassifierConfig, RecurrentConfig, RecurrentEncoder};

    use super::*;

    fn model() -> Classifier<RecurrentEncoder> {
        let device = Device::default();
        let encoder = RecurrentConfig { hidden: 3, dropout: 0.0, ..RecurrentConfig::default() };
        let encoder = encoder.init(Stream::new(1, "encoder"), 2, &device).unwrap();
        let head = ClassifierConfig { dropout: 0.0, ..ClassifierConfig::default() };
        head.init(Stream::new(1, "head"), encoder, 3, &device).unwrap()
    }

    fn batch(labels: Vec<Option<u32>>) -> Batch {
        let values: Vec<f32> =
            (0..labels.len() * 7 * 2).map(|at| (at as f32 * 0.7).sin()).collect();
        let data = TensorData::new(values, [labels.len(), 7, 2]);
        Batch {
            inputs: Tensor::from_data(data, &Device::default()),
            lengths: vec![7; labels.len()],
            indices: (0..labels.len()).collect(),
            next: Position::START,
            wait: Duration::ZERO,
            upload: Duration::ZERO,
            handed: Duration::ZERO,
            fill: Duration::ZERO,
            labels,
        }
    }

    fn value(objective: &Classification, batch: &Batch, dropout: Option<Stream>) -> (f64, f64) {
        let streams = Streams { samples: Stream::new(1, "samples"), dropout };
        let Loss { value, weight, .. } = objective.loss(&model(), batch, streams);
        (f64::from(value.into_data().iter::<f32>().next().unwrap()), weight)
    }

    #[test]
    fn a_mixed_window_counts_for_both_classes_by_their_shares() {
        let labels = [2, 0, 1, 1, 0];
        let batch = batch(labels.iter().copied().map(Some).collect());
        let (weights, stream) = (vec![1.0, 0.5, 2.0], Stream::new(5, "dropout"));
        let plain = ClassLoss::CrossEntropy { label_smoothing: 0.0 };
        for mix in [Mix::Mixup { alpha: 0.4 }, Mix::Cutmix { probability: 1.0 }] {
            let objective = Classification::new(plain, weights.clone(), mix);
            let found = value(&objective, &batch, Some(stream));
            let mixed = mix.apply(batch.inputs.clone(), &batch.lengths, stream.substream(MIXED));
            let logits = model().logits(mixed.inputs, Some(&mixed.lengths), None);
            let logs = burn::tensor::activation::log_softmax(logits, 1).into_data();
            let logs: Vec<f64> = logs.iter::<f32>().map(f64::from).collect();
            let (mut sum, mut all) = (0.0, 0.0);
            for row in 0..5 {
                let share = f64::from(mixed.shares[row]);
                for (class, share) in
                    [(labels[row], share), (labels[mixed.partners[row]], 1.0 - share)]
                {
                    let weight = share * f64::from(weights[class as usize]);
                    sum -= weight * logs[row * 3 + class as usize];
                    all += weight;
                }
            }
            assert!((found.0 - sum / all).abs() < 1e-5, "{mix:?}: {} {}", found.0, sum / all);
            assert!((found.1 - all).abs() < 1e-5);
        }
    }

    #[test]
    fn evaluation_never_mixes_and_windows_without_a_label_are_passed_over() {
        let plain = ClassLoss::default();
        let of = |mix| Classification::new(plain, vec![1.0; 3], mix);
        let four = batch(vec![Some(0), Some(1), Some(2), Some(1)]);
        let never = value(&of(Mix::None), &four, None);
        assert_eq!(never, value(&of(Mix::Mixup { alpha: 0.4 }), &four, None));
        let mixed = value(&of(Mix::Mixup { alpha: 0.4 }), &four, Some(Stream::new(1, "d")));
        assert_ne!(never, mixed);
        let mut some = four;
        some.labels[1] = None;
        assert_eq!(value(&of(Mix::None), &some, None).1, 3.0);
    }

    #[test]
    #[should_panic(expected = "the target of row 1 is 7, and there are 3 classes")]
    fn a_label_that_is_no_class_says_so() {
        let objective = Classification::new(ClassLoss::default(), vec![1.0; 3], Mix::None);
        value(&objective, &batch(vec![Some(0), Some(7)]), Some(Stream::new(1, "d")));
    }

    #[test]
    #[should_panic(
        expected = "labels, weights or the loss do not fit the model: 4 class weights were given"
    )]
    fn weights_of_other_classes_say_so() {
        let objective = Classification::new(ClassLoss::default(), vec![1.0; 4], Mix::None);
        value(&objective, &batch(vec![Some(0), Some(2)]), Some(Stream::new(1, "d")));
    }

    #[test]
    fn balanced_weights_make_classes_count_alike() {
        let weights = ClassWeights::Balanced.of(&[30, 10, 0]);
        assert_eq!(weights, [40.0 / 60.0, 2.0, 0.0]);
        assert_eq!(30.0 * weights[0], 10.0 * weights[1]);
        assert_eq!(ClassWeights::None.of(&[3, 0]), [1.0, 1.0]);
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let focal = ClassLoss::Focal { gamma: -1.0 };
        assert!(focal.validate().unwrap_err().to_string().contains("loss.focal.gamma` is -1"));
        let smooth = ClassLoss::CrossEntropy { label_smoothing: 1.5 };
        assert!(smooth.validate().unwrap_err().to_string().contains("label_smoothing` is 1.5"));
        let read = |text: &str| serde_json::from_str::<ClassLoss>(text);
        assert_eq!(read(r#"{"focal": {}}"#).unwrap(), ClassLoss::default());
        assert!(read(r#"{"focal": {"gama": 1}}"#).is_err());
    }
}
