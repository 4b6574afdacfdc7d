//! Checkpoints: one folder per step, whole or not there.
//!
//! ```text
//! runs/<id>/checkpoints/step-000500/
//!   weights.safetensors     parameters under PyTorch's names
//!   optimizer.safetensors   moments and update counts
//!   average.safetensors     the moving average of the parameters, if one is kept
//!   state.json              step, position, schedule, early stopping, loss scale, counters, seed, key
//!   manifest.json           size and SHA-256 of each of the above; written last
//! ```
//!
//! A checkpoint is written into a sibling folder whose name begins with a dot, made durable, and
//! renamed. What a killed process leaves behind is cleared away when the run is opened again.

mod retention;
mod saver;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use burn::module::Module;
use firebox_core::{Event, Key, Listener};
use firebox_models::Parameter;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use saver::SaveTimes;
pub(crate) use saver::{Job, Saver, Writer};

use crate::average::Average;
use crate::optimizer::OptimizerState;
use crate::snapshot::{self, LoadWeights, Snapshot};
use crate::state::State;

const WEIGHTS: &str = "weights.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
pub(crate) const AVERAGE: &str = "average.safetensors";
const STATE: &str = "state.json";
const MANIFEST: &str = "manifest.json";
/// Version 1 had neither loss scale nor average; it is read as one without them.
const VERSION: u32 = 2;

/// A checkpoint that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Writing failed: the folder is read-only, the disk is full, or the like.
    #[error(
        "cannot save a checkpoint: cannot {action} `{}`; free space there or use another run \
         folder, then resume the run",
        path.display()
    )]
    Write {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The thread that writes checkpoints ended without a result.
    #[error("cannot save a checkpoint: the thread that writes it has panicked")]
    Thread,
    /// Reading failed.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// There is no manifest, so the checkpoint was never finished.
    #[error("`{}` is not a checkpoint: it has no `manifest.json`", .0.display())]
    NoManifest(PathBuf),
    /// A file differs from what the manifest says.
    #[error("`{}` is damaged: {what}; put it back, or use another checkpoint; a run that goes on begins again if its folder is removed", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// It was written by a later version of this program.
    #[error("`{}` is of version {found}, and this program reads versions 1 to {VERSION}; go on with the program that wrote it", path.display())]
    Version {
        /// The manifest.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The history beside a whole checkpoint is missing or cut.
    #[error(
        "`{}` has {found} bytes, and the newest checkpoint `{}` counts on {wanted}; put the file back, or remove \
         that checkpoint{}",
        path.display(), checkpoint.display(),
        older.as_ref().map_or_else(
            || " and all others to start the run again".to_owned(),
            |older| format!(" and every other that is newer than `{}` to go on from there", older.display())
        )
    )]
    History {
        /// The history.
        path: PathBuf,
        /// Bytes that it has.
        found: u64,
        /// Bytes that it had when the checkpoint was written.
        wanted: u64,
        /// The newest whole checkpoint.
        checkpoint: PathBuf,
        /// The newest that the history reaches.
        older: Option<PathBuf>,
    },
    /// The weights are not those of the model.
    #[error("the weights of `{}` cannot be loaded", path.display())]
    Weights {
        /// The checkpoint or file.
        path: PathBuf,
        /// Why.
        #[source]
        source: LoadWeights,
    },
    /// A checkpoint to go on from that cannot be read now.
    #[error(
        "the checkpoint `{}` cannot be read now: {source}; resume the run once it can be, or move that folder away to go on from \
         the one before it",
        path.display()
    )]
    Unreadable {
        /// Its folder.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Checkpoints are there, or were before they were found damaged, and none is whole.
    #[error(
        "none of the {count} checkpoints in `{}` is whole; put files back (what was damaged is in folders whose names end in \
         `.damaged`), start a new run, or remove that folder to start this one again",
        path.display()
    )]
    NoneWhole {
        /// The folder.
        path: PathBuf,
        /// Checkpoints found.
        count: usize,
    },
}

