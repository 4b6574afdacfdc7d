//! `[augment]` in kinds of pipeline that store no versions of windows: drawn anew in each epoch, or not at all. Only
//! training windows are varied; what draws takes no other.

use std::sync::Arc;

use firebox_core::{AugmentMode, Augmentation, Key, KeyBuilder, Normaliser, TrainWindows};
use firebox_loader::{AugmentedWindows, NormalisedWindows, TrainSource};

use crate::error::PipelineError;
use crate::feed::{drawn_on_device, effective};
use crate::keys::json;
use crate::{FinetuneConfig, Kind, PipelineConfig};

/// Why windows of features of several timeframes are not scaled, warped or stretched.
const DERIVED: &str = "windows hold features of [data.timeframes]: strengths, ratios and averages of bars, of which no market \
                       shows a scaled, warped or stretched one";

/// What would have to be drawn, if anything is.
pub(crate) fn online(augment: &Augmentation) -> Option<&Augmentation> {
    (augment.mode == AugmentMode::Online && augment.versions > 0).then_some(augment)
}

/// Samples of each training window in an epoch: its original and its versions.
pub(crate) fn slots(augment: &Augmentation) -> usize {
    online(augment).map_or(1, |augment| augment.versions as usize + 1)
}

/// `[augment]` among the tables that a run does not read, where nothing is drawn.
pub(crate) fn unread(config: &PipelineConfig) -> Option<String> {
    online(&config.augment).is_none().then(|| "augment".to_owned())
}

/// Refuses what is set in `[augment]` and cannot be had. `values_alone` is why this kind adds noise to values and does
/// nothing else to them, if that is so; `tables` are those that it has beside, for the way out.
pub(crate) fn check(
    config: &PipelineConfig,
    values_alone: Option<&str>,
    tables: &str,
) -> Result<(), PipelineError> {
    let (augment, kind) = (&config.augment, config.pipeline.name());
    let setting = |message: String| Err(PipelineError::Setting(message));
    let usual = Augmentation::default();
    // Modes and versions that draw nothing may be said.
    let said = match (augment.mode, augment.versions) {
        (AugmentMode::Online, _) => None,
        (AugmentMode::Cached, 1..) => Some(("cached", usual)),
        (AugmentMode::Cached, versions) => Some(("cached", Augmentation { versions, ..usual })),
        (AugmentMode::None, versions) => {
            Some(("none", Augmentation { mode: AugmentMode::None, versions, ..usual }))
        }
    };
    if let Some((mode, allowed)) = said
        && *augment != allowed
    {
        return setting(format!(
            "[augment] is set, `augment.mode` is \"{mode}\", and `{kind}` stores no versions of windows\n  \
             set augment.mode = \"online\", which draws them anew in each epoch, or take [augment] out"
        ));
    }
    let why = values_alone.or_else(|| config.data.timeframes.is_some().then_some(DERIVED));
    let (Some(augment), Some(why)) = (online(augment), why) else { return Ok(()) };
    let Augmentation { scaling, time_warp, volatility_scaling, .. } = augment;
    let refused = [
        ("scaling", scaling.probability),
        ("time_warp", time_warp.probability),
        ("volatility_scaling", volatility_scaling.probability),
    ];
    match refused.into_iter().find(|(_, probability)| *probability != 0.0) {
        None => Ok(()),
        Some((key, probability)) => setting(format!(
            "`augment.{key}.probability` is {probability} (by default, where it is not written), and in `{kind}` {why}\n  \
             set augment.scaling.probability, augment.time_warp.probability and augment.volatility_scaling.probability to 0; \
             allowed are [augment.jitter] and {tables}"
        )),
    }
}

/// Refuses versions that would be windows as they are: an epoch would be so many times as long, and nothing else.
pub(crate) fn check_drawn(config: &PipelineConfig) -> Result<(), PipelineError> {
    let Augmentation { jitter, scaling, time_warp, volatility_scaling, .. } = &config.augment;
    let probabilities = [
        jitter.probability,
        scaling.probability,
        time_warp.probability,
        volatility_scaling.probability,
    ];
    if probabilities.iter().any(|probability| *probability > 0.0) {
        return Ok(());
    }
    let by_mode = ("augment.versions", "augment.mode = \"none\"");
    let own = ("finetune.versions", "finetune.versions = 0");
    let stored = (by_mode, effective(&config.augment).versions);
    let made = match (config.pipeline, &config.finetune) {
        (Kind::Text, _) => vec![],
        (Kind::Finetune, None) => vec![stored, (own, FinetuneConfig::default().versions)],
        // Neither a given encoder is pre-trained, nor one that no arm begins with.
        (Kind::Finetune, Some(table)) if !table.pretrains() => vec![(own, table.versions)],
        (Kind::Finetune, Some(table)) => vec![stored, (own, table.versions)],
        _ => vec![stored],
    };
    let Some(((key, none), versions)) = made.into_iter().find(|(_, versions)| *versions > 0) else {
        return Ok(());
    };
    Err(PipelineError::Setting(format!(
        "all probabilities of [augment] are 0, so that each of `{key}` = {versions} versions would be its window, unchanged\n  \
         set {none} to learn from the windows as they are, or augment.jitter.probability above 0"
    )))
}

