//! Optimizer steps: `golden_learning.py` wrote what PyTorch does; the larger cases are compared with
//! the formula in float64.

use std::collections::BTreeMap;

use burn::backend::Flex;
use burn::tensor::{DType, Device, Tensor, TensorData};
use firebox_core::Stream;
use firebox_kernels::{
    Clip, CpuKernels, DeviceStep, ParameterUpdate, SquaredNorm, StepState, UpdateRule, add_scaled,
    approach, approach_on_device, squared_norm, update_on_device, update_parameters,
};
use serde::Deserialize;

type Values = BTreeMap<String, Vec<f64>>;

#[derive(Deserialize)]
struct Golden {
    start: Values,
    gradients: Vec<Values>,
    cases: Vec<Case>,
    average: Average,
}

#[derive(Deserialize)]
struct Case {
    kind: String,
    settings: Settings,
    clip: Option<f64>,
    value: Option<f64>,
    scale: f64,
    groups: bool,
    frozen: Vec<usize>,
    norms: Vec<f64>,
    trace: Vec<Values>,
}

#[derive(Deserialize)]
struct Settings {
    lr: f64,
    weight_decay: f64,
    #[serde(default)]
    betas: [f64; 2],
    #[serde(default)]
    eps: f64,
    #[serde(default)]
    momentum: f64,
    #[serde(default)]
    dampening: f64,
    #[serde(default)]
    nesterov: bool,
}

#[derive(Deserialize)]
struct Average {
    decay: f64,
    trace: Vec<Vec<f64>>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../golden/optimizer.json")).unwrap()
}

fn tensor(values: &[f64], scale: f64) -> Tensor<1> {
    let values: Vec<f32> = values.iter().map(|v| (v * scale) as f32).collect();
    let size = values.len();
    Tensor::from_data(TensorData::new(values, [size]), &Device::flex())
}

fn values(tensor: &Tensor<1>) -> Vec<f32> {
    tensor.clone().into_data().try_into_vec().unwrap()
}

fn known(gradients: &[&Tensor<1>]) -> f64 {
    match squared_norm(gradients) {
        SquaredNorm::Known(squared) => squared,
        SquaredNorm::Pending(parts) => {
            parts.into_iter().map(|part| f64::from(part.into_scalar::<f32>())).sum()
        }
    }
}

fn rule(case: &Case) -> UpdateRule {
    let Settings { betas, eps, momentum, dampening, nesterov, .. } = case.settings;
    match case.kind.as_str() {
        "AdamW" => UpdateRule::AdamW { betas, eps },
        _ => UpdateRule::Sgd { momentum, dampening, nesterov },
    }
}

#[track_caller]
fn close(what: &str, found: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let error: f64 = found.iter().zip(expected).map(|(f, e)| (f64::from(*f) - e).powi(2)).sum();
    let norm: f64 = expected.iter().map(|e| e * e).sum();
    assert!(error.sqrt() <= bound * norm.sqrt(), "{what} is off by {:.2e}", (error / norm).sqrt());
}

