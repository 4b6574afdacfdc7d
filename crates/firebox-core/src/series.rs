//! Series of observations, checked once when a [`SeriesSet`] is made.
//!
//! Reading files, sorting and repairing is done in `firebox-data`; nothing here repairs anything.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Column, Filled, SeriesValues};

/// What a channel measures, as far as the engine must know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Opening price of a bar.
    Open,
    /// Highest price of a bar.
    High,
    /// Lowest price of a bar.
    Low,
    /// Closing price of a bar.
    Close,
    /// Natural logarithm of the close over the close one step before.
    Return,
    /// Anything else.
    #[default]
    Other,
}

impl Role {
    /// Whether this is one of the four prices of a bar, which share one scale.
    pub fn is_price(self) -> bool {
        matches!(self, Self::Open | Self::High | Self::Low | Self::Close)
    }
}

/// A named column of a series.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// Name, unique within its set.
    pub name: String,
    /// What it measures.
    pub role: Role,
}

impl Channel {
    /// A channel of this name and role.
    pub fn new(name: impl Into<String>, role: Role) -> Self {
        Self { name: name.into(), role }
    }
}

/// The part of the data that the files themselves assign a series to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The files do not say: split by time, or by series.
    #[default]
    Unassigned,
    /// From a training file.
    Train,
    /// From a test file: never trained on.
    Test,
}

/// Class labels of a series, as indices into [`SeriesSet::classes`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StepLabels {
    /// No labels.
    #[default]
    None,
    /// One label, or none, for each step.
    PerStep(Vec<Option<u32>>),
    /// One label for the series as a whole.
    Whole(u32),
}

/// Observations of one thing in the order of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Name, unique within its set.
    pub name: String,
    /// Microseconds since 1970-01-01 UTC, strictly increasing. Data without times has 0, 1, 2, ….
    pub time: Column<i64>,
    /// Values, `[time, channel]` in row-major order, all finite.
    pub values: SeriesValues,
    /// Class labels.
    pub labels: StepLabels,
    /// Runs of steps without a gap, in order, not overlapping. Windows lie within one of them.
    pub segments: Vec<Range<usize>>,
    /// The part that the files assign this series to.
    pub origin: Origin,
    /// Values that were put in where none was measured. Nothing that looks ahead is made of them: windows have no class by
    /// them, and they are no targets.
    pub filled: Filled,
    /// What it belongs to with others, such as the subject of several recordings. Series of one group are never divided among
    /// parts of a split that is by whole series.
    pub group: Option<Arc<str>>,
}

impl Series {
    /// An unlabelled series without gaps whose steps lie `interval` microseconds apart.
    ///
    /// # Shapes
    ///
    /// - `values`: `[time, channel]`, row-major; `channels` values a step.
    pub fn regular(
        name: impl Into<String>,
        start: i64,
        interval: i64,
        values: Vec<f64>,
        channels: usize,
    ) -> Self {
        let steps = values.len() / channels.max(1);
        Self {
            name: name.into(),
            time: (0..steps as i64).map(|step| start + step * interval).collect(),
            values: values.into(),
            labels: StepLabels::None,
            segments: std::iter::once(0..steps).collect(),
            origin: Origin::Unassigned,
            filled: Filled::default(),
            group: None,
        }
    }

    /// Number of steps.
    pub fn len(&self) -> usize {
        self.time.len()
    }

    /// Whether there is no step.
    pub fn is_empty(&self) -> bool {
        self.time.is_empty()
    }

    /// The classes that it has, each run of equal ones once.
    fn classes(&self) -> impl Iterator<Item = u32> {
        let (whole, steps) = match &self.labels {
            StepLabels::None => (None, &[][..]),
            StepLabels::Whole(label) => (Some(*label), &[][..]),
            StepLabels::PerStep(labels) => (None, &labels[..]),
        };
        let mut last = None;
        let steps = steps.iter().flatten().copied();
        whole.into_iter().chain(steps).filter(move |label| last.replace(*label) != Some(*label))
    }

    /// Whether it has a class, as a whole or in any step.
    pub fn is_labelled(&self) -> bool {
        self.classes().next().is_some()
    }

