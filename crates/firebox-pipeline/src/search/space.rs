//! The searched keys, checked against the schema of the pipeline file before the first trial.

use std::collections::BTreeMap;

use firebox_search::{Choice, Distribution, Parameter, Space, StudyError, Value};

use super::config::{Number, SpaceEntry};
use super::objective::{Objective, Objectives};
use crate::ConfigError;
use crate::error::PipelineError;
use crate::layers::CHOICES;

/// Keys that say where and how a run is kept, not what is trained.
const NOT_SEARCHED: [&str; 6] =
    ["pipeline", "search", "run.device", "run.directory", "run.cache", "run.fetch"];

/// Keys that change what is measured, or by chance alone: losses of trials with other values cannot be
/// compared.
const NOT_COMPARABLE: [&str; 15] = [
    "run.seed",
    "data",
    "window",
    "labels",
    "split",
    "forecast",
    "evaluate",
    "monitor",
    "text.path",
    "text.test",
    "text.columns",
    "text.split",
    "text.longest",
    "text.tokenizer",
    "text.loss",
];

/// Keys that change the validation loss of models that restore what is hidden, and no other score: how much is hidden, and
/// what is added to the error.
const OF_LOSS_ALONE: [&str; 4] = [
    "model.bilstm-mae.mask",
    "model.bilstm-mae.latent_weight",
    "model.patch-transformer.mask",
    "model.masked.mask",
];

/// The space of a study. What its keys and values mean to the pipeline is checked with
/// [`check_schema`].
pub(super) fn space(
    entries: &BTreeMap<String, SpaceEntry>,
    objectives: &Objectives,
) -> Result<Space, PipelineError> {
    if entries.is_empty() {
        return Err(PipelineError::Setting(
            "there is nothing to search: [search.space] has no key\n  \
             add one, such as \"train.optimizer.adamw.learning_rate\" = { low = 1e-4, high = 1e-2, log = true }"
                .to_owned(),
        ));
    }
    let mut distributions = BTreeMap::new();
    for (key, entry) in entries {
        let among = |names: &[&str]| {
            names.iter().any(|own| key == own || key.starts_with(&format!("{own}.")))
        };
        // What is written otherwise would be another key to the lists, and the same one to the pipeline.
        let plain = key.replace(|own: char| own.is_whitespace() || matches!(own, '"' | '\''), "");
        if plain != *key {
            return Err(wrong(
                key,
                &format!("its names are written without spaces and quotes\n  write `{plain}`"),
            ));
        }
        if among(&NOT_SEARCHED) {
            return Err(wrong(key, "it says where and how a run is kept, not what is trained"));
        }
        if among(&NOT_COMPARABLE) {
            return Err(wrong(
                key,
                "it changes what is measured and not how well it is learnt, so the losses of its values cannot be compared\n  search each value by itself, with a study for each",
            ));
        }
        let by_loss = objectives.all().contains(&Objective::ValidationLoss);
        if among(&OF_LOSS_ALONE) && by_loss {
            return Err(wrong(
                key,
                "the validation loss is measured by it: it is lower where less is hidden, or less is added to it, whatever is learnt\n  search by a score of what was learnt, such as search.objective = \"validation-accuracy\", or search each value by itself, with a study for each",
            ));
        }
        let distribution = distribution(key, entry)?;
        // Its own faults first, before a condition of another is looked up in it.
        let checked = distribution.validate();
        checked.map_err(|source| StudyError::Parameter { name: key.clone(), source })?;
        distributions.insert(key.clone(), distribution);
    }
    let mut parameters = BTreeMap::new();
    for (key, entry) in entries {
        let when = match &entry.when {
            None => None,
            Some(when) => match (when.len(), when.first_key_value()) {
                (1, Some((on, choice))) => {
                    Some((on.clone(), value_of(choice, distributions.get(on))))
                }
                _ => return Err(wrong(key, "`when` names exactly one other key")),
            },
        };
        let distribution = distributions[key].clone();
        parameters.insert(key.clone(), Parameter { distribution, when });
    }
    let space = Space::new(parameters)?;
    check_choices(&space)?;
    Ok(space)
}

