//! Distributions of the augmentations, and the order of prices.

use firebox_core::{Jitter, Role, Scaling, Stream, TimeWarp, VolatilityScaling};
use proptest::prelude::*;

use super::*;

const OHLC: [Role; 4] = [Role::Open, Role::High, Role::Low, Role::Close];

fn channels(roles: &[Role]) -> Vec<Channel> {
    roles.iter().enumerate().map(|(i, role)| Channel::new(format!("c{i}"), *role)).collect()
}

/// No augmentation but those that `edit` switches on.
fn only(edit: impl FnOnce(&mut Augmentation)) -> Augmentation {
    let mut settings = Augmentation {
        jitter: Jitter { probability: 0.0, ..Jitter::default() },
        scaling: Scaling { probability: 0.0, ..Scaling::default() },
        time_warp: TimeWarp { probability: 0.0, ..TimeWarp::default() },
        volatility_scaling: VolatilityScaling { probability: 0.0, ..VolatilityScaling::default() },
        ..Augmentation::default()
    };
    edit(&mut settings);
    settings
}

/// A random walk of bars, as `[time, channel]` in the order of `OHLC`.
fn bars(steps: usize, seed: u64) -> Vec<f32> {
    let mut draws = Stream::new(seed, "bars").draws();
    let mut close = 0.0;
    (0..steps)
        .flat_map(|_| {
            let open = close;
            close += draws.normal();
            let high = open.max(close) + draws.normal().abs() * 0.5;
            let low = open.min(close) - draws.normal().abs() * 0.5;
            [open as f32, high as f32, low as f32, close as f32]
        })
        .collect()
}

fn versions(
    settings: &Augmentation,
    roles: &[Role],
    values: &[f32],
    mut each: impl FnMut(Applied, &[f32]),
) {
    let mut augmenter = Augmenter::new(settings, &channels(roles), 11).unwrap();
    let mut out = vec![0.0; values.len()];
    for window in 0..40 {
        augmenter.load(window, values, PriceScale::SHARED);
        for version in 1..=50 {
            let applied = augmenter.version(version, &mut out);
            each(applied, &out);
        }
    }
}

#[test]
fn version_zero_is_the_original_and_each_version_is_different() {
    let values = bars(30, 1);
    let settings = only(|a| a.jitter.probability = 1.0);
    let mut augmenter = Augmenter::new(&settings, &channels(&OHLC), 3).unwrap();
    augmenter.load(9, &values, PriceScale::SHARED);
    let mut made = vec![vec![0.0; values.len()]; 4];
    for (version, out) in made.iter_mut().enumerate() {
        let applied = augmenter.version(version as u32, out);
        assert_eq!(applied.jitter, version > 0);
    }
    assert_eq!(made[0], values);
    assert!((1..4).all(|a| (0..a).all(|b| made[a] != made[b])));
    // Another window or seed, other noise; the same ones, the same noise.
    let mut again = vec![0.0; values.len()];
    augmenter.version(2, &mut again);
    assert_eq!(again, made[2]);
    augmenter.load(10, &values, PriceScale::SHARED);
    augmenter.version(2, &mut again);
    assert_ne!(again, made[2]);
}

#[test]
fn coins_fall_as_often_as_they_should_and_independently() {
    let settings = Augmentation::default();
    let (mut counts, mut both, mut total) = ([0.0; 4], 0.0, 0.0);
    versions(&settings, &OHLC, &bars(8, 1), |applied, _| {
        let Applied { jitter, scaling, time_warp, volatility_scaling } = applied;
        for (count, hit) in counts.iter_mut().zip([jitter, scaling, time_warp, volatility_scaling])
        {
            *count += f64::from(u8::from(hit));
        }
        both += f64::from(u8::from(jitter && time_warp));
        total += 1.0;
    });
    for (count, expected) in counts.into_iter().zip([0.5, 0.3, 0.5, 0.3]) {
        // Four standard errors of 2,000 coins.
        assert!((count / total - expected).abs() < 0.045, "{counts:?}");
    }
    assert!((both / total - 0.25).abs() < 0.04);
}

