//! `tokenizer.json` read and run: text → numbers of tokens, each with its place in the text.
//!
//! The work is done by Hugging Face's crate `tokenizers`. What is here says which part of a file cannot
//! be used, finds out before the first text whether a tokenizer can meet what it does not know, and
//! leaves a file's padding and truncation aside, for batches and lengths are the pipeline's own.

mod joining;
mod train;

use std::path::Path;

use firebox_core::count;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::{AddedToken, Encoding, NormalizedString, Normalizer, PostProcessor};

use crate::TextError;
use crate::error::{content, read};

pub use train::WordPieceTraining;

/// A character that no text has and no vocabulary knows: it is not, and never will be, assigned.
const NOBODYS: &str = "\u{10FFFF}";

/// A part of a text that became one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Number of the token in the vocabulary.
    pub id: u32,
    /// First byte of its place in the text, and the byte after its last; both 0 if it is special.
    pub place: [usize; 2],
    /// Whether it was added around the text, and so has no place in it.
    pub special: bool,
}

/// A tokenizer.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// How many tokens are added before a text, and how many after.
    around: [usize; 2],
    /// One more than the highest number of a token.
    vocabulary: usize,
    /// The token that stands for what the vocabulary does not know.
    unknown: Option<u32>,
    /// The content of the file.
    source: String,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// If the file cannot be read, or a part of it cannot be used.
    pub fn read(path: &Path) -> Result<Self, TextError> {
        let source = String::from_utf8(read(path)?);
        let source = source.map_err(|error| format!("is not text: {error}"));
        source.and_then(Self::new).map_err(|found| content(path, found))
    }

    /// Reads the content of a `tokenizer.json`.
    ///
    /// # Errors
    /// If it is not JSON, or a part of it cannot be used.
    pub fn from_text(text: &str) -> Result<Self, TextError> {
        let wrong = |found| TextError::Tokenizer(format!("its file {found}"));
        Self::new(text.to_owned()).map_err(wrong)
    }

    fn new(source: String) -> Result<Self, String> {
        let mut inner: tokenizers::Tokenizer = source
            .parse()
            .map_err(|error: tokenizers::Error| unusable(&source, &error.to_string()))?;
        let outline = Outline::of(&source)?;
        outline.check(&inner)?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| error.to_string())?;
        let nobodys = inner.encode(NOBODYS, false).map_err(|error| {
            format!(
                "has no token for what its vocabulary does not know: {error}; its model must name one"
            )
        })?;
        if outline.leaves_out(&inner, nobodys.len()) {
            return Err(
                "has no token for what its vocabulary does not know, and leaves it out of texts; \
                 its model must name one (`unk_token`)"
                    .to_owned(),
            );
        }
        let lacking = outline.bytes_left_out(&inner);
        if let Some(first) = lacking.first() {
            return Err(format!(
                "has no token for {} of those that texts have (the first is 0x{first:02X}), and leaves out what it lacks; \
                 its vocabulary must have all (`initial_alphabet = ByteLevel.alphabet()` where it is made), or its \
                 model name a token for what it does not know (`unk_token`)",
                count(lacking.len() as u64, "byte")
            ));
        }
        let highest = inner.get_vocab(true).into_values().max();
        let vocabulary = highest.map_or(0, |id| id as usize + 1);
        let around = around(&inner)?;
        let unknown = outline.unknown(&inner);
        Ok(Self { inner, around, vocabulary, unknown, source })
    }

    /// The tokens of a text, with those that stand around it.
    ///
    /// # Errors
    /// If the tokenizer cannot split the text.
    pub fn encode(&self, text: &str) -> Result<Vec<Token>, TextError> {
        // Places in characters, as Python's are: those in bytes can begin and end within one.
        let found = self.inner.encode_char_offsets(text, true).map_err(|error| {
            let shown: String = text.chars().take(40).collect();
            TextError::Texts(format!("the text `{shown}` cannot be split into tokens: {error}"))
        })?;
        let bytes: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let special = found.get_special_tokens_mask().iter().map(|special| *special == 1);
        let places = found.get_offsets().iter().zip(special);
        let tokens = found.get_ids().iter().zip(places).map(|(id, (place, special))| {
            let place = match special {
                true => [0, 0],
                false => without_blanks(text, [bytes[place.0], bytes[place.1]]),
            };
            Token { id: *id, place, special }
        });
        Ok(tokens.collect())
    }

    /// Numbers that tokens may have, those of added ones among them: from 0 to one below this.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The number of a token that is written so.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The number of the token that stands for what the vocabulary does not know; none of a tokenizer of bytes, which
    /// knows every text.
    pub fn unknown(&self) -> Option<u32> {
        self.unknown
    }

    /// The tokens that are added around every text: how many before it, and how many after.
    pub fn around(&self) -> [usize; 2] {
        self.around
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
    pub fn to_json(&self) -> &str {
        &self.source
    }
}