/// Refuses keys of two choices of one table, such as those of two optimizers: the second one would
/// replace the first, whose values would then mean nothing. So would a key of one choice replace what was chosen where
/// the table itself is searched.
fn check_choices(space: &Space) -> Result<(), PipelineError> {
    for table in CHOICES {
        let chosen = space.parameters().iter().filter_map(|(key, parameter)| {
            let name = key.strip_prefix(table)?.strip_prefix('.')?.split('.').next()?;
            Some((key, name, &parameter.when))
        });
        let chosen: Vec<_> = chosen.collect();
        let is_searched = space.parameters().contains_key(table);
        let stray = chosen.iter().find(|(_, name, when)| {
            let own = Value::Choice(Choice::Text((*name).to_owned()));
            !matches!(when, Some((on, value)) if on == table && *value == own)
        });
        if let Some((key, name, _)) = stray.filter(|_| is_searched) {
            return Err(wrong(
                key,
                &format!(
                    "`{table}` is searched, too, and this key makes it `{name}`, whatever was chosen\n  leave one of them out, or search each by itself, with a study for each"
                ),
            ));
        }
        for (place, (key, name, when)) in chosen.iter().enumerate() {
            let beside = chosen[..place].iter().find(|(_, other, other_when)| {
                let exclusive = match (when, other_when) {
                    (Some((on, value)), Some((other_on, other_value))) => {
                        on == other_on && value != other_value
                    }
                    _ => false,
                };
                other != name && !exclusive
            });
            if let Some((other, other_name, _)) = beside {
                return Err(wrong(
                    key,
                    &format!(
                        "`{other}` is searched, too, and `{table}` takes one of its choices, not `{other_name}` and `{name}`\n  leave one of them out, or search each by itself, with a study for each; together they are searched where each has a `when` of another value of one key, such as `run.precision`"
                    ),
                ));
            }
        }
    }
    Ok(())
}

/// Reads the pipeline with each end and each choice of every key, as strictly as the file is read.
pub(super) fn check_schema(
    space: &Space,
    read: impl Fn(&[String]) -> Result<(), PipelineError>,
) -> Result<(), PipelineError> {
    for (key, parameter) in space.parameters() {
        // A key may only be there with the choice that it depends on.
        let mut with = vec![];
        let mut at = parameter;
        while let Some((on, value)) = &at.when {
            with.push(setting(on, value));
            let Some(next) = space.parameters().get(on) else { break };
            at = next;
        }
        with.reverse();
        for value in ends(&parameter.distribution) {
            let mut settings = with.clone();
            settings.push(setting(key, &value));
            read(&settings).map_err(|source| PipelineError::Space {
                key: key.clone(),
                value: text(&value),
                source: Box::new(of_a_table(key, &value, source)),
            })?;
        }
    }
    Ok(())
}

/// Why a key cannot have this value: its own reason, where it is the name of a choice that has settings.
fn of_a_table(key: &str, value: &Value, source: PipelineError) -> PipelineError {
    let Value::Choice(Choice::Text(name)) = value else { return source };
    // A name that there is not is told with those that there are.
    let is_known = matches!(
        &source,
        PipelineError::Config(ConfigError::Layer { message, .. })
            if !message.starts_with("unknown choice")
    );
    if !is_known || !CHOICES.contains(&key) {
        return source;
    }
    PipelineError::Setting(format!(
        "`{name}` has settings of its own, and a choice of a search is a name or a number alone\n  \
         write `{key}.{name}` into the file and search its keys, or search each of the choices by itself, with a study for each"
    ))
}

/// A value as `--set` takes it.
pub(super) fn setting(key: &str, value: &Value) -> String {
    format!("{key}={}", text(value))
}

/// What TOML reads back as the same.
fn text(value: &Value) -> String {
    match value {
        // Not as Rust writes texts, which escapes many characters in a way that TOML does not know.
        Value::Choice(Choice::Text(text)) => toml::Value::String(text.clone()).to_string(),
        // TOML writes it small alone.
        Value::Choice(Choice::Float(number)) if number.is_nan() => "nan".to_owned(),
        // Floats with all their digits.
        _ => value.to_string(),
    }
}

fn wrong(key: &str, what: &str) -> PipelineError {
    PipelineError::Setting(format!("[search.space] cannot have `{key}` so: {what}"))
}

