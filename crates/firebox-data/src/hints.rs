//! Second looks at data that were refused: what the likelier cause is, and the way out of that.
//!
//! Nothing here runs for data that are taken. What cannot be found out leaves the error as it is.

use std::collections::{HashMap, HashSet};

use firebox_core::{Channel, Silent};
use polars::prelude::{DataFrame, DataType, Expr, IdxSize, TimeUnit as Stored, col};

use crate::config::role_of;
use crate::frame::{Reading, names_of, scan};
use crate::ingest::{drop_void, raw};
use crate::input::{Input, inputs};
use crate::mapping::Mapping;
use crate::raw::{Interner, NO_LABEL, Raw};
use crate::schema::Declared;
use crate::time::{Course, Zone, is_like_time, is_time_of_day};
use crate::work::Usable;
use crate::{ConstantPolicy, DataConfig, DataError, Defect, Finding, Policy, TimeUnit, csv};

/// Odd rows from which on several series in one file are the likelier cause: fewer are mistakes.
const FEWEST: u64 = 3;
/// A day in microseconds.
const DAY: i64 = 86_400_000_000;
/// Rows of a file, files and columns of each that are looked at: a hint is not worth more.
const ROWS: IdxSize = 100_000;
const FILES: usize = 8;
const COLUMNS: usize = 32;

/// The error of the checks, with its cause where another one is likelier than what they saw. `named` says whether a
/// column names the series.
pub(crate) fn explained(error: DataError, config: &DataConfig, named: bool) -> DataError {
    let is_of_order =
        |finding: &Finding| matches!(finding.defect, Defect::Unsorted | Defect::Duplicates);
    let is_twice = |finding: &Finding| finding.defect == Defect::Duplicates;
    if let DataError::Defects { findings } = &error
        && findings.iter().any(is_twice)
        && let Some(two_columns) = date_and_time(config)
    {
        return two_columns;
    }
    match error {
        DataError::Defects { mut findings }
            if findings.iter().any(is_twice) && has_finer_times(config) =>
        {
            for finding in &mut findings {
                if finding.defect == Defect::Duplicates {
                    finding.detail += "; times are finer than a microsecond here, and are cut to one, so that those \
                         which differ by less count as equal: put such rows together, or give each a time of its own";
                }
            }
            DataError::Defects { findings }
        }
        DataError::Defects { findings } if !named && findings.iter().any(is_of_order) => {
            let many = |finding: &Finding| is_of_order(finding) && finding.count >= FEWEST;
            match telling_column(config) {
                // A single row that is there twice is no second series.
                None if !findings.iter().any(many) => DataError::Defects { findings },
                column => DataError::SeveralSeries { findings, column },
            }
        }
        DataError::NothingLeft { series, rows, hint } => {
            let raw = raw(config, &Silent).ok();
            let found = raw.and_then(|raw| usable_values(raw, &series, config));
            let (channels, usable) = found.unwrap_or_default();
            lost(DataError::NothingLeft { series, rows, hint }, (&channels, &usable), config)
        }
        other => other,
    }
}

/// The channels, and what their values are in one series.
fn usable_values(
    mut raw: Raw,
    series: &str,
    config: &DataConfig,
) -> Option<(Vec<Channel>, Vec<Usable>)> {
    if config.checks.constant == ConstantPolicy::Drop {
        drop_void(&mut raw).ok()?;
    }
    let series = raw.series.iter().find(|one| one.name == series)?;
    let of = |column: &Vec<f64>| Usable::default().with(column);
    Some((raw.channels, series.columns.iter().map(of).collect()))
}

/// The error of a series of which nothing is left, with what its values are in each channel.
pub(crate) fn lost(
    error: DataError,
    (channels, usable): (&[Channel], &[Usable]),
    config: &DataConfig,
) -> DataError {
    let DataError::NothingLeft { series, rows, hint } = error else { return error };
    let others = match channels.len() {
        1 => "",
        _ => ", or list the other channels in `data.columns.channels`",
    };
    let empty = channels.iter().zip(usable).find_map(|(Channel { name, .. }, usable)| {
        Some(match usable {
            Usable::Some => return None,
            Usable::TooLarge(largest) => format!(
                "the values of its channel `{name}` are too large for f32, which ends at 3.4e38 (they reach {largest:e}); scale the column{others}"
            ),
            Usable::Nothing => {
                format!("its channel `{name}` has no value; remove the series{others}")
            }
        })
    });
    let hint = empty.unwrap_or_else(|| match config.checks.not_finite {
        Policy::Fill => "remove it, or correct the file".to_owned(),
        Policy::Error | Policy::Drop => hint,
    });
    DataError::NothingLeft { series, rows, hint }
}

