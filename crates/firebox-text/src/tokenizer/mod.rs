//! `tokenizer.json` read and run: text → numbers of tokens, each with its place in the text.
//!
//! Hugging Face's own crate would do this, but it changes features of crates on which Burn and polars
//! stand, so that everything would be built anew. What is here gives the same tokens for what text
//! encoders use (WordPiece, byte-level BPE, Unigram, WordLevel, with their normalisers, splitters and
//! templates), and refuses the rest by name. Places are bytes of the original text. Pairs of texts,
//! padding and truncation are not here.

mod characters;
mod model;
mod normalise;
mod split;
mod train;

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use crate::TextError;
use crate::error::{content, json};
use characters::{Character, characters};
use model::Model;
use normalise::Normaliser;
use split::Splitter;

pub use train::WordPieceTraining;

/// A part of a text that became one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Number of the token in the vocabulary.
    pub id: u32,
    /// First byte of its place in the text, and the byte after its last.
    pub place: [usize; 2],
    /// Whether it was added around the text, and so has no place in it.
    pub special: bool,
}

/// A tokenizer.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    normalisers: Vec<Normaliser>,
    splitters: Vec<Splitter>,
    model: Model,
    added: Vec<Added>,
    /// What stands before and after every text.
    around: [Vec<u32>; 2],
    /// Whether spaces at the ends of a token are no part of its place.
    trimmed: bool,
    /// The content of the file.
    source: Value,
}

/// A token that is found in the text before it is split.
#[derive(Clone, Debug)]
struct Added {
    id: u32,
    content: String,
    /// Whether it is looked for in the normalised text.
    normalised: bool,
    strip: [bool; 2],
}

/// A value of the file that is not supported, for the message.
pub(crate) fn unsupported(what: &str, found: &Value, allowed: &str) -> String {
    format!("has the {what} {found}, which is not supported; supported is {allowed}")
}

/// The `type` of a part of the file, and the parts that a `Sequence` is made of.
fn parts<'a>(value: &'a Value, list: &str) -> Vec<&'a Value> {
    match (value.get("type").and_then(Value::as_str), value.get(list).and_then(Value::as_array)) {
        (Some("Sequence"), Some(all)) => all.iter().flat_map(|value| parts(value, list)).collect(),
        (None, _) => vec![],
        _ => vec![value],
    }
}

