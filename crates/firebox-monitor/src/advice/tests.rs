//! Advice on runs that are made up, beside a quiet one.

use firebox_core::{Event, GpuSample, MachineSample};

use super::*;

fn settings() -> Settings {
    Settings {
        on_gpu: false,
        batch_size: 64,
        least_batch: 1,
        samples: None,
        divided: false,
        workers: 1,
        prefetch: 2,
        pins: false,
        faster: Faster::Memory,
        blocks: None,
        padding: None,
        keys: SettingKeys::default(),
        learning_rate: 0.001,
        scaling: Scaling::Off,
        clip: Some(1.0),
        clip_value: None,
        epochs: 8,
        early_stopping: true,
        stopped_early: false,
        least_improvement: 0.001,
        resume_every: None,
    }
}

fn step(step: u64, milliseconds: f64, data_milliseconds: f64, loss: f64) -> Event {
    match crate::testing::step(step, loss) {
        Event::Step { epoch, loss, learning_rate, gradient_norm, samples, skipped, .. } => {
            Event::Step {
                step,
                epoch,
                loss,
                learning_rate,
                gradient_norm,
                samples,
                milliseconds,
                data_milliseconds,
                skipped,
            }
        }
        other => other,
    }
}

fn epoch(epoch: u64, train_loss: f64, validation: f64) -> Event {
    let validation_loss = Some(validation);
    Event::Epoch { epoch, step: epoch, train_loss, validation_loss, best: false, seconds: 0.0 }
}

fn machine(share: f64, in_use: u64, major_faults: f64) -> Event {
    Event::Machine(MachineSample {
        seconds: 1.0,
        threads: 2,
        cpu_threads: 2.0 * share,
        memory_bytes: 1000,
        available_bytes: 1000 - in_use,
        major_faults: Some(major_faults),
        ..MachineSample::default()
    })
}

/// A second in which the one GPU was busy for this share of the time.
fn gpu_busy(share: f64) -> Event {
    let gpu = GpuSample { utilisation: Some(share), ..GpuSample::default() };
    Event::Machine(MachineSample { seconds: 1.0, gpus: vec![gpu], ..MachineSample::default() })
}

/// The findings and settings of these events of training, beside those of a quiet run.
fn lines(events: &[Event], settings: &Settings) -> Vec<String> {
    let mut usage = Usage::default();
    usage.record(&Event::StageStarted { stage: "train".to_owned() });
    events.iter().for_each(|event| usage.record(event));
    let lines = advice(&usage, settings).into_iter();
    lines.map(|advice| format!("{} -> {}", advice.finding, advice.setting)).collect()
}

fn check(events: &[Event], settings: &Settings, expected: &[&str]) {
    let lines = lines(events, settings);
    let [line] = &lines[..] else { panic!("{lines:?}") };
    for part in expected {
        assert!(line.contains(part), "`{part}` is missing in: {line}");
    }
}

#[test]
fn a_quiet_run_says_so_and_a_run_without_steps_tells_of_the_machine_alone() {
    let quiet = [step(1, 100.0, 1.0, 1.0), machine(0.95, 500, 0.0)];
    check(&quiet, &settings(), &["nothing stood out: 1.0 % of 0.1 s of training"]);
    let told = lines(&[machine(0.1, 999, 500.0)], &settings());
    assert!(told.len() == 2 && told[0].contains("of memory in use"), "{told:?}");
    assert!(told[1].contains("500 page faults a second"), "{told:?}");
    assert!(lines(&[machine(0.1, 1, 0.0)], &settings()).is_empty());
    let mut shared = machine(0.4, 1, 0.0);
    if let Event::Machine(sample) = &mut shared {
        sample.other_threads = Some(0.5);
    }
    check(&[shared], &settings(), &["other processes took 25.0 %", "end other programs"]);
}

