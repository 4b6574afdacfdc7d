//! Groups of series, by a column or by their names, and the names of files of one name.

use std::fmt::Write;
use std::fs;

use firebox_core::{Key, SeriesSet, Silent};
use firebox_data::{ingest, read, stored};
use polars::prelude::*;

use crate::{Files, bars, npy};

/// Recordings of three subjects, of which each row says the group.
fn recordings() -> String {
    let mut text = "time,recording,subject,x\n".to_owned();
    // In an order in which no group stands together.
    for step in 0..6 {
        for recording in ["r3", "r1", "r4", "r2"] {
            let subject = match recording {
                "r1" | "r4" => "Ann",
                "r2" => "Bob",
                _ => "Cy",
            };
            let value = step * step + recording.len() as i32 + i32::from(subject == "Cy");
            writeln!(text, "2024-01-02T00:0{step}:00,{recording}, {subject},{value}").unwrap();
        }
    }
    text
}

const COLUMNS: &str = "columns = { series = 'recording', group = 'subject' }";

fn told(set: &SeriesSet) -> Vec<(String, String)> {
    let group = |series: &firebox_core::Series| series.group.as_deref().unwrap_or("-").to_owned();
    set.series().iter().map(|series| (series.name.clone(), group(series))).collect()
}

fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(name, group)| ((*name).to_owned(), (*group).to_owned())).collect()
}

#[test]
fn a_column_says_which_series_belong_together() {
    let files = Files::new();
    let path = files.write("a.csv", recordings());
    let frame = LazyCsvReader::new(PlRefPath::try_from_path(&path).unwrap()).finish().unwrap();
    let mut frame = frame.collect().unwrap();
    let parquet = fs::File::create(files.path("a.parquet")).unwrap();
    ParquetWriter::new(parquet).with_row_group_size(Some(5)).finish(&mut frame).unwrap();
    IpcWriter::new(fs::File::create(files.path("a.arrow")).unwrap()).finish(&mut frame).unwrap();
    let expected = pairs(&[("r3", "Cy"), ("r1", "Ann"), ("r4", "Ann"), ("r2", "Bob")]);
    for name in ["a.csv", "a.parquet", "a.arrow"] {
        let first = files.ingest(name, COLUMNS).unwrap();
        assert_eq!((told(&first.set), first.set.groups()), (expected.clone(), 3), "{name}");
        // The column is no channel.
        assert_eq!(first.set.channels().len(), 1, "{name}");
        let again = files.ingest(name, COLUMNS).unwrap();
        assert!(again.reused && again.set == first.set, "{name}");
        let (kept, _) = stored(&files.cache(), first.key).unwrap();
        assert_eq!(kept, *first.set, "{name}");
        let (once, _) = read(&files.config(name, COLUMNS), &Silent).unwrap();
        assert_eq!(told(&once), expected, "{name}");
    }
    // Without the key nothing is grouped, and all is as it was.
    let plain =
        files.ingest("a.csv", "columns = { series = 'recording', channels = ['x'] }").unwrap();
    assert_eq!((plain.set.groups(), &*plain.set.series()[3].name), (0, "r2"));
}

#[test]
fn what_was_stored_before_its_groups_were_gets_them() {
    let files = Files::new();
    files.write("a.csv", recordings());
    let config = files.config("a.csv", COLUMNS);
    let first = ingest(&config, &files.cache(), &Silent).unwrap();
    let manifest = firebox_data::stored_at(&files.cache(), first.key).join("manifest.json");
    // A run that was killed between the two left it like this.
    let text = fs::read_to_string(&manifest).unwrap();
    let mut bare: serde_json::Value = serde_json::from_str(&text).unwrap();
    for entry in bare["series"].as_array_mut().unwrap() {
        assert!(entry.as_object_mut().unwrap().remove("group").is_some());
    }
    // Nor was there a checksum then, which the groups bring.
    assert!(bare.as_object_mut().unwrap().remove("checksum").is_some());
    fs::write(&manifest, bare.to_string()).unwrap();
    let again = ingest(&config, &files.cache(), &Silent).unwrap();
    assert!(again.reused && again.set == first.set);
    assert_eq!(fs::read_to_string(&manifest).unwrap(), text);
    let names: Vec<_> = fs::read_dir(manifest.parent().unwrap()).unwrap().flatten().collect();
    assert_eq!(names.len(), 3, "nothing temporary is left");
}

