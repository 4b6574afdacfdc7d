//! What the user declares about the data: the `[data]` table of a pipeline file.
//!
//! Nothing here opens a file. Defaults are recorded with the result (see
//! [`Checks`](crate::Checks)), so that a report shows what was resolved.

use std::fmt;
use std::path::{Path, PathBuf};

use firebox_core::Role;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use crate::{Interval, Timeframes};

/// Where the data lies, what its columns mean, and what is done about its defects.
///
/// # Example
///
/// ```
/// let config: firebox_data::DataConfig = toml::from_str(r#"
///     path = "bars/es_1min.csv"
///     interval = "1min"
///     columns = { series = "symbol", channels = ["open", "high", "low", "close"] }
///     checks = { gaps = "split" }
/// "#)?;
/// assert_eq!(config.columns.series.as_deref(), Some("symbol"));
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// A file, a folder (of which all files of one format are read, in the order of their names; or what
    /// `firebox data convert` has made), or a list of files and folders.
    pub path: Paths,
    /// The same for a test set that the data's publisher has set apart. Its series are never
    /// trained on, and those of `path` become training series: the split is `given`, and a split by
    /// time or by series beside it is refused. No file may be in both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<Paths>,
    /// Format of the files.
    pub format: Format,
    /// Time between two steps, such as `"1min"`; a longer one is a gap. By default the most
    /// frequent difference between consecutive times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
    /// What the columns mean.
    pub columns: Columns,
    /// Where no column names the group of each series: a regular expression that is looked for in the name of each, in the
    /// syntax of the crate `regex`. What its first group in parentheses holds, or all that it matches, names the group, which
    /// stays in one part of the split. It has to be found in every name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_pattern: Option<String>,
    /// How CSV files are written.
    pub csv: Csv,
    /// What is done about each kind of defect.
    pub checks: CheckPolicies,
    /// Makes bars of a longer timeframe, with features from several; by default the columns are
    /// taken as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeframes: Option<Timeframes>,
}

impl DataConfig {
    /// The data at `path`, everything else by default.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: Paths(vec![path.into()]), ..Self::default() }
    }

    /// All paths, those of the test set behind the others.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.path.0.iter().chain(self.test.iter().flat_map(|test| &test.0))
    }

    /// Whether series have groups, which stay in one part of a split that draws whole series.
    pub fn is_grouped(&self) -> bool {
        self.columns.group.is_some() || self.group_pattern.is_some()
    }

    /// Takes relative paths to be relative to `folder` instead of the working directory. URLs stay as they
    /// are.
    pub fn resolve(&mut self, folder: &Path) {
        let paths = self.path.0.iter_mut().chain(self.test.iter_mut().flat_map(|test| &mut test.0));
        let files = paths.filter(|path| !path.to_str().is_some_and(|text| text.contains("://")));
        files.for_each(|path| *path = folder.join(&*path));
    }
}

/// Format of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// By the file's extension: `.csv`, `.tsv`, `.parquet`, `.pq`, `.arrow`, `.feather`, `.ipc`,
    /// `.npy`, `.ts`, `.market.toml`, `.demand.toml` or `.clips.toml`; and folders of converted samples.
    #[default]
    Auto,
    /// Text with a header line.
    Csv,
    /// Apache Parquet.
    Parquet,
    /// Arrow IPC files, also named Feather version 2.
    Arrow,
    /// NumPy arrays: `[time]`, `[time, channel]` or `[sample, time, channel]`.
    Npy,
    /// The text format of the UCR and UEA archives.
    Ts,
    /// Settings of a generated market: see [`MarketConfig`](crate::MarketConfig).
    Market,
    /// Settings of generated demand: see [`DemandConfig`](crate::DemandConfig).
    Demand,
    /// Settings of generated clips: see [`ClipsConfig`](crate::ClipsConfig).
    Clips,
    /// A folder that `firebox data convert` has made of arrays.
    Samples,
}

