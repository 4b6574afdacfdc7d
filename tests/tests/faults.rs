//! Training steps take the memory of the steps before them: page faults, as the system and as `firebox bench` count
//! them, do not grow with the steps. In a program of its own, as all of its children are counted together.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::path::Path;

use firebox_tests::{command, errors, program};
use serde_json::Value;

/// Page faults of all programs that this one has started and that have ended.
fn of_children() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    // The name of the program may hold anything, a closing parenthesis as well. `proc_pid_stat(5)`: after it
    // come the third field and those that follow; the 11th and the 13th are faults of children.
    let (_, fields) = text.rsplit_once(')').unwrap();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    [8, 10].iter().map(|at| fields[*at].parse::<u64>().unwrap()).sum()
}

/// Page faults of the whole program, and of a timed step as the program tells.
fn run(warmup: u64, steps: u64) -> (u64, f64) {
    let counts = [warmup.to_string(), steps.to_string()];
    let sizes = ["--workload", "transformer", "--batch", "64", "--device", "cpu", "--json"];
    let mut arguments = vec!["bench", "--warmup", &counts[0], "--steps", &counts[1]];
    arguments.extend(sizes);
    let before = of_children();
    let mut program = command(Path::new("."), &arguments);
    let output = program.env("RAYON_NUM_THREADS", "2").output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    let all = of_children() - before;
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [minor, major] = ["minor", "major"].map(|kind| told["page_faults"][kind].as_f64().unwrap());
    (all, minor + major)
}

#[test]
fn steps_after_the_first_ones_cause_next_to_no_page_faults() {
    if !cfg!(target_os = "linux") {
        println!("skipped: page faults of other programs are told by Linux alone");
        return;
    }
    // It may have to be built, which has faults of its own.
    program();
    let (few, _) = run(3, 4);
    let (many, warm) = run(3, 16);
    // Measured with 4 and 16 steps: 1,652 and 1,613 where the allocator gets large pages, 63,127 and 64,389 where it
    // does not. A step that took its 250 MB anew would add 130 or 60,000 of them.
    assert!(many <= few + few / 4, "{many} page faults with 16 steps, {few} with 4");
    assert!(16.0 * warm <= few as f64 / 4.0, "{warm} page faults of a step, {few} with 4 steps");
    // What is counted from the first step on is the memory that it takes.
    let (all, cold) = run(0, 4);
    assert!(4.0 * cold >= 60.0 && 4.0 * cold <= all as f64, "{cold} of a step, {all} in all");
    assert!(warm < cold / 2.0, "{warm} page faults of a step, and {cold} with the first ones");
}
