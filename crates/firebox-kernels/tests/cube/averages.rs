//! Running sums and means over tensors against their formula in float64.

use burn::tensor::{DType, Device, Tensor};
use firebox_core::Stream;
use firebox_kernels::{
    CpuKernels, GpuKernels, LaunchWatch, add_scaled, approach, approach_on_device,
};

use super::alone;
use super::support::case::{float, noise, values};

/// Around what threads, cubes and launches take: one cube, several, none, and more tensors than a launch.
fn sizes() -> Vec<usize> {
    let mut sizes = vec![1, 3, 256, 257, 0, 2048, 2049, 40_003];
    sizes.extend((0..40).map(|index| 5 + index % 7));
    sizes
}

fn numbers(seed: u64) -> Vec<Vec<f64>> {
    let of = |(index, size): (usize, usize)| {
        noise(Stream::new(seed, "averages").substream(index as u64), size, 1.0)
    };
    sizes().into_iter().enumerate().map(of).collect()
}

fn tensors(of: &[Vec<f64>], (device, dtype): (&Device, DType)) -> Vec<Tensor<1>> {
    of.iter().map(|one| float::<1>(one, [one.len()], device).cast(dtype)).collect()
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Sum,
    Mean,
    /// By a share in the memory of the device.
    There,
}

const WAYS: [Way; 3] = [Way::Sum, Way::Mean, Way::There];

fn run(way: Way, to: Vec<Tensor<1>>, from: &[Tensor<1>], factor: f64) -> Vec<Tensor<1>> {
    let from: Vec<&Tensor<1>> = from.iter().collect();
    match way {
        Way::Sum => add_scaled(to, &from, factor),
        Way::Mean => approach(to, &from, factor),
        Way::There => {
            let share = float::<1>(&[factor], [1], &to[0].device());
            approach_on_device(to, &from, share)
        }
    }
}

fn exact(way: Way, to: f64, from: f64, factor: f64) -> f64 {
    match way {
        Way::Sum => to + from * factor,
        Way::Mean | Way::There => to + (from - to) * factor,
    }
}

fn read(tensors: Vec<Tensor<1>>) -> Vec<Vec<f64>> {
    tensors.into_iter().map(|tensor| values(tensor.cast(DType::F32))).collect()
}

#[track_caller]
fn close(what: &str, found: &[Vec<f64>], expected: &[Vec<f64>], bound: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "{what}: tensor {index}");
        for (found, expected) in found.iter().zip(expected) {
            let near = (found - expected).abs() <= bound * expected.abs().max(1.0);
            assert!(near, "{what}: {found} of tensor {index}, not {expected}");
        }
    }
}

#[test]
fn sums_and_means_agree_with_float64_in_a_few_launches() {
    alone(|device| {
        let (to, from) = (numbers(1), numbers(2));
        for (way, factor) in
            WAYS.into_iter().flat_map(|way| [0.25, 0.001, 1.0 / 7.0].map(|f| (way, f)))
        {
            let expected: Vec<Vec<f64>> = (to.iter().zip(&from))
                .map(|(to, from)| {
                    to.iter().zip(from).map(|(t, f)| exact(way, *t, *f, factor)).collect()
                })
                .collect();
            let on = (&device, DType::F32);
            let once = || read(run(way, tensors(&to, on), &tensors(&from, on), factor));
            let found = once();
            close(&format!("{way:?} by {factor}"), &found, &expected, 2e-7);
            let watch = LaunchWatch::start();
            assert_eq!(once(), found);
            let launched = watch.end();
            let works: Vec<&str> =
                launched.iter().filter_map(|one| one.work.as_ref()).map(|work| work.name).collect();
            let name = if matches!(way, Way::Sum) { "scaled sum" } else { "moving average" };
            // 47 tensors with something in them, at most 32 to a launch, and fewer on a small device.
            assert!((2..=47).contains(&works.len()), "{works:?}");
            assert!(works.iter().all(|work| *work == name), "{works:?}");
            close("composed", &CpuKernels::Composed.force(once), &found, 2e-7);
        }
    });
}

