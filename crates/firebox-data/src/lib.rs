//! Files of many formats → checked [`Series`](firebox_core::Series), ready to be split and cut
//! into windows.
//!
//! [`DataConfig`] says where the data lies, what its columns mean and what is done about its
//! defects; [`ingest()`] reads it. Parquet, CSV and Arrow files are read by polars, NumPy arrays and
//! the `.ts` files of the UCR and UEA archives by small strict readers, and [`MarketConfig`],
//! [`DemandConfig`] and [`ClipsConfig`] make a market, hourly demand and clips to try things on. Unsorted and duplicate times, gaps, missing and infinite values,
//! bars whose high is not the highest and constant channels are found before anything is trained,
//! counted in [`Checks`], and refused unless a policy says what to do about them. The result is
//! stored under a key of everything that it depends on, and reused.
//!
//! Splits, windows and normalisation are not here: they are pure functions in `firebox-core`.
//!
//! # Example
//!
//! ```
//! use firebox_core::Silent;
//! use firebox_data::{DataConfig, Defect, GapPolicy, ingest};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let folder = tempfile::tempdir()?;
//!     let file = folder.path().join("bars.csv");
//!     std::fs::write(&file, "\
//! timestamp,open,high,low,close
//! 2024-01-02T09:30,100.0,100.5,99.5,100.2
//! 2024-01-02T09:31,100.2,100.9,100.1,100.8
//! 2024-01-03T09:30,101.0,101.1,100.2,100.3
//! 2024-01-03T09:31,100.3,100.4,99.9,100.0
//! ")?;
//!
//!     // The night is a gap: the data is refused, with the way out in the message.
//!     let mut config = DataConfig::new(&file);
//!     let error = ingest(&config, folder.path(), &Silent).unwrap_err();
//!     assert!(error.to_string().contains(r#"set `data.checks.gaps` to "split""#));
//!
//!     config.checks.gaps = GapPolicy::Split;
//!     let data = ingest(&config, folder.path(), &Silent)?;
//!     assert_eq!(data.set.series()[0].segments, [0..2, 2..4]);
//!     assert_eq!(data.checks.findings[0].defect, Defect::Gaps);
//!     Ok(())
//! }
//! ```

mod arrays;
mod batches;
mod by_series;
mod checks;
mod clean;
mod clips;
mod config;
mod content;
mod converted;
mod csv;
mod demand;
mod error;
mod fast;
mod frame;
mod generated;
mod grouping;
mod groups;
mod guarded;
mod hints;
mod indicators;
mod ingest;
mod input;
mod interval;
mod leaks;
mod look;
mod mapping;
mod market;
mod missing;
mod moments;
mod npy;
mod parts;
mod plain;
mod progress;
mod rates;
mod raw;
mod schema;
mod simulation;
mod store;
mod table;
mod texts;
mod time;
mod timeframes;
mod ts;
mod turns;
mod warnings;
mod work;

pub use arrays::{ArrayFile, array_paths};
pub use checks::{Action, ChannelChecks, Checks, Defect, Finding, SeriesChecks};
pub use clips::ClipsConfig;
pub use config::{
    ChannelColumn, CheckPolicies, Columns, ConstantPolicy, CrowdedPolicy, Csv, DataConfig, Format,
    GapPolicy, Paths, Policy, TimeUnit,
};
pub use content::{content_hash, content_hash_until};
pub use demand::DemandConfig;
pub use error::DataError;
pub use frame::files_without;
pub use guarded::{being_read, quiet_readers};
pub use ingest::{
    Ingested, files, fingerprint, fingerprint_heard, fingerprint_until, ingest, ingest_until, read,
    read_without, stored, stored_at, stored_checks,
};
pub use interval::{Interval, ParseIntervalError};
pub use leaks::{Change, Difference, Original, first_difference};
pub use market::{MarketConfig, Regime, Regimes};
pub use table::{TableColumn, TableWriter};
pub use texts::{EmptyTexts, TextColumns, check_encoding, read_plain_texts, read_texts};
pub use timeframes::{HigherPeriods, Periods, Stamp, TimeframeChecks, Timeframes};
