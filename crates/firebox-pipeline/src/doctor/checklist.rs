//! The checklist of reference system R1's guide, each line ticked by what was measured, or marked as
//! one that cannot be measured here, with what measures it.

use std::time::Instant;

use firebox_core::Precision;
use firebox_kernels::CpuKernels;
use serde::Serialize;

use super::accuracy::accuracy;
use super::augmenting::Augmenting;
use super::doubling::Doubling;
use super::feeding::workers;
use super::stopping::early_stopping;
use super::{Allowance, DoctorCase, DoctorConfig, Feeding, Learning, MARGIN, Timed, gain};
use crate::bench::{BenchConfig, Workload};
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::precision::{Abilities, Support};

/// The line that only the program can tick.
pub(super) const KEPT: &str = "results are kept";

/// Steps of a model in Burn's own operations that are not timed, at most. A choice.
const COMPOSED_WARMUP: u64 = 16;

/// How a line of the checklist stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// As it should be.
    Yes,
    /// Not so.
    No,
    /// Nothing to tick on this device, or not by this program, or too little was measured to say.
    NotHere,
}

/// A line of the checklist.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tick {
    /// What R1's guide asks for.
    pub line: &'static str,
    /// How it stands.
    pub mark: Mark,
    /// What was found.
    pub found: String,
}

/// What is measured for the checklist alone.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// The model that the list is checked with.
    pub(super) main: Option<String>,
    /// The main model at half its batch and at its batch.
    pub(super) doubling: Option<Doubling>,
    /// Making a version of a window and reading one.
    augmenting: Option<Augmenting>,
    /// Part of the threads' time in which they computed, 0 to 1.
    busy: Option<f64>,
    /// Milliseconds of the forward pass of the main model, without gradients.
    forward: f64,
    /// Epochs after which a run without an improvement ended, and what it should have been.
    stopped: Option<(u64, u64)>,
    /// Memory of the machine or the device, MiB.
    memory: Option<f64>,
    /// What training is compared with.
    baseline: Option<Baseline>,
}

/// Steps of a model in Burn's own operations in f32, as somebody has them who switches nothing on.
#[derive(Clone, Debug)]
struct Baseline {
    workload: String,
    /// Median time of a step, milliseconds.
    milliseconds: f64,
}

impl Checks {
    pub(super) fn measure(
        precision: Precision,
        timed: &[Timed],
        (config, memory): (DoctorConfig, Option<f64>),
        device: &ChosenDevice,
        time: &mut Allowance,
        tell: &dyn Fn(&str),
    ) -> Result<Self, PipelineError> {
        tell("checking R1's list");
        let (stopped, augmenting) = (Some(early_stopping(device)?), Some(Augmenting::measure()?));
        let case = config.only.unwrap_or(Workload::LstmMae.into());
        let of_main =
            |timed: &&Timed| timed.workload == case.name() && timed.precision == precision;
        let Some(main) = timed.iter().find(of_main) else {
            return Ok(Self { stopped, augmenting, memory, ..Self::default() });
        };
        // Making model and noise is the same for few steps and for more, and so falls out.
        let half = Some((main.batch / 2).max(1));
        let few = BenchConfig { batch: half, ..case.steps(precision, 1, 0) };
        let (_, little) = working(|| case.measure(&few, device))?;
        let sizes = (main.batch, main.median_ms, main.warmup);
        let (doubling, much) = Doubling::measure(case, precision, sizes, device, time)?;
        let threads = rayon::current_num_threads() as f64;
        let busy = little
            .zip(much)
            // A first one that was held up says nothing.
            .filter(|(little, much)| much.1 > little.1 && much.0 > little.0)
            .map(|(little, much)| (much.0 - little.0) / ((much.1 - little.1) * threads));
        let settings = BenchConfig { evaluate: true, ..case.steps(precision, 2, 1) };
        let forward = median(case.measure(&settings, device)?.times);
        // The quickest of those with a layer that Burn composes step by step.
        let plain: DoctorCase = config.only.unwrap_or(Workload::LstmForecast.into());
        // After about as many steps as what it is set beside: a GPU tunes its kernels in the first ones. They take long, so
        // that there are few of them.
        let beside = |one: &&Timed| one.workload == plain.name() && one.precision == precision;
        let warmup = timed.iter().find(beside).map_or(1, |one| one.warmup.min(COMPOSED_WARMUP));
        let few = plain.steps(Precision::F32, 2, warmup);
        let milliseconds = median(plain.measure_composed(&few, device)?.times);
        let baseline = Baseline { workload: plain.name().to_owned(), milliseconds };
        Ok(Self {
            main: Some(main.workload.clone()),
            doubling: Some(doubling),
            augmenting,
            busy: busy.filter(|share| device.backend == "cpu" && share.is_finite()),
            forward,
            stopped,
            memory,
            baseline: Some(baseline),
        })
    }

