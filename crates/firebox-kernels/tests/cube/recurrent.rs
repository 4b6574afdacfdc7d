//! LSTM, GRU and dropout.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Gradients, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    CpuKernels, F32Products, GpuKernels, GruConfig, LaunchWatch, LstmConfig, LstmState,
    NoGpuKernels, dropout,
};

use super::alone;
use super::support::case::{Case, float, noise, values};
use super::support::reference::{self, Inputs, Outputs};
use super::support::relative_error;

pub(super) fn config(
    input: usize,
    hidden: usize,
    layers: usize,
    bidirectional: bool,
) -> LstmConfig {
    LstmConfig { layers, bidirectional, ..LstmConfig::new(input, hidden) }
}

fn chosen(case: &Case, device: &Device) -> Result<GpuKernels, NoGpuKernels> {
    let (directions, batch) = (case.config.directions(), case.sizes.batch);
    GpuKernels::of_layer(device, DType::F32, directions, batch, case.config.hidden)
}

/// Outputs, last states and all gradients of both variants within `bound` of the reference. The
/// case must fit the streamed one; the resident one is passed over where it does not fit.
#[track_caller]
fn check(device: &Device, case: &Case, bound: f64) {
    let device = device.clone().autodiff();
    if let Err(error @ NoGpuKernels::Buffers { .. }) = chosen(case, &device) {
        return println!("skipped: {error}");
    }
    let mut checked = vec![];
    for kernels in [GpuKernels::Resident, GpuKernels::Streamed] {
        kernels.force(|| {
            if chosen(case, &device) == Ok(kernels) {
                compare(&format!("{kernels:?}"), case, case.run(&device), bound);
                checked.push(kernels);
            }
        });
    }
    assert!(checked.contains(&GpuKernels::Streamed), "{:?}", chosen(case, &device));
}

#[track_caller]
fn compare(name: &str, case: &Case, (outputs, grads): (Outputs, Inputs), bound: f64) {
    let (expected, mut expected_grads) = reference::run(&case.sizes, &case.inputs, Some(&case.d));
    if !case.state {
        expected_grads.h_0.fill(0.0);
        expected_grads.c_0.fill(0.0);
    }
    let parts = |o: &Outputs| {
        [("output", o.output.clone()), ("h_n", o.h_n.clone()), ("c_n", o.c_n.clone())]
    };
    let mut largest: f64 = 0.0;
    for ((part, actual), (_, expected)) in parts(&outputs).into_iter().zip(parts(&expected)) {
        let error = relative_error(&actual, &expected);
        largest = largest.max(error);
        assert!(error < bound, "{name}: {part} is off by {error:.2e}: {:?}", case.sizes);
    }
    for ((part, actual), (_, expected)) in grads.parts().into_iter().zip(expected_grads.parts()) {
        let error = relative_error(actual, expected);
        largest = largest.max(error);
        assert!(error < bound, "{name}: d {part} is off by {error:.2e}: {:?}", case.sizes);
    }
    println!("{name}: largest error {largest:.1e} of {bound:.0e} allowed");
}

#[test]
fn one_direction_and_both() {
    alone(|device| {
        check(&device, &Case::new(config(4, 8, 1, false), &[6, 6, 6], 6, 2), 1e-5);
        check(&device, &Case::new(config(4, 8, 1, true), &[6, 6, 6], 6, 3), 1e-5);
        check(&device, &Case::new(config(1, 1, 1, true), &[1], 1, 4), 1e-5);
    });
}

#[test]
fn products_beside_the_recurrence_are_made_as_they_are_told() {
    alone(|device| {
        F32Products::Exact.during(|| {
            let watch = LaunchWatch::start();
            check(&device, &Case::new(config(4, 8, 2, true), &[6, 3, 6], 6, 5), 1e-5);
            let launched = watch.end();
            let named = launched.iter().filter_map(|one| one.work.as_ref());
            let products = named.filter(|work| work.name == "product").count();
            // Of each pass, two layers: the projection, its two gradients, and those of recurrent weights.
            assert!(products >= 8 && products % 8 == 0, "{products} products");
        });
    });
}

