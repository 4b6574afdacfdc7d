//! Plain values of the Firebox training engine, and pure functions on them.
//!
//! Everything that two crates of Firebox must agree on lives here: [`Series`] and [`Window`], the
//! [`split()`] that keeps the future out of training, [`Normaliser`], the content [`Key`] of a
//! result, [`Event`]s, and [`Stream`], a counter-based random generator whose draws depend on a
//! seed and a position and on nothing else.
//!
//! There is no input or output in this crate, no tensor and no data frame.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use firebox_core::{
//!     Channel, Labels, Normalisation, Normaliser, Role, Series, SeriesSet, SplitRule, WindowRule, split,
//! };
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // One series of 400 steps and one channel.
//!     let series = Series::regular("demo", 0, 60_000_000, (0..400).map(f64::from).collect(), 1);
//!     let set = Arc::new(SeriesSet::new(vec![Channel::new("value", Role::Other)], vec![], vec![series])?);
//!
//!     let windows = WindowRule { length: 20, stride: 5, ..WindowRule::default() };
//!     let parts = split(&set, &windows, &SplitRule::time(0.1, 0.2), &Labels::None)?;
//!
//!     // Scaling is fitted on training windows; held-out windows cannot be passed here.
//!     let normaliser = Normaliser::fit(Normalisation::Standard, &parts.train)?;
//!     let mut window = vec![0.0f32; 20];
//!     normaliser.apply(&set, &parts.test.windows().at(0), &mut window);
//!     assert!(window.iter().all(|v| *v > 1.0)); // the future of a trend lies above its past
//!     Ok(())
//! }
//! ```

mod augmentation;
mod column;
mod control;
mod count;
mod equal;
mod event;
mod filled;
mod folds;
mod forecast;
mod key;
mod machine;
mod nearest;
mod normal;
mod normalise;
mod outliers;
mod precision;
mod random;
mod series;
mod split;
mod stretch;
mod telling;
mod texts;
mod thread;
mod unchanging;
mod values;
mod window;
mod window_list;

pub use augmentation::{
    AugmentMode, Augmentation, Jitter, Scaling, Storage, TimeWarp, VolatilityScaling,
};
pub use column::{Backing, Column};
pub use control::{Request, Requests};
pub use count::{count, quoted};
pub use equal::EqualSeries;
pub use event::{Event, Listener, Silent, is_training, number_or_nan, numbers_or_nan};
pub use filled::Filled;
pub use folds::{Fold, WalkForward, walk_forward};
pub use forecast::{Calendar, ForecastRule, ForecastScaler, Predicted};
pub use key::{Key, KeyBuilder, ParseKeyError};
pub use machine::{GpuSample, MachineSample, MemoryPool};
pub use nearest::{nearest, nearest_by};
pub use normalise::{Normalisation, NormaliseError, Normaliser};
pub use outliers::{Outlier, outliers};
pub use precision::{
    MatmulPrecision, ParsePrecisionError, ParsePrecisionRuleError, Precision, PrecisionRule,
};
pub use random::{Draws, Stream};
pub use series::{Channel, Origin, Role, Series, SeriesError, SeriesSet, StepLabels};
pub use split::{EqualPolicy, Split, SplitError, SplitRule, split, unseen};
pub use stretch::{LEAST_STRETCH, SharedStretch, Steps, shared_stretches};
pub use telling::{Telling, telling_channels};
pub use texts::LabelledTexts;
pub use thread::new_thread;
#[doc(hidden)]
pub use thread::with_threads;
pub use unchanging::{Unchanging, unchanging_channels, unchanging_targets};
pub use values::{Narrow, SeriesValues};
pub use window::{HeldOutWindows, Labels, TrainWindows, Window, WindowRule, Windows};
pub use window_list::{Iter as WindowIter, WindowList};
