//! Records in mapped shards: finding them, and copying many at once.

use std::ops::Range;

use firebox_core::Storage;

use crate::error::CacheError;
use crate::shard::Shard;

/// Bytes of a cache line, the unit that the processor fetches.
const LINE: usize = 64;

/// Records of one shape in shards of equal size, the last one smaller.
#[derive(Clone, Debug)]
pub(crate) struct Mapped {
    shards: Vec<Shard>,
    records: usize,
    per_shard: usize,
    /// Steps of the longest record, and channels.
    shape: [usize; 2],
    storage: Storage,
}

impl Mapped {
    pub(crate) fn new(
        shards: Vec<Shard>,
        [records, per_shard]: [usize; 2],
        shape: [usize; 2],
        storage: Storage,
    ) -> Self {
        Self { shards, records, per_shard, shape, storage }
    }

    pub(crate) fn storage(&self) -> Storage {
        self.storage
    }

    /// The shard of a record, and its place there.
    ///
    /// # Panics
    ///
    /// When there is no such record.
    pub(crate) fn place(&self, index: usize) -> (&Shard, usize) {
        assert!(index < self.records, "record {index} of {}", self.records);
        (&self.shards[index / self.per_shard], index % self.per_shard)
    }

    /// Appends the values of records as f32, each cut or padded with zeros to `steps`.
    ///
    /// # Panics
    ///
    /// When there is no such record.
    pub(crate) fn gather(&self, indices: &[usize], steps: usize, out: &mut Vec<f32>) {
        let [time, channels] = self.shape;
        let kept = steps.min(time) * channels;
        let mut rest = indices;
        while let Some(first) = rest.first() {
            let run = if steps == time { self.run(rest) } else { 1 };
            let (shard, row) = self.place(*first);
            rest = &rest[run..];
            // The next record is on its way from memory while this one is copied.
            if let Some(next) = rest.first() {
                let (shard, row) = self.place(*next);
                fetch(shard.stored(row, 1));
            }
            let values = shard.values_of(row, run);
            let count = if run > 1 { run * time * channels } else { kept };
            values.part(..count).append(out);
            out.resize(out.len() + (steps * channels).saturating_sub(kept) * run, 0.0);
        }
    }

    /// How many of these records lie one behind the other in one shard.
    fn run(&self, indices: &[usize]) -> usize {
        let left = self.per_shard - indices[0] % self.per_shard;
        let follows = |pair: &&[usize]| pair[1] == pair[0] + 1;
        let run = 1 + indices[..indices.len().min(left)].windows(2).take_while(follows).count();
        // The last record of the last shard may come early; `place` refuses what lies behind it.
        run.min(self.records.saturating_sub(indices[0]).max(1))
    }

    /// Whether these records, which have been read, were there: a file may have shrunk meanwhile.
    ///
    /// # Errors
    ///
    /// When one was not.
    pub(crate) fn check_read(&self, indices: &[usize]) -> Result<(), CacheError> {
        let mut seen = usize::MAX;
        for index in indices {
            let shard = index / self.per_shard;
            // Neighbours mostly lie in one shard.
            if shard != seen {
                self.shards[shard].check()?;
                seen = shard;
            }
        }
        Ok(())
    }

    /// Tells the system that these records are read soon.
    pub(crate) fn will_need(&self, records: Range<usize>) {
        let mut start = records.start;
        let end = records.end.min(self.records);
        while start < end {
            let (shard, row) = self.place(start);
            let rows = (self.per_shard - row).min(end - start);
            shard.will_need(row, rows);
            start += rows;
        }
    }
}

/// Asks the processor for these bytes, as far as they are worth it.
fn fetch(bytes: &[u8]) {
    /// Beyond this, the processor's own prediction has caught on.
    const FAR: usize = 4096;
    let bytes = &bytes[..bytes.len().min(FAR)];
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint that reads nothing, on an address within a slice; every x86-64 has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, LINE);
}
