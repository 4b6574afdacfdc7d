//! The `.ts` text format of the UCR and UEA archives of time series classification.
//!
//! One sample a line: channels separated by `:`, values by `,`, missing values written `?`, and the
//! class last. Samples may differ in length unless the header denies it, the channels of one sample may
//! not. Samples with time stamps and regression targets are refused. Source of the format: the
//! documentation of the archives at timeseriesclassification.com.

use std::io::{BufRead, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use firebox_core::{Channel, Role, count};
use rayon::prelude::*;

use crate::error::nearest;
use crate::input::Input;
use crate::raw::{Piece, Raw, RawLabels, RawSeries, Rows};
use crate::{ChannelColumn, DataError};

/// The way out where samples differ in length and the header denies it.
const UNEQUAL: &str = "correct the sample, or write `@equalLength false`";

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

impl Sample {
    fn steps(&self) -> usize {
        self.columns[0].len()
    }
}

/// Reads a file twice: to count its samples, by which they are named, and to take samples of so many bytes at once, or one.
/// `take` is told how many have been taken, of how many.
pub(crate) fn each_part<E: From<DataError>>(
    (input, names): (&Input, &[ChannelColumn]),
    source: impl BufRead + Seek,
    at_once: usize,
    mut take: impl FnMut(Raw, [usize; 2]) -> Result<(), E>,
) -> Result<(), E> {
    let path = &input.path;
    let failed = |error| DataError::io("read", path)(error);
    let mut lines = Lines { source, text: vec![], number: 0 };
    let mut known = Known { path, header: header(path, &mut lines)?, first: None };
    let begin = (lines.source.stream_position().map_err(failed)?, lines.number);
    let mut all = 0;
    while lines.next().map_err(failed)? {
        all += usize::from(is_data(&lines.text));
    }
    if all == 0 {
        return Err(DataError::Empty { path: path.clone() }.into());
    }
    lines.source.seek(SeekFrom::Start(begin.0)).map_err(failed)?;
    lines.number = begin.1;
    let (stem, digits) = (input.name(), all.to_string().len());
    let (file, mut done): (Arc<Path>, _) = (Arc::from(path.as_path()), 0);
    loop {
        let part = lines.part(at_once).map_err(failed)?;
        let samples = known.samples(&part)?;
        let Some(first) = samples.first() else { return Ok(()) };
        let channels = name_channels(path, first.columns.len(), names)?;
        let of = (done + 1..).zip(samples).map(|(number, sample)| RawSeries {
            name: format!("{stem}/{number:0digits$}"),
            origin: input.origin,
            time: None,
            labels: sample.class.map_or(RawLabels::None, RawLabels::Whole),
            pieces: vec![Piece {
                path: Arc::clone(&file),
                steps: sample.steps(),
                rows: Rows::From(1),
            }],
            columns: sample.columns,
        });
        let series: Vec<RawSeries> = of.collect();
        done += series.len();
        let classes = known.header.classes.clone().unwrap_or_default();
        take(Raw { channels, classes, series, ..Raw::default() }, [done, all.max(done)])?;
    }
}

/// A file, line by line.
struct Lines<R> {
    source: R,
    /// The last one.
    text: Vec<u8>,
    /// How many there were with it.
    number: usize,
}

/// Consecutive lines with samples.
#[derive(Default)]
struct Part {
    bytes: Vec<u8>,
    /// Where each lies in these, and its number.
    lines: Vec<(Range<usize>, usize)>,
}

impl<R: BufRead> Lines<R> {
    /// Whether there is another line.
    fn next(&mut self) -> std::io::Result<bool> {
        self.text.clear();
        if self.source.read_until(b'\n', &mut self.text)? == 0 {
            return Ok(false);
        }
        self.number += 1;
        Ok(true)
    }

    /// The next samples, of so many bytes or one; none at the end.
    fn part(&mut self, at_once: usize) -> std::io::Result<Part> {
        let mut part = Part::default();
        while part.bytes.len() < at_once && self.next()? {
            let line = self.text.trim_ascii();
            if is_data(line) {
                let begin = part.bytes.len();
                part.bytes.extend_from_slice(line);
                part.lines.push((begin..part.bytes.len(), self.number));
            }
        }
        Ok(part)
    }
}

/// What is known of the samples of a file.
struct Known<'a> {
    path: &'a Path,
    header: Header,
    /// Of the first sample.
    first: Option<First>,
}

