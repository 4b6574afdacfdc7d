//! Losses as one operation each, with gradients derived by hand.
//!
//! Every loss is a mean by weights, and comes with the sum of these weights: so batches can be
//! averaged by what their losses are means of. What has no weight is not read, whatever it holds, but for rows with label
//! smoothing, of which all classes have a part; where nothing has a weight, the loss is 0 and so is its gradient.
//!
//! On Burn's CPU backend a loss in training is one pass in which the gradient takes the place of the
//! logits or predictions, if nobody else holds them (else of a copy); the backward pass has nothing
//! left to do but to multiply it by the loss scale. On a GPU with kernels of this crate, a loss is one
//! launch, too, and one for the sum. Elsewhere the same formulas are composed of Burn's operations. All are computed in f32, whatever the type of the logits.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex};
use burn::tensor::{DType, Tensor, TensorData};

use crate::cpu::{self, CpuKernels, Element};
use crate::device::{flex, flex_in_graph, is_flex, own};
use crate::operands::{on_one_device, operand};

mod composed;
#[cfg(feature = "cube")]
mod gpu;
mod masked;

pub use masked::masked_squared_error;

type Primitive = FloatTensor<Flex>;

/// A mean with the weight that it stands for.
#[derive(Clone, Debug)]
pub struct MeanLoss {
    /// The mean by weights, `[1]`.
    pub value: Tensor<1>,
    /// The sum of the weights: 0 if there was nothing to learn from.
    pub weight: f64,
}

/// A loss that cannot be computed from what was given.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LossError {
    /// The number of targets or weights does not fit.
    #[error(
        "{found} {what} were given for {shape:?}; there must be {allowed} (logits or predictions are in \
         {dtype:?})"
    )]
    Count {
        /// Targets or weights.
        what: &'static str,
        /// How many.
        found: usize,
        /// Shape of the logits or predictions.
        shape: Vec<usize>,
        /// Type of the logits or predictions.
        dtype: DType,
        /// How many fit.
        allowed: String,
    },
    /// Targets that are not where the logits or predictions are.
    #[error(
        "a loss takes operands on one device, but was given {predictions}, {targets}: move the targets first, \
         as in `targets.to_device(&predictions.device())`"
    )]
    Device {
        /// Shape, type and device of the logits or predictions.
        predictions: String,
        /// Those of the targets.
        targets: String,
    },
    /// A target that names no class.
    #[error(
        "the target of row {row} is {found}, and there are {classes} classes: it must be 0 to {}, or \
         {ignored} for a row to be passed over",
        classes.saturating_sub(1)
    )]
    Class {
        /// The row.
        row: usize,
        /// Its target.
        found: i64,
        /// Classes.
        classes: usize,
        /// The target of rows that are passed over.
        ignored: i64,
    },
    /// A setting out of its range.
    #[error("`{key}` of a loss is {found}; it must be {allowed}")]
    Setting {
        /// The setting.
        key: &'static str,
        /// Its value.
        found: f64,
        /// The values that it may have.
        allowed: &'static str,
    },
}

fn setting(
    key: &'static str,
    found: f64,
    fits: bool,
    allowed: &'static str,
) -> Result<(), LossError> {
    if fits { Ok(()) } else { Err(LossError::Setting { key, found, allowed }) }
}

fn weights_fit(what: &'static str, weights: Option<&[f32]>) -> Result<(), LossError> {
    let bad = weights.into_iter().flatten().find(|weight| !(weight.is_finite() && **weight >= 0.0));
    let found = f64::from(bad.copied().unwrap_or_default());
    setting(what, found, bad.is_none(), "finite and 0 or more")
}

/// Settings of [`cross_entropy`].
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy<'a> {
    /// Share of each target that is spread evenly over all classes, from 0 to 1. Source: Szegedy et
    /// al., 2016.
    pub label_smoothing: f64,
    /// Weight of each class, 0 or more; none: 1.
    pub class_weights: Option<&'a [f32]>,
    /// Weight of each row, 0 or more; none: 1.
    pub sample_weights: Option<&'a [f32]>,
    /// The target of rows that are passed over.
    pub ignore_index: i64,
    /// Exponent γ of the factor `(1 - p)^γ` by which rows that are told well count less; 0: none.
    /// Not together with smoothing. Source: Lin et al., "Focal loss for dense object detection",
    /// 2017.
    pub focal: f64,
}

impl Default for CrossEntropy<'_> {
    fn default() -> Self {
        Self {
            label_smoothing: 0.0,
            class_weights: None,
            sample_weights: None,
            ignore_index: -100,
            focal: 0.0,
        }
    }
}

