//! Weights, their average and moments of one moment, copied to the host: what checkpoints hold and rollbacks use.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor, TensorData, Transaction};
use firebox_models::{Layout, MapParameter, Mismatch, Parameter, map_parameters, write_parameters};
use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, TensorView};

use crate::TrainError;
use crate::average::Average;
use crate::optimizer::{Moments, OptimizerState};
use crate::tensor_file::TensorFile;

/// Numbers of all parameters in the order of traversal and in the module's layout.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    layouts: Vec<Layout>,
    weights: Vec<Vec<f32>>,
    names: &'static [&'static str],
    moments: Vec<Option<MomentValues>>,
    /// None before the first update, or where none is kept.
    average: Vec<Vec<f32>>,
    /// Updates that are in it.
    averaged: u64,
}

#[derive(Clone, Debug)]
struct MomentValues {
    /// In the order of the names.
    values: Vec<Vec<f32>>,
    updates: u64,
}

impl Snapshot {
    /// Copies a model and its optimizer to the host, in one read of the device. Nothing that
    /// happens afterwards changes the copy.
    pub(crate) fn take<M: Module>(
        model: &M,
        optimizer: &OptimizerState,
        average: &Average,
    ) -> Result<Self, TrainError> {
        struct Visitor(Option<Transaction>);
        impl ModuleVisitor for Visitor {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0 = self.0.take().map(|reads| reads.register(param.base().inner()));
            }
        }
        let layouts = optimizer.layouts().to_vec();
        let mut visitor = Visitor(Some(Transaction::default()));
        model.visit(&mut visitor);
        let mut reads = visitor.0.unwrap_or_default();
        let moments = optimizer.moments.iter().flatten();
        for tensor in moments.flat_map(|moments| &moments.tensors).chain(&average.values) {
            reads = reads.register(tensor.clone());
        }
        let device = |error: &dyn std::fmt::Display| TrainError::Device(error.to_string());
        let data = reads.try_execute().map_err(|error| device(&error))?;
        let mut values = Vec::with_capacity(data.len());
        for data in data {
            values.push(data.try_into_vec::<f32>().map_err(|error| device(&error))?);
        }
        let mut rest = values.split_off(layouts.len()).into_iter();
        let names = optimizer.moment_names();
        let moments = optimizer.moments.iter().map(|moments| {
            let updates = optimizer.updates.saturating_sub(moments.as_ref()?.missed);
            Some(MomentValues { values: rest.by_ref().take(names.len()).collect(), updates })
        });
        let moments = moments.collect();
        let averaged = average.count;
        Ok(Self { layouts, weights: values, names, moments, average: rest.collect(), averaged })
    }

    /// Puts the copy back.
    pub(crate) fn restore<M: Module>(
        &self,
        model: M,
        optimizer: &mut OptimizerState,
        average: &mut Average,
    ) -> M {
        struct Change<'a> {
            snapshot: &'a Snapshot,
            device: Option<Device>,
        }
        impl MapParameter for Change<'_> {
            fn map<const D: usize>(&mut self, index: usize, value: Tensor<D>) -> Tensor<D> {
                let shape = self.snapshot.layouts[index].shape.clone();
                let data = TensorData::new(self.snapshot.weights[index].clone(), shape);
                self.device = Some(value.device());
                Tensor::from_data(data, (&value.device(), value.dtype()))
            }
        }
        let mut change = Change { snapshot: self, device: None };
        let model = map_parameters(model, &mut change);
        let device = change.device.unwrap_or_default();
        let tensor = |values: &Vec<f32>| {
            Tensor::from_data(TensorData::new(values.clone(), [values.len()]), &device)
        };
        let moments = self.moments.iter().map(|moments| {
            let MomentValues { values, updates } = moments.as_ref()?;
            Some((values.iter().map(tensor).collect(), *updates))
        });
        put_moments(optimizer, moments.collect());
        average.values = self.average.iter().map(tensor).collect();
        average.count = self.averaged;
        model
    }

    /// `weights.safetensors`: PyTorch's names and layout.
    pub(crate) fn weights_file(&self) -> TensorFile<'_> {
        named(&self.layouts, &self.weights)
    }

    /// `average.safetensors`: as the weights; `None` if there is none.
    pub(crate) fn average_file(&self) -> Option<TensorFile<'_>> {
        (!self.average.is_empty()).then(|| named(&self.layouts, &self.average))
    }

    /// `optimizer.safetensors`: moments such as `exp_avg.NAME` and `exp_avg_sq.NAME`, and
    /// `step.NAME`, as PyTorch calls them, for every parameter that was ever updated.
    pub(crate) fn optimizer_file(&self) -> TensorFile<'_> {
        let mut file = TensorFile::default();
        for (layout, moments) in self.layouts.iter().zip(&self.moments) {
            let Some(MomentValues { values, updates }) = moments else { continue };
            for (kind, values) in self.names.iter().zip(values) {
                file.numbers(format!("{kind}.{}", layout.name), layout, values);
            }
            file.count(format!("step.{}", layout.name), *updates);
        }
        file
    }

    /// Reads the files back and puts them into a model, its optimizer and its average.
    ///
    /// # Errors
    /// A text for what is no such file, or the names and shapes that do not fit.
    pub(crate) fn load<M: Module>(
        weights: &[u8],
        optimizer_file: &[u8],
        average_file: Option<&[u8]>,
        model: &mut M,
        optimizer: &mut OptimizerState,
        average: &mut Average,
    ) -> Result<(), LoadWeights> {
        let device = model.devices().first().cloned().unwrap_or_default().without_autodiff();
        let averaged = match average_file {
            None => vec![],
            Some(file) => load_flat(file, optimizer.layouts(), &device)?,
        };
        load_weights(weights, model)?;
        let tensors = SafeTensors::deserialize(optimizer_file)?;
        let tensors: BTreeMap<String, TensorView<'_>> = tensors.tensors().into_iter().collect();
        let mut mismatch = Mismatch::default();
        let mut moments = vec![];
        for layout in optimizer.layouts() {
            let part = |kind: &str| tensors.get(&format!("{kind}.{}", layout.name));
            let Some(updates) = part("step") else {
                moments.push(None);
                continue;
            };
            let mut values = vec![];
            for kind in optimizer.moment_names() {
                let name = format!("{kind}.{}", layout.name);
                match part(kind) {
                    None => mismatch.missing.push(name),
                    Some(view) if view.dtype() != Dtype::F32 => {
                        return Err(LoadWeights::Type {
                            name,
                            found: format!("{:?}", view.dtype()),
                        });
                    }
                    Some(view) if view.shape() != layout.torch_shape() => {
                        let found = view.shape().to_vec();
                        mismatch.shapes.push((name, layout.torch_shape(), found));
                    }
                    Some(view) => {
                        values.push(flat(layout.from_torch(floats(view.data())), &device))
                    }
                }
            }
            let mut count = [0; 8];
            if updates.dtype() != Dtype::U64 || updates.data().len() != 8 {
                mismatch.missing.push(format!("step.{}", layout.name));
            } else {
                count.copy_from_slice(updates.data());
            }
            moments.push(Some((values, u64::from_le_bytes(count))));
        }
        if !mismatch.is_empty() {
            return Err(mismatch.into());
        }
        put_moments(optimizer, moments);
        average.values = averaged;
        Ok(())
    }
}

