//! Embeddings: three steps of AdamW as PyTorch takes them, and larger tables against sums in float64.

use burn::module::Param;
use burn::nn::Embedding;
use burn::tensor::{Device, Int, Tensor, TensorData};
use firebox_core::Stream;
use firebox_kernels::{
    Clip, CpuKernels, ParameterUpdate, StepState, UpdateRule, embedding, update_parameters,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    embedding: Case,
}

#[derive(Deserialize)]
struct Case {
    padding: usize,
    table: Vec<f32>,
    d: Vec<f32>,
    places: Vec<i64>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    out: Vec<f32>,
    gradient: Vec<f32>,
    table: Vec<f32>,
}

fn layer(values: Vec<f32>, rows: usize, width: usize) -> Embedding {
    let device = Device::flex().autodiff();
    let weight = Tensor::<2>::from_data(TensorData::new(values, [rows, width]), &device);
    Embedding { weight: Param::from_tensor(weight.require_grad()) }
}

fn indices(values: Vec<i64>, shape: [usize; 2]) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(values, shape), &Device::flex())
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap()
}

#[track_caller]
fn close(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 2e-6 * expected.abs().max(0.1), "{what}");
    }
}

#[test]
fn unused_rows_are_updated_as_pytorch_does() {
    let text = include_str!("../golden/losses.json");
    let Golden { embedding: case } = serde_json::from_str(text).unwrap();
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            let mut table = case.table.clone();
            let mut moments = vec![Tensor::<1>::zeros([21], &Device::flex()); 2];
            for (updates, step) in (0..).zip(&case.steps) {
                let layer = layer(table.clone(), 7, 3);
                let places = case.places.iter().map(|at| (at + updates as i64) % 7).collect();
                let out = embedding(&layer, indices(places, [2, 4]), Some(case.padding));
                close("the rows", &values(out.clone()), &step.out);
                let d = Tensor::<3>::from_data(
                    TensorData::new(case.d.clone(), [2, 4, 3]),
                    &Device::flex().autodiff(),
                );
                let gradients = (out * d).sum().backward();
                let gradient = layer.weight.val().grad(&gradients).unwrap();
                close("the gradient", &values(gradient.clone()), &step.gradient);
                let update = ParameterUpdate {
                    parameter: layer.weight.val().inner().reshape([21]),
                    gradient: gradient.reshape([21]),
                    moments,
                    missed: 0,
                    rate: 1.0,
                    weight_decay: 0.1,
                };
                let state =
                    StepState { learning_rate: 0.1, loss_scale: 1.0, squared_norm: 1.0, updates };
                let rule = UpdateRule::AdamW { betas: [0.9, 0.999], eps: 1e-8 };
                let update = update_parameters(&rule, Clip::Never, &state, vec![update]).remove(0);
                table = values(update.parameter);
                moments = update.moments;
                close("the table", &table, &step.table);
            }
        });
    }
}

#[test]
fn gradients_are_sums_in_the_order_of_the_places_whatever_was_used_before() {
    let (rows, width, batch, time) = (501, 33, 40, 50);
    let mut draws = Stream::new(1, "embedding").draws();
    let table: Vec<f32> = (0..rows * width).map(|_| draws.normal() as f32).collect();
    let d: Vec<f32> = (0..batch * time * width).map(|_| draws.normal() as f32).collect();
    let run = |places: &[i64], threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let layer = layer(table.clone(), rows, width);
            let out = embedding(&layer, indices(places.to_vec(), [batch, time]), None);
            let shape = [batch, time, width];
            let d = Tensor::<3>::from_data(
                TensorData::new(d.clone(), shape),
                &Device::flex().autodiff(),
            );
            let first = values(out.clone());
            let gradients = (out * d).sum().backward();
            (first, values(layer.weight.val().grad(&gradients).unwrap()))
        })
    };
    for round in 0..4 {
        // Few rows often, or many rows, not the ones of the round before.
        let most = [20, 500, 3, 501][round];
        let places: Vec<i64> = (0..batch * time)
            .map(|_| (draws.below(most) * 7 + round as u64) as i64 % 501)
            .collect();
        let (out, gradient) = run(&places, 2);
        let mut expected = vec![0.0f64; rows * width];
        for (place, row) in places.iter().enumerate() {
            for at in 0..width {
                let from = *row as usize * width + at;
                assert_eq!(out[place * width + at], table[from]);
                expected[from] += f64::from(d[place * width + at]);
            }
        }
        let error: f64 =
            gradient.iter().zip(&expected).map(|(f, e)| (f64::from(*f) - e).powi(2)).sum();
        let norm: f64 = expected.iter().map(|e| e * e).sum();
        assert!((error / norm).sqrt() < 1e-6, "round {round}");
        for threads in [1, 3] {
            assert_eq!(run(&places, threads).1, gradient, "round {round}");
        }
    }
}

/// The gradient of `Σ d · rows` by a table of 4 rows of 3 numbers, of which these places are taken.
fn gradient(places: &[i64], d: &[f32], padding: Option<usize>) -> Vec<f32> {
    let layer = layer(vec![1.0; 12], 4, 3);
    let out = embedding(&layer, indices(places.to_vec(), [1, places.len()]), padding);
    let d = TensorData::new(d.to_vec(), out.dims());
    let d = Tensor::<3>::from_data(d, &Device::flex().autodiff());
    values(layer.weight.val().grad(&(out * d).sum().backward()).unwrap())
}

