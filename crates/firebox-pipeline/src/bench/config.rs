//! What is timed: a workload, its sizes, and what goes on beside it.

use std::str::FromStr;

use firebox_core::{Augmentation, Precision};
use firebox_loader::{LoadError, LoaderConfig, Resident};

use crate::config::LARGEST_BATCH;
use crate::device::ChosenDevice;
use crate::error::PipelineError;

/// Steps before the timed ones where nothing else is asked for.
const WARMUP: u64 = 3;

/// The same in training on a GPU. The host reads steps in ever larger groups, of up to 32, and each size is another shape,
/// whose kernels are tuned when it is first met.
pub(crate) const GPU_WARMUP: u64 = 128;

/// A model with the shape of its batches, its loss and its dropout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// R1: BiLSTM 2 × 128 with LayerNorm and a decoder, windows of 105 steps and 4 channels, 15 %
    /// of the steps hidden one by one.
    LstmMae,
    /// R2: LSTM 128, LSTM 64, the last step beside 12 static features, 32, 3; sequences of 24 steps
    /// and 1 channel: the zoo's stacked LSTM.
    LstmForecast,
    /// R3: Transformer of width 128 with 3 layers, windows of 105 steps and 4 channels, 3 classes.
    Transformer,
    /// R5: 12 layers of width 768 on 128 tokens, 9 labels from the first token.
    BertBase,
    /// R3: a dense network of 128, 96, 64 and 32 units with BatchNorm on whole windows of 105 steps
    /// and 4 channels.
    Mlp,
    /// R4: three convolutions with BatchNorm and a BiLSTM 2 × 256 on sequences of 500 steps and 1,024
    /// channels.
    CnnLstm,
}

impl Workload {
    /// Every workload with its name.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::LstmMae, "lstm-mae"),
        (Self::LstmForecast, "lstm-forecast"),
        (Self::Transformer, "transformer"),
        (Self::BertBase, "bert-base"),
        (Self::Mlp, "mlp"),
        (Self::CnnLstm, "cnn-lstm"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(workload, _)| *workload == self).map_or("", |(_, name)| name)
    }

    /// Samples of a batch in the reference system.
    pub fn default_batch(self) -> usize {
        match self {
            Self::LstmMae | Self::Mlp => 512,
            Self::LstmForecast => 128,
            Self::Transformer => 256,
            Self::BertBase => 16,
            Self::CnnLstm => 64,
        }
    }

    /// Steps of a sequence in the reference system.
    pub(super) fn default_length(self) -> usize {
        match self {
            Self::BertBase => 128,
            Self::CnnLstm => 500,
            Self::LstmMae | Self::LstmForecast | Self::Transformer | Self::Mlp => 105,
        }
    }

    /// Versions that an epoch draws of each sample in a run of its kind, beside the original. R4 varies its features on the
    /// device, by noise within the model.
    pub(super) fn versions(self) -> u32 {
        if self == Self::CnnLstm { 0 } else { Augmentation::default().versions }
    }

    /// Units of a hidden layer in the reference system; `None` where layers differ.
    pub(super) fn default_hidden(self) -> Option<usize> {
        match self {
            Self::LstmMae | Self::Transformer => Some(128),
            Self::BertBase => Some(768),
            Self::CnnLstm => Some(256),
            Self::LstmForecast | Self::Mlp => None,
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|(_, name)| *name == text);
        known.map(|(workload, _)| *workload).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|(_, name)| *name).collect();
            format!("`{text}` is not a workload; there is {}", names.join(", "))
        })
    }
}

