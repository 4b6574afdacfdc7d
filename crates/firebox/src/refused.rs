//! What is said where code of others panics because the system refused it memory, or a thread, whose stack takes memory:
//! the pool of polars begins with its first work, and cannot be begun with fewer.

use std::io;

use firebox_pipeline::refused_thread;

use crate::error;
use crate::terminal::LogFormat;

/// From now on, such a panic ends the program with an error that has a way out, and the exit status 1; for want of memory
/// with this one, if there is one. Others are told as before.
pub(crate) fn tell_refusals(log: LogFormat, too_little_memory: Option<&'static str>) {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload_as_str().unwrap_or_default();
        let error = match too_little_memory.filter(|_| is_refused_memory(said)) {
            Some(text) => anyhow::anyhow!(text),
            None if is_refusal(said) => {
                let said = said.lines().next().unwrap_or_default().to_owned();
                refused_thread("one of a library", io::Error::other(said)).into()
            }
            None => return usual(panic),
        };
        error::render(&error, log);
        std::process::exit(1);
    }));
}

/// Whether a panic says that memory was refused, in the words of Arrow, whose buffers panic where the standard library
/// aborts.
fn is_refused_memory(said: &str) -> bool {
    said.contains("failed to allocate memory for layout")
}

/// Whether a panic says so, in the words of the standard library and of those who show its errors: `EAGAIN` is 11 on Linux
/// and 35 on macOS, `ENOMEM` 12 on both.
fn is_refusal(said: &str) -> bool {
    const REFUSED: [&str; 6] =
        ["WouldBlock", "OutOfMemory", "os error 11)", "os error 12)", "os error 35)", "code: 12,"];
    let of_a_thread = said.to_lowercase().contains("thread") || said.contains("alternative stack");
    of_a_thread && REFUSED.iter().any(|part| said.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_for_want_of_a_thread_is_told_from_others() {
        for said in [
            "failed to spawn thread: Os { code: 11, kind: WouldBlock, message: \"Resource temporarily unavailable\" }",
            "could not spawn threads: ThreadPoolBuildError { kind: IOError(Os { code: 11, kind: WouldBlock, message: \"\" }) }",
            "failed to allocate an alternative stack: Cannot allocate memory (os error 12)",
            "OS can't spawn worker thread: Resource temporarily unavailable (os error 11)",
        ] {
            assert!(is_refusal(said), "{said}");
        }
        for said in [
            "index out of bounds: the len is 3 but the index is 11",
            "called `Result::unwrap()` on an `Err` value: Os { code: 11, kind: WouldBlock, message: \"\" }",
            "a thread panicked",
        ] {
            assert!(!is_refusal(said), "{said}");
        }
    }

    #[test]
    fn a_panic_for_want_of_memory_is_told_from_others() {
        let said =
            "failed to allocate memory for layout Layout { size: 67099200, align: 128 (1 << 7) }";
        assert!(is_refused_memory(said) && !is_refusal(said));
        assert!(!is_refused_memory("invalid allocation layout for requested capacity"));
    }
}
