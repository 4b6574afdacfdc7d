//! Declared texts for missing values that stand nowhere: a column of -9999.0 would be learnt from where -9999 is declared.
//!
//! Files are looked through as bytes, up to the first cell of each text, so that only those that do not occur take a whole
//! reading. Whoever reads the columns does not say what a missing value was.
//!
//! And texts that mostly stand for a missing value, and were not declared.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use rayon::prelude::*;

use crate::csv::{fields, header, number, separator};
use crate::input::Input;
use crate::mapping::Mapping;
use crate::{Csv, DataConfig, DataError, Format};

/// Bytes that are looked through at once, and a line more.
const BLOCK: u64 = 1 << 20;

/// What mostly stands for a missing value, in small letters: what pandas reads as such, and signs that people write.
const USUAL: [&str; 17] = [
    "na", "n/a", "#n/a", "#na", "<na>", "null", "nil", "none", "missing", "-", "--", "?", ".",
    "-nan", "#null!", "1.#ind", "1.#qnan",
];

/// Cells of a column that are looked at.
const CELLS: usize = 10_000;

/// Whether a text is one of them.
fn is_usual(text: &str) -> bool {
    USUAL.contains(&text.to_lowercase().as_str())
}

/// Whether most cells of a column are numbers, of those that hold anything.
fn are_numbers(csv: &Csv, cells: impl Iterator<Item = String>) -> bool {
    let (mut numbers, mut others) = (0, 0);
    for cell in cells.take(CELLS) {
        let cell = cell.trim();
        match number(cell, csv) {
            Some(_) => numbers += 1,
            None if cell.is_empty() || is_usual(cell) => {}
            None => others += 1,
        }
    }
    numbers > others
}

/// The setting by which a text stands for a missing value, too.
fn declaring(text: &str, csv: &Csv) -> String {
    let declared = csv.missing.iter().map(String::as_str).chain([text]);
    let declared: Vec<String> = declared.map(|text| format!("{text:?}")).collect();
    format!("`data.csv.missing = [{}]`", declared.join(", "))
}

/// The way out where a cell holds such a text, and most others of its column numbers.
pub(crate) fn to_declare<C: Iterator<Item = String>>(
    text: &str,
    csv: &Csv,
    cells: impl FnOnce() -> C,
) -> Option<String> {
    (is_usual(text) && are_numbers(csv, cells()))
        .then(|| format!("if it stands for a missing value, set {}", declaring(text, csv)))
}

/// The way out where a cell holds any other text in a row, counted from 1, and most others of its column numbers.
pub(crate) fn among_numbers(
    text: &str,
    row: usize,
    csv: &Csv,
    cells: impl Iterator<Item = String>,
) -> Option<String> {
    let units = if row == 1 { ", as one of units" } else { "" };
    are_numbers(csv, cells).then(|| {
        format!(
            "most others of its column are; correct it, or leave its row out{units}, or set {} if it stands for a missing value",
            declaring(text, csv)
        )
    })
}

/// The declared texts that are no cell of a column in use, in any of these files.
pub(crate) fn unmatched(
    inputs: &[Input],
    config: &DataConfig,
    stop: &AtomicBool,
) -> Result<Vec<String>, DataError> {
    let is_csv = inputs.first().is_some_and(|input| input.format == Format::Csv);
    // An empty field is missing without being declared.
    let declared = config.csv.missing.iter().filter(|text| is_csv && !text.is_empty());
    let wanted = Mutex::new(declared.cloned().collect::<Vec<String>>());
    let left = || wanted.lock().map(|texts| texts.clone()).unwrap_or_default();
    let look_through = |input: &Input| -> Result<(), DataError> {
        if left().is_empty() {
            return Ok(());
        }
        let cells = Cells::of(&input.path, config)?;
        let io = |error| DataError::io("read", &input.path)(error);
        let mut file = BufReader::new(File::open(&input.path).map_err(io)?);
        let mut block = Vec::new();
        file.read_until(b'\n', &mut block).map_err(io)?;
        loop {
            DataError::heed(stop)?;
            block.clear();
            let read = file.by_ref().take(BLOCK).read_to_end(&mut block).map_err(io)?;
            file.read_until(b'\n', &mut block).map_err(io)?;
            let texts = left();
            if read == 0 || texts.is_empty() {
                return Ok(());
            }
            let lines = String::from_utf8_lossy(&block);
            let found: Vec<&String> =
                texts.iter().filter(|text| cells.have(&lines, text)).collect();
            if let Ok(mut wanted) = wanted.lock() {
                wanted.retain(|text| !found.contains(&text));
            }
        }
    };
    inputs.par_iter().try_for_each(look_through)?;
    Ok(left())
}

/// Where the cells of a file are that are in use.
struct Cells {
    separator: u8,
    /// Whether each column is.
    used: Vec<bool>,
}

impl Cells {
    fn of(path: &Path, config: &DataConfig) -> Result<Self, DataError> {
        let names = header(path, &config.csv)?;
        let mapping = Mapping::new(path, &names, &config.columns)?;
        let is_used = |name: &String| mapping.used().any(|used| used == name);
        let used = names.iter().map(is_used).collect();
        Ok(Self { separator: separator(path, &config.csv), used })
    }

