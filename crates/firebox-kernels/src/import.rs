//! Weights from burn-nn's recurrent modules: the way in for a model that was trained with those.
//!
//! PyTorch's need no import: names, shapes and order of the gates are PyTorch's own, so a state dict
//! (as safetensors or through burn-store) loads as it is.

use burn::module::Param;
use burn::nn::activation::Activation;
use burn::nn::{BiGru, BiLstm, GateController, Linear};
use burn::tensor::Tensor;
use firebox_core::Precision;

use crate::lstm::Direction;
use crate::operands::{Operand, listed, of_one_type, on_one_device, operand};
use crate::{Gru, GruConfig, Lstm, LstmConfig};

/// Why burn-nn's layers cannot be taken over.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ImportError {
    /// A list without a layer.
    #[error("no layer was given; at least 1 is needed")]
    Empty,
    /// A setting that changes the formula.
    #[error(
        "layer {layer} has `{setting}`, which this module does not compute; keep burn-nn's for it"
    )]
    Setting {
        /// Index of the layer.
        layer: usize,
        /// The setting.
        setting: &'static str,
    },
    /// Parameters of one layer that differ in type or device.
    #[error(
        "layer {layer} has parameters of several types or on several devices, {found}; cast or move them \
         first, as in `module.to_device(&device)`"
    )]
    Types {
        /// Index of the layer.
        layer: usize,
        /// Its parameters.
        found: String,
    },
    /// Layers that do not fit on each other.
    #[error(
        "layer {layer} reads {input} channels into {hidden} units, but on top of the layers before it must read {expected_input} into {expected_hidden}"
    )]
    Shape {
        /// Index of the layer.
        layer: usize,
        /// Channels it reads.
        input: usize,
        /// Its hidden units.
        hidden: usize,
        /// Channels that the layer below gives.
        expected_input: usize,
        /// Hidden units of the first layer.
        expected_hidden: usize,
    },
}

impl Lstm {
    /// The same function as these layers of `burn::nn::Lstm`, each reading the outputs of the one
    /// before, without dropout between them. Where they have no bias, this has one of zero.
    ///
    /// The input is batch first here, whatever it is there.
    ///
    /// # Errors
    /// If a layer is reversed, clips, couples its gates or has other activation functions, or if
    /// the layers do not fit on each other, or their parameters differ in type or device.
    pub fn from_burn(layers: &[burn::nn::Lstm]) -> Result<Self, ImportError> {
        let layers: Vec<_> = layers.iter().map(|layer| vec![layer]).collect();
        import_lstm(&layers)
    }

    /// The same as [`from_burn`](Self::from_burn) for both directions.
    ///
    /// # Errors
    /// As there.
    pub fn from_burn_bidirectional(layers: &[BiLstm]) -> Result<Self, ImportError> {
        let layers: Vec<_> =
            layers.iter().map(|layer| vec![&layer.forward, &layer.reverse]).collect();
        import_lstm(&layers)
    }
}

impl Gru {
    /// The same function as these layers of `burn::nn::Gru`; see [`Lstm::from_burn`].
    ///
    /// # Errors
    /// If a layer applies its reset gate before the product (`reset_after` is false), clips or has
    /// other activation functions, or if the layers do not fit on each other.
    pub fn from_burn(layers: &[burn::nn::Gru]) -> Result<Self, ImportError> {
        let layers: Vec<_> = layers.iter().map(|layer| vec![layer]).collect();
        import_gru(&layers)
    }

    /// The same as [`from_burn`](Self::from_burn) for both directions.
    ///
    /// # Errors
    /// As there.
    pub fn from_burn_bidirectional(layers: &[BiGru]) -> Result<Self, ImportError> {
        let layers: Vec<_> =
            layers.iter().map(|layer| vec![&layer.forward, &layer.reverse]).collect();
        import_gru(&layers)
    }
}

/// Whether the gates are logistic and the candidate (and the output, if it has one) a tangent.
fn usual(gate: &Activation, tangents: &[&Activation]) -> bool {
    matches!(gate, Activation::Sigmoid(_))
        && tangents.iter().all(|function| matches!(function, Activation::Tanh(_)))
}

fn import_lstm(layers: &[Vec<&burn::nn::Lstm>]) -> Result<Lstm, ImportError> {
    let mut stack = Stack::new(layers.first().map_or(0, Vec::len));
    for (index, layer) in layers.iter().enumerate() {
        for (direction, lstm) in layer.iter().enumerate() {
            let refuse = |setting| Err(ImportError::Setting { layer: index, setting });
            // burn-nn's bidirectional module turns its second layer round by itself.
            if lstm.reverse && layer.len() == 1 {
                return refuse("reverse");
            }
            if lstm.clip.is_some() {
                return refuse("clip");
            }
            let Some(forget) = &lstm.forget_gate else { return refuse("input_forget") };
            let tangents = [&lstm.cell_activation, &lstm.hidden_activation];
            if lstm.input_forget || !usual(&lstm.gate_activation, &tangents) {
                return refuse("input_forget or another activation");
            }
            let gates = [&lstm.input_gate, forget, &lstm.cell_gate, &lstm.output_gate];
            stack.push(index, direction, &gates)?;
        }
    }
    let (shape, parameters) = stack.finish(layers.len())?;
    Ok(Lstm { config: shape, precision: Precision::F32, parameters })
}

