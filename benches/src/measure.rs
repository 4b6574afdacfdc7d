//! Times a case several times and prints what it did per second.

use std::time::Instant;

use anyhow::ensure;

/// Runs of each case unless `RUNS` says another number; the median is printed, so that a disturbed run does
/// not count.
const RUNS: usize = 7;

/// What one run of a case worked through.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    /// Rows: bars, windows or records, as the case's name says.
    pub(crate) rows: usize,
    /// Bytes of the rows in the form that the case reads or makes.
    pub(crate) bytes: usize,
    /// A number that the same work in another program must give too.
    pub(crate) check: f64,
}

/// Runs `case` and prints its median time. `prepare` makes what it needs, which lasts until the time is taken:
/// neither its begin nor its end is timed.
pub(crate) fn case<T>(
    name: &str,
    mut prepare: impl FnMut() -> anyhow::Result<T>,
    mut run: impl FnMut(&T) -> anyhow::Result<Work>,
) -> anyhow::Result<()> {
    let runs = std::env::var("RUNS").map_or(Ok(RUNS), |runs| runs.parse())?;
    ensure!(runs > 0, "RUNS is at least 1");
    let mut seconds = Vec::with_capacity(runs);
    let mut work = None;
    for _ in 0..runs {
        let input = prepare()?;
        let start = Instant::now();
        work = Some(run(&input)?);
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_unstable_by(f64::total_cmp);
    let (median, best) = ((seconds[(runs - 1) / 2] + seconds[runs / 2]) / 2.0, seconds[0]);
    if let Some(work) = work {
        print(name, [median, best], work);
    }
    Ok(())
}

/// The line of a case, with its median and its best time in seconds.
pub(crate) fn print(name: &str, [seconds, best]: [f64; 2], work: Work) {
    let Work { rows, bytes, check } = work;
    let line = serde_json::json!({
        "case": name, "seconds": seconds, "best": best,
        "rows": rows, "bytes": bytes, "check": check,
    });
    println!("{line}");
}
