//! A system that gives no more threads, for tests.

use std::cell::Cell;

thread_local! {
    /// Threads that are still given to this one.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Runs a function that may begin so many threads.
pub(crate) fn after<T>(threads: usize, f: impl FnOnce() -> T) -> T {
    LEFT.set(Some(threads));
    let result = f();
    LEFT.set(None);
    result
}

pub(crate) fn is_next() -> bool {
    let left = LEFT.get();
    LEFT.set(left.map(|left| left.saturating_sub(1)));
    left == Some(0)
}
