//! Filling a batch on the host, on whichever thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{LoadError, Source};

/// A batch that has not been handed to a device yet.
pub(crate) struct Filled {
    pub(crate) values: Vec<f32>,
    pub(crate) lengths: Vec<usize>,
    pub(crate) labels: Vec<Option<u32>>,
    pub(crate) indices: Vec<usize>,
}

/// Reads the samples of these indices. None if `stop` was set meanwhile.
pub(crate) fn fill(
    source: &dyn Source,
    indices: Vec<usize>,
    stop: &AtomicBool,
) -> Option<Result<Filled, LoadError>> {
    let [time, channel] = source.shape();
    let width = time * channel;
    let mut filled = Filled {
        values: vec![0.0; indices.len() * width],
        lengths: Vec::with_capacity(indices.len()),
        labels: Vec::with_capacity(indices.len()),
        indices: Vec::new(),
    };
    for (row, index) in indices.iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        let out = &mut filled.values[row * width..(row + 1) * width];
        // A source that panics must not take the threads and the queue with it. Its buffer is
        // thrown away, so nothing half-changed is seen.
        let read = catch_unwind(AssertUnwindSafe(|| source.read(*index, out)));
        let sample = match read {
            Ok(Ok(sample)) => sample,
            Ok(Err(error)) => return Some(Err(error)),
            Err(panic) => {
                let message = message(panic.as_ref());
                return Some(Err(LoadError::Panic { index: *index, message }));
            }
        };
        let length = sample.length as usize;
        if length > time {
            let (index, length) = (*index, sample.length);
            return Some(Err(LoadError::Length { index, length, longest: time }));
        }
        // Whatever the source wrote behind the sample's end.
        filled.values[row * width..][length * channel..width].fill(0.0);
        filled.lengths.push(length);
        filled.labels.push(sample.label);
    }
    filled.indices = indices;
    Some(Ok(filled))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
