//! What is said while arrays are converted, and that neither threads nor an interruption change what they become.

use std::process::Command;
use std::time::SystemTime;

use super::*;

/// Arrays of one sample of 32 bytes.
const ARRAYS: usize = 120;
/// Shards that they are stored in.
const SHARDS: usize = 20;

fn config() -> ConvertConfig {
    let shard_bytes = ARRAYS / SHARDS * 32;
    ConvertConfig { odd: Odd::Skip, shard_bytes, ..ConvertConfig::default() }
}

/// A folder with the arrays in two classes, and with a file that is none.
fn arrays(root: &Path) -> PathBuf {
    let arrays = root.join("arrays");
    for number in 0..ARRAYS {
        let path = arrays.join(["calm", "wild"][number % 2]).join(format!("{number:03}.npy"));
        array(&path, &[4, 2], false, |at| (8 * number + at) as f32);
    }
    fs::write(arrays.join("calm/text.npy"), "no array").unwrap();
    arrays
}

/// What is done on so many threads.
fn on<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
}

/// The files of a folder but for its lock, by their names.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap());
    let named = files.map(|file| (file.file_name().into_string().unwrap(), file.path()));
    let plain = named.filter(|(name, _)| !name.starts_with('.'));
    plain.map(|(name, path)| (name, fs::read(path).unwrap())).collect()
}

/// Asserts that two folders have the same files, byte for byte.
fn assert_same(one: &BTreeMap<String, Vec<u8>>, other: &BTreeMap<String, Vec<u8>>) {
    assert!(one.keys().eq(other.keys()), "{:?} and {:?}", one.keys(), other.keys());
    for (name, bytes) in one {
        assert!(other[name] == *bytes, "{name} differs");
    }
}

/// What was counted, how much of it was done, and how much there was.
type Told = (String, u64, u64);

/// Asserts that something was told so often, each time more of it, up to all.
fn assert_rises(told: &[Told], what: &str, total: usize, times: usize) {
    let total = total as u64;
    assert!(told.iter().all(|(of, _, all)| of == what && *all == total), "{told:?}");
    assert!(told.is_sorted_by(|(_, before, _), (_, after, _)| before < after), "{told:?}");
    assert_eq!((told.len(), told.last().map(|last| last.1)), (times, Some(total)), "{told:?}");
}

#[test]
fn how_much_is_done_never_becomes_less_and_ends_with_all_of_it() {
    let root = tempfile::tempdir().unwrap();
    let arrays = arrays(root.path());
    let told = Mutex::new(Vec::<Told>::new());
    let listener = |event: &Event| {
        if let Event::Progress { stage, done, total, unit } = event {
            told.lock().unwrap().push((format!("{stage} {unit}"), *done, *total));
        }
    };
    // The last time, all shards are there already.
    for (threads, output) in [(1, "one"), (4, "four"), (4, "four")] {
        let output = root.path().join(output);
        on(threads, || convert(&arrays, &output, &config(), &listener)).unwrap();
        let told = std::mem::take(&mut *told.lock().unwrap());
        // All arrays are looked at, that which is none among them, before the first is stored.
        let looked = told.iter().take_while(|(what, ..)| what == "check arrays").count();
        assert_rises(&told[..looked], "check arrays", ARRAYS + 1, 100);
        assert_rises(&told[looked..], "convert samples", ARRAYS, SHARDS);
    }
}

#[test]
fn any_number_of_threads_writes_the_same_bytes() {
    let root = tempfile::tempdir().unwrap();
    let arrays = arrays(root.path());
    let [one, four] = [1_usize, 4].map(|threads| {
        let output = root.path().join(threads.to_string());
        on(threads, || convert(&arrays, &output, &config(), &Silent)).unwrap();
        files(&output)
    });
    assert!(one.len() > SHARDS && one.contains_key("manifest.json"), "{:?}", one.keys());
    assert_same(&one, &four);
}

/// Shards that are finished when the process ends.
const FINISHED: usize = 3;
const KILLED: &str = "convert::tests::course::a_conversion_that_was_killed_goes_on_where_it_was";

/// Ends this process on the way.
fn die(root: &Path) {
    let dies = |event: &Event| {
        if let Event::Progress { stage, done, .. } = event
            && stage == "convert"
            && *done as usize == FINISHED * ARRAYS / SHARDS
        {
            std::process::abort();
        }
    };
    let [arrays, samples] = ["arrays", "samples"].map(|name| root.join(name));
    let outcome = on(1, || convert(&arrays, &samples, &config(), &dies));
    panic!("it was not killed: {outcome:?}");
}

#[test]
fn a_conversion_that_was_killed_goes_on_where_it_was() {
    if let Some(root) = std::env::var_os("FIREBOX_TEST_CONVERT") {
        return die(Path::new(&root));
    }
    let root = tempfile::tempdir().unwrap();
    let [samples, whole] = ["samples", "whole"].map(|name| root.path().join(name));
    let arrays = arrays(root.path());
    convert(&arrays, &whole, &config(), &Silent).unwrap();
    let program = std::env::current_exe().unwrap();
    let mut killed = Command::new(program);
    let killed = killed.args(["--exact", KILLED]).env("FIREBOX_TEST_CONVERT", root.path());
    let output = killed.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && !said.contains("it was not killed"), "{said}");
    // Only what has its receipt counts, and nobody takes the folder for whole.
    let left = files(&samples);
    let ending = |end: &str| left.keys().filter(|name| name.ends_with(end)).count();
    assert_eq!((ending(".arrow"), ending(".arrow.part")), (FINISHED, 0), "{:?}", left.keys());
    assert!(Samples::open(&samples, false).is_err() && !left.contains_key("manifest.json"));
    // As if it had been killed within a shard.
    fs::write(samples.join(format!("shard-{FINISHED:05}.arrow.part")), [0; 7]).unwrap();
    let written = || -> Vec<SystemTime> {
        let shards = (0..FINISHED).map(|shard| samples.join(format!("shard-{shard:05}.arrow")));
        shards.map(|shard| fs::metadata(shard).unwrap().modified().unwrap()).collect()
    };
    let before = written();
    convert(&arrays, &samples, &config(), &Silent).unwrap();
    assert_eq!(written(), before, "they are written again");
    assert_same(&files(&samples), &files(&whole));
}