fn follow(golden: &Golden, case: &Case, name: &str) {
    let rule = rule(case);
    let clip = match (case.clip, case.value) {
        (Some(limit), _) => Clip::Norm(limit),
        (None, Some(limit)) => Clip::Value(limit),
        (None, None) => Clip::Never,
    };
    let names = ["a", "b"];
    let mut parameters: Vec<ParameterUpdate> = names
        .map(|name| {
            let parameter = tensor(&golden.start[name], 1.0);
            let small = case.groups && name == "b";
            ParameterUpdate {
                gradient: parameter.zeros_like(),
                moments: vec![parameter.zeros_like(); rule.moments()],
                parameter,
                missed: 0,
                rate: if small { 0.5 } else { 1.0 },
                weight_decay: if small { 0.0 } else { case.settings.weight_decay },
            }
        })
        .into();
    for (step, gradients) in golden.gradients.iter().enumerate() {
        let gone = case.frozen.contains(&step);
        let mut rest = if gone { parameters.split_off(1) } else { vec![] };
        for (update, name) in parameters.iter_mut().zip(names) {
            update.gradient = tensor(&gradients[name], case.scale);
        }
        let squared_norm = known(&parameters.iter().map(|u| &u.gradient).collect::<Vec<_>>());
        let state = StepState {
            learning_rate: case.settings.lr * (1.0 - step as f64 / 20.0),
            loss_scale: case.scale,
            squared_norm,
            updates: step as u64,
        };
        assert!((state.norm() / case.norms[step] - 1.0).abs() < 1e-6, "{}", state.norm());
        parameters = update_parameters(&rule, clip, &state, parameters);
        rest.iter_mut().for_each(|update| update.missed += 1);
        parameters.append(&mut rest);
        for (update, parameter) in parameters.iter().zip(names) {
            let what = format!("{name}: {} {parameter} after step {step}", case.kind);
            close(&what, &values(&update.parameter), &case.trace[step][parameter], 1e-5);
        }
    }
}

#[test]
fn steps_are_pytorchs_in_every_variant() {
    let golden = golden();
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            for (index, case) in golden.cases.iter().enumerate() {
                follow(&golden, case, &format!("{kernels:?}, case {index}"));
            }
        });
    }
}

#[test]
fn averages_are_pytorchs() {
    let Golden { start, gradients, average, .. } = golden();
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            let mut means = vec![tensor(&start["a"], 1.0)];
            for (gradients, expected) in gradients.iter().zip(&average.trace) {
                let value = tensor(&gradients["a"], 1.0);
                means = approach(means, &[&value], 1.0 - average.decay);
                close("the average", &values(&means[0]), expected, 1e-6);
            }
        });
    }
}

fn noise(purpose: u64, count: usize, scale: f64) -> Vec<f64> {
    let mut draws = Stream::new(9, "optimizer").substream(purpose).draws();
    (0..count).map(|_| f64::from((scale * draws.normal()) as f32)).collect()
}

/// Sizes around vectors, chunks and the number from which threads are used.
const SIZES: [usize; 8] = [1, 3, 16, 33, 0, 32_769, 65_536, 100_003];

struct Problem {
    updates: Vec<ParameterUpdate>,
    squared: f64,
}

fn problem(moments: usize) -> Problem {
    let mut squared = 0.0;
    let updates = SIZES.iter().enumerate().map(|(index, size)| {
        let at = 10 * index as u64;
        let gradient = noise(at + 1, *size, 3.0);
        squared += gradient.iter().map(|g| g * g).sum::<f64>();
        let positive = |values: Vec<f64>| values.iter().map(|v| v.abs()).collect::<Vec<_>>();
        ParameterUpdate {
            parameter: tensor(&noise(at, *size, 1.0), 1.0),
            gradient: tensor(&gradient, 1.0),
            moments: (0..moments)
                .map(|m| tensor(&positive(noise(at + 2 + m as u64, *size, 0.5)), 1.0))
                .collect(),
            missed: index as u64 % 3,
            rate: 1.0,
            weight_decay: 0.01,
        }
    });
    let updates = updates.collect();
    Problem { updates, squared }
}

const ADAMW: UpdateRule = UpdateRule::AdamW { betas: [0.9, 0.99], eps: 1e-8 };
const SGD: UpdateRule = UpdateRule::Sgd { momentum: 0.9, dampening: 0.1, nesterov: true };

fn bits(updates: &[ParameterUpdate]) -> Vec<u32> {
    let tensors = updates.iter().flat_map(|u| std::iter::once(&u.parameter).chain(&u.moments));
    tensors.flat_map(values).map(f32::to_bits).collect()
}

fn state(squared_norm: f64) -> StepState {
    StepState { learning_rate: 0.01, loss_scale: 4.0, squared_norm, updates: 7 }
}

