//! Samples that overlap, kept as the steps that they share: of windows at every step of a series, each value is in as many
//! windows as a window has steps, and needs to be kept once.

use std::fmt;
use std::iter;
use std::ops::{Deref, Range};
use std::rc::Rc;

use firebox_core::{Steps, Window, WindowList, Windows};

use crate::{LoadError, NormalisedWindows};

/// The steps that samples are runs of, each once, in an order in which every sample is one run of them. All samples are as
/// long as the longest.
pub struct SharedSteps<'a> {
    count: usize,
    samples: Box<Samples<'a>>,
    read: Box<Read<'a>>,
}

/// Each sample as a run of the steps, with its label.
type Samples<'a> = dyn Fn() -> WindowList + 'a;

/// Writes the values of some steps.
type Read<'a> = dyn Fn(Range<usize>, &mut [f32]) -> Result<(), LoadError> + 'a;

impl fmt::Debug for SharedSteps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSteps").field("steps", &self.count).finish_non_exhaustive()
    }
}

impl<'a> SharedSteps<'a> {
    /// So many steps; what finds each sample as a run of them, all of series 0; and what writes some steps:
    /// `[step, channel]`, row-major.
    ///
    /// # Panics
    ///
    /// When there are more than 2³¹ − 1 steps, which devices number.
    pub fn new(
        count: usize,
        samples: impl Fn() -> WindowList + 'a,
        read: impl Fn(Range<usize>, &mut [f32]) -> Result<(), LoadError> + 'a,
    ) -> Self {
        assert!(i32::try_from(count).is_ok(), "{count} steps; at most 2^31 - 1");
        Self { count, samples: Box::new(samples), read: Box::new(read) }
    }

    /// The steps of windows whose values do not depend on the window that they are in. None if they do, or if windows are of
    /// several lengths.
    pub(crate) fn of<W: Deref<Target = Windows>>(source: &'a NormalisedWindows<W>) -> Option<Self> {
        let longest = source.windows().longest();
        let alike = || source.used().all(|window| window.length as usize == longest);
        if source.normaliser().depends_on_window() || !alike() {
            return None;
        }
        let set = source.windows().set();
        let runs: Rc<[Run]> = Run::all(&Steps::of_windows(set, source.used())).into();
        let count = runs.last().map_or(0, |run| run.first + run.steps.len());
        // More steps than devices number are read window by window.
        i32::try_from(count).ok()?;
        let own = Rc::clone(&runs);
        let sample = move |window: Window| {
            let begin = (window.series as usize, window.start as usize);
            let run = &own[own.partition_point(|run| (run.series, run.steps.start) <= begin) - 1];
            let start = (run.first + window.start as usize - run.steps.start) as u32;
            Window { series: 0, start, ..window }
        };
        let samples = move || source.used().map(&sample).collect();
        let read = move |steps: Range<usize>, out: &mut [f32]| read(source, &runs, &steps, out);
        Some(Self::new(count, samples, read))
    }

    /// The same steps, whose samples have other labels.
    pub(crate) fn relabelled(self, labels: &'a [u32]) -> Self {
        let samples = move || {
            let all = (self.samples)();
            let label = |(sample, label): (_, &u32)| Window { label: Some(*label), ..sample };
            all.iter().zip(labels).map(label).collect()
        };
        Self { samples: Box::new(samples), ..self }
    }

    /// Number of steps.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Each sample as a run of the steps.
    ///
    /// # Panics
    ///
    /// When a sample ends behind the last step.
    pub(crate) fn samples(&self) -> WindowList {
        let samples = (self.samples)();
        let end = samples.iter().map(|sample| sample.steps().end).max().unwrap_or(0);
        assert!(end <= self.count, "a sample ends at step {end} of {}", self.count);
        samples
    }

    /// Writes the values of some steps.
    ///
    /// # Shapes
    ///
    /// - `out`: `[step, channel]`, row-major
    pub(crate) fn read(&self, steps: Range<usize>, out: &mut [f32]) -> Result<(), LoadError> {
        (self.read)(steps, out)
    }
}

/// Steps of a series that windows cover without a gap.
struct Run {
    series: usize,
    /// Among those of the series.
    steps: Range<usize>,
    /// The number of the first among all steps.
    first: usize,
}

impl Run {
    fn all(steps: &Steps<'_>) -> Vec<Self> {
        let number = |next: &mut usize, (series, steps): &(usize, Range<usize>)| {
            let first = *next;
            *next += steps.len();
            Some(Self { series: *series, steps: steps.clone(), first })
        };
        steps.runs().iter().scan(0, number).collect()
    }
}

/// Writes the normalised values of these steps among all.
fn read<W: Deref<Target = Windows>>(
    source: &NormalisedWindows<W>,
    runs: &[Run],
    steps: &Range<usize>,
    out: &mut [f32],
) -> Result<(), LoadError> {
    let set = source.windows().set();
    let channels = set.channels().len();
    let first = runs.partition_point(|run| run.first + run.steps.len() <= steps.start);
    for run in runs[first..].iter().take_while(|run| run.first < steps.end) {
        // The part of the run, numbered as all steps are.
        let part = run.first.max(steps.start)..(run.first + run.steps.len()).min(steps.end);
        let start = (run.steps.start + part.start - run.first) as u32;
        let length = part.len() as u32;
        let window = Window { series: run.series as u32, start, length, label: None };
        let out = &mut out[(part.start - steps.start) * channels..][..part.len() * channels];
        source.normaliser().apply(set, &window, out);
        set.check_series(iter::once(run.series)).map_err(|lost| {
            let is_of_it = |window: Window| window.series as usize == run.series;
            let index = source.used().position(is_of_it).unwrap_or(0);
            LoadError::Sample { index, source: lost.into() }
        })?;
    }
    Ok(())
}
