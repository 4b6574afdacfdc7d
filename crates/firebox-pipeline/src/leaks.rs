//! The product's own test for look-ahead: it changes the future, and takes it away, makes everything
//! before it again, and demands the same bits.
//!
//! It reads the files anew and does not use the cache. What is trained of windows is not looked at.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use firebox_core::{
    Fold, ForecastScaler, HeldOutWindows, Labels, Listener, Normaliser, Series, SeriesSet, Split,
    SplitError, SplitRule, TrainWindows, Window, split, walk_forward,
};
use firebox_data::{Change, DataError, Original, first_difference};

use crate::feed::local;
use crate::forecast::{channels, samples};
use crate::moments::told_of_moments;
use crate::stages::automatic;
use crate::{Kind, PipelineConfig, PipelineError, Prepared, measure};

/// What was compared, and found equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeakCheck {
    /// One line for each kind of result.
    pub lines: Vec<String>,
    /// What may be said of all that was compared, and no more.
    pub conclusion: &'static str,
}

/// Shares of the time after which values are changed.
const SHARES: [f64; 3] = [0.25, 0.5, 0.75];

impl Prepared {
    /// Changes what comes after several moments, and what is held out, and makes features, windows,
    /// labels and normalised values again: all that lies before must come out the same, bit by bit. So
    /// must features, windows and labels where no row comes after these moments, unless whole series
    /// are windows, which other rows would be.
    ///
    /// # Errors
    ///
    /// [`PipelineError::Leak`] with the first feature, window or scale that differs; and whatever ends
    /// the reading of the data.
    pub fn check_leaks(&self, listener: &dyn Listener) -> Result<LeakCheck, PipelineError> {
        let config = self.config();
        let data = local(&config.data, &config.run, &AtomicBool::new(false), listener)?;
        Checking::new(&PipelineConfig { data: data.into_owned(), ..config.clone() }, listener)?
            .run()
    }
}

/// The data as it is, and how it is cut.
struct Checking<'a> {
    config: &'a PipelineConfig,
    original: Original,
    set: Arc<SeriesSet>,
    clock: bool,
    splits: Vec<(String, Split)>,
    /// What windows are split with: labels, or how far forecasts look ahead.
    labels: Labels,
}

impl<'a> Checking<'a> {
    fn new(config: &'a PipelineConfig, listener: &'a dyn Listener) -> Result<Self, PipelineError> {
        if config.pipeline == Kind::Text {
            return Err(PipelineError::Setting(
                "texts have no order in time, so nothing can look ahead: there is no such check of the pipeline `text`\n  \
                 what its split holds apart is what belongs together: equal texts, and those of one `text.columns.group`"
                    .to_owned(),
            ));
        }
        let (original, set, checks) = Original::read(&config.data, listener)?;
        let (set, clock) = (Arc::new(set), checks.span.is_some());
        let splits = splits(config, &set, clock)?;
        let labels = labels(config, &set, clock)?;
        Ok(Self { config, original, set, clock, splits, labels })
    }