#[test]
fn large_and_odd_sizes_agree_with_float64_and_all_variants_to_the_bit() {
    let mut all = vec![];
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            let Problem { updates, squared } = problem(2);
            let before = updates.clone();
            let found = known(&updates.iter().map(|u| &u.gradient).collect::<Vec<_>>());
            assert!((found / squared - 1.0).abs() < 1e-5, "{found} {squared}");
            let after = update_parameters(&ADAMW, Clip::Norm(50.0), &state(squared), updates);
            let factor = 50.0 / (squared.sqrt() / 4.0 + 1e-6) / 4.0;
            for (before, after) in before.iter().zip(&after) {
                let [w, g, m, v] =
                    [&before.parameter, &before.gradient, &before.moments[0], &before.moments[1]]
                        .map(|t| values(t).into_iter().map(f64::from).collect::<Vec<_>>());
                let t = 8 - before.missed as i32;
                let expected: Vec<f64> = (0..w.len())
                    .map(|i| {
                        let g = g[i] * factor;
                        let (m, v) = (0.9 * m[i] + 0.1 * g, 0.99 * v[i] + 0.01 * g * g);
                        let (m, v) = (m / (1.0 - 0.9f64.powi(t)), v / (1.0 - 0.99f64.powi(t)));
                        w[i] * (1.0 - 0.01 * 0.01) - 0.01 * m / (v.sqrt() + 1e-8)
                    })
                    .collect();
                close("weights", &values(&after.parameter), &expected, 1e-6);
            }
            if kernels != CpuKernels::Composed {
                let Problem { updates, squared } = problem(1);
                let sgd = update_parameters(&SGD, Clip::Value(0.5), &state(squared), updates);
                all.push((kernels, found.to_bits(), bits(&after), bits(&sgd)));
            }
        });
    }
    for other in &all[1..] {
        let same = (&other.1, &other.2, &other.3) == (&all[0].1, &all[0].2, &all[0].3);
        assert!(same, "{:?} and {:?} differ", other.0, all[0].0);
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let Problem { updates, .. } = problem(2);
            let found = known(&updates.iter().map(|u| &u.gradient).collect::<Vec<_>>());
            let after = update_parameters(&ADAMW, Clip::Norm(1.0), &state(found), updates);
            (found.to_bits(), bits(&after))
        })
    };
    let one = run(1);
    assert!([2, 3, 8].into_iter().all(|threads| run(threads) == one));
}

/// Where a tensor's numbers lie.
fn place(tensor: &Tensor<1>) -> *const f32 {
    tensor.clone().try_into_primitive::<Flex>().unwrap().storage::<f32>().as_ptr()
}

#[test]
fn memory_stays_where_it_is_unless_it_is_shared() {
    if CpuKernels::current() == Ok(CpuKernels::Composed) {
        return;
    }
    let Problem { updates, squared } = problem(2);
    let places = |updates: &[ParameterUpdate]| -> Vec<_> {
        let tensors = updates.iter().flat_map(|u| std::iter::once(&u.parameter).chain(&u.moments));
        tensors.filter(|tensor| tensor.dims() != [0]).map(place).collect()
    };
    let before = places(&updates);
    let after = update_parameters(&ADAMW, Clip::Never, &state(squared), updates);
    assert_eq!(places(&after), before);
    // A second holder sees no change, nor does one of a part.
    let (held, part) = (after[7].parameter.clone(), after[6].parameter.clone().narrow(0, 5, 9));
    let (old, old_part) = (values(&held), values(&part));
    let again = update_parameters(&ADAMW, Clip::Never, &state(squared), after);
    assert_eq!((values(&held), values(&part)), (old, old_part));
    assert_ne!(values(&again[7].parameter), values(&held));
    let mut sums = add_scaled(vec![held.clone()], &[&again[7].parameter], 2.0);
    assert_ne!(place(&sums[0]), place(&held));
    let at = place(&sums[0]);
    sums = add_scaled(sums, &[&held], 1.0);
    assert_eq!(place(&sums[0]), at);
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    for kernels in CpuKernels::available() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            kernels.force(|| {
                let Problem { mut updates, .. } = problem(2);
                let mut gradient = noise(0, SIZES[5], 1.0);
                gradient[32_768] = bad;
                updates[5].gradient = tensor(&gradient, 1.0);
                let before = bits(&updates);
                let squared = known(&updates.iter().map(|u| &u.gradient).collect::<Vec<_>>());
                assert!(!squared.is_finite() && state(squared).found_infinite());
                let after = update_parameters(&ADAMW, Clip::Norm(1.0), &state(squared), updates);
                assert_eq!(bits(&after), before);
            });
        }
    }
}

