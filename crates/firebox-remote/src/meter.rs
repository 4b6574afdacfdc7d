//! Word of how much of a file has come.

use std::cell::Cell;
use std::time::Instant;

use firebox_core::{Event, Listener};

/// Tells how much of a file has come: each megabyte, and at least each second in which something does.
pub(crate) struct Meter<'a> {
    listener: &'a dyn Listener,
    total: u64,
    done: Cell<u64>,
    told: Cell<(u64, Instant)>,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(listener: &'a dyn Listener, done: u64, total: u64) -> Self {
        let told = Cell::new((done, Instant::now()));
        let meter = Self { listener, total, done: Cell::new(done), told };
        meter.tell();
        meter
    }

    pub(crate) fn add(&self, bytes: u64) {
        let done = self.done.get() + bytes;
        self.done.set(done);
        let (told, since) = self.told.get();
        if done - told >= 1 << 20 || done >= self.total || since.elapsed().as_secs() > 0 {
            self.told.set((done, Instant::now()));
            self.tell();
        }
    }

    pub(crate) fn restart(&self) {
        self.done.set(0);
        self.told.set((0, Instant::now()));
        self.tell();
    }

    fn tell(&self) {
        let (stage, unit) = ("fetch".to_owned(), "bytes".to_owned());
        let (done, total) = (self.done.get(), self.total);
        self.listener.on(&Event::Progress { stage, done, total, unit });
    }
}
