//! What is told of data, whether they were read now or by an earlier run.

use firebox_core::{Event, Listener};

use crate::{Checks, DataConfig, time};

/// The end of 1970.
const EARLIEST: i64 = 31_536_000_000_000;

/// What to know of data that was read, now or by an earlier run.
pub(crate) fn warn_of(listener: &dyn Listener, config: &DataConfig, checks: &Checks) {
    warn_of_unit(listener, config, checks);
    warn_of_lost(listener, checks);
    warn_of_missing(listener, checks);
}

/// Texts that would have been read as missing values.
fn warn_of_missing(listener: &dyn Listener, checks: &Checks) {
    let nowhere = &checks.missing_nowhere;
    if !nowhere.is_empty() {
        warn(
            listener,
            format!(
                "`data.csv.missing` names what no cell of the files is: {}; texts are compared as they stand there (-9999 is not -9999.0): correct them, or leave them out",
                crate::error::List(nowhere)
            ),
        );
    }
}

/// Numbers of a finer unit than the declared one end up far in the future, which is refused; those of a coarser one
/// end up in 1970, as do clocks that begin with a device.
fn warn_of_unit(listener: &dyn Listener, config: &DataConfig, checks: &Checks) {
    let unit = config.columns.time_unit;
    let is_declared = unit != crate::TimeUnit::Auto;
    let early = |[first, last]: &[i64; 2]| is_declared && *first > 0 && *last < EARLIEST;
    let Some([first, last]) = checks.span.filter(early) else { return };
    if let Some(likely) = time::likely_unit(time::in_units(first, unit)) {
        let [first, last] = [first, last].map(time::format);
        warn(
            listener,
            format!(
                "all times lie in 1970, from {first} to {last}: check `data.columns.time_unit`; `time_unit = \"{likely}\"` would be likely"
            ),
        );
    }
}

/// Series of which timeframes left nothing.
fn warn_of_lost(listener: &dyn Listener, checks: &Checks) {
    let lost = checks.timeframes.as_ref().map_or(&[][..], |made| &made.lost_series);
    if !lost.is_empty() {
        warn(
            listener,
            format!(
                "nothing is left of {} series after the warm-up of the indicators, and they are not used: {}",
                lost.len(),
                crate::error::List(lost)
            ),
        );
    }
}

pub(crate) fn warn(listener: &dyn Listener, message: String) {
    listener.on(&Event::Warning { message });
}
