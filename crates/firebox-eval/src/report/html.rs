//! The report as one page: no script, no font, no picture from anywhere else.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::plot::{LONGEST_NAME, escape, name, prose, words};
use super::{Report, Table, sections};
use crate::text::{count, duration, percent, significant};
use crate::verdict::{baseline, is_many_times, percent_interval, times_of};
use crate::{Estimate, Head, Outcome, Score, Subject};

/// How the footer of every page begins.
pub(super) const MADE_BY: &str = "Made by Firebox";
const STYLE: &str = include_str!("style.css");

/// A part of the page that the table of contents names.
pub(super) struct Section {
    pub(super) id: Cow<'static, str>,
    pub(super) title: Cow<'static, str>,
    pub(super) body: String,
}

/// A page of its own: its head, a table of contents, its sections, and what the footer adds.
pub(super) fn page(title: &str, head: &str, sections: &[Section], footer: &str) -> String {
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n<title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n",
        escape(title)
    );
    out.push_str(
        "<a class=\"skip\" href=\"#content\">Skip to the content</a>\n<div class=\"page\">\n",
    );
    out.push_str(head);
    out.push_str("<nav aria-label=\"Contents\"><ul>");
    for section in sections {
        let _ = write!(
            out,
            "<li><a href=\"#{}\">{}</a></li>",
            section.id,
            name(&section.title, LONGEST_NAME)
        );
    }
    out.push_str("</ul></nav>\n<main id=\"content\">\n");
    for Section { id, title, body } in sections {
        let _ = write!(
            out,
            "<section id=\"{id}\" aria-labelledby=\"{id}-title\">\n<h2 id=\"{id}-title\">{}</h2>\n{body}</section>\n",
            words(title)
        );
    }
    out.push_str("</main>\n");
    let _ = write!(
        out,
        "<footer>{MADE_BY} {}. This page loads nothing from a network; {footer}.</footer>\n</div>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    );
    out
}

/// The list of named values below a heading; empty values are left out.
pub(super) fn facts<'a>(facts: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut out = String::from("<dl class=\"facts\">");
    for (term, value) in facts.filter(|(_, value)| !value.is_empty()) {
        let _ = write!(
            out,
            "<div><dt>{}</dt><dd>{}</dd></div>",
            name(term, LONGEST_NAME),
            prose(value)
        );
    }
    out.push_str("</dl>\n");
    out
}

impl Report {
    /// The page, as `report.html` holds it.
    pub fn html(&self) -> String {
        let title = format!("{}: {}", self.title, self.badge_text());
        let footer = "all figures are in <code>scores.json</code> beside it";
        page(&title, &self.head(), &sections::all(self), footer)
    }

    fn head(&self) -> String {
        let (tone, outcome) = (tone(self.verdict.outcome), escape(self.badge_text()));
        let sentence = prose(&self.verdict.sentence);
        let mut out = format!(
            "<header>\n<p class=\"verdict {tone}\"><strong class=\"pill\">{outcome}</strong> <span>{sentence}</span></p>\n<h1>{}</h1>\n",
            words(&self.title)
        );
        let own = [
            ("Run", self.run.as_str()),
            ("Made", self.created.as_str()),
            ("Outcome", self.outcome.as_str()),
            ("Device", self.device.as_str()),
        ];
        let more = self.facts.iter().map(|fact| (fact.name.as_str(), fact.value.as_str()));
        out.push_str(&facts(own.into_iter().chain(more)));
        out.push_str("<div class=\"cards\">\n");
        for one in &self.cards {
            out.push_str(&card(&one.title, &one.value, &one.notes, one.tone.class()));
        }
        if self.cards.is_empty() {
            out.push_str(&(self.score_card() + &self.reconstruction_card()));
        }
        out.push_str(&(self.training_card() + &self.time_card()));
        out.push_str("</div>\n</header>\n");
        out
    }

    fn badge_text(&self) -> &str {
        if self.badge.is_empty() { label(self.verdict.outcome) } else { &self.badge }
    }

