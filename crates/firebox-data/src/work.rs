//! The checks of one series: order, values, gaps.
//!
//! Columns are looked at one by one; rows are moved only where a defect makes it necessary. No
//! value is taken from a later row. The short way gives the rows of a series part by part to the same functions, whose
//! counts add up.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use firebox_core::{Channel, Filled, Role, Series};

use crate::checks::{duration, moment};
use crate::rates::{irregular, other_step, uneven};
use crate::raw::{NO_LABEL, RawLabels, RawSeries};
use crate::{
    ChannelChecks, CheckPolicies, CrowdedPolicy, Defect, GapPolicy, Policy, SeriesChecks, time,
};

/// An hour in microseconds.
const HOUR: i64 = 3_600_000_000;

/// What to add to a place where clocks may have been changed: nearly everywhere that is on a Sunday before five.
fn zone_hint(is_like_it: bool, at: i64) -> &'static str {
    let (day, hour) = (at.div_euclid(24 * HOUR), at.rem_euclid(24 * HOUR) / HOUR);
    // 1 January 1970 was a Thursday.
    match is_like_it && (day + 3).rem_euclid(7) == 6 && hour < 5 {
        true => {
            "; if clocks were changed there, name the zone of these local times in `data.columns.time_zone`"
        }
        false => "",
    }
}

/// Steps that lack between two times, if that is a gap: half an interval is allowed for times that are not quite regular.
pub(crate) fn missing(difference: i64, interval: i64) -> Option<usize> {
    let steps = || ((difference as f64 / interval as f64).round() as usize).max(2) - 1;
    (difference - interval > interval / 2).then(steps)
}

/// Whether a gap of so many steps is filled, as far as its length says.
fn may_be_filled(missing: usize, policies: &CheckPolicies) -> bool {
    policies.gaps == GapPolicy::Fill && missing <= policies.longest_fill
}

/// Whether a row follows less than half an interval after another.
pub(crate) fn is_soon(difference: i64, interval: i64) -> bool {
    difference < interval - interval / 2
}

/// Rows behind later ones.
pub(crate) struct Back {
    pub(crate) rows: u64,
    /// File and row of the first, counted from 1.
    pub(crate) place: (Arc<Path>, usize),
    /// Of the row before it, and its own.
    pub(crate) times: [i64; 2],
}

/// What is said of a row behind a later one.
fn back([before, at]: [i64; 2]) -> String {
    let hint = zone_hint((HOUR / 2..=HOUR).contains(&before.saturating_sub(at)), at);
    let [at, before] = [at, before].map(time::format);
    format!(", {at} after {before}{hint}")
}

/// A series between the checks.
pub(crate) struct Work {
    pub(crate) raw: RawSeries,
    /// The step of `raw` that each step was, once rows have moved.
    pub(crate) moved: Option<Vec<u32>>,
    pub(crate) segments: Vec<Range<usize>>,
    /// Values of `raw` that were put in.
    pub(crate) filled: Filled,
    pub(crate) counts: SeriesChecks,
    pub(crate) channels: Vec<ChannelChecks>,
    pub(crate) examples: Vec<(Defect, usize, String)>,
    /// Where the rows lie that `raw` counts as those of one file.
    pub(crate) places: Option<Places>,
    /// A step before which a row was left out that followed too soon, and its time.
    pub(crate) left_out: Option<(usize, i64)>,
    /// The step of the series, if it is another one than the interval.
    pub(crate) other_step: Option<i64>,
}

/// File and row of each row of a series that was put together, counted from 1.
pub(crate) type Places = Box<dyn Fn(usize) -> (Arc<Path>, usize) + Send + Sync>;

impl Work {
    pub(crate) fn new(raw: RawSeries, channels: &[Channel]) -> Self {
        let counts = SeriesChecks {
            series: raw.name.clone(),
            rows: raw.len() as u64,
            ..SeriesChecks::default()
        };
        let channels = channels
            .iter()
            .map(|channel| ChannelChecks { channel: channel.name.clone(), ..Default::default() })
            .collect();
        Self {
            raw,
            moved: None,
            segments: vec![],
            filled: Filled::default(),
            counts,
            channels,
            examples: vec![],
            places: None,
            left_out: None,
            other_step: None,
        }
    }

