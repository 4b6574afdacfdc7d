//! `[forecast]`: what is forecast, and from what beside the values of a window.

use firebox_core::{Calendar, Predicted};
use firebox_loader::Masking;
use firebox_train::ForecastLoss;
use serde::{Deserialize, Serialize};

use crate::config::check_masking;
use crate::error::PipelineError;

/// `[forecast]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ForecastConfig {
    /// Names of the channels that are forecast; at least one.
    pub targets: Vec<String>,
    /// Steps after the last one of the window, each at least 1, in increasing order.
    pub horizons: Vec<usize>,
    /// Names of the channels whose values a window shows. Left out, all that are not static.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inputs: Option<Vec<String>>,
    /// Names of channels of which only the value at the window's last step is shown, such as the size
    /// of a station.
    pub statics: Vec<String>,
    /// Cycles of the calendar at the window's last step: `hour`, `weekday`, `year-day`.
    pub calendar: Vec<Calendar>,
    /// What the model puts out: `value`, `change` since the window's last step, or `relative-change`,
    /// in units of the target's standard deviation within the window.
    pub predict: Predicted,
    /// What is minimised, over outputs in units of their training scale.
    pub loss: ForecastLoss,
    /// Stretches of steps, and channels, that are hidden of the inputs of training windows, drawn anew in each epoch;
    /// targets stay what they are. None by default.
    #[serde(skip_serializing_if = "Masking::is_off")]
    pub masking: Masking,
    /// Trainings, with the seeds `run.seed`, `run.seed + 1`, …; at least 1. Scores are means over them,
    /// and intervals cover their spread. A search trains the first alone.
    pub seeds: u64,
    /// Steps of a season, for the seasonal naive forecast and for MASE. Left out, that of the data's
    /// interval, or of `data.timeframes.base`: a day of hours, a week of days, a year of months. None if no run of
    /// training steps is longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub season: Option<usize>,
}

impl Default for ForecastConfig {
    fn default() -> Self {
        Self {
            targets: vec![],
            horizons: vec![1, 6, 24],
            inputs: None,
            statics: vec![],
            calendar: vec![],
            predict: Predicted::default(),
            loss: ForecastLoss::default(),
            masking: Masking::default(),
            seeds: 1,
            season: None,
        }
    }
}

impl ForecastConfig {
    /// Checks what is known before any data is read.
    pub(super) fn validate(&self) -> Result<(), PipelineError> {
        let setting = |message: String| Err(PipelineError::Setting(message));
        if self.targets.is_empty() {
            return setting(
                "`forecast.targets` is empty\n  name at least one channel, such as targets = [\"demand\"]"
                    .to_owned(),
            );
        }
        let increasing = self.horizons.windows(2).all(|pair| pair[0] < pair[1]);
        if self.horizons.is_empty() || self.horizons[0] == 0 || !increasing {
            return setting(format!(
                "`forecast.horizons` is {:?}; horizons are steps after the window, each at least 1, in increasing order",
                self.horizons
            ));
        }
        if self.inputs.as_ref().is_some_and(Vec::is_empty) {
            return setting(
                "`forecast.inputs` is empty\n  name at least one channel, or leave it out for all that are not static"
                    .to_owned(),
            );
        }
        for (key, value) in [("seeds", Some(self.seeds)), ("season", self.season.map(|s| s as u64))]
        {
            if value == Some(0) {
                return setting(format!("`forecast.{key}` is 0; it must be at least 1"));
            }
        }
        let lists = [("targets", &self.targets), ("statics", &self.statics)];
        let inputs = self.inputs.as_ref().map(|inputs| ("inputs", inputs));
        for (key, names) in lists.into_iter().chain(inputs) {
            let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
            if let Some((_, name)) = twice {
                return setting(format!("`forecast.{key}` names `{name}` twice"));
            }
        }
        let cycles = &self.calendar;
        if (1..cycles.len()).any(|at| cycles[..at].contains(&cycles[at])) {
            return setting("`forecast.calendar` names one cycle twice".to_owned());
        }
        check_masking(&self.masking, "forecast")?;
        Ok(self.loss.validate()?)
    }
}
