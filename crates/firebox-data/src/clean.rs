//! The checks: raw series → series that keep firebox-core's promises, with every defect counted.
//!
//! What is done to one series is in [`work`](crate::work); no value passes from one to another.

use std::collections::HashMap;
use std::path::PathBuf;

use firebox_core::{Channel, SeriesSet, count};
use rayon::prelude::*;

use crate::checks::duration;
use crate::rates;
use crate::raw::{Raw, RawSeries};
use crate::work::Work;
use crate::{
    Action, CheckPolicies, Checks, ConstantPolicy, CrowdedPolicy, DataError, Defect, Finding,
    GapPolicy, Interval, Policy, SeriesChecks,
};

/// Steps that the longest series has at least, of data that are learnt from.
pub(crate) const FEWEST: usize = 2;

/// Applies the policies to all series, of which the longest has so many steps at least.
///
/// # Errors
///
/// When a defect is found whose policy is `error`, and when nothing is left of a series.
pub(crate) fn clean(
    mut raw: Raw,
    fewest: usize,
    declared: Option<Interval>,
    policies: &CheckPolicies,
) -> Result<(SeriesSet, Checks), DataError> {
    let mut channels = std::mem::take(&mut raw.channels);
    refuse_short_and_void(&raw, fewest, &channels)?;
    let mut works = in_order(std::mem::take(&mut raw.series), &channels, policies);
    let times = works.iter().map(|work| work.raw.time.as_deref().unwrap_or_default());
    let found = most_frequent(times);
    refuse_contradiction(declared, found)?;
    let interval = declared.map(Interval::microseconds).or(found);
    works.par_iter_mut().for_each(|work| work.mend(&channels, interval, policies));
    let constant = constant_channels(&works, channels.len());
    let of_rows = interval.and_then(Interval::from_microseconds).filter(|_| raw.time.is_some());
    let findings = findings(&works, &channels, &constant, of_rows, policies);
    let findings = allowed(findings, other_steps(&works, of_rows, declared))?;
    if let Some(work) = works.iter().find(|work| work.counts.steps == 0) {
        return Err(nothing_left(work));
    }
    if policies.constant == ConstantPolicy::Drop {
        drop_channels(&mut channels, &mut works, &constant)?;
    }
    let mut checks = summary(&works, &channels, findings);
    match raw.time {
        Some(_) => checks.interval = interval.and_then(Interval::from_microseconds),
        None => checks.span = None,
    }
    checks.interval_declared = declared.is_some();
    (checks.time_column, checks.series_column, checks.label_column) = (raw.time, raw.by, raw.label);
    checks.label_like = raw.label_like;
    checks.classes.clone_from(&raw.classes);
    let width = channels.len();
    let series = works.into_par_iter().map(|work| work.finish(width)).collect();
    Ok((SeriesSet::new(channels, raw.classes, series)?, checks))
}

/// A series of which no step is kept is refused.
pub(crate) fn nothing_left(work: &Work) -> DataError {
    let hint = "remove it, or set `data.checks` to \"fill\" what it can".to_owned();
    let (series, rows) = (work.raw.name.clone(), work.counts.rows as usize);
    DataError::NothingLeft { series, rows, hint }
}

/// The findings, if none of them is refused, nor a series of another step.
pub(crate) fn allowed(
    findings: Vec<Finding>,
    other_step: Option<DataError>,
) -> Result<Vec<Finding>, DataError> {
    let refused = |finding: &Finding| finding.action == Action::Refused;
    // Rows of several series that nothing tells apart have steps of any length; gaps are what another step is seen by.
    let comes_first = |finding: &Finding| {
        refused(finding) && matches!(finding.defect, Defect::Unsorted | Defect::Duplicates)
    };
    match other_step {
        Some(error) if !findings.iter().any(comes_first) => Err(error),
        _ if findings.iter().any(refused) => {
            Err(DataError::Defects { findings: findings.into_iter().filter(refused).collect() })
        }
        _ => Ok(findings),
    }
}

/// Why series of another step than the interval are refused, if there are any.
pub(crate) fn other_steps(
    works: &[Work],
    interval: Option<Interval>,
    declared: Option<Interval>,
) -> Option<DataError> {
    let others = works.iter().filter_map(|work| Some((&work.raw.name[..], work.other_step?)));
    let interval = interval?.microseconds();
    rates::refused(others, interval, declared.is_some(), works.len())
}

/// Rows in the order of their times, as the policies have it.
pub(crate) fn in_order(
    series: Vec<RawSeries>,
    channels: &[Channel],
    policies: &CheckPolicies,
) -> Vec<Work> {
    let one = |series| {
        let mut work = Work::new(series, channels);
        work.order(policies);
        work
    };
    series.into_par_iter().map(one).collect()
}

