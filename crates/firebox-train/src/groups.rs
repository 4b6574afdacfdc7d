//! Parameter groups: which settings of the optimizer each parameter gets, by its name.
//!
//! Names are those of checkpoints, which are PyTorch's. In a pattern, `*` stands for any text.

use std::collections::BTreeSet;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;
use firebox_core::quoted;
use firebox_models::{Layout, layouts};
use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, Decay, TrainConfig, check};
use crate::optimizer::OptimizerState;

/// Parameters with settings of their own: `[[train.groups]]`. A parameter belongs to the first
/// group that names it; what a group leaves out is as for all other parameters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ParameterGroup {
    /// Names of parameters, such as `head.weight` or `encoder.*`.
    pub parameters: Vec<String>,
    /// Peak learning rate in place of the optimizer's, above 0; the schedule scales it alike.
    pub learning_rate: Option<f64>,
    /// Weight decay in place of the optimizer's, 0 or more, whatever `decay` says.
    pub weight_decay: Option<f64>,
    /// Whether the parameters stay as they are for the whole run: no gradient, no decay.
    pub frozen: bool,
    /// Epoch, from 1 to the last, from which on they are trained; before it they are frozen. None:
    /// the first.
    pub unfreeze_at: Option<u64>,
}

/// Layers nearer to the input learn more slowly: `[train.layer_decay]`. Source: Howard and Ruder,
/// "Universal language model fine-tuning for text classification", 2018.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerDecay {
    /// Factor on the learning rate from a layer to the one before it, above 0 and at most 1.
    pub factor: f64,
    /// Names of each layer's parameters, from the input to the output: the last layer has the full
    /// rate. `{}` stands for a whole number, no part of a longer one, and a name with it for as many
    /// layers as there are numbers: `encoder.layers.{}.*`. A parameter belongs to the first layer that
    /// names it; those that no layer names have the full rate.
    pub layers: Vec<String>,
}

/// What the optimizer does with one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Settings {
    /// Factor on the learning rate.
    pub(crate) rate: f64,
    pub(crate) weight_decay: f64,
    /// First epoch, from 0, in which it is trained; none: never.
    pub(crate) from: Option<u64>,
}

impl Settings {
    /// Whether the parameter is trained in this epoch, from 0.
    pub(crate) fn trains_in(&self, epoch: u64) -> bool {
        self.from.is_some_and(|from| epoch >= from)
    }
}

/// A group or layer that does not fit the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// A pattern names nothing.
    #[error(
        "`train.{key}` names `{pattern}`, and no parameter of the model is called so; there are {known}"
    )]
    Unknown {
        /// `groups` or `layer_decay.layers`.
        key: &'static str,
        /// The pattern.
        pattern: String,
        /// Names of the model's parameters, shortened.
        known: String,
    },
    /// Earlier groups or layers name all that one names.
    #[error(
        "`train.{key}` names `{pattern}`, and whatever is called so belongs to an earlier entry \
         already, so this one does nothing; put it before the others, or leave it out"
    )]
    Shadowed {
        /// `groups` or `layer_decay.layers`.
        key: &'static str,
        /// The patterns of the group or layer.
        pattern: String,
    },
    /// All parameters are frozen in the first epoch.
    #[error(
        "`train.groups` freezes every parameter of the model in the first epoch; leave one to train"
    )]
    AllFrozen,
}

