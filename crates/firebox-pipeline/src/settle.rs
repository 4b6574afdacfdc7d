//! Settings that the device or a measurement on it decides, settled before anything is made, because
//! the keys of results depend on them: `run.precision` and `loader.batch_size`, where they are `auto`,
//! and what a device is asked to promise.
//!
//! What was measured is kept in the cache, and the settings beside a run hold the values: a resume
//! measures nothing.

mod chosen;

use std::ffi::OsStr;
use std::time::Duration;

use firebox_core::MatmulPrecision;
use firebox_eval::Reason;
use firebox_export::ModelCard;
use firebox_kernels::{CpuKernels, F32Products};

use crate::batch_size;
use crate::config::{Autotune, LARGEST_BATCH};
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::precision::{Abilities, resolve};
use crate::{Kind, PipelineConfig};
use chosen::{Timed, choose, timed};

/// What says how many threads compute.
const THREADS: &str = "RAYON_NUM_THREADS";
/// Threads at most: more than processors have. With tens of thousands nothing goes on, or the system refuses them.
const MOST_THREADS: usize = 4096;

/// The settings with every value settled, and a reason for each that was. `samples` counts those of the training set,
/// where the kind of pipeline can: it reads the data for that, and is asked only where steps are to be measured. `told`
/// hears what was measured: what was chosen where `auto` was written, and what it costs to compute layers again; whether
/// that was known before, and how long it took.
pub(crate) fn settle(
    config: &PipelineConfig,
    device: &ChosenDevice,
    samples: impl FnOnce() -> Result<Option<usize>, PipelineError>,
    told: impl Fn(&Reason, bool, Duration),
) -> Result<(PipelineConfig, Vec<Reason>), PipelineError> {
    let mut config = config.clone();
    let reason =
        |key: &str, value: String, reason: String| Reason { key: key.to_owned(), value, reason };
    refuse_capture(&config)?;
    check_recompute(&config)?;
    let mut reasons = vec![];
    let sized = config.loader.batch_size != 0;
    if !sized {
        batch_size::check_sized(&config, device)?;
    }
    let resolution = resolve(config.run.rule(), config.run.matmul, &Abilities::of(device)?)?;
    let tuned = autotune(&config, device)?;
    // After all that is refused without data, and before models are measured: with the channels that the data have, in
    // batches that they fill.
    let measured = !sized || config.run.auto || config.run.recompute;
    let samples = if measured { samples()? } else { None };
    let (policy, batch) = choose(&config, resolution, samples, device)
        .map_err(|error| error.measuring(what_is_measured(&config)))?;
    let Timed { found: policy, reused, took } = policy;
    let precision = reason("run.precision", policy.precision.to_string(), policy.reason);
    if config.run.auto {
        told(&precision, reused, took);
    }
    config.run.precision = policy.precision;
    config.run.auto = false;
    // What else it can ask for is a precision. A processor's products are exact in any case; the model that it trains
    // is to be multiplied so on other devices, too.
    config.run.matmul = config.run.matmul.filter(|matmul| *matmul == MatmulPrecision::Highest);
    reasons.push(precision);
    reasons.extend(tuned);
    if let Some(Timed { found: chosen, reused, took }) = batch {
        config.loader.batch_size = chosen.size;
        let chosen = reason("loader.batch_size", chosen.size.to_string(), chosen.reason);
        told(&chosen, reused, took);
        reasons.push(chosen);
        let rate = config.train.learning_rate();
        let why = "not adjusted to the batch: it is as written, or R1's for a batch of 512";
        reasons.push(reason("learning rate", rate.to_string(), why.to_owned()));
    }
    if config.run.recompute {
        let batch = filled(&config, samples);
        let trade = || batch_size::recompute_trade(&config, batch, device);
        let Timed { found: why, reused, took } =
            timed(trade).map_err(|error| error.measuring("what `run.recompute` costs"))?;
        let trade = reason("run.recompute", "true".to_owned(), why);
        told(&trade, reused, took);
        reasons.push(trade);
    }
    Ok((config, reasons))
}