/// Gives an optimizer its moments, with how often each parameter was updated. Only the differences
/// between the counts matter: the largest one becomes that of the optimizer.
fn put_moments(optimizer: &mut OptimizerState, moments: Vec<Option<(Vec<Tensor<1>>, u64)>>) {
    let all = moments.iter().flatten().map(|(_, updates)| *updates).max().unwrap_or(0);
    let moments = moments.into_iter().map(|moments| {
        let (tensors, updates) = moments?;
        Some(Moments { tensors, missed: all - updates })
    });
    optimizer.moments = moments.collect();
    optimizer.updates = all;
}

fn flat(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let size = values.len();
    Tensor::from_data(TensorData::new(values, [size]), device)
}

/// The tensors of a safetensors file, one for each layout in their order.
fn load_flat(
    bytes: &[u8],
    layouts: &[Layout],
    device: &Device,
) -> Result<Vec<Tensor<1>>, LoadWeights> {
    let mut found: BTreeMap<String, Parameter> =
        parse_weights(bytes)?.into_iter().map(|p| (p.name.clone(), p)).collect();
    let (mut mismatch, mut tensors) = (Mismatch::default(), vec![]);
    for layout in layouts {
        match found.remove(&layout.name) {
            None => mismatch.missing.push(layout.name.clone()),
            Some(parameter) if parameter.shape != layout.torch_shape() => {
                let shape = layout.torch_shape();
                mismatch.shapes.push((layout.name.clone(), shape, parameter.shape));
            }
            Some(parameter) => tensors.push(flat(layout.from_torch(parameter.values), device)),
        }
    }
    if mismatch.is_empty() { Ok(tensors) } else { Err(mismatch.into()) }
}

/// Why weights could not be put into a model.
#[derive(Debug, thiserror::Error)]
pub enum LoadWeights {
    /// The file is not in the safetensors format.
    #[error("this is not a safetensors file")]
    Format(#[from] SafeTensorError),
    /// A tensor is of another type.
    #[error("tensor `{name}` is of type {found}; weights are stored as F32")]
    Type {
        /// Name of the tensor.
        name: String,
        /// Its type.
        found: String,
    },
    /// Names or shapes differ.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
}

/// Puts the weights of a safetensors file into a model.
pub(crate) fn load_weights<M: Module>(bytes: &[u8], model: &mut M) -> Result<(), LoadWeights> {
    Ok(write_parameters(model, parse_weights(bytes)?)?)
}

/// The tensors of a safetensors file in the order of their names. The library gives them in that of a hash map, which is
/// another each time, and keys are made of them.
pub(crate) fn parse_weights(bytes: &[u8]) -> Result<Vec<Parameter>, LoadWeights> {
    let mut tensors = SafeTensors::deserialize(bytes)?.tensors();
    tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut parameters = vec![];
    for (name, view) in tensors {
        if view.dtype() != Dtype::F32 {
            return Err(LoadWeights::Type { name, found: format!("{:?}", view.dtype()) });
        }
        let (shape, values) = (view.shape().to_vec(), floats(view.data()));
        parameters.push(Parameter { name, shape, values });
    }
    Ok(parameters)
}

fn named<'a>(layouts: &'a [Layout], values: &'a [Vec<f32>]) -> TensorFile<'a> {
    let mut file = TensorFile::default();
    for (layout, values) in layouts.iter().zip(values) {
        file.numbers(layout.name.clone(), layout, values);
    }
    file
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let floats = bytes.as_chunks::<4>().0.iter();
    floats.map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
