use std::io::{Stdout, Write, stdout};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, read};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

use super::Key;

/// A screen of its own, which gives the terminal back when it is dropped.
pub(in crate::watch) struct Screen(Stdout);

/// Takes the terminal.
pub(in crate::watch) fn open() -> std::io::Result<Terminal<CrosstermBackend<Screen>>> {
    enable_raw_mode()?;
    let mut screen = Screen(stdout());
    execute!(screen, EnterAlternateScreen)?;
    Terminal::new(CrosstermBackend::new(screen))
}

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that was closed needs nothing back.
        let _ = execute!(self.0, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

/// Each key as it is pressed, until the terminal is closed.
pub(super) fn pressed() -> impl Iterator<Item = Key> {
    std::iter::from_fn(|| read().ok()).filter_map(|event| {
        // Windows tells of a key that is let go, too.
        let Event::Key(key) = event else { return None };
        let key = (key.kind != KeyEventKind::Release).then_some(key)?;
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        Some(match key.code {
            KeyCode::Esc => Key::Leave,
            KeyCode::Char('c') if control => Key::Leave,
            KeyCode::Char(key) if !control => Key::Char(key),
            _ => Key::Other,
        })
    })
}
