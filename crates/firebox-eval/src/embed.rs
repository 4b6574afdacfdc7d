//! From sources and an encoder to features: the one place where this crate runs a model.
//!
//! What is done with the features is in `evaluate`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use burn::tensor::Device;
use firebox_core::{HeldOutWindows, Listener, Stream};
use firebox_loader::{HeldOutLoader, LoadError, LoaderConfig, Sample, Source};
use firebox_models::{Encoder, KeptWeights};

use crate::evaluate::evaluate_watched;
use crate::{
    EmbeddingView, EvalConfig, EvalError, Evaluation, Features, Parts, Subjects, Together, project,
};

/// The three parts of a split, to read windows from.
#[derive(Clone)]
pub struct Sources {
    /// Training windows as they are, not augmented.
    pub train: Arc<dyn Source>,
    /// Validation windows.
    pub validation: Arc<dyn Source>,
    /// Test windows.
    pub test: Arc<dyn Source>,
    /// The same where they lie in their series, which say what was not measured; none: all was.
    pub held_out: Option<HeldOutWindows>,
    /// Names of the channels.
    pub channels: Vec<String>,
    /// Which test windows hang together.
    pub together: Together,
}

/// One vector for each window.
///
/// # Shapes
///
/// - `rows`: `[window, feature]`, row-major; `labels`: `[window]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Embeddings {
    /// The vectors.
    pub rows: Vec<f32>,
    /// Features of a vector.
    pub width: usize,
    /// Class of each window, if it has one.
    pub labels: Vec<Option<u32>>,
}

impl Embeddings {
    /// Their two-dimensional view for a report.
    pub fn view(&self, classes: &[String]) -> EmbeddingView {
        EmbeddingView {
            projection: project(&self.rows, self.width),
            labels: self.labels.clone(),
            classes: classes.to_vec(),
        }
    }
}

/// Embeds at most `limit` windows of a source (0 is all), taken [`evenly`].
///
/// # Errors
///
/// When a window cannot be read.
pub fn embed<E: Encoder>(
    encoder: &E,
    source: &Arc<dyn Source>,
    limit: usize,
    batch_size: usize,
    device: &Device,
) -> Result<Embeddings, LoadError> {
    let (indices, _) = evenly(source.len(), limit);
    let chosen = Chosen { source: Arc::clone(source), indices };
    embed_all(encoder, chosen, batch_size, device)
}

/// Evaluates a pre-trained encoder beside its baselines on labelled windows: the whole of it.
///
/// `random` makes the encoder as it was initialised, for a seed. Windows without a label are left
/// out. Without any, the answer is `None`. Once `halt` is true, it ends after the iteration of a fit that it is in.
///
/// # Errors
///
/// When a window cannot be read, a random encoder cannot be made, or an embedding is not finite.
/// [`EvalError::Stopped`] by `halt`.
pub fn evaluate_encoder<E, R, F>(
    config: &EvalConfig,
    pretrained: &E,
    mut random: impl FnMut(u64) -> Result<R, F>,
    sources: &Sources,
    device: &Device,
    halt: &AtomicBool,
    listener: &dyn Listener,
) -> Result<Option<Evaluation>, EvalError>
where
    E: Encoder,
    R: Encoder,
    F: std::error::Error + Send + Sync + 'static,
{
    config.validate()?;
    let classes = sources.test.classes().to_vec();
    let Some((chosen, together)) = Labelled::choose(config, sources)? else { return Ok(None) };
    let raw = chosen.raw()?;
    let pretrained = chosen.encode(pretrained, config.batch_size, device)?;
    let subjects =
        Subjects { classes: &classes, pretrained: &pretrained, raw: &raw, together: &together };
    let random = |seed| {
        let encoder =
            random(seed).map_err(|source| EvalError::Encoder { seed, source: Box::new(source) })?;
        chosen.encode(&encoder, config.batch_size, device)
    };
    let mut evaluation = evaluate_watched(config, &subjects, random, halt, listener)?;
    if let Some(evaluation) = &mut evaluation {
        evaluation.answers.windows.clone_from(&chosen.0[2].indices);
    }
    Ok(evaluation)
}

pub(crate) const PARTS: [&str; 3] = ["training", "validation", "test"];

/// The labelled windows of each part that are encoded.
struct Labelled([Chosen; 3]);

