//! How a launch of attention is cut, on tensor cores or without, or that it must be composed.

use burn::tensor::DType;

use super::{Hardware, Strips};
use crate::cpu::AttentionSizes;

/// Threads of a cube: queries, or keys.
const THREADS: usize = 64;

/// Rows in shared memory at once, if they fit.
const TILE: usize = 32;

/// Numbers of a head that a thread can have in registers several times.
const LARGEST: usize = 128;

/// Buffers of the backward kernel with most of them, and one for the sizes: for three inputs, and for all
/// in one.
const BUFFERS: [usize; 2] = [11, 9];

/// What the kernels with a row a thread are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AttentionPlan {
    /// Numbers of a head.
    pub(crate) size: usize,
    /// Rows in shared memory at once; a multiple of 8.
    pub(crate) tile: usize,
    /// Threads of a cube.
    pub(crate) threads: usize,
    /// Whether queries, keys and values are one tensor.
    pub(crate) packed: bool,
    pub(crate) causal: bool,
    pub(crate) windowed: bool,
    pub(crate) dropped: bool,
}

impl AttentionPlan {
    /// Vectors of four that a row takes.
    pub(crate) fn vectors(&self) -> usize {
        self.size.div_ceil(4)
    }

    /// Where queries (`part` 0), keys (1) or values (2) are in a list of inputs, or keys (0) and values (1)
    /// in one of gradients: in the only tensor, if all are one.
    pub(crate) fn which(&self, part: usize) -> usize {
        if self.packed { 0 } else { part }
    }

    /// Bytes of shared memory of the kernel that needs most.
    pub(super) fn shared_bytes(&self) -> usize {
        self.tile * (2 * self.vectors() * 16 + 3 * 4)
    }
}

/// How a launch is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttentionCut {
    /// A thread has a row.
    Threads(AttentionPlan),
    /// A plane has a strip of rows, on tensor cores.
    Strips(Strips),
}

impl AttentionCut {
    /// Rows of a cube.
    fn rows(&self) -> usize {
        match self {
            Self::Threads(plan) => plan.threads,
            Self::Strips(strips) => strips.rows(),
        }
    }

    /// Whether queries, keys and values are one tensor.
    pub(crate) fn packed(&self) -> bool {
        match self {
            Self::Threads(plan) | Self::Strips(Strips { plan, .. }) => plan.packed,
        }
    }

    /// Threads of a cube.
    pub(crate) fn dim(&self) -> [usize; 2] {
        match self {
            Self::Threads(plan) => [plan.threads, 1],
            Self::Strips(strips) => strips.dim(),
        }
    }

    /// Cubes of a launch over so many rows, of queries or of keys, of each head.
    pub(crate) fn count(&self, rows: usize, sizes: &AttentionSizes) -> [usize; 2] {
        [rows.div_ceil(self.rows()), sizes.batch * sizes.heads]
    }
}

/// The attention that is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionTask {
    pub(crate) sizes: AttentionSizes,
    pub(crate) dtype: DType,
    /// Whether queries, keys and values are one tensor.
    pub(crate) packed: bool,
    pub(crate) causal: bool,
    /// Whether queries see keys within a window, for which there are no kernels on tensor cores.
    pub(crate) windowed: bool,
    pub(crate) dropped: bool,
    /// Whether tensor cores are used where they can be.
    pub(crate) cores: bool,
}

impl AttentionTask {
    /// How it is cut on a device; `None` where it cannot be.
    pub(crate) fn cut(&self, hardware: &Hardware) -> Option<AttentionCut> {
        let plan = self.plan(hardware)?;
        let halves = matches!(self.dtype, DType::F16 | DType::BF16);
        let strips = (self.cores && halves && !self.windowed)
            .then(|| Strips::new(hardware, self.dtype, plan))
            .flatten();
        let rows = self.sizes.queries.max(self.sizes.keys);
        let counted = |cut: &AttentionCut| {
            let ([x, y], [widest, highest]) = (cut.count(rows, &self.sizes), hardware.count);
            x <= widest && y <= highest
        };
        let cuts = strips.map(AttentionCut::Strips).into_iter();
        cuts.chain([AttentionCut::Threads(plan)]).find(counted)
    }

