//! New data for a trained model: read as its training data was, and refused if it is of another kind.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use firebox_core::{Channel, Event, Listener, SeriesSet, Silent, count};
use firebox_data::{
    ChannelColumn, Checks, Columns, ConstantPolicy, Csv, DataConfig, DataError, Format, Interval,
    Paths, Stamp, Timeframes,
};
use firebox_export::ModelCard;

use super::named_once;
use crate::error::PipelineError;
use crate::layers;

/// The files of new data and how they are read.
pub(super) struct NewData {
    config: DataConfig,
    pub(super) files: Vec<PathBuf>,
    /// The time between two steps that the user says there is.
    declared: Option<Interval>,
    /// Whether the user says which columns are channels.
    names_channels: bool,
    /// What the files are.
    format: Format,
    /// Names of channels, for files that do not have any: those that the files of the training have, and those of the model
    /// alone. The first that a file can have are its.
    names: Vec<Vec<ChannelColumn>>,
    /// Channels that such a file may have beside those of the model: the training left them out.
    beside: Vec<String>,
    /// The columns of times and of series that the training named, and the user did not: new data may do without them.
    may_lack: Vec<Declared>,
    /// Columns of the training that are not read, whose names are none of those by mistake.
    taken: Vec<String>,
}

/// A column that the training named, and what it held.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Declared {
    /// The key of `[data.columns]`.
    key: &'static str,
    column: String,
}

impl Declared {
    /// Whether a setting names it, or all columns.
    fn is_set_by(&self, setting: &str) -> bool {
        let set = key_of(setting);
        set == "data.columns" || set.strip_prefix("data.columns.") == Some(self.key)
    }

    /// Leaves it out: what a column of a usual name holds, or none, takes its place.
    fn undeclare(&self, config: &mut DataConfig) {
        match self.key {
            "time" => config.columns.time = None,
            _ => config.columns.series = None,
        }
    }

    /// What is said of a file that does not have it.
    fn said(&self, file: &Path, checks: &Checks) -> String {
        let Self { key, column } = self;
        let (held, instead) = match *key {
            "time" => (
                "held the times",
                match &checks.time_column {
                    Some(other) => format!("they are read from `{other}`"),
                    None => "its rows are numbered".to_owned(),
                },
            ),
            _ => (
                "named the series",
                match &checks.series_column {
                    Some(other) => format!("they are told by `{other}`"),
                    None => "it is read as one series".to_owned(),
                },
            ),
        };
        format!(
            "{} has no column `{column}`, which {held} in training (`data.columns.{key}`): {instead}; so it is with every other file without that column",
            file.display()
        )
    }
}

/// What is held in memory at once: the series of a file, or of all files.
pub(super) struct Loaded {
    pub(super) set: Arc<SeriesSet>,
    /// Whether its steps have times.
    pub(super) timed: bool,
    /// Files that it came from.
    pub(super) files: usize,
    /// The first of them.
    pub(super) file: PathBuf,
}

