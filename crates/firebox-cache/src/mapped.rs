//! Records in mapped shards: finding them, and copying many at once.

use std::ops::Range;
use std::sync::Arc;

use firebox_core::{Narrow, SeriesValues, Storage};

use crate::error::CacheError;
use crate::hint::ahead;
use crate::shard::Shard;

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

    /// The valid values of each record, as those of a series. None is copied.
    pub(crate) fn series_values(&self) -> Vec<SeriesValues> {
        let shards: Vec<Arc<dyn Narrow>> =
            self.shards.iter().map(|shard| Arc::new(shard.clone()) as Arc<dyn Narrow>).collect();
        let [_, channels] = self.shape;
        let values = |index| {
            let (own, row) = self.place(index);
            let (start, count) = (own.start(row), own.sample(row).0 as usize * channels);
            let shard = Arc::clone(&shards[index / self.per_shard]);
            SeriesValues::narrow(shard, start..start + count)
        };
        (0..self.records).map(values).collect()
    }

    /// Valid steps and class of a record.
    ///
    /// # Panics
    ///
    /// When there is no such record.
    pub(crate) fn sample(&self, index: usize) -> (u32, Option<u32>) {
        let (shard, row) = self.place(index);
        shard.sample(row)
    }

    /// Writes the values of records as f32, each cut or padded with zeros to `steps`.
    ///
    /// # Panics
    ///
    /// When there is no such record, or `out` has another length.
    pub(crate) fn gather(&self, indices: &[usize], steps: usize, out: &mut [f32]) {
        let [time, channels] = self.shape;
        let width = steps * channels;
        assert_eq!(out.len(), indices.len() * width, "a place for each value");
        let ahead = ahead(self.record_bytes());
        let (mut done, mut fetched) = (0, 0);
        while done < indices.len() {
            let (shard, row) = self.place(indices[done]);
            let is_run = steps == time && !shard.is_packed();
            let run = if is_run { self.run(&indices[done..]) } else { 1 };
            let out = &mut out[done * width..(done + run) * width];
            done += run;
            // The next records are on their way from memory while this one is copied.
            let next = (done + ahead).min(indices.len());
            for index in &indices[fetched.max(done)..next] {
                let (shard, row) = self.place(*index);
                shard.fetch(row);
            }
            fetched = next;
            let values = shard.values_of(row, run);
            // Several are whole ones.
            let (copied, padding) = out.split_at_mut(values.len().min(run * width));
            values.part(..copied.len()).copy_to(copied);
            padding.fill(0.0);
        }
    }

    /// Bytes of a record as it is stored.
    fn record_bytes(&self) -> usize {
        let [time, channels] = self.shape;
        time * channels * if self.storage == Storage::F32 { 4 } else { 2 }
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
        // Each shard once, for asking is a call of the system. Neighbours mostly lie in one.
        let mut asked = vec![false; self.shards.len()];
        let mut within = 0..0;
        for index in indices {
            if within.contains(index) {
                continue;
            }
            let shard = index / self.per_shard;
            within = shard * self.per_shard..(shard + 1) * self.per_shard;
            if !std::mem::replace(&mut asked[shard], true) {
                self.shards[shard].check()?;
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
