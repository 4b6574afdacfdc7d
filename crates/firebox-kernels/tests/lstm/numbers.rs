//! The LSTM against a float64 reference that was written independently, on odd sizes.

use crate::support::case::{Case, values};
use crate::support::reference::{self, Inputs, Outputs};
use crate::support::relative_error;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{CpuKernels, GruConfig, LstmConfig};

fn config(input: usize, hidden: usize, layers: usize, bidirectional: bool) -> LstmConfig {
    LstmConfig { layers, bidirectional, ..LstmConfig::new(input, hidden) }
}

/// Outputs, last states and all gradients of every variant of the kernels, Burn's own operations
/// among them, within `bound` of the reference.
#[track_caller]
fn check(case: &Case, bound: f64) {
    for kernels in CpuKernels::available() {
        let results = kernels.force(|| case.run(&Device::flex().autodiff()));
        compare(kernels, case, results, bound);
    }
}

#[track_caller]
fn compare(kernels: CpuKernels, case: &Case, (outputs, grads): (Outputs, Inputs), bound: f64) {
    let (expected, mut expected_grads) = reference::run(&case.sizes, &case.inputs, Some(&case.d));
    if !case.state {
        expected_grads.h_0.fill(0.0);
        expected_grads.c_0.fill(0.0);
    }
    let parts = |o: &Outputs| {
        [("output", o.output.clone()), ("h_n", o.h_n.clone()), ("c_n", o.c_n.clone())]
    };
    for ((name, actual), (_, expected)) in parts(&outputs).into_iter().zip(parts(&expected)) {
        let error = relative_error(&actual, &expected);
        assert!(error < bound, "{kernels:?}: {name} is off by {error:.2e}: {:?}", case.sizes);
    }
    for ((name, actual), (_, expected)) in grads.parts().into_iter().zip(expected_grads.parts()) {
        let error = relative_error(actual, expected);
        assert!(error < bound, "{kernels:?}: d {name} is off by {error:.2e}: {:?}", case.sizes);
    }
}

#[test]
fn the_reference_agrees_with_finite_differences() {
    let case = Case::new(config(3, 2, 2, true), &[4, 0, 2], 4, 1);
    let loss = |inputs: &Inputs| {
        let (out, _) = reference::run(&case.sizes, inputs, None);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        dot(&out.output, &case.d.output) + dot(&out.h_n, &case.d.h_n) + dot(&out.c_n, &case.d.c_n)
    };
    let (_, grads) = reference::run(&case.sizes, &case.inputs, Some(&case.d));
    let count = case.inputs.parts().len();
    for part in 0..count {
        let length = case.inputs.parts()[part].1.len();
        let numeric: Vec<f64> = (0..length)
            .map(|index| {
                let shifted = |by: f64| {
                    let mut inputs = case.inputs.clone();
                    let directions = &mut inputs.directions;
                    let values = match part {
                        0 => &mut inputs.input,
                        1 => &mut inputs.h_0,
                        2 => &mut inputs.c_0,
                        _ => {
                            let direction = &mut directions[(part - 3) / 4];
                            match (part - 3) % 4 {
                                0 => &mut direction.weight_ih,
                                1 => &mut direction.weight_hh,
                                2 => &mut direction.bias_ih,
                                _ => &mut direction.bias_hh,
                            }
                        }
                    };
                    values[index] += by;
                    loss(&inputs)
                };
                (shifted(1e-5) - shifted(-1e-5)) / 2e-5
            })
            .collect();
        let (name, analytic) = grads.parts().swap_remove(part);
        let error = relative_error(&numeric, analytic);
        assert!(error < 1e-8, "{name}: {error:.2e}");
    }
}

#[test]
fn one_direction_and_both() {
    check(&Case::new(config(4, 8, 1, false), &[6, 6, 6], 6, 2), 1e-5);
    check(&Case::new(config(4, 8, 1, true), &[6, 6, 6], 6, 3), 1e-5);
    check(&Case::new(config(1, 1, 1, true), &[1], 1, 4), 1e-5);
}

