//! Layer normalisation as one operation, forward and backward.

#[cfg(feature = "cube")]
use burn::backend::Dispatch;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex, TensorMetadata};
use burn::tensor::{Tensor, TensorData};

use crate::cpu::{self, CpuKernels, Moments};
#[cfg(feature = "cube")]
use crate::cube::{NormOps, NormSettings, norm_fits};
#[cfg(feature = "cube")]
use crate::cuts::GpuKernels;
use crate::device::{flex, flex_in_graph, is_flex};
use crate::dropout::in_place;
use crate::operands::{alike, operand, types};
use crate::profile::kernel_span;
use crate::rounded::{cast, exact_type};

type Primitive = FloatTensor<Flex>;

/// Normalises the last axis to mean 0 and variance 1, then scales and shifts it.
///
/// `y = (x - mean) / sqrt(variance + epsilon) * gamma + beta`, with the biased variance. Source: Ba,
/// Kiros and Hinton, 2016. On Burn's CPU backend in f32 it is one pass over memory on all cores in
/// each direction, with the same result on any number of them; on GPUs with kernels of this crate it is
/// one launch forward and two back, summed in f32 in every type; elsewhere it is Burn's own, with f16
/// and bf16 computed in f32.
///
/// # Shapes
/// - x and the result: `[..., width]`
/// - gamma, beta: `[width]`
///
/// # Panics
/// If a shape does not fit, or types or devices differ; the message holds the shapes and types.
#[track_caller]
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    epsilon: f64,
) -> Tensor<D> {
    let shape = x.dims();
    let [width] = gamma.dims();
    let fits = beta.as_ref().is_none_or(|beta| beta.dims() == [width]);
    let shift = beta.as_ref().map(|beta| operand("beta", beta));
    let operands = || [operand("x", &x), operand("gamma", &gamma)].into_iter().chain(shift);
    alike("layer normalisation", operands());
    assert!(
        shape[D - 1] == width && fits,
        "layer normalisation of {shape:?} with a scale of {width} and a shift of {:?}: all must be \
         as wide as the last axis ({})",
        beta.as_ref().map(|beta| beta.dims()[0]),
        types(operands())
    );
    let on_cpu = is_flex(&x) && is_flex(&gamma) && beta.as_ref().is_none_or(is_flex);
    match CpuKernels::fused().filter(|_| on_cpu && x.shape().num_elements() > 0) {
        Some(kernels) => fused(kernels, x, gamma, beta, epsilon as f32),
        None => elsewhere(x, gamma, beta, epsilon),
    }
}

/// Where the CPU kernels do not run: in GPU kernels, else Burn's own.
fn elsewhere<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    epsilon: f64,
) -> Tensor<D> {
    // Burn's own subtracts one from no rows on a GPU.
    #[cfg(feature = "cube")]
    if x.shape().num_elements() == 0 && GpuKernels::takes(&x.device(), x.dtype()).is_ok() {
        return x;
    }
    #[cfg(feature = "cube")]
    if on_gpu(&x, &gamma, beta.as_ref()) {
        let settings = NormSettings { epsilon: epsilon as f32, shifted: beta.is_some() };
        let beta = beta.unwrap_or_else(|| gamma.clone().detach());
        return Tensor::from_dispatch(<Dispatch as NormOps>::firebox_layer_norm(
            x.into_dispatch(),
            gamma.into_dispatch(),
            beta.into_dispatch(),
            settings,
        ));
    }
    // Within a graph it is many operations, each of which rounds.
    let given = x.dtype();
    let exact = exact_type(given);
    let (x, gamma) = (cast(x, exact), cast(gamma, exact));
    let beta = beta.map(|beta| cast(beta, exact));
    cast(burn::tensor::module::layer_norm(x, gamma, beta, epsilon), given)
}

