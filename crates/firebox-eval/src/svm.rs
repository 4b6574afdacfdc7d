//! Support vector machines with a Gaussian kernel: the probe of published comparisons.
//!
//! Each pair of classes has a machine of its own, `min ½ αᵀQα − Σα` with `0 ≤ α ≤ C` and `yᵀα = 0`,
//! on standardised rows and the kernel `exp(−γ‖a − b‖²)`, where `γ` is one over the number of features
//! times their variance: scikit-learn's `SVC(kernel="rbf", gamma="scale")` after a `StandardScaler`.
//! The optimizer is LIBSVM's (Fan, Chen and Lin, "Working set selection using second order information
//! for training support vector machines", 2005), in f64 on a kernel matrix that is kept whole: it is
//! for thousands of rows at most.

use crate::features::{Features, Standardiser, first_largest, stratified_folds};
use crate::matrix::{Matrix, multiply};

/// A pair that violates the optimality conditions by less ends the optimization. LIBSVM: 1e-3.
const TOLERANCE: f64 = 1e-4;
/// What stands for a curvature that is not positive; LIBSVM's.
const SMALLEST_CURVATURE: f64 = 1e-12;

/// A fitted machine for each pair of classes.
#[derive(Clone, Debug, PartialEq)]
pub struct Svm {
    standardiser: Standardiser,
    classes: usize,
    /// The classes that occur in training; no other is ever predicted.
    present: Vec<u32>,
    /// Standardised training rows, `[row, feature]`, and their squared lengths.
    rows: Vec<f64>,
    squares: Vec<f64>,
    width: usize,
    gamma: f64,
    machines: Vec<Machine>,
}

/// One pair of classes: positive is the first.
#[derive(Clone, Debug, PartialEq)]
struct Machine {
    pair: [usize; 2],
    /// Row and `y·α` of each support vector.
    support: Vec<(usize, f64)>,
    bias: f64,
}

impl Machine {
    /// Above zero for the first class.
    fn value(&self, kernel: &dyn Fn(usize) -> f64) -> f64 {
        self.support.iter().map(|(row, weight)| weight * kernel(*row)).sum::<f64>() + self.bias
    }
}

impl Svm {
    /// Fits to training rows.
    ///
    /// # Panics
    ///
    /// When there is no row, or a feature is not finite, as in predictions.
    pub fn fit(train: &Features, classes: usize, c: f64) -> Self {
        assert!(!train.is_empty(), "no rows to fit to");
        let (standardiser, rows, squares) = standardised(train);
        let gamma = scale(&rows, train.width);
        let kernel = kernel(&rows, &squares, &rows, &squares, train.width, gamma);
        let (present, machines) = fit_pairs(&kernel, &train.labels, &all(train.len()), c);
        let width = train.width;
        Self { standardiser, classes, present, rows, squares, width, gamma, machines }
    }

    /// A score for each class: the pairs that it wins, plus less than a third for how clearly, as
    /// scikit-learn's `decision_function` with its default shape, by which it predicts where `break_ties` is set. Classes without a training row have
    /// the score −1.
    ///
    /// # Shapes
    ///
    /// - `rows`: `[row, feature]`; returns `[row, class]`, row-major.
    pub fn scores(&self, rows: &[f32]) -> Vec<f64> {
        self.of_rows(rows, -1.0, votes)
    }

    /// A share for each class that can be averaged with those of other probes: the logistic function
    /// of twice the decision value of each pair, averaged over the pairs. They add up to 1 and order
    /// classes much as [`scores`](Self::scores) does; they are not calibrated.
    ///
    /// # Shapes
    ///
    /// - `rows`: `[row, feature]`; returns `[row, class]`, row-major.
    pub fn shares(&self, rows: &[f32]) -> Vec<f64> {
        self.of_rows(rows, 0.0, shares)
    }

    /// What `combine` makes of each row's kernel values, and `absent` for classes without a row.
    fn of_rows(
        &self,
        rows: &[f32],
        absent: f64,
        combine: impl Fn(&[Machine], usize, &dyn Fn(usize) -> f64) -> Vec<f64>,
    ) -> Vec<f64> {
        let x = self.standardiser.apply(rows);
        let squares = squares(&x, self.width);
        let count = self.squares.len();
        let kernel = kernel(&x, &squares, &self.rows, &self.squares, self.width, self.gamma);
        let mut out = vec![absent; squares.len() * self.classes];
        for (own, out) in kernel.chunks_exact(count).zip(out.chunks_exact_mut(self.classes)) {
            let scores = combine(&self.machines, self.present.len(), &|row| own[row]);
            self.present.iter().zip(scores).for_each(|(class, score)| out[*class as usize] = score);
        }
        out
    }

