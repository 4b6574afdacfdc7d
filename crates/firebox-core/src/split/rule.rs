//! The rule of a split, as a user writes it, and the shares that it may ask for.

use serde::{Deserialize, Serialize};

use super::SplitError;

/// What is done about series of the training files that equal one of the test files, value for value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EqualPolicy {
    /// They are refused: a test on what was trained on measures nothing.
    #[default]
    Error,
    /// They are left out of training and validation.
    Drop,
    /// They are trained on, and told: for archives whose split is published as it is.
    Keep,
}

/// How windows are divided into training, validation and test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum SplitRule {
    /// By two moments in time that hold for all series. Steps are counted over all series
    /// together: the last `test` of them are tested on, the `validation` before them validated on.
    Time {
        /// Share of the steps for validation, `0..1`; by default a tenth.
        #[serde(default = "tenth")]
        validation: f64,
        /// Share of the steps for the test, `0..1`; by default a fifth.
        #[serde(default = "fifth")]
        test: f64,
        /// Steps left out after each boundary; by default one window and the label's horizon.
        #[serde(default)]
        gap: Option<usize>,
    },
    /// By whole series, for samples that share no clock: shares of them are drawn for validation
    /// and test, evenly from each class. No series is seen by two parts, nor is one that equals it.
    Series {
        /// Share of the series for validation, `0..1`; by default a tenth.
        #[serde(default = "tenth")]
        validation: f64,
        /// Share of the series for the test, `0..1`; by default a fifth.
        #[serde(default = "fifth")]
        test: f64,
        /// Seed of the draw, by default 1337.
        #[serde(default = "seed")]
        seed: u64,
    },
    /// Series from test files are tested on; of the others, a share is drawn for validation,
    /// evenly from each class.
    Given {
        /// Share of the training series for validation, `0..1`; by default a tenth.
        #[serde(default = "tenth")]
        validation: f64,
        /// Seed of the draw, by default 1337.
        #[serde(default = "seed")]
        seed: u64,
        /// What is done about training series that equal a test series; by default they are refused.
        #[serde(default)]
        equal: EqualPolicy,
    },
}

fn tenth() -> f64 {
    0.1
}

fn fifth() -> f64 {
    0.2
}

fn seed() -> u64 {
    1337
}

impl SplitRule {
    /// A split by time with the default gap.
    pub fn time(validation: f64, test: f64) -> Self {
        Self::Time { validation, test, gap: None }
    }

    /// The rule for data of which the user wrote none, and why: as the files give it where they
    /// give a test set; by whole series where they have groups, or several of them share no clock; else by time.
    pub fn automatic(
        given: bool,
        grouped: bool,
        clock: bool,
        series: usize,
    ) -> (Self, &'static str) {
        let (validation, test, seed) = (tenth(), fifth(), seed());
        match () {
            () if given => (
                Self::Given { validation, seed, equal: EqualPolicy::Error },
                "`data.test` names a test set, so its series are the test part and validation is drawn from the others",
            ),
            () if grouped => (
                Self::Series { validation, test, seed },
                "the series have groups, which are to stay in one part: whole groups are drawn for each",
            ),
            () if !clock && series > 1 => (
                Self::Series { validation, test, seed },
                "the series have no times, so there is no moment that holds for all of them: whole series are drawn for each part",
            ),
            () => (
                Self::time(validation, test),
                "what comes last is tested on, so that nothing is learnt from what comes after",
            ),
        }
    }

    /// Its name in a configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Time { .. } => "time",
            Self::Series { .. } => "series",
            Self::Given { .. } => "given",
        }
    }
}

/// The shares that validation and the test should hold. A given test has none of its own and may not be empty.
pub(super) fn shares(rule: &SplitRule) -> (f64, f64) {
    match *rule {
        SplitRule::Time { validation, test, .. } | SplitRule::Series { validation, test, .. } => {
            (validation, test)
        }
        SplitRule::Given { validation, .. } => (validation, 1.0),
    }
}

