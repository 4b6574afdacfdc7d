//! Layer normalisation on a GPU: one launch forward, two back. See [`rows`](super::rows) for the kernels.

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
use burn_cubecl::cubecl::{calculate_cube_count_elemwise, prelude::*};
use burn_cubecl::kernel::into_contiguous;

use super::device::{self, without_cores};
use super::rows::{fold, normalise, normalise_back};
use super::tensors::{empty, hand_on, rows_of, work_on};
use super::watch::launching;
use crate::cuts::{self, Spread};

/// How a normalisation is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormSettings {
    pub(crate) epsilon: f32,
    /// Whether there is a shift; a stand-in of its shape is given otherwise.
    pub(crate) shifted: bool,
}

/// The result, and what the backward pass needs besides the inputs.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) struct Normalised<B: Backend> {
    /// In the shape of the input.
    pub(crate) y: FloatTensor<B>,
    /// Means and one over the deviations in f32, `[2, rows]`.
    pub(crate) moments: FloatTensor<B>,
}

/// The gradients.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) struct NormGradients<B: Backend> {
    pub(crate) x: FloatTensor<B>,
    pub(crate) gamma: FloatTensor<B>,
    pub(crate) beta: FloatTensor<B>,
}

/// Layer normalisation of `x`, `[..., width]`, by `gamma` and `beta`, `[width]`, all of one type.
#[backend_extension(Cube, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait NormOps: Backend {
    /// The differentiable operation.
    #[fusion(default)]
    fn firebox_layer_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        settings: NormSettings,
    ) -> FloatTensor<Self> {
        Self::firebox_normalise(x, gamma, beta, settings).y
    }

    /// The forward pass.
    #[fusion(meta = |x, _gamma, _beta, _settings| normalised(x))]
    fn firebox_normalise(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        settings: NormSettings,
    ) -> Normalised<Self>;

    /// The backward pass.
    #[fusion(meta = |_d, x, gamma, _moments| gradients(x, gamma))]
    fn firebox_normalise_back(
        d: FloatTensor<Self>,
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        moments: FloatTensor<Self>,
    ) -> NormGradients<Self>;
}

#[cfg(feature = "fusion")]
fn normalised(x: &TensorSpec) -> NormalisedMetadata {
    let (rows, _) = rows_of(&x.shape);
    NormalisedMetadata { y: x.clone(), moments: TensorSpec::new([2, rows].into(), DType::F32) }
}

#[cfg(feature = "fusion")]
fn gradients(x: &TensorSpec, gamma: &TensorSpec) -> NormGradientsMetadata {
    NormGradientsMetadata { x: x.clone(), gamma: gamma.clone(), beta: gamma.clone() }
}

/// Whether a device has the shared memory for the backward pass over rows of this width.
pub(crate) fn norm_fits(client: &Client, width: usize) -> bool {
    cuts::norm_fits(&without_cores(client), width)
}

impl NormOps for CubeBackend {
    fn firebox_normalise(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        NormSettings { epsilon, shifted }: NormSettings,
    ) -> Normalised<Self> {
        let [x, gamma, beta] = [x, gamma, beta].map(into_contiguous);
        let (rows, width) = rows_of(&x.shape());
        let (client, dtype) = (x.client.clone(), x.dtype);
        let Spread { team, blocks, cubes } = Spread::new(&without_cores(&client), rows, width);
        let y = empty(&x, x.shape(), dtype);
        let moments = empty(&x, [2, rows], DType::F32);
        // SAFETY: the kernel compares rows and columns with the sizes of `x`, which `y` has too, and from
        // which the moments were allocated; gamma and beta are as wide (`layer_norm` has checked).
        let launch = || unsafe {
            normalise::launch_unchecked(
                &client,
                device::count([cubes, 1]),
                device::dim(team.dim()),
                x.clone().into_buffer_arg(),
                gamma.into_buffer_arg(),
                beta.into_buffer_arg(),
                y.clone().into_buffer_arg(),
                moments.clone().into_buffer_arg(),
                rows as u32,
                blocks as u32,
                epsilon,
                width,
                shifted,
                team,
                dtype_to_storage_type(dtype),
            );
        };
        launching(|| work_on("layer normalisation", &x, 8, 2), launch);
        Normalised { y, moments }
    }

