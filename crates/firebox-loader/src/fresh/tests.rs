//! Versions drawn on a device against those of the host's augmenter, and their distribution.

use std::sync::Arc;

use burn::tensor::Device;
use firebox_core::{
    Augmentation, Channel, Jitter, Labels, Normalisation, Normaliser, Role, Scaling, Series,
    SeriesSet, SplitRule, Stream, TimeWarp, TrainWindows, VolatilityScaling, WindowRule, split,
};

use crate::{AugmentedWindows, Source, TrainResident, bytes_of};

const OHLC: [Role; 4] = [Role::Open, Role::High, Role::Low, Role::Close];

/// Training windows of series of these numbers of steps, whole series if `length` is 0. A channel is a
/// random walk of its own around 100; prices are out of order as often as not.
fn windows(roles: &[Role], steps: &[usize], length: usize) -> TrainWindows {
    let mut draws = Stream::new(steps.len() as u64, "walks").draws();
    let series = steps.iter().enumerate().map(|(number, steps)| {
        let mut at = vec![100.0; roles.len()];
        let values = (0..steps * roles.len()).map(|place| {
            let channel = place % roles.len();
            at[channel] += draws.normal();
            at[channel]
        });
        Series::regular(format!("s{number:03}"), 0, 60_000_000, values.collect(), roles.len())
    });
    let channels =
        roles.iter().enumerate().map(|(i, role)| Channel::new(format!("c{i}"), *role)).collect();
    let set = Arc::new(SeriesSet::new(channels, vec![], series.collect()).unwrap());
    let (whole, length) = (length == 0, if length == 0 { 256 } else { length });
    let rule = WindowRule { length, stride: 3, whole };
    let parts = split(
        &set,
        &rule,
        &SplitRule::Series { validation: 0.0, test: 0.1, seed: 1 },
        &Labels::None,
    );
    parts.unwrap().train
}

fn source(
    windows: &TrainWindows,
    normalise: Normalisation,
    settings: &Augmentation,
) -> AugmentedWindows {
    let normaliser = Normaliser::fit(normalise, windows).unwrap();
    AugmentedWindows::new(windows.clone(), normaliser, settings, 7).unwrap()
}

/// Everything falls for most versions, and far.
fn wild(versions: u32, knots: usize) -> Augmentation {
    Augmentation {
        versions,
        jitter: Jitter { probability: 0.7, sigma: 0.3 },
        scaling: Scaling { probability: 0.7, sigma: 0.8 },
        time_warp: TimeWarp { probability: 0.7, sigma: 0.4, knots },
        volatility_scaling: VolatilityScaling { probability: 0.7, low: 0.3, high: 2.5 },
        ..Augmentation::default()
    }
}

/// One batch of an epoch on the device, row by row.
fn on_device(set: &TrainResident, epoch: u64, indices: &[usize], steps: usize) -> Vec<Vec<f32>> {
    let [_, channels] = set.shape();
    let batch = set.select(epoch, indices, steps, &Device::default()).unwrap();
    assert_eq!(batch.dims(), [indices.len(), steps, channels]);
    let values = batch.into_data().try_to_vec::<f32>().unwrap();
    let width = (steps * channels).max(1);
    let mut rows: Vec<Vec<f32>> = values.chunks(width).map(<[f32]>::to_vec).collect();
    rows.resize(indices.len(), vec![]);
    rows
}

fn on_host(source: &AugmentedWindows, epoch: u64, index: usize) -> Vec<f32> {
    let [time, channels] = source.shape();
    let mut out = vec![0.0; time * channels];
    source.draw(epoch, index, &mut out).unwrap();
    out
}

/// Every version of some epochs on both, and how many differ from their original.
fn check(
    roles: &[Role],
    steps: &[usize],
    length: usize,
    normalise: Normalisation,
    settings: &Augmentation,
) -> usize {
    let windows = windows(roles, steps, length);
    let source = source(&windows, normalise, settings);
    let set = TrainResident::upload(&source, &Device::default()).unwrap();
    let ([time, channels], what) = (source.shape(), format!("{roles:?} {length} {normalise:?}"));
    assert_eq!((set.len(), set.shape()), (source.len(), source.shape()));
    // Originals alone, or the steps that they share.
    assert_eq!(set.bytes(), bytes_of(source.originals()));
    assert!(set.bytes() <= (windows.len() * time * channels * 4) as u64);
    let (slots, mut changed) = (settings.versions as usize + 1, 0);
    for epoch in [0, 5] {
        let indices: Vec<usize> = (0..source.len()).rev().collect();
        let rows = on_device(&set, epoch, &indices, time);
        for (index, ours) in indices.iter().zip(rows) {
            let expected = on_host(&source, epoch, *index);
            let norm =
                |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
            let error = norm(&mut ours.iter().zip(&expected).map(|(a, b)| f64::from(a - b)));
            let size = norm(&mut expected.iter().map(|x| f64::from(*x)));
            assert!(error <= 1e-5 * size, "{what}: {index} is off by {:.2e}", error / size);
            let valid = source.length(*index) * channels;
            assert!(ours[valid..].iter().all(|value| *value == 0.0), "{what}: padding of {index}");
            let original = on_host(&source, epoch, index / slots * slots);
            if index % slots == 0 {
                assert_eq!(ours, original, "{what}: an original keeps every bit");
            }
            changed += usize::from(ours != original);
        }
    }
    changed
}

