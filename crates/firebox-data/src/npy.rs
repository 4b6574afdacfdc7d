//! NumPy's `.npy` arrays, read strictly.
//!
//! Versions 1 to 3 of the header, both byte orders, C and Fortran order, floating-point, integer
//! and boolean values. Pickled objects, structures and complex numbers are refused. Source of the
//! format: `numpy.lib.format`.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use firebox_core::Channel;
use half::f16;
use rayon::prelude::*;

use crate::input::Input;
use crate::raw::{Interner, NO_LABEL, Piece, Raw, RawLabels, RawSeries, Rows};
use crate::ts::name_channels;
use crate::{ChannelColumn, DataError, Format};

/// The type of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bool,
    Signed,
    Unsigned,
    Float,
}

/// The type of the values of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) kind: Kind,
    pub(crate) bytes: usize,
}

impl Element {
    /// Its name in NumPy.
    pub(crate) fn name(self) -> &'static str {
        match (self.kind, self.bytes) {
            (Kind::Bool, _) => "bool",
            (Kind::Signed, 1) => "int8",
            (Kind::Signed, 2) => "int16",
            (Kind::Signed, 4) => "int32",
            (Kind::Signed, _) => "int64",
            (Kind::Unsigned, 1) => "uint8",
            (Kind::Unsigned, 2) => "uint16",
            (Kind::Unsigned, 4) => "uint32",
            (Kind::Unsigned, _) => "uint64",
            (Kind::Float, 2) => "float16",
            (Kind::Float, 4) => "float32",
            (Kind::Float, _) => "float64",
        }
    }

    pub(crate) fn is_float(self) -> bool {
        self.kind == Kind::Float
    }

    /// Whether arrays of both may be one set. float64 is rounded to float32 at the latest in a batch. float16 has lost
    /// digits that the others have, and short whole numbers mostly are of another scale for each type. Those of 32 and 64
    /// bits are what NumPy makes of the same numbers on different systems.
    pub(crate) fn goes_with(self, other: Self) -> bool {
        let wide = |element: Self| match element.kind {
            Kind::Bool => false,
            Kind::Float | Kind::Signed | Kind::Unsigned => element.bytes > 2,
        };
        self == other || (self.kind == other.kind && wide(self) && wide(other))
    }
}

/// What the header of an array says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) element: Element,
    pub(crate) big_endian: bool,
    pub(crate) fortran: bool,
    pub(crate) shape: Vec<usize>,
    /// Offset of the first value.
    pub(crate) start: usize,
}

/// Why an array is not read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) text: String,
    /// What it holds, if the file is in order and its values are of a type that is not read.
    pub(crate) holds: Option<&'static str>,
}

impl From<String> for Problem {
    fn from(text: String) -> Self {
        Self { text, holds: None }
    }
}

impl From<&str> for Problem {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

/// An array in C order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Array {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f64>,
}

/// Reads the bytes of a file as an array of f64; whole numbers beyond 2⁵³ are rounded.
///
/// # Errors
///
/// Says what breaks the rules of the format.
#[cfg(test)]
fn parse(bytes: &[u8]) -> Result<Array, String> {
    decoded(bytes, header(bytes).map_err(|problem| problem.text)?)
}

fn decoded(bytes: &[u8], header: Header) -> Result<Array, String> {
    let values = in_c_order(bytes, &header, decode)?;
    Ok(Array { shape: header.shape, values })
}

/// All values of a file, as `decode` reads them, in the order of C.
fn in_c_order<T: Copy>(
    bytes: &[u8],
    header: &Header,
    decode: impl Fn(&[u8], &Header) -> Vec<T>,
) -> Result<Vec<T>, String> {
    let data = &bytes[header.start..];
    fits(header, data.len())?;
    let values = decode(data, header);
    match header.fortran && header.shape.len() > 1 {
        true => Ok(from_fortran(&values, &header.shape)),
        false => Ok(values),
    }
}

