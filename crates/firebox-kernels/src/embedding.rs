//! Rows of a table by their numbers, with a gradient that costs as much as the rows that were used.
//!
//! The gradient of the table is whole, with zeros in the rows that were not used, so every optimizer
//! does with it exactly what it does in PyTorch with a dense gradient: AdamW decays the weights and
//! moments of unused rows, too. What is saved is making it: the memory of the gradient is kept from
//! one backward pass to the next, and only rows that were used last time are cleared. Rows are summed
//! in the order in which they occur, whatever the number of threads, on GPUs with kernels of this crate as
//! well.

use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(feature = "cube")]
use burn::backend::Dispatch;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex, TensorMetadata};
use burn::nn::Embedding;
#[cfg(feature = "cube")]
use burn::tensor::DType;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::cpu::{self, CpuKernels};
#[cfg(feature = "cube")]
use crate::cube::EmbeddingOps;
#[cfg(feature = "cube")]
use crate::cuts::GpuKernels;
use crate::device::{flex, flex_in_graph, is_flex};
use crate::operands::{Operand, listed, operand, together};
use crate::profile::kernel_span;

type Primitive = FloatTensor<Flex>;

/// The rows of an embedding by their numbers, as [`Embedding::forward`] gives them.
///
/// `padding` is the number of a row whose gradient is always zero, as `padding_idx` of
/// `torch.nn.Embedding`.
///
/// # Shapes
/// - indices: `[batch, time]`, each below the number of rows
/// - returns `[batch, time, width]`
///
/// # Panics
/// If `padding` names no row. On Burn's CPU backend, in any type and way, if an index names no row; the message holds
/// it. On other devices that is left to their own gather, which may read any row for it, and indices that are elsewhere
/// are refused. The message holds the shapes and types.
#[track_caller]
pub fn embedding(layer: &Embedding, indices: Tensor<2, Int>, padding: Option<usize>) -> Tensor<3> {
    let ([batch, time], table) = (indices.dims(), layer.weight.val());
    let [rows, width] = table.dims();
    assert!(
        padding.is_none_or(|row| row < rows),
        "the padding of an embedding is row {padding:?}, and its table has {rows} rows ({})",
        listed([operand("indices", &indices), operand("table", &table)])
    );
    let fits = is_flex(&table) && batch * time * rows * width > 0;
    if !fits || CpuKernels::fused().is_none() {
        return elsewhere(layer, indices, padding);
    }
    let indices = numbers(indices, rows, operand("table", &table));
    let shape = [batch, time, width];
    let run = |table: &Primitive| {
        let numbers = 2 * batch * time * width;
        let _span = kernel_span!("embedding", [batch, time, rows, width], 0, numbers, false);
        let values = cpu::gather(table.storage(), width, &indices);
        Primitive::from_data(TensorData::new(values, shape))
    };
    if !table.is_autodiff() {
        return Tensor::from_primitive::<Flex>(run(&flex(table).to_contiguous()));
    }
    let (table, guard) = flex_in_graph(table).into_parts();
    let table = table.to_contiguous();
    let prepared = Gathered.prepare::<NoCheckpointing>([guard]).compute_bound().stateful();
    let out = run(&table);
    let padding = padding.and_then(|row| u32::try_from(row).ok());
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => {
            prepared.finish(Tape { shape: [rows, width], indices, padding }, out)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(out),
    })
}

/// Where the CPU kernels do not run: with the gradient of a GPU kernel, else composed of Burn's own operations.
#[track_caller]
fn elsewhere(layer: &Embedding, indices: Tensor<2, Int>, padding: Option<usize>) -> Tensor<3> {
    let table = layer.weight.val();
    together("an embedding", [operand("indices", &indices), operand("table", &table)]);
    if table.device() == Device::flex() {
        // Burn's gather refuses them, too, but names neither shapes nor types.
        let [rows, _] = table.dims();
        numbers(indices.clone(), rows, operand("table", &table));
    }
    #[cfg(feature = "cube")]
    if let Some(rows) = on_gpu(table, &indices, padding) {
        return rows;
    }
    let rows = layer.forward(indices.clone());
    let [batch, time] = indices.dims();
    // Burn expands nothing to nothing.
    let some = rows.shape().num_elements() > 0;
    let Some(padding) = padding.filter(|_| some) else { return rows };
    let passed = indices.equal_elem(padding as i64).reshape([batch, time, 1]);
    let fixed = rows.clone().detach();
    rows.clone().mask_where(passed.expand(rows.dims()), fixed)
}

