//! Tokens and their places beside those of Hugging Face's `tokenizers`, on files that `golden.py` wrote; tokenizers
//! that are made, and that are wrong.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test says why it fails by panicking"
)]

mod support;

use std::path::{Path, PathBuf};

use firebox_text::{Tokenizer, WordPieceTraining, read_tokenizer};
use serde_json::Value;

/// Where the tokenizers of `golden.py` are.
const GOLDEN: &str = "tests/golden/tokenizers";

fn golden(name: &str) -> PathBuf {
    Path::new(GOLDEN).join(name)
}

fn read(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(golden(name)).unwrap()).unwrap()
}

#[test]
fn tokens_are_those_of_tokenizers() {
    support::check_tokens(Path::new(GOLDEN));
}

#[test]
fn a_tokenizer_made_from_texts_reads_back() {
    let texts = ["Pain in the chest, and pain in the arm.", "The patient denies chest pain."];
    let tokenizer =
        WordPieceTraining { vocabulary: 80, ..Default::default() }.train(texts).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, tokenizer.to_json()).unwrap();
    let again = Tokenizer::read(&path).unwrap();
    let text = "Chest pain, Ünknown 数!";
    assert_eq!(again.encode(text).unwrap(), tokenizer.encode(text).unwrap());
    let tokens = tokenizer.vocabulary();
    assert!((30..80).contains(&tokens), "{tokens}");
    // Frequent words are whole, and a character that was never seen is unknown.
    let tokens = tokenizer.encode(text).unwrap();
    assert_eq!(&text[tokens[2].place[0]..tokens[2].place[1]], "pain");
    assert_eq!(tokens.last().map(|token| token.id), tokenizer.id("[SEP]"));
    assert!(tokens.iter().any(|token| Some(token.id) == tokenizer.id("[UNK]")));
    tokenizer.check(tokenizer.vocabulary()).unwrap();
    let error = tokenizer.check(20).unwrap_err().to_string();
    assert!(error.contains("and the model has vectors for 20"), "{error}");
    assert!(WordPieceTraining::default().train(["", " "]).is_err());
}

#[test]
fn words_that_no_piece_can_serve_take_no_part_in_a_vocabulary() {
    let texts = ["Pain in the chest, and pain in the arm.", "The patient denies chest pain."];
    let made = |more: &str| {
        let training = WordPieceTraining { vocabulary: 80, ..Default::default() };
        training.train(texts.into_iter().chain([more])).unwrap()
    };
    // Two letters again and again, so that their pairs would be the most frequent ones.
    let word = |letters: usize| "qz".chars().cycle().take(letters).collect::<String>();
    let without = made("");
    assert_eq!(made(&word(101)).to_json(), without.to_json());
    assert_eq!(made(&word(101)).id("##z"), None);
    assert_ne!(made(&word(100)).to_json(), without.to_json());
    assert!(made(&word(100)).id("##z").is_some());
    // Signs of base64 end words, and other ones end more.
    assert_eq!(made(&format!("{}+{}", word(60), word(60))).to_json(), without.to_json());
    assert!(made(&format!("{},{}", word(60), word(60))).id("##z").is_some());
    // What takes no part is one unknown token, however many characters it has; é is two bytes.
    let long = "é".repeat(101);
    let tokens = made(&long).encode(&long).unwrap();
    assert_eq!(tokens.iter().map(|token| token.id).collect::<Vec<_>>(), [2, 1, 3]);
    let error =
        WordPieceTraining::default().train([word(101).as_str(), "", long.as_str()]).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("at most 100 characters") && said.contains("2 words of more"), "{said}");
    let error = WordPieceTraining::default().train(["", " "]).unwrap_err().to_string();
    assert_eq!(error, "there is no word in the training texts");
}

#[test]
fn every_letter_has_a_token_also_where_these_are_more_than_the_vocabulary() {
    let letters = |from: char| (from..).take(40).collect::<String>();
    // 40 letters, of which one begins a word, and 40 Chinese characters, each of which is a word.
    let texts = [letters('\u{430}'), letters('\u{4e00}')];
    let training = WordPieceTraining { vocabulary: 64, least: 1, lowercase: false };
    let tokenizer = training.train(texts.iter().map(String::as_str)).unwrap();
    assert_eq!(tokenizer.vocabulary(), 5 + 40 + 40);
}

