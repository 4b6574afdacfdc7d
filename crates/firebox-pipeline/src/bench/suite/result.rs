//! What the suite measured, as `performance.json` keeps it, and how it is compared with another time.

use serde::{Deserialize, Serialize};

use super::cases::{Axis, SuitePart};
use crate::bench::{BenchResult, Ceilings, median};

/// Everything that the suite measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Performance {
    /// When it began, UTC.
    pub created: String,
    /// Version of Firebox.
    pub version: String,
    /// The device, in a line.
    pub device: String,
    /// What was typed.
    pub command: String,
    /// Wall-clock time of all of it.
    pub seconds: f64,
    /// Rounds that were taken.
    pub rounds: u64,
    /// What the device does at most.
    pub ceilings: Ceilings,
    /// The peers that ran beside it, each with its name and version.
    pub peers: Vec<String>,
    /// Programs that were run to check the build, where some were named.
    #[serde(default)]
    pub checks: Vec<Check>,
    /// What there was no time for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Minutes of a round in which nothing is left out, where something was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_round_minutes: Option<f64>,
    /// What was timed.
    pub cases: Vec<Measurement>,
}

/// A program that was run to check the build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Its name.
    pub name: String,
    /// Whether it ended well.
    pub passed: bool,
    /// Wall-clock time.
    pub seconds: f64,
    /// The end of what it said.
    pub said: String,
}

/// A case in all rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// Its part.
    pub part: SuitePart,
    /// Its name within its part.
    pub name: String,
    /// What to type to time it again.
    pub command: String,
    /// The curve that it is a point of, and where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<(Axis, usize)>,
    /// What a step cannot go below, milliseconds.
    pub floor_ms: f64,
    /// Each round.
    pub rounds: Vec<BenchResult>,
    /// Why it could not be timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The peer in each of its forms, with its rounds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<Peer>,
}

/// A form of the peer in all rounds of a case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Peer {
    /// `installed`, or `tuned`.
    pub form: String,
    /// What to type to time it again, where the script is.
    #[serde(default)]
    pub command: String,
    /// Each round.
    pub rounds: Vec<BenchResult>,
    /// Why it could not be timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A figure with its spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Spread {
    /// Median and range of some figures.
    pub(super) fn of(figures: impl Iterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.filter(|figure| figure.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        Some(Self { value: median(&sorted), low, high })
    }
}

/// Times of a step in all rounds: the median of the rounds' medians, with their range; of one round
/// alone, one standard deviation of its steps.
pub(super) fn step(rounds: &[BenchResult]) -> Option<Spread> {
    if let [only] = rounds {
        let BenchResult { step_ms: value, sd_ms, min_ms, max_ms, .. } = *only;
        // The peer's script tells the range of its steps alone.
        let known = sd_ms > 0.0;
        return Some(Spread {
            value,
            low: if known { (value - sd_ms).max(min_ms) } else { min_ms },
            high: if known { (value + sd_ms).min(max_ms) } else { max_ms },
        });
    }
    Spread::of(rounds.iter().map(|round| round.step_ms))
}

impl Measurement {
    /// Whether it was timed on a GPU.
    pub(super) fn is_on_gpu(&self) -> bool {
        self.rounds.iter().any(|round| !round.device.starts_with("cpu"))
    }

    /// Times of a step.
    pub(super) fn step(&self) -> Option<Spread> {
        step(&self.rounds)
    }

    /// Median over the rounds of another figure.
    pub(super) fn median(&self, of: impl Fn(&BenchResult) -> Option<f64>) -> Option<f64> {
        Some(Spread::of(self.rounds.iter().filter_map(of))?.value)
    }

    /// Our time over the peer's, round by round.
    pub(super) fn over(&self, form: &str) -> Option<Spread> {
        let peer = self.peers.iter().find(|peer| peer.form == form)?;
        let pairs = self.rounds.iter().zip(&peer.rounds);
        Spread::of(pairs.map(|(own, theirs)| own.step_ms / theirs.step_ms))
    }
}

/// Share by which a median may rise before that is more than noise, wherever the rounds lie.
const TOLERANCE: f64 = 0.05;

/// Rounds of both sides from which on they tell what became slower. Of as many from one distribution, every one of the
/// second lies above every one of the first once in 20 times; of two in 6, and of one every other time.
const ENOUGH: usize = 3;

/// A case that has become slower.
#[derive(Clone, Debug, PartialEq)]
pub struct Regression {
    /// The case.
    pub name: String,
    /// Milliseconds of a step then.
    pub before_ms: f64,
    /// And now.
    pub now_ms: f64,
}

