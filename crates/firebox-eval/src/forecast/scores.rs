//! Errors of forecasts with their intervals, and the model beside its baselines.

use firebox_core::Stream;

use super::{BlockOf, ForecastEvaluation, ForecastGain, ForecastOutput, ForecastScore, Forecasts};
use crate::bootstrap::{FEWEST_BLOCKS, Unit, widening};
use crate::{Estimate, EvalError, Resampling};

/// Sums kept of each window and output of a run: absolute, squared and scaled absolute error.
const ERRORS: usize = 3;
/// Sums kept of each window and output of the truth: value about the mean, its square, and how many were measured.
const VALUES: usize = 3;
/// Mean absolute error, root mean squared error, R², mean absolute scaled error.
const METRICS: usize = 4;
const MAE: usize = 0;
const R2: usize = 2;
const MASE: usize = 3;
/// Resamples beyond an end of an interval, from which on it is taken from them. A choice.
const FEWEST_BEYOND: f64 = 5.0;
/// Share of all squares that rounding leaves of the spread of equal values.
const ROUNDING: f64 = 1e-12;

/// What is forecast in the test windows.
#[derive(Clone, Copy, Debug)]
pub struct ForecastData<'a> {
    /// What the outputs are.
    pub outputs: &'a [ForecastOutput],
    /// The true values, `[window, output]`; windows in the order of time. Those that are NaN were not measured, and no
    /// forecast of them counts.
    pub truth: &'a [f64],
    /// What absolute errors are divided by for MASE, `[window, output]`; NaN where there is none.
    pub scales: &'a [f64],
}

/// Measures all forecasters on the same windows and the same resamples of them. The first one is the
/// model, the others are what it is compared with. Of too few blocks there are no intervals.
///
/// # Errors
/// When there is no window, nothing was measured, or a forecast is not finite.
///
/// # Panics
/// When a run has another number of forecasts than there are true values.
pub fn evaluate_forecasts(
    data: &ForecastData<'_>,
    forecasts: &[Forecasts],
    resampling: &Resampling,
) -> Result<ForecastEvaluation, EvalError> {
    let outputs = data.outputs.len();
    let windows = data.truth.len() / outputs.max(1);
    if data.truth.iter().all(|value| value.is_nan()) {
        return Err(EvalError::NoForecast);
    }
    for Forecasts { forecaster, runs } in forecasts {
        for run in runs {
            assert_eq!(run.len(), data.truth.len(), "one forecast for each true value");
            if let Some(at) = run.iter().position(|value| !value.is_finite()) {
                let (window, forecaster) = (at / outputs, forecaster.name());
                return Err(EvalError::NotFiniteForecast { forecaster, window, value: run[at] });
            }
        }
    }
    let sums = Sums::new(data, forecasts);
    let all: Vec<_> = std::iter::once((0, windows)).collect();
    let values = sums.metrics(&all, |_, runs| vec![1.0; runs]);
    let block = resampling.block.clamp(1, windows);
    let measured_of = |drawn| blocks_measured(data.truth, outputs, block, drawn);
    let mut measured = measured_of(resampling.units_to_draw());
    // Where units cross blocks, whichever are fewer.
    if let Some(units) = resampling.units_to_cross() {
        let there = units.len();
        measured = Some(measured.min(measured_of(Some(units))).unwrap_or(there));
    }
    let mut enough = resampling.clone().if_enough(windows);
    if measured.is_some_and(|measured| measured < FEWEST_BLOCKS) {
        enough.resamples = 0;
    }
    let resampled = enough.map_blocks(windows, |blocks, stream| {
        sums.metrics(blocks, |place, runs| drawn_runs(runs, stream.substream(place as u64)))
    });
    let estimate_at = |confidence: f64, of: &dyn Fn(&[Metrics]) -> f64| {
        let resampled: Vec<f64> = resampled.iter().map(|metrics| of(metrics)).collect();
        Estimate::from_resamples(of(&values), &resampled, confidence)
    };
    let estimate = |of: &dyn Fn(&[Metrics]) -> f64| estimate_at(resampling.confidence, of);
    let is_measured = |output: &usize| {
        data.truth.iter().skip(*output).step_by(outputs).any(|value| !value.is_nan())
    };
    let comparisons = (0..outputs).filter(is_measured).count() * forecasts.len().saturating_sub(1);
    let among_all = 1.0 - (1.0 - resampling.confidence) / comparisons.max(1) as f64;
    let joint = |of: &dyn Fn(&[Metrics]) -> f64| {
        let [own, all] = [resampling.confidence, among_all].map(|share| estimate_at(share, of));
        // So few resamples have no ends that far out: there they are those of a normal distribution as wide.
        let beyond = f64::from(resampling.resamples) * 0.5 * (1.0 - among_all);
        if beyond >= FEWEST_BEYOND || !all.has_interval() {
            return all;
        }
        let by = normal_quantile(among_all) / normal_quantile(resampling.confidence);
        let low = all.low.min(own.value - by * (own.value - own.low));
        // A model without errors has a gain of all.
        let high = all.high.max((own.value + by * (own.high - own.value)).min(1.0));
        Estimate { low, high, ..all }
    };
    let places = || (0..outputs).map(Some).chain([None]);
    let mut evaluation = ForecastEvaluation {
        outputs: data.outputs.to_vec(),
        windows,
        block,
        units: resampling.drawn_units(),
        measured,
        block_of: BlockOf::default(),
        confidence: resampling.confidence,
        by_scale: (0..outputs).any(|output| has_unlike_scales(data, output)),
        scores: vec![],
        gains: vec![],
    };
    let one_target = evaluation.one_target();
    for (place, Forecasts { forecaster, runs }) in forecasts.iter().enumerate() {
        for output in places() {
            let metric = |metric| estimate(&|all| all[place].of(output, metric));
            let run = |run| sums.metrics_of(place, &only(run, runs.len()), &all).of(output, MAE);
            evaluation.scores.push(ForecastScore {
                forecaster: *forecaster,
                output,
                mae: metric(MAE),
                rmse: metric(1),
                r2: metric(R2),
                mase: metric(MASE),
                runs: (0..runs.len()).map(run).collect(),
            });
            if place > 0 {
                // Over targets of different units, and series of unlike size, only the scaled error has a mean.
                let scaled = match output {
                    Some(output) => evaluation.by_scale && has_scales(data, output),
                    None => evaluation.by_scale || !one_target,
                };
                let by = if scaled { MASE } else { MAE };
                let of = |all: &[Metrics]| gain(all[0].of(output, by), all[place].of(output, by));
                evaluation.gains.push(ForecastGain {
                    baseline: *forecaster,
                    output,
                    gain: estimate(&of),
                    among_all: output.map(|_| joint(&of)),
                });
            }
        }
    }
    Ok(evaluation)
}

