//! The volume that a set of points dominates up to a reference point, and the points that make most of it.
//!
//! All functions take losses: one row a point, each number to be minimised.

use std::cmp::Ordering;

use crate::pareto::{front_of_sorted, unique_sorted};

/// Why there is no hypervolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HypervolumeError {
    /// A point that does not dominate the reference point.
    #[error("point {point} is not at or below the reference point in objective {objective}")]
    Beyond {
        /// Which point, counted from 0.
        point: usize,
        /// In which objective, counted from 0.
        objective: usize,
    },
    /// A point with another number of objectives.
    #[error("point {point} has {found} objectives, the reference point {expected}")]
    Objectives {
        /// Which point, counted from 0.
        point: usize,
        /// How many it has.
        found: usize,
        /// How many the reference point has.
        expected: usize,
    },
}

/// The volume of all that some of `points` dominates and that dominates `reference`. Infinite if the
/// reference point is; 0 for no points. Source: While et al., "A fast way of calculating exact
/// hypervolumes", 2012; equal to Optuna's `compute_hypervolume`.
///
/// # Errors
///
/// If a point is worse than the reference point in an objective, or not a number, or has more or fewer objectives.
pub fn hypervolume(points: &[Vec<f64>], reference: &[f64]) -> Result<f64, HypervolumeError> {
    for (point, row) in points.iter().enumerate() {
        let (found, expected) = (row.len(), reference.len());
        if found != expected {
            return Err(HypervolumeError::Objectives { point, found, expected });
        }
        // A NaN is beyond any limit.
        let is_beyond =
            |(value, limit): (&f64, &f64)| value.partial_cmp(limit).is_none_or(Ordering::is_gt);
        let beyond = row.iter().zip(reference).position(is_beyond);
        if let Some(objective) = beyond {
            return Err(HypervolumeError::Beyond { point, objective });
        }
    }
    let rows: Vec<_> = points.iter().map(Vec::as_slice).collect();
    Ok(volume(&rows, reference))
}

fn volume(points: &[&[f64]], reference: &[f64]) -> f64 {
    if reference.iter().any(|limit| !limit.is_finite()) {
        return f64::INFINITY;
    }
    let (unique, _) = unique_sorted(points);
    let on_front = front_of_sorted(&unique);
    let front: Vec<_> =
        unique.into_iter().zip(on_front).filter(|(_, on)| *on).map(|(row, _)| row).collect();
    let volume = if reference.len() == 2 {
        let above = std::iter::once(reference[1]).chain(front.iter().map(|row| row[1]));
        front.iter().zip(above).map(|(row, y)| (reference[0] - row[0]) * (y - row[1])).sum()
    } else {
        of_front(&front, reference)
    };
    // Differences of infinities come from a point at minus infinity.
    if f64::is_finite(volume) { volume } else { f64::INFINITY }
}

/// The volume of sorted points that do not dominate each other: what each adds to those behind it.
fn of_front(front: &[&[f64]], reference: &[f64]) -> f64 {
    let mut sum = 0.0;
    for (place, point) in front.iter().enumerate() {
        let behind = &front[place + 1..];
        let shared: Vec<Vec<f64>> = behind.iter().map(|other| worse_of(point, other)).collect();
        let shared: Vec<_> = shared.iter().map(Vec::as_slice).collect();
        let (unique, _) = unique_sorted(&shared);
        let on_front = front_of_sorted(&unique);
        let limited: Vec<_> =
            unique.into_iter().zip(on_front).filter(|(_, on)| *on).map(|(row, _)| row).collect();
        sum += inclusive(point, reference) - of_front(&limited, reference);
    }
    sum
}

fn worse_of(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a.max(*b)).collect()
}

fn inclusive(point: &[f64], reference: &[f64]) -> f64 {
    point.iter().zip(reference).map(|(value, limit)| limit - value).product()
}

/// The places of `count` of the `points` that dominate nearly the greatest volume, found greedily.
/// Source: Guerreiro, Fonseca and Paquete, "Greedy hypervolume subset selection in low dimensions",
/// 2016; the choice and its order are those of Optuna 5.0.0 (`_hypervolume/hssp.py`).
pub(crate) fn select(points: &[&[f64]], count: usize, reference: &[f64]) -> Vec<usize> {
    if count >= points.len() {
        return (0..points.len()).collect();
    }
    let (unique, places) = unique_sorted(points);
    // Repeats add nothing: they come last, in the order of the points.
    let first: Vec<usize> =
        (0..unique.len()).filter_map(|u| places.iter().position(|place| *place == u)).collect();
    if unique.len() < count {
        let repeats = (0..points.len()).filter(|place| !first.contains(place));
        let mut chosen: Vec<_> =
            first.iter().copied().chain(repeats.take(count - unique.len())).collect();
        chosen.sort_unstable();
        return chosen;
    }
    if unique.len() == count || reference.iter().any(|limit| !limit.is_finite()) {
        return first[..count].to_vec();
    }
    greedy(&unique, count, reference).into_iter().map(|place| first[place]).collect()
}

