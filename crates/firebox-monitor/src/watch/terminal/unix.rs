use std::io::{Stdout, stdin, stdout};

use ratatui::Terminal;
use ratatui::backend::TermionBackend;
use ratatui::termion::event::Key as Pressed;
use ratatui::termion::input::TermRead as _;
use ratatui::termion::raw::{IntoRawMode as _, RawTerminal};
use ratatui::termion::screen::{AlternateScreen, IntoAlternateScreen as _};

use super::Key;

/// A screen of its own, which gives the terminal back when it is dropped.
type Screen = TermionBackend<AlternateScreen<RawTerminal<Stdout>>>;

/// Takes the terminal.
pub(in crate::watch) fn open() -> std::io::Result<Terminal<Screen>> {
    let screen = stdout().into_raw_mode()?.into_alternate_screen()?;
    Terminal::new(TermionBackend::new(screen))
}

/// Each key as it is pressed, until the terminal is closed.
pub(super) fn pressed() -> impl Iterator<Item = Key> {
    stdin().keys().map_while(Result::ok).map(|key| match key {
        Pressed::Esc | Pressed::Ctrl('c') => Key::Leave,
        Pressed::Char(key) => Key::Char(key),
        _ => Key::Other,
    })
}
