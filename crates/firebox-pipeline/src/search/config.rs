//! `[search]`: which keys of the pipeline are searched, how, and for how long.

use std::collections::BTreeMap;
use std::fmt;

use firebox_search::{
    Choice, EarlyStop, HyperbandPruner, MedianPruner, PercentilePruner, Schedule,
    SuccessiveHalvingPruner, ThresholdPruner, TpeConfig,
};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::concurrent::Concurrent;
use super::named::{self, Named};
use super::objective::Objectives;
use crate::layers::PATHS;

/// `[search]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SearchConfig {
    /// Name of the study; left out, that of the pipeline file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub study: Option<String>,
    /// Where the study is kept: the path of a journal, or `redis://HOST:PORT/DATABASE`. Left out, a
    /// journal in the folder of the search within `run.directory`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// Trials in all, of all workers. One that is tried again counts once.
    pub trials: u64,
    /// Seconds after which no more trials are begun: of the study, whoever works on it, in however many
    /// commands. The time in which at least one of its trials ran counts, by the journal; a trial that runs
    /// when it is over is not stopped, and one whose worker died is gone on with. Clocks of machines should
    /// differ by less than trials take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<f64>,
    /// Ends the search when the best value has not improved for some trials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stop: Option<EarlyStop>,
    /// Trials that one worker runs at once: a number, or `"auto"`, which adds trials while the device
    /// is not busy and there is memory. With more than one the sampler is asked before it knows how
    /// those that run will end, so the same seed no longer gives the same study.
    pub concurrent: Concurrent,
    /// Best trials whose checkpoints are kept; the others' are removed when they end.
    pub keep: usize,
    /// Bytes that these checkpoints may take together; beyond them fewer are kept, but always those of
    /// the best trial. Left out: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_budget: Option<u64>,
    /// Seconds between two signs of life of a running trial; after three without one it is tried
    /// again.
    pub heartbeat: f64,
    /// How often a trial is tried again whose worker died. One that met what is no fault of its own, such as a full
    /// disk, is put back three times at most, whatever this is.
    pub retries: u64,
    /// What is compared: `"validation-loss"` and `"parameters"`, of which less is better, and scores, of
    /// which more is: `"validation-accuracy"` and `"validation-f1"` of a linear probe (`pretrain`),
    /// `"validation-f1"` of labels (`text`), `"validation-r2"` (`forecast`). A list of several has no trial
    /// that is best in all; those that no other beats are told, and no pruner is taken. `objective` is
    /// another name for it.
    #[serde(alias = "objective")]
    pub objectives: Objectives,
    /// What proposes the values.
    pub sampler: SamplerConfig,
    /// What gives trials up early. Left out, `median`, or `none` with several objectives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pruner: Option<PrunerConfig>,
    /// Keys of this file, such as `"train.optimizer.adamw.learning_rate"`, with the values that they
    /// may take. Paths among them are taken from the file's folder, as those of the keys themselves.
    #[serde(deserialize_with = "entries")]
    pub space: BTreeMap<String, SpaceEntry>,
}

impl Default for SearchConfig {
    /// 20 trials one after the other, with the sampler and the pruner that Optuna takes.
    fn default() -> Self {
        Self {
            study: None,
            storage: None,
            trials: 20,
            timeout: None,
            early_stop: None,
            concurrent: Concurrent::Trials(1),
            keep: 3,
            size_budget: None,
            heartbeat: 10.0,
            retries: 3,
            objectives: Objectives::default(),
            sampler: SamplerConfig::default(),
            pruner: None,
            space: BTreeMap::new(),
        }
    }
}

impl SearchConfig {
    /// Every path that the search chooses among, or makes another key depend on.
    pub(crate) fn paths(&mut self) -> impl Iterator<Item = &mut String> {
        let is_path = |key: &str| PATHS.contains(&key);
        let choices = self.space.iter_mut().flat_map(move |(key, entry)| {
            let own = entry.choices.iter_mut().flatten().filter(move |_| is_path(key));
            let when = entry.when.iter_mut().flatten().filter(move |(on, _)| is_path(on));
            own.chain(when.map(|(_, choice)| choice))
        });
        choices.filter_map(|choice| match choice {
            Choice::Text(path) => Some(path),
            _ => None,
        })
    }

    /// The pruner that was asked for, or the one that is taken without one.
    pub(super) fn pruner(&self) -> PrunerConfig {
        let several = self.objectives.all().len() > 1;
        let own = if several { PrunerConfig::None } else { PrunerConfig::default() };
        self.pruner.clone().unwrap_or(own)
    }
}

/// The values of a key. Whole numbers as ends make a range of whole numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpaceEntry {
    /// Least value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<Number>,
    /// Greatest value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<Number>,
    /// Whether the logarithm is uniform.
    pub log: bool,
    /// Distance of the values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<Number>,
    /// Instead of a range: the values themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choices: Option<Vec<Choice>>,
    /// The key is searched only where another searched key has this value; else it stays as it is in
    /// the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<BTreeMap<String, Choice>>,
}

/// Reads the entries of a space.
fn entries<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, SpaceEntry>, D::Error> {
    let entries = BTreeMap::<String, Table>::deserialize(from)?;
    Ok(entries.into_iter().map(|(key, Table(entry))| (key, entry)).collect())
}

/// An entry that is written as a table: of a list, serde would take the first value for `low`.
struct Table(SpaceEntry);

impl<'de> Deserialize<'de> for Table {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(TableOnly)
    }
}

struct TableOnly;