/// Whether the kernels of a GPU take these tensors.
#[cfg(feature = "cube")]
fn on_gpu<const D: usize>(x: &Tensor<D>, gamma: &Tensor<1>, beta: Option<&Tensor<1>>) -> bool {
    let (device, dtype) = (x.device().without_autodiff(), x.dtype());
    let same = |one: &Tensor<1>| one.dtype() == dtype && one.device().without_autodiff() == device;
    let ([width], count) = (gamma.dims(), x.shape().num_elements());
    (1..=u32::MAX as usize).contains(&count)
        && same(gamma)
        && beta.is_none_or(same)
        && GpuKernels::takes(&device, dtype).is_ok_and(|client| norm_fits(&client, width))
}

/// What the gradient is computed from.
#[derive(Clone, Debug)]
struct Tape {
    kernels: CpuKernels,
    x: Primitive,
    gamma: Primitive,
    moments: Moments,
}

fn run(
    kernels: CpuKernels,
    x: &Primitive,
    gamma: &Primitive,
    beta: Option<&Primitive>,
    epsilon: f32,
) -> (Primitive, Moments) {
    let beta = beta.map(|beta| beta.storage::<f32>());
    let (x_values, gamma) = (x.storage::<f32>(), gamma.storage::<f32>());
    let _span = kernel_span!("layer normalisation", [x_values.len()], 0, 2 * x_values.len(), false);
    let (y, moments) = cpu::layer_norm(kernels, x_values, gamma, beta, epsilon);
    (Primitive::from_data(TensorData::new(y, x.shape())), moments)
}

/// [`run`] where nobody else holds the input.
fn run_in_place(
    kernels: CpuKernels,
    x: Primitive,
    gamma: &Primitive,
    beta: Option<&Primitive>,
    epsilon: f32,
) -> Primitive {
    let beta = beta.map(|beta| beta.storage::<f32>());
    let (count, gamma) = (x.shape().num_elements(), gamma.storage::<f32>());
    let _span = kernel_span!("layer normalisation", [count], 0, 2 * count, false);
    in_place(x, |x| cpu::layer_norm_in_place(kernels, x, gamma, beta, epsilon))
}

fn fused<const D: usize>(
    kernels: CpuKernels,
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    epsilon: f32,
) -> Tensor<D> {
    let tracked = x.is_autodiff()
        || gamma.is_autodiff()
        || beta.as_ref().is_some_and(|beta| beta.is_autodiff());
    if !tracked {
        let beta = beta.map(|beta| flex(beta).to_contiguous());
        let (x, gamma) = (flex(x), flex(gamma).to_contiguous());
        return Tensor::from_primitive::<Flex>(match x.is_unique() {
            true => run_in_place(kernels, x, &gamma, beta.as_ref(), epsilon),
            false => run(kernels, &x.to_contiguous(), &gamma, beta.as_ref(), epsilon).0,
        });
    }
    let shifted = beta.is_some();
    let beta = beta.unwrap_or_else(|| gamma.clone().detach().zeros_like());
    let tensors = [flex_in_graph(x), flex_in_graph(gamma), flex_in_graph(beta)];
    let [(x, x_guard), (gamma, gamma_guard), (beta, beta_guard)] =
        tensors.map(|tensor| tensor.into_parts());
    let [x, gamma, beta] = [x, gamma, beta].map(|tensor| tensor.to_contiguous());
    let prepared = Normalised
        .prepare::<NoCheckpointing>([x_guard, gamma_guard, beta_guard])
        .compute_bound()
        .stateful();
    let (y, moments) = run(kernels, &x, &gamma, shifted.then_some(&beta), epsilon);
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => prepared.finish(Tape { kernels, x, gamma, moments }, y),
        OpsKind::UnTracked(prepared) => prepared.finish(y),
    })
}

#[derive(Debug)]
struct Normalised;

impl Backward<Flex, 3> for Normalised {
    type State = Tape;

