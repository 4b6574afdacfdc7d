//! Tables of texts with a column for each label: CSV, Parquet, Arrow, and JSON with a row a line.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader};
use std::path::Path;

use firebox_cache::MappedFile;
use firebox_core::{LabelledTexts, count, quoted};
use polars::prelude::*;
use serde::{Deserialize, Serialize};

use crate::error::nearest;
use crate::frame::scan_path;
use crate::guarded::guarded_at;
use crate::raw::as_number;
use crate::{DataError, Format, csv};

/// Which columns of a table of texts mean what: `[text.columns]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextColumns {
    /// The column of texts.
    pub text: String,
    /// Columns of labels, each 1 (or true) where the label holds and 0 (or false) where not. None
    /// named: every column that has no other meaning.
    pub labels: Vec<String>,
    /// The columns of the first character of the evidence and of the one after its last, counted
    /// from 0 in Unicode's characters, as Python does. Both empty: no evidence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub span: Option<[String; 2]>,
    /// A column by which texts belong together, such as their author: they stay in one part of the
    /// split. Blanks, letter case and how a number is written (`7`, `7.0`) tell none apart, and an empty cell is of no
    /// group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// What is done about rows without a text.
    pub empty: EmptyTexts,
}

/// What is done about rows of a table whose text is missing, empty, or of spaces and invisible characters alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EmptyTexts {
    /// The table is refused.
    #[default]
    Error,
    /// They are left out, and told.
    Drop,
}

impl EmptyTexts {
    fn is_error(&self) -> bool {
        *self == Self::Error
    }
}

impl Default for TextColumns {
    fn default() -> Self {
        Self {
            text: "text".to_owned(),
            labels: vec![],
            span: None,
            group: None,
            empty: EmptyTexts::Error,
        }
    }
}

/// A table as text, column by column.
struct Table {
    names: Vec<String>,
    columns: Vec<Vec<Option<String>>>,
    /// The number of each row, from 1 after the header, where some were left out.
    numbers: Option<Vec<usize>>,
}

impl Table {
    /// The number of a row that was not left out.
    fn number(&self, row: usize) -> usize {
        self.numbers.as_ref().map_or(row + 1, |numbers| numbers[row])
    }
}

/// Reads a table of texts.
///
/// # Errors
/// If the file cannot be read, a column is missing, a label is neither 0 nor 1, a span lies outside
/// its text, or a text is empty and [`TextColumns::empty`] refuses that; the message names the row, counted from 1 after the
/// header.
pub fn read_texts(path: &Path, columns: &TextColumns) -> Result<LabelledTexts, DataError> {
    if !path.is_file() {
        return Err(DataError::NotFound { path: path.to_owned(), nearest: None });
    }
    let table = read_table(path, columns, columns.labels.is_empty())?;
    Reading { path, columns, table }.texts()
}

/// Reads the texts of a table alone, whatever its other columns are. A missing text is an empty one.
///
/// # Errors
/// If the file cannot be read, or there is no such column.
pub fn read_plain_texts(path: &Path, column: &str) -> Result<Vec<String>, DataError> {
    if !path.is_file() {
        return Err(DataError::NotFound { path: path.to_owned(), nearest: None });
    }
    let columns = TextColumns { text: column.to_owned(), ..TextColumns::default() };
    let table = read_table(path, &columns, false)?;
    Reading { path, columns: &columns, table }.all()
}

/// Refuses a table of texts whose bytes are not UTF-8, with the first place where they are not. Formats that are no
/// text are not looked at.
///
/// # Errors
/// If the file cannot be read, or is not UTF-8.
pub fn check_encoding(path: &Path) -> Result<(), DataError> {
    if !["csv", "tsv", "jsonl", "ndjson"].contains(&extension(path).as_str()) {
        return Ok(());
    }
    let file = std::fs::File::open(path).map_err(DataError::io("open", path))?;
    let (mut file, mut line) = (BufReader::with_capacity(1 << 20, file), Vec::new());
    for number in 1.. {
        line.clear();
        if file.read_until(b'\n', &mut line).map_err(DataError::io("read", path))? == 0 {
            break;
        }
        let Err(error) = std::str::from_utf8(&line) else { continue };
        let (good, bad) = line.split_at(error.valid_up_to());
        let character = String::from_utf8_lossy(good).chars().count() + 1;
        let byte = bad.first().copied().unwrap_or_default();
        let problem = format!(
            "character {character} is not UTF-8 (byte 0x{byte:02X}): save the file as UTF-8"
        );
        return Err(DataError::line(path, number, problem));
    }
    Ok(())
}

fn extension(path: &Path) -> String {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_lowercase()
}

/// What separates the fields of a table of text.
fn separator_of(path: &Path) -> u8 {
    if extension(path) == "tsv" { b'\t' } else { b',' }
}

