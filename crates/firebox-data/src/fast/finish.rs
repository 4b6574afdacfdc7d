//! What can be said of series only when all files have been read: their interval, where they are cut, and what was
//! found.

use std::path::Path;
use std::sync::Arc;

use firebox_core::{Backing, Channel, Series, StepLabels};

use crate::clean;
use crate::hints::{explained, lost};
use crate::ingest::void_finding;
use crate::mapping::Mapping;
use crate::plain::Mapped;
use crate::progress::Progress;
use crate::raw::{NO_LABEL, label_of};
use crate::store::{Entry, LabelKind};
use crate::work::{Usable, Work};
use crate::{Checks, ConstantPolicy, CrowdedPolicy, DataConfig, DataError, Interval, Policy};

use super::parted::Short;
use super::rewrite::{Changes, Gap};
use super::taken::AllRead;
use super::{Sink, Stop, known};

/// Series with their entries in the store; those of the store have no values here.
pub(super) struct Whole {
    pub(super) series: Vec<(Series, Entry)>,
    /// Those that are kept.
    pub(super) channels: Vec<Channel>,
    pub(super) classes: Vec<String>,
    pub(super) checks: Checks,
}

/// Cuts the series, leaves out what is to be left out, and sums up what was found.
pub(super) fn finish(
    AllRead { mut read, mut works, layout, spacing, interval: bridged }: AllRead,
    (config, progress): (&DataConfig, &Progress<'_>),
    mapping: &Mapping,
    sink: &mut Sink<'_>,
) -> Result<Whole, Stop> {
    let mapping = &layout.kept(mapping);
    let labelled = mapping.label.is_some();
    if labelled {
        part_labels(&mut read, &mut works, mapping.channels.len());
    }
    let (classes, places) = known(layout.in_order())?;
    // A table of single rows is told of on the long way.
    known(works.iter().any(|work| work.counts.rows > 1).then_some(()))?;
    let void = find_void(&read, mapping, config.checks.constant)?;
    sink.heed()?;
    let intervals = match mapping.time {
        Some(_) => interval(&mut works, &read, (config, [spacing, bridged]), sink),
        None => Ok((None, vec![])),
    };
    let (interval, gaps) = match (void.is_empty(), intervals) {
        (true, found) => found?,
        // Both at once: each would make reading begin anew.
        (false, Err(Stop::Crowded(interval))) => return Err(Stop::Void(void, Some(interval))),
        // Without those channels there may be nothing to fill behind the gap.
        (false, Ok(_) | Err(Stop::Bridged(_))) => return Err(Stop::Void(void, spacing)),
        (false, Err(stop)) => return Err(stop),
    };
    sink.heed()?;
    for (work, short) in works.iter_mut().zip(&read) {
        count(work, short);
    }
    let (spacing, dropped) = (interval.unwrap_or(1), vec![]);
    let mut changes = Changes { channels: &mapping.channels, interval: spacing, gaps, dropped };
    if changes.has_gaps() {
        changes.count(&mut works, &read, sink)?;
    }
    let constant = clean::constant_channels(&works, mapping.channels.len());
    let of_rows = interval.and_then(Interval::from_microseconds);
    let found = clean::findings(&works, &mapping.channels, &constant, of_rows, &config.checks);
    let other_step = clean::other_steps(&works, of_rows, config.interval);
    let findings = clean::allowed(found, other_step)
        .map_err(|error| explained(error, config, mapping.series.is_some()))?;
    if let Some((work, short)) = works.iter().zip(&read).find(|(work, _)| work.counts.steps == 0) {
        let channels = (&mapping.channels[..], &short.usable[..]);
        return Err(lost(clean::nothing_left(work), channels, config).into());
    }
    let mut channels = mapping.channels.clone();
    if config.checks.constant == ConstantPolicy::Drop {
        clean::drop_channels(&mut channels, &mut works, &constant)?;
        changes.dropped = constant;
    }
    let mut checks = Checks {
        time_column: mapping.time.clone(),
        series_column: mapping.series.clone(),
        label_column: mapping.label.clone(),
        classes: classes.clone(),
        label_like: mapping.label_like.clone(),
        interval: of_rows,
        interval_declared: config.interval.is_some(),
        ..clean::summary(&works, &channels, findings)
    };
    let void = layout.void().iter().cloned();
    checks.findings.extend(void.map(|channel| void_finding(channel, works.len())));
    // No place in a file is told any more.
    works.iter_mut().for_each(|work| work.places = None);
    leave_out(&mut read, sink)?;
    changes.make(&mut read, sink, progress)?;
    if labelled {
        put_classes_in_order(&mut read, &places, sink)?;
    }
    let series = read.into_iter().zip(works);
    let series = series.map(|(short, work)| of_store_or_memory(short, work, labelled));
    Ok(Whole { series: series.collect(), channels, classes, checks })
}

/// Takes the labels from among the channels.
fn part_labels(read: &mut [Short], works: &mut [Work], channels: usize) {
    for (short, work) in read.iter_mut().zip(works) {
        short.part_labels(channels);
        work.channels.truncate(channels);
        work.raw.columns.truncate(channels);
    }
}

/// Gives each label the number of its class.
fn put_classes_in_order(
    read: &mut [Short],
    places: &[u32],
    sink: &mut Sink<'_>,
) -> Result<(), Stop> {
    let class = |code: u32| places.get(code as usize).copied().unwrap_or(NO_LABEL);
    if let Sink::Store { making, stop, .. } = sink {
        let labels = known(making.as_mut())?.arrays.labels.as_mut();
        return Ok(known(labels)?.change(stop, class)?);
    }
    let all = read.iter_mut().flat_map(|short| &mut short.labels);
    all.for_each(|code| *code = class(*code));
    Ok(())
}

/// The channels without any value that are to be left out; or refuses them.
fn find_void(
    read: &[Short],
    mapping: &Mapping,
    policy: ConstantPolicy,
) -> Result<Vec<String>, Stop> {
    let names = mapping.channels.iter().map(|channel| channel.name.clone());
    let is_void = |(channel, _): &(usize, String)| {
        read.iter().all(|short| short.usable[*channel] == Usable::Nothing)
    };
    let void: Vec<String> = names.enumerate().filter(is_void).map(|(_, name)| name).collect();
    let Some(first) = void.first() else { return Ok(void) };
    if policy != ConstantPolicy::Drop {
        let file = |short: &Short| short.file.as_deref().map(Path::to_path_buf).unwrap_or_default();
        return Err(clean::no_value(first.clone(), read.iter().map(file)).into());
    }
    match void.len() == mapping.channels.len() {
        true => Err(DataError::AllConstant { channels: void }.into()),
        false => Ok(void),
    }
}

/// What the long way counts when a series is done.
fn count(work: &mut Work, short: &Short) {
    if work.segments.is_empty() {
        work.cut(&[], &short.kept());
    }
    let removed: usize = short.removed.iter().map(|range| range.len()).sum();
    work.counts.rows_dropped += removed as u64;
    work.counts.steps = (short.steps - removed) as u64;
    work.counts.segments = work.segments.len() as u64;
    for (channel, checks) in work.channels.iter_mut().enumerate() {
        checks.constant = short.look.as_ref().is_some_and(|look| look.is_constant(channel));
    }
}

/// The interval of the series, which are cut at their gaps, but for those that are filled, of each series; none where
/// each is one step. `known_by` are the intervals by which rows were left out that follow too soon, and by which nothing
/// was filled over gaps, if they were known.
fn interval(
    works: &mut [Work],
    read: &[Short],
    (config, known_by): (&DataConfig, [Option<i64>; 2]),
    sink: &mut Sink<'_>,
) -> Result<(Option<i64>, Vec<Vec<Gap>>), Stop> {
    let declared = config.interval.map(Interval::microseconds);
    // That of all rows, if some were left out.
    let settled = known_by[0].or(declared);
    let first = read.first().and_then(|short| short.look.as_ref()?.interval);
    let even =
        |short: &Short| short.look.as_ref().is_some_and(|look| look.even && look.interval == first);
    if let Some(interval) = first
        && settled.is_none_or(|settled| settled == interval)
        && read.iter().all(even)
    {
        return Ok((Some(interval), vec![]));
    }
    let stored: Option<Arc<Mapped<i64>>> = match sink {
        Sink::Memory => None,
        Sink::Store { making, .. } => Some(known(making.as_mut())?.arrays.time.so_far()?),
    };
    let mut start = 0;
    let times = read.iter().map(|short| match &stored {
        Some(stored) => {
            start += short.steps;
            &stored.all()[start - short.steps..start]
        }
        None => &short.times[..],
    });
    let times: Vec<&[i64]> = times.collect();
    let found = gaps_between(works, read, &times, (config, known_by));
    // What is gone reads as zeros, of which nothing is to be believed.
    if let (Sink::Store { making, .. }, Some(stored)) = (sink, &stored) {
        known(making.as_ref())?.arrays.time.check(stored)?;
    }
    found
}

/// The same of times that are not all even.
fn gaps_between(
    works: &mut [Work],
    read: &[Short],
    times: &[&[i64]],
    (config, [spacing, bridged]): (&DataConfig, [Option<i64>; 2]),
) -> Result<(Option<i64>, Vec<Vec<Gap>>), Stop> {
    let interval = match spacing {
        Some(spacing) => Some(spacing),
        None => {
            let found = clean::most_frequent(times.iter().copied());
            clean::refuse_contradiction(config.interval, found)?;
            config.interval.map(Interval::microseconds).or(found)
        }
    };
    let Some(interval) = interval else { return Ok((None, vec![])) };
    let of_each = works.iter_mut().zip(read).zip(times);
    let carries = bridged.is_none() && config.checks.not_finite == Policy::Fill;
    let gaps = of_each
        .map(|((work, short), times)| divide(work, short, times, (interval, carries), config));
    Ok((Some(interval), gaps.collect::<Result<_, _>>()?))
}

/// Counts crowded rows and gaps, and cuts the series there and where steps are left out. Returns the gaps that are filled.
/// `carries` says that values may have been carried over gaps.
fn divide(
    work: &mut Work,
    short: &Short,
    times: &[i64],
    (interval, carries): (i64, bool),
    config: &DataConfig,
) -> Result<Vec<Gap>, Stop> {
    if work.count_crowded(times, interval) && config.checks.crowded == CrowdedPolicy::Drop {
        // Without those rows, runs of missing values are others.
        return Err(Stop::Crowded(interval));
    }
    let gone = |step: usize| short.is_removed(step);
    let (cuts, fills) = work.find_gaps(times, interval, gone, &config.checks);
    if carries && short.was_mended(&cuts) {
        return Err(Stop::Bridged(interval));
    }
    work.cut(&cuts, &short.kept());
    let mut gone_before = short.gone_before();
    let gap = |(step, missing): (usize, usize)| Gap { step: step - gone_before(step), missing };
    Ok(fills.into_iter().map(gap).collect())
}

/// Takes the times of the steps that are left out from among the others; their values never got there.
fn leave_out(read: &mut [Short], sink: &mut Sink<'_>) -> Result<(), Stop> {
    if read.iter().all(|short| short.removed.is_empty()) {
        return Ok(());
    }
    let Sink::Store { making, stop, .. } = sink else {
        for short in read {
            let mut end = 0;
            for range in short.kept() {
                short.times.copy_within(range.clone(), end);
                end += range.len();
            }
            short.times.truncate(end);
        }
        return Ok(());
    };
    let (mut kept, mut start) = (Vec::new(), 0);
    for short in read.iter() {
        kept.extend(short.kept().into_iter().map(|range| start + range.start..start + range.end));
        start += short.steps;
    }
    Ok(known(making.as_mut())?.arrays.time.keep(&kept, stop)?)
}

fn of_store_or_memory(short: Short, work: Work, labelled: bool) -> (Series, Entry) {
    let Work { raw, segments, counts, .. } = work;
    let entry = Entry {
        name: raw.name.clone(),
        origin: raw.origin,
        steps: counts.steps as usize,
        segments: segments.clone(),
        labels: if labelled { LabelKind::PerStep } else { LabelKind::None },
        filled: short.filled.clone(),
        group: None,
    };
    let series = Series {
        name: raw.name,
        time: short.times.into(),
        values: short.values.into(),
        labels: match labelled {
            true => StepLabels::PerStep(short.labels.into_iter().map(label_of).collect()),
            false => StepLabels::None,
        },
        segments,
        origin: raw.origin,
        filled: short.filled,
        group: None,
    };
    (series, entry)
}
