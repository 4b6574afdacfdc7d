//! A file in the safetensors format that is written tensor by tensor: beside what the tensors are made
//! of, no more than one of them is in memory, twice if it is turned.

use std::io::{Error, Write};

use firebox_models::Layout;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

/// Bytes that are handed on at once.
const AT_ONCE: usize = 1 << 16;

/// Tensors under their names.
#[derive(Default)]
pub(crate) struct TensorFile<'a>(Vec<Entry<'a>>);

struct Entry<'a> {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    content: Content<'a>,
}

enum Content<'a> {
    /// Numbers of a parameter in the module's layout.
    Numbers(&'a Layout, &'a [f32]),
    Count(u64),
}

impl<'a> TensorFile<'a> {
    /// Adds numbers of a parameter, which lie as in the module; the file has them as PyTorch does.
    pub(crate) fn numbers(&mut self, name: String, layout: &'a Layout, values: &'a [f32]) {
        let (dtype, shape) = (Dtype::F32, layout.torch_shape());
        self.0.push(Entry { name, dtype, shape, content: Content::Numbers(layout, values) });
    }

    /// Adds a whole number.
    pub(crate) fn count(&mut self, name: String, count: u64) {
        let (dtype, shape) = (Dtype::U64, vec![]);
        self.0.push(Entry { name, dtype, shape, content: Content::Count(count) });
    }

    /// Writes the file, in the order of `safetensors::serialize`: by size of the type, then by name.
    pub(crate) fn write(mut self, out: &mut impl Write) -> Result<(), Error> {
        self.0.sort_by(|a, b| b.dtype.cmp(&a.dtype).then_with(|| a.name.cmp(&b.name)));
        let mut end = 0;
        let tensors = self.0.iter().map(|Entry { name, dtype, shape, .. }| {
            let (dtype, shape, start) = (*dtype, shape.clone(), end);
            end += shape.iter().product::<usize>() * dtype.bitsize() / 8;
            (name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
        });
        let metadata = Metadata::new(None, tensors.collect()).map_err(Error::other)?;
        let mut header = serde_json::to_vec(&metadata)?;
        header.resize(header.len().next_multiple_of(size_of::<u64>()), b' ');
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        for Entry { content, .. } in self.0 {
            match content {
                Content::Numbers(layout, values) if layout.transposed => {
                    write_numbers(&layout.to_torch(values.to_vec()), out)?;
                }
                Content::Numbers(_, values) => write_numbers(values, out)?,
                Content::Count(count) => out.write_all(&count.to_le_bytes())?,
            }
        }
        Ok(())
    }
}

fn write_numbers(values: &[f32], out: &mut impl Write) -> Result<(), Error> {
    let mut bytes = Vec::with_capacity(AT_ONCE.min(size_of_val(values)));
    for values in values.chunks(AT_ONCE / size_of::<f32>()) {
        bytes.clear();
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        out.write_all(&bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn the_file_is_that_of_the_library() {
        let layout = |name: &str, shape: &[usize], transposed| Layout {
            name: name.to_owned(),
            shape: shape.to_vec(),
            transposed,
        };
        let sizes =
            [("b.weight", &[3, 5][..], true), ("a", &[2, 3, 4], false), ("empty", &[0], false)];
        let mut layouts =
            sizes.map(|(name, shape, transposed)| layout(name, shape, transposed)).to_vec();
        // More than is handed on at once.
        layouts.push(layout("c", &[AT_ONCE / 4 + 7], false));
        let values: Vec<Vec<f32>> = (layouts.iter())
            .map(|layout| {
                (0..layout.shape.iter().product()).map(|i: usize| i as f32 - 1.5).collect()
            })
            .collect();
        let (mut file, mut expected) = (TensorFile::default(), vec![]);
        for (layout, values) in layouts.iter().zip(&values) {
            file.numbers(layout.name.clone(), layout, values);
            file.count(format!("step.{}", layout.name), 7 + values.len() as u64);
            let bytes: Vec<u8> = layout
                .to_torch(values.clone())
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            expected.push((layout.name.clone(), Dtype::F32, layout.torch_shape(), bytes));
            let count = (7 + values.len() as u64).to_le_bytes().to_vec();
            expected.push((format!("step.{}", layout.name), Dtype::U64, vec![], count));
        }
        let views = expected.iter().map(|(name, dtype, shape, bytes)| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        let expected = safetensors::serialize(views, None).unwrap();
        let mut written = vec![];
        file.write(&mut written).unwrap();
        assert!(written == expected, "{} and {} bytes", written.len(), expected.len());
        let mut nothing = vec![];
        TensorFile::default().write(&mut nothing).unwrap();
        assert!(
            nothing == safetensors::serialize(Vec::<(&str, TensorView<'_>)>::new(), None).unwrap()
        );
    }

    #[test]
    fn a_full_disk_is_an_error() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> Result<usize, Error> {
                Err(Error::from(std::io::ErrorKind::StorageFull))
            }
            fn flush(&mut self) -> Result<(), Error> {
                Ok(())
            }
        }
        let error = TensorFile::default().write(&mut Full).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }
}
