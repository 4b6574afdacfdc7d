//! Which checkpoints remain: a pure function of what is there and of the rule.

use crate::config::Keep;
use crate::rollback::RollbackSteps;

use super::Kind;

/// A checkpoint, as far as the rule cares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) step: u64,
    pub(super) kind: Kind,
    pub(super) score: Option<f64>,
    pub(super) bytes: u64,
}

/// What is kept, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) keep: Keep,
    pub(super) budget: Option<u64>,
    /// What a rollback needs stays while the run goes on, also over the budget.
    pub(super) rollback: RollbackSteps,
}

impl Rule {
    /// The steps whose checkpoints go. `finished` says that the run has ended and will not resume.
    pub(super) fn discarded(&self, entries: &[Entry], finished: bool) -> Vec<u64> {
        let mut newest_first = entries.to_vec();
        newest_first.sort_by_key(|entry| std::cmp::Reverse(entry.step));
        let Some(newest) = newest_first.first().copied() else { return vec![] };
        let mut best_first: Vec<Entry> =
            newest_first.iter().copied().filter(|entry| entry.score.is_some()).collect();
        best_first.sort_by(|a, b| {
            let scores = a.score.unwrap_or(f64::NAN).total_cmp(&b.score.unwrap_or(f64::NAN));
            scores.then(a.step.cmp(&b.step))
        });
        let steps = |entries: &[Entry], n: u64| -> Vec<u64> {
            let n = usize::try_from(n).unwrap_or(usize::MAX);
            entries.iter().take(n).map(|entry| entry.step).collect()
        };
        let of = |wanted: fn(Kind) -> bool| -> Vec<Entry> {
            newest_first.iter().copied().filter(|entry| wanted(entry.kind)).collect()
        };
        let regular = of(|kind| kind != Kind::Interrupt);
        let epochs = of(|kind| kind == Kind::Epoch);
        let mut kept = match self.keep {
            Keep::BestOnly => steps(&best_first, 1),
            Keep::Best(n) => steps(&best_first, n),
            Keep::Last(n) => steps(&epochs, n),
            Keep::EveryEpoch => steps(&epochs, u64::MAX),
            Keep::EverySteps(n) => {
                let due = regular.iter().filter(|entry| entry.step.is_multiple_of(n));
                due.map(|entry| entry.step).collect()
            }
            Keep::FinalOnly | Keep::Nothing => vec![],
        };
        // A run can only go on from its newest checkpoint, and one that has ended must leave one.
        let by_score = matches!(self.keep, Keep::BestOnly | Keep::Best(_));
        let last = if finished && by_score && !kept.is_empty() { None } else { Some(newest.step) };
        let best = best_first.first().map(|entry| entry.step);
        let of_rollback = |step| !finished && self.rollback.needs(step);
        let needed =
            |step| Some(step) == last || (by_score && Some(step) == best) || of_rollback(step);
        kept.extend(entries.iter().map(|entry| entry.step).filter(|step| needed(*step)));
        let stays = |entry: &&Entry| kept.contains(&entry.step);
        let mut bytes: u64 = newest_first.iter().filter(stays).map(|entry| entry.bytes).sum();
        let mut dropped = vec![];
        // Oldest first, the best after all others, or never where the rule is about it; what a resume or a rollback
        // needs never.
        let oldest_first = newest_first.iter().rev().filter(stays).filter(|e| Some(e.step) != best);
        let best_last = newest_first.iter().filter(stays).filter(|e| Some(e.step) == best);
        for entry in oldest_first.chain(best_last) {
            let over = self.budget.is_some_and(|budget| bytes > budget);
            if over && !needed(entry.step) {
                bytes -= entry.bytes;
                dropped.push(entry.step);
            }
        }
        let gone = |step: &u64| !kept.contains(step) || dropped.contains(step);
        entries.iter().map(|entry| entry.step).filter(gone).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(keep: Keep, budget: Option<u64>, finished: bool, expected: &[u64]) {
        // Epochs of 10 steps; a save for resuming at 45; interrupted at 47.
        let scores = [(10, 5.0), (20, 3.0), (30, 4.0), (40, 3.0)];
        let entry = |step, kind, score| Entry { step, kind, score, bytes: 100 };
        let mut entries: Vec<Entry> =
            scores.iter().map(|(step, score)| entry(*step, Kind::Epoch, Some(*score))).collect();
        entries.push(entry(45, Kind::Step, None));
        if !finished {
            entries.push(entry(47, Kind::Interrupt, None));
        }
        let rule = Rule { keep, budget, rollback: RollbackSteps::default() };
        let gone = rule.discarded(&entries, finished);
        let left: Vec<u64> =
            entries.iter().map(|e| e.step).filter(|step| !gone.contains(step)).collect();
        assert_eq!(left, expected, "{keep:?} {budget:?} {finished}");
    }

    #[test]
    fn each_rule_keeps_what_it_says_and_the_newest() {
        check(Keep::BestOnly, None, false, &[20, 47]);
        check(Keep::BestOnly, None, true, &[20]);
        check(Keep::Best(3), None, false, &[20, 30, 40, 47]);
        check(Keep::Best(3), None, true, &[20, 30, 40]);
        check(Keep::Last(2), None, false, &[30, 40, 47]);
        check(Keep::Last(2), None, true, &[30, 40, 45]);
        check(Keep::EveryEpoch, None, false, &[10, 20, 30, 40, 47]);
        check(Keep::EverySteps(15), None, false, &[30, 45, 47]);
        check(Keep::EverySteps(20), None, true, &[20, 40, 45]);
        check(Keep::FinalOnly, None, false, &[47]);
        check(Keep::FinalOnly, None, true, &[45]);
    }

    #[test]
    fn the_budget_takes_the_oldest_and_spares_the_best_and_the_newest() {
        check(Keep::EveryEpoch, Some(500), false, &[10, 20, 30, 40, 47]);
        check(Keep::EveryEpoch, Some(350), false, &[20, 40, 47]);
        check(Keep::EveryEpoch, Some(200), false, &[20, 47]);
        check(Keep::EveryEpoch, Some(100), false, &[47]);
        check(Keep::EveryEpoch, Some(1), false, &[47]);
        check(Keep::Best(3), Some(1), true, &[20]);
        // Which model comes out is no question of the budget.
        check(Keep::BestOnly, Some(1), false, &[20, 47]);
        check(Keep::BestOnly, Some(150), false, &[20, 47]);
        check(Keep::Best(3), Some(350), false, &[20, 40, 47]);
        check(Keep::Best(3), Some(1), false, &[20, 47]);
        check(Keep::BestOnly, Some(1), true, &[20]);
    }

    #[test]
    fn what_a_rollback_needs_stays_also_over_the_budget() {
        let entry = |step, kind, score| Entry { step, kind, score, bytes: 1 };
        let entries = [
            entry(0, Kind::Step, None),
            entry(5, Kind::Step, None),
            entry(10, Kind::Step, None),
            entry(12, Kind::Interrupt, None),
        ];
        for (keep, budget) in [(Keep::FinalOnly, None), (Keep::EverySteps(5), Some(1))] {
            let rule = |proved, candidate| {
                let rollback = RollbackSteps { proved, candidate };
                Rule { keep, budget, rollback }
            };
            assert_eq!(rule(Some(5), Some(10)).discarded(&entries, false), [0]);
            assert_eq!(rule(Some(10), None).discarded(&entries, false), [0, 5]);
            assert_eq!(rule(None, None).discarded(&entries, false), [0, 5, 10]);
            assert_eq!(rule(Some(5), Some(10)).discarded(&entries, true), [0, 5, 10]);
            assert_eq!(rule(Some(5), None).discarded(&[], false), [0; 0]);
        }
    }
}
