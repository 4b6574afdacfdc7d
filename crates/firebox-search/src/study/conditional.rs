//! A space that is known before the first trial, with parameters that exist only for some choices.

use std::collections::{BTreeMap, BTreeSet};

use super::StudyError;
use crate::space::{Distribution, Value};

/// A parameter of a [`Space`].
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The values that it may take.
    pub distribution: Distribution,
    /// The parameter exists only if another one has this value.
    pub when: Option<(String, Value)>,
}

/// Parameters by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Space(BTreeMap<String, Parameter>);

impl Space {
    /// Checks the distributions and the conditions.
    ///
    /// # Errors
    ///
    /// For a distribution that cannot be, and for a condition on a parameter that is not there, that
    /// cannot have the value, or that depends on the parameter itself.
    pub fn new(mut parameters: BTreeMap<String, Parameter>) -> Result<Self, StudyError> {
        for (name, parameter) in &mut parameters {
            let aligned = parameter.distribution.clone().aligned();
            parameter.distribution =
                aligned.map_err(|source| StudyError::Parameter { name: name.clone(), source })?;
        }
        let space = Self(parameters);
        for name in space.0.keys() {
            space.check_condition(name)?;
        }
        Ok(space)
    }

    /// The parameters.
    pub fn parameters(&self) -> &BTreeMap<String, Parameter> {
        &self.0
    }

    fn check_condition(&self, name: &str) -> Result<(), StudyError> {
        let (mut at, mut seen) = (name, BTreeSet::from([name]));
        while let Some((on, value)) = self.0.get(at).and_then(|p| p.when.as_ref()) {
            let wrong =
                |reason| StudyError::Condition { name: at.to_owned(), on: on.clone(), reason };
            let parent = self.0.get(on).ok_or_else(|| wrong("which is not in the space"))?;
            if parent.distribution.to_internal(value).is_err() {
                return Err(wrong("which never has that value"));
            }
            if !seen.insert(on) {
                return Err(wrong("which depends on it in turn"));
            }
            at = on;
        }
        Ok(())
    }

    /// The parameters that exist by what is known and are not yet known themselves.
    pub(super) fn next(
        &self,
        known: &BTreeMap<String, (Distribution, f64)>,
    ) -> BTreeMap<String, Distribution> {
        let holds = |(on, value): &(String, Value)| {
            // As Python compares: 1 is 1.0 and true.
            let had = known.get(on);
            had.is_some_and(|(d, internal)| d.to_internal(value).ok() == Some(*internal))
        };
        let open = self.0.iter().filter(|(name, _)| !known.contains_key(*name));
        let open = open.filter(|(_, parameter)| parameter.when.as_ref().is_none_or(holds));
        open.map(|(name, parameter)| (name.clone(), parameter.distribution.clone())).collect()
    }
}

impl From<BTreeMap<String, Distribution>> for Space {
    /// Without conditions, and unchecked: a distribution that cannot be is refused with the trial.
    fn from(space: BTreeMap<String, Distribution>) -> Self {
        let parameter = |distribution| Parameter { distribution, when: None };
        Self(space.into_iter().map(|(name, d)| (name, parameter(d))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Choice;

    fn choices() -> Parameter {
        let choices = ["adamw", "sgd"].map(|text| Choice::Text(text.to_owned())).to_vec();
        Parameter { distribution: Distribution::Categorical { choices }, when: None }
    }

    fn momentum(on: &str, value: &str) -> Parameter {
        let distribution = Distribution::Float { low: 0.0, high: 0.9, log: false, step: None };
        let value = Value::Choice(Choice::Text(value.to_owned()));
        Parameter { distribution, when: Some((on.to_owned(), value)) }
    }

    fn space(parameters: &[(&str, Parameter)]) -> Result<Space, StudyError> {
        Space::new(parameters.iter().map(|(name, p)| ((*name).to_owned(), p.clone())).collect())
    }

    #[test]
    fn a_parameter_exists_when_its_condition_holds() {
        let space = space(&[("optimizer", choices()), ("momentum", momentum("optimizer", "sgd"))]);
        let space = space.unwrap();
        let names = |known: &BTreeMap<_, _>| space.next(known).into_keys().collect::<Vec<_>>();
        assert_eq!(names(&BTreeMap::new()), ["optimizer"]);
        let chosen =
            |index| BTreeMap::from([("optimizer".to_owned(), (choices().distribution, index))]);
        assert_eq!(names(&chosen(0.0)), [""; 0]);
        assert_eq!(names(&chosen(1.0)), ["momentum"]);
    }

    #[test]
    fn conditions_that_cannot_hold_are_refused() {
        let check = |parameters: &[(&str, Parameter)], expected: &str| {
            let error = space(parameters).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(&[("momentum", momentum("optimizer", "sgd"))], "which is not in the space");
        let wrong = momentum("optimizer", "lion");
        check(&[("momentum", wrong), ("optimizer", choices())], "never has that value");
        let mut optimizer = choices();
        optimizer.when =
            Some(("optimizer".to_owned(), Value::Choice(Choice::Text("sgd".to_owned()))));
        check(&[("optimizer", optimizer)], "depends on it in turn");
        let empty = Distribution::Float { low: 1.0, high: 0.0, log: false, step: None };
        check(
            &[("x", Parameter { distribution: empty, when: None })],
            "`x` cannot be: the range from 1 to 0 is empty",
        );
    }
}
