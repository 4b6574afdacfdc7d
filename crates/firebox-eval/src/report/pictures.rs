//! Pictures without a value axis: masked windows, embeddings, the confusion matrix.

use std::fmt::Write as _;

use super::EmbeddingView;
use super::charts::figure;
use super::plot::{Scale, coordinate, escape, path, range, shortened, words};
use crate::embed::evenly;
use crate::text::{count, grouped, percent, significant};
use crate::{Confusion, MaskedWindow};

const WIDTH: f64 = 460.0;
/// Channels of a masked window that are drawn.
const MOST_CHANNELS: usize = 12;
/// Points of an embedding that are drawn.
const MOST_POINTS: usize = 1500;
/// Classes with a colour of their own; later ones repeat the colours with another mark.
const COLOURS: usize = 9;
/// Classes up to which the confusion matrix is drawn.
const MOST_CLASSES: usize = 24;

/// One masked window, a row for each channel.
pub(super) fn masked_window(window: &MaskedWindow, channels: &[String]) -> String {
    let count = channels.len();
    let steps = window.mask.len();
    if count == 0 || steps == 0 || window.truth.len() != steps * count {
        return String::new();
    }
    let row = if count > 6 { 44.0 } else { 62.0 };
    let shown = count.min(MOST_CHANNELS);
    let (left, right) = (92.0, 10.0);
    let height = row * shown as f64 + 24.0;
    let x = Scale::linear([0.0, (steps.max(2) - 1) as f64], left, WIDTH - right);
    let half = 0.5 * (x.at(1.0) - x.at(0.0));
    let mut body = String::new();
    for (start, end) in runs(&window.mask) {
        let from = (x.at(start as f64) - half).max(left);
        let to = (x.at((end - 1) as f64) + half).min(WIDTH - right);
        let _ = write!(
            body,
            r#"<rect class="mask" x="{}" y="2" width="{}" height="{}"><title>masked: steps {start} to {}</title></rect>"#,
            coordinate(from),
            coordinate(to - from),
            row * shown as f64,
            end - 1
        );
    }
    for (channel, name) in channels.iter().enumerate().take(shown) {
        let top = 2.0 + row * channel as f64;
        body.push_str(&channel_row(window, count, channel, name, &x, [top, row, left]));
    }
    for (value, label) in x.whole_ticks(5) {
        let at = coordinate(x.at(value));
        let y = row * shown as f64 + 16.0;
        let _ = write!(
            body,
            r#"<text class="tick" x="{at}" y="{y}" text-anchor="middle">{label}</text>"#
        );
    }
    let more =
        if count > shown { format!(", first {shown} of {count} channels") } else { String::new() };
    figure(&format!("Window {}{more}", grouped(window.index as f64)), [WIDTH, height], &body, &[])
}

