//! Data that stays where it is needed: uploaded or decoded once, and gathered by index afterwards. Which place suits a run
//! is decided in `place.rs`.
//!
//! Copies of a set share its memory, so that several trainings need it once.

use std::fmt;
use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor, TensorData};
use firebox_cache::{ahead, fetch, large_pages};
use firebox_core::{Window, WindowList};

use crate::fresh::Fresh;
use crate::place::{DRAWN_ANEW, Place, bytes_of, worth_sharing};
use crate::source::at_once;
use crate::{LoadError, Sample, Source, TrainSource};

/// What is known of each sample beside its values; of each original, where versions are drawn.
struct About {
    /// Each as a run of the steps that lie here, or with the number of its row as its first step.
    samples: WindowList,
    classes: Vec<String>,
    shape: [usize; 2],
    /// Whether the steps that samples share lie here in their place.
    shares: bool,
}

impl About {
    /// The first step of a row among all that lie here.
    fn start(&self, row: usize) -> usize {
        if self.shares { self.samples.at(row).start as usize } else { row * self.shape[0] }
    }
}

/// Training samples that stay in memory, the device's or the host's. Copies share it.
#[derive(Clone)]
pub struct TrainResident {
    held: Arc<Held>,
    /// How often an epoch has each of them.
    times: usize,
}

struct Held {
    about: About,
    values: Values,
    /// How the samples are drawn from what lies here, if they are versions of it.
    fresh: Option<Fresh>,
}

#[allow(clippy::large_enum_variant, reason = "there is one of a set of samples")]
enum Values {
    /// `[sample, time × channel]`
    Device(Tensor<2>),
    /// The steps that samples share, `[step, channel]`, and 0, 1, … to their length, `[1, time]`.
    Steps(Tensor<2>, Tensor<2, Int>),
    /// Those of either, row-major.
    Memory(Vec<f32>),
}

impl fmt::Debug for TrainResident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, samples) = (self.place(), self.len());
        f.debug_struct("TrainResident").field("place", &place).field("samples", &samples).finish()
    }
}

/// Held-out samples that stay in the device's memory. Copies share it.
#[derive(Clone, Debug)]
pub struct HeldOutResident {
    /// Kept as training samples are. It does not leave this crate as such, so that no function shuffles it.
    set: TrainResident,
}

impl HeldOutResident {
    /// Uploads all samples.
    ///
    /// # Errors
    ///
    /// When there is no sample, one cannot be read, or the source varies from epoch to epoch.
    pub fn upload(source: &dyn Source, device: &Device) -> Result<Self, LoadError> {
        let (about, values) = upload_all(source, device, None)?;
        Ok(Self { set: TrainResident::of(Held { about, values, fresh: None }) })
    }

    /// The same samples, each so many times, one set behind the other.
    pub fn repeated(self, times: usize) -> Self {
        Self { set: self.set.repeated(times) }
    }

    pub(crate) fn set(&self) -> &TrainResident {
        &self.set
    }
}

/// Samples that are read and uploaded together: enough to keep the copy busy, and no second copy of
/// the whole set on the host.
pub(crate) const CHUNK_BYTES: usize = 64 << 20;

impl TrainResident {
    /// Uploads all samples; of samples that are versions of windows, drawn anew in each epoch, the
    /// originals alone, and what their versions are drawn with.
    ///
    /// # Errors
    ///
    /// When there is no sample, one cannot be read, or the source varies from epoch to epoch in another way.
    pub fn upload(source: &dyn TrainSource, device: &Device) -> Result<Self, LoadError> {
        match source.fresh().filter(|_| source.varies()) {
            None => {
                let (about, values) = upload_all(source, device, None)?;
                Ok(Self::of(Held { about, values, fresh: None }))
            }
            Some(windows) => {
                let mut fresh = Fresh::begin(windows);
                let mut look = |index, values: &[f32]| fresh.add(windows, index, values);
                let look: &mut Look<'_> = &mut look;
                let (mut about, values) = upload_all(windows.originals(), device, Some(look))?;
                if let Some(labels) = source.relabels() {
                    let own = labels.iter().step_by(windows.versions().slots());
                    let label =
                        |(sample, label): (_, &u32)| Window { label: Some(*label), ..sample };
                    about.samples = about.samples.iter().zip(own).map(label).collect();
                    about.classes = source.classes().to_vec();
                }
                let fresh = Some(fresh.upload(device));
                Ok(Self::of(Held { about, values, fresh }))
            }
        }
    }

