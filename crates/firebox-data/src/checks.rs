//! What was found in the data and what was done about it, as plain values for the report.

use std::fmt;

use firebox_core::Channel;
use serde::{Deserialize, Serialize};

use crate::{Interval, TimeframeChecks, time};

/// What ingestion found: how the columns were understood, and every defect counted by series and
/// channel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Checks {
    /// Rows read from all files.
    pub rows: u64,
    /// Steps kept, with those put in.
    pub steps: u64,
    /// Number of series.
    pub series: u64,
    /// Runs of steps without a gap.
    pub segments: u64,
    /// Column of the times; none when rows are numbered.
    pub time_column: Option<String>,
    /// Column that names the series; none when each file is a series.
    pub series_column: Option<String>,
    /// Column of the labels.
    pub label_column: Option<String>,
    /// Without one, a column whose name is usual for labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_like: Option<String>,
    /// Declared texts for missing values that no cell of the files is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_nowhere: Vec<String>,
    /// Channels, without those dropped for being constant.
    pub channels: Vec<Channel>,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// Time between two steps, for data with times.
    pub interval: Option<Interval>,
    /// What the making of timeframes found, where there are any: steps, segments, channels and
    /// interval above are those of the bars that they are made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeframes: Option<TimeframeChecks>,
    /// Whether the interval is declared; else it is the most frequent one.
    pub interval_declared: bool,
    /// First and last time, microseconds since 1970-01-01 UTC, for data with times.
    pub span: Option<[i64; 2]>,
    /// Each kind of defect that was found, over all series. Empty for clean data.
    pub findings: Vec<Finding>,
    /// The series that have defects.
    pub by_series: Vec<SeriesChecks>,
}

impl Checks {
    /// Names of the channels that were left out because they never change, or have no value.
    pub fn left_out(&self) -> impl Iterator<Item = &str> {
        let is_left_out =
            |found: &&Finding| found.defect == Defect::Constant && found.action == Action::Dropped;
        self.findings.iter().filter(is_left_out).filter_map(|found| found.channel.as_deref())
    }
}

/// The defects of one series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SeriesChecks {
    /// Its name.
    pub series: String,
    /// Rows read.
    pub rows: u64,
    /// Steps kept, with those put in.
    pub steps: u64,
    /// Runs of steps without a gap.
    pub segments: u64,
    /// Rows whose time lies before an earlier row's.
    pub unsorted: u64,
    /// Rows whose time another row has.
    pub duplicates: u64,
    /// Rows less than half an interval after the one before.
    #[serde(default)]
    pub crowded: u64,
    /// Gaps in time.
    pub gaps: u64,
    /// Steps that the gaps lack, in intervals.
    pub gap_steps: u64,
    /// The longest gap, in microseconds.
    pub longest_gap: i64,
    /// Steps that count as one, and are off the interval by more than a tenth of it.
    #[serde(default)]
    pub uneven: u64,
    /// By how much the farthest of them is off, in microseconds.
    #[serde(default)]
    pub most_uneven: i64,
    /// Steps put in.
    pub steps_filled: u64,
    /// Rows left out.
    pub rows_dropped: u64,
    /// The channels that have defects.
    pub channels: Vec<ChannelChecks>,
}

/// The defects of one channel of one series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChannelChecks {
    /// Its name.
    pub channel: String,
    /// Values that are missing or NaN.
    pub missing: u64,
    /// Values that are infinite.
    pub infinite: u64,
    /// Highs below, or lows above, another price of their bar.
    pub ohlc: u64,
    /// Values put in or repaired.
    pub filled: u64,
    /// Whether it has one value over the whole series.
    pub constant: bool,
}

impl ChannelChecks {
    /// Whether there is nothing to report.
    pub(crate) fn is_clean(&self) -> bool {
        self.missing + self.infinite + self.ohlc == 0 && !self.constant
    }
}

impl SeriesChecks {
    /// Whether there is nothing to report.
    pub(crate) fn is_clean(&self) -> bool {
        let Self { unsorted, duplicates, crowded, gaps, uneven, .. } = self;
        unsorted + duplicates + crowded + gaps + uneven == 0 && self.channels.is_empty()
    }
}

