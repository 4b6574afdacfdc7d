//! The density that past trials give to a space: a mixture of one kernel for each trial, and a prior.
//!
//! Each kernel is a product over the parameters: a truncated normal (on a logarithmic axis, or added up
//! over each step, where the parameter has them), or weights of the choices. Source: Bergstra et al.,
//! "Algorithms for hyper-parameter optimization", 2011, with the widths and weights of Optuna 5.0.0
//! (`optuna/samplers/_tpe/parzen_estimator.py`, `probability_distributions.py`).

use std::collections::BTreeMap;

use crate::normal;
use crate::space::Distribution;

/// How wide kernels are and how much the prior weighs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) prior_weight: f64,
    pub(crate) magic_clip: bool,
    pub(crate) endpoints: bool,
}

/// A mixture over a space. The last kernel is the prior.
#[derive(Clone, Debug)]
pub(crate) struct Parzen {
    /// Of each kernel, adding up to 1.
    weights: Vec<f64>,
    /// Of each parameter in the order of names.
    axes: Vec<Axis>,
}

/// One parameter of all kernels.
#[derive(Clone, Debug)]
enum Axis {
    Choices(Choices),
    Numbers(Numbers),
}

#[derive(Clone, Debug)]
struct Choices {
    count: usize,
    /// Of each kernel but the prior.
    observed: Vec<usize>,
    /// By the choice observed, its weight and that of each other one. They differ in the last bit.
    shares: Vec<(f64, f64)>,
}

#[derive(Clone, Debug)]
struct Numbers {
    /// On the logarithmic axis if there is one, like `sigma`, `from` and `to`.
    mu: Vec<f64>,
    sigma: Vec<f64>,
    from: f64,
    to: f64,
    /// Of the values themselves.
    low: f64,
    high: f64,
    step: Option<f64>,
    log: bool,
}

impl Parzen {
    /// The density given by `observations`: of each of them the internal values of all parameters of
    /// `space`, in the order of names. With no `weights`, older ones weigh less.
    pub(crate) fn new(
        observations: &[Vec<f64>],
        space: &BTreeMap<&str, &Distribution>,
        shape: Shape,
        weights: Option<Vec<f64>>,
    ) -> Self {
        let mut weights = weights.unwrap_or_else(|| default_weights(observations.len()));
        weights.push(if observations.is_empty() { 1.0 } else { shape.prior_weight });
        let sum: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= sum);
        let axis = |(place, distribution): (usize, &&Distribution)| {
            let observed: Vec<f64> = observations.iter().map(|values| values[place]).collect();
            Axis::new(&observed, distribution, shape)
        };
        Self { weights, axes: space.values().enumerate().map(axis).collect() }
    }

    /// Draws `count` points; `draw` gives uniform numbers in [0, 1). They are asked for in Optuna's
    /// order: kernels, then choices, then numbers, parameter by parameter.
    pub(crate) fn sample(&self, count: usize, draw: &mut dyn FnMut() -> f64) -> Vec<Vec<f64>> {
        let mut cumulative = self.weights.clone();
        for kernel in 1..cumulative.len() {
            cumulative[kernel] += cumulative[kernel - 1];
        }
        let total = cumulative[cumulative.len() - 1];
        cumulative.iter_mut().for_each(|weight| *weight /= total);
        let last = cumulative.len() - 1;
        let kernels: Vec<usize> = (0..count)
            .map(|_| draw())
            .map(|unit| cumulative.partition_point(|weight| *weight <= unit).min(last))
            .collect();
        let mut points = vec![vec![0.0; self.axes.len()]; count];
        for numbers in [false, true] {
            for (place, axis) in self.axes.iter().enumerate() {
                if numbers == matches!(axis, Axis::Numbers(_)) {
                    for (point, kernel) in points.iter_mut().zip(&kernels) {
                        point[place] = axis.at(*kernel, draw());
                    }
                }
            }
        }
        points
    }

    /// The logarithm of the density at each point.
    pub(crate) fn log_density(&self, points: &[Vec<f64>]) -> Vec<f64> {
        let log_weights: Vec<f64> = self.weights.iter().map(|weight| weight.ln()).collect();
        let mut terms = vec![log_weights; points.len()];
        for (place, axis) in self.axes.iter().enumerate() {
            let values: Vec<f64> = points.iter().map(|point| point[place]).collect();
            axis.add_log_density(&values, &mut terms);
        }
        terms.into_iter().map(|terms| log_sum(&terms)).collect()
    }
}

