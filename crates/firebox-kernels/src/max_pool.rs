//! The maximum of windows along time as one operation, channels last.

#[cfg(feature = "cube")]
use burn::backend::Dispatch;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex};
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{Tensor, TensorData};

use crate::cpu::{CpuKernels, MaxPool};
#[cfg(feature = "cube")]
use crate::cube::PoolOps;
#[cfg(feature = "cube")]
use crate::cuts::GpuKernels;
use crate::device::{flex, flex_in_graph, is_flex, tied};

type Primitive = FloatTensor<Flex>;

/// The maximum of `kernel` steps from every `stride`-th on, with `padding` steps before and after the
/// sequence that are never the maximum: PyTorch's `max_pool1d` with its axes in another order.
///
/// A gradient goes to the step that was the maximum, the first of equal ones. On Burn's CPU backend in
/// f32 and on GPUs with kernels of this crate, NaN is greater than every number, as in PyTorch, and where a
/// maximum came from is found again in `x` for the gradient, not kept. Elsewhere it is Burn's own
/// operation.
///
/// # Shapes
/// - x: `[batch, time, channel]`
/// - the result: `[batch, (time + 2 · padding - kernel) / stride + 1, channel]`, without a step where
///   the kernel is longer than the padded input
///
/// # Panics
/// If `kernel` or `stride` is zero, or `padding` more than half of `kernel`; the message holds the shape and type.
#[track_caller]
pub fn max_pool1d(x: Tensor<3>, kernel: usize, stride: usize, padding: usize) -> Tensor<3> {
    assert!(
        kernel > 0 && stride > 0 && padding <= kernel / 2,
        "pooling with a kernel of {kernel}, stride {stride} and padding {padding}: kernel and stride \
         must be at least 1, the padding at most half of the kernel (x is {:?}, of [batch, time, channel], \
         in {:?})",
        x.dims(),
        x.dtype()
    );
    let [samples, time, width] = x.dims();
    let padded = time + 2 * padding;
    let out = if padded < kernel { 0 } else { (padded - kernel) / stride + 1 };
    if samples * out * width * time == 0 {
        return tied(Tensor::zeros([samples, out, width], (&x.device(), x.dtype())), &x);
    }
    let pool = MaxPool { samples, time, out, width, kernel, stride, padding };
    match CpuKernels::fused().filter(|_| is_flex(&x)) {
        Some(kernels) => fused(kernels, pool, x),
        None => elsewhere(pool, x),
    }
}

/// Where the CPU kernels do not run: in a GPU kernel, else Burn's own.
fn elsewhere(pool: MaxPool, x: Tensor<3>) -> Tensor<3> {
    #[cfg(feature = "cube")]
    if [x.shape().num_elements(), pool.samples * pool.out * pool.width, pool.kernel, pool.stride]
        .iter()
        .all(|size| *size <= i32::MAX as usize / 2)
        && GpuKernels::takes(&x.device().without_autodiff(), x.dtype()).is_ok()
    {
        let maxima = <Dispatch as PoolOps>::firebox_max_pool(x.into_dispatch(), pool);
        return Tensor::from_dispatch(maxima);
    }
    let options = MaxPoolOptions::new([pool.kernel]).with_stride([pool.stride]);
    let options = options.with_padding([pool.padding]);
    burn::tensor::module::max_pool1d(x.swap_dims(1, 2), options).swap_dims(1, 2)
}

fn run(kernels: CpuKernels, pool: MaxPool, x: &Primitive) -> Primitive {
    let y = pool.forward(kernels, x.storage::<f32>());
    Primitive::from_data(TensorData::new(y, [pool.samples, pool.out, pool.width]))
}

fn fused(kernels: CpuKernels, pool: MaxPool, x: Tensor<3>) -> Tensor<3> {
    if !x.is_autodiff() {
        return Tensor::from_primitive::<Flex>(run(kernels, pool, &flex(x).to_contiguous()));
    }
    let (x, guard) = flex_in_graph(x).into_parts();
    let x = x.to_contiguous();
    let prepared = Pooled.prepare::<NoCheckpointing>([guard]).compute_bound().stateful();
    let y = run(kernels, pool, &x);
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => prepared.finish((kernels, pool, x), y),
        OpsKind::UnTracked(prepared) => prepared.finish(y),
    })
}

#[derive(Debug)]
struct Pooled;

impl Backward<Flex, 1> for Pooled {
    type State = (CpuKernels, MaxPool, Primitive);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<Flex>(&ops.node).to_contiguous();
        if let [Some(parent)] = ops.parents {
            let (kernels, pool, x) = ops.state;
            let dx = pool.backward(kernels, x.storage::<f32>(), d.storage::<f32>());
            let dx = TensorData::new(dx, [pool.samples, pool.time, pool.width]);
            grads.register::<Flex>(parent.id, Primitive::from_data(dx));
        }
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
mod tests {
    use burn::tensor::Device;
    use firebox_core::Stream;

    use super::*;

    fn values(tensor: Tensor<3>) -> Vec<f32> {
        tensor.into_data().iter::<f32>().collect()
    }

    /// Small integers, so that there are equal ones.
    fn integers(seed: u64, count: usize) -> Vec<f32> {
        let mut draws = Stream::new(seed, "pool").draws();
        (0..count).map(|_| draws.below(7) as f32 - 4.0).collect()
    }

