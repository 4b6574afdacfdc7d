//! Memory over time: what the process held, and what of each pool was in use and reserved.

use firebox_core::MachineSample;

/// Points of a curve at most, an even number; two neighbours become one when there are more.
const MOST: usize = 240;

/// Bytes over the time of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryCurve {
    /// What it is.
    pub name: String,
    /// Seconds since the first sample of the run, all attempts one after the other, with the most bytes
    /// of the samples that a point stands for.
    pub points: Vec<(f64, f64)>,
    /// Samples that a point stands for, and of the point in hand.
    each: usize,
    last: usize,
}

impl MemoryCurve {
    fn add(&mut self, seconds: f64, bytes: f64) {
        match self.points.last_mut() {
            Some(point) if self.last < self.each => {
                *point = (seconds, point.1.max(bytes));
                self.last += 1;
            }
            _ => {
                self.points.push((seconds, bytes));
                self.last = 1;
            }
        }
        if self.points.len() > MOST {
            let pairs = self.points.chunks(2);
            let most = |pair: &[(f64, f64)]| {
                let (end, last) = *pair.last()?;
                Some((end, pair.iter().fold(last, |most, point| most.max(point.1))))
            };
            // The newest is left over, and goes on.
            self.points = pairs.filter_map(most).collect();
            self.each *= 2;
        }
    }
}

/// The curves, in the order in which they were first seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    seconds: f64,
    curves: Vec<MemoryCurve>,
}

impl Memory {
    pub(super) fn see(&mut self, sample: &MachineSample) {
        self.seconds += sample.seconds;
        self.add("this process, resident", sample.resident_bytes);
        for pool in &sample.pools {
            self.add(&format!("{}, in use", pool.name), pool.allocated_bytes);
            if let Some(reserved) = pool.reserved_bytes {
                self.add(&format!("{}, reserved", pool.name), reserved);
            }
        }
    }

    pub(super) fn curves(&self) -> Vec<MemoryCurve> {
        self.curves.clone()
    }

    fn add(&mut self, name: &str, bytes: u64) {
        let place = self.curves.iter().position(|curve| curve.name == name).unwrap_or_else(|| {
            let (name, each) = (name.to_owned(), 1);
            self.curves.push(MemoryCurve { name, each, ..MemoryCurve::default() });
            self.curves.len() - 1
        });
        self.curves[place].add(self.seconds, bytes as f64);
    }
}

#[cfg(test)]
mod tests {
    use firebox_core::MemoryPool;

    use super::*;

    fn sample(resident_bytes: u64, reserved_bytes: Option<u64>) -> MachineSample {
        let pool = MemoryPool {
            name: "heap".to_owned(),
            allocated_bytes: resident_bytes / 2,
            reserved_bytes,
            peak_bytes: None,
        };
        MachineSample {
            seconds: 0.5,
            resident_bytes,
            pools: vec![pool],
            ..MachineSample::default()
        }
    }

    #[test]
    fn each_pool_has_its_curves_over_the_seconds_of_the_run() {
        let mut memory = Memory::default();
        memory.see(&sample(100, None));
        memory.see(&sample(80, Some(70)));
        let curves: Vec<_> = memory.curves().into_iter().map(|c| (c.name, c.points)).collect();
        let expected = [
            ("this process, resident", vec![(0.5, 100.0), (1.0, 80.0)]),
            ("heap, in use", vec![(0.5, 50.0), (1.0, 40.0)]),
            ("heap, reserved", vec![(1.0, 70.0)]),
        ];
        assert_eq!(curves, expected.map(|(name, points)| (name.to_owned(), points)));
    }

    #[test]
    fn a_long_run_keeps_its_peaks_in_few_points() {
        let mut memory = Memory::default();
        for at in 0..100_000u64 {
            memory.see(&sample(if at == 54_321 { 9_000 } else { at % 7 }, None));
        }
        let curve = &memory.curves()[0];
        assert!((MOST / 2..=MOST).contains(&curve.points.len()), "{}", curve.points.len());
        let most = curve.points.iter().fold((0.0, 0.0), |a, b| if b.1 > a.1 { *b } else { a });
        assert!(most.1 == 9_000.0 && (most.0 - 27_161.0).abs() < 600.0, "{most:?}");
        assert!(curve.points.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(curve.points.last().unwrap().0, 50_000.0);
    }
}
