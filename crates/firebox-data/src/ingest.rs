//! From the `[data]` table to checked series, or to those that an earlier run has stored.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use firebox_cache::Samples;
use firebox_core::{Key, Listener, SeriesSet, Silent};
use rayon::prelude::*;

use crate::clean::{FEWEST, clean};
use crate::content::{AT_ONCE as HASHED, Seen, content_hash_heard, content_hash_until};
use crate::converted;
use crate::demand::DemandConfig;
use crate::fast::{Sink, Stop, Told};
use crate::frame::names_of;
use crate::generated::settings;
use crate::guarded::guarded;
use crate::hints::explained;
use crate::input::{Input, inputs};
use crate::mapping::Mapping;
use crate::market::MarketConfig;
use crate::progress::Progress;
use crate::raw::{Gathered, Raw};
use crate::time::Zone;
use crate::timeframes::derive;
use crate::warnings::{LARGE, warn, warn_of, warn_of_arrays};
use crate::{
    Action, Checks, ClipsConfig, ConstantPolicy, CrowdedPolicy, DataConfig, DataError, Defect,
    Finding, Format, Policy, by_series, clips, demand, fast, frame, grouping, market, missing, npy,
    store, ts,
};

/// Data that is ready to be split and cut into windows.
#[derive(Clone, Debug)]
pub struct Ingested {
    /// The series.
    pub set: Arc<SeriesSet>,
    /// What was found in them, and done about it.
    pub checks: Checks,
    /// The name of this result.
    pub key: Key,
    /// Whether it was stored already, and whole.
    pub reused: bool,
}

/// The key of what `config` makes of its files: their contents and names, and the settings. Where Firebox reads
/// something otherwise than an earlier version did, or may, the key is another one than there, too.
///
/// # Errors
///
/// When a file is missing, cannot be read, or is of the wrong kind.
pub fn fingerprint(config: &DataConfig) -> Result<Key, DataError> {
    fingerprint_until(&AtomicBool::new(false), config)
}

/// The same until `stop` is true. Files that nobody wrote in the meantime are not read again for it within a
/// process.
///
/// # Errors
///
/// As [`fingerprint`], and [`DataError::Stopped`].
pub fn fingerprint_until(stop: &AtomicBool, config: &DataConfig) -> Result<Key, DataError> {
    fingerprint_heard(stop, config, &Silent)
}

/// The same with word of how far it is, in the stage `ingest`, of tables that take a while.
///
/// # Errors
///
/// As [`fingerprint_until`].
pub fn fingerprint_heard(
    stop: &AtomicBool,
    config: &DataConfig,
    listener: &dyn Listener,
) -> Result<Key, DataError> {
    let inputs = inputs(config)?;
    key(config, &inputs, (stop, &progress(&inputs, listener)))
}

/// What [`ingest`] found in the data that is stored under a key, if it is there in its full size.
/// Nothing of it is read but its manifest.
pub fn stored_checks(cache: &Path, key: Key) -> Option<Checks> {
    store::peek(cache, key)
}

/// The series that are stored under a key with what was found in them, whatever became of their files. None if they are
/// not there whole, or are converted samples, whose values stay in their shards.
pub fn stored(cache: &Path, key: Key) -> Option<(SeriesSet, Checks)> {
    store::load(cache, key, vec![], &AtomicBool::new(false)).ok().flatten()
}

/// Where [`ingest`] stores the result of a key.
pub fn stored_at(cache: &Path, key: Key) -> PathBuf {
    store::folder(cache, key)
}

