//! What every chart stands on: escaping, scales, ticks, paths and buckets.
//!
//! Nothing here lets a number that is not finite into a page.

use std::fmt::Write as _;

/// Text for HTML and SVG, in content and in attributes with double quotes. Control characters,
/// which neither allows, become spaces. All else stays as it is, to be copied.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(character),
            other if other.is_control() => out.push(' '),
            other => out.push(other),
        }
    }
    out
}

/// Characters of a word that a page shows, but for commands and paths between backticks: a longer one would stretch what it
/// stands in. A choice.
const LONGEST_WORD: usize = 100;
/// Characters of a name that are shown where one beside the other has to fit. A choice.
pub(super) const LONGEST_NAME: usize = 60;

/// A name of at most so many characters; of a longer one the middle is left out, for names differ at their ends.
pub(super) fn shortened(name: &str, most: usize) -> String {
    let count = name.chars().count();
    if count <= most {
        return name.to_owned();
    }
    let end = most / 3;
    name.chars().take(most - end - 1).chain(['…']).chain(name.chars().skip(count - end)).collect()
}

/// A name of any length as HTML: what is shown of a longer one than that has all of it as its title.
pub(super) fn name(text: &str, most: usize) -> String {
    match shortened(text, most) {
        same if same == text => escape(text),
        short => format!("<span title=\"{}\">{}</span>", escape(text), escape(&short)),
    }
}

/// Text as HTML, in which words that are too long are shortened as names are.
pub(super) fn words(text: &str) -> String {
    let shown = |word: &str| {
        let own = word.trim_end();
        name(own, LONGEST_WORD) + &escape(&word[own.len()..])
    };
    text.split_inclusive(char::is_whitespace).map(shown).collect()
}

/// A number stays on one line with its percent sign.
fn kept_together(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for part in text.split_inclusive(" %") {
        match part
            .strip_suffix(" %")
            .filter(|number| number.ends_with(|c: char| c.is_ascii_digit()))
        {
            Some(number) => out.extend([number, "\u{a0}%"]),
            None => out.push_str(part),
        }
    }
    out
}

/// The same for running text, in which what stands between backticks is a name, and no line ends between a number and its
/// percent sign. Between backticks a command, which has blanks, and a path are whole, to be copied.
pub(super) fn prose(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    if parts.len().is_multiple_of(2) {
        return kept_together(&words(text));
    }
    let marked = |(place, part): (usize, &&str)| match place % 2 {
        0 => kept_together(&words(part)),
        _ if part.contains([' ', '/', '\\']) => format!("<code>{}</code>", escape(part)),
        _ => format!("<code>{}</code>", name(part, LONGEST_WORD)),
    };
    parts.iter().enumerate().map(marked).collect()
}

/// About how wide a letter is, in ems of a broad face without serifs: what fits by it fits in the others.
fn ems(character: char) -> f64 {
    match character {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '|' | '\'' | ' ' => 0.33,
        'f' | 'r' | 't' | '-' | '/' | '(' | ')' | '[' | ']' => 0.42,
        'm' | 'w' | 'M' | 'W' | '@' | '%' | '\u{1100}'..=char::MAX => 1.0,
        'A'..='Z' => 0.72,
        _ => 0.63,
    }
}

/// About how wide a text is, in ems.
pub(super) fn text_width(text: &str) -> f64 {
    text.chars().map(ems).sum()
}

/// A text that is at most so many ems wide; what is too much is left out of its middle, for names differ at their ends.
pub(super) fn fitted(text: &str, room: f64) -> String {
    if text_width(text) <= room {
        return text.to_owned();
    }
    let characters: Vec<char> = text.chars().collect();
    let (mut begin, mut end) = (0, characters.len());
    let mut left = room - ems('…');
    while begin < end {
        let from_end = characters.len() - end <= begin;
        left -= ems(if from_end { characters[end - 1] } else { characters[begin] });
        if left < 0.0 {
            break;
        }
        if from_end {
            end -= 1;
        } else {
            begin += 1;
        }
    }
    characters[..begin].iter().chain(&['…']).chain(&characters[end..]).collect()
}

/// A coordinate with at most one decimal.
pub(super) fn coordinate(value: f64) -> String {
    if !value.is_finite() {
        return "0".to_owned();
    }
    let text = format!("{value:.1}");
    let text = text.strip_suffix(".0").unwrap_or(&text);
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Maps values to coordinates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    logarithmic: bool,
}