impl Format {
    /// The format that a file name announces.
    pub fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        if name.ends_with(".market.toml") {
            return Some(Self::Market);
        }
        if name.ends_with(".demand.toml") {
            return Some(Self::Demand);
        }
        if name.ends_with(".clips.toml") {
            return Some(Self::Clips);
        }
        match name.rsplit_once('.')?.1 {
            "csv" | "tsv" => Some(Self::Csv),
            "parquet" | "pq" => Some(Self::Parquet),
            "arrow" | "feather" | "ipc" => Some(Self::Arrow),
            "npy" => Some(Self::Npy),
            "ts" => Some(Self::Ts),
            _ => None,
        }
    }

    /// The format of a file that [`files`](crate::files()) lists: converted samples are listed by their manifest.
    pub fn of_listed(path: &Path) -> Option<Self> {
        let is_manifest = path.file_name().is_some_and(|name| name == crate::converted::MANIFEST);
        if is_manifest { Some(Self::Samples) } else { Self::of(path) }
    }

    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Csv => "csv",
            Self::Parquet => "parquet",
            Self::Arrow => "arrow",
            Self::Npy => "npy",
            Self::Ts => "ts",
            Self::Market => "market",
            Self::Demand => "demand",
            Self::Clips => "clips",
            Self::Samples => "samples",
        }
    }
}

/// What the columns of the files mean.
///
/// For CSV, Parquet and Arrow, names are those of the file. `.npy` and `.ts` files have no names:
/// there `channels` gives them, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Columns {
    /// Column of the time of each row. By default the column named `time`, `timestamp`,
    /// `datetime`, `ts` or `date` in any case, by the first of these words that names one; without one, rows are numbered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// How times are written. Dates without separators (20240101, 202401010930) are told: they are no numbers since 1970.
    pub time_unit: TimeUnit,
    /// IANA name of the zone of times that are written without one, such as `America/New_York`.
    /// By default UTC. A moment that clocks show twice is told by the rows before it, of the same
    /// series: the first in the direction of their times that lies behind the last of them, or the other one where that
    /// alone lies one step behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// Column that names the series of each row. By default the column named `series`, `symbol`,
    /// `ticker` or `instrument` in any case, by the first of these words that names one; without one, each file is a series.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<String>,
    /// Column that names what each series belongs to with others, such as the subject of several recordings: all rows of a
    /// series have one, and series of one group stay in one part of a split that draws whole series. A number is the same
    /// however it is written (`7`, `7.0`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Columns to learn from. By default `open`, `high`, `low` and `close` in any case where all
    /// four are there, else all columns that are not the time, series, group or label, nor the numbers of rows that pandas
    /// writes (without a name, `Unnamed: 0` or `__index_level_0__`).
    #[serde(deserialize_with = "at_least_one", skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<ChannelColumn>,
    /// Column of the class of each row; a row whose field is empty or NaN has none. For `.npy` data, the middle part of the name of a second
    /// file: with `label = "y"`, the labels of `bars.npy` lie in `bars.y.npy`. `.ts` files have
    /// their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// A column to learn from: its name alone, or with its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelColumn {
    /// Name of the column.
    pub name: String,
    /// What it measures; by default told from the names `open`, `high`, `low` and `close`.
    pub role: Option<Role>,
}

impl ChannelColumn {
    /// The declared role, or the one that the name tells.
    pub fn role(&self) -> Role {
        self.role.unwrap_or_else(|| role_of(&self.name))
    }
}

impl From<&str> for ChannelColumn {
    fn from(name: &str) -> Self {
        Self { name: name.to_owned(), role: None }
    }
}

/// The role that a column's name tells.
pub(crate) fn role_of(name: &str) -> Role {
    let is = |word: &str| name.eq_ignore_ascii_case(word);
    match name {
        _ if is("open") => Role::Open,
        _ if is("high") => Role::High,
        _ if is("low") => Role::Low,
        _ if is("close") => Role::Close,
        _ => Role::Other,
    }
}

/// How times are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeUnit {
    /// ISO 8601 text with or without a zone, or a column that is typed as a date or time.
    #[default]
    Auto,
    /// Seconds since 1970-01-01 UTC; fractions are allowed.
    S,
    /// Milliseconds since 1970-01-01 UTC.
    Ms,
    /// Microseconds since 1970-01-01 UTC.
    Us,
    /// Nanoseconds since 1970-01-01 UTC, cut to microseconds.
    Ns,
}

