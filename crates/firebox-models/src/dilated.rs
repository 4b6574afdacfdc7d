//! An encoder of dilated convolutions that learns by contrast: the same moment of a window, seen in
//! two crops of it, is told from other moments and other windows.
//!
//! ```text
//! x [batch, time, channel]
//!   → Linear channel → 64; in training views, each step is hidden (zero) with probability 0.5
//!   → 11 blocks: GELU, convolution of 3 steps, GELU, convolution of 3 steps, + what went in;
//!     the dilation is 1, 2, 4, … from block to block; the last block has 320 channels
//! ```
//!
//! Source: Yue et al., "TS2Vec: towards universal representation of time series", 2022, with these
//! differences: crops begin at a place of their own in each window, and the views of training have no dropout
//! of their representations (0.1 in the reference implementation). The crops of a batch have one length, and none is
//! longer than the shortest of its windows that has two steps: of longer windows, any step may be seen, but never
//! with more around it than that. There is no decoder and no mask of inputs here.

use burn::module::Module;
use burn::nn::conv::Conv1d;
use burn::nn::{Linear, PaddingConfig1d};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    conv1d, gelu, init_conv1d, init_linear, linear_in, max_pool1d, product, recomputed,
};
use serde::{Deserialize, Serialize};

use crate::encoder::without_padding;
use crate::transformer::at_least_one;
use crate::{Encoder, Loss, ModelError, PretrainBatch};

/// Settings of a [`DilatedEncoder`]. Every default is TS2Vec's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DilatedConfig {
    /// Channels of every block but the last.
    pub hidden: usize,
    /// Channels of the last block: numbers of an encoded step.
    pub output: usize,
    /// Blocks of two convolutions; the last has the dilation `2^(blocks − 1)`, at most 2^15.
    pub blocks: usize,
}

impl Default for DilatedConfig {
    fn default() -> Self {
        Self { hidden: 64, output: 320, blocks: 11 }
    }
}

/// Probability that a step of a view is hidden.
const HIDDEN: f64 = 0.5;
/// Fewest steps that two views have in common.
const FEWEST_COMMON: usize = 2;

impl DilatedConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ModelError> {
        let Self { hidden, output, blocks } = *self;
        at_least_one(&[("hidden", hidden), ("output", output), ("blocks", blocks)])?;
        if blocks > 16 {
            let (found, allowed) = (blocks.to_string(), "at most 16");
            return Err(ModelError::Setting { key: "blocks", found, allowed });
        }
        Ok(())
    }

    /// Builds the encoder with weights drawn from `stream` as PyTorch draws them.
    ///
    /// # Errors
    /// If a setting is out of its range, or there is no channel.
    pub fn init(
        &self,
        stream: Stream,
        channels: usize,
        device: &Device,
    ) -> Result<DilatedEncoder, ModelError> {
        self.validate()?;
        at_least_one(&[("channels", channels)])?;
        let block = |index: usize| {
            let last = index + 1 == self.blocks;
            let output = if last { self.output } else { self.hidden };
            let (own, dilation) = (stream.substream(1).substream(index as u64), 1 << index);
            let conv = |at, input| {
                let conv = init_conv1d(own.substream(at), input, output, 3, device);
                Conv1d { dilation, padding: PaddingConfig1d::Explicit(dilation, dilation), ..conv }
            };
            let project = || init_linear(own.substream(2), self.hidden, output, device);
            Block {
                conv1: conv(0, self.hidden),
                conv2: conv(1, output),
                project: (last || output != self.hidden).then(project),
            }
        };
        Ok(DilatedEncoder {
            input: init_linear(stream.substream(0), channels, self.hidden, device),
            blocks: (0..self.blocks).map(block).collect(),
            config: self.clone(),
            precision: Precision::F32,
            recomputed: false,
        })
    }
}

/// TS2Vec's encoder. Parameters are named `input.weight`, `blocks.0.conv1.weight`, …,
/// `blocks.10.project.weight`.
#[derive(Module, Debug)]
pub struct DilatedEncoder {
    input: Linear,
    blocks: Vec<Block>,
    #[module(skip)]
    config: DilatedConfig,
    #[module(skip)]
    precision: Precision,
    #[module(skip)]
    recomputed: bool,
}

