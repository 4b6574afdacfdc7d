//! The LSTM against golden files that `golden.py` wrote with PyTorch, under PyTorch's names.

use std::collections::BTreeMap;

use crate::support::case::{float, values};
use crate::support::relative_error;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use firebox_core::Stream;
use firebox_kernels::{CpuKernels, LstmConfig, LstmState};
use safetensors::SafeTensors;

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f64>)>;

/// Visits parameters by the names that Burn gives them, which must be PyTorch's.
struct ByName<'a> {
    tensors: &'a Tensors,
    grads: Option<&'a burn::tensor::Gradients>,
    path: Vec<String>,
    seen: usize,
}

impl ModuleMapper for ByName<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (shape, data) = &self.tensors[&self.path.join(".")];
        self.seen += 1;
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
        let name = format!("grad.{}", self.path.join("."));
        let grad = param.val().grad(self.grads.expect("gradients")).expect("a gradient");
        close(&name, values(grad), &self.tensors[&name].1);
        self.seen += 1;
    }
}

#[track_caller]
fn close(name: &str, actual: Vec<f64>, expected: &[f64]) {
    let error = relative_error(&actual, expected);
    assert!(error < 1e-5, "{name} is off by {error:.2e}");
}

fn check(name: &str) {
    for kernels in CpuKernels::available() {
        kernels.force(|| check_one(name));
    }
}

fn check_one(name: &str) {
    let path = format!("{}/tests/golden/{name}.safetensors", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).expect("a golden file");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let (_, metadata) = SafeTensors::read_metadata(&bytes).expect("a header");
    let metadata = metadata.metadata().clone().expect("metadata");
    let config: LstmConfig = serde_json::from_str(&metadata["config"]).expect("a configuration");
    let lengths: Vec<usize> = serde_json::from_str(&metadata["lengths"]).expect("lengths");
    let tensors: Tensors = file
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            let floats =
                view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            (name, (view.shape().to_vec(), floats.map(f64::from).collect()))
        })
        .collect();

    let device = Device::flex().autodiff();
    let tensor = |name: &str| {
        let (shape, data) = &tensors[name];
        float::<3>(data, [shape[0], shape[1], shape[2]], &device)
    };
    let mut load = ByName { tensors: &tensors, grads: None, path: vec![], seen: 0 };
    let module = config.init(Stream::new(0, "replaced"), &device).map(&mut load);
    assert_eq!(load.seen, 4 * config.layers * config.directions());

    let [input, h_0, c_0] = ["input", "h_0", "c_0"].map(|name| tensor(name).require_grad());
    let state = LstmState { hidden: h_0.clone(), cell: c_0.clone() };
    let (output, last) = module.forward(input.clone(), Some(&lengths), Some(state), None);
    let loss = (output.clone() * tensor("d_output")).sum()
        + (last.hidden.clone() * tensor("d_h_n")).sum()
        + (last.cell.clone() * tensor("d_c_n")).sum();
    for (name, actual) in [("output", output), ("h_n", last.hidden), ("c_n", last.cell)] {
        close(name, values(actual), &tensors[name].1);
    }
    let grads = loss.backward();
    for (name, tensor) in [("grad.input", input), ("grad.h_0", h_0), ("grad.c_0", c_0)] {
        close(name, values(tensor.grad(&grads).expect("tracked")), &tensors[name].1);
    }
    let mut compare = ByName { tensors: &tensors, grads: Some(&grads), path: vec![], seen: 0 };
    module.visit(&mut compare);
    assert_eq!(compare.seen, 4 * config.layers * config.directions());
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
