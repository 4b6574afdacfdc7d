//! Generated texts as a table: what `firebox data generate` writes of a `.texts.toml` file.

use std::fmt::Write as _;
use std::path::Path;

use firebox_core::LabelledTexts;
use firebox_text::TextSampleConfig;

use crate::error::PipelineError;
use crate::layers::in_file;

/// Makes the texts that the settings of a file ask for.
pub(super) fn made(path: &Path, settings: &str) -> Result<LabelledTexts, PipelineError> {
    let sample: TextSampleConfig =
        toml::from_str(settings).map_err(|error| in_file(path, settings, &error))?;
    Ok(sample.make()?)
}

/// The same as CSV, with the columns `text`, one for each label, `evidence_start`, `evidence_end`
/// (characters, the second one after the last) and `author`, and the number of texts.
pub(crate) fn as_csv(path: &Path, settings: &str) -> Result<(String, usize), PipelineError> {
    let made = made(path, settings)?;
    let mut out = format!("text,{},evidence_start,evidence_end,author\n", made.labels.join(","));
    for (row, text) in made.texts.iter().enumerate() {
        let truth: String = made.row(row).iter().map(|t| format!(",{}", u8::from(*t))).collect();
        let characters = |byte: usize| text.get(..byte).map_or(0, |before| before.chars().count());
        let span = made.spans[row].map_or(",".to_owned(), |[from, end]| {
            format!("{},{}", characters(from), characters(end))
        });
        let author = made.groups[row].as_deref().unwrap_or_default();
        let quoted = text.replace('"', "\"\"");
        // Writing into a text cannot fail.
        let _ = writeln!(out, "\"{quoted}\"{truth},{span},{author}");
    }
    Ok((out, made.len()))
}
