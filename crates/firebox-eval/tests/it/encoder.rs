//! From series to scores and reconstruction errors, with a real model on the CPU.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use burn::tensor::Device;
use firebox_core::{
    Channel, Labels, Normalisation, Normaliser, Role, Series, SeriesSet, Silent, SplitRule,
    StepLabels, Stream, WindowRule, split,
};
use firebox_eval::{
    EvalConfig, EvalError, Head, Metric, Outcome, Sources, Subject, Together, ValidationProbe,
    embed, evaluate_encoder, reconstruct, verdict,
};
use firebox_loader::{LoadError, NormalisedWindows, Sample, Source};
use firebox_models::{BiLstmMae, BiLstmMaeConfig, Encoder, MaskedConfig, ModelError};

/// Two regimes of 40 steps in turn, smooth and rough; the first steps of each have no label.
fn sources(labels: Labels) -> Sources {
    let mut draws = Stream::new(1, "series").draws();
    let (mut values, mut classes) = (Vec::new(), Vec::new());
    let mut level = 0.0;
    for step in 0..6000usize {
        let class = (step / 40) % 2;
        level = [0.98, 0.1][class] * level + [0.2, 1.0][class] * draws.normal();
        values.extend([level, draws.normal()]);
        classes.push((step % 40 >= 10).then_some(class as u32));
    }
    let channels = vec![Channel::new("level", Role::Other), Channel::new("noise", Role::Other)];
    let names = ["smooth", "rough"].map(str::to_owned).to_vec();
    let series =
        Series { labels: StepLabels::PerStep(classes), ..Series::regular("a", 0, 1, values, 2) };
    let set = Arc::new(SeriesSet::new(channels, names, vec![series]).unwrap());
    let rule = WindowRule { length: 12, stride: 4, whole: false };
    let parts = split(&set, &rule, &SplitRule::time(0.2, 0.2), &labels).unwrap();
    let normaliser = Normaliser::fit(Normalisation::Standard, &parts.train).unwrap();
    let held = |windows| Arc::new(NormalisedWindows::new(windows, normaliser.clone()));
    Sources {
        train: Arc::new(NormalisedWindows::new(parts.train, normaliser.clone())),
        validation: held(parts.validation),
        held_out: Some(parts.test.clone()),
        test: held(parts.test),
        channels: vec!["level".to_owned(), "noise".to_owned()],
        together: Together::every(3),
    }
}

fn model(seed: u64) -> Result<BiLstmMae, ModelError> {
    let config = BiLstmMaeConfig { hidden: 6, decoder_hidden: 5, ..BiLstmMaeConfig::default() };
    config.init(Stream::new(seed, "weights"), 2, &Device::default())
}

fn config() -> EvalConfig {
    EvalConfig { seeds: 3, resamples: 300, batch_size: 64, ..EvalConfig::default() }
}

#[test]
fn an_encoder_that_was_never_trained_does_not_beat_itself() {
    let (sources, config, device) = (sources(Labels::Last), config(), Device::default());
    let evaluate = |config: &EvalConfig| {
        let model = model(1337).unwrap();
        let never = AtomicBool::new(false);
        let found =
            evaluate_encoder(config, &model, self::model, &sources, &device, &never, &Silent);
        found.unwrap().unwrap()
    };
    let scores = evaluate(&config);
    // Three quarters of the windows end in a step with a label.
    let all = sources.test.len();
    assert!(
        scores.windows[2] < all && scores.windows[2] > all / 2,
        "{:?} of {all}",
        scores.windows
    );
    assert_eq!((scores.block, scores.classes.len()), (3, 2));
    assert_eq!(verdict(Some(&scores), None).outcome, Outcome::DoesNotBeat);
    // Smooth and rough are told apart by any of them, but not by the majority.
    let accuracy =
        |subject, head| scores.score(subject, head).unwrap().metric(Metric::Accuracy).value;
    let random = accuracy(Subject::RandomEncoder, Some(Head::Logistic));
    assert!(random > accuracy(Subject::Majority, None) + 0.1, "{random}");
    assert_eq!(scores, evaluate(&config));
    // What was predicted of each labelled window makes the scores.
    let labels: Vec<u32> = scores.answers.windows.iter().map(|own| label(&sources, *own)).collect();
    assert_eq!(labels.len(), scores.windows[2]);
    for (answer, score) in scores.answers.all.iter().zip(&scores.scores) {
        assert_eq!((answer.subject, answer.head), (score.subject, score.head));
        assert_eq!(answer.runs.len(), score.runs);
        let right = answer.runs.iter().flat_map(|run| run.iter().zip(&labels));
        let right = right.filter(|(said, label)| said == label).count() as f64;
        let share = right / (labels.len() * score.runs) as f64;
        assert!((share - score.metric(Metric::Accuracy).value).abs() < 1e-12, "{answer:?}");
    }
    assert_eq!(scores.answers.all.len(), scores.scores.len());

    let limited = evaluate(&EvalConfig { train_limit: 100, test_limit: 50, ..config });
    assert_eq!((limited.windows[0], limited.windows[2]), (100, 50));
    assert_eq!(limited.block, 2, "three share a step, and of two times four one each is taken");
    assert_eq!(limited.answers.windows.len(), 50);
    assert!(limited.answers.windows.iter().all(|window| scores.answers.windows.contains(window)));
}

