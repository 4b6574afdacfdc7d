//! The LSTM module: configuration, state, the walk through layers and directions, which a GRU shares.
//!
//! What one layer computes is in [`fused`] and [`composed`]; this file does not touch gates.

mod check;
mod composed;
mod fused;
#[cfg(feature = "cube")]
mod gpu;
mod module;

use std::ops::Range;

use burn::module::Param;
use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use serde::{Deserialize, Serialize};

use crate::cpu::CellKind;
use crate::device::tied;
use crate::{dropout, uniform};

pub(crate) use module::recurrent_module;

/// The shape of an LSTM. Make the module with [`init`](LstmConfig::init).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LstmConfig {
    /// Channels of the input at each step.
    pub input: usize,
    /// Hidden units of each layer and direction.
    pub hidden: usize,
    /// Layers on top of each other; each reads the outputs of the one below.
    #[serde(default = "one")]
    pub layers: usize,
    /// Whether each layer also reads the sequence backwards, from the last valid step to the first.
    #[serde(default)]
    pub bidirectional: bool,
    /// Probability of dropout on the output of every layer but the last.
    #[serde(default)]
    pub dropout: f64,
}

fn one() -> usize {
    1
}

/// What is wrong with an [`LstmConfig`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LstmConfigError {
    /// A size of zero.
    #[error("`{field}` of a recurrent layer is 0; it must be at least 1")]
    Zero {
        /// The field's name.
        field: &'static str,
    },
    /// A probability outside of `[0, 1]`.
    #[error(
        "`dropout` between recurrent layers is {found}; it must be a probability between 0 and 1"
    )]
    Dropout {
        /// The value found.
        found: f64,
    },
}

impl LstmConfig {
    /// One layer in one direction, without dropout.
    pub fn new(input: usize, hidden: usize) -> Self {
        Self { input, hidden, layers: 1, bidirectional: false, dropout: 0.0 }
    }

    /// Directions of each layer: 1 or 2.
    pub fn directions(&self) -> usize {
        1 + usize::from(self.bidirectional)
    }

    /// Checks what the types cannot say, for configurations that were read from a file.
    ///
    /// # Errors
    /// If a size is zero or the dropout is not a probability.
    pub fn validate(&self) -> Result<(), LstmConfigError> {
        for (field, size) in
            [("input", self.input), ("hidden", self.hidden), ("layers", self.layers)]
        {
            if size == 0 {
                return Err(LstmConfigError::Zero { field });
            }
        }
        if !(0.0..=1.0).contains(&self.dropout) {
            return Err(LstmConfigError::Dropout { found: self.dropout });
        }
        Ok(())
    }

    /// Makes the module. Every parameter is uniform in ±1/√`hidden`, as PyTorch's `nn.LSTM`
    /// starts; each is drawn from its own part of the stream.
    ///
    /// # Panics
    /// If [`validate`](LstmConfig::validate) refuses the configuration.
    pub fn init(&self, stream: Stream, device: &Device) -> Lstm {
        if let Err(error) = self.validate() {
            panic!("{error}");
        }
        let parameters = Direction::stack(self, 4, stream, device);
        Lstm { config: self.clone(), precision: Precision::F32, parameters }
    }
}

/// Long short-term memory over whole sequences, batch first.
///
/// The parameters of layer `k` are `weight_ih_lk`, `weight_hh_lk`, `bias_ih_lk` and `bias_hh_lk`,
/// those of the reverse direction end in `_reverse`: PyTorch's names, shapes
/// (`[4 * hidden, input]`, `[4 * hidden, hidden]`, `[4 * hidden]`) and order of the gates (input,
/// forget, cell, output), so that a state dict of `torch.nn.LSTM` loads as it is.
///
/// For each step, with `σ` the logistic function and `∘` the product by elements:
///
/// ```text
/// i, f, g, o = σ, σ, tanh, σ of (x W_ihᵀ + b_ih + h W_hhᵀ + b_hh)
/// c' = f ∘ c + i ∘ g
/// h' = o ∘ tanh(c')
/// ```
///
/// Source: Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et al., 2000.
#[derive(Clone, Debug)]
pub struct Lstm {
    pub(crate) config: LstmConfig,
    pub(crate) precision: Precision,
    /// Layer by layer; in each layer the forward direction, then the reverse one.
    pub(crate) parameters: Vec<Direction>,
}

