//! Parameters by name, as PyTorch names and lays them out.
//!
//! A Burn module stores some parameters otherwise than PyTorch: a linear weight is `[in, out]`
//! instead of `[out, in]`, and norms call their parameters `gamma` and `beta`. Everything outside
//! of a model (checkpoints, exports, golden files) uses PyTorch's form; the exchange happens here
//! and is exact. Nothing here reads or writes files.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};

use crate::Mismatch;

/// The name of a parameter and how its values lie in a Burn module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// PyTorch's name: the path of fields, joined by dots.
    pub name: String,
    /// Shape within the module.
    pub shape: Vec<usize>,
    /// Whether PyTorch stores the transpose (two axes).
    pub transposed: bool,
}

impl Layout {
    /// PyTorch's shape.
    pub fn torch_shape(&self) -> Vec<usize> {
        match (self.transposed, self.shape.as_slice()) {
            (true, [rows, columns]) => vec![*columns, *rows],
            _ => self.shape.clone(),
        }
    }

    /// Values of the module, row by row, in PyTorch's order.
    pub fn to_torch(&self, values: Vec<f32>) -> Vec<f32> {
        match (self.transposed, self.shape.as_slice()) {
            (true, [rows, columns]) => transpose(&values, *rows, *columns),
            _ => values,
        }
    }

    /// PyTorch's values in the module's order.
    pub fn from_torch(&self, values: Vec<f32>) -> Vec<f32> {
        match (self.transposed, self.shape.as_slice()) {
            (true, [rows, columns]) => transpose(&values, *columns, *rows),
            _ => values,
        }
    }
}

fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..rows * columns).map(|i| values[i % rows * columns + i / rows]).collect()
}

/// A parameter's values in PyTorch's layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// PyTorch's name.
    pub name: String,
    /// PyTorch's shape.
    pub shape: Vec<usize>,
    /// Values, row by row.
    pub values: Vec<f32>,
}

/// Follows a traversal and knows the layout of the parameter that it stands on.
#[derive(Clone, Debug, Default)]
pub struct Path(Vec<(String, String)>);

impl Path {
    /// To be called from `enter_module`.
    pub fn enter(&mut self, name: &str, container: &str) {
        self.0.push((name.to_owned(), container.to_owned()));
    }

    /// To be called from `exit_module`.
    pub fn exit(&mut self) {
        self.0.pop();
    }

    /// The layout of the parameter reached, which has this shape.
    pub fn layout(&self, shape: &[usize]) -> Layout {
        // Which of several modules it is has no part in the names of its parameters.
        let named = self.0.iter().filter(|(_, container)| !container.starts_with("Enum:"));
        let mut names: Vec<&str> = named.map(|(name, _)| name.as_str()).collect();
        let container = self.0.last().map_or("", |(_, container)| container.as_str());
        if let Some(last) = names.last_mut() {
            *last = match (container, *last) {
                (norm, "gamma") if norm.ends_with("Norm") => "weight",
                (norm, "beta") if norm.ends_with("Norm") => "bias",
                (_, other) => other,
            };
        }
        let transposed = container == "Struct:Linear" && names.last() == Some(&"weight");
        let mut name = names.join(".");
        // PyTorch's `nn.MultiheadAttention` holds these parameters itself.
        if let Some((path, own)) = name.rsplit_once(".in_proj.") {
            name = format!("{path}.in_proj_{own}");
        }
        Layout { name, shape: shape.to_vec(), transposed }
    }
}

/// Layouts of all float parameters, in the order of traversal.
pub fn layouts<M: Module>(model: &M) -> Vec<Layout> {
    struct Visitor(Path, Vec<Layout>);
    impl ModuleVisitor for Visitor {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.push(self.0.layout(param.lazy_shape().as_slice()));
        }
    }
    let mut visitor = Visitor(Path::default(), vec![]);
    model.visit(&mut visitor);
    visitor.1
}

