//! Steps that the device takes without the host: what they compute is what the host's compute, when they
//! are read is without influence, and where the host decides it reads each of them.
//!
//! Without a GPU the way is forced, and the state of each step is read after all: then it is the order of
//! things that is tested. On a GPU in software, nothing is read:
//!
//! ```text
//! cargo test -p firebox-train --features firebox-kernels/cube,burn/wgpu --test it ahead
//! ```

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::{Plan, SEED, autoencoder, held_out, loader, steps, weights};
use burn::tensor::Device;
use firebox_core::{Event, Request, Requests, Stream};
use firebox_kernels::DeviceStep;
use firebox_loader::Batch;
use firebox_models::{BiLstmMae, Loss};
use firebox_train::{
    AdamWConfig, AverageConfig, CHECKPOINT_FOLDER, CheckpointConfig, Constant, DIVISIONS_FILE,
    Data, DynamicScale, History, Keep, LossScale, NonFinite, Objective, Optimizer, Outcome,
    ParameterGroup, Pretraining, Schedule, SgdConfig, Streams, TrainConfig, TrainError,
    checkpoints, load_average, without_memory_once,
};

/// The loss of pre-training, of which in some steps (from 0) the gradient, or the loss itself, is no number.
#[derive(Default)]
struct Weather {
    /// The gradient overflows at any loss scale, and the loss stays what it is.
    storms: Vec<u64>,
    broken: Vec<u64>,
}

impl Objective<BiLstmMae> for Weather {
    fn loss(&self, model: &BiLstmMae, batch: &Batch, streams: Streams) -> Loss {
        let among = |steps: &[u64]| {
            let step = |step| streams.samples == Stream::new(SEED, "masks").substream(step);
            steps.iter().any(|one| step(*one))
        };
        let Loss { value, weight, parts } = Pretraining.loss(model, batch, streams);
        let value = match (among(&self.storms), among(&self.broken)) {
            (true, _) => {
                let far = 2f64.powi(100);
                (value.clone() - value.clone().detach()) * far * far + value
            }
            (_, true) => value * f64::NAN,
            _ => value,
        };
        Loss { value, weight, parts }
    }
}

fn config() -> TrainConfig {
    let adamw = AdamWConfig { learning_rate: 0.01, ..AdamWConfig::default() };
    let dynamic = DynamicScale { interval: 4, ..DynamicScale::default() };
    TrainConfig {
        epochs: 4,
        optimizer: Optimizer::AdamW(adamw),
        early_stopping: None,
        loss_scale: LossScale::Dynamic(dynamic),
        accumulate: 2,
        // Most gradients of this model are larger.
        clip: Some(0.2),
        ..TrainConfig::default()
    }
}

/// What a run left, and by how many steps the reading of a step was late at most.
struct Ran {
    weights: Vec<f32>,
    history: History,
    skipped: u64,
    late: u64,
}