#[test]
fn each_finding_has_its_figure_and_its_setting() {
    let one = |event| vec![step(1, 100.0, 1.0, 1.0), event];
    check(
        &[step(1, 100.0, 5.0, 1.0), step(2, 100.0, 19.0, 1.0)],
        &settings(),
        &["12.0 % of the time", "12.0 of 100 ms", "workers` from 1 to 2", "prefetch` from 2 to 4"],
    );
    // Filling a batch takes a thread as long as computing with it.
    let times = Event::Times {
        step: 1,
        steps: 1,
        waiting: 0.05,
        upload: 0.0,
        handing: 0.0,
        filling: 0.05,
        computing: 0.05,
        reading_back: 0.0,
        other: 0.0,
    };
    let alone = Settings { workers: 0, on_gpu: true, ..settings() };
    check(
        &[step(1, 100.0, 50.0, 1.0), times.clone(), gpu_busy(0.3)],
        &alone,
        &["50.0 % of the time", "`loader.workers` of 1 would give about 2", "workers` from 0 to 1"],
    );
    // A thread that fills fast enough, and is late now and then; at the first step alone; and never idle.
    let filled = |waiting, filling| Event::Times {
        step: 20,
        steps: 20,
        waiting,
        upload: 0.0,
        handing: 0.0,
        filling,
        computing: 2.0 - waiting,
        reading_back: 0.0,
        other: 0.0,
    };
    let waits = |of: &dyn Fn(u64) -> f64, waiting, filling| -> Vec<Event> {
        let steps = (1..=20).map(|number| step(number, 100.0, of(number), 1.0));
        steps.chain([filled(waiting, filling)]).collect()
    };
    let bursts = waits(&|number| if number % 4 == 0 { 80.0 } else { 0.0 }, 0.4, 1.0);
    check(
        &bursts,
        &settings(),
        &[
            "20.0 % of the time",
            "some take longer than others",
            "up to 1.25×",
            "prefetch` from 2 to 4",
        ],
    );
    let none_ahead = Settings { workers: 0, ..settings() };
    let start = waits(&|number| if number == 1 { 300.0 } else { 0.0 }, 0.3, 1.0);
    for (found, settings, expected) in [
        (&start, settings(), "nearly all of it before the first step"),
        // What it fills takes from steps that need all cores.
        (&waits(&|_| 6.0, 0.12, 1.99), settings(), "its threads fill batches all the time"),
        (&waits(&|_| 5.5, 0.11, 0.11), none_ahead, "no thread of the loader fills batches"),
    ] {
        let said = lines(found, &settings).join(" ");
        assert!(said.contains(expected) && !said.contains("prefetch"), "{said}");
    }
    // A thread that hands batches over beside the steps takes longer than these and than what fills.
    let handed = |upload, handing, waiting, filling| Event::Times {
        step: 1,
        steps: 1,
        waiting,
        upload,
        handing,
        filling,
        computing: 0.02,
        reading_back: 0.02,
        other: 0.0,
    };
    let gpu = || Settings { on_gpu: true, ..settings() };
    let held_up = [step(1, 100.0, 60.0, 1.0), handed(0.0, 0.1, 0.06, 0.03), gpu_busy(0.2)];
    check(
        &held_up,
        &gpu(),
        &["60.0 of 100 ms", "in longer than a step takes", "`loader.pin` to true"],
    );
    let said = lines(&held_up, &Settings { pins: true, ..gpu() }).join(" ");
    assert!(!said.contains("pin` to true") && !said.contains("prefetch"), "{said}");
    // Within the steps, it is no waiting.
    let within = [step(1, 100.0, 60.0, 1.0), handed(0.06, 0.06, 0.0, 0.03)];
    check(&within, &gpu(), &["60.0 % of the time of steps went by handing", "upload_ahead` to 2"]);
    let said = lines(&within, &gpu()).join(" ");
    assert!(!said.contains("waiting for data"), "{said}");
    // Nothing is filled where samples lie on the device, or are drawn there.
    let drawn = [step(1, 100.0, 60.0, 1.0), handed(0.06, 0.0, 0.0, 0.0)];
    check(
        &drawn,
        &settings(),
        &["drawing their versions there", "`loader.resident` to \"stream\""],
    );
    for (faster, way_out) in [
        (Faster::Memory, "`loader.resident` to \"memory\""),
        (Faster::Cached, "`augment.mode` to \"cached\""),
        (Faster::Nothing, "all fill batches"),
    ] {
        let all = Settings { workers: 1 << 20, faster, ..settings() };
        // Longer than any number of threads can make up for.
        let mut slow = times.clone();
        if let Event::Times { filling, .. } = &mut slow {
            *filling = 1e9;
        }
        let steps = [step(1, 100.0, 0.0, 1.0), step(2, 100.0, 100.0, 1.0), slow];
        let said = lines(&steps, &all).join(" ");
        assert!(said.contains("all fill batches") && said.contains(way_out), "{said}");
        assert_eq!(said.contains("resident"), faster == Faster::Memory, "{said}");
    }
    let padded_from = |now, share, left| {
        let padding = Some(Padding { share, now, buckets: 13, left });
        lines(&one(step(2, 100.0, 1.0, 1.0)), &Settings { padding, ..settings() }).join(" ")
    };
    let padded = |share, left| padded_from(0, share, left);
    let said = padded(0.5, 0.1);
    assert!(said.contains("50.0 % of the steps of training batches are padding"), "{said}");
    assert!(said.contains("from 0 to 13, with which 10.0 % are"), "{said}");
    assert!(said.contains("1.80 times fewer steps in all"), "{said}");
    // Finer ones, where they pay.
    let said = padded_from(26, 0.3, 0.1);
    assert!(said.contains("from 26 to 13, with which 10.0 % are"), "{said}");
    assert!(padded_from(26, 0.15, 0.0).contains("nothing stood out"));
    assert!(padded_from(26, 0.3, 0.2).contains("nothing stood out"));
    // Little of it, or much that buckets would leave.
    assert!(padded(0.19, 0.0).contains("nothing stood out"));
    assert!(padded(0.5, 0.3).contains("nothing stood out"));
    let save = |step| Event::Checkpoint {
        step,
        path: String::new(),
        blocked_milliseconds: 100.0,
        save_milliseconds: 1.0,
        bytes: 1,
    };
    let every = Settings { resume_every: Some(5), ..settings() };
    check(&one(save(5)), &every, &["50.0 % of the time", "resume_every` from 5 to 20"]);
    // It did not cause those at the ends of epochs.
    let closing = [step(5, 100.0, 1.0, 1.0), epoch(5, 1.0, 1.0), save(5)];
    check(&closing, &every, &["50.0 % of the time", "-> `train.checkpoint.keep` to `final-only`"]);
    check(
        &one(machine(0.95, 950, 0.0)),
        &settings(),
        &["950 B of 1.0 kB of memory in use (95.0 %)", "batch_size` from 64 to 32"],
    );
    // Steps of a batch in place of samples, at least those of a window, also where others of its keys are its own.
    let full = one(machine(0.95, 950, 0.0));
    let keys = SettingKeys { batch_size: "loader.tokens", ..SettingKeys::default() };
    let tokens = Settings { batch_size: 1000, least_batch: 400, keys, ..settings() };
    let smaller = "`loader.tokens` from 1000 to 500 with `train.accumulate` doubled, or end";
    check(&full, &tokens, &[smaller]);
    let least = Settings { least_batch: 501, ..tokens.clone() };
    check(&full, &least, &["the model to a smaller one"]);
    let keys = SettingKeys { epochs: "finetune.epochs", ..keys };
    check(&full, &Settings { keys, ..tokens }, &["`loader.tokens` from 1000 to 500, or end"]);
    let faults = one(machine(0.95, 1, 250.0));
    let smaller = ["serve 250 page faults a second", "batch_size` from 64 to 32", "`run.cache`"];
    check(&faults, &settings(), &smaller);
    // Pages of a mapped set are read by their order, whatever a batch takes.
    let mapped = Settings { blocks: Some([512, 65_536]), ..settings() };
    let expected = [
        "serve 250 page faults a second",
        "-> `loader.shuffle.blocks` to `{ block = 512, window = 65536 }`",
        "about 0.8 % are then of a sample's own block",
    ];
    check(&faults, &mapped, &expected);
    assert!(!lines(&faults, &mapped)[0].contains("batch_size"));
    check(&one(machine(0.4, 1, 0.0)), &settings(), &["busy 40.0 %", "from 64 to 128"]);
    let divided = Settings { divided: true, ..settings() };
    check(&one(machine(0.4, 1, 0.0)), &divided, &["busy 40.0 %", "-> no setting: batches were"]);
    // Of a set that one batch holds, larger batches hold no more, and smaller ones begin at its samples.
    let of = |samples| Settings { samples: Some(samples), ..settings() };
    let whole = ["busy 40.0 %", "-> no setting: a batch holds the whole training set"];
    check(&one(machine(0.4, 1, 0.0)), &of(64), &whole);
    check(&one(machine(0.4, 1, 0.0)), &of(65), &["batch_size` from 64 to 128"]);
    for (samples, smaller) in [(65, 32), (64, 32), (63, 32), (41, 21), (40, 20), (2, 1)] {
        let smaller = format!("batch_size` from 64 to {smaller} with `train.accumulate` doubled");
        check(&full, &of(samples), &[smaller.as_str()]);
    }
    check(&full, &of(1), &["the model to a smaller one"]);
    let mut shared = machine(0.4, 1, 0.0);
    if let Event::Machine(sample) = &mut shared {
        sample.other_threads = Some(0.5);
    }
    check(&one(shared), &settings(), &["other processes took 25.0 %", "end other programs"]);
    let gpu = Event::Machine(MachineSample {
        seconds: 1.0,
        gpus: vec![GpuSample {
            utilisation: Some(0.9),
            memory_used_bytes: Some(95),
            memory_bytes: Some(100),
            ..GpuSample::default()
        }],
        ..MachineSample::default()
    });
    let on_gpu = Settings { on_gpu: true, ..settings() };
    check(&one(gpu.clone()), &on_gpu, &["95.0 % of a GPU's memory"]);
    // Of two it is not known whose memory is whose.
    let Event::Machine(mut two) = gpu else { panic!() };
    two.gpus.push(GpuSample { index: 1, ..two.gpus[0].clone() });
    check(&one(Event::Machine(two)), &on_gpu, &["nothing stood out"]);
}

