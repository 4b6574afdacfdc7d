//! A linear probe scored on validation windows: for whoever chooses between encoders, while test windows
//! stay unseen. It is no evaluation: it has no interval and no baseline.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use burn::tensor::Device;
use firebox_loader::Source;
use firebox_models::Encoder;

use crate::embed::{Chosen, PARTS};
use crate::probe::validation_predictions;
use crate::{Confusion, EvalConfig, EvalError};

/// Labelled training and validation windows, chosen once, on which any number of encoders are scored.
pub struct ValidationProbe {
    config: EvalConfig,
    /// Training and validation windows.
    chosen: [Chosen; 2],
    classes: usize,
}

impl ValidationProbe {
    /// Chooses labelled windows of both parts, at most `train_limit` of each, from all over
    /// the part. `None` if a part has none.
    ///
    /// # Errors
    ///
    /// When a setting cannot be, or a window cannot be read.
    pub fn new(
        config: &EvalConfig,
        train: &Arc<dyn Source>,
        validation: &Arc<dyn Source>,
    ) -> Result<Option<Self>, EvalError> {
        config.validate()?;
        let choose =
            |part: usize, source| Chosen::labelled(PARTS[part], source, config.train_limit);
        let chosen = [choose(0, train)?.0, choose(1, validation)?.0];
        let classes = train.classes().len();
        let nothing = chosen.iter().any(Source::is_empty);
        Ok((!nothing).then(|| Self { config: config.clone(), chosen, classes }))
    }

    /// How often the probe predicts each class for the validation windows of each class. It is fitted on
    /// features of training windows alone; validation windows choose its penalty. Once `halt` is true, it ends after the
    /// iteration of a fit that it is in.
    ///
    /// # Errors
    ///
    /// When a window cannot be read, or an embedding is not finite. [`EvalError::Stopped`] by `halt`.
    pub fn confusion<E: Encoder>(
        &self,
        encoder: &E,
        device: &Device,
        halt: &AtomicBool,
    ) -> Result<Confusion, EvalError> {
        let encode = |part: usize| {
            let (part, chosen) = (PARTS[part], &self.chosen[part]);
            let features = chosen.encode(part, encoder, self.config.batch_size, device)?;
            features.check(part, features.width, self.classes)?;
            Ok::<_, EvalError>(features)
        };
        let (train, validation) = (encode(0)?, encode(1)?);
        let (probe, classes) = (&self.config.probe, self.classes);
        let predicted = validation_predictions(probe, classes, &train, &validation, halt)?;
        Ok(Confusion::of(classes, &validation.labels, &predicted))
    }
}
