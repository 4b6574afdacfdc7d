//! What a step costs.

use std::time::Instant;

#[path = "../../tests/support/counting.rs"]
mod counting;

/// Peak of the bytes held, in MiB, and the median of the milliseconds of a step.
pub(crate) fn measure(step: impl Fn()) -> (f64, f64) {
    let mut times: Vec<f64> = vec![];
    let held = counting::peak(|| {
        for _ in 0..5 {
            let start = Instant::now();
            step();
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    });
    times.sort_by(f64::total_cmp);
    (held as f64 / f64::from(1 << 20), times[2])
}
