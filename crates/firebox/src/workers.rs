//! The workers of `firebox search --workers N`: processes of this machine that are started, watched, and
//! begun anew when something kills them.
//!
//! What a worker does is in `search`, and what becomes of its trial in the study: a worker that is begun
//! anew is a new one to both.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use firebox_core::{Event, Listener};

/// Time between two looks at the workers.
const LOOK: Duration = Duration::from_millis(200);
/// How often each worker is begun anew: more often than a trial is tried again by default, so that one
/// that is too large for the machine does not use it up.
const AGAIN: u32 = 10;

/// A worker's process, and how often it was begun anew.
struct Worker {
    process: Child,
    again: u32,
}

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// With the study, or because it was asked to.
    Well,
    /// By an error of its own, which would come again.
    Failed,
    /// By a signal that nobody sends who wants it to end in peace: `kill -9`, the system without memory,
    /// a fault of the machine. On Windows, by an error of the system, whose codes are below 0.
    Killed,
}

impl End {
    fn of(status: ExitStatus) -> Self {
        match status.code() {
            Some(0 | 130) => Self::Well,
            _ if asks(status) => Self::Well,
            Some(0..) => Self::Failed,
            _ => Self::Killed,
        }
    }
}

/// Whether it ended by a signal that asks for its end, which came before it could heed one.
#[cfg(unix)]
fn asks(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    /// `SIGHUP`, `SIGINT`, `SIGQUIT` and `SIGTERM` of every Unix's signal.h.
    const ASKING: [i32; 4] = [1, 2, 3, 15];
    status.signal().is_some_and(|signal| ASKING.contains(&signal))
}

#[cfg(not(unix))]
fn asks(status: ExitStatus) -> bool {
    /// `STATUS_CONTROL_C_EXIT` of Windows' ntstatus.h.
    const CONTROL_C: u32 = 0xC000_013A;
    status.code() == Some(CONTROL_C.cast_signed())
}

/// Starts so many workers and waits for them. One that is killed is begun anew, [`AGAIN`] times, and its
/// trial is gone on with by whoever comes first; not after `stop`. Returns whether any worker ended well.
///
/// # Errors
///
/// If a worker cannot be started.
pub(crate) fn work(
    count: u16,
    mut command: impl FnMut() -> std::io::Result<Command>,
    stop: &AtomicBool,
    listener: &dyn Listener,
) -> std::io::Result<bool> {
    let mut begin = || command()?.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let say = |message: String| listener.on(&Event::Warning { message });
    let mut workers = vec![];
    for _ in 0..count {
        workers.push(Worker { process: begin()?, again: 0 });
    }
    let mut well = false;
    while !workers.is_empty() {
        let stopped = stop.load(Ordering::SeqCst);
        if stopped {
            // A worker stops when its input ends.
            workers.iter_mut().for_each(|worker| drop(worker.process.stdin.take()));
        }
        let mut running = vec![];
        for Worker { mut process, again } in workers {
            let Some(status) = process.try_wait()? else {
                running.push(Worker { process, again });
                continue;
            };
            match End::of(status) {
                End::Well => well = true,
                End::Failed => say(format!("a worker ended with {status}")),
                // Whoever asked for the stop wants no other, however this one ended.
                End::Killed if stopped || stop.load(Ordering::SeqCst) => well = true,
                End::Killed if again < AGAIN => {
                    let again = again + 1;
                    say(format!(
                        "a worker was ended by {status}; it is begun anew ({again} of {AGAIN} times)"
                    ));
                    running.push(Worker { process: begin()?, again });
                }
                End::Killed => say(format!(
                    "a worker was ended by {status}, after {AGAIN} others in its place; it is not begun anew"
                )),
            }
        }
        workers = running;
        if !workers.is_empty() {
            std::thread::sleep(LOOK);
        }
    }
    Ok(well)
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// What is said, and whether any ended well, of workers that run these scripts in turn, the last one
    /// again and again.
    fn said(count: u16, scripts: &[&str], stop: bool) -> (Vec<String>, bool, usize) {
        let (said, mut begun) = (Mutex::new(vec![]), 0);
        let command = || {
            let script = scripts[begun.min(scripts.len() - 1)];
            begun += 1;
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Ok(command)
        };
        let listener = |event: &Event| {
            if let Event::Warning { message } = event {
                said.lock().unwrap().push(message.clone());
            }
        };
        let well = work(count, command, &AtomicBool::new(stop), &listener).unwrap();
        (said.into_inner().unwrap(), well, begun)
    }

    #[test]
    fn a_worker_that_is_killed_is_begun_anew_and_others_are_not() {
        let (lines, well, begun) = said(1, &["kill -KILL $$", "kill -SEGV $$", "exit 0"], false);
        assert!(well && begun == 3 && lines.len() == 2, "{lines:?}");
        assert!(lines[0].contains("begun anew (1 of 10 times)"), "{lines:?}");
        assert!(
            lines[0].contains("signal: 9") && lines[1].contains("(2 of 10 times)"),
            "{lines:?}"
        );
        // An error of its own, and an end that was asked for.
        let (lines, well, begun) = said(1, &["exit 2"], false);
        assert!(!well && begun == 1 && lines[0].contains("exit status: 2"), "{lines:?}");
        for script in ["exit 130", "kill -INT $$", "kill -TERM $$"] {
            assert_eq!(said(1, &[script], false), (vec![], true, 1), "{script}");
        }
        // Of several, one suffices.
        let (lines, well, begun) = said(3, &["exit 1", "exit 0", "exit 1"], false);
        assert!(well && begun == 3 && lines.len() == 2, "{lines:?}");
    }

    #[test]
    fn it_is_begun_anew_so_often_and_not_after_a_stop() {
        let (lines, well, begun) = said(1, &["kill -KILL $$"], false);
        assert!(!well && begun == 11 && lines.len() == 11, "{lines:?}");
        assert!(lines[10].contains("it is not begun anew"), "{lines:?}");
        assert_eq!(said(2, &["read line; kill -KILL $$"], true), (vec![], true, 2));
    }
}