/// How many tokens are added before and after a text, found on a text of one token.
fn around(tokenizer: &tokenizers::Tokenizer) -> Result<[usize; 2], String> {
    let Some(processor) = tokenizer.get_post_processor() else { return Ok([0, 0]) };
    let token = tokenizers::Token::new(0, "a".to_owned(), (0, 1));
    let one = Encoding::from_tokens(vec![token], 0);
    let with = processor.process(one, None, true);
    let with = with.map_err(|error| format!("has a post_processor that fails: {error}"))?;
    let own = with.get_special_tokens_mask().iter().position(|special| *special == 0);
    let before = own.ok_or("has a post_processor that drops the text's own tokens")?;
    Ok([before, with.len() - before - 1])
}

/// What a file says of its parts. The crate takes a part of a type that it does not know for one that it
/// knows if the rest fits, and numbers an added token anew if another has its number; both are refused.
#[derive(Deserialize)]
struct Outline {
    model: Model,
    normalizer: Option<Kind>,
    pre_tokenizer: Option<Kind>,
    post_processor: Option<Kind>,
    #[serde(default)]
    added_tokens: Vec<Added>,
}

#[derive(Deserialize)]
struct Kind {
    r#type: Option<String>,
}

/// The model names the token of what it does not know by its text or, of type `Unigram`, by its number.
#[derive(Deserialize)]
struct Model {
    r#type: Option<String>,
    unk_token: Option<String>,
    unk_id: Option<u32>,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
}

impl Outline {
    fn of(source: &str) -> Result<Self, String> {
        serde_json::from_str(source).map_err(|error| format!("cannot be read: {error}"))
    }

