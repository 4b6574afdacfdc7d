//! Optimizer steps in the kernels of a GPU: puts tensors and numbers into the form that
//! [`cube`](crate::cube) takes.

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Tensor, TensorData};

use super::{ParameterUpdate, UpdateRule};
use crate::cpu;
use crate::cube::{COLUMNS, Combination, DESCENT_COLUMNS, OptimizerOps, TensorList, has_room};
use crate::cuts::{GpuKernels, is_countable};

/// Whether the kernels take all of these tensors.
pub(super) fn takes<'a>(mut tensors: impl Iterator<Item = &'a Tensor<1>>) -> bool {
    let Some(first) = tensors.next() else { return false };
    let fits = |tensor: &Tensor<1>| {
        tensor.dtype() == DType::F32 && !tensor.is_autodiff() && is_countable(tensor.dims()[0])
    };
    let device = first.device();
    fits(first)
        && tensors.all(|tensor| fits(tensor) && tensor.device() == device)
        && has_kernels(&device)
}

/// Whether there are kernels for the tensors of a device.
pub(super) fn has_kernels(device: &Device) -> bool {
    GpuKernels::takes(device, DType::F32).is_ok_and(|client| has_room(&client))
}

/// The squared norm of gradients that the kernels [take](takes), `[1]`.
pub(super) fn squared_norm(gradients: &[&Tensor<1>]) -> Tensor<1> {
    let device = gradients[0].device();
    let some = gradients.iter().filter(|gradient| gradient.dims() != [0]);
    let list: Vec<_> = some.map(|gradient| (*gradient).clone().into_dispatch()).collect();
    if list.is_empty() {
        return Tensor::zeros([1], (&device, DType::F32));
    }
    Tensor::from_dispatch(<Dispatch as OptimizerOps>::firebox_squared_norm(TensorList(list)))
}

/// A step by numbers that the host has computed, `[parameters, columns of the rule]`, of parameters that
/// the kernels [take](takes).
pub(super) fn by_host(rule: &UpdateRule, numbers: Vec<f32>, updates: &mut [ParameterUpdate]) {
    if let Some(update) = updates.first() {
        let shape = [updates.len(), numbers.len() / updates.len()];
        let data = TensorData::new(numbers, shape);
        let numbers = Tensor::from_data(data, (&update.parameter.device(), DType::F32));
        by_numbers(rule, numbers, updates);
    }
}

/// In the order of the kernels' columns.
pub(super) fn adamw_row(step: cpu::AdamW) -> [f32; COLUMNS] {
    let cpu::AdamW { prepare, keep, first, second: [beta, rest], correction, eps, step_size } =
        step;
    let [factor, limit] = finite(prepare);
    [factor, limit, keep, first, beta, rest, correction, eps, step_size, 1.0]
}

/// In the order of the kernels' columns.
pub(super) fn descent_row(step: cpu::Sgd) -> [f32; DESCENT_COLUMNS] {
    let cpu::Sgd { prepare, decay, momentum, take, nesterov: _, rate } = step;
    let [factor, limit] = finite(prepare);
    [factor, limit, decay, momentum, take, rate, 1.0]
}

/// Factor and limit: what is not finite never gets here, so the largest number is no limit.
fn finite(prepare: cpu::Prepare) -> [f32; 2] {
    [prepare.factor, prepare.limit.min(f32::MAX)]
}

/// A step by numbers on the device, `[parameters, columns of the rule]`.
pub(super) fn by_numbers(rule: &UpdateRule, numbers: Tensor<2>, updates: &mut [ParameterUpdate]) {
    let empty = |update: &ParameterUpdate| update.parameter.dims() == [0];
    let rows: Vec<usize> = (0..updates.len()).filter(|row| !empty(&updates[*row])).collect();
    if rows.is_empty() {
        return;
    }
    let numbers = match rows.len() == updates.len() {
        true => numbers,
        false => {
            let parts = rows.iter().map(|row| numbers.clone().narrow(0, *row, 1)).collect();
            Tensor::cat(parts, 0)
        }
    };
    let nothing = Tensor::<1>::empty([0], &updates[rows[0]].parameter.device());
    let (mut gradients, mut changed) = (vec![], vec![]);
    for row in &rows {
        let update = &mut updates[*row];
        gradients.push(update.gradient.clone().into_dispatch());
        // Taken out, so that the kernels can write where they are.
        changed.push(std::mem::replace(&mut update.parameter, nothing.clone()).into_dispatch());
        changed.extend(update.moments.drain(..).map(Tensor::into_dispatch));
    }
    let changed = <Dispatch as OptimizerOps>::firebox_update(
        TensorList(gradients),
        TensorList(changed),
        numbers.into_dispatch(),
        *rule,
    );
    let mut changed = changed.0.into_iter().map(Tensor::from_dispatch);
    for row in rows {
        let update = &mut updates[row];
        if let Some(parameter) = changed.next() {
            update.parameter = parameter;
        }
        update.moments = changed.by_ref().take(rule.moments()).collect();
    }
}

/// Whether the kernels combine all of these tensors: in any float type that they take, but one alone.
pub(super) fn combines<'a>(mut tensors: impl Iterator<Item = &'a Tensor<1>>) -> bool {
    let Some(first) = tensors.next() else { return false };
    let (device, dtype) = (first.device(), first.dtype());
    let alike = |tensor: &Tensor<1>| {
        tensor.dtype() == dtype
            && tensor.device() == device
            && !tensor.is_autodiff()
            && is_countable(tensor.dims()[0])
    };
    alike(first)
        && tensors.all(alike)
        && GpuKernels::takes(&device, dtype).is_ok_and(|client| has_room(&client))
}

/// [`combine`] by a factor of the host.
pub(super) fn combine_by_host(
    to: Vec<Tensor<1>>,
    from: &[&Tensor<1>],
    factor: f64,
    towards: bool,
) -> Vec<Tensor<1>> {
    let factor = TensorData::new(vec![factor as f32], [1]);
    let factor = Tensor::from_data(factor, (&to[0].device(), DType::F32));
    combine(to, from, factor, if towards { Combination::Mean } else { Combination::Sum })
}

/// Changes tensors by as many of the same sizes, which the kernels [take](combines), and a factor in the memory of
/// their device, `[1]` in f32.
pub(super) fn combine(
    mut to: Vec<Tensor<1>>,
    from: &[&Tensor<1>],
    factor: Tensor<1>,
    combination: Combination,
) -> Vec<Tensor<1>> {
    let places: Vec<usize> = (0..to.len()).filter(|place| to[*place].dims() != [0]).collect();
    if places.is_empty() {
        return to;
    }
    let nothing = Tensor::<1>::empty([0], &to[places[0]].device());
    let mut taken = vec![];
    for place in &places {
        // Taken out, so that the kernels can write where they are.
        taken.push(std::mem::replace(&mut to[*place], nothing.clone()).into_dispatch());
    }
    let changed = <Dispatch as OptimizerOps>::firebox_combine(
        TensorList(places.iter().map(|place| from[*place].clone().into_dispatch()).collect()),
        TensorList(taken),
        factor.into_dispatch(),
        combination,
    );
    for (place, changed) in places.into_iter().zip(changed.0) {
        to[place] = Tensor::from_dispatch(changed);
    }
    to
}