impl CheckpointError {
    /// Whether it says that files are not what they were, and not only that they could not be read now: by a file system of
    /// a network that does not answer, or for want of permission or open files.
    fn is_damage(&self) -> bool {
        match self {
            Self::NoManifest(_) | Self::Damaged { .. } => true,
            Self::Read { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }

    /// The same with the checkpoint, and what can be done, where the system could not read a file of it.
    fn of_checkpoint(self, path: &Path) -> Self {
        match self {
            Self::Read { source, .. } => Self::Unreadable { path: path.to_owned(), source },
            other => other,
        }
    }
}

/// Why a checkpoint was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// At the end of an epoch.
    Epoch,
    /// At a step whose number the configuration asks for.
    Step,
    /// Because the run was interrupted, or a person asked for it; it is dropped once training has
    /// gone on and saved again.
    Interrupt,
}

/// What `manifest.json` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of this format.
    pub version: u32,
    /// Steps taken.
    pub step: u64,
    /// Epochs completed.
    pub epochs: u64,
    /// Why it was written.
    pub kind: Kind,
    /// Loss that "best" is decided by; only at the end of an epoch.
    pub score: Option<f64>,
    /// Key of all that the run was begun with.
    pub key: Key,
    /// Size and hash of each file.
    pub files: BTreeMap<String, FileEntry>,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Size.
    pub bytes: u64,
    /// SHA-256, as 64 hexadecimal digits.
    pub sha256: String,
}

/// A checkpoint on disk whose manifest is there.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
}

/// A checkpoint of which all files were read and are as the manifest promises. They wait here for who takes them, so
/// that none is read twice.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) checkpoint: Checkpoint,
    files: BTreeMap<String, Vec<u8>>,
}

impl Whole {
    /// Reads all files of a checkpoint.
    pub(crate) fn read(checkpoint: Checkpoint) -> Result<Self, CheckpointError> {
        let names = checkpoint.manifest.files.keys();
        let files = names.map(|name| Ok((name.clone(), checkpoint.read(name)?)));
        let files = files.collect::<Result<_, CheckpointError>>()?;
        Ok(Self { checkpoint, files })
    }

    /// What the run remembered beside weights and moments.
    ///
    /// # Errors
    /// If the file says something else.
    pub(crate) fn state(&self) -> Result<State, CheckpointError> {
        match self.files.get(STATE) {
            Some(text) => self.checkpoint.parse_state(text),
            None => self.checkpoint.state(),
        }
    }

    /// Puts weights, moments and the average into a model, its optimizer and its average.
    ///
    /// # Errors
    /// If they are others than these have, or the state says something else.
    pub(crate) fn restore<M: Module>(
        mut self,
        model: &mut M,
        optimizer: &mut OptimizerState,
        average: &mut Average,
    ) -> Result<(), CheckpointError> {
        average.count = self.state()?.averaged;
        let mut take = |name: &str| match self.files.remove(name) {
            Some(bytes) => Ok(bytes),
            None => self.checkpoint.read(name),
        };
        let (weights, moments) = (take(WEIGHTS)?, take(OPTIMIZER)?);
        let averaged = self.checkpoint.has_average().then(|| take(AVERAGE)).transpose()?;
        Snapshot::load(&weights, &moments, averaged.as_deref(), model, optimizer, average).map_err(
            |source| CheckpointError::Weights { path: self.checkpoint.path.clone(), source },
        )
    }
}

