//! Cross-entropy in float64, written from the formula and sharing nothing with the kernels.

/// Loss, gradient and weight, with weights of classes and rows and smoothing. Rows of a negative target are
/// passed over.
pub(crate) fn reference(
    x: &[f64],
    classes: usize,
    targets: &[i64],
    smoothing: f64,
    class_weights: &[f32],
    sample_weights: &[f32],
) -> (f64, Vec<f64>, f64) {
    let (mut sum, mut weight) = (0.0, 0.0);
    let w: Vec<f64> = class_weights.iter().map(|w| f64::from(*w)).collect();
    let all: f64 = w.iter().sum();
    let mut gradient = vec![0.0; x.len()];
    for (row, target) in targets.iter().enumerate().filter(|(_, target)| **target >= 0) {
        let (x, t) = (&x[row * classes..][..classes], *target as usize);
        let share = f64::from(sample_weights[row]);
        let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        // Less the largest: beside 1e30 a logarithm is lost in f64, too.
        let x: Vec<f64> = x.iter().map(|x| x - largest).collect();
        let normaliser = x.iter().map(|x| x.exp()).sum::<f64>().ln();
        let spread: f64 = x.iter().zip(&w).map(|(x, w)| w * (normaliser - x)).sum();
        let own = (1.0 - smoothing) * w[t];
        sum += share * (own * (normaliser - x[t]) + smoothing / classes as f64 * spread);
        weight += share * w[t];
        for (class, g) in gradient[row * classes..][..classes].iter_mut().enumerate() {
            let p = (x[class] - normaliser).exp();
            let hit = if class == t { 1.0 } else { 0.0 };
            *g = share * (own * (p - hit) + smoothing / classes as f64 * (all * p - w[class]));
        }
    }
    gradient.iter_mut().for_each(|g| *g /= weight);
    (sum / weight, gradient, weight)
}
