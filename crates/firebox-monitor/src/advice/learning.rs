//! What stood out in how a run learnt: steps that were skipped, losses that rose, epochs for nothing.

use super::{Advice, Scaling, Settings, some};
use crate::text::{percent, significant};
use crate::usage::{EpochTime, Usage};

/// Share of steps that a dynamic loss scale may lose to overflows: it finds its value by them.
const OVERFLOWS: f64 = 0.01;
/// Overflows that any run may need to find its scale.
const FIRST_OVERFLOWS: u64 = 10;
/// How much the training loss may rise above its lowest epoch.
const DIVERGED: f64 = 1.5;
/// Share of the epochs after the best one from which they were spent for nothing.
const PLATEAU: f64 = 0.5;
/// Fall of the validation loss over the last epoch from which more epochs would have helped.
const STILL_FALLING: f64 = 0.01;

pub(super) fn skipped(usage: &Usage, settings: &Settings) -> Option<Advice> {
    let all = usage.steps.len();
    // An overflow under a loss scale is another matter.
    let scaled = settings.scaling != Scaling::Off;
    let skipped = usage.steps.iter().filter(|step| step.skipped && !(scaled && step.overflown));
    let skipped: Vec<u64> = skipped.map(|step| step.step).collect();
    let (first, count) = (skipped.first()?, skipped.len());
    some(
        format!(
            "{count} of {all} steps were skipped because a loss or gradient was not finite; the first step that was skipped is {first}"
        ),
        calmer(settings),
    )
}

pub(super) fn overflows(usage: &Usage, settings: &Settings) -> Option<Advice> {
    let count = usage.steps.iter().filter(|step| step.overflown).count() as u64;
    let all = usage.steps.len();
    let said = format!("{count} of {all} steps were skipped because a gradient overflowed");
    match (settings.scaling, usage.found_scale()) {
        _ if count == 0 => None,
        (Scaling::Off, _) => None,
        (Scaling::Static(scale), _) => some(
            format!("{said} under the loss scale of {scale}, which never falls"),
            match scale / 16.0 {
                lower if lower > 1.0 => format!(
                    "`train.loss_scale.static` from {scale} to {lower}, or `train.loss_scale.dynamic` in its place"
                ),
                _ => "`train.loss_scale.dynamic` in the place of `train.loss_scale.static`"
                    .to_owned(),
            },
        ),
        (Scaling::Dynamic { .. }, _)
            if count <= FIRST_OVERFLOWS || (count as f64) < OVERFLOWS * all as f64 =>
        {
            None
        }
        // Neither a scale that rises less often nor smaller updates change where it began, nor does clipping, which comes
        // after gradients are divided by it.
        (Scaling::Dynamic { initial, .. }, Some((before, scale))) if 2 * before > count => {
            let share = if before == count { String::new() } else { format!(", {before} of them") };
            some(
                format!(
                    "{said}{share} before the first step that was taken, while the loss scale came down"
                ),
                format!("`train.loss_scale.dynamic.initial` from {initial} to {scale}"),
            )
        }
        (Scaling::Dynamic { floor, .. }, _)
            if usage.lowest_scale.is_none_or(|low| low <= floor) =>
        {
            let lower = match floor > 1.0 {
                true => format!("`train.loss_scale.dynamic.floor` from {floor} to 1, "),
                false => String::new(),
            };
            let said = format!("{said}, at the smallest loss scale ({floor}) too");
            some(said, lower + &calmer(settings))
        }
        // R5 goes about it in this order: a scale that rises less often, then smaller updates.
        (Scaling::Dynamic { interval, .. }, _) => some(
            format!("{said} under its loss scale"),
            format!(
                "`train.loss_scale.dynamic.interval` from {interval} to {}, {}",
                interval.saturating_mul(2),
                calmer(settings)
            ),
        ),
    }
}

fn calmer(settings: &Settings) -> String {
    // The two ways to clip exclude one another.
    let clip = match (settings.clip, settings.clip_value) {
        (_, Some(value)) => format!("`train.clip_value` from {value} to {}", value / 2.0),
        (Some(clip), _) if clip <= 1.0 => format!("`train.clip` from {clip} to {}", clip / 2.0),
        (Some(clip), _) => format!("`train.clip` from {clip} to 1.0"),
        (None, None) => "`train.clip` to 1.0 (it is off)".to_owned(),
    };
    let rate = settings.learning_rate;
    let lower = format!("`{}` from {rate} to {}", settings.keys.rate, rate / 2.0);
    if settings.keys.clips { format!("{lower}, {clip}") } else { lower }
}

