//! The pipeline `finetune`: ingest → windows → (augment → pre-train →) fine-tune → evaluate → report.
//!
//! The weights come from elsewhere, or are pre-trained here on the same training part. Each arm is
//! trained at each share of the labels with several seeds, each in a folder of its own below the run's,
//! so that a run that was killed goes on within the training it was in.

mod arms;
mod config;
mod draw;
mod origin;
mod page;
mod rows;

use std::path::{Path, PathBuf};

use firebox_core::{Augmentation, Event, Key, Labels};
use firebox_eval::{Arm, FewLabels, TestScore};
use firebox_export::{Task, WEIGHTS};
use firebox_models::{Parameter, read_parameters};
use firebox_train::{Classification, LoadEncoder, LossScale, TrainConfig, read_weights};
use serde_json::Value;

use crate::PipelineConfig;
use crate::bench::{Measured, Probe};
use crate::chain::{Chain, Made, Making, Work};
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::feed::draws_on_device;
use crate::kept::{Kept, MODEL, Shown, named};
use crate::keys::{EVALUATION, Keys, json, ordered};
use crate::prepared::find_run_in;
use crate::pretrain::{Pretrain, Training, check_names, probe_shape};
use crate::stages::{Run, Windows, split_reasons};
use crate::test_table::FILE;
use crate::unread::only_evaluates_by;
use crate::zoo::{Place, Pretrainable, with_pretrainable};
use origin::Origin;

pub use config::FinetuneConfig;

/// Classes of a head that is timed: how many there are is not known before the data is read, and they
/// are the least of its work.
const CLASSES: usize = 2;

/// Fine-tuning of a pre-trained encoder, by how many labels there are.
pub(crate) struct Finetune;

impl Chain for Finetune {
    fn check(&self, config: &PipelineConfig) -> Result<(), PipelineError> {
        config.model.check_pretrainable()?;
        settings(config).validate()?;
        if config.labels == Labels::None {
            return Err(PipelineError::Setting(
                "`labels` is none, and fine-tuning learns from labels\n  set [labels]: --set labels=last for the label of each series or of a window's last step"
                    .to_owned(),
            ));
        }
        let read = ["seed", "metric", "confidence", "resamples", "block", "batch_size"];
        only_evaluates_by(config, &read)
    }

    fn check_model(
        &self,
        config: &PipelineConfig,
        device: &ChosenDevice,
    ) -> Result<(), PipelineError> {
        if let Some(encoder) = &settings(config).encoder {
            let path = located(encoder, &config.run.directory);
            Origin::of(&path)?.check_normalisation(config)?;
            weights_of(&path)?;
        }
        with_pretrainable!(&config.model, M => check_head::<M>(config, device))?;
        check_names(config, device)
    }

    fn keys(&self, config: &PipelineConfig, device: &ChosenDevice) -> Result<Keys, PipelineError> {
        let base = pretraining_keys(config, device, crate::feed::series_key(config)?)?;
        let begun = match &settings(config).encoder {
            None => base.training,
            Some(encoder) => weights_key(&weights_of(&located(encoder, &config.run.directory))?.0),
        };
        keys_on(config, device, base, begun)
    }

    /// Those of the pre-training, if there is one: all arms are in parts.
    fn own_keys(
        &self,
        config: &PipelineConfig,
        device: &ChosenDevice,
        keys: &Keys,
    ) -> Result<Keys, PipelineError> {
        pretraining_keys(config, device, keys.series)
    }

    /// The pre-training where there is one, which takes the most time, and else an arm.
    fn probe(
        &self,
        config: &PipelineConfig,
        probe: Probe<'_>,
        device: &ChosenDevice,
    ) -> Result<Measured, PipelineError> {
        let settings = settings(config);
        if settings.pretrains() {
            return Pretrain.probe(config, probe, device);
        }
        let shape = probe_shape(config)?;
        let at = Place::probing(config, shape, &probe, device);
        let of_run = &config.train;
        let train = TrainConfig {
            loss_scale: of_run.loss_scale,
            allow_unscaled_f16: of_run.allow_unscaled_f16,
            ..settings.training(Arm::FineTuned)
        };
        let probe = Probe { batch: settings.batch_size, train: &train, ..probe };
        let objective = Classification::new(settings.loss, vec![1.0; CLASSES], settings.mix);
        with_pretrainable!(&config.model, M => {
            let encoder = <M as Pretrainable>::encoder(&config.model, &at)?;
            let model = settings.head.init(at.stream, encoder, CLASSES, at.device)?;
            let model = model.in_precision(at.precision);
            probe.run_labelled(model, &objective, shape, CLASSES, device)
        })
    }

