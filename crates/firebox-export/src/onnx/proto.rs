//! The messages of ONNX that an exported model consists of, with the field numbers of `onnx.proto3`
//! (<https://github.com/onnx/onnx/blob/main/onnx/onnx.proto3>). Fields that no export needs are left
//! out: readers take them as absent, and a message read back keeps none of them.

use prost::{Message, Oneof};

/// A whole file.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// Version of the file format.
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    /// Name of the writing program.
    #[prost(string, tag = "2")]
    pub producer_name: String,
    /// Its version.
    #[prost(string, tag = "3")]
    pub producer_version: String,
    /// What the model is, for people.
    #[prost(string, tag = "6")]
    pub doc_string: String,
    /// The computation.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// Versions of the sets of operators.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// Named texts.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// A set of operators and its version.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    /// Empty for the standard one.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// Version.
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// A named text.
#[derive(Clone, PartialEq, Message)]
pub struct StringStringEntryProto {
    /// Name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Text.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Nodes in an order in which each comes after those that it reads.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    /// Operations.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// Name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Weights and constants.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    /// What is given.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// What is computed.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
}

/// An operation.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    /// Names of what it reads; an empty name is an input left out.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Names of what it makes; an empty name is an output that nobody wants.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// Name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The operator.
    #[prost(string, tag = "4")]
    pub op_type: String,
    /// Its settings.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
}

/// A setting of an operation: one of the values, as `type` says.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Type 1.
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    /// Type 2.
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    /// Type 3, text.
    #[prost(bytes = "vec", optional, tag = "4")]
    pub s: Option<Vec<u8>>,
    /// Type 7.
    #[prost(int64, repeated, tag = "8")]
    pub ints: Vec<i64>,
    /// Which of the values is meant.
    #[prost(int32, tag = "20")]
    pub r#type: i32,
}

/// Numbers.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    /// Shape.
    #[prost(int64, repeated, tag = "1")]
    pub dims: Vec<i64>,
    /// Type of an element: [`FLOAT`], [`INT64`], …
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Name.
    #[prost(string, tag = "8")]
    pub name: String,
    /// Elements row by row, in little-endian order.
    #[prost(bytes = "vec", tag = "9")]
    pub raw_data: Vec<u8>,
}

/// Type of an element: 32-bit floating point.
pub const FLOAT: i32 = 1;
/// Type of an element: 32-bit integer.
pub const INT32: i32 = 6;
/// Type of an element: 64-bit integer.
pub const INT64: i32 = 7;
/// Type of an element: truth value.
pub const BOOL: i32 = 9;

/// A named value of the graph.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
    /// What it is, for people.
    #[prost(string, tag = "3")]
    pub doc_string: String,
}

/// The type of a value; here always a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    /// A tensor.
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorTypeProto>,
}

/// The type of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    /// Type of an element.
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    /// Shape.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// Axes.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    /// Sizes.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimensionProto>,
}

/// The size of an axis.
#[derive(Clone, PartialEq, Message)]
pub struct DimensionProto {
    /// The size, or its name.
    #[prost(oneof = "Dimension", tags = "1, 2")]
    pub value: Option<Dimension>,
}

/// A size that is known, or one that has a name.
#[derive(Clone, PartialEq, Oneof)]
pub enum Dimension {
    /// Known.
    #[prost(int64, tag = "1")]
    Size(i64),
    /// The same wherever the name is the same.
    #[prost(string, tag = "2")]
    Name(String),
}
