//! A stacked LSTM in float64, one sample and one number at a time, with its gradient by hand.
//!
//! Written from the formula, for clearness, without a look at how the crate computes it. Its own
//! gradient is checked against finite differences in `numbers.rs`.

/// One direction of one layer, in PyTorch's layout.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Direction {
    pub weight_ih: Vec<f64>,
    pub weight_hh: Vec<f64>,
    pub bias_ih: Vec<f64>,
    pub bias_hh: Vec<f64>,
}

/// Everything that goes in; gradients have the same shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Inputs {
    /// `[batch, time, input]`
    pub input: Vec<f64>,
    /// `[layers * directions, batch, hidden]`
    pub h_0: Vec<f64>,
    /// `[layers * directions, batch, hidden]`
    pub c_0: Vec<f64>,
    /// Layer by layer, forward then reverse.
    pub directions: Vec<Direction>,
}

impl Inputs {
    /// All numbers by name.
    pub fn parts(&self) -> Vec<(String, &Vec<f64>)> {
        let mut parts = vec![
            ("input".to_owned(), &self.input),
            ("h_0".to_owned(), &self.h_0),
            ("c_0".to_owned(), &self.c_0),
        ];
        for (index, direction) in self.directions.iter().enumerate() {
            parts.push((format!("weight_ih {index}"), &direction.weight_ih));
            parts.push((format!("weight_hh {index}"), &direction.weight_hh));
            parts.push((format!("bias_ih {index}"), &direction.bias_ih));
            parts.push((format!("bias_hh {index}"), &direction.bias_hh));
        }
        parts
    }
}

/// What comes out, and the gradients that the loss gives to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Outputs {
    /// `[batch, time, directions * hidden]`
    pub output: Vec<f64>,
    /// `[layers * directions, batch, hidden]`
    pub h_n: Vec<f64>,
    /// `[layers * directions, batch, hidden]`
    pub c_n: Vec<f64>,
}