/// The parameters of one direction of one layer.
#[derive(Clone, Debug)]
pub(crate) struct Direction {
    pub(crate) weight_ih: Param<Tensor<2>>,
    pub(crate) weight_hh: Param<Tensor<2>>,
    pub(crate) bias_ih: Param<Tensor<1>>,
    pub(crate) bias_hh: Param<Tensor<1>>,
}

impl Direction {
    /// All directions of all layers, with `gates` blocks of hidden units.
    pub(crate) fn stack(
        config: &LstmConfig,
        gates: usize,
        stream: Stream,
        device: &Device,
    ) -> Vec<Self> {
        let width = config.hidden * config.directions();
        (0..config.layers * config.directions())
            .map(|index| {
                let input = if index < config.directions() { config.input } else { width };
                let stream = stream.substream(index as u64);
                Self::init(input, config.hidden, gates, stream, device)
            })
            .collect()
    }

    fn init(input: usize, hidden: usize, gates: usize, stream: Stream, device: &Device) -> Self {
        let bound = (hidden as f64).sqrt().recip();
        let matrix = |index, columns| {
            let shape = [gates * hidden, columns];
            Param::from_tensor(uniform(stream.substream(index), shape, -bound, bound, device))
        };
        let vector = |index| {
            let shape = [gates * hidden];
            Param::from_tensor(uniform(stream.substream(index), shape, -bound, bound, device))
        };
        Self {
            weight_ih: matrix(0, input),
            weight_hh: matrix(1, hidden),
            bias_ih: vector(2),
            bias_hh: vector(3),
        }
    }

    fn weights(&self) -> Weights {
        Weights {
            weight_ih: self.weight_ih.val(),
            weight_hh: self.weight_hh.val(),
            bias: self.bias_ih.val() + self.bias_hh.val(),
        }
    }
}

/// What one direction of one layer computes with: weights into the four columns of a cell.
pub(crate) struct Weights {
    /// `[4 * hidden, input]`
    pub(crate) weight_ih: Tensor<2>,
    /// `[4 * hidden, hidden]`
    pub(crate) weight_hh: Tensor<2>,
    /// `[4 * hidden]`: the sum of both biases.
    pub(crate) bias: Tensor<1>,
}

/// The state of an LSTM between two steps.
#[derive(Clone, Debug)]
pub struct LstmState {
    /// Hidden state, `[layers * directions, batch, hidden]`, in the order of the parameters.
    pub hidden: Tensor<3>,
    /// Cell state, of the same shape.
    pub cell: Tensor<3>,
}

impl LstmState {
    /// The part of one layer, `[directions, batch, hidden]`.
    fn layer(&self, layer: usize, directions: usize) -> Self {
        let part = |state: &Tensor<3>| state.clone().narrow(0, layer * directions, directions);
        Self { hidden: part(&self.hidden), cell: part(&self.cell) }
    }
}

recurrent_module!(Lstm);

impl Lstm {
    /// The configuration that this module was made from.
    pub fn config(&self) -> &LstmConfig {
        &self.config
    }

