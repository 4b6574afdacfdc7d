//! Parts of a report that a kind of run brings along itself: charts and tables under a heading.
//! Their meaning is the run's; this file only says what they are made of, and draws them.

use serde::{Deserialize, Serialize};

use super::Table;
use super::charts::{Curve, CurveChart, IntervalRow, curve_chart, interval_chart};
use super::compare::COLOURS;
use super::html::table;
use super::plot::prose;
use crate::Estimate;
use crate::text::{percent, significant};

/// Charts and tables under a heading, shown before everything else.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Heading.
    pub title: String,
    /// What it says, in a sentence or two; may be empty.
    pub lead: String,
    /// Charts, side by side where there is room.
    pub charts: Vec<Chart>,
    /// Tables below them.
    pub tables: Vec<Table>,
}

/// A chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Chart {
    /// Curves over a common axis.
    Lines {
        /// What is drawn.
        title: String,
        /// Name of the horizontal axis, with its unit.
        axis: String,
        /// Name of the vertical axis, with its unit.
        value: String,
        /// The curves; those after the ninth share the last colour.
        lines: Vec<Line>,
    },
    /// Values with their intervals, one below the other.
    Intervals {
        /// What is drawn.
        title: String,
        /// The values.
        rows: Vec<Interval>,
        /// Whether they are shares, written as percentages.
        share: bool,
        /// Whether zero belongs to the axis, as for errors.
        from_zero: bool,
    },
}

/// A curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Name.
    pub name: String,
    /// Points by their horizontal value. Those that are not finite are left out.
    pub points: Vec<(f64, f64)>,
}

/// A value with its interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// What was measured.
    pub name: String,
    /// Its value.
    pub estimate: Estimate,
    /// Whether it is the one that the others are compared with.
    pub own: bool,
}

/// A number to see at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// What it is.
    pub title: String,
    /// The number, with its unit.
    pub value: String,
    /// Short lines below it.
    pub notes: Vec<String>,
    /// How it is coloured.
    pub tone: Tone,
}

/// What a number means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tone {
    /// Nothing by itself.
    #[default]
    Neutral,
    /// What was hoped for.
    Good,
    /// The contrary.
    Bad,
    /// It cannot be told.
    Open,
}

impl Tone {
    /// Its CSS class.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Neutral => "",
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Open => "open",
        }
    }
}

impl Part {
    /// The part as HTML, without its heading.
    pub(super) fn html(&self) -> String {
        let mut out = String::new();
        if !self.lead.is_empty() {
            out += &format!("<p class=\"lead\">{}</p>\n", prose(&self.lead));
        }
        if !self.charts.is_empty() {
            let charts: String = self.charts.iter().map(Chart::html).collect();
            out += &format!("<div class=\"grid\">{charts}</div>\n");
        }
        // One table needs no heading but that of its part.
        let heading = self.tables.len() > 1;
        self.tables.iter().for_each(|one| out += &table(one, heading));
        out
    }
}

impl Chart {
    pub(super) fn html(&self) -> String {
        match self {
            Self::Lines { title, axis, value, lines } => {
                let curves = lines.iter().enumerate().map(|(place, line)| Curve {
                    name: &line.name,
                    class: COLOURS[place.min(COLOURS.len() - 1)],
                    points: finite(&line.points),
                    dots: line.points.len() <= 40,
                });
                let curves = curves.collect();
                curve_chart(&CurveChart { title, axis, value, curves, wide: false, level: None })
            }
            Self::Intervals { title, rows, share, from_zero } => {
                let rows: Vec<IntervalRow> = rows
                    .iter()
                    .map(|row| IntervalRow {
                        label: row.name.clone(),
                        estimate: row.estimate,
                        own: row.own,
                    })
                    .collect();
                let format = if *share { percent } else { significant };
                interval_chart(title, &rows, *from_zero, format)
            }
        }
    }
}

fn finite(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_draws_its_charts_and_leaves_out_what_is_not_finite() {
        let estimate = Estimate { value: 0.5, low: 0.4, high: 0.6 };
        let part = Part {
            title: "Errors".to_owned(),
            lead: "A & B".to_owned(),
            charts: vec![
                Chart::Lines {
                    title: "By horizon".to_owned(),
                    axis: "hours ahead".to_owned(),
                    value: "error".to_owned(),
                    lines: vec![Line {
                        name: "model".to_owned(),
                        points: vec![(1.0, 2.0), (2.0, f64::NAN), (3.0, 4.0)],
                    }],
                },
                Chart::Intervals {
                    title: "All".to_owned(),
                    rows: vec![Interval { name: "model".to_owned(), estimate, own: true }],
                    share: true,
                    from_zero: false,
                },
            ],
            tables: vec![],
        };
        let html = part.html();
        assert!(html.contains("A &amp; B") && html.contains("hours ahead"), "{html}");
        assert!(!html.contains("NaN") && html.matches("<svg").count() == 2, "{html}");
        assert!(html.contains("50.0 %") || html.contains("50.0\u{a0}%"), "{html}");
    }
}