/// The sizes of a case.
#[derive(Clone, Debug)]
pub struct Sizes {
    pub batch: usize,
    pub time: usize,
    pub input: usize,
    pub hidden: usize,
    pub layers: usize,
    pub directions: usize,
    pub lengths: Vec<usize>,
    /// For each layer but the last the factor of each output, `[batch, time, directions * hidden]`.
    pub masks: Vec<Vec<f64>>,
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// One step of one sample, as the backward pass needs it.
struct Step {
    t: usize,
    x: Vec<f64>,
    h: Vec<f64>,
    c: Vec<f64>,
    /// i, f, g, o
    gates: [Vec<f64>; 4],
    c_next: Vec<f64>,
}

/// The values, and the gradients for `d` if it is given.
pub fn run(sizes: &Sizes, inputs: &Inputs, d: Option<&Outputs>) -> (Outputs, Inputs) {
    let Sizes { batch, time, hidden, layers, directions, .. } = *sizes;
    let width = directions * hidden;
    let count = layers * directions * batch * hidden;
    let mut out = Outputs {
        output: vec![0.0; batch * time * width],
        h_n: vec![0.0; count],
        c_n: vec![0.0; count],
    };
    let mut grads = Inputs {
        input: vec![0.0; inputs.input.len()],
        h_0: vec![0.0; count],
        c_0: vec![0.0; count],
        directions: inputs
            .directions
            .iter()
            .map(|p| Direction {
                weight_ih: vec![0.0; p.weight_ih.len()],
                weight_hh: vec![0.0; p.weight_hh.len()],
                bias_ih: vec![0.0; p.bias_ih.len()],
                bias_hh: vec![0.0; p.bias_hh.len()],
            })
            .collect(),
    };
    for sample in 0..batch {
        one_sample(sizes, inputs, d, sample, &mut out, &mut grads);
    }
    (out, grads)
}

fn one_sample(
    sizes: &Sizes,
    inputs: &Inputs,
    d: Option<&Outputs>,
    sample: usize,
    out: &mut Outputs,
    grads: &mut Inputs,
) {
    let Sizes { batch, time, input, hidden, layers, directions, .. } = *sizes;
    let (width, length) = (directions * hidden, sizes.lengths[sample]);
    let mask = |layer: usize, t: usize, unit: usize| {
        sizes.masks.get(layer).map_or(1.0, |mask| mask[(sample * time + t) * width + unit])
    };
    let mut below: Vec<Vec<f64>> = (0..length)
        .map(|t| inputs.input[(sample * time + t) * input..][..input].to_vec())
        .collect();
    let mut tapes: Vec<Vec<Step>> = vec![];
    for layer in 0..layers {
        let mut above = vec![vec![0.0; width]; length];
        for direction in 0..directions {
            let index = layer * directions + direction;
            let state = (index * batch + sample) * hidden..(index * batch + sample + 1) * hidden;
            let (mut h, mut c) =
                (inputs.h_0[state.clone()].to_vec(), inputs.c_0[state.clone()].to_vec());
            let mut tape = vec![];
            for n in 0..length {
                let t = if direction == 1 { length - 1 - n } else { n };
                let step = step(&inputs.directions[index], hidden, t, &below[t], h, c);
                h = (0..hidden).map(|u| step.gates[3][u] * step.c_next[u].tanh()).collect();
                c = step.c_next.clone();
                above[t][direction * hidden..][..hidden].copy_from_slice(&h);
                tape.push(step);
            }
            out.h_n[state.clone()].copy_from_slice(&h);
            out.c_n[state].copy_from_slice(&c);
            tapes.push(tape);
        }
        if layer + 1 < layers {
            for (t, row) in above.iter_mut().enumerate() {
                for (unit, value) in row.iter_mut().enumerate() {
                    *value *= mask(layer, t, unit);
                }
            }
        }
        below = above;
    }
    for (t, row) in below.iter().enumerate() {
        out.output[(sample * time + t) * width..][..width].copy_from_slice(row);
    }
    let Some(d) = d else { return };

    let mut d_above: Vec<Vec<f64>> =
        (0..length).map(|t| d.output[(sample * time + t) * width..][..width].to_vec()).collect();
    for layer in (0..layers).rev() {
        if layer + 1 < layers {
            for (t, row) in d_above.iter_mut().enumerate() {
                for (unit, value) in row.iter_mut().enumerate() {
                    *value *= mask(layer, t, unit);
                }
            }
        }
        let columns = if layer == 0 { input } else { width };
        let mut d_below = vec![vec![0.0; columns]; length];
        for direction in 0..directions {
            let index = layer * directions + direction;
            let state = (index * batch + sample) * hidden..(index * batch + sample + 1) * hidden;
            let (mut dh, mut dc) = (d.h_n[state.clone()].to_vec(), d.c_n[state.clone()].to_vec());
            for step in tapes[index].iter().rev() {
                for (u, dh) in dh.iter_mut().enumerate() {
                    *dh += d_above[step.t][direction * hidden + u];
                }
                let parameters = &inputs.directions[index];
                let gradient = &mut grads.directions[index];
                (dh, dc) =
                    step_back(parameters, gradient, hidden, step, &dh, &dc, &mut d_below[step.t]);
            }
            grads.h_0[state.clone()].copy_from_slice(&dh);
            grads.c_0[state].copy_from_slice(&dc);
        }
        d_above = d_below;
    }
    for (t, row) in d_above.iter().enumerate() {
        grads.input[(sample * time + t) * input..][..input].copy_from_slice(row);
    }
}

fn step(p: &Direction, hidden: usize, t: usize, x: &[f64], h: Vec<f64>, c: Vec<f64>) -> Step {
    let gates = [0, 1, 2, 3].map(|gate| {
        (0..hidden)
            .map(|u| {
                let row = gate * hidden + u;
                let mut sum = p.bias_ih[row] + p.bias_hh[row];
                for (k, x) in x.iter().enumerate() {
                    sum += p.weight_ih[row * x_len(p, hidden) + k] * x;
                }
                for (k, h) in h.iter().enumerate() {
                    sum += p.weight_hh[row * hidden + k] * h;
                }
                if gate == 2 { sum.tanh() } else { sigmoid(sum) }
            })
            .collect::<Vec<f64>>()
    });
    let c_next = (0..hidden).map(|u| gates[1][u] * c[u] + gates[0][u] * gates[2][u]).collect();
    Step { t, x: x.to_vec(), h, c, gates, c_next }
}

fn x_len(p: &Direction, hidden: usize) -> usize {
    p.weight_ih.len() / (4 * hidden)
}

fn step_back(
    p: &Direction,
    gradient: &mut Direction,
    hidden: usize,
    step: &Step,
    dh: &[f64],
    dc: &[f64],
    dx: &mut [f64],
) -> (Vec<f64>, Vec<f64>) {
    let columns = x_len(p, hidden);
    let (mut dh_before, mut dc_before) = (vec![0.0; hidden], vec![0.0; hidden]);
    for u in 0..hidden {
        let [i, f, g, o] = [0, 1, 2, 3].map(|gate| step.gates[gate][u]);
        let tanh = step.c_next[u].tanh();
        let d_cell = dc[u] + dh[u] * o * (1.0 - tanh * tanh);
        dc_before[u] = d_cell * f;
        let d_gates = [
            d_cell * g * i * (1.0 - i),
            d_cell * step.c[u] * f * (1.0 - f),
            d_cell * i * (1.0 - g * g),
            dh[u] * tanh * o * (1.0 - o),
        ];
        for (gate, d_gate) in d_gates.into_iter().enumerate() {
            let row = gate * hidden + u;
            gradient.bias_ih[row] += d_gate;
            gradient.bias_hh[row] += d_gate;
            for (k, dx) in dx.iter_mut().enumerate() {
                gradient.weight_ih[row * columns + k] += d_gate * step.x[k];
                *dx += d_gate * p.weight_ih[row * columns + k];
            }
            for (k, dh) in dh_before.iter_mut().enumerate() {
                gradient.weight_hh[row * hidden + k] += d_gate * step.h[k];
                *dh += d_gate * p.weight_hh[row * hidden + k];
            }
        }
    }
    (dh_before, dc_before)
}
