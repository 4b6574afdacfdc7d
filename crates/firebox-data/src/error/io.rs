//! Where a file or its disk refuses: whether the user can mend that, and the way out.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use super::DataError;

impl DataError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }

    /// Whether the user can mend it in settings or data; else the disk refused while running.
    pub fn is_bad_input(&self) -> bool {
        let Self::Io { action, source, .. } = self else {
            return !matches!(self, Self::Stopped | Self::NoRoom { .. });
        };
        match source.kind() {
            ErrorKind::StorageFull
            | ErrorKind::WouldBlock
            | ErrorKind::OutOfMemory
            | ErrorKind::FileTooLarge
            | ErrorKind::QuotaExceeded
            | ErrorKind::ReadOnlyFilesystem => false,
            ErrorKind::NotFound
            | ErrorKind::PermissionDenied
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory => true,
            _ => {
                !["write", "encode", "replace", "make"].iter().any(|made| action.starts_with(made))
            }
        }
    }
}

/// The way out where a disk takes nothing more.
pub(super) struct Room<'a>(pub(super) &'a std::io::Error);

impl fmt::Display for Room<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "\n  free some space, or name a place on another disk"
            }
            ErrorKind::FileTooLarge => {
                "\n  no file may be as large there: raise the limit (`ulimit -f`), or name a place on a disk that takes larger files"
            }
            ErrorKind::ReadOnlyFilesystem => "\n  name a place that can be written to",
            _ => "",
        })
    }
}