#[test]
fn jitter_is_normal_with_a_share_of_each_channels_deviation() {
    let settings = only(|a| a.jitter = Jitter { probability: 1.0, sigma: 0.05 });
    // Two unordered channels with deviations 2 and 0.5 around different means.
    let values: Vec<f32> = (0..100)
        .flat_map(|i| {
            let sign = if i % 2 == 0 { 1.0 } else { -1.0 };
            [10.0 + 2.0 * sign, -3.0 + 0.5 * sign]
        })
        .collect();
    let mut noise = [Vec::new(), Vec::new()];
    versions(&settings, &[Role::Other; 2], &values, |_, out| {
        for (step, (now, before)) in
            out.chunks_exact(2).zip(values.chunks_exact(2)).enumerate().step_by(7)
        {
            assert!(step < 100);
            noise[0].push(f64::from(now[0] - before[0]) / (0.05 * 2.0));
            noise[1].push(f64::from(now[1] - before[1]) / (0.05 * 0.5));
        }
    });
    for z in noise {
        let n = z.len() as f64;
        let moment = |k| z.iter().map(|z| z.powi(k)).sum::<f64>() / n;
        assert!(moment(1).abs() < 0.03, "{}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.04, "{}", moment(2));
        assert!((moment(4) - 3.0).abs() < 0.3, "{}", moment(4));
    }
}

#[test]
fn scaling_is_one_normal_factor_for_the_window() {
    let settings = only(|a| a.scaling = Scaling { probability: 1.0, sigma: 0.1 });
    let values = bars(20, 4);
    let mut factors = Vec::new();
    versions(&settings, &OHLC, &values, |_, out| {
        let factor = f64::from(out[5] / values[5]);
        for (now, before) in out.iter().zip(&values) {
            assert!((f64::from(*now) - factor * f64::from(*before)).abs() < 1e-5);
        }
        factors.push((factor - 1.0) / 0.1);
    });
    let n = factors.len() as f64;
    let moment = |k| factors.iter().map(|z: &f64| z.powi(k)).sum::<f64>() / n;
    assert!(
        moment(1).abs() < 0.09 && (moment(2) - 1.0).abs() < 0.13,
        "{} {}",
        moment(1),
        moment(2)
    );
}

#[test]
fn a_warped_ramp_shows_an_increasing_map_onto_itself() {
    let settings = only(|a| a.time_warp = TimeWarp { probability: 1.0, sigma: 0.12, knots: 6 });
    let steps = 105;
    let ramp: Vec<f32> = (0..steps).map(|t| t as f32).collect();
    let (mut middle, mut count) = (Vec::new(), 0.0);
    versions(&settings, &[Role::Other], &ramp, |_, out| {
        assert_eq!((out[0], out[steps - 1]), (0.0, (steps - 1) as f32));
        let speeds: Vec<f32> = out.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(speeds.iter().all(|speed| *speed > 0.0));
        // Smooth: between two steps the speed changes by no more than the steepest piece allows.
        assert!(speeds.windows(2).all(|pair| (pair[1] - pair[0]).abs() < 0.06), "{speeds:?}");
        middle.push(f64::from(out[steps / 2] - (steps / 2) as f32));
        count += 1.0;
    });
    let mean = middle.iter().sum::<f64>() / count;
    let spread = (middle.iter().map(|m| m * m).sum::<f64>() / count).sqrt();
    // Twice half the window, T/2 · (a − b) / (a + b) for the mean speeds a and b of its halves:
    // weights ½, 1, ¾ | ¼ … of the knots give a deviation of 0.12 · 104 · 0.5 · √(2 · …) ≈ 2.1.
    assert!(mean.abs() < 0.25, "{mean}");
    assert!((1.6..2.6).contains(&spread), "{spread}");
}

#[test]
fn a_warp_with_equal_speeds_changes_nothing_and_one_step_stays() {
    let settings = only(|a| a.time_warp = TimeWarp { probability: 1.0, sigma: 0.0, knots: 9 });
    let values = bars(50, 2);
    versions(&settings, &OHLC, &values, |applied, out| {
        assert!(applied.time_warp);
        assert!(out.iter().zip(&values).all(|(a, b)| (a - b).abs() < 1e-4));
    });
    let settings = only(|a| a.time_warp = TimeWarp { probability: 1.0, sigma: 0.5, knots: 2 });
    versions(&settings, &OHLC, &values[..4], |_, out| assert_eq!(out, &values[..4]));
}

#[test]
fn a_warp_agrees_with_its_integral_in_f64() {
    // Independent of the running sum: integrate the piecewise linear speed by Simpson's rule, which
    // is exact for it when no step of the rule crosses a knot.
    let check = |speeds: &[f64], steps: usize| {
        let values: Vec<f32> = (0..steps).map(|t| (t as f32 * 0.7).sin()).collect();
        let mut out = vec![0.0; steps];
        let mut times = Vec::new();
        warped_times(speeds, steps, &mut times);
        interpolate::<0>(&values, 1, &times, &mut out);
        let pieces = speeds.len() - 1;
        let speed = |knot: f64| {
            let piece = (knot as usize).min(pieces - 1);
            speeds[piece] + (speeds[piece + 1] - speeds[piece]) * (knot - piece as f64)
        };
        let integral = |to: f64| -> f64 {
            (0..pieces)
                .map(|piece| (piece as f64, (piece as f64 + 1.0).min(to)))
                .filter(|(from, until)| until > from)
                .map(|(from, until)| {
                    let inside = until - (until - from) * 1e-12;
                    let middle = 0.5 * (from + until);
                    (until - from) / 6.0 * (speed(from) + 4.0 * speed(middle) + speed(inside))
                })
                .sum()
        };
        let last = (steps - 1) as f64;
        for (step, found) in out.iter().enumerate() {
            let knot = step as f64 / last * pieces as f64;
            let time = integral(knot) / integral(pieces as f64) * last;
            let from = (time as usize).min(steps - 2);
            let (a, b) = (f64::from(values[from]), f64::from(values[from + 1]));
            let expected = a + (time - from as f64) * (b - a);
            assert!((times[step] - time).abs() < 1e-9 * last, "{speeds:?} {steps} {step}");
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{speeds:?} {steps} {step}");
        }
    };
    check(&[1.0, 2.0], 7);
    check(&[0.5, 1.5, 0.1, 1.0, 1.2, 0.9], 105);
    check(&[1.0, 0.1, 3.0, 0.7, 1.0, 2.0, 0.3, 0.4, 1.1], 5);
}

#[test]
fn volatility_scaling_stretches_each_bar_around_its_middle() {
    let range = VolatilityScaling { probability: 1.0, low: 0.85, high: 1.15 };
    let settings = only(|a| a.volatility_scaling = range);
    let values = bars(20, 5);
    let mut factors = Vec::new();
    versions(&settings, &OHLC, &values, |_, out| {
        let spread = |bar: &[f32]| f64::from(bar[1] - bar[2]);
        let factor = spread(&out[40..44]) / spread(&values[40..44]);
        for (now, before) in out.chunks_exact(4).zip(values.chunks_exact(4)) {
            let middle = 0.5 * f64::from(before[1] + before[2]);
            for (now, before) in now.iter().zip(before) {
                let expected = middle + factor * (f64::from(*before) - middle);
                assert!((f64::from(*now) - expected).abs() < 1e-4);
            }
        }
        factors.push(factor);
    });
    let n = factors.len() as f64;
    let mean = factors.iter().sum::<f64>() / n;
    let variance = factors.iter().map(|f| (f - mean).powi(2)).sum::<f64>() / n;
    assert!(factors.iter().all(|f| (0.8499..1.1501).contains(f)));
    assert!((mean - 1.0).abs() < 0.008 && (variance - 0.3f64.powi(2) / 12.0).abs() < 0.0006);
    // Without a low, or without any price, there is no middle.
    for roles in [[Role::Open, Role::High, Role::Other, Role::Close], [Role::Other; 4]] {
        versions(&settings, &roles, &values, |applied, out| {
            assert!(!applied.volatility_scaling);
            assert_eq!(out, values);
        });
    }
}

proptest! {
    /// High ≥ every price ≥ low, whatever the parameters, for bars in and out of order.
    #[test]
    fn bars_stay_in_order(
        values in prop::collection::vec(-5.0f32..5.0, 4..200),
        seed: u64,
        sigma in 0.0f64..2.0,
        stretch in 0.1f64..3.0,
        knots in 2usize..9,
    ) {
        let values = &values[..values.len() / 4 * 4];
        let settings = Augmentation {
            jitter: Jitter { probability: 0.7, sigma },
            scaling: Scaling { probability: 0.7, sigma },
            time_warp: TimeWarp { probability: 0.7, sigma, knots },
            volatility_scaling: VolatilityScaling { probability: 0.7, low: 0.1, high: stretch },
            ..Augmentation::default()
        };
        let mut augmenter = Augmenter::new(&settings, &channels(&OHLC), seed).unwrap();
        augmenter.load(0, values, PriceScale::SHARED);
        let mut out = vec![0.0; values.len()];
        for version in 1..8 {
            let applied = augmenter.version(version, &mut out);
            if applied == Applied::default() {
                continue;
            }
            for bar in out.chunks_exact(4) {
                let [open, high, low, close] = [bar[0], bar[1], bar[2], bar[3]];
                prop_assert!(high >= open.max(close).max(low) && low <= open.min(close), "{bar:?}");
            }
            prop_assert!(out.iter().all(|value| value.is_finite()));
        }
    }
}
