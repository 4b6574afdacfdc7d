//! Checks of the settings before anything is read or measured: what they ask for is there, in range, and fits
//! together. Each component checks its own table; here is what none can check by itself.

use std::path::Path;

use firebox_core::{AugmentMode, Labels, Precision, SplitRule};
use firebox_loader::{LoadError, LoaderConfig, Resident};
use firebox_remote::check_url;
use firebox_train::LossScale;

use super::paths::urls;
use crate::config::{check_masks, of_each_window};
use crate::error::PipelineError;
use crate::settle::check_batches;
use crate::{Kind, PipelineConfig, fewest, online};

/// What no single component can check by itself.
pub(crate) fn check(config: &PipelineConfig) -> Result<(), PipelineError> {
    check_loss_scale(config)?;
    check_split(config)?;
    check_labels(config)?;
    check_steps(config)?;
    check_limits(config)?;
    check_batches(config)?;
    if let Some(timeframes) = &config.data.timeframes {
        timeframes.validate()?;
    }
    check_windows(config)?;
    check_fetch(config)?;
    check_folders(config)?;
    check_tables(config)?;
    config.pipeline.chain().check(config)?;
    fewest::check_length(config)?;
    check_masks(config)?;
    check_loader(config)?;
    urls(config).filter_map(Path::to_str).try_for_each(check_url)?;
    firebox_cache::check_parameters(&config.augment)?;
    online::check_drawn(config)?;
    config.train.validate()?;
    config.evaluate.validate()?;
    config.monitor.validate()?;
    Ok(())
}

fn setting(message: String) -> Result<(), PipelineError> {
    Err(PipelineError::Setting(message))
}

/// Refuses f16 whose gradients would vanish unnoticed.
fn check_loss_scale(config: &PipelineConfig) -> Result<(), PipelineError> {
    let f16 = config.run.precision == Precision::F16;
    match scales_up(config) {
        Err(found) if f16 => setting(format!(
            "`run.precision` is f16 and {found}: gradients below 6e-8 would vanish\n  \
             leave `train.loss_scale` out, which scales dynamically, or set train.allow_unscaled_f16 = true"
        )),
        _ => Ok(()),
    }
}

/// Whether gradients are computed of a larger loss, or may be left as they are; else what is set instead.
pub(crate) fn scales_up(config: &PipelineConfig) -> Result<(), String> {
    match config.train.loss_scale {
        _ if config.train.allow_unscaled_f16 => Ok(()),
        LossScale::Off => Err("`train.loss_scale` is off".to_owned()),
        // Others than these are refused as what they are.
        LossScale::Static(scale) if scale > 0.0 && scale <= 1.0 => {
            Err(format!("`train.loss_scale.static` is {scale:?}, which makes no gradient larger"))
        }
        _ => Ok(()),
    }
}

/// Refuses a split that would train on part of a test set.
fn check_split(config: &PipelineConfig) -> Result<(), PipelineError> {
    if let Some(rule) = config.split
        && config.data.test.is_some()
        && !matches!(rule, SplitRule::Given { .. })
    {
        return setting(format!(
            "`data.test` names a test set, but [split.{}] would train on part of it\n  \
             replace it with [split.given] (--set split.given.validation=0.1), or leave the split out: it is `given` then",
            rule.name()
        ));
    }
    Ok(())
}

/// Steps of which no series has more, so that no sum of them with another number of steps is too large.
const MOST_STEPS: usize = u32::MAX as usize;

/// Refuses numbers of steps that no series can have.
fn check_steps(config: &PipelineConfig) -> Result<(), PipelineError> {
    let gap = match config.split {
        Some(SplitRule::Time { gap, .. }) => gap,
        _ => None,
    };
    let embargo = config.multitimeframe.as_ref().and_then(|table| table.folds.embargo);
    let forecast = config.forecast.iter().flat_map(|table| &table.horizons);
    let labels = match config.labels {
        Labels::Forward { horizon, .. } => Some(("labels.forward.horizon", horizon)),
        Labels::Return { horizon, .. } => Some(("labels.return.horizon", horizon)),
        _ => None,
    };
    let all = [("split.time.gap", gap), ("multitimeframe.folds.embargo", embargo)];
    let all = all.into_iter().filter_map(|(key, steps)| Some((key, steps?)));
    let season = config.forecast.as_ref().and_then(|table| table.season);
    let all = all.chain(season.map(|season| ("forecast.season", season)));
    let all = all.chain(labels).chain(forecast.map(|horizon| ("forecast.horizons", *horizon)));
    match all.into_iter().find(|(_, steps)| *steps > MOST_STEPS) {
        Some((key, steps)) => {
            setting(format!("`{key}` has {steps} steps; it must be at most {MOST_STEPS}"))
        }
        None => Ok(()),
    }
}

