//! The `.ts` text format of the UCR and UEA archives of time series classification.
//!
//! One sample a line: channels separated by `:`, values by `,`, missing values written `?`, and the
//! class last. Samples may differ in length, the channels of one sample may not. Samples with
//! time stamps and regression targets are refused. Source of the format: the documentation of the
//! archives at timeseriesclassification.com.

use std::path::Path;
use std::sync::Arc;

use firebox_core::{Channel, Origin, Role};
use rayon::prelude::*;

use crate::error::nearest;
use crate::raw::{Piece, Raw, RawLabels, RawSeries, Rows};
use crate::{ChannelColumn, DataError};

/// What the lines before `@data` say.
#[derive(Clone, Debug, Default, PartialEq)]
struct Header {
    dimensions: Option<usize>,
    series_length: Option<usize>,
    equal_length: bool,
    missing_denied: bool,
    /// Class names, if samples have classes.
    classes: Option<Vec<String>>,
}

/// One line of data: the values of each channel, and the code of the class.
struct Sample {
    line: usize,
    columns: Vec<Vec<f64>>,
    class: Option<u32>,
}

/// Reads the whole text of a file; `path` is for messages.
pub(crate) fn read(
    path: &Path,
    text: &[u8],
    stem: &str,
    origin: Origin,
    names: &[ChannelColumn],
) -> Result<Raw, DataError> {
    let mut lines = text.split(|byte| *byte == b'\n').zip(1..);
    let header = header(path, &mut lines)?;
    let lines: Vec<(&[u8], usize)> = lines
        .map(|(line, number)| (line.trim_ascii(), number))
        .filter(|(l, _)| is_data(l))
        .collect();
    let samples: Vec<Result<Sample, DataError>> =
        lines.into_par_iter().map(|(line, number)| sample(path, line, number, &header)).collect();
    // The first bad line of the file, whatever thread finished first.
    let samples: Vec<Sample> = samples.into_iter().collect::<Result<_, _>>()?;
    let Some(first) = samples.first() else {
        return Err(DataError::Empty { path: path.to_owned() });
    };
    let channels = first.columns.len();
    if let Some(other) = samples.iter().find(|sample| sample.columns.len() != channels) {
        let problem = format!(
            "{} channels, but the sample of line {} has {channels}",
            other.columns.len(),
            first.line
        );
        return Err(DataError::line(path, other.line, problem));
    }
    let channels = name_channels(path, channels, names)?;
    let width = samples.len().to_string().len();
    let file: Arc<Path> = Arc::from(path);
    let series = samples.into_iter().enumerate().map(|(index, sample)| RawSeries {
        name: format!("{stem}/{:0width$}", index + 1),
        origin,
        time: None,
        labels: sample.class.map_or(RawLabels::None, RawLabels::Whole),
        pieces: vec![Piece {
            path: Arc::clone(&file),
            steps: sample.columns[0].len(),
            rows: Rows::From(1),
        }],
        columns: sample.columns,
    });
    let series = series.collect();
    Ok(Raw { channels, classes: header.classes.unwrap_or_default(), series, ..Raw::default() })
}

/// The declared names of channels that a file does not name, or `value`, or `channel-0`, ….
pub(crate) fn name_channels(
    path: &Path,
    count: usize,
    names: &[ChannelColumn],
) -> Result<Vec<Channel>, DataError> {
    let channels: Vec<Channel> = match names {
        [] if count == 1 => vec![Channel::new("value", Role::Other)],
        [] => (0..count).map(|n| Channel::new(format!("channel-{n}"), Role::Other)).collect(),
        names => names.iter().map(|name| Channel::new(&name.name, name.role())).collect(),
    };
    if channels.len() != count {
        return Err(DataError::ColumnType {
            path: path.to_owned(),
            column: "channel".to_owned(),
            found: format!("{count} channels without names"),
            wanted: format!(
                "`data.columns.channels` names them in order, and it has {} names",
                channels.len()
            ),
        });
    }
    crate::frame::check_roles(&channels)?;
    Ok(channels)
}

fn is_data(line: &[u8]) -> bool {
    !line.is_empty() && line[0] != b'#' && line[0] != b'%'
}

fn header<'a>(
    path: &Path,
    lines: &mut impl Iterator<Item = (&'a [u8], usize)>,
) -> Result<Header, DataError> {
    let mut header = Header::default();
    let mut last = 1;
    for (line, number) in lines {
        last = number;
        // A byte order mark may come before the first line.
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
        if !is_data(line) {
            continue;
        }
        let Some(directive) = line.strip_prefix(b"@") else {
            let problem = "data before `@data`: the header is missing or not complete";
            return Err(DataError::line(path, number, problem));
        };
        let directive = String::from_utf8_lossy(directive);
        let mut words = directive.split_whitespace();
        let key = words.next().unwrap_or_default().to_ascii_lowercase();
        let words: Vec<&str> = words.collect();
        if key == "data" {
            return Ok(header);
        }
        apply(&mut header, &key, &words)
            .map_err(|problem| DataError::line(path, number, problem))?;
    }
    Err(DataError::line(path, last, "the file ends before `@data`: is it a .ts file, and whole?"))
}

