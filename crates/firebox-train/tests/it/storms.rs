//! What a storm of overflows leaves alone: a run with one ends, bit for bit, where the run of its good steps
//! alone ends, and that is where PyTorch's formulas have it in float64.

use std::f64::consts::PI;
use std::path::Path;

use crate::support::{Plan, Point, SEED, loader, point, steps};
use firebox_core::Stream;
use firebox_kernels::DeviceStep;
use firebox_loader::Batch;
use firebox_models::Loss;
use firebox_train::{
    AdamWConfig, CHECKPOINT_FOLDER, Checkpoint, CheckpointConfig, Data, DynamicScale, Keep,
    LossScale, Objective, Optimizer, SgdConfig, Streams, TrainConfig,
};
use safetensors::SafeTensors;

/// The gradient of each good step.
const SLOPES: [f64; 6] = [0.8, -0.35, 1.7, 0.02, -2.5, 0.6];

/// Attempts of every run here.
const ATTEMPTS: usize = 9;

/// The gradient of each attempt; `None` is a storm, whose gradient of 2¹¹⁴ overflows down to a scale of 2¹⁴.
struct Slopes(Vec<Option<f64>>);

impl Slopes {
    fn calm() -> Self {
        Self(SLOPES.into_iter().chain([0.1, 0.2, 0.3]).map(Some).collect())
    }

    /// The third step is tried four times.
    fn stormy() -> Self {
        let good = SLOPES.map(Some);
        Self(good[..2].iter().copied().chain([None; 3]).chain(good[2..].iter().copied()).collect())
    }
}

impl Objective<Point> for Slopes {
    fn loss(&self, model: &Point, batch: &Batch, streams: Streams) -> Loss {
        let is = |step: u64| streams.samples == Stream::new(SEED, "masks").substream(step);
        let step = (0..ATTEMPTS as u64).find(|step| is(*step)).expect("an attempt of the run");
        let weight = model.weight.val();
        // Nothing but its gradient is more than 0.
        let flat = weight.clone() - weight.detach();
        let value = match self.0[step as usize] {
            Some(slope) => flat * slope,
            None => flat * 2f64.powi(57) * 2f64.powi(57),
        };
        Loss { value, weight: batch.indices.len() as f64, parts: vec![] }
    }
}

const RATE: f64 = 0.01;

/// Saves after every attempt; all stay.
fn config(optimizer: Optimizer, loss_scale: LossScale) -> TrainConfig {
    TrainConfig {
        epochs: 3,
        max_steps: Some(ATTEMPTS as u64),
        optimizer,
        early_stopping: None,
        loss_scale,
        checkpoint: CheckpointConfig { keep: Keep::EverySteps(1), ..CheckpointConfig::default() },
        ..TrainConfig::default()
    }
}

fn adamw() -> AdamWConfig {
    AdamWConfig { learning_rate: RATE, weight_decay: 0.1, ..AdamWConfig::default() }
}

fn descent() -> SgdConfig {
    SgdConfig { learning_rate: RATE, momentum: 0.9, weight_decay: 0.1, ..SgdConfig::default() }
}

/// Files of weights and of moments with their counts, and the updates of the state, after an attempt.
fn left(folder: &Path, attempt: usize) -> ([Vec<u8>; 2], u64) {
    let path = folder.join(CHECKPOINT_FOLDER).join(format!("step-{attempt:06}"));
    let files = ["weights.safetensors", "optimizer.safetensors"]
        .map(|name| std::fs::read(path.join(name)).unwrap());
    let state = Checkpoint::open(&path).unwrap().state().unwrap();
    assert_eq!(state.step, attempt as u64);
    (files, state.updates())
}

/// What PyTorch's cosine has after so many updates.
fn cosine(updates: usize) -> f64 {
    let minimum = 1e-5;
    let share = updates as f64 / ATTEMPTS as f64;
    minimum + (RATE - minimum) / 2.0 * (1.0 + (PI * share).cos())
}