impl Axis {
    fn new(observed: &[f64], distribution: &Distribution, shape: Shape) -> Self {
        match *distribution {
            Distribution::Categorical { ref choices } => {
                let count = choices.len();
                let base = shape.prior_weight / (observed.len() as f64 + 1.0);
                let share = |choice: usize| {
                    let mut row = vec![base; count];
                    row[choice] += 1.0;
                    let sum = sum(&row);
                    (row[choice] / sum, base / sum)
                };
                Self::Choices(Choices {
                    count,
                    observed: observed.iter().map(|index| *index as usize).collect(),
                    shares: (0..count).map(share).collect(),
                })
            }
            Distribution::Float { low, high, log, step } => {
                Self::Numbers(Numbers::new(observed, [low, high], step, log, shape))
            }
            Distribution::Int { low, high, log, step } => {
                let ends = [low as f64, high as f64];
                Self::Numbers(Numbers::new(observed, ends, Some(step as f64), log, shape))
            }
        }
    }

    /// The value at the quantile `unit` of one kernel.
    fn at(&self, kernel: usize, unit: f64) -> f64 {
        match self {
            Self::Choices(axis) => {
                let mut sum = 0.0;
                let below = |choice: &usize| {
                    sum += axis.weight(kernel, *choice);
                    sum < unit
                };
                (0..axis.count - 1).take_while(below).count() as f64
            }
            Self::Numbers(axis) => axis.at(kernel, unit),
        }
    }

    /// Adds each kernel's logarithmic density at each value to `terms[value][kernel]`.
    fn add_log_density(&self, values: &[f64], terms: &mut [Vec<f64>]) {
        match self {
            Self::Choices(axis) => {
                let shares: Vec<_> =
                    axis.shares.iter().map(|(hit, miss)| (hit.ln(), miss.ln())).collect();
                for (value, terms) in values.iter().zip(terms) {
                    for (term, observed) in terms.iter_mut().zip(&axis.observed) {
                        let (hit, miss) = shares[*observed];
                        *term += if *observed == *value as usize { hit } else { miss };
                    }
                    if let Some(prior) = terms.last_mut() {
                        *prior += (1.0 / axis.count as f64).ln();
                    }
                }
            }
            Self::Numbers(axis) => axis.add_log_density(values, terms),
        }
    }
}

impl Choices {
    fn weight(&self, kernel: usize, choice: usize) -> f64 {
        let Some(observed) = self.observed.get(kernel) else { return 1.0 / self.count as f64 };
        let (hit, miss) = self.shares[*observed];
        if *observed == choice { hit } else { miss }
    }
}

impl Numbers {
    fn new(observed: &[f64], ends: [f64; 2], step: Option<f64>, log: bool, shape: Shape) -> Self {
        let [low, high] = ends;
        let half = step.unwrap_or(0.0) / 2.0;
        let axis = |value: f64| if log { value.ln() } else { value };
        let (from, to) = (axis(low - half), axis(high + half));
        let mut mu: Vec<f64> = observed.iter().copied().map(axis).collect();
        let mut sigma = widths(&mu, from, to, shape);
        mu.push(0.5 * (from + to));
        sigma.push(to - from);
        Self { mu, sigma, from, to, low, high, step, log }
    }