    fn training_windows(&self, run: &Run<'_>) -> Result<Option<usize>, PipelineError> {
        Pretrain.training_windows(run)
    }

    fn slots(&self, config: &PipelineConfig) -> usize {
        Pretrain.slots(config)
    }

    fn own_batches(&self, config: &PipelineConfig) -> Option<&'static str> {
        (!settings(config).pretrains()).then_some("finetune.batch_size")
    }

    /// The encoder does, in pre-training and in every arm that trains it.
    fn recomputes(&self, _: &PipelineConfig) -> bool {
        true
    }

    fn stages(&self, keys: &Keys) -> Vec<(&'static str, Option<Key>)> {
        vec![
            ("ingest", Some(keys.series)),
            ("windows", Some(keys.windows)),
            ("finetune", Some(keys.training)),
            ("evaluate", Some(keys.evaluation)),
            ("report", None),
        ]
    }

    fn make(&self, run: &Run<'_>, work: &mut Work<'_>) -> Result<Making, PipelineError> {
        with_pretrainable!(&run.config.model, M => make::<M>(run, work))
    }

    fn main_scores(&self, figures: &Value) -> Vec<TestScore> {
        let measured: Option<FewLabels> = serde_json::from_value(figures.clone()).ok();
        measured.and_then(|measured| measured.main_score()).into_iter().collect()
    }

    /// All arms are in parts.
    fn own_training(&self, _: bool) -> &'static str {
        "pre-training"
    }

    fn unsearched(&self) -> Option<&'static str> {
        Some(
            "a search trains one model a trial, and `finetune` trains many\n  search the pre-training: set pipeline = \"pretrain\"",
        )
    }
}

/// Refuses a head that does not fit the encoder, before anything is trained. Neither channels nor classes,
/// which are not known yet, change whether it does.
fn check_head<M: Pretrainable>(
    config: &PipelineConfig,
    device: &ChosenDevice,
) -> Result<(), PipelineError> {
    let at = Place::naming(config, device);
    let encoder = M::encoder(&config.model, &at)?;
    settings(config).head.init(at.stream, encoder, 2, &device.device)?;
    Ok(())
}

/// The table, or its defaults.
fn settings(config: &PipelineConfig) -> FinetuneConfig {
    config.finetune.clone().unwrap_or_default()
}

/// The keys of fine-tuning on those of what comes before it, and of what the encoder begins with.
fn keys_on(
    config: &PipelineConfig,
    device: &ChosenDevice,
    base: Keys,
    begun: Key,
) -> Result<Keys, PipelineError> {
    let settings = settings(config);
    // Where the weights lie does not matter, what they are does.
    let plain = FinetuneConfig { encoder: None, ..settings.clone() };
    let mut training =
        Key::builder("finetune", 1).upstream("windows", base.windows).upstream("encoder", begun);
    // That of a pre-training here is in its own key.
    if settings.encoder.is_some() {
        training = ordered(training, config);
    }
    if plain.versions > 0 {
        training = training.field("augment", json(&amplitudes(&config.augment)));
        if draws_on_device(config, &device.arithmetic_of(config)?) {
            training = training.field("drawn", "device");
        }
    }
    // Left out where there is none, so that such runs keep their keys.
    let scale = crate::stages::training(config).loss_scale;
    if !matches!(scale, LossScale::Off) {
        training = training.field("loss_scale", json(&scale));
    }
    // Rates so low did not fall once; others keep their keys.
    if let Some(minimum) = plain.lowered_minimum() {
        training = training.field("minimum", minimum.to_le_bytes());
    }
    let training = training
        .field("model", json(&config.model))
        .field("finetune", json(&plain))
        .field("precision", config.run.precision.to_string())
        .field("seed", config.run.seed.to_le_bytes())
        .field("arithmetic", device.arithmetic_of(config)?)
        .finish();
    let evaluation = Key::builder("finetune evaluation", EVALUATION)
        .upstream("training", training)
        .field("evaluate", json(&config.evaluate))
        .finish();
    Ok(Keys { training, evaluation, ..base })
}

/// The keys of the pre-training by the same settings, on the series of this key.
fn pretraining_keys(
    config: &PipelineConfig,
    device: &ChosenDevice,
    series: Key,
) -> Result<Keys, PipelineError> {
    Ok(Keys::new(config, series, &device.arithmetic_of(config)?))
}

