//! Forecasts of several targets at several horizons, measured beside what anybody could say without a
//! model: the last value, that of a season before, and a linear model of the same windows.
//!
//! Errors are in the units of the targets. Test windows overlap in time, and so do their targets:
//! resamples draw blocks of consecutive windows, or whole series that are new to the model, and all forecasters are measured on the same ones.
//! Nothing here trains a network or knows a scale.

mod baselines;
mod linear;
mod scores;
mod verdict;

use serde::{Deserialize, Serialize};

pub use baselines::{last_value, seasonal_naive, seasonal_scale, usual_season};
pub use linear::{Linear, LinearData};
pub use scores::{ForecastData, evaluate_forecasts, mean_r2};
pub use verdict::forecast_verdict;

use crate::bootstrap::FEWEST_BLOCKS;
use crate::text::{count, grouped, list};
use crate::together::independent;
use crate::{Estimate, TestScore};

/// What forecasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forecaster {
    /// The trained model.
    Model,
    /// The last value of the window, at every horizon.
    LastValue,
    /// The value of the same place of the season before, so many steps long.
    SeasonalNaive(usize),
    /// Ridge regression on the values of the window and the static features.
    Linear,
}

impl Forecaster {
    /// Its name for a reader.
    pub fn name(self) -> String {
        match self {
            Self::Model => "model".to_owned(),
            Self::LastValue => "last value".to_owned(),
            Self::SeasonalNaive(season) => format!("seasonal naive ({season} steps)"),
            Self::Linear => "linear model".to_owned(),
        }
    }
}

/// Forecasts of the test windows by one forecaster.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecasts {
    /// Whose they are.
    pub forecaster: Forecaster,
    /// `[run][window · output]`: one run for each seed; what has nothing random has a single one.
    pub runs: Vec<Vec<f64>>,
}

/// One output of a forecaster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForecastOutput {
    /// Name of the channel.
    pub target: String,
    /// Steps after the last one of the window.
    pub horizon: usize,
}

/// The errors of one forecaster at one output, or over all of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForecastScore {
    /// Whose they are.
    pub forecaster: Forecaster,
    /// Place among [`ForecastEvaluation::outputs`]; none: the mean over all of them.
    pub output: Option<usize>,
    /// Mean absolute error, in the target's units.
    pub mae: Estimate,
    /// Root of the mean squared error, in the target's units.
    pub rmse: Estimate,
    /// Share of the variance of the test values that is explained: 1 is perfect, 0 their mean. NaN where
    /// they are constant; the mean over all outputs is of those that have one.
    pub r2: Estimate,
    /// Mean absolute scaled error: the absolute error in units of what the seasonal naive forecast
    /// errs by on the training steps. Source: Hyndman and Koehler, "Another look at measures of
    /// forecast accuracy", 2006. NaN where there is no such error; the mean over all outputs is of those
    /// that have one.
    pub mase: Estimate,
    /// Mean absolute error of each run; their spread is that of the seeds. NaN where nothing was measured.
    #[serde(deserialize_with = "firebox_core::numbers_or_nan")]
    pub runs: Vec<f64>,
}

/// How much less the model errs than a baseline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForecastGain {
    /// The baseline.
    pub baseline: Forecaster,
    /// Place among [`ForecastEvaluation::outputs`]; none: over all of them, of several targets by MASE
    /// and over those that have one.
    pub output: Option<usize>,
    /// `1 − error of the model / error of the baseline`, of the mean absolute errors on the same
    /// windows, or of the scaled ones ([`ForecastEvaluation::by_scale`]): above 0 the model is better.
    pub gain: Estimate,
    /// At one of the outputs, the same with an interval that holds for all of them and all baselines together (Bonferroni's
    /// correction by their number). Figures that were written before there was one have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub among_all: Option<Estimate>,
}

impl ForecastGain {
    /// Whether the baseline is better, by the interval that holds for all outputs and baselines together: of forty
    /// comparisons, one is below zero by chance.
    pub fn is_loss(&self) -> bool {
        self.among_all.unwrap_or(self.gain).is_below_zero()
    }
}

/// Why consecutive windows are drawn together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockOf {
    /// It was asked for.
    #[default]
    Setting,
    /// They share a step of a window or of a target.
    Overlap,
    /// They lie within a season of so many steps, over which errors hang together.
    Season(usize),
    /// They are of one of the series, or groups of them, that are tested on and were not trained on.
    Units,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForecastEvaluation {
    /// The outputs, in their order.
    pub outputs: Vec<ForecastOutput>,
    /// Test windows.
    pub windows: usize,
    /// Consecutive windows that are drawn together.
    pub block: usize,
    /// How many series or groups of equal size those that are drawn whole are as good as
    /// ([`equal_units`](crate::equal_units)), if they are.
    #[serde(rename = "equal_units", default, skip_serializing_if = "Option::is_none")]
    pub units: Option<usize>,
    /// Blocks that have a measured value, or units that cross them where these are fewer, of the output that has the fewest
    /// but any; none: all values were measured, and no units cross them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<usize>,
    /// Why so many.
    #[serde(default)]
    pub block_of: BlockOf,
    /// Whether series are of unlike size, so that gains and the verdict are by the error over each series' own scale: by the
    /// error itself, the largest series would decide alone. Those of a target without a scale are by the error itself.
    #[serde(default)]
    pub by_scale: bool,
    /// Share of the resamples within an interval.
    pub confidence: f64,
    /// Scores of every forecaster, the model first, each at every output and then over all.
    pub scores: Vec<ForecastScore>,
    /// The model beside every baseline.
    pub gains: Vec<ForecastGain>,
}

