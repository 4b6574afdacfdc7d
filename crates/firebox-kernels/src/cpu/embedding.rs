//! Rows of a table by their numbers, and the sum of gradients into these rows.

use rayon::prelude::*;

use super::Shared;

/// Numbers below which one thread does all.
const THREADED: usize = 1 << 15;

/// The rows of a table, `[rows, width]`, one after the other.
pub(crate) fn gather(table: &[f32], width: usize, rows: &[u32]) -> Vec<f32> {
    let row = |row: &u32| &table[*row as usize * width..][..width];
    if rows.len() * width < THREADED {
        return rows.iter().flat_map(row).copied().collect();
    }
    let mut out = super::zeros(rows.len() * width);
    out.par_chunks_mut(width).zip(rows).for_each(|(out, at)| out.copy_from_slice(row(at)));
    out
}

/// Adds each row of `gradient`, `[places, width]`, to the row of the table that it was taken from,
/// for one row of the table after the other in the order of the places: so the sums do not depend
/// on the number of threads. Rows with the number `passed` get nothing. Returns the rows that were
/// added to.
pub(crate) fn scatter(
    table: &mut [f32],
    width: usize,
    rows: &[u32],
    gradient: &[f32],
    passed: Option<u32>,
) -> Vec<u32> {
    let mut places: Vec<(u32, u32)> = rows
        .iter()
        .zip(0..)
        .filter(|(row, _)| Some(**row) != passed)
        .map(|(r, p)| (*r, p))
        .collect();
    places.sort_unstable();
    let groups: Vec<&[(u32, u32)]> = places.chunk_by(|a, b| a.0 == b.0).collect();
    let shared = Shared::new(table);
    let one = |group: &&[(u32, u32)]| {
        // SAFETY: each group has a row of its own, and a row is as wide as `width`.
        let sum = unsafe { shared.part(group[0].0 as usize * width, width) };
        for (_, place) in *group {
            let gradient = &gradient[*place as usize * width..][..width];
            for (sum, gradient) in sum.iter_mut().zip(gradient) {
                *sum += gradient;
            }
        }
        group[0].0
    };
    if rows.len() * width < THREADED {
        return groups.iter().map(one).collect();
    }
    let mut touched = vec![];
    groups.par_iter().map(one).collect_into_vec(&mut touched);
    touched
}

/// Puts zeros into some rows of a table.
pub(crate) fn clear(table: &mut [f32], width: usize, rows: &[u32]) {
    for row in rows {
        table[*row as usize * width..][..width].fill(0.0);
    }
}
