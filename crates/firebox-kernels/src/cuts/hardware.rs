//! What a device offers to whoever cuts a launch.

use burn::tensor::DType;

use super::Shape;

/// What a device offers, as its driver tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hardware {
    /// Shared memory that a cube may have, bytes.
    pub(crate) shared_memory: usize,
    /// Threads that a cube may have.
    pub(crate) threads: usize,
    /// Threads of a cube along each axis, at most.
    pub(crate) dim: [usize; 2],
    /// Cubes of a launch along each axis, at most.
    pub(crate) count: [usize; 2],
    /// Buffers that a kernel may have.
    pub(crate) bindings: usize,
    /// Fewest and most threads of a plane (a warp, a subgroup), which run in step.
    pub(crate) plane: [usize; 2],
    /// Whether the threads of a plane can wait for each other alone.
    pub(crate) plane_barrier: bool,
    /// Processors (streaming multiprocessors), where they are told.
    pub(crate) processors: Option<usize>,
    /// What its tensor cores multiply, numbers of which type, and sum in f32.
    pub(crate) cores: Vec<(DType, Shape)>,
    /// The types that NVIDIA's `mma.m16n8k16` multiplies, summed in f32, and `ldmatrix` reads for it.
    pub(crate) by_hand: Vec<DType>,
}

/// Taken where a device does not say how many processors it has (WebGPU, Metal).
const PROCESSORS: usize = 32;

impl Hardware {
    /// Threads of a plane, where all planes have as many.
    pub(super) fn lanes(&self) -> Option<usize> {
        let [fewest, most] = self.plane;
        (most > 0 && fewest == most).then_some(most)
    }

    /// Processors, or a guess.
    pub(super) fn processors(&self) -> usize {
        self.processors.unwrap_or(PROCESSORS).max(1)
    }

    /// What tensor cores multiply in this type, of what kernels can be cut for.
    pub(super) fn shapes(&self, dtype: DType) -> Vec<Shape> {
        let of_type = self.cores.iter().filter(|(of, _)| *of == dtype);
        of_type.map(|(_, shape)| *shape).filter(Shape::usable).collect()
    }

    /// Samples of a cube with which every processor has one.
    pub(super) fn wanted(&self, directions: usize, batch: usize) -> usize {
        (batch * directions).div_ceil(self.processors()).clamp(1, batch.max(1))
    }
}