/// Applies `change` to every float parameter of a model, in the order of [`layouts`]. The result
/// is a leaf again: what was recorded for gradients is dropped, and whether the parameter wants a
/// gradient stays.
pub fn map_parameters<M: Module>(model: M, change: &mut impl MapParameter) -> M {
    struct Mapper<'a, C>(usize, &'a mut C);
    impl<C: MapParameter> ModuleMapper for Mapper<'_, C> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let index = self.0;
            self.0 += 1;
            param.map(|tensor| {
                let (tracked, wanted) = (tensor.is_autodiff(), tensor.is_require_grad());
                let changed = self.1.map(index, tensor.inner());
                if tracked { changed.autodiff().set_require_grad(wanted) } else { changed }
            })
        }
    }
    model.map(&mut Mapper(0, change))
}

/// A change to the parameters of a model, whatever their rank.
pub trait MapParameter {
    /// The new value of the `index`-th parameter, which has no part in any gradient.
    fn map<const D: usize>(&mut self, index: usize, value: Tensor<D>) -> Tensor<D>;
}

/// Reads all float parameters, in the order of traversal.
pub fn read_parameters<M: Module>(model: &M) -> Vec<Parameter> {
    struct Visitor(Path, Vec<Parameter>);
    impl ModuleVisitor for Visitor {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.base();
            let layout = self.0.layout(tensor.shape().as_slice());
            let values = tensor.into_data().iter::<f32>().collect();
            self.1.push(Parameter {
                shape: layout.torch_shape(),
                values: layout.to_torch(values),
                name: layout.name,
            });
        }
    }
    let mut visitor = Visitor(Path::default(), vec![]);
    model.visit(&mut visitor);
    visitor.1
}

/// How `parameters` differ from those of `model` in names and shapes.
pub fn compare_parameters<M: Module>(model: &M, parameters: &[Parameter]) -> Mismatch {
    let given: BTreeMap<&str, &Parameter> =
        parameters.iter().map(|parameter| (parameter.name.as_str(), parameter)).collect();
    let mut unexpected: BTreeSet<&str> = given.keys().copied().collect();
    let mut mismatch = Mismatch::default();
    for layout in layouts(model) {
        unexpected.remove(layout.name.as_str());
        match given.get(layout.name.as_str()) {
            None => mismatch.missing.push(layout.name),
            Some(found) if found.shape != layout.torch_shape() => {
                let shape = layout.torch_shape();
                mismatch.shapes.push((layout.name, shape, found.shape.clone()));
            }
            Some(_) => mismatch.matched += 1,
        }
    }
    mismatch.missing.sort();
    mismatch.shapes.sort();
    mismatch.unexpected = unexpected.into_iter().map(str::to_owned).collect();
    mismatch
}

/// Gives a model the values of `parameters`, by name. Whether a parameter wants a gradient stays.
///
/// # Errors
/// If any name is missing, unexpected or has another shape; the model is then unchanged.
pub fn write_parameters<M: Module>(
    model: &mut M,
    parameters: Vec<Parameter>,
) -> Result<(), Mismatch> {
    struct Change {
        layouts: Vec<Layout>,
        values: BTreeMap<String, Vec<f32>>,
    }
    impl MapParameter for Change {
        fn map<const D: usize>(&mut self, index: usize, value: Tensor<D>) -> Tensor<D> {
            let layout = &self.layouts[index];
            let Some(values) = self.values.remove(&layout.name) else { return value };
            let data = TensorData::new(layout.from_torch(values), layout.shape.clone());
            Tensor::from_data(data, (&value.device(), value.dtype()))
        }
    }
    let mismatch = compare_parameters(model, &parameters);
    if !mismatch.is_empty() {
        return Err(mismatch);
    }
    let values = parameters.into_iter().map(|p| (p.name, p.values)).collect();
    let mut change = Change { layouts: layouts(model), values };
    *model = map_parameters(model.clone(), &mut change);
    Ok(())
}