/// Whether the first rows of a file have times that are finer than a microsecond.
fn has_finer_times(config: &DataConfig) -> bool {
    let finer = |input: &Input| {
        let (names, declared) = names_of(input, config)?;
        let time = Mapping::new(&input.path, &names, &config.columns).ok()?.time?;
        let frame = first_rows(input, config, declared.as_ref(), std::slice::from_ref(&time))?;
        let column = frame.column(&time).ok()?;
        let unit = match column.dtype() {
            DataType::Datetime(stored, _) => {
                (*stored == Stored::Nanoseconds).then_some(TimeUnit::Ns)
            }
            kind if kind.is_integer() => Some(config.columns.time_unit),
            _ => None,
        };
        if unit == Some(TimeUnit::Ns) {
            let times = column.cast(&DataType::Int64).ok()?;
            return Some(times.i64().ok()?.iter().flatten().any(|time| time % 1000 != 0));
        }
        let texts = column.str().ok()?;
        let is_finer = |text: &str| match config.columns.time_unit {
            TimeUnit::Ns => text.trim().parse::<i64>().is_ok_and(|time| time % 1000 != 0),
            _ => text.split(['.', ',']).nth(1).is_some_and(|fraction| {
                let digits = fraction.bytes().take_while(u8::is_ascii_digit);
                digits.skip(6).any(|digit| digit != b'0')
            }),
        };
        Some(texts.iter().flatten().any(is_finer))
    };
    let Ok(inputs) = inputs(config) else { return false };
    inputs.iter().take(FILES).any(|input| finer(input).unwrap_or(false))
}

/// The error of a file of which the first rows have dates alone as their times, and times of day in another column, which
/// tells rows of one date apart.
fn date_and_time(config: &DataConfig) -> Option<DataError> {
    let zone = Zone::named(config.columns.time_zone.as_deref()).ok()?;
    let found = |input: &Input| {
        let (date, time) = date_and_time_of(input, config, &zone)?;
        Some(DataError::DateAndTime { path: input.path.clone(), date, time })
    };
    inputs(config).ok()?.iter().take(FILES).find_map(found)
}

/// The two columns of one file.
fn date_and_time_of(input: &Input, config: &DataConfig, zone: &Zone) -> Option<(String, String)> {
    let (names, declared) = names_of(input, config)?;
    let mapping = Mapping::new(&input.path, &names, &config.columns).ok()?;
    let date = mapping.time.clone()?;
    let kind = |name: &String| declared.as_ref().map(|declared| declared.kind(name));
    let may_be = |name: &&String| {
        let is_text_or_time = match kind(name) {
            None => true,
            Some(Some(Ok(kind))) => matches!(kind, DataType::String | DataType::Time),
            Some(_) => false,
        };
        **name != date && is_text_or_time
    };
    let columns: Vec<String> = names.iter().filter(may_be).take(COLUMNS).cloned().collect();
    let wanted: Vec<String> = columns.iter().chain([&date]).cloned().collect();
    let frame = first_rows(input, config, declared.as_ref(), &wanted)?;
    let reading = Reading { input, config, zone, frame: &frame, mapping: &mapping };
    let (dates, _) = reading.as_written(&date).ok()?;
    dates.iter().all(|time| time % DAY == 0).then_some(())?;
    let days = dates.iter().collect::<HashSet<_>>().len();
    let tells_apart = |column: &String| {
        let text = frame.column(column).ok()?.cast(&DataType::String).ok()?;
        let of_day: Option<Vec<&str>> = text.str().ok()?.iter().collect();
        let of_day = of_day.filter(|of_day| of_day.iter().all(|time| is_time_of_day(time)))?;
        let moments: HashSet<(&i64, &str)> = dates.iter().zip(of_day).collect();
        Some(moments.len() > days)
    };
    let time = columns.into_iter().find(|column| tells_apart(column) == Some(true))?;
    Some((date, time))
}

