//! Batch normalisation on a GPU: two launches for the statistics of a batch and one for the
//! normalisation, three back. See [`columns`](super::columns) for the kernels.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::cubecl::dtype_to_storage_type;
#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, ExtensionType, TensorMetadata, backend_extension};
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::kernel::into_contiguous;

use super::columns::{apply, back, column_moments, fold_columns, gradient_sums, settle};
use super::device::{self, without_cores};
use super::tensors::{empty, hand_on, rows_of, work_on};
use super::watch::launching;
use crate::cuts::{self, Columns};

/// How a normalisation is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchNormSettings {
    pub(crate) epsilon: f32,
    /// Whether the moments are those of the batch, so that they have a part in its gradient.
    pub(crate) from_batch: bool,
    /// Whether negative results become zero.
    pub(crate) rectify: bool,
}

/// The statistics of a batch, and what the running ones become by it. All in f32.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) struct BatchMoments<B: Backend> {
    /// Mean and biased variance, `[2, channel]`.
    pub(crate) moments: FloatTensor<B>,
    /// `[channel]`
    pub(crate) running_mean: FloatTensor<B>,
    /// `[channel]`
    pub(crate) running_var: FloatTensor<B>,
}

/// The gradients.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) struct BatchNormGradients<B: Backend> {
    /// The gradient of the result, unread, where that of the input is not wanted.
    pub(crate) x: FloatTensor<B>,
    pub(crate) gamma: FloatTensor<B>,
    pub(crate) beta: FloatTensor<B>,
}

/// Batch normalisation of `x`, `[..., channel]`, over all its other axes; all but `x` in f32.
#[backend_extension(Cube, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait BatchNormOps: Backend {
    /// The statistics of a batch, which no gradient goes through here; the running ones, `[channel]`, are
    /// moved towards them by a share of `momentum`.
    #[fusion(meta = |x, running_mean, running_var, _momentum| batch_moments(x, running_mean, running_var))]
    fn firebox_batch_moments(
        x: FloatTensor<Self>,
        running_mean: FloatTensor<Self>,
        running_var: FloatTensor<Self>,
        momentum: f32,
    ) -> BatchMoments<Self>;

    /// The differentiable normalisation by `gamma` and `beta`, `[channel]`, and moments as in
    /// [`BatchMoments`].
    #[fusion(dtype = x, shape = x)]
    fn firebox_batch_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        moments: FloatTensor<Self>,
        settings: BatchNormSettings,
    ) -> FloatTensor<Self>;

    /// The backward pass. The gradient of the input is computed if it is wanted.
    #[allow(clippy::too_many_arguments, reason = "the macro takes tensors as arguments")]
    #[fusion(meta = |_d, x, gamma, _beta, _moments, _settings, _wanted| gradients(x, gamma))]
    fn firebox_batch_norm_back(
        d: FloatTensor<Self>,
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        moments: FloatTensor<Self>,
        settings: BatchNormSettings,
        wanted: bool,
    ) -> BatchNormGradients<Self>;
}

#[cfg(feature = "fusion")]
fn batch_moments(
    x: &TensorSpec,
    running_mean: &TensorSpec,
    running_var: &TensorSpec,
) -> BatchMomentsMetadata {
    let (_, width) = rows_of(&x.shape);
    BatchMomentsMetadata {
        moments: TensorSpec::new([2, width].into(), DType::F32),
        running_mean: running_mean.clone(),
        running_var: running_var.clone(),
    }
}

#[cfg(feature = "fusion")]
fn gradients(x: &TensorSpec, gamma: &TensorSpec) -> BatchNormGradientsMetadata {
    BatchNormGradientsMetadata { x: x.clone(), gamma: gamma.clone(), beta: gamma.clone() }
}

/// Whether a device can run the kernels for so many channels.
pub(crate) fn batch_norm_fits(client: &Client, width: usize) -> bool {
    cuts::batch_norm_fits(&without_cores(client), width)
}

/// Cubes of a launch.
fn count(columns: Columns) -> CubeCount {
    device::count([columns.blocks, columns.cubes])
}

