//! Windows, held as the runs that rules cut: a set may have one at every step of its series, and holding each would take
//! more memory than the steps themselves.

use std::ops::Range;

use crate::Window;

/// Windows in an order. Those that begin one stride after the other are held as one run of a few bytes, and labels, where
/// there are any, in a byte each up to 255 classes.
#[derive(Clone, Debug, Default)]
pub struct WindowList {
    runs: Vec<Run>,
    /// The run of each [`MARKED`]th window, from which the others are found.
    marks: Vec<usize>,
    labels: Labels,
    len: usize,
    longest: u32,
}

/// Windows of one length of one series, `stride` steps apart.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Windows before it.
    before: usize,
    series: u32,
    start: u32,
    length: u32,
    /// 0 where there is no second window.
    stride: u32,
}

/// Windows from one mark to the next: an eighth of a byte for each, and few runs in between.
const MARKED: usize = 64;

/// The label of each window.
#[derive(Clone, Debug, Default)]
enum Labels {
    /// No window has one.
    #[default]
    None,
    /// [`NO_BYTE`] where there is none.
    Bytes(Vec<u8>),
    /// [`NO_WORD`] where there is none.
    Words(Vec<u32>),
}

const NO_BYTE: u8 = u8::MAX;
const NO_WORD: u32 = u32::MAX;

impl Labels {
    fn get(&self, index: usize) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Bytes(all) => Some(all[index]).filter(|label| *label != NO_BYTE).map(u32::from),
            Self::Words(all) => Some(all[index]).filter(|label| *label != NO_WORD),
        }
    }

    /// Adds one behind `before` others.
    fn push(&mut self, label: Option<u32>, before: usize) {
        if let (Self::None, Some(_)) = (&self, label) {
            *self = Self::Bytes(vec![NO_BYTE; before]);
        }
        if let Self::Bytes(all) = self {
            match label.map_or(Ok(NO_BYTE), u8::try_from) {
                Ok(byte) if label.is_none() || byte != NO_BYTE => return all.push(byte),
                _ => {
                    let word = |byte: &u8| if *byte == NO_BYTE { NO_WORD } else { (*byte).into() };
                    *self = Self::Words(all.iter().map(word).collect());
                }
            }
        }
        if let Self::Words(all) = self {
            all.push(label.unwrap_or(NO_WORD));
        }
    }
}

impl WindowList {
    /// Adds a window behind the others.
    pub fn push(&mut self, window: Window) {
        let Window { series, start, length, label } = window;
        let before = self.len;
        self.labels.push(label, before);
        self.len += 1;
        self.longest = self.longest.max(length);
        let of_series = |run: &&mut Run| (run.series, run.length) == (series, length);
        let goes_on = self.runs.last_mut().filter(of_series).is_some_and(|run| {
            let count = (before - run.before) as u64;
            if count == 1 && start > run.start {
                run.stride = start - run.start;
                return true;
            }
            let next = u64::from(run.start) + u64::from(run.stride) * count;
            count > 1 && u64::from(start) == next
        });
        if !goes_on {
            self.runs.push(Run { before, series, start, length, stride: 0 });
        }
        if before.is_multiple_of(MARKED) {
            self.marks.push(self.runs.len() - 1);
        }
    }

    /// Number of windows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no window.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Steps of the longest window.
    pub fn longest(&self) -> usize {
        self.longest as usize
    }

    /// The window at a place, if there is one.
    pub fn get(&self, index: usize) -> Option<Window> {
        (index < self.len).then(|| {
            let mark = index / MARKED;
            let from = self.marks[mark];
            let to = self.marks.get(mark + 1).map_or(self.runs.len(), |next| next + 1);
            let within = self.runs[from..to].partition_point(|run| run.before <= index);
            self.of_run(from + within - 1, index)
        })
    }

    /// The window at a place.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub fn at(&self, index: usize) -> Window {
        self.get(index).unwrap_or_else(|| panic!("window {index} of {}", self.len))
    }

    /// The windows at these places.
    ///
    /// # Panics
    ///
    /// When there is none at one of them.
    pub fn range(
        &self,
        places: Range<usize>,
    ) -> impl ExactSizeIterator<Item = Window> + Clone + '_ {
        places.map(|place| self.at(place))
    }

    fn of_run(&self, run: usize, index: usize) -> Window {
        let Run { before, series, start, length, stride } = self.runs[run];
        let start = start + (index - before) as u32 * stride;
        Window { series, start, length, label: self.labels.get(index) }
    }

    /// The first window.
    pub fn first(&self) -> Option<Window> {
        self.get(0)
    }

    /// The last window.
    pub fn last(&self) -> Option<Window> {
        self.len.checked_sub(1).and_then(|last| self.get(last))
    }

    /// All windows in their order.
    pub fn iter(&self) -> Iter<'_> {
        Iter { list: self, run: 0, index: 0 }
    }

    /// Gives back memory that was kept for more windows.
    pub fn shrink_to_fit(&mut self) {
        self.runs.shrink_to_fit();
        self.marks.shrink_to_fit();
        match &mut self.labels {
            Labels::None => {}
            Labels::Bytes(all) => all.shrink_to_fit(),
            Labels::Words(all) => all.shrink_to_fit(),
        }
    }
}