impl Labelled {
    /// Chooses them, and says which chosen test windows hang together. `None` when there is nothing to fit or to measure.
    fn choose(
        config: &EvalConfig,
        sources: &Sources,
    ) -> Result<Option<(Self, Together)>, EvalError> {
        let all = [&sources.train, &sources.validation, &sources.test];
        let limits = [config.train_limit, config.train_limit, config.test_limit];
        for (part, source) in PARTS.into_iter().zip(all) {
            same("classes", part, source.classes(), sources.train.classes())?;
            same("channels", part, &[source.shape()[1]], &[sources.train.shape()[1]])?;
        }
        let mut spacing = 1;
        let mut chosen = Vec::new();
        for ((part, source), limit) in PARTS.into_iter().zip(all).zip(limits) {
            let (of_part, every) = Chosen::labelled(part, source, limit)?;
            chosen.push(of_part);
            spacing = every;
        }
        let Ok(chosen) = <[Chosen; 3]>::try_from(chosen) else { return Ok(None) };
        let nothing = chosen[0].is_empty() || chosen[2].is_empty();
        let together = sources.together.of_chosen(&chosen[2].indices, spacing);
        Ok((!nothing).then_some((Self(chosen), together)))
    }

    fn encode<E: Encoder>(
        &self,
        encoder: &E,
        batch_size: usize,
        device: &Device,
    ) -> Result<Parts, EvalError> {
        let part = |place: usize| self.0[place].encode(PARTS[place], encoder, batch_size, device);
        Ok(Parts { train: part(0)?, validation: part(1)?, test: part(2)? })
    }

    /// The windows themselves, padded with zeros to the longest of all parts.
    fn raw(&self) -> Result<Parts, EvalError> {
        let longest = self.0.iter().map(|chosen| chosen.source.shape()[0]).max().unwrap_or(0);
        let width = longest * self.0[0].source.shape()[1];
        let part = |place: usize| {
            let mut features = Features { width, ..Features::default() };
            for index in 0..self.0[place].len() {
                let mut row = vec![0.0; width];
                let sample = self.0[place]
                    .read(index, &mut row)
                    .map_err(|source| EvalError::Read { part: PARTS[place], source })?;
                features.rows.extend(row);
                features.labels.extend(sample.label);
            }
            Ok::<_, EvalError>(features)
        };
        Ok(Parts { train: part(0)?, validation: part(1)?, test: part(2)? })
    }
}

fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    part: &'static str,
    found: &[T],
    expected: &[T],
) -> Result<(), EvalError> {
    if found == expected {
        return Ok(());
    }
    let name = |values: &[T]| format!("{what} {values:?}");
    Err(EvalError::Parts { part, found: name(found), expected: name(expected) })
}

/// Indices of the samples with a label.
pub(crate) fn labelled(source: &Arc<dyn Source>) -> Result<Vec<usize>, LoadError> {
    let [time, channels] = source.shape();
    let mut window = vec![0.0; time * channels];
    let mut indices = Vec::new();
    for index in 0..source.len() {
        window.fill(0.0);
        if source.read(index, &mut window)?.label.is_some() {
            indices.push(index);
        }
    }
    Ok(indices)
}

/// At most `limit` of `count` places (0 is all), in increasing order, and how many of all each stands for: one is drawn of
/// each of `limit` stretches of equal length. Places at equal distances would all be of one class, or of one hour, where
/// these come round in turn. What is drawn depends on the two numbers alone, so that all who are compared see the same.
///
/// # Example
///
/// ```
/// let (places, every) = firebox_eval::evenly(10_000, 2000);
/// assert_eq!((places.len(), every), (2000, 5));
/// assert!(places.iter().enumerate().all(|(stretch, place)| place / 5 == stretch));
/// assert_eq!(firebox_eval::evenly(3, 0), (vec![0, 1, 2], 1));
/// ```
pub fn evenly(count: usize, limit: usize) -> (Vec<usize>, usize) {
    if limit == 0 || count <= limit {
        return ((0..count).collect(), 1);
    }
    let mut draws = Stream::new(0, "windows of many").draws();
    let start = |stretch: usize| stretch * count / limit;
    let drawn = (0..limit).map(|stretch| {
        let length = start(stretch + 1) - start(stretch);
        start(stretch) + draws.below(length as u64) as usize
    });
    (drawn.collect(), count / limit)
}

/// Some samples of a source, as a source.
#[derive(Clone)]
pub(crate) struct Chosen {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) indices: Vec<usize>,
}