/// The settings that are `auto`.
fn what_is_measured(config: &PipelineConfig) -> &'static str {
    match (config.run.auto, config.loader.batch_size) {
        (true, 0) => "`run.precision` and `loader.batch_size`",
        (_, 0) => "`loader.batch_size`",
        _ => "`run.precision`",
    }
}

/// The samples of a training batch as it is written, of which a training set may have fewer. Under `loader.tokens`,
/// those of the longest kind, as steps that are measured have them.
fn filled(config: &PipelineConfig, samples: Option<usize>) -> usize {
    let longest = match (config.pipeline, &config.text) {
        (Kind::Text, Some(text)) => text.longest,
        _ => config.window.length,
    };
    let batch = match config.loader.tokens {
        0 => config.loader.batch_size,
        tokens => (tokens / longest.max(1)).max(1),
    };
    batch.min(samples.unwrap_or(batch).max(1))
}

/// Runs `f` with products of f32 as exact as settled settings have them.
pub(crate) fn multiplying<T>(matmul: Option<MatmulPrecision>, f: impl FnOnce() -> T) -> T {
    match (matmul, CpuKernels::current()) {
        (Some(MatmulPrecision::Highest), Ok(kernels)) => {
            F32Products::Exact.during(|| kernels.exact().force(f))
        }
        _ => f(),
    }
}

/// How exact the training of a model had them, if it said so.
///
/// # Errors
/// If a GPU cannot promise it.
pub(crate) fn matmul_of(
    card: &ModelCard,
    device: &ChosenDevice,
) -> Result<Option<MatmulPrecision>, PipelineError> {
    let matmul = trained_with(&card.settings);
    if matmul == Some(MatmulPrecision::Highest) && device.backend != "cpu" {
        F32Products::Exact.check(&device.device).map_err(|error| {
            PipelineError::Setting(format!(
                "the model was trained with run.matmul = \"highest\", and this device cannot promise it: {error}\n  \
                 take --device cpu, whose products of f32 are exact"
            ))
        })?;
    }
    Ok(matmul)
}

/// What the settings on a card say of it, if they do.
fn trained_with(settings: &serde_json::Value) -> Option<MatmulPrecision> {
    serde_json::from_value(settings.pointer("/run/matmul")?.clone()).ok()
}

/// The reasons that the settings beside a run give.
pub(crate) fn reasons_in(settings: &str) -> Vec<Reason> {
    let said = settings.lines().map_while(|line| line.strip_prefix("# "));
    let reason = |line: &str| {
        let (key, rest) = line.split_once(" = ")?;
        let (value, reason) = rest.split_once(": ")?;
        let [key, value, reason] = [key, value, reason].map(str::to_owned);
        Some(Reason { key, value, reason })
    };
    said.filter_map(reason).collect()
}

/// The reasons from before, where the values are still theirs: what was measured then is as written now, and its
/// reason is what was measured.
pub(crate) fn as_before(
    before: Vec<Reason>,
    config: &PipelineConfig,
    mut now: Vec<Reason>,
) -> Vec<Reason> {
    let own = [
        ("run.precision", config.run.precision.to_string()),
        ("loader.batch_size", config.loader.batch_size.to_string()),
        ("learning rate", config.train.learning_rate().to_string()),
    ];
    for before in before {
        if !own.iter().any(|(own, found)| *own == before.key && *found == before.value) {
            continue;
        }
        match now.iter_mut().find(|reason| reason.key == before.key) {
            Some(reason) => *reason = before,
            None => now.push(before),
        }
    }
    now
}

/// Refuses what the environment says, and nobody would heed. That is the machine's own, so it is looked at before
/// anything is begun: no trial of a search fails for it.
pub(crate) fn check_environment() -> Result<(), PipelineError> {
    check_threads(std::env::var_os(THREADS).as_deref())
}

