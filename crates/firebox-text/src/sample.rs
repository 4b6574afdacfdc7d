//! Texts made from settings: letters to a delivery service with nine labels and their evidence.
//!
//! A letter is a row of sentences: complaints (and praise), each of which makes its label hold; the
//! same sentences said of somebody else, or denied; and chatter. Which complaint a letter denies is not
//! in its words but in their order. The evidence is the first complaint. Nobody wrote these letters.

use firebox_core::{Draws, LabelledTexts, Stream};
use serde::{Deserialize, Serialize};

use crate::TextError;

/// Settings of generated texts: the content of a `.texts.toml` file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextSampleConfig {
    /// Seed of every draw.
    pub seed: u64,
    /// Letters, at least 1.
    pub texts: usize,
    /// Letters of one author, at most, at least 1; authors are the groups of the split.
    pub letters_of_an_author: u64,
    /// Probability of each label, from 0 to 1.
    pub label: f64,
    /// Probability that a complaint that does not hold is denied, from 0 to 1.
    pub denied: f64,
    /// Probability that a letter is one that was sent before, from 0 to 1.
    pub repeated: f64,
}

impl Default for TextSampleConfig {
    fn default() -> Self {
        Self {
            seed: 20_240_102,
            texts: 3000,
            letters_of_an_author: 4,
            label: 0.18,
            denied: 0.16,
            repeated: 0.02,
        }
    }
}

/// A label: its name, and sentences that make it hold.
type Label = (&'static str, &'static [&'static str]);

const LABELS: [Label; 9] = [
    (
        "late",
        &[
            "the {item} came {number} days late",
            "my {item} arrived a week after the promised day",
            "I waited until {day} for a delivery that was due on Monday",
            "the delivery was late once more",
        ],
    ),
    (
        "lost",
        &[
            "the {item} never came",
            "my {item} was lost on the way",
            "nobody can say where the {item} is",
            "the tracking stopped on {day} and the {item} has vanished",
        ],
    ),
    (
        "damaged",
        &[
            "the {item} was broken when I opened the box",
            "the box was crushed and the {item} in it damaged",
            "there is a crack right through the {item}",
            "water had got into the box and spoilt the {item}",
        ],
    ),
    (
        "wrong-item",
        &[
            "I ordered a {item} and got a {other}",
            "they sent a {other} in the place of the {item}",
            "this is not the {item} that I ordered",
            "the {item} is of the wrong size",
        ],
    ),
    (
        "refund",
        &[
            "I want my money back",
            "please refund the {item}",
            "I ask for a refund by {day}",
            "send me back what I paid for the {item}",
        ],
    ),
    (
        "rude",
        &[
            "the driver shouted at me",
            "your agent was rude on the phone",
            "the man at the counter called me a liar",
            "nobody has ever been so unfriendly to me as your driver",
        ],
    ),
    (
        "website",
        &[
            "your website does not load",
            "the app crashes whenever I open the order",
            "I cannot log in on your page",
            "the button for the address does nothing",
        ],
    ),
    (
        "billing",
        &[
            "I was charged twice for the {item}",
            "the bill is {number} euros too high",
            "you took money for a {item} that I cancelled",
            "there is a fee on the bill that nobody told me of",
        ],
    ),
    (
        "praise",
        &[
            "your driver was wonderful",
            "I am very happy with the {item}",
            "thank you for the quick help on {day}",
            "this is the best service I know",
        ],
    ),
];

/// What a complaint may be said with, and what turns it into somebody else's or into none.
const SAID: [&str; 6] = [
    "{complaint}",
    "{complaint}",
    "it is true that {complaint}",
    "I must say that {complaint}",
    "once more {complaint}",
    "as I said on {day}, {complaint}",
];
const DENIED: [&str; 6] = [
    "it is not true that {complaint}",
    "I do not say that {complaint}",
    "a friend told me that {complaint}",
    "last year {complaint}",
    "nobody says that {complaint}",
    "I had feared that {complaint}",
];

const CHATTER: [&str; 12] = [
    "I ordered the {item} on {day}",
    "the {item} is a present for my sister",
    "I have been a customer for {number} years",
    "my order has the number {number}{number}",
    "it rained all {day}",
    "I live on the {number}th floor",
    "please answer by mail",
    "I write to you for the first time",
    "the dog was in the garden",
    "we moved house on {day}",
    "my husband signed for it",
    "I shall order again next month",
];

const OPENINGS: [&str; 5] =
    ["Hello", "Dear team", "Good morning", "To whom it may concern", "Hi there"];
const ITEMS: [&str; 12] = [
    "lamp", "book", "coat", "kettle", "chair", "clock", "mirror", "radio", "vase", "table",
    "phone", "printer",
];
const DAYS: [&str; 6] = ["Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

fn one_of<'a>(draws: &mut Draws, all: &[&'a str]) -> &'a str {
    all[draws.below(all.len() as u64) as usize]
}

