//! What a model must offer to be pre-trained without labels, and how losses are averaged.

use burn::module::Param;
use burn::tensor::Tensor;
use firebox_core::Stream;
use firebox_kernels::masked_squared_error;

use crate::{Encoder, MaskRule, StepMask};

/// A batch for pre-training. Models know no loader: they take tensors and lengths.
#[derive(Clone, Debug)]
pub struct PretrainBatch<'a> {
    /// Normalised windows, `[batch, time, channel]`, zeros after each length.
    pub inputs: Tensor<3>,
    /// Valid steps of each sample, `[batch]`.
    pub lengths: &'a [usize],
    /// A number that names each sample among those that share a random stream, `[batch]`: its
    /// index in the data set. What is drawn for a sample then depends neither on the batch that it
    /// came in nor on its row.
    pub indices: &'a [usize],
}

/// The loss of one batch, as a mean and the weight that it counts with.
///
/// Two batches with values `v₁`, `v₂` and weights `w₁`, `w₂` have the loss
/// `(w₁·v₁ + w₂·v₂) / (w₁ + w₂)`: with the number of averaged elements as the weight, that is the
/// mean over both, so `w·v` is the numerator and `w` the denominator. Accumulated gradients are
/// averaged in the same way.
#[derive(Clone, Debug)]
pub struct Loss {
    /// Mean loss over the batch, `[1]`.
    pub value: Tensor<1>,
    /// Number of elements that the mean was taken over; zero if there was nothing to learn from.
    pub weight: f64,
    /// The summands of `value` by name, for logs, each `[1]` and without a gradient.
    pub parts: Vec<(&'static str, Tensor<1>)>,
}

/// An encoder that can be trained to restore what was hidden from it.
pub trait Pretrain: Encoder {
    /// How the hidden steps of a sample are chosen.
    fn mask_rule(&self) -> &MaskRule;

    /// The loss of a batch whose hidden steps are given; `dropout` is `None` in evaluation.
    fn masked_loss(
        &self,
        batch: &PretrainBatch<'_>,
        mask: &StepMask,
        dropout: Option<Stream>,
    ) -> Loss;

    /// The loss of a batch. What is hidden from each sample is drawn from
    /// `masks.substream(index of the sample)`; `dropout` is `None` in evaluation.
    fn pretrain_loss(
        &self,
        batch: &PretrainBatch<'_>,
        masks: Stream,
        dropout: Option<Stream>,
    ) -> Loss {
        self.masked_loss(batch, &self.draw_mask(batch, masks), dropout)
    }

    /// The mask that [`Pretrain::pretrain_loss`] draws from the same stream.
    fn draw_mask(&self, batch: &PretrainBatch<'_>, masks: Stream) -> StepMask {
        self.mask_rule().draw(batch, masks)
    }

    /// The hidden steps of a batch that the model restores, which are those that its loss counts: all, where it does not
    /// say otherwise.
    fn scored(&self, mask: &StepMask, lengths: &[usize]) -> StepMask {
        let _ = lengths;
        mask.clone()
    }

    /// Reconstructs a batch of which the steps of `mask` are hidden, in evaluation.
    ///
    /// # Shapes
    /// - returns `[batch, time, channel]`; values after each length, and of hidden steps that are not
    ///   [scored](Self::scored), mean nothing
    fn reconstruct(&self, batch: &PretrainBatch<'_>, mask: &StepMask) -> Tensor<3>;
}

/// The inputs of a batch, `[batch, time, channel]`, with `token`, `[channel]`, in place of the masked steps,
/// `[batch, time, 1]`.
pub(crate) fn hidden(
    inputs: &Tensor<3>,
    masked: &Tensor<3>,
    token: &Param<Tensor<1>>,
) -> Tensor<3> {
    let token = token.val().unsqueeze::<3>();
    inputs.clone() * (1.0 - masked.clone()) + token * masked.clone()
}

/// The squared error of a reconstruction, summed over all channels of the scored steps and divided by their
/// number, which is the loss's weight. The inputs get no gradient.
///
/// # Shapes
/// - `output`, `inputs`: `[batch, time, channel]`
/// - `scored`: `[batch, time, 1]`, one at each of the `steps` that are scored, zero elsewhere
pub(crate) fn reconstruction_loss(
    output: Tensor<3>,
    inputs: &Tensor<3>,
    scored: Tensor<3>,
    steps: usize,
) -> Loss {
    let [_, _, channels] = inputs.dims();
    let weight = (steps * channels) as f64;
    let value = masked_squared_error(output, inputs.clone(), scored, weight);
    let parts = vec![("reconstruction", value.clone().detach().inner())];
    Loss { value, weight, parts }
}
