//! The objective of encoders that learn by contrast.

use firebox_loader::Batch;
use firebox_models::{DilatedEncoder, Loss, PretrainBatch};

use crate::objective::{Objective, Streams};

/// Contrast of two views of each window; see [`DilatedEncoder::contrast_loss`]. Views are drawn for
/// each step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contrasting;

impl Objective<DilatedEncoder> for Contrasting {
    fn loss(&self, model: &DilatedEncoder, batch: &Batch, streams: Streams) -> Loss {
        let Batch { inputs, lengths, indices, .. } = batch;
        let batch = PretrainBatch { inputs: inputs.clone(), lengths, indices };
        model.contrast_loss(&batch, streams.samples)
    }
}