impl Checkpoint {
    /// Opens the checkpoint in this folder.
    ///
    /// # Errors
    /// If it has no manifest that can be read. The files are checked when they are read, or all at
    /// once by [`Checkpoint::verify`].
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let file = path.join(MANIFEST);
        let text = match fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(CheckpointError::NoManifest(path.to_owned()));
            }
            Err(source) => return Err(CheckpointError::Read { path: file, source }),
        };
        let manifest: Manifest = serde_json::from_slice(&text).map_err(|error| {
            CheckpointError::Damaged { path: file.clone(), what: error.to_string() }
        })?;
        if !(1..=VERSION).contains(&manifest.version) {
            return Err(CheckpointError::Version { path: file, found: manifest.version });
        }
        Ok(Self { path: path.to_owned(), manifest })
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.manifest.files.values().map(|entry| entry.bytes).sum()
    }

    /// Checks the size and hash of every file.
    ///
    /// # Errors
    /// The first file that is missing or differs.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        self.manifest.files.keys().try_for_each(|name| self.copy(name, io::sink()))
    }

    /// What the run remembered beside weights and moments.
    ///
    /// # Errors
    /// If the file is damaged.
    pub fn state(&self) -> Result<State, CheckpointError> {
        self.parse_state(&self.read(STATE)?)
    }

    fn parse_state(&self, text: &[u8]) -> Result<State, CheckpointError> {
        serde_json::from_slice(text).map_err(|error| CheckpointError::Damaged {
            path: self.path.join(STATE),
            what: error.to_string(),
        })
    }

    /// The bytes of a file, as the manifest promises them.
    fn read(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        let there = fs::metadata(self.path.join(name)).map_or(0, |found| found.len());
        let promised = self.manifest.files.get(name).map_or(0, |entry| entry.bytes);
        let mut bytes = Vec::with_capacity(there.min(promised) as usize);
        self.copy(name, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies a file, part by part; that it is what the manifest promises is known at the end.
    fn copy(&self, name: &str, to: impl Write) -> Result<(), CheckpointError> {
        let path = self.path.join(name);
        let unread = |source| CheckpointError::Read { path: path.clone(), source };
        let damaged = |what: String| CheckpointError::Damaged { path: path.clone(), what };
        let Some(entry) = self.manifest.files.get(name) else {
            return Err(damaged("the manifest does not list it".to_owned()));
        };
        let mut file = File::open(&path).map_err(unread)?;
        let found = file.metadata().map_err(unread)?.len();
        if found != entry.bytes {
            return Err(damaged(format!("it has {found} bytes of {}", entry.bytes)));
        }
        let mut copied = Digested::new(to);
        io::copy(&mut file, &mut copied).map_err(unread)?;
        let found = hexadecimal(copied.digest);
        if found != entry.sha256 {
            return Err(damaged(format!("its SHA-256 is {found}, not {}", entry.sha256)));
        }
        Ok(())
    }

    /// Whether there is an average of the weights.
    pub fn has_average(&self) -> bool {
        self.manifest.files.contains_key(AVERAGE)
    }

    /// Its weights under PyTorch's names.
    ///
    /// # Errors
    /// If the file is damaged.
    pub fn parameters(&self) -> Result<Vec<Parameter>, CheckpointError> {
        self.parsed(WEIGHTS)
    }

    /// The average of its weights under PyTorch's names.
    ///
    /// # Errors
    /// If the file is damaged, or there is none.
    pub fn average(&self) -> Result<Vec<Parameter>, CheckpointError> {
        self.parsed(AVERAGE)
    }

    fn parsed(&self, name: &str) -> Result<Vec<Parameter>, CheckpointError> {
        snapshot::parse_weights(&self.read(name)?)
            .map_err(|source| CheckpointError::Weights { path: self.path.clone(), source })
    }
}

/// Gives a model the weights of a checkpoint folder, or of a single safetensors file with
/// PyTorch's names and layout.
///
/// # Errors
/// If the checkpoint is damaged, or a name is missing, unexpected or of another shape; the model is
/// then unchanged.
pub fn load_weights<M: Module>(path: &Path, model: &mut M) -> Result<(), CheckpointError> {
    let bytes = if path.is_dir() {
        Checkpoint::open(path)?.read(WEIGHTS)?
    } else {
        fs::read(path).map_err(|source| CheckpointError::Read { path: path.to_owned(), source })?
    };
    snapshot::load_weights(&bytes, model)
        .map_err(|source| CheckpointError::Weights { path: path.to_owned(), source })
}

/// Gives a model the averaged weights of a checkpoint folder.
///
/// # Errors
/// If the checkpoint is damaged or has no average, or a name is missing, unexpected or of another
/// shape; the model is then unchanged.
pub fn load_average<M: Module>(path: &Path, model: &mut M) -> Result<(), CheckpointError> {
    snapshot::load_weights(&Checkpoint::open(path)?.read(AVERAGE)?, model)
        .map_err(|source| CheckpointError::Weights { path: path.to_owned(), source })
}

/// Name of the folder of a step.
pub(crate) fn folder_name(step: u64) -> String {
    format!("step-{step:06}")
}

/// Folders of finished and unfinished checkpoints, newest first.
fn folders(folder: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let read = |source| CheckpointError::Read { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(source) => return Err(read(source)),
    };
    let mut folders = vec![];
    for entry in entries {
        let entry = entry.map_err(read)?;
        let name = entry.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix("step-")?.parse().ok());
        folders.extend(step.map(|step| (step, entry.path())));
    }
    folders.sort_by(|a, b| b.cmp(a));
    Ok(folders)
}