/// Softmax and cross-entropy: `torch.nn.functional.cross_entropy` with the mean as its reduction.
///
/// With `p` the softmax of a row and `t` its target, the loss of the row is `-ln p_t`, smoothed and
/// weighted as PyTorch does. The mean is taken by the weight of the row times that of its target's
/// class. Where PyTorch gives NaN because all rows are passed over, this gives 0 with a weight of 0.
///
/// # Shapes
/// - logits: `[rows, classes]`
/// - targets, sample weights: one for each row
/// - class weights: one for each class
///
/// # Errors
/// If a target names no class, or a number of targets or weights or a setting does not fit; the message holds shape and
/// type of the logits.
pub fn cross_entropy(
    logits: Tensor<2>,
    targets: &[i64],
    config: &CrossEntropy<'_>,
) -> Result<MeanLoss, LossError> {
    let rows = rows(&logits, targets, config)?;
    if logits.dims()[1] == 0 {
        // No target names a class of none, so all rows are passed over.
        return Ok(MeanLoss { value: in_f32(logits).sum(), weight: 0.0 });
    }
    let weight: f64 = rows
        .iter()
        .map(|row| {
            row.weight * config.class_weights.map_or(1.0, |w| f64::from(w[row.class as usize]))
        })
        .sum();
    // Without a weight, smoothing would still learn from the rows.
    let share = |row: f64| if weight > 0.0 { row / weight } else { 0.0 };
    let mean = |row: &cpu::Row| cpu::Row { weight: share(row.weight), ..*row };
    let rows: Vec<cpu::Row> = rows.iter().map(mean).collect();
    let logits = in_f32(logits);
    let settings = cpu::CrossEntropy {
        class_weights: config.class_weights,
        smoothing: config.label_smoothing,
        focal: config.focal,
    };
    let value = match kernels(&logits) {
        None => elsewhere(logits, &rows, settings),
        Some(kernels) => {
            let [_, classes] = logits.dims();
            fused(logits, |logits, wanted| {
                cpu::cross_entropy(kernels, settings, (logits, wanted), classes, &rows)
            })
        }
    };
    Ok(MeanLoss { value, weight })
}

/// Where the CPU kernels do not run: in GPU kernels, else composed.
fn elsewhere(logits: Tensor<2>, rows: &[cpu::Row], settings: cpu::CrossEntropy<'_>) -> Tensor<1> {
    #[cfg(feature = "cube")]
    if gpu::takes(&logits) {
        return gpu::cross_entropy(logits, rows, settings);
    }
    composed::cross_entropy(logits, rows, settings)
}

/// The sum of the losses of single numbers over that of their weights, where the CPU kernels do not run: in GPU
/// kernels, else composed.
fn elements_elsewhere(
    kind: Element<'_>,
    [predictions, targets]: [Tensor<1>; 2],
    width: usize,
    weights: Option<&[f32]>,
    sum: f64,
) -> Tensor<1> {
    #[cfg(feature = "cube")]
    if gpu::takes_elements(&predictions) {
        return gpu::elements(kind, [predictions, targets], width, weights, sum);
    }
    composed::elements(kind, predictions, targets, width, weights) / sum
}

/// The sums of weights whose reciprocals, and what they are multiplied with, are numbers of f32.
const SUMS: (f64, f64) = (1e-30, 1e30);

/// What a sum of weights divides by.
fn divisor(weight: f64) -> f64 {
    if weight > 0.0 { weight } else { 1.0 }
}

/// Rows with their own weights; 0 for those that are passed over.
fn rows(
    logits: &Tensor<2>,
    targets: &[i64],
    config: &CrossEntropy<'_>,
) -> Result<Vec<cpu::Row>, LossError> {
    let [count, classes] = logits.dims();
    let counts = [
        ("targets", targets.len(), count),
        ("sample weights", config.sample_weights.map_or(count, <[f32]>::len), count),
        ("class weights", config.class_weights.map_or(classes, <[f32]>::len), classes),
    ];
    for (what, found, allowed) in counts {
        if found != allowed {
            let (shape, dtype) = (vec![count, classes], logits.dtype());
            let allowed = allowed.to_string();
            return Err(LossError::Count { what, found, shape, dtype, allowed });
        }
    }
    let smoothing = config.label_smoothing;
    setting("label_smoothing", smoothing, (0.0..=1.0).contains(&smoothing), "from 0 to 1")?;
    let focal = config.focal;
    setting("focal", focal, focal >= 0.0 && focal.is_finite(), "0 or more")?;
    setting("focal", focal, focal == 0.0 || smoothing == 0.0, "0 where there is label smoothing")?;
    weights_fit("class_weights", config.class_weights)?;
    weights_fit("sample_weights", config.sample_weights)?;
    let one = |(row, target): (usize, &i64)| {
        if *target == config.ignore_index {
            return Ok(cpu::Row { class: 0, weight: 0.0 });
        }
        let class = u32::try_from(*target).ok().filter(|class| (*class as usize) < classes);
        let class = class.ok_or(LossError::Class {
            row,
            found: *target,
            classes,
            ignored: config.ignore_index,
        })?;
        let weight = config.sample_weights.map_or(1.0, |weights| f64::from(weights[row]));
        // With smoothing, the other classes have terms of their own.
        let of_class = config.class_weights.map(|weights| weights[class as usize]);
        let counts = of_class != Some(0.0) || smoothing > 0.0;
        Ok(cpu::Row { class, weight: if counts { weight } else { 0.0 } })
    };
    targets.iter().enumerate().map(one).collect()
}

