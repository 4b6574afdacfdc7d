//! Classification metrics of a confusion matrix.
//!
//! Definitions follow scikit-learn, which the tests compare with: a class that occurs in neither
//! the truth nor the predictions is left out of macro averages, balanced accuracy averages the
//! recall of the classes that occur in the truth, and a quotient without a denominator is zero.

use serde::{Deserialize, Serialize};

/// How often each class was predicted for each true class.
///
/// # Shapes
///
/// - `counts`: `[true class, predicted class]`, row-major.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Confusion {
    /// Number of classes.
    pub classes: usize,
    /// The counts.
    pub counts: Vec<u64>,
}

impl Confusion {
    /// Counts pairs of true and predicted class.
    ///
    /// # Panics
    ///
    /// When a class is not below `classes`, or there is not one prediction for each true class.
    pub fn of(classes: usize, truth: &[u32], predicted: &[u32]) -> Self {
        assert_eq!(truth.len(), predicted.len(), "one prediction for each true class");
        let mut counts = vec![0; classes * classes];
        for (truth, predicted) in truth.iter().zip(predicted) {
            assert!(*predicted < classes as u32, "predicted class {predicted} of {classes}");
            counts[*truth as usize * classes + *predicted as usize] += 1;
        }
        Self { classes, counts }
    }

    /// The row of a true class.
    pub fn row(&self, class: usize) -> &[u64] {
        &self.counts[class * self.classes..(class + 1) * self.classes]
    }

    /// Windows counted.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Precision, recall, F1 and number of windows of each class.
    pub fn per_class(&self) -> Vec<ClassMetrics> {
        (0..self.classes)
            .map(|class| {
                let hit = self.row(class)[class] as f64;
                let support: u64 = self.row(class).iter().sum();
                let predicted: u64 =
                    self.counts.iter().skip(class).step_by(self.classes.max(1)).sum();
                let precision = quotient(hit, predicted as f64);
                let recall = quotient(hit, support as f64);
                let f1 = quotient(2.0 * hit, (support + predicted) as f64);
                ClassMetrics { precision, recall, f1, support, predicted }
            })
            .collect()
    }

    /// All metrics.
    pub fn metrics(&self) -> Metrics {
        let classes = self.per_class();
        let present = || classes.iter().filter(|class| class.support + class.predicted > 0);
        let count = present().count() as f64;
        let total = self.total() as f64;
        let macro_of = |f: fn(&ClassMetrics) -> f64| quotient(present().map(f).sum(), count);
        let weighted = |f: fn(&ClassMetrics) -> f64| {
            quotient(present().map(|class| f(class) * class.support as f64).sum(), total)
        };
        let in_truth = || classes.iter().filter(|class| class.support > 0);
        let hits: u64 = (0..self.classes).map(|class| self.row(class)[class]).sum();
        Metrics {
            accuracy: quotient(hits as f64, total),
            balanced_accuracy: quotient(
                in_truth().map(|class| class.recall).sum(),
                in_truth().count() as f64,
            ),
            macro_precision: macro_of(|class| class.precision),
            macro_recall: macro_of(|class| class.recall),
            macro_f1: macro_of(|class| class.f1),
            weighted_precision: weighted(|class| class.precision),
            weighted_recall: weighted(|class| class.recall),
            weighted_f1: weighted(|class| class.f1),
        }
    }
}

fn quotient(numerator: f64, denominator: f64) -> f64 {
    if denominator > 0.0 { numerator / denominator } else { 0.0 }
}

/// Metrics of one class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassMetrics {
    /// Share of the predictions of this class that are right.
    pub precision: f64,
    /// Share of this class's windows that are found.
    pub recall: f64,
    /// Harmonic mean of precision and recall.
    pub f1: f64,
    /// Windows of this class.
    pub support: u64,
    /// Predictions of this class.
    pub predicted: u64,
}

/// Metrics over all classes, each in `0..=1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Share of the windows that are right.
    pub accuracy: f64,
    /// Mean recall of the classes that occur.
    pub balanced_accuracy: f64,
    /// Mean precision of the classes.
    pub macro_precision: f64,
    /// Mean recall of the classes.
    pub macro_recall: f64,
    /// Mean F1 of the classes.
    pub macro_f1: f64,
    /// Mean precision, weighted by each class's windows.
    pub weighted_precision: f64,
    /// Mean recall, weighted by each class's windows.
    pub weighted_recall: f64,
    /// Mean F1, weighted by each class's windows.
    pub weighted_f1: f64,
}

/// One of the metrics.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Share of the windows that are right.
    #[default]
    Accuracy,
    /// Mean recall of the classes: chance level is one over the number of classes.
    BalancedAccuracy,
    /// Mean precision of the classes.
    MacroPrecision,
    /// Mean recall of the classes.
    MacroRecall,
    /// Mean F1 of the classes.
    MacroF1,
    /// Mean precision, weighted by each class's windows.
    WeightedPrecision,
    /// Mean recall, weighted by each class's windows.
    WeightedRecall,
    /// Mean F1, weighted by each class's windows.
    WeightedF1,
}

impl Metric {
    /// Every metric.
    pub const ALL: [Self; 8] = [
        Self::Accuracy,
        Self::BalancedAccuracy,
        Self::MacroPrecision,
        Self::MacroRecall,
        Self::MacroF1,
        Self::WeightedPrecision,
        Self::WeightedRecall,
        Self::WeightedF1,
    ];

    /// Its value.
    pub fn of(self, metrics: &Metrics) -> f64 {
        match self {
            Self::Accuracy => metrics.accuracy,
            Self::BalancedAccuracy => metrics.balanced_accuracy,
            Self::MacroPrecision => metrics.macro_precision,
            Self::MacroRecall => metrics.macro_recall,
            Self::MacroF1 => metrics.macro_f1,
            Self::WeightedPrecision => metrics.weighted_precision,
            Self::WeightedRecall => metrics.weighted_recall,
            Self::WeightedF1 => metrics.weighted_f1,
        }
    }

    /// Its name in running text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accuracy => "accuracy",
            Self::BalancedAccuracy => "balanced accuracy",
            Self::MacroPrecision => "macro precision",
            Self::MacroRecall => "macro recall",
            Self::MacroF1 => "macro F1",
            Self::WeightedPrecision => "weighted precision",
            Self::WeightedRecall => "weighted recall",
            Self::WeightedF1 => "weighted F1",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_matrix_by_hand() {
        // Class 2 occurs nowhere; class 3 is predicted once and never true.
        let confusion = Confusion::of(4, &[0, 0, 0, 1, 1], &[0, 0, 1, 1, 3]);
        let metrics = confusion.metrics();
        assert_eq!(metrics.accuracy, 0.6);
        assert!((metrics.balanced_accuracy - (2.0 / 3.0 + 0.5) / 2.0).abs() < 1e-15);
        assert!((metrics.macro_precision - (1.0 + 0.5 + 0.0) / 3.0).abs() < 1e-15);
        assert!((metrics.macro_f1 - (0.8 + 0.5 + 0.0) / 3.0).abs() < 1e-15);
        assert!((metrics.weighted_f1 - (0.8 * 3.0 + 0.5 * 2.0) / 5.0).abs() < 1e-15);
    }

    #[test]
    fn nothing_measured_is_zero_and_not_nan() {
        let metrics = Confusion::of(3, &[], &[]).metrics();
        assert!(Metric::ALL.iter().all(|metric| metric.of(&metrics) == 0.0));
    }
}
