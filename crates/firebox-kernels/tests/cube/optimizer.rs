//! Optimizer steps against their formula in float64, and the state on the device against that on the
//! host.

use burn::tensor::{Device, Tensor, TensorData};
use firebox_core::Stream;
use firebox_kernels::{
    Clip, CpuKernels, DeviceStep, LaunchWatch, ParameterUpdate, ScaleRule, SquaredNorm, StepState,
    UpdateRule, approach_on_device, rescale_on_device, squared_norm, update_on_device,
    update_parameters,
};

use super::alone;
use super::support::case::{float, noise, values};
use super::support::relative_error;

const BETAS: [f64; 2] = [0.9, 0.99];
const EPS: f64 = 1e-8;
const ADAMW: UpdateRule = UpdateRule::AdamW { betas: BETAS, eps: EPS };

/// Around what threads, cubes and launches take: one cube, several, none, and more tensors than a launch.
fn sizes() -> Vec<usize> {
    let mut sizes = vec![1, 3, 256, 257, 0, 2048, 2049, 40_003];
    sizes.extend((0..70).map(|index| 5 + index % 7));
    sizes
}

/// A parameter in float64.
#[derive(Clone, Debug)]
struct Exact {
    weights: Vec<f64>,
    gradient: Vec<f64>,
    moments: [Vec<f64>; 2],
    missed: u64,
    rate: f64,
    decay: f64,
}

fn problem() -> Vec<Exact> {
    let one = |(index, size): (usize, usize)| {
        let numbers = |purpose: u64, scale: f64| {
            let stream = Stream::new(9, "optimizer").substream(10 * index as u64 + purpose);
            noise(stream, size, scale).iter().map(|v| f64::from(*v as f32)).collect::<Vec<_>>()
        };
        Exact {
            weights: numbers(0, 1.0),
            gradient: numbers(1, 3.0),
            moments: [numbers(2, 0.5), numbers(3, 0.5).iter().map(|v| v.abs()).collect()],
            missed: index as u64 % 3,
            rate: if index % 2 == 0 { 1.0 } else { 0.5 },
            decay: if index % 5 == 0 { 0.0 } else { 0.01 },
        }
    };
    sizes().into_iter().enumerate().map(one).collect()
}

fn tensor(numbers: &[f64], device: &Device) -> Tensor<1> {
    float::<1>(numbers, [numbers.len()], device)
}

fn on(device: &Device, problem: &[Exact]) -> Vec<ParameterUpdate> {
    let one = |exact: &Exact| ParameterUpdate {
        parameter: tensor(&exact.weights, device),
        gradient: tensor(&exact.gradient, device),
        moments: exact.moments.iter().map(|moment| tensor(moment, device)).collect(),
        missed: exact.missed,
        rate: exact.rate,
        weight_decay: exact.decay,
    };
    problem.iter().map(one).collect()
}

fn squares(problem: &[Exact]) -> f64 {
    problem.iter().flat_map(|exact| &exact.gradient).map(|g| g * g).sum()
}

/// Loshchilov and Hutter's step with PyTorch's clipping.
fn step(problem: &mut [Exact], clip: Clip, state: &StepState) {
    let norm = squares(problem).sqrt() / state.loss_scale;
    for exact in problem {
        let rate = state.learning_rate * exact.rate;
        let t = (state.updates + 1 - exact.missed) as i32;
        let Exact { weights, gradient, moments: [first, second], decay, .. } = exact;
        for i in 0..weights.len() {
            let g = gradient[i] / state.loss_scale;
            let g = match clip {
                Clip::Never => g,
                Clip::Norm(limit) => g * (limit / (norm + 1e-6)).min(1.0),
                Clip::Value(limit) => g.clamp(-limit, limit),
            };
            first[i] = BETAS[0] * first[i] + (1.0 - BETAS[0]) * g;
            second[i] = BETAS[1] * second[i] + (1.0 - BETAS[1]) * g * g;
            let m = first[i] / (1.0 - BETAS[0].powi(t));
            let v = second[i] / (1.0 - BETAS[1].powi(t));
            weights[i] = weights[i] * (1.0 - rate * *decay) - rate * m / (v.sqrt() + EPS);
        }
    }
}

