//! The best values that 30 studies find, beside Optuna's, and the time that a proposal takes.
//!
//! `cargo run --release -p firebox-search --example beside_optuna`; what Optuna found is recorded by
//! `beside_optuna.py`, which prints its times.

#[path = "../tests/problems/mod.rs"]
mod problems;

use std::error::Error;
use std::time::Instant;

use firebox_search::{Direction, Sampler, SamplerContext, TpeConfig, TpeSampler};
use problems::{optuna, problems, quartiles, random_trial, rank_sum, search};

const SEEDS: u64 = 30;

fn main() -> Result<(), Box<dyn Error>> {
    println!("| problem | trials | Firebox | Optuna | rank sum | a trial |");
    println!("|---|---|---|---|---|---|");
    let recorded = optuna()?;
    for problem in problems()? {
        let start = Instant::now();
        let found: Result<Vec<_>, _> = (0..SEEDS).map(|seed| search(&problem, seed)).collect();
        let found = found?;
        let trial = start.elapsed().as_secs_f64() * 1e6 / (SEEDS * problem.trials) as f64;
        let row = |name: &str, own: Vec<f64>| {
            let [low, middle, high] = quartiles(&own);
            let [from, half, to] = quartiles(&recorded[name]);
            println!(
                "| {name} | {} | {middle:.4} ({low:.4} to {high:.4}) | {half:.4} ({from:.4} to \
                 {to:.4}) | {:+.2} | {trial:.0} µs |",
                problem.trials,
                rank_sum(&own, &recorded[name]),
            );
        };
        row(problem.name, found.iter().map(|found| found.best).collect());
        if problem.name == "training" {
            row("steps", found.iter().map(|found| found.steps).collect());
        }
    }
    println!("\n| proposal after | Firebox |\n|---|---|");
    for (count, repeats) in [(100, 50), (1000, 20), (10_000, 5)] {
        println!("| {count} trials | {:.2} ms |", proposal(count, repeats)? * 1e3);
    }
    Ok(())
}

/// Seconds for the six parameters of a trial after `count` others.
fn proposal(count: u64, repeats: u64) -> Result<f64, Box<dyn Error>> {
    let problem = problems()?.remove(1);
    let directions = [Direction::Minimize];
    let trials: Vec<_> = (0..count).map(|number| random_trial(&problem, number)).collect();
    let mut sampler = TpeSampler::new(TpeConfig::default(), 0)?;
    let start = Instant::now();
    for repeat in 0..repeats {
        let number = count + repeat;
        let context = SamplerContext { trials: &trials, directions: &directions, number };
        std::hint::black_box(sampler.sample(&context, &problem.space));
    }
    Ok(start.elapsed().as_secs_f64() / repeats as f64)
}
