//! Trials that have too little memory.
//!
//! On a processor an allocation that fails ends the process, and every trial in it: Rust's collections
//! cannot go on without what they asked for, and an allocator must not unwind. So the trials in hand are
//! kept here where the program's allocator can read them without a further byte, and the program begins
//! the worker anew, which is told them. It fails the trial that ran out of memory by itself. Where
//! several ran, nobody knows which was too large: all are put back, go on from their checkpoints, each
//! by itself, and one fewer runs at once from then on, unless one of them is found to be too large.
//!
//! What a step takes is counted in firebox-train, and the process begun anew in the program. On a GPU
//! the driver's error is caught there, and the step computed in smaller parts as in any run.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use firebox_core::{Event, Listener};
use firebox_search::Study;
use serde_json::Value as Json;

use crate::device::free_of_machine;
use crate::error::PipelineError;
use crate::limits::Limits;

/// System attribute of a trial that is to run by itself.
pub(super) const ALONE: &str = "firebox:alone";
/// Trials in hand that are known to the allocator; one beyond them is missed by its heartbeat.
const MOST: usize = 256;
/// Bytes of a note: its numbers, and those of all trials.
pub const NOTE_BYTES: usize = 21 * (MOST + 4);

/// Trials in hand, each as twice its number counted from 1, plus one while it waits for its turn; 0 for
/// none.
static IN_HAND: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];

/// A trial in hand until this is dropped.
pub(super) struct InHand {
    place: Option<&'static AtomicU64>,
    number: u64,
}

impl InHand {
    /// It waits for its turn, and takes no memory.
    pub(super) fn waiting(number: u64) -> Self {
        let free = |place: &&AtomicU64| {
            place.compare_exchange(0, mark(number, true), Relaxed, Relaxed).is_ok()
        };
        Self { place: IN_HAND.iter().find(free), number }
    }

    /// It runs from now on.
    pub(super) fn begin(&self) {
        if let Some(place) = self.place {
            place.store(mark(self.number, false), Relaxed);
        }
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.store(0, Relaxed);
        }
    }
}

fn mark(number: u64, waits: bool) -> u64 {
    2 * (number + 1) + u64::from(waits)
}

/// For the allocator, when it has nothing to give: writes the trials in hand into `note`, as the text
/// that [`Shortage`] is read from with a zero at its end. Returns whether there are any, so that the
/// worker can be begun anew. Nothing here allocates or waits.
pub fn note_trials(bytes: usize, stopped: bool, note: &[AtomicU8]) -> bool {
    let mut end = 0;
    let mut push = |byte: u8| {
        // The last byte is always the zero.
        if let Some(place) = note.get(end).filter(|_| end + 1 < note.len()) {
            place.store(byte, Relaxed);
            end += 1;
        }
    };
    let held = firebox_train::memory::held().unwrap_or(0);
    for number in [u64::from(stopped), bytes as u64, held] {
        digits(number, &mut push);
        push(b',');
    }
    let mut any = false;
    for mark in IN_HAND.iter().map(|place| place.load(Relaxed)).filter(|mark| *mark > 0) {
        digits(mark, &mut push);
        push(b',');
        any |= mark % 2 == 0;
    }
    if let Some(place) = note.get(end) {
        place.store(0, Relaxed);
    }
    any
}

fn digits(number: u64, push: &mut impl FnMut(u8)) {
    let mut place = 10u64.pow(number.checked_ilog10().unwrap_or(0));
    while place > 0 {
        push(b'0' + (number / place % 10) as u8);
        place /= 10;
    }
}

/// What the process before had in hand when it ran out of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Whether it had been asked to stop.
    pub stopped: bool,
    /// Bytes that were asked for and not given.
    asked: u64,
    /// Bytes that it held then; 0 if nobody counted.
    held: u64,
    /// Trials that ran.
    running: Vec<u64>,
    /// Trials that waited for their turn.
    waiting: Vec<u64>,
}

impl std::str::FromStr for Shortage {
    type Err = String;

