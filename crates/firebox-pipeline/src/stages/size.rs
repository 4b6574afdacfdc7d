//! Refuses a model that there is no memory for, before anything of it is made: drawing its weights would take minutes
//! and end without a word on the setting that makes it so large.
//!
//! What a step keeps beside the parameters depends on its batch, which training computes in parts if it must. It is not
//! looked at here.

use firebox_core::count;
use firebox_train::memory;
use serde_json::{Value, json};
use sysinfo::System;

use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::{ModelConfig, ModelName, PipelineConfig};

/// Channels, classes and outputs, which only the data tell: the fewest that there can be.
const LEAST: usize = 1;

/// Bytes that no device other than a processor has: 4 TiB. A choice.
const MOST: u64 = 1 << 42;

/// Refuses settings whose model takes more memory than there is by its parameters alone.
pub(crate) fn check_size(
    config: &PipelineConfig,
    device: &ChosenDevice,
) -> Result<(), PipelineError> {
    match device.backend.as_str() {
        "cpu" => machine().map_or(Ok(()), |(room, said)| fits(config, room, said)),
        _ => fits(config, MOST, "no device has more than"),
    }
}

/// Bytes that this process can have at most, and whose they are, as part of a sentence: all of the machine with its swap, or
/// what its control group leaves it.
fn machine() -> Option<(u64, &'static str)> {
    let mut system = System::new();
    system.refresh_memory();
    let all = Some(system.total_memory() + system.total_swap()).filter(|bytes| *bytes > 0);
    let all = all.map(|bytes| (bytes, "there are"));
    let left = memory::limit().map(|bytes| (bytes, "limits leave this process"));
    [all, left].into_iter().flatten().min_by_key(|(bytes, _)| *bytes)
}

fn fits(config: &PipelineConfig, room: u64, said: &str) -> Result<(), PipelineError> {
    let copies = copies(config);
    let bytes = |model: &Planned| 4.0 * copies as f64 * model.parameters;
    let Some(model) = planned(config).into_iter().find(|model| bytes(model) > room as f64) else {
        return Ok(());
    };
    let held = match copies {
        1 => "weights of f32".to_owned(),
        2 => "weights and gradients of f32".to_owned(),
        more => format!("weights, gradients and {} of f32", count(more - 2, "moment")),
    };
    let largest = largest("", &model.settings).map_or(String::new(), |(key, size)| {
        format!("the largest of its settings is `{key}` = {size}: ")
    });
    Err(PipelineError::Setting(format!(
        "the model has at least {:.2e} parameters, which take {} ({held}), and {said} {} of memory\n  \
         {largest}make the model smaller, or give it more memory",
        model.parameters,
        gib(bytes(&model)),
        gib(room as f64)
    )))
}

fn gib(bytes: f64) -> String {
    let gib = bytes / f64::from(1 << 30);
    if gib < 1e5 { format!("{gib:.1} GiB") } else { format!("{gib:.1e} GiB") }
}

/// Numbers that training holds of each parameter at least: itself, its gradient and its moments. One that is frozen has
/// itself alone; which ones are is told by their names, which only the model knows.
fn copies(config: &PipelineConfig) -> u64 {
    let given = config.finetune.as_ref().is_some_and(|finetune| finetune.encoder.is_some());
    match given || config.train.groups.iter().any(|group| group.frozen) {
        true => 1,
        false => 2 + config.train.optimizer.moments().len() as u64,
    }
}

/// A model that would be trained.
struct Planned {
    /// The settings that size it, as they stand in a pipeline file.
    settings: Value,
    /// Its parameters, at least.
    parameters: f64,
}

impl Planned {
    fn new(settings: Value, parameters: f64) -> Self {
        Self { settings, parameters }
    }
}

/// Every model of the settings. Where a kind of pipeline does not read a table, others than the default one are refused
/// before.
fn planned(config: &PipelineConfig) -> Vec<Planned> {
    let time = config.window.length;
    let model = match &config.model {
        ModelConfig::BilstmMae(model) => {
            Planned::new(json!({ "model": { "bilstm-mae": model } }), model.parameters(LEAST))
        }
        ModelConfig::PatchTransformer(model) => {
            let settings = json!({ "model": { "patch-transformer": model } });
            Planned::new(settings, model.parameters(LEAST))
        }
        ModelConfig::Masked(model) => {
            let settings = json!({ "model": { "masked": model }, "window": { "length": time } });
            Planned::new(settings, model.parameters(LEAST, time))
        }
        ModelConfig::StackedLstm(model) => {
            let settings = json!({ "model": { "stacked-lstm": model } });
            Planned::new(settings, model.parameters(LEAST, 0, LEAST))
        }
        ModelConfig::Bert(model) => {
            let longest = config.text.as_ref().map_or(LEAST, |text| text.longest);
            let settings = json!({ "model": { "bert": model }, "text": { "longest": longest } });
            Planned::new(settings, model.encoder(LEAST, longest).parameters())
        }
    };
    let several = config.multitimeframe.iter().flat_map(|table| {
        table.models.iter().map(move |model| {
            let (lstm, transformer, mlp) =
                (&table.lstm.settings, &table.transformer.settings, &table.mlp.settings);
            let (settings, parameters) = match model {
                ModelName::Lstm => (json!(lstm), lstm.parameters(LEAST, LEAST)),
                ModelName::Transformer => {
                    (json!(transformer), transformer.parameters(LEAST, time, LEAST))
                }
                ModelName::Mlp => (json!(mlp), mlp.parameters([time, LEAST], LEAST)),
            };
            let own = json!({ (model.name()): { "settings": settings } });
            Planned::new(json!({ "multitimeframe": own, "window": { "length": time } }), parameters)
        })
    });
    let clusters = config.pseudolabel.iter().map(|table| {
        let settings = json!({ "pseudolabel": { "model": table.model } });
        Planned::new(settings, table.model.parameters(LEAST, LEAST))
    });
    std::iter::once(model).chain(several).chain(clusters).collect()
}