impl<'de> Visitor<'de> for TableOnly {
    type Value = Table;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(
            "a table with `low` and `high`, or with `choices`, such as { low = 1, high = 8 } or \
             { choices = [16, 32] }",
        )
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Table, A::Error> {
        SpaceEntry::deserialize(MapAccessDeserializer::new(map)).map(Table)
    }
}

/// A number as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "`low`, `high` and `step` are numbers, such as 8 or 0.5")]
pub enum Number {
    /// `8`
    Int(i64),
    /// `8.0`
    Float(f64),
}

impl Number {
    /// Its value.
    pub fn value(self) -> f64 {
        match self {
            Self::Int(number) => number as f64,
            Self::Float(number) => number,
        }
    }
}

/// `[search.sampler.NAME]`, or `sampler = "NAME"` with the defaults.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SamplerConfig {
    /// The tree-structured Parzen estimator, as Optuna's `TPESampler`.
    Tpe(TpeConfig),
    /// Independent draws.
    Random,
    /// Sobol's sequence, scrambled.
    QuasiRandom,
    /// All combinations; ranges need a step.
    Grid,
}

impl SamplerConfig {
    /// Its name for a reader.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Tpe(_) => "TPE",
            Self::Random => "random",
            Self::QuasiRandom => "quasi-random (Sobol)",
            Self::Grid => "grid",
        }
    }
}

impl Default for SamplerConfig {
    fn default() -> Self {
        Self::Tpe(TpeConfig::default())
    }
}

impl<'de> Named<'de> for SamplerConfig {
    const TABLE: &'static str = "search.sampler";
    const NAMES: &'static [&'static str] = &["tpe", "random", "quasi-random", "grid"];

    fn read<A: MapAccess<'de>>(name: &str, map: &mut A) -> Result<Option<Self>, A::Error> {
        let mut plain = |choice| named::nothing(map).map(|()| Some(choice));
        match name {
            "random" => plain(Self::Random),
            "quasi-random" => plain(Self::QuasiRandom),
            "grid" => plain(Self::Grid),
            "tpe" => Ok(Some(Self::Tpe(map.next_value()?))),
            _ => Ok(None),
        }
    }
}

impl<'de> Deserialize<'de> for SamplerConfig {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        named::deserialize(from)
    }
}

/// `[search.pruner.NAME]`, or `pruner = "NAME"` with the defaults.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PrunerConfig {
    /// Every trial runs to its end.
    None,
    /// Keeps what is not worse than the median of earlier trials at the same epoch.
    Median(MedianPruner),
    /// Keeps what is among a share of earlier trials at the same epoch.
    Percentile(PercentilePruner),
    /// Keeps one in a few at each rung of epochs.
    SuccessiveHalving(SuccessiveHalvingPruner),
    /// Successive halving of several brackets.
    Hyperband(HyperbandPruner),
    /// Gives up what has been worse than its best before for some epochs.
    Patient(Patient),
    /// Gives up what is out of bounds.
    Threshold(ThresholdPruner),
}

impl PrunerConfig {
    /// Its name for a reader.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Median(_) => "median",
            Self::Percentile(_) => "percentile",
            Self::SuccessiveHalving(_) => "successive halving",
            Self::Hyperband(_) => "hyperband",
            Self::Patient(_) => "patience",
            Self::Threshold(_) => "threshold",
        }
    }
}

impl Default for PrunerConfig {
    fn default() -> Self {
        Self::Median(MedianPruner::default())
    }
}

impl<'de> Named<'de> for PrunerConfig {
    const TABLE: &'static str = "search.pruner";
    const NAMES: &'static [&'static str] = &[
        "median",
        "percentile",
        "successive-halving",
        "hyperband",
        "patient",
        "threshold",
        "none",
    ];

    fn read<A: MapAccess<'de>>(name: &str, map: &mut A) -> Result<Option<Self>, A::Error> {
        Ok(Some(match name {
            "none" => {
                named::nothing(map)?;
                Self::None
            }
            "median" => Self::Median(map.next_value()?),
            "percentile" => Self::Percentile(map.next_value::<Percentile>()?.into()),
            "successive-halving" => Self::SuccessiveHalving(map.next_value()?),
            "hyperband" => Self::Hyperband(map.next_value()?),
            "patient" => Self::Patient(map.next_value()?),
            "threshold" => Self::Threshold(map.next_value()?),
            _ => return Ok(None),
        }))
    }
}

impl<'de> Deserialize<'de> for PrunerConfig {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        named::deserialize(from)
    }
}

/// `[search.pruner.percentile]` as it is written: Optuna's pruner has no percentile of its own, so a
/// name alone gets the quarter of Optuna's example.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Percentile {
    percentile: f64,
    schedule: Schedule,
}

impl Default for Percentile {
    fn default() -> Self {
        Self { percentile: 25.0, schedule: Schedule::default() }
    }
}

impl From<Percentile> for PercentilePruner {
    fn from(Percentile { percentile, schedule }: Percentile) -> Self {
        Self { percentile, schedule }
    }
}

/// `[search.pruner.patient]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Patient {
    /// Validated epochs that may all be worse than the best one before them: at one more the trial is given up. By
    /// default as many as in `train.early_stopping`: Optuna's pruner has no number of its own.
    pub patience: usize,
    /// By how much they must be worse. What stays equal or gets better slowly is never given up, and a greater one
    /// gives up less.
    pub min_delta: f64,
}

impl Default for Patient {
    fn default() -> Self {
        Self { patience: 5, min_delta: 0.0 }
    }
}
