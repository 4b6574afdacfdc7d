//! Usage of runs that are made up.

use firebox_core::GpuSample;

use super::*;

pub(crate) fn started(stage: &str) -> Event {
    Event::StageStarted { stage: stage.to_owned() }
}

fn sample(seconds: f64, cpu_threads: f64, other: f64, gpu: Option<f64>) -> Event {
    let gpus = gpu.map(|share| GpuSample { utilisation: Some(share), ..GpuSample::default() });
    Event::Machine(MachineSample {
        seconds,
        cpu_threads,
        threads: 4,
        other_threads: Some(other),
        memory_bytes: 100,
        available_bytes: 40,
        gpus: gpus.into_iter().collect(),
        ..MachineSample::default()
    })
}

fn step(step: u64, milliseconds: f64, data_milliseconds: f64) -> Event {
    Event::Step {
        step,
        epoch: 1,
        loss: 1.0,
        learning_rate: 0.1,
        gradient_norm: 1.0,
        samples: 4,
        milliseconds,
        data_milliseconds,
        skipped: false,
    }
}

fn usage(events: &[Event]) -> Usage {
    let mut usage = Usage::default();
    events.iter().for_each(|event| usage.record(event));
    usage
}

#[test]
fn means_are_over_time_and_peaks_of_training_are_its_own() {
    let usage = usage(&[
        started("ingest"),
        sample(1.0, 4.0, 0.0, None),
        started("train"),
        sample(3.0, 1.0, 0.0, None),
        Event::Asked { request: Request::Pause, step: 1 },
        sample(9.0, 0.0, 0.0, None),
        Event::Asked { request: Request::GoOn, step: 1 },
        sample(1.0, 3.0, 0.0, None),
    ]);
    let measures = usage.measures();
    let cpu = measures.iter().find(|measure| measure.name == CPU).unwrap();
    assert_eq!((cpu.training_mean, cpu.training_peak, cpu.peak), (Some(1.5), Some(3.0), 4.0));
    assert_eq!(usage.training_mean(CPU_SHARE), Some(0.375));
    assert_eq!(usage.training_peak(MEMORY_IN_USE), Some(60.0));
    assert!(measures.iter().all(|measure| !measure.name.starts_with("GPU")));
}

#[test]
fn threads_beside_those_that_compute_make_no_share_above_one() {
    // Five and three of four threads.
    let usage =
        usage(&[started("train"), sample(1.0, 5.0, 0.0, None), sample(1.0, 3.0, 0.0, None)]);
    assert_eq!(usage.training_peak(CPU_SHARE), Some(1.0));
    assert_eq!(usage.utilisation(false).unwrap().share, 0.875);
}

#[test]
fn classifiers_that_are_trained_after_their_encoder_count_as_training() {
    let finished = |stage: &str| Event::StageFinished {
        stage: stage.to_owned(),
        key: None,
        reused: false,
        seconds: 1.0,
        detail: String::new(),
    };
    let usage = usage(&[
        started("train"),
        sample(1.0, 1.0, 0.0, None),
        finished("train"),
        started("finetune"),
        sample(1.0, 3.0, 0.0, None),
        finished("finetune"),
        started("evaluate"),
        sample(8.0, 4.0, 0.0, None),
    ]);
    assert_eq!((usage.training_mean(CPU), usage.training_peak(CPU)), (Some(2.0), Some(3.0)));
    // The steps of the run are of its own training, and so is what is said of them.
    assert_eq!(usage.utilisation(false).unwrap().share, 0.25);
    // Where an encoder was given, there is none but that of classifiers.
    let given = self::usage(&[started("finetune"), sample(1.0, 3.0, 0.0, None)]);
    assert_eq!(given.utilisation(false).unwrap().share, 0.75);
}

#[test]
fn a_gpu_that_classifiers_kept_busy_says_nothing_of_the_steps_of_the_run() {
    let both = usage(&[
        started("train"),
        sample(1.0, 1.0, 0.0, Some(0.5)),
        started("finetune"),
        sample(9.0, 1.0, 0.0, Some(0.99)),
    ]);
    assert_eq!(both.step_device(true), StepDevice::Gpu(Some(0.5)));
    let within = |run: &Usage| {
        let mut classifier = Usage::default();
        classifier.on_the_gpu_of(run);
        classifier.step_device(true)
    };
    assert_eq!(within(&both), StepDevice::Gpu(Some(0.99)));
    // Folds and iterations are trained in the run's own stage.
    let folds = usage(&[started("train"), sample(1.0, 1.0, 0.0, Some(0.5))]);
    assert_eq!(within(&folds), StepDevice::Gpu(Some(0.5)));
    assert_eq!(within(&Usage::default()), StepDevice::Gpu(None));
}

