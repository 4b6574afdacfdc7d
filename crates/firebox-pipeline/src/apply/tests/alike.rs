//! Files that are like those of the training, though not the same in all: by another clock, with more channels, with labels.

use super::*;

/// Minutes of a clock that is early or late by up to `off` seconds, by seed.
fn uneven(path: &Path, seed: u64, seconds: f64, off: f64) {
    let mut draws = Stream::new(seed, "clock").draws();
    let mut text = "time,open,high,low,close\n".to_owned();
    for step in 0..60 {
        let late = off * (2.0 * f64::from(draws.uniform()) - 1.0);
        let micros = (1e6 * (seconds * f64::from(step) + late + 60.0)) as i64;
        let (minutes, rest) = (micros / 60_000_000, micros % 60_000_000);
        let (hour, minute) = (minutes / 60, minutes % 60);
        let (second, rest) = (rest / 1_000_000, rest % 1_000_000);
        write!(text, "2024-03-01T{hour:02}:{minute:02}:{second:02}.{rest:06}").unwrap();
        let price = 100.0 + draws.normal();
        writeln!(text, ",{price},{},{},{price}", price + 1.0, price - 1.0).unwrap();
    }
    std::fs::write(path, text).unwrap();
}

#[test]
fn an_uneven_clock_is_that_of_the_model_if_its_steps_are_on_the_whole() {
    let project = Project::new(&encoder());
    let mut request = project.request(&["a.csv"], Wanted::Embedding { wide: false });
    request.force = true;
    for (seed, off) in [(1, 0.0), (2, 4.0), (3, 9.0), (4, 0.0001)] {
        uneven(&project.at("a.csv"), seed, 60.0, off);
        assert_eq!(run(&request).unwrap().windows, 10, "{off}");
        request.settings = vec!["data.interval=1min".to_owned()];
        assert_eq!(run(&request).unwrap().windows, 10, "{off}");
        request.settings.clear();
    }
    request.force = false;
    std::fs::remove_file(&request.output).unwrap();
    // Another clock, whatever is done about rows that follow too soon.
    for (seconds, off) in
        [(66.0, 0.0), (63.0, 1.0), (61.0, 0.0), (59.0, 0.3), (55.0, 0.0), (45.0, 0.0)]
    {
        uneven(&project.at("a.csv"), 5, seconds, off);
        for crowded in ["error", "drop", "keep"] {
            request.settings = vec![format!("data.checks.crowded={crowded}")];
            let message = refused(&request);
            let expected = "the model was trained on steps of 1min";
            assert!(message.contains(expected), "{seconds} {crowded}: {message}");
        }
    }
}

