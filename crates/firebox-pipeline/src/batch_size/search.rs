//! The search for a size: what is measured on the way, where it begins and ends.

use firebox_train::TrainError;
use serde::{Deserialize, Serialize};

use super::epoch::Epoch;
use crate::error::PipelineError;

/// The part of the free memory that stays free (Firebox's own).
const HEADROOM: f64 = 0.2;
/// How much faster twice the batch has to be.
const GAIN: f64 = 1.05;
/// The first and the last size that are tried. Larger ones change what is learnt more than they save.
pub(super) const SIZES: [usize; 2] = [4, 4096];
/// Sizes up to this one are taken if they fit, whatever they bring: the guess for the smallest devices.
const SMALL: usize = 32;
/// Steps of a size that are timed.
pub(super) const STEPS: u64 = 3;
/// Milliseconds that the first size beyond the two smallest may take, all of its steps together: a guess for a small
/// model is no reason to wait for a large one.
const LONGEST: f64 = 3000.0;

/// The size that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chosen {
    /// Windows of a batch.
    pub(crate) size: usize,
    /// Why, in one line.
    pub(crate) reason: String,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Found {
    /// Windows of a batch.
    size: usize,
    /// Bytes that its steps took.
    pub(super) bytes: u64,
    /// What was measured of it.
    measured: String,
    /// Why it is not twice as many; none if an epoch would have too few steps.
    ended: Option<String>,
    /// What is said of the guess.
    guess: String,
}

impl Found {
    /// The same with something said of how it was measured.
    pub(super) fn noted(self, noted: &str) -> Self {
        Self { guess: self.guess + noted, ..self }
    }

    /// The same for an epoch, whose [`most`](Epoch::most) bounded the search.
    pub(super) fn within(self, epoch: Epoch) -> Chosen {
        let Self { size, measured, guess, .. } = self;
        let ended = self.ended.unwrap_or_else(|| epoch.against(2 * size));
        // Of fewer samples than the smallest size has, all are one batch.
        let reason = format!("{measured}; {ended}{guess}");
        Chosen { size: size.min(epoch.samples.max(1)), reason }
    }
}

/// The guess for a class of devices.
#[derive(Clone, Copy)]
pub(super) struct Guess<'a> {
    pub(super) class: &'a str,
    pub(super) size: usize,
}

/// What steps of a size took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Taken {
    pub(super) size: usize,
    pub(super) milliseconds: f64,
    pub(super) bytes: u64,
}

impl Taken {
    fn rate(&self) -> f64 {
        1e3 * self.size as f64 / self.milliseconds
    }

    /// Whether it is faster than its half by enough to be taken.
    fn gains(&self, half: Self) -> bool {
        self.rate() >= GAIN * half.rate()
    }

    /// Why its half is taken in its place.
    fn against(&self, half: Self, what: &str) -> String {
        let more = 100.0 * (self.rate() / half.rate() - 1.0);
        format!("{} brings {more:+.0} % {what} a second", self.size)
    }
}

/// Bytes that a size would take, from what two others took: a part that is there whatever the size, and
/// one that grows with it. Where the larger took no more than the smaller, which may have made what later ones use,
/// all of it is its windows'.
pub(super) fn expected(smaller: Taken, larger: Taken, size: usize) -> u64 {
    let each = match larger.bytes.checked_sub(smaller.bytes) {
        None | Some(0) => larger.bytes as f64 / larger.size as f64,
        Some(more) => more as f64 / (larger.size - smaller.size) as f64,
    };
    larger.bytes + (each * (size - larger.size) as f64) as u64
}

/// What was measured on the way to a size, and within which memory.
struct Search<F> {
    /// Free bytes.
    room: u64,
    /// The largest size that is tried.
    most: usize,
    /// What a batch is made of, in the plural.
    what: &'static str,
    /// In the order of their sizes.
    all: Vec<Taken>,
    /// The smallest size that the device refused, and what it said.
    refused: Option<(usize, String)>,
    take: F,
}

impl<F: FnMut(usize) -> Result<Taken, PipelineError>> Search<F> {
    /// What steps of a size take, measured once.
    fn at(&mut self, size: usize) -> Result<Taken, PipelineError> {
        let place = self.all.partition_point(|taken| taken.size < size);
        if let Some(found) = self.all.get(place).filter(|taken| taken.size == size) {
            return Ok(*found);
        }
        let taken = (self.take)(size)?;
        self.all.insert(place, taken);
        Ok(taken)
    }

