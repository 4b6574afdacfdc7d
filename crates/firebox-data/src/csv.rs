//! CSV: read by polars, column by column, with the types that the mapping needs.
//!
//! Polars says only that something did not parse; on failure the file is looked through again, so
//! that the message can name the row and the value.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use firebox_cache::MappedFile;
use firebox_core::count;
use polars::prelude::*;

use crate::config::role_of;
use crate::frame::scan_path;
use crate::mapping::Mapping;
use crate::missing::{among_numbers, to_declare};
use crate::time::{is_like_time, is_time_of_day};
use crate::{Csv, DataError, Format};

/// What is wrong with a header whose quotes are not even.
const ALONE_IN_HEADER: &str = "a double quote stands alone within the name of a column: write that name in double quotes, with two for this one";

/// The separator of a file.
pub(crate) fn separator(path: &Path, csv: &Csv) -> u8 {
    match path.extension() {
        Some(extension) if extension.eq_ignore_ascii_case("tsv") => b'\t',
        // Other characters than ASCII are refused with the configuration.
        _ => u8::try_from(csv.separator).unwrap_or(b','),
    }
}

/// Texts that stand for a missing value.
fn missing(csv: &Csv) -> Option<NullValues> {
    let missing = csv.missing.iter().map(|text| text.as_str().into()).collect::<Vec<PlSmallStr>>();
    (!missing.is_empty()).then_some(NullValues::AllColumns(missing))
}

fn reader(path: &Path, csv: &Csv) -> Result<LazyCsvReader, DataError> {
    Ok(LazyCsvReader::new(scan_path(path)?)
        .with_glob(false)
        .with_separator(separator(path, csv))
        .with_null_values(missing(csv))
        .with_decimal_comma(csv.decimal_comma)
        .with_infer_schema_length(Some(0)))
}

/// The names of the columns, from the first line, without the blanks around them: `time, open` names `open`.
pub(crate) fn header(path: &Path, csv: &Csv) -> Result<Vec<String>, DataError> {
    if !csv.separator.is_ascii() {
        return Err(DataError::NotApplicable {
            key: "csv.separator",
            format: Format::Csv,
            hint: "the separator is one ASCII character",
        });
    }
    let line = first_line(path)?;
    check_line_ends(path, &line)?;
    let (names, is_open) = scan(&line, separator(path, csv));
    if is_open {
        let problem = "a double quote is opened in the header and not closed on its line: close it, or name the column on one line";
        return Err(DataError::line(path, 1, problem));
    }
    if line.matches('"').count() % 2 == 1 {
        // The reader of the rows would take all of them for a part of the header.
        return Err(DataError::line(path, 1, ALONE_IN_HEADER));
    }
    let names: Vec<String> = names.iter().map(|name| name.trim().to_owned()).collect();
    if names.iter().all(String::is_empty) {
        return Err(DataError::line(path, 1, "the header is empty: it must name the columns"));
    }
    if names.iter().all(|name| name.parse::<f64>().is_ok()) {
        let problem = format!("`{line}` is no header: the first line must name the columns");
        return Err(DataError::line(path, 1, problem));
    }
    let mut seen = std::collections::HashSet::new();
    if let Some(column) = names.iter().find(|name| !seen.insert(name.as_str())) {
        return Err(DataError::DuplicateHeader { path: path.to_owned(), column: column.clone() });
    }
    if let Some(other) = other_separator(&line, &names) {
        let problem = format!(
            "the header is one column, `{line}`: set `data.csv.separator` to {other:?} if that is what separates them"
        );
        return Err(DataError::line(path, 1, problem));
    }
    Ok(names)
}

/// Refuses a file of which all is one line to the reader of rows.
pub(crate) fn check_line_ends(path: &Path, first_line: &str) -> Result<(), DataError> {
    if !first_line.contains('\r') {
        return Ok(());
    }
    let problem =
        "lines end with a carriage return alone, as on old Macs: convert them to line feeds first";
    Err(DataError::line(path, 1, problem))
}

/// What else may separate the columns of a header in which the separator does not stand.
pub(crate) fn other_separator(line: &str, names: &[String]) -> Option<char> {
    let [only] = names else { return None };
    let other = [';', '\t', ',', '|'].into_iter().find(|other| only.contains(*other));
    other.filter(|other| !line.starts_with('"') || *other != ',')
}

