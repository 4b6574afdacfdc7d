//! Which trials are the best.

use crate::direction::Direction;
use crate::pareto::pareto_front;
use crate::trial::Trial;

/// The best feasible complete trials: of one objective the first of those with the best value, of
/// several the Pareto front.
pub(super) fn best<'a>(trials: &'a [Trial], directions: &[Direction]) -> Vec<&'a Trial> {
    let mut numbers = pareto_front(trials, directions, true);
    if directions.len() == 1 {
        numbers.truncate(1);
    }
    numbers.into_iter().filter_map(|number| trials.get(usize::try_from(number).ok()?)).collect()
}