#[test]
fn several_files_may_name_a_series_and_a_test_set_has_names_of_its_own() {
    let files = Files::new();
    files.write("a.csv", recordings());
    files.write("b.csv", recordings().replace("T00:", "T01:"));
    files.write("t.csv", recordings().replace("Ann", "Dee").replace("T00:", "T02:"));
    let mut config = files.config("a.csv", COLUMNS);
    config.path.0.push(files.path("b.csv"));
    config.test = Some(firebox_data::Paths(vec![files.path("t.csv")]));
    config.checks.gaps = firebox_data::GapPolicy::Split;
    let found = ingest(&config, &files.cache(), &Silent).unwrap();
    let expected = [
        ("r3", "Cy"),
        ("test/r3", "Cy"),
        ("r1", "Ann"),
        ("r4", "Ann"),
        ("r2", "Bob"),
        ("test/r2", "Bob"),
        ("test/r1", "Dee"),
        ("test/r4", "Dee"),
    ];
    assert_eq!(told(&found.set), pairs(&expected));
}

#[test]
fn a_number_is_one_group_however_it_is_written() {
    let files = Files::new();
    let text = |subject: &str, recording: &str| {
        let row =
            |step: usize| format!("2024-01-02T00:0{step},{recording},{subject},{}\n", step * step);
        format!("time,recording,subject,x\n{}", (0..6).map(row).collect::<String>())
    };
    files.write("a.csv", text("7", "r1"));
    files.write("b.csv", text("7.0", "r2"));
    let config = |test: &str| {
        let mut config = files.config("a.csv", COLUMNS);
        config.test = Some(firebox_data::Paths(vec![files.path(test)]));
        config
    };
    let found = ingest(&config("b.csv"), &files.cache(), &Silent).unwrap();
    assert_eq!(told(&found.set), pairs(&[("r1", "7"), ("r2", "7")]));
    assert_eq!(found.set.groups(), 1);
    // So it is among the rows of one series.
    let later = text("7.0", "r1").replace("T00:0", "T00:1");
    files.write("c.csv", text("7", "r1") + later.split_once('\n').unwrap().1);
    let gaps = format!("{COLUMNS}\nchecks = {{ gaps = 'split' }}");
    assert_eq!(told(&files.ingest("c.csv", &gaps).unwrap().set), pairs(&[("r1", "7")]));
    // Words that letter case alone tells apart stay two, and are told.
    files.write("d.csv", text("Ann", "r1") + text("ann", "r2").split_once('\n').unwrap().1);
    let said = std::sync::Mutex::new(String::new());
    let listener = |event: &firebox_core::Event| {
        if let firebox_core::Event::Warning { message } = event {
            *said.lock().unwrap() += message;
        }
    };
    let found = ingest(&files.config("d.csv", COLUMNS), &files.cache(), &listener).unwrap();
    assert_eq!(found.set.groups(), 2);
    let said = said.into_inner().unwrap();
    assert!(said.starts_with("groups of series differ by letter case, spaces or how a number is written alone: `Ann` and `ann`: each is a group of its own"), "{said}");
}

