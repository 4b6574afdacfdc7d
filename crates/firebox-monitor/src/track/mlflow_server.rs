//! MLflow's REST interface (<https://mlflow.org/docs/latest/rest-api.html>), version 2.0, over HTTP.

use std::time::Duration;

use serde_json::{Value, json};
use ureq::Agent;

use super::mlflow::{Known, Metric, Store};
use super::{Ending, TrackError};

/// Time that one request may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Waits before a request that was not answered is made again. Meanwhile events wait in the queue.
const AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];
/// Parameters that MLflow takes at once.
const PARAMETERS: usize = 100;

/// A server, and the run on it.
pub(super) struct Server {
    agent: Agent,
    address: String,
    experiment: String,
    run: String,
}

/// An answer: its status and its body.
type Answer = (u16, Value);

impl Server {
    pub(super) fn new(address: &str, experiment: &str) -> Self {
        let config = Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            .build();
        let (address, experiment) =
            (address.trim_end_matches('/').to_owned(), experiment.to_owned());
        Self { agent: config.into(), address, experiment, run: String::new() }
    }

    /// An answer, whatever its status, after up to three tries.
    fn ask(&self, what: &str, body: Option<&Value>) -> Result<Answer, TrackError> {
        let url = format!("{}/api/2.0/mlflow/{what}", self.address);
        let mut waits = AGAIN.iter();
        loop {
            let answer = match body {
                Some(body) => {
                    let request = self.agent.post(&url).content_type("application/json");
                    request.send(body.to_string())
                }
                None => self.agent.get(&url).call(),
            };
            let gone = |reason: String| TrackError::Gone { address: self.address.clone(), reason };
            let error = match answer {
                Ok(mut answer) => {
                    let status = answer.status().as_u16();
                    match answer.body_mut().read_to_string() {
                        Ok(text) => {
                            let answer = serde_json::from_str(&text).unwrap_or_default();
                            if status < 500 {
                                return Ok((status, answer));
                            }
                            let error = self.failing(status, &answer);
                            // What a server does not have, it will not have in a second either.
                            if status == NOT_IMPLEMENTED {
                                return Err(error);
                            }
                            error
                        }
                        Err(error) => gone(error.to_string()),
                    }
                }
                Err(error) => gone(error.to_string()),
            };
            // A server that is overloaded or starting up may answer yet.
            match waits.next() {
                Some(wait) => std::thread::sleep(*wait),
                None => return Err(error),
            }
        }
    }

    /// What a status of 500 and more is.
    fn failing(&self, status: u16, answer: &Value) -> TrackError {
        let said =
            answer["message"].as_str().map_or(String::new(), |said| format!("; it says: {said}"));
        TrackError::Failing {
            address: self.address.clone(),
            status,
            meaning: meaning(status),
            said,
        }
    }

    /// The body of an answer that the server was content with.
    fn must(&self, what: &str, body: &Value) -> Result<Value, TrackError> {
        match self.ask(what, Some(body))? {
            (200..=299, answer) => Ok(answer),
            (status, answer) => {
                let message = answer["message"].as_str().unwrap_or_default();
                let reason = format!("{what}: status {status} ({}) {message}", meaning(status));
                let reason = reason.trim_end().to_owned();
                Err(TrackError::Refused { address: self.address.clone(), reason })
            }
        }
    }

    fn text(&self, answer: &Value, path: &str) -> Result<String, TrackError> {
        answer.pointer(path).and_then(Value::as_str).map(str::to_owned).ok_or_else(|| {
            let reason = format!("its answer has no {path}; is it an MLflow server?");
            TrackError::Refused { address: self.address.clone(), reason }
        })
    }

    fn experiment(&self) -> Result<String, TrackError> {
        let name: String = self.experiment.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let what = format!("experiments/get-by-name?experiment_name={name}");
        match self.ask(&what, None)? {
            (200..=299, answer) => self.text(&answer, "/experiment/experiment_id"),
            _ => {
                let answer =
                    self.must("experiments/create", &json!({ "name": self.experiment }))?;
                self.text(&answer, "/experiment_id")
            }
        }
    }
}

impl Store for Server {
    fn begin(
        &mut self,
        known: Option<Known>,
        name: &str,
        time: u64,
        parameters: &[(String, String)],
    ) -> Result<Known, TrackError> {
        if let Some(known) = known {
            let body = json!({ "run_id": known.run_id, "status": "RUNNING" });
            if let (200..=299, _) = self.ask("runs/update", Some(&body))? {
                self.run.clone_from(&known.run_id);
                return Ok(known);
            }
        }
        let experiment_id = self.experiment()?;
        let tags = json!([
            { "key": "mlflow.source.name", "value": "firebox" },
            { "key": "mlflow.source.type", "value": "LOCAL" },
        ]);
        let body = json!({
            "experiment_id": experiment_id, "run_name": name, "start_time": time, "tags": tags,
        });
        let answer = self.must("runs/create", &body)?;
        self.run = self.text(&answer, "/run/info/run_id")?;
        for some in parameters.chunks(PARAMETERS) {
            let params: Vec<Value> =
                some.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
            self.must("runs/log-batch", &json!({ "run_id": self.run, "params": params }))?;
        }
        let (to, experiment) = (self.address.clone(), self.experiment.clone());
        Ok(Known { to, experiment, experiment_id, run_id: self.run.clone() })
    }

    fn log(&mut self, metrics: &[Metric]) -> Result<(), TrackError> {
        let metrics: Vec<Value> = metrics
            .iter()
            .map(|Metric { name, value, time, step }| {
                json!({ "key": name, "value": number(*value), "timestamp": time, "step": step })
            })
            .collect();
        self.must("runs/log-batch", &json!({ "run_id": self.run, "metrics": metrics }))?;
        Ok(())
    }

