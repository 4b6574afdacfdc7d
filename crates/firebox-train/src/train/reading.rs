//! When the numbers of steps are read from the device: of each before it is taken, or of several after they
//! were. What the device decides meanwhile is in `ahead.rs`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Instant;

use burn::module::Module;
use burn::tensor::Tensor;
use firebox_kernels::SquaredNorm;
use firebox_models::Loss;
use tracing::info_span;

use super::Session;
use crate::TrainError;
use crate::ahead::{Ahead, Taken, Unread};
use crate::average::AverageConfig;
use crate::division::{BatchWork, if_memory_lasts};
use crate::gradients::Gradients;

/// The numbers of a step.
pub(super) struct Numbers {
    pub(super) loss: f64,
    pub(super) parts: BTreeMap<String, f64>,
    /// Of the gradients with their factors.
    pub(super) squared_norm: f64,
}

impl Numbers {
    pub(super) fn are_finite(&self) -> bool {
        self.loss.is_finite() && self.squared_norm.is_finite()
    }
}

impl<M: Module> Session<'_, M> {
    /// Takes a step on the device, which decides whether it is finite. `rates` are those that may be its.
    pub(super) fn go_ahead(
        &mut self,
        taken: Taken,
        losses: Vec<Loss>,
        gradients: &Gradients,
        rates: Vec<f64>,
        start: Instant,
    ) {
        let Some(ahead) = &mut self.ahead else { return };
        let _optimizer = info_span!("optimizer").entered();
        let updating = Instant::now();
        let squared_norm = ahead.squared_norm(gradients);
        let step = Unread { taken, losses, squared_norm, rates };
        let state = ahead.begin(&step, &self.state.scaler, self.optimizer.updates);
        let clip = self.config.clipping();
        let state = self.optimizer.step_on_device(&mut self.model, gradients, clip, state);
        if let Some(average) = &self.config.average {
            let steps = ahead.len() as u64 + 1;
            let updates = self.state.updates().saturating_sub(steps);
            let shares = average.shares(taken.epoch - 1, updates, steps, self.average.count);
            if shares.iter().any(|share| *share > 0.0) {
                let share = ahead.share(&state, self.optimizer.updates, shares);
                self.average.follow(&self.model, share);
            }
        }
        ahead.end(step, state, start);
        self.times.computing += updating.elapsed();
    }

    /// What ends this process after the device had too little memory for a step that others were built on: from the
    /// first that may have been it, each batch will be computed in smaller parts.
    fn lose(&mut self) -> TrainError {
        let unread = self.ahead.as_ref().map_or(0, Ahead::len) as u64;
        let (first, last) = (self.state.step + 1 - unread, self.state.step);
        let parts = self.divisions.parts(BatchWork::Step, last);
        let unread = self.ahead.iter().flat_map(Ahead::unread);
        self.samples = unread.map(|step| step.taken.largest).max().unwrap_or(self.samples);
        match self.divide(BatchWork::Step, first, parts) {
            Ok(()) => TrainError::Lost { first, last },
            Err(error) => error,
        }
    }

    /// Reads the steps that nobody has read yet, and writes them down.
    pub(super) fn settle(&mut self) -> Result<(), TrainError> {
        let Some(ahead) = self.ahead.as_mut().filter(|ahead| ahead.len() > 0) else {
            return Ok(());
        };
        let read_back = info_span!("read back").entered();
        let reading = Instant::now();
        let scalars = |step: &Unread| {
            let norm = step.squared_norm.clone();
            scalars(&step.losses).chain([norm]).collect::<Vec<_>>()
        };
        let last = ahead.unread().last().map_or(0, |step| step.taken.step);
        let all = || {
            no_memory(last)?;
            read_all(ahead.unread().iter().flat_map(scalars).collect())
        };
        let Some(values) = if_memory_lasts(all)? else { return Err(self.lose()) };
        let mut values = values.into_iter();
        let (unread, each) = ahead.take();
        drop(read_back);
        self.times.reading_back += reading.elapsed();
        let before = self.state.updates().saturating_sub(unread.len() as u64);
        let mut applied = 0_usize;
        for Unread { taken, losses, rates, .. } in unread {
            let (loss, parts) = weighted(&losses, taken.weight, &mut values);
            let squared_norm = values.next().unwrap_or(f64::NAN);
            let numbers = Numbers { loss, parts, squared_norm };
            let rate = rates.get(applied).copied().unwrap_or(f64::NAN);
            if numbers.are_finite() {
                applied += 1;
                self.optimizer.updates += 1;
                let average = self.config.average.as_ref();
                let takes =
                    |own: &AverageConfig| own.takes(taken.epoch - 1, before + applied as u64);
                self.average.count += u64::from(average.is_some_and(takes));
            }
            self.write_down(taken, numbers, rate, each)?;
        }
        Ok(())
    }
}