    /// Maxima, and the gradient of `Σ dy · y`, by definition.
    fn reference(pool: &MaxPool, x: &[f32], dy: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (mut y, mut dx) = (vec![], vec![0.0; x.len()]);
        for sample in 0..pool.samples {
            for step in 0..pool.out {
                for channel in 0..pool.width {
                    let place = |t: usize| (sample * pool.time + t) * pool.width + channel;
                    let first = (step * pool.stride) as isize - pool.padding as isize;
                    let under = (first..first + pool.kernel as isize)
                        .filter(|t| (0..pool.time as isize).contains(t))
                        .map(|t| place(t as usize));
                    let best =
                        under.reduce(
                            |best, at| {
                                if x[at] > x[best] || x[at].is_nan() { at } else { best }
                            },
                        );
                    let best = best.expect("a step inside");
                    dx[best] += dy[y.len()];
                    y.push(x[best]);
                }
            }
        }
        (y, dx)
    }

    fn check(shape: [usize; 3], kernel: usize, stride: usize, padding: usize, nan: bool) {
        let [samples, time, width] = shape;
        let out = (time + 2 * padding - kernel) / stride + 1;
        let pool = MaxPool { samples, time, out, width, kernel, stride, padding };
        let mut x = integers(1, samples * time * width);
        if nan {
            x.iter_mut().step_by(5).for_each(|x| *x = f32::NAN);
        }
        let dy = integers(2, samples * out * width);
        let (expected, gradient) = reference(&pool, &x, &dy);
        let device = Device::flex().autodiff();
        // Burn's own operation promises nothing about NaN.
        for kernels in CpuKernels::available().into_iter().skip(usize::from(nan)) {
            kernels.force(|| {
                let x = Tensor::<3>::from_data(TensorData::new(x.clone(), shape), &device);
                let x = x.require_grad();
                let y = max_pool1d(x.clone(), kernel, stride, padding);
                let dy = TensorData::new(dy.clone(), [samples, out, width]);
                let same = |a: &[f32], b: &[f32]| {
                    a.iter().zip(b).all(|(a, b)| a == b || (a.is_nan() && b.is_nan()))
                };
                assert!(same(&values(y.clone()), &expected), "{kernels:?} {pool:?}");
                // Not the sum of the product: NaN times anything is NaN.
                let grads = (y * Tensor::from_data(dy, &device)).sum().backward();
                let dx = values(x.grad(&grads).expect("tracked"));
                assert!(same(&dx, &gradient), "{kernels:?} {pool:?}");
                let plain = max_pool1d(x.inner(), kernel, stride, padding);
                assert!(same(&values(plain), &expected));
            });
        }
    }

    #[test]
    fn agrees_with_the_definition() {
        for (shape, kernel, stride, padding) in [
            ([1, 1, 1], 1, 1, 0),
            ([2, 7, 3], 2, 2, 0),
            ([3, 10, 17], 3, 1, 1),
            ([1, 9, 40], 4, 3, 2),
            ([2, 5, 16], 5, 9, 0),
            ([4, 300, 33], 2, 2, 1),
        ] {
            check(shape, kernel, stride, padding, false);
            check(shape, kernel, stride, padding, true);
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let device = Device::flex().autodiff();
        for (kernel, stride, padding) in [(2, 2, 0), (5, 3, 2)] {
            let shape = [41, 61, 33];
            let data = TensorData::new(integers(3, shape.iter().product()), shape);
            let run = || {
                let x = Tensor::<3>::from_data(data.clone(), &device).require_grad();
                let y = max_pool1d(x.clone(), kernel, stride, padding);
                // Windows overlap: a step gets several gradients.
                let grads = (y.clone() * y.clone()).sum().backward();
                [values(y), values(x.grad(&grads).expect("tracked"))]
            };
            for kernels in CpuKernels::available().into_iter().skip(1) {
                let results = [1, 2, 3].map(|threads| {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                    pool.expect("a pool").install(|| kernels.force(run))
                });
                let same = results[0] == results[1] && results[0] == results[2];
                assert!(same, "{kernels:?}, kernel {kernel}");
            }
        }
    }

    #[test]
    fn where_no_step_goes_in_or_comes_out_the_gradient_is_zeros() {
        let device = Device::flex().autodiff();
        // A kernel longer than the sequence, no sample, no step, no channel.
        for (shape, out) in [([2, 3, 4], 0), ([0, 9, 4], 3), ([2, 0, 4], 0), ([2, 9, 0], 3)] {
            let plain = Tensor::<3>::zeros(shape, &Device::flex());
            assert_eq!(max_pool1d(plain, 5, 2, 0).dims(), [shape[0], out, shape[2]]);
            let x = Tensor::<3>::zeros(shape, &device).require_grad();
            let y = max_pool1d(x.clone(), 5, 2, 0);
            assert_eq!(y.dims(), [shape[0], out, shape[2]]);
            let grads = y.sum().backward();
            let dx = x.grad(&grads).expect("tracked");
            assert_eq!((dx.dims(), values(dx)), (shape, vec![0.0; shape.iter().product()]));
        }
    }

    #[test]
    #[should_panic(expected = "pooling with a kernel of 3, stride 1 and padding 2")]
    fn a_window_without_a_step_is_refused() {
        max_pool1d(Tensor::zeros([1, 3, 1], &Device::flex()), 3, 1, 2);
    }
}
