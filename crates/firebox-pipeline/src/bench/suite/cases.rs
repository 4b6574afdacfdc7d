//! Which cases the suite has, and how long each is run.

use firebox_core::Precision;
use firebox_loader::Resident;
use serde::{Deserialize, Serialize};

use super::super::config::{BenchConfig, GPU_WARMUP, Workload};
use super::super::work::operations;
use crate::bench::Ceilings;

/// Windows of R1: 11,873 and four augmented versions of each.
pub(super) const R1_WINDOWS: usize = 59_365;
/// Epochs of R1.
pub(super) const R1_EPOCHS: usize = 50;

/// A part of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SuitePart {
    /// R1's table: what mixed precision, the loader and the kernels bring, alone and together.
    Table,
    /// What sampler, log, trackers and progress cost.
    Watching,
    /// What the trainer adds to forward and backward, on processors.
    Trainer,
    /// Every workload in every precision and at two batch sizes.
    Matrix,
    /// Curves over one size each.
    Scaling,
}

impl SuitePart {
    /// Every part with its name.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Table, "table"),
        (Self::Watching, "watching"),
        (Self::Trainer, "trainer"),
        (Self::Matrix, "matrix"),
        (Self::Scaling, "scaling"),
    ];
}

impl std::str::FromStr for SuitePart {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|(_, name)| *name == text);
        known.map(|(part, _)| *part).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|(_, name)| *name).collect();
            format!("`{text}` is not a part of the suite; there is {}", names.join(", "))
        })
    }
}

/// A size that a curve is drawn over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// Samples of a batch.
    Batch,
    /// Steps of a sequence.
    Length,
    /// Units of a hidden layer.
    Hidden,
    /// Different samples that batches are drawn from.
    Samples,
    /// Threads of the processor.
    Threads,
}

impl Axis {
    /// Its name, as an axis has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch size",
            Self::Length => "sequence length",
            Self::Hidden => "hidden size",
            Self::Samples => "dataset size",
            Self::Threads => "threads",
        }
    }
}

/// One thing to time.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) part: SuitePart,
    /// Its name within its part.
    pub(super) name: String,
    pub(super) config: BenchConfig,
    /// Whether Burn's own operations run instead of the kernels.
    pub(super) composed: bool,
    pub(super) threads: Option<usize>,
    /// The curve that it is a point of, and where.
    pub(super) point: Option<(Axis, usize)>,
    /// Where the peer can run it: how important that is, 0 the most.
    pub(super) importance: Option<u8>,
    /// Seconds that one run of it is expected to take.
    pub(super) seconds: f64,
    /// Seconds that the peer is expected to take in one form.
    pub(super) peer_seconds: f64,
}

/// What decides about the cases.
pub(super) struct Choice<'a> {
    pub(super) ceilings: &'a Ceilings,
    pub(super) on_gpu: bool,
    pub(super) threads: usize,
    pub(super) quick: bool,
    pub(super) parts: &'a [SuitePart],
}

/// Share of the ceilings that a step is expected to reach, on the safe side. With Burn's own
/// operations a BiLSTM reached a fourteenth of ours (LOG.md).
const REACHED: f64 = 0.5;
const REACHED_COMPOSED: f64 = 0.07;
/// Milliseconds of a step that are not arithmetic, and seconds that a process takes to begin.
const OTHER_MS: f64 = 0.7;
const BEGIN: f64 = 0.3;

/// The same on a GPU, where kernels that are kept compiled are loaded, and others compiled: 7 s of the first step on an
/// H200 (LOG.md).
const GPU_BEGIN: f64 = 10.0;

/// Steps that are timed there at least: two of the groups in which the host reads them ([`GPU_WARMUP`]), as the steps of
/// a group share its time.
const GPU_STEPS: f64 = 64.0;
/// Steps that are timed anywhere at least: three tell a median.
const LEAST_STEPS: f64 = 3.0;
/// Seconds of timed steps that one run of a case is meant to have.
const TIMED: f64 = 0.8;
const TIMED_QUICK: f64 = 0.3;
/// The same where it is measured what watching costs: the sampler looks once a second, and trackers
/// write every other second.
const TIMED_WATCHED: f64 = 10.0;
/// Steps that are taken apart, whatever the time: the aims are of one size of batch, and shares need their errors.
const TAKEN_APART: u64 = 10;
const TAKEN_APART_QUICK: u64 = 5;
/// Seconds of making a parameter and a number of noise.
const MAKING: f64 = 2e-8;
/// What PyTorch takes of our time, on the safe side, and until it has begun, seconds.
const PEER_TIMES: f64 = 2.5;
const PEER_BEGIN: f64 = 3.0;