#[test]
fn a_state_in_the_memory_of_the_cpu_is_the_same_state() {
    let device = Device::flex();
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            for rule in [ADAMW, SGD] {
                let Problem { updates, .. } = problem(rule.moments());
                let gradients: Vec<_> = updates.iter().map(|update| &update.gradient).collect();
                let norm = squared_norm(&gradients).on_device(&device);
                let step =
                    DeviceStep { squared_norm: norm, ..DeviceStep::new(&state(0.0), &device) };
                let read = step.read();
                let expected = StepState { updates: 7, loss_scale: 4.0, ..read };
                assert_eq!(read, expected);
                let expected = update_parameters(&rule, Clip::Norm(1.0), &read, updates.clone());
                let (step, found) = update_on_device(&rule, Clip::Norm(1.0), step, updates.clone());
                assert_eq!(bits(&found), bits(&expected));
                assert_eq!(step.read().updates, 8);
                let squared_norm = step.squared_norm * f64::INFINITY;
                let step = DeviceStep { squared_norm, ..step };
                let (step, found) = update_on_device(&rule, Clip::Never, step, updates.clone());
                assert_eq!((bits(&found), step.read().updates), (bits(&updates), 8));
            }
        });
    }
}

#[test]
fn a_rate_is_that_of_the_updates_that_were_applied_and_every_loss_has_to_be_finite() {
    let device = Device::flex();
    let list = |values: &[f64]| Some(tensor(values, 1.0));
    let step = DeviceStep {
        learning_rate: tensor(&[0.5, 0.25, 0.125], 1.0),
        known: 6,
        losses: list(&[1.0, 2.0]),
        ..DeviceStep::new(&StepState { squared_norm: 4.0, ..state(0.0) }, &device)
    };
    assert_eq!(step.read(), StepState { learning_rate: 0.25, squared_norm: 4.0, ..state(0.0) });
    for (known, rate) in [(7, 0.5), (5, 0.125), (0, 0.125), (9, 0.5)] {
        let read = DeviceStep { known, ..step.clone() }.read();
        assert_eq!(read.learning_rate, rate, "from {known} on");
    }
    for loss in [f64::NAN, f64::INFINITY] {
        let read = DeviceStep { losses: list(&[1.0, loss, 2.0]), ..step.clone() }.read();
        assert!(read.found_infinite() && read.updates == 7, "{loss}: {read:?}");
    }
}

#[test]
fn a_share_in_the_memory_of_the_cpu_is_the_same_share() {
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            for size in SIZES {
                let [means, weights] =
                    [1, 2].map(|purpose| tensor(&noise(purpose, size, 1.0), 1.0));
                for share in [0.3, 1.0 - 0.999, 1.0 / 7.0, 1.0] {
                    let there = tensor(&[share], 1.0);
                    let found = approach_on_device(vec![means.clone()], &[&weights], there);
                    let expected = approach(vec![means.clone()], &[&weights], share);
                    assert_eq!(values(&found[0]), values(&expected[0]), "{kernels:?}, {share}");
                }
            }
            // Of a step that was not taken, nothing comes in.
            let means = tensor(&[1.5, -0.0, f64::INFINITY], 1.0);
            let broken = tensor(&[f64::NAN, f64::INFINITY, 1.0], 1.0);
            let none = tensor(&[0.0], 1.0);
            let found = approach_on_device(vec![means.clone()], &[&broken], none);
            let bits =
                |of: &Tensor<1>| values(of).into_iter().map(f32::to_bits).collect::<Vec<_>>();
            assert_eq!(bits(&found[0]), bits(&means));
        });
    }
}

