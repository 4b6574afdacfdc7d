//! A page of measurements that belong to no run, such as times of a benchmark: sections of charts and
//! tables, as HTML and as Markdown. What they mean is told by whoever measured.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::charts::{
    HEIGHT, IntervalRow, LEFT, RIGHT, TOP, WIDTH, figure, interval_chart, nothing,
};
use super::html::{MADE_BY, Section, facts, page, table};
use super::markdown::{inline, write_table};
use super::plot::{Scale, coordinate, escape, path, prose, range, words};
use super::write::replace;
use super::{Fact, Table};
use crate::text::significant;
use crate::{Estimate, EvalError};

/// A page of measurements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sheet {
    /// Its title.
    pub title: String,
    /// What it comes to, a sentence or two.
    pub lead: String,
    /// What holds for all of it, such as the device.
    pub facts: Vec<Fact>,
    /// Its sections; empty ones are left out.
    pub sections: Vec<SheetSection>,
}

/// A section of a [`Sheet`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SheetSection {
    /// Its anchor.
    pub id: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// What it says, a sentence or two; may be empty.
    pub lead: String,
    /// Charts, in HTML alone.
    pub charts: Vec<SheetChart>,
    /// Tables.
    pub tables: Vec<Table>,
}

/// A chart of a [`SheetSection`].
#[derive(Clone, Debug, PartialEq)]
pub enum SheetChart {
    /// Curves on logarithmic axes, where a power law is a straight line.
    Powers {
        /// What is drawn.
        title: String,
        /// Name of the horizontal axis.
        axis: String,
        /// Unit of the values.
        unit: String,
        /// The curves, nine at most, by their names.
        curves: Vec<(String, Vec<(f64, f64)>)>,
    },
    /// Values with their ranges, one below the other; the marked ones are those to look at.
    Bars {
        /// What is drawn.
        title: String,
        /// Names, values and marks.
        rows: Vec<(String, Estimate, bool)>,
    },
}

impl Sheet {
    /// The page as HTML, without a script and without anything from a network.
    pub fn html(&self) -> String {
        let mut head = format!("<header>\n<h1>{}</h1>\n", words(&self.title));
        if !self.lead.is_empty() {
            let _ = writeln!(head, "<p class=\"lead\">{}</p>", prose(&self.lead));
        }
        let pairs = self.facts.iter().map(|fact| (fact.name.as_str(), fact.value.as_str()));
        head += &facts(pairs);
        head += "</header>\n";
        let sections: Vec<Section> = self
            .sections
            .iter()
            .filter(|section| !section.is_empty())
            .map(|section| Section {
                id: section.id.into(),
                title: section.title.into(),
                body: section.html(),
            })
            .collect();
        page(&self.title, &head, &sections, "its figures are in the JSON file beside it")
    }

    /// The same tables as Markdown.
    pub fn markdown(&self) -> String {
        let mut out = format!("# {}\n\n", inline(&self.title));
        if !self.lead.is_empty() {
            let _ = write!(out, "{}\n\n", inline(&self.lead));
        }
        for Fact { name, value } in self.facts.iter().filter(|fact| !fact.value.is_empty()) {
            let _ = writeln!(out, "- {}: {}", inline(name), inline(value));
        }
        for section in self.sections.iter().filter(|section| !section.is_empty()) {
            let _ = write!(out, "\n## {}\n\n", section.title);
            if !section.lead.is_empty() {
                let _ = write!(out, "{}\n\n", inline(&section.lead));
            }
            let headings = section.tables.len() > 1;
            section.tables.iter().for_each(|table| write_table(&mut out, table, headings));
            out.truncate(out.trim_end().len());
            out.push('\n');
        }
        out
    }

    /// Writes the HTML page, whole or not at all. It replaces an older page of Firebox, and no other
    /// file.
    ///
    /// # Errors
    ///
    /// When the file is something else, or cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), EvalError> {
        if path.exists() && !fs::read_to_string(path).is_ok_and(|text| text.contains(MADE_BY)) {
            return Err(EvalError::NotOurs { path: path.to_owned() });
        }
        replace(path, &self.html())
    }
}

impl SheetSection {
    fn is_empty(&self) -> bool {
        self.charts.is_empty() && self.tables.iter().all(|table| table.rows.is_empty())
    }

    fn html(&self) -> String {
        let mut out = String::new();
        if !self.lead.is_empty() {
            let _ = writeln!(out, "<p class=\"note\">{}</p>", prose(&self.lead));
        }
        if !self.charts.is_empty() {
            // One chart alone would be as wide as the page.
            let class = if self.charts.len() == 1 { "half" } else { "grid" };
            let _ = writeln!(out, "<div class=\"{class}\">");
            for chart in &self.charts {
                out += &match chart {
                    SheetChart::Powers { title, axis, unit, curves } => {
                        powers(title, axis, unit, curves)
                    }
                    SheetChart::Bars { title, rows } => bars(title, rows),
                };
            }
            out.push_str("</div>\n");
        }
        let headings = self.tables.len() > 1;
        self.tables.iter().for_each(|one| out += &table(one, headings));
        out
    }
}

