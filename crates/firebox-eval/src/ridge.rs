//! Ridge regression on the indicators of the classes: the classifier of fixed kernels in their authors'
//! programs.
//!
//! `min Σᵢ‖yᵢ − W·xᵢ − b‖² + λ‖W‖²` on standardised rows, with `y` of 1 for a row's own class and −1 for the
//! others; `λ` is the one whose squared errors on rows that are left out, one at a time, are least. With
//! `K = X·Xᵀ`, `M = (K + λI)⁻¹` and `c = M·y`, the error of a row that is left out is `cᵢ / Mᵢᵢ` (Rifkin and
//! Lippert, "Notes on regularized least squares", 2007), so that no fit is made for it: scikit-learn's
//! `RidgeClassifierCV` after a `StandardScaler`. Rows may have any number of features; the matrix of the rows
//! is kept whole, so it is for thousands of rows at most.

use rayon::prelude::*;

use crate::features::{Features, Standardiser, first_largest};
use crate::matrix::{Matrix, cholesky, multiply, solve};

/// Rows that are standardised at once when they are scored: fixed kernels give 50,000 numbers for each.
pub(crate) const ROWS: usize = 256;

/// A fitted plane for each class.
#[derive(Clone, Debug, PartialEq)]
pub struct Ridge {
    standardiser: Standardiser,
    classes: usize,
    /// The classes that occur in training; no other is ever predicted.
    present: Vec<u32>,
    /// `[present class, feature]`
    weights: Vec<f64>,
    /// `[present class]`
    biases: Vec<f64>,
    penalty: f64,
}

impl Ridge {
    /// Fits to training rows, with the one of `penalties` that leaves the least squared error on rows that
    /// are left out; of equal ones the first that is named.
    ///
    /// # Panics
    ///
    /// When there is no row, or no penalty, or one that is not positive, or a feature is not finite, as in predictions.
    pub fn fit(train: &Features, classes: usize, penalties: &[f64]) -> Self {
        assert!(!train.is_empty() && !penalties.is_empty(), "nothing to fit to");
        assert!(penalties.iter().all(|penalty| *penalty > 0.0), "penalties are positive");
        let (count, width) = (train.len(), train.width);
        let standardiser = Standardiser::fit(&train.rows, width);
        let rows = standardiser.apply(&train.rows);
        let rows = Matrix::new(&rows, count, width);
        let mut products = vec![0.0; count * count];
        multiply(rows, rows.transposed(), &mut products);
        let (present, biases, targets) = centred(&train.labels);
        let fit = |penalty: f64| LeftOut::of(&products, &targets, count, penalty);
        let mut best = (penalties[0], None::<LeftOut>);
        for penalty in penalties {
            let found = fit(*penalty);
            if best.1.as_ref().is_none_or(|best| found.error < best.error) {
                best = (*penalty, Some(found));
            }
        }
        let (penalty, duals) = (best.0, best.1.map(|best| best.duals).unwrap_or_default());
        let mut weights = vec![0.0; present.len() * width];
        multiply(Matrix::new(&duals, present.len(), count), rows, &mut weights);
        Self { standardiser, classes, present, weights, biases, penalty }
    }

    /// The penalty that was taken.
    pub fn penalty(&self) -> f64 {
        self.penalty
    }

    /// A score for each class: about 1 for a row's own, and −1 for the others. Classes without a training
    /// row have minus infinity.
    ///
    /// # Shapes
    ///
    /// - `rows`: `[row, feature]`; returns `[row, class]`, row-major.
    pub fn scores(&self, rows: &[f32]) -> Vec<f64> {
        let (width, kept) = (self.weights.len() / self.present.len(), self.present.len());
        let weights = Matrix::new(&self.weights, kept, width);
        let mut out = vec![];
        for rows in rows.chunks((ROWS * width).max(1)) {
            let x = self.standardiser.apply(rows);
            let count = x.len() / width.max(1);
            let mut found = vec![0.0; count * kept];
            multiply(Matrix::new(&x, count, width), weights.transposed(), &mut found);
            for found in found.chunks_exact(kept) {
                let mut scores = vec![f64::NEG_INFINITY; self.classes];
                for ((class, value), bias) in self.present.iter().zip(found).zip(&self.biases) {
                    scores[*class as usize] = value + bias;
                }
                out.extend(scores);
            }
        }
        out
    }

