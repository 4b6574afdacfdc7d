//! `search.objectives`: what trials are compared by. Each is measured on validation data or by counting:
//! nothing is chosen by test data, so scores of the test part are none of them.

use firebox_core::Labels;
use firebox_search::{Direction, Trial, TrialState};
use serde::{Deserialize, Serialize};

use super::page::REASON;
use crate::error::PipelineError;
use crate::score::{Score, WantedScores};
use crate::{Kind, PipelineConfig};

/// What a search looks for the least or the greatest value of. Scores are those of the model that the
/// trial keeps: of the epoch with the least validation loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// The least validation loss of all epochs.
    ValidationLoss,
    /// Share of the validation windows that a linear probe on the encoder tells right, fitted on
    /// training windows.
    ValidationAccuracy,
    /// Macro F1 on validation data: of that probe, or of the labels of texts.
    ValidationF1,
    /// R² of forecasts of validation windows, a mean over targets and horizons.
    ValidationR2,
    /// Numbers that the model learns: what it takes on disk and, nearly, in use.
    Parameters,
}

impl Objective {
    const ALL: [Self; 5] = [
        Self::ValidationLoss,
        Self::ValidationAccuracy,
        Self::ValidationF1,
        Self::ValidationR2,
        Self::Parameters,
    ];

    /// As it is written in a file.
    fn key(self) -> &'static str {
        match self {
            Self::ValidationLoss => "validation-loss",
            Self::ValidationAccuracy => "validation-accuracy",
            Self::ValidationF1 => "validation-f1",
            Self::ValidationR2 => "validation-r2",
            Self::Parameters => "parameters",
        }
    }

    /// Its name for a reader.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ValidationLoss => "validation loss",
            Self::ValidationAccuracy => "validation accuracy",
            Self::ValidationF1 => "validation macro F1",
            Self::ValidationR2 => "validation R2",
            Self::Parameters => "parameters",
        }
    }

    /// Which values are better.
    pub(super) fn direction(self) -> Direction {
        match self {
            Self::ValidationLoss | Self::Parameters => Direction::Minimize,
            Self::ValidationAccuracy | Self::ValidationF1 | Self::ValidationR2 => {
                Direction::Maximize
            }
        }
    }

    /// The score that it is, if it is one.
    pub(super) fn score(self) -> Option<Score> {
        match self {
            Self::ValidationLoss | Self::Parameters => None,
            Self::ValidationAccuracy => Some(Score::Accuracy),
            Self::ValidationF1 => Some(Score::F1),
            Self::ValidationR2 => Some(Score::R2),
        }
    }

    /// Why no trial can be compared by this value of it, and the way out; `None` if it is a number.
    fn refused(self, value: f64) -> Option<String> {
        if value.is_finite() {
            return None;
        }
        let (what, why, way_out) = match self {
            Self::ValidationLoss | Self::Parameters => (
                "objective",
                "what was trained left the range of its numbers",
                "lower the optimizer's `learning_rate` or `train.clip`",
            ),
            Self::ValidationAccuracy | Self::ValidationF1 => (
                "score",
                "there is nothing in the validation part by which it can be computed",
                "choose another split or other labels, or search by \"validation-loss\"",
            ),
            Self::ValidationR2 => (
                "score",
                "it needs a target that is not the same in all validation windows, and forecasts that \
                 are numbers",
                "choose other targets or another split, or search by \"validation-loss\"",
            ),
        };
        let is = if value.is_nan() { "not a number" } else { "infinite" };
        Some(format!("the {what} {} is {is}: {why}; {way_out}", self.key()))
    }

    /// Those that trials of this kind of pipeline have.
    fn of(kind: Kind) -> Vec<Self> {
        let scores = kind.chain().scores();
        let has = |own: &Self| own.score().is_none_or(|score| scores.contains(&score));
        Self::ALL.into_iter().filter(has).collect()
    }
}

/// The objectives of a search: one that is measured on validation data, and others after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Objectives(Vec<Objective>);

impl Objectives {
    /// All of them; the first is measured on validation data.
    pub fn all(&self) -> &[Objective] {
        &self.0
    }

    pub(super) fn directions(&self) -> Vec<Direction> {
        self.0.iter().map(|objective| objective.direction()).collect()
    }

