//! Masks that cross as bits are those that cross as numbers.

use firebox_core::Stream;
use firebox_kernels::indicator;

use super::alone;
use super::support::case::values;

#[test]
fn bits_become_the_numbers_that_they_stand_for() {
    alone(|device| {
        for (shape, seed) in
            [([1, 1, 1], 1), ([3, 11, 1], 2), ([4, 8, 1], 3), ([37, 105, 1], 4), ([9, 1, 29], 5)]
        {
            let mut draws = Stream::new(seed, "bits").draws();
            let holds: Vec<bool> = (0..shape.iter().product()).map(|_| draws.chance(0.3)).collect();
            for holds in [holds.clone(), vec![true; holds.len()], vec![false; holds.len()]] {
                let expected: Vec<f64> = holds.iter().map(|holds| f64::from(*holds)).collect();
                assert_eq!(values(indicator(&holds, shape, &device)), expected, "{shape:?}");
            }
        }
        let none = indicator(&[], [0, 4, 1], &device);
        assert_eq!(none.dims(), [0, 4, 1]);
    });
}