/// Weights as they are named, or those of the run of that name in the folder of runs.
fn located(encoder: &Path, runs: &Path) -> PathBuf {
    match encoder.file_name() {
        Some(name) if !encoder.exists() => {
            find_run_in(Path::new(name), runs).unwrap_or_else(|_| encoder.to_owned())
        }
        _ => encoder.to_owned(),
    }
}

/// The weights, and where they were. A run whose trainings are all in parts has no checkpoint that would be its own:
/// which weights are meant is asked for.
fn weights_of(path: &Path) -> Result<(Vec<Parameter>, PathBuf), PipelineError> {
    let kept = path.join(MODEL).join(WEIGHTS);
    read_weights(path).map_err(|error| match error {
        LoadEncoder::Nothing { .. } if kept.is_file() => PipelineError::Setting(format!(
            "`{}` has no checkpoint of its own, and a model that was kept\n  name that model, if its encoder is \
             wanted: finetune.encoder = {:?}",
            path.display(),
            kept.display().to_string()
        )),
        // A checkpoint that is damaged or gone, beside what the run was for.
        error if kept.is_file() => PipelineError::Setting(format!(
            "the checkpoint of `{}` cannot be taken: {error}\n  name the model that the run has kept: \
             finetune.encoder = {:?}",
            path.display(),
            kept.display().to_string()
        )),
        error => error.into(),
    })
}

/// A key of the numbers of weights.
fn weights_key(weights: &[Parameter]) -> Key {
    let mut key = Key::builder("weights", 1);
    for Parameter { name, shape, values } in weights {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        key = key.field("name", name).field("shape", format!("{shape:?}")).field("values", bytes);
    }
    key.finish()
}

/// Refuses weights that are not those which a run of these keys is named after: they were changed since.
fn same_weights(
    (config, device, keys): (&PipelineConfig, &ChosenDevice, &Keys),
    weights: &[Parameter],
    path: &Path,
) -> Result<(), PipelineError> {
    // Of what comes before it only the key of the windows counts, which is the run's.
    let now = keys_on(config, device, *keys, weights_key(weights))?;
    match now.training == keys.training {
        true => Ok(()),
        false => Err(PipelineError::OtherWeights { path: path.to_owned() }),
    }
}

/// What the pre-trained arms begin with.
pub(crate) struct Begin {
    weights: Vec<Parameter>,
    path: PathBuf,
    /// Where the weights are from, for the report.
    from: String,
}

fn make<M: Pretrainable>(run: &Run<'_>, work: &mut Work<'_>) -> Result<Making, PipelineError> {
    let settings = settings(run.config);
    let windows = run.windows(&mut work.remade)?;
    work.reasons.extend(split_reasons(run.config, &windows, run.config.labels.horizon()));
    let by_series = windows.parts.boundaries.is_none();
    let parts = &windows.parts;
    let (asked, seeds) = (settings.sorted_shares(), settings.seeds_from(run.config.run.seed));
    let draw::Shares { used, told } = draw::Shares::of(parts, &asked, by_series, &seeds);
    let fitting =
        arms::Fitting { run, settings: &settings, windows: &windows, by_series, shares: &used };
    work.reasons.push(fitting.placed()?.reason());
    work.resolved()?;
    draw::check(&parts.train, &parts.test, &settings.shares, by_series)?;
    for message in told.into_iter().chain(settings.impatience()) {
        run.listener.on(&Event::Warning { message });
    }
    let begin = match &settings.encoder {
        // No arm would begin with them.
        _ if !settings.arms.iter().any(|arm| arm.is_pretrained()) => None,
        Some(encoder) => {
            let named = located(encoder, &run.config.run.directory);
            Origin::of(&named)?.check_windows(run, &windows)?;
            let (weights, path) = weights_of(&named)?;
            same_weights((run.config, run.device, run.keys), &weights, &path)?;
            let from = format!("weights of {}", path.display());
            let begin = Begin { weights, path, from };
            fitting.warn_of_unmatched::<M>(&begin)?;
            Some(begin)
        }
        None => match pretrain::<M>(run, work, &windows)? {
            Ok(begin) => Some(begin),
            Err(step) => return Ok(Making::Interrupted { step }),
        },
    };
    let key = run.keys.training;
    let mut remade = 0;
    let fitted = run.stage("finetune", Some(key), &mut remade, || {
        let fitted = fitting.all::<M>(work, begin.as_ref())?;
        let detail = fitted.detail();
        let reused = fitted.reused;
        Ok((fitted, reused, detail))
    });
    let mut fitted = fitted?;
    work.remade += remade;
    let mut evaluated = 0;
    let scores = run.stage("evaluate", Some(run.keys.evaluation), &mut evaluated, || {
        let scores = fitted.scores(run, &windows);
        rows::write(&work.path.join(FILE), run, &windows, &fitted)?;
        let detail = format!("{} test windows", scores.windows);
        Ok((scores, false, detail))
    })?;
    work.remade += evaluated;
    if let (Some(TestScore { estimate, .. }), Some(arm)) = (scores.main_score(), scores.first_arm())
    {
        let name = match arm {
            Arm::FineTuned => "fine_tuned",
            Arm::PreTrainedFrozen => "pre_trained_frozen",
            Arm::FromScratch => "from_scratch",
            Arm::RandomFrozen => "random_frozen",
        };
        let (name, value) = (format!("test/{name}"), estimate.value);
        run.listener.on(&Event::Scored { name, value });
    }
    let classes = windows.parts.train.classes();
    let (whose, told) = fitted.kept_score(run, classes.len());
    let trained = format!("{}; kept: {whose}", fitted.detail());
    let shape = run.shape(&windows);
    let kept = Kept {
        task: Task::Classification,
        architecture: M::classifier(&run.config.model, &settings.head, shape, classes.len())?,
        parameters: std::mem::take(&mut fitted.kept),
        classes,
        trained: &trained,
        scores: named(&told),
        scores_of: String::new(),
        shown: Shown::windows(run, &windows)?,
    };
    run.keep_model(work, kept)?;
    let report = page::report(run, work.prepared.name(), &windows, &fitted, scores, begin.as_ref());
    Ok(Making::Complete(Box::new(Made { report, trained, outcome: "finished".to_owned() })))
}