    pub(super) fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|objective| objective.name()).collect()
    }

    /// What a trial's training has to score, after each epoch if its epochs are compared.
    pub(super) fn wanted(&self) -> WantedScores {
        let scores = self.0.iter().filter_map(|objective| objective.score()).collect();
        WantedScores { scores, each_epoch: self.0.len() == 1 }
    }

    /// The scores among the values of a trial, in the order of those that are wanted; `None` if a value is
    /// missing or no number.
    pub(super) fn scores(&self, values: &[f64]) -> Option<Vec<f64>> {
        let whole = values.len() == self.0.len() && self.refused(values).is_none();
        let scores = self.0.iter().zip(values).filter(|(objective, _)| objective.score().is_some());
        whole.then(|| scores.map(|(_, value)| *value).collect())
    }

    /// Why a trial with these values has failed, if one of them is no number.
    pub(super) fn refused(&self, values: &[f64]) -> Option<String> {
        self.0.iter().zip(values).find_map(|(objective, value)| objective.refused(*value))
    }

    /// Fails a complete trial with a value that is no number: Optuna and earlier versions of this crate left
    /// such in journals.
    pub(super) fn fail_without_number(&self, trial: &mut Trial) {
        let values = trial.values.as_deref().filter(|_| trial.state == TrialState::Complete);
        if let Some(reason) = values.and_then(|values| self.refused(values)) {
            (trial.state, trial.values) = (TrialState::Fail, None);
            trial.user_attributes.entry(REASON.to_owned()).or_insert_with(|| reason.into());
        }
    }

    /// Refuses scores that this pipeline does not have.
    pub(super) fn check(&self, config: &PipelineConfig) -> Result<(), PipelineError> {
        let known = Objective::of(config.pipeline);
        if let Some(unknown) = self.0.iter().find(|objective| !known.contains(objective)) {
            let (key, kind) = (unknown.key(), config.pipeline.name());
            return Err(PipelineError::Setting(format!(
                "`search.objectives` has {key:?}, and trials of the pipeline `{kind}` have no such score\n  \
                 allowed here: {}",
                keys(known)
            )));
        }
        let scored = self.0.iter().find(|objective| objective.score().is_some());
        match scored {
            Some(score) if config.pipeline == Kind::Pretrain && config.labels == Labels::None => {
                Err(PipelineError::Setting(format!(
                    "`search.objectives` has {:?}, which needs classes, and `labels` is none\n  \
                     set `labels`, such as labels = \"last\", or search by \"validation-loss\"",
                    score.key()
                )))
            }
            _ => Ok(()),
        }
    }
}

