//! How much of the training batches is padding, and how much buckets would leave of it. Counted from the lengths of
//! samples, without reading one.

use firebox_loader::{LoaderConfig, Source};
use firebox_monitor::Padding;

/// Lengths of batches that buckets are cut to at first, and once more where that still leaves much padding: each is a
/// shape that a device tunes its kernels for. A choice.
const LENGTHS: [usize; 2] = [8, 16];
/// Steps of the shortest bucket: an encoder may halve them several times.
const SHORTEST: usize = 8;

/// What of an epoch is padding, and what the next finer buckets would leave of it; none where all samples are of one
/// length, or buckets are fine enough or cannot be.
pub(crate) fn padding(source: &dyn Source, loader: &LoaderConfig) -> Option<Padding> {
    let [longest, _] = source.shape();
    if source.is_empty() || longest == 0 {
        return None;
    }
    // Without buckets, every batch is as long as the longest sample.
    let now = if loader.buckets == 0 { longest } else { loader.buckets };
    let mut levels = LENGTHS.map(|lengths| longest.div_ceil(lengths).max(SHORTEST)).into_iter();
    let buckets = levels.find(|level| *level < now || loader.buckets == 0)?;
    let (mut valid, mut all, mut rounded) = (0u64, 0u64, 0u64);
    // As the loader rounds them.
    let padded = |length: usize, to: usize| length.max(1).next_multiple_of(to).min(longest) as u64;
    for length in (0..source.len()).map(|index| source.length(index)) {
        valid += length as u64;
        all += padded(length, now);
        rounded += padded(length, buckets);
    }
    let share = |of: u64| 1.0 - valid as f64 / of as f64;
    let now = loader.buckets;
    (valid < all).then(|| Padding { share: share(all), now, buckets, left: share(rounded) })
}

/// What is to be said of `loader.buckets` where every sample lies in one of them, so that they sort nothing.
pub(crate) fn one_bucket(source: &dyn Source, loader: &LoaderConfig) -> Option<String> {
    let ([longest, _], buckets) = (source.shape(), loader.buckets);
    if buckets == 0 || source.is_empty() {
        return None;
    }
    let (mut least, mut most) = (usize::MAX, 0);
    for length in (0..source.len()).map(|index| source.length(index)) {
        (least, most) = (least.min(length), most.max(length));
    }
    // As the loader rounds them.
    let rounded = |length: usize| length.max(1).next_multiple_of(buckets).min(longest.max(1));
    if rounded(least) != rounded(most) {
        return None;
    }
    let steps = match least == most {
        true => format!("{most} steps each"),
        false => format!("{least} to {most} steps"),
    };
    Some(format!(
        "`loader.buckets` = {buckets} sorts nothing: all {} training samples, of {steps}, are in one bucket; leave it out{}",
        source.len(),
        if least == most { "" } else { ", or set fewer steps" }
    ))
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
    fn advice_that_was_followed_is_made_finer_once() {
        let full = LoaderConfig::default();
        let ragged = Ragged(&[10, 15, 40, 60]);
        // 16 lengths of 100 steps would be of 7, and the shortest bucket is of 8: 16, 16, 40, 64 steps.
        let found = padding(&ragged, &LoaderConfig { buckets: 13, ..full }).unwrap();
        assert_eq!((found.now, found.buckets), (13, 8));
        assert!((found.share - (1.0 - 125.0 / 156.0)).abs() < 1e-12, "{found:?}");
        assert!((found.left - (1.0 - 125.0 / 136.0)).abs() < 1e-12, "{found:?}");
        // Coarser ones than would be advised first come down to those: 50, 50, 50, 100.
        let found = padding(&ragged, &LoaderConfig { buckets: 50, ..full }).unwrap();
        assert_eq!((found.now, found.buckets), (50, 13));
        assert!((found.share - (1.0 - 125.0 / 250.0)).abs() < 1e-12, "{found:?}");
        // One that the longest sample is within is none.
        let found = padding(&ragged, &LoaderConfig { buckets: 200, ..full }).unwrap();
        assert!((found.share - (1.0 - 125.0 / 400.0)).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn buckets_that_sort_nothing_are_told() {
        let full = LoaderConfig::default();
        let said =
            |lengths, buckets| one_bucket(&Ragged(lengths), &LoaderConfig { buckets, ..full });
        let equal = said(&[40, 40, 40], 8).unwrap();
        assert!(equal.contains("all 3 training samples, of 40 steps each, are in one"), "{equal}");
        assert!(equal.ends_with("leave it out"), "{equal}");
        let near = said(&[33, 40], 8).unwrap();
        assert!(near.contains("of 33 to 40 steps") && near.ends_with("set fewer steps"), "{near}");
        // 104 is cut to the longest sample.
        assert!(said(&[97, 100], 8).is_some() && said(&[10, 90], 500).is_some());
        for (lengths, buckets) in [(&[32, 33][..], 8), (&[10, 100], 8), (&[40, 40], 0), (&[], 8)] {
            assert_eq!(said(lengths, buckets), None, "{lengths:?} {buckets}");
        }
    }

    #[test]
    fn equal_lengths_and_buckets_have_nothing_to_save_and_blocks_have() {
        let full = LoaderConfig::default();
        assert_eq!(padding(&Ragged(&[100, 100]), &full), None);
        assert_eq!(padding(&Ragged(&[]), &full), None);
        let ragged = Ragged(&[10, 100]);
        let shuffle = Shuffle::Blocks { block: 1, window: 2 };
        // The finest that is advised, and finer.
        assert_eq!(padding(&ragged, &LoaderConfig { buckets: 8, ..full }), None);
        assert_eq!(padding(&ragged, &LoaderConfig { buckets: 3, ..full }), None);
        let whole = padding(&ragged, &full);
        assert!(whole.is_some());
        assert_eq!(padding(&ragged, &LoaderConfig { shuffle, ..full }), whole);
    }
}
