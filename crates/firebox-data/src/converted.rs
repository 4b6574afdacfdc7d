//! Folders that `firebox data convert` has made → series, one a sample, with no more than one sample in
//! memory.
//!
//! Their values were checked when they were converted: all are numbers. What is looked for here is a
//! channel that is constant over all samples, which goes the long way.

use std::path::Path;
use std::sync::Arc;

use firebox_cache::{CacheError, Samples};
use firebox_core::{Channel, Key, SeriesSet};

use crate::fast::Stop;
use crate::input::Input;
use crate::raw::{Piece, Raw, RawLabels, RawSeries, Rows};
use crate::store::{About, Entry, LabelKind, Making};
use crate::ts::name_channels;
use crate::{ChannelColumn, Checks, DataError, Format};

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

fn name(input: &Input, samples: &Samples, index: usize) -> String {
    let digits = samples.len().to_string().len();
    format!("{}/{:0digits$}", input.stem(), index + 1)
}

/// The values of a sample, `[time, channel]`, its valid steps alone.
fn values(
    input: &Input,
    samples: &Samples,
    index: usize,
    read: &mut Vec<f32>,
) -> Result<usize, DataError> {
    let steps = samples.record(index).length as usize;
    read.clear();
    samples.gather(&[index], steps, read);
    samples.check_read(&[index]).map_err(|error| unreadable(input, &error))?;
    Ok(steps)
}

/// All samples of a folder, in memory.
pub(crate) fn raw(input: &Input, names: &[ChannelColumn]) -> Result<Raw, DataError> {
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
            name: name(input, &samples, index),
            origin: input.origin,
            time: None,
            columns: (0..width).map(column).collect(),
            labels: samples.record(index).label.map_or(RawLabels::None, RawLabels::Whole),
            pieces: vec![Piece { path: Arc::clone(&path), steps, rows: Rows::From(1) }],
        });
    }
    let channels = name_channels(&input.path, width, names)?;
    Ok(Raw { channels, classes: samples.classes().to_vec(), series, ..Raw::default() })
}

/// Puts the samples of these folders into the store.
pub(crate) fn store(
    inputs: &[Input],
    names: &[ChannelColumn],
    cache: &Path,
    key: Key,
    done: &dyn Fn(usize),
) -> Result<(SeriesSet, Checks), Stop> {
    let folders = inputs.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let first = folders.first().ok_or(Stop::Odd)?;
    let [_, width] = first.shape();
    let channels: Vec<Channel> = name_channels(&inputs[0].path, width, names)?;
    let alike = |other: &Samples| other.shape()[1] == width && other.classes() == first.classes();
    let mut stems: Vec<String> = inputs.iter().map(Input::stem).collect();
    stems.sort_unstable();
    stems.dedup();
    if !folders.iter().all(alike) || stems.len() < inputs.len() {
        return Err(Stop::Odd);
    }
    let mut making = Making::begin(cache, width)?;
    let (mut read, mut wide) = (Vec::new(), Vec::new());
    let (mut start, mut varies) = (None::<Vec<f32>>, vec![false; width]);
    let (mut series, mut all, mut longest) = (Vec::new(), 0, 0);
    for (number, (input, samples)) in inputs.iter().zip(&folders).enumerate() {
        for index in 0..samples.len() {
            let steps = values(input, samples, index, &mut read)?;
            let start = start.get_or_insert_with(|| read[..width].to_vec());
            for step in read.chunks_exact(width) {
                for ((varies, value), first) in varies.iter_mut().zip(step).zip(&*start) {
                    *varies |= value != first;
                }
            }
            wide.clear();
            wide.extend(read.iter().map(|value| f64::from(*value)));
            making.values.push(&wide)?;
            making.time.push(&(0..steps as i64).collect::<Vec<_>>())?;
            (all, longest) = (all + steps as u64, longest.max(steps));
            series.push(Entry {
                name: name(input, samples, index),
                origin: input.origin,
                steps,
                segments: std::iter::once(0..steps).collect(),
                labels: samples.record(index).label.map_or(LabelKind::None, LabelKind::Whole),
            });
        }
        done(number + 1);
    }
    if longest < 2 || varies.contains(&false) {
        return Err(Stop::Odd);
    }
    let classes = first.classes().to_vec();
    let checks = Checks {
        rows: all,
        steps: all,
        series: series.len() as u64,
        segments: series.len() as u64,
        channels: channels.clone(),
        classes: classes.clone(),
        ..Checks::default()
    };
    let about = About { channels, classes, series, labels: None, checks };
    Ok(making.finish(cache, key, about)?.open()?)
}
