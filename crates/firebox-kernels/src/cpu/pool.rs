//! Buffers that outlive a step: what one training step gave back, the next one takes.
//!
//! A fresh large allocation costs a page fault for every 4 KiB that is written to it, which is a
//! third of the time of a training step under glibc's allocator.

use std::sync::Mutex;

use super::block::Buffer;

/// Buffers that were given back, the oldest first, and how many numbers all buffers together had at
/// most at once: the pool never holds more than that.
struct Pool {
    idle: Vec<Buffer>,
    lent: usize,
    most: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { idle: vec![], lent: 0, most: 0 });

fn pool() -> std::sync::MutexGuard<'static, Pool> {
    #[cfg(test)]
    LOCKED.set(LOCKED.get() + 1);
    // Nothing in here can leave the pool half changed.
    POOL.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
thread_local! {
    static LOCKED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How often this thread has asked for the pool.
#[cfg(test)]
pub(super) fn times_locked() -> usize {
    LOCKED.get()
}

/// Gives up the memory that the processor's kernels keep from one step for the next, for who turns to
/// other work: buffers, and gradients of embeddings.
pub fn release_buffers() {
    crate::embedding::release_gradients();
    let mut pool = pool();
    pool.most = pool.lent;
    let idle = std::mem::take(&mut pool.idle);
    drop(pool);
    drop(idle);
}

/// Bytes of the memory that the processor's kernels keep from one step for the next: those in use, and
/// all of them.
pub fn buffer_bytes() -> [u64; 2] {
    let pool = pool();
    let idle: usize = pool.idle.iter().map(Buffer::capacity).sum();
    let buffers = [pool.lent, pool.lent + idle].map(|numbers| (numbers * size_of::<f32>()) as u64);
    drop(pool);
    let [held, kept] = crate::embedding::gradient_bytes();
    [buffers[0] + held, buffers[1] + kept]
}

/// A buffer that goes back to the pool when it is dropped, unless it was taken from it for good.
pub(super) struct Lent {
    /// As large as it ever was: numbers that were written once are not cleared for those who take more of
    /// them than the last.
    buffer: Buffer,
    /// Numbers that were asked for, in whole lines.
    count: usize,
    own: bool,
}

impl Lent {
    /// At least `count` numbers, whatever they are.
    pub(super) fn take(count: usize) -> Self {
        if count == 0 {
            // Small products ask for nothing thousands of times a second, and threads would wait for each other.
            return Self { buffer: Buffer::default(), count, own: true };
        }
        let mut pool = pool();
        let fits = |buffer: &Buffer| (count..=2 * count + 1024).contains(&buffer.capacity());
        let found = pool.idle.iter().rposition(fits);
        let mut buffer = found.map(|index| pool.idle.remove(index)).unwrap_or_default();
        let count = count.next_multiple_of(super::BLOCK);
        pool.lent += count;
        pool.most = pool.most.max(pool.lent);
        drop(pool);
        buffer.grow(count);
        Self { buffer, count, own: false }
    }

    /// The same memory, no longer the pool's: what is held for longer than a step.
    pub(super) fn taken(mut self) -> Self {
        if !self.own {
            self.own = true;
            let mut pool = pool();
            pool.lent = pool.lent.saturating_sub(self.count);
            drop(pool);
            self.buffer.shrink(self.count);
        }
        self
    }

    #[cfg(test)]
    pub(super) fn is_own(&self) -> bool {
        self.own
    }

    pub(super) fn get(&self) -> &[f32] {
        &self.buffer.get()[..self.count]
    }

    pub(super) fn get_mut(&mut self) -> &mut [f32] {
        &mut self.buffer.get_mut()[..self.count]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.own {
            return;
        }
        let buffer = std::mem::take(&mut self.buffer);
        let mut pool = pool();
        pool.lent = pool.lent.saturating_sub(self.count);
        pool.idle.push(buffer);
        let mut held = pool.lent + pool.idle.iter().map(Buffer::capacity).sum::<usize>();
        while held > pool.most + pool.most / 4 && !pool.idle.is_empty() {
            held -= pool.idle.remove(0).capacity();
        }
    }
}

impl std::fmt::Debug for Lent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "[f32; {}]", self.get().len())
    }
}
