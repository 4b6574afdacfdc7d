//! Values that `data.checks` put in, and that nobody measured. Which ones they are is not kept; how many is.

use firebox_core::{Labels, Role, SeriesSet};
use firebox_data::Checks;

/// Share of the steps from which on it is told that they were put in, whatever is made of them. A choice.
const MANY: f64 = 0.1;

/// Share of the values up to which classes are made of too few of them to be told of. A choice.
const FEW: f64 = 0.001;

/// How many steps were put in.
fn steps(checks: &Checks) -> u64 {
    checks.by_series.iter().map(|series| series.steps_filled).sum()
}

/// How many values of a channel were put in, those of whole steps among them.
fn values(checks: &Checks, name: &str) -> u64 {
    let channels = checks.by_series.iter().flat_map(|series| &series.channels);
    let own = channels.filter(|channel| channel.channel == name);
    steps(checks) + own.map(|channel| channel.filled).sum::<u64>()
}

/// `25 of 1000 values of `close` (2.5 %)` for each of these channels that has some.
pub(crate) fn counted<'a>(
    checks: &Checks,
    channels: impl Iterator<Item = &'a str>,
) -> Option<String> {
    let told = channels.filter_map(|name| {
        let values = values(checks, name);
        let share = 100.0 * values as f64 / checks.steps.max(1) as f64;
        (values > 0)
            .then(|| format!("{values} of {} values of `{name}` ({share:.1} %)", checks.steps))
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| told.join(", "))
}

/// What is said of classes that are made of such values.
pub(crate) fn in_labels(checks: &Checks, labels: &Labels, set: &SeriesSet) -> Option<String> {
    if !matches!(labels, Labels::Forward { .. } | Labels::Return { .. }) {
        return None;
    }
    let looked_at = set.role(Role::Close).or_else(|| set.role(Role::Return))?;
    let name = set.channels()[looked_at].name.as_str();
    if values(checks, name) as f64 <= FEW * checks.steps as f64 {
        return None;
    }
    let told = counted(checks, std::iter::once(name))?;
    Some(format!(
        "{told} were not measured: `data.checks` put them in, and classes are made of them, in training and in the test. Nothing moves while a value is repeated, and then the moves of \
         several steps come at once, which a model can tell from the window before\n  \
         set data.checks.not_finite = \"drop\" and data.checks.gaps = \"split\" to learn from what was measured alone"
    ))
}

/// What is said of many steps that were put in.
pub(crate) fn in_steps(checks: &Checks) -> Option<String> {
    let filled = steps(checks);
    let share = filled as f64 / checks.steps.max(1) as f64;
    (share >= MANY).then(|| {
        format!(
            "{:.0} % of all steps were not measured: `data.checks.gaps` put {filled} of {} in, which repeat what came before\n  \
             set data.checks.gaps = \"split\", or a smaller data.checks.longest_fill, to learn from what was measured",
            100.0 * share, checks.steps
        )
    })
}

#[cfg(test)]
mod tests {
    use firebox_core::{Channel, Series};
    use firebox_data::{ChannelChecks, SeriesChecks};

    use super::*;

    fn checks(steps_filled: u64, filled: &[(&str, u64)]) -> Checks {
        let channel = |(name, filled): &(&str, u64)| ChannelChecks {
            channel: (*name).to_owned(),
            filled: *filled,
            ..ChannelChecks::default()
        };
        let channels = filled.iter().map(channel).collect();
        let by_series = vec![
            SeriesChecks { steps_filled, channels, ..SeriesChecks::default() },
            SeriesChecks::default(),
        ];
        Checks { steps: 1000, by_series, ..Checks::default() }
    }

    #[test]
    fn values_that_nobody_measured_are_counted_by_channel() {
        let said = |checks: &Checks| counted(checks, ["a", "b"].into_iter());
        assert_eq!(said(&checks(0, &[("c", 3)])), None);
        assert_eq!(said(&checks(0, &[("b", 25)])).unwrap(), "25 of 1000 values of `b` (2.5 %)");
        assert_eq!(
            said(&checks(10, &[("b", 5)])).unwrap(),
            "10 of 1000 values of `a` (1.0 %), 15 of 1000 values of `b` (1.5 %)"
        );
    }

    #[test]
    fn classes_and_steps_that_are_made_of_them_are_told_of() {
        let set = |role| {
            let series = Series::regular("s", 0, 1, vec![0.5; 4], 1);
            SeriesSet::new(vec![Channel::new("x", role)], vec![], vec![series]).unwrap()
        };
        let labels = Labels::Return { horizon: 1, threshold: 0.0 };
        let said = in_labels(&checks(7, &[]), &labels, &set(Role::Close)).unwrap();
        assert!(said.starts_with("7 of 1000 values of `x` (0.7 %) were not measured"), "{said}");
        assert_eq!(in_labels(&checks(7, &[]), &Labels::Last, &set(Role::Close)), None);
        assert_eq!(in_labels(&checks(0, &[]), &labels, &set(Role::Close)), None);
        assert_eq!(in_labels(&checks(7, &[]), &labels, &set(Role::Other)), None);
        assert_eq!(in_steps(&checks(99, &[("x", 500)])), None);
        assert!(in_steps(&checks(990, &[])).unwrap().starts_with("99 % of all steps were not"));
    }
}
