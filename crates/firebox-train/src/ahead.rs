//! Steps whose numbers stay on the device, so that the host goes ahead with the next ones and reads
//! those of several at once.
//!
//! What a step needs of the steps before it is on the device, too: how many updates were applied, by which
//! it picks its learning rate among those that may be its, the loss scale, and by which share an average of the
//! weights follows. When the host reads is therefore without influence on what is computed. All that the host alone decides has to wait until it
//! has read: checkpoints, validation, requests, and what is done about a step that is not finite. For the
//! first steps of each shape it waits before they are taken, because one that had too little memory can be
//! computed again in smaller parts only as long as nothing was built on it.
//!
//! The arithmetic of the update is [`firebox_kernels::update_on_device`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor, TensorData};
use firebox_kernels::{DeviceConstants, DeviceStep, ScaleRule, rescale_on_device};
use firebox_models::Loss;

use crate::config::{NonFinite, TrainConfig};
use crate::gradients::Gradients;
use crate::scaler::{DynamicScale, LossScale, Scaler};

/// Steps that are read at once at most.
const MOST: usize = 32;

/// Steps of a kind that the host waits for before they are taken: in the second one, all that a step keeps is
/// there, so that whoever has too little memory learns it from a step that nothing was built on.
const PROVED: u32 = 2;

/// As many, before it is known how long one takes.
const FIRST: usize = 4;

/// What steps that are read at once should take together at most: a listener hears of a step that much
/// later, and who asks something waits for it.
const LONGEST: Duration = Duration::from_millis(250);

/// Largest number up to which f32 counts: of updates, and of steps between two rises of a scale.
const COUNTED: u64 = 1 << 24;

/// A step that was taken, and what the host knows of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// Steps, with this one.
    pub(crate) step: u64,
    /// The epoch, from 1.
    pub(crate) epoch: u64,
    /// What averages an accumulation: factor on the gradients besides the loss scale.
    pub(crate) factor: f64,
    pub(crate) weight: f64,
    pub(crate) samples: u64,
    /// Time that it waited for data.
    pub(crate) wait: Duration,
    /// Samples of its largest part.
    pub(crate) largest: u64,
}

/// One of which the device has the numbers.
pub(crate) struct Unread {
    pub(crate) taken: Taken,
    pub(crate) losses: Vec<Loss>,
    /// Of the gradients with their factors, `[1]`.
    pub(crate) squared_norm: Tensor<1>,
    /// Its learning rate after no update of the unread steps before it, after one, and so on.
    pub(crate) rates: Vec<f64>,
}

/// The steps that nobody has read yet.
pub(crate) struct Ahead {
    device: Device,
    dynamic: Option<DynamicScale>,
    /// Updates so far and what is constant, on the device; `None` if the host knows better.
    held: Option<(Tensor<1>, DeviceConstants)>,
    /// Loss scale and steps without an overflow, where they change; as long as something is held.
    scaler: Option<[Tensor<1>; 2]>,
    unread: Vec<Unread>,
    /// When the first of them began.
    since: Instant,
    /// After how many they are read.
    limit: usize,
    /// Kinds of batches, and how many steps of each were computed. There are few: one for each length
    /// of buckets.
    proved: BTreeMap<BatchKind, u32>,
}

/// What a batch takes memory by: its samples, their steps, and the parts that it is computed in.
pub(crate) type BatchKind = [u64; 3];

impl Ahead {
    /// `None` if each step has to be read before the next one: where the device has no kernels for it, and
    /// where the host decides by its numbers what the next one starts from.
    pub(crate) fn new<M: Module>(model: &M, config: &TrainConfig) -> Option<Self> {
        let devices = model.devices();
        let [device] = devices.as_slice() else { return None };
        let device = device.clone().without_autodiff();
        let exact = |value: f64| f64::from(value as f32) == value;
        let dynamic = match config.loss_scale {
            LossScale::Dynamic(dynamic) => Some(dynamic),
            LossScale::Auto | LossScale::Off | LossScale::Static(_) => None,
        };
        // The device computes the scale in f32, and the host must come to the same.
        let same = dynamic.is_none_or(|DynamicScale { growth, backoff, interval, .. }| {
            exact(growth) && exact(backoff) && interval < COUNTED
        });
        let possible =
            same && config.non_finite != NonFinite::Rollback && DeviceStep::reads_nothing(&device);
        possible.then_some(Self {
            device,
            dynamic,
            held: None,
            scaler: None,
            unread: vec![],
            since: Instant::now(),
            limit: FIRST,
            proved: BTreeMap::new(),
        })
    }

    /// Whether steps of such batches have had enough memory.
    pub(crate) fn has_room(&self, batches: &[BatchKind]) -> bool {
        batches.iter().all(|kind| self.proved.get(kind).is_some_and(|steps| *steps >= PROVED))
    }

    /// A step of such batches was computed.
    pub(crate) fn prove(&mut self, batches: &[BatchKind]) {
        for kind in BTreeSet::from_iter(batches) {
            let steps = self.proved.entry(*kind).or_default();
            *steps = steps.saturating_add(1);
        }
    }

