//! What a person sees while a run goes on: a bar in a terminal, plain lines elsewhere, or JSON.
//!
//! Everything here goes to standard error; the result goes to standard output.

use std::fmt::Write;
use std::io::{IsTerminal, Write as _};
use std::sync::Mutex;
use std::time::Duration;

use firebox_core::{Event, Listener, Request};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// How events are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// A progress bar in a terminal, plain lines elsewhere.
    #[default]
    Text,
    /// One JSON object a line, on standard error.
    Json,
}

/// Shows events as they come.
pub(crate) struct Terminal {
    format: LogFormat,
    bar: Mutex<Option<ProgressBar>>,
    interactive: bool,
}

impl Terminal {
    pub(crate) fn new(format: LogFormat) -> Self {
        let interactive = format == LogFormat::Text && std::io::stderr().is_terminal();
        Self { format, bar: Mutex::new(None), interactive }
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
        let bar = slot.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let template =
                "  {bar:28} {percent:>3}%  {human_pos}/{human_len} {msg}  {rate}  {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                let rate = |state: &ProgressState, out: &mut dyn Write| {
                    // A terminal that cannot be written to shows no rate either.
                    let _ = out.write_str(&rate(state.per_sec()));
                };
                bar.set_style(style.progress_chars("━╸ ").with_key("rate", rate));
            }
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        bar.set_length(total);
        bar.set_position(done);
        if bar.message() != unit {
            bar.set_message(unit.to_owned());
        }
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
                self.line(&format!("{stage:<10} {how:>8}  {detail}{key}"));
            }
            Event::Epoch { epoch, step, train_loss, validation_loss, best, seconds } => {
                let validation =
                    validation_loss.map_or(String::new(), |loss| format!("  validation {loss:.5}"));
                let best = if *best { "  best" } else { "" };
                self.line(&format!(
                    "  epoch {epoch:>3}  step {step:>6}  loss {train_loss:.5}{validation}  {}{best}",
                    duration(*seconds)
                ));
            }
            Event::Warning { message } => self.line(&format!("warning: {message}")),
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

/// Writing to a closed terminal must not end the run.
pub(crate) fn write_line(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// How much is done in a second, with three digits.
fn rate(per_second: f64) -> String {
    match per_second {
        r if r < 9.95 => format!("{r:.2}/s"),
        r if r < 99.5 => format!("{r:.1}/s"),
        r => format!("{r:.0}/s"),
    }
}

/// Seconds as a person writes them.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 0.0995 => format!("{:.0} ms", s * 1e3),
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 99.5 => format!("{s:.0} s"),
        s => format!("{}:{:02} min", s as u64 / 60, s as u64 % 60),
    }
}

impl Listener for Terminal {
    fn on(&self, event: &Event) {
        match self.format {
            LogFormat::Text => self.text(event),
            LogFormat::Json => {
                if let Ok(text) = serde_json::to_string(event) {
                    write_line(&text);
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
        let texts = [0.004, 0.5, 12.3, 99.4, 150.0].map(duration);
        assert_eq!([1.234, 18.2723, 456.7].map(rate), ["1.23/s", "18.3/s", "457/s"]);
        assert_eq!(texts, ["4 ms", "0.5 s", "12 s", "99 s", "2:30 min"]);
    }
}
