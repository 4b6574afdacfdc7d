//! Golden files in safetensors, and gradients of a model by PyTorch's names.

#![allow(dead_code, reason = "each test uses a part of it")]

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};
use firebox_models::{Parameter, Path, layouts};
use safetensors::{Dtype, SafeTensors};

/// Largest norm-wise relative error that f32 may make.
const LIMIT: f64 = 1e-5;

pub(crate) struct Golden(Vec<u8>);

impl Golden {
    pub(crate) fn read(name: &str) -> Self {
        let folder = "tests/golden";
        Self::open(format!("{folder}/{name}.safetensors").as_ref())
    }

    pub(crate) fn open(path: &std::path::Path) -> Self {
        Self(std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    /// The tensors whose names begin so, without that beginning.
    pub(crate) fn all(&self, prefix: &str) -> Vec<Parameter> {
        let file = SafeTensors::deserialize(&self.0).expect("safetensors");
        let named = file.tensors().into_iter().filter_map(|(name, view)| {
            let name = name.strip_prefix(prefix)?.to_owned();
            assert_eq!(view.dtype(), Dtype::F32);
            let values = view.data().as_chunks::<4>().0.iter();
            let values = values.map(|bytes| f32::from_le_bytes(*bytes)).collect();
            Some(Parameter { name, shape: view.shape().to_vec(), values })
        });
        named.collect()
    }

    pub(crate) fn floats(&self, name: &str) -> Parameter {
        let mut found = self.all(name);
        found.retain(|parameter| parameter.name.is_empty());
        found.pop().expect("a tensor of that name")
    }

    /// The shape of a tensor, and its bytes.
    pub(crate) fn bytes(&self, name: &str) -> (Vec<usize>, Vec<u8>) {
        let file = SafeTensors::deserialize(&self.0).expect("safetensors");
        let view = file.tensor(name).expect("a tensor of that name");
        (view.shape().to_vec(), view.data().to_vec())
    }

    pub(crate) fn integers(&self, name: &str) -> Vec<i64> {
        let (_, bytes) = self.bytes(name);
        bytes.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
    }
}

/// ‖found − expected‖ / ‖expected‖ is under the limit.
#[track_caller]
pub(crate) fn check(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let square = |sum: f64, value: f64| sum + value * value;
    let pairs = found.iter().zip(expected);
    let error = pairs.map(|(a, b)| f64::from(*a) - f64::from(*b)).fold(0.0, square).sqrt();
    let size = expected.iter().map(|v| f64::from(*v)).fold(0.0, square).sqrt();
    assert!(size > 0.0 && error / size < LIMIT, "{what}: relative error {}", error / size);
    println!("{what}: {:.1e}", error / size);
}

pub(crate) fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// Gradients by name, in PyTorch's layout, of what has one.
pub(crate) fn gradients<M: Module>(model: &M, recorded: &Gradients) -> Vec<(String, Vec<f32>)> {
    struct Visitor<'a>(Path, &'a Gradients, Vec<(String, Vec<f32>)>);
    impl ModuleVisitor for Visitor<'_> {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = param.val().grad(self.1) {
                let layout = self.0.layout(gradient.shape().as_slice());
                self.2.push((layout.name.clone(), layout.to_torch(values(gradient))));
            }
        }
    }
    let mut visitor = Visitor(Path::default(), recorded, vec![]);
    model.visit(&mut visitor);
    visitor.2
}

/// Checks the gradients of all parameters of a model against those of the file.
pub(crate) fn check_gradients<M: Module>(model: &M, recorded: &Gradients, golden: &Golden) {
    let (found, expected) = (gradients(model, recorded), golden.all("grad."));
    assert_eq!(found.len(), layouts(model).len(), "every parameter has a gradient");
    assert_eq!(found.len(), expected.len());
    for (name, gradient) in found {
        let expected = expected.iter().find(|p| p.name == name).expect("a gradient of that name");
        check(&format!("gradient of {name}"), &gradient, &expected.values);
    }
}
