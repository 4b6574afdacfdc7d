//! Data on S3, which is moto's here, beside the same files on this machine.

use std::ffi::OsStr;
use std::ops::Range;
use std::path::Path;

use firebox_data::{TableColumn, TableWriter, ingest};
use firebox_tests::S3;

use super::*;

/// Puts the files of a folder into a bucket, under their names.
const FILL: &str = "
client.create_bucket(Bucket='data')
for name in sys.argv[2:]:
    with open(os.path.join(sys.argv[1], name), 'rb') as file:
        client.put_object(Bucket='data', Key=name, Body=file.read())
";
/// Those files.
const NAMES: [&str; 3] = ["bars.parquet", "days/a.parquet", "days/b.parquet"];

/// Rows of a group of the larger file. What is read at once has some of them.
const GROUP: usize = 40_000;
/// Groups of rows of that file.
const GROUPS: usize = 6;

/// Bars of a minute as Parquet, each of these runs of rows in a group of its own.
fn write(path: &Path, groups: impl IntoIterator<Item = Range<usize>>) {
    let mut table = TableWriter::create(path).unwrap();
    for rows in groups {
        let close = |row: usize| 100.0 + (row * 7919 % 1_000_003) as f64 / 1e4;
        let time = |row: usize| 1_700_000_040_000_000 + row as i64 * 60_000_000;
        let prices =
            |above: f64| TableColumn::Exact(rows.clone().map(|row| close(row) + above).collect());
        let columns = [
            ("time", TableColumn::Time(rows.clone().map(time).collect())),
            ("open", prices(-0.25)),
            ("high", prices(0.5)),
            ("low", prices(-0.5)),
            ("close", prices(0.0)),
        ];
        table.write(columns.map(|(name, column)| (name.to_owned(), column)).into()).unwrap();
    }
    table.finish().unwrap();
}

/// What is made of the files on S3 beside what is made of those in the folder.
fn compare(folder: &Path) {
    let run = RunConfig { cache: folder.join("cache"), ..RunConfig::default() };
    for (name, series, steps) in [("bars.parquet", 1, GROUPS * GROUP), ("days/", 2, 1500)] {
        let far = DataConfig::new(format!("s3://data/{name}"));
        let copy = local(&far, &run, &AtomicBool::new(false), &Silent).unwrap();
        assert!(copy.paths().all(|path| path.is_file()), "{copy:?}");
        let of = |data: &DataConfig, cache: &str| {
            let found = ingest(data, &folder.join(cache), &Silent).unwrap();
            assert!(!found.reused, "{name}, {cache}");
            assert_eq!((found.set.series().len(), found.set.steps()), (series, steps));
            found
        };
        let ours = of(&DataConfig::new(folder.join(name)), "ours");
        let theirs = of(&copy, "theirs");
        assert_eq!(theirs.key, ours.key, "{name}");
        assert!(theirs.set == ours.set && theirs.checks == ours.checks, "{name}");
    }
}

const TEST: &str = "feed::s3::parquet_on_s3_becomes_the_series_of_the_same_files";

/// Runs this test again in a process of its own, with the keys and the address of the server in its environment.
#[test]
fn parquet_on_s3_becomes_the_series_of_the_same_files() {
    if let Some(folder) = std::env::var_os("FIREBOX_TEST_S3") {
        return compare(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("days")).unwrap();
    write(&at("bars.parquet"), (0..GROUPS).map(|group| group * GROUP..(group + 1) * GROUP));
    write(&at("days/a.parquet"), [0..500, 500..900]);
    write(&at("days/b.parquet"), [900..1400, 1400..1500]);
    let arguments: Vec<&OsStr> =
        std::iter::once(folder.path().as_os_str()).chain(NAMES.map(OsStr::new)).collect();
    let Some(server) = S3::start(FILL, &arguments) else { return };
    let output = server.test(TEST).env("FIREBOX_TEST_S3", folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
