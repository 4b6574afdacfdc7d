//! Batch normalisation as one operation, forward and backward, with what often follows it, and the
//! module with its running statistics.

mod running;

use std::cell::Cell;

#[cfg(feature = "cube")]
use burn::backend::Dispatch;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex};
use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor, TensorData};
use firebox_core::Stream;

use crate::cpu::{self, Affine, CpuKernels, Epilogue, Mask, Normalised, Statistics, Steps};
#[cfg(feature = "cube")]
use crate::cube::{BatchMoments, BatchNormOps, BatchNormSettings, batch_norm_fits};
#[cfg(feature = "cube")]
use crate::cuts::GpuKernels;
use crate::device::{flex, flex_in_graph, is_flex, tied};
use crate::dropout::{check, scale};
use crate::inference::plain;
use crate::operands::{alike, operand, together, types};
use crate::profile::kernel_span;
use crate::rounded::{cast, exact_type};
use crate::scoped::while_set;
use crate::{dropout, max_pool1d};

pub use running::RunningStatistic;

type Primitive = FloatTensor<Flex>;

/// As messages name it.
const OPERATION: &str = "batch normalisation";

thread_local! {
    /// What is taken in place of the momentum of each [`BatchNorm`], all of which are in training then.
    static MOMENTUM: Cell<Option<f64>> = const { Cell::new(None) };
}

/// Runs a function in which every [`BatchNorm`] on this thread is one in training, also where nothing wants a gradient, and
/// moves its running statistics by this share, between 0 and 1, in place of its own momentum. Over batches of more than
/// one row with 1, 1/2, 1/3 and so on they become the mean of those of the batches, whatever they were before:
/// PyTorch's `momentum=None`, with which `torch.optim.swa_utils.update_bn` fits them to averaged weights. A batch of
/// one row moves nothing and uses up its share, so that what is there already counts for a batch more; as the first
/// one it would leave a part of what was there before.
///
/// What a thread of rayon's takes up while it waits for others within this is under it, too: where models are trained
/// side by side, let each have a pool of its own.
pub fn with_batch_statistics<T>(momentum: f64, f: impl FnOnce() -> T) -> T {
    while_set(&MOMENTUM, Some(momentum), f)
}

/// Settings of a [`BatchNorm`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormConfig {
    /// Channels, the width of the last axis.
    pub channels: usize,
    /// What is added to the variance.
    pub epsilon: f64,
    /// Share of a batch's statistics in the running ones, between 0 and 1.
    pub momentum: f64,
}

impl BatchNormConfig {
    /// A normalisation of so many channels.
    pub fn new(channels: usize) -> Self {
        Self { channels, epsilon: 1e-5, momentum: 0.1 }
    }

    /// The module with scale 1, shift 0, running mean 0 and running variance 1.
    pub fn init(&self, device: &Device) -> BatchNorm {
        let Self { channels, epsilon, momentum } = *self;
        BatchNorm {
            gamma: Param::from_tensor(Tensor::ones([channels], device)),
            beta: Param::from_tensor(Tensor::zeros([channels], device)),
            running_mean: RunningStatistic::new(Tensor::zeros([channels], device)),
            running_var: RunningStatistic::new(Tensor::ones([channels], device)),
            epsilon,
            momentum,
        }
    }
}

/// Normalises each channel to mean 0 and variance 1 over all samples and steps, then scales and shifts
/// it. Source: Ioffe and Szegedy, 2015.
///
/// In training, that is while the scale wants a gradient, mean and (biased) variance are those of the
/// batch, and the running ones move towards them, the variance towards the unbiased one, as in
/// PyTorch; otherwise the running ones are used. They are for a batch of one row, too, which has no variance (PyTorch
/// refuses it), and stay as they are.
///
/// Unlike burn-nn's module of that name, the running statistics are saved with the parameters, named
/// `running_mean` and `running_var`, are complete after every forward pass, and belong to this module
/// and its clones until one of them is changed by [`Module::map`]. Optimizers have no gradient for
/// them and leave them alone.
#[derive(Module, Debug)]
pub struct BatchNorm {
    /// Scale, `[channel]`; PyTorch's `weight`.
    pub gamma: Param<Tensor<1>>,
    /// Shift, `[channel]`; PyTorch's `bias`.
    pub beta: Param<Tensor<1>>,
    /// Mean of past batches, `[channel]`.
    pub running_mean: RunningStatistic,
    /// Unbiased variance of past batches, `[channel]`.
    pub running_var: RunningStatistic,
    epsilon: f64,
    momentum: f64,
}

