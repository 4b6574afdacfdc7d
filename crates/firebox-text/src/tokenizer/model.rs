//! Models of tokenizers: one word → tokens.

use std::collections::HashMap;

use serde_json::Value;

use super::characters::{Character, place, text};
use super::{Token, flag, kind, unsupported};

/// What an unknown character costs beside the unlikeliest token. Source: SentencePiece.
const UNKNOWN_PENALTY: f64 = 10.0;

#[derive(Clone, Debug)]
pub(super) enum Model {
    WordPiece { vocabulary: HashMap<String, u32>, unknown: u32, prefix: String, longest: usize },
    WordLevel { vocabulary: HashMap<String, u32>, unknown: Option<u32> },
    Bpe(Bpe),
    Unigram(Unigram),
}

#[derive(Clone, Debug)]
pub(super) struct Bpe {
    vocabulary: HashMap<String, u32>,
    /// Rank and result of each pair.
    merges: HashMap<(u32, u32), (usize, u32)>,
    unknown: Option<u32>,
    fuse: bool,
    whole_first: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Unigram {
    scores: Vec<f64>,
    vocabulary: HashMap<String, u32>,
    unknown: u32,
    unknown_score: f64,
    longest: usize,
}

impl Model {
    pub(super) fn read(value: &Value) -> Result<Self, String> {
        let text = |key: &str| value.get(key).and_then(Value::as_str).filter(|t| !t.is_empty());
        for key in ["dropout", "end_of_word_suffix"] {
            let set = value.get(key).is_some_and(|v| !v.is_null() && *v != "" && *v != 0.0);
            if set {
                return Err(unsupported(&format!("model's `{key}`"), &value[key], "none"));
            }
        }
        if flag(value, "byte_fallback", false) {
            return Err(unsupported("model's `byte_fallback`", &Value::Bool(true), "false"));
        }
        // Old files leave the type of WordPiece and BPE out.
        let kind = match kind(value) {
            "" if value.get("merges").is_some() => "BPE",
            "" if value.get("max_input_chars_per_word").is_some() => "WordPiece",
            other => other,
        };
        match kind {
            "WordPiece" => {
                let vocabulary = vocabulary(value)?;
                let unknown = text("unk_token").and_then(|token| vocabulary.get(token)).copied();
                let unknown = unknown.ok_or("has no token for unknown words in its vocabulary")?;
                let longest = value.get("max_input_chars_per_word").and_then(Value::as_u64);
                let prefix = text("continuing_subword_prefix").unwrap_or_default().to_owned();
                let longest = longest.unwrap_or(100) as usize;
                Ok(Self::WordPiece { vocabulary, unknown, prefix, longest })
            }
            "WordLevel" => {
                let vocabulary = vocabulary(value)?;
                let unknown = text("unk_token").and_then(|token| vocabulary.get(token)).copied();
                Ok(Self::WordLevel { vocabulary, unknown })
            }
            "BPE" => Bpe::read(value).map(Self::Bpe),
            "Unigram" => Unigram::read(value).map(Self::Unigram),
            _ => {
                let found = value.get("type").unwrap_or(&Value::Null);
                Err(unsupported("model", found, "WordPiece, WordLevel, BPE, Unigram"))
            }
        }
    }

    fn names(&self) -> &HashMap<String, u32> {
        match self {
            Self::WordPiece { vocabulary, .. } | Self::WordLevel { vocabulary, .. } => vocabulary,
            Self::Bpe(bpe) => &bpe.vocabulary,
            Self::Unigram(unigram) => &unigram.vocabulary,
        }
    }

    pub(super) fn vocabulary(&self) -> usize {
        self.names().values().max().map_or(0, |id| *id as usize + 1)
    }

    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.names().get(token).copied()
    }

