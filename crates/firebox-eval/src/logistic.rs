//! Multinomial logistic regression with an L2 penalty: the linear probe.
//!
//! Minimises `mean log-loss + l2 / (2 n) · ‖W‖²` over `n` standardised training rows, intercepts not
//! penalised; for three classes and more this is scikit-learn's `LogisticRegression(C = 1 / l2)`.
//! With two classes there are still two weight vectors, so the same optimum has `C = 2 / l2`.
//!
//! The optimizer is L-BFGS (Nocedal and Wright, "Numerical Optimization", algorithm 7.4) in f64. Its
//! initial Hessian is Böhning's bound `½ XᵀX / n + l2 / n` ("Multinomial logistic regression
//! algorithm", 1992), factored once: collinear features, which windows of a time series are full
//! of, then cost a few dozen iterations instead of thousands.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::features::{Features, Standardiser, first_largest};
use crate::matrix::{Matrix, cholesky, multiply, solve};
use crate::ridge::ROWS;

/// Above this width the bound is taken as diagonal: its factor would take longer than it saves.
const WIDEST_FACTOR: usize = 2048;
/// Pairs of steps and gradient changes that L-BFGS remembers.
const MEMORY: usize = 10;

/// When fitting stops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stop {
    /// Most iterations.
    pub iterations: usize,
    /// Largest entry of the gradient of the mean loss.
    pub gradient: f64,
}

/// A fitted probe.
#[derive(Clone, Debug, PartialEq)]
pub struct Logistic {
    standardiser: Standardiser,
    classes: usize,
    /// The classes that occur in training; no other is ever predicted.
    present: Vec<u32>,
    /// `[present class, feature + 1]`; the last column holds the intercepts.
    weights: Vec<f64>,
    /// Whether the gradient came below its bound.
    pub converged: bool,
}

/// Training rows prepared once for every strength of the penalty.
pub(crate) struct LogisticProblem {
    standardiser: Standardiser,
    x: Vec<f64>,
    y: Vec<usize>,
    classes: usize,
    present: Vec<u32>,
    width: usize,
    /// `½ XᵀX / n`, or only its diagonal.
    bound: Bound,
}

enum Bound {
    Full(Vec<f64>),
    Diagonal(Vec<f64>),
}

impl LogisticProblem {
    /// Standardises the rows and forms the bound of the Hessian.
    pub(crate) fn new(train: &Features, classes: usize) -> Self {
        Self::of(train, classes, Standardiser::fit(&train.rows, train.width))
    }

    fn of(train: &Features, classes: usize, standardiser: Standardiser) -> Self {
        let x = standardiser.apply(&train.rows);
        let mut present = train.labels.clone();
        present.sort_unstable();
        present.dedup();
        let y = train.labels.iter().map(|label| present.partition_point(|p| p < label)).collect();
        let (rows, width) = (train.len(), train.width);
        let scale = 0.5 / rows.max(1) as f64;
        let bound = if width <= WIDEST_FACTOR {
            let mut gram = vec![0.0; width * width];
            let view = Matrix::new(&x, rows, width);
            multiply(view.transposed(), view, &mut gram);
            gram.iter_mut().for_each(|value| *value *= scale);
            Bound::Full(gram)
        } else {
            // A diagonal is no upper bound; the line search makes up for it.
            Bound::Diagonal(vec![scale * rows as f64; width])
        };
        Self { standardiser, x, y, classes, present, width, bound }
    }

    /// Fits at one strength of the penalty, from the weights of a neighbouring one if given.
    pub(crate) fn fit(&self, l2: f64, start: Option<&Logistic>, stop: Stop) -> Logistic {
        self.fit_watched(l2, start, stop, &AtomicBool::new(false))
    }

    /// [`fit`](Self::fit), which ends once `halt` is true, after the iteration that it is in. What it has come to by then
    /// is no fit: whoever gives `halt` looks at it afterwards.
    pub(crate) fn fit_watched(
        &self,
        l2: f64,
        start: Option<&Logistic>,
        stop: Stop,
        halt: &AtomicBool,
    ) -> Logistic {
        let size = self.present.len() * (self.width + 1);
        let mut weights = match start {
            Some(start) => start.weights.clone(),
            None => vec![0.0; size],
        };
        let rows = self.y.len().max(1) as f64;
        // A penalty of zero would leave collinear directions undetermined.
        let l2 = (l2 / rows).max(1e-12);
        let converged = self.present.len() < 2 || self.minimise(&mut weights, l2, stop, halt);
        Logistic {
            standardiser: self.standardiser.clone(),
            classes: self.classes,
            present: self.present.clone(),
            weights,
            converged,
        }
    }

