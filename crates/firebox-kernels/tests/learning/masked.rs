//! The squared error of some rows, in every way that it is computed.

use burn::tensor::{DType, Device, Tensor, TensorData};
use firebox_kernels::{CpuKernels, MeanLoss, masked_squared_error, squared_error};

use crate::losses::{close, fused, measure, noise, read, tensor};

/// Value and gradient of the squared error of the rows that count, in float64.
fn squares_of_rows(x: &[f64], targets: &[f64], counted: &[f64], numbers: f64) -> (f64, Vec<f64>) {
    let width = x.len() / counted.len();
    let distance = |at: usize| counted[at / width] * (x[at] - targets[at]) / numbers.max(1.0);
    let value = (0..x.len()).map(|at| distance(at) * (x[at] - targets[at])).sum();
    (value, (0..x.len()).map(|at| 2.0 * distance(at)).collect())
}

/// The loss of some rows, one weight each, which is the mean over those of a weight of one.
pub(crate) fn masked<const D: usize>(
    x: Tensor<D>,
    targets: &Tensor<D>,
    counted: &[f32],
) -> MeanLoss {
    let (mut shape, width) = (x.dims(), x.dims()[D - 1]);
    shape[D - 1] = 1;
    let counted: Vec<f64> = counted.iter().map(|one| f64::from(*one)).collect();
    let weight = counted.iter().sum::<f64>() * width as f64;
    let counted = tensor(&counted, shape).inner();
    let value = masked_squared_error(x, targets.clone(), counted, weight);
    MeanLoss { value, weight }
}

#[test]
fn the_squared_error_of_some_rows_agrees_with_float64_and_that_by_weights() {
    for shape @ [samples, time, width] in [[1, 1, 1], [3, 5, 4], [7, 105, 3], [64, 33, 17]] {
        let (count, rows) = (samples * time * width, samples * time);
        let (x, targets) = (noise(1, count, 2.0), noise(2, count, 2.0));
        for kept in [0, 3, 1] {
            let of_row = |row: usize| f64::from(kept > 0 && row.is_multiple_of(kept));
            let counted: Vec<f64> = (0..rows).map(of_row).collect();
            let numbers = counted.iter().sum::<f64>() * width as f64;
            let (value, gradient) = squares_of_rows(&x, &targets, &counted, numbers);
            let weights: Vec<f32> = counted.iter().map(|one| *one as f32).collect();
            for kernels in CpuKernels::available() {
                let targets = || tensor(&targets, shape);
                let run = || measure(tensor(&x, shape), |x| Ok(masked(x, &targets(), &weights)));
                let (found, slope, _) = kernels.force(run);
                let what = format!("{kernels:?}: {shape:?}, {numbers} numbers");
                close(&what, &[found], &[value], 1e-6);
                close(&what, &slope, &gradient, 1e-6);
                let weighted = |x| squared_error(x, targets(), Some(&weights));
                let (by_weights, _, weight) = measure(tensor(&x, shape), weighted);
                close(&what, &[found, numbers], &[by_weights, weight], 1e-6);
            }
        }
    }
    // The squares of halves are summed in f32.
    let half = |x: f64| tensor(&[x; 8], [1, 4, 2]).inner().cast(DType::F16);
    let counted = tensor(&[1.0; 4], [1, 4, 1]).inner().cast(DType::F16);
    assert_eq!(read(masked_squared_error(half(300.0), half(-300.0), counted, 8.0)), [360_000.0]);
    let nothing = tensor(&[], [0, 3, 2]);
    let value = masked_squared_error(nothing.clone(), nothing, tensor(&[], [0, 3, 1]), 0.0);
    assert_eq!(read(value), [0.0]);
}

#[test]
fn rows_that_do_not_count_are_not_read() {
    // What is not read stands where predictions, targets or both are no numbers, or overflow.
    let (nan, infinite, most) = (f64::NAN, f64::INFINITY, 3e38);
    let x = [1.0, 3.0, 5.0, infinite, nan, most, 2.0, 0.0];
    let targets = [0.0, 1.0, nan, infinite, 0.0, -most, 1.0, 0.0];
    let counted = [1.0, 0.0, 0.0, 1.0];
    let (value, gradient) = (6.0 / 4.0, [0.5, 1.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0]);
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            let loss = |x| Ok(masked(x, &tensor(&targets, [2, 2, 2]), &counted));
            let (found, slope, weight) = measure(tensor(&x, [2, 2, 2]), loss);
            assert_eq!((found, slope.as_slice(), weight), (value, &gradient[..], 4.0));
            // Nor where none counts.
            let loss = |x| Ok(masked(x, &tensor(&targets, [2, 2, 2]), &[0.0; 4]));
            assert_eq!(measure(tensor(&x, [2, 2, 2]), loss), (0.0, vec![0.0; 8], 0.0));
            // Of rows of one number, what counts is read by itself.
            let loss = |x| Ok(masked(x, &tensor(&[0.0, nan], [2, 1]), &[1.0, 0.0]));
            assert_eq!(measure(tensor(&[3.0, nan], [2, 1]), loss), (9.0, vec![6.0, 0.0], 1.0));
        });
    }
    // Types that are measured in f32, and checkpointing, which leaves it to Burn's operations.
    let graph = Device::flex().autodiff();
    for graph in [graph.clone(), graph.gradient_checkpointing()] {
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let data = |numbers: &[f64]| {
                let numbers = TensorData::new(numbers.to_vec(), [2, 2, 2]);
                Tensor::<3>::from_data(numbers, (&graph, dtype))
            };
            let x = data(&x).require_grad();
            let rows = TensorData::new(counted.to_vec(), [2, 2, 1]);
            let rows = Tensor::from_data(rows, (&Device::flex(), dtype));
            let loss = masked_squared_error(x.clone(), data(&targets), rows, 4.0);
            assert_eq!(read(loss.clone()), [value], "{dtype:?}");
            let slope = read(x.grad(&loss.backward()).unwrap());
            assert_eq!(slope, gradient, "{dtype:?}");
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let shape @ [samples, time, width] = [64, 133, 17];
    let (x, targets) =
        (noise(1, samples * time * width, 2.0), noise(2, samples * time * width, 2.0));
    let counted: Vec<f32> = (0..samples * time).map(|row| f32::from(row % 7 < 3)).collect();
    for kernels in fused() {
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let loss = |x| Ok(masked(x, &tensor(&targets, shape), &counted));
            pool.install(|| kernels.force(|| measure(tensor(&x, shape), loss)))
        };
        let one = run(1);
        for threads in [2, 3, 5] {
            assert_eq!(run(threads), one, "{kernels:?}, {threads} threads");
        }
    }
}
