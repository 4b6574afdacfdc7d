//! k nearest neighbours: what a representation offers without any fitting.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::features::{Features, Standardiser};
use crate::matrix::{Matrix, multiply};

/// Test rows whose distances to all training rows are in memory together.
const BLOCK: usize = 256;

/// How far two rows are from each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distance {
    /// Euclidean, after each feature is divided by its standard deviation over the training rows.
    #[default]
    Euclidean,
    /// One minus the cosine of the angle between the rows, after the same standardisation.
    Cosine,
}

/// Training rows to look neighbours up in.
#[derive(Clone, Debug)]
pub struct Neighbours {
    standardiser: Standardiser,
    distance: Distance,
    /// `[row, feature]`, standardised; of unit length for the cosine.
    rows: Vec<f64>,
    squares: Vec<f64>,
    labels: Vec<u32>,
    classes: usize,
    width: usize,
}

impl Neighbours {
    /// Keeps the training rows, standardised.
    ///
    /// # Panics
    ///
    /// When a feature is not finite, as in predictions.
    pub fn fit(train: &Features, classes: usize, distance: Distance) -> Self {
        let standardiser = Standardiser::fit(&train.rows, train.width);
        let (rows, squares) = prepare(&standardiser, distance, &train.rows, train.width);
        let labels = train.labels.clone();
        Self { standardiser, distance, rows, squares, labels, classes, width: train.width }
    }

    /// The class that most of the `k` nearest training rows have. Of classes with equally many
    /// votes, the one whose votes lie nearer in sum wins, then the lower class; of rows equally far
    /// away, the earlier one counts.
    ///
    /// # Shapes
    ///
    /// - `rows`: `[row, feature]`; returns one class a row.
    pub fn predict(&self, rows: &[f32], k: usize) -> Vec<u32> {
        let mut out = Vec::with_capacity(rows.len() / self.width.max(1));
        let count = self.labels.len();
        for block in rows.chunks(BLOCK * self.width.max(1)) {
            let (x, squares) = prepare(&self.standardiser, self.distance, block, self.width);
            let mut products = vec![0.0; squares.len() * count];
            multiply(
                Matrix::new(&x, squares.len(), self.width),
                Matrix::new(&self.rows, count, self.width).transposed(),
                &mut products,
            );
            let votes: Vec<u32> = products
                .par_chunks_exact(count.max(1))
                .zip(&squares)
                .map(|(products, square)| self.vote(products, *square, k))
                .collect();
            out.extend(votes);
        }
        out
    }

    fn vote(&self, products: &[f64], square: f64, k: usize) -> u32 {
        // |a − b|² = |a|² + |b|² − 2 a·b; for rows of unit length this is twice one minus the cosine.
        let mut near: Vec<(f64, u32)> = products
            .iter()
            .zip(&self.squares)
            .map(|(product, own)| (square + own - 2.0 * product).max(0.0))
            .zip(0..)
            .collect();
        let k = k.clamp(1, near.len());
        let order = |a: &(f64, u32), b: &(f64, u32)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
        near.select_nth_unstable_by(k - 1, order);
        let mut votes = vec![(0u32, 0.0); self.classes];
        for (distance, row) in &near[..k] {
            let vote = &mut votes[self.labels[*row as usize] as usize];
            vote.0 += 1;
            vote.1 += match self.distance {
                Distance::Euclidean => distance.sqrt(),
                Distance::Cosine => *distance,
            };
        }
        let mut best = 0;
        for (class, vote) in votes.iter().enumerate() {
            let leads =
                vote.0 > votes[best].0 || (vote.0 == votes[best].0 && vote.1 < votes[best].1);
            if vote.0 > 0 && leads {
                best = class;
            }
        }
        best as u32
    }
}

/// Standardises rows and returns their squared lengths; for the cosine, rows get unit length.
fn prepare(
    standardiser: &Standardiser,
    distance: Distance,
    rows: &[f32],
    width: usize,
) -> (Vec<f64>, Vec<f64>) {
    let mut x = standardiser.apply(rows);
    let squares = x
        .chunks_exact_mut(width.max(1))
        .map(|row| {
            let square: f64 = row.iter().map(|v| v * v).sum();
            if distance == Distance::Euclidean || square == 0.0 {
                return square;
            }
            let inverse = square.sqrt().recip();
            row.iter_mut().for_each(|v| *v *= inverse);
            1.0
        })
        .collect();
    (x, squares)
}

#[cfg(test)]
mod tests {
    use firebox_core::Stream;

    use super::*;

    fn random(rows: usize, width: usize, classes: u64, seed: u64) -> Features {
        let mut draws = Stream::new(seed, "neighbours").draws();
        Features {
            rows: (0..rows * width).map(|_| draws.normal() as f32).collect(),
            width,
            labels: (0..rows).map(|_| draws.below(classes) as u32).collect(),
        }
    }

    #[test]
    fn agrees_with_sorting_all_distances() {
        for (train_rows, width, k, distance) in [
            (50, 3, 1, Distance::Euclidean),
            (301, 17, 5, Distance::Euclidean),
            (301, 17, 8, Distance::Cosine),
            (4, 2, 9, Distance::Cosine),
        ] {
            let (train, test) = (random(train_rows, width, 3, 1), random(300, width, 3, 2));
            let predicted = Neighbours::fit(&train, 3, distance).predict(&test.rows, k);
            let scale = Standardiser::fit(&train.rows, width);
            let (a, b) = (scale.apply(&train.rows), scale.apply(&test.rows));
            for (row, predicted) in predicted.iter().enumerate() {
                let x = &b[row * width..][..width];
                let mut far: Vec<(f64, usize)> = (0..train_rows)
                    .map(|i| {
                        let y = &a[i * width..][..width];
                        let dot = |a: &[f64], b: &[f64]| -> f64 {
                            a.iter().zip(b).map(|(a, b)| a * b).sum()
                        };
                        let value = match distance {
                            Distance::Euclidean => {
                                x.iter().zip(y).map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt()
                            }
                            Distance::Cosine => {
                                2.0 - 2.0 * dot(x, y) / (dot(x, x) * dot(y, y)).sqrt()
                            }
                        };
                        (value, i)
                    })
                    .collect();
                far.sort_by(|a, b| a.0.total_cmp(&b.0));
                let mut votes = [(0, 0.0); 3];
                for (distance, i) in far.iter().take(k) {
                    let vote = &mut votes[train.labels[*i] as usize];
                    *vote = (vote.0 + 1, vote.1 - distance);
                }
                let expected = (0..3u32)
                    .rev()
                    .max_by(|a, b| {
                        let [a, b] = [a, b].map(|c| votes[*c as usize]);
                        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
                    })
                    .unwrap();
                assert_eq!(*predicted, expected, "row {row} of {distance:?} k {k}");
            }
        }
    }

    #[test]
    fn equal_votes_go_to_the_nearer_class() {
        let train =
            Features { rows: vec![0.0, 1.0, 10.0, 11.0], width: 1, labels: vec![1, 1, 0, 0] };
        let fitted = Neighbours::fit(&train, 2, Distance::Euclidean);
        assert_eq!(fitted.predict(&[2.0, 9.0], 4), [1, 0]);
    }
}
