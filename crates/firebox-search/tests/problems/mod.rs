//! Known functions and recorded training curves to search, the same as in `examples/beside_optuna.py`.

use std::collections::BTreeMap;
use std::f64::consts::PI;

use firebox_search::{
    Direction, Distribution, MedianPruner, Pruner, RandomSampler, Sampler, SamplerContext,
    TpeConfig, TpeError, TpeSampler, Trial, TrialState,
};

/// Values of the parameters by name.
type Values = BTreeMap<String, f64>;
/// The values reported step by step; the last is the trial's.
type Objective = Box<dyn Fn(&Values) -> Vec<f64>>;

/// What one study found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) best: f64,
    /// Steps of all trials, of problems that have them.
    pub(crate) steps: f64,
}

/// A function to minimise.
pub(crate) struct Problem {
    pub(crate) name: &'static str,
    /// Trials of a study.
    pub(crate) trials: u64,
    pub(crate) space: BTreeMap<String, Distribution>,
    objective: Objective,
}

/// Branin, Hartmann-6, Rosenbrock in three dimensions, and the recorded curves.
pub(crate) fn problems() -> Result<Vec<Problem>, serde_json::Error> {
    let float = |low, high| Distribution::Float { low, high, log: false, step: None };
    let int = |high| Distribution::Int { low: 0, high, log: false, step: 1 };
    let numbered = |count, distribution: Distribution| {
        (0..count).map(|i| (format!("x{i}"), distribution.clone())).collect()
    };
    let table: Vec<Vec<Vec<Vec<f64>>>> =
        serde_json::from_str(include_str!("../golden/curves.json"))?;
    let [rates, widths, dropouts] = [table.len(), table[0].len(), table[0][0].len()];
    let at = |values: &Values, name: &str| values[name] as usize;
    Ok(vec![
        Problem {
            name: "branin",
            trials: 60,
            space: [("x".to_owned(), float(-5.0, 10.0)), ("y".to_owned(), float(0.0, 15.0))].into(),
            objective: Box::new(|values| vec![branin(values["x"], values["y"])]),
        },
        Problem {
            name: "hartmann",
            trials: 100,
            space: numbered(6, float(0.0, 1.0)),
            objective: Box::new(|values| vec![hartmann(values)]),
        },
        Problem {
            name: "rosenbrock",
            trials: 100,
            space: numbered(3, float(-2.0, 2.0)),
            objective: Box::new(|values| vec![rosenbrock(values)]),
        },
        Problem {
            name: "training",
            trials: 40,
            space: [("rate", rates), ("width", widths), ("dropout", dropouts)]
                .map(|(name, count)| (name.to_owned(), int(count as i64 - 1)))
                .into(),
            objective: Box::new(move |values| {
                table[at(values, "rate")][at(values, "width")][at(values, "dropout")].clone()
            }),
        },
    ])
}

fn branin(x: f64, y: f64) -> f64 {
    let bent = y - 5.1 * x * x / (4.0 * PI * PI) + 5.0 * x / PI - 6.0;
    bent * bent + 10.0 * (1.0 - 1.0 / (8.0 * PI)) * x.cos() + 10.0
}

fn hartmann(values: &Values) -> f64 {
    const A: [[f64; 6]; 4] = [
        [10.0, 3.0, 17.0, 3.5, 1.7, 8.0],
        [0.05, 10.0, 17.0, 0.1, 8.0, 14.0],
        [3.0, 3.5, 1.7, 10.0, 17.0, 8.0],
        [17.0, 8.0, 0.05, 10.0, 0.1, 14.0],
    ];
    const P: [[f64; 6]; 4] = [
        [1312.0, 1696.0, 5569.0, 124.0, 8283.0, 5886.0],
        [2329.0, 4135.0, 8307.0, 3736.0, 1004.0, 9991.0],
        [2348.0, 1451.0, 3522.0, 2883.0, 3047.0, 6650.0],
        [4047.0, 8828.0, 8732.0, 5743.0, 1091.0, 381.0],
    ];
    let term = |(weight, (a, p)): (f64, (&[f64; 6], &[f64; 6]))| {
        let parts = values.values().zip(a.iter().zip(p));
        weight * (-parts.map(|(x, (a, p))| a * (x - p / 10_000.0).powi(2)).sum::<f64>()).exp()
    };
    -[1.0, 1.2, 3.0, 3.2].into_iter().zip(A.iter().zip(&P)).map(term).sum::<f64>()
}

