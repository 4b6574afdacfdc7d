//! `[pseudolabel]`: what reference system R4 needs beside the tables that all pipelines have.

use firebox_loader::Masking;
use firebox_models::CnnBiLstmConfig;
use serde::{Deserialize, Serialize};

use crate::config::check_masking;
use crate::error::PipelineError;

/// Clusters at most. Those of an iteration are named as those of the one before by the Hungarian method, whose steps are
/// up to the cube of their number: half a second for a thousand, some five for these.
const MOST_CLUSTERS: usize = 2048;

/// `[pseudolabel]`: an encoder that learns from its own clusters, again and again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PseudolabelConfig {
    /// Clusters, which are the classes that are trained; from 2 to 2048. R4: 5. Deep clustering works
    /// best with more than there are true classes (Caron et al., 2018).
    pub clusters: usize,
    /// Most iterations of clustering and training; at least 1. R4: 10. Each draws its order of batches, noise, dropout
    /// and what is hidden anew, by a seed of its own: that of the run and one more for each iteration before it.
    pub iterations: usize,
    /// The iterations end once at most this share of the training windows has changed its cluster,
    /// `0 ≤ share < 1`.
    pub settled: f64,
    /// Starts of K-means in each iteration; at least 1.
    pub restarts: u32,
    /// Standard deviation of the noise on normalised values in training, 0 or more; R4: 0.005.
    pub noise: f64,
    /// A run of fewer steps than this is hidden from each window in training; 0 or 1: none. R4: 20.
    pub time_mask: usize,
    /// Stretches of steps, and channels, that are hidden of training windows beside that run, drawn anew in each epoch
    /// of each iteration (SpecAugment's masks); none by default.
    #[serde(skip_serializing_if = "Masking::is_off")]
    pub masking: Masking,
    /// The encoder and its classifier.
    pub model: CnnBiLstmConfig,
}

impl Default for PseudolabelConfig {
    fn default() -> Self {
        Self {
            clusters: 5,
            iterations: 10,
            settled: 0.01,
            restarts: 10,
            noise: 0.005,
            time_mask: 20,
            masking: Masking::default(),
            model: CnnBiLstmConfig::default(),
        }
    }
}

impl PseudolabelConfig {
    /// Checks every setting by itself.
    pub(crate) fn validate(&self) -> Result<(), PipelineError> {
        let refuse = |key: &str, found: String, allowed: &str| {
            Err(PipelineError::Setting(format!(
                "`pseudolabel.{key}` is {found}; it must be {allowed}"
            )))
        };
        if self.clusters < 2 {
            return refuse("clusters", self.clusters.to_string(), "from 2 to 2048");
        }
        if self.clusters > MOST_CLUSTERS {
            let allowed = "from 2 to 2048, as naming clusters after those of the iteration before takes the cube of their \
                           number\n  set fewer; finer groups can be found afterwards in the vectors that `firebox embed` writes";
            return refuse("clusters", self.clusters.to_string(), allowed);
        }
        if !(1..=1000).contains(&self.iterations) {
            return refuse("iterations", self.iterations.to_string(), "from 1 to 1000");
        }
        if !(0.0..1.0).contains(&self.settled) {
            return refuse("settled", self.settled.to_string(), "at least 0 and below 1");
        }
        if self.restarts == 0 {
            return refuse("restarts", "0".to_owned(), "at least 1");
        }
        if !(self.noise >= 0.0 && (self.noise as f32).is_finite()) {
            return refuse("noise", self.noise.to_string(), "finite in f32 and 0 or more");
        }
        check_masking(&self.masking, "pseudolabel")?;
        Ok(self.model.validate()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_named() {
        let refused = |text: &str, expected: &str| {
            let config: PseudolabelConfig = toml::from_str(text).unwrap();
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        refused("clusters = 1", "`pseudolabel.clusters` is 1; it must be from 2 to 2048");
        refused(
            "clusters = 2049",
            "`pseudolabel.clusters` is 2049; it must be from 2 to 2048, as naming",
        );
        refused("clusters = 2049", "\n  set fewer; ");
        toml::from_str::<PseudolabelConfig>("clusters = 2048").unwrap().validate().unwrap();
        refused("iterations = 0", "`pseudolabel.iterations` is 0");
        refused("settled = 1.0", "`pseudolabel.settled` is 1");
        refused("restarts = 0", "`pseudolabel.restarts` is 0");
        refused("noise = -1.0", "`pseudolabel.noise` is -1");
        refused("masking = { channels = 1.0 }", "`pseudolabel.masking.channels` is 1");
        refused("model = { kernel = 2 }", "`kernel` is 2");
        assert!(toml::from_str::<PseudolabelConfig>("cluster = 3").is_err());
        PseudolabelConfig::default().validate().unwrap();
    }
}