impl BatchNormOps for CubeBackend {
    fn firebox_batch_moments(
        x: FloatTensor<Self>,
        running_mean: FloatTensor<Self>,
        running_var: FloatTensor<Self>,
        momentum: f32,
    ) -> BatchMoments<Self> {
        let [x, running_mean, running_var] = [x, running_mean, running_var].map(into_contiguous);
        let (rows, width) = rows_of(&x.shape());
        let client = x.client.clone();
        let columns = Columns::new(&without_cores(&client), rows, width);
        let parts = empty(&x, [columns.cubes, 3, width], DType::F32);
        // SAFETY: the kernel compares rows and columns with the sizes of `x`, and each cube writes a part
        // of its own.
        let launch = || unsafe {
            column_moments::launch_unchecked(
                &client,
                count(columns),
                device::dim(columns.team.dim()),
                x.clone().into_buffer_arg(),
                parts.clone().into_buffer_arg(),
                rows as u32,
                width,
                columns.team,
                dtype_to_storage_type(x.dtype),
            );
        };
        launching(|| work_on("batch normalisation, moments", &x, 5, 1), launch);
        let settled = empty(&x, [2, width], DType::F32);
        let new_mean = empty(&x, [width], DType::F32);
        let new_var = empty(&x, [width], DType::F32);
        // SAFETY: the kernel compares columns with the width, which all of its buffers have (`BatchNorm` has
        // checked the running ones), and cubes with the number that `parts` was allocated for.
        let launch = || unsafe {
            settle::launch_unchecked(
                &client,
                count(columns.alone()),
                device::dim(columns.team.dim()),
                parts.clone().into_buffer_arg(),
                running_mean.into_buffer_arg(),
                running_var.into_buffer_arg(),
                settled.clone().into_buffer_arg(),
                new_mean.clone().into_buffer_arg(),
                new_var.clone().into_buffer_arg(),
                columns.cubes as u32,
                momentum,
                width,
                columns.team,
            );
        };
        launching(|| work_on("batch normalisation, moments of all", &parts, 3, 1), launch);
        BatchMoments { moments: settled, running_mean: new_mean, running_var: new_var }
    }

