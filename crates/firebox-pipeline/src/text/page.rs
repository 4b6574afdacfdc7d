//! What the report says of a run of the pipeline `text`.

use firebox_core::count;
use firebox_eval::{
    Card, Chart, Estimate, Fact, Interval, Part, Report, Table, Tone, number, percent, signed,
};
use serde_json::json;

use super::Learnt;
use super::corpus::{Corpus, Tokens};
use super::measure::{Evidence, MODEL, Measured, WORDS};
use crate::stages::Run;
use crate::test_table::FILE;

pub(super) fn report(
    run: &Run<'_>,
    title: &str,
    corpus: &Corpus,
    tokens: &Tokens,
    measured: &Measured,
    learnt: &Learnt,
) -> Report {
    let mut report = Report::new(title, "", measured.verdict.clone());
    report.cards = cards(measured);
    report.parts = vec![labels(corpus, measured)];
    report.parts.extend(measured.evidence.as_ref().map(|found| evidence(found, measured.texts)));
    report.figures = figures(corpus, measured);
    report.data = vec![data(run, corpus, tokens)];
    report.facts = vec![
        Fact::new("encoder", learnt.from.clone()),
        Fact::new("parameters", learnt.parameters.to_string()),
        Fact::new("training texts", corpus.parts.train.len().to_string()),
        Fact::new("tokens in the vocabulary", tokens.tokenizer.vocabulary().to_string()),
    ];
    report
}

/// Its interval, or that there is none.
fn between(estimate: Estimate) -> String {
    estimate
        .ends(|value| number(value, 3))
        .unwrap_or_else(|| "no interval: too few texts".to_owned())
}

fn cards(measured: &Measured) -> Vec<Card> {
    let card = |title: &str, estimate: Estimate, against: Option<(&str, Estimate)>| {
        let beside =
            against.map(|(name, d)| format!("{} ({}) to {name}", signed(d.value, 3), between(d)));
        Card {
            title: title.to_owned(),
            value: format!("{:.3}", estimate.value),
            notes: [Some(between(estimate)), beside].into_iter().flatten().collect(),
            tone: match against {
                Some((_, d)) if d.is_above_zero() => Tone::Good,
                Some((_, d)) if d.is_below_zero() => Tone::Bad,
                Some(_) => Tone::Open,
                None => Tone::Neutral,
            },
        }
    };
    let words = measured.methods.last();
    let words = words.and_then(|method| Some((method.name, method.difference?)));
    let own = &measured.methods[0];
    let mut cards =
        vec![card("macro F1", own.macro_f1, words), card("micro F1", own.micro_f1, None)];
    if let Some(evidence) = &measured.evidence {
        let whole = Some(("naming the whole text", evidence.difference));
        cards.push(card("evidence, token F1", evidence.token_f1, whole));
        cards.push(card("evidence, exact", evidence.exact, None));
    }
    cards
}

fn chart(title: &str, rows: Vec<Interval>) -> Chart {
    Chart::Intervals { title: title.to_owned(), rows, share: false, from_zero: true }
}

fn labels(corpus: &Corpus, measured: &Measured) -> Part {
    let rows = |of: &dyn Fn(usize) -> Estimate| -> Vec<Interval> {
        let row = |place: usize| Interval {
            name: measured.methods[place].name.to_owned(),
            estimate: of(place),
            own: measured.methods[place].name == MODEL,
        };
        (0..measured.methods.len()).map(row).collect()
    };
    let own = &measured.methods[0].scores.labels;
    let words = measured.methods.iter().find(|method| method.name == WORDS);
    let words = words.map(|method| &method.scores.labels);
    let row = |(place, name): (usize, &String)| {
        let score = own[place];
        let numbers = [score.precision, score.recall, score.f1];
        let mut row = vec![name.clone(), score.support.to_string()];
        row.extend(numbers.map(|number| format!("{number:.3}")));
        // Of texts without a word there is no such baseline.
        row.push(words.map_or("–".to_owned(), |labels| format!("{:.3}", labels[place].f1)));
        row.push(format!("{:.3}", measured.thresholds[place]));
        row
    };
    let others: Vec<String> = measured.methods[1..]
        .iter()
        .map(|method| format!("{}: {}", method.name, percent(method.scores.exact)))
        .collect();
    Part {
        title: "Labels".to_owned(),
        lead: format!(
            "On {}. F1 is the harmonic mean of precision and recall of a label; macro is its \
             mean over the labels, micro that of all cells together. All labels of a text are right in \
             {} of the texts ({}). `{FILE}` beside this page has what was said of each text.",
            count(measured.texts as u64, "test text"),
            percent(measured.methods[0].scores.exact),
            others.join(", ")
        ),
        charts: vec![
            chart("Macro F1", rows(&|place| measured.methods[place].macro_f1)),
            chart("Micro F1", rows(&|place| measured.methods[place].micro_f1)),
        ],
        tables: vec![Table {
            title: "Each label".to_owned(),
            note: match corpus.parts.validation.is_empty() {
                true => "Thresholds are 0.5, for the words alike: there are no validation texts to choose them by.",
                false => "Thresholds are chosen on validation texts, for the words alike.",
            }
            .to_owned(),
            columns: ["label", "holds in", "precision", "recall", "F1", "F1 by words", "threshold"]
                .map(str::to_owned)
                .to_vec(),
            rows: corpus.texts.labels.iter().enumerate().map(row).collect(),
        }],
    }
}

