//! Tables that are a choice among several: a later layer may make another, and none makes two.

use figment::Figment;
use figment::providers::Serialized;
use figment::value::{Dict, Value};

use super::ConfigError;

/// Tables of which one of several may stand: naming another replaces the one before.
pub(crate) const CHOICES: [&str; 21] = [
    "split",
    "labels",
    "loader.shuffle",
    "model",
    "model.bilstm-mae.mask",
    "model.patch-transformer.mask",
    "model.masked.mask",
    "model.masked.encoder",
    "train.schedule",
    "train.schedule.constant.warmup",
    "train.schedule.cosine.warmup",
    "train.schedule.plateau.warmup",
    "train.optimizer",
    "train.loss_scale",
    "train.checkpoint.keep",
    "finetune.loss",
    "forecast.loss",
    "finetune.mix",
    "multitimeframe.mix",
    "search.sampler",
    "search.pruner",
];

/// Drops what an earlier layer chose where `nested` makes another choice of the same table, and
/// refuses two choices at once, as the file is refused: one of them would be taken silently.
pub(super) fn chosen(
    figment: Figment,
    table: &str,
    nested: &Value,
    layer: &str,
) -> Result<Figment, ConfigError> {
    let choices = nested.find_ref(table).and_then(Value::as_dict);
    let Some(choices) = choices.filter(|choices| !choices.is_empty()) else {
        return Ok(figment);
    };
    if choices.len() > 1 {
        let names: Vec<String> = choices.keys().map(|name| format!("`{name}`")).collect();
        return Err(ConfigError::Layer {
            layer: layer.to_owned(),
            message: format!("`{table}` takes one of its choices, not {}", names.join(" and ")),
            hint: "\n  leave out all but one of them".to_owned(),
        });
    }
    // Not as a table of TOML, whose numbers cannot hold every seed.
    let Ok(mut all) = figment.extract::<Dict>() else { return Ok(figment) };
    let mut at = Some(&mut all);
    for key in table.split('.') {
        at = at.and_then(|table| match table.get_mut(key)? {
            Value::Dict(_, inner) => Some(inner),
            _ => None,
        });
    }
    let Some(found) = at else { return Ok(figment) };
    found.retain(|key, _| choices.contains_key(key));
    Ok(Figment::from(Serialized::globals(all)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::CHOICES;
    use crate::layers::tests::{message, read};

    #[test]
    fn every_table_of_one_of_several_choices_is_known() {
        let reference = include_str!("../../../../REFERENCE.md");
        let mut tables = BTreeSet::new();
        for part in reference.split("\n#").filter(|part| part.contains("\n| choice |")) {
            let (heading, _) = part.split_once('\n').unwrap();
            let names =
                heading.split('`').filter_map(|name| name.strip_prefix('[')?.strip_suffix(']'));
            tables.extend(names);
        }
        assert_eq!(tables, BTreeSet::from(CHOICES));
    }

    #[test]
    fn another_choice_replaces_the_one_before_in_tables_within_tables() {
        let file = "[model.masked.encoder.cnn-bilstm]\nhidden = 6\n[model.masked.mask.patch]\nsteps = 3\nshare = 0.3\n";
        let of = |settings: &[&str]| {
            let config = read(file, &[], settings).unwrap();
            serde_json::to_string(&config.model).unwrap()
        };
        let later = of(&[
            "model.masked.encoder.recurrent.hidden=6",
            "model.masked.mask.random.probability=0.4",
        ]);
        assert!(later.contains(r#""recurrent""#) && !later.contains("cnn-bilstm"), "{later}");
        assert!(later.contains(r#""mask":{"random":{"probability":0.4}}"#), "{later}");
        let said = message(file, &[], &["model.masked.encoder.transfomer.width=6"]);
        assert!(said.contains("transfomer"), "{said}");
        let said =
            message(file, &[], &["model.masked.mask={block={share=0.3},random={probability=0.1}}"]);
        assert!(said.contains("`model.masked.mask` takes one of its choices"), "{said}");
        let said = message("", &[("FIREBOX_MULTITIMEFRAME__MIX", "{cutmix={},mixup={}}")], &[]);
        assert!(said.contains("`multitimeframe.mix` takes one of its choices"), "{said}");
        let mix = ["multitimeframe.mix={cutmix={}}", "multitimeframe.mix={mixup={alpha=0.3}}"];
        let config = read("pipeline = \"multitimeframe\"\n", &[], &mix).unwrap();
        let text = serde_json::to_string(&config.multitimeframe).unwrap();
        assert!(text.contains("mixup") && !text.contains("cutmix"), "{text}");
    }

    #[test]
    fn another_choice_replaces_the_one_before() {
        let text = "[split.time]\nvalidation = 0.1\ntest = 0.2\n[labels.majority]\nshare = 0.5\n";
        let config =
            read(text, &[], &["split.given.validation=0.3", "split.given.seed=4", "labels=last"]);
        let config = config.unwrap();
        let equal = firebox_core::EqualPolicy::Error;
        let given = firebox_core::SplitRule::Given { validation: 0.3, seed: 4, equal };
        assert_eq!(config.split, Some(given));
        assert_eq!(config.labels, firebox_core::Labels::Last);
    }

    #[test]
    fn two_choices_at_once_are_refused_in_every_layer() {
        let expected = "`train.optimizer` takes one of its choices, not `adamw` and `sgd`";
        let both = "{sgd={},adamw={}}";
        let said = [
            message("", &[], &[&format!("train.optimizer={both}")]),
            message("", &[], &[&format!("train={{optimizer={both}}}")]),
            message("", &[("FIREBOX_TRAIN__OPTIMIZER", both)], &[]),
        ];
        for said in said {
            assert!(said.contains(expected), "{said}");
        }
        let said = message("", &[], &["train.loss_scale={static=0.5,dynamic={}}"]);
        assert!(said.contains("not `dynamic` and `static`"), "{said}");
        // A table that is set as a whole replaces another choice too.
        let file = "[train.optimizer.adamw]\nlearning_rate = 0.5\n";
        let config = read(file, &[], &["train.optimizer={sgd={}}"]).unwrap();
        let sgd = firebox_train::Optimizer::Sgd(firebox_train::SgdConfig::default());
        assert_eq!(config.train.optimizer, sgd);
        let seed = ["run.seed=18446744073709551615", "train.optimizer={sgd={}}"];
        assert_eq!(read(file, &[], &seed).unwrap().train.optimizer, sgd);
        let file = "[train.schedule.cosine]\nwarmup = { steps = 5 }\n";
        let config = read(file, &[], &["train.schedule.cosine.warmup.share=0.5"]).unwrap();
        let text = serde_json::to_string(&config.train.schedule).unwrap();
        assert!(text.contains(r#""warmup":{"share":0.5}"#), "{text}");
    }
}
