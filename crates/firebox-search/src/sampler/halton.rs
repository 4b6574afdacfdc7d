//! The Halton sequence, plain or scrambled.
//!
//! Coordinate k of point n has the digits of n in the k-th prime base, mirrored at the point (Halton,
//! "On the efficiency of certain quasi-random sequences of points", 1960). Scrambling permutes each
//! digit at random (Owen, "A randomized Halton algorithm in R", arXiv 1706.02808).

use firebox_core::Stream;

/// One coordinate of the sequence.
#[derive(Clone, Debug)]
pub(crate) struct Halton {
    base: u64,
    /// Of each digit that a float can tell, the digit that stands for it; none without scrambling.
    permutations: Vec<Vec<u64>>,
}

impl Halton {
    /// Coordinate `dimension`, scrambled by `scramble` if there is one.
    pub(crate) fn new(dimension: usize, scramble: Option<Stream>) -> Self {
        let base = prime(dimension);
        let permutations = scramble.map_or_else(Vec::new, |stream| {
            let digits = (f64::from(f64::MANTISSA_DIGITS) / (base as f64).log2()).ceil() as u64;
            let permute = |place| {
                let mut permutation: Vec<_> = (0..base).collect();
                stream.substream(place).draws().shuffle(&mut permutation);
                permutation
            };
            (0..digits).map(permute).collect()
        });
        Self { base, permutations }
    }

    /// The coordinate of point `index`, from 0 to below 1.
    pub(crate) fn at(&self, index: u64) -> f64 {
        let (mut rest, mut unit, mut scale) = (index, 0.0, 1.0 / self.base as f64);
        let mut place = 0;
        while rest > 0 || place < self.permutations.len() {
            let digit = rest % self.base;
            let digit = self.permutations.get(place).map_or(digit, |p| p[digit as usize]);
            unit += digit as f64 * scale;
            scale /= self.base as f64;
            rest /= self.base;
            place += 1;
        }
        unit.min(1.0_f64.next_down())
    }
}

/// The prime number at `index`, counting from 0.
fn prime(index: usize) -> u64 {
    let is_prime =
        |number: &u64| (2..).take_while(|d| d * d <= *number).all(|d| !number.is_multiple_of(d));
    (2..).filter(is_prime).nth(index).unwrap_or(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    #[test]
    fn plain_points_are_scipys() {
        let cases = golden::read("quasi").remove("halton").unwrap();
        for case in cases.as_array().unwrap() {
            let index = case["index"].as_u64().unwrap();
            for (dimension, expected) in golden::numbers(&case["point"]).iter().enumerate() {
                let found = Halton::new(dimension, None).at(index);
                assert!((found - expected).abs() < 1e-15, "coordinate {dimension} of {index}");
            }
        }
    }

    #[test]
    fn scrambled_points_fill_every_interval_once() {
        for dimension in 0..20 {
            let points = Halton::new(dimension, Some(Stream::new(5, "halton")));
            let base = prime(dimension);
            let count = base * base;
            let mut cells: Vec<_> =
                (0..count).map(|i| (points.at(i) * count as f64) as u64).collect();
            cells.sort_unstable();
            assert_eq!(cells, (0..count).collect::<Vec<_>>(), "base {base}");
        }
    }
}
