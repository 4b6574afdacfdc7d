//! Results on standard output. A reader that goes away has read enough; a disk that is full has
//! not got the result, and that is an error.

use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};

use crate::terminal::shown;

/// A result that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("the result cannot be written to standard output")]
pub(crate) struct OutputError(#[from] std::io::Error);

/// Writes a line; to a terminal without characters that would act on it.
pub(crate) fn say(text: impl Display) -> Result<(), OutputError> {
    let mut out = std::io::stdout().lock();
    let text = if out.is_terminal() { shown(&text.to_string()) } else { text.to_string() };
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
