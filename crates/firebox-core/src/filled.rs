//! Values that nobody measured.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Steps whose value of a channel was put in where none was measured, such as those of a hole that was filled.
///
/// Of each channel these are runs of steps, in order, none of them beside the next: what they take in memory goes by how many
/// holes there are.
///
/// Where it is stored, a channel is a line of pairs: how many steps lie between a run and the one before it, and how many it
/// has. There may be as many as a tenth of all values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<String>", try_from = "Vec<String>")]
pub struct Filled {
    /// Runs of each channel, up to the last one that has any.
    channels: Vec<Vec<Range<usize>>>,
}

impl From<Filled> for Vec<String> {
    fn from(filled: Filled) -> Self {
        let line = |runs: Vec<Range<usize>>| {
            let mut end = 0;
            let pair = |run: Range<usize>| {
                let between = run.start - std::mem::replace(&mut end, run.end);
                format!("{between} {}", run.len())
            };
            runs.into_iter().map(pair).collect::<Vec<_>>().join(" ")
        };
        filled.channels.into_iter().map(line).collect()
    }
}

impl TryFrom<Vec<String>> for Filled {
    type Error = String;

    fn try_from(lines: Vec<String>) -> Result<Self, String> {
        let runs = |line: String| {
            let numbers: Result<Vec<usize>, _> = line.split_whitespace().map(str::parse).collect();
            let numbers = numbers.map_err(|error| format!("`{line}` are no numbers: {error}"))?;
            let (pairs, rest) = numbers.as_chunks::<2>();
            let mut end = 0usize;
            let run = |[between, length]: &[usize; 2]| {
                let start = end.checked_add(*between)?;
                end = start.checked_add(*length)?;
                Some(start..end)
            };
            let runs: Option<Vec<Range<usize>>> = pairs.iter().map(run).collect();
            runs.filter(|_| rest.is_empty()).ok_or_else(|| format!("`{line}` are no pairs"))
        };
        Ok(Self { channels: lines.into_iter().map(runs).collect::<Result<_, _>>()? })
    }
}

impl Filled {
    /// Whether all values were measured.
    pub fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    /// The runs of a channel, in order.
    pub fn runs(&self, channel: usize) -> &[Range<usize>] {
        self.channels.get(channel).map_or(&[], Vec::as_slice)
    }

    /// Adds steps of a channel, which may be among the others or beside them.
    pub fn add(&mut self, channel: usize, steps: Range<usize>) {
        self.extend(channel, std::iter::once(steps));
    }

    /// Adds several runs of them, in any order.
    pub fn extend(&mut self, channel: usize, more: impl IntoIterator<Item = Range<usize>>) {
        let mut more = more.into_iter().filter(|run| !run.is_empty()).peekable();
        if more.peek().is_none() {
            return;
        }
        if self.channels.len() <= channel {
            self.channels.resize(channel + 1, vec![]);
        }
        let runs = &mut self.channels[channel];
        let mut in_order = true;
        for run in more {
            in_order &= runs.last().is_none_or(|last| last.start <= run.start);
            runs.push(run);
            if in_order {
                join_last(runs);
            }
        }
        if !in_order {
            let mut all = std::mem::take(runs);
            all.sort_unstable_by_key(|run| run.start);
            for run in all {
                runs.push(run);
                join_last(runs);
            }
        }
    }

    /// Whether the value of a step was put in.
    pub fn holds(&self, channel: usize, step: usize) -> bool {
        self.any(channel, step..step + 1)
    }

    /// Whether any value of these steps was.
    pub fn any(&self, channel: usize, steps: Range<usize>) -> bool {
        let runs = self.runs(channel);
        let first = runs.partition_point(|run| run.end <= steps.start);
        !steps.is_empty() && runs.get(first).is_some_and(|run| run.start < steps.end)
    }

    /// How many values of a channel were.
    pub fn count(&self, channel: usize) -> usize {
        self.runs(channel).iter().map(Range::len).sum()
    }