impl NewData {
    /// The settings of the model's own data with `settings` over them, for these paths.
    pub(super) fn new(
        card: &ModelCard,
        inputs: &[PathBuf],
        settings: &[String],
    ) -> Result<Self, PipelineError> {
        let mut config = own_settings(card, settings)?;
        config.path = Paths(inputs.to_vec());
        config.test = None;
        // Compared with the model's own afterwards, in words that name both.
        let named = settings.iter().any(|setting| key_of(setting) == "data.interval");
        let declared = config.interval.take().filter(|_| named);
        let names_channels =
            settings.iter().any(|setting| key_of(setting) == "data.columns.channels");
        // Nothing is learnt, so a channel may well stand still.
        config.checks.constant = ConstantPolicy::Keep;
        let announced = inputs.iter().find_map(|input| Format::of(input));
        if announced.is_some() {
            config.format = Format::Auto;
        }
        let files = firebox_data::files(&config)?;
        named_once(&files)?;
        // Neither labels nor groups are needed. What holds those of an array was told from arrays by its name.
        config.columns.label = None;
        (config.columns.group, config.group_pattern) = (None, None);
        let format = match config.format {
            Format::Auto => {
                files.first().and_then(|file| Format::of_listed(file)).unwrap_or_default()
            }
            declared => declared,
        };
        let own = names_of(&card.channels);
        let columns = own_settings(card, &[])?.columns;
        let trained = columns.channels;
        let may_lack = [("time", columns.time), ("series", columns.series)]
            .into_iter()
            .filter_map(|(key, column)| Some(Declared { key, column: column? }))
            .filter(|declared| !settings.iter().any(|setting| declared.is_set_by(setting)))
            .collect();
        let taken = [columns.label, columns.group].into_iter().flatten().collect();
        let is_beside = |name: &String| !card.channels.iter().any(|channel| channel.name == *name);
        let beside = trained.iter().map(|channel| channel.name.clone()).filter(is_beside);
        let beside: Vec<String> = beside.chain(card.left_out.iter().cloned()).collect();
        let names = match names_channels {
            true => vec![config.columns.channels.clone()],
            // The names of the training, or none: an array's channels are numbered then, as they were.
            false if !beside.is_empty() => vec![trained, own],
            false => vec![own],
        };
        fit_to(&mut config, format, &card.channels, names_channels);
        Ok(Self { config, files, declared, names_channels, format, names, beside, may_lack, taken })
    }

    /// Reads the files one after the other and hands each over. Where a column names the series, they
    /// go on from file to file, and that file is read at once with all that follow.
    pub(super) fn read(
        &self,
        card: &ModelCard,
        listener: &dyn Listener,
        mut take: impl FnMut(Result<Loaded, PipelineError>) -> bool,
    ) {
        // Keys whose columns a file did not have.
        let mut told = vec![];
        for (index, file) in self.files.iter().enumerate() {
            // Files before this one have been handed over.
            let rest = &self.files[index..];
            let alone = Paths(vec![file.clone()]);
            let mut loaded = self.load(alone, card, listener, &mut told);
            let mut last = loaded.is_err();
            let by_column = |checks: &Checks| checks.series_column.is_some();
            // The begin of series that go on in other files may be too little by itself.
            let may_go_on = match &loaded {
                Ok((_, checks)) => by_column(checks),
                Err(PipelineError::Data(error)) => {
                    use DataError::{NoValue, NothingLeft, TimeframeWarmup, TooShort};
                    matches!(
                        error,
                        TooShort { .. }
                            | NoValue { .. }
                            | NothingLeft { .. }
                            | TimeframeWarmup { .. }
                    )
                }
                Err(_) => false,
            };
            if may_go_on && rest.len() > 1 {
                let all = self.load(Paths(rest.to_vec()), card, listener, &mut told);
                if loaded.is_ok() || all.as_ref().is_ok_and(|(_, checks)| by_column(checks)) {
                    (loaded, last) = (all, true);
                }
            }
            let files = if last { rest.len() } else { 1 };
            let loaded = loaded.map_err(|error| without_warmup(error, file));
            let loaded = loaded.map(|(set, checks)| Loaded {
                set: Arc::new(set),
                timed: checks.span.is_some(),
                files,
                file: file.clone(),
            });
            if !take(loaded) || last {
                return;
            }
        }
    }

    fn load(
        &self,
        path: Paths,
        card: &ModelCard,
        listener: &dyn Listener,
        told: &mut Vec<&'static str>,
    ) -> Result<(SeriesSet, Checks), PipelineError> {
        let file = path.0.first().cloned().unwrap_or_default();
        let mut config = DataConfig { path, ..self.config.clone() };
        let mut lacking = vec![];
        let (mut set, mut checks) = loop {
            let error = match self.read_as(&config, card, &WithoutProgress(listener)) {
                Ok(read) => break read,
                Err(error) => error,
            };
            let declared = self.lacking(error, &config, card)?;
            declared.undeclare(&mut config);
            lacking.push(declared);
        };
        if checks.span.is_none() {
            let times = lacking.iter().find(|declared| declared.key == "time");
            do_without_times(&file, times, self.declared, card)?;
        }
        for declared in lacking {
            // Once for all files.
            if !told.contains(&declared.key) {
                told.push(declared.key);
                let message = declared.said(&file, &checks);
                listener.on(&Event::Warning { message });
            }
        }
        // The usual step of an uneven clock is another one in each file.
        if let Some(interval) = near(&checks, card.interval) {
            let by_the_model = DataConfig { interval: Some(interval), ..config };
            match self.read_as(&by_the_model, card, &Silent) {
                Ok(read) if is_on_the_whole(&read.0, interval) => (set, checks) = read,
                _ => {}
            }
        }
        same_interval(&file, checks.interval, card.interval)?;
        if set.channels() != card.channels {
            let names: Vec<_> = set.channels().iter().map(|one| one.name.as_str()).collect();
            let found = format!("{} ({})", names.len(), names.join(", "));
            return Err(other_channels(&file, &found, &card.channels));
        }
        Ok((set, checks))
    }