    /// Runs the sequences through all layers.
    ///
    /// Steps at and after a sample's length are padding: whatever they hold, they leave the state
    /// as it is, their output is zero, and no gradient reaches them. The reverse direction starts
    /// at the last valid step. A sample of length zero keeps its initial state. `dropout` is the
    /// stream of this call's masks; `None` means evaluation. The state defaults to zero.
    ///
    /// # Shapes
    /// - input: `[batch, time, input]`
    /// - lengths: one per sample, at most `time`
    /// - state, given and returned: `[layers * directions, batch, hidden]`
    /// - output: `[batch, time, directions * hidden]`, the forward direction first
    ///
    /// # Panics
    /// If a shape does not fit, or if input, parameters and state differ in type or device; the message holds the
    /// shapes and types.
    #[track_caller]
    pub fn forward(
        &self,
        input: Tensor<3>,
        lengths: Option<&[usize]>,
        state: Option<LstmState>,
        dropout: Option<Stream>,
    ) -> (Tensor<3>, LstmState) {
        let weights = |index: usize| self.parameters[index].weights();
        self.stack().forward(input, lengths, state, dropout, weights)
    }

    /// The output of [`forward`](Self::forward) from a state of zeros, alone: the states of several layers are not put
    /// together, which are a few launches less on a GPU.
    ///
    /// # Shapes
    /// As there.
    ///
    /// # Panics
    /// As there.
    #[track_caller]
    pub fn outputs(
        &self,
        input: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<3> {
        let weights = |index: usize| self.parameters[index].weights();
        self.stack().walk(input, lengths, None, dropout, weights).0
    }

    fn stack(&self) -> Stack<'_> {
        Stack {
            cell: CellKind::Lstm,
            config: &self.config,
            precision: self.precision,
            parameters: &self.parameters,
        }
    }

    /// Each layer as a module of its own, with the same parameters, the lowest first. Between two of
    /// them stands the dropout of the configuration, with `stream.substream(index of the lower)`.
    pub fn layers(&self) -> Vec<Self> {
        let directions = self.config.directions();
        let layer = |(index, parameters): (usize, &[Direction])| {
            let input =
                if index == 0 { self.config.input } else { self.config.hidden * directions };
            let config = LstmConfig { input, layers: 1, ..self.config.clone() };
            Self { config, precision: self.precision, parameters: parameters.to_vec() }
        };
        self.parameters.chunks(directions).enumerate().map(layer).collect()
    }

    /// The same module with its products computed in this type: what is multiplied is rounded to
    /// it, while sums, gates, states and gradients of parameters stay f32. Weights are rounded once
    /// a call, never where they are stored.
    ///
    /// The fused CPU kernels compute `F32`, `Tf32` (as f32, which is more exact), `Bf16`, and `F16` as
    /// f32 on inputs, weights and a first state that are [rounded](crate::rounded()), and with rounded
    /// gradients of these; states between two steps are f32. In `Bf16` they keep gates for the gradients with the eight
    /// bits of bf16, of the value or of what is missing to 1, whichever is smaller. Those of GPUs compute what the device can
    /// store, and store gates and outputs in that type. In any other case Burn's own operations compute
    /// in f32 on rounded operands, and round the gradients of weights, too, which is right and slow; on a GPU that does not have
    /// the type, they panic.
    #[must_use]
    pub fn in_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The type of the operands of products.
    pub fn precision(&self) -> Precision {
        self.precision
    }
}

/// Recurrent layers on top of each other: the walk that LSTM and GRU share.
pub(crate) struct Stack<'a> {
    pub(crate) cell: CellKind,
    pub(crate) config: &'a LstmConfig,
    pub(crate) precision: Precision,
    /// Layer by layer; in each layer the forward direction, then the reverse one.
    pub(crate) parameters: &'a [Direction],
}