/// An interval longer than that of the rows would hide every gap. A shorter one shows as gaps.
pub(crate) fn refuse_contradiction(
    declared: Option<Interval>,
    found: Option<i64>,
) -> Result<(), DataError> {
    match (declared, found.and_then(Interval::from_microseconds)) {
        (Some(declared), Some(found))
            if found.microseconds() < declared.microseconds() - declared.microseconds() / 3 =>
        {
            Err(DataError::Interval { declared, found })
        }
        _ => Ok(()),
    }
}

fn refuse_short_and_void(raw: &Raw, fewest: usize, channels: &[Channel]) -> Result<(), DataError> {
    let path = |series: &RawSeries| series.place(0).0.to_path_buf();
    if let Some(longest) = raw.series.iter().max_by_key(|series| series.len()) {
        refuse_short(longest.len(), fewest, || path(longest))?;
    }
    for (index, channel) in channels.iter().enumerate() {
        let has = |series: &RawSeries| series.columns[index].iter().any(|value| value.is_finite());
        if !raw.series.iter().any(has) {
            let files = raw.series.iter().map(path);
            return Err(no_value(channel.name.clone(), files));
        }
    }
    Ok(())
}

/// Refuses data whose longest series, of this file, has fewer steps.
pub(crate) fn refuse_short(
    longest: usize,
    fewest: usize,
    path: impl FnOnce() -> PathBuf,
) -> Result<(), DataError> {
    match longest < fewest {
        true => Err(DataError::TooShort { path: path(), steps: longest }),
        false => Ok(()),
    }
}

/// A channel has no value in any series, of which these are the first files.
pub(crate) fn no_value(
    channel: String,
    mut files: impl ExactSizeIterator<Item = PathBuf>,
) -> DataError {
    let place = match (files.len(), files.next()) {
        (1, Some(file)) => file.display().to_string(),
        (several, _) => format!("any of the {several} series"),
    };
    DataError::NoValue { channel, place }
}

/// Of so many differences, one must be the most frequent for an interval to be told by it.
const FREQUENT: u64 = 20;

/// Of fewer differences, all may be different by gaps.
pub(crate) const FEW: u64 = 8;

/// The most frequent difference between consecutive times; the shorter of two equally frequent. Where hardly two are
/// equal, as of clocks with microseconds, the one in the middle.
pub(crate) fn most_frequent<'a>(series: impl Iterator<Item = &'a [i64]>) -> Option<i64> {
    let mut counts = HashMap::<i64, u64>::new();
    for times in series {
        // Equal differences come in runs, which are counted before the map is touched.
        let mut differences = times.windows(2).map(|pair| pair[1] - pair[0]);
        let Some(mut last) = differences.next() else { continue };
        let mut run = 1;
        for difference in differences {
            if difference == last {
                run += 1;
            } else {
                *counts.entry(last).or_default() += run;
                (last, run) = (difference, 1);
            }
        }
        *counts.entry(last).or_default() += run;
    }
    let all: u64 = counts.values().sum();
    let (most, count) = counts.iter().max_by_key(|(difference, count)| (**count, -**difference))?;
    if count * FREQUENT >= all && (*count > 1 || all < FEW) {
        return Some(*most);
    }
    let mut counts: Vec<(i64, u64)> = counts.into_iter().collect();
    counts.sort_unstable();
    let mut before = 0;
    counts.into_iter().find_map(|(difference, count)| {
        before += count;
        (2 * before >= all).then_some(difference)
    })
}

/// The channels that have one value over all steps of all series, of which the first is enough here.
pub(crate) fn constant_channels(works: &[Work], channels: usize) -> Vec<usize> {
    let constant = |channel: &usize| {
        let mut firsts = works.iter().filter_map(|work| work.raw.columns[*channel].first());
        let first = firsts.next();
        let steps: u64 = works.iter().map(|work| work.counts.steps).sum();
        let each = |work: &Work| work.channels[*channel].constant || work.counts.steps < 2;
        steps > 1 && works.iter().all(each) && firsts.all(|value| Some(value) == first)
    };
    (0..channels).filter(constant).collect()
}

/// Leaves out constant channels.
pub(crate) fn drop_channels(
    channels: &mut Vec<Channel>,
    works: &mut [Work],
    constant: &[usize],
) -> Result<(), DataError> {
    refuse_all(channels, constant)?;
    for index in constant.iter().rev() {
        channels.remove(*index);
        works.iter_mut().for_each(|work| drop(work.raw.columns.remove(*index)));
    }
    for work in works {
        work.filled = std::mem::take(&mut work.filled).without(constant);
    }
    Ok(())
}

