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

/// What to change where a part is empty, of so many series that whole ones are drawn from; `least` is a share by which it is
/// not, if there is one.
pub(super) fn way_out(
    rule: &SplitRule,
    part: &str,
    series: usize,
    least: impl FnOnce() -> Option<f64>,
) -> String {
    let drawn = |table: &str, together: &str| {
        let larger = match part {
            "training" => format!("give it a larger share in [split.{table}], or more series"),
            _ => larger(table, part, shares_by_part(rule, part), series, least()),
        };
        format!(
            "{larger}; each class keeps at least one series for training, and series that are {together} stay in one part"
        )
    };
    match rule {
        SplitRule::Time { .. } => {
            "give it a larger share in [split.time], set a smaller `gap` there, or make windows shorter; for samples without a clock, split them by [split.series], or by [split.given] with `data.test`".to_owned()
        }
        SplitRule::Given { .. } if part == "test" => {
            "no window fits into the series of `data.test`: make windows shorter, or name files of longer series"
                .to_owned()
        }
        SplitRule::Series { .. } => drawn("series", "equal, of one group or have steps of each other"),
        SplitRule::Given { .. } => drawn("given", "equal or of one group"),
    }
}

/// The share that a part should hold which is drawn.
fn shares_by_part(rule: &SplitRule, part: &str) -> f64 {
    let (validation, test) = shares(rule);
    if part == "test" { test } else { validation }
}

/// What to set where no series is drawn for a part by a share of so many, and `least` draws some.
fn larger(table: &str, part: &str, share: f64, series: usize, least: Option<f64>) -> String {
    let key = format!("split.{table}.{part}");
    let Some(least) = least else {
        let without = match part {
            "validation" => format!(", or do without it ({key} = 0)"),
            _ => format!(", do without it ({key} = 0), or name a test set in `data.test`"),
        };
        return format!("no share draws a series for it: give more series of each class{without}");
    };
    // 0.29 of 100 is less than 29 before it is rounded.
    match (least * series as f64 + 1e-9).floor() as usize {
        _ if share * series as f64 >= 0.5 => {
            format!("give it a larger share, as by {key} = {least}, or more series")
        }
        some => format!(
            "whole series are drawn, and {share} of {series} rounds to none: set {key} = {least}, which is {} of them, or give more series",
            if some <= 1 { "one".to_owned() } else { some.to_string() }
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
        let said = |rule: &SplitRule, part, series, least| way_out(rule, part, series, || least);
        let of_three = said(&rule, "validation", 3, Some(0.34));
        let expected = "whole series are drawn, and 0.1 of 3 rounds to none: set split.series.validation = 0.34, which is one of them, ";
        assert!(of_three.starts_with(expected), "{of_three}");
        let of_two = said(&rule, "test", 2, Some(0.5));
        assert!(of_two.contains("set split.series.test = 0.5, which is one"), "{of_two}");
        // Where several stay together, one is not enough.
        let of_six = said(
            &SplitRule::Series { validation: 0.05, test: 0.2, seed: 1 },
            "validation",
            6,
            Some(0.34),
        );
        assert!(
            of_six.contains("set split.series.validation = 0.34, which is 2 of them"),
            "{of_six}"
        );
        let of_hundred = said(
            &SplitRule::Series { validation: 0.001, test: 0.2, seed: 1 },
            "validation",
            100,
            Some(0.29),
        );
        assert!(of_hundred.contains(" = 0.29, which is 29 of them"), "{of_hundred}");
        // Of so many it is not the rounding.
        let larger = "give it a larger share, as by split.series.test = 0.34, or more series; each";
        assert!(said(&rule, "test", 3, Some(0.34)).starts_with(larger));
        let given = SplitRule::Given { validation: 0.1, seed: 1, equal: EqualPolicy::Error };
        let of_four = said(&given, "validation", 4, Some(0.25));
        assert!(of_four.contains("set split.given.validation = 0.25, "), "{of_four}");
        let none = said(&given, "validation", 3, None);
        let expected = "no share draws a series for it: give more series of each class, or do without it (split.given.validation = 0); each class keeps at least one series for training";
        assert!(none.starts_with(expected), "{none}");
        let test = said(&given, "test", 3, None);
        assert!(test.starts_with("no window fits into the series of `data.test`"), "{test}");
        let training = said(&rule, "training", 3, None);
        assert!(training.starts_with("give it a larger share in [split.series], or"), "{training}");
    }
}
