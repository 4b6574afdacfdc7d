//! One series that comes in parts. Clean parts go on as they are; the rows of others are mended by
//! [`Work`], and go on once nothing that follows can change them.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use firebox_core::{Channel, Filled, Origin};

use crate::frame::Reading;
use crate::look::{Look, Part};
use crate::mapping::Mapping;
use crate::raw::{Piece, RawLabels, RawSeries, RowSet, Rows};
use crate::time::{Course, Zone};
use crate::work::{Back, Places, Usable, Work, fits, is_soon};
use crate::{CheckPolicies, Policy};

use super::seen::{Seen, columns};
use super::{Sink, Stop, known};

/// Rows that may wait for what follows them, at most.
const MOST_WAITING: usize = 1 << 20;

/// What was read of a series. Its values and times are here if they stay in memory.
pub(super) struct Short {
    /// Of the steps that are kept, `[time, channel]`.
    pub(super) values: Vec<f64>,
    /// Codes of the labels of the steps that are kept, once they are told apart from the channels.
    pub(super) labels: Vec<u32>,
    /// Of all steps: those that are left out take part in finding the gaps.
    pub(super) times: Vec<i64>,
    /// How many all are.
    pub(super) steps: usize,
    /// Steps that are left out.
    pub(super) removed: Vec<Range<usize>>,
    /// Values that were put in, of the steps that are kept.
    pub(super) filled: Filled,
    /// Of the steps that are kept, if there are any.
    pub(super) look: Option<Look>,
    /// What the values of each channel are, in all rows.
    pub(super) usable: Vec<Usable>,
    /// The file of its first row.
    pub(super) file: Option<Arc<Path>>,
}

impl Short {
    /// Gives back the room that there is for more.
    pub(super) fn shrink(&mut self) {
        self.values.shrink_to_fit();
        self.times.shrink_to_fit();
    }

    /// Steps that are kept.
    pub(super) fn kept(&self) -> Vec<Range<usize>> {
        let starts = std::iter::once(0).chain(self.removed.iter().map(|range| range.end));
        let ends = self.removed.iter().map(|range| range.start).chain([self.steps]);
        starts.zip(ends).filter(|(start, end)| start < end).map(|(start, end)| start..end).collect()
    }

    /// Whether one of these steps, in order, was left out, or got a value that was put in.
    pub(super) fn was_mended(&self, steps: &[usize]) -> bool {
        let mut gone_before = self.gone_before();
        steps.iter().any(|step| {
            let kept = step - gone_before(*step);
            let is_put_in = |channel| self.filled.holds(channel, kept);
            self.is_removed(*step) || (0..self.usable.len()).any(is_put_in)
        })
    }

    /// How many steps before each are left out, of steps that are asked for in order.
    pub(super) fn gone_before(&self) -> impl FnMut(usize) -> usize {
        let (mut removed, mut gone) = (self.removed.iter().peekable(), 0);
        move |step| {
            while let Some(range) = removed.next_if(|range| range.end <= step) {
                gone += range.len();
            }
            gone
        }
    }

    pub(super) fn is_removed(&self, step: usize) -> bool {
        let next = self.removed.partition_point(|range| range.end <= step);
        self.removed.get(next).is_some_and(|range| range.contains(&step))
    }
}

/// Rows of a series that follow on one another in a file.
struct Own {
    path: Arc<Path>,
    /// The first of them, counted from 1 after the header.
    first: usize,
    rows: usize,
    /// Those that another of their time has replaced, counted from the first.
    dropped: RowSet,
}

impl Own {
    /// The steps that came of them.
    fn piece(self) -> Piece {
        let Self { path, first, rows, dropped } = self;
        Piece { path, steps: rows - dropped.len(), rows: Rows::Without { first, gone: dropped } }
    }
}

/// A series of which some parts were read.
pub(super) struct Parted {
    channels: Vec<Channel>,
    policies: CheckPolicies,
    /// The interval that rows are left out by which follow too soon, if they are.
    spacing: Option<i64>,
    /// The interval by which there are gaps that no value is carried over, if it is known.
    interval: Option<i64>,
    /// The time of the row before the last that waits, if it was left out by it.
    left_out: Option<i64>,
    /// The file of the first row.
    file: Option<Arc<Path>>,
    /// How the times go on that were read.
    course: Course,
    /// Where its rows lie, all that were read.
    pieces: Vec<Own>,
    /// Counts and examples; and the rows that wait, as they were read, behind the last that went on.
    work: Work,
    /// Whether any row went on.
    begun: bool,
    /// Whether one row waits, the last of a clean part.
    settled: bool,
    /// Values and times that went on, in memory or not yet in the store; `filled` values are used.
    values: Vec<f64>,
    filled: usize,
    times: Vec<i64>,
    steps: usize,
    removed: Vec<Range<usize>>,
    /// How many these are.
    gone: usize,
    /// Values that were put in, of the steps that went on.
    put_in: Filled,
    look: Option<Look>,
    usable: Vec<Usable>,
}

