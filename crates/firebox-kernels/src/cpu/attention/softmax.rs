//! What happens to scores, element by element: softmax with dropout, and its gradient.
//!
//! Scores lie transposed, a row for each key and a column for each query, so that a vector holds one
//! key's scores for as many queries and sums over keys need nothing but additions of vectors.

use firebox_core::Stream;

use super::super::BLOCK;
use super::super::compute::Compute;
use super::super::kernels::dispatch;
use super::super::lanes::Lanes;
use super::super::math::exp2;
use super::super::simd::Simd;
use super::{GROUP, QUERIES, Sight};

/// Which probabilities are dropped: those of key `j` for query `i` by the 16 bits number `j % 8` of
/// block `i + 2^32 · (j / 8)` of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws {
    pub(super) stream: Stream,
    /// A probability is kept if its bits are at least this.
    pub(super) threshold: u16,
}

/// A part of the scores of one sample and head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    /// A multiple of [`GROUP`].
    pub(super) first_key: usize,
    pub(super) keys: usize,
    pub(super) first_query: usize,
    /// Queries in blocks of 16: the width of a row.
    pub(super) blocks: usize,
    /// What queries see, if some of these must not see some of these keys.
    pub(super) edge: Option<Sight>,
    pub(super) draws: Option<Draws>,
}

impl Tile {
    fn lanes(&self) -> usize {
        self.blocks * BLOCK
    }
}

/// What is known of each query while its keys are walked over.
pub(super) struct Rows {
    /// The largest score so far.
    pub(super) max: [f32; QUERIES],
    /// The sum of `2^(score - max)` so far, each as it is multiplied with its value.
    pub(super) sum: [f32; QUERIES],
    /// What earlier sums of this query are multiplied by because the maximum grew.
    pub(super) factor: [f32; QUERIES],
}

impl Rows {
    pub(super) fn new() -> Self {
        Self { max: [f32::NEG_INFINITY; QUERIES], sum: [0.0; QUERIES], factor: [1.0; QUERIES] }
    }
}

const COUNT: [f32; BLOCK] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// `inside` for the queries that see a key, else `outside`.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn where_seen<S: Lanes>(
    sight: Sight,
    key: usize,
    queries: S::Vector,
    inside: S::Vector,
    outside: S::Vector,
) -> S::Vector {
    let [first, last] = sight.queries_of(key);
    // SAFETY: the caller's promise is the same. The distance of two positions is exact below 2^24.
    unsafe {
        let before = S::sub(S::splat(first), queries);
        let after = S::sub(queries, S::splat(last));
        let off = S::clamp(S::max(before, after), 0.0, 1.0);
        S::where_small(off, 0.5, inside, outside)
    }
}

/// The positions of the queries of a vector.
///
/// # Safety
/// That of [`Simd`], with `sub` a multiple of its lanes below [`BLOCK`].
#[inline(always)]
unsafe fn positions<S: Simd>(first: usize, sub: usize) -> S::Vector {
    // SAFETY: the lanes end within the block.
    unsafe { S::add(S::splat(first as f32), S::load(COUNT.as_ptr().add(sub))) }
}

dispatch!(
    /// Turns the scores of a tile into `2^(score - max)`, dropped where that is drawn, as words for a
    /// sum over keys: `[words(keys), lanes]` in the place of `[keys, lanes]`.
    pub(super) fn softmax<C: Compute> = softmax_columns(tile: Tile, scores: &mut [f32], rows: &mut Rows)
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn softmax_columns<S: Lanes, C: Compute>(tile: Tile, scores: &mut [f32], rows: &mut Rows) {
    assert!(scores.len() >= tile.keys * tile.lanes() && tile.lanes() <= QUERIES, "{tile:?}");
    for column in (0..tile.lanes()).step_by(S::LANES) {
        // SAFETY: the vectors of this column end within each row and within `rows`.
        unsafe {
            let at = scores.as_mut_ptr().add(column);
            match tile.draws {
                Some(draws) => column_of::<S, C, true>(&tile, at, column, draws, rows),
                None => {
                    let none = Draws { stream: Stream::new(0, ""), threshold: 0 };
                    column_of::<S, C, false>(&tile, at, column, none, rows);
                }
            }
        }
    }
}

/// Two numbers as a product reads them, rounded if that is what words do. Exponentials are summed up so: what the
/// values are weighed by is then 1 in all, and what all values have in common takes no part in the gradient of scores,
/// which is a difference of two products with them.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn as_multiplied<S: Simd, C: Compute>([low, high]: [S::Vector; 2]) -> [S::Vector; 2] {
    // SAFETY: the caller's promise is the same.
    unsafe {
        if C::PAIR == 2 {
            let (low, high) = S::unpair(C::join::<S>(low, high));
            return [low, high];
        }
        [C::join::<S>(low, low), C::join::<S>(high, high)]
    }
}

