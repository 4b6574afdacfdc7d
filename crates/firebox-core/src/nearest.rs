//! The name that somebody meant who wrote another one. What is suggested begins as what was written does, is a part of
//! it or has it as a part, or differs by one slip: of `encoder` and `decoder`, neither is a misspelling of the other.

/// How like two names must be that begin alike and are more than a few slips apart.
const ALIKE: f64 = 0.75;

/// Least letters of a name that is taken for a part of a longer one, or for another first letter than was meant.
const SHORT: usize = 3;

/// The most similar of some names, if it is similar enough to be what was meant: the first of those that are as like.
///
/// Capitals do not matter. A slip is a letter too many, too few, another one, or two in each other's place.
///
/// # Example
///
/// ```
/// use firebox_core::nearest;
///
/// assert_eq!(nearest("encodr", ["decoder", "encoder"]), Some("encoder"));
/// assert_eq!(nearest("encodr", ["decoder", "embedding"]), None);
/// ```
pub fn nearest<'a>(written: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_by(written, names, |name| name)
}

/// The same of names that are compared by a part of each.
pub fn nearest_by<'a, N: Copy>(
    written: &str,
    names: impl IntoIterator<Item = N>,
    compared: impl Fn(N) -> &'a str,
) -> Option<N> {
    let written = written.to_lowercase();
    let mut best: Option<(f64, N)> = None;
    for name in names {
        let likeness = likeness(&written, &compared(name).to_lowercase());
        if let Some(likeness) = likeness
            && best.is_none_or(|(most, _)| likeness > most)
        {
            best = Some((likeness, name));
        }
    }
    best.map(|(_, name)| name)
}

/// How like two names are, if one may be meant by the other.
fn likeness(written: &str, name: &str) -> Option<f64> {
    let [length, other] = [written, name].map(|name| name.chars().count());
    let slips = strsim::osa_distance(written, name);
    // Fewer slips come first; among as many, those at the end weigh least.
    let likeness = strsim::jaro_winkler(written, name);
    let by_slips = 2.0 + likeness - slips as f64 / length.max(other).max(1) as f64;
    let is_long = length.min(other) >= SHORT;
    if written.chars().next() != name.chars().next() {
        // One slip in two letters makes any name of any other.
        let is_slip = slips <= 1 && is_long;
        let is_within = is_long && (name.contains(written) || written.contains(name));
        return if is_slip { Some(by_slips) } else { is_within.then_some(likeness) };
    }
    // As rustc does for names in a program: a third of the letters.
    if slips <= length.max(other).max(3) / 3 {
        return Some(by_slips);
    }
    let is_beginning = is_long && (name.starts_with(written) || written.starts_with(name));
    (is_beginning || likeness > ALIKE).then_some(likeness)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_meant_begins_alike_or_is_one_slip_away() {
        for (written, names, expected) in [
            ("encodr", &["decoder", "encoder"][..], Some("encoder")),
            ("encodr", &["decoder", "lstm", "embedding"], None),
            ("encoder", &["decoder"], None),
            ("decoder", &["encoder"], None),
            ("tarin", &["trial", "train"], Some("train")),
            ("rtain", &["train", "main"], Some("train")),
            ("rain", &["train"], Some("train")),
            ("xtest", &["test", "text"], Some("test")),
            ("learning_rat", &["learning_rate", "least"], Some("learning_rate")),
            ("medain", &["median", "mean"], Some("median")),
            ("patience", &["percentile", "patient"], Some("patient")),
            ("lowest", &["log", "low"], Some("low")),
            ("val", &["value-at-risk", "validation"], Some("validation")),
            ("Timestamp", &["time", "timestamp"], Some("timestamp")),
            ("mx", &["max", "min"], Some("max")),
            ("bars.parquet", &["bats.csv", "bas.parquet"], Some("bas.parquet")),
            ("lstm", &["bert", "bilstm-mae", "stacked-lstm"], Some("bilstm-mae")),
            ("upper", &["lower"], None),
            ("cuda", &["cpu"], None),
            ("x", &["y"], None),
            ("", &["a"], None),
            ("zzz", &["train"], None),
            ("äpfel", &["apfel", "birne"], Some("apfel")),
        ] {
            assert_eq!(nearest(written, names.iter().copied()), expected, "{written}");
        }
    }

    #[test]
    fn of_names_that_are_as_like_the_first_is_taken() {
        assert_eq!(nearest("bat", ["bar", "bad"]), Some("bar"));
        let by_end = nearest_by("heds", ["x.head", "x.tail"], |name| &name[2..]);
        assert_eq!(by_end, Some("x.head"));
    }
}
