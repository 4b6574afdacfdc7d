//! How batches are loaded: what was decided, and what of it can be checked without a source.

use serde::{Deserialize, Serialize};

use crate::{LoadError, Source};

/// More threads or batches ahead than these are a slip of the finger.
const MOST: usize = 1024;

/// How batches are loaded. `workers`, `prefetch`, `upload_ahead` and `pin` change no batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoaderConfig {
    /// Samples of a batch. The last batch of an epoch, or of a bucket, has what is left.
    pub batch_size: usize,
    /// Threads that fill batches; with 0, the calling thread fills each when it is asked for. A caller that
    /// would stand still fills batches, too, unless single samples may take long. With `upload_ahead`, the
    /// caller is the thread that hands them over.
    pub workers: usize,
    /// Batches that the threads work ahead of the one in use, at least one for each thread. Each
    /// takes `batch × time × channel` × 4 bytes of memory.
    pub prefetch: usize,
    /// Batches that a thread of its own hands to the device ahead of the one in use, so that they are copied
    /// while it computes; 2 are a double buffer. Each takes `batch × time × channel` × 4 bytes there. With 0,
    /// each is handed over when it is asked for, which is all that a processor needs.
    pub upload_ahead: usize,
    /// Whether batches are filled in memory that the device can copy from by itself.
    pub pin: bool,
    /// How far an epoch's order strays from that of the source.
    pub shuffle: Shuffle,
    /// Samples of similar length together: lengths are rounded up to a multiple of this number of
    /// steps, and a batch holds samples of one such length. With 0, every batch is padded to the
    /// longest sample of the source. Of each length there is one short batch an epoch.
    pub buckets: usize,
    /// Steps of a batch, padding included, at least those of the longest sample: a bucket's batches hold
    /// as many samples as fit. With 0, each holds `batch_size` samples.
    pub tokens: usize,
    /// Seed of the order of samples.
    pub seed: u64,
}

impl Default for LoaderConfig {
    fn default() -> Self {
        Self {
            batch_size: 512,
            workers: 2,
            prefetch: 4,
            upload_ahead: 0,
            pin: false,
            shuffle: Shuffle::Full,
            buckets: 0,
            tokens: 0,
            seed: 1337,
        }
    }
}

/// How an epoch is shuffled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Shuffle {
    /// Every order of all samples is equally likely.
    #[default]
    Full,
    /// Blocks of neighbouring samples are shuffled as wholes, then the samples of each window of
    /// consecutive blocks among themselves. Reading needs no more than one window in memory at a
    /// time, and the disk sees blocks: for sets larger than memory.
    ///
    /// Every sample comes once in an epoch and every block is equally likely at every place. The
    /// price: two samples of one block always lie within one window. Of the other samples of a batch
    /// that lies within a window, a share of about `block / window` comes from a sample's own block,
    /// where a full shuffle has `block / samples`.
    ///
    /// With [`LoaderConfig::buckets`] each window is sorted by length. What does not fill a batch waits for
    /// the next windows, less than a batch of each length at a time, so batches are as full, and as many,
    /// as those of a full shuffle. The share is the same where neighbours are of any length, and greater where
    /// they are of similar ones: those of one length in a window are then from fewer blocks.
    Blocks {
        /// Neighbouring samples that stay together until their window is shuffled.
        block: usize,
        /// Samples that are shuffled among themselves: the buffer, in samples.
        window: usize,
    },
}

/// Bytes of neighbouring samples that a disk is asked for at once.
const BLOCK_BYTES: u64 = 1 << 20;
/// Part of the memory that a window takes. Two are in memory, that in use and the next, and the system keeps others.
const PART_OF_MEMORY: u64 = 8;

impl Shuffle {
    /// Blocks for a mapped set of so many samples and bytes, beside so much free memory: a disk reads a block of about
    /// a MiB as fast as it can, and two windows take a quarter of the memory. None where there are no two blocks.
    pub fn in_blocks(samples: usize, bytes: u64, free: u64) -> Option<Self> {
        let each = (bytes / (samples as u64).max(1)).max(1);
        let block = (BLOCK_BYTES / each).max(1);
        let most = (free / PART_OF_MEMORY / each).min(samples as u64);
        let window = (most / block).max(2) * block;
        (window <= samples as u64)
            .then_some(Self::Blocks { block: block as usize, window: window as usize })
    }
}

/// The number of threads that fill batches unless a number is given: one for every second hardware
/// thread, from 1 to 8. Copying samples takes a small part of a step; the rest is the device's.
pub fn default_workers() -> usize {
    std::thread::available_parallelism().map_or(1, |threads| (threads.get() / 2).clamp(1, 8))
}

impl LoaderConfig {
    /// Checks what can be checked without a source.
    ///
    /// # Errors
    ///
    /// A batch size of zero, more threads or batches ahead than any machine has use for, and a
    /// window of blocks that holds no two of them.
    pub fn validate(&self) -> Result<(), LoadError> {
        if self.batch_size == 0 {
            return Err(LoadError::BatchSize);
        }
        let numbers = [
            ("workers", self.workers),
            ("prefetch", self.prefetch),
            ("upload_ahead", self.upload_ahead),
        ];
        for (key, found) in numbers {
            if found > MOST {
                return Err(LoadError::TooMany { key, found, most: MOST });
            }
        }
        match self.shuffle {
            Shuffle::Blocks { block, window } if block == 0 || window < 2 * block => {
                Err(LoadError::Blocks { block, window })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn check(&self, source: &dyn Source) -> Result<(), LoadError> {
        self.validate()?;
        if source.is_empty() {
            return Err(LoadError::Empty);
        }
        if u32::try_from(source.len()).is_err() {
            return Err(LoadError::TooLarge(source.len()));
        }
        Ok(())
    }

    /// Refuses fewer steps of a batch than the longest sample has: it would have a batch of its own, of more.
    pub(crate) fn check_tokens(&self, source: &dyn Source) -> Result<(), LoadError> {
        let ([longest, _], tokens) = (source.shape(), self.tokens);
        match tokens != 0 && tokens < longest {
            true => Err(LoadError::Tokens { tokens, longest }),
            false => Ok(()),
        }
    }

    /// Samples of a batch whose samples are padded to this many steps.
    pub(crate) fn samples_of(&self, steps: usize) -> usize {
        match self.tokens {
            0 => self.batch_size,
            tokens => (tokens / steps.max(1)).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_a_mebibyte_and_windows_an_eighth_of_memory() {
        let blocks = |samples, bytes, free| match Shuffle::in_blocks(samples, bytes, free)? {
            Shuffle::Blocks { block, window } => {
                let config = LoaderConfig {
                    shuffle: Shuffle::Blocks { block, window },
                    ..LoaderConfig::default()
                };
                config.validate().unwrap();
                Some([block, window])
            }
            Shuffle::Full => panic!(),
        };
        // 10,000 samples of 2 MB beside 2 GB, and a million of 2 kB.
        assert_eq!(blocks(10_000, 20_000_000_000, 2_000_000_000), Some([1, 125]));
        assert_eq!(blocks(1_000_000, 2_048_000_000, 1 << 30), Some([512, 65_536]));
        // Two blocks are the least, and no window is longer than the set.
        assert_eq!(blocks(10_000, 20_000_000_000, 1), Some([1, 2]));
        assert_eq!(blocks(1030, 1030 << 10, 1 << 40), None);
        assert_eq!(blocks(3000, 3000 << 10, 1 << 40), Some([1024, 2048]));
        assert_eq!(blocks(1, 1 << 40, 1 << 40), None);
    }
}