fn pending(gradients: &[ParameterUpdate]) -> Tensor<1> {
    let gradients: Vec<_> = gradients.iter().map(|update| &update.gradient).collect();
    match squared_norm(&gradients) {
        SquaredNorm::Pending(mut parts) if parts.len() == 1 => parts.remove(0),
        other => panic!("one number on the device, not {other:?}"),
    }
}

#[track_caller]
fn close(what: &str, found: &[ParameterUpdate], expected: &[Exact], bound: f64) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let parts = [
            ("weights", &found.parameter, &expected.weights),
            ("first moment", &found.moments[0], &expected.moments[0]),
            ("second moment", &found.moments[1], &expected.moments[1]),
        ];
        for (part, found, expected) in parts {
            let found = values(found.clone());
            assert_eq!(found.len(), expected.len(), "{what}: {part} of {index}");
            if !found.is_empty() {
                let error = relative_error(&found, expected);
                assert!(error < bound, "{what}: {part} of {index} is off by {error:.2e}");
            }
        }
    }
}

const CLIPS: [Clip; 4] = [Clip::Never, Clip::Norm(50.0), Clip::Norm(1e9), Clip::Value(0.4)];

#[test]
fn steps_agree_with_float64_whoever_holds_their_state() {
    alone(|device| {
        for clip in CLIPS {
            let mut exact = problem();
            let mut by_host = on(&device, &exact);
            let mut by_device = by_host.clone();
            let mut state =
                StepState { learning_rate: 0.01, loss_scale: 4.0, squared_norm: 0.0, updates: 2 };
            let mut step_there = DeviceStep::new(&state, &device);
            for round in 0..3 {
                let norm = pending(&by_host);
                state.squared_norm = values(norm.clone())[0];
                let expected = squares(&exact);
                assert!((state.squared_norm / expected - 1.0).abs() < 1e-6, "{expected}");
                step(&mut exact, clip, &state);
                by_host = update_parameters(&ADAMW, clip, &state, by_host);
                close(&format!("host, {clip:?}, {round}"), &by_host, &exact, 1e-6);
                step_there.squared_norm = norm;
                (step_there, by_device) = update_on_device(&ADAMW, clip, step_there, by_device);
                close(&format!("device, {clip:?}, {round}"), &by_device, &exact, 1e-6);
                state.updates += 1;
                assert_eq!(step_there.read().updates, state.updates);
            }
        }
    });
}

/// Rules of gradient descent: without momentum, with it, with dampening, and Nesterov's.
fn descents() -> [UpdateRule; 4] {
    [(0.0, 0.0, false), (0.9, 0.0, false), (0.8, 0.3, false), (0.9, 0.0, true)]
        .map(|(momentum, dampening, nesterov)| UpdateRule::Sgd { momentum, dampening, nesterov })
}

/// PyTorch's step of gradient descent with its clipping, where the first moment is the momentum.
fn descent(rule: UpdateRule, problem: &mut [Exact], clip: Clip, state: &StepState) {
    let UpdateRule::Sgd { momentum, dampening, nesterov } = rule else { panic!("{rule:?}") };
    let norm = squares(problem).sqrt() / state.loss_scale;
    for exact in problem {
        let rate = state.learning_rate * exact.rate;
        let begins = state.updates <= exact.missed;
        let Exact { weights, gradient, moments: [kept, _], decay, .. } = exact;
        for i in 0..weights.len() {
            let g = gradient[i] / state.loss_scale;
            let g = match clip {
                Clip::Never => g,
                Clip::Norm(limit) => g * (limit / (norm + 1e-6)).min(1.0),
                Clip::Value(limit) => g.clamp(-limit, limit),
            };
            let g = g + *decay * weights[i];
            if momentum == 0.0 {
                weights[i] -= rate * g;
                continue;
            }
            let take = if begins { 1.0 } else { 1.0 - dampening };
            kept[i] = momentum * kept[i] + take * g;
            let direction = if nesterov { g + momentum * kept[i] } else { kept[i] };
            weights[i] -= rate * direction;
        }
    }
}

