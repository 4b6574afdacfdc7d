//! Mapped sets whose pages are read in random order: how they would be shuffled instead, and what is said of those that
//! are larger than memory. Nothing is decided here.

use firebox_loader::{LoaderConfig, Place, Shuffle, Source};

use crate::device::free_of_machine;

/// A set in mapped files, of which each batch reads pages from everywhere.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scattered {
    /// Bytes of the files that an epoch reads.
    bytes: u64,
    /// Free memory.
    free: u64,
    /// Samples of a block and of a window that would suit it.
    pub(crate) blocks: [usize; 2],
}

impl Scattered {
    /// The set, if it is one: in mapped files that take more than half of the memory that is free, streamed, and shuffled
    /// as a whole, in buckets or not. Of a smaller set all pages are soon in memory.
    pub(crate) fn find(
        source: &dyn Source,
        place: Place,
        loader: &LoaderConfig,
        free: impl FnOnce() -> Option<u64>,
    ) -> Option<Self> {
        if place != Place::Stream || loader.shuffle != Shuffle::Full {
            return None;
        }
        let bytes = source.mapped_bytes();
        if bytes == 0 {
            return None;
        }
        let free = free().filter(|free| bytes > free / 2)?;
        match Shuffle::in_blocks(source.len(), bytes, free)? {
            Shuffle::Blocks { block, window } => {
                Some(Self { bytes, free, blocks: [block, window] })
            }
            Shuffle::Full => None,
        }
    }

    /// What is said before training, if the set does not fit into memory.
    pub(crate) fn warning(&self) -> Option<String> {
        let Self { bytes, free, blocks: [block, window] } = *self;
        let gigabytes = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
        (bytes > free).then(|| format!(
            "the training samples lie in mapped files of {}, of which {} of free memory hold a part, and a full shuffle reads them from the disk in random order\n  \
             set `loader.shuffle.blocks` to `{{ block = {block}, window = {window} }}`, so that the disk reads neighbours; the price: of the other samples of a batch, about {:.1} % are of a sample's own block",
            gigabytes(bytes),
            gigabytes(free),
            100.0 * block as f64 / window as f64
        ))
    }
}

/// Memory that pages of files can take: what the machine has free, and what the control group of the process leaves of
/// its own. Limits of the process itself count no such pages.
pub(crate) fn free() -> Option<u64> {
    let left = [free_of_machine(), firebox_monitor::group_free(), crate::batch_size::group_room()];
    left.into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use firebox_loader::{LoadError, Sample};

    use super::*;

    /// Samples of 2 MB in files of so many bytes.
    struct Clips(u64);

    impl Source for Clips {
        fn len(&self) -> usize {
            10_000
        }

        fn shape(&self) -> [usize; 2] {
            [500, 1024]
        }

        fn read(&self, _: usize, _: &mut [f32]) -> Result<Sample, LoadError> {
            Ok(Sample { length: 500, label: None })
        }

        fn mapped_bytes(&self) -> u64 {
            self.0
        }

        fn classes(&self) -> &[String] {
            &[]
        }
    }

    const ALL: u64 = 20_000_000_000;

    #[test]
    fn a_set_larger_than_memory_is_told_with_blocks_that_suit_it() {
        let loader = LoaderConfig::default();
        let found = |free| Scattered::find(&Clips(ALL), Place::Stream, &loader, || free).unwrap();
        let said = found(Some(2_000_000_000)).warning().unwrap();
        for part in [
            "mapped files of 20.0 GB, of which 2.0 GB of free memory",
            "set `loader.shuffle.blocks` to `{ block = 1, window = 125 }`",
            "about 0.8 % are of a sample's own block",
        ] {
            assert!(said.contains(part), "`{part}` is missing in: {said}");
        }
        // What just fits is noted for the advice of a run whose disk had to serve pages all the same.
        let fits = found(Some(ALL));
        assert_eq!((fits.warning(), fits.blocks), (None, [1, 1250]));
        // Of what fits well, and where nobody knows what is free, nothing is said.
        for free in [Some(2 * ALL), None] {
            assert_eq!(Scattered::find(&Clips(ALL), Place::Stream, &loader, || free), None);
        }
    }

    #[test]
    fn sets_in_memory_and_other_orders_are_left_alone() {
        let find = |bytes, place, loader: &LoaderConfig| {
            Scattered::find(&Clips(bytes), place, loader, || Some(1)).is_some()
        };
        let full = LoaderConfig::default();
        assert!(find(ALL, Place::Stream, &full));
        assert!(!find(0, Place::Stream, &full));
        assert!(!find(ALL, Place::Memory, &full) && !find(ALL, Place::Device, &full));
        let shuffle = Shuffle::Blocks { block: 1, window: 2 };
        assert!(!find(ALL, Place::Stream, &LoaderConfig { shuffle, ..full }));
        assert!(find(ALL, Place::Stream, &LoaderConfig { buckets: 8, ..full }));
    }
}
