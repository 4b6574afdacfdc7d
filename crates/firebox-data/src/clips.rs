//! Small generated clips of unequal length: many channels driven by a few waves, whose frequencies
//! tell the classes apart and whose phases and amplitudes do not.
//!
//! The same mixing of waves into channels serves all classes, so that no single step and no mean of a
//! clip shows its class. Nothing real looks like this.

use std::f64::consts::TAU;
use std::path::Path;

use firebox_core::{Channel, Origin, Role, Stream};
use serde::{Deserialize, Serialize};

use crate::DataError;
use crate::raw::{Piece, Raw, RawLabels, RawSeries, Rows};

/// Of the generator. A change of the clips that it makes needs a new number.
pub(crate) const VERSION: u32 = 1;
/// Waves behind the channels of a clip.
const WAVES: usize = 3;

/// Settings of generated clips: the content of a `.clips.toml` file.
///
/// # Example
///
/// ```
/// use firebox_core::Silent;
/// use firebox_data::{DataConfig, ingest};
///
/// let folder = tempfile::tempdir()?;
/// let file = folder.path().join("small.clips.toml");
/// std::fs::write(&file, "clips = 12\nclasses = 3\nchannels = 5")?;
/// let data = ingest(&DataConfig::new(&file), folder.path(), &Silent)?;
/// assert_eq!((data.set.series().len(), data.set.classes().len()), (12, 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClipsConfig {
    /// Seed of every draw.
    pub seed: u64,
    /// Number of clips, divided evenly among the classes; at least one a class.
    pub clips: usize,
    /// Number of classes, at least 2.
    pub classes: usize,
    /// Numbers of a step; R4: 1,024.
    pub channels: usize,
    /// Steps of the shortest clip, at least 2.
    pub shortest: usize,
    /// Steps of the longest clip; R4: 500 after cutting.
    pub longest: usize,
    /// Standard deviation of the noise on every value, where that of the signal is about 1; 0 or
    /// more.
    pub noise: f64,
}

impl Default for ClipsConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            clips: 300,
            classes: 5,
            channels: 24,
            shortest: 32,
            longest: 64,
            noise: 0.7,
        }
    }
}

impl ClipsConfig {
    fn check(&self) -> Result<(), DataError> {
        let rules = [
            ("classes", self.classes, (2..=1000).contains(&self.classes), "from 2 to 1000"),
            (
                "clips",
                self.clips,
                (self.classes..=1_000_000).contains(&self.clips),
                "at least one a class and at most a million",
            ),
            ("channels", self.channels, (1..=65_536).contains(&self.channels), "from 1 to 65536"),
            ("shortest", self.shortest, self.shortest >= 2, "at least 2"),
            (
                "longest",
                self.longest,
                (self.shortest..=1_000_000).contains(&self.longest),
                "at least `shortest` and at most a million",
            ),
        ];
        let wrong = |key: &str, found: String, wanted: &str| {
            let (key, wanted) = (key.to_owned(), format!("it must be {wanted}"));
            Err(DataError::Clips { key, found, wanted })
        };
        if let Some((key, found, _, wanted)) = rules.into_iter().find(|(_, _, holds, _)| !holds) {
            return wrong(key, found.to_string(), wanted);
        }
        match self.noise >= 0.0 && self.noise.is_finite() {
            true => Ok(()),
            false => wrong("noise", self.noise.to_string(), "finite and 0 or more"),
        }
    }

    /// The clips as series, for the checks that all data goes through.
    pub(crate) fn raw(&self, path: &Path, origin: Origin) -> Result<Raw, DataError> {
        self.check()?;
        let stream = Stream::new(self.seed, "clips");
        let mut draws = stream.substream(u64::MAX).draws();
        let mixing: Vec<f64> = (0..WAVES * self.channels).map(|_| draws.normal()).collect();
        let series = (0..self.clips).map(|index| {
            let columns = self.clip(index % self.classes, &mixing, stream.substream(index as u64));
            RawSeries {
                name: format!("clip {}", index + 1),
                origin,
                pieces: vec![Piece {
                    path: path.into(),
                    steps: columns[0].len(),
                    rows: Rows::From(1),
                }],
                time: None,
                columns,
                labels: RawLabels::Whole((index % self.classes) as u32),
            }
        });
        let names = (0..self.channels).map(|at| Channel::new(format!("channel-{at}"), Role::Other));
        Ok(Raw {
            series: series.collect(),
            channels: names.collect(),
            classes: (1..=self.classes).map(|class| format!("class {class}")).collect(),
            label: Some("class".to_owned()),
            ..Raw::default()
        })
    }

    /// One column a channel.
    fn clip(&self, class: usize, mixing: &[f64], stream: Stream) -> Vec<Vec<f64>> {
        let mut draws = stream.draws();
        let steps = self.shortest + draws.below((self.longest - self.shortest + 1) as u64) as usize;
        let amplitude = (0.3 * draws.normal()).exp();
        let waves: Vec<(f64, f64)> = (0..WAVES)
            .map(|wave| {
                // Cycles a step, from 1/20 to 1/3, in another order of the classes for each wave.
                let place = (class * (2 * wave + 1)) % self.classes;
                let share = (place as f64 + 0.2 * draws.normal()) / self.classes as f64;
                (0.05 * (20.0f64 / 3.0).powf(share), TAU * draws.normal())
            })
            .collect();
        let scale = amplitude * (2.0 / WAVES as f64).sqrt();
        (0..self.channels)
            .map(|channel| {
                let value = |step: usize| {
                    let of = |(wave, (rate, phase)): (usize, &(f64, f64))| {
                        mixing[wave * self.channels + channel]
                            * (TAU * rate * step as f64 + phase).sin()
                    };
                    waves.iter().enumerate().map(of).sum::<f64>()
                };
                (0..steps).map(|t| scale * value(t) + self.noise * draws.normal()).collect()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated::settings;

    #[test]
    fn clips_are_those_that_were_asked_for_and_the_same_each_time() {
        let config = ClipsConfig { clips: 23, channels: 3, ..ClipsConfig::default() };
        let raw = config.raw(Path::new("x"), Origin::Unassigned).unwrap();
        assert_eq!(raw, config.raw(Path::new("x"), Origin::Unassigned).unwrap());
        let lengths: Vec<usize> = raw.series.iter().map(RawSeries::len).collect();
        assert!(lengths.iter().all(|length| (32..=64).contains(length)));
        assert!(lengths.iter().min() < lengths.iter().max());
        let all = raw.series.iter().flat_map(|series| series.columns.iter().flatten());
        let (mut count, mut square) = (0.0, 0.0);
        all.for_each(|value| {
            count += 1.0;
            square += value * value;
        });
        assert!((0.5f64..4.0).contains(&(square / count)), "{}", square / count);
    }

    #[test]
    fn what_cannot_be_is_named() {
        let message = |text: &str| {
            let config = settings::<ClipsConfig>(Path::new("x"), text.as_bytes())?;
            config.raw(Path::new("x"), Origin::Unassigned).map(|_| ())
        };
        let refused = |text: &str, expected: &str| {
            let error = message(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        refused("clip = 3", "unknown field `clip`");
        refused("clips = 3", "the clips' `clips` is 3");
        refused("longest = 5", "`longest` is 5: it must be at least `shortest`");
        refused("noise = nan", "`noise` is NaN");
        message("clips = 5").unwrap();
    }
}