#[test]
fn odd_sizes() {
    alone(|device| {
        // More units than threads, too, where a device has no more than 256.
        let sizes = [(3, 17, 1, 5), (5, 33, 7, 3), (1, 16, 13, 1), (2, 300, 2, 3)];
        for (seed, (input, hidden, batch, time)) in sizes.into_iter().enumerate() {
            let config = config(input, hidden, 1, true);
            check(&device, &Case::new(config, &vec![time; batch], time, seed as u64), 1e-5);
        }
    });
}

#[test]
fn tiles_of_several_samples() {
    alone(|device| {
        // Enough samples that a device of 32 processors gives two, or four and more, to each tile,
        // and a last tile with rows that no sample has.
        for (seed, batch) in [(5, 37), (6, 75)] {
            let lengths: Vec<_> = (0..batch).map(|i| i * 5 % 8).collect();
            check(&device, &Case::new(config(3, 9, 1, true), &lengths, 7, seed), 1e-5);
        }
        let lengths: Vec<_> = (0..300).map(|i| 1 + i % 3).collect();
        check(&device, &Case::new(config(3, 9, 1, false), &lengths, 3, 7), 1e-5);
    });
}

#[test]
fn stacked_layers_with_states() {
    alone(|device| {
        check(&device, &Case::new(config(4, 8, 3, true), &[8, 8], 8, 5), 1e-5);
        check(&device, &Case::new(config(4, 8, 2, false), &[8, 8], 8, 7).without_state(), 1e-5);
        let mut dropped = config(4, 8, 2, true);
        dropped.dropout = 0.3;
        check(&device, &Case::new(dropped, &[5, 4], 5, 8), 1e-5);
    });
}

#[test]
fn lengths() {
    alone(|device| {
        check(&device, &Case::new(config(3, 8, 2, true), &[7, 3, 0, 1, 6], 7, 8), 1e-5);
        check(&device, &Case::new(config(3, 8, 2, true), &[3, 2, 1], 9, 9), 1e-5);
        check(&device, &Case::new(config(3, 8, 2, true), &[0, 0], 4, 10), 1e-5);
        let case = Case::new(config(3, 8, 1, false), &[0, 5, 2], 5, 11).without_state();
        check(&device, &case, 1e-5);
    });
}

#[test]
fn random_cases() {
    alone(|device| {
        let mut draws = Stream::new(12, "cases").draws();
        for seed in 0..8 {
            let mut below = |bound| draws.below(bound) as usize;
            // Few widths, because every one is compiled for.
            let hidden = [5, 8, 9, 17][below(4)];
            let config = config(1 + below(20), hidden, 1 + below(2), below(2) == 1);
            let (time, batch) = (1 + below(12), 1 + below(20));
            let lengths: Vec<_> = (0..batch).map(|_| below(time as u64 + 1)).collect();
            let case = Case::new(config, &lengths, time, 100 + seed);
            check(&device, &if below(2) == 1 { case.without_state() } else { case }, 1e-5);
        }
    });
}

#[test]
fn hundreds_of_steps() {
    alone(|device| {
        check(&device, &Case::new(config(2, 9, 1, true), &[400, 123], 400, 16), 1e-5);
    });
}

#[test]
fn the_composed_variant_agrees() {
    alone(|device| {
        let case = Case::new(config(3, 9, 1, true), &[5, 3, 0, 5], 5, 21);
        let device = device.autodiff();
        let composed = CpuKernels::Composed.force(|| {
            assert_eq!(chosen(&case, &device), Err(NoGpuKernels::Asked));
            case.run(&device)
        });
        compare("Composed", &case, composed.clone(), 1e-5);
        let (outputs, grads) = case.run(&device);
        assert!(relative_error(&outputs.output, &composed.0.output) < 1e-5);
        for ((part, ours), (_, theirs)) in grads.parts().into_iter().zip(composed.1.parts()) {
            assert!(relative_error(ours, theirs) < 1e-5, "d {part}");
        }
    });
}