fn keys(objectives: Vec<Objective>) -> String {
    objectives.into_iter().map(Objective::key).collect::<Vec<_>>().join(", ")
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
                let all = keys(Objective::ALL.to_vec());
                return Err(format!(
                    "a search has no objective {name:?}; there are {all}. Nothing is chosen by test data, \
                     so its scores are none"
                ));
            };
            if objectives.contains(&objective) {
                return Err(format!("the objective {name:?} stands there twice"));
            }
            objectives.push(objective);
        }
        if objectives.first().is_none_or(|first| *first == Objective::Parameters) {
            return Err("the first objective of a search is measured on validation data, such as \
                        \"validation-loss\"; \"parameters\" may follow it"
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
    fn they_are_a_name_or_names_and_the_first_is_of_validation_data() {
        let read = |value: &str| toml::from_str::<Table>(&format!("objectives = {value}"));
        let one = read("\"validation-loss\"").unwrap().objectives;
        assert_eq!(one, Objectives::default());
        let both = read("[\"validation-loss\", \"parameters\"]").unwrap();
        assert_eq!(both.objectives.names(), ["validation loss", "parameters"]);
        assert_eq!(both.objectives.directions(), [Direction::Minimize; 2]);
        let again: Table = toml::from_str(&toml::to_string(&both).unwrap()).unwrap();
        assert_eq!(again.objectives, both.objectives);
        for (wrong, expected) in [
            (
                "\"accuracy\"",
                "no objective \"accuracy\"; there are validation-loss, validation-acc",
            ),
            ("[\"parameters\"]", "the first objective of a search is measured on validation data"),
            ("[]", "the first objective of a search is"),
            ("[\"validation-loss\", \"validation-loss\"]", "stands there twice"),
            ("3", "is a name or a list of names"),
        ] {
            let said = read(wrong).unwrap_err().to_string();
            assert!(said.contains(expected), "{wrong}: {said}");
        }
    }

    #[test]
    fn a_value_that_is_no_number_is_refused_with_its_reason_and_fails_a_trial() {
        let read = |value: &str| {
            toml::from_str::<Table>(&format!("objectives = {value}")).unwrap().objectives
        };
        let by_r2 = read("\"validation-r2\"");
        let trial = |value: f64| {
            let values = Some(vec![value]);
            Trial { values, ..Trial::new(0, TrialState::Complete) }
        };
        let told = |mut trial: Trial| {
            by_r2.fail_without_number(&mut trial);
            trial
        };
        assert_eq!((by_r2.refused(&[-3.5]), told(trial(-3.5))), (None, trial(-3.5)));
        for (value, expected) in [
            (f64::NAN, "the score validation-r2 is not a number: it needs a target"),
            (f64::NEG_INFINITY, "the score validation-r2 is infinite: it needs a target"),
        ] {
            let reason = by_r2.refused(&[value]).unwrap();
            assert!(reason.starts_with(expected), "{reason}");
            assert!(reason.ends_with("or search by \"validation-loss\""), "{reason}");
            let failed = told(trial(value));
            assert_eq!((failed.state, &failed.values), (TrialState::Fail, &None));
            assert_eq!(failed.user_attributes[REASON], reason.as_str());
        }
        // A reason that is there stays, and so does whatever did not end as complete.
        let mut known = trial(f64::NAN);
        known.user_attributes.insert(REASON.to_owned(), "mine".into());
        assert_eq!(told(known).user_attributes[REASON], "mine");
        let pruned = Trial { state: TrialState::Pruned, ..trial(f64::INFINITY) };
        assert_eq!(told(pruned.clone()), pruned);
        let both = read("[\"validation-loss\", \"parameters\", \"validation-f1\"]");
        assert_eq!(both.scores(&[0.5, 90.0, 0.75]), Some(vec![0.75]));
        assert_eq!((both.scores(&[0.5, 90.0]), both.scores(&[0.5, 90.0, f64::NAN])), (None, None));
        let reason = both.refused(&[f64::INFINITY, 90.0, 0.75]).unwrap();
        assert!(reason.starts_with("the objective validation-loss is infinite"), "{reason}");
        assert!(reason.contains("`learning_rate`"), "{reason}");
    }

    #[test]
    fn scores_are_maximised_and_belong_to_their_pipelines() {
        let read = |value: &str| {
            toml::from_str::<Table>(&format!("objectives = {value}")).unwrap().objectives
        };
        let both = read("[\"validation-f1\", \"parameters\", \"validation-loss\"]");
        let (up, down) = (Direction::Maximize, Direction::Minimize);
        assert_eq!(both.directions(), [up, down, down]);
        assert_eq!((both.wanted().scores, both.wanted().each_epoch), (vec![Score::F1], false));
        assert!(read("\"validation-r2\"").wanted().each_epoch);
        assert!(read("\"validation-loss\"").wanted().scores.is_empty());
        let config = |pipeline, labels| {
            let config = crate::PipelineConfig::default();
            crate::PipelineConfig { pipeline, labels, ..config }
        };
        let last = Labels::Last;
        for (kind, objective, fits) in [
            (Kind::Pretrain, "\"validation-accuracy\"", true),
            (Kind::Pretrain, "[\"validation-f1\", \"validation-accuracy\"]", true),
            (Kind::Pretrain, "\"validation-r2\"", false),
            (Kind::Forecast, "\"validation-r2\"", true),
            (Kind::Forecast, "\"validation-f1\"", false),
            (Kind::Text, "\"validation-f1\"", true),
            (Kind::Text, "\"validation-accuracy\"", false),
            (Kind::Text, "[\"validation-loss\", \"parameters\"]", true),
        ] {
            let said = read(objective).check(&config(kind, last));
            assert_eq!(said.is_ok(), fits, "{kind:?} {objective}: {said:?}");
        }
        let said = read("\"validation-r2\"").check(&config(Kind::Text, last)).unwrap_err();
        let said = said.to_string();
        assert!(
            said.contains("allowed here: validation-loss, validation-f1, parameters"),
            "{said}"
        );
        let none = config(Kind::Pretrain, Labels::None);
        let said = read("\"validation-f1\"").check(&none).unwrap_err().to_string();
        assert!(said.contains("`labels` is none"), "{said}");
        assert!(Objectives::default().check(&none).is_ok());
    }
}
