//! Attention in float64, written from the formula and sharing nothing with the kernels.

use firebox_core::Stream;
use firebox_kernels::AttentionWindow;

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
    /// Which rows are valid, beside the lengths.
    pub query_mask: Option<Vec<bool>>,
    pub key_mask: Option<Vec<bool>>,
    pub causal: bool,
    pub window: Option<AttentionWindow>,
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

    /// Masks of q, k, v and the result.
    pub fn masks(&self) -> [Option<&[bool]>; 4] {
        let (queries, keys) = (self.query_mask.as_deref(), self.key_mask.as_deref());
        [queries, keys, keys, queries]
    }

    /// Whether it can be asked of one tensor that holds queries, keys and values.
    pub fn packs(&self) -> bool {
        self.queries == self.keys
            && self.query_lengths == self.key_lengths
            && self.query_mask == self.key_mask
    }

    /// The result and the gradients of q, k and v.
    pub fn solve(&self) -> [Vec<f64>; 4] {
        let [q, k, v, d] = &self.values;
        let width = self.width();
        let mut out = vec![0.0; d.len()];
        let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
        let scale = self.scale.unwrap_or(1.0 / (self.size as f64).sqrt());
        for sample in 0..self.batch {
            let valid = |lengths: &Option<Vec<usize>>, mask: &Option<Vec<bool>>, all: usize| {
                let length = lengths.as_ref().map_or(all, |lengths| lengths[sample]);
                let of = |row: &usize| mask.as_ref().is_none_or(|mask| mask[sample * all + row]);
                (0..length).filter(of).collect::<Vec<usize>>()
            };
            let queries = valid(&self.query_lengths, &self.query_mask, self.queries);
            let keys = valid(&self.key_lengths, &self.key_mask, self.keys);
            for head in 0..self.heads {
                let at = |rows: usize, row: usize| {
                    let start = (sample * rows + row) * width + head * self.size;
                    start..start + self.size
                };
                for (number, i) in queries.iter().copied().enumerate() {
                    let row = at(self.queries, i);
                    // Dropout and the window count valid rows alone.
                    let sees = |(key, j): &(usize, usize)| {
                        (!self.causal || *j <= i) && self.is_near(number, *key)
                    };
                    let seen: Vec<(usize, usize)> =
                        keys.iter().copied().enumerate().filter(sees).collect();
                    let p = softmax(
                        seen.iter()
                            .map(|(_, j)| scale * dot(&q[row.clone()], &k[at(self.keys, *j)])),
                    );
                    let keep: Vec<f64> = seen
                        .iter()
                        .map(|(key, _)| self.factor(sample, head, number, *key))
                        .collect();
                    let dp: Vec<f64> = seen
                        .iter()
                        .zip(&keep)
                        .map(|((_, j), keep)| keep * dot(&d[row.clone()], &v[at(self.keys, *j)]))
                        .collect();
                    let mean: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
                    for (key, (_, j)) in seen.into_iter().enumerate() {
                        let ds = p[key] * (dp[key] - mean) * scale;
                        for (a, b) in row.clone().zip(at(self.keys, j)) {
                            out[a] += p[key] * keep[key] * v[b];
                            dv[b] += p[key] * keep[key] * d[a];
                            dq[a] += ds * k[b];
                            dk[b] += ds * q[a];
                        }
                    }
                }
            }
        }
        [out, dq, dk, dv]
    }

    /// Whether valid key `j` is in the window of valid query `i`.
    fn is_near(&self, i: usize, j: usize) -> bool {
        let Some(AttentionWindow { reach, global }) = self.window else { return true };
        j < global || (i as i64 - j as i64).unsigned_abs() <= reach as u64
    }

    /// What the probability of valid key `j` for valid query `i` is multiplied by, as the documentation says.
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
