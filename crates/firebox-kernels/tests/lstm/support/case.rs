//! One case: the same numbers through the float64 reference and through the crate.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor, TensorData};
use firebox_core::{Precision, Stream};
use firebox_kernels::{Lstm, LstmConfig, LstmState};

use super::reference::{Direction, Inputs, Outputs, Sizes};

/// Numbers that f32 holds exactly.
pub fn noise(stream: Stream, count: usize, scale: f64) -> Vec<f64> {
    let mut draws = stream.draws();
    (0..count).map(|_| f64::from((scale * draws.normal()) as f32)).collect()
}

/// A case's sizes, inputs and the gradients of its outputs, all drawn from a seed.
pub struct Case {
    pub config: LstmConfig,
    pub sizes: Sizes,
    pub inputs: Inputs,
    pub d: Outputs,
    pub dropout: Option<Stream>,
    pub state: bool,
    pub precision: Precision,
}

impl Case {
    pub fn new(config: LstmConfig, lengths: &[usize], time: usize, seed: u64) -> Self {
        let stream = Stream::new(seed, "case");
        let (batch, directions) = (lengths.len(), config.directions());
        let width = directions * config.hidden;
        let states = config.layers * width * batch;
        let scale = (config.hidden as f64).sqrt().recip();
        let inputs = Inputs {
            input: noise(stream.substream(0), batch * time * config.input, 1.0),
            h_0: noise(stream.substream(1), states, 0.7),
            c_0: noise(stream.substream(2), states, 1.0),
            directions: (0..config.layers * directions)
                .map(|index| {
                    let stream = stream.substream(10 + index as u64);
                    let rows = 4 * config.hidden;
                    let columns = if index < directions { config.input } else { width };
                    Direction {
                        weight_ih: noise(stream.substream(0), rows * columns, scale),
                        weight_hh: noise(stream.substream(1), rows * config.hidden, scale),
                        bias_ih: noise(stream.substream(2), rows, scale),
                        bias_hh: noise(stream.substream(3), rows, scale),
                    }
                })
                .collect(),
        };
        let d = Outputs {
            output: noise(stream.substream(3), batch * time * width, 1.0),
            h_n: noise(stream.substream(4), states, 1.0),
            c_n: noise(stream.substream(5), states, 1.0),
        };
        let dropout = (config.dropout > 0.0).then(|| stream.substream(6));
        let masks = dropout.map_or(vec![], |stream| {
            (1..config.layers as u64)
                .map(|layer| {
                    let mut draws = stream.substream(layer - 1).draws();
                    (0..batch * time * width)
                        .map(|_| match f64::from(draws.uniform()) >= config.dropout {
                            true => 1.0 / (1.0 - config.dropout),
                            false => 0.0,
                        })
                        .collect()
                })
                .collect()
        });
        let sizes = Sizes {
            batch,
            time,
            input: config.input,
            hidden: config.hidden,
            layers: config.layers,
            directions,
            lengths: lengths.to_vec(),
            masks,
        };
        Self { config, sizes, inputs, d, dropout, state: true, precision: Precision::F32 }
    }

    /// The same with an initial state of zero, which is then not passed.
    pub fn without_state(mut self) -> Self {
        self.state = false;
        self.inputs.h_0.fill(0.0);
        self.inputs.c_0.fill(0.0);
        self
    }

    /// The module with this case's parameters.
    pub fn module(&self, device: &Device) -> Lstm {
        struct Load<'a>(std::vec::IntoIter<&'a Vec<f64>>);
        impl ModuleMapper for Load<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let values = self.0.next().expect("a value for every parameter");
                param.map(|tensor| {
                    let loaded = float(values, tensor.dims(), &tensor.device());
                    if loaded.is_autodiff() { loaded.require_grad() } else { loaded }
                })
            }
        }
        let values: Vec<_> = self
            .inputs
            .directions
            .iter()
            .flat_map(|d| [&d.weight_ih, &d.weight_hh, &d.bias_ih, &d.bias_hh])
            .collect();
        let module = self.config.init(Stream::new(0, "replaced"), device);
        module.map(&mut Load(values.into_iter())).in_precision(self.precision)
    }

    /// Values and gradients as the crate computes them on the device, which must be one with
    /// autodiff. Without a state in the case its gradients are left zero.
    pub fn run(&self, device: &Device) -> (Outputs, Inputs) {
        let Sizes { batch, time, input, hidden, layers, directions, ref lengths, .. } = self.sizes;
        let module = self.module(device);
        let x = float(&self.inputs.input, [batch, time, input], device).require_grad();
        let states = [layers * directions, batch, hidden];
        let state = LstmState {
            hidden: float(&self.inputs.h_0, states, device).require_grad(),
            cell: float(&self.inputs.c_0, states, device).require_grad(),
        };
        let given = self.state.then(|| state.clone());
        let lengths = lengths.iter().any(|length| *length < time).then_some(lengths.as_slice());
        let (output, last) = module.forward(x.clone(), lengths, given, self.dropout);
        let weight = |data: &[f64], shape| float(data, shape, device);
        let loss = (output.clone() * weight(&self.d.output, output.dims())).sum()
            + (last.hidden.clone() * weight(&self.d.h_n, states)).sum()
            + (last.cell.clone() * weight(&self.d.c_n, states)).sum();
        let grads = loss.backward();
        let state_grad = |tensor: &Tensor<3>| {
            tensor.grad(&grads).map_or(vec![0.0; states.iter().product()], values)
        };
        struct Collect<'a>(&'a burn::tensor::Gradients, Vec<Vec<f64>>);
        impl ModuleVisitor for Collect<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                // Where no sample has a step, Burn's graph may not reach the parameters.
                let zeros = || vec![0.0; param.val().shape().num_elements()];
                self.1.push(param.val().grad(self.0).map_or_else(zeros, values));
            }
        }
        let mut collect = Collect(&grads, vec![]);
        module.visit(&mut collect);
        let mut parameters = collect.1.into_iter();
        let mut next = || parameters.next().expect("four a direction");
        let grads = Inputs {
            input: x.grad(&grads).map_or(vec![0.0; batch * time * input], values),
            h_0: state_grad(&state.hidden),
            c_0: state_grad(&state.cell),
            directions: (0..layers * directions)
                .map(|_| Direction {
                    weight_ih: next(),
                    weight_hh: next(),
                    bias_ih: next(),
                    bias_hh: next(),
                })
                .collect(),
        };
        let outputs =
            Outputs { output: values(output), h_n: values(last.hidden), c_n: values(last.cell) };
        (outputs, grads)
    }
}

/// A tensor of these numbers, rounded to f32.
pub fn float<const D: usize>(data: &[f64], shape: [usize; D], device: &Device) -> Tensor<D> {
    let data: Vec<f32> = data.iter().map(|v| *v as f32).collect();
    Tensor::from_data(TensorData::new(data, shape), device)
}

/// The numbers of a tensor.
pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f32>().map(f64::from).collect()
}