thread_local! {
    static NO_MEMORY: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs a function whose device will once have had too little memory when steps up to this one or beyond are read
/// on this thread: no device does so when a test would like it to.
#[doc(hidden)]
pub fn without_memory_once<T>(step: u64, f: impl FnOnce() -> T) -> T {
    NO_MEMORY.set(Some(step));
    let result = f();
    NO_MEMORY.set(None);
    result
}

fn no_memory(last: u64) -> Result<(), TrainError> {
    match NO_MEMORY.get().filter(|step| last >= *step) {
        Some(_) => {
            NO_MEMORY.set(None);
            Err(TrainError::Device("out of memory".to_owned()))
        }
        None => Ok(()),
    }
}

/// Reads losses and squared gradient norms from the device, all at once.
pub(super) fn read(
    losses: &[Loss],
    weight: f64,
    gradients: &Gradients,
) -> Result<Numbers, TrainError> {
    let (known, pending) = match gradients.squared_norm() {
        SquaredNorm::Known(squared) => (squared, vec![]),
        SquaredNorm::Pending(parts) => (0.0, parts),
    };
    let mut values = read_all(scalars(losses).chain(pending).collect())?.into_iter();
    let (loss, parts) = weighted(losses, weight, &mut values);
    Ok(Numbers { loss, parts, squared_norm: known + values.sum::<f64>() })
}

/// The losses, each followed by its parts.
fn scalars(losses: &[Loss]) -> impl Iterator<Item = Tensor<1>> {
    let of = |loss: &Loss| {
        let parts = loss.parts.iter().map(|(_, part)| part);
        std::iter::once(&loss.value).chain(parts).cloned().collect::<Vec<_>>()
    };
    losses.iter().flat_map(of)
}

fn read_all(scalars: Vec<Tensor<1>>) -> Result<Vec<f64>, TrainError> {
    let device = |error: &dyn std::fmt::Display| TrainError::Device(error.to_string());
    let data = Tensor::cat(scalars, 0).try_into_data().map_err(|error| device(&error))?;
    let values = data.try_into_vec::<f32>().map_err(|error| device(&error))?;
    Ok(values.into_iter().map(f64::from).collect())
}

/// The loss by weight and its parts, of the values of [`scalars`].
fn weighted(
    losses: &[Loss],
    weight: f64,
    values: &mut impl Iterator<Item = f64>,
) -> (f64, BTreeMap<String, f64>) {
    let (mut loss, mut parts) = (0.0, BTreeMap::new());
    for one in losses {
        let share = if weight > 0.0 { one.weight / weight } else { 0.0 };
        // What had nothing to learn from says nothing, be it the mean of nothing, which is NaN.
        let of = |value: f64| if share > 0.0 { value * share } else { 0.0 };
        let mut next = || values.next().map_or(f64::NAN, of);
        loss += next();
        for (name, _) in &one.parts {
            *parts.entry((*name).to_owned()).or_insert(0.0) += next();
        }
    }
    (loss, parts)
}