impl Scale {
    /// Maps `low..high` to `from..to`. A range of one value is widened around it.
    pub(super) fn linear([low, high]: [f64; 2], from: f64, to: f64) -> Self {
        let (low, high) = if !(low.is_finite() && high.is_finite()) || low > high {
            (0.0, 1.0)
        } else if high - low <= f64::EPSILON * high.abs().max(low.abs()) {
            let margin = if low == 0.0 { 1.0 } else { 0.5 * low.abs() };
            (low - margin, high + margin)
        } else {
            (low, high)
        };
        Self { low, high, from, to, logarithmic: false }
    }

    /// The same on a logarithmic axis where that shows more: for positive values whose largest is
    /// at least 30 times the smallest.
    pub(super) fn fitting([low, high]: [f64; 2], from: f64, to: f64) -> Self {
        if low > 0.0 && high.is_finite() && high / low >= 30.0 {
            Self { low, high, from, to, logarithmic: true }
        } else {
            Self::with_margin([low, high], from, to)
        }
    }

    /// A linear axis with some room beyond the values, but none below zero if all are above it.
    pub(super) fn with_margin([low, high]: [f64; 2], from: f64, to: f64) -> Self {
        let margin = 0.05 * (high - low);
        let bottom = if low >= 0.0 { (low - margin).max(0.0) } else { low - margin };
        Self::linear([bottom, high + margin], from, to)
    }

    /// The same on a logarithmic axis, for positive values.
    pub(super) fn logarithmic([low, high]: [f64; 2], from: f64, to: f64) -> Self {
        let (low, high) = if high / low > 1.2 { (low, high) } else { (0.5 * low, 2.0 * high) };
        Self { low, high, from, to, logarithmic: true }
    }

    pub(super) fn is_logarithmic(&self) -> bool {
        self.logarithmic
    }

    /// The coordinate of a value, held within the range.
    pub(super) fn at(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + (self.to - self.from) * if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) }
    }

    /// Values worth a mark, about `count` of them, with their labels.
    pub(super) fn ticks(&self, count: usize) -> Vec<(f64, String)> {
        self.ticks_times(count, 1.0)
    }

    /// The same with labels in per cent, without the sign.
    pub(super) fn percent_ticks(&self, count: usize) -> Vec<(f64, String)> {
        self.ticks_times(count, 100.0)
    }

    /// The same of an axis of whole numbers, such as steps, between which there is nothing to mark.
    pub(super) fn whole_ticks(&self, count: usize) -> Vec<(f64, String)> {
        let mut all = self.ticks(count);
        if all.iter().any(|(value, _)| !is_whole(*value)) {
            all.retain(|(value, _)| is_whole(*value));
            for (value, label) in &mut all {
                *value = value.round();
                *label = tick_label(*value, 1.0);
            }
        }
        all
    }

    fn ticks_times(&self, count: usize, unit: f64) -> Vec<(f64, String)> {
        if self.logarithmic {
            let decades = self.high.log10() - self.low.log10();
            let steps: &[f64] = if decades > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let stride = (decades / count.max(1) as f64).ceil().max(1.0) as i32;
            let first = self.low.log10().floor() as i32;
            return (first..=self.high.log10().ceil() as i32)
                .filter(|decade| (decade - first) % stride == 0)
                .flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)))
                .filter(|value| (self.low * 0.999..=self.high * 1.001).contains(value))
                .map(|value| (value, tick_label(unit * value, unit * value)))
                .collect();
        }
        let step = nice_step((self.high - self.low) / count.max(1) as f64);
        let first = (self.low / step - 1e-9).ceil();
        let last = (self.high / step + 1e-9).floor();
        let marks = (last - first).clamp(0.0, 50.0) as usize;
        (0..=marks)
            .map(|place| (first + place as f64) * step)
            .map(|value| (value, tick_label(unit * value, unit * step)))
            .collect()
    }
}

/// Whether a number is whole but for rounding: 100 · 0.07 is.
pub(super) fn is_whole(value: f64) -> bool {
    (value - value.round()).abs() <= 1e-9
}

/// The smallest of 1, 2, 2.5 and 5 times a power of ten that is not below `rough`.
fn nice_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|step| step * power >= rough * 0.9999);
    step.unwrap_or(10.0) * power
}