    /// Every line of the list.
    pub(super) fn ticks(
        &self,
        timed: &[Timed],
        learnt: &[Learning],
        feeding: &[Feeding],
        precision: Precision,
        abilities: &Abilities,
    ) -> Vec<Tick> {
        let tick = |line, good, found: String| Tick {
            line,
            mark: if good { Mark::Yes } else { Mark::No },
            found,
        };
        let not_here =
            |line, found: &str| Tick { line, mark: Mark::NotHere, found: found.to_owned() };
        let of_size = |one: &&Timed| one.precision == precision && !one.small;
        let chosen: Vec<&Timed> = timed.iter().filter(of_size).collect();
        let waits = chosen.iter().map(|one| (waited(one, feeding), one.workload.as_str()));
        let (wait, which) = waits.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((0.0, "none"));
        let mut ticks = vec![
            switched_on(precision, timed, abilities),
            enough(feeding),
            kernels(abilities),
            match abilities.support(Precision::Tf32) {
                Support::Native(how) | Support::Emulated(how) => match precision {
                    Precision::F32 | Precision::Tf32 => {
                        let found = format!("{how}; run.precision = \"tf32\" switches it on");
                        tick("TF32 is on", precision == Precision::Tf32, found)
                    }
                    other => not_here("TF32 is on", &format!("products are in {other}")),
                },
                Support::Missing(why) => not_here("TF32 is on", why),
            },
            self.beforehand(),
        ];
        ticks.push(match self.busy {
            Some(busy) => tick(
                "the device is busy more than 85 %",
                busy > 0.85,
                format!(
                    "{:.0} % of the threads' time in steps of {}",
                    100.0 * busy.min(1.0),
                    self.name()
                ),
            ),
            None => not_here("the device is busy more than 85 %", "`firebox watch RUN` shows it"),
        });
        ticks.push(self.used(&chosen));
        ticks.push(tick(
            "data loading takes less than 5 %",
            wait < 0.05,
            format!(
                "{:.1} % of a step at most ({which}), on noise in memory; a run's report has its own",
                100.0 * wait
            ),
        ));
        let line = "early stopping ends a run";
        ticks.push(match self.stopped {
            Some((stopped, wanted)) => tick(
                line,
                stopped == wanted,
                format!(
                    "a run that could not improve ended after {stopped} epochs; {wanted} are right"
                ),
            ),
            None => not_here(line, "not tried"),
        });
        ticks.push(self.speed_up(&chosen));
        ticks.push(accuracy(learnt, precision));
        // Of the steps that were taken just before the forward pass was.
        ticks.push(match &self.doubling {
            // A part cannot take longer than the whole: something else did.
            Some(main) if self.forward >= main.whole_ms => not_here(
                "the profile shows where time goes",
                "other work held the steps up; `firebox run FILE --profile` has the details",
            ),
            Some(main) => tick(
                "the profile shows where time goes",
                true,
                format!(
                    "{}: forward {:.1} of {:.1} ms, the rest gradients and update; `firebox run FILE --profile` has the details",
                    self.name(), self.forward, main.whole_ms
                ),
            ),
            None => not_here("the profile shows where time goes", "`firebox run FILE --profile`"),
        });
        ticks.push(not_here(KEPT, "with --json FILE"));
        ticks
    }

    /// The main model's name.
    fn name(&self) -> &str {
        self.main.as_deref().unwrap_or_default()
    }

