//! Folders that `firebox data convert` has made → series, one a sample, whose values are read in the mapped
//! shards, in their own type.
//!
//! Their values were checked when they were converted: all are numbers. What is looked for here is a
//! channel that is constant over all samples, which goes the long way.

use std::path::Path;
use std::sync::Arc;

use firebox_cache::{CacheError, Samples};
use firebox_core::{Channel, Filled, Key, Listener, SeriesSet, SeriesValues};

use crate::fast::Stop;
use crate::input::Input;
use crate::raw::{Piece, Raw, RawLabels, RawSeries, Rows};
use crate::store::{self, About, Entry, LabelKind};
use crate::ts::name_channels;
use crate::warnings::warn;
use crate::{Action, Checks, ConstantPolicy, DataConfig, DataError, Defect, Finding, Format};

/// The file that stands for the folder: it holds the checksums of all others.
pub(crate) const MANIFEST: &str = "manifest.json";

/// A file that each such folder has, from early on.
const FIRST_SHARD: &str = "shard-00000.arrow";

/// Whether a folder holds converted samples.
pub(crate) fn is_converted(folder: &Path) -> bool {
    #[derive(serde::Deserialize)]
    struct Manifest {
        format: String,
    }
    let text = std::fs::read(folder.join(MANIFEST)).unwrap_or_default();
    let manifest = serde_json::from_slice::<Manifest>(&text);
    manifest.is_ok_and(|manifest| manifest.format.starts_with("samples-"))
}

/// Whether such a folder was begun, however far it is.
pub(crate) fn is_begun(folder: &Path) -> bool {
    folder.join(FIRST_SHARD).is_file()
}

fn open(input: &Input) -> Result<Samples, DataError> {
    let folder = input.path.parent().unwrap_or(Path::new("."));
    Samples::open(folder, true).map_err(|error| unreadable(input, &error))
}

fn unreadable(input: &Input, error: &CacheError) -> DataError {
    use std::error::Error as _;
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    DataError::malformed(&input.path, Format::Samples, format!("{error}{cause}"))
}

/// The name of a sample's file, with that of its folder if it is one of several, which may hold files of one name;
/// the number of a sample that was converted before names were kept.
fn name(input: &Input, samples: &Samples, index: usize, config: &DataConfig) -> String {
    let several = config.paths().count() > 1;
    match samples.name(index) {
        Some(name) if several => format!("{}/{name}", input.name()),
        Some(name) => name.to_owned(),
        None => {
            let digits = samples.len().to_string().len();
            format!("{}/{:0digits$}", input.name(), index + 1)
        }
    }
}

/// The values of a sample, `[time, channel]`, its valid steps alone.
fn values(
    input: &Input,
    samples: &Samples,
    index: usize,
    read: &mut Vec<f32>,
) -> Result<usize, DataError> {
    let steps = samples.record(index).length as usize;
    read.resize(steps * samples.shape()[1], 0.0);
    samples.gather(&[index], steps, read);
    samples.check_read(&[index]).map_err(|error| unreadable(input, &error))?;
    Ok(steps)
}

/// All samples of a folder, in memory.
pub(crate) fn raw(input: &Input, config: &DataConfig) -> Result<Raw, DataError> {
    let samples = open(input)?;
    let [_, width] = samples.shape();
    let path: Arc<Path> = Arc::from(input.path.as_path());
    let mut read = Vec::new();
    let mut series = Vec::with_capacity(samples.len());
    for index in 0..samples.len() {
        let steps = values(input, &samples, index, &mut read)?;
        let column =
            |channel| read[channel..].iter().step_by(width).map(|v| f64::from(*v)).collect();
        series.push(RawSeries {
            name: name(input, &samples, index, config),
            origin: input.origin,
            time: None,
            columns: (0..width).map(column).collect(),
            labels: samples.record(index).label.map_or(RawLabels::None, RawLabels::Whole),
            pieces: vec![Piece { path: Arc::clone(&path), steps, rows: Rows::From(1) }],
        });
    }
    let channels = name_channels(&input.path, width, &config.columns.channels)?;
    Ok(Raw { channels, classes: samples.classes().to_vec(), series, ..Raw::default() })
}