/// Rayon takes what is no number as if nothing stood there.
fn check_threads(found: Option<&OsStr>) -> Result<(), PipelineError> {
    let Some(found) = found.map(|found| found.to_string_lossy()) else { return Ok(()) };
    let number = found.parse::<usize>();
    if found.is_empty() || number.as_ref().is_ok_and(|number| *number <= MOST_THREADS) {
        return Ok(());
    }
    let what = match number {
        Ok(_) => format!("more than the {MOST_THREADS} threads that may compute"),
        Err(_) => "no number of threads".to_owned(),
    };
    Err(PipelineError::Setting(format!(
        "the environment variable {THREADS} is `{found}`, which is {what}\n  \
         set it to a whole number, such as 4, or unset it: one for each hardware thread, as 0 means"
    )))
}

/// More samples than a set can have are a slip of the finger. `loader.batch_size` is read so.
pub(crate) fn check_batches(config: &PipelineConfig) -> Result<(), PipelineError> {
    let finetune = config.finetune.iter().map(|table| ("finetune.batch_size", table.batch_size));
    let several = config.multitimeframe.iter().flat_map(|table| {
        [
            ("multitimeframe.lstm.batch_size", table.lstm.batch_size),
            ("multitimeframe.transformer.batch_size", table.transformer.batch_size),
            ("multitimeframe.mlp.batch_size", table.mlp.batch_size),
        ]
    });
    let all = [("evaluate.batch_size", config.evaluate.batch_size)].into_iter();
    match all.chain(finetune).chain(several).find(|(_, size)| *size > LARGEST_BATCH) {
        Some((key, size)) => Err(PipelineError::Setting(format!(
            "`{key}` is {size}; it must be at most {LARGEST_BATCH}"
        ))),
        None => Ok(()),
    }
}

/// Layers are computed again where a model has some to compute.
fn check_recompute(config: &PipelineConfig) -> Result<(), PipelineError> {
    let chain = config.pipeline.chain();
    if !config.run.recompute || chain.recomputes(config) {
        return Ok(());
    }
    let (which, batches) = (chain.not_recomputed(), chain.own_batches(config));
    let batches = batches.unwrap_or("loader.batch_size");
    Err(PipelineError::Setting(format!(
        "`run.recompute` is true, and {which} does not compute its layers again\n  \
         leave `run.recompute` out; a smaller {batches} with train.accumulate saves memory, too"
    )))
}

/// Whole steps are not replayed: see the message.
fn refuse_capture(config: &PipelineConfig) -> Result<(), PipelineError> {
    if !config.run.capture {
        return Ok(());
    }
    Err(PipelineError::Setting(
        "`run.capture` is true, and Burn 0.22 records no step that has gradients; replayed steps were shown to equal the steps themselves, bit for bit, on no device yet (they have to over 1,000 steps of changing learning rate, loss scale and dropout)\n  \
         leave `run.capture` out"
            .to_owned(),
    ))
}

/// Whether Burn times kernels of a GPU in this build.
const TUNES: bool = cfg!(feature = "autotune");

/// What Burn does about tuning, as far as it was asked for.
fn autotune(
    config: &PipelineConfig,
    device: &ChosenDevice,
) -> Result<Option<Reason>, PipelineError> {
    let Some(asked) = config.run.autotune else { return Ok(None) };
    let said = |value: &str, reason: &str| Reason {
        key: "run.autotune".to_owned(),
        value: value.to_owned(),
        reason: reason.to_owned(),
    };
    match (asked, device.backend.as_str()) {
        (_, "cpu") => Ok(Some(said(
            "off",
            "a processor's kernels are chosen by its instructions; there is nothing to tune",
        ))),
        (Autotune::On, backend) if !TUNES => Err(PipelineError::Setting(format!(
            "`run.autotune` is on, and this build does not time kernels: Burn decides that when it is compiled\n  \
             build with --features {backend}, or leave `run.autotune` out"
        ))),
        (Autotune::On, _) => Ok(Some(said(
            "on",
            "Burn times kernels at their first use and keeps the choice in cubecl's cache (cubecl.toml and CUBECL_AUTOTUNE_LEVEL set how); the first step holds that time",
        ))),
        (Autotune::Off, backend) if TUNES => Err(PipelineError::Setting(format!(
            "`run.autotune` is off, and this build of a GPU backend tunes: Burn decides that when it is compiled\n  \
             build with --features {backend}-plain,fusion in place of {backend}, leave `run.autotune` out, or set CUBECL_AUTOTUNE_LEVEL=minimal for the least of it"
        ))),
        (Autotune::Off, _) => Ok(Some(said(
            "off",
            "this build times no kernels: Burn takes the one that it takes by itself",
        ))),
    }
}

