//! Histograms of the tensors in a checkpoint, for whoever draws them.

use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::Dtype;

/// Buckets of equal width.
const BUCKETS: usize = 64;

/// How the values of a tensor are spread.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Histogram {
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) count: f64,
    pub(crate) sum: f64,
    pub(crate) sum_squares: f64,
    /// Upper ends of the buckets.
    pub(crate) limits: Vec<f64>,
    /// Values in each bucket.
    pub(crate) counts: Vec<f64>,
}

impl Histogram {
    /// Of the values that are finite; `None` if there is none.
    pub(crate) fn of(values: impl Iterator<Item = f32> + Clone) -> Option<Self> {
        let finite = values.filter(|value| value.is_finite()).map(f64::from);
        let (mut min, mut max, mut count, mut sum, mut sum_squares) =
            (f64::INFINITY, f64::NEG_INFINITY, 0.0, 0.0, 0.0);
        for value in finite.clone() {
            min = min.min(value);
            max = max.max(value);
            count += 1.0;
            sum += value;
            sum_squares += value * value;
        }
        if count == 0.0 {
            return None;
        }
        let buckets = if max > min { BUCKETS } else { 1 };
        let width = (max - min) / buckets as f64;
        let mut counts = vec![0.0; buckets];
        for value in finite {
            let place = if width > 0.0 { ((value - min) / width) as usize } else { 0 };
            counts[place.min(buckets - 1)] += 1.0;
        }
        let limits =
            (1..=buckets).map(|end| if end == buckets { max } else { min + width * end as f64 });
        Some(Self { min, max, count, sum, sum_squares, limits: limits.collect(), counts })
    }
}

/// A histogram of each tensor of f32 values in a safetensors file whose name begins so, with the
/// rest of its name. A file that is gone or is none has no histograms: checkpoints make room for
/// newer ones while they are read.
pub(crate) fn of_file(path: &Path, prefix: &str) -> Vec<(String, Histogram)> {
    let Ok(bytes) = std::fs::read(path) else { return vec![] };
    let Ok(tensors) = SafeTensors::deserialize(&bytes) else { return vec![] };
    let all = tensors.iter().filter(|(_, view)| view.dtype() == Dtype::F32);
    let mut found: Vec<_> = all
        .filter_map(|(name, view)| {
            let values =
                view.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            Some((name.strip_prefix(prefix)?.to_owned(), Histogram::of(values)?))
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finite_value_is_in_a_bucket() {
        let values = (0..1000).map(|i| i as f32).chain([f32::NAN, f32::INFINITY]);
        let histogram = Histogram::of(values).unwrap();
        assert_eq!((histogram.min, histogram.max, histogram.count), (0.0, 999.0, 1000.0));
        assert_eq!(histogram.sum, 499_500.0);
        assert_eq!(histogram.sum_squares, 332_833_500.0);
        assert_eq!(histogram.counts.iter().sum::<f64>(), 1000.0);
        assert_eq!((histogram.limits.len(), histogram.limits[BUCKETS - 1]), (BUCKETS, 999.0));
        assert!(histogram.counts.iter().all(|count| (15.0..=16.0).contains(count)));
        let one = Histogram::of([2.5f32; 7].into_iter()).unwrap();
        assert_eq!((one.limits, one.counts), (vec![2.5], vec![7.0]));
        assert_eq!(Histogram::of([f32::NAN].into_iter()), None);
        assert_eq!(Histogram::of(std::iter::empty()), None);
    }

    #[test]
    fn a_file_that_is_gone_or_none_has_no_histograms() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.safetensors");
        assert!(of_file(&path, "").is_empty());
        std::fs::write(&path, b"text").unwrap();
        assert!(of_file(&path, "").is_empty());
        let bytes: Vec<u8> = [1.0f32, 2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let view = safetensors::tensor::TensorView::new(Dtype::F32, vec![2], &bytes).unwrap();
        std::fs::write(&path, safetensors::serialize([("exp_avg.w", view)], None).unwrap())
            .unwrap();
        let found = of_file(&path, "exp_avg.");
        assert_eq!((found[0].0.as_str(), found[0].1.sum), ("w", 3.0));
        assert!(of_file(&path, "other.").is_empty());
    }
}
