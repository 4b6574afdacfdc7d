//! Optimizer steps over all parameters of a model at once.
//!
//! On Burn's CPU backend in f32, a step is two passes over memory by all threads: one that reads the
//! gradients and finds their norm ([`squared_norm`]), and one that reads gradients, moments and
//! weights and writes moments and weights in the memory that they have ([`update_parameters`]).
//! Unscaling, clipping and decay happen on the way. A tensor that somebody else holds as well is
//! copied first, so that nobody sees it change. On a GPU with kernels of this crate, the norm and a
//! step are a few launches for all parameters, in the memory that they have, too, and so are running sums and means
//! ([`add_scaled`], [`approach`]). Elsewhere the
//! same formulas are composed of Burn's operations, one parameter after another.
//!
//! All that changes from step to step comes in one plain struct, [`StepState`], or stays in the memory
//! of the device as a [`DeviceStep`], so that the host waits for nothing and a captured graph of launches
//! can be replayed; the rule and the parameters' own numbers are constants of a run.
//!
//! Nothing here knows a module, a schedule or a file.

mod composed;
mod device;
#[cfg(feature = "cube")]
mod gpu;

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Tensor, TensorData};

use crate::cpu::{self, CpuKernels};
use crate::device::{flex, is_flex, own};
use crate::operands::{Operand, alike, listed, operand, types};
use crate::profile::kernel_span;

pub use device::{
    DeviceConstants, DeviceStep, ScaleRule, approach_on_device, rescale_on_device, update_on_device,
};

type Primitive = FloatTensor<Flex>;

/// What changes from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct StepState {
    /// Learning rate.
    pub learning_rate: f64,
    /// Factor that the loss was multiplied with before its gradients were computed; above 0.
    pub loss_scale: f64,
    /// Squared L2 norm of all gradients as they are, not yet unscaled. If it is not finite, some
    /// gradient is not, and an update changes nothing.
    pub squared_norm: f64,
    /// Updates that were applied before this one.
    pub updates: u64,
}

impl StepState {
    /// Global L2 norm of the unscaled gradients.
    pub fn norm(&self) -> f64 {
        self.squared_norm.sqrt() / self.loss_scale
    }

    /// Whether some gradient is not finite.
    pub fn found_infinite(&self) -> bool {
        !self.squared_norm.is_finite()
    }
}

/// What is done to gradients that are too large, after they were unscaled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Clip {
    /// Nothing.
    #[default]
    Never,
    /// All are scaled down together so that their global L2 norm is at most this:
    /// `torch.nn.utils.clip_grad_norm_`.
    Norm(f64),
    /// Each number is brought into the interval from minus this to this:
    /// `torch.nn.utils.clip_grad_value_`.
    Value(f64),
}

/// How parameters follow from gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UpdateRule {
    /// Adam with decoupled weight decay, as `torch.optim.AdamW` computes it. Source: Loshchilov and
    /// Hutter, "Decoupled weight decay regularization", 2019.
    ///
    /// ```text
    /// θ ← θ · (1 − lr·λ)
    /// m ← m + (1 − β₁)·(g − m)          v ← β₂·v + (1 − β₂)·g²
    /// θ ← θ − lr/(1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + ε)
    /// ```
    AdamW {
        /// Decay of the running means of the gradient and of its square.
        betas: [f64; 2],
        /// Added to the root of the second moment.
        eps: f64,
    },
    /// Stochastic gradient descent, as `torch.optim.SGD` computes it. Source: Sutskever et al., "On
    /// the importance of initialization and momentum in deep learning", 2013.
    ///
    /// ```text
    /// g ← g + λ·θ          b ← μ·b + (1 − d)·g, at first b ← g
    /// θ ← θ − lr·b, or with Nesterov's momentum θ ← θ − lr·(g + μ·b)
    /// ```
    Sgd {
        /// μ; with 0 there is no `b`.
        momentum: f64,
        /// d
        dampening: f64,
        /// Whether the gradient is taken as if the momentum had been followed already.
        nesterov: bool,
    },
}

