//! Runs a model over held-out windows with masked steps. The errors are counted in `reconstruction`.

use std::sync::Arc;

use burn::tensor::Device;
use firebox_core::{Event, HeldOutWindows, Listener, Stream};
use firebox_loader::{Batch, HeldOutLoader, Source};
use firebox_models::{KeptWeights, Pretrain, PretrainBatch};

use crate::embed::{Chosen, evenly, in_batches};
use crate::{
    EvalConfig, EvalError, MaskedWindow, Reconstruction, ReconstructionTally, Sources, WindowErrors,
};

/// What [`reconstruct`] found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MaskedSample {
    /// The errors; nothing without a window.
    pub reconstruction: Option<Reconstruction>,
    /// A few of the windows to look at, from all over the part.
    pub windows: Vec<MaskedWindow>,
    /// The errors of each window that was measured, in the order of the part.
    pub errors: Vec<WindowErrors>,
}

/// Hides steps of at most [`EvalConfig::test_limit`] held-out windows by the model's own rule, and
/// compares the model's reconstruction of them with naive fills. Masks depend on
/// [`EvalConfig::seed`] and the window alone. `shown` windows are kept to look at.
///
/// # Errors
///
/// When a window cannot be read, or a reconstruction is not finite.
pub fn reconstruct<M: Pretrain>(
    config: &EvalConfig,
    model: &M,
    sources: &Sources,
    shown: usize,
    device: &Device,
    listener: &dyn Listener,
) -> Result<MaskedSample, EvalError> {
    config.validate()?;
    let (indices, every) = evenly(sources.test.len(), config.test_limit);
    if indices.is_empty() {
        return Ok(MaskedSample::default());
    }
    let kept: Vec<usize> = evenly(indices.len(), shown.max(1)).0.into_iter().take(shown).collect();
    let total = indices.len() as u64;
    let chosen = Chosen { source: Arc::clone(&sources.test), indices: indices.clone() };
    let read = |source| EvalError::Read { part: "test", source };
    let settings = in_batches(config.batch_size, chosen.shape());
    let loader = HeldOutLoader::new(Arc::new(chosen), settings, device.clone()).map_err(read)?;
    let mut tally = ReconstructionTally::new(sources.channels.clone());
    let mut windows = Vec::new();
    let weights = KeptWeights::new();
    for batch in loader.batches() {
        let batch = batch.map_err(read)?;
        let own: Vec<usize> = batch.indices.iter().map(|place| indices[*place]).collect();
        let masks = Stream::new(config.seed, "evaluation masks");
        let masked = weights.during(|| masked_windows(model, &batch, &own, masks));
        for (place, mut window) in batch.indices.iter().zip(masked) {
            if let Some(held_out) = &sources.held_out {
                add_filled(held_out, &mut window, sources.channels.len());
            }
            tally.add(&window)?;
            if kept.contains(place) {
                windows.push(window);
            }
        }
        listener.on(&Event::Progress {
            stage: "evaluate".to_owned(),
            done: batch.indices.last().map_or(0, |place| *place as u64 + 1),
            total,
            unit: "masked windows".to_owned(),
        });
    }
    let together = sources.together.of_chosen(&indices, every);
    let reconstruction = tally.finish(config, &together);
    Ok(MaskedSample { reconstruction, windows, errors: tally.windows().to_vec() })
}

/// Adds the values of a window that were put in to those that do not count.
fn add_filled(held_out: &HeldOutWindows, masked: &mut MaskedWindow, channels: usize) {
    let window = held_out.windows().at(masked.index);
    let filled = &held_out.set().series()[window.series as usize].filled;
    let steps = window.steps();
    if !(0..channels).any(|channel| filled.any(channel, steps.clone())) {
        return;
    }
    masked.filled.resize(masked.mask.len() * channels, false);
    let of_step = |step| (0..channels).map(move |channel| filled.holds(channel, step));
    for (uncounted, filled) in masked.filled.iter_mut().zip(steps.flat_map(of_step)) {
        *uncounted |= filled;
    }
}

fn masked_windows<M: Pretrain>(
    model: &M,
    batch: &Batch,
    indices: &[usize],
    masks: Stream,
) -> Vec<MaskedWindow> {
    let [_, time, channels] = batch.inputs.dims();
    let masked = PretrainBatch { inputs: batch.inputs.clone(), lengths: &batch.lengths, indices };
    let mask = model.draw_mask(&masked, masks);
    let scored = model.scored(&mask, &batch.lengths);
    let values =
        |data: burn::tensor::TensorData| data.convert::<f32>().iter::<f32>().collect::<Vec<f32>>();
    let reconstructed = values(model.reconstruct(&masked, &mask).into_data());
    let truth = values(batch.inputs.clone().into_data());
    let row = time * channels;
    batch
        .lengths
        .iter()
        .enumerate()
        .map(|(place, length)| {
            let (range, steps) = (place * row..(place + 1) * row, place * time..(place + 1) * time);
            let mut window = MaskedWindow::from_padded(
                indices[place],
                &truth[range.clone()],
                &reconstructed[range],
                &mask.masked[steps.clone()],
                *length,
                channels,
            );
            let left_out: Vec<bool> = (window.mask.iter().zip(&scored.masked[steps]))
                .map(|(masked, scored)| *masked && !scored)
                .collect();
            if left_out.contains(&true) {
                let of_step = |out: bool| std::iter::repeat_n(out, channels);
                window.filled = left_out.into_iter().flat_map(of_step).collect();
            }
            window
        })
        .collect()
}
