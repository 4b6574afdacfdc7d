//! Real data, where it is there: see `SOURCES.md` beside it for what it is.

use std::path::PathBuf;

use firebox_core::{Role, Silent, StepLabels};
use firebox_data::{DataConfig, Ingested, Paths, ingest};

use crate::Files;

/// The file, or `None` (saying so) where the shared data is absent.
fn shared(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("FIREBOX_SHARED_DATA")
        .map_or_else(|| PathBuf::from("../../../shared/data"), PathBuf::from);
    let path = folder.join(name);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {name} is not in {}", folder.display());
    None
}

fn read(path: PathBuf, test: Option<PathBuf>, toml: &str) -> Ingested {
    let mut config: DataConfig = toml::from_str(toml).unwrap();
    config.path = Paths(vec![path]);
    config.test = test.map(|test| Paths(vec![test]));
    ingest(&config, &Files::new().cache(), &Silent).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn eurusd_has_one_series_with_gaps_at_nights_and_weekends() {
    let Some(path) = shared("bars/eurusd_1min.csv") else { return };
    let data = read(path, None, "checks = { gaps = 'split' }");
    assert_eq!((data.set.series().len(), data.set.steps()), (1, 18_184));
    assert_eq!(data.set.role(Role::Close), Some(3));
    assert_eq!(
        data.set.series()[0].values.all()[..4],
        [1.386_810, 1.386_915, 1.386_745, 1.386_915]
    );
    assert_eq!(data.checks.interval.unwrap().to_string(), "1min");
    assert!(data.checks.segments > 1);
    println!("{:#?}", data.checks.findings);
}

#[test]
fn es_has_a_series_for_each_contract() {
    let Some(path) = shared("bars/es_1min.csv") else { return };
    let data = read(path, None, "checks = { gaps = 'split' }");
    assert_eq!(data.set.steps(), 23_948);
    assert_eq!(data.set.series()[0].name, "ES201312");
    assert_eq!(data.set.channels().len(), 4);
    assert_eq!(data.checks.series_column.as_deref(), Some("symbol"));
    println!("{:#?}", data.checks.findings);
}

#[test]
fn ett_has_seven_channels_an_hour() {
    let Some(path) = shared("ett/ETTh1.csv") else { return };
    let data = read(path, None, "");
    assert_eq!((data.set.steps(), data.set.channels().len()), (17_420, 7));
    assert_eq!(data.checks.interval.unwrap().to_string(), "1h");
    assert!(data.checks.findings.is_empty());
}

#[test]
fn every_archive_file_is_read_whole() {
    for (folder, name, train, test, channels, classes, lengths) in [
        ("ucr", "GunPoint", 50, 150, 1, 2, (150, 150)),
        ("ucr", "ArrowHead", 36, 175, 1, 3, (251, 251)),
        ("ucr", "ItalyPowerDemand", 67, 1_029, 1, 2, (24, 24)),
        ("ucr", "SyntheticControl", 300, 300, 1, 6, (60, 60)),
        ("uea", "BasicMotions", 40, 40, 6, 4, (100, 100)),
        ("uea", "JapaneseVowels", 270, 370, 12, 9, (7, 29)),
    ] {
        let file = |part| shared(&format!("{folder}/{name}_{part}.ts"));
        let (Some(a), Some(b)) = (file("TRAIN"), file("TEST")) else { return };
        let data = read(a, Some(b), "");
        let set = &data.set;
        assert_eq!(set.series().len(), train + test, "{name}");
        assert_eq!((set.channels().len(), set.classes().len()), (channels, classes), "{name}");
        let steps = set.series().iter().map(firebox_core::Series::len);
        assert_eq!((steps.clone().min().unwrap(), steps.max().unwrap()), lengths, "{name}");
        assert!(set.series().iter().all(|s| matches!(s.labels, StepLabels::Whole(_))), "{name}");
        assert!(data.checks.findings.is_empty(), "{name}: {:?}", data.checks.findings);
    }
}