pub(crate) fn first_line(path: &Path) -> Result<String, DataError> {
    use std::io::{BufRead, BufReader};
    let file = std::fs::File::open(path).map_err(DataError::io("open", path))?;
    let mut line = Vec::new();
    BufReader::new(file).read_until(b'\n', &mut line).map_err(DataError::io("read", path))?;
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line);
    let line = std::str::from_utf8(line)
        .map_err(|_| DataError::line(path, 1, "the header is not UTF-8: convert the file first"))?;
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}

/// The fields of one line; a separator within double quotes does not separate, and two double quotes there are one.
pub(crate) fn fields(line: &str, separator: u8) -> Vec<String> {
    scan(line, separator).0
}

/// The fields of one line, and whether it ends within quotes. A quote behind other characters, as of inches, begins
/// nothing, and is one.
fn scan(line: &str, separator: u8) -> (Vec<String>, bool) {
    let mut fields = Vec::new();
    let mut field = String::new();
    let (mut quoted, mut begins) = (false, true);
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' if quoted && characters.next_if_eq(&'"').is_some() => field.push('"'),
            '"' if quoted => quoted = false,
            _ if quoted => field.push(character),
            '"' if begins => (quoted, begins) = (true, false),
            _ if character == char::from(separator) => {
                fields.push(std::mem::take(&mut field));
                begins = true;
            }
            _ => {
                begins &= character.is_whitespace();
                field.push(character);
            }
        }
    }
    fields.push(field);
    (fields, quoted)
}

/// Refuses a header whose quotes would make rows a part of it: one that is open at the end of the first line, unless a later
/// line ends a name with it, and one that stands alone within a name.
pub(crate) fn check_header_quotes(
    path: &Path,
    line: &str,
    separator: u8,
    bytes: &[u8],
) -> Result<(), DataError> {
    let behind = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
    let problem = match scan(line, separator).1 {
        true if !closes(&bytes[behind..], separator) => {
            "a double quote is opened in the header and not closed where a name ends, which would make rows a part of it: close it"
        }
        false if line.matches('"').count() % 2 == 1 => ALONE_IN_HEADER,
        _ => return Ok(()),
    };
    Err(DataError::line(path, 1, problem))
}

/// Whether the quote that closes a field which goes on here stands at the end of the field, and not before a text of a row.
fn closes(lines: &[u8], separator: u8) -> bool {
    let mut rest = lines.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        if byte == b'"' && rest.next_if_eq(&b'"').is_none() {
            return rest
                .peek()
                .is_none_or(|next| *next == separator || matches!(next, b'\n' | b'\r'));
        }
    }
    false
}

/// The types that the mapping needs: channels as `number`, everything else as text.
fn schema(names: &[String], mapping: &Mapping, number: &DataType) -> SchemaRef {
    let numbers: HashSet<&str> =
        mapping.channels.iter().map(|channel| channel.name.as_str()).collect();
    let field = |name: &String| {
        let is_number = numbers.contains(name.as_str());
        let kind = if is_number { number.clone() } else { DataType::String };
        Field::new(name.as_str().into(), kind)
    };
    Arc::new(names.iter().map(field).collect())
}

/// Columns, and the last of all: polars looks for fields that are too many, and for quotes that are never closed, where it
/// reads that one, and would leave rows out.
fn with_last(mut columns: Vec<PlSmallStr>, names: &[String]) -> Vec<PlSmallStr> {
    if let Some(last) = names.last()
        && !columns.iter().any(|column| column.as_str() == last)
    {
        columns.push(last.as_str().into());
    }
    columns
}

/// A record of a file, without what ends it.
struct Record<'a> {
    /// The line that it begins in, from 0.
    line: usize,
    bytes: &'a [u8],
    /// Its fields.
    fields: usize,
}

