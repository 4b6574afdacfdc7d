//! What the load average of the machine says of times that were taken meanwhile.

use std::path::Path;

use firebox_core::count;

/// Load below which a machine is quiet.
const QUIET: f64 = 0.5;

/// The load average of the last minute, all processes together; Linux alone says it. It counts tasks that compute,
/// that wait for a processor, and that wait for a disk.
pub(crate) fn now() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// What the load averages of before and after say of the times, if other work may have held them up. Of the second, an
/// examination itself is as much as it has threads that compute, and one that loads.
pub(crate) fn other_work(
    (before, after): (f64, Option<f64>),
    own: usize,
    threads: usize,
) -> Option<String> {
    let share = own as f64 + 1.0;
    let others = after.map_or(0.0, |after| after - share);
    let grown = after.filter(|_| others > before.max(0.0) + QUIET);
    let worst = grown.map_or(before, |_| others);
    let believed = believed(worst, threads)?;
    let grew = grown.map_or(String::new(), |after| {
        format!(
            ", it grew to {after:.1} until the end (up to {share:.0} of it is this examination)"
        )
    });
    let threads = count(threads as u64, "thread");
    Some(format!(
        "a quiet machine: its load average was {before:.1} when this began{grew}, and the process may use {threads}: {believed}"
    ))
}

/// Threads that this process may use.
pub(crate) fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What the load average says of steps that are measured from now on and whose answer is kept in this file, to be put
/// behind a sentence; empty on a quiet machine.
pub(crate) fn noted_now(entry: &Path) -> String {
    match now().and_then(|before| noted(before, available_threads())) {
        Some(noted) => format!("; {noted} (remove `{}` to measure anew)", entry.display()),
        None => String::new(),
    }
}

/// What the load average of before says of steps that were measured then, in a clause.
fn noted(before: f64, threads: usize) -> Option<String> {
    let believed = believed(before, threads)?;
    let threads = count(threads as u64, "thread");
    Some(format!("the load average was {before:.1} before, of {threads}: {believed}"))
}

/// How far times are believed at this load; none where it is quiet.
fn believed(load: f64, threads: usize) -> Option<&'static str> {
    match load {
        load if load <= QUIET => None,
        load if load < threads as f64 => Some("other work may have slowed the steps down"),
        _ => Some("times are not to be trusted"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_average_is_told_as_one() {
        let of = |before, after| other_work((before, after), 2, 2);
        assert_eq!(of(0.4, None), None);
        let said = of(165.0, None).unwrap();
        assert_eq!(
            said,
            "a quiet machine: its load average was 165.0 when this began, and the process may use 2 threads: times are not to be trusted"
        );
        assert_eq!(noted(0.4, 2), None);
        let said = "the load average was 6.5 before, of 2 threads: times are not to be trusted";
        assert_eq!(noted(6.5, 2).as_deref(), Some(said));
        let said = of(0.8, Some(0.8)).unwrap();
        assert!(said.ends_with("2 threads: other work may have slowed the steps down"), "{said}");
    }

    #[test]
    fn a_load_that_grew_is_told_and_an_examination_is_no_other_work() {
        let of = |before, after| other_work((before, Some(after)), 2, 2);
        // Two threads that compute, and one that loads.
        assert_eq!(of(0.1, 3.2), None);
        let said = of(0.1, 4.2).unwrap();
        assert_eq!(
            said,
            "a quiet machine: its load average was 0.1 when this began, it grew to 4.2 until the end (up to 3 of it is this examination), and the process may use 2 threads: other work may have slowed the steps down"
        );
        assert!(of(0.1, 9.0).unwrap().ends_with("times are not to be trusted"));
        // What was there before went on.
        assert!(!of(1.0, 4.0).unwrap().contains("grew"));
        assert!(of(1.0, 6.0).unwrap().contains("grew to 6.0"));
    }

    #[test]
    fn linux_says_its_load() {
        if cfg!(target_os = "linux") {
            assert!(now().unwrap() >= 0.0);
        }
    }
}
