//! Arrays and `.ts` files, stored series by series: their steps have no times, so nothing passes from one series to
//! another, and no more of them is in memory than those in hand and what was found in each. The result, and what is
//! refused, is the same as that of [`clean`](crate::clean::clean), whose rules are applied.
//!
//! A series itself is held whole. What is known only once all are read, the channels that are left out, makes reading
//! begin anew ([`LeftOut`]). Arrays with a label for each step are left to the long way: the numbers of their classes are
//! known at the end alone. Of several bad lines of a `.ts` file that is taken in parts, the first is named, whatever is bad
//! about it.

use std::collections::HashSet;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use firebox_core::{Channel, Key, Origin, Series, SeriesSet};
use rayon::prelude::*;

use crate::fast::Stop;
use crate::hints::lost;
use crate::ingest::{batches, each_part, label_file, read_one, void_finding};
use crate::input::Input;
use crate::progress::Progress;
use crate::raw::{Gathered, Raw, RawLabels, RawSeries, label_of};
use crate::store::{About, Entry, LabelKind, Making, entry};
use crate::time::Zone;
use crate::work::{Usable, Work};
use crate::{
    Checks, ConstantPolicy, DataConfig, DataError, Finding, Format, SeriesChecks, clean, npy,
};

/// Bytes of files, or of a file's values as they are held, that are taken at once. Small files may hold values of a byte,
/// and all are there twice before they are written.
const AT_ONCE: u64 = 8 << 20;

/// Channels that are left out.
#[derive(Clone, Default)]
struct LeftOut {
    /// Places in the files of those without any value. No row is left out for what it lacks of them.
    void: Vec<usize>,
    /// Places among the others of those with one value everywhere.
    constant: Vec<usize>,
}

/// How a reading of all files ends.
enum End {
    Whole(Box<(Making, About)>),
    /// Once more without these.
    Again(LeftOut),
}

/// Reads these files and stores what they hold; [`Stop::Odd`] where all has to be in memory for that.
pub(crate) fn store(
    inputs: &[Input],
    config: &DataConfig,
    (cache, key): (&Path, Key),
    stop: &AtomicBool,
    progress: &Progress<'_>,
) -> Result<(SeriesSet, Checks), Stop> {
    store_by(AT_ONCE, (inputs, config), (cache, key), stop, progress)
}

/// The same by so many bytes at once.
fn store_by(
    at_once: u64,
    (inputs, config): (&[Input], &DataConfig),
    (cache, key): (&Path, Key),
    stop: &AtomicBool,
    progress: &Progress<'_>,
) -> Result<(SeriesSet, Checks), Stop> {
    let applies = matches!(inputs[0].format, Format::Npy | Format::Ts);
    let by_step = |input| is_labelled_by_step(config, input);
    if !applies || config.timeframes.is_some() || inputs.iter().any(by_step) {
        return Err(Stop::Odd);
    }
    let mut left_out = LeftOut::default();
    let (mut making, about) = loop {
        progress.begin(1);
        match Taken::new(config, &left_out, cache, stop).all(inputs, at_once, progress)? {
            End::Whole(whole) => break *whole,
            End::Again(next) => left_out = next,
        }
    };
    // Refuses what breaks a promise, such as two channels of one name, before it is stored.
    drop(making.so_far(&about)?);
    progress.next();
    Ok(making.finish((cache, key), about, (stop, &progress.all()))?.open()?)
}

/// Whether an array has a label for each step, by the headers of the two.
fn is_labelled_by_step(config: &DataConfig, input: &Input) -> bool {
    let axes = |path: &Path| npy::header_of(path).map(|header| header.shape);
    let Some(labels) = label_file(config, input).and_then(|path| axes(&path)) else { return false };
    labels.iter().any(|axis| *axis > 1) && axes(&input.path).is_some_and(|axes| axes.len() < 3)
}