fn rosenbrock(values: &Values) -> f64 {
    let x: Vec<_> = values.values().collect();
    x.windows(2).map(|x| 100.0 * (x[1] - x[0] * x[0]).powi(2) + (1.0 - x[0]).powi(2)).sum()
}

/// A complete trial with parameters at random.
#[allow(dead_code, reason = "only the example times proposals")]
pub(crate) fn random_trial(problem: &Problem, number: u64) -> Trial {
    let context = SamplerContext { trials: &[], directions: &[Direction::Minimize], number };
    let values = RandomSampler::new(0).sample(&context, &problem.space);
    let value = (problem.objective)(&values).pop();
    let mut trial = running(problem, number, values);
    trial.state = TrialState::Complete;
    trial.values = value.map(|value| vec![value]);
    trial
}

fn running(problem: &Problem, number: u64, values: Values) -> Trial {
    let parameters =
        values.into_iter().map(|(name, v)| (name.clone(), (problem.space[&name].clone(), v)));
    Trial {
        parameters: parameters.collect(),
        started: Some(number as f64),
        ended: Some(number as f64 + 0.5),
        ..Trial::new(number, TrialState::Running)
    }
}

/// One study with Optuna's default settings.
pub(crate) fn search(problem: &Problem, seed: u64) -> Result<Found, TpeError> {
    let mut sampler = TpeSampler::new(TpeConfig::default(), seed)?;
    let pruner = MedianPruner::default();
    let directions = [Direction::Minimize];
    let mut trials: Vec<Trial> = Vec::new();
    for number in 0..problem.trials {
        let context = SamplerContext { trials: &trials, directions: &directions, number };
        let values = sampler.sample(&context, &problem.space);
        let reports = (problem.objective)(&values);
        let mut trial = running(problem, number, values);
        // A function without steps reports nothing.
        for (step, value) in (0..).zip(&reports).take_while(|_| reports.len() > 1) {
            trial.intermediate.insert(step, *value);
            if pruner.prune(&trials, &trial, Direction::Minimize) {
                trial.state = TrialState::Pruned;
                break;
            }
        }
        if trial.state == TrialState::Running {
            trial.state = TrialState::Complete;
            trial.values = reports.last().map(|value| vec![*value]);
        }
        trials.push(trial);
    }
    let best = trials.iter().filter_map(|trial| trial.values.as_ref()).map(|values| values[0]);
    Ok(Found {
        best: best.fold(f64::INFINITY, f64::min),
        steps: trials.iter().map(|trial| trial.intermediate.len() as f64).sum(),
    })
}

/// What Optuna found with 30 seeds, by problem; `steps` are those of the curves.
pub(crate) fn optuna() -> Result<BTreeMap<String, Vec<f64>>, serde_json::Error> {
    serde_json::from_str(include_str!("../golden/beside_optuna.json"))
}

/// Wilcoxon's rank sum of `a` beside `b` in standard deviations from what equal distributions would
/// give, ties counted: 0 is equal, below 0 is less.
pub(crate) fn rank_sum(a: &[f64], b: &[f64]) -> f64 {
    let compare = |x: &f64, y: &f64| x.partial_cmp(y).map_or(0.0, |order| f64::from(order as i8));
    let statistic: f64 = a.iter().flat_map(|x| b.iter().map(move |y| compare(x, y))).sum();
    let all: Vec<f64> = a.iter().chain(b).copied().collect();
    // The variance under the exchange of all values, from the scores of each against all.
    let scores = all.iter().map(|x| all.iter().map(|y| compare(x, y)).sum::<f64>());
    let square: f64 = scores.map(|score| score * score).sum();
    let (m, n) = (a.len() as f64, b.len() as f64);
    let variance = m * n * square / ((m + n) * (m + n - 1.0));
    if variance > 0.0 { statistic / variance.sqrt() } else { 0.0 }
}

/// The quantiles 0.25, 0.5 and 0.75, interpolated linearly.
pub(crate) fn quartiles(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    [0.25, 0.5, 0.75].map(|share| {
        let place = share * (sorted.len() - 1) as f64;
        let (before, part) = (place as usize, place.fract());
        sorted[before] + part * (sorted[(before + 1).min(sorted.len() - 1)] - sorted[before])
    })
}