/// Refuses a table that would be read as one line, or as one column, which is not that of the texts.
fn check_separator(path: &Path, separator: u8, text: &str) -> Result<(), DataError> {
    let line = csv::first_line(path)?;
    csv::check_line_ends(path, &line)?;
    let names = csv::fields(&line, separator);
    let other = csv::other_separator(&line, &names).filter(|_| names[0] != text);
    let Some(other) = other else { return Ok(()) };
    let problem = format!(
        "the header is one column, `{line}`: commas separate the columns of a .csv file and tabs those of a .tsv \
         file; write the table so if {other:?} is what separates them"
    );
    Err(DataError::line(path, 1, problem))
}

/// Reads a table: of CSV and JSON all columns, of Parquet and Arrow those that are named, or all if `all` says so. What is
/// in the others is nobody's matter, lists and what no reader knows among it.
fn read_table(path: &Path, wanted: &TextColumns, all: bool) -> Result<Table, DataError> {
    let malformed = |error: PolarsError| {
        let format = Format::of(path).unwrap_or(Format::Csv);
        DataError::malformed(path, format, error.to_string())
    };
    let is_wanted = |name: &str| {
        let TextColumns { text, labels, span, group, .. } = wanted;
        let mut named = labels.iter().chain(span.iter().flatten()).chain(group).chain([text]);
        all || named.any(|named| named == name)
    };
    let mut whole_names = None;
    let mut selected = |mut lazy: LazyFrame| -> PolarsResult<DataFrame> {
        let schema = lazy.collect_schema()?;
        let names: Vec<String> = schema.iter_names().map(|name| name.to_string()).collect();
        let read: Vec<Expr> =
            names.iter().filter(|name| is_wanted(name)).map(|n| col(n.as_str())).collect();
        whole_names = Some(names);
        // Where none is there, the names say so.
        if read.is_empty() { Ok(DataFrame::empty()) } else { lazy.select(read).collect() }
    };
    let frame = match extension(path).as_str() {
        "csv" | "tsv" => {
            let separator = separator_of(path);
            check_separator(path, separator, &wanted.text)?;
            let line = csv::first_line(path)?;
            let map = MappedFile::of_input(path).map_err(DataError::io("read", path))?;
            let bytes = map.bytes();
            csv::check_header_quotes(path, &line, separator, bytes)?;
            let names = csv::fields(&line, separator).len();
            csv::check_last_line(path, separator, names)?;
            csv::check_open_end(path, separator, bytes)?;
            map.check()
                .map_err(|error| DataError::io("read", path)(std::io::Error::other(error)))?;
            let without_blank_lines = |frame: DataFrame| match csv::rows_with_a_value(&frame) {
                None => Ok(frame),
                Some(holds) => {
                    let end = bytes.iter().position(|byte| *byte == b'\n');
                    let rows = &bytes[end.map_or(bytes.len(), |end| end + 1)..];
                    csv::without_blank_lines(rows, frame, holds, names == 1)
                }
            };
            let options = CsvReadOptions::default()
                .with_has_header(true)
                .with_infer_schema_length(Some(0))
                .map_parse_options(|options| options.with_separator(separator));
            let reader = options.try_into_reader_with_file_path(Some(path.to_owned()));
            reader.and_then(CsvReader::finish).and_then(without_blank_lines)
        }
        "parquet" | "pq" => {
            let arguments = ScanArgsParquet { glob: false, ..ScanArgsParquet::default() };
            let path_of = scan_path(path)?;
            guarded_at(path, Format::Parquet, || {
                LazyFrame::scan_parquet(path_of, arguments).and_then(&mut selected)
            })?
        }
        "arrow" | "feather" | "ipc" => {
            let arguments = UnifiedScanArgs { glob: false, ..UnifiedScanArgs::default() };
            let path_of = scan_path(path)?;
            guarded_at(path, Format::Arrow, || {
                LazyFrame::scan_ipc(path_of, IpcScanOptions::default(), arguments)
                    .and_then(&mut selected)
            })?
        }
        "jsonl" | "ndjson" => return json_lines(path),
        _ => {
            let problem = "texts are read from .csv, .tsv, .parquet, .arrow and .jsonl (a JSON \
                           object a line)";
            return Err(DataError::Texts { path: path.to_owned(), problem: problem.to_owned() });
        }
    };
    let frame = match frame {
        Ok(frame) => frame,
        Err(error) => {
            // Polars names no place.
            check_encoding(path)?;
            let is_csv = matches!(extension(path).as_str(), "csv" | "tsv");
            let bytes = if is_csv { std::fs::read(path).unwrap_or_default() } else { vec![] };
            let separator = separator_of(path);
            let quote = csv::unclosed(path, separator, &bytes);
            let quote = quote.or_else(|| csv::stray(path, separator, &bytes));
            return Err(quote.unwrap_or_else(|| malformed(error)));
        }
    };
    // A second column of a name is renamed by the reader, and would be another label.
    let names = || frame.get_column_names().into_iter().map(|name| name.as_str());
    let twice = names().find_map(|name| {
        let (column, number) = name.rsplit_once("_duplicated_")?;
        (number.parse::<u32>().is_ok() && names().any(|other| other == column)).then_some(column)
    });
    // Of the quotes within a name the reader of CSV leaves both.
    let named = |name: &str| match extension(path).as_str() {
        "csv" | "tsv" => name.replace("\"\"", "\""),
        _ => name.to_owned(),
    };
    if let Some(column) = twice {
        return Err(DataError::DuplicateHeader { path: path.to_owned(), column: named(column) });
    }
    let column = |column: &Column| -> PolarsResult<Vec<Option<String>>> {
        let column = column.cast(&DataType::String)?;
        Ok(column.str()?.iter().map(|value| value.map(str::to_owned)).collect())
    };
    let read: Vec<String> = names().map(named).collect();
    let columns = frame.columns().iter().map(column).collect::<PolarsResult<Vec<_>>>();
    let columns = columns.map_err(malformed)?;
    let Some(names) = whole_names else {
        return Ok(Table { names: read, columns, numbers: None });
    };
    let mut of_names: HashMap<String, _> = read.into_iter().zip(columns).collect();
    let columns = names.iter().map(|name| of_names.remove(name).unwrap_or_default()).collect();
    Ok(Table { names, columns, numbers: None })
}

