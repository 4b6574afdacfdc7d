//! Two dimensions to look at: principal components of embeddings, the same in every run.

use firebox_core::Stream;
use serde::{Deserialize, Serialize};

use crate::matrix::{Matrix, multiply};

/// Directions iterated together: more than the two that are kept, so that these converge fast.
const DIRECTIONS: usize = 6;
const ITERATIONS: usize = 200;
/// Rounds of Jacobi's rotations: each squares what is left beside the diagonal, so a few are enough.
const ROUNDS: usize = 12;

/// Rows seen along the two directions in which they vary most.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Projection {
    /// `[row]`: first and second component.
    pub points: Vec<[f64; 2]>,
    /// Share of the variance that each component holds.
    pub explained: [f64; 2],
}

/// Projects rows on their first two principal components, by orthogonal iteration, whose directions are turned to the
/// components of what they span at each step (Rayleigh–Ritz). The sign of a component is that in which its largest weight
/// is positive.
///
/// # Shapes
///
/// - `rows`: `[row, feature]`, row-major; `width` features each, all finite.
pub fn project(rows: &[f32], width: usize) -> Projection {
    let count = rows.len().checked_div(width).unwrap_or(0);
    if count == 0 {
        return Projection::default();
    }
    let x = centred(rows, width, count);
    let total: f64 = x.iter().map(|v| v * v).sum();
    let kept = DIRECTIONS.min(width);
    // [direction, feature]
    let mut basis = vec![0.0; kept * width];
    let mut draws = Stream::new(0, "principal components").draws();
    basis.iter_mut().for_each(|value| *value = draws.normal());
    orthonormalise(&mut basis, width);
    let view = Matrix::new(&x, count, width);
    let mut scores = vec![0.0; count * kept];
    let mut moments = vec![0.0; kept * kept];
    let mut next = vec![0.0; kept * width];
    for _ in 0..ITERATIONS {
        let before = basis.clone();
        multiply(view, Matrix::new(&basis, kept, width).transposed(), &mut scores);
        let own = Matrix::new(&scores, count, kept);
        multiply(own.transposed(), own, &mut moments);
        multiply(own.transposed(), view, &mut next);
        let turned = eigenvectors(&moments, kept);
        let turned = Matrix::new(&turned, kept, kept);
        multiply(turned, Matrix::new(&next, kept, width), &mut basis);
        orthonormalise(&mut basis, width);
        let moved = |direction: usize| {
            let range = direction * width..(direction + 1) * width;
            let dot: f64 =
                basis[range.clone()].iter().zip(&before[range]).map(|(a, b)| a * b).sum();
            1.0 - dot.abs()
        };
        if (0..kept.min(2)).all(|direction| moved(direction) < 1e-12) {
            break;
        }
    }
    for direction in basis.chunks_exact_mut(width) {
        let largest = direction.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs()));
        if largest.is_some_and(|value| value < 0.0) {
            direction.iter_mut().for_each(|value| *value = -*value);
        }
    }
    multiply(view, Matrix::new(&basis, kept, width).transposed(), &mut scores);
    let points: Vec<[f64; 2]> =
        scores.chunks_exact(kept).map(|row| [row[0], row.get(1).copied().unwrap_or(0.0)]).collect();
    let share = |axis: usize| {
        let sum: f64 = points.iter().map(|point| point[axis] * point[axis]).sum();
        if total > 0.0 { sum / total } else { 0.0 }
    };
    Projection { explained: [share(0), share(1)], points }
}

