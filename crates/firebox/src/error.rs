//! Errors as a person reads them, or as one JSON object: what happened, why, and the way out.

use std::ffi::OsString;
use std::process::ExitCode;

use firebox_pipeline::{ConvertError, PipelineError};

use crate::output::OutputError;
use crate::search::Fruitless;
use crate::terminal::{LogFormat, with_short_names, write_line};

/// Prints the error and its causes: each on a line of its own, or all of it as one JSON object.
pub(crate) fn render(error: &anyhow::Error, log: LogFormat) {
    write_line(&rendered(error, log));
}

/// What [`render`] prints.
pub(crate) fn rendered(error: &anyhow::Error, log: LogFormat) -> String {
    match log {
        LogFormat::Text => with_short_names(&text(error)),
        LogFormat::Json => json(error).to_string(),
    }
}

/// Prints what is wrong with the arguments, or the help that they ask for. No flag is known then, so whether errors are
/// objects is looked for among the arguments.
pub(crate) fn render_usage(
    refused: &clap::Error,
    arguments: impl IntoIterator<Item = OsString>,
) -> ExitCode {
    if !refused.use_stderr() || !asks_for_json(arguments) {
        refused.exit();
    }
    render(&usage(&refused.to_string()), LogFormat::Json);
    ExitCode::from(2)
}

fn asks_for_json(arguments: impl IntoIterator<Item = OsString>) -> bool {
    let mut arguments = arguments.into_iter().take_while(|argument| argument != "--");
    let mut json = false;
    while let Some(argument) = arguments.next() {
        let value = match argument.to_str() {
            Some("--log") => arguments.next(),
            Some(text) => text.strip_prefix("--log=").map(OsString::from),
            None => None,
        };
        json = value.map_or(json, |value| value == "json");
    }
    json
}

/// An error of the flags, of the text that a person would read: what is wrong stands before the first blank line.
fn usage(text: &str) -> anyhow::Error {
    let (wrong, way_out) = text.split_once("\n\n").unwrap_or((text, ""));
    let wrong = wrong.trim().trim_start_matches("error: ");
    let wrong = wrong.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let way_out = way_out.lines().map(str::trim).filter(|line| !line.is_empty());
    anyhow::Error::msg(
        std::iter::once(wrong.as_str()).chain(way_out).collect::<Vec<_>>().join("\n"),
    )
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
        let text = cause.to_string();
        if !before.contains(&text) {
            // Who knows what was to be written has told one on a line of its own, or after a semicolon.
            let untold = way_out(cause).filter(|_| !before.contains(['\n', ';']));
            causes.push(format!("{text}{}", untold.unwrap_or_default()));
        }
        before = text;
    }
    causes
}

/// What helps where a disk takes nothing, whatever was to be written.
fn way_out(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    match cause.downcast_ref::<std::io::Error>()?.kind() {
        StorageFull | QuotaExceeded => Some("\n  free some space, or name a place on another disk"),
        FileTooLarge => Some(
            "\n  no file may be as large there: raise the limit (`ulimit -f`), or name a place on a disk that takes larger files",
        ),
        ReadOnlyFilesystem => Some("\n  name a place that can be written to"),
        _ => None,
    }
}

/// 2 for what the user can mend in flags, pipeline file or data; 1 for what failed while running.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<PipelineError>() {
        Some(error) if !error.is_bad_input() => 1,
        _ if error.downcast_ref::<ConvertError>().is_some_and(|error| !error.is_bad_input()) => 1,
        _ if error.is::<OutputError>() || error.is::<Fruitless>() => 1,
        Some(_) => 2,
        None if error.is::<ConvertError>() => 2,
        None if error.chain().any(is_of_the_machine) => 1,
        None => 2,
    }
}

/// Whether the system failed at what is right as it was given: a disk is full or broken, and no name is wrong.
fn is_of_the_machine(cause: &(dyn std::error::Error + 'static)) -> bool {
    use std::io::ErrorKind::{
        AlreadyExists, InvalidData, InvalidFilename, InvalidInput, IsADirectory, NotADirectory,
        NotFound, PermissionDenied, UnexpectedEof,
    };
    let named = [
        AlreadyExists,
        InvalidData,
        InvalidFilename,
        InvalidInput,
        IsADirectory,
        NotADirectory,
        NotFound,
        PermissionDenied,
        UnexpectedEof,
    ];
    cause.downcast_ref::<std::io::Error>().is_some_and(|error| !named.contains(&error.kind()))
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn what_the_machine_fails_at_is_no_bad_input() {
        let code = |kind: ErrorKind| {
            exit_code(&anyhow::Error::new(std::io::Error::from(kind)).context("cannot write it"))
        };
        assert_eq!(code(ErrorKind::StorageFull), 1);
        assert_eq!(code(ErrorKind::Other), 1);
        assert_eq!(code(ErrorKind::NotFound), 2);
        assert_eq!(code(ErrorKind::PermissionDenied), 2);
        assert_eq!(exit_code(&anyhow::anyhow!("no such flag")), 2);
    }

    #[test]
    fn a_disk_that_takes_nothing_has_a_way_out_unless_a_better_one_was_told() {
        let said = |kind: ErrorKind| {
            let path = "runs/a/pipeline.toml".into();
            text(&PipelineError::Io { path, source: kind.into() }.into())
        };
        let full = "\n  free some space, or name a place on another disk";
        assert!(said(ErrorKind::StorageFull).ends_with(full), "{}", said(ErrorKind::StorageFull));
        assert!(said(ErrorKind::QuotaExceeded).ends_with(full));
        let limited = said(ErrorKind::FileTooLarge);
        assert!(limited.contains("raise the limit (`ulimit -f`)"), "{limited}");
        let locked = said(ErrorKind::ReadOnlyFilesystem);
        assert!(locked.ends_with("\n  name a place that can be written to"), "{locked}");
        assert_eq!(said(ErrorKind::NotFound).lines().count(), 2);
        let full = || anyhow::Error::new(std::io::Error::from(ErrorKind::StorageFull));
        for told in ["no room for 9 bytes\n  set `run.cache`", "cannot save; use another folder"] {
            let said = text(&full().context(told));
            assert!(!said.contains("free some space"), "{said}");
        }
        let object = json(&full().context("cannot write"));
        assert_eq!(object["hint"], "free some space, or name a place on another disk");
    }

    #[test]
    fn a_person_reads_the_beginning_of_a_long_name_and_a_program_all_of_it() {
        let error = anyhow::anyhow!("no column `{}` in a.csv", "x".repeat(100_000));
        let said = rendered(&error, LogFormat::Text);
        assert_eq!(said, format!("error: no column `{}…` in a.csv", "x".repeat(1000)));
        assert!(rendered(&error, LogFormat::Json).len() > 100_000);
    }

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

    #[test]
    fn whoever_asks_for_json_gets_wrong_flags_as_an_object_too() {
        let asks = |text: &str| asks_for_json(text.split(' ').map(OsString::from));
        assert!(asks("firebox run p.toml --log json --bad") && asks("firebox --log=json"));
        for text in ["run --log", "run --log text --bad json", "run -- --log json", "log=json"] {
            assert!(!asks(text), "{text}");
        }
        let said =
            "error: these were not provided:\n  <FILE>\n\n  tip: name one\n\nUsage: firebox run\n";
        assert_eq!(
            json(&usage(said)).to_string(),
            r#"{"causes":[],"event":"error","hint":"tip: name one\nUsage: firebox run","message":"these were not provided: <FILE>"}"#
        );
    }
}
