//! Reading, computing and writing side by side: three threads and what goes between them.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use burn::tensor::activation::softmax;
use burn::tensor::{Tensor, TensorData};
use firebox_core::{
    Event, ForecastScaler, HeldOutWindows, Listener, SeriesSet, SplitError, Window, WindowRule,
    count, new_thread, unseen,
};
use firebox_data::{DataError, TableColumn, TableWriter};
use firebox_export::{Model, ModelCard, SavedModel, Task};
use firebox_kernels::KeptWeights;
use firebox_loader::{HeldOutLoader, LoaderConfig, NormalisedWindows};

use super::data::{Loaded, NewData};
use super::left_out::LeftOut;
use super::strange::Strange;
use super::{Applied, ApplyRequest, Wanted, texts, window_rule};
use crate::cut::Cut;
use crate::device::{ChosenDevice, OwnPool};
use crate::error::PipelineError;
use crate::kept::read_model;
use crate::settle::{check_environment, matmul_of, multiplying};
use crate::threads::refused_thread;

/// Numbers of a row group: 32 MB.
const GROUP: usize = 8 << 20;

pub(crate) type Columns = Vec<(String, TableColumn)>;

/// Applies a trained model to new data and writes one row for each window, in the order of files,
/// series and time. `None` if `stop` ended it, which leaves no file.
///
/// # Errors
///
/// When the model is not there or cannot do what is wanted, the data is of another kind than its own
/// or has defects, or the file cannot be written or must not be.
pub fn apply(
    request: &ApplyRequest,
    device: &ChosenDevice,
    stop: &Arc<AtomicBool>,
    listener: &dyn Listener,
) -> Result<Option<Applied>, PipelineError> {
    check_environment()?;
    let (saved, files) = read_model(&request.run)?;
    let matmul = matmul_of(&saved.card, device)?;
    multiplying(matmul, || match saved.card.texts {
        Some(_) => texts::apply(saved, files, request, device, stop, listener),
        None => apply_to_windows(saved, files, request, device, stop, listener),
    })
}

/// `own` are the files of the model.
fn apply_to_windows(
    mut saved: SavedModel,
    own: Vec<PathBuf>,
    request: &ApplyRequest,
    device: &ChosenDevice,
    stop: &Arc<AtomicBool>,
    listener: &dyn Listener,
) -> Result<Option<Applied>, PipelineError> {
    let rule = window_rule(saved.card.window, request.stride)?;
    let heads = Heads::new(&saved.card, request)?;
    let new = NewData::new(&saved.card, &request.inputs, &request.settings)?;
    let output = request.target(&[own, new.files.clone()].concat())?;
    let model = request.build(&mut saved, device)?;
    let started = Instant::now();
    let card = saved.card.clone();
    let table = TableWriter::create(&output)?;
    let pool = device.own_pool();
    let work = Work { request, device, pool, stop, listener, rule, heads, saved };
    let done = std::thread::scope(|scope| {
        let (to_model, from_files) = sync_channel(0);
        let (to_file, from_model) = sync_channel(1);
        let card = &card;
        let read = move || new.read(card, listener, |loaded| to_model.send(loaded).is_ok());
        new_thread("firebox-read")
            .and_then(|thread| thread.spawn_scoped(scope, read))
            .map_err(|source| refused_thread("one that reads files", source))?;
        // Where it is refused, the reader ends with what it would send to.
        let writer = new_thread("firebox-write")
            .and_then(|thread| thread.spawn_scoped(scope, move || write(table, &from_model)))
            .map_err(|source| refused_thread("one that writes the results", source))?;
        let done = work.all(&model, &from_files, &to_file);
        // The writer ends when nobody writes to it any more, and the reader when nobody reads.
        drop((from_files, to_file));
        let written = writer.join().unwrap_or_else(|_| {
            let source = std::io::Error::other("the thread that writes has panicked");
            Err(DataError::Io { action: "write", path: output.clone(), source })
        });
        // What the writer says is why the model could not go on.
        match written {
            Err(error) => Err(PipelineError::from(error)),
            Ok(table) => done.map(|done| done.map(|done| (done, table))),
        }
    })?;
    let Some((mut done, table)) = done else { return Ok(None) };
    table.finish()?;
    done.output = output;
    done.seconds = started.elapsed().as_secs_f64();
    Ok(Some(done))
}

