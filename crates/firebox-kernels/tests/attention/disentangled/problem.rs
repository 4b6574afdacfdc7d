//! A problem of disentangled attention, its solution in float64, written from the formula and sharing nothing with
//! the kernels, and its run through the public function.

use burn::tensor::{Device, Tensor, TensorData};
use firebox_core::{Precision, Stream};
use firebox_kernels::{DisentangledAttention, DistanceRows, disentangled_attention};

use crate::case::noise;

/// A problem in float64, and its solution written from the formula.
#[derive(Clone, Debug)]
pub struct Problem {
    pub batch: usize,
    pub time: usize,
    pub heads: usize,
    pub size: usize,
    /// Whether content attends to distances, and distances to content.
    pub terms: [bool; 2],
    /// Rows of the table, and the row of each distance from `1 - time` on.
    pub known: usize,
    pub rows: Vec<usize>,
    /// Parts of a row of `positions`: 2, or 3 with values that nobody reads.
    pub parts: usize,
    pub lengths: Option<Vec<usize>>,
    pub dropout: f64,
    pub stream: Option<Stream>,
    /// qkv, positions, and the gradient of the result.
    pub values: [Vec<f64>; 3],
}

/// DeBERTa's rule: distances up to `middle` one by one, then shared buckets.
fn buckets(distance: i64) -> usize {
    let far = ((distance.abs() as f64 / 2.0).ln() * 2.0).ceil() as i64 + 2;
    let bucket = if distance.abs() <= 2 { distance } else { distance.signum() * far };
    (bucket + 8).clamp(0, 15) as usize
}

fn clamped(distance: i64) -> usize {
    (distance + 5).clamp(0, 9) as usize
}

/// In no order, with rows that no distance has before, between and after.
fn scattered(distance: i64) -> usize {
    3 + (distance * distance * 7 + 3 * distance).rem_euclid(23) as usize
}

/// The row of a distance, and how many rows there are.
type Table = (fn(i64) -> usize, usize);

const TABLES: [Table; 3] = [(buckets, 16), (clamped, 10), (scattered, 31)];

pub fn problem(seed: u64, [batch, time, heads, size]: [usize; 4]) -> Problem {
    let (row, known) = TABLES[seed as usize % 3];
    let parts = 2 + (seed / 3 % 2) as usize;
    let stream = Stream::new(seed, "disentangled");
    let width = heads * size;
    let counts = [batch * time * 3 * width, known * parts * width, batch * time * width];
    let values = [0, 1, 2].map(|index| noise(stream.substream(index as u64), counts[index], 1.0));
    let farthest = time as i64 - 1;
    let rows = (-farthest..=farthest).map(row).collect();
    Problem {
        batch,
        time,
        heads,
        size,
        terms: [true; 2],
        known,
        rows,
        parts,
        lengths: None,
        dropout: 0.0,
        stream: None,
        values,
    }
}

impl Problem {
    pub fn width(&self) -> usize {
        self.heads * self.size
    }

    fn length(&self, sample: usize) -> usize {
        self.lengths.as_ref().map_or(self.time, |lengths| lengths[sample])
    }

    /// What each probability, `[batch, head, query, key]`, is multiplied by.
    fn factors(&self) -> Vec<f64> {
        let count = self.batch * self.heads * self.time * self.time;
        let Some(stream) = self.stream.filter(|_| self.dropout > 0.0) else {
            return vec![1.0; count];
        };
        let mut drawn = vec![0.0; count];
        stream.fill_uniform(0, &mut drawn);
        let kept = |x: f32| f64::from(x) >= self.dropout;
        drawn.iter().map(|x| if kept(*x) { 1.0 / (1.0 - self.dropout) } else { 0.0 }).collect()
    }

