//! The figures of the suite as tables and charts.

use std::collections::{BTreeMap, BTreeSet};

use firebox_eval::{Estimate, SheetChart, SheetSection, Table};

use super::cases::{Axis, R1_EPOCHS, R1_WINDOWS, SuitePart};
use super::result::{Measurement, Peer, Performance, Spread, exponent, step};
use crate::bench::{ADDED_AIM, BenchResult, Share, StepParts, UPDATE_AIM};

/// What is not alike on both sides where a peer is timed on a GPU.
pub(super) const STEPS_OF_A_GPU: &str = "On a GPU, PyTorch's steps are timed one by one, each waited for before it begins and when it ends. Firebox trains without waiting: the host reads up to 32 steps at once, and their time is divided by their number. Cases that are held up by launching kernels gain by that.";

/// Three digits, and no more than anybody measures.
pub(super) fn digits(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => "–".to_owned(),
        size if size < 9.995 => format!("{value:.2}"),
        size if size < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// `12.3 (12.1 to 12.9)`.
pub(super) fn spread(found: Option<Spread>) -> String {
    found.map_or("–".to_owned(), |Spread { value, low, high }| match low == high {
        true => digits(value),
        false => format!("{} ({} to {})", digits(value), digits(low), digits(high)),
    })
}

fn share(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |share| format!("{} %", digits(100.0 * share)))
}

fn table(title: &str, note: &str, columns: &[&str], rows: Vec<Vec<String>>) -> Table {
    Table {
        title: title.to_owned(),
        note: note.to_owned(),
        columns: columns.iter().map(|column| (*column).to_owned()).collect(),
        rows,
    }
}

/// Cases of a part that were timed.
fn timed(all: &Performance, part: SuitePart) -> impl Iterator<Item = &Measurement> {
    all.cases.iter().filter(move |case| case.part == part && !case.rounds.is_empty())
}

/// How much faster each setting of R1's table is than the first, round by round.
pub(super) fn speed_ups(all: &Performance) -> Vec<(&Measurement, Spread)> {
    let cases: Vec<_> = timed(all, SuitePart::Table).collect();
    let Some(first) = cases.first().filter(|case| case.name == "baseline") else { return vec![] };
    let of = |case: &Measurement| {
        let pairs = first.rounds.iter().zip(&case.rounds);
        Spread::of(pairs.map(|(baseline, own)| baseline.step_ms / own.step_ms))
    };
    cases.iter().filter_map(|case| Some((*case, of(case)?))).collect()
}

/// R1's table.
pub(super) fn settings(all: &Performance) -> SheetSection {
    if timed(all, SuitePart::Table).next().is_none() {
        return SheetSection::default();
    }
    let rows = speed_ups(all).into_iter().map(|(case, speed_up)| {
        let rate = case.median(|round| Some(round.samples_per_s)).unwrap_or(f64::NAN);
        // An epoch has the long steps, too.
        let sample_ms = case.median(|round| Some(round.mean_ms? / round.batch as f64));
        let epoch = R1_WINDOWS as f64 * sample_ms.unwrap_or(f64::NAN) / 60e3;
        vec![
            case.name.clone(),
            spread(case.step()),
            digits(rate),
            share(case.median(BenchResult::waiting_share)),
            share(case.median(|round| round.utilisation)),
            spread(Some(speed_up)),
            digits(epoch),
            digits(epoch * R1_EPOCHS as f64),
        ]
    });
    let columns = [
        "setting",
        "step ms",
        "samples/s",
        "data overhead",
        "utilisation",
        "speed-up",
        "epoch min",
        "total min",
    ];
    let batch = timed(all, SuitePart::Table).next().map_or(0, |case| case.rounds[0].batch);
    SheetSection {
        id: "settings",
        title: "What each setting brings",
        lead: format!(
            "R1's model (lstm-mae) at batch {batch} on windows of noise. The baseline is Burn's own operations in f32, each batch made when it is asked for; mixed precision, the loader (two threads that work ahead) and the kernels are switched on alone, then all together. An epoch has R1's {R1_WINDOWS} windows, the total {R1_EPOCHS} epochs, both at the mean time of a step. Data overhead is the share of the time of all steps that waits for data. In parentheses: the range of the rounds."
        ),
        tables: vec![table("What each setting brings", "", &columns, rows.collect())],
        charts: vec![SheetChart::Bars {
            title: "Milliseconds of a step".to_owned(),
            rows: timed(all, SuitePart::Table)
                .filter_map(|case| {
                    let Spread { value, low, high } = case.step()?;
                    Some((case.name.clone(), Estimate { value, low, high }, case.name == "all"))
                })
                .collect(),
        }],
    }
}

