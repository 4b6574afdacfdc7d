//! Windows of the input channels with their targets and static features: what the training and the
//! evaluation of a forecaster read.

use std::sync::Arc;

use firebox_core::{
    Augmentation, Event, ForecastRule, ForecastScaler, HeldOutWindows, Labels, Normaliser,
    SeriesSet, Split, SplitError, TrainWindows, Window, WindowList, count, outliers, quoted, split,
    telling_channels, unchanging_channels, unchanging_targets,
};
use firebox_data::{Action, Checks, Defect, Ingested, Interval, Timeframes};
use firebox_loader::TrainSource;
use firebox_train::ForecastSamples;

use super::ForecastConfig;
use crate::config::WindowConfig;
use crate::error::PipelineError;
use crate::online::source;
use crate::stages::{Run, TEST_PART, Windows, rule_for};

/// Everything that is the same for all models of the same data.
pub(super) struct Sequences {
    /// The windows look into a set of the input channels alone; what was ingested has all.
    pub(super) windows: Windows,
    pub(super) scaler: ForecastScaler,
    /// Of training, validation and test.
    pub(super) samples: [Arc<ForecastSamples>; 3],
    /// Steps of a season, and where they come from.
    pub(super) season: Option<(usize, &'static str)>,
    /// Steps of the usual season, where there is none because no run of training steps is longer.
    pub(super) too_long: Option<usize>,
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

    /// The training windows as they are learnt from: with their versions, if any are drawn.
    pub(super) fn source(
        &self,
        augment: &Augmentation,
        seed: u64,
    ) -> Result<Arc<dyn TrainSource>, PipelineError> {
        source(self.train().clone(), self.windows.normaliser.clone(), augment, seed)
    }

    pub(super) fn test(&self) -> &HeldOutWindows {
        &self.windows.parts.test
    }

    /// Steps of a season, 1 where none is known.
    pub(super) fn steps_of_season(&self) -> usize {
        self.season.map_or(1, |(season, _)| season)
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
                    "{} training, {} validation, {} test windows by {}, {} each, static features: {}; {} across a boundary left out",
                    parts.train.len(),
                    parts.validation.len(),
                    parts.test.len(),
                    made.windows.rule.name(),
                    count(made.rule().outputs() as u64, "output"),
                    static_features(made.rule()),
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

/// How many static features a window has, and of what.
pub(super) fn static_features(rule: &ForecastRule) -> String {
    let of_calendar = rule.static_features() - rule.statics.len();
    match [rule.statics.len(), of_calendar] {
        [0, 0] => "none".to_owned(),
        [channels, 0] => format!("{channels} of channels"),
        [0, calendar] => format!("{calendar} of the calendar"),
        [channels, calendar] => format!("{channels} of channels and {calendar} of the calendar"),
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
    refuse_dropped(config, &ingested.checks)?;
    let (rule, inputs) = channels(config, &ingested.set, clock)?;
    let ahead = Labels::Ahead { steps: rule.reach() };
    let (window, reach) = (&run.config.window, rule.reach());
    // Series of one weather are not equal: what is forecast is another one.
    let parts = split(&ingested.set, &window.rule(), &split_rule, &ahead)
        .map_err(|error| with_horizons(error, window, reach))?;
    let parts = parts.select(&inputs).map_err(|error| {
        PipelineError::Setting(format!("`forecast.inputs` cannot be taken: {error}"))
    })?;
    let set = Arc::clone(parts.train.set());
    run.warn_of_cut(&set, &ahead);
    run.warn_of_equal(&parts);
    run.warn_of_filled(&ingested.checks, ahead.horizon());
    run.warn_of_known(&parts, clock);
    run.warn_of_unused([&parts], ahead.horizon());
    run.warn_of_few(&parts);
    let normaliser = Normaliser::fit(run.config.window.normalise, &parts.train)?;
    let unchanging =
        [unchanging_targets(&rule, &ingested.set, &parts.train), unchanging_channels(&parts.train)];
    run.warn_of_unchanging("the training part", &unchanging.concat());
    run.warn_of_unscaled(&normaliser, &parts.train);
    run.warn_of_outliers("the training part", &set, &outliers(&parts.train), clock);
    run.warn_of_outliers(TEST_PART, &set, &outliers(&parts.test), clock);
    run.warn_of_telling(&telling_channels(&parts.train, &ahead));
    let scaler = ForecastScaler::fit(rule, &ingested.set, &parts.train);
    run.warn_of_unseen_levels(&scaler, &ingested.set);
    run.warn_of_nearly_constant(&scaler, &ingested.set, &parts.train);
    let of = |windows: &WindowList| Arc::new(samples(&scaler, &ingested.set, windows));
    let Split { train, validation, test, .. } = &parts;
    let samples = [of(train.windows()), of(validation.windows()), of(test.windows())];
    let rule = scaler.rule();
    for (part, samples) in ["training", "validation", "test"].iter().zip(&samples) {
        let lacking = unmeasured(rule, &ingested.set, samples);
        if !lacking.is_empty() && lacking.len() == rule.outputs() {
            return Err(PipelineError::Setting(format!(
                "no target of the {part} part was measured: `data.checks` put all of them in\n  \
                 choose another split or other targets, or set data.checks.not_finite = \"drop\" to forecast what was measured"
            )));
        }
        if !lacking.is_empty() {
            let message = format!(
                "nothing was measured of {} in the {part} part: `data.checks` put all of it in, and nothing is said of it there",
                quoted(&lacking, MOST_NAMED)
            );
            run.listener.on(&Event::Warning { message });
        }
    }
    let usual = usual_season(run.config.data.timeframes.as_ref(), ingested.checks.interval);
    let longest = longest_run(&ingested.set, &parts.train);
    let seen = usual.filter(|(season, _)| longest > *season);
    let season = config.season.map(|season| (season, "as written")).or(seen);
    let too_long = usual.filter(|_| season.is_none()).map(|(season, _)| season);
    let windows = Windows { ingested, parts, normaliser, rule: split_rule, chosen, hold };
    Ok(Sequences { windows, scaler, samples, season, too_long })
}

/// Steps of a usual season, and what they follow from. What `data.timeframes` made has other steps than its source,
/// whose interval the checks tell.
fn usual_season(
    frames: Option<&Timeframes>,
    source: Option<Interval>,
) -> Option<(usize, &'static str)> {
    let (interval, why) = match frames {
        Some(frames) => (frames.base, "that of `data.timeframes.base`"),
        None => (source?, "that of the data's interval"),
    };
    Some((firebox_eval::usual_season(interval.microseconds())?, why))
}

/// Steps of the longest run without a gap up to the end of its last training window.
fn longest_run(set: &SeriesSet, train: &TrainWindows) -> usize {
    let steps = |window: Window| {
        let last = window.steps().end - 1;
        let runs = &set.series()[window.series as usize].segments;
        let own = runs.get(runs.partition_point(|run| run.end <= last));
        own.map_or(0, |run| (last + 1).saturating_sub(run.start))
    };
    train.windows().iter().map(steps).max().unwrap_or(0)
}

/// Outputs that are named where there may be many.
pub(super) const MOST_NAMED: usize = 5;

/// The outputs of which no sample of a part has a target, such as `load +3`; nothing of a part without samples.
fn unmeasured(rule: &ForecastRule, set: &SeriesSet, samples: &ForecastSamples) -> Vec<String> {
    let outputs = rule.outputs();
    let is_lacking = |output: &usize| {
        let mut all = samples.targets.iter().skip(*output).step_by(outputs);
        !samples.targets.is_empty() && all.all(|target| target.is_nan())
    };
    let name = |output: usize| {
        let (horizon, target) = (output / rule.targets.len(), output % rule.targets.len());
        let channel = &set.channels()[rule.targets[target]].name;
        format!("{channel} +{}", rule.horizons[horizon])
    };
    (0..outputs).filter(is_lacking).map(name).collect()
}

/// A split that cannot be made, with what the horizons have to do with it.
fn with_horizons(error: SplitError, window: &WindowConfig, reach: usize) -> PipelineError {
    let (own, shorter) = match window.whole {
        true => ("one step at least (`window.whole`)".to_owned(), "shorter horizons"),
        false => {
            (format!("{} steps (`window.length`)", window.length), "shorter horizons or windows")
        }
    };
    let takes = format!(
        "a window takes {own}, and the {reach} after it up to the last of `forecast.horizons`"
    );
    match error {
        SplitError::TooLong { runs: [_, longest], cut, series, .. } => {
            let numbered = match cut {
                true => {
                    " leave the column of times out of the files where nothing is traded or measured in the gaps, as on weekends (rows are then numbered, one step each),"
                }
                false => "",
            };
            PipelineError::Horizons(format!(
                "no window fits: {takes}, and the longest run without a gap has {longest} (series `{series}`)\n  \
                 choose {shorter}, fill gaps (`data.checks.gaps`),{numbered} correct `data.interval` if it is \
                 shorter than the steps between rows, or give longer series"
            ))
        }
        SplitError::Empty { part, windows, left_out, hint } => PipelineError::Horizons(format!(
            "the {part} part is empty: {windows} windows in all, {left_out} of them across a boundary or in a gap; {takes}\n  \
             choose shorter horizons, or {hint}"
        )),
        other => other.into(),
    }
}

/// Refuses channels that are named and were dropped as constant: they would seem never to have been there.
fn refuse_dropped(config: &ForecastConfig, checks: &Checks) -> Result<(), PipelineError> {
    let dropped = |name: &&String| {
        checks.findings.iter().any(|finding| {
            finding.defect == Defect::Constant
                && finding.action == Action::Dropped
                && finding.channel.as_ref() == Some(*name)
        })
    };
    let inputs = config.inputs.as_ref().map(|inputs| ("inputs", inputs));
    let lists = [("targets", &config.targets), ("statics", &config.statics)];
    for (key, names) in lists.into_iter().chain(inputs) {
        if let Some(name) = names.iter().find(dropped) {
            return Err(PipelineError::Setting(format!(
                "`forecast.{key}` names `{name}`, which is constant and was dropped by data.checks.constant = \"drop\"\n  \
                 name another channel, or set data.checks.constant = \"keep\""
            )));
        }
    }
    Ok(())
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

/// Static features and targets of these windows, as training reads them.
pub(crate) fn samples(
    scaler: &ForecastScaler,
    set: &SeriesSet,
    windows: impl IntoIterator<Item = Window, IntoIter: ExactSizeIterator>,
) -> ForecastSamples {
    let windows = windows.into_iter();
    let (statics, outputs) = (scaler.rule().static_features(), scaler.rule().outputs());
    let mut samples = ForecastSamples {
        statics: vec![0.0; windows.len() * statics],
        targets: vec![0.0; windows.len() * outputs],
    };
    for (place, window) in windows.enumerate() {
        scaler.statics(set, &window, &mut samples.statics[place * statics..(place + 1) * statics]);
        scaler.targets(set, &window, &mut samples.targets[place * outputs..(place + 1) * outputs]);
    }
    samples
}

#[cfg(test)]
mod tests {
    use firebox_core::{Channel, Role, Series, SplitRule, WindowRule};
    use firebox_data::Finding;

    use super::*;

    #[test]
    fn a_season_is_of_the_steps_and_not_of_the_rows_that_they_are_made_of() {
        let minute = Interval::from_microseconds(60_000_000);
        // A day of bars of 15 minutes, and of rows of one.
        let of = |frames: Option<&Timeframes>| usual_season(frames, minute).map(|own| own.0);
        assert_eq!(of(Some(&Timeframes::default())), Some(96));
        assert_eq!(of(None), Some(1440));
        assert_eq!(usual_season(None, None), None);
    }

    #[test]
    fn the_longest_run_ends_with_its_last_training_window() {
        let mut series = Series::regular("a", 0, 60_000_000, vec![1.0; 100], 1);
        series.segments = vec![0..45, 50..100];
        let channels = vec![Channel::new("x", Role::Other)];
        let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
        let longest = |test: f64| {
            let rule = WindowRule { length: 5, stride: 5, whole: false };
            let by_time = SplitRule::Time { validation: 0.0, test, gap: Some(0) };
            let parts = split(&set, &rule, &by_time, &Labels::None).unwrap();
            longest_run(&set, &parts.train)
        };
        assert_eq!(longest(0.0), 50);
        // Training ends with step 80, of which the second run has 30.
        assert_eq!(longest(0.2), 45);
    }

    #[test]
    fn windows_that_do_not_fit_name_the_horizons() {
        let (after, series) = (Some((100, "forecast.horizons")), "a".to_owned());
        let of = |length, whole| SplitError::TooLong {
            length,
            whole,
            after,
            runs: [90, 90],
            cut: whole,
            series: series.clone(),
        };
        let window = |whole| WindowConfig { length: 24, whole, ..WindowConfig::default() };
        let whole = with_horizons(of(1, true), &window(true), 100).to_string();
        assert!(whole.contains("one step at least (`window.whole`), and the 100 after"), "{whole}");
        assert!(!whole.contains("24") && !whole.contains("`window.length`"), "{whole}");
        assert!(whole.contains("gaps`), leave the column of times out of the files"), "{whole}");
        let said = with_horizons(of(24, false), &window(false), 100);
        // Every trial of a search would meet it, so that it is none of theirs.
        assert!(matches!(said, PipelineError::Horizons(_)), "{said}");
        let said = said.to_string();
        for expected in ["24 steps (`window.length`)", "100 after it", "`forecast.horizons`", "90"]
        {
            assert!(said.contains(expected), "{said}");
        }
        let empty = SplitError::Empty {
            part: "test",
            windows: 9,
            left_out: 7,
            hint: "give more".to_owned(),
        };
        let said = with_horizons(empty, &window(false), 100).to_string();
        assert!(said.contains("`forecast.horizons`") && said.ends_with("or give more"), "{said}");
    }

    #[test]
    fn features_of_the_calendar_are_none_of_channels() {
        use firebox_core::Calendar::{Hour, Weekday};
        let said = |statics: &[usize], calendar: &[firebox_core::Calendar]| {
            let (statics, calendar) = (statics.to_vec(), calendar.to_vec());
            static_features(&ForecastRule { statics, calendar, ..ForecastRule::default() })
        };
        assert_eq!(said(&[], &[]), "none");
        assert_eq!(said(&[3, 1, 2], &[]), "3 of channels");
        // A sine and a cosine of each cycle.
        assert_eq!(said(&[], &[Hour]), "2 of the calendar");
        assert_eq!(said(&[3], &[Hour, Weekday]), "1 of channels and 4 of the calendar");
    }

    #[test]
    fn a_target_that_was_dropped_as_constant_is_told_so() {
        let config =
            ForecastConfig { targets: vec!["demand".to_owned()], ..ForecastConfig::default() };
        let finding = |action| Finding {
            defect: Defect::Constant,
            channel: Some("demand".to_owned()),
            count: 1,
            series: 1,
            action,
            detail: String::new(),
        };
        let checks = |action| Checks { findings: vec![finding(action)], ..Checks::default() };
        let said = refuse_dropped(&config, &checks(Action::Dropped)).unwrap_err().to_string();
        assert!(said.contains("names `demand`, which is constant and was dropped"), "{said}");
        refuse_dropped(&config, &checks(Action::Kept)).unwrap();
    }
}
