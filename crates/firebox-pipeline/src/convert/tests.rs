//! Folders of arrays that are made for the tests, and what they become.

mod course;

use super::*;
use firebox_core::Silent;
use std::fs;

/// A file as NumPy writes it, of float32 or float16.
fn array(path: &Path, shape: &[usize], half: bool, value: impl Fn(usize) -> f32) {
    let kind = if half { "<f2" } else { "<f4" };
    write(path, shape, kind, |at| match half {
        // 0.5 and 1.0 in float16, which is what the tests write.
        true if value(at) == 0.5 => 0x3800u16.to_le_bytes().to_vec(),
        true => 0x3c00u16.to_le_bytes().to_vec(),
        false => value(at).to_le_bytes().to_vec(),
    });
}

/// A file as NumPy writes it, of any type.
fn write(path: &Path, shape: &[usize], kind: &str, value: impl Fn(usize) -> Vec<u8>) {
    let shape_text: Vec<String> = shape.iter().map(ToString::to_string).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    let mut text = format!(
        "{{'descr': '{kind}', 'fortran_order': False, 'shape': ({}{comma}), }}",
        shape_text.join(", ")
    );
    while (11 + text.len()) % 64 != 0 {
        text.push(' ');
    }
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    let count: usize = shape.iter().product();
    bytes.extend((0..count).flat_map(value));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn values(samples: &Samples, index: usize) -> Vec<f32> {
    let [time, channels] = samples.shape();
    let mut out = vec![0.0; time * channels];
    samples.gather(&[index], time, &mut out);
    out.truncate(samples.record(index).length as usize * channels);
    out
}

#[test]
fn arrays_become_samples_with_the_classes_of_their_folders() {
    let root = tempfile::tempdir().unwrap();
    let (arrays, output) = (root.path().join("arrays"), root.path().join("samples"));
    array(&arrays.join("dogs/b.npy"), &[4, 2], false, |at| at as f32);
    array(&arrays.join("cats/a.npy"), &[3, 5, 2], false, |at| -(at as f32));
    array(&arrays.join("dogs/a.npy"), &[9, 2], false, |at| 10.0 + at as f32);
    let config = ConvertConfig { length: 6, shard_bytes: 100, ..ConvertConfig::default() };
    let converted = convert(&arrays, &output, &config, &Silent).unwrap();
    assert_eq!(
        converted.to_string(),
        format!(
            "5 samples of up to 6 steps and 2 channels in 2 classes, {:.1} MB; 1 was cut to 6 steps",
            converted.bytes as f64 / 1e6
        )
    );
    let samples = Samples::open(&output, true).unwrap();
    assert_eq!(samples.classes(), ["cats", "dogs"]);
    let names: Vec<_> = (0..5).filter_map(|index| samples.name(index)).collect();
    assert_eq!(names, ["cats/a/1", "cats/a/2", "cats/a/3", "dogs/a", "dogs/b"]);
    let labels: Vec<_> = (0..5).map(|index| samples.record(index).label).collect();
    assert_eq!(labels, [Some(0), Some(0), Some(0), Some(1), Some(1)]);
    assert_eq!(values(&samples, 1), (10..20).map(|at| -(at as f32)).collect::<Vec<_>>());
    assert_eq!(values(&samples, 3), (0..12).map(|at| 10.0 + at as f32).collect::<Vec<_>>());
    assert_eq!(values(&samples, 4), (0..8).map(|at| at as f32).collect::<Vec<_>>());
    // Once more changes nothing; an array that changed makes it another folder's content.
    assert_eq!(convert(&arrays, &output, &config, &Silent).unwrap(), converted);
    array(&arrays.join("dogs/c.npy"), &[4, 2], false, |at| at as f32);
    let error = convert(&arrays, &output, &config, &Silent).unwrap_err();
    assert!(matches!(error, ConvertError::Cache(CacheError::OtherInputs { .. })), "{error}");
}

#[test]
fn what_is_left_out_moves_no_class() {
    let root = tempfile::tempdir().unwrap();
    let (arrays, output) = (root.path().join("arrays"), root.path().join("samples"));
    array(&arrays.join("ants/a.npy"), &[4, 2], false, |at| at as f32);
    array(&arrays.join("cats/a.npy"), &[4, 2], false, |at| at as f32);
    let config = ConvertConfig { odd: Odd::Skip, ..ConvertConfig::default() };
    convert(&arrays, &output, &config, &Silent).unwrap();
    array(&arrays.join("bees/a.npy"), &[4, 3], false, |at| at as f32);
    let again = convert(&arrays, &output, &config, &Silent).unwrap();
    assert_eq!(again.classes, ["ants", "cats"]);
    let samples = Samples::open(&output, true).unwrap();
    let class = |index: usize| &samples.classes()[samples.record(index).label.unwrap() as usize];
    assert_eq!([class(0), class(1)], ["ants", "cats"]);
}

#[test]
fn no_two_samples_have_one_name() {
    let root = tempfile::tempdir().unwrap();
    let (arrays, output) = (root.path().join("arrays"), root.path().join("samples"));
    array(&arrays.join("a/1.npy"), &[4, 2], false, |at| at as f32);
    array(&arrays.join("a.npy"), &[2, 4, 2], false, |at| at as f32);
    convert(&arrays, &output, &ConvertConfig::default(), &Silent).unwrap();
    let samples = Samples::open(&output, true).unwrap();
    let names: Vec<_> = (0..3).filter_map(|index| samples.name(index)).collect();
    assert_eq!(names, ["a/1", "a/1 (2)", "a/2"]);
}

#[test]
fn half_precision_stays_half_precision() {
    let root = tempfile::tempdir().unwrap();
    let (arrays, output) = (root.path().join("arrays"), root.path().join("samples"));
    let value = |at: usize| if at.is_multiple_of(2) { 0.5 } else { 1.0 };
    array(&arrays.join("a.npy"), &[8], true, value);
    convert(&arrays, &output, &ConvertConfig::default(), &Silent).unwrap();
    let samples = Samples::open(&output, true).unwrap();
    assert_eq!((samples.storage(), samples.shape()), (Storage::F16, [8, 1]));
    assert_eq!(values(&samples, 0), (0..8).map(value).collect::<Vec<_>>());
}

#[test]
fn arrays_unlike_the_others_are_refused_or_counted() {
    let root = tempfile::tempdir().unwrap();
    let arrays = root.path().join("arrays");
    array(&arrays.join("a.npy"), &[4, 2], false, |_| 1.0);
    array(&arrays.join("b.npy"), &[4, 3], false, |_| 1.0);
    array(&arrays.join("c.npy"), &[0, 2], false, |_| 1.0);
    array(&arrays.join("d.npy"), &[4, 2], true, |_| 1.0);
    array(&arrays.join("e.npy"), &[7, 2], false, |_| 1.0);
    let config = ConvertConfig::default();
    let error = convert(&arrays, &root.path().join("x"), &config, &Silent).unwrap_err();
    let text = error.to_string();
    let text = text.replace(&format!("{}/", arrays.display()), "");
    assert_eq!(
        text,
        "b.npy has other than 2 channels (3 channels of float32; a.npy has 2 channels of float32), and 2 more are unlike the first, too: correct them, or leave such arrays out with --odd skip"
    );
    let skip = ConvertConfig { odd: Odd::Skip, ..config };
    let converted = convert(&arrays, &root.path().join("y"), &skip, &Silent).unwrap();
    assert_eq!((converted.samples, converted.shape), (2, [7, 2]));
    let skipped: Vec<_> = converted.skipped.into_iter().collect();
    let expected = [
        ("has no step", "c.npy"),
        ("has other than 2 channels", "b.npy"),
        ("is of another type than float32", "d.npy"),
    ];
    assert_eq!(skipped, expected.map(|(reason, name)| (reason.to_owned(), vec![name.to_owned()])));
}

#[test]
fn whole_numbers_and_single_axes_are_called_what_they_are() {
    let root = tempfile::tempdir().unwrap();
    let arrays = root.path().join("arrays");
    let whole = |at: usize| (at as i32).to_le_bytes().to_vec();
    write(&arrays.join("a.npy"), &[4, 2], "<i4", whole);
    let go = |name: &str, odd| {
        let config = ConvertConfig { odd, ..ConvertConfig::default() };
        let converted = convert(&arrays, &root.path().join(name), &config, &Silent);
        converted.map_err(|e| e.to_string().replace(&format!("{}/", arrays.display()), ""))
    };
    let types = "holds int32, and samples hold float16, float32 or float64 (`x.astype('<f4')` makes it one)";
    for odd in [Odd::Refuse, Odd::Skip] {
        let said = go("none", odd).unwrap_err();
        assert!(said.ends_with(&format!("can be used: the first, a.npy, {types}")), "{said}");
    }
    array(&arrays.join("b.npy"), &[4, 2], false, |_| 1.0);
    let way_out = "or leave such arrays out with --odd skip";
    assert_eq!(
        go("one", Odd::Refuse).unwrap_err(),
        format!("a.npy {types}: correct it, {way_out}")
    );
    array(&arrays.join("c.npy"), &[4], false, |_| 1.0);
    assert_eq!(
        go("two", Odd::Refuse).unwrap_err(),
        format!("a.npy {types}, and 1 more is unlike the first, too: correct them, {way_out}")
    );
    let converted = go("kept", Odd::Skip).unwrap();
    assert_eq!((converted.samples, converted.shape), (1, [4, 2]));
    let axis = "has one axis, which is time, and not 2 channels";
    let skipped: Vec<_> = converted.skipped.iter().map(|(why, of)| (&**why, of.len())).collect();
    assert_eq!(skipped, [(axis, 1), (types, 1)]);
    let said = converted.to_string();
    assert!(said.starts_with("1 sample of up to 4 steps and 2 channels, "), "{said}");
    fs::remove_file(arrays.join("a.npy")).unwrap();
    assert_eq!(
        go("axis", Odd::Refuse).unwrap_err(),
        format!(
            "c.npy {axis} (1 channel of float32; b.npy has 2 channels of float32): correct it, {way_out}"
        )
    );
}

#[test]
fn arrays_that_are_left_out_are_named() {
    let root = tempfile::tempdir().unwrap();
    let arrays = root.path().join("arrays");
    array(&arrays.join("b/kept.npy"), &[4, 2], false, |_| 1.0);
    for index in 1..=5 {
        array(&arrays.join(format!("b/{index}.npy")), &[0, 2], false, |_| 1.0);
    }
    array(&arrays.join("a.npy"), &[50, 0], false, |_| 1.0);
    array(&arrays.join("c.npy"), &[0, 4, 2], false, |_| 1.0);
    let said = std::sync::Mutex::new(Vec::new());
    let listener = |event: &Event| {
        if let Event::Warning { message } = event {
            said.lock().unwrap().push(message.clone());
        }
    };
    let config = ConvertConfig { odd: Odd::Skip, ..ConvertConfig::default() };
    let converted = convert(&arrays, &root.path().join("out"), &config, &listener).unwrap();
    assert_eq!(
        *said.lock().unwrap(),
        [
            "1 of 8 arrays was left out (`a.npy`): it has no channel",
            "1 of 8 arrays was left out (`c.npy`): it has no sample",
            "5 of 8 arrays were left out (`b/1.npy`, `b/2.npy`, `b/3.npy`, `b/4.npy` and 1 more): each has no step",
        ]
    );
    let text = converted.to_string();
    let end = "; 1 left out (`a.npy`): it has no channel; 1 left out (`c.npy`): it has no sample; 5 left out (`b/1.npy`, `b/2.npy`, `b/3.npy`, `b/4.npy` and 1 more): each has no step";
    assert!(text.ends_with(end), "{text}");
}

/// What a conversion made, and what it warned of.
fn told(arrays: &Path, output: &Path) -> (Converted, Vec<String>) {
    let said = Mutex::new(Vec::new());
    let listener = |event: &Event| {
        if let Event::Warning { message } = event {
            said.lock().unwrap().push(message.clone());
        }
    };
    let converted = convert(arrays, output, &ConvertConfig::default(), &listener).unwrap();
    (converted, said.into_inner().unwrap())
}

#[test]
fn arrays_beside_folders_of_classes_are_told_of() {
    let root = tempfile::tempdir().unwrap();
    let arrays = root.path().join("arrays");
    let said = |output: &str| {
        let (converted, said) = told(&arrays, &root.path().join(output));
        let said = said.join("\n").replace(&arrays.display().to_string(), "ARRAYS");
        (converted.classes.len(), said)
    };
    let write = |path: &str| array(&arrays.join(path), &[4, 2], false, |at| at as f32);
    // Where there are no classes, none is missing.
    write("b.npy");
    assert_eq!(said("no class"), (0, String::new()));
    write("cats/a.npy");
    let expected = "1 of 2 arrays lies beside the folders of classes (`b.npy`), and what it holds has no class: pre-training learns from it, and what learns or scores classes passes it over\n  move it into the folder of its class, or out of ARRAYS if nothing is to learn from it";
    assert_eq!(said("one"), (1, expected.to_owned()));
    ["c.npy", "d.npy", "dogs/a.npy", "e.npy", "f.npy"].iter().for_each(|path| write(path));
    let expected = "5 of 7 arrays lie beside the folders of classes (`b.npy`, `c.npy`, `d.npy`, `e.npy` and 1 more), and what they hold has no class: pre-training learns from it, and what learns or scores classes passes it over\n  move them into the folders of their classes, or out of ARRAYS if nothing is to learn from them";
    assert_eq!(said("several"), (2, expected.to_owned()));
    for name in ["b.npy", "c.npy", "d.npy", "e.npy", "f.npy"] {
        fs::rename(arrays.join(name), arrays.join("cats").join(name)).unwrap();
    }
    assert_eq!(said("all"), (2, String::new()));
}

#[test]
fn folders_without_an_array_beside_those_of_classes_are_told_of() {
    let root = tempfile::tempdir().unwrap();
    let arrays = root.path().join("arrays");
    let said = |output: &str| told(&arrays, &root.path().join(output)).1;
    array(&arrays.join("a.npy"), &[4, 2], false, |at| at as f32);
    fs::create_dir(arrays.join("notes")).unwrap();
    assert_eq!(said("no class"), [""; 0]);
    fs::rename(arrays.join("a.npy"), arrays.join("notes/a.npy")).unwrap();
    for hidden in ["dogs", ".hidden"] {
        fs::create_dir(arrays.join(hidden)).unwrap();
    }
    let expected = "1 folder holds no .npy array, and is no class (`dogs`): put its arrays there, or remove it if no class is meant";
    assert_eq!(said("one"), [expected]);
    fs::create_dir(arrays.join("cats")).unwrap();
    let [both] = &said("two")[..] else { panic!() };
    let expected = "2 folders hold no .npy array, and are no classes (`cats`, `dogs`): put their";
    assert!(both.starts_with(expected), "{both}");
}

#[test]
fn samples_are_not_written_among_files_of_somebody_else() {
    let root = tempfile::tempdir().unwrap();
    let (arrays, output) = (root.path().join("arrays"), root.path().join("samples"));
    array(&arrays.join("a.npy"), &[4, 2], false, |at| at as f32);
    array(&output.join("cats/a.npy"), &[4, 2], false, |at| at as f32);
    let config = ConvertConfig::default();
    let error = convert(&arrays, &output, &config, &Silent).unwrap_err();
    assert!(error.is_bad_input());
    let expected = format!(
        "the folder to write, {}, holds other files, such as `cats`, and no conversion that was begun\n  name a new or an empty folder, or one that a conversion of the same arrays has begun",
        output.display()
    );
    assert_eq!(error.to_string(), expected);
    let left: Vec<_> =
        fs::read_dir(&output).unwrap().flatten().map(|one| one.file_name()).collect();
    assert_eq!(left, ["cats"]);
    // An empty one is taken, and so is one that was begun.
    fs::remove_dir_all(output.join("cats")).unwrap();
    for _ in 0..2 {
        convert(&arrays, &output, &config, &Silent).unwrap();
    }
}

#[test]
fn arrays_of_other_types_axes_and_orders_are_refused_or_left_out() {
    let samples = "and samples hold float16, float32 or float64";
    let axes = "axes (arrays are [time], [time, channel] or [sample, time, channel])";
    let order = "and little-endian arrays in C order are converted (`np.ascontiguousarray(x.astype('<f4'))` makes it one)";
    let check = |kind: &str, shape: &[usize], bytes: usize, fortran: bool, reason: &str| {
        let root = tempfile::tempdir().unwrap();
        let arrays = root.path().join("arrays");
        let path = arrays.join("a.npy");
        write(&path, shape, kind, |_| vec![0; bytes]);
        if fortran {
            // The header stays as long as it is: a blank goes.
            let mut file = fs::read(&path).unwrap();
            let at = file.windows(7).position(|part| part == b"False, ").unwrap();
            file[at..at + 7].copy_from_slice(b"True , ");
            fs::write(&path, file).unwrap();
        }
        array(&arrays.join("b.npy"), &[4, 2], false, |_| 1.0);
        let go = |name: &str, odd| {
            let config = ConvertConfig { odd, ..ConvertConfig::default() };
            convert(&arrays, &root.path().join(name), &config, &Silent)
        };
        let error = go("refused", Odd::Refuse).unwrap_err();
        assert!(error.is_bad_input());
        let said = error.to_string().replace(&format!("{}/", arrays.display()), "");
        let way_out = "correct it, or leave such arrays out with --odd skip";
        assert_eq!(said, format!("a.npy {reason}: {way_out}"));
        // The way out works where the first try began.
        let converted = go("refused", Odd::Skip).unwrap();
        assert_eq!(converted.samples, 1);
        let skipped: Vec<_> = converted.skipped.into_iter().collect();
        assert_eq!(skipped, [(reason.to_owned(), vec!["a.npy".to_owned()])]);
    };
    check("<c8", &[4, 2], 8, false, &format!("holds complex numbers, {samples}"));
    check("<U3", &[4], 12, false, &format!("holds text, {samples}"));
    check("|S3", &[4], 3, false, &format!("holds text, {samples}"));
    check("<M8[ns]", &[4], 8, false, &format!("holds dates, {samples}"));
    check("<m8[s]", &[4], 8, false, &format!("holds durations, {samples}"));
    check("<f4", &[], 4, false, &format!("has 0 {axes}"));
    check("<f4", &[1, 2, 2, 2], 4, false, &format!("has 4 {axes}"));
    check(">f4", &[4, 2], 4, false, &format!("is big-endian, {order}"));
    check("<f4", &[4, 2], 4, true, &format!("is in Fortran order, {order}"));
    check(">i2", &[4, 2], 2, true, &format!("is big-endian and in Fortran order, {order}"));
}

#[test]
fn a_type_that_numpy_lacks_and_a_cut_array_are_errors_with_the_way_out() {
    let root = tempfile::tempdir().unwrap();
    let arrays = root.path().join("arrays");
    array(&arrays.join("b.npy"), &[4, 2], false, |_| 1.0);
    let go = || {
        let config = ConvertConfig::default();
        convert(&arrays, &root.path().join("out"), &config, &Silent).unwrap_err()
    };
    let way_out = "\n  mend or remove it, or leave such arrays out with --odd skip";
    write(&arrays.join("a.npy"), &[4], "<x8", |_| vec![0; 8]);
    assert!(go().to_string().contains("a.npy is not a valid"), "{}", go());
    assert!(go().to_string().ends_with(way_out) && go().is_bad_input(), "{}", go());
    write(&arrays.join("a.npy"), &[4], ">f4", |_| vec![0; 3]);
    assert!(go().to_string().contains("it is cut off: "), "{}", go());
    assert!(go().to_string().ends_with(way_out), "{}", go());
}

#[test]
fn damaged_arrays_and_those_that_are_not_finite_are_left_out_and_named() {
    let root = tempfile::tempdir().unwrap();
    let arrays = root.path().join("arrays");
    let config = ConvertConfig { odd: Odd::Skip, length: 3, ..ConvertConfig::default() };
    let go = |name: &str| convert(&arrays, &root.path().join(name), &config, &Silent);
    // The first would have given the others its channels.
    array(&arrays.join("a.npy"), &[4, 3], false, |at| if at == 4 { f32::NAN } else { 1.0 });
    let said = go("nothing").unwrap_err();
    assert!(said.is_bad_input());
    let expected =
        "a.npy, holds numbers that are not finite in float32 (NaN in sample 0, step 1, channel 1)";
    assert!(said.to_string().ends_with(expected), "{said}");
    array(&arrays.join("x/b.npy"), &[4, 2], false, |at| at as f32);
    array(&arrays.join("y/cut.npy"), &[4, 2], false, |_| 1.0);
    let bytes = fs::read(arrays.join("y/cut.npy")).unwrap();
    fs::write(arrays.join("y/cut.npy"), &bytes[..bytes.len() - 1]).unwrap();
    fs::write(arrays.join("y/text.npy"), "no array").unwrap();
    write(&arrays.join("z/huge.npy"), &[2, 3, 2], "<f8", |at| {
        (if at == 9 { -1e300f64 } else { 1.0 }).to_le_bytes().to_vec()
    });
    // What is cut away is not looked at.
    array(&arrays.join("z/later.npy"), &[4, 2], false, |at| if at < 6 { 2.0 } else { f32::NAN });
    let converted = go("kept").unwrap();
    assert_eq!((converted.samples, converted.shape), (2, [3, 2]));
    assert_eq!(converted.classes, ["x", "z"]);
    let end = "; 2 left out (`a.npy`, `z/huge.npy`): each holds numbers that are not finite in float32 (the first: NaN in sample 0, step 1, channel 1); 2 left out (`y/cut.npy`, `y/text.npy`): each is no valid .npy file (the first: it is cut off: 31 of 32 bytes of values)";
    assert!(converted.to_string().ends_with(end), "{converted}");
    let samples = Samples::open(&root.path().join("kept"), true).unwrap();
    assert_eq!(samples.name(1), Some("z/later"));
    assert_eq!(values(&samples, 0), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(values(&samples, 1), [2.0; 6]);
    assert_eq!(go("kept").unwrap(), converted);
}

#[test]
fn arrays_that_are_cut_off_or_hold_no_number_are_named() {
    let root = tempfile::tempdir().unwrap();
    let arrays = root.path().join("arrays");
    array(&arrays.join("a.npy"), &[4, 2], false, |_| f32::NAN);
    let go = |name: &str| {
        let to = root.path().join(name);
        convert(&arrays, &to, &ConvertConfig::default(), &Silent).unwrap_err().to_string()
    };
    let said = go("nan");
    let expected = "a.npy, sample 0, step 0, channel 0: NaN cannot be stored as f32\n  correct";
    assert!(said.contains(expected), "{said}");
    assert!(said.contains("or leave such arrays out with --odd skip"), "{said}");
    assert!(go("arrays").contains("lies within the other"), "{}", go("arrays"));
    assert!(go("arrays/shards").contains("lies within the other"));
    let path = arrays.join("a.npy");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(go("cut").contains("it is cut off: 31 of 32 bytes of values"), "{}", go("cut"));
    fs::remove_file(path).unwrap();
    array(&arrays.join("a/b/c.npy"), &[4, 2], false, |_| 1.0);
    assert!(go("nested").contains("lies in a folder of a class"), "{}", go("nested"));
    fs::remove_dir_all(arrays.join("a")).unwrap();
    assert!(go("empty").contains("has no .npy file"));
}

#[test]
fn arrays_of_float64_go_with_those_of_float32() {
    let root = tempfile::tempdir().unwrap();
    let (arrays, output) = (root.path().join("arrays"), root.path().join("samples"));
    array(&arrays.join("a.npy"), &[4, 2], false, |at| at as f32);
    let bytes = fs::read(arrays.join("a.npy")).unwrap();
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let mut double = bytes[..end].to_vec();
    let kind = double.windows(2).position(|pair| pair == b"f4").unwrap();
    double[kind + 1] = b'8';
    double.extend((0..8).flat_map(|at| f64::from(at).to_le_bytes()));
    fs::write(arrays.join("b.npy"), double).unwrap();
    convert(&arrays, &output, &ConvertConfig::default(), &Silent).unwrap();
    let samples = Samples::open(&output, true).unwrap();
    assert_eq!(values(&samples, 0), values(&samples, 1));
}
