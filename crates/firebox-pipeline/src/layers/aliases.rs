//! Keys that have another name: what stands under it is read as if it stood under the key's own.

use figment::value::Value;
use toml::Table;

use super::ConfigError;

/// Tables whose key has another name: the table, that name, the key. A layer may write either, and
/// replaces what an earlier one wrote under the other.
pub(super) const OTHER_NAMES: [(&str, &str, &str); 1] = [("search", "objective", "objectives")];

/// Writes keys that have two names under their own.
pub(super) fn own_names(nested: &mut Value, layer: &str) -> Result<(), ConfigError> {
    let Value::Dict(_, tables) = nested else { return Ok(()) };
    for (table, other, name) in OTHER_NAMES {
        let Some(Value::Dict(_, keys)) = tables.get_mut(table) else { continue };
        let Some(value) = keys.remove(other) else { continue };
        if keys.insert(name.to_owned(), value).is_some() {
            return Err(ConfigError::Layer {
                layer: layer.to_owned(),
                message: both_names(table, other, name),
                hint: "\n  leave out one of them".to_owned(),
            });
        }
    }
    Ok(())
}

/// The same in the table of a file, which is refused before if it has both names.
pub(super) fn own_names_of_file(file: &mut Table) {
    for (at, other, name) in OTHER_NAMES {
        let table = file.get_mut(at).and_then(toml::Value::as_table_mut);
        if let Some((table, value)) =
            table.and_then(|table| table.remove(other).map(|v| (table, v)))
        {
            table.insert(name.to_owned(), value);
        }
    }
}

/// What is wrong where a key stands under both of its names.
pub(super) fn both_names(table: &str, other: &str, name: &str) -> String {
    format!("`{table}.{name}` stands there twice: `{table}.{other}` is another name for it")
}

#[cfg(test)]
mod tests {
    use crate::layers::tests::{message, read};

    #[test]
    fn a_key_with_two_names_is_one_key_in_every_layer() {
        let one = "[search]\nobjective = \"validation-loss\"\n";
        let two = "[search]\nobjectives = [\"validation-loss\", \"parameters\"]\n";
        let count = |text: &str, environment: &[(&str, &str)], settings: &[&str]| {
            let search = read(text, environment, settings).unwrap().search.unwrap();
            search.objectives.all().len()
        };
        let both = "[\"validation-loss\", \"parameters\"]";
        assert_eq!((count(one, &[], &[]), count(two, &[], &[])), (1, 2));
        for name in ["search.objective", "search.objectives"] {
            assert_eq!(count(one, &[], &[&format!("{name}={both}")]), 2, "{name}");
            assert_eq!(count(two, &[], &[&format!("{name}=validation-loss")]), 1, "{name}");
        }
        assert_eq!(count(one, &[], &[&format!("search={{objective={both}}}")]), 2);
        let environment = [("FIREBOX_SEARCH__OBJECTIVE", both)];
        assert_eq!(count(one, &environment, &[]), 2);
        assert_eq!(count(one, &environment, &["search.objectives=validation-loss"]), 1);
        // Within one layer nobody could tell which counts.
        let file = format!("{one}objectives = {both}\n");
        let set = format!("search={{objective=\"validation-loss\",objectives={both}}}");
        for said in [message(&file, &[], &[]), message("", &[], &[&set])] {
            let expected = "`search.objective` is another name for it\n  leave out one of them";
            assert!(said.contains(expected), "{said}");
        }
    }
}