    /// Reads all samples into the host's memory.
    ///
    /// # Errors
    ///
    /// When a sample cannot be read, or the source varies from epoch to epoch.
    pub fn read(source: &dyn TrainSource) -> Result<Self, LoadError> {
        let mut all = Vec::with_capacity(bytes_of(source) as usize / size_of::<f32>());
        large_pages(&mut all);
        let about = match read_steps(source, |values, _, _| all.append(values))? {
            Some(about) => about,
            None => read_all(source, |values, _, _| all.append(values))?,
        };
        Ok(Self::of(Held { about, values: Values::Memory(all), fresh: None }))
    }

    fn of(held: Held) -> Self {
        Self { held: Arc::new(held), times: 1 }
    }

    /// The same samples, each so many times in an epoch: longer epochs of a small set, without a second copy of it.
    /// Versions that a device draws are the same each time within an epoch.
    pub fn repeated(self, times: usize) -> Self {
        Self { times: self.times * times, ..self }
    }

    /// Where the samples lie.
    pub fn place(&self) -> Place {
        match &self.held.values {
            Values::Device(_) | Values::Steps(..) => Place::Device,
            Values::Memory(_) => Place::Memory,
        }
    }

    /// Bytes of the values.
    pub fn bytes(&self) -> u64 {
        let values = match &self.held.values {
            Values::Device(values) | Values::Steps(values, _) => values.dims().iter().product(),
            Values::Memory(values) => values.len(),
        };
        (values * size_of::<f32>()) as u64
    }

    /// Samples of an epoch by index, cut to `steps`, if they lie on the device: nothing but the indices
    /// crosses, and a few numbers of each version.
    ///
    /// # Shapes
    ///
    /// - output: `[batch, steps, channel]`
    pub(crate) fn select(
        &self,
        epoch: u64,
        indices: &[usize],
        steps: usize,
        device: &Device,
    ) -> Option<Tensor<3>> {
        let [time, channel] = self.held.about.shape;
        let numbers = |of: &dyn Fn(usize) -> usize| {
            let numbers: Vec<i32> = indices.iter().map(|index| of(*index) as i32).collect();
            Tensor::<1, Int>::from_data(TensorData::new(numbers, [indices.len()]), device)
        };
        let rows = || numbers(&|index| self.row(index));
        let chosen = match &self.held.values {
            Values::Memory(_) => return None,
            Values::Device(values) => {
                let chosen = values.clone().select(0, rows());
                let chosen = chosen.reshape([indices.len(), time, channel]);
                if steps == time { chosen } else { chosen.narrow(1, 0, steps) }
            }
            Values::Steps(values, offsets) => {
                let starts = numbers(&|index| self.held.about.start(self.row(index)));
                let all = [indices.len(), steps];
                let starts = starts.reshape([indices.len(), 1]).expand(all);
                let steps_of_all = starts + offsets.clone().narrow(1, 0, steps).expand(all);
                let chosen = values.clone().select(0, steps_of_all.reshape([-1]));
                chosen.reshape([indices.len(), steps, channel])
            }
        };
        let Some(fresh) = &self.held.fresh else { return Some(chosen) };
        let lengths: Vec<usize> = indices.iter().map(|index| self.length(*index)).collect();
        let indices: Vec<usize> = indices.iter().map(|index| self.first(*index)).collect();
        Some(fresh.vary(chosen, rows(), &fresh.drawn(epoch, &indices), &lengths))
    }

