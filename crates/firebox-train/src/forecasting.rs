//! What a forecaster minimises. Targets and static features are held here, by the index of their
//! sample; the loader knows neither.

use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};
use firebox_kernels::{LossError, MeanLoss, huber, squared_error};
use firebox_loader::Batch;
use firebox_models::{Loss, StackedLstm};
use serde::{Deserialize, Serialize};

use crate::objective::{Objective, Streams};

/// The loss of a forecaster, a mean over all outputs in units of their scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum ForecastLoss {
    /// Squared error; reference system R2's.
    #[default]
    Mse,
    /// Absolute error: forecasts are medians, not means.
    Mae,
    /// Squared near zero and linear beyond `delta`.
    Huber {
        /// Where it turns, above 0, in units of the outputs' scale.
        delta: f64,
    },
}

impl ForecastLoss {
    /// Checks what the type cannot say.
    ///
    /// # Errors
    /// If `delta` is not above 0.
    pub fn validate(&self) -> Result<(), LossError> {
        match *self {
            Self::Mse | Self::Mae => Ok(()),
            Self::Huber { delta } => {
                let fits = delta > 0.0 && (delta as f32).is_normal();
                let (key, allowed) = ("huber.delta", "above 0 and finite");
                if fits { Ok(()) } else { Err(LossError::Setting { key, found: delta, allowed }) }
            }
        }
    }
}

/// What belongs to the samples of a source beside their windows, in the order of the source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForecastSamples {
    /// `[sample, static]`
    pub statics: Vec<f32>,
    /// `[sample, output]`, in units of their scale; NaN where there is none, which then has no part in losses.
    pub targets: Vec<f32>,
}

impl ForecastSamples {
    /// The static features of some samples, as a model takes them; `None` if there are none.
    ///
    /// # Shapes
    /// - returns `[batch, static]`, with `width` features
    ///
    /// # Panics
    /// If an index is not below the number of samples.
    pub fn statics_of(
        &self,
        indices: &[usize],
        width: usize,
        device: &Device,
    ) -> Option<Tensor<2>> {
        (width > 0).then(|| tensor(rows(&self.statics, width, indices), width, device))
    }
}

/// The rows of a batch, `[batch, width]`.
fn rows(values: &[f32], width: usize, indices: &[usize]) -> Vec<f32> {
    let row = |index: &usize| &values[index * width..(index + 1) * width];
    indices.iter().flat_map(row).copied().collect()
}

/// `[batch, width]`
fn tensor(rows: Vec<f32>, width: usize, device: &Device) -> Tensor<2> {
    let batch = rows.len() / width.max(1);
    Tensor::from_data(TensorData::new(rows, [batch, width]), device)
}

/// One for each target that is there and zero for each that is not, which becomes zero, too; none if all are.
fn counted(targets: &mut [f32]) -> Option<Vec<f32>> {
    targets.iter().any(|target| target.is_nan()).then(|| {
        let counted = targets.iter_mut().map(|target| {
            if target.is_nan() {
                *target = 0.0;
                return 0.0;
            }
            1.0
        });
        counted.collect()
    })
}

/// Forecasts of several outputs from windows and static features.
///
/// # Panics
/// Its loss panics where the model has another number of outputs or static features, or a batch has a sample that is none of
/// its part's.
#[derive(Clone, Debug)]
pub struct Forecasting {
    train: Arc<ForecastSamples>,
    validation: Arc<ForecastSamples>,
    statics: usize,
    outputs: usize,
    loss: ForecastLoss,
    /// Training samples of each window.
    slots: usize,
}

impl Forecasting {
    /// An objective for models of so many static features and outputs, with the samples of the
    /// training source and of the validation source.
    ///
    /// # Errors
    /// If a setting of the loss is out of its range.
    pub fn new(
        [train, validation]: [Arc<ForecastSamples>; 2],
        statics: usize,
        outputs: usize,
        loss: ForecastLoss,
    ) -> Result<Self, LossError> {
        loss.validate()?;
        Ok(Self { train, validation, statics, outputs, loss, slots: 1 })
    }

    /// The same for a training source that has so many samples of each window one behind the other, its original and
    /// its versions: what belongs to the window belongs to all of them.
    pub fn of_versions(self, slots: usize) -> Self {
        Self { slots: slots.max(1), ..self }
    }
}

