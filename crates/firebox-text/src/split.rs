//! Training, validation and test texts without a leak: equal texts and texts of one group stay in one
//! part. Both are equal whatever their case and space.

use std::collections::{BTreeMap, HashMap};

use firebox_core::{LabelledTexts, Stream, count};

use crate::TextError;
use crate::config::TextSplit;

/// Numbers of the texts of each part, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextParts {
    /// Learnt from.
    pub train: Vec<usize>,
    /// Chosen by.
    pub validation: Vec<usize>,
    /// Measured on.
    pub test: Vec<usize>,
    /// Texts that equal another one but for case and space.
    pub duplicates: usize,
    /// Training texts that were left out because a given test table has them, or their group, too.
    pub left_out: usize,
    /// Places within `test` of texts that belong together: what a resample draws at once.
    pub test_units: Vec<Vec<usize>>,
}

/// Divides texts. The first `given` texts are those to divide, and those after them a test table that
/// was given; none after them: test texts are drawn, too. Texts without an entry in `groups` are of none.
///
/// # Errors
/// If a part that is needed has no text.
pub fn split_texts(
    texts: &LabelledTexts,
    given: usize,
    rule: &TextSplit,
) -> Result<TextParts, TextError> {
    let (family, duplicates) = families(texts);
    let mut parts = TextParts { duplicates, ..TextParts::default() };
    let test_given = given < texts.len();
    let mut members: HashMap<usize, Vec<usize>> = HashMap::new();
    for (text, family) in family.iter().enumerate() {
        members.entry(*family).or_default().push(text);
    }
    let tested = |members: &[usize]| members.iter().any(|text| *text >= given);
    let mut free: Vec<&Vec<usize>> = members.values().filter(|m| !tested(m)).collect();
    free.sort();
    if test_given {
        parts.test = (given..texts.len()).collect();
        let free: usize = free.iter().map(|members| members.len()).sum();
        parts.left_out = given - free;
    }
    let sets = free.len();
    Stream::new(rule.seed, "text-split").draws().shuffle(&mut free);
    let all: usize = free.iter().map(|members| members.len()).sum();
    let wanted = |share: f64| (share * all as f64).round() as usize;
    let wanted = [if test_given { 0 } else { wanted(rule.test) }, wanted(rule.validation)];
    // A group may be larger than what a part still lacks: it is held out where that brings the part nearer to its share.
    // Without groups, the few texts that are equal may exceed it by some.
    let grouped = texts.groups.iter().any(Option::is_some);
    let nearer = |has: usize, wanted: usize, more: usize| {
        has < wanted && (!grouped || (has + more).saturating_sub(wanted) <= wanted - has)
    };
    let mut trained: Vec<&Vec<usize>> = vec![];
    for members in free {
        let more = members.len();
        if nearer(parts.test.len(), wanted[0], more) {
            parts.test.extend(members);
        } else if nearer(parts.validation.len(), wanted[1], more) {
            parts.validation.extend(members);
        } else {
            trained.push(members);
        }
    }
    // A part that every group was too large for has the smallest.
    for (part, wanted) in [(&mut parts.test, wanted[0]), (&mut parts.validation, wanted[1])] {
        if part.is_empty() && wanted > 0 && trained.len() > 1 {
            let smallest = (0..trained.len()).min_by_key(|at| trained[*at].len()).unwrap_or(0);
            part.extend(trained.remove(smallest));
        }
    }
    parts.train = trained.into_iter().flatten().copied().collect();
    for part in [&mut parts.train, &mut parts.validation, &mut parts.test] {
        part.sort_unstable();
    }
    let mut units: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (place, text) in parts.test.iter().enumerate() {
        units.entry(family[*text]).or_default().push(place);
    }
    parts.test_units = units.into_values().collect();
    for (name, part, needed) in [
        ("training", &parts.train, true),
        ("validation", &parts.validation, rule.validation > 0.0),
        ("test", &parts.test, true),
    ] {
        if needed && part.is_empty() {
            let left_out = match parts.left_out {
                0 => String::new(),
                1 => " (1 text is left out because the test table has it, or its group)".to_owned(),
                more => format!(
                    " ({more} texts are left out because the test table has them, or their group)"
                ),
            };
            return Err(TextError::Texts(format!(
                "no text is left for the {name} part: equal texts, and those of one group, stay in one part, and \
                 there are {}, {} distinct but for case and space, in {} to divide{left_out}; give more distinct texts, or \
                 other shares in [text.split]",
                count(texts.len() as u64, "text"),
                texts.len() - duplicates,
                count(sets as u64, "set")
            )));
        }
    }
    Ok(parts)
}

