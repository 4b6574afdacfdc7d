//! Each format gives the series that its files hold.

use firebox_core::{Origin, Role, StepLabels};
use polars::prelude::*;

use crate::{Files, bars, npy};

const START: i64 = 1_704_153_600_000_000;
const MINUTE: i64 = 60_000_000;

fn table() -> DataFrame {
    let time: Vec<i64> = (0..6).map(|row| START + (row % 3) * MINUTE).collect();
    let time = Column::new("t".into(), time)
        .cast(&DataType::Datetime(polars::prelude::TimeUnit::Microseconds, None))
        .unwrap();
    DataFrame::new(
        6,
        vec![
            time,
            Column::new("who".into(), ["b", "b", "b", "a", "a", "a"]),
            Column::new("x".into(), [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]),
            Column::new("n".into(), [7i64, 8, 9, 10, 11, 13]),
            Column::new("y".into(), [Some("up"), None, Some("down"), Some("up"), Some("up"), None]),
            Column::new("note".into(), ["-"; 6]),
        ],
    )
    .unwrap()
}

fn parquet(frame: &mut DataFrame) -> Vec<u8> {
    let mut bytes = Vec::new();
    ParquetWriter::new(&mut bytes).finish(frame).unwrap();
    bytes
}

fn arrow(frame: &mut DataFrame) -> Vec<u8> {
    let mut bytes = Vec::new();
    IpcWriter::new(&mut bytes).finish(frame).unwrap();
    bytes
}

const COLUMNS: &str =
    r#"columns = { time = "t", series = "who", channels = ["x", "n"], label = "y" }"#;

#[test]
fn parquet_arrow_and_csv_of_one_table_agree() {
    let files = Files::new();
    files.write("a.parquet", parquet(&mut table()));
    files.write("a.feather", arrow(&mut table()));
    let mut csv = "t,who,x,n,y,note\n".to_owned();
    for (row, [who, x, n, y]) in [
        ["b", "1", "7", "up"],
        ["b", "2", "8", ""],
        ["b", "3", "9", "down"],
        ["a", "4", "10", "up"],
        ["a", "5", "11", "up"],
        ["a", "6", "13", ""],
    ]
    .into_iter()
    .enumerate()
    {
        csv += &format!("2024-01-02 00:0{},{who},{x},{n},{y},-\n", row % 3);
    }
    files.write("a.csv", csv);
    let first = files.ingest("a.parquet", COLUMNS).unwrap();
    let series = &first.set.series()[0];
    assert_eq!(series.name, "b");
    assert_eq!(series.time, [START, START + MINUTE, START + 2 * MINUTE]);
    assert_eq!(series.values, [1.0, 7.0, 2.0, 8.0, 3.0, 9.0]);
    assert_eq!(first.set.classes(), ["down", "up"]);
    assert_eq!(series.labels, StepLabels::PerStep(vec![Some(1), None, Some(0)]));
    assert_eq!(first.set.series()[1].labels, StepLabels::PerStep(vec![Some(1), Some(1), None]));
    for other in ["a.feather", "a.csv"] {
        assert_eq!(files.ingest(other, COLUMNS).unwrap().set, first.set, "{other}");
    }
}

#[test]
fn times_are_the_same_however_they_are_written() {
    let files = Files::new();
    let check = |name: &str, times: [&str; 3], settings: &str| {
        let rows: String = times.iter().zip(1..).map(|(time, x)| format!("{time},{x}\n")).collect();
        files.write(name, format!("when,x\n{rows}"));
        let set = files.ingest(name, settings).unwrap().set;
        let expected = [START, START + MINUTE, START + 2 * MINUTE];
        assert_eq!(set.series()[0].time, expected, "{name}");
    };
    let unit = |unit: &str| format!("columns = {{ time = 'when', time_unit = '{unit}' }}");
    let plain = "columns = { time = 'when' }";
    check("iso.csv", ["2024-01-02", "2024-01-02T00:01", "2024-01-02 00:02:00.0"], plain);
    check(
        "utc.csv",
        ["2024-01-02T00:00Z", "2024-01-02T02:01+02:00", "2024-01-01T23:02-0100"],
        plain,
    );
    check("s.csv", ["1704153600", "1704153660", "1704153720.0"], &unit("s"));
    check("ms.csv", ["1704153600000", "1704153660000", "1704153720000"], &unit("ms"));
    check("us.csv", ["1704153600000000", "1704153660000000", "1704153720000000"], &unit("us"));
    check(
        "ns.csv",
        ["1704153600000000000", "1704153660000000001", "1704153720000000999"],
        &unit("ns"),
    );
    let zone = "columns = { time = 'when', time_zone = 'America/New_York' }";
    check("zone.csv", ["2024-01-01 19:00", "2024-01-01 19:01", "2024-01-01 19:02"], zone);
}