/// What follows a normalisation in the same pass over memory, in the order of the fields.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormEpilogue {
    /// Whether negative values become zero.
    pub rectify: bool,
    /// The maximum of so many neighbouring steps, at least 1: [`max_pool1d`] with
    /// this kernel and stride.
    pub pool: usize,
    /// Probability of dropout.
    pub dropout: f64,
}

impl NormEpilogue {
    const NONE: Self = Self { rectify: false, pool: 1, dropout: 0.0 };
}

impl BatchNorm {
    /// Normalises.
    ///
    /// # Shapes
    /// - x and the result: `[batch, time, channel]`
    ///
    /// # Panics
    /// If `x`, gamma, beta and the running statistics differ in their number of channels or in device, or in type
    /// where it is composed of Burn's operations; the message holds the shapes and types. The kernels of a GPU take
    /// parameters and statistics of another type than `x`, and those of a processor statistics of any in evaluation.
    #[track_caller]
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.forward_with(x, NormEpilogue::NONE, None)
    }

    /// [`forward`](Self::forward) followed by rectifier, maximum and dropout, on Burn's CPU backend in
    /// f32 in one pass over memory (two in training, the first for the statistics). On GPUs with kernels of
    /// this crate, statistics and running ones are two launches, normalisation and rectifier one, and there
    /// are three back, summed in f32 in every type; maximum and dropout follow apart. Composed of Burn's
    /// operations, f16 and bf16 are normalised in f32, too. Without a stream there is no dropout.
    ///
    /// # Shapes
    /// - x: `[batch, time, channel]`
    /// - the result: `[batch, time / pool, channel]`
    ///
    /// # Panics
    /// As [`forward`](Self::forward), and if `pool` is zero or `dropout` not in `[0, 1]`.
    #[track_caller]
    pub fn forward_with(
        &self,
        x: Tensor<3>,
        epilogue: NormEpilogue,
        stream: Option<Stream>,
    ) -> Tensor<3> {
        let (shape, [channels], [shifts]) = (x.dims(), self.gamma.dims(), self.beta.dims());
        let (gamma, beta) = (self.gamma.val(), self.beta.val());
        let [running_mean, running_var] =
            [&self.running_mean, &self.running_var].map(RunningStatistic::value);
        let ([means], [variances]) = (running_mean.dims(), running_var.dims());
        let operands = [
            operand("x", &x),
            operand("gamma", &gamma),
            operand("beta", &beta),
            operand("running mean", &running_mean),
            operand("running variance", &running_var),
        ];
        assert!(
            [shifts, means, variances, shape[2]] == [channels; 4] && epilogue.pool > 0,
            "batch normalisation of {shape:?} ([batch, time, channel]) by gamma [{channels}] and beta [{shifts}], \
             running mean [{means}] and variance [{variances}], with a maximum of {} steps: the channels must be \
             the same, the steps at least 1 ({})",
            epilogue.pool,
            types(operands)
        );
        together(OPERATION, operands);
        check(epilogue.dropout, operand("x", &x));
        let on_cpu = is_flex(&x) && is_flex(&gamma) && is_flex(&beta);
        let [samples, time, width] = shape;
        if on_cpu && samples * time * width == 0 {
            let shape = [samples, time / epilogue.pool, width];
            let nothing = Tensor::zeros(shape, (&x.device(), x.dtype()));
            return tied(tied(tied(nothing, &x), &gamma), &beta);
        }
        let some = samples * width * (time / epilogue.pool) > 0;
        match CpuKernels::fused().filter(|_| on_cpu && some) {
            Some(kernels) => {
                if self.is_by_batch(samples * time) {
                    alike(OPERATION, operands);
                }
                self.fused(kernels, x, epilogue, stream)
            }
            None => self.elsewhere(x, epilogue, stream),
        }
    }

    /// Where the CPU kernels do not run: in GPU kernels, else composed.
    #[track_caller]
    fn elsewhere(&self, x: Tensor<3>, epilogue: NormEpilogue, stream: Option<Stream>) -> Tensor<3> {
        #[cfg(feature = "cube")]
        if self.takes(&x) {
            return follow(self.on_gpu(x, epilogue.rectify), epilogue, stream);
        }
        self.composed(x, epilogue, stream)
    }

    /// Whether the kernels of a GPU take this input and the parameters, whose types may differ.
    #[cfg(feature = "cube")]
    fn takes(&self, x: &Tensor<3>) -> bool {
        let (device, [_, _, width]) = (x.device().without_autodiff(), x.dims());
        let there = |one: &Tensor<1>| one.device().without_autodiff() == device;
        (1..=i32::MAX as usize).contains(&x.shape().num_elements())
            && [self.gamma.val(), self.beta.val()].iter().all(there)
            && [&self.running_mean, &self.running_var]
                .map(RunningStatistic::value)
                .iter()
                .all(|one| there(one) && one.dims() == [width])
            && GpuKernels::takes(&device, x.dtype())
                .is_ok_and(|client| batch_norm_fits(&client, width))
    }

    /// Normalisation and rectifier in the kernels of a GPU.
    #[cfg(feature = "cube")]
    fn on_gpu(&self, x: Tensor<3>, rectify: bool) -> Tensor<3> {
        let exact = |tensor: Tensor<1>| match tensor.dtype() {
            DType::F32 => tensor,
            _ => tensor.cast(DType::F32),
        };
        let [samples, time, _] = x.dims();
        let from_batch = self.is_by_batch(samples * time);
        let moments = if from_batch {
            let plain = if x.is_autodiff() { x.clone().inner() } else { x.clone() };
            self.running_mean.change_with(&self.running_var, |mean, variance| {
                let types = [mean.dtype(), variance.dtype()];
                let found = <Dispatch as BatchNormOps>::firebox_batch_moments(
                    plain.into_dispatch(),
                    exact(mean).into_dispatch(),
                    exact(variance).into_dispatch(),
                    self.momentum() as f32,
                );
                let BatchMoments { moments, running_mean, running_var } = found;
                let [mean, variance] = [running_mean, running_var].map(Tensor::<1>::from_dispatch);
                let moved = (mean.cast(types[0]), variance.cast(types[1]));
                (moved, Tensor::<2>::from_dispatch(moments))
            })
        } else {
            let running =
                [&self.running_mean, &self.running_var].map(|statistic| exact(statistic.value()));
            Tensor::<1>::stack::<2>(running.to_vec(), 0)
        };
        let [gamma, beta] = [&self.gamma, &self.beta].map(|parameter| exact(parameter.val()));
        let epsilon = self.epsilon as f32;
        Tensor::from_dispatch(<Dispatch as BatchNormOps>::firebox_batch_norm(
            x.into_dispatch(),
            gamma.into_dispatch(),
            beta.into_dispatch(),
            moments.into_dispatch(),
            BatchNormSettings { epsilon, from_batch, rectify },
        ))
    }

    /// Share of a batch's statistics in the running ones.
    fn momentum(&self) -> f64 {
        MOMENTUM.get().unwrap_or(self.momentum)
    }

    /// Whether the statistics of the batch are used.
    fn is_training(&self) -> bool {
        MOMENTUM.get().is_some() || self.gamma.is_require_grad()
    }

    /// Whether so many rows are normalised by their own mean and variance: one row alone has a variance of zero, which
    /// would leave nothing of it, and move the running one towards nothing.
    fn is_by_batch(&self, rows: usize) -> bool {
        self.is_training() && rows != 1
    }

    /// Moves the running statistics towards the mean and the biased variance of a batch of so many
    /// rows; those of a channel stay as they are where the batch's are not finite, or theirs would not be, of which
    /// PyTorch's would never recover. Mean and variance have one type, and the running ones keep theirs.
    fn update(&self, mean: Tensor<1>, variance: Tensor<1>, rows: usize) {
        let unbiased = rows as f64 / (rows.max(2) - 1) as f64;
        let momentum = self.momentum();
        let finite = mean.clone().is_finite().bool_and(variance.clone().is_finite());
        let moved = |running: Tensor<1>, batch: Tensor<1>| {
            let exact = cast(running.clone(), batch.dtype());
            let moved = cast(exact * (1.0 - momentum) + batch * momentum, running.dtype());
            let finite = finite.clone().bool_and(moved.clone().is_finite());
            running.mask_where(finite, moved)
        };
        self.running_mean.change(|running| moved(running, mean));
        self.running_var.change(|running| moved(running, variance * unbiased));
    }

    #[track_caller]
    fn composed(&self, x: Tensor<3>, epilogue: NormEpilogue, stream: Option<Stream>) -> Tensor<3> {
        let running = [&self.running_mean, &self.running_var].map(RunningStatistic::value);
        alike(
            OPERATION,
            [
                operand("x", &x),
                operand("gamma", &self.gamma.val()),
                operand("beta", &self.beta.val()),
                operand("running mean", &running[0]),
                operand("running variance", &running[1]),
            ],
        );
        let [samples, time, width] = x.dims();
        let given = x.dtype();
        let exact = exact_type(given);
        let rows = cast(x.reshape([samples * time, width]), exact);
        let (mean, variance) = if self.is_by_batch(samples * time) && samples * time > 0 {
            let mean = rows.clone().mean_dim(0);
            let variance = (rows.clone() - mean.clone()).square().mean_dim(0);
            let plain = |x: &Tensor<2>| x.clone().detach().inner().reshape([width]);
            self.update(plain(&mean), plain(&variance), samples * time);
            (mean, variance)
        } else {
            let row = |one: &RunningStatistic| cast(one.value(), exact).reshape([1, width]);
            (row(&self.running_mean), row(&self.running_var))
        };
        let [gamma, beta] =
            [&self.gamma, &self.beta].map(|p| cast(p.val(), exact).reshape([1, width]));
        let y = (rows - mean) / (variance + self.epsilon).sqrt() * gamma + beta;
        let y = cast(y, given).reshape([samples, time, width]);
        let y = if epilogue.rectify { burn::tensor::activation::relu(y) } else { y };
        follow(y, epilogue, stream)
    }

    fn fused(
        &self,
        kernels: CpuKernels,
        x: Tensor<3>,
        epilogue: NormEpilogue,
        stream: Option<Stream>,
    ) -> Tensor<3> {
        let [samples, time, width] = x.dims();
        let NormEpilogue { rectify, pool, dropout } = epilogue;
        let mask = stream.filter(|_| dropout > 0.0);
        let mask = mask.map(|stream| Mask::new(dropout, scale(dropout), stream));
        let op = Op {
            kernels,
            steps: Steps { samples, time, width },
            epilogue: Epilogue { rectify, pool, mask },
            from_batch: self.is_by_batch(samples * time),
        };
        let (gamma, beta) = (self.gamma.val(), self.beta.val());
        let tracked = x.is_autodiff() || gamma.is_autodiff() || beta.is_autodiff();
        if !tracked {
            let x = flex(x).to_contiguous();
            let affine = self.affine(op, &flex(gamma), &flex(beta), Some(&x));
            return Tensor::from_primitive::<Flex>(op.run(&x, &affine));
        }
        let (x, x_guard) = flex_in_graph(x).into_parts();
        let [(gamma, gamma_guard), (beta, beta_guard)] =
            [flex_in_graph(gamma), flex_in_graph(beta)].map(|tensor| tensor.into_parts());
        let x = x.to_contiguous();
        let prepared = Normal
            .prepare::<NoCheckpointing>([x_guard, gamma_guard, beta_guard])
            .compute_bound()
            .stateful();
        let affine = self.affine(op, &gamma, &beta, Some(&x));
        let y = op.run(&x, &affine);
        Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
            OpsKind::Tracked(prepared) => prepared.finish(Tape { op, x, affine }, y),
            OpsKind::UnTracked(prepared) => prepared.finish(y),
        })
    }

    /// The normalisation by the statistics of the batch, which the running ones then take in, or by
    /// the running ones.
    fn affine(
        &self,
        op: Op,
        gamma: &Primitive,
        beta: &Primitive,
        batch: Option<&Primitive>,
    ) -> Affine {
        let statistics = match batch.filter(|_| op.from_batch) {
            Some(x) => {
                let statistics = cpu::statistics(op.kernels, x.storage::<f32>(), op.steps.width);
                let device = Device::flex();
                let tensor = |values: &[f32]| Tensor::<1>::from_data(values, (&device, DType::F32));
                let [mean, variance] = [&statistics.mean, &statistics.variance].map(|v| tensor(v));
                self.update(mean, variance, op.steps.samples * op.steps.time);
                statistics
            }
            None => self.running(),
        };
        self.affine_of(statistics, gamma, beta)
    }

    fn affine_of(&self, statistics: Statistics, gamma: &Primitive, beta: &Primitive) -> Affine {
        let (gamma, beta) = (gamma.to_contiguous(), beta.to_contiguous());
        Affine::new(statistics, gamma.storage::<f32>(), beta.storage::<f32>(), self.epsilon)
    }

    fn running(&self) -> Statistics {
        let [mean, variance] =
            [&self.running_mean, &self.running_var].map(|statistic| values(statistic.value()));
        Statistics { mean, variance }
    }

    /// The normalisation by the running statistics, where the CPU kernels take its parameters and no gradient is
    /// wanted of them.
    pub(crate) fn without_gradients(&self) -> Option<Affine> {
        let (gamma, beta) = (self.gamma.val(), self.beta.val());
        let fits = plain(&gamma) && plain(&beta) && !self.is_training();
        fits.then(|| self.affine_of(self.running(), &flex(gamma), &flex(beta)))
    }
}