/// Kinds of defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Defect {
    /// Times before an earlier row's.
    Unsorted,
    /// Rows of equal time.
    Duplicates,
    /// Rows less than half an interval after the one before.
    Crowded,
    /// Values that are missing, NaN or too large for f32.
    NotFinite,
    /// Highs or lows inside their bar.
    Ohlc,
    /// Gaps in time.
    Gaps,
    /// Steps off the interval by more than a tenth of it, and by less than half.
    Uneven,
    /// Channels of one value.
    Constant,
}

/// What was done about a defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The data is refused.
    Refused,
    /// The rows, or the channel, were left out.
    Dropped,
    /// They were repaired.
    Filled,
    /// The series were cut there.
    Split,
    /// The channel was kept.
    Kept,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "refused",
            Self::Dropped => "dropped",
            Self::Filled => "filled",
            Self::Split => "split",
            Self::Kept => "kept",
        })
    }
}

/// One kind of defect over all series; for defects of values, in one channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Its kind.
    pub defect: Defect,
    /// The channel, for defects of values.
    pub channel: Option<String>,
    /// How many.
    pub count: u64,
    /// Number of series that have it.
    pub series: u64,
    /// What was done.
    pub action: Action,
    /// Further figures, and where the first one is.
    pub detail: String,
}

impl Finding {
    /// The setting that allows it.
    pub fn way_out(&self) -> &'static str {
        match self.defect {
            Defect::Unsorted => {
                "set `data.checks.unsorted` to \"fill\" to sort the rows, or to \"drop\" to leave those out"
            }
            Defect::Duplicates => {
                "set `data.checks.duplicates` to \"drop\" to keep the first row of each time, or to \"fill\" to keep the last"
            }
            Defect::Crowded => {
                "set `data.interval` to the steps between rows, train on data of one rate alone, or set `data.checks.crowded` to \"drop\" to leave those rows out, or to \"keep\" to take each as a step"
            }
            Defect::NotFinite => {
                "set `data.checks.not_finite` to \"drop\" to cut the series there, or to \"fill\" to repeat the last value"
            }
            Defect::Ohlc => {
                "set `data.checks.ohlc` to \"drop\" to leave those bars out, or to \"fill\" to widen their range"
            }
            Defect::Gaps => {
                "set `data.checks.gaps` to \"split\" to cut the series there (usual for market data, where that leaves runs as long as a window), or to \"fill\""
            }
            Defect::Uneven => "put the rows on steps of one length if they should be even",
            Defect::Constant => "set `data.checks.constant` to \"drop\" or \"keep\"",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, .. } = self;
        let words = |one: &'static str, many: &'static str| if *count == 1 { one } else { many };
        let channel = self.channel.as_deref().unwrap_or_default();
        match self.defect {
            Defect::Unsorted => {
                write!(f, "{count} {} not in the order of time", words("row is", "rows are"))?;
            }
            Defect::Duplicates => {
                write!(f, "{count} {} the time of another", words("row has", "rows have"))?;
            }
            Defect::Crowded => {
                let rows = words("row follows", "rows follow");
                write!(f, "{count} {rows} less than half an interval after another")?;
            }
            Defect::NotFinite => {
                let values = words("value", "values");
                write!(
                    f,
                    "channel `{channel}`: {count} {values} missing, NaN or too large for f32"
                )?;
            }
            Defect::Ohlc => {
                let bars = words("bar whose", "bars whose");
                write!(f, "channel `{channel}`: {count} {bars} {channel} lies inside the bar")?;
            }
            Defect::Gaps => write!(f, "{count} {} in time", words("gap", "gaps"))?,
            Defect::Uneven => {
                let steps = words("step is", "steps are");
                write!(f, "{count} {steps} off the interval by more than a tenth of it")?;
            }
            Defect::Constant => write!(f, "channel `{channel}` is constant")?,
        }
        if self.series > 1 {
            write!(f, " in {} series", self.series)?;
        }
        write!(f, " ({})", self.detail)
    }
}

/// A length of time for people: in the largest unit that it has at least two of.
pub(crate) fn duration(microseconds: i64) -> String {
    let units = [("days", 86_400e6), ("hours", 3_600e6), ("minutes", 60e6), ("seconds", 1e6)];
    let length = microseconds as f64;
    match units.into_iter().find(|(_, unit)| length >= 2.0 * unit) {
        Some((name, unit)) => format!("{:.1} {name}", length / unit),
        None => format!("{} ms", length / 1e3),
    }
}

/// A moment for people, if the data has times.
pub(crate) fn moment(time: Option<i64>) -> String {
    time.map(|time| format!(", {}", time::format(time))).unwrap_or_default()
}
