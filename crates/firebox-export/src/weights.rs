//! Parameters as a safetensors file and back, under PyTorch's names and in its layout.

use std::collections::HashMap;
use std::path::Path;

use firebox_models::Parameter;
use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::ExportError;

/// A safetensors file of f32 with these parameters, which PyTorch loads with
/// `load_state_dict(safetensors.torch.load_file(path))`.
///
/// # Errors
/// If two parameters have one name, or the values of one do not fill its shape.
///
/// # Example
/// ```
/// use firebox_export::{parameters_from_safetensors, safetensors};
/// use firebox_models::Parameter;
///
/// let bias = Parameter { name: "bias".to_owned(), shape: vec![2], values: vec![1.0, -1.0] };
/// let file = safetensors(&[bias.clone()], &[("made_by".to_owned(), "an example".to_owned())])?;
/// assert_eq!(parameters_from_safetensors(&file, "example.safetensors".as_ref())?, [bias]);
/// # Ok::<(), firebox_export::ExportError>(())
/// ```
pub fn safetensors(
    parameters: &[Parameter],
    metadata: &[(String, String)],
) -> Result<Vec<u8>, ExportError> {
    let bytes: Vec<Vec<u8>> = parameters
        .iter()
        .map(|one| one.values.iter().flat_map(|value| value.to_le_bytes()).collect())
        .collect();
    let mut views = Vec::with_capacity(parameters.len());
    for (parameter, bytes) in parameters.iter().zip(&bytes) {
        let view = TensorView::new(Dtype::F32, parameter.shape.clone(), bytes)?;
        views.push((parameter.name.as_str(), view));
    }
    let metadata: HashMap<String, String> = metadata.iter().cloned().collect();
    let metadata = (!metadata.is_empty()).then_some(metadata);
    Ok(safetensors::serialize(views, metadata)?)
}

/// The parameters of a safetensors file, in the order of their names. Types of 16 and 64 bits become
/// f32; whole numbers, such as the `num_batches_tracked` of PyTorch's batch normalisation, are no
/// parameters and are left out.
///
/// # Errors
/// If it is no safetensors file, or a type cannot be read. `path` only names it.
pub fn parameters_from_safetensors(
    bytes: &[u8],
    path: &Path,
) -> Result<Vec<Parameter>, ExportError> {
    let refuse = |reason: String| ExportError::Weights { path: path.to_path_buf(), reason };
    let file = SafeTensors::deserialize(bytes).map_err(|error| refuse(error.to_string()))?;
    let mut parameters = Vec::new();
    for (name, view) in file.tensors() {
        let data = view.data();
        let values: Vec<f32> = match view.dtype() {
            Dtype::F32 => four(data).map(f32::from_le_bytes).collect(),
            Dtype::F16 => two(data).map(|two| f16::from_le_bytes(two).to_f32()).collect(),
            Dtype::BF16 => two(data).map(|two| bf16::from_le_bytes(two).to_f32()).collect(),
            Dtype::F64 => {
                data.as_chunks::<8>().0.iter().map(|all| f64::from_le_bytes(*all) as f32).collect()
            }
            Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 | Dtype::U8 | Dtype::BOOL => continue,
            other => {
                return Err(refuse(format!(
                    "`{name}` is of type {other:?}; f32, f16, bf16 and f64 can be read"
                )));
            }
        };
        parameters.push(Parameter { name, shape: view.shape().to_vec(), values });
    }
    parameters.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(parameters)
}

fn two(bytes: &[u8]) -> impl Iterator<Item = [u8; 2]> {
    bytes.as_chunks::<2>().0.iter().copied()
}

fn four(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    bytes.as_chunks::<4>().0.iter().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_float_type_is_read_and_whole_numbers_are_left_out() {
        let half: Vec<u8> =
            [1.5f32, -2.0].iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
        let brain: Vec<u8> =
            [0.5f32].iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
        let double = 0.1f64.to_le_bytes();
        let whole = 7i64.to_le_bytes();
        let view = |kind, shape, bytes| TensorView::new(kind, shape, bytes).unwrap();
        let file = safetensors::serialize(
            [
                ("half", view(Dtype::F16, vec![2], &half)),
                ("brain", view(Dtype::BF16, vec![1], &brain)),
                ("double", view(Dtype::F64, vec![1, 1], &double)),
                ("norm.num_batches_tracked", view(Dtype::I64, vec![], &whole)),
            ],
            None,
        )
        .unwrap();
        let found = parameters_from_safetensors(&file, "x".as_ref()).unwrap();
        let found: Vec<_> = found.iter().map(|p| (p.name.as_str(), p.values.clone())).collect();
        let expected = [("brain", vec![0.5f32]), ("double", vec![0.1]), ("half", vec![1.5, -2.0])];
        assert_eq!(found, expected);
        let error = parameters_from_safetensors(&file[..20], "w.safetensors".as_ref()).unwrap_err();
        assert!(error.to_string().starts_with("w.safetensors is not a usable"), "{error}");
    }
}