impl UpdateRule {
    /// Running means that are kept of each parameter.
    pub fn moments(&self) -> usize {
        match self {
            Self::AdamW { .. } => 2,
            Self::Sgd { momentum, .. } => usize::from(*momentum != 0.0),
        }
    }
}

/// A parameter with all that its update needs. All tensors are `[elements]` and in no graph.
#[derive(Clone, Debug)]
pub struct ParameterUpdate {
    /// θ
    pub parameter: Tensor<1>,
    /// g, scaled by the loss scale.
    pub gradient: Tensor<1>,
    /// As many as the rule keeps: m and v, or b. Zeros at first.
    pub moments: Vec<Tensor<1>>,
    /// How many of [`StepState::updates`] passed this parameter by, because it was frozen.
    pub missed: u64,
    /// Factor on the learning rate.
    pub rate: f64,
    /// λ
    pub weight_decay: f64,
}

impl ParameterUpdate {
    fn operands(&self) -> impl Iterator<Item = Operand<'_>> + Clone {
        let moments = self.moments.iter().map(|moment| operand("moment", moment));
        let both = [operand("parameter", &self.parameter), operand("gradient", &self.gradient)];
        both.into_iter().chain(moments)
    }

    fn tensors(&self) -> impl Iterator<Item = &Tensor<1>> {
        [&self.parameter, &self.gradient].into_iter().chain(&self.moments)
    }
}

/// The squared L2 norm of gradients: known at once where the host computes it, else still on the
/// device.
#[derive(Clone, Debug)]
pub enum SquaredNorm {
    /// In f64; finite exactly if every gradient is.
    Known(f64),
    /// One `[1]` for all gradients or for each, to be read and added up. It is an f32 and overflows where the
    /// norm, with the loss scale, is above 1.8e19: such gradients count as infinite though none of them is, and
    /// a dynamic loss scale falls until they do not.
    Pending(Vec<Tensor<1>>),
}

/// The squared L2 norm of all gradients together, which also tells whether all are finite.
///
/// # Shapes
/// - gradients: each `[elements]`, in no graph
pub fn squared_norm(gradients: &[&Tensor<1>]) -> SquaredNorm {
    if let Some(kernels) = kernels_for(gradients.iter().copied()) {
        let inside: Vec<Primitive> =
            gradients.iter().map(|g| flex((*g).clone()).to_contiguous()).collect();
        let slices: Vec<&[f32]> = inside.iter().map(|gradient| gradient.storage()).collect();
        let numbers: usize = slices.iter().map(|gradient| gradient.len()).sum();
        let _span = kernel_span!("norm of the gradients", [numbers], 0, numbers, false);
        return SquaredNorm::Known(cpu::squares(kernels, &slices));
    }
    #[cfg(feature = "cube")]
    if gpu::takes(gradients.iter().copied()) {
        return SquaredNorm::Pending(vec![gpu::squared_norm(gradients)]);
    }
    /// The CPU backend sums a tensor of more elements than this in an order that depends on its
    /// threads.
    const AT_ONCE: usize = 1 << 20;
    let square = |gradient: &&Tensor<1>| {
        let [size] = gradient.dims();
        // In f16 a square ends at a gradient of 255.
        let gradient = match gradient.dtype() {
            DType::F16 | DType::BF16 => (*gradient).clone().cast(DType::F32),
            _ => (*gradient).clone(),
        };
        let squares = gradient.square();
        if size <= AT_ONCE {
            return squares.sum();
        }
        let parts = squares.split(AT_ONCE, 0).into_iter().map(|part| part.sum()).collect();
        Tensor::cat(parts, 0).sum()
    };
    match gradients.is_empty() {
        true => SquaredNorm::Known(0.0),
        false => SquaredNorm::Pending(gradients.iter().map(square).collect()),
    }
}

