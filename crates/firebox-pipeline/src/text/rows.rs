//! Every test text beside what was said of it, as a table in the folder of a run: its scores can be made of it again.

use std::path::Path;

use firebox_data::{TableColumn, TableWriter};

use super::config::TextConfig;
use super::corpus::{Corpus, Tokens};
use super::measure::{MODEL, Measured, WORDS};
use crate::apply::{
    Columns, PLACE, TRUE_EVIDENCE, UNIT, evidence, probability_of, true_of, words_of,
};
use crate::error::PipelineError;

/// Texts that are written at a time.
const AT_ONCE: usize = 8192;

/// Writes a row for each test text: where it stands, which texts it belongs together with, what is true of it, what the
/// model says, as `firebox predict` writes it, and what a regression on its words says.
pub(super) fn write(
    path: &Path,
    text: &TextConfig,
    corpus: &Corpus,
    tokens: &Tokens,
    measured: &Measured,
) -> Result<(), PipelineError> {
    let mut units = vec![0_i64; corpus.parts.test.len()];
    for (unit, places) in corpus.parts.test_units.iter().enumerate() {
        places.iter().for_each(|place| units[*place] = unit as i64);
    }
    let mut table = TableWriter::create(path)?;
    let places: Vec<usize> = (0..corpus.parts.test.len()).collect();
    for places in places.chunks(AT_ONCE) {
        table.write(columns(text, corpus, tokens, measured, (places, &units)))?;
    }
    table.finish()?;
    Ok(())
}

/// The rows of some test texts.
fn columns(
    text: &TextConfig,
    corpus: &Corpus,
    tokens: &Tokens,
    measured: &Measured,
    (places, units): (&[usize], &[i64]),
) -> Columns {
    let (all, labels) = (&corpus.texts, &corpus.texts.labels);
    let rows = || places.iter().map(|place| corpus.parts.test[*place]);
    let of = |row: usize| match &text.test {
        Some(test) if row >= corpus.given => test.display().to_string(),
        _ => text.path.display().to_string(),
    };
    let (files, numbers) = rows().map(|row| (of(row), all.rows[row] as i64)).unzip();
    let mut columns = vec![
        (PLACE[0].to_owned(), TableColumn::Text(files)),
        (PLACE[1].to_owned(), TableColumn::Whole(numbers)),
        (UNIT.to_owned(), TableColumn::Whole(places.iter().map(|at| units[*at]).collect())),
    ];
    let each = || labels.iter().enumerate();
    columns.extend(each().map(|(label, name)| {
        let truth = rows().map(|row| i64::from(all.row(row)[label])).collect();
        (true_of(name), TableColumn::Whole(truth))
    }));
    let said = |method: &str, called: &dyn Fn(&str) -> String| -> Columns {
        let Some((_, said)) = measured.predicted.iter().find(|(name, _)| *name == method) else {
            return vec![];
        };
        let column = |(label, name): (usize, &String)| {
            let holds = places.iter().map(|place| i64::from(said[place * labels.len() + label]));
            (called(name), TableColumn::Whole(holds.collect()))
        };
        each().map(column).collect()
    };
    columns.extend(said(MODEL, &str::to_owned));
    columns.extend(each().map(|(label, name)| {
        let probabilities =
            places.iter().map(|place| measured.answers.probabilities[place * labels.len() + label]);
        (probability_of(name), TableColumn::Number(probabilities.collect()))
    }));
    columns.extend(said(WORDS, &words_of));
    if measured.answers.spans.iter().any(Option::is_some) {
        let texts: Vec<&str> = rows().map(|row| all.texts[row].as_str()).collect();
        let tokens: Vec<_> = rows().map(|row| &tokens.texts[row]).collect();
        let spans: Vec<_> = places.iter().map(|place| measured.answers.spans[*place]).collect();
        columns.extend(evidence(&texts, &tokens, &spans));
        columns.extend(true_evidence(corpus, measured, places));
    }
    columns
}

/// Where evidence is, in characters, and how well it was found, of the texts that have some.
fn true_evidence(corpus: &Corpus, measured: &Measured, places: &[usize]) -> Columns {
    let characters = |row: usize, side: usize| {
        let byte = corpus.texts.spans[row]?[side];
        Some(corpus.texts.texts[row].get(..byte)?.chars().count() as i64)
    };
    let side = |side: usize| {
        let all = places.iter().map(|place| characters(corpus.parts.test[*place], side));
        TableColumn::WholeIfAny(all.collect())
    };
    let scores = || places.iter().map(|place| measured.found.get(*place).copied().flatten());
    let exact = scores().map(|score| score.map(|(exact, _)| i64::from(exact))).collect();
    let token_f1 = scores().map(|score| score.map(|(_, f1)| f1)).collect();
    let columns =
        [side(0), side(1), TableColumn::WholeIfAny(exact), TableColumn::ExactIfAny(token_f1)];
    TRUE_EVIDENCE.into_iter().map(str::to_owned).zip(columns).collect()
}