/// Settings of [`binary_cross_entropy`].
#[derive(Clone, Copy, Debug, Default)]
pub struct BinaryCrossEntropy<'a> {
    /// Weight of the targets of 1 of each label, 0 or more; none: 1.
    pub positive_weights: Option<&'a [f32]>,
    /// Exponent of the focal factor, as in [`CrossEntropy::focal`]; 0: none.
    pub focal: f64,
}

/// Logistic function and cross-entropy of labels that do not exclude each other:
/// `torch.nn.functional.binary_cross_entropy_with_logits` with the mean as its reduction, and with a
/// focal factor `torchvision.ops.sigmoid_focal_loss`.
///
/// # Shapes
/// - logits, targets (from 0 to 1; they get no gradient): `[..., labels]`
/// - weights: one for each number, or one for all labels of each sample; none: 1
/// - positive weights: one for each label
///
/// # Errors
/// If the targets' shape or device, a number of weights or a setting does not fit; the message holds the shapes and
/// types.
pub fn binary_cross_entropy<const D: usize>(
    logits: Tensor<D>,
    targets: Tensor<D>,
    weights: Option<&[f32]>,
    config: &BinaryCrossEntropy<'_>,
) -> Result<MeanLoss, LossError> {
    let (focal, positive) = (config.focal, config.positive_weights);
    setting("focal", focal, focal >= 0.0 && focal.is_finite(), "0 or more")?;
    weights_fit("positive_weights", positive)?;
    let shape = logits.dims();
    if let Some(found) = positive.map(<[f32]>::len).filter(|found| *found != shape[D - 1]) {
        let (what, allowed) = ("positive weights", shape[D - 1].to_string());
        let (shape, dtype) = (shape.to_vec(), logits.dtype());
        return Err(LossError::Count { what, found, shape, dtype, allowed });
    }
    element_loss(Element::Binary { positive, focal }, logits, targets, weights)
}

/// Squared error: `Σ w·(x - t)² / Σ w`.
///
/// # Shapes
/// - predictions, targets (they get no gradient): `[..., width]`
/// - weights: one for each number, or one for each row of the last axis; none: 1. A mask is weights
///   of 1 and 0
///
/// # Errors
/// If the targets' shape or device or the number of weights does not fit, or one is negative; the message holds the
/// shapes and types.
pub fn squared_error<const D: usize>(
    predictions: Tensor<D>,
    targets: Tensor<D>,
    weights: Option<&[f32]>,
) -> Result<MeanLoss, LossError> {
    element_loss(Element::Squared, predictions, targets, weights)
}

/// Squared error near zero and linear beyond `delta`: `torch.nn.functional.huber_loss`, as a mean by
/// weights. Shapes are those of [`squared_error`].
///
/// # Errors
/// If `delta` is not above 0, the targets' shape or device or the number of weights does not fit, or one is negative; the
/// message holds the shapes and types.
pub fn huber<const D: usize>(
    predictions: Tensor<D>,
    targets: Tensor<D>,
    weights: Option<&[f32]>,
    delta: f64,
) -> Result<MeanLoss, LossError> {
    setting("delta", delta, delta > 0.0, "above 0")?;
    element_loss(Element::Huber { delta: delta as f32 }, predictions, targets, weights)
}

