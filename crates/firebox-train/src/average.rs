//! The average of a model's weights over its updates: exponential, or stochastic weight averaging
//! (Izmailov et al., "Averaging weights leads to wider optima and better generalization", 2018).
//!
//! The first average is the weights after the first update that is averaged; from then on
//! `average ← average + share·(weights − average)`, where the share is `1 − decay`, or `1 / (n + 1)` after
//! `n` averaged updates if all count the same, as `torch.optim.swa_utils` computes it with
//! `get_ema_multi_avg_fn(decay)` and `get_swa_multi_avg_fn()`. A step whose update is not applied leaves the
//! average alone. Running statistics of batch normalisations are no weights: beside the average stand those of the
//! last update that it took, as in `AveragedModel` without `use_buffers`, until they are computed anew under the
//! averaged weights, as `update_bn` does.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Shape, Tensor};
use firebox_kernels::{approach, approach_on_device};
use firebox_models::{MapParameter, map_parameters};
use serde::{Deserialize, Serialize};

use crate::groups::names_statistic;

/// An average of the weights: `[train.average]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AverageConfig {
    /// Share of the average that each update leaves; at least 0 and below 1. PyTorch's default.
    pub decay: f64,
    /// Whether all weights that are averaged count the same, in place of `decay`: stochastic weight
    /// averaging.
    pub equal: bool,
    /// Epochs after which averaging begins.
    pub from_epoch: u64,
    /// Updates from one that is averaged to the next; at least 1.
    pub every: u64,
    /// Whether the averaged weights are what is validated, and what the run returns: the newest where there is no
    /// validation data, as the training loss is not theirs.
    pub evaluate: bool,
    /// Training batches, at most an epoch of them, over which running statistics of batch normalisations are computed
    /// anew under the averaged weights before they are validated; 0: never. By default
    /// [`STATISTICS_BATCHES`](Self::STATISTICS_BATCHES) if all weights count the same, which may then be far from the
    /// latest, and 0 otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistics_batches: Option<u64>,
}

impl Default for AverageConfig {
    fn default() -> Self {
        Self {
            decay: 0.999,
            equal: false,
            from_epoch: 0,
            every: 1,
            evaluate: true,
            statistics_batches: None,
        }
    }
}

impl AverageConfig {
    /// Default of the field `statistics_batches` where all weights count the same. A choice: the mean
    /// of so many batches is within a tenth of what the statistics of one batch are from it.
    pub const STATISTICS_BATCHES: u64 = 100;

    /// The same with the batches that statistics are computed over, where there are some.
    pub fn in_full(self) -> Self {
        let batches = Some(self.statistics_batches()).filter(|batches| *batches > 0);
        Self { statistics_batches: batches, ..self }
    }

    /// Batches over which running statistics are computed anew before each validation.
    pub(crate) fn statistics_batches(&self) -> u64 {
        let default = if self.equal { Self::STATISTICS_BATCHES } else { 0 };
        if self.evaluate { self.statistics_batches.unwrap_or(default) } else { 0 }
    }

    /// Whether an update is averaged: the `updates`-th, in the epoch with this number, from 0.
    pub(crate) fn takes(&self, epoch: u64, updates: u64) -> bool {
        epoch >= self.from_epoch && updates.is_multiple_of(self.every.max(1))
    }

    /// By which share the average follows each of some steps, as far as the host can know: after none of their
    /// updates, after one, and so on up to all of the `steps`, where there were `updates` before them and
    /// `averaged` in the average. 0 where the last of these updates is not averaged.
    pub(crate) fn shares(
        &self,
        epoch: u64,
        updates: u64,
        steps: u64,
        mut averaged: u64,
    ) -> Vec<f64> {
        let share = |applied| {
            if applied == 0 || !self.takes(epoch, updates + applied) {
                return 0.0;
            }
            let share = 1.0 - self.kept(averaged);
            averaged += 1;
            share
        };
        (0..=steps).map(share).collect()
    }

    /// The share of the average that the next update leaves.
    fn kept(&self, averaged: u64) -> f64 {
        if self.equal { averaged as f64 / (averaged + 1) as f64 } else { self.decay }
    }
}

/// The average, one flat tensor for each float parameter; none before the first update.
#[derive(Clone, Debug, Default)]
pub struct Average {
    pub(crate) values: Vec<Tensor<1>>,
    /// Updates that are in it.
    pub(crate) count: u64,
}