#[cfg(test)]
mod tests {
    use firebox_core::Precision;
    use firebox_data::Paths;
    use firebox_models::BiLstmMaeConfig;
    use tempfile::TempDir;

    use super::*;

    fn settled(
        config: &PipelineConfig,
        backend: &str,
    ) -> Result<(PipelineConfig, Vec<Reason>), PipelineError> {
        settle(config, &ChosenDevice::named(backend), || Ok(None), |_, _, _| {})
    }

    fn small() -> PipelineConfig {
        let mut config = PipelineConfig::default();
        let model = BiLstmMaeConfig { hidden: 8, decoder_hidden: 8, ..BiLstmMaeConfig::default() };
        config.model = crate::ModelConfig::BilstmMae(model);
        (config.window.length, config.loader.batch_size) = (10, 4);
        config
    }

    /// A folder with a file of one bar.
    fn with_bars() -> (TempDir, Paths) {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("bars.csv");
        std::fs::write(&data, "open,high,low,close\n1,2,0,1\n").unwrap();
        (folder, Paths(vec![data]))
    }

    #[test]
    fn auto_becomes_a_precision_with_its_reason() {
        let (folder, data) = with_bars();
        let mut config = small();
        config.data.path = data;
        config.run.cache = folder.path().join("cache");
        config.run.auto = true;
        let (found, reasons) = settled(&config, "cpu").unwrap();
        assert!(!found.run.auto && found.run.precision != Precision::F16);
        let [only] = &reasons[..] else { panic!("{reasons:?}") };
        assert_eq!(
            (only.key.as_str(), &only.value),
            ("run.precision", &found.run.precision.to_string())
        );
        assert!(only.reason.contains("measured"), "{}", only.reason);
        // Kept in the cache: the same answer, to the last digit.
        let told = std::cell::RefCell::new(vec![]);
        let tell = |reason: &Reason, reused, _| told.borrow_mut().push((reason.clone(), reused));
        let again = settle(&config, &ChosenDevice::named("cpu"), || Ok(None), tell).unwrap();
        assert_eq!(again.1, reasons);
        assert_eq!(told.into_inner(), [(only.clone(), true)]);
    }

    #[test]
    fn a_precision_is_measured_in_the_batch_that_the_run_takes_and_not_again_for_another_rate() {
        let (folder, data) = with_bars();
        let mut config = small();
        config.data.path = data;
        config.run.cache = folder.path().join("cache");
        config.run.auto = true;
        let measured = |config: &PipelineConfig, samples: Option<usize>| {
            let told = std::cell::RefCell::new(vec![]);
            let tell = |reason: &Reason, reused, _| {
                told.borrow_mut().push((reason.reason.clone(), reused));
            };
            settle(config, &ChosenDevice::named("cpu"), || Ok(samples), tell).unwrap();
            told.into_inner().remove(0)
        };
        let (reason, reused) = measured(&config, Some(100));
        assert!(reason.contains("with batches of 4") && !reused, "{reason}");
        // What takes no time.
        config.train.optimizer = firebox_train::Optimizer::AdamW(firebox_train::AdamWConfig {
            learning_rate: 1e30,
            ..firebox_train::AdamWConfig::default()
        });
        (config.run.seed, config.train.epochs) = (7, 3);
        assert_eq!(measured(&config, None), (reason.clone(), true));
        // A training set of fewer samples, and another size.
        let (reason, reused) = measured(&config, Some(3));
        assert!(reason.contains("with batches of 3") && !reused, "{reason}");
        config.loader.batch_size = 8;
        let (reason, reused) = measured(&config, Some(100));
        assert!(reason.contains("with batches of 8") && !reused, "{reason}");
        // As many windows of ten steps as are in a batch of so many steps, whatever stands beside that.
        config.loader.tokens = 69;
        let (reason, reused) = measured(&config, Some(100));
        assert!(reason.contains("with batches of 6") && !reused, "{reason}");
    }

