//! Words in pieces, of which the most frequent pairs are joined: Gage's byte-pair encoding (1994), with the ties of
//! [`WordPieceTraining`](super::WordPieceTraining).
//!
//! Counts are kept up to date, and a joined pair costs no more than the words that have it. Counting all pairs anew for
//! each took minutes where there were tens of thousands of words.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

use super::train::PREFIX;

/// Two pieces that follow on one another, by their numbers.
type Pair = [u32; 2];

/// A pair with the number of times that it occurred when this was noted. The greatest is joined first: the most
/// frequent, and of equals the first in the alphabet.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    count: usize,
    texts: Reverse<[Arc<str>; 2]>,
    pair: Pair,
}

/// Distinct words in pieces, each with how often it occurs.
pub(super) struct Joining {
    /// Texts of pieces, by their numbers.
    texts: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u32>,
    words: Vec<(Vec<u32>, usize)>,
    counts: HashMap<Pair, usize>,
    /// Words that have a pair, and some that had it once.
    places: HashMap<Pair, Vec<usize>>,
    /// Of each pair its count, and counts that it had once.
    candidates: BinaryHeap<Candidate>,
}

impl Joining {
    /// Words in their letters.
    pub(super) fn new(words: &BTreeMap<String, usize>) -> Self {
        let mut joining = Self {
            texts: vec![],
            numbers: HashMap::new(),
            words: vec![],
            counts: HashMap::new(),
            places: HashMap::new(),
            candidates: BinaryHeap::new(),
        };
        for (word, count) in words {
            let letters = word.chars().enumerate().map(|(at, letter)| match at {
                0 => letter.to_string(),
                _ => format!("{PREFIX}{letter}"),
            });
            let pieces: Vec<u32> = letters.map(|letter| joining.number(&letter).0).collect();
            for pair in pairs(&pieces) {
                *joining.counts.entry(pair).or_insert(0) += count;
                joining.places.entry(pair).or_default().push(joining.words.len());
            }
            joining.words.push((pieces, *count));
        }
        let all: Vec<Pair> = joining.counts.keys().copied().collect();
        all.into_iter().for_each(|pair| joining.note(pair));
        joining
    }

    /// The pieces that there are.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(AsRef::as_ref)
    }

    /// Joins the next pair that occurs at least so often: its text, and whether no piece had it before. None if there
    /// is no such pair.
    pub(super) fn join_next(&mut self, least: usize) -> Option<(Arc<str>, bool)> {
        let pair = loop {
            let Candidate { count, pair, .. } = self.candidates.pop()?;
            if self.counts.get(&pair) != Some(&count) {
                continue;
            }
            if count < least {
                return None;
            }
            break pair;
        };
        let [left, right] = pair.map(|piece| Arc::clone(&self.texts[piece as usize]));
        let text = left.to_string() + right.strip_prefix(PREFIX).unwrap_or(&right);
        let (joined, is_new) = self.number(&text);
        let mut changed = HashSet::new();
        for place in self.places.remove(&pair).unwrap_or_default() {
            let (pieces, count) = &mut self.words[place];
            if !pairs(pieces).any(|own| own == pair) {
                continue;
            }
            for own in pairs(pieces) {
                *self.counts.entry(own).or_insert(0) -= *count;
                changed.insert(own);
            }
            join(pieces, pair, joined);
            for own in pairs(pieces) {
                *self.counts.entry(own).or_insert(0) += *count;
                changed.insert(own);
                if own.contains(&joined) {
                    self.places.entry(own).or_default().push(place);
                }
            }
        }
        changed.into_iter().for_each(|pair| self.note(pair));
        Some((Arc::clone(&self.texts[joined as usize]), is_new))
    }

    /// The number of a piece, and whether it is a new one.
    fn number(&mut self, text: &str) -> (u32, bool) {
        if let Some(number) = self.numbers.get(text) {
            return (*number, false);
        }
        let (text, number) = (Arc::<str>::from(text), self.texts.len() as u32);
        self.texts.push(Arc::clone(&text));
        self.numbers.insert(text, number);
        (number, true)
    }

    /// Notes how often a pair occurs now.
    fn note(&mut self, pair: Pair) {
        match self.counts.get(&pair).copied().unwrap_or_default() {
            0 => drop(self.counts.remove(&pair)),
            count => {
                let texts = Reverse(pair.map(|piece| Arc::clone(&self.texts[piece as usize])));
                self.candidates.push(Candidate { count, texts, pair });
            }
        }
    }
}