/// The largest whole number among settings, with its key.
fn largest(key: &str, settings: &Value) -> Option<(String, u64)> {
    match settings {
        Value::Object(table) => {
            let named = table.iter().filter_map(|(name, value)| {
                let name = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                largest(&name, value)
            });
            named.max_by_key(|(_, size)| *size)
        }
        Value::Array(values) => {
            values.iter().filter_map(|value| largest(key, value)).max_by_key(|(_, size)| *size)
        }
        value => value.as_u64().map(|size| (key.to_owned(), size)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn read(text: &str) -> PipelineConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_model_beyond_the_memory_is_refused_with_the_setting_that_makes_it_so_large() {
        let said = |text: &str| fits(&read(text), 1 << 42, "there are").unwrap_err().to_string();
        let wide = said("[model.stacked-lstm]\nhidden_1 = 1000000000");
        let (found, way_out) = wide.split_once("\n  ").unwrap();
        let expected = "the model has at least 4.00e18 parameters, which take 6.0e10 GiB (weights, \
                        gradients and 2 moments of f32), and there are 4096.0 GiB of memory";
        assert_eq!(found, expected);
        let setting = "the largest of its settings is `model.stacked-lstm.hidden_1` = 1000000000: ";
        assert!(way_out.starts_with(setting), "{way_out}");
        for (text, key) in [
            ("[model.bilstm-mae]\nlayers = 1000000000", "model.bilstm-mae.layers"),
            ("[model.patch-transformer]\nwidth = 8000000", "model.patch-transformer.width"),
            (
                "[window]\nlength = 100000000000\n[model.masked.encoder.transformer]\nwidth = 8",
                "window.length",
            ),
            (
                "[model.masked.encoder.stacked-lstm]\nhidden_2 = 9000000",
                "model.masked.encoder.stacked-lstm.hidden_2",
            ),
            ("[model.bert]\nwidth = 8000000", "model.bert.width"),
            (
                "[multitimeframe.mlp.settings]\nhidden = [4, 900000000, 800000000]",
                "multitimeframe.mlp.settings.hidden",
            ),
            ("[pseudolabel.model]\nhead = 1000000000", "pseudolabel.model.head"),
        ] {
            let said = said(text);
            assert!(said.contains(&format!("settings is `{key}` = ")), "{text}: {said}");
        }
        // A table of a model that is not trained decides nothing.
        let text = "[multitimeframe]\nmodels = ['lstm']\nmlp.settings.hidden = [900000000]";
        fits(&read(text), 1 << 42, "there are").unwrap();
    }

    #[test]
    fn as_many_numbers_of_each_parameter_are_counted_as_its_training_holds() {
        // 562,946 parameters of one channel: 2.15 MiB.
        for (text, copies) in [
            ("", 4),
            ("[train.optimizer.sgd]\nmomentum = 0.5", 3),
            ("[train.optimizer.sgd]\nmomentum = 0.0", 2),
            ("[[train.groups]]\nparameters = ['lstm.*']\nfrozen = true", 1),
            ("[finetune]\nencoder = 'weights'", 1),
        ] {
            let config = read(text);
            assert_eq!(super::copies(&config), copies, "{text}");
            let room = |mib: f64| fits(&config, (mib * MIB as f64) as u64, "there are");
            room(2.2 * copies as f64).unwrap();
            let said = room(2.1 * copies as f64).unwrap_err().to_string();
            assert!(said.contains("5.6"), "{said}");
        }
    }

    #[test]
    fn what_this_machine_has_is_known() {
        let device = ChosenDevice::named("cpu");
        if let Some((room, _)) = machine() {
            assert!(room > 64 * MIB, "{room}");
            let wide = read("[model.bilstm-mae]\nhidden = 1000000000");
            check_size(&wide, &device).unwrap_err();
        }
        check_size(&PipelineConfig::default(), &device).unwrap();
        check_size(&PipelineConfig::default(), &ChosenDevice::named("cuda")).unwrap();
    }
}