fn channel_row(
    window: &MaskedWindow,
    count: usize,
    channel: usize,
    name: &str,
    x: &Scale,
    [top, row, left]: [f64; 3],
) -> String {
    let truth = |step: usize| f64::from(window.truth[step * count + channel]);
    let model = |step: usize| match window.reconstructed.get(step * count + channel) {
        Some(value) if window.counts(step, count) => f64::from(*value),
        _ => f64::NAN,
    };
    let steps = window.mask.len();
    let masked = (0..steps).filter(|step| window.mask[*step]).map(model);
    let values = range((0..steps).map(truth).chain(masked)).unwrap_or([0.0, 1.0]);
    let y = Scale::linear(values, top + row - 8.0, top + 8.0);
    let line = |steps: std::ops::Range<usize>, of: &dyn Fn(usize) -> f64| {
        path(steps.map(|step| {
            (x.at(step as f64), if of(step).is_finite() { y.at(of(step)) } else { f64::NAN })
        }))
    };
    let mut out = format!(
        r#"<path class="grid" d="M{left} {0}H{1}"/><text class="label" x="{2}" y="{3}" text-anchor="end"><title>{4}</title>{5}</text>"#,
        top + row,
        WIDTH - 10.0,
        left - 8.0,
        top + row / 2.0 + 4.0,
        escape(name),
        escape(&shortened(name, 13))
    );
    let _ = write!(
        out,
        r#"<text class="tick small" x="{0}" y="{1}" text-anchor="end">{2}</text><text class="tick small" x="{0}" y="{3}" text-anchor="end">{4}</text>"#,
        left - 8.0,
        top + 11.0,
        significant(values[1]),
        top + row - 3.0,
        significant(values[0])
    );
    let _ = write!(out, r#"<path class="truth" d="{}"/>"#, line(0..steps, &truth));
    for (start, end) in runs(&window.mask) {
        // The line begins and ends at the visible neighbours, as the model saw them.
        let seen = |step: usize| if window.mask[step] { model(step) } else { truth(step) };
        let range = start.saturating_sub(1)..(end + 1).min(steps);
        let _ = write!(out, r#"<path class="model" d="{}"/>"#, line(range, &seen));
    }
    out
}

/// Runs of masked steps, as half-open ranges.
fn runs(mask: &[bool]) -> Vec<(usize, usize)> {
    let mut out: Vec<(usize, usize)> = Vec::new();
    for (step, _) in mask.iter().enumerate().filter(|(_, masked)| **masked) {
        match out.last_mut() {
            Some((_, end)) if *end == step => *end += 1,
            _ => out.push((step, step + 1)),
        }
    }
    out
}

/// The points of an embedding, coloured by class.
pub(super) fn embedding(view: &EmbeddingView) -> String {
    let points = &view.projection.points;
    let axis = |axis: usize| range(points.iter().map(|point| point[axis]));
    let (Some(xs), Some(ys)) = (axis(0), axis(1)) else { return String::new() };
    let (height, margin) = (370.0, 16.0);
    let x = Scale::linear(xs, margin, WIDTH - margin);
    let y = Scale::linear(ys, height - 28.0, margin);
    let mut groups = vec![String::new(); view.classes.len() + 1];
    let (places, _) = evenly(points.len(), MOST_POINTS);
    let shown = places.len();
    for place in places {
        let point = points[place];
        if !(point[0].is_finite() && point[1].is_finite()) {
            continue;
        }
        let class = view.labels.get(place).copied().flatten().map(|label| label as usize);
        let class = class.filter(|class| *class < view.classes.len());
        let name = class.map_or("no label", |class| view.classes[class].as_str());
        let group = &mut groups[class.map_or(0, |class| class + 1)];
        group.push_str(&mark(
            class.map_or(0, |class| class / COLOURS),
            x.at(point[0]),
            y.at(point[1]),
        ));
        let _ = write!(group, "<title>window {place}: {}</title></path>", escape(name));
    }
    let mut body = format!(
        r#"<rect class="pane" x="1" y="1" width="{}" height="{}" rx="6"/>"#,
        WIDTH - 2.0,
        height - 22.0
    );
    let mut legend = Vec::new();
    for (place, group) in groups.iter().enumerate().filter(|(_, group)| !group.is_empty()) {
        let class = place.checked_sub(1);
        let colour = class_colour(class);
        let _ = write!(body, r#"<g class="points {colour}">{group}</g>"#);
        let shape = class.map_or(0, |class| class / COLOURS % SHAPES);
        legend.push((
            class.map_or("no label", |class| view.classes[class].as_str()),
            format!("{colour} s{shape}"),
        ));
    }
    let _ = write!(
        body,
        r#"<text class="name" x="{}" y="{}" text-anchor="end">first component</text><text class="name" transform="translate(14 {}) rotate(-90)" text-anchor="end">second component</text>"#,
        WIDTH - 4.0,
        height - 6.0,
        8.0
    );
    let legend: Vec<(&str, &str)> =
        legend.iter().map(|(name, class)| (*name, class.as_str())).collect();
    let title = if shown < points.len() {
        format!("{} of {}", grouped(shown as f64), count(points.len(), "held-out window"))
    } else {
        count(shown, "held-out window")
    };
    figure(&title, [WIDTH, height], &body, &legend)
}

/// Shapes of points, which the style sheet has for their keys, too (`s0` to `s4`).
const SHAPES: usize = 5;

/// An open `<path>` element of a point; classes beyond the colours get other shapes.
fn mark(shape: usize, x: f64, y: f64) -> String {
    let outline = match shape % SHAPES {
        0 => "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0",
        1 => "m0 -3.6l3.4 6.2h-6.8z",
        2 => "m-2.7 -2.7h5.4v5.4h-5.4z",
        3 => "m0 -3.8l3.8 3.8l-3.8 3.8l-3.8 -3.8z",
        _ => "m-1.1 -3.6h2.2v2.5h2.5v2.2h-2.5v2.5h-2.2v-2.5h-2.5v-2.2h2.5z",
    };
    format!(r#"<path d="M{} {}{outline}">"#, coordinate(x), coordinate(y))
}

/// The CSS class of a class's colour.
pub(super) fn class_colour(class: Option<usize>) -> String {
    class.map_or_else(|| "cn".to_owned(), |class| format!("c{}", class % COLOURS))
}

/// The confusion matrix as a table; with very many classes, the most frequent confusions.
pub(super) fn confusion(confusion: &Confusion, classes: &[String]) -> String {
    if confusion.classes > MOST_CLASSES || classes.len() != confusion.classes {
        return confusions(confusion, classes);
    }
    // Names that do not fit side by side stand upright.
    let width: usize = classes.iter().map(|name| name.chars().count().clamp(4, 18)).sum();
    let upright = if width > 36 { r#" class="upright""# } else { "" };
    let mut out = String::from(
        r#"<div class="scroll" tabindex="0" role="region" aria-label="Confusion matrix"><table class="confusion"><thead><tr><th scope="col">true \ predicted</th>"#,
    );
    for name in classes {
        let _ = write!(
            out,
            r#"<th scope="col" title="{0}"{upright}><span>{1}</span></th>"#,
            escape(name),
            escape(&shortened(name, 18))
        );
    }
    out.push_str(r#"<th scope="col" class="recall">recall</th></tr></thead><tbody>"#);
    for (truth, name) in classes.iter().enumerate() {
        let row = confusion.row(truth);
        let total: u64 = row.iter().sum();
        let _ = write!(
            out,
            r#"<tr><th scope="row" title="{0}">{1}</th>"#,
            escape(name),
            escape(&shortened(name, 22))
        );
        for (predicted, number) in row.iter().enumerate() {
            let share = *number as f64 / total.max(1) as f64;
            let class = match (truth == predicted, share > 0.5, *number) {
                (_, _, 0) => "zero",
                (true, true, _) => "right strong",
                (true, false, _) => "right",
                (false, true, _) => "wrong strong",
                (false, false, _) => "wrong",
            };
            let _ = write!(
                out,
                r#"<td class="{class}" style="--share:{share:.3}" title="true {0}, predicted {1}: {number}, {2} of the class">{3}</td>"#,
                escape(name),
                escape(&classes[predicted]),
                percent(share),
                grouped(*number as f64)
            );
        }
        let recall =
            if total > 0 { percent(row[truth] as f64 / total as f64) } else { "–".to_owned() };
        let _ = write!(out, r#"<td class="recall">{recall}</td></tr>"#);
    }
    out.push_str("</tbody></table></div>\n");
    out
}

/// The most frequent confusions as a list.
fn confusions(confusion: &Confusion, classes: &[String]) -> String {
    let name =
        |class: usize| classes.get(class).map_or_else(|| class.to_string(), |name| words(name));
    let mut pairs: Vec<(u64, usize, usize)> = (0..confusion.classes)
        .flat_map(|truth| (0..confusion.classes).map(move |predicted| (truth, predicted)))
        .filter(|(truth, predicted)| truth != predicted)
        .map(|(truth, predicted)| (confusion.row(truth)[predicted], truth, predicted))
        .filter(|(number, ..)| *number > 0)
        .collect();
    pairs.sort_by(|a, b| b.0.cmp(&a.0).then(a.cmp(b)));
    let mut out = format!(
        "<p>With {} classes the whole matrix is in <code>scores.json</code>. The most frequent confusions:</p><ol>",
        confusion.classes
    );
    for (number, truth, predicted) in pairs.iter().take(10) {
        let _ = write!(out, "<li>{} taken for {}: {number}</li>", name(*truth), name(*predicted));
    }
    out.push_str("</ol>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_steps_of_a_window_there_is_no_mark() {
        let values = vec![1.0, 2.0, 3.0];
        let window = MaskedWindow {
            truth: values.clone(),
            reconstructed: values,
            mask: vec![false, true, false],
            ..MaskedWindow::default()
        };
        let page = masked_window(&window, &["a".to_owned()]);
        let marks = page.split(r#"text-anchor="middle">"#).skip(1);
        let marks: Vec<_> = marks.filter_map(|mark| mark.split('<').next()).collect();
        assert_eq!(marks, ["0", "1", "2"], "{page}");
    }

    #[test]
    fn of_many_embeddings_some_are_drawn_which_is_told() {
        let view = |windows: usize| EmbeddingView {
            projection: crate::Projection {
                points: (0..windows).map(|at| [at as f64, 0.0]).collect(),
                ..Default::default()
            },
            labels: vec![None; windows],
            classes: vec![],
        };
        for (windows, drawn, title) in [
            (1500, 1500, "\"1,500 held-out windows\""),
            (1501, 1500, "\"1,500 of 1,501 held-out windows\""),
        ] {
            let picture = embedding(&view(windows));
            assert_eq!(picture.matches("<title>window ").count(), drawn);
            assert!(picture.contains(title), "{title}");
        }
    }
}