#[test]
fn gradient_descent_agrees_with_float64_whoever_holds_its_state() {
    alone(|device| {
        for (rule, clip) in descents().into_iter().zip(CLIPS) {
            let mut exact = problem();
            let mut by_host = on(&device, &exact);
            for update in &mut by_host {
                update.moments.truncate(rule.moments());
            }
            let mut by_device = by_host.clone();
            let mut state =
                StepState { learning_rate: 0.01, loss_scale: 4.0, squared_norm: 0.0, updates: 0 };
            let mut step_there = DeviceStep::new(&state, &device);
            for round in 0..4 {
                let norm = pending(&by_host);
                state.squared_norm = values(norm.clone())[0];
                descent(rule, &mut exact, clip, &state);
                by_host = update_parameters(&rule, clip, &state, by_host);
                step_there.squared_norm = norm;
                (step_there, by_device) = update_on_device(&rule, clip, step_there, by_device);
                for (who, found) in [("host", &by_host), ("device", &by_device)] {
                    for (index, (found, exact)) in found.iter().zip(&exact).enumerate() {
                        let parts = [&found.parameter].into_iter().chain(&found.moments);
                        for (found, exact) in parts.zip([&exact.weights, &exact.moments[0]]) {
                            let found = values(found.clone());
                            assert_eq!(found.len(), exact.len());
                            if found.is_empty() {
                                continue;
                            }
                            let error = relative_error(&found, exact);
                            let what = format!("{who}, {rule:?}, {clip:?}, {round}, {index}");
                            assert!(error < 1e-6, "{what}: {error:.2e}");
                        }
                    }
                }
                state.updates += 1;
                assert_eq!(step_there.read().updates, state.updates);
            }
        }
    });
}

#[test]
fn gradient_descent_by_a_gradient_that_is_not_finite_changes_nothing() {
    alone(|device| {
        for rule in descents() {
            let mut exact = problem();
            exact[6].gradient[1000] = f64::NEG_INFINITY;
            let mut before = on(&device, &exact);
            before.iter_mut().for_each(|update| update.moments.truncate(rule.moments()));
            let norm = pending(&before);
            let squared_norm = values(norm.clone())[0];
            let state =
                StepState { learning_rate: 0.01, loss_scale: 4.0, squared_norm, updates: 2 };
            let step = DeviceStep { squared_norm: norm, ..DeviceStep::new(&state, &device) };
            let (step, after) = update_on_device(&rule, Clip::Norm(1.0), step, before.clone());
            assert_eq!(step.read().updates, 2);
            for (before, after) in before.iter().zip(after) {
                assert_eq!(values(before.parameter.clone()), values(after.parameter));
                for (before, after) in before.moments.iter().zip(after.moments) {
                    assert_eq!(values(before.clone()), values(after));
                }
            }
        }
    });
}

#[test]
fn a_step_of_gradient_descent_is_a_few_launches_and_the_same_as_the_composed_one() {
    alone(|device| {
        let exact = problem();
        let state = StepState {
            learning_rate: 0.01,
            loss_scale: 4.0,
            squared_norm: squares(&exact),
            updates: 2,
        };
        for rule in descents() {
            let run = || {
                let mut updates = on(&device, &exact);
                updates.iter_mut().for_each(|update| update.moments.truncate(rule.moments()));
                update_parameters(&rule, Clip::Norm(5.0), &state, updates)
            };
            run();
            let watch = LaunchWatch::start();
            let updates = run();
            // Until something is read, fusion launches nothing.
            updates.iter().for_each(|update| drop(values(update.parameter.clone())));
            let launched = watch.end();
            let named = launched.iter().filter_map(|one| one.work.as_ref());
            let steps = named.filter(|work| work.name == "optimizer step").count();
            assert!((3..=77).contains(&steps), "{steps}");
            println!("{rule:?}: {steps} launches");
            let composed = CpuKernels::Composed.force(run);
            for (ours, theirs) in updates.iter().zip(&composed) {
                let [ours, theirs] = [ours, theirs].map(|update| values(update.parameter.clone()));
                assert!(ours.is_empty() || relative_error(&ours, &theirs) < 1e-6);
            }
        }
    });
}

