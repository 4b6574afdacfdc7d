//! Values that were not there when they were read are an error of every way to read a window.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use firebox_core::{
    Augmentation, Channel, Labels, Narrow, Normalisation, Normaliser, Role, Series, SeriesSet,
    SeriesValues, SplitRule, WindowRule, split,
};
use firebox_loader::{AugmentedWindows, LoadError, NormalisedWindows, Source};

const STEPS: usize = 200;

/// A column of a file, which may have shrunk: its values are zeros then.
struct File(AtomicBool);

impl Narrow for File {
    fn count(&self) -> usize {
        STEPS
    }

    fn read(&self, start: usize, out: &mut [f32]) {
        let is_lost = self.0.load(Ordering::Relaxed);
        let value = |step: usize| if is_lost { 0.0 } else { (step as f32).sin() };
        out.iter_mut().enumerate().for_each(|(at, out)| *out = value(start + at));
    }

    fn check(&self) -> Result<(), String> {
        if self.0.load(Ordering::Relaxed) { Err("the file has shrunk".to_owned()) } else { Ok(()) }
    }
}

#[test]
fn windows_of_a_file_that_has_shrunk_are_never_delivered() {
    let file = Arc::new(File(AtomicBool::new(false)));
    let values = SeriesValues::narrow(Arc::clone(&file) as Arc<dyn Narrow>, 0..STEPS);
    let series = Series { values, ..Series::regular("a", 0, 60_000_000, vec![0.0; STEPS], 1) };
    let channels = vec![Channel::new("x", Role::Other)];
    let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
    let rule = WindowRule { length: 8, stride: 4, whole: false };
    let parts = split(&set, &rule, &SplitRule::time(0.0, 0.2), &Labels::None).unwrap();
    let normaliser = || Normaliser::fit(Normalisation::Standard, &parts.train).unwrap();
    let plain = NormalisedWindows::new(parts.train.clone(), normaliser());
    let held_out = NormalisedWindows::new(parts.test.clone(), normaliser());
    let versions =
        AugmentedWindows::new(parts.train.clone(), normaliser(), &Augmentation::default(), 3);
    let versions = versions.unwrap();
    let sources: [&dyn Source; 3] = [&plain, &held_out, &versions];
    for source in sources {
        let mut out = [0.0; 3 * 8];
        let mut all = || -> [Result<(), LoadError>; 3] {
            [
                source.read(1, &mut out[..8]).map(drop),
                source.draw(2, 1, &mut out[..8]).map(drop),
                source.gather(2, &[0, 1], 8, &mut out[..16]).map(drop),
            ]
        };
        assert!(all().iter().all(Result::is_ok));
        file.0.store(true, Ordering::Relaxed);
        for error in all().map(Result::unwrap_err) {
            assert!(matches!(error, LoadError::Sample { .. }), "{error}");
        }
        file.0.store(false, Ordering::Relaxed);
    }
}
