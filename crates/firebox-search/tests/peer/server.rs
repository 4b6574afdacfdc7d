//! A Redis server of a test. It knows nothing of Firebox: the tests of the whole program have it, too.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A Redis server of this test, stopped with it.
pub(crate) struct Redis {
    folder: tempfile::TempDir,
    port: u16,
    password: Option<&'static str>,
    process: Option<Child>,
}

impl Redis {
    /// `None`, and a line that counts the test as skipped, without a `redis-server`.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(None)
    }

    /// The same, which lets nobody in without a password.
    pub(crate) fn start_with(password: Option<&'static str>) -> Option<Self> {
        if Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("skipped: no redis-server; Debian's package of that name has it");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut redis = Self { folder, port: free_port(), password, process: None };
        redis.again();
        Some(redis)
    }

    /// Its address with this before the host, such as `:PASSWORD@`.
    pub(crate) fn address_with(&self, credentials: &str) -> String {
        format!("redis://{credentials}127.0.0.1:{}/0", self.port)
    }

    pub(crate) fn address(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Starts it with what it stored before.
    pub(crate) fn again(&mut self) {
        let (port, folder) = (self.port.to_string(), self.folder.path());
        let process = Command::new("redis-server")
            .args(["--port", &port, "--appendonly", "yes", "--appendfsync", "always"])
            .args(["--save", "", "--bind", "127.0.0.1"])
            .args(self.password.iter().flat_map(|password| ["--requirepass", password]))
            .current_dir(folder)
            .stdout(Stdio::null())
            .spawn();
        self.process = Some(process.unwrap());
        let start = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(20), "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port on which nothing listens.
pub(crate) fn free_port() -> u16 {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port()
}
