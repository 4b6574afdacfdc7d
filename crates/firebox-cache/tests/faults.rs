//! What goes wrong under a running job: files that shrink, disappear or fill the disk.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use firebox_cache::{CacheError, SampleSpec, Samples, Shards, Store, augmented_key};
use firebox_core::*;

const STEPS: usize = 64;

/// Augmented windows of about 3 MB in shards of about 0.3 MB.
fn shards(root: &Path) -> (Shards, Vec<PathBuf>) {
    let mut draws = Stream::new(1, "walk").draws();
    let walk = (0..12_000 + STEPS).map(|_| draws.normal()).collect();
    let series = Series::regular("walk", 0, 1, walk, 1);
    let set = SeriesSet::new(vec![Channel::new("x", Role::Other)], vec![], vec![series]).unwrap();
    let rule = WindowRule { length: STEPS, stride: 4, whole: false };
    let labels = Labels::None;
    let parts = split(&Arc::new(set), &rule, &SplitRule::time(0.0, 0.0), &labels).unwrap();
    let normaliser = Normaliser::fit(Normalisation::Standard, &parts.train).unwrap();
    let store = Store::open(root).unwrap().with_shard_bytes(300_000);
    let augmentation = Augmentation { versions: 3, ..Augmentation::default() };
    let key = augmented_key(Key::builder("walk", 1).finish(), &augmentation, 1);
    let shards =
        store.augmented(key, &parts.train, &normaliser, &augmentation, 1, &Silent).unwrap();
    let mut files: Vec<PathBuf> = fs::read_dir(shards.path())
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "arrow"))
        .collect();
    files.sort();
    assert!(files.len() > 5);
    (shards, files)
}

fn gather(shards: &Shards, indices: &[usize]) -> Result<Vec<f32>, CacheError> {
    let [_, channels] = shards.window_shape();
    let mut out = vec![f32::NAN; indices.len() * STEPS * channels];
    shards.gather(indices, STEPS, &mut out);
    shards.check_read(indices).map(|()| out)
}

#[cfg(unix)]
#[test]
fn a_file_that_shrinks_under_its_map_is_an_error_and_not_a_signal() {
    for left in [0, 1000, 8192, 100_000] {
        let folder = tempfile::tempdir().unwrap();
        let (shards, files) = shards(folder.path());
        let per_shard = shards.len().div_ceil(files.len());
        let all: Vec<usize> = (0..shards.len()).collect();
        let before = gather(&shards, &all).unwrap();
        // Nothing is cut off that was not on the disk: the map must be asked again.
        fs::File::options().write(true).open(&files[2]).unwrap().set_len(left).unwrap();
        let error = gather(&shards, &all).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("shard-00002.arrow") && text.contains("changed"), "{text}");
        assert!(text.ends_with("Run again: a damaged cache is made anew"), "{text}");
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.starts_with(&format!("the file has {left} bytes; ")), "{cause}");
        // The other shards are as they were.
        let others = &all[..per_shard];
        assert_eq!(gather(&shards, others).unwrap(), before[..per_shard * STEPS]);
        // The next run mends what is damaged.
        drop(shards);
        let (again, _) = self::shards(folder.path());
        assert_eq!(gather(&again, &all).unwrap(), before);
    }
}

#[test]
fn a_file_that_is_written_anew_at_its_old_length_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (shards, files) = shards(folder.path());
    let per_shard = shards.len().div_ceil(files.len());
    let all: Vec<usize> = (0..shards.len()).collect();
    let before = gather(&shards, &all).unwrap();
    let content = fs::read(&files[2]).unwrap();
    // Clocks of file systems have steps of some milliseconds.
    std::thread::sleep(std::time::Duration::from_millis(50));
    fs::write(&files[2], vec![0x3f; content.len()]).unwrap();
    let error = gather(&shards, &all).unwrap_err();
    assert!(error.to_string().contains("shard-00002.arrow` changed"), "{error}");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "the file was written to after it was opened");
    assert_eq!(gather(&shards, &all[..per_shard]).unwrap(), before[..per_shard * STEPS]);
    // The next run mends it, beside the one that has it mapped.
    let (again, _) = self::shards(folder.path());
    assert_eq!(gather(&again, &all).unwrap(), before);
    assert!(gather(&shards, &all).is_err());
}

