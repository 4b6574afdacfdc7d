//! The linear forecaster: ridge regression on the features of a window, all outputs at once.
//!
//! The penalty of each output is chosen on validation windows, its centres and weights come from training windows;
//! the test is not known here.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;

use crate::EvalError;
use crate::matrix::{Matrix, cholesky, multiply, solve};

/// Penalties to choose from, as shares of the mean variance of the features.
const PENALTIES: [f64; 6] = [1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];
/// Samples whose features are held at once.
const CHUNK: usize = 4096;
/// Outputs that are solved for at once: a row of the factor, which is larger than caches are, is read once for all of
/// them. A choice.
const TOGETHER: usize = 8;

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

    /// All outputs, by the samples that lack them.
    fn alike(&self, outputs: usize) -> Vec<Alike> {
        if !self.targets.iter().any(|target| target.is_nan()) {
            return vec![Alike { outputs: (0..outputs).collect(), lacks: vec![] }];
        }
        let mut all = BTreeMap::<Vec<bool>, Vec<usize>>::new();
        for output in 0..outputs {
            let own = self.targets[output..].iter().step_by(outputs);
            all.entry(own.map(|target| target.is_nan()).collect()).or_default().push(output);
        }
        all.into_iter().map(|(lacks, outputs)| Alike { outputs, lacks }).collect()
    }
}

/// Outputs that the same samples lack.
#[derive(Debug, PartialEq)]
struct Alike {
    outputs: Vec<usize>,
    /// Of each sample, whether it lacks them. Empty: all samples have all outputs.
    lacks: Vec<bool>,
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
    /// nothing can be solved. Of wide windows and many outputs it takes minutes: `told` hears how many of how many
    /// penalties are done, those of outputs that other samples lack by themselves.
    ///
    /// # Errors
    /// [`EvalError::Stopped`] once `stop` is true.
    pub fn fit(
        train: &LinearData<'_>,
        validation: Option<&LinearData<'_>>,
        stop: &AtomicBool,
        told: &dyn Fn(usize, usize),
    ) -> Result<Option<Self>, EvalError> {
        let Some(moments) = Moments::of(train, stop)? else { return Ok(None) };
        let Some(validation) = validation.filter(|data| data.samples > 0) else {
            for penalty in PENALTIES {
                let fit = moments.fits(train, &[penalty], stop, &|_, _| ())?.pop();
                if fit.is_some() {
                    return Ok(fit);
                }
            }
            return Ok(None);
        };
        let fits = moments.fits(train, &PENALTIES, stop, told)?.into_iter();
        let fits: Vec<_> = fits.map(|fit| (fit.squared_errors(validation), fit)).collect();
        Ok(Self::chosen(&fits, validation))
    }

