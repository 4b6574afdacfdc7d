//! The linear forecaster: ridge regression on the features of a window, all outputs at once.
//!
//! The penalty of each output is chosen on validation windows, its centres and weights come from training windows;
//! the test is not known here.

use rayon::prelude::*;

use crate::matrix::{Matrix, cholesky, multiply, solve};

/// Penalties to choose from, as shares of the mean variance of the features.
const PENALTIES: [f64; 6] = [1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];
/// Samples whose features are held at once.
const CHUNK: usize = 4096;

/// Samples with their features and targets.
#[derive(Clone, Copy)]
pub struct LinearData<'a> {
    /// Number of samples.
    pub samples: usize,
    /// Features of a sample.
    pub width: usize,
    /// Writes the features of a sample, `[feature]`.
    pub features: &'a (dyn Fn(usize, &mut [f64]) + Sync),
    /// `[sample, output]`; NaN where there is none. An output is fitted to the samples that have it, and what is lacking is no
    /// error.
    pub targets: &'a [f32],
}

impl LinearData<'_> {
    /// Features of some samples, `[sample, feature]`.
    fn rows(
        &self,
        samples: impl IntoParallelIterator<Item = usize, Iter: IndexedParallelIterator>,
    ) -> Vec<f64> {
        let samples = samples.into_par_iter();
        let mut rows = vec![0.0; samples.len() * self.width];
        let each = rows.par_chunks_mut(self.width.max(1)).zip(samples);
        each.for_each(|(row, sample)| (self.features)(sample, row));
        rows
    }

    fn chunks(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let samples = self.samples;
        (0..samples).step_by(CHUNK).map(move |from| from..(from + CHUNK).min(samples))
    }

    /// The targets of a sample, `[output]`.
    fn targets_of(&self, sample: usize) -> &[f32] {
        let outputs = self.targets.len() / self.samples;
        &self.targets[sample * outputs..(sample + 1) * outputs]
    }
}

/// A fitted linear forecaster.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// `[output, feature]`
    weights: Vec<f64>,
    /// `[output]`
    intercept: Vec<f64>,
    width: usize,
    /// The penalty that was chosen for each output, in units of the mean variance of the features.
    pub penalties: Vec<f64>,
}

impl Linear {
    /// Minimises `‖y − X·w − b‖² / n + λ · v · ‖w‖²` with `v` the mean variance of the features, for
    /// each penalty λ, and takes for each output that of its least squared error on `validation`, so that none
    /// depends on what else is forecast; without one, the smallest that can be solved. `None` if there is no sample, or
    /// nothing can be solved.
    pub fn fit(train: &LinearData<'_>, validation: Option<&LinearData<'_>>) -> Option<Self> {
        let moments = Moments::of(train)?;
        let parts = moments.by_output(train);
        let fits = PENALTIES.iter().filter_map(|penalty| match &parts {
            None => moments.fit(*penalty),
            Some(parts) => Linear::joined(parts.iter().map(|part| part.fit(*penalty))),
        });
        let Some(validation) = validation.filter(|data| data.samples > 0) else {
            return fits.into_iter().next();
        };
        let fits: Vec<(Vec<f64>, Self)> =
            fits.map(|fit| (fit.squared_errors(validation), fit)).collect();
        let least = |error: &dyn Fn(&[f64]) -> f64| {
            let finite = fits.iter().filter(|(errors, _)| error(errors).is_finite());
            finite.min_by(|(a, _), (b, _)| error(a).total_cmp(&error(b))).map(|(_, fit)| fit)
        };
        let mut chosen = least(&|errors| errors.iter().sum())?.clone();
        for output in 0..chosen.intercept.len() {
            // An output of which nothing was measured has what is best for the others.
            let measured = || (0..validation.samples).map(|at| validation.targets_of(at)[output]);
            if measured().any(|target| !target.is_nan())
                && let Some(fit) = least(&|errors| errors[output])
            {
                chosen.take(output, fit);
            }
        }
        Some(chosen)
    }

