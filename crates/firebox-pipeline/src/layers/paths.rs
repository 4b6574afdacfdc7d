//! Paths of a pipeline file, which start at its folder wherever it is read from.

use std::path::Path;

use toml::Table;

/// Keys whose values are paths, or for `data` lists of them.
pub(crate) const PATHS: [&str; 9] = [
    "data.path",
    "data.test",
    "finetune.encoder",
    "monitor.mlflow.to",
    "monitor.tensorboard.folder",
    "search.storage",
    "text.encoder.folder",
    "text.path",
    "text.test",
];

/// Makes the paths of a file relative to its folder: those of its keys, and those that a search may give
/// to them.
pub(super) fn anchor_paths(table: &mut Table, folder: &Path) {
    for path in PATHS {
        let mut keys = path.split('.');
        let first = keys.next().and_then(|key| table.get_mut(key));
        let value = keys.fold(first, |at, key| at.and_then(|table| table.get_mut(key)));
        value.into_iter().for_each(|value| anchor(value, folder));
    }
    let space = table.get_mut("search").and_then(|search| search.get_mut("space"));
    for (key, entry) in space.and_then(toml::Value::as_table_mut).into_iter().flatten() {
        if let Some(choices) = entry.get_mut("choices").filter(|_| PATHS.contains(&key.as_str())) {
            anchor(choices, folder);
        }
        let when = entry.get_mut("when").and_then(toml::Value::as_table_mut);
        for (_, choice) in when.into_iter().flatten().filter(|(on, _)| PATHS.contains(&on.as_str()))
        {
            anchor(choice, folder);
        }
    }
}

fn anchor(value: &mut toml::Value, folder: &Path) {
    match value {
        toml::Value::Array(paths) => paths.iter_mut().for_each(|path| anchor(path, folder)),
        toml::Value::String(path) if !path.trim().is_empty() && !path.contains("://") => {
            *path = folder.join(&*path).display().to_string();
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use crate::PipelineConfig;
    use crate::layers::tests::read;

    #[test]
    fn paths_of_the_file_start_at_its_folder_and_others_where_the_user_is() {
        let path = |config: PipelineConfig| serde_json::to_string(&config.data.path).unwrap();
        let text = "[data]\npath = \"bars.csv\"\n";
        assert_eq!(path(read(text, &[], &[]).unwrap()), "\"folder/bars.csv\"");
        assert_eq!(path(read(text, &[], &["data.path=x/y.csv"]).unwrap()), "\"x/y.csv\"");
        let text = "[monitor.tensorboard]\nfolder = \"tb\"\n[monitor.mlflow]\nto = \"ml\"\n";
        let trackers = |settings: &[&str]| {
            let monitor = read(text, &[], settings).unwrap().monitor;
            (monitor.tensorboard.map(|board| board.folder), monitor.mlflow.map(|mlflow| mlflow.to))
        };
        let expected = (Some(PathBuf::from("folder/tb")), Some("folder/ml".to_owned()));
        assert_eq!(trackers(&[]), expected);
        let expected = (Some(PathBuf::from("folder/tb")), Some("http://a".to_owned()));
        assert_eq!(trackers(&["monitor.mlflow.to=http://a"]), expected);
        assert_eq!(trackers(&["monitor.tensorboard=false", "monitor.mlflow=false"]), (None, None));
    }

    #[test]
    fn paths_that_a_search_chooses_among_start_where_those_of_the_file_do() {
        let text = r#"
            [search.space]
            "text.encoder.folder" = { choices = ["one", "/two", "https://three"] }
            "text.heads.pooling" = { choices = ["cls", "mean"] }
            "text.heads.dropout" = { low = 0.0, high = 0.5, when = { "text.encoder.folder" = "one" } }
        "#;
        let space = |text: &str, settings: &[&str]| {
            let entries = read(text, &[], settings).unwrap().search.unwrap().space.into_iter();
            let shown = entries.map(|(key, entry)| {
                (key, serde_json::to_string(&(entry.choices, entry.when)).unwrap())
            });
            shown.collect::<std::collections::BTreeMap<_, _>>()
        };
        let found = space(text, &[]);
        assert_eq!(found["text.encoder.folder"], r#"[["folder/one","/two","https://three"],null]"#);
        assert_eq!(found["text.heads.pooling"], r#"[["cls","mean"],null]"#);
        assert_eq!(found["text.heads.dropout"], r#"[null,{"text.encoder.folder":"folder/one"}]"#);
        let set = r#"search.space."text.encoder.folder"={choices=["one"]}"#;
        assert_eq!(space("", &[set])["text.encoder.folder"], r#"[["one"],null]"#);
    }
}