#[test]
fn the_first_updates_and_late_ones_are_corrected_as_on_the_host() {
    alone(|device| {
        // 1 - β₂ᵗ is 0.001 at first: a plain power in f32 would lose four digits.
        let rule = UpdateRule::AdamW { betas: [0.0, 0.999], eps: 1e-8 };
        for updates in [0, 1, 6, 500, 100_000, 5_000_000] {
            let exact: Vec<Exact> =
                problem().into_iter().take(3).map(|exact| Exact { missed: 0, ..exact }).collect();
            let there = on(&device, &exact);
            let squared_norm = values(pending(&there))[0];
            let state = StepState { learning_rate: 0.1, loss_scale: 1.0, squared_norm, updates };
            let step = DeviceStep::new(&state, &device);
            let (_, there) = update_on_device(&rule, Clip::Never, step, there);
            let here = on(&Device::flex(), &exact);
            let here = update_parameters(&rule, Clip::Never, &state, here);
            for (there, here) in there.iter().zip(&here) {
                let [there, here] = [there, here].map(|update| values(update.parameter.clone()));
                let error = relative_error(&there, &here);
                assert!(error < 1e-6, "after {updates} updates: {error:.2e}");
            }
        }
    });
}

#[test]
fn a_rate_is_that_of_the_updates_that_were_applied_and_every_loss_has_to_be_finite() {
    alone(|device| {
        let list = |values: &[f32]| {
            Tensor::<1>::from_data(TensorData::new(values.to_vec(), [values.len()]), &device)
        };
        let rules = descents().into_iter().chain([ADAMW]);
        for (rule, known) in rules.flat_map(|rule| [0, 6, 7, 9].map(|known| (rule, known))) {
            let exact = problem();
            let mut before = on(&device, &exact);
            before.iter_mut().for_each(|update| update.moments.truncate(rule.moments()));
            let squared_norm = values(pending(&before))[0];
            let rates = [0.5, 0.25, 0.125];
            let at = usize::min(7_usize.saturating_sub(known), 2);
            let state = StepState {
                learning_rate: f64::from(rates[at]),
                loss_scale: 4.0,
                squared_norm,
                updates: 7,
            };
            let step = DeviceStep::new(&state, &device);
            let (_, expected) = update_on_device(&rule, Clip::Never, step, before.clone());
            let several = DeviceStep {
                learning_rate: list(&rates),
                known: known as u64,
                losses: Some(list(&[1.0, -2.0, 3.0])),
                ..DeviceStep::new(&state, &device)
            };
            assert_eq!(several.read().learning_rate, state.learning_rate);
            let (step, found) =
                update_on_device(&rule, Clip::Never, several.clone(), before.clone());
            assert_eq!(step.read().updates, 8);
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(values(found.parameter.clone()), values(expected.parameter.clone()));
            }
            for loss in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let losses = Some(list(&[1.0, -2.0, loss]));
                let broken = DeviceStep { losses, ..several.clone() };
                let (step, after) = update_on_device(&rule, Clip::Never, broken, before.clone());
                assert_eq!(step.read().updates, 7);
                for (before, after) in before.iter().zip(after) {
                    assert_eq!(values(before.parameter.clone()), values(after.parameter));
                }
            }
        }
    });
}