    fn plan(&self, hardware: &Hardware) -> Option<AttentionPlan> {
        let threads = THREADS.min(hardware.threads);
        let Self { packed, causal, windowed, dropped, .. } = *self;
        let size = self.sizes.size;
        let plan = |tile| AttentionPlan { size, tile, threads, packed, causal, windowed, dropped };
        let fits = |plan: &AttentionPlan| plan.shared_bytes() <= hardware.shared_memory;
        let mut plans = [TILE, TILE / 2, TILE / 4].into_iter().map(plan);
        plans.find(fits).filter(|_| size <= LARGEST)
    }

    /// Whether the kernels can be had on a device.
    pub(crate) fn fits(&self, hardware: &Hardware) -> bool {
        let AttentionSizes { batch, queries, keys, heads, size } = self.sizes;
        let numbers = batch * queries.max(keys) * heads * size * 3;
        hardware.bindings >= BUFFERS[usize::from(self.packed)]
            && numbers <= u32::MAX as usize
            && self.cut(hardware).is_some()
    }

    /// Whether a launch multiplies on tensor cores.
    pub(crate) fn on_cores(&self, hardware: &Hardware) -> bool {
        matches!(self.cut(hardware), Some(AttentionCut::Strips(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{CUDA, hardware, with_cores};
    use super::*;

    /// Causal attention with dropout of one head of `size` numbers, in bf16 and from one tensor.
    fn task(size: usize) -> AttentionTask {
        let sizes = AttentionSizes { batch: 2, queries: 100, keys: 100, heads: 1, size };
        let dtype = DType::BF16;
        AttentionTask {
            sizes,
            dtype,
            packed: true,
            causal: true,
            windowed: false,
            dropped: true,
            cores: true,
        }
    }

    /// Rows in shared memory at once and threads of a cube, where a thread has a row.
    fn check(hardware: &Hardware, task: AttentionTask, expected: Option<(usize, usize)>) {
        let found = match task.cut(hardware) {
            Some(AttentionCut::Threads(plan)) => Some((plan.tile, plan.threads)),
            Some(AttentionCut::Strips(strips)) => panic!("on tensor cores: {strips:?}"),
            None => None,
        };
        assert_eq!(found, expected, "{task:?} on {hardware:?}");
    }

    #[test]
    fn without_tensor_cores_a_thread_has_a_row() {
        let large = hardware(48 * 1024, 1024, Some(64));
        check(&large, task(128), Some((32, 64)));
        check(&large, task(129), None);
        let small = hardware(16 * 1024, 32, None);
        check(&small, task(1), Some((32, 32)));
        check(&small, task(64), Some((16, 32)));
        check(&small, task(128), Some((8, 32)));
        check(&hardware(8 * 1024, 32, None), task(128), None);
    }

    #[test]
    fn tensor_cores_are_taken_in_half_precision_where_they_are_allowed_and_have_the_cubes() {
        let hopper = with_cores(hardware(227 * 1024, 1024, Some(132)), &CUDA);
        let task = task(64);
        assert!(task.on_cores(&hopper));
        check(&hopper, AttentionTask { cores: false, ..task }, Some((32, 64)));
        check(&hopper, AttentionTask { dtype: DType::F32, ..task }, Some((32, 64)));
        check(&hopper, AttentionTask { windowed: true, ..task }, Some((32, 64)));
        let no_barrier = Hardware { plane_barrier: false, ..hopper.clone() };
        check(&no_barrier, task, Some((32, 64)));
        // Four strips of 16 rows are as many as 64 threads; of 8 rows, half as many.
        let narrow = with_cores(hopper.clone(), &[[8, 32, 16]]);
        let wide = Hardware { count: [2, 2], ..narrow };
        check(&wide, task, Some((32, 64)));
        check(&Hardware { count: [1, 2], ..hopper.clone() }, task, None);
        check(&Hardware { count: [2, 1], ..hopper }, task, None);
    }

    #[test]
    fn buffers_and_32_bits_limit_what_is_taken() {
        let device = hardware(48 * 1024, 1024, Some(64));
        let few = Hardware { bindings: 10, ..device.clone() };
        let apart = AttentionTask { packed: false, ..task(64) };
        assert!(task(64).fits(&few) && !apart.fits(&few) && apart.fits(&device));
        let sizes = AttentionSizes { batch: 100, queries: 1, keys: 1 << 18, heads: 2, size: 64 };
        assert!(!AttentionTask { sizes, ..task(64) }.fits(&device));
    }
}