    fn backward(self, ops: Ops<Tape, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<Flex>(&ops.node).to_contiguous();
        let Tape { kernels, x, gamma, moments } = ops.state;
        let (width, shape) = (gamma.shape(), x.shape());
        let (x, gamma) = (x.storage::<f32>(), gamma.storage::<f32>());
        let numbers = 3 * x.len();
        let _span = kernel_span!("layer normalisation, gradients", [x.len()], 0, numbers, false);
        let gradients = cpu::layer_norm_backward(kernels, x, gamma, &moments, d.storage::<f32>());
        let cpu::NormGradients { x, gamma, beta } = gradients;
        let all = [(x, shape), (gamma, width.clone()), (beta, width)];
        for (parent, (values, shape)) in ops.parents.into_iter().zip(all) {
            if let Some(parent) = parent {
                let gradient = Primitive::from_data(TensorData::new(values, shape));
                grads.register::<Flex>(parent.id, gradient);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
mod tests {
    use burn::tensor::{DType, Device};
    use firebox_core::Stream;

    use super::*;

    fn noise(seed: u64, count: usize, scale: f64, mean: f64) -> Vec<f32> {
        let mut draws = Stream::new(seed, "norm").draws();
        (0..count).map(|_| (mean + scale * draws.normal()) as f32).collect()
    }

    /// The loss `Σ dy * y` and its gradients in float64, from the formula.
    fn reference(x: &[f32], gamma: &[f32], beta: &[f32], dy: &[f32]) -> (Vec<f64>, [Vec<f64>; 3]) {
        let width = gamma.len();
        let (mut y, mut dx) = (vec![], vec![]);
        let (mut d_gamma, mut d_beta) = (vec![0.0; width], vec![0.0; width]);
        for (x, dy) in x.chunks(width).zip(dy.chunks(width)) {
            let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            let mean = x.iter().sum::<f64>() / width as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
            let deviation = (variance + 1e-5).sqrt();
            let n: Vec<f64> = x.iter().map(|x| (x - mean) / deviation).collect();
            let dn: Vec<f64> =
                dy.iter().zip(gamma).map(|(d, g)| f64::from(*d) * f64::from(*g)).collect();
            let plain = dn.iter().sum::<f64>() / width as f64;
            let weighted = dn.iter().zip(&n).map(|(d, n)| d * n).sum::<f64>() / width as f64;
            for at in 0..width {
                y.push(n[at] * f64::from(gamma[at]) + f64::from(beta[at]));
                dx.push((dn[at] - plain - n[at] * weighted) / deviation);
                d_gamma[at] += f64::from(dy[at]) * n[at];
                d_beta[at] += f64::from(dy[at]);
            }
        }
        (y, [dx, d_gamma, d_beta])
    }

    #[track_caller]
    fn close<const D: usize>(name: &str, actual: Tensor<D>, expected: &[f64], bound: f64) {
        let actual: Vec<f32> = actual.into_data().iter::<f32>().collect();
        assert_eq!(actual.len(), expected.len());
        let error: f64 =
            actual.iter().zip(expected).map(|(a, e)| (f64::from(*a) - e).powi(2)).sum();
        let norm: f64 = expected.iter().map(|e| e * e).sum();
        let error = (error / norm.max(1e-300)).sqrt();
        assert!(error < bound, "{name} is off by {error:.2e}");
    }

    fn check(rows: usize, width: usize, scale: f64, mean: f64, bound: f64) {
        let x = noise(1, rows * width, scale, mean);
        let (gamma, beta) = (noise(2, width, 0.5, 1.0), noise(3, width, 1.0, 0.0));
        let dy = noise(4, rows * width, 1.0, 0.1);
        let (y, gradients) = reference(&x, &gamma, &beta, &dy);
        let device = Device::flex().autodiff();
        for kernels in CpuKernels::available() {
            kernels.force(|| {
                let matrix = |data: &[f32]| {
                    Tensor::<2>::from_data(TensorData::new(data.to_vec(), [rows, width]), &device)
                };
                let vector = |data: &[f32]| {
                    Tensor::<1>::from_data(TensorData::new(data.to_vec(), [width]), &device)
                };
                let (x, gamma, beta) = (
                    matrix(&x).require_grad(),
                    vector(&gamma).require_grad(),
                    vector(&beta).require_grad(),
                );
                let out = layer_norm(x.clone(), gamma.clone(), Some(beta.clone()), 1e-5);
                close("y", out.clone(), &y, bound);
                let grads = (out * matrix(&dy)).sum().backward();
                close("dx", x.grad(&grads).expect("tracked"), &gradients[0], bound);
                close("dgamma", gamma.grad(&grads).expect("tracked"), &gradients[1], bound);
                close("dbeta", beta.grad(&grads).expect("tracked"), &gradients[2], bound);
            });
        }
    }

    #[test]
    fn agrees_with_float64() {
        for (rows, width) in [(1, 3), (3, 7), (5, 16), (2, 17), (1200, 33), (700, 256), (1, 1030)] {
            check(rows, width, 1.0, 0.3, 1e-5);
        }
        // The gradient of a row of two is the small difference of large numbers.
        check(4, 2, 1.0, 0.3, 1e-2);
        // Rows that lie far from zero keep what f32 leaves of them.
        check(9, 64, 1.0, 100.0, 1e-4);
        check(9, 64, 1e-3, 0.0, 1e-5);
    }

    #[test]
    fn a_row_with_nan_spoils_itself_and_a_constant_row_is_the_shift() {
        let device = Device::flex();
        let mut x = noise(5, 4 * 20, 1.0, 0.0);
        x[25] = f32::NAN;
        x[40..60].fill(3.5);
        let x = Tensor::<2>::from_data(TensorData::new(x, [4, 20]), &device);
        let gamma = Tensor::<1>::ones([20], &device);
        let y = layer_norm(x, gamma.clone(), Some(gamma * 2.0), 1e-5);
        let y: Vec<f32> = y.into_data().iter::<f32>().collect();
        assert!(y[20..40].iter().all(|v| v.is_nan()));
        assert!(y[..20].iter().chain(&y[40..]).all(|v| v.is_finite()));
        assert!(y[40..60].iter().all(|v| *v == 2.0));
    }

    #[test]
    fn a_constant_row_is_the_shift_whatever_its_sum_is_rounded_to() {
        let device = Device::flex();
        for (value, width) in [(3333.33_f32, 1024), (1000.1, 37), (3.3, 4096), (-20_000.1, 20)] {
            let x = TensorData::new(vec![value; 3 * width], [3, width]);
            let x = Tensor::<2>::from_data(x, &device);
            let shift = noise(9, width, 1.0, 0.0);
            let beta = Tensor::<1>::from_data(TensorData::new(shift.clone(), [width]), &device);
            let gamma = Tensor::<1>::ones([width], &device);
            for kernels in CpuKernels::available().into_iter().skip(1) {
                // Into other memory, and where the input was.
                let (kept, own) = (x.clone(), x.clone() * 1.0);
                let of = |x: Tensor<2>| layer_norm(x, gamma.clone(), Some(beta.clone()), 1e-5);
                for y in kernels.force(|| [of(kept), of(own)]) {
                    let y: Vec<f32> = y.into_data().iter::<f32>().collect();
                    assert!(y.chunks(width).all(|y| y == shift), "{kernels:?} {value} × {width}");
                }
            }
        }
    }

    #[test]
    fn without_a_gradient_it_is_the_same_where_the_input_is_kept_and_where_it_is_not() {
        let device = Device::flex();
        for (rows, width) in [(1, 1), (7, 3), (1300, 40), (3, 5000)] {
            let data = TensorData::new(noise(7, rows * width, 1.0, 0.2), [rows, width]);
            let x = Tensor::<2>::from_data(data, &device);
            let gamma = TensorData::new(noise(8, width, 0.5, 1.0), [width]);
            let gamma = Tensor::<1>::from_data(gamma, &device);
            let graph = Tensor::from_inner(x.clone()).require_grad();
            let tracked = layer_norm(graph, Tensor::from_inner(gamma.clone()), None, 1e-5);
            let kept = layer_norm(x.clone(), gamma.clone(), None, 1e-5).into_data();
            assert_eq!(kept, tracked.into_data());
            assert_eq!(kept, layer_norm(x, gamma, None, 1e-5).into_data());
        }
    }

    /// Distances of 400 from the mean, whose squares f16 does not hold, in a graph and in none.
    #[test]
    fn half_precision_is_normalised_in_f32() {
        let exact = [2.5_f64, -1.5].repeat(10);
        for dtype in [DType::F16, DType::BF16] {
            let run = |device: &Device| {
                let x = TensorData::new([512.0_f32, -288.0].repeat(10), [1, 20]);
                let x = Tensor::<2>::from_data(x, (device, dtype));
                let [gamma, beta] =
                    [2.0, 0.5].map(|value| Tensor::<2>::full([1, 20], value, (device, dtype)));
                [x, gamma, beta]
            };
            let vector = |row: Tensor<2>| -> Tensor<1> { row.reshape([20]) };
            let [x, gamma, beta] = run(&Device::flex());
            let y = layer_norm(x, vector(gamma), Some(vector(beta)), 1e-5);
            assert_eq!(y.dtype(), dtype);
            close("y in no graph", y, &exact, 1e-3);
            let device = Device::flex().autodiff();
            let [x, gamma, beta] = run(&device).map(|tensor| tensor.require_grad());
            let shift = Some(vector(beta.clone()));
            let y = layer_norm(x.clone(), vector(gamma.clone()), shift, 1e-5);
            assert_eq!(y.dtype(), dtype);
            close("y", y.clone(), &exact, 1e-3);
            // Of the first number: that of the scale is what is normalised, 1.
            let grads = y.narrow(1, 0, 1).sum().backward();
            let of = |tensor: &Tensor<2>| tensor.grad(&grads).expect("tracked");
            let first = |value: f64| [vec![value], vec![0.0; 19]].concat();
            close("dgamma", of(&gamma), &first(1.0), 5e-3);
            close("dbeta", of(&beta), &first(1.0), 5e-3);
            // Twice that of the shift, less its mean, and the mean of what lies on its side, over a deviation of 400.
            let mut dx = [-0.2_f64 / 400.0, 0.0].repeat(10);
            dx[0] = 1.8 / 400.0;
            close("dx", of(&x), &dx, 5e-3);
        }
    }

    /// An epsilon that f16 does not hold.
    #[test]
    fn a_constant_row_in_half_precision_is_the_shift() {
        for dtype in [DType::F16, DType::BF16] {
            let row = |device: &Device| Tensor::<2>::full([2, 16], 3.5, (device, dtype));
            for x in [row(&Device::flex()), row(&Device::flex().autodiff()).require_grad()] {
                let device = x.device();
                let [gamma, beta] =
                    [2.0, 0.5].map(|value| Tensor::<1>::full([16], value, (&device, dtype)));
                let y = layer_norm(x, gamma, Some(beta), 1e-12);
                close("y", y, &[0.5; 32], 1e-6);
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let device = Device::flex().autodiff();
        for width in [40, 37] {
            let x = noise(6, 3000 * width, 1.0, 0.0);
            let run = || {
                let x = TensorData::new(x.clone(), [3000, width]);
                let x = Tensor::<2>::from_data(x, &device).require_grad();
                let [gamma, beta] =
                    [0.5, 1.5].map(|scale| Tensor::<1>::full([width], scale, &device));
                let (gamma, beta) = (gamma.require_grad(), beta.require_grad());
                let y = layer_norm(x.clone(), gamma.clone(), Some(beta.clone()), 1e-5);
                let grads = (y.clone() * y.clone()).sum_dim(1).sum().backward();
                let of = |one: &Tensor<1>| one.grad(&grads).expect("tracked").into_data();
                let dx = x.grad(&grads).expect("tracked").into_data();
                [y.into_data(), dx, of(&gamma), of(&beta)]
            };
            for kernels in CpuKernels::available().into_iter().skip(1) {
                let [one, two, three] = [1, 2, 3].map(|threads| {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                    pool.expect("a pool").install(|| kernels.force(run))
                });
                assert!(one == two && one == three, "{kernels:?}, width {width}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "layer normalisation of [2, 5] with a scale of 4")]
    fn widths_must_fit() {
        let device = Device::flex();
        layer_norm(Tensor::<2>::zeros([2, 5], &device), Tensor::ones([4], &device), None, 1e-5);
    }
}