#[test]
fn a_loss_scale_follows_as_on_the_host_in_one_launch() {
    alone(|device| {
        let one = |value: f64, device: &Device| {
            Tensor::<1>::from_data(TensorData::new(vec![value as f32], [1]), device)
        };
        let rule = ScaleRule { growth: 2.0, backoff: 0.5, interval: 3, floor: 1.0 };
        let bad = [f64::NAN, f64::INFINITY];
        let norms = [1.0, 0.0, 4.0, bad[0], 1.0, 1.0, bad[1], bad[1], 1.0, 1.0, 1.0, 1.0];
        // From a usual scale, from the floor, and from where growth would make it infinite.
        for start in [65_536.0, 1.5, 2e38] {
            let begin = |device: &Device| [one(start, device), one(0.0, device)];
            let (mut there, mut here) = (begin(&device), begin(&Device::flex()));
            let (mut scale, mut good) = (start as f32, 0);
            for (step, norm) in norms.into_iter().enumerate() {
                let norm_there = one(norm, &device);
                let watch = LaunchWatch::start();
                there = rescale_on_device(&rule, there, &norm_there);
                let found = there.each_ref().map(|number| values(number.clone())[0]);
                let launched = watch.end();
                let named = launched.iter().filter(|one| one.work.is_some()).count();
                assert_eq!(named, 1, "{launched:?}");
                here = rescale_on_device(&rule, here, &one(norm, &Device::flex()));
                good += 1;
                if !norm.is_finite() {
                    (scale, good) = ((scale * 0.5).max(1.0), 0);
                } else if good == 3 {
                    scale = if (scale * 2.0).is_finite() { scale * 2.0 } else { scale };
                    good = 0;
                }
                let expected = [f64::from(scale), f64::from(good)];
                assert_eq!(found, expected, "step {step} from {start}");
                assert_eq!(here.each_ref().map(|number| values(number.clone())[0]), expected);
            }
        }
    });
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    alone(|device| {
        for (at, bad) in [(0, f64::NAN), (7, f64::INFINITY), (60, f64::NEG_INFINITY)] {
            let mut exact = problem();
            if let Some(last) = exact[at].gradient.last_mut() {
                *last = bad;
            }
            let before = on(&device, &exact);
            let norm = pending(&before);
            let state = StepState {
                learning_rate: 0.01,
                loss_scale: 4.0,
                squared_norm: values(norm.clone())[0],
                updates: 2,
            };
            assert!(state.found_infinite(), "{state:?}");
            let step = DeviceStep { squared_norm: norm, ..DeviceStep::new(&state, &device) };
            let (step, after) = update_on_device(&ADAMW, Clip::Norm(1.0), step, before.clone());
            assert_eq!(step.read().updates, 2);
            let by_host = update_parameters(&ADAMW, Clip::Norm(1.0), &state, before.clone());
            for after in [after, by_host] {
                for (before, after) in before.iter().zip(after) {
                    assert_eq!(values(before.parameter.clone()), values(after.parameter));
                    for (before, after) in before.moments.iter().zip(after.moments) {
                        assert_eq!(values(before.clone()), values(after));
                    }
                }
            }
        }
    });
}

#[test]
fn a_norm_whose_square_f32_cannot_hold_is_an_overflow_that_changes_nothing() {
    alone(|device| {
        let of = |size: f64| {
            let mut exact: Vec<Exact> = problem().into_iter().take(4).collect();
            for (index, gradient) in exact.iter_mut().flat_map(|e| &mut e.gradient).enumerate() {
                *gradient = if index == 0 { f64::from(size as f32) } else { 0.0 };
            }
            let before = on(&device, &exact);
            let norm = pending(&before);
            let squared = values(norm.clone())[0];
            let state = StepState {
                learning_rate: 0.01,
                loss_scale: 65_536.0,
                squared_norm: squared,
                updates: 2,
            };
            let step = DeviceStep { squared_norm: norm, ..DeviceStep::new(&state, &device) };
            let (step, after) = update_on_device(&ADAMW, Clip::Norm(1.0), step, before.clone());
            let weights =
                |all: &[ParameterUpdate]| values(all[0].parameter.clone()).first().copied();
            (squared, step.read().updates, weights(&before) == weights(&after))
        };
        let (squared, updates, same) = of(1.8e19);
        assert!((squared / 3.24e38 - 1.0).abs() < 1e-6, "{squared:e}");
        assert_eq!((updates, same), (3, false));
        // PyTorch, which looks at each number, takes this one; here the scale has to fall first.
        let (squared, updates, same) = of(1.9e19);
        assert_eq!((squared, updates, same), (f64::INFINITY, 2, true));
    });
}