/// Refuses shares outside their range, and those that leave nothing to train on.
pub(super) fn check_shares(rule: &SplitRule) -> Result<(), SplitError> {
    let (validation, test) = match *rule {
        SplitRule::Time { validation, test, .. } | SplitRule::Series { validation, test, .. } => {
            (validation, test)
        }
        SplitRule::Given { validation, .. } => (validation, 0.0),
    };
    let range = 0.0..1.0;
    match () {
        () if !range.contains(&validation) => {
            Err(SplitError::Share { part: "validation", found: validation })
        }
        () if !range.contains(&test) => Err(SplitError::Share { part: "test", found: test }),
        () if validation + test >= 1.0 => {
            Err(SplitError::Share { part: "validation + test", found: validation + test })
        }
        () => Ok(()),
    }
}

/// What to change where a part is empty, of so many series that whole ones are drawn from.
pub(super) fn way_out(rule: &SplitRule, part: &str, series: usize) -> String {
    let share = match (part, rule) {
        ("training", _) => 1.0,
        ("test", SplitRule::Series { test, .. }) => *test,
        _ => shares(rule).0,
    };
    let larger = |table: &str| match series {
        2.. if share * (series as f64) < 0.5 => {
            // As few digits as tell one of them.
            let scale = 10f64.powf((series as f64).log10().ceil()).max(100.0);
            let one = (scale / series as f64).ceil() / scale;
            format!(
                "whole series are drawn, and {share} of {series} rounds to none: set split.{table}.{part} = {one}, which is one of them, or give more series"
            )
        }
        _ => format!("give it a larger share in [split.{table}], or more series"),
    };
    match rule {
        SplitRule::Time { .. } => {
            "give it a larger share in [split.time], set a smaller `gap` there, or make windows shorter; for samples without a clock, split them by [split.series], or by [split.given] with `data.test`".to_owned()
        }
        SplitRule::Series { .. } => format!(
            "{}; each class keeps at least one series for training, and series that are equal, of one group or have steps of each other stay in one part",
            larger("series")
        ),
        SplitRule::Given { .. } => format!(
            "{}; each class keeps at least one series for training, and series that are equal or of one group stay in one part",
            larger("given")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_automatic_rule_never_cuts_across_samples_or_a_given_test_set() {
        let name = |given, grouped, clock, series| {
            SplitRule::automatic(given, grouped, clock, series).0.name()
        };
        assert_eq!(name(true, false, true, 1), "given");
        assert_eq!(name(true, true, true, 9), "given");
        assert_eq!(name(false, false, false, 9), "series");
        assert_eq!(name(false, true, true, 9), "series");
        assert_eq!([name(false, false, false, 1), name(false, false, true, 9)], ["time", "time"]);
    }

    #[test]
    fn a_share_of_few_series_that_rounds_to_none_is_told_with_one_that_does_not() {
        let rule = SplitRule::Series { validation: 0.1, test: 0.2, seed: 1 };
        let said = way_out(&rule, "validation", 3);
        let expected = "whole series are drawn, and 0.1 of 3 rounds to none: set split.series.validation = 0.34, ";
        assert!(said.starts_with(expected), "{said}");
        assert!(way_out(&rule, "test", 2).contains("set split.series.test = 0.5, "));
        let small = SplitRule::Series { validation: 0.0001, test: 0.2, seed: 1 };
        assert!(way_out(&small, "validation", 1000).contains("validation = 0.001, which is one"));
        // Of so many it is not the rounding.
        assert!(way_out(&rule, "test", 3).starts_with("give it a larger share in [split.series]"));
        assert!(way_out(&rule, "validation", 1).starts_with("give it a larger share"));
        let given = SplitRule::Given { validation: 0.1, seed: 1, equal: EqualPolicy::Error };
        assert!(way_out(&given, "validation", 4).contains("set split.given.validation = 0.25, "));
    }
}