    #[test]
    fn a_batch_of_steps_has_as_many_samples_as_it_holds() {
        let of = |text: &str, samples| {
            let mut config: PipelineConfig = toml::from_str(text).unwrap();
            config.loader.batch_size = 7;
            filled(&config, samples)
        };
        let windows = "[window]\nlength = 60\n[loader]\ntokens = ";
        assert_eq!(of(&format!("{windows}0"), None), 7);
        assert_eq!(of(&format!("{windows}1199"), None), 19);
        assert_eq!(of(&format!("{windows}1199"), Some(5)), 5);
        // Of whole series, which may be longer than that, one.
        assert_eq!(of(&format!("{windows}59"), None), 1);
        let texts = format!("{}\n[loader]\ntokens = 100", KINDS[5]);
        assert_eq!(of(&texts, None), 8);
    }

    /// Each kind of pipeline with models that a step of takes milliseconds.
    const KINDS: [&str; 6] = [
        "pipeline = 'pretrain'\n[model.patch-transformer]\nwidth = 8\nheads = 2\nfeedforward = 8",
        "pipeline = 'finetune'\n[finetune]\nencoder = 'weights'\nbatch_size = 4\n[model.bilstm-mae]\nhidden = 8",
        "pipeline = 'forecast'\n[forecast]\ntargets = ['close']\nstatics = ['open']\ncalendar = ['hour']\n[model.stacked-lstm]\nhidden_1 = 8\nhidden_2 = 4",
        "pipeline = 'multitimeframe'\n[multitimeframe]\nmlp = { batch_size = 4, settings = { hidden = [8] } }\nlstm = { batch_size = 4, settings = { hidden = 8, attention = 4, head_hidden = 4 } }\ntransformer = { batch_size = 4, settings = { width = 8, heads = 2, feedforward = 8, head_hidden = 4 } }",
        "pipeline = 'pseudolabel'\n[pseudolabel]\nclusters = 3\n[pseudolabel.model]\nconvolutions = [8]\nhidden = 8\nhead = 8\nembedding = 8\nclassifier = [8]",
        "pipeline = 'text'\n[text]\npath = 'a.csv'\nlongest = 12\n[text.columns]\nspan = ['begin', 'end']\n[model.bert]\nwidth = 8\nfeedforward = 8",
    ];

    #[test]
    fn every_kind_is_measured_and_says_what_it_costs_to_compute_again() {
        let (folder, data) = with_bars();
        for text in KINDS {
            let mut config: PipelineConfig = toml::from_str(text).unwrap();
            (config.run.cache, config.run.auto) = (folder.path().join("cache"), true);
            (config.window.length, config.loader.batch_size) = (10, 4);
            if config.text.is_none() {
                config.data.path = data.clone();
            }
            let (found, reasons) = settled(&config, "cpu").unwrap();
            assert!(!found.run.auto && reasons[0].reason.contains("ms a step"), "{reasons:?}");
            config.run.recompute = true;
            let (_, reasons) = settled(&config, "cpu").unwrap();
            let own = reasons.iter().find(|reason| reason.key == "run.recompute").unwrap();
            assert!(own.reason.contains("ms a step"), "{text}: {}", own.reason);
        }
    }

    #[test]
    fn a_model_without_layers_to_compute_again_is_refused() {
        let text = "pipeline = 'multitimeframe'\n[multitimeframe]\nmodels = ['mlp']";
        let mut config: PipelineConfig = toml::from_str(text).unwrap();
        config.run.recompute = true;
        let said = settled(&config, "cpu").unwrap_err().to_string();
        assert!(said.contains("`mlp`, the one model of `multitimeframe.models`,"), "{said}");
        assert!(said.contains("does not compute its layers again"), "{said}");
        assert!(said.contains("a smaller multitimeframe.mlp.batch_size with"), "{said}");
        assert!(!said.contains("loader.batch_size"), "{said}");
    }

