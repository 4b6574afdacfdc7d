//! What decides the time and the memory of a training step.
//!
//! Steps that are measured before a run are taken with the settings that a step is made of, and with all others as they
//! are by default. So what was measured is kept under everything that it depends on, and under nothing else: another
//! learning rate, share of dropout, number of epochs or seed measures nothing anew.

use std::path::PathBuf;

use firebox_data::TextColumns;
use firebox_models::ClassifierConfig;
use firebox_text::{EncoderSource, TextLossConfig};
use firebox_train::{
    AdamWConfig, AverageConfig, ClassLoss, DynamicScale, LossScale, Mix, Optimizer, SgdConfig,
    TrainConfig,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::bench::in_a_step;
use crate::keys::json as text_of;
use crate::multitimeframe::{LstmTable, MlpTable, TransformerTable};
use crate::pretrain::probe_shape;
use crate::text::SAMPLE;
use crate::{
    FinetuneConfig, ForecastConfig, MultitimeframeConfig, PipelineConfig, PseudolabelConfig,
    RunConfig, TextConfig,
};

/// Share of what is dropped where anything is: how much it is takes no time.
const DROPPED: f64 = 0.1;

/// All that decides what a step of this model takes, in batches of so many windows, or of any size with 0.
pub(crate) fn step_text(config: &PipelineConfig, batch: usize) -> String {
    let own = of_step(config);
    let train = &own.train;
    let tables = (
        (&own.pipeline, &own.model, own.run.recompute),
        (&train.optimizer, train.clip, train.clip_value, &train.average, train.loss_scale),
        (&own.finetune, &own.forecast, &own.multitimeframe, &own.pseudolabel),
        &own.text,
    );
    // Data that cannot be read is said by whoever reads it.
    let shape = probe_shape(&own).unwrap_or([own.window.length, 0]);
    format!("{} {shape:?} {batch}", text_of(&tables))
}

/// The settings of which a step is made, with all others as they are by default. Where the data lie stays: their
/// channels are read there.
pub(crate) fn of_step(config: &PipelineConfig) -> PipelineConfig {
    PipelineConfig {
        pipeline: config.pipeline,
        run: RunConfig { seed: RunConfig::default().seed, ..config.run.clone() },
        data: config.data.clone(),
        window: config.window,
        model: dropping_alike(&config.model),
        train: of_training(&config.train),
        text: config.text.as_ref().map(of_texts),
        finetune: config.finetune.as_ref().and_then(of_finetuning),
        forecast: config.forecast.as_ref().map(of_forecasts),
        multitimeframe: config.multitimeframe.as_ref().map(of_timeframes),
        pseudolabel: config.pseudolabel.as_ref().map(of_clusters),
        ..PipelineConfig::default()
    }
}

/// Which optimizer, and what else is done with gradients and weights, but not by how much. Of a loss scale, too, only
/// whether there is one: steps that are measured take one of their own.
fn of_training(train: &TrainConfig) -> TrainConfig {
    let optimizer = match &train.optimizer {
        Optimizer::AdamW(_) => Optimizer::AdamW(AdamWConfig::default()),
        Optimizer::Sgd(own) => {
            let usual = SgdConfig::default();
            let momentum = some(own.momentum, usual.momentum);
            Optimizer::Sgd(SgdConfig { momentum, ..usual })
        }
    };
    let loss_scale = match train.loss_scale {
        LossScale::Static(_) | LossScale::Dynamic(_) => LossScale::Dynamic(DynamicScale::default()),
        scale @ (LossScale::Auto | LossScale::Off) => scale,
    };
    TrainConfig {
        optimizer,
        loss_scale,
        clip: train.clip.map(|_| 1.0),
        clip_value: train.clip_value.map(|_| 1.0),
        average: train.average.map(|_| AverageConfig::default()),
        ..in_a_step(train)
    }
}

/// The usual amount of something that is there, or none of it.
fn some(found: f64, usual: f64) -> f64 {
    if found > 0.0 { usual } else { found }
}

fn of_texts(text: &TextConfig) -> TextConfig {
    let usual = TextConfig::default();
    let columns = TextColumns { span: text.columns.span.clone(), ..TextColumns::default() };
    let mut tokenizer = usual.tokenizer.clone();
    // A given encoder has its own.
    if text.encoder.folder.is_none() {
        tokenizer.vocabulary = text.tokenizer.vocabulary;
    }
    TextConfig {
        // Generated texts have evidence.
        path: PathBuf::from(if text.is_sample() { SAMPLE } else { "" }),
        columns,
        longest: text.longest,
        tokenizer,
        // Its dropout is that of its folder where steps are measured.
        encoder: EncoderSource { folder: text.encoder.folder.clone(), dropout: None },
        heads: dropping_alike(&text.heads),
        loss: TextLossConfig {
            criteria: some(text.loss.criteria, usual.loss.criteria),
            span: some(text.loss.span, usual.loss.span),
            ..usual.loss
        },
        ..usual
    }
}

/// None where the encoder is pre-trained first: it is measured in its pre-training.
fn of_finetuning(table: &FinetuneConfig) -> Option<FinetuneConfig> {
    if table.pretrains() {
        return None;
    }
    let head: ClassifierConfig = dropping_alike(&table.head);
    Some(FinetuneConfig {
        // Whatever an arm begins with takes the same time, random numbers among it.
        encoder: Some(PathBuf::new()),
        batch_size: table.batch_size,
        head,
        loss: of_loss(table.loss),
        mix: of_mix(table.mix),
        ..FinetuneConfig::default()
    })
}

fn of_loss(loss: ClassLoss) -> ClassLoss {
    match loss {
        ClassLoss::CrossEntropy { label_smoothing } => {
            ClassLoss::CrossEntropy { label_smoothing: some(label_smoothing, 0.1) }
        }
        ClassLoss::Focal { gamma } => ClassLoss::Focal { gamma: some(gamma, 2.0) },
    }
}

fn of_mix(mix: Mix) -> Mix {
    match mix {
        Mix::Mixup { .. } => Mix::Mixup { alpha: 0.4 },
        // How often decides how many of the steps mix.
        mix @ (Mix::None | Mix::Cutmix { .. }) => mix,
    }
}

/// How many channels and horizons there are, and not which.
fn of_forecasts(table: &ForecastConfig) -> ForecastConfig {
    let unnamed = |names: &Vec<String>| vec![String::new(); names.len()];
    ForecastConfig {
        targets: unnamed(&table.targets),
        horizons: (1..=table.horizons.len()).collect(),
        inputs: table.inputs.as_ref().map(unnamed),
        statics: unnamed(&table.statics),
        calendar: table.calendar.clone(),
        loss: table.loss,
        ..ForecastConfig::default()
    }
}

fn of_timeframes(table: &MultitimeframeConfig) -> MultitimeframeConfig {
    let MultitimeframeConfig { lstm, transformer, mlp, .. } = table;
    let own = MultitimeframeConfig {
        models: table.models.clone(),
        label_smoothing: some(table.label_smoothing, 0.1),
        mix: of_mix(table.mix),
        lstm: LstmTable {
            batch_size: lstm.batch_size,
            settings: dropping_alike(&lstm.settings),
            ..LstmTable::default()
        },
        transformer: TransformerTable {
            batch_size: transformer.batch_size,
            settings: dropping_alike(&transformer.settings),
            ..TransformerTable::default()
        },
        mlp: MlpTable {
            batch_size: mlp.batch_size,
            settings: dropping_alike(&mlp.settings),
            ..MlpTable::default()
        },
        ..MultitimeframeConfig::default()
    };
    own.trained_only()
}

fn of_clusters(table: &PseudolabelConfig) -> PseudolabelConfig {
    let usual = PseudolabelConfig::default();
    PseudolabelConfig {
        clusters: table.clusters,
        noise: some(table.noise, usual.noise),
        time_mask: table.time_mask,
        model: dropping_alike(&table.model),
        ..usual
    }
}

/// A model with the same share in every dropout that it has.
fn dropping_alike<T: Serialize + DeserializeOwned + Clone>(model: &T) -> T {
    let Ok(mut settings) = serde_json::to_value(model) else { return model.clone() };
    drop_alike(&mut settings);
    serde_json::from_value(settings).unwrap_or_else(|_| model.clone())
}

fn drop_alike(settings: &mut Value) {
    match settings {
        Value::Object(table) => {
            for (key, value) in table {
                match value.as_f64() {
                    Some(share) if share > 0.0 && key.ends_with("dropout") => {
                        *value = json!(DROPPED);
                    }
                    _ => drop_alike(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(drop_alike),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(settings: &str) -> String {
        step_text(&toml::from_str(settings).unwrap(), 32)
    }

    /// Each kind with a table of its own, in which anything may be set.
    const TABLES: [&str; 6] = [
        "pipeline = 'pretrain'\n",
        "pipeline = 'finetune'\n[finetune]\nencoder = 'weights'\n",
        "pipeline = 'forecast'\n[model.stacked-lstm]\n[forecast]\ntargets = ['close']\n",
        "pipeline = 'multitimeframe'\n[multitimeframe]\n",
        "pipeline = 'pseudolabel'\n[pseudolabel]\n",
        "pipeline = 'text'\n[model.bert]\n[text]\npath = 'a.csv'\n",
    ];

    #[test]
    fn what_takes_no_time_is_not_part_of_it() {
        let free = [
            "[train.optimizer.adamw]\nlearning_rate = 0.5\nbetas = [0.8, 0.9]",
            "[train]\nepochs = 3\nclip = 0.1\naccumulate = 4\n[train.schedule.constant]",
            "[run]\nseed = 7\ndirectory = 'elsewhere'",
            "[evaluate]\nseeds = 2\n[monitor]\nperiod = 0",
            "[window]\nstride = 3\n[augment]\nversions = 2\n[split.time]",
            "[loader]\nprefetch = 9",
        ];
        for kind in TABLES {
            for other in free {
                assert_eq!(text(&format!("{kind}{other}")), text(kind), "{kind}{other}");
            }
        }
        for (table, other) in [
            (1, "learning_rate = 0.5\nshares = [0.5]\nseeds = 9\nversions = 0\nencoder_rate = 0.5"),
            (1, "loss = { focal = { gamma = 1.0 } }\nmix = { mixup = { alpha = 0.2 } }"),
            (1, "head = { dropout = 0.45 }"),
            (2, "season = 3\nseeds = 2\npredict = 'change'\nhorizons = [2, 4, 8]"),
            (3, "folds = { folds = 3 }\nlabel_smoothing = 0.3\nlstm = { learning_rate = 0.1 }"),
            (3, "mlp = { settings = { dropout = 0.45 } }"),
            (
                4,
                "iterations = 3\nsettled = 0.5\nnoise = 0.1\nmodel = { classifier_dropout = 0.45 }",
            ),
            (5, "loss = { criteria = 2.0, span = 0.5, balance = true }"),
            (5, "split = { test = 0.4 }\ncolumns = { text = 'words' }\nheads = { dropout = 0.2 }"),
        ] {
            let kind = TABLES[table];
            assert_eq!(text(&format!("{kind}{other}")), text(kind), "{kind}{other}");
        }
        let elsewhere = TABLES[1].replace("'weights'", "'other'");
        assert_eq!(text(&elsewhere), text(TABLES[1]), "weights are as fast wherever they lie");
        let given = format!("{}encoder = {{ folder = 'given' }}\n", TABLES[5]);
        let other = given.replace("'given'", "'given', dropout = 0.3");
        assert_eq!(text(&other), text(&given), "its folder says its dropout");
        let named = TABLES[2].replace("'close'", "'high'");
        assert_eq!(text(&named), text(TABLES[2]));
        let table = "[model.bilstm-mae]\ndropout =";
        assert_eq!(text(&format!("{table} 0.3")), text(&format!("{table} 0.2")));
    }

    #[test]
    fn arms_of_which_none_is_pre_trained_are_measured_as_those_that_begin_with_weights() {
        let arms = |arms: &str| format!("pipeline = 'finetune'\n[finetune]\narms = [{arms}]\n");
        let random = arms("'from-scratch', 'random-frozen'");
        assert_eq!(text(&random), text(TABLES[1]));
        assert_ne!(text(&format!("{random}batch_size = 8")), text(&random));
        // One that is begins with a pre-training, whose batches are others.
        let pretrained = arms("'from-scratch', 'pre-trained-frozen'");
        assert_ne!(text(&pretrained), text(&random));
        assert_eq!(text(&format!("{pretrained}batch_size = 8")), text(&pretrained));
    }

    #[test]
    fn what_a_step_is_made_of_is_part_of_it() {
        let plain = text("");
        for other in [
            "pipeline = 'pseudolabel'",
            "[model.bilstm-mae]\nhidden = 8",
            "[model.bilstm-mae]\ndropout = 0.0",
            "[train.optimizer.sgd]\nmomentum = 0.5",
            "[train.optimizer.sgd]\nmomentum = 0.0",
            "[train]\nclip = false",
            "[train]\nclip = false\nclip_value = 2.0",
            "[train]\nloss_scale = 'off'",
            "[train.loss_scale]\nstatic = 8.0",
            "[train.average]\ndecay = 0.5",
            "[run]\nrecompute = true",
            "[window]\nlength = 7",
        ] {
            assert_ne!(text(other), plain, "{other}");
        }
        let scale = |table: &str| text(&format!("[train.loss_scale]\n{table}"));
        assert_eq!(scale("static = 1e7"), scale("dynamic = { initial = 1e9 }"));
        let momentum = |share: f64| text(&format!("[train.optimizer.sgd]\nmomentum = {share:?}"));
        assert!(momentum(0.5) == momentum(0.9) && momentum(0.5) != momentum(0.0));
        for (table, other) in [
            (1, "batch_size = 8"),
            (1, "mix = 'none'"),
            (1, "loss = { cross-entropy = {} }"),
            (2, "horizons = [1, 2]"),
            (2, "statics = ['open']"),
            (2, "calendar = ['hour']"),
            (3, "models = ['mlp']"),
            (3, "mlp = { batch_size = 8 }"),
            (3, "lstm = { settings = { hidden = 8 } }"),
            (4, "clusters = 9"),
            (4, "noise = 0.0"),
            (5, "loss = { span = 0.0 }"),
            (5, "longest = 64"),
            (5, "tokenizer = { vocabulary = 99 }"),
            (5, "columns = { span = ['begin', 'end'] }"),
        ] {
            let kind = TABLES[table];
            assert_ne!(text(&format!("{kind}{other}")), text(kind), "{kind}{other}");
        }
        let sample = TABLES[5].replace("a.csv", "a.texts.toml");
        assert_ne!(text(&sample), text(TABLES[5]), "generated texts have evidence");
        let config: PipelineConfig = toml::from_str("").unwrap();
        assert_ne!(step_text(&config, 32), step_text(&config, 64));
    }
}