    fn run(&self) -> Result<LeakCheck, PipelineError> {
        let mut lines = Vec::new();
        let moments = self.moments();
        let (mut steps, mut windows) = (0, 0);
        // What is left may be too little to be read, which says nothing of what lies ahead.
        let mut few: Vec<(i64, DataError)> = vec![];
        for moment in &moments {
            windows += self.compare(self.original.changed(&Change::After(*moment))?, *moment)?;
            steps += steps_until(&self.set, *moment);
            if self.config.window.whole {
                continue;
            }
            match self.original.changed(&Change::Gone(*moment)) {
                Ok(rest) => self.compare(rest, *moment).map(|_| ())?,
                Err(
                    error @ (DataError::TooShort { .. }
                    | DataError::NoValue { .. }
                    | DataError::NothingLeft { .. }
                    | DataError::TimeframeWarmup { .. }
                    | DataError::Interval { .. }
                    | DataError::OtherStep { .. }),
                ) => few.push((*moment, error)),
                Err(error) => return Err(error.into()),
            }
        }
        let (count, channels) = (moments.len(), self.set.channels().len());
        let gone = match self.config.window.whole || few.len() == count {
            true => "",
            false => ", or if nothing does",
        };
        lines.push(format!(
            "features: {channels} channels of {steps} steps before {count} moments are the same, whatever comes after{gone}"
        ));
        lines.push(match windows {
            0 => "windows and labels: none ends before these, so none was compared".to_owned(),
            _ => format!("windows and labels: {windows} that end before these are the same"),
        });
        lines.extend(few.first().map(|(moment, error)| {
            format!(
                "not tried: that nothing comes after {} of these moments, the first {}, because the rows up to it are refused: {}",
                few.len(),
                when(*moment, self.clock),
                error.to_string().lines().next().unwrap_or_default()
            )
        }));
        let mut values = 0;
        for (name, split) in &self.splits {
            values += self.compare_scales(name, split)?;
        }
        lines.push(format!(
            "normalisation: {values} training windows of {} are the same, whatever is held out",
            match self.splits.len() {
                1 => "the split".to_owned(),
                folds => format!("{folds} folds"),
            }
        ));
        let known = |(_, split): &(String, Split)| told_of_moments(self.config, split, self.clock);
        lines.extend(self.splits.iter().filter_map(known).map(|said| format!("but: {said}")));
        Ok(LeakCheck { lines, conclusion: self.conclusion(windows) })
    }