#[test]
fn odd_sizes() {
    let sizes = [(3, 17, 1, 5), (5, 33, 7, 3), (1, 16, 13, 9), (19, 47, 33, 4), (65, 31, 2, 11)];
    for (seed, (input, hidden, batch, time)) in sizes.into_iter().enumerate() {
        let case = Case::new(config(input, hidden, 1, true), &vec![time; batch], time, seed as u64);
        check(&case, 1e-5);
    }
}

#[test]
fn stacked_layers_with_states() {
    check(&Case::new(config(4, 12, 3, true), &[8, 8], 8, 5), 1e-5);
    check(&Case::new(config(4, 12, 3, false), &[8, 8], 8, 6), 1e-5);
    check(&Case::new(config(4, 12, 2, true), &[8, 8], 8, 7).without_state(), 1e-5);
}

#[test]
fn from_zeros() {
    // With and without gradients of the states; columns of the product that may be left out, and some
    // that share a panel with others.
    for hidden in [12, 70] {
        let mut case = Case::new(config(4, hidden, 2, true), &[6, 6, 2], 6, 14);
        case.inputs.h_0.fill(0.0);
        case.inputs.c_0.fill(0.0);
        check(&case, 1e-5);
        check(&case.without_state(), 1e-5);
    }
    check(&Case::new(config(4, 70, 1, false), &[1, 1], 1, 15).without_state(), 1e-5);
}

#[test]
fn lengths() {
    check(&Case::new(config(3, 10, 2, true), &[7, 3, 0, 1, 6], 7, 8), 1e-5);
    check(&Case::new(config(3, 10, 2, true), &[3, 2, 1], 9, 9), 1e-5);
    check(&Case::new(config(3, 10, 2, true), &[0, 0], 4, 10), 1e-5);
    check(&Case::new(config(3, 10, 1, false), &[0, 5, 2], 5, 11).without_state(), 1e-5);
}

#[test]
fn random_cases() {
    let mut draws = Stream::new(12, "cases").draws();
    for seed in 0..25 {
        let mut below = |bound| draws.below(bound) as usize;
        let mut config = config(1 + below(20), 1 + below(40), 1 + below(3), below(2) == 1);
        config.dropout = if below(2) == 1 { 0.3 } else { 0.0 };
        let (time, batch) = (1 + below(12), 1 + below(20));
        let lengths: Vec<_> = (0..batch).map(|_| below(time as u64 + 1)).collect();
        let case = Case::new(config, &lengths, time, 100 + seed);
        check(&if below(2) == 1 { case.without_state() } else { case }, 1e-5);
    }
}

#[test]
fn padding_may_hold_anything() {
    let plain = Case::new(config(3, 6, 2, true), &[4, 0, 2], 5, 13);
    let mut dirty = Case::new(config(3, 6, 2, true), &[4, 0, 2], 5, 13);
    for (sample, length) in [4, 0, 2].into_iter().enumerate() {
        dirty.inputs.input[(sample * 5 + length) * 3..(sample + 1) * 15].fill(f64::NAN);
    }
    let device = Device::flex().autodiff();
    for kernels in CpuKernels::available() {
        kernels.force(|| assert_eq!(plain.run(&device), dirty.run(&device)));
    }
}

#[test]
fn nan_reaches_its_own_sample_and_no_other() {
    for kernels in CpuKernels::available() {
        kernels.force(nan_reaches_its_own_sample);
    }
}