/// How many standard deviations to both sides hold this share of a normal distribution.
fn normal_quantile(share: f64) -> f64 {
    let beyond = 1.0 - share;
    // The error function has no inverse in `libm`; 60 halvings leave nothing of a range of 40.
    let (mut low, mut high) = (0.0, 40.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        let is_below = libm::erfc(middle * std::f64::consts::FRAC_1_SQRT_2) > beyond;
        *(if is_below { &mut low } else { &mut high }) = middle;
    }
    low
}

/// How much each run counts in a resample of them: as often as it was drawn, and so far from once that the mean varies as the
/// mean of so many seeds does.
fn drawn_runs(runs: usize, stream: Stream) -> Vec<f64> {
    let mut times = vec![0.0; runs];
    match runs {
        1 => times[0] = 1.0,
        _ => {
            let mut draws = stream.draws();
            (0..runs).for_each(|_| times[draws.below(runs as u64) as usize] += 1.0);
        }
    }
    times.iter().map(|drawn| 1.0 + widening(runs) * (drawn - 1.0)).collect()
}

/// One of several runs alone.
fn only(run: usize, runs: usize) -> Vec<f64> {
    (0..runs).map(|other| if other == run { runs as f64 } else { 0.0 }).collect()
}

/// Blocks of windows, or units that are drawn whole, that have a measured value, of the output that has the fewest but any;
/// none where all was measured.
fn blocks_measured(
    truth: &[f64],
    outputs: usize,
    block: usize,
    whole: Option<Vec<Unit>>,
) -> Option<usize> {
    if !truth.iter().any(|value| value.is_nan()) {
        return None;
    }
    let windows = truth.len() / outputs;
    let in_blocks = (0..windows).step_by(block).map(|at| vec![(at, block.min(windows - at))]);
    let drawn: Vec<Unit> = whole.unwrap_or_else(|| in_blocks.collect());
    let of_output = |output: usize| {
        let is_measured = |(start, length): &(usize, usize)| {
            (*start..start + length).any(|window| !truth[window * outputs + output].is_nan())
        };
        drawn.iter().filter(|unit| unit.iter().any(is_measured)).count()
    };
    (0..outputs).map(of_output).filter(|blocks| *blocks > 0).min()
}