    /// A share for each class that can be averaged with those of other probes: what the regression says
    /// of its indicator, from 0 to 1, divided by their sum. They add up to 1; they are not calibrated.
    ///
    /// # Shapes
    ///
    /// - `rows`: `[row, feature]`; returns `[row, class]`, row-major.
    pub fn shares(&self, rows: &[f32]) -> Vec<f64> {
        let mut out = self.scores(rows);
        for row in out.chunks_exact_mut(self.classes.max(1)) {
            let best = first_largest(row);
            row.iter_mut().for_each(|score| *score = ((*score + 1.0) / 2.0).clamp(0.0, 1.0));
            // Where every class is denied, the least denied one has it all.
            if row.iter().all(|share| *share == 0.0) {
                row[best as usize] = 1.0;
            }
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|share| *share /= sum);
        }
        out
    }

    /// The class with the highest score of each row; of equal ones the first.
    pub fn predict(&self, rows: &[f32]) -> Vec<u32> {
        let scores = self.scores(rows);
        scores.chunks_exact(self.classes.max(1)).map(first_largest).collect()
    }
}

/// The classes that occur, the mean of each one's indicator of −1 and 1, and what the indicator is beyond
/// it, `[class, row]`.
fn centred(labels: &[u32]) -> (Vec<u32>, Vec<f64>, Vec<f64>) {
    let mut present = labels.to_vec();
    present.sort_unstable();
    present.dedup();
    let indicator =
        |class: u32| labels.iter().map(move |own| if *own == class { 1.0 } else { -1.0 });
    let mean = |class: &u32| indicator(*class).sum::<f64>() / labels.len() as f64;
    let means: Vec<f64> = present.iter().map(mean).collect();
    let beyond = present.iter().zip(&means);
    let beyond = beyond.flat_map(|(class, mean)| indicator(*class).map(move |own| own - mean));
    let targets = beyond.collect();
    (present, means, targets)
}

/// A fit with one penalty, and its error on rows that are left out.
struct LeftOut {
    /// `[class, row]`
    duals: Vec<f64>,
    /// Sum of squares; NaN for a single row, of which nothing is left.
    error: f64,
}

impl LeftOut {
    fn of(products: &[f64], targets: &[f64], count: usize, penalty: f64) -> Self {
        // The mean of the rows is zero and is not penalised: that direction is lifted out of the way, so
        // that the inverse is as exact as the others, and taken off the diagonal again.
        let trace: f64 = products.iter().step_by(count + 1).sum();
        let lift = 1.0 + trace / count as f64;
        let mut lifted: Vec<f64> =
            products.iter().map(|value| value + lift / count as f64).collect();
        lifted.iter_mut().step_by(count + 1).for_each(|value| *value += penalty);
        let mut duals = targets.to_vec();
        // Positive definite by its making; with numbers that are none, no error is less than another.
        let Some(factor) = cholesky(lifted, count) else { return Self { duals, error: f64::NAN } };
        duals.par_chunks_exact_mut(count).for_each(|own| solve(&factor, count, own));
        let off = 1.0 / (count as f64 * (lift + penalty));
        let diagonal: Vec<f64> =
            (0..count).into_par_iter().map(|row| inverse_at(&factor, count, row) - off).collect();
        let of_class = |own: &[f64]| -> f64 {
            own.iter().zip(&diagonal).map(|(dual, inverse)| (dual / inverse).powi(2)).sum()
        };
        let error = duals.chunks_exact(count).map(of_class).sum();
        Self { duals, error }
    }
}

/// The number on the diagonal of the inverse of `L·Lᵀ` in a row: the squared length of that column of `L⁻¹`.
fn inverse_at(factor: &[f64], n: usize, row: usize) -> f64 {
    let mut column = vec![0.0; n - row];
    column[0] = 1.0 / factor[row * n + row];
    for at in 1..column.len() {
        let below = &factor[(row + at) * n + row..][..=at];
        let dot: f64 = below.iter().zip(&column[..at]).map(|(l, v)| l * v).sum();
        column[at] = -dot / below[at];
    }
    column.iter().map(|value| value * value).sum()
}

#[cfg(test)]
mod tests {
    use firebox_core::Stream;

    use super::*;