/// Output, last states and gradients of the case with everything in another type.
pub(super) fn in_type(dtype: DType, case: &Case, device: &Device) -> Vec<(String, Vec<f64>)> {
    struct Cast(DType);
    impl ModuleMapper for Cast {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|tensor| tensor.cast(self.0).detach().require_grad())
        }
    }
    struct Collect<'a>(&'a Gradients, Vec<(String, Vec<f64>)>);
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = param.val().grad(self.0).expect("a gradient");
            assert_eq!(gradient.dtype(), param.val().dtype());
            self.1
                .push((format!("d parameter {}", self.1.len()), values(gradient.cast(DType::F32))));
        }
    }
    let (sizes, config) = (&case.sizes, &case.config);
    let (batch, time) = (sizes.batch, sizes.time);
    let width = config.directions() * config.hidden;
    let states = [config.layers * config.directions(), batch, config.hidden];
    let tensor = |values: &[f64], shape| float::<3>(values, shape, device).cast(dtype);
    let x = tensor(&case.inputs.input, [batch, time, config.input]).detach().require_grad();
    let state = LstmState {
        hidden: tensor(&case.inputs.h_0, states),
        cell: tensor(&case.inputs.c_0, states),
    };
    let module = case.module(device).map(&mut Cast(dtype));
    let (output, last) = module.forward(x.clone(), Some(&sizes.lengths), Some(state), None);
    assert_eq!(output.dtype(), dtype);
    let loss = (output.clone() * tensor(&case.d.output, [batch, time, width])).sum()
        + (last.hidden.clone() * tensor(&case.d.h_n, states)).sum()
        + (last.cell.clone() * tensor(&case.d.c_n, states)).sum();
    let grads = loss.backward();
    let mut all = vec![
        ("output".to_owned(), values(output.cast(DType::F32))),
        ("h_n".to_owned(), values(last.hidden.cast(DType::F32))),
        ("c_n".to_owned(), values(last.cell.cast(DType::F32))),
        ("d input".to_owned(), values(x.grad(&grads).expect("a gradient").cast(DType::F32))),
    ];
    let mut collect = Collect(&grads, vec![]);
    module.visit(&mut collect);
    all.append(&mut collect.1);
    all
}

#[test]
fn halves_are_summed_in_f32() {
    alone(|device| {
        let bounds = [(DType::F16, 2e-3), (DType::BF16, 1.6e-2)];
        let takes = |dtype| GpuKernels::of_layer(&device, dtype, 2, 6, 9).is_ok();
        if !bounds.iter().any(|(dtype, _)| takes(*dtype)) {
            println!("skipped: this device stores neither F16 nor BF16");
        }
        for (dtype, bound) in bounds.into_iter().filter(|(dtype, _)| takes(*dtype)) {
            let device = device.clone().autodiff();
            let case = Case::new(config(3, 9, 1, true), &[12, 3, 0, 12, 7, 12], 12, 24);
            let (outputs, grads) = reference::run(&case.sizes, &case.inputs, Some(&case.d));
            let mut expected = vec![outputs.output, outputs.h_n, outputs.c_n, grads.input];
            for direction in grads.directions {
                expected.extend([direction.weight_ih, direction.weight_hh]);
                expected.extend([direction.bias_ih, direction.bias_hh]);
            }
            let composed = CpuKernels::Composed.force(|| in_type(dtype, &case, &device));
            for kernels in GpuKernels::ALL {
                let fused = kernels.force(|| in_type(dtype, &case, &device));
                assert_eq!(fused.len(), expected.len());
                for (((part, ours), (_, theirs)), expected) in
                    fused.iter().zip(&composed).zip(&expected)
                {
                    let error = relative_error(ours, expected);
                    let other = relative_error(theirs, expected);
                    println!("{dtype:?} {kernels:?}: {part}: {error:.1e}, composed {other:.1e}");
                    assert!(error < bound, "{dtype:?} {kernels:?}: {part} is off by {error:.2e}");
                }
            }
        }
    });
}