/// Opens the folders, every byte compared with its checksum, and tells of values that became zeros when they were
/// converted.
pub(crate) fn open_all(
    inputs: &[Input],
    listener: &dyn Listener,
) -> Result<Vec<Samples>, DataError> {
    let folders: Vec<Samples> = inputs.iter().map(open).collect::<Result<_, _>>()?;
    for samples in &folders {
        if let Some(lost) = samples.lost() {
            warn(listener, format!("{}: {lost}", samples.path().display()));
        }
    }
    Ok(folders)
}

/// Looks through the samples of these folders, and writes down what they are in the store. Their values stay
/// in the shards.
pub(crate) fn store(
    inputs: &[Input],
    folders: &[Samples],
    config: &DataConfig,
    cache: &Path,
    key: Key,
    done: &dyn Fn(usize),
) -> Result<(SeriesSet, Checks), Stop> {
    let first = folders.first().ok_or(Stop::Odd)?;
    let [_, width] = first.shape();
    let channels: Vec<Channel> = name_channels(&inputs[0].path, width, &config.columns.channels)?;
    let alike = |other: &Samples| other.shape()[1] == width && other.classes() == first.classes();
    let mut stems: Vec<String> = inputs.iter().map(Input::name).collect();
    stems.sort_unstable();
    stems.dedup();
    if !folders.iter().all(alike) || stems.len() < inputs.len() {
        return Err(Stop::Odd);
    }
    let mut varies = Varies::default();
    let (mut series, mut kept, mut longest) = (Vec::new(), Vec::new(), 0);
    for (number, (input, samples)) in inputs.iter().zip(folders).enumerate() {
        for (index, values) in samples.series_values().into_iter().enumerate() {
            varies.look(&values, width);
            let (steps, label) = samples.sample(index);
            let steps = steps as usize;
            longest = longest.max(steps);
            series.push(Entry {
                name: name(input, samples, index, config),
                origin: input.origin,
                steps,
                segments: std::iter::once(0..steps).collect(),
                labels: label.map_or(LabelKind::None, LabelKind::Whole),
                filled: Filled::default(),
                group: None,
            });
            kept.push(values);
        }
        let all: Vec<usize> = (0..samples.len()).collect();
        samples.check_read(&all).map_err(|error| unreadable(input, &error))?;
        done(number);
    }
    let constant = varies.constant();
    if longest < 2 || (!constant.is_empty() && config.checks.constant != ConstantPolicy::Keep) {
        return Err(Stop::Odd);
    }
    let kept_constant = |(channel, value): (usize, f64)| Finding {
        defect: Defect::Constant,
        channel: Some(channels[channel].name.clone()),
        count: 1,
        series: series.len() as u64,
        action: Action::Kept,
        detail: format!("every value is {value}"),
    };
    let classes = first.classes().to_vec();
    let all: usize = series.iter().map(|entry| entry.steps).sum();
    let checks = Checks {
        rows: all as u64,
        steps: all as u64,
        series: series.len() as u64,
        segments: series.len() as u64,
        channels: channels.clone(),
        classes: classes.clone(),
        findings: constant.into_iter().map(kept_constant).collect(),
        ..Checks::default()
    };
    let about = About { channels, classes, series, checks };
    Ok(store::keep_in_place(cache, key, about, kept)?)
}

/// Which channels have more than one value. Once all have, no more is read.
#[derive(Default)]
struct Varies {
    first: Vec<f64>,
    varies: Vec<bool>,
}

impl Varies {
    fn look(&mut self, values: &SeriesValues, width: usize) {
        if values.len() < width {
            return;
        }
        if self.first.is_empty() {
            self.first = values.part(0..width).into_owned();
            self.varies = vec![false; width];
        }
        if self.all() {
            return;
        }
        values.rows(0..values.len(), width, |rows| {
            for row in rows.chunks_exact(width) {
                for ((varies, value), first) in self.varies.iter_mut().zip(row).zip(&self.first) {
                    *varies |= value != first;
                }
            }
        });
    }

    fn all(&self) -> bool {
        !self.varies.contains(&false)
    }

    /// The channels that have one value, with it.
    fn constant(&self) -> Vec<(usize, f64)> {
        let channels = self.first.iter().copied().enumerate();
        channels.filter(|(channel, _)| !self.varies[*channel]).collect()
    }
}
