//! Values that `data.checks` put in, and that nobody measured.

use firebox_core::{Labels, Role, SeriesSet};
use firebox_data::Checks;

/// Share of the steps from which on it is told that they were put in, whatever is made of them. A choice.
const MANY: f64 = 0.1;

/// Share of the values up to which windows lose their classes by too few of them to be told of. A choice.
const FEW: f64 = 0.001;

/// What is said where windows have no class because of such values.
pub(crate) fn in_labels(labels: &Labels, set: &SeriesSet) -> Option<String> {
    if !matches!(labels, Labels::Forward { .. } | Labels::Return { .. }) {
        return None;
    }
    let channel = set.role(Role::Close).or_else(|| set.role(Role::Return))?;
    let name = &set.channels()[channel].name;
    let filled: usize = set.series().iter().map(|series| series.filled.count(channel)).sum();
    let share = filled as f64 / set.steps().max(1) as f64;
    (share > FEW).then(|| {
        format!(
            "{filled} of {} values of `{name}` ({:.1} %) were put in by `data.checks`: windows whose class would be made of one of them have none",
            set.steps(),
            100.0 * share
        )
    })
}

/// What is said of many steps that were put in, where a window takes `needed` with what its label or targets look at.
pub(crate) fn in_steps(checks: &Checks, needed: usize) -> Option<String> {
    let filled: u64 = checks.by_series.iter().map(|series| series.steps_filled).sum();
    let share = filled as f64 / checks.steps.max(1) as f64;
    (share >= MANY).then(|| {
        format!(
            "{:.0} % of all steps were not measured: `data.checks.gaps` put {filled} of {} in, which repeat what came before\n  {}",
            100.0 * share,
            checks.steps,
            without_filling(checks, filled, needed)
        )
    })
}

/// What to do in place of filling so many steps: a split that leaves runs in which hardly a window fits is no way out.
fn without_filling(checks: &Checks, filled: u64, needed: usize) -> String {
    let gaps: u64 = checks.by_series.iter().map(|series| series.gaps).sum();
    let runs = (checks.series + gaps).max(1);
    let run = checks.steps.saturating_sub(filled) as f64 / runs as f64;
    if run >= needed as f64 {
        return "set data.checks.gaps = \"split\", or a smaller data.checks.longest_fill, to learn from what was measured".to_owned();
    }
    format!(
        "where nothing is traded or measured in the gaps, as on weekends, leave the column of times out of the files, which numbers the rows: a split would leave runs of {run:.1} steps in the mean, and a window takes {needed}"
    )
}

#[cfg(test)]
mod tests {
    use firebox_core::{Channel, Series};
    use firebox_data::SeriesChecks;

    use super::*;

    #[test]
    fn classes_that_are_not_made_and_many_steps_are_told_of() {
        let set = |role, filled: usize| {
            let mut series = Series::regular("s", 0, 1, vec![0.5; 4000], 1);
            series.filled.add(0, 40..40 + filled);
            SeriesSet::new(vec![Channel::new("x", role)], vec![], vec![series]).unwrap()
        };
        let labels = Labels::Return { horizon: 1, threshold: 0.0 };
        let said = in_labels(&labels, &set(Role::Close, 28)).unwrap();
        assert!(said.starts_with("28 of 4000 values of `x` (0.7 %) were put in"), "{said}");
        assert!(in_labels(&labels, &set(Role::Return, 28)).is_some());
        assert_eq!(in_labels(&Labels::Last, &set(Role::Close, 28)), None);
        assert_eq!(in_labels(&labels, &set(Role::Close, 4)), None);
        assert_eq!(in_labels(&labels, &set(Role::Other, 28)), None);
        let checks = |steps_filled| Checks {
            steps: 1000,
            by_series: vec![SeriesChecks { steps_filled, ..SeriesChecks::default() }],
            ..Checks::default()
        };
        assert_eq!(in_steps(&checks(99), 8), None);
        let said = in_steps(&checks(990), 8).unwrap();
        assert!(said.starts_with("99 % of all steps were not"), "{said}");
        assert!(said.contains("set data.checks.gaps = \"split\""), "{said}");
        // Two hundred weeks of five days, whose weekends are filled: runs of five are no windows.
        let (steps_filled, gaps) = (398, 199);
        let weeks = Checks {
            steps: 1398,
            series: 1,
            by_series: vec![SeriesChecks { steps_filled, gaps, ..SeriesChecks::default() }],
            ..Checks::default()
        };
        let said = in_steps(&weeks, 32).unwrap();
        assert!(!said.contains("\"split\"") && said.contains("runs of 5.0 steps"), "{said}");
        assert!(said.contains("leave the column of times out of the files"), "{said}");
        assert!(in_steps(&weeks, 5).unwrap().contains("\"split\""));
    }
}