    /// Whether one of them is this text.
    fn have(&self, lines: &str, text: &str) -> bool {
        let is_end = |byte: Option<&u8>| {
            byte.is_none_or(|byte| {
                *byte == self.separator || matches!(*byte, b'"' | b' ' | b'\t' | b'\n' | b'\r')
            })
        };
        let bytes = lines.as_bytes();
        lines.match_indices(text).any(|(start, _)| {
            let end = start + text.len();
            let before = start.checked_sub(1).and_then(|before| bytes.get(before));
            is_end(before) && is_end(bytes.get(end)) && self.is_in_use(lines, start, text)
        })
    }

    /// Whether one that stands there is a cell in use.
    fn is_in_use(&self, lines: &str, start: usize, text: &str) -> bool {
        let begin = lines[..start].rfind('\n').map_or(0, |end| end + 1);
        let line = lines[begin..].split('\n').next().unwrap_or_default().trim_end_matches('\r');
        let fields = fields(line, self.separator);
        // A line within quotes: nothing is known of its columns.
        if fields.len() > self.used.len() {
            return true;
        }
        // Blanks around it are left out before it is compared.
        let is_it = |field: &str| field == text || field.trim() == text.trim();
        fields.iter().zip(&self.used).any(|(field, used)| *used && is_it(field))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::inputs;

    fn check(files: &[&str], missing: &[&str], expected: &[&str]) {
        let folder = tempfile::tempdir().unwrap();
        for (number, text) in files.iter().enumerate() {
            std::fs::write(folder.path().join(format!("{number}.csv")), text).unwrap();
        }
        let mut config = DataConfig::new(folder.path());
        config.csv.missing = missing.iter().map(ToString::to_string).collect();
        config.columns.channels = vec!["x".into(), "y".into()];
        let inputs = inputs(&config).unwrap();
        let found = unmatched(&inputs, &config, &AtomicBool::new(false)).unwrap();
        assert_eq!(found, expected, "{files:?}");
        let stopped = unmatched(&inputs, &config, &AtomicBool::new(true));
        assert!(missing.is_empty() || matches!(stopped, Err(DataError::Stopped)));
    }

    #[test]
    fn a_text_that_is_no_cell_in_use_is_told() {
        let header = "time,x,y,z\n";
        let file = |rows: &str| format!("{header}{rows}");
        let one = file("2024-01-01,-9999.0,1,7\n2024-01-02,2,-99999,7\n");
        check(&[&one], &[], &[]);
        check(&[&one], &["-9999", "-9999.0", "-99999"], &["-9999"]);
        // Of any file, at the end of a line or of the file, in quotes, and with blanks around it.
        let more = [file("2024-01-01,1,NA,7\r\n"), file("2024-01-01,\"-\",1,7\n2024-01-02,1,none")];
        check(&[&one, &more[0], &more[1]], &["NA", "-", "none", "null"], &["null"]);
        check(&[&file("2024-01-01,?  ,1,7\n2024-01-02, !,1,7\n")], &["?", "!", " !"], &[]);
        // Not of a column that is not read, and not of the header.
        check(&[&file("2024-01-01,1,2,NA\n")], &["NA", "x", "", "7"], &["NA", "x", "7"]);
    }

    #[test]
    fn a_usual_text_among_numbers_is_to_be_declared() {
        let told = |text: &str, cells: &[&str], missing: &[&str]| {
            let missing = missing.iter().map(ToString::to_string).collect();
            let csv = Csv { missing, ..Csv::default() };
            to_declare(text, &csv, || cells.iter().map(ToString::to_string))
        };
        let way_out = |list: &str| {
            Some(format!("if it stands for a missing value, set `data.csv.missing = [{list}]`"))
        };
        for text in ["NA", "n/a", "#N/A", "null", "None", "-", "?"] {
            let list = format!("\"{text}\"");
            assert_eq!(told(text, &["1.5", text, "", " 2"], &[]), way_out(&list));
        }
        assert_eq!(told("NA", &["NA", "3"], &["-9999"]), way_out("\"-9999\", \"NA\""));
        // A column of names, and one without a number.
        assert_eq!(told("NA", &["EU", "NA", "1", "AS"], &[]), None);
        assert_eq!(told("NA", &["NA", "", "NA"], &[]), None);
        assert_eq!(told("fine", &["1", "fine", "2"], &[]), None);
    }

    #[test]
    fn a_text_is_found_wherever_blocks_end() {
        let rows: String = (0..60_000).map(|row| format!("{row},{row}.25,{row}.5,0\n")).collect();
        assert!(rows.len() as u64 > BLOCK);
        for (end, expected) in [("60000,NA,1,0\n", vec![]), ("60000,1,1,NA\n", vec!["NA"])] {
            check(&[&format!("time,x,y,z\n{rows}{end}")], &["NA"], &expected);
        }
    }
}
