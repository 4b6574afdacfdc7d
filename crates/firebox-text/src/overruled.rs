//! What a folder's `tokenizer_config.json` says otherwise than its `tokenizer.json`: `transformers` goes by the former,
//! and would make other tokens.
//!
//! Padding and truncation are not looked at, for batches and lengths are the pipeline's own.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::TextError;
use crate::error::{content, json, read, saved_by_python};
use crate::folder::TOKENIZER;

/// The file that overrules.
const CONFIG: &str = "tokenizer_config.json";

/// Classes of `transformers`, but for `Fast` at their end, that make their normaliser anew from that file.
const BERT: [&str; 3] = ["BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"];
/// Classes that make their pre-tokenizer anew.
const ROBERTA: [&str; 2] = ["RobertaTokenizer", "LongformerTokenizer"];

/// The parts of a `tokenizer.json` that can be overruled.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
}

impl Parts {
    /// Each setting of a class, or of the family's own where none is named, with what this file does.
    fn settings(&self, class: Option<&str>) -> Vec<(&'static str, bool)> {
        let is_one = |classes: &[&str]| class.is_none_or(|class| classes.contains(&class));
        let mut found = vec![];
        if is_one(&BERT) && self.normalizer["type"] == "BertNormalizer" {
            let says = |key: &str| self.normalizer[key].as_bool();
            found.push(("do_lower_case", says("lowercase")));
            // Where that is open, accents are dropped with capitals.
            found.push(("strip_accents", says("strip_accents").or(says("lowercase"))));
            found.push(("tokenize_chinese_chars", says("handle_chinese_chars")));
        }
        if is_one(&ROBERTA) && self.pre_tokenizer["type"] == "ByteLevel" {
            found.push(("add_prefix_space", self.pre_tokenizer["add_prefix_space"].as_bool()));
        }
        found.into_iter().filter_map(|(key, does)| Some((key, does?))).collect()
    }
}

/// Refuses a folder whose `tokenizer_config.json` is there and asks for other tokens than its `tokenizer.json` makes.
/// What it leaves out is not looked at, though `transformers` 5.24 takes `do_lower_case` for true there, nor is a class that goes by `tokenizer.json` alone. Source: `transformers` 5.24.
///
/// # Errors
/// If they differ, or one of the two is no JSON.
pub fn check_tokenizer_config(folder: &Path) -> Result<(), TextError> {
    let (path, own) = (folder.join(CONFIG), folder.join(TOKENIZER));
    // That there is no tokenizer is told by what reads it.
    if !path.is_file() || !own.is_file() {
        return Ok(());
    }
    let config = json(&path)?;
    let class = config["tokenizer_class"].as_str();
    let class = class.map(|class| class.strip_suffix("Fast").unwrap_or(class));
    let parts: Parts = serde_json::from_slice(&read(&own)?)
        .map_err(|error| content(&own, format!("is not JSON: {error}")))?;
    let asked = |key: &str| config[key].as_bool();
    let mut settings = parts.settings(class).into_iter();
    let differs = settings.find(|(key, does)| asked(key).is_some_and(|asked| asked != *does));
    let Some((key, does)) = differs else { return Ok(()) };
    Err(content(
        &path,
        format!(
            "sets `{key}` to {}, and {TOKENIZER} beside it does what {does} means: `transformers` goes by the \
             former, and makes other tokens than {TOKENIZER} by itself. Write one that agrees once with Python: {}; \
             or set `{key}` to {does} if {TOKENIZER} is what the model was trained with",
            !does,
            saved_by_python("AutoTokenizer", folder)
        ),
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test says why it fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    /// What is said of a tokenizer of the golden ones, changed so, beside these settings.
    fn said(name: &str, change: impl FnOnce(&mut Value), config: &Value) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let golden = Path::new("tests/golden/tokenizers").join(name);
        let mut own = json(&golden).unwrap();
        change(&mut own);
        std::fs::write(folder.path().join(TOKENIZER), own.to_string()).unwrap();
        std::fs::write(folder.path().join(CONFIG), config.to_string()).unwrap();
        check_tokenizer_config(folder.path()).err().map(|error| error.to_string())
    }

    /// Checks which settings are refused: those with which `transformers` 5.24 gave other tokens than `tokenizers` did.
    #[test]
    fn settings_that_transformers_overrules_the_tokenizer_by_are_refused() {
        let as_it_is = |_: &mut Value| {};
        for (name, config, refused) in [
            ("wordpiece.json", json!({}), false),
            ("wordpiece.json", json!({ "do_lower_case": false }), true),
            ("wordpiece.json", json!({ "do_lower_case": true, "strip_accents": null }), false),
            ("wordpiece.json", json!({ "strip_accents": false }), true),
            ("wordpiece.json", json!({ "strip_accents": true }), false),
            ("wordpiece.json", json!({ "tokenize_chinese_chars": false }), true),
            ("wordpiece.json", json!({ "truncation_side": "left" }), false),
            ("wordpiece-cased.json", json!({ "do_lower_case": true }), true),
            ("wordpiece-cased.json", json!({ "strip_accents": false }), false),
            ("byte-level.json", json!({ "add_prefix_space": true }), true),
            ("byte-level.json", json!({ "add_prefix_space": false }), false),
            ("unigram.json", json!({ "do_lower_case": true }), false),
        ] {
            let found = said(name, as_it_is, &config);
            assert_eq!(found.is_some(), refused, "{name} {config}: {found:?}");
        }
        let spaced = |own: &mut Value| own["pre_tokenizer"]["add_prefix_space"] = true.into();
        let config = json!({ "add_prefix_space": false });
        assert!(said("byte-level.json", spaced, &config).is_some());
        let message = said("wordpiece.json", as_it_is, &json!({ "do_lower_case": false })).unwrap();
        for part in [
            "tokenizer_config.json` sets `do_lower_case` to false, and tokenizer.json beside it does what true",
            "AutoTokenizer.from_pretrained(",
            ").save_pretrained(",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn classes_that_go_by_the_tokenizer_alone_are_not_refused() {
        let config = |class: &str| json!({ "tokenizer_class": class, "do_lower_case": false });
        for (class, refused) in [
            ("BertTokenizer", true),
            ("BertTokenizerFast", true),
            ("DistilBertTokenizerFast", true),
            ("ElectraTokenizer", true),
            ("PreTrainedTokenizerFast", false),
            ("TokenizersBackend", false),
        ] {
            let found = said("wordpiece.json", |_| {}, &config(class));
            assert_eq!(found.is_some(), refused, "{class}: {found:?}");
        }
        let config = json!({ "tokenizer_class": "LongformerTokenizer", "add_prefix_space": true });
        assert!(said("byte-level.json", |_| {}, &config).is_some());
    }
}