#[test]
fn time_is_divided_among_data_checkpoints_and_validation() {
    let save = Event::Checkpoint {
        step: 1,
        path: String::new(),
        blocked_milliseconds: 100.0,
        save_milliseconds: 500.0,
        bytes: 1,
    };
    let epoch = Event::Epoch {
        epoch: 1,
        step: 2,
        train_loss: 1.0,
        validation_loss: Some(1.0),
        best: true,
        seconds: 1.0,
    };
    let shares = usage(&[step(1, 300.0, 60.0), save, step(2, 300.0, 40.0), epoch]).shares();
    let expected = Shares { seconds: 1.0, data: 0.1, saves: 0.1, validation: 0.3 };
    assert!((shares.validation - expected.validation).abs() < 1e-9, "{shares:?}");
    assert_eq!(Shares { validation: 0.3, ..shares }, expected);
    assert_eq!(Usage::default().shares(), Shares::default());
}

#[test]
fn an_epoch_that_was_gone_on_with_loses_the_steps_of_its_own_attempt_only() {
    let started = |resumed_at_step| Event::RunStarted {
        run: "r".to_owned(),
        device: "cpu".to_owned(),
        resumed_at_step,
    };
    let epoch = Event::Epoch {
        epoch: 1,
        step: 3,
        train_loss: 1.0,
        validation_loss: Some(1.0),
        best: true,
        seconds: 0.5,
    };
    let events = [
        started(None),
        step(1, 300.0, 0.0),
        step(2, 300.0, 0.0),
        started(Some(2)),
        step(3, 300.0, 0.0),
        epoch,
    ];
    // 0.5 s since the resume, of which one step took 0.3 s; 0.9 s of steps in all.
    let shares = usage(&events).shares();
    assert!((shares.seconds - 1.1).abs() < 1e-9, "{shares:?}");
    assert!((shares.validation - 0.2 / 1.1).abs() < 1e-9, "{shares:?}");
}

#[test]
fn the_time_of_a_long_run_is_divided_in_one_pass() {
    const EPOCHS: u64 = 10_000;
    let save = |step, blocked_milliseconds| Event::Checkpoint {
        step,
        path: String::new(),
        blocked_milliseconds,
        save_milliseconds: 1.0,
        bytes: 1,
    };
    let mut usage = Usage::default();
    for epoch in 1..=EPOCHS {
        for number in 1..=100 {
            usage.record(&step(100 * (epoch - 1) + number, 1.0, 0.5));
        }
        usage.record(&save(100 * epoch - 50, 4.0));
        usage.record(&Event::Epoch {
            epoch,
            step: 100 * epoch,
            train_loss: 1.0,
            validation_loss: Some(1.0),
            best: true,
            seconds: 0.110,
        });
        usage.record(&save(100 * epoch, 2.0));
    }
    let begun = std::time::Instant::now();
    let shares = usage.shares();
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    // Of each epoch: 100 ms of steps, 6 ms of saves, of which one came after its 110 ms, and 6 ms of validation.
    assert!((shares.seconds - 1120.0).abs() < 1e-6, "{shares:?}");
    assert!((shares.data - 50.0 / 112.0).abs() < 1e-9, "{shares:?}");
    assert!((shares.saves - 6.0 / 112.0).abs() < 1e-9, "{shares:?}");
    assert!((shares.validation - 6.0 / 112.0).abs() < 1e-9, "{shares:?}");
    assert!(!usage.saves_within_epochs(100) && usage.saves_within_epochs(50));
}