/// What has been read, and where it goes.
struct Taken<'a> {
    config: &'a DataConfig,
    left_out: &'a LeftOut,
    cache: &'a Path,
    stop: &'a AtomicBool,
    /// The series without their values.
    gathered: Gathered,
    /// Names of those that are not tested on, if any are.
    trained: HashSet<String>,
    /// Of the channels that have values.
    found: Vec<Found>,
    /// Series with defects, without their values.
    odd: Vec<Work>,
    /// The first of which nothing is left, and what its values are.
    lost: Option<(usize, Vec<Usable>)>,
    by_series: Vec<SeriesChecks>,
    entries: Vec<Entry>,
    rows: u64,
    /// Steps of the longest series, and its file.
    longest: (usize, PathBuf),
    making: Option<Making>,
}

/// What the values of a channel are over all series.
#[derive(Clone, Copy, Default)]
struct Found {
    /// Whether any is finite before anything is mended.
    any: bool,
    /// The first that is kept.
    first: Option<f64>,
    varies: bool,
}

/// A series that has been mended, and what it was.
struct Mended {
    work: Work,
    series: Series,
    /// Channels of these.
    width: usize,
    usable: Vec<Usable>,
    firsts: Vec<Option<f64>>,
}

impl<'a> Taken<'a> {
    fn new(
        config: &'a DataConfig,
        left_out: &'a LeftOut,
        cache: &'a Path,
        stop: &'a AtomicBool,
    ) -> Self {
        Self {
            config,
            left_out,
            cache,
            stop,
            gathered: Gathered::default(),
            trained: HashSet::new(),
            found: vec![],
            odd: vec![],
            lost: None,
            by_series: vec![],
            entries: vec![],
            rows: 0,
            longest: (0, PathBuf::new()),
            making: None,
        }
    }

    fn all(mut self, inputs: &[Input], at_once: u64, progress: &Progress<'_>) -> Result<End, Stop> {
        let mut index = 0;
        for batch in batches(inputs, at_once) {
            DataError::heed(self.stop)?;
            if let [input] = batch {
                let share = progress.file(index);
                each_part(self.config, input, at_once as usize, |part, [done, all]| {
                    let series = self.named(part)?;
                    self.take(series)?;
                    share.reached(done, all);
                    Ok::<(), Stop>(())
                })?;
            } else {
                let read = |input: &Input| {
                    DataError::heed(self.stop)?;
                    read_one(self.config, input, &Zone::default())
                };
                let mut series = vec![];
                for raw in batch.par_iter().map(read).collect::<Vec<_>>() {
                    series.extend(self.named(raw?)?);
                }
                self.take(series)?;
                progress.file(index + batch.len() - 1).reached(1, 1);
            }
            index += batch.len();
        }
        self.finish(inputs)
    }

    /// The series of some of one file, by the names that they have among all, with the channels that have values.
    fn named(&mut self, mut raw: Raw) -> Result<Vec<RawSeries>, Stop> {
        DataError::heed(self.stop)?;
        if raw.series.iter().any(|series| matches!(series.labels, RawLabels::PerStep(_))) {
            return Err(Stop::Odd);
        }
        let columns: Vec<_> =
            raw.series.iter_mut().map(|series| mem::take(&mut series.columns)).collect();
        let before = self.gathered.series().len();
        self.gathered.add(raw)?;
        let known = &self.gathered.series()[before..];
        let series: Vec<RawSeries> = known
            .iter()
            .zip(columns)
            .map(|(series, mut columns)| {
                take_out(&mut columns, &self.left_out.void);
                RawSeries { name: self.name(series), columns, ..series.clone() }
            })
            .collect();
        if self.config.test.is_some() {
            let trained = series.iter().filter(|series| series.origin != Origin::Test);
            self.trained.extend(trained.map(|series| series.name.clone()));
        }
        Ok(series)
    }

    /// Mends and stores series.
    fn take(&mut self, series: Vec<RawSeries>) -> Result<(), Stop> {
        let mut channels = self.gathered.channels().to_vec();
        take_out(&mut channels, &self.left_out.void);
        self.found.resize(channels.len(), Found::default());
        let mend = |series| self.mended(series, &channels);
        for mended in series.into_par_iter().map(mend).collect::<Vec<_>>() {
            self.put(mended)?;
        }
        Ok(())
    }