/// Refuses so many bytes of values if there should be others.
pub(crate) fn fits(header: &Header, found: usize) -> Result<(), String> {
    let count = header.shape.iter().try_fold(1usize, |a, b| a.checked_mul(*b));
    let Some(wanted) = count.and_then(|count| count.checked_mul(header.element.bytes)) else {
        return Err(format!("its shape {:?} is beyond any memory", header.shape));
    };
    match found.cmp(&wanted) {
        Ordering::Less => Err(cut_off(found, wanted)),
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(format!(
            "{} bytes follow the last value: save one array in each file",
            found - wanted
        )),
    }
}

/// What the header of a file says, if that can be read.
pub(crate) fn header_of(path: &Path) -> Option<Header> {
    let (header, _) = read_header(&mut File::open(path).ok()?).ok()?.ok()?;
    Some(header)
}

pub(crate) fn header(bytes: &[u8]) -> Result<Header, Problem> {
    let [prefix, start] = start(bytes)?;
    let text = bytes.get(prefix..start).ok_or_else(|| CUT.to_owned())?;
    let text = std::str::from_utf8(text).map_err(|_| "its header is not text")?;
    let mut parser = Literal { rest: text.trim_end() };
    let mut header = parser.dictionary()?;
    header.start = start;
    Ok(header)
}

const CUT: &str = "it is cut off within its header";

/// Where the text of the header begins, and the values.
fn start(bytes: &[u8]) -> Result<[usize; 2], Problem> {
    let rest = bytes.strip_prefix(b"\x93NUMPY").ok_or("it does not begin as a NumPy array does")?;
    let (length, prefix) = match *rest {
        [1, 0, a, b, ..] => (usize::from(u16::from_le_bytes([a, b])), 10),
        [2 | 3, 0, a, b, c, d, ..] => (u32::from_le_bytes([a, b, c, d]) as usize, 12),
        [1..=3, 0, ..] | [] | [_] => return Err(CUT.into()),
        [major, minor, ..] => {
            return Err(format!("version {major}.{minor} of the format is not known").into());
        }
    };
    Ok([prefix, length.checked_add(prefix).ok_or(CUT)?])
}

/// Reads the Python dictionary of a header.
struct Literal<'a> {
    rest: &'a str,
}

