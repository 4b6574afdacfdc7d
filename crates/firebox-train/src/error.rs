//! Why a run cannot start or go on.

use std::path::PathBuf;

use firebox_core::Key;
use firebox_loader::LoadError;

use crate::checkpoint::CheckpointError;
use crate::config::ConfigError;
use crate::division::BatchWork;
use crate::groups::GroupError;
use crate::objective::ScoreError;

/// A run that failed. Checkpoints written before the failure stay.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A setting cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A group of parameters does not fit the model.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// A batch could not be read.
    #[error("a batch could not be loaded")]
    Load(#[from] LoadError),
    /// A model could not be scored after a validation.
    #[error("the model of an epoch could not be scored")]
    Score(#[source] ScoreError),
    /// The loader gave fewer batches than it had said.
    #[error("the loader gave fewer batches in epoch {} than it had said", epoch + 1)]
    Short {
        /// The epoch, from 0.
        epoch: u64,
    },
    /// No batch of an epoch has an element that counts in the loss.
    #[error(
        "nothing can be learnt: none of the {batches} batches of epoch {epoch} has an element that counts in the loss, such \
         as a hidden step or a label; hide more (`mask` of the model), give labels, or weights above 0"
    )]
    NothingCounts {
        /// The epoch, from 1.
        epoch: u64,
        /// Its batches.
        batches: u64,
    },
    /// A checkpoint could not be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A file of the run could not be written or read.
    #[error("cannot {action} `{}`", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// A file of the run holds something else than it should.
    #[error("`{}` cannot be understood{}; {way_out}", path.display(), line.map_or_else(String::new, |line| format!(" at line {line}")))]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: Option<u64>,
        /// What to do.
        way_out: &'static str,
        /// What the parser says.
        #[source]
        source: serde_json::Error,
    },
    /// Another process trains in the same folder.
    #[error("another process is training in `{}`; wait for it or use another run folder", .0.display())]
    Locked(PathBuf),
    /// A new run was to start where there is one already.
    #[error("`{}` already holds a training run; resume it, or use another run folder", .0.display())]
    Exists(PathBuf),
    /// The run was begun with something else.
    #[error(
        "the run in `{}` was begun with {what} {found}, and this is {wanted}; resume it with what \
         it was begun with, or start a new run",
        path.display()
    )]
    Different {
        /// Folder of the run.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// Its value in the checkpoint.
        found: String,
        /// Its value now.
        wanted: String,
    },
    /// The size budget has no room for the checkpoints that a run cannot do without.
    #[error(
        "a checkpoint of this model takes about {one} bytes, and the run needs {count} at a time \
         ({what}), {needed} bytes, more than `train.checkpoint.size_budget` of {budget}; raise the budget"
    )]
    Budget {
        /// Bytes of one checkpoint.
        one: u64,
        /// Checkpoints that must be there at a time.
        count: u64,
        /// Which these are.
        what: &'static str,
        /// Bytes of all of them.
        needed: u64,
        /// The budget.
        budget: u64,
    },
    /// The loss or the gradient was not finite and the configuration says to stop.
    #[error(
        "step {step} (epoch {epoch}) has the loss {loss} and the gradient norm {norm}; {}lower \
         the optimizer's `learning_rate` or `train.clip`, or set `train.non_finite` to `skip` \
         or `rollback`",
        lower_scale(*scale)
    )]
    NonFinite {
        /// The step, from 1.
        step: u64,
        /// The epoch, from 1.
        epoch: u64,
        /// Its loss.
        loss: f64,
        /// Its global gradient norm.
        norm: f64,
        /// The loss scale that may be why its gradient was not finite, under a finite loss.
        scale: Option<FixedScale>,
    },
    /// Too many steps in a row were not finite.
    #[error(
        "{count} steps in a row up to step {step} were not finite, the limit of \
         `train.non_finite_limit`; {}lower the optimizer's `learning_rate`",
        lower_scale(*scale)
    )]
    NonFiniteLimit {
        /// Steps in a row.
        count: u64,
        /// The last of them, from 1.
        step: u64,
        /// The loss scale that may be why its gradient was not finite, under a finite loss.
        scale: Option<FixedScale>,
    },
    /// A step was not finite, and there is no checkpoint to go back to.
    #[error(
        "step {step} (epoch {epoch}) has the loss {loss} and the gradient norm {norm}, and no \
         checkpoint is there to go back to; start a new run, {}with a lower `learning_rate` or \
         `train.clip`",
        with_lower_scale(*scale)
    )]
    NoWayBack {
        /// The step, from 1.
        step: u64,
        /// The epoch, from 1.
        epoch: u64,
        /// Its loss.
        loss: f64,
        /// Its global gradient norm.
        norm: f64,
        /// The loss scale that may be why its gradient was not finite, under a finite loss.
        scale: Option<FixedScale>,
    },
    /// No step was finite, so nothing was learnt.
    #[error(
        "none of the {steps} steps had a finite loss and gradient, so nothing was learnt, at a \
         loss scale of {scale}; lower `train.loss_scale.static` if it is set, look for values \
         that are not finite in the data, or set `train.non_finite` to `stop` to see the first step"
    )]
    NothingLearnt {
        /// Steps.
        steps: u64,
        /// The loss scale.
        scale: f64,
    },
    /// Each update was undone by a rollback, so nothing was learnt.
    #[error(
        "no update is left of {steps} steps, so nothing was learnt: weights and optimizer went back {rollbacks} times, \
         and nothing but the weights of the start is left, at a loss scale of {scale}; lower `train.loss_scale.static` if it is \
         set, or the optimizer's `learning_rate`, look for values that are not finite in the data, or set `train.non_finite` to \
         `stop` to see the first step"
    )]
    Undone {
        /// Steps.
        steps: u64,
        /// How often they went back.
        rollbacks: u64,
        /// The loss scale.
        scale: f64,
    },
    /// Every step overflowed, so nothing was learnt.
    #[error(
        "the gradients of all {steps} steps overflowed, down to a loss scale of {scale}; lower \
         `train.loss_scale.dynamic.initial`"
    )]
    Overflowed {
        /// Steps.
        steps: u64,
        /// The scale after the last one.
        scale: f64,
    },
    /// Weights, states, gradients, losses and the inputs of batches are f32 whatever a model computes in.
    #[error(
        "{what} is of type {found}, and must be f32; let the model round operands (`in_precision`), and keep its parameters, their \
         gradients, its loss and the inputs of batches as they are"
    )]
    Type {
        /// A parameter or its gradient, a loss, or the inputs of a batch.
        what: String,
        /// Its type.
        found: String,
    },
    /// The loss of a batch, or a part of it, that is not one number.
    #[error(
        "{what} has {numbers} numbers, and must have one; give the mean of them (`Tensor::mean`), and their weight beside it"
    )]
    Loss {
        /// That of training or of validation, or a part of it.
        what: String,
        /// Numbers that were found.
        numbers: usize,
    },
    /// A loss without a gradient.
    #[error(
        "the loss of step {step} reaches no parameter that is trained; compute it from the model's own parameters and \
         outputs, undetached, and leave some parameter to want a gradient (not `no_grad`, nor frozen by `train.groups`)"
    )]
    Unreached {
        /// The step, from 1.
        step: u64,
    },
    /// Two parameters of a model that have one name in its files, where `gamma` and `beta` of a norm are `weight` and
    /// `bias`.
    #[error(
        "two parameters are called `{name}`, by which checkpoints keep them; rename one of the fields"
    )]
    Twice {
        /// The name.
        name: String,
    },
    /// There is no smaller part of a batch to compute, and nothing to give up for a checkpoint.
    #[error(
        "{work} {step} has too little memory for {}{}; take a smaller model{}, keep less in memory besides, or use a machine with more",
        if *work == BatchWork::Checkpoint { "a copy of weights and moments" } else { "one window at a time" },
        if *bytes > 0 { format!(" (it asked for {bytes} bytes more)") } else { String::new() },
        if *work == BatchWork::Checkpoint { "" } else { " or shorter windows" }
    )]
    OutOfMemory {
        /// What was computed.
        work: BatchWork,
        /// The step, from 1.
        step: u64,
        /// Bytes that were asked for and not given; 0 if that is not known.
        bytes: u64,
    },
    /// A device had too little memory for one of some steps that it took ahead of the host. What it holds is
    /// lost. The run goes on from its newest checkpoint when it is begun anew, with smaller parts from the first of
    /// these steps on: see [`begins_anew`](Self::begins_anew).
    #[error(
        "the device had too little memory for one of the steps {first} to {last}, on which others were built \
         already; started again, the run goes on from its newest checkpoint, and from step {first} on it computes \
         each batch in smaller parts"
    )]
    Lost {
        /// The first step that may have had too little, from 1.
        first: u64,
        /// The last one.
        last: u64,
    },
    /// The device failed to compute or to deliver a result.
    #[error("the device failed: {0}")]
    Device(String),
}