    /// The same of some of the channels, in this order.
    #[must_use]
    pub fn select(&self, channels: &[usize]) -> Self {
        Self::of(channels.iter().map(|channel| self.runs(*channel).to_vec()).collect())
    }

    /// The same without some of the channels.
    #[must_use]
    pub fn without(self, channels: &[usize]) -> Self {
        let left = (0..).zip(self.channels).filter(|(channel, _)| !channels.contains(channel));
        Self::of(left.map(|(_, runs)| runs).collect())
    }

    fn of(mut channels: Vec<Vec<Range<usize>>>) -> Self {
        let used = channels.iter().rposition(|runs| !runs.is_empty()).map_or(0, |last| last + 1);
        channels.truncate(used);
        Self { channels }
    }

    /// Whether it can be of so many steps and channels.
    pub(crate) fn fits(&self, steps: usize, channels: usize) -> bool {
        let in_order = |runs: &Vec<Range<usize>>| {
            runs.windows(2).all(|pair| pair[0].end < pair[1].start)
                && runs.iter().all(|run| !run.is_empty() && run.end <= steps)
        };
        self.channels.len() <= channels
            && self.channels.iter().all(in_order)
            && self.channels.last().is_none_or(|runs| !runs.is_empty())
    }
}

/// Joins the last run with the one before it if nothing lies between them, of runs in the order of their starts.
fn join_last(runs: &mut Vec<Range<usize>>) {
    if let [.., before, last] = &mut runs[..]
        && last.start <= before.end
    {
        before.end = before.end.max(last.end);
        runs.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stream;

    #[test]
    fn steps_are_found_again_in_whatever_order_they_came() {
        let mut draws = Stream::new(3, "filled").draws();
        for _ in 0..200 {
            let (mut filled, mut marked) = (Filled::default(), vec![vec![false; 40]; 3]);
            for _ in 0..draws.below(6) {
                let channel = draws.below(3) as usize;
                let run = |_| {
                    let start = draws.below(40) as usize;
                    start..(start + draws.below(5) as usize).min(40)
                };
                let runs: Vec<Range<usize>> = (0..3).map(run).collect();
                filled.extend(channel, runs.clone());
                runs.into_iter().for_each(|run| marked[channel][run].fill(true));
            }
            assert!(filled.fits(40, 3), "{filled:?}");
            assert_eq!(filled.is_empty(), !marked.concat().contains(&true));
            for (channel, marked) in marked.iter().enumerate() {
                let found: Vec<bool> = (0..40).map(|step| filled.holds(channel, step)).collect();
                assert_eq!(&found, marked);
                assert_eq!(filled.count(channel), marked.iter().filter(|at| **at).count());
                let (from, to) = (draws.below(40) as usize, draws.below(41) as usize);
                let any = marked.get(from..to).is_some_and(|part| part.contains(&true));
                assert_eq!(filled.any(channel, from..to.max(from)), any, "{from}..{to}");
            }
            let turned = filled.select(&[2, 0]);
            assert!(turned.fits(40, 2));
            assert_eq!([turned.runs(0), turned.runs(1)], [filled.runs(2), filled.runs(0)]);
            assert_eq!(filled.select(&[0, 1, 2]), filled);
            assert_eq!(filled.clone().without(&[1]), filled.select(&[0, 2]));
            assert_eq!(filled.clone().without(&[2, 5]), filled.select(&[0, 1]));
            let stored: Vec<String> = filled.clone().into();
            assert_eq!(Filled::try_from(stored), Ok(filled));
        }
        let stored = |lines: &[&str]| {
            Filled::try_from(lines.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let read = stored(&["", "2 3 1 1"]).unwrap();
        assert_eq!(read.runs(1), [2..5, 6..7]);
        assert_eq!(Vec::<String>::from(read), ["", "2 3 1 1"]);
        assert!(stored(&["2 x"]).is_err() && stored(&["2"]).is_err());
        assert!(stored(&[&format!("{} 2", usize::MAX)]).is_err());
        let mut late = Filled::default();
        late.add(1, 0..3);
        assert!(!late.fits(2, 2) && !late.fits(3, 1) && late.fits(3, 2));
    }
}
