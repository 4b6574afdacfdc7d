//! A worker of a study: start it as often as there are cores, and on as many machines as share the
//! journal. Kill it when you like: what it had in hand is tried again by another.
//!
//! ```text
//! cargo run --release --example shared_study -- study.log branin 200
//! cargo run --release --example shared_study -- redis://localhost:6379/0 branin 200
//! ```
//!
//! A fourth number gives the milliseconds that each of the eight steps of a trial takes. The tests
//! that kill workers start this program.

use std::error::Error;
use std::f64::consts::PI;
use std::sync::Arc;
use std::time::Duration;

use firebox_search::{Budget, Direction, Options, RandomSampler, Storage, Study, TrialHandle};

const STEPS: u64 = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, name, trials, rest @ ..] = arguments.as_slice() else {
        return Err("say where the journal is, the name of the study, and how many trials".into());
    };
    let pause = rest.first().map_or(Ok(20), |text| text.parse())?;
    let storage = Arc::new(Storage::open(address)?);
    let mut options = Options::new(RandomSampler::new(0));
    // Workers that are killed all the time: be quick to notice, and slow to give up.
    options.heartbeat = Duration::from_millis(300);
    options.retries = 1000;
    let study = Study::join(&storage, name, &[Direction::Minimize], options)?;
    let budget = Budget { trials: Some(trials.parse()?), ..Budget::default() };
    study.optimize(&budget, |trial| run(trial, Duration::from_millis(pause)))?;
    let best = study.best_trials()?;
    if let Some((number, Some(values))) = best.first().map(|best| (best.number, &best.values)) {
        println!("trial {number} has the best value, {values:?}");
    }
    Ok(())
}

/// Branin's function, approached step by step.
fn run(trial: &mut TrialHandle<'_>, pause: Duration) -> Result<Vec<f64>, Box<dyn Error>> {
    let x = trial.suggest_float("x", -5.0, 10.0)?;
    let y = trial.suggest_float("y", 0.0, 15.0)?;
    trial.set_attribute("begun as", trial.origin().into())?;
    let a = y - 5.1 / (4.0 * PI * PI) * x * x + 5.0 / PI * x - 6.0;
    let value = a * a + 10.0 * (1.0 - 1.0 / (8.0 * PI)) * x.cos() + 10.0;
    for step in 0..STEPS {
        std::thread::sleep(pause);
        trial.report(step, value + (STEPS - 1 - step) as f64)?;
    }
    Ok(vec![value])
}