/// A case that seems to have become slower, in too few rounds to tell it from noise.
#[derive(Clone, Debug, PartialEq)]
pub struct Undecided {
    /// The case.
    pub name: String,
    /// Milliseconds of a step then.
    pub before_ms: f64,
    /// And now.
    pub now_ms: f64,
    /// Rounds then, and now.
    pub rounds: [usize; 2],
}

/// A case that could be timed once and cannot any more.
#[derive(Clone, Debug, PartialEq)]
pub struct Untimed {
    /// The case.
    pub name: String,
    /// Milliseconds of a step then.
    pub before_ms: f64,
    /// Why there are none now.
    pub reason: String,
}

impl Performance {
    /// The cases that failed and that `before` had timed. What was left out, for want of time or by
    /// choice, is none of them.
    pub fn untimed(&self, before: &Self) -> Vec<Untimed> {
        let of = |case: &Measurement| {
            let reason = case.error.clone()?;
            let same = |other: &&Measurement| (other.part, &other.name) == (case.part, &case.name);
            let before_ms = before.cases.iter().find(same)?.step()?.value;
            Some(Untimed { name: case.name.clone(), before_ms, reason })
        };
        self.cases.iter().filter_map(of).collect()
    }

    /// The cases that have become slower than noise explains: by more than 5 %, with every one of at least three rounds
    /// above every one of at least three rounds of then.
    pub fn regressions(&self, before: &Self) -> Vec<Regression> {
        let of = |(case, other): (&Measurement, &Measurement)| {
            let (now, then) = slower(case, other)?;
            let [before_ms, now_ms] = [then.value, now.value];
            let clear = are_enough(case, other) && now.low > then.high;
            clear.then(|| Regression { name: case.name.clone(), before_ms, now_ms })
        };
        self.shared(before).filter_map(of).collect()
    }

    /// The cases that are slower by more than 5 % and of which then or now there are too few rounds to tell whether noise
    /// explains it.
    pub fn undecided(&self, before: &Self) -> Vec<Undecided> {
        let of = |(case, other): (&Measurement, &Measurement)| {
            let (now, then) = slower(case, other)?;
            let [before_ms, now_ms] = [then.value, now.value];
            let rounds = [other, case].map(|one| one.rounds.len());
            let undecided = Undecided { name: case.name.clone(), before_ms, now_ms, rounds };
            Some(undecided).filter(|_| !are_enough(case, other))
        };
        self.shared(before).filter_map(of).collect()
    }

    /// What `--minutes` needs for rounds that are enough to tell what became slower, by the time of those that were taken.
    pub fn minutes_for_enough(&self) -> f64 {
        (1.2 * ENOUGH as f64 * self.seconds / self.rounds.max(1) as f64 / 60.0).ceil()
    }
}

/// Times of a case now and then, if its median rose by more than may be noise.
fn slower(now: &Measurement, then: &Measurement) -> Option<(Spread, Spread)> {
    let (now, then) = (now.step()?, then.step()?);
    (now.value > then.value * (1.0 + TOLERANCE)).then_some((now, then))
}

/// Whether both have rounds enough to tell what became slower.
fn are_enough(now: &Measurement, then: &Measurement) -> bool {
    [now, then].iter().all(|case| case.rounds.len() >= ENOUGH)
}

impl Performance {
    /// Whether it was measured on a GPU.
    pub(super) fn is_on_gpu(&self) -> bool {
        self.cases.iter().any(Measurement::is_on_gpu)
    }

    /// Whether there is a time of this case.
    pub(super) fn times(&self, part: SuitePart, name: &str) -> bool {
        let same = |case: &Measurement| (case.part, &*case.name) == (part, name);
        self.cases.iter().any(|case| same(case) && !case.rounds.is_empty())
    }

    /// Cases that both timed, at the same size: a quick suite has smaller ones under some names.
    pub(super) fn shared<'a>(
        &'a self,
        before: &'a Self,
    ) -> impl Iterator<Item = (&'a Measurement, &'a Measurement)> {
        let of = |case: &Measurement| Some((case.rounds.first()?.batch, case.part));
        self.cases.iter().filter_map(move |case| {
            let same = |other: &&Measurement| {
                other.name == case.name && of(other).is_some_and(|size| Some(size) == of(case))
            };
            Some((case, before.cases.iter().find(same)?))
        })
    }
}