impl ForecastEvaluation {
    /// How many independent windows the test windows are as good as: their blocks, or the units that are drawn, without those
    /// in which nothing was measured.
    pub fn independent(&self) -> usize {
        let blocks = independent(self.windows, self.block, self.units);
        self.measured.map_or(blocks, |measured| measured.min(blocks))
    }

    /// Whether there are blocks enough for intervals. Without them nothing is claimed.
    pub fn has_intervals(&self) -> bool {
        self.independent() >= FEWEST_BLOCKS
    }

    /// `600 test windows in blocks of 40, a season of 24 steps each, are as good as 15 independent ones`.
    pub fn worth(&self) -> String {
        let (windows, block) = (count(self.windows, "test window"), grouped(self.block as f64));
        let season = |steps| format!("a season of {}", count(steps, "step"));
        let together = match (self.block_of, self.block == self.windows) {
            // Units of one window each, but for a few of two, are fewer than the windows.
            _ if self.block <= 1 && self.units.is_none_or(|units| units == self.windows) => {
                return match self.windows {
                    1 => format!("there is {windows}"),
                    _ => format!("there are {windows}"),
                };
            }
            (BlockOf::Setting, _) => format!("in blocks of {block}"),
            (BlockOf::Overlap, false) => format!("that overlap in blocks of {block}"),
            (BlockOf::Overlap, true) => "that all overlap".to_owned(),
            (BlockOf::Season(steps), false) => {
                format!("in blocks of {block}, {} each,", season(steps))
            }
            (BlockOf::Season(steps), true) => format!("within {}", season(steps)),
            (BlockOf::Units, _) => {
                format!(
                    "of series, or groups of them, that have {block} each and were not trained on,"
                )
            }
        };
        let independent = count(self.independent(), "independent one");
        format!("{windows} {together} are as good as {independent}")
    }

    /// Why there are no intervals, where there are none.
    pub fn no_intervals(&self) -> Option<String> {
        let why = || format!("{}, and an interval takes at least {FEWEST_BLOCKS}", self.worth());
        (!self.has_intervals()).then(why)
    }

    /// The scores of a forecaster at an output, or over all of them.
    pub fn score(&self, forecaster: Forecaster, output: Option<usize>) -> Option<&ForecastScore> {
        let same =
            |score: &&ForecastScore| score.forecaster == forecaster && score.output == output;
        self.scores.iter().find(same)
    }

    /// The gain over a baseline at an output, or over all of them.
    pub fn gain(&self, baseline: Forecaster, output: Option<usize>) -> Option<&ForecastGain> {
        self.gains.iter().find(|gain| gain.baseline == baseline && gain.output == output)
    }

    /// Places of the outputs without a scale, which the mean of MASE leaves out: the training values of
    /// their targets never differ from those a season before, or no run of them is longer than a season.
    pub fn unscaled(&self) -> Vec<usize> {
        self.places(|score| score.mase.value.is_nan() && !score.mae.value.is_nan())
    }

    /// Places of the outputs of which the test part has no measured value. Nothing is said of them, and no mean has them.
    pub fn unmeasured(&self) -> Vec<usize> {
        self.places(|score| score.mae.value.is_nan())
    }

    /// How many outputs something is said of.
    pub fn measured_outputs(&self) -> usize {
        self.outputs.len() - self.unmeasured().len()
    }

    /// The outputs of which this holds of the model's score.
    fn places(&self, holds: impl Fn(&ForecastScore) -> bool) -> Vec<usize> {
        let found = |place: &usize| self.score(Forecaster::Model, Some(*place)).is_some_and(&holds);
        (0..self.outputs.len()).filter(found).collect()
    }

    /// Whether all outputs are of one target, so that their errors have a mean in its units.
    pub fn one_target(&self) -> bool {
        self.outputs.windows(2).all(|pair| pair[0].target == pair[1].target)
    }

    /// The score that a run tells first: the error over all outputs, of one target in its units.
    pub fn main_score(&self) -> Option<TestScore> {
        let (first, all) = (self.outputs.first()?, self.score(Forecaster::Model, None)?);
        let outputs = self.outputs.len();
        if !self.one_target() {
            let of = match self.measured_outputs() - self.unscaled().len() {
                scaled if scaled == outputs => outputs.to_string(),
                scaled => format!("{scaled} of {outputs}"),
            };
            let name = format!("mean absolute scaled error over {of} targets and horizons");
            return Some(TestScore::number(name, all.mase));
        }
        let over = match outputs {
            1 => format!("{} ahead", count(first.horizon, "step")),
            _ => {
                let unmeasured = self.unmeasured();
                let known = self.outputs.iter().enumerate();
                let known = known.filter(|(place, _)| !unmeasured.contains(place));
                let horizons = known.map(|(_, output)| output.horizon.to_string());
                format!("{} steps ahead", list(&horizons.collect::<Vec<_>>()))
            }
        };
        let (kind, error) = match self.by_scale {
            true => ("mean absolute scaled error", all.mase),
            false => ("mean absolute error", all.mae),
        };
        Some(TestScore::number(format!("{kind} of {} {over}", first.target), error))
    }

    /// Everything that the model is measured beside.
    pub fn baselines(&self) -> Vec<Forecaster> {
        let all = self.gains.iter().filter(|gain| gain.output.is_none());
        all.map(|gain| gain.baseline).collect()
    }
}