    /// Bytes that may be taken.
    fn usable(&self) -> u64 {
        (self.room as f64 * (1.0 - HEADROOM)) as u64
    }

    /// The same of a size that can perhaps not be had, or why it cannot.
    fn tried(&mut self, size: usize) -> Result<Result<Taken, String>, PipelineError> {
        if let Some((refused, said)) = &self.refused
            && size >= *refused
        {
            return Ok(Err(said.clone()));
        }
        match self.at(size) {
            Ok(taken) if taken.bytes > self.usable() => Ok(Err(self.too_large(taken))),
            // Smaller ones trained: a device may refuse memory that it had told of.
            Err(PipelineError::Train(error)) if size > SIZES[0] && is_of_device(&error) => {
                let error = error.to_string();
                let error = error.lines().next().unwrap_or_default();
                let said = format!("{size} does not train: {error}");
                self.refused = Some((size, said.clone()));
                Ok(Err(said))
            }
            other => other.map(Ok),
        }
    }

    fn too_large(&self, taken: Taken) -> String {
        let [took, room] = [taken.bytes, self.room].map(mib);
        format!("{} took {took:.0} MiB of the {room:.0} free", taken.size)
    }

    /// The size to begin with: the guess, halved until its steps fit and are short even if all that the second of the
    /// smallest sizes took were its windows' own.
    fn begin(&mut self, guess: usize) -> Result<usize, PipelineError> {
        let smallest = self.at(SIZES[0])?;
        if 2 * smallest.bytes > self.usable() || 2 * SIZES[0] > self.most {
            return Ok(smallest.size);
        }
        let Ok(known) = self.tried(2 * SIZES[0])? else { return Ok(smallest.size) };
        if known.bytes == 0 {
            // Pages of a device that were there before say nothing of larger ones.
            return Ok(known.size);
        }
        let mut size = 1_usize << guess.clamp(SIZES[0], self.most).ilog2();
        let heavy = |size: usize| {
            let times = size as f64 / known.size as f64;
            let milliseconds = known.milliseconds * times * (STEPS + 1) as f64;
            known.bytes as f64 * times > self.usable() as f64 || milliseconds > LONGEST
        };
        while size > known.size && heavy(size) {
            size /= 2;
        }
        Ok(size)
    }

    /// The largest size from `size` down that fits and is faster than its half, with the reason against its double, if
    /// one was found on the way.
    fn down(&mut self, size: usize) -> Result<(Taken, Option<String>), PipelineError> {
        let (mut size, mut ended) = (size, None);
        // The smallest is known to fit.
        let mut best = loop {
            match self.tried(size)? {
                Ok(taken) => break taken,
                Err(said) => ended = Some(said),
            }
            size /= 2;
        };
        while best.size > SMALL {
            let half = self.at(best.size / 2)?;
            if best.gains(half) {
                break;
            }
            ended = Some(best.against(half, self.what));
            best = half;
        }
        Ok((best, ended))
    }

    /// The largest size from this one up that fits, by what smaller ones took and by itself, and is faster than its half,
    /// with the reason against its double, if it is another than the steps of an epoch.
    fn up(&mut self, mut best: Taken) -> Result<(Taken, Option<String>), PipelineError> {
        loop {
            if best.size >= SIZES[1] {
                return Ok((best, Some(format!("{} is the largest that is tried", best.size))));
            }
            let size = 2 * best.size;
            if size > self.most {
                return Ok((best, None));
            }
            let bytes = match self.all[..] {
                [.., smaller, larger] if larger.size == best.size => {
                    expected(smaller, larger, size)
                }
                _ => 2 * best.bytes,
            };
            if bytes > self.usable() {
                let said = format!(
                    "{size} would take {:.0} MiB of the {:.0} free, of which {:.0} % stay free",
                    mib(bytes),
                    mib(self.room),
                    100.0 * HEADROOM
                );
                return Ok((best, Some(said)));
            }
            let taken = match self.tried(size)? {
                Ok(taken) => taken,
                Err(said) => return Ok((best, Some(said))),
            };
            if size > SMALL && !taken.gains(best) {
                return Ok((best, Some(taken.against(best, self.what))));
            }
            best = taken;
        }
    }
}

