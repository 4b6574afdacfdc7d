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

/// Classes of `transformers`, but for `Fast` at their end, that make all but vocabulary and post-processor anew by that
/// file, as BERT does.
const BERT: [&str; 6] = [
    "BertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "LayoutLMTokenizer",
    "MobileBertTokenizer",
    "SqueezeBertTokenizer",
];
/// Classes that do so as RoBERTa does.
const ROBERTA: [&str; 5] =
    ["RobertaTokenizer", "LongformerTokenizer", "GPT2Tokenizer", "BartTokenizer", "LEDTokenizer"];
/// Characters of a word, at most, for which a class of `BERT` makes tokens; a longer one is unknown as a whole.
const LONGEST_WORD: u64 = 100;

/// The parts of a `tokenizer.json` that can be overruled.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    model: Option<Model>,
}

#[derive(Deserialize)]
struct Model {
    max_input_chars_per_word: Option<u64>,
    continuing_subword_prefix: Option<String>,
}

impl Parts {
    /// The normaliser and the pre-tokenizer.
    fn alone(&self) -> [&Value; 2] {
        [alone(&self.normalizer, "normalizers"), alone(&self.pre_tokenizer, "pretokenizers")]
    }

    /// Each setting of a class, or of the family's own where none is named, with what this file does.
    fn settings(&self, class: Option<&str>) -> Vec<(&'static str, bool)> {
        let is_one = |classes: &[&str]| class.is_none_or(|class| classes.contains(&class));
        let [normaliser, splitter] = self.alone();
        let mut found = vec![];
        if is_one(&BERT) && normaliser["type"] == "BertNormalizer" {
            let says = |key: &str| normaliser[key].as_bool();
            found.push(("do_lower_case", says("lowercase")));
            // Where that is open, accents are dropped with capitals.
            found.push(("strip_accents", says("strip_accents").or(says("lowercase"))));
            found.push(("tokenize_chinese_chars", says("handle_chinese_chars")));
        }
        if is_one(&ROBERTA) && splitter["type"] == "ByteLevel" {
            found.push(("add_prefix_space", splitter["add_prefix_space"].as_bool()));
        }
        found.into_iter().filter_map(|(key, does)| Some((key, does?))).collect()
    }

    /// The first key of this file that a class has another value for: the key, its value here, and the class's.
    fn replaced(&self, class: &str) -> Option<(&'static str, Value, Value)> {
        let [normaliser, splitter] = self.alone();
        let kind = |part: &Value| part["type"].clone();
        let model = self.model.as_ref();
        let longest = model.and_then(|model| model.max_input_chars_per_word);
        let prefix = model.and_then(|model| model.continuing_subword_prefix.as_deref());
        let mut all: Vec<(&'static str, Value, Value)> = vec![];
        if BERT.contains(&class) {
            let cleans = normaliser["clean_text"].as_bool().unwrap_or(true);
            let longest = longest.unwrap_or(LONGEST_WORD);
            all.push(("normalizer.type", kind(normaliser), "BertNormalizer".into()));
            all.push(("normalizer.clean_text", cleans.into(), true.into()));
            all.push(("pre_tokenizer.type", kind(splitter), "BertPreTokenizer".into()));
            all.push(("model.max_input_chars_per_word", longest.into(), LONGEST_WORD.into()));
            let prefix = prefix.unwrap_or("##");
            all.push(("model.continuing_subword_prefix", prefix.into(), "##".into()));
        }
        if ROBERTA.contains(&class) {
            all.push(("normalizer.type", kind(normaliser), Value::Null));
            let by_rule = splitter["use_regex"].as_bool().unwrap_or(true);
            all.push(("pre_tokenizer.type", kind(splitter), "ByteLevel".into()));
            all.push(("pre_tokenizer.use_regex", by_rule.into(), true.into()));
        }
        all.into_iter().find(|(_, here, made)| here != made)
    }

    /// What settings ask for that this file does otherwise, and what to set for it to hold.
    fn overruled(&self, config: &Value) -> Option<[String; 2]> {
        let named = config["tokenizer_class"].as_str();
        let class = named.map(|class| class.strip_suffix("Fast").unwrap_or(class));
        let asked = |key: &str| config[key].as_bool();
        let mut settings = self.settings(class).into_iter();
        let differs = settings.find(|(key, does)| asked(key).is_some_and(|asked| asked != *does));
        if let Some((key, does)) = differs {
            let what = format!(
                "sets `{key}` to {}, and {TOKENIZER} beside it does what {does} means",
                !does
            );
            return Some([what, format!("`{key}` to {does}")]);
        }
        let (key, here, made) = self.replaced(class?)?;
        let what = format!(
            "sets `tokenizer_class` to {}, whose `{key}` is {made}, and {TOKENIZER} beside it has {here} there",
            config["tokenizer_class"]
        );
        Some([what, "`tokenizer_class` to \"PreTrainedTokenizerFast\"".to_owned()])
    }
}

/// A part, or that which alone is in it, if it is a sequence; an empty one is none.
fn alone<'a>(part: &'a Value, parts: &str) -> &'a Value {
    match part[parts].as_array().map(Vec::as_slice) {
        Some([]) => &Value::Null,
        Some([one]) => one,
        _ => part,
    }
}