    /// Samples and versions, each once.
    fn once(&self) -> usize {
        let slots = self.held.fresh.as_ref().map_or(1, Fresh::slots);
        self.held.about.samples.len() * slots
    }

    /// Where an epoch has this sample for the first time.
    fn first(&self, index: usize) -> usize {
        if self.times == 1 { index } else { index % self.once() }
    }

    /// The row of a sample among what lies here.
    fn row(&self, index: usize) -> usize {
        let index = self.first(index);
        self.held.fresh.as_ref().map_or(index, |fresh| index / fresh.slots())
    }

    /// The first value of a sample among all that lie here.
    fn value(&self, index: usize) -> usize {
        let About { shape: [_, channel], .. } = &self.held.about;
        self.held.about.start(self.row(index)) * channel
    }

    pub(crate) fn sample(&self, index: usize) -> Sample {
        let Window { length, label, .. } = self.held.about.samples.at(self.row(index));
        Sample { length, label }
    }
}

/// Gets the index and the valid values of each sample.
type Look<'a> = dyn FnMut(usize, &[f32]) + 'a;

/// Reads and uploads all samples, or the steps that they share.
fn upload_all(
    source: &dyn Source,
    device: &Device,
    mut look: Option<&mut Look<'_>>,
) -> Result<(About, Values), LoadError> {
    if source.is_empty() {
        return Err(LoadError::Empty);
    }
    let [time, channel] = source.shape();
    let (mut parts, mut first, mut row, is_shown) = (Vec::new(), 0, 0, look.is_some());
    let mut upload = |values: &mut Vec<f32>, rows, width| {
        // Rows of their own may be padded on the device, to twice what they take: these are cut once they lie there.
        let values = TensorData::new(std::mem::take(values), [rows * width]);
        row = width;
        parts.push(Tensor::<1>::from_data(values, device));
    };
    let mut show = |values: &[f32], rows, width| {
        let Some(look) = &mut look else { return };
        for row in 0..rows {
            let count = source.length(first + row) * channel;
            look(first + row, &values[row * width..][..count]);
        }
        first += rows;
    };
    let about = match read_steps(source, &mut upload)? {
        Some(about) => {
            if is_shown {
                read_all(source, |values, rows, width| show(values, rows, width))?;
            }
            about
        }
        None => read_all(source, |values, rows, width| {
            show(values, rows, width);
            upload(values, rows, width);
        })?,
    };
    let all = if parts.len() == 1 { parts.remove(0) } else { Tensor::cat(parts, 0) };
    let rows = all.dims()[0] / row.max(1);
    let all = all.reshape([rows, row]);
    if !about.shares {
        return Ok((about, Values::Device(all)));
    }
    let offsets = TensorData::new((0..time as i32).collect(), [1, time]);
    Ok((about, Values::Steps(all, Tensor::from_data(offsets, device))))
}

/// Reads the steps that samples share, if these are to be kept; `take` gets the values of some at a time.
fn read_steps(
    source: &dyn Source,
    mut take: impl FnMut(&mut Vec<f32>, usize, usize),
) -> Result<Option<About>, LoadError> {
    let Some(shared) = worth_sharing(source).filter(|_| !source.varies()) else { return Ok(None) };
    let [time, channel] = source.shape();
    let (count, at_once) = (shared.count(), rows_at_once(channel));
    for first in (0..count).step_by(at_once) {
        let steps = first..count.min(first + at_once);
        let mut values = vec![0.0; steps.len() * channel];
        shared.read(steps.clone(), &mut values)?;
        take(&mut values, steps.len(), channel);
    }
    let (samples, classes) = (shared.samples(), source.classes().to_vec());
    Ok(Some(About { samples, classes, shape: [time, channel], shares: true }))
}

/// Rows of so many values that are read together.
fn rows_at_once(width: usize) -> usize {
    (CHUNK_BYTES / size_of::<f32>() / width.max(1)).max(1)
}

