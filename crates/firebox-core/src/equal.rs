//! Series that equal another one value for value. What was learnt of one says everything of the other, so they stay
//! together where whole series are divided. Names, times and labels are not compared.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use rayon::prelude::*;

use crate::stretch::{SharedStretch, Steps, shared_stretches, stretches_within};
use crate::{Origin, SeriesSet, SeriesValues, StepLabels};

/// Values from the middle of a series that are looked at first: they differ in nearly all series that differ, and lie
/// in one page of a mapped file.
const GLANCE: usize = 8;

/// Values that are compared at a time.
const AT_ONCE: usize = 2048;

/// Series that equal another one, or have steps of one, as far as a split has to do with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EqualSeries {
    /// Series that were drawn together with another one, because both are equal.
    pub together: usize,
    /// Names of two of them.
    pub drawn: Option<[String; 2]>,
    /// Series that were drawn together with others, because they have steps of each other, with the same times and values.
    pub overlapping: usize,
    /// Names of two of them.
    pub overlap: Option<[String; 2]>,
    /// Series of a split by time that equal one of other times.
    pub moved: usize,
    /// Names of two of them.
    pub moves: Option<[String; 2]>,
    /// How many of all that are told of here equal one of another class.
    pub contradicting: usize,
    /// Names of two such series.
    pub contradiction: Option<[String; 2]>,
    /// Series of the training files that equal one of the test files, which nothing can move.
    pub tested: usize,
    /// Names of one of them, and of the one that it equals.
    pub given: Option<[String; 2]>,
    /// Other series of the training files that have steps of a test file, with the same times and values.
    pub within: usize,
    /// Names of one of them, and of the one whose steps it has.
    pub shared: Option<[String; 2]>,
    /// Series of the training files that are of a group of one of the test files.
    pub grouped: usize,
    /// Names of one of them, and of one of its group.
    pub group: Option<[String; 2]>,
    /// Places of those of the training files that no part has, because of either.
    pub left_out: Vec<usize>,
}

