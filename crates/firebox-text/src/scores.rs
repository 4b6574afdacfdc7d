//! Scores of multi-label answers and of evidence, from plain rows.
//!
//! F1 here is 2·TP / (2·TP + FP + FN) of a label, never a share of right cells. Where a label neither
//! holds nor is predicted anywhere, precision, recall and F1 are 0, as scikit-learn's are by default.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Precision, recall and F1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LabelScore {
    /// Share of the predictions that hold.
    pub precision: f64,
    /// Share of what holds that was predicted.
    pub recall: f64,
    /// Their harmonic mean.
    pub f1: f64,
    /// Texts in which the label holds.
    pub support: usize,
    /// Texts in which it is predicted.
    #[serde(default)]
    pub predicted: usize,
}

impl LabelScore {
    /// Whether there is anything to score: the label holds in a text, or is predicted.
    fn occurs(&self) -> bool {
        self.support + self.predicted > 0
    }

    fn of(hits: usize, false_alarms: usize, misses: usize) -> Self {
        let share = |a: usize, b: usize| if b > 0 { a as f64 / b as f64 } else { 0.0 };
        Self {
            precision: share(hits, hits + false_alarms),
            recall: share(hits, hits + misses),
            f1: share(2 * hits, 2 * hits + false_alarms + misses),
            support: hits + misses,
            predicted: hits + false_alarms,
        }
    }
}

/// Scores of all labels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LabelScores {
    /// Of each label.
    pub labels: Vec<LabelScore>,
    /// Mean of the labels' F1.
    pub macro_f1: f64,
    /// F1 of all cells together.
    pub micro_f1: f64,
    /// Share of the texts all of whose labels are right.
    pub exact: f64,
}

impl LabelScores {
    /// The mean F1 of the labels of a resample. One that no drawn text has, neither true nor predicted, has that of the texts
    /// that were drawn from (`all`): that it was not drawn says nothing of it.
    pub fn macro_f1_of_drawn(&self, all: &Self) -> f64 {
        let told = self.labels.iter().zip(&all.labels);
        let told = told.map(|(own, all)| if own.occurs() { own.f1 } else { all.f1 });
        told.sum::<f64>() / self.labels.len().max(1) as f64
    }

    /// The F1 of all cells of a resample; that of the texts that were drawn from where no drawn text has a label, neither true
    /// nor predicted.
    pub fn micro_f1_of_drawn(&self, all: &Self) -> f64 {
        if self.labels.iter().any(LabelScore::occurs) { self.micro_f1 } else { all.micro_f1 }
    }
}

/// Scores predictions of some texts, `[text, label]` row by row.
///
/// # Panics
/// If the rows do not fit; both are made by one model.
pub fn label_scores(
    truth: &[bool],
    predicted: &[bool],
    labels: usize,
    texts: impl Iterator<Item = usize> + Clone,
) -> LabelScores {
    assert_eq!(truth.len(), predicted.len(), "one prediction for each truth");
    let mut counts = vec![[0usize; 3]; labels];
    let (mut exact, mut rows) = (0usize, 0usize);
    for text in texts {
        let row = text * labels..(text + 1) * labels;
        for (count, cell) in counts.iter_mut().zip(row.clone()) {
            match (truth[cell], predicted[cell]) {
                (true, true) => count[0] += 1,
                (false, true) => count[1] += 1,
                (true, false) => count[2] += 1,
                (false, false) => {}
            }
        }
        exact += usize::from(truth[row.clone()] == predicted[row]);
        rows += 1;
    }
    let sum = |place: usize| counts.iter().map(|count| count[place]).sum();
    let of_labels: Vec<LabelScore> = counts
        .iter()
        .map(|[hits, alarms, misses]| LabelScore::of(*hits, *alarms, *misses))
        .collect();
    LabelScores {
        macro_f1: of_labels.iter().map(|score| score.f1).sum::<f64>() / labels.max(1) as f64,
        micro_f1: LabelScore::of(sum(0), sum(1), sum(2)).f1,
        exact: exact as f64 / rows.max(1) as f64,
        labels: of_labels,
    }
}

