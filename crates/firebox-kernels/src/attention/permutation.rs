//! Rows in another order, with a gradient that is the way back: each row is copied once, forward and
//! backward, and nothing is added up.

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

#[cfg(feature = "cube")]
use burn::backend::Dispatch;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex, TensorMetadata};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::cpu::{self, CpuKernels};
#[cfg(feature = "cube")]
use crate::cube::PermutationOps;
#[cfg(feature = "cube")]
use crate::cuts::GpuKernels;
use crate::device::{flex, flex_in_graph, is_flex};
use crate::profile::kernel_span;

type Primitive = FloatTensor<Flex>;

/// An order of rows. What has to be in the memory of a device is put there once, for all tensors and the way back.
pub(super) struct Permutation {
    /// Which row comes to each place.
    rows: List,
    /// To which place each row goes.
    places: List,
}

/// Numbers of rows.
#[derive(Clone)]
struct List {
    here: Arc<[u32]>,
    /// The same in the memory of the first device that asked for it, in no graph; clones share it.
    there: Rc<OnceCell<Tensor<1, Int>>>,
}

impl List {
    fn new(here: Vec<u32>) -> Self {
        Self { here: here.into(), there: Rc::default() }
    }

    /// On a device without a graph.
    fn on(&self, device: &Device) -> Tensor<1, Int> {
        let there = self.there.get_or_init(|| indices(&self.here, device));
        if there.device() == *device { there.clone() } else { indices(&self.here, device) }
    }
}

impl Permutation {
    /// The order in which these rows come, each of `0..rows.len()` once.
    pub(super) fn new(rows: Vec<u32>) -> Self {
        let mut places = vec![0_u32; rows.len()];
        for (row, place) in rows.iter().zip(0..) {
            places[*row as usize] = place;
        }
        Self { rows: List::new(rows), places: List::new(places) }
    }

    /// The way back.
    pub(super) fn inverse(&self) -> Self {
        Self { rows: self.places.clone(), places: self.rows.clone() }
    }

    /// The rows of all samples, `[batch, rows, width]`, in this order.
    pub(super) fn permute(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, rows, width] = x.dims();
        if batch * rows * width == 0 {
            return x;
        }
        let flat = x.reshape([batch * rows, width]);
        let permuted = match CpuKernels::fused().filter(|_| is_flex(&flat)) {
            Some(_) => self.on_cpu(flat),
            None => self.elsewhere(flat),
        };
        permuted.reshape([batch, rows, width])
    }

    fn on_cpu(&self, x: Tensor<2>) -> Tensor<2> {
        if !x.is_autodiff() {
            return Tensor::from_primitive::<Flex>(gathered(&flex(x), &self.rows.here));
        }
        let (x, guard) = flex_in_graph(x).into_parts();
        let prepared = Permuted.prepare::<NoCheckpointing>([guard]).compute_bound().stateful();
        let out = gathered(&x, &self.rows.here);
        Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
            OpsKind::Tracked(prepared) => prepared.finish(self.places.here.clone(), out),
            OpsKind::UnTracked(prepared) => prepared.finish(out),
        })
    }

    /// Where the CPU kernels do not run: by Burn's operation, in a graph on a GPU with a gradient of its own.
    fn elsewhere(&self, x: Tensor<2>) -> Tensor<2> {
        let device = x.device().without_autodiff();
        #[cfg(feature = "cube")]
        if x.is_autodiff() && GpuKernels::takes(&device, x.dtype()).is_ok() {
            let permuted = <Dispatch as PermutationOps>::firebox_permute(
                x.into_dispatch(),
                self.rows.on(&device).into_dispatch(),
                self.places.on(&device).into_dispatch(),
            );
            return Tensor::from_dispatch(permuted);
        }
        x.select(0, self.rows.on(&device))
    }
}

fn indices(rows: &[u32], device: &Device) -> Tensor<1, Int> {
    let rows: Vec<i32> = rows.iter().map(|row| row.cast_signed()).collect();
    let count = rows.len();
    Tensor::from_data(TensorData::new(rows, [count]), (device, DType::I32))
}

/// These rows of `[rows, width]`.
fn gathered(x: &Primitive, rows: &[u32]) -> Primitive {
    let [count, width] = x.shape().dims();
    let _span = kernel_span!("permutation", [count, width], 0, 2 * count * width, false);
    let values = cpu::gather(x.to_contiguous().storage(), width, rows);
    Primitive::from_data(TensorData::new(values, [count, width]))
}

#[derive(Debug)]
struct Permuted;

impl Backward<Flex, 1> for Permuted {
    /// To which place each row went.
    type State = Arc<[u32]>;

    fn backward(self, ops: Ops<Arc<[u32]>, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<Flex>(&ops.node);
        let [parent] = ops.parents;
        if let Some(parent) = parent {
            grads.register::<Flex>(parent.id, gathered(&d, &ops.state));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_put_on_a_device_once_and_only_where_they_are_needed() {
        let device = Device::flex();
        let x = Tensor::<3>::from_data([[[0.0_f32], [1.0], [2.0]], [[3.0], [4.0], [5.0]]], &device);
        let values = |x: &Tensor<3>| x.to_data().iter::<f32>().collect::<Vec<_>>();
        for kernels in CpuKernels::available() {
            kernels.force(|| {
                let order = Permutation::new(vec![2, 0, 1, 4, 5, 3]);
                let moved = order.permute(x.clone());
                assert_eq!(values(&moved), [2.0, 0.0, 1.0, 4.0, 5.0, 3.0], "{kernels:?}");
                let composed = kernels == CpuKernels::Composed;
                let there = |list: &List| list.there.get().is_some();
                assert_eq!([there(&order.rows), there(&order.places)], [composed, false]);
                assert_eq!(values(&order.inverse().permute(moved)), values(&x), "{kernels:?}");
                // What the way back puts there, the way there finds.
                assert_eq!([there(&order.rows), there(&order.places)], [composed; 2]);
                // In a graph from lists that are in none.
                let x = Tensor::from_inner(x.clone()).require_grad();
                let scales = Tensor::<3>::from_inner(Tensor::from_data(
                    [[[1.0_f32], [2.0], [3.0]], [[4.0], [5.0], [6.0]]],
                    &device,
                ));
                let all = (order.permute(x.clone()) * scales).sum().backward();
                let d = x.grad(&all).map(|d| values(&d));
                assert_eq!(d, Some(vec![2.0, 3.0, 1.0, 6.0, 4.0, 5.0]), "{kernels:?}");
            });
        }
    }
}