/// By the kernels of a GPU, if they take these tensors.
#[cfg(feature = "cube")]
fn on_gpu(table: Tensor<2>, indices: &Tensor<2, Int>, padding: Option<usize>) -> Option<Tensor<3>> {
    let ([batch, time], [rows, width]) = (indices.dims(), table.dims());
    let device = table.device().without_autodiff();
    let within = |size: usize| (1..=i32::MAX as usize).contains(&size);
    let takes = within(rows * width)
        && within(batch * time * width)
        && indices.device().without_autodiff() == device
        && GpuKernels::takes(&device, table.dtype()).is_ok();
    takes.then(|| {
        let flat = indices.clone().reshape([batch * time]);
        let flat = if flat.dtype() == DType::I32 { flat } else { flat.cast(DType::I32) };
        let passed = padding.and_then(|row| u32::try_from(row).ok());
        let gathered = <Dispatch as EmbeddingOps>::firebox_embedding(
            table.into_dispatch(),
            flat.into_dispatch(),
            passed,
        );
        Tensor::<2>::from_dispatch(gathered).reshape([batch, time, width])
    })
}

/// Indices on the host.
#[track_caller]
fn numbers(indices: Tensor<2, Int>, rows: usize, table: Operand<'_>) -> Vec<u32> {
    // The message alone would hold the tensor, and so make a copy of its numbers.
    let (shape, dtype) = (indices.dims(), indices.dtype());
    let data = indices.into_data();
    let check = |index: i64| match u32::try_from(index) {
        Ok(row) if (row as usize) < rows => row,
        _ => panic!(
            "the index {index} names no row of an embedding of {rows} rows (indices {shape:?} in {dtype:?}, {table})"
        ),
    };
    data.iter::<i64>().map(check).collect()
}

/// What the gradient is computed from.
#[derive(Clone, Debug)]
struct Tape {
    /// Rows and width of the table.
    shape: [usize; 2],
    indices: Vec<u32>,
    padding: Option<u32>,
}

#[derive(Debug)]
struct Gathered;

impl Backward<Flex, 1> for Gathered {
    type State = Tape;

    fn backward(self, ops: Ops<Tape, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<Flex>(&ops.node).to_contiguous();
        let Tape { shape, indices, padding } = ops.state;
        let [parent] = ops.parents;
        if let Some(parent) = parent {
            let gradient = table_gradient(shape, &indices, d.storage(), padding);
            grads.register::<Flex>(parent.id, gradient);
        }
    }
}

/// A gradient that was given out, and the rows of it that are not zero.
struct Lent {
    gradient: Primitive,
    rows: Vec<u32>,
}

/// Gradients that are kept at most: those of the tables of one model, the last used last.
const KEPT: usize = 8;

static LENT: Mutex<Vec<Lent>> = Mutex::new(vec![]);

fn lent() -> MutexGuard<'static, Vec<Lent>> {
    // Nothing in here can leave the list half changed.
    LENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives up the memory of gradients that nobody holds any more, and forgets those that somebody does:
/// they are freed with their last holder.
pub(crate) fn release_gradients() {
    let all = std::mem::take(&mut *lent());
    drop(all);
}

/// Bytes of the gradients that somebody holds, and of all that are kept.
pub(crate) fn gradient_bytes() -> [u64; 2] {
    let lent = lent();
    let bytes = |gradients: &mut dyn Iterator<Item = &Lent>| -> u64 {
        gradients.map(|own| (own.gradient.shape().num_elements() * size_of::<f32>()) as u64).sum()
    };
    let held = bytes(&mut lent.iter().filter(|own| !own.gradient.is_unique()));
    [held, bytes(&mut lent.iter())]
}

/// The gradient of a table, in memory that an earlier one had and nobody holds any more.
fn table_gradient(
    [rows, width]: [usize; 2],
    indices: &[u32],
    d: &[f32],
    padding: Option<u32>,
) -> Primitive {
    let found = {
        let mut lent = lent();
        let fits = |lent: &Lent| {
            lent.gradient.is_unique() && lent.gradient.shape().as_slice() == [rows, width]
        };
        lent.iter().position(fits).map(|place| lent.remove(place))
    };
    let mut kept = match found {
        Some(mut kept) => {
            cpu::clear(kept.gradient.storage_mut(), width, &kept.rows);
            kept
        }
        None => {
            let zeros = TensorData::new(cpu::zeros(rows * width), [rows, width]);
            Lent { gradient: Primitive::from_data(zeros), rows: vec![] }
        }
    };
    kept.rows = cpu::scatter(kept.gradient.storage_mut(), width, indices, d, padding);
    let gradient = kept.gradient.clone();
    let mut lent = lent();
    lent.push(kept);
    let over = lent.len().saturating_sub(KEPT);
    lent.drain(..over);
    gradient
}