/// What watching costs: directly, and in whole steps in turn.
pub(super) fn watching(all: &Performance) -> SheetSection {
    let cases: Vec<_> = timed(all, SuitePart::Watching).collect();
    let [alone, watched] = &cases[..] else { return SheetSection::default() };
    let of = |figure: fn(&super::super::Watching) -> Option<f64>| {
        let own = watched.rounds.iter().filter_map(|round| Some((round.watching?, round.step_ms)));
        Spread::of(own.filter_map(|(cost, step)| Some(figure(&cost)? / 10.0 / step)))
    };
    let pairs = alone.rounds.iter().zip(&watched.rounds);
    let turns = Spread::of(pairs.map(|(a, w)| 100.0 * (w.step_ms / a.step_ms - 1.0)));
    let percent = |found: Option<Spread>| {
        found.map_or("–".to_owned(), |Spread { value, low, high }| match low == high {
            true => format!("{value:.3} %"),
            false => format!("{value:.3} % ({low:.3} to {high:.3})"),
        })
    };
    let all = of(|cost| Some(cost.loop_us + cost.threads_us?));
    let rows = [
        ("the training loop stands still", percent(of(|cost| Some(cost.loop_us)))),
        ("processor time of all threads that watch", percent(of(|cost| cost.threads_us))),
        ("both: the most that watching can cost", percent(all)),
        ("whole steps, watched after alone, round by round", percent(turns)),
    ];
    let once = |figure: fn(&super::super::Watching) -> Option<f64>| {
        let costs = watched.rounds.iter().filter_map(|round| round.watching);
        spread(Spread::of(costs.filter_map(|cost| figure(&cost))))
    };
    let (begin, end) = (once(|cost| cost.begin_ms), once(|cost| cost.end_ms));
    let seconds = watched.median(|round| Some(round.watching?.seconds)).unwrap_or(0.0);
    let once =
        [("to begin", begin), ("to end", end)].map(|(what, cost)| vec![what.to_owned(), cost]);
    let steady = rows.map(|(what, cost)| vec![what.to_owned(), cost]);
    let columns = ["what", "ms a run"];
    SheetSection {
        id: "watching",
        title: "What watching costs",
        lead: format!(
            "Sampler, log, TensorBoard, MLflow's files, Prometheus, progress and the look for requests, beside lstm-mae at batch {} in f32 ({} ms a step alone). The first table has means over the timed steps, {} seconds of them, as shares of a step: what the loop does when it tells of a step, and the processor time of the sampler's and the trackers' threads meanwhile, with each of their samples and flushes. The line of whole steps has the noise of the machine in it. What happens once a run, however long it is, is no part of that; the second table has it.",
            alone.rounds[0].batch,
            spread(alone.step()),
            digits(seconds)
        ),
        tables: vec![
            table("Of each step", "", &["what", "share of a step"], steady.to_vec()),
            table(
                "Once a run",
                "To begin: the processor time of the threads, which open everything and tell it of the settings, and the time that the run stands still for it. To end: the processor time in which the histograms of one checkpoint are made (a run makes them for each that it saves), and everything is written and closed.",
                &columns,
                once.to_vec(),
            ),
        ],
        charts: vec![],
    }
}

/// A share in all rounds: of one alone its own error, of more that of their mean.
fn over_rounds(parts: &[StepParts], of: fn(&StepParts) -> Share) -> Share {
    match parts {
        [only] => of(only),
        all => Share::of(&all.iter().map(|parts| of(parts).mean).collect::<Vec<_>>()),
    }
}

/// What the trainer adds to forward and backward, beside the aims for it.
pub(super) fn trainer(all: &Performance) -> SheetSection {
    let cases: Vec<(&Measurement, Vec<StepParts>)> = timed(all, SuitePart::Trainer)
        .map(|case| (case, case.rounds.iter().filter_map(|round| round.parts).collect()))
        .filter(|(_, parts): &(_, Vec<_>)| !parts.is_empty())
        .collect();
    if cases.is_empty() {
        return SheetSection::default();
    }
    let rows = cases.iter().flat_map(|(case, parts)| {
        let precision = case.rounds.first().map_or(String::new(), |round| round.precision.clone());
        let shares = [
            (
                "everything but forward and backward",
                over_rounds(parts, |parts| parts.added),
                ADDED_AIM,
            ),
            (
                "optimizer, clipping and zeroing",
                over_rounds(parts, |parts| parts.update),
                UPDATE_AIM,
            ),
        ];
        shares.map(|(what, share, aim)| {
            vec![
                precision.clone(),
                what.to_owned(),
                share.to_string(),
                format!("under {:.0} %", 100.0 * aim),
                share.below(aim).to_string(),
            ]
        })
    });
    let times = cases.iter().map(|(case, parts)| {
        let precision = case.rounds.first().map_or(String::new(), |round| round.precision.clone());
        let of = |figure: fn(&StepParts) -> f64| spread(Spread::of(parts.iter().map(figure)));
        vec![
            precision,
            of(|parts| parts.whole_ms),
            of(|parts| parts.forward_ms),
            of(|parts| parts.backward_ms),
            of(|parts| parts.waiting_ms),
            of(|parts| parts.read_back_ms),
            of(|parts| parts.optimizer_ms),
        ]
    });
    let columns = ["type", "part of a step", "share", "aim", "outcome"];
    let parts = ["type", "step", "forward", "backward", "waiting", "reading back", "optimizer"];
    SheetSection {
        id: "trainer",
        title: "What the trainer adds to a step",
        lead: "lstm-mae at batch 512, by the spans of the training loop. A step goes from its begin to that of the next. The second share has all that is added but waiting for data: the norm of the gradients, which clipping needs, is computed where the loss is read back, and gradients are given back instead of zeroed. An aim is met or missed by two standard errors (of the mean over the rounds; of one round, over its steps).".to_owned(),
        charts: vec![],
        tables: vec![
            table("Shares of a step", "", &columns, rows.collect()),
            table("Milliseconds", "", &parts, times.collect()),
        ],
    }
}