    /// The column that the training named and none of the files has, if that is what an error says.
    ///
    /// # Errors
    ///
    /// Any other one; and that one where some of the files have the column, or another one may be meant.
    fn lacking(
        &self,
        error: PipelineError,
        config: &DataConfig,
        card: &ModelCard,
    ) -> Result<Declared, PipelineError> {
        let PipelineError::Data(DataError::NoColumn { key: Some(key), nearest, .. }) = &error
        else {
            return Err(error);
        };
        let Some(declared) = self.may_lack.iter().find(|declared| declared.key == *key) else {
            return Err(error);
        };
        let channels = card.channels.iter().map(|channel| &channel.name);
        let declared_too = self.may_lack.iter().map(|other| &other.column);
        let mut used = channels.chain(declared_too).chain(&self.beside).chain(&self.taken);
        let Declared { key, column } = declared;
        if let Some(other) = nearest.as_ref().filter(|other| used.all(|name| name != *other)) {
            return Err(PipelineError::Setting(format!(
                "{error}\n  if that column is meant, say so with --set \"data.columns.{key}={other}\"; if it is not, call it otherwise"
            )));
        }
        let without = firebox_data::files_without(config, column)?;
        let with = config.path.0.iter().find(|path| !without.contains(path));
        match (with, without.first()) {
            (None, _) => Ok(declared.clone()),
            (Some(with), Some(file)) => Err(PipelineError::Setting(format!(
                "{} has no column `{column}`, which the training named in `data.columns.{key}`, and {} has one\n  \
                 apply the model to files with that column and to files without it apart",
                file.display(),
                with.display()
            ))),
            (Some(_), None) => Err(error),
        }
    }

    /// Reads a file; where it does not name its channels, by the first names that fit.
    fn read_as(
        &self,
        config: &DataConfig,
        card: &ModelCard,
        listener: &dyn Listener,
    ) -> Result<(SeriesSet, Checks), PipelineError> {
        if !names_none(self.format) {
            return self.read_once(config, listener);
        }
        let fits = |read: &Result<(SeriesSet, Checks), PipelineError>| match read {
            Ok((set, _)) => set.channels() == card.channels,
            Err(error) => !matches!(error, PipelineError::Data(DataError::ChannelNames { .. })),
        };
        let mut last = None;
        for names in &self.names {
            let columns = Columns { channels: names.clone(), ..config.columns.clone() };
            let read = self.read_once(&DataConfig { columns, ..config.clone() }, listener);
            let is_it = fits(&read);
            last = Some(read);
            if is_it {
                break;
            }
        }
        match last.unwrap_or_else(|| self.read_once(config, listener)) {
            Err(PipelineError::Data(DataError::ChannelNames { path, channels, .. }))
                if !self.names_channels =>
            {
                Err(other_channels(&path, &channels.to_string(), &card.channels))
            }
            read => read,
        }
    }

    fn read_once(
        &self,
        config: &DataConfig,
        listener: &dyn Listener,
    ) -> Result<(SeriesSet, Checks), PipelineError> {
        let read = firebox_data::read_without(config, &self.beside, listener);
        let read = read.map_err(|error| match self.names_channels {
            true => error,
            false => read_by_the_model(error),
        });
        Ok(read?)
    }
}

