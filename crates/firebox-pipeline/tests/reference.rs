//! REFERENCE.md lists every key of a pipeline file. Its keys and choices are compared with what a file is
//! refused with that has another one, and its defaults with those of an empty table.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::BTreeSet;
use std::path::Path;

use firebox_pipeline::{ConfigError, PipelineConfig, load};
use serde_json::Value;

/// Tables with the same keys, as a file has them (`[train.groups]` with its brackets; nothing for the file
/// itself), and what the page says of them.
struct Section {
    headers: Vec<String>,
    rows: Vec<Row>,
}

/// A key, or a choice, which has no default.
struct Row {
    name: String,
    /// What may be written: the texts between backticks in the row.
    quoted: BTreeSet<String>,
    default: Option<String>,
    is_list: bool,
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn sections() -> Vec<Section> {
    let page = Path::new("../../REFERENCE.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut all = vec![Section { headers: vec![String::new()], rows: vec![] }];
    let mut columns = 0;
    for line in page.lines() {
        if let Some(title) = line.strip_prefix("### ") {
            all.push(Section { headers: quoted(title).map(str::to_owned).collect(), rows: vec![] });
        }
        if !line.starts_with('|') {
            columns = 0;
            continue;
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        match (columns, &cells[..]) {
            (_, ["key", "type", "default", "meaning"]) => columns = 4,
            (_, ["choice", "meaning"]) => columns = 2,
            (0, _) => {}
            (_, [first, ..]) if first.starts_with("---") => {}
            (columns, cells) if columns == cells.len() => {
                let quoted = quoted(line).map(|text| spelt(text.trim_matches('"'))).collect();
                let default = (columns == 4).then(|| cells[2].to_owned());
                let name = cells[0].trim_matches('`').to_owned();
                let is_list = columns == 4 && cells[1].starts_with("list");
                all.last_mut().unwrap().rows.push(Row { name, quoted, default, is_list });
            }
            _ => panic!("{line}: its table has {columns} columns"),
        }
    }
    all
}

/// A name in one spelling, where it has two.
fn spelt(name: &str) -> String {
    name.replace('_', "-")
}

/// The keys that a header stands for.
fn path(header: &str) -> Vec<&str> {
    header.trim_matches(['[', ']']).split('.').filter(|key| !key.is_empty()).collect()
}

fn read(text: &str) -> Result<PipelineConfig, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("p.toml");
    std::fs::write(&file, text).unwrap();
    load(&file, [], &[])
}

/// The keys or choices that may stand below a header, and whether they are choices.
fn below(header: &str) -> Option<(BTreeSet<String>, bool)> {
    let said = read(&format!("{header}\nzzz = {{}}\n")).err()?.to_string();
    let (_, list) = said.split_once("allowed here: ")?;
    let list = list.lines().next().filter(|list| *list != "none")?;
    Some((list.split(", ").map(spelt).collect(), said.contains("unknown choice")))
}

#[test]
fn the_page_has_every_key_and_every_choice() {
    let sections = sections();
    let known: BTreeSet<&str> =
        sections.iter().flat_map(|section| &section.headers).map(String::as_str).collect();
    assert!(known.len() > 100, "only {} tables were found", known.len());
    for Section { headers, rows } in &sections {
        for header in headers {
            let listed: BTreeSet<String> = rows.iter().map(|row| spelt(&row.name)).collect();
            let found = below(header).map(|(names, _)| names);
            assert_eq!(Some(listed), found, "{header}: left the page, right what is read");
            for Row { name, quoted, is_list, .. } in rows {
                let full = [&path(header)[..], &[name.as_str()]].concat().join(".");
                let inner = if *is_list { format!("[[{full}]]") } else { format!("[{full}]") };
                let Some((names, choices)) = below(&inner) else { continue };
                let told = known.contains(inner.as_str()) || (choices && names.is_subset(quoted));
                assert!(told, "{inner}: neither a table of the page nor in its row: {names:?}");
            }
        }
    }
}

/// Whether nothing is set.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(table) => table.is_empty(),
        _ => false,
    }
}

