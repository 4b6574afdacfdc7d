//! Why there is no split or fold: what was found, what is allowed and the way out.

use crate::WindowRule;

/// A split that leaves nothing to train on or to measure with.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SplitError {
    /// A share outside its range.
    #[error(
        "the {part} share is {found}; shares lie between 0 and 1 and leave some data for training"
    )]
    Share {
        /// Part of the split.
        part: &'static str,
        /// Share found.
        found: f64,
    },
    /// A window of no steps, or a stride of zero.
    #[error(
        "window length {length} and stride {stride} must both be at least 1 and at most {}",
        u32::MAX
    )]
    Rule {
        /// Window length.
        length: usize,
        /// Stride.
        stride: usize,
    },
    /// No window fits into any segment.
    #[error(
        "no window fits: it needs {}, and the longest run without a gap has {} (series `{series}`){}\n  {}",
        steps_of(*length, *whole, *after), runs[1], shortest(*runs),
        shorter(*whole, *after, runs[1], *cut)
    )]
    TooLong {
        /// Steps of a window; of one of a whole series, the fewest.
        length: usize,
        /// Whether a window is a whole series.
        whole: bool,
        /// Steps after it that its label looks at, and the key that says so.
        after: Option<(usize, &'static str)>,
        /// Steps of the shortest and of the longest segment.
        runs: [usize; 2],
        /// Whether a series is cut into several segments, as by gaps.
        cut: bool,
        /// The series of the longest.
        series: String,
    },
    /// A part without a window.
    #[error(
        "the {part} part is empty: {windows} windows in all, {left_out} of them across a boundary or in a gap\n  {hint}"
    )]
    Empty {
        /// Part of the split.
        part: &'static str,
        /// Windows in all parts.
        windows: usize,
        /// Windows that fit no part.
        left_out: usize,
        /// The way out.
        hint: String,
    },
    /// Whole windows of series that are not whole.
    #[error(
        "`window.whole` makes one window of each series, and {count} of {series} are cut within their {end} {needed} steps (`{example}` into {pieces} pieces in all) by missing values, gaps or broken bars that were dropped\n  set `data.checks.not_finite` (or `gaps`, `ohlc`) to \"fill\", raise `data.checks.longest_fill` if runs are longer than that, or set window.whole = false"
    )]
    Pieces {
        /// Steps that a window and its label take, where a series has as many.
        needed: usize,
        /// Whether it is taken of the first steps of a series or of the last.
        end: &'static str,
        /// Series whose piece there has fewer.
        count: usize,
        /// Series in all.
        series: usize,
        /// The first of them.
        example: String,
        /// Its pieces.
        pieces: usize,
    },
    /// The split that the files give, for files that give none.
    #[error(
        "the split is `given`, but no series comes from a {part} file\n  name the test set in `data.test`, or use [split.time] or [split.series]"
    )]
    NotGiven {
        /// Missing part.
        part: &'static str,
    },
    /// Training series that equal test series.
    #[error(
        "{series} series of the training files {} one of the test files, value for value, such as `{train}` and `{test}`: a test on what was trained on measures nothing\n  leave them out of training by split.given.equal = \"drop\" (--set split.given.equal=drop), or keep them by \"keep\" where the split is published as it is",
        if *series == 1 { "equals" } else { "equal" }
    )]
    Equal {
        /// Training series that equal a test series.
        series: usize,
        /// One of them.
        train: String,
        /// The one that it equals.
        test: String,
    },
    /// Training series of groups of test series.
    #[error(
        "{series} series of the training files {} of groups that test files have, such as `{train}` and `{test}` of the group `{group}`: groups are to stay in one part\n  leave such series out of training by split.given.equal = \"drop\" (--set split.given.equal=drop), train on them by \"keep\", or take `data.columns.group` and `data.group_pattern` out where the split is published as it is",
        if *series == 1 { "is" } else { "are" }
    )]
    Grouped {
        /// Training series of such groups.
        series: usize,
        /// One of them.
        train: String,
        /// A test series of its group.
        test: String,
        /// The group.
        group: String,
    },
    /// Training series that all equal a test series, where such are left out.
    #[error(
        "each series of the training files, {series} in all, equals one of the test files, value for value, has steps of one, or is of its group: split.given.equal = \"drop\" leaves nothing to train on\n  name other files to train on in `data.path`"
    )]
    NothingElse {
        /// Training series.
        series: usize,
    },
    /// Training series that have steps of a test series.
    #[error(
        "{series} series of the training files {} steps of the test files, with the same times and values, such as `{train}`, which has {steps} steps of `{test}`: what is measured would be too good\n  leave these steps out of the training files, leave such series out with split.given.equal=drop, or train on them with split.given.equal=keep",
        if *series == 1 { "has" } else { "have" }
    )]
    Within {
        /// Training series with steps of a test series.
        series: usize,
        /// One of them.
        train: String,
        /// The one whose steps it has.
        test: String,
        /// How many of these follow each other there.
        steps: usize,
    },
    /// Forward labels without a closing price.
    #[error("forward labels need a channel with the role `close`")]
    NoClose,
    /// Return labels without a price or its change.
    #[error("return labels need a channel with the role `close`, or with the role `return`")]
    NoReturn,
    /// Too few folds, or a share for validation outside its range.
    #[error(
        "{folds} folds with a validation share of {validation} cannot be made; there are at least 1 and at most 1000 folds, and the share lies above 0 and below 1"
    )]
    Folds {
        /// Number of folds.
        folds: usize,
        /// Share for validation.
        validation: f64,
    },
    /// A fold without a window in one of its parts.
    #[error(
        "fold {fold} of {folds} has no {part} window: its {part} part is {found} long in the longest run, and a window with its label takes {needed} after {embargo} that are left out at the boundary\n  it takes about {wanted} steps of one series without a gap in all ({have} there are): give more data, use fewer folds, a larger validation share, a smaller `embargo`, or shorter windows"
    )]
    FoldEmpty {
        /// The fold, from 1.
        fold: usize,
        /// Number of folds.
        folds: usize,
        /// Part of the fold.
        part: &'static str,
        /// Steps of the longest run within the part, before the embargo.
        found: usize,
        /// Steps of a window and of its label's horizon.
        needed: usize,
        /// Steps left out after the boundary.
        embargo: usize,
        /// Steps of one series that would be enough.
        wanted: usize,
        /// Steps of the longest series.
        have: usize,
    },
}

