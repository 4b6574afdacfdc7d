//! Charts with axes: curves over steps, and scores with their intervals.

use std::fmt::Write as _;

use super::plot::{
    Bucket, Scale, buckets, coordinate, escape, fitted, is_whole, path, range, text_width, words,
};
use crate::Estimate;
use crate::text::{grouped, significant};

pub(super) const WIDTH: f64 = 460.0;
pub(super) const HEIGHT: f64 = 250.0;
pub(super) const LEFT: f64 = 58.0;
pub(super) const RIGHT: f64 = 14.0;
pub(super) const TOP: f64 = 10.0;
pub(super) const BOTTOM: f64 = 38.0;
/// Points of a curve that a page shows; more are drawn as a mean with its range.
const MOST_POINTS: usize = 160;

/// A curve of a chart.
pub(super) struct Curve<'a> {
    pub(super) name: &'a str,
    /// CSS class that gives it its colour.
    pub(super) class: &'a str,
    pub(super) points: Vec<(f64, f64)>,
    /// Whether the points themselves are marked.
    pub(super) dots: bool,
}

/// Curves over a common axis, such as optimizer steps.
pub(super) struct CurveChart<'a> {
    pub(super) title: &'a str,
    /// Name of the horizontal axis.
    pub(super) axis: &'a str,
    pub(super) value: &'a str,
    pub(super) curves: Vec<Curve<'a>>,
    /// Whether values that differ much stand on a logarithmic axis, as losses do; what is measured on
    /// the data stays on a linear one.
    pub(super) wide: bool,
    /// A value marked over the whole width, with its name.
    pub(super) level: Option<(f64, &'a str)>,
}