fn bars(title: &str, rows: &[(String, Estimate, bool)]) -> String {
    let rows: Vec<IntervalRow> = rows
        .iter()
        .map(|(label, estimate, own)| IntervalRow {
            label: label.clone(),
            estimate: *estimate,
            own: *own,
        })
        .collect();
    interval_chart(title, &rows, true, significant)
}

/// How far an axis reaches above and below its middle at least.
const LEAST: f64 = 3.0;

/// Curves on two logarithmic axes, their points marked.
fn powers(title: &str, axis: &str, unit: &str, curves: &[(String, Vec<(f64, f64)>)]) -> String {
    let positive = |value: &f64| *value > 0.0;
    let all = || curves.iter().flat_map(|(_, points)| points);
    let (Some(across), Some(up)) = (
        range(all().map(|point| point.0).filter(positive)),
        range(all().map(|point| point.1).filter(positive)),
    ) else {
        return nothing(title);
    };
    let bottom = HEIGHT - super::charts::BOTTOM;
    let x = Scale::logarithmic(across, LEFT, WIDTH - RIGHT);
    // What hardly changes is to look so.
    let middle = (up[0] * up[1]).sqrt();
    let up = [up[0].min(middle / LEAST), up[1].max(middle * LEAST)];
    let y = Scale::logarithmic(up, bottom, TOP);
    // Sizes are few, and worth their own marks.
    let mut marks: Vec<f64> = all().map(|point| point.0).collect();
    marks.sort_by(f64::total_cmp);
    marks.dedup();
    let marks: Vec<(f64, String)> =
        marks.into_iter().map(|size| (size, crate::text::grouped(size))).collect();
    let mut body = super::charts::axes_with(&marks, &x, &y, axis);
    let mut legend = vec![];
    for (place, (name, points)) in curves.iter().enumerate() {
        let class = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"][place % 9];
        legend.push((name.as_str(), class));
        let line = path(points.iter().map(|(size, value)| (x.at(*size), y.at(*value))));
        let _ = write!(body, r#"<g class="{class}"><path class="curve" d="{line}"/>"#);
        for (size, value) in points {
            let tip = format!("{name}, {axis} {}: {} {unit}", size, significant(*value));
            let _ = write!(
                body,
                r#"<circle cx="{}" cy="{}" r="3.2"><title>{}</title></circle>"#,
                coordinate(x.at(*size)),
                coordinate(y.at(*value)),
                escape(&tip)
            );
        }
        body.push_str("</g>");
    }
    figure(&format!("{title}, logarithmic axes"), [WIDTH, HEIGHT], &body, &legend)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet() -> Sheet {
        let fact =
            |name: &str, value: &str| Fact { name: name.to_owned(), value: value.to_owned() };
        let estimate = |value: f64| Estimate { value, low: value * 0.9, high: value * 1.1 };
        Sheet {
            title: "Speed <of> it".to_owned(),
            lead: "Twice as fast.".to_owned(),
            facts: vec![fact("Device", "cpu"), fact("Nothing", "")],
            sections: vec![
                SheetSection { id: "empty", title: "Empty", ..SheetSection::default() },
                SheetSection {
                    id: "times",
                    title: "Times",
                    lead: "In ms | a step.".to_owned(),
                    charts: vec![
                        SheetChart::Powers {
                            title: "Step over batch".to_owned(),
                            axis: "batch size".to_owned(),
                            unit: "ms".to_owned(),
                            curves: vec![("a".to_owned(), vec![(8.0, 1.0), (64.0, 8.5)])],
                        },
                        SheetChart::Bars {
                            title: "Steps".to_owned(),
                            rows: vec![("a".to_owned(), estimate(3.0), true)],
                        },
                    ],
                    tables: vec![Table {
                        title: "Times".to_owned(),
                        note: String::new(),
                        columns: vec!["case".to_owned(), "ms".to_owned()],
                        rows: vec![vec!["a".to_owned(), "3.0".to_owned()]],
                    }],
                },
            ],
        }
    }

    #[test]
    fn both_forms_tell_the_same_and_nothing_is_loaded() {
        let (html, text) = (sheet().html(), sheet().markdown());
        assert!(html.contains("Speed &lt;of&gt; it") && !html.contains("<script"));
        assert!(html.contains("logarithmic axes") && html.contains("batch size 64: 8.50 ms"));
        assert!(!html.contains("id=\"empty\"") && !html.contains("Nothing"));
        let expected = "# Speed &lt;of> it\n\nTwice as fast.\n\n- Device: cpu\n\n## Times\n\n\
                        In ms | a step.\n\n| case | ms |\n| --- | ---: |\n| a | 3.0 |\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_page_replaces_an_older_one_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.html");
        sheet().write(&path).unwrap();
        sheet().write(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        assert!(sheet().write(&path).unwrap_err().to_string().contains("no page of Firebox"));
    }

    #[test]
    fn nothing_to_draw_is_said() {
        assert!(powers("t", "x", "ms", &[("a".to_owned(), vec![])]).contains("Nothing to draw"));
    }
}
