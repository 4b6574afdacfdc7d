//! Loss scaling: step by step against PyTorch's `GradScaler` (`golden_scaler.py` wrote what it does),
//! and in whole runs.

use std::sync::Mutex;

use crate::support::{Plan, Point, SEED, ToMean, held_out, loader, point, steps, weights};
use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor, TensorData};
use firebox_core::{Event, Stream};
use firebox_loader::Batch;
use firebox_models::Loss;
use firebox_train::{
    AdamWConfig, Clip, Constant, Data, DynamicScale, EarlyStopping, Gradients, LossScale,
    NonFinite, Objective, Optimizer, OptimizerState, Outcome, Plateau, Scaler, Schedule, SgdConfig,
    SquaredNorm, Streams, TrainConfig, TrainError, UpdateBy,
};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Golden {
    start: Vec<f32>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    q: f64,
    settings: Settings,
    /// SGD without it.
    adamw: Option<AdamWSettings>,
    /// Whether weights and gradients go through f16.
    #[serde(default)]
    half: bool,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct AdamWSettings {
    betas: [f64; 2],
    eps: f64,
    weight_decay: f64,
}

#[derive(Deserialize)]
struct Settings {
    init_scale: Option<f64>,
    growth_factor: Option<f64>,
    backoff_factor: Option<f64>,
    growth_interval: u64,
}

#[derive(Deserialize)]
struct Step {
    coefficients: Vec<Value>,
    rate: Value,
    skipped: bool,
    scale: f64,
    good_steps: u64,
    weights: Vec<Value>,
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| value.as_str().unwrap().parse().unwrap())
}

fn numbers(values: &[Value]) -> Tensor<1> {
    let values: Vec<f32> = values.iter().map(|value| number(value) as f32).collect();
    let size = values.len();
    Tensor::from_data(TensorData::new(values, [size]), &Device::default())
}

fn squared(gradients: &Gradients) -> f64 {
    match gradients.squared_norm() {
        SquaredNorm::Known(squared) => squared,
        SquaredNorm::Pending(parts) => {
            parts.into_iter().map(|part| f64::from(part.into_scalar::<f32>())).sum()
        }
    }
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../golden/scaler.json")).unwrap()
}

fn optimizer(adamw: Option<AdamWSettings>) -> Optimizer {
    match adamw {
        None => Optimizer::Sgd(SgdConfig { momentum: 0.9, ..SgdConfig::default() }),
        Some(AdamWSettings { betas, eps, weight_decay }) => {
            Optimizer::AdamW(AdamWConfig { betas, eps, weight_decay, ..AdamWConfig::default() })
        }
    }
}

#[test]
fn every_step_is_that_of_grad_scaler() {
    let golden = golden();
    for (index, case) in golden.cases.into_iter().enumerate() {
        let Case { q, settings, adamw, half, steps } = case;
        let defaults = DynamicScale::default();
        let config = LossScale::Dynamic(DynamicScale {
            initial: settings.init_scale.unwrap_or(defaults.initial),
            growth: settings.growth_factor.unwrap_or(defaults.growth),
            backoff: settings.backoff_factor.unwrap_or(defaults.backoff),
            interval: settings.growth_interval,
            floor: defaults.floor,
        });
        let start = Tensor::from_data(golden.start.as_slice(), &Device::default());
        let mut model = Point { weight: Param::from_tensor(start) }.train();
        let settings = TrainConfig { optimizer: optimizer(adamw), ..TrainConfig::default() };
        let mut optimizer = OptimizerState::new(&model, &settings).unwrap();
        let mut scaler = Scaler::new(&config);
        for (at, step) in steps.iter().enumerate() {
            let what = format!("case {index}, step {at}");
            let weight = match (model.weight.val(), half) {
                (weight, true) => weight.cast(DType::F16).cast(DType::F32),
                (weight, false) => weight,
            };
            let loss =
                weight.clone() * numbers(&step.coefficients) + weight.clone() * weight * (q / 2.0);
            let scaled = loss.sum() * scaler.scale;
            let gradients = Gradients::take(&model, scaled.backward());
            let by = UpdateBy {
                learning_rate: number(&step.rate),
                clip: Clip::Norm(1.0),
                scale: scaler.scale,
                squared_norm: squared(&gradients),
            };
            let taken = optimizer.step(&mut model, &gradients, by);
            scaler.update(&config, !taken);
            assert_eq!(!taken, step.skipped, "{what}");
            assert_eq!((scaler.scale, scaler.good_steps), (step.scale, step.good_steps), "{what}");
            for (found, expected) in weights(&model).iter().zip(&step.weights) {
                let (found, expected) = (f64::from(*found), number(expected));
                let near = expected.is_finite()
                    && (found - expected).abs() <= 2e-6 * expected.abs().max(0.1);
                assert!(found == expected || near, "{what}: {found}, {expected}");
            }
        }
    }
}