    fn minimise(&self, weights: &mut Vec<f64>, l2: f64, stop: Stop, halt: &AtomicBool) -> bool {
        let preconditioner = self.preconditioner(l2);
        let mut memory = VecDeque::<Pair>::with_capacity(MEMORY);
        let (mut loss, mut gradient) = self.loss(weights, l2);
        for _ in 0..stop.iterations {
            if gradient.iter().all(|g| g.abs() <= stop.gradient) {
                return true;
            }
            if halt.load(Ordering::Relaxed) {
                return false;
            }
            let direction =
                direction(&gradient, &memory, |v| self.precondition(&preconditioner, v));
            let slope = dot(&direction, &gradient);
            let Some((next, next_loss, next_gradient)) =
                self.line_search(weights, &direction, loss, slope, l2)
            else {
                // The loss cannot fall further in f64.
                return gradient.iter().all(|g| g.abs() <= stop.gradient.max(1e-6));
            };
            let step: Vec<f64> = next.iter().zip(&*weights).map(|(a, b)| a - b).collect();
            let change: Vec<f64> =
                next_gradient.iter().zip(&gradient).map(|(a, b)| a - b).collect();
            let curvature = dot(&step, &change);
            if curvature > 1e-12 * dot(&change, &change).sqrt() * dot(&step, &step).sqrt() {
                if memory.len() == MEMORY {
                    memory.pop_front();
                }
                memory.push_back(Pair { step, change, inverse: curvature.recip() });
            }
            (*weights, loss, gradient) = (next, next_loss, next_gradient);
        }
        gradient.iter().all(|g| g.abs() <= stop.gradient)
    }

    /// Halves the step until the loss falls by its due share (Armijo).
    fn line_search(
        &self,
        weights: &[f64],
        direction: &[f64],
        loss: f64,
        slope: f64,
        l2: f64,
    ) -> Option<(Vec<f64>, f64, Vec<f64>)> {
        let mut length = 1.0;
        for _ in 0..40 {
            let next: Vec<f64> =
                weights.iter().zip(direction).map(|(w, d)| w + length * d).collect();
            let (next_loss, gradient) = self.loss(&next, l2);
            if next_loss <= loss + 1e-4 * length * slope && next_loss < loss {
                return Some((next, next_loss, gradient));
            }
            length *= 0.5;
        }
        None
    }

    /// Mean penalised loss and its gradient.
    fn loss(&self, weights: &[f64], l2: f64) -> (f64, Vec<f64>) {
        let (classes, stride) = (self.present.len(), self.width + 1);
        let rows = self.y.len();
        let mut residual = logits(weights, classes, self.width, &self.x);
        let mut loss = 0.0;
        for (row, label) in residual.chunks_exact_mut(classes).zip(&self.y) {
            let target = row[*label];
            let normaliser = softmax(row);
            loss += normaliser - target;
            row[*label] -= 1.0;
        }
        let mut product = vec![0.0; classes * self.width];
        let residuals = Matrix::new(&residual, rows, classes);
        multiply(residuals.transposed(), Matrix::new(&self.x, rows, self.width), &mut product);
        let scale = (rows as f64).recip();
        let mut gradient = vec![0.0; weights.len()];
        let mut square = 0.0;
        for class in 0..classes {
            let own = &weights[class * stride..(class + 1) * stride];
            let out = &mut gradient[class * stride..(class + 1) * stride];
            let product = &product[class * self.width..(class + 1) * self.width];
            for ((out, weight), sum) in out.iter_mut().zip(&own[..self.width]).zip(product) {
                square += weight * weight;
                *out = sum * scale + l2 * weight;
            }
            out[self.width] = residual.iter().skip(class).step_by(classes).sum::<f64>() * scale;
        }
        (loss * scale + 0.5 * l2 * square, gradient)
    }

    fn preconditioner(&self, l2: f64) -> Bound {
        let diagonal = |bound: &[f64]| Bound::Diagonal(bound.iter().map(|v| v + l2).collect());
        match &self.bound {
            Bound::Full(gram) => {
                let width = self.width;
                let mut shifted = gram.clone();
                let trace: f64 = (0..width).map(|i| gram[i * width + i]).sum();
                // Rounding may make the smallest eigenvalues negative: lift them a little.
                let lift = l2 + 1e-10 * trace / width.max(1) as f64;
                (0..width).for_each(|i| shifted[i * width + i] += lift.max(1e-10));
                cholesky(shifted, width).map_or_else(
                    || {
                        let own: Vec<f64> = (0..width).map(|i| gram[i * width + i]).collect();
                        diagonal(&own)
                    },
                    Bound::Full,
                )
            }
            Bound::Diagonal(bound) => diagonal(bound),
        }
    }