#[test]
fn typed_times_of_parquet_are_read_in_their_unit() {
    let files = Files::new();
    for (unit, factor) in [
        (polars::prelude::TimeUnit::Milliseconds, 1_000),
        (polars::prelude::TimeUnit::Microseconds, 1),
        (polars::prelude::TimeUnit::Nanoseconds, 0),
    ] {
        let time: Vec<i64> = (0..3)
            .map(|row| START + row * MINUTE)
            .map(|time| if factor == 0 { time * 1_000 } else { time / factor })
            .collect();
        for zone in [None, Some(polars::prelude::TimeZone::UTC)] {
            let name = format!("{unit:?}{}.parquet", zone.is_some());
            let kind = DataType::Datetime(unit, zone);
            let time = Column::new("time".into(), time.clone()).cast(&kind).unwrap();
            let mut frame =
                DataFrame::new(3, vec![time, Column::new("x".into(), [1, 2, 4])]).unwrap();
            files.write(&name, parquet(&mut frame));
            let set = files.ingest(&name, "").unwrap().set;
            assert_eq!(set.series()[0].time, [START, START + MINUTE, START + 2 * MINUTE], "{name}");
        }
    }
}

#[test]
fn prices_are_recognised_in_any_case_and_order() {
    let files = Files::new();
    files.write(
        "p.csv",
        "Date,Volume,Close,LOW,high,Open\n2024-01-02,9,2,1,4,3\n2024-01-03,9,3,2,5,2\n",
    );
    let data = files.ingest("p.csv", "").unwrap();
    let channels: Vec<_> = data.set.channels().iter().map(|c| (c.name.as_str(), c.role)).collect();
    let expected =
        [("Open", Role::Open), ("high", Role::High), ("LOW", Role::Low), ("Close", Role::Close)];
    assert_eq!(channels, expected);
    assert_eq!(data.set.series()[0].values.all()[..4], [3.0, 4.0, 1.0, 2.0]);
    assert_eq!(data.checks.time_column.as_deref(), Some("Date"));
    let declared = r#"columns = { channels = [{ name = "Volume", role = "close" }, "LOW"] }
        checks = { constant = "keep", ohlc = "fill" }"#;
    let data = files.ingest("p.csv", declared).unwrap();
    assert_eq!(data.set.channels()[0].role, Role::Close);
}

#[test]
fn a_folder_is_one_series_a_file_and_series_columns_go_on_over_files() {
    let files = Files::new();
    files.write("f/b.csv", bars(5));
    files.write("f/a.csv", bars(7));
    files.write("f/read.me", "not data");
    files.write("f/.hidden.csv", "junk");
    let set = files.ingest("f", "").unwrap().set;
    let names: Vec<_> = set.series().iter().map(|s| (s.name.as_str(), s.len())).collect();
    assert_eq!(names, [("a", 7), ("b", 5)]);

    files.write(
        "g/1.csv",
        "symbol,time,x\nA,2024-01-02T00:00,1\nB,2024-01-02T00:00,5\nA,2024-01-02T00:01,2\n",
    );
    files.write("g/2.csv", "symbol,time,x\nA,2024-01-02T00:02,3\nB,2024-01-02T00:01,7\n");
    let set = files.ingest("g", "").unwrap().set;
    let values: Vec<_> =
        set.series().iter().map(|s| (s.name.as_str(), s.values.all().into_owned())).collect();
    assert_eq!(values, [("A", vec![1.0, 2.0, 3.0]), ("B", vec![5.0, 7.0])]);
}