/// Records as polars divides fields: quotes begin with the first byte of a field, and within them neither a separator nor
/// the end of a line divides anything.
fn records(bytes: &[u8], separator: u8) -> impl Iterator<Item = Record<'_>> {
    let (mut rest, mut line) = (bytes, 0);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (mut quoted, mut begins, mut lines, mut fields, mut end) =
            (false, true, 0, 1, rest.len());
        for (place, byte) in rest.iter().enumerate() {
            let (first, within) = (begins, quoted);
            begins = false;
            match byte {
                // Two within quotes close them and open them again.
                b'"' if within => (quoted, begins) = (false, true),
                b'"' if first => quoted = true,
                b'\n' if !within => {
                    end = place;
                    break;
                }
                b'\n' => lines += 1,
                byte if *byte == separator && !within => (fields, begins) = (fields + 1, true),
                _ => {}
            }
        }
        let record = &rest[..end];
        let record = Record { line, bytes: record.strip_suffix(b"\r").unwrap_or(record), fields };
        rest = rest.get(end + 1..).unwrap_or_default();
        line += lines + 1;
        Some(record)
    })
}

/// The first record that has more fields than there are columns: the number of the line that it begins in, from 0, and its
/// fields. Polars looks for such only where it reads all columns, and would read the fields behind the one that is too many
/// as those of other columns.
fn surplus(bytes: &[u8], separator: u8, columns: usize) -> Option<(usize, usize)> {
    if bytes.contains(&b'"') {
        let mut records = records(bytes, separator);
        let found = records.find(|record| record.fields > columns)?;
        return Some((found.line, found.fields));
    }
    let fields = |line: &[u8]| 1 + line.iter().filter(|byte| **byte == separator).count();
    let mut lines = bytes.split(|byte| *byte == b'\n').map(fields).enumerate();
    lines.find(|(_, found)| *found > columns)
}

fn too_many(path: &Path, line: usize, fields: usize, columns: usize) -> DataError {
    let problem = format!(
        "{}, but the header names {}",
        count(fields as u64, "field"),
        count(columns as u64, "column")
    );
    DataError::line(path, line, problem)
}

/// Whether a cell somewhere is a text that is declared missing and blanks, which polars leaves out only after it has compared.
fn has_blanks_beside(bytes: &[u8], separator: u8, missing: &[String]) -> bool {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t') && *byte != separator;
    let is_end = |byte: Option<&u8>| {
        byte.is_none_or(|byte| *byte == separator || matches!(byte, b'"' | b'\n' | b'\r'))
    };
    missing.iter().map(|text| text.trim()).filter(|text| !text.is_empty()).any(|text| {
        memchr::memmem::find_iter(bytes, text.as_bytes()).any(|at| {
            let (before, after) = (&bytes[..at], &bytes[at + text.len()..]);
            let [left, right] = [
                before.iter().rev().take_while(|byte| is_blank(byte)).count(),
                after.iter().take_while(|byte| is_blank(byte)).count(),
            ];
            let left_end = before.len().checked_sub(left + 1).map(|place| &before[place]);
            left + right > 0 && is_end(left_end) && is_end(after.get(right))
        })
    })
}