    pub(super) fn tokenize(&self, word: &[Character], tokens: &mut Vec<Token>) {
        let whole = |id: u32| Token { id, place: place(word), special: false };
        match self {
            Self::WordPiece { vocabulary, unknown, prefix, longest } => {
                match word_pieces(word, vocabulary, prefix, *longest) {
                    Some(pieces) => tokens.extend(pieces),
                    None => tokens.push(whole(*unknown)),
                }
            }
            Self::WordLevel { vocabulary, unknown } => {
                tokens.extend(vocabulary.get(&text(word)).copied().or(*unknown).map(whole));
            }
            Self::Bpe(bpe) => bpe.tokenize(word, tokens),
            Self::Unigram(unigram) => unigram.tokenize(word, tokens),
        }
    }
}

fn vocabulary(value: &Value) -> Result<HashMap<String, u32>, String> {
    let all = value.get("vocab").and_then(Value::as_object).ok_or("has no vocabulary")?;
    let read = |(name, id): (&String, &Value)| {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        id.map(|id| (name.clone(), id)).ok_or_else(|| format!("has no number for `{name}`"))
    };
    all.iter().map(read).collect()
}

/// The longest piece at each place, or `None` if the word cannot be made of pieces. Source: Wu et al.,
/// "Google's neural machine translation system", 2016.
fn word_pieces(
    word: &[Character],
    vocabulary: &HashMap<String, u32>,
    prefix: &str,
    longest: usize,
) -> Option<Vec<Token>> {
    if word.len() > longest {
        return None;
    }
    let (mut tokens, mut from) = (vec![], 0);
    while from < word.len() {
        let begin = if from > 0 { prefix } else { "" };
        let found = (from + 1..=word.len()).rev().find_map(|end| {
            let piece = begin.to_owned() + &text(&word[from..end]);
            vocabulary.get(&piece).map(|id| (*id, end))
        });
        let (id, end) = found?;
        tokens.push(Token { id, place: place(&word[from..end]), special: false });
        from = end;
    }
    Some(tokens)
}

impl Bpe {
    fn read(value: &Value) -> Result<Self, String> {
        let prefix = value.get("continuing_subword_prefix").and_then(Value::as_str);
        if prefix.is_some_and(|prefix| !prefix.is_empty()) {
            let found = &value["continuing_subword_prefix"];
            return Err(unsupported("model's `continuing_subword_prefix`", found, "none"));
        }
        let vocabulary = vocabulary(value)?;
        let unknown = value.get("unk_token").and_then(Value::as_str);
        let unknown = unknown.and_then(|token| vocabulary.get(token)).copied();
        let listed = value.get("merges").and_then(Value::as_array).ok_or("has no merges")?;
        let mut merges = HashMap::with_capacity(listed.len());
        for (rank, merge) in listed.iter().enumerate() {
            let pair = match merge {
                Value::String(pair) => pair.split_once(' '),
                pair => pair[0].as_str().zip(pair[1].as_str()),
            };
            let ids = pair.and_then(|(a, b)| {
                let id = |name: &str| vocabulary.get(name).copied();
                Some(((id(a)?, id(b)?), id(&(a.to_owned() + b))?))
            });
            let (pair, result) = ids
                .ok_or_else(|| format!("has a merge of what is not in its vocabulary: {merge}"))?;
            merges.entry(pair).or_insert((rank, result));
        }
        Ok(Self {
            vocabulary,
            merges,
            unknown,
            fuse: flag(value, "fuse_unk", false),
            whole_first: flag(value, "ignore_merges", false),
        })
    }