/// How CSV files are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Csv {
    /// The character between two fields; `.tsv` files have a tab whatever is set here.
    pub separator: char,
    /// Texts that stand for a missing value, besides an empty field and `NaN`, as they are written there. What no cell is
    /// is told.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Whether numbers are written with a decimal comma, as `1,5`. A point is a decimal one too, and thousands are
    /// not separated.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub decimal_comma: bool,
}

impl Default for Csv {
    fn default() -> Self {
        Self { separator: ',', missing: Vec::new(), decimal_comma: false }
    }
}

/// What is done about each kind of defect. Whatever is done is counted in
/// [`Checks`](crate::Checks).
///
/// They are looked for in this order: unsorted, duplicates, crowded, not-finite, ohlc, gaps, constant. A series whose own
/// steps are of another length than the interval is refused, unless they are shorter and `crowded` keeps them, or some
/// intervals long and `gaps` fills them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckPolicies {
    /// Times before an earlier row's. `drop` leaves those rows out, `fill` sorts (rows of equal
    /// time keep their order).
    pub unsorted: Policy,
    /// Rows of equal time in one series. `drop` keeps the first of them, `fill` the last.
    pub duplicates: Policy,
    /// Values that are missing, NaN, infinite or too large for f32. `drop` leaves the row out and cuts the series
    /// there, so that no window spans the place; `fill` repeats the channel's last value in the
    /// same series, and drops rows before the first one, and those behind a gap that is not filled. Prices that are put in
    /// stay within the high and low of their bar, and a high or low reaches as far as the other prices.
    pub not_finite: Policy,
    /// Bars whose high is below, or whose low is above, their open or close (or, without those,
    /// each other). `drop` leaves the bar out and cuts the series there, `fill` raises the high and
    /// lowers the low.
    pub ohlc: Policy,
    /// Consecutive times less than half an interval apart, such as rows of another rate: a window of so many steps
    /// would span less time there.
    pub crowded: CrowdedPolicy,
    /// Consecutive times more than one and a half intervals apart. Of bars of trading days each weekend is one, and a split
    /// leaves runs of five: without the column of times in the files, rows are numbered, one step each.
    pub gaps: GapPolicy,
    /// The longest run that `fill` fills, in steps: a longer gap is cut as by `split`, a longer
    /// run of missing values is dropped. Whether there is a window in a hole depends by that on where the hole ends,
    /// the values in it on what comes before alone.
    pub longest_fill: usize,
    /// Channels that have one value over all steps of all series. `drop` leaves out those without any value, too.
    pub constant: ConstantPolicy,
}

impl CheckPolicies {
    /// Whether values are put in where none was measured.
    pub(crate) fn fills(&self) -> bool {
        self.not_finite == Policy::Fill || self.ohlc == Policy::Fill || self.gaps == GapPolicy::Fill
    }
}

impl Default for CheckPolicies {
    fn default() -> Self {
        Self {
            unsorted: Policy::Error,
            duplicates: Policy::Error,
            not_finite: Policy::Error,
            ohlc: Policy::Error,
            crowded: CrowdedPolicy::Error,
            gaps: GapPolicy::Error,
            longest_fill: 10,
            constant: ConstantPolicy::Error,
        }
    }
}

/// What is done about defective rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The data is refused.
    #[default]
    Error,
    /// They are left out.
    Drop,
    /// They are repaired.
    Fill,
}

/// What is done about rows that follow too soon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CrowdedPolicy {
    /// The data is refused.
    #[default]
    Error,
    /// Those rows are left out, and after one of them all until nine tenths of an interval have passed since the last that
    /// was kept, and no more is lacking of a whole one than half of what lies between the row and the one before it,
    /// which was left out. Later rows decide nothing.
    Drop,
    /// They are kept, each as one step, and so are the rows of a series whose own steps are shorter than the interval.
    Keep,
}

