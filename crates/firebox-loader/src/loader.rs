//! The loaders: which samples each batch holds, and their way to the device.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use crossbeam_channel::{Receiver, unbounded};
use firebox_core::Stream;

use crate::batch::{Batch, Position};
use crate::order::Plan;
use crate::place::Place;
use crate::prefetch::{Alarm, Prefetch};
use crate::recycle::has_pinned;
use crate::resident::{HeldOutResident, TrainResident};
use crate::upload::{Upload, Uploads};
use crate::{LoadError, LoaderConfig, Masking, Source, TrainSource};

/// Batches to train on, in another order in each epoch.
///
/// The order of an epoch is a function of the settings, the `"order"` stream of the seed and the
/// epoch: it does not depend on workers, prefetch, the device or the batches read before. Threads go
/// on with the next epoch while the last batches of one are used, and while nothing is asked for
/// between two epochs.
#[derive(Clone)]
pub struct TrainLoader {
    source: Arc<dyn TrainSource>,
    resident: Option<TrainResident>,
    config: LoaderConfig,
    device: Device,
    plan: Arc<Plan>,
    masking: Masking,
    /// What every batch is, if they are all the same.
    only: Option<Batch>,
    /// Threads between two epochs, with the batches that they have made of the next.
    parked: Arc<Mutex<Option<Uploads>>>,
    /// Where threads say that they failed, and where it is heard.
    alarm: (Alarm, Receiver<String>),
}

impl TrainLoader {
    /// A loader of these samples onto this device.
    ///
    /// # Errors
    ///
    /// When a setting is out of range or asks for memory that the device does not have, a batch does not hold the
    /// longest sample, or the source has no sample or too many.
    pub fn new(
        source: Arc<dyn TrainSource>,
        config: LoaderConfig,
        device: Device,
    ) -> Result<Self, LoadError> {
        config.check(source.as_ref())?;
        config.check_tokens(source.as_ref())?;
        check_pin(&config, &device)?;
        let plan = Arc::new(Plan::shuffled(source.as_ref(), config));
        let parked = Arc::default();
        let (failed, heard) = unbounded();
        let (masking, alarm) =
            (Masking::default(), (Alarm { failed, refused: Arc::default() }, heard));
        Ok(Self {
            source,
            resident: None,
            config,
            device,
            plan,
            masking,
            only: None,
            parked,
            alarm,
        })
    }

    /// A loader of samples that stay on the device, or in memory. Its batches are those that a
    /// loader of the same source without residence would give; versions that the device draws by
    /// itself are the same but for rounding.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn resident(
        set: TrainResident,
        config: LoaderConfig,
        device: Device,
    ) -> Result<Self, LoadError> {
        let on_device = set.place() == Place::Device;
        let loader = Self::new(Arc::new(set.clone()), config, device)?;
        Ok(Self { resident: on_device.then_some(set), ..loader })
    }

    /// The same batches with steps and channels hidden: drawn for each sample and epoch from the
    /// `"masking"` stream of the seed. Whether stretches fit the steps of a sample is not looked at: see
    /// [`Masking::validate_for`].
    ///
    /// # Errors
    ///
    /// When a share is out of range, or stretches of steps have no length.
    pub fn with_masking(self, masking: Masking) -> Result<Self, LoadError> {
        masking.validate()?;
        Ok(Self { masking, ..self })
    }

    /// The same loader with the first batch of the first epoch at every position, read now: for finding out
    /// what a step takes without a loader.
    ///
    /// # Errors
    ///
    /// When that batch cannot be read.
    pub fn repeating_the_first(self) -> Result<Self, LoadError> {
        let first = self.epoch(Position::START).plain();
        Ok(Self { only: Some(first.ok_or(LoadError::Empty)??), ..self })
    }

    /// The batches from `position` to the end of its epoch. None if the epoch has ended there.
    pub fn epoch(&self, position: Position) -> Batches {
        self.batches(position, Some(Arc::clone(&self.parked)))
    }

    /// The same by threads that end with it: those that have the next epoch's first batches ready keep them.
    pub fn epoch_beside(&self, position: Position) -> Batches {
        self.batches(position, None)
    }

    fn batches(&self, position: Position, parked: Option<Arc<Mutex<Option<Uploads>>>>) -> Batches {
        let per_epoch = self.batches_per_epoch();
        let end = Position { epoch: position.epoch, batch: per_epoch };
        let plan = || Arc::clone(&self.plan);
        let state = match (&self.only, &self.resident) {
            _ if position >= end => State::Ended,
            (Some(only), _) => State::Same(Box::new(only.clone()), plan(), position),
            (None, Some(set)) => State::Resident(set.clone(), plan(), position),
            (None, None) => State::Running(self.threads(position, parked.is_some())),
        };
        let stream = Stream::new(self.config.seed, "masking").substream(position.epoch);
        let masking = self.masking.is_on().then_some((self.masking, stream));
        Batches { state, parked, end, masking, waited: Duration::ZERO, device: self.device.clone() }
    }

    /// Threads that begin at a position: those that wait there, or new ones; or, where none are `kept` for the next epoch,
    /// new ones that end with this one.
    fn threads(&self, position: Position, kept: bool) -> Uploads {
        let parked = || self.parked.lock().unwrap_or_else(PoisonError::into_inner).take();
        let parked = if kept { parked() } else { None };
        if let Some(waiting) = parked.filter(|waiting| waiting.position() == position) {
            return waiting;
        }
        let source: Arc<dyn Source> = Arc::clone(&self.source) as Arc<dyn Source>;
        let end = Position { epoch: position.epoch, batch: self.batches_per_epoch() };
        let alarm = Some(self.alarm.0.clone());
        uploads(source, &self.plan, [position, end], kept, (&self.config, &self.device), alarm)
    }

    /// Batches of an epoch, partial ones included: the same number in every epoch.
    pub fn batches_per_epoch(&self) -> u64 {
        self.plan.batches()
    }

    /// Samples of an epoch.
    pub fn samples(&self) -> usize {
        self.source.len()
    }

    /// Where the samples come from.
    pub fn source(&self) -> &Arc<dyn TrainSource> {
        &self.source
    }

    /// What threads say at once that cannot fill a batch, with its causes: whoever computes with the batch before for long
    /// need not wait to hear of it until it asks for the next.
    pub fn failures(&self) -> Receiver<String> {
        self.alarm.1.clone()
    }

    /// Threads that the system refused since this was last asked, mostly for want of memory for their stacks: other threads
    /// fill batches and hand them over, or whoever asks for them.
    pub fn refused_threads(&self) -> usize {
        self.alarm.0.refused.swap(0, Ordering::Relaxed)
    }

    /// Whether the samples lie on the device.
    pub fn is_on_device(&self) -> bool {
        self.resident.is_some()
    }

    /// How batches are loaded.
    pub fn config(&self) -> &LoaderConfig {
        &self.config
    }

    /// The device that batches are handed to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The position after the batch at `position`: the next batch, or the next epoch's first.
    pub fn after(&self, position: Position) -> Position {
        self.plan.after(position)
    }
}