#[test]
fn a_pattern_finds_groups_in_names() {
    let files = Files::new();
    let wave = |seed: usize| npy(&[4, 1], &[1.0, seed as f64, 0.5, 2.0]);
    for (index, name) in ["P1_walk", "P2_run", "P1_run", "P2_walk"].into_iter().enumerate() {
        files.write(&format!("clips/{name}.npy"), wave(index));
    }
    let toml = "group_pattern = '^([A-Z]+\\d+)_'";
    let found = files.ingest("clips", toml).unwrap();
    let expected = [("P1_run", "P1"), ("P1_walk", "P1"), ("P2_run", "P2"), ("P2_walk", "P2")];
    assert_eq!(told(&found.set), pairs(&expected));
    // Without parentheses, all that is found names the group.
    let of_kind = files.ingest("clips", "group_pattern = 'run|walk'").unwrap();
    assert_eq!(of_kind.set.units(), [0, 0, 2, 2]);
    assert_ne!(of_kind.key, found.key);

    let said = files.error("clips", "group_pattern = '_(r.*)'");
    assert!(said.starts_with("2 of 4 series are without a group, such as `P1_walk`: `data.group_pattern` = \"_(r.*)\" is not found in their names"), "{said}");
    let said = files.error("clips", "group_pattern = '('");
    assert!(said.contains("is no regular expression: unclosed group"), "{said}");
    let said = files.error("clips", "columns = { group = 'subject' }");
    assert!(said.contains("`data.columns.group` does not apply to npy files"), "{said}");
}

#[test]
fn groups_that_contradict_or_are_missing_are_refused_with_their_rows() {
    let files = Files::new();
    files.write("a.csv", recordings().replacen("r1, Ann", "r1, Bob", 1));
    let said = files.error("a.csv", COLUMNS);
    let expected = "a.csv, row 6, column `subject`: `Ann` is not the group `Bob` that the series `r1` has in row 2 of a.csv: ";
    assert!(said.starts_with(expected), "{said}");
    files.write("b.csv", recordings().replacen("r1, Ann", "r1,", 1));
    let said = files.error("b.csv", COLUMNS);
    assert!(said.starts_with("b.csv, row 2, column `subject`: `` names no group: every"), "{said}");
    // What programs write for a missing name is shown, wherever in the file it stands.
    files.write("n.csv", recordings().replacen("r4, Ann", "r4,nan", 1));
    let said = files.error("n.csv", COLUMNS);
    let expected = "n.csv, row 3, column `subject`: `nan` names no group, as programs write it for one that is missing: every row";
    assert!(said.starts_with(expected), "{said}");
    let said = files.error("a.csv", "columns = { series = 'recording', group = 'subjct' }");
    assert!(said.contains("data.columns.group") && said.contains("subject"), "{said}");
    let said = files.error("a.csv", "columns = { series = 'subject', group = 'subject' }");
    assert!(said.contains("is used as series and as group"), "{said}");
    let said = files.error("a.csv", &format!("group_pattern = 'r'\n{COLUMNS}"));
    assert!(said.contains("`data.group_pattern` does not apply"), "{said}");
}

#[test]
fn files_of_one_name_are_named_by_their_folders() {
    let files = Files::new();
    for (index, folder) in ["x/day=1/s=A", "x/day=1/s=B", "x/day=2/s=A"].into_iter().enumerate() {
        files.write(&format!("{folder}/p.csv"), bars(20 + index));
    }
    files.write("x/day=1/s=A/other.csv", bars(30));
    let ingested = |folders: &[&str]| {
        let mut config = files.config(folders[0], "");
        config.path.0.extend(folders[1..].iter().map(|folder| files.path(folder)));
        let found = ingest(&config, &files.cache(), &Silent).unwrap();
        let names: Vec<String> =
            found.set.series().iter().map(|series| series.name.clone()).collect();
        (names, found.key)
    };
    let (two, key) = ingested(&["x/day=1/s=A", "x/day=1/s=B"]);
    assert_eq!(two, ["other", "s=A/p", "s=B/p"]);
    let three: (Vec<String>, Key) = ingested(&["x/day=1/s=A", "x/day=1/s=B", "x/day=2/s=A"]);
    assert_eq!(three.0, ["other", "day=1/s=A/p", "day=1/s=B/p", "day=2/s=A/p"]);
    assert_ne!(key, three.1);
    // A folder is a group then.
    let mut config = files.config("x/day=1/s=A/p.csv", "group_pattern = '(.*)/p'");
    config.path.0.push(files.path("x/day=1/s=B"));
    let found = ingest(&config, &files.cache(), &Silent).unwrap();
    assert_eq!(told(&found.set), pairs(&[("s=A/p", "s=A"), ("s=B/p", "s=B")]));
}
