//! What training reads and where it lies: from training windows to a loader.

#[cfg(test)]
#[cfg(feature = "remote")]
mod s3;

use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use firebox_core::{
    AugmentMode, Augmentation, Event, Key, Listener, Silent, Storage, TrainWindows,
};
use firebox_data::{DataConfig, Paths};
use firebox_eval::Reason;
use firebox_loader::{
    AugmentedWindows, HeldOutLoader, HeldOutResident, LoadError, LoaderConfig, NormalisedWindows,
    Place, Resident, Room, Source, TrainLoader, TrainResident, TrainSource, fits_beside, place,
    shared_bytes,
};
use firebox_remote::{RemoteConfig, RemoteError, fetch_until, is_remote};

use crate::config::RunConfig;
use crate::device::{ChosenDevice, free_of_machine};
use crate::error::PipelineError;
use crate::padding::{one_bucket, padding};
use crate::pages::{self, Scattered};
use crate::shared::Noted;
use crate::stages::{Run, Windows};
use crate::{Kind, PipelineConfig};

/// Where training samples are to lie.
pub(crate) struct Placed {
    place: Place,
    /// Why there.
    why: String,
}

impl Placed {
    /// The place as a derived value for the resolved settings.
    pub(crate) fn reason(&self) -> Reason {
        let (value, reason) = (self.place.to_string(), self.why.clone());
        Reason { key: "loader.resident".to_owned(), value, reason }
    }
}

/// Training samples, and where they are to lie.
pub(crate) struct Feed {
    pub(crate) source: Arc<dyn TrainSource>,
    /// What the samples depend on.
    key: Key,
    placed: Placed,
}

impl Feed {
    /// The place as a derived value for the resolved settings.
    pub(crate) fn reason(&self) -> Reason {
        self.placed.reason()
    }
}