impl Parted {
    pub(super) fn new(
        name: String,
        origin: Origin,
        mapping: &Mapping,
        (policies, spacing, interval): (CheckPolicies, Option<i64>, Option<i64>),
    ) -> Self {
        let channels = mapping.channels.clone();
        let raw = RawSeries {
            name,
            origin,
            time: mapping.time.is_some().then(Vec::new),
            columns: vec![vec![]; channels.len()],
            labels: RawLabels::None,
            pieces: vec![],
        };
        Self {
            policies,
            spacing,
            interval,
            left_out: None,
            file: None,
            course: Course::default(),
            pieces: vec![],
            work: Work::new(raw, &channels),
            begun: false,
            settled: false,
            values: vec![],
            filled: 0,
            times: vec![],
            steps: 0,
            removed: vec![],
            gone: 0,
            put_in: Filled::default(),
            look: None,
            usable: vec![Usable::Nothing; channels.len()],
            channels,
        }
    }

    pub(super) fn origin(&self) -> Origin {
        self.work.raw.origin
    }

    /// Says where the next rows lie: from this row of a file on, counted from 1.
    pub(super) fn at(&mut self, path: &Path, row: usize) {
        let is_next = |own: &Own| own.first + own.rows == row && *own.path == *path;
        if !self.pieces.last().is_some_and(is_next) {
            let (path, dropped) = (Arc::<Path>::from(path), RowSet::default());
            self.file.get_or_insert_with(|| Arc::clone(&path));
            self.pieces.push(Own { path, first: row, rows: 0, dropped });
        }
    }

    /// Says that its rows are put together from places that they are told by, of which the first is in this file, and
    /// follow on one another here, in the order of their times if some were found behind later ones.
    pub(super) fn put_together(&mut self, places: Places, file: Arc<Path>, back: Option<Back>) {
        self.work.places = Some(places);
        self.file = Some(file);
        self.at(Path::new(""), 1);
        back.into_iter().for_each(|back| self.work.note_sorted(back));
    }

    /// Makes room for so many rows that stay in memory.
    pub(super) fn expect(&mut self, rows: usize) {
        // Memory that is never touched costs nothing, and what grows is copied; without it, it grows.
        let _ = self.values.try_reserve_exact(rows * self.width());
        let _ = self.times.try_reserve_exact(rows);
    }

    /// Takes a whole series in which nothing is odd.
    pub(super) fn adopt(&mut self, look: Look, values: Vec<f64>, times: Vec<i64>) {
        self.took(look.rows);
        (self.filled, self.steps) = (values.len(), times.len());
        (self.values, self.times, self.look) = (values, times, Some(look));
        self.usable.fill(Usable::Some);
    }

    /// Takes the next rows, laid out on all processors.
    pub(super) fn add_table(
        &mut self,
        reading: &Reading<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), Stop> {
        let width = self.width();
        let seen = Part::of(reading, self.rows()).and_then(|part| {
            let look = part.lay_out_in_parallel(self.room(part.times.len()))?;
            Some((look, part.times))
        });
        match seen {
            Some((look, times)) if self.follows(&look) => {
                self.release()?;
                let values = std::mem::take(&mut self.values);
                let last = times.len() - 1;
                self.go_on(&look, &values[self.filled..self.filled + times.len() * width], &times)?;
                self.values = values;
                self.filled += last * width;
                self.times.extend_from_slice(&times[..last]);
            }
            seen => {
                let (rows, zone) = known(columns(reading, self.next_row() - 1))?;
                self.mend_local(rows, zone, seen.is_some())?;
            }
        }
        self.flush(sink)
    }

    /// Takes the next rows.
    pub(super) fn add(&mut self, seen: Seen, sink: &mut Sink<'_>) -> Result<(), Stop> {
        let width = self.width();
        match self.numbered(seen) {
            Seen::Clean(look, values, times) if self.follows(&look) => {
                self.release()?;
                self.flush(sink)?;
                self.go_on(&look, &values, &times)?;
                let last = times.len() - 1;
                let values = &values[..last * width];
                if !sink.is_memory() {
                    return sink.store_rows(width, values, &times[..last]);
                }
                self.push(values);
                self.times.extend_from_slice(&times[..last]);
                Ok(())
            }
            Seen::Clean(_, values, times) => {
                self.course.go_on_rising(&times);
                let raw = self.in_columns(&values, times);
                self.mend(raw, true)?;
                self.flush(sink)
            }
            Seen::Odd(raw, zone) => {
                self.mend_local(raw, zone, false)?;
                self.flush(sink)
            }
        }
    }

