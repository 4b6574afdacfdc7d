//! The store as a whole: same bytes, damage, several runs at once, pruning.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use firebox_cache::{AUGMENTED, CacheError, REMOTE, SERIES, Shards, Store, TOKENS, augmented_key};
use firebox_core::*;

const SEED: u64 = 42;

/// Bars of two labelled series of unequal length, cut into windows.
fn split_of(rule: WindowRule, steps: &[usize]) -> Split {
    let roles =
        [("open", Role::Open), ("high", Role::High), ("low", Role::Low), ("close", Role::Close)];
    let channels = roles.map(|(name, role)| Channel::new(name, role)).to_vec();
    let series = steps.iter().enumerate().map(|(index, steps)| {
        let mut draws = Stream::new(index as u64, "bars").draws();
        let mut close = 100.0;
        let bars = (0..*steps).flat_map(|_| {
            let open = close;
            close += draws.normal();
            let high = f64::max(open, close) + draws.uniform_f64();
            let low = f64::min(open, close) - draws.uniform_f64();
            [open, high, low, close]
        });
        Series {
            labels: StepLabels::Whole(index as u32 % 2),
            origin: if index == 0 { Origin::Test } else { Origin::Train },
            ..Series::regular(format!("s{index}"), 0, 60_000_000, bars.collect(), 4)
        }
    });
    let classes = vec!["up".to_owned(), "down".to_owned()];
    let set = Arc::new(SeriesSet::new(channels, classes, series.collect()).unwrap());
    split(
        &set,
        &rule,
        &SplitRule::Given { validation: 0.0, seed: 0, equal: EqualPolicy::Keep },
        &Labels::Last,
    )
    .unwrap()
}

struct Case {
    train: TrainWindows,
    normaliser: Normaliser,
    augmentation: Augmentation,
    seed: u64,
}

impl Case {
    fn new() -> Self {
        let rule = WindowRule { length: 24, stride: 3, whole: false };
        Self::with(split_of(rule, &[50, 200, 150]).train, Normalisation::WindowRelative)
    }

    fn with(train: TrainWindows, normalisation: Normalisation) -> Self {
        let normaliser = Normaliser::fit(normalisation, &train).unwrap();
        let augmentation = Augmentation { versions: 3, ..Augmentation::default() };
        Self { train, normaliser, augmentation, seed: SEED }
    }

    fn key(&self) -> Key {
        augmented_key(Key::builder("test", 1).finish(), &self.augmentation, self.seed)
    }

    fn make(&self, store: &Store) -> Result<Shards, CacheError> {
        self.make_with(store, &Silent)
    }

    fn make_with(&self, store: &Store, listener: &dyn Listener) -> Result<Shards, CacheError> {
        let Self { train, normaliser, augmentation, seed } = self;
        store.augmented(self.key(), train, normaliser, augmentation, *seed, listener)
    }

    /// Makes the shards again and returns the warnings that it caused.
    fn warnings(&self, store: &Store) -> (Shards, Vec<String>) {
        let warnings = Mutex::new(Vec::new());
        let listener = |event: &Event| {
            if let Event::Warning { message } = event {
                warnings.lock().unwrap().push(message.clone());
            }
        };
        let shards = self.make_with(store, &listener).unwrap();
        (shards, warnings.into_inner().unwrap())
    }
}

/// A store with shards of a few windows each.
fn store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap().with_shard_bytes(24 * 4 * 4 * 4 * 7);
    (folder, store)
}

fn content(shards: &Shards) -> Vec<(Vec<f32>, firebox_cache::Record)> {
    let [time, channel] = shards.window_shape();
    (0..shards.len())
        .map(|index| {
            let mut values = vec![f32::NAN; time * channel];
            let record = shards.read(index, &mut values);
            (values, record)
        })
        .collect()
}

fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .map(|path| (path.file_name().unwrap().into(), fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}

fn with_threads<T: Send>(threads: usize, run: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(run)
}

#[test]
fn records_hold_every_version_of_every_window_in_order() {
    let (_folder, store) = store();
    let case = Case::new();
    let shards = case.make(&store).unwrap();
    assert!(!shards.reused());
    assert_eq!(shards.len(), case.train.len() * 4);
    assert_eq!(shards.window_shape(), [24, 4]);
    assert_eq!(shards.classes(), ["up", "down"]);
    let mut original = vec![0.0; 24 * 4];
    let mut augmented = 0;
    for (index, (values, record)) in content(&shards).into_iter().enumerate() {
        assert_eq!((record.window, record.version), (index as u32 / 4, index as u32 % 4));
        let window = &case.train.windows().at(index / 4);
        assert_eq!((record.length, record.label), (window.length, window.label));
        case.normaliser.apply(case.train.set(), window, &mut original);
        if record.version == 0 {
            assert_eq!(values, original);
        } else {
            augmented += usize::from(values != original);
        }
        for bar in values.chunks_exact(4) {
            assert!(bar[1] >= bar[0].max(bar[3]) && bar[2] <= bar[0].min(bar[3]));
        }
    }
    // A version without any augmentation has a probability of 0.5 · 0.7 · 0.5 · 0.7 = 0.1225.
    let share = augmented as f64 / (case.train.len() * 3) as f64;
    assert!((share - 0.8775).abs() < 0.1, "{share}");
}

#[test]
fn bytes_depend_on_the_seed_alone_not_on_threads() {
    let case = Case::new();
    let bytes = |case: &Case, threads| {
        let (_folder, store) = store();
        files(with_threads(threads, || case.make(&store)).unwrap().path())
    };
    let one = bytes(&case, 1);
    assert!(one.len() > 4, "several shards and a manifest");
    assert_eq!(one, bytes(&case, 2));
    assert_eq!(one, bytes(&case, 7));
    assert_ne!(one, bytes(&Case { seed: 43, ..Case::new() }, 2));
}

#[test]
fn records_do_not_depend_on_the_size_of_shards() {
    let case = Case::new();
    let (_a, small) = store();
    let (_b, large) = store();
    let large = large.with_shard_bytes(64 << 20);
    let (small, large) = (case.make(&small).unwrap(), case.make(&large).unwrap());
    assert_eq!(files(large.path()).len(), 2);
    assert_eq!(content(&small), content(&large));
}

#[test]
fn shorter_windows_end_in_zeros() {
    let rule = WindowRule { length: 40, stride: 1, whole: true };
    let train = split_of(rule, &[9, 12, 1, 33, 40, 64]).train;
    let case = Case::with(train, Normalisation::WindowRelative);
    let (_folder, store) = store();
    let shards = case.make(&store).unwrap();
    assert_eq!(shards.window_shape(), [40, 4]);
    let lengths: Vec<u32> = content(&shards)
        .into_iter()
        .map(|(values, record)| {
            let valid = record.length as usize * 4;
            assert!(values[valid..].iter().all(|value| *value == 0.0));
            assert!(record.length == 1 || values[..valid].iter().any(|value| *value != 0.0));
            record.length
        })
        .step_by(4)
        .collect();
    assert_eq!(lengths, [12, 1, 33, 40, 40]);
}

#[test]
fn order_is_restored_in_raw_prices_when_each_channel_has_its_own_scale() {
    let rule = WindowRule { length: 24, stride: 3, whole: false };
    for kind in [Normalisation::Standard, Normalisation::Robust, Normalisation::WindowStandard] {
        let mut case = Case::with(split_of(rule, &[50, 300]).train, kind);
        case.augmentation.jitter = Jitter { probability: 1.0, sigma: 0.5 };
        let (_folder, store) = store();
        let shards = case.make(&store).unwrap();
        let mut violated = false;
        for (values, record) in content(&shards) {
            let window = &case.train.windows().at(record.window as usize);
            let maps: Vec<_> = (0..4)
                .map(|c| case.normaliser.center_and_scale(case.train.set(), window, c))
                .collect();
            for bar in values.chunks_exact(4) {
                violated |= bar[1] < bar[3];
                let raw: Vec<f64> =
                    (0..4).map(|c| f64::from(bar[c]) * maps[c][1] + maps[c][0]).collect();
                assert!(raw[1] >= raw[0].max(raw[3]) - 1e-4, "{kind:?}: {raw:?}");
                assert!(raw[2] <= raw[0].min(raw[3]) + 1e-4, "{kind:?}: {raw:?}");
            }
        }
        // The normalised values themselves have no such order: the test would see it forced.
        assert!(violated, "{kind:?}");
    }
}

#[test]
fn half_precision_is_close_and_half_the_size() {
    let exact = Case::new();
    let (_folder, store) = store();
    let full = exact.make(&store).unwrap();
    for (storage, tolerance) in [(Storage::F16, 4.9e-4), (Storage::Bf16, 3.9e-3)] {
        let mut case = Case::new();
        case.augmentation.storage = storage;
        let half = case.make(&store).unwrap();
        assert!(half.bytes() < full.bytes() * 6 / 10);
        for ((a, about_a), (b, about_b)) in content(&full).into_iter().zip(content(&half)) {
            assert_eq!(about_a, about_b);
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= tolerance * a.abs() + 1e-7));
        }
    }
}