    /// The class with the highest score of each row; of equal ones the first.
    pub fn predict(&self, rows: &[f32]) -> Vec<u32> {
        self.scores(rows).chunks_exact(self.classes.max(1)).map(first_largest).collect()
    }

    /// The strength among `strengths` with the most right rows in stratified cross-validation over the
    /// training rows, and their share; of equal ones the first that is named.
    ///
    /// # Panics
    ///
    /// When there is no row or no strength.
    pub fn choose(train: &Features, strengths: &[f64], folds: usize) -> (f64, f64) {
        assert!(!train.is_empty() && !strengths.is_empty(), "nothing to choose from");
        let (_, rows, squares) = standardised(train);
        let gamma = scale(&rows, train.width);
        let kernel = kernel(&rows, &squares, &rows, &squares, train.width, gamma);
        let (count, folds) = (train.len(), folds.min(train.len()).max(2));
        let fold_of = stratified_folds(&train.labels, folds);
        let right = |c: f64| {
            let mut right = 0;
            for fold in 0..folds {
                let (held, fitted): (Vec<usize>, Vec<usize>) =
                    (0..count).partition(|row| fold_of[*row] == fold);
                if fitted.is_empty() {
                    continue;
                }
                let (present, machines) = fit_pairs(&kernel, &train.labels, &fitted, c);
                right += held
                    .iter()
                    .filter(|row| {
                        let own = &kernel[**row * count..][..count];
                        let scores = votes(&machines, present.len(), &|at| own[at]);
                        present[first_largest(&scores) as usize] == train.labels[**row]
                    })
                    .count();
            }
            right
        };
        let mut best = (strengths[0], 0);
        for c in strengths {
            let right = right(*c);
            if right > best.1 {
                best = (*c, right);
            }
        }
        (best.0, best.1 as f64 / count as f64)
    }
}

fn all(count: usize) -> Vec<usize> {
    (0..count).collect()
}

fn standardised(train: &Features) -> (Standardiser, Vec<f64>, Vec<f64>) {
    let standardiser = Standardiser::fit(&train.rows, train.width);
    let rows = standardiser.apply(&train.rows);
    let squares = squares(&rows, train.width);
    (standardiser, rows, squares)
}

/// Squared length of each row.
fn squares(rows: &[f64], width: usize) -> Vec<f64> {
    rows.chunks_exact(width.max(1)).map(|row| row.iter().map(|v| v * v).sum()).collect()
}

/// One over the number of features times the variance of all their numbers together.
fn scale(rows: &[f64], width: usize) -> f64 {
    let count = rows.len().max(1) as f64;
    let mean = rows.iter().sum::<f64>() / count;
    let variance = rows.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
    if variance > 0.0 { 1.0 / (width as f64 * variance) } else { 1.0 }
}

/// `exp(−γ‖a − b‖²)` of all pairs, `[row of a, row of b]`.
fn kernel(
    a: &[f64],
    a_squares: &[f64],
    b: &[f64],
    b_squares: &[f64],
    width: usize,
    gamma: f64,
) -> Vec<f64> {
    let (rows, columns) = (a_squares.len(), b_squares.len());
    let mut out = vec![0.0; rows * columns];
    let (a, b) = (Matrix::new(a, rows, width), Matrix::new(b, columns, width));
    multiply(a, b.transposed(), &mut out);
    for (row, square) in out.chunks_exact_mut(columns.max(1)).zip(a_squares) {
        for (value, other) in row.iter_mut().zip(b_squares) {
            *value = (-gamma * (square + other - 2.0 * *value).max(0.0)).exp();
        }
    }
    out
}

/// A machine for each pair of the classes among `chosen` rows, and these classes.
fn fit_pairs(kernel: &[f64], labels: &[u32], chosen: &[usize], c: f64) -> (Vec<u32>, Vec<Machine>) {
    let mut present: Vec<u32> = chosen.iter().map(|row| labels[*row]).collect();
    present.sort_unstable();
    present.dedup();
    let mut machines = vec![];
    for first in 0..present.len() {
        for second in first + 1..present.len() {
            let sign = |row: &usize| match labels[*row] {
                class if class == present[first] => Some((*row, 1.0)),
                class if class == present[second] => Some((*row, -1.0)),
                _ => None,
            };
            let signed: Vec<(usize, f64)> = chosen.iter().filter_map(sign).collect();
            let (support, bias) = minimise(kernel, labels.len(), &signed, c);
            machines.push(Machine { pair: [first, second], support, bias });
        }
    }
    (present, machines)
}