    #[test]
    fn a_batch_that_is_sized_elsewhere_is_not_measured() {
        for (text, own) in [(KINDS[1], "finetune.batch_size"), (KINDS[3], "multitimeframe.lstm")] {
            let mut config: PipelineConfig = toml::from_str(text).unwrap();
            config.loader.batch_size = 0;
            let said = settled(&config, "cpu").unwrap_err().to_string();
            assert!(said.contains(own) && said.contains("leave loader.batch_size out"), "{said}");
        }
        let mut config = small();
        (config.loader.batch_size, config.loader.tokens) = (0, 400);
        let said = settled(&config, "cpu").unwrap_err().to_string();
        assert!(said.contains("sizes no training batch beside `loader.tokens`"), "{said}");
        assert!(said.contains("leave loader.batch_size out"), "{said}");
    }

    #[test]
    fn layers_that_are_computed_again_say_what_it_costs() {
        let (folder, data) = with_bars();
        let mut config = small();
        config.data.path = data;
        config.run.cache = folder.path().join("cache");
        config.run.recompute = true;
        let (found, reasons) = settled(&config, "cpu").unwrap();
        let own = reasons.iter().find(|reason| reason.key == "run.recompute").unwrap();
        assert!(found.run.recompute && own.reason.contains("ms a step"), "{}", own.reason);
        assert_eq!(settled(&config, "cpu").unwrap().1, reasons);
        // It is told, too, with whether it was known.
        let told = std::cell::RefCell::new(vec![]);
        let tell = |reason: &Reason, reused, _| told.borrow_mut().push((reason.clone(), reused));
        settle(&config, &ChosenDevice::named("cpu"), || Ok(None), tell).unwrap();
        assert_eq!(told.into_inner(), [(own.clone(), true)]);
    }

    #[test]
    fn a_resumed_run_keeps_the_reasons_of_what_was_measured() {
        let now = vec![Reason {
            key: "run.precision".to_owned(),
            value: "f32".to_owned(),
            reason: "as written".to_owned(),
        }];
        let mut config = small();
        config.loader.batch_size = 64;
        let before = "# The settings of this run\n# run.precision = f32: measured: 2 ms\n\
                      # loader.batch_size = 64: 128 brings +1 %\n# split = time: as of then\n\n\
                      # loader.batch_size = 64: not a reason any more";
        let said = |config: &PipelineConfig| -> Vec<String> {
            let reasons = as_before(reasons_in(before), config, now.clone()).into_iter();
            reasons
                .map(|reason| format!("{} = {}: {}", reason.key, reason.value, reason.reason))
                .collect()
        };
        let both =
            ["run.precision = f32: measured: 2 ms", "loader.batch_size = 64: 128 brings +1 %"];
        assert_eq!(said(&config), both);
        // Another value is not what was measured.
        config.loader.batch_size = 32;
        assert_eq!(said(&config), both[..1]);
        config.run.precision = Precision::Bf16;
        assert_eq!(said(&config), ["run.precision = f32: as written"]);
    }

    #[test]
    fn what_cannot_be_promised_is_refused_with_the_way_out() {
        let said = |change: &dyn Fn(&mut PipelineConfig), backend: &str| {
            let mut config = small();
            change(&mut config);
            settled(&config, backend).unwrap_err().to_string()
        };
        let text = said(&|config| config.run.capture = true, "cpu");
        assert!(text.contains("bit for bit") && text.contains("leave `run.capture` out"), "{text}");
        // Burn's choice of kernels is one of the build.
        let (other, way) = match TUNES {
            true => (Autotune::Off, "--features cuda-plain,fusion"),
            false => (Autotune::On, "--features cuda,"),
        };
        let text = said(&|config| config.run.autotune = Some(other), "cuda");
        assert!(text.contains(way), "{text}");
        let exact = |config: &mut PipelineConfig| {
            config.run.matmul = Some(MatmulPrecision::Highest);
        };
        // A processor under the name of a GPU takes no kernel by name.
        let text = said(&exact, "cuda");
        assert!(text.contains("takes no named products"), "{text}");
        let mut config = PipelineConfig::default();
        exact(&mut config);
        let (found, _) = settled(&config, "cpu").unwrap();
        assert_eq!(found.run.matmul, Some(MatmulPrecision::Highest));
        config.run.matmul = Some(MatmulPrecision::Medium);
        let (found, _) = settled(&config, "cpu").unwrap();
        assert_eq!((found.run.precision, found.run.matmul), (Precision::Bf16, None));
        let text = said(&|config| config.run.precision = Precision::Tf32, "cpu");
        assert!(text.contains("no processor has TF32"), "{text}");
    }