/// Refuses labels out of range.
fn check_labels(config: &PipelineConfig) -> Result<(), PipelineError> {
    if let Labels::Majority { share } = config.labels
        && !(0.0..=1.0).contains(&share)
    {
        return setting(format!("`labels.majority.share` is {share}; a share lies from 0 to 1"));
    }
    if let Labels::Forward { horizon, threshold } = config.labels
        && (horizon == 0 || !(threshold.is_finite() && threshold >= 0.0))
    {
        return setting(format!(
            "`labels.forward` has horizon {horizon} and threshold {threshold}; it looks at least 1 step ahead, for a finite threshold that is not negative"
        ));
    }
    if let Labels::Return { horizon, threshold } = config.labels
        && (horizon == 0 || !(threshold.is_finite() && threshold >= 0.0))
    {
        return setting(format!(
            "`labels.return` has horizon {horizon} and threshold {threshold}; it looks at least 1 step ahead, for a finite threshold that is not negative (0.006 is 0.6 %)"
        ));
    }
    Ok(())
}

/// Refuses settings of `[loader]` out of range.
fn check_limits(config: &PipelineConfig) -> Result<(), PipelineError> {
    // A batch of `auto` has its size later.
    let batch_size = config.loader.batch_size.max(1);
    match (LoaderConfig { batch_size, ..config.loader.resolve(0) }).validate() {
        Err(LoadError::TooMany { key, found, most }) => {
            setting(format!("`loader.{key}` is {found}; it must be at most {most}"))
        }
        Err(error) => setting(format!("[loader]: {error}")),
        Ok(()) => Ok(()),
    }
}

/// Refuses windows without steps, and those too short for what is measured in them.
fn check_windows(config: &PipelineConfig) -> Result<(), PipelineError> {
    for (key, steps) in [("length", config.window.length), ("stride", config.window.stride)] {
        if steps == 0 {
            return setting(format!("`window.{key}` is 0; it must be at least 1"));
        }
    }
    let relative = of_each_window(config.window.normalise);
    if let (1, Some(name)) = (config.window.length, relative) {
        return setting(format!(
            "`window.length` is 1 and `window.normalise` is {name}: a single step has no scale of its own\n  \
             make windows longer, or set window.normalise = \"standard\""
        ));
    }
    if matches!(config.labels, Labels::Forward { .. }) && config.window.length < 3 {
        return setting(format!(
            "`window.length` is {}, and `labels.forward` measures in units of the window's volatility, which takes 3 steps\n  \
             make windows longer, or use [labels.return]",
            config.window.length
        ));
    }
    Ok(())
}

/// Refuses settings of `[run.fetch]` out of range.
fn check_fetch(config: &PipelineConfig) -> Result<(), PipelineError> {
    let fetch = &config.run.fetch;
    if !(1..=3600).contains(&fetch.timeout) {
        return setting(format!(
            "`run.fetch.timeout` is {}; it is a number of seconds from 1 to 3600",
            fetch.timeout
        ));
    }
    if fetch.retries > 100 {
        return setting(format!(
            "`run.fetch.retries` is {}; it must be at most 100",
            fetch.retries
        ));
    }
    Ok(())
}

/// Refuses folders of the cache and of runs that cannot be folders.
fn check_folders(config: &PipelineConfig) -> Result<(), PipelineError> {
    for (key, path) in [("cache", &config.run.cache), ("directory", &config.run.directory)] {
        let name = path.display();
        if path.as_os_str().is_empty() {
            return setting(format!(
                "`run.{key}` is empty\n  name a folder, which is made if it is not there"
            ));
        }
        // Made on the way, folders within a folder that is none would be told as "File exists".
        let lost = |place: &&Path| place.is_symlink() && !place.exists();
        if let Some(link) = path.ancestors().find(lost) {
            return setting(format!(
                "`run.{key}` is {name}, and {} is a link to a place that is not there\n  make or mount that place, remove the link, or name another folder",
                link.display()
            ));
        }
        if path.exists() && !path.is_dir() {
            return setting(format!(
                "`run.{key}` is {name}, which is no folder\n  name a folder, which is made if it is not there"
            ));
        }
    }
    Ok(())
}

