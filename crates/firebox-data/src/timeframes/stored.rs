//! Timeframes of data that may be larger than memory: source bars lie mapped in a folder that goes, and what is made of
//! them is written to another.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use firebox_cache::free_bytes;
use firebox_core::{Backing, Series};

use super::Timeframes;
use super::derive::{Found, Plan, Steps};
use crate::progress::Share;
use crate::store::{About, Making, Written, check_room};
use crate::{DataError, TimeframeChecks};

/// Bytes of features that are in memory at once, for each thread.
pub(super) const AT_ONCE: usize = 12 << 20;

/// Makes the features of what was written to `source`, of which `about` says what it is, ready to be put in their place.
/// No more is in memory than some of them, and what the indicators of each series look back on. The source bars are gone
/// then.
///
/// # Errors
///
/// As [`derive`](super::derive()), and when the disk refuses or `stop` is true.
pub(crate) fn make(
    frames: &Timeframes,
    source: (Making, About),
    cache: &Path,
    heard: (&AtomicBool, &Share<'_>),
) -> Result<(Making, About), DataError> {
    make_at(frames, source, (cache, AT_ONCE), heard)
}

/// The same with so many bytes of features in memory at once, for each thread.
pub(super) fn make_at(
    frames: &Timeframes,
    (mut source, about): (Making, About),
    (cache, at_once): (&Path, usize),
    heard: (&AtomicBool, &Share<'_>),
) -> Result<(Making, About), DataError> {
    let written = source.so_far(&about)?;
    let made = written_to(frames, (&written, &about), (cache, at_once), heard);
    // What was lost reads as zeros, which are no prices.
    source.check(&written)?;
    let (making, found, timeframes) = made?;
    let series = about.series.into_iter().zip(found).filter(|(_, found)| found.steps > 0);
    let series = series.map(|(mut entry, found)| {
        (entry.steps, entry.segments, entry.filled) = (found.steps, found.segments, found.filled);
        entry
    });
    let (series, channels) = (series.collect(), frames.channels());
    let mut checks = about.checks;
    checks.timeframes = Some(timeframes);
    Ok((making, About { channels, classes: about.classes, series, checks }))
}

/// Goes through the series in their order: a long one alone, short ones several at a time.
fn written_to(
    frames: &Timeframes,
    (written, about): (&Written, &About),
    (cache, at_once): (&Path, usize),
    (stop, share): (&AtomicBool, &Share<'_>),
) -> Result<(Making, Vec<Found>, TimeframeChecks), DataError> {
    let rows: usize = written.set.series().iter().map(Series::len).sum();
    let done = AtomicUsize::new(0);
    let passed = |more| share.reached(done.fetch_add(more, Ordering::Relaxed) + more, rows);
    let plan = Plan::of(&written.set, frames, about.checks.interval, (stop, &passed))?;
    let width = frames.names().len();
    let mut making = Making::begin(cache, width, written.codes.is_some())?;
    let steps: usize = plan.steps().iter().sum();
    let label = written.codes.as_ref().map_or(0, |_| size_of::<u32>());
    let bytes = (steps * ((width + 1) * size_of::<f64>() + label)) as u64;
    let what = "the features of `data.timeframes`";
    check_room(making.aside(), what, bytes, free_bytes(making.aside()))?;
    let most = (at_once / (width * size_of::<f64>())).max(1);
    let mut found = Vec::with_capacity(plan.steps().len());
    let mut first_row = 0;
    for group in groups(plan.steps(), most.saturating_mul(rayon::current_num_threads())) {
        if group.len() == 1 {
            let (index, mut steps) = (group.start, Steps::default());
            found.push(plan.series(index, |time, values, row| {
                steps.push(time, values, row);
                if steps.time.len() >= most {
                    put(&mut making, written, first_row, &steps)?;
                    steps.clear();
                }
                Ok(())
            })?);
            put(&mut making, written, first_row, &steps)?;
            first_row += written.set.series()[index].len();
            continue;
        }
        for (index, (own, steps)) in group.clone().zip(plan.collected(group)?) {
            put(&mut making, written, first_row, &steps)?;
            first_row += written.set.series()[index].len();
            found.push(own);
        }
    }
    let checks = plan.summary(found.iter())?;
    Ok((making, found, checks))
}

/// Series that together have no more than so many steps, or one that has more.
fn groups(steps: &[usize], most: usize) -> Vec<Range<usize>> {
    let (mut groups, mut taken) = (Vec::<Range<usize>>::new(), 0);
    for (index, steps) in steps.iter().enumerate() {
        match groups.last_mut().filter(|_| taken + steps <= most) {
            Some(group) => (group.end, taken) = (index + 1, taken + steps),
            None => {
                groups.push(index..index + 1);
                taken = *steps;
            }
        }
    }
    groups
}

/// Writes steps of a series whose rows begin with this one.
fn put(
    making: &mut Making,
    written: &Written,
    first_row: usize,
    steps: &Steps,
) -> Result<(), DataError> {
    let codes = written.codes.as_ref().map(|codes| &codes.all()[first_row..]);
    let codes: Vec<u32> = match codes {
        Some(codes) => steps.rows.iter().map(|row| codes[*row]).collect(),
        None => vec![],
    };
    making.arrays.push(&steps.values, &steps.time, &codes)
}