pub(crate) fn validate(config: &TrainConfig) -> Result<(), ConfigError> {
    for group in &config.groups {
        let rate = group.learning_rate.unwrap_or(1.0);
        let base = config.optimizer.learning_rate();
        let fits = |rate: f64| rate > 0.0 && (rate / base).is_finite();
        let allowed = "above 0, and a finite multiple of the optimizer's";
        check("groups.learning_rate", rate, fits, allowed)?;
        let decay = group.weight_decay.unwrap_or(0.0);
        check("groups.weight_decay", decay, |v| v >= 0.0 && v.is_finite(), "0 or more and finite")?;
        let in_run = |epoch: u64| (1..=config.epochs).contains(&epoch);
        let allowed = "at least 1 and at most `train.epochs`, or `frozen = true` in its place for \
                       parameters that are never trained";
        check("groups.unfreeze_at", group.unfreeze_at.unwrap_or(1), in_run, allowed)?;
        check("groups.parameters", group.parameters.len(), |v| v >= 1, "at least one name")?;
        if let (true, Some(epoch)) = (group.frozen, group.unfreeze_at) {
            let found = format!("{epoch} in a group that is frozen for the whole run");
            let allowed = "left out there, or `frozen` be left out";
            return Err(ConfigError { key: "groups.unfreeze_at", found, allowed });
        }
        if let (true, Some(rate)) = (group.frozen, group.learning_rate) {
            let found = format!("{rate} in a group that is frozen for the whole run");
            let allowed = "left out there, or `frozen` be left out";
            return Err(ConfigError { key: "groups.learning_rate", found, allowed });
        }
    }
    let factor = config.layer_decay.as_ref().map_or(1.0, |decay| decay.factor);
    check("layer_decay.factor", factor, |v| v > 0.0 && v <= 1.0, "above 0 and at most 1")?;
    let layers = config.layer_decay.as_ref().map_or(1, |decay| decay.layers.len());
    let allowed = "at least one name, or `train.layer_decay` be false";
    check("layer_decay.layers", layers, |v| v >= 1, allowed)
}

/// Checks that the groups and layers of a configuration fit a model, before any work is done for
/// it.
///
/// # Errors
/// As those of [`OptimizerState::new`].
pub fn check_groups<M: Module>(model: &M, config: &TrainConfig) -> Result<(), GroupError> {
    resolve(config, &layouts(model)).map(drop)
}

/// Checks a configuration that several models are trained with, each by what [`groups_of`] leaves of it: a name
/// is to be one of some model's, and something is left to train of every model.
///
/// # Errors
/// As those of [`OptimizerState::new`], of all models together or of one of them.
pub fn check_groups_of_several(
    models: &[Vec<Layout>],
    config: &TrainConfig,
) -> Result<(), GroupError> {
    resolve(config, &models.concat())?;
    models.iter().try_for_each(|layouts| resolve(&own(config, layouts), layouts).map(drop))
}

/// The configuration for one of several models that are trained with it: without names that none of its
/// parameters has, and without groups and layers that would do nothing.
pub fn groups_of<M: Module>(model: &M, config: &TrainConfig) -> TrainConfig {
    own(config, &layouts(model))
}

fn own(config: &TrainConfig, layouts: &[Layout]) -> TrainConfig {
    let mut own = config.clone();
    let mut free: Vec<&str> = layouts.iter().map(|layout| layout.name.as_str()).collect();
    own.groups.retain_mut(|group| {
        let named = |pattern: &String| layouts.iter().any(|one| matches(pattern, &one.name));
        group.parameters.retain(named);
        let before = free.len();
        free.retain(|name| !group.parameters.iter().any(|pattern| matches(pattern, name)));
        free.len() < before
    });
    if let Some(decay) = &mut own.layer_decay {
        // What earlier layers name here, and not in another model, is no reason to refuse a later one.
        let mut free: Vec<&str> = layouts.iter().map(|layout| layout.name.as_str()).collect();
        decay.layers.retain(|pattern| {
            let layers = expand(pattern, layouts);
            let before = free.len();
            free.retain(|name| !layers.iter().any(|layer| layer.names(name)));
            free.len() < before
        });
    }
    own.layer_decay = own.layer_decay.filter(|decay| !decay.layers.is_empty());
    own
}