    /// Notes where a defect is first seen.
    fn example(&mut self, defect: Defect, channel: usize, step: usize, what: String) {
        let is_same = |(known, of, _): &(Defect, usize, String)| *known == defect && *of == channel;
        if self.examples.iter().any(is_same) {
            return;
        }
        let original = self.moved.as_ref().map_or(step, |moved| moved[step] as usize);
        let place = match (&self.places, self.raw.place(original)) {
            (Some(places), (_, row)) => places(row),
            (None, place) => place,
        };
        self.example_at(defect, channel, place, &what);
    }

    /// The same of a row of a file.
    fn example_at(
        &mut self,
        defect: Defect,
        channel: usize,
        (path, row): (Arc<Path>, usize),
        what: &str,
    ) {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let text = format!("series `{}`, row {row} of {file}{what}", self.raw.name);
        self.examples.push((defect, channel, text));
    }

    /// Notes rows that were found behind later ones before all were sorted.
    pub(crate) fn note_sorted(&mut self, Back { rows, place, times }: Back) {
        self.counts.unsorted = rows;
        self.example_at(Defect::Unsorted, 0, place, &back(times));
    }

    /// Puts times in strictly increasing order.
    pub(crate) fn order(&mut self, policies: &CheckPolicies) {
        let Some(times) = self.raw.time.take() else { return };
        if times.windows(2).all(|pair| pair[0] < pair[1]) {
            self.raw.time = Some(times);
            return;
        }
        let mut latest = i64::MIN;
        let mut back = Vec::new();
        for (step, time) in times.iter().enumerate() {
            if *time < latest {
                back.push(step);
            }
            latest = latest.max(*time);
        }
        self.counts.unsorted += back.len() as u64;
        if let Some(step) = back.first() {
            let text = self::back([times[*step - 1], times[*step]]);
            self.example(Defect::Unsorted, 0, *step, text);
        }
        let mut order: Vec<u32> = (0..times.len() as u32).collect();
        if policies.unsorted == Policy::Drop {
            let mut back = back.iter().peekable();
            order.retain(|step| back.next_if(|next| **next == *step as usize).is_none());
        } else {
            order.sort_by_key(|step| times[*step as usize]);
        }
        self.counts.rows_dropped += (times.len() - order.len()) as u64;
        let same = |a: u32, b: u32| times[a as usize] == times[b as usize];
        let twice = order.windows(2).position(|pair| same(pair[0], pair[1]));
        // Rows of an hour each, one of which clocks showed twice.
        let before = |place: usize| match self.left_out {
            Some((step, time)) if order[place] as usize == step => time,
            _ => times[order[place - 1] as usize],
        };
        let apart = |place: usize| times[order[place] as usize] - before(place);
        let is_hourly = twice.is_some_and(|place| place > 0 && apart(place) == HOUR);
        let twice = twice.map(|place| order[place + 1]);
        let before = order.len();
        if policies.duplicates == Policy::Fill {
            order.reverse();
            order.dedup_by(|a, b| same(*a, *b));
            order.reverse();
        } else {
            order.dedup_by(|a, b| same(*a, *b));
        }
        self.counts.duplicates += (before - order.len()) as u64;
        self.counts.rows_dropped += (before - order.len()) as u64;
        if let Some(step) = twice.map(|step| step as usize) {
            let what = moment(Some(times[step]));
            let hint = zone_hint(is_hourly, times[step]);
            self.example(Defect::Duplicates, 0, step, format!("{what}{hint}"));
        }
        self.raw.time = Some(times);
        self.take(order);
    }

