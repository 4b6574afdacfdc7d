//! Few labels: which of the labelled windows an arm may learn from.
//!
//! Windows are drawn within one part of the split, so nothing drawn meets a held-out window: the split
//! has put a gap, or whole series, between them. Where the split is by whole series, whole series are
//! drawn, too, and whole groups where they have any.

use std::collections::BTreeMap;

use firebox_core::{Split, Stream, Windows, count};

use crate::error::PipelineError;

/// Fewest windows of each class that anything is learnt from.
const FEWEST: usize = 2;

/// What training windows are drawn by.
pub(super) const DRAW: &str = "few labels";

/// Indices of the labelled windows of a part.
pub(super) fn labelled(part: &Windows) -> Vec<usize> {
    let labelled = part.windows().iter().enumerate().filter(|(_, window)| window.label.is_some());
    labelled.map(|(index, _)| index).collect()
}

/// Indices of the labelled windows of a part that are drawn at a share: of each class its share, rounded,
/// by windows, or by whole series where `by_series`.
pub(super) fn draw(part: &Windows, share: f64, by_series: bool, stream: Stream) -> Vec<usize> {
    let mut drawn = vec![];
    for (class, mut units) in units(part, by_series) {
        stream.substream(u64::from(class)).draws().shuffle(&mut units);
        let count = taken(share, units.len());
        drawn.extend(units.into_iter().take(count).flatten());
    }
    drawn.sort_unstable();
    drawn
}

/// The labelled windows of each class in units that are drawn as a whole: windows, or whole series, or groups of them. A
/// series of several classes counts for its first.
fn units(part: &Windows, by_series: bool) -> Vec<(u32, Vec<Vec<usize>>)> {
    let mut units = BTreeMap::<u32, BTreeMap<u32, Vec<usize>>>::new();
    let mut class_of = BTreeMap::<u32, u32>::new();
    let unit_of = if by_series { part.set().units() } else { vec![] };
    for (index, window) in part.windows().iter().enumerate() {
        let Some(label) = window.label else { continue };
        let (class, unit) = match by_series {
            true => {
                let unit = unit_of[window.series as usize] as u32;
                (*class_of.entry(unit).or_insert(label), unit)
            }
            false => (label, index as u32),
        };
        units.entry(class).or_default().entry(unit).or_default().push(index);
    }
    let of =
        |(class, units): (u32, BTreeMap<u32, Vec<usize>>)| (class, units.into_values().collect());
    units.into_iter().map(of).collect()
}

/// How many of some units a share is.
fn taken(share: f64, units: usize) -> usize {
    (share * units as f64).round() as usize
}

/// What whole series make of the shares that are asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Shares {
    /// Those that come to windows of their own, from the smallest on.
    pub(super) used: Vec<f64>,
    /// What is said of those that come to the windows of a larger one, and of those that come to many more or fewer
    /// windows than they say.
    pub(super) told: Vec<String>,
}

impl Shares {
    /// Of those that are asked for, from the smallest on, for the draws of some seeds.
    pub(super) fn of(parts: &Split, asked: &[f64], by_series: bool, seeds: &[u64]) -> Self {
        let in_units = [&*parts.train, &*parts.validation].map(|part| units(part, by_series));
        let taken_of = |share: f64| -> Vec<usize> {
            let classes = in_units.iter().flatten();
            classes.map(|(_, units)| taken(share, units.len())).collect()
        };
        let (mut used, mut same) = (vec![], vec![]);
        for (place, share) in asked.iter().enumerate() {
            match asked.get(place + 1) {
                Some(next) if taken_of(*share) == taken_of(*next) => same.push(*share),
                _ => used.push(*share),
            }
        }
        let mut told = vec![];
        for share in same {
            let larger = used.iter().find(|used| **used > share).unwrap_or(&share);
            told.push(format!(
                "`finetune.shares`: {share} of the labels come to the same windows as {larger}, and are left out: what is learnt from them is told of {larger}"
            ));
        }
        if !by_series {
            return Self { used, told };
        }
        let (train, labelled) = (&in_units[0], labelled(&parts.train).len());
        let all: usize = train.iter().map(|(_, units)| units.len()).sum();
        let far = |share: &f64| {
            let (share, drawn) = (*share, mean_drawn(&parts.train, *share, by_series, seeds));
            let truly = drawn / labelled.max(1) as f64;
            let units: usize = train.iter().map(|(_, units)| taken(share, units.len())).sum();
            is_far(share, truly).then(|| {
                format!(
                    "{share} is {units} of {all}, with {drawn:.0} of {labelled} labelled windows ({:.1} %)",
                    100.0 * truly
                )
            })
        };
        let far: Vec<String> = used.iter().filter_map(far).collect();
        if !far.is_empty() {
            let unit = unit_name(&parts.train);
            told.push(format!(
                "`finetune.shares`: whole {unit} are drawn, as the split is by whole {unit}, and a share is rounded to them: {}",
                far.join("; ")
            ));
        }
        Self { used, told }
    }
}