/// What fine-tuning takes from `[augment]`. It draws versions anew in each epoch, as many as
/// `[finetune]` says, and stores none.
fn amplitudes(augment: &Augmentation) -> Augmentation {
    let Augmentation { mode, versions, storage, .. } = Augmentation::default();
    Augmentation { mode, versions, storage, ..augment.clone() }
}

/// Pre-trains in the run's own folder, as the pipeline `pretrain` does; the step that it was interrupted
/// at, if it was.
fn pretrain<M: Pretrainable>(
    run: &Run<'_>,
    work: &mut Work<'_>,
    windows: &Windows,
) -> Result<Result<Begin, u64>, PipelineError> {
    let keys = pretraining_keys(run.config, run.device, run.keys.series)?;
    let own = Run { keys: &keys, ..*run };
    let feed = own.feed(windows, &mut work.remade)?;
    Ok(match own.train::<M>(windows, &feed, work.path, None, &mut work.remade)? {
        Training::Interrupted { step } => Err(step),
        Training::Complete(trained) => Ok(Begin {
            weights: read_parameters(&trained.model),
            path: work.path.to_owned(),
            from: format!("Pre-trained here: {}", trained.summary),
        }),
    })
}

impl From<LoadEncoder> for PipelineError {
    fn from(error: LoadEncoder) -> Self {
        Self::Encoder(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use firebox_core::{AugmentMode, Precision, Storage};

    use super::*;

    #[test]
    fn of_a_run_without_a_checkpoint_the_kept_model_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let said = || weights_of(folder.path()).unwrap_err().to_string();
        assert!(said().contains("a folder without a checkpoint"), "{}", said());
        let kept = folder.path().join(MODEL);
        std::fs::create_dir(&kept).unwrap();
        std::fs::write(kept.join(WEIGHTS), "").unwrap();
        assert!(said().contains("has no checkpoint of its own"), "{}", said());
        assert!(said().contains("model/model.safetensors"), "{}", said());
        // Nor is one of which a file is gone.
        let checkpoint = folder.path().join("checkpoints/step-000004");
        std::fs::create_dir_all(&checkpoint).unwrap();
        let manifest = r#"{"version":2,"step":4,"epochs":1,"kind":"epoch","score":null,"key":"00000000000000000000000000000000","files":{}}"#;
        std::fs::write(checkpoint.join("manifest.json"), manifest).unwrap();
        assert!(said().contains("cannot be taken"), "{}", said());
        assert!(said().contains("model/model.safetensors"), "{}", said());
    }

    #[test]
    fn a_name_is_that_of_a_run_in_the_folder_of_runs() {
        let folder = tempfile::tempdir().unwrap();
        let (runs, named) = (folder.path().join("out"), folder.path().join("pretrain-1"));
        let run = runs.join("pretrain-1");
        std::fs::create_dir_all(&run).unwrap();
        assert_eq!(located(&named, &runs), named, "it is no run yet");
        std::fs::write(run.join(crate::folder::PIPELINE), "").unwrap();
        assert_eq!(located(&named, &runs), run);
        assert_eq!(located(&named, &folder.path().join("runs")), named);
    }

    #[test]
    fn the_training_in_the_folder_of_a_run_is_its_pre_training() {
        let config =
            PipelineConfig { pipeline: crate::Kind::Finetune, ..PipelineConfig::default() };
        let device = ChosenDevice::named("cpu");
        let arithmetic = device.arithmetic_of(&config).unwrap();
        let base = Keys::new(&config, Key::builder("series", 1).finish(), &arithmetic);
        let keys = keys_on(&config, &device, base, base.training).unwrap();
        assert_ne!(keys.training, base.training);
        assert_eq!(Finetune.own_keys(&config, &device, &keys).unwrap(), base);
        let pretrain = PipelineConfig::default();
        assert_eq!(Pretrain.own_keys(&pretrain, &device, &base).unwrap(), base);
    }

    #[test]
    fn of_arms_that_are_not_pre_trained_the_classifier_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let bars = folder.path().join("bars.csv");
        std::fs::write(&bars, "open,high,low,close\n1,2,0,1\n").unwrap();
        let device = ChosenDevice::named("cpu");
        let parameters = |table: &str| {
            let text = format!(
                "pipeline = 'finetune'\n[data]\npath = {bars:?}\n[window]\nlength = 12\n[model.bilstm-mae]\nhidden = 4\ndecoder_hidden = 4\n[finetune]\n{table}"
            );
            let config = crate::step::of_step(&toml::from_str(&text).unwrap());
            let train = TrainConfig::default();
            let probe = Probe { precision: Precision::F32, batch: 7, steps: 1, train: &train };
            Finetune.probe(&config, probe, &device).unwrap().parameters
        };
        let of_classifier = parameters("encoder = 'weights'");
        assert_eq!(parameters("arms = ['from-scratch', 'random-frozen']"), of_classifier);
        // With a decoder in place of a head.
        assert_ne!(parameters("arms = ['from-scratch', 'fine-tuned']"), of_classifier);
    }