    fn score_card(&self) -> String {
        let Some(evaluation) = &self.evaluation else {
            return match self.unscored.as_str() {
                "" => card("Labels", "none", &["Scores need labelled windows.".to_owned()], ""),
                why => card("Scores", "–", &[format!("{why}.")], ""),
            };
        };
        let metric = evaluation.metric;
        let own = evaluation.score(Subject::PreTrained, Some(Head::Logistic));
        let own = own.map(|score| score.metric(metric)).unwrap_or_default();
        let interval = interval_of(&own, evaluation.confidence, percent);
        let value = |score: &Score| score.metric(metric).value;
        let baselines =
            evaluation.scores.iter().filter(|score| score.subject != Subject::PreTrained);
        let best = baselines.max_by(|a, b| value(a).total_cmp(&value(b)));
        let best = best.map_or_else(String::new, |best| {
            let by = match best.head {
                Some(Head::Neighbours) => " by nearest neighbours",
                Some(Head::Logistic) | None => "",
            };
            format!("best baseline: {}{by} with {}", baseline(best.subject), percent(value(best)))
        });
        let title = format!("Test {}", metric.name());
        let neighbours = evaluation.score(Subject::PreTrained, Some(Head::Neighbours)).map(value);
        let also = neighbours.filter(|share| *share > own.value);
        let also = also
            .map_or_else(String::new, |share| format!("by nearest neighbours {}", percent(share)));
        let notes = [interval, also, best];
        card(&title, &percent(own.value), &notes, tone(self.verdict.outcome))
    }

    fn reconstruction_card(&self) -> String {
        let Some(reconstruction) = &self.reconstruction else {
            let note = "No masked window was reconstructed.".to_owned();
            return card("Reconstruction", "–", &[note], "");
        };
        let Some(hardest) = reconstruction.hardest() else { return String::new() };
        let estimate = hardest.reduction;
        let (word, tone) = match (estimate.is_above_zero(), estimate.is_below_zero()) {
            (true, _) => ("lower", "good"),
            (_, true) => ("higher", "bad"),
            _ if estimate.value >= 0.0 => ("lower", "open"),
            _ => ("higher", "open"),
        };
        let fill = hardest.fill.name();
        let (value, against, interval) = if is_many_times(&estimate) {
            let times = times_of(&estimate);
            let against = format!("that of {fill}: the error on masked steps");
            let interval = interval_of(&times, reconstruction.confidence, significant);
            (format!("{} times", significant(times.value)), against, interval)
        } else {
            // The interval is told in the direction of the value.
            let (low, high) = match word {
                "lower" => (estimate.low, estimate.high),
                _ => (-estimate.high, -estimate.low),
            };
            let told = Estimate { low, high, ..estimate };
            let value = format!("{} {word}", percent(estimate.value.abs()));
            let against = format!("error on masked steps than {fill}");
            (value, against, interval_of(&told, reconstruction.confidence, percent))
        };
        card("Reconstruction", &value, &[against, interval], tone)
    }

    fn training_card(&self) -> String {
        let epochs = &self.curves.epochs;
        let steps = self.curves.taken().unwrap_or(0);
        let total = format!("{}, {}", count(epochs.len(), "epoch"), count(steps as usize, "step"));
        match (self.best_epoch(), epochs.last()) {
            (Some((epoch, loss)), _) => card(
                "Best validation loss",
                &significant(loss),
                &[format!("after epoch {}", epoch.epoch), total],
                "",
            ),
            (None, Some(last)) => {
                card("Last training loss", &significant(last.train_loss), &[total], "")
            }
            (None, None) if self.trained_in_parts() => String::new(),
            (None, None) => card("Training", "–", &["No epoch was trained.".to_owned()], ""),
        }
    }

    fn time_card(&self) -> String {
        let reused = self.stages.iter().filter(|stage| stage.reused).count();
        let stages = format!("{reused} of {} stages reused", self.stages.len());
        card("Time", &duration(self.seconds), &[stages], "")
    }
}

/// A number to see at once.
pub(super) fn card(title: &str, value: &str, notes: &[String], tone: &str) -> String {
    let notes: String = notes
        .iter()
        .filter(|note| !note.is_empty())
        .map(|note| format!("<p>{}</p>", prose(note)))
        .collect();
    format!(
        "<div class=\"card {tone}\"><h2>{}</h2><p class=\"value\">{}</p>{notes}</div>\n",
        prose(title),
        prose(value)
    )
}

fn tone(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Beats => "good",
        Outcome::DoesNotBeat => "bad",
        Outcome::TooFewWindows | Outcome::NoLabels | Outcome::NotMeasured => "open",
    }
}

fn label(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Beats => "Beats its baselines",
        Outcome::DoesNotBeat => "Does not beat its baselines",
        Outcome::TooFewWindows => "Too few test windows",
        Outcome::NoLabels => "No labels",
        Outcome::NotMeasured => "Not measured",
    }
}

