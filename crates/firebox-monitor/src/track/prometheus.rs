//! The newest figures as a page in Prometheus' text format, on the loopback address only
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use firebox_core::Event;

use super::points::{Name, Points, free_name};
use super::{Ending, Track, TrackError, TrackedRun};
use crate::PrometheusConfig;

/// Time that one reader may take in all; others wait meanwhile.
const PATIENCE: Duration = Duration::from_millis(500);
/// Time that all readers of one look may take, so that they do not hold up the end of a run.
const LOOK: Duration = Duration::from_secs(1);
/// Time between two looks for a reader.
const PAUSE: Duration = Duration::from_millis(500);
/// Bytes that a request may have.
const LONGEST: usize = 8192;

/// The page and its port.
pub(crate) struct Prometheus {
    listener: TcpListener,
    run: String,
    points: Points,
    /// Gauges by name.
    gauges: BTreeMap<Name, f64>,
    /// Counters by name.
    counters: BTreeMap<&'static str, f64>,
}

impl Prometheus {
    pub(crate) fn open(config: PrometheusConfig, run: TrackedRun) -> Result<Self, TrackError> {
        let PrometheusConfig { port } = config;
        let error = |source| TrackError::Port { port, source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(error)?;
        listener.set_nonblocking(true).map_err(error)?;
        let counters = BTreeMap::from([("steps", 0.0), ("samples", 0.0), ("skipped_steps", 0.0)]);
        let points = Points::new(1);
        Ok(Self { listener, run: run.name, points, gauges: BTreeMap::new(), counters })
    }

    fn page(&self) -> String {
        let run = self.run.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let mut out = String::new();
        let mut line = |name: &str, kind: &str, value: f64| {
            let value = match value {
                v if v.is_nan() => "NaN".to_owned(),
                f64::INFINITY => "+Inf".to_owned(),
                f64::NEG_INFINITY => "-Inf".to_owned(),
                v => v.to_string(),
            };
            let _ = write!(out, "# TYPE {name} {kind}\n{name}{{run=\"{run}\"}} {value}\n");
        };
        for (name, value) in &self.counters {
            line(&format!("firebox_{name}_total"), "counter", *value);
        }
        // Names that differ in what Prometheus does not take are told apart by a number.
        let mut taken = BTreeSet::new();
        for (name, value) in &self.gauges {
            line(&free_name(metric_name(name), &mut taken), "gauge", *value);
        }
        out
    }

    /// Answers one reader. One that is slow or goes away is left.
    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_nonblocking(false)?;
        let until = Instant::now() + PATIENCE;
        let (mut request, mut some) = (Vec::new(), [0; 1024]);
        while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < LONGEST {
            stream.set_read_timeout(Some(left(until)?))?;
            match stream.read(&mut some)? {
                0 => break,
                count => request.extend(&some[..count]),
            }
        }
        let request = String::from_utf8_lossy(&request);
        let mut words = request.split_whitespace();
        let path = words.nth(1).map(|path| path.split('?').next().unwrap_or_default());
        let (status, body) = match path {
            Some("/metrics" | "/") => ("200 OK", self.page()),
            _ => ("404 Not Found", "the figures are at /metrics\n".to_owned()),
        };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        let answer = head + &body;
        let mut rest = answer.as_bytes();
        while !rest.is_empty() {
            stream.set_write_timeout(Some(left(until)?))?;
            match stream.write(rest)? {
                0 => return Err(ErrorKind::WriteZero.into()),
                count => rest = &rest[count..],
            }
        }
        Ok(())
    }
}

/// Time until a moment, which is not past.
fn left(until: Instant) -> std::io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// `train/loss` → `firebox_train_loss`.
fn metric_name(name: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!("firebox_{}", name.chars().map(allowed).collect::<String>())
}