impl Choice<'_> {
    /// Every case, in the order in which they run.
    pub(super) fn cases(&self) -> Vec<Case> {
        let mut cases = vec![];
        cases.extend(self.table());
        cases.extend(self.watching());
        cases.extend(self.trainer());
        cases.extend(self.matrix());
        cases.extend(self.scaling());
        cases.retain(|case| self.parts.contains(&case.part));
        cases.iter_mut().for_each(|case| self.size(case));
        cases
    }

    /// Precisions that are worth timing here.
    fn precisions(&self) -> Vec<Precision> {
        match self.on_gpu {
            true => vec![Precision::F32, Precision::Bf16, Precision::F16],
            false => vec![Precision::F32, Precision::Bf16],
        }
    }

    fn table(&self) -> Vec<Case> {
        let half = if self.on_gpu { Precision::F16 } else { Precision::Bf16 };
        let row = |name: &str, precision, workers, composed| {
            let config = BenchConfig {
                precision,
                workers,
                // What the loader's threads bring is one of the rows.
                resident: Resident::Stream,
                batch: Some(if self.quick { 64 } else { 512 }),
                samples: Some(if self.quick { 4096 } else { R1_WINDOWS }),
                ..BenchConfig::new(Workload::LstmMae)
            };
            Case { composed, ..case(SuitePart::Table, name, config) }
        };
        vec![
            row("baseline", Precision::F32, 0, true),
            row("mixed precision", half, 0, true),
            row("loader", Precision::F32, 2, true),
            row("kernels", Precision::F32, 0, false),
            row("all", half, 2, false),
        ]
    }

    fn watching(&self) -> Vec<Case> {
        let of = |name, watched| {
            let config = BenchConfig {
                batch: Some(64),
                watched,
                seconds: if watched { TIMED_WATCHED } else { 0.0 },
                ..BenchConfig::new(Workload::LstmMae)
            };
            case(SuitePart::Watching, name, config)
        };
        vec![of("alone", false), of("watched", true)]
    }

    /// The batch is that of the aims.
    fn trainer(&self) -> Vec<Case> {
        if self.on_gpu {
            return vec![];
        }
        let of = |precision: Precision| {
            let config = BenchConfig {
                precision,
                batch: Some(512),
                parts: true,
                ..BenchConfig::new(Workload::LstmMae)
            };
            case(SuitePart::Trainer, &format!("parts of a step, {precision}"), config)
        };
        self.precisions().into_iter().map(of).collect()
    }

    fn matrix(&self) -> Vec<Case> {
        let mut cases = vec![];
        for (workload, name) in Workload::ALL {
            let batch = workload.default_batch();
            for precision in self.precisions() {
                let mut of = |batch: usize, evaluate: bool| {
                    let config = BenchConfig {
                        precision,
                        batch: Some(batch),
                        evaluate,
                        ..BenchConfig::new(workload)
                    };
                    let mode = if evaluate { ", inference" } else { "" };
                    let name = format!("{name}, {precision}, batch {batch}{mode}");
                    let large = batch == workload.default_batch();
                    let importance = Some(self.importance(workload, large, evaluate));
                    cases.push(Case { importance, ..case(SuitePart::Matrix, &name, config) });
                };
                of((batch / 8).max(1), false);
                if !self.quick {
                    of(batch, false);
                    of(batch, true);
                }
            }
        }
        cases
    }

    /// How important it is to have the peer beside a case, 0 the most.
    fn importance(&self, workload: Workload, large: bool, evaluate: bool) -> u8 {
        // BERT's large batch takes PyTorch on a processor most of a minute: its small one comes first.
        let slow = workload == Workload::BertBase && !self.on_gpu;
        match (workload, large, evaluate) {
            (Workload::BertBase, large, false) if slow => 3 * u8::from(large),
            (Workload::LstmMae, _, false) => 0,
            (_, true, false) => 0,
            // R1's inference stands for that of the others.
            (Workload::LstmMae, _, true) => 1,
            (_, _, true) => {
                if slow {
                    4
                } else {
                    2
                }
            }
            (_, false, false) => 5,
        }
    }

    fn scaling(&self) -> Vec<Case> {
        let mut cases = vec![];
        let mut curve = |workload: Workload, axis: Axis, sizes: &[usize]| {
            for size in sizes {
                let mut config = BenchConfig { batch: Some(64), ..BenchConfig::new(workload) };
                let mut threads = None;
                match axis {
                    Axis::Batch => config.batch = Some(*size),
                    Axis::Length => config.length = Some(*size),
                    Axis::Hidden => config.hidden = Some(*size),
                    Axis::Samples => config.samples = Some(*size),
                    Axis::Threads => threads = Some(*size),
                }
                let name = format!("{}, {} {size}", workload.name(), axis.name());
                let point = Some((axis, *size));
                cases.push(Case { threads, point, ..case(SuitePart::Scaling, &name, config) });
            }
        };
        let every = |sizes: &[usize]| -> Vec<usize> {
            let stride = if self.quick { 2 } else { 1 };
            sizes.iter().copied().step_by(stride).collect()
        };
        let both = [Workload::LstmMae, Workload::Transformer];
        for workload in both.into_iter().take(if self.quick { 1 } else { 2 }) {
            curve(workload, Axis::Batch, &every(&[8, 16, 32, 64, 128, 256]));
            curve(workload, Axis::Length, &every(&[26, 52, 105, 210, 420]));
            curve(workload, Axis::Hidden, &every(&[32, 64, 128, 256, 384]));
        }
        curve(Workload::LstmMae, Axis::Samples, &every(&[256, 1024, 4096, 16_384, R1_WINDOWS]));
        if !self.on_gpu {
            let mut threads: Vec<usize> =
                (0..8).map(|power| 1 << power).take_while(|n| *n <= self.threads).collect();
            if !threads.contains(&self.threads) {
                threads.push(self.threads);
            }
            curve(Workload::LstmMae, Axis::Threads, &threads);
        }
        cases
    }

    /// Decides how many steps a case takes, and so how long it is.
    fn size(&self, case: &mut Case) {
        let Ok(sizes) = case.config.sizes() else { return };
        let BenchConfig { workload, precision, evaluate, .. } = case.config;
        let operations = operations(workload, sizes, evaluate);
        let reached = if case.composed { REACHED_COMPOSED } else { REACHED };
        let share = case.threads.map_or(1.0, |threads| threads as f64 / self.threads as f64);
        let step = operations / (self.ceilings.flops(precision) * reached * share)
            + OTHER_MS / 1e3
            + optimizer_seconds(workload, evaluate, self.ceilings);
        let mut timed = if self.quick { TIMED_QUICK } else { TIMED };
        if case.part == SuitePart::Watching {
            // What it stands beside is no shorter than this.
            timed *= 5.0;
        }
        let steps = match case.part {
            SuitePart::Trainer if self.quick => TAKEN_APART_QUICK as f64,
            SuitePart::Trainer => TAKEN_APART as f64,
            _ => (timed / step).clamp(LEAST_STEPS, 400.0).round(),
        };
        let (steps, warmup) = match self.on_gpu && !evaluate {
            true => (steps.max(GPU_STEPS), GPU_WARMUP as f64),
            false => (steps, (steps / 5.0).ceil().clamp(1.0, 20.0)),
        };
        case.config.steps = steps as u64;
        case.config.warmup = warmup as u64;
        let noise = match workload {
            Workload::CnnLstm => 1024,
            Workload::BertBase => 1,
            _ => 4,
        };
        let made = sizes.samples * sizes.length * noise + parameters(workload);
        let all = (steps * step).max(case.config.seconds);
        let begin = if self.on_gpu { GPU_BEGIN } else { BEGIN };
        case.seconds = begin + all + warmup * step + MAKING * made as f64;
        let peer_steps = peer_steps(case.config.steps) + peer_warmup(case.config.warmup);
        case.peer_seconds = PEER_BEGIN + PEER_TIMES * peer_steps as f64 * step;
    }
}