    /// The series without what comes after a moment, in order. Rows of a hole that the moment lies in, and that
    /// may be filled, stay up to the next whole one: they say no more than how long it is. `next` keeps rows up to the next
    /// one that no policy leaves out, in any case: what says that a bar has closed.
    pub(crate) fn until(
        mut self,
        moment: i64,
        (channels, interval): (&[Channel], Option<i64>),
        policies: &CheckPolicies,
        next: bool,
    ) -> RawSeries {
        let rows = self.raw.len();
        let after = (0..rows).find(|step| self.raw.moment(*step) > moment).unwrap_or(rows);
        let mut kept = after;
        if kept > 0 && kept < rows {
            let whole = |step: &usize| self.raw.columns.iter().all(|column| fits(column[*step]));
            let missing = policies.not_finite == Policy::Fill && !whole(&(kept - 1));
            if missing || policies.gaps == GapPolicy::Fill {
                // A longer hole is not filled, however long it is.
                let most = rows.min(kept + policies.longest_fill + 1);
                kept = (kept..most).find(whole).map_or(most, |step| step + 1);
            }
            if next {
                let stays = self.first_that_stays(after, (channels, interval), policies);
                kept = kept.max(stays.map_or(rows, |step| step + 1));
            }
        }
        self.take((0..kept as u32).collect());
        self.raw.pieces = self.raw.pieces_of(&self.moved.unwrap_or_default());
        self.raw
    }

    /// The first step from this one on that stays where all are mended.
    fn first_that_stays(
        &self,
        from: usize,
        (channels, interval): (&[Channel], Option<i64>),
        policies: &CheckPolicies,
    ) -> Option<usize> {
        let mut all = Self::new(self.raw.clone(), channels);
        all.crowded(interval, policies);
        let removed = all.values(channels, interval, policies);
        let before = |step: usize| all.moved.as_ref().map_or(step, |moved| moved[step] as usize);
        let is_removed = |step: usize| removed.get(step).copied().unwrap_or(false);
        let mut kept = (0..all.raw.len()).filter(|step| !is_removed(*step)).map(before);
        kept.find(|step| *step >= from)
    }

    /// Keeps these steps, in this order.
    fn take(&mut self, order: Vec<u32>) {
        if let Some(time) = &mut self.raw.time {
            *time = gather(time, &order);
        }
        self.raw.columns.iter_mut().for_each(|column| *column = gather(column, &order));
        if let RawLabels::PerStep(labels) = &mut self.raw.labels {
            *labels = gather(labels, &order);
        }
        self.moved = Some(match &self.moved {
            Some(moved) => gather(moved, &order),
            None => order,
        });
    }

    /// Counts the rows that follow too soon, and leaves them out if that is the policy.
    pub(crate) fn crowded(&mut self, interval: Option<i64>, policies: &CheckPolicies) {
        let Some(interval) = interval else { return };
        if policies.crowded == CrowdedPolicy::Drop {
            self.drop_crowded(&(0..self.raw.len()), interval, None);
        } else if let Some(times) = self.raw.time.take() {
            self.count_crowded(&times, interval);
            self.raw.time = Some(times);
        }
    }

    /// Leaves out those of `own` rows, and counts them, that follow too soon on the last one that stays. Behind one of them,
    /// nearly a whole interval has to pass (a tenth is for clocks that are not quite even), and that one stays of which none
    /// behind it would be nearer to a whole one if they went on by the same step: rows of a higher rate become rows of this
    /// one. What comes later decides nothing. All before `own` stay; `dropped` is the time of one that was left out behind
    /// the last of them. Returns the same of the last of `own`.
    pub(crate) fn drop_crowded(
        &mut self,
        own: &Range<usize>,
        interval: i64,
        mut dropped: Option<i64>,
    ) -> Option<i64> {
        let times = self.raw.time.take()?;
        let mut last = own.start.checked_sub(1).map(|row| times[row]);
        let (mut kept, mut first) = (Vec::with_capacity(times.len()), None);
        kept.extend(0..own.start as u32);
        for row in own.clone() {
            let time = times[row];
            let soon = last.is_some_and(|last| {
                let lacks = interval - (time - last);
                // The next one would lie as far behind this one as this one behind that before it.
                let is_early =
                    |before: i64| lacks > interval / 10 || time - before < lacks.saturating_mul(2);
                is_soon(time - last, interval) || dropped.is_some_and(is_early)
            });
            dropped = soon.then_some(time);
            if soon {
                first.get_or_insert(row);
            } else {
                kept.push(row as u32);
                last = Some(time);
            }
        }
        kept.extend(own.end as u32..times.len() as u32);
        if let Some(row) = first {
            self.crowded_example(&times, row);
        }
        self.raw.time = Some(times);
        let count = (self.raw.len() - kept.len()) as u64;
        if count > 0 {
            self.counts.crowded += count;
            self.counts.rows_dropped += count;
            self.take(kept);
        }
        dropped
    }