#[test]
fn averages_follow_a_share_that_is_on_the_device() {
    alone(|device| {
        let problem = problem();
        assert!(problem.iter().any(|exact| exact.weights.is_empty()), "an empty parameter, too");
        let of = |which: fn(&Exact) -> &Vec<f64>| -> Vec<Tensor<1>> {
            problem.iter().map(|exact| tensor(which(exact), &device)).collect()
        };
        let (means, weights) = (of(|exact| &exact.weights), of(|exact| &exact.gradient));
        let held: Vec<_> = means.iter().map(|mean| values(mean.clone())).collect();
        for share in [0.25, 0.001, 1.0 / 7.0] {
            let there = tensor(&[share], &device);
            let moved =
                approach_on_device(means.clone(), &weights.iter().collect::<Vec<_>>(), there);
            for (moved, exact) in moved.into_iter().zip(&problem) {
                let pairs = exact.weights.iter().zip(&exact.gradient);
                let expected: Vec<f64> = pairs.map(|(w, g)| w + (g - w) * share).collect();
                let moved = values(moved);
                assert_eq!(moved.len(), expected.len());
                if expected.is_empty() {
                    continue;
                }
                let error = relative_error(&moved, &expected);
                assert!(error < 1e-6, "{share}: {error:.2e}");
            }
        }
        // Of a step that was not taken, nothing comes in.
        let broken: Vec<_> = (problem.iter())
            .map(|exact| tensor(&vec![f64::NAN; exact.weights.len()], &device))
            .collect();
        let none = tensor(&[0.0], &device);
        let stayed = approach_on_device(means.clone(), &broken.iter().collect::<Vec<_>>(), none);
        for (stayed, held) in stayed.into_iter().zip(held) {
            assert_eq!(values(stayed), held);
        }
    });
}

#[test]
fn who_holds_a_tensor_sees_no_change() {
    alone(|device| {
        let exact = problem();
        let updates = on(&device, &exact);
        let held: Vec<Tensor<1>> = updates.iter().map(|u| u.parameter.clone()).collect();
        let zeros = tensor(&exact[2].weights, &device);
        // Both moments of one parameter are one tensor.
        let mut shared = updates.clone();
        shared[2].moments = vec![zeros.clone(), zeros.clone()];
        let squared_norm = squares(&exact);
        let state = StepState { learning_rate: 0.01, loss_scale: 1.0, squared_norm, updates: 5 };
        let after = update_parameters(&ADAMW, Clip::Never, &state, shared);
        for (held, exact) in held.into_iter().zip(&exact) {
            assert_eq!(values(held), exact.weights);
        }
        assert_eq!(values(zeros), exact[2].weights);
        assert_ne!(values(after[2].moments[0].clone()), values(after[2].moments[1].clone()));
    });
}

#[test]
fn a_step_is_a_few_launches_and_the_same_as_the_composed_one() {
    alone(|device| {
        let exact = problem();
        let run = || {
            let updates = on(&device, &exact);
            let norm = pending(&updates);
            let state = StepState {
                learning_rate: 0.01,
                loss_scale: 4.0,
                squared_norm: squares(&exact),
                updates: 2,
            };
            let step = DeviceStep { squared_norm: norm, ..DeviceStep::new(&state, &device) };
            let (step, updates) = update_on_device(&ADAMW, Clip::Norm(5.0), step, updates);
            (values(step.updates), updates)
        };
        run();
        let watch = LaunchWatch::start();
        let (count, updates) = run();
        let launched = watch.end();
        assert_eq!(count, [3.0]);
        let of = |name: &str| {
            let named = |one: &&firebox_kernels::Launched| {
                one.work.as_ref().is_some_and(|work| work.name == name)
            };
            launched.iter().filter(named).count()
        };
        // 77 tensors with something in them, at most 32 to a launch, and fewer on a small device.
        assert_eq!((of("numbers of the step"), of("sum")), (1, 1));
        assert!((3..=77).contains(&of("optimizer step")), "{}", of("optimizer step"));
        assert!((3..=77).contains(&of("norm of the gradients")));
        println!("{} and {} launches", of("norm of the gradients"), of("optimizer step"));
        let composed = CpuKernels::Composed.force(|| {
            let state = StepState {
                learning_rate: 0.01,
                loss_scale: 4.0,
                squared_norm: squares(&exact),
                updates: 2,
            };
            update_parameters(&ADAMW, Clip::Norm(5.0), &state, on(&device, &exact))
        });
        for (ours, theirs) in updates.iter().zip(&composed) {
            let [ours, theirs] = [ours, theirs].map(|update| values(update.parameter.clone()));
            assert!(ours.is_empty() || relative_error(&ours, &theirs) < 1e-6);
        }
    });
}