/// The settings of each parameter.
pub(crate) fn resolve(
    config: &TrainConfig,
    layouts: &[Layout],
) -> Result<Vec<Settings>, GroupError> {
    let unknown = |key, pattern: &str| GroupError::Unknown {
        key,
        pattern: pattern.to_owned(),
        known: known(layouts),
    };
    let named = |pattern: &str| layouts.iter().any(|layout| matches(pattern, &layout.name));
    for pattern in config.groups.iter().flat_map(|group| &group.parameters) {
        if !named(pattern) {
            return Err(unknown("groups", pattern));
        }
    }
    let mut owned = BTreeSet::new();
    for ParameterGroup { parameters, .. } in &config.groups {
        let names = |index: &usize| parameters.iter().any(|p| matches(p, &layouts[*index].name));
        let before = owned.len();
        owned.extend((0..layouts.len()).filter(names));
        if owned.len() == before {
            return Err(GroupError::Shadowed { key: "groups", pattern: parameters.join("`, `") });
        }
    }
    let mut layers: Vec<Layer<'_>> = vec![];
    for pattern in config.layer_decay.iter().flat_map(|decay| &decay.layers) {
        let found = expand(pattern, layouts);
        if found.is_empty() {
            return Err(unknown("layer_decay.layers", pattern));
        }
        let free = |name: &str| !layers.iter().any(|layer| layer.names(name));
        let new = |layer: &Layer<'_>| layouts.iter().any(|l| layer.names(&l.name) && free(&l.name));
        // A number of a `{}` that earlier layers name whole is no layer of its own.
        let found: Vec<Layer<'_>> = found.into_iter().filter(new).collect();
        if found.is_empty() {
            let key = "layer_decay.layers";
            return Err(GroupError::Shadowed { key, pattern: pattern.clone() });
        }
        layers.extend(found);
    }
    let settings: Vec<Settings> =
        layouts.iter().map(|layout| of_parameter(config, &layers, layout)).collect();
    match settings.is_empty() || settings.iter().any(|settings| settings.trains_in(0)) {
        true => Ok(settings),
        false => Err(GroupError::AllFrozen),
    }
}

fn of_parameter(config: &TrainConfig, layers: &[Layer<'_>], layout: &Layout) -> Settings {
    let optimizer = &config.optimizer;
    let named = |group: &&ParameterGroup| {
        group.parameters.iter().any(|pattern| matches(pattern, &layout.name))
    };
    let group = config.groups.iter().find(named);
    let layer = layers.iter().position(|layer| layer.names(&layout.name));
    let below = layer.map_or(0, |layer| layers.len() - 1 - layer);
    let factor = config.layer_decay.as_ref().map_or(1.0, |decay| decay.factor);
    let peak = group.and_then(|group| group.learning_rate);
    let decays = optimizer.decay() == Decay::All || layout.shape.len() >= 2;
    let usual = if decays { optimizer.weight_decay() } else { 0.0 };
    let from = match group {
        Some(ParameterGroup { frozen: true, .. }) => None,
        Some(ParameterGroup { unfreeze_at: Some(epoch), .. }) => Some(epoch.saturating_sub(1)),
        _ => Some(0),
    };
    Settings {
        rate: peak.map_or(1.0, |peak| peak / optimizer.learning_rate())
            * factor.powi(below.min(i32::MAX as usize) as i32),
        weight_decay: group.and_then(|group| group.weight_decay).unwrap_or(usual),
        from,
    }
}

/// The model, in which those parameters want a gradient that are trained in this epoch, from 0.
pub(crate) fn freeze<M: Module>(model: M, optimizer: &OptimizerState, epoch: u64) -> M {
    struct Mapper<'a>(&'a OptimizerState, u64, usize);
    impl ModuleMapper for Mapper<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let Self(optimizer, epoch, index) = *self;
            self.2 += 1;
            // By the value: what the module restores after an evaluation stays as it was.
            param.map(|tensor| tensor.detach().set_require_grad(optimizer.trains(index, epoch)))
        }
    }
    model.map(&mut Mapper(optimizer, epoch, 0))
}

/// A layer of the layer decay: what a pattern names, with this number for its `{}` if it has one.
#[derive(Clone, Copy, Debug)]
struct Layer<'a> {
    pattern: &'a str,
    number: Option<u64>,
}

impl Layer<'_> {
    fn names(&self, name: &str) -> bool {
        match self.number {
            None => matches(self.pattern, name),
            number => number_in(self.pattern, name) == number,
        }
    }
}

