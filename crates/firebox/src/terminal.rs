//! What a person sees while a run goes on: a bar in a terminal, plain lines elsewhere, or JSON.
//!
//! Everything here goes to standard error; the result goes to standard output.

use std::fmt::Write;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use firebox_core::{Event, Listener, Request};
use firebox_pipeline::loss_text;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// How events are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// A progress bar in a terminal, plain lines elsewhere.
    #[default]
    Text,
    /// One JSON object a line, on standard error.
    Json,
}

/// What is said when work is asked to stop that takes steps.
pub(crate) const AFTER_THIS_STEP: &str =
    "stopping after this step; press Ctrl-C again to stop at once and lose it";
/// The same while data are read.
const AFTER_THIS_PART: &str = "stopping after the part of the data that is being read, of which nothing is kept; press Ctrl-C \
                               again to stop at once";
/// The same where neither is done.
pub(crate) const SOON: &str =
    "stopping soon; what is complete is kept; press Ctrl-C again to stop at once";

/// What is in hand, as events tell it.
#[derive(Clone, Default)]
pub(crate) struct InHand(Arc<Mutex<(Option<String>, bool)>>);

impl InHand {
    /// Takes note of the stage, and of whether data are being read: trials do that within a stage of their own.
    fn hear(&self, event: &Event) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::StageStarted { stage } => *known = (Some(stage.clone()), stage == INGEST),
            Event::StageFinished { .. } => *known = (None, false),
            Event::Progress { stage, done, total, .. } if stage == INGEST => known.1 = done < total,
            _ => {}
        }
    }

    /// What is said when it is asked to stop; the other where no stage is known.
    pub(crate) fn stopping(&self, otherwise: &'static str) -> &'static str {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (known.0.as_deref(), known.1) {
            (_, true) | (Some(INGEST), _) => AFTER_THIS_PART,
            (None, _) => otherwise,
            (Some("windows" | "augment" | "tokenise"), _) => SOON,
            (Some(_), _) => AFTER_THIS_STEP,
        }
    }
}

/// The stage that reads data.
const INGEST: &str = "ingest";

/// Shows events as they come.
pub(crate) struct Terminal {
    format: LogFormat,
    bar: Mutex<Option<ProgressBar>>,
    interactive: bool,
    in_hand: InHand,
}

impl Terminal {
    pub(crate) fn new(format: LogFormat) -> Self {
        let interactive = format == LogFormat::Text && std::io::stderr().is_terminal();
        Self { format, bar: Mutex::new(None), interactive, in_hand: InHand::default() }
    }

    /// What is in hand, for whoever says what is waited for.
    pub(crate) fn in_hand(&self) -> InHand {
        self.in_hand.clone()
    }

    /// Ends the bar, so that what is printed next stands on a line of its own.
    pub(crate) fn close(&self) {
        if let Ok(mut bar) = self.bar.lock()
            && let Some(bar) = bar.take()
        {
            bar.finish_and_clear();
        }
    }

    fn line(&self, text: &str) {
        let bar = self.bar.lock().ok().and_then(|bar| bar.clone());
        match bar {
            Some(bar) => bar.suspend(|| write_line(text)),
            None => write_line(text),
        }
    }

