//! Attention in float64, written from the formula and sharing nothing with the kernels.

use firebox_core::Stream;

/// Queries, keys and values as `[batch, rows, heads · size]`, and what is done with them.
#[derive(Clone, Debug)]
pub struct Problem {
    pub batch: usize,
    pub queries: usize,
    pub keys: usize,
    pub heads: usize,
    pub size: usize,
    pub query_lengths: Option<Vec<usize>>,
    pub key_lengths: Option<Vec<usize>>,
    pub causal: bool,
    pub scale: Option<f64>,
    pub dropout: f64,
    pub stream: Option<Stream>,
    /// q, k, v and the gradient of the result.
    pub values: [Vec<f64>; 4],
}

impl Problem {
    pub fn width(&self) -> usize {
        self.heads * self.size
    }

    /// Rows of q, k, v and the result.
    pub fn rows(&self) -> [usize; 4] {
        [self.queries, self.keys, self.keys, self.queries]
    }

    /// The result and the gradients of q, k and v.
    pub fn solve(&self) -> [Vec<f64>; 4] {
        let [q, k, v, d] = &self.values;
        let width = self.width();
        let mut out = vec![0.0; d.len()];
        let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
        let scale = self.scale.unwrap_or(1.0 / (self.size as f64).sqrt());
        for sample in 0..self.batch {
            let length = |lengths: &Option<Vec<usize>>, all: usize| {
                lengths.as_ref().map_or(all, |lengths| lengths[sample].min(all))
            };
            let queries = length(&self.query_lengths, self.queries);
            let keys = length(&self.key_lengths, self.keys);
            for head in 0..self.heads {
                let at = |rows: usize, row: usize| {
                    let start = (sample * rows + row) * width + head * self.size;
                    start..start + self.size
                };
                for i in 0..queries {
                    let row = at(self.queries, i);
                    let seen = if self.causal { keys.min(i + 1) } else { keys };
                    let p = softmax(
                        (0..seen).map(|j| scale * dot(&q[row.clone()], &k[at(self.keys, j)])),
                    );
                    let keep: Vec<f64> =
                        (0..seen).map(|j| self.factor(sample, head, i, j)).collect();
                    let dp: Vec<f64> = (0..seen)
                        .map(|j| keep[j] * dot(&d[row.clone()], &v[at(self.keys, j)]))
                        .collect();
                    let mean: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
                    for j in 0..seen {
                        let of_key = at(self.keys, j);
                        let ds = p[j] * (dp[j] - mean) * scale;
                        for (a, b) in row.clone().zip(of_key) {
                            out[a] += p[j] * keep[j] * v[b];
                            dv[b] += p[j] * keep[j] * d[a];
                            dq[a] += ds * k[b];
                            dk[b] += ds * q[a];
                        }
                    }
                }
            }
        }
        [out, dq, dk, dv]
    }

    /// What the probability of key `j` for query `i` is multiplied by, as the documentation says.
    fn factor(&self, sample: usize, head: usize, i: usize, j: usize) -> f64 {
        let Some(stream) = self.stream else { return 1.0 };
        let stream = stream.substream((sample * self.heads + head) as u64);
        let block = stream.block(i as u64 + (1 << 32) * (j as u64 / 8));
        let word = block[j % 8 / 2];
        let bits = if j.is_multiple_of(2) { word & 0xffff } else { word >> 16 };
        let threshold = (self.dropout * 65536.0).round();
        if threshold == 65536.0 || f64::from(bits) < threshold {
            return 0.0;
        }
        1.0 / (1.0 - threshold / 65536.0)
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn softmax(scores: impl Iterator<Item = f64>) -> Vec<f64> {
    let scores: Vec<f64> = scores.collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}
