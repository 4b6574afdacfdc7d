//! Arrow files, of which some record batches are decoded at a time.

use super::*;

/// Writes rows as batches that end at random rows, packed or not, with texts of either layout.
fn write(path: &std::path::Path, table: &DataFrame, seed: u64) {
    let mut draws = Stream::new(seed, "batches").draws();
    let mut chunks: Option<DataFrame> = None;
    let mut start = 0;
    while start < table.height() {
        let rows = 1 + (draws.uniform_f64() * 9.0) as usize;
        let rows = table.slice(start as i64, rows);
        start += rows.height();
        match &mut chunks {
            Some(chunks) => {
                chunks.vstack_mut_owned(rows).unwrap();
            }
            None => chunks = Some(rows),
        }
    }
    let compressions = [None, Some(IpcCompression::LZ4), Some(IpcCompression::default())];
    let texts = [CompatLevel::newest(), CompatLevel::oldest()];
    IpcWriter::new(std::fs::File::create(path).unwrap())
        .with_compression(compressions[seed as usize % 3])
        .with_compat_level(texts[seed as usize / 3 % 2])
        .finish(&mut chunks.unwrap())
        .unwrap();
}

#[test]
fn batches_of_an_arrow_file_are_put_together_as_on_the_long_way() {
    let folder = tempfile::tempdir().unwrap();
    let (mut taken, mut refused, mut dictionaries) = (0, 0, 0);
    for seed in 0..200 {
        let rows = 2 + (Stream::new(seed, "rows").draws().uniform_f64() * 60.0) as usize;
        let mut table = odd_bars(seed, rows);
        // Columns that are not used, and stand among the others.
        let texts: Vec<String> = (0..rows).map(|row| format!("a text of row {row}")).collect();
        table.insert_column(2, Column::new("text".into(), texts)).unwrap();
        if seed % 4 == 1 {
            let names: Vec<String> = (0..rows).map(|row| format!("s{}", row / 17)).collect();
            let mut names = Column::new("symbol".into(), names);
            if seed % 8 == 1 {
                // As numbers of a dictionary.
                let known: Vec<String> = (0..4).map(|series| format!("s{series}")).collect();
                let known = FrozenCategories::new(known.iter().map(String::as_str)).unwrap();
                let kind = DataType::from_frozen_categories(known);
                names = names.cast(&kind).unwrap();
            }
            table.insert_column(0, names).unwrap();
        }
        let path = folder.path().join(format!("{seed}.arrow"));
        write(&path, &table, seed);
        let mut config = DataConfig::new(&path);
        config.columns.time_unit = crate::TimeUnit::S;
        config.checks = policies(seed);
        let files = inputs(&config).unwrap();
        let expected = long(&files, &config);
        let (key, stop) = (Key::builder("test", 1).finish(), AtomicBool::new(false));
        let store = |name: &str| folder.path().join(format!("{seed}-{name}"));
        let (turns, order, whole) = (store("turns"), store("order"), store("whole"));
        let found = [
            in_groups(&files, &config, (7, true), Sink::Memory),
            in_groups(&files, &config, (7, true), Sink::store(&turns, key, &stop)),
            in_groups(&files, &config, (7, false), Sink::Memory),
            in_groups(&files, &config, (7, false), Sink::store(&order, key, &stop)),
            short(&files, &config, Sink::Memory),
            short(&files, &config, Sink::store(&whole, key, &stop)),
        ];
        for found in found.map(said) {
            let is_odd = is_left(&found, &expected);
            taken += usize::from(found.is_ok());
            refused += usize::from(found.is_err() && !is_odd);
            dictionaries += usize::from(found.is_ok() && seed % 8 == 1);
            let errors = [found.as_ref().err(), expected.as_ref().err()];
            assert!(is_odd || found == expected, "{seed}: {errors:?}, {:?}", config.checks);
        }
    }
    let counts = format!("{taken} taken, {refused} refused, {dictionaries} with dictionaries");
    assert!(taken > 200 && refused > 100 && dictionaries > 20, "{counts}");
}