    /// Each output as it is in the fit that errs least on `validation`, by the squared errors of each fit.
    fn chosen(fits: &[(Vec<f64>, Self)], validation: &LinearData<'_>) -> Option<Self> {
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
                chosen.take(output, fit, output);
            }
        }
        Some(chosen)
    }

    /// Takes for an output the one at this place of another fit.
    fn take(&mut self, output: usize, other: &Self, place: usize) {
        let of = |output: usize| output * self.width..(output + 1) * self.width;
        self.weights[of(output)].copy_from_slice(&other.weights[of(place)]);
        self.intercept[output] = other.intercept[place];
        self.penalties[output] = other.penalties[place];
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
    fn of(data: &LinearData<'_>, stop: &AtomicBool) -> Result<Option<Self>, EvalError> {
        let width = data.width;
        if data.samples == 0 || width == 0 || data.targets.is_empty() {
            return Ok(None);
        }
        let outputs = data.targets.len() / data.samples;
        let mut mean = vec![0.0; width];
        for chunk in data.chunks() {
            EvalError::heed(stop)?;
            for row in data.rows(chunk).chunks_exact(width) {
                mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
        }
        let count = data.samples as f64;
        mean.iter_mut().for_each(|sum| *sum /= count);
        let target_mean: Vec<f64> = (0..outputs).map(|output| mean_of(data, output)).collect();
        let (mut features, mut products) = (vec![0.0; width * width], vec![0.0; width * outputs]);
        for chunk in data.chunks() {
            EvalError::heed(stop)?;
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
        Ok(Some(Self { width, outputs, mean, target_mean, features, products }))
    }

    /// One fit of all outputs for each penalty that all of them can be solved with. Outputs that other samples lack have
    /// moments of their own, of which those of one kind are held at a time.
    fn fits(
        &self,
        data: &LinearData<'_>,
        penalties: &[f64],
        stop: &AtomicBool,
        told: &dyn Fn(usize, usize),
    ) -> Result<Vec<Linear>, EvalError> {
        let groups = data.alike(self.outputs);
        let total = groups.len() * penalties.len();
        let mut fits: Vec<Option<Linear>> = vec![Some(self.unfitted()); penalties.len()];
        for (group, alike) in groups.iter().enumerate() {
            let apart = self.of_alike(data, alike, stop)?;
            let own = apart.as_ref().unwrap_or(self);
            for (at, (penalty, all)) in penalties.iter().zip(&mut fits).enumerate() {
                // A penalty that an earlier group cannot be solved with is no more tried.
                if let Some(mut begun) = all.take()
                    && let Some(fit) = own.fit(*penalty, stop)?
                {
                    for (place, output) in alike.outputs.iter().enumerate() {
                        begun.take(*output, &fit, place);
                    }
                    *all = Some(begun);
                }
                told(group * penalties.len() + at + 1, total);
            }
        }
        Ok(fits.into_iter().flatten().collect())
    }

    /// All outputs, without a weight.
    fn unfitted(&self) -> Linear {
        let Self { width, outputs, .. } = *self;
        let (weights, penalties) = (vec![0.0; outputs * width], vec![0.0; outputs]);
        Linear { weights, intercept: vec![0.0; outputs], width, penalties }
    }

    /// The same of outputs alone that some samples lack, over the samples that have them: those that do not are taken out of the
    /// sums over all, or those that do are summed where they are fewer.
    fn of_alike(
        &self,
        data: &LinearData<'_>,
        alike: &Alike,
        stop: &AtomicBool,
    ) -> Result<Option<Self>, EvalError> {
        if alike.lacks.is_empty() {
            return Ok(None);
        }
        let width = self.width;
        let (lacking, has): (Vec<usize>, Vec<usize>) =
            (0..data.samples).partition(|sample| alike.lacks[*sample]);
        let (all, own) = (data.samples as f64, has.len().max(1) as f64);
        let (few, sign) = match lacking.len() < has.len() {
            true => (&lacking, -1.0),
            false => (&has, 1.0),
        };
        let mut features: Vec<f64> = match sign < 0.0 {
            true => self.features.iter().map(|sum| sum * all / own).collect(),
            false => vec![0.0; width * width],
        };
        // Of what is centred about the mean of all samples, the sum over those of the outputs.
        let mut shift = vec![0.0; width];
        for chunk in few.chunks(CHUNK) {
            EvalError::heed(stop)?;
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
        let outputs = &alike.outputs;
        let products = self.products.chunks_exact(self.outputs);
        let products = products.flat_map(|row| outputs.iter().map(move |at| row[*at] * all / own));
        Ok(Some(Self {
            width,
            outputs: outputs.len(),
            mean: self.mean.iter().zip(&shift).map(|(mean, by)| mean + by).collect(),
            target_mean: outputs.iter().map(|at| self.target_mean[*at]).collect(),
            features,
            products: products.collect(),
        }))
    }

    /// `None` if it cannot be solved.
    fn fit(&self, penalty: f64, stop: &AtomicBool) -> Result<Option<Linear>, EvalError> {
        EvalError::heed(stop)?;
        let Self { width, outputs, .. } = *self;
        let diagonal = || (0..width).map(|at| at * width + at);
        let variance = diagonal().map(|at| self.features[at]).sum::<f64>() / width as f64;
        let mut system = self.features.clone();
        // What is constant throughout has no variance, and gets no weight.
        let added = penalty * variance;
        diagonal().for_each(|at| system[at] += if added > 0.0 { added } else { 1.0 });
        let Some(factor) = cholesky(system, width) else { return Ok(None) };
        let mut weights = vec![0.0; outputs * width];
        let mut intercept = self.target_mean.clone();
        let rows = weights.par_chunks_mut(width * TOGETHER);
        let each = rows.zip(intercept.par_chunks_mut(TOGETHER)).enumerate();
        each.for_each(|(place, (rows, intercepts))| {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            for (row, output) in rows.chunks_exact_mut(width).zip(place * TOGETHER..) {
                let products = self.products[output..].iter().step_by(outputs);
                row.iter_mut().zip(products).for_each(|(weight, product)| *weight = *product);
            }
            solve(&factor, width, rows);
            for (row, intercept) in rows.chunks_exact(width).zip(intercepts) {
                *intercept -= row.iter().zip(&self.mean).map(|(w, mean)| w * mean).sum::<f64>();
            }
        });
        EvalError::heed(stop)?;
        Ok(Some(Linear { weights, intercept, width, penalties: vec![penalty; outputs] }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_solved_for_each_by_itself() {
        // Of the features' mean variance 3 as penalty the system is of 5 and 7 on its diagonal.
        let weights = |output: usize| [output as f64, 1.0 - output as f64];
        let products = [5.0, 7.0].into_iter().enumerate().flat_map(|(feature, diagonal)| {
            (0..20).map(move |output| diagonal * weights(output)[feature])
        });
        let moments = Moments {
            width: 2,
            outputs: 20,
            mean: vec![1.0, 2.0],
            target_mean: (0..20).map(|output| 10.0 * f64::from(output)).collect(),
            features: vec![2.0, 0.0, 0.0, 4.0],
            products: products.collect(),
        };
        let found = moments.fit(1.0, &AtomicBool::new(false)).unwrap().unwrap();
        for output in 0..20 {
            let own = &found.weights[2 * output..2 * output + 2];
            let off = [own[0] - output as f64, own[1] - (1.0 - output as f64)];
            assert!(off.iter().all(|off| off.abs() < 1e-12), "{output}: {own:?}");
            // 10·o − (1·o + 2·(1 − o))
            let expected = 11.0 * output as f64 - 2.0;
            assert!((found.intercept[output] - expected).abs() < 1e-12, "{output}");
        }
        let stopped = moments.fit(1.0, &AtomicBool::new(true)).unwrap_err();
        assert!(matches!(stopped, EvalError::Stopped), "{stopped}");
    }

    #[test]
    fn outputs_that_the_same_samples_lack_are_fitted_together() {
        // The second of four samples lacks the first and the last output.
        let none = f32::NAN;
        let targets = [1.0, 2.0, 3.0, none, 5.0, none, 7.0, 8.0, 9.0, 1.0, 2.0, 4.0];
        let features = |sample: usize, out: &mut [f64]| out[0] = sample as f64;
        let data = LinearData { samples: 4, width: 1, features: &features, targets: &targets };
        let whole = Alike { outputs: vec![1], lacks: vec![false; 4] };
        let lacking = Alike { outputs: vec![0, 2], lacks: vec![false, true, false, false] };
        let found = data.alike(3);
        assert_eq!(found, [whole, lacking]);
        let stop = AtomicBool::new(false);
        let all = Moments::of(&data, &stop).unwrap().unwrap();
        let own = all.of_alike(&data, &found[1], &stop).unwrap().unwrap();
        // Of 0, 2 and 3 the mean is 5/3 and the variance 13/3 − 25/9.
        for (found, expected) in [
            (&own.mean, vec![5.0 / 3.0]),
            (&own.features, vec![14.0 / 9.0]),
            (&own.target_mean, vec![3.0, 16.0 / 3.0]),
            (&own.products, vec![2.0 / 3.0, 10.0 / 9.0]),
        ] {
            assert_eq!(found.len(), expected.len());
            let mut off = found.iter().zip(&expected).map(|(found, wanted)| found - wanted);
            assert!(off.all(|off| off.abs() < 1e-12), "{found:?} {expected:?}");
        }
        // Two kinds of six penalties each, told one by one.
        let heard = std::cell::RefCell::new(vec![]);
        let told = |done: usize, all: usize| heard.borrow_mut().push((done, all));
        Linear::fit(&data, Some(&data), &stop, &told).unwrap().unwrap();
        assert_eq!(heard.into_inner(), (1..=12).map(|done| (done, 12)).collect::<Vec<_>>());
        // What all samples have is no part of its own.
        let measured = [1.0, 2.0, 3.0, 4.0];
        let data = LinearData { targets: &measured, ..data };
        let found = data.alike(1);
        assert_eq!(found, [Alike { outputs: vec![0], lacks: vec![] }]);
        assert!(all.of_alike(&data, &found[0], &stop).unwrap().is_none());
    }
}
