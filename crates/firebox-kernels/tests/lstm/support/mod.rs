//! What the tests share: a float64 LSTM written from the formula alone, and the same case run
//! through the crate.

pub mod case;
pub mod reference;

/// The distance of two vectors over the length of the expected one.
pub fn relative_error(actual: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let square = |sum: f64, value: f64| sum + value * value;
    let error = actual.iter().zip(expected).map(|(a, e)| a - e).fold(0.0, square).sqrt();
    let norm = expected.iter().copied().fold(0.0, square).sqrt();
    // A reference of zero must be met exactly.
    if error == 0.0 { 0.0 } else { error / norm }
}