/// Reads all samples in their order; `take` gets the values of some rows at a time.
fn read_all(
    source: &dyn Source,
    mut take: impl FnMut(&mut Vec<f32>, usize, usize),
) -> Result<About, LoadError> {
    if source.varies() {
        let why = DRAWN_ANEW.to_owned();
        return Err(LoadError::NotResident { place: "memory", why });
    }
    if i32::try_from(source.len()).is_err() {
        return Err(LoadError::TooLarge(source.len()));
    }
    let [time, channel] = source.shape();
    let width = time * channel;
    let at_once = rows_at_once(width);
    let mut samples = WindowList::default();
    for first in (0..source.len()).step_by(at_once) {
        let rows: Vec<usize> = (first..source.len().min(first + at_once)).collect();
        let mut values = vec![0.0; rows.len() * width];
        let read = source.gather(0, &rows, time, &mut values)?;
        for (row, Sample { length, label }) in read.into_iter().enumerate() {
            let index = rows[row];
            // What lies behind a sample's end is zero in every batch.
            let end = length as usize;
            if end > time {
                return Err(LoadError::Length { index, length, longest: time });
            }
            values[row * width..][end * channel..width].fill(0.0);
            samples.push(Window { series: 0, start: index as u32, length, label });
        }
        take(&mut values, rows.len(), width);
    }
    samples.shrink_to_fit();
    let classes = source.classes().to_vec();
    Ok(About { samples, classes, shape: [time, channel], shares: false })
}

/// Resident samples can be read like any others; from a device, that reads them back.
impl Source for TrainResident {
    fn len(&self) -> usize {
        self.once() * self.times
    }

    fn shape(&self) -> [usize; 2] {
        self.held.about.shape
    }

    fn length(&self, index: usize) -> usize {
        self.sample(index).length as usize
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        self.draw(0, index, out)
    }

    fn draw(&self, epoch: u64, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let [time, channel] = self.shape();
        let sample = self.sample(index);
        let count = sample.length as usize * channel;
        match &self.held.values {
            Values::Memory(values) => {
                out[..count].copy_from_slice(&values[self.value(index)..][..count]);
            }
            Values::Device(values) | Values::Steps(values, _) => {
                let row = self.select(epoch, &[index], time, &values.device());
                let row = row.map(|row| row.into_data().try_to_vec::<f32>()).transpose();
                let row = row.map_err(|error| LoadError::Sample {
                    index,
                    source: format!("{error:?}").into(),
                })?;
                out[..count].copy_from_slice(&row.unwrap_or_default()[..count]);
            }
        }
        Ok(sample)
    }

    fn gather(
        &self,
        epoch: u64,
        indices: &[usize],
        steps: usize,
        out: &mut [f32],
    ) -> Result<Vec<Sample>, LoadError> {
        let Values::Memory(values) = &self.held.values else {
            return crate::source::one_by_one(self, epoch, indices, steps, out);
        };
        let [time, channel] = self.shape();
        let kept = steps.min(time) * channel;
        let ahead = ahead(size_of::<f32>() * time * channel);
        for (place, index) in indices.iter().enumerate() {
            // The next samples are on their way from memory while this one is copied.
            if let Some(soon) = indices.get(place + ahead) {
                fetch(&values[self.value(*soon)..][..kept]);
            }
            let row = &mut out[place * steps * channel..(place + 1) * steps * channel];
            let (copied, padding) = row.split_at_mut(kept);
            copied.copy_from_slice(&values[self.value(*index)..][..kept]);
            padding.fill(0.0);
        }
        Ok(indices.iter().map(|index| self.sample(*index)).collect())
    }

    fn at_once(&self) -> usize {
        at_once(self.shape())
    }

    fn varies(&self) -> bool {
        self.held.fresh.is_some()
    }

    fn decoded(&self) -> bool {
        true
    }

    fn classes(&self) -> &[String] {
        &self.held.about.classes
    }
}

impl TrainSource for TrainResident {}