impl Run<'_> {
    /// The augmented training windows as `augment.mode` has them, and the place for them.
    pub(crate) fn feed(
        &self,
        windows: &Windows,
        remade: &mut usize,
    ) -> Result<Feed, PipelineError> {
        let augment = &self.config.augment;
        if let Some(message) = unmade(augment) {
            self.listener.on(&Event::Warning { message });
        }
        let key = self.resident_key(self.keys.augmented);
        if is_unvaried(augment) {
            let source = self.originals(windows)?;
            let placed = self.placed(source.as_ref())?;
            return Ok(Feed { source, key, placed });
        }
        let source: Arc<dyn TrainSource> = match augment.mode {
            AugmentMode::Cached | AugmentMode::None => self.augment(windows, remade)?,
            AugmentMode::Online => self.augmented_online(windows)?,
        };
        let (place, why) = place(self.config.loader.resident, source.as_ref(), self.room()?)?;
        self.look_at(source.as_ref(), place);
        Ok(Feed { source, key, placed: Placed { place, why } })
    }

    /// The key of samples of this key on this device.
    fn resident_key(&self, samples: Key) -> Key {
        Key::builder("resident", 1)
            .upstream("augmented", samples)
            .field("device", format!("{:?}", self.device.device))
            .finish()
    }

    /// The windows as they are, which need not be stored: they are made of their series for each batch.
    fn originals(
        &self,
        windows: &Windows,
    ) -> Result<Arc<NormalisedWindows<TrainWindows>>, PipelineError> {
        self.stage("augment", None, &mut 0, || {
            let (train, normaliser) = (windows.parts.train.clone(), windows.normaliser.clone());
            let source = NormalisedWindows::new(train, normaliser);
            let detail = format!("{} windows as they are, not stored", source.len());
            Ok((Arc::new(source), false, detail))
        })
    }

    fn augmented_online(&self, windows: &Windows) -> Result<Arc<AugmentedWindows>, PipelineError> {
        self.stage("augment", None, &mut 0, || {
            let (train, normaliser) = (windows.parts.train.clone(), windows.normaliser.clone());
            let (augment, seed) = (&self.config.augment, self.config.run.seed);
            let source = AugmentedWindows::new(train, normaliser, augment, seed)?;
            let detail = format!("{} windows, drawn anew in each epoch", source.len());
            Ok((Arc::new(source), false, detail))
        })
    }

    /// Free memory now; refuses pinned memory where there is none.
    fn room(&self) -> Result<Room, PipelineError> {
        let room = room(self.device);
        if self.config.loader.pin && room.shared {
            return Err(LoadError::Pin.into());
        }
        Ok(room)
    }

    /// The place for samples that are read from what they are made of, such as the windows of series. On a
    /// processor they stay there unless something else is asked for, or they share few steps.
    pub(crate) fn placed(&self, source: &dyn TrainSource) -> Result<Placed, PipelineError> {
        let room = self.room()?;
        let placed = placed_in(self.config.loader.resident, source, room)?;
        self.look_at(source, placed.place);
        Ok(placed)
    }

    /// Notes how a mapped set that is shuffled as a whole would be read in the order of its disk, what padding buckets
    /// would save, and how many samples there are; says so where a set is larger than memory, or buckets sort nothing.
    fn look_at(&self, source: &dyn TrainSource, place: Place) {
        let loader = self.loader();
        let scattered = Scattered::find(source, place, &loader, pages::free);
        // Batches of texts are cut to their longest one anyhow.
        let ragged = self.config.pipeline != Kind::Text;
        self.shared.note(Noted {
            blocks: scattered.as_ref().map(|found| found.blocks),
            padding: ragged.then(|| padding(source, &loader)).flatten(),
            samples: Some(source.len()),
        });
        let said = scattered.and_then(|found| found.warning());
        for message in said.into_iter().chain(one_bucket(source, &loader)) {
            self.listener.on(&Event::Warning { message });
        }
    }

    /// A loader of such samples, for a kind of pipeline whose trainings have their own. Trials of a search
    /// share those of a key.
    pub(crate) fn placed_loader(
        &self,
        source: Arc<dyn TrainSource>,
        key: Option<Key>,
        config: LoaderConfig,
    ) -> Result<TrainLoader, PipelineError> {
        // What is to be said of it was said at the beginning.
        let placed = placed_in(self.config.loader.resident, source.as_ref(), self.room()?)?;
        self.loader_at(&placed, source, key.map(|key| self.resident_key(key)), config)
    }

    /// A loader of these samples, which are uploaded or read into memory first if they are to lie
    /// there.
    pub(crate) fn train_loader(&self, feed: &Feed) -> Result<TrainLoader, PipelineError> {
        let Feed { source, key, placed } = feed;
        self.loader_at(placed, Arc::clone(source), Some(*key), self.loader())
    }

    fn loader_at(
        &self,
        placed: &Placed,
        source: Arc<dyn TrainSource>,
        key: Option<Key>,
        config: LoaderConfig,
    ) -> Result<TrainLoader, PipelineError> {
        loader_at(self.device, placed, source, config, |what, make| match key {
            // The trials of a search read or upload a set once.
            Some(key) => Ok(TrainResident::clone(&*self.shared.get(what, key, make)?.0)),
            None => make(),
        })
    }

    /// A loader of held-out samples that are measured again and again while `train` is trained with, which are what this
    /// key says: on the device, if those lie there and these fit beside them.
    pub(crate) fn validation_loader(
        &self,
        source: Arc<dyn Source>,
        train: &TrainLoader,
        key: Option<Key>,
        config: LoaderConfig,
    ) -> Result<HeldOutLoader, PipelineError> {
        let device = &self.device.device;
        if !(train.is_on_device() && fits_beside(source.as_ref(), room(self.device))) {
            return Ok(HeldOutLoader::new(source, config, device.clone())?);
        }
        let make = || HeldOutResident::upload(source.as_ref(), device);
        let set = match key {
            Some(key) => {
                let key = self.resident_key(key);
                HeldOutResident::clone(&*self.shared.get("validation", key, make)?.0)
            }
            None => make()?,
        };
        Ok(HeldOutLoader::resident(set, config, device.clone())?)
    }
}