#[test]
fn the_trace_has_all_that_can_happen_to_a_scale() {
    let golden = golden();
    let start: Vec<f64> = golden.start.iter().map(|weight| f64::from(*weight)).collect();
    let last = |case: &Case| -> Vec<f64> {
        case.steps.last().unwrap().weights.iter().map(number).collect()
    };
    // Gradients of 1e-8 in f16: without a scale, nothing is learnt of them.
    let faint = |case: &&Case| {
        let mut all = case.steps.iter().flat_map(|step| &step.coefficients);
        case.half && case.adamw.is_none() && all.all(|c| number(c).abs() < 3e-8)
    };
    let (without, with): (Vec<_>, Vec<_>) =
        golden.cases.iter().filter(faint).partition(|case| case.settings.init_scale == Some(1.0));
    assert!(!without.is_empty() && without.into_iter().all(|case| last(case) == start));
    let moved = |case: &Case| last(case).iter().zip(&start).all(|(found, start)| found != start);
    assert!(!with.is_empty() && with.into_iter().all(moved));
    for adamw in [false, true] {
        let of = golden.cases.iter().filter(|case| case.adamw.is_some() == adamw);
        let steps: Vec<&Step> = of.flat_map(|case| &case.steps).collect();
        let with = |text: &str| {
            let mut all = steps.iter().flat_map(|step| &step.coefficients);
            all.any(|value| value.as_str() == Some(text))
        };
        assert!(with("nan") && with("inf") && with("-inf"));
        assert!(steps.iter().filter(|step| step.skipped).count() > 6);
    }
}

fn config(loss_scale: LossScale) -> TrainConfig {
    let adamw = AdamWConfig { learning_rate: 0.01, ..AdamWConfig::default() };
    TrainConfig {
        epochs: 3,
        optimizer: Optimizer::AdamW(adamw),
        early_stopping: None,
        loss_scale,
        ..TrainConfig::default()
    }
}

/// A loss whose gradient overflows at a scale of `2^128 / size` in some steps (from 0).
struct Storm {
    steps: Vec<u64>,
    size: f64,
}

impl Objective<Point> for Storm {
    fn loss(&self, model: &Point, batch: &Batch, streams: Streams) -> Loss {
        let stormy = self
            .steps
            .iter()
            .any(|step| streams.samples == Stream::new(SEED, "masks").substream(*step));
        // In two steps, for a gradient that no f32 can hold.
        let factor = if stormy { self.size.sqrt() } else { 1.0 };
        let distance = model.weight.val() - batch.inputs.clone().mean();
        // The loss is small, and so is nothing but its gradient at this place.
        let value = (distance.clone() - distance.detach()) * factor * factor;
        Loss { value, weight: batch.indices.len() as f64, parts: vec![] }
    }
}

