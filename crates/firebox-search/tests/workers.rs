//! Workers that are killed, and a server that goes away: nothing is lost, and nothing counted twice.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod peer;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use firebox_search::{Budget, Direction, Storage, Study, StudyError, TrialHandle};
use peer::{Redis, assert_each_ended_once, open, options, worker};

/// Eight workers on one study; one is killed every so often and another takes its place, until all
/// trials are done. `FIREBOX_TEST_KILL_SECONDS` makes it go on for longer than a test should.
#[test]
fn eight_workers_that_are_killed_at_random() {
    let seconds =
        std::env::var("FIREBOX_TEST_KILL_SECONDS").ok().and_then(|text| text.parse().ok());
    let seconds: u64 = seconds.unwrap_or(10);
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("study.log").display().to_string();
    drop(Study::create(&open(&address), "branin", &[Direction::Minimize], options()).unwrap());
    let wanted = 20 * seconds;
    let start = || -> Child {
        let mut command = Command::new(worker());
        command.args([&address, "branin", &wanted.to_string(), "30"]).stdout(Stdio::null());
        command.spawn().unwrap()
    };
    let mut workers: Vec<Child> = (0..8).map(|_| start()).collect();
    let (begin, mut kills, mut draws) =
        (Instant::now(), 0, firebox_core::Stream::new(1, "kill").draws());
    while workers.iter_mut().any(|worker| worker.try_wait().unwrap().is_none()) {
        assert!(begin.elapsed() < Duration::from_secs(4 * seconds + 60), "the workers never end");
        std::thread::sleep(Duration::from_millis((draws.uniform() * 400.0) as u64));
        if begin.elapsed() > Duration::from_secs(2 * seconds) {
            continue;
        }
        let victim = &mut workers[(draws.uniform() * 8.0) as usize];
        match victim.try_wait().unwrap() {
            // A worker that comes to its end by itself has nothing left to do.
            Some(status) => assert!(status.success(), "{status}"),
            None => {
                victim.kill().unwrap();
                victim.wait().unwrap();
                kills += 1;
                *victim = start();
            }
        }
    }
    for mut worker in workers {
        assert!(worker.wait().unwrap().success());
    }
    let study = Study::load(&open(&address), "branin", options()).unwrap();
    let retries = assert_each_ended_once(&study.trials().unwrap(), wanted);
    println!("{wanted} trials, {kills} kills, {retries} retries, {:?}", begin.elapsed());
    assert!(kills > 5, "too few kills to show anything: {kills}");
    if peer::optuna().is_some() {
        peer::assert_read_the_same(&address);
    }
}

fn quick(trial: &mut TrialHandle<'_>) -> Result<Vec<f64>, StudyError> {
    let (x, y) = (trial.suggest_float("x", -5.0, 10.0)?, trial.suggest_float("y", 0.0, 15.0)?);
    for step in 0..8 {
        trial.report(step, x + y)?;
    }
    Ok(vec![peer::branin(&trial.trial().unwrap())])
}

#[test]
fn a_server_that_comes_back_is_waited_for() {
    let Some(mut redis) = Redis::start() else { return };
    let address = redis.address();
    let study =
        Study::create(&open(&address), "branin", &[Direction::Minimize], options()).unwrap();
    let budget = Budget { trials: Some(400), ..Budget::default() };
    std::thread::scope(|scope| {
        let work: Vec<_> = (0..2).map(|_| scope.spawn(|| study.optimize(&budget, quick))).collect();
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(300));
            redis.kill();
            std::thread::sleep(Duration::from_millis(200));
            redis.again();
        }
        assert!(work.into_iter().all(|worker| worker.join().unwrap().is_ok()));
    });
    let trials = Study::load(&open(&address), "branin", options()).unwrap().trials().unwrap();
    assert_eq!(assert_each_ended_once(&trials, 400), 0);
}

#[test]
fn a_server_that_stays_away_is_an_error_and_nothing_is_lost() {
    let Some(mut redis) = Redis::start() else { return };
    let address = redis.address();
    let storage = Storage::redis(&address, Duration::from_secs(1)).unwrap();
    let mut options = options();
    options.heartbeat = Duration::from_millis(300);
    let study = Study::create(&storage.into(), "branin", &[Direction::Minimize], options).unwrap();
    let budget = Budget { trials: Some(20), ..Budget::default() };
    let stopped = study.optimize(&budget, |trial| {
        if trial.number() == 5 {
            redis.kill();
        }
        quick(trial)
    });
    let text = stopped.unwrap_err().to_string();
    let expected = format!("the Redis server {address} cannot be used");
    assert!(text.contains(&expected) && text.contains("start the worker again"), "{text}");
    drop(study);
    redis.again();
    let again = Study::load(&open(&address), "branin", peer::options()).unwrap();
    assert_eq!(again.trials().unwrap().len(), 6);
    again.optimize(&budget, quick).unwrap();
    assert_eq!(assert_each_ended_once(&again.trials().unwrap(), 20), 1);
}
