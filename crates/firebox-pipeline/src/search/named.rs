//! A choice of several, written as its name alone or as a table of that name with its settings:
//! `sampler = "tpe"` is `[search.sampler.tpe]` without a key.
//!
//! Serde's own enums take a name alone only where there are no settings at all.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapDeserializer;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};

/// One of several choices.
pub(super) trait Named<'de>: Sized {
    /// The table that it stands in.
    const TABLE: &'static str;
    /// All names.
    const NAMES: &'static [&'static str];

    /// The choice of this name, whose settings are the map's next value; `None` if there is none.
    fn read<A: MapAccess<'de>>(name: &str, map: &mut A) -> Result<Option<Self>, A::Error>;
}

/// Reads a choice in either form.
pub(super) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: Named<'de>,
    D: Deserializer<'de>,
{
    from.deserialize_any(Either(PhantomData))
}

/// The settings of a choice that has none.
pub(super) fn nothing<'de, A: MapAccess<'de>>(map: &mut A) -> Result<(), A::Error> {
    let settings: BTreeMap<String, IgnoredAny> = map.next_value()?;
    settings.keys().next().map_or(Ok(()), |key| Err(A::Error::unknown_field(key, &[])))
}

struct Either<T>(PhantomData<T>);

impl<'de, T: Named<'de>> Visitor<'de> for Either<T> {
    type Value = T;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (table, names) = (T::TABLE, T::NAMES.join(", "));
        write!(out, "one of {names}, as a name or as a table such as [{table}.{}]", T::NAMES[0])
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<T, E> {
        let empty = BTreeMap::<String, String>::new();
        let mut map = MapDeserializer::new(std::iter::once((name.to_owned(), empty)));
        self.visit_map(&mut map)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let Some(name) = map.next_key::<String>()? else {
            return Err(A::Error::custom(format!(
                "[{}] names none of its choices: {}; leave the whole table out for the default",
                T::TABLE,
                T::NAMES.join(", ")
            )));
        };
        let Some(choice) = T::read(&name, &mut map)? else {
            return Err(A::Error::unknown_variant(&name, T::NAMES));
        };
        match map.next_key::<String>()? {
            None => Ok(choice),
            Some(other) if !T::NAMES.contains(&other.as_str()) => {
                Err(A::Error::unknown_variant(&other, T::NAMES))
            }
            Some(other) => Err(A::Error::custom(format!(
                "`{}` takes one of its choices, not `{name}` and `{other}`; leave out all but one",
                T::TABLE
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{ConfigError, PipelineConfig, PrunerConfig, SamplerConfig, SearchConfig, layers};

    fn read(text: &str, settings: &[&str]) -> Result<PipelineConfig, ConfigError> {
        let settings: Vec<String> = settings.iter().map(|text| (*text).to_owned()).collect();
        layers::parse(Path::new("a.toml"), text, &[], &settings)
    }

    #[test]
    fn samplers_and_pruners_are_names_or_tables() {
        let search = |text: &str, settings: &[&str]| {
            let text = format!("[search]\n{text}\n");
            let search = read(&text, settings).unwrap().search.unwrap();
            let again = toml::to_string(&search).unwrap();
            assert_eq!(toml::from_str::<SearchConfig>(&again).unwrap(), search, "{again}");
            search
        };
        let plain = search("", &[]);
        for name in ["tpe", "random", "quasi-random", "grid"] {
            let all = [
                search(&format!("sampler = \"{name}\""), &[]),
                search(&format!("[search.sampler.{name}]"), &[]),
                search("", &[&format!("search.sampler={name}")]),
                search("sampler = \"random\"", &[&format!("search.sampler={{{name}={{}}}}")]),
            ];
            assert!(all.iter().all(|one| *one == all[0]), "{name}: {all:?}");
            assert_eq!(all[0] == plain, name == "tpe", "the default is TPE");
        }
        let pruners = [
            "median",
            "percentile",
            "successive-halving",
            "hyperband",
            "patient",
            "threshold",
            "none",
        ];
        for name in pruners {
            let all = [
                search(&format!("pruner = \"{name}\""), &[]),
                search(&format!("[search.pruner.{name}]"), &[]),
                search("pruner = \"none\"", &[&format!("search.pruner={name}")]),
            ];
            assert!(all.iter().all(|one| *one == all[0]), "{name}: {all:?}");
        }
        // A later layer may go into the table of a name, and back.
        let deeper = ["search.pruner.median.warmup_steps=3"];
        let Some(PrunerConfig::Median(found)) = search("pruner = \"median\"", &deeper).pruner
        else {
            panic!("another pruner");
        };
        assert_eq!(found.schedule.warmup_steps, 3);
        let table = "[search.sampler.tpe]\nstartup_trials = 3";
        assert_eq!(search(table, &["search.sampler=grid"]).sampler, SamplerConfig::Grid);
    }

    #[test]
    fn a_sampler_or_pruner_that_cannot_be_is_said_with_those_that_can() {
        let samplers = "grid, quasi-random, random, tpe";
        let said = |text: &str| read(&format!("[search]\n{text}\n"), &[]).unwrap_err().to_string();
        let set = |setting: &str| read("", &[setting]).unwrap_err().to_string();
        for (said, expected) in [
            (
                said("sampler = \"tpee\""),
                &["unknown choice `tpee`", "did you mean `tpe`?", samplers][..],
            ),
            (said("[search.sampler.tpee]"), &["unknown choice `tpee`", samplers]),
            (set("search.sampler=tpee"), &["unknown choice `tpee`", samplers]),
            (
                said("pruner = \"patience\""),
                &["unknown choice `patience`", "did you mean `patient`?"],
            ),
            (
                said("pruner = \"halving\""),
                &["allowed here: hyperband, median, none, patient, perc"],
            ),
            (said("sampler = 3"), &["`3`", "one of tpe, random, quasi-random, grid, as a name or"]),
            (set("search.pruner=true"), &["one of median, percentile", "[search.pruner.median]"]),
            (said("sampler = [\"tpe\"]"), &["one of tpe, random", "[search.sampler.tpe]"]),
            (
                said("[search.sampler.tpe]\nstartup = 1"),
                &["unknown key `startup`", "startup_trials"],
            ),
            (
                said("[search.sampler.random]\nseed = 1"),
                &["unknown key `seed`", "allowed here: none"],
            ),
            (said("[search.sampler]"), &["names none of its choices: tpe, random"]),
            (
                said("[search.sampler.tpe]\n[search.sampler.grid]"),
                &["`search.sampler` takes one of its choices, not", "leave out all but one"],
            ),
            (
                said("[search.pruner.median]\nwarmup_steps = -1"),
                &["a.toml:3:16", "expected a whole number that is not negative"],
            ),
            (said("space.\"train.epochs\" = 5"), &["`low` and `high`", "`choices`"]),
            (
                said("space.\"train.epochs\" = [1, 5]"),
                &["a.toml:2:24", "or { choices = [16, 32] }"],
            ),
            (
                set("search.space.\"train.epochs\"=[1, 5]"),
                &["`low` and `high`", "for `search.space.train.epochs`"],
            ),
            (
                said("space.\"train.epochs\" = { lowest = 5 }"),
                &["a.toml:2:26", "unknown key `lowest`", "did you mean `low`?"],
            ),
            (said("space.\"train.epochs\" = { choices = 5 }"), &["a list"]),
            (said("early_stop = 3"), &["patience"]),
            (said("concurrent = \"many\""), &["a number from 1 to 64, or \"auto\""]),
            (said("objectives = \"f1\""), &["there are validation-loss, validation-accuracy"]),
        ] {
            expected.iter().for_each(|part| assert!(said.contains(part), "`{part}`: {said}"));
        }
    }
}
