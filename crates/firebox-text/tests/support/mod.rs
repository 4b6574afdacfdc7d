//! What tests of several programs compare.

use std::path::Path;

use firebox_text::Tokenizer;
use serde_json::Value;

/// Tokens and their places beside those of Hugging Face's `tokenizers`, which `golden.py` wrote into the folder with
/// the tokenizers that it made.
pub(crate) fn check_tokens(folder: &Path) {
    let mut wrong = vec![];
    let all = [
        ("wordpiece", Some("[UNK]")),
        ("wordpiece-cased", Some("[UNK]")),
        ("byte-level", None),
        ("unigram", Some("<unk>")),
        ("character-map", Some("<unk>")),
    ];
    for (name, unknown) in all {
        let tokenizer = Tokenizer::read(&folder.join(format!("{name}.json"))).unwrap();
        assert_eq!(tokenizer.unknown(), unknown.and_then(|token| tokenizer.id(token)), "{name}");
        assert_eq!(tokenizer.unknown().is_some(), unknown.is_some(), "{name}");
        let expected = std::fs::read(folder.join(format!("{name}.expected.json"))).unwrap();
        let expected: Vec<Value> = serde_json::from_slice(&expected).unwrap();
        assert_eq!(expected.len(), 13);
        for case in &expected {
            let text = case["text"].as_str().unwrap();
            let found = tokenizer.encode(text).unwrap();
            let numbers = |key: &str| -> Vec<u64> {
                case[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
            };
            let ids: Vec<u64> = found.iter().map(|token| token.id.into()).collect();
            if ids != numbers("ids") {
                wrong.push(format!("{name} {text:?}: {ids:?} for {:?}", numbers("ids")));
                continue;
            }
            for (index, token) in found.iter().enumerate().filter(|(_, token)| !token.special) {
                let place = &case["offsets"][index];
                let place = [0, 1].map(|side| place[side].as_u64().unwrap() as usize);
                // Some tokenizers count the blank before a word to it; a place here is that of the word.
                let (word, from) = (&text[place[0]..place[1]], place[0]);
                let place = match word.find(|letter: char| !letter.is_whitespace()) {
                    Some(before) => [from + before, from + word.trim_end().len()],
                    None => place,
                };
                if token.place != place {
                    wrong.push(format!("{name} {text:?} {index}: {:?} for {place:?}", token.place));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
