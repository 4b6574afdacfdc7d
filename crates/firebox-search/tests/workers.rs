//! Workers that are killed, and a server that goes away: nothing is lost, and nothing counted twice.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod peer;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use firebox_search::{Budget, Direction, Storage, Study, StudyError, TrialHandle};
use peer::server::free_port;
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
    let program = worker();
    let start = || -> Child {
        let mut command = Command::new(&program);
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
        for round in 0..3 {
            std::thread::sleep(Duration::from_millis(100));
            let all_done = work.iter().all(|worker| worker.is_finished());
            assert!(round > 0 || !all_done, "nobody needs the server any more");
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

#[test]
fn entries_of_others_on_a_server_are_neither_taken_nor_replaced() {
    let Some(redis) = Redis::start() else { return };
    let address = redis.address();
    let mut server = redis::Client::open(address.as_str()).unwrap().get_connection().unwrap();
    let mut tell = |command: &[&str]| {
        redis::cmd(command[0]).arg(&command[1..]).query::<redis::Value>(&mut server).unwrap()
    };
    let begin = |name: &str, trials| {
        let study =
            Study::create(&open(&address), name, &[Direction::Minimize], options()).unwrap();
        study.optimize(&Budget { trials: Some(trials), ..Budget::default() }, quick).unwrap();
        study
    };
    let first = begin("first", 2);
    // Emptied, and another study that has become longer than the first was.
    tell(&["FLUSHDB"]);
    let other = begin("other", 5).trials().unwrap();
    let error = first.trials().unwrap_err().to_string();
    assert!(error.contains("was cut or replaced"), "{error}");
    assert!(first.optimize(&Budget { trials: Some(9), ..Budget::default() }, quick).is_err());
    let again = Study::load(&open(&address), "other", options()).unwrap();
    assert_eq!(again.trials().unwrap().len(), other.len());
    // Its number went, by an eviction or a hand; or is none that counts entries.
    let whole = tell(&["GET", ":log:0"]);
    for change in
        [&["DEL", ":log_number"][..], &["SET", ":log_number", "-5"], &["SET", ":log_number", "-1"]]
    {
        tell(change);
        let error = Storage::redis(&address, Duration::from_secs(1)).err().unwrap().to_string();
        assert!(error.contains("`:log_number`") && error.contains("`:log:0`"), "{error}");
        assert_eq!(tell(&["GET", ":log:0"]), whole);
    }
    // Keys of these names that hold something else.
    for key in [":log_number", ":log:0"] {
        tell(&["FLUSHDB"]);
        tell(&["HSET", key, "theirs", "1"]);
        let error = Storage::redis(&address, Duration::from_secs(1)).err().unwrap().to_string();
        assert!(error.contains("WRONGTYPE"), "{error}");
        assert_eq!(tell(&["HGET", key, "theirs"]), redis::Value::BulkString(b"1".to_vec()));
    }
}

#[test]
fn a_server_that_stores_nothing_for_a_while_is_waited_for() {
    let free = free_port().to_string();
    // It follows one that is not there; its memory is full; too few follow it.
    stores_nothing_between(&["REPLICAOF", "127.0.0.1", &free], &["REPLICAOF", "NO", "ONE"]);
    for (setting, refusing, usual) in [("maxmemory", "1", "0"), ("min-replicas-to-write", "1", "0")]
    {
        let set = ["CONFIG", "SET", setting];
        stores_nothing_between(&[&set[..], &[refusing]].concat(), &[&set[..], &[usual]].concat());
    }
}

fn stores_nothing_between(begin: &[&str], end: &[&str]) {
    let Some(redis) = Redis::start() else { return };
    let address = redis.address();
    let study =
        Study::create(&open(&address), "branin", &[Direction::Minimize], options()).unwrap();
    let mut server = redis::Client::open(address.as_str()).unwrap().get_connection().unwrap();
    let mut tell = |command: &[&str]| {
        redis::cmd(command[0]).arg(&command[1..]).exec(&mut server).unwrap();
    };
    tell(begin);
    let budget = Budget { trials: Some(5), ..Budget::default() };
    std::thread::scope(|scope| {
        let work = scope.spawn(|| study.optimize(&budget, quick));
        std::thread::sleep(Duration::from_millis(700));
        assert!(!work.is_finished());
        tell(end);
        work.join().unwrap().unwrap();
    });
    assert_eq!(assert_each_ended_once(&study.trials().unwrap(), 5), 0);
    tell(begin);
    let storage = Storage::redis(&address, Duration::from_secs(1)).unwrap();
    let refused = Study::create(&storage.into(), "more", &[Direction::Minimize], options());
    assert!(refused.err().unwrap().to_string().contains("cannot be used"));
}

/// The patience is one for all that a worker does then: its report, its trial's end, its sign of life.
#[test]
fn a_server_that_stays_away_is_waited_for_once_and_shortly_by_who_should_stop() {
    let Some(mut redis) = Redis::start() else { return };
    let address = redis.address();
    let patience = Duration::from_secs(4);
    let study = |options| {
        let storage = Storage::redis(&address, patience).unwrap();
        Study::join(&storage.into(), "branin", &[Direction::Minimize], options).unwrap()
    };
    let budget = Budget { trials: Some(20), ..Budget::default() };
    let (first, stopped) = (study(options()), options());
    let stop = std::sync::Arc::clone(&stopped.stop);
    let second = study(stopped);
    let mut away = Instant::now();
    let error = first.optimize(&budget, |trial| {
        if trial.number() == 2 {
            redis.kill();
            away = Instant::now();
        }
        quick(trial)
    });
    assert!(error.unwrap_err().to_string().contains("cannot be used"));
    assert!(first.trials().is_err());
    let waited = away.elapsed();
    assert!(waited > patience / 2 && waited < 2 * patience, "{waited:?}");
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    let begin = Instant::now();
    assert!(second.trials().is_err());
    assert!(begin.elapsed() < patience - Duration::from_millis(500), "{:?}", begin.elapsed());
    redis.again();
    assert_eq!(first.trials().unwrap().len(), 3, "it answers again");
}

#[test]
fn a_server_with_a_password_lets_in_who_has_it_and_nothing_shows_it() {
    let Some(redis) = Redis::start_with(Some("s3cret")) else { return };
    let right = redis.address_with(":s3cret@");
    let storage = open(&right);
    assert_eq!(storage.address(), redis.address(), "shown without the password");
    assert_eq!(storage.secret_address(), right);
    let study = Study::create(&storage, "branin", &[Direction::Minimize], options()).unwrap();
    study.optimize(&Budget { trials: Some(5), ..Budget::default() }, quick).unwrap();
    assert_eq!(assert_each_ended_once(&study.trials().unwrap(), 5), 0);
    for credentials in ["", ":wr0ng@", "nobody:s3cret@"] {
        let start = Instant::now();
        let address = redis.address_with(credentials);
        let found = Storage::open(&address).and_then(|storage| storage.studies());
        let text = found.unwrap_err().to_string();
        let refused = ["NOAUTH", "AuthenticationFailed"].iter().any(|why| text.contains(why));
        assert!(refused, "{credentials}: {text}");
        assert!(!text.contains("s3cret") && !text.contains("wr0ng"), "{text}");
        // It is refused at once: waiting would not help.
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }
    let trials = Study::load(&open(&right), "branin", options()).unwrap().trials().unwrap();
    assert_eq!(trials.len(), 5);
}

/// A limit on the size of files stands in for a full disk: the write fails in the same place, halfway
/// through a line.
#[cfg(unix)]
#[test]
fn a_full_disk_ends_the_worker_and_nothing_that_was_stored_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("study.log").display().to_string();
    drop(Study::create(&open(&address), "branin", &[Direction::Minimize], options()).unwrap());
    let work = |blocks: &str| {
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]).arg(worker());
        command.args([&address, "branin", "40", "1"]).stdout(Stdio::null()).output().unwrap()
    };
    // Blocks of 512 bytes, or of 1024 in some shells.
    let failed = work("20");
    assert_eq!(failed.status.code(), Some(1), "it ends with an error");
    let said = String::from_utf8_lossy(&failed.stderr);
    assert!(said.contains("study.log"), "{said}");
    let bytes = std::fs::metadata(&address).unwrap().len();
    assert!((1_000..=20 * 1024).contains(&bytes), "{bytes}");
    let before = Study::load(&open(&address), "branin", options()).unwrap().trials().unwrap();
    let complete = |trials: &[firebox_search::Trial]| {
        let values = trials.iter().filter_map(|trial| trial.values.clone());
        values.map(|values| values[0]).collect::<Vec<f64>>()
    };
    assert!(!complete(&before).is_empty(), "some trials ended before the disk was full");
    assert!(work("unlimited").status.success(), "it goes on when there is room again");
    let after = Study::load(&open(&address), "branin", options()).unwrap().trials().unwrap();
    assert_each_ended_once(&after, 40);
    assert_eq!(complete(&after)[..complete(&before).len()], complete(&before));
    if peer::optuna().is_some() {
        peer::assert_read_the_same(&address);
    }
}