/// A column that tells series apart in the first rows of a file.
fn telling_column(config: &DataConfig) -> Option<String> {
    let zone = Zone::named(config.columns.time_zone.as_deref()).ok()?;
    let inputs = inputs(config).ok()?;
    inputs.iter().take(FILES).find_map(|input| telling_column_of(input, config, &zone))
}

/// Of one file: that of the fewest names.
fn telling_column_of(input: &Input, config: &DataConfig, zone: &Zone) -> Option<String> {
    let (names, declared) = names_of(input, config)?;
    let mapping = Mapping::new(&input.path, &names, &config.columns).ok()?;
    let time = mapping.time.clone()?;
    let is_used = |name: &String| {
        let channels = &config.columns.channels;
        *name == time
            || mapping.label.as_ref() == Some(name)
            || channels.iter().any(|channel| channel.name == *name)
            || role_of(name).is_price()
    };
    // Texts of CSV may be numbers, which are looked at below.
    let may_name = |name: &String| match declared.as_ref().map(|declared| declared.kind(name)) {
        None => true,
        Some(Some(Ok(kind))) => *kind == DataType::String || kind.is_integer(),
        Some(_) => false,
    };
    let columns = names.iter().filter(|name| !is_used(name) && may_name(name)).take(COLUMNS);
    let columns: Vec<String> = columns.cloned().collect();
    let wanted: Vec<String> = columns.iter().chain([&time]).cloned().collect();
    let frame = first_rows(input, config, declared.as_ref(), &wanted)?;
    let reading = Reading { input, config, zone, frame: &frame, mapping: &mapping };
    let times = reading.times_of_clocks(&time).ok()?;
    let series = |column: &String| {
        let mut interner = Interner::default();
        let codes = reading.codes(column, &mut interner).ok()?;
        let is_name = |name: &String| name.parse::<f64>().is_err() || name.parse::<i64>().is_ok();
        // Times of day are what the column of dates lacks.
        let are_names = interner.names.iter().all(is_name)
            && !interner.names.iter().all(|name| is_like_time(name));
        are_names.then(|| told_apart(&times, &codes))?
    };
    let telling = columns.iter().filter_map(|column| Some((series(column)?, column)));
    telling.min_by_key(|(series, _)| *series).map(|(_, column)| column.clone())
}

fn first_rows(
    input: &Input,
    config: &DataConfig,
    declared: Option<&Declared>,
    wanted: &[String],
) -> Option<DataFrame> {
    let Some(declared) = declared else {
        return csv::texts(&input.path, &config.csv, wanted, ROWS as usize).ok()?.ok();
    };
    if !declared.all_can_be_read() {
        return None;
    }
    let wanted: Vec<Expr> = wanted.iter().map(|name| col(name.as_str())).collect();
    let rows = scan(&input.path, input.format).ok()?;
    rows.and_then(|rows| rows.limit(ROWS).select(wanted).collect()).ok()
}

