//! K-means clusters of rows, with k-means++ starts and restarts.
//!
//! What the clusters mean is not known here; see `clustering` for how they are judged.

use std::sync::atomic::AtomicBool;

use firebox_core::{Draws, Stream};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::EvalError;

/// How clusters are found. Iterations and tolerance are scikit-learn's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KMeansConfig {
    /// Clusters; at least 1.
    pub clusters: usize,
    /// Starts, of which the one with the smallest inertia is taken; at least 1.
    pub restarts: u32,
    /// Most iterations of a start.
    pub iterations: u32,
    /// A start ends when the squared shift of all centers is at most this share of the mean
    /// variance of the columns.
    pub tolerance: f64,
    /// Seed of the starts.
    pub seed: u64,
}

impl Default for KMeansConfig {
    fn default() -> Self {
        Self { clusters: 5, restarts: 10, iterations: 300, tolerance: 1e-4, seed: 1337 }
    }
}

/// Clusters of some rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KMeans {
    /// The centers, `[cluster, feature]`.
    pub centers: Vec<f64>,
    /// The nearest center of each row, `[row]`.
    pub assigned: Vec<u32>,
    /// The sum of the squared distances of the rows to their centers.
    pub inertia: f64,
    /// Iterations of the start that was taken.
    pub iterations: u32,
}

impl KMeansConfig {
    /// Finds clusters: of several starts by k-means++ (Arthur and Vassilvitskii, 2007), each followed
    /// by Lloyd's iterations (1982), the one with the smallest inertia. A cluster that loses all its
    /// rows gets the row that is farthest from its center. The result is the same on any number of
    /// threads.
    ///
    /// # Shapes
    ///
    /// - `rows`: `[row, feature]`, row-major; `width` features a row.
    ///
    /// # Errors
    ///
    /// With a value that is not finite, or fewer different rows than clusters.
    ///
    /// # Panics
    ///
    /// When `width` is 0 or does not divide the number of values.
    pub fn fit(&self, rows: &[f32], width: usize) -> Result<KMeans, EvalError> {
        self.fit_watched(rows, width, &AtomicBool::new(false), |_| ())
    }

    /// [`fit`](Self::fit), which tells `watch` how many starts are done, after each, and ends once `stop` is true: after
    /// the pass over the rows that it is in.
    ///
    /// # Errors
    ///
    /// As there, and [`EvalError::Stopped`].
    pub fn fit_watched(
        &self,
        rows: &[f32],
        width: usize,
        stop: &AtomicBool,
        mut watch: impl FnMut(u32),
    ) -> Result<KMeans, EvalError> {
        let whole = width > 0 && rows.len().is_multiple_of(width);
        assert!(whole, "{} values are no rows of {width} features", rows.len());
        let count = rows.len() / width;
        if let Some(place) = rows.iter().position(|value| !value.is_finite()) {
            let (row, feature) = (place / width, place % width);
            return Err(EvalError::NotFinite {
                part: "embedded",
                row,
                feature,
                value: rows[place],
            });
        }
        let most = if self.clusters == 0 { count } else { self.clusters };
        let distinct = different(rows, width, most);
        if self.clusters == 0 || distinct < self.clusters {
            return Err(EvalError::Clusters { clusters: self.clusters, rows: count, distinct });
        }
        let stream = Stream::new(self.seed, "k-means");
        let mut found = |start: u32| {
            let mut draws = stream.substream(u64::from(start)).draws();
            let centers = plus_plus(rows, width, self.clusters, &mut draws, stop)?;
            let found = self.from_centers(rows, width, centers, stop)?;
            watch(start + 1);
            Ok::<_, EvalError>(found)
        };
        let mut best = found(0)?;
        for start in 1..self.restarts {
            let next = found(start)?;
            if next.inertia.total_cmp(&best.inertia).is_lt() {
                best = next;
            }
        }
        Ok(best)
    }

    /// Lloyd's iterations from given centers, `[cluster, feature]`, until `stop` is true.
    ///
    /// # Errors
    ///
    /// [`EvalError::Stopped`].
    pub fn from_centers(
        &self,
        x: &[f32],
        width: usize,
        mut centers: Vec<f64>,
        stop: &AtomicBool,
    ) -> Result<KMeans, EvalError> {
        let tolerance = self.tolerance * mean_variance(x, width);
        let mut nearest = assign(x, width, &centers);
        let mut iterations = 0;
        while iterations < self.iterations {
            EvalError::heed(stop)?;
            iterations += 1;
            let next = means(x, width, &nearest, &centers);
            let shift: f64 = next.iter().zip(&centers).map(|(a, b)| (a - b).powi(2)).sum();
            centers = next;
            let before = std::mem::replace(&mut nearest, assign(x, width, &centers));
            let settled = before.iter().zip(&nearest).all(|(a, b)| a.0 == b.0);
            if settled || shift <= tolerance {
                break;
            }
        }
        Ok(KMeans {
            inertia: nearest.iter().map(|(_, distance)| distance).sum(),
            assigned: nearest.into_iter().map(|(cluster, _)| cluster).collect(),
            centers,
            iterations,
        })
    }
}