/// For each label the probability from which on it is predicted: the one with the best F1 on these
/// texts, which must not be those that are tested on. Of equals, the one nearest to ½; without a text
/// in which the label holds, ½.
///
/// # Shapes
/// - truth, probabilities: `[text, label]`, row by row
pub fn choose_thresholds(truth: &[bool], probabilities: &[f32], labels: usize) -> Vec<f32> {
    let choose = |label: usize| {
        let mut cells: Vec<(f32, bool)> = probabilities
            .iter()
            .zip(truth)
            .skip(label)
            .step_by(labels)
            .map(|(probability, truth)| (*probability, *truth))
            .collect();
        cells.sort_by(|a, b| b.0.total_cmp(&a.0));
        let positives = cells.iter().filter(|(_, truth)| *truth).count();
        let (mut best, mut hits) = ((0.0, 0.5f32), 0);
        for (place, (probability, truth)) in cells.iter().enumerate() {
            hits += usize::from(*truth);
            let next = cells.get(place + 1).map(|(next, _)| *next);
            if next == Some(*probability) {
                continue;
            }
            let f1 = LabelScore::of(hits, place + 1 - hits, positives - hits).f1;
            // Halfway to the next lower probability, so that near misses count, too.
            // Between neighbours of f32 there is nothing, and the lower one would count, too.
            let halfway = |next: f32| match f32::midpoint(*probability, next) {
                halfway if halfway > next => halfway,
                _ => *probability,
            };
            // Below the lowest there is nothing: ½ if that is below it, too, or halfway to 0.
            let below = if *probability > 0.5 { 0.5 } else { *probability / 2.0 };
            let threshold = next.map_or(below, halfway);
            let nearer = (threshold - 0.5).abs() < (best.1 - 0.5f32).abs();
            if f1 > best.0 || (f1 == best.0 && f1 > 0.0 && nearer) {
                best = (f1, threshold);
            }
        }
        best.1
    };
    (0..labels).map(choose).collect()
}

/// The likeliest evidence: first and last token within `allowed`, the first not after the last.
///
/// # Shapes
/// - first, last: scores of each token
pub fn best_span(first: &[f32], last: &[f32], allowed: Range<usize>) -> Option<[usize; 2]> {
    let mut best: Option<(f32, [usize; 2])> = None;
    let mut start = allowed.start;
    for end in allowed {
        if first[end] > first[start] {
            start = end;
        }
        let score = first[start] + last[end];
        if best.is_none_or(|(found, _)| score > found) {
            best = Some((score, [start, end]));
        }
    }
    best.map(|(_, span)| span)
}

/// The probability that a model gives to evidence, if the text has some: that its first token is the first, times that its
/// last is the last, each among all tokens of the text, as its loss has it.
///
/// # Shapes
/// - first, last: scores of each token, those around the text among them, and none of padding
pub fn span_probability(first: &[f32], last: &[f32], [start, end]: [usize; 2]) -> f32 {
    let share = |scores: &[f32], place: usize| {
        let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |score: f32| f64::from(score - most).exp();
        weight(scores[place]) / scores.iter().map(|score| weight(*score)).sum::<f64>()
    };
    (share(first, start) * share(last, end)) as f32
}

/// How well evidence was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpanScores {
    /// Share of the texts with evidence whose first and last token are right.
    pub exact: f64,
    /// Mean F1 of the tokens.
    pub token_f1: f64,
    /// Texts with evidence.
    pub texts: usize,
}

/// Exact match and F1 of the tokens, of one text. Source: Rajpurkar et al., "SQuAD", 2016.
pub fn span_score(truth: [usize; 2], predicted: Option<[usize; 2]>) -> (bool, f64) {
    let Some(predicted) = predicted else { return (false, 0.0) };
    let size = |[first, last]: [usize; 2]| last + 1 - first;
    let both = (truth[1].min(predicted[1]) + 1).saturating_sub(truth[0].max(predicted[0]));
    (truth == predicted, 2.0 * both as f64 / (size(truth) + size(predicted)) as f64)
}

