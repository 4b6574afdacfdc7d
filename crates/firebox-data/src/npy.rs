//! NumPy's `.npy` arrays, read strictly.
//!
//! Versions 1 to 3 of the header, both byte orders, C and Fortran order, floating-point, integer
//! and boolean values. Pickled objects, structures and complex numbers are refused. Source of the
//! format: `numpy.lib.format`.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use firebox_core::Origin;
use half::f16;

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

/// Reads the bytes of a file as an array of f64; integers beyond 2⁵³ are rounded.
///
/// # Errors
///
/// Says what breaks the rules of the format.
pub(crate) fn parse(bytes: &[u8]) -> Result<Array, String> {
    decoded(bytes, header(bytes).map_err(|problem| problem.text)?)
}

fn decoded(bytes: &[u8], header: Header) -> Result<Array, String> {
    let count = header.shape.iter().try_fold(1usize, |a, b| a.checked_mul(*b));
    let wanted = count.and_then(|count| count.checked_mul(header.element.bytes));
    let data = &bytes[header.start..];
    let (Some(count), Some(wanted)) = (count, wanted) else {
        return Err(format!("its shape {:?} is beyond any memory", header.shape));
    };
    if data.len() < wanted {
        return Err(format!("it is cut off: {} of {wanted} bytes of values", data.len()));
    }
    if data.len() > wanted {
        return Err(format!(
            "{} bytes follow the last value: save one array in each file",
            data.len() - wanted
        ));
    }
    let mut values = decode(data, &header);
    debug_assert_eq!(values.len(), count);
    if header.fortran && header.shape.len() > 1 {
        values = from_fortran(&values, &header.shape);
    }
    Ok(Array { shape: header.shape, values })
}

/// Whether a file is an array of fractions, by its header.
pub(crate) fn is_of_fractions(path: &Path) -> bool {
    // One that is longer is read as well, by who reads the file.
    const LONGEST: u64 = 1 << 16;
    let mut begin = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST).read_to_end(&mut begin));
    read.is_ok() && header(&begin).is_ok_and(|header| header.element.is_float())
}

pub(crate) fn header(bytes: &[u8]) -> Result<Header, Problem> {
    let rest = bytes.strip_prefix(b"\x93NUMPY").ok_or("it does not begin as a NumPy array does")?;
    let cut = || "it is cut off within its header".to_owned();
    let (length, prefix) = match *rest {
        [1, 0, a, b, ..] => (usize::from(u16::from_le_bytes([a, b])), 10),
        [2 | 3, 0, a, b, c, d, ..] => (u32::from_le_bytes([a, b, c, d]) as usize, 12),
        [1..=3, 0, ..] | [] | [_] => return Err(cut().into()),
        [major, minor, ..] => {
            return Err(format!("version {major}.{minor} of the format is not known").into());
        }
    };
    let start = length.checked_add(prefix).ok_or_else(cut)?;
    let text = bytes.get(prefix..start).ok_or_else(cut)?;
    let text = std::str::from_utf8(text).map_err(|_| "its header is not text")?;
    let mut parser = Literal { rest: text.trim_end() };
    let mut header = parser.dictionary()?;
    header.start = start;
    Ok(header)
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

/// Column-major → row-major.
fn from_fortran(values: &[f64], shape: &[usize]) -> Vec<f64> {
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

/// Reads an array as one series (`[time]` or `[time, channel]`) or as samples
/// (`[sample, time, channel]`), with the labels of a second array if there is one.
pub(crate) fn read(
    path: &Path,
    bytes: &[u8],
    labels: Option<(&Path, &[u8])>,
    stem: &str,
    origin: Origin,
    names: &[ChannelColumn],
) -> Result<Raw, DataError> {
    let malformed = |path: &Path, problem| DataError::malformed(path, Format::Npy, problem);
    let header = header(bytes).map_err(|problem| malformed(path, problem.text))?;
    let element = header.element;
    let array = decoded(bytes, header).map_err(|problem| malformed(path, problem))?;
    let (samples, steps, width) = match *array.shape {
        [steps] => (None, steps, 1),
        [steps, width] => (None, steps, width),
        [samples, steps, width] => (Some(samples), steps, width),
        ref shape => {
            let problem = format!(
                "its shape {shape:?} has {} axes: arrays are [time], [time, channel] or [sample, time, channel]",
                shape.len()
            );
            return Err(malformed(path, problem));
        }
    };
    if array.values.is_empty() {
        // A folder of whole numbers is none that is converted, with this array or without it.
        let unconvertible = labels.is_some() || !element.is_float();
        let path = path.to_owned();
        return Err(DataError::EmptyArray { path, shape: array.shape, unconvertible });
    }
    let channels = name_channels(path, width, names)?;
    let mut classes = Interner::default();
    let labels = match labels {
        Some((file, bytes)) => Some((file, codes(file, bytes, &mut classes)?)),
        None => None,
    };
    let count = samples.unwrap_or(1);
    if let Some((file, codes)) = &labels {
        let fits = codes.len() == count || (samples.is_none() && codes.len() == steps);
        if !fits {
            let wanted = match samples {
                Some(samples) => format!("{samples}, one for each sample"),
                None => format!("1 or {steps}, one for the series or one for each step"),
            };
            let problem = format!(
                "it has {}: {} needs {wanted}",
                firebox_core::count(codes.len() as u64, "label"),
                path.display()
            );
            return Err(malformed(file, problem));
        }
    }
    let file: Arc<Path> = Arc::from(path);
    let digits = count.to_string().len();
    let series = (0..count).map(|index| {
        let values = &array.values[index * steps * width..(index + 1) * steps * width];
        let column = |channel| values.iter().skip(channel).step_by(width).copied().collect();
        RawSeries {
            name: match samples {
                Some(_) => format!("{stem}/{:0digits$}", index + 1),
                None => stem.to_owned(),
            },
            origin,
            time: None,
            columns: (0..width).map(column).collect(),
            labels: match &labels {
                None => RawLabels::None,
                Some((_, codes)) if codes.len() == count => RawLabels::Whole(codes[index]),
                Some((_, codes)) => RawLabels::PerStep(codes.clone()),
            },
            pieces: vec![Piece { path: Arc::clone(&file), steps, rows: Rows::From(1) }],
        }
    });
    let series = series.collect();
    Ok(Raw { channels, classes: classes.names, series, element: Some(element), ..Raw::default() })
}

/// Labels are whole numbers; a negative one means that there is none.
fn codes(path: &Path, bytes: &[u8], classes: &mut Interner) -> Result<Vec<u32>, DataError> {
    let malformed = |problem| DataError::malformed(path, Format::Npy, problem);
    let array = parse(bytes).map_err(malformed)?;
    let code = |(index, value): (usize, f64)| match value {
        value if value.fract() != 0.0 || !value.is_finite() => {
            Err(malformed(format!("the label {value} at {index} is no whole number")))
        }
        value if value < 0.0 => Ok(NO_LABEL),
        value => Ok(classes.code(&format!("{value}"))),
    };
    array.values.into_iter().enumerate().map(code).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A file as NumPy writes it.
    fn file(version: u8, descr: &str, fortran: bool, shape: &str, data: &[u8]) -> Vec<u8> {
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
            let _ = read(Path::new("a.npy"), &bytes, Some((Path::new("b.npy"), &bytes)), "a", Origin::Unassigned, &[]);
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
