//! What can be wrong with a model's configuration or with weights brought to it.

use firebox_core::quoted;

/// A model that cannot be built, or weights that do not fit it.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A setting lies outside what the model allows.
    #[error("model setting `{key}` is {found}; it must be {allowed}")]
    Setting {
        /// The key within the model's table.
        key: &'static str,
        /// Its value.
        found: String,
        /// The values that it may have.
        allowed: &'static str,
    },
    /// Weights are missing, left over, or of another shape.
    #[error("{0}")]
    Mismatch(#[from] Mismatch),
}

/// How given weights differ from the parameters of a model. Each list is sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mismatch {
    /// Parameters that the weights lack.
    pub missing: Vec<String>,
    /// Weights that no parameter has the name of.
    pub unexpected: Vec<String>,
    /// Name, shape of the parameter, shape of the weights, both in PyTorch's layout.
    pub shapes: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// Parameters whose name and shape agree.
    pub matched: usize,
}

impl Mismatch {
    /// Whether every name and shape agrees.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.shapes.is_empty()
    }
}

impl std::error::Error for Mismatch {}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let total = self.matched + self.missing.len() + self.shapes.len();
        write!(f, "the weights fit {} of the model's {total} parameters", self.matched)?;
        if !self.missing.is_empty() {
            write!(f, "; missing: {}", quoted(&self.missing, 6))?;
        }
        if !self.unexpected.is_empty() {
            write!(f, "; unexpected: {}", quoted(&self.unexpected, 6))?;
        }
        for (name, wanted, found) in self.shapes.iter().take(6) {
            write!(f, "; `{name}` has shape {found:?} where the model has {wanted:?}")?;
        }
        write!(f, ". Build the model with the settings that the weights were trained with")
    }
}
