//! Errors as a person reads them, or as one JSON object: what happened, why, and the way out.

use firebox_pipeline::{ConvertError, PipelineError};

use crate::output::OutputError;
use crate::search::Fruitless;
use crate::terminal::{LogFormat, write_line};

/// Prints the error and its causes: each on a line of its own, or all of it as one JSON object.
pub(crate) fn render(error: &anyhow::Error, log: LogFormat) {
    write_line(&rendered(error, log));
}

/// What [`render`] prints.
pub(crate) fn rendered(error: &anyhow::Error, log: LogFormat) -> String {
    match log {
        LogFormat::Text => text(error),
        LogFormat::Json => json(error).to_string(),
    }
}

fn text(error: &anyhow::Error) -> String {
    let mut text = format!("error: {error}");
    for cause in causes(error) {
        text.push_str(&format!("\n  because: {cause}"));
    }
    text
}

/// The first line of a message says what happened, the others are the way out.
fn json(error: &anyhow::Error) -> serde_json::Value {
    let all: Vec<String> = std::iter::once(error.to_string()).chain(causes(error)).collect();
    let first = |text: &String| text.lines().next().unwrap_or_default().to_owned();
    let hints = all.iter().flat_map(|text| text.lines().skip(1).map(str::trim));
    let hint = hints.collect::<Vec<_>>().join("\n");
    serde_json::json!({
        "event": "error",
        "message": first(&all[0]),
        "causes": all[1..].iter().map(first).collect::<Vec<_>>(),
        "hint": (!hint.is_empty()).then_some(hint),
    })
}

/// What it was caused by, without what a transparent wrapper repeats.
fn causes(error: &anyhow::Error) -> Vec<String> {
    let mut before = error.to_string();
    let mut causes = Vec::new();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !before.contains(&cause) {
            causes.push(cause.clone());
        }
        before = cause;
    }
    causes
}

/// 2 for what the user can mend in flags, pipeline file or data; 1 for what failed while running.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<PipelineError>() {
        Some(error) if !error.is_bad_input() => 1,
        _ if error.downcast_ref::<ConvertError>().is_some_and(|error| !error.is_bad_input()) => 1,
        _ if error.is::<OutputError>() || error.is::<Fruitless>() => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_json_object_with_its_causes_and_the_way_out() {
        let error = anyhow::anyhow!("no room\n  free some").context("cannot save\n  go elsewhere");
        assert_eq!(
            json(&error).to_string(),
            r#"{"causes":["no room"],"event":"error","hint":"go elsewhere\nfree some","message":"cannot save"}"#
        );
        assert_eq!(
            text(&error),
            "error: cannot save\n  go elsewhere\n  because: no room\n  free some"
        );
    }
}
