//! Optimizer steps composed of Burn's own operations: for every device, and the yardstick of the fused
//! ones.

use burn::tensor::DType;

use super::{ParameterUpdate, StepState, UpdateRule, adamw_numbers, sgd_numbers};
use crate::cpu;

/// Updates one parameter; of one in half precision, each number is rounded once, at the end.
pub(super) fn update(
    rule: &UpdateRule,
    prepare: cpu::Prepare,
    state: &StepState,
    update: &mut ParameterUpdate,
) {
    let dtype = update.parameter.dtype();
    if !matches!(dtype, DType::F16 | DType::BF16) {
        return in_its_type(rule, prepare, state, update);
    }
    let cast = |update: &mut ParameterUpdate, dtype: DType| {
        let ParameterUpdate { parameter, gradient, moments, .. } = update;
        for tensor in [parameter, gradient].into_iter().chain(moments) {
            *tensor = tensor.clone().cast(dtype);
        }
    };
    cast(update, DType::F32);
    in_its_type(rule, prepare, state, update);
    cast(update, dtype);
}

fn in_its_type(
    rule: &UpdateRule,
    prepare: cpu::Prepare,
    state: &StepState,
    update: &mut ParameterUpdate,
) {
    let mut gradient = update.gradient.clone();
    if prepare.factor != 1.0 {
        gradient = gradient * prepare.factor;
    }
    if prepare.limit.is_finite() {
        gradient = gradient.clamp(-prepare.limit, prepare.limit);
    }
    let parameter = update.parameter.clone();
    match (*rule, update.moments.as_slice()) {
        (UpdateRule::AdamW { betas, eps }, [first, second]) => {
            let step = adamw_numbers(betas, eps, prepare, state, update);
            let [beta, rest] = step.second;
            let first = first.clone() + (gradient.clone() - first.clone()) * step.first;
            let second = second.clone() * beta + gradient.square() * rest;
            let denominator = second.clone().sqrt() / step.correction + step.eps;
            update.parameter = parameter * step.keep - first.clone() / denominator * step.step_size;
            update.moments = vec![first, second];
        }
        (UpdateRule::Sgd { momentum, dampening, nesterov }, moments) => {
            let step = sgd_numbers([momentum, dampening], nesterov, prepare, state, update);
            let gradient = gradient + parameter.clone() * step.decay;
            let direction = match moments.first() {
                None => gradient,
                Some(before) => {
                    let after = before.clone() * step.momentum + gradient.clone() * step.take;
                    update.moments = vec![after.clone()];
                    if nesterov { gradient + after * step.momentum } else { after }
                }
            };
            update.parameter = parameter - direction * step.rate;
        }
        (UpdateRule::AdamW { .. }, moments) => {
            unreachable!("AdamW keeps two moments, and {} were given", moments.len())
        }
    }
}
