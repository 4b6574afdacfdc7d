//! The short way for tables: read, mended and laid out part by part, so that no more of a file is in memory than
//! one part, and the series lie where a [`Sink`] puts them. Its result, and what it refuses, is the same as that of
//! [`clean`](crate::clean::clean), whose rules it applies.
//!
//! What is left to the long way, which holds all rows in memory, is what a row and its neighbours do not tell: runs of a
//! million missing values that may be filled. So are tables in which each series has one row, files whose columns differ or
//! whose names are the same, classes of which two are the same number, and whatever cannot be read. A record batch of an Arrow
//! file is decoded as a whole, and so is such a file whose columns in use are nested, or numbers of a dictionary of them.
//! What is kept of each series is its name and its counts; labels are held once the result is opened.
//!
//! What is to be known before rows are taken, and is found while they are, makes reading begin anew ([`How`]):
//!
//! - Rows of series that a column names and that do not stand together, within a file or over the ends of several, and
//!   rows out of order in time, unless they are left out: all are sorted on the disk of the store ([`sorted`]) before the
//!   rules see them. There one series alone may be larger than memory, too: its rows are read back part by part. Where
//!   the result stays in memory, the long way is gone instead.
//! - The interval that rows are left out by which follow too soon, and the one by which a gap is told over which no value
//!   is carried.
//! - Channels without any value that are left out.
//!
//! Which gaps are filled, and which channels are constant and left out, is known at the end alone: then what was stored
//! is copied with the former and without the latter ([`rewrite`]). Where timeframes are to be made, what was stored are
//! their source bars, which are never put in place: the features are ([`timeframes::make`]).

mod files;
mod finish;
mod grouped;
mod layout;
mod parted;
mod rewrite;
mod seen;
mod sorted;
mod taken;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use crate::guarded::guarded;
use crate::ingest::with_timeframes;
use crate::input::Input;
use crate::mapping::Mapping;
use crate::progress::Progress;
use crate::store::{About, Making};
use crate::time::Zone;
use crate::{Checks, DataConfig, DataError, Interval, missing, timeframes};
use firebox_core::{Key, SeriesSet};

use self::taken::{AllRead, Taken};

/// Why the short way ends.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Something is odd: the long way finds out what.
    Odd,
    /// Rows are not in the order of their series, or of their times.
    Apart,
    /// Rows follow too soon by this interval, and are to be left out.
    Crowded(i64),
    /// By this interval there is a gap, behind which nothing is to be filled with what lies before it.
    Bridged(i64),
    /// These channels have no value, and are to be left out; so are rows that follow too soon by this interval, if any.
    Void(Vec<String>, Option<i64>),
    /// The disk refuses, or the policies do.
    Failed(DataError),
}

impl From<DataError> for Stop {
    fn from(error: DataError) -> Self {
        Self::Failed(error)
    }
}

/// `Some` or the long way.
fn known<T>(found: Option<T>) -> Result<T, Stop> {
    found.ok_or(Stop::Odd)
}

/// Where rows go.
pub(crate) enum Sink<'a> {
    /// Into memory.
    Memory,
    /// Into the store, with no more than a part of them in memory.
    Store {
        cache: &'a Path,
        key: Key,
        stop: &'a AtomicBool,
        /// Whether the last number of each row is the code of its label.
        labelled: bool,
        making: Option<Box<Making>>,
    },
}

impl<'a> Sink<'a> {
    pub(crate) fn store(cache: &'a Path, key: Key, stop: &'a AtomicBool) -> Self {
        Self::Store { cache, key, stop, labelled: false, making: None }
    }

    /// The same for rows of these data, before any is put there.
    fn of(self, config: &DataConfig) -> Self {
        match self {
            Self::Memory => self,
            Self::Store { cache, key, stop, .. } => {
                let labelled = config.columns.label.is_some();
                Self::Store { cache, key, stop, labelled, making: None }
            }
        }
    }

    fn is_memory(&self) -> bool {
        matches!(self, Self::Memory)
    }

    /// An error once whoever wants the result wants it no more.
    fn heed(&self) -> Result<(), Stop> {
        match self {
            Self::Memory => Ok(()),
            Self::Store { stop, .. } => Ok(DataError::heed(stop)?),
        }
    }

    /// The same before anything is put into it.
    fn anew(&self) -> Self {
        match self {
            Self::Memory => Self::Memory,
            Self::Store { cache, key, stop, .. } => Self::store(cache, *key, stop),
        }
    }

    /// The result in the store, which begins with the first call, for rows of so many numbers.
    fn making(&mut self, width: usize) -> Result<&mut Making, Stop> {
        self.heed()?;
        let Self::Store { cache, labelled, making, .. } = self else {
            return Err(Stop::Odd);
        };
        if making.is_none() {
            let channels = width - usize::from(*labelled);
            *making = Some(Box::new(Making::begin(cache, channels, *labelled)?));
        }
        known(making.as_deref_mut())
    }

    /// Puts rows into the store, if that is where they go.
    fn store_rows(&mut self, width: usize, values: &[f64], times: &[i64]) -> Result<(), Stop> {
        let Self::Store { labelled, .. } = *self else { return Ok(()) };
        let arrays = &mut self.making(width)?.arrays;
        if labelled {
            let (values, codes) = layout::apart(values, width);
            return Ok(arrays.push(&values, times, &codes)?);
        }
        Ok(arrays.push(values, times, &[])?)
    }
}

/// Who is told how far the reading is.
pub(crate) struct Told<'a> {
    /// Of all passes.
    pub(crate) progress: &'a Progress<'a>,
    /// Once all files are read: whether they have a column of times.
    pub(crate) timed: &'a dyn Fn(bool),
}