/// A loss scale above 1 that does not fall.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FixedScale {
    /// It is static.
    Static(f64),
    /// It is the smallest of a dynamic one.
    Floor(f64),
}

impl FixedScale {
    /// The way out, before those that calm training.
    pub fn way_out(self) -> String {
        match self {
            Self::Static(scale) => format!(
                "`train.loss_scale.static` is {scale}: lower it, or use `train.loss_scale.dynamic` in \
                 its place; if that does not help, "
            ),
            Self::Floor(floor) => format!(
                "the loss scale is at `train.loss_scale.dynamic.floor`, which is {floor}: lower it to 1; if that does not help, "
            ),
        }
    }
}

/// The way out of a loss scale that does not fall, if there is one.
fn lower_scale(scale: Option<FixedScale>) -> String {
    scale.map_or_else(String::new, FixedScale::way_out)
}

/// The same for a run that is begun anew.
fn with_lower_scale(scale: Option<FixedScale>) -> String {
    match scale {
        None => String::new(),
        Some(FixedScale::Static(scale)) => format!(
            "with a lower `train.loss_scale.static` than {scale} or `train.loss_scale.dynamic` in its place, and if that does not help, "
        ),
        Some(FixedScale::Floor(floor)) => format!(
            "with `train.loss_scale.dynamic.floor` at 1 in place of {floor}, and if that does not help, "
        ),
    }
}

impl TrainError {
    /// Whether the run goes on where it was, and with less memory, if the same program is started again.
    pub fn begins_anew(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    pub(crate) fn different(path: PathBuf, what: &'static str, found: Key, wanted: Key) -> Self {
        let [found, wanted] = [found, wanted].map(|key| key.short());
        Self::Different { path, what, found, wanted }
    }
}