/// Every workload, with its floor and the peer.
pub(super) fn workloads(all: &Performance) -> SheetSection {
    let cases: Vec<_> = timed(all, SuitePart::Matrix).collect();
    let rows = cases.iter().map(|case| {
        let step = case.step();
        let reached = step.map(|step| case.floor_ms / step.value);
        let memory = case.median(|round| round.peak_mib);
        vec![
            case.name.clone(),
            spread(step),
            case.median(|round| Some(round.samples_per_s)).map_or("–".to_owned(), digits),
            digits(case.floor_ms),
            share(reached),
            share(case.median(|round| round.utilisation)),
            memory.map_or("–".to_owned(), |mib| format!("{mib:.0}")),
        ]
    });
    let columns = ["case", "step ms", "samples/s", "floor ms", "of it", "utilisation", "peak MiB"];
    let note = format!(
        "The floor is the products of a step at the measured peak of their type, and the optimizer's way through memory at its measured rate; `of it` is how close the step comes.{}",
        match all.is_on_gpu() {
            true => " The peak is what the allocator had of the GPU's memory.",
            false => "",
        }
    );
    let mut tables = vec![table("Steps and floors", &note, &columns, rows.collect())];
    tables.push(beside(&cases));
    SheetSection {
        id: "workloads",
        title: "Workloads",
        lead: "Whole steps: from asking for a batch to the updated weights, or in inference to the loss that was read back. In parentheses: the range of the rounds.".to_owned(),
        charts: vec![],
        tables,
    }
}

/// The peer in each of its forms.
fn beside(cases: &[&Measurement]) -> Table {
    let with_peer = cases.iter().filter(|case| !case.peers.is_empty());
    let rows = with_peer.map(|case| {
        let of = |form: &str| case.peers.iter().find(|peer| peer.form == form);
        let time = |form: &str| match of(form) {
            Some(peer) if peer.error.is_some() => "failed".to_owned(),
            Some(peer) => spread(step(&peer.rounds)),
            None => "–".to_owned(),
        };
        let memory = of("installed")
            .and_then(|peer| Spread::of(peer.rounds.iter().filter_map(|round| round.peak_mib)));
        let own = case.median(|round| round.peak_mib);
        let memory = match (own, memory) {
            // Pages that one allocator took, and bytes that tensors of the other had.
            _ if case.is_on_gpu() => "–".to_owned(),
            (Some(own), Some(theirs)) => format!("{own:.0} / {:.0}", theirs.value),
            _ => "–".to_owned(),
        };
        vec![
            case.name.clone(),
            spread(case.step()),
            time("installed"),
            time("tuned"),
            spread(case.over("installed")),
            spread(case.over("tuned")),
            memory,
        ]
    });
    let columns = [
        "case",
        "Firebox ms",
        "PyTorch ms",
        "tuned ms",
        "over PyTorch",
        "over tuned",
        "peak MiB, ours / theirs",
    ];
    let fewer = |case: &&Measurement| {
        let missing = |peer: &Peer| peer.error.is_none() && peer.rounds.len() < case.rounds.len();
        case.peers.iter().any(missing)
    };
    let on_gpu = cases.iter().any(|case| case.is_on_gpu());
    let forms = match on_gpu {
        true => "then PyTorch as installed",
        false => "then PyTorch as installed, then PyTorch with glibc's allocator tuned",
    };
    let note = format!(
        "In turn: each round starts Firebox, {forms}. A ratio is the median of the rounds' ratios.{}{}",
        match cases.iter().any(fewer) {
            true => " Cases that matter less have fewer rounds with it, for want of time.",
            false => "",
        },
        if on_gpu { of_a_gpu(cases) } else { String::new() }
    );
    table("Beside PyTorch", &note, &columns, rows.collect())
}

