//! The time-warp of a batch: every row read at times of its own, by linear interpolation.
//!
//! A processor computes a time in float64. In f32, of a time of hundreds of steps few digits would be left
//! for the place between two; so what is computed here is the *shift*, time minus step, whose digits are
//! those of the place. Between two knots it is a polynomial of degree two, whose coefficients come from
//! the host, where they are computed in float64.

use burn::tensor::{Int, Tensor, TensorData};
use firebox_cache::{Drawn, Recipe};

use super::{Coin, Column, Table, Uploaded};

/// The warps of a batch.
pub(super) struct Warp {
    pub(super) coin: Coin,
    /// Pieces between two knots.
    pieces: usize,
    /// Coefficients of the powers 0, 1 and 2 of a piece's share that has gone by: `[power, batch, piece]`.
    coefficients: Vec<f32>,
    /// From the first step to the last of each row.
    span: Column,
    /// The step that no row is read at or behind: the last where time is warped, none elsewhere.
    end: Column,
}

impl Warp {
    /// The warps of what was drawn, if there is any. A window of one step, or of none, has no other time.
    pub(super) fn of(
        recipe: &Recipe,
        drawn: &[Drawn],
        lengths: &[usize],
        table: &mut Table,
    ) -> Option<Self> {
        let coin = table.coin(drawn.iter().map(|drawn| !drawn.speeds.is_empty()))?;
        let (batch, pieces) = (drawn.len(), recipe.knots() - 1);
        let mut coefficients = vec![0.0; 3 * batch * pieces];
        let warped = |row: usize| !drawn[row].speeds.is_empty() && lengths[row] > 1;
        for row in (0..batch).filter(|row| warped(*row)) {
            for (piece, powers) in shifts(&drawn[row].speeds, lengths[row]).enumerate() {
                for (power, coefficient) in powers.into_iter().enumerate() {
                    let place = (power * batch + row) * pieces + piece;
                    coefficients[place] = coefficient as f32;
                }
            }
        }
        let last = |row: usize| lengths[row].saturating_sub(1);
        let span = table.column((0..batch).map(|row| last(row).max(1) as f32));
        let end = |row| if warped(row) { last(row) as f32 } else { f32::MAX };
        let end = table.column((0..batch).map(end));
        Some(Self { coin, pieces, coefficients, span, end })
    }

    /// Reads each row at its times. Rows without a warp, and steps behind the end of one, keep what they
    /// have or get anything that is finite.
    ///
    /// # Shapes
    ///
    /// - `x`, output: `[batch, time, channel]`
    pub(super) fn apply(&self, x: Tensor<3>, table: &Uploaded) -> Tensor<3> {
        let ([batch, time, channel], device) = (x.dims(), x.device());
        let (shape, knots) = ([batch, time], self.pieces as f64);
        let [span, end] = [self.span, self.end]
            .map(|column| table.numbers(column).reshape([batch, 1]).expand(shape));
        let step = Tensor::<1, Int>::arange(0..time as i64, &device).float();
        let step = step.reshape([1, time]).expand(shape);
        // Whole numbers: exact up to 2^24. A piece that rounding takes for its neighbour gives the same
        // at their knot, for the curve has no jump.
        let position = step.clone() * knots;
        let piece = (position.clone() / span.clone()).floor().clamp(0.0, knots - 1.0);
        let gone = (position - piece.clone() * span.clone()) / span;
        let piece = piece.int();
        let coefficients = TensorData::new(self.coefficients.clone(), [3, batch, self.pieces]);
        let coefficients = Tensor::<3>::from_data(coefficients, &device);
        let [at, slope, bend] = [0, 1, 2].map(|power| {
            let powers = coefficients.clone().narrow(0, power, 1).reshape([batch, self.pieces]);
            powers.gather(1, piece.clone())
        });
        let shift = at + gone.clone() * (slope + gone * bend);
        let whole = shift.clone().floor();
        let share = shift - whole.clone();
        let from = step + whole;
        // As on a processor, times from the first step to the last, the last read as the end of a pair.
        let (early, late) = (from.clone().lower_elem(0.0), from.clone().greater_equal(end.clone()));
        let from = from.mask_fill(early.clone(), 0.0).mask_where(late.clone(), end - 1.0);
        let share = share.mask_fill(early, 0.0).mask_fill(late, 1.0);
        let last = (time - 1) as f64;
        let next = (from.clone() + 1.0).clamp(0.0, last);
        let row = Tensor::<1, Int>::arange(0..batch as i64, &device) * time as i64;
        let row = row.reshape([batch, 1]).expand(shape);
        let steps = x.reshape([batch * time, channel]);
        let [a, b] = [from.clamp(0.0, last), next]
            .map(|at| steps.clone().select(0, (at.int() + row.clone()).reshape([batch * time])));
        let read = a.clone() + share.reshape([batch * time, 1]) * (b - a);
        read.reshape([batch, time, channel])
    }
}