fn json_lines(path: &Path) -> Result<Table, DataError> {
    use serde_json::{Map, Value};
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            check_encoding(path)?;
            return Err(DataError::io("read", path)(error));
        }
    };
    let mut table = Table { names: vec![], columns: vec![], numbers: None };
    // Some programs begin a file with the mark of its encoding.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (row, (number, line)) in lines.enumerate() {
        let object: Map<String, Value> = serde_json::from_str(line).map_err(|error| {
            DataError::line(path, number + 1, format!("no JSON object: {error}"))
        })?;
        for (name, value) in object {
            let place = table.names.iter().position(|known| *known == name);
            let place = place.unwrap_or_else(|| {
                table.names.push(name);
                table.columns.push(vec![None; row]);
                table.names.len() - 1
            });
            let value = match value {
                Value::Null => None,
                Value::String(text) => Some(text),
                other => Some(other.to_string()),
            };
            table.columns[place].push(value);
        }
        table.columns.iter_mut().for_each(|column| column.resize(row + 1, None));
    }
    Ok(table)
}

struct Reading<'a> {
    path: &'a Path,
    columns: &'a TextColumns,
    table: Table,
}

impl Reading<'_> {
    fn problem(&self, problem: String) -> DataError {
        DataError::Texts { path: self.path.to_owned(), problem }
    }

    /// The column that `text.columns.key` names.
    fn column(&self, key: &str, name: &str) -> Result<&[Option<String>], DataError> {
        let names = &self.table.names;
        if names.is_empty() {
            return Err(DataError::Empty { path: self.path.to_owned() });
        }
        let place = names.iter().position(|known| known == name).ok_or_else(|| {
            let meant = nearest(name, names.iter().map(String::as_str));
            let meant = meant
                .map_or("; it has".to_owned(), |name| format!("; did you mean `{name}`? It has"));
            self.problem(format!(
                "there is no column `{name}` (`text.columns.{key}`){meant} {}",
                names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
            ))
        })?;
        Ok(&self.table.columns[place])
    }

    /// Looks for every column that is named: where one is not there, the column that was meant would be read as a
    /// label, and something else be said of it.
    fn check_columns(&self) -> Result<(), DataError> {
        let TextColumns { text, labels, span, group, .. } = self.columns;
        self.column("text", text)?;
        labels.iter().try_for_each(|name| self.column("labels", name).map(|_| ()))?;
        span.iter().flatten().try_for_each(|name| self.column("span", name).map(|_| ()))?;
        group.iter().try_for_each(|name| self.column("group", name).map(|_| ()))
    }

    /// The columns of labels, by name.
    fn labels(&self) -> Result<Vec<String>, DataError> {
        let TextColumns { text, labels, span, group, .. } = self.columns;
        let mut found = labels.clone();
        if found.is_empty() {
            let meant = |name: &String| {
                name != text
                    && span.iter().flatten().all(|other| other != name)
                    && group.as_ref() != Some(name)
            };
            found = self.table.names.iter().filter(|name| meant(name)).cloned().collect();
        }
        if found.is_empty() {
            return Err(self.problem("there is no column of a label".to_owned()));
        }
        Ok(found)
    }

    /// The texts; those that are missing are empty.
    fn all(&self) -> Result<Vec<String>, DataError> {
        let texts = self.column("text", &self.columns.text)?;
        if texts.is_empty() {
            return Err(DataError::Empty { path: self.path.to_owned() });
        }
        Ok(texts.iter().map(|text| text.clone().unwrap_or_default()).collect())
    }

    /// Leaves rows without a text out, if that is wanted, and returns their numbers.
    fn without_empty(&mut self) -> Result<Vec<usize>, DataError> {
        let texts = self.all()?;
        let rows = |is_such: fn(&str) -> bool| -> Vec<usize> {
            (1..).zip(&texts).filter(|(_, text)| is_such(text)).map(|(row, _)| row).collect()
        };
        let empty = rows(is_empty);
        if empty.is_empty() {
            return Ok(empty);
        }
        let unseen = rows(|text| is_empty(text) && !text.trim().is_empty());
        let unseen = match unseen.is_empty() {
            true => String::new(),
            false => format!("; of invisible characters alone: {}", numbered(&unseen)),
        };
        let (is, them) = if empty.len() == 1 { ("is", "it") } else { ("are", "them") };
        let (texts_found, rows_found) = (count(empty.len() as u64, "text"), numbered(&empty));
        let found = format!("{texts_found} {is} empty ({rows_found}{unseen})");
        if self.columns.empty.is_error() {
            return Err(self.problem(format!(
                "{found}; leave {them} out of the table, or set text.columns.empty = \"drop\""
            )));
        }
        if empty.len() == texts.len() {
            return Err(self.problem(format!(
                "every text is empty ({}); name the column of texts in `text.columns.text`",
                count(texts.len() as u64, "row")
            )));
        }
        let has_text: Vec<bool> = texts.iter().map(|text| !is_empty(text)).collect();
        for column in &mut self.table.columns {
            let mut has = has_text.iter();
            column.retain(|_| has.next().copied().unwrap_or(true));
        }
        let kept = (1..).zip(&has_text).filter(|(_, has)| **has).map(|(number, _)| number);
        self.table.numbers = Some(kept.collect());
        Ok(empty)
    }

    fn texts(mut self) -> Result<LabelledTexts, DataError> {
        self.check_columns()?;
        let labels = self.labels()?;
        let twice = |place: &usize| labels[..*place].contains(&labels[*place]);
        if let Some(place) = (0..labels.len()).find(twice) {
            return Err(self.problem(format!(
                "`text.columns.labels` names `{}` twice: name each label once",
                labels[place]
            )));
        }
        let empty = self.without_empty()?;
        let texts = self.all()?;
        let rows = texts.len();
        let mut truth = vec![false; rows * labels.len()];
        for (place, name) in labels.iter().enumerate() {
            for (row, value) in self.column("labels", name)?.iter().enumerate() {
                truth[row * labels.len() + place] = self.truth(name, row, value.as_deref())?;
            }
        }
        let spans = self.spans(&texts)?;
        let groups = match &self.columns.group {
            None => vec![None; rows],
            Some(name) => {
                self.column("group", name)?.iter().map(|name| group_of(name.as_deref()?)).collect()
            }
        };
        let numbers = (0..rows).map(|row| self.table.number(row)).collect();
        Ok(LabelledTexts { texts, labels, truth, spans, groups, rows: numbers, empty })
    }

    fn truth(&self, name: &str, row: usize, value: Option<&str>) -> Result<bool, DataError> {
        match value.map(|value| value.trim().to_lowercase()).as_deref() {
            Some("1" | "1.0" | "true") => Ok(true),
            Some("0" | "0.0" | "false") => Ok(false),
            _ => {
                let way_out = self.classes_of(name).map_or_else(
                    || {
                        "Name the columns of labels in `text.columns.labels` if this is none"
                            .to_owned()
                    },
                    |classes| one_column_each(name, &classes),
                );
                Err(self.problem(format!(
                    "the label `{name}` is {} in row {}; a label is 0 or 1. {way_out}",
                    value.map_or("empty".to_owned(), |value| format!("`{value}`")),
                    self.table.number(row)
                )))
            }
        }
    }

    /// The names of classes that a column holds, if it does: few, again and again, and none but names.
    fn classes_of(&self, name: &str) -> Option<Vec<String>> {
        const MOST: usize = 50;
        let mut classes = BTreeSet::new();
        let mut rows = 0;
        for value in self.column("labels", name).ok()?.iter().flatten() {
            let value = value.trim();
            if value.is_empty() {
                continue;
            }
            (value.parse::<f64>().is_err() && classes.len() <= MOST).then_some(())?;
            classes.insert(value.to_owned());
            rows += 1;
        }
        ((2..=MOST).contains(&classes.len()) && 2 * classes.len() <= rows)
            .then(|| classes.into_iter().collect())
    }

    /// The evidence in bytes.
    fn spans(&self, texts: &[String]) -> Result<Vec<Option<[usize; 2]>>, DataError> {
        let Some([first, end]) = &self.columns.span else { return Ok(vec![None; texts.len()]) };
        let (firsts, ends) = (self.column("span", first)?, self.column("span", end)?);
        let number = |row: usize, name: &str, value: &Option<String>| {
            let written = value.as_deref().map(str::trim).filter(|value| !value.is_empty());
            let read = |text: &str| {
                let number = text.parse::<f64>().ok().filter(|n| *n >= 0.0 && n.fract() == 0.0);
                number.map(|number| number as usize).ok_or_else(|| {
                    let row = self.table.number(row);
                    self.problem(format!("`{name}` is `{text}` in row {row}; it counts characters"))
                })
            };
            written.map(read).transpose()
        };
        let span = |(row, text): (usize, &String)| {
            let (from, to) = (number(row, first, &firsts[row])?, number(row, end, &ends[row])?);
            let (from, to) = match (from, to) {
                (None, None) => return Ok(None),
                (Some(from), Some(to)) => (from, to),
                _ => {
                    return Err(self.problem(format!(
                        "row {} has one of `{first}` and `{end}`; evidence has both or none",
                        self.table.number(row)
                    )));
                }
            };
            let starts = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            let starts: Vec<usize> = starts.collect();
            if from >= to || to >= starts.len() {
                return Err(self.problem(format!(
                    "the evidence of row {} reaches from character {from} to {to}, and its text has {}; \
                     it must hold at least one character and end within the text",
                    self.table.number(row),
                    starts.len() - 1
                )));
            }
            Ok(Some([starts[from], starts[to]]))
        };
        texts.iter().enumerate().map(span).collect()
    }
}

