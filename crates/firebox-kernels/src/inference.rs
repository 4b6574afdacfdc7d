//! Layers as one operation each where no gradient is wanted: what is between their products stays in
//! the caches of the core that made it. Results are those of the operations one by one, to the bit.
//!
//! Only Burn's CPU backend has them. Where they do not run (other devices and types, gradients, a
//! batch that would leave threads without work) they return `None`, and the caller composes the layer
//! as it does in training. So it is where types differ, which the operations one by one refuse.

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::nn::{LayerNorm, Linear};
use burn::tensor::{Tensor, TensorData};
use firebox_core::Precision;

use crate::attention::{self, Attention};
use crate::batch_norm::BatchNorm;
use crate::cpu::{self, Activation, MOST_POSITIONS, Norm, Products, Weight};
use crate::device::{flex, is_flex};
use crate::operands::operand;
use crate::packed::packed;
use crate::profile::kernel_span;
use crate::strides::readable;

type Primitive = FloatTensor<Flex>;

/// The parameters of a layer of a Transformer's encoder.
#[derive(Clone, Copy, Debug)]
pub struct EncoderParameters<'a> {
    /// Queries, keys and values side by side, `[width, 3 · width]`.
    pub in_proj: &'a Linear,
    /// What follows attention, `[width, width]`.
    pub out_proj: &'a Linear,
    /// The feed-forward network, `[width, between]` and `[between, width]`.
    pub feed: [&'a Linear; 2],
    /// Of attention and of the feed-forward network, `[width]`.
    pub norms: [&'a LayerNorm; 2],
}

/// How an encoder layer computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncoderSettings {
    /// Its attention, without dropout; its precision is that of all products.
    pub attention: Attention,
    /// What stands between the linear layers of the feed-forward network.
    pub activation: Activation,
    /// What layer normalisation adds to the variance.
    pub epsilon: f64,
    /// Whether it stands before each part, not after its residual sum.
    pub norm_first: bool,
}

/// `second(activation(first(x)))` in one operation, without gradients. It is `None`, for the caller to
/// compose it, on other devices than Burn's CPU backend, in f16, where a gradient is wanted, and if
/// there is nothing to compute.
///
/// # Shapes
/// - x: `[rows, input]`
/// - the result: `[rows, output]`
///
/// # Panics
/// If a shape does not fit; the message holds the shapes and the type. Types that differ give `None`.
#[track_caller]
pub fn feed_forward(
    precision: Precision,
    x: &Tensor<2>,
    first: &Linear,
    activation: Activation,
    second: &Linear,
) -> Option<Tensor<2>> {
    let layers = [first, second].map(Dense::new);
    let [rows, input] = x.dims();
    let products = products(precision, x, &layers)?;
    check("the input of a feed-forward network", [rows, input], &layers);
    let [[_, between], [_, output]] = layers.each_ref().map(Dense::sizes);
    let _span = kernel_span!(
        "feed-forward network",
        [rows, input, between, output],
        2 * rows * between * (input + output),
        rows * (input + output) + between * (input + output),
        products.bf16
    );
    let x = flex(x.clone()).to_contiguous();
    let layers = layers.map(Dense::values);
    let [first, second] = layers.each_ref().map(|layer| layer.packed(products, rows));
    let y = cpu::feed_forward(&first, activation, &second, x.storage::<f32>());
    let y = Primitive::from_data(TensorData::new(y, [rows, output]));
    Some(Tensor::from_primitive::<Flex>(y))
}

/// A linear layer, and what follows it, of [`dense_layers`].
#[derive(Clone, Copy, Debug)]
pub struct DenseLayer<'a> {
    /// `[input, output]`
    pub linear: &'a Linear,
    /// A normalisation of its result by running statistics, and whether what is negative then becomes zero.
    pub norm: Option<(&'a BatchNorm, bool)>,
}