/// Whether the device refused: anything else that ends training would end it at any size.
pub(super) fn is_of_device(error: &TrainError) -> bool {
    matches!(
        error,
        TrainError::OutOfMemory { .. } | TrainError::Lost { .. } | TrainError::Device(_)
    )
}

pub(super) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Chooses a size for `room` bytes by what `take` measures, from the guess for a class on; none beyond the
/// [`most`](Epoch::most) of an epoch. `what` is what a batch is made of.
pub(super) fn choose(
    room: u64,
    most: usize,
    Guess { class, size: guessed }: Guess<'_>,
    what: &'static str,
    take: impl FnMut(usize) -> Result<Taken, PipelineError>,
) -> Result<Found, PipelineError> {
    let mut search = Search { room, most, what, all: vec![], refused: None, take };
    let first = search.at(SIZES[0])?;
    if first.bytes > search.usable() {
        let said = search.too_large(first);
        return Err(PipelineError::Setting(format!(
            "`loader.batch_size` is auto, and even a batch of {said}, of which {:.0} % stay free\n  \
             choose a smaller model or a shorter window, or set loader.batch_size to a number below {}",
            100.0 * HEADROOM,
            SIZES[0]
        )));
    }
    let begun = search.begin(guessed)?;
    let (best, ended) = match search.down(begun)? {
        (best, None) => search.up(best)?,
        down => down,
    };
    let Taken { size, bytes, .. } = best;
    let (rate, mib) = (best.rate(), mib(bytes));
    let measured =
        format!("measured: {rate:.0} {what} a second in {mib:.0} MiB, by the median step");
    let guess = match guessed == size {
        true => String::new(),
        false => format!("; the guess for the class `{class}` was {guessed}"),
    };
    Ok(Found { size, bytes, measured, ended, guess })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::batch_size) const MIB: u64 = 1 << 20;

    /// A model of 10 MiB with 1 MiB a window, which gains from batches up to a size.
    pub(in crate::batch_size) fn model(
        gains_to: usize,
    ) -> impl FnMut(usize) -> Result<Taken, PipelineError> {
        move |size| {
            let milliseconds = 10.0 * (size as f64 / gains_to as f64).max(1.0);
            Ok(Taken { size, milliseconds, bytes: 10 * MIB + size as u64 * MIB })
        }
    }

    /// [`choose`] for so many samples, or for more than are ever tried.
    fn chosen(
        room: u64,
        samples: Option<usize>,
        (class, size): (&str, usize),
        take: impl FnMut(usize) -> Result<Taken, PipelineError>,
    ) -> Result<Chosen, PipelineError> {
        let epoch = Epoch::new(samples, 1);
        let found = choose(room, epoch.most(), Guess { class, size }, "windows", take);
        found.map(|found| found.within(epoch))
    }

    #[test]
    fn a_batch_grows_while_it_gains() {
        let chosen = chosen(1 << 40, None, ("a class", 512), model(256)).unwrap();
        assert_eq!(chosen.size, 256);
        assert!(chosen.reason.contains("512 brings +0 %"), "{}", chosen.reason);
        assert!(chosen.reason.ends_with("the guess for the class `a class` was 512"));
    }

    #[test]
    fn an_epoch_keeps_ten_steps_and_no_batch_is_larger_than_the_training_set() {
        let of = |samples: usize, guess: usize| {
            let mut tried = vec![];
            let mut take = model(1 << 20);
            let chosen = chosen(1 << 40, Some(samples), ("a class", guess), |size| {
                tried.push(size);
                take(size)
            });
            let chosen = chosen.unwrap();
            (chosen.size, tried, chosen.reason)
        };
        let (size, tried, reason) = of(3000, 512);
        assert_eq!((size, tried), (256, vec![4, 8, 256, 128]));
        assert!(
            reason.contains("512 would leave fewer than 10 full steps in an epoch of 3000 samples"),
            "{reason}"
        );
        let (size, tried, _) = of(1000, 16);
        assert_eq!((size, tried), (64, vec![4, 8, 16, 32, 64]));
        for samples in [40, 79, 80, 300, 5119, 5120, 1 << 20] {
            let size = of(samples, 512).0;
            assert!(samples.div_ceil(size) >= 10, "{size} of {samples}");
        }
        // Of the smallest sets.
        for (samples, expected) in [(80, 8), (79, 4), (39, 4), (4, 4), (3, 3), (1, 1), (0, 1)] {
            let (size, tried, _) = of(samples, 512);
            assert_eq!(size, expected, "{samples}");
            assert!(tried.iter().all(|size| *size <= samples.max(4)), "{samples}: {tried:?}");
        }
        assert_eq!(of(1 << 20, 512).0, SIZES[1]);
        // What is found for some is found for all that allow the same sizes.
        let found = |samples| {
            let (epoch, guess) =
                (Epoch::new(Some(samples), 1), Guess { class: "a class", size: 512 });
            choose(1 << 40, epoch.most(), guess, "windows", model(1 << 20)).unwrap()
        };
        assert_eq!(found(2560), found(5119));
        assert_ne!(found(2560), found(5120));
    }

    #[test]
    fn what_a_batch_is_made_of_is_named() {
        let guess = Guess { class: "a class", size: 64 };
        let found = choose(1 << 40, 4096, guess, "texts", model(64)).unwrap();
        let reason = found.within(Epoch::new(None, 1)).reason;
        assert!(reason.contains(" texts a second in ") && reason.contains("+0 % texts a second"));
        assert!(!reason.contains("windows"), "{reason}");
    }

    #[test]
    fn a_batch_that_would_not_fit_is_not_tried() {
        let mut tried = vec![];
        let mut take = model(1 << 20);
        let chosen = chosen(200 * MIB, None, ("a class", 128), |size| {
            tried.push(size);
            take(size)
        })
        .unwrap();
        // 18 MiB for eight may be 288 for the guess, of 160 usable ones; 138 for it by what 32 and 64 took, and 266 for
        // twice as many.
        assert_eq!((chosen.size, tried), (128, vec![4, 8, 64, 32, 128]));
        assert!(
            chosen.reason.contains("256 would take 266 MiB of the 200 free"),
            "{}",
            chosen.reason
        );
    }

    #[test]
    fn a_batch_that_took_no_more_than_the_one_before_says_what_the_next_may_take() {
        // Pools grow by pages.
        let mut tried = vec![];
        let chosen = chosen(150 * MIB, None, ("a class", 32), |size| {
            tried.push(size);
            let mib = match size {
                4 => 60,
                8 | 16 => 62,
                _ => 124,
            };
            Ok(Taken { size, milliseconds: 10.0, bytes: mib * MIB })
        });
        // 124 of 120 usable MiB for thirty-two.
        assert_eq!((chosen.unwrap().size, tried), (16, vec![4, 8, 16]));
    }

    #[test]
    fn a_batch_that_fills_the_memory_is_not_doubled_and_none_is_taken_that_breaks_the_headroom() {
        let tried = |room: u64| {
            let mut tried = vec![];
            let mut take = model(1 << 20);
            let chosen = chosen(room, None, ("a class", 32), |size| {
                tried.push(size);
                take(size)
            });
            (tried, chosen.map(|chosen| chosen.size).map_err(|error| error.to_string()))
        };
        // 14 of 16 usable MiB for four windows: eight might take twice as much.
        assert_eq!(tried(20 * MIB), (vec![4], Ok(4)));
        let (tried, chosen) = tried(15 * MIB);
        let error = chosen.unwrap_err();
        assert!(
            tried == [4] && error.contains("even a batch of 4 took 14 MiB of the 15"),
            "{error}"
        );
    }

    /// What is tried in this order, and what is chosen.
    fn search(
        room: u64,
        guess: usize,
        mut take: impl FnMut(usize) -> Taken,
    ) -> (Vec<usize>, Chosen) {
        let mut tried = vec![];
        let chosen = chosen(room, None, ("a class", guess), |size| {
            tried.push(size);
            Ok(take(size))
        });
        (tried, chosen.unwrap())
    }

    #[test]
    fn the_search_begins_at_the_guess_and_goes_up_or_down_from_it() {
        // A hundredth of a millisecond for each window from `gains_to` on, and one MiB for each.
        let take = |gains_to: usize| {
            move |size: usize| Taken {
                size,
                milliseconds: size.max(gains_to) as f64 / 100.0,
                bytes: size as u64 * MIB,
            }
        };
        let of = |guess, gains_to| {
            let (tried, chosen) = search(1 << 40, guess, take(gains_to));
            (tried, chosen.size)
        };
        // Half of it is as fast, and so on down to where it is not.
        assert_eq!(of(512, 128), (vec![4, 8, 512, 256, 128, 64], 128));
        // Twice as much is faster.
        assert_eq!(of(128, 512), (vec![4, 8, 128, 64, 256, 512, 1024], 512));
        assert_eq!(of(256, 256), (vec![4, 8, 256, 128, 512], 256));
        // It ends at the size that is taken whatever it brings.
        assert_eq!(of(128, 1), (vec![4, 8, 128, 64, 32], 32));
        assert_eq!(of(8, 16), (vec![4, 8, 16, 32, 64], 32));
        let (_, chosen) = search(1 << 40, 512, take(128));
        let said = &chosen.reason;
        assert!(said.contains("256 brings +0 %") && said.ends_with("`a class` was 512"), "{said}");
        let (_, chosen) = search(1 << 40, 128, take(128));
        assert!(!chosen.reason.contains("the guess"), "{}", chosen.reason);
    }

    #[test]
    fn a_guess_that_does_not_fit_or_would_take_long_is_begun_below() {
        let linear = |milliseconds: f64, each: u64| {
            move |size: usize| Taken {
                size,
                milliseconds: milliseconds * (size as f64).sqrt(),
                bytes: size as u64 * each,
            }
        };
        // 80 MiB are usable.
        let (tried, chosen) = search(100 * MIB, 1024, linear(0.001, MIB));
        assert_eq!((tried, chosen.size), (vec![4, 8, 64, 32], 64));
        assert!(chosen.reason.contains("128 would take 128 MiB of the 100 free"));
        // A step of eight takes 283 ms: four steps of sixteen might take 2.3 s, and of 32 twice as much.
        let (tried, chosen) = search(1 << 40, 512, linear(100.0, 1));
        assert_eq!(tried[..4], [4, 8, 16, 32]);
        assert_eq!(chosen.size, SIZES[1]);
        // What takes more than smaller ones said is left, and not gone above.
        let (tried, chosen) = search(100 * MIB, 64, |size| {
            let bytes = if size < 32 { size as u64 * MIB } else { 90 * MIB };
            Taken { size, milliseconds: 1.0, bytes }
        });
        assert_eq!((tried, chosen.size), (vec![4, 8, 64, 32, 16], 16));
        assert!(chosen.reason.contains("32 took 90 MiB of the 100 free"), "{}", chosen.reason);
    }

    #[test]
    fn a_size_that_is_refused_its_memory_is_gone_down_from() {
        let tried = |guess: usize, refused_from: usize, each: u64| {
            let mut tried = vec![];
            let chosen = chosen(1 << 40, None, ("a class", guess), |size| {
                tried.push(size);
                if size >= refused_from {
                    let error = TrainError::Device("out of memory".to_owned());
                    return Err(error.into());
                }
                Ok(Taken { size, milliseconds: 1.0, bytes: size as u64 * each })
            });
            (tried, chosen.map(|chosen| (chosen.size, chosen.reason)))
        };
        let (sizes, chosen) = tried(256, 128, 1);
        let (size, reason) = chosen.unwrap();
        assert_eq!((sizes, size), (vec![4, 8, 256, 128, 64, 32], 64));
        assert!(
            reason.contains("128 does not train: ") && reason.contains("out of memory"),
            "{reason}"
        );
        // On the way up it is no reason to fail, either; at the smallest size it is.
        assert_eq!(tried(64, 128, 1).1.unwrap().0, 64);
        assert_eq!(tried(256, 8, 1).1.unwrap().0, 4);
        assert!(tried(256, 4, 1).1.is_err());
        // A device whose pages were there before tells nothing of larger sizes: they are come to step by step.
        assert_eq!(tried(256, 64, 0).0, [4, 8, 16, 32, 64]);
    }
}
