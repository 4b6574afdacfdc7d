//! Windows that an encoder is too deep for: convolutions that halve the steps leave nothing of a short one.
//!
//! What the settings tell is refused before anything is read, and what only the data tell before anything is trained. New
//! data for a trained model are checked in `apply`.

use firebox_core::{Split, count};
use firebox_models::{AnyEncoderConfig, CnnBiLstmConfig};

use crate::error::PipelineError;
use crate::{Kind, ModelConfig, PipelineConfig, pseudolabel};

/// The encoder of a pipeline that halves steps, and the setting that says how often.
struct Halving {
    encoder: CnnBiLstmConfig,
    key: &'static str,
}

impl Halving {
    fn of(config: &PipelineConfig) -> Option<Self> {
        if config.pipeline == Kind::Pseudolabel {
            let encoder = pseudolabel::settings(config).model;
            return Some(Self { encoder, key: "pseudolabel.model.convolutions" });
        }
        match (config.pipeline, &config.model) {
            (Kind::Pretrain | Kind::Finetune, ModelConfig::Masked(model)) => match &model.encoder {
                AnyEncoderConfig::CnnBilstm(encoder) => Some(Self {
                    encoder: encoder.clone(),
                    key: "model.masked.encoder.cnn-bilstm.convolutions",
                }),
                _ => None,
            },
            _ => None,
        }
    }

    /// What windows of so many steps lack, and a way out beside longer ones: as many convolutions as they have steps for.
    fn lack(&self, steps: usize) -> [String; 2] {
        let convolutions = &self.encoder.convolutions;
        let made = count(convolutions.len() as u64, "convolution");
        let lack = format!("{made} that halve them need {}", self.encoder.fewest_steps());
        let fitting = steps.checked_ilog2().unwrap_or(0) as usize;
        let fewer = match fitting {
            0 => "use another encoder".to_owned(),
            _ => format!(
                "use fewer of them, such as --set '{}={:?}'",
                self.key,
                &convolutions[..fitting.min(convolutions.len())]
            ),
        };
        [lack, fewer]
    }
}

/// Refuses a length of windows that the encoder leaves nothing of.
pub(crate) fn check_length(config: &PipelineConfig) -> Result<(), PipelineError> {
    let steps = config.window.length;
    let Some(halving) = Halving::of(config).filter(|own| steps < own.encoder.fewest_steps()) else {
        return Ok(());
    };
    let [lack, fewer] = halving.lack(steps);
    Err(PipelineError::Setting(format!(
        "`window.length` is {steps}, and {lack}\n  make windows longer, or {fewer}"
    )))
}

/// Refuses windows of the data that the encoder leaves nothing of: those of short series, where one is a whole series.
pub(crate) fn check_windows(config: &PipelineConfig, parts: &Split) -> Result<(), PipelineError> {
    let Some(halving) = Halving::of(config) else { return Ok(()) };
    let needed = halving.encoder.fewest_steps();
    let all = [parts.train.windows(), parts.validation.windows(), parts.test.windows()];
    let short = || all.iter().copied().flatten().filter(|window| (window.length as usize) < needed);
    let Some(shortest) = short().min_by_key(|window| window.length) else { return Ok(()) };
    let steps = shortest.length;
    let name = &parts.train.set().series()[shortest.series as usize].name;
    let [lack, fewer] = halving.lack(steps as usize);
    Err(PipelineError::Setting(format!(
        "a window of series `{name}` has {}, and {lack}; {} of {} are too short\n  {fewer}, or leave short series out",
        count(u64::from(steps), "step"),
        short().count(),
        count(all.iter().map(|part| part.len() as u64).sum(), "window")
    )))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use firebox_core::{Channel, Labels, Role, Series, SeriesSet, SplitRule, WindowRule, split};

    use super::*;

    fn config(text: &str) -> PipelineConfig {
        toml::from_str(text).unwrap()
    }

    const CNN: &str = "[model.masked.encoder.cnn-bilstm]\n";

    #[test]
    fn a_length_that_the_encoder_leaves_nothing_of_is_refused_by_every_kind_that_has_it() {
        let said = |text: &str, length| {
            let mut config = config(text);
            config.window.length = length;
            check_length(&config).map_err(|error| {
                assert!(error.is_bad_input());
                error.to_string()
            })
        };
        let finetune = format!("pipeline = \"finetune\"\n{CNN}");
        for text in [CNN, &finetune, "pipeline = \"pseudolabel\""] {
            assert_eq!(said(text, 8), Ok(()));
            let message = said(text, 7).unwrap_err();
            assert!(
                message.contains("`window.length` is 7, and 3 convolutions that halve them need 8"),
                "{message}"
            );
            assert!(message.contains("convolutions=[64, 128]'"), "{message}");
        }
        let message = said(CNN, 1).unwrap_err();
        assert!(message.ends_with("make windows longer, or use another encoder"), "{message}");
        assert_eq!(said("", 1), Ok(()));
        assert_eq!(said(&format!("pipeline = \"forecast\"\n{CNN}"), 1), Ok(()));
        let deep = format!("{CNN}convolutions = {:?}", [4; 70]);
        assert!(said(&deep, 100).unwrap_err().contains("70 convolutions"));
    }

    #[test]
    fn short_series_of_the_data_are_refused_by_name() {
        let channels = vec![Channel::new("load", Role::Other)];
        let series = |(at, steps): (usize, &usize)| {
            let values = (0..*steps).map(|step| (step * (at + 1)) as f64).collect();
            Series::regular(format!("s{at}"), 0, 1, values, 1)
        };
        let said = |lengths: &[usize]| {
            let series = lengths.iter().enumerate().map(series).collect();
            let set = Arc::new(SeriesSet::new(channels.clone(), vec![], series).unwrap());
            let rule = WindowRule { length: 30, stride: 1, whole: true };
            let by = SplitRule::Series { validation: 0.2, test: 0.2, seed: 0 };
            let parts = split(&set, &rule, &by, &Labels::None).unwrap();
            check_windows(&config(CNN), &parts).map_err(|error| error.to_string())
        };
        assert_eq!(said(&[8, 20, 40, 12, 9, 10, 11, 13, 14, 15]), Ok(()));
        let message = said(&[8, 20, 40, 5, 9, 7, 11, 13, 14, 15]).unwrap_err();
        for part in ["series `s3` has 5 steps", "need 8; 2 of 10 windows", "=[64, 128]'"] {
            assert!(message.contains(part), "{message}");
        }
    }
}
