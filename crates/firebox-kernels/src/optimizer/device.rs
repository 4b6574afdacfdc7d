//! Optimizer steps whose changing numbers stay in the memory of the device: the host waits for nothing,
//! and launches that were captured as a graph do the next step when they are replayed.

use std::cell::Cell;

use burn::tensor::{DType, Device, Tensor, TensorData};

#[cfg(feature = "cube")]
use super::gpu::has_kernels;
use super::{Clip, ParameterUpdate, SquaredNorm, StepState, UpdateRule, check};
#[cfg(feature = "cube")]
use crate::cube::Combination;
use crate::operands::{alike, operand};
use crate::scoped::while_set;

/// [`StepState`] in the memory of a device; each tensor is `[1]` but where it says otherwise, in f32 and in no graph.
#[derive(Clone, Debug)]
pub struct DeviceStep {
    /// As [`StepState::learning_rate`]: that after [`known`](Self::known) updates, that after one more, and so on, for a
    /// host that does not know how many of the steps before were applied; after more than there are, the last.
    /// `[rates]`, at least one.
    pub learning_rate: Tensor<1>,
    /// The updates before which the first learning rate counts.
    pub known: u64,
    /// As [`StepState::loss_scale`].
    pub loss_scale: Tensor<1>,
    /// As [`StepState::squared_norm`].
    pub squared_norm: Tensor<1>,
    /// What has to be finite, too, for the update to be applied: `[losses]`, at least one.
    pub losses: Option<Tensor<1>>,
    /// As [`StepState::updates`]; exact up to 2²⁴.
    pub updates: Tensor<1>,
    /// What stays the same from step to step.
    pub constants: DeviceConstants,
}

/// The parameters' rates, weight decays and missed updates in the memory of a device: put there by the
/// first step, and again by one that finds others. A step that finds the same writes nothing to the
/// device, as a captured graph of launches demands.
#[derive(Clone, Debug, Default)]
pub struct DeviceConstants(#[cfg(feature = "cube")] Option<(Vec<f32>, Tensor<2>)>);

#[cfg(not(feature = "cube"))]
fn has_kernels(_: &Device) -> bool {
    false
}

thread_local! {
    static FORCED: Cell<Option<bool>> = const { Cell::new(None) };
}

impl DeviceStep {
    /// Whether [`update_on_device`] reads nothing back for tensors of a device, so that the host need not
    /// wait for a step before it begins the next.
    pub fn reads_nothing(device: &Device) -> bool {
        FORCED.get().unwrap_or_else(|| has_kernels(device))
    }

    /// Runs a function with another answer to [`reads_nothing`](Self::reads_nothing) on this thread, to
    /// compare both ways on one device.
    pub fn force<T>(reads_nothing: bool, f: impl FnOnce() -> T) -> T {
        while_set(&FORCED, Some(reads_nothing), f)
    }

    /// The same state on a device.
    pub fn new(state: &StepState, device: &Device) -> Self {
        let one = |value: f64| {
            Tensor::from_data(TensorData::new(vec![value as f32], [1]), (device, DType::F32))
        };
        Self {
            learning_rate: one(state.learning_rate),
            known: state.updates,
            loss_scale: one(state.loss_scale),
            squared_norm: one(state.squared_norm),
            losses: None,
            updates: one(state.updates as f64),
            constants: DeviceConstants::default(),
        }
    }

    /// Reads the state back; the host waits for the device. Where a loss is not finite, the squared norm is NaN.
    pub fn read(&self) -> StepState {
        let all = |tensor: &Tensor<1>| -> Vec<f64> { tensor.to_data().iter().collect() };
        let one = |tensor: &Tensor<1>| f64::from(tensor.clone().into_scalar::<f32>());
        let updates = one(&self.updates).round() as u64;
        let rates = all(&self.learning_rate);
        let at = updates.saturating_sub(self.known).min(rates.len() as u64 - 1);
        let losses = self.losses.as_ref().map(all).unwrap_or_default();
        let finite = losses.iter().all(|loss| loss.is_finite());
        StepState {
            learning_rate: rates[at as usize],
            loss_scale: one(&self.loss_scale),
            squared_norm: if finite { one(&self.squared_norm) } else { f64::NAN },
            updates,
        }
    }
}

impl SquaredNorm {
    /// As one number on a device, `[1]` in f32, without waiting for it.
    ///
    /// # Panics
    /// If there is one for each gradient, and their types or devices differ.
    #[track_caller]
    pub fn on_device(self, device: &Device) -> Tensor<1> {
        match self {
            Self::Known(norm) => {
                Tensor::from_data(TensorData::new(vec![norm as f32], [1]), (device, DType::F32))
            }
            Self::Pending(mut parts) if parts.len() == 1 => parts.remove(0),
            Self::Pending(parts) => {
                let operands = parts.iter().map(|part| operand("squared norm", part));
                alike("the squared norm of all gradients", operands);
                Tensor::cat(parts, 0).sum()
            }
        }
    }
}

/// [`update_parameters`](super::update_parameters) by a state that is in the memory of the parameters'
/// device. It comes back with the update counted, if it was applied: the next step needs a new norm of
/// the gradients and new losses, and, if they change, a new rate and scale.
///
/// On a GPU with kernels of this crate nothing is read back, and numbers are computed in f32 and not in f64:
/// weights differ by some 1e-7 of a step. Elsewhere the state is read first.
///
/// # Panics
/// As [`update_parameters`](super::update_parameters), and if a number of the step is not one.
#[track_caller]
pub fn update_on_device(
    rule: &UpdateRule,
    clip: Clip,
    step: DeviceStep,
    updates: Vec<ParameterUpdate>,
) -> (DeviceStep, Vec<ParameterUpdate>) {
    for update in &updates {
        check(rule, update);
    }
    for (name, number, several) in step.numbers() {
        let [found] = number.dims();
        assert!(
            found == 1 || several && found > 1,
            "the {name} of an optimizer step on the device is [{found}] in {:?}; it must be [1]{} in F32",
            number.dtype(),
            if several { " or more" } else { "" }
        );
    }
    #[cfg(feature = "cube")]
    if !updates.is_empty()
        && super::gpu::takes(
            updates
                .iter()
                .flat_map(ParameterUpdate::tensors)
                .chain(step.numbers().map(|(_, number, _)| number)),
        )
    {
        return on_gpu(*rule, clip, step, updates);
    }
    let state = step.read();
    let updates = super::update_parameters(rule, clip, &state, updates);
    let counted = if state.found_infinite() { 0.0 } else { 1.0 };
    (DeviceStep { updates: step.updates + counted, ..step }, updates)
}

/// How a loss scale follows from overflows: `torch.amp.GradScaler`, with a floor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleRule {
    /// Factor after as many good steps as `interval`; a scale that it would make infinite stays.
    pub growth: f32,
    /// Factor after gradients that are not finite.
    pub backoff: f32,
    /// Good steps between two rises; exact up to 2²⁴.
    pub interval: u32,
    /// What no overflow brings it below.
    pub floor: f32,
}

