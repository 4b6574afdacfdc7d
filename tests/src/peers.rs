//! Other programs that tests ask: a Python with packages, and S3 as moto serves it.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// `FIREBOX_TEST_PYTHON`, or else `python3`, with these packages; or a line that counts the test as skipped.
pub fn python(packages: &str) -> Option<PathBuf> {
    let python = std::env::var_os("FIREBOX_TEST_PYTHON").map_or("python3".into(), PathBuf::from);
    let found = Command::new(&python).args(["-c", &format!("import {packages}")]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    println!(
        "skipped: {} lacks one of {packages}; set FIREBOX_TEST_PYTHON to a Python that has them",
        python.display()
    );
    None
}

const BEGIN: &str = "
import boto3, os, sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address='127.0.0.1', port=0)
server.start()
host, port = server.get_host_and_port()
client = boto3.client('s3', endpoint_url=f'http://127.0.0.1:{port}', region_name='us-east-1',
    aws_access_key_id='test', aws_secret_access_key='test')
";
const END: &str = "
print('port', port, flush=True)
sys.stdin.read()
";

/// S3 on this machine, as moto serves it until this is dropped.
pub struct S3 {
    server: Child,
    address: String,
}

impl S3 {
    /// A server that is filled by these lines of Python, which have a `client` of it and the arguments in `sys.argv`; or a
    /// line that counts the test as skipped.
    ///
    /// # Panics
    ///
    /// When it does not begin.
    pub fn start(fill: &str, arguments: &[impl AsRef<OsStr>]) -> Option<Self> {
        let python = python("boto3, moto.server")?;
        let mut server = Command::new(python)
            .args(["-c", &format!("{BEGIN}{fill}{END}")])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("the server does not start: {error}"));
        // The server has something to say of its own, too.
        let lines = server.stdout.as_mut().map(|said| BufReader::new(said).lines());
        let mut lines = lines.into_iter().flatten().map_while(Result::ok);
        let port = lines.find_map(|line| Some(line.strip_prefix("port ")?.to_owned()));
        let port = port.unwrap_or_else(|| panic!("the server has said no port"));
        Some(Self { server, address: format!("http://127.0.0.1:{port}") })
    }

    /// A test of the program that runs, in a process of its own with the address of the server and its keys.
    ///
    /// # Panics
    ///
    /// When the program has no path.
    pub fn test(&self, name: &str) -> Command {
        let program = std::env::current_exe();
        let program = program.unwrap_or_else(|error| panic!("no path of this program: {error}"));
        let mut command = Command::new(program);
        command
            .args(["--exact", name])
            .env("AWS_ENDPOINT_URL", &self.address)
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .env("AWS_REGION", "us-east-1");
        command
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.server.stdin.take());
        drop(self.server.stdout.take());
        let _ = self.server.wait();
    }
}