impl<'a> Literal<'a> {
    fn dictionary(&mut self) -> Result<Header, Problem> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        self.expect("{")?;
        while !self.skip("}") {
            let key = self.string()?;
            self.expect(":")?;
            match key {
                "descr" => descr = Some(self.descr()?),
                "fortran_order" => fortran = Some(self.boolean()?),
                "shape" => shape = Some(self.tuple()?),
                other => return Err(format!("its header has the unknown key `{other}`").into()),
            }
            if !self.skip(",") {
                self.expect("}")?;
                break;
            }
        }
        if !self.rest.trim().is_empty() {
            return Err("its header goes on after its end".into());
        }
        let missing = |key: &str| format!("its header lacks the key `{key}`");
        let (element, big_endian) = descr.ok_or_else(|| missing("descr"))?;
        let fortran = fortran.ok_or_else(|| missing("fortran_order"))?;
        let shape = shape.ok_or_else(|| missing("shape"))?;
        Ok(Header { element, big_endian, fortran, shape, start: 0 })
    }

    fn skip(&mut self, token: &str) -> bool {
        match self.rest.trim_start().strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        match self.skip(token) {
            true => Ok(()),
            false => {
                let found: String = self.rest.trim_start().chars().take(10).collect();
                Err(format!("its header has `{found}` where `{token}` should be"))
            }
        }
    }

    fn string(&mut self) -> Result<&'a str, String> {
        let quote = if self.skip("'") { '\'' } else { self.expect("\"").map(|()| '"')? };
        let (text, rest) =
            self.rest.split_once(quote).ok_or("its header has a text without an end")?;
        self.rest = rest;
        Ok(text)
    }

    fn boolean(&mut self) -> Result<bool, String> {
        if self.skip("True") { Ok(true) } else { self.expect("False").map(|()| false) }
    }

    fn tuple(&mut self) -> Result<Vec<usize>, String> {
        let mut numbers = Vec::new();
        self.expect("(")?;
        while !self.skip(")") {
            let rest = self.rest.trim_start();
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let number =
                rest[..end].parse().map_err(|_| "its shape is no tuple of whole numbers")?;
            numbers.push(number);
            // Python 2 wrote long integers with an L.
            self.rest = rest[end..].strip_prefix('L').unwrap_or(&rest[end..]);
            if !self.skip(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(numbers)
    }

    fn descr(&mut self) -> Result<(Element, bool), Problem> {
        if self.rest.trim_start().starts_with('[') {
            return Err(Problem {
                text: "it holds structures: save each field as an array of its own".to_owned(),
                holds: Some("structures (save each field as an array of its own)"),
            });
        }
        let text = self.string()?;
        let (order, kind) = match text.as_bytes() {
            [order @ (b'<' | b'>' | b'|' | b'='), kind @ ..] => (*order, kind),
            kind => (b'=', kind),
        };
        let big_endian = order == b'>' || (order == b'=' && cfg!(target_endian = "big"));
        let (kind, bytes) = match kind {
            b"b1" => (Kind::Bool, 1),
            b"i1" => (Kind::Signed, 1),
            b"i2" => (Kind::Signed, 2),
            b"i4" => (Kind::Signed, 4),
            b"i8" => (Kind::Signed, 8),
            b"u1" => (Kind::Unsigned, 1),
            b"u2" => (Kind::Unsigned, 2),
            b"u4" => (Kind::Unsigned, 4),
            b"u8" => (Kind::Unsigned, 8),
            b"f2" => (Kind::Float, 2),
            b"f4" => (Kind::Float, 4),
            b"f8" => (Kind::Float, 8),
            [b'O', ..] => {
                return Err(Problem {
                    text: "it holds pickled Python objects: save arrays of numbers, for series of different lengths one file each".to_owned(),
                    holds: Some("pickled Python objects (save series of different lengths as one file each)"),
                });
            }
            other => {
                let text = format!(
                    "it holds values of the type `{text}`: float16 to float64, integers and bool are read"
                );
                return Err(Problem { text, holds: other_type(other) });
            }
        };
        Ok((Element { kind, bytes }, big_endian))
    }
}

/// What values of a type hold that NumPy has and that is not read; none if it has no such type.
fn other_type(kind: &[u8]) -> Option<&'static str> {
    match kind {
        [b'c', ..] => Some("complex numbers"),
        [b'S' | b'U' | b'a', ..] => Some("text"),
        [b'M', ..] => Some("dates"),
        [b'm', ..] => Some("durations"),
        [b'V', ..] => Some("raw bytes"),
        b"f12" | b"f16" => Some("numbers longer than float64"),
        _ => None,
    }
}

fn decode(data: &[u8], header: &Header) -> Vec<f64> {
    macro_rules! each {
        ($type:ty, $convert:expr) => {
            data.chunks_exact(size_of::<$type>())
                .map(|bytes| {
                    let mut array = [0; size_of::<$type>()];
                    array.copy_from_slice(bytes);
                    let value = match header.big_endian {
                        true => <$type>::from_be_bytes(array),
                        false => <$type>::from_le_bytes(array),
                    };
                    $convert(value)
                })
                .collect()
        };
    }
    match (header.element.kind, header.element.bytes) {
        (Kind::Bool, _) => data.iter().map(|byte| f64::from(u8::from(*byte != 0))).collect(),
        (Kind::Signed, 1) => each!(i8, f64::from),
        (Kind::Signed, 2) => each!(i16, f64::from),
        (Kind::Signed, 4) => each!(i32, f64::from),
        (Kind::Signed, _) => each!(i64, |value| value as f64),
        (Kind::Unsigned, 1) => each!(u8, f64::from),
        (Kind::Unsigned, 2) => each!(u16, f64::from),
        (Kind::Unsigned, 4) => each!(u32, f64::from),
        (Kind::Unsigned, _) => each!(u64, |value| value as f64),
        (Kind::Float, 2) => each!(f16, f64::from),
        (Kind::Float, 4) => each!(f32, f64::from),
        (Kind::Float, _) => each!(f64, |value| value),
    }
}

