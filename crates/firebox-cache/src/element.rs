//! The number types that shards are stored in.

use std::iter::Sum;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_buffer::ArrowNativeType;
use arrow_schema::DataType;
use firebox_core::Storage;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::copy;

/// Values of one record as they are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Half precision.
    F16(&'a [f16]),
    /// The upper half of single precision.
    Bf16(&'a [bf16]),
}

impl<'a> Values<'a> {
    /// Some of the values.
    ///
    /// # Panics
    ///
    /// When there are fewer.
    pub fn part(&self, range: std::ops::RangeTo<usize>) -> Values<'a> {
        self.slice(0..range.end)
    }

    fn slice(&self, range: Range<usize>) -> Values<'a> {
        match self {
            Self::F32(values) => Values::F32(&values[range]),
            Self::F16(values) => Values::F16(&values[range]),
            Self::Bf16(values) => Values::Bf16(&values[range]),
        }
    }

    /// The same as [`write`](Self::write), past the caches if the values are many.
    pub(crate) fn copy_to(&self, out: &mut [f32]) {
        /// Values that are converted at a time: 8 KiB, which the nearest cache holds.
        const PART: usize = 2048;
        let large = copy::is_large(self.len());
        if let Self::F32(values) = self {
            return copy::copy(values, large, out);
        }
        if !large {
            return self.write(out);
        }
        let mut part = [0.0; PART];
        for (number, out) in out.chunks_mut(PART).enumerate() {
            let converted = &mut part[..out.len()];
            let start = number * PART;
            self.slice(start..start + converted.len()).write(converted);
            copy::copy(converted, large, out);
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the values as f32.
    ///
    /// # Panics
    ///
    /// When `out` has another length.
    pub fn write(&self, out: &mut [f32]) {
        match self {
            Self::F32(values) => out.copy_from_slice(values),
            Self::F16(values) => copy::widen_f16(values, out),
            Self::Bf16(values) => copy::widen_bf16(values, out),
        }
    }
}

/// Whether f32 are made of values in this type as fast as f32 are copied: half of the bytes come from memory, so that it is
/// faster where the processor makes them by whole vectors.
pub fn widens_fast(storage: Storage) -> bool {
    storage != Storage::F16 || copy::has_f16()
}

/// A type that values are stored as.
pub(crate) trait Element: ArrowNativeType + Send + Sync {
    /// Stores values; the index of the first that this type cannot hold as a finite number.
    fn store(values: &[f32], out: &mut [Self]) -> Result<(), usize>;

    /// How many of `values` that are not 0 became 0 in `out`.
    fn lost(values: &[f32], out: &[Self]) -> usize;
}

impl Element for f32 {
    fn store(values: &[f32], out: &mut [Self]) -> Result<(), usize> {
        out.copy_from_slice(values);
        first_not_finite(values.iter().map(|value| value.is_finite()))
    }

    fn lost(_: &[f32], _: &[Self]) -> usize {
        0
    }
}

impl Element for f16 {
    fn store(values: &[f32], out: &mut [Self]) -> Result<(), usize> {
        out.convert_from_f32_slice(values);
        first_not_finite(out.iter().map(|value| value.is_finite()))
    }

    fn lost(values: &[f32], out: &[Self]) -> usize {
        let is_lost = |(value, stored): (&f32, &f16)| *value != 0.0 && stored.to_bits() << 1 == 0;
        values.iter().zip(out).map(|pair| usize::from(is_lost(pair))).sum()
    }
}

/// Arrow has no bf16: its bits are stored as u16, and the schema says so.
impl Element for u16 {
    fn store(values: &[f32], out: &mut [Self]) -> Result<(), usize> {
        let out = out.reinterpret_cast_mut::<bf16>();
        out.convert_from_f32_slice(values);
        first_not_finite(out.iter().map(|value| value.is_finite()))
    }

    /// Its exponents are those of f32.
    fn lost(_: &[f32], _: &[Self]) -> usize {
        0
    }
}

/// Values that are too small for f16, counted by all threads.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    zeros: AtomicU64,
    all: AtomicU64,
}

/// Share of the values from which it is told of. A choice: of normalised values, a few lie as near to 0.
const TOLD: f64 = 0.01;

/// How many values were stored, and how many of those that are not 0 became 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Zeros {
    zeros: u64,
    all: u64,
}

impl Lost {
    /// Looks at values that were stored.
    pub(crate) fn add<T: Element>(&self, values: &[f32], out: &[T]) {
        self.zeros.fetch_add(T::lost(values, out) as u64, Ordering::Relaxed);
        self.all.fetch_add(values.len() as u64, Ordering::Relaxed);
    }

