//! The report as Markdown: the same tables, without pictures.

use std::fmt::Write as _;

use super::{Card, Chart, Interval, Report, Table, tables};
use crate::text::{duration, percent, significant};

impl Report {
    /// The summary, as `summary.md` holds it. Its first line is the verdict.
    pub fn markdown(&self) -> String {
        let mut out =
            format!("**{}**\n\n# {}\n\n", inline(&self.verdict.sentence), inline(&self.title));
        self.facts_list(&mut out);
        self.cards_list(&mut out);
        section(&mut out, "Warnings", |out| {
            self.all_warnings().iter().for_each(|warning| {
                let _ = writeln!(out, "- {}", inline(warning));
            });
        });
        for part in &self.parts {
            section(&mut out, &part.title, |out| {
                if !part.lead.is_empty() {
                    let _ = write!(out, "{}\n\n", inline(&part.lead));
                }
                part.charts.iter().for_each(|chart| write_intervals(out, chart));
                let heading = part.tables.len() > 1;
                part.tables.iter().for_each(|table| write_table(out, table, heading));
            });
        }
        section(&mut out, "Scores", |out| {
            if let Some(evaluation) = &self.evaluation {
                write_table(out, &tables::scores(evaluation), false);
                write_table(out, &tables::differences(evaluation), true);
                write_table(out, &tables::classes(evaluation), true);
                if evaluation.classes.len() <= 24 {
                    write_table(out, &tables::confusion(evaluation), true);
                }
            }
        });
        section(&mut out, "Reconstruction", |out| {
            if let Some(reconstruction) = &self.reconstruction {
                write_table(out, &tables::reconstruction(reconstruction), false);
            }
        });
        section(&mut out, "Training", |out| {
            self.training_line(out);
            write_table(out, &tables::epochs(self), false);
            write_table(out, &tables::checkpoints(self), true);
        });
        section(&mut out, "Advice", |out| write_table(out, &tables::advice(self), false));
        section(&mut out, "Machine", |out| {
            self.machine.notes.iter().for_each(|note| {
                let _ = write!(out, "{}\n\n", inline(note));
            });
            write_table(out, &tables::machine(self), false);
        });
        section(&mut out, "Profile", |out| {
            self.profile.iter().for_each(|table| write_table(out, table, false));
        });
        section(&mut out, "Data", |out| {
            self.data.iter().for_each(|table| write_table(out, table, true));
        });
        section(&mut out, "Stages", |out| write_table(out, &tables::stages(self), false));
        section(&mut out, "Configuration", |out| {
            write_table(out, &tables::reasons(self), true);
            if !self.configuration.is_empty() {
                let fence = fence(&self.configuration);
                let text = self.configuration.trim_end();
                let _ = write!(out, "{fence}toml\n{text}\n{fence}\n\n");
            }
        });
        let trimmed = out.trim_end().len();
        out.truncate(trimmed);
        out.push('\n');
        out
    }

    fn facts_list(&self, out: &mut String) {
        let time = if self.seconds > 0.0 { duration(self.seconds) } else { String::new() };
        let own = [
            ("Run", self.run.as_str()),
            ("Made", self.created.as_str()),
            ("Device", self.device.as_str()),
            ("Outcome", self.outcome.as_str()),
            ("Time", time.as_str()),
        ];
        let facts = self.facts.iter().map(|fact| (fact.name.as_str(), fact.value.as_str()));
        for (name, value) in own.into_iter().chain(facts).filter(|(_, value)| !value.is_empty()) {
            let _ = writeln!(out, "- {}: {}", inline(name), inline(value));
        }
        out.push('\n');
    }

    /// The numbers to see at once.
    fn cards_list(&self, out: &mut String) {
        for Card { title, value, notes, .. } in &self.cards {
            let notes: Vec<String> = notes.iter().map(|note| inline(note)).collect();
            let notes = Some(notes.join("; ")).filter(|notes| !notes.is_empty());
            let notes = notes.map_or(String::new(), |notes| format!(" ({notes})"));
            let _ = writeln!(out, "- **{}**: {}{notes}", inline(title), inline(value));
        }
        if !self.cards.is_empty() {
            out.push('\n');
        }
    }

    fn training_line(&self, out: &mut String) {
        if let Some((epoch, loss)) = self.best_epoch() {
            let _ = write!(
                out,
                "Best validation loss {} after epoch {} of {}.\n\n",
                significant(loss),
                epoch.epoch,
                self.curves.epochs.len()
            );
        }
        if !self.curves.skipped.is_empty() {
            let _ = write!(
                out,
                "{} skipped because a loss or gradient was not finite; the learning rate follows the others.\n\n",
                match self.curves.skipped.len() {
                    1 => "1 step was".to_owned(),
                    steps => format!("{steps} steps were"),
                }
            );
        }
        if let Some(line) = self.scale_line() {
            let _ = write!(out, "{line}\n\n");
        }
    }
}