/// Linear layers one after the other, each with its batch normalisation, in one operation without gradients. It is
/// `None` where [`feed_forward`] is, without layers, and for few rows and large weights, which the operations one by
/// one divide among threads; results are theirs, to the bit, so it does not matter which are used.
///
/// # Shapes
/// - x: `[rows, input]`; `before` normalises it
/// - the result: `[rows, output]`, of the last layer
///
/// # Panics
/// If a shape does not fit; the message holds the shapes and the type. Types that differ give `None`.
#[track_caller]
pub fn dense_layers(
    precision: Precision,
    x: &Tensor<2>,
    before: Option<&BatchNorm>,
    layers: &[DenseLayer<'_>],
) -> Option<Tensor<2>> {
    let [rows, input] = x.dims();
    let dense: Vec<_> = layers.iter().map(|layer| Dense::new(layer.linear)).collect();
    let products = products(precision, x, &dense)?;
    let [_, output] = dense.last()?.sizes();
    check("the input of dense layers", [rows, input], &dense);
    let widths = std::iter::once(input).chain(dense.iter().map(|layer| layer.sizes()[1]));
    let norms = std::iter::once(before).chain(layers.iter().map(|layer| Some(layer.norm?.0)));
    for (width, norm) in widths.zip(norms) {
        let channels = norm.map_or(width, |norm| norm.gamma.dims()[0]);
        assert!(
            channels == width,
            "a batch normalisation of {channels} channels for rows of {width}: both must be the same (x is {:?}, \
             of [rows, input], in {:?})",
            x.dims(),
            x.dtype()
        );
    }
    let weights: usize = dense.iter().map(|layer| layer.sizes().iter().product::<usize>()).sum();
    if !cpu::are_worth_a_task(rows, weights) {
        return None;
    }
    let before = match before {
        Some(norm) => Some(norm.without_gradients()?),
        None => None,
    };
    let norm = |layer: &DenseLayer<'_>| match layer.norm {
        Some((norm, rectify)) => Some(Some((norm.without_gradients()?, rectify))),
        None => Some(None),
    };
    let norms: Vec<_> = layers.iter().map(norm).collect::<Option<_>>()?;
    let _span = kernel_span!(
        "dense layers",
        [rows, input, output],
        2 * rows * weights,
        rows * (input + output) + weights,
        products.bf16
    );
    let x = flex(x.clone()).to_contiguous();
    let dense: Vec<_> = dense.into_iter().map(Dense::values).collect();
    let layers: Vec<_> = dense
        .iter()
        .zip(norms)
        .map(|(layer, norm)| cpu::DenseLayer { weight: layer.packed(products, rows), norm })
        .collect();
    let y = cpu::dense_layers(products.kernels, before.as_ref(), &layers, x.storage::<f32>());
    let y = Primitive::from_data(TensorData::new(y, [rows, output]));
    Some(Tensor::from_primitive::<Flex>(y))
}

/// A layer of a Transformer's encoder in one operation, without gradients and dropout. It is `None`
/// where [`feed_forward`] is, and for a batch whose samples would leave threads without work: results
/// are those of the operations one by one, to the bit, so it does not matter which are used. Steps
/// after a sample's length are not attended to; what the layer gives for them means nothing.
///
/// # Shapes
/// - x and the result: `[batch, time, width]`
/// - lengths: valid steps of each sample, `[batch]`, at most `time`, all if `None`
///
/// # Panics
/// If a shape does not fit, or a length is longer than the sequence; the message holds the shapes and the type. Types
/// that differ give `None`.
#[track_caller]
pub fn encoder_layer(
    x: &Tensor<3>,
    lengths: Option<&[usize]>,
    parameters: &EncoderParameters<'_>,
    settings: &EncoderSettings,
) -> Option<Tensor<3>> {
    let [batch, time, width] = x.dims();
    let EncoderParameters { in_proj, out_proj, feed: [first, second], norms } = *parameters;
    let layers = [in_proj, out_proj, first, second].map(Dense::new);
    let attention = &settings.attention;
    let products = products(attention.precision, x, &layers)?;
    let [Some(norm1), Some(norm2)] = norms.map(Values::of) else { return None };
    let threads = rayon::current_num_threads();
    if time >= MOST_POSITIONS || !(batch.is_multiple_of(threads) || batch >= 4 * threads) {
        return None;
    }
    let named = operand("x", x);
    let sizes = attention::sizes(attention, [batch, time, time], width, named);
    attention::check_lengths("sequence", [batch, time], lengths, &[named]);
    check("the input of an encoder layer", [batch * time, width], &layers[..1]);
    check("the output of attention", [batch * time, width], &layers[1..2]);
    check("the input of a feed-forward network", [batch * time, width], &layers[2..]);
    for (what, found, allowed) in [
        ("the projection before attention", layers[0].sizes()[1], 3 * width),
        ("the projection after attention", layers[1].sizes()[1], width),
        ("the feed-forward network", layers[3].sizes()[1], width),
        ("layer normalisation", norm1.sizes[0], width),
        ("layer normalisation", norm2.sizes[0], width),
    ] {
        assert!(
            found == allowed,
            "{what} gives {found} numbers a step where {allowed} are needed (x is {:?}, of [batch, time, width], \
             in {:?})",
            x.dims(),
            x.dtype()
        );
    }
    let rules = attention::rules(products.kernels, &sizes, attention, None);
    let [_, between] = layers[2].sizes();
    let (rows, weights) = (batch * time, width * (4 * width + 2 * between));
    let _span = kernel_span!(
        "encoder layer",
        [batch, time, width, between],
        2 * rows * weights + 4 * rows * rules.sight.width(time) * width,
        2 * rows * width + weights,
        products.bf16
    );
    let x = flex(x.clone()).to_contiguous();
    let layers = layers.map(Dense::values);
    let [in_proj, out_proj, first, second] =
        layers.each_ref().map(|layer| layer.packed(products, rows));
    let layer = cpu::EncoderLayer {
        rules,
        sizes,
        in_proj,
        out_proj,
        feed: [first, second],
        activation: settings.activation,
        norms: [&norm1, &norm2].map(|norm| norm.norm(settings.epsilon)),
        norm_first: settings.norm_first,
    };
    let y = layer.forward(x.storage::<f32>(), lengths);
    let y = Primitive::from_data(TensorData::new(y, [batch, time, width]));
    Some(Tensor::from_primitive::<Flex>(y))
}