    /// The name of a series: a test series has none that one of those before it has, which are all that are not tested
    /// on.
    fn name(&self, series: &RawSeries) -> String {
        match series.origin == Origin::Test && self.trained.contains(&series.name) {
            true => format!("test/{}", series.name),
            false => series.name.clone(),
        }
    }

    fn mended(&self, series: RawSeries, channels: &[Channel]) -> Mended {
        let policies = &self.config.checks;
        let usable = series.columns.iter().map(|column| Usable::default().with(column)).collect();
        let mut work = Work::new(series, channels);
        work.order(policies);
        work.mend(channels, None, policies);
        // What is told of it has its place already.
        work.moved = None;
        let firsts = work.raw.columns.iter().map(|column| column.first().copied()).collect();
        let bare = RawSeries {
            name: work.raw.name.clone(),
            origin: work.raw.origin,
            time: None,
            columns: vec![],
            labels: RawLabels::None,
            pieces: work.raw.pieces.clone(),
        };
        let mut whole = mem::replace(&mut work.raw, bare);
        take_out(&mut whole.columns, &self.left_out.constant);
        let width = whole.columns.len();
        let filled = mem::take(&mut work.filled).without(&self.left_out.constant);
        let series = whole.laid_out(mem::take(&mut work.segments), width);
        let series = Series { filled, ..series };
        Mended { work, series, width, usable, firsts }
    }

    /// Stores a series, and keeps what was found in it.
    fn put(&mut self, mended: Mended) -> Result<(), Stop> {
        let Mended { work, series, width, usable, firsts } = mended;
        if self.making.is_none() {
            self.making = Some(Making::begin(self.cache, width, false)?);
        }
        let making = self.making.as_mut().ok_or(Stop::Odd)?;
        making.arrays.push_series(&series, width, self.stop)?;
        for (channel, found) in self.found.iter_mut().enumerate() {
            found.any |= usable[channel] != Usable::Nothing;
            if let Some(value) = firsts[channel] {
                found.varies |= *found.first.get_or_insert(value) != value;
            }
            found.varies |= series.len() > 1 && !work.channels[channel].constant;
        }
        let steps = work.counts.rows as usize;
        self.rows += work.counts.rows;
        if steps >= self.longest.0 {
            self.longest = (steps, work.raw.place(0).0.to_path_buf());
        }
        self.by_series.extend(clean::told(&work));
        self.entries.push(entry(&series));
        if series.is_empty() && self.lost.is_none() {
            self.lost = Some((self.odd.len(), usable));
        }
        if work.channels.iter().any(|channel| channel.missing + channel.infinite + channel.ohlc > 0)
        {
            self.odd.push(work);
        }
        Ok(())
    }

    /// Decides over all series.
    fn finish(self, inputs: &[Input]) -> Result<End, Stop> {
        let policies = &self.config.checks;
        let mut channels = self.gathered.channels().to_vec();
        let void = self.left_out.void.iter().filter_map(|place| channels.get(*place));
        let void: Vec<_> = void.map(|channel| channel.name.clone()).collect();
        take_out(&mut channels, &self.left_out.void);
        let nothing = places(&self.found, |found| !found.any);
        if !nothing.is_empty() && policies.constant == ConstantPolicy::Drop {
            clean::refuse_all(&channels, &nothing)?;
            return Ok(End::Again(LeftOut { void: nothing, constant: vec![] }));
        }
        clean::refuse_short(self.longest.0, clean::FEWEST, || self.longest.1.clone())?;
        if let Some(channel) = nothing.first() {
            let files = self.gathered.series().iter();
            let files = files.map(|series| series.place(0).0.to_path_buf());
            return Err(clean::no_value(channels[*channel].name.clone(), files).into());
        }
        let steps = self.steps();
        let constant = places(&self.found, |found| steps > 1 && !found.varies);
        let mut findings = self.findings(&channels, &constant)?;
        if policies.constant == ConstantPolicy::Drop && !constant.is_empty() {
            clean::refuse_all(&channels, &constant)?;
            if self.left_out.constant != constant {
                return Ok(End::Again(LeftOut { constant, ..self.left_out.clone() }));
            }
            take_out(&mut channels, &constant);
        }
        let series = self.entries.len();
        findings.extend(void.into_iter().map(|channel| void_finding(channel, series)));
        self.whole(channels, findings, inputs)
    }

