//! What every classifier of windows offers. Losses are not here.

use burn::module::Module;
use burn::tensor::Tensor;
use firebox_core::Stream;

use crate::{BiLstmAttention, CnnBiLstm, Mlp, Transformer};

/// Gives a window a score for each class.
pub trait Classifier: Module {
    /// Scores before softmax. `lengths` holds the valid steps of each sample; `dropout` is the stream
    /// that dropout draws from, `None` in evaluation.
    ///
    /// # Shapes
    /// - `inputs`: `[batch, time, channel]`, zeros after each length
    /// - returns `[batch, class]`
    fn scores(&self, inputs: Tensor<3>, lengths: &[usize], dropout: Option<Stream>) -> Tensor<2>;
}

impl Classifier for BiLstmAttention {
    fn scores(&self, inputs: Tensor<3>, lengths: &[usize], dropout: Option<Stream>) -> Tensor<2> {
        self.logits(inputs, Some(lengths), dropout)
    }
}

impl Classifier for Transformer {
    fn scores(&self, inputs: Tensor<3>, lengths: &[usize], dropout: Option<Stream>) -> Tensor<2> {
        self.logits(inputs, Some(lengths), dropout)
    }
}

/// Padding is part of the window: to this classifier every value is a feature.
impl Classifier for Mlp {
    fn scores(&self, inputs: Tensor<3>, _: &[usize], dropout: Option<Stream>) -> Tensor<2> {
        self.logits(inputs, dropout)
    }
}

impl Classifier for CnnBiLstm {
    fn scores(&self, inputs: Tensor<3>, lengths: &[usize], dropout: Option<Stream>) -> Tensor<2> {
        self.logits(inputs, Some(lengths), None, dropout)
    }
}