/// A label with the decimals that tell it from the next tick.
fn tick_label(value: f64, step: f64) -> String {
    let size = value.abs().max(step.abs());
    if value.abs() < step * 1e-6 {
        return "0".to_owned();
    }
    if !(1e-4..1e7).contains(&size) {
        // As many digits as tell it from the next one, and one more for a step of 2.5.
        let digits = (value.abs().log10().floor() - step.abs().log10().floor()).max(0.0) as usize;
        let text = format!("{value:.*e}", digits.min(15) + 1);
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
        return format!("{mantissa}e{exponent}").replace('-', "\u{2212}");
    }
    if size >= 1e4 && step >= 1000.0 {
        let thousands = crate::text::number(value / 1000.0, usize::from(step % 1000.0 != 0.0));
        return format!("{thousands}k");
    }
    let mut decimals = (-step.abs().log10().floor()).max(0.0) as usize;
    // A step of 2.5, 0.25, … needs one more digit than its power of ten says.
    let shown = (step.abs() * 10f64.powi(decimals as i32)).fract();
    if shown > 1e-6 && shown < 1.0 - 1e-6 {
        decimals += 1;
    }
    crate::text::number(value, decimals)
}

/// The smallest and largest of the finite values.
pub(super) fn range(values: impl Iterator<Item = f64>) -> Option<[f64; 2]> {
    values.filter(|value| value.is_finite()).fold(None, |range, value| match range {
        None => Some([value, value]),
        Some([low, high]) => Some([low.min(value), high.max(value)]),
    })
}

/// Path data through points; broken where a coordinate is not finite.
pub(super) fn path(points: impl IntoIterator<Item = (f64, f64)>) -> String {
    let mut out = String::new();
    let mut pen = 'M';
    for (x, y) in points {
        if x.is_finite() && y.is_finite() {
            let _ = write!(out, "{pen}{} {}", coordinate(x), coordinate(y));
            pen = 'L';
        } else {
            pen = 'M';
        }
    }
    out
}

/// Consecutive points seen as one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bucket {
    /// First and last position.
    pub(super) x: [f64; 2],
    pub(super) mean: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Bucket {
    /// Where it is drawn.
    pub(super) fn middle(&self) -> f64 {
        (self.x[0] + self.x[1]) / 2.0
    }
}