#[test]
fn steps_after_steps_are_pytorchs() {
    #[derive(serde::Deserialize)]
    struct Golden {
        start: std::collections::BTreeMap<String, Vec<f64>>,
        gradients: Vec<std::collections::BTreeMap<String, Vec<f64>>>,
        cases: Vec<serde_json::Value>,
    }
    alone(|device| {
        let golden = include_str!("../golden/optimizer.json");
        let golden: Golden = serde_json::from_str(golden).expect("what PyTorch wrote");
        let mut followed = 0;
        for case in &golden.cases {
            let number = |value: &serde_json::Value| value.as_f64();
            let settings = &case["settings"];
            // Those that freeze parameters are left to the tests of the CPU.
            if case["frozen"].as_array().is_some_and(|f| !f.is_empty()) {
                continue;
            }
            followed += 1;
            let setting = |key: &str| number(&settings[key]).expect("a setting");
            let beta = |index: usize| number(&settings["betas"][index]).expect("a beta");
            let rule = match case["kind"] == "AdamW" {
                true => UpdateRule::AdamW { betas: [beta(0), beta(1)], eps: setting("eps") },
                false => UpdateRule::Sgd {
                    momentum: setting("momentum"),
                    dampening: setting("dampening"),
                    nesterov: settings["nesterov"] == true,
                },
            };
            let clip = match (number(&case["clip"]), number(&case["value"])) {
                (Some(limit), _) => Clip::Norm(limit),
                (None, Some(limit)) => Clip::Value(limit),
                (None, None) => Clip::Never,
            };
            let scale = number(&case["scale"]).expect("a scale");
            let grouped = case["groups"] == true;
            let first = |name: &str| {
                let parameter = tensor(&golden.start[name], &device);
                let small = grouped && name == "b";
                ParameterUpdate {
                    gradient: parameter.zeros_like(),
                    moments: vec![parameter.zeros_like(); rule.moments()],
                    parameter,
                    missed: 0,
                    rate: if small { 0.5 } else { 1.0 },
                    weight_decay: if small { 0.0 } else { setting("weight_decay") },
                }
            };
            let mut updates = vec![first("a"), first("b")];
            let zero =
                StepState { learning_rate: 0.0, loss_scale: scale, squared_norm: 0.0, updates: 0 };
            let mut step = DeviceStep::new(&zero, &device);
            for (index, gradients) in golden.gradients.iter().enumerate() {
                for (update, name) in updates.iter_mut().zip(["a", "b"]) {
                    let scaled: Vec<f64> = gradients[name].iter().map(|g| g * scale).collect();
                    update.gradient = tensor(&scaled, &device);
                }
                let rate = setting("lr") * (1.0 - index as f64 / 20.0);
                step.learning_rate =
                    Tensor::from_data(TensorData::new(vec![rate as f32], [1]), &device);
                step.squared_norm = pending(&updates);
                (step, updates) = update_on_device(&rule, clip, step, updates);
                for (update, name) in updates.iter().zip(["a", "b"]) {
                    let expected = case["trace"][index][name].as_array().expect("a trace");
                    let expected: Vec<f64> = expected.iter().filter_map(number).collect();
                    let error = relative_error(&values(update.parameter.clone()), &expected);
                    assert!(error < 1e-5, "{clip:?}, {name} after step {index}: {error:.2e}");
                }
            }
        }
        assert!(followed > 3, "{followed} cases of both rules");
    });
}
