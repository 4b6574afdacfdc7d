//! Data that stays where it is needed: uploaded or decoded once, and gathered by index afterwards.
//!
//! Which of the three places suits a run is decided in [`place`]. Copies of a set share its memory, so
//! that several trainings need it once.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor, TensorData};
use firebox_cache::{ahead, fetch, large_pages};
use serde::{Deserialize, Serialize};

use crate::fresh::Fresh;
use crate::source::at_once;
use crate::{LoadError, Sample, Source, TrainSource};

/// Where the samples lie from which batches are made. Batches are the same, bit for bit; only
/// versions that a device draws by itself are those of the host but for rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resident {
    /// On the device if they fit there with room to spare, else streamed.
    #[default]
    Auto,
    /// In the device's memory: uploaded once, each batch a gather by index there. Of
    /// [`AugmentedWindows`](crate::AugmentedWindows) the originals, whose versions are drawn there.
    Device,
    /// In the host's memory as f32, decoded once: each batch a copy and an upload.
    Memory,
    /// Where the source has them (for shards, in mapped files): read for each batch.
    Stream,
}

impl Resident {
    /// Every choice with its name, as settings have it.
    pub const ALL: [(Self, &str); 4] = [
        (Self::Auto, "auto"),
        (Self::Device, "device"),
        (Self::Memory, "memory"),
        (Self::Stream, "stream"),
    ];
}

impl fmt::Display for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(one, _)| one == self).map(|(_, name)| *name);
        f.write_str(name.unwrap_or_default())
    }
}

impl FromStr for Resident {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|(_, name)| *name == text);
        known.map(|(resident, _)| *resident).ok_or_else(|| {
            let names = Self::ALL.map(|(_, name)| name).join(", ");
            format!("`{text}` is no place for samples; there is {names}")
        })
    }
}

/// Where samples lie, as decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In the device's memory.
    Device,
    /// In the host's memory.
    Memory,
    /// Where the source has them.
    Stream,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device",
            Self::Memory => "memory",
            Self::Stream => "stream",
        })
    }
}

/// Free memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Of a device that has its own memory; none if that is not known.
    pub device: Option<u64>,
    /// Whether the device computes in the host's memory, as a CPU does.
    pub shared: bool,
    /// Of the host; none if that is not known.
    pub host: Option<u64>,
}

/// Share of the device's free memory that data may take: weights, moments, activations and the
/// allocator's reserve need the rest.
const SHARE_OF_DEVICE: f64 = 0.4;
/// Share of the host's free memory that decoded data may take.
const SHARE_OF_HOST: f64 = 0.6;

/// Why samples have to stay where they are.
const DRAWN_ANEW: &str = "its samples are drawn anew in each epoch";
/// What becomes of originals on a device.
const DRAWN_THERE: &str = "; versions are drawn there, anew in each epoch";

