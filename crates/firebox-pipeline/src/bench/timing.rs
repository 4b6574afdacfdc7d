//! Times the steps of a workload, as the training loop reports them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use burn::module::Module;
use firebox_core::{Event, Key, Listener, Precision, Requests, Stream};
use firebox_kernels::KeptWeights;
use firebox_loader::{HeldOutLoader, LoaderConfig, Place, Source, TrainLoader, TrainSource};
use firebox_models::Loss;
use firebox_monitor::sampled;
use firebox_train::{
    AverageConfig, CheckpointConfig, Constant, Data, DynamicScale, Keep, LossScale, Objective, Run,
    Schedule, Streams, TrainConfig,
};

use super::PageFaults;
use super::config::BenchConfig;
use super::noise::Noise;
use super::on_device::{KernelShare, measured};
use super::parts::{StepParts, apart};
use super::processor;
use super::stored::Stored;
use super::watch::{Followed, Watching, watched};
use crate::config::LoaderTable;
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::feed::{repeating_held_out, repeating_loader, upload_ahead};

/// Seconds between two samples of a GPU, whose steps are short.
const GPU_PERIOD: f64 = 0.1;

/// What goes on beside the steps.
pub(super) struct Beside<'a> {
    /// Shows progress, where it is watched.
    pub(super) progress: &'a dyn Listener,
    /// Settings of the run whose steps these are; those of the workload's peer where there is none.
    pub(super) train: Option<&'a TrainConfig>,
}

/// What was measured of the steps.
#[derive(Default)]
pub(crate) struct Measured {
    /// Times in milliseconds, in the end of the timed steps alone.
    pub(crate) times: Vec<f64>,
    /// Milliseconds of the first step of all, in which kernels are compiled and tuned and memory is
    /// taken for the first time.
    pub(crate) first: f64,
    /// Milliseconds of each that went by waiting for data.
    pub(crate) waits: Vec<f64>,
    /// Losses of all steps.
    pub(crate) losses: Vec<f64>,
    /// Most memory up to the last step: what is saved after it is no part of a step. On a processor it is resident
    /// memory, on another device what its allocator has of it.
    pub(crate) peak_mib: Option<f64>,
    /// Parameters of the model.
    pub(crate) parameters: usize,
    /// Share of the device's time that the timed steps kept it busy.
    pub(crate) utilisation: Option<f64>,
    /// Page faults of a timed step.
    pub(crate) page_faults: Option<PageFaults>,
    /// What watching cost, if there was any.
    pub(crate) watching: Option<Watching>,
    /// Where the time of a step went, if it was taken apart.
    pub(crate) parts: Option<StepParts>,
    /// The kernels of a timed step, if they were measured.
    pub(crate) on_device: Option<Vec<KernelShare>>,
    /// Where the samples lay.
    pub(crate) place: Option<Place>,
}

/// What the system had counted when the timed steps began.
struct Begun {
    at: Instant,
    /// Processor time.
    busy: Option<Duration>,
    faults: Option<[u64; 2]>,
}

/// Steps in hand: what was measured, and what was counted when the timed ones began.
struct Steps<'a> {
    device: &'a ChosenDevice,
    measured: Measured,
    /// Steps that are not timed, and all steps.
    warmup: u64,
    all: u64,
    /// Time that the timed steps take at least.
    least: Duration,
    begun: Option<Begun>,
    over: bool,
    gpu: Vec<f64>,
}

impl<'a> Steps<'a> {
    fn new(config: &BenchConfig, device: &'a ChosenDevice) -> Self {
        let mut steps = Self {
            device,
            measured: Measured::default(),
            warmup: config.warmup,
            all: config.warmup + config.steps,
            least: Duration::try_from_secs_f64(config.seconds).unwrap_or_default(),
            begun: None,
            over: false,
            gpu: vec![],
        };
        steps.look();
        steps
    }

    fn step(&mut self, milliseconds: f64, wait: f64, loss: f64) {
        self.measured.times.push(milliseconds);
        self.measured.waits.push(wait);
        self.measured.losses.push(loss);
        self.look();
    }

