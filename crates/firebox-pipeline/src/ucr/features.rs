//! What probes are fitted to: maxima over parts of each sample, from whole to sixteenths, and samples as
//! they are for fixed kernels.

use burn::tensor::Device;
use firebox_eval::Features;
use firebox_kernels::KeptWeights;
use firebox_loader::{HeldOutLoader, LoaderConfig, Source};
use firebox_models::Encoder;
use std::sync::Arc;

use crate::error::PipelineError;

/// Samples encoded at once.
const BATCH: usize = 64;

/// The features of all samples of a source. `levels` are the numbers of parts that a sample is cut
/// into; each part gives the largest number of each channel of the encoding.
pub(super) fn features<E: Encoder>(
    encoder: &E,
    (part, source): (&'static str, Arc<dyn Source>),
    levels: &[usize],
    device: &Device,
) -> Result<Features, PipelineError> {
    let width = encoder.step_width();
    let parts: usize = levels.iter().sum();
    let mut out = Features { width: parts * width, ..Features::default() };
    let config = LoaderConfig { batch_size: BATCH, workers: 0, ..LoaderConfig::default() };
    let kept = KeptWeights::new();
    for batch in HeldOutLoader::new(source, config, device.clone())?.batches() {
        let batch = batch?;
        let encoded = kept.during(|| encoder.encode(batch.inputs, Some(&batch.lengths), None));
        let [_, steps, _] = encoded.dims();
        let values: Vec<f32> = encoded.into_data().iter::<f32>().collect();
        let lengths = encoder.step_lengths(&batch.lengths);
        for (row, length) in values.chunks_exact(steps * width).zip(lengths) {
            pyramid(&row[..length.min(steps) * width], width, levels, &mut out.rows);
        }
        out.labels.extend(batch.labels.into_iter().map(Option::unwrap_or_default));
    }
    out.check(part, out.width, usize::MAX)?;
    Ok(out)
}

/// The valid steps of each sample, `[time, channel]`, and its class.
pub(super) fn raw(source: &dyn Source) -> Result<(Vec<Vec<f32>>, Vec<u32>), PipelineError> {
    let [time, channels] = source.shape();
    let (mut windows, mut labels) = (vec![], vec![]);
    for index in 0..source.len() {
        let mut window = vec![0.0; time * channels];
        let sample = source.read(index, &mut window)?;
        window.truncate(sample.length as usize * channels);
        windows.push(window);
        labels.push(sample.label.unwrap_or_default());
    }
    Ok((windows, labels))
}

/// Appends the maxima over the parts of one sample's steps. A part without a step takes the step that
/// it would begin at.
fn pyramid(steps: &[f32], width: usize, levels: &[usize], out: &mut Vec<f32>) {
    let count = steps.len() / width.max(1);
    for level in levels {
        for part in 0..*level {
            if count == 0 {
                out.extend(std::iter::repeat_n(0.0, width));
                continue;
            }
            let first = (part * count / level).min(count - 1);
            let end = ((part + 1) * count / level).clamp(first + 1, count);
            let begin = out.len();
            out.extend_from_slice(&steps[first * width..(first + 1) * width]);
            for row in steps[(first + 1) * width..end * width].chunks_exact(width) {
                for (top, value) in out[begin..].iter_mut().zip(row) {
                    // A NaN stays, to be refused.
                    if *value > *top || value.is_nan() {
                        *top = *value;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_sample_and_short_ones_repeat_steps() {
        let of = |steps: &[f32], levels: &[usize]| {
            let mut out = vec![];
            pyramid(steps, 1, levels, &mut out);
            out
        };
        assert_eq!(of(&[1.0, 5.0, 2.0, 3.0], &[1, 2, 4]), [5.0, 5.0, 3.0, 1.0, 5.0, 2.0, 3.0]);
        assert_eq!(of(&[4.0, 7.0], &[3]), [4.0, 4.0, 7.0]);
        assert_eq!(of(&[], &[1, 2]), [0.0; 3]);
        assert!(of(&[1.0, f32::NAN, 2.0, 3.0], &[1, 2])[..2].iter().all(|top| top.is_nan()));
        let mut wide = vec![];
        pyramid(&[1.0, 9.0, 3.0, 2.0], 2, &[1], &mut wide);
        assert_eq!(wide, [3.0, 9.0]);
    }
}
