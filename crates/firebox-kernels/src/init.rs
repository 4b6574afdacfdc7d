//! Initial values drawn from a [`Stream`]: the same on every device and after every restart.
//!
//! Burn's own initialisers draw from one generator of the process, which cannot be saved.

use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::{Device, Tensor, TensorData};
use firebox_core::Stream;

/// Uniform numbers in `[low, high)`: element `i`, in row-major order, comes from word `i` of the
/// stream.
pub fn uniform<const D: usize>(
    stream: Stream,
    shape: [usize; D],
    low: f64,
    high: f64,
    device: &Device,
) -> Tensor<D> {
    let mut values = vec![0.0; shape.iter().product()];
    stream.fill_uniform(0, &mut values);
    values.iter_mut().for_each(|value| *value = between(low, high, *value));
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// The number in `[low, high)` that a number in `[0, 1)` stands for; the first from `low` on if there is none.
fn between(low: f64, high: f64, share: f32) -> f32 {
    let (least, most) = (low as f32, high as f32);
    // What lies just below may be rounded up to it, and the lower end down.
    let least = if f64::from(least) < low { least.next_up() } else { least };
    let most = if f64::from(most) < high { most } else { most.next_down() };
    ((low + (high - low) * f64::from(share)) as f32).min(most).max(least)
}

/// Normal numbers with this mean and standard deviation.
pub fn normal<const D: usize>(
    stream: Stream,
    shape: [usize; D],
    mean: f64,
    deviation: f64,
    device: &Device,
) -> Tensor<D> {
    let mut draws = stream.draws();
    let values: Vec<f32> = (0..shape.iter().product::<usize>())
        .map(|_| (mean + deviation * draws.normal()) as f32)
        .collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// A linear layer with weight and bias uniform in ±1/√`input`, as PyTorch's `nn.Linear` starts.
///
/// # Shapes
/// The weight is `[input, output]`, Burn's layout: the transpose of PyTorch's.
pub fn init_linear(stream: Stream, input: usize, output: usize, device: &Device) -> Linear {
    let bound = (input.max(1) as f64).sqrt().recip();
    let weight = uniform(stream.substream(0), [input, output], -bound, bound, device);
    let bias = uniform(stream.substream(1), [output], -bound, bound, device);
    Linear { weight: Param::from_tensor(weight), bias: Some(Param::from_tensor(bias)) }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
mod tests {
    use super::*;

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().iter::<f32>().collect()
    }

    #[test]
    fn uniform_is_the_stream_scaled_to_its_bounds() {
        let device = Device::default();
        let stream = Stream::new(3, "weights");
        let drawn = values(uniform(stream, [50, 41], -0.25, 0.75, &device));
        let mut raw = vec![0.0; 50 * 41];
        stream.fill_uniform(0, &mut raw);
        for (drawn, raw) in drawn.iter().zip(raw) {
            assert!((drawn - (raw - 0.25)).abs() < 1e-7);
        }
        assert_eq!(drawn, values(uniform(stream, [50, 41], -0.25, 0.75, &device)));
        assert_ne!(drawn, values(uniform(stream.substream(1), [50, 41], -0.25, 0.75, &device)));
    }

    #[test]
    fn uniform_stays_between_its_bounds() {
        // The largest number that a stream draws: 24 ones.
        let largest = 1.0 - f32::EPSILON / 2.0;
        for (low, high) in [(1.0, 2.0), (-0.25, 0.75), (0.0, 0.1), (-3.0, 0.3), (-1.0, 1e30)] {
            let drawn = f64::from(between(low, high, largest));
            assert!(low <= drawn && drawn < high, "{drawn} of {low} to {high}");
            // Not by more than f32 has digits.
            assert!(
                high - drawn < 2e-7 * (high - low).max(high.abs()),
                "{drawn} of {low} to {high}"
            );
            assert_eq!(between(low, high, 0.0), low as f32);
        }
        assert_eq!(between(0.5, 0.5, largest), 0.5);
        // Neither 0.3 nor -0.1 is an f32: the nearest lies above the one, 0.300000012, and below the other, -0.100000001.
        assert_eq!(between(0.3, 0.5, 0.0), 0.3_f32);
        assert_eq!(between(-0.1, 0.5, 0.0), (-0.1_f32).next_up());
    }

    #[test]
    fn normal_has_its_moments() {
        let drawn =
            values(normal(Stream::new(5, "token"), [100, 200], 1.5, 0.02, &Device::default()));
        let count = drawn.len() as f64;
        let mean = drawn.iter().map(|v| f64::from(*v)).sum::<f64>() / count;
        let variance = drawn.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / count;
        assert!((mean - 1.5).abs() < 1e-3 && (variance.sqrt() - 0.02).abs() < 1e-3);
    }

    #[test]
    fn linear_starts_within_the_bound_of_pytorch() {
        let linear = init_linear(Stream::new(7, "head"), 25, 400, &Device::default());
        let weight = values(linear.weight.val());
        let bias = values(linear.bias.expect("a bias").val());
        assert_eq!((weight.len(), bias.len()), (10_000, 400));
        for drawn in [weight, bias] {
            assert!(drawn.iter().all(|v| v.abs() <= 0.2));
            assert!(drawn.iter().any(|v| *v > 0.19) && drawn.iter().any(|v| *v < -0.19));
        }
    }
}
