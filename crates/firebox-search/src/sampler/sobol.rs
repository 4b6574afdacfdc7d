//! The Sobol sequence, plain or scrambled.
//!
//! Points fill the unit cube more evenly than random ones: each interval of length 2⁻ᵏ of each
//! coordinate has exactly one of the first 2ᵏ points. Construction: Bratley and Fox, "Algorithm 659",
//! ACM TOMS 1988, in the order of the Gray code (Antonov and Saleev, 1979). Direction numbers: Joe and
//! Kuo, "Constructing Sobol sequences with better two-dimensional projections", SIAM J. Sci. Comput.
//! 2008, their file new-joe-kuo-6.21201. Scrambling: a random lower triangular matrix and a random
//! shift of each coordinate (Matoušek, "On the L2-discrepancy for anchored boxes", 1998), as SciPy does.

use firebox_core::Stream;

/// Coordinates that the table below has numbers for.
#[cfg(test)]
pub(crate) const SOBOL_DIMENSIONS: usize = DIRECTIONS.len();
const BITS: usize = 32;

/// One coordinate of the sequence.
#[derive(Clone, Debug)]
pub(crate) struct Sobol {
    /// The number that the k-th bit of the Gray code adds.
    columns: [u32; BITS],
    shift: u32,
}

impl Sobol {
    /// Coordinate `dimension`, scrambled by `scramble` if there is one. `None` beyond the table.
    pub(crate) fn new(dimension: usize, scramble: Option<Stream>) -> Option<Self> {
        let (polynomial, initial) = DIRECTIONS.get(dimension)?;
        let columns = columns(*polynomial, initial);
        let Some(stream) = scramble else { return Some(Self { columns, shift: 0 }) };
        let mut draws = stream.draws();
        // Row r of the matrix keeps bit r and mixes the higher bits into it.
        let rows: [u32; BITS] = std::array::from_fn(|row| {
            let bit = 1 << (BITS - 1 - row);
            (draws.word() & !(bit | (bit - 1))) | bit
        });
        let mix = |column: u32| {
            rows.iter().enumerate().fold(0, |mixed, (row, mask)| {
                mixed | (((column & mask).count_ones() & 1) << (BITS - 1 - row))
            })
        };
        Some(Self { columns: columns.map(mix), shift: draws.word() })
    }

    /// The coordinate of point `index`, from 0 to below 1. The sequence repeats after 2³² points.
    pub(crate) fn at(&self, index: u64) -> f64 {
        let index = index as u32;
        let gray = index ^ (index >> 1);
        let word = (0..BITS)
            .filter(|bit| gray >> bit & 1 == 1)
            .fold(self.shift, |word, bit| word ^ self.columns[bit]);
        f64::from(word) / (1_u64 << BITS) as f64
    }
}

/// Direction numbers from the first few by the polynomial's recurrence, as binary fractions.
fn columns(polynomial: u32, initial: &[u32]) -> [u32; BITS] {
    let degree = polynomial.ilog2() as usize;
    if degree == 0 {
        return std::array::from_fn(|bit| 1 << (BITS - 1 - bit));
    }
    let mut columns = [0; BITS];
    for bit in 0..BITS {
        columns[bit] = if let Some(first) = initial.get(bit) {
            first << (BITS - 1 - bit)
        } else {
            let last = columns[bit - degree];
            (1..=degree)
                .filter(|back| polynomial >> (degree - back) & 1 == 1)
                .fold(last >> degree, |column, back| column ^ columns[bit - back])
        };
    }
    columns
}