    /// How many steps are of each class; of a series that has one as a whole, all.
    pub fn class_counts(&self) -> BTreeMap<u32, u64> {
        let mut counts = BTreeMap::new();
        match &self.labels {
            StepLabels::None => {}
            StepLabels::Whole(label) => {
                counts.insert(*label, self.len() as u64);
            }
            // Labels persist: a run of equal ones is counted at once.
            StepLabels::PerStep(labels) => {
                for run in labels.chunk_by(|a, b| a == b) {
                    if let Some(label) = run[0] {
                        *counts.entry(label).or_default() += run.len() as u64;
                    }
                }
            }
        }
        counts
    }

    /// Its class, if it has one as a whole, or in nine of ten steps that have any.
    pub fn main_class(&self) -> Option<u32> {
        if let StepLabels::Whole(label) = self.labels {
            return Some(label);
        }
        let counts = self.class_counts();
        let all: u64 = counts.values().sum();
        let (class, most) =
            counts.into_iter().max_by_key(|(class, count)| (*count, Reverse(*class)))?;
        (most * 10 >= all * 9).then_some(class)
    }
}

/// Series that share their channels and classes.
#[derive(Clone, Debug, PartialEq)]
pub struct SeriesSet {
    channels: Vec<Channel>,
    classes: Vec<String>,
    series: Vec<Series>,
}

/// A set that breaks a promise which all later stages rely on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SeriesError {
    /// No channel.
    #[error("a set needs at least one channel")]
    NoChannel,
    /// Two channels of one name.
    #[error("two channels are named `{0}`")]
    DuplicateChannel(String),
    /// Two series of one name.
    #[error("two series are named `{0}`")]
    DuplicateSeries(String),
    /// The number of values is not steps × channels.
    #[error("series `{series}` has {found} values; {steps} steps of {channels} channels need {}", steps * channels)]
    Length {
        /// Name of the series.
        series: String,
        /// Values found.
        found: usize,
        /// Steps, from the times.
        steps: usize,
        /// Channels of the set.
        channels: usize,
    },
    /// Times that do not increase.
    #[error("series `{series}`: the time of step {step} is not after the one before it")]
    TimeOrder {
        /// Name of the series.
        series: String,
        /// Index of the later step.
        step: usize,
    },
    /// A value that is NaN or infinite.
    #[error("series `{series}`, step {step}, channel `{channel}`: {value} is not finite")]
    NotFinite {
        /// Name of the series.
        series: String,
        /// Index of the step.
        step: usize,
        /// Name of the channel.
        channel: String,
        /// The value.
        value: f64,
    },
    /// Segments that overlap, are empty, out of order or out of range.
    #[error("series `{series}`: segment {segment} is empty, out of order or out of range")]
    Segment {
        /// Name of the series.
        series: String,
        /// Index of the segment.
        segment: usize,
    },
    /// Values that were put in, of no step or channel.
    #[error(
        "series `{series}`: values that were put in do not lie in {steps} steps of {channels} channels"
    )]
    Filled {
        /// Name of the series.
        series: String,
        /// Steps of the series.
        steps: usize,
        /// Channels of the set.
        channels: usize,
    },
    /// A label that names no class, or labels of the wrong number.
    #[error("series `{series}`: labels do not fit {steps} steps and {classes} classes")]
    Label {
        /// Name of the series.
        series: String,
        /// Steps of the series.
        steps: usize,
        /// Classes of the set.
        classes: usize,
    },
}

impl SeriesSet {
    /// Checks that every series keeps the promises of [`Series`].
    ///
    /// # Errors
    ///
    /// The first promise found broken.
    pub fn new(
        channels: Vec<Channel>,
        classes: Vec<String>,
        series: Vec<Series>,
    ) -> Result<Self, SeriesError> {
        let set = Self::looked_at(channels, classes, series)?;
        set.series.iter().try_for_each(|series| check_contents(series, &set.channels))?;
        Ok(set)
    }

    /// The same for series whose times and values have been looked at by whoever made them: these are not read
    /// again. What breaks the promises of [`Series::time`] and [`Series::values`] stays unseen.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new), but for the order of times and values that are not finite.
    pub fn looked_at(
        channels: Vec<Channel>,
        classes: Vec<String>,
        series: Vec<Series>,
    ) -> Result<Self, SeriesError> {
        if channels.is_empty() {
            return Err(SeriesError::NoChannel);
        }
        if let Some(name) = duplicate(channels.iter().map(|channel| &channel.name)) {
            return Err(SeriesError::DuplicateChannel(name.clone()));
        }
        if let Some(name) = duplicate(series.iter().map(|series| &series.name)) {
            return Err(SeriesError::DuplicateSeries(name.clone()));
        }
        let (width, labels) = (channels.len(), classes.len());
        series.iter().try_for_each(|series| check_shape(series, width, labels))?;
        Ok(Self { channels, classes, series })
    }