    /// Divides by the bound of the Hessian, class by class.
    fn precondition(&self, bound: &Bound, vector: &mut [f64]) {
        for own in vector.chunks_exact_mut(self.width + 1) {
            let (own, intercept) = own.split_at_mut(self.width);
            // Standardised columns have mean zero, so that the intercept stands alone.
            intercept[0] /= 0.5;
            match bound {
                Bound::Full(factor) => solve(factor, self.width, own),
                Bound::Diagonal(diagonal) => {
                    own.iter_mut().zip(diagonal).for_each(|(v, d)| *v /= d.max(1e-12));
                }
            }
        }
    }
}

struct Pair {
    step: Vec<f64>,
    change: Vec<f64>,
    inverse: f64,
}

/// The two-loop recursion: minus the inverse Hessian's estimate times the gradient.
fn direction(
    gradient: &[f64],
    memory: &VecDeque<Pair>,
    precondition: impl Fn(&mut [f64]),
) -> Vec<f64> {
    let mut q: Vec<f64> = gradient.iter().map(|g| -g).collect();
    let mut shares = Vec::with_capacity(memory.len());
    for pair in memory.iter().rev() {
        let share = pair.inverse * dot(&pair.step, &q);
        q.iter_mut().zip(&pair.change).for_each(|(q, c)| *q -= share * c);
        shares.push(share);
    }
    precondition(&mut q);
    for (pair, share) in memory.iter().zip(shares.into_iter().rev()) {
        let correction = share - pair.inverse * dot(&pair.change, &q);
        q.iter_mut().zip(&pair.step).for_each(|(q, s)| *q += correction * s);
    }
    q
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `x · Wᵀ + b`: `[row, class]`.
fn logits(weights: &[f64], classes: usize, width: usize, x: &[f64]) -> Vec<f64> {
    let rows = x.len().checked_div(width).unwrap_or(0);
    let mut plain = Vec::with_capacity(classes * width);
    let mut intercepts = Vec::with_capacity(classes);
    for own in weights.chunks_exact(width + 1) {
        plain.extend_from_slice(&own[..width]);
        intercepts.push(own[width]);
    }
    let mut out = vec![0.0; rows * classes];
    let w = Matrix::new(&plain, classes, width);
    multiply(Matrix::new(x, rows, width), w.transposed(), &mut out);
    for row in out.chunks_exact_mut(classes) {
        row.iter_mut().zip(&intercepts).for_each(|(out, b)| *out += b);
    }
    out
}

/// Turns logits into probabilities and returns the logarithm of their normaliser.
fn softmax(row: &mut [f64]) -> f64 {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for value in row.iter_mut() {
        *value = (*value - largest).exp();
        sum += *value;
    }
    row.iter_mut().for_each(|value| *value /= sum);
    largest + sum.ln()
}

impl Logistic {
    /// Fits to training rows.
    ///
    /// # Panics
    ///
    /// When a label is not below `classes`, there is no row, or a feature is not finite, as in predictions.
    pub fn fit(train: &Features, classes: usize, l2: f64, stop: Stop) -> Self {
        assert!(!train.is_empty(), "no rows to fit to");
        LogisticProblem::new(train, classes).fit(l2, None, stop)
    }

    /// The same with features in their own units, of which those that vary more cost less: what suits features of one
    /// scale, such as TF-IDF. `l2` is as for rows that are not standardised.
    ///
    /// # Panics
    ///
    /// As for [`fit`](Self::fit).
    pub fn fit_unscaled(train: &Features, classes: usize, l2: f64, stop: Stop) -> Self {
        assert!(!train.is_empty(), "no rows to fit to");
        let centred = Standardiser::centred(&train.rows, train.width);
        LogisticProblem::of(train, classes, centred).fit(l2, None, stop)
    }

    /// Probability of each class.
    ///
    /// # Shapes
    ///
    /// - `rows`: `[row, feature]`; returns `[row, class]`, row-major.
    pub fn probabilities(&self, rows: &[f32]) -> Vec<f64> {
        let kept = self.present.len();
        let width = self.weights.len() / kept - 1;
        let mut out = vec![];
        for rows in rows.chunks((ROWS * width).max(1)) {
            let x = self.standardiser.apply(rows);
            for own in logits(&self.weights, kept, width, &x).chunks_exact_mut(kept) {
                softmax(own);
                let mut all = vec![0.0; self.classes];
                self.present.iter().zip(own).for_each(|(class, p)| all[*class as usize] = *p);
                out.extend(all);
            }
        }
        out
    }

    /// The most probable class of each row; of equal ones the first.
    pub fn predict(&self, rows: &[f32]) -> Vec<u32> {
        self.probabilities(rows).chunks_exact(self.classes.max(1)).map(first_largest).collect()
    }

    /// Mean negative log-probability of the true classes. A class unseen in training counts as
    /// one part in 10¹⁵.
    pub fn log_loss(&self, rows: &Features) -> f64 {
        let probabilities = self.probabilities(&rows.rows);
        let sum: f64 = probabilities
            .chunks_exact(self.classes.max(1))
            .zip(&rows.labels)
            .map(|(row, label)| -row[*label as usize].max(1e-15).ln())
            .sum();
        sum / rows.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use firebox_core::Stream;

    use super::*;

    const STOP: Stop = Stop { iterations: 500, gradient: 1e-9 };

    fn sample(rows: usize, width: usize, classes: u32, seed: u64) -> Features {
        let mut draws = Stream::new(seed, "logistic").draws();
        let mut features = Features { width, ..Features::default() };
        for row in 0..rows {
            let label = row as u32 % classes;
            let mut level = 0.0;
            for column in 0..width {
                level = 0.9 * level + draws.normal();
                let shift = if column as u32 % classes == label { 0.4 } else { 0.0 };
                features.rows.push((100.0 * (level + shift)) as f32 + 3.0);
            }
            features.labels.push(label);
        }
        features
    }

    #[test]
    fn the_gradient_is_the_derivative_of_the_loss_and_vanishes_at_the_fit() {
        let train = sample(60, 7, 3, 1);
        let problem = LogisticProblem::new(&train, 3);
        let mut draws = Stream::new(2, "weights").draws();
        let weights: Vec<f64> = (0..24).map(|_| 0.3 * draws.normal()).collect();
        let (_, gradient) = problem.loss(&weights, 0.05);
        for place in 0..24 {
            let at = |shift: f64| {
                let mut moved = weights.clone();
                moved[place] += shift;
                problem.loss(&moved, 0.05).0
            };
            let numeric = (at(1e-5) - at(-1e-5)) / 2e-5;
            assert!((numeric - gradient[place]).abs() < 1e-8, "{place}");
        }
        let fitted = problem.fit(3.0, None, STOP);
        assert!(fitted.converged);
        let (_, gradient) = problem.loss(&fitted.weights, 3.0 / 60.0);
        assert!(gradient.iter().all(|g| g.abs() < 1e-8));
    }

    #[test]
    fn a_fit_that_is_halted_takes_no_further_iteration() {
        let problem = LogisticProblem::new(&sample(60, 7, 3, 1), 3);
        let halted = problem.fit_watched(3.0, None, STOP, &AtomicBool::new(true));
        assert!(!halted.converged && halted.weights.iter().all(|weight| *weight == 0.0));
        let whole = problem.fit_watched(3.0, None, STOP, &AtomicBool::new(false));
        assert_eq!(whole, problem.fit(3.0, None, STOP));
    }

    #[test]
    fn more_features_than_rows_converges_from_either_start() {
        let train = sample(30, 200, 3, 3);
        let problem = LogisticProblem::new(&train, 3);
        let cold = problem.fit(0.1, None, STOP);
        let warm = problem.fit(0.1, Some(&problem.fit(10.0, None, STOP)), STOP);
        assert!(cold.converged && warm.converged);
        for (a, b) in cold.weights.iter().zip(&warm.weights) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
    }

    #[test]
    fn rows_that_are_taken_some_at_a_time_have_the_probabilities_of_all_at_once() {
        let rows = sample(600, 9, 3, 5);
        let fitted = Logistic::fit(&rows, 4, 1.0, STOP);
        let all = fitted.probabilities(&rows.rows);
        assert_eq!(all.len(), 4 * 600);
        let (first, second) = rows.rows.split_at(9 * 300);
        let halves = [fitted.probabilities(first), fitted.probabilities(second)].concat();
        let alone: Vec<f64> =
            rows.rows.chunks(9).flat_map(|row| fitted.probabilities(row)).collect();
        for other in [halves, alone] {
            assert_eq!(other.len(), all.len());
            assert!(all.iter().zip(&other).all(|(a, b)| (a - b).abs() < 1e-12));
        }
    }

    #[test]
    fn a_class_without_rows_is_never_predicted_and_one_class_is_always() {
        let mut train = sample(40, 5, 2, 4);
        train.labels.iter_mut().for_each(|label| *label *= 2);
        let fitted = Logistic::fit(&train, 4, 1.0, STOP);
        let probabilities = fitted.probabilities(&train.rows);
        assert!(probabilities.chunks(4).all(|p| p[1] == 0.0 && p[3] == 0.0));
        train.labels.fill(3);
        let constant = Logistic::fit(&train, 4, 1.0, STOP);
        assert!(constant.predict(&train.rows).iter().all(|class| *class == 3));
    }

    #[test]
    fn separable_rows_and_a_tiny_penalty_stay_finite() {
        let train = Features { rows: vec![-1.0, 1.0], width: 1, labels: vec![0, 1] };
        let fitted = Logistic::fit(&train, 2, 0.0, STOP);
        assert!(fitted.weights.iter().all(|w| w.is_finite()));
        assert_eq!(fitted.predict(&[-0.5, 0.5]), [0, 1]);
    }
}
