//! The best one-to-one assignment of rows to columns: the Hungarian method.

/// The column of each row, such that no two rows have one and the sum of their `gains` is the largest that there is.
/// Rows that are more than the columns are left without one.
///
/// By shortest augmenting paths with potentials, in `rows² · columns` steps (Kuhn, 1955; in the form of Jonker and
/// Volgenant, 1987). Of several best assignments it always finds the same one.
///
/// # Shapes
///
/// - `gains`: `[row][column]`, all rows of one length.
pub(crate) fn assign(gains: &[Vec<u64>]) -> Vec<Option<usize>> {
    let (rows, columns) = (gains.len(), gains.first().map_or(0, Vec::len));
    // One column of no gain for each row, so that each can be given one.
    let all = columns + rows;
    let cost = |row: usize, column: usize| -> i128 {
        -i128::from(gains[row].get(column).copied().unwrap_or(0))
    };
    let mut row_potential = vec![0i128; rows];
    let mut column_potential = vec![0i128; all];
    let mut row_of: Vec<Option<usize>> = vec![None; all];
    for new in 0..rows {
        let mut least = vec![i128::MAX; all];
        // The column that a path comes from; none at its beginning.
        let mut before: Vec<Option<usize>> = vec![None; all];
        let mut done = vec![false; all];
        let (mut row, mut from) = (new, None);
        let free = loop {
            let mut next: Option<usize> = None;
            for column in (0..all).filter(|column| !done[*column]) {
                let reduced = cost(row, column) - row_potential[row] - column_potential[column];
                if reduced < least[column] {
                    (least[column], before[column]) = (reduced, from);
                }
                if next.is_none_or(|next| least[column] < least[next]) {
                    next = Some(column);
                }
            }
            // There are more columns than rows, so one is left.
            let Some(next) = next else { return vec![None; rows] };
            let step = least[next];
            row_potential[new] += step;
            for column in 0..all {
                match (done[column], row_of[column]) {
                    (true, Some(row)) => {
                        row_potential[row] += step;
                        column_potential[column] -= step;
                    }
                    _ => least[column] = least[column].saturating_sub(step),
                }
            }
            done[next] = true;
            match row_of[next] {
                None => break next,
                Some(taken) => (row, from) = (taken, Some(next)),
            }
        };
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
    fn many_clusters_take_no_time() {
        let gains: Vec<Vec<u64>> = (0..200)
            .map(|row| (0..200).map(|column| (row * column * 7919) % 1009).collect())
            .collect();
        let found = assign(&gains);
        assert!(found.iter().all(Option::is_some));
    }
}