#[test]
fn values_that_became_zeros_are_told_of_by_every_run() {
    // One of two channels is too small for f16, however its windows are scaled and warped.
    let values = (0..300_u32).flat_map(|step| [1e-9, 1.0 + f64::from(step)]).collect();
    let series = Series::regular("x", 0, 1, values, 2);
    let channels = ["small", "large"].map(|name| Channel::new(name, Role::Other)).to_vec();
    let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
    let rule = WindowRule { length: 24, stride: 3, whole: false };
    let parts = split(&set, &rule, &SplitRule::time(0.0, 0.0), &Labels::None).unwrap();
    let mut case = Case::with(parts.train, Normalisation::None);
    case.augmentation.storage = Storage::F16;
    case.augmentation.jitter.probability = 0.0;
    let (_folder, store) = store();
    let (made, first) = case.warnings(&store);
    let told = "50.0 % of the values are nearer to 0 than f16 can tell";
    assert!(!made.reused() && first.len() == 1 && first[0].starts_with(told), "{first:?}");
    let shard = made.path().join("shard-00001.arrow");
    drop(made);
    let (again, second) = case.warnings(&store);
    assert!(again.reused());
    assert_eq!(second, first);
    drop(again);
    // A shard that is made again is one of those that were counted.
    fs::write(&shard, "not a shard").unwrap();
    let (_, mended) = case.warnings(&store);
    assert_eq!((mended.len(), &mended[1]), (2, &first[0]));
    // Of other entries nothing is kept, so that those of before are as they were.
    case.augmentation.storage = Storage::Bf16;
    let (made, none) = case.warnings(&store);
    assert!(none.is_empty(), "{none:?}");
    let manifest = fs::read_to_string(made.path().join("manifest.json")).unwrap();
    assert!(!manifest.contains("zeros"), "{manifest}");
}

#[test]
fn values_beyond_the_storage_type_are_refused_by_name() {
    let rule = WindowRule { length: 24, stride: 3, whole: false };
    let train = split_of(rule, &[50, 200]).train;
    let mut case = Case::with(train, Normalisation::None);
    case.augmentation.storage = Storage::F16;
    case.augmentation.scaling = Scaling { probability: 1.0, sigma: 1e6 };
    let (folder, store) = store();
    let message = case.make(&store).unwrap_err().to_string();
    assert!(message.contains("does not fit into f16"), "{message}");
    assert!(message.contains("f32 or bf16") && message.contains("step "), "{message}");
    assert_eq!(fs::read_dir(folder.path().join(AUGMENTED)).unwrap().count(), 0);
}