/// At most `most` buckets of about equally many consecutive points. Values that are not finite are
/// left out; a bucket of nothing else is dropped.
pub(super) fn buckets(points: &[(f64, f64)], most: usize) -> Vec<Bucket> {
    let size = points.len().div_ceil(most.max(1)).max(1);
    let mut out = Vec::new();
    for chunk in points.chunks(size) {
        let values = || chunk.iter().map(|point| point.1).filter(|value| value.is_finite());
        if let (Some([low, high]), [first, ..], [.., last]) = (range(values()), chunk, chunk) {
            let mean = values().sum::<f64>() / values().count() as f64;
            out.push(Bucket { x: [first.0, last.0], mean, low, high });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale, count: usize) -> Vec<String> {
        scale.ticks(count).into_iter().map(|tick| tick.1).collect()
    }

    #[test]
    fn ticks_are_sensible_numbers() {
        let check = |range, count, expected: &[&str]| {
            assert_eq!(labels(Scale::linear(range, 0.0, 1.0), count), expected);
        };
        check([0.0, 1.0], 5, &["0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        check([0.0, 1.0], 4, &["0", "0.25", "0.50", "0.75", "1.00"]);
        check([-3.2, 4.1], 4, &["−2", "0", "2", "4"]);
        check([0.0, 250_000.0], 5, &["0", "50k", "100k", "150k", "200k", "250k"]);
        check([0.0, 0.001], 2, &["0", "0.0005", "0.0010"]);
        check([0.0, 3e-6], 3, &["0", "1e−6", "2e−6", "3e−6"]);
        check([997e6, 1003e6], 3, &["9.98e8", "1e9", "1.002e9"]);
        check([-5e7, 5e7], 4, &["−5e7", "−2.5e7", "0", "2.5e7", "5e7"]);
        let shares = Scale::linear([0.91, 1.0], 0.0, 1.0).percent_ticks(4);
        let shares: Vec<String> = shares.into_iter().map(|tick| tick.1).collect();
        assert_eq!(shares, ["92.5", "95.0", "97.5", "100.0"]);
        let whole = |range| -> Vec<String> {
            let ticks = Scale::linear(range, 0.0, 1.0).whole_ticks(5);
            ticks.into_iter().map(|tick| tick.1).collect()
        };
        assert_eq!(whole([0.0, 12.0]), ["0", "5", "10"]);
        assert_eq!(whole([1.0, 3.0]), ["1", "2", "3"]);
        // A fifth fifteen times is a little more than three.
        let places = Scale::linear([2.0, 3.0], 0.0, 1.0).whole_ticks(5);
        assert_eq!(places.iter().map(|tick| tick.0).collect::<Vec<_>>(), [2.0, 3.0]);
        assert!(is_whole(100.0 * 0.07) && is_whole(6.999_999_999_999) && !is_whole(0.1));
        check([5.0, 5.0], 2, &["2.5", "5.0", "7.5"]);
        check([f64::NAN, 1.0], 2, &["0", "0.5", "1.0"]);
    }

    #[test]
    fn names_in_running_text_are_marked() {
        assert_eq!(prose("of `a<b` and `c`"), "of <code>a&lt;b</code> and <code>c</code>");
        assert_eq!(prose("one ` alone"), "one ` alone");
        assert_eq!(prose(""), "");
    }

    #[test]
    fn logarithmic_axes_appear_for_wide_positive_ranges_only() {
        let wide = Scale::fitting([0.01, 10.0], 0.0, 100.0);
        assert!(wide.is_logarithmic() && (wide.at(1.0) - 200.0 / 3.0).abs() < 1e-9);
        assert_eq!(labels(wide, 4), ["0.01", "0.1", "1", "10"]);
        assert!(!Scale::fitting([0.0, 10.0], 0.0, 1.0).is_logarithmic());
        assert!(!Scale::fitting([0.5, 1.0], 0.0, 1.0).is_logarithmic());
        assert_eq!(wide.at(f64::NAN), 0.0);
    }

    #[test]
    fn paths_break_at_what_is_not_finite() {
        let points = [(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.04), (3.0, f64::INFINITY), (4.0, -0.01)];
        assert_eq!(path(points), "M0 1M2 3M4 0");
        assert_eq!(path([]), "");
    }

    #[test]
    fn buckets_keep_extremes_and_drop_what_is_not_finite() {
        let points: Vec<(f64, f64)> =
            (0..1000).map(|i| (f64::from(i), f64::from(i % 10))).collect();
        let all = buckets(&points, 100);
        assert_eq!(all.len(), 100);
        assert!(all.iter().all(|b| (b.low, b.high, b.mean) == (0.0, 9.0, 4.5)));
        assert_eq!(buckets(&[(0.0, f64::NAN), (1.0, 2.0)], 10).len(), 1);
        assert_eq!(buckets(&[], 10), []);
    }

    #[test]
    fn names_that_are_too_long_lose_their_middle() {
        let check = |text: &str, room: f64, expected: &str| {
            assert_eq!(fitted(text, room), expected);
            assert!(text_width(expected) <= room.max(1.0), "{expected}");
        };
        check("pretrain-61f0299b8e3d", 14.0, "pretrain-61f0299b8e3d");
        check("aaaabbbbcccc", 6.0, "aaa…cccc");
        check("数据数据数据", 5.0, "数据…数据");
        check("", 0.0, "");
        check("long", 0.0, "…");
        let long = "a_very_long_pipeline_file_name_for_the_experiment-30277f27dd30";
        let short = fitted(long, 19.0);
        assert!(short.starts_with("a_very_") && short.ends_with("-30277f27dd30"), "{short}");
    }

    #[test]
    fn names_of_any_length_are_shown_in_part_and_told_in_full() {
        assert_eq!(name("a<b", 60), "a&lt;b");
        // Of 62 characters 39 and 20.
        let long = format!("<{}>", "a".repeat(60));
        let [all, begin, end] = [60, 38, 19].map(|count| "a".repeat(count));
        let expected = format!("<span title=\"&lt;{all}&gt;\">&lt;{begin}…{end}&gt;</span>");
        assert_eq!(name(&long, 60), expected);
        // In running text they are so much longer, and what stands beside them stays.
        assert_eq!(words(&format!("of {long} and\nb")), format!("of {} and\nb", escape(&long)));
        let [long, begin, end] = [101, 66, 33].map(|count| "n".repeat(count));
        let short = format!("<span title=\"{long}\">{begin}…{end}</span>");
        let said = prose(&format!("4 % of `{long}` and {long}, by `run --of {long}`"));
        let begins = format!("4\u{a0}% of <code>{short}</code> and <span title=\"{long},\">");
        assert!(said.starts_with(&begins), "{said}");
        assert!(said.ends_with(&format!("by <code>run --of {long}</code>")), "{said}");
    }

    #[test]
    fn escaping_covers_markup_quotes_and_control_characters() {
        assert_eq!(escape("<a b=\"c\">&'\u{0}"), "&lt;a b=&quot;c&quot;&gt;&amp;&#39; ");
        // What is copied from a page is what was written.
        assert_eq!(escape("humidity % 4 %"), "humidity % 4 %");
        assert_eq!(prose("4 % of `4 %` of a % b"), "4\u{a0}% of <code>4 %</code> of a % b");
    }
}