/// Sizes of series that are unlike: this many times as large as others.
const UNLIKE: f64 = 10.0;

/// Whether the errors of some series are of another size than those of others at an output, by their scales, so that the
/// largest would decide alone in which direction a mean goes. Where one has no scale there is no other mean.
fn has_unlike_scales(data: &ForecastData<'_>, output: usize) -> bool {
    let scales = data.scales.iter().skip(output).step_by(data.outputs.len());
    let least = scales.clone().copied().fold(f64::INFINITY, f64::min);
    has_scales(data, output) && scales.copied().fold(0.0, f64::max) > UNLIKE * least
}

/// Whether each window has a scale at an output.
fn has_scales(data: &ForecastData<'_>, output: usize) -> bool {
    let mut scales = data.scales.iter().skip(output).step_by(data.outputs.len());
    scales.all(|scale| scale.is_finite() && *scale > 0.0)
}

/// R² of the forecasts of each output, and the mean of them: 1 minus the squared errors over the squared
/// distances of the truth from its mean. True values that are NaN do not count. An output whose truth is constant has none
/// and is left out; NaN if no output has one.
///
/// # Shapes
/// - truth, forecasts: `[window, output]`, in the same units
///
/// # Panics
/// When there is another number of forecasts than of true values.
pub fn mean_r2(truth: &[f64], forecasts: &[f64], outputs: usize) -> f64 {
    assert_eq!(truth.len(), forecasts.len(), "one forecast for each true value");
    let score = |output: usize| {
        let pairs = truth.iter().zip(forecasts).skip(output).step_by(outputs);
        let (truth, forecasts): (Vec<f64>, Vec<f64>) =
            pairs.filter(|(own, _)| !own.is_nan()).unzip();
        // The mean of equal values need not be their value.
        if truth.iter().all(|value| *value == truth[0]) {
            return None;
        }
        let mean = truth.iter().sum::<f64>() / truth.len() as f64;
        let spread: f64 = truth.iter().map(|value| (value - mean).powi(2)).sum();
        let errors = truth.iter().zip(&forecasts).map(|(own, forecast)| (own - forecast).powi(2));
        (spread > 0.0).then(|| 1.0 - errors.sum::<f64>() / spread)
    };
    let scores: Vec<f64> = (0..outputs).filter_map(score).collect();
    scores.iter().sum::<f64>() / scores.len() as f64
}

/// The share by which a model errs less than a baseline. Both without an error are as good; against such a baseline
/// any error is infinitely worse.
fn gain(model: f64, baseline: f64) -> f64 {
    if model == 0.0 && baseline == 0.0 { 0.0 } else { 1.0 - model / baseline }
}

/// `[output][metric]`
struct Metrics(Vec<[f64; METRICS]>);

impl Metrics {
    /// At an output, or the mean over all of them that have it.
    fn of(&self, output: Option<usize>, metric: usize) -> f64 {
        match output {
            Some(output) => self.0[output][metric],
            None => {
                let known = self.0.iter().map(|all| all[metric]).filter(|value| !value.is_nan());
                let (count, sum) = known.fold((0.0, 0.0), |(n, sum), value| (n + 1.0, sum + value));
                sum / count
            }
        }
    }
}

/// Sums over all windows before each, so that a block of windows costs one subtraction.
struct Sums {
    outputs: usize,
    /// `[forecaster][run]`, each `[window + 1, output, error]`
    errors: Vec<Vec<Vec<f64>>>,
    /// `[window + 1, output, value]`
    truth: Vec<f64>,
}

