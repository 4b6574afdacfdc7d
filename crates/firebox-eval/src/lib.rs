//! Metrics, probes, baselines and self-contained reports for sequence encoders.
//!
//! An encoder that was pre-trained without labels is worth what its frozen features are worth.
//! [`evaluate()`] fits a logistic probe and nearest neighbours on them and always measures the same
//! beside them on the majority class, on *randomly initialised* encoders and on the raw windows.
//! Every score has a bootstrap interval, every comparison is paired, and a difference whose
//! interval includes zero is never called a win: [`verdict()`] says in one sentence what is left.
//! [`ReconstructionTally`] does the same for masked steps, beside naive fills.
//!
//! [`Report`] is plain data that a run fills; it becomes one HTML page without any network, a
//! summary in Markdown, and `scores.json`. [`StudyReport`] is the same for a search of settings.
//!
//! # Example
//!
//! ```
//! use firebox_core::{Silent, Stream};
//! use firebox_eval::{
//!     EvalConfig, Features, Outcome, Parts, Report, Subjects, Together, evaluate, verdict,
//! };
//!
//! fn main() -> Result<(), firebox_eval::EvalError> {
//!     // Features of two classes, the further apart the larger `signal` is.
//!     let part = |signal: f64, seed: u64, rows: u32| {
//!         let mut draws = Stream::new(seed, "example").substream(rows.into()).draws();
//!         let labels: Vec<u32> = (0..rows).map(|row| row % 2).collect();
//!         let rows = labels.iter().flat_map(|label| {
//!             [signal * f64::from(*label) + draws.normal(), draws.normal()].map(|v| v as f32)
//!         });
//!         Features { rows: rows.collect(), width: 2, labels }
//!     };
//!     let parts = |signal, seed| Parts {
//!         train: part(signal, seed, 200),
//!         validation: part(signal, seed, 100),
//!         test: part(signal, seed, 300),
//!     };
//!     let classes = ["rest", "move"].map(str::to_owned);
//!     let (pretrained, raw) = (parts(4.0, 1), parts(1.0, 2));
//!     let together = Together::default();
//!     let subjects =
//!         Subjects { classes: &classes, pretrained: &pretrained, raw: &raw, together: &together };
//!
//!     let config = EvalConfig { resamples: 200, ..EvalConfig::default() };
//!     let scores = evaluate(&config, &subjects, |seed| Ok(parts(1.0, seed)), &Silent)?;
//!     let said = verdict(scores.as_ref(), None);
//!     assert_eq!(said.outcome, Outcome::Beats, "{}", said.sentence);
//!
//!     let mut report = Report::new("example", "run-1", said);
//!     report.judge(scores, None);
//!     assert!(report.markdown().starts_with("**Pre-training beats its baselines"));
//!     Ok(())
//! }
//! ```

mod assignment;
mod bootstrap;
mod clustering;
mod config;
mod contest;
mod embed;
mod error;
mod evaluate;
mod features;
mod few_labels;
mod forecast;
mod halves;
mod k_means;
mod logistic;
mod masked;
mod matrix;
mod metrics;
mod neighbours;
mod probe;
mod projection;
mod random_kernels;
mod reconstruction;
mod report;
mod ridge;
mod svm;
mod text;
mod together;
mod validation;
mod verdict;

pub use bootstrap::{Comparison, Estimate, Predictions, Resampling};
pub use clustering::{Agreement, moved};
pub use config::{EvalConfig, NeighboursConfig, ProbeConfig};
pub use contest::{Contender, Contest, Lead, Standing, contest};
pub use embed::{Embeddings, Sources, embed, evaluate_encoder, evenly};
pub use error::EvalError;
pub use evaluate::{
    Answer, Answers, Difference, Evaluation, Head, Score, Subject, Subjects, evaluate,
    random_seeds, unlearnt_classes, untested_classes,
};
pub use features::{Features, Parts, Standardiser};
pub use few_labels::{Arm, ArmDifference, ArmScore, FewLabels, SharePredictions, ShareScores};
pub use forecast::{
    BlockOf, ForecastData, ForecastEvaluation, ForecastGain, ForecastOutput, ForecastScore,
    Forecaster, Forecasts, Linear, LinearData, evaluate_forecasts, forecast_verdict, last_value,
    mean_r2, seasonal_naive, seasonal_scale, usual_season,
};
pub use k_means::{KMeans, KMeansConfig};
pub use logistic::{Logistic, Stop};
pub use masked::{MaskedSample, reconstruct};
pub use metrics::{ClassMetrics, Confusion, Metric, Metrics};
pub use neighbours::{Distance, Neighbours};
pub use probe::{choose_penalty, logistic_predictions};
pub use projection::{Projection, project};
pub use random_kernels::RandomKernels;
pub use reconstruction::{
    Fill, MaskedWindow, Reconstruction, ReconstructionScore, ReconstructionTally, Reduction,
    WindowErrors, fill_last_value, fill_linear, fill_mean, fill_seen_mean,
};
pub use report::{
    Advice, ArchiveDefect, ArchiveReport, ArchiveSet, Card, Chart, CheckpointRow, ComparedRun,
    Curves, EmbeddingView, EpochPoint, Fact, Interval, Line, MOST_RUNS, Machine, Measure,
    PUBLISHED, Part, Published, Raster, Reason, Recipe, Report, Saved, ScaleChange, Sheet,
    SheetChart, SheetSection, SideBySide, Stage, StepPoint, StudyObjective, StudyOutcome,
    StudyParameter, StudyReport, StudyTrial, Table, TestScore, Tone, WrittenReport, WrittenStudy,
    published,
};
pub use ridge::Ridge;
pub use svm::Svm;
pub use text::{Decimals, loss, number, percent, signed};
pub use together::{Together, block_of_labels, block_of_overlap, equal_units, size_of_units};
pub use validation::ValidationProbe;
pub use verdict::{FEWEST_WINDOWS, Outcome, Verdict, share_text, verdict};