    /// Everything that was read, once there is no more.
    pub(super) fn finish(mut self, sink: &mut Sink<'_>) -> Result<(Short, Work), Stop> {
        self.release()?;
        if self.waiting() > 0 {
            self.decide(self.undecided(), true)?;
        }
        self.flush(sink)?;
        self.values.truncate(self.filled);
        let Self { mut work, pieces, look, steps, mut values, mut times, .. } = self;
        let (removed, filled, usable, file) = (self.removed, self.put_in, self.usable, self.file);
        if !sink.is_memory() {
            // Room for rows, which there may be many series to keep of.
            (values, times) = (vec![], vec![]);
        }
        // The ends of the series stand for it.
        let first =
            |channel: usize| -> Vec<f64> { look.iter().map(|look| look.firsts[channel]).collect() };
        work.raw.columns = (0..self.channels.len()).map(first).collect();
        if let Some(time) = &mut work.raw.time {
            *time = look.iter().flat_map(|look| look.span).collect();
        }
        work.moved = None;
        work.raw.pieces = pieces.into_iter().map(Own::piece).collect();
        let labels = vec![];
        Ok((Short { values, labels, times, steps, removed, filled, look, usable, file }, work))
    }

    fn width(&self) -> usize {
        self.channels.len()
    }

    /// Rows that were read.
    fn rows(&self) -> usize {
        self.work.counts.rows as usize
    }

    /// The row of its file that comes next, counted from 1.
    fn next_row(&self) -> usize {
        self.pieces.last().map_or(1, |own| own.first + own.rows)
    }

    /// Counts rows that were read.
    fn took(&mut self, rows: usize) {
        self.work.counts.rows += rows as u64;
        if let Some(own) = self.pieces.last_mut() {
            own.rows += rows;
        }
    }

    /// The same with the numbers of rows of the series for times, if it has none.
    fn numbered(&self, mut seen: Seen) -> Seen {
        if let (Seen::Clean(look, _, times), None) = (&mut seen, &self.work.raw.time) {
            let before = self.rows() as i64;
            times.iter_mut().chain(&mut look.span).for_each(|time| *time += before);
        }
        seen
    }

    /// How many rows wait.
    fn waiting(&self) -> usize {
        self.work.raw.len() - usize::from(self.begun)
    }

    /// Whether the rows of a clean part can go on as they are.
    fn follows(&self, look: &Look) -> bool {
        let last = self.work.raw.time.as_ref().and_then(|times| times.last());
        let free = self.settled || self.work.raw.len() == 0;
        let step = last.map(|last| look.span[0].saturating_sub(*last));
        let fits = match self.spacing {
            None => step.is_none_or(|step| step > 0),
            Some(spacing) => {
                look.even
                    && look.interval == Some(spacing)
                    && step.is_none_or(|step| step >= spacing)
            }
        };
        look.rows > 1 && free && fits
    }

    /// Room for so many rows, behind those that went on and the one that waits.
    fn room(&mut self, rows: usize) -> &mut [f64] {
        let begin = self.filled + usize::from(self.settled) * self.width();
        let end = begin + rows * self.width();
        if self.values.len() < end {
            self.values.resize(end, 0.0);
        }
        &mut self.values[begin..end]
    }

    fn push(&mut self, values: &[f64]) {
        let end = self.filled + values.len();
        if self.values.len() < end {
            self.values.resize(end, 0.0);
        }
        self.values[self.filled..end].copy_from_slice(values);
        self.filled = end;
    }

    /// Puts what went on into the store, if that is where it goes.
    fn flush(&mut self, sink: &mut Sink<'_>) -> Result<(), Stop> {
        if !sink.is_memory() {
            sink.store_rows(self.width(), &self.values[..self.filled], &self.times)?;
            self.filled = 0;
            self.times.clear();
        }
        Ok(())
    }

    fn note(&mut self, look: Option<Look>) -> Result<(), Stop> {
        if let Some(look) = look {
            self.look = Some(known(Look::after(self.look.take(), look))?);
        }
        Ok(())
    }

