//! The layers of the zoo as standard operators of ONNX. What a model puts together is in `models`.

use firebox_models::{Activation, EncoderLayerConfig};

use super::graph::{Axis, Graph, Setting, Value};
use super::proto::{BOOL, FLOAT, INT32, INT64};
use crate::ExportError;

/// What LayerNorm and BatchNorm of the zoo add to the variance.
const EPSILON: f32 = 1e-5;

/// Where the gates of a cell stand in ONNX, as places in PyTorch's order.
#[derive(Clone, Copy)]
pub(super) enum Cell {
    /// PyTorch: input, forget, cell, output. ONNX: input, output, forget, cell.
    Lstm,
    /// PyTorch: reset, update, candidate. ONNX: update, reset, candidate.
    Gru,
}

impl Cell {
    fn gates(self) -> &'static [usize] {
        match self {
            Self::Lstm => &[0, 3, 1, 2],
            Self::Gru => &[1, 0, 2],
        }
    }
}

/// A recurrent stack by the names of its parameters.
pub(super) struct Recurrent<'a> {
    pub(super) cell: Cell,
    /// Such as `lstm`.
    pub(super) prefix: &'a str,
    pub(super) hidden: usize,
    pub(super) layers: usize,
    pub(super) bidirectional: bool,
}

/// The valid steps of a batch in the forms that layers want.
#[derive(Clone)]
pub(super) struct Valid {
    /// Valid steps of each sample, int64 `[batch]`, none more than there are.
    pub(super) lengths: Value,
    /// Whether each step is valid, `[batch, time, 1]`.
    pub(super) steps: Value,
}

