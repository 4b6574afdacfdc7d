//! The `[train.optimizer]` table. What an optimizer computes is in firebox-kernels.

use firebox_kernels::UpdateRule;
use serde::{Deserialize, Serialize};

use super::{ConfigError, check, check_in_f32};

/// The optimizer: `[train.optimizer.adamw]` or `[train.optimizer.sgd]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Optimizer {
    /// Adam with decoupled weight decay, as `torch.optim.AdamW` computes it.
    #[serde(rename = "adamw")]
    AdamW(AdamWConfig),
    /// Stochastic gradient descent, as `torch.optim.SGD` computes it.
    Sgd(SgdConfig),
}

impl Default for Optimizer {
    fn default() -> Self {
        Self::AdamW(AdamWConfig::default())
    }
}

impl Optimizer {
    /// Peak learning rate.
    pub fn learning_rate(&self) -> f64 {
        match self {
            Self::AdamW(config) => config.learning_rate,
            Self::Sgd(config) => config.learning_rate,
        }
    }

    /// Weight decay of the parameters that decay.
    pub fn weight_decay(&self) -> f64 {
        match self {
            Self::AdamW(config) => config.weight_decay,
            Self::Sgd(config) => config.weight_decay,
        }
    }

    /// Which parameters decay.
    pub fn decay(&self) -> Decay {
        match self {
            Self::AdamW(config) => config.decay,
            Self::Sgd(config) => config.decay,
        }
    }

    /// What is kept of each parameter, under PyTorch's names.
    pub fn moments(&self) -> &'static [&'static str] {
        match self {
            Self::AdamW(_) => &["exp_avg", "exp_avg_sq"],
            Self::Sgd(config) if config.momentum > 0.0 => &["momentum_buffer"],
            Self::Sgd(_) => &[],
        }
    }

    pub(crate) fn rule(&self) -> UpdateRule {
        match self {
            Self::AdamW(AdamWConfig { betas, eps, .. }) => {
                UpdateRule::AdamW { betas: *betas, eps: *eps }
            }
            Self::Sgd(SgdConfig { momentum, dampening, nesterov, .. }) => {
                UpdateRule::Sgd { momentum: *momentum, dampening: *dampening, nesterov: *nesterov }
            }
        }
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let keys = match self {
            Self::AdamW(_) => ["optimizer.adamw.learning_rate", "optimizer.adamw.weight_decay"],
            Self::Sgd(_) => ["optimizer.sgd.learning_rate", "optimizer.sgd.weight_decay"],
        };
        let (positive, not_negative) =
            ("above 0, and finite in f32", "0 or more, and finite in f32");
        // Weights are f32, and so is what they are moved by.
        let in_f32 = |value: f64| (value as f32).is_finite();
        check(keys[0], self.learning_rate(), |v| v as f32 > 0.0 && in_f32(v), positive)?;
        check(keys[1], self.weight_decay(), |v| v >= 0.0 && in_f32(v), not_negative)?;
        let (share, below) = (|v| (0.0..1.0).contains(&v), "at least 0 and below 1");
        match self {
            Self::AdamW(AdamWConfig { betas, eps, .. }) => {
                let allowed = "above 0 and a normal number of f32 (1.2e-38 to 3.4e38)";
                check_in_f32("optimizer.adamw.eps", *eps, 0.0, allowed)?;
                betas
                    .iter()
                    .try_for_each(|beta| check("optimizer.adamw.betas", *beta, share, below))
            }
            Self::Sgd(SgdConfig { momentum, dampening, nesterov, .. }) => {
                check("optimizer.sgd.momentum", *momentum, share, below)?;
                check("optimizer.sgd.dampening", *dampening, share, below)?;
                let fits = |_| !nesterov || (*momentum > 0.0 && *dampening == 0.0);
                let allowed = "true with a momentum above 0 and no dampening only";
                check("optimizer.sgd.nesterov", *nesterov, fits, allowed)
            }
        }
    }
}

/// Settings of AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdamWConfig {
    /// Peak learning rate, above 0; the schedule scales it.
    pub learning_rate: f64,
    /// Decay of the running means of the gradient and of its square, each `0 ≤ β < 1`. PyTorch's
    /// default.
    pub betas: [f64; 2],
    /// Added to the root of the second moment, above 0, in f32 too. PyTorch's default.
    pub eps: f64,
    /// Share of each weight, times the learning rate, that is taken away at each step; 0 or more.
    pub weight_decay: f64,
    /// Which parameters decay.
    pub decay: Decay,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        Self {
            learning_rate: 1e-3,
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 1e-4,
            decay: Decay::All,
        }
    }
}

/// Settings of stochastic gradient descent (Sutskever et al., "On the importance of initialization
/// and momentum in deep learning", 2013). Defaults without another source are PyTorch's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SgdConfig {
    /// Peak learning rate, above 0; the schedule scales it.
    pub learning_rate: f64,
    /// Share of the last direction that is kept, at least 0 and below 1. Firebox's own default.
    pub momentum: f64,
    /// Share of the gradient that the momentum leaves out, at least 0 and below 1.
    pub dampening: f64,
    /// Whether the gradient is taken as if the momentum had been followed already.
    pub nesterov: bool,
    /// Share of each weight that is added to its gradient; 0 or more.
    pub weight_decay: f64,
    /// Which parameters decay.
    pub decay: Decay,
}

impl Default for SgdConfig {
    fn default() -> Self {
        Self {
            learning_rate: 1e-3,
            momentum: 0.9,
            dampening: 0.0,
            nesterov: false,
            weight_decay: 0.0,
            decay: Decay::All,
        }
    }
}

/// Which parameters weight decay acts on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decay {
    /// Every parameter, as PyTorch does when it is given all of them in one group.
    #[default]
    All,
    /// Only parameters of two or more axes: no biases, no norms, no tokens.
    Matrices,
}