#[test]
fn an_overflow_changes_neither_weights_nor_schedule_and_is_told() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let dynamic = DynamicScale { interval: 4, ..DynamicScale::default() };
    let run = |max_steps, storm: &[u64], stop_at: Option<u64>| {
        let folder = tempfile::tempdir().unwrap();
        let (max_steps, loss_scale) = (Some(max_steps), LossScale::Dynamic(dynamic));
        let config = TrainConfig { max_steps, ..config(loss_scale) };
        let told = Mutex::new(vec![]);
        let watch = |event: &Event| {
            if let Event::LossScale { step, scale, overflows, .. } = event {
                told.lock().unwrap().push((*step, *scale, *overflows));
            }
        };
        let objective = Storm { steps: storm.to_vec(), size: 2f64.powi(114) };
        let plan = Plan { watch: &watch, stop_at, ..Plan::new(folder.path()) };
        let mut trained = plan.train(point(), &objective, data, &config).unwrap();
        if stop_at.is_some() {
            assert_eq!(trained.summary.outcome, Outcome::Interrupted);
            let plan = Plan { watch: &watch, ..Plan::resumed(folder.path()) };
            trained = plan.train(point(), &objective, data, &config).unwrap();
        }
        let steps: Vec<_> = steps(folder.path()).into_iter().map(|(step, _)| step).collect();
        (weights(&trained.model), trained.summary, steps, told.into_inner().unwrap())
    };
    // The third step overflows at 2^16, 2^15 and 2^14, and is tried again with other batches.
    let (stormy, summary, steps, told) = run(9, &[2, 3, 4], None);
    let falls = [(3, 32_768.0, 1), (4, 16_384.0, 2), (5, 8_192.0, 3), (9, 16_384.0, 3)];
    assert_eq!(told, falls);
    assert_eq!((summary.counts.skipped, summary.counts.non_finite_in_a_row), (3, 0));
    let scales: Vec<f64> = steps.iter().map(|step| step.loss_scale).collect();
    assert_eq!(scales[..6], [65_536.0, 65_536.0, 65_536.0, 32_768.0, 16_384.0, 8_192.0]);
    let skipped: Vec<bool> = steps.iter().map(|step| step.skipped).collect();
    assert_eq!(skipped, [false, false, true, true, true, false, false, false, false]);
    // The schedule stood still: steps 3 to 6 have one rate. That weights and moments are those of the six
    // good steps alone is in `storms.rs`.
    let rates: Vec<f64> = steps.iter().map(|step| step.learning_rate).collect();
    assert!(rates[2..6].iter().all(|rate| *rate == rates[2]) && rates[6] != rates[5]);
    let (_, _, calm_steps, _) = run(9, &[], None);
    assert_eq!(calm_steps[..6].iter().map(|s| s.learning_rate).collect::<Vec<_>>(), {
        let mut kept = rates.clone();
        kept.drain(3..6);
        kept
    });
    for stop_at in [2, 3, 4, 5, 6] {
        let again = run(9, &[2, 3, 4], Some(stop_at));
        assert_eq!((&again.0, &again.2, &again.3), (&stormy, &steps, &told), "at {stop_at}");
        assert_eq!(again.1.counts, summary.counts);
    }
}

#[test]
fn an_overflow_at_the_floor_is_a_failure() {
    let loader = loader(400, 4);
    let data = Data { train: &loader, validation: None };
    let objective = Storm { steps: (0..100).collect(), size: 1e40 };
    let folder = tempfile::tempdir().unwrap();
    let config = config(LossScale::Dynamic(DynamicScale::default()));
    let error = Plan::new(folder.path()).train(point(), &objective, data, &config).unwrap_err();
    // Sixteen falls from 65,536 to 1, and the seventeenth is no overflow any more.
    assert!(matches!(error, TrainError::NonFinite { step: 17, .. }), "{error}");
    assert!(!error.to_string().contains("loss_scale"), "{error}");
}

#[test]
fn a_floor_that_overflows_is_named_before_other_ways_out() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let storm = Storm { steps: (0..100).collect(), size: 2f64.powi(114) };
    let dynamic = DynamicScale { initial: 65_536.0, floor: 32_768.0, ..DynamicScale::default() };
    for non_finite in [NonFinite::Stop, NonFinite::Skip] {
        let folder = tempfile::tempdir().unwrap();
        let config = TrainConfig { non_finite, ..config(LossScale::Dynamic(dynamic)) };
        let error = Plan::new(folder.path()).train(point(), &storm, data, &config).unwrap_err();
        let said = error.to_string();
        let named = "`train.loss_scale.dynamic.floor`, which is 32768: lower it to 1";
        let (floor, rate) = (said.find(named), said.find("`learning_rate`"));
        assert!(floor.is_some() && floor < rate, "{said}");
    }
}

#[test]
fn a_run_of_overflows_alone_is_no_result() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let objective = Storm { steps: (0..100).collect(), size: 2f64.powi(114) };
    let folder = tempfile::tempdir().unwrap();
    let dynamic = DynamicScale { initial: 2f64.powi(40), ..DynamicScale::default() };
    let config = config(LossScale::Dynamic(dynamic));
    let error = Plan::new(folder.path()).train(point(), &objective, data, &config).unwrap_err();
    assert!(matches!(error, TrainError::Overflowed { steps: 18, .. }), "{error}");
    assert!(!folder.path().join("training.json").exists());
}

