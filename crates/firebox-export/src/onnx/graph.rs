//! A graph that grows node by node. What a layer consists of is in `layers`.

use std::collections::{BTreeMap, BTreeSet};

use firebox_models::Parameter;

use super::proto::{
    AttributeProto, Dimension, DimensionProto, FLOAT, GraphProto, INT64, NodeProto, TensorProto,
    TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use crate::ExportError;

/// A value of the graph, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Value(String);

impl Value {
    /// An input that is left out.
    pub(super) fn none() -> Self {
        Self(String::new())
    }
}

/// The size of an axis of an input or output.
#[derive(Clone, Copy, Debug)]
pub(super) enum Axis {
    /// Free, under this name.
    Free(&'static str),
    /// Always this.
    Fixed(usize),
}

/// A setting of a node.
pub(super) enum Setting {
    Int(i64),
    Ints(Vec<i64>),
    Float(f32),
    Text(&'static str),
}

pub(super) struct Graph<'a> {
    parameters: BTreeMap<&'a str, &'a Parameter>,
    /// What all names of parameters begin with at the moment, such as `encoder.`.
    prefix: &'static str,
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
    /// Constants that are used again instead of being stored twice.
    known: BTreeMap<String, Value>,
    inputs: Vec<ValueInfoProto>,
    outputs: Vec<ValueInfoProto>,
}

impl<'a> Graph<'a> {
    pub(super) fn new(parameters: &'a [Parameter]) -> Self {
        let parameters = parameters.iter().map(|one| (one.name.as_str(), one)).collect();
        Self {
            parameters,
            prefix: "",
            nodes: Vec::new(),
            constants: Vec::new(),
            known: BTreeMap::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        }
    }

    /// Declares an input.
    pub(super) fn input(&mut self, name: &str, kind: i32, axes: &[Axis], meaning: &str) -> Value {
        self.inputs.push(info(name, kind, axes, meaning));
        Value(name.to_owned())
    }

    /// Gives a value the name of an output. It must be the result of a node.
    pub(super) fn output(&mut self, name: &str, value: &Value, axes: &[Axis], meaning: &str) {
        let names = |node: &mut NodeProto| {
            let all = node.input.iter_mut().chain(&mut node.output);
            all.filter(|found| **found == value.0).for_each(|found| *found = name.to_owned());
        };
        self.nodes.iter_mut().for_each(names);
        self.outputs.push(info(name, FLOAT, axes, meaning));
    }

    /// The first result of an operation.
    pub(super) fn node(
        &mut self,
        operator: &str,
        inputs: &[&Value],
        settings: &[(&str, Setting)],
    ) -> Value {
        let name = format!("{}_{}", operator.to_lowercase(), self.nodes.len());
        self.results(operator, inputs, settings, vec![name])[0].clone()
    }

    /// An operation with several results.
    pub(super) fn split(&mut self, value: &Value, axis: i64, parts: usize) -> Vec<Value> {
        let at = self.nodes.len();
        let names = (0..parts).map(|part| format!("split_{at}_{part}")).collect();
        self.results("Split", &[value], &[("axis", Setting::Int(axis))], names)
    }

    fn results(
        &mut self,
        operator: &str,
        inputs: &[&Value],
        settings: &[(&str, Setting)],
        names: Vec<String>,
    ) -> Vec<Value> {
        self.nodes.push(NodeProto {
            input: inputs.iter().map(|value| value.0.clone()).collect(),
            output: names.clone(),
            name: format!("{operator}_{}", self.nodes.len()),
            op_type: operator.to_owned(),
            attribute: settings.iter().map(|(name, value)| attribute(name, value)).collect(),
        });
        names.into_iter().map(Value).collect()
    }

    /// Takes parameters from within a part of the model from now on: `encoder.`, or `` for all of it.
    pub(super) fn within(&mut self, prefix: &'static str) {
        self.prefix = prefix;
    }

    /// A parameter of the model, without being stored yet.
    pub(super) fn parameter(&self, name: &str) -> Result<&'a Parameter, ExportError> {
        let name = format!("{}{name}", self.prefix);
        let found = self.parameters.get(name.as_str()).copied();
        found.ok_or(ExportError::Missing { name })
    }

    /// Whether the model has this parameter, for layers that are optional.
    pub(super) fn has(&self, name: &str) -> bool {
        self.parameter(name).is_ok()
    }

    /// Stores a parameter of the model as it is.
    pub(super) fn weight(&mut self, name: &str) -> Result<Value, ExportError> {
        let parameter = self.parameter(name)?;
        Ok(self.floats(name, &parameter.shape, &parameter.values))
    }

    /// Stores numbers that are made of parameters. The same name is stored once.
    pub(super) fn floats(&mut self, name: &str, shape: &[usize], values: &[f32]) -> Value {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(&format!("{}{name}", self.prefix), FLOAT, shape, bytes)
    }

    /// Stores whole numbers, `[n]`.
    pub(super) fn ints(&mut self, values: &[i64]) -> Value {
        let text: Vec<String> = values.iter().map(i64::to_string).collect();
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(&format!("ints_{}", text.join("_")), INT64, &[values.len()], bytes)
    }

    /// Stores one whole number without an axis.
    pub(super) fn int(&mut self, value: i64) -> Value {
        self.constant(&format!("int_{value}"), INT64, &[], value.to_le_bytes().to_vec())
    }

    /// Stores one number without an axis.
    pub(super) fn float(&mut self, value: f32) -> Value {
        self.constant(&format!("float_{value:e}"), FLOAT, &[], value.to_le_bytes().to_vec())
    }

    fn constant(&mut self, name: &str, kind: i32, shape: &[usize], bytes: Vec<u8>) -> Value {
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        let value = Value(name.to_owned());
        self.constants.push(TensorProto {
            dims: shape.iter().map(|size| *size as i64).collect(),
            data_type: kind,
            name: name.to_owned(),
            raw_data: bytes,
        });
        self.known.insert(name.to_owned(), value.clone());
        value
    }

    /// The graph. Nodes whose results lead to no output are left out, and constants that they alone
    /// read.
    pub(super) fn finish(self, name: &str) -> GraphProto {
        let Self { mut nodes, mut constants, inputs, outputs, .. } = self;
        let mut wanted: BTreeSet<String> = outputs.iter().map(|one| one.name.clone()).collect();
        let mut kept = Vec::with_capacity(nodes.len());
        while let Some(node) = nodes.pop() {
            if node.output.iter().any(|result| wanted.contains(result)) {
                wanted.extend(node.input.iter().cloned());
                kept.push(node);
            }
        }
        kept.reverse();
        constants.retain(|constant| wanted.contains(&constant.name));
        GraphProto {
            node: kept,
            name: name.to_owned(),
            initializer: constants,
            input: inputs,
            output: outputs,
        }
    }
}

fn attribute(name: &str, value: &Setting) -> AttributeProto {
    let mut attribute = AttributeProto { name: name.to_owned(), ..AttributeProto::default() };
    match value {
        Setting::Float(value) => (attribute.f, attribute.r#type) = (Some(*value), 1),
        Setting::Int(value) => (attribute.i, attribute.r#type) = (Some(*value), 2),
        Setting::Text(value) => {
            (attribute.s, attribute.r#type) = (Some(value.as_bytes().to_vec()), 3);
        }
        Setting::Ints(values) => (attribute.ints, attribute.r#type) = (values.clone(), 7),
    }
    attribute
}

fn info(name: &str, kind: i32, axes: &[Axis], meaning: &str) -> ValueInfoProto {
    let dimension = |axis: &Axis| DimensionProto {
        value: Some(match axis {
            Axis::Free(name) => Dimension::Name((*name).to_owned()),
            Axis::Fixed(size) => Dimension::Size(*size as i64),
        }),
    };
    let shape = TensorShapeProto { dim: axes.iter().map(dimension).collect() };
    let tensor = TensorTypeProto { elem_type: kind, shape: Some(shape) };
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto { tensor_type: Some(tensor) }),
        doc_string: meaning.to_owned(),
    }
}
