//! A WordPiece tokenizer made from texts, for models that are trained from scratch.
//!
//! Words are those of the crate `tokenizers`, pieces are joined here: its trainer numbers pieces in the
//! order of a hash map with a new seed for every run, and so makes another vocabulary each time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use firebox_core::count;
use tokenizers::{Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

use super::Tokenizer;
use super::joining::Joining;
use crate::TextError;

/// Tokens that every vocabulary begins with.
const SPECIAL: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
/// What a piece within a word begins with.
pub(super) const PREFIX: &str = "##";
/// Characters of a word, at most, for it to be split into pieces; a longer one is unknown as a whole.
const LONGEST_WORD: usize = 100;

/// Settings of a vocabulary that is made from training texts. Words of more than 100 characters, such as
/// encoded files on one line (with + / = between letters), take no part in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WordPieceTraining {
    /// Tokens, at most; at least 64. Where the texts have more letters (one at the beginning of a word is another than the
    /// same within one), there is a token for each of these and the five special ones.
    pub vocabulary: usize,
    /// Times that a pair must occur to become a piece; at least 1.
    pub least: usize,
    /// Whether capitals are as small letters, and accents are dropped.
    pub lowercase: bool,
}

impl Default for WordPieceTraining {
    fn default() -> Self {
        Self { vocabulary: 4000, least: 2, lowercase: true }
    }
}

impl WordPieceTraining {
    /// Checks the settings.
    ///
    /// # Errors
    /// If one is out of its range.
    pub fn check(&self) -> Result<(), TextError> {
        let wrong = [("vocabulary", self.vocabulary, 64), ("least", self.least, 1)];
        match wrong.into_iter().find(|(_, found, least)| found < least) {
            Some((key, found, least)) => Err(TextError::Texts(format!(
                "`text.tokenizer.{key}` is {found}; it must be at least {least}"
            ))),
            None => Ok(()),
        }
    }

    /// Makes a tokenizer of BERT's form: pairs of pieces are joined, the most frequent first (of
    /// equals, the first in the alphabet), until there are enough. The result depends on the texts
    /// and on nothing else.
    ///
    /// # Errors
    /// If a setting is out of its range, or there is no word in the texts, or none that is short enough.
    pub fn train<'a>(
        &self,
        texts: impl IntoIterator<Item = &'a str>,
    ) -> Result<Tokenizer, TextError> {
        self.train_until(&AtomicBool::new(false), texts)
    }

    /// The same until `stop` is true.
    ///
    /// # Errors
    /// As [`train`](Self::train), and [`TextError::Stopped`].
    pub fn train_until<'a>(
        &self,
        stop: &AtomicBool,
        texts: impl IntoIterator<Item = &'a str>,
    ) -> Result<Tokenizer, TextError> {
        self.check()?;
        let (words, longer) = self.words(stop, texts)?;
        if words.is_empty() {
            return Err(TextError::Texts(no_word(longer)));
        }
        let mut joining = Joining::new(&words);
        let alphabet: BTreeSet<&str> = joining.pieces().collect();
        let mut vocabulary: Vec<String> = SPECIAL.map(str::to_owned).to_vec();
        vocabulary.extend(alphabet.into_iter().map(str::to_owned));
        while vocabulary.len() < self.vocabulary {
            heed(stop)?;
            let Some((piece, is_new)) = joining.join_next(self.least) else { break };
            if is_new {
                vocabulary.push(piece.to_string());
            }
        }
        Tokenizer::from_text(&self.source(&vocabulary).to_string())
    }

    /// Words with how often they occur, and how many words there are beside them that are too long to be split.
    fn words<'a>(
        &self,
        stop: &AtomicBool,
        texts: impl IntoIterator<Item = &'a str>,
    ) -> Result<(BTreeMap<String, usize>, u64), TextError> {
        let wrong = |error: tokenizers::Error| TextError::Tokenizer(error.to_string());
        // That of the vocabulary to be made splits the texts, so that both see the same words.
        let special = self.source(&SPECIAL.map(str::to_owned));
        let splitting = Tokenizer::from_text(&special.to_string())?.inner;
        let (mut words, mut longer) = (BTreeMap::new(), 0);
        for written in texts {
            heed(stop)?;
            let mut text = PreTokenizedString::from(written);
            if let Some(normaliser) = splitting.get_normalizer() {
                text.normalize(|text| normaliser.normalize(text)).map_err(wrong)?;
            }
            if let Some(splitter) = splitting.get_pre_tokenizer() {
                splitter.pre_tokenize(&mut text).map_err(wrong)?;
            }
            let splits = text.get_splits(OffsetReferential::Original, OffsetType::None);
            // Characters are counted as the tokenizer counts them. Pieces of such a word would serve no text, and to
            // join them takes time by the square of its length. At the signs of base64 words end, too.
            let encoded = |word: &str| {
                word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte))
            };
            for run in splits.chunk_by(|a, b| a.1.1 == b.1.0 && encoded(a.0) && encoded(b.0)) {
                let characters: usize = run.iter().map(|(word, ..)| word.chars().count()).sum();
                if characters > LONGEST_WORD {
                    longer += 1;
                    continue;
                }
                for (word, ..) in run {
                    *words.entry((*word).to_owned()).or_insert(0) += 1;
                }
            }
        }
        Ok((words, longer))
    }

    /// The `tokenizer.json`, which Hugging Face's libraries read, too.
    fn source(&self, vocabulary: &[String]) -> Value {
        let added = |(id, content): (usize, &str)| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true,
            })
        };
        let added: Vec<Value> = SPECIAL.into_iter().enumerate().map(added).collect();
        let token = |id: &str| json!({ "SpecialToken": { "id": id, "type_id": 0 } });
        let text = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
        let named = |name: &str, id: usize| json!({ "id": name, "ids": [id], "tokens": [name] });
        let numbers: Map<String, Value> =
            vocabulary.iter().enumerate().map(|(id, name)| (name.clone(), json!(id))).collect();
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": {
                "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                "strip_accents": null, "lowercase": self.lowercase,
            },
            "pre_tokenizer": { "type": "BertPreTokenizer" },
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [token("[CLS]"), text("A"), token("[SEP]")],
                "pair": [token("[CLS]"), text("A"), token("[SEP]"), text("B"), token("[SEP]")],
                "special_tokens": { "[CLS]": named("[CLS]", 2), "[SEP]": named("[SEP]", 3) },
            },
            "decoder": { "type": "WordPiece", "prefix": PREFIX, "cleanup": true },
            "model": {
                "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": PREFIX,
                "max_input_chars_per_word": LONGEST_WORD, "vocab": numbers,
            },
        })
    }
}

/// That there is no word to make pieces of, beside so many that are too long.
fn no_word(longer: u64) -> String {
    match longer {
        0 => "there is no word in the training texts".to_owned(),
        _ => format!(
            "there is no word of at most {LONGEST_WORD} characters in the training texts, and {} of more, which no \
             vocabulary is made of: put blanks between the words of the texts",
            count(longer, "word")
        ),
    }
}

fn heed(stop: &AtomicBool) -> Result<(), TextError> {
    if stop.load(Ordering::Relaxed) { Err(TextError::Stopped) } else { Ok(()) }
}