/// What follows a normalisation and its rectifier.
fn follow(y: Tensor<3>, epilogue: NormEpilogue, stream: Option<Stream>) -> Tensor<3> {
    let y = match epilogue.pool {
        1 => y,
        pool => max_pool1d(y, pool, pool, 0),
    };
    dropout(y, epilogue.dropout, stream)
}

/// The numbers of a tensor in no graph, copied as they are where the CPU kernels read it.
fn values(tensor: Tensor<1>) -> Vec<f32> {
    match is_flex(&tensor) {
        true => flex(tensor).to_contiguous().storage::<f32>().to_vec(),
        false => tensor.into_data().iter::<f32>().collect(),
    }
}

/// What the CPU kernels compute.
#[derive(Clone, Copy, Debug)]
struct Op {
    kernels: CpuKernels,
    steps: Steps,
    epilogue: Epilogue,
    from_batch: bool,
}

impl Op {
    fn run(&self, x: &Primitive, affine: &Affine) -> Primitive {
        let Self { kernels, steps, epilogue, .. } = *self;
        let Steps { samples, time, width } = steps;
        let numbers = 2 * samples * time * width;
        let _span = kernel_span!("batch normalisation", [samples, time, width], 0, numbers, false);
        let y = cpu::normalise(kernels, steps, x.storage::<f32>(), affine, epilogue);
        Primitive::from_data(TensorData::new(y, [samples, time / epilogue.pool, width]))
    }
}