/// Means over texts with evidence. A text whose evidence was cut off counts as not found.
pub fn span_scores(scores: impl Iterator<Item = (bool, f64)>) -> SpanScores {
    let (mut exact, mut f1, mut texts) = (0.0, 0.0, 0);
    for (right, own) in scores {
        exact += f64::from(u8::from(right));
        f1 += own;
        texts += 1;
    }
    let count = f64::from(u32::try_from(texts.max(1)).unwrap_or(u32::MAX));
    SpanScores { exact: exact / count, token_f1: f1 / count, texts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f1_is_that_of_scikit_learn() {
        // f1_score(average=None, "macro", "micro") of these rows: [0.8, 2/3, 0], .4889, 2/3.
        let truth = [1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0].map(|v| v == 1);
        let predicted = [1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 1, 0, 1, 0].map(|v| v == 1);
        let scores = label_scores(&truth, &predicted, 3, 0..5);
        let f1: Vec<f64> = scores.labels.iter().map(|score| score.f1).collect();
        assert!((f1[0] - 0.8).abs() < 1e-12 && (f1[1] - 2.0 / 3.0).abs() < 1e-12 && f1[2] == 0.0);
        assert!((scores.macro_f1 - 0.488_888_888_9).abs() < 1e-9, "{}", scores.macro_f1);
        assert!((scores.micro_f1 - 2.0 / 3.0).abs() < 1e-9, "{}", scores.micro_f1);
        assert_eq!(scores.exact, 0.4);
        // The share of right cells is another number: that of a model that finds nothing is high.
        let none = label_scores(&truth, &[false; 15], 3, 0..5);
        assert_eq!((none.macro_f1, none.micro_f1), (0.0, 0.0));
    }

    #[test]
    fn a_label_that_was_not_drawn_does_not_count_in_a_resample() {
        // The second label holds in the last text alone, the third nowhere.
        let truth = [1, 0, 0, 0, 0, 0, 1, 1, 0].map(|v| v == 1);
        let all = label_scores(&truth, &truth, 3, 0..3);
        assert!((all.macro_f1 - 2.0 / 3.0).abs() < 1e-12, "{all:?}");
        let drawn = |texts: &[usize]| {
            label_scores(&truth, &truth, 3, texts.iter().copied()).macro_f1_of_drawn(&all)
        };
        assert!((drawn(&[0, 1, 2]) - 2.0 / 3.0).abs() < 1e-12);
        for texts in [[0, 1, 1], [1, 1, 1]] {
            assert!((drawn(&texts) - 2.0 / 3.0).abs() < 1e-12, "the third counts 0, as in all");
        }
        // One that is never found is none the better for not being drawn.
        let mut missed = truth;
        missed[7] = false;
        let of_all = label_scores(&truth, &missed, 3, 0..3);
        let drawn_of = label_scores(&truth, &missed, 3, [0, 0, 1].into_iter());
        assert!((drawn_of.macro_f1_of_drawn(&of_all) - 1.0 / 3.0).abs() < 1e-12);
        // One that is predicted where it does not hold is wrong.
        let mut said = truth;
        said[1] = true;
        let drawn = label_scores(&truth, &said, 3, [0, 0, 1].into_iter());
        assert!((drawn.macro_f1_of_drawn(&all) - 1.0 / 3.0).abs() < 1e-12);
        let micro = |texts: [usize; 3], said: &[bool]| {
            label_scores(&truth, said, 3, texts.into_iter()).micro_f1_of_drawn(&all)
        };
        assert_eq!((micro([1, 1, 1], &truth), micro([0, 1, 1], &truth)), (1.0, 1.0));
        // A hit and a false alarm.
        assert!((micro([0, 0, 0], &said) - 2.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn thresholds_lie_between_the_classes() {
        let truth = [true, false, true, false, false, false];
        let probabilities = [0.3, 0.9, 0.2, 0.8, 0.1, 0.7];
        let thresholds = choose_thresholds(&truth, &probabilities, 2);
        assert!((thresholds[0] - 0.15).abs() < 1e-6, "{thresholds:?}");
        assert_eq!(thresholds[1], 0.5);
        // Sigmoids that are nearly 1 may be neighbours of f32.
        let near = [f32::from_bits(0x3f7f_ffff), f32::from_bits(0x3f7f_fffe)];
        assert_eq!(choose_thresholds(&[true, false], &near, 1), near[..1]);
        // Of a label that holds everywhere nothing is above.
        assert_eq!(choose_thresholds(&[true, true], &[0.97, 0.95], 1), [0.5]);
        assert_eq!(choose_thresholds(&[true, true], &[0.3, 0.2], 1), [0.1]);
    }

    #[test]
    fn the_best_span_is_the_best_of_all_pairs() {
        let (first, last) = ([9.0, 1.0, 3.0, 0.5, 2.0], [0.0, 5.0, 0.0, 4.0, 9.0]);
        assert_eq!(best_span(&first, &last, 1..4), Some([2, 3]));
        assert_eq!(best_span(&first, &last, 0..5), Some([0, 4]));
        assert_eq!(best_span(&first, &last, 2..2), None);
        // softmax([0, 1, 2])[1] · softmax([3, 0, 1])[2] by SciPy.
        let found = span_probability(&[0.0, 1.0, 2.0], &[3.0, 0.0, 1.0], [1, 2]);
        assert!((found - 0.027_946_82).abs() < 1e-6, "{found}");
        let sure = span_probability(&[900.0, 0.0], &[0.0, -900.0], [0, 0]);
        assert_eq!((sure, span_probability(&[7.0], &[-7.0], [0, 0])), (1.0, 1.0));
        assert_eq!(span_score([2, 5], Some([4, 7])), (false, 0.5));
        assert_eq!(span_score([2, 2], Some([2, 2])), (true, 1.0));
        assert_eq!(span_score([2, 2], Some([3, 9])), (false, 0.0));
    }
}
