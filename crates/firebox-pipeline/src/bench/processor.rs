//! Processor time and page faults of this process, and what Linux alone tells of it: the processor
//! time of its threads, and its largest memory. What the system does not tell is not known.

use std::time::Duration;

/// Processor time of this process with every thread that it had.
#[cfg(unix)]
pub(super) fn process() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `time` alone, which outlives it.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) } == 0;
    let (seconds, rest) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    done.then(|| Duration::new(seconds, rest))
}

/// Nothing is known elsewhere.
#[cfg(not(unix))]
pub(super) fn process() -> Option<Duration> {
    None
}

/// Page faults of this process so far: those that memory served, and those that a disk did.
#[cfg(unix)]
pub(super) fn page_faults() -> Option<[u64; 2]> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call writes to `usage` alone, which outlives it.
    let done = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } == 0;
    // SAFETY: a structure of integers, all of which are zero where nothing was written.
    let usage = unsafe { usage.assume_init() };
    let faults = [u64::try_from(usage.ru_minflt).ok()?, u64::try_from(usage.ru_majflt).ok()?];
    done.then_some(faults)
}

/// Nothing is known elsewhere.
#[cfg(not(unix))]
pub(super) fn page_faults() -> Option<[u64; 2]> {
    None
}

/// Processor time of the threads that live and whose name, of 15 bytes at most, is one of these. The system
/// adds to it some hundred times a second: between two readings that are closer, there may be none.
pub(super) fn busy_of(wanted: impl Fn(&str) -> bool) -> Option<Duration> {
    let mut nanoseconds = 0;
    for task in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if !wanted(name.trim_end()) {
            continue;
        }
        // A thread that has just ended has no time to tell.
        let Ok(text) = std::fs::read_to_string(task.path().join("schedstat")) else { continue };
        nanoseconds += text.split(' ').next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(nanoseconds))
}

/// The largest resident memory so far, MiB.
pub(super) fn peak_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn time_is_told_of_the_threads_that_are_asked_for() {
        let spin = || {
            let own = || busy_of(|name| name == "spinner");
            let start = Instant::now();
            // The thread itself asks: it lives. A machine that is shared gives it time at some moment.
            while own() < Some(Duration::from_millis(20)) && start.elapsed().as_secs() < 60 {
                (0..100_000).for_each(|_| std::hint::spin_loop());
            }
            (own(), busy_of(|name| name == "nobody"))
        };
        let thread = std::thread::Builder::new().name("spinner".to_owned()).spawn(spin).unwrap();
        let (own, nobody) = thread.join().unwrap();
        assert!(own.unwrap() >= Duration::from_millis(20), "{own:?}");
        assert_eq!(nobody, Some(Duration::ZERO));
        assert!(peak_mib().unwrap() > 1.0);
        // The thread is gone, and its time is not.
        assert!(process().unwrap() >= Duration::from_millis(20), "{:?}", process());
    }

    #[test]
    fn fresh_memory_that_is_written_to_is_counted_as_page_faults() {
        // More than any allocator keeps, and than a large page.
        let [before, _] = page_faults().unwrap();
        let fresh = std::hint::black_box(vec![1_u8; 64 << 20]);
        let [after, _] = page_faults().unwrap();
        assert!(after > before && fresh.len() == 64 << 20, "{before} {after}");
    }
}