/// Batches to measure on, in the order of the source: there is no way to change it.
#[derive(Clone)]
pub struct HeldOutLoader {
    source: Arc<dyn Source>,
    resident: Option<HeldOutResident>,
    config: LoaderConfig,
    device: Device,
    plan: Arc<Plan>,
}

impl HeldOutLoader {
    /// A loader of these samples onto this device. The seed, the shuffle and the number of tokens
    /// are not used.
    ///
    /// # Errors
    ///
    /// As for [`TrainLoader::new`].
    pub fn new(
        source: Arc<dyn Source>,
        config: LoaderConfig,
        device: Device,
    ) -> Result<Self, LoadError> {
        config.check(source.as_ref())?;
        check_pin(&config, &device)?;
        let plan = Arc::new(Plan::in_order(source.as_ref(), config));
        Ok(Self { source, resident: None, config, device, plan })
    }

    /// A loader of samples that stay on the device: the batches that a loader of the same source without
    /// residence would give.
    ///
    /// # Errors
    ///
    /// As for [`TrainLoader::new`].
    pub fn resident(
        set: HeldOutResident,
        config: LoaderConfig,
        device: Device,
    ) -> Result<Self, LoadError> {
        let loader = Self::new(Arc::new(set.set().clone()), config, device)?;
        Ok(Self { resident: Some(set), ..loader })
    }

    /// All batches, the last partial one included.
    pub fn batches(&self) -> Batches {
        let end = Position { epoch: 0, batch: self.batches_per_epoch() };
        let state = match &self.resident {
            Some(set) => {
                State::Resident(set.set().clone(), Arc::clone(&self.plan), Position::START)
            }
            None => {
                let (source, ends) = (Arc::clone(&self.source), [Position::START, end]);
                let to = (&self.config, &self.device);
                State::Running(uploads(source, &self.plan, ends, false, to, None))
            }
        };
        let waited = Duration::ZERO;
        Batches { state, parked: None, end, masking: None, waited, device: self.device.clone() }
    }

    /// Number of batches.
    pub fn batches_per_epoch(&self) -> u64 {
        self.plan.batches()
    }

    /// Number of samples.
    pub fn samples(&self) -> usize {
        self.source.len()
    }

    /// Where the samples come from.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }
}

/// Refuses pinned memory where there is none.
fn check_pin(config: &LoaderConfig, device: &Device) -> Result<(), LoadError> {
    if config.pin && !has_pinned(device) { Err(LoadError::Pin) } else { Ok(()) }
}

/// Threads that fill the batches of these positions, or of all from the first on, and hand them to the device.
fn uploads(
    source: Arc<dyn Source>,
    plan: &Arc<Plan>,
    ends: [Position; 2],
    endless: bool,
    (config, device): (&LoaderConfig, &Device),
    alarm: Option<Alarm>,
) -> Uploads {
    let [time, channel] = source.shape();
    // A batch by tokens has as many steps, padding included, whatever it holds.
    let steps = match config.tokens {
        0 => config.batch_size.min(source.len()).saturating_mul(time),
        tokens => tokens,
    };
    let upload = Upload::new(device.clone(), channel, steps.saturating_mul(channel), config);
    let plan = Arc::clone(plan);
    let prefetch = Prefetch::start(source, plan, ends, endless, config, device, alarm);
    Uploads::start(prefetch, upload, config.upload_ahead)
}