    fn firebox_normalise_back(
        d: FloatTensor<Self>,
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        moments: FloatTensor<Self>,
    ) -> NormGradients<Self> {
        let [d, x, gamma, moments] = [d, x, gamma, moments].map(into_contiguous);
        let (rows, width) = rows_of(&x.shape());
        let (client, dtype) = (x.client.clone(), x.dtype);
        let Spread { team, blocks, cubes } = Spread::summed(&without_cores(&client), rows, width);
        let dx = empty(&x, x.shape(), dtype);
        let sums = empty(&x, [cubes, 2, width], DType::F32);
        let d_gamma = empty(&x, [width], dtype);
        let d_beta = empty(&x, [width], dtype);
        // SAFETY: as for the forward kernel; each cube writes sums of its own.
        let launch = || unsafe {
            normalise_back::launch_unchecked(
                &client,
                device::count([cubes, 1]),
                device::dim(team.dim()),
                d.into_buffer_arg(),
                x.clone().into_buffer_arg(),
                gamma.into_buffer_arg(),
                moments.into_buffer_arg(),
                dx.clone().into_buffer_arg(),
                sums.clone().into_buffer_arg(),
                rows as u32,
                blocks as u32,
                width,
                team,
                dtype_to_storage_type(dtype),
            );
        };
        launching(|| work_on("layer normalisation, gradients", &x, 16, 3), launch);
        let dim = CubeDim::new(&client, 2 * width);
        // SAFETY: the kernel compares every index with the width and the number of cubes.
        let launch = || unsafe {
            fold::launch_unchecked(
                &client,
                calculate_cube_count_elemwise(&client, 2 * width, dim),
                dim,
                sums.clone().into_buffer_arg(),
                d_gamma.clone().into_buffer_arg(),
                d_beta.clone().into_buffer_arg(),
                cubes as u32,
                width as u32,
                dtype_to_storage_type(dtype),
            );
        };
        launching(|| work_on("layer normalisation, sums", &sums, 1, 1), launch);
        NormGradients { x: dx, gamma: d_gamma, beta: d_beta }
    }
}

/// What the gradient is computed from.
#[derive(Clone, Debug)]
struct Tape<B: Backend> {
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    moments: FloatTensor<B>,
}

#[derive(Debug)]
struct Layer;

impl<B: NormOps> Backward<B, 3> for Layer {
    type State = Tape<B>;

    fn backward(self, ops: Ops<Tape<B>, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        hand_on::<B, _, _, 3>(ops, grads, |d, Tape { x, gamma, moments }| {
            let NormGradients { x, gamma, beta } = B::firebox_normalise_back(d, x, gamma, moments);
            [x, gamma, beta]
        });
    }
}

impl<B: NormOps, C: CheckpointStrategy> NormOps for Autodiff<B, C> {
    fn firebox_layer_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        settings: NormSettings,
    ) -> FloatTensor<Self> {
        let [(x, x_guard), (gamma, gamma_guard), (beta, beta_guard)] =
            [x, gamma, beta].map(|tensor| tensor.into_parts());
        let guards = [x_guard, gamma_guard, beta_guard];
        let (tape_x, tape_gamma) = (x.clone(), gamma.clone());
        let Normalised { y, moments } = B::firebox_normalise(x, gamma, beta, settings);
        match Layer.prepare::<C>(guards).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                prep.finish(Tape { x: tape_x, gamma: tape_gamma, moments }, y)
            }
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn firebox_normalise(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: NormSettings,
    ) -> Normalised<Self> {
        unreachable!("the passes are called below the graph, by `firebox_layer_norm`")
    }

    fn firebox_normalise_back(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
    ) -> NormGradients<Self> {
        unreachable!("the gradient of a gradient is not defined here")
    }
}