/// Whether nothing of a text can be seen: it is of spaces, control characters and such as only say how others are
/// written alone.
fn is_empty(text: &str) -> bool {
    text.chars().all(|character| {
        character.is_whitespace() || character.is_control() || is_format(character)
    })
}

/// Whether a character is one of the usual ones of Unicode's category Cf: the soft hyphen, joiners, marks of direction and
/// of the order of bytes.
fn is_format(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{2064}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// The group that a cell names, as it is compared: without blanks around it, and however a number is written. Without a
/// name there is none.
fn group_of(name: &str) -> Option<String> {
    let name = name.trim();
    (!name.is_empty()).then(|| as_number(name).unwrap_or_else(|| name.to_owned()))
}

/// Some rows by their numbers.
fn numbered(rows: &[usize]) -> String {
    const NAMED: usize = 5;
    let named: Vec<String> = rows.iter().take(NAMED).map(usize::to_string).collect();
    let more = match rows.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let noun = if rows.len() == 1 { "row" } else { "rows" };
    format!("{noun} {}{more}", named.join(", "))
}

/// What to do about a column of classes' names.
fn one_column_each(name: &str, classes: &[String]) -> String {
    let columns: Vec<String> = match classes {
        // The other one is told by it.
        [_, positive] => vec![positive.clone()],
        all => all.to_vec(),
    };
    let [make, is] = match columns.len() {
        1 => ["a column", "the class is that one, and 0 where it is the other"],
        _ => ["a column for each class", "the class is that one, and 0 elsewhere"],
    };
    format!(
        "`{name}` holds names of classes: make {make} instead ({}), 1 where {is}, and leave `{name}` out of the table, or \
         name those in `text.columns.labels`",
        quoted(&columns, 8)
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test says why it fails by panicking")]
mod tests {
    use super::*;

    fn columns() -> TextColumns {
        TextColumns {
            span: Some(["from".to_owned(), "to".to_owned()]),
            group: Some("author".to_owned()),
            ..TextColumns::default()
        }
    }

    fn read(name: &str, content: &str) -> Result<LabelledTexts, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        read_texts(&path, &columns()).map_err(|error| error.to_string())
    }

    const CSV: &str = "text,late,lost,from,to,author\n\"Über, spät\",1,0,0,4,a\nfine,0,0,,,b\n";

    #[test]
    fn csv_and_json_lines_give_the_same() {
        let texts = read("a.csv", CSV).unwrap();
        assert_eq!(texts.texts, ["Über, spät", "fine"]);
        assert_eq!(texts.labels, ["late", "lost"]);
        assert_eq!(texts.truth, [true, false, false, false]);
        // Four characters, the first of two bytes.
        assert_eq!(texts.spans, [Some([0, 5]), None]);
        assert_eq!(texts.groups[1].as_deref(), Some("b"));
        let lines = "{\"text\":\"Über, spät\",\"late\":true,\"lost\":0,\"from\":0,\"to\":4,\"author\":\"a\"}\n\
                     {\"text\":\"fine\",\"late\":0,\"lost\":false,\"author\":\"b\"}\n";
        let again = read("a.jsonl", lines).unwrap();
        assert_eq!(again.texts, texts.texts);
        assert_eq!((again.spans, again.groups), (texts.spans, texts.groups));
        assert_eq!(again.truth.iter().filter(|t| **t).count(), 1);
    }

    #[test]
    fn groups_are_the_same_however_they_are_written() {
        let row = |author: &str| format!("so {author},0,0,,,{author}\n");
        let rows: String = ["7", " 7 ", "7.0", "smith ", " ", "", "Smith"].map(row).concat();
        let texts = read("a.csv", &format!("text,late,lost,from,to,author\n{rows}")).unwrap();
        let groups: Vec<_> = texts.groups.iter().map(Option::as_deref).collect();
        let seven = Some("7");
        assert_eq!(groups, [seven, seven, seven, Some("smith"), None, None, Some("Smith")]);
    }

    #[test]
    fn a_quote_within_a_text_is_told_with_its_place() {
        let row = |text: &str| format!("{text},0,0,,,a\n");
        let table = |rows: &[&str]| {
            let rows: String = rows.iter().copied().map(&row).collect();
            read("a.csv", &format!("text,late,lost,from,to,author\n{rows}"))
        };
        let said = table(&["fine", "\"so\" it is", "well"]).unwrap_err();
        assert!(said.contains("a.csv, line 3: a double quote stands within a field"), "{said}");
        assert_eq!(table(&["fine", "\"\"\"so\"\" it is\""]).unwrap().texts[1], "\"so\" it is");
    }

    #[test]
    fn columns_that_are_not_used_may_hold_anything_and_blank_lines_are_no_rows() {
        let folder = tempfile::tempdir().unwrap();
        let pair = || Series::new("".into(), [1i64, 2]);
        let list = Series::new("vector".into(), [pair(), pair()]);
        let bytes = Series::new("raw".into(), [[0xffu8, 0xfe].as_slice(), &[1]]);
        let columns: Vec<Column> = vec![
            Series::new("text".into(), ["so", "not so"]).into(),
            list.into(),
            bytes.into(),
            Series::new("late".into(), [1i64, 0]).into(),
        ];
        let mut frame = DataFrame::new_infer_height(columns).unwrap();
        let path = folder.path().join("a.parquet");
        ParquetWriter::new(std::fs::File::create(&path).unwrap()).finish(&mut frame).unwrap();
        assert_eq!(read_plain_texts(&path, "text").unwrap(), ["so", "not so"]);
        let named = |label: &str| {
            let labels = vec![label.to_owned()];
            let columns = TextColumns { labels, ..TextColumns::default() };
            read_texts(&path, &columns).map_err(|error| error.to_string())
        };
        assert_eq!(named("late").unwrap().truth, [true, false]);
        let said = named("lat").unwrap_err();
        assert!(said.contains("did you mean `late`? It has `text`, `vector`, `raw`"), "{said}");
        let blank = folder.path().join("a.csv");
        std::fs::write(&blank, "text,late\nso,1\n\nnot so,0\n\n").unwrap();
        let texts = read_texts(&blank, &TextColumns::default()).unwrap();
        assert_eq!((texts.texts.len(), texts.rows), (2, vec![1, 2]));
        std::fs::write(&blank, "text,late\nso,1\n\"").unwrap();
        let said = read_texts(&blank, &TextColumns::default()).unwrap_err().to_string();
        assert!(said.contains("line 3"), "{said}");
    }

    #[test]
    fn empty_texts_are_refused_with_their_rows_or_left_out() {
        let table =
            "text,late,from,to,author\n,,,,\nfine,0,,,a\n  ,1,,,\nnot so fine,1,0,3,b\n,0,,,c\n";
        let said = read("a.csv", table).unwrap_err();
        assert!(said.contains("3 texts are empty (rows 1, 3, 5); leave them out of"), "{said}");
        assert!(said.contains("set text.columns.empty = \"drop\""), "{said}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        let dropping = TextColumns { empty: EmptyTexts::Drop, ..columns() };
        let read = |table: &str| {
            std::fs::write(&path, table).unwrap();
            read_texts(&path, &dropping).map_err(|error| error.to_string())
        };
        let texts = read(table).unwrap();
        assert_eq!(texts.texts, ["fine", "not so fine"]);
        assert_eq!((texts.rows, texts.empty), (vec![2, 4], vec![1, 3, 5]));
        assert_eq!((texts.truth, texts.spans), (vec![false, true], vec![None, Some([0, 3])]));
        assert_eq!(texts.groups, [Some("a".to_owned()), Some("b".to_owned())]);
        // Problems of others are told with the rows of the table.
        let said = read(&table.replace("fine,1,0,3", "fine,1,0,99")).unwrap_err();
        assert!(said.contains("evidence of row 4"), "{said}");
        let said = read("text,late,from,to,author\n,0,,,a\n ,1,,,b\n").unwrap_err();
        assert!(said.contains("every text is empty (2 rows); name the column"), "{said}");
        assert_eq!(numbered(&[1, 2, 3, 4, 5, 6, 9]), "rows 1, 2, 3, 4, 5 and 2 more");
    }

    #[test]
    fn texts_of_which_nothing_can_be_seen_are_empty() {
        let row = |text: &str| format!("\"{text}\",0,1,,,\n");
        // A soft hyphen, a space without width, an isolate around a blank, a bell; and a word with a joiner.
        let texts = ["\u{ad}", "fine", "\u{200b}", "\u{2066} \u{2069}", "\u{7}", " ", "a\u{200d}b"];
        let rows: String = texts.into_iter().map(row).collect();
        let table = format!("text,late,lost,from,to,author\n{rows}");
        let said = read("a.csv", &table).unwrap_err();
        let expected = "5 texts are empty (rows 1, 3, 4, 5, 6; of invisible characters alone: rows 1, 3, 4, 5); leave them";
        assert!(said.contains(expected), "{said}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        std::fs::write(&path, table).unwrap();
        let dropping = TextColumns { empty: EmptyTexts::Drop, ..columns() };
        let left = read_texts(&path, &dropping).unwrap();
        assert_eq!(left.texts, ["fine", "a\u{200d}b"]);
        assert_eq!((left.rows, left.empty), (vec![2, 7], vec![1, 3, 4, 5, 6]));
    }

    #[test]
    fn a_column_of_names_has_its_way_out() {
        let table = |classes: &[&str]| {
            let rows = classes.iter().enumerate();
            let rows: String = rows.map(|(row, class)| format!("t{row},{class},,,a\n")).collect();
            read("a.csv", &format!("text,kind,from,to,author\n{rows}")).unwrap_err()
        };
        let start = "the label `kind` is `spam` in row 1; a label is 0 or 1. `kind` holds names of classes: make ";
        let two = table(&["spam", "ham", "ham", "spam"]);
        let expected =
            format!("{start}a column instead (`spam`), 1 where the class is that one, and 0");
        assert!(two.contains(&expected), "{two}");
        let three = table(&["spam", "ham", "news", "spam", "", "ham", "news"]);
        let expected = format!("{start}a column for each class instead (`ham`, `news`, `spam`), 1");
        assert!(three.contains(&expected), "{three}");
        assert!(three.contains("`text.columns.labels`"), "{three}");
        // Other texts are no classes, nor are numbers.
        for other in [&["one", "two", "three"][..], &["2", "1", "2", "1"]] {
            let said = table(other);
            assert!(said.ends_with("in `text.columns.labels` if this is none"), "{said}");
        }
    }

    #[test]
    fn a_label_that_is_named_twice_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        std::fs::write(&path, CSV).unwrap();
        let labels = ["late", "lost", "late"].map(str::to_owned).to_vec();
        let said = read_texts(&path, &TextColumns { labels, ..columns() }).unwrap_err().to_string();
        assert!(said.ends_with("names `late` twice: name each label once"), "{said}");
    }

    #[test]
    fn a_column_that_is_not_there_is_told_with_its_key_before_what_follows_from_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        std::fs::write(&path, CSV).unwrap();
        let named = |name: &str| Some(name.to_owned());
        for (columns, expected) in [
            (
                TextColumns { group: named("nope"), ..columns() },
                "there is no column `nope` (`text.columns.group`); it has `text`, ",
            ),
            (
                TextColumns { group: named("auhtor"), ..columns() },
                "there is no column `auhtor` (`text.columns.group`); did you mean `author`?",
            ),
            (
                TextColumns { span: Some(["form", "to"].map(str::to_owned)), ..columns() },
                "there is no column `form` (`text.columns.span`)",
            ),
            (
                TextColumns { labels: vec!["lte".to_owned()], ..columns() },
                "there is no column `lte` (`text.columns.labels`); did you mean `late`?",
            ),
        ] {
            let said = read_texts(&path, &columns).unwrap_err().to_string();
            assert!(said.contains(expected), "{said}");
        }
        let message = read("empty.jsonl", "\n").unwrap_err();
        assert!(message.ends_with("has no row of data"), "{message}");
    }

    #[test]
    fn two_columns_of_one_name_are_refused() {
        let said = read("a.csv", &CSV.replacen("lost", "late", 1)).unwrap_err();
        assert!(said.ends_with("has two columns named `late`: rename one of them"), "{said}");
    }

    #[test]
    fn quotes_within_the_name_of_a_column_are_as_in_a_field() {
        let csv = CSV.replacen("late", "\"so \"\"late\"\"\"", 1).replacen("lost", "\"a, b\"", 1);
        assert_eq!(read("a.csv", &csv).unwrap().labels, ["so \"late\"", "a, b"]);
        assert_eq!(
            read("a.csv", &format!("\u{feff}{csv}")).unwrap().labels,
            ["so \"late\"", "a, b"]
        );
        let csv = csv.replacen("a, b", "so \"\"late\"\"", 1);
        let said = read("a.csv", &csv).unwrap_err();
        assert!(said.contains("has two columns named `so \"late\"`: rename one"), "{said}");
        // A name of two lines is the reader's.
        let csv = CSV.replacen("late", "\"la\nte\"", 1);
        assert_eq!(read("a.csv", &csv).unwrap().labels, ["la\nte", "lost"]);
    }

    #[test]
    fn a_header_whose_quotes_would_take_rows_is_refused() {
        let open = "a double quote is opened in the header and not closed where a name ends";
        let alone = "a double quote stands alone within the name of a column";
        for (header, expected) in [
            ("text,\"late,lost,from,to,author\n", open),
            ("text,late,lost,from,to,\"author\n", open),
            ("text,\"late \"\"so\"\",lost,from,to,author\n", open),
            ("text,late 5\",lost,from,to,author\n", alone),
        ] {
            // A quote of a row ends none, nor do two for one within a text.
            for rows in
                ["fine,0,0,,,b\n", "fine,0,0,,,b\n\"so, so\",1,0,,,a\n", "a \"\"b\"\",0,0,,,b\n"]
            {
                let said = read("a.csv", &format!("{header}{rows}")).unwrap_err();
                assert!(said.contains("a.csv, line 1: ") && said.contains(expected), "{said}");
            }
        }
    }

    #[test]
    fn a_table_that_ends_within_a_row_is_refused() {
        let check = |name: &str, table: &str| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(name);
            std::fs::write(&path, table).unwrap();
            read_plain_texts(&path, "text").map_err(|error| error.to_string())
        };
        let said = check("a.csv", CSV.strip_suffix(",0,0,,,b\n").unwrap()).unwrap_err();
        assert!(said.contains("a.csv, line 3: the file ends within a row: 1 field and"), "{said}");
        let said = check("a.tsv", "text\tlate\nso, it is\t1\nnot").unwrap_err();
        assert!(said.contains("a.tsv, line 3: the file ends within a row: 1 field and"), "{said}");
        assert_eq!(check("a.csv", CSV.trim_end()).unwrap().len(), 2);
        assert_eq!(check("a.csv", "text\nso\nnot").unwrap(), ["so", "not"]);
    }

    #[test]
    fn what_cannot_be_learnt_from_is_named() {
        let check = |from: &str, to: &str, expected: &str| {
            assert!(CSV.contains(from));
            let message = read("a.csv", &CSV.replace(from, to)).unwrap_err();
            assert!(message.contains(expected), "{message}");
        };
        check("fine,0,0", "fine,2,0", "the label `late` is `2` in row 2; a label is 0 or 1");
        check("fine,0,0", "fine,,0", "the label `late` is empty in row 2");
        check(
            "0,4,a",
            "0,11,a",
            "evidence of row 1 reaches from character 0 to 11, and its text has 10",
        );
        check("0,4,a", "4,4,a", "at least one character");
        check("0,4,a", "0,,a", "row 1 has one of `from` and `to`");
        check("0,4,a", "x,4,a", "`from` is `x` in row 1");
        check("fine,", "  ,", "1 text is empty (row 2)");
        check(
            "text,late",
            "txet,late",
            "no column `text` (`text.columns.text`); did you mean `txet`?",
        );
        let message = read("a.doc", CSV).unwrap_err();
        assert!(message.contains("texts are read from .csv"), "{message}");
    }

    #[test]
    fn lines_that_end_with_a_carriage_return_alone_are_named() {
        let folder = tempfile::tempdir().unwrap();
        for (name, separator) in [("a.csv", ","), ("a.tsv", "\t")] {
            let path = folder.path().join(name);
            let lines = "text,0\rfine,0\rso,0\r".replace(',', separator);
            std::fs::write(&path, &lines).unwrap();
            let said = read_plain_texts(&path, "text").unwrap_err().to_string();
            let expected = format!("{name}, line 1: lines end with a carriage return alone");
            assert!(said.contains(&expected), "{said}");
            // Before a line feed they are usual.
            std::fs::write(&path, lines.replace('\r', "\r\n")).unwrap();
            assert_eq!(read_plain_texts(&path, "text").unwrap(), ["fine", "so"]);
        }
    }

    #[test]
    fn another_separator_than_the_name_says_is_named() {
        let check = |name: &str, separator: &str, expected: &str| {
            let table = "text,late,lost\nfine,0,1\n".replace(',', separator);
            let message = read(name, &table).unwrap_err();
            let header = format!("{name}, line 1: the header is one column, `text{separator}late");
            assert!(message.contains(&header) && message.ends_with(expected), "{message}");
        };
        check("a.csv", ";", "write the table so if ';' is what separates them");
        check("a.csv", "\t", "write the table so if '\\t' is what separates them");
        check("a.tsv", ",", "write the table so if ',' is what separates them");
        // A column that is named so is one.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        std::fs::write(&path, "text;body\nfine\n").unwrap();
        assert_eq!(read_plain_texts(&path, "text;body").unwrap(), ["fine"]);
    }

    #[test]
    fn bytes_that_are_no_utf8_are_told_with_their_place() {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes, expected) in [
            (
                "a.csv",
                &b"text,late\nfine,0\n\xc3\xbcber sp\xe4t,1\n"[..],
                "a.csv, line 3: character 8",
            ),
            (
                "a.jsonl",
                &b"{\"text\":\"sp\xe4t\",\"late\":1}\n"[..],
                "a.jsonl, line 1: character 12",
            ),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let columns = TextColumns::default();
            let said =
                [check_encoding(&path).unwrap_err(), read_texts(&path, &columns).unwrap_err()];
            for said in said.map(|error| error.to_string()) {
                assert!(said.contains(expected), "{said}");
                assert!(
                    said.ends_with("is not UTF-8 (byte 0xE4): save the file as UTF-8"),
                    "{said}"
                );
            }
        }
        let path = folder.path().join("a.parquet");
        std::fs::write(&path, b"\xff").unwrap();
        check_encoding(&path).unwrap();
    }
}