/// The whole checkpoints of a run by their manifests, newest first.
///
/// # Errors
/// If the folder cannot be read.
pub fn checkpoints(folder: &Path) -> Result<Vec<Checkpoint>, CheckpointError> {
    let folders = folders(folder)?;
    Ok(folders.iter().filter_map(|(_, path)| Checkpoint::open(path).ok()).collect())
}

/// The newest checkpoint that is whole. Each newer one is set aside under a name that ends in
/// `.damaged`, with a warning. Where all that there were are damaged, a run does not begin anew without being told to.
pub(crate) fn newest_whole(
    folder: &Path,
    listener: &dyn Listener,
) -> Result<Option<Whole>, CheckpointError> {
    let folders = folders(folder)?;
    for (_, path) in &folders {
        let error = match Checkpoint::open(path).and_then(Whole::read) {
            Ok(whole) => return Ok(Some(whole)),
            Err(error) => error,
        };
        if !error.is_damage() {
            return Err(error.of_checkpoint(path));
        }
        set_aside(path, &error, "the checkpoint before it is used", listener)?;
    }
    match damaged(folder)? {
        0 => Ok(None),
        count => Err(CheckpointError::NoneWhole { path: folder.to_owned(), count }),
    }
}

/// How many checkpoints were set aside.
fn damaged(folder: &Path) -> Result<usize, CheckpointError> {
    let read = |source| CheckpointError::Read { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries.map_err(read)?,
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name()).map_err(read));
    let names = names.collect::<Result<Vec<_>, _>>()?;
    let is_damaged = |name: &&std::ffi::OsString| {
        let name = name.to_string_lossy();
        name.starts_with("step-") && name.ends_with(".damaged")
    };
    Ok(names.iter().filter(is_damaged).count())
}

/// Renames a damaged checkpoint, and says what is done without it.
fn set_aside(
    path: &Path,
    error: &CheckpointError,
    instead: &str,
    listener: &dyn Listener,
) -> Result<(), CheckpointError> {
    let aside = path.with_extension("damaged");
    remove(&aside)?;
    rename(path, &aside)?;
    let message = format!("{error}. It was renamed to `{}`; {instead}", aside.display());
    listener.on(&Event::Warning { message });
    Ok(())
}

/// The checkpoint with the best score, the first of several, or the newest where none has one.
pub(crate) fn best_or_newest(folder: &Path) -> Result<Option<Checkpoint>, CheckpointError> {
    Ok(best_or_first(&checkpoints(folder)?))
}

