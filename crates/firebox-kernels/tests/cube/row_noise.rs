//! Noise of rows: the numbers of the host, whatever device adds them.

use burn::tensor::Device;
use firebox_core::Stream;
use firebox_kernels::{CpuKernels, LaunchWatch, add_row_noise};

use super::alone;
use super::support::case::{float, noise, values};

/// Rows of which every third has no stream.
fn run(device: &Device, shape: [usize; 3]) -> Vec<f64> {
    let [rows, time, channels] = shape;
    let x = float::<3>(&noise(Stream::new(1, "x"), rows * time * channels, 1.0), shape, device);
    let deviations = noise(Stream::new(2, "x"), rows * channels, 0.5);
    let deviations = float::<2>(&deviations, [rows, channels], device);
    let stream = |row: usize| Stream::new(3, "rows").substream(row as u64);
    let streams: Vec<_> = (0..rows).map(|row| (row % 3 != 1).then(|| stream(row))).collect();
    values(add_row_noise(x, deviations, &streams))
}

#[test]
fn a_device_draws_the_numbers_of_the_host() {
    alone(|device| {
        for shape in
            [[1, 1, 1], [5, 7, 3], [33, 105, 4], [2, 17, 29], [3, 64, 1], [2, 1, 65], [4, 0, 2]]
        {
            let ours = run(&device, shape);
            let expected = run(&Device::flex(), shape);
            assert_eq!(ours.len(), expected.len());
            for (at, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
                // Numbers of up to 5.77 times deviations of up to some 2, and rounding of the sum.
                let allowed = 4e-6 * expected.abs().max(1.0);
                assert!((ours - expected).abs() <= allowed, "{shape:?} {at}: {ours} {expected}");
            }
            if shape[0] > 1 && shape[1] > 0 {
                let width = shape[1] * shape[2];
                let plain = noise(Stream::new(1, "x"), shape.iter().product(), 1.0);
                let plain: Vec<f64> = plain.iter().map(|x| f64::from(*x as f32)).collect();
                assert_eq!(ours[width..2 * width], plain[width..2 * width], "no stream, no noise");
            }
        }
        let composed = CpuKernels::Composed.force(|| run(&device, [5, 7, 3]));
        for (composed, expected) in composed.iter().zip(run(&Device::flex(), [5, 7, 3])) {
            assert!((composed - expected).abs() <= 1e-6 * expected.abs().max(1.0));
        }
    });
}

#[test]
fn numbers_are_right_in_the_tails_and_next_to_zero() {
    alone(|device| {
        // A quarter of a million numbers of one row around nothing, each against the host's.
        let width = 1 << 18;
        let stream = [Some(Stream::new(7, "tails"))];
        let x = float::<3>(&vec![0.0; width], [1, width, 1], &device);
        let ours = values(add_row_noise(x, float::<2>(&[1.0], [1, 1], &device), &stream));
        let mut expected = vec![0.0f32; width];
        Stream::new(7, "tails").fill_normal(&mut expected);
        let mut largest = 0.0f64;
        for (ours, expected) in ours.iter().zip(&expected) {
            let expected = f64::from(*expected);
            largest = largest.max(expected.abs());
            assert!((ours - expected).abs() <= 1e-6 * expected.abs() + 1e-6, "{ours} {expected}");
        }
        assert!(largest > 4.0, "{largest}");
    });
}

#[test]
fn it_is_one_launch() {
    alone(|device| {
        let watch = LaunchWatch::start();
        run(&device, [9, 20, 4]);
        let launched = watch.end();
        let ours: Vec<_> = launched.iter().filter_map(|one| one.work.as_ref()).collect();
        assert_eq!(ours.iter().map(|work| work.name).collect::<Vec<_>>(), ["noise of rows"]);
        assert_eq!(ours[0].shape, [9, 20, 4]);
    });
}