/// Windows that are drawn at a share, in the mean over the seeds.
fn mean_drawn(part: &Windows, share: f64, by_series: bool, seeds: &[u64]) -> f64 {
    let of = |seed: &u64| draw(part, share, by_series, Stream::new(*seed, DRAW)).len();
    seeds.iter().map(of).sum::<usize>() as f64 / seeds.len().max(1) as f64
}

/// Whether the share of the windows that is drawn is another one than a reader would take it for: by more than a tenth of it.
pub(super) fn is_far(share: f64, drawn: f64) -> bool {
    (drawn - share).abs() > 0.1 * share
}

/// What is drawn as a whole where the split is by series.
fn unit_name(part: &Windows) -> &'static str {
    if part.set().groups() > 0 { "groups" } else { "series" }
}

/// How many drawn windows each class has.
pub(super) fn counts(part: &Windows, drawn: &[usize]) -> Vec<usize> {
    let mut counts = vec![0; part.classes().len()];
    for label in drawn.iter().filter_map(|index| part.windows().at(*index).label) {
        counts[label as usize] += 1;
    }
    counts
}

/// Refuses labels that nothing can be learnt from, by their cause.
pub(super) fn check(
    train: &Windows,
    test: &Windows,
    shares: &[f64],
    by_series: bool,
) -> Result<(), PipelineError> {
    let refuse = |what: String| Err(PipelineError::Setting(what));
    let all = |part: &Windows| counts(part, &labelled(part));
    let (fitted, asked) = (all(train), all(test));
    let name = |class: usize| &train.classes()[class];
    match fitted.iter().filter(|count| **count > 0).count() {
        0 => return refuse("no training window has a label, and fine-tuning learns from labels\n  set [labels] (--set labels=last), and `data.columns.label` if a column holds them".to_owned()),
        1 => {
            let class = fitted.iter().position(|count| *count > 0).unwrap_or_default();
            return refuse(format!(
                "all {} labelled training windows are of the class `{}`: there is nothing to tell apart\n  choose another split, other [labels], or more data",
                fitted[class],
                name(class)
            ));
        }
        _ => {}
    }
    if asked.iter().all(|count| *count == 0) {
        return refuse("no test window has a label, so nothing could be scored\n  choose another split, or data with labels in its last part".to_owned());
    }
    if let Some(class) = (0..asked.len()).find(|class| asked[*class] > 0 && fitted[*class] == 0) {
        return refuse(format!(
            "{} test windows are of the class `{}`, and no training window is: no classifier could find it\n  choose another split, or label sets that agree",
            asked[class],
            name(class)
        ));
    }
    let smallest = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let drawn = |share| counts(train, &draw(train, share, by_series, Stream::new(0, "check")));
    let short = |drawn: &[usize]| {
        (0..fitted.len()).find(|class| fitted[*class] > 0 && drawn[*class] < FEWEST)
    };
    let of_smallest = drawn(smallest);
    let Some(class) = short(&of_smallest) else { return Ok(()) };
    // As it is drawn, not as it would be by windows: whole series are drawn where the split is by them.
    let hundredths = (1..=100).map(|hundredths| f64::from(hundredths) / 100.0);
    let least =
        hundredths.filter(|share| *share > smallest).find(|share| short(&drawn(*share)).is_none());
    let units = units(train, by_series);
    let of_units = |of: &dyn Fn(usize) -> usize| -> usize {
        units.iter().map(|(_, units)| of(units.len())).sum()
    };
    let (all, labelled) = (of_units(&|units| units), fitted.iter().sum::<usize>());
    let unit = if by_series { unit_name(train) } else { "windows" };
    // Of series with one window each, windows are drawn as well.
    let whole = (all < labelled).then(|| [of_units(&|units| taken(smallest, units)), all]);
    refuse(too_few(
        name(class),
        [of_smallest[class], fitted[class]],
        shares,
        (smallest, least),
        (unit, whole),
    ))
}

