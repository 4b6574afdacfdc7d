//! Series of which only the beginning, or the end, is a window: how many there are, and the longest.

use firebox_core::{SeriesSet, WindowRule};

/// What was seen of series that give one window each.
pub(crate) struct Cut {
    rule: WindowRule,
    /// Steps after a window that its label or targets look at.
    horizon: usize,
    /// Whether the window is of the last steps.
    latest: bool,
    cut: u64,
    all: u64,
    /// Steps and name of the longest.
    longest: (usize, String),
}

impl Cut {
    pub(crate) fn new(rule: WindowRule, horizon: usize) -> Self {
        Self { rule, horizon, latest: false, cut: 0, all: 0, longest: (0, String::new()) }
    }

    /// The same of windows of the last steps, which forecasts go on from.
    pub(crate) fn latest(self, latest: bool) -> Self {
        Self { latest, ..self }
    }

    /// Looks at the series of a set.
    pub(crate) fn look(&mut self, set: &SeriesSet) {
        if !self.rule.whole {
            return;
        }
        for series in set.series() {
            let steps = series.len();
            self.all += 1;
            self.cut += u64::from(steps > self.rule.length.saturating_add(self.horizon));
            if steps > self.longest.0 {
                self.longest = (steps, series.name.clone());
            }
        }
    }

    /// What is to be said of them, if any was cut.
    pub(crate) fn said(&self) -> Option<String> {
        let (steps, name) = &self.longest;
        let (is, all) = (if self.cut == 1 { "is" } else { "are" }, self.all);
        let beyond = if self.latest { "before" } else { "after" };
        (self.cut > 0).then(|| {
            format!(
                "{} of {all} series {is} longer than the {} steps of a window, and what comes {beyond} them is not seen (the longest, `{name}`, has {steps} steps)",
                self.cut, self.rule.length
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use firebox_core::{Channel, Role, Series};

    use super::*;

    #[test]
    fn series_that_are_cut_are_counted_with_the_longest() {
        let series = |steps: usize| Series::regular(format!("s{steps}"), 0, 1, vec![1.0; steps], 1);
        let said = |whole, horizon, lengths: &[usize]| {
            let mut cut = Cut::new(WindowRule { length: 10, stride: 1, whole }, horizon);
            let channels = vec![Channel::new("load", Role::Other)];
            for lengths in lengths.chunks(2) {
                let series = lengths.iter().map(|steps| series(*steps)).collect();
                cut.look(&SeriesSet::new(channels.clone(), vec![], series).unwrap());
            }
            cut.said()
        };
        assert_eq!(said(true, 0, &[3, 10, 7]), None);
        assert_eq!(said(false, 0, &[3, 100]), None);
        assert_eq!(said(true, 2, &[3, 12]), None);
        assert_eq!(
            said(true, 0, &[3, 12, 11, 90, 10]).unwrap(),
            "3 of 5 series are longer than the 10 steps of a window, and what comes after them is not seen (the longest, `s90`, has 90 steps)"
        );
        assert!(said(true, 2, &[13, 12]).unwrap().starts_with("1 of 2 series is longer"));
        let rule = WindowRule { length: 10, stride: 1, whole: true };
        let mut cut = Cut::new(rule, 0).latest(true);
        let channels = vec![Channel::new("load", Role::Other)];
        cut.look(&SeriesSet::new(channels, vec![], vec![series(12)]).unwrap());
        let said = cut.said().unwrap();
        assert!(said.contains("of a window, and what comes before them is not seen"), "{said}");
    }
}