    /// Takes an output of another one.
    fn take(&mut self, output: usize, other: &Self) {
        let own = output * self.width..(output + 1) * self.width;
        self.weights[own.clone()].copy_from_slice(&other.weights[own]);
        self.intercept[output] = other.intercept[output];
        self.penalties[output] = other.penalties[output];
    }

    /// Forecasts of all samples; the targets are not read.
    ///
    /// # Shapes
    /// - returns `[sample, output]`
    pub fn predict(&self, data: &LinearData<'_>) -> Vec<f64> {
        let outputs = self.intercept.len();
        let weights = Matrix::new(&self.weights, outputs, self.width).transposed();
        let mut all = Vec::with_capacity(data.samples * outputs);
        for chunk in data.chunks() {
            let samples = chunk.len();
            let rows = data.rows(chunk);
            let mut out = vec![0.0; samples * outputs];
            multiply(Matrix::new(&rows, samples, self.width), weights, &mut out);
            for row in out.chunks_exact_mut(outputs) {
                row.iter_mut().zip(&self.intercept).for_each(|(value, at)| *value += at);
            }
            all.extend(out);
        }
        all
    }

    /// One of all these outputs; `None` if one of them could not be fitted.
    fn joined(parts: impl Iterator<Item = Option<Self>>) -> Option<Self> {
        parts.reduce(|all, next| {
            let (mut all, next) = (all?, next?);
            all.weights.extend(next.weights);
            all.intercept.extend(next.intercept);
            all.penalties.extend(next.penalties);
            Some(all)
        })?
    }

    /// The squared error of each output.
    fn squared_errors(&self, data: &LinearData<'_>) -> Vec<f64> {
        let outputs = self.intercept.len();
        let mut errors = vec![0.0; outputs];
        for (at, (found, wanted)) in self.predict(data).into_iter().zip(data.targets).enumerate() {
            if !wanted.is_nan() {
                errors[at % outputs] += (found - f64::from(*wanted)).powi(2);
            }
        }
        errors
    }
}

/// The mean of an output over the samples that have it; zero if none has.
fn mean_of(data: &LinearData<'_>, output: usize) -> f64 {
    let all = (0..data.samples).map(|sample| data.targets_of(sample)[output]);
    let measured = all.filter(|value| !value.is_nan());
    let (count, sum) = measured.fold((0.0, 0.0), |(n, sum), v| (n + 1.0, sum + f64::from(v)));
    sum / f64::max(count, 1.0)
}

/// Features of some samples about a mean, `[sample, feature]`.
fn centred(
    data: &LinearData<'_>,
    samples: impl IntoParallelIterator<Item = usize, Iter: IndexedParallelIterator>,
    mean: &[f64],
) -> Vec<f64> {
    let mut rows = data.rows(samples);
    for row in rows.chunks_exact_mut(mean.len()) {
        row.iter_mut().zip(mean).for_each(|(value, mean)| *value -= mean);
    }
    rows
}

/// Adds the product of the left, transposed, and the right over `by`.
fn add(left: Matrix<'_, f64>, right: Matrix<'_, f64>, sums: &mut [f64], by: f64) {
    let mut part = vec![0.0; sums.len()];
    multiply(left.transposed(), right, &mut part);
    sums.iter_mut().zip(&part).for_each(|(sum, part)| *sum += part / by);
}

/// Means, and second moments about them.
struct Moments {
    width: usize,
    outputs: usize,
    mean: Vec<f64>,
    target_mean: Vec<f64>,
    /// `[feature, feature]`
    features: Vec<f64>,
    /// `[feature, output]`
    products: Vec<f64>,
}

