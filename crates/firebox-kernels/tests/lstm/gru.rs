//! The GRU on random sizes: against a float64 forward pass written from the formula, with gradients
//! by finite differences; and the fused kernels against Burn's own operations.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{CpuKernels, Gru, GruConfig, LstmConfig};

use crate::support::case::{float, noise, values};
use crate::support::relative_error;

/// One case: sizes, and every number that goes in, in one list: input, states, parameters.
pub struct Case {
    config: GruConfig,
    lengths: Vec<usize>,
    time: usize,
    pub numbers: Vec<Vec<f64>>,
    /// Gradients of output and last states.
    d: [Vec<f64>; 2],
    pub precision: Precision,
}

impl Case {
    pub fn new(config: GruConfig, lengths: &[usize], time: usize, seed: u64) -> Self {
        let stream = Stream::new(seed, "gru");
        let (batch, directions, hidden) = (lengths.len(), config.directions(), config.hidden);
        let states = config.layers * directions * batch * hidden;
        let scale = (hidden as f64).sqrt().recip();
        let mut numbers = vec![
            noise(stream.substream(0), batch * time * config.input, 1.0),
            noise(stream.substream(1), states, 0.7),
        ];
        for index in 0..config.layers * directions {
            let input = if index < directions { config.input } else { directions * hidden };
            let counts = [3 * hidden * input, 3 * hidden * hidden, 3 * hidden, 3 * hidden];
            for (part, count) in counts.into_iter().enumerate() {
                let stream = stream.substream(10 + 4 * index as u64 + part as u64);
                numbers.push(noise(stream, count, scale));
            }
        }
        let d = [
            noise(stream.substream(2), batch * time * directions * hidden, 1.0),
            noise(stream.substream(3), states, 1.0),
        ];
        let (lengths, precision) = (lengths.to_vec(), Precision::F32);
        Self { config, lengths, time, numbers, d, precision }
    }

    /// Outputs and last states in float64, one sample and one unit at a time.
    fn reference(&self, numbers: &[Vec<f64>]) -> [Vec<f64>; 2] {
        let (batch, time, hidden) = (self.lengths.len(), self.time, self.config.hidden);
        let directions = self.config.directions();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let mut last = numbers[1].clone();
        let (mut layer_input, mut channels) = (numbers[0].clone(), self.config.input);
        for layer in 0..self.config.layers {
            let mut output = vec![0.0; batch * time * directions * hidden];
            for direction in 0..directions {
                let index = layer * directions + direction;
                let [w_ih, w_hh, b_ih, b_hh] = &numbers[2 + 4 * index..][..4] else {
                    unreachable!("four parameters")
                };
                for (sample, &length) in self.lengths.iter().enumerate() {
                    let at = (index * batch + sample) * hidden;
                    let mut h = numbers[1][at..][..hidden].to_vec();
                    for step in 0..length {
                        let t = if direction == 1 { length - 1 - step } else { step };
                        let x = &layer_input[(sample * time + t) * channels..][..channels];
                        let dot = |w: &[f64], row: usize, v: &[f64]| -> f64 {
                            v.iter().zip(&w[row * v.len()..]).map(|(v, w)| v * w).sum()
                        };
                        h = (0..hidden)
                            .map(|unit| {
                                let [r, z, n] = [unit, hidden + unit, 2 * hidden + unit];
                                let from_x = |row| dot(w_ih, row, x) + b_ih[row];
                                let from_h = |row| dot(w_hh, row, &h) + b_hh[row];
                                let reset = sigmoid(from_x(r) + from_h(r));
                                let update = sigmoid(from_x(z) + from_h(z));
                                let new = (from_x(n) + reset * from_h(n)).tanh();
                                (1.0 - update) * new + update * h[unit]
                            })
                            .collect();
                        let to = ((sample * time + t) * directions + direction) * hidden;
                        output[to..][..hidden].copy_from_slice(&h);
                    }
                    last[at..][..hidden].copy_from_slice(&h);
                }
            }
            (layer_input, channels) = (output, directions * hidden);
        }
        [layer_input, last]
    }

    fn loss(&self, numbers: &[Vec<f64>]) -> f64 {
        let results = self.reference(numbers);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        dot(&results[0], &self.d[0]) + dot(&results[1], &self.d[1])
    }

    /// The gradients of all numbers by central differences.
    fn differences(&self) -> Vec<Vec<f64>> {
        let mut numbers = self.numbers.clone();
        let parts: Vec<_> = numbers.iter().map(Vec::len).collect();
        let mut gradient = |part: usize, index: usize| {
            let value = numbers[part][index];
            let mut at = |by: f64| {
                numbers[part][index] = value + by;
                self.loss(&numbers)
            };
            let difference = (at(1e-5) - at(-1e-5)) / 2e-5;
            numbers[part][index] = value;
            difference
        };
        parts
            .into_iter()
            .enumerate()
            .map(|(part, count)| (0..count).map(|index| gradient(part, index)).collect())
            .collect()
    }

