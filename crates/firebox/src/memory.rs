//! The program's allocator: mimalloc, which counts what it gives, and which in a run begins the
//! program anew when a training step has too little memory. What the run does then, in smaller parts,
//! is decided in firebox-train.

use std::alloc::{GlobalAlloc, Layout};

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
    begin_anew(bytes);
}

#[cfg(not(unix))]
fn begin_anew(_: usize) {}

#[cfg(unix)]
use restart::begin_anew;
#[cfg(unix)]
pub(crate) use restart::begin_anew_without;

/// Beginning the program anew, from within an allocation that failed: with what was prepared while
/// there was memory.
#[cfg(unix)]
mod restart {
    use std::ffi::{CString, c_char, c_int};
    use std::os::unix::ffi::OsStringExt;
    use std::path::Path;
    use std::sync::OnceLock;

    use firebox_pipeline::memory;

    /// The part of a control group's memory that may be held. The rest is for the program itself, for
    /// pages that the allocator keeps, and for files in use; beyond the limit the system kills without
    /// a word.
    const SHARE_OF_GROUP: f64 = 0.85;

    struct Anew {
        program: CString,
        /// Pointers into strings that are never freed, and a null at the end.
        arguments: Vec<*const c_char>,
    }

    // SAFETY: the pointers lead to strings that are never freed nor changed.
    unsafe impl Send for Anew {}
    // SAFETY: as above.
    unsafe impl Sync for Anew {}

    static ANEW: OnceLock<Anew> = OnceLock::new();

    /// From now on, a training step without memory begins the program anew with the same arguments.
    /// Where its control group has a limit, a step that comes near it counts as one without memory.
    pub(crate) fn begin_anew_without() {
        let Ok(program) = std::env::current_exe() else { return };
        let Ok(program) = CString::new(program.into_os_string().into_vec()) else { return };
        let arguments: Result<Vec<CString>, _> =
            std::env::args_os().map(|argument| CString::new(argument.into_vec())).collect();
        let Ok(arguments) = arguments else { return };
        let pointers = arguments.into_iter().map(|argument| argument.into_raw().cast_const());
        let arguments = pointers.chain([std::ptr::null()]).collect();
        if let Some(limit) = limit_of_group() {
            memory::limit_to((limit as f64 * SHARE_OF_GROUP) as u64);
        }
        let _ = ANEW.set(Anew { program, arguments });
    }

    /// Notes the step in hand and begins anew, if there is one; else returns.
    pub(super) fn begin_anew(bytes: usize) {
        unsafe extern "C" {
            fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
        }
        let Some(anew) = ANEW.get().filter(|_| memory::is_in_step()) else { return };
        if memory::ran_out(bytes) {
            // SAFETY: a string and a list of strings, each with its end, that outlive the call. It
            // allocates nothing in this process, and returns only if it fails: the caller then goes
            // on as if it were not here.
            unsafe { execv(anew.program.as_ptr(), anew.arguments.as_ptr()) };
        }
    }

    /// The smallest limit on the memory of this process's control group and those around it, in bytes.
    fn limit_of_group() -> Option<u64> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let limits = groups.lines().filter_map(|line| {
            // The second version has one hierarchy, without a name; the first has one for memory.
            let (root, own, file) = match line.split_once("::/") {
                Some((_, own)) => ("/sys/fs/cgroup", own, "memory.max"),
                None => {
                    let (_, own) = line.split_once(":memory:/")?;
                    ("/sys/fs/cgroup/memory", own, "memory.limit_in_bytes")
                }
            };
            let own = Path::new(root).join(own);
            let around = own.ancestors().take_while(|group| group.starts_with(root));
            // Without a limit, the one says `max` and the other more than there is.
            let limit = |group: &Path| {
                std::fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok()
            };
            around.filter_map(limit).min()
        });
        limits.min()
    }
}