/// Whole numbers to their last digit.
fn decode_whole(data: &[u8], header: &Header) -> Vec<i128> {
    let Header { element, big_endian, .. } = header;
    let shift = u64::BITS - 8 * element.bytes as u32;
    let number = |bytes: &[u8]| {
        let add = |sum: u64, byte: &u8| (sum << 8) | u64::from(*byte);
        let number = match *big_endian {
            true => bytes.iter().fold(0, add),
            false => bytes.iter().rev().fold(0, add),
        };
        match element.kind {
            Kind::Bool => i128::from(number != 0),
            Kind::Signed => i128::from(((number << shift) as i64) >> shift),
            Kind::Unsigned | Kind::Float => i128::from(number),
        }
    };
    data.chunks_exact(element.bytes).map(number).collect()
}

/// Column-major → row-major.
fn from_fortran<T: Copy>(values: &[T], shape: &[usize]) -> Vec<T> {
    let mut strides = vec![1; shape.len()];
    for axis in 1..shape.len() {
        strides[axis] = strides[axis - 1] * shape[axis - 1];
    }
    let mut index = vec![0; shape.len()];
    let mut offset = 0;
    (0..values.len())
        .map(|_| {
            let value = values[offset];
            for axis in (0..shape.len()).rev() {
                index[axis] += 1;
                offset += strides[axis];
                if index[axis] < shape[axis] {
                    break;
                }
                offset -= strides[axis] * shape[axis];
                index[axis] = 0;
            }
            value
        })
        .collect()
}

/// Reads an array as one series (`[time]` or `[time, channel]`) or as samples (`[sample, time, channel]`), with the labels of
/// a second array if there is one: samples of so many bytes as f64 at once, or one. `take` is told how many have been read, of how
/// many. An array in Fortran order is read at once.
pub(crate) fn each_part<E: From<DataError>>(
    (input, names): (&Input, &[ChannelColumn]),
    (mut source, length): (impl Read, u64),
    labels: Option<(&Path, &[u8])>,
    at_once: usize,
    mut take: impl FnMut(Raw, [usize; 2]) -> Result<(), E>,
) -> Result<(), E> {
    let path = &input.path;
    let malformed = |problem| DataError::malformed(path, Format::Npy, problem);
    let (header, begin) = read_header(&mut source)
        .map_err(DataError::io("read", path))?
        .map_err(|problem| malformed(problem.text))?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    fits(&header, length.saturating_sub(header.start)).map_err(malformed)?;
    let mut values = begin[header.start..].chain(source);
    let parts = Parts::new((input, names), header, labels)?;
    let (samples, of_sample) = (parts.samples, parts.bytes_of_sample());
    let as_f64 = of_sample.saturating_mul(size_of::<f64>() / parts.header.element.bytes);
    let count = if parts.is_turned() { samples } else { (at_once / as_f64).clamp(1, samples) };
    let (mut bytes, mut first) = (Vec::new(), 0);
    while first < samples {
        let own = first..samples.min(first + count);
        let wanted = own.len() * of_sample;
        bytes.clear();
        reserve(&mut bytes, wanted).map_err(DataError::io("read", path))?;
        let read = values.by_ref().take(wanted as u64).read_to_end(&mut bytes);
        if read.map_err(DataError::io("read", path))? < wanted {
            let found = first * of_sample + bytes.len();
            return Err(malformed(cut_off(found, samples * of_sample)).into());
        }
        first = own.end;
        take(parts.series(own, &bytes)?, [first, samples])?;
    }
    Ok(())
}