fn write(mut table: TableWriter, from_model: &Receiver<Columns>) -> Result<TableWriter, DataError> {
    while let Ok(columns) = from_model.recv() {
        table.write(columns)?;
    }
    Ok(table)
}

/// What the model is asked for.
struct Heads {
    kind: Kind,
    width: usize,
}

enum Kind {
    Embedding { wide: bool },
    Classes(Vec<String>),
    Forecast { scaler: ForecastScaler, names: Vec<String> },
}

/// What was computed and is not written yet, row by row.
#[derive(Default)]
struct Values {
    numbers: Vec<f32>,
    /// Forecasts in the units of their targets.
    exact: Vec<f64>,
}

impl Heads {
    /// Refuses what the model cannot give.
    fn new(card: &ModelCard, request: &ApplyRequest) -> Result<Self, PipelineError> {
        let name = card.architecture.name();
        let run = request.run.display();
        let refuse = |message: String| Err(PipelineError::Setting(message));
        let kind = match (request.wanted, &card.forecast) {
            (Wanted::Embedding { .. }, _) if !card.architecture.is_encoder() => {
                return refuse(format!(
                    "the model of {run} ({name}) makes no vectors of windows\n  use: firebox predict {run}"
                ));
            }
            (Wanted::Embedding { wide }, _) => Kind::Embedding { wide },
            (Wanted::Prediction, Some(scaler)) if !scaler.fits(card.channels.len()) => {
                return refuse(format!(
                    "the card of the model of {run} has scales of forecasts that do not fit its channels: it was changed\n  \
                     run the pipeline again, which writes it anew"
                ));
            }
            (Wanted::Prediction, Some(scaler)) => {
                Kind::Forecast { scaler: scaler.clone(), names: card.forecast_names(scaler) }
            }
            (Wanted::Prediction, None) if card.classes.is_empty() => {
                return refuse(format!(
                    "the model of {run} ({name}) was pre-trained without labels: it has no classes to predict\n  \
                     take its vectors with: firebox embed {run}\n  or fine-tune it on labelled windows first (pipeline = \"finetune\"), and predict with that run"
                ));
            }
            (Wanted::Prediction, None) => Kind::Classes(card.classes.clone()),
        };
        Ok(Self { kind, width: 0 })
    }

    /// Numbers of a row.
    fn width_of(&self, model: &Model) -> usize {
        match &self.kind {
            Kind::Embedding { .. } => model.embedding_width().unwrap_or(0),
            Kind::Classes(names) | Kind::Forecast { names, .. } => names.len(),
        }
    }

    /// What the rows are, in words.
    fn what(&self) -> String {
        match &self.kind {
            Kind::Embedding { .. } => format!("vectors of {}", self.width),
            Kind::Classes(_) if self.width == 1 => "predictions of 1 class".to_owned(),
            Kind::Classes(_) => format!("predictions of {} classes", self.width),
            Kind::Forecast { .. } => format!("forecasts of {}", count(self.width as u64, "value")),
        }
    }

    /// Adds what the model gives for a batch of windows of `set`.
    fn compute(
        &self,
        model: &Model,
        set: &SeriesSet,
        windows: &[Window],
        (input, lengths): (Tensor<3>, &[usize]),
        values: &mut Values,
    ) {
        let device = input.device();
        // Reading values back waits for the device, once a batch.
        let read = |made: Option<Tensor<2>>| -> Vec<f32> {
            made.map(|made| made.into_data().iter::<f32>().collect()).unwrap_or_default()
        };
        match &self.kind {
            Kind::Embedding { .. } => values.numbers.extend(read(model.embed(input, lengths))),
            Kind::Classes(_) => {
                let logits = model.logits(input, lengths);
                values.numbers.extend(read(logits.map(|logits| softmax(logits, 1))));
            }
            Kind::Forecast { scaler, .. } => {
                let width = scaler.rule().static_features();
                let statics = (width > 0).then(|| {
                    let mut statics = vec![0.0; windows.len() * width];
                    for (window, out) in windows.iter().zip(statics.chunks_exact_mut(width)) {
                        scaler.statics(set, window, out);
                    }
                    Tensor::from_data(TensorData::new(statics, [windows.len(), width]), &device)
                });
                let found = read(model.forecast(input, lengths, statics));
                let mut restored = vec![0.0; self.width];
                for (window, found) in windows.iter().zip(found.chunks_exact(self.width.max(1))) {
                    scaler.restore(set, window, found, &mut restored);
                    values.exact.extend_from_slice(&restored);
                }
            }
        }
    }