    /// Reads the processor's time and the page faults where the timed steps begin and where they end.
    fn look(&mut self) {
        let taken = self.measured.times.len() as u64;
        if taken == self.warmup {
            let (busy, faults) = (processor::process(), processor::page_faults());
            self.begun = Some(Begun { at: Instant::now(), busy, faults });
        }
        let begun = self.begun.as_ref();
        let long = begun.is_some_and(|begun| begun.at.elapsed() >= self.least);
        if !self.over && taken >= self.all && long {
            self.over = true;
            // First: what is read below has faults of its own.
            let faults = processor::page_faults();
            self.measured.page_faults = begun.and_then(|begun| {
                PageFaults::between(begun.faults?, faults?, taken.checked_sub(self.warmup)?)
            });
            let busy = begun.and_then(|begun| {
                let busy = processor::process()?.checked_sub(begun.busy?)?;
                Some(busy.as_secs_f64() / begun.at.elapsed().as_secs_f64())
            });
            self.measured.peak_mib = peak_mib(self.device);
            let threads = rayon::current_num_threads() as f64;
            self.measured.utilisation = busy.map(|busy| (busy / threads).min(1.0));
        }
    }

    /// A sample of the device, which counts from the begin of the timed steps to their end: what is done after them, such
    /// as a checkpoint, is no part of a step.
    fn sample(&mut self, utilisation: Option<f64>) {
        if self.begun.is_some() && !self.over {
            self.gpu.extend(utilisation);
        }
    }

    /// The timed steps.
    fn end(mut self) -> Measured {
        let warmup = (self.warmup as usize).min(self.measured.times.len());
        self.measured.first = self.measured.times.first().copied().unwrap_or(f64::NAN);
        self.measured.times.drain(..warmup);
        self.measured.waits.drain(..warmup);
        if self.device.backend != "cpu" {
            let count = self.gpu.len() as f64;
            self.measured.utilisation = (count > 0.0).then(|| self.gpu.iter().sum::<f64>() / count);
        }
        self.measured
    }
}

/// Most memory so far, MiB: what this process had of the machine, or the allocator of a GPU of that.
fn peak_mib(device: &ChosenDevice) -> Option<f64> {
    match device.backend.as_str() {
        "cpu" => processor::peak_mib(),
        // What the program holds is no memory of a GPU.
        _ => device.reserved().map(|bytes| bytes as f64 / f64::from(1 << 20)),
    }
}

/// Times a model on a batch that comes again, or on more samples.
pub(super) fn time<M: Module, O: Objective<M>>(
    model: M,
    objective: &O,
    noise: Noise,
    config: &BenchConfig,
    device: &ChosenDevice,
    beside: &Beside<'_>,
) -> Result<Measured, PipelineError> {
    // One batch is ready while another is filled: more would be memory that the peer does not take.
    let settings = LoaderConfig {
        batch_size: noise.batch,
        workers: config.workers,
        prefetch: ahead(config.workers),
        upload_ahead: upload_ahead(device, LoaderTable::default().upload_ahead),
        ..LoaderConfig::default()
    };
    let gpu = device.backend != "cpu";
    let parameters = model.num_params();
    let steps = Mutex::new(Steps::new(config, device));
    // Set with the last step, after which the loop takes no other.
    let stop = AtomicBool::new(false);
    let listener = |event: &Event| {
        let mut steps = steps.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Step { milliseconds, data_milliseconds, loss, .. } => {
                steps.step(*milliseconds, *data_milliseconds, *loss);
                stop.store(steps.over, Ordering::Relaxed);
            }
            Event::Machine(sample) => {
                // That of the device alone, or all where it is not known which one that is.
                let busy = sample.gpus.iter().filter_map(|gpu| gpu.utilisation);
                steps.sample(busy.max_by(f64::total_cmp));
            }
            _ => {}
        }
    };
    let (mut watching, mut parts, mut on_device, mut place) = (None, None, None, None);
    // The processor's own time tells its utilisation without a sampler.
    let (period, threads) = (if gpu { GPU_PERIOD } else { 0.0 }, rayon::current_num_threads());
    sampled(period, threads, device.watched(), &listener, || {
        if config.evaluate {
            // As a run validates.
            let (once, times) = noise.once();
            let once = (Arc::new(once) as Arc<dyn Source>, times);
            let (loader, found) =
                repeating_held_out(device, config.resident, once, Arc::new(noise), settings)?;
            place = Some(found);
            return evaluate(&model.valid(), objective, &loader, &steps);
        }
        let loader = if config.stored {
            let stored = Arc::new(Stored::of(&noise, config.workload.versions())?);
            place = Some(Place::Stream);
            TrainLoader::new(stored, settings, device.device.clone())?
        } else {
            let (once, times) = noise.once();
            let once = (Arc::new(once) as Arc<dyn TrainSource>, times);
            let (loader, found) =
                repeating_loader(device, config.resident, once, Arc::new(noise), settings)?;
            place = Some(found);
            loader
        };
        let folder = tempfile::tempdir().map_err(crate::error::at(&std::env::temp_dir()))?;
        let train = |listener: &dyn Listener| {
            let run = Run {
                folder: folder.path(),
                key: Key::builder("bench", 1).finish(),
                seed: config.seed,
                resume: false,
                stop: &stop,
                requests: &Requests::new(),
                listener,
            };
            let work = || train(model, objective, &loader, (config, beside.train), &run);
            let (((), found), kernels) = measured(config, || apart(config, work))?;
            (parts, on_device) = (found, kernels);
            Ok(())
        };
        if !config.watched {
            return train(&listener);
        }
        let steps = Followed {
            progress: beside.progress,
            own: &listener,
            warmup: config.warmup,
            stop: &stop,
        };
        let (done, found) = watched(folder.path(), &steps, train)?;
        watching = Some(found);
        done
    })?;
    let steps = steps.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Measured { parameters, watching, parts, on_device, place, ..steps.end() })
}

