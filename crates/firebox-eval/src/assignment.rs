//! The best one-to-one assignment of rows to columns: the Hungarian method.

/// The column of each row, such that no two rows have one and the sum of their `gains` is the largest that there is.
/// Rows that are more than the columns are left without one.
///
/// By shortest augmenting paths with potentials (Kuhn, 1955; in the form of Jonker and Volgenant, 1987): at most about
/// `rows² · columns` steps, and far fewer where most rows have a column of their own that they gain most from. Of several
/// best assignments it always finds the same one.
///
/// # Shapes
///
/// - `gains`: `[row][column]`, all rows of one length.
pub(crate) fn assign(gains: &[Vec<u64>]) -> Vec<Option<usize>> {
    let (rows, columns) = (gains.len(), gains.first().map_or(0, Vec::len));
    // Columns of no gain where there are fewer than rows, so that each row can be given one.
    let all = columns.max(rows);
    // Of numbers of rows in memory, which are far below the largest.
    let cost = |row: usize, column: usize| -> i64 {
        -gains[row].get(column).map_or(0, |gain| i64::try_from(*gain).unwrap_or(i64::MAX / 4))
    };
    let mut row_potential = vec![0i64; rows];
    let mut column_potential = vec![0i64; all];
    let mut row_of: Vec<Option<usize>> = vec![None; all];
    for new in 0..rows {
        let mut least = vec![i64::MAX; all];
        // The column that a path comes from; none at its beginning.
        let mut before: Vec<Option<usize>> = vec![None; all];
        let mut open: Vec<usize> = (0..all).collect();
        // Taken columns that are reached, with how far away each is.
        let mut done: Vec<(usize, i64)> = vec![];
        let (mut row, mut from, mut way) = (new, None, 0);
        let free = loop {
            let mut next: Option<usize> = None;
            for (place, &column) in open.iter().enumerate() {
                let reduced =
                    way + cost(row, column) - row_potential[row] - column_potential[column];
                if reduced < least[column] {
                    (least[column], before[column]) = (reduced, from);
                }
                if next.is_none_or(|next: usize| least[column] < least[open[next]]) {
                    next = Some(place);
                }
            }
            // There are as many columns as rows, so one is left.
            let Some(next) = next else { return vec![None; rows] };
            let column = open.remove(next);
            way = least[column];
            match row_of[column] {
                None => break column,
                Some(taken) => {
                    done.push((column, way));
                    (row, from) = (taken, Some(column));
                }
            }
        };
        row_potential[new] += way;
        for (column, far) in done {
            column_potential[column] -= way - far;
            if let Some(row) = row_of[column] {
                row_potential[row] += way - far;
            }
        }
        // Each row on the path takes the next column; the new one the first.
        let mut column = free;
        while let Some(earlier) = before[column] {
            row_of[column] = row_of[earlier];
            column = earlier;
        }
        row_of[column] = Some(new);
    }
    let mut column_of = vec![None; rows];
    for (column, row) in row_of.into_iter().enumerate().take(columns) {
        if let Some(row) = row {
            column_of[row] = Some(column);
        }
    }
    column_of
}

#[cfg(test)]
mod tests {
    use firebox_core::Stream;

    use super::*;

    /// The largest sum, by trying all.
    fn best(gains: &[Vec<u64>], taken: &mut Vec<bool>) -> u64 {
        let Some((row, rest)) = gains.split_first() else { return 0 };
        let mut most = best(rest, taken);
        for column in 0..row.len() {
            if !taken[column] {
                taken[column] = true;
                most = most.max(row[column] + best(rest, taken));
                taken[column] = false;
            }
        }
        most
    }

    #[test]
    fn no_assignment_gains_more() {
        let mut draws = Stream::new(11, "gains").draws();
        let mut greedy_fails = 0;
        for case in 0..400 {
            let [rows, columns] = [0, 0].map(|_| draws.below(7) as usize);
            let most = if case % 2 == 0 { 4 } else { 1000 };
            let gains: Vec<Vec<u64>> =
                (0..rows).map(|_| (0..columns).map(|_| draws.below(most)).collect()).collect();
            let found = assign(&gains);
            let given: Vec<(usize, usize)> = found
                .iter()
                .enumerate()
                .filter_map(|(row, column)| Some((row, (*column)?)))
                .collect();
            let sum: u64 = given.iter().map(|(row, column)| gains[*row][*column]).sum();
            let mut columns_taken: Vec<usize> = given.iter().map(|(_, column)| *column).collect();
            columns_taken.sort_unstable();
            columns_taken.dedup();
            assert_eq!((found.len(), columns_taken.len()), (rows, given.len()), "{gains:?}");
            let most = best(&gains, &mut vec![false; columns]);
            assert_eq!(sum, most, "{gains:?}");
            greedy_fails += usize::from(greedy(&gains) < most);
        }
        assert!(greedy_fails > 40, "{greedy_fails}");
    }

    fn greedy(gains: &[Vec<u64>]) -> u64 {
        let mut cells: Vec<(u64, usize, usize)> = vec![];
        for (row, own) in gains.iter().enumerate() {
            cells.extend(own.iter().enumerate().map(|(column, gain)| (*gain, row, column)));
        }
        cells.sort_unstable_by(|a, b| b.cmp(a));
        let (mut rows, mut columns, mut sum) = (vec![], vec![], 0);
        for (gain, row, column) in cells {
            if !rows.contains(&row) && !columns.contains(&column) {
                rows.push(row);
                columns.push(column);
                sum += gain;
            }
        }
        sum
    }

    #[test]
    fn many_clusters_that_are_named_anew_get_their_names_back() {
        // Each row has most in common with a column of its own, and a little with all others.
        let own = |row: usize| (row * 7 + 3) % 500;
        let gains: Vec<Vec<u64>> = (0..500)
            .map(|row| {
                let gain = |column| if own(row) == column { 50 } else { (row * column) as u64 % 5 };
                (0..500).map(gain).collect()
            })
            .collect();
        let expected: Vec<_> = (0..500).map(|row| Some(own(row))).collect();
        assert_eq!(assign(&gains), expected);
    }
}