/// The coefficients of time minus step in each piece between two knots, by powers of the share of the piece
/// that has gone by. `speeds` are those at the knots, linear in between; the time is their integral, scaled
/// to end at the last of `steps`, which are two at least.
fn shifts(speeds: &[f64], steps: usize) -> impl Iterator<Item = [f64; 3]> {
    let last = (steps - 1) as f64;
    let width = last / (speeds.len() - 1) as f64;
    let area: f64 = speeds.windows(2).map(|pair| 0.5 * (pair[0] + pair[1])).sum();
    let scale = last / area;
    let (mut piece, mut before) = (0.0, 0.0);
    speeds.windows(2).map(move |pair| {
        let half_slope = 0.5 * (pair[1] - pair[0]);
        let powers = [scale * before - piece * width, scale * pair[0] - width, scale * half_slope];
        piece += 1.0;
        before += pair[0] + half_slope;
        powers
    })
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use firebox_core::{Augmentation, Channel, Role, Stream, TimeWarp};

    use super::*;

    /// The time of a step in float64, by adding up the area under the speeds in short trapezoids that end
    /// at every knot.
    fn time(speeds: &[f64], steps: usize, step: usize) -> f64 {
        let (pieces, last) = (speeds.len() - 1, (steps - 1) as f64);
        let area = |to: f64| {
            let mut sum = 0.0;
            for piece in 0..pieces {
                let (from, until) = (piece as f64, to.min(piece as f64 + 1.0));
                let speed =
                    |knot: f64| speeds[piece] + (speeds[piece + 1] - speeds[piece]) * (knot - from);
                for part in 0..7 {
                    let [a, b] = [part, part + 1].map(|p| from + (until - from) * p as f64 / 7.0);
                    sum += if until > from { (b - a) * 0.5 * (speed(a) + speed(b)) } else { 0.0 };
                }
            }
            sum
        };
        area(step as f64 / last * pieces as f64) / area(pieces as f64) * last
    }

    fn recipe(knots: usize) -> Recipe {
        let time_warp = TimeWarp { knots, ..TimeWarp::default() };
        let settings = Augmentation { time_warp, ..Augmentation::default() };
        Recipe::new(&settings, &[Channel::new("x", Role::Other)], 1).unwrap()
    }

    /// Rows of `time` steps warped by speeds; those without any are not.
    fn warped(x: &[f32], time: usize, speeds: &[Vec<f64>], lengths: &[usize]) -> Vec<f32> {
        let device = Device::default();
        let knots = speeds.iter().map(Vec::len).max().unwrap();
        let drawn =
            speeds.iter().map(|speeds| Drawn { speeds: speeds.clone(), ..Drawn::default() });
        let drawn: Vec<_> = drawn.collect();
        let mut table = Table::default();
        let warp = Warp::of(&recipe(knots), &drawn, lengths, &mut table).unwrap();
        let table = table.upload(&device);
        let x = TensorData::new(x.to_vec(), [speeds.len(), time, 1]);
        let y = warp.apply(Tensor::from_data(x, &device), &table);
        y.into_data().try_to_vec::<f32>().unwrap()
    }

    #[test]
    fn a_warp_agrees_with_its_integral_in_f64() {
        let mut draws = Stream::new(1, "speeds").draws();
        for (time_steps, knots, sigma) in [
            (105_usize, 6, 0.12),
            (7, 2, 0.5),
            (5, 9, 0.4),
            (2, 3, 0.3),
            (1500, 6, 0.12),
            (64, 65, 0.3),
        ] {
            let lengths = [time_steps, time_steps.div_ceil(2).max(2), time_steps];
            let speeds: Vec<Vec<f64>> = (0..3)
                .map(|_| (0..knots).map(|_| (1.0 + sigma * draws.normal()).max(0.1)).collect())
                .collect();
            let x: Vec<f32> = (0..3 * time_steps).map(|_| draws.normal() as f32).collect();
            let y = warped(&x, time_steps, &speeds, &lengths);
            let (mut error, mut norm) = (0.0, 0.0);
            for (row, (length, speeds)) in lengths.into_iter().zip(&speeds).enumerate() {
                let (x, y) = (&x[row * time_steps..], &y[row * time_steps..]);
                for step in 0..length {
                    let at = time(speeds, length, step);
                    let from = (at as usize).min(length - 2);
                    let [a, b] = [x[from], x[from + 1]].map(f64::from);
                    let expected = a + (at - from as f64) * (b - a);
                    error += (f64::from(y[step]) - expected).powi(2);
                    norm += expected.powi(2);
                }
            }
            // White noise is the worst that interpolation can be asked to read.
            let error = (error / norm).sqrt();
            assert!(error < 1e-5, "{time_steps} steps, {knots} knots: {error:.2e}");
        }
    }

    #[test]
    fn rows_without_a_warp_keep_every_bit_and_extremes_stay_within_the_row() {
        let x: Vec<f32> = (0..40).map(|value| (value as f32 * 0.7).sin() * 1e3).collect();
        // The least speed beside the largest that can be drawn: time all but stands still, then leaps.
        let still = vec![0.1, 0.1, 6e6];
        let leaps = vec![6e6, 0.1, 0.1];
        let y = warped(&x, 10, &[vec![], still, leaps, vec![1.0; 3]], &[10, 10, 7, 1]);
        assert_eq!(y[..10], x[..10]);
        for (row, length) in [(1, 10), (2, 7)] {
            let (x, y) = (&x[10 * row..][..length], &y[10 * row..][..length]);
            let bound = |value: f32| {
                x.iter().copied().fold(f32::INFINITY, f32::min) - 1e-3 <= value
                    && value <= x.iter().copied().fold(f32::NEG_INFINITY, f32::max) + 1e-3
            };
            assert!(y.iter().all(|value| bound(*value)), "{y:?}");
            assert!((y[0] - x[0]).abs() < 1e-3 && (y[length - 1] - x[length - 1]).abs() < 1e-3);
        }
        assert_eq!(y[30], x[30], "one step has no other time");
    }
}
