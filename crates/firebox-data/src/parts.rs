//! Tables in parts of consecutive rows, one after the other, for whoever wants no more than one of them in
//! memory: blocks of lines of a CSV file. Groups of rows of Parquet and Arrow files can be decoded in any order, see
//! [`Groups`](crate::groups::Groups); an Arrow file of which they cannot is one part.

use std::fs::File;
use std::io::Read;

use crate::fast::Stop;
use crate::frame::{self, Table};
use crate::input::Input;
use crate::mapping::Mapping;
use crate::{DataConfig, Format, csv};

/// Bytes of a block of lines.
const BLOCK: usize = 8 << 20;

/// Calls `each` with every part, and with the rows that the file will have had, as far as that can be guessed
/// from what was read of it.
/// Whatever is wrong with a part is found again on the long way, and told from there.
pub(crate) fn each(
    input: &Input,
    config: &DataConfig,
    each: impl FnMut(Table<'_>, usize) -> Result<(), Stop>,
) -> Result<(), Stop> {
    match input.format {
        Format::Csv => blocks(input, config, BLOCK, each),
        _ => whole(input, config, each),
    }
}

fn whole(
    input: &Input,
    config: &DataConfig,
    mut each: impl FnMut(Table<'_>, usize) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let table = frame::load(input, config).map_err(|_| Stop::Odd)?;
    let rows = table.rows();
    each(table, rows)
}

fn blocks(
    input: &Input,
    config: &DataConfig,
    size: usize,
    mut each: impl FnMut(Table<'_>, usize) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let path = &input.path;
    let names = csv::header(path, &config.csv).map_err(|_| Stop::Odd)?;
    let mapping = Mapping::new(path, &names, &config.columns).map_err(|_| Stop::Odd)?;
    csv::check_index(path, &config.csv, &names, &mapping).map_err(|_| Stop::Odd)?;
    csv::check_end(path, &config.csv, names.len())?;
    let mut file = File::open(path).map_err(|_| Stop::Odd)?;
    let bytes = file.metadata().map_or(0, |about| about.len());
    let mut block = Vec::new();
    let mut first = true;
    // Whether there are lines without a value, and quotes, within which a line may end.
    let (mut blank, mut quoted) = (false, false);
    // Rows, and the bytes that they took.
    let mut done = [0, 0];
    loop {
        let wanted = (size - block.len().min(size)) as u64;
        let read = file.by_ref().take(wanted).read_to_end(&mut block).map_err(|_| Stop::Odd)?;
        let end = match read as u64 == wanted {
            true => last_line(&block).ok_or(Stop::Odd)?,
            // Blank lines at the end are no rows.
            false => {
                let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
                let end = block.iter().rposition(|byte| !is_end(byte)).map_or(0, |last| last + 1);
                let mut ends = block[end..].split_inclusive(|byte| *byte == b'\n');
                if !ends.all(|end| matches!(end, b"\n" | b"\r\n")) {
                    return Err(Stop::Odd);
                }
                end
            }
        };
        let begin = if first { first_line(&block[..end]).unwrap_or(end) } else { 0 };
        if begin < end {
            let frame = csv::read_lines(path, &block[begin..end], &config.csv, &names, &mapping);
            let frame = frame.map_err(|_| Stop::Odd)?;
            let lines = &block[begin..end];
            if !holds_all(lines, frame.height()) {
                return Err(Stop::Odd);
            }
            quoted |= lines.contains(&b'"');
            let frame = match csv::rows_with_a_value(&frame) {
                None => frame,
                Some(holds) => {
                    blank = true;
                    csv::without_blank_lines(lines, frame, holds, false).map_err(|_| Stop::Odd)?
                }
            };
            // What a blank line is there may depend on the whole file.
            if blank && (quoted || names.len() == 1) {
                return Err(Stop::Odd);
            }
            done = [done[0] + frame.height(), done[1] + end];
            if frame.height() > 0 {
                let table = Table::of(input, config, frame, mapping.clone());
                each(table, guess(done, bytes))?;
            }
        }
        if (read as u64) < wanted {
            return Ok(());
        }
        first = false;
        block.drain(..end);
    }
}

/// Rows of a file of so many bytes, of which some of both are known; rather some too many.
fn guess([rows, read]: [usize; 2], bytes: u64) -> usize {
    let all = rows as f64 * (bytes as f64 / read as f64).max(1.0);
    if read as u64 >= bytes { rows } else { (1.02 * all) as usize + 1 }
}

/// Whether so many rows may be all of these lines: polars drops those behind a quote that is never
/// closed without a word.
fn holds_all(lines: &[u8], rows: usize) -> bool {
    let count = |wanted: u8| lines.iter().filter(|byte| **byte == wanted).count();
    match count(b'"') {
        0 => rows == count(b'\n') + usize::from(lines.last() != Some(&b'\n')),
        quotes => quotes.is_multiple_of(2),
    }
}

/// Where the second line begins.
fn first_line(block: &[u8]) -> Option<usize> {
    block.iter().position(|byte| *byte == b'\n').map(|end| end + 1)
}

/// Where the last line that has an end ends: one that is not within quotes, which hold lines of their
/// own. The block begins outside of any.
fn last_line(block: &[u8]) -> Option<usize> {
    let mut quotes = block.iter().filter(|byte| **byte == b'"').count();
    for (place, byte) in block.iter().enumerate().rev() {
        match byte {
            b'"' => quotes -= 1,
            b'\n' if quotes.is_multiple_of(2) => return Some(place + 1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::inputs;
    use polars::prelude::*;

    #[test]
    fn a_block_ends_with_a_line_that_is_not_within_quotes() {
        let ends = |text: &str| last_line(text.as_bytes());
        assert_eq!(ends("a,b\n1,2\n3"), Some(8));
        assert_eq!(ends("a,\"b\nc\"\nd,\"e\n"), Some(8));
        assert_eq!(ends("a,\"b\nc"), None);
    }

    #[test]
    fn blocks_of_any_size_hold_the_rows_that_the_whole_file_has() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.csv");
        let rows = (0..500).map(|row| match row % 7 {
            3 => format!("2024-01-01T00:{row:02}:00,\"{row}.5\",\"a\n\"\"{row}\"\"\"\r\n"),
            5 => format!("2024,,{row}\n"),
            _ => format!("x{row},{row}.25,b\n"),
        });
        let text = format!("\u{feff}time,value,label\n{}", rows.collect::<String>());
        std::fs::write(&file, text.trim_end()).unwrap();
        let mut config = DataConfig::new(&file);
        config.columns.label = Some("label".to_owned());
        let input = inputs(&config).unwrap().remove(0);
        let whole = frame::load(&input, &config).unwrap().into_frame();
        assert_eq!(whole.height(), 500);
        for size in [64, 100, 1000, 4096, 1 << 20] {
            let mut all = None::<DataFrame>;
            let mut parts = 0;
            let stopped = blocks(&input, &config, size, |table, _| {
                parts += 1;
                match &mut all {
                    Some(all) => {
                        all.vstack_mut(table.frame()).unwrap();
                    }
                    None => all = Some(table.frame().clone()),
                }
                Ok(())
            });
            assert!(stopped.is_ok(), "{size}");
            assert!(all.unwrap().equals_missing(&whole), "blocks of {size}");
            assert_eq!(parts == 1, size == 1 << 20, "{parts} parts");
        }
    }
}