/// A loss scale and the good steps since it last changed, after a step whose gradients have this squared norm, without
/// waiting for it; on a GPU with kernels of this crate in one launch.
///
/// # Shapes
/// - scale, good steps, squared norm: `[1]` in f32 and in no graph
///
/// # Panics
/// If one is not one number; the message holds shape and type.
#[track_caller]
pub fn rescale_on_device(
    rule: &ScaleRule,
    [scale, good_steps]: [Tensor<1>; 2],
    squared_norm: &Tensor<1>,
) -> [Tensor<1>; 2] {
    let given = [("scale", &scale), ("good steps", &good_steps), ("squared norm", squared_norm)];
    for (name, number) in given {
        assert!(
            number.dims() == [1],
            "the {name} of a loss scale on the device is {:?} in {:?}; it must be [1] in F32",
            number.dims(),
            number.dtype()
        );
    }
    #[cfg(feature = "cube")]
    if super::gpu::takes(given.into_iter().map(|(_, number)| number)) {
        use crate::cube::{OptimizerOps, ScaleState};

        let [scale, good_steps, norm] =
            [scale, good_steps, squared_norm.clone()].map(Tensor::into_dispatch);
        let after = <burn::backend::Dispatch as OptimizerOps>::firebox_rescale(
            scale, good_steps, norm, *rule,
        );
        let ScaleState { scale, good_steps } = after;
        return [scale, good_steps].map(Tensor::from_dispatch);
    }
    let found = squared_norm.clone().is_finite().bool_not();
    let good_steps = good_steps + 1.0;
    let rises = good_steps.clone().equal_elem(f64::from(rule.interval));
    let grown = scale.clone() * rule.growth;
    let grows = rises.clone().bool_and(grown.clone().is_finite());
    let fallen = (scale.clone() * rule.backoff).clamp_min(rule.floor);
    let scale = scale.mask_where(grows, grown).mask_where(found.clone(), fallen);
    [scale, good_steps.mask_fill(rises.bool_or(found), 0.0)]
}

