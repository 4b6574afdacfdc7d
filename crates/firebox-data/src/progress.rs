//! Word of how far ingestion is, over everything that is done with the files.
//!
//! That is done in passes: hashing; reading; reading anew, where something was found that is to be known first; merging rows that
//! were sorted; making timeframes; copying; storing. Each counts as many bytes as the files have, however many it moves:
//! how many that will be is not known before. Of files that are taken as a whole, the files themselves are counted. What
//! is done never becomes less; what is to be done does, or more, when a pass is found to be needed or is left.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use firebox_core::{Event, Listener};

/// Parts of a pass that are told, at most, beside those that took long.
const PARTS: u64 = 100;
/// What took longer than this is told, however little it is.
const LONG: Duration = Duration::from_secs(1);

/// Tells a listener how far ingestion is.
pub(crate) struct Progress<'a> {
    listener: &'a dyn Listener,
    unit: &'static str,
    /// Where each file ends in a pass.
    ends: Vec<u64>,
    state: Mutex<State>,
}

/// The pass in hand.
struct State {
    begin: u64,
    done: u64,
    /// Passes behind it.
    left: u64,
    /// What was told last, of all passes, and when.
    told: Option<[u64; 2]>,
    when: Instant,
}

impl<'a> Progress<'a> {
    /// Of files that have so many of what is counted.
    pub(crate) fn of(
        listener: &'a dyn Listener,
        unit: &'static str,
        files: impl Iterator<Item = u64>,
    ) -> Self {
        let mut end = 0;
        let ends = files.map(|own| {
            end += own.max(1);
            end
        });
        let ends = ends.collect();
        let state = State { begin: 0, done: 0, left: 0, told: None, when: Instant::now() };
        Self { listener, unit, ends, state: Mutex::new(state) }
    }

    /// So many passes follow on the first one, which is told once something of it is done.
    pub(crate) fn expect(&self, following: u64) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).left = following;
    }

    /// Begins a pass, behind which so many follow, whatever was done before.
    pub(crate) fn begin(&self, following: u64) {
        self.change(|state, _| {
            state.begin += std::mem::take(&mut state.done);
            state.left = following;
        });
    }

    /// Ends the pass in hand and begins the next one.
    pub(crate) fn next(&self) {
        self.change(|state, pass| {
            (state.begin, state.done) = (state.begin + pass, 0);
            state.left = state.left.saturating_sub(1);
        });
    }

    /// The same with a pass that nobody knew of.
    pub(crate) fn another(&self) {
        self.change(|state, pass| (state.begin, state.done) = (state.begin + pass, 0));
    }

    /// Ends the last pass.
    pub(crate) fn end(&self) {
        self.change(|state, pass| (state.done, state.left) = (pass, 0));
    }

    /// All of the pass in hand.
    pub(crate) fn all(&self) -> Share<'_> {
        Share { progress: self, own: 0..self.pass() }
    }

    /// What one file is of the pass in hand.
    pub(crate) fn file(&self, index: usize) -> Share<'_> {
        let end = |index: usize| self.ends.get(index).copied().unwrap_or(self.pass());
        Share { progress: self, own: index.checked_sub(1).map_or(0, end)..end(index) }
    }

    /// What is done in a pass.
    pub(crate) fn pass(&self) -> u64 {
        self.ends.last().map_or(1, |end| *end)
    }

    fn reached(&self, done: u64) {
        self.change(|state, pass| state.done = state.done.max(done.min(pass)));
    }

    fn change(&self, change: impl FnOnce(&mut State, u64)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let pass = self.pass();
        change(&mut state, pass);
        let done = state.begin + state.done;
        let now = [done, state.begin + pass * (1 + state.left)];
        let is_due = |[told, total]: [u64; 2]| {
            let part = (done - told) * PARTS >= pass || state.when.elapsed() >= LONG;
            done > told && (part || done == now[1]) || total < now[1] && done == told
        };
        if state.told.is_none_or(is_due) {
            (state.told, state.when) = (Some(now), Instant::now());
            let (stage, unit) = ("ingest".to_owned(), self.unit.to_owned());
            // Within the lock, so that no listener hears of less than before.
            self.listener.on(&Event::Progress { stage, done, total: now[1], unit });
        }
    }
}

/// A part of a pass.
pub(crate) struct Share<'a> {
    progress: &'a Progress<'a>,
    own: Range<u64>,
}

impl Share<'_> {
    /// So much of it is done, of so much, in whatever that is counted.
    pub(crate) fn reached(&self, done: usize, of: usize) {
        let own = u128::from(self.own.end - self.own.start);
        let part = own * done.min(of) as u128 / of.max(1) as u128;
        self.progress.reached(self.own.start + part as u64);
    }
}

#[cfg(test)]
impl Progress<'static> {
    /// Of one file, which nobody hears of.
    pub(crate) fn untold() -> Self {
        Self::of(&firebox_core::Silent, "files", std::iter::once(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Done and to be done, each time that it is told.
    fn told(of: impl IntoIterator<Item = u64>, steps: impl FnOnce(&Progress<'_>)) -> Vec<[u64; 2]> {
        let told = Mutex::new(vec![]);
        let listener = |event: &Event| match event {
            Event::Progress { stage, done, total, unit } => {
                assert_eq!((&stage[..], &unit[..]), ("ingest", "bytes"));
                told.lock().unwrap().push([*done, *total]);
            }
            other => panic!("{other:?}"),
        };
        steps(&Progress::of(&listener, "bytes", of.into_iter()));
        told.into_inner().unwrap()
    }

    #[test]
    fn files_are_told_one_after_the_other() {
        let told = told([100, 0, 300], |progress| {
            progress.begin(0);
            progress.file(0).reached(1, 2);
            progress.file(0).reached(1, 4);
            progress.file(0).reached(7, 7);
            progress.file(1).reached(1, 1);
            progress.file(2).reached(150, 300);
            progress.file(2).reached(9, 9);
            progress.end();
        });
        // One byte, which an empty file stands for, is no part that is told.
        assert_eq!(told, [[0, 401], [50, 401], [100, 401], [251, 401], [401, 401]]);
    }

    #[test]
    fn what_is_done_never_becomes_less_whatever_is_to_be_done() {
        let told = told([1000], |progress| {
            progress.begin(1);
            progress.file(0).reached(1, 2);
            // It begins anew, to be sorted.
            progress.begin(2);
            progress.file(0).reached(1, 1);
            progress.next();
            progress.all().reached(1, 4);
            progress.another();
            progress.all().reached(1, 1);
            progress.next();
            // Nobody knew that there was less.
            progress.begin(0);
            progress.end();
            progress.end();
        });
        let expected = [
            [0, 2000],
            [500, 2000],
            [500, 3500],
            [1500, 3500],
            [1750, 3500],
            [2500, 4500],
            [3500, 4500],
            [4500, 4500],
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_pass_is_told_in_a_bounded_number_of_parts() {
        let told = told([1 << 40], |progress| {
            progress.begin(0);
            let file = progress.file(0);
            (0..100_000).for_each(|row| file.reached(row, 100_000));
            progress.end();
        });
        // What took a second is told beside them, which no machine takes for this.
        assert!((100..=104).contains(&told.len()), "{}", told.len());
        assert!(told.is_sorted() && told.ends_with(&[[1 << 40; 2]]));
    }
}