    fn columns(&self, values: Values) -> Columns {
        let (width, Values { numbers, exact }) = (self.width.max(1), values);
        let column = |place: usize| {
            TableColumn::Number(numbers.iter().skip(place).step_by(width).copied().collect())
        };
        match &self.kind {
            Kind::Embedding { wide: false } => {
                vec![("embedding".to_owned(), TableColumn::Vectors { values: numbers, width })]
            }
            Kind::Embedding { wide: true } => {
                (0..width).map(|place| (format!("embedding_{place}"), column(place))).collect()
            }
            Kind::Forecast { names, .. } => {
                let column = |place: usize| exact.iter().skip(place).step_by(width).copied();
                let named = names.iter().enumerate();
                let exact = |place| TableColumn::Exact(column(place).collect());
                named.map(|(place, name)| (name.clone(), exact(place))).collect()
            }
            Kind::Classes(names) => {
                let best = |row: &[f32]| {
                    let first = (0, f32::NEG_INFINITY);
                    let best = row.iter().enumerate().fold(first, |best, (class, p)| {
                        if *p > best.1 { (class, *p) } else { best }
                    });
                    names.get(best.0).cloned().unwrap_or_default()
                };
                let class = numbers.chunks_exact(width).map(best).collect();
                let mut columns = vec![("class".to_owned(), TableColumn::Text(class))];
                let named = names.iter().enumerate();
                columns.extend(
                    named.map(|(place, name)| (format!("probability_{name}"), column(place))),
                );
                columns
            }
        }
    }
}

struct Work<'a> {
    request: &'a ApplyRequest,
    device: &'a ChosenDevice,
    pool: OwnPool,
    stop: &'a Arc<AtomicBool>,
    listener: &'a dyn Listener,
    rule: WindowRule,
    heads: Heads,
    saved: SavedModel,
}

