//! The GRU module: configuration and parameters. Its layers run as an LSTM's do, with another cell.

use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use serde::{Deserialize, Serialize};

use crate::cpu::CellKind;
use crate::lstm::{Direction, Stack, Weights, recurrent_module};
use crate::{LstmConfig, LstmConfigError, LstmState};

/// The shape of a GRU. Make the module with [`init`](GruConfig::init).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GruConfig {
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

impl GruConfig {
    /// One layer in one direction, without dropout.
    pub fn new(input: usize, hidden: usize) -> Self {
        Self { input, hidden, layers: 1, bidirectional: false, dropout: 0.0 }
    }

    /// Directions of each layer: 1 or 2.
    pub fn directions(&self) -> usize {
        1 + usize::from(self.bidirectional)
    }

    /// The LSTM of the same shape.
    fn shape(&self) -> LstmConfig {
        let Self { input, hidden, layers, bidirectional, dropout } = *self;
        LstmConfig { input, hidden, layers, bidirectional, dropout }
    }

    /// Checks what the types cannot say, for configurations that were read from a file.
    ///
    /// # Errors
    /// If a size is zero or the dropout is not a probability.
    pub fn validate(&self) -> Result<(), LstmConfigError> {
        self.shape().validate()
    }

    /// Makes the module. Every parameter is uniform in ±1/√`hidden`, as PyTorch's `nn.GRU` starts;
    /// each is drawn from its own part of the stream.
    ///
    /// # Panics
    /// If [`validate`](GruConfig::validate) refuses the configuration.
    pub fn init(&self, stream: Stream, device: &Device) -> Gru {
        if let Err(error) = self.validate() {
            panic!("{error}");
        }
        let parameters = Direction::stack(&self.shape(), 3, stream, device);
        Gru { config: self.clone(), precision: Precision::F32, parameters }
    }
}

/// Gated recurrent units over whole sequences, batch first.
///
/// Parameters carry PyTorch's names and shapes, as those of [`Lstm`](crate::Lstm) do, with three
/// gates instead of four: reset, update, candidate. For each step, with `σ` the logistic function
/// and `∘` the product by elements:
///
/// ```text
/// r, z = σ of (x W_ihᵀ + b_ih + h W_hhᵀ + b_hh)
/// n = tanh(x W_inᵀ + b_in + r ∘ (h W_hnᵀ + b_hn))
/// h' = (1 - z) ∘ n + z ∘ h
/// ```
///
/// Source: Cho et al., 2014, with the reset gate after the product, as in cuDNN, PyTorch and
/// `burn::nn::Gru` with `reset_after`.
///
/// An infinite input gives NaN, where PyTorch's candidate is 1 or -1: both parts of the candidate are columns of one
/// product, with weights of zero for what each does not take.
#[derive(Clone, Debug)]
pub struct Gru {
    pub(crate) config: GruConfig,
    pub(crate) precision: Precision,
    /// Layer by layer; in each layer the forward direction, then the reverse one.
    pub(crate) parameters: Vec<Direction>,
}

recurrent_module!(Gru);

impl Gru {
    /// The configuration that this module was made from.
    pub fn config(&self) -> &GruConfig {
        &self.config
    }

    /// Runs the sequences through all layers and returns the outputs and the last hidden states.
    /// Lengths, dropout and padding are treated as by [`Lstm::forward`](crate::Lstm::forward).
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
        state: Option<Tensor<3>>,
        dropout: Option<Stream>,
    ) -> (Tensor<3>, Tensor<3>) {
        // To the kernels the hidden state of a GRU is also its cell state: one carries it into the
        // products, the other past the gates. Both parts of its gradient are added up by the graph.
        let state = state.map(|hidden| LstmState { cell: hidden.clone(), hidden });
        let shape = self.config.shape();
        let weights = |index: usize| columns(&self.parameters[index]);
        let (output, last) = self.stack(&shape).forward(input, lengths, state, dropout, weights);
        (output, last.hidden)
    }

    /// The output alone, as [`Lstm::outputs`](crate::Lstm::outputs) gives it.
    ///
    /// # Panics
    /// As [`forward`](Self::forward).
    #[track_caller]
    pub fn outputs(
        &self,
        input: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<3> {
        let shape = self.config.shape();
        let weights = |index: usize| columns(&self.parameters[index]);
        self.stack(&shape).walk(input, lengths, None, dropout, weights).0
    }

    fn stack<'a>(&'a self, shape: &'a LstmConfig) -> Stack<'a> {
        Stack {
            cell: CellKind::Gru,
            config: shape,
            precision: self.precision,
            parameters: &self.parameters,
        }
    }

    /// Each layer as a module of its own, as [`Lstm::layers`](crate::Lstm::layers) gives them.
    pub fn layers(&self) -> Vec<Self> {
        let directions = self.config.directions();
        let layer = |(index, parameters): (usize, &[Direction])| {
            let input =
                if index == 0 { self.config.input } else { self.config.hidden * directions };
            let config = GruConfig { input, layers: 1, ..self.config.clone() };
            Self { config, precision: self.precision, parameters: parameters.to_vec() }
        };
        self.parameters.chunks(directions).enumerate().map(layer).collect()
    }

    /// The same module with its products computed in this type; see
    /// [`Lstm::in_precision`](crate::Lstm::in_precision).
    #[must_use]
    pub fn in_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The type of the operands of products.
    pub fn precision(&self) -> Precision {
        self.precision
    }
}

/// The four columns of the cell: reset, update, and the candidate's parts from the input and from
/// the hidden state.
fn columns(direction: &Direction) -> Weights {
    let (ih, hh) = (direction.weight_ih.val(), direction.weight_hh.val());
    let (bias_ih, bias_hh) = (direction.bias_ih.val(), direction.bias_hh.val());
    let [_, input] = ih.dims();
    let [_, hidden] = hh.dims();
    let zeros = |columns| Tensor::<2>::zeros([hidden, columns], (&ih.device(), ih.dtype()));
    let gates = |tensor: &Tensor<1>| tensor.clone().narrow(0, 0, 2 * hidden);
    let candidate = |tensor: &Tensor<1>| tensor.clone().narrow(0, 2 * hidden, hidden);
    Weights {
        weight_ih: Tensor::cat(vec![ih.clone(), zeros(input)], 0),
        weight_hh: Tensor::cat(
            vec![
                hh.clone().narrow(0, 0, 2 * hidden),
                zeros(hidden),
                hh.narrow(0, 2 * hidden, hidden),
            ],
            0,
        ),
        bias: Tensor::cat(
            vec![gates(&bias_ih) + gates(&bias_hh), candidate(&bias_ih), candidate(&bias_hh)],
            0,
        ),
    }
}