#[test]
fn every_type_that_is_decoded_is_that_of_the_long_way() {
    let folder = tempfile::tempdir().unwrap();
    let numbers = |from: i64| -> Vec<Option<i64>> {
        (0..40).map(|row| (row != 7).then_some(from + row * row % 37)).collect()
    };
    let seconds: Vec<i64> = (0..40).map(|row| 1_700_000_000 + row * 86_400).collect();
    let kinds = [
        DataType::Boolean,
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::UInt8,
        DataType::UInt16,
        DataType::UInt32,
        DataType::UInt64,
        DataType::Float32,
        DataType::Float64,
        DataType::Decimal(20, 3),
    ];
    let times = [
        (DataType::Date, 86_400, false),
        (DataType::Datetime(TimeUnit::Milliseconds, None), 1000, true),
        (DataType::Datetime(TimeUnit::Microseconds, Some(TimeZone::UTC)), 1_000_000, true),
        (DataType::Datetime(TimeUnit::Nanoseconds, None), 1_000_000_000, true),
        (DataType::String, 1, true),
    ];
    for (number, (kind, unit, multiplies)) in times.into_iter().enumerate() {
        let time: Vec<i64> = seconds
            .iter()
            .map(|second| if multiplies { second * unit } else { second / unit })
            .collect();
        let whole = if kind == DataType::Date { DataType::Int32 } else { DataType::Int64 };
        let time = Column::new("time".into(), time).cast(&whole).unwrap().cast(&kind).unwrap();
        let mut columns = vec![time];
        for (place, kind) in kinds.iter().enumerate() {
            let values = Column::new(format!("c{place}").into(), numbers(place as i64));
            columns.push(values.cast(kind).unwrap());
        }
        let names: Vec<i64> = (0..40).map(|row| row / 11).collect();
        columns.push(Column::new("symbol".into(), names));
        let table = DataFrame::new(40, columns).unwrap();
        let path = folder.path().join(format!("{number}.arrow"));
        write(&path, &table, number as u64);
        let mut config = DataConfig::new(&path);
        config.checks.not_finite = Policy::Fill;
        if kind == DataType::String {
            config.columns.time_unit = crate::TimeUnit::S;
        }
        let files = inputs(&config).unwrap();
        let parts = said(in_groups(&files, &config, (7, true), Sink::Memory));
        assert!(parts.is_ok() && parts == long(&files, &config), "{kind}: {:?}", parts.err());
    }
}

#[test]
fn an_arrow_file_that_ends_too_early_or_is_none_is_told_of_on_the_long_way() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.arrow");
    write(&path, &odd_bars(0, 60), 0);
    let bytes = std::fs::read(&path).unwrap();
    let mut config = DataConfig::new(&path);
    config.columns.time_unit = crate::TimeUnit::S;
    let files = inputs(&config).unwrap();
    for length in [0, 5, 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..length]).unwrap();
        assert_eq!(said(short(&files, &config, Sink::Memory)).unwrap_err(), "odd", "{length}");
    }
}

#[test]
fn decimals_are_the_numbers_that_are_written_on_both_ways() {
    let folder = tempfile::tempdir().unwrap();
    let price = |row: usize| format!("{}.{:02}", row % 977, row % 100).parse().unwrap();
    let prices: Vec<f64> = (0..1000).map(price).collect();
    let time: Vec<i64> = (0..1000).map(|row| 1_700_000_000 + row * 60).collect();
    let close = Column::new("close".into(), prices.clone());
    let close = close.cast(&DataType::Decimal(12, 2)).unwrap();
    let columns = vec![Column::new("time".into(), time), close];
    let mut table = DataFrame::new(1000, columns).unwrap();
    let paths = ["a.parquet", "a.arrow"].map(|name| folder.path().join(name));
    let [parquet, arrow] = paths.each_ref().map(|path| std::fs::File::create(path).unwrap());
    ParquetWriter::new(parquet).with_row_group_size(Some(300)).finish(&mut table).unwrap();
    IpcWriter::new(arrow).finish(&mut table).unwrap();
    for path in &paths {
        let mut config = DataConfig::new(path);
        config.columns.time_unit = crate::TimeUnit::S;
        let files = inputs(&config).unwrap();
        let short = said(short(&files, &config, Sink::Memory));
        assert_eq!(*short.as_ref().unwrap().0.series()[0].values.all(), *prices);
        assert!(short == long(&files, &config), "{}", path.display());
    }
}
