//! Bags of words by TF-IDF: what a model without order is given.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Weights of words, fitted on training texts.
#[derive(Clone, Debug)]
pub struct WordWeights {
    /// Place and inverse document frequency of each word.
    words: HashMap<String, (usize, f64)>,
}

/// Words, and pairs of neighbours, in small letters.
fn terms(text: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    let words: Vec<&str> =
        lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let pairs = words.windows(2).map(|pair| pair.join(" "));
    words.iter().map(|word| (*word).to_owned()).chain(pairs).collect()
}

impl WordWeights {
    /// Fits the weights: the `most` terms (words and pairs of neighbours) that are in most texts, of
    /// equals the first in the alphabet, each with `ln((1 + texts) / (1 + texts with it)) + 1`.
    /// Source: scikit-learn's `TfidfVectorizer`.
    pub fn fit<'a>(texts: impl Iterator<Item = &'a str>, most: usize) -> Self {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let mut total = 0usize;
        for text in texts {
            total += 1;
            for term in terms(text).into_iter().collect::<BTreeSet<_>>() {
                *counts.entry(term).or_insert(0) += 1;
            }
        }
        let mut counted: Vec<(String, usize)> = counts.into_iter().collect();
        counted.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        counted.truncate(most);
        let weigh = |(place, (term, count)): (usize, (String, usize))| {
            (term, (place, ((1 + total) as f64 / (1 + count) as f64).ln() + 1.0))
        };
        Self { words: counted.into_iter().enumerate().map(weigh).collect() }
    }

    /// Terms that have a weight.
    pub fn width(&self) -> usize {
        self.words.len()
    }

    /// The texts as rows of length 1, `[text, term]`, row by row.
    pub fn rows<'a>(&self, texts: impl Iterator<Item = &'a str>) -> Vec<f32> {
        let mut rows = vec![];
        for text in texts {
            let mut row = vec![0.0f64; self.width()];
            for term in terms(text) {
                if let Some((place, weight)) = self.words.get(&term) {
                    row[*place] += weight;
                }
            }
            let norm = row.iter().map(|v| v * v).sum::<f64>().sqrt();
            let norm = if norm > 0.0 { norm } else { 1.0 };
            rows.extend(row.into_iter().map(|v| (v / norm) as f32));
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_those_of_scikit_learn() {
        let texts = ["Late, late parcel", "a parcel"];
        let weights = WordWeights::fit(texts.into_iter(), 100);
        // parcel; a, a parcel, late, late late, late parcel
        assert_eq!(weights.width(), 6);
        let rows = weights.rows(["late late parcel", "unknown"].into_iter());
        // `TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+")` on the same.
        let expected = [0.278_943, 0.0, 0.0, 0.784_088, 0.392_044, 0.392_044];
        let mut found = rows[..6].to_vec();
        found.sort_by(f32::total_cmp);
        let mut expected = expected.to_vec();
        expected.sort_by(f64::total_cmp);
        for (found, expected) in found.iter().zip(&expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{found} {expected}");
        }
        assert!(rows[6..].iter().all(|v| *v == 0.0));
    }
}
