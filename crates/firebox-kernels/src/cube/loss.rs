//! Softmax and cross-entropy on a GPU: one launch for losses and gradients, one for their sum. See
//! [`softmax`](super::softmax) for the kernel.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, ExtensionType, TensorMetadata, backend_extension};
use burn::tensor::DType;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};

use super::device::{self, without_cores};
use super::softmax::{Kind, cross_entropy};
use super::tensors::{empty, hand_on, sum};
use super::watch::{LaunchedWork, launching};
use crate::cuts::Spread;

/// How a cross-entropy is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntropySettings {
    /// Share of each target that is spread over all classes.
    pub(crate) smoothing: f32,
    /// Exponent of the focal factor; 0: none.
    pub(crate) focal: f32,
    /// Whether classes have weights; a stand-in is given otherwise.
    pub(crate) weighted: bool,
}

/// A loss with its gradient.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) struct Measured<B: Backend> {
    /// The sum of the losses by their weights, `[1]`.
    pub(crate) value: FloatTensor<B>,
    /// Its gradient, in the shape of the logits.
    pub(crate) gradient: FloatTensor<B>,
}

/// Cross-entropy of logits, `[rows, classes]` in f32.
///
/// # Shapes
/// - targets: `[rows]` in i32, each below the number of classes; weights: `[rows]`
/// - class_weights: `[classes]`
#[backend_extension(Cube, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait EntropyOps: Backend {
    /// The differentiable operation; without a graph, the loss alone. `[1]`.
    #[fusion(meta = |_x, _targets, _weights, _classes, _settings| TensorSpec::new([1].into(), DType::F32))]
    fn firebox_cross_entropy(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        weights: FloatTensor<Self>,
        class_weights: FloatTensor<Self>,
        settings: EntropySettings,
    ) -> FloatTensor<Self>;

    /// The loss with its gradient.
    #[fusion(meta = |logits, _targets, _weights, _classes, _settings| measured(logits))]
    fn firebox_measure(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        weights: FloatTensor<Self>,
        class_weights: FloatTensor<Self>,
        settings: EntropySettings,
    ) -> Measured<Self>;
}

#[cfg(feature = "fusion")]
pub(super) fn measured(logits: &TensorSpec) -> MeasuredMetadata {
    MeasuredMetadata { value: TensorSpec::new([1].into(), DType::F32), gradient: logits.clone() }
}

/// Runs the kernels. Without `keep`, the gradient is a stand-in of one element.
fn run(
    logits: CubeTensor,
    targets: CubeTensor,
    weights: [CubeTensor; 2],
    settings: EntropySettings,
    keep: bool,
) -> Measured<CubeBackend> {
    let [logits, targets] = [logits, targets].map(into_contiguous);
    let [weights, class_weights] = weights.map(into_contiguous);
    let [rows, classes] = logits.shape().dims();
    let client = logits.client.clone();
    let Spread { team, blocks, cubes } = Spread::new(&without_cores(&client), rows, classes);
    let gradient = empty(&logits, if keep { [rows, classes] } else { [1, 1] }, DType::F32);
    let losses = empty(&logits, [rows], DType::F32);
    let EntropySettings { smoothing, focal, weighted } = settings;
    let (smoothed, focused) = (smoothing > 0.0, focal > 0.0);
    let work = || LaunchedWork {
        name: "cross-entropy",
        shape: vec![rows, classes],
        operations: (rows * classes * 8) as f64,
        bytes: (4 * rows * classes * if keep { 2 } else { 1 }) as f64,
        bf16: false,
    };
    // SAFETY: the kernel compares rows and columns with the shape of the logits, which the gradient has
    // where it is written; targets are below the number of classes and there are as many weights
    // (`cross_entropy` has checked both).
    let launch = || unsafe {
        cross_entropy::launch_unchecked(
            &client,
            device::count([cubes, 1]),
            device::dim(team.dim()),
            logits.into_buffer_arg(),
            targets.into_buffer_arg(),
            weights.into_buffer_arg(),
            class_weights.into_buffer_arg(),
            gradient.clone().into_buffer_arg(),
            losses.clone().into_buffer_arg(),
            rows as u32,
            blocks as u32,
            classes as u32,
            smoothing,
            focal,
            Kind { weighted, smoothed, focused, keep },
            team,
        );
    };
    launching(work, launch);
    Measured { value: sum(&losses), gradient }
}

impl EntropyOps for CubeBackend {
    fn firebox_cross_entropy(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        weights: FloatTensor<Self>,
        class_weights: FloatTensor<Self>,
        settings: EntropySettings,
    ) -> FloatTensor<Self> {
        run(logits, targets, [weights, class_weights], settings, false).value
    }

    fn firebox_measure(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        weights: FloatTensor<Self>,
        class_weights: FloatTensor<Self>,
        settings: EntropySettings,
    ) -> Measured<Self> {
        run(logits, targets, [weights, class_weights], settings, true)
    }
}

#[derive(Debug)]
struct Entropy;

impl<B: EntropyOps> Backward<B, 1> for Entropy {
    /// The gradient of the loss.
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<FloatTensor<B>, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        hand_on::<B, _, _, 1>(ops, grads, |d, gradient| {
            [B::float_mul(gradient, B::float_reshape(d, [1, 1].into()))]
        });
    }
}

impl<B: EntropyOps, C: CheckpointStrategy> EntropyOps for Autodiff<B, C> {
    fn firebox_cross_entropy(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        weights: FloatTensor<Self>,
        class_weights: FloatTensor<Self>,
        settings: EntropySettings,
    ) -> FloatTensor<Self> {
        let (logits, guard) = logits.into_parts();
        let [weights, class_weights] = [weights, class_weights].map(|one| one.into_parts().0);
        match Entropy.prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let Measured { value, gradient } =
                    B::firebox_measure(logits, targets, weights, class_weights, settings);
                prep.finish(gradient, value)
            }
            OpsKind::UnTracked(prep) => {
                let value =
                    B::firebox_cross_entropy(logits, targets, weights, class_weights, settings);
                prep.finish(value)
            }
        }
    }

    fn firebox_measure(
        _: FloatTensor<Self>,
        _: IntTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: EntropySettings,
    ) -> Measured<Self> {
        unreachable!("the pass is called below the graph, by `firebox_cross_entropy`")
    }
}