    /// Whether it pays to keep versions of windows.
    fn beforehand(&self) -> Tick {
        let line = "augmented data is made beforehand";
        let Some(Augmenting { made, read }) = self.augmenting else {
            return Tick { line, mark: Mark::NotHere, found: "not tried".to_owned() };
        };
        let said = format!(
            "a version of a window takes a thread {made:.2} µs to make and {read:.2} µs to read from the cache"
        );
        let (mark, found) = match read < made {
            true => {
                (Mark::Yes, format!("{said}; augment.mode = \"cached\", the default, keeps it"))
            }
            false => {
                (Mark::No, format!("{said}; augment.mode = \"online\" draws it anew in each epoch"))
            }
        };
        Tick { line, mark, found }
    }

    /// Beside Burn's own operations in f32.
    fn speed_up(&self, chosen: &[&Timed]) -> Tick {
        let line = "training takes less time than the baseline";
        let least = chosen.iter().min_by(|a, b| a.speed_up.total_cmp(&b.speed_up));
        let of_baseline = self.baseline.as_ref().and_then(|baseline| {
            let own = chosen.iter().find(|one| one.workload == baseline.workload)?;
            Some((baseline, own.median_ms))
        });
        let Some(((Baseline { workload, milliseconds }, own), least)) = of_baseline.zip(least)
        else {
            let found = "no baseline was timed".to_owned();
            return Tick { line, mark: Mark::NotHere, found };
        };
        let good = own < *milliseconds && least.speed_up >= 0.95;
        let found = format!(
            "{workload} {own:.1} ms a step, {milliseconds:.1} in Burn's own operations in f32 ({:.1}×); the least over f32 {:.2}× ({}), small models aside",
            milliseconds / own,
            least.speed_up,
            least.workload
        );
        Tick { line, mark: if good { Mark::Yes } else { Mark::No }, found }
    }

    fn used(&self, chosen: &[&Timed]) -> Tick {
        let line = "80 to 95 % of the memory are used";
        let largest = chosen.iter().filter_map(|one| Some((one.peak_mib?, one)));
        let largest = largest.max_by(|a, b| a.0.total_cmp(&b.0));
        let Some(((peak, timed), total)) = largest.zip(self.memory) else {
            let found = "this device reports no memory".to_owned();
            return Tick { line, mark: Mark::NotHere, found };
        };
        let share = peak / total;
        let found = format!(
            "{peak:.0} of {total:.0} MiB ({:.0} %) in {} at a batch of {}",
            100.0 * share,
            timed.workload,
            timed.batch
        );
        let mark = if (0.8..=0.95).contains(&share) { Mark::Yes } else { Mark::No };
        // A larger batch that trains no faster is nothing to wish for.
        let idle = self.doubling.is_some_and(|doubling| doubling.is_idle());
        match (mark, idle) {
            (Mark::No, true) => Tick {
                line,
                mark: Mark::NotHere,
                found: format!("{found}; more would gain nothing"),
            },
            _ => Tick { line, mark, found },
        }
    }
}

/// Part of a model's steps that waits for data. Of the one that was fed by several numbers of threads it is what the
/// line on these says, measured longer and with the number to set: one quantity has one value on the list.
fn waited(timed: &Timed, feeding: &[Feeding]) -> f64 {
    let chosen = workers(feeding);
    let mut fed = feeding.iter().filter(|one| one.workload == timed.workload);
    fed.find(|one| one.workers == chosen).map_or(timed.wait, |one| one.wait)
}

/// Whether threads keep up with the model that waits for them the most.
fn enough(feeding: &[Feeding]) -> Tick {
    let line = "loader workers are enough";
    let chosen = workers(feeding);
    let Some(own) = feeding.iter().find(|one| one.workers == chosen) else {
        return Tick {
            line,
            mark: Mark::NotHere,
            found: "no time was left to try; leave out --quick".to_owned(),
        };
    };
    let mark = if own.wait < 0.05 { Mark::Yes } else { Mark::No };
    let times = feeding.iter().map(|one| format!("{} {:.2} ms", one.workers, one.median_ms));
    let found = format!(
        "{chosen}: with so many a step of {} waits {:.1} % of its time; threads and steps: {}",
        own.workload,
        100.0 * own.wait,
        times.collect::<Vec<_>>().join(", ")
    );
    Tick { line, mark, found }
}