/// Refuses to leave out every channel.
pub(crate) fn refuse_all(channels: &[Channel], left_out: &[usize]) -> Result<(), DataError> {
    match left_out.len() == channels.len() {
        true => {
            let channels = channels.iter().map(|channel| channel.name.clone()).collect();
            Err(DataError::AllConstant { channels })
        }
        false => Ok(()),
    }
}

/// What was done about missing values of a channel where they are filled, and how many were not.
fn unfilled(
    works: &[Work],
    channel: usize,
    policies: &CheckPolicies,
    action: Action,
) -> (Action, String) {
    if policies.not_finite != Policy::Fill {
        return (action, String::new());
    }
    let widened = policies.ohlc == Policy::Fill;
    let own = works.iter().map(|work| &work.channels[channel]);
    let [all, filled] = own
        .map(|of| {
            [of.missing + of.infinite, of.filled.saturating_sub(if widened { of.ohlc } else { 0 })]
        })
        .fold([0; 2], |sum, of| [sum[0] + of[0], sum[1] + of[1]]);
    let left = all.saturating_sub(filled);
    if left == 0 {
        return (action, String::new());
    }
    let said = format!(
        "{filled} filled and {left} left out with {} rows: at the beginning of a series, behind a gap, or more than `data.checks.longest_fill` = {} one after the other; ",
        if left == 1 { "its" } else { "their" },
        policies.longest_fill
    );
    (if filled == 0 { Action::Dropped } else { action }, said)
}

/// What was done about gaps where they are filled, and how many steps were not put in.
fn uncut(works: &[Work], policies: &CheckPolicies, action: Action) -> (Action, String) {
    if policies.gaps != GapPolicy::Fill {
        return (action, String::new());
    }
    let [missing, filled] = works
        .iter()
        .map(|work| [work.counts.gap_steps, work.counts.steps_filled])
        .fold([0; 2], |sum, of| [sum[0] + of[0], sum[1] + of[1]]);
    if filled >= missing {
        return (action, String::new());
    }
    let said = format!(
        "{} put in, and cut at gaps of more than `data.checks.longest_fill` = {}; ",
        count(filled, "step"),
        policies.longest_fill
    );
    (if filled == 0 { Action::Split } else { action }, said)
}

/// Sums up each kind of defect over all series.
pub(crate) fn findings(
    works: &[Work],
    channels: &[Channel],
    constant: &[usize],
    interval: Option<Interval>,
    policies: &CheckPolicies,
) -> Vec<Finding> {
    let action = |policy| match policy {
        Policy::Error => Action::Refused,
        Policy::Drop => Action::Dropped,
        Policy::Fill => Action::Filled,
    };
    let sum = |defect, channel: Option<usize>, action, count: &dyn Fn(&Work) -> u64, more: &str| {
        let total: u64 = works.iter().map(count).sum();
        let matches = |(d, c, _): &&(Defect, usize, String)| {
            *d == defect && *c == channel.unwrap_or_default()
        };
        let example = works.iter().flat_map(|work| &work.examples).find(matches);
        let example = example.map(|(.., text)| format!("first: {text}")).unwrap_or_default();
        (total > 0).then(|| Finding {
            defect,
            channel: channel.map(|channel| channels[channel].name.clone()),
            count: total,
            series: works.iter().filter(|work| count(work) > 0).count() as u64,
            action,
            detail: format!("{more}{example}"),
        })
    };
    let mut found = vec![
        sum(Defect::Unsorted, None, action(policies.unsorted), &|w| w.counts.unsorted, ""),
        sum(Defect::Duplicates, None, action(policies.duplicates), &|w| w.counts.duplicates, ""),
    ];
    let policy = match policies.crowded {
        CrowdedPolicy::Error => Action::Refused,
        CrowdedPolicy::Drop => Action::Dropped,
        CrowdedPolicy::Keep => Action::Kept,
    };
    let more = interval.map_or(String::new(), |interval| format!("the interval is {interval}; "));
    found.push(sum(Defect::Crowded, None, policy, &|work| work.counts.crowded, &more));
    for channel in 0..channels.len() {
        let count = |work: &Work| work.channels[channel].missing + work.channels[channel].infinite;
        let (policy, more) = unfilled(works, channel, policies, action(policies.not_finite));
        found.push(sum(Defect::NotFinite, Some(channel), policy, &count, &more));
    }
    for channel in 0..channels.len() {
        let count = |work: &Work| work.channels[channel].ohlc;
        found.push(sum(Defect::Ohlc, Some(channel), action(policies.ohlc), &count, ""));
    }
    let policy = match policies.gaps {
        GapPolicy::Error => Action::Refused,
        GapPolicy::Split => Action::Split,
        GapPolicy::Fill => Action::Filled,
    };
    let missing: u64 = works.iter().map(|work| work.counts.gap_steps).sum();
    let longest = works.iter().map(|work| work.counts.longest_gap).max().unwrap_or(0);
    let missing = count(missing, "step");
    let more = format!("{missing} missing, the longest gap {}; ", duration(longest));
    let (policy, cut) = uncut(works, policies, policy);
    let more = more + &cut + &irregular(works, interval) + &short_runs(works, policies);
    found.push(sum(Defect::Gaps, None, policy, &|work| work.counts.gaps, &more));
    let farthest = works.iter().map(|work| work.counts.most_uneven).max().unwrap_or(0);
    let more = interval.map_or(String::new(), |interval| {
        format!("the interval is {interval}, the farthest off by {}; ", duration(farthest))
    });
    found.push(sum(Defect::Uneven, None, Action::Kept, &|work| work.counts.uneven, &more));
    let mut found: Vec<_> = found.into_iter().flatten().collect();
    let first =
        |channel: usize| works.iter().find_map(|work| work.raw.columns[channel].first()).copied();
    let constant = constant.iter().map(|channel| (*channel, first(*channel)));
    found.extend(constant.map(|of| constant_finding(of, channels, works.len(), policies.constant)));
    found
}