/// The step of the model, where that of a file is another one which may be of the same clock.
fn near(checks: &Checks, expected: Option<i64>) -> Option<Interval> {
    let (found, expected) = (checks.interval?.microseconds(), expected?);
    let off = (found - expected).abs();
    let is_near = checks.span.is_some() && off > 0 && off <= expected / 2;
    Interval::from_microseconds(expected).filter(|_| is_near)
}

/// Whether the steps of all series together are as long as this one, but for what a clock that is early or late may be: half
/// a percent, and at the ends of each run of steps as much as single steps are off.
fn is_on_the_whole(set: &SeriesSet, interval: Interval) -> bool {
    /// Of a clock that is fast or slow. A choice; quartz is a thousand times better.
    const DRIFT: f64 = 0.005;
    let expected = interval.microseconds() as f64;
    let steps = || {
        let series = set.series().iter();
        let runs = series
            .flat_map(|series| series.segments.iter().map(move |run| &series.time[run.clone()]));
        runs.flat_map(|run| run.windows(2).map(|pair| (pair[1] - pair[0]) as f64 - expected))
    };
    let (count, over) = steps().fold((0.0, 0.0), |(count, sum), off| (count + 1.0, sum + off));
    let mean = over / f64::max(count, 1.0);
    let most = steps().fold(0.0, |most, off| f64::max(most, (off - mean).abs()));
    let runs: usize = set.series().iter().map(|series| series.segments.len()).sum();
    over.abs() <= DRIFT * expected * count + most * (runs as f64).sqrt()
}

/// Passes on warnings. Files count for nothing here: windows do.
struct WithoutProgress<'a>(&'a dyn Listener);

impl Listener for WithoutProgress<'_> {
    fn on(&self, event: &Event) {
        if matches!(event, Event::Warning { .. }) {
            self.0.on(event);
        }
    }
}

/// The key of a setting.
fn key_of(setting: &str) -> &str {
    setting.split_once('=').map_or(setting, |(key, _)| key).trim()
}

/// The `[data]` table of the card with `settings` over it.
fn own_settings(card: &ModelCard, settings: &[String]) -> Result<DataConfig, PipelineError> {
    let refuse = |message: String| Err(PipelineError::Setting(message));
    for setting in settings {
        let key = key_of(setting);
        if !key.starts_with("data.") || ["data.path", "data.test"].contains(&key) {
            return refuse(format!(
                "--set {setting}: a trained model is applied as it is, so only how new data is read can be set: keys of [data] but its paths, such as data.checks.gaps"
            ));
        }
    }
    let data: DataConfig = match serde_json::from_value(card.data.clone()) {
        Ok(data) => data,
        Err(error) => {
            return refuse(format!(
                "the card of the model says how data is read in a way that this version does not know: {error}\n  \
                 use the version of Firebox that trained it, {}",
                card.firebox
            ));
        }
    };
    let own = data.timeframes.clone();
    let data = layers::of_data(data, "model.json", settings)?;
    let made_by = |frames: Option<Timeframes>| {
        frames.map(|frames| Timeframes { stamp: Stamp::default(), ..frames })
    };
    if made_by(data.timeframes.clone()) != made_by(own) {
        let is_of_frames = |setting: &&String| key_of(setting).starts_with("data.timeframes");
        let set: Vec<&str> = settings.iter().filter(is_of_frames).map(String::as_str).collect();
        return refuse(format!(
            "--set {}: a trained model is applied to the features that it was trained on, so of data.timeframes only `stamp` can be set: what the times of the new data mark",
            set.join(" --set ")
        ));
    }
    Ok(data)
}

/// Rows that no step of longer timeframes is left of, in words for who cannot shorten what the indicators look back on.
fn without_warmup(error: PipelineError, file: &Path) -> PipelineError {
    let PipelineError::Data(DataError::TimeframeWarmup { bars, runs, longest }) = error else {
        return error;
    };
    PipelineError::Setting(format!(
        "{}: no step is left: {} in {} without a gap, and in none of them has every indicator of the model bars enough to look back on (its longest timeframe is {longest})\n  \
         give it with the rows before it (where a column names the series, they go on from file to file), fill short gaps with --set data.checks.gaps=fill, or leave it out",
        file.display(),
        count(bars, "bar"),
        count(runs, "run")
    ))
}