    fn from_str(note: &str) -> Result<Self, String> {
        let numbers = note.split_terminator(',').map(str::parse);
        let numbers: Result<Vec<u64>, _> = numbers.collect();
        match numbers.as_deref() {
            Ok([stopped, asked, held, marks @ ..]) if marks.iter().all(|mark| *mark >= 2) => {
                let of = |waits: bool| {
                    let marks = marks.iter().filter(|mark| (**mark % 2 == 1) == waits);
                    marks.map(|mark| mark / 2 - 1).collect()
                };
                let (stopped, asked, held) = (*stopped > 0, *asked, *held);
                Ok(Self { stopped, asked, held, running: of(false), waiting: of(true) })
            }
            _ => Err("it is not what a worker that ran out of memory leaves".to_owned()),
        }
    }
}

impl Shortage {
    /// Most trials that run at once after it, beside those that run by themselves.
    pub(super) fn most(&self, configured: usize) -> usize {
        match self.running.len() {
            0 | 1 => configured,
            several => configured.min(several - 1),
        }
    }

    /// Ends the trials of the process before: fails the one that ran by itself, and puts the others
    /// back. Returns the number of the one that failed.
    pub(super) fn settle(
        &self,
        study: &Study,
        listener: &dyn Listener,
    ) -> Result<Option<u64>, PipelineError> {
        let alone = BTreeMap::from([(ALONE.to_owned(), Json::from(true))]);
        let mut failed = None;
        let message = match self.running.as_slice() {
            [one] => {
                let reason = self.reason(allowed());
                failed = study.fail(*one, &reason)?.then_some(*one);
                format!("trial {one} failed: {reason}")
            }
            several => {
                let numbers = several.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
                let reason = format!(
                    "its worker ran out of memory while {} trials ran; it goes on by itself",
                    several.len()
                );
                for number in several {
                    study.put_back(*number, &reason, &alone)?;
                }
                format!(
                    "the trials {numbers} had too little memory together ({}): each goes on from its \
                     last checkpoint by itself",
                    self.needed()
                )
            }
        };
        for number in &self.waiting {
            study.put_back(*number, "its worker ran out of memory before it began", &alone)?;
        }
        listener.on(&Event::Warning { message });
        Ok(failed)
    }

    fn needed(&self) -> String {
        let (asked, held) = (size(self.asked), size(self.held));
        format!("{asked} were asked for beside the {held} that were held")
    }

    /// Why a trial failed that ran by itself.
    fn reason(&self, allowed: Option<String>) -> String {
        let least = size(self.held.saturating_add(self.asked));
        let allowed = allowed.map_or(String::new(), |allowed| format!("; {allowed}"));
        format!(
            "it has too little memory: it needs at least {least} ({}){allowed}; a smaller batch or \
             model needs less",
            self.needed()
        )
    }
}

/// What this process may hold at most, and by what.
fn allowed() -> Option<String> {
    let Limits { addresses, data } = Limits::now();
    let all = "with all else that the process takes";
    let known = [
        (data, "the limit of its data (ulimit -d) is", all),
        (addresses, "the limit of its addresses (ulimit -v) is", all),
        (firebox_train::memory::limit(), "its control group leaves it", "in all"),
        (firebox_monitor::group_free(), "its control group has", "free"),
        (free_of_machine(), "the machine has", "free"),
    ];
    let known = known.into_iter().filter_map(|(bytes, by, of)| Some((bytes?, by, of)));
    let (bytes, by, of) = known.min_by_key(|(bytes, ..)| *bytes)?;
    Some(format!("{by} {} {of}", size(bytes)))
}

fn size(bytes: u64) -> String {
    let gib = bytes as f64 / f64::from(1 << 30);
    if gib < 0.1 { format!("{:.1} MiB", 1024.0 * gib) } else { format!("{gib:.2} GiB") }
}

/// Who may run: trials beside each other, or one by itself.
#[derive(Default)]
pub(super) struct Turns(RwLock<()>);