    fn crowded_example(&mut self, times: &[i64], row: usize) {
        let after = duration(times[row] - times[row - 1]);
        let what = format!("{}: {after} after the row before it", moment(Some(times[row])));
        self.example(Defect::Crowded, 0, row, what);
    }

    /// Counts the rows that follow too soon among these times, and says whether there are any.
    pub(crate) fn count_crowded(&mut self, times: &[i64], interval: i64) -> bool {
        let soon = |pair: &[i64]| is_soon(pair[1] - pair[0], interval);
        let Some(before) = times.windows(2).position(soon) else { return false };
        self.counts.crowded = times.windows(2).filter(|pair| soon(pair)).count() as u64;
        self.crowded_example(times, before + 1);
        true
    }

    fn time(&self, step: usize) -> Option<i64> {
        self.raw.time.as_ref().map(|time| time[step])
    }

    /// All that is done to a series whose rows are in order.
    pub(crate) fn mend(
        &mut self,
        channels: &[Channel],
        interval: Option<i64>,
        policies: &CheckPolicies,
    ) {
        self.crowded(interval, policies);
        let removed = self.values(channels, interval, policies);
        self.gaps(channels, interval, removed, policies);
        self.find_constant();
    }

    /// Repairs values, and marks the steps to leave out.
    fn values(
        &mut self,
        channels: &[Channel],
        interval: Option<i64>,
        policies: &CheckPolicies,
    ) -> Vec<bool> {
        let all = 0..self.raw.len();
        let mut removed = self.not_finite(&all, interval, policies);
        self.ohlc(&all, channels, policies, &mut removed);
        removed
    }

    /// Fills values that are not finite, and marks the steps to leave out; none are marked if there are none. Behind a gap
    /// by this interval that is not filled, nothing is filled with what lies before it.
    ///
    /// Counts those of `own` steps alone: those around them say how long a run is, and what it is filled with.
    pub(crate) fn not_finite(
        &mut self,
        own: &Range<usize>,
        interval: Option<i64>,
        policies: &CheckPolicies,
    ) -> Vec<bool> {
        let mut removed = Vec::new();
        let times = self.raw.time.take();
        let is_cut = |step: usize| {
            let Some((times, interval)) = times.as_ref().zip(interval) else { return false };
            let gap = missing(times[step] - times[step - 1], interval);
            gap.is_some_and(|steps| !may_be_filled(steps, policies))
        };
        for channel in 0..self.raw.columns.len() {
            let mut column = std::mem::take(&mut self.raw.columns[channel]);
            if let Some(first) = column[own.clone()].iter().position(|value| !fits(*value)) {
                let odd = column[own.clone()].iter().filter(|value| !fits(**value));
                let missing = odd.clone().filter(|value| value.is_nan()).count() as u64;
                let infinite = odd.count() as u64 - missing;
                removed.resize(column.len(), false);
                let filled = fill_runs(&mut column, own, policies, &mut removed, is_cut);
                let checks = &mut self.channels[channel];
                checks.missing += missing;
                checks.infinite += infinite;
                checks.filled += filled.iter().map(Range::len).sum::<usize>() as u64;
                self.filled.extend(channel, filled);
                let first = own.start + first;
                let at = moment(times.as_ref().map(|times| times[first]));
                self.example(Defect::NotFinite, channel, first, at);
            }
            self.raw.columns[channel] = column;
        }
        self.raw.time = times;
        removed
    }

