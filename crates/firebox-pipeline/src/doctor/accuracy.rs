//! The line of R1's checklist on accuracy, as far as losses on noise tell of it.

use firebox_core::Precision;

use super::Learning;
use super::checklist::{Mark, Tick};
use super::learn::{ENOUGH, Verdict};

/// Training losses are all that is known here: accuracy is not measured, and one that ends lower is as good.
pub(super) fn accuracy(learnt: &[Learning], precision: Precision) -> Tick {
    let line = "losses on noise end no higher than the baseline's (R1: accuracy within ±0.5 %)";
    if precision == Precision::F32 {
        let found = "f32 is the baseline; the other types are beside it above".to_owned();
        return Tick { line, mark: Mark::NotHere, found };
    }
    let own = learnt.iter().filter(|one| one.precision == precision);
    // Few steps say nothing of the end, whether they are near or not.
    let (enough, few): (Vec<_>, Vec<_>) = own.partition(|one| one.is_enough());
    let (unknown, known): (Vec<_>, Vec<_>) =
        enough.into_iter().partition(|one| one.verdict() == Verdict::Unknown);
    // One that is apart comes before all that are not.
    let worst = known.iter().max_by(|a, b| {
        let apart = a.is_apart().cmp(&b.is_apart());
        apart.then(a.difference.total_cmp(&b.difference))
    });
    let mut said: Vec<String> = vec![];
    if !few.is_empty() {
        let of_each = few.iter().map(|one| format!("{} ({})", one.workload, one.steps));
        said.push(format!(
            "not shown: too few steps for {}, it takes {ENOUGH}; `--workload NAME` without --quick leaves one model all the time",
            of_each.collect::<Vec<_>>().join(", ")
        ));
    }
    if !unknown.is_empty() {
        let of_each = unknown.iter().map(|one| format!("{} ({})", one.workload, one.unknown()));
        said.push(format!("not shown for {}", of_each.collect::<Vec<_>>().join(", ")));
    }
    if let Some(worst) = worst {
        let (difference, error) = (100.0 * worst.difference, 100.0 * worst.error);
        let place = match worst.verdict() {
            Verdict::Nothing => "learns nothing of what f32 learns",
            Verdict::Higher => "ends higher than f32, and by more than chance",
            Verdict::Close | Verdict::Unknown => "has the largest difference from f32",
        };
        let which = if unknown.is_empty() { "models" } else { "the other models" };
        said.push(format!(
            "of {which} with {ENOUGH} steps or more, {} {place}: {difference:+.2} ± {error:.2} % of its first loss",
            worst.workload
        ));
        said.push("accuracy itself is in the scores of a run's report".to_owned());
    }
    let mark = match worst {
        Some(worst) if worst.is_apart() => Mark::No,
        Some(_) if few.is_empty() && unknown.is_empty() => Mark::Yes,
        // The models of which too little is known may end anywhere.
        _ => Mark::NotHere,
    };
    let found = match said.is_empty() {
        true => "nothing was trained".to_owned(),
        false => said.join("; "),
    };
    Tick { line, mark, found }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Workload;

    #[test]
    fn a_model_that_ends_higher_is_not_hidden_by_one_with_a_larger_difference() {
        let base: Vec<f64> = (0..300).map(|step| 2.0 - 0.005 * f64::from(step)).collect();
        let learnt = |apart: f64, spread: f64, workload| {
            let by = |share: f64| base.iter().map(|loss| loss + 2.0 * share).collect::<Vec<_>>();
            let seeds = [base.clone(), by(spread), by(-spread)];
            Learning::new(workload, Precision::Bf16, &by(apart), &seeds)
        };
        // 3 % where f32 scatters by 4 %, and 1 % where it does by 0.1 %.
        let close = learnt(0.03, 0.04, Workload::LstmMae);
        let apart = learnt(0.01, 0.001, Workload::Mlp);
        assert!(!close.is_apart() && apart.is_apart() && apart.is_enough());
        let tick = accuracy(&[close, apart], Precision::Bf16);
        assert!(tick.mark == Mark::No && tick.found.contains("mlp"), "{}", tick.found);
    }

    #[test]
    fn a_model_that_learns_nothing_is_not_ticked_and_one_that_scatters_is_not_shown() {
        let falling = |end: f64| -> Vec<f64> {
            std::iter::once(2.0).chain(std::iter::repeat_n(end, 299)).collect()
        };
        let learnt = |workload, own: f64, seeds: [f64; 3]| {
            Learning::new(workload, Precision::Bf16, &falling(own), &seeds.map(falling))
        };
        let said = |learnt: &[Learning]| {
            let Tick { mark, found, .. } = accuracy(learnt, Precision::Bf16);
            (mark, found)
        };
        let (narrow, wide) = ([0.5, 0.502, 0.498], [0.1, 0.5, 1.0]);
        let near = || learnt(Workload::LstmMae, 0.5, narrow);
        assert_eq!(said(&[near()]).0, Mark::Yes);
        let (mark, found) = said(&[near(), learnt(Workload::Mlp, 0.1, wide)]);
        assert_eq!(mark, Mark::NotHere, "{found}");
        assert!(
            found.starts_with("not shown for mlp (f32 itself ends 22.5 % of the first loss apart); of the other models"),
            "{found}"
        );
        for seeds in [narrow, wide] {
            let (mark, found) = said(&[near(), learnt(Workload::Mlp, 2.0, seeds)]);
            assert_eq!(mark, Mark::No, "{found}");
            assert!(found.contains("mlp learns nothing of what f32 learns"), "{found}");
        }
    }

    #[test]
    fn the_model_that_is_named_has_the_largest_difference() {
        let steps = ENOUGH as u32;
        let base: Vec<f64> = (0..steps).map(|step| 2.0 - 0.005 * f64::from(step)).collect();
        // One above f32 that scatters by far more than that, beside one below it that hardly does.
        let scattered = |step: u32| 0.008 + if step.is_multiple_of(2) { 0.05 } else { -0.05 };
        let learnt = |workload, apart: &dyn Fn(u32) -> f64| {
            let own: Vec<f64> =
                (0..steps).zip(&base).map(|(step, loss)| loss + apart(step)).collect();
            Learning::new(workload, Precision::Bf16, &own, std::slice::from_ref(&base))
        };
        let wide = learnt(Workload::Mlp, &scattered);
        let narrow = learnt(Workload::LstmForecast, &|_| -0.0015);
        assert!(wide.difference - 2.0 * wide.error < narrow.difference - 2.0 * narrow.error);
        let Tick { line, mark, found } = accuracy(&[wide, narrow], Precision::Bf16);
        assert!(mark == Mark::Yes && found.contains("mlp has the largest difference"), "{found}");
        assert!(line.contains("losses on noise") && found.contains("a run's report"), "{found}");
    }

    #[test]
    fn accuracy_is_not_ticked_where_a_model_took_too_few_steps() {
        let learnt = |workload, steps: u32, apart: f64| {
            let base: Vec<f64> = (0..steps).map(|step| 2.0 - 0.005 * f64::from(step)).collect();
            let own: Vec<f64> = base.iter().map(|loss| loss + 2.0 * apart).collect();
            Learning::new(workload, Precision::Bf16, &own, &[base])
        };
        let enough = ENOUGH as u32;
        let said = |learnt: &[Learning]| {
            let Tick { mark, found, .. } = accuracy(learnt, Precision::Bf16);
            (mark, found)
        };
        let near = || learnt(Workload::LstmMae, enough, 0.0);
        let (mark, found) = said(&[near()]);
        assert!(mark == Mark::Yes && !found.contains("not shown"), "{found}");
        let (mark, found) = said(&[near(), learnt(Workload::Mlp, enough - 1, 0.0)]);
        assert_eq!(mark, Mark::NotHere, "{found}");
        assert!(
            found.starts_with("not shown: ") && found.contains("for mlp (49), it takes 50"),
            "{found}"
        );
        assert!(found.contains("lstm-mae has the largest difference from f32"), "{found}");
        // One that is shown to be apart is so, whatever is not known of the others.
        let apart = learnt(Workload::LstmForecast, enough, 0.02);
        let (mark, found) = said(&[near(), apart, learnt(Workload::Mlp, 6, 0.0)]);
        assert!(mark == Mark::No && found.contains("for mlp (6), it"), "{found}");
        assert!(found.contains("lstm-forecast ends higher than f32"), "{found}");
        let (mark, found) = said(&[learnt(Workload::Mlp, 6, 0.0)]);
        assert!(mark == Mark::NotHere && !found.contains("difference"), "{found}");
        assert_eq!(said(&[]), (Mark::NotHere, "nothing was trained".to_owned()));
    }
}