/// A primitive polynomial over two elements for each coordinate, its coefficients as bits, and the
/// first direction integers.
#[rustfmt::skip]
const DIRECTIONS: [(u32, &[u32]); 64] = [
    (1, &[1]),
    (3, &[1]),
    (7, &[1, 3]),
    (11, &[1, 3, 1]),
    (13, &[1, 1, 1]),
    (19, &[1, 1, 3, 3]),
    (25, &[1, 3, 5, 13]),
    (37, &[1, 1, 5, 5, 17]),
    (41, &[1, 1, 5, 5, 5]),
    (47, &[1, 1, 7, 11, 19]),
    (55, &[1, 1, 5, 1, 1]),
    (59, &[1, 1, 1, 3, 11]),
    (61, &[1, 3, 5, 5, 31]),
    (67, &[1, 3, 3, 9, 7, 49]),
    (91, &[1, 1, 1, 15, 21, 21]),
    (97, &[1, 3, 1, 13, 27, 49]),
    (103, &[1, 1, 1, 15, 7, 5]),
    (109, &[1, 3, 1, 15, 13, 25]),
    (115, &[1, 1, 5, 5, 19, 61]),
    (131, &[1, 3, 7, 11, 23, 15, 103]),
    (137, &[1, 3, 7, 13, 13, 15, 69]),
    (143, &[1, 1, 3, 13, 7, 35, 63]),
    (145, &[1, 3, 5, 9, 1, 25, 53]),
    (157, &[1, 3, 1, 13, 9, 35, 107]),
    (167, &[1, 3, 1, 5, 27, 61, 31]),
    (171, &[1, 1, 5, 11, 19, 41, 61]),
    (185, &[1, 3, 5, 3, 3, 13, 69]),
    (191, &[1, 1, 7, 13, 1, 19, 1]),
    (193, &[1, 3, 7, 5, 13, 19, 59]),
    (203, &[1, 1, 3, 9, 25, 29, 41]),
    (211, &[1, 3, 5, 13, 23, 1, 55]),
    (213, &[1, 3, 7, 3, 13, 59, 17]),
    (229, &[1, 3, 1, 3, 5, 53, 69]),
    (239, &[1, 1, 5, 5, 23, 33, 13]),
    (241, &[1, 1, 7, 7, 1, 61, 123]),
    (247, &[1, 1, 7, 9, 13, 61, 49]),
    (253, &[1, 3, 3, 5, 3, 55, 33]),
    (285, &[1, 3, 1, 15, 31, 13, 49, 245]),
    (299, &[1, 3, 5, 15, 31, 59, 63, 97]),
    (301, &[1, 3, 1, 11, 11, 11, 77, 249]),
    (333, &[1, 3, 1, 11, 27, 43, 71, 9]),
    (351, &[1, 1, 7, 15, 21, 11, 81, 45]),
    (355, &[1, 3, 7, 3, 25, 31, 65, 79]),
    (357, &[1, 3, 1, 1, 19, 11, 3, 205]),
    (361, &[1, 1, 5, 9, 19, 21, 29, 157]),
    (369, &[1, 3, 7, 11, 1, 33, 89, 185]),
    (391, &[1, 3, 3, 3, 15, 9, 79, 71]),
    (397, &[1, 3, 7, 11, 15, 39, 119, 27]),
    (425, &[1, 1, 3, 1, 11, 31, 97, 225]),
    (451, &[1, 1, 1, 3, 23, 43, 57, 177]),
    (463, &[1, 3, 7, 7, 17, 17, 37, 71]),
    (487, &[1, 3, 1, 5, 27, 63, 123, 213]),
    (501, &[1, 1, 3, 5, 11, 43, 53, 133]),
    (529, &[1, 3, 5, 5, 29, 17, 47, 173, 479]),
    (539, &[1, 3, 3, 11, 3, 1, 109, 9, 69]),
    (545, &[1, 1, 1, 5, 17, 39, 23, 5, 343]),
    (557, &[1, 3, 1, 5, 25, 15, 31, 103, 499]),
    (563, &[1, 1, 1, 11, 11, 17, 63, 105, 183]),
    (601, &[1, 1, 5, 11, 9, 29, 97, 231, 363]),
    (607, &[1, 1, 5, 15, 19, 45, 41, 7, 383]),
    (617, &[1, 3, 7, 7, 31, 19, 83, 137, 221]),
    (623, &[1, 1, 1, 3, 23, 15, 111, 223, 83]),
    (631, &[1, 1, 5, 13, 31, 15, 55, 25, 161]),
    (637, &[1, 1, 3, 13, 25, 47, 39, 87, 257]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    #[test]
    fn plain_points_are_scipys() {
        let cases = golden::read("quasi").remove("sobol").unwrap();
        for case in cases.as_array().unwrap() {
            let index = case["index"].as_u64().unwrap();
            let expected = golden::numbers(&case["point"]);
            for (dimension, expected) in expected.iter().enumerate() {
                let found = Sobol::new(dimension, None).unwrap().at(index);
                assert_eq!(found, *expected, "coordinate {dimension} of point {index}");
            }
        }
        assert!(Sobol::new(SOBOL_DIMENSIONS, None).is_none());
    }

    #[test]
    fn scrambled_points_fill_every_interval_and_every_cell_of_the_first_two_coordinates_once() {
        let scrambled = |dimension| {
            Sobol::new(dimension, Some(Stream::new(3, "sobol").substream(dimension as u64)))
                .unwrap()
        };
        for dimension in 0..SOBOL_DIMENSIONS {
            let points = scrambled(dimension);
            let mut cells: Vec<_> = (0..256).map(|i| (points.at(i) * 256.0) as u32).collect();
            assert_ne!(points.at(0), 0.0);
            cells.sort_unstable();
            assert_eq!(cells, (0..256).collect::<Vec<_>>(), "coordinate {dimension}");
        }
        let (x, y) = (scrambled(0), scrambled(1));
        for split in 0..=8 {
            let (rows, columns) = (1 << split, 1 << (8 - split));
            let mut cells: Vec<_> = (0..256)
                .map(|i| {
                    (x.at(i) * f64::from(rows)) as u32 * columns as u32
                        + (y.at(i) * f64::from(columns)) as u32
                })
                .collect();
            cells.sort_unstable();
            assert_eq!(cells, (0..256).collect::<Vec<_>>(), "{rows} by {columns}");
        }
    }
}
