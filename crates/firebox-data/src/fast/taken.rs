//! The series of all files: one a file, or those that a column names, of which the rows stand together, or are sorted
//! first. What is done with the rows of one is in [`parted`](super::parted).

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::frame::Reading;
use crate::input::Input;
use crate::mapping::Mapping;
use crate::progress::{Progress, Share};
use crate::raw::{Interner, NO_LABEL};
use crate::store::check_room;
use crate::turns::in_turn;
use crate::work::Work;
use crate::{CheckPolicies, Policy};
use firebox_core::Origin;

use super::grouped::Grouped;
use super::layout::{Layout, with_times};
use super::parted::{Parted, Short};
use super::seen::Seen;
use super::sorted::{Scattered, Sorted, Sorting};
use super::{How, Sink, Stop, known};

/// Consecutive rows of a part that are of one series.
pub(super) struct Run {
    name: String,
    rows: Range<usize>,
}

/// The rows of a table by their series, which stand together, and each row of which has a name.
fn runs(reading: &Reading<'_>) -> Result<Vec<Run>, Stop> {
    let rows = 0..reading.frame.height();
    let Some(column) = &reading.mapping.series else {
        return Ok(vec![Run { name: reading.input.name(), rows }]);
    };
    let mut names = Interner::default();
    let codes = known(reading.codes(column, &mut names).ok())?;
    known((!codes.contains(&NO_LABEL)).then_some(()))?;
    let mut end = 0;
    let runs = codes.chunk_by(|a, b| a == b).map(|run| {
        end += run.len();
        Run { name: names.names[run[0] as usize].clone(), rows: end - run.len()..end }
    });
    let runs: Vec<Run> = runs.collect();
    if runs.len() == names.names.len() { Ok(runs) } else { Err(Stop::Apart) }
}