/// How many series these names make, if the rows of each are in the order of their times, and they alone are.
fn told_apart((times, zone): &(Vec<i64>, Zone), names: &[u32]) -> Option<usize> {
    let mut last = HashMap::new();
    let mut courses = HashMap::<u32, Course>::new();
    for (time, name) in times.iter().zip(names) {
        let mut time = [*time];
        zone.settle(&mut time, courses.entry(*name).or_default());
        let before = last.insert(*name, time[0]);
        if *name == NO_LABEL || before.is_some_and(|before| before >= time[0]) {
            return None;
        }
    }
    let back = times.windows(2).filter(|pair| pair[1] <= pair[0]).count();
    // A few rows in a wrong place would be in order by any column of many names.
    let is_likely = (2..=times.len() / 2).contains(&last.len()) && last.len() <= back + 1;
    is_likely.then_some(last.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_told_apart_where_clocks_are_put_back() {
        let Ok(zone) = Zone::named(Some("Europe/Zurich")) else { panic!("the zone is known") };
        let moments = (0..40).map(|step| 1_698_537_600 + 600 * (step / 2));
        let local = moments.map(|time| time + if time < 1_698_541_200 { 7200 } else { 3600 });
        let mut times: Vec<i64> = local.map(|second| second * 1_000_000).collect();
        zone.to_utc(&mut times).unwrap();
        let names: Vec<u32> = (0..40).map(|step| step % 2).collect();
        assert_eq!(told_apart(&(times.clone(), zone), &names), Some(2));
        assert_eq!(told_apart(&(times, Zone::Utc), &names), None);
    }

    const HINT: &str = "name the column that tells them apart in `data.columns.series`";

    fn said(text: &str, edit: impl Fn(&mut DataConfig)) -> String {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.csv");
        std::fs::write(&file, text).unwrap();
        let mut config = DataConfig::new(&file);
        edit(&mut config);
        crate::read(&config, &Silent).unwrap_err().to_string()
    }

    /// Five days of two stations, day by day or station by station.
    fn stations(names: [&str; 2], by_day: bool) -> String {
        let row = |row: usize| {
            let (day, station) = if by_day { (row / 2, row % 2) } else { (row % 5, row / 5) };
            format!("2024-01-0{},{},{}\n", day + 1, names[station], row * row)
        };
        let rows: String = (0..10).map(row).collect();
        format!("time,station,demand\n{rows}")
    }

    #[test]
    fn a_column_that_tells_series_apart_is_named_before_other_ways_out() {
        let demand = |config: &mut DataConfig| config.columns.channels = vec!["demand".into()];
        for by_day in [true, false] {
            let error = said(&stations(["north", "south"], by_day), demand);
            assert!(error.contains(&format!("{HINT} (perhaps `station`?)")), "{error}");
            assert!(error.find(HINT) < error.find("data.checks.duplicates"), "{error}");
            // Numbers of stations are taken as a channel.
            let error = said(&stations(["17", "4"], by_day), |_| ());
            assert!(error.contains(&format!("{HINT} (perhaps `station`?)")), "{error}");
        }
    }

    #[test]
    fn a_column_that_tells_no_series_apart_is_not_named() {
        let text = "time,day,x\n2024-01-01,1,1\n2024-01-02,2,2\n2024-01-04,4,3\n2024-01-03,3,4\n2024-01-05,1,5\n2024-01-06,2,6\n2024-01-07,3,7\n2024-01-08,4,8\n";
        // One row of eight is no second series.
        let error = said(text, |_| ());
        assert!(error.contains("1 row is not in the order") && !error.contains(HINT), "{error}");
        let more = "2024-01-09,1,9\n2024-01-01,2,1\n2024-01-02,2,2\n2024-01-04,4,3\n";
        let error = said(&format!("{text}{more}"), |_| ());
        assert!(error.contains(&format!("{HINT};")), "{error}");
    }

    #[test]
    fn rows_of_series_that_are_named_are_what_they_are_called() {
        let twice = stations(["north", "north"], true);
        let error = said(&twice, |config| config.columns.series = Some("station".to_owned()));
        assert!(error.contains("the time of another") && !error.contains(HINT), "{error}");
    }

    #[test]
    fn times_that_are_cut_to_microseconds_are_told_where_they_are_equal_then() {
        let text = |digits: &str| {
            let row = |row: usize| {
                format!("2024-01-02T00:00:0{}.00000{}{digits},{row}\n", row / 3, row % 3)
            };
            format!(
                "time,x\n{}2024-01-02T00:00:02.0000020{digits},9\n",
                (0..9).map(row).collect::<String>()
            )
        };
        let cut = "times are finer than a microsecond here";
        let error = said(&text("01").replace(".00000", ".000000"), |_| ());
        assert!(error.contains("the time of another") && error.contains(cut), "{error}");
        let error = said(&text("").replace("00:02.0000020", "00:02.000002"), |_| ());
        assert!(error.contains("the time of another") && !error.contains(cut), "{error}");
        let whole = "time,x\n1704067200000000100,1\n1704067200000000200,2\n1704067260000000000,3\n";
        let error = said(whole, |config| config.columns.time_unit = TimeUnit::Ns);
        assert!(error.contains(cut), "{error}");
    }

    #[test]
    fn values_too_large_are_told_as_such_where_nothing_is_left() {
        let text = "time,x,y\n2024-01-01,1e300,1\n2024-01-02,-2e300,2\n2024-01-03,1e300,3\n";
        let fill = |config: &mut DataConfig| config.checks.not_finite = Policy::Fill;
        let error = said(text, fill);
        let expected = "the values of its channel `x` are too large for f32, which ends at 3.4e38 (they reach 2e300); scale the column, or list the other channels";
        assert!(error.contains(expected), "{error}");
    }
}