    fn end(&mut self, time: u64, ending: Ending) -> Result<(), TrackError> {
        let status = match ending {
            Ending::Finished => "FINISHED",
            Ending::Failed => "FAILED",
            Ending::Interrupted => "KILLED",
        };
        let body = json!({ "run_id": self.run, "status": status, "end_time": time });
        self.must("runs/update", &body)?;
        Ok(())
    }
}

/// `501 Not Implemented`
const NOT_IMPLEMENTED: u16 = 501;

/// What a status says. Source: RFC 9110, section 15.
fn meaning(status: u16) -> &'static str {
    match status {
        401 | 403 => "it wants a user who may do this",
        404 | 405 => "it does not have this; is it an MLflow server?",
        429 => "it was asked too often",
        400..=499 => "it does not take this request",
        500 => "it failed by an error of its own",
        NOT_IMPLEMENTED => {
            "it does not know how to do this; is it an MLflow server, and not too old?"
        }
        502 | 504 => "the server behind it does not answer",
        503 => "it is overloaded, or not ready",
        505 => "it does not speak this version of HTTP",
        _ => "it failed",
    }
}

/// A number as Protocol Buffers' JSON writes it: JSON itself has no NaN and no infinity.
fn number(value: f64) -> Value {
    match value {
        v if v.is_nan() => json!("NaN"),
        f64::INFINITY => json!("Infinity"),
        f64::NEG_INFINITY => json!("-Infinity"),
        v => json!(v),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// Answers each request in turn with a status and a body, and returns the requests.
    fn server(answers: Vec<(u16, &'static str)>) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            let mut requests = vec![];
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut line) = (String::new(), String::new());
                while reader.read_line(&mut line).unwrap() > 2 {
                    head.push_str(&line);
                    line.clear();
                }
                let length = head.lines().find_map(|line| {
                    let line = line.to_lowercase();
                    line.strip_prefix("content-length: ").map(|n| n.parse::<usize>().unwrap())
                });
                let mut sent = vec![0; length.unwrap_or(0)];
                reader.read_exact(&mut sent).unwrap();
                let first = head.lines().next().unwrap().to_owned();
                requests.push(format!("{first} {}", String::from_utf8(sent).unwrap()));
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                );
                stream.write_all(answer.as_bytes()).unwrap();
            }
            requests
        });
        (address, thread)
    }

    #[test]
    fn a_run_is_made_told_and_ended() {
        let (address, thread) = server(vec![
            (404, "{}"),
            (200, r#"{"experiment_id": "3"}"#),
            (200, r#"{"run": {"info": {"run_id": "abc"}}}"#),
            (200, "{}"),
            (500, "down"),
            (200, "{}"),
            (200, "{}"),
        ]);
        let mut server = Server::new(&format!("{address}/"), "my experiment");
        let known = server.begin(None, "run", 5, &[("a".to_owned(), "b".to_owned())]).unwrap();
        assert_eq!((known.experiment_id.as_str(), known.run_id.as_str()), ("3", "abc"));
        let metric = Metric { name: "m".into(), value: f64::NAN, time: 1, step: 2 };
        server.log(&[metric]).unwrap();
        server.end(9, Ending::Finished).unwrap();
        let requests = thread.join().unwrap();
        assert!(
            requests[0]
                .starts_with("GET /api/2.0/mlflow/experiments/get-by-name?experiment_name=%6D%79")
        );
        // The one that was answered with 500 was made again.
        assert_eq!(requests[4], requests[5]);
        assert!(requests[5].contains(r#""value":"NaN""#), "{}", requests[5]);
        assert!(requests[6].contains(r#""status":"FINISHED""#), "{}", requests[6]);
    }

    #[test]
    fn a_server_that_refuses_or_is_none_is_said_so() {
        let (address, thread) = server(vec![
            (200, r#"{"experiment": {"experiment_id": "1"}}"#),
            (403, r#"{"message": "no"}"#),
        ]);
        let error = Server::new(&address, "e").begin(None, "r", 1, &[]).unwrap_err().to_string();
        let expected = "refuses: runs/create: status 403 (it wants a user who may do this) no";
        assert!(error.contains(expected), "{error}");
        thread.join().unwrap();
        let (address, thread) = server(vec![(200, "<html>")]);
        let error = Server::new(&address, "e").begin(None, "r", 1, &[]).unwrap_err().to_string();
        assert!(error.contains("is it an MLflow server?"), "{error}");
        thread.join().unwrap();
        let error = Server::new(&address, "e").begin(None, "r", 1, &[]).unwrap_err().to_string();
        assert!(error.contains("does not answer"), "{error}");
    }

    #[test]
    fn a_server_that_answers_with_an_error_of_its_own_is_told_by_its_status() {
        // As `python -m http.server` answers a POST: once, as it would say the same again.
        let (address, thread) =
            server(vec![(200, r#"{"experiment": {"experiment_id": "1"}}"#), (501, "<html>")]);
        let error = Server::new(&address, "e").begin(None, "r", 1, &[]).unwrap_err().to_string();
        let expected = "answers with status 501: it does not know how to do this";
        assert!(error.contains(expected) && !error.contains("does not answer"), "{error}");
        assert_eq!(thread.join().unwrap().len(), 2);
        // One that is overloaded is asked again.
        let busy = r#"{"message": "come later"}"#;
        let (address, thread) = server(vec![(503, busy), (503, busy), (503, busy)]);
        let error = Server::new(&address, "e").begin(None, "r", 1, &[]).unwrap_err().to_string();
        let expected =
            "answers with status 503: it is overloaded, or not ready; it says: come later";
        assert!(error.contains(expected), "{error}");
        assert_eq!(thread.join().unwrap().len(), 3);
    }
}