/// A sentence with its gaps filled.
fn filled(draws: &mut Draws, pattern: &str) -> String {
    let place = draws.below(ITEMS.len() as u64) as usize;
    let other = (place + 1 + draws.below(ITEMS.len() as u64 - 1) as usize) % ITEMS.len();
    let number = (2 + draws.below(8)).to_string();
    let text = pattern
        .replace("{item}", ITEMS[place])
        .replace("{other}", ITEMS[other])
        .replace("{day}", one_of(draws, &DAYS))
        .replace("{number}", &number);
    let mut characters = text.chars();
    characters
        .next()
        .map_or(String::new(), |first| first.to_uppercase().chain(characters).collect())
}

impl TextSampleConfig {
    /// Makes the texts: each depends on the seed and on its own number alone.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn make(&self) -> Result<LabelledTexts, TextError> {
        let shares = [("label", self.label), ("denied", self.denied), ("repeated", self.repeated)];
        let wrong = shares.iter().find(|(_, share)| !(0.0..=1.0).contains(share));
        let none =
            [("texts", self.texts), ("letters_of_an_author", self.letters_of_an_author as usize)];
        let none = none.iter().find(|(_, count)| *count == 0);
        if let Some((key, found)) = wrong {
            let message = format!("the texts' `{key}` is {found}; it must lie from 0 to 1");
            return Err(TextError::Texts(message));
        }
        if let Some((key, _)) = none {
            return Err(TextError::Texts(format!(
                "the texts' `{key}` is 0; it must be at least 1"
            )));
        }
        let mut made = LabelledTexts {
            labels: LABELS.iter().map(|(name, ..)| (*name).to_owned()).collect(),
            ..LabelledTexts::default()
        };
        let (stream, mut author, mut left) = (Stream::new(self.seed, "letters"), 0u64, 0u64);
        for number in 0..self.texts {
            let mut draws = stream.substream(number as u64).draws();
            if left == 0 {
                author += 1;
                left = 1 + draws.below(self.letters_of_an_author);
            }
            left -= 1;
            if number > 0 && draws.chance(self.repeated) {
                let before = draws.below(number as u64) as usize;
                made.texts.push(made.texts[before].clone());
                made.spans.push(made.spans[before]);
                let row = made.row(before).to_vec();
                made.truth.extend(row);
            } else {
                self.letter(&mut draws, &mut made);
            }
            made.groups.push(Some(format!("author {author}")));
            made.rows.push(number + 1);
        }
        Ok(made)
    }

    fn letter(&self, draws: &mut Draws, made: &mut LabelledTexts) {
        // Sentences, and the label that each makes hold.
        let mut sentences: Vec<(String, bool)> = vec![];
        for (_, complaints) in LABELS {
            let holds = draws.chance(self.label);
            if holds || draws.chance(self.denied) {
                let frame = one_of(draws, if holds { &SAID } else { &DENIED });
                let pattern = frame.replace("{complaint}", one_of(draws, complaints));
                sentences.push((filled(draws, &pattern), holds));
            }
            made.truth.push(holds);
        }
        for _ in 0..1 + draws.below(2) {
            let pattern = one_of(draws, &CHATTER);
            sentences.push((filled(draws, pattern), false));
        }
        draws.shuffle(&mut sentences);
        let mut text = String::new();
        if draws.chance(0.5) {
            text += one_of(draws, &OPENINGS);
            text.push_str(". ");
        }
        let mut span = None;
        for (sentence, complaint) in sentences {
            let start = text.len();
            text += &sentence;
            if complaint && span.is_none() {
                span = Some([start, text.len()]);
            }
            text.push_str(". ");
        }
        made.texts.push(text.trim_end().to_owned());
        made.spans.push(span);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test says why it fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn letters_follow_from_the_seed_and_hold_their_evidence() {
        let config = TextSampleConfig { texts: 400, ..TextSampleConfig::default() };
        let made = config.make().unwrap();
        assert_eq!(made, config.make().unwrap());
        assert_ne!(
            made.texts,
            TextSampleConfig { seed: 1, ..config.clone() }.make().unwrap().texts
        );
        assert_eq!((made.len(), made.truth.len(), made.groups.len()), (400, 3600, 400));
        for text in 0..made.len() {
            assert_eq!(made.row(text).contains(&true), made.spans[text].is_some());
            if let Some([from, to]) = made.spans[text] {
                assert!(made.texts[text].get(from..to).is_some_and(|part| !part.ends_with('.')));
            }
        }
        let share = made.truth.iter().filter(|t| **t).count() as f64 / 3600.0;
        assert!((share - 0.18).abs() < 0.03, "{share}");
        let error = TextSampleConfig { label: 1.5, ..config }.make().unwrap_err().to_string();
        assert!(error.contains("`label` is 1.5"), "{error}");
    }
}
