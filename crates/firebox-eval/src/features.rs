//! Rows of features with their classes: what probes are fitted to and measured on.
//!
//! Where the rows come from (an encoder, raw windows) is not known here.

use std::borrow::Cow;

use crate::EvalError;

/// One row of features for each labelled window.
///
/// # Shapes
///
/// - `rows`: `[window, feature]`, row-major; `width` features a row.
/// - `labels`: `[window]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Features {
    /// The features.
    pub rows: Vec<f32>,
    /// Features of a row.
    pub width: usize,
    /// Class of each row.
    pub labels: Vec<u32>,
}

impl Features {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The features of one row.
    pub fn row(&self, index: usize) -> &[f32] {
        &self.rows[index * self.width..(index + 1) * self.width]
    }

    /// The rows of these indices, in their order.
    pub fn select(&self, indices: &[usize]) -> Self {
        let mut rows = Vec::with_capacity(indices.len() * self.width);
        indices.iter().for_each(|index| rows.extend_from_slice(self.row(*index)));
        let labels = indices.iter().map(|index| self.labels[*index]).collect();
        Self { rows, width: self.width, labels }
    }

    /// These rows with the rows of `other` after them.
    pub(crate) fn joined(&self, other: &Self) -> Cow<'_, Self> {
        if other.is_empty() {
            return Cow::Borrowed(self);
        }
        let mut all = self.clone();
        all.rows.extend_from_slice(&other.rows);
        all.labels.extend_from_slice(&other.labels);
        Cow::Owned(all)
    }

    /// Checks that each row has `width` finite numbers and a label below `classes`, so that probes can take them.
    ///
    /// # Errors
    /// Names `part` and the row of the first value that cannot be used.
    pub fn check(&self, part: &'static str, width: usize, classes: usize) -> Result<(), EvalError> {
        if self.width != width || self.rows.len() != self.labels.len() * width {
            return Err(EvalError::Shape {
                part,
                rows: self.labels.len(),
                values: self.rows.len(),
                width,
            });
        }
        if let Some(row) = self.labels.iter().position(|label| *label as usize >= classes) {
            return Err(EvalError::Label { part, row, label: self.labels[row], classes });
        }
        match self.rows.iter().position(|value| !value.is_finite()) {
            Some(place) => Err(EvalError::NotFinite {
                part,
                row: place / width,
                feature: place % width,
                value: self.rows[place],
            }),
            None => Ok(()),
        }
    }
}

/// The same windows' features in the three parts of a split.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    /// Probes are fitted on these.
    pub train: Features,
    /// Their regularisation is chosen on these; may be empty.
    pub validation: Features,
    /// They are measured on these, and nothing else is done with them.
    pub test: Features,
}

impl Parts {
    /// Checks shapes, labels and numbers once, so that nothing after it has to.
    ///
    /// # Errors
    ///
    /// Names the part and row of the first value that cannot be used.
    pub(crate) fn check(&self, classes: usize) -> Result<(), EvalError> {
        for (part, features) in
            [("training", &self.train), ("validation", &self.validation), ("test", &self.test)]
        {
            if features.is_empty() && part == "validation" {
                continue;
            }
            features.check(part, self.train.width, classes)?;
        }
        Ok(())
    }
}

/// Means and standard deviations of the columns of training rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Standardiser {
    mean: Vec<f64>,
    /// Reciprocal of the standard deviation; zero for a constant column, which carries nothing.
    inverse: Vec<f64>,
}