/// Batches that are ready or in the making: two of each thread, up to the most that a loader takes.
fn ahead(workers: usize) -> usize {
    const MOST: usize = 1024;
    (2 * workers).min(MOST)
}

/// Steps of training as the loop reports them: from asking for a batch to the updated weights.
fn train<M: Module, O: Objective<M>>(
    model: M,
    objective: &O,
    loader: &TrainLoader,
    (config, own): (&BenchConfig, Option<&TrainConfig>),
    run: &Run<'_>,
) -> Result<(), PipelineError> {
    let settings = own.map(in_a_step).unwrap_or_default();
    // As a pipeline does it: f16 without a scale is another, worse job.
    let scale = settings.loss_scale.resolve(config.precision == Precision::F16);
    // Nobody reads it: it takes time, and room on a disk. The histograms of one are part of what watching costs, and its
    // copy of the state is part of the memory that the steps of a run are asked for.
    let keep = if config.watched || own.is_some() { Keep::FinalOnly } else { Keep::Nothing };
    let config = TrainConfig {
        // Until it is stopped, if it goes by time.
        epochs: if config.seconds > 0.0 { 1_000_000 } else { 1 },
        max_steps: (config.seconds <= 0.0).then_some(config.warmup + config.steps),
        schedule: Schedule::Constant(Constant::default()),
        early_stopping: None,
        loss_scale: if own.is_some() { in_a_look(scale) } else { scale },
        checkpoint: CheckpointConfig { keep, ..CheckpointConfig::default() },
        ..settings
    };
    let data = Data { train: loader, validation: None };
    firebox_train::train(model, objective, data, &config, run)?;
    Ok(())
}

/// The scale of a few steps that are taken for their time and memory, which no size of it changes. The run's own may
/// begin so large that all of so few steps overflow, or always be too large for noise; this one overflows once at most,
/// before the steps that are timed, each of which then updates the weights.
fn in_a_look(scale: LossScale) -> LossScale {
    // The smallest gradients count as much as they do in a run, nearly: they are normal numbers of f16 from 2.4e-7 on.
    const BEGUN: f64 = 256.0;
    match scale {
        LossScale::Auto | LossScale::Off => scale,
        LossScale::Static(_) | LossScale::Dynamic(_) => LossScale::Dynamic(DynamicScale {
            initial: BEGUN,
            backoff: 1.0 / BEGUN,
            floor: 1.0,
            ..DynamicScale::default()
        }),
    }
}

/// What of a run's settings decides the time and memory of one step. Parameters that are frozen at first
/// count as trained: later they are.
pub(crate) fn in_a_step(run: &TrainConfig) -> TrainConfig {
    // From the first update on; there is no validation.
    let averaged = |own| AverageConfig {
        from_epoch: 0,
        every: 1,
        evaluate: false,
        statistics_batches: None,
        ..own
    };
    TrainConfig {
        optimizer: run.optimizer.clone(),
        clip: run.clip,
        clip_value: run.clip_value,
        average: run.average.map(averaged),
        loss_scale: run.loss_scale,
        allow_unscaled_f16: run.allow_unscaled_f16,
        ..TrainConfig::default()
    }
}