/// What is said of a channel whose every value is this one, in so many series.
pub(crate) fn constant_finding(
    (channel, value): (usize, Option<f64>),
    channels: &[Channel],
    series: usize,
    policy: ConstantPolicy,
) -> Finding {
    Finding {
        defect: Defect::Constant,
        channel: Some(channels[channel].name.clone()),
        count: 1,
        series: series as u64,
        action: match policy {
            ConstantPolicy::Error => Action::Refused,
            ConstantPolicy::Drop => Action::Dropped,
            ConstantPolicy::Keep => Action::Kept,
        },
        detail: value.map(|value| format!("every value is {value}")).unwrap_or_default(),
    }
}

/// What is said of data most of whose steps are of no interval.
fn irregular(works: &[Work], interval: Option<Interval>) -> String {
    let sum = |count: &dyn Fn(&Work) -> u64| works.iter().map(count).sum::<u64>();
    let odd = sum(&|work| work.counts.gaps + work.counts.crowded);
    let steps = sum(&|work| work.counts.rows.saturating_sub(1));
    match interval.filter(|_| 2 * odd > steps) {
        None => String::new(),
        Some(interval) => format!(
            "only {} of {} between rows are near the interval of {interval}: where rows come at irregular times, put them on steps of one length first; ",
            steps.saturating_sub(odd),
            count(steps, "step")
        ),
    }
}

/// Gaps from which on they are a rule, such as that of weekends. A choice.
const MANY_GAPS: u64 = 10;
/// Rows of which runs in the mean have fewer that are shorter than most windows. A choice.
const FEW_ROWS: u64 = 16;

/// What is said of gaps that are refused and lie so close to each other that a split leaves hardly a window.
fn short_runs(works: &[Work], policies: &CheckPolicies) -> String {
    let sum = |count: &dyn Fn(&Work) -> u64| works.iter().map(count).sum::<u64>();
    let (gaps, rows) = (sum(&|work| work.counts.gaps), sum(&|work| work.counts.rows));
    let odd = gaps + sum(&|work| work.counts.crowded);
    let runs = gaps + works.len() as u64;
    if policies.gaps != GapPolicy::Error
        || gaps < MANY_GAPS
        || rows >= FEW_ROWS * runs
        // Such rows are not even, and that is told.
        || 2 * odd > rows
    {
        return String::new();
    }
    format!(
        "between them lie {:.1} rows in the mean, and a split leaves no window that is longer than what lies between two gaps: where nothing is traded or measured in these, as on weekends, leave the column of times out of the files, which numbers the rows; ",
        rows as f64 / runs as f64
    )
}

pub(crate) fn summary(works: &[Work], channels: &[Channel], findings: Vec<Finding>) -> Checks {
    let sum = |count: &dyn Fn(&Work) -> u64| works.iter().map(count).sum();
    let with_times = works.iter().filter_map(|work| work.raw.time.as_ref());
    let ends = with_times.filter_map(|time| Some([*time.first()?, *time.last()?]));
    Checks {
        rows: sum(&|work| work.counts.rows),
        steps: sum(&|work| work.counts.steps),
        series: works.len() as u64,
        segments: sum(&|work| work.counts.segments),
        channels: channels.to_vec(),
        span: ends.reduce(|a, b| [a[0].min(b[0]), a[1].max(b[1])]),
        findings,
        by_series: works.iter().filter_map(told).collect(),
        ..Checks::default()
    }
}

/// What is told of a series by itself, if anything.
pub(crate) fn told(work: &Work) -> Option<SeriesChecks> {
    let mut counts = work.counts.clone();
    counts.channels = work.channels.iter().filter(|c| !c.is_clean()).cloned().collect();
    (!counts.is_clean()).then_some(counts)
}