fn distribution(key: &str, entry: &SpaceEntry) -> Result<Distribution, PipelineError> {
    let SpaceEntry { low, high, log, step, choices, .. } = entry.clone();
    if let Some(choices) = choices {
        if low.is_some() || high.is_some() || step.is_some() || log {
            return Err(wrong(key, "it has choices and a range; leave one of them out"));
        }
        return Ok(Distribution::Categorical { choices });
    }
    let (Some(low), Some(high)) = (low, high) else {
        return Err(wrong(key, "it needs `low` and `high`, or `choices`"));
    };
    let whole = |number: Option<Number>| match number {
        None => Some(None),
        Some(Number::Int(number)) => Some(Some(number)),
        Some(Number::Float(_)) => None,
    };
    Ok(match (low, high, whole(step)) {
        (Number::Int(low), Number::Int(high), Some(step)) => {
            Distribution::Int { low, high, log, step: step.unwrap_or(1) }
        }
        _ => Distribution::Float {
            low: low.value(),
            high: high.value(),
            log,
            step: step.map(Number::value),
        },
    })
}

/// A choice as the value of another key's distribution.
fn value_of(choice: &Choice, distribution: Option<&Distribution>) -> Value {
    match (distribution, choice) {
        (Some(Distribution::Int { .. }), Choice::Int(number)) => Value::Int(*number),
        (Some(Distribution::Float { .. }), Choice::Int(number)) => Value::Float(*number as f64),
        (Some(Distribution::Float { .. }), Choice::Float(number)) => Value::Float(*number),
        _ => Value::Choice(choice.clone()),
    }
}