impl Chosen {
    /// At most `limit` of the labelled samples (0 is all), taken [`evenly`], and how many of them each stands for.
    pub(crate) fn labelled(
        part: &'static str,
        source: &Arc<dyn Source>,
        limit: usize,
    ) -> Result<(Self, usize), EvalError> {
        let all = labelled(source).map_err(|source| EvalError::Read { part, source })?;
        let (places, every) = evenly(all.len(), limit);
        let indices = places.into_iter().map(|place| all[place]).collect();
        Ok((Self { source: Arc::clone(source), indices }, every))
    }

    /// What an encoder makes of the samples, with their labels.
    pub(crate) fn encode<E: Encoder>(
        &self,
        part: &'static str,
        encoder: &E,
        batch_size: usize,
        device: &Device,
    ) -> Result<Features, EvalError> {
        let embedded = embed_all(encoder, self.clone(), batch_size, device);
        let Embeddings { rows, width, labels } =
            embedded.map_err(|source| EvalError::Read { part, source })?;
        Ok(Features { rows, width, labels: labels.into_iter().flatten().collect() })
    }
}

impl Source for Chosen {
    fn len(&self) -> usize {
        self.indices.len()
    }

    fn shape(&self) -> [usize; 2] {
        self.source.shape()
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        self.source.read(self.indices[index], out)
    }

    fn classes(&self) -> &[String] {
        self.source.classes()
    }
}

/// Bytes of values that are encoded at once; one window is, whatever it takes. A choice: the outputs of an
/// encoder's layers take several times as much.
const AT_ONCE: usize = 32 << 20;

/// A loader's settings for so many windows at once, or as many as [`AT_ONCE`] allows of this shape,
/// `[time, channel]`.
pub(crate) fn in_batches(batch_size: usize, [time, channels]: [usize; 2]) -> LoaderConfig {
    let window = (time * channels * size_of::<f32>()).max(1);
    let batch_size = batch_size.min((AT_ONCE / window).max(1));
    LoaderConfig { batch_size, ..LoaderConfig::default() }
}

pub(crate) fn embed_all<E: Encoder>(
    encoder: &E,
    chosen: Chosen,
    batch_size: usize,
    device: &Device,
) -> Result<Embeddings, LoadError> {
    let mut out = Embeddings { width: encoder.embedding_width(), ..Embeddings::default() };
    if chosen.is_empty() {
        return Ok(out);
    }
    let config = in_batches(batch_size, chosen.shape());
    let weights = KeptWeights::new();
    for batch in HeldOutLoader::new(Arc::new(chosen), config, device.clone())?.batches() {
        let batch = batch?;
        // Reading the values back waits for the device, once a batch.
        let embed = || encoder.embed(batch.inputs, Some(&batch.lengths));
        let embedding = weights.during(embed).into_data();
        out.rows.extend(embedding.convert::<f32>().iter::<f32>());
        out.labels.extend(batch.labels);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_that_are_left_out_are_of_all_classes_where_these_come_in_turn() {
        for (count, limit) in [(10_000, 5000), (10_000, 2000), (60_000, 2000)] {
            let (places, every) = evenly(count, limit);
            assert_eq!((places.len(), every), (limit, count / limit));
            assert!(places.is_sorted_by(|a, b| a < b) && places[limit - 1] < count);
            let mut classes = [0; 10];
            places.iter().for_each(|place| classes[place % 10] += 1);
            let tenth = limit / 10;
            let is_near = |windows: &usize| windows.abs_diff(tenth) <= tenth / 5;
            assert!(classes.iter().all(is_near), "{limit} of {count}: {classes:?}");
        }
        assert_eq!(evenly(10, 4).0, [0, 2, 6, 9]);
        // One more than is taken is left out, and none where there are no more.
        assert_eq!((evenly(5, 4).0.len(), evenly(5, 4).1), (4, 1));
        assert_eq!([evenly(4, 4), evenly(4, 0)], [(vec![0, 1, 2, 3], 1), (vec![0, 1, 2, 3], 1)]);
    }

    #[test]
    fn large_windows_are_encoded_a_few_at_a_time() {
        let at_once = |size, shape| in_batches(size, shape).batch_size;
        // Those of reference system R1, and of R4.
        assert_eq!(at_once(256, [105, 4]), 256);
        assert_eq!(at_once(256, [500, 1024]), 16);
        assert_eq!((at_once(3, [500, 1024]), at_once(256, [1 << 20, 64])), (3, 1));
        assert_eq!(at_once(256, [0, 4]), 256);
    }
}
