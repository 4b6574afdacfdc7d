//! Devices that the tests of cuts are made for.

use burn::tensor::DType;

use super::{Hardware, Shape};

/// What the tensor cores of NVIDIA's devices multiply in half precision.
pub(super) const CUDA: [[usize; 3]; 3] = [[16, 16, 16], [32, 8, 16], [8, 32, 16]];

/// A device without tensor cores: planes of 32, and with this much shared memory, as many threads of a cube,
/// and, if they are told, processors.
pub(super) fn hardware(shared: usize, threads: usize, processors: Option<usize>) -> Hardware {
    Hardware {
        shared_memory: shared,
        threads,
        dim: [threads, threads],
        count: [65_535, 65_535],
        bindings: 16,
        plane: [32, 32],
        plane_barrier: true,
        processors,
        cores: vec![],
    }
}

/// The same with tensor cores of these shapes, `[m, n, k]`, in half precision.
pub(super) fn with_cores(hardware: Hardware, shapes: &[[usize; 3]]) -> Hardware {
    let of = |dtype| shapes.iter().map(move |[m, n, k]| (dtype, Shape { m: *m, n: *n, k: *k }));
    Hardware { cores: of(DType::F16).chain(of(DType::BF16)).collect(), ..hardware }
}