/// The class of a test window that has one.
fn label(sources: &Sources, window: usize) -> u32 {
    let [time, channels] = sources.test.shape();
    sources.test.read(window, &mut vec![0.0; time * channels]).unwrap().label.unwrap()
}

/// Windows of two classes with the names of the classes exchanged.
struct Exchanged(Arc<dyn Source>);

impl Source for Exchanged {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn shape(&self) -> [usize; 2] {
        self.0.shape()
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let Sample { length, label } = self.0.read(index, out)?;
        Ok(Sample { length, label: label.map(|class| 1 - class) })
    }

    fn classes(&self) -> &[String] {
        self.0.classes()
    }
}

#[test]
fn a_probe_of_validation_windows_is_fitted_on_training_windows_alone() {
    let (sources, config, device) = (sources(Labels::Last), config(), Device::default());
    let Sources { train, validation, .. } = &sources;
    let model = model(1337).unwrap();
    let score = |config: &EvalConfig, validation: &Arc<dyn Source>| {
        let probe = ValidationProbe::new(config, train, validation).unwrap().unwrap();
        let never = AtomicBool::new(false);
        let confusion = probe.confusion(&model, &device, &never).unwrap();
        assert_eq!(confusion, probe.confusion(&model, &device, &never).unwrap());
        (confusion.total(), confusion.metrics().accuracy)
    };
    let own = score(&config, validation);
    // Smooth and rough are told apart; windows without a label do not count.
    assert!(own.1 > 0.7 && own.0 < validation.len() as u64, "{own:?}");
    // Had it seen validation windows, it would know their other names.
    let other: Arc<dyn Source> = Arc::new(Exchanged(Arc::clone(validation)));
    let other = score(&config, &other);
    assert!(other.0 == own.0 && (0.0..0.35).contains(&other.1), "{other:?}");
    let limited = score(&EvalConfig { train_limit: 50, ..config.clone() }, validation);
    assert_eq!(limited.0, 50);
    let none = self::sources(Labels::None);
    for (train, validation) in [(train, &none.validation), (&none.train, validation)] {
        assert!(ValidationProbe::new(&config, train, validation).unwrap().is_none());
    }
}

#[test]
fn without_labels_there_is_nothing_to_score() {
    let (sources, device) = (sources(Labels::None), Device::default());
    let (never, encoder) = (AtomicBool::new(false), model(1).unwrap());
    let scores = evaluate_encoder(&config(), &encoder, model, &sources, &device, &never, &Silent);
    assert!(scores.unwrap().is_none());
}

#[test]
fn embeddings_follow_the_windows_and_not_the_batches() {
    let (sources, device) = (sources(Labels::Last), Device::default());
    let model = model(1).unwrap();
    let some = embed(&model, &sources.test, 50, 7, &device).unwrap();
    let same = embed(&model, &sources.test, 50, 64, &device).unwrap();
    assert_eq!((some.labels.len(), some.width), (50, model.embedding_width()));
    assert_eq!(some.labels, same.labels);
    assert!(some.rows.iter().zip(&same.rows).all(|(a, b)| (a - b).abs() < 1e-5));
    let view = some.view(sources.test.classes());
    assert_eq!((view.projection.points.len(), view.classes.len()), (50, 2));
}