/// The layers that a pattern stands for, those of a `{}` in the order of their numbers.
fn expand<'a>(pattern: &'a str, layouts: &[Layout]) -> Vec<Layer<'a>> {
    if !pattern.contains("{}") {
        let named = layouts.iter().any(|layout| matches(pattern, &layout.name));
        return named.then_some(Layer { pattern, number: None }).into_iter().collect();
    }
    let numbers = layouts.iter().filter_map(|layout| number_in(pattern, &layout.name));
    let numbers: BTreeSet<u64> = numbers.collect();
    numbers.into_iter().map(|number| Layer { pattern, number: Some(number) }).collect()
}

/// The first number of a name that may stand for the `{}` of a pattern. All digits beside one
/// another are one number, so that layer 1 is not layer 10.
fn number_in(pattern: &str, name: &str) -> Option<u64> {
    let (before, after) = pattern.split_once("{}")?;
    let digit = |at: usize| name.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    let mut starts = (0..name.len()).filter(|at| digit(*at) && (*at == 0 || !digit(at - 1)));
    starts.find_map(|start| {
        let end = (start..name.len()).find(|at| !digit(*at)).unwrap_or(name.len());
        let fits = matches(before, &name[..start]) && matches(after, &name[end..]);
        fits.then(|| name[start..end].parse().ok()).flatten()
    })
}

/// Whether a name is one that a pattern stands for.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(first) else { return false };
    let mut starts = (0..=name.len()).filter(|at| name.is_char_boundary(*at));
    starts.any(|at| matches(rest, &name[at..]))
}