/// Refuses tables that another kind of pipeline reads.
fn check_tables(config: &PipelineConfig) -> Result<(), PipelineError> {
    for (table, there, kind) in config.own_tables() {
        if there && kind != config.pipeline {
            return setting(format!(
                "[{table}] is there, and the pipeline is `{}`, which does not read it\n  set pipeline = \"{table}\", or remove the table",
                config.pipeline.name()
            ));
        }
    }
    Ok(())
}

/// Refuses batches that these windows cannot come in, wherever that is known without them.
fn check_loader(config: &PipelineConfig) -> Result<(), PipelineError> {
    let (tokens, length) = (config.loader.tokens, config.window.length);
    // Texts are no windows, and how long whole series are is known with them.
    let known = config.pipeline != Kind::Text && !config.window.whole;
    if known && tokens != 0 && tokens < length {
        return Err(PipelineError::Setting(format!(
            "`loader.tokens` is {tokens}, and a window has {length} steps (`window.length`), which a batch must hold\n  \
             set loader.tokens to {length} or more, or leave it out"
        )));
    }
    let buckets = config.loader.buckets;
    if known && buckets != 0 {
        return Err(PipelineError::Setting(format!(
            "`loader.buckets` is {buckets}, and all windows have the same {length} steps (`window.length`): there is nothing to sort by length\n  \
             leave it out; it is for texts, and for series of their own lengths (window.whole = true)"
        )));
    }
    match drawn_anew(config) {
        Some((setting, way_out)) if config.loader.resident == Resident::Memory => {
            Err(PipelineError::Setting(format!(
                "`loader.resident` is \"memory\", and {setting}: windows that are drawn anew in each epoch do not lie in memory\n  \
                 set loader.resident = \"auto\", or {way_out}"
            )))
        }
        _ => Ok(()),
    }
}

/// The setting by which training windows are drawn anew in each epoch, and the one by which they are not.
fn drawn_anew(config: &PipelineConfig) -> Option<(String, &'static str)> {
    let finetune = config.finetune.clone().unwrap_or_default();
    let by_mode = match config.pipeline {
        Kind::Pretrain | Kind::Multitimeframe | Kind::Forecast | Kind::Pseudolabel => true,
        Kind::Finetune => finetune.pretrains(),
        Kind::Text => false,
    };
    if by_mode && config.augment.mode == AugmentMode::Online && config.augment.versions > 0 {
        let way_out = match config.pipeline {
            Kind::Pretrain | Kind::Finetune => "augment.mode = \"cached\"",
            _ => "augment.mode = \"none\"",
        };
        return Some(("`augment.mode` is \"online\"".to_owned(), way_out));
    }
    (config.pipeline == Kind::Finetune && finetune.versions > 0)
        .then(|| (format!("`finetune.versions` is {}", finetune.versions), "finetune.versions = 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_without_a_loss_scale_names_the_way_out() {
        let mut config = PipelineConfig::default();
        config.run.precision = Precision::F16;
        check(&config).unwrap();
        config.train.loss_scale = LossScale::Off;
        let text = check(&config).unwrap_err().to_string();
        assert!(text.contains("gradients below 6e-8 would vanish"), "{text}");
        for (scale, refused) in [(1e-30, true), (1.0, true), (1.5, false)] {
            config.train.loss_scale = LossScale::Static(scale);
            let found = check(&config).map_err(|error| error.to_string());
            assert_eq!(found.is_err(), refused, "{found:?}");
            let named = |text: String| text.contains("`train.loss_scale.static` is");
            assert!(found.err().is_none_or(named));
        }
        config.train.loss_scale = LossScale::Static(1.0);
        config.train.allow_unscaled_f16 = true;
        check(&config).unwrap();
        config.train.loss_scale = LossScale::Static(0.0);
        let text = check(&config).unwrap_err().to_string();
        assert!(text.contains("`train.loss_scale.static` is 0; it must be above 0"), "{text}");
    }
}