/// A loader of a small set, outside of any pipeline, that lies where `auto` has it.
pub(crate) fn auto_loader(
    device: &ChosenDevice,
    source: Arc<dyn TrainSource>,
    config: LoaderConfig,
) -> Result<TrainLoader, PipelineError> {
    let placed = placed_in(Resident::Auto, source.as_ref(), room(device))?;
    loader_at(device, &placed, source, config, |_, make| make())
}

/// A loader of a set that an epoch has so many times, outside of any pipeline, and where it lies: what stays where it is
/// comes from `stream`, which has all of an epoch.
pub(crate) fn repeating_loader(
    device: &ChosenDevice,
    wanted: Resident,
    (once, times): (Arc<dyn TrainSource>, usize),
    stream: Arc<dyn TrainSource>,
    config: LoaderConfig,
) -> Result<(TrainLoader, Place), PipelineError> {
    let placed = placed_in(wanted, once.as_ref(), room(device))?;
    let source = if placed.place == Place::Stream { stream } else { once };
    let loader = loader_at(device, &placed, source, config, |_, make| Ok(make()?.repeated(times)));
    Ok((loader?, placed.place))
}

/// A loader of a held-out set that comes so many times, outside of any pipeline, and where it lies: what does not stay
/// on the device comes from `stream`, which has it as often.
pub(crate) fn repeating_held_out(
    device: &ChosenDevice,
    wanted: Resident,
    (once, times): (Arc<dyn Source>, usize),
    stream: Arc<dyn Source>,
    config: LoaderConfig,
) -> Result<(HeldOutLoader, Place), PipelineError> {
    let placed = placed_in(wanted, once.as_ref(), room(device))?;
    let on = device.device.clone();
    let loader = match placed.place {
        Place::Device => {
            let set = HeldOutResident::upload(once.as_ref(), &on)?.repeated(times);
            HeldOutLoader::resident(set, config, on)?
        }
        Place::Memory | Place::Stream => HeldOutLoader::new(stream, config, on)?,
    };
    let place = if placed.place == Place::Device { Place::Device } else { Place::Stream };
    Ok((loader, place))
}

/// Bytes of shared steps that a processor has in memory without being asked: more would be felt by others that need it. A
/// choice.
const SMALL: u64 = 256 << 20;

/// [`place`], but on a processor samples that `auto` places stay with what they are made of, unless they share steps that
/// take little memory: copying a window of those takes a quarter of the time of making it of its series (LOG.md, 2026-11-28).
fn placed_in(wanted: Resident, source: &dyn Source, room: Room) -> Result<Placed, PipelineError> {
    let (place, why) = match wanted {
        Resident::Auto if room.shared => match shared_bytes(source) {
            Some(bytes) if bytes <= SMALL && room.host.is_none_or(|free| bytes <= free / 4) => {
                let megabytes = bytes as f64 / 1e6;
                let why = format!(
                    "auto: {megabytes:.1} MB of steps that samples share, from which they are copied"
                );
                (Place::Memory, why)
            }
            _ => {
                let why = "auto: the device computes in the host's memory, and samples are written into each batch beside training";
                (Place::Stream, why.to_owned())
            }
        },
        _ => place(wanted, source, room)?,
    };
    Ok(Placed { place, why })
}

/// What reads or uploads a set.
type Make<'a> = dyn Fn() -> Result<TrainResident, LoadError> + 'a;