    /// Steps that are kept.
    fn steps(&self) -> usize {
        self.entries.iter().map(|entry| entry.steps).sum()
    }

    /// What was found, if none of it is refused.
    fn findings(&self, channels: &[Channel], constant: &[usize]) -> Result<Vec<Finding>, Stop> {
        let policies = &self.config.checks;
        let mut findings = clean::findings(&self.odd, channels, &[], None, policies);
        let series = self.entries.len();
        findings.extend(constant.iter().map(|channel| {
            let of = (*channel, self.found[*channel].first);
            clean::constant_finding(of, channels, series, policies.constant)
        }));
        let findings = clean::allowed(findings, None)?;
        if let Some((place, usable)) = &self.lost {
            let work = self.odd.get(*place).ok_or(Stop::Odd)?;
            return Err(lost(clean::nothing_left(work), (channels, usable), self.config).into());
        }
        Ok(findings)
    }

    /// What has been written, and what is to be said of it.
    fn whole(
        self,
        channels: Vec<Channel>,
        findings: Vec<Finding>,
        inputs: &[Input],
    ) -> Result<End, Stop> {
        let steps = self.steps() as u64;
        let segments = self.entries.iter().map(|entry| entry.segments.len() as u64).sum();
        let mut raw = self.gathered.finish();
        if inputs[0].format == Format::Npy {
            raw.sort_classes();
        }
        let checks = Checks {
            rows: self.rows,
            steps,
            series: self.entries.len() as u64,
            segments,
            channels: channels.clone(),
            findings,
            by_series: self.by_series,
            classes: raw.classes.clone(),
            ..Checks::default()
        };
        let series = self.entries.into_iter().zip(&raw.series).map(|(entry, series)| {
            let labels = match series.labels {
                RawLabels::Whole(code) => label_of(code).map_or(LabelKind::None, LabelKind::Whole),
                RawLabels::None | RawLabels::PerStep(_) => LabelKind::None,
            };
            Entry { labels, ..entry }
        });
        let about = About { channels, classes: raw.classes, series: series.collect(), checks };
        Ok(End::Whole(Box::new((self.making.ok_or(Stop::Odd)?, about))))
    }
}

/// The channels of which something was found.
fn places(found: &[Found], is: impl Fn(&Found) -> bool) -> Vec<usize> {
    found.iter().enumerate().filter(|(_, found)| is(found)).map(|(channel, _)| channel).collect()
}