/// The settings as far as such kinds read them, for the keys that all kinds have: what is drawn, or the defaults.
pub(crate) fn read(config: &PipelineConfig) -> PipelineConfig {
    let augment = online(&config.augment).map_or_else(Augmentation::default, unstored);
    PipelineConfig { augment, ..config.clone() }
}

/// The key of a training with what is drawn of its windows; left out where nothing is, so that such runs keep their
/// keys.
pub(crate) fn varied(
    training: KeyBuilder,
    config: &PipelineConfig,
    arithmetic: &str,
) -> KeyBuilder {
    let Some(augment) = online(&config.augment) else { return training };
    let training = training.field("augment", shown(augment));
    match drawn_on_device(config, arithmetic) {
        true => training.field("drawn", "device"),
        false => training,
    }
}

/// What of `[augment]` shapes versions that are not stored.
fn shown(augment: &Augmentation) -> String {
    json(&unstored(augment))
}

fn unstored(augment: &Augmentation) -> Augmentation {
    Augmentation { storage: Augmentation::default().storage, ..augment.clone() }
}

/// The key of the training samples of such windows, for whoever keeps them on a device.
pub(crate) fn samples_key(windows: Key, augment: &Augmentation, seed: u64) -> Key {
    match online(augment) {
        None => windows,
        Some(augment) => Key::builder("versions", 1)
            .upstream("windows", windows)
            .field("augment", shown(augment))
            .field("seed", seed.to_le_bytes())
            .finish(),
    }
}

