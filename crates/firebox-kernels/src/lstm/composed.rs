//! One layer composed of Burn's own operations: for every device and float type, differentiated by
//! Burn, and the yardstick of the fused layers.

use burn::tensor::activation::sigmoid;
use burn::tensor::{Bool, Tensor, TensorData};

use super::{LstmState, Stack, Weights};
use crate::cpu::CellKind;
use crate::products::product;
use crate::rounded::rounded;

/// All directions of one layer.
///
/// # Shapes
/// - input: `[batch, time, input]`
/// - initial and last state: `[directions, batch, hidden]`
/// - output: `[batch, time, directions * hidden]`
pub(super) fn layer(
    stack: &Stack<'_>,
    input: Tensor<3>,
    lengths: Option<&[usize]>,
    weights: Vec<Weights>,
    initial: Option<LstmState>,
) -> (Tensor<3>, LstmState) {
    let [batch, time, _] = input.dims();
    // No step after the longest sample has anything to compute.
    let steps = lengths.map_or(time, |lengths| lengths.iter().copied().max().unwrap_or(0));
    let padding = lengths.filter(|_| steps > 0).map(|lengths| Padding::new(lengths, steps, &input));
    let input = match &padding {
        // Padding may hold NaN, which no later zero would take back out of the gradient.
        Some(padding) => padding.clear(input.narrow(1, 0, steps)),
        None => input,
    };
    let (mut outputs, mut hiddens, mut cells) = (vec![], vec![], vec![]);
    for (direction, weights) in weights.into_iter().enumerate() {
        let hidden = weights.weight_hh.dims()[1];
        let state = |part: fn(&LstmState) -> &Tensor<3>| match &initial {
            Some(state) => part(state).clone().narrow(0, direction, 1).reshape([batch, hidden]),
            None => Tensor::zeros([batch, hidden], (&input.device(), input.dtype())),
        };
        let start = (state(|state| &state.hidden), state(|state| &state.cell));
        let (mut output, (last_hidden, last_cell)) = if steps > 0 {
            run(stack, input.clone(), padding.as_ref(), weights, start, direction == 1)
        } else {
            (vec![], start)
        };
        if steps < time {
            let shape = [batch, time - steps, hidden];
            output.push(Tensor::zeros(shape, (&input.device(), input.dtype())));
        }
        outputs.push(Tensor::cat(output, 1));
        hiddens.push(last_hidden);
        cells.push(last_cell);
    }
    let last = LstmState { hidden: Tensor::stack(hiddens, 0), cell: Tensor::stack(cells, 0) };
    (Tensor::cat(outputs, 2), last)
}

type State = (Tensor<2>, Tensor<2>);

/// One direction: the outputs of each step in the order of time, each `[batch, 1, hidden]`, and the
/// state after the last one.
fn run(
    stack: &Stack<'_>,
    input: Tensor<3>,
    padding: Option<&Padding>,
    weights: Weights,
    start: State,
    reverse: bool,
) -> (Vec<Tensor<3>>, State) {
    let [batch, time, channels] = input.dims();
    let [width, hidden] = weights.weight_hh.dims();
    let round = |tensor| rounded(tensor, stack.precision);
    let weight_hh = round(weights.weight_hh.transpose());
    let multiply = |left, right| product(stack.precision, left, right);
    let rows = round(input.reshape([batch * time, channels]));
    let projected = multiply(rows, round(weights.weight_ih.transpose())) + weights.bias.unsqueeze();
    let mut projected: Vec<_> =
        steps(projected.reshape([batch, time, width])).into_iter().map(Some).collect();
    let mut outputs: Vec<Option<Tensor<3>>> = vec![None; time];
    let (mut h, mut c) = start;
    for index in 0..time {
        let t = if reverse { time - 1 - index } else { index };
        let Some(projected) = projected[t].take() else { continue };
        let gates = projected + multiply(round(h.clone()), weight_hh.clone());
        let gate = |n: usize| gates.clone().narrow(1, n * hidden, hidden);
        let (h_next, c_next) = match stack.cell {
            CellKind::Lstm => {
                let c_next = sigmoid(gate(1)) * c.clone() + sigmoid(gate(0)) * gate(2).tanh();
                (sigmoid(gate(3)) * c_next.clone().tanh(), c_next)
            }
            CellKind::Gru => {
                let n = (gate(2) + sigmoid(gate(0)) * gate(3)).tanh();
                let h_next = n.clone() + sigmoid(gate(1)) * (c.clone() - n);
                (h_next.clone(), h_next)
            }
        };
        let output = match padding.and_then(|padding| padding.at(t, hidden)) {
            None => {
                (h, c) = (h_next.clone(), c_next);
                h_next
            }
            Some(over) => {
                (h, c) = (
                    h_next.clone().mask_where(over.clone(), h),
                    c_next.mask_where(over.clone(), c),
                );
                h_next.mask_fill(over, 0.0)
            }
        };
        outputs[t] = Some(output.unsqueeze_dim(1));
    }
    (outputs.into_iter().flatten().collect(), (h, c))
}

/// The steps of a sequence, each `[batch, width]`. Cut in halves again and again: the gradient of a
/// slice is as large as what it was cut from, so cutting each step out of the whole would cost time
/// quadratic in the number of steps.
fn steps(sequence: Tensor<3>) -> Vec<Tensor<2>> {
    let [batch, time, width] = sequence.dims();
    if time == 1 {
        return vec![sequence.reshape([batch, width])];
    }
    let half = time / 2;
    let mut all = steps(sequence.clone().narrow(1, 0, half));
    all.extend(steps(sequence.narrow(1, half, time - half)));
    all
}

/// Which steps of which samples are padding.
struct Padding {
    /// For each step `[batch, 1]`, true where the sample has ended; `None` where none has.
    over: Vec<Option<Tensor<2, Bool>>>,
    /// The same as one tensor, `[batch, time, 1]`.
    all: Tensor<3, Bool>,
}

impl Padding {
    fn new(lengths: &[usize], steps: usize, like: &Tensor<3>) -> Self {
        let device = like.device();
        let batch = lengths.len();
        let over = (0..steps)
            .map(|t| {
                let mask: Vec<bool> = lengths.iter().map(|length| t >= *length).collect();
                mask.contains(&true)
                    .then(|| Tensor::from_data(TensorData::new(mask, [batch, 1]), &device))
            })
            .collect();
        let all: Vec<bool> =
            lengths.iter().flat_map(|length| (0..steps).map(move |t| t >= *length)).collect();
        let all = Tensor::from_data(TensorData::new(all, [batch, steps, 1]), &device);
        Self { over, all }
    }

    fn at(&self, t: usize, hidden: usize) -> Option<Tensor<2, Bool>> {
        let over = self.over[t].as_ref()?;
        let [batch, _] = over.dims();
        Some(over.clone().expand([batch, hidden]))
    }

    fn clear(&self, input: Tensor<3>) -> Tensor<3> {
        let shape = input.dims();
        input.mask_fill(self.all.clone().expand(shape), 0.0)
    }
}