/// What is done about gaps in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GapPolicy {
    /// The data is refused.
    #[default]
    Error,
    /// The series is cut there: no window spans a gap.
    Split,
    /// The missing steps are put in, with the last close as all four prices and the last value of
    /// every other channel; they have no label.
    Fill,
}

/// What is done about constant channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConstantPolicy {
    /// The data is refused.
    #[default]
    Error,
    /// The channel is left out.
    Drop,
    /// The channel is kept.
    Keep,
}

/// One or several paths: text, or a list of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths(pub Vec<PathBuf>);

impl Serialize for Paths {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [path] => path.serialize(serializer),
            paths => paths.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Paths {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PathsVisitor;
        impl<'de> Visitor<'de> for PathsVisitor {
            type Value = Paths;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path or a list of paths")
            }

            fn visit_str<E: de::Error>(self, path: &str) -> Result<Paths, E> {
                Ok(Paths(vec![path.into()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Paths, A::Error> {
                let mut paths = Vec::new();
                while let Some(path) = seq.next_element::<PathBuf>()? {
                    paths.push(path);
                }
                Ok(Paths(paths))
            }
        }
        deserializer.deserialize_any(PathsVisitor)
    }
}

/// An empty list would be taken for none.
fn at_least_one<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ChannelColumn>, D::Error> {
    let channels = Vec::<ChannelColumn>::deserialize(from)?;
    match channels.is_empty() {
        true => Err(de::Error::invalid_length(
            0,
            &"at least one column (without this key, the default)",
        )),
        false => Ok(channels),
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NameAndRole {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    role: Option<Role>,
}

impl Serialize for ChannelColumn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.role {
            None => self.name.serialize(serializer),
            role => NameAndRole { name: self.name.clone(), role }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ChannelColumn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ChannelVisitor;
        impl<'de> Visitor<'de> for ChannelVisitor {
            type Value = ChannelColumn;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a column name, or a table with `name` and `role`")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<ChannelColumn, E> {
                Ok(name.into())
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<ChannelColumn, A::Error> {
                let map = de::value::MapAccessDeserializer::new(map);
                let NameAndRole { name, role } = NameAndRole::deserialize(map)?;
                Ok(ChannelColumn { name, role })
            }
        }
        deserializer.deserialize_any(ChannelVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_round_trips() {
        let text = r#"
            path = ["a.csv", "b"]
            test = "c.csv"
            format = "csv"
            interval = "90s"
            columns = { time = "t", time_unit = "ms", time_zone = "Europe/Zurich", series = "s", channels = ["open", { name = "x", role = "close" }], label = "y" }
            csv = { separator = ";", missing = ["NA"] }
            [checks]
            unsorted = "fill"
            duplicates = "drop"
            not_finite = "fill"
            ohlc = "fill"
            gaps = "split"
            longest_fill = 3
            constant = "keep"
        "#;
        let config: DataConfig = toml::from_str(text).unwrap();
        assert_eq!(config.path.0.len(), 2);
        assert_eq!(config.columns.channels[0].role(), Role::Open);
        assert_eq!(config.columns.channels[1].role(), Role::Close);
        assert_eq!(config.checks.not_finite, Policy::Fill);
        let written = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<DataConfig>(&written).unwrap(), config, "{written}");
        let default = toml::to_string(&DataConfig::default()).unwrap();
        assert_eq!(toml::from_str::<DataConfig>(&default).unwrap(), DataConfig::default());
    }

    #[test]
    fn unknown_keys_and_words_are_refused() {
        let message = |text| toml::from_str::<DataConfig>(text).unwrap_err().to_string();
        assert!(message("pth = 'a'").contains("unknown field `pth`"));
        assert!(message("path = 3").contains("a path or a list of paths"));
        assert!(message("columns = { chanels = [] }").contains("chanels"));
        assert!(message("columns = { channels = [] }").contains("at least one column"));
        assert!(message("columns = { channels = [{ nme = 'x' }] }").contains("nme"));
        assert!(message("checks = { gaps = 'drop' }").contains("drop"));
        assert!(message("interval = '-1min'").contains("longer than zero"));
    }
}
