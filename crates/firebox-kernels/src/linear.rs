//! A linear layer as one operation, forward and backward.

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex};
use burn::nn::Linear;
use burn::tensor::{DType, Device, Tensor, TensorData};
use firebox_core::Precision;

use crate::cpu::{self, CpuKernels, Matrix, Products, Weight};
use crate::device::{flex, flex_in_graph, is_flex};
use crate::operands::{alike, operand, types};
use crate::packed::{keeps, packed};
use crate::products::{add_to_columns, product};
#[cfg(feature = "cube")]
use crate::products::{product_in_halves, shifted_in_halves};
use crate::profile::kernel_span;
use crate::rounded::{halved, refuse_missing, rounded};
use crate::strides::{matrix, readable};

type Primitive = FloatTensor<Flex>;

/// `x · weight + bias`, as [`Linear::forward`] computes it. On Burn's CPU backend in f32 its results
/// and gradients are written where they stay, by all threads, and a transposed input or weight, or a part of another, is
/// read where it lies, as long as its rows or its columns are each in one piece.
///
/// # Shapes
/// - x: `[rows, input]`; flatten other axes into the rows first, or the gradient of the weight is
///   made for each of them and summed
/// - the result: `[rows, output]`
///
/// # Panics
/// If `x` is not as wide as the layer's weight is high, if the bias is not as long as it is wide, or if they differ
/// in type or device; the message holds the shapes and types.
#[track_caller]
pub fn linear(x: Tensor<2>, layer: &Linear) -> Tensor<2> {
    linear_in(Precision::F32, x, layer)
}

/// [`linear()`] with the operands of its products, forward and backward, rounded to a type: in bf16
/// they are summed in f32, and everything else is f32.
///
/// On a CPU, [`Precision::Bf16`] takes half the time of f32 where the processor has fast instructions for
/// it (AMX, or AMD's AVX-512-BF16), and about as much elsewhere. [`Precision::F16`] is f32 there on operands that are
/// [rounded](crate::rounded()) before, and [`Precision::Tf32`] is f32 there; on a GPU it is TF32
/// ([`F32Products::Tf32`](crate::F32Products::Tf32)).
///
/// # Shapes
/// As those of [`linear()`].
///
/// # Panics
/// As [`linear()`] does.
#[track_caller]
pub fn linear_in(precision: Precision, x: Tensor<2>, layer: &Linear) -> Tensor<2> {
    let (weight, bias) = (layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val()));
    check(&x, &weight, bias.as_ref());
    let ([rows, input], [_, output]) = (x.dims(), weight.dims());
    let on_cpu = is_flex(&x) && is_flex(&weight) && bias.as_ref().is_none_or(is_flex);
    let fits = on_cpu && rows * input * output > 0;
    let Some(kernels) = CpuKernels::fused().filter(|_| fits) else {
        return composed(precision, x, weight, bias);
    };
    let products = Products { kernels, bf16: precision == Precision::Bf16 };
    let sizes = cpu::Linear { products, rows, input, output };
    let [x, weight] = [x, weight].map(|operand| halved(operand, precision));
    let tracked =
        x.is_autodiff() || weight.is_autodiff() || bias.as_ref().is_some_and(Tensor::is_autodiff);
    if !tracked {
        let bias = bias.map(|bias| flex(bias).to_contiguous());
        return Tensor::from_primitive::<Flex>(run(
            sizes,
            &readable(flex(x)),
            &readable(flex(weight)),
            bias.as_ref(),
            keeps(),
        ));
    }
    let shifted = bias.is_some();
    let bias = bias.unwrap_or_else(|| Tensor::zeros([output], (&weight.device(), DType::F32)));
    let tensors = [flex_in_graph(x), flex_in_graph(weight), flex_in_graph(bias)];
    let [(x, x_guard), (weight, weight_guard), (bias, bias_guard)] =
        tensors.map(|tensor| tensor.into_parts());
    let ([x, weight], bias) = ([x, weight].map(readable), bias.to_contiguous());
    let prepared = Applied
        .prepare::<NoCheckpointing>([x_guard, weight_guard, bias_guard])
        .compute_bound()
        .stateful();
    let y = run(sizes, &x, &weight, shifted.then_some(&bias), false);
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => prepared.finish(Tape { sizes, x, weight }, y),
        OpsKind::UnTracked(prepared) => prepared.finish(y),
    })
}