#[test]
fn versions_are_those_of_the_host_to_rounding() {
    use Normalisation::{Robust, Standard, WindowRelative, WindowStandard};
    use Role::{Close, High, Low, Open, Other};
    let steps = [60, 41, 57, 90, 33, 70, 45, 52];
    let layouts: [&[Role]; 8] = [
        &OHLC,
        &[Other],
        &[Close, Other, Low, High, Other, Open, Other],
        &[High, Close],
        &[Low, Other, Open],
        &[Low, High],
        &[Other; 3],
        &[High, Low, Open, Close],
    ];
    for (place, roles) in layouts.into_iter().enumerate() {
        for normalise in [WindowRelative, Standard, Robust, WindowStandard] {
            // The scale of window-relative prices is the first close's.
            if normalise == WindowRelative && !roles.contains(&Close) {
                continue;
            }
            let changed = check(roles, &steps, 17, normalise, &wild(3, 2 + place));
            assert!(changed > 100, "{roles:?}: {changed}");
        }
    }
}

#[test]
fn windows_of_any_length_are_padded_with_zeros() {
    for normalise in [Normalisation::WindowRelative, Normalisation::Standard] {
        // Whole series, of one step and two among them.
        let steps = [31, 1, 2, 64, 3, 17, 1, 5, 40, 2, 9, 33];
        assert!(check(&OHLC, &steps, 0, normalise, &wild(4, 6)) > 30);
        assert!(check(&[Role::Other; 2], &steps, 0, normalise, &wild(4, 9)) > 30);
    }
    // One step in every window, and one channel.
    check(&[Role::Close], &[9; 12], 1, Normalisation::None, &wild(2, 3));
}

#[test]
fn no_versions_and_no_probability_leave_originals() {
    let steps = [40; 6];
    let never = |versions| Augmentation {
        versions,
        jitter: Jitter { probability: 0.0, ..Jitter::default() },
        scaling: Scaling { probability: 0.0, ..Scaling::default() },
        time_warp: TimeWarp { probability: 0.0, ..TimeWarp::default() },
        volatility_scaling: VolatilityScaling { probability: 0.0, ..VolatilityScaling::default() },
        ..Augmentation::default()
    };
    assert_eq!(check(&OHLC, &steps, 16, Normalisation::WindowRelative, &never(2)), 0);
    let none = source(&windows(&OHLC, &steps, 16), Normalisation::WindowRelative, &wild(0, 6));
    let set = TrainResident::upload(&none, &Device::default()).unwrap();
    assert!(!none.varies() && !set.varies());
    assert_eq!(on_device(&set, 3, &[0], 16)[0], on_host(&none, 0, 0));
}

#[test]
fn a_version_does_not_depend_on_the_batch_it_is_in() {
    let windows = windows(&OHLC, &[80, 33, 47, 62, 71, 58], 20);
    let source = source(&windows, Normalisation::WindowStandard, &wild(3, 6));
    let set = TrainResident::upload(&source, &Device::default()).unwrap();
    let all: Vec<usize> = (0..source.len()).collect();
    let rows = on_device(&set, 2, &all, 20);
    // Alone, among others, twice in a batch, with originals only beside it.
    for index in [1, 7, 30, 41] {
        assert_eq!(on_device(&set, 2, &[index], 20)[0], rows[index]);
        let mixed = on_device(&set, 2, &[0, index, 4, index, 8], 20);
        assert!(mixed[1] == rows[index] && mixed[3] == rows[index] && mixed[0] == rows[0]);
    }
    // Of a set of some of the windows, the same versions.
    let some: Vec<usize> = (0..windows.len()).step_by(3).collect();
    let slots = 4;
    let part = TrainResident::upload(&source.only(some.clone()), &Device::default()).unwrap();
    assert_eq!(part.len(), some.len() * slots);
    let all: Vec<usize> = (0..part.len()).collect();
    for (index, row) in on_device(&part, 2, &all, 20).into_iter().enumerate() {
        assert_eq!(row, rows[some[index / slots] * slots + index % slots]);
    }
    // Another epoch, other versions.
    let other = on_device(&set, 3, &[1, 2, 3], 20);
    assert!((0..3).filter(|at| other[*at] != rows[at + 1]).count() > 1);
}

/// Largest distance between the empirical distribution of the values and a distribution (Kolmogorov and
/// Smirnov), times the root of their number. Above 1.95 with a probability of 1 in 1,000.
fn distance(mut values: Vec<f64>, distribution: impl Fn(f64) -> f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len() as f64;
    let largest = values.iter().enumerate().fold(0.0_f64, |largest, (i, x)| {
        let f = distribution(*x);
        largest.max((f - i as f64 / n).abs()).max(((i + 1) as f64 / n - f).abs())
    });
    largest * n.sqrt()
}

