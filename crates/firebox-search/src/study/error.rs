//! Why a study or one of its trials cannot go on.

use crate::space::DistributionError;
use crate::storage::StorageError;

/// A study that cannot be used so.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// The journal failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A new study has the name of one that is there.
    #[error("{storage} already holds a study `{name}`\n  continue it, or choose another name")]
    Exists {
        /// Where.
        storage: String,
        /// Its name.
        name: String,
    },
    /// A study is not there.
    #[error("{storage} holds no study `{name}`{}\n  check the name, or begin the study", listed(.known))]
    Missing {
        /// Where.
        storage: String,
        /// What was asked for.
        name: String,
        /// The studies that are there.
        known: Vec<String>,
    },
    /// A study is continued as another than it was begun as.
    #[error(
        "the study `{name}` has {found}, and this one has {wanted}\n  give the study another name, \
         or continue it as it was begun"
    )]
    Shape {
        /// Its name.
        name: String,
        /// What the journal holds.
        found: String,
        /// What was to be continued.
        wanted: String,
    },
    /// A parameter cannot have this distribution or value.
    #[error("the parameter `{name}` cannot be: {source}")]
    Parameter {
        /// The parameter.
        name: String,
        /// Why not.
        #[source]
        source: DistributionError,
    },
    /// A condition names what is not there.
    #[error("the parameter `{name}` depends on `{on}`, {reason}")]
    Condition {
        /// The parameter.
        name: String,
        /// What it depends on.
        on: String,
        /// What is wrong with that.
        reason: &'static str,
    },
    /// A trial was ended by another worker, which had taken this one for dead.
    #[error(
        "trial {number} has ended already: another worker saw no sign of life of this one and tries \
         it again"
    )]
    Ended {
        /// Number of the trial.
        number: u64,
    },
    /// Values at steps have a meaning for one objective only.
    #[error("a study of {0} objectives takes no values at steps")]
    ManyObjectives(usize),
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!(", but `{}`", names.join("`, `")) }
}
