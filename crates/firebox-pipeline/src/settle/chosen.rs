//! `run.precision = "auto"` and `loader.batch_size = "auto"`: each is measured with what the other says. A precision is
//! compared in the batches that the run takes, and a batch is chosen in the precision that the run takes.

use std::time::{Duration, Instant};

use firebox_core::Precision;

use super::filled;
use crate::PipelineConfig;
use crate::batch_size::{self, Chosen};
use crate::bench::Probe;
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::precision::{Policy, Resolution, choose_cached, device_class};
use crate::prepared::scales_up;
use crate::step::{of_step, step_text};

/// Steps of the model that one measurement takes in one type.
const STEPS: u64 = 4;

/// What was found, whether it was known before, and how long it took.
pub(super) struct Timed<T> {
    pub(super) found: T,
    pub(super) reused: bool,
    pub(super) took: Duration,
}

impl<T> Timed<T> {
    /// The same after what was found on the way to it.
    fn after<U>(self, before: Option<&Timed<U>>) -> Self {
        let Some(before) = before else { return self };
        Self { reused: self.reused && before.reused, took: self.took + before.took, ..self }
    }
}

/// Runs what measures something, or knows it.
pub(super) fn timed<T>(
    measure: impl FnOnce() -> Result<(T, bool), PipelineError>,
) -> Result<Timed<T>, PipelineError> {
    let started = Instant::now();
    let (found, reused) = measure()?;
    Ok(Timed { found, reused, took: started.elapsed() })
}

/// The precision of a run, and its batch if that is to be chosen, for so many samples of the training set.
pub(super) fn choose(
    config: &PipelineConfig,
    resolution: Resolution,
    samples: Option<usize>,
    device: &ChosenDevice,
) -> Result<(Timed<Policy>, Option<Timed<Chosen>>), PipelineError> {
    let sized = config.loader.batch_size != 0;
    let batch = |precision| {
        let mut config = config.clone();
        config.run.precision = precision;
        timed(|| batch_size::choose_cached(&config, samples, device))
    };
    match resolution {
        Resolution::Settled(policy) => {
            let batch = if sized { None } else { Some(batch(policy.precision)?) };
            let policy = Timed { found: policy, reused: false, took: Duration::ZERO };
            Ok((policy, batch))
        }
        Resolution::Measure(candidates) => {
            let candidates = allowed(config, candidates);
            if sized {
                let batch = filled(config, samples);
                let precision = || compare(config, &candidates, Batch::Written(batch), device);
                return Ok((timed(precision)?, None));
            }
            let guess = device_class(&device.description).precision;
            let compare =
                |batch| timed(|| compare(config, &candidates, Batch::Chosen(batch), device));
            let (precision, batch) = both(guess, &candidates, batch, compare)?;
            Ok((precision, Some(batch)))
        }
    }
}

/// A precision and a batch.
type Both = (Timed<Policy>, Timed<Chosen>);

/// Both, beginning with a batch in the guessed type if that is among the candidates: where another type is faster in
/// such batches, a batch is chosen in that one, and so on until both agree. A type that is come back to is taken with
/// the batch in hand, so that it is the one that the comparison was made in.
fn both(
    guess: Precision,
    candidates: &[Precision],
    batch: impl Fn(Precision) -> Result<Timed<Chosen>, PipelineError>,
    compare: impl Fn(usize) -> Result<Timed<Policy>, PipelineError>,
) -> Result<Both, PipelineError> {
    let mut asked = if candidates.contains(&guess) { guess } else { Precision::F32 };
    let mut tried = vec![];
    let mut before: Option<Both> = None;
    let measured = |asked| -> Result<Both, PipelineError> {
        let chosen = batch(asked)?;
        Ok((compare(chosen.found.size)?, chosen))
    };
    loop {
        tried.push(asked);
        let (policy, chosen) = match measured(asked) {
            // The type does not train, which a comparison names; or f32 has no memory for a batch of so many.
            Err(PipelineError::Train(_)) if asked != Precision::F32 => {
                asked = Precision::F32;
                tried.push(asked);
                measured(asked)
            }
            found => found,
        }?;
        let policy = policy.after(before.as_ref().map(|(policy, _)| policy));
        let mut chosen = chosen.after(before.as_ref().map(|(_, chosen)| chosen));
        let faster = policy.found.precision;
        if faster == asked {
            return Ok((policy, chosen));
        }
        if tried.contains(&faster) {
            chosen.found.reason += &format!("; its steps were taken in {asked}");
            return Ok((policy, chosen));
        }
        before = Some((policy, chosen));
        asked = faster;
    }
}

/// Types that the settings do not forbid.
fn allowed(config: &PipelineConfig, mut candidates: Vec<Precision>) -> Vec<Precision> {
    if scales_up(config).is_err() {
        candidates.retain(|precision| *precision != Precision::F16);
    }
    candidates
}

/// The batch that types are compared in.
#[derive(Clone, Copy)]
enum Batch {
    /// As it is written: nobody knows yet whether such a step fits, undivided.
    Written(usize),
    /// Steps of which were taken.
    Chosen(usize),
}

