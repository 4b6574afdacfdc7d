//! Where there are no tiles.

use std::convert::Infallible;

use super::Part;

/// There are none.
pub(in crate::cpu) struct Tiles(Infallible);

/// Whether there are any.
pub(in crate::cpu) fn available() -> bool {
    false
}

/// Nothing can stand for them here.
pub(in crate::cpu) fn assume() {}

impl Tiles {
    pub(super) fn set_up(_: usize) -> Option<Self> {
        None
    }

    /// # Safety
    /// Nobody can call it.
    pub(in crate::cpu) unsafe fn product(
        &self,
        _: usize,
        _: impl Iterator<Item = Part>,
        _: (*mut f32, usize),
        _: Option<(*const f32, usize)>,
    ) {
        match self.0 {}
    }
}
