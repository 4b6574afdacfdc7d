//! The rows of a part of a file by their series, whether those of each stand together or not.

use rayon::prelude::*;

use crate::frame::Reading;
use crate::mapping::Mapping;
use crate::raw::{Interner, NO_LABEL};
use crate::time::Zone;

/// Rows of which those of each series lie one behind the other, in the order in which they came.
pub(super) struct Grouped {
    /// The series, in the order in which they come first, and where the rows of each end.
    pub(super) series: Vec<(String, usize)>,
    /// Rows of the file, counted from 1, times if there are any, and channels: the bits of each number.
    pub(super) columns: Vec<Vec<u64>>,
    /// The zone by which the times of each series are still to be settled.
    pub(super) zone: Zone,
}

impl Grouped {
    /// The rows of a table, of which the first is the `start`-th of the file, by the series that a column names, or as
    /// those of one; none if a row has no name, or a time cannot be read.
    pub(super) fn of(reading: &Reading<'_>, start: usize) -> Option<Self> {
        let Mapping { time, series, label, channels, .. } = reading.mapping;
        label.is_none().then_some(())?;
        let mut names = Interner::default();
        let codes = match series {
            Some(column) => reading.codes(column, &mut names).ok()?,
            None => vec![names.code(&reading.input.name()); reading.frame.height()],
        };
        (!codes.contains(&NO_LABEL)).then_some(())?;
        let (order, ends) = order(&codes, names.names.len());
        let mut columns = vec![order.iter().map(|row| (start + row + 1) as u64).collect()];
        let mut zone = Zone::Utc;
        if let Some(name) = time {
            let (times, of_clocks) = reading.times_of_clocks(name).ok()?;
            zone = of_clocks;
            columns.push(order.iter().map(|row| times[*row] as u64).collect());
        }
        let column = |name: &str| -> Option<Vec<u64>> {
            let values = reading.numbers(name).ok()?;
            Some(order.iter().map(|row| values[*row].to_bits()).collect())
        };
        let values: Option<Vec<_>> =
            channels.par_iter().map(|channel| column(&channel.name)).collect();
        columns.extend(values?);
        Some(Self { series: names.names.into_iter().zip(ends).collect(), columns, zone })
    }

    pub(super) fn rows(&self) -> usize {
        self.columns[0].len()
    }
}

/// The rows of each code one behind the other, and where those of each end.
fn order(codes: &[u32], many: usize) -> (Vec<usize>, Vec<usize>) {
    let mut ends = vec![0; many];
    codes.iter().for_each(|code| ends[*code as usize] += 1);
    let mut end = 0;
    for next in &mut ends {
        // Where the rows begin, which moves to where they end while they are put there.
        end += std::mem::replace(next, end);
    }
    let mut order = vec![0; codes.len()];
    for (row, code) in codes.iter().enumerate() {
        let place = &mut ends[*code as usize];
        order[*place] = row;
        *place += 1;
    }
    (order, ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_code_keep_their_order() {
        assert_eq!(order(&[0, 1, 0, 2, 1, 0], 3), (vec![0, 2, 5, 1, 4, 3], vec![3, 5, 6]));
        assert_eq!(order(&[], 0), (vec![], vec![]));
    }
}