/// No run makes converted samples: converting does, and only what is missing.
#[cfg(unix)]
#[test]
fn a_shard_of_samples_that_shrinks_is_made_again_by_converting_alone() {
    let folder = tempfile::tempdir().unwrap();
    let spec = |key: &str| SampleSpec {
        key: Key::builder(key, 1).finish(),
        source: key.to_owned(),
        shape: [STEPS, 1],
        storage: Storage::F32,
        classes: vec![],
        samples: vec![(STEPS as u32, None); 2000],
        names: vec![],
        shard_bytes: 100_000,
    };
    let convert = |key: &str| {
        Samples::write::<CacheError>(folder.path(), &spec(key), &Silent, |sample, out| {
            out.extend((0..STEPS).map(|step| (sample * STEPS + step) as f32));
            Ok(())
        })
    };
    let samples = convert("arrays").unwrap();
    let shard = folder.path().join("shard-00001.arrow");
    fs::File::options().write(true).open(&shard).unwrap().set_len(1000).unwrap();
    let said = samples.check_read(&(0..2000).collect::<Vec<_>>()).unwrap_err().to_string();
    let way_out = "convert the arrays again, with the settings of before";
    assert!(said.contains("shard-00001.arrow` changed while it was being read"), "{said}");
    assert!(said.contains(way_out) && !said.contains("Run again"), "{said}");
    let series = samples.series_values();
    let said = series.iter().find_map(|values| values.check().err()).unwrap();
    assert!(said.contains(way_out) && said.contains("has 1000 bytes"), "{said}");
    drop((samples, series));
    let said = Samples::open(folder.path(), false).unwrap_err().to_string();
    assert!(said.contains(way_out), "{said}");
    // With other settings, the size of a shard among them, it is another set.
    assert!(matches!(convert("others"), Err(CacheError::OtherInputs { .. })));
    let samples = convert("arrays").unwrap();
    let mut last = vec![0.0; STEPS];
    samples.gather(&[1999], STEPS, &mut last);
    assert_eq!(last[STEPS - 1], (2000 * STEPS - 1) as f32);
    samples.check_read(&(0..2000).collect::<Vec<_>>()).unwrap();
}

#[cfg(unix)]
#[test]
fn a_file_that_shrinks_while_threads_read_ends_in_an_error_for_each() {
    let folder = tempfile::tempdir().unwrap();
    let (shards, files) = shards(folder.path());
    let all: Vec<usize> = (0..shards.len()).collect();
    std::thread::scope(|scope| {
        let reader = || loop {
            if let Err(error) = gather(&shards, &all) {
                return error.to_string();
            }
        };
        let readers: Vec<_> = (0..3).map(|_| scope.spawn(reader)).collect();
        std::thread::sleep(std::time::Duration::from_millis(20));
        for file in &files[3..] {
            fs::File::options().write(true).open(file).unwrap().set_len(4096).unwrap();
        }
        for reader in readers {
            assert!(reader.join().unwrap().contains("changed while it was being read"));
        }
    });
}

#[cfg(unix)]
#[test]
fn a_file_that_is_deleted_stays_readable_for_whoever_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let (shards, files) = shards(folder.path());
    let all: Vec<usize> = (0..shards.len()).collect();
    let before = gather(&shards, &all).unwrap();
    files.iter().for_each(|file| fs::remove_file(file).unwrap());
    assert_eq!(gather(&shards, &all).unwrap(), before);
}

fn spec(samples: usize, storage: Storage) -> SampleSpec {
    SampleSpec {
        key: Key::builder("arrays", 1).field("storage", format!("{storage:?}")).finish(),
        source: "arrays".to_owned(),
        shape: [9, 3],
        storage,
        classes: vec!["a".to_owned(), "b".to_owned()],
        samples: (0..samples)
            .map(|i| (1 + i as u32 % 9, (i % 3 > 0).then_some(i as u32 % 2)))
            .collect(),
        names: vec![],
        shard_bytes: 9 * 3 * 4 * 5,
    }
}

fn value(sample: usize, at: usize) -> f32 {
    (sample * 27 + at) as f32 / 8.0
}

fn read(sample: usize, out: &mut Vec<f32>) -> Result<(), CacheError> {
    out.extend((0..(1 + sample % 9) * 3).map(|at| value(sample, at)));
    Ok(())
}

fn check(samples: &Samples) {
    let all: Vec<usize> = (0..samples.len()).rev().collect();
    let mut out = vec![f32::NAN; all.len() * 27];
    samples.gather(&all, 9, &mut out);
    samples.check_read(&all).unwrap();
    for (row, sample) in out.chunks_exact(27).zip(&all) {
        let record = samples.record(*sample);
        assert_eq!(record.length as usize, 1 + sample % 9);
        assert_eq!(record.label, (sample % 3 > 0).then_some(*sample as u32 % 2));
        for (at, found) in row.iter().enumerate() {
            let valid = at < record.length as usize * 3;
            assert_eq!(*found, if valid { value(*sample, at) } else { 0.0 });
        }
    }
}

