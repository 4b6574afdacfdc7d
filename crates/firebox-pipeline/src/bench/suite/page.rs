//! The summary of the suite: its tables in order, what stands out, and what failed.

use firebox_eval::{Fact, Sheet, SheetSection, Table};

use super::cases::SuitePart;
use super::result::{Measurement, Performance, Regression, Spread, Undecided, Untimed};
use super::tables::{
    STEPS_OF_A_GPU, commands, digits, machine, scaling, settings, speed_ups, spread, trainer,
    watching, workloads,
};
use crate::BenchResult;

/// Share of a step that waiting for data may take, as R1 has it.
const WAITING: f64 = 0.05;
/// Share of the device's time that counts as well used, as R1 and R2 have it.
const BUSY: f64 = 0.85;
/// Gain from which a narrower type is worth its rounding.
const GAIN: f64 = 1.1;

/// What a comparison with a baseline found.
pub(super) struct Slower<'a> {
    pub(super) cases: &'a [Regression],
    /// Those of too few rounds.
    pub(super) undecided: &'a [Undecided],
    /// Those that failed now.
    pub(super) untimed: &'a [Untimed],
    /// Cases that could be compared.
    pub(super) compared: usize,
}

/// The page of everything that was measured.
pub(super) fn page(all: &Performance, became_slower: Option<Slower<'_>>) -> Sheet {
    let fact = |name: &str, value: String| Fact { name: name.to_owned(), value };
    let rounds = match all.rounds {
        1 => "1 round, so spreads are those of single steps".to_owned(),
        rounds => rounds.to_string(),
    };
    let facts = vec![
        fact("Firebox", all.version.clone()),
        fact("Device", all.device.clone()),
        fact("Measured", all.created.clone()),
        fact("Rounds", rounds),
        fact("Time", format!("{:.1} minutes", all.seconds / 60.0)),
        fact("Peers", all.peers.join("; ")),
        fact("Command", format!("`{}`", all.command)),
    ];
    let sections = vec![
        became(became_slower, all.minutes_for_enough()),
        settings(all),
        watching(all),
        trainer(all),
        workloads(all),
        scaling(all),
        machine(all),
        advice(all),
        checks(all),
        failures(all),
        left_out(all),
        commands(all),
    ];
    Sheet { title: "Performance of Firebox".to_owned(), lead: lead(all), facts, sections }
}

/// What it comes to.
fn lead(all: &Performance) -> String {
    let mut sentences = vec![];
    if let Some((_, speed_up)) = speed_ups(all).into_iter().find(|(case, _)| case.name == "all") {
        sentences.push(format!(
            "A step of R1's pre-training is {} times as fast with everything as with Burn's own operations.",
            spread(Some(speed_up))
        ));
    }
    for (form, name) in [("installed", "PyTorch as installed"), ("tuned", "PyTorch tuned")] {
        let ratios = all.cases.iter().filter_map(|case| Some(case.over(form)?.value));
        if let Some(Spread { value, low, high }) = Spread::of(ratios) {
            sentences.push(format!(
                "Steps take {} of the time of {name} ({} to {} over the cases).",
                digits(value),
                digits(low),
                digits(high)
            ));
        }
    }
    if all.is_on_gpu() && all.cases.iter().any(|case| !case.peers.is_empty()) {
        sentences.push(STEPS_OF_A_GPU.to_owned());
    }
    sentences.join(" ")
}

fn table(title: &str, columns: &[&str], rows: Vec<Vec<String>>) -> Table {
    let columns = columns.iter().map(|column| (*column).to_owned()).collect();
    Table { title: title.to_owned(), note: String::new(), columns, rows }
}

