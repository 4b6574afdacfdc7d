//! Losses of single numbers on a GPU: one launch for losses and gradients, and where that takes more than one
//! cube, one for the sum. See [`element`](super::element) for the kernel.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata, backend_extension};
use burn::tensor::DType;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};

use super::device::{self, without_cores};
use super::element::{ElementKind, Formula, WeightsOf, elements};
use super::loss::Measured;
#[cfg(feature = "fusion")]
use super::loss::measured;
use super::tensors::{empty, hand_on, sum};
use super::watch::{LaunchedWork, launching};
use crate::cuts::{Sweep, Team};

/// How a loss of single numbers is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElementSettings {
    pub(crate) formula: Formula,
    pub(crate) weights: WeightsOf,
    /// Numbers of a row.
    pub(crate) width: usize,
    /// What one of a weight of 1 has in the mean.
    pub(crate) share: f32,
    /// Huber's distance, or the focal exponent.
    pub(crate) setting: f32,
}

/// Losses of predictions and targets, both `[count]` in f32, of 1 to 2^31 - 1 numbers.
///
/// # Shapes
/// - weights: `[count]` or `[count / width]`; positive: `[width]`; stand-ins where the settings have none
#[backend_extension(Cube, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait ElementOps: Backend {
    /// The differentiable operation; without a graph, the loss alone. `[1]`. Targets get no gradient.
    #[fusion(meta = |_x, _targets, _weights, _positive, _settings| TensorSpec::new([1].into(), DType::F32))]
    fn firebox_element_loss(
        predictions: FloatTensor<Self>,
        targets: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        positive: FloatTensor<Self>,
        settings: ElementSettings,
    ) -> FloatTensor<Self>;

    /// The loss with its gradient.
    #[fusion(meta = |predictions, _targets, _weights, _positive, _settings| measured(predictions))]
    fn firebox_measure_elements(
        predictions: FloatTensor<Self>,
        targets: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        positive: FloatTensor<Self>,
        settings: ElementSettings,
    ) -> Measured<Self>;
}

/// Runs the kernels. Without `keep`, the gradient is a stand-in of one element.
fn run(
    predictions: CubeTensor,
    targets: CubeTensor,
    weights: [CubeTensor; 2],
    settings: ElementSettings,
    keep: bool,
) -> Measured<CubeBackend> {
    let ElementSettings { formula, weights: weights_of, width, share, setting } = settings;
    let [predictions, targets] = [predictions, targets].map(into_contiguous);
    let [weights, positive] = weights.map(into_contiguous);
    let count = predictions.shape().num_elements();
    let client = predictions.client.clone();
    let hardware = without_cores(&client);
    let team = Team::whole(&hardware);
    let cubes = Sweep::new(&hardware, team, [count].into_iter()).cubes() as usize;
    let gradient = empty(&predictions, if keep { [count] } else { [1] }, DType::F32);
    let losses = empty(&predictions, [cubes], DType::F32);
    let (name, operations) = match formula {
        Formula::Squared => ("squared error", 5),
        Formula::Huber => ("Huber loss", 8),
        Formula::Binary { focused, .. } => ("binary cross-entropy", if focused { 50 } else { 25 }),
    };
    let reads = if weights_of == WeightsOf::Numbers { 3 } else { 2 };
    let work = || LaunchedWork {
        name,
        shape: vec![count / width, width],
        operations: (count * operations) as f64,
        bytes: (4 * count * (reads + usize::from(keep))) as f64,
        bf16: false,
    };
    // SAFETY: the kernel compares every index with `count`, which predictions, targets and the gradient have
    // where it is written, and each cube writes a sum of its own; there are as many weights as the settings
    // say (`element_loss` has checked all but the gradient).
    let launch = || unsafe {
        elements::launch_unchecked(
            &client,
            device::count([cubes, 1]),
            device::dim(team.dim()),
            predictions.clone().into_buffer_arg(),
            targets.into_buffer_arg(),
            weights.into_buffer_arg(),
            positive.into_buffer_arg(),
            gradient.clone().into_buffer_arg(),
            losses.clone().into_buffer_arg(),
            count as u32,
            width as u32,
            share,
            setting,
            ElementKind { formula, weights: weights_of, keep },
            team.threads(),
        );
    };
    launching(work, launch);
    Measured { value: if cubes == 1 { losses } else { sum(&losses) }, gradient }
}

impl ElementOps for CubeBackend {
    fn firebox_element_loss(
        predictions: FloatTensor<Self>,
        targets: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        positive: FloatTensor<Self>,
        settings: ElementSettings,
    ) -> FloatTensor<Self> {
        run(predictions, targets, [weights, positive], settings, false).value
    }

    fn firebox_measure_elements(
        predictions: FloatTensor<Self>,
        targets: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        positive: FloatTensor<Self>,
        settings: ElementSettings,
    ) -> Measured<Self> {
        run(predictions, targets, [weights, positive], settings, true)
    }
}

#[derive(Debug)]
struct Elements;

impl<B: ElementOps> Backward<B, 1> for Elements {
    /// The gradient of the loss.
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<FloatTensor<B>, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        hand_on::<B, _, _, 1>(ops, grads, |d, gradient| {
            [B::float_mul(gradient, B::float_reshape(d, [1].into()))]
        });
    }
}

impl<B: ElementOps, C: CheckpointStrategy> ElementOps for Autodiff<B, C> {
    fn firebox_element_loss(
        predictions: FloatTensor<Self>,
        targets: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        positive: FloatTensor<Self>,
        settings: ElementSettings,
    ) -> FloatTensor<Self> {
        let (x, guard) = predictions.into_parts();
        let [targets, weights, positive] =
            [targets, weights, positive].map(|one| one.into_parts().0);
        match Elements.prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let Measured { value, gradient } =
                    B::firebox_measure_elements(x, targets, weights, positive, settings);
                prep.finish(gradient, value)
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(B::firebox_element_loss(x, targets, weights, positive, settings))
            }
        }
    }

    fn firebox_measure_elements(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: ElementSettings,
    ) -> Measured<Self> {
        unreachable!("the pass is called below the graph, by `firebox_element_loss`")
    }
}