    /// Keeps prices that were put in within what was measured of their bar: an open of the bar before says nothing against
    /// this one's high. A high or low that was put in reaches as far as the other prices.
    fn fit_filled(&mut self, own: &Range<usize>, channels: &[Channel]) {
        let (filled, columns) = (&self.filled, &mut self.raw.columns);
        let extremes = Extreme::of(channels);
        let steps = |channel: usize| {
            let own = own.clone();
            let runs = filled.runs(channel).iter();
            runs.flat_map(move |run| run.start.max(own.start)..run.end.min(own.end))
        };
        for price in inner_prices(channels) {
            for step in steps(price) {
                for extreme in extremes.iter().filter(|of| !filled.holds(of.channel, step)) {
                    let most = extreme.turned(columns, extreme.channel, step);
                    let own = extreme.turned(columns, price, step);
                    columns[price][step] = extreme.sign * most.min(own);
                }
            }
        }
        for extreme in &extremes {
            for step in steps(extreme.channel) {
                let own = extreme.turned(columns, extreme.channel, step);
                let least = extreme.least(columns, step);
                columns[extreme.channel][step] = extreme.sign * least.max(own);
            }
        }
    }

    /// Widens `own` bars whose high or low lies inside, or marks them to be left out: by what was measured, see
    /// [`fit_filled`](Self::fit_filled).
    pub(crate) fn ohlc(
        &mut self,
        own: &Range<usize>,
        channels: &[Channel],
        policies: &CheckPolicies,
        removed: &mut Vec<bool>,
    ) {
        self.fit_filled(own, channels);
        let mut broken = Vec::new();
        for extreme in Extreme::of(channels).iter().filter(|of| !of.beside.is_empty()) {
            let channel = extreme.channel;
            let (mut first, mut widened) = (None, Vec::new());
            for step in own.clone() {
                if removed.get(step).copied().unwrap_or(false) {
                    continue;
                }
                let bound = extreme.least(&self.raw.columns, step);
                if extreme.turned(&self.raw.columns, channel, step) >= bound {
                    continue;
                }
                first.get_or_insert(step);
                self.channels[channel].ohlc += 1;
                if policies.ohlc == Policy::Fill {
                    self.raw.columns[channel][step] = extreme.sign * bound;
                    widened.push(step..step + 1);
                } else {
                    broken.push(step);
                }
            }
            self.channels[channel].filled += widened.len() as u64;
            self.filled.extend(channel, widened);
            if let Some(step) = first {
                self.example(Defect::Ohlc, channel, step, moment(self.time(step)));
            }
        }
        if !broken.is_empty() {
            removed.resize(self.raw.len(), false);
            broken.into_iter().for_each(|step| removed[step] = true);
        }
    }

    /// Leaves out what is marked, cuts or fills gaps in time, and notes the segments.
    pub(crate) fn gaps(
        &mut self,
        channels: &[Channel],
        interval: Option<i64>,
        removed: Vec<bool>,
        policies: &CheckPolicies,
    ) {
        let steps = self.raw.len();
        let gone = |step: usize| removed.get(step).copied().unwrap_or(false);
        let (mut cuts, mut fills) = (Vec::new(), Vec::new());
        // The times are taken last: without an interval they stay.
        if let Some(interval) = interval
            && let Some(times) = self.raw.time.take()
        {
            (cuts, fills) = self.find_gaps(&times, interval, gone, policies);
            self.raw.time = Some(times);
        }
        self.counts.rows_dropped += removed.iter().filter(|gone| **gone).count() as u64;
        if removed.contains(&true) || !fills.is_empty() {
            self.rebuild(channels, &removed, &cuts, &fills, interval.unwrap_or(1));
        } else {
            self.cut(&cuts, std::slice::from_ref(&(0..steps)));
        }
        self.counts.steps = self.raw.len() as u64;
        self.counts.segments = self.segments.len() as u64;
    }