#[test]
fn gradients_near_the_ends_of_f32_have_a_finite_norm() {
    if CpuKernels::current() == Ok(CpuKernels::Composed) {
        return;
    }
    for size in [1e-44, 1e-40, 1e-38, 1e-30, 1e30, 3e38] {
        let gradient = tensor(&[size, size, -size, size], 1.0);
        let norm = known(&[&gradient]).sqrt();
        assert!((norm / (2.0 * f64::from(size as f32)) - 1.0).abs() < 1e-12, "{norm}");
    }
}

#[test]
fn denormal_gradients_moments_and_weights_count() {
    let size = 37;
    let least = 2f64.powi(-149);
    let numbers = |purpose| noise(purpose, size, 1e-40);
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            let mut weights = numbers(1);
            // A normal one beside them.
            weights[5] = 0.5;
            let (gradient, first) = (numbers(2), numbers(3));
            let second: Vec<f64> = numbers(4).iter().map(|v| v.abs()).collect();
            let state = StepState {
                learning_rate: 0.01,
                loss_scale: 1.0,
                squared_norm: gradient.iter().map(|g| g * g).sum(),
                updates: 7,
            };
            let update = |moments: Vec<Tensor<1>>| ParameterUpdate {
                parameter: tensor(&weights, 1.0),
                gradient: tensor(&gradient, 1.0),
                moments,
                missed: 0,
                rate: 1.0,
                weight_decay: 0.1,
            };
            let near = |what: &str, found: &Tensor<1>, slack: f64, exact: &dyn Fn(usize) -> f64| {
                for (at, found) in values(found).iter().enumerate() {
                    let error = (f64::from(*found) - exact(at)).abs();
                    let bound = 4.0 * least * slack + 1e-5 * exact(at).abs();
                    assert!(error <= bound, "{kernels:?} {what} {at}: {found:e} {:e}", exact(at));
                }
            };
            let moments = vec![tensor(&first, 1.0), tensor(&second, 1.0)];
            let rule = UpdateRule::AdamW { betas: [0.9, 0.99], eps: 1e-8 };
            let after = update_parameters(&rule, Clip::Never, &state, vec![update(moments)]);
            let m = |at: usize| 0.9 * first[at] + 0.1 * gradient[at];
            // The square of such a gradient is no number of f32.
            let v = |at: usize| 0.99 * second[at];
            near("m", &after[0].moments[0], 1.0, &m);
            near("v", &after[0].moments[1], 1.0, &v);
            let [one, two] = [0.9f64, 0.99].map(|beta| 1.0 - beta.powi(8));
            // A unit of the moment is so many of the weight.
            let slack = 0.01 / one / 1e-8;
            near("AdamW", &after[0].parameter, slack, &|at| {
                weights[at] * 0.999 - 0.01 / one * m(at) / ((v(at) / two).sqrt() + 1e-8)
            });
            let rule = UpdateRule::Sgd { momentum: 0.9, dampening: 0.0, nesterov: false };
            let update = update(vec![tensor(&first, 1.0)]);
            let after = update_parameters(&rule, Clip::Never, &state, vec![update]);
            let b = |at: usize| 0.9 * first[at] + gradient[at] + 0.1 * weights[at];
            near("momentum", &after[0].moments[0], 1.0, &b);
            near("SGD", &after[0].parameter, 1.0, &|at| weights[at] - 0.01 * b(at));
        });
    }
}