#[test]
fn csv_dialects_are_declared() {
    let files = Files::new();
    files.write(
        "semi.csv",
        "\u{feff}time;x;y\r\n2024-01-02;1;NA\r\n2024-01-03;2;5\r\n2024-01-04;3;7\r\n",
    );
    let settings = r#"csv = { separator = ";", missing = ["NA"] }
        checks = { not_finite = "drop" }"#;
    let data = files.ingest("semi.csv", settings).unwrap();
    assert_eq!(data.set.series()[0].values, [2.0, 5.0, 3.0, 7.0]);
    files.write("comma.csv", "time;x;y\n2024-01-02;1,5;\"2,25\"\n2024-01-03;-2,5e1;3.5\n");
    let comma = "csv = { separator = ';', decimal_comma = true }";
    let set = files.ingest("comma.csv", comma).unwrap().set;
    assert_eq!(*set.series()[0].values.all(), [1.5, 2.25, -25.0, 3.5]);
    // With blanks behind it, which polars does not read.
    files.write(
        "comma.csv",
        "time;x;y\n2024-01-02;1,5 ; 2,25 \n2024-01-03;-2,5e1; \n2024-01-04; 1;3.5\n",
    );
    let set = files
        .ingest("comma.csv", &format!("{comma}\nchecks = {{ not_finite = 'drop' }}"))
        .unwrap()
        .set;
    assert_eq!(*set.series()[0].values.all(), [1.5, 2.25, 1.0, 3.5]);
    // What stands for a missing value does so with blanks around it, too, whatever other cells have.
    for (name, last) in [("blank.csv", "2,6"), ("more.csv", "2 ,6 ")] {
        files.write(
            name,
            format!("time,x,y\n2024-01-02,-9999, -9999\n2024-01-03, 1, 5\n2024-01-04,{last}\n"),
        );
        let missing = "csv = { missing = ['-9999'] }\nchecks = { not_finite = 'drop' }";
        let set = files.ingest(name, missing).unwrap().set;
        assert_eq!(*set.series()[0].values.all(), [1.0, 5.0, 2.0, 6.0], "{name}");
    }
    files.write("tab.tsv", "time\tx\n2024-01-02\t1\n2024-01-03\t2\n");
    assert_eq!(files.ingest("tab.tsv", "").unwrap().set.steps(), 2);
    files.write("quoted.csv", "time,\"x, in metres\"\n2024-01-02,1\n2024-01-03,\"2\"\n");
    let set = files.ingest("quoted.csv", "").unwrap().set;
    assert_eq!(set.channels()[0].name, "x, in metres");
}

#[test]
fn arrays_of_two_and_three_axes_and_folders_of_them() {
    let files = Files::new();
    files.write("two.npy", npy(&[3, 2], &[1., 2., 3., 4., 5., 6.]));
    let set = files.ingest("two.npy", "columns = { channels = ['x', 'close'] }").unwrap().set;
    assert_eq!(set.channels()[1].role, Role::Close);
    assert_eq!(set.series()[0].values, [1., 2., 3., 4., 5., 6.]);
    assert_eq!(set.series()[0].time, [0, 1, 2]);

    let values: Vec<f64> = (0..12).map(f64::from).collect();
    files.write("three.npy", npy(&[2, 3, 2], &values));
    files.write("three.y.npy", npy(&[2], &[7.0, 3.0]));
    let data = files.ingest("three.npy", "columns = { label = 'y' }").unwrap();
    let set = &data.set;
    assert_eq!(set.series()[1].name, "three/2");
    assert_eq!(set.series()[1].values, [6., 7., 8., 9., 10., 11.]);
    assert_eq!(set.classes(), ["3", "7"]);
    assert_eq!(set.series()[0].labels, StepLabels::Whole(1));

    files.write("v/a.npy", npy(&[2, 1], &[1., 2.]));
    files.write("v/b.npy", npy(&[3, 1], &[3., 4., 6.]));
    files.write("v/a.y.npy", npy(&[1], &[0.0]));
    files.write("v/b.y.npy", npy(&[3], &[1.0, -1.0, 0.0]));
    let set = files.ingest("v", "columns = { label = 'y' }").unwrap().set;
    let lengths: Vec<_> = set.series().iter().map(firebox_core::Series::len).collect();
    assert_eq!(lengths, [2, 3]);
    assert_eq!(set.series()[1].labels, StepLabels::PerStep(vec![Some(1), None, Some(0)]));
}

#[test]
fn columns_of_types_that_polars_lacks_are_ignored_unless_they_are_used() {
    for name in ["every_type.arrow", "every_type.parquet"] {
        let files = Files::new();
        let fixture = std::path::Path::new("tests/fixtures").join(name);
        files.write(name, std::fs::read(fixture).unwrap());
        let columns = |channels: &str| {
            format!("columns = {{ time = 'time', time_unit = 's', channels = [{channels}] }}")
        };
        let set = files.ingest(name, &columns("'u8', 'u16', 'i8', 'x'")).unwrap().set;
        assert_eq!(set.series()[0].values.all()[4..8], [1.0, 1000.0, -3.0, 0.5], "{name}");
        let set = files.ingest(name, &columns("'x', 'decimal'")).unwrap().set;
        assert_eq!(set.series()[0].values.all()[..6], [0.0, 0.0, 0.5, 1.0, 1.0, 2.0], "{name}");
        for (column, found) in [
            ("decimal256", "decimal256(50, 2)"),
            ("half", "float16"),
            ("pair", "lists of 2 of float32"),
        ] {
            let error = files.error(name, &columns(&format!("'x', '{column}'")));
            let wanted = format!(
                "{name}: the column `{column}` holds {found}; a channel holds floats of 32 or 64 bits"
            );
            assert!(error.starts_with(&wanted), "{error}");
        }
        // Also where nobody named it, and whatever else is in the file.
        let error = files.error(name, "columns = { time_unit = 's' }");
        let wanted = ": cast it to float64, or name the columns to learn from, without it, in `data.columns.channels`";
        assert!(
            error.contains("the column `decimal256` holds") && error.ends_with(wanted),
            "{error}"
        );
        let error = files.error(name, "columns = { series = 'half', channels = ['x'] }");
        assert!(
            error.contains("the column `half` holds float16; times, names and labels"),
            "{error}"
        );
    }
}