/// What the gradients are computed from.
#[derive(Clone, Debug)]
struct Tape {
    op: Op,
    x: Primitive,
    affine: Affine,
}

#[derive(Debug)]
struct Normal;

impl Backward<Flex, 3> for Normal {
    type State = Tape;

    fn backward(self, ops: Ops<Tape, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<Flex>(&ops.node).to_contiguous();
        let Tape { op, x, affine } = ops.state;
        let Op { kernels, steps, epilogue, from_batch } = op;
        let Steps { samples, time, width } = steps;
        let [to_x, to_gamma, to_beta] = ops.parents;
        let of = Normalised { x: x.storage::<f32>(), affine: &affine, epilogue, from_batch };
        let d = d.storage::<f32>();
        let _span = kernel_span!(
            "batch normalisation, gradients",
            [samples, time, width],
            0,
            3 * samples * time * width,
            false
        );
        let gradients = cpu::batch_norm_backward(kernels, steps, of, d, to_x.is_some());
        if let (Some(parent), Some(dx)) = (to_x, gradients.x) {
            let dx = Primitive::from_data(TensorData::new(dx, [samples, time, width]));
            grads.register::<Flex>(parent.id, dx);
        }
        for (parent, values) in [(to_gamma, gradients.gamma), (to_beta, gradients.beta)] {
            if let Some(parent) = parent {
                let values = Primitive::from_data(TensorData::new(values, [width]));
                grads.register::<Flex>(parent.id, values);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
mod tests;
