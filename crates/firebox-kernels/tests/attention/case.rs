//! Runs a problem through the public functions and measures how far off the results are.

use burn::tensor::{Device, Tensor, TensorData};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    Attention, attention, attention_masked, self_attention, self_attention_masked,
};

use crate::reference::Problem;

/// Numbers that f32 holds exactly.
pub fn noise(stream: Stream, count: usize, scale: f64) -> Vec<f64> {
    let mut draws = stream.draws();
    (0..count).map(|_| f64::from((scale * draws.normal()) as f32)).collect()
}

/// A problem on noise, without padding and dropout.
pub fn problem(seed: u64, [batch, queries, keys, heads, size]: [usize; 5]) -> Problem {
    let stream = Stream::new(seed, "attention");
    let width = heads * size;
    let rows = [queries, keys, keys, queries];
    let values = [0, 1, 2, 3]
        .map(|index| noise(stream.substream(index as u64), batch * rows[index] * width, 1.0));
    Problem {
        batch,
        queries,
        keys,
        heads,
        size,
        query_lengths: None,
        key_lengths: None,
        query_mask: None,
        key_mask: None,
        causal: false,
        window: None,
        scale: None,
        dropout: 0.0,
        stream: None,
        values,
    }
}

/// A mask of `[batch, rows]`, for one sample after the other with gaps, padding on the left, nothing, everything,
/// one row, and padding on the right.
pub fn mask(seed: u64, [batch, rows]: [usize; 2]) -> Vec<bool> {
    let mut draws = Stream::new(seed, "mask").draws();
    let mut mask = Vec::with_capacity(batch * rows);
    for sample in 0..batch {
        let at = draws.below(rows as u64) as usize;
        mask.extend((0..rows).map(|row| match sample % 6 {
            0 => draws.chance(0.6),
            1 => row >= at,
            2 => false,
            3 => true,
            4 => row == at,
            _ => row <= at,
        }));
    }
    mask
}

/// A problem on noise of sequences with themselves and a mask.
pub fn masked(seed: u64, [batch, time, heads, size]: [usize; 4]) -> Problem {
    let mask = Some(mask(seed, [batch, time]));
    let query_mask = mask.clone();
    Problem { query_mask, key_mask: mask, ..problem(seed, [batch, time, time, heads, size]) }
}

/// NaN wherever a mask of the problem leaves a row out.
pub fn with_nan_outside(problem: &Problem) -> Problem {
    let mut dirty = problem.clone();
    let width = problem.width();
    for (values, mask) in dirty.values.iter_mut().zip(problem.masks()) {
        let rows = values.chunks_mut(width).zip(mask.into_iter().flatten());
        rows.filter(|(_, valid)| !**valid).for_each(|(row, _)| row.fill(f64::NAN));
    }
    dirty
}

/// Whether the result, or a gradient, is finite and has zeros wherever a mask of the problem leaves a row out.
pub fn is_clear_outside(problem: &Problem, results: &[Vec<f32>; 4]) -> bool {
    let [q, k, v, out] = problem.masks();
    results.iter().zip([out, q, k, v]).all(|(values, mask)| {
        let mut rows = values.chunks(problem.width()).zip(mask.into_iter().flatten());
        values.iter().all(|value| value.is_finite())
            && rows.all(|(row, valid)| *valid || row.iter().all(|value| *value == 0.0))
    })
}

pub fn settings(problem: &Problem, precision: Precision) -> Attention {
    Attention {
        causal: problem.causal,
        window: problem.window,
        scale: problem.scale,
        dropout: problem.dropout,
        precision,
        ..Attention::new(problem.heads)
    }
}

pub fn tensor(data: &[f64], shape: [usize; 3], device: &Device) -> Tensor<3> {
    let data: Vec<f32> = data.iter().map(|value| *value as f32).collect();
    Tensor::from_data(TensorData::new(data, shape), device)
}

pub fn values(tensor: Tensor<3>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// [`run_on`] the CPU.
pub fn run(problem: &Problem, precision: Precision) -> [Vec<f32>; 4] {
    run_on(&Device::flex(), problem, precision)
}

/// [`run_packed_on`] the CPU.
pub fn run_packed(problem: &Problem, precision: Precision) -> [Vec<f32>; 4] {
    run_packed_on(&Device::flex(), problem, precision)
}

/// The result and the gradients of q, k and v from three tensors.
pub fn run_on(device: &Device, problem: &Problem, precision: Precision) -> [Vec<f32>; 4] {
    let device = device.clone().autodiff();
    let tensors: Vec<_> = (0..4)
        .map(|index| {
            let shape = [problem.batch, problem.rows()[index], problem.width()];
            tensor(&problem.values[index], shape, &device)
        })
        .collect();
    let [q, k, v] = [0, 1, 2].map(|index| tensors[index].clone().require_grad());
    let (queries, keys) = (problem.query_lengths.as_deref(), problem.key_lengths.as_deref());
    let (settings, stream) = (settings(problem, precision), problem.stream);
    let (a, b, c) = (q.clone(), k.clone(), v.clone());
    let out = match problem.masks() {
        [None, None, ..] => attention(a, b, c, queries, keys, stream, &settings),
        [queries, keys, ..] => attention_masked(a, b, c, queries, keys, stream, &settings),
    };
    let grads = (out.clone() * tensors[3].clone()).sum().backward();
    let [dq, dk, dv] = [q, k, v].map(|x| values(x.grad(&grads).expect("tracked")));
    [values(out), dq, dk, dv]
}

/// The same from one tensor that holds all three side by side.
pub fn run_packed_on(device: &Device, problem: &Problem, precision: Precision) -> [Vec<f32>; 4] {
    assert!(problem.packs());
    let device = device.clone().autodiff();
    let shape = [problem.batch, problem.keys, problem.width()];
    let parts = [0, 1, 2].map(|index| tensor(&problem.values[index], shape, &device));
    let qkv = Tensor::cat(parts.to_vec(), 2).require_grad();
    let settings = settings(problem, precision);
    let lengths = problem.key_lengths.as_deref();
    let out = match problem.key_mask.as_deref() {
        None => self_attention(qkv.clone(), lengths, problem.stream, &settings),
        mask => self_attention_masked(qkv.clone(), mask, problem.stream, &settings),
    };
    let d = tensor(&problem.values[3], shape, &device);
    let grads = (out.clone() * d).sum().backward();
    let d = qkv.grad(&grads).expect("tracked");
    let part = |index| values(d.clone().narrow(2, index * problem.width(), problem.width()));
    [values(out), part(0), part(1), part(2)]
}

/// ‖actual − expected‖ / ‖expected‖
pub fn relative_error(actual: &[f32], expected: &[impl Copy + Into<f64>]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let expected = || expected.iter().map(|e| (*e).into());
    let square = |sum: f64, (a, e): (&f32, f64)| sum + (f64::from(*a) - e).powi(2);
    let error = actual.iter().zip(expected()).fold(0.0, square).sqrt();
    let norm = expected().map(|e| e * e).sum::<f64>().sqrt();
    if norm == 0.0 { error } else { error / norm }
}

pub const NAMES: [&str; 4] = ["the result", "dq", "dk", "dv"];
