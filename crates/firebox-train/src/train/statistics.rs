//! Running statistics of batch normalisations under averaged weights.

use std::sync::atomic::Ordering;

use burn::module::Module;
use firebox_core::Stream;
use firebox_kernels::with_batch_statistics;
use firebox_loader::{LoadError, Position, TrainLoader};
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
    /// `torch.optim.swa_utils.update_bn`, which takes all batches. Where a normalisation is frozen, its statistics are the
    /// latest, and so are those of all others; so they are where every part is a single window, and that is told.
    /// Single windows before the first that are several count for nothing.
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
        if count == 0 || self.average.count == 0 {
            return Ok(());
        }
        // A run that goes on here has taken no step yet.
        self.freeze();
        if !Average::moves_statistics(&self.model) {
            return Ok(());
        }
        let _statistics = info_span!("statistics of the average").entered();
        // Of whoever stopped here before, these are others.
        self.average.take_statistics(&self.model);
        let (work, step) = (BatchWork::Statistics, self.state.step);
        loop {
            // What steps had too little memory for, a pass may have too little for.
            let parts = [work, BatchWork::Step].map(|work| self.divisions.parts(work, step));
            let parts = parts[0].max(parts[1]);
            match if_memory_lasts(|| self.pass(objective, train, count, parts))? {
                Some((model, passes)) => {
                    self.average.take_statistics(&model);
                    if passes == 0 {
                        self.tell_no_statistics(parts);
                    }
                    return Ok(());
                }
                None => self.divide(work, step, parts)?,
            }
        }
    }

    /// The model with the averaged weights after forward passes of so many batches, each in `parts`, which left it the
    /// means of their statistics, and the passes that were made. In no graph: autodiff would keep all that is never asked
    /// for a gradient.
    fn pass<O: Objective<M>>(
        &mut self,
        objective: &O,
        train: &TrainLoader,
        count: u64,
        parts: u64,
    ) -> Result<(M, u64), TrainError> {
        let model = self.average.apply(self.model.valid());
        let epoch = self.state.position.epoch + 1;
        let mut batches = train.epoch_beside(Position { epoch, batch: 0 });
        let [masks, dropout] = ["statistics masks", "statistics dropout"]
            .map(|purpose| Stream::new(self.run.seed, purpose));
        let (mut passes, mut several) = (0_u64, false);
        for number in 0..count {
            if self.run.stop.load(Ordering::Relaxed) {
                return Err(TrainError::Load(LoadError::Stopped));
            }
            let batch = self.next_batch(&mut batches).ok_or(TrainError::Short { epoch })??;
            check_batch(&batch)?;
            let is_one = batch.len() == 1;
            // A single window may be a single row, which has no statistics.
            for batch in batch.parts(parts).into_iter().filter(|part| is_one || part.len() > 1) {
                // Where single windows came first, those of other weights are still there: the mean is begun anew.
                if batch.len() > 1 && !std::mem::replace(&mut several, true) {
                    passes = 0;
                }
                self.begin(BatchWork::Statistics, self.state.step, parts, &batch);
                let samples = masks.substream(number);
                let streams = Streams { samples, dropout: Some(dropout.substream(passes)) };
                passes += 1;
                let loss = with_batch_statistics(1.0 / passes as f64, || {
                    objective.loss(&model, &batch, streams)
                });
                // Memory is asked for one batch at a time, and its want is heard of here.
                let weight = loss.weight;
                read(&[loss], weight, &Gradients::default())?;
            }
            self.watch.end();
        }
        Ok((model, passes))
    }
}
