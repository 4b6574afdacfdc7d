//! `firebox doctor`: what this machine's devices can do, measured with the models of the zoo. It lists
//! them, times each model in each precision, trains each beside f32 from the same seed, and says
//! what to set and why.
//!
//! Steps are those of `bench`, taken through the training loop on noise: no file of the user is read,
//! and no accuracy on real data is claimed.

mod accuracy;
mod augmenting;
mod cases;
mod checklist;
mod doubling;
mod feeding;
mod found;
mod hardware;
mod learn;
mod stopping;
mod text;
mod timing;

use std::time::{Duration, Instant};

use firebox_core::Precision;
use firebox_train::TrainError;
use serde::Serialize;

use crate::batch_size;
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::load_average::{self, available_threads};
use crate::precision::{Abilities, DeviceClass, Support, device_class};

pub use cases::DoctorCase;
pub use checklist::{Mark, Tick};
pub use feeding::Feeding;
pub use found::Found;
pub use hardware::Hardware;
pub use learn::Learning;
pub use timing::Timed;

/// What is examined.
#[derive(Clone, Copy, Debug, Default)]
pub struct DoctorConfig {
    /// Ends within 3 minutes on two processor cores, unless bert-base is asked for: fewer steps, no bert-base, and no small
    /// models of texts.
    pub quick: bool,
    /// This model alone.
    pub only: Option<DoctorCase>,
}

/// The result.
#[derive(Clone, Debug, Serialize)]
pub struct Examination {
    /// `firebox` with its version.
    pub engine: String,
    /// Every device that was looked for.
    pub devices: Vec<Found>,
    /// The one that was examined, in one line.
    pub device: String,
    /// Its kernels.
    pub kernels: String,
    /// Threads that compute on a processor.
    pub threads: usize,
    /// What it can compute in.
    pub abilities: Abilities,
    /// What else it has.
    pub hardware: Hardware,
    /// Its class, with the settings that it suggests.
    pub class: DeviceClass,
    /// Times of each model in each precision.
    pub timed: Vec<Timed>,
    /// Which models were left out for their length, and which for want of memory.
    pub left_out: Option<String>,
    /// Losses of each model in each precision beside those in f32.
    pub learnt: Vec<Learning>,
    /// Steps that are fed by several numbers of threads, in the precision to set.
    pub feeding: Vec<Feeding>,
    /// R1's checklist.
    pub checklist: Vec<Tick>,
    /// The precision to set, for all models together.
    pub precision: Precision,
    /// Why.
    pub reason: String,
    /// What would help.
    pub advice: Vec<String>,
    /// What to merge into a pipeline's tables, with the same as arguments in its first line.
    pub block: String,
    /// Wall-clock time of the examination.
    pub seconds: f64,
}

impl Examination {
    /// Ticks that the result is kept in a file.
    pub fn kept_as(&mut self, file: &str) {
        for tick in self.checklist.iter_mut().filter(|tick| tick.line == checklist::KEPT) {
            (tick.mark, tick.found) = (Mark::Yes, format!("in {file}"));
        }
    }

    /// The result for a terminal of 80 columns or more.
    pub fn text(&self) -> String {
        text::text(self)
    }
}

/// Time that is divided among what is left to measure.
struct Allowance {
    end: Instant,
    left: u32,
}

impl Allowance {
    /// Time for the next measurement.
    fn next(&mut self) -> Duration {
        self.of(1)
    }

    /// Time for so many measurements together.
    fn of(&mut self, count: u32) -> Duration {
        let rest = self.end.saturating_duration_since(Instant::now());
        let share = rest / self.left.max(1) * count;
        self.left = self.left.saturating_sub(count);
        share
    }
}

