//! Every labelled test window beside what each training predicted for it.

use std::path::Path;

use super::arms::Fitted;
use crate::error::PipelineError;
use crate::stages::{Run, Windows};
use crate::test_table::{Said, TestTable};

/// Writes every labelled test window: what the kept classifier says of it, as `firebox predict` writes it, and the class
/// that each training predicts, in a column of its name.
pub(super) fn write(
    path: &Path,
    run: &Run<'_>,
    windows: &Windows,
    fitted: &Fitted,
) -> Result<(), PipelineError> {
    let (test, classes) = (windows.parts.test.labelled(), windows.parts.train.classes());
    let (values, width) = (fitted.probabilities.as_slice(), classes.len());
    let mut said = vec![("class".to_owned(), Said::Class(fitted.kept_classes()))];
    said.extend(classes.iter().enumerate().map(|(place, name)| {
        (format!("probability_{name}"), Said::Share { values, place, width })
    }));
    let each = fitted.predicted(run).into_iter();
    said.extend(each.map(|(name, predicted)| (name, Said::Class(predicted))));
    let table = TestTable {
        set: test.set(),
        has_clock: windows.ingested.checks.span.is_some(),
        classes,
        windows: test.windows().clone(),
        said,
    };
    Ok(table.write(path)?)
}