#[test]
fn a_folder_without_a_tokenizer_is_told_how_to_make_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = Path::new("tests/golden/bert/config.json");
    std::fs::copy(config, folder.path().join("config.json")).unwrap();
    let said = read_tokenizer(folder.path()).unwrap_err().to_string();
    let place = folder.path().display();
    assert!(said.starts_with(&format!("`{place}` has no `tokenizer.json`")), "{said}");
    let way_out =
        format!("AutoTokenizer.from_pretrained(\"{place}\").save_pretrained(\"{place}\")");
    assert!(said.contains(&way_out), "{said}");
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let check = |from: &str, to: &str, expected: &str| {
        let text = std::fs::read_to_string(golden("wordpiece.json")).unwrap();
        assert!(text.contains(from));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, text.replace(from, to)).unwrap();
        let error = match Tokenizer::read(&path) {
            Err(error) => error,
            Ok(tokenizer) => tokenizer.check(1000).expect_err("refused"),
        };
        assert!(error.to_string().contains(expected), "{error}");
    };
    check(
        "\"type\":\"BertNormalizer\"",
        "\"type\":\"Mine\"",
        "has a `normalizer` of type `Mine` that cannot be used",
    );
    check("\"type\":\"BertPreTokenizer\"", "\"type\":\"Mine\"", "`pre_tokenizer` of type `Mine`");
    check("\"type\":\"WordPiece\",\"unk", "\"type\":\"Chars\",\"unk", "`model` of type `Chars`");
    check(
        "\"unk_token\":\"[UNK]\"",
        "\"unk_token\":\"<none>\"",
        "no token for what its vocabulary",
    );
    check("\"version\":\"1.0\"", "\"version\":\"2.0\"", "Unknown tokenizer version '2.0'");
    check("{\"version\"", "\"version\"", "is not JSON");
    check(
        "{\"id\":2,\"content\":\"[CLS]\"",
        "{\"id\":7,\"content\":\"[CLS]\"",
        "gives the added token `[CLS]` the number 7, but it has 2",
    );
    let mut file = read("wordpiece.json");
    file["post_processor"] = Value::Null;
    let error = Tokenizer::from_text(&file.to_string()).unwrap().check(1000).unwrap_err();
    assert!(error.to_string().contains("adds no token before"), "{error}");
}

#[test]
fn a_tokenizer_that_leaves_out_what_it_does_not_know_is_refused() {
    // Of letters in place of bytes, as `tokenizers` gives nothing for one that it lacks.
    let mut letters = read("byte-level.json");
    letters["pre_tokenizer"] = Value::Null;
    let error = Tokenizer::from_text(&letters.to_string()).unwrap_err().to_string();
    assert!(error.contains("does not know, and leaves it out of texts"), "{error}");
    letters["model"]["unk_token"] = "<unk>".into();
    let tokenizer = Tokenizer::from_text(&letters.to_string()).unwrap();
    assert_eq!(tokenizer.unknown(), Some(3));
    // Of bytes, with a normaliser that takes away the character by which this is found out.
    let mut bytes = read("byte-level.json");
    bytes["normalizer"] = serde_json::json!({
        "type": "Replace", "pattern": { "String": "\u{10FFFF}" }, "content": ""
    });
    Tokenizer::from_text(&bytes.to_string()).unwrap();
    // A blank before the text is a token, but not of the character.
    let mut blank = read("byte-level.json");
    blank["pre_tokenizer"] = serde_json::json!({
        "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true
    });
    let vocabulary = blank["model"]["vocab"].as_object_mut().unwrap();
    let next = vocabulary.len();
    vocabulary.insert("▁".to_owned(), next.into());
    let error = Tokenizer::from_text(&blank.to_string()).unwrap_err().to_string();
    assert!(error.contains("leaves it out of texts"), "{error}");
}

#[test]
fn a_tokenizer_of_bytes_that_lacks_one_of_them_is_refused() {
    let without = |written: &str| {
        let mut file = read("byte-level.json");
        let vocabulary = file["model"]["vocab"].as_object_mut().unwrap();
        let id = vocabulary.remove(written).unwrap();
        vocabulary.insert("nothing".to_owned(), id);
        file
    };
    // The first of three bytes of あ, and signs: none is in the character that shows what is not known.
    for (written, byte) in [("ã", "0xE3"), ("@", "0x40"), ("Q", "0x51")] {
        let error = Tokenizer::from_text(&without(written).to_string()).unwrap_err().to_string();
        let expected =
            format!("has no token for 1 byte of those that texts have (the first is {byte})");
        assert!(error.contains(&expected), "{error}");
    }
    // The end of a line, a control character, and the first byte of what is for private use alone.
    for written in ["Ċ", "ę", "ô"] {
        Tokenizer::from_text(&without(written).to_string()).unwrap();
    }
    let mut small = without("Q");
    small["normalizer"] = serde_json::json!({ "type": "Lowercase" });
    Tokenizer::from_text(&small.to_string()).unwrap();
    let mut ascii = without("ã");
    ascii["normalizer"] = serde_json::json!({
        "type": "Replace", "pattern": { "Regex": r"[^\x00-\x7F]" }, "content": ""
    });
    Tokenizer::from_text(&ascii.to_string()).unwrap();
    // Where a token stands for it, such a byte is unknown.
    let mut file = without("ã");
    file["model"]["unk_token"] = "<unk>".into();
    let tokens = Tokenizer::from_text(&file.to_string()).unwrap().encode("あ").unwrap();
    assert_eq!(tokens.iter().filter(|token| token.id == 3).count(), 1);
}