/// Room for so many more; a series may be larger than memory.
fn reserve<T>(values: &mut Vec<T>, more: usize) -> io::Result<()> {
    values
        .try_reserve_exact(more)
        .map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))
}

/// The header of an array, and what was read of the file for it.
pub(crate) fn read_header(
    source: &mut impl Read,
) -> io::Result<Result<(Header, Vec<u8>), Problem>> {
    // That of any array of a sensible shape is no longer than the first; a damaged one may say that it has gigabytes.
    const USUAL: usize = 1 << 12;
    const LONGEST: usize = 1 << 20;
    let mut begin = Vec::new();
    source.take(USUAL as u64).read_to_end(&mut begin)?;
    if let Ok([_, start]) = start(&begin) {
        let more = start.min(LONGEST).saturating_sub(begin.len());
        source.take(more as u64).read_to_end(&mut begin)?;
    }
    Ok(header(&begin).map(|header| (header, begin)))
}

fn cut_off(found: usize, wanted: usize) -> String {
    format!("it is cut off: {found} of {wanted} bytes of values")
}

/// An array whose header has been read, and what its series are called.
struct Parts<'a> {
    input: &'a Input,
    header: Header,
    channels: Vec<Channel>,
    classes: Vec<String>,
    codes: Option<Vec<u32>>,
    samples: usize,
    /// Whether the array has an axis of samples.
    several: bool,
    steps: usize,
    width: usize,
}

