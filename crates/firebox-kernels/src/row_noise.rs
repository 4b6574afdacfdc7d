//! Normal noise on a batch whose rows have streams of their own: what a row gets does not depend on
//! the batch that it is in. It is data augmentation of inputs that are data, so it has no gradient of
//! its own.

#[cfg(feature = "cube")]
use burn::backend::Dispatch;
#[cfg(feature = "cube")]
use burn::tensor::{DType, Int};
use burn::tensor::{Tensor, TensorData};
use firebox_core::Stream;
use rayon::prelude::*;

#[cfg(feature = "cube")]
use crate::cube::{RowNoiseOps, row_noise_threads};
#[cfg(feature = "cube")]
use crate::cuts::GpuKernels;
use crate::device::constant_like;
use crate::operands::{alike, operand, types};

/// `x` with normal noise on the rows that have a stream. Value `i` of a row, counted step by step, gets
/// number `i` of the stream's [`fill_normal`](Stream::fill_normal) times its channel's deviation.
///
/// A GPU with kernels draws the numbers where they are needed: two words of a stream cross for each row,
/// and the numbers are those of the host to 1e-6 of their size or 1e-6. Elsewhere the host draws them,
/// and the result is the same to the bit for any number of threads.
///
/// # Shapes
/// - x, output: `[batch, time, channel]`
/// - deviations: `[batch, channel]`, in the units of `x`; streams: `[batch]`
///
/// # Panics
/// If there is not one stream and one row of deviations for each row of `x`, or if types or devices differ; the message
/// holds the shapes and types.
#[track_caller]
pub fn add_row_noise(x: Tensor<3>, deviations: Tensor<2>, streams: &[Option<Stream>]) -> Tensor<3> {
    let [batch, time, channel] = x.dims();
    assert!(
        deviations.dims() == [batch, channel] && streams.len() == batch,
        "noise for {} rows with deviations of {:?} on [{batch}, {time}, {channel}]: there must be one \
         stream for each row and one deviation for each of its channels ({})",
        streams.len(),
        deviations.dims(),
        types([operand("x", &x), operand("deviations", &deviations)])
    );
    alike("noise on rows", [operand("x", &x), operand("deviations", &deviations)]);
    if x.shape().num_elements() == 0 || streams.iter().all(Option::is_none) {
        return x;
    }
    #[cfg(feature = "cube")]
    if on_gpu(&x, &deviations) {
        let keys = keys(streams, &x);
        return Tensor::from_dispatch(<Dispatch as RowNoiseOps>::firebox_row_noise(
            x.into_dispatch(),
            deviations.into_dispatch(),
            keys.into_dispatch(),
        ));
    }
    let mut noise = vec![0.0; batch * time * channel];
    noise.par_chunks_mut(time * channel).zip(streams).for_each(|(row, stream)| {
        if let Some(stream) = stream {
            stream.fill_normal(row);
        }
    });
    let noise = constant_like(&x, TensorData::new(noise, [batch, time, channel]));
    x + deviations.reshape([batch, 1, channel]) * noise
}

/// Whether the kernels of a GPU take these tensors.
#[cfg(feature = "cube")]
fn on_gpu(x: &Tensor<3>, deviations: &Tensor<2>) -> bool {
    x.dtype() == DType::F32
        && deviations.dtype() == DType::F32
        && !x.is_autodiff()
        && !deviations.is_autodiff()
        && x.device() == deviations.device()
        && row_noise_threads(x.dims()) <= i32::MAX as usize
        && GpuKernels::takes(&x.device(), DType::F32).is_ok()
}

