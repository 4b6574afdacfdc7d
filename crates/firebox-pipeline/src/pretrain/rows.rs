//! Every test window that an encoder was measured on, beside what each probe said of it and how well it was restored.

use std::path::Path;

use firebox_core::{HeldOutWindows, WindowList};
use firebox_eval::{Answers, Fill, WindowErrors};

use crate::error::PipelineError;
use crate::measure::Measured;
use crate::stages::Windows;
use crate::test_table::{FILE, Said, TestTable};

/// Columns of what was said of each window, by their names.
type Columns = Vec<(String, Said<'static>)>;

/// Writes every test window that was measured: the class that each probe on each encoder predicts, and the mean squared
/// errors of hidden steps, by the model and by what anyone gets without it.
pub(super) fn write(
    folder: &Path,
    windows: &Windows,
    measured: &Measured,
) -> Result<(), PipelineError> {
    let test = &windows.parts.test;
    let (answers, errors) = (measured.answers(), measured.errors());
    let chosen = chosen(answers, errors);
    if chosen.is_empty() {
        // Of an earlier evaluation.
        let _ = std::fs::remove_file(folder.join(FILE));
        return Ok(());
    }
    let mut said = answers.map_or(vec![], |answers| predicted(answers, &chosen));
    said.extend(restored(errors, &chosen));
    let table = TestTable {
        set: test.set(),
        has_clock: windows.ingested.checks.span.is_some(),
        classes: test.classes(),
        windows: places(test, &chosen),
        said,
    };
    Ok(table.write(&folder.join(FILE))?)
}

/// The windows that one or the other was measured on, in the order of the test part.
fn chosen(answers: Option<&Answers>, errors: &[WindowErrors]) -> Vec<usize> {
    let answered = answers.into_iter().flat_map(|answers| &answers.windows).copied();
    let mut chosen: Vec<usize> = answered.chain(errors.iter().map(|error| error.index)).collect();
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

fn places(test: &HeldOutWindows, chosen: &[usize]) -> WindowList {
    chosen.iter().map(|window| test.windows().at(*window)).collect()
}

/// A column for each run of each subject under each head, named by them.
fn predicted(answers: &Answers, chosen: &[usize]) -> Columns {
    let place = |window: &usize| answers.windows.binary_search(window).ok();
    let places: Vec<Option<usize>> = chosen.iter().map(place).collect();
    let column = |name: &str| name.to_lowercase().replace([' ', '-'], "_");
    let columns = answers.all.iter().flat_map(|answer| {
        let several = answer.runs.len() > 1;
        let places = &places;
        answer.runs.iter().enumerate().map(move |(run, classes)| {
            let number = if several { format!("_{}", run + 1) } else { String::new() };
            let head =
                answer.head.map_or(String::new(), |head| format!("_{}", column(head.name())));
            let name = format!("{}{number}{head}", column(answer.subject.name()));
            let class = |place: &Option<usize>| place.map(|place| classes[place]);
            (name, Said::ClassIfAny(places.iter().map(class).collect()))
        })
    });
    columns.collect()
}

/// How many values were hidden, and the mean squared error of each fill over these.
fn restored(errors: &[WindowErrors], chosen: &[usize]) -> Columns {
    if errors.is_empty() {
        return vec![];
    }
    let place = |window: &usize| errors.binary_search_by_key(window, |error| error.index).ok();
    let found: Vec<Option<&WindowErrors>> =
        chosen.iter().map(|window| place(window).map(|place| &errors[place])).collect();
    let column = |name: &str, of: &dyn Fn(&WindowErrors) -> f64| {
        let values = found.iter().map(|errors| errors.map(of)).collect();
        (name.to_owned(), Said::ExactIfAny(values))
    };
    let names = [
        (Fill::Model, "error_model"),
        (Fill::Linear, "error_linear_interpolation"),
        (Fill::LastValue, "error_last_value"),
        (Fill::SeenMean, "error_mean_of_visible_steps"),
        (Fill::Mean, "error_mean"),
    ];
    let mut columns = vec![column("hidden_values", &|errors| errors.values)];
    columns.extend(names.map(|(fill, name)| column(name, &|errors| errors.mean(fill))));
    columns
}