/// What has become slower since the baseline. With so many `minutes`, there would have been rounds enough to tell.
fn became(slower: Option<Slower<'_>>, minutes: f64) -> SheetSection {
    let Some(Slower { cases, undecided, untimed, compared }) = slower else {
        return SheetSection::default();
    };
    let row = |case: &Regression| {
        let share = 100.0 * (case.now_ms / case.before_ms - 1.0);
        let (before, now) = (digits(case.before_ms), digits(case.now_ms));
        vec![case.name.clone(), before, now, format!("{} %", digits(share))]
    };
    let failed = |case: &Untimed| {
        let (before, now) = (digits(case.before_ms), "not timed".to_owned());
        vec![case.name.clone(), before, now, "–".to_owned()]
    };
    let mut rows: Vec<Vec<String>> =
        cases.iter().map(row).chain(untimed.iter().map(failed)).collect();
    if rows.is_empty() {
        rows.push(["nothing", "–", "–", "–"].map(str::to_owned).to_vec());
    }
    let mut tables = vec![table("Slower", &["case", "ms before", "ms now", "slower by"], rows)];
    if !undecided.is_empty() {
        let row = |case: &Undecided| {
            let [then, now] = case.rounds.map(|rounds| rounds.to_string());
            vec![case.name.clone(), digits(case.before_ms), digits(case.now_ms), then, now]
        };
        let note = format!(
            "By more than 5 %, and noise may explain it. It takes three rounds of both: more time takes more of them, about `--minutes {minutes:.0}` here without a peer, and as many for a new baseline where that has fewer."
        );
        let columns = ["case", "ms before", "ms now", "rounds before", "rounds now"];
        let rows = undecided.iter().map(row).collect();
        tables.push(Table { note, ..table("Too few rounds to tell", &columns, rows) });
    }
    SheetSection {
        id: "regressions",
        title: "Slower than the baseline",
        lead: format!(
            "By more than 5 %, with every one of at least three rounds above every one of at least three of the baseline. Cases that both have at the same batch: {compared}. One that the baseline timed and that failed now stands here, too."
        ),
        charts: vec![],
        tables,
    }
}

/// What stands out, each with its figure and the setting that would change it.
fn advice(all: &Performance) -> SheetSection {
    let mut rows = vec![];
    let mut say = |finding: String, setting: &str| rows.push(vec![finding, setting.to_owned()]);
    for case in all.cases.iter().filter(|case| case.part == SuitePart::Table) {
        let waiting = case.median(BenchResult::waiting_share);
        if let Some(waiting) = waiting.filter(|waiting| *waiting > WAITING) {
            let waited = format!(
                "{}: {} % of the time of steps goes by waiting for data",
                case.name,
                digits(100.0 * waiting)
            );
            let ahead = case.name == "loader" || case.name == "all";
            say(
                waited,
                if ahead {
                    "`loader.workers` above 2, if the machine has more threads, or `loader.resident` \"memory\" or \"device\""
                } else {
                    "`loader.workers` 2 or more, `loader.prefetch` 4 or more"
                },
            );
        }
        let busy = case.median(|round| round.utilisation);
        if let Some(busy) = busy.filter(|busy| *busy < BUSY) {
            let said =
                format!("{}: the device is busy {} % of the time", case.name, digits(100.0 * busy));
            let kernels = case.name == "kernels" || case.name == "all";
            say(
                said,
                if kernels {
                    "`loader.batch_size` larger"
                } else {
                    "the kernels: `FIREBOX_KERNELS` unset"
                },
            );
        }
    }
    for (single, half) in pairs(all) {
        let pairs = single.rounds.iter().zip(&half.rounds);
        let gain = Spread::of(pairs.map(|(single, half)| single.step_ms / half.step_ms));
        if let Some(gain) = gain.filter(|gain| gain.value < GAIN) {
            let said = format!(
                "{}: {} times as fast as in f32, which its rounding is hardly worth",
                half.name,
                spread(Some(gain))
            );
            say(said, "`run.precision = \"f32\"`, or a larger `loader.batch_size`");
        }
    }
    SheetSection {
        id: "advice",
        title: "What stands out",
        tables: vec![table("What stands out", &["finding", "setting"], rows)],
        ..SheetSection::default()
    }
}

/// Cases of the matrix in bf16, each with the same one in f32.
fn pairs(all: &Performance) -> Vec<(&Measurement, &Measurement)> {
    let matrix = || all.cases.iter().filter(|case| case.part == SuitePart::Matrix);
    let half = matrix().filter(|case| case.name.contains(", bf16,"));
    half.filter_map(|half| {
        let name = half.name.replace(", bf16,", ", f32,");
        Some((matrix().find(|case| case.name == name)?, half))
    })
    .collect()
}

/// Programs that checked the build.
fn checks(all: &Performance) -> SheetSection {
    let rows = all.checks.iter().map(|check| {
        let outcome = if check.passed { "passed" } else { "failed" };
        let last = check.said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        let seconds = format!("{:.1}", check.seconds);
        vec![check.name.clone(), outcome.to_owned(), seconds, last.to_owned()]
    });
    let columns = ["check", "outcome", "seconds", "its last line"];
    SheetSection {
        id: "checks",
        title: "Checks",
        tables: vec![table("Checks", &columns, rows.collect())],
        ..SheetSection::default()
    }
}