/// Batches one after the other. Dropping it midway stops its threads; those of a training loader
/// that have come to the end of their epoch go on with the next.
///
/// An error is the last item. It comes in its batch's turn, or earlier if the batches before it would
/// keep it waiting for longer than a quarter of a second.
pub struct Batches {
    state: State,
    /// Where threads are left at the end of an epoch.
    parked: Option<Arc<Mutex<Option<Uploads>>>>,
    /// After the last batch.
    end: Position,
    masking: Option<(Masking, Stream)>,
    /// Time that was waited for the next batch already.
    waited: Duration,
    device: Device,
}

enum State {
    Running(Uploads),
    /// Samples that lie on the device, and the next batch.
    Resident(TrainResident, Arc<Plan>, Position),
    /// One batch for all, and the next position.
    Same(Box<Batch>, Arc<Plan>, Position),
    /// A batch could not be delivered, or there is nothing to do.
    Ended,
}

impl Batches {
    /// The next batch, or none if the epoch ends here.
    fn upcoming(&self) -> Option<Position> {
        let position = match &self.state {
            State::Running(uploads) => uploads.position(),
            State::Resident(_, _, position) | State::Same(_, _, position) => *position,
            State::Ended => return None,
        };
        (position < self.end).then_some(position)
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, LoadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.plain()?;
        Some(batch.map(|mut batch| {
            if let Some((masking, stream)) = &self.masking {
                let start = Instant::now();
                batch.inputs = masking.apply(batch.inputs, &batch.lengths, &batch.indices, *stream);
                batch.wait += start.elapsed();
            }
            batch
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let remaining = self.upcoming().map_or(0, |position| self.end.batch - position.batch);
        let remaining = usize::try_from(remaining).unwrap_or(usize::MAX);
        // An error ends the batches early.
        (remaining.min(1), Some(remaining))
    }
}

impl Batches {
    /// Whether the next batch, or what is to be said instead of it (that there is none, too), is there, or would be made by
    /// the caller. Waits for it no longer than this, which counts as waiting for that batch: for callers who must not stand
    /// still for ever.
    pub fn is_ready_within(&mut self, time: Duration) -> bool {
        if self.upcoming().is_none() {
            return true;
        }
        let start = Instant::now();
        let ready = match &mut self.state {
            State::Running(uploads) => uploads.is_ready_within(time),
            State::Resident(..) | State::Same(..) | State::Ended => true,
        };
        self.waited += start.elapsed();
        ready
    }

    /// The next batch before anything is hidden of it.
    fn plain(&mut self) -> Option<Result<Batch, LoadError>> {
        let waited = std::mem::take(&mut self.waited);
        let batch = self.delivered()?;
        Some(batch.map(|batch| Batch { wait: batch.wait + waited, ..batch }))
    }

    fn delivered(&mut self) -> Option<Result<Batch, LoadError>> {
        let start = Instant::now();
        self.upcoming()?;
        match &mut self.state {
            State::Running(uploads) => {
                let batch = uploads.next()?;
                if batch.is_err() {
                    self.state = State::Ended;
                }
                Some(batch)
            }
            State::Resident(set, plan, position) => {
                let (chosen, epoch) = (plan.batch(&*set, *position), position.epoch);
                *position = plan.after(*position);
                let next = *position;
                let inputs = set.select(epoch, &chosen.indices, chosen.steps, &self.device)?;
                let samples = || chosen.indices.iter().map(|index| set.sample(*index));
                Some(Ok(Batch {
                    inputs,
                    lengths: samples().map(|sample| sample.length as usize).collect(),
                    labels: samples().map(|sample| sample.label).collect(),
                    indices: chosen.indices,
                    next,
                    wait: start.elapsed(),
                    upload: start.elapsed(),
                    handed: Duration::ZERO,
                    fill: Duration::ZERO,
                }))
            }
            State::Same(batch, plan, position) => {
                *position = plan.after(*position);
                let (next, wait) = (*position, start.elapsed());
                let [upload, handed, fill] = [Duration::ZERO; 3];
                Some(Ok(Batch { next, wait, upload, handed, fill, ..Batch::clone(batch) }))
            }
            State::Ended => None,
        }
    }
}

impl std::iter::FusedIterator for Batches {}

impl Drop for Batches {
    fn drop(&mut self) {
        let Some(parked) = &self.parked else { return };
        let ended = self.upcoming().is_none();
        if let State::Running(uploads) = std::mem::replace(&mut self.state, State::Ended)
            && ended
        {
            *parked.lock().unwrap_or_else(PoisonError::into_inner) = Some(uploads);
        }
    }
}