/// Whether two values are the same, 1 and 1.0 among them.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        _ => a == b,
    }
}

#[test]
fn the_page_has_the_defaults() {
    let mut compared = 0;
    for Section { headers, rows } in sections() {
        // Choices have none, and tables with a key that is required cannot be empty.
        let defaults = || rows.iter().filter_map(|row| Some((&row.name, row.default.as_deref()?)));
        for header in headers.iter().filter(|_| defaults().next().is_some()) {
            let config = match read(header) {
                Ok(config) => serde_json::to_value(config).unwrap(),
                Err(error) => {
                    let required = defaults().any(|(_, default)| default == "required");
                    assert!(required, "{header}: {error}");
                    continue;
                }
            };
            let mut table = &config;
            for key in path(header) {
                table = &table[key];
                table = table.get(0).unwrap_or(table);
            }
            // Defaults in words are not compared.
            for (name, default) in defaults().filter(|_| !table.is_null()) {
                let found = &table[name.as_str()];
                let value = default.strip_prefix('`').and_then(|text| text.strip_suffix('`'));
                let fits = match value.map(|text| toml::from_str(&format!("value = {text}"))) {
                    None if default != "none" => continue,
                    None => is_nothing(found),
                    Some(written) => {
                        let written: toml::Table = written.unwrap();
                        let written = serde_json::to_value(written.get("value")).unwrap();
                        // What is off is left out of the settings that make keys.
                        same(&written, found) || (found.is_null() && written == Value::Bool(false))
                    }
                };
                assert!(fits, "{header} {name}: {default} on the page, {found} in an empty table");
                compared += 1;
            }
        }
    }
    assert!(compared > 200, "only {compared} defaults were compared");
}

#[test]
fn examples_of_names_are_those_of_the_default_model() {
    let device = burn::tensor::Device::default();
    let stream = firebox_core::Stream::new(1, "weights");
    let model = firebox_models::BiLstmMaeConfig::default().init(stream, 4, &device).unwrap();
    let page = std::fs::read_to_string("../../REFERENCE.md").unwrap();
    let mut found = 0;
    for (header, key, form) in [
        ("### `[[train.groups]]`", "| `parameters` |", r#"{"groups": [{"parameters": [NAME]}]}"#),
        (
            "### `[train.layer_decay]`",
            "| `layers` |",
            r#"{"layer_decay": {"factor": 0.5, "layers": [NAME]}}"#,
        ),
    ] {
        let section = page.split_once(header).unwrap().1;
        let row = section.lines().find(|line| line.starts_with(key)).unwrap();
        for name in quoted(row).filter(|text| text.starts_with('"')) {
            let config = serde_json::from_str(&form.replace("NAME", name)).unwrap();
            firebox_train::check_groups(&model, &config).unwrap();
            found += 1;
        }
    }
    assert!(found >= 4, "{found} examples");
}

#[test]
fn features_of_timeframes_are_those_that_are_made() {
    let page = std::fs::read_to_string("../../REFERENCE.md").unwrap();
    let (_, section) = page.split_once("### Features of timeframes").unwrap();
    let rows = || section.lines().take_while(|line| !line.starts_with("###"));
    let all = |row: &str| -> Vec<String> {
        let names =
            rows().filter(|line| line.starts_with(row)).filter_map(|line| line.split(" | ").nth(1));
        names.flat_map(quoted).map(str::to_owned).collect()
    };
    let frames = firebox_data::Timeframes::default();
    let named = |frame: &firebox_data::Interval, names: Vec<String>| {
        names.into_iter().map(|name| format!("{frame}_{name}")).collect::<Vec<_>>()
    };
    let mut expected = named(&frames.base, all("| base |"));
    for frame in &frames.higher {
        expected.extend(named(frame, all("| each longer one |")));
    }
    expected.extend(all("| none |"));
    assert_eq!(expected, frames.names());
}
