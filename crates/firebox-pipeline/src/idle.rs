//! Keys that do nothing beside other settings. They are no fault of a file, which may hold what its other settings do not
//! need now; whoever set one is told, so that nobody waits for an effect of it.

use std::path::Path;

use firebox_core::Labels;
use firebox_eval::Arm;

use crate::config::Kind;
use crate::finetune::FinetuneConfig;
use crate::layers::{self, ConfigError};
use crate::{ForecastConfig, MultitimeframeConfig, PipelineConfig, PseudolabelConfig};

/// Keys that do nothing: a table or a key with all below it, but for some of them, and why.
struct Idle {
    key: String,
    but: &'static [&'static str],
    why: &'static str,
}

impl Idle {
    fn of(key: &str, why: &'static str) -> Self {
        Self { key: key.to_owned(), but: &[], why }
    }

    /// Whether this key is one of them.
    fn has(&self, path: &str) -> bool {
        is_within(path, &self.key) && !self.but.iter().any(|but| is_within(path, but))
    }
}

/// Whether a key is this table or stands below it.
fn is_within(path: &str, table: &str) -> bool {
    path.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// What is said of keys that the file, the environment or `--set` has, and that do nothing. Of those of the file, that they
/// do nothing by its own settings: it may be written for others than those that are laid over it.
///
/// # Errors
///
/// What cannot be read.
pub(crate) fn told(
    file: &Path,
    environment: &[(String, String)],
    settings: &[String],
    config: &PipelineConfig,
) -> Result<Vec<String>, ConfigError> {
    let now = idle(config);
    if now.is_empty() {
        return Ok(vec![]);
    }
    let text = layers::text_of(file)?;
    let of_file = idle(&layers::parse(file, &text, &[], &[])?);
    let usual = PipelineConfig {
        finetune: Some(FinetuneConfig::default()),
        forecast: Some(ForecastConfig::default()),
        multitimeframe: Some(MultitimeframeConfig::default()),
        pseudolabel: Some(PseudolabelConfig::default()),
        ..PipelineConfig::default()
    };
    let keys = layers::keys_of(&text, &usual);
    let still = of_file.iter().filter(|idle| now.iter().any(|now| now.key == idle.key));
    // Of a table one key, and those of one reason together.
    let mut by_reason: Vec<(&str, Vec<String>)> = vec![];
    for idle in still {
        let Some(key) = keys.iter().find(|key| idle.has(key)) else { continue };
        let key = format!("`{key}`");
        match by_reason.iter_mut().find(|(why, _)| *why == idle.why) {
            Some((_, keys)) => keys.push(key),
            None => by_reason.push((idle.why, vec![key])),
        }
    }
    let verb = |keys: &[String]| if keys.len() == 1 { "does" } else { "do" };
    let mut told: Vec<String> = by_reason
        .into_iter()
        .map(|(why, keys)| format!("{} {} nothing, because {why}", keys.join(", "), verb(&keys)))
        .collect();
    for (layer, key) in layers::laid_over(environment, settings)? {
        let idle = now.iter().find(|idle| idle.has(&key));
        told.extend(
            idle.map(|idle| format!("{layer}: `{key}` does nothing, because {}", idle.why)),
        );
    }
    Ok(told)
}

/// The keys that do nothing with these settings.
fn idle(config: &PipelineConfig) -> Vec<Idle> {
    let mut idle = of_kind(config);
    let tables = ["finetune", "forecast", "multitimeframe", "pseudolabel"];
    let maskings = [
        config.finetune.as_ref().map(|table| table.masking),
        config.forecast.as_ref().map(|table| table.masking),
        config.multitimeframe.as_ref().map(|table| table.masking),
        config.pseudolabel.as_ref().map(|table| table.masking),
    ];
    for (table, masking) in tables.into_iter().zip(maskings) {
        if masking.is_some_and(|masking| masking.time_masks == 0) {
            let why = "no stretches are hidden without `time_masks` beside it";
            idle.push(Idle::of(&format!("{table}.masking.longest"), why));
        }
    }
    idle
}

fn of_kind(config: &PipelineConfig) -> Vec<Idle> {
    match config.pipeline {
        Kind::Finetune => of_arms(&config.finetune.clone().unwrap_or_default()),
        Kind::Multitimeframe => {
            let table = config.multitimeframe.clone().unwrap_or_default();
            table
                .untrained()
                .map(|model| {
                    let why = "`multitimeframe.models` does not name this model";
                    Idle::of(&format!("multitimeframe.{}", model.name()), why)
                })
                .collect()
        }
        Kind::Pretrain if config.labels == Labels::None => {
            let why = "without `labels` there are no probes";
            let keys = ["knn", "metric", "probe", "seeds", "train_limit"];
            keys.map(|key| Idle::of(&format!("evaluate.{key}"), why)).into()
        }
        _ => vec![],
    }
}

/// Settings of the arms' own trainings that stand in `[train]`.
const OF_ARMS: &[&str] = &["train.loss_scale", "train.allow_unscaled_f16"];

fn of_arms(finetune: &FinetuneConfig) -> Vec<Idle> {
    let mut idle = vec![];
    if !finetune.arms.contains(&Arm::FineTuned) {
        let why = "no arm of `finetune.arms` is \"fine-tuned\"";
        idle.extend(
            ["finetune.frozen_epochs", "finetune.encoder_rate"].map(|key| Idle::of(key, why)),
        );
    }
    let why = match &finetune.encoder {
        _ if !finetune.arms.iter().any(|arm| arm.is_pretrained()) => {
            let why = "no arm of `finetune.arms` begins with a pre-trained encoder";
            idle.push(Idle::of("finetune.encoder", why));
            why
        }
        Some(_) => "`finetune.encoder` names weights, so that none are pre-trained",
        None => {
            let why = "without `finetune.encoder` the encoder is pre-trained here, and matches";
            idle.push(Idle::of("finetune.least_match", why));
            return idle;
        }
    };
    idle.push(Idle { key: "train".to_owned(), but: OF_ARMS, why });
    idle.extend(["augment.versions", "loader.batch_size"].map(|key| Idle::of(key, why)));
    idle
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str, environment: &[(&str, &str)], settings: &[&str]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.toml");
        std::fs::write(&file, text).unwrap();
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let environment: Vec<(String, String)> = environment.iter().map(own).collect();
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let config = layers::load(&file, environment.clone(), &settings).unwrap();
        told(&file, &environment, &settings, &config).unwrap()
    }

    const FINETUNE: &str = "pipeline = 'finetune'\nlabels = 'last'\n[train]\nepochs = 2\n[finetune]\nfrozen_epochs = 3\n";

    #[test]
    fn keys_of_a_file_are_told_where_they_do_nothing_by_its_own_settings() {
        assert!(said(FINETUNE, &[], &[]).is_empty());
        let scratch = format!("{FINETUNE}arms = ['from-scratch']\n");
        let why = "no arm of `finetune.arms`";
        assert_eq!(
            said(&scratch, &[], &[]),
            [
                format!("`finetune.frozen_epochs` does nothing, because {why} is \"fine-tuned\""),
                format!(
                    "`train.epochs` does nothing, because {why} begins with a pre-trained encoder"
                ),
            ]
        );
        // What is laid over a file may change that, and does not blame the file.
        assert!(said(&scratch, &[], &["finetune.arms=['fine-tuned']"]).is_empty());
        assert!(said(FINETUNE, &[], &["finetune.encoder=runs/a"]).is_empty());
        // What a run writes has every key.
        let whole = scratch.replace("frozen_epochs = 3", "frozen_epochs = 10\nleast_match = 0.9");
        assert_eq!(said(&whole, &[], &[]).len(), 1, "{:?}", said(&whole, &[], &[]));
        let scaled = FINETUNE.replace("epochs = 2", "loss_scale = 'off'");
        assert!(said(&scaled, &[], &["finetune.encoder=runs/a"]).is_empty());
    }

    #[test]
    fn probes_that_are_not_made_are_told() {
        let file = "pipeline = 'pretrain'\nlabels = 'last'\n[evaluate]\nseeds = 3\n";
        assert!(said(file, &[], &[]).is_empty());
        assert!(said(file, &[], &["labels=none"]).is_empty(), "the file is written for labels");
        let none = file.replace("'last'", "'none'");
        let why = "without `labels` there are no probes";
        assert_eq!(
            said(&none, &[], &[]),
            [format!("`evaluate.seeds` does nothing, because {why}")]
        );
        let [metric] =
            &said(&none.replace("seeds = 3", ""), &[], &["evaluate.metric=accuracy"])[..]
        else {
            panic!()
        };
        assert!(metric.ends_with(why), "{metric}");
    }

    #[test]
    fn what_is_laid_over_a_file_is_told_with_its_place() {
        let why = "`finetune.encoder` names weights, so that none are pre-trained";
        let encoder = "finetune.encoder=runs/a";
        assert_eq!(
            said(FINETUNE, &[("FIREBOX_AUGMENT__VERSIONS", "2")], &[encoder, "train.epochs=9"]),
            [
                format!(
                    "environment variable FIREBOX_AUGMENT__VERSIONS: `augment.versions` does nothing, because {why}"
                ),
                format!("--set train.epochs=9: `train.epochs` does nothing, because {why}"),
            ]
        );
        assert!(said(FINETUNE, &[], &[encoder, "train.loss_scale='off'"]).is_empty());
        let [least] = &said(FINETUNE, &[], &["finetune.least_match=0.5"])[..] else { panic!() };
        assert!(least.ends_with("the encoder is pre-trained here, and matches"), "{least}");
        let folds = "pipeline = 'multitimeframe'\n[multitimeframe]\nmodels = ['mlp']\n[multitimeframe.lstm]\nbatch_size = 4\n";
        let size = "multitimeframe.transformer={batch_size=8}";
        let rest = "does nothing, because `multitimeframe.models` does not name this model";
        assert_eq!(
            said(folds, &[], &[size, "multitimeframe.mlp.batch_size=8"]),
            [
                format!("`multitimeframe.lstm.batch_size` {rest}"),
                format!("--set {size}: `multitimeframe.transformer.batch_size` {rest}"),
            ]
        );
    }
}
