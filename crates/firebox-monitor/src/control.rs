//! Requests to a run that goes on, as files in its folder: whoever asks makes one, and the run takes
//! each away once.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{Builder, scope};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use firebox_core::{Event, Listener, Request, Requests};

/// Name of the folder of requests within a run's folder.
const CONTROL: &str = "control";
/// Time between two looks into it: soon enough for who waits for an answer, and seldom enough to cost nothing.
const LOOK: Duration = Duration::from_millis(500);

/// Asks the run in `folder` for something. It is done at the end of the step in hand; a run that
/// has ended does nothing, and forgets it when it is gone on with.
///
/// # Errors
///
/// When the request cannot be written.
pub(crate) fn ask(folder: &Path, request: Request) -> std::io::Result<()> {
    let control = folder.join(CONTROL);
    std::fs::create_dir_all(&control)?;
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    // The name says everything, so that making the file is one step. Names sort by time.
    let name = format!("{time:024}.{}.{}", std::process::id(), request.name());
    std::fs::File::create_new(control.join(name)).map(|_| ())
}

/// Takes the requests that are there, oldest first. Each is taken by one reader only: by the one
/// that removed its file.
fn take(folder: &Path) -> Vec<Request> {
    let Ok(entries) = std::fs::read_dir(folder.join(CONTROL)) else { return vec![] };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    let request = |path: &PathBuf| {
        let name = path.extension()?.to_str()?;
        Request::ALL.into_iter().find(|request| request.name() == name)
    };
    let taken = files.iter().filter(|path| std::fs::remove_file(path).is_ok());
    taken.filter_map(request).collect()
}

/// Does the work, and meanwhile passes on what is asked of the run in `folder`. What was asked
/// before it began is forgotten.
pub fn obeying<T>(
    folder: &Path,
    requests: &Requests,
    listener: &dyn Listener,
    work: impl FnOnce() -> T,
) -> T {
    let warn = |message: String| listener.on(&Event::Warning { message });
    let stale = take(folder);
    if !stale.is_empty() {
        let names: Vec<&str> = stale.iter().map(|request| request.name()).collect();
        warn(format!("asked for before this run went on, and forgotten: {}", names.join(", ")));
    }
    scope(|scope| {
        let (stop, stopped) = channel::<()>();
        let thread = Builder::new().name("control".to_owned()).spawn_scoped(scope, move || {
            while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                take(folder).into_iter().for_each(|request| requests.ask(request));
            }
        });
        if let Err(error) = thread {
            warn(format!("the run cannot be paused or told to save: no thread for it: {error}"));
        }
        // Dropped before the scope waits for the thread, also if the work panics.
        let _stop = stop;
        work()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use firebox_core::Silent;

    use super::*;

    #[test]
    fn each_request_is_taken_once_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        assert!(take(folder.path()).is_empty());
        for request in [Request::Save, Request::Pause, Request::Save] {
            ask(folder.path(), request).unwrap();
        }
        std::fs::write(folder.path().join(CONTROL).join("0.unknown"), "").unwrap();
        assert_eq!(take(folder.path()), [Request::Save, Request::Pause, Request::Save]);
        assert!(take(folder.path()).is_empty());
    }

    #[test]
    fn many_readers_take_each_request_once_together() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let taken: usize = scope(|scope| {
            let readers: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..200).map(|_| take(path).len()).sum::<usize>()))
                .collect();
            (0..100).for_each(|_| ask(path, Request::Save).unwrap());
            readers.into_iter().map(|reader| reader.join().unwrap()).sum()
        });
        assert_eq!(taken + take(path).len(), 100);
    }

    #[test]
    fn the_work_sees_what_is_asked_meanwhile_and_nothing_from_before() {
        let folder = tempfile::tempdir().unwrap();
        ask(folder.path(), Request::StopAfterEpoch).unwrap();
        let (requests, said) = (Requests::new(), Mutex::new(vec![]));
        let listener = |event: &Event| said.lock().unwrap().push(event.clone());
        obeying(folder.path(), &requests, &listener, || {
            ask(folder.path(), Request::Pause).unwrap();
            for _ in 0..500 {
                if requests.is_paused() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            panic!("the request did not arrive");
        });
        assert!(!requests.take_stop_after_epoch());
        let said = said.into_inner().unwrap();
        let [Event::Warning { message }] = &said[..] else { panic!("{said:?}") };
        assert!(message.ends_with("forgotten: stop-after-epoch"), "{message}");
        obeying(folder.path(), &requests, &Silent, || ());
    }
}