/// An array of so many channels, whose values name their channel; what is below zero stands still.
fn array(path: &Path, channels: &[f32]) {
    let value = |step: usize, channel: &f32| match *channel < 0.0 {
        true => *channel,
        false => channel * 10.0 + (step * (*channel as usize + 3) % 11) as f32,
    };
    let values = (0..30).flat_map(|step| channels.iter().map(move |channel| value(step, channel)));
    let shape =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': (30, {}), }}", channels.len());
    let header = format!("{shape:<117}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(values.flat_map(f32::to_le_bytes));
    std::fs::write(path, bytes).unwrap();
}

/// An encoder of arrays, of whose channels the third was left out.
fn of_arrays(names: [&str; 4], left_out: &str) -> SavedModel {
    let mut saved = encoder();
    let channels = names.map(|name| Channel::new(name, Role::Other));
    let one = serde_json::json!({ "center": 20.0, "scale": 9.0 });
    let whole =
        serde_json::json!({ "kind": "standard", "channels": channels, "fitted": vec![one; 4] });
    saved.card.normaliser = serde_json::from_value(whole).unwrap();
    saved.card.channels = channels.to_vec();
    saved.card.left_out = vec![left_out.to_owned()];
    saved.card.interval = None;
    saved
}

#[test]
fn arrays_may_have_the_channels_that_the_training_left_out() {
    let numbered = of_arrays(["channel-0", "channel-1", "channel-3", "channel-4"], "channel-2");
    // The training named all, or some other program did.
    let mut named = of_arrays(["u", "v", "x", "y"], "w");
    let names =
        ["u", "v", "w", "x", "y"].map(|name| ChannelColumn { name: name.to_owned(), role: None });
    let columns = Columns { channels: names.into(), ..Columns::default() };
    named.card.data =
        serde_json::to_value(DataConfig { columns, ..DataConfig::default() }).unwrap();
    for saved in [numbered, named] {
        let project = Project::new(&saved);
        let mut request = project.request(&["a.npy"], Wanted::Embedding { wide: true });
        let mut of = |channels: &[f32]| {
            array(&project.at("a.npy"), channels);
            run(&request).unwrap();
            request.force = true;
            rows_by(&request.output, "embedding_", 20, None).series()[0].values.all().to_vec()
        };
        let own = of(&[0.0, 1.0, 3.0, 4.0]);
        assert_eq!(of(&[0.0, 1.0, 2.0, 3.0, 4.0]), own);
        // It had no value, as it may have had none in the training, and another one stands still.
        assert_eq!(of(&[0.0, 1.0, f32::NAN, 3.0, 4.0]), own);
        let still = of(&[-3.0, 1.0, 3.0, 4.0]);
        assert_eq!(of(&[-3.0, 1.0, f32::NAN, 3.0, 4.0]), still);
        assert_ne!(still, own);
        assert_ne!(of(&[0.0, 1.0, 4.0, 3.0]), own);
        std::fs::remove_file(&request.output).unwrap();
        array(&project.at("a.npy"), &[0.0, 1.0, 2.0]);
        let message = refused(&request);
        assert!(message.contains("3 instead of 4 ("), "{message}");
    }
}

#[test]
fn converted_samples_may_have_them_too_and_a_channel_of_the_model_must_have_values() {
    let saved = of_arrays(["channel-0", "channel-1", "channel-3", "channel-4"], "channel-2");
    let project = Project::new(&saved);
    let of = |folder: &str, channels: &[f32]| {
        std::fs::create_dir(project.at(folder)).unwrap();
        array(&project.at(folder).join("a.npy"), channels);
        let (from, to) = (project.at(folder), project.at(&format!("{folder} samples")));
        crate::convert(&from, &to, &crate::ConvertConfig::default(), &Silent).unwrap();
        let name = format!("{folder} samples");
        let mut request = project.request(&[&name], Wanted::Embedding { wide: true });
        request.force = true;
        run(&request).map(|_| {
            rows_by(&request.output, "embedding_", 20, None).series()[0].values.all().to_vec()
        })
    };
    let own = of("own", &[0.0, 1.0, 3.0, 4.0]).unwrap();
    assert_eq!(of("more", &[0.0, 1.0, 2.0, 3.0, 4.0]).unwrap(), own);
    let message = of("other", &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]).unwrap_err().to_string();
    assert!(message.contains("6 instead of 4 ("), "{message}");
    array(&project.at("a.npy"), &[0.0, 1.0, f32::NAN, 4.0]);
    let without = ApplyRequest {
        output: project.at("without.parquet"),
        ..project.request(&["a.npy"], Wanted::Embedding { wide: true })
    };
    let message = refused(&without);
    assert!(message.contains("`channel-3` has no finite value"), "{message}");
}

#[test]
fn labels_beside_arrays_are_no_arrays() {
    let mut saved = of_arrays(["channel-0", "channel-1", "channel-2", "channel-3"], "channel-4");
    saved.card.left_out.clear();
    let columns = Columns { label: Some("y".to_owned()), ..Columns::default() };
    let labelled = DataConfig { columns, ..DataConfig::default() };
    for (data, settings) in
        [(labelled, vec![]), (DataConfig::default(), vec!["data.columns.label=y".to_owned()])]
    {
        saved.card.data = serde_json::to_value(data).unwrap();
        let project = Project::new(&saved);
        std::fs::create_dir(project.at("in")).unwrap();
        for name in ["in/a.npy", "in/b.npy"] {
            array(&project.at(name), &[0.0, 1.0, 2.0, 3.0]);
        }
        array(&project.at("in/a.y.npy"), &[1.0]);
        let mut request = project.request(&["in"], Wanted::Embedding { wide: true });
        request.settings = settings;
        let applied = run(&request).unwrap();
        assert_eq!((applied.files, applied.series), (2, 2));
    }
}