/// Whether the fastest precision is the recommended one.
fn switched_on(precision: Precision, timed: &[Timed], abilities: &Abilities) -> Tick {
    let others = abilities.precisions.iter().map(|(other, _)| *other);
    let others = others.filter(|other| {
        *other != Precision::F32 && timed.iter().any(|one| one.precision == *other)
    });
    let gains = others.map(|other| (other, gain(timed, other)));
    let best = gains.max_by(|a, b| a.1.total_cmp(&b.1));
    let (mark, found) = match best {
        None => (Mark::NotHere, "no model was timed in another type than f32".to_owned()),
        Some(_) if precision != Precision::F32 => {
            let (how, gain) = (abilities.support(precision).how(), gain(timed, precision));
            let mark = if gain >= MARGIN { Mark::Yes } else { Mark::No };
            (mark, format!("{precision}: {how}; {gain:.2}× f32 in the mean"))
        }
        Some((other, gain)) if gain >= MARGIN => (
            Mark::No,
            format!("{other} would be {gain:.2}× f32, and is not to be trusted here: see below"),
        ),
        Some((other, gain)) => (
            Mark::Yes,
            format!("nothing to switch on: the best other type, {other}, reaches {gain:.2}× f32"),
        ),
    };
    Tick { line: "mixed precision is on, where it helps", mark, found }
}

fn kernels(abilities: &Abilities) -> Tick {
    let line = "the fastest kernels are chosen";
    if !abilities.processor {
        let found = "timed at first use and kept in cubecl's cache: products by Burn, tiles of recurrent layers by Firebox".to_owned();
        return Tick { line, mark: Mark::NotHere, found };
    }
    let best = CpuKernels::available().into_iter().last();
    let (mark, found) = match (CpuKernels::current().ok(), best) {
        (Some(current), Some(best)) if current == best => {
            (Mark::Yes, format!("{current:?}, the fastest that this processor runs"))
        }
        (Some(current), Some(best)) => {
            (Mark::No, format!("{current:?}; unset FIREBOX_KERNELS for {best:?}"))
        }
        _ => (Mark::No, "none".to_owned()),
    };
    Tick { line, mark, found }
}

pub(super) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Seconds that all threads computed, and those that passed.
pub(super) type Working = (f64, f64);

/// Does work, and returns with its result how long threads worked, if that is known.
pub(super) fn working<T>(
    work: impl FnOnce() -> Result<T, PipelineError>,
) -> Result<(T, Option<Working>), PipelineError> {
    let (before, begun) = (processor_seconds(), Instant::now());
    let done = work()?;
    let passed = begun.elapsed().as_secs_f64();
    Ok((done, before.zip(processor_seconds()).map(|(before, after)| (after - before, passed))))
}

/// Seconds that all threads of this process have computed; Linux alone says it.
fn processor_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in brackets may hold spaces; user and system time are the 12th and 13th field after it.
    let rest = text.rsplit_once(')')?.1;
    let mut fields = rest.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    // Linux reports hundredths of a second to programs whatever its own clock.
    Some((user + system) / 100.0)
}

#[cfg(test)]
mod tests {
    use firebox_loader::default_workers;

    use super::*;

    #[test]
    fn processors_count_from_zero() {
        assert!(processor_seconds().is_none_or(|seconds| seconds >= 0.0));
    }

    #[test]
    fn keeping_versions_is_ticked_where_reading_is_faster_than_making() {
        let of = |made, read| {
            let augmenting = Some(Augmenting { made, read });
            Checks { augmenting, ..Checks::default() }.beforehand()
        };
        let tick = of(21.3, 0.4);
        assert_eq!(tick.mark, Mark::Yes);
        assert!(tick.found.contains("21.30 µs to make and 0.40 µs to read"), "{}", tick.found);
        assert_eq!(of(1.0, 2.0).mark, Mark::No);
        assert_eq!(Checks::default().beforehand().mark, Mark::NotHere);
    }