impl Sums {
    fn new(data: &ForecastData<'_>, forecasts: &[Forecasts]) -> Self {
        let outputs = data.outputs.len();
        // About their mean, so that squares keep their digits.
        let mean = |output: usize| {
            let all = data.truth.iter().skip(output).step_by(outputs);
            let measured = || all.clone().copied().filter(|value| !value.is_nan());
            let count = measured().count() as f64;
            let mean = measured().map(|value| value / count).sum();
            // The mean of equal values need not be their value.
            let first = measured().next().unwrap_or(mean);
            if measured().all(|value| value == first) { first } else { mean }
        };
        let means: Vec<f64> = (0..outputs).map(mean).collect();
        let truth = |at: usize| {
            if data.truth[at].is_nan() {
                return [0.0; VALUES];
            }
            let value = data.truth[at] - means[at % outputs];
            [value, value * value, 1.0]
        };
        let errors = |run: &Vec<f64>| {
            let error = |at: usize| {
                if data.truth[at].is_nan() {
                    return [0.0; ERRORS];
                }
                let error = (run[at] - data.truth[at]).abs();
                [error, error * error, error / data.scales[at]]
            };
            running(data.truth.len(), outputs, error)
        };
        let of = |forecasts: &Forecasts| forecasts.runs.iter().map(errors).collect();
        Self {
            outputs,
            errors: forecasts.iter().map(of).collect(),
            truth: running(data.truth.len(), outputs, truth),
        }
    }

    /// Metrics of every forecaster on blocks of windows, the mean over its runs, of which each counts as often as `drawn` says.
    fn metrics(
        &self,
        blocks: &[(usize, usize)],
        drawn: impl Fn(usize, usize) -> Vec<f64>,
    ) -> Vec<Metrics> {
        let each = self.errors.iter().enumerate();
        each.map(|(place, runs)| self.metrics_of(place, &drawn(place, runs.len()), blocks))
            .collect()
    }

    fn metrics_of(&self, place: usize, times: &[f64], blocks: &[(usize, usize)]) -> Metrics {
        let truth = over::<VALUES>(&self.truth, self.outputs, blocks);
        let all: Vec<f64> = self.truth[self.truth.len() - VALUES * self.outputs..]
            .chunks_exact(VALUES)
            .map(|sums| sums[1])
            .collect();
        let mut metrics = vec![[0.0; METRICS]; self.outputs];
        let runs = times.len() as f64;
        for (run, times) in self.errors[place].iter().zip(times).filter(|(_, times)| **times != 0.0)
        {
            let errors = over::<ERRORS>(run, self.outputs, blocks);
            for (output, metrics) in metrics.iter_mut().enumerate() {
                let [absolute, squared, scaled] = errors[output];
                let [sum, squares, count] = truth[output];
                let spread = match squares - sum * sum / count {
                    // Differences of sums leave this of nothing: the truth of these windows is constant.
                    spread if spread <= ROUNDING * all[output] => f64::NAN,
                    spread => spread,
                };
                let own = [
                    absolute / count,
                    (squared / count).sqrt(),
                    1.0 - squared / spread,
                    scaled / count,
                ];
                metrics.iter_mut().zip(own).for_each(|(sum, value)| *sum += times * value / runs);
            }
        }
        // Seeds that differ may be moved beyond what an error can be.
        for own in &mut metrics {
            own.iter_mut().enumerate().for_each(|(metric, value)| match metric {
                R2 if *value > 1.0 => *value = 1.0,
                R2 => {}
                _ if *value < 0.0 => *value = 0.0,
                _ => {}
            });
        }
        Metrics(metrics)
    }
}

/// Sums of `of` over all windows before each, `[window + 1, output, number]`.
fn running<const N: usize>(
    values: usize,
    outputs: usize,
    of: impl Fn(usize) -> [f64; N],
) -> Vec<f64> {
    let row = outputs * N;
    let mut sums = vec![0.0; row + values * N];
    for at in 0..values {
        for (place, value) in of(at).into_iter().enumerate() {
            let place = at * N + place;
            sums[row + place] = sums[place] + value;
        }
    }
    sums
}

/// Sums over blocks of windows, `[output][number]`. A block that reaches beyond the last window goes
/// on with the first.
fn over<const N: usize>(sums: &[f64], outputs: usize, blocks: &[(usize, usize)]) -> Vec<[f64; N]> {
    let row = outputs * N;
    let windows = sums.len() / row - 1;
    let mut out = vec![[0.0; N]; outputs];
    let mut add = |from: usize, to: usize| {
        for (place, out) in out.as_flattened_mut().iter_mut().enumerate() {
            *out += sums[to * row + place] - sums[from * row + place];
        }
    };
    for (start, length) in blocks {
        let end = start + length;
        add(*start, end.min(windows));
        if end > windows {
            add(0, end - windows);
        }
    }
    out
}
