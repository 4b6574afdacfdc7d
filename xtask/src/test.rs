//! `cargo xtask test`: runs every test, and counts as skipped what this machine cannot run.
//!
//! A test that lacks something (a GPU, `../shared/data`) prints a line that begins with
//! `skipped: ` and returns; the test harness calls that a pass, this module does not.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use crate::{build, cargo, program, root};

/// What the output of the test binaries said so far.
#[derive(Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
    /// Inside the output of tests that passed, of which only the `skipped: ` lines are shown.
    quiet: bool,
}

impl Counts {
    /// Takes a line of output and says whether to show it.
    fn take(&mut self, line: &str) -> bool {
        let trimmed = line.trim();
        if trimmed.starts_with("skipped: ") {
            self.skipped += 1;
            return true;
        }
        match trimmed {
            "successes:" => self.quiet = true,
            "failures:" => self.quiet = false,
            _ => {}
        }
        if let Some(result) = trimmed.strip_prefix("test result: ") {
            self.quiet = false;
            let number = |name: &str| {
                let before = result.split(name).next().unwrap_or_default().trim_end();
                before.rsplit([' ', ';']).next().and_then(|n| n.parse::<usize>().ok()).unwrap_or(0)
            };
            self.passed += number(" passed");
            self.failed += number(" failed");
            return number(" passed") + number(" failed") > 0;
        }
        !self.quiet && !trimmed.is_empty() && trimmed != "running 0 tests"
    }
}

/// Runs `cargo test` on the workspace; `arguments` are passed to the test binaries.
pub(crate) fn run(arguments: &[String]) -> Result<u8, String> {
    // The whole-program tests start this binary; built with the same features as the tests, it costs
    // no second build of Burn and polars.
    match build("firebox", &[])? {
        0 => {}
        code => return Ok(code),
    }
    let mut command = cargo();
    command.env("FIREBOX_PROGRAM", program());
    command.current_dir(root()).args(["test", "--release", "--workspace", "--no-fail-fast", "--"]);
    command.arg("--show-output").args(arguments).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("cannot start cargo: {error}"))?;
    let mut counts = Counts::default();
    let output = child.stdout.take().ok_or("cargo has no output")?;
    for line in BufReader::new(output).lines() {
        let line = line.map_err(|error| format!("cannot read the output of cargo: {error}"))?;
        if counts.take(&line) {
            // A closed terminal must not end the tests.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    }
    let status = child.wait().map_err(|error| format!("cargo was lost: {error}"))?;
    let passed = counts.passed.saturating_sub(counts.skipped);
    println!("\n{passed} passed, {} failed, {} skipped", counts.failed, counts.skipped);
    Ok(if status.success() { 0 } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_test_is_not_a_passed_one() {
        let mut counts = Counts::default();
        let lines = [
            "running 3 tests",
            "test a ... ok",
            "successes:",
            "---- a stdout ----",
            "skipped: no ../shared/data",
            "noise of a test that passed",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s",
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
        ];
        let shown: Vec<_> = lines.iter().filter(|line| counts.take(line)).collect();
        assert_eq!((counts.passed, counts.failed, counts.skipped), (4, 2, 1));
        assert!(!shown.iter().any(|line| line.contains("noise")));
    }
}
