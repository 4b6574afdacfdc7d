//! `firebox watch`: a run's log as a dashboard in the terminal, while it goes on or later.
//!
//! It reads what the run writes and asks through files in its folder, so it may come and go as it
//! likes.

mod draw;
mod live;
mod parts;
mod terminal;

use std::io::{IsTerminal as _, Write as _, stdin, stdout};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant, SystemTime};

use firebox_core::{Request, is_training};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Cell, CellWidth as _};
use serde::Deserialize;

use self::live::{Alive, Live, Tail};
use self::parts::Parts;
use self::terminal::Key;
use crate::track::now;

/// Time between two looks at the log.
const LOOK: Duration = Duration::from_millis(250);

/// Time that an answer stands where the keys are named.
const SAID: Duration = Duration::from_secs(5);

/// Time without news after which the lock of the run is looked at, milliseconds.
const QUIET: u64 = 2_000;

/// A run that cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// It has no log.
    #[error("cannot read {path}, the log of the run")]
    Log {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// What was asked of it would have no effect.
    #[error("{0}")]
    Deaf(String),
    /// What was asked of it cannot be written.
    #[error("cannot ask the run")]
    Ask(#[source] std::io::Error),
    /// There is no terminal to draw on.
    #[error("there is no terminal to show the run in\n  print it once with --once")]
    NoTerminal,
    /// The terminal cannot be drawn on.
    #[error("cannot draw on the terminal")]
    Draw(#[source] std::io::Error),
}

/// A log, and what it has told so far.
struct Watched {
    folder: PathBuf,
    tail: Tail,
    parts: Parts,
    live: Live,
    /// When the report that was looked at was written.
    reported: Option<SystemTime>,
}

impl Watched {
    fn open(folder: &Path) -> Result<Self, WatchError> {
        let path = folder.join("events.jsonl");
        let (folder, tail) = (folder.to_path_buf(), Tail::new(path.clone()));
        let parts = Parts::new(&folder);
        let live = Live::default();
        let mut watched = Self { folder, tail, parts, live, reported: None };
        watched.look().map_err(|source| WatchError::Log { path, source })?;
        Ok(watched)
    }

    fn look(&mut self) -> std::io::Result<()> {
        match self.tail.lines()? {
            Some(lines) => lines.iter().for_each(|line| self.live.line(line)),
            None => self.live = Live::default(),
        }
        self.parts.look(&mut self.live);
        self.look_at_report();
        Ok(())
    }

    /// Takes the warnings of the report, which is written once the run has ended.
    fn look_at_report(&mut self) {
        if !self.live.is_complete() {
            self.reported = None;
            return;
        }
        let path = self.folder.join("scores.json");
        let written = std::fs::metadata(&path).and_then(|found| found.modified()).ok();
        if written.is_some() && written != self.reported {
            self.reported = written;
            self.live.of_report = warnings_of(&path);
        }
    }

    fn status(&self) -> String {
        let now = now();
        let alive = match self.live.silence(now) < QUIET {
            true => Alive::Yes,
            false => Alive::of(&self.folder),
        };
        self.live.status(now, alive)
    }

    /// The same from one look alone, which asks the lock at once.
    fn status_now(&self) -> String {
        self.live.status(now(), Alive::of(&self.folder))
    }
}

/// The warnings of a report, by its figures; none of one that cannot be read.
fn warnings_of(scores: &Path) -> Vec<String> {
    #[derive(Deserialize)]
    struct Scores {
        #[serde(default)]
        warnings: Vec<String>,
    }
    let text = std::fs::read(scores).unwrap_or_default();
    serde_json::from_slice(&text).map_or(vec![], |Scores { warnings }| warnings)
}

/// The dashboard of the run in `folder` as text of this size.
///
/// # Errors
///
/// When the run has no log that can be read.
pub fn watch_once(folder: &Path, [width, height]: [u16; 2]) -> Result<String, WatchError> {
    let watched = Watched::open(folder)?;
    let size = TestBackend::new(width.max(1), height.max(1));
    let Ok(mut terminal) = Terminal::new(size);
    let status = watched.status_now();
    let Ok(_) = terminal.draw(|frame| draw::draw(frame, &watched.live, &status, None));
    let buffer = terminal.backend().buffer();
    let rows: Vec<String> =
        buffer.content().chunks(usize::from(width.max(1))).map(text_of).collect();
    Ok(rows.join("\n"))
}

/// A row as text. Behind a wide character are cells that it covers, which are blank.
fn text_of(row: &[Cell]) -> String {
    let (mut text, mut covered) = (String::new(), 0);
    for cell in row {
        if covered > 0 {
            covered -= 1;
            continue;
        }
        text.push_str(cell.symbol());
        covered = cell.cell_width().saturating_sub(1);
    }
    text.trim_end().to_owned()
}

/// Shows the run in `folder` until somebody leaves it with `q`, the terminal is closed, or `stop` is true, which is looked
/// at four times a second: a signal that ended the process would leave the terminal as it is drawn on. The run notices
/// none of them.
///
/// # Errors
///
/// When the run has no log that can be read, or there is no terminal.
pub fn watch(folder: &Path, stop: &AtomicBool) -> Result<(), WatchError> {
    let mut watched = Watched::open(folder)?;
    if !stdout().is_terminal() || !stdin().is_terminal() {
        return Err(WatchError::NoTerminal);
    }
    let mut terminal = terminal::open().map_err(WatchError::Draw)?;
    let keys = terminal::keys();
    let (mut said, mut said_at) = (String::new(), Instant::now());
    while !stop.load(Ordering::SeqCst) {
        let answered = watched.live.answered;
        // A log that is gone for a moment is looked at again.
        let _ = watched.look();
        if let Some((request, step)) = watched.live.answered.filter(|new| Some(*new) != answered) {
            (said, said_at) = (format!("{} after step {step}", request.name()), Instant::now());
        }
        if said_at.elapsed() > SAID {
            said.clear();
        }
        let status = watched.status();
        let shown = Some(said.as_str());
        let drawn = terminal.draw(|frame| draw::draw(frame, &watched.live, &status, shown));
        if drawn.is_err() {
            // The terminal was closed.
            break;
        }
        match keys.recv_timeout(LOOK) {
            Ok(Key::Char('q') | Key::Leave) => break,
            Ok(Key::Char(key)) => {
                (said, said_at) = (asked(folder, &watched.live, key), Instant::now());
            }
            Ok(Key::Other) => said.clear(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    // A terminal that was closed needs no cursor. Dropping it would say so, in it, and panic.
    if terminal.show_cursor().is_err() {
        std::mem::forget(terminal);
    }
    let _ = stdout().flush();
    Ok(())
}

/// Does what a key stands for, and says so.
fn asked(folder: &Path, live: &Live, key: char) -> String {
    let request = match key {
        'p' if live.paused => Request::GoOn,
        'p' => Request::Pause,
        's' => Request::Save,
        'e' => Request::StopAfterEpoch,
        _ => return String::new(),
    };
    match put(folder, live, request) {
        Ok(said) => said,
        Err(WatchError::Ask(error)) => format!("cannot ask the run: {error}"),
        Err(error) => error.to_string(),
    }
}

/// Asks the run in `folder` for something, and says when it will be done.
///
/// # Errors
///
/// When the run has no log that can be read, or does not do any more what it is asked: it has
/// ended, was killed, or has its training behind it.
pub fn request(folder: &Path, request: Request) -> Result<String, WatchError> {
    put(folder, &Watched::open(folder)?.live, request)
}

/// Only training does what it is asked. What is asked before it waits for it.
fn put(folder: &Path, live: &Live, request: Request) -> Result<String, WatchError> {
    let deaf = |why: String| Err(WatchError::Deaf(why));
    if let Some(outcome) = &live.outcome {
        return deaf(format!("the run has ended ({outcome}), and can be asked for nothing"));
    }
    if Alive::of(folder) == Alive::No {
        return deaf("no process works on the run, so nobody would do it".to_owned());
    }
    let stage = live.stage.as_deref();
    let trains = stage.is_some_and(is_training);
    // A classifier is trained in a stage of its own, after its encoder.
    if !trains && live.stages.iter().any(|ended| is_training(&ended.0)) {
        let stage = stage.map_or(String::new(), |stage| format!(", {stage} does not answer"));
        return deaf(format!("training has ended{stage}, and only training does what it is asked"));
    }
    crate::control::ask(folder, request).map_err(WatchError::Ask)?;
    let name = request.name();
    Ok(match stage {
        Some(_) if trains => format!("asked: {name}, at the end of the step in hand"),
        Some(stage) => format!("asked: {name}, once training goes on: {stage} does not answer"),
        None => format!("asked: {name}, once training goes on"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_shown_once_as_text_and_one_without_a_log_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = watch_once(folder.path(), [80, 24]).unwrap_err().to_string();
        assert!(error.contains("events.jsonl"), "{error}");
        let line =
            r#"{"time":1,"event":"run-started","run":"r-1","device":"cpu","resumed_at_step":null}"#;
        std::fs::write(folder.path().join("events.jsonl"), format!("{line}\n")).unwrap();
        let text = watch_once(folder.path(), [80, 24]).unwrap();
        assert_eq!(text.split('\n').count(), 24);
        assert!(text.starts_with(" r-1 no news for"), "{text}");
        assert!(!text.contains("q leave"), "there are no keys in a text: {text}");
        let wide = line.replace("r-1", "数据-1");
        std::fs::write(folder.path().join("events.jsonl"), format!("{wide}\n")).unwrap();
        let text = watch_once(folder.path(), [80, 24]).unwrap();
        assert!(text.starts_with(" 数据-1 no news for"), "{text}");
    }

    #[test]
    fn what_the_report_warns_of_is_told_once_the_run_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let log = |more: &str| {
            let lines = format!(
                "{}\n{}\n{more}",
                r#"{"time":1,"event":"run-started","run":"r-1","device":"cpu","resumed_at_step":null}"#,
                r#"{"time":2,"event":"warning","message":"of the log"}"#,
            );
            std::fs::write(folder.path().join("events.jsonl"), lines).unwrap();
        };
        let scores = r#"{"warnings":["of the log","of the report"],"verdict":{}}"#;
        std::fs::write(folder.path().join("scores.json"), scores).unwrap();
        let told = || {
            let text = watch_once(folder.path(), [80, 24]).unwrap();
            ["of the log", "of the report"].map(|part| text.matches(part).count())
        };
        let end = |outcome: &str| {
            let line = r#"{"time":3,"event":"run-finished","run":"r-1","outcome":"OUTCOME","seconds":1.0}"#;
            log(&format!("{}\n", line.replace("OUTCOME", outcome)));
        };
        log("");
        assert_eq!(told(), [1, 0], "the report of an earlier attempt");
        end("failed: no memory");
        assert_eq!(told(), [1, 0]);
        end("finished");
        assert_eq!(told(), [1, 1]);
        std::fs::write(folder.path().join("scores.json"), "half").unwrap();
        assert_eq!(told(), [1, 0]);
    }

    #[test]
    fn keys_ask_the_run_and_an_ended_one_is_not_asked() {
        let folder = tempfile::tempdir().unwrap();
        let mut live = Live::default();
        assert!(asked(folder.path(), &live, 'p').contains("pause"));
        assert!(asked(folder.path(), &live, 's').contains("save"));
        live.paused = true;
        assert!(asked(folder.path(), &live, 'p').contains("go-on"));
        assert_eq!(asked(folder.path(), &live, 'x'), "");
        live.outcome = Some("finished".to_owned());
        assert!(asked(folder.path(), &live, 's').contains("the run has ended (finished)"));
        live.outcome = None;
        // A lock that nobody holds is left by a run that was killed.
        let lock = std::fs::File::create(folder.path().join("lock")).unwrap();
        assert!(asked(folder.path(), &live, 'p').contains("no process works on the run"));
        lock.lock().unwrap();
        live.stage = Some("evaluate".to_owned());
        live.stages.push(("train".to_owned(), 1.0, false));
        assert!(asked(folder.path(), &live, 'p').contains("evaluate does not answer"));
        assert_eq!(std::fs::read_dir(folder.path().join("control")).unwrap().count(), 3);
        (live.stage, live.stages) = (Some("augment".to_owned()), vec![]);
        assert!(asked(folder.path(), &live, 'p').contains("once training goes on: augment does"));
        live.stage = Some("train".to_owned());
        assert!(asked(folder.path(), &live, 'p').contains("at the end of the step in hand"));
        // A classifier is trained after its encoder, and answers.
        live.stage = Some("finetune".to_owned());
        live.stages.push(("train".to_owned(), 1.0, false));
        assert!(asked(folder.path(), &live, 'p').contains("at the end of the step in hand"));
        assert_eq!(std::fs::read_dir(folder.path().join("control")).unwrap().count(), 6);
        live.stages.push(("finetune".to_owned(), 1.0, false));
        live.stage = None;
        assert!(asked(folder.path(), &live, 'p').contains("training has ended, and only"));
    }
}
