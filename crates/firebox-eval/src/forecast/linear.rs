//! The linear forecaster: ridge regression on the features of a window, all outputs at once.
//!
//! Its penalty is chosen on validation windows, its centres and weights come from training windows;
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
    /// `[sample, output]`; NaN where there is none. A sample that lacks any is not fitted to, and what is lacking is no error.
    pub targets: &'a [f32],
}

impl LinearData<'_> {
    /// Features of some samples, `[sample, feature]`.
    fn rows(&self, samples: &[usize]) -> Vec<f64> {
        let mut rows = vec![0.0; samples.len() * self.width];
        let each = rows.par_chunks_mut(self.width.max(1)).zip(samples);
        each.for_each(|(row, sample)| (self.features)(*sample, row));
        rows
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
    /// The penalty that was chosen, in units of the mean variance of the features.
    pub penalty: f64,
}

impl Linear {
    /// Minimises `‖y − X·w − b‖² / n + λ · v · ‖w‖²` with `v` the mean variance of the features, for
    /// each penalty λ, and takes that of the least squared error on `validation`; without one, the
    /// smallest that can be solved. `None` if there is no sample, or nothing can be solved.
    pub fn fit(train: &LinearData<'_>, validation: Option<&LinearData<'_>>) -> Option<Self> {
        let moments = Moments::of(train)?;
        let fits = PENALTIES.iter().filter_map(|penalty| moments.fit(*penalty));
        let Some(validation) = validation.filter(|data| data.samples > 0) else {
            return fits.into_iter().next();
        };
        let measured = fits.map(|fit| (fit.squared_error(validation), fit));
        let finite = measured.filter(|(error, _)| error.is_finite());
        finite.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, fit)| fit)
    }

    /// Forecasts of all samples; the targets are not read.
    ///
    /// # Shapes
    /// - returns `[sample, output]`
    pub fn predict(&self, data: &LinearData<'_>) -> Vec<f64> {
        let outputs = self.intercept.len();
        let weights = Matrix::new(&self.weights, outputs, self.width).transposed();
        let mut all = Vec::with_capacity(data.samples * outputs);
        for chunk in (0..data.samples).collect::<Vec<_>>().chunks(CHUNK) {
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

    fn squared_error(&self, data: &LinearData<'_>) -> f64 {
        let pairs = self.predict(data).into_iter().zip(data.targets);
        let pairs = pairs.filter(|(_, wanted)| !wanted.is_nan());
        pairs.map(|(found, wanted)| (found - f64::from(*wanted)).powi(2)).sum()
    }
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
        let has_all = |sample: &usize| !data.targets_of(*sample).iter().any(|of| of.is_nan());
        let fitted: Vec<usize> = (0..data.samples).filter(has_all).collect();
        let (samples, outputs) = (fitted.len(), data.targets.len() / data.samples);
        if samples == 0 {
            return None;
        }
        let (mut mean, mut target_mean) = (vec![0.0; width], vec![0.0; outputs]);
        for chunk in fitted.chunks(CHUNK) {
            for row in data.rows(chunk).chunks_exact(width) {
                mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
        }
        for sample in &fitted {
            let row = data.targets_of(*sample);
            target_mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        mean.iter_mut().chain(&mut target_mean).for_each(|sum| *sum /= samples as f64);
        let (mut features, mut products) = (vec![0.0; width * width], vec![0.0; width * outputs]);
        let mut part = vec![0.0; width * width];
        for chunk in fitted.chunks(CHUNK) {
            let count = chunk.len();
            let targets = chunk.iter().flat_map(|sample| data.targets_of(*sample));
            let targets =
                targets.enumerate().map(|(at, v)| f64::from(*v) - target_mean[at % outputs]);
            let targets: Vec<f64> = targets.collect();
            let mut rows = data.rows(chunk);
            for row in rows.chunks_exact_mut(width) {
                row.iter_mut().zip(&mean).for_each(|(value, mean)| *value -= mean);
            }
            let rows = Matrix::new(&rows, count, width);
            let mut add = |right, sums: &mut Vec<f64>| {
                multiply(rows.transposed(), right, &mut part[..sums.len()]);
                sums.iter_mut().zip(&part).for_each(|(sum, part)| *sum += part / samples as f64);
            };
            add(rows, &mut features);
            add(Matrix::new(&targets, count, outputs), &mut products);
        }
        Some(Self { width, outputs, mean, target_mean, features, products })
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
        Some(Linear { weights, intercept, width, penalty })
    }
}