fn nan_reaches_its_own_sample() {
    let clean = Case::new(config(3, 6, 1, true), &[5, 5, 5], 5, 14);
    let mut case = Case::new(config(3, 6, 1, true), &[5, 5, 5], 5, 14);
    case.inputs.input[5 * 3 + 7] = f64::NAN; // sample 1, step 2
    let device = Device::flex().autodiff();
    let ((actual, grads), (expected, _)) = (case.run(&device), clean.run(&device));
    let rows = |sample: usize| sample * 5 * 12..(sample + 1) * 5 * 12;
    for sample in [0, 2] {
        assert_eq!(actual.output[rows(sample)], expected.output[rows(sample)]);
    }
    let poisoned = &actual.output[rows(1)];
    for t in 0..5 {
        let (forward, reverse) = poisoned[t * 12..][..12].split_at(6);
        assert_eq!(forward.iter().all(|v| v.is_nan()), t >= 2, "forward, step {t}");
        assert_eq!(reverse.iter().all(|v| v.is_nan()), t <= 2, "reverse, step {t}");
    }
    assert!(grads.directions[0].weight_hh.iter().all(|v| v.is_nan()));
}

#[test]
fn saturated_gates_and_denormals() {
    let mut case = Case::new(config(3, 6, 1, true), &[5, 5], 5, 15);
    for value in &mut case.inputs.input {
        *value *= 200.0;
    }
    // A sum of some hundreds is itself only known to 1e-5 in f32.
    check(&case, 5e-5);
    for value in &mut case.inputs.input {
        *value = f64::from((*value * 1e-42) as f32);
    }
    case.inputs.c_0.fill(f64::from(1e-40f32));
    // A gradient that is itself denormal has no more than five digits.
    check(&case, 1e-4);
}

#[test]
fn two_thousand_steps() {
    let mut case = Case::new(config(2, 9, 1, true), &[2000, 1234], 2000, 16);
    for value in &mut case.d.output {
        *value *= 0.01;
    }
    check(&case, 1e-4);
}

#[test]
fn results_are_the_same_to_the_bit_on_any_number_of_threads() {
    let lengths: Vec<_> = (0..150).map(|i| i * 7 % 12).collect();
    let case = Case::new(config(5, 21, 2, true), &lengths, 11, 18);
    for kernels in CpuKernels::available() {
        let mut results = [1, 2, 3].into_iter().map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.expect("a pool").install(|| kernels.force(|| case.run(&Device::flex().autodiff())))
        });
        let first = results.next().expect("one thread");
        for other in results {
            assert_eq!(first, other, "{kernels:?}");
        }
    }
}

#[test]
fn the_last_states_alone_or_the_output_alone_give_the_same_gradients() {
    for part in 0..3 {
        let mut case = Case::new(config(3, 10, 2, true), &[7, 3, 0, 1, 6], 7, 19);
        // A gradient of zero, which Burn still sends through the graph, and one that is not sent.
        if part == 0 {
            case.d.output.fill(0.0);
        } else if part == 1 {
            case.d.h_n.fill(0.0);
            case.d.c_n.fill(0.0);
        }
        check(&case, 1e-5);
        let device = Device::flex().autodiff();
        let module = case.module(&device);
        let x =
            crate::support::case::float::<3>(&case.inputs.input, [5, 7, 3], &device).require_grad();
        let (output, last) = module.forward(x.clone(), None, None, None);
        let loss = if part == 0 { last.hidden.sum() + last.cell.sum() } else { output.sum() };
        assert!(x.grad(&loss.backward()).is_some());
    }
}