fn run(
    folder: &Path,
    ahead: bool,
    config: &TrainConfig,
    objective: &Weather,
    stop_at: Option<u64>,
) -> Result<Ran, TrainError> {
    let (loader, validation) = (loader(44, 4), held_out(8));
    let data = Data { train: &loader, validation: Some(&validation) };
    let (told, late) = (AtomicU64::new(0), AtomicU64::new(0));
    let watch = |event: &Event| match event {
        Event::Step { step, .. } => told.store(*step, Ordering::Relaxed),
        Event::Progress { done, .. } => {
            late.fetch_max(done - told.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        _ => {}
    };
    let model = || autoencoder(0.1, 0.1);
    let trained = DeviceStep::force(ahead, || {
        let plan = Plan { watch: &watch, stop_at, ..Plan::new(folder) };
        let trained = plan.train(model(), objective, data, config)?;
        if stop_at.is_none() {
            return Ok(trained);
        }
        assert_eq!(trained.summary.outcome, Outcome::Interrupted);
        Plan { watch: &watch, ..Plan::resumed(folder) }.train(model(), objective, data, config)
    })?;
    let (skipped, late) = (trained.summary.counts.skipped, late.into_inner());
    let history = History::read(folder).unwrap();
    Ok(Ran { weights: weights(&trained.model), history, skipped, late })
}

fn alone(ahead: bool, config: &TrainConfig, objective: &Weather) -> Ran {
    run(tempfile::tempdir().unwrap().path(), ahead, config, objective, None).unwrap()
}

fn relative_error(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected).map(|(f, e)| (f64::from(*f), f64::from(*e)));
    let (error, norm) =
        pairs.fold((0.0, 0.0), |(error, norm), (f, e)| (error + (f - e) * (f - e), norm + e * e));
    (error / norm).sqrt()
}

#[track_caller]
fn agree(what: &str, device: &Ran, host: &Ran) {
    assert!(device.late > 0 && host.late == 0, "{what}: {} and {}", device.late, host.late);
    assert_eq!(device.history.steps.len(), host.history.steps.len(), "{what}");
    for (ours, theirs) in device.history.steps.iter().zip(&host.history.steps) {
        let decided = |step: &firebox_train::StepRecord| {
            (step.step, step.epoch, step.skipped, step.learning_rate, step.loss_scale, step.samples)
        };
        assert_eq!(decided(ours), decided(theirs), "{what}");
        for (ours, theirs) in [(ours.loss, theirs.loss), (ours.gradient_norm, theirs.gradient_norm)]
        {
            let near = theirs.is_finite() && (ours - theirs).abs() <= 1e-4 * theirs.abs();
            assert!(near || !ours.is_finite() && !theirs.is_finite(), "{what}: {ours} {theirs}");
        }
    }
    assert_eq!(device.skipped, host.skipped, "{what}");
    for (ours, theirs) in device.history.epochs.iter().zip(&host.history.epochs) {
        assert!((ours.train_loss - theirs.train_loss).abs() < 1e-4 * theirs.train_loss, "{what}");
        let [ours, theirs] = [ours, theirs].map(|epoch| epoch.validation_loss.unwrap());
        assert!((ours - theirs).abs() < 1e-4 * theirs, "{what}: {ours} {theirs}");
    }
    let error = relative_error(&device.weights, &host.weights);
    assert!(error < 1e-5, "{what}: the weights differ by {error:.2e}");
}

/// Without momentum, with a part of each gradient left out, and Nesterov's.
fn descents() -> [SgdConfig; 3] {
    let of = |momentum, dampening, nesterov| SgdConfig {
        learning_rate: 0.1,
        momentum,
        dampening,
        nesterov,
        weight_decay: 0.01,
        ..SgdConfig::default()
    };
    [of(0.0, 0.0, false), of(0.8, 0.3, false), of(0.9, 0.0, true)]
}

/// One that follows every second update, and one of all weights from the second epoch on.
fn averages() -> [AverageConfig; 2] {
    [
        AverageConfig { decay: 0.8, every: 2, ..AverageConfig::default() },
        AverageConfig { equal: true, from_epoch: 1, ..AverageConfig::default() },
    ]
}

/// An average in a checkpoint: its file, and the numbers in it.
type Averaged = Option<(Vec<u8>, Vec<f32>)>;

/// The averages of a run's checkpoints, the newest first, with the updates that each counts.
fn averages_of(folder: &Path) -> Vec<(u64, Averaged)> {
    let all = checkpoints(&folder.join(CHECKPOINT_FOLDER)).unwrap();
    let one = |checkpoint: &firebox_train::Checkpoint| {
        let average = checkpoint.has_average().then(|| {
            let mut model = autoencoder(0.1, 0.1);
            load_average(checkpoint.path(), &mut model).unwrap();
            let file = checkpoint.path().join("average.safetensors");
            (std::fs::read(file).unwrap(), weights(&model))
        });
        (checkpoint.state().unwrap().averaged, average)
    };
    all.iter().map(one).collect()
}

#[test]
fn averages_are_those_of_the_host_and_on_a_processor_to_the_bit() {
    // On a processor both ways end in one step in f64, and of a rate, a scale and factors that f32 holds the state in
    // its memory gives the same numbers as the host's. A GPU corrects the moments of AdamW in f32.
    let to_the_bit = Device::default() == Device::flex();
    let adamw = AdamWConfig { learning_rate: 2f64.powi(-7), ..AdamWConfig::default() };
    let weather = Weather { storms: vec![2, 3, 13, 20, 30], broken: vec![] };
    for average in averages() {
        for evaluate in [true, false] {
            let config = TrainConfig {
                optimizer: Optimizer::AdamW(adamw.clone()),
                schedule: Schedule::Constant(Constant::default()),
                accumulate: 1,
                clip: None,
                average: Some(AverageConfig { evaluate, ..average }),
                checkpoint: CheckpointConfig { keep: Keep::EveryEpoch, ..Default::default() },
                ..config()
            };
            let [device, host] = [true, false].map(|ahead| {
                let folder = tempfile::tempdir().unwrap();
                let ran = run(folder.path(), ahead, &config, &weather, None).unwrap();
                (ran, averages_of(folder.path()))
            });
            assert!(device.0.late > 0 && host.0.late == 0, "{average:?}");
            assert_eq!((device.0.skipped, host.0.skipped), (5, 5));
            assert!(device.1.len() == 4 && device.1.iter().any(|(_, file)| file.is_some()));
            let counts = |all: &[(u64, Averaged)]| -> Vec<_> {
                all.iter().map(|(count, one)| (*count, one.is_some())).collect()
            };
            assert_eq!(counts(&device.1), counts(&host.1), "{average:?}");
            let near = |ours: &[f32], theirs: &[f32]| {
                let error = relative_error(ours, theirs);
                assert!(error < 1e-5, "{average:?}: {error:.2e}");
            };
            for ((_, ours), (_, theirs)) in device.1.iter().zip(&host.1) {
                let (Some(ours), Some(theirs)) = (ours, theirs) else { continue };
                assert!(!to_the_bit || ours.0 == theirs.0, "{average:?}: not the host's average");
                near(&ours.1, &theirs.1);
            }
            assert!(!to_the_bit || device.0.weights == host.0.weights, "{average:?}");
            near(&device.0.weights, &host.0.weights);
        }
    }
}

#[test]
fn the_weights_are_those_of_the_host() {
    // Six steps an epoch. The scale rises after four steps without a storm.
    let storms = || Weather { storms: vec![2, 3, 4, 5, 6, 13, 20], broken: vec![] };
    let with = |edit: fn(&mut TrainConfig)| {
        let mut config = config();
        edit(&mut config);
        config
    };
    let calm = Weather::default();
    let cases = [
        ("scaled", with(|_| {}), storms()),
        ("clipped by value", with(|c| (c.clip, c.clip_value) = (None, Some(0.01))), storms()),
        ("not clipped", with(|c| c.clip = None), storms()),
        ("not scaled", with(|c| (c.loss_scale, c.accumulate) = (LossScale::Off, 1)), calm),
        (
            "skipped",
            with(|c| (c.loss_scale, c.non_finite) = (LossScale::Static(1024.0), NonFinite::Skip)),
            Weather { storms: vec![], broken: vec![1, 2, 8, 9, 16] },
        ),
        (
            "both",
            with(|c| c.non_finite = NonFinite::Skip),
            Weather { storms: vec![3, 4, 9], broken: vec![1, 5, 8, 23] },
        ),
        (
            "unfrozen late",
            with(|c| {
                let parameters = vec!["lstm.*".to_owned()];
                let unfreeze_at = Some(2);
                c.groups =
                    vec![ParameterGroup { parameters, unfreeze_at, ..ParameterGroup::default() }];
            }),
            storms(),
        ),
    ];
    let averages = averages().map(|average| {
        let average = Some(average);
        ("averaged", TrainConfig { average, ..config() }, storms())
    });
    let descents = descents().map(|sgd| {
        let optimizer = Optimizer::Sgd(sgd);
        ("gradient descent", TrainConfig { optimizer, ..config() }, storms())
    });
    for (what, config, weather) in cases.into_iter().chain(descents).chain(averages) {
        let [device, host] = [true, false].map(|ahead| alone(ahead, &config, &weather));
        let skips = weather.storms.len() + weather.broken.len();
        assert!(skips == 0 || host.skipped > 2, "{what}: {} skipped", host.skipped);
        agree(what, &device, &host);
    }
}

#[test]
fn when_steps_are_read_changes_nothing() {
    let weather = || Weather { storms: vec![2, 3, 4, 13, 20], broken: vec![] };
    let [plain, dampened, _] =
        descents().map(|sgd| TrainConfig { optimizer: Optimizer::Sgd(sgd), ..config() });
    let [every, equal] = averages().map(|own| TrainConfig { average: Some(own), ..config() });
    for config in [config(), plain, dampened, every, equal] {
        let whole = tempfile::tempdir().unwrap();
        let expected = run(whole.path(), true, &config, &weather(), None).unwrap();
        for stop_at in [1, 3, 5, 9, 14] {
            let folder = tempfile::tempdir().unwrap();
            let ran = run(folder.path(), true, &config, &weather(), Some(stop_at)).unwrap();
            assert_eq!(ran.weights, expected.weights, "stopped at {stop_at}");
            assert_eq!(steps(folder.path()), steps(whole.path()), "stopped at {stop_at}");
        }
    }
}

#[test]
fn a_save_that_is_asked_for_has_all_steps_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let requests = Requests::new();
    let saved = Mutex::new(vec![]);
    let watch = |event: &Event| match event {
        Event::Progress { done: 3, .. } => requests.ask(Request::Save),
        Event::Asked { step, .. } => saved.lock().unwrap().push(*step),
        _ => {}
    };
    let plan = Plan { requests: &requests, watch: &watch, ..Plan::new(folder.path()) };
    let config = TrainConfig { epochs: 2, accumulate: 1, ..config() };
    DeviceStep::force(true, || plan.train(autoencoder(0.1, 0.1), &Pretraining, data, &config))
        .unwrap();
    assert_eq!(saved.into_inner().unwrap(), [3]);
    let told: Vec<u64> =
        History::read(folder.path()).unwrap().steps.iter().map(|step| step.step).collect();
    assert_eq!(told, (1..=12).collect::<Vec<_>>());
}