/// What there is to know of a comparison on a GPU.
fn of_a_gpu(cases: &[&Measurement]) -> String {
    let peers = cases.iter().flat_map(|case| &case.peers);
    let rounds = peers.flat_map(|peer| &peer.rounds);
    let cards: BTreeSet<&str> = rounds.map(|round| round.device.as_str()).collect();
    let cards: Vec<&str> = cards.into_iter().collect();
    format!(
        " PyTorch ran on {}. {STEPS_OF_A_GPU} Peaks of memory are not set beside each other there: PyTorch's is of the bytes that its tensors had, and Firebox's of the pages that its allocator took.",
        if cards.is_empty() { "nothing".to_owned() } else { cards.join(", ") }
    )
}

/// Curves over one size each, with their exponents.
pub(super) fn scaling(all: &Performance) -> SheetSection {
    type Points = Vec<(f64, f64)>;
    let mut curves: BTreeMap<(Axis, String), Points> = BTreeMap::new();
    for case in timed(all, SuitePart::Scaling) {
        let (Some((axis, size)), Some(step)) = (case.point, case.step()) else { continue };
        let name = case.rounds[0].workload.clone();
        curves.entry((axis, name)).or_default().push((size as f64, step.value));
    }
    let mut charts: BTreeMap<Axis, Vec<(String, Points)>> = BTreeMap::new();
    let mut rows = vec![];
    for ((axis, name), points) in curves {
        let fitted = exponent(&points)
            .map_or("–".to_owned(), |(slope, error)| format!("{slope:.2} ± {error:.2}"));
        let texts: Vec<String> =
            points.iter().map(|(size, time)| format!("{size}: {}", digits(*time))).collect();
        rows.push(vec![name.clone(), axis.name().to_owned(), fitted, texts.join(", ")]);
        charts.entry(axis).or_default().push((name, points));
    }
    let charts = charts.into_iter().map(|(axis, curves)| SheetChart::Powers {
        title: format!("Milliseconds of a step over {}", axis.name()),
        axis: axis.name().to_owned(),
        unit: "ms".to_owned(),
        curves,
    });
    let columns = ["workload", "over", "exponent", "step ms by size"];
    SheetSection {
        id: "scaling",
        title: "Scaling",
        lead: "One size at a time, at batch 64 in f32 where nothing else is said. The exponent is the slope of a least-squares line through the logarithms of size and time, with its standard error: 1 is proportional, 0 is no dependence.".to_owned(),
        charts: charts.collect(),
        tables: vec![table("Scaling", "", &columns, rows)],
    }
}

/// What the device does at most.
pub(super) fn machine(all: &Performance) -> SheetSection {
    let giga = |rate: f64| format!("{:.0}", rate / 1e9);
    let ceilings = &all.ceilings;
    let optional = |rate: Option<f64>| rate.map_or("–".to_owned(), giga);
    let rows = vec![
        vec!["products in f32".to_owned(), giga(ceilings.f32_flops), "GFLOP/s".to_owned()],
        vec!["products in bf16".to_owned(), optional(ceilings.bf16_flops), "GFLOP/s".to_owned()],
        vec!["products in f16".to_owned(), optional(ceilings.f16_flops), "GFLOP/s".to_owned()],
        vec!["memory, read and written".to_owned(), giga(ceilings.memory_bytes), "GB/s".to_owned()],
    ];
    SheetSection {
        id: "machine",
        title: "Ceilings of the machine",
        lead: "Measured by this run: on a processor chains of products in registers and an update of 256 MiB in place, by all threads; on a GPU Burn's product of two matrices of 4,096² and an addition of 256 MiB.".to_owned(),
        charts: vec![],
        tables: vec![table("Ceilings", "", &["what", "at most", "unit"], rows)],
    }
}

/// What is to be typed for each figure.
pub(super) fn commands(all: &Performance) -> SheetSection {
    let row = |name: String, command: &str| vec![name, format!("`{command}`")];
    let rows = all.cases.iter().flat_map(|case| {
        let peers = case.peers.iter().filter(|peer| !peer.command.is_empty());
        let peer =
            |peer: &Peer| row(format!("{}, PyTorch {}", case.name, peer.form), &peer.command);
        [row(case.name.clone(), &case.command)].into_iter().chain(peers.map(peer))
    });
    SheetSection {
        id: "commands",
        title: "Each figure again",
        lead:
            "Each line prints one round of its case as JSON; PyTorch's script is `torch_steps.py`."
                .to_owned(),
        charts: vec![],
        tables: vec![table("Commands", "", &["case", "command"], rows.collect())],
    }
}
