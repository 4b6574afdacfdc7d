//! The terminal that the dashboard is drawn on, and the keys that are pressed there.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::sync::mpsc::{Receiver, channel};

#[cfg(unix)]
pub(super) use unix::open;
#[cfg(unix)]
use unix::pressed;
#[cfg(windows)]
pub(super) use windows::open;
#[cfg(windows)]
use windows::pressed;

/// What a key stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// A character.
    Char(char),
    /// Escape, or Ctrl-C.
    Leave,
    /// Any other.
    Other,
}

/// Keys as they are pressed; the thread ends with the process or the terminal.
pub(super) fn keys() -> Receiver<Key> {
    let (sender, keys) = channel();
    std::thread::spawn(move || {
        for key in pressed() {
            if sender.send(key).is_err() {
                break;
            }
        }
    });
    keys
}