fn evidence(evidence: &Evidence, texts: usize) -> Part {
    let row = |name: &str, estimate, own| Interval { name: name.to_owned(), estimate, own };
    Part {
        title: "Evidence".to_owned(),
        lead: format!(
            "On {} with evidence. Exact: first and last token are right. Token F1: of the tokens named and \
             those of the evidence.{}",
            count(evidence.own.texts as u64, "test text"),
            not_judged(texts - evidence.own.texts)
        ),
        charts: vec![
            chart(
                "Token F1",
                vec![
                    row(MODEL, evidence.token_f1, true),
                    row("the whole text", evidence.whole, false),
                ],
            ),
            chart("Evidence found exactly", vec![row(MODEL, evidence.exact, true)]),
        ],
        tables: vec![],
    }
}

/// What is said of test texts that have no evidence.
fn not_judged(texts: usize) -> String {
    let (have, them) = match texts {
        0 => return String::new(),
        1 => ("has", "it"),
        _ => ("have", "them"),
    };
    format!(
        " {} {have} none and {} not judged: the model names a span in {them}, too, as it does in each text.",
        count(texts as u64, "test text"),
        if texts == 1 { "is" } else { "are" }
    )
}

fn figures(corpus: &Corpus, measured: &Measured) -> serde_json::Value {
    let methods: serde_json::Map<String, serde_json::Value> = measured
        .methods
        .iter()
        .map(|method| {
            let labels: serde_json::Map<String, serde_json::Value> = corpus
                .texts
                .labels
                .iter()
                .zip(&method.scores.labels)
                .map(|(name, score)| (name.clone(), json!(score)))
                .collect();
            let value = json!({
                "macro_f1": method.macro_f1, "micro_f1": method.micro_f1,
                "exact_labels": method.scores.exact, "difference": method.difference,
                "labels": labels,
            });
            (method.name.to_owned(), value)
        })
        .collect();
    let evidence = measured.evidence.as_ref().map(|evidence| {
        json!({
            "texts": evidence.own.texts, "not_judged": measured.texts - evidence.own.texts,
            "exact": evidence.exact, "token_f1": evidence.token_f1,
            "whole_text_token_f1": evidence.whole, "difference": evidence.difference,
        })
    });
    json!({ "labels": methods, "thresholds": measured.thresholds, "evidence": evidence })
}

fn data(run: &Run<'_>, corpus: &Corpus, tokens: &Tokens) -> Table {
    let parts = &corpus.parts;
    let row = |(name, rows): (&str, &Vec<usize>)| {
        let own = || rows.iter().map(|row| &tokens.texts[*row]);
        let sum: usize = own().map(|text| text.tokens.len()).sum();
        let evidence = rows.iter().filter(|row| corpus.texts.spans[**row].is_some()).count();
        vec![
            name.to_owned(),
            rows.len().to_string(),
            format!("{:.1}", sum as f64 / rows.len().max(1) as f64),
            own().map(|text| text.tokens.len()).max().unwrap_or(0).to_string(),
            own().filter(|text| text.cut > 0).count().to_string(),
            evidence.to_string(),
            own().filter(|text| text.span_cut).count().to_string(),
        ]
    };
    let names = ["training", "validation", "test"];
    let split = run.config.text.as_ref().map_or(String::new(), |text| text.split_in_words());
    Table {
        title: "Texts".to_owned(),
        note: format!(
            "Divided by {split}. {} {} an earlier one but for case and space; {} {} left out of training \
             because the test table has them or their group.",
            count(parts.duplicates as u64, "text"),
            if parts.duplicates == 1 { "equals" } else { "equal" },
            count(parts.left_out as u64, "text"),
            if parts.left_out == 1 { "was" } else { "were" }
        ),
        columns: [
            "part",
            "texts",
            "tokens, mean",
            "longest",
            "cut off",
            "with evidence",
            "evidence cut off",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows: names
            .into_iter()
            .zip([&parts.train, &parts.validation, &parts.test])
            .map(row)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_without_evidence_are_told() {
        assert_eq!(not_judged(0), "");
        assert_eq!(
            not_judged(1),
            " 1 test text has none and is not judged: the model names a span in it, too, as it does in each text."
        );
        assert!(not_judged(263).starts_with(" 263 test texts have none and are not judged: "));
    }
}
