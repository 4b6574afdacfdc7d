//! Events that several tests make.

use firebox_core::Event;

/// A step of four samples, skipped if its loss is not finite.
pub(crate) fn step(step: u64, loss: f64) -> Event {
    Event::Step {
        step,
        epoch: 1,
        loss,
        learning_rate: 1e-3,
        gradient_norm: loss,
        samples: 4,
        milliseconds: 10.0,
        data_milliseconds: 1.0,
        skipped: !loss.is_finite(),
    }
}