impl Stack<'_> {
    /// [`Lstm::forward`], with the weights of each direction of each layer by its index.
    #[track_caller]
    pub(crate) fn forward(
        &self,
        input: Tensor<3>,
        lengths: Option<&[usize]>,
        state: Option<LstmState>,
        dropout: Option<Stream>,
        weights: impl Fn(usize) -> Weights,
    ) -> (Tensor<3>, LstmState) {
        let (output, mut layers) = self.walk(input, lengths, state, dropout, weights);
        if layers.len() == 1 {
            return (output, layers.remove(0));
        }
        let (hiddens, cells): (Vec<_>, Vec<_>) =
            layers.into_iter().map(|LstmState { hidden, cell }| (hidden, cell)).unzip();
        (output, LstmState { hidden: Tensor::cat(hiddens, 0), cell: Tensor::cat(cells, 0) })
    }

    /// The output, and the last states of the layers, one behind the other: of each layer, or of all.
    #[track_caller]
    pub(crate) fn walk(
        &self,
        input: Tensor<3>,
        lengths: Option<&[usize]>,
        state: Option<LstmState>,
        dropout: Option<Stream>,
        weights: impl Fn(usize) -> Weights,
    ) -> (Tensor<3>, Vec<LstmState>) {
        self.check(&input, lengths, state.as_ref());
        let [batch, time, _] = input.dims();
        if batch == 0 || time == 0 {
            let (output, state) = self.of_nothing(&input, state);
            return (output, vec![state]);
        }
        let LstmConfig { layers, .. } = *self.config;
        let directions = self.config.directions();
        // All samples at full length: the same as no lengths, and cheaper.
        let lengths = lengths.filter(|lengths| lengths.iter().any(|length| *length < time));
        let (mut output, mut states) = (input, vec![]);
        for layer in 0..layers {
            if layer > 0 {
                let stream = dropout.map(|stream| stream.substream(layer as u64 - 1));
                output = self::dropout(output, self.config.dropout, stream);
            }
            let initial = state.as_ref().map(|state| state.layer(layer, directions));
            let indices = layer * directions..(layer + 1) * directions;
            let (above, last) = self.layer(output, lengths, initial, indices, &weights);
            output = above;
            states.push(last);
        }
        (output, states)
    }

    /// What comes of no sample or no step: an output without a number, and the state that was given, else zeros. All
    /// that they would have been made of has zeros for its gradient.
    fn of_nothing(&self, input: &Tensor<3>, state: Option<LstmState>) -> (Tensor<3>, LstmState) {
        let ([batch, time, _], directions) = (input.dims(), self.config.directions());
        let LstmConfig { hidden, layers, .. } = *self.config;
        let zeros = |shape: [usize; 3]| Tensor::<3>::zeros(shape, (&input.device(), input.dtype()));
        let mut output = tied(zeros([batch, time, directions * hidden]), input);
        for Direction { weight_ih, weight_hh, bias_ih, bias_hh } in self.parameters {
            output = tied(tied(output, &weight_ih.val()), &weight_hh.val());
            output = tied(tied(output, &bias_ih.val()), &bias_hh.val());
        }
        let LstmState { hidden, cell } = match state {
            Some(state) => {
                output = tied(tied(output, &state.hidden), &state.cell);
                state
            }
            None => {
                let nothing = || zeros([layers * directions, batch, hidden]);
                LstmState { hidden: nothing(), cell: nothing() }
            }
        };
        // A state may hold numbers, to which the sum of an output without any adds zero.
        let state = LstmState { hidden: tied(hidden, &output), cell: tied(cell, &output) };
        (output, state)
    }

    /// One layer, whose directions have these indices: in a GPU's kernels or in those of the CPU, else composed.
    fn layer(
        &self,
        input: Tensor<3>,
        lengths: Option<&[usize]>,
        initial: Option<LstmState>,
        indices: Range<usize>,
        weights: &impl Fn(usize) -> Weights,
    ) -> (Tensor<3>, LstmState) {
        #[cfg(feature = "cube")]
        if let Some(kernels) = gpu::kernels(self, &input, indices.len()) {
            return gpu::layer(kernels, input, lengths, &self.parameters[indices], initial);
        }
        let weights: Vec<_> = indices.map(weights).collect();
        match fused::kernels(&input, &weights, initial.as_ref()) {
            Some(kernels) => fused::layer(kernels, self, input, lengths, weights, initial),
            None => composed::layer(self, input, lengths, weights, initial),
        }
    }
}