impl EqualSeries {
    /// What the user should know of it, one sentence for each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some([one, other]) = &self.drawn {
            warnings.push(format!(
                "{} series equal another one, such as `{one}` and `{other}`: equal series stay in one part of the split",
                self.together
            ));
        }
        if let Some([one, other]) = &self.overlap {
            warnings.push(format!(
                "{} series have steps of another one, with the same times and values, such as `{one}` and `{other}`: such series stay in one part of the split",
                self.overlapping
            ));
        }
        if let Some([one, other]) = &self.moves {
            let equal = if self.moved == 1 { "equals" } else { "equal" };
            warnings.push(format!(
                "{} series {equal} another one, value for value, at other times, such as `{one}` and `{other}`: of one is tested what was learnt of the other, and scores may be too good; leave them out, or correct their times",
                self.moved
            ));
        }
        if let Some([one, other]) = &self.given {
            let [equal, are] = match self.tested {
                1 => ["equals", "is"],
                _ => ["equal", "are"],
            };
            let so = self.outcome(are, "what is measured of them may be too good");
            warnings.push(format!(
                "{} series of the training files {equal} one of the test files, such as `{one}` and `{other}`{so}",
                self.tested
            ));
        }
        warnings.extend(self.shared.as_ref().map(|names| self.of_shared(names)));
        warnings.extend(self.group.as_ref().map(|names| self.of_grouped(names)));
        if let Some([one, other]) = &self.contradiction {
            let equal = if self.contradicting == 1 { "equals" } else { "equal" };
            warnings.push(format!(
                "{} series {equal} one of another class, such as `{one}` and `{other}`: no model can tell them apart; correct their classes, or leave them out",
                self.contradicting
            ));
        }
        warnings
    }

    /// Counts the members of these units of equal series that have another one of another class.
    pub(crate) fn contradicting<'a>(
        set: &SeriesSet,
        units: impl IntoIterator<Item = &'a [usize]>,
    ) -> (usize, Option<[String; 2]>) {
        let class = |index: usize| match set.series()[index].labels {
            StepLabels::Whole(label) => Some(label),
            StepLabels::None | StepLabels::PerStep(_) => None,
        };
        let (mut count, mut example) = (0, None);
        for unit in units {
            let labelled = unit.iter().copied().filter(|index| class(*index).is_some());
            let labelled: Vec<usize> = labelled.collect();
            let differs = |index: &&usize| class(**index) != class(labelled[0]);
            if let Some(other) = labelled.iter().find(differs) {
                count += labelled.len();
                example.get_or_insert_with(|| names(set, [labelled[0], *other]));
            }
        }
        (count, example)
    }

    /// What becomes of training series that tell of test series, and what to do if they stay.
    fn outcome(&self, are: &str, otherwise: &str) -> String {
        match self.left_out.is_empty() {
            true => format!(": {otherwise}; leave them out of the training files"),
            false => format!(", and {are} left out of training and validation"),
        }
    }

    fn of_shared(&self, [one, other]: &[String; 2]) -> String {
        let [have, are] = match self.within {
            1 => ["has", "is"],
            _ => ["have", "are"],
        };
        let so = self.outcome(are, "what is measured of them may be too good");
        format!(
            "{} series of the training files {have} steps of the test files, with the same times and values, such as `{one}` of `{other}`{so}",
            self.within
        )
    }

    fn of_grouped(&self, [one, other]: &[String; 2]) -> String {
        let are = if self.grouped == 1 { "is" } else { "are" };
        let so = self.outcome(are, "what is measured may be of what is alike in a group");
        format!(
            "{} series of the training files {are} of groups of the test files, such as `{one}`, of the group of `{other}`{so}",
            self.grouped
        )
    }

    /// Those of units that are drawn.
    pub(crate) fn drawn(set: &SeriesSet, units: &[Vec<usize>]) -> Self {
        let mut several = units.iter().filter(|unit| unit.len() > 1);
        let together = several.clone().map(Vec::len).sum();
        let all = several.clone().map(Vec::as_slice);
        let (contradicting, contradiction) = Self::contradicting(set, all);
        let drawn = several.next().map(|unit| names(set, [unit[0], unit[1]]));
        Self { together, drawn, contradicting, contradiction, ..Self::default() }
    }

    /// The same with series of which these pairs have steps of each other, but for those that are equal.
    pub(crate) fn overlapping(
        self,
        set: &SeriesSet,
        firsts: &[usize],
        pairs: &[[usize; 2]],
    ) -> Self {
        let differ = |pair: &&[usize; 2]| firsts[pair[0]] != firsts[pair[1]];
        let mut members: Vec<usize> = pairs.iter().filter(differ).flatten().copied().collect();
        members.sort_unstable();
        members.dedup();
        let overlap = pairs.iter().find(differ).map(|pair| names(set, *pair));
        Self { overlapping: members.len(), overlap, ..self }
    }

    /// Series that equal one which begins at another time.
    pub(crate) fn at_other_times(set: &SeriesSet) -> Self {
        let firsts = firsts(set);
        let begin = |index: usize| set.series()[index].time.first();
        let moved = |index: &usize| begin(*index) != begin(firsts[*index]);
        let all: Vec<usize> = (0..firsts.len()).filter(moved).collect();
        let moves = all.first().map(|index| names(set, [firsts[*index], *index]));
        Self { moved: all.len(), moves, ..Self::default() }
    }

    /// Series that equal one of a test file, others that have steps of one, and those that are of a group of one.
    pub(crate) fn tested(
        set: &SeriesSet,
        equal: &[[usize; 2]],
        within: &[SharedStretch],
        grouped: &[[usize; 2]],
    ) -> Self {
        Self {
            tested: equal.len(),
            given: equal.first().map(|pair| names(set, *pair)),
            within: within.len(),
            shared: within.first().map(|stretch| names(set, stretch.series)),
            grouped: grouped.len(),
            group: grouped.first().map(|pair| names(set, *pair)),
            ..Self::default()
        }
    }
}

/// The series of `train` that equal one of a test file, each with the first that it equals.
pub(crate) fn equal_to_tests(
    set: &SeriesSet,
    firsts: &[usize],
    train: &[usize],
) -> Vec<[usize; 2]> {
    let mut tests = HashMap::new();
    for (index, series) in set.series().iter().enumerate() {
        if series.origin == Origin::Test {
            tests.entry(firsts[index]).or_insert(index);
        }
    }
    train.iter().filter_map(|index| Some([*index, *tests.get(&firsts[*index])?])).collect()
}