#[test]
fn an_input_without_gradient_costs_the_parameters_nothing() {
    let case = Case::new(config(3, 10, 1, true), &[4, 4, 4], 4, 20);
    let device = Device::flex().autodiff();
    let gradient = |x: burn::Tensor<3>| {
        let module = case.module(&device);
        let (output, _) = module.forward(x, None, None, None);
        let grads = output.powi_scalar(2).sum().backward();
        struct First<'a>(&'a burn::tensor::Gradients, Vec<Vec<f64>>);
        impl burn::module::ModuleVisitor for First<'_> {
            fn visit_float<const D: usize>(
                &mut self,
                param: &burn::module::Param<burn::Tensor<D>>,
            ) {
                let grad = param.val().grad(self.0).expect("a gradient");
                self.1.push(crate::support::case::values(grad));
            }
        }
        let mut visitor = First(&grads, vec![]);
        burn::module::Module::visit(&module, &mut visitor);
        visitor.1
    };
    let x =
        |device: &Device| crate::support::case::float::<3>(&case.inputs.input, [3, 4, 3], device);
    let tracked = gradient(x(&device).require_grad());
    assert_eq!(tracked, gradient(x(&device)));
    // An input from outside of the graph.
    assert_eq!(tracked, gradient(x(&Device::flex())));
}

#[test]
fn an_empty_batch_gives_an_empty_result() {
    let device = Device::flex();
    let module = config(3, 4, 2, true).init(Stream::new(1, "lstm"), &device);
    for shape in [[0, 5, 3], [2, 0, 3]] {
        let (output, state) = module.forward(burn::Tensor::zeros(shape, &device), None, None, None);
        assert_eq!(output.dims(), [shape[0], shape[1], 8]);
        assert_eq!(state.cell.dims(), [4, shape[0], 4]);
    }
}

/// Counts parameters, whose gradients must all be zeros.
struct Zeros<'a>(&'a Gradients, usize);

impl ModuleVisitor for Zeros<'_> {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        is_zero(&parameter.val(), self.0);
        self.1 += 1;
    }
}

#[track_caller]
fn is_zero<const D: usize>(tensor: &Tensor<D>, all: &Gradients) {
    let d = tensor.grad(all).expect("tracked");
    assert_eq!(d.dims(), tensor.dims());
    assert!(values(d).iter().all(|d| *d == 0.0));
}

#[test]
fn of_an_empty_batch_gradients_are_zeros() {
    let device = Device::flex().autodiff();
    let lstm = config(3, 4, 2, true).init(Stream::new(1, "lstm"), &device);
    let shape = GruConfig { layers: 2, bidirectional: true, ..GruConfig::new(3, 4) };
    let gru = shape.init(Stream::new(1, "gru"), &device);
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            for shape in [[0, 5, 3], [2, 0, 3]] {
                let x = Tensor::<3>::zeros(shape, &device).require_grad();
                let check = |what: &str, loss: Tensor<3>, module: &dyn Fn(&mut Zeros<'_>)| {
                    let all = loss.sum().backward();
                    is_zero(&x, &all);
                    let mut zeros = Zeros(&all, 0);
                    module(&mut zeros);
                    assert_eq!(zeros.1, 16, "{kernels:?} {what}");
                };
                // A pass for each: its graph goes with its gradients.
                for what in ["y", "h", "c"] {
                    let (output, state) = lstm.forward(x.clone(), None, None, None);
                    let loss = match what {
                        "y" => output,
                        "h" => state.hidden,
                        _ => state.cell,
                    };
                    assert!(values(loss.clone()).iter().all(|y| *y == 0.0), "{kernels:?} {what}");
                    check(what, loss, &|zeros| lstm.visit(zeros));
                }
                let pass = || gru.forward(x.clone(), None, None, None);
                check("y", pass().0, &|zeros| gru.visit(zeros));
                check("h", pass().1, &|zeros| gru.visit(zeros));
                // A state that is given comes back, and its gradient is one where it is the loss.
                let h = Tensor::<3>::full([4, shape[0], 4], 0.5, &device).require_grad();
                let pass = || gru.forward(x.clone(), None, Some(h.clone()), None);
                is_zero(&h, &pass().0.sum().backward());
                let (_, last) = pass();
                assert_eq!(values(last.clone()), vec![0.5; 16 * shape[0]]);
                let d = h.grad(&last.sum().backward()).expect("tracked");
                assert_eq!(values(d), vec![1.0; 16 * shape[0]], "{kernels:?}");
            }
        });
    }
}