    /// Lets the row go on that waits behind a clean part.
    fn release(&mut self) -> Result<(), Stop> {
        if !self.settled {
            return Ok(());
        }
        let raw = &mut self.work.raw;
        let row: Vec<f64> = raw.columns.iter_mut().filter_map(Vec::pop).collect();
        let time = raw.time.as_mut().map_or(Some(self.steps as i64), Vec::pop);
        let time = known(time)?;
        self.push(&row);
        self.times.push(time);
        self.note(Look::of(&row, &[time], true))?;
        self.steps += 1;
        self.settled = false;
        Ok(())
    }

    /// Notes that the rows of a clean part, several, go on, but for the last, which waits.
    fn go_on(&mut self, look: &Look, values: &[f64], times: &[i64]) -> Result<(), Stop> {
        let (rows, width) = (times.len(), self.width());
        self.note(Look::of(&values[..(rows - 1) * width], &times[..rows - 1], look.even))?;
        let ends = &values[(rows - 2) * width..];
        let mut raw = self.in_columns(ends, times[rows - 2..].to_vec());
        let end = self.next_row() + rows - 2;
        raw.pieces.iter_mut().for_each(|piece| piece.rows = Rows::From(end));
        self.work.raw = raw;
        self.work.moved = None;
        self.took(rows);
        self.course.go_on_rising(times);
        self.steps += rows - 1;
        self.usable.fill(Usable::Some);
        (self.begun, self.settled, self.left_out) = (true, true, None);
        Ok(())
    }

    /// The next rows in columns.
    fn in_columns(&self, values: &[f64], times: Vec<i64>) -> RawSeries {
        let width = self.width();
        let column = |channel: usize| values[channel..].iter().step_by(width).copied().collect();
        let path = self.pieces.last().map_or_else(|| Path::new("").into(), |own| own.path.clone());
        let rows = Rows::From(self.next_row());
        RawSeries {
            name: self.work.raw.name.clone(),
            origin: self.work.raw.origin,
            columns: (0..width).map(column).collect(),
            labels: RawLabels::None,
            pieces: vec![Piece { path, steps: times.len(), rows }],
            time: self.work.raw.time.is_some().then_some(times),
        }
    }

    /// The same of rows whose times are still to be settled.
    fn mend_local(&mut self, mut rows: RawSeries, zone: Zone, clean: bool) -> Result<(), Stop> {
        if let Some(times) = &mut rows.time {
            zone.settle(times, &mut self.course);
        }
        self.mend(rows, clean)
    }

    /// Takes rows that something is wrong with, or with what is before them; `clean` if not with themselves.
    fn mend(&mut self, rows: RawSeries, clean: bool) -> Result<(), Stop> {
        let count = rows.len();
        if count == 0 {
            return Ok(());
        }
        self.took(count);
        for (usable, column) in self.usable.iter_mut().zip(&rows.columns) {
            *usable = usable.with(column);
        }
        let from = self.undecided();
        self.work.raw.append(rows);
        let is_last = self.decide(from, false)?;
        // A run of missing values that may still be filled: each part would look at all of it again.
        known((self.waiting() <= MOST_WAITING).then_some(()))?;
        let alone = is_last && count > 1 && self.waiting() == 1;
        self.settled = clean && alone && !self.may_be_crowded();
        Ok(())
    }

    /// The last row that waits, which one of its time may still replace; or the first that comes.
    fn undecided(&self) -> usize {
        self.work.raw.len().saturating_sub(1)
    }

    /// Whether the last row may be left out as one that follows too soon, which is decided with the next one.
    fn may_be_crowded(&self) -> bool {
        let times = self.work.raw.time.as_deref().unwrap_or_default();
        match (self.spacing, times) {
            (Some(spacing), [.., before, last]) => {
                self.left_out.is_some() || is_soon(last - before, spacing)
            }
            _ => false,
        }
    }

    /// Mends the rows that nothing behind them can change, all at the end, and lets them go on. None of those from this one
    /// on were looked at before. Returns whether the row that was read last is the last one here.
    fn decide(&mut self, from: usize, end: bool) -> Result<bool, Stop> {
        let read = self.work.raw.len();
        self.work.moved = None;
        let before = self.work.counts.unsorted;
        self.work.left_out = self.left_out.map(|time| (from, time));
        self.work.order(&self.policies);
        if self.work.counts.unsorted > before && self.policies.unsorted != Policy::Drop {
            return Err(Stop::Apart);
        }
        if let Some(spacing) = self.spacing {
            let until = self.work.raw.len() - usize::from(!end);
            self.left_out = self.work.drop_crowded(&(from..until), spacing, self.left_out);
        }
        self.note_dropped(read);
        let last_read =
            self.work.moved.as_ref().map(|moved| moved.last() == Some(&(read as u32 - 1)));
        let steps = self.work.raw.len();
        let decided = if end { steps } else { self.decided() };
        let own = usize::from(self.begun)..decided;
        let tails = self.work.raw.columns.iter().map(|column| column[decided..].to_vec());
        let tails: Vec<Vec<f64>> = tails.collect();
        let mut removed = self.work.not_finite(&own, self.interval, &self.policies);
        // What the next value may be filled with: a bar is widened afterwards.
        let last = decided.checked_sub(1);
        let row_of = |row: usize| -> Vec<f64> {
            self.work.raw.columns.iter().map(|column| column[row]).collect()
        };
        let last = last.map(row_of);
        self.work.ohlc(&own, &self.channels, &self.policies, &mut removed);
        removed.resize(steps, false);
        self.hand_on(&own, &removed)?;
        self.keep_waiting(decided, last, tails);
        Ok(last_read.unwrap_or(true))
    }