#[test]
fn a_second_run_reuses_and_other_inputs_under_one_key_are_refused() {
    let (_folder, store) = store();
    let case = Case::new();
    let first = case.make(&store).unwrap();
    let (second, warnings) = case.warnings(&store);
    assert!(second.reused() && warnings.is_empty());
    assert_eq!(content(&first), content(&second));
    let check = |augmentation: &Augmentation, seed, what: &str| {
        let Case { train, normaliser, .. } = &case;
        let error = store
            .augmented(case.key(), train, normaliser, augmentation, seed, &Silent)
            .unwrap_err();
        assert!(matches!(&error, CacheError::OtherInputs { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    };
    check(&case.augmentation, SEED + 1, "another seed");
    check(&Augmentation { versions: 2, ..case.augmentation.clone() }, SEED, "augmentations");
    // Keys that cover them do not collide.
    let other = Case { seed: SEED + 1, ..Case::new() };
    assert!(!other.make(&store).unwrap().reused());
}

#[test]
fn only_damaged_shards_are_made_again() {
    let (_folder, store) = store();
    let case = Case::new();
    let path = case.make(&store).unwrap().path().to_owned();
    let whole = files(&path);
    let shard = |index: usize| path.join(format!("shard-{index:05}.arrow"));
    let modified = |index| fs::metadata(shard(index)).unwrap().modified().unwrap();
    let untouched = modified(1);
    let check = |damage: &dyn Fn(), named: &[&str]| {
        damage();
        let found = store.verify().unwrap();
        let damaged: Vec<_> = found[0].damaged.iter().map(|(path, _)| path.clone()).collect();
        assert_eq!(damaged, named.iter().map(|name| path.join(name)).collect::<Vec<_>>());
        let (shards, warnings) = case.warnings(&store);
        assert!(!shards.reused());
        assert_eq!(warnings.len(), named.len(), "{warnings:?}");
        assert!(warnings.iter().zip(named).all(|(warning, name)| warning.contains(name)));
        assert_eq!(files(&path), whole);
        assert!(store.verify().unwrap()[0].damaged.is_empty());
        assert!(case.make(&store).unwrap().reused());
    };
    let flip = |index: usize, at: usize| {
        let mut bytes = fs::read(shard(index)).unwrap();
        let at = at % bytes.len();
        bytes[at] ^= 1;
        fs::write(shard(index), bytes).unwrap();
    };
    check(&|| flip(0, 5_000), &["shard-00000.arrow"]);
    check(&|| flip(2, 0), &["shard-00002.arrow"]);
    check(&|| flip(0, usize::MAX), &["shard-00000.arrow"]);
    let truncate = |index: usize, length| {
        fs::File::options().write(true).open(shard(index)).unwrap().set_len(length).unwrap();
    };
    check(&|| truncate(0, 100), &["shard-00000.arrow"]);
    check(&|| truncate(2, 0), &["shard-00002.arrow"]);
    check(&|| fs::remove_file(shard(0)).unwrap(), &["shard-00000.arrow"]);
    let two = || {
        flip(0, 700);
        fs::remove_file(shard(2)).unwrap();
    };
    check(&two, &["shard-00000.arrow", "shard-00002.arrow"]);
    assert_eq!(modified(1), untouched);
}

#[test]
fn mending_keeps_the_size_of_shards() {
    let (folder, small) = store();
    let case = Case::new();
    let path = case.make(&small).unwrap().path().to_owned();
    let whole = files(&path);
    fs::remove_file(path.join("shard-00001.arrow")).unwrap();
    let large = Store::open(folder.path()).unwrap();
    assert_eq!(case.warnings(&large).1.len(), 1);
    assert_eq!(files(&path), whole);
}

#[test]
fn results_of_other_buckets_are_verified_and_held() {
    let (folder, store) = store();
    let key = Key::builder("series", 1).finish();
    let entry = folder.path().join(SERIES).join(key.to_string());
    fs::create_dir_all(&entry).unwrap();
    fs::write(entry.join("values.npy"), "values").unwrap();
    let damage = |manifest: String| {
        fs::write(entry.join("manifest.json"), manifest).unwrap();
        let verified = store.verify().unwrap().remove(0);
        verified.damaged.into_iter().map(|(_, damage)| damage.to_string()).collect::<Vec<_>>()
    };
    let hash = blake3::hash(b"values").to_hex();
    // The one checksum of the only file, as token files have it, or a list of files.
    assert!(damage(format!(r#"{{"blake3": "{hash}"}}"#)).is_empty());
    let listed = format!(r#"{{"name": "values.npy", "bytes": 6, "blake3": "{hash}"}}"#);
    assert!(damage(format!(r#"{{"files": [{listed}]}}"#)).is_empty());
    assert!(damage(r#"{"blake3": "00"}"#.to_owned())[0].contains("checksum"));
    // With a checksum of its own text, which is stated within it.
    let stating = |own: &str| format!(r#"{{"files": [{listed}], "rows": 6, "checksum": "{own}"}}"#);
    let own = blake3::hash(stating("").as_bytes()).to_hex().to_string();
    assert!(damage(stating(&own)).is_empty());
    let said = damage(stating(&own).replace("\"rows\": 6", "\"rows\": 7"));
    assert!(said.len() == 1 && said[0].contains("checksum"), "{said:?}");
    assert!(damage("{".to_owned())[0].contains("the manifest is broken"));
    let held = store.hold(SERIES, key).unwrap();
    assert_eq!(store.prune(0).unwrap().kept_in_use.len(), 1);
    drop(held);
    assert_eq!(store.prune(0).unwrap().removed.len(), 1);
}

#[test]
fn a_result_whose_only_file_is_gone_is_not_complete() {
    let (folder, _store) = store();
    let key = Key::builder("texts", 1).finish();
    let entry = folder.path().join(TOKENS).join(key.to_string());
    fs::create_dir_all(&entry).unwrap();
    let is_complete = || Store::complete(folder.path(), TOKENS, key);
    assert!(!is_complete(), "an empty folder");
    fs::write(entry.join("manifest.json"), r#"{"blake3": "00"}"#).unwrap();
    assert!(!is_complete(), "the manifest alone");
    fs::write(entry.join("tokens.json"), "{}").unwrap();
    assert!(is_complete());
}

#[test]
fn a_damaged_manifest_means_that_all_is_made_again() {
    let (_folder, store) = store();
    let case = Case::new();
    let path = case.make(&store).unwrap().path().to_owned();
    let whole = files(&path);
    let manifest = path.join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    let check = |content: &[u8]| {
        fs::write(&manifest, content).unwrap();
        let (shards, warnings) = case.warnings(&store);
        assert!(!shards.reused() && warnings.len() == 1, "{warnings:?}");
        assert_eq!(files(&path), whole);
    };
    check(b"");
    check(b"\xff\xfe");
    check(&text.as_bytes()[..text.len() / 2]);
    check(text.replace("\"seed\": 42", "\"seed\": 43").as_bytes());
    fs::remove_file(&manifest).unwrap();
    assert!(store.list().unwrap().stored.is_empty());
    assert!(!case.make(&store).unwrap().reused());
    assert_eq!(files(&path), whole);
}

#[test]
fn many_at_once_make_one_entry() {
    let (folder, store) = store();
    let case = Case::new();
    let made: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(|| case.make(&store).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(made.iter().filter(|shards| !shards.reused()).count(), 1);
    let first = content(&made[0]);
    assert!(made.iter().all(|shards| content(shards) == first));
    assert_eq!(fs::read_dir(folder.path().join(AUGMENTED)).unwrap().count(), 1);
}

#[test]
fn what_is_being_made_is_alive_and_not_pruned() {
    let (_folder, store) = store();
    let seen = Mutex::new(0);
    let listener = |event: &Event| {
        if let Event::Progress { done, total, unit, .. } = event {
            let leftovers = store.list().unwrap().leftovers;
            assert!(leftovers.len() == 1 && leftovers[0].alive && leftovers[0].bytes > 0);
            assert!(store.prune(0).unwrap().leftovers.is_empty());
            assert!(done <= total && unit == "windows");
            *seen.lock().unwrap() += 1;
        }
    };
    let shards = Case::new().make_with(&store, &listener).unwrap();
    assert_eq!(seen.into_inner().unwrap(), files(shards.path()).len() - 1);
    assert!(store.list().unwrap().leftovers.is_empty());
}

/// Another process: this test program again, with this test alone.
#[cfg(unix)]
fn child(root: &Path, mode: &str, before: &str) -> std::process::Command {
    let mut command = std::process::Command::new("sh");
    let program = std::env::current_exe().unwrap();
    command.arg("-c").arg(format!("{before} exec \"$0\" --exact as_another_process --nocapture"));
    command.arg(program).env("FIREBOX_TEST_ROOT", root).env("FIREBOX_TEST_MODE", mode);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    command
}

/// Does nothing unless a test below starts it in another process.
#[cfg(unix)]
#[test]
fn as_another_process() {
    let (Some(root), Ok(mode)) =
        (std::env::var_os("FIREBOX_TEST_ROOT"), std::env::var("FIREBOX_TEST_MODE"))
    else {
        return;
    };
    let store = Store::open(Path::new(&root)).unwrap().with_shard_bytes(24 * 4 * 4 * 4 * 7);
    let die = |event: &Event| {
        if let Event::Progress { .. } = event {
            std::process::abort();
        }
    };
    match mode.as_str() {
        "die" => drop(Case::new().make_with(&store, &die)),
        "full" => println!("[{}]", Case::new().make(&store).unwrap_err()),
        "huge" => {
            let mut case = Case::new();
            case.augmentation.versions = u32::MAX;
            println!("[{}]", case.make(&store).unwrap_err());
        }
        _ => {
            let made = if Case::new().make(&store).unwrap().reused() { "reused" } else { "made" };
            println!("[{made}]");
        }
    }
}

#[cfg(unix)]
fn said(child: std::process::Child) -> String {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_once('[')
        .and_then(|(_, text)| text.split_once(']'))
        .map(|(said, _)| said.to_owned())
        .unwrap_or_else(|| format!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

#[cfg(unix)]
#[test]
fn several_processes_at_once_make_one_entry() {
    let (folder, store) = store();
    let children: Vec<_> =
        (0..4).map(|_| child(folder.path(), "make", "").spawn().unwrap()).collect();
    let mut said: Vec<_> = children.into_iter().map(said).collect();
    said.sort();
    assert_eq!(said, ["made", "reused", "reused", "reused"]);
    assert!(store.verify().unwrap()[0].damaged.is_empty());
}

#[cfg(unix)]
#[test]
fn a_maker_that_dies_midway_leaves_nothing_that_is_taken_for_done() {
    let (folder, store) = store();
    let status = child(folder.path(), "die", "").output().unwrap().status;
    assert!(!status.success());
    let listing = store.list().unwrap();
    assert_eq!((listing.stored.len(), listing.leftovers.len()), (0, 1));
    assert!(!listing.leftovers[0].alive && listing.leftovers[0].bytes > 0);
    let shards = Case::new().make(&store).unwrap();
    assert!(!shards.reused() && store.list().unwrap().leftovers.is_empty());
}

#[cfg(unix)]
#[test]
fn a_limit_of_files_is_an_error_that_leaves_nothing() {
    let (folder, store) = store();
    // Files may not grow beyond a few kilobytes, and the process is told so instead of killed.
    let child = child(folder.path(), "full", "trap '' XFSZ; ulimit -f 4;").spawn().unwrap();
    let said = said(child);
    assert!(said.starts_with("cannot write") && said.contains("shard-00000.arrow"), "{said}");
    assert!(
        said.ends_with("raise the limit (`ulimit -f`), or name a folder on another disk"),
        "{said}"
    );
    assert_eq!(store.list().unwrap(), firebox_cache::Listing::default());
}

#[cfg(unix)]
#[test]
fn a_read_only_cache_is_read_and_named_when_it_cannot_be_written() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, store) = store();
    drop(Case::new().make(&store).unwrap());
    let folders = [folder.path().join(AUGMENTED), folder.path().join("locks").join(AUGMENTED)];
    let mode = |mode| {
        for folder in &folders {
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    mode(0o555);
    if fs::write(folders[0].join("probe"), "").is_ok() {
        eprintln!("skipped: this user may write to read-only folders");
        return;
    }
    assert!(Case::new().make(&store).unwrap().reused());
    let error = Case { seed: 1, ..Case::new() }.make(&store).unwrap_err();
    mode(0o755);
    assert!(matches!(error, CacheError::Io { action: "create", .. }), "{error}");
}

#[test]
fn readers_keep_what_they_mapped_while_it_is_mended() {
    let (_folder, store) = store();
    let case = Case::new();
    let reader = case.make(&store).unwrap();
    let before = content(&reader);
    let name = reader.path().join("shard-00001.arrow");
    // Replaced, not changed in place: the reader's map is of the old file.
    fs::remove_file(&name).unwrap();
    fs::write(&name, "not a shard").unwrap();
    assert!(!case.make(&store).unwrap().reused());
    assert_eq!(content(&reader), before);
}

#[test]
fn leftovers_are_listed_cleaned_by_the_next_maker_and_pruned() {
    let (folder, store) = store();
    let case = Case::new();
    let bucket = folder.path().join(AUGMENTED);
    // What a killed maker leaves: its temporary, and a lock file that nobody holds.
    let leave = |key: Key| {
        let temporary = bucket.join(format!("{key}.tmp-12345-0"));
        fs::create_dir_all(&temporary).unwrap();
        fs::write(temporary.join("shard-00000.arrow"), vec![0; 1000]).unwrap();
        let locks = folder.path().join("locks").join(AUGMENTED);
        fs::create_dir_all(&locks).unwrap();
        fs::write(locks.join(format!("{key}.make")), "").unwrap();
    };
    leave(case.key());
    let listing = store.list().unwrap();
    assert_eq!((listing.stored.len(), listing.leftovers.len()), (0, 1));
    assert!(!listing.leftovers[0].alive && listing.leftovers[0].bytes == 1000);
    drop(case.make(&store).unwrap());
    assert!(store.list().unwrap().leftovers.is_empty());

    leave(Key::builder("other", 1).finish());
    // One of unknown making is left alone as long as it is young.
    fs::create_dir_all(folder.path().join(SERIES).join(".tmpAb12")).unwrap();
    let pruned = store.prune(u64::MAX).unwrap();
    assert_eq!((pruned.leftovers.len(), pruned.freed, pruned.removed.len()), (1, 1000, 0));
    let listing = store.list().unwrap();
    assert_eq!((listing.stored.len(), listing.leftovers.len()), (1, 1));
    assert!(listing.leftovers[0].alive);
}

#[test]
fn pruning_takes_the_least_recently_used_first_and_never_one_in_use() {
    let (folder, store) = store();
    let cases: Vec<_> = (0..4).map(|seed| Case { seed, ..Case::new() }).collect();
    let mut shards: Vec<_> = cases.iter().map(|case| Some(case.make(&store).unwrap())).collect();
    // A result of another bucket counts and goes like any other.
    let series = Key::builder("series", 1).finish();
    let entry = folder.path().join(SERIES).join(series.to_string());
    fs::create_dir_all(&entry).unwrap();
    fs::write(entry.join("manifest.json"), "{}").unwrap();
    fs::write(entry.join("values"), vec![0; 500]).unwrap();
    // Used last in the order 2, 0, series, 3, 1.
    let ages = [(0, 400), (1, 100), (2, 500), (3, 200)];
    let ago = |seconds| std::time::SystemTime::now() - std::time::Duration::from_secs(seconds);
    let age = |path: &Path, seconds| {
        let file = fs::File::options().append(true).open(path).unwrap();
        file.set_modified(ago(seconds)).unwrap();
    };
    for (case, seconds) in ages {
        let key = cases[case].key();
        let locks = folder.path().join("locks").join(AUGMENTED);
        age(&locks.join(format!("{key}.use")), seconds);
        age(&shards[case].as_ref().unwrap().path().join("manifest.json"), seconds);
    }
    age(&entry.join("manifest.json"), 300);
    let keys = |stored: &[firebox_cache::Stored]| -> Vec<Key> {
        stored.iter().map(|stored| stored.key).collect()
    };
    let expected = [cases[2].key(), cases[0].key(), series, cases[3].key(), cases[1].key()];
    let listing = store.list().unwrap();
    assert_eq!(keys(&listing.stored), expected);
    assert_eq!(listing.stored.iter().filter(|stored| stored.in_use).count(), 4);
    assert_eq!(listing.stored[2].bytes, 502);

    // All but number 0 are closed; room for two entries.
    shards[1..].iter_mut().for_each(|shards| *shards = None);
    let size = listing.stored[0].bytes;
    let pruned = store.prune(2 * size + 400).unwrap();
    assert_eq!(keys(&pruned.removed), [expected[0], expected[2], expected[3]]);
    assert_eq!(keys(&pruned.kept_in_use), [expected[1]]);
    assert_eq!(pruned.freed, 2 * size + 502);
    assert_eq!(pruned.left, store.list().unwrap().bytes());
    content(shards[0].as_ref().unwrap());

    // A copy keeps its entry too; the last one gone, it may go.
    let copy = shards[0].clone();
    shards[0] = None;
    assert_eq!(keys(&store.prune(0).unwrap().kept_in_use), [cases[0].key()]);
    drop(copy);
    // A process that another test begins holds the lock, too, until it has its own program.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while store.prune(0).unwrap().left > 0 {
        assert!(std::time::Instant::now() < until, "an entry that nobody uses is kept");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(store.list().unwrap().stored.is_empty());
    assert!(!cases[0].make(&store).unwrap().reused());
}

#[test]
fn a_root_that_cannot_be_a_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let message = Store::open(&file).unwrap_err().to_string();
    assert!(message.contains("cannot create the cache folder") && message.contains("file"));
    // The bucket's place is taken.
    let store = Store::open(&folder.path().join("cache")).unwrap();
    fs::write(store.root().join(AUGMENTED), "").unwrap();
    assert!(matches!(Case::new().make(&store), Err(CacheError::Io { .. })));
}

#[test]
fn settings_and_channels_that_do_not_fit_are_refused_before_anything_is_written() {
    let (folder, store) = store();
    let mut case = Case::new();
    case.augmentation.jitter.probability = 1.5;
    let error = case.make(&store).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "`jitter.probability` is 1.5; it must be a probability, from 0 to 1");
    let mut case = Case::new();
    let series = Series::regular("x", 0, 1, vec![0.5; 100], 1);
    let channels = vec![Channel::new("x", Role::Other)];
    let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
    let rule = WindowRule { length: 10, stride: 1, whole: false };
    let parts = split(&set, &rule, &SplitRule::time(0.0, 0.0), &Labels::None).unwrap();
    case.train = parts.train;
    let message = case.make(&store).unwrap_err().to_string();
    assert!(message.contains("[\"x\"]") && message.contains("close"), "{message}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[cfg(unix)]
#[test]
fn more_than_the_disk_has_room_for_is_refused_before_anything_is_written() {
    let (folder, store) = store();
    // Should this disk claim room for hundreds of terabytes, no file grows.
    let child = child(folder.path(), "huge", "trap '' XFSZ; ulimit -f 4;").spawn().unwrap();
    let said = said(child);
    assert!(said.contains("4294967296 versions") && said.contains("augment.versions"), "{said}");
    assert_eq!(store.list().unwrap(), firebox_cache::Listing::default());
}

#[test]
fn a_maker_that_is_stopped_ends_soon_and_leaves_nothing() {
    let (folder, store) = store();
    let (stop, shards) = (Arc::new(AtomicBool::new(false)), AtomicUsize::new(0));
    let store = store.stopped_by(&stop);
    let listener = |event: &Event| {
        if let Event::Progress { .. } = event {
            shards.fetch_add(1, Ordering::SeqCst);
            stop.store(true, Ordering::SeqCst);
        }
    };
    let error = Case::new().make_with(&store, &listener).unwrap_err();
    assert!(matches!(error, CacheError::Stopped), "{error}");
    assert_eq!(shards.load(Ordering::SeqCst), 1, "no shard was written after the stop");
    assert_eq!(fs::read_dir(folder.path().join(AUGMENTED)).unwrap().count(), 0);
    stop.store(false, Ordering::SeqCst);
    assert!(!Case::new().make(&store).unwrap().reused());
    // Checking what is there is ended, too.
    stop.store(true, Ordering::SeqCst);
    assert!(matches!(Case::new().make(&store), Err(CacheError::Stopped)));
}

#[test]
fn what_dead_makers_of_other_entries_left_goes_and_what_is_held_stays() {
    let (folder, store) = store();
    let [dead, alive] = ["dead", "alive"].map(|name| Key::builder(name, 1).finish());
    let [gone, kept] = [dead, alive].map(|key| {
        let path = folder.path().join(AUGMENTED).join(format!("{key}.tmp-12345-0"));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("shard-00000.arrow"), vec![0; 1000]).unwrap();
        path
    });
    // What every maker holds.
    let _held = store.hold(AUGMENTED, alive).unwrap();
    drop(Case::new().make(&store).unwrap());
    assert!(!gone.exists() && kept.join("shard-00000.arrow").is_file());
}

#[test]
fn a_maker_in_the_midst_is_not_disturbed_by_one_of_another_entry() {
    let (_folder, store) = store();
    let other = Mutex::new(Some(Case { seed: 1, ..Case::new() }));
    let listener = |event: &Event| {
        if let Event::Progress { .. } = event
            && let Some(other) = other.lock().unwrap().take()
        {
            drop(other.make(&store).unwrap());
        }
    };
    let shards = Case::new().make_with(&store, &listener).unwrap();
    assert!(!shards.reused());
    assert!(store.verify().unwrap().iter().all(|one| one.damaged.is_empty()));
    assert_eq!(store.list().unwrap().stored.len(), 2);
}

#[test]
fn tasks_of_a_pool_that_want_entries_of_each_other_do_not_wait_for_good() {
    use rayon::prelude::*;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(8).build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A task that takes up another while it holds a lock may want that lock: then all would hang.
        let watch = scope.spawn(|| {
            let start = std::time::Instant::now();
            while !done.load(Ordering::SeqCst) && start.elapsed().as_secs() < 120 {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            stop.store(true, Ordering::SeqCst);
        });
        let rule = WindowRule { length: 24, stride: 1, whole: false };
        let train = split_of(rule, &[50, 2000, 1500]).train;
        for _ in 0..12 {
            let (_folder, store) = store();
            let store = store.stopped_by(&stop);
            let made = |task: u32| {
                let case = Case::with(train.clone(), Normalisation::WindowRelative);
                Case { seed: u64::from(task % 3), ..case }.make(&store).map(|shards| shards.len())
            };
            let all: Vec<Result<usize, CacheError>> =
                pool.install(|| (0..24u32).into_par_iter().with_max_len(1).map(made).collect());
            assert!(all.iter().all(Result::is_ok), "{:?}", all.iter().find(|one| one.is_err()));
        }
        done.store(true, Ordering::SeqCst);
        watch.join().unwrap();
    });
}

#[test]
fn the_copy_of_a_remote_file_that_is_read_stays_when_others_prune() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::open(root.path()).unwrap();
    let key = Key::builder("copy", 1).finish();
    let folder = root.path().join(REMOTE).join(key.to_string());
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("bars.csv"), "close\n1\n").unwrap();
    fs::write(folder.join("manifest.json"), r#"{"url":"https://host/bars.csv","blake3":""}"#)
        .unwrap();
    fs::write(folder.join("lock"), "").unwrap();
    let held = store.hold(REMOTE, key).unwrap();
    assert!(store.list().unwrap().stored[0].in_use);
    let pruned = store.prune(0).unwrap();
    assert_eq!((pruned.removed.len(), pruned.kept_in_use.len()), (0, 1));
    assert!(folder.join("bars.csv").is_file());
    drop(held);
    assert_eq!(store.prune(0).unwrap().removed.len(), 1);
    assert!(!folder.join("bars.csv").exists());
}

#[test]
fn what_another_process_has_in_hand_is_not_verified_and_not_waited_for() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::open(root.path()).unwrap();
    let folder = root.path().join(REMOTE).join(Key::builder("copy", 1).finish().to_string());
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("bars.csv"), "close\n1\n").unwrap();
    fs::write(folder.join("manifest.json"), r#"{"url":"https://host/bars.csv","blake3":""}"#)
        .unwrap();
    let fetching = fs::File::create(folder.join("lock")).unwrap();
    fetching.lock().unwrap();
    let found = store.verify().unwrap().remove(0);
    assert!(found.left_alone && found.damaged.is_empty() && found.checked == 0, "{found:?}");
    fetching.unlock().unwrap();
    let found = store.verify().unwrap().remove(0);
    // Its checksum is none.
    assert!(!found.left_alone && found.damaged.len() == 1, "{found:?}");
}

#[test]
fn what_others_keep_in_a_bucket_is_made_by_one_at_a_time() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::open(root.path()).unwrap();
    let key = Key::builder("alone", 1).finish();
    let (stop, at_it, waits) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let one = || {
        let work = || {
            assert_eq!(at_it.fetch_add(1, Ordering::SeqCst), 0);
            std::thread::sleep(Duration::from_millis(20));
            at_it.fetch_sub(1, Ordering::SeqCst);
        };
        let waiting = || {
            waits.fetch_add(1, Ordering::SeqCst);
        };
        store.alone((TOKENS, key), &stop, waiting, work).unwrap();
    };
    std::thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(one))));
    assert!(waits.into_inner() <= 2, "the first one waited, too");
    let error = store.alone(
        (TOKENS, key),
        &stop,
        || (),
        || {
            stop.store(true, Ordering::SeqCst);
            store.alone((TOKENS, key), &stop, || (), || ()).unwrap_err()
        },
    );
    assert!(matches!(error.unwrap(), CacheError::Stopped));
}
