//! Threads that the system may refuse, for want of memory for their stacks or by a limit on their number. What is done
//! without one is decided by whoever asks; so that it can be tested, a test refuses them, too.

use std::cell::Cell;
use std::io;
use std::thread::Builder;

thread_local! {
    /// Threads that are still given to this one, where a test says how many.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A thread of this name, to be spawned.
///
/// # Errors
///
/// In a test of what is done without threads, as spawning fails where the system refuses one.
pub fn new_thread(name: impl Into<String>) -> io::Result<Builder> {
    let left = LEFT.get();
    LEFT.set(left.map(|left| left.saturating_sub(1)));
    match left {
        Some(0) => Err(io::ErrorKind::WouldBlock.into()),
        _ => Ok(Builder::new().name(name.into())),
    }
}

/// Runs a function that may begin so many threads by [`new_thread`], for tests.
#[doc(hidden)]
pub fn with_threads<T>(threads: usize, f: impl FnOnce() -> T) -> T {
    LEFT.set(Some(threads));
    let result = f();
    LEFT.set(None);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_threads_are_given_as_a_test_says() {
        let begun = || (0..3).filter(|_| new_thread("a thread").is_ok()).count();
        assert_eq!([0, 2, 3].map(|threads| with_threads(threads, begun)), [0, 2, 3]);
        assert_eq!(begun(), 3);
        let named =
            |builder: Builder| builder.spawn(|| std::thread::current().name().map(String::from));
        let handle = new_thread("of this name").and_then(named).unwrap();
        assert_eq!(handle.join().unwrap().as_deref(), Some("of this name"));
    }
}