impl Average {
    /// Takes the weights of a model after an update.
    pub fn update<M: Module>(&mut self, model: &M, config: &AverageConfig) {
        let Weights { values: latest, statistics, .. } = Weights::of(model);
        self.values = match self.values.is_empty() {
            true => latest,
            false => {
                let means = std::mem::take(&mut self.values);
                let share = 1.0 - config.kept(self.count);
                let mut values = approach(means, &latest.iter().collect::<Vec<_>>(), share);
                statistics.iter().for_each(|place| values[*place] = latest[*place].clone());
                values
            }
        };
        self.count += 1;
    }

    /// Takes the weights of a model after a step by a share that is on the device, 0 if the step was not an update
    /// or is not averaged. There is an average already. The update is counted by whoever reads whether it was one.
    pub(crate) fn follow<M: Module>(&mut self, model: &M, share: Tensor<1>) {
        let Weights { values: latest, statistics, .. } = Weights::of(model);
        let means = std::mem::take(&mut self.values);
        let stays = share.clone().equal_elem(0.0);
        let newest = |place: &usize| {
            let (latest, before) = (latest[*place].clone(), means[*place].clone());
            (*place, latest.clone().mask_where(stays.clone().expand(latest.shape()), before))
        };
        let newest: Vec<(usize, Tensor<1>)> = statistics.iter().map(newest).collect();
        self.values = approach_on_device(means, &latest.iter().collect::<Vec<_>>(), share);
        newest.into_iter().for_each(|(place, value)| self.values[place] = value);
    }

    /// Whether a model in training has running statistics, all of which training moves.
    pub(crate) fn moves_statistics<M: Module>(model: &M) -> bool {
        let Weights { statistics, is_frozen, .. } = Weights::of(model);
        !statistics.is_empty() && !is_frozen
    }

    /// Takes the running statistics of a model with the averaged weights.
    pub(crate) fn take_statistics<M: Module>(&mut self, model: &M) {
        let Weights { values, statistics, .. } = Weights::of(model);
        statistics.iter().for_each(|place| self.values[*place] = values[*place].clone());
    }

    /// The model with the averaged weights; as it is before the first update.
    pub fn apply<M: Module>(&self, model: M) -> M {
        with_values(model, |place| self.values.get(place))
    }
}

/// The model with these in place of its parameters' values, as far as there are some for their places.
fn with_values<'a, M: Module>(model: M, of: impl Fn(usize) -> Option<&'a Tensor<1>>) -> M {
    struct Change<F>(F);
    impl<'a, F: Fn(usize) -> Option<&'a Tensor<1>>> MapParameter for Change<F> {
        fn map<const D: usize>(&mut self, index: usize, value: Tensor<D>) -> Tensor<D> {
            let Some(own) = (self.0)(index) else { return value };
            own.clone().reshape(Shape::from(value.dims().to_vec()))
        }
    }
    map_parameters(model, &mut Change(of))
}

/// The running statistics of a model, by the places of their parameters, as they are at some time.
pub(crate) struct Statistics(BTreeMap<usize, Tensor<1>>);

impl Statistics {
    /// Those of a model now. Nothing is copied: who moves one makes another tensor.
    pub(crate) fn of<M: Module>(model: &M) -> Self {
        #[derive(Default)]
        struct Found {
            within: Vec<bool>,
            place: usize,
            values: BTreeMap<usize, Tensor<1>>,
        }
        impl ModuleVisitor for Found {
            fn enter_module(&mut self, name: &str, _: &str) {
                self.within.push(names_statistic(name));
            }

            fn exit_module(&mut self, _: &str, _: &str) {
                self.within.pop();
            }

            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if self.within.last() == Some(&true) {
                    let value = param.base().inner();
                    let size = value.shape().num_elements();
                    self.values.insert(self.place, value.reshape([size]));
                }
                self.place += 1;
            }
        }
        let mut found = Found::default();
        model.visit(&mut found);
        Self(found.values)
    }

    /// The model with these.
    pub(crate) fn put_back<M: Module>(&self, model: M) -> M {
        match self.0.is_empty() {
            true => model,
            false => with_values(model, |place| self.0.get(&place)),
        }
    }
}

/// A part of a model, as far as averages are concerned.
#[derive(Clone, Copy)]
enum Part {
    /// The scale of a normalisation.
    Scale,
    /// A running statistic of one.
    Statistic,
    Other,
}

/// Each float parameter of a model, flattened, in no graph.
#[derive(Default)]
struct Weights {
    values: Vec<Tensor<1>>,
    /// Places of running statistics among them.
    statistics: Vec<usize>,
    /// What the part that is visited is, and those around it.
    within: Vec<Part>,
    /// Whether the scale of the normalisation in hand wants a gradient.
    is_trained: bool,
    /// Whether some statistics stand beside a scale that wants none.
    is_frozen: bool,
}

