//! A few steps of a model of one's own, for what is measured before a run.

use burn::module::Module;
use firebox_core::{Precision, Silent};
use firebox_train::Objective;

use super::config::{BenchConfig, Workload};
use super::noise::Noise;
use super::timing::{Beside, Measured, time};
use crate::device::ChosenDevice;
use crate::error::PipelineError;

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
        let Self { precision, batch, steps } = self;
        let config = BenchConfig {
            precision,
            batch: Some(batch),
            length: Some(length),
            steps,
            warmup: 1,
            // Nothing here asks which workload it is.
            ..BenchConfig::new(Workload::LstmMae)
        };
        let noise = Noise::normal(config.sizes()?, &config, channels);
        let beside = Beside { progress: &Silent };
        device.run(|| time(model, objective, noise, &config, device, &beside))
    }
}