impl<'a> Parts<'a> {
    fn new(
        (input, names): (&'a Input, &[ChannelColumn]),
        header: Header,
        labels: Option<(&Path, &[u8])>,
    ) -> Result<Self, DataError> {
        let path = &input.path;
        let malformed = |path: &Path, problem| DataError::malformed(path, Format::Npy, problem);
        let (several, samples, steps, width) = match *header.shape {
            [steps] => (false, 1, steps, 1),
            [steps, width] => (false, 1, steps, width),
            [samples, steps, width] => (true, samples, steps, width),
            ref shape => {
                let problem = format!(
                    "its shape {shape:?} has {} axes: arrays are [time], [time, channel] or [sample, time, channel]",
                    shape.len()
                );
                return Err(malformed(path, problem));
            }
        };
        if samples * steps * width == 0 {
            // A folder of whole numbers is none that is converted, with this array or without it.
            let unconvertible = labels.is_some() || !header.element.is_float();
            let (path, shape) = (path.clone(), header.shape);
            return Err(DataError::EmptyArray { path, shape, unconvertible });
        }
        let channels = name_channels(path, width, names)?;
        let mut classes = Interner::default();
        let codes = match labels {
            Some((file, bytes)) => Some((file, codes(file, bytes, &mut classes)?)),
            None => None,
        };
        if let Some((file, codes)) = &codes {
            let fits = codes.len() == samples || (!several && codes.len() == steps);
            if !fits {
                let wanted = match several {
                    true => format!("{samples}, one for each sample"),
                    false => format!("1 or {steps}, one for the series or one for each step"),
                };
                let problem = format!(
                    "it has {}: {} needs {wanted}",
                    firebox_core::count(codes.len() as u64, "label"),
                    path.display()
                );
                return Err(malformed(file, problem));
            }
        }
        let (classes, codes) = (classes.names, codes.map(|(_, codes)| codes));
        Ok(Self { input, header, channels, classes, codes, samples, several, steps, width })
    }

    fn bytes_of_sample(&self) -> usize {
        self.steps * self.width * self.header.element.bytes
    }

    /// Whether the first axis is the innermost of several.
    fn is_turned(&self) -> bool {
        self.header.fortran && self.header.shape.len() > 1
    }

    /// These samples, of these bytes.
    fn series(&self, own: Range<usize>, bytes: &[u8]) -> Result<Raw, DataError> {
        let Self { input, header, steps, width, .. } = self;
        let (stem, digits) = (input.name(), self.samples.to_string().len());
        let file: Arc<Path> = Arc::from(input.path.as_path());
        let of_sample = self.bytes_of_sample();
        let fortran = self.is_turned().then(|| from_fortran(&decode(bytes, header), &header.shape));
        let columns = |place: usize| match &fortran {
            Some(values) => {
                let values = &values[place * steps * width..(place + 1) * steps * width];
                Ok((0..*width).map(|channel| every(values, channel, *width).collect()).collect())
            }
            None => self.columns(&bytes[place * of_sample..(place + 1) * of_sample]),
        };
        let series = |(place, index): (usize, usize)| -> Result<RawSeries, DataError> {
            Ok(RawSeries {
                name: match self.several {
                    true => format!("{stem}/{:0digits$}", index + 1),
                    false => stem.clone(),
                },
                origin: input.origin,
                time: None,
                columns: columns(place).map_err(DataError::io("read", &input.path))?,
                labels: match &self.codes {
                    None => RawLabels::None,
                    Some(codes) if codes.len() == self.samples => RawLabels::Whole(codes[index]),
                    Some(codes) => RawLabels::PerStep(codes.clone()),
                },
                pieces: vec![Piece { path: Arc::clone(&file), steps: *steps, rows: Rows::From(1) }],
            })
        };
        let own: Vec<_> = own.enumerate().collect();
        let series = own.into_par_iter().map(series).collect::<Result<_, DataError>>()?;
        let (channels, classes) = (self.channels.clone(), self.classes.clone());
        Ok(Raw { channels, classes, series, element: Some(header.element), ..Raw::default() })
    }

    /// The channels of one sample, some rows at a time, so that its values are never there twice.
    fn columns(&self, bytes: &[u8]) -> io::Result<Vec<Vec<f64>>> {
        const AT_ONCE: usize = 1 << 15;
        let Self { header, steps, width, .. } = self;
        let mut columns: Vec<Vec<f64>> = vec![vec![]; *width];
        columns.iter_mut().try_for_each(|column| reserve(column, *steps))?;
        let row = width * header.element.bytes;
        for rows in bytes.chunks((AT_ONCE / row).max(1) * row) {
            let values = decode(rows, header);
            for (channel, column) in columns.iter_mut().enumerate() {
                column.extend(every(&values, channel, *width));
            }
        }
        Ok(columns)
    }
}

/// The values of one channel, of rows of so many.
fn every(values: &[f64], channel: usize, width: usize) -> impl Iterator<Item = f64> {
    values[channel..].iter().step_by(width).copied()
}

/// Labels are whole numbers; a negative one means that there is none.
fn codes(path: &Path, bytes: &[u8], classes: &mut Interner) -> Result<Vec<u32>, DataError> {
    let malformed = |problem| DataError::malformed(path, Format::Npy, problem);
    let header = header(bytes).map_err(|problem| malformed(problem.text))?;
    if !header.element.is_float() {
        let whole = in_c_order(bytes, &header, decode_whole).map_err(malformed)?;
        let code = |value: i128| match value {
            ..0 => NO_LABEL,
            value => classes.code(&value.to_string()),
        };
        return Ok(whole.into_iter().map(code).collect());
    }
    let array = decoded(bytes, header).map_err(malformed)?;
    let code = |(index, value): (usize, f64)| match value {
        value if value.fract() != 0.0 || !value.is_finite() => Err(malformed(format!(
            "the label {value} at {index} is no whole number (a negative one stands for none)"
        ))),
        value if value < 0.0 => Ok(NO_LABEL),
        value => Ok(classes.code(&format!("{value}"))),
    };
    array.values.into_iter().enumerate().map(code).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use firebox_core::Origin;
    use proptest::prelude::*;

    /// A file as NumPy writes it.
    pub(crate) fn file(
        version: u8,
        descr: &str,
        fortran: bool,
        shape: &str,
        data: &[u8],
    ) -> Vec<u8> {
        let order = if fortran { "True" } else { "False" };
        let mut text =
            format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
        let prefix = if version == 1 { 10 } else { 12 };
        while (prefix + text.len() + 1) % 64 != 0 {
            text.push(' ');
        }
        text.push('\n');
        let mut bytes = b"\x93NUMPY".to_vec();
        bytes.extend([version, 0]);
        match version {
            1 => bytes.extend((text.len() as u16).to_le_bytes()),
            _ => bytes.extend((text.len() as u32).to_le_bytes()),
        }
        bytes.extend(text.as_bytes());
        bytes.extend(data);
        bytes
    }

    fn check(bytes: &[u8], shape: &[usize], values: &[f64]) {
        assert_eq!(parse(bytes), Ok(Array { shape: shape.to_vec(), values: values.to_vec() }));
    }

    #[test]
    fn every_type_order_and_version_is_read() {
        for version in 1..=3 {
            let data: Vec<u8> = [1.5f64, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
            check(&file(version, "<f8", false, "(2,)", &data), &[2], &[1.5, -2.0]);
        }
        let data: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|v| v.to_be_bytes()).collect();
        check(&file(1, ">f4", false, "(1, 2)", &data), &[1, 2], &[1.5, -2.0]);
        let data: Vec<u8> =
            [1.5f32, -2.0].iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
        check(&file(1, "<f2", false, "(2, 1)", &data), &[2, 1], &[1.5, -2.0]);
        check(&file(1, "|b1", false, "(3,)", &[0, 1, 2]), &[3], &[0.0, 1.0, 1.0]);
        check(&file(1, "|i1", false, "(2,)", &[255, 1]), &[2], &[-1.0, 1.0]);
        check(&file(1, "|u1", false, "(2,)", &[255, 1]), &[2], &[255.0, 1.0]);
        check(&file(1, ">i2", false, "(2,)", &[255, 254, 1, 0]), &[2], &[-2.0, 256.0]);
        check(&file(1, "<u2", false, "(1,)", &[255, 255]), &[1], &[65_535.0]);
        check(&file(1, "<i4", false, "(1,)", &(-7i32).to_le_bytes()), &[1], &[-7.0]);
        check(&file(1, ">u4", false, "(1,)", &u32::MAX.to_be_bytes()), &[1], &[4_294_967_295.0]);
        check(&file(1, "<i8", false, "(1,)", &(-9i64).to_le_bytes()), &[1], &[-9.0]);
        check(&file(1, "<u8", false, "()", &7u64.to_le_bytes()), &[], &[7.0]);
    }

    #[test]
    fn labels_are_told_apart_to_their_last_digit() {
        let read = |bytes: &[u8]| {
            let mut classes = Interner::default();
            let codes = codes(Path::new("a.y.npy"), bytes, &mut classes).unwrap();
            (codes, classes.names)
        };
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let large = [1i64 << 53, (1 << 53) + 1, -1, 1 << 53];
        let expected = vec![0, 1, NO_LABEL, 0];
        let texts = names(&["9007199254740992", "9007199254740993"]);
        let data: Vec<u8> = large.iter().flat_map(|label| label.to_le_bytes()).collect();
        assert_eq!(read(&file(1, "<i8", false, "(4,)", &data)), (expected.clone(), texts.clone()));
        let data: Vec<u8> = large.iter().flat_map(|label| label.to_be_bytes()).collect();
        assert_eq!(read(&file(1, ">i8", false, "(4,)", &data)), (expected, texts));
        let data = u64::MAX.to_le_bytes();
        let largest = (vec![0], names(&["18446744073709551615"]));
        assert_eq!(read(&file(1, "<u8", false, "(1,)", &data)), largest);
        let bytes = file(1, ">i2", false, "(2,)", &[255, 254, 1, 0]);
        assert_eq!(read(&bytes), (vec![NO_LABEL, 0], names(&["256"])));
        assert_eq!(read(&file(1, "|b1", false, "(3,)", &[0, 1, 2])).0, [0, 1, 1]);
        assert_eq!(
            read(&file(1, "|u1", true, "(2, 2)", &[1, 3, 2, 4])).1,
            names(&["1", "2", "3", "4"])
        );
        let data: Vec<u8> = [3.0f64, -1.0].iter().flat_map(|label| label.to_le_bytes()).collect();
        let floats = read(&file(1, "<f8", false, "(2,)", &data));
        assert_eq!(floats, (vec![0, NO_LABEL], names(&["3"])));
    }

    #[test]
    fn fortran_order_becomes_c_order() {
        check(
            &file(1, "|u1", true, "(2, 3)", &[1, 4, 2, 5, 3, 6]),
            &[2, 3],
            &[1., 2., 3., 4., 5., 6.],
        );
        // numpy: np.arange(8).reshape(2, 2, 2).ravel(order="F")
        let values: Vec<f64> = (0..8).map(f64::from).collect();
        check(&file(1, "|u1", true, "(2, 2, 2)", &[0, 4, 2, 6, 1, 5, 3, 7]), &[2, 2, 2], &values);
    }

    #[test]
    fn what_breaks_the_rules_is_named() {
        let problem = |bytes: &[u8]| parse(bytes).unwrap_err();
        let good = file(1, "|u1", false, "(2,)", &[1, 2]);
        for length in 0..good.len() {
            assert!(parse(&good[..length]).is_err(), "{length}");
        }
        insta::assert_snapshot!(problem(&good[..good.len() - 1]), @"it is cut off: 1 of 2 bytes of values");
        insta::assert_snapshot!(problem(&[&good[..], b"x"].concat()), @"1 bytes follow the last value: save one array in each file");
        insta::assert_snapshot!(problem(&file(4, "|u1", false, "(2,)", &[])), @"version 4.0 of the format is not known");
        insta::assert_snapshot!(problem(&file(1, "|O", false, "(2,)", &[])), @"it holds pickled Python objects: save arrays of numbers, for series of different lengths one file each");
        insta::assert_snapshot!(problem(&file(1, "<c16", false, "(2,)", &[])), @"it holds values of the type `<c16`: float16 to float64, integers and bool are read");
        insta::assert_snapshot!(problem(&file(1, "<f8", false, "(-2,)", &[])), @"its shape is no tuple of whole numbers");
        insta::assert_snapshot!(problem(&file(1, "<f8", false, "(4611686018427387904, 8)", &[])), @"its shape [4611686018427387904, 8] is beyond any memory");
        insta::assert_snapshot!(problem(&file(1, "<f8", false, "2", &[])), @"its header has `2, }` where `(` should be");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }

        /// Most random bytes fail at the magic, so a valid file is damaged instead.
        #[test]
        fn no_damage_panics(at in 0usize..140, byte: u8, cut in 0usize..140, fortran: bool) {
            let mut bytes = file(1, "<f4", fortran, "(2, 3)", &[7; 24]);
            bytes[at] = byte;
            let _ = parse(&bytes);
            let _ = parse(&bytes[..cut]);
            let input = Input { path: "a.npy".into(), format: Format::Npy, origin: Origin::Unassigned, within: String::new() };
            let source = (&bytes[..], bytes.len() as u64);
            let labels = Some((Path::new("b.npy"), &bytes[..]));
            let _ = each_part((&input, &[]), source, labels, 7, |_, _| -> Result<(), DataError> { Ok(()) });
        }

        #[test]
        fn values_round_trip(
            values in proptest::collection::vec(any::<f64>(), 0..60),
            version in 1u8..=3,
        ) {
            let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let array = parse(&file(version, "<f8", false, &format!("({},)", values.len()), &data)).unwrap();
            prop_assert_eq!(array.shape, vec![values.len()]);
            let bits = |values: &[f64]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&array.values), bits(&values));
        }
    }
}
