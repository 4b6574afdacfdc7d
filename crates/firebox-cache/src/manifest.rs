//! The manifest of an entry: written last, so that its existence is the only "done".

use std::fs;
use std::path::Path;

use firebox_core::{Augmentation, Channel, Key, Normaliser};
use serde::{Deserialize, Serialize};

use crate::element::Zeros;
use crate::error::Damage;
use crate::files::FileRecord;

/// Its name within an entry.
pub(crate) const NAME: &str = "manifest.json";

/// What augmented windows are made from, as far as the cache can see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Inputs {
    pub(crate) augmentation: Augmentation,
    pub(crate) seed: u64,
    pub(crate) normaliser: Normaliser,
    /// Key of the windows' places and labels.
    pub(crate) windows: Key,
}

impl Inputs {
    /// What of these differs from `other`.
    pub(crate) fn difference(&self, other: &Self) -> Option<&'static str> {
        let differences = [
            (self.augmentation != other.augmentation, "parameters of the augmentations"),
            (self.seed != other.seed, "random numbers (another seed)"),
            (self.normaliser != other.normaliser, "scales of the normalisation"),
            (self.windows != other.windows, "windows"),
        ];
        differences.into_iter().find(|(differs, _)| *differs).map(|(_, what)| what)
    }
}

/// The manifest of augmented windows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// The bucket, which names the format and its version.
    pub(crate) format: String,
    pub(crate) key: Key,
    /// Steps of the longest window, and channels.
    pub(crate) shape: [usize; 2],
    pub(crate) channels: Vec<Channel>,
    pub(crate) classes: Vec<String>,
    pub(crate) records: usize,
    pub(crate) records_per_shard: usize,
    pub(crate) inputs: Inputs,
    /// What the storage type made zeros of; left out where it is nothing, as in entries that were made before it was
    /// kept.
    #[serde(default, skip_serializing_if = "Zeros::are_none")]
    pub(crate) zeros: Zeros,
    /// The shards, in order.
    pub(crate) files: Vec<FileRecord>,
    /// BLAKE3 of this manifest with an empty checksum.
    pub(crate) checksum: String,
}

impl Manifest {
    /// The manifest as it is written, with its checksum.
    pub(crate) fn to_json(&self) -> Result<String, serde_json::Error> {
        let checksum = self.own_checksum()?;
        serde_json::to_string_pretty(&Self { checksum, ..self.clone() })
    }

    /// Reads the manifest of an entry. None if there is no entry.
    pub(crate) fn read(entry: &Path) -> Result<Option<Self>, Damage> {
        let text = match fs::read_to_string(entry.join(NAME)) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                return Err(Damage::Content("the manifest is not text".to_owned()));
            }
            Err(error) => return Err(Damage::Unreadable(error)),
        };
        let broken = |error| Damage::Content(format!("the manifest is broken: {error}"));
        let manifest: Self = serde_json::from_str(&text).map_err(broken)?;
        if manifest.own_checksum().map_err(broken)? != manifest.checksum {
            return Err(Damage::Checksum);
        }
        Ok(Some(manifest))
    }

    fn own_checksum(&self) -> Result<String, serde_json::Error> {
        let bare = Self { checksum: String::new(), ..self.clone() };
        Ok(blake3::hash(&serde_json::to_vec(&bare)?).to_hex().to_string())
    }
}

/// The checksum of the text of a manifest that states one in itself: BLAKE3 of the text without the one that is stated.
pub fn checksum_without(text: &[u8], stated: &str) -> String {
    let bare = String::from_utf8_lossy(text).replacen(stated, "", 1);
    blake3::hash(bare.as_bytes()).to_hex().to_string()
}

/// What the manifests of all buckets have in common, whoever wrote them: the checksum of each file,
/// or that of the only one.
#[derive(Debug, Deserialize)]
pub(crate) struct AnyManifest {
    #[serde(default)]
    pub(crate) files: Vec<FileRecord>,
    #[serde(default)]
    pub(crate) blake3: Option<String>,
    /// Of the manifest itself. What it is of is each bucket's own: of series, see [`checksum_without`]; empty in those
    /// that were stored before it was kept.
    #[serde(default)]
    pub(crate) checksum: String,
}
