//! AdamW, clipping and schedules against PyTorch: `golden.py` wrote what PyTorch does.

use std::collections::BTreeMap;

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{Device, Tensor, TensorData};
use firebox_models::read_parameters;
use firebox_train::{
    AdamWConfig, Clip, Cosine, Gradients, OneCycle, OptimizerState, Plateau, PlateauState,
    Progress, Schedule, SquaredNorm, TrainConfig, UpdateBy,
};
use serde::Deserialize;

type Values = BTreeMap<String, Vec<f32>>;

#[derive(Deserialize)]
struct Golden {
    adamw: Vec<Optimizer>,
    cosine: Vec<Rates>,
    one_cycle: Vec<Rates>,
    plateau: Vec<Lowered>,
}

#[derive(Deserialize)]
struct Optimizer {
    config: AdamWConfig,
    clip: Option<f64>,
    start: Values,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    rate: f64,
    gradients: Values,
    norm: Option<f64>,
    parameters: Values,
}

#[derive(Deserialize)]
struct Rates {
    total: u64,
    rise: Option<f64>,
    rates: Vec<f64>,
}

#[derive(Deserialize)]
struct Lowered {
    settings: Settings,
    losses: Vec<f64>,
    rates: Vec<f64>,
}

#[derive(Deserialize)]
struct Settings {
    factor: f64,
    patience: u64,
    threshold: f64,
    cooldown: u64,
    min_lr: f64,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../golden/torch.json")).unwrap()
}

/// PyTorch's `[out, in]` as Burn's `[in, out]`.
fn weight(values: &Values, device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(values["weight"].clone(), [3, 4]), device).transpose()
}

fn bias(values: &Values, device: &Device) -> Tensor<1> {
    Tensor::from_data(TensorData::new(values["bias"].clone(), [3]), device)
}

#[test]
fn adamw_and_clipping_are_pytorchs() {
    let device = Device::default();
    for Optimizer { config, clip, start, steps } in golden().adamw {
        let mut model = Linear {
            weight: Param::from_tensor(weight(&start, &device)),
            bias: Some(Param::from_tensor(bias(&start, &device))),
        }
        .train();
        let config = TrainConfig {
            optimizer: firebox_train::Optimizer::AdamW(config),
            ..TrainConfig::default()
        };
        let mut optimizer = OptimizerState::new(&model, &config).unwrap();
        for (index, step) in steps.iter().enumerate() {
            // A loss whose gradients are the given ones.
            let loss = (model.weight.val() * weight(&step.gradients, &device)).sum()
                + (model.bias.as_ref().unwrap().val() * bias(&step.gradients, &device)).sum();
            let gradients = Gradients::take(&model, loss.backward());
            let squared_norm = match gradients.squared_norm() {
                SquaredNorm::Known(squared) => squared,
                SquaredNorm::Pending(parts) => {
                    parts.into_iter().map(|part| f64::from(part.into_scalar::<f32>())).sum()
                }
            };
            if let Some(expected) = step.norm {
                let norm = squared_norm.sqrt();
                assert!((norm - expected).abs() < 1e-6 * expected, "{norm} {expected}");
            }
            let clip = clip.map_or(Clip::Never, Clip::Norm);
            let by = UpdateBy { learning_rate: step.rate, clip, scale: 1.0, squared_norm };
            assert!(optimizer.step(&mut model, &gradients, by));
            for parameter in read_parameters(&model) {
                let expected = &step.parameters[&parameter.name];
                assert_eq!(parameter.values.len(), expected.len(), "{}", parameter.name);
                for (found, expected) in parameter.values.iter().zip(expected) {
                    let error = (found - expected).abs() / expected.abs().max(1e-3);
                    assert!(error < 2e-6, "step {index}, {}: {error}", parameter.name);
                }
            }
        }
    }
}

fn check(what: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        assert!(error <= 1e-9 * expected.abs(), "{what}, step {step}: {found} {expected}");
    }
}

fn rates(schedule: &Schedule, total: u64) -> Vec<f64> {
    let at = |step| Progress { step, total, per_epoch: total };
    let state = PlateauState::default();
    (0..total).map(|step| schedule.learning_rate(1e-3, at(step), &state)).collect()
}

#[test]
fn schedules_are_pytorchs() {
    let golden = golden();
    for Rates { total, rates: expected, .. } in &golden.cosine {
        let schedule = Schedule::Cosine(Cosine { minimum: 1e-5, ..Cosine::default() });
        check(&format!("cosine over {total}"), &rates(&schedule, *total), expected);
    }
    for Rates { total, rise, rates: expected } in &golden.one_cycle {
        let cycle = OneCycle { rise: rise.unwrap(), ..OneCycle::default() };
        let found = rates(&Schedule::OneCycle(cycle), *total);
        check(&format!("one cycle over {total}"), &found, expected);
    }
    for Lowered { settings, losses, rates } in &golden.plateau {
        let Settings { factor, patience, threshold, cooldown, min_lr: minimum } = *settings;
        let settings =
            Plateau { factor, patience, threshold, cooldown, minimum, ..Plateau::default() };
        let (schedule, mut state) = (Schedule::Plateau(settings), PlateauState::default());
        let at = Progress { step: 0, total: 1, per_epoch: 1 };
        let found: Vec<f64> = losses
            .iter()
            .map(|loss| {
                schedule.observe(*loss, &mut state);
                schedule.learning_rate(1e-3, at, &state)
            })
            .collect();
        check("plateau", &found, rates);
        assert!(found.last() < found.first());
    }
}