/// By numerical integration (Simpson) from zero.
fn normal(x: f64) -> f64 {
    let (steps, density) = (200, |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt());
    let h = x / f64::from(steps);
    let inner: f64 =
        (1..steps).map(|i| density(h * f64::from(i)) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    0.5 + h / 3.0 * (density(0.0) + inner + density(x))
}

/// All rows of some epochs on the device with one augmentation, beside their originals.
fn drawn(
    roles: &[Role],
    normalise: Normalisation,
    edit: impl FnOnce(&mut Augmentation),
) -> Vec<(Vec<f32>, Vec<f32>)> {
    let mut settings = Augmentation {
        versions: 4,
        jitter: Jitter { probability: 0.0, ..Jitter::default() },
        scaling: Scaling { probability: 0.0, ..Scaling::default() },
        time_warp: TimeWarp { probability: 0.0, ..TimeWarp::default() },
        volatility_scaling: VolatilityScaling { probability: 0.0, ..VolatilityScaling::default() },
        ..Augmentation::default()
    };
    edit(&mut settings);
    let windows = windows(roles, &[105; 10], 24);
    let source = source(&windows, normalise, &settings);
    let set = TrainResident::upload(&source, &Device::default()).unwrap();
    let versions: Vec<usize> = (0..set.len()).filter(|index| index % 5 > 0).collect();
    let originals: Vec<usize> = versions.iter().map(|index| index - index % 5).collect();
    let rows = (0..4).flat_map(|epoch| {
        let rows = on_device(&set, epoch, &versions, 24);
        rows.into_iter().zip(on_device(&set, epoch, &originals, 24))
    });
    rows.collect()
}

#[test]
fn what_the_device_draws_has_the_distributions_of_the_settings() {
    let own = Normalisation::WindowStandard;
    let rows =
        drawn(&[Role::Other; 2], own, |a| a.jitter = Jitter { probability: 0.5, sigma: 0.1 });
    let share = |rows: &[(Vec<f32>, Vec<f32>)]| {
        rows.iter().filter(|(row, original)| row != original).count() as f64 / rows.len() as f64
    };
    // Five standard errors of some 2,000 coins.
    assert!(rows.len() > 2000 && (share(&rows) - 0.5).abs() < 0.055, "{}", share(&rows));
    let hit = rows.iter().filter(|(row, original)| row != original);
    // Windows are normalised to a deviation of one.
    let noise: Vec<f64> = hit
        .flat_map(|(row, original)| row.iter().zip(original).map(|(a, b)| f64::from(a - b) / 0.1))
        .collect();
    let n = noise.len() as f64;
    let moment = |power| noise.iter().map(|z| z.powi(power)).sum::<f64>() / n;
    assert!(moment(1).abs() < 0.02 && (moment(2) - 1.0).abs() < 0.03, "{}", moment(2));
    assert!((moment(4) - 3.0).abs() < 0.2, "{}", moment(4));
    assert!(distance(noise, normal) < 1.95);

    let rows =
        drawn(&[Role::Other; 2], own, |a| a.scaling = Scaling { probability: 1.0, sigma: 0.1 });
    let factor = |(row, original): &(Vec<f32>, Vec<f32>)| {
        let place = (0..row.len()).max_by(|a, b| original[*a].abs().total_cmp(&original[*b].abs()));
        f64::from(row[place.unwrap()] / original[place.unwrap()])
    };
    let factors = rows.iter().map(|row| (factor(row) - 1.0) / 0.1).collect();
    assert!(distance(factors, normal) < 1.95);

    // A factor of distances from the middle is that of a bar's spread, whatever the order was before.
    let range = VolatilityScaling { probability: 1.0, low: 0.8, high: 1.4 };
    let rows =
        drawn(&[Role::High, Role::Low], Normalisation::None, |a| a.volatility_scaling = range);
    let spread = |(row, original): &(Vec<f32>, Vec<f32>)| {
        f64::from((row[0] - row[1]).abs() / (original[0] - original[1]).abs())
    };
    let factors = rows.iter().map(|row| (spread(row) - 0.8) / 0.6).collect();
    assert!(distance(factors, |x| x.clamp(0.0, 1.0)) < 1.95);

    // Time that is warped keeps its ends and reads between neighbours.
    let rows = drawn(&[Role::Other], own, |a| a.time_warp.probability = 0.5);
    assert!((share(&rows) - 0.5).abs() < 0.055, "{}", share(&rows));
    for (row, original) in &rows {
        let ends = |values: &[f32]| [values[0], values[23]];
        assert!(ends(row).iter().zip(ends(original)).all(|(a, b)| (a - b).abs() < 1e-5));
        let most = original.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert!(row.iter().all(|value| *value <= most + 1e-5));
    }
}