impl Track for Prometheus {
    fn take(&mut self, _: u64, event: &Event) -> Result<(), TrackError> {
        if let Event::Step { samples, skipped, .. } = event {
            for (name, more) in [
                ("steps", 1.0),
                ("samples", *samples as f64),
                ("skipped_steps", f64::from(u8::from(*skipped))),
            ] {
                *self.counters.entry(name).or_default() += more;
            }
        }
        if let Some((step, pairs)) = self.points.of(event) {
            self.gauges.insert("train/step".into(), step as f64);
            self.gauges.extend(pairs);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TrackError> {
        Ok(())
    }

    fn look(&mut self) {
        let until = Instant::now() + LOOK;
        while Instant::now() < until
            && let Ok((stream, _)) = self.listener.accept()
        {
            // Whoever asked and went away asks again.
            let _ = self.answer(stream);
        }
    }

    fn pause(&self) -> Duration {
        PAUSE
    }

    fn close(&mut self, _: u64, _: Ending) -> Result<(), TrackError> {
        self.look();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(port: u16) -> Result<Prometheus, TrackError> {
        let run =
            TrackedRun { name: "a \"run\"".to_owned(), folder: "r".into(), settings: ().into() };
        Prometheus::open(PrometheusConfig { port }, run)
    }

    fn get(page: &mut Prometheus, path: &str) -> String {
        let mut stream = TcpStream::connect(page.listener.local_addr().unwrap()).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
        page.look();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn the_page_has_the_newest_figures_and_only_this_machine_can_read_it() {
        let mut page = open(0).unwrap();
        assert!(page.listener.local_addr().unwrap().ip().is_loopback());
        page.take(0, &crate::testing::step(1, 0.5)).unwrap();
        page.take(0, &crate::testing::step(2, f64::NAN)).unwrap();
        let answer = get(&mut page, "/metrics");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        for line in [
            "# TYPE firebox_steps_total counter\nfirebox_steps_total{run=\"a \\\"run\\\"\"} 2\n",
            "firebox_samples_total{run=\"a \\\"run\\\"\"} 8\n",
            "# TYPE firebox_train_loss gauge\nfirebox_train_loss{run=\"a \\\"run\\\"\"} NaN\n",
            "firebox_train_step{run=\"a \\\"run\\\"\"} 2\n",
        ] {
            assert!(answer.contains(line), "{line}\n{answer}");
        }
        assert!(get(&mut page, "/other").starts_with("HTTP/1.1 404"));
        // Somebody who connects and says nothing is left after a while.
        let silent = TcpStream::connect(page.listener.local_addr().unwrap()).unwrap();
        page.look();
        drop(silent);
    }

    #[test]
    fn slow_readers_hold_nobody_up_for_long() {
        let mut page = open(0).unwrap();
        let address = page.listener.local_addr().unwrap();
        let slow: Vec<_> = (0..40)
            .map(|_| {
                let mut stream = TcpStream::connect(address).unwrap();
                std::thread::spawn(move || {
                    // One byte after the other, until the page has had enough.
                    for byte in b"GET /metrics HTTP/1.1\r\nHost: somewhere\r\n" {
                        if stream.write_all(&[*byte]).is_err() {
                            return;
                        }
                        std::thread::sleep(Duration::from_millis(500));
                    }
                    panic!("all of it was waited for");
                })
            })
            .collect();
        let start = Instant::now();
        page.look();
        // Each for itself would take 20 s.
        assert!(start.elapsed() < LOOK + 10 * PATIENCE, "{:?}", start.elapsed());
        drop(page);
        slow.into_iter().for_each(|reader| reader.join().unwrap());
    }

    #[test]
    fn a_port_that_is_taken_is_said_so() {
        let first = open(0).unwrap();
        let port = first.listener.local_addr().unwrap().port();
        let error = open(port).map(|_| ()).unwrap_err().to_string();
        assert!(
            error.contains(&format!("port {port} of 127.0.0.1 cannot be listened on")),
            "{error}"
        );
    }
}