fn pairs(pieces: &[u32]) -> impl Iterator<Item = Pair> {
    pieces.windows(2).map(|pair| [pair[0], pair[1]])
}

/// Joins a pair wherever it is in a word, from the left.
fn join(pieces: &mut Vec<u32>, pair: Pair, joined: u32) {
    let (mut read, mut written) = (0, 0);
    while read < pieces.len() {
        let is_pair = pieces[read..].starts_with(&pair);
        pieces[written] = if is_pair { joined } else { pieces[read] };
        read += if is_pair { 2 } else { 1 };
        written += 1;
    }
    pieces.truncate(written);
}

#[cfg(test)]
mod tests {
    use firebox_core::Stream;

    use super::*;

    /// All pairs counted anew for each that is joined.
    fn plainly(words: &BTreeMap<String, usize>, least: usize, most: usize) -> Vec<String> {
        let mut words: Vec<(Vec<String>, usize)> = (words.iter())
            .map(|(word, count)| {
                let piece = |(at, letter): (usize, char)| match at {
                    0 => letter.to_string(),
                    _ => format!("{PREFIX}{letter}"),
                };
                (word.chars().enumerate().map(piece).collect(), *count)
            })
            .collect();
        let mut joined = vec![];
        while joined.len() < most {
            let mut pairs = BTreeMap::<[String; 2], usize>::new();
            for (pieces, count) in &words {
                for pair in pieces.windows(2) {
                    *pairs.entry([pair[0].clone(), pair[1].clone()]).or_insert(0) += count;
                }
            }
            let next = pairs.iter().max_by_key(|(pair, count)| (**count, Reverse(*pair)));
            let Some((pair, _)) = next.filter(|(_, count)| **count >= least) else { break };
            let text = pair[0].clone() + pair[1].strip_prefix(PREFIX).unwrap_or(&pair[1]);
            for (pieces, _) in &mut words {
                let mut at = 0;
                while at + 1 < pieces.len() {
                    if pieces[at..at + 2] == *pair {
                        pieces.splice(at..at + 2, [text.clone()]);
                    }
                    at += 1;
                }
            }
            joined.push(text);
        }
        joined
    }

    #[test]
    fn pairs_are_joined_as_if_all_were_counted_anew() {
        for seed in 0..40 {
            let mut draws = Stream::new(seed, "words").draws();
            // Few letters give runs of one letter, ties, and pieces that are made in several ways.
            let letters = ["a", "ab", "abc", "aé#"][seed as usize % 4];
            let letters: Vec<char> = letters.chars().collect();
            let mut words = BTreeMap::new();
            for _ in 0..1 + draws.below(60) {
                let length = 1 + draws.below(9);
                let word: String = (0..length)
                    .map(|_| letters[draws.below(letters.len() as u64) as usize])
                    .collect();
                *words.entry(word).or_insert(0) += 1 + draws.below(4) as usize;
            }
            let (least, most) = (1 + draws.below(3) as usize, 50);
            let mut joining = Joining::new(&words);
            let mut known: HashSet<String> = joining.pieces().map(str::to_owned).collect();
            let mut found = vec![];
            while found.len() < most {
                let Some((text, is_new)) = joining.join_next(least) else { break };
                assert_eq!(is_new, known.insert(text.to_string()), "{text}");
                found.push(text.to_string());
            }
            assert_eq!(found, plainly(&words, least, most), "seed {seed}");
            assert_eq!(joining.pieces().count(), known.len());
        }
    }
}