impl Table {
    /// Whether every filled cell of a column is a number, perhaps with a unit or an interval.
    pub(super) fn is_numeric(&self, column: usize) -> bool {
        let cells = || self.rows.iter().filter_map(|row| row.get(column));
        let filled = || cells().filter(|cell| !cell.is_empty() && *cell != "–");
        filled().next().is_some() && filled().all(|cell| is_number(cell))
    }
}

/// Whether a text is a number: digits first, and no word longer than a unit. Dates, keys and
/// sentences are none.
fn is_number(text: &str) -> bool {
    let value = text.split(" (").next().unwrap_or_default();
    let first = value.split(' ').next().unwrap_or_default();
    let unsigned = first.trim_start_matches(['+', '-', '\u{2212}', '±']);
    let digits = |c: char| c.is_ascii_digit() || matches!(c, ',' | '.' | 'e' | '-' | '%');
    unsigned.starts_with(|c: char| c.is_ascii_digit())
        && unsigned.chars().all(digits)
        && (unsigned.contains('e') || !unsigned.contains('-'))
        && value.split(' ').skip(1).all(|word| word.chars().count() <= 3)
}

/// A table with its heading and note; empty without rows.
pub(super) fn table(table: &Table, heading: bool) -> String {
    if table.rows.is_empty() {
        return String::new();
    }
    let mut out = String::new();
    if heading {
        let _ = writeln!(out, "<h3>{}</h3>", words(&table.title));
    }
    if !table.note.is_empty() {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", prose(&table.note));
    }
    let _ = write!(
        out,
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table><thead><tr>",
        escape(&table.title)
    );
    let classes: Vec<&str> = (0..table.columns.len())
        .map(|column| if table.is_numeric(column) { " class=\"number\"" } else { "" })
        .collect();
    for (column, class) in table.columns.iter().zip(&classes) {
        let _ = write!(out, "<th scope=\"col\"{class}>{}</th>", name(column, LONGEST_NAME));
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for (place, (text, class)) in row.iter().zip(&classes).enumerate() {
            if place == 0 {
                let _ = write!(out, "<th scope=\"row\"{class}>{}</th>", prose(text));
            } else {
                let _ = write!(out, "<td{class}>{}</td>", cell(text));
            }
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

/// A cell; an interval in parentheses steps back behind its value, and words of judgement are
/// marked.
fn cell(text: &str) -> String {
    match text {
        "better" | "best" | "reused" => return format!("<span class=\"tag good\">{text}</span>"),
        "worse" => return format!("<span class=\"tag bad\">{text}</span>"),
        "no difference shown" => return format!("<span class=\"tag open\">{text}</span>"),
        // A name or a command, which is copied without its marks.
        _ if text.contains('`') => return prose(text),
        _ => {}
    }
    match text.split_once(" (") {
        Some((value, rest))
            if text.starts_with(|c: char| !c.is_alphabetic()) && rest.ends_with(')') =>
        {
            let rest = rest.trim_end_matches(')');
            format!("<b>{}</b> <span class=\"interval\">{}</span>", words(value), words(rest))
        }
        _ => words(text),
    }
}

/// `95 % interval: 81.0 % to 87.1 %`.
fn interval_of(estimate: &Estimate, confidence: f64, format: fn(f64) -> String) -> String {
    match estimate.ends(format) {
        Some(ends) => format!("{}: {ends}", percent_interval(confidence)),
        None => "too few independent windows for an interval".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_copied_without_its_marks() {
        assert_eq!(cell("`firebox bench --steps 3`"), "<code>firebox bench --steps 3</code>");
        assert_eq!(cell("`a<b` (1 to 2)"), "<code>a&lt;b</code> (1 to 2)");
        let facts = facts([("Command", "`firebox bench`")].into_iter());
        assert!(facts.contains("<dd><code>firebox bench</code></dd>"), "{facts}");
        assert!(cell("3.0 (1.0 to 9.2)").starts_with("<b>3.0</b>"));
    }

    #[test]
    fn numbers_are_told_from_dates_keys_and_sentences() {
        for number in ["3", "1,029", "−0.4", "+6.3 (1.0 to 9.2)", "2 min 05 s", "84.2 %", "1e-5"]
        {
            assert!(is_number(number), "{number}");
        }
        for text in ["2024-01-02", "2024-01-02 09:30", "4f2a90c1be77", "2 series", "", "–", "mean"]
        {
            assert!(!is_number(text), "{text}");
        }
    }
}