/// Scores of a row's classes from its kernel values.
fn votes(machines: &[Machine], classes: usize, kernel: &dyn Fn(usize) -> f64) -> Vec<f64> {
    let mut scores = vec![0.0; classes];
    let mut confidences = vec![0.0; classes];
    for machine in machines {
        let ([first, second], value) = (&machine.pair, machine.value(kernel));
        confidences[*first] += value;
        confidences[*second] -= value;
        scores[if value >= 0.0 { *first } else { *second }] += 1.0;
    }
    for (score, confidence) in scores.iter_mut().zip(&confidences) {
        *score += confidence / (3.0 * (confidence.abs() + 1.0));
    }
    scores
}

/// Shares of a row's classes from its kernel values.
fn shares(machines: &[Machine], classes: usize, kernel: &dyn Fn(usize) -> f64) -> Vec<f64> {
    if machines.is_empty() {
        return vec![1.0 / classes.max(1) as f64; classes];
    }
    let mut shares = vec![0.0; classes];
    for machine in machines {
        let first = 1.0 / (1.0 + (-2.0 * machine.value(kernel)).exp());
        shares[machine.pair[0]] += first / machines.len() as f64;
        shares[machine.pair[1]] += (1.0 - first) / machines.len() as f64;
    }
    shares
}

/// Solves the dual problem for rows with their signs, and returns the support vectors and the bias.
fn minimise(
    kernel: &[f64],
    stride: usize,
    signed: &[(usize, f64)],
    c: f64,
) -> (Vec<(usize, f64)>, f64) {
    let count = signed.len();
    let k = |a: usize, b: usize| kernel[signed[a].0 * stride + signed[b].0];
    let y = |a: usize| signed[a].1;
    let mut alpha = vec![0.0; count];
    let mut gradient = vec![-1.0; count];
    let rises = |a: usize, alpha: f64| if y(a) > 0.0 { alpha < c } else { alpha > 0.0 };
    let falls = |a: usize, alpha: f64| if y(a) > 0.0 { alpha > 0.0 } else { alpha < c };
    // Far more than any problem of this size takes.
    for _ in 0..100 * count.max(100) {
        let Some((i, highest)) = (0..count)
            .filter(|t| rises(*t, alpha[*t]))
            .map(|t| (t, -y(t) * gradient[t]))
            .reduce(|best, next| if next.1 > best.1 { next } else { best })
        else {
            break;
        };
        let (mut lowest, mut chosen) = (f64::INFINITY, None);
        for t in (0..count).filter(|t| falls(*t, alpha[*t])) {
            let value = -y(t) * gradient[t];
            lowest = lowest.min(value);
            let distance = highest - value;
            if distance > 0.0 {
                let curvature = (k(i, i) + k(t, t) - 2.0 * k(i, t)).max(SMALLEST_CURVATURE);
                let gain = -distance * distance / curvature;
                if chosen.is_none_or(|(_, best)| gain < best) {
                    chosen = Some((t, gain));
                }
            }
        }
        let Some((j, _)) = chosen.filter(|_| highest - lowest >= TOLERANCE) else { break };
        let curvature = (k(i, i) + k(j, j) - 2.0 * k(i, j)).max(SMALLEST_CURVATURE);
        let wanted = (highest + y(j) * gradient[j]) / curvature;
        // Along y_i·α_i up and y_j·α_j down, both within their box.
        let room = |a: usize, up: bool| if (y(a) > 0.0) == up { c - alpha[a] } else { alpha[a] };
        let step = wanted.min(room(i, true)).min(room(j, false));
        let before = (alpha[i], alpha[j]);
        alpha[i] = (alpha[i] + y(i) * step).clamp(0.0, c);
        alpha[j] = (alpha[j] - y(j) * step).clamp(0.0, c);
        let change = (y(i) * (alpha[i] - before.0), y(j) * (alpha[j] - before.1));
        for (t, gradient) in gradient.iter_mut().enumerate() {
            *gradient += y(t) * (change.0 * k(i, t) + change.1 * k(j, t));
        }
    }
    let bias = bias(&alpha, &gradient, signed, c);
    let support = (0..count).filter(|t| alpha[*t] > 0.0);
    (support.map(|t| (signed[t].0, y(t) * alpha[t])).collect(), bias)
}