#[test]
fn denormal_gradients_add_up_and_nan_stays_in_its_number() {
    let unit = f32::from_bits(1);
    let units: Vec<f32> = (0..15).map(|at| (at * at - 81) as f32).collect();
    let d: Vec<f32> = units.iter().map(|units| units * unit).collect();
    let places = [3, 0, 3, 2, 3];
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            let found = gradient(&places, &d, Some(2));
            for (at, found) in found.iter().enumerate() {
                let taken = places.iter().enumerate().filter(|(_, row)| **row == at as i64 / 3);
                let sum: f32 = taken.map(|(place, _)| units[place * 3 + at % 3]).sum();
                let expected = if at / 3 == 2 { 0.0 } else { sum * unit };
                assert_eq!(*found, expected, "{kernels:?} {at}");
            }
            let mut d = vec![1.0; 15];
            d[2 * 3 + 1] = f32::NAN;
            let found = gradient(&places, &d, None);
            for (at, found) in found.iter().enumerate() {
                assert_eq!(found.is_nan(), at == 3 * 3 + 1, "{kernels:?} {at}");
            }
        });
    }
}

#[test]
fn no_places_give_no_rows_and_a_gradient_of_zeros() {
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            for shape in [[0, 5], [2, 0]] {
                for padding in [None, Some(2)] {
                    let layer = layer(vec![1.0; 12], 4, 3);
                    let out = embedding(&layer, indices(vec![], shape), padding);
                    assert_eq!(out.dims(), [shape[0], shape[1], 3], "{kernels:?}");
                    let all = out.sum().backward();
                    let gradient = layer.weight.val().grad(&all).unwrap();
                    assert_eq!((gradient.dims(), values(gradient)), ([4, 3], vec![0.0; 12]));
                }
            }
        });
    }
}

#[test]
fn a_gradient_that_is_held_is_not_written_over() {
    let layer = layer(vec![1.0; 12], 4, 3);
    let gradient = |row: i64| {
        let out = embedding(&layer, indices(vec![row], [1, 1]), None);
        layer.weight.val().grad(&out.sum().backward()).unwrap()
    };
    let held = gradient(1);
    let other = gradient(2);
    assert_eq!(values(held)[3..6], [1.0; 3]);
    assert_eq!(values(other)[6..9], [1.0; 3]);
    let last = values(gradient(3));
    assert_eq!((&last[..9], &last[9..]), ([0.0; 9].as_slice(), [1.0; 3].as_slice()));
}

#[test]
fn a_table_used_twice_gets_both_gradients() {
    let layer = layer(vec![1.0; 12], 4, 3);
    let first = embedding(&layer, indices(vec![0, 1], [1, 2]), None).sum();
    let second = embedding(&layer, indices(vec![1, 3], [2, 1]), None).sum() * 2.0;
    let tied = (layer.weight.val() * 0.5).sum();
    let gradients = (first + second + tied).backward();
    let gradient = values(layer.weight.val().grad(&gradients).unwrap());
    let rows: Vec<f32> = gradient.chunks(3).map(|row| row[0]).collect();
    assert_eq!(rows, [1.5, 3.5, 0.5, 2.5]);
}

#[test]
fn the_memory_of_a_gradient_is_kept_until_it_is_given_up() {
    // Far larger than the tables of the tests beside it.
    let (rows, width) = (40_000, 300);
    let bytes = (rows * width * size_of::<f32>()) as u64;
    let kept = || firebox_kernels::buffer_bytes()[1];
    let layer = layer(vec![0.5; rows * width], rows, width);
    let gradient = || {
        let out = embedding(&layer, indices(vec![7, 39_999, 7], [1, 3]), None);
        layer.weight.val().grad(&out.sum().backward()).unwrap()
    };
    let held = gradient();
    assert!(firebox_kernels::buffer_bytes()[0] >= bytes && kept() < 2 * bytes);
    drop(held);
    drop(gradient());
    assert!((bytes..2 * bytes).contains(&kept()), "the second has the memory of the first");
    firebox_kernels::release_buffers();
    assert!(kept() < bytes, "{} bytes of {bytes}", kept());
    // One that somebody holds is his alone from then on.
    let held = gradient();
    firebox_kernels::release_buffers();
    let other = gradient();
    let sums = [held, other].map(|gradient| values(gradient.sum())[0]);
    assert_eq!(sums, [900.0, 900.0]);
    firebox_kernels::release_buffers();
}

#[test]
#[should_panic(expected = "the padding of an embedding is row Some(4), and its table has 4 rows")]
fn a_padding_that_is_no_row_is_named() {
    embedding(&layer(vec![1.0; 12], 4, 3), indices(vec![1], [1, 1]), Some(4));
}

#[test]
#[should_panic(expected = "the index 4 names no row of an embedding of 4 rows")]
fn an_index_that_is_too_large_is_named() {
    CpuKernels::Portable.force(|| {
        embedding(&layer(vec![1.0; 12], 4, 3), indices(vec![4], [1, 1]), None);
    });
}
