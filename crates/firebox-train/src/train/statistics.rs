//! Running statistics of batch normalisations under averaged weights.

use std::sync::atomic::Ordering;

use burn::module::Module;
use firebox_core::Stream;
use firebox_kernels::with_batch_norm_momentum;
use firebox_loader::{LoadError, Position, TrainLoader};
use firebox_models::Loss;
use tracing::info_span;

use super::{Session, read};
use crate::TrainError;
use crate::average::Average;
use crate::division::{BatchWork, if_memory_lasts};
use crate::gradients::Gradients;
use crate::objective::{Objective, Streams};
use crate::types::check_batch;

impl<M: Module> Session<'_, M> {
    /// Gives the average statistics that belong to its weights, if it is what will be validated: the means of those of
    /// some training batches, the first ones of the next epoch, whose masks and dropout are the same every time. Source:
    /// `torch.optim.swa_utils.update_bn`, which takes all batches.
    ///
    /// # Errors
    /// As those of a step, and if it is told to stop meanwhile.
    pub(super) fn renew_statistics<O: Objective<M>>(
        &mut self,
        objective: &O,
        train: &TrainLoader,
    ) -> Result<(), TrainError> {
        let wanted = self.config.average.map_or(0, |average| average.statistics_batches());
        let count = wanted.min(train.batches_per_epoch());
        if count == 0 || self.average.count == 0 || !Average::has_statistics(&self.model) {
            return Ok(());
        }
        let _statistics = info_span!("statistics of the average").entered();
        // What it needs is within what a step needs.
        let (work, step) = (BatchWork::Step, self.state.step + 1);
        loop {
            let parts = self.divisions.parts(work, step);
            match if_memory_lasts(|| self.pass(objective, train, count, parts))? {
                Some(model) => {
                    self.watch.end();
                    self.average.take_statistics(&model);
                    return Ok(());
                }
                None => self.divide(work, step, parts)?,
            }
        }
    }

    /// The model with the averaged weights after forward passes of so many batches, each in `parts`, which left it the
    /// means of their statistics.
    fn pass<O: Objective<M>>(
        &mut self,
        objective: &O,
        train: &TrainLoader,
        count: u64,
        parts: u64,
    ) -> Result<M, TrainError> {
        let model = self.average.apply(self.model.clone());
        let epoch = self.state.position.epoch + 1;
        let mut batches = train.epoch(Position { epoch, batch: 0 });
        let [masks, dropout] = ["statistics masks", "statistics dropout"]
            .map(|purpose| Stream::new(self.run.seed, purpose));
        let mut passes = 0_u64;
        for number in 0..count {
            if self.run.stop.load(Ordering::Relaxed) {
                return Err(TrainError::Load(LoadError::Stopped));
            }
            let batch = self.next_batch(&mut batches).ok_or(TrainError::Short { epoch })??;
            check_batch(&batch)?;
            for batch in batch.parts(parts) {
                self.begin(BatchWork::Step, self.state.step + 1, parts, &batch);
                let samples = masks.substream(number);
                let streams = Streams { samples, dropout: Some(dropout.substream(passes)) };
                passes += 1;
                let loss = with_batch_norm_momentum(1.0 / passes as f64, || {
                    objective.loss(&model, &batch, streams)
                });
                let Loss { value, weight, .. } = loss;
                // Memory is asked for one batch at a time, and its want is heard of here.
                let value = value.detach().inner();
                read(&[Loss { value, weight, parts: vec![] }], weight, &Gradients::default())?;
            }
        }
        Ok(model)
    }
}