#[derive(Module, Debug)]
struct Block {
    conv1: Conv1d,
    conv2: Conv1d,
    project: Option<Linear>,
}

impl Block {
    /// `[batch, time, channel]` → `[batch, time, output channel]`, zero after each length.
    fn forward(&self, x: Tensor<3>, lengths: Option<&[usize]>, precision: Precision) -> Tensor<3> {
        let [batch, time, width] = x.dims();
        let conv = |x, layer| without_padding(conv1d(gelu(x), layer, precision, None), lengths);
        let y = conv(conv(x.clone(), &self.conv1), &self.conv2);
        let kept = match &self.project {
            None => x,
            Some(project) => {
                let rows = linear_in(precision, x.reshape([batch * time, width]), project);
                let [_, output] = rows.dims();
                without_padding(rows.reshape([batch, time, output]), lengths)
            }
        };
        kept + y
    }
}

impl DilatedEncoder {
    /// The settings that the encoder was built with.
    pub fn config(&self) -> &DilatedConfig {
        &self.config
    }

    /// The same encoder with the operands of its products in this type.
    #[must_use]
    pub fn in_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The same encoder, of which each block keeps its input alone and is computed again for its
    /// gradient, on devices where [`recomputes_on`](firebox_kernels::recomputes_on) says so: less
    /// memory, another forward pass, the same numbers to the bit.
    #[must_use]
    pub fn recomputed(self, recomputed: bool) -> Self {
        Self { recomputed, ..self }
    }

    /// Encodes steps of which some are hidden: `keep` is `[batch, time, 1]`, 1 or 0.
    fn run(
        &self,
        input: Tensor<3>,
        lengths: Option<&[usize]>,
        keep: Option<Tensor<3>>,
    ) -> Tensor<3> {
        let [batch, time, channels] = input.dims();
        let rows = linear_in(self.precision, input.reshape([batch * time, channels]), &self.input);
        let x = rows.reshape([batch, time, self.config.hidden]);
        let x = match keep {
            Some(keep) => x * keep,
            None => x,
        };
        let x = without_padding(x, lengths);
        let precision = self.precision;
        self.blocks.iter().fold(x, |x, block| {
            if !self.recomputed {
                return block.forward(x, lengths, precision);
            }
            let lengths = lengths.map(<[usize]>::to_vec);
            recomputed(block, x, move |block, x| block.forward(x, lengths.as_deref(), precision))
        })
    }

    /// TS2Vec's loss of a batch: two overlapping crops of each window, drawn from `views` with the
    /// steps that are hidden in each, and [`hierarchical_contrast`] of what they have in common. The
    /// weight is the number of windows. Windows shorter than two steps are left out; without two
    /// steps in any there is nothing to learn from.
    pub fn contrast_loss(&self, batch: &PretrainBatch<'_>, views: Stream) -> Loss {
        let [_, time, _] = batch.inputs.dims();
        let rows: Vec<usize> = (0..batch.lengths.len())
            .filter(|row| batch.lengths[*row].min(time) >= FEWEST_COMMON)
            .collect();
        let lengths: Vec<usize> = rows.iter().map(|row| batch.lengths[*row].min(time)).collect();
        let Some(shortest) = lengths.iter().copied().min() else {
            let value = Tensor::zeros([1], &batch.inputs.device());
            return Loss { value, weight: 0.0, parts: vec![] };
        };
        let mut draws = views.substream(0).draws();
        let mut between =
            |low: usize, high: usize| low + draws.below((high - low) as u64 + 1) as usize;
        let common = between(FEWEST_COMMON, shortest);
        let [before, after] = overhangs(&mut between, shortest - common);
        let starts: Vec<usize> =
            lengths.iter().map(|length| between(0, length - common - before - after)).collect();
        let view = |index: u64, offset: usize, steps: usize, from: usize| {
            let starts = starts.iter().map(|start| start + offset);
            let crop = crop(batch.inputs.clone(), &rows, starts, steps);
            let keep = keep(views.substream(index), [rows.len(), steps], &crop.device());
            let encoded = self.run(crop, None, Some(keep));
            encoded.narrow(1, from, common)
        };
        let first = view(1, 0, before + common, before);
        let second = view(2, before, common + after, 0);
        let value = hierarchical_contrast(first, second);
        Loss { value, weight: rows.len() as f64, parts: vec![] }
    }
}