fn apply(header: &mut Header, key: &str, words: &[&str]) -> Result<(), String> {
    const KEYS: [&str; 9] = [
        "problemname",
        "timestamps",
        "missing",
        "univariate",
        "dimensions",
        "equallength",
        "serieslength",
        "classlabel",
        "targetlabel",
    ];
    let first = words.first().copied().unwrap_or_default();
    let truth = || match first.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(format!("`@{key}` is `{first}`: it must be true or false")),
    };
    let count = || match first.parse::<usize>() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(format!("`@{key}` is `{first}`: it must be a whole number from 1")),
    };
    match key {
        "problemname" => {}
        "timestamps" if truth()? => {
            return Err("`@timeStamps true`: values with time stamps are not read; export the series without them".to_owned());
        }
        "timestamps" => {}
        "missing" => header.missing_denied = !truth()?,
        "univariate" => {
            if truth()? {
                header.dimensions = Some(1);
            }
        }
        // `@dimension` is found in files of the archive too.
        "dimensions" | "dimension" => header.dimensions = Some(count()?),
        "equallength" => header.equal_length = truth()?,
        "serieslength" => header.series_length = Some(count()?),
        "classlabel" => header.classes = classes(truth()?, &words[1..])?,
        "targetlabel" if truth()? => {
            return Err(
                "`@targetLabel true`: regression targets are not read; only classes are".to_owned()
            );
        }
        "targetlabel" => {}
        _ => {
            let hint = nearest(key, KEYS).map(|key| format!(" (did you mean `@{key}`?)"));
            return Err(format!("`@{key}` is not known{}", hint.unwrap_or_default()));
        }
    }
    Ok(())
}

fn classes(present: bool, names: &[&str]) -> Result<Option<Vec<String>>, String> {
    if !present {
        return Ok(None);
    }
    if names.is_empty() {
        return Err("`@classLabel true` names no class".to_owned());
    }
    let mut seen = std::collections::HashSet::new();
    match names.iter().find(|name| !seen.insert(**name)) {
        Some(name) => Err(format!("`@classLabel` names the class `{name}` twice")),
        None => Ok(Some(names.iter().map(ToString::to_string).collect())),
    }
}

fn sample(path: &Path, line: &[u8], number: usize, header: &Header) -> Result<Sample, DataError> {
    let fail = |problem: String| DataError::line(path, number, problem);
    let mut parts: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
    let class = match &header.classes {
        None => None,
        Some(names) => {
            let name = parts.pop().unwrap_or_default().trim_ascii();
            if parts.is_empty() {
                return Err(fail(
                    "one part only: a sample is its channels and, after a `:`, its class"
                        .to_owned(),
                ));
            }
            Some(class(name, names).map_err(fail)?)
        }
    };
    if let Some(dimensions) = header.dimensions.filter(|dimensions| *dimensions != parts.len()) {
        let found = parts.len();
        return Err(fail(format!("{found} channels, but the header says {dimensions}")));
    }
    let columns: Vec<Vec<f64>> = parts
        .iter()
        .enumerate()
        .map(|(channel, part)| values(part, channel, header).map_err(fail))
        .collect::<Result<_, _>>()?;
    let steps = columns[0].len();
    if let Some(channel) = columns.iter().position(|column| column.len() != steps) {
        return Err(fail(format!(
            "channel {channel} has {} values, but channel 0 has {steps}: the channels of a sample have one length",
            columns[channel].len()
        )));
    }
    let wanted = header.series_length.filter(|_| header.equal_length);
    if let Some(wanted) = wanted.filter(|wanted| *wanted != steps) {
        return Err(fail(format!(
            "{steps} steps, but the header says that all samples have {wanted}"
        )));
    }
    Ok(Sample { line: number, columns, class })
}

fn class(name: &[u8], names: &[String]) -> Result<u32, String> {
    if let Some(code) = names.iter().position(|known| known.as_bytes() == name) {
        return Ok(code as u32);
    }
    // Some files write the class 1 as 1.0.
    let text = String::from_utf8_lossy(name);
    let number = |text: &str| text.parse::<f64>().ok();
    let same = |known: &String| number(known).is_some() && number(known) == number(&text);
    names.iter().position(same).map(|code| code as u32).ok_or_else(|| {
        format!("the class `{text}` is not one of those in the header ({})", names.join(" "))
    })
}

fn values(part: &[u8], channel: usize, header: &Header) -> Result<Vec<f64>, String> {
    let count = part.iter().filter(|byte| **byte == b',').count() + 1;
    let mut values = Vec::with_capacity(count);
    for (index, field) in part.split(|byte| *byte == b',').enumerate() {
        let field = field.trim_ascii();
        if field == b"?" {
            if header.missing_denied {
                return Err(format!(
                    "channel {channel}, step {index}: a missing value, but the header says `@missing false`"
                ));
            }
            values.push(f64::NAN);
            continue;
        }
        let value = std::str::from_utf8(field).ok().and_then(|text| text.parse().ok());
        values.push(value.ok_or_else(|| {
            let text = String::from_utf8_lossy(field);
            if text.starts_with('(') {
                return format!("channel {channel}: `{text}` has a time stamp; only plain values are read");
            }
            format!("channel {channel}, step {index}: `{text}` is not a number; missing values are written `?`")
        })?);
    }
    Ok(values)
}