    /// Channels, in the order of the values of a step.
    pub fn channels(&self) -> &[Channel] {
        &self.channels
    }

    /// Class names; labels are indices into them.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// All series.
    pub fn series(&self) -> &[Series] {
        &self.series
    }

    /// Whether every value that was read so far was there: values may lie in a mapped file.
    ///
    /// # Errors
    ///
    /// What was lost, as a sentence for the user.
    pub fn check_read(&self) -> Result<(), String> {
        self.check_series(0..self.series.len())
    }

    /// The same of some series, by their indices.
    ///
    /// # Errors
    ///
    /// As for [`check_read`](Self::check_read).
    ///
    /// # Panics
    ///
    /// When there is no series of an index.
    pub fn check_series(&self, series: impl IntoIterator<Item = usize>) -> Result<(), String> {
        // Many series are parts of one file, which is asked once.
        let mut asked: Option<&Series> = None;
        let series = series.into_iter().map(|index| &self.series[index]);
        for series in series.filter(|series| series.values.is_elsewhere()) {
            if asked.is_none_or(|asked| !asked.values.is_beside(&series.values)) {
                series.values.check()?;
                series.time.check()?;
                asked = Some(series);
            }
        }
        Ok(())
    }

    /// Bytes that the values of all series take in mapped files; those in memory are not counted.
    pub fn bytes_elsewhere(&self) -> u64 {
        self.series.iter().map(|series| series.values.bytes_elsewhere()).sum()
    }

    /// Steps of all series together.
    pub fn steps(&self) -> usize {
        self.series.iter().map(Series::len).sum()
    }

    /// The same series with some of their channels, in this order.
    ///
    /// # Errors
    ///
    /// Without a channel, and with one named twice.
    ///
    /// # Panics
    ///
    /// When an index is not below the number of channels.
    pub fn select(&self, channels: &[usize]) -> Result<Self, SeriesError> {
        let all = self.channels.len();
        if channels.iter().copied().eq(0..all) {
            return Ok(self.clone());
        }
        let select = |series: &Series| {
            let mut values = Vec::with_capacity(series.len() * channels.len());
            series.values.rows(0..series.values.len(), all, |rows| {
                let steps = rows.chunks_exact(all);
                values.extend(steps.flat_map(|step| channels.iter().map(|at| step[*at])));
            });
            let filled = series.filled.select(channels);
            Series { values: values.into(), filled, ..series.clone() }
        };
        let chosen = channels.iter().map(|channel| self.channels[*channel].clone()).collect();
        Self::new(chosen, self.classes.clone(), self.series.iter().map(select).collect())
    }

    /// The same series, each in the group that it has by its name, those of a group one after the other: in the order of the
    /// first of each.
    #[must_use]
    pub fn grouped(mut self, groups: &HashMap<String, Arc<str>>) -> Self {
        for series in &mut self.series {
            series.group = groups.get(&series.name).cloned();
        }
        let units = self.units();
        let mut order: Vec<usize> = (0..units.len()).collect();
        order.sort_by_key(|index| units[*index]);
        let mut all: Vec<Option<Series>> = self.series.into_iter().map(Some).collect();
        self.series = order.into_iter().filter_map(|index| all[index].take()).collect();
        self
    }

    /// Of each series the first of its group, by their indices; its own without a group.
    pub fn units(&self) -> Vec<usize> {
        let mut firsts = HashMap::<&Arc<str>, usize>::new();
        let all = self.series.iter().enumerate();
        all.map(|(index, series)| match &series.group {
            Some(group) => *firsts.entry(group).or_insert(index),
            None => index,
        })
        .collect()
    }

    /// Groups that series belong to.
    pub fn groups(&self) -> usize {
        let groups: HashSet<&Arc<str>> =
            self.series.iter().filter_map(|series| series.group.as_ref()).collect();
        groups.len()
    }

    /// The channel of this name.
    pub fn channel(&self, name: &str) -> Option<usize> {
        self.channels.iter().position(|channel| channel.name == name)
    }

