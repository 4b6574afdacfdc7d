//! The result of an examination in 80 columns. Nothing is decided here.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use firebox_core::count;

use super::learn::Verdict;
use super::{Examination, Learning, Mark, Timed};

/// Columns of a line.
const WIDTH: usize = 80;

pub(super) fn text(examination: &Examination) -> String {
    let mut out = String::new();
    devices(&mut out, examination);
    times(&mut out, examination);
    losses(&mut out, examination);
    checklist(&mut out, examination);
    heading(&mut out, "Recommended");
    let reason = format!("{}: {}", examination.precision, examination.reason);
    item(&mut out, "", &reason);
    for advice in &examination.advice {
        item(&mut out, "- ", advice);
    }
    heading(&mut out, "To merge into [run] and [loader] of a pipeline");
    // The reason of a precision may be longer than a line.
    out.push_str(&examination.block);
    let _ = write!(out, "\nexamined in {:.0} s", examination.seconds);
    out
}

fn heading(out: &mut String, text: &str) {
    let _ = write!(out, "\n{text}\n{}\n", "-".repeat(text.chars().count()));
}

/// A text after a mark, in lines that begin below it.
fn item(out: &mut String, mark: &str, text: &str) {
    let indent = mark.chars().count();
    let mut line = mark.to_owned();
    let mut used = indent;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if used > indent && used + 1 + length > WIDTH {
            out.push_str(line.trim_end());
            out.push('\n');
            line = " ".repeat(indent);
            used = indent;
        }
        if used > indent {
            line.push(' ');
            used += 1;
        }
        line.push_str(word);
        used += length;
    }
    out.push_str(&line);
    out.push('\n');
}

fn devices(out: &mut String, examination: &Examination) {
    out.push_str(&examination.engine);
    out.push('\n');
    heading(out, "Devices");
    for found in &examination.devices {
        item(out, &format!("{:<9}", found.name), &found.said());
        if let Some(able) = found.able() {
            item(out, "         ", &able);
        }
    }
    let what = format!(
        "examined: {} threads, kernels {}; class {} (to start from: {}, batch {}, {} of the loader)",
        examination.threads,
        examination.kernels,
        examination.class.name,
        examination.class.precision,
        examination.class.batch_size,
        count(examination.class.workers as u64, "thread")
    );
    item(out, "", &what);
    for (precision, support) in &examination.abilities.precisions {
        let kind = match support {
            super::Support::Native(_) => "native",
            super::Support::Emulated(_) => "emulated",
            super::Support::Missing(_) => "missing",
        };
        item(out, &format!("  {:<5} {kind:<9}", precision.to_string()), support.how());
    }
    for (name, text) in examination.hardware.lines() {
        item(out, &format!("  {name}: "), &text);
    }
}

fn times(out: &mut String, examination: &Examination) {
    heading(out, "Time of a training step");
    out.push_str(
        "model             batch type   ms/step       quartiles peak MiB over f32 steps\n",
    );
    for timed in &examination.timed {
        let name = format!("{}{}", timed.precision, if timed.emulated { "*" } else { "" });
        let quartiles = timed.quartiles_ms.map(milliseconds).join(" to ");
        let peak = timed.peak_mib.map_or("-".to_owned(), |mib| format!("{mib:.0}"));
        let _ = writeln!(
            out,
            "{:<17} {:>5} {name:<5} {:>8} {quartiles:>15} {peak:>8} {:>7.2}× {:>5}",
            timed.workload,
            timed.batch,
            milliseconds(timed.median_ms),
            timed.speed_up,
            timed.steps
        );
    }
    if examination.timed.iter().any(|timed| timed.emulated) {
        out.push_str("* emulated: right, and without units of the device for it\n");
    }
    let small = examination.timed.iter().filter(|timed| timed.small);
    let small: BTreeSet<&str> = small.map(|timed| timed.workload.as_str()).collect();
    if !small.is_empty() {
        let small: Vec<_> = small.into_iter().collect();
        let said =
            format!("At a small size, for their losses; no part of means: {}.", small.join(", "));
        item(out, "", &said);
    }
    if let Some(said) = &examination.left_out {
        item(out, "", said);
    }
    let beyond = |timed: &Timed| timed.first_ms - timed.median_ms;
    let coldest = examination.timed.iter().filter(|timed| beyond(timed) > 0.0);
    if let Some(coldest) = coldest.max_by(|a, b| beyond(a).total_cmp(&beyond(b))) {
        let said = format!(
            "The first step is not among them: kernels are compiled and tuned in it, and memory is first used. It took up to {} ms more ({} in {}).",
            milliseconds(beyond(coldest)),
            coldest.workload,
            coldest.precision
        );
        item(out, "", &said);
    }
}

fn milliseconds(value: f64) -> String {
    match value {
        small if small < 10.0 => format!("{small:.2}"),
        middle if middle < 100.0 => format!("{middle:.1}"),
        large => format!("{large:.0}"),
    }
}

fn losses(out: &mut String, examination: &Examination) {
    heading(out, "Loss beside f32, same seed");
    out.push_str(
        "model             type   steps    first     last f32 last  difference    error\n",
    );
    for learnt in &examination.learnt {
        let _ = writeln!(
            out,
            "{:<17} {:<5} {:>6} {:>8.4} {:>8.4} {:>8.4} {:>9.3} % {:>6.3} %{}",
            learnt.workload,
            learnt.precision.to_string(),
            learnt.steps,
            learnt.first,
            learnt.last,
            learnt.last_f32,
            100.0 * learnt.difference,
            100.0 * learnt.error,
            mark(learnt)
        );
    }
    item(
        out,
        "",
        "Difference of the mean loss of the last third of the steps as a share of the first loss, and its standard error. `!` is above 0.5 % and two errors, and higher than one run of a hundred in f32 ends by chance (of a small model, one of a thousand), as runs with other dropout and masks say; or it learns less than a fifth of what f32 learns. `?` is not known: these runs scatter by more than 2 % of the first loss, f32 learns less than 5 % of it, or it is more than 5 % higher and may be so by chance.",
    );
}

fn mark(learnt: &Learning) -> &'static str {
    match learnt.verdict() {
        Verdict::Close => "",
        Verdict::Unknown => " ?",
        Verdict::Higher | Verdict::Nothing => " !",
    }
}

fn checklist(out: &mut String, examination: &Examination) {
    heading(out, "Checklist of R1's guide");
    for tick in &examination.checklist {
        let mark = match tick.mark {
            Mark::Yes => "[x] ",
            Mark::No => "[ ] ",
            Mark::NotHere => "[-] ",
        };
        item(out, mark, &format!("{}: {}", tick.line, tick.found));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_broken_below_their_mark() {
        let mut out = String::new();
        item(&mut out, "[x] ", &"word ".repeat(30));
        assert!(out.lines().all(|line| line.chars().count() <= WIDTH), "{out}");
        assert!(out.starts_with("[x] word") && out.lines().nth(1).unwrap().starts_with("    word"));
        let mut out = String::new();
        item(&mut out, "", &"x".repeat(100));
        assert_eq!(out.lines().count(), 1);
    }
}