impl Standardiser {
    /// Fits on `rows`: `[row, feature]`, `width` features each.
    ///
    /// # Panics
    /// At a value that is not finite, which no probe can learn from ([`Features::check`] finds them).
    pub fn fit(rows: &[f32], width: usize) -> Self {
        demand_finite(rows, width);
        let count = (rows.len() / width.max(1)).max(1) as f64;
        let mut mean = vec![0.0; width];
        for row in rows.chunks_exact(width.max(1)) {
            mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        mean.iter_mut().for_each(|sum| *sum /= count);
        let mut inverse = vec![0.0; width];
        for row in rows.chunks_exact(width.max(1)) {
            for ((sum, value), mean) in inverse.iter_mut().zip(row).zip(&mean) {
                *sum += (f64::from(*value) - mean).powi(2);
            }
        }
        for (value, mean) in inverse.iter_mut().zip(&mean) {
            let deviation = (*value / count).sqrt();
            // Below the rounding of f32 around the mean, a deviation is noise.
            let noise = mean.abs() * f64::from(f32::EPSILON);
            *value = if deviation > noise { deviation.recip() } else { 0.0 };
        }
        Self { mean, inverse }
    }

    /// The same without the scale: columns keep their spread about their means.
    pub fn centred(rows: &[f32], width: usize) -> Self {
        let Self { mean, inverse } = Self::fit(rows, width);
        let inverse = inverse.into_iter().map(|inverse| if inverse > 0.0 { 1.0 } else { 0.0 });
        Self { mean, inverse: inverse.collect() }
    }

    /// The standardised rows.
    ///
    /// # Panics
    /// At a value that is not finite: a probe would answer with the first class.
    pub fn apply(&self, rows: &[f32]) -> Vec<f64> {
        let width = self.mean.len();
        demand_finite(rows, width);
        let mut out = Vec::with_capacity(rows.len());
        for row in rows.chunks_exact(width.max(1)) {
            out.extend(
                row.iter()
                    .zip(&self.mean)
                    .zip(&self.inverse)
                    .map(|((value, mean), inverse)| (f64::from(*value) - mean) * inverse),
            );
        }
        out
    }
}

fn demand_finite(rows: &[f32], width: usize) {
    if let Some(place) = rows.iter().position(|value| !value.is_finite()) {
        let [row, feature] = [place / width.max(1), place % width.max(1)];
        panic!(
            "feature {feature} of row {row} is {}; probes take finite numbers, which `Features::check` tells of",
            rows[place]
        );
    }
}

/// The class with the highest score; of equal ones the first.
pub(crate) fn first_largest(scores: &[f64]) -> u32 {
    let mut best = 0;
    for (class, score) in scores.iter().enumerate() {
        if *score > scores[best] {
            best = class;
        }
    }
    best as u32
}

/// Divides rows into `folds` parts, each class evenly over them. Members of a class stay in
/// consecutive runs: windows that overlap in time then mostly share a fold.
///
/// Returns the fold of each row.
pub(crate) fn stratified_folds(labels: &[u32], folds: usize) -> Vec<usize> {
    let mut sizes = std::collections::BTreeMap::<u32, usize>::new();
    labels.iter().for_each(|label| *sizes.entry(*label).or_default() += 1);
    let mut seen = std::collections::BTreeMap::<u32, usize>::new();
    labels
        .iter()
        .map(|label| {
            let position = seen.entry(*label).or_default();
            *position += 1;
            // Classes smaller than the folds begin at different folds, or the last would starve.
            ((*position - 1) * folds / sizes[label].max(folds) + *label as usize) % folds
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::{Distance, Logistic, Neighbours, Ridge, Stop, Svm};

    #[test]
    fn training_columns_become_standard_and_constant_ones_vanish() {
        let rows = [1.0, 7.0, 3.0, 7.0, 5.0, 7.0];
        let fitted = Standardiser::fit(&rows, 2);
        let out = fitted.apply(&rows);
        let deviation = (8.0f64 / 3.0).sqrt();
        let expected = [-2.0 / deviation, 0.0, 0.0, 0.0, 2.0 / deviation, 0.0];
        assert!(out.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{out:?}");
    }

    #[test]
    fn every_class_is_spread_over_the_folds() {
        let labels: Vec<u32> = (0..100).map(|i| u32::from(i >= 70)).collect();
        let folds = stratified_folds(&labels, 5);
        for fold in 0..5 {
            let count =
                |class| (0..100).filter(|i| labels[*i] == class && folds[*i] == fold).count();
            assert_eq!((count(0), count(1)), (14, 6));
        }
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let features = |rows: Vec<f32>, labels: Vec<u32>| Features { rows, width: 2, labels };
        let good = features(vec![0.0; 4], vec![0, 1]);
        let message = |test: Features| {
            let parts = Parts { train: good.clone(), validation: Features::default(), test };
            parts.check(2).unwrap_err().to_string()
        };
        assert!(message(features(vec![0.0; 3], vec![0, 1])).contains("3 values"));
        assert!(message(features(vec![0.0; 4], vec![0, 2])).contains("class 2"));
        let bad = message(features(vec![0.0, 0.0, 0.0, f32::NAN], vec![0, 1]));
        assert!(bad.contains("test row 1") && bad.contains("NaN"), "{bad}");
    }

    #[test]
    fn probes_do_not_answer_on_what_is_no_number() {
        let train = Features { rows: vec![0.0, 1.0, 1.0, 0.5], width: 2, labels: vec![0, 1] };
        let mut broken = train.clone();
        broken.rows[2] = f32::INFINITY;
        let stop = Stop { iterations: 10, gradient: 1e-6 };
        type Probe<'a> = (&'a str, &'a dyn Fn(&Features, &[f32]) -> Vec<u32>);
        let probes: [Probe<'_>; 4] = [
            ("logistic", &|train, rows| Logistic::fit(train, 2, 1.0, stop).predict(rows)),
            ("ridge", &|train, rows| Ridge::fit(train, 2, &[1.0]).predict(rows)),
            ("svm", &|train, rows| Svm::fit(train, 2, 1.0).predict(rows)),
            ("neighbours", &|train, rows| {
                Neighbours::fit(train, 2, Distance::Euclidean).predict(rows, 1)
            }),
        ];
        for (name, probe) in probes {
            assert_eq!(probe(&train, &train.rows), [0, 1], "{name}");
            for (fitted, rows) in [(&broken, &train.rows), (&train, &vec![0.0, 0.0, f32::NAN, 0.0])]
            {
                let answer = catch_unwind(AssertUnwindSafe(|| probe(fitted, rows)));
                let message = answer.unwrap_err().downcast::<String>().unwrap();
                assert!(message.contains("feature 0 of row 1"), "{name}: {message}");
            }
        }
    }
}