/// Steps of the first view before those in common, and of the second after them, where so many are not in common. Each is
/// uniform up to what is left on its side of a place that is uniform, as in `ts2vec.py`.
fn overhangs(between: &mut impl FnMut(usize, usize) -> usize, free: usize) -> [usize; 2] {
    let left = between(0, free);
    [between(0, left), between(0, free - left)]
}

/// `steps` of each named row from its own start on, `[row, steps, channel]`.
fn crop(
    inputs: Tensor<3>,
    rows: &[usize],
    starts: impl Iterator<Item = usize>,
    steps: usize,
) -> Tensor<3> {
    let [batch, time, channels] = inputs.dims();
    let places: Vec<i64> = rows
        .iter()
        .zip(starts)
        .flat_map(|(row, start)| (0..steps).map(move |step| (row * time + start + step) as i64))
        .collect();
    let count = places.len();
    let device = inputs.device().without_autodiff();
    let places = Tensor::<1, Int>::from_data(TensorData::new(places, [count]), &device);
    let flat = inputs.reshape([batch * time, channels]).select(0, places);
    flat.reshape([rows.len(), steps, channels])
}

/// One for each step that is seen, zero for each that is hidden.
fn keep(stream: Stream, [rows, steps]: [usize; 2], device: &Device) -> Tensor<3> {
    let mut values = vec![0.0; rows * steps];
    stream.fill_uniform(0, &mut values);
    for value in &mut values {
        *value = if f64::from(*value) < HIDDEN { 0.0 } else { 1.0 };
    }
    let data = TensorData::new(values, [rows, steps, 1]);
    Tensor::from_data(data, &device.clone().without_autodiff())
}

/// The hierarchical contrastive loss of two views of the same windows: at every scale of time (by
/// maxima over pairs of steps, down to a single one), the mean of the contrast between windows at each
/// step and the contrast between steps of each window; the mean over the scales. Source: TS2Vec,
/// section 2.3 and its reference implementation.
///
/// # Shapes
/// - first, second: `[batch, time, width]`
/// - the result: `[1]`, 0 for a single window of a single step
pub fn hierarchical_contrast(first: Tensor<3>, second: Tensor<3>) -> Tensor<1> {
    let (mut first, mut second) = (first, second);
    let mut sum: Option<Tensor<1>> = None;
    let mut scales = 0;
    loop {
        let [batch, time, _] = first.dims();
        let between = (batch > 1).then(|| {
            let all = Tensor::cat(vec![first.clone(), second.clone()], 0);
            contrast(all.swap_dims(0, 1)) * 0.5
        });
        let within =
            (time > 1).then(|| contrast(Tensor::cat(vec![first.clone(), second.clone()], 1)) * 0.5);
        sum = [sum, between, within].into_iter().flatten().reduce(|a, b| a + b);
        scales += 1;
        if time <= 1 {
            break;
        }
        first = max_pool1d(first, 2, 2, 0);
        second = max_pool1d(second, 2, 2, 0);
    }
    match sum {
        Some(sum) => sum / f64::from(scales),
        None => first.sum() * 0.0,
    }
}

/// Mean cross-entropy of finding the partner of each of `2n` vectors of a group, which lies `n` places
/// away, among all others by their products.
///
/// # Shapes
/// - `[group, 2n, width]`
fn contrast(vectors: Tensor<3>) -> Tensor<1> {
    let [groups, count, _] = vectors.dims();
    let device = vectors.device().without_autodiff();
    let products = product(Precision::F32, vectors.clone(), vectors.swap_dims(1, 2));
    let (mut own, mut partners) = (vec![0.0_f32; count * count], vec![0.0_f32; count * count]);
    for row in 0..count {
        own[row * count + row] = -1e30;
        partners[row * count + (row + count / 2) % count] = 1.0;
    }
    let constant =
        |values| Tensor::<3>::from_data(TensorData::new(values, [1, count, count]), &device);
    let logs = log_softmax(products + constant(own), 2) * constant(partners);
    // By group first: the CPU backend's sum of a very large tensor at once depends on the number of
    // threads.
    logs.reshape([groups, count * count]).sum_dim(1).sum() / -((groups * count) as f64)
}