/// What could not be timed, and why.
fn failures(all: &Performance) -> SheetSection {
    let mut rows = vec![];
    for case in &all.cases {
        rows.extend(case.error.iter().map(|error| vec![case.name.clone(), error.clone()]));
        for peer in &case.peers {
            let name = format!("{}, PyTorch {}", case.name, peer.form);
            rows.extend(peer.error.iter().map(|error| vec![name.clone(), error.clone()]));
        }
    }
    SheetSection {
        id: "failures",
        title: "Not timed",
        tables: vec![table("Not timed", &["case", "why"], rows)],
        ..SheetSection::default()
    }
}

/// What there was no time for.
fn left_out(all: &Performance) -> SheetSection {
    let minutes = all.whole_round_minutes.map_or(String::new(), |minutes| {
        format!(
            " A round of everything takes about {minutes:.0} minutes here, so `--minutes {:.0}` leaves nothing out.",
            (1.2 * minutes).ceil()
        )
    });
    SheetSection {
        id: "left-out",
        title: "Left out",
        lead: format!(
            "What matters most is timed first; for the rest the time was too short.{minutes}"
        ),
        tables: match &all.left_out[..] {
            [] => vec![],
            some => {
                let rows = some.iter().map(|name| vec![name.clone()]).collect();
                vec![table("Left out", &["case"], rows)]
            }
        },
        charts: vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::Axis;
    use super::super::result::tests::{measurement, performance, round};
    use super::super::result::{Check, Peer};
    use super::*;
    use crate::bench::{Share, StepParts, Watching};

    /// A step of which this share is neither forward nor backward.
    fn parts(mean: f64, error: f64) -> StepParts {
        StepParts {
            steps: 15,
            whole_ms: 400.0,
            forward_ms: 130.0,
            backward_ms: 270.0 - 400.0 * mean,
            waiting_ms: 0.01,
            read_back_ms: 0.5,
            optimizer_ms: 0.6,
            added: Share { mean, error },
            update: Share { mean, error },
        }
    }

    fn everything() -> Performance {
        let mut alone = measurement(SuitePart::Watching, "alone", &[60.0, 62.0]);
        alone.floor_ms = 30.0;
        let mut watched = measurement(SuitePart::Watching, "watched", &[60.3, 61.9]);
        for round in &mut watched.rounds {
            round.watching = Some(Watching {
                loop_us: 12.0,
                threads_us: Some(120.0),
                seconds: 10.04,
                begin_ms: Some(3.0),
                end_ms: Some(12.25),
            });
        }
        let mut single = measurement(SuitePart::Matrix, "mlp, f32, batch 64", &[10.0, 12.0]);
        let rounds = vec![round(20.0), round(30.0)];
        single.peers = vec![Peer {
            form: "installed".to_owned(),
            command: "python3 torch_steps.py".to_owned(),
            rounds,
            error: None,
        }];
        let half = measurement(SuitePart::Matrix, "mlp, bf16, batch 64", &[10.0, 11.0]);
        let mut failed = measurement(SuitePart::Matrix, "mlp, f16, batch 64", &[]);
        failed.error = Some("no such type".to_owned());
        let scaling = [8usize, 16, 32].map(|size| {
            let name = format!("lstm-mae, batch size {size}");
            let mut case = measurement(SuitePart::Scaling, &name, &[size as f64 / 2.0]);
            case.point = Some((Axis::Batch, size));
            case
        });
        let mut cases = vec![
            measurement(SuitePart::Table, "baseline", &[400.0, 420.0]),
            measurement(SuitePart::Table, "all", &[100.0, 70.0]),
            alone,
            watched,
            single,
            half,
            failed,
        ];
        cases.extend(scaling);
        let checks = vec![Check {
            name: "cube".to_owned(),
            passed: true,
            seconds: 1.0,
            said: "20 passed".to_owned(),
        }];
        Performance {
            peers: vec!["torch 2".to_owned()],
            checks,
            left_out: vec!["PyTorch beside mlp, bf16, batch 64".to_owned()],
            whole_round_minutes: Some(12.4),
            ..performance(cases)
        }
    }

    #[test]
    fn what_the_trainer_adds_is_beside_its_aims_with_the_error_of_all_rounds() {
        let rows = |shares: &[(f64, f64)]| {
            let steps = vec![400.0; shares.len()];
            let mut case = measurement(SuitePart::Trainer, "parts of a step, bf16", &steps);
            for (round, (mean, error)) in case.rounds.iter_mut().zip(shares) {
                round.parts = Some(parts(*mean, *error));
            }
            let rows = trainer(&performance(vec![case])).tables[0].rows.clone();
            rows.iter().map(|row| row[2..].join(", ")).collect::<Vec<_>>()
        };
        let one = rows(&[(0.0064, 0.0003)]);
        assert_eq!(one, ["0.64 ± 0.03 %, under 1 %, met", "0.64 ± 0.03 %, under 2 %, met"]);
        // Their own errors say less than their spread: half the difference of two.
        let two = rows(&[(0.0075, 1e-5), (0.0125, 1e-5)]);
        let expected = ["1.00 ± 0.25 %, under 1 %, not decided", "1.00 ± 0.25 %, under 2 %, met"];
        assert_eq!(two, expected);
        let slow = rows(&[(0.03, 0.001)]);
        assert_eq!(slow, ["3.00 ± 0.10 %, under 1 %, missed", "3.00 ± 0.10 %, under 2 %, missed"]);
        assert!(trainer(&performance(vec![])).tables.is_empty());
    }

    /// Nothing is slower, and nothing was compared.
    const NOTHING: Slower<'static> =
        Slower { cases: &[], undecided: &[], untimed: &[], compared: 0 };

    #[test]
    fn waiting_is_told_of_the_time_of_all_steps_and_an_epoch_has_the_long_ones() {
        // Five steps of 10, 10, 10, 10 and 200 ms, of which the last waited for 190.
        let waited = |name: &str| {
            let mut case = measurement(SuitePart::Table, name, &[10.0]);
            let only = &mut case.rounds[0];
            (only.data_ms, only.mean_ms) = (38.0, Some(48.0));
            case
        };
        let all = performance(["baseline", "loader", "all"].map(waited).to_vec());
        let rows = settings(&all).tables[0].rows.clone();
        // 59,365 windows in batches of 64: 927.6 steps of 48 ms.
        assert_eq!(rows[0][3..], ["79.2 %", "90.0 %", "1.00", "0.74", "37.1"]);
        let advised = advice(&all).tables[0].rows.clone();
        assert_eq!(advised[0][0], "baseline: 79.2 % of the time of steps goes by waiting for data");
        assert!(advised[0][1].starts_with("`loader.workers` 2 or more"), "{advised:?}");
        // Two threads that work ahead are there already.
        for row in &advised[1..] {
            assert!(!row[1].contains("2 or more") && row[1].contains("above 2"), "{row:?}");
        }
    }

    #[test]
    fn what_is_not_alike_on_a_gpu_is_said_beside_the_peer() {
        let mut all = everything();
        let told = |all: &Performance| page(all, None).markdown();
        assert!(!told(&all).contains("On a GPU, PyTorch's") && told(&all).contains("100 / 100"));
        for case in &mut all.cases {
            case.rounds.iter_mut().for_each(|round| round.device = "cuda:1 H200".to_owned());
            let peers = case.peers.iter_mut().flat_map(|peer| &mut peer.rounds);
            peers.for_each(|round| round.device = "NVIDIA H200".to_owned());
        }
        let text = told(&all);
        // In the lead, and beside the table.
        assert_eq!(
            text.matches("On a GPU, PyTorch's steps are timed one by one").count(),
            2,
            "{text}"
        );
        assert!(text.contains("PyTorch ran on NVIDIA H200."), "{text}");
        assert!(text.contains("what the allocator had of the GPU's memory"), "{text}");
        assert!(!text.contains("100 / 100") && !text.contains("glibc's allocator"), "{text}");
    }

    #[test]
    fn cases_of_too_few_rounds_are_listed_apart_with_how_to_take_more() {
        let undecided =
            [Undecided { name: "mlp".to_owned(), before_ms: 10.0, now_ms: 12.0, rounds: [3, 1] }];
        let slower = Slower { undecided: &undecided, compared: 1, ..NOTHING };
        let text = page(&everything(), Some(slower)).markdown();
        assert!(text.contains("| nothing | – | – | – |"), "{text}");
        assert!(text.contains("| mlp | 10.0 | 12.0 | 3 | 1 |"), "{text}");
        // Three rounds took a minute.
        assert!(text.contains("about `--minutes 2` here"), "{text}");
    }

    #[test]
    fn the_summary_tells_every_part() {
        let text = page(&everything(), Some(Slower { compared: 7, ..NOTHING })).markdown();
        insta::assert_snapshot!(text);
        let html = page(&everything(), None).html();
        assert!(html.contains("logarithmic axes") && html.contains("Milliseconds of a step"));
    }
}