    fn progress(&self, done: u64, total: u64, unit: &str) {
        if !self.interactive {
            return;
        }
        let Ok(mut slot) = self.bar.lock() else { return };
        // What is counted in something else is shown in another way.
        if let Some(other) = slot.take_if(|bar| bar.message() != unit) {
            other.finish_and_clear();
        }
        let bar = slot.get_or_insert_with(|| {
            let bar = hidden_bar(done, total, unit);
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        bar.set_length(total);
        bar.set_position(done);
    }

    fn text(&self, event: &Event) {
        match event {
            Event::RunStarted { run, device, resumed_at_step } => {
                let resumed = resumed_at_step
                    .map_or(String::new(), |step| format!(", resumed at step {step}"));
                self.line(&format!("run {run}{resumed}\ndevice {device}"));
            }
            Event::StageStarted { .. } => self.close(),
            Event::Progress { done, total, unit, .. } => self.progress(*done, *total, unit),
            Event::StageFinished { stage, key, reused, seconds, detail } => {
                self.close();
                let key = key.map_or(String::new(), |key| format!("  [{}]", key.short()));
                let how = if *reused { "reused".to_owned() } else { duration(*seconds) };
                self.line(&format!("{stage:<10} {how:>10}  {detail}{key}"));
            }
            Event::Epoch { epoch, step, train_loss, validation_loss, best, seconds } => {
                let validation = validation_loss
                    .map_or(String::new(), |found| format!("  validation {}", loss_text(found)));
                let best = if *best { "  best" } else { "" };
                self.line(&format!(
                    "  epoch {epoch:>3}  step {step:>6}  loss {}{validation}  {}{best}",
                    loss_text(*train_loss),
                    duration(*seconds)
                ));
            }
            Event::Warning { message } => {
                self.line(&format!("warning: {}", with_short_names(message)));
            }
            Event::RunFinished { .. } => self.close(),
            Event::LossScale { step, before, scale, overflows } => {
                let why =
                    if scale < before { "a gradient overflowed" } else { "none has for long" };
                self.line(&format!(
                    "  step {step:>6}  loss scale {before} -> {scale}, as {why} ({overflows} skipped so far)"
                ));
            }
            Event::Asked { request, step } => {
                let done = match request {
                    Request::Pause => "paused",
                    Request::GoOn => "going on",
                    Request::Save => "saving, as asked,",
                    Request::StopAfterEpoch => "stopping after this epoch, as asked",
                };
                self.line(&format!("  {done} after step {step}"));
            }
            Event::Step { .. }
            | Event::Times { .. }
            | Event::Checkpoint { .. }
            | Event::Scored { .. }
            | Event::Machine(_) => {}
        }
    }
}

/// A bar that is not drawn yet. What was done before it was made, as by the attempt that a resumed one goes on with, says
/// nothing about its rate.
fn hidden_bar(done: u64, total: u64, unit: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
    let template = match unit {
        "bytes" => {
            "  {bar:28} {percent:>3}%  {decimal_bytes}/{decimal_total_bytes}  {decimal_bytes_per_sec}  {left} left"
        }
        _ => "  {bar:28} {percent:>3}%  {human_pos}/{human_len} {msg}  {rate}  {left} left",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        let rate = |state: &ProgressState, out: &mut dyn Write| {
            // A terminal that cannot be written to shows no rate either.
            let _ = out.write_str(&rate(state.per_sec()));
        };
        let left = |state: &ProgressState, out: &mut dyn Write| {
            let rest = state.len().unwrap_or_default().saturating_sub(state.pos());
            let _ = out.write_str(&left(rest, state.per_sec(), state.eta()));
        };
        let style = style.with_key("rate", rate).with_key("left", left);
        bar.set_style(style.progress_chars("━╸ "));
    }
    bar.set_message(unit.to_owned());
    bar.set_position(done);
    // A tick takes note of the position, from which on the rate is then measured.
    bar.tick();
    bar.reset_eta();
    bar
}

/// Writing to a closed terminal must not end the run.
pub(crate) fn write_line(text: &str) {
    write_at_once(&mut std::io::stderr(), &shown(text));
}

/// Text in which nothing moves the cursor or changes colours: names of data may hold any character. None of ours does.
pub(crate) fn shown(text: &str) -> String {
    let acts = |character: char| character.is_control() && !matches!(character, '\n' | '\t');
    text.replace("\r\n", "\n").replace(acts, "\u{fffd}")
}

/// A message in which what stands between backticks has its beginning alone where it is longer than commands are: names of
/// data may be whole texts.
pub(crate) fn with_short_names(text: &str) -> String {
    /// Characters.
    const LONGEST: usize = 1000;
    let parts: Vec<&str> = text.split('`').collect();
    let short = |(place, part): (usize, &&str)| {
        // Of an odd number of backticks the last begins nothing.
        let is_name = place % 2 == 1 && place + 1 < parts.len();
        match part.char_indices().nth(LONGEST).filter(|_| is_name) {
            Some((end, _)) => format!("{}…", &part[..end]),
            None => (*part).to_owned(),
        }
    };
    parts.iter().enumerate().map(short).collect::<Vec<_>>().join("`")
}

/// The same JSON with escapes for the control characters beyond ASCII's first ones.
fn escaped(json: String) -> String {
    if !json.contains(char::is_control) {
        return json;
    }
    json.chars().fold(String::new(), |mut out, c| {
        let _ =
            if c.is_control() { write!(out, "\\u{:04x}", u32::from(c)) } else { out.write_char(c) };
        out
    })
}

/// [`write_line`], for which nobody waits longer than that.
pub(crate) fn write_line_within(patience: Duration, text: String) {
    let (done, waited_for) = std::sync::mpsc::channel();
    let write = {
        let text = text.clone();
        move || {
            write_line(&text);
            let _ = done.send(());
        }
    };
    match std::thread::Builder::new().spawn(write) {
        Ok(_) => drop(waited_for.recv_timeout(patience)),
        // There is no memory for a thread.
        Err(_) => write_line(&text),
    }
}

/// Text and end of the line in one write: workers share what they write to, and standard error is not buffered.
fn write_at_once(out: &mut impl std::io::Write, text: &str) {
    let _ = out.write_all(format!("{text}\n").as_bytes());
}

/// How much is done in a second, with three digits; of what is slow, in a minute or an hour.
fn rate(per_second: f64) -> String {
    match per_second {
        r if r.is_nan() || r <= 0.0 => "0.00/s".to_owned(),
        r if r < 0.095 / 60.0 => format!("{:.2}/h", 3600.0 * r),
        r if r < 0.095 => format!("{:.2}/min", 60.0 * r),
        r if r < 9.95 => format!("{r:.2}/s"),
        r if r < 99.5 => format!("{r:.1}/s"),
        r => format!("{r:.0}/s"),
    }
}

/// How long the rest takes; nobody knows while nothing was done, which indicatif tells as no time at all.
fn left(rest: u64, per_second: f64, time: Duration) -> String {
    match rest {
        1.. if per_second.is_nan() || per_second <= 0.0 => "?".to_owned(),
        _ => format!("{:#}", HumanDuration(time)),
    }
}

/// Seconds as a person writes them.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 0.0995 => format!("{:.0} ms", s * 1e3),
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 99.5 => format!("{s:.0} s"),
        s if s < 3600.0 => format!("{}:{:02} min", s as u64 / 60, s as u64 % 60),
        s => {
            let minutes = s as u64 / 60;
            format!("{}:{:02}:{:02} h", minutes / 60, minutes % 60, s as u64 % 60)
        }
    }
}