fn greedy(points: &[&[f64]], count: usize, reference: &[f64]) -> Vec<usize> {
    let mut left: Vec<usize> = (0..points.len()).collect();
    // What each point adds at most; adding others only makes it less, so most need no new look.
    let mut adds: Vec<f64> = points.iter().map(|point| inclusive(point, reference)).collect();
    let (mut chosen, mut chosen_rows) = (Vec::new(), Vec::<&[f64]>::new());
    let mut chosen_volume = 0.0;
    while chosen.len() < count {
        let best = left.iter().copied().fold(None, |best: Option<usize>, place| match best {
            Some(known) if adds[place] > adds[known] => Some(place),
            None => Some(place),
            known => known,
        });
        let Some(best) = best else { break };
        chosen_volume += adds[best];
        left.retain(|place| *place != best);
        chosen.push(best);
        chosen_rows.push(points[best]);
        if chosen.len() < count {
            refresh(points, &left, &mut adds, &chosen_rows, chosen_volume, reference);
        }
    }
    chosen
}

/// Brings `adds` down to what each point left adds to the chosen ones, where it may be the most.
fn refresh(
    points: &[&[f64]],
    left: &[usize],
    adds: &mut [f64],
    chosen: &[&[f64]],
    chosen_volume: f64,
    reference: &[f64],
) {
    if chosen_volume.is_infinite() {
        left.iter().for_each(|place| adds[*place] = f64::INFINITY);
        return;
    }
    let Some(last) = chosen.last() else { return };
    for place in left {
        let shared = inclusive(&worse_of(points[*place], last), reference);
        adds[*place] = adds[*place].min(inclusive(points[*place], reference) - shared);
    }
    let mut order = left.to_vec();
    order.sort_by(|a, b| adds[*b].partial_cmp(&adds[*a]).unwrap_or(Ordering::Equal));
    let mut most = 0.0_f64;
    for place in order {
        if inclusive(points[place], reference).is_infinite() {
            adds[place] = f64::INFINITY;
            most = f64::INFINITY;
        } else if adds[place] >= most {
            let with: Vec<_> = chosen.iter().copied().chain([points[place]]).collect();
            adds[place] = volume(&with, reference) - chosen_volume;
            most = most.max(adds[place]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{self, number, numbers};
    use crate::pareto::ranks;

    #[test]
    fn ranks_volumes_and_selections_are_optunas() {
        for case in golden::read("volumes").remove("cases").unwrap().as_array().unwrap() {
            let rows: Vec<Vec<f64>> =
                case["rows"].as_array().unwrap().iter().map(numbers).collect();
            let views: Vec<_> = rows.iter().map(Vec::as_slice).collect();
            let enough = case["enough"].as_u64().unwrap() as usize;
            let what = format!("{} rows of {}", rows.len(), rows[0].len());
            let expected: Vec<usize> = serde_json::from_value(case["ranks"].clone()).unwrap();
            assert_eq!(ranks(&views, enough), expected, "{what}");
            let front: Vec<bool> = serde_json::from_value(case["front"].clone()).unwrap();
            let found: Vec<_> = ranks(&views, 1).into_iter().map(|rank| rank == 0).collect();
            assert_eq!(found, front, "{what}");
            if rows[0].len() > 1 {
                let reference = numbers(&case["reference"]);
                let found = hypervolume(&rows, &reference).unwrap();
                assert!((found / number(&case["hypervolume"]) - 1.0).abs() < 1e-12, "{what}");
                let members: Vec<Vec<f64>> =
                    case["members"].as_array().unwrap().iter().map(numbers).collect();
                let views: Vec<_> = members.iter().map(Vec::as_slice).collect();
                for (count, expected) in (1..).zip(case["selected"].as_array().unwrap()) {
                    let mut found = select(&views, count, &reference);
                    found.sort_unstable();
                    let expected: Vec<usize> = serde_json::from_value(expected.clone()).unwrap();
                    assert_eq!(found, expected, "{count} of {what}");
                }
            }
        }
    }

    #[test]
    fn corner_cases_have_a_volume_or_an_error() {
        let check = |points: &[[f64; 2]], reference: [f64; 2], expected| {
            let points: Vec<_> = points.iter().map(|point| point.to_vec()).collect();
            assert_eq!(hypervolume(&points, &reference), expected);
        };
        check(&[], [1.0, 1.0], Ok(0.0));
        check(&[[1.0, 1.0]], [1.0, 1.0], Ok(0.0));
        check(&[[0.0, 0.5], [0.5, 0.0], [0.5, 0.5]], [1.0, 1.0], Ok(0.75));
        check(&[[f64::NEG_INFINITY, 0.0]], [1.0, 1.0], Ok(f64::INFINITY));
        check(&[[0.0, 0.0]], [f64::INFINITY, 1.0], Ok(f64::INFINITY));
        check(
            &[[0.0, 0.0], [0.0, 2.0]],
            [1.0, 1.0],
            Err(HypervolumeError::Beyond { point: 1, objective: 1 }),
        );
        let beyond = HypervolumeError::Beyond { point: 0, objective: 0 };
        check(&[[f64::NAN, 0.0]], [1.0, 1.0], Err(beyond));
        for row in [vec![0.0], vec![0.0, 0.0, 0.0]] {
            let found = row.len();
            let unlike = HypervolumeError::Objectives { point: 0, found, expected: 2 };
            assert_eq!(hypervolume(&[row], &[1.0, 1.0]), Err(unlike));
        }
    }

    #[test]
    fn repeats_are_selected_last() {
        let rows = [[0.5, 0.5], [0.5, 0.5], [0.2, 0.8], [0.5, 0.5]];
        let views: Vec<_> = rows.iter().map(|row| &row[..]).collect();
        assert_eq!(select(&views, 3, &[1.0, 1.0]), [0, 1, 2]);
        assert_eq!(select(&views, 2, &[1.0, f64::INFINITY]), [2, 0]);
        assert_eq!(select(&views, 4, &[1.0, 1.0]), [0, 1, 2, 3]);
    }
}
