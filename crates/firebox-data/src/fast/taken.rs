//! The series of all files: one a file, or those that a column names, of which the rows stand together. What is done
//! with the rows of one is in [`parted`](super::parted).

use std::collections::HashSet;
use std::ops::Range;

use firebox_core::Origin;
use polars::prelude::{DataFrame, Int64Chunked, IntoColumn, TimeUnit, TimeZone};

use crate::CheckPolicies;
use crate::frame::Reading;
use crate::input::Input;
use crate::mapping::Mapping;
use crate::raw::{Interner, NO_LABEL};
use crate::work::Work;

use super::parted::{Parted, Short};
use super::seen::Seen;
use super::{Sink, Stop, known};

/// Consecutive rows of a part that are of one series.
struct Run {
    name: String,
    rows: Range<usize>,
}

/// The rows of a table by their series; none if a row has no name, or those of a series do not stand together.
fn runs(reading: &Reading<'_>) -> Option<Vec<Run>> {
    let rows = 0..reading.frame.height();
    let Some(column) = &reading.mapping.series else {
        return Some(vec![Run { name: reading.input.stem(), rows }]);
    };
    let mut names = Interner::default();
    let codes = reading.codes(column, &mut names).ok()?;
    (!codes.contains(&NO_LABEL)).then_some(())?;
    let mut end = 0;
    let runs = codes.chunk_by(|a, b| a == b).map(|run| {
        end += run.len();
        Run { name: names.names[run[0] as usize].clone(), rows: end - run.len()..end }
    });
    let runs: Vec<Run> = runs.collect();
    (runs.len() == names.names.len()).then_some(runs)
}

/// The table with its times parsed, once for all of many runs.
fn with_times(reading: &Reading<'_>) -> Option<DataFrame> {
    let mut frame = reading.frame.clone();
    if let Some(name) = &reading.mapping.time {
        let times = Int64Chunked::from_vec(name.as_str().into(), reading.times(name).ok()?);
        let times = times.into_datetime(TimeUnit::Microseconds, Some(TimeZone::UTC));
        frame.with_column(times.into_column()).ok()?;
    }
    Some(frame)
}

/// Calls `each` with every run and a reading of its rows alone.
fn each_run(
    reading: &Reading<'_>,
    mut each: impl FnMut(Run, &Reading<'_>) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let runs = known(runs(reading))?;
    let mapping = Mapping { series: None, ..reading.mapping.clone() };
    let Reading { input, config, zone, frame, .. } = *reading;
    let parsed = if runs.len() > 1 { Some(known(with_times(reading))?) } else { None };
    let frame = parsed.as_ref().unwrap_or(frame);
    for run in runs {
        let rows = frame.slice(run.rows.start as i64, run.rows.len());
        each(run, &Reading { input, config, zone, frame: &rows, mapping: &mapping })?;
    }
    Ok(())
}

/// A part of a file by its series.
pub(super) struct Part(Vec<(Run, Seen)>);

impl Part {
    /// The rows of a table, of which the first is the `start`-th of the file.
    pub(super) fn of(reading: &Reading<'_>, start: usize) -> Result<Self, Stop> {
        let mut part = vec![];
        each_run(reading, |run, rows| {
            let seen = known(Seen::of(rows, start + run.rows.start))?;
            let rows = start + run.rows.start..start + run.rows.end;
            part.push((Run { rows, ..run }, seen));
            Ok(())
        })?;
        Ok(Self(part))
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

/// The series that were read, in the order in which they come first.
pub(super) struct Taken {
    policies: CheckPolicies,
    open: Option<Open>,
    read: Vec<Short>,
    works: Vec<Work>,
    /// The names of all, of files to train on and to test on.
    train: HashSet<String>,
    test: HashSet<String>,
}

impl Taken {
    pub(super) fn new(policies: CheckPolicies) -> Self {
        let (train, test) = (HashSet::new(), HashSet::new());
        Self { policies, open: None, read: vec![], works: vec![], train, test }
    }

    /// Takes a table, laid out on all processors, whose first row is the `start`-th of the file.
    pub(super) fn add_table(
        &mut self,
        reading: &Reading<'_>,
        start: usize,
        sink: &mut Sink<'_>,
    ) -> Result<(), Stop> {
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
        for (run, seen) in part.0 {
            self.series(&run.name, of, run.rows.start, sink)?.add(seen, sink)?;
        }
        Ok(())
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
            let (own, origin) = (known(self.own_name(name, input, mapping))?, input.origin);
            let series = Parted::new(own, origin, mapping, self.policies);
            let (name, named) = (name.to_owned(), mapping.series.is_some());
            self.open = Some(Open { name, named, series });
        }
        let series = &mut known(self.open.as_mut())?.series;
        series.at(&input.path, start + 1);
        Ok(series)
    }

    /// The name that a series gets which begins here; none if there is one of that name: its rows do not stand
    /// together, or two files have one name.
    fn own_name(&mut self, name: &str, input: &Input, mapping: &Mapping) -> Option<String> {
        let is_test = input.origin == Origin::Test;
        // As `Raw::separate_names`: files to test on come last.
        let own = match is_test && mapping.series.is_some() && self.train.contains(name) {
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

    /// What was read of each, once there are no more.
    pub(super) fn finish(mut self, sink: &mut Sink<'_>) -> Result<(Vec<Short>, Vec<Work>), Stop> {
        self.close(sink)?;
        Ok((self.read, self.works))
    }
}
