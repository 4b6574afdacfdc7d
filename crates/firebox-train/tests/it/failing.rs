//! Data that fail or do not answer while a run goes on: the cause is told at once, what was learnt is kept, and a stop
//! is heeded.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Plan, Point, SEED, ToMean, Warnings, Waves, config, point, steps, weights};
use burn::tensor::Device;
use firebox_core::{Event, Key, Requests};
use firebox_loader::{
    Batch, HeldOutLoader, LoadError, LoaderConfig, Sample, Source, TrainLoader, TrainSource,
};
use firebox_models::Loss;
use firebox_train::{Data, Objective, Outcome, Run, Streams, TrainError, checkpoints, train};

/// Waves, before each of which something is done.
struct Before<F>(F);

const WAVES: Waves = Waves { samples: 40, seed: 1 };

impl<F: Fn(usize) -> Result<(), LoadError> + Send + Sync> Source for Before<F> {
    fn len(&self) -> usize {
        WAVES.len()
    }

    fn shape(&self) -> [usize; 2] {
        WAVES.shape()
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        (self.0)(index)?;
        WAVES.read(index, out)
    }

    fn classes(&self) -> &[String] {
        &[]
    }
}

impl<F: Fn(usize) -> Result<(), LoadError> + Send + Sync> TrainSource for Before<F> {}

/// Waves of which one cannot be read while `fails` is set, or is waited with until it is.
fn failing_source(fails: &Arc<AtomicBool>, waits: bool) -> impl TrainSource + use<> {
    let fails = Arc::clone(fails);
    Before(move |index| {
        while index == 17 && waits && !fails.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        match index == 17 && fails.load(Ordering::Relaxed) {
            true => Err(LoadError::Sample { index, source: "the disk has gone".into() }),
            false => Ok(()),
        }
    })
}

