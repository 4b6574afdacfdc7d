//! What every sequence encoder offers, whatever it is made of, and the pooling that they share.

use burn::module::{Module, ModuleDisplay};
use burn::tensor::{Device, Tensor, TensorData};
use firebox_core::Stream;

/// Turns a sequence into a vector per step, and into one vector.
pub trait Encoder: Module + ModuleDisplay {
    /// Encodes each step.
    ///
    /// `lengths` holds the valid steps of each sample (all of them when it is `None`); later steps
    /// are padding and change nothing. `dropout` is the stream that dropout draws from; `None`
    /// means evaluation.
    ///
    /// # Shapes
    /// - `input`: `[batch, time, channel]`
    /// - returns `[batch, time, feature]`, zeros after each length. A model that shortens time
    ///   returns fewer steps and overrides [`Encoder::embed`].
    fn encode(
        &self,
        input: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<3>;

    /// One vector per sample, in evaluation: mean ‖ maximum of the encoding over the valid steps.
    ///
    /// # Shapes
    /// - `input`: `[batch, time, channel]`
    /// - returns `[batch, embedding]`
    fn embed(&self, input: Tensor<3>, lengths: Option<&[usize]>) -> Tensor<2> {
        pool_mean_max(self.encode(input, lengths, None), lengths)
    }

    /// Width of [`Encoder::embed`]'s vectors.
    fn embedding_width(&self) -> usize;

    /// Numbers of an encoded step: half of the embedding's, which is mean ‖ maximum. An encoder with
    /// another embedding overrides it.
    fn step_width(&self) -> usize {
        self.embedding_width() / 2
    }

    /// Valid steps of the encoding for these valid steps of the input, `[batch]`: the same, unless a
    /// model that shortens time overrides it.
    fn step_lengths(&self, lengths: &[usize]) -> Vec<usize> {
        lengths.to_vec()
    }
}

/// One for each valid step and zero for padding.
///
/// # Shapes
/// - returns `[batch, time, 1]`
pub fn valid_steps(lengths: &[usize], time: usize, device: &Device) -> Tensor<3> {
    let mut values = vec![0.0f32; lengths.len() * time];
    for (row, length) in values.chunks_exact_mut(time.max(1)).zip(lengths) {
        row[..(*length).min(time)].fill(1.0);
    }
    Tensor::from_data(TensorData::new(values, [lengths.len(), time, 1]), device)
}

/// The same with zeros for padding; without any, the same tensor.
///
/// # Shapes
/// - `encoded` and what is returned: `[batch, time, feature]`
pub(crate) fn without_padding(encoded: Tensor<3>, lengths: Option<&[usize]>) -> Tensor<3> {
    let [_, time, _] = encoded.dims();
    match lengths.filter(|lengths| lengths.iter().any(|length| *length < time)) {
        Some(lengths) => {
            let valid = valid_steps(lengths, time, &encoded.device().without_autodiff());
            encoded * valid
        }
        None => encoded,
    }
}

/// Mean ‖ maximum over the valid steps. A sample without a step gives zeros.
///
/// # Shapes
/// - `encoded`: `[batch, time, feature]`
/// - returns `[batch, 2 · feature]`
pub fn pool_mean_max(encoded: Tensor<3>, lengths: Option<&[usize]>) -> Tensor<2> {
    let [batch, time, feature] = encoded.dims();
    let Some(lengths) = lengths.filter(|lengths| lengths.iter().any(|length| *length != time))
    else {
        let mean = encoded.clone().mean_dim(1).reshape([batch, feature]);
        return Tensor::cat(vec![mean, encoded.max_dim(1).reshape([batch, feature])], 1);
    };
    let device = encoded.device().without_autodiff();
    let column = |value: &dyn Fn(usize) -> f32| {
        let values: Vec<f32> = lengths.iter().map(|length| value(*length)).collect();
        Tensor::<2>::from_data(TensorData::new(values, [batch, 1]), &device)
    };
    let valid = valid_steps(lengths, time, &device);
    let sum = (encoded.clone() * valid.clone()).sum_dim(1).reshape([batch, feature]);
    let mean = sum / column(&|length| length.max(1) as f32);
    // Padding is pushed below every valid value before the maximum is taken.
    let pushed = encoded + (valid - 1.0) * f32::MAX.sqrt();
    let maximum = pushed.max_dim(1).reshape([batch, feature]);
    let maximum = maximum * column(&|length| if length == 0 { 0.0 } else { 1.0 });
    Tensor::cat(vec![mean, maximum], 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pooling_reads_valid_steps_only() {
        let device = Device::default();
        let values = [1.0f32, -5.0, 3.0, -7.0, 90.0, 90.0, -2.0, -4.0, 80.0, 80.0, 80.0, 80.0];
        let encoded = Tensor::<3>::from_data(TensorData::new(values.to_vec(), [2, 3, 2]), &device);
        let pooled = pool_mean_max(encoded.clone(), Some(&[2, 1]));
        let expected = vec![2.0f32, -6.0, 3.0, -5.0, -2.0, -4.0, -2.0, -4.0];
        assert_eq!(pooled.into_data().try_into_vec::<f32>().unwrap(), expected);
        let empty = pool_mean_max(encoded.clone(), Some(&[3, 0])).into_data();
        assert_eq!(empty.try_into_vec::<f32>().unwrap()[4..], [0.0; 4]);
        let whole = pool_mean_max(encoded.clone(), None).into_data();
        assert_eq!(whole, pool_mean_max(encoded, Some(&[3, 3])).into_data());
    }
}