    #[test]
    fn lines_are_ticked_by_their_numbers() {
        let timed = |wait, speed_up| Timed {
            workload: "lstm-mae".to_owned(),
            precision: Precision::Bf16,
            wait,
            speed_up,
            median_ms: 10.0,
            peak_mib: Some(100.0),
            ..Timed::default()
        };
        let abilities = Abilities {
            precisions: vec![(Precision::Bf16, Support::Native("units".to_owned()))],
            processor: true,
            inexact: None,
        };
        let checks =
            Checks { busy: Some(0.9), stopped: Some((3, 3)), memory: Some(1000.0), ..slow(90.0) };
        let of = |ticks: &[Tick], part: &str| {
            ticks.iter().find(|tick| tick.line.contains(part)).unwrap().mark
        };
        let marks = |timed: Timed| {
            let feeding = [Feeding {
                workload: "mlp".to_owned(),
                workers: default_workers(),
                median_ms: 2.0,
                wait: timed.wait,
            }];
            let ticks = checks.ticks(&[timed], &[], &feeding, Precision::Bf16, &abilities);
            ["workers", "data loading", "baseline", "mixed", "memory", "early"]
                .map(|part| of(&ticks, part))
        };
        let (yes, no) = (Mark::Yes, Mark::No);
        assert_eq!(marks(timed(0.01, 1.4)), [yes, yes, yes, yes, no, yes]);
        assert_eq!(marks(timed(0.2, 0.7))[..4], [no; 4]);
        // What was measured longer is said in both lines.
        let fed = |workload: &str| {
            let workload = workload.to_owned();
            let feeding =
                [Feeding { workload, workers: default_workers(), median_ms: 2.0, wait: 0.021 }];
            let timed = [timed(0.085, 1.0)];
            let ticks = checks.ticks(&timed, &[], &feeding, Precision::Bf16, &abilities);
            ticks.into_iter().find(|tick| tick.line.contains("data loading")).unwrap()
        };
        let (same, other) = (fed("lstm-mae"), fed("mlp"));
        // A small model's steps decide nothing.
        let small = Timed { workload: "gru".to_owned(), small: true, ..timed(0.9, 0.5) };
        let ticks = checks.ticks(&[timed(0.01, 1.4), small], &[], &[], Precision::Bf16, &abilities);
        assert!(["data loading", "baseline", "mixed"].iter().all(|part| of(&ticks, part) == yes));
        assert!(same.found.starts_with("2.1 % of a step") && same.mark == yes, "{}", same.found);
        assert!(other.found.starts_with("8.5 % of a step") && other.mark == no, "{}", other.found);
        // Nothing else was timed, or tried.
        let nothing = Checks::default().ticks(&[], &[], &[], Precision::F32, &abilities);
        for part in ["mixed", "workers", "baseline", "early", "memory", "profile"] {
            assert_eq!(of(&nothing, part), Mark::NotHere, "{part}");
        }
    }

    /// A baseline of lstm-mae.
    fn slow(milliseconds: f64) -> Checks {
        let baseline = Baseline { workload: "lstm-mae".to_owned(), milliseconds };
        Checks { baseline: Some(baseline), ..Checks::default() }
    }

    #[test]
    fn a_faster_type_that_is_not_taken_and_a_slower_step_than_burns_are_told() {
        let timed = |precision, speed_up| Timed {
            workload: "lstm-mae".to_owned(),
            precision,
            speed_up,
            median_ms: 10.0,
            ..Timed::default()
        };
        let support = |precision| (precision, Support::Native("units".to_owned()));
        let abilities = Abilities {
            precisions: [Precision::F32, Precision::Bf16].map(support).to_vec(),
            processor: true,
            inexact: None,
        };
        let marks = |gain, baseline| {
            let all = [timed(Precision::F32, 1.0), timed(Precision::Bf16, gain)];
            let ticks = slow(baseline).ticks(&all, &[], &[], Precision::F32, &abilities);
            ["mixed", "baseline"]
                .map(|part| ticks.iter().find(|tick| tick.line.contains(part)).unwrap().mark)
        };
        assert_eq!(marks(0.9, 90.0), [Mark::Yes, Mark::Yes]);
        assert_eq!(marks(1.4, 9.0), [Mark::No, Mark::No]);
    }
}