/// Draws a chart, or says that there is nothing to draw.
pub(super) fn curve_chart(chart: &CurveChart<'_>) -> String {
    let drawn: Vec<(&Curve<'_>, Vec<Bucket>)> = chart
        .curves
        .iter()
        .map(|curve| (curve, buckets(&curve.points, MOST_POINTS)))
        .filter(|(_, buckets)| !buckets.is_empty())
        .collect();
    let all = || drawn.iter().flat_map(|(_, buckets)| buckets);
    let (Some(x_range), Some(y_range)) = (
        range(all().flat_map(|bucket| bucket.x)),
        range(all().flat_map(|bucket| [bucket.low, bucket.high])),
    ) else {
        return nothing(chart.title);
    };
    // A level far from every value would flatten the curve: it is then told in words only.
    let [low, high] = y_range;
    let is_near = |level: f64| {
        let far_below = match chart.wide && level > 0.0 {
            true => low / 100.0,
            false => low - 2.0 * (high - low),
        };
        (far_below..=3.0 * high).contains(&level)
    };
    let level = chart.level.filter(|(level, _)| is_near(*level));
    let y_range = level.map_or(y_range, |(level, _)| [low.min(level), high.max(level)]);
    let x = Scale::linear(x_range, LEFT, WIDTH - RIGHT);
    let y = match chart.wide {
        true => Scale::fitting(y_range, HEIGHT - BOTTOM, TOP),
        false => Scale::with_margin(y_range, HEIGHT - BOTTOM, TOP),
    };
    let whole = all().flat_map(|bucket| bucket.x).all(is_whole);
    let marks = if whole { x.whole_ticks(5) } else { x.ticks(5) };
    let mut body = axes_with(&marks, &x, &y, chart.axis);
    if let Some((value, name)) = level {
        let at = coordinate(y.at(value));
        let _ = write!(
            body,
            r#"<path class="level" d="M{LEFT} {at}H{}"/><text class="tick" x="{}" y="{}" text-anchor="end">{}</text>"#,
            WIDTH - RIGHT,
            WIDTH - RIGHT - 2.0,
            coordinate(y.at(value) - 4.0),
            escape(name)
        );
    }
    for (curve, buckets) in &drawn {
        body.push_str(&draw_curve(curve, buckets, &x, &y));
    }
    body.push_str(&tooltips(chart, &drawn, &x));
    let legend: Vec<(&str, &str)> = if drawn.len() > 1 {
        drawn.iter().map(|(c, _)| (c.name, c.class)).collect()
    } else {
        vec![]
    };
    let scale = if y.is_logarithmic() { ", logarithmic axis" } else { "" };
    let banded = all().any(|bucket| bucket.high > bucket.low);
    let band = if banded { ", mean and range" } else { "" };
    figure(&format!("{}{band}{scale}", chart.title), [WIDTH, HEIGHT], &body, &legend)
}

fn draw_curve(curve: &Curve<'_>, buckets: &[Bucket], x: &Scale, y: &Scale) -> String {
    let mut out = format!(r#"<g class="{}">"#, curve.class);
    let middle = |bucket: &Bucket| x.at(bucket.middle());
    if buckets.iter().any(|bucket| bucket.high > bucket.low) {
        let upper = buckets.iter().map(|bucket| (middle(bucket), y.at(bucket.high)));
        let lower = buckets.iter().rev().map(|bucket| (middle(bucket), y.at(bucket.low)));
        let _ = write!(out, r#"<path class="band" d="{}Z"/>"#, path(upper.chain(lower)));
    }
    let line = path(buckets.iter().map(|bucket| (middle(bucket), y.at(bucket.mean))));
    let _ = write!(out, r#"<path class="curve" d="{line}"/>"#);
    if curve.dots || buckets.len() == 1 {
        for bucket in buckets {
            let (x, y) = (coordinate(middle(bucket)), coordinate(y.at(bucket.mean)));
            let _ = write!(out, r#"<circle cx="{x}" cy="{y}" r="2.6"/>"#);
        }
    }
    out.push_str("</g>");
    out
}

/// Invisible strips, each about the points of some curve, that tell what is below the pointer.
fn tooltips(chart: &CurveChart<'_>, drawn: &[(&Curve<'_>, Vec<Bucket>)], x: &Scale) -> String {
    let ends = |(_, buckets): &(_, Vec<Bucket>)| buckets.last().copied();
    let ends: Vec<Bucket> = drawn.iter().filter_map(ends).collect();
    let mut all: Vec<&Bucket> = drawn.iter().flat_map(|(_, buckets)| buckets).collect();
    all.sort_by(|a, b| a.middle().total_cmp(&b.middle()));
    // No more strips than a pointer can tell apart, but one at the end of each curve.
    let apart = 0.9 * (WIDTH - RIGHT - LEFT) / MOST_POINTS as f64;
    let mut places: Vec<&Bucket> = vec![];
    for place in all {
        let before = places.last().map(|before| x.at(place.middle()) - x.at(before.middle()));
        if before.is_some_and(|distance| distance <= apart) {
            if !ends.contains(place) || places.last().is_some_and(|before| before.x == place.x) {
                continue;
            }
            if places.last().is_some_and(|before| !ends.contains(before)) {
                places.pop();
            }
        }
        places.push(place);
    }
    let between = |pair: [&Bucket; 2]| (x.at(pair[0].middle()) + x.at(pair[1].middle())) / 2.0;
    let mut out = String::from(r#"<g class="hit">"#);
    for (place, bucket) in places.iter().enumerate() {
        let left = place.checked_sub(1).map_or(LEFT, |before| between([places[before], bucket]));
        let right = places.get(place + 1).map_or(WIDTH - RIGHT, |next| between([bucket, next]));
        let mut text = format!("{} {}", chart.axis, of_steps(bucket));
        for (curve, buckets) in drawn {
            // A curve with fewer points tells the latest one, and one that has ended nothing.
            let has_ended = buckets.last().is_none_or(|last| last.x[1] < bucket.x[0]);
            let own = buckets.iter().rev().find(|own| own.x[0] <= bucket.x[1]);
            if let Some(own) = own.filter(|_| !has_ended) {
                let name = if drawn.len() > 1 { curve.name } else { chart.value };
                let _ = write!(text, "\n{name} {}", significant(own.mean));
                if own.high > own.low {
                    let _ =
                        write!(text, " ({} to {})", significant(own.low), significant(own.high));
                }
                if own.x[1] < bucket.x[0] {
                    let _ = write!(text, ", of {}", of_steps(own));
                }
            }
        }
        let _ = write!(
            out,
            r#"<rect x="{}" y="{TOP}" width="{}" height="{}"><title>{}</title></rect>"#,
            coordinate(left),
            coordinate((right - left).max(1.0)),
            HEIGHT - TOP - BOTTOM,
            escape(&text)
        );
    }
    out.push_str("</g>");
    out
}

/// `7`, or `7 to 9`; places that are no whole numbers, such as shares of the labels, as `0.100`.
fn of_steps(bucket: &Bucket) -> String {
    let [first, last] = bucket.x;
    let place = |value: f64| if is_whole(value) { grouped(value) } else { significant(value) };
    match last > first {
        true => format!("{} to {}", place(first), place(last)),
        false => place(first),
    }
}

/// Both axes with grid and ticks. What the vertical one measures, the title says.
pub(super) fn axes(x: &Scale, y: &Scale, x_name: &str) -> String {
    axes_with(&x.ticks(5), x, y, x_name)
}

/// The same with given marks of the horizontal axis.
pub(super) fn axes_with(marks: &[(f64, String)], x: &Scale, y: &Scale, x_name: &str) -> String {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    let mut out = String::new();
    for (value, label) in y.ticks(5) {
        let at = y.at(value);
        let _ = write!(
            out,
            r#"<path class="grid" d="M{LEFT} {0}H{right}"/><text class="tick" x="{1}" y="{2}" text-anchor="end">{label}</text>"#,
            coordinate(at),
            LEFT - 6.0,
            coordinate(at + 3.5)
        );
    }
    for (value, label) in marks {
        let (at, label) = (coordinate(x.at(*value)), escape(label));
        let _ = write!(
            out,
            r#"<path class="axis" d="M{at} {bottom}v4"/><text class="tick" x="{at}" y="{}" text-anchor="middle">{label}</text>"#,
            bottom + 16.0
        );
    }
    let _ = write!(
        out,
        r#"<path class="axis" d="M{LEFT} {bottom}H{right}"/><text class="name" x="{right}" y="{}" text-anchor="end">{}</text>"#,
        HEIGHT - 6.0,
        escape(x_name)
    );
    out
}

/// A row of a chart of intervals.
pub(super) struct IntervalRow {
    pub(super) label: String,
    pub(super) estimate: Estimate,
    /// The row that the others are compared with.
    pub(super) own: bool,
}

/// Values with whiskers, one below the other. With `from_zero` as bars, otherwise as dots.
pub(super) fn interval_chart(
    title: &str,
    rows: &[IntervalRow],
    from_zero: bool,
    format: fn(f64) -> String,
) -> String {
    /// Room for labels: what short ones have, and the most that long ones get.
    const LABELS: [f64; 2] = [178.0, 238.0];
    /// What of it stays free beside them.
    const FREE: f64 = 8.0;
    /// Size of their letters, which a narrow window makes larger.
    const LETTERS: f64 = 12.0;
    const ROW: f64 = 27.0;
    let ends =
        rows.iter().flat_map(|row| [row.estimate.low, row.estimate.high, row.estimate.value]);
    let Some([low, high]) = range(ends) else { return nothing(title) };
    let margin = 0.04 * (high - low);
    let low = if from_zero { low.min(0.0) } else { low - margin };
    let longest = rows.iter().map(|row| text_width(&row.label)).fold(0.0, f64::max);
    let labels = (LETTERS * longest + FREE).clamp(LABELS[0], LABELS[1]);
    let x = Scale::linear([low, high + margin], labels, WIDTH - RIGHT);
    let height = ROW * rows.len() as f64 + 30.0;
    let bottom = height - 24.0;
    let mut body = String::new();
    let shares = format(0.5).ends_with('%');
    for (value, label) in if shares { x.percent_ticks(4) } else { x.ticks(4) } {
        let at = coordinate(x.at(value));
        let label = if shares { label + " %" } else { label };
        let _ = write!(
            body,
            r#"<path class="grid" d="M{at} 4V{bottom}"/><text class="tick" x="{at}" y="{}" text-anchor="middle">{label}</text>"#,
            bottom + 16.0
        );
    }
    for (place, row) in rows.iter().enumerate() {
        let middle = 4.0 + ROW * (place as f64 + 0.5);
        let value = row.estimate.value;
        let class = if row.own { "own" } else { "other" };
        let title = format!("{}: {}", row.label, row.estimate.with_interval(format));
        let _ = write!(
            body,
            r#"<g class="{class}"><title>{}</title><text class="label" x="{}" y="{}" text-anchor="end">{}</text>"#,
            escape(&title),
            coordinate(labels - FREE),
            middle + 4.0,
            escape(&fitted(&row.label, (labels - FREE) / LETTERS))
        );
        if from_zero && value.is_finite() {
            let (start, end) = (x.at(0.0), x.at(value));
            let _ = write!(
                body,
                r#"<rect x="{}" y="{}" width="{}" height="13" rx="2"/>"#,
                coordinate(start.min(end)),
                middle - 6.5,
                coordinate((end - start).abs().max(0.5))
            );
        }
        body.push_str(&whisker(&row.estimate, &x, middle));
        if !from_zero && value.is_finite() {
            let _ =
                write!(body, r#"<circle cx="{}" cy="{middle}" r="4.5"/>"#, coordinate(x.at(value)));
        }
        body.push_str("</g>");
    }
    figure(title, [WIDTH, height], &body, &[])
}

/// The line of an interval, with a cap at each end. One that is infinite lies beyond the chart: the line has no end
/// there.
fn whisker(estimate: &Estimate, x: &Scale, middle: f64) -> String {
    let Estimate { low, high, .. } = *estimate;
    if !estimate.has_interval() || (low == high && low.is_infinite()) {
        return String::new();
    }
    let line = format!("M{} {middle}H{}", coordinate(x.at(low)), coordinate(x.at(high)));
    let cap = |end: &f64| format!("M{} {}v8", coordinate(x.at(*end)), middle - 4.0);
    let caps: String = [low, high].iter().filter(|end| end.is_finite()).map(cap).collect();
    format!(r#"<path class="whisker" d="{line}{caps}"/>"#)
}

/// A figure with its caption and legend.
pub(super) fn figure(
    title: &str,
    [width, height]: [f64; 2],
    body: &str,
    legend: &[(&str, &str)],
) -> String {
    let mut keys = String::new();
    if !legend.is_empty() {
        keys.push_str(r#"<ul class="legend">"#);
        for (name, class) in legend {
            let _ = write!(keys, r#"<li class="{class}"><i></i>{}</li>"#, words(name));
        }
        keys.push_str("</ul>");
    }
    format!(
        "<figure><figcaption>{}</figcaption>{keys}<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">{body}</svg></figure>\n",
        words(title),
        coordinate(width),
        coordinate(height),
        escape(title)
    )
}

pub(super) fn nothing(title: &str) -> String {
    let title = words(title);
    format!(
        "<figure><figcaption>{title}</figcaption><p class=\"none\">Nothing to draw.</p></figure>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_curve_tells_its_points_and_nothing_after_its_end() {
        let curve = |name, last: u32| Curve {
            name,
            class: "c0",
            points: (1..=last).map(|step| (f64::from(step), f64::from(1000 + step))).collect(),
            dots: false,
        };
        // The longest has more points than are drawn, and a short last bucket.
        let (few, many) = (14, 309);
        let chart = CurveChart {
            title: "loss",
            axis: "step",
            value: "loss",
            curves: vec![curve("few", few), curve("many", many)],
            wide: true,
            level: None,
        };
        let page = curve_chart(&chart);
        let told: Vec<&str> = page.split("<title>").skip(1).collect();
        let of = |step: u32| {
            let step = |text: &&&str| {
                text.starts_with(&format!("step {step}\n"))
                    || text.contains(&format!(" to {step}\n"))
            };
            told.iter().find(step).copied().unwrap_or_default()
        };
        assert!(of(few).contains("few 1,014"), "{page}");
        assert!(of(many).contains("many 1,309") && !of(many).contains("few"), "{page}");
        assert!(told.len() > 150 && told.len() < 200, "{}", told.len());
        // Strips lie side by side.
        let number = |text: &str, name: &str| -> f64 {
            let from = text.split_once(name).unwrap().1;
            from.split_once('"').unwrap().0.parse().unwrap()
        };
        let strips: Vec<&str> = page.split("<rect ").skip(1).collect();
        for pair in strips.windows(2) {
            let [left, right] = [pair[0], pair[1]].map(|one| number(one, "x=\""));
            let width = number(pair[0], "width=\"");
            assert!((left + width - right).abs() < 1.2, "{left} {width} {right}");
        }
    }

    #[test]
    fn a_value_without_an_interval_has_no_whisker() {
        for from_zero in [true, false] {
            let estimate = Estimate { value: 0.5, low: f64::NAN, high: f64::NAN };
            let row = IntervalRow { label: "model".to_owned(), estimate, own: true };
            let chart = interval_chart("Error", &[row], from_zero, significant);
            assert!(chart.contains("<title>model: 0.500</title>"), "{chart}");
            assert!(!chart.contains("whisker") && !chart.contains("NaN"), "{chart}");
        }
    }

    #[test]
    fn what_is_infinite_is_not_drawn_as_if_it_lay_at_the_edge() {
        let row = |label: &str, value, low, high| IntervalRow {
            label: label.to_owned(),
            estimate: Estimate { value, low, high },
            own: false,
        };
        let chart = |value: f64, from_zero| {
            let rows = [row("a", 0.5, 0.4, 0.6), row("b", value, value, 0.7)];
            interval_chart("R2", &rows, from_zero, significant)
        };
        for from_zero in [true, false] {
            let mark = if from_zero { "<rect " } else { "<circle " };
            for (value, told) in [(f64::NEG_INFINITY, "b: −∞ (−∞ to 0.700)"), (0.45, "b: 0.450")]
            {
                let page = chart(value, from_zero);
                let marks = 1 + usize::from(value.is_finite());
                assert_eq!(page.matches(mark).count(), marks, "{page}");
                assert_eq!(page.matches("v8").count(), 2 + marks, "{page}");
                assert_eq!(page.matches("whisker").count(), 2, "{page}");
                assert!(page.contains(told), "{page}");
            }
            let page = chart(f64::NAN, from_zero);
            assert_eq!(page.matches(mark).count(), 1, "{page}");
            assert!(page.contains("<title>b: unknown</title>"), "{page}");
        }
    }

    #[test]
    fn places_between_whole_numbers_are_told_as_they_are() {
        let bucket = |first, last| Bucket { x: [first, last], mean: 0.0, low: 0.0, high: 0.0 };
        assert_eq!(of_steps(&bucket(0.1, 0.1)), "0.100");
        assert_eq!(of_steps(&bucket(100.0 * 0.07, 1200.0)), "7 to 1,200");
        assert_eq!(of_steps(&bucket(2.0, 2.0)), "2");
        let chart = |first: f64| {
            let points = vec![(first, 1.0), (8.0, 2.0)];
            let curves = vec![Curve { name: "a", class: "c0", points, dots: false }];
            let (title, axis, value) = ("accuracy", "labels, %", "accuracy");
            curve_chart(&CurveChart { title, axis, value, curves, wide: false, level: None })
        };
        assert!(chart(0.1).contains("labels, % 0.100\n"), "{}", chart(0.1));
        // Whole numbers but for rounding have marks at whole numbers.
        assert!(!chart(100.0 * 0.07).contains(">7.2</text>"), "{}", chart(100.0 * 0.07));
    }

    #[test]
    fn a_long_label_loses_its_middle_and_is_whole_below_the_pointer() {
        let chart = |name: &str| {
            let estimate = Estimate { value: 0.5, low: 0.4, high: 0.6 };
            let row = IntervalRow { label: name.to_owned(), estimate, own: false };
            interval_chart("Test loss", &[row], true, significant)
        };
        let short = chart("pretrain-61f02");
        assert!(short.contains(r#"x="170" y="21.5" text-anchor="end">pretrain-61f02</text>"#));
        let name = "a_very_long_pipeline_file_name_for_the_experiment-30277f27dd30";
        let long = chart(name);
        assert!(long.contains(&format!("<title>{name}: ")), "{long}");
        assert!(long.contains(r#"x="230" y="21.5" text-anchor="end">a_very_"#), "{long}");
        assert!(long.contains("…") && long.contains("-30277f27dd30</text>"), "{long}");
    }
}