/// Refuses a folder whose `tokenizer_config.json` is there and asks for other tokens than its `tokenizer.json` makes.
/// What it leaves out is not looked at, though `transformers` 5.24 takes `do_lower_case` for true there, nor is a class
/// that goes by `tokenizer.json` alone. Beside a class of BERT's, RoBERTa's or GPT-2's that it names, the parts of
/// `tokenizer.json` have to be those that the class makes. Source: `transformers` 5.24.
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
    let parts: Parts = serde_json::from_slice(&read(&own)?)
        .map_err(|error| content(&own, format!("is not JSON: {error}")))?;
    let Some([what, instead]) = parts.overruled(&config) else { return Ok(()) };
    Err(content(
        &path,
        format!(
            "{what}: `transformers` goes by the former, and makes other tokens than {TOKENIZER} by itself. Write one \
             that agrees once with Python: {}; or set {instead} if {TOKENIZER} is what the model was trained with",
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
            "; or set `do_lower_case` to true if tokenizer.json",
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
        for class in ["LongformerTokenizer", "GPT2Tokenizer"] {
            let config = json!({ "tokenizer_class": class, "add_prefix_space": true });
            assert!(said("byte-level.json", |_| {}, &config).is_some(), "{class}");
        }
    }

    /// Checks what is said of a part that is changed so beside a class, and that nothing is beside one that goes by the
    /// file. Where something is expected, `transformers` 5.24 gave other tokens than `tokenizers` did.
    fn check_part(name: &str, class: &str, part: &str, put: &Value, expected: Option<&str>) {
        let beside = |class: &str| {
            let change = |own: &mut Value| *own.pointer_mut(part).unwrap() = put.clone();
            said(name, change, &json!({ "tokenizer_class": class }))
        };
        let found = beside(class);
        assert_eq!(found.is_some(), expected.is_some(), "{class} {part} {put}: {found:?}");
        if let (Some(found), Some(expected)) = (found, expected) {
            assert!(found.contains(expected), "{found}");
            assert!(
                found.contains("set `tokenizer_class` to \"PreTrainedTokenizerFast\""),
                "{found}"
            );
        }
        assert_eq!(beside("PreTrainedTokenizerFast"), None, "{part} {put}");
    }

    #[test]
    fn parts_that_a_named_class_makes_anew_are_refused() {
        let bert = |part: &str, put: Value, expected: Option<&str>| {
            check_part("wordpiece.json", "BertTokenizerFast", part, &put, expected);
        };
        let steps = json!([{ "type": "NFD" }, { "type": "Lowercase" }, { "type": "StripAccents" }]);
        bert(
            "/normalizer",
            json!({ "type": "Sequence", "normalizers": steps }),
            Some(
                "sets `tokenizer_class` to \"BertTokenizerFast\", whose `normalizer.type` is \"BertNormalizer\", and \
                 tokenizer.json beside it has \"Sequence\" there",
            ),
        );
        bert("/normalizer", Value::Null, Some("has null there"));
        bert("/normalizer/clean_text", false.into(), Some("`normalizer.clean_text` is true"));
        bert("/normalizer/clean_text", true.into(), None);
        bert("/pre_tokenizer/type", "Whitespace".into(), Some("has \"Whitespace\" there"));
        bert("/model/max_input_chars_per_word", 200.into(), Some("is 100, and"));
        bert("/model/continuing_subword_prefix", "@@".into(), Some("is \"##\", and"));

        let digits = json!({ "type": "Digits", "individual_digits": true });
        let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true });
        let sequence = |parts: Value| json!({ "type": "Sequence", "pretokenizers": parts });
        let roberta = |class: &str, part: &str, put: Value, expected: Option<&str>| {
            check_part("byte-level.json", class, part, &put, expected);
        };
        let several = sequence(json!([digits, bytes]));
        roberta("RobertaTokenizer", "/pre_tokenizer", several, Some("is \"ByteLevel\", and"));
        roberta("RobertaTokenizer", "/pre_tokenizer", sequence(json!([bytes])), None);
        let composed = json!({ "type": "NFC" });
        roberta("GPT2Tokenizer", "/normalizer", composed, Some("`normalizer.type` is null"));
        roberta("GPT2Tokenizer", "/normalizer", Value::Null, None);
        let empty = json!({ "type": "Sequence", "normalizers": [] });
        roberta("GPT2Tokenizer", "/normalizer", empty, None);
        let part = "/pre_tokenizer/use_regex";
        roberta("RobertaTokenizer", part, false.into(), Some("`pre_tokenizer.use_regex` is true"));
    }

    #[test]
    fn settings_are_compared_with_the_one_part_of_a_sequence() {
        let within = |own: &mut Value| {
            own["normalizer"] = json!({ "type": "Sequence", "normalizers": [own["normalizer"]] });
        };
        let config = |lowercase: bool| json!({ "tokenizer_class": "BertTokenizer", "do_lower_case": lowercase });
        let message = said("wordpiece.json", within, &config(false)).unwrap();
        assert!(message.contains("sets `do_lower_case` to false"), "{message}");
        assert_eq!(said("wordpiece.json", within, &config(true)), None);
    }
}