impl Weights {
    fn of<M: Module>(model: &M) -> Self {
        let mut found = Self::default();
        model.visit(&mut found);
        found
    }
}

impl ModuleVisitor for Weights {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.within.push(match name {
            "gamma" => Part::Scale,
            name if names_statistic(name) => Part::Statistic,
            _ => Part::Other,
        });
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.within.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.base().inner();
        let size = value.shape().num_elements();
        match self.within.last() {
            Some(Part::Scale) => self.is_trained = param.val().is_require_grad(),
            Some(Part::Statistic) => {
                self.statistics.push(self.values.len());
                self.is_frozen |= !self.is_trained;
            }
            Some(Part::Other) | None => {}
        }
        self.values.push(value.reshape([size]));
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use firebox_kernels::{BatchNorm, BatchNormConfig};

    use super::*;

    #[test]
    fn statistics_are_the_latest_and_weights_the_mean() {
        let device = Device::default().autodiff();
        for equal in [true, false] {
            let config = AverageConfig { equal, decay: 0.5, ..AverageConfig::default() };
            let mut average = Average::default();
            let mut model = BatchNormConfig::new(2).init(&device);
            let moved = |mut model: BatchNorm, by: f64| {
                let x = Tensor::<3>::from_data([[[by, 1.0], [3.0 * by, 5.0]]], &device);
                model.forward(x);
                model.gamma = model.gamma.map(|gamma| gamma.detach().add_scalar(by));
                model
            };
            let numbers = |tensor: Tensor<1>| tensor.into_data().iter::<f32>().collect::<Vec<_>>();
            let all = |average: &Average| -> Vec<f32> {
                average.values.iter().cloned().flat_map(numbers).collect()
            };
            for update in 1..4 {
                model = moved(model, f64::from(update));
                // As a device that the host does not wait for: after a step that is none, and after one that is.
                let mut ahead = average.clone();
                let share =
                    |share: f64| Tensor::<1>::from_data([share as f32], &device.clone().inner());
                average.update(&model, &config);
                if update > 1 {
                    let before = all(&ahead);
                    ahead.follow(&model, share(0.0));
                    assert_eq!(all(&ahead), before);
                    ahead.follow(&model, share(1.0 - config.kept(average.count - 1)));
                    assert_eq!(all(&ahead), all(&average));
                }
            }
            let latest = [model.running_mean.value(), model.running_var.value()].map(numbers);
            let found = average.apply(model.valid());
            let statistics = [found.running_mean.value(), found.running_var.value()].map(numbers);
            for (found, latest) in statistics.concat().iter().zip(latest.concat()) {
                assert!((found - latest).abs() <= 1e-6 * latest.abs(), "{found} {latest}");
            }
            // 2, 4 and 7 were averaged.
            let expected = if equal { 13.0 / 3.0 } else { 0.25 * 2.0 + 0.25 * 4.0 + 0.5 * 7.0 };
            let gamma = numbers(found.gamma.val());
            assert!(gamma.iter().all(|gamma| (gamma - expected).abs() < 1e-5), "{gamma:?}");
        }
    }

    #[test]
    fn shares_are_those_that_the_host_would_take_one_by_one() {
        let check = |config: AverageConfig, epoch, updates: u64, averaged: u64| {
            let (mut count, mut expected) = (averaged, vec![0.0]);
            for update in updates + 1..=updates + 9 {
                let takes = config.takes(epoch, update);
                expected.push(if takes { 1.0 - config.kept(count) } else { 0.0 });
                count += u64::from(takes);
            }
            assert_eq!(config.shares(epoch, updates, 9, averaged), expected);
            expected
        };
        let third = AverageConfig { equal: true, every: 3, ..AverageConfig::default() };
        let shares = check(third, 0, 4, 1);
        let some: Vec<f64> = [2, 5, 8].map(|update| shares[update]).into();
        assert_eq!(some, [1.0 - 1.0 / 2.0, 1.0 - 2.0 / 3.0, 1.0 - 3.0 / 4.0]);
        assert_eq!(shares.iter().filter(|share| **share > 0.0).count(), 3);
        let decay = AverageConfig { decay: 0.75, ..AverageConfig::default() };
        assert_eq!(check(decay, 2, 0, 5)[1..], [0.25; 9]);
        let late = AverageConfig { from_epoch: 3, ..AverageConfig::default() };
        assert_eq!(check(late, 2, 7, 0), [0.0; 10]);
    }
}