#[test]
fn train_and_test_files_give_the_split() {
    let files = Files::new();
    let text = "@classLabel true a b\n@data\n1,2,4:a\n2,5:b\n";
    files.write("T_TRAIN.ts", text);
    files.write("T_TEST.ts", text.replace("1,2,4:a\n", ""));
    let mut config = files.config("T_TRAIN.ts", "");
    config.test = Some(firebox_data::Paths(vec![files.path("T_TEST.ts")]));
    let data = firebox_data::ingest(&config, &files.cache(), &firebox_core::Silent).unwrap();
    let origins: Vec<_> = data.set.series().iter().map(|s| (s.name.as_str(), s.origin)).collect();
    let expected =
        [("T_TRAIN/1", Origin::Train), ("T_TRAIN/2", Origin::Train), ("T_TEST/1", Origin::Test)];
    assert_eq!(origins, expected);
    assert_eq!(data.set.series()[2].labels, StepLabels::Whole(1));
    // A file of the same name on both sides: names stay unique.
    let other = files.write("other/T_TRAIN.ts", text.replace("1,2,4", "3,2,4"));
    config.test = Some(firebox_data::Paths(vec![other]));
    let data = firebox_data::ingest(&config, &files.cache(), &firebox_core::Silent).unwrap();
    assert_eq!(data.set.series()[3].name, "test/T_TRAIN/2");
}

#[test]
fn the_sample_market_is_ingested_and_its_csv_gives_the_same_bars() {
    let settings = "../../data/sample.market.toml";
    let files = Files::new();
    files.write("m.market.toml", std::fs::read(settings).unwrap());
    let split = "checks = { gaps = 'split' }";
    let market = files.ingest("m.market.toml", split).unwrap();
    assert_eq!(market.set.steps(), 42_000);
    assert_eq!(market.set.classes(), ["consolidation", "retracement", "trend"]);
    assert!(market.checks.segments > 50);
    let config = firebox_data::MarketConfig::from_toml(&std::fs::read_to_string(settings).unwrap());
    config.unwrap().write_csv_file(&files.path("m.csv")).unwrap();
    let labelled = "columns = { label = 'regime' }\nchecks = { gaps = 'split' }";
    let csv = files.ingest("m.csv", labelled).unwrap();
    assert_eq!(csv.set.classes(), market.set.classes());
    for (a, b) in csv.set.series().iter().zip(market.set.series()) {
        assert_eq!(
            (&a.name, &a.time, &a.labels, &a.segments),
            (&b.name, &b.time, &b.labels, &b.segments)
        );
        let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-9 * b.abs();
        assert!(a.values.all().iter().zip(b.values.all().iter()).all(close));
    }
}

#[test]
fn blank_lines_of_csv_are_no_rows() {
    let files = Files::new();
    let check = |text: &str, settings: &str, expected: &[f64]| {
        files.write("a.csv", text);
        let set = files.ingest("a.csv", settings).unwrap().set;
        assert_eq!(*set.series()[0].values.all(), *expected, "{text:?}");
    };
    let timed = "time,x\n2024-01-02,1\n\n2024-01-03,2\n2024-01-04,4\n\n\n";
    check(timed, "", &[1., 2., 4.]);
    check(&timed.replace('\n', "\r\n"), "", &[1., 2., 4.]);
    check("x,y\n1,2\n\n3,5\n\n", "", &[1., 2., 3., 5.]);
    check("x,note\n1,\"a\n\nb\"\n\n2,c\n", "columns = { channels = ['x'] }", &[1., 2.]);
    check("x\n1\n2\n\n\n", "", &[1., 2.]);
    files.write("a.csv", "x\n1\n\n2\n");
    let error = files.error("a.csv", "");
    assert!(error.contains("channel `x`: 1 value missing"), "{error}");
}

#[test]
fn two_quotes_in_the_name_of_a_column_are_one() {
    let files = Files::new();
    files.write("a.csv", "time,\"a\"\"b\",\"c,d\",\"\"\"e\"\n2024-01-02,1,2,3\n2024-01-03,2,4,5\n");
    let set = files.ingest("a.csv", "").unwrap().set;
    let names: Vec<_> = set.channels().iter().map(|channel| channel.name.as_str()).collect();
    assert_eq!(names, ["a\"b", "c,d", "\"e"]);
    let named = files.ingest("a.csv", "columns = { channels = ['a\"b'] }").unwrap().set;
    assert_eq!(named.series()[0].values, [1., 2.]);
}