#[test]
fn a_compute_type_leaves_inputs_and_gradients_in_f32() {
    alone(|device| {
        if let Err(error) = GpuKernels::of_layer(&device, DType::F16, 2, 3, 9) {
            return println!("skipped: F16 on this device: {error}");
        }
        let case = Case::new(config(3, 9, 2, true), &[6, 2, 0], 6, 25);
        let device = device.autodiff();
        let (expected, expected_grads) = reference::run(&case.sizes, &case.inputs, Some(&case.d));
        let x = float::<3>(&case.inputs.input, [3, 6, 3], &device).require_grad();
        let state = |values: &[f64]| float::<3>(values, [4, 3, 9], &device);
        let state = LstmState { hidden: state(&case.inputs.h_0), cell: state(&case.inputs.c_0) };
        let module = case.module(&device).in_precision(Precision::F16);
        let (output, last) =
            module.forward(x.clone(), Some(&case.sizes.lengths), Some(state), None);
        assert_eq!((output.dtype(), last.cell.dtype()), (DType::F32, DType::F32));
        let d = |values: &[f64], shape| float::<3>(values, shape, &device);
        let loss = (output.clone() * d(&case.d.output, [3, 6, 18])).sum()
            + (last.hidden.clone() * d(&case.d.h_n, [4, 3, 9])).sum()
            + (last.cell.clone() * d(&case.d.c_n, [4, 3, 9])).sum();
        let gradient = x.grad(&loss.backward()).expect("a gradient");
        assert_eq!(gradient.dtype(), DType::F32);
        assert!(relative_error(&values(output), &expected.output) < 2e-3);
        assert!(relative_error(&values(last.cell), &expected.c_n) < 2e-3);
        assert!(relative_error(&values(gradient), &expected_grads.input) < 4e-3);
    });
}

#[test]
fn padding_may_hold_anything() {
    alone(|device| {
        let plain = Case::new(config(3, 8, 2, true), &[4, 0, 2], 5, 13);
        let mut dirty = Case::new(config(3, 8, 2, true), &[4, 0, 2], 5, 13);
        for (sample, length) in [4, 0, 2].into_iter().enumerate() {
            dirty.inputs.input[(sample * 5 + length) * 3..(sample + 1) * 15].fill(f64::NAN);
        }
        let device = device.autodiff();
        assert_eq!(plain.run(&device), dirty.run(&device));
    });
}

#[test]
fn nan_reaches_its_own_sample_and_no_other() {
    alone(|device| {
        let clean = Case::new(config(3, 8, 1, true), &[5, 5, 5], 5, 14);
        let mut case = Case::new(config(3, 8, 1, true), &[5, 5, 5], 5, 14);
        case.inputs.input[5 * 3 + 7] = f64::NAN; // sample 1, step 2
        let device = device.autodiff();
        let ((actual, grads), (expected, _)) = (case.run(&device), clean.run(&device));
        let rows = |sample: usize| sample * 5 * 16..(sample + 1) * 5 * 16;
        for sample in [0, 2] {
            assert_eq!(actual.output[rows(sample)], expected.output[rows(sample)]);
        }
        let poisoned = &actual.output[rows(1)];
        for t in 0..5 {
            let (forward, reverse) = poisoned[t * 16..][..16].split_at(8);
            assert_eq!(forward.iter().all(|v| v.is_nan()), t >= 2, "forward, step {t}");
            assert_eq!(reverse.iter().all(|v| v.is_nan()), t <= 2, "reverse, step {t}");
        }
        assert!(grads.directions[0].weight_hh.iter().all(|v| v.is_nan()));
    });
}

