//! Pieces of messages: a name that may have been meant, lists that are cut, defects with their ways out.

use std::fmt;
use std::path::{Path, PathBuf};

use firebox_core::quoted;

use crate::Finding;

/// The most similar of some names, if it is similar enough to be what was meant.
pub(crate) fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    firebox_core::nearest(name, names).map(str::to_owned)
}

/// Who asks for a column: a key of `[data.columns]`, or a trained model.
pub(super) fn named_by(key: Option<&str>) -> String {
    key.map_or_else(|| "the model reads".to_owned(), |key| format!("`data.columns.{key}` names"))
}

/// A name that may have been meant, if there is one.
pub(super) struct Hint<'a> {
    words: &'static str,
    name: &'a Option<String>,
}

impl<'a> Hint<'a> {
    pub(super) fn new(words: &'static str, name: &'a Option<String>) -> Self {
        Self { words, name }
    }
}

impl fmt::Display for Hint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Some(name) => write!(f, " ({} `{name}`?)", self.words),
            None => Ok(()),
        }
    }
}

/// Names, of which a long list is cut.
pub(crate) struct List<'a>(pub(crate) &'a [String]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&if self.0.is_empty() { "no column".to_owned() } else { quoted(self.0, 12) })
    }
}

/// Paths as items of a list in TOML, of which a long one is cut.
pub(super) struct Quoted<'a>(pub(super) &'a [PathBuf]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 4;
        for (index, path) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}\"{}\"", if index == 0 { "" } else { ", " }, path.display())?;
        }
        if self.0.len() > SHOWN { f.write_str(", ...") } else { Ok(()) }
    }
}

/// A path as a word of a command, in quotes where a shell would divide it or see more in it.
pub(super) struct Shell<'a>(pub(super) &'a Path);

impl fmt::Display for Shell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.0.display().to_string();
        let is_plain = |one: char| one.is_alphanumeric() || "/._-+=:,@%".contains(one);
        match path.chars().all(is_plain) {
            true => f.write_str(&path),
            false => write!(f, "'{}'", path.replace('\'', r"'\''")),
        }
    }
}

/// What the step is that a series does not have.
pub(super) fn interval(is_declared: bool) -> &'static str {
    if is_declared { "`data.interval`" } else { "the usual step" }
}

/// How many series are like the one that is named.
pub(super) fn of_all(others: u64, series: u64) -> String {
    if series == 1 { String::new() } else { format!(" (so it is for {others} of {series} series)") }
}

/// How to come to steps of one length.
pub(super) fn same_step(is_declared: bool) -> &'static str {
    match is_declared {
        true => {
            "correct `data.interval`, or leave it out to take the usual step; where series have rates of their own, use those of one rate at a time, each in files of its own, or put all on steps of one length first"
        }
        false => {
            "use series of one rate at a time: leave the others out, or give them as files of their own (`data.interval` says which step is meant), or put all on steps of one length first"
        }
    }
}

/// Defects, each on a line of its own with the way out.
pub(super) struct Findings<'a>(pub(super) &'a [Finding]);

impl fmt::Display for Findings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|finding| write!(f, "\n- {finding}; {}", finding.way_out()))
    }
}

/// How some arrays of a folder are left out, which those with files of labels beside them cannot be: they would be taken
/// for arrays, too.
pub(super) struct LeaveOut(pub(super) bool);

impl fmt::Display for LeaveOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            true => "",
            false => {
                ", or leave such arrays out, which `firebox data convert FOLDER SAMPLES --odd skip` does and counts"
            }
        })
    }
}