impl Work<'_> {
    /// Everything that is read, in its order. `None` if it was stopped.
    fn all(
        mut self,
        model: &Model,
        from_files: &Receiver<Result<Loaded, PipelineError>>,
        to_file: &SyncSender<Columns>,
    ) -> Result<Option<Applied>, PipelineError> {
        self.heads.width = self.heads.width_of(model);
        let mut applied = Applied {
            output: self.request.output.clone(),
            windows: 0,
            series: 0,
            files: 0,
            what: self.heads.what(),
            width: self.heads.width,
            seconds: 0.0,
        };
        let mut strange = Strange::of(&self.saved.card);
        // What follows is forecast from the newest steps.
        let latest = self.saved.card.task == Task::Forecasting;
        let mut cut = Cut::new(self.rule, 0).latest(latest);
        let mut longest = (0, String::new());
        let mut taken = HashSet::new();
        let mut left_out = LeftOut::default();
        while let Ok(loaded) = from_files.recv() {
            let loaded = loaded?;
            applied.files += loaded.files;
            let names: Vec<String> =
                loaded.set.series().iter().map(|one| one.name.clone()).collect();
            let names = distinct(names, &mut taken);
            let shown = shown(&loaded.set, &self.saved.card)?;
            strange.look(&shown, &names);
            cut.look(&shown);
            let windows = unseen(&shown, &self.rule, latest).map_err(no_window)?;
            self.long_enough(&loaded, &windows)?;
            applied.series += left_out.look(&windows, &names);
            strange.look_at_statics(&loaded.set, windows.windows(), &names);
            for series in loaded.set.series() {
                let steps = series.segments.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
                if steps > longest.0 {
                    longest = (steps, series.name.clone());
                }
            }
            if windows.is_empty() {
                continue;
            }
            let part = Part { names: &names, loaded: &loaded, windows };
            if !self.windows(model, part, &mut applied, to_file)? {
                return Ok(None);
            }
        }
        if applied.windows == 0 {
            let (longest, series) = longest;
            let needed = self.rule.length;
            return Err(PipelineError::Setting(format!(
                "no window fits: the model takes {needed} consecutive steps, and the longest run without a gap has {longest} (series `{series}`)\n  \
                 give longer series, fill gaps where rows are missing (--set data.checks.gaps=fill), or use a model of shorter windows (`window.length`, or `window.whole` for one of each series, in its training)"
            )));
        }
        for message in cut.said().into_iter().chain(left_out.said(&self.rule)) {
            self.listener.on(&Event::Warning { message });
        }
        strange.warn(applied.windows, self.listener);
        Ok(Some(applied))
    }

    /// Refuses windows that the encoder leaves nothing of: their vectors would all be the same.
    fn long_enough(&self, loaded: &Loaded, windows: &HeldOutWindows) -> Result<(), PipelineError> {
        let needed = self.saved.card.architecture.fewest_steps();
        let short = windows.windows().iter().filter(|window| (window.length as usize) < needed);
        let Some(shortest) = short.min_by_key(|window| window.length) else { return Ok(()) };
        let (steps, file) = (count(u64::from(shortest.length), "step"), loaded.file.display());
        let series = &loaded.set.series()[shortest.series as usize].name;
        let place = match loaded.files {
            1 => format!("{file}: series `{series}`"),
            files => format!(
                "{file} and {} after it: series `{series}`",
                count(files as u64 - 1, "file")
            ),
        };
        Err(PipelineError::Setting(format!(
            "{place} has {steps}, and the convolutions of the model, each of which halves them, need {needed}\n  \
             leave short series out, or use a model with fewer convolutions",
        )))
    }

    /// Says of which window the model says what is no finite number.
    fn no_number(&self, part: &Part<'_>, window: Option<&Window>) -> PipelineError {
        let place = window.map_or(String::new(), |window| {
            let (name, steps) = (&part.names[window.series as usize], window.steps());
            format!(" of steps {} to {} of series `{name}`", steps.start, steps.end - 1)
        });
        PipelineError::Setting(format!(
            "what the model says of a window of {}{place} is no finite number: values in it are too large for it\n  \
             correct them, or leave them out; of a model that computes in bf16 or f16, --precision f32 may help",
            part.loaded.file.display()
        ))
    }

    /// The windows of what is in memory. Whether they all were done.
    fn windows(
        &self,
        model: &Model,
        part: Part<'_>,
        applied: &mut Applied,
        to_file: &SyncSender<Columns>,
    ) -> Result<bool, PipelineError> {
        let windows = &part.windows;
        let total = applied.windows + windows.len() as u64;
        let source = NormalisedWindows::new(windows.clone(), self.saved.card.normaliser.clone());
        let config = LoaderConfig { batch_size: self.request.batch, ..LoaderConfig::default() };
        let loader = HeldOutLoader::new(Arc::new(source), config, self.device.device.clone())?;
        let group = (GROUP / self.heads.width.max(1)).max(self.request.batch);
        let mut values = Values::default();
        let (mut from, mut to) = (0, 0);
        let weights = KeptWeights::new();
        for batch in loader.batches() {
            let batch = batch?;
            if self.stop.load(Ordering::SeqCst) {
                return Ok(false);
            }
            let own: Vec<Window> = windows.windows().range(to..to + batch.len()).collect();
            to += batch.len();
            let given = (batch.inputs, batch.lengths.as_slice());
            let before = [values.numbers.len(), values.exact.len()];
            self.pool.run(|| {
                weights.during(|| {
                    self.heads.compute(model, &part.loaded.set, &own, given, &mut values);
                });
            });
            if let Some(row) = values.first_odd(before, self.heads.width) {
                return Err(self.no_number(&part, own.get(row)));
            }
            let progress = Event::Progress {
                stage: "apply".to_owned(),
                done: applied.windows + to as u64,
                total,
                unit: "windows".to_owned(),
            };
            self.listener.on(&progress);
            if to - from >= group || to == windows.len() {
                let mut columns = part.places(from..to);
                columns.extend(self.heads.columns(std::mem::take(&mut values)));
                if to_file.send(columns).is_err() {
                    // The writer has ended, and says why.
                    return Ok(false);
                }
                from = to;
            }
        }
        applied.windows = total;
        Ok(true)
    }
}