#[test]
fn saturated_gates() {
    alone(|device| {
        let mut case = Case::new(config(3, 8, 1, true), &[5, 5], 5, 15);
        for value in &mut case.inputs.input {
            *value *= 200.0;
        }
        // A sum of some hundreds is itself only known to 1e-5 in f32.
        check(&device, &case, 5e-5);
    });
}

#[test]
fn the_last_states_alone_or_the_output_alone_give_the_same_gradients() {
    alone(|device| {
        for part in 0..2 {
            let mut case = Case::new(config(3, 8, 2, true), &[7, 3, 0, 1, 6], 7, 19);
            // A gradient of zero, which Burn still sends through the graph, and one not sent.
            if part == 0 {
                case.d.output.fill(0.0);
            } else {
                case.d.h_n.fill(0.0);
                case.d.c_n.fill(0.0);
            }
            check(&device, &case, 1e-5);
            let device = device.clone().autodiff();
            let lengths: &[usize] = &case.sizes.lengths;
            let gradient = |kernels: CpuKernels| {
                kernels.force(|| {
                    let x = float::<3>(&case.inputs.input, [5, 7, 3], &device).require_grad();
                    let module = case.module(&device);
                    let (output, last) = module.forward(x.clone(), Some(lengths), None, None);
                    let loss = match part {
                        0 => last.hidden.sum() + last.cell.sum(),
                        _ => output.sum(),
                    };
                    values(x.grad(&loss.backward()).expect("a gradient of the input"))
                })
            };
            let (fused, composed) =
                (gradient(CpuKernels::Portable), gradient(CpuKernels::Composed));
            assert!(relative_error(&fused, &composed) < 1e-5, "part {part}");
        }
    });
}

#[test]
fn without_a_graph_and_under_checkpointing_the_values_are_the_same() {
    alone(|device| {
        let case = Case::new(config(3, 8, 2, true), &[7, 3, 0, 1, 6], 7, 22);
        let (tracked, grads) = case.run(&device.clone().autodiff());
        let again = case.run(&device.clone().autodiff().gradient_checkpointing());
        assert_eq!(again.0, tracked);
        for ((part, ours), (_, theirs)) in again.1.parts().into_iter().zip(grads.parts()) {
            assert!(relative_error(ours, theirs) < 1e-6, "d {part}");
        }
        let x = float::<3>(&case.inputs.input, [5, 7, 3], &device);
        let state = |values: &[f64]| float::<3>(values, [4, 5, 8], &device);
        let state = LstmState { hidden: state(&case.inputs.h_0), cell: state(&case.inputs.c_0) };
        let (output, last) =
            case.module(&device).forward(x, Some(&case.sizes.lengths), Some(state), None);
        assert_eq!(values(output), tracked.output);
        assert_eq!(values(last.hidden), tracked.h_n);
        assert_eq!(values(last.cell), tracked.c_n);
    });
}

/// Outputs, last states and gradients of a GRU with the parameters that its stream gives.
pub(super) fn gru(
    device: &Device,
    config: &GruConfig,
    lengths: &[usize],
    time: usize,
    precision: Precision,
) -> Vec<Vec<f64>> {
    struct Collect<'a>(&'a Gradients, Vec<Vec<f64>>);
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.push(values(param.val().grad(self.0).expect("a gradient")));
        }
    }
    let device = device.clone().autodiff();
    let (batch, directions) = (lengths.len(), config.directions());
    let numbers = |index, shape: [usize; 3]| {
        let stream = Stream::new(31, "gru").substream(index);
        float::<3>(&noise(stream, shape.iter().product(), 1.0), shape, &device)
    };
    let module = config.init(Stream::new(32, "gru"), &device).in_precision(precision);
    let x = numbers(0, [batch, time, config.input]).require_grad();
    let state = numbers(1, [config.layers * directions, batch, config.hidden]).require_grad();
    let (output, last) = module.forward(x.clone(), Some(lengths), Some(state.clone()), None);
    let loss = (output.clone() * numbers(2, output.dims())).sum()
        + (last.clone() * numbers(3, last.dims())).sum();
    let grads = loss.backward();
    let gradient = |tensor: Tensor<3>| values(tensor.grad(&grads).expect("a gradient"));
    let mut all = vec![values(output), values(last), gradient(x), gradient(state)];
    let mut collect = Collect(&grads, vec![]);
    module.visit(&mut collect);
    all.append(&mut collect.1);
    all
}

