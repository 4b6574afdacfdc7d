//! Which column of a table is the time, the series, the label and which are channels.

use std::path::Path;

use firebox_core::{Channel, Role};

use crate::config::role_of;
use crate::error::nearest;
use crate::{Columns, DataError};

/// Usual names, of which the first that is there is taken, wherever it stands: a date is what says least of a time.
const TIMES: [&str; 5] = ["time", "timestamp", "datetime", "ts", "date"];
const LABELS: [&str; 6] = ["label", "labels", "class", "target", "regime", "y"];
const SERIES: [&str; 4] = ["series", "symbol", "ticker", "instrument"];

/// The way out where a column that was not named holds names or other texts.
const NOT_CHANNELS: &str = "name the column that tells series apart in `data.columns.series`, that of classes in `data.columns.label`, or the columns to learn from in `data.columns.channels`";

/// The same of a column that looks like times, where no other is known to hold them.
const PERHAPS_TIMES: &str = "if the column holds the times, name it in `data.columns.time`; else name the columns to learn from in `data.columns.channels`";

/// The same where another column is known to hold the times.
const OTHER_TIMES: &str = "the times are those of another column: if this one holds them, name it in `data.columns.time`; else name the columns to learn from, without this one, in `data.columns.channels`";

/// Whether a column is named as pandas names the numbers of rows that it writes.
fn is_index(name: &str) -> bool {
    let is_number = |rest: &str| rest.is_empty() || rest.starts_with('.');
    name.is_empty()
        || name == "__index_level_0__"
        || name.strip_prefix("Unnamed: 0").is_some_and(is_number)
}

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
        match (is_like_time, &self.time) {
            (true, None) => PERHAPS_TIMES,
            (true, Some(_)) => OTHER_TIMES,
            (false, _) => NOT_CHANNELS,
        }
    }

    /// Of these columns, those that would be channels by default and are not, as they are the numbers of rows.
    pub(crate) fn index_columns(&self, names: &[String]) -> Vec<String> {
        let is_left_out = |name: &&String| {
            let is_group = self.group.as_ref() == Some(*name);
            self.by_default && is_index(name) && !is_group && !self.used().any(|used| used == *name)
        };
        names.iter().filter(is_left_out).cloned().collect()
    }

    /// Whether what is read of these columns was once something else: the time and the series were told by the order of
    /// the columns, and the numbers of rows were among the channels.
    pub(crate) fn was_another(path: &Path, names: &[String], columns: &Columns) -> bool {
        // Of what is refused, nothing is read.
        let Ok(now) = Self::new(path, names, columns) else { return false };
        let first = |words: &[&str]| {
            let has_use = |name: &String| {
                columns.channels.iter().any(|channel| channel.name == *name)
                    || [&columns.label, &columns.group]
                        .into_iter()
                        .flatten()
                        .any(|used| used == name)
            };
            let is = |name: &&String| {
                words.iter().any(|word| name.eq_ignore_ascii_case(word)) && !has_use(name)
            };
            names.iter().find(is).cloned()
        };
        columns.time.clone().or_else(|| first(&TIMES)) != now.time
            || columns.series.clone().or_else(|| first(&SERIES)) != now.series
            || (columns.channels.is_empty() && now.prices_or_all(names) != now.channels)
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
        let uses = [&columns.time, &columns.series, &columns.label, &columns.group];
        let is_free = |name: &str| {
            !channel_names.contains(&name) && !uses.into_iter().flatten().any(|used| used == name)
        };
        let known = |words: &[&str]| {
            // Of names that differ by letter case alone, that in small letters.
            let of = |word: &&str| {
                let is = |name: &&String| name.eq_ignore_ascii_case(word) && is_free(name.as_str());
                names.iter().filter(is).max().cloned()
            };
            words.iter().find_map(of)
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

    /// The four prices of a bar if all are there, else every column that has no other use, but for the numbers of rows
    /// where others are left.
    fn default_channels(&self, names: &[String]) -> Vec<Channel> {
        let all = self.prices_or_all(names);
        let is_channel = |channel: &Channel| !is_index(&channel.name);
        match all.iter().any(is_channel) {
            true => all.into_iter().filter(is_channel).collect(),
            false => all,
        }
    }

    /// The same with the numbers of rows.
    fn prices_or_all(&self, names: &[String]) -> Vec<Channel> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(names: &str, edit: impl Fn(&mut Columns)) -> Mapping {
        let mut columns = Columns::default();
        edit(&mut columns);
        Mapping::new(Path::new("a.csv"), &names_of(names), &columns).unwrap()
    }

    fn names_of(names: &str) -> Vec<String> {
        names.split(',').map(str::to_owned).collect()
    }

    fn was_another(names: &str, edit: &dyn Fn(&mut Columns)) -> bool {
        let mut columns = Columns::default();
        edit(&mut columns);
        Mapping::was_another(Path::new("a.csv"), &names_of(names), &columns)
    }

    #[test]
    fn the_order_of_columns_decides_nothing() {
        for (names, time, series) in [
            ("date,timestamp,x", Some("timestamp"), None),
            ("timestamp,date,x", Some("timestamp"), None),
            ("Date,Time,x", Some("Time"), None),
            ("date,ts,x", Some("ts"), None),
            ("TIME,x,time", Some("time"), None),
            ("x,Date", Some("Date"), None),
            ("ticker,x,symbol", None, Some("symbol")),
            ("x,y", None, None),
        ] {
            let found = mapping(names, |_| ());
            assert_eq!((found.time.as_deref(), found.series.as_deref()), (time, series), "{names}");
            // What came first was taken once: here it is what is taken now.
            let is_same = ["timestamp,date,x", "x,Date", "x,y"].contains(&names);
            assert_eq!(was_another(names, &|_| ()), !is_same, "{names}");
        }
        let named = |columns: &mut Columns| columns.time = Some("date".to_owned());
        assert!(!was_another("date,timestamp,x", &named));
        let taken = |columns: &mut Columns| columns.channels = vec!["date".into(), "x".into()];
        assert!(!was_another("date,timestamp,x", &taken));
        let refused = |columns: &mut Columns| columns.label = Some("nothing".to_owned());
        assert!(!was_another("date,time,x", &refused));
        // A column that has another use is none.
        let of_day = |columns: &mut Columns| columns.series = Some("time".to_owned());
        assert_eq!(mapping("date,time,x", of_day).time.as_deref(), Some("date"));
    }

    #[test]
    fn numbers_of_rows_are_no_channels_unless_they_are_named_or_all_there_is() {
        let channels = |names: &str, edit: &dyn Fn(&mut Columns)| -> Vec<String> {
            mapping(names, edit).channels.into_iter().map(|channel| channel.name).collect()
        };
        let left_out = |names: &str| mapping(names, |_| ()).index_columns(&names_of(names));
        for index in ["", "Unnamed: 0", "Unnamed: 0.1", "__index_level_0__"] {
            let names = format!("{index},time,x");
            assert_eq!(channels(&names, &|_| ()), ["x"], "{index}");
            assert_eq!(left_out(&names), [index]);
            assert!(was_another(&names, &|_| ()) && was_another(&format!("{index},open"), &|_| ()));
            let named = |columns: &mut Columns| columns.channels = vec![index.into(), "x".into()];
            assert_eq!(channels(&names, &named), [index, "x"]);
            let alone = format!("time,{index}");
            assert_eq!(channels(&alone, &|_| ()), [index]);
            assert_eq!(left_out(&alone), [""; 0]);
            // What is read is what was read.
            let label = |columns: &mut Columns| columns.label = Some(index.to_owned());
            let bars = format!("{index},time,open,high,low,close");
            assert!(!was_another(&names, &named) && !was_another(&alone, &|_| ()));
            assert!(!was_another(&names, &label) && !was_another(&bars, &|_| ()));
        }
        assert_eq!(channels("Unnamed: 01,time,x", &|_| ()), ["Unnamed: 01", "x"]);
        // Of bars it was never a channel.
        assert_eq!(left_out(",time,open,high,low,close"), [""; 0]);
    }
}
