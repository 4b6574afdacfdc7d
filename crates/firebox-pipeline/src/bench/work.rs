//! How much arithmetic a step cannot do without: the products of the forward pass, and twice as many
//! backward. Gate functions, normalisation, losses and dropout are left out, so a time that follows
//! from this is a floor.

use super::config::{Sizes, Workload};

/// Additions and multiplications of one step.
///
/// A product of `[m, k]` with `[k, n]` counts `2 m k n` forward, and as many for each of its two
/// gradients; the input of the model has none.
pub(super) fn operations(workload: Workload, sizes: Sizes, evaluate: bool) -> f64 {
    let Sizes { batch, length, hidden, .. } = sizes;
    let (first, rest) = match workload {
        Workload::LstmMae => {
            let (first, own) = bilstm(length, 4, hidden);
            let upper = bilstm(length, 2 * hidden, hidden);
            let decoder = length * (dense(2 * hidden, hidden) + dense(hidden, 4));
            (first, own + upper.0 + upper.1 + decoder)
        }
        Workload::LstmForecast => {
            let lower = (24 * dense(1, 4 * 128), 24 * dense(128, 4 * 128));
            let upper = 24 * dense(128 + 64, 4 * 64);
            (lower.0, lower.1 + upper + dense(76, 32) + dense(32, 3))
        }
        Workload::Transformer => {
            let layers = 3 * encoder_layer(length, hidden);
            (length * dense(4, hidden), layers + dense(hidden, 64) + dense(64, 3))
        }
        Workload::BertBase => {
            // Tokens are looked up, not multiplied.
            let last = match evaluate {
                true => first_of_layer(length, hidden),
                false => encoder_layer(length, hidden),
            };
            (0, 11 * encoder_layer(length, hidden) + last + dense(hidden, 9))
        }
        Workload::Mlp => {
            (dense(length * 4, 128), dense(128, 96) + dense(96, 64) + dense(64, 32) + dense(32, 3))
        }
        Workload::CnnLstm => {
            let convolution =
                |steps: usize, channels: usize, units| steps * dense(3 * channels, units);
            let middle = convolution(length / 2, 64, 128) + convolution(length / 4, 128, 256);
            let steps = length / 8;
            let (lower, upper) = (bilstm(steps, 256, hidden), bilstm(steps, 2 * hidden, hidden));
            let head = steps * dense(2 * hidden, 512) + dense(1024, 5);
            let rest = middle + lower.0 + lower.1 + upper.0 + upper.1 + head;
            (convolution(length, 1024, 64), rest)
        }
    };
    let of_a_sample = match evaluate {
        true => first + rest,
        false => 2 * first + 3 * rest,
    };
    batch as f64 * of_a_sample as f64
}

/// Bytes that an AdamW step reads and writes for each parameter: weight, gradient and both moments
/// in, weight and both moments out.
pub(super) const OPTIMIZER_BYTES: f64 = 28.0;

/// Operations of a linear layer on one row.
fn dense(inputs: usize, outputs: usize) -> usize {
    2 * inputs * outputs
}

/// Operations of a bidirectional LSTM layer: on its input, and on its own state.
fn bilstm(steps: usize, inputs: usize, hidden: usize) -> (usize, usize) {
    (2 * steps * dense(inputs, 4 * hidden), 2 * steps * dense(hidden, 4 * hidden))
}

/// Operations of an encoder layer whose feed-forward network is four times as wide.
fn encoder_layer(length: usize, width: usize) -> usize {
    let attention = 2 * dense(length, width);
    length
        * (dense(width, 3 * width) + attention + dense(width, width) + 2 * dense(width, 4 * width))
}

/// Operations of the same layer for its first step alone: keys and values of all steps, and the rest of
/// one.
fn first_of_layer(length: usize, width: usize) -> usize {
    let one = 2 * dense(width, width) + 2 * dense(length, width) + 2 * dense(width, 4 * width);
    length * dense(width, 2 * width) + one
}

#[cfg(test)]
mod tests {
    use super::*;

    fn giga(workload: Workload, batch: usize, evaluate: bool) -> f64 {
        let hidden = workload.default_hidden().unwrap_or(0);
        let sizes = Sizes { batch, length: workload.default_length(), hidden, samples: batch };
        operations(workload, sizes, evaluate) / 1e9
    }

    /// The same products, added up by hand from the layers of the peer's script.
    #[test]
    fn the_references_take_what_their_layers_add_up_to() {
        let check = |found: f64, expected: f64| {
            assert!((found / expected - 1.0).abs() < 1e-3, "{found} GFLOP, not {expected}");
        };
        // 2 · 105 · 8 · 128 · [(4 + 128) + (256 + 128)] and the decoder, 2 · 105 · (256 · 128 + 128 · 4).
        let forward = 512.0 * (210.0 * 1024.0 * 516.0 + 210.0 * 33_280.0) / 1e9;
        check(giga(Workload::LstmMae, 512, true), forward);
        let input = 512.0 * 210.0 * 1024.0 * 4.0 / 1e9;
        check(giga(Workload::LstmMae, 512, false), 3.0 * forward - input);
        // 12 layers of 12 · 768² weights on 128 tokens, and two products of 128 × 128 × 768 each.
        let layer = 128.0 * 2.0 * (12.0 * 768.0 * 768.0 + 2.0 * 128.0 * 768.0);
        check(giga(Workload::BertBase, 16, false), 3.0 * 16.0 * (12.0 * layer + 13_824.0) / 1e9);
        // In evaluation, the last layer has keys and values of all tokens and the rest of the first.
        let last =
            128.0 * 2.0 * 2.0 * 768.0 * 768.0 + 2.0 * (10.0 * 768.0 * 768.0 + 2.0 * 128.0 * 768.0);
        check(giga(Workload::BertBase, 16, true), 16.0 * (11.0 * layer + last + 13_824.0) / 1e9);
        // 420 · 128 + 128 · 96 + 96 · 64 + 64 · 32 + 32 · 3 weights.
        check(giga(Workload::Mlp, 512, true), 512.0 * 2.0 * 74_336.0 / 1e9);
        // 101 GFLOP were counted for a training step by other means (LOG.md), the input's gradient left out.
        assert!((95.0..105.0).contains(&giga(Workload::CnnLstm, 64, false)));
        assert!((105.0..112.0).contains(&giga(Workload::Transformer, 256, false)));
        assert!(
            giga(Workload::LstmForecast, 128, false)
                < giga(Workload::LstmForecast, 128, true) * 3.0
        );
    }
}