#[test]
fn masked_steps_are_compared_with_naive_fills() {
    let (sources, device) = (sources(Labels::None), Device::default());
    let model = model(1).unwrap();
    let config = config();
    let found = reconstruct(&config, &model, &sources, 4, &device, &Silent).unwrap();
    let errors = found.reconstruction.as_ref().unwrap();
    assert_eq!((errors.windows, errors.block, found.windows.len()), (sources.test.len(), 3, 4));
    // An untrained model does not beat zero on normalised noise.
    assert!(!errors.hardest().unwrap().reduction.is_above_zero());
    let mut expected = vec![0.0; 24];
    sources.test.read(found.windows[1].index, &mut expected).unwrap();
    assert_eq!(found.windows[1].truth, expected);
    assert!(found.windows.iter().all(|window| window.mask.contains(&true)));
    // The masks belong to the windows: other batches change nothing but rounding.
    let other = EvalConfig { batch_size: 17, ..config.clone() };
    let other = reconstruct(&other, &model, &sources, 4, &device, &Silent).unwrap();
    assert_eq!(found.windows[3].mask, other.windows[3].mask);
    let none = reconstruct(&config, &model, &sources, 0, &device, &Silent).unwrap();
    assert!(none.windows.is_empty() && none.reconstruction == found.reconstruction);
    // The errors of the windows make the scores of all.
    let values: f64 = found.errors.iter().map(|window| window.values).sum();
    for score in &errors.scores {
        let sum: f64 = found.errors.iter().map(|own| own.mean(score.fill) * own.values).sum();
        assert!((sum / values - score.mean_squared_error.value).abs() < 1e-12, "{score:?}");
    }
    assert!(found.errors.iter().map(|window| window.index).eq(0..sources.test.len()));
}

#[test]
fn an_evaluation_that_is_asked_to_stop_says_so() {
    let (sources, device) = (sources(Labels::Last), Device::default());
    let (halt, encoder) = (AtomicBool::new(true), model(1).unwrap());
    let found = evaluate_encoder(&config(), &encoder, model, &sources, &device, &halt, &Silent);
    assert!(matches!(found, Err(EvalError::Stopped)), "{found:?}");
}

#[test]
fn parts_of_two_data_sets_are_refused_and_a_failing_encoder_is_named() {
    #[derive(Debug, thiserror::Error)]
    #[error("no memory")]
    struct NoMemory;
    let (mut sources, device) = (sources(Labels::Last), Device::default());
    let (config, model, never) = (config(), model(1).unwrap(), AtomicBool::new(false));
    let fail = |_| Err::<BiLstmMae, _>(NoMemory);
    let found = evaluate_encoder(&config, &model, fail, &sources, &device, &never, &Silent);
    let error = found.unwrap_err();
    assert!(matches!(error, EvalError::Encoder { seed: 1337, .. }), "{error}");
    let forward = Labels::Forward { horizon: 1, threshold: 1.0 };
    sources.test = {
        let channels = vec![Channel::new("close", Role::Close)];
        let values = (0..900).map(|step| f64::from(step % 7)).collect();
        let set = SeriesSet::new(channels, vec![], vec![Series::regular("b", 0, 1, values, 1)]);
        let rule = WindowRule { length: 12, stride: 4, whole: false };
        let parts =
            split(&Arc::new(set.unwrap()), &rule, &SplitRule::time(0.2, 0.2), &forward).unwrap();
        let normaliser = Normaliser::fit(Normalisation::Standard, &parts.train).unwrap();
        Arc::new(NormalisedWindows::new(parts.test, normaliser))
    };
    let found = evaluate_encoder(&config, &model, fail, &sources, &device, &never, &Silent);
    let error = found.unwrap_err();
    assert!(error.to_string().contains("falls") && error.to_string().contains("smooth"), "{error}");
}

#[test]
fn steps_that_the_model_does_not_restore_are_no_error_of_it() {
    let (sources, device) = (sources(Labels::None), Device::default());
    // Three maxima make one step of eight: the last four of twelve have none.
    let encoder = serde_json::json!({ "encoder": {
        "cnn-bilstm": { "convolutions": [3, 3, 3], "hidden": 3, "head": 4, "classifier": [] }
    }});
    let model: MaskedConfig = serde_json::from_value(encoder).unwrap();
    let model = model.init(Stream::new(1, "weights"), 2, 12, &device).unwrap();
    let all = sources.test.len();
    let found = reconstruct(&config(), &model, &sources, all, &device, &Silent).unwrap();
    let mut counted = 0.0;
    for window in &found.windows {
        let restored = window.mask[..8].iter().filter(|masked| **masked).count();
        counted += 2.0 * restored as f64;
        let own = found.errors.iter().find(|own| own.index == window.index);
        assert_eq!(own.map_or(0.0, |own| own.values), 2.0 * restored as f64);
    }
    let hidden: usize = found.windows.iter().map(|w| w.mask.iter().filter(|m| **m).count()).sum();
    assert!(counted > 0.0 && counted < 2.0 * hidden as f64, "{counted} of {hidden} steps");
    assert_eq!(2 * found.reconstruction.unwrap().masked_steps, counted as u64);
}
