//! Windows of the input channels with their targets and static features: what the training and the
//! evaluation of a forecaster read.

use std::sync::Arc;

use firebox_core::{
    ForecastRule, ForecastScaler, HeldOutWindows, Labels, Normaliser, SeriesSet, Split,
    TrainWindows, Window, split,
};
use firebox_data::Ingested;
use firebox_loader::NormalisedWindows;
use firebox_train::ForecastSamples;

use super::ForecastConfig;
use crate::error::PipelineError;
use crate::stages::{Run, Windows, rule_for};

/// Everything that is the same for all models of the same data.
pub(super) struct Sequences {
    /// The windows look into a set of the input channels alone; what was ingested has all.
    pub(super) windows: Windows,
    pub(super) scaler: ForecastScaler,
    /// Of training, validation and test.
    pub(super) samples: [Arc<ForecastSamples>; 3],
    /// Steps of a season, and where they come from.
    pub(super) season: Option<(usize, &'static str)>,
}

impl Sequences {
    /// The series with all channels.
    pub(super) fn set(&self) -> &SeriesSet {
        &self.windows.ingested.set
    }

    pub(super) fn rule(&self) -> &ForecastRule {
        self.scaler.rule()
    }

    pub(super) fn train(&self) -> &TrainWindows {
        &self.windows.parts.train
    }

    /// The training windows as they are read.
    pub(super) fn source(&self) -> NormalisedWindows<TrainWindows> {
        NormalisedWindows::new(self.train().clone(), self.windows.normaliser.clone())
    }

    pub(super) fn test(&self) -> &HeldOutWindows {
        &self.windows.parts.test
    }

    /// Channels of a window.
    pub(super) fn channels(&self) -> usize {
        self.windows.parts.train.set().channels().len()
    }
}

impl Run<'_> {
    /// Files → series → parts of windows with what is forecast from them.
    pub(super) fn sequences(
        &self,
        config: &ForecastConfig,
        remade: &mut usize,
    ) -> Result<Arc<Sequences>, PipelineError> {
        let make = || {
            let (ingested, hold) = self.ingest(remade)?;
            self.stage("windows", None, &mut 0, || {
                let made = sequences(self, config, ingested, hold)?;
                let parts = &made.windows.parts;
                let detail = format!(
                    "{} training, {} validation, {} test windows by {}, {} outputs and {} static features each; {} across a boundary left out",
                    parts.train.len(),
                    parts.validation.len(),
                    parts.test.len(),
                    made.windows.rule.name(),
                    made.rule().outputs(),
                    made.rule().static_features(),
                    parts.left_out
                );
                Ok((made, false, detail))
            })
        };
        let (found, there) = self.shared.get("sequences", self.keys.windows, make)?;
        if there {
            self.shared_stage("ingest", Some(self.keys.series));
        }
        Ok(found)
    }
}

fn sequences(
    run: &Run<'_>,
    config: &ForecastConfig,
    ingested: Ingested,
    hold: firebox_cache::Hold,
) -> Result<Sequences, PipelineError> {
    let (split_rule, chosen) = rule_for(run.config, &ingested)?;
    let clock = ingested.checks.span.is_some();
    let (rule, inputs) = channels(config, &ingested.set, clock)?;
    let set = Arc::new(ingested.set.select(&inputs).map_err(|error| {
        PipelineError::Setting(format!("`forecast.inputs` cannot be taken: {error}"))
    })?);
    let ahead = Labels::Ahead { steps: rule.reach() };
    let parts = split(&set, &run.config.window.rule(), &split_rule, &ahead)?;
    run.warn_of_unused([&parts], ahead.horizon());
    let normaliser = Normaliser::fit(run.config.window.normalise, &parts.train)?;
    let scaler = ForecastScaler::fit(rule, &ingested.set, &parts.train);
    let of = |windows: &[Window]| Arc::new(samples(&scaler, &ingested.set, windows));
    let Split { train, validation, test, .. } = &parts;
    let samples = [of(train.windows()), of(validation.windows()), of(test.windows())];
    let usual = || {
        let interval = ingested.checks.interval?;
        let season = firebox_eval::usual_season(interval.microseconds())?;
        Some((season, "that of the data's interval"))
    };
    let season = config.season.map(|season| (season, "as written")).or_else(usual);
    let windows = Windows { ingested, parts, normaliser, rule: split_rule, chosen, hold };
    Ok(Sequences { windows, scaler, samples, season })
}

/// What is forecast by the channels of the data, and the channels that a window shows. `clock` says whether
/// the data has times.
pub(crate) fn channels(
    config: &ForecastConfig,
    set: &SeriesSet,
    clock: bool,
) -> Result<(ForecastRule, Vec<usize>), PipelineError> {
    let find = |key: &str, names: &[String]| -> Result<Vec<usize>, PipelineError> {
        let find = |name: &String| {
            set.channel(name).ok_or_else(|| {
                let all: Vec<_> = set.channels().iter().map(|c| format!("`{}`", c.name)).collect();
                PipelineError::Setting(format!(
                    "`forecast.{key}` names `{name}`, and the data has the channels {}",
                    all.join(", ")
                ))
            })
        };
        names.iter().map(find).collect()
    };
    if !config.calendar.is_empty() && !clock {
        return Err(PipelineError::Setting(
            "`forecast.calendar` asks for the hour or the day of each window, and the data has no times\n  \
             declare their column in `data.columns.time`, or remove `forecast.calendar`"
                .to_owned(),
        ));
    }
    let statics = find("statics", &config.statics)?;
    let inputs = match &config.inputs {
        Some(inputs) => find("inputs", inputs)?,
        None => (0..set.channels().len()).filter(|channel| !statics.contains(channel)).collect(),
    };
    let rule = ForecastRule {
        targets: find("targets", &config.targets)?,
        horizons: config.horizons.clone(),
        statics,
        calendar: config.calendar.clone(),
        predicted: config.predict,
    };
    Ok((rule, inputs))
}

/// Static features and targets of each training window, as training reads them.
pub(crate) fn training_samples(
    rule: ForecastRule,
    set: &SeriesSet,
    train: &TrainWindows,
) -> Vec<Vec<f32>> {
    let scaler = ForecastScaler::fit(rule, set, train);
    let one = |window: &Window| {
        let samples = samples(&scaler, set, std::slice::from_ref(window));
        [samples.statics, samples.targets].concat()
    };
    train.windows().iter().map(one).collect()
}

fn samples(scaler: &ForecastScaler, set: &SeriesSet, windows: &[Window]) -> ForecastSamples {
    let (statics, outputs) = (scaler.rule().static_features(), scaler.rule().outputs());
    let mut samples = ForecastSamples {
        statics: vec![0.0; windows.len() * statics],
        targets: vec![0.0; windows.len() * outputs],
    };
    for (place, window) in windows.iter().enumerate() {
        scaler.statics(set, window, &mut samples.statics[place * statics..(place + 1) * statics]);
        scaler.targets(set, window, &mut samples.targets[place * outputs..(place + 1) * outputs]);
    }
    samples
}
