//! How much of a tree's variance over a space each part of the features explains.
//!
//! Source: Hutter, Hoos and Leyton-Brown, "An efficient approach for assessing hyperparameter
//! importance", 2014.

use std::collections::BTreeMap;

use crate::importance::forest::{Node, Tree};

/// A tree as what it is: boxes of a space, each with a value.
pub(crate) struct Boxes {
    /// By leaf, then by feature: where it begins and ends.
    ends: Vec<Vec<[f64; 2]>>,
    /// By leaf: how far its value is from the mean over the space.
    deviations: Vec<f64>,
    /// By leaf: its share of the space.
    shares: Vec<f64>,
    /// By feature.
    widths: Vec<f64>,
}

impl Boxes {
    /// The boxes of `tree` over the space between `bounds`, none of which is empty.
    pub(crate) fn new(tree: &Tree, bounds: &[[f64; 2]]) -> Self {
        let widths: Vec<f64> = bounds.iter().map(|[low, high]| high - low).collect();
        let (mut ends, mut values, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        let mut open = vec![(0, bounds.to_vec())];
        while let Some((node, space)) = open.pop() {
            match tree.nodes[node] {
                Node::Leaf { value } => {
                    let parts = space.iter().zip(&widths).map(|([low, high], w)| (high - low) / w);
                    shares.push(parts.product());
                    values.push(value);
                    ends.push(space);
                }
                Node::Split { feature, threshold, left, right } => {
                    let (mut below, mut above) = (space.clone(), space);
                    below[feature][1] = threshold;
                    above[feature][0] = threshold;
                    open.extend([(left, below), (right, above)]);
                }
            }
        }
        let mean: f64 = values.iter().zip(&shares).map(|(value, share)| value * share).sum();
        let deviations = values.into_iter().map(|value| value - mean).collect();
        Self { ends, deviations, shares, widths }
    }

    /// The variance of the tree's value over the space.
    pub(crate) fn variance(&self) -> f64 {
        let leaves = self.deviations.iter().zip(&self.shares);
        leaves.map(|(deviation, share)| deviation * deviation * share).sum()
    }

    /// The variance that is left when the value is averaged over all features but `features`.
    pub(crate) fn marginal_variance(&self, features: &[usize]) -> f64 {
        // Leaves with the same ends in these features act as one.
        let mut patterns = BTreeMap::<Vec<[u64; 2]>, f64>::new();
        for (leaf, ends) in self.ends.iter().enumerate() {
            let own: Vec<[f64; 2]> = features.iter().map(|feature| ends[*feature]).collect();
            let share: f64 = self.share(features, &own);
            if share > 0.0 {
                let bits = own.iter().map(|[low, high]| [low.to_bits(), high.to_bits()]).collect();
                let height = self.deviations[leaf] * self.shares[leaf] / share;
                *patterns.entry(bits).or_default() += height;
            }
        }
        let float = |[low, high]: &[u64; 2]| [f64::from_bits(*low), f64::from_bits(*high)];
        let patterns: Vec<(Vec<[f64; 2]>, f64)> = patterns
            .into_iter()
            .map(|(bits, height)| (bits.iter().map(float).collect(), height))
            .collect();
        match features {
            [feature] => self.variance_of_steps(&patterns, *feature),
            _ => self.variance_of_overlaps(&patterns, features),
        }
    }

    /// The share of the space that lies between some ends of some features.
    fn share(&self, features: &[usize], ends: &[[f64; 2]]) -> f64 {
        let parts = features.iter().zip(ends);
        parts.map(|(feature, [low, high])| (high - low).max(0.0) / self.widths[*feature]).product()
    }

    /// The mean square of a sum of steps along one feature.
    fn variance_of_steps(&self, steps: &[(Vec<[f64; 2]>, f64)], feature: usize) -> f64 {
        let mut changes: Vec<(f64, f64)> = steps
            .iter()
            .flat_map(|(ends, height)| [(ends[0][0], *height), (ends[0][1], -*height)])
            .collect();
        changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut height, mut sum) = (0.0, 0.0);
        for pair in changes.windows(2) {
            height += pair[0].1;
            sum += height * height * (pair[1].0 - pair[0].0) / self.widths[feature];
        }
        sum
    }

    /// The mean square of a sum of boxes over several features.
    fn variance_of_overlaps(&self, boxes: &[(Vec<[f64; 2]>, f64)], features: &[usize]) -> f64 {
        let mut sum = 0.0;
        for (ends, height) in boxes {
            for (others, other) in boxes {
                let both: Vec<_> = ends
                    .iter()
                    .zip(others)
                    .map(|(a, b)| [a[0].max(b[0]), a[1].min(b[1])])
                    .collect();
                sum += height * other * self.share(features, &both);
            }
        }
        sum
    }
}