    fn firebox_batch_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        moments: FloatTensor<Self>,
        BatchNormSettings { epsilon, rectify, .. }: BatchNormSettings,
    ) -> FloatTensor<Self> {
        let [x, gamma, beta, moments] = [x, gamma, beta, moments].map(into_contiguous);
        let (rows, width) = rows_of(&x.shape());
        let client = x.client.clone();
        let columns = Columns::new(&without_cores(&client), rows, width);
        let y = empty(&x, x.shape(), x.dtype);
        // SAFETY: the kernel compares rows and columns with the sizes of `x`, which `y` has too; moments,
        // gamma and beta are as wide (`BatchNorm` has checked them).
        let launch = || unsafe {
            apply::launch_unchecked(
                &client,
                count(columns),
                device::dim(columns.team.dim()),
                x.clone().into_buffer_arg(),
                moments.into_buffer_arg(),
                gamma.into_buffer_arg(),
                beta.into_buffer_arg(),
                y.clone().into_buffer_arg(),
                rows as u32,
                epsilon,
                rectify,
                width,
                columns.team,
                dtype_to_storage_type(x.dtype),
            );
        };
        launching(|| work_on("batch normalisation", &x, 3, 2), launch);
        y
    }

    fn firebox_batch_norm_back(
        d: FloatTensor<Self>,
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        moments: FloatTensor<Self>,
        BatchNormSettings { epsilon, from_batch, rectify }: BatchNormSettings,
        wanted: bool,
    ) -> BatchNormGradients<Self> {
        let [d, x, gamma, beta, moments] = [d, x, gamma, beta, moments].map(into_contiguous);
        let (rows, width) = rows_of(&x.shape());
        let client = x.client.clone();
        let columns = Columns::new(&without_cores(&client), rows, width);
        let dim = device::dim(columns.team.dim());
        let parts = empty(&x, [columns.cubes, 2, width], DType::F32);
        // SAFETY: as for the forward kernels; each cube writes a part of its own.
        let launch = || unsafe {
            gradient_sums::launch_unchecked(
                &client,
                count(columns),
                dim,
                d.clone().into_buffer_arg(),
                x.clone().into_buffer_arg(),
                moments.clone().into_buffer_arg(),
                gamma.clone().into_buffer_arg(),
                beta.clone().into_buffer_arg(),
                parts.clone().into_buffer_arg(),
                rows as u32,
                epsilon,
                rectify,
                width,
                columns.team,
                dtype_to_storage_type(x.dtype),
            );
        };
        launching(
            || work_on("batch normalisation, gradients of scale and shift", &x, 7, 2),
            launch,
        );
        let known = empty(&x, [4, width], DType::F32);
        let d_gamma = empty(&x, [width], DType::F32);
        let d_beta = empty(&x, [width], DType::F32);
        // SAFETY: the kernel compares columns with the width, which all of its buffers have, and cubes
        // with the number that `parts` was allocated for.
        let launch = || unsafe {
            fold_columns::launch_unchecked(
                &client,
                count(columns.alone()),
                dim,
                parts.clone().into_buffer_arg(),
                moments.into_buffer_arg(),
                known.clone().into_buffer_arg(),
                d_gamma.clone().into_buffer_arg(),
                d_beta.clone().into_buffer_arg(),
                columns.cubes as u32,
                width,
                columns.team,
            );
        };
        launching(|| work_on("batch normalisation, sums", &parts, 1, 1), launch);
        if !wanted {
            return BatchNormGradients { x: d, gamma: d_gamma, beta: d_beta };
        }
        let dx = empty(&x, x.shape(), x.dtype);
        // SAFETY: as for the forward kernels.
        let launch = || unsafe {
            back::launch_unchecked(
                &client,
                count(columns),
                dim,
                d.into_buffer_arg(),
                x.clone().into_buffer_arg(),
                known.into_buffer_arg(),
                gamma.into_buffer_arg(),
                beta.into_buffer_arg(),
                dx.clone().into_buffer_arg(),
                rows as u32,
                epsilon,
                from_batch,
                rectify,
                width,
                columns.team,
                dtype_to_storage_type(x.dtype),
            );
        };
        launching(|| work_on("batch normalisation, gradient", &x, 8, 3), launch);
        BatchNormGradients { x: dx, gamma: d_gamma, beta: d_beta }
    }
}

/// What the gradients are computed from.
#[derive(Clone, Debug)]
struct Tape<B: Backend> {
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: FloatTensor<B>,
    moments: FloatTensor<B>,
    settings: BatchNormSettings,
}

#[derive(Debug)]
struct Batch;

impl<B: BatchNormOps> Backward<B, 3> for Batch {
    type State = Tape<B>;

    fn backward(self, ops: Ops<Tape<B>, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let wanted = ops.parents[0].is_some();
        hand_on::<B, _, _, 3>(ops, grads, |d, Tape { x, gamma, beta, moments, settings }| {
            let BatchNormGradients { x, gamma, beta } =
                B::firebox_batch_norm_back(d, x, gamma, beta, moments, settings, wanted);
            [x, gamma, beta]
        });
    }
}

impl<B: BatchNormOps, C: CheckpointStrategy> BatchNormOps for Autodiff<B, C> {
    fn firebox_batch_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        moments: FloatTensor<Self>,
        settings: BatchNormSettings,
    ) -> FloatTensor<Self> {
        let [(x, x_guard), (gamma, gamma_guard), (beta, beta_guard)] =
            [x, gamma, beta].map(|tensor| tensor.into_parts());
        let (moments, _) = moments.into_parts();
        let guards = [x_guard, gamma_guard, beta_guard];
        let tape = Tape {
            x: x.clone(),
            gamma: gamma.clone(),
            beta: beta.clone(),
            moments: moments.clone(),
            settings,
        };
        let y = B::firebox_batch_norm(x, gamma, beta, moments, settings);
        match Batch.prepare::<C>(guards).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(tape, y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn firebox_batch_moments(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: f32,
    ) -> BatchMoments<Self> {
        unreachable!("statistics are taken outside of the graph")
    }

    fn firebox_batch_norm_back(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: BatchNormSettings,
        _: bool,
    ) -> BatchNormGradients<Self> {
        unreachable!("the gradient of a gradient is not defined here")
    }
}