    /// Counts the gaps in these times, and looks whether their steps are those of the interval. Returns the steps behind
    /// those that are cut, and behind those that are filled, with how many are missing: a gap beside a step that is gone is
    /// cut.
    pub(crate) fn find_gaps(
        &mut self,
        times: &[i64],
        interval: i64,
        gone: impl Fn(usize) -> bool,
        policies: &CheckPolicies,
    ) -> (Vec<usize>, Vec<(usize, usize)>) {
        let (mut cuts, mut fills) = (Vec::new(), Vec::new());
        let were_left_out = policies.crowded == CrowdedPolicy::Drop && self.counts.crowded > 0;
        self.other_step = other_step(times, interval, policies, were_left_out);
        for step in irregular(times, interval) {
            let difference = times[step] - times[step - 1];
            if let Some(off) = uneven(difference, interval) {
                self.note_uneven(step, times[step], (difference, off));
            }
            let Some(missing) = missing(difference, interval) else { continue };
            self.counts.gaps += 1;
            self.counts.gap_steps += missing as u64;
            self.counts.longest_gap = self.counts.longest_gap.max(difference);
            if self.counts.gaps == 1 {
                let what = format!("{}: {}", moment(Some(times[step])), duration(difference));
                let hint = zone_hint(difference - interval == HOUR, times[step]);
                self.example(
                    Defect::Gaps,
                    0,
                    step,
                    format!("{what} after the row before it{hint}"),
                );
            }
            let fill = may_be_filled(missing, policies);
            match fill && !gone(step - 1) && !gone(step) {
                true => fills.push((step, missing)),
                false => cuts.push(step),
            }
        }
        (cuts, fills)
    }

    /// Counts a step that is far off the interval, and that much.
    fn note_uneven(&mut self, step: usize, time: i64, (difference, off): (i64, i64)) {
        self.counts.uneven += 1;
        self.counts.most_uneven = self.counts.most_uneven.max(off);
        if self.counts.uneven == 1 {
            let after = duration(difference);
            let what = format!("{}: {after} after the row before it", moment(Some(time)));
            self.example(Defect::Uneven, 0, step, what);
        }
    }

    /// Segments of the steps that are kept, those of one range each, and cut at these steps, too.
    pub(crate) fn cut(&mut self, cuts: &[usize], kept: &[Range<usize>]) {
        let mut cuts = cuts.iter().copied().peekable();
        let mut start = 0;
        for range in kept {
            let mut from = range.start;
            let within = std::iter::from_fn(|| cuts.next_if(|cut| *cut < range.end));
            for end in within.chain([range.end]) {
                // What is cut before the range, or where it begins, is cut there already.
                if end > from {
                    self.segments.push(start..start + end - from);
                    start += end - from;
                    from = end;
                }
            }
        }
    }

    /// Steps without those `removed` and with those of `fills` put in, and the segments between
    /// cuts and removed steps.
    fn rebuild(
        &mut self,
        channels: &[Channel],
        removed: &[bool],
        cuts: &[usize],
        fills: &[(usize, usize)],
        interval: i64,
    ) {
        let steps = self.raw.len();
        // Data without times keeps the numbers of its rows, so that what is dropped stays visible.
        let times = self.raw.time.take().unwrap_or_else(|| (0..steps as i64).collect());
        let (mut cuts, mut fills) = (cuts.iter().peekable(), fills.iter().peekable());
        let (mut order, mut time, mut filled) = (Vec::new(), Vec::new(), Vec::new());
        let mut start = 0;
        for step in 0..steps {
            let cut = cuts.next_if_eq(&&step).is_some();
            let gone = removed.get(step).copied().unwrap_or(false);
            if (cut || gone) && start < order.len() {
                self.segments.push(start..order.len());
                start = order.len();
            }
            if let Some((_, missing)) = fills.next_if(|(at, _)| *at == step) {
                filled.extend(order.len()..order.len() + missing);
                order.extend(std::iter::repeat_n(step as u32 - 1, *missing));
                time.extend(times_between(times[step - 1], times[step], *missing, interval));
            }
            if !gone {
                order.push(step as u32);
                time.push(times[step]);
            }
        }
        if start < order.len() {
            self.segments.push(start..order.len());
        }
        self.raw.time = None;
        self.filled = self.filled_of(&order, &filled, channels.len());
        self.take(order);
        self.raw.time = Some(time);
        self.counts.steps_filled = filled.len() as u64;
        self.settle_filled(channels, &filled);
    }