/// Training windows as they are learnt from: with their versions if these are drawn, each window's original and
/// versions one behind the other.
pub(crate) fn source(
    windows: TrainWindows,
    normaliser: Normaliser,
    augment: &Augmentation,
    seed: u64,
) -> Result<Arc<dyn TrainSource>, PipelineError> {
    Ok(match online(augment) {
        None => Arc::new(NormalisedWindows::new(windows, normaliser)),
        Some(augment) => Arc::new(AugmentedWindows::new(windows, normaliser, augment, seed)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Keys;
    use crate::prepared::check;

    fn said(text: &str) -> String {
        let config: PipelineConfig = toml::from_str(text).unwrap();
        check(&config).err().map_or(String::new(), |error| error.to_string())
    }

    const CLIPS: &str = "pipeline = 'pseudolabel'\n";
    const FOLDS: &str =
        "pipeline = 'multitimeframe'\n[labels.return]\nhorizon = 1\nthreshold = 0.0\n";
    const FORECAST: &str =
        "pipeline = 'forecast'\n[forecast]\ntargets = ['close']\n[model.stacked-lstm]\n";
    const TIMEFRAMES: &str = "[data.timeframes]\nbase = '15min'\nhigher = ['1h']\n";
    const JITTER_ALONE: &str = "[augment]\nmode = 'online'\n[augment.scaling]\nprobability = 0\n[augment.time_warp]\n\
                                probability = 0\n[augment.volatility_scaling]\nprobability = 0\n";

    #[test]
    fn versions_are_drawn_or_nothing_is() {
        for kind in [CLIPS, FOLDS, FORECAST] {
            for fine in ["", "[augment]\nmode = 'none'", "[augment]\nversions = 0", JITTER_ALONE] {
                assert_eq!(said(&format!("{kind}{fine}")), "", "{kind}{fine}");
            }
            let stored = said(&format!("{kind}[augment.jitter]\nsigma = 0.1"));
            assert!(stored.contains("`augment.mode` is \"cached\""), "{kind}: {stored}");
            assert!(stored.contains("set augment.mode = \"online\""), "{kind}: {stored}");
            for off in ["mode = 'none'", "versions = 0"] {
                for set in ["storage = 'f16'", "jitter = { sigma = 0.1 }"] {
                    let unread = said(&format!("{kind}[augment]\n{off}\n{set}"));
                    assert!(unread.contains("stores no versions of windows"), "{off} {set}");
                }
            }
            let memory = said(&format!("{kind}[loader]\nresident = 'memory'\n{JITTER_ALONE}"));
            assert!(memory.contains("`augment.mode` is \"online\""), "{kind}: {memory}");
            let bad = said(&format!("{kind}{JITTER_ALONE}[augment.jitter]\nsigma = -1"));
            assert!(bad.contains("[augment]"), "{kind}: {bad}");
        }
    }

    #[test]
    fn what_makes_no_window_that_could_be_is_refused() {
        let all = "[augment]\nmode = 'online'\n";
        assert_eq!(said(&format!("{CLIPS}{all}")), "");
        assert_eq!(said(&format!("{FOLDS}{all}")), "");
        for (text, why, tables) in [
            (format!("{FORECAST}{all}"), "what follows", "[forecast.masking]"),
            (format!("{FOLDS}{TIMEFRAMES}{all}"), "[data.timeframes]", "[multitimeframe.mix]"),
            (format!("{CLIPS}{TIMEFRAMES}{all}"), "[data.timeframes]", "[pseudolabel.masking]"),
        ] {
            let said = said(&text);
            for expected in
                ["`augment.scaling.probability` is 0.3", why, tables, "[augment.jitter]"]
            {
                assert!(said.contains(expected), "{expected}: {said}");
            }
        }
        assert_eq!(said(&format!("{FOLDS}{TIMEFRAMES}{JITTER_ALONE}")), "");
        assert_eq!(said(&format!("{FORECAST}{JITTER_ALONE}")), "");
    }

    #[test]
    fn versions_that_would_be_their_windows_are_refused() {
        let never = format!("{JITTER_ALONE}[augment.jitter]\nprobability = 0\n");
        for kind in [CLIPS, FOLDS, FORECAST, ""] {
            let said = said(&format!("{kind}{never}"));
            assert!(said.contains("all probabilities of [augment] are 0"), "{kind}: {said}");
            assert!(said.contains("`augment.versions` = 4") && said.contains("mode = \"none\""));
        }
        // Stored ones are as much in vain; none of them are not.
        let stored = never.replace("'online'", "'cached'");
        assert!(said(&stored).contains("all probabilities of [augment] are 0"), "{stored}");
        // Where nothing is pre-trained, those of fine-tuning alone are made.
        for begin in ["encoder = 'weights'", "arms = ['from-scratch']"] {
            let said = |versions: u32| {
                let table = format!("[finetune]\n{begin}\nversions = {versions}\n");
                said(&format!("pipeline = 'finetune'\nlabels = 'last'\n{table}{stored}"))
            };
            assert!(said(2).contains("`finetune.versions` = 2"), "{begin}");
            assert_eq!(said(0), "", "{begin}");
        }
        for fine in
            [stored.replace("'cached'", "'none'"), stored.replace("mode =", "versions = 0\nmode =")]
        {
            assert_eq!(said(&fine), "", "{fine}");
        }
    }

    #[test]
    fn what_decides_a_version_decides_the_key() {
        let key = |text: &str, arithmetic: &str| {
            let config: PipelineConfig = toml::from_str(text).unwrap();
            varied(Key::builder("training", 1), &config, arithmetic).finish()
        };
        let plain = key("", "cpu");
        assert_eq!(key("[augment]\nmode = 'none'", "cpu"), plain);
        let drawn = key(JITTER_ALONE, "cpu");
        assert_ne!(drawn, plain);
        assert_ne!(key(&format!("{JITTER_ALONE}[augment.jitter]\nsigma = 0.1"), "cpu"), drawn);
        assert_ne!(key(JITTER_ALONE, "cuda"), drawn, "a device rounds in its own way");
        let stored = JITTER_ALONE.replace("'online'", "'online'\nstorage = 'f16'");
        assert_eq!(key(&stored, "cpu"), drawn, "nothing is stored");
        let all = |text: &str| {
            let config: PipelineConfig = toml::from_str(text).unwrap();
            Keys::new(&read(&config), plain, "cpu").training
        };
        assert_eq!(all(&stored), all(JITTER_ALONE));
        assert_eq!(all("[augment]\nmode = 'none'"), all(""));
        assert_ne!(all(JITTER_ALONE), all(""));
        let augment = |versions| Augmentation {
            mode: AugmentMode::Online,
            versions,
            ..Augmentation::default()
        };
        let of = |versions, seed| samples_key(plain, &augment(versions), seed);
        assert_eq!((of(0, 1), of(0, 2), slots(&augment(0))), (plain, plain, 1));
        assert!(of(2, 1) != of(2, 2) && of(2, 1) != of(3, 1) && of(2, 1) != plain);
        assert_eq!(slots(&augment(3)), 4);
    }
}