    fn sample(rows: usize, width: usize, classes: u32, seed: u64) -> Features {
        let mut draws = Stream::new(seed, "ridge").draws();
        let labels: Vec<u32> = (0..rows as u32).map(|row| row % classes).collect();
        let rows = labels.iter().flat_map(|label| {
            let place = (*label as usize) % width;
            let shift = move |at| if at == place { 1.5 } else { 0.0 };
            (0..width).map(|at| (draws.normal() + shift(at)) as f32).collect::<Vec<_>>()
        });
        Features { rows: rows.collect(), width, labels }
    }

    /// The errors of rows that are left out, by a fit without each: the same standardisation, and the
    /// intercept and the weights of the others alone.
    #[test]
    fn what_is_left_out_is_what_a_fit_without_it_misses() {
        for (count, width, penalty) in [(9, 4, 0.5), (12, 30, 10.0), (7, 3, 1e-3), (15, 15, 100.0)]
        {
            let train = sample(count, width, 3, 7);
            let rows = Standardiser::fit(&train.rows, width).apply(&train.rows);
            let mut products = vec![0.0; count * count];
            let view = Matrix::new(&rows, count, width);
            multiply(view, view.transposed(), &mut products);
            let (present, means, targets) = centred(&train.labels);
            let found = LeftOut::of(&products, &targets, count, penalty);
            let mut expected = 0.0;
            for out in 0..count {
                let kept: Vec<usize> = (0..count).filter(|row| *row != out).collect();
                for class in 0..present.len() {
                    let y = |row: usize| targets[class * count + row] + means[class];
                    // Normal equations of weights and intercept, which alone is not penalised.
                    let n = width + 1;
                    let x = |row: usize, at: usize| {
                        if at == width { 1.0 } else { rows[row * width + at] }
                    };
                    let (mut a, mut b) = (vec![0.0; n * n], vec![0.0; n]);
                    for i in 0..n {
                        for j in 0..n {
                            a[i * n + j] = kept.iter().map(|row| x(*row, i) * x(*row, j)).sum();
                        }
                        b[i] = kept.iter().map(|row| x(*row, i) * y(*row)).sum();
                        a[i * n + i] += if i < width { penalty } else { 0.0 };
                    }
                    solve(&cholesky(a, n).unwrap(), n, &mut b);
                    let value: f64 = (0..n).map(|at| b[at] * x(out, at)).sum();
                    expected += (y(out) - value).powi(2);
                }
            }
            let error = (found.error / expected - 1.0).abs();
            assert!(error < 1e-6, "{count} {width} {penalty}: {} {expected}", found.error);
        }
    }

    #[test]
    fn a_class_without_rows_is_never_predicted_and_one_class_is_always() {
        let mut train = sample(40, 5, 2, 4);
        train.labels.iter_mut().for_each(|label| *label *= 2);
        let fitted = Ridge::fit(&train, 4, &[1.0, 10.0]);
        assert!(fitted.predict(&train.rows).iter().all(|class| [0, 2].contains(class)));
        let shares = fitted.shares(&train.rows);
        for row in shares.chunks_exact(4) {
            assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{row:?}");
            assert!(row[1] == 0.0 && row[3] == 0.0, "{row:?}");
        }
        train.labels.fill(3);
        let fitted = Ridge::fit(&train, 4, &[1.0, 10.0]);
        assert!(fitted.predict(&train.rows).iter().all(|class| *class == 3));
        let alone = Features { rows: vec![1.0, 2.0], width: 2, labels: vec![1] };
        let fitted = Ridge::fit(&alone, 2, &[3.0, 1.0]);
        assert_eq!((fitted.predict(&[0.0, 0.0]), fitted.penalty()), (vec![1], 3.0));
    }

    #[test]
    fn noise_gets_a_strong_penalty_and_a_clear_matter_a_weak_one() {
        let penalties = [1e-3, 1.0, 1e3, 1e6];
        let clear = sample(200, 5, 2, 5);
        let weak = Ridge::fit(&clear, 2, &penalties).penalty();
        let mut noise = sample(60, 80, 2, 6);
        let mut draws = Stream::new(8, "labels").draws();
        noise.labels.iter_mut().for_each(|label| *label = draws.below(2) as u32);
        let strong = Ridge::fit(&noise, 2, &penalties).penalty();
        assert!(weak <= 1.0 && strong >= 1e3, "{weak} {strong}");
    }
}