impl Objective<StackedLstm> for Forecasting {
    fn loss(&self, model: &StackedLstm, batch: &Batch, streams: Streams) -> Loss {
        // Only training has dropout, and an index alone does not say of which part it is.
        let (samples, slots) = match streams.dropout {
            Some(_) => (&self.train, self.slots),
            None => (&self.validation, 1),
        };
        let indices: Vec<usize> = batch.indices.iter().map(|index| index / slots).collect();
        let (inputs, lengths, indices) = (batch.inputs.clone(), &batch.lengths, &indices);
        let device = inputs.device().without_autodiff();
        let statics = samples.statics_of(indices, self.statics, &device);
        let forecast = model.forecast(inputs, Some(lengths), statics, streams.dropout);
        let [_, outputs] = forecast.dims();
        assert_eq!(outputs, self.outputs, "the model has as many outputs as the objective");
        let mut targets = rows(&samples.targets, self.outputs, indices);
        let counted = counted(&mut targets);
        let weight = match &counted {
            Some(counted) => counted.iter().filter(|one| **one > 0.0).count(),
            None => targets.len(),
        } as f64;
        let targets = tensor(targets, self.outputs, &device);
        let weights = counted.as_deref();
        let value = match self.loss {
            ForecastLoss::Mse => mean(squared_error(forecast, targets, weights)),
            ForecastLoss::Mae => {
                let errors = (forecast - targets).abs();
                match counted {
                    Some(counted) => {
                        let counted = tensor(counted, self.outputs, &device);
                        in_order(errors * counted) / weight.max(1.0)
                    }
                    None => {
                        let count = errors.shape().num_elements() as f64;
                        in_order(errors) / count
                    }
                }
            }
            ForecastLoss::Huber { delta } => mean(huber(forecast, targets, weights, delta)),
        };
        Loss { value, weight, parts: vec![] }
    }
}

/// The sum of all numbers, in an order that no number of threads changes: row by row, then of the rows.
fn in_order(numbers: Tensor<2>) -> Tensor<1> {
    numbers.sum_dim(1).sum()
}