/// The eigenvectors of a symmetric matrix `[n, n]`, one a row, that of the largest eigenvalue first. Source: Golub and Van
/// Loan, "Matrix Computations", 1996, algorithm 8.4.3 (cyclic Jacobi).
fn eigenvectors(matrix: &[f64], n: usize) -> Vec<f64> {
    let mut a = matrix.to_vec();
    let mut vectors: Vec<f64> =
        (0..n * n).map(|at| if at / n == at % n { 1.0 } else { 0.0 }).collect();
    let turn = |values: &mut [f64], [p, q]: [usize; 2], [cosine, sine]: [f64; 2]| {
        let (before, after) = (values[p], values[q]);
        values[p] = cosine * before - sine * after;
        values[q] = sine * before + cosine * after;
    };
    for _ in 0..ROUNDS {
        for (p, q) in (0..n).flat_map(|p| (p + 1..n).map(move |q| (p, q))) {
            let beside = a[p * n + q];
            if beside == 0.0 {
                continue;
            }
            let half = (a[q * n + q] - a[p * n + p]) / (2.0 * beside);
            let tangent = half.signum() / (half.abs() + half.hypot(1.0));
            let cosine = tangent.hypot(1.0).recip();
            let by = [cosine, tangent * cosine];
            for at in 0..n {
                turn(&mut a, [at * n + p, at * n + q], by);
            }
            for at in 0..n {
                turn(&mut a, [p * n + at, q * n + at], by);
                turn(&mut vectors, [p * n + at, q * n + at], by);
            }
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|one, other| a[other * n + other].total_cmp(&a[one * n + one]));
    order.into_iter().flat_map(|own| vectors[own * n..(own + 1) * n].to_vec()).collect()
}

fn centred(rows: &[f32], width: usize, count: usize) -> Vec<f64> {
    let mut mean = vec![0.0; width];
    for row in rows.chunks_exact(width) {
        mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    mean.iter_mut().for_each(|sum| *sum /= count as f64);
    let mut x = Vec::with_capacity(rows.len());
    for row in rows.chunks_exact(width) {
        x.extend(row.iter().zip(&mean).map(|(value, mean)| f64::from(*value) - mean));
    }
    x
}

/// Modified Gram–Schmidt, twice; a direction that vanishes becomes zero.
fn orthonormalise(basis: &mut [f64], width: usize) {
    for own in 0..basis.len() / width {
        let (before, rest) = basis.split_at_mut(own * width);
        let own = &mut rest[..width];
        for _ in 0..2 {
            for other in before.chunks_exact(width) {
                let dot: f64 = own.iter().zip(other).map(|(a, b)| a * b).sum();
                own.iter_mut().zip(other).for_each(|(a, b)| *a -= dot * b);
            }
        }
        let norm = own.iter().map(|v| v * v).sum::<f64>().sqrt();
        let inverse = if norm > 1e-300 { norm.recip() } else { 0.0 };
        own.iter_mut().for_each(|v| *v *= inverse);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_plane_that_rows_were_made_in() {
        let mut draws = Stream::new(1, "plane").draws();
        let width = 9;
        let axes: Vec<f64> = (0..2 * width).map(|_| draws.normal()).collect();
        let mut axes = axes;
        orthonormalise(&mut axes, width);
        let mut rows = Vec::new();
        let mut made = Vec::new();
        for _ in 0..400 {
            let (a, b) = (5.0 * draws.normal(), 2.0 * draws.normal());
            made.push([a, b]);
            for column in 0..width {
                let value = 7.0 + a * axes[column] + b * axes[width + column];
                rows.push((value + 0.01 * draws.normal()) as f32);
            }
        }
        let projection = project(&rows, width);
        assert!(projection.explained[0] > 0.8 && projection.explained.iter().sum::<f64>() > 0.999);
        for axis in 0..2 {
            let dot: f64 =
                made.iter().zip(&projection.points).map(|(m, p)| m[axis] * p[axis]).sum();
            let norm =
                |of: &dyn Fn(usize) -> f64| (0..400).map(|i| of(i).powi(2)).sum::<f64>().sqrt();
            let cosine = dot / norm(&|i| made[i][axis]) / norm(&|i| projection.points[i][axis]);
            assert!(cosine.abs() > 0.99, "axis {axis}: {cosine}");
        }
        assert_eq!(projection, project(&rows, width));
    }

    #[test]
    fn components_of_nearly_equal_variance_are_told_apart() {
        let sizes = [1.0f32, 1.001, 0.999, 0.5, 0.5, 0.5, 0.5, 0.5];
        let width = sizes.len();
        let mut rows = vec![0.0; 2 * width * width];
        for (axis, size) in sizes.into_iter().enumerate() {
            rows[2 * axis * width + axis] = size;
            rows[(2 * axis + 1) * width + axis] = -size;
        }
        let found = project(&rows, width);
        let total: f64 = sizes.iter().map(|size| f64::from(*size).powi(2)).sum();
        for (component, axis) in [1, 0].into_iter().enumerate() {
            let size = f64::from(sizes[axis]);
            assert!((found.explained[component] - size * size / total).abs() < 1e-9, "{found:?}");
            for (row, point) in found.points.iter().enumerate() {
                let expected = if row / 2 == axis { size } else { 0.0 };
                assert!((point[component].abs() - expected).abs() < 1e-5, "row {row}: {point:?}");
            }
        }
    }

    #[test]
    fn eigenvectors_are_those_of_the_matrix_by_falling_eigenvalues() {
        // Eigenvalues 1 and 3 of the first two, and 2 of the last.
        let found = eigenvectors(&[2.0, 1.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0, 2.0], 3);
        let half = 0.5f64.sqrt();
        let expected = [half, half, 0.0, 0.0, 0.0, 1.0, half, half, 0.0];
        assert!(found.iter().zip(expected).all(|(a, b)| (a.abs() - b).abs() < 1e-12), "{found:?}");
        assert_eq!(eigenvectors(&[0.0; 4], 2), [1.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn degenerate_rows_give_finite_points() {
        for (rows, width) in
            [(vec![], 3), (vec![1.0; 3], 3), (vec![2.0; 12], 3), (vec![1.0, 5.0], 1)]
        {
            let projection = project(&rows, width);
            assert_eq!(projection.points.len(), rows.len() / width);
            assert!(projection.points.iter().flatten().all(|v| v.is_finite()));
            assert!(projection.explained.iter().all(|v| (0.0..=1.0 + 1e-9).contains(v)));
        }
    }
}