/// The key of each row's stream and whether it has one, `[batch, 3]`.
#[cfg(feature = "cube")]
fn keys(streams: &[Option<Stream>], x: &Tensor<3>) -> Tensor<2, Int> {
    let row = |stream: &Option<Stream>| match stream.map(Stream::key) {
        Some([low, high]) => [low as i32, high as i32, 1],
        None => [0; 3],
    };
    let keys: Vec<i32> = streams.iter().flat_map(row).collect();
    let keys = TensorData::new(keys, [streams.len(), 3]);
    Tensor::from_data(keys, (&x.device(), DType::I32))
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Device};

    use super::*;

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().iter::<f32>().collect()
    }

    fn tensor<const D: usize>(seed: u64, shape: [usize; D]) -> Tensor<D> {
        let mut draws = Stream::new(seed, "x").draws();
        let count = shape.iter().product();
        let numbers: Vec<f32> = (0..count).map(|_| draws.normal() as f32).collect();
        Tensor::from_data(TensorData::new(numbers, shape), &Device::flex())
    }

    #[test]
    fn each_value_gets_its_number_of_the_rows_stream_times_its_channels_deviation() {
        for shape in [[1, 1, 1], [5, 7, 3], [3, 105, 4], [2, 17, 29], [4, 0, 2]] {
            let [batch, time, channel] = shape;
            let (x, deviations) = (tensor(1, shape), tensor(2, [batch, channel]));
            let stream = |row: usize| Stream::new(3, "rows").substream(row as u64);
            let streams: Vec<_> =
                (0..batch).map(|row| (row % 3 != 1).then(|| stream(row))).collect();
            let noisy = values(add_row_noise(x.clone(), deviations.clone(), &streams));
            let (x, deviations) = (values(x), values(deviations));
            for row in 0..batch {
                let mut numbers = vec![0.0; time * channel];
                if let Some(stream) = streams[row] {
                    stream.fill_normal(&mut numbers);
                }
                for (at, number) in numbers.iter().enumerate() {
                    let deviation = deviations[row * channel + at % channel];
                    let place = row * time * channel + at;
                    assert_eq!(noisy[place], x[place] + deviation * number, "{shape:?} {place}");
                }
            }
        }
    }

    #[test]
    fn half_precision_stays_what_it_is() {
        let (x, deviations) = (tensor(1, [3, 8, 4]), tensor(2, [3, 4]));
        let streams: Vec<_> =
            (0..3).map(|row| Some(Stream::new(4, "rows").substream(row))).collect();
        let full = values(add_row_noise(x.clone(), deviations.clone(), &streams));
        for (dtype, bound) in [(DType::F16, 4e-3), (DType::BF16, 3e-2)] {
            let y = add_row_noise(x.clone().cast(dtype), deviations.clone().cast(dtype), &streams);
            assert_eq!(y.dtype(), dtype);
            for (half, full) in values(y).iter().zip(&full) {
                assert!(
                    (half - full).abs() <= bound * (1.0 + full.abs()),
                    "{dtype:?}: {half} {full}"
                );
            }
        }
    }

    #[test]
    fn a_rows_noise_is_the_same_in_every_batch_and_with_any_number_of_threads() {
        let (x, deviations) = (tensor(1, [6, 33, 4]), tensor(2, [6, 4]));
        let streams: Vec<_> =
            (0..6).map(|row| Some(Stream::new(4, "rows").substream(row))).collect();
        let of = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| values(add_row_noise(x.clone(), deviations.clone(), &streams)))
        };
        let all = of(1);
        assert!(all == of(2) && all == of(3));
        let part = add_row_noise(
            x.clone().narrow(0, 2, 2),
            deviations.clone().narrow(0, 2, 2),
            &streams[2..4],
        );
        assert_eq!(values(part), all[2 * 33 * 4..4 * 33 * 4]);
        // Cut to fewer steps, the same numbers at the beginning.
        let short = values(add_row_noise(x.narrow(1, 0, 9), deviations, &streams));
        for (short, whole) in short.chunks(9 * 4).zip(all.chunks(33 * 4)) {
            assert_eq!(short, &whole[..9 * 4]);
        }
    }

    #[test]
    fn the_gradient_of_what_noise_is_added_to_passes() {
        let device = Device::flex().autodiff();
        let x = Tensor::<3>::ones([2, 3, 2], &device).require_grad();
        let deviations = Tensor::<2>::ones([2, 2], &device);
        let y = add_row_noise(x.clone(), deviations, &[Some(Stream::new(1, "a")), None]);
        let grads = (y * 3.0).sum().backward();
        assert_eq!(values(x.grad(&grads).unwrap()), [3.0; 12]);
    }

    #[test]
    #[should_panic(expected = "noise for 1 rows with deviations of [2, 4] on [2, 5, 4]")]
    fn a_missing_stream_is_refused() {
        add_row_noise(tensor(1, [2, 5, 4]), tensor(2, [2, 4]), &[None]);
    }
}