/// A step of parameters in half precision: the formula in float64, rounded to that precision at its end.
#[test]
fn half_precision_is_rounded_once() {
    let flex = Device::flex();
    let (weights, gradients) = ([1.0, -0.5, 2.0, 0.25], [1e-3, -3e-3, 0.0, 200.0]);
    let half = |values: [f64; 4], dtype| tensor(&values, 1.0).to_device(&flex).cast(dtype);
    let read = |tensor: &Tensor<1>| -> Vec<f64> {
        values(&tensor.clone().cast(DType::F32)).into_iter().map(f64::from).collect()
    };
    let of = |dtype, moments| ParameterUpdate {
        parameter: half(weights, dtype),
        gradient: half(gradients, dtype),
        moments: vec![half([0.0; 4], dtype); moments],
        missed: 0,
        rate: 1.0,
        weight_decay: 0.0,
    };
    let norm = known(&[&half([300.0, 400.0, 0.0, 0.0], DType::F16)]);
    assert!((norm - 250_000.0).abs() < 1.0, "{norm}");
    let state = StepState { learning_rate: 1e-2, loss_scale: 1.0, squared_norm: 4e4, updates: 0 };
    let sgd = UpdateRule::Sgd { momentum: 0.9, dampening: 0.0, nesterov: false };
    let gradient = half([1.0, -1.0, 0.0, 1.0], DType::BF16);
    let update = ParameterUpdate { gradient, ..of(DType::BF16, 1) };
    let after = update_parameters(&sgd, Clip::Never, &state, vec![update]);
    assert_eq!(after[0].parameter.dtype(), DType::BF16);
    // 0.99, -0.49, 2 and 0.24, of which bf16 has eight bits.
    assert_eq!(read(&after[0].parameter), [0.98828125, -0.490234375, 2.0, 0.240234375]);
    let after = update_parameters(&sgd, Clip::Never, &state, vec![of(DType::F16, 1)]);
    assert_eq!(after[0].parameter.dtype(), DType::F16);
    // 0.99999, -0.49997, 2 and -1.75: two of these steps are less than f16 holds beside the weight.
    assert_eq!(read(&after[0].parameter), [1.0, -0.5, 2.0, -1.75]);
}

#[test]
#[should_panic(expected = "AdamW was given a parameter in F16, which has no room for the squares")]
fn adamw_in_f16_is_refused() {
    adamw_in(DType::F16);
}

/// A thousandth of the running mean of squares, which is what a step changes of it, is less than half a unit of its
/// last digit: it would stay where it is for ever.
#[test]
#[should_panic(expected = "AdamW was given a parameter in BF16, which has too few digits")]
fn adamw_in_bf16_is_refused() {
    adamw_in(DType::BF16);
}

fn adamw_in(dtype: DType) {
    let zeros = || Tensor::<1>::zeros([3], (&Device::flex(), dtype));
    let update = ParameterUpdate {
        parameter: zeros(),
        gradient: zeros(),
        moments: vec![zeros(), zeros()],
        missed: 0,
        rate: 1.0,
        weight_decay: 0.0,
    };
    let adamw = UpdateRule::AdamW { betas: [0.9, 0.999], eps: 1e-8 };
    update_parameters(&adamw, Clip::Never, &state(1.0), vec![update]);
}

#[test]
fn nothing_has_a_norm_of_zero() {
    for kernels in CpuKernels::available() {
        let norm = kernels.force(|| squared_norm(&[]).on_device(&Device::flex()));
        assert_eq!(values(&norm), [0.0], "{kernels:?}");
    }
}

#[test]
fn sums_are_taken_in_every_variant() {
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            for size in SIZES {
                let (a, b) = (noise(1, size, 1.0), noise(2, size, 1.0));
                let sums = add_scaled(vec![tensor(&a, 1.0)], &[&tensor(&b, 1.0)], 0.3);
                let expected: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a + 0.3 * b).collect();
                close("the sum", &values(&sums[0]), &expected, 1e-6);
            }
        });
    }
}

#[test]
#[should_panic(expected = "a parameter of 3 elements has a gradient of 3 and moments of [3]")]
fn moments_that_are_missing_are_named() {
    let one = tensor(&[1.0, 2.0, 3.0], 1.0);
    let update = ParameterUpdate {
        parameter: one.clone(),
        gradient: one.clone(),
        moments: vec![one],
        missed: 0,
        rate: 1.0,
        weight_decay: 0.0,
    };
    update_parameters(&ADAMW, Clip::Never, &state(1.0), vec![update]);
}