/// Decides where samples lie, and says why.
///
/// On a device that computes in the host's memory, samples are streamed unless something else is
/// asked for: a gather from mapped shards is one copy from the page cache into the batch, which is
/// all that a gather on the device would be, and nothing needs to be uploaded or kept twice. Versions
/// that are drawn anew in each epoch are drawn by the loader's threads there, beside training; on a
/// device with memory of its own, by the device.
///
/// # Errors
///
/// When what is asked for cannot be: samples that are drawn anew in each epoch, and not as versions of
/// windows, stay with their source, and a set must fit into the memory that it is to stay in.
pub fn place(
    wanted: Resident,
    source: &dyn Source,
    room: Room,
) -> Result<(Place, String), LoadError> {
    let drawn = source.varies();
    // What a device that draws versions itself holds.
    let originals = source.fresh().filter(|_| drawn).map(|fresh| bytes_of(fresh.originals()));
    let bytes = originals.unwrap_or_else(|| bytes_of(source));
    let (size, how) = match originals {
        Some(_) => (format!("{} of originals", megabytes(bytes)), DRAWN_THERE),
        None => (megabytes(bytes), ""),
    };
    let fits =
        |free: Option<u64>, share: f64| free.is_none_or(|f| bytes as f64 <= share * f as f64);
    let refuse = |place: &'static str, why: String| Err(LoadError::NotResident { place, why });
    match wanted {
        Resident::Device if drawn && originals.is_none() => {
            return refuse("device", DRAWN_ANEW.to_owned());
        }
        Resident::Memory if drawn => return refuse("memory", DRAWN_ANEW.to_owned()),
        _ => {}
    }
    let there = if room.shared { room.host } else { room.device };
    // Parts that are uploaded one after the other lie beside the whole for a moment.
    let share = if bytes > CHUNK_BYTES as u64 { 0.5 } else { 1.0 };
    match wanted {
        Resident::Stream => Ok((Place::Stream, "asked for".to_owned())),
        Resident::Device if fits(there, share) => {
            Ok((Place::Device, format!("asked for ({size}){how}")))
        }
        Resident::Device => refuse("device", too_large(&size, there)),
        Resident::Memory if fits(room.host, 1.0) => {
            Ok((Place::Memory, format!("asked for ({size})")))
        }
        Resident::Memory => refuse("memory", too_large(&size, room.host)),
        Resident::Auto if drawn && (room.shared || originals.is_none()) => {
            Ok((Place::Stream, "auto: samples are drawn anew in each epoch".to_owned()))
        }
        Resident::Auto if room.shared && source.decoded() => {
            Ok((Place::Stream, "auto: the device computes in the host's memory, so a batch is one copy from the mapped data".to_owned()))
        }
        Resident::Auto if room.shared => match room.host {
            Some(free) if fits(Some(free), SHARE_OF_HOST) => Ok((
                Place::Memory,
                format!("auto: {size} decoded once fit into {} of free memory", megabytes(free)),
            )),
            Some(free) => Ok((
                Place::Stream,
                format!("auto: {size} would leave too little of {} of free memory", megabytes(free)),
            )),
            None => Ok((Place::Stream, "auto: free memory is not known".to_owned())),
        },
        Resident::Auto => match room.device {
            Some(free) if fits(Some(free), SHARE_OF_DEVICE) => Ok((
                Place::Device,
                format!("auto: {size} fit into {} of free device memory{how}", megabytes(free)),
            )),
            Some(free) => Ok((
                Place::Stream,
                format!("auto: {size} would leave too little of {} of free device memory", megabytes(free)),
            )),
            None => Ok((Place::Stream, "auto: free device memory is not known".to_owned())),
        },
    }
}

/// Whether held-out samples may lie on the device beside those that are trained with and lie there already: they too
/// are given their share of what is free now.
pub fn fits_beside(source: &dyn Source, room: Room) -> bool {
    let free = if room.shared { room.host } else { room.device };
    !source.varies()
        && free.is_some_and(|free| bytes_of(source) as f64 <= SHARE_OF_DEVICE * free as f64)
}