pub(super) fn divergence(usage: &Usage, settings: &Settings) -> Option<Advice> {
    let finite = || usage.epochs.iter().filter(|epoch| epoch.train_loss.is_finite());
    let lowest = finite().min_by(|a, b| a.train_loss.total_cmp(&b.train_loss))?;
    let last = finite().next_back()?;
    if lowest.train_loss <= 0.0 || last.train_loss <= DIVERGED * lowest.train_loss {
        return None;
    }
    let norms = usage.steps.iter().map(|step| step.gradient_norm).filter(|norm| norm.is_finite());
    some(
        format!(
            "the training loss rose from {} in epoch {} to {} in epoch {}; the largest gradient norm was {}",
            significant(lowest.train_loss),
            lowest.epoch,
            significant(last.train_loss),
            last.epoch,
            significant(norms.fold(0.0, f64::max))
        ),
        calmer(settings),
    )
}

/// Epochs that were validated, with their losses.
fn validated(usage: &Usage) -> Vec<(&EpochTime, f64)> {
    let finite = |loss: &f64| loss.is_finite();
    let all = usage.epochs.iter();
    all.filter_map(|epoch| Some((epoch, epoch.validation_loss.filter(finite)?))).collect()
}

pub(super) fn plateau(usage: &Usage, settings: &Settings) -> Option<Advice> {
    let epochs = validated(usage);
    let (best, loss) = epochs.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let last = epochs.last()?.0.epoch;
    let after = last - best.epoch;
    // Two epochs may go sideways in any run.
    if after < 3 || (after as f64) < PLATEAU * last as f64 {
        return None;
    }
    let stop = match settings.early_stopping {
        true => format!("`{}` lower", settings.keys.patience),
        false => format!("`{}` to 5 (it is off)", settings.keys.patience),
    };
    some(
        format!(
            "the validation loss was at its best ({}) after epoch {} of {last}; {after} epochs after it brought nothing",
            significant(*loss),
            best.epoch
        ),
        format!(
            "`{}` from {} to {}, or {stop}; a lower `{}` than {} may go further",
            settings.keys.epochs,
            settings.epochs,
            best.epoch + 2,
            settings.keys.rate,
            settings.learning_rate
        ),
    )
}

/// Where training ended because the loss fell by less than counts: what counts is no share of the loss, and may be more than
/// all that there is to gain.
fn ended_while_falling(usage: &Usage, settings: &Settings) -> Option<Advice> {
    let epochs = validated(usage);
    let (last, loss) = epochs.last()?;
    // What counted last: the rule forgets what fell by less.
    let mut counted: Option<&(&EpochTime, f64)> = None;
    for epoch in &epochs {
        if counted.is_none_or(|before| epoch.1 < before.1 - settings.least_improvement) {
            counted = Some(epoch);
        }
    }
    let (since, before) = counted?;
    let fall = 1.0 - loss / before;
    let lowest = epochs.iter().all(|(_, other)| loss <= other);
    // A limit on steps ends it as well.
    let ended = settings.stopped_early && last.epoch < settings.epochs && since.epoch < last.epoch;
    if !ended || !lowest || *before <= 0.0 || fall < STILL_FALLING {
        return None;
    }
    let least = settings.least_improvement;
    let way_out = match settings.keys.least_improvement {
        Some(key) => format!("`{key}` from {least} to 0"),
        None => format!("`{}` higher", settings.keys.patience),
    };
    some(
        format!(
            "training ended after epoch {} of {} while the validation loss still fell, by {} since epoch {} ({} to {}), because it fell by less than the {least} that count",
            last.epoch,
            settings.epochs,
            percent(fall),
            since.epoch,
            significant(*before),
            significant(*loss)
        ),
        way_out,
    )
}

pub(super) fn still_falling(usage: &Usage, settings: &Settings) -> Option<Advice> {
    if let Some(ended) = ended_while_falling(usage, settings) {
        return Some(ended);
    }
    let epochs = validated(usage);
    let [.., (since, before), (last, loss)] = &epochs[..] else { return None };
    let fall = 1.0 - loss / before;
    let lowest = epochs.iter().all(|(_, other)| loss <= other);
    if !lowest || fall < STILL_FALLING || *before <= 0.0 || last.epoch < settings.epochs {
        return None;
    }
    // Not every epoch may be validated.
    let when = match since.epoch + 1 == last.epoch {
        true => "in the last epoch".to_owned(),
        false => format!("since epoch {}", since.epoch),
    };
    some(
        format!(
            "the validation loss still fell by {} {when} ({} to {})",
            percent(fall),
            significant(*before),
            significant(*loss)
        ),
        format!("`{}` from {} to {}", settings.keys.epochs, settings.epochs, 2 * settings.epochs),
    )
}
