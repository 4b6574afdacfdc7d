//! Noise on tensors: the numbers of the host, whatever device adds them.

use burn::tensor::{DType, Device, Tensor};
use firebox_core::Stream;
use firebox_kernels::{CpuKernels, GaussianNoise, GpuKernels, LaunchWatch};

use super::alone;
use super::support::case::{float, noise, values};

const NOISE: fn() -> GaussianNoise =
    || GaussianNoise { deviation: 0.25, stream: Stream::new(5, "noise") };

fn run(device: &Device, shape: [usize; 3]) -> Vec<f64> {
    let x = noise(Stream::new(1, "x"), shape.iter().product(), 1.0);
    values(NOISE().add_to(float::<3>(&x, shape, device)))
}

#[test]
fn a_device_draws_the_numbers_of_the_host() {
    alone(|device| {
        for shape in
            [[1, 1, 1], [3, 7, 13], [2, 64, 10], [1, 1, 63], [1, 1, 65], [5, 100, 33], [4, 0, 2]]
        {
            let (ours, expected) = (run(&device, shape), run(&Device::flex(), shape));
            assert_eq!(ours.len(), expected.len());
            for (at, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
                let allowed = 1e-6 * expected.abs().max(1.0);
                assert!((ours - expected).abs() <= allowed, "{shape:?} {at}: {ours} {expected}");
            }
        }
        let composed = CpuKernels::Composed.force(|| run(&device, [3, 7, 13]));
        for (composed, expected) in composed.iter().zip(run(&Device::flex(), [3, 7, 13])) {
            assert!((composed - expected).abs() <= 1e-6 * expected.abs().max(1.0));
        }
    });
}

#[test]
fn numbers_are_right_in_the_tails_and_next_to_zero() {
    alone(|device| {
        // Half a million numbers around nothing, each against the host's.
        let count = 1 << 19;
        let noise = GaussianNoise { deviation: 1.0, stream: Stream::new(7, "tails") };
        let zeros = |device: &Device| Tensor::<1>::zeros([count], device);
        let ours = values(noise.add_to(zeros(&device)));
        let expected = values(noise.add_to(zeros(&Device::flex())));
        let mut largest = 0.0f64;
        for (ours, expected) in ours.iter().zip(&expected) {
            largest = largest.max(expected.abs());
            assert!((ours - expected).abs() <= 1e-6 * (1.0 + expected.abs()), "{ours} {expected}");
        }
        assert!(largest > 4.5, "{largest}");
    });
}

#[test]
fn it_is_one_launch_and_the_gradient_passes() {
    alone(|device| {
        let device = device.autodiff();
        let x = float::<3>(&[0.5; 60], [3, 5, 4], &device).require_grad();
        values(NOISE().add_to(x.clone()));
        let watch = LaunchWatch::start();
        let y = NOISE().add_to(x.clone());
        // Until something is read, fusion launches nothing.
        values(y.clone());
        let launched = watch.end();
        let names: Vec<&str> =
            launched.iter().filter_map(|one| one.work.as_ref()).map(|work| work.name).collect();
        assert_eq!(names, ["noise"]);
        let grads = (y * 3.0).sum().backward();
        assert_eq!(values(x.grad(&grads).expect("tracked")), [3.0; 60]);
    });
}

#[test]
fn halves_stay_what_they_are() {
    alone(|device| {
        let mut ran = 0;
        let full = run(&Device::flex(), [4, 9, 11]);
        for (dtype, unit) in [(DType::F16, 2f64.powi(-10)), (DType::BF16, 2f64.powi(-7))] {
            if GpuKernels::of_layer(&device, dtype, 1, 1, 1).is_err() {
                continue;
            }
            ran += 1;
            let x = noise(Stream::new(1, "x"), 4 * 9 * 11, 1.0);
            let x = float::<3>(&x, [4, 9, 11], &device);
            let y = NOISE().add_to(x.cast(dtype));
            assert_eq!(y.dtype(), dtype);
            for (half, full) in values(y.cast(DType::F32)).iter().zip(&full) {
                assert!((half - full).abs() <= unit * full.abs().max(2.0), "{half} {full}");
            }
        }
        if ran == 0 {
            println!("skipped: this device stores neither F16 nor BF16");
        }
    });
}
