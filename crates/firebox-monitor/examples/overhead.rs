//! What watching costs: steps of a given length that do nothing but sleep, with the sampler and
//! every tracker on. `cargo run --release --example overhead -- STEP_MILLISECONDS SECONDS`
//!
//! Prints the time that the training loop spends on events, and the processor time of all threads
//! together, both as shares of the step, and what each thread takes to begin and from then on. Needs
//! Linux, which tells the processor time of threads.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "an example may")]

use std::time::{Duration, Instant};

use firebox_core::{Event, Listener};
use firebox_monitor::{
    MlflowConfig, MonitorConfig, ProfileConfig, Profiler, PrometheusConfig, TensorBoardConfig,
    TrackedRun, Trackers, WatchGpus, sampled,
};

/// Processor time of every thread of this process, seconds.
fn processor_seconds() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("this needs Linux");
    let nanoseconds = |text: String| text.split(' ').next().unwrap().parse::<f64>().unwrap();
    let all = tasks.flatten().filter_map(|task| {
        std::fs::read_to_string(task.path().join("schedstat")).ok().map(nanoseconds)
    });
    all.sum::<f64>() / 1e9
}

/// Microseconds of processor time of each thread that watches, by its name.
fn threads() -> Vec<(String, f64)> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("this needs Linux");
    let all = tasks.flatten().filter_map(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let time = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let nanoseconds: f64 = time.split(' ').next()?.parse().ok()?;
        Some((name.trim_end().to_owned(), nanoseconds / 1e3))
    });
    let names = ["monitor", "TensorBoard", "MLflow", "Prometheus"];
    all.filter(|(name, _)| names.contains(&name.as_str())).collect()
}

/// Nanoseconds that a span costs.
fn span_nanoseconds() -> f64 {
    const SPANS: u32 = 1_000_000;
    let start = Instant::now();
    for number in 0..SPANS {
        tracing::info_span!(target: "firebox", "forward", number)
            .in_scope(|| std::hint::black_box(number));
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(SPANS)
}

fn main() {
    println!("a span without a profile: {:.1} ns", span_nanoseconds());
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<f64>().unwrap());
    let step_milliseconds = arguments.next().unwrap_or(70.0);
    let seconds = arguments.next().unwrap_or(20.0);
    let folder = std::env::temp_dir().join(format!("overhead-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let config = MonitorConfig {
        tensorboard: Some(TensorBoardConfig::default()),
        mlflow: Some(MlflowConfig {
            to: folder.join("mlruns").display().to_string(),
            ..MlflowConfig::default()
        }),
        prometheus: Some(PrometheusConfig { port: 29_184 }),
        ..MonitorConfig::default()
    };
    let settings = serde_json::json!({ "train": { "epochs": 3 } });
    let run = TrackedRun { name: "overhead".to_owned(), folder: folder.clone(), settings };
    let trackers = Trackers::start(&config, &run);
    let (begin, processor, mut on_the_loop, mut steps) =
        (Instant::now(), processor_seconds(), Duration::ZERO, 0u64);
    let mut marks = vec![];
    sampled(config.period, 1, WatchGpus::No, &trackers, || {
        while begin.elapsed().as_secs_f64() < seconds {
            std::thread::sleep(Duration::from_secs_f64(step_milliseconds / 1e3));
            steps += 1;
            let event = Event::Step {
                step: steps,
                epoch: 1,
                loss: 1.0 / steps as f64,
                learning_rate: 1e-3,
                gradient_norm: 0.5,
                samples: 64,
                milliseconds: step_milliseconds,
                data_milliseconds: 0.1,
                skipped: false,
            };
            let start = Instant::now();
            trackers.on(&event);
            on_the_loop += start.elapsed();
            if marks.is_empty() && begin.elapsed().as_secs_f64() > 0.5 {
                marks.push((begin.elapsed(), threads()));
            }
        }
        marks.push((begin.elapsed(), threads()));
    });
    let processor = processor_seconds() - processor;
    let said = trackers.close();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(said.is_empty(), "{said:?}");
    let share = |seconds: f64| 100.0 * seconds / (steps as f64 * step_milliseconds / 1e3);
    let profiler = Profiler::start(ProfileConfig { warmup: 0, active: u64::MAX }, None).unwrap();
    println!("a span beside the profiled steps: {:.1} ns", span_nanoseconds());
    drop(profiler);
    if let [(from, begun), (to, ended)] = &marks[..] {
        let seconds = (*to - *from).as_secs_f64();
        for ((name, begun), (_, ended)) in begun.iter().zip(ended) {
            let rate = (ended - begun) / seconds;
            println!("{name}: {begun:.0} µs to begin, then {rate:.0} µs a second");
        }
    }
    println!("{steps} steps of {step_milliseconds} ms, sampler and three trackers on");
    println!(
        "on the training loop: {:.1} µs a step, {:.4} % of it",
        on_the_loop.as_secs_f64() * 1e6 / steps as f64,
        share(on_the_loop.as_secs_f64())
    );
    println!(
        "processor time of all threads: {:.1} µs a step, {:.4} % of one thread",
        processor * 1e6 / steps as f64,
        share(processor)
    );
}