/// Reads, checks and stores the data that `config` names, or takes what is stored under its key.
///
/// Sends [`Event::Progress`](firebox_core::Event::Progress) in the stage `ingest`, of tables, arrays and `.ts` files in bytes over all that is
/// done with them and of others in files, and [`Event::Warning`](firebox_core::Event::Warning) for what the user should know.
///
/// # Errors
///
/// When files are missing or broken, do not have the declared columns, or have defects that
/// `config.checks` does not allow.
///
/// # Example
///
/// ```
/// use firebox_core::Silent;
/// use firebox_data::{DataConfig, ingest};
///
/// let folder = tempfile::tempdir()?;
/// let file = folder.path().join("bars.csv");
/// std::fs::write(&file, "time,open,high,low,close\n2024-01-02T00:00,1,2,1,2\n2024-01-02T00:01,2,3,2,3\n")?;
///
/// let config = DataConfig::new(&file);
/// let first = ingest(&config, &folder.path().join("cache"), &Silent)?;
/// assert_eq!((first.set.steps(), first.reused), (2, false));
/// let second = ingest(&config, &folder.path().join("cache"), &Silent)?;
/// assert!(second.reused && second.set == first.set);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn ingest(
    config: &DataConfig,
    cache: &Path,
    listener: &dyn Listener,
) -> Result<Ingested, DataError> {
    ingest_until(&AtomicBool::new(false), config, cache, listener)
}

/// The same until `stop` is true: then it ends at the next part of a file, or of what was read and is checked, changed or
/// stored, and keeps nothing. A table that is held whole is read to its end first.
///
/// # Errors
///
/// As [`ingest`], and [`DataError::Stopped`].
pub fn ingest_until(
    stop: &AtomicBool,
    config: &DataConfig,
    cache: &Path,
    listener: &dyn Listener,
) -> Result<Ingested, DataError> {
    let inputs = inputs(config)?;
    // Shards of converted samples have checksums of their own.
    let plain = inputs.iter().filter(|input| input.format != Format::Samples);
    let read = plain
        .flat_map(|input| std::iter::once(input.path.clone()).chain(label_file(config, input)));
    let seen = Seen::now(read);
    let progress = progress(&inputs, listener);
    // Behind the hashing; what else is found to be needed is told then.
    progress.expect(2);
    let key = key(config, &inputs, (stop, &progress))?;
    // What timeframes are made of is not what is stored.
    let samples = match inputs[0].format == Format::Samples && config.timeframes.is_none() {
        true => {
            refuse_settings(config, Format::Samples)?;
            Some(converted::open_all(&inputs, listener)?)
        }
        false => None,
    };
    let values = samples.iter().flatten().flat_map(Samples::series_values).collect();
    match store::load(cache, key, values, stop) {
        Ok(Some((set, checks))) => {
            let set = with_groups(set, (config, &inputs), Some((cache, key, &seen)), stop)?;
            warn_of(listener, (config, &inputs), (&set, &checks));
            return Ok(Ingested { set: Arc::new(set), checks, key, reused: true });
        }
        Ok(None) => {}
        Err(problem) => {
            DataError::heed(stop)?;
            let folder = store::folder(cache, key);
            let folder = folder.display();
            warn(
                listener,
                format!("the stored series {folder} cannot be used ({problem}) and are made anew"),
            );
        }
    }
    let told = (&progress, listener);
    let stored = read_and_store(config, &inputs, samples, (cache, key), stop, told);
    let is_stored = stored.is_ok();
    let stored = stored.and_then(|(set, checks)| {
        Ok((with_groups(set, (config, &inputs), Some((cache, key, &seen)), stop)?, checks))
    });
    if let Err(changed) = seen.check() {
        // What was stored is under the key of what was there before; what failed may have failed by it.
        if is_stored {
            drop(stored);
            store::remove(cache, key)?;
        }
        return Err(changed);
    }
    let (set, checks) = stored?;
    warn_of(listener, (config, &inputs), (&set, &checks));
    Ok(Ingested { set: Arc::new(set), checks, key, reused: false })
}

/// The series with their groups, which are kept with what is stored, if they have any and it is not known yet. They are
/// read of the files, which have to be what they were when their key was made.
fn with_groups(
    set: SeriesSet,
    (config, inputs): (&DataConfig, &[Input]),
    stored: Option<(&Path, Key, &Seen)>,
    stop: &AtomicBool,
) -> Result<SeriesSet, DataError> {
    if !config.is_grouped() || set.groups() > 0 {
        return Ok(set);
    }
    let groups = grouping::groups(config, inputs, &set, stop);
    let Some((cache, key, seen)) = stored else { return Ok(set.grouped(&groups?)) };
    // What failed may have failed by a change, too.
    seen.check()?;
    let groups = groups?;
    store::keep_groups(cache, key, &groups)?;
    Ok(set.grouped(&groups))
}

