//! What bad input gets: a message that names the place and the way out.

use insta::assert_snapshot;
use polars::prelude::*;

use crate::{Files, bars, npy};

/// The message for one file with this content.
fn message(name: &str, content: impl AsRef<[u8]>, toml: &str) -> String {
    let files = Files::new();
    files.write(name, content);
    files.error(name, toml)
}

fn csv(content: &str, toml: &str) -> String {
    message("a.csv", content, toml)
}

#[test]
fn paths() {
    let files = Files::new();
    files.write("eurusd_1min.csv", bars(3));
    assert_snapshot!(files.error("eurusd_1mn.csv", ""), @"eurusd_1mn.csv does not exist (did you mean `eurusd_1min.csv`?)");
    assert_snapshot!(files.error("nothing/like/it.csv", ""), @"nothing/like/it.csv does not exist");
    let mut config = files.config("x", "");
    config.path.0.clear();
    let error = firebox_data::ingest(&config, &files.cache(), &firebox_core::Silent).unwrap_err();
    assert_snapshot!(error, @"no data is named: set `data.path` to a file or a folder");
    files.write("bars.data", bars(3));
    assert_snapshot!(files.error("bars.data", ""), @"the name of bars.data does not tell its format: set `data.format` to csv, parquet, arrow, npy, ts, market, demand or clips");
    files.write("folder/notes.txt", "");
    assert_snapshot!(files.error("folder", ""), @"the folder folder has no converted sample, and no .csv, .tsv, .parquet, .pq, .arrow, .feather, .ipc, .npy, .ts, .market.toml, .demand.toml or .clips.toml file (folders inside it are not searched)");
    assert_snapshot!(files.error("folder", "format = 'npy'"), @"the folder folder has no .npy file (folders inside it are not searched)");
    files.write("mixed/a.csv", bars(3));
    files.write("mixed/b.ts", "@data\n1,2");
    assert_snapshot!(files.error("mixed", ""), @"mixed/a.csv is csv, but mixed/b.ts is ts: set `data.format` to read only one of them");
    let array = npy(&[2, 1], &[1., 2.]);
    files.write("classes/cat/a.npy", array);
    assert_snapshot!(files.error("classes", ""), @"the folder classes has no file of data, but folders of .npy arrays: `firebox data convert classes SAMPLES` makes them samples whose classes are the folders; then name SAMPLES in `data.path`");
    files.write("my cat's/cat/a.npy", npy(&[2, 1], &[1., 2.]));
    let quoted = files.error("my cat's", "");
    assert!(quoted.contains(r"the folder my cat's has"), "{quoted}");
    assert!(quoted.contains(r"my cat'\''s' SAMPLES`"), "{quoted}");
    for name in ["b", "a", "c/.hidden"] {
        files.write(&format!("tables/{name}/x.csv"), bars(3));
    }
    let inside = files.error("tables", "");
    assert_eq!(files.error("tables", "format = 'csv'"), inside);
    assert_snapshot!(inside, @r#"
the folder tables holds files of data only in folders inside it, which are not searched: name these in a list, `data.path = ["tables/a", "tables/b"]`
  classes are read from a column of the files, which `data.columns.label` names, and not from the names of folders
"#);
    assert!(files.error("tables", "format = 'parquet'").contains("has no .parquet or .pq file"));
}

#[test]
fn files_of_another_kind() {
    assert_snapshot!(message("a.csv", b"PK\x03\x04junk", ""), @"a.csv is read as csv, but it is a zip archive (as .npz, .xlsx and .zip files are): unpack or convert it first");
    assert_snapshot!(message("a.npy", b"PK\x03\x04junk", ""), @"a.npy is read as npy, but it is a zip archive (as .npz, .xlsx and .zip files are): unpack or convert it first");
    assert_snapshot!(message("a.csv", b"\x1f\x8b\x08junk", ""), @"a.csv is read as csv, but it is compressed by gzip: unpack or convert it first");
    assert_snapshot!(message("a.parquet", bars(3), ""), @"a.parquet is read as parquet, but it is text: check that it is the right file and that it was copied whole");
    assert_snapshot!(message("a.parquet", b"ARROW1\0\0", ""), @r#"a.parquet is read as parquet, but it is an Arrow IPC file: set `data.format` to "arrow", or give it the right extension"#);
    assert_snapshot!(message("a.csv", b"PAR1....PAR1", ""), @r#"a.csv is read as csv, but it is a Parquet file: set `data.format` to "parquet", or give it the right extension"#);
    assert_snapshot!(message("a.arrow", b"\xff\xff\xff\xff\x10\0\0\0", ""), @"a.arrow is read as arrow, but it is an Arrow IPC stream, which has no footer: unpack or convert it first");
    assert_snapshot!(message("a.npy", b"\0\x01\x02\x03", ""), @"a.npy is read as npy, but it is binary data of an unknown kind: check that it is the right file and that it was copied whole");
    assert_snapshot!(message("a.csv", b"\xff\xfet\0i\0m\0e\0", ""), @"a.csv is read as csv, but it is text in UTF-16: convert it to UTF-8 first");
    assert_snapshot!(message("a.ts", b"\x89HDF\r\n", ""), @"a.ts is read as ts, but it is an HDF5 file: unpack or convert it first");
}

#[test]
fn empty_and_short_files() {
    assert_snapshot!(csv("", ""), @"a.csv has no row of data");
    assert_snapshot!(csv("time,x\n", ""), @"a.csv has no row of data");
    assert_snapshot!(csv("time,x\n2024-01-02,1\n", ""), @"a.csv has 1 row of data: a series needs at least 2");
    // One array is a series where nothing is learnt of it, as it is beside longer ones.
    let files = Files::new();
    files.write("one.npy", npy(&[1, 2], &[3., 4.]));
    assert_snapshot!(files.error("one.npy", ""), @"one.npy has 1 row of data: a series needs at least 2");
    let (set, _) = firebox_data::read(&files.config("one.npy", ""), &firebox_core::Silent).unwrap();
    assert_eq!((set.steps(), set.channels().len()), (1, 2));
    assert_snapshot!(csv("\n\n\n", ""), @"a.csv, line 1: the header is empty: it must name the columns");
    assert_snapshot!(csv("time,\"x\ny\"\n2024-01-02,1\n2024-01-03,2\n", ""), @"a.csv, line 1: a double quote is opened in the header and not closed on its line: close it, or name the column on one line");
    assert_snapshot!(csv("time,height 5\"\n2024-01-02,1\n2024-01-03,2\n", ""), @"a.csv, line 1: a double quote stands alone within the name of a column: write that name in double quotes, with two for this one");
    for header in
        ["time,\"height 5\"\"\"", "time,height 5\"2\"", "time,\"x \"\"y\"\"\"", "\"time\", \"x\""]
    {
        let rows = "\n2024-01-02,1\n2024-01-03,2\n";
        files.write("quotes.csv", format!("{header}{rows}").into_bytes());
        let read = firebox_data::read(&files.config("quotes.csv", ""), &firebox_core::Silent);
        assert_eq!(read.unwrap().0.steps(), 2, "{header}");
    }
    assert_snapshot!(message("a.npy", npy(&[0, 3], &[]), ""), @"a.npy holds no value (its shape is [0, 3]): remove it, or leave such arrays out, which `firebox data convert FOLDER SAMPLES --odd skip` does and counts");
    // Nothing of whole numbers is converted, with this array or without it.
    let mut whole = npy(&[0, 3], &[]);
    let kind = whole.windows(2).position(|two| two == b"<f").unwrap() + 1;
    whole[kind] = b'i';
    assert_snapshot!(message("a.npy", whole, ""), @"a.npy holds no value (its shape is [0, 3]): remove it");
    let mut frame = DataFrame::new(0, vec![Column::new("x".into(), Vec::<f64>::new())]).unwrap();
    let mut bytes = Vec::new();
    ParquetWriter::new(&mut bytes).finish(&mut frame).unwrap();
    assert_snapshot!(message("a.parquet", bytes, ""), @"a.parquet has no row of data");
}

#[test]
fn headers_and_columns() {
    let text = bars(3);
    assert_snapshot!(csv(&text, "columns = { channels = ['close', 'volum'] }"), @"a.csv has no column `volum`, which `data.columns.channels` names; it has `timestamp`, `open`, `high`, `low`, `close`");
    assert_snapshot!(csv(&text, "columns = { time = 'Timestamp' }"), @"a.csv has no column `Timestamp`, which `data.columns.time` names (did you mean `timestamp`?); it has `timestamp`, `open`, `high`, `low`, `close`");
    assert_snapshot!(csv(&text, "columns = { series = 'symbol' }"), @"a.csv has no column `symbol`, which `data.columns.series` names; it has `timestamp`, `open`, `high`, `low`, `close`");
    assert_snapshot!(csv(&text, "columns = { label = 'regime' }"), @"a.csv has no column `regime`, which `data.columns.label` names; it has `timestamp`, `open`, `high`, `low`, `close`");
    assert_snapshot!(csv(&text, "columns = { channels = ['close', 'close'] }"), @"the column `close` is used as channel and as channel: each column has one use");
    assert_snapshot!(csv(&text, "columns = { time = 'timestamp', channels = ['timestamp'] }"), @"the column `timestamp` is used as time and as channel: each column has one use");
    assert_snapshot!(csv(&text, "columns = { channels = ['close', { name = 'open', role = 'close' }] }"), @"the channels `close` and `open` both have the role `close`: only one can");
    assert_snapshot!(csv("time,x,x\n2024-01-02,1,2\n", ""), @"a.csv has two columns named `x`: rename one of them");
    assert_snapshot!(csv("1.5,2.5\n1,2\n", ""), @"a.csv, line 1: `1.5,2.5` is no header: the first line must name the columns");
    assert_snapshot!(csv("time;x\n2024-01-02;1\n", ""), @"a.csv, line 1: the header is one column, `time;x`: set `data.csv.separator` to ';' if that is what separates them");
    assert_snapshot!(csv("time\n2024-01-02\n2024-01-03\n", ""), @"a.csv has no column to learn from besides its time, series and label: it has `time`");
    assert_snapshot!(csv("time,x,note\n2024-01-02,1,fine\n2024-01-03,2,bad\n", ""), @"a.csv, row 1, column `note`: `fine` is not a number: name the column that tells series apart in `data.columns.series`, that of classes in `data.columns.label`, or the columns to learn from in `data.columns.channels`");
    // Most cells are numbers: the column is no other than what it seems, and the row is.
    let rows: String = (2..9).map(|day| format!("2024-01-0{day},{day}\n")).collect();
    assert_snapshot!(csv(&format!("time,x\n{rows}2024-01-10,ERR\n"), ""), @r#"a.csv, row 8, column `x`: `ERR` is not a number: most others of its column are; correct it, or leave its row out, or set `data.csv.missing = ["ERR"]` if it stands for a missing value"#);
    assert_snapshot!(csv(&format!("time,x\n2024-01-01,bar\n{rows}"), ""), @r#"a.csv, row 1, column `x`: `bar` is not a number: most others of its column are; correct it, or leave its row out, as one of units, or set `data.csv.missing = ["bar"]` if it stands for a missing value"#);
    assert_snapshot!(csv("Zeit,x\n02.01.2023 00:00,1\n02.01.2023 01:00,2\n", ""), @"a.csv, row 1, column `Zeit`: `02.01.2023 00:00` is not a number: if the column holds the times, name it in `data.columns.time`; else name the columns to learn from in `data.columns.channels`");
}

#[test]
fn a_csv_that_ends_within_a_row_is_refused_whichever_columns_are_read() {
    const CUT: &str =
        "time,x,note,id\n2024-01-02,1,a,1\n2024-01-03,2,\"b\nc\",2\n2024-01-04,3,d,3\n2024-01-05,4";
    let told = |said: String, found: &str| {
        let expected = format!(
            "a.csv, line 6: the file ends within a row: {found} and no end of the line, but the header names 4 columns: write the file anew if it was cut off, remove the row, or end its line if it is whole"
        );
        assert_eq!(said, expected);
    };
    let read = |content: &str, toml: &str| {
        let files = Files::new();
        files.write("a.csv", content);
        let ways = [
            files.ingest("a.csv", toml).map(|ingested| ingested.set.steps()),
            firebox_data::read(&files.config("a.csv", toml), &firebox_core::Silent)
                .map(|(set, _)| set.steps()),
        ];
        ways.map(|way| way.map_err(|error| crate::render(&error, files.0.path())))
    };
    let x = "columns = { channels = ['x'] }";
    for (content, found) in [
        (CUT.to_owned(), "2 fields"),
        (format!("{CUT},e"), "3 fields"),
        (format!("{CUT},\"e,f\""), "3 fields"),
        (CUT[..CUT.len() - 4].to_owned(), "1 field"),
        (format!("{CUT},{}", "e".repeat(20_000)), "3 fields"),
    ] {
        for way in read(&content, x) {
            told(way.unwrap_err(), found);
        }
    }
    // Whole rows need no end of the last line, short ones elsewhere none of the last fields, and lines of blanks nothing.
    for (content, steps) in [
        (format!("{CUT},e,5"), 4),
        (format!("{CUT},\"e\nf\",5"), 4),
        (format!("{CUT}\n"), 4),
        (format!("{CUT},,"), 4),
        (CUT.replace("2024-01-04,3,d,3", "2024-01-04,3") + ",e,4", 4),
    ] {
        assert_eq!(read(&content, x), [Ok(steps), Ok(steps)], "{content}");
    }
}

#[test]
fn values_of_csv() {
    assert_snapshot!(csv("time,x\n2024-01-02,1\n2024-01-03,1.2.3\n", "columns = { channels = ['x'] }"), @"a.csv, row 2, column `x`: `1.2.3` is not a number: correct it, or list it in `data.csv.missing` if it stands for a missing value");
    assert_snapshot!(csv("time,x\n2024-01-02,1\n2024-01-03,NA\n", "columns = { channels = ['x'] }"), @r#"a.csv, row 2, column `x`: `NA` is not a number: if it stands for a missing value, set `data.csv.missing = ["NA"]`"#);
    assert_snapshot!(csv("time,x\n2024-01-02,1\n2024-01-03,#N/A\n2024-01-04,4\n", ""), @r##"a.csv, row 2, column `x`: `#N/A` is not a number: if it stands for a missing value, set `data.csv.missing = ["#N/A"]`"##);
    assert_snapshot!(csv("time,x\n2024-01-02,low\n2024-01-03,high\n", "columns = { channels = ['x'] }"), @"a.csv, row 1, column `x`: `low` is not a number: if it stands for a missing value, list it in `data.csv.missing`");
    assert_snapshot!(csv("time,x\n2024-01-02,1\n2024-01-03,2,3\n", ""), @"a.csv, line 3: 3 fields, but the header names 2 columns");
    assert_snapshot!(csv("time,x\n2024-01-02,1\n\n2024-01-03,1OO \n", "columns = { channels = ['x'] }"), @"a.csv, row 2, column `x`: `1OO ` is not a number: correct it, or list it in `data.csv.missing` if it stands for a missing value");
    assert_snapshot!(csv("time;x\n2024-01-02;1,5\n2024-01-03;2\n", "csv = { separator = ';' }"), @"a.csv, row 1, column `x`: `1,5` is not a number: set `data.csv.decimal_comma` to true if its comma is a decimal one, or remove the comma if it separates thousands");
    assert_snapshot!(csv("time,x\n2024-01-02,\"1,234.5\"\n2024-01-03,2\n", ""), @"a.csv, row 1, column `x`: `1,234.5` is not a number: remove what separates its thousands");
    // Also where the last column is none of those that are read.
    let rows = |count: usize| -> String {
        let row = |row: usize| match row {
            row if row + 2 == count => format!("{row},2,5,{row}\n"),
            row => format!("{row},{row},5\n"),
        };
        (0..count).map(row).collect()
    };
    for count in [5, 50_000] {
        let text = format!("a,x,note\n{}", rows(count));
        let said = csv(&text, "columns = { channels = ['a', 'x'] }");
        assert_eq!(said, format!("a.csv, line {count}: 4 fields, but the header names 3 columns"));
    }
    // Nor where the columns that are read stand behind it, and would have got its fields.
    for count in [3, 50_000] {
        let row = |row: usize| match row {
            row if row + 2 == count => format!("{row},1,234,5,6\n"),
            row => format!("{row},999,5,6\n"),
        };
        let text = format!("t,flow,x,y\n{}", (0..count).map(row).collect::<String>());
        let said = csv(&text, "columns = { channels = ['x', 'y'] }");
        assert_eq!(said, format!("a.csv, line {count}: 5 fields, but the header names 4 columns"));
    }
    // Marks of inches in a column that is not used lose no row.
    let inches = "time,x,note\n2024-01-01,1,5\" pipe\n2024-01-02,2,6\" pipe\n2024-01-03,3,plain\n";
    let said = csv(inches, "columns = { channels = ['x'] }");
    let expected = "a.csv, line 2: a double quote stands within a field, as of inches: write that field in double quotes, with two for this one";
    assert_eq!(said, expected);
    // Of several, the first is told, and not the last, as if it were never closed.
    let several = inches.replace("plain", "7\" pipe");
    assert_eq!(csv(&several, "columns = { channels = ['x'] }"), expected);
    // What stands within quotes is told of as little as it is read.
    let within = "time,note,x\n2024-01-02,\"a\nb,7,8\",1\n2024-01-03,c,oops\n";
    let said = csv(within, "columns = { channels = ['x'] }");
    assert!(said.starts_with("a.csv, row 2, column `x`: `oops` is not a number"), "{said}");
    assert_snapshot!(csv("time,x\n2024-01-02,1\n2024-01-03,\"", ""), @"a.csv, line 3: a double quote is opened here and never closed");
    let mut text = b"time,x\n2024-01-02,1\n2024-01-03,".to_vec();
    text.extend(b"\xe9\n");
    assert_snapshot!(message("a.csv", text, ""), @"a.csv, line 3: the line is not UTF-8: convert the file first");
    assert_snapshot!(message("a.csv", b"time,pr\xe9cio\n2024-01-02,1\n", ""), @"a.csv, line 1: the header is not UTF-8: convert the file first");
}

#[test]
fn what_text_files_hide() {
    let open = format!(
        "time,x,note\n2024-01-02,1,\"a\nb\"\n2024-01-03,2,\"open\n{}",
        "2024-01-04,3,c\n".repeat(3)
    );
    let error = csv(&open, "columns = { channels = ['x'] }");
    assert!(error.starts_with("a.csv, line 4: a double quote is opened here"), "{error}");
    let error = csv("time,x\r2024-01-02,1\r2024-01-03,2\r", "");
    assert!(error.starts_with("a.csv, line 1: lines end with a carriage return alone"), "{error}");
}

#[test]
fn times_that_contradict_what_is_declared() {
    let error = csv("time,x\n1704153600000,1\n1704153660000,2\n", "columns = { time_unit = 's' }");
    assert!(error.contains("would lie in the year 55972"), "{error}");
    assert!(error.contains("`time_unit = \"ms\"` would be likely"), "{error}");
    let error = csv(&bars(9), "interval = '5min'");
    assert!(
        error.starts_with("`data.interval` is 5min, but the usual step between rows is 1min"),
        "{error}"
    );
}

/// A pipe is empty once it was read, and whoever opens one waits.
#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_refused() {
    let files = Files::new();
    let error = files.error("/dev/null", "format = 'csv'");
    assert!(error.starts_with("/dev/null is no regular file, but a pipe"), "{error}");
    let socket = files.path("bars.csv");
    let _open = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let error = files.error("bars.csv", "");
    assert!(error.starts_with("bars.csv is no regular file"), "{error}");
}

#[test]
fn files_of_the_same_channels_in_another_order_are_read_by_their_names() {
    let files = Files::new();
    let rows = |names: &str, values: fn(i64) -> [i64; 2], days: std::ops::Range<i64>| -> String {
        let row = |day: i64| format!("2024-01-{day:02},{},{}\n", values(day)[0], values(day)[1]);
        format!("time,{names}\n") + &days.map(row).collect::<String>()
    };
    files.write("order/a.csv", rows("x,y", |day| [day, 100 + day % 7], 1..15));
    files.write("order/b.csv", rows("y,x", |day| [100 + day % 7, day], 1..15));
    let data = files.ingest("order", "").unwrap();
    let [a, b] = data.set.series() else { panic!() };
    assert_eq!(a.values.part(0..28), b.values.part(0..28));
    assert_eq!(a.values.at(1), 101.0);
    files.write("order/b.csv", rows("y,z", |day| [100 + day % 7, day], 1..15));
    let error = files.error("order", "");
    assert!(error.contains("has 2 channels (y, z), but"), "{error}");
}

#[test]
fn data_in_a_folder_that_are_not_read_are_told_of() {
    let files = Files::new();
    files.write("data/a.csv", bars(30));
    let told = |path: &str, config: &str| {
        let warnings = files.warnings(path, config);
        warnings.into_iter().filter(|said| said.contains("not read")).collect::<Vec<_>>()
    };
    files.write("data/README.md", "About them.");
    files.write("data/pictures/a.png", "PNG");
    assert_eq!(told("data", ""), [""; 0]);
    files.write("data/b.csv.gz", "packed");
    files.write("data/more/c.csv", bars(9));
    files.write("data/.hidden/c.csv", bars(9));
    let [said] = &told("data", "")[..] else { panic!() };
    assert!(said.starts_with("`b.csv.gz`, `more` in "), "{said}");
    assert!(said.contains("data are not read: unpack such files, or name such folders"), "{said}");
    // Also where the series are there already, and not of a file that is named.
    assert_eq!(told("data", "").len(), 1);
    assert_eq!(told("data/a.csv", ""), [""; 0]);
}

#[cfg(unix)]
#[test]
fn links_and_label_files_in_folders() {
    let files = Files::new();
    files.write("links/a.csv", bars(3));
    std::os::unix::fs::symlink("nowhere.csv", files.path("links/b.csv")).unwrap();
    let error = files.error("links", "");
    assert!(error.starts_with("links/b.csv is a link that leads nowhere"), "{error}");
    files.write("v/a.npy", npy(&[3, 1], &[1., 2., 4.]));
    files.write("v/a.y.npy", npy(&[3], &[0., 1., 2.]));
    let error = files.error("v", "");
    assert!(error.starts_with("v/a.y.npy looks like the labels of v/a.npy"), "{error}");
    assert!(files.ingest("v", "columns = { label = 'y' }").is_ok());
    // Nor does it become a sample.
    let said = firebox_data::array_paths(&files.path("v")).unwrap_err().to_string();
    assert!(said.contains("a.y.npy looks like the labels of "), "{said}");
    assert!(said.contains("would become a sample: move it away"), "{said}");
    files.write("classes/one/b.npy", npy(&[3, 1], &[1., 2., 4.]));
    files.write("classes/two/b.y.npy", npy(&[3, 1], &[1., 2., 4.]));
    assert_eq!(firebox_data::array_paths(&files.path("classes")).unwrap().len(), 2);
    files.write("classes/one/b.y.npy", npy(&[3], &[0., 1., 2.]));
    assert!(firebox_data::array_paths(&files.path("classes")).is_err());
}

#[test]
fn times() {
    assert_snapshot!(csv("time,x\n2024-01-02,1\n02/01/2024,2\n", ""), @"a.csv, row 2, column `time`: `02/01/2024` is no ISO 8601 time such as 2014-05-01T00:01:00 or 2014-05-01 00:01+02:00");
    assert_snapshot!(csv("time,x\n1704153600000,1\n1704153660000,2\n", ""), @r#"a.csv, row 1, column `time`: `1704153600000` is a number: declare its unit in `data.columns.time_unit`; `time_unit = "ms"` would be likely"#);
    assert_snapshot!(csv("time,x\n20240101,1\n20240102,2\n", ""), @"a.csv, row 1, column `time`: `20240101` looks like a date without separators, and is no number since 1970: write it as 2024-01-01");
    assert_snapshot!(csv("time,x\n20240102093015,1\n20240102093016,2\n", "columns = { time_unit = 's' }"), @"a.csv, row 1, column `time`: `20240102093015` looks like a date without separators, and is no number since 1970: write it as 2024-01-02T09:30:15");
    assert_snapshot!(csv("time,x\n202401020930,1\n202401020931,2\n", "columns = { time_unit = 's' }"), @"a.csv, row 1, column `time`: `202401020930` looks like a date without separators, and is no number since 1970: write it as 2024-01-02T09:30");
    assert_snapshot!(csv("time,x\n2024-01-02,1\n,2\n", ""), @"a.csv, row 2, column `time`: `` is no ISO 8601 time such as 2014-05-01T00:01:00 or 2014-05-01 00:01+02:00");
    assert_snapshot!(csv("time,x\n1704153600,1\nsoon,2\n", "columns = { time_unit = 's' }"), @"a.csv, row 2, column `time`: `soon` is no number of seconds since 1970");
    assert_snapshot!(csv("time,x\n999999999999999999,1\n1,2\n", "columns = { time_unit = 's' }"), @"a.csv, row 1, column `time`: `999999999999999999` is no number of seconds since 1970");
    assert_snapshot!(csv("time,x\n2024-01-02,1\n", "columns = { time_zone = 'Europe/Zurih' }"), @"`Europe/Zurih` is no time zone (did you mean `Europe/Zurich`?): `data.columns.time_zone` takes IANA names such as `Europe/Zurich`");
    assert_snapshot!(csv("time,x\n2024-03-31 01:59,1\n2024-03-31 02:30,2\n", "columns = { time_zone = 'Europe/Zurich' }"), @"a.csv, row 2, column `time`: `2024-03-31T02:30:00` does not exist in that zone: clocks were put forward over it; check `data.columns.time_zone`, and leave it out for days, which have no hour");
    assert_snapshot!(csv("time,x\n2024-03-30 01:59,1\n2024-03-30 02:30Z,2\n", "columns = { time_zone = 'Europe/Zurich' }"), @"a.csv, row 2, column `time`: `2024-03-30 02:30Z` has a zone, but other rows have none: write all of them alike");
    let parquet = |times: [i64; 2]| {
        let columns = vec![Column::new("time".into(), times), Column::new("x".into(), [1, 2])];
        let mut frame = DataFrame::new(2, columns).unwrap();
        let mut bytes = Vec::new();
        ParquetWriter::new(&mut bytes).finish(&mut frame).unwrap();
        bytes
    };
    assert_snapshot!(message("a.parquet", parquet([1_704_153_600_000, 1_704_153_660_000]), ""), @r#"a.parquet: the column `time` holds i64; declare `data.columns.time_unit` for times that are numbers; `time_unit = "ms"` would be likely"#);
    assert_snapshot!(message("a.parquet", parquet([20_240_101, 20_240_102]), ""), @"a.parquet: the column `time` holds i64; 20240101 looks like a date without separators, and is no number since 1970: write it as 2024-01-01");
}

#[test]
fn dates_and_times_of_day_in_two_columns() {
    let row = |row: usize| {
        format!("2024-01-{:02},00:{:02},{row},{}\n", 1 + row / 30, row % 30, row * row % 7)
    };
    let rows: String = (0..90).map(row).collect();
    let text = |names: &str| format!("{names}\n{rows}");
    let usual = text("Date,Time,x,y");
    let named = "columns = { channels = ['x', 'y'] }";
    let joined = |date: &str, time: &str| {
        format!(
            "a.csv has dates in its column `{date}`, and times of day in `{time}`: join them in one column, such as 2014-05-01T09:30, and name that in `data.columns.time`"
        )
    };
    let of_day = "a.csv, row 1, column `Time`: `00:00` is a time of day and says no date: where the date stands in a column of its own, join both in one, such as 2014-05-01T09:30, and name that in `data.columns.time`";
    for checks in ["", "checks = { duplicates = 'drop' }"] {
        assert_eq!(csv(&usual, checks), joined("Date", "Time"));
        assert_eq!(csv(&usual, &format!("{named}\n{checks}")), of_day);
    }
    // Under other names, too, and never as that of a series.
    let other = text("day,clock,x,y");
    let columns = "columns = { time = 'day', channels = ['x', 'y'] }";
    for columns in ["columns = { time = 'day' }", columns] {
        assert_eq!(csv(&other, columns), joined("day", "clock"));
    }
    let second = "date,timestamp,x\n2024-01-01,2024-01-01T00:00,1\n2024-01-01,2024-01-01T00:01,2\n";
    assert_snapshot!(csv(second, ""), @"a.csv, row 1, column `date`: `2024-01-01` is not a number: the times are those of another column: if this one holds them, name it in `data.columns.time`; else name the columns to learn from, without this one, in `data.columns.channels`");
    // Who has so many rows left out is told.
    let files = Files::new();
    files.write("a.csv", &other);
    let said = files.warnings("a.csv", &format!("{columns}\nchecks = {{ duplicates = 'drop' }}"));
    let expected = "87 of 90 rows have the time of another and are left out, as `data.checks.duplicates` says: check that `data.columns.time` names the column that has the time of day, too, and";
    assert!(said.len() == 1 && said[0].starts_with(expected), "{said:?}");
    // One of ten is not worth a word.
    let row = |row: usize| format!("2024-01-{:02},{}\n", 1 + row - row / 10, row * row % 7);
    files.write("b.csv", format!("time,x\n{}", (0..20).map(row).collect::<String>()));
    assert_eq!(files.warnings("b.csv", "checks = { duplicates = 'drop' }"), [""; 0]);
    // The column that has both is taken, wherever it stands.
    let row =
        |row: usize| format!("2024-01-01,2024-01-01T00:{row:02},{row},{},{row}\n", row * row % 7);
    let rows: String = (0..30).map(row).collect();
    files.write("c.csv", format!("date,timestamp,x,y,z\n{rows}"));
    let data = files.ingest("c.csv", "columns = { channels = ['x', 'y'] }").unwrap();
    assert_eq!((data.checks.time_column.as_deref(), data.set.steps()), (Some("timestamp"), 30));
}

#[test]
fn numbers_of_rows_that_pandas_writes_are_no_channel() {
    let files = Files::new();
    let rows = |first: &dyn Fn(usize) -> String| {
        let row = |row: usize| format!("{},2024-01-{:02},{}\n", first(row), row + 1, row * row % 7);
        format!(",time,x\n{}", (0..20).map(row).collect::<String>())
    };
    files.write("a.csv", rows(&|row| row.to_string()));
    for _ in 0..2 {
        let said = files.warnings("a.csv", "");
        assert!(said.len() == 1 && said[0].starts_with("`` in "), "{said:?}");
        assert!(said[0].contains("is not learnt from: a column of such a name is the"), "{said:?}");
    }
    let data = files.ingest("a.csv", "").unwrap();
    assert_eq!((data.set.channels().len(), &*data.set.channels()[0].name), (1, "x"));
    // What is no number is refused, as it may be the times.
    assert_snapshot!(csv(",x\n2024-01-01,1\n2024-01-02,2\n", ""), @"a.csv, row 1, column ``: `2024-01-01` is not a number: if the column holds the times, name it in `data.columns.time`; else name the columns to learn from in `data.columns.channels`");
    let text = rows(&|_| "A".to_owned());
    assert!(csv(&text, "").contains("column ``: `A` is not a number: name the column that tells"));
    let days = Column::new("__index_level_0__".into(), [1i64, 2])
        .cast(&DataType::Datetime(TimeUnit::Microseconds, None))
        .unwrap();
    let columns = vec![Column::new("x".into(), [1.0, 2.0]), days];
    let mut bytes = Vec::new();
    ParquetWriter::new(&mut bytes).finish(&mut DataFrame::new(2, columns).unwrap()).unwrap();
    let said = message("a.parquet", bytes, "");
    assert!(said.contains("`__index_level_0__` holds datetime"), "{said}");
    assert!(said.contains("if the column holds the times, name it in"), "{said}");
}

#[test]
fn times_of_32_bits_that_were_rounded() {
    let files = Files::new();
    let write = |times: [f32; 3]| {
        let columns =
            vec![Column::new("time".into(), times), Column::new("x".into(), [1.0, 2.0, 4.0])];
        let mut bytes = Vec::new();
        ParquetWriter::new(&mut bytes).finish(&mut DataFrame::new(3, columns).unwrap()).unwrap();
        files.write("a.parquet", bytes);
    };
    let seconds = "columns = { time_unit = 's' }";
    write([1_704_067_200.0, 1_704_070_800.0, 1_704_074_400.0]);
    assert_snapshot!(files.error("a.parquet", seconds), @"a.parquet: the column `time` holds f32; times of 32 bits lie 2.1 minutes apart at 1704067200, and were rounded to that: take them from where they were made, as float64, whole numbers or a type of times");
    write([20_000.5, 20_001.5, 20_002.5]);
    let said = files.error("a.parquet", seconds);
    assert!(said.contains("lie 1.953 ms apart at 20000.5"), "{said}");
    // Whole numbers that are exact, and fractions that are nearly.
    for (times, last) in
        [([0.0, 3600.0, 7200.0], 7_200_000_000), ([100.25, 101.25, 102.25], 102_250_000)]
    {
        write(times);
        let data = files.ingest("a.parquet", seconds).unwrap();
        assert_eq!(data.set.series()[0].time[2], last);
    }
}

#[test]
fn series_without_values_or_names() {
    assert_snapshot!(csv("time,x,y\n2024-01-02,1,\n2024-01-03,2,NaN\n", ""), @r#"the channel `y` has no finite value in a.csv: list the others in `data.columns.channels`, or set `data.checks.constant` to "drop" to leave such channels out"#);
    assert_snapshot!(csv("time,x\n2024-01-02,\n2024-01-03,\n", "checks = { constant = 'drop' }"), @"no channel has more than one value over all steps (`x`): there is nothing to learn from");
    assert_snapshot!(csv("symbol,time,x\nA,2024-01-02,1\n,2024-01-03,2\n", ""), @"a.csv, row 2, column `symbol`: `` names no series: every row needs a name; write it there, or leave such rows out of the file");
    let nan = "symbol,time,x\nA,2024-01-02,1\nnan,2024-01-03,2\n";
    assert_snapshot!(csv(nan, ""), @"a.csv, row 2, column `symbol`: `nan` names no series, as programs write it for one that is missing: every row needs a name; write it there, or leave such rows out of the file");
    let columns = vec![
        Column::new("time".into(), ["2024-01-02", "2024-01-03"]),
        Column::new("symbol".into(), [1.5, f64::NAN]),
        Column::new("x".into(), [1.0, 2.0]),
    ];
    let mut bytes = Vec::new();
    ParquetWriter::new(&mut bytes).finish(&mut DataFrame::new(2, columns).unwrap()).unwrap();
    let said = message("a.parquet", bytes, "");
    assert!(
        said.starts_with("a.parquet, row 2, column `symbol`: `NaN` names no series, as"),
        "{said}"
    );
    let lost = "symbol,time,x\nA,2024-01-02,1\nA,2024-01-03,2\nB,2024-01-02,\nB,2024-01-03,\n";
    assert_snapshot!(csv(lost, "checks = { not_finite = 'drop' }"), @"nothing is left of series `B` (2 rows) after its defects are dropped: its channel `x` has no value; remove the series");
    assert_snapshot!(csv("time,x\n2024-01-02,3\n2024-01-03,3\n", ""), @r#"
the data has defects that `data.checks` does not allow
- channel `x` is constant (every value is 3); set `data.checks.constant` to "drop" or "keep"
"#);
    assert_snapshot!(csv("time,x\n2024-01-02,3\n2024-01-03,3\n", "checks = { constant = 'drop' }"), @"no channel has more than one value over all steps (`x`): there is nothing to learn from");
}

fn table() -> DataFrame {
    let columns = vec![
        Column::new("x".into(), (0..1000).map(f64::from).collect::<Vec<_>>()),
        Column::new("note".into(), vec!["text"; 1000]),
    ];
    DataFrame::new(1000, columns).unwrap()
}

/// A message of polars, of which only our part is pinned.
fn ours(text: &str) -> &str {
    text.split_once(" file: ").map_or(text, |(ours, _)| ours)
}

#[test]
fn parquet_and_arrow() {
    let mut parquet = Vec::new();
    ParquetWriter::new(&mut parquet).finish(&mut table()).unwrap();
    let mut arrow = Vec::new();
    IpcWriter::new(&mut arrow).finish(&mut table()).unwrap();
    assert_snapshot!(message("a.parquet", &parquet, ""), @"a.parquet: the column `note` holds str; a channel holds floats of 32 or 64 bits, integers of up to 64, decimals of up to 38 digits or booleans: name the column that tells series apart in `data.columns.series`, that of classes in `data.columns.label`, or the columns to learn from in `data.columns.channels`");
    assert_snapshot!(message("a.parquet", &parquet, "columns = { channels = ['x', 'note'] }"), @"a.parquet: the column `note` holds str; a channel holds floats of 32 or 64 bits, integers of up to 64, decimals of up to 38 digits or booleans: cast it to float64, or name the columns to learn from, without it, in `data.columns.channels`");
    assert_snapshot!(message("a.arrow", &arrow, "columns = { channels = ['z'] }"), @"a.arrow has no column `z`, which `data.columns.channels` names; it has `x`, `note`");
    let columns =
        vec![Column::new("first".into(), [1.0, 2.0]), Column::new("other".into(), [3.0, 5.0])];
    let mut alike = Vec::new();
    IpcWriter::new(&mut alike).finish(&mut DataFrame::new(2, columns).unwrap()).unwrap();
    // As no writer here does.
    let places: Vec<usize> =
        (0..alike.len()).filter(|at| alike[*at..].starts_with(b"other")).collect();
    places.into_iter().for_each(|at| alike[at..at + 5].copy_from_slice(b"first"));
    assert_snapshot!(message("a.arrow", alike, ""), @"a.arrow is not a valid arrow file: its 2 columns have 1 name between them (`first`): rename those that are called alike");
    for (name, bytes) in [("a.parquet", parquet), ("a.arrow", arrow)] {
        for length in [8, 12, 100, bytes.len() / 2, bytes.len() - 1] {
            let text = message(name, &bytes[..length], "columns = { channels = ['x'] }");
            assert!(ours(&text).contains("is not a valid"), "{name} cut to {length}: {text}");
        }
        // Bytes that are wrong in the middle: an error or, without a checksum to tell, values that
        // are wrong; never a panic.
        for at in (0..bytes.len()).step_by(bytes.len() / 60) {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x5a;
            let files = Files::new();
            files.write(name, bytes);
            drop(files.ingest(name, "columns = { channels = ['x'] }"));
        }
    }
}

#[test]
fn arrays() {
    let good = npy(&[2, 2], &[1., 2., 3., 5.]);
    assert_snapshot!(message("a.npy", &good[..good.len() - 3], ""), @"a.npy is not a valid npy file: it is cut off: 29 of 32 bytes of values");
    assert_snapshot!(message("a.npy", npy(&[1, 1, 1, 2], &[1., 2.]), ""), @"a.npy is not a valid npy file: its shape [1, 1, 1, 2] has 4 axes: arrays are [time], [time, channel] or [sample, time, channel]");
    assert_snapshot!(message("a.npy", &good, "columns = { channels = ['x'] }"), @"`data.columns.channels` has 1 name, but a.npy has 2 channels: name all of them, in order");
    assert_snapshot!(message("a.npy", &good, "columns = { time = 't' }"), @"`data.columns.time` does not apply to npy files: the steps of these files have no column of times");
    assert_snapshot!(message("a.npy", &good, "interval = '1min'"), @"`data.interval` does not apply to npy files: its steps have no times");
    assert_snapshot!(message("a.npy", &good, "columns = { label = 'y' }"), @r#"a.npy has no file of labels, a.y.npy, which `data.columns.label = "y"` asks for: put it there (a negative label stands for none), correct the key, or leave it out to learn without labels"#);
    let files = Files::new();
    files.write("v/a.npy", &good);
    files.write("v/b.npy", npy(&[2, 3], &[1., 2., 3., 4., 5., 6.]));
    assert_snapshot!(files.error("v", ""), @"v/b.npy has 3 channels (channel-0, channel-1, channel-2), but v/a.npy has 2 channels (channel-0, channel-1): all files must have the same channels");
    files.write("e/a.npy", &good);
    files.write("e/a.y.npy", npy(&[1], &[0.0]));
    files.write("e/b.npy", npy(&[0, 2], &[]));
    files.write("e/b.y.npy", npy(&[1], &[0.0]));
    assert_snapshot!(files.error("e", "columns = { label = 'y' }"), @"e/b.npy holds no value (its shape is [0, 2]): remove it");
    files.write("l.npy", &good);
    files.write("l.y.npy", npy(&[3], &[0., 1., 2.]));
    assert_snapshot!(files.error("l.npy", "columns = { label = 'y' }"), @"l.y.npy is not a valid npy file: it has 3 labels: l.npy needs 1 or 2, one for the series or one for each step");
    files.write("l.y.npy", npy(&[2], &[0., 1.5]));
    assert_snapshot!(files.error("l.npy", "columns = { label = 'y' }"), @"l.y.npy is not a valid npy file: the label 1.5 at 1 is no whole number (a negative one stands for none)");
}

/// An array of two steps and two channels of a type of NumPy's.
fn typed(kind: &str) -> Vec<u8> {
    let text = format!("{{'descr': '<{kind}', 'fortran_order': False, 'shape': (2, 2), }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    for (value, half) in [(1i8, 0x3c00u16), (2, 0x4000), (3, 0x4200), (5, 0x4500)] {
        match kind {
            "f2" => bytes.extend(half.to_le_bytes()),
            "f4" => bytes.extend(f32::from(value).to_le_bytes()),
            "f8" => bytes.extend(f64::from(value).to_le_bytes()),
            "i2" => bytes.extend(i16::from(value).to_le_bytes()),
            "i8" => bytes.extend(i64::from(value).to_le_bytes()),
            _ => bytes.extend(i32::from(value).to_le_bytes()),
        }
    }
    bytes
}

#[test]
fn arrays_of_types_that_lost_other_digits_are_no_set() {
    let check = |kinds: [&str; 2]| {
        let files = Files::new();
        files.write("v/a.npy", typed(kinds[0]));
        files.write("v/b.npy", typed(kinds[1]));
        files.ingest("v", "").map(|data| data.set.steps()).map_err(|_| files.error("v", ""))
    };
    for alike in [["f2", "f2"], ["f4", "f8"], ["f8", "f4"], ["i2", "i2"], ["i4", "i8"]] {
        assert_eq!(check(alike), Ok(4), "{alike:?}");
    }
    for other in [["f2", "f8"], ["f4", "f2"], ["f4", "i4"], ["i2", "f2"], ["i4", "i2"]] {
        let said = check(other).unwrap_err();
        assert!(said.contains("the arrays of a set are all of float16"), "{other:?}: {said}");
    }
    assert_snapshot!(check(["f4", "i4"]).unwrap_err(), @r"
    v/b.npy holds int32, but v/a.npy holds float32: the arrays of a set are all of float16, all of float32 or float64, or all of one type of whole numbers (32 and 64 bits are one)
      save all in one type, such as `x.astype('<f4')`, or leave such arrays out, which `firebox data convert FOLDER SAMPLES --odd skip` does and counts
    ");
    // Labels are whole numbers beside any array.
    let files = Files::new();
    files.write("v/a.npy", typed("f4"));
    files.write("v/a.y.npy", npy(&[1], &[3.0]));
    assert!(files.ingest("v", "columns = { label = 'y' }").is_ok());
}

#[test]
fn archives_and_markets() {
    assert_snapshot!(message("a.ts", "@data\n1,2,x\n", ""), @"a.ts, line 2: channel 0, step 2: `x` is not a number; missing values are written `?`");
    assert_snapshot!(message("a.ts", "@data\n1,2,3\n", "columns = { channels = ['x', 'y'] }"), @"`data.columns.channels` has 2 names, but a.ts has 1 channel: name all of them, in order");
    assert_snapshot!(message("a.ts", "@data\n1,2,3\n", "csv = { separator = ';' }"), @"`data.csv` does not apply to ts files: remove it");
    assert_snapshot!(message("a.market.toml", "bars = 10\n[regimes.a]\nmomentun = 1\n", ""), @"a.market.toml, line 3: unknown field `momentun`, expected one of `duration`, `shortest`, `volatility`, `momentum`, `memory`, `reversion`, `drift`, `upwards`");
    assert_snapshot!(message("a.market.toml", "[regimes.a]\n", "columns = { label = 'x' }"), @"`data.columns.label` does not apply to market files: the classes are in the file itself");
    assert_snapshot!(csv(&bars(3), "csv = { separator = 'é' }"), @"`data.csv.separator` does not apply to csv files: the separator is one ASCII character");
}