    fn tokenize(&self, word: &[Character], tokens: &mut Vec<Token>) {
        let whole = self.vocabulary.get(&text(word)).filter(|_| self.whole_first);
        if let Some(id) = whole {
            tokens.push(Token { id: *id, place: place(word), special: false });
            return;
        }
        let mut parts: Vec<Token> = vec![];
        let mut open = false;
        for c in word {
            let id = self.vocabulary.get(c.value.encode_utf8(&mut [0; 4]) as &str).copied();
            let Some(id) = id.or(self.unknown) else { continue };
            let unknown = Some(id) == self.unknown;
            match parts.last_mut().filter(|_| open && unknown && self.fuse) {
                Some(last) => last.place[1] = c.place[1],
                None => parts.push(Token { id, place: c.place, special: false }),
            }
            open = unknown;
        }
        // The pair of the lowest rank, the leftmost of equals, until none is left.
        let best = |parts: &[Token]| {
            let ranked = parts.windows(2).enumerate().filter_map(|(at, pair)| {
                let (rank, result) = self.merges.get(&(pair[0].id, pair[1].id))?;
                Some((*rank, at, *result))
            });
            ranked.min()
        };
        while let Some((_, at, result)) = best(&parts) {
            let right = parts.remove(at + 1);
            let left = &mut parts[at];
            left.id = result;
            left.place = [left.place[0].min(right.place[0]), left.place[1].max(right.place[1])];
        }
        tokens.extend(parts);
    }
}

impl Unigram {
    fn read(value: &Value) -> Result<Self, String> {
        let listed = value.get("vocab").and_then(Value::as_array).ok_or("has no vocabulary")?;
        let read = |entry: &Value| Some((entry[0].as_str()?.to_owned(), entry[1].as_f64()?));
        let listed: Option<Vec<(String, f64)>> = listed.iter().map(read).collect();
        let listed = listed.ok_or("has a vocabulary whose entries are not a text and a number")?;
        let unknown = value.get("unk_id").and_then(Value::as_u64).unwrap_or(u64::MAX);
        let unknown = u32::try_from(unknown).ok().filter(|id| (*id as usize) < listed.len());
        let unknown = unknown.ok_or("has no token for unknown characters")?;
        let scores: Vec<f64> = listed.iter().map(|(_, score)| *score).collect();
        let lowest = scores.iter().copied().fold(f64::INFINITY, f64::min);
        let longest = listed.iter().map(|(token, _)| token.chars().count()).max().unwrap_or(0);
        let vocabulary = listed.into_iter().zip(0..).map(|((token, _), id)| (token, id)).collect();
        let unknown_score = lowest - UNKNOWN_PENALTY;
        Ok(Self { scores, vocabulary, unknown, unknown_score, longest })
    }

    /// The likeliest pieces. Source: Kudo, "Subword regularization", 2018.
    fn tokenize(&self, word: &[Character], tokens: &mut Vec<Token>) {
        // For each end: the score of the best way there, where its last piece begins, and the piece.
        let mut best: Vec<Option<(f64, usize, u32)>> = vec![None; word.len() + 1];
        best[0] = Some((0.0, 0, self.unknown));
        for from in 0..word.len() {
            let Some((base, ..)) = best[from] else { continue };
            let mut offer = |end: usize, score: f64, id: u32| {
                if best[end].is_none_or(|(found, ..)| base + score > found) {
                    best[end] = Some((base + score, from, id));
                }
            };
            let (mut piece, mut single) = (String::new(), false);
            for end in from + 1..=word.len().min(from + self.longest) {
                piece.push(word[end - 1].value);
                if let Some(id) = self.vocabulary.get(&piece) {
                    offer(end, self.scores[*id as usize], *id);
                    single |= end == from + 1;
                }
            }
            if !single {
                offer(from + 1, self.unknown_score, self.unknown);
            }
        }
        let (mut pieces, mut end) = (Vec::<(usize, usize, u32)>::new(), word.len());
        while let Some((_, from, id)) = best[end].filter(|_| end > 0) {
            match pieces.last_mut().filter(|last| last.2 == self.unknown && id == self.unknown) {
                Some(last) => last.0 = from,
                None => pieces.push((from, end, id)),
            }
            end = from;
        }
        let token = |(from, end, id): (usize, usize, u32)| Token {
            id,
            place: place(&word[from..end]),
            special: false,
        };
        tokens.extend(pieces.into_iter().rev().map(token));
    }
}
