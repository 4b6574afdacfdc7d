//! What recurrent layers refuse before they compute: an input, lengths, a state or parameters that do not go together.

use burn::module::Param;
use burn::tensor::Tensor;

use super::{LstmState, Stack};
use crate::cpu::CellKind;
use crate::operands::{alike, listed, operand, types};

impl Stack<'_> {
    #[track_caller]
    pub(super) fn check(
        &self,
        input: &Tensor<3>,
        lengths: Option<&[usize]>,
        state: Option<&LstmState>,
    ) {
        let (name, gates) = match self.cell {
            CellKind::Lstm => ("LSTM", 4),
            CellKind::Gru => ("GRU", 3),
        };
        let [batch, time, channels] = input.dims();
        assert!(
            channels == self.config.input,
            "the input of the {name} is {:?} ([batch, time, input]) in {:?}, but the module was made for {} \
             input channels",
            input.dims(),
            input.dtype(),
            self.config.input
        );
        self.check_parameters(name, gates, input);
        if let Some(lengths) = lengths {
            assert!(
                lengths.len() == batch,
                "{} lengths were given to the {name} for an input of {:?} ([batch, time, input]) in {:?}: there \
                 must be one for each sample",
                lengths.len(),
                input.dims(),
                input.dtype()
            );
            if let Some(index) = lengths.iter().position(|length| *length > time) {
                panic!(
                    "sample {index} has length {}, longer than its input of {time} steps: the input of the {name} \
                     is {:?} ([batch, time, input]) in {:?}",
                    lengths[index],
                    input.dims(),
                    input.dtype()
                );
            }
        }
        if let Some(state) = state {
            let directions = self.config.layers * self.config.directions();
            let expected = [directions, batch, self.config.hidden];
            let operands = [
                operand("input", input),
                operand("hidden state", &state.hidden),
                operand("cell state", &state.cell),
            ];
            // A GRU's hidden state is its cell state, too.
            let operands = &operands[..if self.cell == CellKind::Lstm { 3 } else { 2 }];
            alike(format_args!("the {name}"), operands.iter().copied());
            for (part, found) in [("hidden", state.hidden.dims()), ("cell", state.cell.dims())] {
                assert!(
                    found == expected,
                    "the {part} state of the {name} is {found:?}, but [layers * directions, batch, \
                     hidden] is {expected:?} ({})",
                    types(operands.iter().copied())
                );
            }
        }
    }

    /// Refuses parameters, with so many gates, that do not go together with the input or with the configuration.
    #[track_caller]
    fn check_parameters(&self, name: &str, gates: usize, input: &Tensor<3>) {
        let (hidden, directions) = (self.config.hidden, self.config.directions());
        for (index, parameters) in self.parameters.iter().enumerate() {
            let (layer, direction) =
                (index / directions, ["forward", "reverse"][index % directions]);
            let [weight_ih, weight_hh] =
                [&parameters.weight_ih, &parameters.weight_hh].map(Param::val);
            let [bias_ih, bias_hh] = [&parameters.bias_ih, &parameters.bias_hh].map(Param::val);
            let operands = [
                operand("input", input),
                operand("weight_ih", &weight_ih),
                operand("weight_hh", &weight_hh),
                operand("bias_ih", &bias_ih),
                operand("bias_hh", &bias_hh),
            ];
            alike(
                format_args!("the {direction} direction of layer {layer} of the {name}"),
                operands,
            );
            let width = if layer == 0 { self.config.input } else { hidden * directions };
            let rows = gates * hidden;
            assert!(
                weight_ih.dims() == [rows, width]
                    && weight_hh.dims() == [rows, hidden]
                    && [bias_ih.dims(), bias_hh.dims()] == [[rows]; 2],
                "the {direction} direction of layer {layer} of the {name} was given {}: the weights must be [{rows}, \
                 {width}] ([{gates} * hidden, input]) and [{rows}, {hidden}] ([{gates} * hidden, hidden]), the biases \
                 [{rows}]",
                listed(operands)
            );
        }
    }
}