#[test]
fn samples_are_written_in_shards_and_read_back_in_every_type() {
    for storage in [Storage::F32, Storage::F16, Storage::Bf16] {
        let folder = tempfile::tempdir().unwrap();
        // Of the eight significant bits of bf16, numbers below 32 in eighths need no more.
        let count = if storage == Storage::Bf16 { 9 } else { 33 };
        let spec = spec(count, storage);
        let samples = Samples::write(folder.path(), &spec, &Silent, read).unwrap();
        check(&samples);
        let opened = Samples::open(folder.path(), true).unwrap();
        check(&opened);
        assert_eq!((opened.key(), opened.storage(), opened.shape()), (spec.key, storage, [9, 3]));
        assert_eq!(opened.name(0), None);
    }
}

#[test]
fn samples_of_unlike_lengths_take_their_own_steps_on_the_disk_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let files = || -> Vec<u64> {
        let files = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap());
        let shards = files.filter(|file| file.file_name().to_string_lossy().ends_with("arrow"));
        shards.map(|file| file.metadata().unwrap().len()).collect()
    };
    let short = |index: usize| (if index == 700 { 900 } else { 3 }, None);
    let spec = |samples: Vec<(u32, Option<u32>)>| SampleSpec {
        shape: [900, 3],
        samples,
        shard_bytes: 20_000,
        ..spec(0, Storage::F32)
    };
    // As an older version had them: all padded to the longest.
    let padded = spec(vec![(900, None); 1000]);
    let long = |_: usize, out: &mut Vec<f32>| {
        out.resize(2700, 0.5);
        Ok::<(), CacheError>(())
    };
    Samples::write(folder.path(), &padded, &Silent, long).unwrap();
    assert_eq!((files().len(), files().iter().sum::<u64>() > 10_800_000), (1000, true));
    // Under the same key, they are made anew, and no file of no use is left: not of one that was killed either, which has
    // gaps where threads were at several ends.
    fs::remove_file(folder.path().join("shard-00050.arrow")).unwrap();
    fs::write(folder.path().join("shard-00777.arrow.part"), "begun").unwrap();
    fs::write(folder.path().join("shard-00778.json"), "{}").unwrap();
    fs::write(folder.path().join("shard-of-mine.txt"), "kept").unwrap();
    let packed = spec((0..1000).map(short).collect());
    let read = |sample: usize, out: &mut Vec<f32>| {
        out.extend((0..short(sample).0 * 3).map(|at| (sample * 10) as f32 + at as f32));
        Ok::<(), CacheError>(())
    };
    let samples = Samples::write(folder.path(), &packed, &Silent, read).unwrap();
    // 47 KB of values in shards of at most 20 KB each.
    assert!(samples.bytes() < 100_000, "{}", samples.bytes());
    assert!(files().len() < 10 && files().iter().sum::<u64>() == samples.bytes(), "{:?}", files());
    let left = ["shard-00777.arrow.part", "shard-00778.json", "shard-of-mine.txt"]
        .map(|name| folder.path().join(name).exists());
    assert_eq!(left, [false, false, true]);
    let order: Vec<usize> = (0..1000).map(|place| place * 389 % 1000).collect();
    for steps in [1, 3, 5, 900, 1000] {
        let mut out = vec![f32::NAN; order.len() * steps * 3];
        samples.gather(&order, steps, &mut out);
        for (row, sample) in out.chunks_exact(steps * 3).zip(&order) {
            let own = short(*sample).0 as usize * 3;
            let expected =
                (0..steps * 3).map(|at| if at < own { (sample * 10 + at) as f32 } else { 0.0 });
            assert!(row.iter().copied().eq(expected), "{sample}");
        }
    }
    let values = samples.series_values();
    for sample in [0, 699, 700, 701, 999] {
        let mut expected = vec![];
        read(sample, &mut expected).unwrap();
        let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
        assert_eq!(values[sample].part(0..expected.len()), expected);
    }
    samples.will_need(690..710);
    samples.check_read(&order).unwrap();
}

