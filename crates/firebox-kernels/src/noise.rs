//! Normal noise on a tensor: a function of a [`Stream`] and nothing else.

#[cfg(feature = "cube")]
use burn::backend::Dispatch;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex, TensorMetadata};
use burn::tensor::{Tensor, TensorData};
use firebox_core::Stream;

use crate::cpu::{self, CpuKernels};
#[cfg(feature = "cube")]
use crate::cube::{DeviceNoise, NoiseOps};
#[cfg(feature = "cube")]
use crate::cuts::GpuKernels;
use crate::device::{constant_like, flex, flex_in_graph, is_flex};

/// Normal noise with mean 0, as data augmentation adds it to an input.
///
/// Which number an element gets depends on the stream and on its place in row-major order alone: the
/// same on every device, on GPUs to 1e-6 · (1 + |z|). Numbers come from a Box–Muller transform of uniform
/// numbers in f32, within 4e-7 · (1 + |z|) of float64; none is farther from 0 than 6.7 deviations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GaussianNoise {
    /// Standard deviation, in the units of what it is added to.
    pub deviation: f64,
    /// Where the numbers come from.
    pub stream: Stream,
}

impl GaussianNoise {
    /// `x` with this noise. One pass over memory on Burn's CPU backend in f32, and one launch on a GPU with
    /// kernels of this crate, which draw the numbers where they are added; elsewhere the noise is made on
    /// the host.
    pub fn add_to<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match CpuKernels::fused().filter(|_| is_flex(&x)) {
            Some(kernels) => fused(kernels, x, self.kernel()),
            None => self.elsewhere(x),
        }
    }

    /// Where the CPU kernels do not run: in a GPU kernel, else composed.
    fn elsewhere<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        #[cfg(feature = "cube")]
        if (1..=i32::MAX as usize).contains(&x.shape().num_elements())
            && GpuKernels::takes(&x.device().without_autodiff(), x.dtype()).is_ok()
        {
            let noise = DeviceNoise::new(self.deviation as f32, self.stream);
            let noisy = <Dispatch as NoiseOps>::firebox_noise(x.into_dispatch(), noise);
            return Tensor::from_dispatch(noisy);
        }
        self.composed(x)
    }

    pub(crate) fn kernel(self) -> cpu::Noise {
        cpu::Noise { stream: self.stream, deviation: self.deviation as f32 }
    }

    fn composed<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        let zero = vec![0.0; x.shape().num_elements()];
        let noise = cpu::add_noise(CpuKernels::Portable, self.kernel(), &zero);
        let noise = constant_like(&x, TensorData::new(noise, x.shape()));
        x + noise
    }
}

fn run(kernels: CpuKernels, x: &FloatTensor<Flex>, noise: cpu::Noise) -> FloatTensor<Flex> {
    let noisy = cpu::add_noise(kernels, noise, x.storage::<f32>());
    FloatTensor::<Flex>::from_data(TensorData::new(noisy, x.shape()))
}

fn fused<const D: usize>(kernels: CpuKernels, x: Tensor<D>, noise: cpu::Noise) -> Tensor<D> {
    if !x.is_autodiff() {
        let y = run(kernels, &flex(x).to_contiguous(), noise);
        return Tensor::from_primitive::<Flex>(y);
    }
    let (x, guard) = flex_in_graph(x).into_parts();
    let prepared = Added.prepare::<NoCheckpointing>([guard]).compute_bound().stateful();
    let y = run(kernels, &x.to_contiguous(), noise);
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => prepared.finish((), y),
        OpsKind::UnTracked(prepared) => prepared.finish(y),
    })
}

/// What is added has no gradient, and what it is added to has that of the sum.
#[derive(Debug)]
struct Added;

impl Backward<Flex, 1> for Added {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<Flex>(&ops.node);
        if let [Some(x)] = ops.parents {
            grads.register::<Flex>(x.id, d);
        }
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
mod tests {
    use burn::tensor::{DType, Device};

    use super::*;

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().iter::<f32>().collect()
    }

    #[test]
    fn every_variant_adds_the_same_and_passes_the_gradient_on() {
        let device = Device::flex().autodiff();
        let noise = GaussianNoise { deviation: 0.25, stream: Stream::new(1, "noise") };
        for shape in [[1, 1, 1], [3, 7, 13], [2, 64, 10], [5, 0, 3]] {
            let count: usize = shape.iter().product();
            let data = TensorData::new((0..count).map(|i| i as f32).collect::<Vec<_>>(), shape);
            let expected: Vec<f32> =
                values(noise.composed(Tensor::<3>::from_data(data.clone(), &Device::flex())));
            for kernels in CpuKernels::available() {
                kernels.force(|| {
                    let x = Tensor::<3>::from_data(data.clone(), &device).require_grad();
                    let y = noise.add_to(x.clone());
                    assert_eq!(values(y.clone()), expected, "{kernels:?}");
                    assert_eq!(values(noise.add_to(x.clone().detach().inner())), expected);
                    if count > 0 {
                        let grads = (y * 3.0).sum().backward();
                        assert!(values(x.grad(&grads).expect("tracked")).iter().all(|d| *d == 3.0));
                    }
                });
            }
        }
    }

    #[test]
    fn half_precision_stays_what_it_is() {
        let noise = GaussianNoise { deviation: 0.25, stream: Stream::new(1, "noise") };
        let x = Tensor::<2>::zeros([7, 9], &Device::flex());
        let expected = values(noise.add_to(x.clone()));
        for (dtype, unit) in [(DType::F16, 2f32.powi(-11)), (DType::BF16, 2f32.powi(-8))] {
            let y = noise.add_to(x.clone().cast(dtype));
            assert_eq!(y.dtype(), dtype);
            for (half, full) in values(y).iter().zip(&expected) {
                assert!((half - full).abs() <= unit * full.abs(), "{dtype:?}: {half} {full}");
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let noise = GaussianNoise { deviation: 1.0, stream: Stream::new(2, "noise") };
        let results = [1, 2, 3].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            let zero = Tensor::<1>::zeros([100_001], &Device::flex());
            pool.expect("a pool").install(|| values(noise.add_to(zero)))
        });
        assert!(results[0] == results[1] && results[0] == results[2]);
    }
}