    #[test]
    fn what_needs_no_data_is_refused_before_any_is_read() {
        let refused = |change: &dyn Fn(&mut PipelineConfig)| {
            let mut config = small();
            config.loader.batch_size = 0;
            change(&mut config);
            let read = || panic!("data were read");
            settle(&config, &ChosenDevice::named("cpu"), read, |_, _, _| {}).unwrap_err()
        };
        // Nobody counts memory in a test.
        let text = refused(&|_| ()).to_string();
        assert!(text.contains("set loader.batch_size to a number"), "{text}");
    }

    #[test]
    fn batches_larger_than_any_set_are_refused_by_their_key() {
        for (text, key) in [
            ("[evaluate]\nbatch_size = 4294967296", "evaluate.batch_size"),
            ("[finetune]\nbatch_size = 4294967296", "finetune.batch_size"),
            ("[multitimeframe.mlp]\nbatch_size = 4294967296", "multitimeframe.mlp.batch_size"),
        ] {
            let config: PipelineConfig = toml::from_str(text).unwrap();
            let said = check_batches(&config).unwrap_err().to_string();
            assert_eq!(said, format!("`{key}` is 4294967296; it must be at most 4294967295"));
        }
    }

    #[test]
    fn threads_that_are_no_number_are_refused() {
        for found in [None, Some(""), Some("0"), Some("16")] {
            check_threads(found.map(OsStr::new)).unwrap();
        }
        for found in ["abc", "-1", "2 ", "1.5", "4097", "99999999999999999999"] {
            let said = check_threads(Some(OsStr::new(found))).unwrap_err().to_string();
            assert!(said.contains(&format!("RAYON_NUM_THREADS is `{found}`")), "{said}");
        }
    }

    #[test]
    fn a_trained_model_multiplies_as_its_training_did() {
        for matmul in [None, Some(MatmulPrecision::High), Some(MatmulPrecision::Highest)] {
            let mut config = PipelineConfig::default();
            config.run.matmul = matmul;
            assert_eq!(trained_with(&serde_json::to_value(&config).unwrap()), matmul);
        }
        // Models of before that setting.
        assert_eq!(trained_with(&serde_json::json!({ "run": {} })), None);
    }

    #[test]
    fn auto_is_read_and_written_and_zero_is_not() {
        let read = |text: &str| toml::from_str::<PipelineConfig>(text);
        let config =
            read("[run]\nprecision = \"auto\"\nmatmul = \"high\"\n[loader]\nbatch_size = \"auto\"")
                .unwrap();
        assert!(config.run.auto && config.loader.batch_size == 0);
        let text = toml::to_string(&config).unwrap();
        assert!(text.contains("precision = \"auto\"") && text.contains("batch_size = \"auto\""));
        assert_eq!(read(&text).unwrap().run, config.run);
        for (bad, expected) in [
            ("[loader]\nbatch_size = 0", "it has at least one, or is \"auto\""),
            ("[loader]\nbatch_size = -4", "a batch of -4 windows; it has at least one"),
            ("[loader]\nbatch_size = 4294967296", "it has at most 4294967295, or is \"auto\""),
            ("[loader]\nbatch_size = \"all\"", "`all` is no size of a batch"),
            ("[run]\nprecision = \"half\"", "use auto, f32"),
            ("[run]\nmatmul = \"low\"", "highest"),
            ("[run]\nprecison = \"f32\"", "precison"),
        ] {
            let said = read(bad).unwrap_err().to_string();
            assert!(said.contains(expected), "{said}");
        }
    }
}