fn ends(distribution: &Distribution) -> Vec<Value> {
    match distribution {
        Distribution::Float { low, high, .. } => vec![Value::Float(*low), Value::Float(*high)],
        Distribution::Int { low, high, .. } => vec![Value::Int(*low), Value::Int(*high)],
        Distribution::Categorical { choices } => {
            choices.iter().cloned().map(Value::Choice).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::text::reason;
    use super::*;
    use crate::layers;

    /// Why the space of a pipeline is refused, if it is.
    fn refusal(text: &str) -> Option<String> {
        let search = layers::parse(Path::new("p.toml"), text, &[], &[]).unwrap().search.unwrap();
        space(&search.space, &search.objectives).err().map(|error| error.to_string())
    }

    #[test]
    fn keys_that_losses_cannot_be_compared_by_are_refused_however_they_are_written() {
        let said = |objective: &str, key: &str| {
            refusal(&format!(
                "[search]\nobjective = \"{objective}\"\n[search.space]\n{key} = {{ low = 1, high = 3 }}\n"
            ))
        };
        let mask = r#""model.bilstm-mae.mask.patch.length""#;
        let refused = said("validation-loss", mask).unwrap();
        assert!(refused.contains("it is lower where less is hidden"), "{refused}");
        assert_eq!(said("validation-accuracy", mask), None);
        assert_eq!(said("validation-loss", r#""train.epochs""#), None);
        assert!(said("validation-loss", r#""run.seed""#).unwrap().contains("cannot be compared"));
        for key in [r#"" run.seed""#, r#""run.'seed'""#, r#""run. seed""#] {
            let refused = said("validation-accuracy", key).unwrap();
            assert!(refused.ends_with("write `run.seed`"), "{refused}");
        }
    }

    #[test]
    fn a_table_and_a_setting_of_one_of_its_choices_are_not_searched_together() {
        let said = |entries: &str| refusal(&format!("[search.space]\n{entries}\n"));
        let choice = r#""train.loss_scale" = { choices = ["auto", "off"] }"#;
        let scale = r#""train.loss_scale.static" = { low = 2.0, high = 64.0 }"#;
        let growth = r#""train.loss_scale.dynamic.growth" = { low = 1.5, high = 4.0 }"#;
        for (key, entry) in [("static", scale), ("dynamic.growth", growth)] {
            let refused = said(&format!("{choice}\n{entry}")).unwrap();
            for part in [
                "`train.loss_scale` is searched, too",
                "leave one of them out, or search each by itself, with a study for each",
                &format!("[search.space] cannot have `train.loss_scale.{key}` so: "),
            ] {
                assert!(refused.contains(part), "`{part}`: {refused}");
            }
            assert_eq!(said(entry), None);
        }
        assert_eq!(said(choice), None);
        // Where it is there with that choice alone, nothing is replaced.
        let choice = r#""train.loss_scale" = { choices = ["auto", "static"] }"#;
        let when = |name: &str| {
            let on = format!(r#"when = {{ "train.loss_scale" = "{name}" }}"#);
            scale.replace('}', &format!(", {on} }}"))
        };
        assert_eq!(said(&format!("{choice}\n{}", when("static"))), None);
        assert!(said(&format!("{choice}\n{}", when("auto"))).is_some());
    }

    #[test]
    fn keys_of_two_choices_are_searched_together_where_another_key_decides() {
        let precision = r#""run.precision" = { choices = ["bf16", "f32"] }"#;
        let rate = |optimizer: &str, when: &str| {
            let key = format!(r#""train.optimizer.{optimizer}.learning_rate""#);
            format!("{key} = {{ low = 0.001, high = 0.1{when} }}\n")
        };
        let both = rate("adamw", "") + &rate("sgd", "");
        let refused = refusal(&format!("[search.space]\n{both}")).unwrap();
        for part in [
            "`train.optimizer` takes one of its choices, not `adamw` and `sgd`",
            "leave one of them out, or search each by itself, with a study for each",
            "where each has a `when` of another value of one key",
        ] {
            assert!(refused.contains(part), "`{part}`: {refused}");
        }
        let when = |value: &str| format!(r#", when = {{ "run.precision" = "{value}" }}"#);
        let apart = rate("adamw", &when("bf16")) + &rate("sgd", &when("f32"));
        assert_eq!(refusal(&format!("[search.space]\n{precision}\n{apart}")), None);
        let alike = rate("adamw", &when("bf16")) + &rate("sgd", &when("bf16"));
        assert!(refusal(&format!("[search.space]\n{precision}\n{alike}")).is_some());
    }

    #[test]
    fn texts_reach_the_pipeline_as_they_are() {
        for text in [
            "adamw",
            "",
            "a \"b\" 'c' \\d",
            "two\nlines\tand more",
            "全角\u{3000}空白",
            "no\u{a0}break",
            "e\u{301}",
            "\u{1b}[1m\0",
            "true",
            "3",
        ] {
            let setting = setting("key", &Value::Choice(Choice::Text(text.to_owned())));
            let read: toml::Table = toml::from_str(&setting).unwrap();
            assert_eq!(read["key"].as_str(), Some(text), "{setting}");
        }
    }

    #[test]
    fn floats_reach_the_pipeline_as_they_are() {
        for float in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-300, -0.1, 2.0] {
            let setting = setting("key", &Value::Choice(Choice::Float(float)));
            let read: toml::Table = toml::from_str(&setting).unwrap();
            let found = read["key"].as_float().unwrap();
            assert!(found == float || (found.is_nan() && float.is_nan()), "{setting}");
        }
    }

    #[test]
    fn a_choice_that_cannot_be_is_told_with_its_key_and_the_way_out() {
        let said = |entry: &str| {
            let text = format!("[search.space]\n{entry}\n");
            let file = Path::new("p.toml");
            let read = |settings: &[String]| layers::parse(file, &text, &[], settings);
            let search = read(&[]).unwrap().search.unwrap_or_default();
            let space = space(&search.space, &search.objectives).unwrap();
            let checked = check_schema(&space, |settings| Ok(read(settings).map(drop)?));
            let error = checked.unwrap_err();
            format!("{error}: {}", reason(&error))
        };
        for (entry, expected) in [
            (
                r#""train.schedule" = { choices = ["cosine", "constant"] }"#,
                &[
                    "[search.space] cannot have `train.schedule` = \"cosine\"",
                    "`cosine` has settings of its own",
                    "write `train.schedule.cosine` into the file",
                    "with a study for each",
                ][..],
            ),
            (
                r#""train.checkpoint.keep" = { choices = ["best-only", "last"] }"#,
                &["`train.checkpoint.keep` = \"last\"", "`last` has settings of its own"],
            ),
            (
                r#""train.schedule" = { choices = ["cosin"] }"#,
                &["`train.schedule` = \"cosin\"", "unknown choice `cosin`", "mean `cosine`?"],
            ),
            (
                r#""train.epochs" = { choices = [2, "many"] }"#,
                &["`train.epochs` = \"many\"", "expected a whole number"],
            ),
            (
                r#""train.epoch" = { choices = [2] }"#,
                &["`train.epoch` = 2", "unknown key `epoch`", "did you mean `epochs`?"],
            ),
        ] {
            let said = said(entry);
            expected.iter().for_each(|part| assert!(said.contains(part), "`{part}`: {said}"));
        }
    }
}