/// The series of `train` that are of a group of a series of a test file, each with the first of these.
pub(crate) fn of_groups_of_tests(set: &SeriesSet, train: &[usize]) -> Vec<[usize; 2]> {
    let mut tests = HashMap::new();
    for (index, series) in set.series().iter().enumerate() {
        if let (Origin::Test, Some(group)) = (series.origin, &series.group) {
            tests.entry(group).or_insert(index);
        }
    }
    let of = |index: &usize| {
        let group = set.series()[*index].group.as_ref()?;
        Some([*index, *tests.get(group)?])
    };
    train.iter().filter_map(of).collect()
}

/// The series of `train` with times that have steps of a test file, but equal none.
pub(crate) fn with_steps_of_tests(
    set: &SeriesSet,
    train: &[usize],
    equal: &[[usize; 2]],
) -> Vec<SharedStretch> {
    let equal: HashSet<usize> = equal.iter().map(|[index, _]| *index).collect();
    let others = train.iter().copied().filter(|index| !equal.contains(index));
    let all = set.series().iter().enumerate();
    let tests = all.filter(|(_, series)| series.origin == Origin::Test).map(|(index, _)| index);
    shared_stretches(
        &Steps::of_series(set, others).with_times(),
        &Steps::of_series(set, tests).with_times(),
    )
}

pub(crate) fn names(set: &SeriesSet, pair: [usize; 2]) -> [String; 2] {
    pair.map(|index| set.series()[index].name.clone())
}

/// The first series that each equals: itself, if none before it does. Read on all threads: what is looked at lies in a
/// page of its own for each series, which may have to come from a disk.
pub(crate) fn firsts(set: &SeriesSet) -> Vec<usize> {
    let values = |index: usize| &set.series()[index].values;
    let mut firsts: Vec<usize> = (0..set.series().len()).collect();
    let some = firsts.iter().copied().filter(|index| !values(*index).is_empty()).collect();
    let pairs: Vec<[usize; 2]> = alike(some, |index| glance(values(index)))
        .into_par_iter()
        // Many may have nothing in their middle: then a hash of all values keeps comparisons few.
        .flat_map(|similar| alike(similar, |index| hash(values(index), 0..values(index).len())))
        .flat_map(|similar| with_first(similar, |a, b| is_equal(values(a), values(b))))
        .collect();
    pairs.into_iter().for_each(|[index, first]| firsts[index] = first);
    firsts
}

/// Members that equal an earlier one, each with the first that it equals.
fn with_first(
    mut members: Vec<usize>,
    is_equal: impl Fn(usize, usize) -> bool + Sync,
) -> Vec<[usize; 2]> {
    let mut pairs = Vec::new();
    while let [first, others @ ..] = &members[..] {
        let first = *first;
        let (equal, rest): (Vec<usize>, Vec<usize>) =
            others.par_iter().copied().partition(|index| is_equal(first, *index));
        pairs.extend(equal.into_iter().map(|index| [index, first]));
        members = rest;
    }
    pairs
}

/// The same with series joined of which these are pairs: the first of all that each hangs together with.
pub(crate) fn joined(firsts: &[usize], pairs: &[[usize; 2]]) -> Vec<usize> {
    fn first(of: &mut [usize], index: usize) -> usize {
        let mut at = index;
        while of[at] != at {
            of[at] = of[of[at]];
            at = of[at];
        }
        at
    }
    let mut of = firsts.to_vec();
    for pair in pairs {
        let [one, other] = pair.map(|index| first(&mut of, index));
        of[one.max(other)] = one.min(other);
    }
    (0..of.len()).map(|index| first(&mut of, index)).collect()
}

/// Pairs of these series with times that have steps of each other.
pub(crate) fn with_steps_of_each_other(set: &SeriesSet, of: &[usize]) -> Vec<[usize; 2]> {
    stretches_within(&Steps::of_series(set, of.iter().copied()).with_times())
}

/// Some series in units of equal ones: both units and their members in the order that they have in `of`.
pub(crate) fn units(firsts: &[usize], of: &[usize]) -> Vec<Vec<usize>> {
    let mut places = HashMap::new();
    let mut units: Vec<Vec<usize>> = Vec::new();
    for &index in of {
        let place = *places.entry(firsts[index]).or_insert(units.len());
        if place == units.len() {
            units.push(Vec::new());
        }
        units[place].push(index);
    }
    units
}

