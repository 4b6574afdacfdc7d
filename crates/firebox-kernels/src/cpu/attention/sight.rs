//! Which keys a query sees by its place: all, those up to its own, or those within a window.

use std::ops::Range;

use super::super::BLOCK;

/// A window of attention: query `i` sees key `j` if `|i - j|` is at most the reach, and the first keys whatever
/// their distance. Source: Beltagy, Peters and Cohan, "Longformer: the long-document Transformer", 2020.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionWindow {
    /// Keys that a query sees on each side of its own place; 0: none but that one.
    pub reach: usize,
    /// So many keys from the first one on are seen by all queries, whatever their distance, unless a causal rule
    /// hides them.
    pub global: usize,
}

/// Where a tile may begin, beside the first key: groups of random bits, pairs of keys and whole tiles of AMX, 16
/// words of two keys, do.
const START: usize = 2 * BLOCK;

/// What a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sight {
    /// Whether query `i` sees no key after `i`.
    pub(crate) causal: bool,
    /// Its window, whose reach and global keys are fewer than the queries or keys.
    pub(crate) window: Option<AttentionWindow>,
}

impl Sight {
    /// Of so many queries those that see one of so many keys: none after them does.
    pub(crate) fn seeing(&self, queries: usize, keys: usize) -> usize {
        match self.window {
            Some(AttentionWindow { reach, global: 0 }) if keys > 0 => queries.min(keys + reach),
            _ => queries,
        }
    }

    /// Whether a query sees a key.
    pub(crate) fn sees(&self, query: usize, key: usize) -> bool {
        let near = |AttentionWindow { reach, global }| key < global || query.abs_diff(key) <= reach;
        (!self.causal || key <= query) && self.window.is_none_or(near)
    }

    /// Keys that most queries see, of so many.
    pub(crate) fn width(&self, keys: usize) -> usize {
        self.window.map_or(keys, |AttentionWindow { reach, global }| {
            keys.min(global + if self.causal { reach + 1 } else { 2 * reach + 1 })
        })
    }

    /// The next keys to walk over from key `from` on, of so many, for a block of queries; `None` if it sees no more.
    /// The first come before those near the block.
    pub(super) fn next(
        &self,
        block: &Range<usize>,
        keys: usize,
        from: usize,
    ) -> Option<Range<usize>> {
        let end = if self.causal { keys.min(block.end) } else { keys };
        let (global, start, end) = match self.window {
            Some(AttentionWindow { reach, global }) => (
                end.min(global),
                block.start.saturating_sub(reach) / START * START,
                end.min(block.end + reach),
            ),
            None => (0, 0, end),
        };
        let range = if from >= global {
            from.max(start)..end
        } else if global < start {
            from..global
        } else {
            from..end.max(global)
        };
        (!range.is_empty()).then_some(range)
    }

    /// Whether each of these queries sees each of these keys.
    pub(super) fn all(&self, queries: &Range<usize>, keys: &Range<usize>) -> bool {
        let near = |AttentionWindow { reach, global }: AttentionWindow| {
            let first = keys.start.max(global);
            first >= keys.end
                || (queries.end <= first + reach + 1 && keys.end <= queries.start + reach + 1)
        };
        (!self.causal || keys.end <= queries.start + 1) && self.window.is_none_or(near)
    }

    /// The first and the last query that see a key. Exact: places are integers below 2^24, and what is rounded
    /// because it lies above that is above every query.
    pub(super) fn queries_of(&self, key: usize) -> [f32; 2] {
        let reach = match self.window {
            Some(AttentionWindow { reach, global }) if key >= global => reach as f32,
            _ => f32::INFINITY,
        };
        let ahead = if self.causal { 0.0 } else { reach };
        [key as f32 - ahead, key as f32 + reach]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_walked_over_is_what_is_seen() {
        for causal in [false, true] {
            for reach in [0, 1, 7, 31, 32, 40, 100] {
                for global in [0, 1, 9, 33, 70] {
                    for (queries, keys) in [(150, 150), (1, 99), (140, 20), (130, 7)] {
                        let window = Some(AttentionWindow { reach, global });
                        check(Sight { causal, window }, queries, keys);
                    }
                }
            }
            check(Sight { causal, window: None }, 150, 99);
        }
    }

    fn check(sight: Sight, queries: usize, keys: usize) {
        let any = |query: usize| (0..keys).any(|key| sight.sees(query, key));
        let seeing = sight.seeing(queries, keys);
        assert!((0..queries).all(|query| any(query) == (query < seeing)), "{sight:?}");
        for first in (0..seeing).step_by(64) {
            let block = first..seeing.min(first + 64);
            let (mut from, mut walked) = (0, vec![]);
            while let Some(range) = sight.next(&block, keys, from) {
                assert!(range.start % START == 0 && range.start >= from && range.end <= keys);
                // As a tile cuts it.
                let tile = range.start..range.end.min(range.start + START);
                let all = block.clone().all(|query| tile.clone().all(|key| sight.sees(query, key)));
                assert_eq!(sight.all(&block, &tile), all, "{sight:?} {block:?} {tile:?}");
                from = tile.end;
                walked.extend(tile);
            }
            for key in 0..keys {
                let [low, high] = sight.queries_of(key);
                for query in block.clone() {
                    let sees = sight.sees(query, key);
                    assert_eq!((low..=high).contains(&(query as f32)), sees, "{sight:?}");
                    assert!(!sees || walked.contains(&key), "{sight:?} {block:?} {key}");
                }
            }
            let most = sight.width(keys) + block.len() + 3 * START;
            assert!(sight.window.is_none() || walked.len() <= most, "{sight:?}: {walked:?}");
        }
    }
}
