//! Threads that compute, begun before memory is scarce, and what is said where the system gives none.
//!
//! A thread needs memory for its stack, which a limit on memory may refuse long before a training step is refused its own.

use std::error::Error as _;
use std::io;

use crate::error::PipelineError;
use crate::limits::Limits;
use crate::settle::check_environment;

/// Begins the threads that compute, if they were not begun yet. They would begin by themselves with the first work, and
/// end the program if the system refused one.
///
/// # Errors
///
/// If the environment asks for a number of threads that cannot be, or the system gives fewer.
pub fn begin_threads() -> Result<(), PipelineError> {
    check_environment()?;
    match rayon::ThreadPoolBuilder::new().build_global() {
        // Those that were there already have no cause.
        Err(error) if error.source().is_some() => {
            Err(refused_thread("one of those that compute", io::Error::other(error.to_string())))
        }
        _ => Ok(()),
    }
}

/// The system gave no thread for this.
pub fn refused_thread(what: &'static str, source: io::Error) -> PipelineError {
    PipelineError::NoThread { what, limits: limits(), source }
}

/// The limits of this process on its memory, in words.
fn limits() -> String {
    let Limits { addresses, data } = Limits::now();
    let own = [(addresses, "addresses", "-v"), (data, "data", "-d")];
    let said = own.iter().filter_map(|(limit, what, flag)| {
        Some(format!("{} KiB of {what} (ulimit {flag})", (*limit)? / 1024))
    });
    let said: Vec<_> = said.collect();
    match said.is_empty() {
        true => String::new(),
        false => format!(", under a limit of {}", said.join(" and ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_are_there_are_no_error() {
        assert!(begin_threads().is_ok() && begin_threads().is_ok());
    }

    #[test]
    fn a_refused_thread_is_no_bad_input_and_has_a_way_out() {
        let error = refused_thread("one that waits", io::ErrorKind::WouldBlock.into());
        assert!(!error.is_bad_input() && !error.begins_anew());
        let said = error.to_string();
        assert!(said.starts_with("the system refused a thread, one that waits"), "{said}");
        assert!(said.contains("ulimit -v") && said.contains("RAYON_NUM_THREADS"), "{said}");
    }
}
