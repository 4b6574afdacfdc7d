//! What can be wrong with data, in words that name the place and the way out.

mod io;
mod message;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use firebox_core::count;

pub(crate) use message::{List, nearest};

use io::Room;
use message::{Findings, Hint, LeaveOut, Quoted, Shell, named_by};

use crate::{Finding, Format};

/// Data that cannot be used as declared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// No path.
    #[error("no data is named: set `data.path` to a file or a folder")]
    NoPath,
    /// A path that does not exist.
    #[error("{} does not exist{}", path.display(), Hint::new("did you mean", nearest))]
    NotFound {
        /// The path.
        path: PathBuf,
        /// A file of a similar name in the same folder.
        nearest: Option<String>,
    },
    /// A file or folder that cannot be read or written.
    #[error("cannot {action} {}{}", path.display(), Room(source))]
    Io {
        /// What was tried.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A disk with less room than what is about to be written takes.
    #[error(
        "{} takes {bytes} bytes for {what}, and its disk has {free} free\n  free some space, or name a cache on another disk (`run.cache`)",
        path.display()
    )]
    NoRoom {
        /// The folder.
        path: PathBuf,
        /// What is about to be written.
        what: &'static str,
        /// Bytes that it takes.
        bytes: u64,
        /// Bytes that the disk has.
        free: u64,
    },
    /// A file that another program changed, replaced or removed meanwhile.
    #[error(
        "{} was changed while it was read, and nothing of it is kept: run again when it is complete, or name a copy of it",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A folder without a file of a known format.
    #[error("the folder {} has no {wanted} file (folders inside it are not searched)", path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
        /// Extensions looked for.
        wanted: &'static str,
    },
    /// A folder whose files lie in folders inside it.
    #[error(
        "the folder {} holds files of data only in folders inside it, which are not searched: name these in a list, `data.path = [{}]`\n  classes are read from a column of the files, which `data.columns.label` names, and not from the names of folders",
        folder.display(), Quoted(inside)
    )]
    DataInFolders {
        /// The folder.
        folder: PathBuf,
        /// Those inside it that hold data.
        inside: Vec<PathBuf>,
    },
    /// Whoever wanted the data wants them no more.
    #[error("it was asked to stop, and nothing of the data is kept")]
    Stopped,
    /// A folder whose folders hold arrays.
    #[error(
        "the folder {path} has no file of data, but folders of .npy arrays: `firebox data convert {shell} SAMPLES` makes them samples whose classes are the folders; then name SAMPLES in `data.path`",
        path = folder.display(), shell = Shell(folder)
    )]
    ClassFolders {
        /// The folder.
        folder: PathBuf,
    },
    /// A folder that `firebox data convert` has not completed.
    #[error("the folder {path} holds no converted samples, or not all: `firebox data convert ARRAYS {shell}` makes them, and goes on where it stopped", path = folder.display(), shell = Shell(folder))]
    NotConverted {
        /// The folder.
        folder: PathBuf,
    },
    /// A folder without an array, nor one in the folders right inside it.
    #[error(
        "the folder {} has no .npy file, nor have the folders right inside it: .npy files alone are converted; others are read as they are, by `data.path`",
        path.display()
    )]
    NoArray {
        /// The folder.
        path: PathBuf,
    },
    /// Arrays deeper than folders of classes.
    #[error(
        "{} lies in a folder of a class, and would be left out: arrays lie in the folder that is named, or right inside its folders, which are the classes\n  move them up, or name the folder of the class",
        path.display()
    )]
    NestedFolder {
        /// The folder.
        path: PathBuf,
    },
    /// Files of two formats.
    #[error(
        "{} is {}, but {} is {}: set `data.format` to read only one of them",
        first.0.display(), first.1.name(), second.0.display(), second.1.name()
    )]
    MixedFormats {
        /// A file and its format.
        first: (PathBuf, Format),
        /// A file of another format.
        second: (PathBuf, Format),
    },
    /// A file that is named twice.
    #[error(
        "{} and {} are one file: name it once in `data.path`",
        first.display(), second.display()
    )]
    SamePath {
        /// The file.
        first: PathBuf,
        /// The same file.
        second: PathBuf,
    },
    /// A file that is both trained and tested on.
    #[error(
        "the training file {} and the test file {} have the same content: a test on what was trained on measures nothing; correct `data.path` or `data.test`",
        train.display(), test.display()
    )]
    TestIsTrain {
        /// The training file.
        train: PathBuf,
        /// The test file.
        test: PathBuf,
    },
    /// A pipe, a socket or a device.
    #[error(
        "{} is no regular file, but a pipe, a socket or a device, and data are read more than once: write them to a file first",
        path.display()
    )]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A link whose target is gone.
    #[error("{} is a link that leads nowhere: remove it, or put its target back", path.display())]
    DeadLink {
        /// The link.
        path: PathBuf,
    },
    /// A file that would be read as series and looks like the labels of another.
    #[error(
        "{} looks like the labels of {}: set `data.columns.label` to \"{label}\" to read it as such, or move it",
        path.display(), of.display()
    )]
    LabelFile {
        /// The file.
        path: PathBuf,
        /// The array beside it.
        of: PathBuf,
        /// The middle part of its name.
        label: String,
    },
    /// An array that would be converted as samples and looks like the labels of another.
    #[error(
        "{} looks like the labels of {}, and would become a sample: move it away; the classes of samples are the folders that arrays lie in, and arrays that are not converted are read with such labels (`data.columns.label = \"{label}\"`)",
        path.display(), of.display()
    )]
    LabelArray {
        /// The file.
        path: PathBuf,
        /// The array beside it.
        of: PathBuf,
        /// The middle part of its name.
        label: String,
    },
    /// An array without the file of labels that is asked for.
    #[error(
        "{} has no file of labels, {}, which `data.columns.label = \"{label}\"` asks for: put it there (a negative label stands for none), correct the key, or leave it out to learn without labels",
        of.display(), path.display()
    )]
    NoLabelFile {
        /// The file that is not there.
        path: PathBuf,
        /// The array.
        of: PathBuf,
        /// What the key says.
        label: String,
    },
    /// A declared interval that is longer than the one between the rows.
    #[error(
        "`data.interval` is {declared}, but the usual step between rows is {found}: correct it, or leave it out to take that\n  where rows come at irregular times, put them on steps of one length first"
    )]
    Interval {
        /// The declared interval.
        declared: crate::Interval,
        /// The one that is found.
        found: crate::Interval,
    },
    /// Series whose steps are of another length than those of the data.
    #[error(
        "series `{name}` has steps of {step}, and {} is {interval}{}: a window would span another time there than it says\n  {}",
        message::interval(*is_declared), message::of_all(*others, *series), message::same_step(*is_declared)
    )]
    OtherStep {
        /// The first of them.
        name: String,
        /// Its step.
        step: crate::Interval,
        /// That of the data.
        interval: crate::Interval,
        /// Whether that is declared; else it is the most frequent one.
        is_declared: bool,
        /// How many there are.
        others: u64,
        /// How many series there are.
        series: u64,
    },
    /// A file whose name does not tell its format.
    #[error(
        "the name of {} does not tell its format: set `data.format` to csv, parquet, arrow, npy, ts, market, demand or clips",
        path.display()
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// A file whose content is not of its format.
    #[error("{} is read as {}, but it is {found}: {hint}", path.display(), format.name())]
    WrongKind {
        /// The file.
        path: PathBuf,
        /// Format that it was to be read in.
        format: Format,
        /// What its first bytes say.
        found: &'static str,
        /// The way out.
        hint: String,
    },
    /// A file that breaks the rules of its format.
    #[error("{} is not a valid {} file: {problem}", path.display(), format.name())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: Format,
        /// What is wrong with it.
        problem: String,
    },
    /// A line of a text file that breaks the rules of its format.
    #[error("{}, line {line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// Dates and times of day in columns of their own.
    #[error(
        "{} has dates in its column `{date}`, and times of day in `{time}`: join them in one column, such as 2014-05-01T09:30, and name that in `data.columns.time`",
        path.display()
    )]
    DateAndTime {
        /// The file.
        path: PathBuf,
        /// The column of dates.
        date: String,
        /// That of times of day.
        time: String,
    },
    /// A column that the file does not have.
    #[error(
        "{} has no column `{column}`, which {}{}; it has {}",
        path.display(), named_by(*key), Hint::new("did you mean", nearest), List(available)
    )]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The column looked for.
        column: String,
        /// The key of `[data.columns]` that names it; none where a trained model reads it.
        key: Option<&'static str>,
        /// The most similar column.
        nearest: Option<String>,
        /// All columns.
        available: Vec<String>,
    },
    /// A column named twice in a header.
    #[error("{} has two columns named `{column}`: rename one of them", path.display())]
    DuplicateHeader {
        /// The file.
        path: PathBuf,
        /// The name.
        column: String,
    },
    /// A column that is used twice.
    #[error("the column `{column}` is used as {first} and as {second}: each column has one use")]
    DuplicateUse {
        /// The column.
        column: String,
        /// First use.
        first: &'static str,
        /// Second use.
        second: &'static str,
    },
    /// Two channels of one price role.
    #[error("the channels `{first}` and `{second}` both have the role `{role}`: only one can")]
    DuplicateRole {
        /// First channel.
        first: String,
        /// Second channel.
        second: String,
        /// The role.
        role: String,
    },
    /// No column is left for a channel.
    #[error("{} has no column to learn from besides its time, series and label: it has {}", path.display(), List(available))]
    NoChannel {
        /// The file.
        path: PathBuf,
        /// All columns.
        available: Vec<String>,
    },
    /// A column of a type that cannot be used.
    #[error("{}: the column `{column}` holds {found}; {wanted}", path.display())]
    ColumnType {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// What it holds.
        found: String,
        /// What is allowed.
        wanted: String,
    },
    /// A value that cannot be used.
    #[error("{}, row {row}, column `{column}`: `{value}` {problem}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Row, counted from 1 after the header.
        row: usize,
        /// The column.
        column: String,
        /// What stands there.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A pattern of groups that cannot be read.
    #[error(
        "`data.group_pattern` = {pattern:?} is no regular expression: {problem}\n  write one of the crate `regex`, such as '^([^_]+)_', which names groups by what comes before the first underscore"
    )]
    GroupPattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Series that no group is known of.
    #[error(
        "{count} of {all} series {} without a group, such as `{series}`: {}",
        if *count == 1 { "is" } else { "are" },
        match pattern {
            Some(pattern) => format!("`data.group_pattern` = {pattern:?} is not found in {}\n  change the pattern so that it is found in every name, or leave such series out", if *count == 1 { "its name" } else { "their names" }),
            None => "the column of `data.columns.group` does not name theirs".to_owned(),
        }
    )]
    NoGroup {
        /// The first of them.
        series: String,
        /// How many there are.
        count: usize,
        /// Series in all.
        all: usize,
        /// The pattern, if groups are found by one.
        pattern: Option<String>,
    },
    /// A series that a column names as a file is named, whose series has no other name.
    #[error(
        "{}, row {row}, names the series `{name}`, and so is that of {} named, after its file: nothing says whether they are one\n  if they are, give each row of the file its name in the same column; if they are not, rename the file",
        path.display(), file.display()
    )]
    NameOfFile {
        /// The name.
        name: String,
        /// A file with a column of names.
        path: PathBuf,
        /// The first row of the series there, counted from 1 after the header.
        row: usize,
        /// The file without one.
        file: PathBuf,
    },
    /// A time zone that is not in the IANA database.
    #[error(
        "`{zone}` is no time zone{}: `data.columns.time_zone` takes IANA names such as `Europe/Zurich`",
        Hint::new("did you mean", nearest)
    )]
    TimeZone {
        /// The name.
        zone: String,
        /// The most similar zone.
        nearest: Option<String>,
    },
    /// A setting that the format of the files cannot honour.
    #[error("`data.{key}` does not apply to {} files: {hint}", format.name())]
    NotApplicable {
        /// The key.
        key: &'static str,
        /// The format.
        format: Format,
        /// The way out.
        hint: &'static str,
    },
    /// A file without rows.
    #[error("{} has no row of data", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// An array without a value.
    #[error("{} holds no value (its shape is {shape:?}): remove it{}", path.display(), LeaveOut(*unconvertible))]
    EmptyArray {
        /// The file.
        path: PathBuf,
        /// Its axes.
        shape: Vec<usize>,
        /// Whether `data convert` cannot leave it out: labels lie beside it, or its values are whole numbers, of which none
        /// are converted.
        unconvertible: bool,
    },
    /// Arrays of types that are not mixed.
    #[error(
        "{} holds {found}, but {} holds {expected}: the arrays of a set are all of float16, all of float32 or float64, or all of one type of whole numbers (32 and 64 bits are one)\n  save all in one type, such as `x.astype('<f4')`{}",
        path.display(), first.display(), LeaveOut(*unconvertible)
    )]
    MixedTypes {
        /// The file.
        path: PathBuf,
        /// Type of its values.
        found: &'static str,
        /// An earlier file.
        first: PathBuf,
        /// Type of its values.
        expected: &'static str,
        /// Whether `data convert` cannot leave it out: labels lie beside it, or both are whole numbers.
        unconvertible: bool,
    },
    /// Tables of which some have times.
    #[error(
        "{} has a column of times, `{column}`, and {} has none: steps with times and steps without any are in no order\n  give all files such a column, and name it in `data.columns.time` if its name is not a usual one",
        timed.display(), untimed.display()
    )]
    MixedTimes {
        /// A file with times.
        timed: PathBuf,
        /// The column that they are in.
        column: String,
        /// A file without.
        untimed: PathBuf,
    },
    /// Series that are all too short.
    #[error(
        "{} has {} of data: a series needs at least 2",
        path.display(), count(*steps as u64, "row")
    )]
    TooShort {
        /// A file.
        path: PathBuf,
        /// Steps of the longest series.
        steps: usize,
    },
    /// Files that differ in their channels.
    #[error("{} has {found}, but {} has {expected}: all files must have the same channels", path.display(), first.display())]
    Channels {
        /// The file.
        path: PathBuf,
        /// Its channels.
        found: String,
        /// An earlier file.
        first: PathBuf,
        /// Its channels.
        expected: String,
    },
    /// Another number of names than of channels, for files that do not name them.
    #[error(
        "`data.columns.channels` has {}, but {} has {}: name all of them, in order",
        count(*names as u64, "name"), path.display(), count(*channels as u64, "channel")
    )]
    ChannelNames {
        /// The file.
        path: PathBuf,
        /// Its channels.
        channels: usize,
        /// Names declared.
        names: usize,
    },
    /// No channel that changes.
    #[error(
        "no channel has more than one value over all steps ({}): there is nothing to learn from",
        List(channels)
    )]
    AllConstant {
        /// The channels.
        channels: Vec<String>,
    },
    /// A channel without any value.
    #[error(
        "the channel `{channel}` has no finite value in {place}: list the others in `data.columns.channels`, or set `data.checks.constant` to \"drop\" to leave such channels out"
    )]
    NoValue {
        /// The channel.
        channel: String,
        /// A series, or all of them.
        place: String,
    },
    /// A series of which the checks leave nothing.
    #[error(
        "nothing is left of series `{series}` ({}) after its defects are dropped: {hint}",
        count(*rows as u64, "row")
    )]
    NothingLeft {
        /// The series.
        series: String,
        /// Its rows in the file.
        rows: usize,
        /// The way out.
        hint: String,
    },
    /// Defects that the policies do not allow.
    #[error("the data has defects that `data.checks` does not allow{}", Findings(findings))]
    Defects {
        /// All of them.
        findings: Vec<Finding>,
    },
    /// Rows that are out of order or share their times, of files whose series no column tells apart.
    #[error(
        "the data has defects that `data.checks` does not allow\n  if a file holds several series, name the column that tells them apart in `data.columns.series`{}; the ways out below would make one series of them{}",
        Hint::new("perhaps", column),
        Findings(findings)
    )]
    SeveralSeries {
        /// All defects.
        findings: Vec<Finding>,
        /// A column that does tell series apart, by the first rows of a file.
        column: Option<String>,
    },
    /// Settings of generated demand that make none.
    #[error("the demand's `{key}` is {found}: {wanted}")]
    Demand {
        /// Key.
        key: String,
        /// Its value.
        found: String,
        /// What it must be.
        wanted: String,
    },
    /// Settings of a generated market that make no market.
    #[error("the market's `{key}` is {found}: {wanted}")]
    Market {
        /// The key.
        key: String,
        /// What it is.
        found: String,
        /// What it may be.
        wanted: String,
    },
    /// A table of texts that cannot be used as declared.
    #[error("{}: {problem}", path.display())]
    Texts {
        /// The file.
        path: PathBuf,
        /// What was found, and what is allowed.
        problem: String,
    },
    /// A timeframe that cannot be made from what there is.
    #[error("`data.timeframes.{key}` is {found}: {wanted}")]
    Timeframe {
        /// The key.
        key: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        wanted: String,
    },
    /// Timeframes without bars.
    #[error(
        "`data.timeframes` needs bars: channels with the roles open, high, low and close\n  name them in `data.columns.channels`, such as {{ name = \"last\", role = \"close\" }}"
    )]
    TimeframePrices,
    /// A price of which there is no return.
    #[error(
        "series `{series}`, {at}: a price is zero or negative, and returns need positive ones\n  leave the series out, or correct the file"
    )]
    TimeframePrice {
        /// The series.
        series: String,
        /// The moment.
        at: String,
    },
    /// Longer bars among the others, stamped by when they open.
    #[error(
        "series `{series}`, from {at} on: {rows} rows in a row are {step} apart, and a bar takes {interval}; if they are bars of {step}, they close later than \
         `data.timeframes.stamp` = \"open\" says, and features would look ahead\n  \
         cut those rows out, bring them to one length with the others before, or set data.interval to {step} if all bars take as long; set \
         data.timeframes.stamp = \"close\" if times say when bars close"
    )]
    TimeframeSteps {
        /// The series.
        series: String,
        /// The first of them.
        at: String,
        /// How many.
        rows: usize,
        /// The time between two of them.
        step: String,
        /// The time between two others.
        interval: String,
    },
    /// A feature that is no number.
    #[error(
        "series `{series}`, {at}: the feature `{feature}` is {value}, because its prices lie too far apart\n  correct the file, or leave such bars out (`data.checks.ohlc`)"
    )]
    TimeframeFeature {
        /// The feature.
        feature: String,
        /// The series.
        series: String,
        /// The moment at which its bar closes.
        at: String,
        /// Its value.
        value: f64,
    },
    /// Nothing left after the warm-up of the indicators.
    #[error(
        "no bar is left: {} in {} without a gap, and in none of them has every indicator bars enough to look back on (the longest timeframe is {longest})\n  give longer runs (fill short gaps with `data.checks.gaps = \"fill\"`), or set shorter `data.timeframes.higher_periods`, such as {{ average = 6, strength = 6 }}",
        count(*bars, "bar"), count(*runs, "run")
    )]
    TimeframeWarmup {
        /// Base bars.
        bars: u64,
        /// Runs without a gap.
        runs: u64,
        /// The longest timeframe.
        longest: crate::Interval,
    },
    /// Settings of generated clips that make none.
    #[error("the clips' `{key}` is {found}: {wanted}")]
    Clips {
        /// The key.
        key: String,
        /// What it is.
        found: String,
        /// What it may be.
        wanted: String,
    },
    /// A promise of firebox-core that the data would break.
    #[error("the data cannot be used")]
    Series(#[from] firebox_core::SeriesError),
}

impl DataError {
    /// What whoever reads long asks now and then: an error once `stop` is true.
    pub(crate) fn heed(stop: &AtomicBool) -> Result<(), Self> {
        if stop.load(Ordering::Relaxed) { Err(Self::Stopped) } else { Ok(()) }
    }

    pub(crate) fn line(path: &Path, line: usize, problem: impl Into<String>) -> Self {
        Self::Line { path: path.to_owned(), line, problem: problem.into() }
    }

    pub(crate) fn malformed(path: &Path, format: Format, problem: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_owned(), format, problem: problem.into() }
    }
}