/// [`approach`](super::approach) by a share that is in the memory of the tensors' device, `[1]` in f32. Where it
/// is 0, the means come back as they are, whatever the values.
///
/// On a GPU with kernels of this crate nothing is read back. Elsewhere the share is read first.
///
/// # Shapes
/// As [`approach`](super::approach).
///
/// # Panics
/// As [`approach`](super::approach), and if the share is not one number.
#[track_caller]
pub fn approach_on_device(
    means: Vec<Tensor<1>>,
    values: &[&Tensor<1>],
    share: Tensor<1>,
) -> Vec<Tensor<1>> {
    super::check_pairs("a moving average", ["mean", "value"], &means, values);
    assert!(
        share.dims() == [1],
        "the share of a moving average on the device is {:?} in {:?}; it must be [1] in F32",
        share.dims(),
        share.dtype()
    );
    if !has_kernels(&share.device()) {
        let share = f64::from(share.into_scalar::<f32>());
        return if share == 0.0 { means } else { super::approach(means, values, share) };
    }
    #[cfg(feature = "cube")]
    if super::gpu::combines(means.iter().chain(values.iter().copied()))
        && share.dtype() == DType::F32
        && !share.is_autodiff()
        && means.first().is_some_and(|mean| mean.device() == share.device())
    {
        return super::gpu::combine(means, values, share, Combination::HeldMean);
    }
    let moves = share.clone().equal_elem(0.0).bool_not();
    let each = means.into_iter().zip(values).map(|(mean, value)| {
        let size = mean.dims();
        // Burn expands nothing to nothing.
        if size == [0] {
            return mean;
        }
        let moved = mean.clone() + ((*value).clone() - mean.clone()) * share.clone();
        mean.mask_where(moves.clone().expand(size), moved)
    });
    each.collect()
}

impl DeviceStep {
    /// What is in the memory of the device, with its name, and whether there may be several.
    fn numbers(&self) -> impl Iterator<Item = (&'static str, &Tensor<1>, bool)> {
        [
            ("learning rate", &self.learning_rate, true),
            ("loss scale", &self.loss_scale, false),
            ("squared norm", &self.squared_norm, false),
            ("count of updates", &self.updates, false),
        ]
        .into_iter()
        .chain(self.losses.iter().map(|losses| ("loss", losses, true)))
    }
}

#[cfg(feature = "cube")]
impl DeviceConstants {
    /// Those of the updates, `[parameters, 3]`: as they are there, if they are.
    fn of(&mut self, updates: &[ParameterUpdate], device: &Device) -> Tensor<2> {
        let rows = updates.iter().flat_map(|update| {
            [update.rate as f32, update.weight_decay as f32, update.missed as f32]
        });
        let rows: Vec<f32> = rows.collect();
        match &self.0 {
            Some((known, tensor)) if *known == rows && tensor.device() == *device => tensor.clone(),
            _ => {
                let data = TensorData::new(rows.clone(), [updates.len(), 3]);
                let tensor = Tensor::from_data(data, (device, DType::F32));
                self.0 = Some((rows, tensor.clone()));
                tensor
            }
        }
    }
}

#[cfg(feature = "cube")]
fn on_gpu(
    rule: UpdateRule,
    clip: Clip,
    mut step: DeviceStep,
    mut updates: Vec<ParameterUpdate>,
) -> (DeviceStep, Vec<ParameterUpdate>) {
    use crate::cube::{OptimizerOps, StepNumbers, StepSettings};

    let (norm, limit) = match clip {
        Clip::Never => (f32::MAX, f32::MAX),
        Clip::Norm(norm) => (norm as f32, f32::MAX),
        Clip::Value(limit) => (f32::MAX, limit as f32),
    };
    let constants = step.constants.of(&updates, &step.updates.device());
    let counted = <burn::backend::Dispatch as OptimizerOps>::firebox_step_numbers(
        step.learning_rate.clone().into_dispatch(),
        step.loss_scale.clone().into_dispatch(),
        step.squared_norm.clone().into_dispatch(),
        step.losses.as_ref().unwrap_or(&step.squared_norm).clone().into_dispatch(),
        step.updates.into_dispatch(),
        constants.into_dispatch(),
        StepSettings { rule, norm, limit, known: step.known },
    );
    let StepNumbers { numbers, updates: counted } = counted;
    super::gpu::by_numbers(&rule, Tensor::from_dispatch(numbers), &mut updates);
    (DeviceStep { updates: Tensor::from_dispatch(counted), ..step }, updates)
}