/// Channels as settings name them.
fn names_of(channels: &[Channel]) -> Vec<ChannelColumn> {
    let named =
        |channel: &Channel| ChannelColumn { name: channel.name.clone(), role: Some(channel.role) };
    channels.iter().map(named).collect()
}

/// Whether files of this format do not name their channels.
fn names_none(format: Format) -> bool {
    matches!(format, Format::Npy | Format::Ts | Format::Samples)
}

/// Names the channels, and leaves out what files of this format do not have.
fn fit_to(config: &mut DataConfig, format: Format, channels: &[Channel], names_channels: bool) {
    // Channels of longer timeframes are made of those that the files have, and are no columns.
    if !names_channels && config.timeframes.is_none() {
        config.columns.channels = names_of(channels);
    }
    match format {
        Format::Csv => {}
        Format::Auto | Format::Parquet | Format::Arrow => config.csv = Csv::default(),
        Format::Npy | Format::Ts | Format::Samples => {
            let channels = std::mem::take(&mut config.columns.channels);
            config.columns = Columns { channels, ..Columns::default() };
            config.csv = Csv::default();
        }
        Format::Market | Format::Demand | Format::Clips => {
            config.columns = Columns::default();
            config.csv = Csv::default();
        }
    }
}

/// Of a channel that is missing the model is told of, and no key: nobody wrote one.
pub(super) fn read_by_the_model(error: DataError) -> DataError {
    match error {
        DataError::NoColumn { path, column, key: Some("channels"), nearest, available } => {
            DataError::NoColumn { path, column, key: None, nearest, available }
        }
        error => error,
    }
}

/// What is said of channels that are not the model's.
fn other_channels(file: &Path, found: &str, expected: &[Channel]) -> PipelineError {
    let names: Vec<_> = expected.iter().map(|channel| channel.name.as_str()).collect();
    PipelineError::Setting(format!(
        "{} has other channels than the model was trained on: {found} instead of {} ({})\n  \
         name its columns by the model's channels, in the model's order where files have no names",
        file.display(),
        expected.len(),
        names.join(", ")
    ))
}

/// Refuses data without times for a model that computes with them, or that was trained on steps of a known length: nothing
/// could be said of the steps of the data, unless the user says it.
fn do_without_times(
    file: &Path,
    lacking: Option<&Declared>,
    declared: Option<Interval>,
    card: &ModelCard,
) -> Result<(), PipelineError> {
    let lacks = lacking.map_or("has no times".to_owned(), |Declared { column, .. }| {
        format!("has no column `{column}`, which held the times in training, and no other of times")
    });
    let refuse = |why: String, way_out: String| {
        Err(PipelineError::Setting(format!(
            "{} {lacks}, and {why}\n  name its column of times with --set data.columns.time=NAME{way_out}",
            file.display()
        )))
    };
    if card.forecast.as_ref().is_some_and(|scaler| !scaler.rule().calendar.is_empty()) {
        let why = "the model forecasts by the calendar (`forecast.calendar`)".to_owned();
        return refuse(why, ", or forecast with a model that has no calendar".to_owned());
    }
    let Some(trained) = card.interval.and_then(Interval::from_microseconds) else { return Ok(()) };
    if declared.is_some() {
        return same_interval(file, declared, card.interval);
    }
    refuse(
        format!(
            "the model was trained on steps of {trained}: steps of another length would not be seen, nor gaps"
        ),
        format!(
            "; if it has none, and each row comes {trained} after the one before, say so with --set data.interval={trained}"
        ),
    )
}

fn same_interval(
    file: &Path,
    found: Option<Interval>,
    expected: Option<i64>,
) -> Result<(), PipelineError> {
    let (Some(found), Some(expected)) = (found, expected.and_then(Interval::from_microseconds))
    else {
        return Ok(());
    };
    if found == expected {
        return Ok(());
    }
    Err(PipelineError::Setting(format!(
        "{} has steps of {found}, and the model was trained on steps of {expected}\n  \
         bring it to steps of {expected}, or use a model that was trained on steps of {found}",
        file.display()
    )))
}