/// A loader of samples that lie in this place; `keep` makes them, or has what was made before.
fn loader_at(
    device: &ChosenDevice,
    placed: &Placed,
    source: Arc<dyn TrainSource>,
    config: LoaderConfig,
    keep: impl FnOnce(&'static str, &Make<'_>) -> Result<TrainResident, LoadError>,
) -> Result<TrainLoader, PipelineError> {
    let device = device.device.clone();
    let set = match placed.place {
        Place::Stream => return Ok(TrainLoader::new(source, config, device)?),
        Place::Device => keep("device", &|| TrainResident::upload(source.as_ref(), &device))?,
        Place::Memory => keep("memory", &|| TrainResident::read(source.as_ref()))?,
    };
    Ok(TrainLoader::resident(set, config, device.clone())?)
}

/// The augmentation with the versions that its mode makes.
pub(crate) fn effective(augment: &Augmentation) -> Cow<'_, Augmentation> {
    match augment.mode {
        AugmentMode::None => Cow::Owned(Augmentation { versions: 0, ..augment.clone() }),
        AugmentMode::Cached | AugmentMode::Online => Cow::Borrowed(augment),
    }
}

/// Whether windows are learned from as they are. Where a type of numbers is asked for, they are stored in it.
fn is_unvaried(augment: &Augmentation) -> bool {
    let is_drawn = augment.mode == AugmentMode::Online;
    effective(augment).versions == 0 && (is_drawn || augment.storage == Storage::F32)
}

/// Whether windows are stored before they are learned from.
pub(crate) fn is_stored(augment: &Augmentation) -> bool {
    augment.mode != AugmentMode::Online && !is_unvaried(augment)
}

/// What is said of versions that are set where none are made. Only a warning: the mode may lie over a file that has its
/// versions (`--set augment.mode=none`). The usual number may not have been written at all.
fn unmade(augment: &Augmentation) -> Option<String> {
    let (versions, usual) = (augment.versions, Augmentation::default());
    let is_written = ![0, usual.versions].contains(&versions);
    if augment.mode != AugmentMode::None {
        return None;
    }
    if is_written {
        return Some(format!(
            "`augment.versions` is {versions} and does nothing, because `augment.mode` is \"none\", which makes none\n  \
             set augment.mode = \"cached\" or \"online\" to learn from them, or take augment.versions out"
        ));
    }
    let changes = [
        ("jitter", augment.jitter != usual.jitter),
        ("scaling", augment.scaling != usual.scaling),
        ("time_warp", augment.time_warp != usual.time_warp),
        ("volatility_scaling", augment.volatility_scaling != usual.volatility_scaling),
    ];
    let (name, _) = changes.into_iter().find(|(_, differs)| *differs)?;
    Some(format!(
        "[augment.{name}] is set and does nothing, because `augment.mode` is \"none\", which makes no versions\n  \
         set augment.mode = \"cached\" or \"online\" to learn from them, or take the table out"
    ))
}

/// Whether a device draws the versions of pre-training's windows.
pub(crate) fn drawn_on_device(config: &PipelineConfig, arithmetic: &str) -> bool {
    let drawn = config.augment.mode == AugmentMode::Online && config.augment.versions > 0;
    drawn && draws_on_device(config, arithmetic)
}

/// Whether a device draws versions where there are any. Their last bits are its own, so the key of a
/// training says so; what `auto` makes of it by free memory does not change the key.
pub(crate) fn draws_on_device(config: &PipelineConfig, arithmetic: &str) -> bool {
    match config.loader.resident {
        Resident::Device => true,
        Resident::Auto => !arithmetic.starts_with("cpu"),
        Resident::Memory | Resident::Stream => false,
    }
}

/// Batches that are handed to a device ahead of the one in use. A processor computes where they are filled.
pub(crate) fn upload_ahead(device: &ChosenDevice, wanted: usize) -> usize {
    if device.backend == "cpu" { 0 } else { wanted }
}

/// Free memory now.
fn room(device: &ChosenDevice) -> Room {
    let shared = device.backend == "cpu";
    let known = !shared;
    // Limits of the process and its control group are often below what the machine has.
    let host = [free_of_machine(), crate::batch_size::room()].into_iter().flatten().min();
    Room {
        device: known
            .then(|| firebox_monitor::free_gpu_memory(device.index(), device.numbering()))
            .flatten(),
        shared,
        host,
        piece: largest_tensor(device),
    }
}