#[cfg(test)]
mod tests {
    use burn::nn::{LayerNorm, LayerNormConfig, Linear};
    use burn::tensor::{DType, Device};
    use firebox_core::Stream;
    use firebox_kernels::{Lstm, LstmConfig, init_linear};

    use super::*;

    #[derive(Module, Debug)]
    struct Block {
        lstm: Lstm,
        norm: LayerNorm,
        heads: Vec<Linear>,
    }

    fn block(seed: u64) -> Block {
        let device = Device::default();
        let stream = Stream::new(seed, "weights");
        let config = LstmConfig { bidirectional: true, ..LstmConfig::new(3, 2) };
        Block {
            lstm: config.init(stream, &device),
            norm: LayerNormConfig::new(4).init(&device),
            heads: (0..2).map(|i| init_linear(stream.substream(i), 4, 3, &device)).collect(),
        }
    }

    #[test]
    fn names_and_shapes_are_those_of_pytorch() {
        let layouts = layouts(&block(1));
        let named = |name: &str| layouts.iter().find(|layout| layout.name == name).unwrap();
        assert_eq!(named("lstm.weight_ih_l0_reverse").torch_shape(), [8, 3]);
        assert_eq!(named("norm.weight").torch_shape(), [4]);
        assert_eq!(named("norm.bias").torch_shape(), [4]);
        assert_eq!(named("heads.1.weight").torch_shape(), [3, 4]);
        assert_eq!(named("heads.1.weight").shape, [4, 3]);
        assert_eq!(layouts.len(), 8 + 2 + 4);
    }

    #[test]
    fn written_parameters_keep_the_models_type() {
        struct Halve;
        impl MapParameter for Halve {
            fn map<const D: usize>(&mut self, _: usize, value: Tensor<D>) -> Tensor<D> {
                value.cast(DType::F16)
            }
        }
        struct Types(BTreeSet<String>);
        impl ModuleVisitor for Types {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0.insert(format!("{:?}", param.val().dtype()));
            }
        }
        let mut model = map_parameters(block(1), &mut Halve);
        write_parameters(&mut model, read_parameters(&block(2))).unwrap();
        let mut types = Types(BTreeSet::new());
        model.visit(&mut types);
        assert_eq!(types.0.into_iter().collect::<Vec<_>>(), ["F16"]);
    }

    #[test]
    fn a_linear_weight_is_transposed_and_comes_back() {
        let model = block(1);
        let parameters = read_parameters(&model);
        let weight = parameters.iter().find(|p| p.name == "heads.0.weight").unwrap();
        let inside = model.heads[0].weight.val().into_data().try_into_vec::<f32>().unwrap();
        for (row, column) in [(0, 0), (1, 3), (2, 1)] {
            assert_eq!(weight.values[row * 4 + column], inside[column * 3 + row]);
        }
        let mut other = block(2).train();
        assert_ne!(read_parameters(&other), parameters);
        write_parameters(&mut other, parameters.clone()).unwrap();
        assert_eq!(read_parameters(&other), parameters);
        assert!(other.heads[0].weight.is_require_grad() && other.norm.gamma.is_require_grad());
    }

    #[test]
    fn every_difference_is_named_and_nothing_is_changed() {
        let mut model = block(1);
        let before = read_parameters(&model);
        let mut wrong = before.clone();
        wrong[0].name = "lstm.weight_ih_l7".to_owned();
        wrong[1].shape = vec![1, 16];
        let mismatch = write_parameters(&mut model, wrong).unwrap_err();
        assert_eq!(mismatch.matched, 12);
        let message = mismatch.to_string();
        for part in [
            "12 of the model's 14",
            "missing: `lstm.weight_ih_l0`",
            "unexpected: `lstm.weight_ih_l7`",
            "`lstm.weight_hh_l0` has shape [1, 16] where the model has [8, 2]",
        ] {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(read_parameters(&model), before);
    }
}