#[test]
fn waiting_on_a_gpu_is_told_with_a_gain_only_where_it_did_not_compute_meanwhile() {
    // 25 steps of 10 ms on the device, which the host issues in 2 ms each, and fills each batch for in 7 ms.
    let mut events: Vec<Event> = (1..=25).map(|number| step(number, 10.0, 7.0, 1.0)).collect();
    events.push(Event::Times {
        step: 25,
        steps: 25,
        waiting: 0.175,
        upload: 0.0,
        handing: 0.0,
        filling: 0.175,
        computing: 0.05,
        reading_back: 0.025,
        other: 0.0,
    });
    let gpu = Settings { on_gpu: true, workers: 0, ..settings() };
    let told = |more: &[Event]| {
        let found = lines(&[&events[..], more].concat(), &gpu);
        let [line] = &found[..] else { panic!("{found:?}") };
        assert!(line.starts_with("70.0 % of the time of training"), "{line}");
        line.clone()
    };
    let busy = told(&[gpu_busy(1.0)]);
    assert!(busy.contains("it was busy 100.0 % of the time, so that no faster data"), "{busy}");
    let unknown = told(&[]);
    assert!(unknown.contains("how much of that the GPU computed is not known"), "{unknown}");
    for line in [busy, unknown] {
        assert!(line.ends_with(" -> ") && !line.contains('×'), "{line}");
    }
    // A thread beside the host would give more than three times as much, if the GPU had nothing to do meanwhile.
    let idle = told(&[gpu_busy(0.8)]);
    assert!(idle.contains("`loader.workers` of 1 would give about 1.25×"), "{idle}");
}