fn element_loss<const D: usize>(
    kind: Element<'_>,
    predictions: Tensor<D>,
    targets: Tensor<D>,
    weights: Option<&[f32]>,
) -> Result<MeanLoss, LossError> {
    let shape = predictions.dims();
    let (count, width) = (shape.iter().product::<usize>(), shape[D - 1]);
    let dtype = predictions.dtype();
    if targets.dims() != shape {
        let found = targets.dims().iter().product();
        let (dims, of) = (targets.dims(), targets.dtype());
        let (what, allowed) = ("targets", format!("one for each number, not {dims:?} in {of:?}"));
        return Err(LossError::Count { what, found, shape: shape.to_vec(), dtype, allowed });
    }
    let both = [operand("predictions", &predictions), operand("targets", &targets)];
    if !on_one_device(both.into_iter()) {
        let [predictions, targets] = both.map(|operand| operand.with_device());
        return Err(LossError::Device { predictions, targets });
    }
    let rows = count.checked_div(width).unwrap_or(0);
    if let Some(found) = weights.map(<[f32]>::len).filter(|n| *n != count && *n != rows) {
        let allowed = format!("{count}, one for each number, or {rows}, one for each row");
        let (what, shape) = ("weights", shape.to_vec());
        return Err(LossError::Count { what, found, shape, dtype, allowed });
    }
    weights_fit("weights", weights)?;
    let weight = match weights {
        None => count as f64,
        Some(weights) => {
            let sum: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
            if weights.len() == count { sum } else { sum * width as f64 }
        }
    };
    // What divides by so small or large a sum is no number of f32: the weights are brought to a sum of 1 before.
    let (least, most) = SUMS;
    let unusual = weights.filter(|_| weight > 0.0 && !(least..=most).contains(&weight));
    let brought: Option<Vec<f32>> = unusual
        .map(|weights| weights.iter().map(|one| (f64::from(*one) / weight) as f32).collect());
    let (weights, sum) = match &brought {
        Some(weights) => (Some(weights.as_slice()), 1.0),
        None => (weights, weight),
    };
    // Not `reshape`, to which a size of 0 is that of the axis at its place.
    let predictions = in_f32(predictions.flatten::<1>(0, D - 1));
    let targets = if targets.is_autodiff() { targets.inner() } else { targets };
    let targets = in_f32(targets.flatten::<1>(0, D - 1));
    let value = match kernels(&predictions).filter(|_| is_flex(&targets)) {
        None => elements_elsewhere(kind, [predictions, targets], width, weights, divisor(sum)),
        Some(kernels) => {
            let targets = flex(targets).to_contiguous();
            elements_fused(kernels, kind, predictions, targets.storage(), width, (weights, sum))
        }
    };
    Ok(MeanLoss { value, weight })
}

/// The sum of the losses of single numbers over that of their weights, by the CPU kernels.
fn elements_fused<const D: usize>(
    kernels: CpuKernels,
    kind: Element<'_>,
    predictions: Tensor<D>,
    targets: &[f32],
    width: usize,
    (weights, sum): (Option<&[f32]>, f64),
) -> Tensor<1> {
    let share = 1.0 / divisor(sum);
    fused(predictions, |predictions, _| {
        let kind = (kind, share as f32);
        cpu::elements(kernels, kind, predictions, targets, width, weights) * share
    })
}

fn in_f32<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    if tensor.dtype() == DType::F32 { tensor } else { tensor.cast(DType::F32) }
}

fn kernels<const D: usize>(tensor: &Tensor<D>) -> Option<CpuKernels> {
    CpuKernels::fused().filter(|_| is_flex(tensor) && tensor.shape().num_elements() > 0)
}

/// Runs a loss that puts its gradient in the place of its input, if it is told that one is wanted.
fn fused<const D: usize>(input: Tensor<D>, run: impl FnOnce(&mut [f32], bool) -> f64) -> Tensor<1> {
    let scalar = |value: f64| Primitive::from_data(TensorData::new(vec![value as f32], [1]));
    if !input.is_autodiff() {
        let mut input = own(flex(input));
        return Tensor::from_primitive::<Flex>(scalar(run(input.storage_mut(), false)));
    }
    let (input, guard) = flex_in_graph(input).into_parts();
    let prepared = Measured.prepare::<NoCheckpointing>([guard]).compute_bound().stateful();
    let mut gradient = own(input);
    let value = scalar(run(gradient.storage_mut(), true));
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => prepared.finish(gradient, value),
        OpsKind::UnTracked(prepared) => prepared.finish(value),
    })
}

#[derive(Debug)]
struct Measured;

impl Backward<Flex, 1> for Measured {
    /// The gradient of the loss.
    type State = Primitive;

    fn backward(self, ops: Ops<Primitive, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<Flex>(&ops.node).to_contiguous();
        let factor = d.storage::<f32>().first().copied().unwrap_or(0.0);
        let [parent] = ops.parents;
        if let Some(parent) = parent {
            let mut gradient = own(ops.state);
            cpu::scale(gradient.storage_mut(), factor);
            grads.register::<Flex>(parent.id, gradient);
        }
    }
}