fn known(layouts: &[Layout]) -> String {
    let names: Vec<&str> = layouts.iter().map(|layout| layout.name.as_str()).collect();
    quoted(&names, 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(name: &str, rank: usize) -> Layout {
        Layout { name: name.to_owned(), shape: vec![2; rank], transposed: false }
    }

    fn read(text: &str) -> TrainConfig {
        serde_json::from_str(text).unwrap()
    }

    fn encoder() -> Vec<Layout> {
        let mut layouts = vec![layout("embedding.weight", 2)];
        for layer in [0, 1, 2, 10] {
            layouts.push(layout(&format!("encoder.layers.{layer}.linear.weight"), 2));
            layouts.push(layout(&format!("encoder.layers.{layer}.norm.bias"), 1));
        }
        layouts.push(layout("head.weight", 2));
        layouts
    }

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, name, expected) in [
            ("a.b", "a.b", true),
            ("a.b", "a.bc", false),
            ("a.*", "a.b.c", true),
            ("*", "", true),
            ("*.bias", "x.y.bias", true),
            ("*.bias", "bias", false),
            ("a*b*c", "a--b-b-c", true),
            ("a*b*c", "a--c", false),
            ("*ö*", "größe", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn layers_nearer_to_the_input_learn_more_slowly() {
        let config = read(
            r#"{"layer_decay": {"factor": 0.5,
                "layers": ["embedding.*", "encoder.layers.{}.*", "head.*"]}}"#,
        );
        let rates: Vec<f64> =
            resolve(&config, &encoder()).unwrap().iter().map(|s| s.rate * 32.0).collect();
        // Numbers are in their order, 10 after 2.
        assert_eq!(rates, [1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0, 16.0, 16.0, 32.0]);
    }

    #[test]
    fn a_number_of_a_layer_is_a_whole_one() {
        let layouts: Vec<Layout> =
            (0..12).map(|layer| layout(&format!("lstm.weight_ih_l{layer}"), 2)).collect();
        let config = read(r#"{"layer_decay": {"factor": 0.5, "layers": ["lstm.*_l{}*"]}}"#);
        let found = resolve(&config, &layouts).unwrap();
        for (layer, settings) in found.iter().enumerate() {
            assert_eq!(settings.rate, 0.5f64.powi(11 - layer as i32), "layer {layer}");
        }
        assert_eq!(number_in("*{}.weight", "block1.part20.weight"), Some(20));
        assert_eq!(number_in("block{}*", "block12"), Some(12));
        assert_eq!(number_in("block1{}*", "block12"), None);
    }

    #[test]
    fn the_first_group_that_names_a_parameter_counts() {
        let config = read(
            r#"{"optimizer": {"adamw": {"learning_rate": 0.01, "weight_decay": 0.1, "decay": "matrices"}},
                "groups": [{"parameters": ["head.*"], "learning_rate": 0.1, "weight_decay": 0.5},
                           {"parameters": ["embedding.*"], "frozen": true},
                           {"parameters": ["*"], "unfreeze_at": 3}]}"#,
        );
        let found = resolve(&config, &encoder()).unwrap();
        assert_eq!(found[0], Settings { rate: 1.0, weight_decay: 0.1, from: None });
        assert_eq!(found[2], Settings { rate: 1.0, weight_decay: 0.0, from: Some(2) });
        assert_eq!(found[9], Settings { rate: 10.0, weight_decay: 0.5, from: Some(0) });
        assert!(!found[2].trains_in(1) && found[2].trains_in(2) && !found[0].trains_in(99));
    }

    /// A recurrent model, which has a part in common with the encoder.
    fn recurrent() -> Vec<Layout> {
        let names = ["lstm.weight_ih_l0", "lstm.weight_ih_l1", "norm.bias", "head.weight"];
        names.map(|name| layout(name, 2)).to_vec()
    }

    #[test]
    fn of_several_models_each_takes_what_names_its_own_parameters() {
        let config = read(
            r#"{"groups": [{"parameters": ["lstm.*_l0", "embedding.*"], "frozen": true},
                           {"parameters": ["head.*", "norm.*"], "weight_decay": 0.5},
                           {"parameters": ["head.weight", "encoder.layers.0.*"], "frozen": true}],
                "layer_decay": {"factor": 0.5,
                "layers": ["lstm.*_l{}", "encoder.layers.{}.*", "head.*"]}}"#,
        );
        let models = [recurrent(), encoder()];
        check_groups_of_several(&models, &config).unwrap();
        let found = |layouts: &[Layout]| -> Vec<(f64, f64, bool)> {
            let settings = resolve(&own(&config, layouts), layouts).unwrap();
            settings.iter().map(|s| (s.rate * 16.0, s.weight_decay, s.from.is_none())).collect()
        };
        let usual = config.optimizer.weight_decay();
        let of_recurrent =
            [(4.0, usual, true), (8.0, usual, false), (16.0, 0.5, false), (16.0, 0.5, false)];
        assert_eq!(found(&models[0]), of_recurrent);
        let mut of_encoder = vec![(16.0, usual, true)];
        for (rate, frozen) in [(1.0, true), (2.0, false), (4.0, false), (8.0, false)] {
            of_encoder.extend([(rate, usual, frozen); 2]);
        }
        of_encoder.push((16.0, 0.5, false));
        assert_eq!(found(&models[1]), of_encoder);
        // A model that nothing names is trained as if nothing were written.
        let other = own(&config, &[layout("output.weight", 2)]);
        assert_eq!(other, TrainConfig { groups: vec![], layer_decay: None, ..config });
    }

    #[test]
    fn layers_that_earlier_ones_hide_in_one_model_alone_stay_for_the_other() {
        let rates = |config: &TrainConfig, layouts: &[Layout]| -> Vec<f64> {
            let settings = resolve(&own(config, layouts), layouts).unwrap();
            settings.iter().map(|settings| settings.rate * 16.0).collect()
        };
        let config = read(
            r#"{"layer_decay": {"factor": 0.5, "layers": ["lstm.*", "norm.*", "head.*", "*.weight"]}}"#,
        );
        let mut projected = recurrent();
        projected.push(layout("proj.weight", 2));
        let models = [recurrent(), projected];
        check_groups_of_several(&models, &config).unwrap();
        assert_eq!(rates(&config, &models[0]), [4.0, 4.0, 8.0, 16.0]);
        assert_eq!(rates(&config, &models[1]), [2.0, 2.0, 4.0, 8.0, 16.0]);
        // The layers of a `{}` one by one.
        let config = read(
            r#"{"layer_decay": {"factor": 0.5,
                "layers": ["encoder.layers.0.linear.*", "encoder.layers.{}.*"]}}"#,
        );
        let name = |layer: u64| layout(&format!("encoder.layers.{layer}.linear.weight"), 2);
        let models = [vec![name(0), name(1)], encoder()];
        check_groups_of_several(&models, &config).unwrap();
        assert_eq!(rates(&config, &models[0]), [8.0, 16.0]);
        let of_encoder = [16.0, 1.0, 2.0, 4.0, 4.0, 8.0, 8.0, 16.0, 16.0, 16.0];
        assert_eq!(rates(&config, &models[1]), of_encoder);
        // In one model, or in all of them, it is refused as before.
        let config =
            read(r#"{"layer_decay": {"factor": 0.5, "layers": ["lstm.*", "lstm.weight_ih_l0"]}}"#);
        assert!(resolve(&config, &recurrent()).is_err());
        assert!(check_groups_of_several(&[recurrent(), encoder()], &config).is_err());
    }

    #[test]
    fn a_name_of_no_model_and_a_model_without_anything_to_train_are_refused() {
        let refused = |text: &str, expected: &str| {
            let models = [recurrent(), encoder()];
            let said = check_groups_of_several(&models, &read(text)).unwrap_err().to_string();
            assert!(said.contains(expected), "{said}");
        };
        refused(r#"{"groups": [{"parameters": ["lstn.*"]}]}"#, "`lstn.*`, and no parameter");
        refused(
            r#"{"layer_decay": {"factor": 0.5, "layers": ["block.{}.*"]}}"#,
            "`train.layer_decay.layers` names `block.{}.*`",
        );
        refused(
            r#"{"groups": [{"parameters": ["head.*"]}, {"parameters": ["head.weight"]}]}"#,
            "belongs to an earlier",
        );
        refused(
            r#"{"groups": [{"parameters": ["lstm.*", "norm.*", "head.*"], "frozen": true}]}"#,
            "freezes every parameter",
        );
    }

    #[test]
    fn groups_that_cannot_be_say_what_is_there() {
        let check = |text: &str, expected: &str| {
            let config = read(text);
            let message = match config.validate() {
                Err(error) => error.to_string(),
                Ok(()) => resolve(&config, &encoder()).unwrap_err().to_string(),
            };
            assert!(message.contains(expected), "{message}");
        };
        check(r#"{"groups": [{"parameters": ["tail.*"]}]}"#, "`tail.*`, and no parameter");
        check(r#"{"groups": [{"parameters": ["tail.*"]}]}"#, "there are `embedding.weight`");
        check(r#"{"groups": [{"parameters": []}]}"#, "at least one name");
        check(r#"{"groups": [{"parameters": ["*"], "frozen": true}]}"#, "freezes every parameter");
        check(r#"{"groups": [{"parameters": ["*"], "learning_rate": 0}]}"#, "learning_rate` is 0");
        check(
            r#"{"groups": [{"parameters": ["*"], "learning_rate": 1e308}]}"#,
            "a finite multiple",
        );
        check(
            r#"{"groups": [{"parameters": ["*"], "frozen": true, "unfreeze_at": 2}]}"#,
            "frozen for the whole run",
        );
        check(
            r#"{"epochs": 4, "groups": [{"parameters": ["head.*"], "unfreeze_at": 5}]}"#,
            "unfreeze_at` is 5; it must be at least 1 and at most `train.epochs`, or `frozen",
        );
        check(
            r#"{"groups": [{"parameters": ["encoder.*", "head.*"]}, {"parameters": ["head.*"]}]}"#,
            "`train.groups` names `head.*`, and whatever is called so belongs to an earlier",
        );
        check(
            r#"{"layer_decay": {"factor": 0.5, "layers": ["encoder.*", "encoder.layers.{}.*"]}}"#,
            "`train.layer_decay.layers` names `encoder.layers.{}.*`, and whatever",
        );
        check(r#"{"layer_decay": {"factor": 0.5, "layers": []}}"#, "layers` is 0; it must be at");
        check(r#"{"layer_decay": {"factor": 1.5, "layers": []}}"#, "layer_decay.factor` is 1.5");
        check(
            r#"{"layer_decay": {"factor": 0.5, "layers": ["block.{}.*"]}}"#,
            "`train.layer_decay.layers` names `block.{}.*`",
        );
    }
}