/// All but those at these places. A file may have changed since they were found, and have fewer.
fn take_out<T>(all: &mut Vec<T>, places: &[usize]) {
    let mut at = 0..;
    all.retain(|_| at.next().is_some_and(|at| !places.contains(&at)));
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::fs;

    use firebox_core::Silent;
    use proptest::prelude::*;

    use super::*;
    use crate::ingest::{cleaned, raw};
    use crate::input::inputs;
    use crate::npy::tests::file;
    use crate::{Paths, Policy};

    /// What both ways say, of parts of so many bytes on one of them.
    fn ways(config: &DataConfig, at_once: u64) -> [Result<(SeriesSet, Checks), String>; 2] {
        let inputs = inputs(config).unwrap();
        let cache = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let progress = Progress::of(&Silent, "files", inputs.iter().map(|_| 1));
        let at = (cache.path(), Key::builder("test", 1).finish());
        let stored = store_by(at_once, (&inputs, config), at, &stop, &progress);
        let stored = stored.map_err(|ended| match ended {
            Stop::Failed(error) => said(error),
            other => format!("{other:?}"),
        });
        let left = fs::read_dir(cache.path().join(firebox_cache::SERIES)).into_iter().flatten();
        assert_eq!(left.count(), usize::from(stored.is_ok()), "nothing half-written stays");
        let long = raw(config, &Silent).and_then(|raw| cleaned(raw, config));
        [stored, long.map_err(said)]
    }

    /// An error with its cause.
    fn said(error: DataError) -> String {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        format!("{error}{}", cause.unwrap_or_default())
    }

    fn array(shape: &[usize], values: &[f32]) -> Vec<u8> {
        let shape: Vec<String> = shape.iter().map(ToString::to_string).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        file(1, "<f4", false, &format!("({},)", shape.join(", ")), &bytes)
    }

    fn values(kind: u8, number: f32) -> f32 {
        match kind {
            0 => f32::NAN,
            1 => f32::INFINITY,
            2..=8 => 3.0,
            _ => number,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// The stored series, what was found in them, and every refusal.
        #[test]
        fn arrays_are_the_same_both_ways(
            shapes in proptest::collection::vec((proptest::option::of(1usize..5), 1usize..7), 1..5),
            width in 1usize..4,
            draws in proptest::collection::vec((0u8..60, -9.0f32..9.0), 400),
            // One value in a channel, or none.
            one in proptest::option::of((0usize..4, any::<bool>())),
            tested in any::<bool>(),
            labelled in any::<bool>(),
            policies in (0u8..3, 0u8..3, 0usize..4),
            at_once in 1u64..400,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut draws = draws.iter().cycle();
            let mut config = DataConfig::new(folder.path().join("train"));
            for side in ["train", "test"] {
                let own = folder.path().join(side);
                fs::create_dir(&own).unwrap();
                for (number, (samples, steps)) in shapes.iter().copied().enumerate() {
                    let shape: Vec<usize> = samples.into_iter().chain([steps, width]).collect();
                    let all: usize = shape.iter().product();
                    let values: Vec<f32> = (0..all).map(|at| {
                        let (kind, value) = *draws.next().unwrap();
                        match one {
                            Some((channel, void)) if channel == at % width => if void { f32::NAN } else { 2.0 },
                            _ => values(kind, value),
                        }
                    }).collect();
                    fs::write(own.join(format!("{number}.npy")), array(&shape, &values)).unwrap();
                    let labels: Vec<f32> = (0..samples.unwrap_or(1)).map(|sample| ((7 * sample + 5 * number) % 4) as f32 - 1.0).collect();
                    if labelled {
                        fs::write(own.join(format!("{number}.y.npy")), array(&[labels.len()], &labels)).unwrap();
                    }
                }
            }
            if tested {
                config.test = Some(Paths(vec![folder.path().join("test")]));
            }
            if labelled {
                config.columns.label = Some("y".to_owned());
            }
            let (not_finite, constant, longest_fill) = policies;
            config.checks.not_finite = [Policy::Error, Policy::Drop, Policy::Fill][usize::from(not_finite)];
            config.checks.constant = [ConstantPolicy::Error, ConstantPolicy::Drop, ConstantPolicy::Keep][usize::from(constant)];
            config.checks.longest_fill = longest_fill;
            let [stored, long] = ways(&config, at_once);
            // Where each step has a label of its own, all has to be in memory.
            if stored.as_ref().is_err_and(|said| said == "Odd") {
                prop_assert!(labelled);
            } else {
                prop_assert_eq!(stored, long);
            }
        }

        #[test]
        fn ts_files_are_the_same_both_ways(
            samples in proptest::collection::vec((1usize..5, 0usize..3), 1..12),
            values in proptest::collection::vec(proptest::option::weighted(0.9, -9i8..9), 60),
            fill in any::<bool>(),
            at_once in 1u64..300,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut values = values.iter().cycle();
            let mut config = DataConfig::new(folder.path().join("a_TRAIN.ts"));
            config.test = Some(Paths(vec![folder.path().join("a_TEST.ts")]));
            config.checks.not_finite = if fill { Policy::Fill } else { Policy::Drop };
            for path in [&config.path.0[0], &config.test.clone().unwrap().0[0]] {
                let mut text = "@classLabel true x y z\n@data\n".to_owned();
                for (steps, class) in &samples {
                    let own: Vec<String> = values.by_ref().take(*steps)
                        .map(|value| value.map_or("?".to_owned(), |value| value.to_string()))
                        .collect();
                    let _ = writeln!(text, "{}:{}", own.join(","), ["x", "y", "z"][*class]);
                }
                fs::write(path, text).unwrap();
            }
            let [stored, long] = ways(&config, at_once);
            prop_assert_eq!(stored, long);
        }
    }

    /// An array of so many samples of three steps.
    fn three(folder: &Path, samples: usize) -> DataConfig {
        let values: Vec<f32> = (0..samples * 3).map(|value| value as f32).collect();
        fs::write(folder.join("a.npy"), array(&[samples, 3, 1], &values)).unwrap();
        DataConfig::new(folder.join("a.npy"))
    }

    #[test]
    fn how_far_a_file_is_is_told_and_who_stops_then_stores_nothing() {
        use std::sync::Mutex;
        use std::sync::atomic::Ordering;

        use firebox_core::Event;

        let folder = tempfile::tempdir().unwrap();
        let config = three(folder.path(), 10);
        let inputs = inputs(&config).unwrap();
        let key = Key::builder("test", 1).finish();
        for stopped in [false, true] {
            let (stop, told) = (AtomicBool::new(false), Mutex::new(vec![]));
            let listener = |event: &Event| {
                if let Event::Progress { done, total, .. } = event {
                    told.lock().unwrap().push([*done, *total]);
                    stop.store(stopped && *done > 0, Ordering::Relaxed);
                }
            };
            let progress = Progress::of(&listener, "bytes", [120].into_iter());
            let cache = folder.path().join(format!("cache-{stopped}"));
            let ended = store_by(24, (&inputs, &config), (&cache, key), &stop, &progress);
            progress.end();
            let told = told.lock().unwrap();
            if stopped {
                assert!(matches!(ended, Err(Stop::Failed(DataError::Stopped))));
                let bucket = fs::read_dir(cache.join(firebox_cache::SERIES)).unwrap();
                assert_eq!(bucket.count(), 0, "nothing half-written stays");
                continue;
            }
            assert!(ended.is_ok());
            assert!(told.windows(2).all(|pair| pair[0][0] <= pair[1][0]), "{told:?}");
            assert!(told.iter().filter(|[done, _]| *done < 120).count() >= 4, "{told:?}");
            assert_eq!(told.last(), Some(&[240, 240]));
        }
    }

    #[test]
    fn what_breaks_a_promise_is_refused_before_it_is_stored() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("two.npy"), array(&[2, 3, 2], &[1.0; 12].map(|v| v * 2.0))).unwrap();
        let mut config = DataConfig::new(path("two.npy"));
        config.columns.channels = vec!["a".into(), "a".into()];
        config.checks.constant = ConstantPolicy::Keep;
        let [stored, long] = ways(&config, 1 << 20);
        assert!(stored.as_ref().is_err_and(|said| said.contains("two channels")), "{stored:?}");
        assert_eq!(stored, long);
        // A test series is told apart by a name that another file has.
        for name in ["test", "other"] {
            fs::create_dir(path(name)).unwrap();
        }
        fs::write(path("test.npy"), array(&[2, 3, 1], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).unwrap();
        fs::write(path("1.npy"), array(&[3, 1], &[1.0, 2.0, 4.0])).unwrap();
        fs::write(path("other/1.npy"), array(&[3, 1], &[1.0, 2.0, 5.0])).unwrap();
        let mut config = DataConfig::new(path("test.npy"));
        config.path = Paths(vec![path("test.npy"), path("1.npy")]);
        config.test = Some(Paths(vec![path("other/1.npy")]));
        let [stored, long] = ways(&config, 1 << 20);
        assert!(stored.as_ref().is_err_and(|said| said.contains("test/1")), "{stored:?}");
        assert_eq!(stored, long);
    }

    #[test]
    fn arrays_with_a_label_for_each_step_are_not_begun_with() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = three(folder.path(), 2);
        config.columns.label = Some("y".to_owned());
        let input = &inputs(&config).unwrap()[0];
        let labels = |shape: &[usize], count: usize| {
            fs::write(folder.path().join("a.y.npy"), array(shape, &vec![1.0; count])).unwrap();
            is_labelled_by_step(&config, input)
        };
        assert!(!labels(&[2], 2));
        fs::write(folder.path().join("a.npy"), array(&[3, 1], &[1.0, 2.0, 3.0])).unwrap();
        assert!(labels(&[3], 3));
        assert!(!labels(&[1], 1));
    }
}
