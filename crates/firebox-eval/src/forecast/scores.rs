//! Errors of forecasts with their intervals, and the model beside its baselines.

use std::ops::Range;

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
/// Bytes of the sums and resamples that are held at once: of as many outputs as fit, or of one. A choice; no bit depends on it.
const ROOM: usize = 256 << 20;
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
    evaluate_within(data, forecasts, resampling, ROOM)
}

/// The same with so many bytes for what is held of outputs.
fn evaluate_within(
    data: &ForecastData<'_>,
    forecasts: &[Forecasts],
    resampling: &Resampling,
    room: usize,
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
    let estimate_at = |found: &Found, confidence: f64, of: &dyn Fn(&[Metrics]) -> f64| {
        let resampled: Vec<f64> = found.resampled.iter().map(|metrics| of(metrics)).collect();
        Estimate::from_resamples(of(&found.values), &resampled, confidence)
    };
    let is_measured = |output: &usize| {
        data.truth.iter().skip(*output).step_by(outputs).any(|value| !value.is_nan())
    };
    let comparisons = (0..outputs).filter(is_measured).count() * forecasts.len().saturating_sub(1);
    let among_all = 1.0 - (1.0 - resampling.confidence) / comparisons.max(1) as f64;
    let joint = |found: &Found, of: &dyn Fn(&[Metrics]) -> f64| {
        let shares = [resampling.confidence, among_all];
        let [own, all] = shares.map(|share| estimate_at(found, share, of));
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
    let (one_target, by_scale) = (evaluation.one_target(), evaluation.by_scale);
    // Of each forecaster, at each output and then over all.
    let mut scores: Vec<Vec<ForecastScore>> = vec![vec![]; forecasts.len()];
    let mut gains: Vec<Vec<ForecastGain>> = vec![vec![]; forecasts.len()];
    let mut add = |found: &Found, output: Option<usize>| {
        let at = output.map(|output| output - found.from);
        // Over targets of different units, and series of unlike size, only the scaled error has a mean.
        let scaled = match output {
            Some(output) => by_scale && has_scales(data, output),
            None => by_scale || !one_target,
        };
        let by = if scaled { MASE } else { MAE };
        for (place, Forecasts { forecaster, .. }) in forecasts.iter().enumerate() {
            let metric = |metric: usize| {
                estimate_at(found, resampling.confidence, &|all| all[place].of(at, metric))
            };
            scores[place].push(ForecastScore {
                forecaster: *forecaster,
                output,
                mae: metric(MAE),
                rmse: metric(1),
                r2: metric(R2),
                mase: metric(MASE),
                runs: found.runs[place].iter().map(|run| run.of(at, MAE)).collect(),
            });
            if place > 0 {
                let of = |all: &[Metrics]| gain(all[0].of(at, by), all[place].of(at, by));
                gains[place].push(ForecastGain {
                    baseline: *forecaster,
                    output,
                    gain: estimate_at(found, resampling.confidence, &of),
                    among_all: output.map(|_| joint(found, &of)),
                });
            }
        }
    };
    let at_once = outputs_at_once(room, windows, enough.resamples, forecasts);
    let mut found = Found::new(forecasts, enough.resamples);
    for from in (0..outputs).step_by(at_once) {
        let own = from..(from + at_once).min(outputs);
        found.go_on(data, forecasts, &enough, own.clone());
        own.for_each(|output| add(&found, Some(output)));
    }
    add(&found, None);
    evaluation.scores = scores.into_iter().flatten().collect();
    evaluation.gains = gains.into_iter().flatten().collect();
    Ok(evaluation)
}

/// Of how many outputs sums and resamples have room.
fn outputs_at_once(room: usize, windows: usize, resamples: u32, forecasts: &[Forecasts]) -> usize {
    let runs: usize = forecasts.iter().map(|own| own.runs.len()).sum();
    let sums = (windows + 1) * (runs * ERRORS + VALUES);
    let resampled = resamples as usize * forecasts.len() * METRICS;
    (room / size_of::<f64>() / (sums + resampled)).max(1)
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

/// Metrics of some outputs, and the sums of those of all outputs so far.
#[derive(Clone, Default)]
struct Metrics {
    /// `[output][metric]`
    own: Vec<[f64; METRICS]>,
    /// Of each metric the sum over the outputs that have it, and how many these are.
    all: [[f64; 2]; METRICS],
}

impl Metrics {
    /// At one of the outputs by its place among these, or the mean over all so far that have it.
    fn of(&self, at: Option<usize>, metric: usize) -> f64 {
        match at {
            Some(at) => self.own[at][metric],
            None => {
                let [sum, count] = self.all[metric];
                sum / count
            }
        }
    }

    /// Goes on with those of the next outputs.
    fn go_on(&mut self, next: Vec<[f64; METRICS]>) {
        for own in &next {
            let known = self.all.iter_mut().zip(own).filter(|(_, value)| !value.is_nan());
            known.for_each(|([sum, count], value)| {
                *sum += value;
                *count += 1.0;
            });
        }
        self.own = next;
    }
}

/// What was measured at some outputs, and over these and all before them.
struct Found {
    /// The first of the outputs.
    from: usize,
    /// On all windows, `[forecaster]`, the mean over its runs.
    values: Vec<Metrics>,
    /// The same of each run, `[forecaster][run]`.
    runs: Vec<Vec<Metrics>>,
    /// `[resample][forecaster]`
    resampled: Vec<Vec<Metrics>>,
}

impl Found {
    fn new(forecasts: &[Forecasts], resamples: u32) -> Self {
        let values = vec![Metrics::default(); forecasts.len()];
        let of = |own: &Forecasts| vec![Metrics::default(); own.runs.len()];
        let resampled = vec![values.clone(); resamples as usize];
        Self { from: 0, values, runs: forecasts.iter().map(of).collect(), resampled }
    }

    /// Goes on with the next outputs.
    fn go_on(
        &mut self,
        data: &ForecastData<'_>,
        forecasts: &[Forecasts],
        resampling: &Resampling,
        own: Range<usize>,
    ) {
        self.from = own.start;
        // Those before are no longer needed, and would be held beside these.
        self.resampled.iter_mut().flatten().for_each(|metrics| metrics.own = vec![]);
        let windows = data.truth.len() / data.outputs.len();
        let sums = Sums::new(data, forecasts, own);
        let all = [(0, windows)];
        let values = sums.metrics(&all, |_, runs| vec![1.0; runs]);
        let resampled = resampling.map_blocks(windows, |blocks, stream| {
            sums.metrics(blocks, |place, runs| drawn_runs(runs, stream.substream(place as u64)))
        });
        let go_on = |all: &mut [Metrics], next: Vec<Vec<[f64; METRICS]>>| {
            all.iter_mut().zip(next).for_each(|(own, next)| own.go_on(next));
        };
        for (place, runs) in self.runs.iter_mut().enumerate() {
            let count = runs.len();
            let of = |run| sums.metrics_of(place, &only(run, count), &all);
            go_on(runs, (0..count).map(of).collect());
        }
        go_on(&mut self.values, values);
        self.resampled.iter_mut().zip(resampled).for_each(|(own, next)| go_on(own, next));
    }
}

/// Sums of some outputs over all windows before each, so that a block of windows costs one subtraction.
struct Sums {
    outputs: usize,
    /// `[forecaster][run]`, each `[window + 1, output, error]`
    errors: Vec<Vec<Vec<f64>>>,
    /// `[window + 1, output, value]`
    truth: Vec<f64>,
}

impl Sums {
    fn new(data: &ForecastData<'_>, forecasts: &[Forecasts], own: Range<usize>) -> Self {
        let outputs = data.outputs.len();
        let windows = data.truth.len() / outputs;
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
        let means: Vec<f64> = own.clone().map(mean).collect();
        let truth = |window: usize, place: usize| {
            let value = data.truth[window * outputs + own.start + place];
            if value.is_nan() {
                return [0.0; VALUES];
            }
            let value = value - means[place];
            [value, value * value, 1.0]
        };
        let errors = |run: &Vec<f64>| {
            let error = |window: usize, place: usize| {
                let at = window * outputs + own.start + place;
                if data.truth[at].is_nan() {
                    return [0.0; ERRORS];
                }
                let error = (run[at] - data.truth[at]).abs();
                [error, error * error, error / data.scales[at]]
            };
            running(windows, own.len(), error)
        };
        let of = |forecasts: &Forecasts| forecasts.runs.iter().map(errors).collect();
        Self {
            outputs: own.len(),
            errors: forecasts.iter().map(of).collect(),
            truth: running(windows, own.len(), truth),
        }
    }

    /// Metrics of every forecaster on blocks of windows, the mean over its runs, of which each counts as often as `drawn` says.
    ///
    /// # Shapes
    /// - returns `[forecaster][output]`
    fn metrics(
        &self,
        blocks: &[(usize, usize)],
        drawn: impl Fn(usize, usize) -> Vec<f64>,
    ) -> Vec<Vec<[f64; METRICS]>> {
        let each = self.errors.iter().enumerate();
        each.map(|(place, runs)| self.metrics_of(place, &drawn(place, runs.len()), blocks))
            .collect()
    }

    /// Those of one forecaster, `[output]`.
    fn metrics_of(
        &self,
        place: usize,
        times: &[f64],
        blocks: &[(usize, usize)],
    ) -> Vec<[f64; METRICS]> {
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
        metrics
    }
}

/// Sums of `of`, which is told a window and the place of an output, over all windows before each:
/// `[window + 1, output, number]`.
fn running<const N: usize>(
    windows: usize,
    outputs: usize,
    of: impl Fn(usize, usize) -> [f64; N],
) -> Vec<f64> {
    let row = outputs * N;
    let mut sums = vec![0.0; row + windows * row];
    for window in 0..windows {
        let values = (0..outputs).flat_map(|place| of(window, place));
        for (at, value) in (window * row..).zip(values) {
            sums[row + at] = sums[at] + value;
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

#[cfg(test)]
mod tests {
    use super::super::Forecaster;
    use super::*;

    /// A model of so many runs beside the last value, in so many windows of so many outputs.
    fn forecasts(windows: usize, outputs: usize, runs: u64) -> (Vec<f64>, [Forecasts; 2]) {
        let noise = |seed: u64, size: f64| {
            let mut draws = Stream::new(seed, "errors").draws();
            (0..windows * outputs).map(|_| size * draws.normal()).collect::<Vec<f64>>()
        };
        let model = (0..runs).map(|run| noise(run, 0.5)).collect();
        let of = |forecaster, runs| Forecasts { forecaster, runs };
        let naive = of(Forecaster::LastValue, vec![noise(8, 1.0)]);
        (noise(9, 1.0), [of(Forecaster::Model, model), naive])
    }

    #[test]
    fn what_is_held_of_outputs_is_bounded() {
        let at_once = |windows: usize, resamples: u32| {
            outputs_at_once(ROOM, windows, resamples, &forecasts(1, 1, 3).1)
        };
        // 5001 · (4 · 3 + 3) sums and 2000 · 2 · 4 resampled values of eight bytes are 728 120 bytes an output.
        assert_eq!(at_once(5000, 2000), 368);
        // 1001 · 15 and 800 000: of these alone a thousand outputs took 6.4 GB.
        assert_eq!(at_once(1000, 100_000), 41);
        assert_eq!(at_once(10_000_000, 2000), 1);
    }

    #[test]
    fn no_bit_depends_on_how_many_outputs_are_measured_at_once() {
        let (windows, width) = (60, 7);
        let (mut truth, forecasts) = forecasts(windows, width, 3);
        // A tenth of all was not measured, and nothing of the fifth; the last is constant.
        truth.iter_mut().step_by(10).for_each(|value| *value = f64::NAN);
        truth.iter_mut().skip(4).step_by(width).for_each(|value| *value = f64::NAN);
        truth.iter_mut().skip(6).step_by(width).for_each(|value| *value = 0.1);
        let outputs: Vec<ForecastOutput> = (0..width)
            .map(|at| ForecastOutput { target: format!("t{}", at % 2), horizon: 1 + at / 2 })
            .collect();
        let scales: Vec<f64> = (0..windows * width).map(|at| 1.0 + (at % width) as f64).collect();
        let data = ForecastData { outputs: &outputs, truth: &truth, scales: &scales };
        for units in [vec![], (0..windows as u32).map(|at| at % 6).collect()] {
            let resampling = Resampling {
                stream: Stream::new(1, "bootstrap"),
                resamples: 200,
                block: 4,
                units,
                whole_units: false,
                confidence: 0.95,
            };
            let of = |room| evaluate_within(&data, &forecasts, &resampling, room).unwrap();
            let told = |room| format!("{:?}", of(room));
            let all = told(usize::MAX);
            // One at a time; three, three and one: 61 · 15 sums and 200 · 2 · 4 resampled values an output.
            assert!(told(1) == all && told(3 * 8 * 2515) == all);
            let (scores, gains) = (of(1).scores, of(1).gains);
            assert_eq!((scores.len(), gains.len()), (2 * (width + 1), width + 1));
            let places: Vec<Option<usize>> = gains.iter().map(|gain| gain.output).collect();
            assert_eq!(places, (0..width).map(Some).chain([None]).collect::<Vec<_>>());
        }
    }
}