/// Refuses lines that end with a field of one quote alone, which polars cannot read.
pub(crate) fn check_open_end(path: &Path, separator: u8, bytes: &[u8]) -> Result<(), DataError> {
    let end = bytes.trim_ascii_end().strip_suffix(b"\"");
    let before = end.map(|before| before.last());
    let is_alone =
        before.is_some_and(|last| last.is_none_or(|byte| *byte == separator || *byte == b'\n'));
    match is_alone.then(|| unclosed(path, separator, bytes)).flatten() {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Reads the columns of the mapping from lines without a header.
pub(crate) fn read_lines(
    path: &Path,
    lines: &[u8],
    csv: &Csv,
    names: &[String],
    mapping: &Mapping,
) -> PolarsResult<DataFrame> {
    let parsing = CsvParseOptions::default()
        .with_separator(separator(path, csv))
        .with_null_values(missing(csv))
        .with_decimal_comma(csv.decimal_comma);
    let columns: Vec<PlSmallStr> = mapping.used().map(PlSmallStr::from).collect();
    let separator = separator(path, csv);
    let is_surplus =
        columns.len() < names.len() && surplus(lines, separator, names.len()).is_some();
    if is_surplus
        || has_blanks_beside(lines, separator, &csv.missing)
        || check_open_end(path, separator, lines).is_err()
    {
        polars_bail!(ComputeError: "what is to be looked at line by line");
    }
    CsvReadOptions::default()
        .with_has_header(false)
        .with_schema(Some(schema(names, mapping, &DataType::Float64)))
        .with_columns(Some(with_last(columns.clone(), names).into()))
        .with_parse_options(parsing)
        .into_reader_with_file_handle(std::io::Cursor::new(lines))
        .finish()?
        .select(columns)
}

/// Refuses a file that ends within a row: its last line has no end, and fewer fields than there are columns. Other
/// rows may be short, and the rest of them is missing, as programs write them so.
pub(crate) fn check_end(path: &Path, csv: &Csv, columns: usize) -> Result<(), DataError> {
    check_last_line(path, separator(path, csv), columns)
}

/// The same for a separator.
pub(crate) fn check_last_line(path: &Path, separator: u8, columns: usize) -> Result<(), DataError> {
    let io = |error| DataError::io("read", path)(error);
    let last = tail(path).map_err(io)?;
    let whole = |last: &[u8]| {
        let fields = fields(&String::from_utf8_lossy(last), separator).len();
        last.trim_ascii().is_empty() || fields >= columns
    };
    if last.as_deref().is_some_and(whole) {
        return Ok(());
    }
    // Its begin may be within quotes, which only the whole file tells.
    let (mut quoted, mut lines, mut fields, mut holds) = (false, 1, 1, false);
    let mut file = BufReader::new(File::open(path).map_err(io)?);
    loop {
        let bytes = file.fill_buf().map_err(io)?;
        if bytes.is_empty() {
            break;
        }
        for byte in bytes {
            quoted ^= *byte == b'"';
            lines += usize::from(*byte == b'\n');
            if *byte == b'\n' && !quoted {
                (fields, holds) = (1, false);
            } else {
                fields += usize::from(*byte == separator && !quoted);
                holds |= !byte.is_ascii_whitespace();
            }
        }
        let read = bytes.len();
        file.consume(read);
    }
    // A quote that is never closed is told by who reads the rows.
    if quoted || !holds || fields >= columns {
        return Ok(());
    }
    let problem = format!(
        "the file ends within a row: {} and no end of the line, but the header names {}: write the file anew if it was \
         cut off, remove the row, or end its line if it is whole",
        count(fields as u64, "field"),
        count(columns as u64, "column")
    );
    Err(DataError::line(path, lines, problem))
}

/// What stands behind the last end of a line, if that is not long.
fn tail(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    const MOST: u64 = 1 << 16;
    let mut file = File::open(path)?;
    let begin = file.metadata()?.len().saturating_sub(MOST);
    file.seek(SeekFrom::Start(begin))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    let end = tail.iter().rposition(|byte| *byte == b'\n');
    Ok(match end {
        Some(end) => Some(tail.split_off(end + 1)),
        None => Some(tail).filter(|_| begin == 0),
    })
}

/// Reads the columns of the mapping from a file whose columns have these names.
pub(crate) fn read(
    path: &Path,
    csv: &Csv,
    names: &[String],
    mapping: &Mapping,
) -> Result<DataFrame, DataError> {
    check_end(path, csv, names.len())?;
    let map = MappedFile::of_input(path).map_err(DataError::io("read", path))?;
    let bytes = map.bytes();
    let separator = separator(path, csv);
    check_open_end(path, separator, bytes)?;
    if let Some((line, fields)) = surplus(bytes, separator, names.len()) {
        return Err(too_many(path, line + 1, fields, names.len()));
    }
    let has_blanks = has_blanks_beside(bytes, separator, &csv.missing);
    map.check().map_err(|error| DataError::io("read", path)(std::io::Error::other(error)))?;
    map.release(0..bytes.len());
    let columns: Vec<PlSmallStr> = mapping.used().map(PlSmallStr::from).collect();
    let read: Vec<Expr> = with_last(columns.clone(), names).into_iter().map(col).collect();
    let scan = |number: DataType| -> Result<PolarsResult<DataFrame>, DataError> {
        Ok(reader(path, csv)?
            .with_schema(Some(schema(names, mapping, &number)))
            .finish()
            .and_then(|frame| frame.select(read.clone()).collect())
            .and_then(|frame| frame.select(columns.clone())))
    };
    let as_numbers = match has_blanks {
        true => Err(polars_err!(ComputeError: "a cell is no number")),
        false => scan(DataType::Float64)?,
    };
    let frame = match as_numbers {
        Ok(frame) => frame,
        // Polars reads no number that has blanks behind it.
        Err(error) => scan(DataType::String)?
            .and_then(|text| trimmed(text, csv, mapping))
            .map_err(|_| diagnose(path, csv, mapping, names, &error))?,
    };
    let Some(holds) = rows_with_a_value(&frame) else { return Ok(frame) };
    let header = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
    without_blank_lines(&bytes[header..], frame, holds, names.len() == 1)
        .map_err(|error| DataError::malformed(path, Format::Csv, error.to_string()))
}

/// Which rows hold a value, if some do not: a blank line is read as one that holds none.
pub(crate) fn rows_with_a_value(frame: &DataFrame) -> Option<BooleanChunked> {
    let holds = frame.columns().iter().map(|column| column.is_not_null()).reduce(|a, b| a | b);
    holds.filter(|holds| !holds.all())
}

/// Columns as texts, of so many rows at most.
pub(crate) fn texts(
    path: &Path,
    csv: &Csv,
    columns: &[String],
    rows: usize,
) -> Result<PolarsResult<DataFrame>, DataError> {
    let names = header(path, csv)?;
    let text = |name: &String| Field::new(name.as_str().into(), DataType::String);
    let schema: Schema = names.iter().map(text).collect();
    let columns: Vec<Expr> = columns.iter().map(|name| col(name.as_str())).collect();
    Ok(reader(path, csv)?
        .with_schema(Some(Arc::new(schema)))
        .with_n_rows(Some(rows))
        .finish()
        .and_then(|frame| frame.select(columns).collect()))
}

/// Channels that were read as text, as the numbers that stand there without the blanks around them.
fn trimmed(mut frame: DataFrame, csv: &Csv, mapping: &Mapping) -> PolarsResult<DataFrame> {
    let parse = |text: Option<&str>| match text.map(str::trim) {
        None | Some("") => Ok(None),
        Some(text) if csv.missing.iter().any(|missing| missing.trim() == text) => Ok(None),
        Some(text) => number(text, csv).map(Some).ok_or(()),
    };
    for channel in &mapping.channels {
        let text = frame.column(&channel.name)?.str()?;
        let numbers: Result<Float64Chunked, ()> = text.iter().map(parse).collect();
        let numbers = numbers.map_err(|()| polars_err!(ComputeError: "no number"))?;
        frame.with_column(numbers.with_name(channel.name.as_str().into()).into_column())?;
    }
    Ok(frame)
}

/// The number that a text is, without blanks around it.
pub(crate) fn number(text: &str, csv: &Csv) -> Option<f64> {
    match csv.decimal_comma {
        true => text.replace(',', ".").parse().ok(),
        false => text.parse().ok(),
    }
}

/// The rows of lines that are not blank, and whichever hold a value. In a file of one column a blank line is a missing
/// value, unless nothing follows it.
pub(crate) fn without_blank_lines(
    lines: &[u8],
    frame: DataFrame,
    holds: BooleanChunked,
    one_column: bool,
) -> PolarsResult<DataFrame> {
    let mut filled = filled_lines(lines);
    if one_column {
        let end = filled.iter().rposition(|filled| *filled).map_or(0, |last| last + 1);
        filled[..end].fill(true);
    }
    // Quotes within fields divide lines otherwise: what is missing is told later.
    if filled.len() != frame.height() {
        return Ok(frame);
    }
    let filled: BooleanChunked = filled.into_iter().collect();
    // Whatever the quotes are, a row that holds anything is none of a blank line.
    frame.filter(&(filled | holds))
}

/// Whether each line holds anything. A line feed within quotes ends none.
fn filled_lines(lines: &[u8]) -> Vec<bool> {
    let (mut all, mut filled, mut quoted) = (Vec::new(), false, false);
    for byte in lines {
        quoted ^= *byte == b'"';
        if *byte == b'\n' && !quoted {
            all.push(filled);
            filled = false;
        } else {
            filled |= *byte != b'\r';
        }
    }
    if filled {
        all.push(true);
    }
    all
}

/// Refuses a column that would be left out as the numbers of rows, and begins with something else, such as a time.
pub(crate) fn check_index(
    path: &Path,
    csv: &Csv,
    names: &[String],
    mapping: &Mapping,
) -> Result<(), DataError> {
    let columns = mapping.index_columns(names);
    if columns.is_empty() {
        return Ok(());
    }
    let mut file = BufReader::new(File::open(path).map_err(DataError::io("open", path))?);
    let mut line = Vec::new();
    for _ in 0..2 {
        line.clear();
        file.read_until(b'\n', &mut line).map_err(DataError::io("read", path))?;
    }
    let line = String::from_utf8_lossy(&line);
    let first = fields(line.trim_end_matches(['\n', '\r']), separator(path, csv));
    let is_other = |value: &str| !value.is_empty() && number(value, csv).is_none();
    let mut found = names.iter().zip(&first);
    match found.find(|(name, value)| columns.contains(name) && is_other(value.trim())) {
        Some((name, value)) => Err(DataError::Value {
            path: path.to_owned(),
            row: 1,
            column: name.clone(),
            value: value.clone(),
            problem: format!("is not a number: {}", way_out_of(name, value, csv, mapping)),
        }),
        None => Ok(()),
    }
}

/// Finds the line that polars could not read.
fn diagnose(
    path: &Path,
    csv: &Csv,
    mapping: &Mapping,
    names: &[String],
    error: &PolarsError,
) -> DataError {
    let bytes = match std::fs::read(path).map_err(DataError::io("read", path)) {
        Ok(bytes) => bytes,
        Err(error) => return error,
    };
    let separator = separator(path, csv);
    if let Some(error) = unclosed(path, separator, &bytes) {
        return error;
    }
    let numbers: Vec<(usize, &str)> = names
        .iter()
        .enumerate()
        .filter(|(_, name)| mapping.channels.iter().any(|channel| channel.name == **name))
        .map(|(index, name)| (index, name.as_str()))
        .collect();
    let mut blank = 0;
    for (index, Record { line: first, bytes: record, fields: found }) in
        records(&bytes, separator).enumerate().skip(1)
    {
        let Ok(record) = std::str::from_utf8(record) else {
            let problem = "the line is not UTF-8: convert the file first";
            return DataError::line(path, first + 1, problem);
        };
        if names.len() > 1 && record.is_empty() {
            blank += 1;
            continue;
        }
        if found > names.len() {
            return too_many(path, first + 1, found, names.len());
        }
        let fields = fields(record, separator);
        for (field, column) in &numbers {
            let Some(value) = fields.get(*field) else { continue };
            let trimmed = value.trim();
            let missing = |text: &String| text == value || text.trim() == trimmed;
            if csv.missing.iter().any(missing)
                || trimmed.is_empty()
                || number(trimmed, csv).is_some()
            {
                continue;
            }
            let cell = (*column, value.as_str());
            if let Some(error) = halves_of_time(path, mapping, (names, &fields[..]), cell) {
                return error;
            }
            let row = index - blank;
            let cells = || cells(&bytes, separator, *field);
            let may_be_of_numbers =
                mapping.by_default && nearly(trimmed, csv).is_none() && !is_like_time(trimmed);
            let among =
                || may_be_of_numbers.then(|| among_numbers(trimmed, row, csv, cells())).flatten();
            let way_out = to_declare(trimmed, csv, cells).or_else(among);
            let way_out = way_out.unwrap_or_else(|| way_out_of(column, value, csv, mapping));
            return DataError::Value {
                path: path.to_owned(),
                row,
                column: (*column).to_owned(),
                value: value.clone(),
                problem: format!("is not a number: {way_out}"),
            };
        }
    }
    stray(path, separator, &bytes)
        .unwrap_or_else(|| DataError::malformed(path, Format::Csv, error.to_string()))
}

/// What is wrong with a value of a column that nobody named, if it is the date of the time of day that stands in the column
/// of times, or the reverse.
fn halves_of_time(
    path: &Path,
    mapping: &Mapping,
    (names, fields): (&[String], &[String]),
    (column, value): (&str, &str),
) -> Option<DataError> {
    let time = mapping.time.as_deref().filter(|_| mapping.by_default)?;
    let at = fields.get(names.iter().position(|name| name == time)?)?;
    let is_date = |text: &str| is_like_time(text) && !text.contains(':');
    let (date, time) = match () {
        () if is_date(value) && is_time_of_day(at) => (column, time),
        () if is_time_of_day(value) && is_date(at) => (time, column),
        () => return None,
    };
    let (path, date, time) = (path.to_owned(), date.to_owned(), time.to_owned());
    Some(DataError::DateAndTime { path, date, time })
}

/// What is wrong where a quote is never closed, as it seems.
pub(crate) fn unclosed(path: &Path, separator: u8, bytes: &[u8]) -> Option<DataError> {
    let line = open_quote(bytes)?;
    let problem = "a double quote is opened here and never closed";
    Some(stray(path, separator, bytes).unwrap_or_else(|| DataError::line(path, line, problem)))
}

/// What is wrong with a quote that stands within a field, where it neither begins nor ends one.
pub(crate) fn stray(path: &Path, separator: u8, bytes: &[u8]) -> Option<DataError> {
    let problem = "a double quote stands within a field, as of inches: write that field in double quotes, with two for this one";
    stray_quote(bytes, separator).map(|line| DataError::line(path, line, problem))
}

/// The line of the first quote that stands within a field, behind the header, which is looked at on its own. None where
/// another is not closed on its line: nothing behind that one is sure.
fn stray_quote(bytes: &[u8], separator: u8) -> Option<usize> {
    let (mut line, mut quoted_from, mut begins) = (1, None, true);
    let mut rest = bytes.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        match byte {
            b'"' if quoted_from.is_some() => {
                if rest.next_if_eq(&b'"').is_none() {
                    let begun = quoted_from.take();
                    let ends = |next: u8| next == separator || matches!(next, b'\n' | b'\r');
                    if line > 1 && !rest.peek().copied().is_none_or(ends) {
                        return begun.filter(|begun| *begun == line);
                    }
                }
            }
            b'"' if begins => (quoted_from, begins) = (Some(line), false),
            b'"' if line > 1 => return Some(line),
            b'\n' => {
                line += 1;
                begins = quoted_from.is_none();
            }
            byte => begins = byte == separator && quoted_from.is_none(),
        }
    }
    None
}

/// The line of a quote that is never closed.
fn open_quote(bytes: &[u8]) -> Option<usize> {
    let mut open = None;
    for (line, text) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if text.iter().filter(|byte| **byte == b'"').count() % 2 == 1 {
            open = if open.is_none() { Some(line + 1) } else { None };
        }
    }
    open
}