    /// Results and gradients by the crate; the gradients in the order of the numbers.
    pub fn run(&self) -> ([Vec<f64>; 2], Vec<Vec<f64>>) {
        struct Load<'a>(std::slice::Iter<'a, Vec<f64>>);
        impl ModuleMapper for Load<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let values = self.0.next().expect("a value for every parameter");
                param.map(|tensor| float(values, tensor.dims(), &tensor.device()).require_grad())
            }
        }
        struct Collect<'a>(&'a burn::tensor::Gradients, Vec<Vec<f64>>);
        impl ModuleVisitor for Collect<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let zeros = || vec![0.0; param.val().shape().num_elements()];
                self.1.push(param.val().grad(self.0).map_or_else(zeros, values));
            }
        }
        let device = Device::flex().autodiff();
        let GruConfig { input, hidden, layers, .. } = self.config;
        let (batch, directions) = (self.lengths.len(), self.config.directions());
        let module: Gru = self.config.init(Stream::new(0, "replaced"), &device);
        let module = module.map(&mut Load(self.numbers[2..].iter())).in_precision(self.precision);
        let x = float(&self.numbers[0], [batch, self.time, input], &device).require_grad();
        let states = [layers * directions, batch, hidden];
        let state = float(&self.numbers[1], states, &device).require_grad();
        let lengths = Some(self.lengths.as_slice());
        let (output, last) = module.forward(x.clone(), lengths, Some(state.clone()), None);
        let loss = (output.clone() * float(&self.d[0], output.dims(), &device)).sum()
            + (last.clone() * float(&self.d[1], states, &device)).sum();
        let grads = loss.backward();
        let of = |tensor: &Tensor<3>| {
            tensor.grad(&grads).map_or(vec![0.0; tensor.shape().num_elements()], values)
        };
        let mut collect = Collect(&grads, vec![of(&x), of(&state)]);
        module.visit(&mut collect);
        ([values(output), values(last)], collect.1)
    }
}

fn config(input: usize, hidden: usize, layers: usize, bidirectional: bool) -> GruConfig {
    GruConfig { layers, bidirectional, ..GruConfig::new(input, hidden) }
}

#[track_caller]
fn check(case: &Case) {
    let results = case.reference(&case.numbers);
    let gradients = case.differences();
    for kernels in CpuKernels::available() {
        let (ours, our_gradients) = kernels.force(|| case.run());
        let expected = results.iter().chain(&gradients);
        for (part, (ours, expected)) in ours.iter().chain(&our_gradients).zip(expected).enumerate()
        {
            let error = relative_error(ours, expected);
            let lengths = &case.lengths;
            assert!(error < 1e-5, "{kernels:?}: part {part} off by {error:.2e}, {lengths:?}");
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    check(&Case::new(config(3, 5, 1, false), &[4, 4, 4], 4, 1));
    check(&Case::new(config(2, 17, 1, true), &[3, 3], 3, 2));
    check(&Case::new(config(2, 4, 2, true), &[5, 0, 2, 1], 6, 3));
    check(&Case::new(config(1, 1, 1, true), &[1], 1, 4));
    let mut draws = Stream::new(6, "cases").draws();
    for seed in 0..6 {
        let mut below = |bound| draws.below(bound) as usize;
        let config = config(1 + below(4), 1 + below(8), 1 + below(2), below(2) == 1);
        let (time, batch) = (1 + below(6), 1 + below(5));
        let lengths: Vec<_> = (0..batch).map(|_| below(time as u64 + 1)).collect();
        check(&Case::new(config, &lengths, time, 100 + seed));
    }
}

#[test]
fn the_fused_kernels_agree_with_burns_operations() {
    let mut draws = Stream::new(7, "cases").draws();
    for seed in 0..8 {
        let mut below = |bound| draws.below(bound) as usize;
        let config = config(1 + below(20), 1 + below(70), 1 + below(3), below(2) == 1);
        let (time, batch) = (1 + below(30), 1 + below(70));
        let lengths: Vec<_> = (0..batch).map(|_| below(time as u64 + 1)).collect();
        let case = Case::new(config, &lengths, time, 200 + seed);
        let composed = CpuKernels::Composed.force(|| case.run());
        for kernels in CpuKernels::available().into_iter().skip(1) {
            let (ours, gradients) = kernels.force(|| case.run());
            let expected = composed.0.iter().chain(&composed.1);
            for (ours, expected) in ours.iter().chain(&gradients).zip(expected) {
                let error = relative_error(ours, expected);
                assert!(error < 2e-5, "{kernels:?}: off by {error:.2e}");
            }
        }
    }
}

#[test]
fn outputs_alone_are_those_of_a_forward_pass() {
    let device = Device::flex().autodiff();
    for (layers, lengths) in [(1, [5, 5, 5]), (2, [3, 0, 5])] {
        let lstm = LstmConfig { layers, bidirectional: true, ..LstmConfig::new(3, 6) };
        let gru = GruConfig { layers, bidirectional: true, ..GruConfig::new(3, 6) };
        let stream = Stream::new(layers as u64, "outputs");
        let (lstm, gru) = (lstm.init(stream, &device), gru.init(stream.substream(1), &device));
        let input = noise(stream.substream(2), 3 * 5 * 3, 1.0);
        let check = |run: &dyn Fn(Tensor<3>) -> [Tensor<3>; 2]| {
            let with_gradient = |which: usize| {
                let input = float::<3>(&input, [3, 5, 3], &device).require_grad();
                let output = run(input.clone())[which].clone();
                let gradients = (output.clone() * output.clone()).sum().backward();
                (values(output), values(input.grad(&gradients).unwrap()))
            };
            assert_eq!(with_gradient(0), with_gradient(1), "{layers} layers");
        };
        let lengths = Some(&lengths[..]);
        check(&|x| {
            [lstm.forward(x.clone(), lengths, None, None).0, lstm.outputs(x, lengths, None)]
        });
        check(&|x| [gru.forward(x.clone(), lengths, None, None).0, gru.outputs(x, lengths, None)]);
    }
}