#[test]
fn epochs_without_an_update_do_not_count_for_what_waits() {
    // Six steps an epoch, of which the first four epochs overflow. The loss never falls.
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let objective = Storm { steps: (0..24).collect(), size: 2f64.powi(114) };
    let folder = tempfile::tempdir().unwrap();
    let dynamic = DynamicScale { initial: 2f64.powi(38), ..DynamicScale::default() };
    let config = TrainConfig {
        epochs: 7,
        early_stopping: Some(EarlyStopping { patience: 3, ..EarlyStopping::default() }),
        schedule: Schedule::Plateau(Plateau { patience: 0, ..Plateau::default() }),
        ..config(LossScale::Dynamic(dynamic))
    };
    let rates = Mutex::new(vec![]);
    let watch = |event: &Event| {
        if let Event::Step { step, learning_rate, .. } = event {
            rates.lock().unwrap().push((*step, *learning_rate));
        }
    };
    let plan = Plan { watch: &watch, ..Plan::new(folder.path()) };
    let summary = plan.train(point(), &objective, data, &config).unwrap().summary;
    assert_eq!((summary.outcome, summary.steps), (Outcome::Finished, 42));
    let rates = rates.into_inner().unwrap();
    let of = |wanted| rates.iter().find(|(step, _)| *step == wanted).unwrap().1;
    assert_eq!([of(1), of(24), of(25), of(36)], [0.01; 4]);
    assert!(of(37) < 0.01, "{}", of(37));
}

#[test]
fn a_run_without_an_update_is_no_result_under_a_static_scale_either() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let objective = Storm { steps: (0..100).collect(), size: 2f64.powi(114) };
    let folder = tempfile::tempdir().unwrap();
    let config = TrainConfig {
        non_finite: NonFinite::Skip,
        non_finite_limit: 100,
        ..config(LossScale::Static(65_536.0))
    };
    let error = Plan::new(folder.path()).train(point(), &objective, data, &config).unwrap_err();
    assert!(matches!(error, TrainError::NothingLearnt { steps: 18, .. }), "{error}");
    assert!(error.to_string().contains("lower `train.loss_scale.static`"), "{error}");
    assert!(!folder.path().join("training.json").exists());
}

#[test]
fn a_static_scale_that_overflows_is_named_before_other_ways_out() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let said = |train: &dyn Fn(&Plan<'_>, &TrainConfig) -> TrainError, scale, non_finite| {
        let folder = tempfile::tempdir().unwrap();
        let config =
            TrainConfig { non_finite, non_finite_limit: 3, ..config(LossScale::Static(scale)) };
        train(&Plan::new(folder.path()), &config).to_string()
    };
    let storm = Storm { steps: (0..100).collect(), size: 2f64.powi(114) };
    let overflow = |plan: &Plan<'_>, config: &TrainConfig| {
        plan.train(point(), &storm, data, config).unwrap_err()
    };
    let named = "; `train.loss_scale.static` is 65536: lower it, or use `train.loss_scale.dynamic`";
    for non_finite in [NonFinite::Stop, NonFinite::Skip] {
        let error = said(&overflow, 65_536.0, non_finite);
        let (scale, rate) = (error.find(named), error.find("`learning_rate`"));
        assert!(scale.is_some() && scale < rate, "{error}");
    }
    // A loss that is no number is none of a scale's doing.
    let broken = |plan: &Plan<'_>, config: &TrainConfig| {
        plan.train(point(), &ToMean { broken: vec![1] }, data, config).unwrap_err()
    };
    let error = said(&broken, 65_536.0, NonFinite::Stop);
    assert!(error.contains("the loss NaN") && !error.contains("loss_scale"), "{error}");
    // Nor is an overflow without a scale.
    let storm = Storm { steps: (0..100).collect(), size: 1e40 };
    let overflow = |plan: &Plan<'_>, config: &TrainConfig| {
        plan.train(point(), &storm, data, config).unwrap_err()
    };
    let error = said(&overflow, 1.0, NonFinite::Stop);
    assert!(error.contains("step 1 ") && !error.contains("loss_scale"), "{error}");
}

#[test]
fn a_loss_that_is_no_number_is_no_overflow() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let objective = ToMean { broken: vec![1] };
    let run = |non_finite| {
        let folder = tempfile::tempdir().unwrap();
        let config =
            TrainConfig { non_finite, ..config(LossScale::Dynamic(DynamicScale::default())) };
        let trained = Plan::new(folder.path()).train(point(), &objective, data, &config)?;
        let scales: Vec<f64> = steps(folder.path()).iter().map(|(s, _)| s.loss_scale).collect();
        Ok::<_, TrainError>((trained.summary.counts.skipped, scales[1], scales[2]))
    };
    assert!(matches!(run(NonFinite::Stop).unwrap_err(), TrainError::NonFinite { step: 2, .. }));
    // The scale falls all the same, as PyTorch's does.
    assert_eq!(run(NonFinite::Skip).unwrap(), (1, 65_536.0, 32_768.0));
}

