//! Counts what a program takes of memory while training steps are profiled: an allocator around
//! another.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static COUNTING: AtomicBool = AtomicBool::new(false);
static INSTALLED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// An allocator that counts what is taken of another one while a profile is recorded. Otherwise a
/// call costs one more read of memory.
///
/// A program that has it as its `#[global_allocator]` gets allocations into its profiles.
#[derive(Debug)]
pub struct Counted<A>(pub A);

fn count(bytes: usize) {
    if COUNTING.load(Ordering::Relaxed) {
        COUNT.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    } else if !INSTALLED.load(Ordering::Relaxed) {
        INSTALLED.store(true, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on as it came, and counting takes no memory.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counted<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.realloc(memory, layout, size) }
    }
}

/// Counts from zero, once counting goes on.
pub(super) fn forget_counted() {
    COUNT.store(0, Ordering::Relaxed);
    BYTES.store(0, Ordering::Relaxed);
}

/// Counting goes on, or stands still.
pub(super) fn counting(on: bool) {
    COUNTING.store(on, Ordering::Relaxed);
}

/// How often memory was taken, and how much, while it was counted; `None` in a program that does not
/// count.
pub(super) fn counted() -> Option<(u64, u64)> {
    let installed = INSTALLED.load(Ordering::Relaxed);
    installed.then(|| (COUNT.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed)))
}

/// What is counted is the whole process's: tests that count do so one after the other.
#[cfg(test)]
pub(super) static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use std::alloc::System;
    use std::sync::PoisonError;

    use super::*;

    #[test]
    fn what_is_taken_is_counted_only_while_it_is_asked_for() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let allocator = Counted(System);
        let layout = Layout::from_size_align(100, 8).unwrap();
        let take = || {
            // SAFETY: the memory is given back with the layout that it was taken with.
            unsafe {
                let memory = allocator.alloc(layout);
                let memory = allocator.realloc(memory, layout, 300);
                let larger = Layout::from_size_align(300, 8).unwrap();
                allocator.dealloc(memory, larger);
                let memory = allocator.alloc_zeroed(layout);
                assert_eq!(*memory, 0);
                allocator.dealloc(memory, layout);
            }
        };
        take();
        forget_counted();
        counting(true);
        take();
        counting(false);
        take();
        assert_eq!(counted(), Some((3, 500)));
        counting(true);
        take();
        counting(false);
        assert_eq!(counted(), Some((6, 1000)));
        forget_counted();
        assert_eq!(counted(), Some((0, 0)));
    }
}
