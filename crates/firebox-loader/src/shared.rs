//! Samples that overlap, kept as the steps that they share: of windows at every step of a series, each value is in as many
//! windows as a window has steps, and needs to be kept once.

use std::fmt;
use std::iter;
use std::ops::{Deref, Range};

use firebox_core::{Window, Windows};

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
        let chosen = source.used();
        let runs = Run::all(&chosen);
        let count = runs.last().map_or(0, |run| run.first + run.steps.len());
        // More steps than devices number are read window by window.
        i32::try_from(count).ok()?;
        let start = |window: &Window| {
            let run = &runs[runs.partition_point(|run| run.begin() <= begin(window)) - 1];
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
    series: u32,
    /// Among those of the series.
    steps: Range<usize>,
    /// The number of the first among all steps.
    first: usize,
    /// The first sample of them.
    sample: usize,
}

/// Where a window begins, in the order of series and time.
fn begin(window: &Window) -> (u32, usize) {
    (window.series, window.start as usize)
}

impl Run {
    /// What these windows cover, in the order of series and time.
    fn all(windows: &[Window]) -> Vec<Self> {
        let mut sorted: Vec<(usize, &Window)> = windows.iter().enumerate().collect();
        sorted.sort_unstable_by_key(|(_, window)| begin(window));
        let mut runs: Vec<Self> = vec![];
        for (sample, window) in sorted {
            let steps = window.steps();
            match runs.last_mut() {
                Some(run) if run.series == window.series && steps.start <= run.steps.end => {
                    run.steps.end = run.steps.end.max(steps.end);
                }
                last => {
                    let first = last.map_or(0, |run| run.first + run.steps.len());
                    runs.push(Self { series: window.series, steps, first, sample });
                }
            }
        }
        runs
    }

    fn begin(&self) -> (u32, usize) {
        (self.series, self.steps.start)
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
        let window = Window { series: run.series, start, length, label: None };
        let out = &mut out[(part.start - steps.start) * channels..][..part.len() * channels];
        source.normaliser().apply(set, &window, out);
        let whole = set.check_series(iter::once(run.series as usize));
        whole.map_err(|lost| LoadError::Sample { index: run.sample, source: lost.into() })?;
    }
    Ok(())
}
