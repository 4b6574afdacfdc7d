//! Data on S3, which is moto's here, beside the same files on this machine.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use firebox_data::{TableColumn, TableWriter, ingest};

use super::*;

/// Puts the files of a folder into a bucket, under their names, and serves it until the input ends.
const MOTO: &str = "
import boto3, os, sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address='127.0.0.1', port=0)
server.start()
host, port = server.get_host_and_port()
client = boto3.client('s3', endpoint_url=f'http://127.0.0.1:{port}', region_name='us-east-1',
    aws_access_key_id='test', aws_secret_access_key='test')
client.create_bucket(Bucket='data')
for name in sys.argv[2:]:
    with open(os.path.join(sys.argv[1], name), 'rb') as file:
        client.put_object(Bucket='data', Key=name, Body=file.read())
print('port', port, flush=True)
sys.stdin.read()
";

/// A Python with moto's S3: `FIREBOX_TEST_PYTHON`, or else `python3`. `None`, and a line that counts the test as skipped,
/// if that lacks it.
fn moto() -> Option<OsString> {
    let named = std::env::var_os("FIREBOX_TEST_PYTHON");
    let python = named.unwrap_or_else(|| "python3".into());
    let found = Command::new(&python).args(["-c", "import boto3, moto.server"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    println!(
        "skipped: {} lacks boto3 or moto[server] from PyPI; set FIREBOX_TEST_PYTHON to a Python that has them",
        python.display()
    );
    None
}

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
    let Some(python) = moto() else { return };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("days")).unwrap();
    write(&at("bars.parquet"), (0..GROUPS).map(|group| group * GROUP..(group + 1) * GROUP));
    write(&at("days/a.parquet"), [0..500, 500..900]);
    write(&at("days/b.parquet"), [900..1400, 1400..1500]);
    let mut server = Command::new(python)
        .args(["-c", MOTO])
        .arg(folder.path())
        .args(["bars.parquet", "days/a.parquet", "days/b.parquet"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The server has something to say of its own, too.
    let mut lines = BufReader::new(server.stdout.as_mut().unwrap()).lines();
    let port = lines.find_map(|line| Some(line.unwrap().strip_prefix("port ")?.to_owned()));
    let port = port.expect("the Python has moto[server] and boto3");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", TEST])
        .env("FIREBOX_TEST_S3", folder.path())
        .env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}"))
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test")
        .env("AWS_REGION", "us-east-1")
        .output()
        .unwrap();
    drop(server.stdin.take());
    drop(server.stdout.take());
    server.wait().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