/// Which type is chosen, and whether it was before.
fn compare(
    config: &PipelineConfig,
    candidates: &[Precision],
    batch: Batch,
    device: &ChosenDevice,
) -> Result<(Policy, bool), PipelineError> {
    let (Batch::Written(size) | Batch::Chosen(size)) = batch;
    let model = step_text(config, size);
    let chain = config.pipeline.chain();
    let own = of_step(config);
    let own = &own;
    // What was chosen stays, whatever memory is free at another start.
    let begin = || {
        let size = match batch {
            Batch::Written(size) => batch_size::fitting(config, size, device)?,
            Batch::Chosen(size) => size,
        };
        let what = match chain.own_batches(config) {
            None => format!("this model with batches of {size}"),
            Some(_) => "what this pipeline trains, in its own batches".to_owned(),
        };
        let time = move |precision| {
            let probe = Probe { precision, batch: size, steps: STEPS, train: &own.train };
            chain.probe(own, probe, device).map(|measured| measured.times)
        };
        Ok((what, time))
    };
    let (choice, reused) = choose_cached(&config.run.cache, &model, candidates, device, begin)?;
    Ok((Policy { precision: choice.precision, reason: choice.reason }, reused))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const F32: Precision = Precision::F32;
    const BF16: Precision = Precision::Bf16;

    fn found<T>(found: T) -> Timed<T> {
        Timed { found, reused: false, took: Duration::from_secs(1) }
    }

    /// What is chosen, with what was asked for on the way: batches in a type, and comparisons in a batch. Types not among
    /// `sizes` do not train.
    fn chosen(
        guess: Precision,
        candidates: &[Precision],
        sizes: &[(Precision, usize)],
        faster: impl Fn(usize) -> Precision,
    ) -> (Precision, usize, Vec<String>, Timed<Chosen>) {
        let asked = RefCell::new(vec![]);
        let batch = |precision: Precision| {
            asked.borrow_mut().push(precision.to_string());
            let size = sizes.iter().find(|(own, _)| *own == precision).map(|(_, size)| *size);
            let gone = || firebox_train::TrainError::Device("gone".to_owned());
            Ok(found(Chosen { size: size.ok_or_else(gone)?, reason: "measured".to_owned() }))
        };
        let compare = |size: usize| {
            asked.borrow_mut().push(size.to_string());
            Ok(found(Policy { precision: faster(size), reason: String::new() }))
        };
        let (policy, chosen) = both(guess, candidates, batch, compare).unwrap();
        (policy.found.precision, chosen.found.size, asked.into_inner(), chosen)
    }

    #[test]
    fn a_precision_is_compared_in_the_batch_that_is_taken_and_once_where_the_guess_holds() {
        let sizes = [(F32, 64), (BF16, 128)];
        let (precision, size, asked, _) = chosen(BF16, &[F32, BF16], &sizes, |_| BF16);
        assert_eq!((precision, size, asked), (BF16, 128, vec!["bf16".into(), "128".into()]));
        // The guess is no candidate here.
        let (precision, size, asked, _) = chosen(BF16, &[F32], &sizes, |_| F32);
        assert_eq!((precision, size, asked), (F32, 64, vec!["f32".into(), "64".into()]));
    }

    #[test]
    fn a_batch_is_chosen_in_the_precision_that_is_taken() {
        let sizes = [(F32, 64), (BF16, 128)];
        let (precision, size, asked, last) = chosen(BF16, &[F32, BF16], &sizes, |_| F32);
        assert_eq!((precision, size), (F32, 64));
        assert_eq!(asked, ["bf16", "128", "f32", "64"]);
        assert_eq!((last.took, last.found.reason.as_str()), (Duration::from_secs(2), "measured"));
    }

    #[test]
    fn types_that_go_round_in_circles_end_with_the_batch_that_was_compared_in() {
        let sizes = [(F32, 64), (BF16, 128)];
        let faster = |size| if size == 64 { BF16 } else { F32 };
        let (precision, size, asked, last) = chosen(F32, &[F32, BF16], &sizes, faster);
        assert_eq!(asked, ["f32", "64", "bf16", "128"]);
        assert_eq!((precision, size), (F32, 128));
        assert!(last.found.reason.ends_with("its steps were taken in bf16"));
    }

    #[test]
    fn a_guess_that_does_not_train_ends_no_run() {
        let (precision, size, asked, _) = chosen(BF16, &[F32, BF16], &[(F32, 64)], |_| F32);
        assert_eq!((precision, size), (F32, 64));
        assert_eq!(asked, ["bf16", "f32", "64"]);
        // Nor one that trains where types are compared.
        let (precision, _, asked, last) = chosen(BF16, &[F32, BF16], &[(F32, 64)], |_| BF16);
        assert_eq!((precision, asked.len()), (BF16, 3));
        assert!(last.found.reason.ends_with("its steps were taken in f32"));
    }

    #[test]
    fn a_batch_that_f32_has_no_memory_for_is_chosen_in_f32() {
        let batch = |precision: Precision| {
            let size = if precision == F32 { 64 } else { 128 };
            Ok(found(Chosen { size, reason: "measured".to_owned() }))
        };
        let compare = |size: usize| match size {
            64 => Ok(found(Policy { precision: BF16, reason: String::new() })),
            _ => Err(firebox_train::TrainError::Device("out of memory".to_owned()).into()),
        };
        for guess in [F32, BF16] {
            let (policy, chosen) = both(guess, &[F32, BF16], batch, compare).unwrap();
            assert_eq!((policy.found.precision, chosen.found.size), (BF16, 64), "{guess}");
            assert!(chosen.found.reason.ends_with("its steps were taken in f32"));
        }
    }
}
