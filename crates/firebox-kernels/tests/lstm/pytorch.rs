//! LSTM and GRU against golden files that `golden.py` wrote with PyTorch, under PyTorch's names.

use std::collections::{BTreeMap, HashMap};

use crate::support::case::{float, values};
use crate::support::relative_error;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{CpuKernels, Gru, GruConfig, Lstm, LstmConfig, LstmState};
use safetensors::SafeTensors;

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f64>)>;

/// Visits parameters by the names that Burn gives them, which must be PyTorch's.
struct ByName<'a> {
    golden: &'a Golden,
    grads: Option<&'a burn::tensor::Gradients>,
    path: Vec<String>,
    errors: BTreeMap<String, f64>,
}

impl ByName<'_> {
    fn compare<const D: usize>(&mut self, name: &str, actual: Tensor<D>) {
        let error = relative_error(&values(actual), &self.golden.tensors[name].1);
        assert!(self.errors.insert(name.to_owned(), error).is_none(), "{name} twice");
    }
}

impl ModuleMapper for ByName<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (shape, data) = &self.golden.tensors[&self.path.join(".")];
        param.map(|tensor| {
            assert_eq!(tensor.dims().as_slice(), shape.as_slice());
            float(data, tensor.dims(), &tensor.device()).require_grad()
        })
    }
}

impl ModuleVisitor for ByName<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let grad = param.val().grad(self.grads.expect("gradients")).expect("a gradient");
        self.compare(&format!("grad.{}", self.path.join(".")), grad);
    }
}

/// A module with one or two parts of its state.
trait Recurrent: Module {
    const STATES: &'static [[&'static str; 2]];
    fn run(&self, x: Tensor<3>, lengths: &[usize], state: &[Tensor<3>]) -> Vec<Tensor<3>>;
}

impl Recurrent for Lstm {
    const STATES: &'static [[&'static str; 2]] = &[["h_0", "h_n"], ["c_0", "c_n"]];
    fn run(&self, x: Tensor<3>, lengths: &[usize], state: &[Tensor<3>]) -> Vec<Tensor<3>> {
        let state = LstmState { hidden: state[0].clone(), cell: state[1].clone() };
        let (output, last) = self.forward(x, Some(lengths), Some(state), None);
        vec![output, last.hidden, last.cell]
    }
}

impl Recurrent for Gru {
    const STATES: &'static [[&'static str; 2]] = &[["h_0", "h_n"]];
    fn run(&self, x: Tensor<3>, lengths: &[usize], state: &[Tensor<3>]) -> Vec<Tensor<3>> {
        let (output, last) = self.forward(x, Some(lengths), Some(state[0].clone()), None);
        vec![output, last]
    }
}

/// A golden file.
struct Golden {
    tensors: Tensors,
    metadata: HashMap<String, String>,
}

impl Golden {
    fn read(name: &str) -> Self {
        let path = format!("tests/golden/{name}.safetensors");
        let bytes = std::fs::read(path).expect("a golden file");
        let file = SafeTensors::deserialize(&bytes).expect("safetensors");
        let (_, metadata) = SafeTensors::read_metadata(&bytes).expect("a header");
        let metadata = metadata.metadata().clone().expect("metadata");
        let tensors = file
            .tensors()
            .into_iter()
            .map(|(name, view)| {
                let bytes = view.data().chunks_exact(4);
                let floats = bytes.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                (name, (view.shape().to_vec(), floats.map(f64::from).collect()))
            })
            .collect();
        Self { tensors, metadata }
    }

    /// Relative errors of all results and gradients in this precision.
    fn errors(&self, precision: Precision) -> BTreeMap<String, f64> {
        let device = Device::flex().autodiff();
        let (config, stream) = (&self.metadata["config"], Stream::new(0, "replaced"));
        match self.metadata["kind"].as_str() {
            "LSTM" => {
                let config: LstmConfig = serde_json::from_str(config).expect("a configuration");
                self.errors_of(config.init(stream, &device).in_precision(precision), &device)
            }
            _ => {
                let config: GruConfig = serde_json::from_str(config).expect("a configuration");
                self.errors_of(config.init(stream, &device).in_precision(precision), &device)
            }
        }
    }