#[test]
fn a_run_that_stops_at_a_broken_step_has_written_down_no_later_one() {
    let weather = Weather { storms: vec![], broken: vec![8] };
    let folder = tempfile::tempdir().unwrap();
    let error = run(folder.path(), true, &config(), &weather, None).err().unwrap();
    assert!(matches!(error, TrainError::NonFinite { step: 9, epoch: 2, .. }), "{error}");
    let told = History::read(folder.path()).unwrap().steps;
    assert_eq!((told.len(), told[8].skipped), (9, true));
    let weather = Weather { storms: vec![], broken: (3..20).collect() };
    let skip = TrainConfig { non_finite: NonFinite::Skip, non_finite_limit: 5, ..config() };
    let folder = tempfile::tempdir().unwrap();
    let error = run(folder.path(), true, &skip, &weather, None).err().unwrap();
    assert!(matches!(error, TrainError::NonFiniteLimit { count: 5, step: 8, .. }), "{error}");
}

#[test]
fn where_the_host_decides_it_reads_each_step() {
    let odd = DynamicScale { growth: 1.7, ..DynamicScale::default() };
    let scale = LossScale::Dynamic(odd);
    let cases = [
        TrainConfig { non_finite: NonFinite::Rollback, ..config() },
        TrainConfig { loss_scale: scale, ..config() },
    ];
    for config in cases {
        let config = TrainConfig { epochs: 2, ..config };
        let [device, host] = [true, false].map(|ahead| alone(ahead, &config, &Weather::default()));
        assert_eq!((device.late, device.weights), (0, host.weights), "{config:?}");
    }
}

