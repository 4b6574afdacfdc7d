//! A warning of values so far from all others of their channel that they make its scale, or most of what is measured: wrong
//! readings, or codes of missing values.

use firebox_core::{Event, Normalisation, Outlier, SeriesSet};

use super::Run;
use crate::measure::moment;
use crate::values::{exact, rounded};

/// The part that is measured.
pub(crate) const TEST_PART: &str = "the test part";

/// Channels that are named. A choice.
const NAMED: usize = 5;

impl Run<'_> {
    /// Warns of such values. `part` is where they are found, and `timed` says whether steps have times.
    pub(crate) fn warn_of_outliers(
        &self,
        part: &str,
        set: &SeriesSet,
        found: &[Outlier],
        timed: bool,
    ) {
        let place = |(series, step): (usize, usize)| {
            let series = &set.series()[series];
            let time = timed.then(|| format!(", {}", moment(series.time[step])));
            format!("series `{}`, step {step}{}", series.name, time.unwrap_or_default())
        };
        let fitted = (part != TEST_PART).then_some(self.config.window.normalise);
        if let Some(message) = said(part, found, place, fitted) {
            self.listener.on(&Event::Warning { message });
        }
    }
}

fn said(
    part: &str,
    found: &[Outlier],
    place: impl Fn((usize, usize)) -> String,
    // How the part is normalised, if it is one that is learnt from.
    normalise: Option<Normalisation>,
) -> Option<String> {
    let one = |one: &Outlier| {
        let Outlier { channel, count, others, steps, first, quartiles: [low, high], .. } = one;
        let first = place(*first);
        let at = if *count == 1 { first } else { format!("first in {first}") };
        let more = match others {
            0 => String::new(),
            others => format!(" ({others} more have other values as far out)"),
        };
        let (value, [low, high]) = (exact(one.value), [*low, *high].map(rounded));
        format!(
            "channel `{channel}` is {value} at {count} of {steps} steps, {at}{more}, and half of its values lie from {low} to {high}"
        )
    };
    let mut all: Vec<String> = found.iter().take(NAMED).map(one).collect();
    if found.len() > NAMED {
        all.push(format!("and {} channels more have such values", found.len() - NAMED));
    }
    let (so, robust) = match normalise {
        // Of one code in many steps the scale knows nothing.
        _ if found.iter().all(|one| !one.rules) => (
            "such a value mostly stands for a missing one, and a window that holds it is like no other",
            "",
        ),
        None => (
            "a mean error there may be that of such a value alone, and what a model says of windows that hold one is worth little",
            "",
        ),
        Some(Normalisation::Standard) => (
            "such a value makes the scale of its channel, and all others become nearly the same",
            "; if it is right, `window.normalise = \"robust\"` fits a scale that it does not move",
        ),
        Some(Normalisation::WindowStandard | Normalisation::WindowRelative) => {
            ("such a value makes the scale of each window that it is in", "")
        }
        Some(Normalisation::None | Normalisation::Robust) => {
            ("a model sees such a value as far out as it is, and learns of little else", "")
        }
    };
    (!found.is_empty()).then(|| {
        format!(
            "in {part} {}: {so}\n  \
             if it stands for a missing value, say so (of CSV files in `data.csv.missing`, written as it is there; other files \
             store NaN) and choose what is done about those in `data.checks.not_finite`; if it is wrong, correct the files{robust}",
            all.join("; ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outlier(channel: &str, value: f64, count: usize) -> Outlier {
        Outlier {
            channel: channel.to_owned(),
            value,
            count,
            others: 0,
            steps: 6000,
            first: (0, 17),
            quartiles: [0.123_456, 1234.567],
            rules: true,
        }
    }

    fn check(found: &[Outlier], normalise: Normalisation, expected: &[&str]) {
        let place = |(series, step): (usize, usize)| format!("series `s{series}`, step {step}");
        let said = said("the training part", found, place, Some(normalise)).unwrap();
        for part in expected {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert_eq!(said.contains("robust"), normalise == Normalisation::Standard, "{said}");
    }

    #[test]
    fn a_value_is_told_with_its_place_and_the_ways_out() {
        let start = "in the training part channel `load` is 1e20 at 1 of 6000 steps, series `s0`, step 17, and half of its values lie from 0.1235 to 1235: such a value makes the scale of its channel";
        let ways = ["`data.csv.missing`", "`data.checks.not_finite`", "correct the files"];
        let found = [outlier("load", 1e20, 1)];
        check(&found, Normalisation::Standard, &[&[start][..], &ways[..]].concat());
        let again = [Outlier { others: 2, ..outlier("load", -9999.0, 62) }];
        let start = "is -9999 at 62 of 6000 steps, first in series `s0`, step 17 (2 more have other values as far out), and half";
        check(&again, Normalisation::Robust, &[start]);
        let many: Vec<Outlier> = (0..7).map(|at| outlier(&format!("x{at}"), 1e20, 1)).collect();
        let expected = ["channel `x4` is", "; and 2 channels more have such values: "];
        check(&many, Normalisation::WindowStandard, &expected);
        let code = [Outlier { rules: false, ..outlier("load", -9999.0, 1) }];
        let standard = Some(Normalisation::Standard);
        let of_code = said("the training part", &code, |_| String::new(), standard).unwrap();
        assert!(of_code.contains("mostly stands for a missing one"), "{of_code}");
        assert!(!of_code.contains("scale") && !of_code.contains("robust"), "{of_code}");
        let of_test = said(TEST_PART, &found, |_| String::new(), None).unwrap();
        assert!(of_test.starts_with("in the test part channel `load` is 1e20"), "{of_test}");
        assert!(of_test.contains("a mean error there may be that of such a value"), "{of_test}");
        let nothing = said("the training part", &[], |_| String::new(), Some(Normalisation::None));
        assert_eq!(nothing, None);
    }
}
