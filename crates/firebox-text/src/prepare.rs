//! Texts as tokens with the places of their evidence among them.

use serde::{Deserialize, Serialize};

use crate::{TextError, Tokenizer};

/// A text as the model reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenisedText {
    /// Numbers of the tokens, those around the text among them.
    pub tokens: Vec<u32>,
    /// Bytes of the text that each token stands for; empty for those around it.
    pub places: Vec<[usize; 2]>,
    /// First and last token of the evidence.
    pub span: Option<[usize; 2]>,
    /// Tokens that were cut off.
    pub cut: usize,
    /// Whether evidence was there and lies wholly or partly in what was cut off.
    pub span_cut: bool,
}

/// Turns a text into at most `longest` tokens. What is too long loses its end; the tokens around it
/// stay.
///
/// # Errors
/// If the text cannot be split, nothing of it has a token, or its evidence has none or ends before it begins.
pub fn tokenise(
    tokenizer: &Tokenizer,
    text: &str,
    span: Option<[usize; 2]>,
    longest: usize,
) -> Result<TokenisedText, TextError> {
    let mut tokens = tokenizer.encode(text)?;
    let [before, after] = tokenizer.around();
    let own = tokens.len() - before - after;
    let shown = || text.chars().take(40).collect::<String>();
    if own == 0 {
        return Err(TextError::Nothing { shown: shown() });
    }
    let overlaps = |place: [usize; 2], [from, to]: [usize; 2]| place[0] < to && place[1] > from;
    let span = match span {
        None => None,
        Some([from, to]) if from >= to => {
            return Err(TextError::Texts(format!(
                "the evidence of the text `{}` is from {from} to {to}; it must end after its beginning",
                shown()
            )));
        }
        Some(span) => {
            let within =
                |index: &usize| !tokens[*index].special && overlaps(tokens[*index].place, span);
            let first = (0..tokens.len()).find(within);
            let last = (0..tokens.len()).rev().find(within);
            let found = first.zip(last).ok_or_else(|| {
                TextError::Texts(format!("the evidence of the text {:?} has no token", shown()))
            })?;
            Some([found.0, found.1])
        }
    };
    let cut = tokens.len().saturating_sub(longest.max(before + after + 1));
    let kept = tokens.len() - after - cut;
    tokens.drain(kept..kept + cut);
    let span_cut = span.is_some_and(|[_, last]| last >= kept);
    Ok(TokenisedText {
        places: tokens.iter().map(|token| token.place).collect(),
        tokens: tokens.into_iter().map(|token| token.id).collect(),
        span: span.filter(|_| !span_cut),
        cut,
        span_cut,
    })
}

/// How many tokens of some texts stand for what the vocabulary does not know, and how many tokens there are, both without
/// those around each text.
pub fn unknown_tokens<'a>(
    tokenizer: &Tokenizer,
    texts: impl IntoIterator<Item = &'a TokenisedText>,
) -> [u64; 2] {
    let [before, after] = tokenizer.around();
    let unknown = tokenizer.unknown();
    texts.into_iter().fold([0, 0], |[found, all], TokenisedText { tokens, .. }| {
        let own = tokens.get(before..tokens.len().saturating_sub(after)).unwrap_or_default();
        let here = own.iter().filter(|token| Some(**token) == unknown).count();
        [found + here as u64, all + own.len() as u64]
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test says why it fails by panicking")]
mod tests {
    use super::*;
    use crate::WordPieceTraining;

    #[test]
    fn evidence_is_found_among_the_tokens_or_counted_as_cut() {
        let text = "The parcel never came, alas.";
        let training = WordPieceTraining { least: 1, ..WordPieceTraining::default() };
        let tokenizer = training.train([text]).unwrap();
        let span = text.find("never came").map(|at| [at, at + 10]);
        let whole = tokenise(&tokenizer, text, span, 64).unwrap();
        // [CLS] the parcel never came , alas . [SEP]
        assert_eq!((whole.tokens.len(), whole.span, whole.cut), (9, Some([3, 4]), 0));
        assert_eq!(&text[whole.places[3][0]..whole.places[4][1]], "never came");
        let short = tokenise(&tokenizer, text, span, 6).unwrap();
        assert_eq!((short.tokens.len(), short.span, short.cut), (6, Some([3, 4]), 3));
        assert_eq!(short.tokens.last(), whole.tokens.last());
        let shorter = tokenise(&tokenizer, text, span, 5).unwrap();
        assert_eq!((shorter.span, shorter.span_cut, shorter.cut), (None, true, 4));
        assert!(tokenise(&tokenizer, "\u{200b}", None, 8).is_err());
        for [from, to] in [[9, 4], [6, 6]] {
            let error = tokenise(&tokenizer, text, Some([from, to]), 64).unwrap_err().to_string();
            assert!(error.contains(&format!("from {from} to {to}")), "{error}");
        }
    }

    #[test]
    fn words_of_another_script_are_unknown() {
        let training = WordPieceTraining { least: 1, ..WordPieceTraining::default() };
        let text = "The parcel never came, alas.";
        let tokenizer = training.train([text]).unwrap();
        assert_eq!(tokenizer.unknown(), tokenizer.id("[UNK]"));
        let read = |text| tokenise(&tokenizer, text, None, 64).unwrap();
        let texts = [read(text), read("Посылка не пришла.")];
        assert_eq!(unknown_tokens(&tokenizer, &texts[..1]), [0, 7]);
        assert_eq!(unknown_tokens(&tokenizer, &texts), [3, 11]);
    }
}