impl FromIterator<Window> for WindowList {
    fn from_iter<I: IntoIterator<Item = Window>>(windows: I) -> Self {
        let mut list = Self::default();
        list.extend(windows);
        list.shrink_to_fit();
        list
    }
}

impl Extend<Window> for WindowList {
    fn extend<I: IntoIterator<Item = Window>>(&mut self, windows: I) {
        windows.into_iter().for_each(|window| self.push(window));
    }
}

impl PartialEq for WindowList {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other)
    }
}

impl<'a> IntoIterator for &'a WindowList {
    type Item = Window;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// The windows of a [`WindowList`].
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    list: &'a WindowList,
    run: usize,
    index: usize,
}

impl Iterator for Iter<'_> {
    type Item = Window;

    fn next(&mut self) -> Option<Window> {
        if self.index == self.list.len {
            return None;
        }
        if self.list.runs.get(self.run + 1).is_some_and(|next| next.before == self.index) {
            self.run += 1;
        }
        let window = self.list.of_run(self.run, self.index);
        self.index += 1;
        Some(window)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.list.len - self.index;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Iter<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stream;

    /// Windows as rules cut them, with pieces left out and others in between.
    fn some(seed: u64, labels: u32) -> Vec<Window> {
        let mut draws = Stream::new(seed, "windows").draws();
        let mut all = Vec::new();
        for series in 0..draws.below(6) as u32 {
            let (stride, length) = (1 + draws.below(9) as u32, 1 + draws.below(30) as u32);
            let mut start = draws.below(50) as u32;
            for _ in 0..draws.below(400) {
                let odd = draws.below(12) == 0;
                let length = if odd { length + draws.below(3) as u32 } else { length };
                let label = |draws: &mut crate::Draws| draws.below(u64::from(labels)) as u32;
                let label = (labels > 0 && draws.below(4) > 0).then(|| label(&mut draws));
                all.push(Window { series, start, length, label });
                // Some begin where the one before does, or earlier.
                match draws.below(15) {
                    0 => start = draws.below(50) as u32,
                    1 => {}
                    2 => start += stride + 1,
                    _ => start += stride,
                }
            }
        }
        all
    }

    #[test]
    fn every_window_comes_back_at_its_place() {
        for seed in 0..60 {
            for labels in [0, 1, 3, 255, 256, 257, 70_000] {
                let all = some(seed, labels);
                let list: WindowList = all.iter().copied().collect();
                assert_eq!(list.iter().collect::<Vec<_>>(), all);
                assert_eq!(list.iter().len(), all.len());
                for (index, window) in all.iter().enumerate() {
                    assert_eq!(list.at(index), *window, "{index} of seed {seed}");
                }
                let half = all.len() / 2;
                assert!(list.range(half..all.len()).eq(all[half..].iter().copied()));
                assert_eq!([list.get(all.len()), list.get(usize::MAX)], [None; 2]);
                assert_eq!(
                    [list.first(), list.last()],
                    [all.first(), all.last()].map(|w| w.copied())
                );
                assert_eq!(
                    list.longest(),
                    all.iter().map(|w| w.length).max().unwrap_or(0) as usize
                );
            }
        }
    }

    #[test]
    fn the_last_steps_that_can_be_counted_are_no_overflow() {
        let window = |start| Window { series: 0, start, length: 1, label: None };
        let all = [window(0), window(u32::MAX - 1), window(u32::MAX)];
        let list: WindowList = all.into_iter().collect();
        assert_eq!(list.iter().collect::<Vec<_>>(), all);
    }

    #[test]
    fn windows_at_every_step_take_no_memory_of_their_own() {
        let label = |start: u32| (!start.is_multiple_of(7)).then_some(start % 3);
        let window = |labelled| {
            move |start| Window {
                series: 0,
                start,
                length: 105,
                label: label(start).filter(|_| labelled),
            }
        };
        let list: WindowList = (0..100_000).map(window(false)).collect();
        assert_eq!((list.runs.capacity(), list.len()), (1, 100_000));
        let list: WindowList = (0..100_000).map(window(true)).collect();
        assert_eq!(list.runs.capacity(), 1);
        assert!(matches!(&list.labels, Labels::Bytes(all) if all.capacity() == 100_000));
    }
}