fn read_and_store(
    config: &DataConfig,
    inputs: &[Input],
    samples: Option<Vec<Samples>>,
    (cache, key): (&Path, Key),
    stop: &AtomicBool,
    (progress, listener): (&Progress<'_>, &dyn Listener),
) -> Result<(SeriesSet, Checks), DataError> {
    if let Some(samples) = samples {
        progress.begin(0);
        let done = |index| progress.file(index).reached(1, 1);
        match converted::store(inputs, &samples, config, cache, key, &done) {
            Ok(found) => return Ok(found),
            Err(Stop::Failed(error)) => return Err(error),
            Err(_) => {}
        }
    } else {
        let sink = Sink::store(cache, key, stop);
        if let Some(found) = short_way(config, inputs, sink, (progress, listener))? {
            progress.end();
            return Ok(found);
        }
    }
    warn_of_arrays(listener, config, inputs, LARGE);
    match by_series::store(inputs, config, (cache, key), stop, progress) {
        Ok(found) => {
            progress.end();
            return Ok(found);
        }
        Err(Stop::Failed(error)) => return Err(error),
        Err(_) => {}
    }
    // What is counted in files is not stored by files.
    let by_file = !is_by_bytes(inputs[0].format);
    progress.begin(u64::from(!by_file));
    let how = How { fewest: FEWEST, left_out: &[], stop };
    let (set, mut checks) = long_way(config, inputs, how, (progress, listener))?;
    checks.missing_nowhere = missing::unmatched(inputs, config, stop)?;
    if !by_file {
        progress.next();
    }
    store::save((cache, key), &set, &checks, (stop, &progress.all()))?;
    progress.end();
    Ok((set, checks))
}

/// The files that `config` names, in order: those of folders by their names.
///
/// # Errors
///
/// When a file is missing, or of the wrong kind.
pub fn files(config: &DataConfig) -> Result<Vec<PathBuf>, DataError> {
    Ok(inputs(config)?.into_iter().map(|input| input.path).collect())
}

/// Reads and checks the data that `config` names, and stores nothing: for data that is used once. Series without times
/// may have a single step.
///
/// # Errors
///
/// As [`ingest`].
pub fn read(
    config: &DataConfig,
    listener: &dyn Listener,
) -> Result<(SeriesSet, Checks), DataError> {
    read_without(config, &[], listener)
}

/// The same without the channels of these names, whatever they hold, of files that do not name theirs: of tables, only the
/// columns that are asked for are read.
///
/// # Errors
///
/// As [`ingest`].
pub fn read_without(
    config: &DataConfig,
    left_out: &[String],
    listener: &dyn Listener,
) -> Result<(SeriesSet, Checks), DataError> {
    let inputs = inputs(config)?;
    let (set, checks) = read_checked(config, &inputs, left_out, listener)?;
    let set = with_groups(set, (config, &inputs), None, &AtomicBool::new(false))?;
    warn_of(listener, (config, &inputs), (&set, &checks));
    Ok((set, checks))
}

fn read_checked(
    config: &DataConfig,
    inputs: &[Input],
    left_out: &[String],
    listener: &dyn Listener,
) -> Result<(SeriesSet, Checks), DataError> {
    let progress = &progress(inputs, listener);
    let found = match short_way(config, inputs, Sink::Memory, (progress, listener))? {
        Some(found) => found,
        None => {
            progress.begin(0);
            // Without times no interval has to be found, and one step is a series, as it is beside longer ones.
            let fewest = if is_table(inputs[0].format) { FEWEST } else { 1 };
            let how = How { fewest, left_out, stop: &AtomicBool::new(false) };
            long_way(config, inputs, how, (progress, listener))?
        }
    };
    progress.end();
    Ok(found)
}

/// Tables, part by part; none if the long way is to be gone.
fn short_way(
    config: &DataConfig,
    inputs: &[Input],
    sink: Sink<'_>,
    (progress, listener): (&Progress<'_>, &dyn Listener),
) -> Result<Option<(SeriesSet, Checks)>, DataError> {
    refuse_settings(config, inputs[0].format)?;
    let zone = zone(config)?;
    if !is_table(inputs[0].format) {
        return Ok(None);
    }
    let timed = |timed: bool| warn_without_times(listener, !timed);
    match fast::read(inputs, config, &zone, sink, &Told { progress, timed: &timed }) {
        Ok(found) => Ok(Some(found)),
        Err(Stop::Failed(error)) => Err(error),
        Err(_) => Ok(None),
    }
}

/// All rows in memory at once, whatever is wrong with them: files that are no tables, and tables that the short way
/// leaves.
/// How the long way is gone.
struct How<'a> {
    /// Steps that the longest series has at least.
    fewest: usize,
    /// Names of channels that are taken out before anything is looked at.
    left_out: &'a [String],
    stop: &'a AtomicBool,
}

fn long_way(
    config: &DataConfig,
    inputs: &[Input],
    How { fewest, left_out, stop }: How<'_>,
    (progress, listener): (&Progress<'_>, &dyn Listener),
) -> Result<(SeriesSet, Checks), DataError> {
    refuse_settings(config, inputs[0].format)?;
    let zone = zone(config)?;
    let table = is_table(inputs[0].format);
    let read = |input: &Input| {
        DataError::heed(stop)?;
        read_one(config, input, &zone)
    };
    let all_of = |batch: &[Input]| batch.par_iter().map(read).collect::<Vec<_>>();
    let mut raw = together(batches(inputs, AT_ONCE).flat_map(all_of), inputs, progress)?;
    raw.take_out(left_out);
    warn_without_times(listener, table && raw.time.is_none());
    DataError::heed(stop)?;
    let (set, checks) = cleaned_of(raw, fewest, config)?;
    let checked = with_timeframes(set, checks, config)?;
    DataError::heed(stop)?;
    Ok(checked)
}

/// Bytes of files that are read at once, one on each processor. A file of more is read alone, on all of them.
pub(crate) const AT_ONCE: u64 = 16 << 20;

/// The files in their order, small ones several at a time: most of the time that one takes is that of beginning.
pub(crate) fn batches(inputs: &[Input], at_once: u64) -> impl Iterator<Item = &[Input]> {
    let length =
        move |input: &Input| fs::metadata(&input.path).map_or(at_once, |found| found.len());
    let mut bytes = inputs.first().map_or(0, length);
    inputs.chunk_by(move |_, next| {
        let own = length(next);
        let fits = bytes.saturating_add(own) <= at_once;
        bytes = if fits { bytes + own } else { own };
        fits
    })
}

fn zone(config: &DataConfig) -> Result<Zone, DataError> {
    Zone::named(config.columns.time_zone.as_deref()).map_err(|nearest| {
        let zone = config.columns.time_zone.clone().unwrap_or_default();
        DataError::TimeZone { zone, nearest }
    })
}

fn is_table(format: Format) -> bool {
    matches!(format, Format::Csv | Format::Parquet | Format::Arrow)
}

/// Whether how far the reading of such files is is told within each of them, which is read part by part.
fn is_by_bytes(format: Format) -> bool {
    is_table(format) || matches!(format, Format::Npy | Format::Ts)
}

/// Who tells how much of these files is done: of those that are read part by part, in bytes.
fn progress<'a>(inputs: &[Input], listener: &'a dyn Listener) -> Progress<'a> {
    let by_bytes = is_by_bytes(inputs[0].format);
    let length = |input: &Input| match by_bytes {
        true => fs::metadata(&input.path).map_or(1, |found| found.len()),
        false => 1,
    };
    let unit = if by_bytes { "bytes" } else { "files" };
    Progress::of(listener, unit, inputs.iter().map(length))
}

