//! How well clusters agree with true classes, and how much two sets of clusters agree.
//!
//! Definitions follow scikit-learn, which the tests compare with. Nothing here finds clusters.

use serde::{Deserialize, Serialize};

use crate::assignment::assign;

/// Agreement of clusters with classes. The names of the clusters do not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// Share of the rows that are of the most frequent class of their cluster, `0..=1`. It grows
    /// with the number of clusters.
    pub purity: f64,
    /// Mutual information over the mean of both entropies, `0..=1`
    /// (`normalized_mutual_info_score`).
    pub normalised_information: f64,
    /// The Rand index (Hubert and Arabie, 1985) adjusted so that chance gives 0; at most 1.
    pub adjusted_rand: f64,
}

impl Agreement {
    /// Compares the class and the cluster of each row.
    ///
    /// # Panics
    ///
    /// When there are more of one than of the other.
    pub fn of(classes: &[u32], clusters: &[u32]) -> Self {
        assert_eq!(classes.len(), clusters.len(), "one cluster for each class");
        let table = Table::new(classes, clusters);
        Self {
            purity: table.purity(),
            normalised_information: table.normalised_information(),
            adjusted_rand: table.adjusted_rand(),
        }
    }
}

/// Rows of each class in each cluster, `[class][cluster]`.
struct Table {
    counts: Vec<Vec<u64>>,
    classes: Vec<u64>,
    clusters: Vec<u64>,
    rows: f64,
}

impl Table {
    fn new(classes: &[u32], clusters: &[u32]) -> Self {
        let size = |of: &[u32]| of.iter().max().map_or(0, |most| *most as usize + 1);
        let mut counts = vec![vec![0; size(clusters)]; size(classes)];
        for (class, cluster) in classes.iter().zip(clusters) {
            counts[*class as usize][*cluster as usize] += 1;
        }
        let sums = (0..size(clusters)).map(|at| counts.iter().map(|row| row[at]).sum()).collect();
        Self {
            classes: counts.iter().map(|row| row.iter().sum()).collect(),
            clusters: sums,
            rows: classes.len() as f64,
            counts,
        }
    }

    fn purity(&self) -> f64 {
        let most = |cluster: usize| self.counts.iter().map(|row| row[cluster]).max().unwrap_or(0);
        let hits: u64 = (0..self.clusters.len()).map(most).sum();
        if self.rows > 0.0 { hits as f64 / self.rows } else { 0.0 }
    }

    fn entropy(&self, counts: &[u64]) -> f64 {
        let term = |count: &u64| {
            let share = *count as f64 / self.rows;
            if *count > 0 { -share * share.ln() } else { 0.0 }
        };
        counts.iter().map(term).sum()
    }

    fn normalised_information(&self) -> f64 {
        let [classes, clusters] = [&self.classes, &self.clusters].map(|of| self.entropy(of));
        // As scikit-learn: one class and one cluster agree.
        if classes == 0.0 && clusters == 0.0 {
            return 1.0;
        }
        let mut information = 0.0;
        for (row, class) in self.counts.iter().zip(&self.classes) {
            for (count, cluster) in row.iter().zip(&self.clusters) {
                if *count > 0 {
                    let expected = *class as f64 * *cluster as f64 / self.rows;
                    information += *count as f64 / self.rows * (*count as f64 / expected).ln();
                }
            }
        }
        (information / (0.5 * (classes + clusters))).clamp(0.0, 1.0)
    }

    fn adjusted_rand(&self) -> f64 {
        let pairs = |count: &u64| (*count as f64) * (*count as f64 - 1.0) / 2.0;
        let together: f64 = self.counts.iter().flatten().map(pairs).sum();
        let classes: f64 = self.classes.iter().map(pairs).sum();
        let clusters: f64 = self.clusters.iter().map(pairs).sum();
        let all = self.rows * (self.rows - 1.0) / 2.0;
        let expected = if all > 0.0 { classes * clusters / all } else { 0.0 };
        let most = 0.5 * (classes + clusters);
        if most == expected { 1.0 } else { (together - expected) / (most - expected) }
    }
}

/// Share of the rows whose cluster is another than before, once each cluster is named as one of those before, so that as
/// many rows as possible keep theirs (the assignment of the Hungarian method); 0 where nothing moved.
///
/// # Panics
///
/// When there are more of one than of the other.
pub fn moved(before: &[u32], after: &[u32]) -> f64 {
    assert_eq!(before.len(), after.len(), "one cluster after for each before");
    let table = Table::new(before, after);
    let named = assign(&table.counts).into_iter().enumerate();
    let kept: u64 = named.filter_map(|(old, new)| Some(table.counts[old][new?])).sum();
    if table.rows > 0.0 { 1.0 - kept as f64 / table.rows } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_matter_and_one_cluster_says_nothing() {
        let classes = [0, 0, 1, 1, 2, 2];
        let same = Agreement::of(&classes, &[2, 2, 0, 0, 1, 1]);
        assert_eq!((same.purity, same.normalised_information, same.adjusted_rand), (1.0, 1.0, 1.0));
        let one = Agreement::of(&classes, &[0; 6]);
        assert_eq!((one.normalised_information, one.adjusted_rand), (0.0, 0.0));
        assert!((one.purity - 1.0 / 3.0).abs() < 1e-15);
        let none = Agreement::of(&[], &[]);
        assert!(none.purity == 0.0 && none.adjusted_rand.is_finite());
    }

    #[test]
    fn what_moved_is_counted_after_renaming() {
        assert_eq!(moved(&[0, 0, 1, 1], &[1, 1, 0, 0]), 0.0);
        assert_eq!(moved(&[0, 0, 1, 1], &[1, 1, 0, 1]), 0.25);
        assert_eq!(moved(&[], &[]), 0.0);
    }

    #[test]
    fn clusters_are_named_so_that_most_rows_stay_and_not_the_largest_overlap_first() {
        // Overlaps: old 0 with new 0 and 1: 6 and 5; old 1 with new 0 and 1: 5 and 0. The largest first keeps 6 of 16.
        let before = [[0; 11].as_slice(), &[1; 5]].concat();
        let after = [[0; 6].as_slice(), &[1; 5], &[0; 5]].concat();
        assert_eq!(moved(&before, &after), 1.0 - 10.0 / 16.0);
    }
}