    /// What may be said of all that was compared, and no more.
    fn conclusion(&self, windows: usize) -> &'static str {
        let are_samples = !self.clock && self.set.series().len() > 1;
        match windows {
            0 if are_samples => {
                "no window was compared, because these are separate samples without times: nothing in one comes before anything in another; what was tested is that scales do not look at what is held out"
            }
            0 => {
                "no window was compared, because none ends before these moments: features and scales do not look ahead, and nothing is said of windows and labels"
            }
            _ => {
                "nothing looks ahead in what is made of the files; a column of theirs that itself holds the future cannot be noticed"
            }
        }
    }

    /// Everything up to a moment; returns the number of windows.
    fn compare(&self, after: SeriesSet, moment: i64) -> Result<usize, PipelineError> {
        match first_difference(&self.set, &after, moment) {
            Some(found) => Err(leak("feature", moment, self.clock, &found.told(self.clock))),
            None => self.compare_windows(&Arc::new(after), moment),
        }
    }

    /// Some moments within the data, and the boundaries of its splits.
    fn moments(&self) -> Vec<i64> {
        let mut times: Vec<i64> =
            self.set.series().iter().flat_map(|series| &series.time).copied().collect();
        times.sort_unstable();
        let at = |share: &f64| times[(times.len() as f64 * share) as usize];
        let boundaries = self.splits.iter().filter_map(|(_, split)| split.boundaries);
        // The moment before: values at a boundary lie after it.
        let boundaries = boundaries.flatten().map(|moment| moment.saturating_sub(1));
        let mut moments: Vec<i64> = SHARES.iter().map(at).chain(boundaries).collect();
        moments.retain(|moment| times.first() <= Some(moment) && Some(moment) < times.last());
        moments.sort_unstable();
        moments.dedup();
        moments
    }

    /// Windows with the steps that their labels look at, up to a moment.
    fn compare_windows(&self, after: &Arc<SeriesSet>, moment: i64) -> Result<usize, PipelineError> {
        let all = |set: &Arc<SeriesSet>| -> Result<Option<TrainWindows>, PipelineError> {
            let whole = SplitRule::Time { validation: 0.0, test: 0.0, gap: Some(0) };
            match split(set, &self.config.window.rule(), &whole, &self.labels) {
                // No series that is as long as a window.
                Err(SplitError::TooLong { .. } | SplitError::Empty { .. }) => Ok(None),
                split => Ok(Some(split?.train)),
            }
        };
        let horizon = self.labels.horizon();
        let ends = |set: &SeriesSet, window: &Window| {
            let last = window.steps().end - 1 + horizon;
            set.series()[window.series as usize].time[last] <= moment
        };
        let [before, rest] = [all(&self.set)?, all(after)?];
        // A series that has not begun yet has no place in the other set.
        let own: HashMap<&str, u32> =
            self.set.series().iter().zip(0..).map(|(one, place)| (&*one.name, place)).collect();
        let place = |series: &Series| own.get(&*series.name).copied().unwrap_or(u32::MAX);
        let places: Vec<u32> = after.series().iter().map(place).collect();
        let placed = |window: Window| Window { series: places[window.series as usize], ..window };
        // One by one: there may be as many as steps.
        let own = || windows_of(before.as_ref()).filter(|window| ends(&self.set, window));
        let others = || {
            let others = windows_of(rest.as_ref());
            others.filter(|window| ends(after, window)).map(placed)
        };
        if let Some((window, other)) = own().zip(others()).find(|(own, other)| own != other) {
            let name = &self.set.series()[window.series as usize].name;
            let what = format!(
                "series `{name}`, window of steps {:?}: its label {:?} became {:?}",
                window.steps(),
                window.label,
                other.label
            );
            return Err(leak("window or label", moment, self.clock, &what));
        }
        let (count, now) = (own().count(), others().count());
        if count != now {
            let what = format!("{count} windows became {now}");
            return Err(leak("window or label", moment, self.clock, &what));
        }
        Ok(count)
    }

    /// The normalised training windows, when all that is held out is changed.
    fn compare_scales(&self, name: &str, split: &Split) -> Result<usize, PipelineError> {
        let change = match split.boundaries {
            Some([validation, _]) => Change::After(validation.saturating_sub(1)),
            None => Change::Series(self.held_out(split)),
        };
        let after = Arc::new(self.original.changed(&change)?);
        let others = splits(self.config, &after, self.clock)?;
        let other = others.iter().find(|(other, _)| other == name).map(|(_, split)| split);
        let Some(other) = other else {
            return Err(leak("fold", i64::MIN, false, &format!("{name} is gone")));
        };
        let read = |split| Normalised::of(self.config, split, self.clock);
        let [mut before, mut after] = [read(split)?, read(other)?];
        let (count, others) = (before.train.len(), after.train.len());
        let differs = (0..count.min(others)).find(|at| before.window(*at).ne(after.window(*at)));
        match differs.or((count != others).then_some(count.min(others))) {
            Some(at) => {
                let what = format!("{name}: training window {at} comes out otherwise");
                Err(leak("normalised value", i64::MIN, false, &what))
            }
            None => Ok(count),
        }
    }

    /// The names of all series that are held out, and of those that are left out because they equal one of these: so they
    /// still do when all are changed.
    fn held_out(&self, split: &Split) -> Vec<String> {
        let of = |part: &HeldOutWindows| {
            part.windows().iter().map(|window| window.series as usize).collect::<Vec<_>>()
        };
        let series = of(&split.validation).into_iter().chain(of(&split.test));
        let series = series.chain(split.equal.left_out.iter().copied());
        let mut names: Vec<String> =
            series.map(|index| self.set.series()[index].name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

fn windows_of(train: Option<&TrainWindows>) -> impl Iterator<Item = Window> {
    train.into_iter().flat_map(|train| train.windows())
}

/// The split of a pipeline, or its folds, each with a name.
fn splits(
    config: &PipelineConfig,
    set: &Arc<SeriesSet>,
    clock: bool,
) -> Result<Vec<(String, Split)>, PipelineError> {
    if let Kind::Multitimeframe = config.pipeline {
        let folds = config.multitimeframe.clone().unwrap_or_default().folds;
        let folds = walk_forward(set, &config.window.rule(), &folds, &config.labels)?;
        let named = (1..)
            .zip(folds)
            .map(|(number, fold): (usize, Fold)| (format!("fold {number}"), fold.split));
        return Ok(named.collect());
    }
    let rule = config.split.unwrap_or_else(|| automatic(config, set, clock).0);
    let split = split(set, &config.window.rule(), &rule, &labels(config, set, clock)?)?;
    Ok(vec![("the split".to_owned(), split)])
}

/// The labels of a pipeline; of forecasts, how far they look ahead.
fn labels(config: &PipelineConfig, set: &SeriesSet, clock: bool) -> Result<Labels, PipelineError> {
    if config.pipeline != Kind::Forecast {
        return Ok(config.labels);
    }
    let forecast = config.forecast.clone().unwrap_or_default();
    Ok(Labels::Ahead { steps: channels(&forecast, set, clock)?.0.reach() })
}

/// All that training reads of each training window: its normalised values, and what is forecast from it. One window at a
/// time, of which there may be as many as steps.
struct Normalised<'a> {
    train: &'a TrainWindows,
    normaliser: Normaliser,
    forecasts: Option<ForecastScaler>,
    /// The window that was asked for last.
    values: Vec<f32>,
}

impl<'a> Normalised<'a> {
    fn of(config: &PipelineConfig, split: &'a Split, clock: bool) -> Result<Self, PipelineError> {
        let train = &split.train;
        let normaliser = Normaliser::fit(config.window.normalise, train)?;
        let mut forecasts = None;
        if config.pipeline == Kind::Forecast {
            let forecast = config.forecast.clone().unwrap_or_default();
            let (rule, _) = channels(&forecast, train.set(), clock)?;
            forecasts = Some(ForecastScaler::fit(rule, train.set(), train));
        }
        Ok(Self { train, normaliser, forecasts, values: vec![] })
    }

    /// The bits of a window.
    fn window(&mut self, at: usize) -> impl Iterator<Item = u32> + use<'_, 'a> {
        let (set, window) = (self.train.set(), self.train.windows().at(at));
        let own = window.length as usize * set.channels().len();
        self.values.clear();
        self.values.resize(own, 0.0);
        self.normaliser.apply(set, &window, &mut self.values);
        if let Some(scaler) = &self.forecasts {
            let samples = samples(scaler, set, [window]);
            self.values.extend(samples.statics);
            self.values.extend(samples.targets);
        }
        self.values.iter().map(|value| value.to_bits())
    }
}

fn steps_until(set: &SeriesSet, moment: i64) -> usize {
    set.series().iter().map(|series| series.time.partition_point(|time| *time <= moment)).sum()
}

fn when(moment: i64, clock: bool) -> String {
    if clock { measure::moment(moment) } else { format!("step {moment}") }
}

fn leak(kind: &'static str, moment: i64, clock: bool, what: &str) -> PipelineError {
    let when = match moment {
        i64::MIN => "what is held out".to_owned(),
        moment => format!("what comes after {}", when(moment, clock)),
    };
    PipelineError::Leak { kind, when, what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use firebox_core::{Labels, Silent, Stream, WindowRule};
    use firebox_data::DataConfig;

    use super::*;

    fn config(folder: &std::path::Path) -> PipelineConfig {
        let market = folder.join("m.market.toml");
        std::fs::write(&market, "bars = 400\ninstruments = ['ONE', 'TWO']\n[regimes.a]\n").unwrap();
        let mut config =
            PipelineConfig { data: DataConfig::new(market), ..PipelineConfig::default() };
        config.data.checks.gaps = firebox_data::GapPolicy::Split;
        (config.window.length, config.window.stride) = (10, 3);
        config.labels = Labels::Return { horizon: 3, threshold: 0.001 };
        config
    }

    /// The set with one value of an early step changed by its last bit.
    fn nudged(set: &SeriesSet, step: usize) -> Arc<SeriesSet> {
        let mut series = set.series().to_vec();
        let width = set.channels().len();
        let value = &mut series[0].values.make_mut()[step * width];
        *value = f64::from_bits(value.to_bits() + 1);
        let (channels, classes) = (set.channels().to_vec(), set.classes().to_vec());
        Arc::new(SeriesSet::new(channels, classes, series).unwrap())
    }

    #[test]
    fn what_does_not_look_ahead_passes_and_the_last_bit_of_what_does_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let checking = Checking::new(&config, &Silent).unwrap();
        let lines = checking.run().unwrap().lines;
        assert_eq!(lines.len(), 3);
        assert!(lines[0].ends_with("whatever comes after, or if nothing does"), "{lines:?}");
        assert!(lines[2].contains("training windows of the split"), "{lines:?}");
        // As if the future had moved one feature by one bit.
        let leaky = Checking { set: nudged(&checking.set, 40), ..checking };
        let error = leaky.run().unwrap_err();
        assert!(matches!(&error, PipelineError::Leak { kind: "feature", .. }), "{error}");
        assert!(error.to_string().contains("feature `open`"), "{error}");
        assert!(!error.is_bad_input());
    }

    #[test]
    fn windows_longer_than_what_is_left_are_none() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(folder.path());
        // A quarter of the bars, 100, is shorter than one of them.
        config.window.length = 105;
        config.split = Some(SplitRule::Time { validation: 0.3, test: 0.3, gap: Some(0) });
        let lines = Checking::new(&config, &Silent).unwrap().run().unwrap().lines;
        assert_eq!(lines.len(), 3, "{lines:?}");
    }

    #[test]
    fn a_beginning_of_another_rate_is_not_tried_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("merged.csv");
        let steps = (0..1000).map(|row| if row < 400 { 45 } else { 60 });
        let times = steps.scan(0u32, |at, step| {
            *at += step;
            Some(*at)
        });
        let row = |at: u32| {
            let [hours, minutes, seconds] = [at / 3600, at / 60 % 60, at % 60];
            format!("2024-01-01T{hours:02}:{minutes:02}:{seconds:02},{}\n", at * 7919 % 101)
        };
        let rows: String = times.map(row).collect();
        std::fs::write(&file, format!("time,x\n{rows}")).unwrap();
        let mut config =
            PipelineConfig { data: DataConfig::new(file), ..PipelineConfig::default() };
        (config.window.length, config.labels) = (10, Labels::None);
        let lines = Checking::new(&config, &Silent).unwrap().run().unwrap().lines;
        let found = lines.iter().find(|line| line.starts_with("not tried")).unwrap();
        assert!(found.contains("has steps of 45s"), "{found}");
    }

    #[test]
    fn what_forecasts_are_made_from_is_checked_too() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(folder.path());
        (config.pipeline, config.labels) = (Kind::Forecast, Labels::None);
        config.forecast = Some(
            toml::from_str("targets = ['close']\nhorizons = [1, 4]\nstatics = ['open']").unwrap(),
        );
        let checking = Checking::new(&config, &Silent).unwrap();
        assert_eq!(checking.run().unwrap().lines.len(), 3);
        // Targets of the last training windows that are not those of the file.
        let (_, split) = &checking.splits[0];
        let window = split.train.windows().last().unwrap();
        let step = window.steps().end - 1 + 4;
        let mut series = checking.set.series().to_vec();
        series[window.series as usize].values.make_mut()[step * 4 + 3] *= 1.5;
        let channels = checking.set.channels().to_vec();
        let set = SeriesSet::new(channels, checking.set.classes().to_vec(), series).unwrap();
        let other = splits(&config, &Arc::new(set), checking.clock).unwrap().remove(0).1;
        let error = checking.compare_scales("the split", &other).unwrap_err().to_string();
        assert!(error.contains("comes out otherwise"), "{error}");
    }

    #[test]
    fn labels_and_scales_that_look_ahead_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let checking = Checking::new(&config, &Silent).unwrap();
        let moment = checking.set.series()[0].time[200];
        // A label changes if the steps that it looks at do.
        let mut series = checking.set.series().to_vec();
        for step in 100..110 {
            series[0].values.make_mut()[step * 4 + 3] *= 2.0;
        }
        let channels = checking.set.channels().to_vec();
        let other = SeriesSet::new(channels, checking.set.classes().to_vec(), series).unwrap();
        let error = checking.compare_windows(&Arc::new(other), moment).unwrap_err();
        assert!(error.to_string().contains("window or label looks ahead"), "{error}");
        // A scale that was fitted on something else.
        let all = WindowRule { length: 10, stride: 3, whole: false };
        let whole = SplitRule::Time { validation: 0.0, test: 0.0, gap: Some(0) };
        let wrong = split(&checking.set, &all, &whole, &config.labels).unwrap();
        let right = &checking.splits[0].1;
        let mixed = Split { train: wrong.train, boundaries: right.boundaries, ..right.clone() };
        assert!(mixed.train.len() > right.train.len());
        let error = checking.compare_scales("the split", &mixed).unwrap_err();
        assert!(error.to_string().contains("what is held out"), "{error}");
    }

    #[test]
    fn training_series_that_equal_test_series_stay_left_out_when_what_is_held_out_is_changed() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, samples: &[usize]| {
            let line = |i: &usize| format!("{i},2,{}:{}\n", i * i % 7, ["a", "b"][i % 2]);
            let lines: String = samples.iter().map(line).collect();
            let file = folder.path().join(name);
            std::fs::write(&file, format!("@classLabel true a b\n@data\n{lines}")).unwrap();
            file
        };
        let mut data = DataConfig::new(write("train.ts", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
        data.test = Some(firebox_data::Paths(vec![write("test.ts", &[3, 6, 20, 21])]));
        let mut config = PipelineConfig { data, labels: Labels::Last, ..PipelineConfig::default() };
        (config.window.length, config.window.whole) = (3, true);
        let equal = firebox_core::EqualPolicy::Drop;
        config.split = Some(SplitRule::Given { validation: 0.2, seed: 1, equal });
        let checking = Checking::new(&config, &Silent).unwrap();
        assert_eq!(checking.splits[0].1.equal.left_out.len(), 2);
        checking.run().unwrap();
    }

    #[test]
    fn series_that_overlap_test_series_or_are_their_copies_stay_left_out_when_these_are_changed() {
        let folder = tempfile::tempdir().unwrap();
        let walk = |seed: u64| {
            let mut draws = Stream::new(seed, "walk").draws();
            let step = move |at: &mut f64, _| {
                *at += draws.normal();
                Some(*at)
            };
            (0..340).scan(100.0, step).collect::<Vec<f64>>()
        };
        let write = |name: &str, seed: u64, minutes: std::ops::Range<usize>, narrow: bool| {
            let walk = walk(seed);
            let line = |minute: usize| {
                let value = walk[minute];
                let value = if narrow { f64::from(value as f32) } else { value };
                format!("2024-03-01T{:02}:{:02}:00,{value}\n", minute / 60, minute % 60)
            };
            let file = folder.path().join(name);
            std::fs::write(&file, format!("time,x\n{}", minutes.map(line).collect::<String>()))
                .unwrap();
            file
        };
        let train = (0..6).map(|seed| write(&format!("r{seed}.csv"), seed, 0..200, false));
        let train: Vec<_> = train.collect();
        let other = write("other.csv", 9, 0..200, false);
        for (minutes, narrow) in [(140..340, false), (0..200, true)] {
            let test = write("test.csv", 0, minutes, narrow);
            let mut data = DataConfig::new(&train[0]);
            data.path = firebox_data::Paths(train.clone());
            data.test = Some(firebox_data::Paths(vec![test, other.clone()]));
            let mut config = PipelineConfig { data, ..PipelineConfig::default() };
            (config.window.length, config.window.stride) = (20, 5);
            let equal = firebox_core::EqualPolicy::Drop;
            config.split = Some(SplitRule::Given { validation: 0.2, seed: 1, equal });
            let checking = Checking::new(&config, &Silent).unwrap();
            assert_eq!(checking.splits[0].1.equal.left_out, [0]);
            checking.run().unwrap();
        }
    }

    #[test]
    fn of_samples_without_times_no_more_is_said_than_was_compared() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.ts");
        let line = |i: usize| format!("{i},2,{}:{}\n", i * i % 7, ["a", "b"][i % 2]);
        let lines: String = (0..12).map(line).collect();
        std::fs::write(&file, format!("@classLabel true a b\n@data\n{lines}")).unwrap();
        let (data, labels) = (DataConfig::new(file), Labels::Last);
        let mut config = PipelineConfig { data, labels, ..PipelineConfig::default() };
        (config.window.length, config.window.whole) = (3, true);
        let checked = Checking::new(&config, &Silent).unwrap().run().unwrap();
        assert!(checked.lines[1].ends_with("so none was compared"), "{:?}", checked.lines);
        assert!(checked.conclusion.contains("separate samples"), "{}", checked.conclusion);
    }
}