fn warn_without_times(listener: &dyn Listener, without: bool) {
    if without {
        warn(
            listener,
            "the files have no column of times (none is declared in `data.columns.time`, and none has a usual name): rows are taken in their order, and gaps are not looked for".to_owned(),
        );
    }
}

/// The checks, and the making of timeframes.
pub(crate) fn checked(raw: Raw, config: &DataConfig) -> Result<(SeriesSet, Checks), DataError> {
    let (set, checks) = cleaned(raw, config)?;
    with_timeframes(set, checks, config)
}

/// The checks alone. Where constant channels are left out, so are those without any value.
pub(crate) fn cleaned(raw: Raw, config: &DataConfig) -> Result<(SeriesSet, Checks), DataError> {
    cleaned_of(raw, FEWEST, config)
}

/// The same of series of which the longest has so many steps at least.
fn cleaned_of(
    mut raw: Raw,
    fewest: usize,
    config: &DataConfig,
) -> Result<(SeriesSet, Checks), DataError> {
    let dropped = match config.checks.constant {
        ConstantPolicy::Drop => drop_void(&mut raw)?,
        ConstantPolicy::Error | ConstantPolicy::Keep => vec![],
    };
    let named = raw.by.is_some();
    let (set, mut checks) = clean(raw, fewest, config.interval, &config.checks)
        .map_err(|error| explained(error, config, named))?;
    checks.findings.extend(dropped);
    Ok((set, checks))
}