/// Members that share a key with another one, in their order.
fn alike<K: Eq + Hash + Send>(
    members: Vec<usize>,
    key: impl Fn(usize) -> K + Sync,
) -> Vec<Vec<usize>> {
    let keys: Vec<K> = members.par_iter().map(|member| key(*member)).collect();
    let mut by_key = HashMap::<K, Vec<usize>>::new();
    for (key, member) in keys.into_iter().zip(members) {
        by_key.entry(key).or_default().push(member);
    }
    by_key.into_values().filter(|members| members.len() > 1).collect()
}

fn glance(values: &SeriesValues) -> (usize, u64) {
    let length = values.len();
    let start = (length / 2).saturating_sub(GLANCE / 2);
    (length, hash(values, start..length.min(start + GLANCE)))
}

fn hash(values: &SeriesValues, range: Range<usize>) -> u64 {
    let mut hasher = DefaultHasher::new();
    values.rows(range, 1, |values| {
        for value in values {
            hasher.write_u32(single_bits(*value));
        }
    });
    hasher.finish()
}

fn is_equal(a: &SeriesValues, b: &SeriesValues) -> bool {
    let length = a.len();
    length == b.len()
        && (0..length).step_by(AT_ONCE).all(|start| {
            let part = start..length.min(start + AT_ONCE);
            let [a, b] = [a.part(part.clone()), b.part(part)];
            a.iter().zip(b.iter()).all(|(a, b)| is_copy(*a, *b))
        })
}

/// Whether two values are the same, or one is what the other became when it was stored as f32.
pub(crate) fn is_copy(a: f64, b: f64) -> bool {
    a == b || f64::from(a as f32) == b || f64::from(b as f32) == a
}