/// The steps that a window takes, with those after it, and the keys that say so.
fn steps_of(length: usize, whole: bool, after: Option<(usize, &str)>) -> String {
    let by = match length {
        _ if whole => "`window.whole`",
        length if length == WindowRule::default().length => "`window.length`, the default",
        _ => "`window.length`",
    };
    match after {
        None => format!("{length} consecutive steps ({by})"),
        Some((after, key)) => format!(
            "{} consecutive steps, {length} of its own ({by}) and {after} after them (`{key}`)",
            length.saturating_add(after)
        ),
    }
}

/// How long the shortest run is, where another one is longer.
fn shortest([shortest, longest]: [usize; 2]) -> String {
    if shortest < longest { format!(", the shortest {shortest}") } else { String::new() }
}

/// What to shorten where the longest run has so many steps, and what else may help; `cut` says whether series are cut, as by
/// gaps.
fn shorter(whole: bool, after: Option<(usize, &str)>, longest: usize, cut: bool) -> String {
    let shorter = match after {
        None if whole => "name files that have steps".to_owned(),
        None if cut => format!("set window.length to {longest} or less"),
        None => format!(
            "set window.length to {longest} or less, or window.whole = true, which makes one window of each series"
        ),
        Some((after, key)) if after < longest && !whole => {
            format!("set window.length to {} or less, or a smaller `{key}`", longest - after)
        }
        Some((_, key)) => format!("set a smaller `{key}`"),
    };
    let numbered = match cut {
        true => {
            "leave the column of times out of the files where nothing is traded or measured in the gaps, as on weekends (rows are then numbered, one step each), "
        }
        false => "",
    };
    format!(
        "{shorter}; or give longer series, fill gaps (`data.checks.gaps`), {numbered}or correct `data.interval` if it is shorter than the steps between rows"
    )
}