/// A trial's turn, until it is dropped.
pub(super) enum Turn<'a> {
    Beside(#[allow(dead_code, reason = "held for its drop")] RwLockReadGuard<'a, ()>),
    Alone(#[allow(dead_code, reason = "held for its drop")] RwLockWriteGuard<'a, ()>),
}

impl Turns {
    /// Waits for the turn of a trial.
    pub(super) fn take(&self, alone: bool) -> Turn<'_> {
        if alone {
            Turn::Alone(self.0.write().unwrap_or_else(PoisonError::into_inner))
        } else {
            Turn::Beside(self.0.read().unwrap_or_else(PoisonError::into_inner))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(length: usize) -> Vec<AtomicU8> {
        (0..length).map(|_| AtomicU8::new(b'x')).collect()
    }

    fn text(note: &[AtomicU8]) -> String {
        let bytes = note.iter().map(|byte| byte.load(Relaxed)).take_while(|byte| *byte > 0);
        String::from_utf8(bytes.collect()).unwrap()
    }

    #[test]
    fn the_trials_in_hand_are_noted_and_read_back() {
        let buffer = note(NOTE_BYTES);
        assert!(!note_trials(100, false, &buffer), "there is none");
        let (first, second) = (InHand::waiting(0), InHand::waiting(41));
        assert!(!note_trials(100, false, &buffer), "none runs");
        second.begin();
        assert!(note_trials(4096, true, &buffer));
        let (running, waiting) = (vec![41], vec![0]);
        let held = firebox_train::memory::held().unwrap_or(0);
        let expected = Shortage { stopped: true, asked: 4096, held, running, waiting };
        assert_eq!(text(&buffer).parse::<Shortage>().unwrap(), expected);
        first.begin();
        assert!(note_trials(usize::MAX, false, &buffer));
        let both: Shortage = text(&buffer).parse().unwrap();
        assert_eq!((both.running.as_slice(), both.asked), (&[0, 41][..], u64::MAX));
        // A note that is too short is cut, and has its end.
        let short = note(8);
        assert!(note_trials(7, false, &short) && text(&short).len() == 7);
        drop((first, second));
        assert!(!note_trials(1, false, &buffer));
        for wrong in ["", "1,2", "1,2,3,1,", "a,b,c,4,", "1,2,-3,4,"] {
            assert!(wrong.parse::<Shortage>().is_err(), "{wrong}");
        }
        assert_eq!("0,1,2,".parse::<Shortage>().unwrap().running, [0; 0]);
    }

    #[test]
    fn one_fewer_runs_at_once_after_several_ran_out_together() {
        let after = |running: Vec<u64>, configured| {
            let (stopped, asked, held, waiting) = (false, 1, 1, vec![]);
            Shortage { stopped, asked, held, running, waiting }.most(configured)
        };
        assert_eq!([after(vec![3], 4), after(vec![1, 2, 3], 4), after(vec![1, 2], 2)], [4, 2, 1]);
        assert_eq!(after(vec![1, 2, 3], 1), 1);
    }

    #[test]
    fn a_reason_says_what_was_needed_and_what_there_is() {
        let (running, waiting) = (vec![0], vec![]);
        let shortage = Shortage { stopped: false, asked: 3 << 29, held: 1 << 29, running, waiting };
        let said = shortage.reason(Some("the machine has 1.00 GiB free".to_owned()));
        assert_eq!(
            said,
            "it has too little memory: it needs at least 2.00 GiB (1.50 GiB were asked for beside the \
             0.50 GiB that were held); the machine has 1.00 GiB free; a smaller batch or model needs \
             less"
        );
        assert!(shortage.reason(None).contains("were held); a smaller batch"));
        assert!(allowed().is_some());
        assert_eq!([size(1 << 20), size(10 << 30)], ["1.0 MiB", "10.00 GiB"]);
    }

    #[test]
    fn who_runs_by_itself_waits_for_the_others_and_they_for_it() {
        use std::sync::atomic::AtomicI64;
        let (turns, running) = (Turns::default(), AtomicI64::new(0));
        std::thread::scope(|scope| {
            for number in 0..24 {
                let (turns, running) = (&turns, &running);
                scope.spawn(move || {
                    let alone = number % 3 == 0;
                    let _turn = turns.take(alone);
                    let weight = if alone { 1000 } else { 1 };
                    let beside = running.fetch_add(weight, std::sync::atomic::Ordering::SeqCst);
                    assert!(if alone { beside == 0 } else { beside < 1000 }, "{beside}");
                    std::thread::sleep(std::time::Duration::from_millis(3));
                    running.fetch_sub(weight, std::sync::atomic::Ordering::SeqCst);
                });
            }
        });
    }
}