    /// How many steps nothing that follows can change: not the last, which one of its time may replace, nor a run
    /// of missing values before it that may be short enough to be filled.
    fn decided(&self) -> usize {
        let last = self.work.raw.len() - 1;
        if self.policies.not_finite != Policy::Fill {
            return last;
        }
        let run = |column: &Vec<f64>| {
            column[..last].iter().rev().take_while(|value| !fits(**value)).count()
        };
        // One from the first step on has nothing to be filled with.
        let is_open = |run: &usize| *run < last && *run <= self.policies.longest_fill;
        last - self.work.raw.columns.iter().map(run).filter(is_open).max().unwrap_or(0)
    }

    /// Notes which of so many rows are there no more.
    fn note_dropped(&mut self, read: usize) {
        let Some(moved) = &self.work.moved else { return };
        let mut kept = moved.iter().peekable();
        for step in 0..read as u32 {
            if kept.next_if_eq(&&step).is_none() {
                let (path, row) = self.work.raw.place(step as usize);
                // No file is read twice, and this is one of the last.
                let own = self.pieces.iter_mut().rev().find(|own| own.path == path);
                own.into_iter().for_each(|own| own.dropped.insert(row - own.first));
            }
        }
    }

    /// Lets these steps go on, but for those that are left out.
    fn hand_on(&mut self, own: &Range<usize>, removed: &[bool]) -> Result<(), Stop> {
        let (begin, first) = (self.filled, self.times.len());
        match &self.work.raw.time {
            Some(times) => self.times.extend_from_slice(&times[own.clone()]),
            // Each keeps the number of its row.
            None => self.times.extend((self.steps..self.steps + own.len()).map(|row| row as i64)),
        }
        let mut times = Vec::with_capacity(own.len());
        let mut rows = Vec::with_capacity(own.len() * self.width());
        let filled = std::mem::take(&mut self.work.filled);
        for (place, step) in own.clone().enumerate() {
            if removed[step] {
                self.leave_out(self.steps + place);
            } else {
                times.push(self.times[first + place]);
                rows.extend(self.work.raw.columns.iter().map(|column| column[step]));
                if !filled.is_empty() {
                    let kept = self.steps + place - self.gone;
                    let channels = (0..self.channels.len()).filter(|of| filled.holds(*of, step));
                    channels.for_each(|channel| self.put_in.add(channel, kept..kept + 1));
                }
            }
        }
        self.push(&rows);
        self.steps += own.len();
        self.note(Look::of(&self.values[begin..self.filled], &times, false))?;
        // Nor is what it may have been before rows that are all left out.
        if let Some(look) = &mut self.look {
            look.even = false;
        }
        Ok(())
    }

    fn leave_out(&mut self, step: usize) {
        self.gone += 1;
        match self.removed.last_mut() {
            Some(last) if last.end == step => last.end += 1,
            _ => self.removed.push(step..step + 1),
        }
    }

    /// Keeps the steps from this one on, as they were read, and the one before them as it went on.
    fn keep_waiting(&mut self, from: usize, last: Option<Vec<f64>>, tails: Vec<Vec<f64>>) {
        self.begun = last.is_some();
        let begin = from - usize::from(self.begun);
        let raw = &mut self.work.raw;
        let kept: Vec<u32> = match &self.work.moved {
            Some(moved) => moved[begin..].to_vec(),
            None => (begin as u32..raw.len() as u32).collect(),
        };
        raw.pieces = raw.pieces_of(&kept);
        if let Some(times) = &mut raw.time {
            *times = times.split_off(begin);
        }
        for (channel, (column, tail)) in raw.columns.iter_mut().zip(tails).enumerate() {
            *column = last.iter().map(|last| last[channel]).chain(tail).collect();
        }
        self.work.moved = None;
    }
}