    fn at(&self, kernel: usize, unit: f64) -> f64 {
        let (mu, sigma) = (self.mu[kernel], self.sigma[kernel]);
        let place = normal::quantile(unit, (self.from - mu) / sigma, (self.to - mu) / sigma);
        let value = place * sigma + mu;
        let value = if self.log { value.exp() } else { value };
        let value = self
            .step
            .map_or(value, |step| self.low + ((value - self.low) / step).round_ties_even() * step);
        value.clamp(self.low, self.high)
    }

    fn add_log_density(&self, values: &[f64], terms: &mut [Vec<f64>]) {
        let axis = |value: f64| if self.log { value.ln() } else { value };
        let half = self.step.map(|step| step / 2.0);
        for (kernel, (mu, sigma)) in self.mu.iter().zip(&self.sigma).enumerate() {
            let place = |value: f64| (axis(value) - mu) / sigma;
            let mass = normal::log_mass_between((self.from - mu) / sigma, (self.to - mu) / sigma);
            for (value, terms) in values.iter().zip(terms.iter_mut()) {
                terms[kernel] += match half {
                    None => normal::log_density(place(*value)) - mass - sigma.ln(),
                    Some(half) => {
                        normal::log_mass_between(place(value - half), place(value + half)) - mass
                    }
                };
            }
        }
    }
}

/// The standard deviation of each kernel: the distance to the farther neighbour, within limits.
fn widths(mu: &[f64], from: f64, to: f64, shape: Shape) -> Vec<f64> {
    let mut order: Vec<usize> = (0..mu.len()).collect();
    order.sort_by(|a, b| mu[*a].total_cmp(&mu[*b]));
    let greatest = to - from;
    let least =
        if shape.magic_clip { greatest / 100.0_f64.min(2.0 + mu.len() as f64) } else { 1e-12 };
    let mut sigma = vec![0.0; mu.len()];
    for (place, kernel) in order.iter().enumerate() {
        let before = place.checked_sub(1).map(|before| mu[order[before]]);
        let after = order.get(place + 1).map(|after| mu[*after]);
        let [left, right] = [before.unwrap_or(from), after.unwrap_or(to)];
        let (left, right) = (mu[*kernel] - left, right - mu[*kernel]);
        let width = match (before, after) {
            (None, Some(_)) if !shape.endpoints => right,
            (Some(_), None) if !shape.endpoints => left,
            _ => left.max(right),
        };
        sigma[*kernel] = width.max(least).min(greatest);
    }
    sigma
}

/// Weights of `count` trials from the oldest to the newest: 1 for the last 25, less the older.
pub(crate) fn default_weights(count: usize) -> Vec<f64> {
    let ramp = count.saturating_sub(25);
    let first = 1.0 / count as f64;
    let rising = (0..ramp).map(|i| {
        if i + 1 == ramp && ramp > 1 {
            1.0
        } else {
            first + i as f64 * ((1.0 - first) / (ramp.max(2) - 1) as f64)
        }
    });
    rising.chain(std::iter::repeat_n(1.0, count - ramp)).collect()
}

fn log_sum(terms: &[f64]) -> f64 {
    let greatest = terms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let shift = if greatest == f64::NEG_INFINITY { 0.0 } else { greatest };
    let shares: Vec<f64> = terms.iter().map(|term| (term - shift).exp()).collect();
    sum(&shares).ln() + shift
}

/// The sum in NumPy's order of additions. Choices often have exactly the same density, and then the
/// last bit decides which is taken.
fn sum(terms: &[f64]) -> f64 {
    if terms.len() < 8 {
        return terms.iter().sum();
    }
    if terms.len() > 128 {
        let half = terms.len() / 2;
        let (left, right) = terms.split_at(half - half % 8);
        return sum(left) + sum(right);
    }
    let chunks = terms.chunks_exact(8);
    let rest = chunks.remainder();
    let mut partial = [0.0; 8];
    for chunk in chunks {
        for (partial, term) in partial.iter_mut().zip(chunk) {
            *partial += term;
        }
    }
    let [a, b, c, d, e, f, g, h] = partial;
    rest.iter().fold(((a + b) + (c + d)) + ((e + f) + (g + h)), |sum, term| sum + term)
}
