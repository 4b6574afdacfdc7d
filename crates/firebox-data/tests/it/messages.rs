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
    assert_snapshot!(files.error("eurusd_1mn.csv", ""), @"");
    assert_snapshot!(files.error("nothing/like/it.csv", ""), @"");
    let mut config = files.config("x", "");
    config.path.0.clear();
    let error = firebox_data::ingest(&config, &files.cache(), &firebox_core::Silent).unwrap_err();
    assert_snapshot!(error, @"");
    files.write("bars.data", bars(3));
    assert_snapshot!(files.error("bars.data", ""), @"");
    files.write("folder/notes.txt", "");
    assert_snapshot!(files.error("folder", ""), @"");
    assert_snapshot!(files.error("folder", "format = 'npy'"), @"");
    files.write("mixed/a.csv", bars(3));
    files.write("mixed/b.ts", "@data\n1,2");
    assert_snapshot!(files.error("mixed", ""), @"");
}

#[test]
fn files_of_another_kind() {
    assert_snapshot!(message("a.csv", b"PK\x03\x04junk", ""), @"");
    assert_snapshot!(message("a.npy", b"PK\x03\x04junk", ""), @"");
    assert_snapshot!(message("a.csv", b"\x1f\x8b\x08junk", ""), @"");
    assert_snapshot!(message("a.parquet", bars(3), ""), @"");
    assert_snapshot!(message("a.parquet", b"ARROW1\0\0", ""), @"");
    assert_snapshot!(message("a.csv", b"PAR1....PAR1", ""), @"");
    assert_snapshot!(message("a.arrow", b"\xff\xff\xff\xff\x10\0\0\0", ""), @"");
    assert_snapshot!(message("a.npy", b"\0\x01\x02\x03", ""), @"");
    assert_snapshot!(message("a.csv", b"\xff\xfet\0i\0m\0e\0", ""), @"");
    assert_snapshot!(message("a.ts", b"\x89HDF\r\n", ""), @"");
}

#[test]
fn empty_and_short_files() {
    assert_snapshot!(csv("", ""), @"");
    assert_snapshot!(csv("time,x\n", ""), @"");
    assert_snapshot!(csv("time,x\n2024-01-02,1\n", ""), @"");
    assert_snapshot!(csv("\n\n\n", ""), @"");
    assert_snapshot!(message("a.npy", npy(&[0, 3], &[]), ""), @"");
    let mut frame = DataFrame::new(0, vec![Column::new("x".into(), Vec::<f64>::new())]).unwrap();
    let mut bytes = Vec::new();
    ParquetWriter::new(&mut bytes).finish(&mut frame).unwrap();
    assert_snapshot!(message("a.parquet", bytes, ""), @"");
}

#[test]
fn headers_and_columns() {
    let text = bars(3);
    assert_snapshot!(csv(&text, "columns = { channels = ['close', 'volum'] }"), @"");
    assert_snapshot!(csv(&text, "columns = { time = 'Timestamp' }"), @"");
    assert_snapshot!(csv(&text, "columns = { series = 'symbol' }"), @"");
    assert_snapshot!(csv(&text, "columns = { label = 'regime' }"), @"");
    assert_snapshot!(csv(&text, "columns = { channels = ['close', 'close'] }"), @"");
    assert_snapshot!(csv(&text, "columns = { time = 'timestamp', channels = ['timestamp'] }"), @"");
    assert_snapshot!(csv(&text, "columns = { channels = ['close', { name = 'open', role = 'close' }] }"), @"");
    assert_snapshot!(csv("time,x,x\n2024-01-02,1,2\n", ""), @"");
    assert_snapshot!(csv("1.5,2.5\n1,2\n", ""), @"");
    assert_snapshot!(csv("time;x\n2024-01-02;1\n", ""), @"");
    assert_snapshot!(csv("time\n2024-01-02\n2024-01-03\n", ""), @"");
    assert_snapshot!(csv("time,x,note\n2024-01-02,1,fine\n2024-01-03,2,bad\n", ""), @"");
}

#[test]
fn values_of_csv() {
    assert_snapshot!(csv("time,x\n2024-01-02,1\n2024-01-03,1.2.3\n", "columns = { channels = ['x'] }"), @"");
    assert_snapshot!(csv("time,x\n2024-01-02,1\n2024-01-03,NA\n", "columns = { channels = ['x'] }"), @"");
    assert_snapshot!(csv("time,x\n2024-01-02,1\n2024-01-03,2,3\n", ""), @"");
    let mut text = b"time,x\n2024-01-02,1\n2024-01-03,".to_vec();
    text.extend(b"\xe9\n");
    assert_snapshot!(message("a.csv", text, ""), @"");
    assert_snapshot!(message("a.csv", b"time,pr\xe9cio\n2024-01-02,1\n", ""), @"");
}

