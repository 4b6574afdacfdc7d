//! Tensors of Burn's CPU backend as matrices that products read where they lie: transposed ones, parts of others and
//! spread ones, too.

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;

use crate::cpu::{Matrices, Matrix, distances};

type Primitive = FloatTensor<Flex>;

/// A tensor whose last two axes are matrices that products can read: as it is, or a copy.
pub(crate) fn readable(x: Primitive) -> Primitive {
    let layout = x.layout();
    let (Some((outer, strides)), Some((others, sizes))) =
        (layout.strides().split_last_chunk(), layout.shape().split_last_chunk())
    else {
        unreachable!("two axes at least")
    };
    let matrices = distances(*sizes, *strides).is_some();
    let forwards = outer.iter().zip(others).all(|(stride, size)| *size < 2 || *stride >= 0);
    if matrices && forwards { x } else { x.to_contiguous() }
}

/// The numbers of a [`readable`] tensor of two axes.
pub(crate) fn matrix(x: &Primitive) -> Matrix<'_> {
    let Matrices { values, starts, sizes, strides } = matrices(x);
    let [start] = *starts else { unreachable!("two axes") };
    Matrix::strided(&values[start.min(values.len())..], sizes, strides)
}

/// The matrices of a [`readable`] tensor, in row-major order of the axes before their own.
pub(crate) fn matrices(x: &Primitive) -> Matrices<'_> {
    let layout = x.layout();
    let (Some((outer, strides)), Some((others, sizes))) =
        (layout.strides().split_last_chunk(), layout.shape().split_last_chunk())
    else {
        unreachable!("two axes at least")
    };
    let Some(strides) = distances(*sizes, *strides) else { unreachable!("a readable tensor") };
    let mut starts = vec![layout.start_offset()];
    for (stride, size) in outer.iter().zip(others) {
        let along =
            |start: usize| (0..*size).map(move |at| start + at * stride.max(&0).unsigned_abs());
        starts = starts.into_iter().flat_map(along).collect();
    }
    Matrices { values: x.storage::<f32>(), starts, sizes: *sizes, strides }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor};

    use super::*;
    use crate::device::flex;

    /// Where the numbers of a tensor begin, and those of what is read of it.
    fn places<const D: usize>(x: Tensor<D>) -> [*const f32; 2] {
        let x = flex(x);
        [x.storage::<f32>().as_ptr(), readable(x.clone()).storage::<f32>().as_ptr()]
    }

    #[test]
    fn what_lies_in_pieces_is_not_copied() {
        let x = Tensor::<4>::ones([2, 3, 5, 7], &Device::flex());
        for x in [
            x.clone(),
            x.clone().swap_dims(2, 3),
            x.clone().swap_dims(1, 2),
            x.clone().narrow(2, 1, 3).narrow(3, 2, 4),
            x.clone().narrow(3, 2, 4).swap_dims(2, 3),
            x.clone().narrow(0, 1, 1).expand([6, 3, 5, 7]),
            x.clone().narrow(2, 4, 1).expand([2, 3, 9, 7]),
            // A single column is a row that lies apart.
            x.clone().narrow(3, 6, 1),
            x.clone().narrow(3, 6, 1).swap_dims(2, 3),
            x.clone().narrow(1, 2, 1).flip([1]),
        ] {
            let [at, read] = places(x.clone());
            assert_eq!(at, read, "{:?}", flex(x).layout());
        }
        for x in [x.clone().flip([0]), x.clone().flip([3]), x.permute([2, 3, 0, 1])] {
            let [at, read] = places(x.clone());
            assert_ne!(at, read, "{:?}", flex(x).layout());
        }
    }
}