#[test]
fn unstable_training_is_told_to_be_calmer() {
    let skipped = [step(1, 1.0, 0.0, 1.0), step(2, 1.0, 0.0, f64::NAN)];
    let expected = [
        "1 of 2 steps",
        "skipped is 2",
        "learning_rate` from 0.001 to 0.0005",
        "clip` from 1 to 0.5",
    ];
    check(&skipped, &settings(), &expected);
    let off = Settings { clip: None, ..settings() };
    check(&skipped, &off, &["`train.clip` to 1.0 (it is off)"]);
    let values = Settings { clip: None, clip_value: Some(0.5), ..settings() };
    check(&skipped, &values, &["to 0.0005, `train.clip_value` from 0.5 to 0.25"]);
    let risen = [step(1, 1.0, 0.0, 1.0), epoch(1, 0.2, 1.0), epoch(2, 0.5, 1.0)];
    check(
        &risen,
        &settings(),
        &["rose from 0.200 in epoch 1 to 0.500 in epoch 2", "norm was 1.00"],
    );
    let level = [step(1, 1.0, 0.0, 1.0), epoch(1, 0.2, 1.0), epoch(2, 0.3, 1.0)];
    check(&level, &settings(), &["nothing stood out"]);
}

/// A step whose loss is finite and whose gradient is not.
fn overflown(number: u64) -> Event {
    let mut event = step(number, 1.0, 0.0, 1.0);
    if let Event::Step { gradient_norm, skipped, .. } = &mut event {
        (*gradient_norm, *skipped) = (f64::INFINITY, true);
    }
    event
}