impl Moments {
    fn of(data: &LinearData<'_>) -> Option<Self> {
        let width = data.width;
        if data.samples == 0 || width == 0 || data.targets.is_empty() {
            return None;
        }
        let outputs = data.targets.len() / data.samples;
        let mut mean = vec![0.0; width];
        for chunk in data.chunks() {
            for row in data.rows(chunk).chunks_exact(width) {
                mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
        }
        let count = data.samples as f64;
        mean.iter_mut().for_each(|sum| *sum /= count);
        let target_mean: Vec<f64> = (0..outputs).map(|output| mean_of(data, output)).collect();
        let (mut features, mut products) = (vec![0.0; width * width], vec![0.0; width * outputs]);
        for chunk in data.chunks() {
            // What is lacking has no part in the products, as if it were the mean.
            let targets = data.targets[chunk.start * outputs..chunk.end * outputs].iter();
            let targets = targets.enumerate().map(|(at, value)| match value.is_nan() {
                true => 0.0,
                false => f64::from(*value) - target_mean[at % outputs],
            });
            let targets: Vec<f64> = targets.collect();
            let rows = centred(data, chunk.clone(), &mean);
            let rows = Matrix::new(&rows, chunk.len(), width);
            add(rows, rows, &mut features, count);
            add(rows, Matrix::new(&targets, chunk.len(), outputs), &mut products, count);
        }
        Some(Self { width, outputs, mean, target_mean, features, products })
    }

    /// The same of each output alone, over the samples that have it, if some lack one: those that do not have it are taken out
    /// of the sums over all, or those that do are summed where they are fewer.
    fn by_output(&self, data: &LinearData<'_>) -> Option<Vec<Self>> {
        let Self { width, outputs, .. } = *self;
        if !data.targets.iter().any(|target| target.is_nan()) {
            return None;
        }
        let of_output = |output: usize| {
            let (lacking, has): (Vec<usize>, Vec<usize>) =
                (0..data.samples).partition(|sample| data.targets_of(*sample)[output].is_nan());
            let (all, own) = (data.samples as f64, has.len().max(1) as f64);
            let (few, sign) = match lacking.len() < has.len() {
                true => (&lacking, -1.0),
                false => (&has, 1.0),
            };
            let mut features: Vec<f64> = match sign < 0.0 {
                true => self.features.iter().map(|sum| sum * all / own).collect(),
                false => vec![0.0; width * width],
            };
            // Of what is centred about the mean of all samples, the sum over those of the output.
            let mut shift = vec![0.0; width];
            for chunk in few.chunks(CHUNK) {
                let rows = centred(data, chunk.par_iter().copied(), &self.mean);
                for row in rows.chunks_exact(width) {
                    shift.iter_mut().zip(row).for_each(|(sum, value)| *sum += sign * value / own);
                }
                let rows = Matrix::new(&rows, chunk.len(), width);
                add(rows, rows, &mut features, sign * own);
            }
            for (row, by) in features.chunks_exact_mut(width).zip(&shift) {
                row.iter_mut().zip(&shift).for_each(|(sum, other)| *sum -= by * other);
            }
            let products = self.products[output..].iter().step_by(outputs);
            Self {
                width,
                outputs: 1,
                mean: self.mean.iter().zip(&shift).map(|(mean, by)| mean + by).collect(),
                target_mean: vec![self.target_mean[output]],
                features,
                products: products.map(|sum| sum * all / own).collect(),
            }
        };
        Some((0..outputs).map(of_output).collect())
    }

    fn fit(&self, penalty: f64) -> Option<Linear> {
        let Self { width, outputs, .. } = *self;
        let diagonal = || (0..width).map(|at| at * width + at);
        let variance = diagonal().map(|at| self.features[at]).sum::<f64>() / width as f64;
        let mut system = self.features.clone();
        // What is constant throughout has no variance, and gets no weight.
        let added = penalty * variance;
        diagonal().for_each(|at| system[at] += if added > 0.0 { added } else { 1.0 });
        let factor = cholesky(system, width)?;
        let mut weights = vec![0.0; outputs * width];
        let mut intercept = self.target_mean.clone();
        for (output, row) in weights.chunks_exact_mut(width).enumerate() {
            row.iter_mut()
                .enumerate()
                .for_each(|(at, w)| *w = self.products[at * outputs + output]);
            solve(&factor, width, row);
            intercept[output] -= row.iter().zip(&self.mean).map(|(w, mean)| w * mean).sum::<f64>();
        }
        Some(Linear { weights, intercept, width, penalties: vec![penalty; outputs] })
    }
}