#[derive(Clone, Copy)]
struct First {
    line: usize,
    channels: usize,
    steps: usize,
}

impl Known<'_> {
    fn samples(&mut self, part: &Part) -> Result<Vec<Sample>, DataError> {
        let Self { path, header, first } = self;
        let read = |(bytes, number): &(Range<usize>, usize)| {
            sample(path, &part.bytes[bytes.clone()], *number, header)
        };
        let samples: Vec<Result<Sample, DataError>> = part.lines.par_iter().map(read).collect();
        // The first bad line of the file, whatever thread finished first.
        let samples: Vec<Sample> = samples.into_iter().collect::<Result<_, _>>()?;
        let Some(sample) = samples.first() else { return Ok(samples) };
        let First { line, channels, steps } = *first.get_or_insert(First {
            line: sample.line,
            channels: sample.columns.len(),
            steps: sample.steps(),
        });
        if let Some(other) = samples.iter().find(|sample| sample.columns.len() != channels) {
            let found = count(other.columns.len() as u64, "channel");
            let problem = format!("{found}, but the sample of line {line} has {channels}");
            return Err(DataError::line(path, other.line, problem));
        }
        let other_length = |sample: &&Sample| header.equal_length && sample.steps() != steps;
        if let Some(other) = samples.iter().find(other_length) {
            let found = count(other.steps() as u64, "step");
            let problem = format!(
                "{found}, but the sample of line {line} has {steps}, and the header says `@equalLength true`: {UNEQUAL}"
            );
            return Err(DataError::line(path, other.line, problem));
        }
        Ok(samples)
    }
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
        return Err(DataError::ChannelNames {
            path: path.to_owned(),
            channels: count,
            names: channels.len(),
        });
    }
    crate::mapping::check_roles(&channels)?;
    Ok(channels)
}

/// Whether a line is neither empty nor a remark.
fn is_data(line: &[u8]) -> bool {
    let first = line.trim_ascii_start().first();
    first.is_some_and(|first| !matches!(first, b'#' | b'%'))
}