#[test]
fn steps_that_were_lost_for_want_of_memory_are_taken_again_from_a_checkpoint_in_smaller_parts() {
    let (loader, validation) = (loader(48, 4), held_out(8));
    let data = Data { train: &loader, validation: Some(&validation) };
    let train = |plan: Plan<'_>| {
        let model = autoencoder(0.1, 0.1);
        DeviceStep::force(true, || plan.train(model, &Pretraining, data, &config()))
    };
    // Six steps an epoch, after each of which there is a checkpoint; before the first there is none.
    for lost in [3, 8, 15, 24] {
        let folder = tempfile::tempdir().unwrap();
        let error = without_memory_once(lost, || train(Plan::new(folder.path()))).err().unwrap();
        let TrainError::Lost { first, last } = error else { panic!("{error}") };
        assert!((1..=lost).contains(&first) && last >= lost, "{first} to {last} for {lost}");
        assert!(
            error.begins_anew() && error.to_string().contains("goes on from its newest checkpoint"),
            "{error}"
        );
        let told = History::read(folder.path()).unwrap().steps;
        assert_eq!(told.last().map_or(0, |step| step.step), first - 1, "nothing of them is told");
        let ended = train(Plan::resumed(folder.path())).unwrap();
        let divisions: Vec<_> = ended.summary.divisions.iter().map(|d| (d.step, d.parts)).collect();
        assert_eq!(divisions, [(first, 2)]);
        let told: Vec<_> =
            History::read(folder.path()).unwrap().steps.iter().map(|step| step.step).collect();
        assert_eq!(told, (1..=24).collect::<Vec<_>>());
        // A device with enough memory makes the same of it, step by step.
        let again = tempfile::tempdir().unwrap();
        let [from, to] = [&folder, &again].map(|folder| folder.path().join(DIVISIONS_FILE));
        std::fs::copy(from, to).unwrap();
        let repeated = train(Plan::new(again.path())).unwrap();
        assert_eq!(weights(&repeated.model), weights(&ended.model), "{lost}");
        assert_eq!(steps(again.path()), steps(folder.path()), "{lost}");
    }
}