    /// The result and the gradients of qkv and positions.
    pub fn solve(&self) -> [Vec<f64>; 3] {
        let Self { batch, time, heads, size, .. } = *self;
        let [qkv, table, d_out] = &self.values;
        let width = self.width();
        let mut out = vec![0.0; d_out.len()];
        let (mut d_qkv, mut d_table) = (vec![0.0; qkv.len()], vec![0.0; table.len()]);
        let factors = self.factors();
        let terms = 1 + self.terms.iter().filter(|term| **term).count();
        let scale = 1.0 / ((size * terms) as f64).sqrt();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        for (sample, head) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
            let length = self.length(sample);
            let at = |part: usize, step: usize| {
                let start = ((sample * time + step) * 3 + part) * width + head * size;
                start..start + size
            };
            let of_table = |part: usize, row: usize| {
                let start = (row * self.parts + part) * width + head * size;
                start..start + size
            };
            for i in 0..length {
                let row = |j: usize| self.rows[i + time - 1 - j];
                let q = &qkv[at(0, i)];
                let score = |j: usize| {
                    let k = &qkv[at(1, j)];
                    let mut score = dot(q, k);
                    if self.terms[0] {
                        score += dot(q, &table[of_table(1, row(j))]);
                    }
                    if self.terms[1] {
                        score += dot(k, &table[of_table(0, row(j))]);
                    }
                    score * scale
                };
                let scores: Vec<f64> = (0..length).map(score).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let powers: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
                let sum: f64 = powers.iter().sum();
                let start = (sample * time + i) * width + head * size;
                let d = &d_out[start..start + size];
                let factor = |j: usize| factors[((sample * heads + head) * time + i) * time + j];
                let dp: Vec<f64> =
                    (0..length).map(|j| factor(j) * dot(d, &qkv[at(2, j)])).collect();
                let mean: f64 = powers.iter().zip(&dp).map(|(p, dp)| p / sum * dp).sum();
                for j in 0..length {
                    let p = powers[j] / sum;
                    let slope = p * (dp[j] - mean) * scale;
                    for n in 0..size {
                        let (q, k, v) =
                            (at(0, i).start + n, at(1, j).start + n, at(2, j).start + n);
                        out[start + n] += p * factor(j) * qkv[v];
                        d_qkv[v] += p * factor(j) * d[n];
                        d_qkv[q] += slope * qkv[k];
                        d_qkv[k] += slope * qkv[q];
                        let [of_q, of_k] = [0, 1].map(|part| of_table(part, row(j)).start + n);
                        if self.terms[0] {
                            d_qkv[q] += slope * table[of_k];
                            d_table[of_k] += slope * qkv[q];
                        }
                        if self.terms[1] {
                            d_qkv[k] += slope * table[of_q];
                            d_table[of_q] += slope * qkv[k];
                        }
                    }
                }
            }
        }
        [out, d_qkv, d_table]
    }

    pub fn distances(&self) -> DistanceRows {
        let farthest = self.time as i64 - 1;
        DistanceRows::new(self.time, |distance| self.rows[(distance + farthest) as usize])
    }

    pub fn settings(&self, precision: Precision) -> DisentangledAttention {
        let [content_to_position, position_to_content] = self.terms;
        DisentangledAttention {
            content_to_position,
            position_to_content,
            dropout: self.dropout,
            precision,
            ..DisentangledAttention::new(self.heads)
        }
    }

    /// qkv, positions, and the gradient of the result, on a device.
    pub fn tensors(&self, device: &Device) -> (Tensor<3>, Tensor<2>, Tensor<3>) {
        let f32s = |values: &[f64]| values.iter().map(|x| *x as f32).collect::<Vec<_>>();
        let [qkv, positions, d] = &self.values;
        let width = self.width();
        let content = |values, width| {
            let shape = [self.batch, self.time, width];
            Tensor::<3>::from_data(TensorData::new(f32s(values), shape), device)
        };
        let shape = [self.known, self.parts * width];
        let positions = Tensor::from_data(TensorData::new(f32s(positions), shape), device);
        (content(qkv, 3 * width), positions, content(d, width))
    }

    pub fn run(&self, precision: Precision) -> [Vec<f32>; 3] {
        let (qkv, positions, d) = self.tensors(&Device::flex().autodiff());
        let (qkv, positions) = (qkv.require_grad(), positions.require_grad());
        let out = disentangled_attention(
            qkv.clone(),
            positions.clone(),
            &self.distances(),
            self.lengths.as_deref(),
            self.stream,
            &self.settings(precision),
        );
        let grads = (out.clone() * d).sum().backward();
        let (of_qkv, of_positions) = (qkv.grad(&grads), positions.grad(&grads));
        // Without terms of distances, the composed way reads none of them.
        let none = || Tensor::zeros(positions.dims(), &Device::flex());
        [values(out), values(of_qkv.expect("tracked")), values(of_positions.unwrap_or_else(none))]
    }
}

pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}