    /// What is put in among steps that were these before, of which some are put in as a whole.
    fn filled_of(&self, order: &[u32], put_in: &[usize], width: usize) -> Filled {
        let mut filled = Filled::default();
        if self.filled.is_empty() && put_in.is_empty() {
            return filled;
        }
        for channel in 0..width {
            let mut runs = self.filled.runs(channel).iter().peekable();
            let mut put_in = put_in.iter().peekable();
            let steps = order.iter().enumerate().filter(|(step, before)| {
                let before = **before as usize;
                while runs.next_if(|run| run.end <= before).is_some() {}
                put_in.next_if_eq(&step).is_some()
                    || runs.peek().is_some_and(|run| run.contains(&before))
            });
            filled.extend(channel, steps.map(|(step, _)| step..step + 1));
        }
        filled
    }

    /// Bars put in are flat at the last close and have no label.
    fn settle_filled(&mut self, channels: &[Channel], filled: &[usize]) {
        if let RawLabels::PerStep(labels) = &mut self.raw.labels {
            filled.iter().for_each(|step| labels[*step] = NO_LABEL);
        }
        let Some(close) = channels.iter().position(|channel| channel.role == Role::Close) else {
            return;
        };
        let closes: Vec<f64> = filled.iter().map(|step| self.raw.columns[close][*step]).collect();
        for (column, channel) in self.raw.columns.iter_mut().zip(channels) {
            if channel.role.is_price() {
                filled.iter().zip(&closes).for_each(|(step, close)| column[*step] = *close);
            }
        }
    }

    pub(crate) fn find_constant(&mut self) {
        for (column, checks) in self.raw.columns.iter().zip(&mut self.channels) {
            let mut values = column.iter();
            let first = values.next();
            checks.constant = column.len() > 1 && values.all(|value| Some(value) == first);
        }
    }

    pub(crate) fn finish(self, width: usize) -> Series {
        Series { filled: self.filled, ..self.raw.laid_out(self.segments, width) }
    }
}

/// The channels of a bar's open and close, as far as there are any.
fn inner_prices(channels: &[Channel]) -> Vec<usize> {
    let role = |role| channels.iter().position(|channel| channel.role == role);
    [Role::Open, Role::Close].into_iter().filter_map(role).collect()
}

/// The high of a bar, or its low: with the sign turned for lows, it is at least every other price.
struct Extreme {
    channel: usize,
    sign: f64,
    /// The channels of the prices that it is held against.
    beside: Vec<usize>,
}

impl Extreme {
    /// Those that there are, the high first.
    fn of(channels: &[Channel]) -> Vec<Self> {
        let role = |role| channels.iter().position(|channel| channel.role == role);
        let inner = inner_prices(channels);
        let extreme = |(own, sign, other): (Role, f64, Role)| {
            // The other extreme may be the wrong one, so it counts only where nothing else can.
            let beside: Vec<usize> = match inner.is_empty() {
                true => role(other).into_iter().collect(),
                false => inner.clone(),
            };
            Some(Self { channel: role(own)?, sign, beside })
        };
        let both = [(Role::High, 1.0, Role::Low), (Role::Low, -1.0, Role::High)];
        both.into_iter().filter_map(extreme).collect()
    }

    /// A price with the sign turned for lows.
    fn turned(&self, columns: &[Vec<f64>], price: usize, step: usize) -> f64 {
        self.sign * columns[price][step]
    }