/// Updates parameters and moments by their gradients. If a gradient is not finite, all come back as
/// they are: the caller then counts no update.
///
/// # Panics
/// If the tensors of a parameter differ in size, type or device, or are not as many as the rule needs, and for AdamW in
/// f16 or bf16: squares of gradients below 2.4e-4 are zeros in f16, by which its steps are divided, and in bf16 their
/// running mean stands still, as a thousandth of it is less than half a unit of its last digit. The message holds the
/// shapes and types.
#[track_caller]
pub fn update_parameters(
    rule: &UpdateRule,
    clip: Clip,
    state: &StepState,
    mut updates: Vec<ParameterUpdate>,
) -> Vec<ParameterUpdate> {
    if state.found_infinite() {
        return updates;
    }
    for update in &updates {
        check(rule, update);
    }
    let prepare = preparation(clip, state);
    match kernels_for(updates.iter().flat_map(ParameterUpdate::tensors)) {
        Some(kernels) => fused(kernels, rule, prepare, state, &mut updates),
        None => elsewhere(rule, prepare, state, &mut updates),
    }
    updates
}

/// Where the CPU kernels do not run: in GPU kernels, else composed.
fn elsewhere(
    rule: &UpdateRule,
    prepare: cpu::Prepare,
    state: &StepState,
    updates: &mut [ParameterUpdate],
) {
    #[cfg(feature = "cube")]
    if gpu::takes(updates.iter().flat_map(ParameterUpdate::tensors)) {
        let numbers = |update: &ParameterUpdate| match *rule {
            UpdateRule::AdamW { betas, eps } => {
                gpu::adamw_row(adamw_numbers(betas, eps, prepare, state, update)).to_vec()
            }
            UpdateRule::Sgd { momentum, dampening, nesterov } => {
                let of = [momentum, dampening];
                gpu::descent_row(sgd_numbers(of, nesterov, prepare, state, update)).to_vec()
            }
        };
        let numbers = updates.iter().flat_map(numbers).collect();
        return gpu::by_host(rule, numbers, updates);
    }
    for update in updates {
        composed::update(rule, prepare, state, update);
    }
}

/// `sums + values · factor`, in the memory of the sums.
///
/// # Shapes
/// - sums and values: as many of each, the n-th of both `[elements of the n-th]`, in no graph
///
/// # Panics
/// If there are more of one, or if the n-th of both differ in size, type or device; the message holds the shapes and
/// types.
#[track_caller]
pub fn add_scaled(sums: Vec<Tensor<1>>, values: &[&Tensor<1>], factor: f64) -> Vec<Tensor<1>> {
    check_pairs("a scaled sum", ["sum", "value"], &sums, values);
    combine(sums, values, factor, false)
}

/// `means + (values − means) · share`, in the memory of the means: a step of exponential moving
/// averages, of `torch.optim.swa_utils`. Keep means in f32, and cast to it what they follow: in f16 and bf16 one
/// stands still where it would move by less than half a unit of its last digit, with a share of a thousandth almost
/// everywhere.
///
/// # Shapes
/// - means and values: as many of each, the n-th of both `[elements of the n-th]`, in no graph
///
/// # Panics
/// As [`add_scaled`].
#[track_caller]
pub fn approach(means: Vec<Tensor<1>>, values: &[&Tensor<1>], share: f64) -> Vec<Tensor<1>> {
    check_pairs("a moving average", ["mean", "value"], &means, values);
    combine(means, values, share, true)
}

/// Refuses tensors that do not go together with what changes them.
#[track_caller]
fn check_pairs(operation: &str, [one, other]: [&str; 2], to: &[Tensor<1>], from: &[&Tensor<1>]) {
    assert!(
        to.len() == from.len(),
        "{operation} was given {} tensors named {one} and {} named {other}; there must be as many of both",
        to.len(),
        from.len()
    );
    for (place, (to, from)) in to.iter().zip(from).enumerate() {
        let operands = [operand(one, to), operand(other, *from)];
        alike(operation, operands);
        assert!(
            to.dims() == from.dims(),
            "{operation} was given {} at place {place}; both must have as many elements",
            listed(operands)
        );
    }
}