fn mean(loss: Result<MeanLoss, LossError>) -> Tensor<1> {
    match loss {
        Ok(loss) => loss.value,
        Err(error) => {
            unreachable!("there is a target of each output, and the settings were checked: {error}")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use burn::module::Module;
    use firebox_core::Stream;
    use firebox_loader::Position;
    use firebox_models::StackedLstmConfig;

    use super::*;
    use crate::Gradients;

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_into_vec().unwrap()
    }

    fn samples(of: f32) -> ForecastSamples {
        let numbers = |count: usize| (0..count).map(|at| of * (at as f32 - 4.0)).collect();
        ForecastSamples { statics: numbers(3), targets: numbers(6) }
    }

    fn model(outputs: usize) -> StackedLstm {
        let config = StackedLstmConfig { hidden_1: 3, hidden_2: 0, dense: 4, dropout: 0.0 };
        config.init(Stream::new(1, "weights"), 1, 1, outputs, &Device::default()).unwrap()
    }

    fn batch() -> Batch {
        Batch {
            inputs: Tensor::from_data([[[0.5f32], [1.0]], [[-1.0], [0.2]]], &Device::default()),
            lengths: vec![2, 2],
            labels: vec![None; 2],
            indices: vec![2, 0],
            next: Position::START,
            wait: Duration::ZERO,
            upload: Duration::ZERO,
            handed: Duration::ZERO,
            fill: Duration::ZERO,
        }
    }

    #[test]
    #[should_panic(expected = "the model has as many outputs as the objective")]
    fn a_model_of_other_outputs_says_so() {
        let both = [samples(1.0), samples(-0.5)].map(Arc::new);
        let objective = Forecasting::new(both, 1, 2, ForecastLoss::Mse).unwrap();
        let streams = Streams { samples: Stream::new(3, "samples"), dropout: None };
        objective.loss(&model(3), &batch(), streams);
    }

    #[test]
    fn targets_follow_the_samples_and_the_part() {
        let device = Device::default();
        let (model, batch) = (model(2), batch());
        let inputs = batch.inputs.clone();
        for (part, dropout) in [(1.0, Some(Stream::new(2, "dropout"))), (-0.5, None)] {
            let own = samples(part);
            let statics = vec![own.statics[2], own.statics[0]];
            let statics = Tensor::from_data(TensorData::new(statics, [2, 1]), &device);
            let forecast = values(model.forecast(inputs.clone(), None, Some(statics), None));
            let truth = [own.targets[4], own.targets[5], own.targets[0], own.targets[1]];
            let errors: Vec<f64> =
                forecast.iter().zip(truth).map(|(f, t)| f64::from(*f) - f64::from(t)).collect();
            let mean = |of: &dyn Fn(f64) -> f64| errors.iter().map(|e| of(*e)).sum::<f64>() / 4.0;
            let huber = |e: f64| if e.abs() < 0.7 { e * e / 2.0 } else { 0.7 * (e.abs() - 0.35) };
            for (loss, expected) in [
                (ForecastLoss::Mse, mean(&|e| e * e)),
                (ForecastLoss::Mae, mean(&f64::abs)),
                (ForecastLoss::Huber { delta: 0.7 }, mean(&huber)),
            ] {
                let both = [samples(1.0), samples(-0.5)].map(Arc::new);
                let objective = Forecasting::new(both, 1, 2, loss).unwrap();
                let streams = Streams { samples: Stream::new(3, "samples"), dropout };
                let trained = model.clone().train();
                let found = match dropout {
                    Some(_) => objective.loss(&trained, &batch, streams),
                    None => objective.loss(&model, &batch, streams),
                };
                assert_eq!(found.weight, 4.0);
                // Versions of a training window, three of each, have what it has.
                let index = |index: &usize| if dropout.is_some() { 3 * index + 1 } else { *index };
                let indices = batch.indices.iter().map(index).collect();
                let versions = Batch { indices, ..batch.clone() };
                let of_versions = objective.clone().of_versions(3);
                let same = match dropout {
                    Some(_) => of_versions.loss(&trained, &versions, streams),
                    None => of_versions.loss(&model, &versions, streams),
                };
                assert_eq!(values(same.value), values(found.value.clone()));
                let value = f64::from(values(found.value)[0]);
                assert!((value - expected).abs() < 1e-5 * expected, "{loss:?} {value} {expected}");
            }
        }
        // A target that is not there has no part in the loss, nor in its gradients.
        let lacking = |at: &[usize]| {
            let mut own = samples(1.0);
            at.iter().for_each(|at| own.targets[*at] = f32::NAN);
            Arc::new(own)
        };
        let statics =
            Tensor::from_data([[samples(1.0).statics[2]], [samples(1.0).statics[0]]], &device);
        let forecast = values(model.forecast(inputs.clone(), None, Some(statics), None));
        for loss in [ForecastLoss::Mse, ForecastLoss::Mae, ForecastLoss::Huber { delta: 0.7 }] {
            let of = |e: f64| match loss {
                ForecastLoss::Mse => e * e,
                ForecastLoss::Mae => e.abs(),
                ForecastLoss::Huber { .. } if e.abs() < 0.7 => e * e / 2.0,
                ForecastLoss::Huber { .. } => 0.7 * (e.abs() - 0.35),
            };
            for left_out in [&[4][..], &[5, 1], &[4, 5, 0, 1]] {
                let own = lacking(left_out);
                let errors = [4, 5, 0, 1].into_iter().zip(&forecast);
                let errors: Vec<f64> = errors
                    .filter(|(at, _)| !left_out.contains(at))
                    .map(|(at, f)| f64::from(*f) - f64::from(own.targets[at]))
                    .collect();
                let objective = Forecasting::new([own.clone(), own], 1, 2, loss).unwrap();
                let streams = Streams {
                    samples: Stream::new(3, "samples"),
                    dropout: Some(Stream::new(2, "dropout")),
                };
                let trained = model.clone().train();
                let found = objective.loss(&trained, &batch, streams);
                assert_eq!(found.weight, errors.len() as f64);
                let expected = errors.iter().map(|e| of(*e)).sum::<f64>() / found.weight.max(1.0);
                let taken = Gradients::take(&trained, found.value.clone().backward());
                let norm = values(taken.squared_norm().on_device(&device))[0];
                assert_eq!(norm == 0.0, errors.is_empty(), "{norm}");
                assert!(norm.is_finite());
                let value = f64::from(values(found.value)[0]);
                assert!((value - expected).abs() <= 1e-5 * expected, "{loss:?} {value} {expected}");
            }
        }
        let wrong = ForecastLoss::Huber { delta: 0.0 };
        let error =
            Forecasting::new([1.0, 1.0].map(|of| Arc::new(samples(of))), 1, 2, wrong).unwrap_err();
        assert!(error.to_string().contains("`huber.delta` of a loss is 0"), "{error}");
    }
}
