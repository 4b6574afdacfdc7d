//! What a layer of DeBERTa's base model costs: milliseconds of a forward and a backward pass and bytes held at most, with
//! attention as one operation and composed of Burn's, which keeps all scores.
//!
//! ```text
//! cargo run --release -p firebox-models --example disentangled_step
//! ```

use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::activation::softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    Activation, DisentangledAttention, DistanceRows, FeedForward, disentangled_attention, dropout,
    feed_forward_add, init_linear, layer_norm, linear_add, linear_in, normal, product, rounded,
};
use firebox_models::Disentangled;

#[path = "support/measure.rs"]
mod measure;

use measure::measure;

const BATCH: usize = 4;
const TIME: usize = 512;
const HEADS: usize = 12;
const WIDTH: usize = 768;
const SPAN: usize = 256;
const DROPOUT: f64 = 0.1;

struct Layer {
    precision: Precision,
    in_proj: Linear,
    out_proj: Linear,
    feed: [Linear; 2],
    scale: Tensor<1>,
    rows: DistanceRows,
    /// The same for each pair, `[1, 1, query, key]`.
    pairs: Tensor<4, Int>,
}

impl Layer {
    fn new(precision: Precision, device: &Device) -> Self {
        let learnt = |index, input, output| {
            let layer =
                init_linear(Stream::new(1, "weights").substream(index), input, output, device);
            let learnt = |weight: Tensor<2>| Tensor::from_inner(weight).require_grad();
            let bias = Tensor::from_inner(Tensor::<1>::zeros([output], device)).require_grad();
            Linear {
                weight: Param::from_tensor(learnt(layer.weight.val())),
                bias: Some(Param::from_tensor(bias)),
            }
        };
        let rule = Disentangled::default();
        let pairs = (0..TIME as i64).flat_map(|q| (0..TIME as i64).map(move |k| q - k));
        let pairs: Vec<i64> = pairs.map(|distance| rule.row(distance)).collect();
        Self {
            precision,
            in_proj: learnt(0, WIDTH, 3 * WIDTH),
            out_proj: learnt(1, WIDTH, WIDTH),
            feed: [learnt(2, WIDTH, 4 * WIDTH), learnt(3, 4 * WIDTH, WIDTH)],
            scale: Tensor::from_inner(Tensor::<1>::ones([WIDTH], device)).require_grad(),
            rows: DistanceRows::new(TIME, |distance| rule.row(distance) as usize),
            pairs: Tensor::from_data(TensorData::new(pairs, [1, 1, TIME, TIME]), device),
        }
    }

    fn forward(&self, x: Tensor<2>, vectors: Tensor<2>, fused: bool) -> Tensor<2> {
        let stream = |index| Some(Stream::new(3, "dropout").substream(index));
        let qkv = linear_in(self.precision, x.clone(), &self.in_proj);
        let positions = linear_in(self.precision, vectors, &self.in_proj);
        let attended = match fused {
            true => {
                let settings = DisentangledAttention {
                    dropout: DROPOUT,
                    precision: self.precision,
                    ..DisentangledAttention::new(HEADS)
                };
                let qkv = qkv.reshape([BATCH, TIME, 3 * WIDTH]);
                disentangled_attention(qkv, positions, &self.rows, None, stream(0), &settings)
                    .reshape([BATCH * TIME, WIDTH])
            }
            false => self.composed(qkv, positions, stream(0)),
        };
        let x = linear_add(self.precision, x, attended, &self.out_proj, DROPOUT, stream(1));
        let x = layer_norm(x, self.scale.clone(), None, 1e-7);
        let network = FeedForward {
            precision: self.precision,
            first: &self.feed[0],
            activation: Activation::Gelu,
            second: &self.feed[1],
            dropout: DROPOUT,
            streams: [None, stream(2)],
        };
        layer_norm(feed_forward_add(x.clone(), x, &network), self.scale.clone(), None, 1e-7)
    }

    fn composed(&self, qkv: Tensor<2>, positions: Tensor<2>, stream: Option<Stream>) -> Tensor<2> {
        let size = WIDTH / HEADS;
        let heads = |x: &Tensor<2>, index: usize, [batch, rows]: [usize; 2]| {
            let x = x.clone().narrow(1, index * WIDTH, WIDTH);
            x.reshape([batch, rows, HEADS, size]).swap_dims(1, 2)
        };
        let times = |a: Tensor<4>, b: Tensor<4>| {
            product(self.precision, rounded(a, self.precision), rounded(b, self.precision))
        };
        let [q, k, v] = [0, 1, 2].map(|index| heads(&qkv, index, [BATCH, TIME]));
        let [of_queries, of_keys] =
            [0, 1].map(|index| heads(&positions, index, [1, 2 * SPAN]).swap_dims(2, 3));
        let scale = ((3 * size) as f64).sqrt().recip();
        let rows = self.pairs.clone().expand([BATCH, HEADS, TIME, TIME]);
        let q = q * scale;
        let scores = times(q.clone(), k.clone().swap_dims(2, 3));
        let scores = scores + times(q, of_keys).gather(3, rows.clone());
        let of_content = times(k * scale, of_queries).gather(3, rows.swap_dims(2, 3));
        let p = softmax(scores + of_content.swap_dims(2, 3), 3);
        let out = times(dropout(p, DROPOUT, stream), v);
        out.swap_dims(1, 2).reshape([BATCH * TIME, WIDTH])
    }
}

fn main() {
    let device = Device::flex();
    for precision in [Precision::F32, Precision::Bf16] {
        let layer = Layer::new(precision, &device);
        let drawn = |index, rows| {
            let x =
                normal(Stream::new(2, "noise").substream(index), [rows, WIDTH], 0.0, 1.0, &device);
            Tensor::from_inner(x).require_grad()
        };
        let (x, vectors) = (drawn(0, BATCH * TIME), drawn(1, 2 * SPAN));
        for fused in [false, true] {
            let (held, time) = measure(|| {
                let y = layer.forward(x.clone(), vectors.clone(), fused);
                let _ = y.square().mean().backward();
            });
            println!(
                "{precision:>5}, {}: {time:>7.1} ms, {held:>6.0} MiB",
                if fused { "one operation" } else { "composed     " }
            );
        }
    }
}
