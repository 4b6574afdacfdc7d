//! Where samples lie that are trained with: on the device, in the host's memory, or where their source has them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::resident::CHUNK_BYTES;
use crate::{AugmentedWindows, LoadError, SharedSteps, Source};

/// Where the samples lie from which batches are made. Batches are the same, bit for bit; only
/// versions that a device draws by itself are those of the host but for rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resident {
    /// On the device if they fit there with room to spare, else streamed.
    #[default]
    Auto,
    /// In the device's memory: uploaded once, each batch a gather by index there. Of
    /// [`AugmentedWindows`] the originals, whose versions are drawn there.
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
    /// The most that a device has its own memory for in one piece, which a set is; none if that is not known.
    pub piece: Option<u64>,
}

/// Share of the device's free memory that data may take: weights, moments, activations and the
/// allocator's reserve need the rest.
const SHARE_OF_DEVICE: f64 = 0.4;
/// Share of the host's free memory that decoded data may take.
const SHARE_OF_HOST: f64 = 0.6;

/// Why samples have to stay where they are.
pub(crate) const DRAWN_ANEW: &str = "its samples are drawn anew in each epoch";
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
    let streamed = || Ok((Place::Stream, "asked for".to_owned()));
    if wanted == Resident::Stream {
        return streamed();
    }
    let drawn = source.varies();
    // What a device that draws versions itself holds.
    let fresh = source.fresh().filter(|_| drawn);
    let (bytes, shares) = kept(fresh.map_or(source, |fresh| fresh.originals() as &dyn Source));
    let bytes = bytes + fresh.map_or(0, AugmentedWindows::bytes_beside);
    let (of, how) = match (fresh.is_some(), shares) {
        (true, false) => (" of originals", DRAWN_THERE),
        (true, true) => (" of steps that originals share", DRAWN_THERE),
        (false, true) => (" of steps that samples share", ""),
        (false, false) => ("", ""),
    };
    let size = megabytes(bytes) + of;
    let fits =
        |free: Option<u64>, share: f64| free.is_none_or(|f| bytes as f64 <= share * f as f64);
    let piece = room.piece.filter(|piece| !room.shared && bytes > *piece).map(megabytes);
    let refuse = |place: &'static str, why: String| Err(LoadError::NotResident { place, why });
    match wanted {
        Resident::Device if drawn && fresh.is_none() => {
            return refuse("device", DRAWN_ANEW.to_owned());
        }
        Resident::Memory if drawn => return refuse("memory", DRAWN_ANEW.to_owned()),
        _ => {}
    }
    let there = if room.shared { room.host } else { room.device };
    // Parts that are uploaded one after the other lie beside the whole for a moment.
    let share = if bytes > CHUNK_BYTES as u64 { 0.5 } else { 1.0 };
    match (wanted, piece) {
        (Resident::Device, Some(piece)) => {
            return refuse(
                "device",
                format!(
                    "its {size} are more than the {piece} that the device has memory for in one piece"
                ),
            );
        }
        (Resident::Auto, Some(piece)) if !drawn || fresh.is_some() => {
            return Ok((
                Place::Stream,
                format!(
                    "auto: {size} are more than the {piece} that the device has memory for in one piece"
                ),
            ));
        }
        _ => {}
    }
    match wanted {
        Resident::Stream => streamed(),
        Resident::Device if fits(there, share) => {
            Ok((Place::Device, format!("asked for ({size}){how}")))
        }
        Resident::Device => refuse("device", too_large(&size, there)),
        Resident::Memory if fits(room.host, 1.0) => {
            Ok((Place::Memory, format!("asked for ({size})")))
        }
        Resident::Memory => refuse("memory", too_large(&size, room.host)),
        Resident::Auto if drawn && (room.shared || fresh.is_none()) => {
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
    let bytes = bytes_of(source);
    !source.varies()
        && free.is_some_and(|free| bytes as f64 <= SHARE_OF_DEVICE * free as f64)
        && (room.shared || room.piece.is_none_or(|piece| bytes <= piece))
}

fn too_large(size: &str, free: Option<u64>) -> String {
    format!("its {size} do not fit into {} of free memory", megabytes(free.unwrap_or(0)))
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// Bytes of all samples where they stay resident, as f32: padded to the longest, or the steps that they share, each once.
pub fn bytes_of(source: &dyn Source) -> u64 {
    kept(source).0
}

/// The bytes of the steps that samples share, if these stay resident in place of the samples.
pub fn shared_bytes(source: &dyn Source) -> Option<u64> {
    let (bytes, shares) = kept(source);
    shares.then_some(bytes)
}

/// The bytes of all samples where they stay resident, and whether they are steps that samples share.
fn kept(source: &dyn Source) -> (u64, bool) {
    let [_, channel] = source.shape();
    match worth_sharing(source) {
        Some(shared) => ((shared.count() * channel * size_of::<f32>()) as u64, true),
        None => (bytes_one_by_one(source), false),
    }
}

/// Bytes of all samples as f32, each for itself, padded to the longest.
fn bytes_one_by_one(source: &dyn Source) -> u64 {
    let [time, channel] = source.shape();
    source.len() as u64 * (time * channel * size_of::<f32>()) as u64
}

/// The steps that samples share, if they are to be kept in place of the samples: where they are at most half as many. A
/// run of steps is less than a row to gather.
pub(crate) fn worth_sharing(source: &dyn Source) -> Option<SharedSteps<'_>> {
    let [time, _] = source.shape();
    let shared = source.shared_steps()?;
    (2 * shared.count() <= source.len().saturating_mul(time)).then_some(shared)
}