impl Listener for Terminal {
    fn on(&self, event: &Event) {
        self.in_hand.hear(event);
        match self.format {
            LogFormat::Text => self.text(event),
            LogFormat::Json => {
                // JSON has escapes for most control characters; the others are written so, too.
                if let Ok(text) = serde_json::to_string(event) {
                    write_at_once(&mut std::io::stderr(), &escaped(text));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        let texts = [0.004, 0.5, 12.3, 99.4, 150.0, 3599.9, 43_205.0].map(duration);
        assert_eq!([1.234, 18.2723, 456.7].map(rate), ["1.23/s", "18.3/s", "457/s"]);
        let slow = [0.1, 1.0 / 300.0, 1.0 / 7200.0, 0.0, f64::NAN].map(rate);
        assert_eq!(slow, ["0.10/s", "0.20/min", "0.50/h", "0.00/s", "0.00/s"]);
        let expected = ["4 ms", "0.5 s", "12 s", "99 s", "2:30 min", "59:59 min", "12:00:05 h"];
        assert_eq!(texts, expected);
    }

    #[test]
    fn the_time_that_is_left_is_not_known_before_something_was_done() {
        assert_eq!(left(1600, 0.0, Duration::ZERO), "?");
        assert_eq!(left(1600, f64::NAN, Duration::ZERO), "?");
        assert_eq!(left(6, 0.5, Duration::from_secs(12)), "12s");
        assert_eq!(left(0, 0.0, Duration::ZERO), "0s");
    }

    #[test]
    fn what_was_done_before_a_bar_is_not_taken_for_its_rate() {
        let bar = hidden_bar(90_000, 100_000, "steps");
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!((bar.position(), bar.per_sec()), (90_000, 0.0));
        bar.set_position(90_010);
        bar.tick();
        // Ten in at least 20 ms.
        assert!((0.0..=500.0).contains(&bar.per_sec()), "{}", bar.per_sec());
    }

    #[test]
    fn names_of_data_do_not_reach_the_terminal_as_commands() {
        let text = shown("series `\u{1b}[2J\u{9b}31m\r\u{7}数据`\tof\r\ntwo lines");
        let expected = "series `\u{fffd}[2J\u{fffd}31m\u{fffd}\u{fffd}数据`\tof\ntwo lines";
        assert_eq!(text, expected);
    }

    #[test]
    fn of_a_long_name_the_beginning_is_shown() {
        let long = "数".repeat(1001);
        let said = |name: &str| format!("`a` is fine, and `{name}` is ` {long}");
        assert_eq!(with_short_names(&said(&long)), said(&format!("{}…", "数".repeat(1000))));
        let whole = said(&"数".repeat(1000));
        assert_eq!(with_short_names(&whole), whole);
        assert_eq!(with_short_names(""), "");
    }

    #[test]
    fn a_line_is_written_at_once() {
        struct Writes(Vec<Vec<u8>>);
        impl std::io::Write for Writes {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.push(bytes.to_vec());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let mut writes = Writes(vec![]);
        write_at_once(&mut writes, "trial 3 begins\n  with x = 1");
        assert_eq!(writes.0, [b"trial 3 begins\n  with x = 1\n".to_vec()]);
    }

    #[test]
    fn whoever_stops_hears_what_is_waited_for() {
        let in_hand = InHand::default();
        let begins = |stage: &str| in_hand.hear(&Event::StageStarted { stage: stage.to_owned() });
        let reads = |done, total| {
            let (stage, unit) = (INGEST.to_owned(), "bytes".to_owned());
            in_hand.hear(&Event::Progress { stage, done, total, unit });
        };
        let said = || in_hand.stopping("otherwise");
        assert_eq!(said(), "otherwise");
        begins("ingest");
        assert!(said() == AFTER_THIS_PART && !said().contains("step"));
        reads(3, 3);
        assert_eq!(said(), AFTER_THIS_PART);
        in_hand.hear(&Event::StageFinished {
            stage: "ingest".to_owned(),
            key: None,
            reused: false,
            seconds: 1.0,
            detail: String::new(),
        });
        assert_eq!(said(), "otherwise");
        begins("augment");
        assert_eq!(said(), SOON);
        begins("train");
        assert_eq!(said(), AFTER_THIS_STEP);
        // A trial reads data in a stage of its own.
        begins("trial 3");
        reads(0, 3);
        assert_eq!(said(), AFTER_THIS_PART);
        reads(3, 3);
        assert_eq!(said(), AFTER_THIS_STEP);
    }
}
