//! Settings that can be switched off: `clip = false`. TOML has no null, and a key that is left out
//! means the default.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{F64Deserializer, MapAccessDeserializer};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

pub(crate) fn serialize<T: Serialize, S: Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => value.serialize(serializer),
        None => serializer.serialize_bool(false),
    }
}

pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    deserializer.deserialize_any(Off(PhantomData))
}

struct Off<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Off<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("its settings, or false to switch it off")
    }

    fn visit_bool<E: Error>(self, on: bool) -> Result<Self::Value, E> {
        if on {
            Err(E::custom("expected its settings, or false to switch it off"))
        } else {
            Ok(None)
        }
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        T::deserialize(F64Deserializer::<E>::new(value)).map(Some)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        self.visit_f64(value as f64)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        self.visit_f64(value as f64)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Some)
    }
}
