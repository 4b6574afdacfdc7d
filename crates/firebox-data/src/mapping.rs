//! Which column of a table is the time, the series, the label and which are channels.

use std::path::Path;

use firebox_core::{Channel, Role};

use crate::config::role_of;
use crate::error::nearest;
use crate::{Columns, DataError};

const TIMES: [&str; 5] = ["time", "timestamp", "datetime", "date", "ts"];
const LABELS: [&str; 6] = ["label", "labels", "class", "target", "regime", "y"];
const SERIES: [&str; 4] = ["series", "symbol", "ticker", "instrument"];

/// The way out where a column that was not named holds names or other texts.
const NOT_CHANNELS: &str = "name the column that tells series apart in `data.columns.series`, or the columns to learn from in `data.columns.channels`";

/// The same of a column that looks like times, where no other is known to hold them.
const PERHAPS_TIMES: &str = "if the column holds the times, name it in `data.columns.time`; else name the columns to learn from in `data.columns.channels`";

/// Which column of a file is what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) time: Option<String>,
    pub(crate) series: Option<String>,
    /// Read by [`grouping`](crate::grouping) alone.
    pub(crate) group: Option<String>,
    pub(crate) label: Option<String>,
    pub(crate) channels: Vec<Channel>,
    /// Columns of no use here whose names are usual for labels.
    pub(crate) label_like: Option<String>,
    /// Whether the channels are what was left, and not declared or prices.
    pub(crate) by_default: bool,
}

impl Mapping {
    /// The columns to read.
    pub(crate) fn used(&self) -> impl Iterator<Item = &str> {
        let others = [&self.time, &self.series, &self.label].into_iter().flatten();
        others.chain(self.channels.iter().map(|channel| &channel.name)).map(String::as_str)
    }

    /// The way out where a column that was not named is no channel.
    pub(crate) fn not_a_channel(&self, is_like_time: bool) -> &'static str {
        if is_like_time && self.time.is_none() { PERHAPS_TIMES } else { NOT_CHANNELS }
    }

    /// Finds the declared columns, and the others by their names.
    pub(crate) fn new(path: &Path, names: &[String], columns: &Columns) -> Result<Self, DataError> {
        let find = |name: &String, key| {
            if names.contains(name) {
                return Ok(name.clone());
            }
            Err(DataError::NoColumn {
                path: path.to_owned(),
                column: name.clone(),
                key: Some(key),
                nearest: nearest(name, names.iter().map(String::as_str)),
                available: names.to_vec(),
            })
        };
        let declared =
            |name: &Option<String>, key| name.as_ref().map(|name| find(name, key)).transpose();
        let channel_names: Vec<&str> = columns.channels.iter().map(|c| c.name.as_str()).collect();
        let known = |words: &[&str]| {
            let is = |name: &&String| {
                words.iter().any(|word| name.eq_ignore_ascii_case(word))
                    && !channel_names.contains(&name.as_str())
                    && ![&columns.label, &columns.group].contains(&&Some((*name).clone()))
            };
            names.iter().find(is).cloned()
        };
        let time = declared(&columns.time, "time")?.or_else(|| known(&TIMES));
        let series = declared(&columns.series, "series")?.or_else(|| known(&SERIES));
        let group = declared(&columns.group, "group")?;
        let label = declared(&columns.label, "label")?;
        let label_like = known(&LABELS).filter(|_| label.is_none());
        let (channels, by_default) = (vec![], false);
        let mut mapping = Self { time, series, group, label, channels, label_like, by_default };
        mapping.channels = if columns.channels.is_empty() {
            mapping.default_channels(names)
        } else {
            let channel = |column: &crate::ChannelColumn| {
                Ok(Channel::new(find(&column.name, "channels")?, column.role()))
            };
            columns.channels.iter().map(channel).collect::<Result<_, DataError>>()?
        };
        mapping.by_default =
            columns.channels.is_empty() && !mapping.channels.iter().all(|c| c.role.is_price());
        if mapping.channels.is_empty() {
            return Err(DataError::NoChannel { path: path.to_owned(), available: names.to_vec() });
        }
        mapping.check_uses()?;
        Ok(mapping)
    }

    /// The four prices of a bar if all are there, else every column that has no other use.
    fn default_channels(&self, names: &[String]) -> Vec<Channel> {
        let free = |name: &&String| {
            let others = [&self.time, &self.series, &self.group, &self.label];
            !others.into_iter().flatten().any(|used| used == *name)
        };
        let all: Vec<Channel> =
            names.iter().filter(free).map(|name| Channel::new(name, role_of(name))).collect();
        let of = |role| all.iter().find(|channel| channel.role == role).cloned();
        let prices: Option<Vec<Channel>> =
            [Role::Open, Role::High, Role::Low, Role::Close].into_iter().map(of).collect();
        prices.unwrap_or(all)
    }

    fn check_uses(&self) -> Result<(), DataError> {
        let uses = [
            (&self.time, "time"),
            (&self.series, "series"),
            (&self.group, "group"),
            (&self.label, "label"),
        ];
        let others = uses.into_iter().filter_map(|(name, of)| name.as_deref().map(|n| (n, of)));
        let channels = self.channels.iter().map(|channel| (channel.name.as_str(), "channel"));
        let mut seen = std::collections::HashMap::new();
        for (column, of) in others.chain(channels) {
            if let Some(first) = seen.insert(column, of) {
                let column = column.to_owned();
                return Err(DataError::DuplicateUse { column, first, second: of });
            }
        }
        check_roles(&self.channels)
    }
}

/// Refuses two channels of one price role.
pub(crate) fn check_roles(channels: &[Channel]) -> Result<(), DataError> {
    for (index, first) in channels.iter().enumerate().filter(|(_, c)| c.role.is_price()) {
        if let Some(second) = channels[index + 1..].iter().find(|c| c.role == first.role) {
            return Err(DataError::DuplicateRole {
                first: first.name.clone(),
                second: second.name.clone(),
                role: format!("{:?}", first.role).to_lowercase(),
            });
        }
    }
    Ok(())
}