    fn errors_of<M: Recurrent>(&self, module: M, device: &Device) -> BTreeMap<String, f64> {
        let lengths: Vec<usize> = serde_json::from_str(&self.metadata["lengths"]).expect("lengths");
        let tensor = |name: &str| {
            let (shape, data) = &self.tensors[name];
            float::<3>(data, [shape[0], shape[1], shape[2]], device)
        };
        let mut load = ByName { golden: self, grads: None, path: vec![], errors: BTreeMap::new() };
        let module = module.map(&mut load);
        let input = tensor("input").require_grad();
        let state: Vec<_> =
            M::STATES.iter().map(|[before, _]| tensor(before).require_grad()).collect();
        let results = module.run(input.clone(), &lengths, &state);
        let mut loss = Tensor::<1>::zeros([1], device);
        let names = std::iter::once("output").chain(M::STATES.iter().map(|[_, after]| *after));
        for (name, result) in names.zip(results) {
            load.compare(name, result.clone());
            loss = loss + (result * tensor(&format!("d_{name}"))).sum();
        }
        let grads = loss.backward();
        let inputs = std::iter::once(("input", input))
            .chain(M::STATES.iter().map(|[before, _]| *before).zip(state));
        for (name, tensor) in inputs {
            load.compare(&format!("grad.{name}"), tensor.grad(&grads).expect("tracked"));
        }
        load.grads = Some(&grads);
        module.visit(&mut load);
        let expected = self.tensors.keys().filter(|name| name.starts_with("grad.")).count();
        assert_eq!(load.errors.len(), expected + 1 + M::STATES.len());
        load.errors
    }
}

/// f32 by every variant of the kernels.
fn check(name: &str) {
    let golden = Golden::read(name);
    for kernels in CpuKernels::available() {
        for (name, error) in kernels.force(|| golden.errors(Precision::F32)) {
            assert!(error < 1e-5, "{kernels:?}: {name} is off by {error:.2e}");
        }
    }
}

/// Rounded operands by every variant: off by at most so many times the error of PyTorch's bf16, and by
/// no less than rounding makes.
fn check_rounded(name: &str, precision: Precision, times: f64, least: f64) {
    let golden = Golden::read(name);
    let theirs: BTreeMap<String, f64> =
        serde_json::from_str(&golden.metadata["bf16"]).expect("errors of PyTorch");
    for kernels in CpuKernels::available() {
        let ours = kernels.force(|| golden.errors(precision));
        for (part, error) in &ours {
            let theirs = theirs[part];
            assert!(
                *error < times * theirs,
                "{kernels:?} {precision}: {part} of {name} is off by {error:.2e}, PyTorch's bf16 by {theirs:.2e}"
            );
        }
        // Rounding happened: this is not f32 under another name.
        assert!(ours.values().all(|error| *error > least), "{kernels:?} {precision}: {ours:?}");
    }
}

#[test]
fn two_layers_in_both_directions() {
    check("stacked");
}

#[test]
fn packed_sequences() {
    check("lengths");
}

#[test]
fn a_single_step() {
    check("plain");
}

#[test]
fn more_units_than_a_vector_holds() {
    check("wide");
}

#[test]
fn many_steps() {
    check("long");
}

#[test]
fn gru_in_two_layers_and_both_directions() {
    check("gru-stacked");
}

#[test]
fn gru_on_packed_sequences() {
    check("gru-lengths");
}

#[test]
fn gru_over_many_steps() {
    check("gru-long");
}

#[test]
fn bf16_is_as_exact_as_pytorchs() {
    check_rounded("long", Precision::Bf16, 1.5, 1e-4);
    check_rounded("gru-long", Precision::Bf16, 1.5, 1e-4);
}

/// It has three bits more.
#[test]
fn f16_is_four_times_as_exact_as_pytorchs_bf16() {
    check_rounded("long", Precision::F16, 0.25, 1e-5);
    check_rounded("gru-long", Precision::F16, 0.25, 1e-5);
}