impl KMeans {
    /// The nearest center of each of other rows.
    pub fn assign(&self, rows: &[f32], width: usize) -> Vec<u32> {
        assign(rows, width, &self.centers).into_iter().map(|(cluster, _)| cluster).collect()
    }
}

/// How many rows differ from each other, of which no more than `most` are looked for.
fn different(rows: &[f32], width: usize, most: usize) -> usize {
    let mut found: Vec<&[f32]> = vec![];
    for row in rows.chunks_exact(width) {
        if found.len() < most && !found.contains(&row) {
            found.push(row);
        }
    }
    found.len()
}

fn squared(row: &[f32], center: &[f64]) -> f64 {
    row.iter().zip(center).map(|(value, center)| (f64::from(*value) - center).powi(2)).sum()
}

/// The nearest center of each row, the first of equally near ones, and its squared distance.
fn assign(x: &[f32], width: usize, centers: &[f64]) -> Vec<(u32, f64)> {
    let nearest = |row: &[f32]| {
        let distances = centers.chunks_exact(width).map(|center| squared(row, center));
        let mut best = (0, f64::INFINITY);
        for (distance, cluster) in distances.zip(0..) {
            if distance < best.1 {
                best = (cluster, distance);
            }
        }
        best
    };
    x.par_chunks_exact(width).with_min_len(64).map(nearest).collect()
}

/// Means of the rows of each cluster. Summed in the order of the rows, so that threads change
/// nothing.
fn means(x: &[f32], width: usize, nearest: &[(u32, f64)], old: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0; old.len()];
    let mut counts = vec![0usize; old.len() / width];
    let mut clusters: Vec<u32> = nearest.iter().map(|(cluster, _)| *cluster).collect();
    clusters.iter().for_each(|cluster| counts[*cluster as usize] += 1);
    let mut farthest: Vec<usize> = (0..nearest.len()).collect();
    farthest.sort_by(|a, b| nearest[*b].1.total_cmp(&nearest[*a].1));
    let mut farthest = farthest.into_iter();
    for cluster in 0..counts.len() {
        while counts[cluster] == 0 {
            let Some(row) = farthest.next() else { break };
            // A cluster of one row would be empty in its place.
            if counts[clusters[row] as usize] > 1 {
                counts[clusters[row] as usize] -= 1;
                clusters[row] = cluster as u32;
                counts[cluster] = 1;
            }
        }
    }
    for (row, cluster) in x.chunks_exact(width).zip(&clusters) {
        let sum = &mut sums[*cluster as usize * width..][..width];
        sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    for (sum, count) in sums.chunks_exact_mut(width).zip(&counts) {
        sum.iter_mut().for_each(|sum| *sum /= (*count).max(1) as f64);
    }
    sums
}

/// Centers drawn from the rows, each with a probability in proportion to its squared distance from
/// those before it; of several candidates the best, as scikit-learn does.
fn plus_plus(
    x: &[f32],
    width: usize,
    clusters: usize,
    draws: &mut Draws,
    stop: &AtomicBool,
) -> Result<Vec<f64>, EvalError> {
    let rows = x.len() / width;
    let row = |index: usize| -> Vec<f64> {
        x[index * width..(index + 1) * width].iter().map(|value| f64::from(*value)).collect()
    };
    let mut centers = row(draws.below(rows as u64) as usize);
    let from = |center: &[f64]| -> Vec<f64> {
        x.par_chunks_exact(width).with_min_len(64).map(|row| squared(row, center)).collect()
    };
    let mut distances = from(&centers);
    let candidates = 2 + (clusters as f64).ln() as usize;
    for _ in 1..clusters {
        EvalError::heed(stop)?;
        let total: f64 = distances.iter().sum();
        let mut best: Option<(f64, Vec<f64>, usize)> = None;
        for _ in 0..candidates {
            let mut place = f64::from(draws.uniform()) * total;
            let chosen = distances.iter().position(|distance| {
                place -= distance;
                place < 0.0
            });
            let chosen = chosen.unwrap_or(farthest(&distances));
            let own = from(&row(chosen));
            let closer: Vec<f64> = own.iter().zip(&distances).map(|(a, b)| a.min(*b)).collect();
            let left: f64 = closer.iter().sum();
            if best.as_ref().is_none_or(|(least, ..)| left < *least) {
                best = Some((left, closer, chosen));
            }
        }
        if let Some((_, closer, chosen)) = best {
            distances = closer;
            centers.extend(row(chosen));
        }
    }
    Ok(centers)
}