impl Encoder for DilatedEncoder {
    /// There is no dropout.
    fn encode(&self, input: Tensor<3>, lengths: Option<&[usize]>, _: Option<Stream>) -> Tensor<3> {
        self.run(input, lengths, None)
    }

    fn embedding_width(&self) -> usize {
        2 * self.config.output
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firebox_kernels::normal;

    fn small() -> DilatedEncoder {
        let config = DilatedConfig { hidden: 5, output: 6, blocks: 3 };
        config.init(Stream::new(1, "weights"), 2, &Device::default()).unwrap()
    }

    fn windows(samples: usize, time: usize) -> Tensor<3> {
        normal(Stream::new(2, "windows"), [samples, time, 2], 0.0, 1.0, &Device::default())
    }

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_into_vec().unwrap()
    }

    #[test]
    fn padding_changes_nothing() {
        let model = small();
        let short = windows(3, 9);
        let tail = Tensor::full([3, 6, 2], 1e3, &Device::default());
        let long = Tensor::cat(vec![short.clone(), tail], 1);
        let lengths = [9, 4, 0];
        let a = values(model.embed(short, Some(&lengths)));
        let b = values(model.embed(long, Some(&lengths)));
        for (a, b) in a.iter().zip(&b) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
        assert_eq!(b[24..], [0.0; 12]);
    }

    #[test]
    fn views_follow_their_stream_and_short_windows_are_left_out() {
        let model = small().train();
        let inputs = windows(4, 12);
        let loss = |lengths: &[usize], seed| {
            let batch = PretrainBatch { inputs: inputs.clone(), lengths, indices: &[0, 1, 2, 3] };
            let loss = model.contrast_loss(&batch, Stream::new(seed, "views"));
            (values(loss.value.inner())[0], loss.weight)
        };
        assert_eq!(loss(&[12, 12, 7, 12], 1), loss(&[12, 12, 7, 12], 1));
        assert_ne!(loss(&[12, 12, 7, 12], 1), loss(&[12, 12, 7, 12], 2));
        assert_eq!(loss(&[12, 1, 0, 5], 1).1, 2.0);
        assert_eq!(loss(&[1, 1, 0, 1], 1), (0.0, 0.0));
        for seed in 0..30 {
            assert!(loss(&[12, 2, 3, 2], seed).0.is_finite());
        }
    }

    #[test]
    fn both_views_stick_out_alike() {
        let mut draws = Stream::new(4, "crops").draws();
        let mut between =
            |low: usize, high: usize| low + draws.below((high - low) as u64 + 1) as usize;
        assert_eq!(overhangs(&mut between, 0), [0, 0]);
        let (mut sums, count) = ([0, 0], 20_000);
        for _ in 0..count {
            let [before, after] = overhangs(&mut between, 40);
            assert!(before + after <= 40);
            sums = [sums[0] + before, sums[1] + after];
        }
        // A quarter of what is free, on average; the deviation of such a mean is 0.07.
        for sum in sums {
            let mean = sum as f64 / f64::from(count);
            assert!((mean - 10.0).abs() < 0.4, "{mean}");
        }
    }

    #[test]
    fn views_that_agree_have_less_loss_than_views_that_do_not() {
        let at = |seed| {
            let stream = Stream::new(seed, "vectors");
            normal::<3>(stream, [4, 8, 16], 0.0, 1.0, &Device::default())
        };
        let (same, other) = (at(1), at(2));
        let agree = values(hierarchical_contrast(same.clone(), same.clone()))[0];
        let differ = values(hierarchical_contrast(same, other))[0];
        assert!(agree < 0.5 && differ > 3.0, "{agree} {differ}");
        let one = Tensor::<3>::ones([1, 1, 3], &Device::default());
        assert_eq!(values(hierarchical_contrast(one.clone(), one)), [0.0]);
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let refused = |config: DilatedConfig| config.validate().unwrap_err().to_string();
        let default = DilatedConfig::default;
        assert!(refused(DilatedConfig { blocks: 17, ..default() }).contains("`blocks` is 17"));
        assert!(refused(DilatedConfig { output: 0, ..default() }).contains("`output` is 0"));
    }
}