/// The same of those that are there, newest first.
pub(crate) fn best_or_first(newest_first: &[Checkpoint]) -> Option<Checkpoint> {
    let scored = newest_first.iter().filter_map(|found| Some((found, found.manifest.score?)));
    let best = scored.min_by(|(a, left), (b, right)| {
        left.total_cmp(right).then(a.manifest.step.cmp(&b.manifest.step))
    });
    best.map(|(found, _)| found).or_else(|| newest_first.first()).cloned()
}

/// Sets checkpoints aside until the one that [`best_or_newest`] finds is whole, with a warning each; whether any was. A run
/// that has ended may keep no other.
pub(crate) fn leave_whole_best(
    folder: &Path,
    listener: &dyn Listener,
) -> Result<bool, CheckpointError> {
    let mut any = false;
    while let Some(best) = best_or_newest(folder)? {
        let Err(error) = best.verify() else { break };
        if !error.is_damage() {
            return Err(error.of_checkpoint(&best.path));
        }
        set_aside(&best.path, &error, "the best of those that are left is used", listener)?;
        any = true;
    }
    Ok(any)
}

/// Clears away what a killed process left behind.
pub(crate) fn recover(folder: &Path) -> Result<(), CheckpointError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(CheckpointError::Read { path: folder.to_owned(), source }),
    };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let Some(name) = name.to_str().and_then(|name| name.strip_prefix('.')) else { continue };
        if name.ends_with(".partial") {
            remove(&path)?;
        } else if let Some(name) = name.strip_suffix(".replaced") {
            // Killed between the two renames of a replacement, the old one is still the newest.
            let target = folder.join(name);
            if target.exists() { remove(&path)? } else { rename(&path, &target)? }
        }
    }
    sweep(folder);
    Ok(())
}

/// Removes what is left of checkpoints that were given up, as far as that can be done now.
fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(".step-") && name.ends_with(".removed") {
            let _ = remove(&entry.path());
        }
    }
}

/// Writes a checkpoint of `step` into `folder`; one that is there is replaced. What was written of one that cannot be
/// finished takes no room of the disk that may be full.
fn write(
    folder: &Path,
    snapshot: &Snapshot,
    state: &State,
    kind: Kind,
    score: Option<f64>,
) -> Result<Checkpoint, CheckpointError> {
    let written = write_whole(folder, snapshot, state, kind, score);
    if written.is_err() {
        let _ = remove(&folder.join(format!(".{}.partial", folder_name(state.step))));
    }
    written
}

fn write_whole(
    folder: &Path,
    snapshot: &Snapshot,
    state: &State,
    kind: Kind,
    score: Option<f64>,
) -> Result<Checkpoint, CheckpointError> {
    let name = folder_name(state.step);
    let [target, partial, replaced] =
        [name.clone(), format!(".{name}.partial"), format!(".{name}.replaced")]
            .map(|name| folder.join(name));
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| CheckpointError::Write { action, path, source }
    };
    remove(&partial)?;
    remove(&replaced)?;
    fs::create_dir_all(&partial).map_err(failed("create the folder", &partial))?;
    let json = |error: serde_json::Error| failed("write", &partial)(error.into());
    let mut files = BTreeMap::new();
    let tensors = [(WEIGHTS, snapshot.weights_file()), (OPTIMIZER, snapshot.optimizer_file())];
    let average = snapshot.average_file().map(|file| (AVERAGE, file));
    for (name, file) in tensors.into_iter().chain(average) {
        let entry = write_file(&partial.join(name), |out| file.write(out))?;
        files.insert(name.to_owned(), entry);
    }
    let text = serde_json::to_vec_pretty(state).map_err(json)?;
    let entry = write_file(&partial.join(STATE), |out| out.write_all(&text))?;
    files.insert(STATE.to_owned(), entry);
    let (step, epochs, key) = (state.step, state.epochs, state.key);
    // A score that is no number is none.
    let score = score.filter(|score| score.is_finite());
    let manifest = Manifest { version: VERSION, step, epochs, kind, score, key, files };
    let text = serde_json::to_vec_pretty(&manifest).map_err(json)?;
    write_file(&partial.join(MANIFEST), |out| out.write_all(&text))?;
    sync_folder(&partial)?;
    if target.exists() {
        rename(&target, &replaced)?;
    }
    rename(&partial, &target)?;
    sync_folder(folder)?;
    remove(&replaced)?;
    Ok(Checkpoint { path: target, manifest })
}