/// Examines a device, telling what it does meanwhile.
///
/// # Errors
/// When training fails.
pub fn doctor(
    config: DoctorConfig,
    devices: Vec<Found>,
    device: &ChosenDevice,
    tell: &dyn Fn(&str),
) -> Result<Examination, PipelineError> {
    let (started, quiet) = (Instant::now(), load_average::now());
    let abilities = Abilities::of(device)?;
    let usable = abilities.precisions.iter().filter(|(_, support)| support.is_there());
    let precisions: Vec<Precision> = usable.map(|(precision, _)| *precision).collect();
    let (models, mut left_out) = (cases::chosen(config), cases::left_out(config));
    let room = (device.backend == "cpu").then(batch_size::room).flatten();
    // Of one model alone, its error is the result.
    let is_tried = |case: &DoctorCase| config.only.is_some() || case.fits(room);
    let (models, mut without): (Vec<DoctorCase>, Vec<DoctorCase>) =
        models.into_iter().partition(is_tried);
    if let Some(said) = &left_out {
        tell(said);
    }
    let measurements = (models.len() * precisions.len()) as u32;
    let seeds = (models.len() * learn::more_seeds(config)) as u32;
    // Most of the time goes where types are emulated, and some beside the measurements.
    let seconds = if config.quick { 140 } else { 30 * 60 };
    let mut time = Allowance {
        end: started + Duration::from_secs(seconds),
        left: 2 * measurements + seeds + 6,
    };
    let (mut timed, mut learnt): (Vec<Timed>, Vec<Learning>) = (vec![], vec![]);
    let mut there: Vec<DoctorCase> = vec![];
    for case in models {
        match timing::time(case, &precisions, &abilities, config, device, &mut time, tell) {
            Err(PipelineError::Train(TrainError::OutOfMemory { .. } | TrainError::Lost { .. }))
                if !there.is_empty() =>
            {
                without.push(case);
            }
            sample => {
                timed.extend(sample?);
                there.push(case);
            }
        }
    }
    if !without.is_empty() {
        let names: Vec<_> = without.iter().map(|case| case.name()).collect();
        let said = format!("not examined for want of memory: {}", names.join(", "));
        tell(&said);
        left_out = Some(left_out.map_or(said.clone(), |other| format!("{other}; {said}")));
    }
    for case in there {
        let own: Vec<&Timed> = timed.iter().filter(|timed| timed.workload == case.name()).collect();
        learnt.extend(learn::learn(case, &own, config, device, &mut time, tell)?);
    }
    let (precision, reason) = recommend(&timed, &learnt, &abilities, &precisions);
    let class = device_class(&device.description).clone();
    let feeding = feeding::feed(precision, &timed, class.workers, device, &mut time, tell)?;
    let hardware = Hardware::of(device);
    let memory = hardware.memory_mib;
    let checks =
        checklist::Checks::measure(precision, &timed, (config, memory), device, &mut time, tell)?;
    let checklist = checks.ticks(&timed, &learnt, &feeding, precision, &abilities);
    let mut advice = advice(&checks, &devices, &abilities, precision, &class);
    let loads = quiet.map(|before| (before, load_average::now()));
    let own = rayon::current_num_threads();
    if let Some(said) =
        loads.and_then(|loads| load_average::other_work(loads, own, available_threads()))
    {
        advice.insert(0, said);
    }
    let block = block(&feeding, precision, &reason);
    Ok(Examination {
        engine: format!("firebox {}", env!("CARGO_PKG_VERSION")),
        devices,
        device: device.description.clone(),
        kernels: device.arithmetic()?,
        threads: rayon::current_num_threads(),
        abilities,
        hardware,
        class,
        timed,
        left_out,
        learnt,
        feeding,
        checklist,
        precision,
        reason,
        advice,
        block,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// Speed-up that a precision must have before it is recommended, as `run.precision = "auto"` has it.
const MARGIN: f64 = 1.05;

/// Speed-up of a precision over f32, as the geometric mean over the models that were timed in it; not over those of a
/// small size, whose products are too small to tell what others gain.
fn gain(timed: &[Timed], precision: Precision) -> f64 {
    let counts = |one: &&Timed| one.precision == precision && !one.small;
    let own = timed.iter().filter(counts).filter(|one| one.speed_up.is_finite());
    let ups: Vec<f64> = own.map(|one| one.speed_up.ln()).collect();
    (ups.iter().sum::<f64>() / ups.len().max(1) as f64).exp()
}

/// The precision whose speed-up over f32, as the geometric mean over the models, is the largest, among those
/// in which all models were timed and none ended with a higher loss than in f32.
fn recommend(
    timed: &[Timed],
    learnt: &[Learning],
    abilities: &Abilities,
    precisions: &[Precision],
) -> (Precision, String) {
    let mean = |precision: Precision| gain(timed, precision);
    let others = precisions.iter().copied().filter(|precision| *precision != Precision::F32);
    let (mut left, mut others): (Vec<String>, Vec<Precision>) = (vec![], others.collect());
    let models = |precision: Precision| timed.iter().filter(move |one| one.precision == precision);
    others.retain(|precision| {
        let apart = learnt.iter().find(|one| {
            one.precision == *precision && one.is_apart() && (one.is_enough() || one.last.is_nan())
        });
        let why = match apart {
            Some(one) => format!("{precision} is left out: {} ends higher in it", one.workload),
            None if models(*precision).count() < models(Precision::F32).count() => {
                format!("{precision} is left out: not all models train in it")
            }
            None => return true,
        };
        left.push(why);
        false
    });
    let left: String = left.iter().map(|why| format!("; {why}")).collect();
    let best = others.into_iter().max_by(|a, b| mean(*a).total_cmp(&mean(*b)));
    let Some(best) = best else {
        let said =
            if left.is_empty() { "this device computes in nothing else" } else { "it is safe" };
        return (Precision::F32, format!("{said}{left}"));
    };
    let gain = mean(best);
    let slower: Vec<&str> = timed
        .iter()
        .filter(|timed| timed.precision == best && timed.speed_up < 1.0 && !timed.small)
        .map(|timed| timed.workload.as_str())
        .collect();
    let but = match slower.as_slice() {
        [] => String::new(),
        names => format!("; slower than f32 in {}", names.join(", ")),
    };
    if gain >= MARGIN {
        let how = abilities.support(best).how();
        (best, format!("{how}; {gain:.2}× f32 in the mean over the models{but}{left}"))
    } else {
        let said =
            format!("the best other type, {best}, reaches {gain:.2}× f32 in the mean{but}{left}");
        (Precision::F32, said)
    }
}

/// What would help, as far as measurements say so.
fn advice(
    checks: &checklist::Checks,
    devices: &[Found],
    abilities: &Abilities,
    precision: Precision,
    class: &DeviceClass,
) -> Vec<String> {
    let mut said = vec![];
    if let (Some(doubling), Some(main)) = (&checks.doubling, &checks.main) {
        said.push(doubling.advice(main));
    }
    let (threads, there) = (rayon::current_num_threads(), available_threads());
    if abilities.processor && threads < there {
        said.push(format!("more threads: {threads} compute and the process may use {there}; unset RAYON_NUM_THREADS"));
    }
    if abilities.processor && !devices.iter().any(|found| found.there && found.name != "cpu") {
        let built = devices.iter().any(|found| found.description.contains("not compiled in"));
        said.push(if built {
            "a GPU, if there is one: build with --features vulkan, metal, wgpu, cuda or rocm"
                .to_owned()
        } else {
            "a GPU: the backends of this build found none".to_owned()
        });
    }
    if abilities.processor && matches!(abilities.support(Precision::Bf16), Support::Emulated(_)) {
        said.push(
            "a processor with AMX, or AMD's with AVX-512-BF16: products in bf16 take f32's time here".to_owned(),
        );
    }
    if class.precision != precision {
        said.push(format!(
            "the class of this device ({}) is known for {}; measured here, {precision} is the better choice",
            class.name, class.precision
        ));
    }
    said
}

/// What to write into a pipeline: tables for one that has none, and the same for the command line.
fn block(feeding: &[Feeding], precision: Precision, reason: &str) -> String {
    let workers = feeding::workers(feeding);
    format!(
        "# or for one run: --set run.precision={precision} --set loader.workers={workers}\n\
         [run]\n# {reason}\nprecision = \"{precision}\"\n\n[loader]\nworkers = {workers}\n# batch_size = \"auto\" measures the one for a model\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Workload;

    fn timed(workload: &str, precision: Precision, speed_up: f64) -> Timed {
        Timed { workload: workload.to_owned(), precision, speed_up, ..Timed::default() }
    }

    /// Of a processor with units for bf16.
    fn asked(timed: &[Timed], learnt: &[Learning]) -> (Precision, String) {
        let abilities = Abilities {
            precisions: vec![(Precision::Bf16, Support::Native("units".to_owned()))],
            processor: true,
            inexact: None,
        };
        recommend(timed, learnt, &abilities, &[Precision::F32, Precision::Bf16])
    }

    #[test]
    fn what_is_slower_is_not_recommended() {
        let ask = |ups: [f64; 2]| {
            let timed = [timed("a", Precision::Bf16, ups[0]), timed("b", Precision::Bf16, ups[1])];
            asked(&timed, &[])
        };
        let (precision, why) = ask([1.5, 1.5]);
        assert_eq!(
            (precision, why.as_str()),
            (Precision::Bf16, "units; 1.50× f32 in the mean over the models")
        );
        let (precision, why) = ask([0.8, 1.0]);
        assert_eq!(precision, Precision::F32);
        assert!(
            why.contains("bf16, reaches 0.89× f32") && why.ends_with("slower than f32 in a"),
            "{why}"
        );
        assert!(ask([2.0, 0.9]).1.ends_with("; slower than f32 in b"));
    }

    #[test]
    fn small_models_are_compared_and_decide_no_speed() {
        let small = |precision, speed_up| Timed { small: true, ..timed("c", precision, speed_up) };
        let own = [timed("a", Precision::F32, 1.0), timed("a", Precision::Bf16, 1.5)];
        let ask = |more: &[Timed]| asked(&[&own[..], more].concat(), &[]);
        let (precision, why) = ask(&[small(Precision::F32, 1.0), small(Precision::Bf16, 0.2)]);
        assert!(precision == Precision::Bf16 && why.ends_with("mean over the models"), "{why}");
        // One that does not train in it is a reason against it, whatever its size.
        let (precision, why) = ask(&[small(Precision::F32, 1.0)]);
        assert!(precision == Precision::F32 && why.contains("not all models train in it"), "{why}");
    }

    #[test]
    fn what_ends_higher_or_does_not_train_is_not_recommended() {
        let timed = [timed("a", Precision::F32, 1.0), timed("a", Precision::Bf16, 2.0)];
        let losses: Vec<f64> = (0..100).map(|step| 2.0 - 0.01 * f64::from(step)).collect();
        let learnt = |factor: f64| {
            let own: Vec<f64> = losses.iter().map(|loss| loss * factor).collect();
            Learning::new(Workload::Mlp, Precision::Bf16, &own, std::slice::from_ref(&losses))
        };
        let ask = |timed: &[Timed], factor| asked(timed, &[learnt(factor)]);
        assert_eq!(ask(&timed, 1.0).0, Precision::Bf16);
        for factor in [1.5, f64::NAN] {
            let (precision, why) = ask(&timed, factor);
            assert_eq!(precision, Precision::F32, "{why}");
            assert!(why.contains("bf16 is left out: mlp ends higher in it"), "{why}");
        }
        let (precision, why) = ask(&timed[..1], 1.0);
        assert_eq!(precision, Precision::F32);
        assert!(why.contains("not all models train in it"), "{why}");
    }

    #[test]
    fn the_block_can_be_pasted() {
        let text = block(&[], Precision::Bf16, "why");
        let set = "--set run.precision=bf16 --set loader.workers=";
        assert!(text.lines().next().is_some_and(|line| line.contains(set)), "{text}");
        let read: toml::Table = text.parse().unwrap();
        assert_eq!(read["run"]["precision"].as_str(), Some("bf16"));
        // Each model has its own.
        assert!(read["loader"].get("batch_size").is_none() && text.contains("batch_size"));
        let workers = read["loader"]["workers"].as_integer();
        assert_eq!(workers, i64::try_from(firebox_loader::default_workers()).ok());
    }
}