#[test]
fn a_device_that_is_not_busy_has_a_cause() {
    let check = |events: &[Event], on_gpu, good, expected: &str| {
        let found = usage(events).utilisation(on_gpu).unwrap();
        assert!(found.good == good && found.sentence.contains(expected), "{}", found.sentence);
    };
    check(
        &[started("train"), sample(1.0, 3.9, 0.0, None)],
        false,
        true,
        "97.5 % of the time: good",
    );
    // Exactly at the border is not above it.
    check(&[started("train"), sample(1.0, 3.4, 0.0, None)], false, false, "85.0 %");
    let starved = [started("train"), sample(1.0, 1.0, 0.0, Some(0.4)), step(1, 10.0, 6.0)];
    check(&starved, true, false, "60.0 % of the time went by waiting for data");
    let shared = [started("train"), sample(1.0, 2.0, 2.0, None), step(1, 10.0, 0.0)];
    check(&shared, false, false, "other processes took 50.0 % of the processor");
    let slow = [started("train"), sample(1.0, 1.0, 0.0, None), step(1, 10.0, 0.0)];
    check(&slow, false, false, "do not fill it");
    check(&slow[..2], false, false, "no steps of its own that would tell why");
    assert_eq!(usage(&[started("train"), step(1, 1.0, 0.0)]).utilisation(false), None);
    assert_eq!(usage(&[started("train"), sample(1.0, 1.0, 0.0, None)]).utilisation(true), None);
    // Samples of other stages say nothing about training.
    assert_eq!(usage(&[started("ingest"), sample(1.0, 4.0, 0.0, None)]).utilisation(false), None);
}

#[test]
fn of_several_gpus_none_is_taken_for_that_of_the_run() {
    let of = |shares: &[f64]| {
        let gpus = shares.iter().map(|share| GpuSample {
            utilisation: Some(*share),
            memory_used_bytes: Some((100.0 * share) as u64),
            memory_bytes: Some(100),
            ..GpuSample::default()
        });
        let sample = MachineSample { seconds: 1.0, ..MachineSample::default() };
        Event::Machine(MachineSample { gpus: gpus.collect(), ..sample })
    };
    // The other one is another's.
    let both = usage(&[started("train"), of(&[0.25, 1.0])]);
    assert_eq!((both.utilisation(true), both.gpu_memory), (None, 0.0));
    // One attempt may know it, and another not.
    let known = usage(&[started("train"), of(&[0.25]), of(&[0.25, 1.0]), of(&[0.75])]);
    assert_eq!((known.utilisation(true).unwrap().share, known.gpu_memory), (0.5, 0.75));
}

#[test]
fn saves_within_epochs_are_told_from_those_that_end_them() {
    let save = |step| Event::Checkpoint {
        step,
        path: String::new(),
        blocked_milliseconds: 1.0,
        save_milliseconds: 1.0,
        bytes: 1,
    };
    let epoch = |epoch, step| Event::Epoch {
        epoch,
        step,
        train_loss: 1.0,
        validation_loss: None,
        best: true,
        seconds: 1.0,
    };
    let found = |saves: &[u64]| {
        let mut events: Vec<Event> = saves.iter().map(|step| save(*step)).collect();
        events.extend([epoch(1, 10), epoch(2, 20)]);
        usage(&events).saves_within_epochs(5)
    };
    assert!(found(&[5]) && found(&[10, 15, 20]));
    // Ends of epochs; the start, for a rollback; and an interruption, which comes after any step.
    assert!(!found(&[]) && !found(&[10, 20]) && !found(&[0, 10]) && !found(&[7]));
}

#[test]
fn steps_that_are_told_again_replace_those_before() {
    let resumed = Event::RunStarted {
        run: "r".to_owned(),
        device: "cpu".to_owned(),
        resumed_at_step: Some(1),
    };
    let usage = usage(&[step(1, 1.0, 0.0), step(2, 1.0, 0.0), resumed, step(2, 5.0, 0.0)]);
    assert_eq!(usage.steps.iter().map(|s| s.milliseconds).collect::<Vec<_>>(), [1.0, 5.0]);
}

#[test]
fn what_the_first_steps_of_attempts_take_is_told_apart_from_the_others() {
    let resumed = Event::RunStarted {
        run: "r".to_owned(),
        device: "cpu".to_owned(),
        resumed_at_step: Some(3),
    };
    let told = |events: &[Event], name: &str| {
        let timings = usage(events).timings(false);
        timings.into_iter().find(|(own, _)| own.starts_with(name)).map(|(_, text)| text)
    };
    let events = [
        step(1, 500.0, 0.0),
        step(2, 10.0, 0.0),
        step(3, 12.0, 0.0),
        resumed,
        step(4, 210.0, 0.0),
        step(5, 11.0, 0.0),
    ];
    assert_eq!(told(&events, "step, median").unwrap(), "11.0 ms");
    assert_eq!(told(&events, "step, mean").unwrap(), "11.0 ms");
    // 489 and 199.
    assert_eq!(told(&events, "warm-up").unwrap(), "688 ms");
    assert_eq!(told(&events[..1], "warm-up"), None);
    assert_eq!(told(&events[..1], "step, median").unwrap(), "500 ms");
}
