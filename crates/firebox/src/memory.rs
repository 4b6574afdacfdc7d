//! The program's allocator: mimalloc, which counts what it gives, and which begins the program anew when
//! a training step or a checkpoint of a run, or a trial of a search, has too little memory. What a run does then,
//! such as smaller parts, is decided in firebox-train; what becomes of trials, in firebox-pipeline.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

use firebox_pipeline::memory;
use mimalloc::MiMalloc;

/// Smaller allocations are not counted: no step lives from them, and there are many.
const COUNTED: usize = 1024;

/// mimalloc, counting.
pub(crate) struct Counting;

/// Lets the allocator keep freed memory until the process ends: a training step takes what the one
/// before gave up, without a page fault (5 % of a step of 600 ms, measured).
pub(crate) fn keep() {
    /// `mi_option_purge_delay` of mimalloc.h: milliseconds, or -1 for never.
    const PURGE_DELAY: std::ffi::c_int = 15;
    unsafe extern "C" {
        fn mi_option_set(option: std::ffi::c_int, value: std::ffi::c_long);
    }
    // SAFETY: a function of the linked allocator that stores a number, whatever it is.
    unsafe { mi_option_set(PURGE_DELAY, -1) };
}

/// Begins the program anew, once, where its memory is limited, with an allocator that takes little at a time. By itself it
/// takes 1 GiB at once, or 128 MiB, which count against the limit whether they are used or not and leave nothing for
/// stacks of threads and mapped files. It takes the first before `main`, so that its environment alone can say so.
///
/// Under any limit, it shows no backtraces: to read the program's symbols takes more memory than is left where some was
/// refused, and the standard library, which holds a lock meanwhile, waits for it to tell of that, for ever.
#[cfg(target_os = "linux")]
pub(crate) fn take_little_at_a_time() {
    use std::os::unix::process::CommandExt;
    /// mimalloc's own: the least that it takes at once.
    const RESERVE: (&str, &str) = ("MIMALLOC_ARENA_RESERVE", "32MiB");
    /// glibc's own, which libraries in C use: each thread that first asks for memory there takes 64 MiB of addresses.
    const ARENAS: (&str, &str) = ("MALLOC_ARENA_MAX", "1");
    /// The standard library's own: a panic tells what went wrong alone.
    const BACKTRACE: (&str, &str) = ("RUST_BACKTRACE", "0");
    let Some(limit) = firebox_pipeline::memory_limit() else { return };
    // What the user set of the allocator stays.
    let is_unset = |(name, _): &(&str, &str)| std::env::var_os(name).is_none();
    let little = [RESERVE, ARENAS].into_iter().filter(|own| is_low(limit) && is_unset(own));
    let is_shown = std::env::var_os(BACKTRACE.0).is_some_and(|value| value != BACKTRACE.1);
    let variables: Vec<_> = little.chain(is_shown.then_some(BACKTRACE)).collect();
    if variables.is_empty() {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let mut anew = std::process::Command::new(program);
    // Returns only if it fails; the program then goes on as it is.
    anew.arg0(name).args(arguments).envs(variables);
    let _ = anew.exec();
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn take_little_at_a_time() {}

/// Whether a limit is so low that what the allocator takes at once is much of it, and not so low that the least is.
#[cfg(target_os = "linux")]
fn is_low(limit: u64) -> bool {
    /// Bytes: four times the least, below which runs end that do with what the allocator tries by itself (measured).
    const LEAST: u64 = 128 << 20;
    const LOW: u64 = 8 << 30;
    (LEAST..LOW).contains(&limit)
}

fn took(bytes: usize) {
    if bytes >= COUNTED && !memory::took(bytes) {
        begin_anew(bytes);
    }
}

fn gave(bytes: usize) {
    if bytes >= COUNTED {
        memory::gave(bytes);
    }
}

// SAFETY: every block is mimalloc's, asked for and given back with the same layout; what is done
// besides is counting, which neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller's promise is mimalloc's condition.
        let block = unsafe { MiMalloc.alloc(layout) };
        if block.is_null() {
            refused(layout.size());
        }
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: as above.
        let block = unsafe { MiMalloc.alloc_zeroed(layout) };
        if block.is_null() {
            refused(layout.size());
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        gave(layout.size());
        // SAFETY: as above; the block is mimalloc's.
        unsafe { MiMalloc.dealloc(block, layout) };
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        took(size);
        // SAFETY: as above.
        let moved = unsafe { MiMalloc.realloc(block, layout, size) };
        if moved.is_null() {
            refused(size);
        } else {
            gave(layout.size());
        }
        moved
    }
}

/// What was counted was not given.
fn refused(bytes: usize) {
    gave(bytes);
    REFUSED.set(true);
    begin_anew(bytes);
}

thread_local! {
    /// Whether an allocation of this thread has failed. Nothing is run to make or to drop it, so that allocations and
    /// handlers of signals may look at it.
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}

#[cfg(not(unix))]
fn begin_anew(_: usize) {}

#[cfg(unix)]
use restart::begin_anew;
#[cfg(unix)]
pub(crate) use restart::{
    begin_anew_after, begin_anew_without, begin_worker_anew, end_with, heed_group,
};

/// Beginning the program anew, from within an allocation that failed: with what was prepared while
/// there was memory.
#[cfg(unix)]
mod restart {
    use std::ffi::{CString, OsString, c_char, c_int};
    use std::os::unix::ffi::OsStringExt;
    use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
    use std::sync::{Arc, OnceLock};
    use std::time::Duration;

    use firebox_pipeline::{PipelineError, being_read, memory};

    use super::REFUSED;
    use crate::error;
    use crate::terminal::LogFormat;

    /// Strings that are never freed, and a null at the end.
    struct Strings(Vec<*const c_char>);

    struct Anew {
        program: CString,
        arguments: Strings,
        environment: Strings,
        /// Of a search.
        worker: Option<Worker>,
    }

    struct Worker {
        /// The argument with the trials in hand, from its value on.
        note: &'static [AtomicU8],
        /// Whether it was asked to stop.
        stop: Arc<AtomicBool>,
    }

    // SAFETY: the pointers lead to strings that are never freed, and changed through atomics alone.
    unsafe impl Send for Strings {}
    // SAFETY: as above.
    unsafe impl Sync for Strings {}

    static ANEW: OnceLock<Anew> = OnceLock::new();
    /// Whether a thread is about to begin anew.
    static BEGINS: AtomicBool = AtomicBool::new(false);

    impl Strings {
        /// `None` if one of them has a zero within.
        fn of(texts: impl Iterator<Item = OsString>) -> Option<Self> {
            let texts: Result<Vec<CString>, _> =
                texts.map(|text| CString::new(text.into_vec())).collect();
            let pointers = texts.ok()?.into_iter().map(|text| text.into_raw().cast_const());
            Some(Self(pointers.chain([std::ptr::null()]).collect()))
        }
    }

    /// From now on, a training step without memory begins the program anew with the same arguments.
    /// Where its control group has a limit, a step that comes near it counts as one without memory.
    pub(crate) fn begin_anew_without() {
        let environment = variables(std::env::vars_os());
        prepare(Strings::of(std::env::args_os()), Strings::of(environment), None);
    }

    /// From now on, a trial without memory begins the program anew with these arguments, this variable
    /// beside those that there are, and at the end an argument of this name with a
    /// [`memory::Shortage`]. `stop` says whether the worker was asked to stop.
    pub(crate) fn begin_worker_anew(
        arguments: Vec<OsString>,
        variable: (OsString, OsString),
        name: &str,
        stop: &Arc<AtomicBool>,
    ) {
        let Some(mut arguments) = Strings::of(arguments.into_iter()) else { return };
        let head = format!("{name}=");
        let room = std::iter::repeat_n(0, memory::NOTE_BYTES);
        let text = head.bytes().chain(room).map(AtomicU8::new).collect::<Vec<_>>();
        let text: &'static [AtomicU8] = text.leak();
        let end = arguments.0.len().saturating_sub(1);
        arguments.0.insert(end, text.as_ptr().cast());
        let others = std::env::vars_os().filter(|(name, _)| *name != variable.0);
        let environment = variables(others.chain([variable.clone()]));
        let worker = Worker { note: &text[head.len()..], stop: Arc::clone(stop) };
        prepare(Some(arguments), Strings::of(environment), Some(worker));
    }

    fn variables(
        variables: impl Iterator<Item = (OsString, OsString)>,
    ) -> impl Iterator<Item = OsString> {
        variables.map(|(mut variable, value)| {
            variable.push("=");
            variable.push(value);
            variable
        })
    }

    fn prepare(arguments: Option<Strings>, environment: Option<Strings>, worker: Option<Worker>) {
        let Ok(program) = std::env::current_exe() else { return };
        let Ok(program) = CString::new(program.into_os_string().into_vec()) else { return };
        let (Some(arguments), Some(environment)) = (arguments, environment) else { return };
        heed_group();
        let _ = ANEW.set(Anew { program, arguments, environment, worker });
    }

    /// From now on, what this process may hold ends before the limit of its control group, and before what others of the
    /// group hold now.
    pub(crate) fn heed_group() {
        if let Some(limit) = memory::group_leaves() {
            memory::limit_to(limit);
        }
    }

    unsafe extern "C" {
        fn execve(
            path: *const c_char,
            arguments: *const *const c_char,
            environment: *const *const c_char,
        ) -> c_int;
    }

    impl Anew {
        /// Returns only if it fails.
        fn begin(&self) {
            let (arguments, environment) = (self.arguments.0.as_ptr(), self.environment.0.as_ptr());
            // SAFETY: a string and lists of strings, each with its end, that outlive the call. It
            // allocates nothing in this process; if it fails, the caller goes on as if it were not here.
            unsafe { execve(self.program.as_ptr(), arguments, environment) };
        }
    }

    /// What ends the program where memory is refused, ready to be written.
    struct Ending {
        plain: String,
        /// The same while a file is read: what stands before its name, and behind it.
        reading: [String; 2],
    }

    impl Ending {
        fn of(text: &str, log: LogFormat) -> Self {
            const NAME: &str = "FILE-BEING-READ";
            let rendered = |text: String| error::rendered(&anyhow::Error::msg(text), log) + "\n";
            let reading = rendered(format!(
                "{text}\n  it was refused while `{NAME}` was read, or a file beside it: a damaged one asks for more than there is in it; write or fetch it anew if it is not large"
            ));
            let (before, behind) = reading.split_once(NAME).unwrap_or_default();
            Self {
                plain: rendered(text.to_owned()),
                reading: [before.to_owned(), behind.to_owned()],
            }
        }
    }

    /// From now on, an allocation that fails where the program does not begin anew ends it with this error, which names the
    /// file that is being read, and the exit status 1, after the one line that Rust has for it.
    pub(crate) fn end_with(text: &str, log: LogFormat) {
        static ENDING: OnceLock<Ending> = OnceLock::new();
        /// `SIGABRT` on every Unix.
        const ABORT: c_int = 6;
        unsafe extern "C" {
            fn write(file: c_int, bytes: *const u8, count: usize) -> isize;
            fn _exit(status: c_int) -> !;
        }
        /// Of any other abort, it returns, and the process ends as it would.
        extern "C" fn aborted(_: c_int) {
            let (true, Some(ending)) = (REFUSED.get(), ENDING.get()) else { return };
            let Ending { plain, reading: [before, behind] } = ending;
            let mut name = [0u8; 1024];
            let put = |length: usize, (place, byte): (&mut u8, u8)| {
                *place = byte;
                length + 1
            };
            let length = name.iter_mut().zip(being_read()).fold(0, put);
            let parts: [&[u8]; 3] = match length {
                0 => [plain.as_bytes(), &[], &[]],
                _ => [before.as_bytes(), &name[..length], behind.as_bytes()],
            };
            for part in parts {
                // SAFETY: the call is allowed in a handler of signals, and the bytes outlive it.
                unsafe { write(2, part.as_ptr(), part.len()) };
            }
            // SAFETY: as above.
            unsafe { _exit(1) }
        }
        if ENDING.set(Ending::of(text, log)).is_ok() {
            // SAFETY: the handler neither allocates nor takes a lock.
            unsafe { crate::signal(ABORT, aborted as *const () as usize) };
        }
    }

    /// Begins anew after an error of a run that then goes on with less memory; returns after any other.
    pub(crate) fn begin_anew_after(error: &PipelineError) {
        if let Some(anew) = ANEW.get().filter(|_| error.begins_anew()) {
            anew.begin();
        }
    }

    /// Notes the step or the trials in hand and begins anew, if there are any; else returns.
    pub(super) fn begin_anew(bytes: usize) {
        let Some(anew) = ANEW.get() else { return };
        if anew.worker.is_none() && !memory::is_in_step() {
            return;
        }
        // One writes the note; the others end with this process, or go on when it could not be left.
        while BEGINS.swap(true, Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let noted = match &anew.worker {
            None => memory::ran_out(bytes),
            Some(worker) => {
                memory::note_trials(bytes, worker.stop.load(Ordering::SeqCst), worker.note)
            }
        };
        if noted {
            anew.begin();
        }
        BEGINS.store(false, Ordering::SeqCst);
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_file_that_is_being_read_is_named_where_memory_is_refused() {
            let of = |log| {
                let text = "memory was refused\n  give it more";
                let Ending { plain, reading: [before, behind] } = Ending::of(text, log);
                (plain, format!("{before}a.parquet{behind}"))
            };
            let named = "it was refused while `a.parquet` was read, or a file beside it: ";
            let (plain, reading) = of(LogFormat::Text);
            assert_eq!(plain, "error: memory was refused\n  give it more\n");
            assert!(reading.starts_with(&format!("{plain}  {named}")), "{reading}");
            let (_, reading) = of(LogFormat::Json);
            let read: serde_json::Value = serde_json::from_str(&reading).unwrap();
            assert!(read["hint"].as_str().unwrap().contains(named), "{reading}");
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_limit_on_memory_is_low_or_none() {
        assert!(is_low(409_600_000) && !is_low(92_160_000));
        assert!(!is_low(68_719_476_736));
    }
}