#[test]
fn evaluation_equals_training_without_dropout() {
    let mut settings = config(3, 6, 2, true);
    settings.dropout = 0.5;
    let case = Case::new(settings, &[5, 4], 5, 17);
    let device = Device::flex();
    let x = || crate::support::case::float(&case.inputs.input, [2, 5, 3], &device);
    let module = case.module(&device);
    let (plain, _) = module.forward(x(), Some(&[5, 4]), None, None);
    let mut settings = case.config.clone();
    settings.dropout = 0.0;
    let other = Case { config: settings, ..Case::new(config(3, 6, 2, true), &[5, 4], 5, 17) };
    let (same, _) = other.module(&device).forward(x(), Some(&[5, 4]), None, case.dropout);
    let (dropped, _) = module.forward(x(), Some(&[5, 4]), None, case.dropout);
    let values = crate::support::case::values;
    assert_eq!(values(plain.clone()), values(same));
    assert_ne!(values(plain), values(dropped));
}

#[test]
fn initial_parameters_follow_the_stream_and_the_bound() {
    let device = Device::flex();
    let lstm = config(5, 16, 2, true);
    let record = |seed| {
        let module = lstm.init(Stream::new(seed, "lstm"), &device);
        let (output, _) = module.forward(burn::Tensor::ones([1, 3, 5], &device), None, None, None);
        crate::support::case::values(output)
    };
    assert_eq!(record(1), record(1));
    assert_ne!(record(1), record(2));
}

#[test]
#[should_panic(expected = "[2, 5, 4]")]
fn wrong_channels_are_refused_with_the_shape() {
    let device = Device::flex();
    let module = config(3, 4, 1, false).init(Stream::new(1, "lstm"), &device);
    module.forward(burn::Tensor::zeros([2, 5, 4], &device), None, None, None);
}

#[test]
#[should_panic(expected = "sample 1 has length 6, longer than its input of 5 steps")]
fn a_length_beyond_the_input_is_refused() {
    let device = Device::flex();
    let module = config(3, 4, 1, false).init(Stream::new(1, "lstm"), &device);
    module.forward(burn::Tensor::zeros([2, 5, 3], &device), Some(&[5, 6]), None, None);
}

#[test]
fn configurations_are_checked() {
    let message = |config: LstmConfig| config.validate().expect_err("refused").to_string();
    assert_eq!(
        message(config(3, 0, 1, true)),
        "`hidden` of a recurrent layer is 0; it must be at least 1"
    );
    let dropout = LstmConfig { dropout: -0.5, ..config(3, 4, 1, true) };
    assert_eq!(
        message(dropout),
        "`dropout` between recurrent layers is -0.5; it must be a probability between 0 and 1"
    );
    let unknown: Result<LstmConfig, _> =
        serde_json::from_str(r#"{"input": 1, "hidden": 2, "hiden": 3}"#);
    assert!(unknown.expect_err("unknown keys are refused").to_string().contains("hiden"));
}

#[test]
fn a_sample_without_a_step_keeps_its_state_to_the_bit_in_half_precision() {
    for precision in [Precision::F16, Precision::Bf16] {
        let mut case = Case::new(config(3, 5, 1, false), &[0, 3], 3, 77);
        case.precision = precision;
        for kernels in CpuKernels::available() {
            let (outputs, grads) = kernels.force(|| case.run(&Device::flex().autodiff()));
            assert_eq!(outputs.h_n[..5], case.inputs.h_0[..5], "{kernels:?}, {precision:?}");
            assert_eq!(outputs.c_n[..5], case.inputs.c_0[..5], "{kernels:?}, {precision:?}");
            assert_eq!(grads.h_0[..5], case.d.h_n[..5], "{kernels:?}, {precision:?}");
            assert_eq!(grads.c_0[..5], case.d.c_n[..5], "{kernels:?}, {precision:?}");
        }
    }
}