#[test]
fn a_storm_leaves_weights_moments_counts_and_schedule_to_the_good_steps_alone() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let dynamic = LossScale::Dynamic(DynamicScale { interval: 2, ..DynamicScale::default() });
    for optimizer in [Optimizer::AdamW(adamw()), Optimizer::Sgd(descent())] {
        for ahead in [false, true] {
            let run = |objective: &Slopes, loss_scale| {
                let folder = tempfile::tempdir().unwrap();
                let config = config(optimizer.clone(), loss_scale);
                let plan = Plan::new(folder.path());
                let train = || plan.train(point(), objective, data, &config).unwrap();
                let summary = DeviceStep::force(ahead, train).summary;
                (folder, summary)
            };
            // The calm run has no loss scale at all.
            let (calm, _) = run(&Slopes::calm(), LossScale::Off);
            let (stormy, summary) = run(&Slopes::stormy(), dynamic);
            for (attempt, updates) in [1, 2, 2, 2, 2, 3, 4, 5, 6].into_iter().enumerate() {
                let what = format!("{optimizer:?}, ahead: {ahead}, attempt {attempt}");
                let [found, expected] =
                    [(&stormy, attempt + 1), (&calm, updates)].map(|(f, n)| left(f.path(), n));
                assert_eq!(found.1, updates as u64, "{what}");
                assert!(found == expected, "{what}: the files are not those of the calm run");
            }
            // The last attempt is the run's ninth and its sixth update: the schedule ends as much short
            // of its minimum.
            assert_eq!((summary.steps, summary.counts.skipped), (9, 3));
            let rates: Vec<f64> =
                steps(stormy.path()).into_iter().map(|(step, _)| step.learning_rate).collect();
            for (rate, before) in rates.iter().zip([0, 1, 2, 2, 2, 2, 3, 4, 5]) {
                assert!((rate - cosine(before)).abs() < 1e-12, "{rates:?}");
            }
            assert_eq!(rates.len(), ATTEMPTS);
        }
    }
}

/// Weight and moments after the good steps, in float64.
fn by_pytorchs_formulas(optimizer: &Optimizer) -> (f64, [f64; 2]) {
    let (mut weight, mut moments) = (1.5, [0.0; 2]);
    for (update, slope) in SLOPES.into_iter().enumerate() {
        let rate = cosine(update);
        // Clipped by the norm of 1 that is the default.
        let g = slope * (1.0 / (slope.abs() + 1e-6)).min(1.0);
        let [first, second] = &mut moments;
        match optimizer {
            Optimizer::AdamW(_) => {
                let t = update as i32 + 1;
                weight *= 1.0 - rate * 0.1;
                *first = 0.9 * *first + 0.1 * g;
                *second = 0.999 * *second + 0.001 * g * g;
                let mean = *first / (1.0 - 0.9f64.powi(t));
                let square = *second / (1.0 - 0.999f64.powi(t));
                weight -= rate * mean / (square.sqrt() + 1e-8);
            }
            Optimizer::Sgd(_) => {
                *first = 0.9 * *first + g + 0.1 * weight;
                weight -= rate * *first;
            }
        }
    }
    (weight, moments)
}

#[test]
fn a_storm_ends_where_pytorchs_formulas_take_the_good_steps() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let dynamic = LossScale::Dynamic(DynamicScale { interval: 2, ..DynamicScale::default() });
    let cases = [
        (Optimizer::AdamW(adamw()), ["exp_avg", "exp_avg_sq"].as_slice()),
        (Optimizer::Sgd(descent()), ["momentum_buffer"].as_slice()),
    ];
    for (optimizer, names) in cases {
        let folder = tempfile::tempdir().unwrap();
        let config = config(optimizer.clone(), dynamic);
        Plan::new(folder.path()).train(point(), &Slopes::stormy(), data, &config).unwrap();
        let ([weights, moments], _) = left(folder.path(), ATTEMPTS);
        let number = |file: &[u8], name: &str| {
            let file = SafeTensors::deserialize(file).unwrap();
            let bytes: [u8; 4] = file.tensor(name).unwrap().data().try_into().unwrap();
            f64::from(f32::from_le_bytes(bytes))
        };
        let (weight, expected) = by_pytorchs_formulas(&optimizer);
        let found = number(&weights, "weight");
        assert!((found - weight).abs() < 1e-6, "{optimizer:?}: {found}, {weight}");
        for (name, expected) in names.iter().zip(expected) {
            let found = number(&moments, &format!("{name}.weight"));
            let near = (found - expected).abs() < 2e-6 * expected.abs();
            assert!(near, "{optimizer:?}, {name}: {found}, {expected}");
        }
    }
}