/// The most that a device has memory for in one piece.
#[cfg(feature = "gpu")]
fn largest_tensor(device: &ChosenDevice) -> Option<u64> {
    firebox_kernels::GpuProperties::of(&device.device).map(|properties| properties.largest_tensor)
}

#[cfg(not(feature = "gpu"))]
fn largest_tensor(_: &ChosenDevice) -> Option<u64> {
    None
}

/// The key of the series that a pipeline reads, whose remote files are fetched for it.
pub(crate) fn series_key(config: &PipelineConfig) -> Result<Key, PipelineError> {
    let data = local(&config.data, &config.run, &AtomicBool::new(false), &Silent)?;
    Ok(firebox_data::fingerprint(&data)?)
}

/// The settings of the data with every URL replaced by its copy in the cache, fetched if it is not there or not
/// current.
pub(crate) fn local<'a>(
    data: &'a DataConfig,
    run: &RunConfig,
    stop: &AtomicBool,
    listener: &dyn Listener,
) -> Result<Cow<'a, DataConfig>, RemoteError> {
    if !data.paths().any(|path| is_remote(path)) {
        return Ok(Cow::Borrowed(data));
    }
    let local = |paths: &Paths| -> Result<Paths, RemoteError> {
        let mut found = Vec::<PathBuf>::new();
        for path in &paths.0 {
            match path.to_str().filter(|_| is_remote(path)) {
                Some(url) => found.extend(copies(url, run, stop, listener)?),
                None => found.push(path.clone()),
            }
        }
        Ok(Paths(found))
    };
    let (path, test) = (local(&data.path)?, data.test.as_ref().map(local).transpose()?);
    Ok(Cow::Owned(DataConfig { path, test, ..data.clone() }))
}

/// Time for which what a server said is not asked again: a run needs its files several times before it begins.
const CURRENT: Duration = Duration::from_secs(60);

/// Copies that were found, of which URL in which cache, and when.
type Found = ((String, PathBuf, bool), Vec<PathBuf>, Instant);

/// What servers said within the last minute.
static KNOWN: Mutex<Vec<Found>> = Mutex::new(Vec::new());

