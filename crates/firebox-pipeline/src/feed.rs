//! What training reads and where it lies: from training windows to a loader.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use firebox_core::{AugmentMode, Augmentation, Key, Listener, Silent};
use firebox_data::{DataConfig, Paths};
use firebox_eval::Reason;
use firebox_loader::{
    AugmentedWindows, LoadError, Place, Resident, Room, Source, TrainLoader, TrainResident,
    TrainSource, place,
};
use firebox_remote::{RemoteConfig, RemoteError, fetch, is_remote};
use sysinfo::System;

use crate::PipelineConfig;
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::stages::{Run, Windows};

/// Training samples, and where they are to lie.
pub(crate) struct Feed {
    pub(crate) source: Arc<dyn TrainSource>,
    /// What the samples depend on.
    key: Key,
    place: Place,
    /// Why there.
    why: String,
}

impl Feed {
    /// The place as a derived value for the resolved settings.
    pub(crate) fn reason(&self) -> Reason {
        let (value, reason) = (self.place.to_string(), self.why.clone());
        Reason { key: "loader.resident".to_owned(), value, reason }
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
        let source: Arc<dyn TrainSource> = match augment.mode {
            AugmentMode::Cached | AugmentMode::None => self.augment(windows, remade)?,
            AugmentMode::Online => self.augmented_online(windows)?,
        };
        let loader = &self.config.loader;
        let (place, why) = self.resident(loader.resident, source.as_ref())?;
        let key = Key::builder("resident", 1)
            .upstream("augmented", self.keys.augmented)
            .field("device", format!("{:?}", self.device.device))
            .finish();
        Ok(Feed { source, key, place, why })
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

    fn resident(
        &self,
        wanted: Resident,
        source: &dyn TrainSource,
    ) -> Result<(Place, String), PipelineError> {
        let room = room(self.device, &self.config.run.device);
        if self.config.loader.pin && room.shared {
            return Err(LoadError::Pin.into());
        }
        Ok(place(wanted, source, room)?)
    }

    /// A loader of these samples, which are uploaded or read into memory first if they are to lie
    /// there.
    pub(crate) fn train_loader(&self, feed: &Feed) -> Result<TrainLoader, PipelineError> {
        let (config, device) = (self.loader(), self.device.device.clone());
        let source = feed.source.as_ref();
        let set = match feed.place {
            Place::Stream => {
                return Ok(TrainLoader::new(Arc::clone(&feed.source), config, device)?);
            }
            // The trials of a search read or upload a set once.
            Place::Device => {
                self.shared.get("device", feed.key, || TrainResident::upload(source, &device))?
            }
            Place::Memory => self.shared.get("memory", feed.key, || TrainResident::read(source))?,
        };
        Ok(TrainLoader::resident(TrainResident::clone(&set.0), config, device)?)
    }
}

/// The augmentation with the versions that its mode makes.
pub(crate) fn effective(augment: &Augmentation) -> Cow<'_, Augmentation> {
    match augment.mode {
        AugmentMode::None => Cow::Owned(Augmentation { versions: 0, ..augment.clone() }),
        AugmentMode::Cached | AugmentMode::Online => Cow::Borrowed(augment),
    }
}

/// Free memory now.
fn room(device: &ChosenDevice, name: &str) -> Room {
    let shared = device.backend == "cpu";
    let index = name.split_once(':').and_then(|(_, index)| index.parse().ok()).unwrap_or(0);
    let known = !shared;
    let mut system = System::new();
    system.refresh_memory();
    let host = Some(system.available_memory()).filter(|free| *free > 0);
    Room {
        device: known
            .then(|| firebox_monitor::free_gpu_memory(index, device.backend == "cuda"))
            .flatten(),
        shared,
        host,
    }
}

/// The key of the series that a pipeline reads, whose remote files are fetched for it.
pub(crate) fn series_key(config: &PipelineConfig) -> Result<Key, PipelineError> {
    let data = local(&config.data, &config.run.cache, &Silent)?;
    Ok(firebox_data::fingerprint(&data)?)
}

/// The settings with every URL replaced by its copy in the cache, fetched if it is not there or not
/// current.
pub(crate) fn local<'a>(
    data: &'a DataConfig,
    cache: &std::path::Path,
    listener: &dyn Listener,
) -> Result<Cow<'a, DataConfig>, RemoteError> {
    let remote = |paths: &Paths| paths.0.iter().any(|path| is_remote(path));
    if !remote(&data.path) && !data.test.as_ref().is_some_and(remote) {
        return Ok(Cow::Borrowed(data));
    }
    let config = RemoteConfig::default();
    let local = |paths: &Paths| -> Result<Paths, RemoteError> {
        let mut found = Vec::<PathBuf>::new();
        for path in &paths.0 {
            match path.to_str().filter(|_| is_remote(path)) {
                Some(url) => found.extend(fetch(url, cache, &config, listener)?),
                None => found.push(path.clone()),
            }
        }
        Ok(Paths(found))
    };
    let (path, test) = (local(&data.path)?, data.test.as_ref().map(local).transpose()?);
    Ok(Cow::Owned(DataConfig { path, test, ..data.clone() }))
}