/// Leaves out the channels that have no finite value in any series.
pub(crate) fn drop_void(raw: &mut Raw) -> Result<Vec<Finding>, DataError> {
    let is_void = |channel: &usize| {
        let mut columns = raw.series.iter().map(|series| &series.columns[*channel]);
        !columns.any(|column| column.iter().any(|value| value.is_finite()))
    };
    let void: Vec<usize> = (0..raw.channels.len()).filter(is_void).collect();
    if void.is_empty() {
        return Ok(vec![]);
    }
    if void.len() == raw.channels.len() {
        let channels = raw.channels.iter().map(|channel| channel.name.clone()).collect();
        return Err(DataError::AllConstant { channels });
    }
    let series = raw.series.len();
    let mut findings = Vec::with_capacity(void.len());
    for channel in void.into_iter().rev() {
        raw.series.iter_mut().for_each(|series| drop(series.columns.remove(channel)));
        findings.push(void_finding(raw.channels.remove(channel).name, series));
    }
    findings.reverse();
    Ok(findings)
}

/// What is said of a channel that has no finite value in so many series, and is left out.
pub(crate) fn void_finding(channel: String, series: usize) -> Finding {
    Finding {
        defect: Defect::Constant,
        channel: Some(channel),
        count: 1,
        series: series as u64,
        action: Action::Dropped,
        detail: "no value is finite".to_owned(),
    }
}

pub(crate) fn with_timeframes(
    set: SeriesSet,
    mut checks: Checks,
    config: &DataConfig,
) -> Result<(SeriesSet, Checks), DataError> {
    let Some(frames) = &config.timeframes else { return Ok((set, checks)) };
    let (set, made) = derive(&set, frames, checks.interval)?;
    checks.timeframes = Some(made);
    Ok((set, checks))
}

/// Everything that the files hold, before any check.
pub(crate) fn raw(config: &DataConfig, listener: &dyn Listener) -> Result<Raw, DataError> {
    let inputs = inputs(config)?;
    refuse_settings(config, inputs[0].format)?;
    let zone = zone(config)?;
    let progress = &progress(&inputs, listener);
    progress.begin(0);
    together(inputs.iter().map(|input| read_one(config, input, &zone)), &inputs, progress)
}