#[test]
fn names_come_back_and_an_older_folder_gets_them_when_it_is_converted_again() {
    let folder = tempfile::tempdir().unwrap();
    let nameless = spec(33, Storage::F32);
    Samples::write(folder.path(), &nameless, &Silent, read).unwrap();
    let manifest = folder.path().join("manifest.json");
    // As it was before there were names.
    assert!(!fs::read_to_string(&manifest).unwrap().contains("names"));
    let names: Vec<String> = (0..33).map(|index| format!("folder/{index}")).collect();
    let named = SampleSpec { names, ..nameless };
    let never = |_: usize, _: &mut Vec<f32>| Err(CacheError::Empty);
    let samples = Samples::write(folder.path(), &named, &Silent, never).unwrap();
    check(&samples);
    let opened = Samples::open(folder.path(), true).unwrap();
    let name = |index| opened.name(index).map(str::to_owned);
    assert_eq!([name(0), name(32)], [0, 32].map(|index| Some(format!("folder/{index}"))));
    assert_eq!(name(33), None);
}

#[test]
fn what_cannot_be_of_the_samples_is_refused_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("samples");
    let right = spec(3, Storage::F32);
    let refused = |wrong: SampleSpec, expected: &str| {
        let error = Samples::write(&to, &wrong, &Silent, read).unwrap_err();
        assert!(matches!(error, CacheError::Declared(_)), "{error}");
        assert!(error.to_string().starts_with(expected), "{error}");
        assert!(!to.exists());
    };
    let named = |names: &[&str]| SampleSpec {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        ..right.clone()
    };
    let with = |last| SampleSpec { samples: vec![(1, None), (2, Some(1)), last], ..right.clone() };
    refused(named(&["a"]), "3 samples have 1 name; give one for each");
    refused(named(&["a", "b", "a"]), "two samples are called `a`");
    refused(with((10, None)), "sample 2 has 10 steps, and the longest was said to have 9");
    refused(with((3, Some(2))), "sample 2 has the label 2, which is none of 2 class names");
    assert_eq!(Samples::write(&to, &named(&["a", "b", "c"]), &Silent, read).unwrap().len(), 3);
}

#[test]
fn values_that_are_more_or_fewer_than_were_declared_are_an_error() {
    for (more, said) in [(false, "8 values"), (true, "10 values")] {
        let folder = tempfile::tempdir().unwrap();
        let other = |sample: usize, out: &mut Vec<f32>| {
            read(sample, out)?;
            match (sample, more) {
                (2, true) => out.push(1.0),
                (2, false) => drop(out.pop()),
                _ => {}
            }
            Ok::<(), CacheError>(())
        };
        let error = Samples::write(folder.path(), &spec(5, Storage::F32), &Silent, other);
        let found = error.unwrap_err().to_string();
        let expected = format!("sample 2 was read with {said}, and 9 were declared");
        assert!(found.starts_with(&expected), "{found}");
        assert!(Samples::open(folder.path(), false).is_err(), "it has no manifest");
    }
}

#[test]
fn a_conversion_that_was_cut_short_goes_on_with_what_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    // Room for one sample of nine steps in each shard.
    let spec = SampleSpec { shard_bytes: 200, ..spec(33, Storage::F32) };
    let reads = AtomicUsize::new(0);
    let failing = |sample: usize, out: &mut Vec<f32>| {
        if sample == 31 {
            return Err(CacheError::Empty);
        }
        read(sample, out)
    };
    Samples::write(folder.path(), &spec, &Silent, failing).unwrap_err();
    assert!(Samples::open(folder.path(), false).is_err(), "it has no manifest");
    // One of the finished shards is damaged, another lost its receipt.
    let shards = || -> Vec<PathBuf> {
        let files = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
        let mut shards: Vec<_> =
            files.filter(|path| path.extension().is_some_and(|e| e == "arrow")).collect();
        shards.sort();
        shards
    };
    let finished = shards();
    assert!(finished.len() >= 3, "{finished:?}");
    let mut bytes = fs::read(&finished[0]).unwrap();
    bytes[600] ^= 1;
    fs::write(&finished[0], bytes).unwrap();
    fs::remove_file(finished[1].with_extension("json")).unwrap();
    let counting = |sample: usize, out: &mut Vec<f32>| {
        reads.fetch_add(1, Ordering::Relaxed);
        read(sample, out)
    };
    let samples = Samples::write(folder.path(), &spec, &Silent, counting).unwrap();
    check(&samples);
    let remade = 33 - (finished.len() - 2);
    assert_eq!(reads.load(Ordering::Relaxed), remade);
    // Nothing is read once all is there.
    reads.store(0, Ordering::Relaxed);
    check(&Samples::write(folder.path(), &spec, &Silent, counting).unwrap());
    assert_eq!(reads.load(Ordering::Relaxed), 0);
    // Another key is refused.
    let other = SampleSpec { key: Key::builder("others", 1).finish(), ..spec };
    let error = Samples::write(folder.path(), &other, &Silent, read).unwrap_err();
    assert!(matches!(error, CacheError::OtherInputs { .. }), "{error}");
}