    /// What it is at least, with the sign turned for lows.
    fn least(&self, columns: &[Vec<f64>], step: usize) -> f64 {
        let prices = self.beside.iter().map(|price| self.turned(columns, *price, step));
        prices.fold(f64::MIN, f64::max)
    }
}

/// Fills the runs of values that do not fit, or marks them, and returns which of `own` steps were filled. Where a step is
/// cut from the one before it, a run ends, and another begins that has nothing before it.
fn fill_runs(
    column: &mut [f64],
    own: &Range<usize>,
    policies: &CheckPolicies,
    removed: &mut [bool],
    is_cut: impl Fn(usize) -> bool,
) -> Vec<Range<usize>> {
    let (mut step, mut filled) = (0, vec![]);
    loop {
        step += column[step..].iter().take_while(|value| fits(**value)).count();
        let goes_on = |at: &usize| !fits(column[*at]) && (*at == step || !is_cut(*at));
        let run = (step..column.len()).take_while(goes_on).count();
        if run == 0 {
            return filled;
        }
        let end = step + run;
        // What lies before a run fits, or the run begins the series, or what is cut from it.
        let before = step.checked_sub(1).filter(|_| !is_cut(step));
        let last = before.map(|before| column[before]);
        let fill = policies.not_finite == Policy::Fill && run <= policies.longest_fill;
        match last.filter(|_| fill) {
            Some(last) => {
                column[step..end].fill(last);
                filled.push(step.max(own.start)..end.min(own.end));
            }
            None => removed[step..end].fill(true),
        }
        step = end;
    }
}

/// The times of so many steps that are put in between two.
pub(crate) fn times_between(
    before: i64,
    behind: i64,
    missing: usize,
    interval: i64,
) -> impl Iterator<Item = i64> {
    // The last of them keeps its distance even where the gap is no whole multiple.
    let spacing = ((behind - before) / (missing as i64 + 1)).clamp(1, interval.max(1));
    (1..=missing as i64).map(move |number| before + number * spacing)
}

/// Whether a model can be given the value: windows are made of f32.
pub(crate) fn fits(value: f64) -> bool {
    value.abs() <= f64::from(f32::MAX)
}

/// What the values of a channel are of which a model can be given those of f32.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Usable {
    /// None is finite.
    #[default]
    Nothing,
    /// Those that are finite are too large, and reach this.
    TooLarge(f64),
    /// Some fit.
    Some,
}

impl Usable {
    /// The same with further values.
    pub(crate) fn with(self, values: &[f64]) -> Self {
        if self == Self::Some || values.iter().any(|value| fits(*value)) {
            return Self::Some;
        }
        let before = match self {
            Self::TooLarge(largest) => Some(largest),
            Self::Nothing | Self::Some => None,
        };
        let finite = values.iter().map(|value| value.abs()).filter(|value| value.is_finite());
        match finite.chain(before).max_by(f64::total_cmp) {
            Some(largest) => Self::TooLarge(largest),
            None => Self::Nothing,
        }
    }
}

fn gather<T: Copy>(values: &[T], order: &[u32]) -> Vec<T> {
    order.iter().map(|step| values[*step as usize]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_where_it_is_cut_and_takes_the_time_of_its_own_steps_alone() {
        // To look at all that follow at each cut would take hours.
        let steps = 1_000_000;
        let mut column = vec![f64::NAN; steps];
        column[0] = 7.0;
        let mut removed = vec![false; steps];
        let policies = CheckPolicies { not_finite: Policy::Fill, ..CheckPolicies::default() };
        let is_cut = |step: usize| step.is_multiple_of(2);
        let filled = fill_runs(&mut column, &(0..steps), &policies, &mut removed, is_cut);
        // What is cut has nothing before it, and is not filled with what lies before the cut.
        assert_eq!((filled.len(), &filled[0], &column[..2]), (1, &(1..2), &[7.0, 7.0][..]));
        assert!(column[2..].iter().all(|value| value.is_nan()));
        assert!(!removed[0] && !removed[1] && removed[2..].iter().all(|removed| *removed));
    }
}