fn key(
    config: &DataConfig,
    inputs: &[Input],
    (stop, progress): (&AtomicBool, &Progress<'_>),
) -> Result<Key, DataError> {
    // Where the files lie does not matter, so the settings are taken without the paths.
    let settings = DataConfig {
        path: crate::Paths::default(),
        test: config.test.as_ref().map(|_| crate::Paths::default()),
        format: inputs[0].format,
        ..config.clone()
    };
    let settings = serde_json::to_vec(&settings)
        .map_err(|error| DataError::io("encode", Path::new("the settings"))(error.into()))?;
    let (all, done) = (progress.pass() as usize, AtomicUsize::new(0));
    let hashed = |bytes: usize| {
        // What is hashed at once is not worth a word.
        if is_by_bytes(inputs[0].format) && all > HASHED && bytes > 0 {
            progress.all().reached(done.fetch_add(bytes, Ordering::Relaxed) + bytes, all);
        }
        DataError::heed(stop)
    };
    let hashes: Vec<blake3::Hash> = inputs
        .par_iter()
        .map(|input| content_hash_heard(&input.path, &hashed))
        .collect::<Result<_, _>>()?;
    refuse_copies(inputs, &hashes)?;
    let mut key = Key::builder("series", store::KEY_VERSION).field("settings", settings);
    if inputs[0].format == Format::Market {
        key = key.field("generator", market::VERSION.to_le_bytes());
    }
    if inputs[0].format == Format::Demand {
        key = key.field("generator", demand::VERSION.to_le_bytes());
    }
    if inputs[0].format == Format::Clips {
        key = key.field("generator", clips::VERSION.to_le_bytes());
    }
    if inputs[0].format == Format::Samples {
        key = key.field("read", "in place");
    }
    // A CSV file that ends within a row is refused, and was not once. That is no part of the key: what was stored of one is
    // still taken, so that nobody who has whole files reads and trains anew.
    if inputs[0].format == Format::Npy {
        // Sets of mixed types were stored once, and are refused.
        key = key.field("types", "alike");
    }
    if is_table(inputs[0].format) {
        // What a name of a column and of a file means was once decided by the order of the files.
        key = key.field("names", "told apart");
    }
    if is_table(inputs[0].format) && config.columns.label.is_some() {
        // It was a class once.
        key = key.field("label", "NaN is none");
    }
    if inputs[0].format == Format::Csv && !config.csv.missing.is_empty() {
        // One with a blank before it was a number once.
        key = key.field("missing", "with blanks");
    }
    let may_be_bars = || config.columns.channels.iter().any(|channel| channel.role().is_price());
    let carries = config.checks.not_finite == Policy::Fill;
    if carries && (is_table(inputs[0].format) || may_be_bars()) {
        // Values were once carried over gaps, and broke the bars that they were put into.
        key = key.field("carried", "within bars, and over no gap");
    }
    if config.is_grouped() {
        // 7 and 7.0 were once two.
        key = key.field("groups", "by their numbers");
    }
    if inputs.par_iter().any(|input| was_another(input, config)) {
        // Which column is the time was once decided by their order, and the numbers of rows were learnt from.
        key = key.field("columns", "by their names");
    }
    if config.checks.fills() {
        // Which values were put in was not kept once.
        key = key.field("filled", "kept");
    }
    if config.checks.crowded == CrowdedPolicy::Drop {
        // Of rows of a higher rate, the one stayed once that the next one showed to be the nearest.
        key = key.field("crowded", "by the rows before");
    }
    if config.columns.time_zone.is_some() {
        // Which of two moments a clock showed was once told by the row before, of whatever series; and by no step.
        key = key.field("clocks", "of each series, by its steps");
    }
    if config.timeframes.is_some() {
        // Closes that are all alike were half a band below or above their mean once, by rounding.
        key = key.field("bollinger", "alike is none");
    }
    for (input, hash_of_file) in inputs.iter().zip(hashes) {
        key = key
            .field("name", input.name())
            .field("origin", format!("{:?}", input.origin))
            .field("content", hash_of_file.as_bytes());
        if let Some(labels) = labels_there(config, input)? {
            key = key.field("labels", content_hash_until(&labels, stop)?.as_bytes());
        }
    }
    Ok(key.finish())
}

/// Whether what is read of the columns of a table was once something else.
fn was_another(input: &Input, config: &DataConfig) -> bool {
    names_of(input, config)
        .is_some_and(|(names, _)| Mapping::was_another(&input.path, &names, &config.columns))
}

/// Refuses a file that is both trained and tested on, and one that is named twice.
fn refuse_copies(inputs: &[Input], hashes: &[blake3::Hash]) -> Result<(), DataError> {
    let mut by_content = HashMap::new();
    for (input, hash) in inputs.iter().zip(hashes) {
        let known: &mut Vec<&Input> = by_content.entry(hash.as_bytes()).or_default();
        for first in known.iter() {
            if first.origin != input.origin {
                let (train, test) = (first.path.clone(), input.path.clone());
                return Err(DataError::TestIsTrain { train, test });
            }
            // Two samples may be equal; one file read twice is a mistake.
            let [a, b] = [&first.path, &input.path].map(fs::canonicalize);
            if matches!((a, b), (Ok(a), Ok(b)) if a == b) {
                let (first, second) = (first.path.clone(), input.path.clone());
                return Err(DataError::SamePath { first, second });
            }
        }
        known.push(input);
    }
    Ok(())
}

/// The file with the labels of an array.
pub(crate) fn label_file(config: &DataConfig, input: &Input) -> Option<PathBuf> {
    let label = config.columns.label.as_ref().filter(|_| input.format == Format::Npy)?;
    Some(input.path.with_file_name(format!("{}.{label}.npy", input.stem())))
}

/// The same, refused if it is not there.
fn labels_there(config: &DataConfig, input: &Input) -> Result<Option<PathBuf>, DataError> {
    match label_file(config, input) {
        Some(path) if !path.exists() => {
            let label = config.columns.label.clone().unwrap_or_default();
            Err(DataError::NoLabelFile { path, of: input.path.clone(), label })
        }
        found => Ok(found),
    }
}

/// What all files give, with their classes in order.
fn together(
    pieces: impl Iterator<Item = Result<Raw, DataError>>,
    inputs: &[Input],
    progress: &Progress<'_>,
) -> Result<Raw, DataError> {
    let mut all = Gathered::default();
    for (index, raw) in pieces.enumerate() {
        all.add(raw?)?;
        progress.file(index).reached(1, 1);
    }
    let mut all = all.finish();
    if !matches!(
        inputs[0].format,
        Format::Ts | Format::Market | Format::Demand | Format::Clips | Format::Samples
    ) {
        all.sort_classes();
    }
    all.separate_names();
    Ok(all)
}

/// Everything that one file holds.
pub(crate) fn read_one(config: &DataConfig, input: &Input, zone: &Zone) -> Result<Raw, DataError> {
    let Input { path, format, origin, .. } = input;
    let bytes = |path: &Path| fs::read(path).map_err(DataError::io("read", path));
    match format {
        Format::Npy | Format::Ts => {
            let mut whole = Raw::default();
            each_part(config, input, usize::MAX, |part, _| -> Result<(), DataError> {
                whole = part;
                Ok(())
            })?;
            Ok(whole)
        }
        Format::Market => settings::<MarketConfig>(path, &bytes(path)?)?.raw(path, *origin),
        Format::Demand => settings::<DemandConfig>(path, &bytes(path)?)?.raw(path, *origin),
        Format::Clips => settings::<ClipsConfig>(path, &bytes(path)?)?.raw(path, *origin),
        Format::Samples => converted::raw(input, config),
        Format::Auto | Format::Csv | Format::Parquet | Format::Arrow => {
            guarded(input, || frame::load(input, config)?.reading(zone).series())?
        }
    }
}

/// Reads an array or a `.ts` file, series of so many bytes at once, or one: of an array as it is held, of text as it is written. `take` is told how many series have been
/// read, of how many.
pub(crate) fn each_part<E: From<DataError>>(
    config: &DataConfig,
    input: &Input,
    at_once: usize,
    take: impl FnMut(Raw, [usize; 2]) -> Result<(), E>,
) -> Result<(), E> {
    let path = &input.path;
    let names = &config.columns.channels;
    let file = File::open(path).map_err(DataError::io("read", path))?;
    if input.format == Format::Ts {
        return ts::each_part(
            (input, names),
            BufReader::with_capacity(1 << 20, file),
            at_once,
            take,
        );
    }
    let bytes = file.metadata().map_err(DataError::io("read", path))?.len();
    let labels = match labels_there(config, input)? {
        Some(path) => {
            let bytes = fs::read(&path).map_err(DataError::io("read", &path))?;
            Some((path, bytes))
        }
        None => None,
    };
    let labels = labels.as_ref().map(|(path, bytes)| (path.as_path(), &bytes[..]));
    npy::each_part((input, names), (file, bytes), labels, at_once, take)
}

/// Settings that would be ignored are refused instead.
fn refuse_settings(config: &DataConfig, format: Format) -> Result<(), DataError> {
    let columns = &config.columns;
    let table = is_table(format);
    let generated = matches!(format, Format::Market | Format::Demand);
    let has_times = table || generated;
    let rules = [
        (
            !table && columns.time.is_some(),
            "columns.time",
            "the steps of these files have no column of times",
        ),
        (!table && columns.time_zone.is_some(), "columns.time_zone", "remove it"),
        (!table && columns.time_unit != crate::TimeUnit::Auto, "columns.time_unit", "remove it"),
        (
            !table && columns.series.is_some(),
            "columns.series",
            "the series of these files are named by the files",
        ),
        (
            !table && columns.group.is_some(),
            "columns.group",
            "these files have no such column; `data.group_pattern` finds groups in the names of series",
        ),
        (
            columns.group.is_some() && config.group_pattern.is_some(),
            "group_pattern",
            "`data.columns.group` names the groups",
        ),
        (
            matches!(format, Format::Ts | Format::Market | Format::Clips | Format::Samples)
                && columns.label.is_some(),
            "columns.label",
            "the classes are in the file itself",
        ),
        (format == Format::Demand && columns.label.is_some(), "columns.label", "it has no classes"),
        (
            generated && !columns.channels.is_empty(),
            "columns.channels",
            "a market has open, high, low and close, and demand has demand, size and homes",
        ),
        (
            format == Format::Clips && !columns.channels.is_empty(),
            "columns.channels",
            "generated clips have channels without names",
        ),
        (!has_times && config.interval.is_some(), "interval", "its steps have no times"),
        (format != Format::Csv && config.csv != crate::Csv::default(), "csv", "remove it"),
    ];
    match rules.into_iter().find(|(broken, ..)| *broken) {
        Some((_, key, hint)) => Err(DataError::NotApplicable { key, format, hint }),
        // Before anything is read.
        None => config.group_pattern.as_deref().map_or(Ok(()), |p| grouping::compiled(p).map(drop)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_a_file_that_was_changed_are_not_kept_with_what_is_stored() {
        let folder = tempfile::tempdir().unwrap();
        let (path, cache) = (folder.path().join("a.csv"), folder.path().join("cache"));
        let rows = "2024-01-01,r1,Ann,1\n2024-01-02,r1,Ann,2\n2024-01-03,r1,Ann,4\n";
        let text = format!("time,recording,subject,x\n{rows}");
        fs::write(&path, &text).unwrap();
        let mut config = DataConfig::new(&path);
        config.columns.series = Some("recording".to_owned());
        config.columns.group = Some("subject".to_owned());
        let Ingested { key, .. } = ingest(&config, &cache, &Silent).unwrap();
        // As a run that was killed before it had read the groups left it.
        let manifest = store::folder(&cache, key).join("manifest.json");
        let whole = fs::read_to_string(&manifest).unwrap();
        let mut bare: serde_json::Value = serde_json::from_str(&whole).unwrap();
        assert!(bare["series"][0].as_object_mut().unwrap().remove("group").is_some());
        assert!(bare.as_object_mut().unwrap().remove("checksum").is_some());
        fs::write(&manifest, bare.to_string()).unwrap();
        let stop = AtomicBool::new(false);
        let (set, _) = store::load(&cache, key, vec![], &stop).unwrap().unwrap();
        let (inputs, seen) = (inputs(&config).unwrap(), Seen::now([path.clone()]));
        let grouped =
            |set| with_groups(set, (&config, &inputs), Some((cache.as_path(), key, &seen)), &stop);
        fs::write(&path, text.replace("Ann", "Dorothy")).unwrap();
        assert!(matches!(grouped(set.clone()), Err(DataError::Changed { .. })));
        assert_eq!(fs::read_to_string(&manifest).unwrap(), bare.to_string());
        // With what it says now, a file that cannot be grouped is told to be another, too.
        fs::write(&path, text.replacen("Ann", "Dee", 1)).unwrap();
        assert!(matches!(grouped(set), Err(DataError::Changed { .. })));
    }
}