fn kind(value: &Value) -> &str {
    value.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn flag(value: &Value, key: &str, default: bool) -> bool {
    value.get(key).and_then(Value::as_bool).unwrap_or(default)
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// If the file cannot be read, or asks for what is not supported.
    pub fn read(path: &Path) -> Result<Self, TextError> {
        Self::from_json(json(path)?).map_err(|found| content(path, found))
    }

    /// The tokenizer of a `tokenizer.json`'s content.
    pub(crate) fn from_json(source: Value) -> Result<Self, String> {
        let empty = Value::Null;
        let part = |key: &str| source.get(key).unwrap_or(&empty);
        let model = Model::read(part("model"))?;
        let normalisers = parts(part("normalizer"), "normalizers");
        let normalisers =
            normalisers.into_iter().map(Normaliser::read).collect::<Result<_, _>>()?;
        let splitters = parts(part("pre_tokenizer"), "pretokenizers");
        let splitters = splitters.into_iter().map(Splitter::read).collect::<Result<_, _>>()?;
        let added = part("added_tokens").as_array().map_or(&[][..], Vec::as_slice);
        let added: Vec<Added> = added.iter().map(Added::read).collect::<Result<_, _>>()?;
        let mut tokenizer = Self {
            normalisers,
            splitters,
            model,
            added,
            around: [vec![], vec![]],
            trimmed: false,
            source: Value::Null,
        };
        for processor in parts(part("post_processor"), "processors") {
            tokenizer.process(processor)?;
        }
        tokenizer.source = source;
        Ok(tokenizer)
    }

    fn process(&mut self, value: &Value) -> Result<(), String> {
        let pair = |key: &str| -> Result<u32, String> {
            let id = value.get(key).and_then(|pair| pair.get(1)).and_then(Value::as_u64);
            id.and_then(|id| u32::try_from(id).ok())
                .ok_or_else(|| format!("has a post-processor without a number for `{key}`"))
        };
        match kind(value) {
            "ByteLevel" => self.trimmed = flag(value, "trim_offsets", true),
            "BertProcessing" => self.around = [vec![pair("cls")?], vec![pair("sep")?]],
            "RobertaProcessing" => {
                self.around = [vec![pair("cls")?], vec![pair("sep")?]];
                self.trimmed = flag(value, "trim_offsets", true);
            }
            "TemplateProcessing" => self.around = template(value)?,
            _ => {
                let allowed = "ByteLevel, BertProcessing, RobertaProcessing, TemplateProcessing";
                return Err(unsupported("post-processor", value, allowed));
            }
        }
        Ok(())
    }

    /// The tokens of a text, with those that stand around it.
    pub fn encode(&self, text: &str) -> Vec<Token> {
        let around = |ids: &[u32], at: usize| -> Vec<Token> {
            ids.iter().map(|id| Token { id: *id, place: [at, at], special: true }).collect()
        };
        let mut tokens = around(&self.around[0], 0);
        tokens.extend(self.encode_alone(text));
        tokens.extend(around(&self.around[1], text.len()));
        tokens
    }

    /// The tokens of a text, without those around it.
    pub fn encode_alone(&self, text: &str) -> Vec<Token> {
        let mut tokens = vec![];
        for part in self.found(characters(text), false) {
            let (start, part) = match part {
                Part::Token(token) => {
                    tokens.push(token);
                    continue;
                }
                Part::Text(start, part) => (start, part),
            };
            let normalised = self.normalisers.iter().fold(part, |part, n| n.apply(part));
            for part in self.found(normalised, true) {
                match part {
                    Part::Token(token) => tokens.push(token),
                    Part::Text(inner, part) => {
                        self.pieces(part, start && inner, &mut tokens);
                    }
                }
            }
        }
        if self.trimmed {
            for token in &mut tokens {
                trim(text, &mut token.place);
            }
        }
        tokens
    }

    fn pieces(&self, part: Vec<Character>, first: bool, tokens: &mut Vec<Token>) {
        let mut words = vec![part];
        for splitter in &self.splitters {
            let split = |(index, word)| splitter.apply(word, first && index == 0);
            words = words.into_iter().enumerate().flat_map(split).collect();
        }
        for word in words.iter().filter(|word| !word.is_empty()) {
            self.model.tokenize(word, tokens);
        }
    }

    /// The text between added tokens, and these: the longest at the leftmost place.
    fn found(&self, text: Vec<Character>, normalised: bool) -> Vec<Part> {
        let sought = |added: &&Added| added.normalised == normalised && !added.content.is_empty();
        let sought: Vec<(&Added, Vec<char>)> = self
            .added
            .iter()
            .filter(sought)
            .map(|added| {
                let written = characters(&added.content);
                let written = match normalised {
                    true => self.normalisers.iter().fold(written, |w, n| n.apply(w)),
                    false => written,
                };
                (added, written.into_iter().map(|c| c.value).collect())
            })
            .collect();
        let (mut parts, mut from, mut at) = (vec![], 0, 0);
        while at < text.len() && !sought.is_empty() {
            let fits = |(_, content): &&(&Added, Vec<char>)| {
                !content.is_empty()
                    && text.len() - at >= content.len()
                    && content.iter().zip(&text[at..]).all(|(wanted, found)| *wanted == found.value)
            };
            let Some((added, content)) = sought.iter().filter(fits).max_by_key(|(_, c)| c.len())
            else {
                at += 1;
                continue;
            };
            let (mut start, mut end) = (at, at + content.len());
            let space = |index: usize| text.get(index).is_some_and(|c| c.value.is_whitespace());
            while added.strip[0] && start > from && space(start - 1) {
                start -= 1;
            }
            while added.strip[1] && space(end) {
                end += 1;
            }
            if start > from {
                parts.push(Part::Text(from == 0, text[from..start].to_vec()));
            }
            let place = [text[start].place[0], text[end - 1].place[1]];
            parts.push(Part::Token(Token { id: added.id, place, special: false }));
            (from, at) = (end, end);
        }
        if from < text.len() {
            parts.push(Part::Text(from == 0, text[from..].to_vec()));
        }
        parts
    }

    /// Numbers that tokens may have, those of added ones among them: from 0 to one below this.
    pub fn vocabulary(&self) -> usize {
        let added = self.added.iter().map(|added| added.id as usize + 1).max().unwrap_or(0);
        self.model.vocabulary().max(added)
    }

    /// The number of a token that is written so.
    pub fn id(&self, token: &str) -> Option<u32> {
        let added = self.added.iter().find(|added| added.content == token);
        added.map(|added| added.id).or_else(|| self.model.id(token))
    }

    /// The tokens that are added around every text: how many before it, and how many after.
    pub fn around(&self) -> [usize; 2] {
        [self.around[0].len(), self.around[1].len()]
    }

    /// Checks the tokenizer against a model with vectors for so many tokens.
    ///
    /// # Errors
    /// If a token has no vector, or nothing stands before or after a text.
    pub fn check(&self, vectors: usize) -> Result<(), TextError> {
        let found = self.vocabulary();
        if found > vectors {
            return Err(TextError::Tokenizer(format!(
                "it has {found} tokens, and the model has vectors for {vectors}; use the tokenizer \
                 that the model was trained with"
            )));
        }
        let [before, after] = self.around();
        if before == 0 || after == 0 {
            return Err(TextError::Tokenizer(
                "it adds no token before or after a text (such as [CLS] and [SEP], or <s> and </s>), \
                 so the first token is not one that stands for the text; its post_processor is \
                 missing or empty"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// The content of its `tokenizer.json`.
    pub fn to_json(&self) -> String {
        self.source.to_string()
    }
}

enum Part {
    Token(Token),
    /// Whether it is the beginning of what was searched.
    Text(bool, Vec<Character>),
}

impl Added {
    fn read(value: &Value) -> Result<Self, String> {
        let id = value.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        let content = value.get("content").and_then(Value::as_str);
        let (Some(id), Some(content)) = (id, content) else {
            return Err(format!("has an added token without number or content: {value}"));
        };
        if flag(value, "single_word", false) {
            return Err(unsupported("added token", value, "`single_word` = false"));
        }
        Ok(Self {
            id,
            content: content.to_owned(),
            normalised: flag(value, "normalized", true),
            strip: [flag(value, "lstrip", false), flag(value, "rstrip", false)],
        })
    }
}

fn template(value: &Value) -> Result<[Vec<u32>; 2], String> {
    let bad = || format!("has a template that cannot be read: {value}");
    let named = value.get("special_tokens").ok_or_else(bad)?;
    let named: HashMap<&str, Vec<u32>> = named
        .as_object()
        .ok_or_else(bad)?
        .iter()
        .filter_map(|(name, token)| {
            let ids = token.get("ids")?.as_array()?.iter();
            Some((
                name.as_str(),
                ids.map(|id| id.as_u64()?.try_into().ok()).collect::<Option<_>>()?,
            ))
        })
        .collect();
    let (mut around, mut side) = ([vec![], vec![]], 0);
    for part in value.get("single").and_then(Value::as_array).ok_or_else(bad)? {
        if part.get("Sequence").is_some() {
            side = 1;
            continue;
        }
        let name = part.get("SpecialToken").and_then(|t| t.get("id")).and_then(Value::as_str);
        let ids = name.and_then(|name| named.get(name)).ok_or_else(bad)?;
        around[side].extend(ids);
    }
    Ok(around)
}

/// Moves the ends of a place past white space.
fn trim(text: &str, place: &mut [usize; 2]) {
    let Some(part) = text.get(place[0]..place[1]) else { return };
    place[0] += part.len() - part.trim_start().len();
    place[1] = (place[1] - (part.len() - part.trim_end().len())).max(place[0]);
}