/// A loss with the gradient 1e-8, which is on its way through f16.
struct Faint;

impl Objective<Point> for Faint {
    fn loss(&self, model: &Point, batch: &Batch, _: Streams) -> Loss {
        let half = model.weight.val().cast(DType::F16).cast(DType::F32);
        Loss { value: half * 1e-8, weight: batch.indices.len() as f64, parts: vec![] }
    }
}

#[test]
fn gradients_that_vanish_in_f16_survive_with_a_scale() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let run = |loss_scale| {
        let folder = tempfile::tempdir().unwrap();
        let schedule = Schedule::Constant(Constant::default());
        let adamw = AdamWConfig { weight_decay: 0.0, eps: 1e-12, ..AdamWConfig::default() };
        let optimizer = Optimizer::AdamW(adamw);
        let config = TrainConfig { schedule, optimizer, ..config(loss_scale) };
        let trained = Plan::new(folder.path()).train(point(), &Faint, data, &config).unwrap();
        let (_, [_, norm]) = steps(folder.path()).swap_remove(0);
        (weights(&trained.model)[0], f64::from_bits(norm))
    };
    assert_eq!(run(LossScale::Off), (1.5, 0.0));
    for scale in [LossScale::Auto.resolve(true), LossScale::Static(1024.0)] {
        let (weight, norm) = run(scale);
        // Eighteen steps of 1e-3.
        assert!((weight - (1.5 - 18e-3)).abs() < 1e-4, "{weight}");
        assert!((norm / 1e-8 - 1.0).abs() < 1e-2, "{norm}");
    }
}

#[test]
fn a_static_scale_that_is_a_power_of_two_changes_nothing() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let run = |loss_scale| {
        let folder = tempfile::tempdir().unwrap();
        let config = TrainConfig { accumulate: 2, ..config(loss_scale) };
        let objective = ToMean::default();
        let trained = Plan::new(folder.path()).train(point(), &objective, data, &config).unwrap();
        weights(&trained.model)
    };
    assert_eq!(run(LossScale::Static(4096.0)), run(LossScale::Off));
}

/// A loss in half precision, in training or in validation.
struct Half {
    held_out: bool,
}

impl Objective<Point> for Half {
    fn loss(&self, model: &Point, _: &Batch, streams: Streams) -> Loss {
        let weight = model.weight.val();
        let value = match streams.dropout.is_none() == self.held_out {
            true => weight.cast(DType::F16),
            false => weight,
        };
        Loss { value, weight: 1.0, parts: vec![] }
    }
}

#[test]
fn weights_and_losses_of_another_type_are_refused() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let train = |model, objective: &dyn Fn(&Plan<'_>, Point) -> TrainError| {
        let folder = tempfile::tempdir().unwrap();
        objective(&Plan::new(folder.path()), model).to_string()
    };
    let settings = config(LossScale::Off);
    let validation = held_out(8);
    let whole = Data { validation: Some(&validation), ..data };
    for (held_out, data, name) in [(false, data, "loss"), (true, whole, "validation loss")] {
        let half = Half { held_out };
        let half =
            train(point(), &|plan, model| plan.train(model, &half, data, &settings).unwrap_err());
        let expected = format!("the {name} is of type F16, and must be f32");
        assert!(half.starts_with(&expected), "{half}");
    }
    let weight = point().weight.val().cast(DType::F16);
    let narrow = Point { weight: Param::from_tensor(weight) };
    let said = train(narrow, &|plan, model| {
        plan.train(model, &ToMean::default(), data, &settings).unwrap_err()
    });
    assert!(said.starts_with("weight is of type F16"), "{said}");
}

#[test]
fn an_infinite_learning_rate_is_no_overflow_and_ends_the_run() {
    // PyTorch's scaler lets such a step pass, too: the trace has one. The loop ends with the first
    // loss after it.
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let folder = tempfile::tempdir().unwrap();
    let adamw = AdamWConfig { learning_rate: 1e38, ..AdamWConfig::default() };
    let config = TrainConfig {
        optimizer: Optimizer::AdamW(adamw),
        schedule: Schedule::Constant(Constant::default()),
        ..config(LossScale::Dynamic(DynamicScale::default()))
    };
    let plan = Plan::new(folder.path());
    let error = plan.train(point(), &ToMean::default(), data, &config).unwrap_err();
    assert!(matches!(error, TrainError::NonFinite { step: 2, .. }), "{error}");
}