#[test]
fn a_gru_agrees_with_the_composed_one_on_the_cpu() {
    alone(|device| {
        let mut configs = [GruConfig::new(3, 9), GruConfig::new(2, 8)];
        configs[0].bidirectional = true;
        configs[0].layers = 2;
        for config in configs {
            for (batch, time) in [(5, 7), (75, 4)] {
                let lengths: Vec<_> = (0..batch).map(|i| (i * 3 + time) % (time + 1)).collect();
                let expected = CpuKernels::Composed
                    .force(|| gru(&Device::flex(), &config, &lengths, time, Precision::F32));
                for kernels in [GpuKernels::Resident, GpuKernels::Streamed] {
                    let actual =
                        kernels.force(|| gru(&device, &config, &lengths, time, Precision::F32));
                    for (index, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
                        let error = relative_error(actual, expected);
                        assert!(error < 1e-5, "{kernels:?}: part {index} is off by {error:.2e}");
                    }
                }
            }
        }
    });
}

#[test]
fn what_is_frozen_has_no_gradient_and_takes_none_from_the_rest() {
    /// Freezes the recurrent weights of the first direction.
    struct Freeze(usize);

    impl ModuleMapper for Freeze {
        fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
            self.0 += 1;
            // weight_ih, weight_hh, …
            if self.0 == 2 { parameter.set_require_grad(false) } else { parameter }
        }
    }

    alone(|device| {
        let config = GruConfig { bidirectional: true, ..GruConfig::new(3, 6) };
        let input = noise(Stream::new(8, "frozen"), 5 * 4 * 3, 1.0);
        let run = |freeze: bool| {
            let device = device.clone().autodiff();
            let gru = config.init(Stream::new(9, "frozen"), &device);
            let gru = if freeze { gru.map(&mut Freeze(0)) } else { gru };
            let input = float::<3>(&input, [5, 4, 3], &device).require_grad();
            let output = gru.outputs(input.clone(), None, None);
            assert_eq!(
                values(output.clone()),
                values(gru.forward(input.clone(), None, None, None).0)
            );
            let gradients = output.square().sum().backward();
            let mut all = vec![input.grad(&gradients).map(values)];
            let mut visit = Visit { gradients: &gradients, all: vec![] };
            gru.visit(&mut visit);
            all.append(&mut visit.all);
            all
        };
        let (mut whole, frozen) = (run(false), run(true));
        assert_eq!(whole.len(), 9);
        assert!(whole.iter().all(Option::is_some));
        whole[2] = None;
        assert_eq!(frozen, whole);
    });
}

/// The gradients of parameters in their order.
struct Visit<'a> {
    gradients: &'a Gradients,
    all: Vec<Option<Vec<f64>>>,
}

impl ModuleVisitor for Visit<'_> {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        self.all.push(parameter.val().grad(self.gradients).map(values));
    }
}

