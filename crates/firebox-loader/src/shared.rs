//! Samples that overlap, kept as the steps that they share: of windows at every step of a series, each value is in as many
//! windows as a window has steps, and needs to be kept once.

use std::fmt;
use std::iter;
use std::ops::{Deref, Range};

use firebox_core::{Steps, Window, Windows};

use crate::{LoadError, NormalisedWindows, Sample};

/// The steps that samples are runs of, each once, in an order in which every sample is one run of them.
pub struct SharedSteps<'a> {
    count: usize,
    starts: Vec<u32>,
    samples: Vec<Sample>,
    read: Box<Read<'a>>,
}

impl fmt::Debug for SharedSteps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (steps, samples) = (self.count, self.starts.len());
        f.debug_struct("SharedSteps").field("steps", &steps).field("samples", &samples).finish()
    }
}

/// Writes the values of some steps.
type Read<'a> = dyn Fn(Range<usize>, &mut [f32]) -> Result<(), LoadError> + 'a;

impl<'a> SharedSteps<'a> {
    /// So many steps, the first one of each sample, and what writes some of them: `[step, channel]`, row-major.
    ///
    /// # Panics
    ///
    /// When there is not one first step for each sample, a sample ends behind the last step, or there are more than
    /// 2³¹ − 1 steps, which devices number.
    pub fn new(
        count: usize,
        starts: Vec<u32>,
        samples: Vec<Sample>,
        read: impl Fn(Range<usize>, &mut [f32]) -> Result<(), LoadError> + 'a,
    ) -> Self {
        assert!(i32::try_from(count).is_ok(), "{count} steps; at most 2^31 - 1");
        assert_eq!(starts.len(), samples.len(), "one first step for each sample");
        let end = |(start, sample): (&u32, &Sample)| *start as usize + sample.length as usize;
        let end = starts.iter().zip(&samples).map(end).max().unwrap_or(0);
        assert!(end <= count, "a sample ends at step {end} of {count}");
        Self { count, starts, samples, read: Box::new(read) }
    }

    /// The steps of windows whose values do not depend on the window that they are in. None if they do.
    pub(crate) fn of<W: Deref<Target = Windows>>(source: &'a NormalisedWindows<W>) -> Option<Self> {
        if source.normaliser().depends_on_window() {
            return None;
        }
        let set = source.windows().set();
        let chosen = source.used();
        let runs = Run::all(&Steps::of_windows(set, &chosen));
        let count = runs.last().map_or(0, |run| run.first + run.steps.len());
        // More steps than devices number are read window by window.
        i32::try_from(count).ok()?;
        let start = |window: &Window| {
            let own = (window.series as usize, window.start as usize);
            let run = &runs[runs.partition_point(|run| (run.series, run.steps.start) <= own) - 1];
            (run.first + window.start as usize - run.steps.start) as u32
        };
        let starts = chosen.iter().map(start).collect();
        let sample = |window: &Window| Sample { length: window.length, label: window.label };
        let samples = chosen.iter().map(sample).collect();
        let read = move |steps: Range<usize>, out: &mut [f32]| read(source, &runs, &steps, out);
        Some(Self::new(count, starts, samples, read))
    }

    /// The same steps, whose samples have other labels.
    pub(crate) fn relabelled(mut self, labels: &[u32]) -> Self {
        for (sample, label) in self.samples.iter_mut().zip(labels) {
            sample.label = Some(*label);
        }
        self
    }

    /// Number of steps.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Whether all samples have so many steps.
    pub(crate) fn are_as_long_as(&self, steps: usize) -> bool {
        self.samples.iter().all(|sample| sample.length as usize == steps)
    }

    /// The first step of each sample, and what a sample is beside its values.
    pub(crate) fn into_samples(self) -> (Vec<u32>, Vec<Sample>) {
        (self.starts, self.samples)
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
            let is_of_it = |window: &Window| window.series as usize == run.series;
            let index = source.used().iter().position(is_of_it).unwrap_or(0);
            LoadError::Sample { index, source: lost.into() }
        })?;
    }
    Ok(())
}