fn combine(to: Vec<Tensor<1>>, from: &[&Tensor<1>], factor: f64, towards: bool) -> Vec<Tensor<1>> {
    let Some(kernels) = kernels_for(to.iter().chain(from.iter().copied())) else {
        #[cfg(feature = "cube")]
        if gpu::combines(to.iter().chain(from.iter().copied())) {
            return gpu::combine_by_host(to, from, factor, towards);
        }
        let each = to.into_iter().zip(from).map(|(to, from)| match towards {
            false => to + (*from).clone() * factor,
            true => to.clone() + ((*from).clone() - to) * factor,
        });
        return each.collect();
    };
    let mut to: Vec<Primitive> = to.into_iter().map(|to| own(flex(to))).collect();
    let from: Vec<Primitive> =
        from.iter().map(|from| flex((*from).clone()).to_contiguous()).collect();
    let work = to.iter_mut().zip(&from).map(|(to, from)| {
        let (to, from) = (to.storage_mut::<f32>(), from.storage::<f32>());
        cpu::AddWork { to, from, factor: factor as f32, towards }
    });
    cpu::sweep(kernels, work.collect());
    to.into_iter().map(Tensor::from_primitive::<Flex>).collect()
}

/// The variant that takes all of these tensors, if there is one.
fn kernels_for<'a>(mut tensors: impl Iterator<Item = &'a Tensor<1>>) -> Option<CpuKernels> {
    let kernels = CpuKernels::fused()?;
    tensors.all(|tensor| is_flex(tensor) && !tensor.is_autodiff()).then_some(kernels)
}

#[track_caller]
fn check(rule: &UpdateRule, update: &ParameterUpdate) {
    alike("an update of a parameter", update.operands());
    let dtype = update.parameter.dtype();
    let lost = match (rule, dtype) {
        (UpdateRule::AdamW { .. }, DType::F16) => Some("no room for the squares of gradients"),
        (UpdateRule::AdamW { .. }, DType::BF16) => {
            Some("too few digits for the running mean of squares of gradients")
        }
        _ => None,
    };
    if let Some(lost) = lost {
        panic!(
            "AdamW was given a parameter in {dtype:?}, which has {lost}: keep parameters, gradients and moments in F32, \
             and cast what the model computes with ({})",
            types(update.operands())
        );
    }
    let ([parameter], [gradient]) = (update.parameter.dims(), update.gradient.dims());
    let moments = update.moments.iter().map(|moment| moment.dims()[0]);
    assert!(
        gradient == parameter
            && moments.len() == rule.moments()
            && moments.clone().all(|moment| moment == parameter),
        "a parameter of {parameter} elements has a gradient of {gradient} and moments of \
         {:?}: all must have as many elements, and the rule keeps {} moments ({})",
        moments.collect::<Vec<_>>(),
        rule.moments(),
        types(update.operands())
    );
}

fn preparation(clip: Clip, state: &StepState) -> cpu::Prepare {
    let unscale = 1.0 / state.loss_scale;
    let (factor, limit) = match clip {
        Clip::Never => (unscale, f64::INFINITY),
        Clip::Norm(limit) => {
            let shrink = limit / (state.norm() + 1e-6);
            (if shrink < 1.0 { unscale * shrink } else { unscale }, f64::INFINITY)
        }
        Clip::Value(limit) => (unscale, limit),
    };
    cpu::Prepare { factor: factor as f32, limit: limit as f32 }
}

/// The `t` of a parameter's update, from 1.
fn count(state: &StepState, update: &ParameterUpdate) -> i32 {
    let count = (state.updates + 1).saturating_sub(update.missed).max(1);
    count.min(i32::MAX as u64) as i32
}

