//! A few steps of a model of one's own, for what is measured before a run.

use burn::module::Module;
use firebox_core::{Precision, Silent};
use firebox_train::{Objective, TrainConfig};

use super::config::{BenchConfig, Sizes, Workload};
use super::noise::Noise;
use super::timing::{Beside, Measured, time};
use crate::device::ChosenDevice;
use crate::error::PipelineError;

/// Steps that are not timed.
const WARMUP: u64 = 1;

/// Which steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe<'a> {
    /// Type of the operands of products.
    pub(crate) precision: Precision,
    /// Samples of a batch.
    pub(crate) batch: usize,
    /// Steps that are timed, after one that is not.
    pub(crate) steps: u64,
    /// Settings of the run, of which a step takes its optimizer and what else is done with gradients.
    pub(crate) train: &'a TrainConfig,
}

impl Probe<'_> {
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
        let Self { precision, batch, steps, train } = self;
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
        let beside = Beside { progress: &Silent, train: Some(train) };
        device.run(|| time(model, objective, noise, &config, device, &beside))
    }
}

#[cfg(test)]
mod tests {
    use firebox_core::Stream;
    use firebox_models::BiLstmMaeConfig;
    use firebox_train::{
        AdamWConfig, AverageConfig, DynamicScale, LossScale, Optimizer, Pretraining, SgdConfig,
    };

    use super::*;

    fn losses(train: &TrainConfig, precision: Precision) -> Result<Vec<f64>, PipelineError> {
        let device = ChosenDevice::named("cpu");
        let config = BiLstmMaeConfig {
            hidden: 4,
            decoder_hidden: 4,
            layers: 1,
            ..BiLstmMaeConfig::default()
        };
        let model = config.init(Stream::new(1, "weights"), 2, &device.device).unwrap();
        let probe = Probe { precision, batch: 4, steps: 3, train };
        probe.run(model, &Pretraining, [12, 2], &device).map(|measured| measured.losses)
    }

    #[test]
    fn no_loss_scale_decides_what_is_measured() {
        // In a run, it comes down first, or the run ends.
        let initial = f64::from(f32::MAX);
        let dynamic = LossScale::Dynamic(DynamicScale { initial, ..DynamicScale::default() });
        let floor = DynamicScale { initial, floor: initial, ..DynamicScale::default() };
        let own = |loss_scale| {
            let train = TrainConfig { loss_scale, ..TrainConfig::default() };
            losses(&train, Precision::F32).unwrap()
        };
        let expected = own(LossScale::Off);
        // From the step before the timed ones on, each is an update.
        assert!(expected[1..].windows(2).all(|pair| pair[0] != pair[1]), "{expected:?}");
        for scale in [dynamic, LossScale::Static(initial), LossScale::Dynamic(floor)] {
            let found = own(scale);
            let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-4 * b.abs();
            assert!(found.iter().zip(&expected).all(near), "{found:?} {expected:?}");
        }
        assert_eq!(losses(&TrainConfig::default(), Precision::F16).unwrap().len(), 4);
    }

    #[test]
    fn steps_are_taken_with_the_settings_of_the_run() {
        let losses = |train: &TrainConfig| losses(train, Precision::F32);
        let plain = TrainConfig::default();
        let expected = losses(&plain).unwrap();
        assert_eq!(expected.len(), 4);
        let still = Optimizer::Sgd(SgdConfig { learning_rate: 1e-20, ..SgdConfig::default() });
        let still = losses(&TrainConfig { optimizer: still, ..plain.clone() }).unwrap();
        assert_eq!(still[0], expected[0]);
        assert_ne!(still[3], expected[3]);
        let wild = AdamWConfig { learning_rate: 1e30, ..AdamWConfig::default() };
        let wild = TrainConfig { optimizer: Optimizer::AdamW(wild), ..plain.clone() };
        assert!(losses(&wild).is_err());
        // What a short look has no epochs for is no reason to fail.
        let average = Some(AverageConfig { from_epoch: 30, ..AverageConfig::default() });
        assert_eq!(losses(&TrainConfig { average, ..plain }).unwrap(), expected);
    }
}
