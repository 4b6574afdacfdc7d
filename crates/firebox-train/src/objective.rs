//! What a run minimises: the one place where the loop meets a kind of model.

use firebox_core::Stream;
use firebox_loader::Batch;
use firebox_models::{Loss, Pretrain, PretrainBatch};

/// The random streams of one batch.
#[derive(Clone, Copy, Debug)]
pub struct Streams {
    /// For what is drawn per sample, such as masks: use `samples.substream(index of the sample)`.
    /// In validation it is the same in every epoch, so that losses can be compared.
    pub samples: Stream,
    /// For dropout; `None` in evaluation.
    pub dropout: Option<Stream>,
}

/// Why a model could not be scored.
pub type ScoreError = Box<dyn std::error::Error + Send + Sync>;

/// A loss of a model on a batch.
pub trait Objective<M>: Sync {
    /// The loss with its weight. The model's parameters want gradients in training and have none
    /// in validation.
    fn loss(&self, model: &M, batch: &Batch, streams: Streams) -> Loss;

    /// Scores of a model that has just been validated, by name, for whoever listens: they are told as
    /// [`Event::Scored`](firebox_core::Event::Scored) before the epoch ends, and decide nothing here.
    /// By default there are none.
    ///
    /// # Errors
    /// Whatever kept the model from being scored; training ends with it.
    fn scores(&self, _model: &M) -> Result<Vec<(&'static str, f64)>, ScoreError> {
        Ok(vec![])
    }
}

/// Masked pre-training, of any model that offers it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pretraining;

impl<M: Pretrain> Objective<M> for Pretraining {
    fn loss(&self, model: &M, batch: &Batch, streams: Streams) -> Loss {
        let Batch { inputs, lengths, indices, .. } = batch;
        let batch = PretrainBatch { inputs: inputs.clone(), lengths, indices };
        model.pretrain_loss(&batch, streams.samples, streams.dropout)
    }
}