/// Exponent of a power law through points of size and time, by least squares of their logarithms,
/// with its standard error; `None` for fewer than three points.
pub(super) fn exponent(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let count = points.len() as f64;
    if points.len() < 3 {
        return None;
    }
    let logarithms: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let mean = |of: fn(&(f64, f64)) -> f64| logarithms.iter().map(of).sum::<f64>() / count;
    let (x_mean, y_mean) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = logarithms.iter().map(|(x, _)| (x - x_mean).powi(2)).sum();
    let both: f64 = logarithms.iter().map(|(x, y)| (x - x_mean) * (y - y_mean)).sum();
    let slope = both / spread;
    let rest = |(x, y): &(f64, f64)| (y - y_mean - slope * (x - x_mean)).powi(2);
    let residual: f64 = logarithms.iter().map(rest).sum();
    Some((slope, (residual / (count - 2.0) / spread).sqrt()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A round whose step took so long.
    pub(crate) fn round(step_ms: f64) -> BenchResult {
        BenchResult {
            engine: "firebox".to_owned(),
            workload: "lstm-mae".to_owned(),
            mode: "train".to_owned(),
            device: "cpu x2".to_owned(),
            precision: "f32".to_owned(),
            batch: 64,
            step_ms,
            min_ms: step_ms * 0.9,
            max_ms: step_ms * 1.2,
            first_ms: step_ms * 2.0,
            samples_per_s: 64e3 / step_ms,
            peak_mib: Some(100.0),
            first_loss: 1.0,
            last_loss: 0.5,
            kernels: "cpu avx2".to_owned(),
            data_ms: 0.1,
            mean_ms: Some(step_ms),
            sd_ms: 0.02 * step_ms,
            utilisation: Some(0.9),
            page_faults: None,
            parameters: 1000,
            gflop: 1.0,
            watching: None,
            parts: None,
            on_device: None,
            resident: None,
        }
    }

    pub(crate) fn measurement(part: SuitePart, name: &str, steps: &[f64]) -> Measurement {
        Measurement {
            part,
            name: name.to_owned(),
            command: format!("firebox bench --json # {name}"),
            point: None,
            floor_ms: 1.0,
            rounds: steps.iter().map(|step| round(*step)).collect(),
            error: None,
            peers: vec![],
        }
    }

    pub(crate) fn performance(cases: Vec<Measurement>) -> Performance {
        Performance {
            created: "2026-01-01 00:00 UTC".to_owned(),
            version: "0".to_owned(),
            device: "cpu".to_owned(),
            command: "firebox bench suite".to_owned(),
            seconds: 60.0,
            rounds: 3,
            ceilings: Ceilings {
                f32_flops: 5e11,
                bf16_flops: Some(1e12),
                f16_flops: None,
                memory_bytes: 6e10,
            },
            peers: vec![],
            checks: vec![],
            left_out: vec![],
            whole_round_minutes: None,
            cases,
        }
    }

    #[test]
    fn a_spread_is_the_median_and_the_range() {
        let spread = |figures: &[f64]| Spread::of(figures.iter().copied());
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some(Spread { value: 2.0, low: 1.0, high: 3.0 }));
        assert_eq!(spread(&[3.0, 1.0]).map(|spread| spread.value), Some(2.0));
        assert_eq!(spread(&[f64::NAN]), None);
        let one = step(&[round(100.0)]).unwrap();
        assert_eq!((one.value, one.low, one.high), (100.0, 98.0, 102.0));
    }

    #[test]
    fn slower_is_a_regression_only_beyond_noise() {
        let of = |steps: &[f64]| performance(vec![measurement(SuitePart::Matrix, "a", steps)]);
        let before = of(&[100.0, 102.0, 104.0]);
        let names = |now: &[f64]| of(now).regressions(&before).len();
        assert_eq!(names(&[110.0, 112.0, 115.0]), 1);
        // The ranges meet; or the difference is small; or it is faster; or another case.
        assert_eq!(names(&[103.0, 112.0, 115.0]), 0);
        assert_eq!(names(&[105.0, 105.5, 106.0]), 0);
        assert_eq!(names(&[50.0, 51.0, 52.0]), 0);
        let other = performance(vec![measurement(SuitePart::Table, "a", &[900.0, 901.0, 902.0])]);
        assert_eq!(other.regressions(&before), []);
        // What a quick suite calls the same has another batch.
        let mut quick = of(&[900.0, 901.0, 902.0]);
        quick.cases[0].rounds.iter_mut().for_each(|round| round.batch = 512);
        assert_eq!((quick.regressions(&before), quick.shared(&before).count()), (vec![], 0));
        assert_eq!(of(&[1.0]).shared(&before).count(), 1);
        assert!(before.times(SuitePart::Matrix, "a") && !before.times(SuitePart::Table, "a"));
        assert!(!of(&[]).times(SuitePart::Matrix, "a"));
    }

    #[test]
    fn too_few_rounds_of_either_side_tell_no_regression() {
        let of = |steps: &[f64]| performance(vec![measurement(SuitePart::Matrix, "a", steps)]);
        let found = |now: &[f64], before: &[f64]| {
            let (now, before) = (of(now), of(before));
            let rounds: Vec<_> = now.undecided(&before).into_iter().map(|one| one.rounds).collect();
            (now.regressions(&before).len(), rounds)
        };
        let (three, slow) = ([100.0, 102.0, 104.0], [150.0, 151.0, 152.0]);
        assert_eq!(found(&slow, &three), (1, vec![]));
        assert_eq!(found(&slow[..1], &three[..1]), (0, vec![[1, 1]]));
        assert_eq!(found(&slow, &three[..2]), (0, vec![[2, 3]]));
        assert_eq!(found(&slow[..2], &three), (0, vec![[3, 2]]));
        // It is no slower, or by as much as noise.
        assert_eq!(found(&[104.0], &three), (0, vec![]));
        assert_eq!(found(&[50.0], &three[..1]), (0, vec![]));
        // Three minutes for two rounds: three take four and a half, and a fifth more is safe.
        let all = Performance { seconds: 180.0, rounds: 2, ..of(&three) };
        assert_eq!(all.minutes_for_enough(), 6.0);
    }

    #[test]
    fn what_failed_now_and_was_timed_then_is_told_with_its_reason() {
        let timed = |name: &str| measurement(SuitePart::Matrix, name, &[100.0, 102.0]);
        let failed = |name: &str, steps: &[f64]| {
            let error = Some("signal: 9".to_owned());
            Measurement { error, ..measurement(SuitePart::Matrix, name, steps) }
        };
        let left_out = |name: &str| measurement(SuitePart::Matrix, name, &[]);
        let before = performance(vec![
            timed("good"),
            timed("bad"),
            timed("late"),
            timed("left out"),
            timed("not chosen"),
            failed("never", &[]),
        ]);
        let now = performance(vec![
            timed("good"),
            failed("bad", &[]),
            // It was timed in one round and failed in the next.
            failed("late", &[101.0]),
            left_out("left out"),
            failed("never", &[]),
            failed("new", &[]),
        ]);
        let untimed = now.untimed(&before);
        let names: Vec<&str> = untimed.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["bad", "late"]);
        let expected =
            Untimed { name: "bad".to_owned(), before_ms: 101.0, reason: "signal: 9".to_owned() };
        assert_eq!(untimed[0], expected);
        assert_eq!(now.regressions(&before), []);
        // Another part has cases of the same names.
        let other = performance(vec![measurement(SuitePart::Scaling, "bad", &[1.0])]);
        assert_eq!(now.untimed(&other), []);
    }

    #[test]
    fn a_power_law_is_found_with_its_exponent() {
        let points: Vec<(f64, f64)> =
            [1.0f64, 2.0, 4.0, 8.0].iter().map(|x| (*x, 3.0 * x.powf(1.5))).collect();
        let (slope, error) = exponent(&points).unwrap();
        assert!((slope - 1.5).abs() < 1e-12 && error < 1e-9, "{slope} {error}");
        // Against numpy.polyfit(log x, log y, 1, cov=True) of the same four points.
        let (slope, error) = exponent(&[(1.0, 1.0), (2.0, 2.5), (4.0, 3.5), (8.0, 9.0)]).unwrap();
        assert!((slope - 0.999_520_2).abs() < 1e-6, "{slope}");
        assert!((error - 0.121_343_2).abs() < 1e-6, "{error}");
        assert_eq!(exponent(&points[..2]), None);
    }

    #[test]
    fn what_is_written_is_read() {
        let all = performance(vec![measurement(SuitePart::Scaling, "a", &[1.0, 2.0])]);
        let text = serde_json::to_string(&all).unwrap();
        let read: Performance = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        // A line of the peer's script lacks what is our own.
        let line = r#"{"engine": "torch", "workload": "mlp", "mode": "train", "device": "cpu x2",
            "precision": "fp32", "batch": 4, "step_ms": 1.5, "min_ms": 1.0, "max_ms": 2.0,
            "samples_per_s": 2.0, "peak_mib": 3.0, "first_loss": 1.0, "last_loss": 0.9}"#;
        assert_eq!(serde_json::from_str::<BenchResult>(line).unwrap().step_ms, 1.5);
    }
}
