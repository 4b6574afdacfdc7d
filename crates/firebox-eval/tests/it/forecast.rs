//! Errors of forecasts and the linear forecaster beside scikit-learn, and the intervals and the verdict
//! beside what theory says of made errors. The golden values are written by `golden/make_forecast.py`.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

use firebox_core::Stream;
use firebox_eval::{
    BlockOf, Estimate, EvalError, ForecastData, ForecastEvaluation, ForecastOutput, ForecastScore,
    Forecaster, Forecasts, Linear, LinearData, Outcome, Resampling, evaluate_forecasts,
    forecast_verdict, mean_r2,
};
use serde_json::Value;

fn golden() -> Value {
    serde_json::from_str(include_str!("../golden/forecast.json")).unwrap()
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn resampling(block: usize) -> Resampling {
    Resampling {
        stream: Stream::new(1, "bootstrap"),
        resamples: 1000,
        block,
        units: vec![],
        whole_units: false,
        confidence: 0.95,
    }
}

/// Fits without being stopped, and hears of each penalty: six of all outputs that the same samples lack.
fn fitted(train: &LinearData<'_>, validation: Option<&LinearData<'_>>) -> Option<Linear> {
    let heard = std::cell::RefCell::new(Vec::<(usize, usize)>::new());
    let told = |done: usize, all: usize| heard.borrow_mut().push((done, all));
    let found = Linear::fit(train, validation, &AtomicBool::new(false), &told).unwrap();
    let outputs = train.targets.len() / train.samples.max(1);
    let lacks = |output: usize| -> Vec<bool> {
        train.targets.iter().skip(output).step_by(outputs).map(|target| target.is_nan()).collect()
    };
    let kinds: BTreeSet<Vec<bool>> = (0..outputs).map(lacks).collect();
    let penalties = if validation.is_some() { 6 * kinds.len() } else { 0 };
    let expected: Vec<(usize, usize)> = (1..=penalties).map(|done| (done, penalties)).collect();
    assert_eq!(heard.into_inner(), expected);
    found
}

fn outputs(count: usize) -> Vec<ForecastOutput> {
    let output = |horizon| ForecastOutput { target: "load".to_owned(), horizon };
    (1..=count).map(output).collect()
}

/// Forecasts of one output by the model and by the last value, with these errors.
fn measured(model: &[Vec<f64>], naive: &[f64], block: usize) -> ForecastEvaluation {
    let truth: Vec<f64> = (0..naive.len()).map(|at| (at as f64 / 7.0).sin()).collect();
    let off = |errors: &Vec<f64>| truth.iter().zip(errors).map(|(t, e)| t + e).collect();
    let forecasts = [
        Forecasts { forecaster: Forecaster::Model, runs: model.iter().map(off).collect() },
        Forecasts { forecaster: Forecaster::LastValue, runs: vec![off(&naive.to_vec())] },
    ];
    let (outputs, scales) = (outputs(1), vec![2.0; truth.len()]);
    let data = ForecastData { outputs: &outputs, truth: &truth, scales: &scales };
    evaluate_forecasts(&data, &forecasts, &resampling(block)).unwrap()
}

/// The model alone, with these forecasts of one output.
fn of_errors(errors: &[f64], truth: &[f64], resampling: &Resampling) -> ForecastEvaluation {
    let forecasts = [Forecasts { forecaster: Forecaster::Model, runs: vec![errors.to_vec()] }];
    let (outputs, scales) = (outputs(1), vec![1.0; truth.len()]);
    let data = ForecastData { outputs: &outputs, truth, scales: &scales };
    evaluate_forecasts(&data, &forecasts, resampling).unwrap()
}

/// How wide the interval of the model's mean absolute error is.
fn width_of(found: &ForecastEvaluation) -> f64 {
    let mae = found.score(Forecaster::Model, Some(0)).unwrap().mae;
    mae.high - mae.low
}

#[test]
fn true_values_that_nobody_measured_do_not_count() {
    let (windows, width) = (60, 3);
    let mut truth = noise(1, windows * width, 2.0);
    let runs: Vec<Vec<f64>> = (2..4)
        .map(|seed| {
            truth.iter().zip(noise(seed, windows * width, 0.5)).map(|(t, e)| t + e).collect()
        })
        .collect();
    let naive = noise(4, windows * width, 1.0);
    let scales: Vec<f64> = noise(5, windows * width, 1.0).iter().map(|s| 1.0 + s.abs()).collect();
    let mut draws = Stream::new(6, "lacking").draws();
    // Of the last output, nothing was measured.
    for (at, value) in truth.iter_mut().enumerate() {
        if at % width == 2 || draws.chance(0.3) {
            *value = f64::NAN;
        }
    }
    let of = |truth: &[f64], runs: &[Vec<f64>], naive: &[f64], scales: &[f64], count: usize| {
        let forecasts = [
            Forecasts { forecaster: Forecaster::Model, runs: runs.to_vec() },
            Forecasts { forecaster: Forecaster::LastValue, runs: vec![naive.to_vec()] },
        ];
        let outputs = outputs(count);
        let data = ForecastData { outputs: &outputs, truth, scales };
        evaluate_forecasts(&data, &forecasts, &resampling(5))
    };
    let found = of(&truth, &runs, &naive, &scales, width).unwrap();
    for output in 0..2 {
        let measured = |at: &usize| at % width == output && !truth[*at].is_nan();
        let own: Vec<usize> = (0..truth.len()).filter(measured).collect();
        let take = |values: &[f64]| -> Vec<f64> { own.iter().map(|at| values[*at]).collect() };
        let runs: Vec<Vec<f64>> = runs.iter().map(|run| take(run)).collect();
        let alone = of(&take(&truth), &runs, &take(&naive), &take(&scales), 1).unwrap();
        for forecaster in [Forecaster::Model, Forecaster::LastValue] {
            let [a, b] = [(&found, output), (&alone, 0)]
                .map(|(all, output)| all.score(forecaster, Some(output)).unwrap().clone());
            for (a, b) in [(a.mae, b.mae), (a.rmse, b.rmse), (a.r2, b.r2), (a.mase, b.mase)] {
                assert!((a.value - b.value).abs() < 1e-12, "{output} {} {}", a.value, b.value);
                assert!(a.low < a.value && a.value < a.high, "{a:?}");
            }
        }
        // With one run, the score of a search is that of the report.
        let pairs = |values: &[f64]| -> Vec<f64> {
            values.iter().skip(output).step_by(width).copied().collect()
        };
        let naive_alone = alone.score(Forecaster::LastValue, Some(0)).unwrap().r2.value;
        let by_search = mean_r2(&pairs(&truth), &pairs(&naive), 1);
        assert!((by_search - naive_alone).abs() < 1e-12, "{by_search} {naive_alone}");
    }
    assert!(found.score(Forecaster::Model, Some(2)).unwrap().mae.value.is_nan());
    let all = found.score(Forecaster::Model, None).unwrap().mae.value;
    let two = |output| found.score(Forecaster::Model, Some(output)).unwrap().mae.value;
    assert!((all - (two(0) + two(1)) / 2.0).abs() < 1e-12);
    assert!(mean_r2(&truth, &runs[0], width).is_finite());
    // Of 12 blocks, one that has a value is one: nothing is claimed.
    assert_eq!(found.measured, Some(12));
    let mut few = truth.clone();
    few[5 * width..].fill(f64::NAN);
    let few = of(&few, &runs, &naive, &scales, width).unwrap();
    assert_eq!((few.measured, few.independent(), few.has_intervals()), (Some(1), 1, false));
    assert!(few.scores.iter().all(|score| !score.mae.has_interval()));
    let none = vec![f64::NAN; truth.len()];
    let error = of(&none, &runs, &naive, &scales, width).unwrap_err();
    assert_eq!(error.to_string(), EvalError::NoForecast.to_string());
}

fn noise(seed: u64, count: usize, size: f64) -> Vec<f64> {
    let mut draws = Stream::new(seed, "errors").draws();
    (0..count).map(|_| size * draws.normal()).collect()
}

#[test]
fn errors_are_those_of_scikit_learn() {
    let golden = &golden()["scores"];
    let (truth, scales) = (floats(&golden["truth"]), floats(&golden["scales"]));
    let runs = golden["model"].as_array().unwrap().iter().map(floats).collect();
    let forecasts = [
        Forecasts { forecaster: Forecaster::Model, runs },
        Forecasts { forecaster: Forecaster::LastValue, runs: vec![floats(&golden["naive"])] },
    ];
    let outputs = outputs(3);
    let data = ForecastData { outputs: &outputs, truth: &truth, scales: &scales };
    let found = evaluate_forecasts(&data, &forecasts, &resampling(4)).unwrap();
    type Value = fn(&ForecastScore) -> Estimate;
    let of: [(&str, Value); 4] = [
        ("mae", |score| score.mae),
        ("rmse", |score| score.rmse),
        ("r2", |score| score.r2),
        ("mase", |score| score.mase),
    ];
    for (forecaster, name) in
        [(Forecaster::Model, "model_scores"), (Forecaster::LastValue, "naive_scores")]
    {
        for (metric, value) in of {
            let expected = floats(&golden[name][metric]);
            for (output, expected) in expected.iter().enumerate() {
                let found = value(found.score(forecaster, Some(output)).unwrap());
                assert!((found.value - expected).abs() < 1e-9 * expected.abs(), "{name} {metric}");
                assert!(found.low <= found.value && found.value <= found.high, "{found:?}");
            }
            let mean = expected.iter().sum::<f64>() / 3.0;
            let all = value(found.score(forecaster, None).unwrap()).value;
            assert!((all - mean).abs() < 1e-9 * mean.abs(), "{name} {metric}");
        }
    }
    let naive = mean_r2(&truth, &floats(&golden["naive"]), 3);
    let expected = floats(&golden["naive_scores"]["r2"]).iter().sum::<f64>() / 3.0;
    assert!((naive - expected).abs() < 1e-9 * expected.abs(), "{naive} {expected}");
    // An output that never changes has no R²; no output has none at all.
    assert_eq!(mean_r2(&[1.0, 5.0, 3.0, 5.0], &[1.0, 4.0, 2.0, 6.0], 2), 0.5);
    assert!(mean_r2(&[5.0, 5.0], &[4.0, 6.0], 1).is_nan());
    let gain = found.gain(Forecaster::LastValue, Some(1)).unwrap().gain.value;
    let [model, naive] = ["model_scores", "naive_scores"].map(|n| floats(&golden[n]["mae"])[1]);
    assert!((gain - (1.0 - model / naive)).abs() < 1e-9);
}

#[test]
fn the_linear_forecaster_is_scikit_learns_ridge() {
    let golden = &golden()["ridge"];
    let width = golden["width"].as_u64().unwrap() as usize;
    let rows = floats(&golden["rows"]);
    let targets: Vec<f32> = floats(&golden["targets"]).iter().map(|v| *v as f32).collect();
    let sizes: Vec<usize> = floats(&golden["sizes"]).iter().map(|v| *v as usize).collect();
    let part = |place: usize| {
        let from: usize = sizes[..place].iter().sum();
        (from, from + sizes[place])
    };
    let reader = |from: usize| {
        let rows = &rows;
        move |sample: usize, out: &mut [f64]| {
            out.copy_from_slice(&rows[(from + sample) * width..(from + sample + 1) * width]);
        }
    };
    let readers = [0, 1, 2].map(|place| reader(part(place).0));
    let data = |place: usize| {
        let (from, to) = part(place);
        let targets = &targets[2 * from..2 * to];
        LinearData { samples: to - from, width, features: &readers[place], targets }
    };
    let fit = fitted(&data(0), Some(&data(1))).unwrap();
    assert_eq!(fit.penalties, floats(&golden["penalties"]));
    assert_ne!(fit.penalties[0], fit.penalties[1]);
    let expected = floats(&golden["predicted"]);
    let found = fit.predict(&data(2));
    let size = expected.iter().map(|v| v * v).sum::<f64>();
    let error: f64 = found.iter().zip(&expected).map(|(a, b)| (a - b).powi(2)).sum();
    assert!((error / size).sqrt() < 1e-6, "{}", (error / size).sqrt());
    assert!(fitted(&data(0), None).unwrap().penalties.iter().all(|own| *own <= 1e-4));
    // Each output is fitted to the samples that have it: few are lacking of the first, most of the second.
    let mut draws = Stream::new(9, "lacking").draws();
    let all = data(0);
    let mut lacking = all.targets.to_vec();
    for (at, target) in lacking.iter_mut().enumerate() {
        if draws.chance([0.2, 0.7][at % 2]) {
            *target = f32::NAN;
        }
    }
    let found = fitted(&LinearData { targets: &lacking, ..all }, None).unwrap();
    let found = found.predict(&data(2));
    for output in 0..2 {
        let has = |sample: &usize| !lacking[2 * sample + output].is_nan();
        let own: Vec<usize> = (0..all.samples).filter(has).collect();
        let targets: Vec<f32> = own.iter().map(|sample| lacking[2 * sample + output]).collect();
        let read = |sample: usize, out: &mut [f64]| readers[0](own[sample], out);
        let alone = LinearData { samples: own.len(), width, features: &read, targets: &targets };
        let alone = fitted(&alone, None).unwrap().predict(&data(2));
        let size = alone.iter().map(|value| value * value).sum::<f64>().sqrt();
        let pairs = found.iter().skip(output).step_by(2).zip(&alone);
        let off = pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
        assert!(off < 1e-6 * size, "{output}: {off} of {size}");
    }
    let validated = LinearData { targets: &lacking, ..all };
    assert!(fitted(&validated, Some(&validated)).is_some());
    let none = LinearData { samples: 0, targets: &[], ..data(0) };
    assert!(fitted(&none, None).is_none());
    for part in [data(0), validated] {
        let (stop, validation) = (AtomicBool::new(true), data(1));
        let stopped = Linear::fit(&part, Some(&validation), &stop, &|_, _| panic!("it goes on"));
        assert!(matches!(stopped, Err(EvalError::Stopped)), "{stopped:?}");
    }
}

#[test]
fn blocks_widen_the_interval_of_errors_that_hang_together() {
    // Fifty errors, ten times each.
    let few = noise(1, 50, 1.0);
    let errors: Vec<f64> = (0..500).map(|at| few[at / 10]).collect();
    let width = |block| {
        let found = measured(std::slice::from_ref(&errors), &noise(2, 500, 1.0), block);
        let mae = found.score(Forecaster::Model, Some(0)).unwrap().mae;
        mae.high - mae.low
    };
    assert!(width(10) > 2.0 * width(1), "{} {}", width(10), width(1));
}

#[test]
fn whole_units_widen_it_beyond_blocks_that_cut_through_them() {
    let few = noise(1, 50, 1.0);
    let truth = vec![0.0; 500];
    let errors: Vec<f64> = (0..500).map(|at| few[at / 10]).collect();
    let of = |truth: &[f64], resampling: &Resampling| of_errors(&errors, truth, resampling);
    let width = |resampling: &Resampling| width_of(&of(&truth, resampling));
    let units = (0..500).map(|at| at / 10).collect();
    let whole = Resampling { units, whole_units: true, ..resampling(10) };
    // Blocks that begin anywhere have two thirds of the variance: 1.22 is expected.
    let (by_units, by_blocks) = (width(&whole), width(&resampling(10)));
    assert!(by_units > 1.05 * by_blocks, "{by_units} {by_blocks}");
    // Measured values of the first three units, the first of which has 25 windows of the 500.
    let measured: Vec<f64> = (0..500).map(|at| if at < 35 { 0.0 } else { f64::NAN }).collect();
    let units = (0..500).map(|at| if at < 25 { 0 } else { 1 + (at - 25) / 5 }).collect();
    let unlike = Resampling { units, whole_units: true, ..resampling(6) };
    assert_eq!(of(&measured, &unlike).measured, Some(3));
}

#[test]
fn units_that_cross_blocks_widen_it_as_units_do() {
    // Twenty units of 25 windows that err alike, one of each unit behind the other.
    let few = noise(1, 20, 1.0);
    let errors: Vec<f64> = (0..500).map(|at| few[at % 20]).collect();
    let of = |truth: &[f64], resampling: &Resampling| of_errors(&errors, truth, resampling);
    let width = |resampling: &Resampling| width_of(&of(&[0.0; 500], resampling));
    let crossed = Resampling { units: (0..500).map(|at| at % 20).collect(), ..resampling(1) };
    // The mean of twenty varies √25 times as much as that of 500.
    let (by_units, by_windows) = (width(&crossed), width(&resampling(1)));
    assert!(by_units > 3.0 * by_windows, "{by_units} {by_windows}");
    // Of measured values of three units there is no interval, in however many windows they are.
    let measured = |at: usize| if at % 20 < 3 { 0.0 } else { f64::NAN };
    let found = of(&(0..500).map(measured).collect::<Vec<f64>>(), &crossed);
    assert_eq!(found.measured, Some(3));
    assert_eq!(of(&[0.0; 500], &crossed).independent(), 20);
    assert!(!found.score(Forecaster::Model, Some(0)).unwrap().mae.has_interval());
}

#[test]
fn seeds_vary_in_a_resample_as_they_do_for_themselves() {
    let naive = noise(2, 600, 1.0);
    let of = |seeds: [f64; 2]| {
        let runs = seeds.map(|error| vec![error; 600]);
        measured(&runs, &naive, 6).score(Forecaster::Model, Some(0)).unwrap().mae
    };
    // Every window errs alike, so only seeds are drawn: a quarter of the resamples has the first twice, a quarter the second,
    // and the variance of the mean of two seeds is that of one, ((2 − 1)² / 2), halved: ends are √2 · 0.5 away.
    let mae = of([1.0, 2.0]);
    assert!((mae.value - 1.5).abs() < 1e-9, "{mae:?}");
    let reach = 0.5f64.sqrt();
    assert!((mae.low - (1.5 - reach)).abs() < 1e-9, "{mae:?}");
    assert!((mae.high - (1.5 + reach)).abs() < 1e-9, "{mae:?}");
    // No error is below zero.
    assert_eq!(of([0.1, 1.0]).low, 0.0);
}

/// A model and a last value that err as much, at so many outputs of 600 windows.
fn of_equals(width: usize, resampling: &Resampling) -> ForecastEvaluation {
    let truth = noise(1, 600 * width, 1.0);
    let off = |seed| truth.iter().zip(noise(seed, truth.len(), 1.0)).map(|(t, e)| t + e).collect();
    let forecasts = [
        Forecasts { forecaster: Forecaster::Model, runs: vec![off(2)] },
        Forecasts { forecaster: Forecaster::LastValue, runs: vec![off(3)] },
    ];
    let (outputs, scales) = (outputs(width), vec![2.0; truth.len()]);
    let data = ForecastData { outputs: &outputs, truth: &truth, scales: &scales };
    evaluate_forecasts(&data, &forecasts, resampling).unwrap()
}

#[test]
fn a_baseline_is_better_somewhere_only_if_it_is_for_all_that_is_compared() {
    let at = |confidence| of_equals(3, &Resampling { confidence, ..resampling(6) });
    let (mut found, strict) = (at(0.95), at(1.0 - 0.05 / 3.0));
    for (own, strict) in found.gains.iter().zip(&strict.gains).filter(|(g, _)| g.output.is_some()) {
        let joint = own.among_all.unwrap();
        assert!((joint.low - strict.gain.low).abs() < 1e-9, "{joint:?} {strict:?}");
        assert!((joint.high - strict.gain.high).abs() < 1e-9, "{joint:?} {strict:?}");
        assert!(joint.low < own.gain.low && joint.high > own.gain.high, "{joint:?} {own:?}");
    }
    // Worse at one output by its own interval, and perhaps by that of all.
    for gain in &mut found.gains {
        gain.gain = Estimate { value: 0.2, low: 0.1, high: 0.3 };
        gain.among_all = gain.output.map(|_| gain.gain);
    }
    let mut said = |high: f64| {
        let at_first = found.gains.iter_mut().find(|gain| gain.output == Some(0)).unwrap();
        at_first.gain = Estimate { value: -0.1, low: -0.2, high: -0.01 };
        at_first.among_all = Some(Estimate { value: -0.1, low: -0.3, high });
        forecast_verdict(&found)
    };
    let open = said(0.02);
    assert_eq!(open.outcome, Outcome::Beats);
    let but = "(but no difference from the last value is shown at `load` +1)";
    assert!(open.sentence.contains(but), "{}", open.sentence);
    let worse = said(-0.005);
    assert_eq!(worse.outcome, Outcome::DoesNotBeat);
    let but = "the last value is better at `load` +1";
    assert!(worse.sentence.contains(but), "{}", worse.sentence);
}

#[test]
fn of_many_comparisons_the_interval_reaches_beyond_the_resamples() {
    let found = of_equals(30, &resampling(6));
    for gain in found.gains.iter().filter(|gain| gain.output.is_some()) {
        let (own, joint) = (gain.gain, gain.among_all.unwrap());
        // scipy.stats.norm.ppf(1 - 0.05 / 60) / norm.ppf(1 - 0.05 / 2)
        let by = 1.604_101;
        for [own, joint] in [[own.low, joint.low], [own.high, joint.high]] {
            let times = (joint - gain.gain.value) / (own - gain.gain.value);
            assert!((by - 1e-4..2.7).contains(&times), "{times} {gain:?}");
        }
    }
}

#[test]
fn a_gain_counts_only_where_its_interval_lies_above_zero() {
    let naive = noise(3, 600, 1.0);
    let half: Vec<f64> = naive.iter().map(|error| error / 2.0).collect();
    let better = measured(std::slice::from_ref(&half), &naive, 6);
    let gain = better.gain(Forecaster::LastValue, Some(0)).unwrap().gain;
    // Paired: every resample gives the same share.
    assert!((gain.low - 0.5).abs() < 1e-9 && (gain.high - 0.5).abs() < 1e-9, "{gain:?}");
    let said = forecast_verdict(&better);
    assert_eq!(said.outcome, Outcome::Beats);
    insta::assert_snapshot!(said.sentence, @"The model beats the last value: it errs 50.0 % less than the best baseline; its mean absolute error of `load` 1 step ahead is 0.389.");
    let equal = forecast_verdict(&measured(&[noise(4, 600, 1.0)], &naive, 6));
    assert_eq!(equal.outcome, Outcome::DoesNotBeat);
    insta::assert_snapshot!(equal.sentence, @"The model does not beat every baseline: no difference from the last value is shown; its mean absolute error of `load` 1 step ahead is 0.751.");
    let worse = forecast_verdict(&measured(&[noise(4, 600, 2.0)], &naive, 6));
    insta::assert_snapshot!(worse.sentence, @"The model does not beat every baseline: the last value is better; its mean absolute error of `load` 1 step ahead is 1.50.");
    let few = forecast_verdict(&measured(&[half], &naive, 40));
    assert_eq!(few.outcome, Outcome::TooFewWindows);
    insta::assert_snapshot!(few.sentence, @"Nothing is claimed: 600 test windows in blocks of 40 are as good as 15 independent ones, and 20 are needed; its mean absolute error of `load` 1 step ahead is 0.389.");
}

#[test]
fn of_what_nobody_measured_no_conclusion_is_drawn() {
    let (windows, width) = (600, 3);
    let lacking = |at: usize| at % width == 1;
    let truth: Vec<f64> = (0..windows * width)
        .map(|at| if lacking(at) { f64::NAN } else { (at as f64 / 7.0).sin() })
        .collect();
    let naive = noise(3, windows * width, 1.0);
    let said = |share: &dyn Fn(usize) -> f64, other: &[f64]| {
        let with = |errors: &dyn Fn(usize) -> f64| -> Vec<f64> {
            (0..truth.len()).map(|at| (at as f64 / 7.0).sin() + errors(at)).collect()
        };
        let forecasts = [
            Forecasts {
                forecaster: Forecaster::Model,
                runs: vec![with(&|at| share(at) * other[at])],
            },
            Forecasts { forecaster: Forecaster::LastValue, runs: vec![with(&|at| naive[at])] },
        ];
        let (outputs, scales) = (outputs(width), vec![2.0; truth.len()]);
        let data = ForecastData { outputs: &outputs, truth: &truth, scales: &scales };
        let found = evaluate_forecasts(&data, &forecasts, &resampling(6)).unwrap();
        assert_eq!((found.unmeasured(), found.unscaled()), (vec![1], vec![]));
        forecast_verdict(&found)
    };
    let better = said(&|_| 0.5, &naive);
    assert_eq!(better.outcome, Outcome::Beats);
    insta::assert_snapshot!(better.sentence, @"The model beats the last value at every horizon that was measured: it errs 50.0 % less than the best baseline; its mean absolute error of `load` over 2 horizons is 0.401; nothing is said of `load` +2, of which no test value was measured.");
    let equal = said(&|_| 1.0, &noise(4, windows * width, 1.0));
    assert_eq!(equal.outcome, Outcome::DoesNotBeat);
    let said = "no difference from the last value is shown everywhere; its";
    assert!(equal.sentence.contains(said), "{}", equal.sentence);
}

#[test]
fn a_baseline_that_is_better_is_told_of_in_few_windows_too() {
    let said = forecast_verdict(&measured(&[noise(4, 600, 2.0)], &noise(3, 600, 1.0), 40));
    assert_eq!(said.outcome, Outcome::DoesNotBeat);
    insta::assert_snapshot!(said.sentence, @"The model does not beat every baseline: the last value is better; its mean absolute error of `load` 1 step ahead is 1.50; 600 test windows in blocks of 40 are as good as 15 independent ones, and 20 are needed for a claim that it is better.");
    // One independent window is no plural.
    let one = forecast_verdict(&measured(&[noise(4, 600, 1.0)], &noise(4, 600, 1.0), 400));
    assert!(one.sentence.contains("as good as 1 independent one, and 20"), "{}", one.sentence);
}

#[test]
fn few_blocks_have_no_intervals_and_nothing_is_claimed_of_them() {
    // One block is all windows again, in every resample: an interval of no width would claim anything.
    for block in [600, 150, 121] {
        let worse = measured(&[noise(4, 600, 2.0)], &noise(3, 600, 1.0), block);
        assert!(!worse.has_intervals(), "{block}");
        let all = worse.scores.iter().flat_map(|of| [of.mae, of.rmse, of.r2, of.mase]);
        let mut all = all.chain(worse.gains.iter().map(|of| of.gain));
        assert!(all.all(|of| of.value.is_finite() && !of.has_interval()), "{block}");
        assert_eq!(forecast_verdict(&worse).outcome, Outcome::TooFewWindows, "{block}");
    }
    let enough = measured(&[noise(4, 600, 2.0)], &noise(3, 600, 1.0), 120);
    assert!(enough.has_intervals() && enough.gains.iter().all(|of| of.gain.has_interval()));
    assert_eq!(enough.no_intervals(), None);
    assert_eq!(forecast_verdict(&enough).outcome, Outcome::DoesNotBeat);
}

#[test]
fn a_large_series_does_not_decide_for_small_ones() {
    // Of eight series one is 300 times larger, of which the model errs a third; of the others it errs ten times as much.
    let windows = 1600;
    let size = |at: usize| if at.is_multiple_of(8) { 300.0 } else { 1.0 };
    let errors = noise(5, windows, 1.0);
    let truth: Vec<f64> = (0..windows).map(|at| 10.0 * size(at) + (at as f64).sin()).collect();
    let with = |factor: &dyn Fn(usize) -> f64| -> Vec<f64> {
        (0..windows).map(|at| truth[at] + factor(at) * size(at) * errors[at]).collect()
    };
    let model = with(&|at| if at.is_multiple_of(8) { 1.0 / 3.0 } else { 10.0 });
    let forecasts = [
        Forecasts { forecaster: Forecaster::Model, runs: vec![model] },
        Forecasts { forecaster: Forecaster::LastValue, runs: vec![with(&|_| 1.0)] },
    ];
    let outputs = outputs(1);
    let of = |scales: Vec<f64>| {
        let data = ForecastData { outputs: &outputs, truth: &truth, scales: &scales };
        evaluate_forecasts(&data, &forecasts, &resampling(8)).unwrap()
    };
    let own = of((0..windows).map(size).collect());
    assert!(own.by_scale);
    let said = forecast_verdict(&own);
    assert_eq!(said.outcome, Outcome::DoesNotBeat);
    assert!(said.sentence.contains("scaled error of `load` 1 step ahead is"), "{}", said.sentence);
    assert!(said.sentence.contains("series are of unlike size"), "{}", said.sentence);
    assert!(own.main_score().unwrap().metric.starts_with("mean absolute scaled error of load"));
    // By the errors themselves the large one decides: so it is where one has no scale.
    for other in [
        vec![1.0; windows],
        (0..windows).map(|at| if at == 3 { f64::NAN } else { size(at) }).collect(),
    ] {
        let pooled = of(other);
        assert!(!pooled.by_scale);
        assert_eq!(forecast_verdict(&pooled).outcome, Outcome::Beats);
    }
    // Series within ten times of each other are pooled.
    assert!(!of((0..windows).map(|at| 1.0 + (at % 8) as f64).collect()).by_scale);
}

#[test]
fn blocks_are_told_by_what_they_are() {
    let check = |block: usize, block_of: BlockOf, expected: &str| {
        let errors = noise(4, 600, 1.0);
        let found = ForecastEvaluation {
            block_of,
            ..measured(std::slice::from_ref(&errors), &errors, block)
        };
        assert_eq!(found.worth(), expected);
        // A run's figures are read back.
        let read: ForecastEvaluation =
            serde_json::from_str(&serde_json::to_string(&found).unwrap()).unwrap();
        assert_eq!((read.block_of, read.worth()), (block_of, found.worth()));
    };
    let season = BlockOf::Season(1440);
    check(1, BlockOf::Overlap, "there are 600 test windows");
    check(
        40,
        BlockOf::Setting,
        "600 test windows in blocks of 40 are as good as 15 independent ones",
    );
    check(
        40,
        BlockOf::Overlap,
        "600 test windows that overlap in blocks of 40 are as good as 15 independent ones",
    );
    check(
        240,
        season,
        "600 test windows in blocks of 240, a season of 1,440 steps each, are as good as 2 independent ones",
    );
    check(
        720,
        season,
        "600 test windows within a season of 1,440 steps are as good as 1 independent one",
    );
    check(
        600,
        BlockOf::Overlap,
        "600 test windows that all overlap are as good as 1 independent one",
    );
}

#[test]
fn a_baseline_without_an_error_is_better_than_any_model_that_has_one() {
    // Without one at all, and in all but some windows.
    for wrong in [0, 3] {
        let naive: Vec<f64> = (0..600).map(|at| if at < wrong { 1e-3 } else { 0.0 }).collect();
        let evaluation = measured(&[noise(4, 600, 0.1)], &naive, 6);
        let said = forecast_verdict(&evaluation);
        assert_eq!(said.outcome, Outcome::DoesNotBeat);
        assert!(said.sentence.contains("the last value is better"), "{}", said.sentence);
    }
    let both = forecast_verdict(&measured(&[vec![0.0; 600]], &[0.0; 600], 6));
    assert_eq!(both.outcome, Outcome::DoesNotBeat);
    assert!(
        both.sentence.contains("no difference from the last value is shown"),
        "{}",
        both.sentence
    );
}

/// Two targets one step ahead, the second without a scale, where the model errs `second` times what the
/// last value does.
fn second_without_a_scale(second: f64, scale: f64) -> ForecastEvaluation {
    let windows = 600;
    let errors = noise(3, 2 * windows, 1.0);
    let truth: Vec<f64> = (0..2 * windows).map(|at| (at as f64 / 7.0).sin()).collect();
    let own =
        |at: usize, error: f64| if at.is_multiple_of(2) { 0.5 * error } else { second * error };
    let forecast = |of: &dyn Fn(usize, f64) -> f64| -> Vec<f64> {
        let each = truth.iter().zip(&errors).enumerate();
        each.map(|(at, (truth, error))| truth + of(at, *error)).collect()
    };
    let forecasts = [
        Forecasts { forecaster: Forecaster::Model, runs: vec![forecast(&own)] },
        Forecasts { forecaster: Forecaster::LastValue, runs: vec![forecast(&|_, error| error)] },
    ];
    let outputs =
        ["load", "still"].map(|target| ForecastOutput { target: target.to_owned(), horizon: 1 });
    let scales = [scale, f64::NAN].repeat(windows);
    let data = ForecastData { outputs: &outputs, truth: &truth, scales: &scales };
    evaluate_forecasts(&data, &forecasts, &resampling(6)).unwrap()
}

#[test]
fn an_output_without_a_scale_is_not_left_out_of_the_verdict() {
    let both = second_without_a_scale(0.5, 2.0);
    assert_eq!(both.unscaled(), [1]);
    // A run's figures are read back from text, which has no number for what is not finite.
    let read: ForecastEvaluation =
        serde_json::from_str(&serde_json::to_string(&both).unwrap()).unwrap();
    let told = read.main_score().unwrap();
    assert_eq!(told.metric, "mean absolute scaled error over 1 of 2 targets and horizons");
    assert_eq!(told, both.main_score().unwrap());
    let said = forecast_verdict(&both);
    assert_eq!(said.outcome, Outcome::Beats);
    insta::assert_snapshot!(said.sentence, @"The model beats the last value at every target and horizon: it errs 50.0 % less than the best baseline; its mean absolute scaled error over 1 of 2 targets and horizons is 0.191 (`still` +1 has no scaled error: training windows cover no two of its values a season apart, or these never differ).");
    let open = forecast_verdict(&second_without_a_scale(1.0, 2.0));
    assert_eq!(open.outcome, Outcome::DoesNotBeat);
    insta::assert_snapshot!(open.sentence, @"The model does not beat every baseline: no difference from the last value is shown at `still` +1; its mean absolute scaled error over 1 of 2 targets and horizons is 0.191 (`still` +1 has no scaled error: training windows cover no two of its values a season apart, or these never differ).");
    // Where none has one, each counts by itself.
    let none = forecast_verdict(&second_without_a_scale(0.6, f64::NAN));
    assert_eq!(none.outcome, Outcome::Beats);
    insta::assert_snapshot!(none.sentence, @"The model beats the last value at every target and horizon: it errs 40.0 % less than the best baseline where it gains least; no target has a scaled error: training windows cover no two of its values a season apart, or these never differ.");
    let worse = forecast_verdict(&second_without_a_scale(2.0, f64::NAN));
    assert_eq!(worse.outcome, Outcome::DoesNotBeat);
}

#[test]
fn a_constant_truth_has_no_share_of_variance() {
    // The mean of many times 0.1 is not 0.1.
    let windows = 300;
    let truth: Vec<f64> =
        (0..2 * windows).map(|at| if at % 2 == 0 { (at as f64).sin() } else { 0.1 }).collect();
    let run: Vec<f64> = truth.iter().zip(noise(9, 600, 0.1)).map(|(a, b)| a + b).collect();
    let forecasts = [Forecasts { forecaster: Forecaster::Model, runs: vec![run.clone()] }];
    let outputs =
        ["wave", "still"].map(|target| ForecastOutput { target: target.to_owned(), horizon: 1 });
    let data = ForecastData { outputs: &outputs, truth: &truth, scales: &vec![1.0; 600] };
    let found = evaluate_forecasts(&data, &forecasts, &resampling(6)).unwrap();
    let r2 = |output| found.score(Forecaster::Model, output).unwrap().r2;
    assert!(r2(Some(1)).value.is_nan(), "{:?}", r2(Some(1)));
    assert!(r2(Some(0)).value > 0.9 && r2(Some(0)) == r2(None), "{:?}", r2(None));
    assert!((mean_r2(&truth, &run, 2) - r2(None).value).abs() < 1e-9);
}

#[test]
fn seeds_widen_the_interval_too() {
    let naive = noise(5, 400, 1.0);
    let runs: Vec<Vec<f64>> =
        [0.5, 0.8, 1.1].map(|size| naive.iter().map(|error| error * size).collect()).to_vec();
    let several = measured(&runs, &naive, 1);
    let one = measured(&runs[1..2], &naive, 1);
    let gain = |found: &ForecastEvaluation| found.gain(Forecaster::LastValue, None).unwrap().gain;
    assert!((gain(&several).value - 0.2).abs() < 1e-9 && (gain(&one).value - 0.2).abs() < 1e-9);
    assert!(gain(&several).high - gain(&several).low > 0.2, "{:?}", gain(&several));
    assert!(gain(&one).high - gain(&one).low < 1e-9);
    assert_eq!(several.score(Forecaster::Model, Some(0)).unwrap().runs.len(), 3);
    let told = several.main_score().unwrap();
    assert_eq!(
        (told.metric.as_str(), told.is_share),
        ("mean absolute error of load 1 step ahead", false)
    );
    assert_eq!(told.estimate, several.score(Forecaster::Model, None).unwrap().mae);
}

#[test]
fn forecasts_that_are_no_numbers_are_refused() {
    let truth = [1.0, 2.0];
    let forecasts = [Forecasts { forecaster: Forecaster::Model, runs: vec![vec![1.0, f64::NAN]] }];
    let outputs = outputs(1);
    let data = ForecastData { outputs: &outputs, truth: &truth, scales: &[1.0; 2] };
    let error = evaluate_forecasts(&data, &forecasts, &resampling(1)).unwrap_err();
    assert_eq!(error.to_string(), "the forecast of test window 1 by the model is NaN");
    let data = ForecastData { outputs: &outputs, truth: &[], scales: &[] };
    assert!(evaluate_forecasts(&data, &[], &resampling(1)).is_err());
}