/// What the lines up to `@data` say.
fn header(path: &Path, lines: &mut Lines<impl BufRead>) -> Result<Header, DataError> {
    let mut header = Header::default();
    while lines.next().map_err(DataError::io("read", path))? {
        let number = lines.number;
        // A byte order mark may come before the first line.
        let line = lines.text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&lines.text).trim_ascii();
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
    let problem = "the file ends before `@data`: is it a .ts file, and whole?";
    Err(DataError::line(path, lines.number.max(1), problem))
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
        let found = count(parts.len() as u64, "channel");
        return Err(fail(format!("{found}, but the header says {dimensions}")));
    }
    let columns: Vec<Vec<f64>> = parts
        .iter()
        .enumerate()
        .map(|(channel, part)| values(part, channel, header).map_err(fail))
        .collect::<Result<_, _>>()?;
    let steps = columns[0].len();
    if let Some(channel) = columns.iter().position(|column| column.len() != steps) {
        return Err(fail(format!(
            "channel {channel} has {}, but channel 0 has {steps}: the channels of a sample have one length",
            count(columns[channel].len() as u64, "value")
        )));
    }
    let wanted = header.series_length.filter(|_| header.equal_length);
    if let Some(wanted) = wanted.filter(|wanted| *wanted != steps) {
        return Err(fail(format!(
            "{}, but the header says that all samples have {wanted}: {UNEQUAL}",
            count(steps as u64, "step")
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
    if part.trim_ascii().is_empty() {
        return Err(format!(
            "channel {channel} has no value: leave the sample out, or write `?` for a missing value"
        ));
    }
    let count = part.iter().filter(|byte| **byte == b',').count() + 1;
    let mut values = Vec::with_capacity(count);
    for (index, field) in part.split(|byte| *byte == b',').enumerate() {
        let field = field.trim_ascii();
        if field == b"?" {
            if header.missing_denied {
                return Err(format!(
                    "channel {channel}, step {index}: a missing value, but the header says `@missing false`: correct the value, or write `@missing true`"
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Format;
    use firebox_core::Origin;
    use proptest::prelude::*;

    /// Everything in a text, of which so many bytes are taken at once.
    fn parse_by(at_once: usize, text: &[u8]) -> Result<Raw, String> {
        let input = Input {
            path: "x.ts".into(),
            format: Format::Ts,
            origin: Origin::Train,
            within: String::new(),
        };
        let mut all = Raw::default();
        let taken = each_part((&input, &[]), std::io::Cursor::new(text), at_once, |part, _| {
            let before = std::mem::take(&mut all.series);
            all = Raw { series: before.into_iter().chain(part.series).collect(), ..part };
            Ok(())
        });
        taken.map(|()| all).map_err(|error: DataError| error.to_string())
    }

    /// The same, whose result is the same for any number of bytes.
    fn parse(text: impl AsRef<[u8]>) -> Result<Raw, String> {
        let text = text.as_ref();
        let whole = parse_by(usize::MAX, text);
        for at_once in [1, 20] {
            let parts = parse_by(at_once, text);
            assert_eq!(parts.is_ok(), whole.is_ok());
            if let (Ok(parts), Ok(whole)) = (parts, &whole) {
                // Missing values are not equal to themselves.
                assert_eq!(format!("{parts:?}"), format!("{whole:?}"));
            }
        }
        whole
    }

    const TWO: &str = "# note\n@problemName t\n@timeStamps false\n@univariate false\n@dimensions 2\n@classLabel true a b\n@data\n";

    #[test]
    fn samples_of_unequal_length_with_missing_values_are_read() {
        let text = format!("{TWO}1,2.5,?:4,-5e1,6:a\r\n\r\n# aside\r\n7 , 8:9,10:b");
        let raw = parse(text).unwrap();
        assert_eq!(raw.classes, ["a", "b"]);
        assert_eq!(raw.channels.len(), 2);
        assert_eq!((raw.series[0].name.as_str(), raw.series[1].name.as_str()), ("x/1", "x/2"));
        assert_eq!(raw.series[0].columns[1], [4.0, -50.0, 6.0]);
        assert!(raw.series[0].columns[0][2].is_nan());
        assert_eq!(raw.series[1].columns, [[7.0, 8.0], [9.0, 10.0]]);
        assert_eq!(raw.series[1].labels, RawLabels::Whole(1));
        assert_eq!(raw.series[1].origin, Origin::Train);
    }

    #[test]
    fn directives_in_any_case_and_classless_files_are_read() {
        let raw = parse("@CLASSLABEL false\n@Missing true\n@DATA\n1,2\n3").unwrap();
        assert_eq!(raw.series.len(), 2);
        assert_eq!(raw.series[0].labels, RawLabels::None);
        assert_eq!(raw.channels[0].name, "value");
        let raw = parse("@classLabel true 1 2\n@data\n1,2:2.0").unwrap();
        assert_eq!(raw.series[0].labels, RawLabels::Whole(1));
    }

    #[test]
    fn every_error_names_its_line() {
        let problem = |text: &str| parse(text).unwrap_err();
        let rows = |rows: &str| parse(format!("{TWO}{rows}")).unwrap_err();
        insta::assert_snapshot!(problem(""), @"x.ts, line 1: the file ends before `@data`: is it a .ts file, and whole?");
        insta::assert_snapshot!(problem("1,2,3:a\n"), @"x.ts, line 1: data before `@data`: the header is missing or not complete");
        insta::assert_snapshot!(problem("@univarate true\n@data\n1"), @"x.ts, line 1: `@univarate` is not known (did you mean `@univariate`?)");
        insta::assert_snapshot!(problem("\n@equalLength yes\n@data\n1"), @"x.ts, line 2: `@equallength` is `yes`: it must be true or false");
        insta::assert_snapshot!(problem("@dimensions many\n@data\n1"), @"x.ts, line 1: `@dimensions` is `many`: it must be a whole number from 1");
        insta::assert_snapshot!(problem("@classLabel true\n@data\n1"), @"x.ts, line 1: `@classLabel true` names no class");
        insta::assert_snapshot!(problem("@classLabel true a a\n@data\n1"), @"x.ts, line 1: `@classLabel` names the class `a` twice");
        insta::assert_snapshot!(problem("@timeStamps true\n@data\n(0,1)"), @"x.ts, line 1: `@timeStamps true`: values with time stamps are not read; export the series without them");
        insta::assert_snapshot!(problem("@targetLabel true\n@data\n1:0.5"), @"x.ts, line 1: `@targetLabel true`: regression targets are not read; only classes are");
        insta::assert_snapshot!(problem("@data\n\n"), @"x.ts has no row of data");
        insta::assert_snapshot!(rows("1,2:3,4:c"), @"x.ts, line 8: the class `c` is not one of those in the header (a b)");
        insta::assert_snapshot!(rows("1,2:3,4:a\n1,2:a"), @"x.ts, line 9: 1 channel, but the header says 2");
        insta::assert_snapshot!(rows("1,2:3:a"), @"x.ts, line 8: channel 1 has 1 value, but channel 0 has 2: the channels of a sample have one length");
        insta::assert_snapshot!(rows("1,2:3,4x:a"), @"x.ts, line 8: channel 1, step 1: `4x` is not a number; missing values are written `?`");
        insta::assert_snapshot!(rows("1,2::a"), @"x.ts, line 8: channel 1 has no value: leave the sample out, or write `?` for a missing value");
        insta::assert_snapshot!(rows("1,2"), @"x.ts, line 8: one part only: a sample is its channels and, after a `:`, its class");
        insta::assert_snapshot!(problem("@missing false\n@data\n1,?"), @"x.ts, line 3: channel 0, step 1: a missing value, but the header says `@missing false`: correct the value, or write `@missing true`");
        insta::assert_snapshot!(problem("@equalLength true\n@seriesLength 3\n@data\n1,2,3\n1,2"), @"x.ts, line 5: 2 steps, but the header says that all samples have 3: correct the sample, or write `@equalLength false`");
        insta::assert_snapshot!(problem("@equalLength true\n@data\n1,2,3\n4,5,6\n1,2"), @"x.ts, line 5: 2 steps, but the sample of line 3 has 3, and the header says `@equalLength true`: correct the sample, or write `@equalLength false`");
        insta::assert_snapshot!(problem("@data\n1:2\n3"), @"x.ts, line 3: 1 channel, but the sample of line 2 has 2");
        insta::assert_snapshot!(problem("@data\n(0,1),(1,2)"), @"x.ts, line 2: channel 0: `(0` has a time stamp; only plain values are read");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(bytes);
        }

        #[test]
        fn no_text_of_the_right_letters_panics(text in "[@a-z:,?#0-9.\\-\n (]{0,80}", rows: bool) {
            let _ = parse(if rows { format!("{TWO}{text}") } else { text });
        }

        #[test]
        fn samples_round_trip(
            samples in proptest::collection::vec(
                (1usize..8).prop_flat_map(|steps| (
                    proptest::collection::vec(proptest::collection::vec(-1e9..1e9f64, steps), 3),
                    0u32..4,
                )),
                1..10,
            ),
        ) {
            let mut text = "@dimensions 3\n@classLabel true c0 c1 c2 c3\n@data\n".to_owned();
            for (columns, class) in &samples {
                for column in columns {
                    let values: Vec<String> = column.iter().map(ToString::to_string).collect();
                    text += &format!("{}:", values.join(","));
                }
                text += &format!("c{class}\n");
            }
            let raw = parse(text).unwrap();
            let read: Vec<_> = raw.series.into_iter().map(|series| (series.columns, series.labels)).collect();
            let written: Vec<_> = samples.into_iter().map(|(c, class)| (c, RawLabels::Whole(class))).collect();
            prop_assert_eq!(read, written);
        }
    }
}