/// Numbers of one parameter's step, computed in f64.
fn adamw_numbers(
    [beta1, beta2]: [f64; 2],
    eps: f64,
    prepare: cpu::Prepare,
    state: &StepState,
    update: &ParameterUpdate,
) -> cpu::AdamW {
    let (t, rate) = (count(state, update), state.learning_rate * update.rate);
    cpu::AdamW {
        prepare,
        keep: (1.0 - rate * update.weight_decay) as f32,
        first: (1.0 - beta1) as f32,
        second: [beta2 as f32, (1.0 - beta2) as f32],
        correction: (1.0 - beta2.powi(t)).sqrt() as f32,
        eps: eps as f32,
        step_size: (rate / (1.0 - beta1.powi(t))) as f32,
    }
}

fn sgd_numbers(
    [momentum, dampening]: [f64; 2],
    nesterov: bool,
    prepare: cpu::Prepare,
    state: &StepState,
    update: &ParameterUpdate,
) -> cpu::Sgd {
    let take = if count(state, update) == 1 { 1.0 } else { 1.0 - dampening };
    cpu::Sgd {
        prepare,
        decay: update.weight_decay as f32,
        momentum: momentum as f32,
        take: take as f32,
        nesterov,
        rate: (state.learning_rate * update.rate) as f32,
    }
}

/// The insides of one parameter's tensors.
struct Inside {
    parameter: Primitive,
    gradient: Primitive,
    moments: Vec<Primitive>,
}

fn fused(
    kernels: CpuKernels,
    rule: &UpdateRule,
    prepare: cpu::Prepare,
    state: &StepState,
    updates: &mut [ParameterUpdate],
) {
    let placeholder = Tensor::<1>::from_primitive::<Flex>(Primitive::from_data(TensorData::new(
        Vec::<f32>::new(),
        [0],
    )));
    let mut insides: Vec<Inside> = updates
        .iter_mut()
        .map(|update| Inside {
            parameter: own(flex(std::mem::replace(&mut update.parameter, placeholder.clone()))),
            gradient: flex(update.gradient.clone()).to_contiguous(),
            moments: update.moments.drain(..).map(|moment| own(flex(moment))).collect(),
        })
        .collect();
    let numbers: usize = insides.iter().map(|inside| inside.gradient.storage::<f32>().len()).sum();
    // Weight and moments are read and written, the gradient is read.
    let moments = insides.first().map_or(0, |inside| inside.moments.len());
    let _span = kernel_span!("optimizer step", [numbers], 0, numbers * (3 + 2 * moments), false);
    match *rule {
        UpdateRule::AdamW { betas, eps } => {
            let work = insides.iter_mut().zip(updates.iter()).filter_map(|(inside, update)| {
                let [first, second] = inside.moments.as_mut_slice() else { return None };
                Some(cpu::AdamWWork {
                    weights: inside.parameter.storage_mut(),
                    gradient: inside.gradient.storage(),
                    first: first.storage_mut(),
                    second: second.storage_mut(),
                    step: adamw_numbers(betas, eps, prepare, state, update),
                })
            });
            cpu::sweep(kernels, work.collect());
        }
        UpdateRule::Sgd { momentum, dampening, nesterov } => {
            let work = insides.iter_mut().zip(updates.iter()).map(|(inside, update)| {
                let moment = inside.moments.first_mut();
                cpu::SgdWork {
                    weights: inside.parameter.storage_mut(),
                    gradient: inside.gradient.storage(),
                    momentum: moment.map_or(&mut [], |moment| moment.storage_mut()),
                    step: sgd_numbers([momentum, dampening], nesterov, prepare, state, update),
                }
            });
            cpu::sweep(kernels, work.collect());
        }
    }
    for (update, inside) in updates.iter_mut().zip(insides) {
        update.parameter = Tensor::from_primitive::<Flex>(inside.parameter);
        update.moments = inside.moments.into_iter().map(Tensor::from_primitive::<Flex>).collect();
    }
}
