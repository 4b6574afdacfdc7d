//! The summary of the suite: its tables in order, what stands out, and what failed.

use firebox_eval::{Fact, Sheet, SheetSection, Table};

use super::cases::SuitePart;
use super::result::{Measurement, Performance, Regression, Spread, Untimed};
use super::tables::{
    commands, digits, machine, scaling, settings, speed_ups, spread, trainer, watching, workloads,
};

/// Share of a step that waiting for data may take, as R1 has it.
const WAITING: f64 = 0.05;
/// Share of the device's time that counts as well used, as R1 and R2 have it.
const BUSY: f64 = 0.85;
/// Gain from which a narrower type is worth its rounding.
const GAIN: f64 = 1.1;

/// What a comparison with a baseline found.
pub(super) struct Slower<'a> {
    pub(super) cases: &'a [Regression],
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
        became(became_slower),
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
    sentences.join(" ")
}

fn table(title: &str, columns: &[&str], rows: Vec<Vec<String>>) -> Table {
    let columns = columns.iter().map(|column| (*column).to_owned()).collect();
    Table { title: title.to_owned(), note: String::new(), columns, rows }
}

/// What has become slower since the baseline.
fn became(slower: Option<Slower<'_>>) -> SheetSection {
    let Some(Slower { cases, untimed, compared }) = slower else {
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
    SheetSection {
        id: "regressions",
        title: "Slower than the baseline",
        lead: format!(
            "By more than 5 %, with every round above every round of the baseline. Cases that both have at the same batch: {compared}. One that the baseline timed and that failed now stands here, too."
        ),
        charts: vec![],
        tables: vec![table("Slower", &["case", "ms before", "ms now", "slower by"], rows)],
    }
}

/// What stands out, each with its figure and the setting that would change it.
fn advice(all: &Performance) -> SheetSection {
    let mut rows = vec![];
    let mut say = |finding: String, setting: &str| rows.push(vec![finding, setting.to_owned()]);
    for case in all.cases.iter().filter(|case| case.part == SuitePart::Table) {
        let waiting = case.median(|round| Some(round.data_ms / round.step_ms));
        if let Some(waiting) = waiting.filter(|waiting| *waiting > WAITING) {
            let waited = format!(
                "{}: {} % of a step goes by waiting for data",
                case.name,
                digits(100.0 * waiting)
            );
            say(waited, "`loader.workers` 2 or more, `loader.prefetch` 4 or more");
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

    #[test]
    fn the_summary_tells_every_part() {
        let text =
            page(&everything(), Some(Slower { cases: &[], untimed: &[], compared: 7 })).markdown();
        insta::assert_snapshot!(text);
        let html = page(&everything(), None).html();
        assert!(html.contains("logarithmic axes") && html.contains("Milliseconds of a step"));
    }
}
