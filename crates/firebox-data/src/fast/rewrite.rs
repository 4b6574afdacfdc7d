//! Gaps that are filled and channels that are left out, once all series are read and it is known which: the same steps
//! are put in as by [`Work::gaps`].

use std::borrow::Cow;
use std::ops::Range;

use firebox_core::{Backing, Channel, Filled, Role};

use crate::progress::Progress;
use crate::raw::NO_LABEL;
use crate::work::{Work, times_between};

use super::parted::Short;
use super::{Sink, Stop, known};

/// Steps that are handed on at once.
const AT_ONCE: usize = 1 << 14;

/// A gap that is filled.
#[derive(Clone, Copy)]
pub(super) struct Gap {
    /// The step behind it, among those that are kept.
    pub(super) step: usize,
    /// Steps that it lacks.
    pub(super) missing: usize,
}

/// What is changed of series that have been read.
pub(super) struct Changes<'a> {
    pub(super) channels: &'a [Channel],
    pub(super) interval: i64,
    /// Of each series; none if no series has any.
    pub(super) gaps: Vec<Vec<Gap>>,
    /// Channels that are left out.
    pub(super) dropped: Vec<usize>,
}

impl Changes<'_> {
    pub(super) fn has_gaps(&self) -> bool {
        !self.gaps.iter().all(Vec::is_empty)
    }

    fn gaps(&self, series: usize) -> &[Gap] {
        self.gaps.get(series).map_or(&[], |gaps| gaps)
    }

    /// Counts the steps that are put in, of series whose other steps are counted.
    pub(super) fn count(
        &self,
        works: &mut [Work],
        read: &[Short],
        sink: &mut Sink<'_>,
    ) -> Result<(), Stop> {
        let stored = match sink {
            Sink::Memory => None,
            Sink::Store { making, .. } => Some(known(making.as_mut())?.arrays.values.so_far()?),
        };
        let mut place = 0;
        for ((work, short), gaps) in works.iter_mut().zip(read).zip(&self.gaps) {
            let begin = place;
            place += work.counts.steps as usize * self.channels.len();
            let values = match &stored {
                Some(stored) => &stored.all()[begin..place],
                None => &short.values[..],
            };
            self.note_varied(work, values, gaps);
            let filled: usize = gaps.iter().map(|gap| gap.missing).sum();
            work.counts.steps_filled = filled as u64;
            work.counts.steps += filled as u64;
            widen(&mut work.segments, gaps);
        }
        if let (Sink::Store { making, .. }, Some(stored)) = (sink, &stored) {
            known(making.as_ref())?.arrays.values.check(stored)?;
        }
        Ok(())
    }

    /// Notes which channels have a second value by what is put in: prices are the last close there.
    fn note_varied(&self, work: &mut Work, values: &[f64], gaps: &[Gap]) {
        let Some(close) = self.close() else { return };
        for (channel, checks) in work.channels.iter_mut().enumerate() {
            if checks.constant && self.channels[channel].role.is_price() {
                let differs = |gap: &Gap| self.row(values, gap)[close] != values[channel];
                checks.constant = !gaps.iter().any(differs);
            }
        }
    }

    fn close(&self) -> Option<usize> {
        self.channels.iter().position(|channel| channel.role == Role::Close)
    }

    /// The step before a gap.
    fn row<'b>(&self, values: &'b [f64], gap: &Gap) -> &'b [f64] {
        let width = self.channels.len();
        &values[(gap.step - 1) * width..gap.step * width]
    }

    /// Makes the changes, in series that hold no other steps than those that are kept.
    pub(super) fn make(
        &self,
        read: &mut [Short],
        sink: &mut Sink<'_>,
        progress: &Progress<'_>,
    ) -> Result<(), Stop> {
        if !self.has_gaps() && self.dropped.is_empty() {
            return Ok(());
        }
        for (series, short) in read.iter_mut().enumerate() {
            short.filled = self.filled(&short.filled, self.gaps(series));
        }
        let width = self.channels.len();
        let Sink::Store { making, .. } = sink else {
            for (series, short) in read.iter_mut().enumerate() {
                let values = std::mem::take(&mut short.values);
                let times = std::mem::take(&mut short.times);
                let labels = std::mem::take(&mut short.labels);
                let (all, gaps) = ((&values[..], &times[..], &labels[..]), self.gaps(series));
                self.changed(all, gaps, |values, times, labels| {
                    short.values.extend_from_slice(values);
                    short.times.extend_from_slice(times);
                    short.labels.extend_from_slice(labels);
                    Ok(())
                })?;
            }
            return Ok(());
        };
        let filled: usize = self.gaps.iter().flatten().map(|gap| gap.missing).sum();
        let kept = width - self.dropped.len();
        let mut old = known(making.as_mut())?.begin_again(kept, filled)?;
        let (values, times) = (old.values.so_far()?, old.time.so_far()?);
        let labels = old.labels.as_mut().map(|labels| labels.so_far()).transpose()?;
        let all_labels = labels.as_ref().map_or(&[][..], |labels| labels.all());
        progress.another();
        let (share, all) = (progress.all(), times.all().len() + filled);
        let (mut end, mut done) = (0, 0);
        for (series, short) in read.iter().enumerate() {
            let begin = end;
            end += short.kept().iter().map(Range::len).sum::<usize>();
            let labels = all_labels.get(begin..end).unwrap_or_default();
            let own = (&values.all()[begin * width..end * width], &times.all()[begin..end], labels);
            self.changed(own, self.gaps(series), |values, times, labels| {
                sink.making(kept)?.arrays.push(values, times, labels)?;
                done += times.len();
                share.reached(done, all);
                Ok(())
            })?;
        }
        old.values.check(&values)?;
        old.time.check(&times)?;
        match old.labels.as_ref().zip(labels.as_ref()) {
            Some((old, labels)) => Ok(old.check(labels)?),
            None => Ok(()),
        }
    }

    /// Hands on all steps of a series without the channels that are left out, some at once; those that are put in, which
    /// have no label, among the others.
    ///
    /// # Shapes
    ///
    /// - `values`: `[time, channel]`
    /// - `labels`: `[time]`, or none
    fn changed(
        &self,
        (values, times, labels): (&[f64], &[i64], &[u32]),
        gaps: &[Gap],
        mut push: impl FnMut(&[f64], &[i64], &[u32]) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let width = self.channels.len();
        let labels = |rows: Range<usize>| labels.get(rows).unwrap_or_default();
        let no_labels = vec![NO_LABEL; if labels(0..1).is_empty() { 0 } else { AT_ONCE }];
        let mut push =
            |values: &[f64], times: &[i64], labels: &[u32]| push(&self.kept(values), times, labels);
        let mut from = 0;
        for gap in gaps {
            for rows in parts(from..gap.step) {
                let values = &values[rows.start * width..rows.end * width];
                push(values, &times[rows.clone()], labels(rows))?;
            }
            from = gap.step;
            let mut row = self.row(values, gap).to_vec();
            if let Some(close) = self.close().map(|close| row[close]) {
                let prices = row.iter_mut().zip(self.channels);
                prices.filter(|(_, of)| of.role.is_price()).for_each(|(price, _)| *price = close);
            }
            let rows = row.repeat(gap.missing.min(AT_ONCE));
            let mut between =
                times_between(times[from - 1], times[from], gap.missing, self.interval);
            loop {
                let times: Vec<i64> = between.by_ref().take(AT_ONCE).collect();
                if times.is_empty() {
                    break;
                }
                let labels = no_labels.get(..times.len()).unwrap_or_default();
                push(&rows[..times.len() * width], &times, labels)?;
            }
        }
        for rows in parts(from..times.len()) {
            let values = &values[rows.start * width..rows.end * width];
            push(values, &times[rows.clone()], labels(rows))?;
        }
        Ok(())
    }

    /// What is put in of a series whose gaps are filled, in the channels that are left.
    fn filled(&self, before: &Filled, gaps: &[Gap]) -> Filled {
        let mut filled = Filled::default();
        for (place, channel) in self.kept_channels().enumerate() {
            let (mut runs, mut shift) = (before.runs(channel).iter().cloned().peekable(), 0);
            let mut all = Vec::new();
            for gap in gaps {
                while let Some(run) = runs.peek_mut().filter(|run| run.start < gap.step) {
                    let end = run.end.min(gap.step);
                    all.push(run.start + shift..end + shift);
                    run.start = end;
                    if end == run.end {
                        runs.next();
                    }
                }
                all.push(gap.step + shift..gap.step + shift + gap.missing);
                shift += gap.missing;
            }
            all.extend(runs.map(|run| run.start + shift..run.end + shift));
            filled.extend(place, all);
        }
        filled
    }

    fn kept_channels(&self) -> impl Iterator<Item = usize> {
        (0..self.channels.len()).filter(|own| !self.dropped.contains(own))
    }

    /// Rows without the channels that are left out.
    fn kept<'b>(&self, values: &'b [f64]) -> Cow<'b, [f64]> {
        if self.dropped.is_empty() {
            return Cow::Borrowed(values);
        }
        let kept: Vec<usize> = self.kept_channels().collect();
        let rows = values.chunks_exact(self.channels.len());
        rows.flat_map(|row| kept.iter().map(|channel| row[*channel])).collect()
    }
}

/// Consecutive parts of some steps.
fn parts(steps: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = steps.end;
    steps.step_by(AT_ONCE).map(move |start| start..end.min(start + AT_ONCE))
}

/// Moves the ends of segments, within which the gaps lie, by what is put in before them.
fn widen(segments: &mut [Range<usize>], gaps: &[Gap]) {
    let (mut gaps, mut before) = (gaps.iter().peekable(), 0);
    for segment in segments {
        let end = segment.end;
        segment.start += before;
        while let Some(gap) = gaps.next_if(|gap| gap.step < end) {
            before += gap.missing;
        }
        segment.end += before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_as_much_longer_as_is_put_into_them() {
        let mut segments = [0..3, 3..5, 5..9];
        let gap = |step, missing| Gap { step, missing };
        widen(&mut segments, &[gap(1, 4), gap(2, 1), gap(7, 10)]);
        assert_eq!(segments, [0..8, 8..10, 10..24]);
    }
}
