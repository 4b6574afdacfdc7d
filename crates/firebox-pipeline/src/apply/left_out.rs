//! What a result says nothing of: series without a window, and steps behind the last window of one.

use firebox_core::{HeldOutWindows, WindowRule, count, quoted};

/// Series that are named where there may be many.
const NAMED: usize = 5;

/// Series of which something is left out.
#[derive(Default)]
pub(super) struct LeftOut {
    /// All that were looked at.
    all: u64,
    /// Those without a window.
    without: Named,
    /// Those that go on behind their last window, where the next one would begin too late.
    cut_short: Named,
    /// Steps behind the last window, of the series that has the most.
    most: usize,
}

/// Series by their number and the first of their names.
#[derive(Default)]
struct Named {
    count: u64,
    names: Vec<String>,
}

impl Named {
    fn add(&mut self, name: &str) {
        self.count += 1;
        if self.names.len() < NAMED {
            self.names.push(name.to_owned());
        }
    }

    /// Their names, if there are any.
    fn said(&self) -> Option<String> {
        let more = if self.count > self.names.len() as u64 { ", …" } else { "" };
        (self.count > 0).then(|| format!("{}{more}", quoted(&self.names, NAMED)))
    }
}

impl LeftOut {
    /// Notes what the windows of some series, of these names, leave out, and returns how many series have a window.
    pub(super) fn look(&mut self, windows: &HeldOutWindows, names: &[String]) -> u64 {
        let mut last = vec![None; names.len()];
        for window in windows.windows() {
            let own = &mut last[window.series as usize];
            *own = (*own).max(Some(window.steps().end));
        }
        for ((series, name), end) in windows.set().series().iter().zip(names).zip(&last) {
            let Some(end) = *end else {
                self.without.add(name);
                continue;
            };
            // What lies behind a gap has no window because it is too short, which is told by the cuts.
            let goes_on = series.segments.last().is_some_and(|segment| segment.start < end);
            let behind = series.len() - end;
            if goes_on && behind > 0 {
                self.cut_short.add(name);
                self.most = self.most.max(behind);
            }
        }
        self.all += names.len() as u64;
        last.iter().flatten().count() as u64
    }

    /// What to tell of it, of windows by this rule.
    pub(super) fn said(&self, rule: &WindowRule) -> Vec<String> {
        let without = self.without.said().map(|names| {
            format!(
                "{} of {} series have no window, and no row in the result ({names}): a window takes {} steps without a gap",
                self.without.count, self.all, rule.length
            )
        });
        // A window of a whole series has no stride, and what is behind it is told with the cuts.
        let cut_short = self.cut_short.said().filter(|_| !rule.whole).map(|names| {
            format!(
                "{} of {} series go on behind their last window, by up to {} ({names}), as windows begin every {} steps: what is newest is in no row of the result; with --stride 1 the last window of each ends at its last step",
                self.cut_short.count,
                self.all,
                count(self.most as u64, "step"),
                rule.stride
            )
        });
        without.into_iter().chain(cut_short).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use firebox_core::{Channel, Role, Series, SeriesSet, unseen};

    use super::*;

    fn said(lengths: &[usize], rule: WindowRule) -> (u64, Vec<String>) {
        let names: Vec<String> = (0..lengths.len()).map(|at| format!("s{at}")).collect();
        let series = lengths.iter().zip(&names).map(|(steps, name)| {
            Series::regular(name.clone(), 0, 60_000_000, vec![1.0; *steps], 1)
        });
        let channels = vec![Channel::new("x", Role::Other)];
        let set = SeriesSet::new(channels, vec![], series.collect()).unwrap();
        let mut left_out = LeftOut::default();
        let windows = unseen(&Arc::new(set), &rule, false).unwrap();
        let have = left_out.look(&windows, &names);
        (have, left_out.said(&rule))
    }

    #[test]
    fn steps_behind_the_last_window_and_series_without_one_are_told() {
        let rule = |stride| WindowRule { length: 10, stride, whole: false };
        // Windows end after 10, 14 and 18 steps.
        let (have, told) = said(&[18, 21, 9, 19], rule(4));
        assert_eq!(have, 3);
        assert_eq!(
            told,
            [
                "1 of 4 series have no window, and no row in the result (`s2`): a window takes 10 steps without a gap",
                "2 of 4 series go on behind their last window, by up to 3 steps (`s1`, `s3`), as windows begin every 4 steps: what is newest is in no row of the result; with --stride 1 the last window of each ends at its last step",
            ]
        );
        assert_eq!(said(&[18, 21], rule(1)), (2, vec![]));
        assert_eq!(said(&[18, 21], WindowRule { whole: true, ..rule(4) }), (2, vec![]));
        let (_, many) = said(&[11; 7], rule(4));
        assert!(many[0].contains("7 of 7") && many[0].contains("1 step (`s0`, "), "{many:?}");
        assert!(many[0].contains("`s4`, …)"), "{many:?}");
    }
}