fn import_gru(layers: &[Vec<&burn::nn::Gru>]) -> Result<Gru, ImportError> {
    let mut stack = Stack::new(layers.first().map_or(0, Vec::len));
    for (index, layer) in layers.iter().enumerate() {
        for (direction, gru) in layer.iter().enumerate() {
            let refuse = |setting| Err(ImportError::Setting { layer: index, setting });
            if !gru.reset_after {
                return refuse("reset_after = false");
            }
            if gru.clip.is_some() {
                return refuse("clip");
            }
            if !usual(&gru.gate_activation, &[&gru.hidden_activation]) {
                return refuse("another activation");
            }
            stack.push(index, direction, &[&gru.reset_gate, &gru.update_gate, &gru.new_gate])?;
        }
    }
    let (shape, parameters) = stack.finish(layers.len())?;
    let LstmConfig { input, hidden, layers, bidirectional, dropout } = shape;
    let config = GruConfig { input, hidden, layers, bidirectional, dropout };
    Ok(Gru { config, precision: Precision::F32, parameters })
}

/// All parameters of gates.
fn operands<'a>(gates: &[&'a GateController]) -> Vec<Operand<'a>> {
    let linears = gates.iter().flat_map(|gate| [&gate.input_transform, &gate.hidden_transform]);
    let parameters = linears.flat_map(|linear| {
        let bias = linear.bias.as_ref().map(|bias| operand("bias", &**bias));
        std::iter::once(operand("weight", &*linear.weight)).chain(bias)
    });
    parameters.collect()
}

/// A parameter made of these parts, without their history; frozen unless one of them `learns`.
fn joined<const D: usize>(
    parts: impl Iterator<Item = Tensor<D>>,
    learns: bool,
) -> Param<Tensor<D>> {
    let parts: Vec<_> = parts.collect();
    let tracked = parts.iter().any(Tensor::is_autodiff);
    let plain = parts.into_iter().map(|part| if part.is_autodiff() { part.inner() } else { part });
    let joined = Tensor::cat(plain.collect(), 0);
    if !tracked {
        return Param::from_tensor(joined);
    }
    let joined = Param::from_tensor(Tensor::from_inner(joined));
    if learns { joined } else { joined.set_require_grad(false) }
}

/// Directions of layers, as they are taken over one after the other.
struct Stack {
    directions: usize,
    /// Channels of the first layer and hidden units of all.
    sizes: Option<(usize, usize)>,
    parameters: Vec<Direction>,
}

impl Stack {
    fn new(directions: usize) -> Self {
        Self { directions, sizes: None, parameters: vec![] }
    }

    fn push(
        &mut self,
        layer: usize,
        direction: usize,
        gates: &[&GateController],
    ) -> Result<(), ImportError> {
        let [input, hidden] = gates[0].input_transform.weight.dims();
        let (first_input, units) = *self.sizes.get_or_insert((input, hidden));
        let expected_input = match layer {
            0 => first_input,
            _ => units * self.directions,
        };
        let fits = |linear: &Linear, rows: usize| linear.weight.dims() == [rows, units];
        let all_fit = gates.iter().all(|gate| {
            fits(&gate.input_transform, expected_input) && fits(&gate.hidden_transform, units)
        });
        if !all_fit || direction >= self.directions {
            let expected_hidden = units;
            return Err(ImportError::Shape {
                layer,
                input,
                hidden,
                expected_input,
                expected_hidden,
            });
        }
        let operands = operands(gates);
        let all = || operands.iter().copied();
        if !of_one_type(all()) || !on_one_device(all()) {
            let found = match on_one_device(all()) {
                true => listed(all()),
                false => all().map(|one| one.with_device()).collect::<Vec<_>>().join(", "),
            };
            return Err(ImportError::Types { layer, found });
        }
        let matrix = |part: fn(&GateController) -> &Linear| {
            let learns = gates.iter().any(|gate| part(gate).weight.val().is_require_grad());
            joined(gates.iter().map(|gate| part(gate).weight.val()).map(Tensor::transpose), learns)
        };
        let vector = |part: fn(&GateController) -> &Linear| {
            let learns = |gate: &&GateController| {
                let Linear { weight, bias } = part(gate);
                let of_weight = || weight.val().is_require_grad();
                bias.as_ref().map_or_else(of_weight, |bias| bias.val().is_require_grad())
            };
            let biases = gates.iter().map(|gate| {
                let linear = part(gate);
                let zeros = || {
                    let weight = linear.weight.val();
                    Tensor::zeros([units], (&weight.device(), weight.dtype()))
                };
                linear.bias.as_ref().map_or_else(zeros, Param::val)
            });
            joined(biases, gates.iter().any(learns))
        };
        self.parameters.push(Direction {
            weight_ih: matrix(|gate| &gate.input_transform),
            weight_hh: matrix(|gate| &gate.hidden_transform),
            bias_ih: vector(|gate| &gate.input_transform),
            bias_hh: vector(|gate| &gate.hidden_transform),
        });
        Ok(())
    }

    fn finish(self, layers: usize) -> Result<(LstmConfig, Vec<Direction>), ImportError> {
        let (input, hidden) = self.sizes.ok_or(ImportError::Empty)?;
        let bidirectional = self.directions == 2;
        let config = LstmConfig { layers, bidirectional, ..LstmConfig::new(input, hidden) };
        Ok((config, self.parameters))
    }
}
