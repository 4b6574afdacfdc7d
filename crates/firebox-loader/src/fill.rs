//! Filling a batch on the host, on whichever thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::order::Plan;
use crate::recycle::{Buffer, Buffers};
use crate::{LoadError, Position, Source};

/// A batch that has not been handed to a device yet.
pub(crate) struct Filled {
    pub(crate) values: Buffer,
    pub(crate) steps: usize,
    pub(crate) lengths: Vec<usize>,
    pub(crate) labels: Vec<Option<u32>>,
    pub(crate) indices: Vec<usize>,
    /// Time that filling took.
    pub(crate) took: Duration,
}

/// Reads the samples of the batch at a position. None if `stop` was set meanwhile.
pub(crate) fn fill(
    source: &dyn Source,
    plan: &Plan,
    buffers: &Buffers,
    position: Position,
    stop: &AtomicBool,
) -> Option<Result<Filled, LoadError>> {
    let start = Instant::now();
    let chosen = plan.batch(source, position);
    chosen.announce.into_iter().for_each(|range| source.will_need(range));
    let [_, channel] = source.shape();
    let (indices, steps) = (chosen.indices, chosen.steps);
    let mut filled = Filled {
        values: buffers.take(indices.len() * steps * channel),
        steps,
        lengths: Vec::with_capacity(indices.len()),
        labels: Vec::with_capacity(indices.len()),
        indices: Vec::new(),
        took: Duration::ZERO,
    };
    for group in indices.chunks(source.at_once().max(1)) {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        if let Err(error) = add(source, position.epoch, group, &mut filled) {
            return Some(Err(error));
        }
    }
    filled.indices = indices;
    filled.took = start.elapsed();
    Some(Ok(filled))
}

/// Reads a group of samples behind those that are there.
fn add(
    source: &dyn Source,
    epoch: u64,
    group: &[usize],
    filled: &mut Filled,
) -> Result<(), LoadError> {
    let [_, channel] = source.shape();
    let (row, width) = (filled.lengths.len(), filled.steps * channel);
    // A source that panics must not take the threads and the queue with it. Its buffer is thrown
    // away, so nothing half-changed is seen.
    let values = &mut filled.values[row * width..(row + group.len()) * width];
    let gather =
        catch_unwind(AssertUnwindSafe(|| source.gather(epoch, group, filled.steps, values)));
    let samples = gather.map_err(|panic| {
        let message = message(panic.as_ref());
        LoadError::Panic { index: group[0], message }
    })??;
    if samples.len() != group.len() {
        let message = "it gave another number of samples than it was asked for".to_owned();
        return Err(LoadError::Panic { index: group[0], message });
    }
    for (place, (index, sample)) in (row..).zip(group.iter().zip(samples)) {
        let length = sample.length as usize;
        if length > filled.steps {
            let longest = filled.steps;
            return Err(LoadError::Length { index: *index, length: sample.length, longest });
        }
        // Whatever the source wrote behind the sample's end.
        filled.values[place * width..][length * channel..width].fill(0.0);
        filled.lengths.push(length);
        filled.labels.push(sample.label);
    }
    Ok(())
}

pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
