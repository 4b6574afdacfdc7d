//! What holds, as numbers: ones and zeros for masks that the host has drawn. They cross to a device as bits.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

/// Bits of a word.
const WORD: usize = i32::BITS as usize;

/// One where something holds and zero elsewhere, in f32.
///
/// A device that is not the processor gets one bit for each number and makes the numbers itself: a
/// thirty-second of what they are. Nothing is read back. The tensor is in no graph.
///
/// # Shapes
///
/// - `holds`: as many as the numbers of `shape`, row-major
/// - returns `shape`
///
/// # Panics
///
/// When there are more or fewer; the message holds the shape.
///
/// # Example
///
/// ```
/// use burn::tensor::Device;
/// use firebox_kernels::indicator;
///
/// let mask = indicator(&[true, false, true], [1, 3, 1], &Device::default());
/// assert_eq!(mask.dims(), [1, 3, 1]);
/// assert_eq!(mask.sum().into_scalar::<f32>(), 2.0);
/// ```
#[track_caller]
pub fn indicator<const D: usize>(holds: &[bool], shape: [usize; D], device: &Device) -> Tensor<D> {
    assert!(
        holds.len() == shape.iter().product::<usize>(),
        "an indicator in F32 was given {} values; there must be one for each number of {shape:?}",
        holds.len()
    );
    let device = device.clone().without_autodiff();
    if device == Device::flex() || holds.is_empty() {
        let values: Vec<f32> = holds.iter().map(|holds| f32::from(*holds)).collect();
        return Tensor::from_data(TensorData::new(values, shape), (&device, DType::F32));
    }
    from_bits(holds, shape, &device)
}

/// The same by way of bits, on any device.
fn from_bits<const D: usize>(holds: &[bool], shape: [usize; D], device: &Device) -> Tensor<D> {
    let words: Vec<i32> = holds.chunks(WORD).map(word).collect();
    let all = [words.len(), WORD];
    let words = TensorData::new(words, [all[0], 1]);
    let words = Tensor::<2, Int>::from_data(words, (device, DType::I32));
    #[cfg(feature = "cube")]
    if crate::cuts::GpuKernels::takes(device, DType::F32).is_ok()
        && crate::cuts::is_countable(holds.len())
    {
        use crate::cube::BitOps;

        let words = words.into_dispatch();
        let numbers = <burn::backend::Dispatch as BitOps>::firebox_bits(words, holds.len());
        return Tensor::<1>::from_dispatch(numbers).reshape(shape);
    }
    let words = words.expand(all);
    let places = Tensor::<1, Int>::arange(0..WORD as i64, device).reshape([1, WORD]).expand(all);
    // The sign goes down with it, above the bit that is asked for.
    let bits = words.bitwise_right_shift(places).bitwise_and_scalar(1);
    bits.float().cast(DType::F32).reshape([all[0] * WORD]).narrow(0, 0, holds.len()).reshape(shape)
}

/// Up to 32 bits as a word, the first one lowest.
fn word(holds: &[bool]) -> i32 {
    let add = |word: u32, (place, holds): (usize, &bool)| word | u32::from(*holds) << place;
    holds.iter().enumerate().fold(0, add).cast_signed()
}

#[cfg(test)]
mod tests {
    use firebox_core::Stream;

    use super::*;

    #[test]
    fn numbers_and_bits_say_the_same() {
        let device = Device::default();
        for (length, seed) in [(1, 0), (31, 1), (32, 2), (33, 3), (105 * 7, 4), (4096, 5)] {
            let mut draws = Stream::new(seed, "indicator").draws();
            let drawn: Vec<bool> = (0..length).map(|_| draws.chance(0.4)).collect();
            for holds in [drawn, vec![true; length], vec![false; length]] {
                let expected: Vec<f32> = holds.iter().map(|holds| f32::from(*holds)).collect();
                let values = |tensor: Tensor<3>| {
                    assert_eq!(tensor.dims(), [1, length, 1]);
                    tensor.into_data().try_to_vec::<f32>().unwrap()
                };
                let shape = [1, length, 1];
                assert_eq!(values(indicator(&holds, shape, &device)), expected);
                assert_eq!(values(from_bits(&holds, shape, &device)), expected);
            }
        }
        assert_eq!(indicator(&[], [0, 5], &device).dims(), [0, 5]);
    }

    #[test]
    #[should_panic(expected = "one for each number of [2, 3]")]
    fn another_number_is_refused() {
        let _ = indicator(&[true; 5], [2, 3], &Device::default());
    }
}
