//! The most that a device does, measured, beside which steps are judged.

use std::time::{Duration, Instant};

use burn::tensor::{DType, Device, Distribution, Tensor};
use firebox_core::Precision;
use firebox_kernels::CpuCeilings;
use serde::{Deserialize, Serialize};

use super::work::OPTIMIZER_BYTES;
use crate::device::ChosenDevice;

/// Side of the square matrices that a GPU multiplies: 4,096 as in cuBLAS's own benchmarks.
const SIDE: usize = 4096;
/// Numbers that a GPU adds up: 256 MiB.
const NUMBERS: usize = 64 << 20;
/// How long each ceiling of a GPU is measured.
const MEASURED: Duration = Duration::from_millis(300);

/// Rates that no step on this device can go beyond.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// Additions and multiplications of f32 a second. On a processor those of chains in registers; on
    /// a GPU those of Burn's product of two large matrices, which is what can be had.
    pub f32_flops: f64,
    /// The same with operands in bf16; `None` where the device has no such type.
    pub bf16_flops: Option<f64>,
    /// The same with operands in f16.
    pub f16_flops: Option<f64>,
    /// Bytes a second read and written.
    pub memory_bytes: f64,
}

impl Ceilings {
    /// Measures them, in a second or two on an idle machine.
    pub fn measure(device: &ChosenDevice) -> Self {
        if device.backend == "cpu" {
            let CpuCeilings { f32_flops, bf16_flops, memory_bytes } = CpuCeilings::measure();
            // f16 is storage on a processor; its arithmetic is that of f32.
            let (bf16_flops, f16_flops) = (Some(bf16_flops), Some(f32_flops));
            return Self { f32_flops, bf16_flops, f16_flops, memory_bytes };
        }
        let device = &device.device;
        let of = |dtype| device.supports_dtype(dtype).then(|| products(device, dtype));
        Self {
            f32_flops: products(device, DType::F32),
            bf16_flops: of(DType::BF16),
            f16_flops: of(DType::F16),
            memory_bytes: sums(device),
        }
    }

    /// Operations a second in a precision.
    pub fn flops(&self, precision: Precision) -> f64 {
        match precision {
            Precision::F32 | Precision::Tf32 => self.f32_flops,
            Precision::Bf16 => self.bf16_flops.unwrap_or(self.f32_flops),
            Precision::F16 => self.f16_flops.unwrap_or(self.f32_flops),
        }
    }

    /// Milliseconds that a step cannot go below: its products at the ceiling of their type and, after
    /// them because gradients are clipped by their norm, the optimizer's way through memory.
    pub fn floor_ms(
        &self,
        precision: Precision,
        gflop: f64,
        parameters: usize,
        evaluate: bool,
    ) -> f64 {
        let optimizer = if evaluate { 0.0 } else { OPTIMIZER_BYTES * parameters as f64 };
        1e3 * (1e9 * gflop / self.flops(precision) + optimizer / self.memory_bytes)
    }
}

/// Waits until a number is computed: the data of a tensor are read when they are looked at, not before.
fn wait_for<const D: usize>(number: Tensor<D>) {
    let data = number.into_data();
    std::hint::black_box(data.iter::<f32>().next());
}

/// Operations a second of a product of two large matrices.
fn products(device: &Device, dtype: DType) -> f64 {
    let matrix = || {
        let numbers = Tensor::<2>::random([SIDE, SIDE], Distribution::Default, device);
        numbers.cast(dtype)
    };
    let (a, b) = (matrix(), matrix());
    best(|| {
        let product = a.clone().matmul(b.clone());
        wait_for(product.slice([0..1, 0..1]));
        2.0 * (SIDE as f64).powi(3)
    })
}

/// Bytes a second of an addition of large vectors.
fn sums(device: &Device) -> f64 {
    let numbers = Tensor::<1>::ones([NUMBERS], device);
    best(|| {
        let sum = numbers.clone() + 1.0;
        wait_for(sum.narrow(0, 0, 1));
        2.0 * 4.0 * NUMBERS as f64
    })
}

/// The best rate of some work that returns how much it did. The first time is not counted: it
/// compiles.
fn best(mut work: impl FnMut() -> f64) -> f64 {
    work();
    let (begin, mut best) = (Instant::now(), 0.0f64);
    while begin.elapsed() < MEASURED {
        let start = Instant::now();
        let done = work();
        best = best.max(done / start.elapsed().as_secs_f64());
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_is_arithmetic_and_then_the_optimizer() {
        let ceilings = Ceilings {
            f32_flops: 1e12,
            bf16_flops: Some(2e12),
            f16_flops: None,
            memory_bytes: 28e9,
        };
        let floor = |precision, evaluate| ceilings.floor_ms(precision, 500.0, 10_000_000, evaluate);
        assert_eq!(floor(Precision::F32, false), 510.0);
        assert_eq!(floor(Precision::Bf16, false), 260.0);
        assert_eq!(floor(Precision::F16, true), 500.0);
    }
}