fn farthest(distances: &[f64]) -> usize {
    let farthest = (0..distances.len()).max_by(|a, b| distances[*a].total_cmp(&distances[*b]));
    farthest.unwrap_or(0)
}

fn mean_variance(x: &[f32], width: usize) -> f64 {
    let rows = (x.len() / width.max(1)).max(1) as f64;
    let variance = |column: usize| {
        let values = || x[column..].iter().step_by(width).map(|value| f64::from(*value));
        let mean = values().sum::<f64>() / rows;
        values().map(|value| (value - mean).powi(2)).sum::<f64>() / rows
    };
    if x.is_empty() { 0.0 } else { (0..width).map(variance).sum::<f64>() / width as f64 }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    fn blobs(clusters: usize, each: usize, width: usize) -> Vec<f32> {
        let mut draws = Stream::new(4, "blobs").draws();
        let rows = (0..clusters * each)
            .flat_map(|row| (0..width).map(move |column| (row / each, column)).collect::<Vec<_>>());
        rows.map(|(blob, column)| {
            let center = if column == blob % width { 8.0 * (1 + blob / width) as f64 } else { 0.0 };
            (center + draws.normal()) as f32
        })
        .collect()
    }

    #[test]
    fn separate_blobs_are_found_whatever_the_threads() {
        let rows = blobs(6, 50, 4);
        let config = KMeansConfig { clusters: 6, ..KMeansConfig::default() };
        let mut starts = vec![];
        let never = AtomicBool::new(false);
        let found = config.fit_watched(&rows, 4, &never, |done| starts.push(done)).unwrap();
        assert_eq!(starts, (1..=10).collect::<Vec<_>>());
        for blob in found.assigned.chunks_exact(50) {
            assert!(blob.iter().all(|cluster| cluster == &blob[0]));
        }
        let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert_eq!(one.install(|| config.fit(&rows, 4).unwrap()), found);
        assert_eq!(found.assign(&rows, 4), found.assigned);
        let other = KMeansConfig { seed: 2, ..config }.fit(&rows, 4).unwrap();
        for blob in other.assigned.chunks_exact(50) {
            assert!(blob.iter().all(|cluster| cluster == &blob[0]));
        }
    }

    #[test]
    fn whoever_wants_it_no_more_does_not_wait_for_all_starts() {
        let rows = blobs(6, 50, 4);
        let config = KMeansConfig { clusters: 6, restarts: 1000, ..KMeansConfig::default() };
        let stop = AtomicBool::new(false);
        let mut starts = 0;
        let stopped = config.fit_watched(&rows, 4, &stop, |done| {
            starts = done;
            stop.store(done == 3, Ordering::Relaxed);
        });
        assert!(matches!(stopped, Err(EvalError::Stopped)) && starts == 3, "{starts}");
        // Within a start, too.
        let within = config.from_centers(&rows, 4, vec![0.0; 24], &stop);
        assert!(matches!(within, Err(EvalError::Stopped)));
    }

    #[test]
    fn an_empty_cluster_gets_the_farthest_row() {
        // The second center has no row: all are nearer to the first.
        let x = [0.0, 1.0, 2.0, 9.0];
        let config = KMeansConfig { clusters: 2, ..KMeansConfig::default() };
        let never = AtomicBool::new(false);
        let found = config.from_centers(&x, 1, vec![3.0, 1000.0], &never).unwrap();
        assert_eq!((found.assigned, found.centers), (vec![0, 0, 0, 1], vec![1.0, 9.0]));
    }

    #[test]
    fn what_cannot_be_clustered_is_named() {
        let config = KMeansConfig { clusters: 3, ..KMeansConfig::default() };
        let few = config.fit(&[1.0, 2.0, 1.0, 2.0, 5.0, 5.0], 2).unwrap_err().to_string();
        assert!(few.contains("3 clusters") && few.contains("2 different"), "{few}");
        let nan = config.fit(&[1.0, f32::NAN], 1).unwrap_err().to_string();
        assert!(nan.contains("embedded row 1"), "{nan}");
        // Zeros are alike whatever their sign, and of more rows than clusters no more are looked for.
        assert_eq!(different(&[0.0, 1.0, -0.0, 1.0, 2.0, 1.0], 2, 3), 2);
        assert_eq!(different(&[1.0, 2.0, 3.0, 4.0], 1, 3), 3);
        let none = config.fit(&[], 4).unwrap_err().to_string();
        assert!(none.contains("0 different"), "{none}");
    }
}