/// What is timed.
#[derive(Clone, Copy, Debug)]
pub struct BenchConfig {
    /// The workload.
    pub workload: Workload,
    /// Type of the operands of products.
    pub precision: Precision,
    /// Samples of a batch; the workload's own by default.
    pub batch: Option<usize>,
    /// Steps that are timed, at least 1.
    pub steps: u64,
    /// Steps before them.
    pub warmup: u64,
    /// Only the forward pass and the loss, without dropout and gradients.
    pub evaluate: bool,
    /// Steps of a sequence; the workload's own by default. Not for lstm-forecast, whose sequence is
    /// cut out of 105 steps.
    pub length: Option<usize>,
    /// Units of a hidden layer, or the width of a Transformer; the workload's own by default. Not for
    /// lstm-forecast and mlp, whose layers differ.
    pub hidden: Option<usize>,
    /// Different samples that batches are drawn from; one batch by default.
    pub samples: Option<usize>,
    /// Threads that make batches; with 0, each is made when it is asked for.
    pub workers: usize,
    /// Seed of dropout and masks.
    pub seed: u64,
    /// Steps go on, the samples coming again, until they have been timed for so many seconds. Not in
    /// evaluation.
    pub seconds: f64,
    /// Whether sampler, trackers and progress go on beside it, as in a run that is watched.
    pub watched: bool,
    /// Whether it is told where the time of a step goes. On processors alone, and not in evaluation.
    pub parts: bool,
    /// Whether the kernels of a GPU are timed, which costs some microseconds for each.
    pub kernels: bool,
    /// Whether samples come as those of real data do, instead of as copies from memory: from mapped shards of half
    /// precision, normalised window by window and (but for cnn-lstm) varied anew. Not in evaluation, and not for
    /// bert-base, whose tokens are in memory in a run, too.
    pub stored: bool,
    /// Where the samples lie that are not `stored`: by default where a run would have them. What lies on the device needs
    /// no `workers`. In evaluation they lie on the device or are streamed, as those of validation.
    pub resident: Resident,
}

/// Seconds that steps may be asked to go on for.
const LONGEST: f64 = 3600.0;

impl BenchConfig {
    /// Ten steps of training in f32 at the workload's own sizes.
    pub fn new(workload: Workload) -> Self {
        Self {
            workload,
            precision: Precision::F32,
            batch: None,
            steps: 10,
            warmup: WARMUP,
            evaluate: false,
            length: None,
            hidden: None,
            samples: None,
            workers: 1,
            seed: 1337,
            seconds: 0.0,
            watched: false,
            parts: false,
            kernels: false,
            stored: false,
            resident: Resident::Auto,
        }
    }

    /// Steps before the timed ones on a device where nothing else is asked for: on a GPU training takes more of them.
    pub fn default_warmup(device: &ChosenDevice, evaluate: bool) -> u64 {
        if device.backend == "cpu" || evaluate { WARMUP } else { GPU_WARMUP }
    }

    /// The sizes that it has.
    ///
    /// # Errors
    ///
    /// One that is zero, or that the workload cannot have.
    pub(super) fn sizes(&self) -> Result<Sizes, PipelineError> {
        let Self { workload, .. } = *self;
        let refuse = |what: String| Err(PipelineError::Setting(what));
        let batch = self.batch.unwrap_or(workload.default_batch());
        let length = self.length.unwrap_or(workload.default_length());
        let hidden = self.hidden.or(workload.default_hidden());
        let samples = self.samples.unwrap_or(batch);
        let counts = [
            ("batch", Some(batch as u64)),
            ("steps", Some(self.steps)),
            ("length", Some(length as u64)),
            ("hidden", hidden.map(|hidden| hidden as u64)),
            ("samples", Some(samples as u64)),
        ];
        if let Some((flag, _)) = counts.into_iter().find(|(_, count)| *count == Some(0)) {
            return refuse(format!("--{flag} is 0; it must be at least 1"));
        }
        // Sums and products of these are taken. No memory holds so many samples, and nobody waits for so many steps.
        let most = LARGEST_BATCH as u64;
        let bounded = [
            ("batch", batch as u64),
            ("steps", self.steps),
            ("warmup", self.warmup),
            ("samples", samples as u64),
        ];
        if let Some((flag, found)) = bounded.into_iter().find(|(_, count)| *count > most) {
            return refuse(format!("--{flag} is {found}; it must be at most {most}"));
        }
        if !(0.0..=LONGEST).contains(&self.seconds) {
            let found = self.seconds;
            return refuse(format!("--seconds is {found}; it must be from 0 to {LONGEST}"));
        }
        if self.evaluate && (self.watched || self.seconds > 0.0) {
            return refuse("--watched and --seconds are for training; leave out --eval".to_owned());
        }
        if self.evaluate && self.resident == Resident::Memory {
            return refuse(
                "--resident memory is for training: with --eval, samples lie on the device or are streamed, as in validation"
                    .to_owned(),
            );
        }
        if self.parts && self.evaluate {
            return refuse("--parts is for training; leave out --eval".to_owned());
        }
        if self.kernels && (self.evaluate || self.parts) {
            return refuse("--kernels is for training, without --eval and --parts".to_owned());
        }
        if self.parts && self.steps < 3 {
            // The last one has no end, and one alone has no error.
            return refuse("--parts needs --steps of 3 or more".to_owned());
        }
        let loader = LoaderConfig { workers: self.workers, ..LoaderConfig::default() };
        if let Err(LoadError::TooMany { found, most, .. }) = loader.validate() {
            return refuse(format!("--workers is {found}; it must be at most {most}"));
        }
        let fixed_length = workload == Workload::LstmForecast;
        if self.length.is_some() && fixed_length {
            return refuse(
                "lstm-forecast has sequences of 24 steps, whatever the length".to_owned(),
            );
        }
        if self.hidden.is_some() && workload.default_hidden().is_none() {
            let name = workload.name();
            return refuse(format!("the layers of {name} differ, so it has no `hidden` to set"));
        }
        if workload == Workload::CnnLstm && length < 8 {
            return refuse("cnn-lstm halves its sequence three times: it needs 8 steps".to_owned());
        }
        Ok(Sizes { batch, length, hidden: hidden.unwrap_or(0), samples })
    }
}