/// The mean over free support vectors, or the middle of the bounds where none is free.
fn bias(alpha: &[f64], gradient: &[f64], signed: &[(usize, f64)], c: f64) -> f64 {
    let (mut sum, mut free) = (0.0, 0);
    let (mut upper, mut lower) = (f64::INFINITY, f64::NEG_INFINITY);
    for ((alpha, gradient), (_, y)) in alpha.iter().zip(gradient).zip(signed) {
        let value = y * gradient;
        if *alpha > 0.0 && *alpha < c {
            sum += value;
            free += 1;
        } else if (*alpha == 0.0) == (*y > 0.0) {
            upper = upper.min(value);
        } else {
            lower = lower.max(value);
        }
    }
    match free {
        0 => -(upper + lower) / 2.0,
        free => -sum / f64::from(free),
    }
}

#[cfg(test)]
mod tests {
    use firebox_core::Stream;

    use super::*;

    fn sample(rows: usize, width: usize, classes: u32, seed: u64) -> Features {
        let mut draws = Stream::new(seed, "svm").draws();
        let labels: Vec<u32> = (0..rows as u32).map(|row| row % classes).collect();
        let rows = labels.iter().flat_map(|label| {
            let place = (*label as usize) % width;
            let shift = move |at| if at == place { 2.0 } else { 0.0 };
            (0..width).map(|at| (draws.normal() + shift(at)) as f32).collect::<Vec<_>>()
        });
        Features { rows: rows.collect(), width, labels }
    }

    #[test]
    fn the_optimality_conditions_hold() {
        for (c, seed) in [(0.1, 1), (1.0, 2), (100.0, 3)] {
            let train = sample(60, 4, 2, seed);
            let fitted = Svm::fit(&train, 2, c);
            let [machine] = &fitted.machines[..] else { panic!("one pair") };
            let sum: f64 = machine.support.iter().map(|(_, weight)| weight).sum();
            assert!(sum.abs() < 1e-9, "yᵀα is {sum}");
            let kernel = kernel(
                &fitted.rows,
                &fitted.squares,
                &fitted.rows,
                &fitted.squares,
                4,
                fitted.gamma,
            );
            for (row, label) in train.labels.iter().enumerate() {
                let y = if *label == 0 { 1.0 } else { -1.0 };
                let value = machine.bias
                    + machine.support.iter().map(|(at, w)| w * kernel[row * 60 + at]).sum::<f64>();
                let alpha =
                    machine.support.iter().find(|(at, _)| *at == row).map_or(0.0, |s| s.1 * y);
                let margin = y * value - 1.0;
                match alpha {
                    0.0 => assert!(margin > -1e-3, "{margin}"),
                    alpha if alpha >= c => assert!(margin < 1e-3, "{margin}"),
                    _ => assert!(margin.abs() < 1e-3, "{margin}"),
                }
            }
        }
    }

    #[test]
    fn what_is_not_linear_is_told_apart() {
        let points = [[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0_f32]];
        let train = Features { rows: points.concat(), width: 2, labels: vec![0, 0, 1, 1] };
        let fitted = Svm::fit(&train, 2, 100.0);
        assert_eq!(fitted.predict(&train.rows), train.labels);
    }

    #[test]
    fn a_class_without_rows_is_never_predicted_and_one_class_is_always() {
        let mut train = sample(40, 5, 2, 4);
        train.labels.iter_mut().for_each(|label| *label *= 2);
        let fitted = Svm::fit(&train, 4, 1.0);
        assert!(fitted.predict(&train.rows).iter().all(|class| [0, 2].contains(class)));
        let sums: Vec<f64> =
            fitted.shares(&train.rows).chunks(4).map(|row| row.iter().sum()).collect();
        assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-12));
        train.labels.fill(3);
        assert!(Svm::fit(&train, 4, 1.0).predict(&train.rows).iter().all(|class| *class == 3));
    }

    #[test]
    fn the_strength_is_chosen_on_rows_that_were_not_fitted() {
        // Labels without any connection to the rows: nothing to gain from fitting them closely.
        let mut train = sample(90, 6, 3, 5);
        let (_, share) = Svm::choose(&train, &[1.0, 10.0], 5);
        assert!(share > 0.6, "{share}");
        let mut draws = Stream::new(6, "labels").draws();
        train.labels.iter_mut().for_each(|label| *label = draws.below(3) as u32);
        let (_, share) = Svm::choose(&train, &[1.0, 10.0, 1e4], 5);
        assert!(share < 0.5, "{share}");
        assert_eq!(Svm::choose(&train, &[7.0], 5).0, 7.0);
    }
}