    #[test]
    fn weights_that_change_between_key_and_reading_are_refused_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        let write = |value: f32| {
            let one = |number: usize| {
                let (name, values) = (format!("weight.{number}"), vec![value; number + 1]);
                Parameter { name, shape: vec![number + 1], values }
            };
            let all: Vec<Parameter> = (0..12).map(one).collect();
            std::fs::write(&path, firebox_export::safetensors(&all, &[]).unwrap()).unwrap();
        };
        write(1.0);
        let config = PipelineConfig {
            pipeline: crate::Kind::Finetune,
            finetune: Some(FinetuneConfig {
                encoder: Some(path.clone()),
                ..FinetuneConfig::default()
            }),
            ..PipelineConfig::default()
        };
        let device = ChosenDevice::named("cpu");
        let base = Keys::new(&config, Key::builder("series", 1).finish(), "cpu");
        let begun = || weights_key(&weights_of(&path).unwrap().0);
        let keys = keys_on(&config, &device, base, begun()).unwrap();
        let check = || {
            let (weights, at) = weights_of(&path).unwrap();
            same_weights((&config, &device, &keys), &weights, &at)
        };
        // Each reading has a hash map of its own.
        for _ in 0..8 {
            check().unwrap();
        }
        write(2.0);
        let error = check().unwrap_err();
        assert!(
            matches!(&error, PipelineError::OtherWeights { path: found } if *found == path),
            "{error}"
        );
        write(1.0);
        check().unwrap();
    }

    #[test]
    fn a_training_is_kept_when_settings_change_that_it_does_not_read() {
        let usual = Augmentation::default();
        let text = |edit: fn(&mut Augmentation)| {
            let mut augment = Augmentation::default();
            edit(&mut augment);
            json(&amplitudes(&augment))
        };
        // Such runs had this text in their keys before.
        assert_eq!(text(|_| ()), json(&usual));
        assert_eq!(text(|augment| augment.versions += 3), json(&usual));
        assert_eq!(text(|augment| augment.mode = AugmentMode::Online), json(&usual));
        assert_eq!(text(|augment| augment.storage = Storage::F16), json(&usual));
        assert_ne!(text(|augment| augment.jitter.sigma *= 2.0), json(&usual));
    }
}