impl Values {
    /// The first of the rows that were added behind so many numbers which holds one that is not finite.
    fn first_odd(&self, [numbers, exact]: [usize; 2], width: usize) -> Option<usize> {
        let place = self.numbers[numbers..].iter().position(|value| !value.is_finite());
        let place = place.or_else(|| self.exact[exact..].iter().position(|v| !v.is_finite()));
        place.map(|place| place / width.max(1))
    }
}

/// The channels that the model sees, which may be fewer than the data has.
fn shown(set: &Arc<SeriesSet>, card: &ModelCard) -> Result<Arc<SeriesSet>, PipelineError> {
    let seen = card.normaliser.channels();
    if seen == set.channels() {
        return Ok(Arc::clone(set));
    }
    let places: Option<Vec<usize>> = seen.iter().map(|own| set.channel(&own.name)).collect();
    let selected = places.map(|places| set.select(&places));
    match selected {
        Some(Ok(selected)) => Ok(Arc::new(selected)),
        _ => Err(PipelineError::Setting(
            "the card of the model normalises channels that the data does not have: it was changed\n  \
             run the pipeline again, which writes it anew"
                .to_owned(),
        )),
    }
}

/// New data is not split, so what a split says of it stands by itself.
fn no_window(error: SplitError) -> PipelineError {
    PipelineError::Setting(error.to_string())
}

/// Names of series that no file before had: two folders may hold files of one name.
fn distinct(names: Vec<String>, taken: &mut HashSet<String>) -> Vec<String> {
    let free = |name: String| {
        if taken.insert(name.clone()) {
            return name;
        }
        let mut others = (2..).map(|number| format!("{name} ({number})"));
        others.find(|other| taken.insert(other.clone())).unwrap_or(name)
    };
    names.into_iter().map(free).collect()
}

/// The windows of what is in memory.
struct Part<'a> {
    names: &'a [String],
    loaded: &'a Loaded,
    windows: HeldOutWindows,
}

impl Part<'_> {
    /// Where windows lie: series, first and last step.
    fn places(&self, range: std::ops::Range<usize>) -> Columns {
        let chosen = || self.windows.windows().range(range.clone());
        let all = self.loaded.set.series();
        let names = chosen().map(|window| self.names[window.series as usize].clone());
        let at = |last: bool| -> Vec<i64> {
            let time = |window: Window| {
                let steps = window.steps();
                let step = if last { steps.end - 1 } else { steps.start };
                all[window.series as usize].time[step]
            };
            chosen().map(time).collect()
        };
        let column = |values| match self.loaded.timed {
            true => TableColumn::Time(values),
            false => TableColumn::Whole(values),
        };
        vec![
            ("series".to_owned(), TableColumn::Text(names.collect())),
            ("start".to_owned(), column(at(false))),
            ("end".to_owned(), column(at(true))),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_is_found_that_is_no_number() {
        let numbers = vec![f32::NAN, 0.0, 1.0, 2.0, 3.0, f32::INFINITY];
        let values = Values { numbers, exact: vec![] };
        // Three of what was added, two numbers a row.
        assert_eq!(values.first_odd([2, 0], 2), Some(1));
        assert_eq!(values.first_odd([6, 0], 2), None);
        let exact = Values { numbers: vec![], exact: vec![1.0, f64::NAN] };
        assert_eq!(exact.first_odd([0, 0], 1), Some(1));
        assert_eq!(exact.first_odd([0, 2], 1), None);
    }
}