#[test]
fn times() {
    assert_snapshot!(csv("time,x\n2024-01-02,1\n02/01/2024,2\n", ""), @"");
    assert_snapshot!(csv("time,x\n1704153600000,1\n1704153660000,2\n", ""), @"");
    assert_snapshot!(csv("time,x\n2024-01-02,1\n,2\n", ""), @"");
    assert_snapshot!(csv("time,x\n1704153600,1\nsoon,2\n", "columns = { time_unit = 's' }"), @"");
    assert_snapshot!(csv("time,x\n999999999999999999,1\n1,2\n", "columns = { time_unit = 's' }"), @"");
    assert_snapshot!(csv("time,x\n2024-01-02,1\n", "columns = { time_zone = 'Europe/Zurih' }"), @"");
    assert_snapshot!(csv("time,x\n2024-03-31 01:59,1\n2024-03-31 02:30,2\n", "columns = { time_zone = 'Europe/Zurich' }"), @"");
    assert_snapshot!(csv("time,x\n2024-03-30 01:59,1\n2024-03-30 02:30Z,2\n", "columns = { time_zone = 'Europe/Zurich' }"), @"");
    let mut frame = DataFrame::new(
        2,
        vec![
            Column::new("time".into(), [1_704_153_600_000i64, 1_704_153_660_000]),
            Column::new("x".into(), [1, 2]),
        ],
    )
    .unwrap();
    let mut bytes = Vec::new();
    ParquetWriter::new(&mut bytes).finish(&mut frame).unwrap();
    assert_snapshot!(message("a.parquet", bytes, ""), @"");
}

#[test]
fn series_without_values_or_names() {
    assert_snapshot!(csv("time,x,y\n2024-01-02,1,\n2024-01-03,2,NaN\n", ""), @"");
    assert_snapshot!(csv("symbol,time,x\nA,2024-01-02,1\n,2024-01-03,2\n", ""), @"");
    let lost = "symbol,time,x\nA,2024-01-02,1\nA,2024-01-03,2\nB,2024-01-02,\nB,2024-01-03,\n";
    assert_snapshot!(csv(lost, "checks = { not_finite = 'drop' }"), @"");
    assert_snapshot!(csv("time,x\n2024-01-02,3\n2024-01-03,3\n", ""), @"");
    assert_snapshot!(csv("time,x\n2024-01-02,3\n2024-01-03,3\n", "checks = { constant = 'drop' }"), @"");
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
    assert_snapshot!(message("a.parquet", &parquet, ""), @"");
    assert_snapshot!(message("a.parquet", &parquet, "columns = { channels = ['x', 'note'] }"), @"");
    assert_snapshot!(message("a.arrow", &arrow, "columns = { channels = ['z'] }"), @"");
    for (name, bytes) in [("a.parquet", parquet), ("a.arrow", arrow)] {
        for length in [5, 8, 12, 100, bytes.len() / 2, bytes.len() - 1] {
            let text = message(name, &bytes[..length], "columns = { channels = ['x'] }");
            assert!(ours(&text).contains("is not a whole"), "{name} cut to {length}: {text}");
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
    assert_snapshot!(message("a.npy", &good[..good.len() - 3], ""), @"");
    assert_snapshot!(message("a.npy", npy(&[1, 1, 1, 2], &[1., 2.]), ""), @"");
    assert_snapshot!(message("a.npy", &good, "columns = { channels = ['x'] }"), @"");
    assert_snapshot!(message("a.npy", &good, "columns = { time = 't' }"), @"");
    assert_snapshot!(message("a.npy", &good, "interval = '1min'"), @"");
    assert_snapshot!(message("a.npy", &good, "columns = { label = 'y' }"), @"");
    let files = Files::new();
    files.write("v/a.npy", &good);
    files.write("v/b.npy", npy(&[2, 3], &[1., 2., 3., 4., 5., 6.]));
    assert_snapshot!(files.error("v", ""), @"");
    files.write("l.npy", &good);
    files.write("l.y.npy", npy(&[3], &[0., 1., 2.]));
    assert_snapshot!(files.error("l.npy", "columns = { label = 'y' }"), @"");
    files.write("l.y.npy", npy(&[2], &[0., 1.5]));
    assert_snapshot!(files.error("l.npy", "columns = { label = 'y' }"), @"");
}

#[test]
fn archives_and_markets() {
    assert_snapshot!(message("a.ts", "@data\n1,2,x\n", ""), @"");
    assert_snapshot!(message("a.ts", "@data\n1,2,3\n", "columns = { channels = ['x', 'y'] }"), @"");
    assert_snapshot!(message("a.ts", "@data\n1,2,3\n", "csv = { separator = ';' }"), @"");
    assert_snapshot!(message("a.market.toml", "bars = 10\n[regimes.a]\nmomentun = 1\n", ""), @"");
    assert_snapshot!(message("a.market.toml", "[regimes.a]\n", "columns = { label = 'x' }"), @"");
    assert_snapshot!(csv(&bars(3), "csv = { separator = 'é' }"), @"");
}