/// The bits of a value as f32, which are those of its copy that was stored as such. Zeros of both signs are equal.
pub(crate) fn single_bits(value: f64) -> u32 {
    let value = value as f32;
    if value == 0.0 { 0 } else { value.to_bits() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::values::tests::Far;
    use crate::{Channel, Narrow, Role, Series};

    fn set(all: Vec<SeriesValues>) -> SeriesSet {
        let series = all.into_iter().enumerate().map(|(index, values)| {
            let steps = vec![0.0; values.len()];
            let own = Series::regular(format!("s{index}"), 0, 1, steps, 1);
            Series { values, segments: vec![], ..own }
        });
        let channels = vec![Channel::new("x", Role::Other)];
        SeriesSet::new(channels, vec![], series.collect()).unwrap()
    }

    #[test]
    fn series_are_equal_if_every_value_is() {
        let wave: Vec<f64> = (0..5000).map(|step| f64::from(step % 97)).collect();
        let other = |place: usize, value: f64| {
            let mut values = wave.clone();
            values[place] = value;
            SeriesValues::from(values)
        };
        let all = vec![
            SeriesValues::from(wave.clone()),
            other(0, 1.0),
            other(4999, 500.0),
            other(0, -0.0),
            SeriesValues::from(wave[..4999].to_vec()),
            SeriesValues::from(wave.clone()),
            other(4999, 500.0),
            SeriesValues::from(vec![]),
            SeriesValues::from(vec![]),
        ];
        assert_eq!(firsts(&set(all)), [0, 1, 2, 0, 4, 0, 2, 7, 8]);
        // A copy that was stored as f32, and levels that f32 cannot tell apart, of which none is a copy.
        let fine: Vec<f64> = wave.iter().map(|value| value / 7.0).collect();
        let rounded: Vec<f64> = fine.iter().map(|value| f64::from(*value as f32)).collect();
        let level = |by: f64| {
            SeriesValues::from((0..500).map(|t| 1.7e9 + by * f64::from(t)).collect::<Vec<_>>())
        };
        let all =
            vec![SeriesValues::from(fine), SeriesValues::from(rounded), level(0.01), level(0.02)];
        assert_eq!(firsts(&set(all)), [0, 0, 2, 3]);
    }

    #[test]
    fn series_that_only_look_alike_stay_apart() {
        let pairs = with_first(vec![1, 2, 4, 5, 7, 8], |a, b| a % 3 == b % 3);
        assert_eq!(pairs, [[4, 1], [7, 1], [5, 2], [8, 2]]);
        assert!(with_first(vec![], |_, _| true).is_empty());
    }

    #[test]
    fn places_of_many_series_are_read_by_several_threads() {
        use std::collections::HashSet;
        use std::sync::Mutex;
        let threads = Mutex::new(HashSet::new());
        let key = |member: usize| {
            threads.lock().unwrap().insert(std::thread::current().id());
            std::thread::sleep(std::time::Duration::from_micros(50));
            member % 2
        };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let groups = pool.install(|| alike((0..2000).collect(), key));
        assert!(groups.len() == 2 && groups.iter().all(|group| group.is_sorted()));
        assert!(threads.into_inner().unwrap().len() > 1);
    }

    #[test]
    fn values_that_are_kept_elsewhere_are_compared_where_they_are() {
        let far = Arc::new(Far((0..9000).map(|step| (step % 3000) as f32).collect(), Ok(())));
        let part = |start: usize| {
            SeriesValues::narrow(Arc::clone(&far) as Arc<dyn Narrow>, start..start + 3000)
        };
        let near: Vec<f64> = (0..3000).map(f64::from).collect();
        let all = vec![part(0), part(1), part(3000), SeriesValues::from(near), part(6000)];
        assert_eq!(firsts(&set(all)), [0, 1, 0, 0, 0]);
    }

    #[test]
    fn what_hangs_together_by_others_is_joined() {
        assert_eq!(joined(&[0, 1, 1, 3, 4, 5], &[[5, 2], [3, 5]]), [0, 1, 1, 1, 4, 1]);
        assert_eq!(joined(&[0, 1, 2], &[[2, 0], [0, 2]]), [0, 1, 0]);
        assert_eq!(joined(&[0, 1, 0], &[]), [0, 1, 0]);
    }

    #[test]
    fn units_keep_the_order_of_their_first_members() {
        assert_eq!(units(&[0, 1, 0, 3, 1], &[1, 2, 3, 4]), [vec![1, 4], vec![2], vec![3]]);
        assert_eq!(units(&[0, 1, 2], &[0, 1, 2]), [[0], [1], [2]]);
    }

    #[test]
    fn equal_series_of_other_classes_are_counted() {
        let classes = [Some(0), Some(1), None, Some(1), Some(1), None, Some(0)];
        let series = classes.iter().enumerate().map(|(index, class)| Series {
            labels: class.map_or(StepLabels::None, StepLabels::Whole),
            ..Series::regular(format!("s{index}"), 0, 1, vec![0.0], 1)
        });
        let channels = vec![Channel::new("x", Role::Other)];
        let names = ["a", "b"].map(str::to_owned).to_vec();
        let set = SeriesSet::new(channels, names, series.collect()).unwrap();
        let said = |units: &[Vec<usize>]| {
            let found = EqualSeries::drawn(&set, units);
            (found.contradicting, found.contradiction.map(|names| names.concat()))
        };
        assert_eq!(said(&[vec![0], vec![3, 4], vec![1, 2, 5]]), (0, None));
        let pair = |names: &str| Some(names.to_owned());
        assert_eq!(said(&[vec![2, 0, 1, 4], vec![5], vec![3, 6]]), (5, pair("s0s1")));
    }

    #[test]
    fn what_is_told_has_a_number_and_an_example() {
        assert!(EqualSeries::default().warnings().is_empty());
        let pair = |a: &str, b: &str| Some([a.to_owned(), b.to_owned()]);
        let given = pair("c", "d");
        let mut equal = EqualSeries {
            together: 12,
            drawn: pair("a", "b"),
            tested: 1,
            given,
            ..EqualSeries::default()
        };
        let [drawn, given] = &equal.warnings()[..] else { panic!("{equal:?}") };
        assert!(drawn.starts_with("12 series equal another one, such as `a` and `b`: equal"));
        assert!(given.starts_with("1 series of the training files equals one of the test files"));
        assert_eq!(equal.warnings().len(), 2);
        let contradicting =
            EqualSeries { contradicting: 2, contradiction: pair("g", "h"), ..equal.clone() };
        let said = contradicting.warnings().pop().unwrap();
        assert!(said.starts_with("2 series equal one of another class, such as `g` and `h`: no"));
        (equal.within, equal.shared) = (2, pair("e", "f"));
        let said = &equal.warnings()[2];
        assert!(
            said.starts_with("2 series of the training files have steps of the test files"),
            "{said}"
        );
        equal.left_out = vec![3];
        let said = &equal.warnings()[1];
        assert!(
            said.ends_with("`c` and `d`, and is left out of training and validation"),
            "{said}"
        );
    }
}