#[test]
fn dropout_draws_the_same_mask_on_every_device() {
    alone(|device| {
        let stream = Stream::new(5, "dropout");
        let run = |device: &Device, probability: f64, count: usize| {
            let mut numbers = noise(Stream::new(6, "x"), count, 1.0);
            numbers[count / 2] = f64::NAN;
            let device = device.clone().autodiff();
            let x = float::<1>(&numbers, [count], &device).require_grad();
            let y = dropout(x.clone(), probability, Some(stream));
            let weights =
                float::<1>(&(0..count).map(|i| i as f64).collect::<Vec<_>>(), [count], &device);
            let grads = (y.clone() * weights).sum().backward();
            // Which NaN it is depends on the device.
            let bits = |n: &f64| if n.is_nan() { f64::NAN.to_bits() } else { n.to_bits() };
            let bits = |numbers: Vec<f64>| numbers.iter().map(bits).collect::<Vec<_>>();
            (bits(values(y)), bits(values(x.grad(&grads).expect("a gradient"))))
        };
        for (probability, count) in [(0.2, 4099), (0.5, 1), (1.0, 6), (0.9999, 70_000)] {
            let ours = run(&device, probability, count);
            assert_eq!(ours, run(&Device::flex(), probability, count), "{probability} {count}");
        }
        let x = || Tensor::<2>::ones([3, 7], &device);
        let plain = values(dropout(x(), 0.3, Some(stream)));
        let composed = CpuKernels::Composed.force(|| values(dropout(x(), 0.3, Some(stream))));
        assert_eq!(plain, composed);
    });
}

#[test]
fn reports_can_ask_which_variant_runs_and_why_no_other() {
    alone(|device| {
        let ask = |dtype, hidden| GpuKernels::of_layer(&device, dtype, 2, 8, hidden);
        let small = ask(DType::F32, 4);
        if let Err(error @ NoGpuKernels::Buffers { .. }) = small {
            return println!("skipped: {error}");
        }
        assert!(matches!(small, Ok(GpuKernels::Resident)), "{small:?}");
        GpuKernels::Streamed.force(|| assert_eq!(ask(DType::F32, 4), Ok(GpuKernels::Streamed)));
        let large = ask(DType::F32, 1 << 20).expect_err("terabytes of state").to_string();
        assert!(large.contains("1048576 hidden units"), "{large}");
        let double = ask(DType::F64, 4).expect_err("not taken").to_string();
        assert!(double.contains("F64"), "{double}");
        let flex = GpuKernels::of_layer(&Device::flex(), DType::F32, 2, 8, 4);
        assert!(matches!(flex, Err(NoGpuKernels::NotGpu { .. })), "{flex:?}");
    });
}

#[test]
fn a_layer_too_large_for_the_kernels_is_composed() {
    alone(|device| {
        // Some thousand units do not fit any device with 32 KiB of shared memory; others pass over.
        let case = Case::new(config(2, 1500, 1, false), &[2, 1], 2, 23);
        if chosen(&case, &device).is_err() {
            compare("Composed", &case, case.run(&device.autodiff()), 1e-5);
        }
    });
}

#[test]
fn mismatches_are_refused_with_shapes_before_anything_runs() {
    alone(|device| {
        let message = |run: &dyn Fn()| {
            let run = std::panic::AssertUnwindSafe(run);
            let panic = std::panic::catch_unwind(run).expect_err("refused");
            panic.downcast_ref::<String>().cloned().unwrap_or_default()
        };
        let module = config(3, 4, 1, false).init(Stream::new(1, "lstm"), &device);
        let wrong = message(&|| {
            module.forward(Tensor::zeros([2, 5, 4], &device), None, None, None);
        });
        assert!(wrong.contains("[2, 5, 4]"), "{wrong}");
        if let Err(error) = GpuKernels::of_layer(&device, DType::F32, 1, 2, 4) {
            return println!("skipped: {error}");
        }
        let wrong = message(&|| {
            let state = LstmState {
                hidden: Tensor::zeros([1, 2, 4], &Device::flex()),
                cell: Tensor::zeros([1, 2, 4], &device),
            };
            module.forward(Tensor::zeros([2, 5, 3], &device), None, Some(state), None);
        });
        assert!(wrong.contains("hidden state [1, 2, 4] in F32 on"), "{wrong}");
    });
}