    /// Those of all that were looked at.
    pub(crate) fn zeros(&self) -> Zeros {
        let [zeros, all] = [&self.zeros, &self.all].map(|number| number.load(Ordering::Relaxed));
        Zeros { zeros, all }
    }
}

impl Zeros {
    /// Whether every value that is not 0 is still none.
    pub(crate) fn are_none(&self) -> bool {
        self.zeros == 0
    }

    /// What is said if they are more than a few; `way_out` is what can be done.
    pub(crate) fn warning(&self, way_out: &str) -> Option<String> {
        let share = self.zeros as f64 / self.all.max(1) as f64;
        (share > TOLD).then(|| {
            format!(
                "{:.1} % of the values are nearer to 0 than f16 can tell (below 3e-8) and were stored as 0: {way_out}",
                share * 100.0
            )
        })
    }
}

impl Sum for Zeros {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), |sum, part| Self {
            zeros: sum.zeros + part.zeros,
            all: sum.all + part.all,
        })
    }
}

/// Without a branch inside, which the compiler turns into wide comparisons.
fn first_not_finite(finite: impl Iterator<Item = bool> + Clone) -> Result<(), usize> {
    if finite.clone().fold(true, |all, one| all & one) {
        return Ok(());
    }
    finite.enumerate().find(|(_, finite)| !finite).map_or(Ok(()), |(index, _)| Err(index))
}

/// The Arrow type of values stored so.
pub(crate) fn data_type(storage: Storage) -> DataType {
    match storage {
        Storage::F32 => DataType::Float32,
        Storage::F16 => DataType::Float16,
        Storage::Bf16 => DataType::UInt16,
    }
}

/// Bytes of a value.
pub(crate) fn bytes(storage: Storage) -> usize {
    match storage {
        Storage::F32 => 4,
        Storage::F16 | Storage::Bf16 => 2,
    }
}

/// The name of a storage type, as configuration files write it.
pub(crate) fn name(storage: Storage) -> &'static str {
    match storage {
        Storage::F32 => "f32",
        Storage::F16 => "f16",
        Storage::Bf16 => "bf16",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_values_come_back_within_their_precision() {
        let values: Vec<f32> = (-300..300).map(|i| i as f32 * 0.37 + 0.01).collect();
        let mut back = vec![0.0; values.len()];
        let mut halves = vec![f16::ZERO; values.len()];
        assert_eq!(f16::store(&values, &mut halves), Ok(()));
        Values::F16(&halves).write(&mut back);
        let close = |tolerance: f32, back: &[f32]| {
            values.iter().zip(back).all(|(a, b)| (a - b).abs() <= tolerance * a.abs())
        };
        assert!(close(4.9e-4, &back) && !close(1e-5, &back));
        let mut bits = vec![0u16; values.len()];
        assert_eq!(u16::store(&values, &mut bits), Ok(()));
        Values::Bf16(bits.reinterpret_cast()).write(&mut back);
        assert!(close(3.9e-3, &back) && !close(1e-3, &back));
    }

    #[test]
    fn values_that_became_zeros_are_counted_and_told_of() {
        let values: Vec<f32> = (0..200).map(|at| if at < 3 { -2e-8 } else { at as f32 }).collect();
        let (mut halves, lost) = (vec![f16::ZERO; 200], Lost::default());
        f16::store(&values, &mut halves).unwrap();
        lost.add(&values, &halves);
        let said = lost.zeros().warning("scale them").unwrap();
        assert!(
            said.starts_with("1.5 % of the values") && said.ends_with(": scale them"),
            "{said}"
        );
        // The smallest that is told from 0, zeros of both signs, and other types.
        let few = [6e-8, 0.0, -0.0, 1.0];
        f16::store(&few, &mut halves[..4]).unwrap();
        assert_eq!(f16::lost(&few, &halves[..4]), 0);
        let mut bits = [0; 200];
        u16::store(&values, &mut bits).unwrap();
        assert_eq!((u16::lost(&values, &bits), f32::lost(&values, &values)), (0, 0));
        for _ in 0..2 {
            lost.add(&[1.0; 200], &[f16::ONE; 200]);
        }
        assert_eq!(lost.zeros().warning(""), None, "half a per cent");
        assert_eq!(lost.zeros(), Zeros { zeros: 3, all: 600 });
    }

    #[test]
    fn values_beyond_the_range_are_found() {
        assert_eq!(f16::store(&[1.0, 65_504.0], &mut [f16::ZERO; 2]), Ok(()));
        assert_eq!(f16::store(&[1.0, 65_520.0], &mut [f16::ZERO; 2]), Err(1));
        assert_eq!(u16::store(&[1e38, f32::MAX], &mut [0; 2]), Err(1));
        assert_eq!(f32::store(&[f32::MAX, f32::NAN], &mut [0.0; 2]), Err(1));
    }
}