/// A section, unless it turns out to be empty.
fn section(out: &mut String, title: &str, write: impl FnOnce(&mut String)) {
    let mut body = String::new();
    write(&mut body);
    if !body.is_empty() {
        let _ = write!(out, "## {title}\n\n{}\n\n", body.trim_end());
    }
}

/// A chart of values with intervals as a table; there are no pictures here.
fn write_intervals(out: &mut String, chart: &Chart) {
    let Chart::Intervals { title, rows, share, .. } = chart else { return };
    let format = if *share { percent } else { significant };
    let row = |row: &Interval| vec![row.name.clone(), row.estimate.with_interval(format)];
    let table = Table {
        title: title.clone(),
        note: String::new(),
        columns: ["", "value (interval)"].map(str::to_owned).to_vec(),
        rows: rows.iter().map(row).collect(),
    };
    write_table(out, &table, true);
}

pub(super) fn write_table(out: &mut String, table: &Table, heading: bool) {
    if table.rows.is_empty() {
        return;
    }
    if heading {
        let _ = write!(out, "### {}\n\n", inline(&table.title));
    }
    if !table.note.is_empty() {
        let _ = write!(out, "{}\n\n", inline(&table.note));
    }
    let row = |out: &mut String, cells: &[String]| {
        out.push('|');
        cells.iter().for_each(|cell| {
            let _ = write!(out, " {} |", in_cell(cell));
        });
        out.push('\n');
    };
    row(out, &table.columns);
    let rule: Vec<String> = (0..table.columns.len())
        .map(|column| if table.is_numeric(column) { "---:" } else { "---" }.to_owned())
        .collect();
    out.push('|');
    rule.iter().for_each(|rule| {
        let _ = write!(out, " {rule} |");
    });
    out.push('\n');
    table.rows.iter().for_each(|cells| row(out, cells));
    out.push('\n');
}

/// Text within a cell of a table. Cells are divided before anything else is looked at, names between backticks
/// included.
fn in_cell(text: &str) -> String {
    inline(text).replace('|', "\\|")
}

/// Text within a line: nothing in it is markup but names between backticks, and it stays on its line.
pub(super) fn inline(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // Of an odd number the last begins nothing.
    let closing = text.matches('`').count() / 2 * 2;
    let (mut seen, mut before) = (0, ' ');
    for character in text.chars() {
        let is_name = seen % 2 == 1;
        match character {
            '`' if seen < closing => {
                seen += 1;
                out.push('`');
            }
            other if other.is_control() => out.push(' '),
            other if is_name => out.push(other),
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            // Within a word it is none.
            '_' if before.is_alphanumeric() => out.push('_'),
            '\\' | '*' | '[' | ']' | '#' | '`' | '_' | '~' => {
                out.push('\\');
                out.push(character);
            }
            other => out.push(other),
        }
        before = character;
    }
    out
}

/// A fence longer than any run of backticks in the text.
fn fence(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    "`".repeat((longest + 1).max(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_and_intervals_are_told_without_pictures() {
        let sentence = "It beats all.".to_owned();
        let verdict = crate::Verdict { outcome: crate::Outcome::Beats, sentence };
        let mut report = Report::new("text", "", verdict);
        let notes = vec!["0.700 to 0.900".to_owned(), "+0.100 to words".to_owned()];
        let (title, value) = ("micro F1".to_owned(), "0.800".to_owned());
        report.cards = vec![Card { title, value, notes, ..Card::default() }];
        let estimate = crate::Estimate { value: 0.5, low: 0.25, high: 0.75 };
        let rows = vec![Interval { name: "words".to_owned(), estimate, own: false }];
        let title = "Micro F1".to_owned();
        let chart = Chart::Intervals { title, rows, share: false, from_zero: true };
        let part = super::super::Part { title: "Labels".to_owned(), ..Default::default() };
        report.parts = vec![super::super::Part { charts: vec![chart], ..part }];
        let text = report.markdown();
        assert!(text.contains("- **micro F1**: 0.800 (0.700 to 0.900; +0.100 to words)"), "{text}");
        assert!(
            text.contains("### Micro F1") && text.contains("| words | 0.500 (0.250 to 0.750) |"),
            "{text}"
        );
    }

    #[test]
    fn cells_cannot_break_their_table_and_code_cannot_end_its_fence() {
        assert_eq!(in_cell("a|b\n<c> *d*"), "a\\|b &lt;c> \\*d\\*");
        assert_eq!(in_cell("`a|b`"), "`a\\|b`");
        // Outside of tables a name would be read with the sign that hides it.
        assert_eq!(inline("`a|b` or c|d"), "`a|b` or c|d");
        assert_eq!(fence("a ```` b"), "`````");
        assert_eq!(fence("plain"), "```");
    }
}
