//! Errors as a person reads them: what happened, why, and the way out.

use std::io::Write;

use firebox_pipeline::PipelineError;

/// Prints the error and its causes, each on a line of its own.
pub(crate) fn render(error: &anyhow::Error) {
    let mut text = format!("error: {error}");
    let mut before = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // A transparent wrapper repeats its cause.
        if !before.contains(&cause) {
            text.push_str(&format!("\n  because: {cause}"));
        }
        before = cause;
    }
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// 2 for what the user can mend in flags, pipeline file or data; 1 for what failed while running.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<PipelineError>() {
        Some(error) if !error.is_bad_input() => 1,
        _ => 2,
    }
}
