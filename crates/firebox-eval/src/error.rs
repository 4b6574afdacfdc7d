//! What can be wrong with what an evaluation is given.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use firebox_loader::LoadError;

/// An evaluation or a report that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// Rows, labels and width that do not fit together.
    #[error(
        "the {part} features hold {values} values for {rows} rows; {rows} rows of {width} features need {}",
        rows * width
    )]
    Shape {
        /// Part of the split.
        part: &'static str,
        /// Number of labels.
        rows: usize,
        /// Number of values.
        values: usize,
        /// Features of a row.
        width: usize,
    },
    /// A label outside the classes.
    #[error("{part} row {row} has class {label}, and there are {classes} classes (0 to {})", classes.saturating_sub(1))]
    Label {
        /// Part of the split.
        part: &'static str,
        /// Row.
        row: usize,
        /// Its label.
        label: u32,
        /// Number of classes.
        classes: usize,
    },
    /// A feature that is NaN or infinite.
    #[error(
        "feature {feature} of {part} row {row} is {value}, and probes learn from finite numbers alone: an encoder that gives others has diverged; go back to an earlier checkpoint or lower the learning rate"
    )]
    NotFinite {
        /// Part of the split.
        part: &'static str,
        /// Row.
        row: usize,
        /// Column.
        feature: usize,
        /// Value found.
        value: f32,
    },
    /// More clusters than there are different rows.
    #[error(
        "{clusters} clusters cannot be made of {rows} rows with {distinct} different embeddings: use at least 1 cluster and at most that many, or train an encoder that tells samples apart (a smaller learning rate, other augmentation)"
    )]
    Clusters {
        /// Clusters asked for.
        clusters: usize,
        /// Rows.
        rows: usize,
        /// Rows of which no two are alike.
        distinct: usize,
    },
    /// Whoever wanted it wants it no more.
    #[error("it was asked to stop")]
    Stopped,
    /// Two sets of features that should describe the same windows.
    #[error(
        "`{subject}` has {found} {part} rows and the pre-trained encoder {expected}: they must describe the same windows in the same order"
    )]
    Windows {
        /// What is compared.
        subject: &'static str,
        /// Part of the split.
        part: &'static str,
        /// Rows found.
        found: usize,
        /// Rows expected.
        expected: usize,
    },
    /// A setting outside its range.
    #[error("`evaluate.{key}` is {found}; {allowed}")]
    Setting {
        /// Key within `[evaluate]`.
        key: &'static str,
        /// Value found.
        found: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A masked window whose parts do not fit together.
    #[error("masked window {index}: {problem}")]
    MaskedWindow {
        /// Index of the window.
        index: usize,
        /// What does not fit.
        problem: String,
    },
    /// Windows that could not be read.
    #[error("the {part} windows could not be read for the evaluation")]
    Read {
        /// Part of the split.
        part: &'static str,
        /// Why.
        #[source]
        source: LoadError,
    },
    /// Parts of different classes or channels.
    #[error(
        "the {part} windows have {found}, and the training windows {expected}: the parts must come from one split"
    )]
    Parts {
        /// Part of the split.
        part: &'static str,
        /// What it has.
        found: String,
        /// What the training part has.
        expected: String,
    },
    /// No test window to forecast.
    #[error("there is no test window to forecast")]
    NoForecast,
    /// A forecast that is no number.
    #[error("the forecast of test window {window} by the {forecaster} is {value}")]
    NotFiniteForecast {
        /// Whose it is.
        forecaster: String,
        /// Window, from 0.
        window: usize,
        /// The forecast.
        value: f64,
    },
    /// A random encoder that could not be made.
    #[error("the randomly initialised encoder of seed {seed} could not be made")]
    Encoder {
        /// Its seed.
        seed: u64,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A report that could not be written.
    #[error("the report could not be written to {}", path.display())]
    Write {
        /// File.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Too few runs to compare, or more than can be told apart.
    #[error("{found} runs cannot be compared; name 2 to {most} different ones")]
    Runs {
        /// Runs that were named.
        found: usize,
        /// Runs that colours tell apart.
        most: usize,
    },
    /// A file that a page would replace, and that is none.
    #[error(
        "{} is there and no page of Firebox, so it is not replaced\n  name another file with --output",
        path.display()
    )]
    NotOurs {
        /// The file.
        path: PathBuf,
    },
}

impl EvalError {
    /// What whoever computes long asks now and then: an error once `stop` is true.
    pub(crate) fn heed(stop: &AtomicBool) -> Result<(), Self> {
        if stop.load(Ordering::Relaxed) { Err(Self::Stopped) } else { Ok(()) }
    }
}