/// How products of these tensors are computed, if they are ours to compute and none has a gradient.
fn products<const D: usize>(
    precision: Precision,
    x: &Tensor<D>,
    layers: &[Dense],
) -> Option<Products> {
    let fits = plain(x) && layers.iter().all(Dense::on_cpu);
    Products::of(precision).filter(|_| fits)
}

/// Checks that layers follow one another; all is in f32 when this is called.
#[track_caller]
fn check(what: &str, [rows, mut width]: [usize; 2], layers: &[Dense]) {
    for layer in layers {
        let sizes @ [input, output] = layer.sizes();
        assert!(
            width == input,
            "{what} is {:?} ([rows, width]), but a weight is {sizes:?} ([input, output]): what goes into it must \
             be as wide as it is high, {input}, and is {width} wide (all in F32)",
            [rows, width]
        );
        let shifts = layer.bias.as_ref().map_or(output, |bias| bias.dims()[0]);
        assert!(
            shifts == output,
            "behind {what}, {:?} ([rows, width]), a weight is {sizes:?} ([input, output]) and its bias [{shifts}]: \
             the bias must be [{output}] (all in F32)",
            [rows, width]
        );
        width = output;
    }
}

/// Parameters of a linear layer.
struct Dense {
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
}

impl Dense {
    fn new(layer: &Linear) -> Self {
        Self { weight: layer.weight.val(), bias: layer.bias.as_ref().map(|bias| bias.val()) }
    }

    fn sizes(&self) -> [usize; 2] {
        self.weight.dims()
    }

    fn on_cpu(&self) -> bool {
        plain(&self.weight) && self.bias.as_ref().is_none_or(plain)
    }

    /// Its numbers, if they are [on the CPU](Self::on_cpu).
    fn values(self) -> Values<2> {
        let sizes = self.sizes();
        let bias = self.bias.map(|bias| flex(bias).to_contiguous());
        Values { first: readable(flex(self.weight)), second: bias, sizes }
    }
}

/// Numbers of parameters: a weight and a bias, or a scale and a shift.
struct Values<const D: usize> {
    first: Primitive,
    second: Option<Primitive>,
    sizes: [usize; D],
}

impl Values<2> {
    /// For products with so many rows.
    fn packed(&self, products: Products, rows: usize) -> Weight<'_> {
        let bias = self.second.as_ref().map(|bias| bias.storage::<f32>());
        Weight::new(packed(products, rows, &self.first), bias)
    }
}

impl Values<1> {
    /// Those of a layer normalisation, if they are in f32 on the CPU without a gradient and of one length: the kernels
    /// read as many of both.
    fn of(norm: &LayerNorm) -> Option<Self> {
        let (gamma, beta) = (norm.gamma.val(), norm.beta.as_ref().map(|beta| beta.val()));
        let as_long = |beta: &Tensor<1>| beta.dims() == gamma.dims();
        let fits = plain(&gamma) && beta.as_ref().is_none_or(|beta| plain(beta) && as_long(beta));
        fits.then(|| Self {
            sizes: gamma.dims(),
            first: flex(gamma).to_contiguous(),
            second: beta.map(|beta| flex(beta).to_contiguous()),
        })
    }

    fn norm(&self, epsilon: f64) -> Norm<'_> {
        let beta = self.second.as_ref().map(|beta| beta.storage::<f32>());
        Norm { gamma: self.first.storage::<f32>(), beta, epsilon: epsilon as f32 }
    }
}

/// Whether the kernels take a tensor, and no gradient is wanted of it.
pub(crate) fn plain<const D: usize>(tensor: &Tensor<D>) -> bool {
    is_flex(tensor) && !tensor.is_autodiff() && tensor.shape().num_elements() > 0
}