#[test]
fn overflows_that_find_a_loss_scale_are_no_instability() {
    let scaled = |scaling| Settings { scaling, ..settings() };
    let dynamic = scaled(Scaling::Dynamic { initial: 65_536.0, interval: 2_000, floor: 1.0 });
    let run = |overflows: u64, scale: f64| {
        let mut events: Vec<Event> = (1..=100).map(|n| step(n, 1.0, 0.0, 1.0)).collect();
        for n in 101..=100 + overflows {
            events.push(overflown(n));
            let before = 2.0 * scale;
            events.push(Event::LossScale { step: n, before, scale, overflows: n - 100 });
        }
        events
    };
    check(&run(3, 8.0), &dynamic, &["nothing stood out"]);
    let expected = [
        "20 of 120 steps",
        "under its loss scale -> `train.loss_scale.dynamic.interval` from 2000 to 4000, ",
        "learning_rate` from 0.001 to 0.0005, `train.clip` from 1 to 0.5",
    ];
    check(&run(20, 8.0), &dynamic, &expected);
    let unclipped = Settings { clip: None, ..dynamic.clone() };
    check(&run(20, 8.0), &unclipped, &["from 0.001 to 0.0005, `train.clip` to 1.0 (it is off)"]);
    // Where the scale cannot fall any more, training must become calmer.
    let expected = ["a gradient overflowed, at the smallest loss scale (1) too", "to 0.0005"];
    check(&run(20, 1.0), &dynamic, &expected);
    let high = scaled(Scaling::Dynamic { initial: 65_536.0, interval: 2_000, floor: 8.0 });
    check(&run(20, 8.0), &high, &["`train.loss_scale.dynamic.floor` from 8 to 1, `train"]);
    // A scale that never falls has itself to blame.
    let events = [step(1, 1.0, 0.0, 1.0), overflown(2)];
    let fixed = scaled(Scaling::Static(65_536.0));
    let expected = "which never falls -> `train.loss_scale.static` from 65536 to 4096, or";
    check(&events, &fixed, &[expected]);
    check(&events, &settings(), &["a loss or gradient was not finite", "to 0.0005"]);
}