/// A text without what equal texts may differ in: case and space.
pub fn as_compared(text: &str) -> String {
    text.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The first text that each must stay with, and how many texts equal an earlier one.
fn families(texts: &LabelledTexts) -> (Vec<usize>, usize) {
    let mut root: Vec<usize> = (0..texts.len()).collect();
    fn find(root: &mut [usize], mut text: usize) -> usize {
        while root[text] != text {
            root[text] = root[root[text]];
            text = root[text];
        }
        text
    }
    let mut seen: HashMap<(bool, String), usize> = HashMap::new();
    let mut duplicates = 0;
    for text in 0..texts.len() {
        let keys = [
            Some((true, as_compared(&texts.texts[text]))),
            // As texts are compared: one author is one, however the name is written.
            texts
                .groups
                .get(text)
                .and_then(Option::as_deref)
                .map(as_compared)
                .map(|group| (false, group)),
        ];
        for key in keys.into_iter().flatten() {
            let of_text = key.0;
            match seen.get(&key) {
                None => drop(seen.insert(key, text)),
                Some(other) => {
                    duplicates += usize::from(of_text);
                    let (a, b) = (find(&mut root, *other), find(&mut root, text));
                    root[a.max(b)] = a.min(b);
                }
            }
        }
    }
    let family = (0..texts.len()).map(|text| find(&mut root, text)).collect();
    (family, duplicates)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test says why it fails by panicking")]
mod tests {
    use super::*;

    fn texts(list: &[(&str, Option<&str>)]) -> LabelledTexts {
        LabelledTexts {
            texts: list.iter().map(|(text, _)| (*text).to_owned()).collect(),
            labels: vec!["a".to_owned()],
            truth: vec![false; list.len()],
            spans: vec![None; list.len()],
            groups: list.iter().map(|(_, group)| group.map(str::to_owned)).collect(),
            rows: (1..=list.len()).collect(),
            empty: vec![],
        }
    }

    #[test]
    fn equal_texts_and_groups_stay_together_for_every_seed() {
        let names: Vec<String> = (0..40).map(|i| format!("text {}", i % 25)).collect();
        let groups: Vec<String> = (0..40).map(|i| format!("author {}", i / 4)).collect();
        let list: Vec<(&str, Option<&str>)> = names
            .iter()
            .zip(&groups)
            .enumerate()
            .map(|(i, (n, g))| (n.as_str(), (i < 20).then_some(g.as_str())))
            .collect();
        let texts = texts(&list);
        for seed in 0..20 {
            let rule = TextSplit { validation: 0.2, test: 0.2, seed };
            let parts = split_texts(&texts, 40, &rule).unwrap();
            assert_eq!(parts.train.len() + parts.validation.len() + parts.test.len(), 40);
            assert_eq!(parts.duplicates, 15);
            let of = |text: usize| {
                [&parts.train, &parts.validation, &parts.test]
                    .iter()
                    .position(|p| p.contains(&text))
            };
            for a in 0..40 {
                for b in 0..a {
                    let same = texts.texts[a] == texts.texts[b]
                        || (texts.groups[a].is_some() && texts.groups[a] == texts.groups[b]);
                    assert!(!same || of(a) == of(b), "{a} {b} {seed}");
                }
            }
        }
    }

    #[test]
    fn a_large_group_does_not_fill_a_small_part() {
        let names: Vec<String> = (0..300).map(|i| format!("text {i}")).collect();
        let authors: Vec<String> = (0..300).map(|i| format!("a{}", i.max(199) / 5)).collect();
        let list = names.iter().zip(&authors).map(|(n, a)| (n.as_str(), Some(a.as_str())));
        let texts = texts(&list.collect::<Vec<_>>());
        for seed in 0..30 {
            let rule = TextSplit { validation: 0.15, test: 0.2, seed };
            let parts = split_texts(&texts, 300, &rule).unwrap();
            // The author of two thirds of all texts is learnt from.
            assert!((195..=245).contains(&parts.train.len()), "{seed} {}", parts.train.len());
            assert!(parts.test.len().abs_diff(60) <= 5, "{seed} {}", parts.test.len());
        }
        // Where all are too large, the smallest are held out.
        let few: Vec<(&str, Option<&str>)> = (0..9)
            .map(|i| (names[i].as_str(), Some(["a", "a", "a", "a", "b", "b", "b", "c", "c"][i])))
            .collect();
        let texts = self::texts(&few);
        for seed in 0..10 {
            let rule = TextSplit { validation: 0.1, test: 0.1, seed };
            let parts = split_texts(&texts, 9, &rule).unwrap();
            let sizes = [parts.train.len(), parts.validation.len(), parts.test.len()];
            assert!([[4, 3, 2], [4, 2, 3]].contains(&sizes), "{seed} {sizes:?}");
        }
    }

    #[test]
    fn groups_are_one_however_they_are_written() {
        let authors = ["smith", "smith ", " Smith", "John  Smith", "john smith", "Jon Smith"];
        let names: Vec<String> = (0..authors.len()).map(|i| format!("text {i}")).collect();
        let list = names.iter().zip(authors).map(|(name, author)| (name.as_str(), Some(author)));
        let (family, duplicates) = families(&texts(&list.collect::<Vec<_>>()));
        assert_eq!((family, duplicates), (vec![0, 0, 0, 3, 3, 5], 0));
    }

    #[test]
    fn texts_without_groups_are_divided_as_those_of_none() {
        let list: Vec<String> = (0..10).map(|at| format!("text {at}")).collect();
        let without = LabelledTexts {
            texts: list.clone(),
            labels: vec!["a".to_owned()],
            truth: vec![false; 10],
            ..LabelledTexts::default()
        };
        let none: Vec<(&str, Option<&str>)> =
            list.iter().map(|text| (text.as_str(), None)).collect();
        let rule = TextSplit { validation: 0.2, test: 0.3, seed: 1 };
        let found = split_texts(&without, 10, &rule).unwrap();
        assert_eq!([found.train.len(), found.validation.len(), found.test.len()], [5, 2, 3]);
        assert_eq!(found, split_texts(&texts(&none), 10, &rule).unwrap());
    }

    #[test]
    fn training_texts_of_a_given_test_table_are_left_out() {
        let list = [
            ("One  two", None),
            ("three", Some("x")),
            ("four", None),
            ("five", None),
            ("one two", None),
            ("six", Some("x")),
        ];
        let rule = TextSplit { validation: 0.5, test: 0.2, seed: 1 };
        let parts = split_texts(&texts(&list), 4, &rule).unwrap();
        assert_eq!((parts.test, parts.left_out), (vec![4, 5], 2));
        assert_eq!((parts.train.len(), parts.validation.len()), (1, 1));
        let error = split_texts(&texts(&list[4..]), 2, &rule).unwrap_err().to_string();
        assert!(error.contains("no text is left for the"), "{error}");
    }

    #[test]
    fn texts_that_are_nearly_all_equal_are_counted_once() {
        let list = [("The text", None), ("the  text", None), ("THE TEXT", None)];
        let error = split_texts(&texts(&list), 3, &TextSplit::default()).unwrap_err().to_string();
        let expected = "there are 3 texts, 1 distinct but for case and space, in 1 set to divide";
        assert!(error.contains(expected) && error.contains("stay in one part"), "{error}");
        // A test table with all of them leaves none to divide.
        let error = split_texts(&texts(&list), 2, &TextSplit::default()).unwrap_err().to_string();
        let expected = "in 0 sets to divide (2 texts are left out because the test table has them";
        assert!(error.contains(expected), "{error}");
    }
}