/// Steps that a slower peer takes in about the same time; three tell a median.
pub(super) fn peer_steps(steps: u64) -> u64 {
    (steps / 3).clamp(3, 100)
}

/// Its steps before them.
pub(super) fn peer_warmup(warmup: u64) -> u64 {
    warmup.clamp(2, 20)
}

/// Parameters, where they matter for a time.
fn parameters(workload: Workload) -> usize {
    if workload == Workload::BertBase { 110_000_000 } else { 1_000_000 }
}

fn optimizer_seconds(workload: Workload, evaluate: bool, ceilings: &Ceilings) -> f64 {
    let bytes = if evaluate { 0.0 } else { 28.0 * parameters(workload) as f64 };
    2.0 * bytes / ceilings.memory_bytes
}

pub(super) fn case(part: SuitePart, name: &str, config: BenchConfig) -> Case {
    Case {
        part,
        name: name.to_owned(),
        config,
        composed: false,
        threads: None,
        point: None,
        importance: None,
        seconds: 0.0,
        peer_seconds: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{plan, whole_round};
    use super::*;

    const CEILINGS: Ceilings = Ceilings {
        f32_flops: 530e9,
        bf16_flops: Some(1060e9),
        f16_flops: Some(530e9),
        memory_bytes: 60e9,
    };

    fn cases(quick: bool, on_gpu: bool) -> Vec<Case> {
        let parts = SuitePart::ALL.map(|(part, _)| part);
        Choice { ceilings: &CEILINGS, on_gpu, threads: 2, quick, parts: &parts }.cases()
    }

    #[test]
    fn every_case_has_a_name_of_its_own_and_sizes_that_it_can_have() {
        for (quick, on_gpu) in [(false, false), (true, false), (false, true)] {
            let cases = cases(quick, on_gpu);
            let mut names: Vec<_> = cases.iter().map(|case| (case.part, &case.name)).collect();
            names.sort();
            let all = names.len();
            names.dedup();
            assert_eq!(names.len(), all);
            for case in &cases {
                assert!(case.config.sizes().is_ok(), "{case:?}");
                assert!(case.seconds > BEGIN && case.config.steps >= 3, "{case:?}");
                let least = if case.config.watched { 10.0 } else { 0.0 };
                assert!(case.config.seconds == least && case.seconds > least, "{case:?}");
            }
            let of = |part| cases.iter().filter(|case| case.part == part).count();
            assert_eq!((of(SuitePart::Table), of(SuitePart::Watching)), (5, 2));
            assert_eq!(of(SuitePart::Trainer), if on_gpu { 0 } else { 2 });
            let precisions = if on_gpu { 3 } else { 2 };
            let batches = if quick { 1 } else { 3 };
            assert_eq!(of(SuitePart::Matrix), 6 * precisions * batches);
        }
    }

    /// The budgets that the documentation names, on two cores of the machine that they were made for.
    #[test]
    fn a_full_round_takes_minutes_and_a_quick_one_less_than_two() {
        let first = |quick, forms| {
            let mut cases = cases(quick, false);
            for case in &mut cases {
                case.importance = case.importance.filter(|importance| *importance == 0);
            }
            whole_round(&cases, forms)
        };
        let all = whole_round(&cases(false, false), 0);
        assert!(all < 300.0 && first(false, 2) < 600.0, "{all} {}", first(false, 2));
        let (quick, everything) =
            (whole_round(&cases(true, false), 0), whole_round(&cases(false, false), 2));
        assert!(quick < 100.0 && everything < 1200.0, "{quick} {everything}");
    }

    #[test]
    fn the_peer_is_beside_the_training_of_each_workload_first_and_bert_s_large_batch_late() {
        let all = cases(false, false);
        let of = |name: &str| all.iter().find(|case| case.name == name).unwrap().importance;
        for (name, expected) in [
            ("lstm-mae, f32, batch 64", 0),
            ("lstm-mae, bf16, batch 512", 0),
            ("mlp, f32, batch 512", 0),
            ("bert-base, f32, batch 2", 0),
            ("lstm-mae, f32, batch 512, inference", 1),
            ("mlp, f32, batch 512, inference", 2),
            ("bert-base, bf16, batch 16", 3),
            ("bert-base, bf16, batch 16, inference", 4),
            ("mlp, f32, batch 64", 5),
        ] {
            assert_eq!(of(name), Some(expected), "{name}");
        }
        let forms = 2;
        let short = plan(&all, forms, 480.0, 0);
        let long = plan(&all, forms, 1200.0, 0);
        let beside = |rounds: &[u64]| rounds.iter().filter(|rounds| **rounds > 0).count();
        assert!(short.rounds == 1 && beside(&short.peers) >= 14, "{short:?}");
        assert!(long.rounds >= 1 && beside(&long.peers) > beside(&short.peers), "{long:?}");
    }
}