/// The cells of a column in lines behind the header.
fn cells(bytes: &[u8], separator: u8, column: usize) -> impl Iterator<Item = String> + '_ {
    bytes.split(|byte| *byte == b'\n').skip(1).filter_map(move |line| {
        let line = std::str::from_utf8(line).ok()?.trim_end_matches('\r');
        fields(line, separator).into_iter().nth(column)
    })
}

/// What to do about a value that is not a number.
fn way_out_of(column: &str, value: &str, csv: &Csv, mapping: &Mapping) -> String {
    let way_out = if let Some(nearly) = nearly(value.trim(), csv) {
        nearly
    } else if mapping.by_default {
        mapping.not_a_channel(is_like_time(value))
    } else if role_of(column).is_price() || value.chars().any(|c| c.is_ascii_digit()) {
        "correct it, or list it in `data.csv.missing` if it stands for a missing value"
    } else {
        "if it stands for a missing value, list it in `data.csv.missing`"
    };
    way_out.to_owned()
}

/// The way out for a value that is nearly a number.
fn nearly(value: &str, csv: &Csv) -> Option<&'static str> {
    const BETWEEN: [char; 6] = [',', '\'', '’', ' ', '\u{a0}', '\u{202f}'];
    let is_number = |text: &str| text.parse::<f64>().is_ok();
    let points = value.replace(BETWEEN, "");
    let commas = value.replace(&BETWEEN[1..], "").replace('.', "").replace(',', ".");
    match () {
        () if !csv.decimal_comma && is_number(&value.replace(',', ".")) => Some(
            "set `data.csv.decimal_comma` to true if its comma is a decimal one, or remove the comma if it separates thousands",
        ),
        () if value.contains(BETWEEN) && (is_number(&points) || is_number(&commas)) => {
            Some("remove what separates its thousands")
        }
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_begin_at_the_begin_of_a_field() {
        let scan = |line: &str| {
            let (fields, is_open) = scan(line, b',');
            (fields.join("|"), is_open)
        };
        let closed = |fields: &str| (fields.to_owned(), false);
        assert_eq!(scan(r#"time,"a,b",c"#), closed("time|a,b|c"));
        assert_eq!(scan(r#"time, "a""b" ,"""#), closed(r#"time| a"b |"#));
        assert_eq!(scan(r#"time,size 5",6" x"#), closed(r#"time|size 5"|6" x"#));
        assert_eq!(scan(r#"time,"a,b"#), ("time|a,b".to_owned(), true));
        assert_eq!(scan(""), closed(""));
    }

    #[test]
    fn records_end_where_quotes_do() {
        let text = "a,b\n1,\"x\ny\"\r\n\n5\" x,2\n\"q\"\"\n,\",3";
        let found: Vec<(usize, &[u8], usize)> =
            records(text.as_bytes(), b',').map(|own| (own.line, own.bytes, own.fields)).collect();
        let expected: [(usize, &[u8], usize); 5] = [
            (0, b"a,b", 2),
            (1, b"1,\"x\ny\"", 2),
            (3, b"", 1),
            (4, b"5\" x,2", 2),
            (5, b"\"q\"\"\n,\",3", 2),
        ];
        assert_eq!(found, expected);
        let surplus = |text: &str| surplus(text.as_bytes(), b',', 2);
        assert_eq!(surplus("1,2\n3\n\n4,5"), None);
        assert_eq!(surplus("1,2\n3,4,\n"), Some((1, 3)));
        assert_eq!(surplus("\"1,\n2,3\",2\n4,5,6,7\n"), Some((2, 4)));
        assert_eq!(surplus("1,\"2,3\"\n"), None);
        // Behind a blank, quotes begin nothing.
        assert_eq!(surplus("1, \"2,3\"\n"), Some((0, 3)));
    }

    #[test]
    fn a_quote_within_a_field_is_found_where_it_stands() {
        let check = |text: &str, expected: Option<usize>| {
            assert_eq!(stray_quote(text.as_bytes(), b','), expected, "{text}");
        };
        check("a,b\n1,5\"\n2,6\"\n", Some(2));
        check("a,b\n1,x\n5\" pipe,6\n7\",8\n", Some(3));
        check("a,b\n1,\"so\" it is\n", Some(2));
        // Behind a blank, quotes begin nothing.
        check("a,b\n1, \"x\"\n", Some(2));
        check("a,b\n1,\"x\ny\"\n2,5\"", Some(4));
        for whole in [
            "a,b\n1,\"x\"\r\n\"2\",\"\"\n",
            "a,b\n1,\"5\"\"\"\n",
            "a,\"b\"",
            "a 5\",\"b\" c\n1,2",
            "",
        ] {
            check(whole, None);
        }
        // One that is never closed: which of the others opens a field is not known.
        check("a,b\n1,\"x\n2,\"y\"\n", None);
        check("a,b\n1,\"x\n2,y\n", None);
    }

    #[test]
    fn what_is_missing_is_looked_for_beside_blanks_within_its_cell() {
        let beside = |text: &str, separator, missing: &str| {
            has_blanks_beside(text.as_bytes(), separator, &[missing.to_owned()])
        };
        for (text, expected) in [
            ("1,-9,2", false),
            ("1, -9,2", true),
            ("1,-9 \n", true),
            ("-9", false),
            (" -9", true),
            ("\" -9\"", true),
            ("1, -99,2", false),
            ("a -9 b,1", false),
        ] {
            assert_eq!(beside(text, b',', "-9"), expected, "{text}");
        }
        assert!(!beside("1\t-9\t2", b'\t', "-9") && beside("1\t -9\t2", b'\t', "-9"));
        assert!(!beside("2024-01-02 00:00:00,1\n", b',', "0"));
        let open = |text: &str| check_open_end(Path::new("a.csv"), b',', text.as_bytes()).is_err();
        assert!(open("a,b\n1,\"") && open("a,b\n1,\"\n"));
        assert!(!open("a,b\n1,5\"") && !open("a,b\n\"1\",\"\"") && !open("a,b\n1,\"x\""));
    }
}