/// What is said of a class of which the smallest share leaves too few windows, and of which there are so many in all; `least`
/// is a share that leaves enough of each, if there is one; `whole` says how many units of several windows are drawn as a
/// whole at the smallest share, and how many there are, where they are.
fn too_few(
    class: &str,
    [drawn, all]: [usize; 2],
    shares: &[f64],
    (smallest, least): (f64, Option<f64>),
    (unit, whole): (&str, Option<[usize; 2]>),
) -> String {
    let takes = format!("it takes at least {FEWEST} of each class");
    // All labels are too few, so no share is large enough.
    if all < FEWEST {
        let windows = count(all as u64, "labelled training window");
        return format!(
            "the class `{class}` has {windows}, and {takes}\n  label more {unit} of it, leave the class out of the data, or choose another split or another seed of it"
        );
    }
    let way_out = match least {
        None => String::new(),
        Some(least) if shares.iter().all(|share| *share < least) => {
            format!("name shares of {least:.2} and more in `finetune.shares`, or ")
        }
        Some(least) => format!("leave shares below {least:.2} out of `finetune.shares`, or "),
    };
    let whole = whole.map_or(String::new(), |[drawn, all]| {
        format!(
            ": whole {unit} are drawn, as the split is by whole {unit}, and the share is {drawn} of {all}"
        )
    });
    format!(
        "a share of {smallest} of the labels leaves {drawn} of the {all} windows of the class `{class}`, and {takes}{whole}\n  {way_out}label more {unit}"
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use firebox_core::{
        Augmentation, Channel, Labels, Normalisation, Normaliser, Role, Series, SeriesSet, Split,
        SplitRule, StepLabels, WindowRule, split,
    };
    use firebox_loader::{AugmentedWindows, NormalisedWindows, Source};

    /// `series` series of 40 steps, labelled by their number, windows of 10.
    fn parts(series: u32, class: impl Fn(u32) -> u32) -> Split {
        let one = |index: u32| {
            let values = (0..40).map(|step| f64::from(step + index)).collect();
            let labels = StepLabels::Whole(class(index));
            Series { labels, ..Series::regular(format!("s{index:03}"), 0, 1, values, 1) }
        };
        let classes = vec!["rest".to_owned(), "move".to_owned()];
        let channels = vec![Channel::new("x", Role::Other)];
        let set = SeriesSet::new(channels, classes, (0..series).map(one).collect()).unwrap();
        let rule = WindowRule { length: 10, stride: 10, whole: false };
        let split_rule = SplitRule::Series { validation: 0.1, test: 0.3, seed: 1 };
        split(&Arc::new(set), &rule, &split_rule, &Labels::Last).unwrap()
    }

    #[test]
    fn fresh_versions_are_of_drawn_windows_and_differ_from_epoch_to_epoch() {
        let parts = parts(40, |index| index % 2);
        let drawn = draw(&parts.train, 0.2, true, Stream::new(3, "few labels"));
        let normaliser = Normaliser::fit(Normalisation::Standard, &parts.train).unwrap();
        let augment = Augmentation { versions: 2, ..Augmentation::default() };
        let (train, own) = (parts.train.clone(), normaliser.clone());
        let fresh = AugmentedWindows::new(train, own, &augment, 7).unwrap();
        let fresh = fresh.only(drawn.clone());
        let plain = NormalisedWindows::new(parts.train.clone(), normaliser);
        assert!(fresh.varies() && fresh.len() == 3 * drawn.len());
        let read = |source: &dyn Source, epoch: u64, index: usize| {
            let mut out = vec![0.0; 10];
            let sample = source.draw(epoch, index, &mut out).unwrap();
            (out, sample.label)
        };
        let mut changed = 0;
        for (place, window) in drawn.iter().enumerate() {
            let original = read(&plain, 0, *window);
            for epoch in 0..3 {
                assert_eq!(read(&fresh, epoch, 3 * place), original);
                let version = read(&fresh, epoch, 3 * place + 1);
                assert_eq!(version.1, original.1, "a version has the label of its window");
                changed += usize::from(version != read(&fresh, epoch + 1, 3 * place + 1));
            }
        }
        assert!(changed > drawn.len(), "{changed}");
    }

    #[test]
    fn each_class_keeps_its_share_and_whole_series_stay_whole() {
        let parts = parts(100, |index| index % 2);
        let stream = Stream::new(3, "few labels");
        for share in [0.1, 0.5, 1.0] {
            let drawn = draw(&parts.train, share, true, stream);
            let counts = counts(&parts.train, &drawn);
            let expected = (share * parts.train.len() as f64 / 8.0).round() as usize * 4;
            assert_eq!(counts, [expected, expected], "{share}");
            let mut series = BTreeMap::<u32, usize>::new();
            drawn.iter().for_each(|index| {
                *series.entry(parts.train.windows().at(*index).series).or_default() += 1;
            });
            assert!(series.values().all(|count| *count == 4), "all windows of each");
        }
        assert_eq!(draw(&parts.train, 0.2, true, stream), draw(&parts.train, 0.2, true, stream));
        let other = draw(&parts.train, 0.2, true, Stream::new(4, "few labels"));
        assert_ne!(draw(&parts.train, 0.2, true, stream), other);
        assert!(draw(&parts.train, 0.01, false, stream).len() >= 2);
    }

    #[test]
    fn shares_of_one_draw_are_one_and_what_whole_series_make_of_a_share_is_told() {
        // Of ten series of each class six are trained on, with four windows each, and one is validated on.
        let parts = parts(20, |index| index % 2);
        let of = |asked: &[f64], by_series| Shares::of(&parts, asked, by_series, &[1, 2, 3]);
        let Shares { used, told } = of(&[0.35, 0.4, 1.0], true);
        // 2.1 and 2.4 of six series are two.
        assert_eq!(used, [0.4, 1.0]);
        let [same, far] = &told[..] else { panic!("{told:?}") };
        assert!(same.contains("0.35 of the labels come to the same windows as 0.4"), "{same}");
        let expected = "whole series are drawn, as the split is by whole series, and a share is rounded to them: 0.4 is 4 of 12, with 16 of 48 labelled windows (33.3 %)";
        assert!(far.ends_with(expected), "{far}");
        // Half of one validation series is one.
        assert_eq!(of(&[0.45, 0.5], true).used, [0.45, 0.5]);
        assert_eq!(of(&[0.5, 1.0], true), Shares { used: vec![0.5, 1.0], told: vec![] });
        // By windows, of which each class has 24.
        let asked = vec![0.35, 0.4, 1.0];
        assert_eq!(of(&asked, false), Shares { used: asked.clone(), told: vec![] });
        assert_eq!(of(&[0.01, 0.015, 1.0], false).used, [0.015, 1.0]);
    }

    #[test]
    fn what_nothing_can_be_learnt_from_is_refused_by_its_cause() {
        let refused = |parts: &Split, shares: &[f64]| {
            check(&parts.train, &parts.test, shares, true).unwrap_err().to_string()
        };
        let two = parts(100, |index| index % 2);
        check(&two.train, &two.test, &[0.1, 1.0], true).unwrap();
        let message = refused(&two, &[0.001, 1.0]);
        assert!(message.contains("a share of 0.001 of the labels leaves 0 of the"), "{message}");
        // What is advised is enough, and a hundredth less is not.
        let advised = message.split("leave shares below ").nth(1).unwrap();
        let least: f64 = advised.split(' ').next().unwrap().parse().unwrap();
        check(&two.train, &two.test, &[least, 1.0], true).unwrap();
        refused(&two, &[least - 0.01, 1.0]);
        let message = refused(&two, &[0.001]);
        assert!(message.contains(&format!("name shares of {least:.2} and more")), "{message}");
        let one = parts(40, |_| 1);
        let message = refused(&one, &[1.0]);
        assert!(message.contains("are of the class `move`: there is nothing"), "{message}");
        let message = check(&one.train, &two.test, &[1.0], true).unwrap_err().to_string();
        assert!(message.contains("nothing to tell apart"), "{message}");
    }

    #[test]
    fn of_a_class_with_one_window_no_share_is_advised() {
        let unit = ("windows", None);
        let said =
            |all: usize, share: f64| too_few("rare", [0, all], &[share], (share, Some(0.2)), unit);
        assert_eq!(
            said(1, 1.0),
            "the class `rare` has 1 labelled training window, and it takes at least 2 of each class\n  label more windows of it, leave the class out of the data, or choose another split or another seed of it"
        );
        assert_eq!(
            said(10, 0.1),
            "a share of 0.1 of the labels leaves 0 of the 10 windows of the class `rare`, and it takes at least 2 of each class\n  name shares of 0.20 and more in `finetune.shares`, or label more windows"
        );
        assert_eq!(
            too_few("rare", [0, 47], &[0.05], (0.05, Some(0.17)), ("series", Some([0, 3]))),
            "a share of 0.05 of the labels leaves 0 of the 47 windows of the class `rare`, and it takes at least 2 of each class: whole series are drawn, as the split is by whole series, and the share is 0 of 3\n  name shares of 0.17 and more in `finetune.shares`, or label more series"
        );
    }
}
