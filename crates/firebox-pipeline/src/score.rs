//! Scores of models on validation data, by which a search may choose: the test part is never read here.
//!
//! What training minimises is not always what a user wants most of. A run without a search has no such
//! score: its figures are those of the test part, with baselines and intervals.

use std::sync::atomic::Ordering;

use firebox_core::Event;
use firebox_loader::Batch;
use firebox_models::Loss;
use firebox_train::{Objective, ScoreError, Streams};

use crate::chain::Work;
use crate::error::PipelineError;
use crate::stages::Run;

/// A score of which more is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Score {
    /// Share of the windows that a linear probe tells right.
    Accuracy,
    /// Mean F1 of the classes, or of the labels of texts.
    F1,
    /// Mean R² of all targets and horizons.
    R2,
}

impl Score {
    /// As events and trackers have it.
    pub(crate) fn event(self) -> &'static str {
        match self {
            Self::Accuracy => "validation/accuracy",
            Self::F1 => "validation/macro_f1",
            Self::R2 => "validation/r2",
        }
    }
}

/// Which scores are wanted of a training.
#[derive(Clone, Debug, Default)]
pub(crate) struct WantedScores {
    pub(crate) scores: Vec<Score>,
    /// Whether after each validation, too, or only of the model that is kept.
    pub(crate) each_epoch: bool,
}

impl WantedScores {
    /// Of runs that no search began.
    pub(crate) const NONE: Self = Self { scores: vec![], each_epoch: false };
}

/// The values of a model's scores, or why it has none.
type Values = Result<Vec<f64>, PipelineError>;

/// How models of a training are scored: the value of each score that is wanted, in that order.
pub(crate) struct Judge<'a, M> {
    pub(crate) wanted: &'a WantedScores,
    pub(crate) of: Box<dyn Fn(&M) -> Values + Sync + 'a>,
}

/// An objective whose models are scored after each validation.
pub(crate) struct Judged<'a, M, O> {
    pub(crate) objective: &'a O,
    pub(crate) judge: Option<&'a Judge<'a, M>>,
}

impl<M, O: Objective<M>> Objective<M> for Judged<'_, M, O> {
    fn loss(&self, model: &M, batch: &Batch, streams: Streams) -> Loss {
        self.objective.loss(model, batch, streams)
    }

    fn scores(&self, model: &M) -> Result<Vec<(&'static str, f64)>, ScoreError> {
        match self.judge.filter(|judge| judge.wanted.each_epoch) {
            Some(judge) => {
                let values = (judge.of)(model)?;
                Ok(judge.wanted.scores.iter().map(|score| score.event()).zip(values).collect())
            }
            None => Ok(vec![]),
        }
    }
}

impl Run<'_> {
    /// Scores the model that a training kept, if that is wanted. Returns whether it was not stopped
    /// meanwhile.
    pub(crate) fn score<M>(
        &self,
        work: &mut Work<'_>,
        judge: Option<&Judge<'_, M>>,
        model: &M,
    ) -> Result<bool, PipelineError> {
        let Some(judge) = judge else { return Ok(true) };
        let values = match (judge.of)(model) {
            // Whatever it says that it was stopped by, it was stopped.
            Err(_) if self.stop.load(Ordering::SeqCst) => return Ok(false),
            values => values?,
        };
        for (score, value) in judge.wanted.scores.iter().zip(&values) {
            self.listener.on(&Event::Scored { name: score.event().to_owned(), value: *value });
        }
        work.scores = values;
        Ok(true)
    }
}
