//! How much of the training batches is padding, and how much buckets would leave of it. Counted from the lengths of
//! samples, without reading one.

use firebox_loader::{LoaderConfig, Source};
use firebox_monitor::Padding;

/// Lengths of batches that buckets are cut to: each is a shape that a device tunes its kernels for. A choice.
const LENGTHS: usize = 8;
/// Steps of the shortest bucket: an encoder may halve them several times.
const SHORTEST: usize = 8;

/// What of an epoch is padding; none where all samples are of one length, or buckets are set.
pub(crate) fn padding(source: &dyn Source, loader: &LoaderConfig) -> Option<Padding> {
    let [longest, _] = source.shape();
    if loader.buckets > 0 || source.is_empty() || longest == 0 {
        return None;
    }
    let buckets = longest.div_ceil(LENGTHS).max(SHORTEST);
    let (mut valid, mut rounded) = (0u64, 0u64);
    for length in (0..source.len()).map(|index| source.length(index)) {
        valid += length as u64;
        // As the loader rounds them.
        rounded += length.max(1).next_multiple_of(buckets).min(longest) as u64;
    }
    let all = source.len() as u64 * longest as u64;
    let share = |of: u64| 1.0 - valid as f64 / of as f64;
    (valid < all).then(|| Padding { share: share(all), buckets, left: share(rounded) })
}

#[cfg(test)]
mod tests {
    use firebox_loader::{LoadError, Sample, Shuffle};

    use super::*;

    /// Samples of these lengths.
    struct Ragged(&'static [usize]);

    impl Source for Ragged {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn shape(&self) -> [usize; 2] {
            [100, 1]
        }

        fn length(&self, index: usize) -> usize {
            self.0[index]
        }

        fn read(&self, index: usize, _: &mut [f32]) -> Result<Sample, LoadError> {
            Ok(Sample { length: self.0[index] as u32, label: None })
        }

        fn classes(&self) -> &[String] {
            &[]
        }
    }

    #[test]
    fn padding_is_counted_with_and_without_buckets() {
        let full = LoaderConfig::default();
        // Buckets of 13: 13, 26, 52 and 65 steps for 125 valid ones.
        let found = padding(&Ragged(&[10, 15, 40, 60]), &full).unwrap();
        assert_eq!(found.buckets, 13);
        assert!((found.share - (1.0 - 125.0 / 400.0)).abs() < 1e-12, "{found:?}");
        assert!((found.left - (1.0 - 125.0 / 156.0)).abs() < 1e-12, "{found:?}");
        // An empty sample has a step of padding all the same, and the longest bucket ends at the longest sample.
        let found = padding(&Ragged(&[0, 99]), &full).unwrap();
        assert!((found.left - (1.0 - 99.0 / 113.0)).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn equal_lengths_and_buckets_have_nothing_to_save_and_blocks_have() {
        let full = LoaderConfig::default();
        assert_eq!(padding(&Ragged(&[100, 100]), &full), None);
        assert_eq!(padding(&Ragged(&[]), &full), None);
        let ragged = Ragged(&[10, 100]);
        let shuffle = Shuffle::Blocks { block: 1, window: 2 };
        assert_eq!(padding(&ragged, &LoaderConfig { buckets: 8, ..full }), None);
        let whole = padding(&ragged, &full);
        assert!(whole.is_some());
        assert_eq!(padding(&ragged, &LoaderConfig { shuffle, ..full }), whole);
    }
}