/// The sizes of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) length: usize,
    /// 0 where layers differ.
    pub(super) hidden: usize,
    pub(super) samples: usize,
}

/// Heads of a width: as many of the reference's size as fit, at least one.
pub(super) fn heads(width: usize, of_a_head: usize) -> usize {
    (1..=width / of_a_head).rev().find(|heads| width.is_multiple_of(*heads)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_on_a_gpu_is_timed_after_its_kernels_are_tuned() {
        let warmup = |backend, evaluate| {
            BenchConfig::default_warmup(&ChosenDevice::named(backend), evaluate)
        };
        assert_eq!([warmup("cpu", false), warmup("cuda", false)], [3, 128]);
        // Each loss is read by itself there.
        assert_eq!([warmup("cpu", true), warmup("vulkan", true)], [3, 3]);
    }

    #[test]
    fn sizes_are_the_references_unless_others_are_asked_for() {
        let config = BenchConfig::new(Workload::LstmMae);
        let expected = Sizes { batch: 512, length: 105, hidden: 128, samples: 512 };
        assert_eq!(config.sizes().unwrap(), expected);
        let small = BenchConfig { batch: Some(3), length: Some(7), hidden: Some(5), ..config };
        let expected = Sizes { batch: 3, length: 7, hidden: 5, samples: 3 };
        assert_eq!(small.sizes().unwrap(), expected);
        let check = |config: BenchConfig, expected: &str| {
            let error = config.sizes().unwrap_err();
            assert!(error.is_bad_input() && error.to_string().contains(expected), "{error}");
        };
        check(BenchConfig { batch: Some(0), ..config }, "--batch is 0");
        check(BenchConfig { steps: 0, ..config }, "--steps is 0");
        check(BenchConfig { length: Some(0), ..config }, "--length is 0");
        check(BenchConfig { hidden: Some(0), ..config }, "--hidden is 0");
        check(
            BenchConfig { steps: u64::MAX, ..config },
            "--steps is 18446744073709551615; it must be at most 4294967295",
        );
        check(BenchConfig { warmup: 1 << 32, ..config }, "--warmup is 4294967296");
        check(BenchConfig { seconds: f64::NAN, ..config }, "--seconds is NaN");
        check(
            BenchConfig { seconds: -1.0, ..config },
            "--seconds is -1; it must be from 0 to 3600",
        );
        check(BenchConfig { evaluate: true, watched: true, ..config }, "leave out --eval");
        check(BenchConfig { parts: true, evaluate: true, ..config }, "--parts is for training");
        let resident = Resident::Memory;
        check(BenchConfig { resident, evaluate: true, ..config }, "--resident memory is for");
        check(BenchConfig { parts: true, steps: 2, ..config }, "--parts needs --steps of 3");
        check(BenchConfig { workers: 100_000, ..config }, "--workers is 100000");
        let forecast = BenchConfig::new(Workload::LstmForecast);
        check(BenchConfig { length: Some(9), ..forecast }, "24 steps");
        check(BenchConfig { hidden: Some(9), ..forecast }, "no `hidden` to set");
        let convolutions = BenchConfig::new(Workload::CnnLstm);
        check(BenchConfig { length: Some(7), ..convolutions }, "it needs 8 steps");
        assert!("lstm".parse::<Workload>().unwrap_err().contains("lstm-mae"));
        assert_eq!([heads(128, 16), heads(768, 64), heads(8, 64), heads(96, 64)], [8, 12, 1, 1]);
    }
}