    /// Steps that nobody has read yet.
    pub(crate) fn len(&self) -> usize {
        self.unread.len()
    }

    /// Whether it is time to read them.
    pub(crate) fn is_due(&self) -> bool {
        self.len() >= self.limit || self.len() > 0 && self.since.elapsed() >= LONGEST
    }

    /// The unread steps, in their order.
    pub(crate) fn unread(&self) -> &[Unread] {
        &self.unread
    }

    /// Takes them, once the device has told their numbers, and the time that one took: they share it evenly.
    pub(crate) fn take(&mut self) -> (Vec<Unread>, Duration) {
        let each = self.since.elapsed() / self.len().max(1) as u32;
        // The device may be slower than the host, which must not be far ahead then.
        let limit = LONGEST.as_nanos() / each.as_nanos().max(1);
        self.limit = limit.clamp(1, MOST as u128) as usize;
        (std::mem::take(&mut self.unread), each)
    }

    /// The squared norm of gradients, `[1]`, without waiting for it.
    pub(crate) fn squared_norm(&self, gradients: &Gradients) -> Tensor<1> {
        gradients.squared_norm().on_device(&self.device)
    }

    /// After a step of the host: what the device held is out of date, and what the next ones take is not known. There
    /// is nothing unread.
    pub(crate) fn forget(&mut self) {
        (self.held, self.scaler) = (None, None);
        self.proved.clear();
    }

    /// The loss scale, `[1]`, if the device alone knows it.
    pub(crate) fn scale(&self) -> Option<Tensor<1>> {
        self.scaler.as_ref().map(|[scale, _]| scale.clone())
    }

    /// Whether the device can count one more update.
    pub(crate) fn counts(&self, updates: u64) -> bool {
        updates + (self.len() as u64) < COUNTED
    }

    /// The state by which a step is taken on the device. `scaler` and `updates` are as the host last
    /// read them.
    pub(crate) fn begin(&mut self, step: &Unread, scaler: &Scaler, updates: u64) -> DeviceStep {
        let one = |value: f64| number(vec![value], &self.device);
        let (updates_there, constants) = self.held.take().unwrap_or_else(|| {
            self.scaler = self.dynamic.map(|_| [one(scaler.scale), one(scaler.good_steps as f64)]);
            (one(updates as f64), DeviceConstants::default())
        });
        let loss_scale = match self.scaler.take().zip(self.dynamic) {
            Some((before, dynamic)) => {
                let scale = before[0].clone() * step.taken.factor;
                self.scaler = Some(rescale_on_device(&rule(&dynamic), before, &step.squared_norm));
                scale
            }
            None => one(scaler.scale * step.taken.factor),
        };
        DeviceStep {
            learning_rate: number(step.rates.clone(), &self.device),
            known: updates,
            loss_scale,
            squared_norm: step.squared_norm.clone(),
            losses: values(&step.losses),
            updates: updates_there,
            constants,
        }
    }

    /// By which of some `shares` an average follows the step that left this state, `[1]`: that of the updates since
    /// the host last read `updates`, and none if the step was no update.
    pub(crate) fn share(&self, state: &DeviceStep, updates: u64, shares: Vec<f64>) -> Tensor<1> {
        let applied = state.updates.clone() - updates as f64;
        let share = number(shares, &self.device).select(0, applied.int());
        let losses = state.losses.iter().map(|losses| losses.clone().is_finite().all());
        let finite = state.squared_norm.clone().is_finite();
        let applied = losses.fold(finite, |finite, losses| finite.bool_and(losses));
        share.mask_fill(applied.bool_not(), 0.0)
    }

    /// Takes the step, and the state that it left.
    pub(crate) fn end(&mut self, step: Unread, state: DeviceStep, start: Instant) {
        self.held = Some((state.updates, state.constants));
        if self.unread.is_empty() {
            self.since = start;
        }
        self.unread.push(step);
    }
}

/// The losses of a step's parts that had something to learn from, `[parts]`; `None` if none had.
fn values(losses: &[Loss]) -> Option<Tensor<1>> {
    let counted = losses.iter().filter(|loss| loss.weight > 0.0);
    let mut values: Vec<_> = counted.map(|loss| loss.value.clone()).collect();
    let values = match values.len() {
        0 => return None,
        1 => values.remove(0),
        _ => Tensor::cat(values, 0),
    };
    Some(values.cast(DType::F32))
}

fn number(values: Vec<f64>, device: &Device) -> Tensor<1> {
    let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
    let size = values.len();
    Tensor::from_data(TensorData::new(values, [size]), (device, DType::F32))
}

/// The device's rule of a scale that [`Ahead::new`] has found to be the same there.
fn rule(&DynamicScale { growth, backoff, interval, floor, .. }: &DynamicScale) -> ScaleRule {
    let interval = u32::try_from(interval).unwrap_or(u32::MAX);
    ScaleRule { growth: growth as f32, backoff: backoff as f32, interval, floor: floor as f32 }
}
