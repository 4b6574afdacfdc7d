//! A few steps of a model of one's own, for what is measured before a run.

use burn::module::Module;
use firebox_core::{Precision, Silent};
use firebox_train::Objective;

use super::config::{BenchConfig, Sizes, Workload};
use super::noise::Noise;
use super::timing::{Beside, Measured, time};
use crate::device::ChosenDevice;
use crate::error::PipelineError;

/// Steps that are not timed.
const WARMUP: u64 = 1;

/// Which steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    /// Type of the operands of products.
    pub(crate) precision: Precision,
    /// Samples of a batch.
    pub(crate) batch: usize,
    /// Steps that are timed, after one that is not.
    pub(crate) steps: u64,
}

impl Probe {
    /// Takes the steps on normal noise of this shape, `[time, channel]`.
    ///
    /// # Errors
    /// When training fails.
    pub(crate) fn run<M: Module, O: Objective<M>>(
        self,
        model: M,
        objective: &O,
        [length, channels]: [usize; 2],
        device: &ChosenDevice,
    ) -> Result<Measured, PipelineError> {
        self.steps(model, objective, length, device, |sizes, config| {
            Noise::normal(sizes, config, channels)
        })
    }

    /// Takes the steps on normal noise, of which each sample has one of so many classes.
    ///
    /// # Errors
    /// When training fails.
    pub(crate) fn run_labelled<M: Module, O: Objective<M>>(
        self,
        model: M,
        objective: &O,
        [length, channels]: [usize; 2],
        classes: usize,
        device: &ChosenDevice,
    ) -> Result<Measured, PipelineError> {
        self.steps(model, objective, length, device, |sizes, config| {
            Noise::normal(sizes, config, channels).with_labels(classes)
        })
    }

    /// Takes the steps on texts of so many tokens, each below `vocabulary`.
    ///
    /// # Errors
    /// When training fails.
    pub(crate) fn run_tokens<M: Module, O: Objective<M>>(
        self,
        model: M,
        objective: &O,
        [length, vocabulary]: [usize; 2],
        device: &ChosenDevice,
    ) -> Result<Measured, PipelineError> {
        self.steps(model, objective, length, device, |sizes, config| {
            Noise::tokens(sizes, config, vocabulary)
        })
    }

    /// Samples of all steps together, those that are not timed among them.
    pub(crate) fn samples(self) -> usize {
        self.batch * (self.steps + WARMUP) as usize
    }

    fn steps<M: Module, O: Objective<M>>(
        self,
        model: M,
        objective: &O,
        length: usize,
        device: &ChosenDevice,
        noise: impl FnOnce(Sizes, &BenchConfig) -> Noise,
    ) -> Result<Measured, PipelineError> {
        let Self { precision, batch, steps } = self;
        let config = BenchConfig {
            precision,
            batch: Some(batch),
            length: Some(length),
            steps,
            warmup: WARMUP,
            // Nothing here asks which workload it is.
            ..BenchConfig::new(Workload::LstmMae)
        };
        let noise = noise(config.sizes()?, &config);
        let beside = Beside { progress: &Silent };
        device.run(|| time(model, objective, noise, &config, device, &beside))
    }
}
