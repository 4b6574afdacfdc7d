//! Types of tensors at the boundaries of a step: what comes in, what a model makes of it, and what changes
//! the model. Burn neither promotes types nor always complains about another one.
//!
//! A type is known without the device: nothing here waits for it.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor};
use firebox_loader::Batch;
use firebox_models::{Layout, Loss, layouts};

use crate::TrainError;
use crate::gradients::Gradients;

/// Everything between two operations is f32.
pub(crate) fn check_type(what: &str, found: DType) -> Result<(), TrainError> {
    match found {
        DType::F32 => Ok(()),
        found => Err(TrainError::Type { what: what.to_owned(), found: format!("{found:?}") }),
    }
}

/// The loss of a batch is one number, and so is each part: of several, the first would be written down, the sum of all
/// learnt from, and what is left of a part be read as something else.
pub(crate) fn check_loss(what: &str, loss: &Loss) -> Result<(), TrainError> {
    let number = |value: &Tensor<1>, what: &dyn Fn() -> String| match (value.dims(), value.dtype())
    {
        ([1], DType::F32) => Ok(()),
        ([1], found) => check_type(&what(), found),
        ([numbers], _) => Err(TrainError::Loss { what: what(), numbers }),
    };
    number(&loss.value, &|| what.to_owned())?;
    let mut parts = loss.parts.iter();
    parts.try_for_each(|(name, part)| number(part, &|| format!("the part `{name}` of {what}")))
}

/// Master weights are f32, and each has a name of its own, by which checkpoints keep it.
pub(crate) fn check_parameters<M: Module>(model: &M) -> Result<(), TrainError> {
    struct Types(Vec<DType>);
    impl ModuleVisitor for Types {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.val().dtype());
        }
    }
    let mut types = Types(vec![]);
    model.visit(&mut types);
    let layouts = layouts(model);
    let mut names = HashSet::new();
    if let Some(twice) = layouts.iter().find(|layout| !names.insert(layout.name.as_str())) {
        return Err(TrainError::Twice { name: twice.name.clone() });
    }
    let mut found = types.0.into_iter().zip(&layouts);
    found.try_for_each(|(found, layout)| check_type(&layout.name, found))
}

/// So is what a model is given.
pub(crate) fn check_batch(batch: &Batch) -> Result<(), TrainError> {
    check_type("the input of a batch", batch.inputs.dtype())
}

/// And what changes its weights; `layouts` are those of the parameters.
pub(crate) fn check_gradients(gradients: &Gradients, layouts: &[Layout]) -> Result<(), TrainError> {
    for (index, layout) in layouts.iter().enumerate() {
        match gradients.get(index).map(Tensor::dtype) {
            None | Some(DType::F32) => {}
            Some(found) => check_type(&format!("the gradient of {}", layout.name), found)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use burn::nn::LinearConfig;
    use burn::tensor::Device;
    use firebox_loader::Position;

    use super::*;

    #[track_caller]
    fn refused(checked: Result<(), TrainError>, expected: &str) {
        let message = checked.unwrap_err().to_string();
        assert!(message.starts_with(expected), "{message}");
        assert!(message.contains("`in_precision`"), "{message}");
    }

    #[test]
    fn a_loss_is_one_number() {
        let zeros = |numbers: usize| Tensor::<1>::zeros([numbers], &Device::flex());
        let plain = |value| Loss { value, weight: 1.0, parts: vec![] };
        let of = |numbers| check_loss("the loss", &plain(zeros(numbers)));
        of(1).unwrap();
        for numbers in [0, 8] {
            let said = of(numbers).unwrap_err().to_string();
            assert!(said.starts_with(&format!("the loss has {numbers} numbers")), "{said}");
        }
        let half = || zeros(1).cast(DType::F16);
        refused(check_loss("the loss", &plain(half())), "the loss is of type F16");
        // So is each part of it.
        let with = |part| Loss {
            value: zeros(1),
            weight: 1.0,
            parts: vec![("whole", zeros(1)), ("per channel", part)],
        };
        check_loss("the loss", &with(zeros(1))).unwrap();
        let said = check_loss("the loss", &with(zeros(3))).unwrap_err().to_string();
        assert!(said.starts_with("the part `per channel` of the loss has 3 numbers"), "{said}");
        let expected = "the part `per channel` of the loss is of type F16";
        refused(check_loss("the loss", &with(half())), expected);
    }

    #[test]
    fn two_parameters_of_one_name_are_refused_before_training() {
        #[derive(Module, Debug)]
        struct OddNorm {
            gamma: Param<Tensor<1>>,
            weight: Param<Tensor<1>>,
        }
        let one = || Param::from_tensor(Tensor::<1>::zeros([2], &Device::flex()));
        let odd = OddNorm { gamma: one(), weight: one() };
        let said = check_parameters(&odd).unwrap_err().to_string();
        assert!(said.starts_with("two parameters are called `weight`"), "{said}");
    }

    #[test]
    fn batches_of_another_type_are_refused() {
        let of = |dtype: DType| Batch {
            inputs: Tensor::<3>::zeros([2, 3, 1], &Device::flex()).cast(dtype),
            lengths: vec![3; 2],
            labels: vec![None; 2],
            indices: vec![0, 1],
            next: Position { epoch: 0, batch: 1 },
            wait: Duration::ZERO,
            upload: Duration::ZERO,
            handed: Duration::ZERO,
            fill: Duration::ZERO,
        };
        check_batch(&of(DType::F32)).unwrap();
        for (dtype, name) in [(DType::F16, "F16"), (DType::BF16, "BF16")] {
            let expected = format!("the input of a batch is of type {name}, and must be f32");
            refused(check_batch(&of(dtype)), &expected);
        }
    }

    #[test]
    fn gradients_of_another_type_are_refused_by_the_name_of_their_parameter() {
        let model = LinearConfig::new(2, 1).init(&Device::flex());
        let layouts = layouts(&model);
        let names: Vec<&str> = layouts.iter().map(|layout| layout.name.as_str()).collect();
        assert_eq!(names, ["weight", "bias"]);
        let gradient = |size: usize, dtype: DType| {
            Some(Tensor::<1>::zeros([size], &Device::flex()).cast(dtype))
        };
        let of = |gradients| check_gradients(&Gradients::of(gradients), &layouts);
        of(vec![gradient(2, DType::F32), gradient(1, DType::F32)]).unwrap();
        of(vec![None, gradient(1, DType::F32)]).unwrap();
        let bias = of(vec![gradient(2, DType::F32), gradient(1, DType::F16)]);
        refused(bias, "the gradient of bias is of type F16, and must be f32");
        let weight = of(vec![gradient(2, DType::BF16), None]);
        refused(weight, "the gradient of weight is of type BF16, and must be f32");
    }
}