impl Graph<'_> {
    /// The input of lengths.
    pub(super) fn lengths(&mut self) -> Value {
        let meaning =
            "valid steps of each sample, from 0 to time; what stands after them is ignored";
        self.input("lengths", INT64, &[Axis::Free("batch")], meaning)
    }

    fn cast(&mut self, value: &Value, kind: i32) -> Value {
        self.node("Cast", &[value], &[("to", Setting::Int(i64::from(kind)))])
    }

    pub(super) fn axis_of(&mut self, value: &Value, axis: i64) -> Value {
        let (shape, axis) = (self.node("Shape", &[value], &[]), self.int(axis));
        self.node("Gather", &[&shape, &axis], &[("axis", Setting::Int(0))])
    }

    pub(super) fn reshape(&mut self, value: &Value, shape: &[i64]) -> Value {
        let shape = self.ints(shape);
        self.node("Reshape", &[value, &shape], &[])
    }

    pub(super) fn transpose(&mut self, value: &Value, axes: &[i64]) -> Value {
        self.node("Transpose", &[value], &[("perm", Setting::Ints(axes.to_vec()))])
    }

    pub(super) fn unsqueeze(&mut self, value: &Value, axes: &[i64]) -> Value {
        let axes = self.ints(axes);
        self.node("Unsqueeze", &[value, &axes], &[])
    }

    /// The valid steps of a value whose axis `axis` is time.
    pub(super) fn valid(&mut self, of: &Value, axis: i64, lengths: &Value) -> Valid {
        let time = self.axis_of(of, axis);
        let lengths = self.node("Min", &[lengths, &time], &[]);
        let (zero, one) = (self.int(0), self.int(1));
        let places = self.node("Range", &[&zero, &time, &one], &[]);
        let column = self.unsqueeze(&lengths, &[1]);
        let steps = self.node("Less", &[&places, &column], &[]);
        let steps = self.unsqueeze(&steps, &[2]);
        Valid { lengths, steps }
    }

    /// Token 0 where there is none, whatever stands there: `[batch, time]`.
    pub(super) fn known_tokens(&mut self, tokens: &Value, valid: &Valid) -> Value {
        let (axes, zero) = (self.ints(&[2]), self.int(0));
        let steps = self.node("Squeeze", &[&valid.steps, &axes], &[]);
        self.node("Where", &[&steps, tokens, &zero], &[])
    }

    /// Zero where a step is padding, whatever stands there.
    pub(super) fn without_padding(&mut self, x: &Value, valid: &Valid) -> Value {
        let zero = self.float(0.0);
        self.node("Where", &[&valid.steps, x, &zero], &[])
    }

    /// `[.., in]` → `[.., out]`
    pub(super) fn linear(&mut self, x: &Value, prefix: &str) -> Result<Value, ExportError> {
        self.linear_named(x, &format!("{prefix}.weight"), &format!("{prefix}.bias"))
    }

    pub(super) fn linear_named(
        &mut self,
        x: &Value,
        weight: &str,
        bias: &str,
    ) -> Result<Value, ExportError> {
        let product = self.product(x, weight)?;
        let bias = self.weight(bias)?;
        Ok(self.node("Add", &[&product, &bias], &[]))
    }

    /// A linear layer without a bias.
    pub(super) fn product(&mut self, x: &Value, weight: &str) -> Result<Value, ExportError> {
        let parameter = self.parameter(weight)?;
        let [out, input] = parameter.shape[..] else {
            return Err(ExportError::Missing { name: weight.to_owned() });
        };
        let turned: Vec<f32> =
            (0..input * out).map(|at| parameter.values[at % out * input + at / out]).collect();
        let turned = self.floats(&format!("{weight}.transposed"), &[input, out], &turned);
        Ok(self.node("MatMul", &[x, &turned], &[]))
    }

    pub(super) fn relu(&mut self, x: &Value) -> Value {
        self.node("Relu", &[x], &[])
    }

    /// `x / 2 · (1 + erf(x / √2))`
    pub(super) fn gelu(&mut self, x: &Value) -> Value {
        let root = self.float(std::f32::consts::SQRT_2);
        let (one, half) = (self.float(1.0), self.float(0.5));
        let scaled = self.node("Div", &[x, &root], &[]);
        let erf = self.node("Erf", &[&scaled], &[]);
        let sum = self.node("Add", &[&erf, &one], &[]);
        let product = self.node("Mul", &[x, &sum], &[]);
        self.node("Mul", &[&product, &half], &[])
    }

    pub(super) fn layer_norm(&mut self, x: &Value, prefix: &str) -> Result<Value, ExportError> {
        self.layer_norm_by(x, prefix, EPSILON)
    }

    /// With what is added to the variance.
    pub(super) fn layer_norm_by(
        &mut self,
        x: &Value,
        prefix: &str,
        epsilon: f32,
    ) -> Result<Value, ExportError> {
        let weight = self.weight(&format!("{prefix}.weight"))?;
        let bias = self.weight(&format!("{prefix}.bias"))?;
        let settings = [("axis", Setting::Int(-1)), ("epsilon", Setting::Float(epsilon))];
        Ok(self.node("LayerNormalization", &[x, &weight, &bias], &settings))
    }

    /// Without the mean of the last axis. onnxruntime up to 1.25 takes the variance of LayerNormalization for
    /// `E[x²] − E[x]²`, of which rounding leaves nothing where rows lie far from zero beside their spread.
    pub(super) fn centred(&mut self, x: &Value) -> Value {
        let settings = [("axes", Setting::Ints(vec![-1])), ("keepdims", Setting::Int(1))];
        let mean = self.node("ReduceMean", &[x], &settings);
        self.node("Sub", &[x, &mean], &[])
    }

    /// Normalises axis 1 by the running statistics.
    pub(super) fn batch_norm(&mut self, x: &Value, prefix: &str) -> Result<Value, ExportError> {
        let mut inputs = vec![x.clone()];
        for name in ["weight", "bias", "running_mean", "running_var"] {
            inputs.push(self.weight(&format!("{prefix}.{name}"))?);
        }
        let inputs: Vec<&Value> = inputs.iter().collect();
        let settings = [("epsilon", Setting::Float(EPSILON))];
        Ok(self.node("BatchNormalization", &inputs, &settings))
    }

    /// A convolution that keeps the number of steps, for an odd kernel: `[batch, channel, time]`.
    pub(super) fn conv(
        &mut self,
        x: &Value,
        prefix: &str,
        dilation: i64,
    ) -> Result<Value, ExportError> {
        let name = format!("{prefix}.weight");
        let kernel = self.parameter(&name)?.shape.last().copied().unwrap_or(1) as i64;
        let (weight, bias) = (self.weight(&name)?, self.weight(&format!("{prefix}.bias"))?);
        let padding = kernel / 2 * dilation;
        let settings = [
            ("kernel_shape", Setting::Ints(vec![kernel])),
            ("dilations", Setting::Ints(vec![dilation])),
            ("pads", Setting::Ints(vec![padding, padding])),
        ];
        Ok(self.node("Conv", &[x, &weight, &bias], &settings))
    }

    /// The maximum of two neighbouring steps: `[batch, channel, time]`.
    pub(super) fn halve(&mut self, x: &Value) -> Value {
        let settings =
            [("kernel_shape", Setting::Ints(vec![2])), ("strides", Setting::Ints(vec![2]))];
        self.node("MaxPool", &[x], &settings)
    }

    /// A recurrent stack: `[batch, time, in]` → `[batch, time, directions · hidden]`, zeros after each
    /// length.
    pub(super) fn recurrent(
        &mut self,
        x: &Value,
        valid: &Valid,
        stack: &Recurrent<'_>,
    ) -> Result<Value, ExportError> {
        let lengths = self.cast(&valid.lengths, INT32);
        let directions = 1 + i64::from(stack.bidirectional);
        let (operator, direction) = match (stack.cell, stack.bidirectional) {
            (Cell::Lstm, true) => ("LSTM", "bidirectional"),
            (Cell::Lstm, false) => ("LSTM", "forward"),
            (Cell::Gru, true) => ("GRU", "bidirectional"),
            (Cell::Gru, false) => ("GRU", "forward"),
        };
        let mut x = self.transpose(x, &[1, 0, 2]);
        for layer in 0..stack.layers {
            let [w, r, b] = self.recurrent_weights(stack, layer)?;
            let mut settings = vec![
                ("hidden_size", Setting::Int(stack.hidden as i64)),
                ("direction", Setting::Text(direction)),
            ];
            if matches!(stack.cell, Cell::Gru) {
                settings.push(("linear_before_reset", Setting::Int(1)));
            }
            let y = self.node(operator, &[&x, &w, &r, &b, &lengths], &settings);
            // [time, direction, batch, hidden] → [time, batch, direction · hidden]
            let y = self.transpose(&y, &[0, 2, 1, 3]);
            x = self.reshape(&y, &[0, 0, directions * stack.hidden as i64]);
        }
        let y = self.transpose(&x, &[1, 0, 2]);
        Ok(self.without_padding(&y, valid))
    }

    /// Weights of a layer, directions stacked: `[d, gates · h, in]`, `[d, gates · h, h]`,
    /// `[d, 2 · gates · h]`.
    fn recurrent_weights(
        &mut self,
        stack: &Recurrent<'_>,
        layer: usize,
    ) -> Result<[Value; 3], ExportError> {
        let directions: &[&str] = if stack.bidirectional { &["", "_reverse"] } else { &[""] };
        let gates = stack.cell.gates();
        let rows = gates.len() * stack.hidden;
        let kinds = [vec!["weight_ih"], vec!["weight_hh"], vec!["bias_ih", "bias_hh"]];
        let mut stored = Vec::with_capacity(3);
        for kind in kinds {
            let (mut all, mut width) = (Vec::new(), 0);
            for direction in directions {
                for part in &kind {
                    let name = format!("{}.{part}_l{layer}{direction}", stack.prefix);
                    let values = &self.parameter(&name)?.values;
                    width = values.len() / rows;
                    let block = stack.hidden * width;
                    for gate in gates {
                        all.extend_from_slice(&values[gate * block..][..block]);
                    }
                }
            }
            let name = format!("{}.{}_l{layer}", stack.prefix, kind.join("_"));
            let count = directions.len();
            stored.push(match kind.len() {
                1 => self.floats(&name, &[count, rows, width], &all),
                _ => self.floats(&name, &[count, 2 * rows], &all),
            });
        }
        let mut stored = stored.into_iter();
        Ok(std::array::from_fn(|_| stored.next().unwrap_or_else(Value::none)))
    }

    /// One layer of a Transformer's encoder: `[batch, time, width]`. What it gives for padding means
    /// nothing, and is finite.
    pub(super) fn encoder_layer(
        &mut self,
        x: &Value,
        valid: &Valid,
        prefix: &str,
        config: &EncoderLayerConfig,
    ) -> Result<Value, ExportError> {
        let (norm1, norm2) = (format!("{prefix}.norm1"), format!("{prefix}.norm2"));
        let attention = format!("{prefix}.self_attn");
        if config.norm_first {
            let normed = self.layer_norm(x, &norm1)?;
            let part = self.attend(&normed, valid, &attention, config.heads, config.width)?;
            let x = self.node("Add", &[x, &part], &[]);
            let normed = self.layer_norm(&x, &norm2)?;
            let part = self.feed(&normed, prefix, config)?;
            return Ok(self.node("Add", &[&x, &part], &[]));
        }
        let part = self.attend(x, valid, &attention, config.heads, config.width)?;
        let sum = self.node("Add", &[x, &part], &[]);
        let x = self.layer_norm(&sum, &norm1)?;
        let part = self.feed(&x, prefix, config)?;
        let sum = self.node("Add", &[&x, &part], &[]);
        self.layer_norm(&sum, &norm2)
    }

    fn feed(
        &mut self,
        x: &Value,
        prefix: &str,
        config: &EncoderLayerConfig,
    ) -> Result<Value, ExportError> {
        let hidden = self.linear(x, &format!("{prefix}.linear1"))?;
        let hidden = match config.activation {
            Activation::Gelu => self.gelu(&hidden),
            Activation::Relu => self.relu(&hidden),
        };
        self.linear(&hidden, &format!("{prefix}.linear2"))
    }

    /// Attention between its projections.
    pub(super) fn attend(
        &mut self,
        x: &Value,
        valid: &Valid,
        own: &str,
        heads: usize,
        width: usize,
    ) -> Result<Value, ExportError> {
        let weight = format!("{own}.in_proj_weight");
        let qkv = self.linear_named(x, &weight, &format!("{own}.in_proj_bias"))?;
        let parts = self.split(&qkv, 2, 3);
        let attended = self.scaled_dot_product(&parts, valid, heads, width);
        // Queries after a sample's length give zeros, so that a sample without a step is defined.
        let attended = self.without_padding(&attended, valid);
        self.linear(&attended, &format!("{own}.out_proj"))
    }

    /// `softmax(q kᵀ / √size) v` by heads, over the valid keys: `[batch, time, width]`.
    fn scaled_dot_product(
        &mut self,
        parts: &[Value],
        valid: &Valid,
        heads: usize,
        width: usize,
    ) -> Value {
        let (heads, size) = (heads as i64, (width / heads.max(1)) as i64);
        let by_head: Vec<Value> = parts
            .iter()
            .zip([[0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]])
            .map(|(part, axes)| {
                let part = self.reshape(part, &[0, 0, heads, size]);
                self.transpose(&part, &axes)
            })
            .collect();
        let scale = self.float((size as f32).sqrt());
        let scores = self.node("MatMul", &[&by_head[0], &by_head[1]], &[]);
        let scores = self.node("Div", &[&scores, &scale], &[]);
        let keys = self.transpose(&valid.steps, &[0, 2, 1]);
        let keys = self.unsqueeze(&keys, &[1]);
        // Finite, so that a row without a key has no NaN.
        let never = self.float(-1e30);
        let scores = self.node("Where", &[&keys, &scores, &never], &[]);
        let shares = self.node("Softmax", &[&scores], &[("axis", Setting::Int(-1))]);
        let attended = self.node("MatMul", &[&shares, &by_head[2]], &[]);
        let attended = self.transpose(&attended, &[0, 2, 1, 3]);
        self.reshape(&attended, &[0, 0, width as i64])
    }

    /// The mean over the valid steps, where padding is zero: `[batch, time, f]` → `[batch, f]`.
    pub(super) fn mean(&mut self, x: &Value, valid: &Valid) -> Value {
        let (one, axis) = (self.int(1), self.ints(&[1]));
        let sum = self.node("ReduceSum", &[x, &axis], &[("keepdims", Setting::Int(0))]);
        let count = self.node("Max", &[&valid.lengths, &one], &[]);
        let count = self.cast(&count, FLOAT);
        let count = self.unsqueeze(&count, &[1]);
        self.node("Div", &[&sum, &count], &[])
    }

    /// The maximum over the valid steps; zero without one: `[batch, time, f]` → `[batch, f]`.
    pub(super) fn maximum(&mut self, x: &Value, valid: &Valid) -> Value {
        let (lowest, zero, none) = (self.float(f32::MIN), self.float(0.0), self.int(0));
        let pushed = self.node("Where", &[&valid.steps, x, &lowest], &[]);
        let settings = [("axes", Setting::Ints(vec![1])), ("keepdims", Setting::Int(0))];
        let maximum = self.node("ReduceMax", &[&pushed], &settings);
        let some = self.node("Greater", &[&valid.lengths, &none], &[]);
        let some = self.unsqueeze(&some, &[1]);
        self.node("Where", &[&some, &maximum, &zero], &[])
    }

    /// The mean over the valid steps by weights that are the softmax of `scores` `[batch, time, 1]`, where
    /// padding is zero: `[batch, time, f]` → `[batch, f]`.
    pub(super) fn weighted(&mut self, x: &Value, scores: &Value, valid: &Valid) -> Value {
        let (never, axis) = (self.float(-1e30), self.ints(&[1]));
        let scores = self.node("Where", &[&valid.steps, scores, &never], &[]);
        let shares = self.node("Softmax", &[&scores], &[("axis", Setting::Int(1))]);
        let parts = self.node("Mul", &[x, &shares], &[]);
        self.node("ReduceSum", &[&parts, &axis], &[("keepdims", Setting::Int(0))])
    }

    /// The last valid step; zero without one: `[batch, time, f]` → `[batch, f]`.
    pub(super) fn last(&mut self, x: &Value, valid: &Valid) -> Value {
        let (zero, one, time) = (self.int(0), self.int(1), self.axis_of(x, 1));
        let places = self.node("Range", &[&zero, &time, &one], &[]);
        let last = self.node("Sub", &[&valid.lengths, &one], &[]);
        let last = self.unsqueeze(&last, &[1]);
        let chosen = self.node("Equal", &[&places, &last], &[]);
        let chosen = self.unsqueeze(&chosen, &[2]);
        let nothing = self.float(0.0);
        let kept = self.node("Where", &[&chosen, x, &nothing], &[]);
        let axis = self.ints(&[1]);
        self.node("ReduceSum", &[&kept, &axis], &[("keepdims", Setting::Int(0))])
    }

    /// Steps side by side in patches, the last one filled up with zeros: `[batch, time, channel]` →
    /// `[batch, patch, steps · channel]`.
    pub(super) fn patches(&mut self, x: &Value, steps: usize, channels: usize) -> Value {
        let size = self.int(steps as i64);
        let time = self.axis_of(x, 1);
        // (size - time mod size) mod size
        let over = self.node("Mod", &[&time, &size], &[]);
        let missing = self.node("Sub", &[&size, &over], &[]);
        let missing = self.node("Mod", &[&missing, &size], &[]);
        let missing = self.unsqueeze(&missing, &[0]);
        let (before, after) = (self.ints(&[0, 0, 0, 0]), self.ints(&[0]));
        let settings = [("axis", Setting::Int(0))];
        let pads = self.node("Concat", &[&before, &missing, &after], &settings);
        let zero = self.float(0.0);
        let padded = self.node("Pad", &[x, &pads, &zero], &[("mode", Setting::Text("constant"))]);
        self.reshape(&padded, &[0, -1, (steps * channels) as i64])
    }

    /// Lengths in patches of so many steps, rounded up.
    pub(super) fn patch_lengths(&mut self, lengths: &Value, steps: usize) -> Value {
        let (more, size) = (self.int(steps as i64 - 1), self.int(steps as i64));
        let sum = self.node("Add", &[lengths, &more], &[]);
        self.node("Div", &[&sum, &size], &[])
    }

    /// Adds the sine (at even places) or cosine (at odd ones) of each step's number at wavelengths from
    /// 2π to 10,000 · 2π: `[batch, time, width]`.
    pub(super) fn sinusoidal(&mut self, x: &Value, width: usize) -> Value {
        let rate =
            |place: usize| 10_000_f64.powf(-((place - place % 2) as f64) / width as f64) as f32;
        let rates: Vec<f32> = (0..width).map(rate).collect();
        // A cosine is a sine a quarter of a turn ahead.
        let ahead =
            |place: usize| if place.is_multiple_of(2) { 0.0 } else { std::f32::consts::FRAC_PI_2 };
        let ahead: Vec<f32> = (0..width).map(ahead).collect();
        let rates = self.floats("positions.rates", &[width], &rates);
        let ahead = self.floats("positions.phases", &[width], &ahead);
        let (zero, one, time) = (self.int(0), self.int(1), self.axis_of(x, 1));
        let places = self.node("Range", &[&zero, &time, &one], &[]);
        let places = self.cast(&places, FLOAT);
        let places = self.unsqueeze(&places, &[1]);
        let angles = self.node("Mul", &[&places, &rates], &[]);
        let angles = self.node("Add", &[&angles, &ahead], &[]);
        let sines = self.node("Sin", &[&angles], &[]);
        self.node("Add", &[x, &sines], &[])
    }

    /// As many steps as `like` has: `[batch, time or more, f]` → `[batch, time, f]`.
    pub(super) fn as_long_as(&mut self, x: &Value, like: &Value) -> Value {
        let (time, axis) = (self.axis_of(like, 1), self.ints(&[1]));
        let (from, to) = (self.ints(&[0]), self.unsqueeze(&time, &[0]));
        self.node("Slice", &[x, &from, &to, &axis], &[])
    }

    /// As many steps as `like` has, zeros behind those that there are: `[batch, time or fewer, f]` →
    /// `[batch, time, f]`.
    pub(super) fn padded_to(&mut self, x: &Value, like: &Value) -> Value {
        let (own, time) = (self.axis_of(x, 1), self.axis_of(like, 1));
        let missing = self.node("Sub", &[&time, &own], &[]);
        let missing = self.unsqueeze(&missing, &[0]);
        let (before, after) = (self.ints(&[0, 0, 0, 0]), self.ints(&[0]));
        let settings = [("axis", Setting::Int(0))];
        let pads = self.node("Concat", &[&before, &missing, &after], &settings);
        let zero = self.float(0.0);
        self.node("Pad", &[x, &pads, &zero], &[("mode", Setting::Text("constant"))])
    }

    /// `[batch, a]`, `[batch, b]` → `[batch, a + b]`
    pub(super) fn beside(&mut self, a: &Value, b: &Value) -> Value {
        self.node("Concat", &[a, b], &[("axis", Setting::Int(1))])
    }

    pub(super) fn softmax(&mut self, x: &Value) -> Value {
        self.node("Softmax", &[x], &[("axis", Setting::Int(-1))])
    }

    /// The first steps of learned positions `[1, positions, width]`, as many as `x` has.
    pub(super) fn positions(&mut self, x: &Value, name: &str) -> Result<Value, ExportError> {
        let positions = self.weight(name)?;
        Ok(self.as_long_as(&positions, x))
    }

    /// Replaces hidden steps by a learned token: `[batch, time, channel]`.
    pub(super) fn hide(
        &mut self,
        x: &Value,
        hidden: &Value,
        token: &str,
    ) -> Result<Value, ExportError> {
        let token = self.weight(token)?;
        let hidden = self.unsqueeze(hidden, &[2]);
        Ok(self.node("Where", &[&hidden, &token, x], &[]))
    }

    /// The input that says which steps are hidden.
    pub(super) fn mask(&mut self) -> Value {
        let axes = [Axis::Free("batch"), Axis::Free("time")];
        self.input(
            "mask",
            BOOL,
            &axes,
            "true where a step is hidden from the model, to be restored",
        )
    }
}
