//! Parameter groups: which settings of the optimizer each parameter gets, by its name.
//!
//! Names are those of checkpoints, which are PyTorch's. In a pattern, `*` stands for any text.

use std::collections::BTreeSet;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;
use firebox_core::{nearest as nearest_of, nearest_by, quoted};
use firebox_models::{Layout, layouts};
use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, Decay, TrainConfig, check, check_in_f32};
use crate::optimizer::OptimizerState;

/// Parameters with settings of their own: `[[train.groups]]`. A parameter belongs to the first
/// group that names it; what a group leaves out is as for all other parameters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ParameterGroup {
    /// Names of parameters, such as `lstm.*` or `decoder.hidden.bias`, where `*` is any text.
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
    /// layers as there are numbers: `lstm.*_l{}*`. Several names of one layer have `|` between them,
    /// all of them a `{}` or none; those that the model does not have are passed over, unless they
    /// are like one that it has. A parameter belongs to the first layer that names it; those that
    /// no layer names have the full rate.
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
        "`train.{key}` names `{pattern}`, and no parameter of the model is called so{}; there are {known}",
        near.as_ref().map_or(String::new(), |near| format!(" (did you mean `{near}`?)"))
    )]
    Unknown {
        /// `groups` or `layer_decay.layers`.
        key: &'static str,
        /// The pattern.
        pattern: String,
        /// Names of the model's parameters, those that differ by numbers as one.
        known: String,
        /// The name or pattern that is most like it, if one is like it.
        near: Option<String>,
    },
    /// Of several names of one layer some have a `{}`, and one has none.
    #[error(
        "`train.layer_decay.layers` names `{pattern}`, where `{{}}` makes a layer of each number, and `{name}` has none; \
         name it as a layer of its own"
    )]
    Unnumbered {
        /// The pattern.
        pattern: String,
        /// The name without one.
        name: String,
    },
    /// A group names nothing that an optimizer trains.
    #[error(
        "`train.groups` names `{pattern}`, and whatever is called so and belongs to no earlier entry are running \
         statistics, which are not trained: they move while the `weight` beside them does, so this group has no effect; \
         leave it out, or name that `weight`"
    )]
    Statistics {
        /// The patterns of the group.
        pattern: String,
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
        let allowed = "above 0 and a normal number of f32 (1.2e-38 to 3.4e38), or `frozen = true` in its \
                       place for parameters that are never trained";
        check_in_f32("groups.learning_rate", rate, 0.0, allowed)?;
        let decay = group.weight_decay.unwrap_or(0.0);
        check(
            "groups.weight_decay",
            decay,
            |v| v >= 0.0 && (v as f32).is_finite(),
            "0 or more, and finite in f32",
        )?;
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
        if let (true, Some(decay)) = (group.frozen, group.weight_decay) {
            let found = format!("{decay} in a group that is frozen for the whole run");
            let allowed = "left out there, or `frozen` be left out";
            return Err(ConfigError { key: "groups.weight_decay", found, allowed });
        }
    }
    let factor = config.layer_decay.as_ref().map_or(1.0, |decay| decay.factor);
    let layers = config.layer_decay.as_ref().map_or(1, |decay| decay.layers.len());
    // How many layers a `{}` stands for says the model; as many as names there are at least.
    let below = i32::try_from(layers.saturating_sub(1)).unwrap_or(i32::MAX);
    let rates = config.groups.iter().filter_map(|group| group.learning_rate);
    let lowest = rates.fold(config.optimizer.learning_rate(), f64::min) * factor.powi(below);
    let decays = config.layer_decay.is_some() && factor > 0.0 && factor <= 1.0;
    if decays && !(lowest as f32).is_normal() {
        let found = format!("{factor:e}");
        let allowed = "above 0 and at most 1, and no rate, nor one of `train.groups`, smaller than what f32 \
                       holds (1.2e-38)";
        return Err(ConfigError { key: "layer_decay.factor", found, allowed });
    }
    check("layer_decay.factor", factor, |v| v > 0.0 && v <= 1.0, "above 0 and at most 1")?;
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
        let named = |name: &str| layouts.iter().any(|one| matches(name, &one.name));
        let own = group.parameters.iter().filter_map(|pattern| own_names(pattern, named));
        group.parameters = own.collect();
        let trained = |free: &[&str]| free.iter().filter(|name| !names_statistic(name)).count();
        let before = trained(&free);
        free.retain(|name| !group.parameters.iter().any(|pattern| matches(pattern, name)));
        trained(&free) < before
    });
    if let Some(decay) = &mut own.layer_decay {
        // What earlier layers name here, and not in another model, is no reason to refuse a later one.
        let mut free: Vec<&str> = layouts.iter().map(|layout| layout.name.as_str()).collect();
        let named = |name: &str| !expand(name, layouts).is_empty();
        let own = decay.layers.iter().filter_map(|pattern| own_names(pattern, named));
        decay.layers = own.collect();
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

/// What of a pattern names something: of several names with `|` between them, those that do.
fn own_names(pattern: &str, named: impl Fn(&str) -> bool) -> Option<String> {
    let own: Vec<&str> = pattern.split('|').filter(|name| named(name)).collect();
    (!own.is_empty()).then(|| own.join("|"))
}

/// Refuses a pattern that names nothing, and one of several names with `|` between them that no parameter has and that is
/// like one of the model's. Others may be those of other models: an encoder has segments, and another none.
fn check_names(
    key: &'static str,
    pattern: &str,
    layouts: &[Layout],
    named: impl Fn(&str) -> bool,
) -> Result<(), GroupError> {
    let unknown = |name: &str, near: Option<String>| {
        let (pattern, known) = (name.to_owned(), known(layouts));
        GroupError::Unknown { key, pattern, known, near }
    };
    let depth = |name: &str| name.split('.').count();
    for name in pattern.split('|').filter(|name| !named(name)) {
        let is_as_deep = |near: &String| {
            let [one, other] = [near.as_str(), name];
            depth(one) == depth(other) || depth(without_star(one)) == depth(without_star(other))
        };
        let near = nearest(name, layouts).filter(is_as_deep);
        // What is named beside it was not meant.
        if near.as_deref().is_some_and(|near| !matches(pattern, near)) {
            return Err(unknown(name, near));
        }
    }
    match named(pattern) {
        true => Ok(()),
        false => Err(unknown(pattern, nearest(pattern, layouts))),
    }
}

/// The name without a `{}` beside others that have one.
fn unnumbered(pattern: &str) -> Option<&str> {
    let numbered = pattern.contains("{}");
    pattern.split('|').find(|name| numbered && !name.contains("{}"))
}

/// The settings of each parameter.
pub(crate) fn resolve(
    config: &TrainConfig,
    layouts: &[Layout],
) -> Result<Vec<Settings>, GroupError> {
    let named = |pattern: &str| layouts.iter().any(|layout| matches(pattern, &layout.name));
    for pattern in config.groups.iter().flat_map(|group| &group.parameters) {
        check_names("groups", pattern, layouts, named)?;
    }
    let mut owned = BTreeSet::<usize>::new();
    for ParameterGroup { parameters, .. } in &config.groups {
        let names = |index: &usize| parameters.iter().any(|p| matches(p, &layouts[*index].name));
        let before = owned.len();
        let new: Vec<usize> =
            (0..layouts.len()).filter(names).filter(|index| !owned.contains(index)).collect();
        owned.extend(&new);
        let pattern = || parameters.join("`, `");
        if owned.len() == before {
            return Err(GroupError::Shadowed { key: "groups", pattern: pattern() });
        }
        if new.iter().all(|index| is_statistic(&layouts[*index])) {
            return Err(GroupError::Statistics { pattern: pattern() });
        }
    }
    let mut layers: Vec<Layer<'_>> = vec![];
    for pattern in config.layer_decay.iter().flat_map(|decay| &decay.layers) {
        if let Some(name) = unnumbered(pattern) {
            let (pattern, name) = (pattern.clone(), name.to_owned());
            return Err(GroupError::Unnumbered { pattern, name });
        }
        let is_layer = |name: &str| !expand(name, layouts).is_empty();
        check_names("layer_decay.layers", pattern, layouts, is_layer)?;
        let found = expand(pattern, layouts);
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
    let mut trainable = layouts.iter().zip(&settings).filter(|(layout, _)| !is_statistic(layout));
    let none = !layouts.iter().any(|layout| !is_statistic(layout));
    match none || trainable.any(|(_, settings)| settings.trains_in(0)) {
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
    if let Some((one, others)) = pattern.split_once('|') {
        return number_in(one, name).or_else(|| number_in(others, name));
    }
    let (before, after) = pattern.split_once("{}")?;
    let digit = |at: usize| name.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    let mut starts = (0..name.len()).filter(|at| digit(*at) && (*at == 0 || !digit(at - 1)));
    starts.find_map(|start| {
        let end = (start..name.len()).find(|at| !digit(*at)).unwrap_or(name.len());
        let fits = matches(before, &name[..start]) && matches(after, &name[end..]);
        fits.then(|| name[start..end].parse().ok()).flatten()
    })
}

/// Whether a name is one that a pattern stands for, or one of several with `|` between them.
fn matches(pattern: &str, name: &str) -> bool {
    if let Some((one, others)) = pattern.split_once('|') {
        return matches(one, name) || matches(others, name);
    }
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(first) else { return false };
    let mut starts = (0..=name.len()).filter(|at| name.is_char_boundary(*at));
    starts.any(|at| matches(rest, &name[at..]))
}

/// Whether a parameter is a running statistic of a batch normalisation: a module moves it, and no optimizer.
fn is_statistic(layout: &Layout) -> bool {
    names_statistic(&layout.name)
}

pub(crate) fn names_statistic(name: &str) -> bool {
    matches!(name.rsplit('.').next(), Some("running_mean" | "running_var"))
}

/// The name that may have been meant by a pattern that names nothing: of parameters, or one of the same form as the
/// pattern for some of them.
fn nearest(pattern: &str, layouts: &[Layout]) -> Option<String> {
    let parts = |name: &str| -> Vec<String> {
        let numbered = pattern.contains("{}");
        let part = |part: &str| match numbered && part.parse::<u64>().is_ok() {
            true => "{}".to_owned(),
            false => part.to_owned(),
        };
        name.split('.').map(part).collect()
    };
    let mut candidates = BTreeSet::new();
    for layout in layouts {
        let parts = parts(&layout.name);
        candidates.insert(parts.join("."));
        for cut in 1..parts.len() {
            if pattern.ends_with('*') {
                candidates.insert(format!("{}.*", parts[..cut].join(".")));
            }
            if pattern.starts_with('*') {
                candidates.insert(format!("*.{}", parts[cut..].join(".")));
            }
        }
    }
    let compared = without_star(pattern);
    let fits = |name: &&String| alike(compared, without_star(name));
    let candidates = candidates.iter().filter(fits).map(String::as_str);
    nearest_by(compared, candidates, without_star).map(str::to_owned)
}

/// A name without the `*` at its end or beginning, which makes any two alike.
fn without_star(name: &str) -> &str {
    let name = name.strip_suffix(".*").unwrap_or(name);
    name.strip_prefix("*.").unwrap_or(name)
}

/// Whether each part of a name may be meant by that of another: `head.encoder` is not `head.decoder`. Of names of other
/// depths, those parts that both have.
fn alike(written: &str, name: &str) -> bool {
    let [written, name] = [written, name].map(|name| name.split('.').collect::<Vec<_>>());
    let is_number = |part: &str| part.parse::<u64>().is_ok();
    let same = |(a, b): (&&str, &&str)| {
        a == b || (is_number(a) && is_number(b)) || nearest_of(a, [*b]).is_some()
    };
    written.iter().zip(&name).all(same)
}

/// All names, those that differ by numbers as one: each is a pattern that names something.
fn known(layouts: &[Layout]) -> String {
    let mut names: Vec<String> = vec![];
    for layout in layouts {
        let mut name = String::new();
        for letter in layout.name.chars() {
            match letter.is_ascii_digit() {
                true if name.ends_with('*') => {}
                true => name.push('*'),
                false => name.push(letter),
            }
        }
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let numbered = names.iter().any(|name| name.contains('*'));
    let stars = if numbered { ", where `*` stands for the numbers" } else { "" };
    quoted(&names, names.len()) + stars
}

#[cfg(test)]
mod tests;