/// Removes a checkpoint. It is renamed first, so that it is never there in part.
fn discard(path: &Path) -> Result<(), CheckpointError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let removed = path.with_file_name(format!(".{name}.removed"));
    remove(&removed)?;
    rename(path, &removed)?;
    remove(&removed)
}

/// Writes a file to disk, and tells its size and digest.
fn write_file(
    path: &Path,
    content: impl FnOnce(&mut Digested<BufWriter<File>>) -> io::Result<()>,
) -> Result<FileEntry, CheckpointError> {
    let write = || {
        let file = BufWriter::with_capacity(1 << 18, File::create(path)?);
        let mut out = Digested::new(file);
        content(&mut out)?;
        let Digested { to, digest, bytes } = out;
        to.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        Ok(FileEntry { bytes, sha256: hexadecimal(digest) })
    };
    write().map_err(|source| CheckpointError::Write {
        action: "write",
        path: path.to_owned(),
        source,
    })
}

/// Where something is written to, and what was so far.
struct Digested<W> {
    to: W,
    digest: Sha256,
    bytes: u64,
}

impl<W> Digested<W> {
    fn new(to: W) -> Self {
        Self { to, digest: Sha256::new(), bytes: 0 }
    }
}

impl<W: Write> Write for Digested<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.digest.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

pub(crate) fn sync_folder(path: &Path) -> Result<(), CheckpointError> {
    // Folders can be opened and synchronised on Unix only; elsewhere a rename is durable enough.
    let sync = || if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) };
    sync().map_err(|source| CheckpointError::Write {
        action: "synchronise",
        path: path.to_owned(),
        source,
    })
}

fn rename(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    fs::rename(from, to).map_err(|source| CheckpointError::Write {
        action: "rename",
        path: from.to_owned(),
        source,
    })
}

/// Removes a folder if it is there.
fn remove(path: &Path) -> Result<(), CheckpointError> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(CheckpointError::Write { action: "remove", path: path.to_owned(), source })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn hexadecimal(digest: Sha256) -> String {
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Device;
    use firebox_core::Silent;
    use firebox_models::read_parameters;

    use super::*;
    use crate::scaler::Scaler;
    use crate::{LossScale, TrainConfig};

    #[test]
    fn the_newest_checkpoint_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let linear = || -> Linear { LinearConfig::new(3, 2).init(&Device::default()) };
        let (model, config) = (linear(), TrainConfig::default());
        let optimizer = || OptimizerState::new(&model, &config).unwrap();
        let snapshot = Snapshot::take(&model, &optimizer(), &Average::default()).unwrap();
        let key = Key::builder("test", 1).finish();
        let state = State::start(key, 1, Scaler::new(&LossScale::Off));
        write(folder.path(), &snapshot, &state, Kind::Step, None).unwrap();
        let whole = newest_whole(folder.path(), &Silent).unwrap().unwrap();
        // Whatever becomes of the files.
        fs::remove_dir_all(whole.checkpoint.path()).unwrap();
        assert_eq!(whole.state().unwrap().step, 0);
        let mut restored = linear();
        assert_ne!(read_parameters(&restored), read_parameters(&model));
        whole.restore(&mut restored, &mut optimizer(), &mut Average::default()).unwrap();
        assert_eq!(read_parameters(&restored), read_parameters(&model));
    }
}