/// # Safety
/// That of [`Simd`]; `at` is the first of `tile.keys` vectors, a row apart.
#[inline(always)]
unsafe fn column_of<S: Lanes, C: Compute, const DROP: bool>(
    tile: &Tile,
    at: *mut f32,
    column: usize,
    draws: Draws,
    rows: &mut Rows,
) {
    let (keys, lanes) = (tile.keys, tile.lanes());
    // SAFETY: every row is below `keys`, and `column` within `rows`.
    unsafe {
        let queries = positions::<S>(tile.first_query + column / BLOCK * BLOCK, column % BLOCK);
        let never = S::splat(f32::NEG_INFINITY);
        let before = S::load(rows.max.as_ptr().add(column));
        let mut max = before;
        for key in 0..keys {
            let mut score = S::load(at.add(key * lanes));
            if let Some(sight) = tile.edge {
                score = where_seen::<S>(sight, tile.first_key + key, queries, score, never);
            }
            max = S::max(max, score);
        }
        // Where no key has been seen so far nothing has been summed, and infinity minus infinity is NaN.
        let lowest = S::splat(f32::MIN);
        let factor = exp2::<S>(S::sub(S::max(before, lowest), S::max(max, lowest)));
        let mut sum = S::mul(S::load(rows.sum.as_ptr().add(column)), factor);
        let zero = S::splat(0.0);
        let mut group = 0;
        while group * GROUP < keys {
            let words = if DROP {
                let query = (tile.first_query + column) as u32;
                S::draw(draws.stream, query, (tile.first_key / GROUP + group) as u32)
            } else {
                [zero; 4]
            };
            for (word, bits) in words.into_iter().enumerate() {
                let key = group * GROUP + 2 * word;
                if key >= keys {
                    break;
                }
                let mut pair = [zero; 2];
                for (half, p) in pair.iter_mut().enumerate() {
                    if key + half >= keys {
                        break;
                    }
                    let score = S::load(at.add((key + half) * lanes));
                    *p = exp2::<S>(S::sub(score, max));
                    if let Some(sight) = tile.edge {
                        *p = where_seen::<S>(sight, tile.first_key + key + half, queries, *p, zero);
                    }
                }
                let mut pair = as_multiplied::<S, C>(pair);
                sum = S::add(S::add(sum, pair[0]), pair[1]);
                if DROP {
                    let [low, high] = pair;
                    pair = [
                        S::keep_low(low, bits, draws.threshold),
                        S::keep_high(high, bits, draws.threshold),
                    ];
                }
                if C::PAIR == 2 {
                    S::store(at.add(key / 2 * lanes), S::cut(pair[0], pair[1]));
                    continue;
                }
                for (half, p) in pair.into_iter().enumerate().take(keys - key) {
                    S::store(at.add((key + half) * lanes), p);
                }
            }
            group += 1;
        }
        S::store(rows.max.as_mut_ptr().add(column), max);
        S::store(rows.sum.as_mut_ptr().add(column), sum);
        S::store(rows.factor.as_mut_ptr().add(column), factor);
    }
}

/// What the forward pass and the gradient of the output say about each query.
pub(super) struct Known {
    /// The largest score.
    pub(super) max: [f32; QUERIES],
    /// One over the sum of `2^(score - max)`.
    pub(super) inverse: [f32; QUERIES],
    /// Minus the product of the output and its gradient, as words have that.
    pub(super) dot: [f32; QUERIES],
    /// What a probability that is kept is multiplied by.
    pub(super) scale: f32,
}