/// Calls `each` with every run and a reading of its rows alone.
fn each_run(
    reading: &Reading<'_>,
    mut each: impl FnMut(Run, &Reading<'_>) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let runs = runs(reading)?;
    let mapping = Mapping { series: None, ..reading.mapping.clone() };
    let Reading { input, config, zone, frame, .. } = *reading;
    let parsed = if runs.len() > 1 { Some(known(with_times(reading))?.0) } else { None };
    let frame = parsed.as_ref().unwrap_or(frame);
    for run in runs {
        let rows = frame.slice(run.rows.start as i64, run.rows.len());
        each(run, &Reading { input, config, zone, frame: &rows, mapping: &mapping })?;
    }
    Ok(())
}

/// A part of a file by its series.
pub(super) enum Part {
    /// The rows of each stand together.
    Together(Vec<(Run, Seen)>),
    Apart(Grouped),
}

impl Part {
    /// The rows of a table, of which the first is the `start`-th of the file.
    pub(super) fn of(reading: &Reading<'_>, start: usize, apart: bool) -> Result<Self, Stop> {
        if apart {
            return known(Grouped::of(reading, start).map(Self::Apart));
        }
        let mut part = vec![];
        each_run(reading, |run, rows| {
            let seen = known(Seen::of(rows, start + run.rows.start))?;
            let rows = start + run.rows.start..start + run.rows.end;
            part.push((Run { rows, ..run }, seen));
            Ok(())
        })?;
        Ok(Self::Together(part))
    }
}

/// Parts of a block that are read back at once: so many of them fit where one block did, for each processor.
const PARTS: usize = 8;

/// The rows of series that do not stand together, or not in the order of their times.
struct Apart {
    /// Bytes of them that are sorted at once.
    block: usize,
    /// Whether they are sorted by time, too, where they have any.
    by_time: bool,
    /// Once there are any.
    begun: Option<(Sorting, Mapping)>,
}

impl Apart {
    /// The file that rows are put into.
    fn sorting(&mut self, mapping: &Mapping, folder: &Path) -> Result<&mut Sorting, Stop> {
        if self.begun.is_none() {
            let sorting = Sorting::begin(folder, mapping, self.by_time, self.block)?;
            self.begun = Some((sorting, mapping.clone()));
        }
        Ok(&mut known(self.begun.as_mut())?.0)
    }

    /// Refuses so many rows more than a disk has room for, of which so many bytes are free, if that is known.
    fn check_room(
        &mut self,
        mapping: &Mapping,
        rows: usize,
        folder: &Path,
        free: Option<u64>,
    ) -> Result<(), Stop> {
        let bytes = self.sorting(mapping, folder)?.bytes(rows, mapping.channels.len() + 1);
        let what = "rows put in the order of their series and times, and the series that they make";
        Ok(check_room(folder, what, bytes, free)?)
    }
}

/// A series whose rows may go on.
struct Open {
    /// Its name in the files.
    name: String,
    /// Whether a column names it.
    named: bool,
    series: Parted,
}

/// All series, in the order in which they come first.
pub(super) struct AllRead {
    pub(super) read: Vec<Short>,
    pub(super) works: Vec<Work>,
    pub(super) layout: Arc<Layout>,
    /// The interval that rows were left out by which follow too soon, if they were.
    pub(super) spacing: Option<i64>,
    /// The interval by which nothing was filled over gaps, if that was known.
    pub(super) interval: Option<i64>,
}

/// The series that were read, in the order in which they come first.
pub(super) struct Taken {
    policies: CheckPolicies,
    spacing: Option<i64>,
    interval: Option<i64>,
    /// If rows may be anywhere: then they wait for those of the last file.
    apart: Option<Apart>,
    open: Option<Open>,
    read: Vec<Short>,
    works: Vec<Work>,
    layout: Arc<Layout>,
    /// The names of all, of files to train on and to test on.
    train: HashSet<String>,
    test: HashSet<String>,
}

impl Taken {
    /// For rows that are to be read in this way.
    pub(super) fn new(policies: CheckPolicies, how: &How) -> Self {
        let by_time = policies.unsorted != Policy::Drop;
        Self {
            policies,
            spacing: how.spacing,
            interval: how.interval,
            apart: how.sorted.map(|block| Apart { block, by_time, begun: None }),
            open: None,
            read: vec![],
            works: vec![],
            layout: Arc::new(Layout::without(how.void.clone())),
            train: HashSet::new(),
            test: HashSet::new(),
        }
    }

    pub(super) fn is_apart(&self) -> bool {
        self.apart.is_some()
    }

    /// Whether each row of a file without defects stays where it is read.
    pub(super) fn keeps_all(&self) -> bool {
        self.apart.is_none() && self.spacing.is_none()
    }

    /// What goes through the rules of the tables of the next file.
    pub(super) fn of_next_file(&self) -> Arc<Layout> {
        self.layout.begin_file();
        Arc::clone(&self.layout)
    }

    /// Hears how many rows the next file has, about: makes room for those of one series that stays in memory, and looks
    /// whether the disk has room for those that are sorted there.
    pub(super) fn expect(
        &mut self,
        of: (&Input, &Mapping),
        rows: usize,
        sink: &mut Sink<'_>,
    ) -> Result<(), Stop> {
        if let Some(apart) = &mut self.apart {
            let folder = sink.making(of.1.channels.len())?.aside();
            return apart.check_room(of.1, rows, folder, firebox_cache::free_bytes(folder));
        }
        if sink.is_memory() && of.1.series.is_none() {
            self.series(&of.0.name(), of, 0, sink)?.expect(rows);
        }
        Ok(())
    }

    /// Takes a table, laid out on all processors, whose first row is the `start`-th of the file.
    pub(super) fn add_table(
        &mut self,
        reading: &Reading<'_>,
        start: usize,
        sink: &mut Sink<'_>,
    ) -> Result<(), Stop> {
        if self.is_apart() {
            let part = Part::of(reading, start, true)?;
            return self.add(part, (reading.input, reading.mapping), sink);
        }
        each_run(reading, |run, rows| {
            let of = (reading.input, reading.mapping);
            let series = self.series(&run.name, of, start + run.rows.start, sink)?;
            series.add_table(rows, sink)
        })
    }

    /// Takes the next part of a file.
    pub(super) fn add(
        &mut self,
        part: Part,
        of: (&Input, &Mapping),
        sink: &mut Sink<'_>,
    ) -> Result<(), Stop> {
        match (part, &mut self.apart) {
            (Part::Together(runs), _) => {
                for (run, seen) in runs {
                    self.series(&run.name, of, run.rows.start, sink)?.add(seen, sink)?;
                }
                Ok(())
            }
            (Part::Apart(rows), Some(apart)) => {
                let folder = sink.making(of.1.channels.len())?.aside();
                apart.sorting(of.1, folder)?.add(rows, of.0)
            }
            (Part::Apart(_), None) => Err(Stop::Apart),
        }
    }

    /// The series of this name, of which the next row is the `start`-th of the file.
    pub(super) fn series(
        &mut self,
        name: &str,
        (input, mapping): (&Input, &Mapping),
        start: usize,
        sink: &mut Sink<'_>,
    ) -> Result<&mut Parted, Stop> {
        let goes_on = |open: &Open| open.name == name && open.series.origin() == input.origin;
        if !self.open.as_ref().is_some_and(goes_on) {
            self.close(sink)?;
            let named = mapping.series.is_some();
            let again = if named { Stop::Apart } else { Stop::Odd };
            let own = self.own_name(name, input.origin, named).ok_or(again)?;
            let how = (self.policies, self.spacing, self.interval);
            let series = Parted::new(own, input.origin, mapping, how);
            self.open = Some(Open { name: name.to_owned(), named, series });
        }
        let series = &mut known(self.open.as_mut())?.series;
        series.at(&input.path, start + 1);
        Ok(series)
    }

    /// The name that a series gets which begins here; none if there is one of that name: its rows do not stand
    /// together, or two files have one name.
    fn own_name(&mut self, name: &str, origin: Origin, named: bool) -> Option<String> {
        let is_test = origin == Origin::Test;
        // As `Raw::separate_names`: files to test on come last.
        let own = match is_test && named && self.train.contains(name) {
            true => format!("test/{name}"),
            false => name.to_owned(),
        };
        let is_new = !self.train.contains(&own) && !self.test.contains(&own);
        let names = if is_test { &mut self.test } else { &mut self.train };
        (is_new && names.insert(own.clone())).then_some(own)
    }

    /// The end of a file. A series that a column names may go on in the next one.
    pub(super) fn end_file(&mut self, sink: &mut Sink<'_>) -> Result<(), Stop> {
        match self.open.as_ref().is_some_and(|open| open.named) {
            true => Ok(()),
            false => self.close(sink),
        }
    }

    fn close(&mut self, sink: &mut Sink<'_>) -> Result<(), Stop> {
        let Some(Open { named, series, .. }) = self.open.take() else { return Ok(()) };
        let (mut short, work) = series.finish(sink)?;
        if named {
            short.shrink();
        }
        self.read.push(short);
        self.works.push(work);
        Ok(())
    }

    /// Takes the rows that were sorted, series by series.
    fn take_sorted(
        &mut self,
        (sorted, mapping): (&Arc<Sorted>, &Mapping),
        at_once: usize,
        sink: &mut Sink<'_>,
        share: &Share<'_>,
    ) -> Result<(), Stop> {
        let jobs = sorted.series.iter().enumerate().flat_map(|(series, own)| {
            let end = move |start: usize| own.rows.min(start + at_once);
            (0..own.rows).step_by(at_once).map(move |start| (series, start..end(start)))
        });
        let jobs: Vec<(usize, Range<usize>)> = jobs.collect();
        let work = |(series, rows): (usize, Range<usize>)| {
            let seen = Seen::sorted(sorted, series, &rows, mapping)?;
            Ok((series, rows, seen))
        };
        let (mut done, all) = (0, sorted.series.iter().map(|own| own.rows).sum());
        let take = |(series, rows, seen): (usize, Range<usize>, Seen)| {
            if rows.start == 0 {
                self.close(sink)?;
                self.open = Some(self.sorted_series(sorted, series, mapping)?);
            }
            known(self.open.as_mut())?.series.add(seen, sink)?;
            done += rows.len();
            share.reached(done, all);
            Ok(())
        };
        in_turn(rayon::current_num_threads(), jobs.into_iter(), work, take)
    }

    /// A series before its rows, which were sorted.
    fn sorted_series(
        &mut self,
        sorted: &Arc<Sorted>,
        series: usize,
        mapping: &Mapping,
    ) -> Result<Open, Stop> {
        let Scattered { name, origin, file, .. } = &sorted.series[series];
        let named = mapping.series.is_some();
        let own = known(self.own_name(name, *origin, named))?;
        let how = (self.policies, self.spacing, self.interval);
        let mut parted = Parted::new(own, *origin, mapping, how);
        let (rows, back) = (Arc::clone(sorted), sorted.back(series));
        let place = move |row| rows.place(series, row - 1);
        parted.put_together(Box::new(place), Arc::clone(file), back);
        Ok(Open { name: name.clone(), named, series: parted })
    }

    /// What was read of each, once there are no more.
    pub(super) fn finish(
        mut self,
        sink: &mut Sink<'_>,
        progress: &Progress<'_>,
    ) -> Result<AllRead, Stop> {
        if let Some(Apart { block, begun, .. }) = self.apart.take() {
            let (sorting, mapping) = known(begun)?;
            let at_once = sorting.rows_of(block / PARTS);
            let sorted = Arc::new(sorting.finish()?);
            progress.next();
            self.take_sorted((&sorted, &mapping), at_once, sink, &progress.all())?;
        }
        self.close(sink)?;
        let Self { read, works, layout, spacing, interval, .. } = self;
        Ok(AllRead { read, works, layout, spacing, interval })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Columns;

    #[test]
    fn rows_that_the_disk_has_no_room_for_are_refused_before_any_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["time", "symbol", "x", "y"].map(str::to_owned);
        let mapping = Mapping::new(Path::new("a.csv"), &names, &Columns::default()).unwrap();
        let mut apart = Apart { block: 1 << 10, by_time: true, begun: None };
        let mut check = |free| apart.check_room(&mapping, 10, folder.path(), free);
        // Ten rows of four words that are sorted, and of three in the store.
        assert!(check(Some(560)).is_ok() && check(None).is_ok());
        let Err(Stop::Failed(error)) = check(Some(559)) else { panic!("there is no room") };
        assert!(!error.is_bad_input(), "the disk refuses");
        let said = error.to_string();
        assert!(said.contains("560 bytes") && said.contains("559 free"), "{said}");
        assert!(said.contains("run.cache"), "{said}");
    }
}