#[test]
fn a_loss_scale_that_began_too_high_is_told_where_to_begin() {
    let initial = 2f64.powi(32);
    let from = |floor| Settings {
        scaling: Scaling::Dynamic { initial, interval: 2_000, floor },
        ..settings()
    };
    let run = |overflows: &[u64], floor: f64| {
        let started = Event::RunStarted {
            run: "pretrain-0123456789ab".to_owned(),
            device: "cpu".to_owned(),
            resumed_at_step: None,
        };
        let (mut events, mut scale, mut falls) = (vec![started], initial, 0);
        for n in 1..=150 {
            if !overflows.contains(&n) {
                events.push(step(n, 1.0, 0.0, 1.0));
                continue;
            }
            let before = scale;
            scale = f64::max(scale / 2.0, floor);
            falls += 1;
            if scale < before {
                events.push(Event::LossScale { step: n, before, scale, overflows: falls });
            }
            events.push(overflown(n));
        }
        events
    };
    let first: Vec<u64> = (1..=16).collect();
    let expected = [
        "16 of 150 steps",
        "before the first step that was taken",
        "down -> `train.loss_scale.dynamic.initial` from 4294967296 to 65536",
    ];
    // A smallest scale that was reached and held is no smallest scale that overflows.
    for floor in [1.0, 65_536.0] {
        check(&run(&first, floor), &from(floor), &expected);
        let line = lines(&run(&first, floor), &from(floor)).join(" ");
        assert!(line.ends_with(" to 65536"), "{line}");
    }
    check(&run(&first, 131_072.0), &from(131_072.0), &["at the smallest loss scale (131072) too"]);
    // One after steps were taken is what a scale that rises is for; many of them are another matter.
    let later = [&first[..], &[100]].concat();
    let expected = ["17 of 150", ", 16 of them before the first step", "from 4294967296 to 65536"];
    check(&run(&later, 1.0), &from(1.0), &expected);
    let line = lines(&run(&later, 1.0), &from(1.0)).join(" ");
    assert!(!line.contains("train.clip") && !line.contains("interval"), "{line}");
    let many: Vec<u64> = first.iter().copied().chain((40..140).step_by(5)).collect();
    check(&run(&many, 1e-30), &from(1e-30), &["36 of 150", "interval` from 2000 to 4000"]);
}

#[test]
fn epochs_that_were_too_many_or_too_few_are_told() {
    let run = |losses: &[f64]| {
        let mut events = vec![step(1, 1.0, 0.0, 1.0)];
        events.extend(losses.iter().zip(1..).map(|(loss, number)| epoch(number, 0.1, *loss)));
        events
    };
    let early = run(&[1.0, 0.5, 0.6, 0.6, 0.6]);
    check(&early, &settings(), &["best (0.500) after epoch 2 of 5; 3 epochs", "from 8 to 4"]);
    let falling = run(&[1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]);
    check(&falling, &settings(), &["fell by 25.0 %", "`train.epochs` from 8 to 16"]);
    // A loss whose falls are all smaller than what counts.
    let small = run(&[0.0012, 0.0010, 0.0008, 0.0006, 0.0004, 0.0002]);
    let ended = [
        "ended after epoch 6 of 8 while",
        "fell, by 83.3 % since epoch 1",
        "`train.early_stopping.min_delta` from 0.001 to 0",
    ];
    let stopped = Settings { stopped_early: true, ..settings() };
    check(&small, &stopped, &ended);
    // `train.max_steps` may have ended it.
    check(&small, &settings(), &["nothing stood out"]);
    // Every third epoch was validated, and the last.
    let seldom = [3, 6, 8].map(|number| epoch(number, 0.1, 1.0 / number as f64));
    let seldom = [vec![step(1, 1.0, 0.0, 1.0)], seldom.to_vec()].concat();
    check(&seldom, &settings(), &["still fell by 25.0 % since epoch 6", "from 8 to 16"]);
    // Stopped before its last epoch, or level at the end: neither.
    check(&run(&[1.0, 0.9]), &stopped, &["nothing stood out"]);
    let level = run(&[1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.399]);
    check(&level, &settings(), &["nothing stood out"]);
}

