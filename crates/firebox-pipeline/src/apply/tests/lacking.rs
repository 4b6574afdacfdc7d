//! Files without the columns of times or of series that the training named.

use super::*;

/// An encoder of data whose times stand in `when` and whose series in `machine`.
fn trained(interval: Option<i64>) -> SavedModel {
    let mut saved = encoder();
    let mut data = DataConfig::default();
    data.columns.time = Some("when".to_owned());
    data.columns.series = Some("machine".to_owned());
    data.columns.label = Some("machines".to_owned());
    saved.card.data = serde_json::to_value(data).unwrap();
    saved.card.interval = interval;
    saved
}

/// Bars with the columns of the training but those that are left out, and `first` in place of `time`.
fn file(path: &Path, seed: u64, without: &[&str], first: &str) {
    bars(path, seed, 60, 1, &ORDER);
    let text = std::fs::read_to_string(path).unwrap();
    let line = |(row, line): (usize, &str)| {
        let (time, rest) = line.split_once(',').unwrap();
        let mut fields = vec![];
        if !without.contains(&"when") {
            fields.push(if row == 0 { first } else { time });
        }
        if !without.contains(&"machine") {
            fields.push(if row == 0 { "machine" } else { "M1" });
        }
        fields.push(rest);
        fields.join(",") + "\n"
    };
    std::fs::write(path, text.lines().enumerate().map(line).collect::<String>()).unwrap();
}

#[test]
fn a_file_without_the_column_of_series_is_one_series() {
    let project = Project::new(&trained(Some(60_000_000)));
    std::fs::create_dir(project.at("in")).unwrap();
    file(&project.at("in/a.csv"), 1, &["machine"], "when");
    file(&project.at("in/b.csv"), 2, &["machine"], "when");
    let mut request = project.request(&["in"], Wanted::Embedding { wide: true });
    let (applied, warnings) = heard(&request);
    // 60 steps, windows of 12 every 5: ten of each file.
    assert_eq!((applied.windows, applied.series, applied.files), (20, 2, 2));
    let told: Vec<&String> = warnings.iter().filter(|one| one.contains("`machine`")).collect();
    let [told] = told[..] else { panic!("once for all files: {warnings:?}") };
    assert!(told.contains("a.csv has no column `machine`, which named the series"), "{told}");
    assert!(told.contains("it is read as one series"), "{told}");
    let found = rows(&request.output, "embedding_", 20);
    let names: Vec<&str> = found.series().iter().map(|series| series.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    // Whoever names a column himself means it.
    request.force = true;
    request.settings = vec!["data.columns.series=machine".to_owned()];
    let message = run(&request).unwrap_err().to_string();
    assert!(message.contains("has no column `machine`, which `data.columns.series`"), "{message}");
    // One that may be meant is not passed over, but for what other columns are called.
    request.settings.clear();
    let path = project.at("in/a.csv");
    let text = std::fs::read_to_string(&path).unwrap();
    let renamed = |name: &str| {
        let lines = text.lines().enumerate();
        let line = |(row, line): (usize, &str)| match row {
            0 => format!("{line},{name}\n"),
            _ => format!("{line},M1\n"),
        };
        std::fs::write(&path, lines.map(line).collect::<String>()).unwrap();
    };
    renamed("Machine");
    let message = run(&request).unwrap_err().to_string();
    assert!(message.contains("did you mean `Machine`?"), "{message}");
    assert!(message.contains("--set \"data.columns.series=Machine\""), "{message}");
    renamed("machines");
    assert_eq!(heard(&request).0.windows, 20, "the column of the labels");
}

#[test]
fn a_file_without_the_column_of_times_is_numbered_if_the_length_of_its_steps_is_said() {
    let project = Project::new(&trained(Some(60_000_000)));
    file(&project.at("a.csv"), 1, &["when", "machine"], "when");
    let mut request = project.request(&["a.csv"], Wanted::Embedding { wide: true });
    let message = refused(&request);
    for part in
        ["has no column `when`, which held the times in training", "--set data.interval=1min"]
    {
        assert!(message.contains(part), "{part}: {message}");
    }
    request.settings = vec!["data.interval=1min".to_owned()];
    let (applied, warnings) = heard(&request);
    assert_eq!((applied.windows, applied.series), (10, 1));
    let said = |part: &str| warnings.iter().any(|warning| warning.contains(part));
    assert!(said("has no column `when`") && said("its rows are numbered"), "{warnings:?}");
    assert!(said("has no column `machine`"), "{warnings:?}");
    // Times under a usual name are read, and a model without a step needs none.
    (request.force, request.settings) = (true, vec![]);
    file(&project.at("a.csv"), 1, &["machine"], "timestamp");
    let (applied, warnings) = heard(&request);
    assert_eq!(applied.windows, 10);
    let from = "they are read from `timestamp`";
    assert!(warnings.iter().any(|warning| warning.contains(from)), "{warnings:?}");
    let project = Project::new(&trained(None));
    file(&project.at("a.csv"), 1, &["when", "machine"], "when");
    let request = project.request(&["a.csv"], Wanted::Embedding { wide: true });
    assert_eq!(heard(&request).0.windows, 10);
}

#[test]
fn files_with_a_column_and_files_without_it_are_not_read_as_one_kind() {
    let project = Project::new(&trained(Some(60_000_000)));
    std::fs::create_dir(project.at("in")).unwrap();
    file(&project.at("in/a.csv"), 1, &[], "when");
    file(&project.at("in/b.csv"), 2, &["machine"], "when");
    let message = refused(&project.request(&["in"], Wanted::Embedding { wide: true }));
    assert!(message.contains("b.csv has no column `machine`"), "{message}");
    assert!(message.contains("a.csv has one"), "{message}");
    assert!(message.contains("apart"), "{message}");
}