#[test]
fn who_holds_a_tensor_sees_no_change() {
    alone(|device| {
        let on = (&device, DType::F32);
        for way in WAYS {
            let held = tensors(&numbers(1), on);
            let before = read(held.clone());
            let changed = run(way, held.clone(), &tensors(&numbers(2), on), 0.5);
            assert_ne!(read(changed), before);
            assert_eq!(read(held.clone()), before);
            // A tensor that is added to itself.
            let twice = read(run(way, held.clone(), &held, 1.0));
            let expected: Vec<Vec<f64>> = (before.iter())
                .map(|one| one.iter().map(|v| exact(way, *v, *v, 1.0)).collect())
                .collect();
            assert_eq!(twice, expected);
            assert_eq!(read(held), before);
        }
    });
}

#[test]
fn what_is_not_finite_goes_where_it_is_added_and_nowhere_else() {
    alone(|device| {
        let on = (&device, DType::F32);
        let to = numbers(1);
        let mut from = numbers(2);
        (from[2][100], from[6][2000]) = (f64::NAN, f64::INFINITY);
        for way in WAYS {
            let found = read(run(way, tensors(&to, on), &tensors(&from, on), 0.5));
            assert!(found[2][100].is_nan() && found[6][2000] == f64::INFINITY, "{way:?}");
            let broken = found.iter().flatten().filter(|v| !v.is_finite()).count();
            assert_eq!(broken, 2, "{way:?}");
        }
        // By a share of 0 on the device nothing comes in, but the host's asks for what it says.
        let nan: Vec<Vec<f64>> = to.iter().map(|one| vec![f64::NAN; one.len()]).collect();
        let of = |way| read(run(way, tensors(&to, on), &tensors(&nan, on), 0.0));
        assert_eq!(of(Way::There), to);
        assert!(of(Way::Mean).iter().flatten().all(|v| v.is_nan()));
    });
}

#[test]
fn nothing_and_slices_are_taken() {
    alone(|device| {
        let on = (&device, DType::F32);
        for way in [Way::Sum, Way::Mean] {
            assert!(run(way, vec![], &[], 0.5).is_empty());
        }
        for way in WAYS {
            let nothing = || tensors(&[vec![], vec![]], on);
            assert_eq!(
                read(run(way, nothing(), &nothing(), 0.5)),
                [vec![], vec![]] as [Vec<f64>; 2]
            );
        }
        // Every other number of a matrix.
        let all = float::<2>(&[1.0, 9.0, 2.0, 9.0, 3.0, 9.0], [3, 2], &device);
        let column = || all.clone().narrow(1, 0, 1).reshape([3]);
        let across = all.clone().swap_dims(0, 1).reshape([6]);
        assert_eq!(values(across.clone()), [1.0, 2.0, 3.0, 9.0, 9.0, 9.0]);
        let sums = run(Way::Sum, vec![column(), across.clone()], &[column(), across], 2.0);
        assert_eq!(read(sums), [vec![3.0, 6.0, 9.0], vec![3.0, 6.0, 9.0, 27.0, 27.0, 27.0]]);
    });
}

#[test]
fn halves_are_combined_in_f32() {
    alone(|device| {
        let mut ran = 0;
        for (dtype, unit) in [(DType::F16, 2f64.powi(-11)), (DType::BF16, 2f64.powi(-8))] {
            if GpuKernels::of_layer(&device, dtype, 1, 1, 1).is_err() {
                continue;
            }
            ran += 1;
            let on = (&device, dtype);
            let [to, from] = [numbers(1), numbers(2)].map(|of| read(tensors(&of, on)));
            for way in [Way::Sum, Way::Mean] {
                let changed = run(way, tensors(&to, on), &tensors(&from, on), 0.3);
                assert!(changed.iter().all(|tensor| tensor.dtype() == dtype));
                for ((found, to), from) in read(changed).iter().zip(&to).zip(&from) {
                    for ((found, to), from) in found.iter().zip(to).zip(from) {
                        let expected = exact(way, *to, *from, 0.3);
                        let near = (found - expected).abs() <= 1.01 * unit * expected.abs() + 1e-7;
                        assert!(near, "{dtype:?}, {way:?}: {found}, not {expected}");
                    }
                }
            }
        }
        if ran == 0 {
            println!("skipped: this device stores neither F16 nor BF16");
        }
    });
}