    fn check(&self, read: &tokenizers::Tokenizer) -> Result<(), String> {
        let model = match read.get_model() {
            ModelWrapper::BPE(_) => "BPE",
            ModelWrapper::WordPiece(_) => "WordPiece",
            ModelWrapper::WordLevel(_) => "WordLevel",
            ModelWrapper::Unigram(_) => "Unigram",
        };
        same("model", self.model.r#type.as_deref(), Some(model.to_owned()))?;
        let normaliser = read.get_normalizer().and_then(kind);
        same("normalizer", Kind::of(self.normalizer.as_ref()), normaliser)?;
        let splitter = read.get_pre_tokenizer().and_then(kind);
        same("pre_tokenizer", Kind::of(self.pre_tokenizer.as_ref()), splitter)?;
        let processor = read.get_post_processor().and_then(kind);
        same("post_processor", Kind::of(self.post_processor.as_ref()), processor)?;
        for Added { id, content } in &self.added_tokens {
            let found = read.token_to_id(content);
            if found != Some(*id) {
                let found = found.map_or("none".to_owned(), |id| id.to_string());
                return Err(format!(
                    "gives the added token `{content}` the number {id}, but it has {found} beside the \
                     others: two tokens share a number, or one has two"
                ));
            }
        }
        Ok(())
    }

    fn unknown(&self, read: &tokenizers::Tokenizer) -> Option<u32> {
        let by_text = || read.token_to_id(self.model.unk_token.as_deref()?);
        self.model.unk_id.or_else(by_text)
    }

    /// Whether a character that became so many tokens was left out because the vocabulary does not know it, as a model
    /// of type `BPE` does that names no token for such, and not by the normaliser. Tokens of its own would be more of
    /// two; a blank that is put before a text, as by `Metaspace`, is one.
    fn leaves_out(&self, read: &tokenizers::Tokenizer, tokens: usize) -> bool {
        let more = || read.encode(NOBODYS.repeat(2), false).map(|two| two.len() > tokens);
        keeps(read, NOBODYS) && self.unknown(read).is_none() && !more().unwrap_or(true)
    }

    /// The bytes of texts that a model of bytes without a token for what it does not know has none for. One of several bytes
    /// in a character may be among them, which the character that no vocabulary knows does not show.
    fn bytes_left_out(&self, read: &tokenizers::Tokenizer) -> Vec<u8> {
        let parts = serde_json::to_string(&(read.get_normalizer(), read.get_pre_tokenizer()));
        let is_of_bytes = parts.is_ok_and(|parts| parts.contains(r#""type":"ByteLevel""#));
        let drops = matches!(read.get_model(), ModelWrapper::BPE(model) if !model.byte_fallback);
        if !is_of_bytes || !drops || self.unknown(read).is_some() {
            return vec![];
        }
        let vocabulary = read.get_vocab(false);
        // One letter stands for all beyond ASCII, which a normaliser may take away.
        let has_others = normalised(read, "あ").is_some_and(|left| !left.is_ascii());
        let is_left_out = |(byte, written): &(u8, char)| {
            let is_lacking = is_of_texts(*byte) && !vocabulary.contains_key(&written.to_string());
            is_lacking
                && match byte.is_ascii() {
                    true => keeps(read, &char::from(*byte).to_string()),
                    false => has_others,
                }
        };
        let left_out = bytes_as_written().filter(is_left_out);
        left_out.map(|(byte, _)| byte).collect()
    }
}

/// Every byte with the character that stands for it in a vocabulary of bytes, as of GPT-2: those that can be seen are their
/// own, and the others are numbered from U+0100 on.
fn bytes_as_written() -> impl Iterator<Item = (u8, char)> {
    let mut unseen = '\u{100}'..;
    (0..=u8::MAX).map(move |byte| match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE.. => (byte, char::from(byte)),
        _ => (byte, unseen.next().unwrap_or_default()),
    })
}

/// Whether texts in UTF-8 have such a byte, but for blanks and control characters, which may be left out on purpose, and for
/// planes that nothing is assigned in.
fn is_of_texts(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0x80..=0xBF | 0xC2..=0xF0 | 0xF3)
}

/// Whether the normaliser leaves a text as it is, or more beside it.
fn keeps(read: &tokenizers::Tokenizer, text: &str) -> bool {
    normalised(read, text).is_some_and(|left| left.contains(text))
}

/// What the normaliser makes of a text.
fn normalised(read: &tokenizers::Tokenizer, text: &str) -> Option<String> {
    let mut text = NormalizedString::from(text);
    if let Some(normaliser) = read.get_normalizer() {
        normaliser.normalize(&mut text).ok()?;
    }
    Some(text.get().to_owned())
}

impl Kind {
    /// What a file says of the type of a part, if it has the part.
    fn of(part: Option<&Self>) -> Option<&str> {
        part?.r#type.as_deref()
    }
}

/// The type of a part as it was read.
fn kind(part: &impl Serialize) -> Option<String> {
    let written = serde_json::to_value(part).ok()?;
    Some(written.get("type")?.as_str()?.to_owned())
}

/// Checks that a part was read as what the file says.
fn same(key: &str, asked: Option<&str>, read: Option<String>) -> Result<(), String> {
    match asked {
        Some(asked) if Some(asked) != read.as_deref() => {
            Err(refused(key, Some(asked), "it is of no type that is known"))
        }
        _ => Ok(()),
    }
}

/// That a part of a file cannot be used, and what can.
fn refused(key: &str, kind: Option<&str>, why: &str) -> String {
    let kind = kind.map_or(String::new(), |kind| format!(" of type `{kind}`"));
    format!(
        "has a `{key}`{kind} that cannot be used: {why}; supported is what Hugging Face's \
         `tokenizers` 0.23 reads, which also writes such files (`save_pretrained` of a fast tokenizer)"
    )
}

/// What of a file cannot be used.
fn unusable(source: &str, whole: &str) -> String {
    let file: Value = match serde_json::from_str(source) {
        Ok(file) => file,
        Err(error) => return format!("is not JSON: {error}"),
    };
    let part = |key: &str| file.get(key).cloned().unwrap_or(Value::Null);
    let wrong = [
        ("normalizer", fails::<Option<NormalizerWrapper>>(part("normalizer"))),
        ("pre_tokenizer", fails::<Option<PreTokenizerWrapper>>(part("pre_tokenizer"))),
        ("model", fails::<ModelWrapper>(part("model"))),
        ("post_processor", fails::<Option<PostProcessorWrapper>>(part("post_processor"))),
        ("decoder", fails::<Option<DecoderWrapper>>(part("decoder"))),
        ("added_tokens", fails::<Option<Vec<AddedToken>>>(part("added_tokens"))),
    ];
    let found = wrong.into_iter().find_map(|(key, error)| Some((key, error?)));
    let (key, error) = found.unwrap_or(("content", whole.to_owned()));
    let kind = file.get(key).and_then(|part| part.get("type")).and_then(Value::as_str);
    refused(key, kind, &error)
}

fn fails<T: DeserializeOwned>(part: Value) -> Option<String> {
    serde_json::from_value::<T>(part).err().map(|error| error.to_string())
}
/// A place without the blanks at its ends: some tokenizers, such as DeBERTa's, count the blank before a word to its token. One
/// of blanks alone stays.
fn without_blanks(text: &str, [from, to]: [usize; 2]) -> [usize; 2] {
    let own = text.get(from..to).unwrap_or_default();
    let word = own.trim();
    if word.is_empty() {
        return [from, to];
    }
    let before = own.len() - own.trim_start().len();
    [from + before, from + before + word.len()]
}