/// How rows are taken.
#[derive(Clone, Default)]
struct How {
    /// Bytes of rows that are sorted at once, if they are.
    sorted: Option<usize>,
    /// The interval that rows are left out by which follow too soon, if they are.
    spacing: Option<i64>,
    /// The interval by which there are gaps that no value is carried over, once that matters.
    interval: Option<i64>,
    /// The channels that are left out as those without any value.
    void: Vec<String>,
}

impl How {
    /// How to begin anew after this; none if that would change nothing.
    fn after(&self, stop: &Stop, in_memory: bool) -> Option<Self> {
        let mut how = self.clone();
        match stop {
            Stop::Apart if self.sorted.is_none() && !in_memory => how.sorted = Some(BLOCK),
            Stop::Crowded(interval) if self.spacing.is_none() => how.space(Some(*interval)),
            Stop::Bridged(interval) if self.interval.is_none() => how.interval = Some(*interval),
            Stop::Void(channels, spacing) if self.void.is_empty() => {
                how.void.clone_from(channels);
                how.space(*spacing);
            }
            _ => return None,
        }
        Some(how)
    }

    /// Leaves out rows that follow too soon by this interval, if any. Gaps are told by the same one: what is not to be
    /// carried over them takes no further reading.
    fn space(&mut self, spacing: Option<i64>) {
        self.spacing = spacing;
        self.interval = self.interval.or(spacing);
    }

    /// What is done with all rows after they have been read.
    fn following(&self, config: &DataConfig, sink: &Sink<'_>) -> u64 {
        let stored = if sink.is_memory() { 0 } else { 1 + u64::from(config.timeframes.is_some()) };
        u64::from(self.sorted.is_some()) + stored
    }
}

/// The series of these files, with their timeframes made if asked, and what is to be said of them.
pub(crate) fn read(
    inputs: &[Input],
    config: &DataConfig,
    zone: &Zone,
    sink: Sink<'_>,
    told: &Told<'_>,
) -> Result<(SeriesSet, Checks), Stop> {
    // Rows are found again by the path of their file.
    let paths: HashSet<&Path> = inputs.iter().map(|input| input.path.as_path()).collect();
    known((paths.len() == inputs.len()).then_some(()))?;
    // A declared interval is known before anything is read.
    let interval = config.interval.map(Interval::microseconds);
    let how = How { interval, ..How::default() };
    again_if_told(how, sink.is_memory(), |how| {
        told.progress.begin(how.following(config, &sink));
        all((inputs, config, zone), how, sink.anew(), told)
    })
}

/// Reads anew as long as something is found that is to be known before rows are taken.
fn again_if_told<T>(
    mut how: How,
    in_memory: bool,
    read: impl Fn(&How) -> Result<T, Stop>,
) -> Result<T, Stop> {
    loop {
        let found = read(&how);
        match found.as_ref().err().and_then(|stop| how.after(stop, in_memory)) {
            Some(next) => how = next,
            None => return found,
        }
    }
}

/// Bytes of rows that are sorted at once.
const BLOCK: usize = 32 << 20;

/// The same, of rows that are taken so.
fn all(
    (inputs, config, zone): (&[Input], &DataConfig, &Zone),
    how: &How,
    sink: Sink<'_>,
    told: &Told<'_>,
) -> Result<(SeriesSet, Checks), Stop> {
    let (mut first, mut sink) = (None, sink.of(config));
    let mut taken = Taken::new(config.checks, how);
    for (index, input) in inputs.iter().enumerate() {
        let same = |mapping: &Mapping| {
            let same = first.get_or_insert_with(|| mapping.clone()) == mapping;
            known(same.then_some(()))
        };
        let to = (&mut taken, &mut sink);
        let share = told.progress.file(index);
        guarded(input, || files::read((input, config, zone), to, same, &share))??;
        share.reached(1, 1);
    }
    let read = taken.finish(&mut sink, told.progress)?;
    whole(read, (inputs, config), known(first)?, sink, told)
}

/// All series, once every file has been read.
fn whole(
    read: AllRead,
    (inputs, config): (&[Input], &DataConfig),
    mapping: Mapping,
    mut sink: Sink<'_>,
    told: &Told<'_>,
) -> Result<(SeriesSet, Checks), Stop> {
    let whole = finish::finish(read, (config, told.progress), &mapping, &mut sink);
    // Another way says so itself.
    if matches!(whole, Ok(_) | Err(Stop::Failed(_))) {
        (told.timed)(mapping.time.is_some());
    }
    let whole = whole?;
    let (channels, classes) = (whole.channels, whole.classes);
    match sink {
        Sink::Memory => {
            let series = whole.series.into_iter().map(|(series, _)| series).collect();
            let set = SeriesSet::looked_at(channels, classes, series).map_err(DataError::from)?;
            Ok(with_timeframes(set, whole.checks, config)?)
        }
        Sink::Store { cache, key, stop, making, .. } => {
            // Who reads files once and keeps nothing is told of nothing that they lack.
            let missing_nowhere = missing::unmatched(inputs, config, stop)?;
            let checks = Checks { missing_nowhere, ..whole.checks };
            let series = whole.series.into_iter().map(|(_, entry)| entry).collect();
            let about = About { channels, classes, series, checks };
            let (mut making, mut about) = (*known(making)?, about);
            if let Some(frames) = &config.timeframes {
                told.progress.next();
                let heard = (stop, &told.progress.all());
                (making, about) = timeframes::make(frames, (making, about), cache, heard)?;
            }
            told.progress.next();
            let heard = (stop, &told.progress.all());
            Ok(making.finish((cache, key), about, heard)?.open()?)
        }
    }
}