/// Losses of batches as validation computes them, each read back.
fn evaluate<M: Module, O: Objective<M>>(
    model: &M,
    objective: &O,
    loader: &HeldOutLoader,
    steps: &Mutex<Steps<'_>>,
) -> Result<(), PipelineError> {
    let samples = Stream::new(1337, "masks");
    let weights = KeptWeights::new();
    let mut start = Instant::now();
    for batch in loader.batches() {
        let batch = batch?;
        let wait = start.elapsed().as_secs_f64() * 1e3;
        let streams = Streams { samples, dropout: None };
        let Loss { value, .. } = weights.during(|| objective.loss(model, &batch, streams));
        let loss = value.into_data().iter::<f64>().next().unwrap_or(f64::NAN);
        let milliseconds = start.elapsed().as_secs_f64() * 1e3;
        steps.lock().unwrap_or_else(PoisonError::into_inner).step(milliseconds, wait, loss);
        start = Instant::now();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use firebox_core::Silent;
    use firebox_models::BiLstmMaeConfig;
    use firebox_train::{CHECKPOINT_FOLDER, Pretraining};

    use super::super::config::Workload;
    use super::*;

    #[test]
    fn a_loader_takes_any_number_of_threads_that_is_timed() {
        for workers in [0, 1, 600, 1024] {
            let prefetch = ahead(workers);
            LoaderConfig { workers, prefetch, ..LoaderConfig::default() }.validate().unwrap();
        }
        assert_eq!([ahead(0), ahead(3)], [0, 6]);
    }

    #[test]
    fn a_gpu_is_looked_at_during_the_timed_steps_alone() {
        let config = BenchConfig { warmup: 1, steps: 2, ..BenchConfig::new(Workload::Mlp) };
        // A processor under the name of a GPU.
        let device = ChosenDevice::named("cuda");
        let mut steps = Steps::new(&config, &device);
        // While kernels are compiled, in each timed step, and in what comes after them.
        for busy in [0.1, 0.8, 0.6, 0.0] {
            steps.sample(Some(busy));
            steps.step(1.0, 0.0, 1.0);
        }
        let measured = steps.end();
        assert!((measured.utilisation.unwrap() - 0.7).abs() < 1e-12, "{:?}", measured.utilisation);
        // What the program holds is no memory of it.
        assert_eq!(measured.peak_mib, None);
        let device = ChosenDevice::named("cpu");
        let mut steps = Steps::new(&config, &device);
        (0..3).for_each(|_| steps.step(1.0, 0.0, 1.0));
        assert_eq!(steps.end().peak_mib.is_some(), cfg!(target_os = "linux"));
    }

    #[test]
    fn steps_that_are_taken_for_their_time_leave_no_checkpoint() {
        let config = BenchConfig {
            batch: Some(4),
            length: Some(12),
            steps: 2,
            warmup: 0,
            ..BenchConfig::new(Workload::LstmMae)
        };
        let device = ChosenDevice::named("cpu");
        let model = BiLstmMaeConfig {
            hidden: 4,
            decoder_hidden: 4,
            layers: 1,
            ..BiLstmMaeConfig::default()
        };
        let model = model.init(Stream::new(1, "weights"), 2, &device.device).unwrap();
        let noise = Arc::new(Noise::normal(config.sizes().unwrap(), &config, 2));
        let settings =
            LoaderConfig { batch_size: 4, workers: 0, prefetch: 1, ..LoaderConfig::default() };
        let loader = TrainLoader::new(noise, settings, device.device.clone()).unwrap();
        let saves = |own: Option<&TrainConfig>| {
            let folder = tempfile::tempdir().unwrap();
            let run = Run {
                folder: folder.path(),
                key: Key::builder("bench", 1).finish(),
                seed: 1,
                resume: false,
                stop: &AtomicBool::new(false),
                requests: &Requests::new(),
                listener: &Silent,
            };
            train(model.clone(), &Pretraining, &loader, (&config, own), &run).unwrap();
            folder.path().join(CHECKPOINT_FOLDER).exists()
        };
        assert!(!saves(None));
        // A run makes copies of its state, for which there has to be memory, too.
        assert!(saves(Some(&TrainConfig::default())));
    }
}
