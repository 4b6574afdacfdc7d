//! How the time that the suite may take is divided: every case once, then the peer beside the cases
//! that matter most, a second round, the peer beside the other cases, and more rounds.

use super::cases::Case;

/// Rounds from which the peer is put beside more cases before there is another round.
const ENOUGH: u64 = 2;
/// Rounds at most.
pub(super) const MOST: u64 = 9;

/// What is to come.
#[derive(Debug, PartialEq)]
pub(super) struct Plan {
    /// Rounds of every case.
    pub(super) rounds: u64,
    /// For each case, in how many of them the peer runs beside it.
    pub(super) peers: Vec<u64>,
    /// Seconds that all of it takes.
    pub(super) seconds: f64,
}

/// Divides so many seconds, after `done` rounds, of which there is at least one. The peer runs each
/// case in so many `forms`.
pub(super) fn plan(cases: &[Case], forms: usize, seconds: f64, done: u64) -> Plan {
    let own: f64 = cases.iter().map(|case| case.seconds).sum();
    let beside = |case: &Case| match case.importance {
        Some(_) => case.peer_seconds * forms as f64,
        None => 0.0,
    };
    if cases.is_empty() {
        return Plan { rounds: 0, peers: vec![], seconds: 0.0 };
    }
    let first = cases.iter().filter(|case| case.importance == Some(0));
    let round = own + first.map(beside).sum::<f64>();
    let least = u64::from(done == 0);
    let wanted = ENOUGH.saturating_sub(done).max(least);
    let mut rounds = ((seconds / round) as u64).clamp(least, wanted);
    let mut left = seconds - rounds as f64 * own;
    let mut peers = vec![0; cases.len()];
    for place in by_importance(cases) {
        let cost = beside(&cases[place]);
        if cost > 0.0 {
            peers[place] = ((left / cost).max(0.0) as u64).min(rounds);
            left -= cost * peers[place] as f64;
        }
    }
    let everywhere = by_importance(cases).iter().all(|place| peers[*place] == rounds);
    let full = own + cases.iter().map(beside).sum::<f64>();
    if forms == 0 || everywhere {
        let more = ((left / full).max(0.0) as u64).min(MOST.saturating_sub(done + rounds));
        rounds += more;
        left -= full * more as f64;
        peers.iter_mut().zip(cases).for_each(|(rounds, case)| {
            *rounds += if forms > 0 && case.importance.is_some() { more } else { 0 };
        });
    }
    Plan { rounds, peers, seconds: seconds - left }
}

/// The cases that a peer can run, those that matter most first.
pub(super) fn by_importance(cases: &[Case]) -> Vec<usize> {
    let mut places: Vec<usize> =
        (0..cases.len()).filter(|place| cases[*place].importance.is_some()).collect();
    places.sort_by_key(|place| cases[*place].importance);
    places
}

/// Seconds of one round with the peer beside everything that it can run.
pub(super) fn whole_round(cases: &[Case], forms: usize) -> f64 {
    let of = |case: &Case| {
        let peers = if case.importance.is_some() { forms } else { 0 };
        case.seconds + peers as f64 * case.peer_seconds
    };
    cases.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::super::super::config::{BenchConfig, Workload};
    use super::super::cases::{SuitePart, case};
    use super::*;

    /// A case of ten seconds, with a peer of five a form.
    fn one(importance: Option<u8>) -> Case {
        let config = BenchConfig::new(Workload::Mlp);
        let case = case(SuitePart::Matrix, "mlp", config);
        Case { seconds: 10.0, peer_seconds: 5.0, importance, ..case }
    }

    #[test]
    fn time_goes_to_what_matters_first() {
        // A round is 40 s, 50 s with the peer where it matters most, 70 s with all of it.
        let cases = [one(None), one(Some(2)), one(Some(0)), one(Some(1))];
        let check = |seconds, done, rounds, peers: [u64; 4], taken| {
            let expected = Plan { rounds, peers: peers.to_vec(), seconds: taken };
            assert_eq!(plan(&cases, 2, seconds, done), expected, "{seconds} s after {done}");
        };
        // Too little for anything: every case is still run once.
        check(5.0, 0, 1, [0, 0, 0, 0], 40.0);
        check(50.0, 0, 1, [0, 0, 1, 0], 50.0);
        check(69.0, 0, 1, [0, 0, 1, 1], 60.0);
        check(99.0, 0, 1, [0, 1, 1, 1], 70.0);
        // A second round comes before the peer beside the less important.
        check(100.0, 0, 2, [0, 0, 2, 0], 100.0);
        check(131.0, 0, 2, [0, 1, 2, 2], 130.0);
        check(140.0, 0, 2, [0, 2, 2, 2], 140.0);
        check(209.0, 0, 2, [0, 2, 2, 2], 140.0);
        check(210.0, 0, 3, [0, 3, 3, 3], 210.0);
        check(1e9, 0, 9, [0, 9, 9, 9], 630.0);
        // What is left after some rounds; nothing is taken up that does not fit.
        check(60.0, 1, 1, [0, 0, 1, 1], 60.0);
        check(45.0, 1, 0, [0, 0, 0, 0], 0.0);
        check(69.0, 2, 0, [0, 0, 0, 0], 0.0);
        check(140.0, 2, 2, [0, 2, 2, 2], 140.0);
        check(1e9, 8, 1, [0, 1, 1, 1], 70.0);
        assert_eq!(plan(&cases, 2, 1e9, 9).rounds, 0);
        assert_eq!(whole_round(&cases, 2), 70.0);
        assert_eq!(by_importance(&cases), [2, 3, 1]);
    }

    #[test]
    fn without_a_peer_there_are_rounds_alone() {
        let cases = [one(None), one(Some(0))];
        let plan = |seconds| plan(&cases, 0, seconds, 0);
        assert_eq!(plan(65.0), Plan { rounds: 3, peers: vec![0, 0], seconds: 60.0 });
        assert_eq!((plan(1.0).rounds, plan(1e9).rounds), (1, 9));
        assert_eq!(super::plan(&[], 2, 100.0, 0).rounds, 0);
    }
}