/// Waves whose threads stand still from the fifth sample on, until they are let go.
fn silent_source(gate: &Arc<(Mutex<bool>, Condvar)>) -> impl TrainSource + use<> {
    let (gate, reads) = (Arc::clone(gate), AtomicUsize::new(0));
    Before(move |_| {
        if reads.fetch_add(1, Ordering::Relaxed) >= 4 {
            let (open, opened) = &*gate;
            drop(opened.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
        }
        Ok(())
    })
}

/// Steps that take their time; since the first was begun, a sample cannot be read.
struct Slow(Arc<AtomicBool>, Mutex<Option<Instant>>);

impl Objective<Point> for Slow {
    fn loss(&self, model: &Point, batch: &Batch, streams: Streams) -> Loss {
        self.1.lock().unwrap().get_or_insert_with(Instant::now);
        self.0.store(true, Ordering::Relaxed);
        thread::sleep(Duration::from_secs(3));
        ToMean::default().loss(model, batch, streams)
    }
}

fn loader(source: impl TrainSource + 'static, prefetch: usize, upload_ahead: usize) -> TrainLoader {
    let config = LoaderConfig {
        batch_size: 4,
        workers: 1,
        prefetch,
        upload_ahead,
        seed: SEED,
        ..LoaderConfig::default()
    };
    TrainLoader::new(Arc::new(source), config, Device::default()).unwrap()
}

/// Held-out samples that threads fill, whose batches end.
fn validation(upload_ahead: usize) -> HeldOutLoader {
    let config =
        LoaderConfig { batch_size: 4, workers: 2, upload_ahead, ..LoaderConfig::default() };
    let source = Waves { samples: 18, seed: 2 };
    HeldOutLoader::new(Arc::new(source), config, Device::default()).unwrap()
}

fn failing(fails: bool, upload_ahead: usize) -> (TrainLoader, Arc<AtomicBool>) {
    let fails = Arc::new(AtomicBool::new(fails));
    (loader(failing_source(&fails, false), 2, upload_ahead), fails)
}

#[test]
fn what_was_learnt_before_data_fail_is_kept_and_gone_on_with() {
    for upload_ahead in [0, 2] {
        let whole = tempfile::tempdir().unwrap();
        let ((sound, _), held_out) = (failing(false, upload_ahead), validation(upload_ahead));
        let data = Data { train: &sound, validation: Some(&held_out) };
        let expected = Plan::new(whole.path())
            .train(point(), &ToMean::default(), data, &config(1e-2))
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (loader, fails) = failing(false, upload_ahead);
        // From the second epoch on, so that steps were taken whichever batch it is in.
        let warnings = Warnings::default();
        let watch = |event: &Event| {
            warnings.take(event);
            if let Event::Epoch { epoch: 1, .. } = event {
                fails.store(true, Ordering::Relaxed);
            }
        };
        let plan = Plan { watch: &watch, ..Plan::new(folder.path()) };
        let data = Data { train: &loader, validation: Some(&held_out) };
        let failed = plan.train(point(), &ToMean::default(), data, &config(1e-2));
        assert!(matches!(failed, Err(TrainError::Load(LoadError::Sample { index: 17, .. }))));
        let taken = steps(folder.path()).len() as u64;
        let kept = checkpoints(&folder.path().join("checkpoints")).unwrap();
        let last = kept.iter().map(|checkpoint| checkpoint.manifest().step).max();
        assert_eq!(last, Some(taken), "{upload_ahead}");
        let said = warnings.0.lock().unwrap().join("\n");
        assert!(said.contains(&format!("failed after step {taken}, which is saved")), "{said}");
        // The disk is back.
        let (loader, _) = failing(false, upload_ahead);
        let data = Data { train: &loader, validation: Some(&held_out) };
        let plan = Plan::resumed(folder.path());
        let trained = plan.train(point(), &ToMean::default(), data, &config(1e-2)).unwrap();
        assert_eq!(weights(&trained.model), weights(&expected.model), "{upload_ahead}");
        assert_eq!(steps(folder.path()), steps(whole.path()), "{upload_ahead}");
    }
}

#[test]
fn a_failure_is_told_within_a_second_however_long_a_step_takes() {
    for upload_ahead in [0, 2] {
        let folder = tempfile::tempdir().unwrap();
        let fails = Arc::<AtomicBool>::default();
        // The whole epoch is read ahead.
        let source = loader(failing_source(&fails, true), 12, upload_ahead);
        let told = Mutex::new(None);
        let watch = |event: &Event| {
            if let Event::Warning { message } = event
                && message.contains("the disk has gone")
            {
                assert!(
                    message.starts_with("the run ends where that batch is needed"),
                    "{message}"
                );
                *told.lock().unwrap() = Some(Instant::now());
            }
        };
        let slow = Slow(fails, Mutex::default());
        let plan = Plan { watch: &watch, ..Plan::new(folder.path()) };
        let data = Data { train: &source, validation: None };
        let failed = plan.train(point(), &slow, data, &config(1e-2));
        assert!(matches!(failed, Err(TrainError::Load(_))));
        let told = told.lock().unwrap().expect("it was told");
        let begun = slow.1.lock().unwrap().expect("a step was begun");
        // Long before the step ends.
        assert!(told - begun < Duration::from_secs(2), "{:?}", told - begun);
    }
}

#[test]
fn a_stop_is_heeded_while_nothing_answers_and_threads_are_left_behind() {
    for upload_ahead in [0, 2] {
        let folder = tempfile::tempdir().unwrap();
        let gate = Arc::<(Mutex<bool>, Condvar)>::default();
        let source = loader(silent_source(&gate), 2, upload_ahead);
        let stop = AtomicBool::new(false);
        let stopped = thread::scope(|scope| {
            let (taken, first) = std::sync::mpsc::channel();
            let stop = &stop;
            scope.spawn(move || {
                first.recv().unwrap();
                // By now the second batch is waited for.
                thread::sleep(Duration::from_millis(300));
                stop.store(true, Ordering::Relaxed);
            });
            let listener = |event: &Event| {
                if let Event::Step { .. } = event {
                    taken.send(()).unwrap();
                }
            };
            let run = Run {
                folder: folder.path(),
                key: Key::builder("test", 1).finish(),
                seed: SEED,
                resume: false,
                stop,
                requests: &Requests::new(),
                listener: &listener,
            };
            let begin = Instant::now();
            let data = Data { train: &source, validation: None };
            let trained = train(point(), &ToMean::default(), data, &config(1e-2), &run).unwrap();
            drop(source);
            assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
            trained.summary
        });
        assert_eq!((stopped.outcome, stopped.steps), (Outcome::Interrupted, 1));
        // What was learnt of the batch that came is there.
        let kept = checkpoints(&folder.path().join("checkpoints")).unwrap();
        assert!(kept.iter().any(|checkpoint| checkpoint.manifest().step == 1));
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
    }
}
