//! Content keys: the name of a result is a hash of everything that it depends on.
//!
//! Keys chain: a stage's key contains the keys of what it reads. This module does not know what is
//! stored under a key or where.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The name of a result: 128 bits of BLAKE3, written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key([u8; 16]);

impl Key {
    /// Starts the key of a result of this `kind`. Change `version` when the code that makes the
    /// result changes what it makes.
    pub fn builder(kind: &str, version: u32) -> KeyBuilder {
        KeyBuilder(blake3::Hasher::new())
            .field("kind", kind)
            .field("version", version.to_le_bytes())
    }

    /// The first 12 digits: enough for a person to tell results apart.
    pub fn short(&self) -> String {
        self.to_string()[..12].to_owned()
    }
}

/// Collects what a result depends on. Fields are length-prefixed: no two different sequences of
/// fields give the same bytes.
#[derive(Clone, Debug)]
#[must_use]
pub struct KeyBuilder(blake3::Hasher);

impl KeyBuilder {
    /// Adds a named value.
    pub fn field(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.parts(name, value.as_ref().len(), [value])
    }

    /// Adds a named value of `length` bytes in all, given in parts.
    ///
    /// # Panics
    ///
    /// When the parts have another length.
    pub fn parts(
        mut self,
        name: &str,
        length: usize,
        parts: impl IntoIterator<Item: AsRef<[u8]>>,
    ) -> Self {
        self.0.update(&(name.len() as u64).to_le_bytes());
        self.0.update(name.as_bytes());
        self.0.update(&(length as u64).to_le_bytes());
        let before = self.0.count();
        for part in parts {
            self.0.update(part.as_ref());
        }
        let found = self.0.count() - before;
        assert_eq!(found, length as u64, "bytes of `{name}`");
        self
    }

    /// Adds the key of a result that this one is made from.
    pub fn upstream(self, name: &str, key: Key) -> Self {
        self.field(name, key.0)
    }

    /// The key of all that was added.
    pub fn finish(self) -> Key {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&self.0.finalize().as_bytes()[..16]);
        Key(bytes)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// A text that is not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a key: a key has 32 lower-case hexadecimal digits")]
pub struct ParseKeyError(String);

impl FromStr for Key {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseKeyError(text.to_owned());
        let digits: Vec<u8> = text
            .bytes()
            .map(|byte| match byte {
                b'0'..=b'9' => Ok(byte - b'0'),
                b'a'..=b'f' => Ok(byte - b'a' + 10),
                _ => Err(error()),
            })
            .collect::<Result<_, _>>()?;
        let bytes: Vec<u8> =
            digits.chunks(2).map(|pair| pair.iter().fold(0, |a, d| a << 4 | d)).collect();
        if digits.len() != 32 {
            return Err(error());
        }
        bytes.try_into().map(Key).map_err(|_| error())
    }
}

impl TryFrom<String> for Key {
    type Error = ParseKeyError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_run_together() {
        let key = |a: &str, b: &str| Key::builder("test", 1).field(a, b).finish();
        assert_ne!(key("ab", "c"), key("a", "bc"));
        assert_ne!(key("a", ""), Key::builder("test", 2).field("a", "").finish());
        assert_eq!(key("a", "b"), key("a", "b"));
    }

    #[test]
    fn a_value_given_in_parts_is_the_value() {
        let whole = Key::builder("test", 1).field("a", "bcdef").field("g", "h").finish();
        let parts =
            Key::builder("test", 1).parts("a", 5, ["bc", "", "def"]).field("g", "h").finish();
        assert_eq!(whole, parts);
    }

    #[test]
    fn text_round_trips_and_other_text_is_refused() {
        let key = Key::builder("test", 1).finish();
        assert_eq!(key.to_string().parse(), Ok(key));
        for bad in ["", "0", "zz", &"A".repeat(32), &"a".repeat(34)] {
            assert!(bad.parse::<Key>().is_err(), "{bad}");
        }
    }
}