#[test]
fn findings_of_several_trainings_are_told_once_with_their_number() {
    let training = |name: &str, events: &[Event]| {
        let mut usage = Usage::default();
        events.iter().for_each(|event| usage.record(event));
        let keys =
            SettingKeys { rate: "finetune.learning_rate", clips: false, ..Default::default() };
        Training { name: name.to_owned(), usage, settings: Settings { keys, ..settings() } }
    };
    let times = |steps, waiting| Event::Times {
        step: steps,
        steps,
        waiting,
        upload: 0.0,
        handing: 0.0,
        filling: 2.0 * waiting,
        computing: 3.0,
        reading_back: 0.0,
        other: 0.0,
    };
    let waits = [1, 2, 3, 4].map(|at| step(at, 846.0, 154.0, 1.0));
    let waited = [&waits[..], &[times(3, 1.0), times(6, 1.0)]].concat();
    let timed = [training("a", &[times(4, 0.0)]), training("b", &waited)];
    let went = timings_of_trainings(&timed);
    let went: Vec<String> = went.iter().map(|(name, text)| format!("{name} {text}")).collect();
    // 13 steps: 9 s of computing, and 2 s of waiting.
    assert_eq!(went[..3], ["steps 13", "step, mean 846 ms", "waiting for data 18.2 %"]);
    assert!(went[7].starts_with("limited by data: steps would be 1.22 times"), "{went:?}");
    assert!(timings_of_trainings(&[training("a", &[])]).is_empty());
    // Their own logs say nothing of a GPU, and that of the run does.
    let on_gpu = |run: &Usage| {
        timed.clone().map(|mut one| {
            one.settings.on_gpu = true;
            one.usage.on_the_gpu_of(run);
            one
        })
    };
    let limited = |run: &Usage| timings_of_trainings(&on_gpu(run))[7].1.clone();
    let advised = |run: &Usage| advice_on_trainings(&on_gpu(run))[0].finding.clone();
    assert!(limited(&Usage::default()).starts_with("data or the device (18.2 %"));
    assert!(advised(&Usage::default()).contains("is not known"));
    let mut run = Usage::default();
    run.record(&Event::StageStarted { stage: "train".to_owned() });
    run.record(&gpu_busy(0.99));
    assert!(limited(&run).starts_with("the device (18.2 %"), "{}", limited(&run));
    assert!(advised(&run).contains("the GPU computed meanwhile"), "{}", advised(&run));
    run.record(&gpu_busy(0.0));
    run.record(&gpu_busy(0.0));
    let idle = advised(&run);
    assert!(!idle.contains("is not known") && !idle.contains("computed meanwhile"), "{idle}");
    let told = |trainings: &[Training]| -> Vec<String> {
        let lines = advice_on_trainings(trainings).into_iter();
        lines.map(|advice| format!("{} -> {}", advice.finding, advice.setting)).collect()
    };
    let quiet = || [step(1, 100.0, 1.0, 1.0)];
    let broken = || [step(1, 100.0, 1.0, 1.0), step(2, 100.0, 1.0, f64::NAN)];
    assert!(told(&[training("a", &quiet()), training("b", &[])]).is_empty());
    let [line] = &told(&[training("a", &broken())])[..] else { panic!() };
    assert!(line.starts_with("training `a`: 1 of 2 steps were skipped"), "{line}");
    assert!(line.ends_with("-> `finetune.learning_rate` from 0.001 to 0.0005"), "{line}");
    let several = ["a", "b", "c"].map(|name| match name {
        "a" => training(name, &quiet()),
        _ => training(name, &broken()),
    });
    let [line] = &told(&several)[..] else { panic!() };
    assert!(line.starts_with("2 of 3 trainings, the first is `b`: 1 of 2 steps"), "{line}");
    // Epochs for nothing count from half of the trainings on.
    let falling = |fall: f64| {
        let epoch = |epoch, loss: f64| Event::Epoch {
            epoch,
            step: epoch,
            train_loss: 1.0,
            validation_loss: Some(loss),
            best: true,
            seconds: 1.0,
        };
        [step(1, 100.0, 1.0, 1.0), epoch(7, 1.0), epoch(8, 1.0 - fall)]
    };
    let of = |falling_ones: usize| {
        let all = (0..4).map(|at| {
            let fall = if at < falling_ones { 0.1 } else { 0.0 };
            training(&at.to_string(), &falling(fall))
        });
        told(&all.collect::<Vec<_>>())
    };
    assert!(of(1).is_empty(), "{:?}", of(1));
    let [line] = &of(2)[..] else { panic!() };
    assert!(line.starts_with("2 of 4 trainings, the first is `0`: the validation loss"), "{line}");
}