fn too_large(size: &str, free: Option<u64>) -> String {
    format!("its {size} do not fit into {} of free memory", megabytes(free.unwrap_or(0)))
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// Bytes of all samples as f32, padded to the longest.
pub fn bytes_of(source: &dyn Source) -> u64 {
    let [time, channel] = source.shape();
    source.len() as u64 * (time * channel * size_of::<f32>()) as u64
}

/// What is known of each sample beside its values; of each original, where versions are drawn.
struct About {
    samples: Vec<Sample>,
    classes: Vec<String>,
    shape: [usize; 2],
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
    /// The same, row-major.
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
    /// When a sample cannot be read, or the source varies from epoch to epoch.
    pub fn upload(source: &dyn Source, device: &Device) -> Result<Self, LoadError> {
        let (about, values) = upload_all(source, device, |_, _| ())?;
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
const CHUNK_BYTES: usize = 64 << 20;

impl TrainResident {
    /// Uploads all samples; of samples that are versions of windows, drawn anew in each epoch, the
    /// originals alone, and what their versions are drawn with.
    ///
    /// # Errors
    ///
    /// When a sample cannot be read, or the source varies from epoch to epoch in another way.
    pub fn upload(source: &dyn TrainSource, device: &Device) -> Result<Self, LoadError> {
        match source.fresh().filter(|_| source.varies()) {
            None => {
                let (about, values) = upload_all(source, device, |_, _| ())?;
                Ok(Self::of(Held { about, values, fresh: None }))
            }
            Some(windows) => {
                let mut fresh = Fresh::begin(windows);
                let take = |index, values: &[f32]| fresh.add(windows, index, values);
                let (mut about, values) = upload_all(windows.originals(), device, take)?;
                if let Some(labels) = source.relabels() {
                    let own = labels.iter().step_by(windows.versions().slots());
                    for (sample, label) in about.samples.iter_mut().zip(own) {
                        sample.label = Some(*label);
                    }
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
        let about = read_all(source, |values, _, _| all.append(values))?;
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
            Values::Device(_) => Place::Device,
            Values::Memory(_) => Place::Memory,
        }
    }

    /// Bytes of the values.
    pub fn bytes(&self) -> u64 {
        let About { samples, shape: [time, channel], .. } = &self.held.about;
        (samples.len() * time * channel * size_of::<f32>()) as u64
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
        let Values::Device(values) = &self.held.values else { return None };
        let [time, channel] = self.held.about.shape;
        let rows: Vec<i32> = indices.iter().map(|index| self.row(*index) as i32).collect();
        let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [indices.len()]), device);
        let chosen = values.clone().select(0, rows.clone());
        let chosen = chosen.reshape([indices.len(), time, channel]);
        let chosen = if steps == time { chosen } else { chosen.narrow(1, 0, steps) };
        let Some(fresh) = &self.held.fresh else { return Some(chosen) };
        let lengths: Vec<usize> = indices.iter().map(|index| self.length(*index)).collect();
        let indices: Vec<usize> = indices.iter().map(|index| self.first(*index)).collect();
        Some(fresh.vary(chosen, rows, &fresh.drawn(epoch, &indices), &lengths))
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

    pub(crate) fn sample(&self, index: usize) -> Sample {
        self.held.about.samples[self.row(index)]
    }
}

/// Reads and uploads all samples; `look` gets the index and the valid values of each.
fn upload_all(
    source: &dyn Source,
    device: &Device,
    mut look: impl FnMut(usize, &[f32]),
) -> Result<(About, Values), LoadError> {
    let [_, channel] = source.shape();
    let (mut parts, mut first) = (Vec::new(), 0);
    let about = read_all(source, |values, rows, width| {
        for row in 0..rows {
            let count = source.length(first + row) * channel;
            look(first + row, &values[row * width..][..count]);
        }
        first += rows;
        let values = TensorData::new(std::mem::take(values), [rows, width]);
        parts.push(Tensor::<2>::from_data(values, device));
    })?;
    let all = if parts.len() == 1 { parts.remove(0) } else { Tensor::cat(parts, 0) };
    Ok((about, Values::Device(all)))
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
    let at_once = (CHUNK_BYTES / size_of::<f32>() / width.max(1)).max(1);
    let indices: Vec<usize> = (0..source.len()).collect();
    let mut samples: Vec<Sample> = Vec::with_capacity(indices.len());
    for rows in indices.chunks(at_once) {
        let mut values = vec![0.0; rows.len() * width];
        let mut read = source.gather(0, rows, time, &mut values)?;
        for (row, sample) in read.iter().enumerate() {
            // What lies behind a sample's end is zero in every batch.
            let length = sample.length as usize;
            if length > time {
                let (index, length) = (rows[row], sample.length);
                return Err(LoadError::Length { index, length, longest: time });
            }
            values[row * width..][length * channel..width].fill(0.0);
        }
        samples.append(&mut read);
        take(&mut values, rows.len(), width);
    }
    Ok(About { samples, classes: source.classes().to_vec(), shape: [time, channel] })
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
        let (sample, width) = (self.sample(index), time * channel);
        let count = sample.length as usize * channel;
        match &self.held.values {
            Values::Memory(values) => {
                out[..count].copy_from_slice(&values[self.row(index) * width..][..count]);
            }
            Values::Device(values) => {
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
        let (width, kept) = (time * channel, steps.min(time) * channel);
        let ahead = ahead(size_of::<f32>() * width);
        for (place, index) in indices.iter().enumerate() {
            // The next samples are on their way from memory while this one is copied.
            if let Some(soon) = indices.get(place + ahead) {
                fetch(&values[self.row(*soon) * width..][..kept]);
            }
            let row = &mut out[place * steps * channel..(place + 1) * steps * channel];
            let (copied, padding) = row.split_at_mut(kept);
            copied.copy_from_slice(&values[self.row(*index) * width..][..kept]);
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
