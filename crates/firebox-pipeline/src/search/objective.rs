//! `search.objectives`: what trials are compared by. Each is measured on validation data or by counting:
//! nothing is chosen by test data, so scores are none of them.

use firebox_search::Direction;
use serde::{Deserialize, Serialize};

/// What a search minimises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// The least validation loss of all epochs.
    ValidationLoss,
    /// Numbers that the model learns: what it takes on disk and, nearly, in use.
    Parameters,
}

impl Objective {
    const ALL: [Self; 2] = [Self::ValidationLoss, Self::Parameters];

    /// As it is written in a file.
    fn key(self) -> &'static str {
        match self {
            Self::ValidationLoss => "validation-loss",
            Self::Parameters => "parameters",
        }
    }

    /// Its name for a reader.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ValidationLoss => "validation loss",
            Self::Parameters => "parameters",
        }
    }

    /// Less is better of each.
    pub(super) fn direction(self) -> Direction {
        match self {
            Self::ValidationLoss | Self::Parameters => Direction::Minimize,
        }
    }
}

/// The objectives of a search: the validation loss, and others after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Objectives(Vec<Objective>);

impl Objectives {
    /// All of them; the first is the validation loss.
    pub fn all(&self) -> &[Objective] {
        &self.0
    }

    pub(super) fn directions(&self) -> Vec<Direction> {
        self.0.iter().map(|objective| objective.direction()).collect()
    }

    pub(super) fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|objective| objective.name()).collect()
    }
}

impl Default for Objectives {
    fn default() -> Self {
        Self(vec![Objective::ValidationLoss])
    }
}

/// As it is written in a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "`search.objectives` is a name or a list of names, such as [\"validation-loss\", \"parameters\"]"
)]
enum Written {
    One(String),
    Several(Vec<String>),
}

impl TryFrom<Written> for Objectives {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let names = match written {
            Written::One(name) => vec![name],
            Written::Several(names) => names,
        };
        let mut objectives = vec![];
        for name in &names {
            let known = Objective::ALL.into_iter().find(|objective| objective.key() == name);
            let Some(objective) = known else {
                let all = Objective::ALL.map(Objective::key).join(", ");
                return Err(format!(
                    "a search has no objective {name:?}; there are {all}. Nothing is chosen by test data, \
                     so scores are none"
                ));
            };
            if objectives.contains(&objective) {
                return Err(format!("the objective {name:?} stands there twice"));
            }
            objectives.push(objective);
        }
        if objectives.first() != Some(&Objective::ValidationLoss) {
            return Err("the first objective of a search is \"validation-loss\"; others follow it"
                .to_owned());
        }
        Ok(Self(objectives))
    }
}

impl From<Objectives> for Written {
    fn from(objectives: Objectives) -> Self {
        match objectives.0.as_slice() {
            [one] => Self::One(one.key().to_owned()),
            several => Self::Several(several.iter().map(|one| one.key().to_owned()).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Table {
        objectives: Objectives,
    }

    #[test]
    fn they_are_a_name_or_names_and_the_first_is_the_loss() {
        let read = |value: &str| toml::from_str::<Table>(&format!("objectives = {value}"));
        let one = read("\"validation-loss\"").unwrap().objectives;
        assert_eq!(one, Objectives::default());
        let both = read("[\"validation-loss\", \"parameters\"]").unwrap();
        assert_eq!(both.objectives.names(), ["validation loss", "parameters"]);
        assert_eq!(both.objectives.directions(), [Direction::Minimize; 2]);
        let again: Table = toml::from_str(&toml::to_string(&both).unwrap()).unwrap();
        assert_eq!(again.objectives, both.objectives);
        for (wrong, expected) in [
            ("\"accuracy\"", "no objective \"accuracy\"; there are validation-loss, parameters"),
            ("[\"parameters\"]", "the first objective of a search is \"validation-loss\""),
            ("[]", "the first objective of a search is"),
            ("[\"validation-loss\", \"validation-loss\"]", "stands there twice"),
            ("3", "is a name or a list of names"),
        ] {
            let said = read(wrong).unwrap_err().to_string();
            assert!(said.contains(expected), "{wrong}: {said}");
        }
    }
}
