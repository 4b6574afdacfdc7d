//! The objective of encoders that learn by contrast.

use firebox_loader::Batch;
use firebox_models::{DilatedEncoder, Loss, PretrainBatch};

use crate::objective::{Objective, Streams};

/// Contrast of two views of each window; see [`DilatedEncoder::contrast_loss`]. Views are drawn for
/// each batch, and each part of one; of held-out batches they are the same in every epoch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contrasting;

impl Objective<DilatedEncoder> for Contrasting {
    fn loss(&self, model: &DilatedEncoder, batch: &Batch, streams: Streams) -> Loss {
        let Batch { inputs, lengths, indices, .. } = batch;
        let batch = PretrainBatch { inputs: inputs.clone(), lengths, indices };
        // Others in another batch of the same step.
        let own = indices.first().map_or(0, |index| *index as u64);
        model.contrast_loss(&batch, streams.samples.substream(own))
    }
}