#[test]
fn zeros_of_small_values_are_told_of_whenever_their_shards_were_made() {
    let folder = tempfile::tempdir().unwrap();
    let spec = SampleSpec { shard_bytes: 200, ..spec(18, Storage::F16) };
    // Every third value, and all samples have whole rows of three.
    let small = |sample: usize, out: &mut Vec<f32>| {
        read(sample, out)?;
        out.iter_mut().for_each(|value| *value += 1.0);
        out.iter_mut().step_by(3).for_each(|value| *value = 1e-9);
        Ok(())
    };
    let failing = |sample: usize, out: &mut Vec<f32>| match sample {
        17 => Err(CacheError::Empty),
        _ => small(sample, out),
    };
    Samples::write(folder.path(), &spec, &Silent, failing).unwrap_err();
    let warnings = Mutex::new(Vec::new());
    let listener = |event: &Event| {
        if let Event::Warning { message } = event {
            warnings.lock().unwrap().push(message.clone());
        }
    };
    let is_told = |lost: Option<String>| {
        let lost = lost.unwrap();
        assert!(lost.starts_with("33.3 % of the values are nearer to 0 than f16"), "{lost}");
    };
    // What is missing of it, nothing of it, and a shard that was damaged.
    for round in 0..3 {
        if round == 2 {
            fs::write(folder.path().join("shard-00000.arrow"), "not a shard").unwrap();
        }
        let samples = Samples::write(folder.path(), &spec, &listener, small).unwrap();
        is_told(samples.lost());
        let told = std::mem::take(&mut *warnings.lock().unwrap());
        assert_eq!(told, [samples.lost().unwrap()], "round {round}");
    }
    is_told(Samples::open(folder.path(), true).unwrap().lost());
}

#[test]
fn what_was_begun_from_the_same_source_is_begun_anew_with_other_settings() {
    let folder = tempfile::tempdir().unwrap();
    let begun = SampleSpec { shard_bytes: 200, ..spec(33, Storage::F32) };
    let failing = |sample: usize, out: &mut Vec<f32>| match sample {
        32 => Err(CacheError::Empty),
        _ => read(sample, out),
    };
    Samples::write(folder.path(), &begun, &Silent, failing).unwrap_err();
    let other = SampleSpec { key: Key::builder("others", 1).finish(), ..spec(30, Storage::F32) };
    // Of somebody else, it stays as it is.
    let of_other = SampleSpec { source: "other arrays".to_owned(), ..other.clone() };
    let error = Samples::write(folder.path(), &of_other, &Silent, read).unwrap_err();
    assert!(matches!(error, CacheError::OtherInputs { .. }), "{error}");
    let samples = Samples::write(folder.path(), &other, &Silent, read).unwrap();
    check(&samples);
    assert_eq!(samples.len(), 30);
    let mut left: Vec<String> = fs::read_dir(folder.path())
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    let shards = ["0", "1", "2", "3"].map(|number| format!("shard-0000{number}.arrow"));
    assert_eq!(left[..3], [".lock", "key.json", "manifest.json"]);
    assert_eq!(left[3..], shards, "nothing of the first is left");
    // What is finished is not begun anew.
    let error = Samples::write(folder.path(), &begun, &Silent, read).unwrap_err();
    assert!(matches!(error, CacheError::OtherInputs { .. }), "{error}");
}

/// A process that was killed, or a disk that was full, while the first file was written.
#[test]
fn half_a_key_is_written_anew() {
    for half in ["", "\"0123"] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("key.json"), half).unwrap();
        let spec = spec(10, Storage::F32);
        Samples::write(folder.path(), &spec, &Silent, read).unwrap();
        let other = SampleSpec { key: Key::builder("others", 1).finish(), ..spec };
        let error = Samples::write(folder.path(), &other, &Silent, read).unwrap_err();
        assert!(matches!(error, CacheError::OtherInputs { .. }), "{error}");
    }
}

#[test]
fn values_that_do_not_fit_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let large = |sample: usize, out: &mut Vec<f32>| {
        read(sample, out)?;
        if sample == 7 {
            out[4] = 1e6;
        }
        Ok(())
    };
    let error = Samples::write(folder.path(), &spec(10, Storage::F16), &Silent, large);
    assert_eq!(
        error.map(drop).map_err(|error: CacheError| error.to_string()),
        Err("sample 7, step 1, channel 1: 1000000 cannot be stored as f16; correct the array, or store the samples in a wider type".to_owned())
    );
}