dispatch!(
    /// From scores and the gradient `d` of the probabilities, both `[keys, lanes]`, the probabilities
    /// that were kept and the gradient of the scores, in their places. With `p` a probability, the
    /// latter is `p · (kept · scale · d - Σ output · its gradient)`.
    ///
    /// They are words for sums over queries, each block of 16 paired with the one after it, at the front
    /// of each row. With pairs, `by_key` becomes the gradient of the scores as words for a sum over
    /// keys, `[words(keys), lanes]`.
    pub(super) fn gradient<C: Compute> = gradient_columns(
        tile: Tile,
        known: &Known,
        scores: &mut [f32],
        d: &mut [f32],
        by_key: &mut [f32]
    )
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn gradient_columns<S: Lanes, C: Compute>(
    tile: Tile,
    known: &Known,
    scores: &mut [f32],
    d: &mut [f32],
    by_key: &mut [f32],
) {
    let (keys, lanes) = (tile.keys, tile.lanes());
    assert!(scores.len().min(d.len()) >= keys * lanes && lanes <= QUERIES, "{tile:?}");
    assert!(C::PAIR == 1 || by_key.len() >= keys.div_ceil(2) * lanes, "{tile:?}");
    let columns =
        Columns { scores: scores.as_mut_ptr(), d: d.as_mut_ptr(), by_key: by_key.as_mut_ptr() };
    for block in (0..tile.blocks).step_by(C::PAIR) {
        for sub in (0..BLOCK).step_by(S::LANES) {
            // SAFETY: the columns lie within rows whose lengths the assertions above establish.
            unsafe {
                match tile.draws {
                    Some(draws) => {
                        gradient_of::<S, C, true>(&tile, known, &columns, block, sub, draws);
                    }
                    None => {
                        let none = Draws { stream: Stream::new(0, ""), threshold: 0 };
                        gradient_of::<S, C, false>(&tile, known, &columns, block, sub, none);
                    }
                }
            }
        }
    }
}

/// What [`gradient`] reads and writes.
struct Columns {
    scores: *mut f32,
    d: *mut f32,
    by_key: *mut f32,
}

/// One column of vectors, in pairs of blocks where words are pairs.
///
/// # Safety
/// That of [`Simd`]; the columns are there for `tile.keys` rows.
#[inline(always)]
unsafe fn gradient_of<S: Lanes, C: Compute, const DROP: bool>(
    tile: &Tile,
    known: &Known,
    columns: &Columns,
    block: usize,
    sub: usize,
    draws: Draws,
) {
    let (keys, lanes) = (tile.keys, tile.lanes());
    // SAFETY: every row is below `keys`, and every block below `tile.blocks`.
    unsafe {
        let nothing = S::splat(0.0);
        let mut group = 0;
        while group * GROUP < keys {
            let mut kept = [[nothing; GROUP]; 2];
            let mut slopes = [[nothing; GROUP]; 2];
            for side in 0..C::PAIR {
                if block + side >= tile.blocks {
                    break;
                }
                let column = (block + side) * BLOCK + sub;
                let max = S::load(known.max.as_ptr().add(column));
                let inverse = S::load(known.inverse.as_ptr().add(column));
                let dot = S::load(known.dot.as_ptr().add(column));
                let scale = S::splat(known.scale);
                let queries = positions::<S>(tile.first_query + (block + side) * BLOCK, sub);
                let words = if DROP {
                    let query = (tile.first_query + column) as u32;
                    S::draw(draws.stream, query, (tile.first_key / GROUP + group) as u32)
                } else {
                    [nothing; 4]
                };
                for row in 0..GROUP {
                    let key = group * GROUP + row;
                    if key >= keys {
                        break;
                    }
                    let at = key * lanes + column;
                    let score = S::load(columns.scores.add(at));
                    let mut p = S::mul(exp2::<S>(S::sub(score, max)), inverse);
                    if let Some(sight) = tile.edge {
                        p = where_seen::<S>(sight, tile.first_key + key, queries, p, nothing);
                    }
                    let (mut d, mut through) = (S::load(columns.d.add(at)), p);
                    if DROP {
                        let bits = words[row / 2];
                        if row % 2 == 0 {
                            d = S::keep_low(d, bits, draws.threshold);
                            through = S::keep_low(p, bits, draws.threshold);
                        } else {
                            d = S::keep_high(d, bits, draws.threshold);
                            through = S::keep_high(p, bits, draws.threshold);
                        }
                    }
                    let slope = S::mul(p, S::fma(d, scale, dot));
                    if C::PAIR == 1 {
                        S::store(columns.scores.add(at), C::join::<S>(through, nothing));
                        S::store(columns.d.add(at), C::join::<S>(slope, nothing));
                    } else {
                        (kept[side][row], slopes[side][row]) = (through, slope);
                    }
                }
            }
            if C::PAIR == 2 {
                // SAFETY: as above. What is overwritten has been read: for this column or an earlier one.
                store_words::<S>(tile, columns, block, sub, group, &kept, &slopes);
            }
            group += 1;
        }
    }
}

/// Stores a group's probabilities and gradients of scores as words.
///
/// # Safety
/// As for [`gradient_of`].
#[inline(always)]
unsafe fn store_words<S: Lanes>(
    tile: &Tile,
    columns: &Columns,
    block: usize,
    sub: usize,
    group: usize,
    kept: &[[S::Vector; GROUP]; 2],
    slopes: &[[S::Vector; GROUP]; 2],
) {
    let lanes = tile.lanes();
    for row in 0..GROUP {
        let key = group * GROUP + row;
        if key >= tile.keys {
            break;
        }
        // SAFETY: every key is below `tile.keys`, and every block below `tile.blocks`.
        unsafe {
            let at = key * lanes + block / 2 * BLOCK + sub;
            S::store(columns.scores.add(at), S::pair(kept[0][row], kept[1][row]));
            S::store(columns.d.add(at), S::pair(slopes[0][row], slopes[1][row]));
            if row % 2 == 0 {
                for (side, slopes) in slopes.iter().enumerate().take(tile.blocks - block) {
                    let at = key / 2 * lanes + (block + side) * BLOCK + sub;
                    S::store(columns.by_key.add(at), S::pair(slopes[row], slopes[row + 1]));
                }
            }
        }
    }
}
