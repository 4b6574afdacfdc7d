//! `cargo xtask test`: runs every test, and counts as skipped what this machine cannot run.
//!
//! A test that lacks something (a GPU, `../shared/data`) prints a line that begins with
//! `skipped: ` and returns; the test harness calls that a pass, this module does not. With `--nocapture`, where nothing
//! says whose a line is, the counts are rough.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use crate::{build, cargo, program, root};

/// What the output of the test binaries said so far.
#[derive(Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
    part: Part,
    /// Tests of the binaries whose results were not met yet, the last one at the end: one that crashes has none.
    running: Vec<usize>,
    /// Whether the test whose output this is counts as skipped already: it may say why more than once.
    is_counted: bool,
}

/// Where the output of a test binary is. The two lists have what each test said, in blocks, and then the names. What tests
/// said may be the output of test binaries that they have started, which end in lines like these, too.
#[derive(Clone, Copy, Default, PartialEq)]
enum Part {
    /// Before the lists: tests as they end.
    #[default]
    Tests,
    /// What tests that passed said, of which only the `skipped: ` lines are shown.
    SaidOfPassed,
    NamesOfPassed,
    Failed,
}

impl Part {
    /// The part that a line begins, if it begins one.
    fn after(self, line: &str) -> Option<Self> {
        match (line, self) {
            ("successes:", Self::SaidOfPassed) => Some(Self::NamesOfPassed),
            ("successes:", Self::Tests) => Some(Self::SaidOfPassed),
            ("failures:", Self::Tests | Self::NamesOfPassed) => Some(Self::Failed),
            _ => None,
        }
    }
}

impl Counts {
    /// Takes a line of output and says whether to show it.
    fn take(&mut self, line: &str) -> bool {
        let trimmed = line.trim();
        if trimmed.starts_with("skipped: ") {
            // A test that failed is not skipped, whatever it said before.
            let is_skipped = self.part != Part::Failed && !self.is_counted;
            self.skipped += usize::from(is_skipped);
            self.is_counted = matches!(self.part, Part::SaidOfPassed | Part::Failed);
            return true;
        }
        if trimmed.starts_with("---- ") && trimmed.ends_with(" stdout ----") {
            self.is_counted = false;
        }
        self.part = self.part.after(trimmed).unwrap_or(self.part);
        if self.part == Part::Tests
            && let Some(tests) = begun(trimmed)
        {
            self.running.push(tests);
        }
        if let Some(result) = trimmed.strip_prefix("test result: ")
            && self.part != Part::SaidOfPassed
        {
            return self.end(result);
        }
        let is_quiet = matches!(self.part, Part::SaidOfPassed | Part::NamesOfPassed);
        !is_quiet && !trimmed.is_empty() && trimmed != "running 0 tests"
    }

    /// Takes the result of a test binary, if it is one, and says whether to show it.
    fn end(&mut self, result: &str) -> bool {
        let number = |name: &str| {
            let before = result.split(name).next().unwrap_or_default().trim_end();
            before.rsplit([' ', ';']).next().and_then(|n| n.parse::<usize>().ok()).unwrap_or(0)
        };
        let [passed, failed] = [" passed", " failed"].map(number);
        let tests = passed + failed + number(" ignored") + number(" measured");
        let found = self.running.iter().rposition(|running| *running == tests);
        // Beside what failed tests said: one without failures is none of the binary that has them.
        let is_nested = self.part == Part::Failed && failed == 0;
        if let Some(found) = found.filter(|_| !is_nested) {
            self.running.truncate(found);
            self.passed += passed;
            self.failed += failed;
        } else if self.part == Part::Failed && !self.running.is_empty() {
            return true;
        }
        (self.part, self.is_counted) = (Part::Tests, false);
        passed + failed > 0
    }
}

/// How many tests a test binary says that it runs.
fn begun(line: &str) -> Option<usize> {
    let (number, rest) = line.strip_prefix("running ")?.split_once(' ')?;
    number.parse().ok().filter(|_| matches!(rest, "test" | "tests"))
}

/// What `cargo test` is asked for, one after the other: all but examples, which no test runs and clippy compiles.
const PARTS: [&str; 2] = ["--tests", "--doc"];

/// Runs `cargo test` on the workspace; `arguments` are passed to the test binaries.
pub(crate) fn run(arguments: &[String]) -> Result<u8, String> {
    // The whole-program tests start this binary; built with the same features as the tests, it costs
    // no second build of Burn and polars.
    match build("firebox", &[])? {
        0 => {}
        code => return Ok(code),
    }
    let (mut passed, mut failed, mut skipped, mut succeeded) = (0, 0, 0, true);
    for part in PARTS {
        let (counts, status) = run_part(part, arguments)?;
        passed += counts.passed;
        failed += counts.failed;
        skipped += counts.skipped;
        succeeded &= status;
    }
    println!("\n{} passed, {failed} failed, {skipped} skipped", passed.saturating_sub(skipped));
    Ok(if succeeded { 0 } else { 1 })
}