fn known() -> MutexGuard<'static, Vec<Found>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fetches what a run needs before anything asks for its content, with word of how far it is, and hashes it, which
/// takes its time where there is much and is remembered. Servers are asked anew, whatever they said to another run.
pub(crate) fn fetch_first(
    config: &PipelineConfig,
    stop: &AtomicBool,
    listener: &dyn Listener,
) -> Result<(), PipelineError> {
    known().clear();
    let fetched = local(&config.data, &config.run, stop, listener);
    let data = fetched.map_err(|error| PipelineError::from(error).or_interrupted())?;
    // What is wrong with files is told by what needs them.
    match firebox_data::fingerprint_heard(stop, &data, listener) {
        Err(firebox_data::DataError::Stopped) => Err(PipelineError::Interrupted),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The copies of what a URL names, as they are or were within the last minute.
fn copies(
    url: &str,
    run: &RunConfig,
    stop: &AtomicBool,
    listener: &dyn Listener,
) -> Result<Vec<PathBuf>, RemoteError> {
    let wanted = (url.to_owned(), run.cache.clone(), run.fetch.offline);
    known().retain(|(_, files, when)| {
        when.elapsed() < CURRENT && files.iter().all(|file| file.is_file())
    });
    if let Some((_, files, _)) = known().iter().find(|(of, ..)| *of == wanted) {
        return Ok(files.clone());
    }
    let files = fetch_until(stop, url, &run.cache, &RemoteConfig::from(run.fetch), listener)?;
    if files.iter().any(|file| is_page(file)) {
        let problem = "the server sent a page of HTML in place of data: it may want a login, or the address is that of a \
                       page about the file";
        return Err(RemoteError::Url { url: url.to_owned(), problem });
    }
    known().push((wanted, files.clone(), Instant::now()));
    Ok(files)
}

/// Whether a file begins as a page of HTML does; no table and no array does.
fn is_page(file: &Path) -> bool {
    let mut begin = [0; 256];
    let read = File::open(file).and_then(|mut file| file.read(&mut begin));
    let begin = String::from_utf8_lossy(&begin[..read.unwrap_or(0)]).to_lowercase();
    let begin = begin.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    begin.starts_with("<!doctype html") || begin.starts_with("<html")
}

#[cfg(test)]
mod tests {
    use firebox_core::{
        Channel, Labels, Normalisation, Normaliser, Role, Series, SeriesSet, SplitRule, WindowRule,
        split,
    };
    use firebox_loader::NormalisedWindows;

    use super::*;

    #[test]
    fn a_page_is_no_file_of_data() {
        let folder = tempfile::tempdir().unwrap();
        let check = |text: &str, expected: bool| {
            let path = folder.path().join("bars.csv");
            std::fs::write(&path, text).unwrap();
            assert_eq!(is_page(&path), expected, "{text}");
        };
        check("\u{feff}\n <!DOCTYPE HTML><title>Log in</title>", true);
        check("<html lang=en>", true);
        check("time,close\n1,2\n", false);
        check("", false);
    }

    #[test]
    fn windows_that_share_few_steps_are_copied_from_memory() {
        let placed = |kind, stride, host| {
            let values = (0..1200).map(|step| f64::from(step % 37)).collect();
            let series = Series::regular("a", 0, 60_000_000, values, 1);
            let channels = vec![Channel::new("x", Role::Other)];
            let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
            let rule = WindowRule { length: 16, stride, whole: false };
            let parts = split(&set, &rule, &SplitRule::time(0.1, 0.1), &Labels::None).unwrap();
            let normaliser = Normaliser::fit(kind, &parts.train).unwrap();
            let source = NormalisedWindows::new(parts.train, normaliser);
            let room = Room { shared: true, host: Some(host), ..Room::default() };
            let Placed { place, why } = placed_in(Resident::Auto, &source, room).unwrap();
            (place, why)
        };
        let (standard, much) = (Normalisation::Standard, 1 << 30);
        let (place, why) = placed(standard, 1, much);
        assert_eq!(place, Place::Memory);
        assert_eq!(why, "auto: 0.0 MB of steps that samples share, from which they are copied");
        for (kind, stride, host) in
            [(standard, 16, much), (Normalisation::WindowStandard, 1, much), (standard, 1, 4000)]
        {
            let (place, why) = placed(kind, stride, host);
            assert_eq!(place, Place::Stream, "{why}");
        }
    }

    #[test]
    fn versions_that_no_mode_makes_are_told_of() {
        let said = |mode, versions| unmade(&Augmentation { mode, versions, ..Default::default() });
        let told = said(AugmentMode::None, 3).unwrap();
        assert!(told.starts_with("`augment.versions` is 3 and does nothing"), "{told}");
        let mut noisy = Augmentation { mode: AugmentMode::None, ..Default::default() };
        noisy.jitter.sigma = 0.5;
        let told = unmade(&noisy).unwrap();
        assert!(told.starts_with("[augment.jitter] is set and does nothing"), "{told}");
        noisy.mode = AugmentMode::Cached;
        assert_eq!(unmade(&noisy), None);
        let usual = Augmentation::default().versions;
        for (mode, versions) in [
            (AugmentMode::None, 0),
            (AugmentMode::None, usual),
            (AugmentMode::Cached, 3),
            (AugmentMode::Online, 3),
        ] {
            assert_eq!(said(mode, versions), None, "{mode:?} {versions}");
        }
    }
}
