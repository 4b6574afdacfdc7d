//! Regression trees on bootstrap samples.
//!
//! Source: Breiman, "Random forests", 2001, with the choices of scikit-learn's `RandomForestRegressor`
//! that Optuna makes: every split looks at all features, leaves may hold one row, features are rounded to
//! single precision, and values closer than 10⁻⁷ are not told apart.

use firebox_core::Draws;
use firebox_core::Stream;

const CLOSE: f32 = 1e-7;

/// A regression tree. The first node is the root.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) nodes: Vec<Node>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Node {
    /// Rows whose feature is at most the threshold go left.
    Split {
        feature: usize,
        threshold: f64,
        left: usize,
        right: usize,
    },
    Leaf {
        value: f64,
    },
}

/// One tree for each of `count` bootstrap samples of the rows.
pub(crate) fn forest(
    rows: &[Vec<f64>],
    targets: &[f64],
    count: u64,
    max_depth: usize,
    stream: Stream,
) -> Vec<Tree> {
    let grow = |tree| {
        let mut draws = stream.substream(tree).draws();
        let mut weights = vec![0.0; rows.len()];
        rows.iter().for_each(|_| weights[draws.below(rows.len() as u64) as usize] += 1.0);
        tree_of(rows, targets, &weights, max_depth, &mut draws)
    };
    (0..count).map(grow).collect()
}

/// A tree grown on the rows that have a weight. `draws` decides between splits that are equally good.
pub(crate) fn tree_of(
    rows: &[Vec<f64>],
    targets: &[f64],
    weights: &[f64],
    max_depth: usize,
    draws: &mut Draws,
) -> Tree {
    let features = rows.first().map_or(0, Vec::len);
    let columns: Vec<Vec<f32>> =
        (0..features).map(|feature| rows.iter().map(|row| row[feature] as f32).collect()).collect();
    let data = Data { columns, targets, weights };
    let all: Vec<usize> = (0..rows.len()).filter(|row| weights[*row] > 0.0).collect();
    let mut nodes = vec![Node::Leaf { value: 0.0 }];
    let mut open = vec![(0, all, 0)];
    while let Some((node, members, depth)) = open.pop() {
        let split = if depth < max_depth { data.best_split(&members, draws) } else { None };
        let Some((feature, threshold)) = split else {
            nodes[node] = Node::Leaf { value: data.mean(&members) };
            continue;
        };
        let goes_left = |row: &usize| f64::from(data.columns[feature][*row]) <= threshold;
        let (to_left, to_right): (Vec<_>, Vec<_>) = members.into_iter().partition(goes_left);
        let (left, right) = (nodes.len(), nodes.len() + 1);
        nodes.extend([Node::Leaf { value: 0.0 }; 2]);
        nodes[node] = Node::Split { feature, threshold, left, right };
        open.push((right, to_right, depth + 1));
        open.push((left, to_left, depth + 1));
    }
    Tree { nodes }
}

struct Data<'a> {
    /// By feature, then by row.
    columns: Vec<Vec<f32>>,
    targets: &'a [f64],
    weights: &'a [f64],
}

impl Data<'_> {
    fn mean(&self, members: &[usize]) -> f64 {
        let weight: f64 = members.iter().map(|row| self.weights[*row]).sum();
        members.iter().map(|row| self.weights[*row] * self.targets[*row]).sum::<f64>() / weight
    }

    /// The feature and threshold that leave the least squared error; `None` if the targets are all the
    /// same, or the rows cannot be told apart.
    fn best_split(&self, members: &[usize], draws: &mut Draws) -> Option<(usize, f64)> {
        let first = self.targets[*members.first()?];
        if members.iter().all(|row| self.targets[*row] == first) {
            return None;
        }
        // Deviations from the mean: sums of squares lose no digits to an offset.
        let mean = self.mean(members);
        let mut features: Vec<usize> = (0..self.columns.len()).collect();
        draws.shuffle(&mut features);
        let mut best = (f64::NEG_INFINITY, None);
        let mut order = members.to_vec();
        for feature in features {
            let column = &self.columns[feature];
            order.sort_unstable_by(|a, b| column[*a].total_cmp(&column[*b]).then(a.cmp(b)));
            let all: f64 = order.iter().map(|row| self.weights[*row]).sum();
            let (mut sum, mut weight) = (0.0, 0.0);
            for pair in order.windows(2) {
                sum += self.weights[pair[0]] * (self.targets[pair[0]] - mean);
                weight += self.weights[pair[0]];
                let (before, after) = (column[pair[0]], column[pair[1]]);
                if after <= before + CLOSE {
                    continue;
                }
                // The sum of all deviations is zero, so the right side's is the left side's.
                let gain = sum * sum / weight + sum * sum / (all - weight);
                if gain > best.0 {
                    best = (gain, Some((feature, between(before, after))));
                }
            }
        }
        best.1
    }
}

fn between(before: f32, after: f32) -> f64 {
    let (before, after) = (f64::from(before), f64::from(after));
    let middle = before / 2.0 + after / 2.0;
    if middle == after || !middle.is_finite() { before } else { middle }
}
