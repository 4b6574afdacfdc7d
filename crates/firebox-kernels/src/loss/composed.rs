//! The losses composed of Burn's own operations: for every device, differentiated by Burn, and the
//! yardstick of the fused ones.

use burn::tensor::activation::{log_sigmoid, log_softmax, sigmoid};
use burn::tensor::{DType, Int, Tensor, TensorData};

use crate::cpu::{CrossEntropy, Element, Row};

/// The sum of the losses of all rows by their weights, `[1]`.
pub(super) fn cross_entropy(
    logits: Tensor<2>,
    rows: &[Row],
    config: CrossEntropy<'_>,
) -> Tensor<1> {
    let [count, classes] = logits.dims();
    let device = logits.device().without_autodiff();
    if count * classes == 0 {
        return logits.sum();
    }
    let column = |of: &dyn Fn(&Row) -> f64| {
        let values: Vec<f32> = rows.iter().map(|row| of(row) as f32).collect();
        Tensor::<2>::from_data(TensorData::new(values, [count, 1]), (&device, DType::F32))
    };
    // A row without a weight may hold anything.
    let read = column(&|row| if row.weight == 0.0 { 0.0 } else { 1.0 });
    let logits = logits.mask_fill(read.equal_elem(0.0).expand([count, classes]), 0.0);
    let logs = log_softmax(logits, 1);
    let places: Vec<i64> = rows.iter().map(|row| i64::from(row.class)).collect();
    let places = Tensor::<2, Int>::from_data(TensorData::new(places, [count, 1]), &device);
    let own = logs.clone().gather(1, places);
    let of_class =
        |row: &Row| config.class_weights.map_or(1.0, |w| f64::from(w[row.class as usize]));
    let share = column(&|row| row.weight * of_class(row) * (1.0 - config.smoothing));
    let value = match config.focal > 0.0 {
        false => own * share,
        // Not to the power of zero, whose gradient Burn gives as NaN.
        true => (-own.clone().exp() + 1.0).clamp_min(1e-30).powf_scalar(config.focal) * own * share,
    };
    let mut sum = value.sum();
    if config.smoothing > 0.0 {
        let spread = column(&|row| row.weight * config.smoothing / classes as f64);
        let logs = match config.class_weights {
            None => logs,
            Some(weights) => {
                let weights = TensorData::new(weights.to_vec(), [1, classes]);
                logs * Tensor::<2>::from_data(weights, (&device, DType::F32))
            }
        };
        sum = sum + (logs * spread).sum();
    }
    -sum
}

/// The sum of the squared distances of some rows, `[1]`: of those for which `counted` is one and not zero. Others may
/// hold anything.
pub(super) fn squares_of_rows<const D: usize>(
    predictions: Tensor<D>,
    targets: Tensor<D>,
    counted: Tensor<D>,
) -> Tensor<1> {
    let shape = predictions.dims();
    let (samples, of_one) = (shape[0], shape[1..].iter().product());
    if samples * of_one == 0 {
        return predictions.sum();
    }
    // What a row that does not count holds is gone before it is squared, and its gradient with it. Summed by sample
    // first: the CPU backend's sum of a very large tensor at once depends on the number of threads.
    let unread = counted.clone().equal_elem(0.0).expand(shape);
    let error = (predictions - targets).mask_fill(unread, 0.0);
    (error.square() * counted).reshape([samples, of_one]).sum_dim(1).sum()
}

/// The sum of the losses of all numbers by their weights, `[1]`.
pub(super) fn elements(
    kind: Element<'_>,
    predictions: Tensor<1>,
    targets: Tensor<1>,
    width: usize,
    weights: Option<&[f32]>,
) -> Tensor<1> {
    let ([count], device) = (predictions.dims(), targets.device());
    if count == 0 {
        return predictions.sum();
    }
    let constant = |values: Vec<f32>| {
        Tensor::<1>::from_data(TensorData::new(values, [count]), (&device, DType::F32))
    };
    let weights = weights.map(|weights| {
        let by_row = if weights.len() == count { 1 } else { width };
        constant((0..count).map(|place| weights[place / by_row]).collect())
    });
    let (predictions, targets) = match &weights {
        None => (predictions, targets),
        Some(weights) => {
            let unread = weights.clone().equal_elem(0.0);
            (predictions.mask_fill(unread.clone(), 0.0), targets.mask_fill(unread, 0.0))
        }
    };
    let values = match kind {
        Element::Squared => (predictions - targets).square(),
        // Without a cut: that of an infinite distance would be no number times it.
        Element::Huber { delta } if delta == f32::INFINITY => {
            (predictions - targets).square() * 0.5
        }
        Element::Huber { delta } => {
            let distance = predictions - targets;
            let cut = distance.clone().clamp(-delta, delta);
            // The cut has no gradient beyond delta, and the whole of it below.
            cut.clone() * (distance - cut * 0.5)
        }
        Element::Binary { positive, focal } => {
            let (yes, no) = (log_sigmoid(predictions.clone()), log_sigmoid(-predictions.clone()));
            let (yes, no) = match focal > 0.0 {
                false => (yes, no),
                true => {
                    let p = sigmoid(predictions);
                    let other = |p: Tensor<1>| (-p + 1.0).clamp_min(1e-30).powf_scalar(focal);
                    (yes * other(p.clone()), no * other(-p + 1.0))
                }
            };
            let own = match positive {
                None => targets.clone(),
                Some(weights) => {
                    let weights = (0..count).map(|place| weights[place % width]).collect();
                    targets.clone() * constant(weights)
                }
            };
            -(own * yes + (-targets + 1.0) * no)
        }
    };
    match weights {
        None => values.sum(),
        Some(weights) => (values * weights).sum(),
    }
}