    /// Index of the channel of this role.
    pub fn role(&self, role: Role) -> Option<usize> {
        self.channels.iter().position(|channel| channel.role == role)
    }
}

fn duplicate<'a>(names: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    let mut seen = std::collections::HashSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

/// Checks what can be told without reading times or values.
fn check_shape(series: &Series, width: usize, classes: usize) -> Result<(), SeriesError> {
    let (name, steps) = (&series.name, series.len());
    if series.values.len() != steps * width {
        return Err(SeriesError::Length {
            series: name.clone(),
            found: series.values.len(),
            steps,
            channels: width,
        });
    }
    let mut end = 0;
    for (index, segment) in series.segments.iter().enumerate() {
        if segment.start < end || segment.is_empty() || segment.end > steps {
            return Err(SeriesError::Segment { series: name.clone(), segment: index });
        }
        end = segment.end;
    }
    if !series.filled.fits(steps, width) {
        return Err(SeriesError::Filled { series: name.clone(), steps, channels: width });
    }
    let fits = match &series.labels {
        StepLabels::None => true,
        StepLabels::Whole(label) => (*label as usize) < classes,
        StepLabels::PerStep(labels) => {
            labels.len() == steps
                && labels.iter().flatten().all(|label| (*label as usize) < classes)
        }
    };
    if fits { Ok(()) } else { Err(SeriesError::Label { series: name.clone(), steps, classes }) }
}

/// Checks times and values.
fn check_contents(series: &Series, channels: &[Channel]) -> Result<(), SeriesError> {
    let name = &series.name;
    if let Some(step) = series.time.windows(2).position(|pair| pair[0] >= pair[1]) {
        return Err(SeriesError::TimeOrder { series: name.clone(), step: step + 1 });
    }
    let mut looked_at = 0;
    let mut found = None;
    series.values.rows(0..series.values.len(), channels.len(), |values| {
        let bad = || values.iter().position(|value| !value.is_finite());
        found = found.or_else(|| Some(looked_at + bad()?));
        looked_at += values.len();
    });
    if let Some(index) = found {
        return Err(SeriesError::NotFinite {
            series: name.clone(),
            step: index / channels.len(),
            channel: channels[index % channels.len()].name.clone(),
            value: series.values.at(index),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(edit: impl FnOnce(&mut Series)) -> Result<SeriesSet, SeriesError> {
        let mut series = Series::regular("a", 0, 1, vec![1.0, 2.0, 3.0, 4.0], 2);
        edit(&mut series);
        let channels = vec![Channel::new("x", Role::Other), Channel::new("y", Role::Other)];
        SeriesSet::new(channels, vec!["up".into()], vec![series])
    }

    #[test]
    fn channels_are_selected_in_the_order_asked_for() {
        let both = set(|s| s.filled.add(1, 0..1)).unwrap();
        let turned = both.select(&[1, 0]).unwrap();
        assert_eq!(turned.series()[0].values, [2.0, 1.0, 4.0, 3.0]);
        assert!(turned.series()[0].filled.holds(0, 0) && turned.series()[0].filled.count(1) == 0);
        assert_eq!((turned.channel("y"), turned.channel("z")), (Some(0), None));
        assert_eq!(both.select(&[1]).unwrap().series()[0].values, [2.0, 4.0]);
        assert_eq!(both.select(&[]).unwrap_err(), SeriesError::NoChannel);
        assert!(both.select(&[0, 0]).is_err());
    }

    #[test]
    fn every_broken_promise_is_found() {
        assert!(set(|_| ()).is_ok());
        let message = |edit: fn(&mut Series)| set(edit).unwrap_err().to_string();
        assert!(message(|s| s.time[1] = 0).contains("step 1"));
        assert!(message(|s| s.values.make_mut()[3] = f64::NAN).contains("step 1, channel `y`"));
        assert!(message(|s| s.values = vec![1.0; 3].into()).contains("need 4"));
        assert!(message(|s| s.segments = vec![0..1, 0..2]).contains("segment 1"));
        assert!(message(|s| s.segments[0].end = 3).contains("segment 0"));
        assert!(message(|s| s.filled.add(2, 0..1)).contains("2 steps of 2 channels"));
        assert!(message(|s| s.labels = StepLabels::Whole(1)).contains("1 classes"));
        assert!(message(|s| s.labels = StepLabels::PerStep(vec![None])).contains("2 steps"));
    }
}