/// Refuses an input and parameters that do not go together.
#[track_caller]
pub(crate) fn check(x: &Tensor<2>, weight: &Tensor<2>, bias: Option<&Tensor<1>>) {
    let own = bias.map(|bias| operand("bias", bias));
    let operands = [operand("input", x), operand("weight", weight)].into_iter().chain(own);
    alike("a linear layer", operands.clone());
    let ([_, input], sizes @ [high, output]) = (x.dims(), weight.dims());
    assert!(
        input == high,
        "the input of a linear layer is {:?} ([rows, input]), but its weight is {sizes:?} ([input, \
         output]): the input must be as wide as the weight is high ({})",
        x.dims(),
        types(operands)
    );
    if let Some([length]) = bias.map(|bias| bias.dims()) {
        assert!(
            length == output,
            "the bias of a linear layer is [{length}] ([output]), but its weight is {sizes:?} ([input, \
             output]): the bias must be [{output}], a number for each column of the weight ({})",
            types(operands)
        );
    }
}

/// The same of Burn's operations.
fn composed(
    precision: Precision,
    x: Tensor<2>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<2> {
    #[cfg(feature = "cube")]
    if let Some(y) = bias.as_ref().and_then(|bias| shifted_in_halves(precision, &x, &weight, bias))
    {
        return y;
    }
    let y = matmul(precision, x, weight);
    match bias {
        Some(bias) => add_to_columns(y, bias),
        None => y,
    }
}

/// A product whose operands are rounded, and whose result has the type that they came in.
pub(crate) fn matmul<const D: usize>(
    precision: Precision,
    left: Tensor<D>,
    right: Tensor<D>,
) -> Tensor<D> {
    let narrow = match precision {
        Precision::Bf16 => DType::BF16,
        Precision::F16 => DType::F16,
        Precision::F32 | Precision::Tf32 => return product(precision, left, right),
    };
    if left.device() == Device::flex() {
        // Rounded, but multiplied in f32: Burn's CPU backend would round the sums, too.
        let (left, right) = (rounded(left, precision), rounded(right, precision));
        return product(Precision::F32, left, right);
    }
    #[cfg(feature = "cube")]
    if let Some(product) = product_in_halves(precision, &left, &right) {
        return product;
    }
    refuse_missing(&left, narrow);
    let wide = left.dtype();
    product(precision, left.cast(narrow), right.cast(narrow)).cast(wide)
}

/// What the gradients are computed from.
#[derive(Clone, Debug)]
struct Tape {
    sizes: cpu::Linear,
    x: Primitive,
    weight: Primitive,
}

fn run(
    sizes: cpu::Linear,
    x: &Primitive,
    weight: &Primitive,
    bias: Option<&Primitive>,
    keep: bool,
) -> Primitive {
    let bias = bias.map(|bias| bias.storage::<f32>());
    let cpu::Linear { rows, input, output, products } = sizes;
    let _span = kernel_span!(
        "linear",
        [rows, input, output],
        2 * rows * input * output,
        rows * (input + output) + input * output,
        products.bf16
    );
    let x = matrix(x);
    let y = match keep {
        true => Weight::new(packed(products, rows, weight), bias).product(x),
        false => sizes.forward(x, matrix(weight), bias),
    };
    Primitive::from_data(TensorData::new(y, [rows, output]))
}

#[derive(Debug)]
struct Applied;

impl Backward<Flex, 3> for Applied {
    type State = Tape;

    fn backward(self, ops: Ops<Tape, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<Flex>(&ops.node).to_contiguous();
        let d = d.storage::<f32>();
        let Tape { sizes, x, weight } = ops.state;
        let operands = [matrix(&x), matrix(&weight)];
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        gradients(grads, sizes, operands, d, parents);
    }
}

/// Registers the gradients of a layer's input, weight and bias that are wanted: from `x`, the weight and
/// the gradient `d` of the result.
pub(crate) fn gradients(
    grads: &mut Gradients,
    sizes: cpu::Linear,
    [x, weight]: [Matrix<'_>; 2],
    d: &[f32],
    [to_x, to_weight, to_bias]: [Option<NodeId>; 3],
) {
    let cpu::Linear { rows, input, output, .. } = sizes;
    let _span = span(sizes, usize::from(to_x.is_some()) + usize::from(to_weight.is_some()));
    register(grads, to_x, || {
        let dx = sizes.input_gradient(weight, d);
        Primitive::from_data(TensorData::new(dx, [rows, input]))
    });
    register(grads, to_weight, || {
        let d_weight = sizes.weight_gradient(x, d);
        Primitive::from_data(TensorData::new(d_weight, [input, output]))
    });
    register(grads, to_bias, || {
        Primitive::from_data(TensorData::new(sizes.bias_gradient(d), [output]))
    });
}

/// Registers a gradient that is wanted.
pub(crate) fn register(
    grads: &mut Gradients,
    parent: Option<NodeId>,
    gradient: impl FnOnce() -> Primitive,
) {
    if let Some(parent) = parent {
        grads.register::<Flex>(parent, gradient());
    }
}

/// The span of so many of a layer's two products of gradients.
pub(crate) fn span(sizes: cpu::Linear, wanted: usize) -> tracing::span::EnteredSpan {
    let cpu::Linear { products, rows, input, output } = sizes;
    kernel_span!(
        "linear, gradients",
        [rows, input, output],
        2 * wanted * rows * input * output,
        wanted * (rows * (input + output) + input * output),
        products.bf16
    )
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
mod tests {
    use burn::module::Param;
    use burn::tensor::Device;
    use firebox_core::Stream;

    use super::*;

    fn noise(seed: u64, count: usize) -> Vec<f32> {
        let mut draws = Stream::new(seed, "linear").draws();
        (0..count).map(|_| draws.normal() as f32).collect()
    }

    type Results = [Vec<f32>; 4];

    /// Result and gradients of `Σ dy * y` with respect to x, weight and bias.
    fn run(
        kernels: CpuKernels,
        precision: Precision,
        [rows, input, output]: [usize; 3],
        bias: bool,
    ) -> Results {
        let device = Device::flex().autodiff();
        let tensor = |seed, shape: [usize; 2]| {
            let data = TensorData::new(noise(seed, shape[0] * shape[1]), shape);
            Tensor::<2>::from_data(data, &device)
        };
        let vector = TensorData::new(noise(3, output), [output]);
        let layer = Linear {
            weight: Param::from_tensor(tensor(2, [input, output])),
            bias: bias.then(|| Param::from_tensor(Tensor::from_data(vector, &device))),
        };
        let x = tensor(1, [rows, input]).require_grad();
        kernels.force(|| {
            let y = linear_in(precision, x.clone(), &layer);
            let grads = (y.clone() * tensor(4, [rows, output])).sum().backward();
            let values = |data: TensorData| data.iter::<f32>().collect::<Vec<_>>();
            let d_bias = layer.bias.as_ref().map_or(vec![], |bias| {
                values(bias.val().grad(&grads).expect("tracked").into_data())
            });
            [
                values(y.into_data()),
                values(x.grad(&grads).expect("tracked").into_data()),
                values(layer.weight.val().grad(&grads).expect("tracked").into_data()),
                d_bias,
            ]
        })
    }

    /// Operands of products in float64, rounded if asked.
    fn wide(values: &[f32], precision: Precision) -> Vec<f64> {
        let round = |value: f32| match precision {
            Precision::Bf16 => half::bf16::from_f32(value).to_f64(),
            Precision::F16 => half::f16::from_f32(value).to_f64(),
            _ => f64::from(value),
        };
        values.iter().map(|value| round(*value)).collect()
    }

    #[test]
    fn agrees_with_float64() {
        for ([rows, input, output], bias) in [
            ([1, 1, 1], true),
            ([3, 5, 2], false),
            ([7, 33, 19], true),
            ([2500, 17, 9], true),
            ([300, 256, 128], false),
            ([530, 140, 3], true),
        ] {
            for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
                let [x, w] =
                    [noise(1, rows * input), noise(2, input * output)].map(|v| wide(&v, precision));
                let (b, d) = (noise(3, output), noise(4, rows * output));
                // In f16 gradients are rounded behind a product, not before it.
                let before = if precision == Precision::F16 { Precision::F32 } else { precision };
                let rounded = wide(&d, before);
                let (mut y, mut dx) = (vec![0.0; rows * output], vec![0.0; rows * input]);
                let (mut dw, mut db) = (vec![0.0; input * output], vec![0.0; output]);
                for r in 0..rows {
                    for o in 0..output {
                        let dy = rounded[r * output + o];
                        db[o] += f64::from(d[r * output + o]);
                        y[r * output + o] += if bias { f64::from(b[o]) } else { 0.0 };
                        for i in 0..input {
                            y[r * output + o] += x[r * input + i] * w[i * output + o];
                            dx[r * input + i] += dy * w[i * output + o];
                            dw[i * output + o] += dy * x[r * input + i];
                        }
                    }
                }
                db.truncate(if bias { output } else { 0 });
                for kernels in CpuKernels::available() {
                    let results = run(kernels, precision, [rows, input, output], bias);
                    // Composed of Burn's operations, gradients are not rounded before a product.
                    let composed = kernels == CpuKernels::Composed;
                    let loose = composed && precision == Precision::Bf16;
                    let bounds = match precision {
                        Precision::F16 => [1e-5, 4e-4, 4e-4, 1e-5],
                        _ if loose => [1e-5, 1e-2, 1e-2, 1e-5],
                        _ => [1e-5; 4],
                    };
                    for ((ours, exact), bound) in
                        results.iter().zip([&y, &dx, &dw, &db]).zip(bounds)
                    {
                        assert_eq!(ours.len(), exact.len());
                        let square =
                            |sum: f64, (a, e): (&f32, &f64)| sum + (f64::from(*a) - e).powi(2);
                        let error = ours.iter().zip(exact).fold(0.0, square).sqrt();
                        let norm = exact.iter().map(|e| e * e).sum::<f64>().sqrt();
                        assert!(
                            error <= bound * norm,
                            "{kernels:?} {precision} {rows} × {input} × {output}: {error:e} of {norm:e}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        // Wide, odd, and one whose gradient of the weight is computed turned around.
        for sizes in [[4100, 256, 128], [2500, 131, 77], [3100, 140, 3]] {
            for kernels in CpuKernels::available().into_iter().skip(1) {
                for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
                    let results = [1, 2, 3].map(|threads| {
                        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                        pool.expect("a pool").install(|| run(kernels, precision, sizes, true))
                    });
                    let same = results[0] == results[1] && results[0] == results[2];
                    assert!(same, "{kernels:?} {precision} {sizes:?}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "is [2, 5] ([rows, input]), but its weight is [4, 3]")]
    fn sizes_must_fit() {
        let device = Device::flex();
        let weight = Param::from_tensor(Tensor::<2>::zeros([4, 3], &device));
        linear(Tensor::zeros([2, 5], &device), &Linear { weight, bias: None });
    }

    #[test]
    #[should_panic(
        expected = "the bias of a linear layer is [1] ([output]), but its weight is [4, 3]"
    )]
    fn a_bias_is_not_spread_over_columns() {
        let device = Device::flex();
        let weight = Param::from_tensor(Tensor::<2>::zeros([4, 3], &device));
        let bias = Some(Param::from_tensor(Tensor::zeros([1], &device)));
        linear(Tensor::zeros([2, 4], &device), &Linear { weight, bias });
    }
}