/// One of [`PARTS`]: what its tests said, and whether all of them passed.
fn run_part(part: &str, arguments: &[String]) -> Result<(Counts, bool), String> {
    let mut command = cargo();
    command.env("FIREBOX_PROGRAM", program());
    command.current_dir(root()).args(["test", "--release", "--workspace", "--no-fail-fast", part]);
    command.args(["--", "--show-output"]).args(arguments).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("cannot start cargo: {error}"))?;
    let output = child.stdout.take().ok_or_else(|| std::io::Error::other("there is none"));
    // A closed terminal must not end the tests.
    let show = |line: &str| drop(writeln!(std::io::stdout(), "{line}"));
    let counts = match output.and_then(|output| counted(output, show)) {
        Ok(counts) => counts,
        Err(error) => {
            // Nobody hears what it has to say.
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("cannot read the output of cargo: {error}"));
        }
    };
    let status = child.wait().map_err(|error| format!("cargo was lost: {error}"))?;
    Ok((counts, status.success()))
}

/// Reads the output of the tests to its end, and shows what is of interest.
fn counted(output: impl Read, show: impl Fn(&str)) -> std::io::Result<Counts> {
    let (mut counts, mut output, mut line) = (Counts::default(), BufReader::new(output), vec![]);
    while output.read_until(b'\n', &mut line)? > 0 {
        // Tests may print any bytes.
        let text = String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned();
        if counts.take(&text) {
            show(&text);
        }
        line.clear();
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passed, failed and skipped tests of an output, and what of it is shown.
    fn counts(lines: &[&str]) -> ([usize; 3], String) {
        let mut counts = Counts::default();
        let shown: Vec<&str> = lines.iter().copied().filter(|line| counts.take(line)).collect();
        ([counts.passed, counts.failed, counts.skipped], shown.join("\n"))
    }

    #[test]
    fn a_skipped_test_is_not_a_passed_one() {
        let (found, shown) = counts(&[
            "running 4 tests",
            "test a ... ok",
            "",
            "successes:",
            "",
            "---- a stdout ----",
            "skipped: no ../shared/data",
            "noise of a test that passed",
            "skipped: no Python",
            "",
            "---- b stdout ----",
            "skipped: no ../shared/data",
            "",
            "successes:",
            "    a",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s",
            "running 3 tests",
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
        ]);
        assert_eq!(found, [4, 2, 2], "{shown}");
        assert!(!shown.contains("noise") && shown.contains("no Python"), "{shown}");
    }

    #[test]
    fn tests_that_tests_have_started_are_not_counted() {
        let nested = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out";
        let (found, shown) = counts(&[
            "running 2 tests",
            "successes:",
            "---- a stdout ----",
            "running 1 test",
            "test a ... ok",
            nested,
            "successes:",
            "    a",
            "failures:",
            "---- b stdout ----",
            "skipped: only a part of it",
            nested,
            "b panicked",
            "failures:",
            "    b",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out",
        ]);
        assert_eq!(found, [1, 1, 0], "{shown}");
        assert!(shown.contains("b panicked") && !shown.contains("test a ... ok"), "{shown}");
    }

    #[test]
    fn failures_of_tests_that_tests_have_started_are_not_counted_either() {
        let ok = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        let failed = |passed: usize| {
            format!(
                "test result: FAILED. {passed} passed; 1 failed; 0 ignored; 0 measured; 3 filtered out"
            )
        };
        // What one that fails says of one that it has started, which has as many tests in the second case.
        for passed in [4, 0] {
            let (begun, result) = (format!("running {} tests", passed + 1), failed(passed));
            let nested = failed(0);
            let of_failed = [
                &begun,
                "failures:",
                "---- a stdout ----",
                "running 1 test",
                "failures:",
                "---- a stdout ----",
                "a panicked",
                "failures:",
                "    a",
                &nested,
                "a panicked: FAILED",
                "failures:",
                "    a",
                &result,
            ];
            let of_others =
                ["running 2 tests", "test b ... ok", "successes:", "successes:", "    b", ok];
            let (found, shown) = counts(&[&of_failed[..], &of_others[..]].concat());
            assert_eq!(found, [passed + 2, 1, 0], "{shown}");
        }
        // One that crashed says nothing of its tests, and those after it count.
        let (found, _) = counts(&["running 9 tests", "test a ... ok", "running 2 tests", ok]);
        assert_eq!(found, [2, 0, 0]);
    }

    #[test]
    fn bytes_that_are_no_text_end_nothing() {
        let output = b"running 2 tests\r\ntest a ... ok \xff\r\ntest result: ok. 2 passed; 0 failed; 0 ignored\n";
        assert_eq!(counted(&output[..], |_| ()).unwrap().passed, 2);
    }
}
