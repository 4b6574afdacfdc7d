//! Products of matrices in pairs, linear layers whose operands lie in any order, and those with an activation, in every
//! variant of the CPU kernels: against float64, differences, Burn's own operations, and each other to the bit.

#![allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
#![allow(unreachable_pub, reason = "nothing outside of this program can name its modules")]

mod activated;
mod batched;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[path = "../amx/emulated.rs"]
mod emulated;
mod strided;

use burn::tensor::{Device, Tensor, TensorData};
use firebox_core::{Precision, Stream};
use firebox_kernels::CpuKernels;

/// All variants, AMX by its emulation where the processor lacks it.
fn kernels() -> Vec<CpuKernels> {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    emulated::emulate();
    CpuKernels::available()
}

fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut draws = Stream::new(seed, "products").draws();
    (0..count).map(|_| draws.normal() as f32).collect()
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
}

/// Runs it on so many threads.
fn on_threads<T: Send>(threads: usize, run: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.expect("a pool").install(run)
}

/// An operand of a product in float64, rounded as its precision has it.
fn wide(values: &[f32], precision: Precision) -> Vec<f64> {
    let round = |value: f32| match precision {
        Precision::Bf16 => half::bf16::from_f32(value).to_f64(),
        Precision::F16 => half::f16::from_f32(value).to_f64(),
        Precision::F32 | Precision::Tf32 => f64::from(value),
    };
    values.iter().map(|value| round(*value)).collect()
}

/// ‖found − exact‖ / ‖exact‖
fn error(found: &[f32], exact: &[f64]) -> f64 {
    assert_eq!(found.len(), exact.len());
    let pairs = found.iter().zip(exact);
    let square: f64 = pairs.map(|(found, exact)| (f64::from(*found) - exact).powi(2)).sum();
    (square / exact.iter().map(|exact| exact * exact).sum::<f64>().max(1e-30)).sqrt()
}

/// How the numbers of a tensor lie in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lay {
    Plain,
    Transposed,
    /// A part of larger matrices, whose other numbers are NaN.
    Part,
    /// The same, transposed.
    TransposedPart,
    /// A row of each matrix, then the next row of each, as heads of attention lie.
    RowByRow,
    /// A number of each matrix, then the next: what products copy first.
    NumberByNumber,
    /// Backwards, which they copy, too.
    Backwards,
}

impl Lay {
    const ALL: [Self; 7] = [
        Self::Plain,
        Self::Transposed,
        Self::Part,
        Self::TransposedPart,
        Self::RowByRow,
        Self::NumberByNumber,
        Self::Backwards,
    ];

    /// Numbers in row-major order as a tensor `[count, rows, columns]` that lies so, in no graph.
    fn tensor(self, numbers: &[f32], shape: [usize; 3]) -> Tensor<3> {
        let device = Device::flex();
        let [count, rows, columns] = shape;
        let plain = || Tensor::<3>::from_data(TensorData::new(numbers.to_vec(), shape), &device);
        let part = |high: usize, width: usize, at: &dyn Fn(usize, usize, usize) -> usize| {
            let mut all = vec![f32::NAN; count * (high + 2) * (width + 3)];
            for matrix in 0..count {
                for row in 0..high {
                    for column in 0..width {
                        let place = (matrix * (high + 2) + row + 1) * (width + 3) + column + 2;
                        all[place] = numbers[at(matrix, row, column)];
                    }
                }
            }
            let all = TensorData::new(all, [count, high + 2, width + 3]);
            Tensor::<3>::from_data(all, &device).narrow(1, 1, high).narrow(2, 2, width)
        };
        // Copied in another order of axes, and seen in this one.
        let turned = |there: [usize; 3], back: [isize; 3]| {
            let data = plain().permute(there.map(|axis| axis as isize)).into_data();
            Tensor::<3>::from_data(data, &device).permute(back)
        };
        match self {
            _ if numbers.is_empty() => plain(),
            Self::Plain => plain(),
            Self::Transposed => turned([0, 2, 1], [0, 2, 1]),
            Self::Part => {
                part(rows, columns, &|matrix, row, column| (matrix * rows + row) * columns + column)
            }
            Self::TransposedPart => {
                part(columns, rows, &|matrix, row, column| (matrix * rows + column) * columns + row)
                    .swap_dims(1, 2)
            }
            Self::RowByRow => turned([1, 0, 2], [1, 0, 2]),
            Self::NumberByNumber => turned([1, 2, 0], [2, 0, 1]),
            Self::Backwards => {
                let data = plain().flip([1]).into_data();
                Tensor::<3>::from_data(data, &device).flip([1])
            }
        }
    }
}
