//! Parameters as a safetensors file and back, under PyTorch's names and in its layout.

use std::collections::BTreeMap;
use std::path::Path;

use firebox_models::Parameter;
use half::{bf16, f16};
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::Serialize;

use crate::ExportError;

/// The header of a file. The library takes metadata in a hash map alone, whose order is another each time, and equal
/// models would have files of other hashes.
#[derive(Serialize)]
struct Header<'a> {
    #[serde(rename = "__metadata__", skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<&'a str, &'a str>,
    #[serde(flatten)]
    tensors: Metadata,
}

/// A safetensors file of f32 with these parameters, which PyTorch loads with
/// `load_state_dict(safetensors.torch.load_file(path))`. The same parameters and metadata give the same bytes, in
/// whatever order they come.
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
    let mut sorted: Vec<&Parameter> = parameters.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(ExportError::Twice { name: pair[0].name.clone() });
    }
    let mut end = 0;
    let tensors = sorted.iter().map(|one| {
        let start = end;
        end += size_of_val(one.values.as_slice());
        let (dtype, shape) = (Dtype::F32, one.shape.clone());
        (one.name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    });
    let tensors = Metadata::new(None, tensors.collect())?;
    let metadata = metadata.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let header = serde_json::to_vec(&Header { metadata, tensors });
    let mut header = header.map_err(SafeTensorError::from)?;
    header.resize(header.len().next_multiple_of(size_of::<u64>()), b' ');
    let mut file = Vec::with_capacity(size_of::<u64>() + header.len() + end);
    file.extend_from_slice(&(header.len() as u64).to_le_bytes());
    file.extend_from_slice(&header);
    for value in sorted.iter().flat_map(|one| &one.values) {
        file.extend_from_slice(&value.to_le_bytes());
    }
    Ok(file)
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
            Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 | Dtype::BOOL => continue,
            Dtype::U64 | Dtype::U32 | Dtype::U16 | Dtype::U8 => continue,
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
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn equal_models_have_equal_bytes_and_the_file_is_that_of_the_library() {
        let parameter = |name: &str, shape: &[usize]| Parameter {
            name: name.to_owned(),
            shape: shape.to_vec(),
            values: (0..shape.iter().product()).map(|i: usize| i as f32 - 1.5).collect(),
        };
        let mut parameters =
            vec![parameter("b.weight", &[3, 2]), parameter("a", &[]), parameter("empty", &[0])];
        let mut metadata: Vec<(String, String)> =
            (0..9).map(|i| (format!("firebox.{i}"), format!("{{\"number\": {i}}}"))).collect();
        let first = safetensors(&parameters, &metadata).unwrap();
        for _ in 0..50 {
            parameters.rotate_left(1);
            metadata.rotate_left(2);
            assert!(first == safetensors(&parameters, &metadata).unwrap());
        }
        let (header, read) = SafeTensors::read_metadata(&first).unwrap();
        assert_eq!(header % 8, 0);
        let read = read.metadata().clone().unwrap();
        assert!(read.len() == 9 && metadata.iter().all(|(name, text)| &read[name] == text));
        parameters.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(parameters_from_safetensors(&first, "x".as_ref()).unwrap(), parameters);

        let bytes: Vec<Vec<u8>> = parameters
            .iter()
            .map(|one| one.values.iter().flat_map(|value| value.to_le_bytes()).collect())
            .collect();
        let views = parameters.iter().zip(&bytes).map(|(one, bytes)| {
            (one.name.as_str(), TensorView::new(Dtype::F32, one.shape.clone(), bytes).unwrap())
        });
        let expected = safetensors::serialize(views, None).unwrap();
        assert!(expected == safetensors(&parameters, &[]).unwrap());
    }

    #[test]
    fn two_parameters_of_one_name_or_without_their_values_are_refused() {
        let one = Parameter { name: "a".to_owned(), shape: vec![2], values: vec![1.0, 2.0] };
        let twice = safetensors(&[one.clone(), one.clone()], &[]).unwrap_err();
        assert_eq!(twice.to_string(), "two parameters of the model have the name `a`");
        let short = Parameter { values: vec![1.0], ..one };
        assert!(matches!(safetensors(&[short], &[]), Err(ExportError::Serialize(_))));
    }

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
                ("step", view(Dtype::U64, vec![1], &whole)),
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
