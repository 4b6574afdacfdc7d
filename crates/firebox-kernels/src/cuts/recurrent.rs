//! Which variant of the kernels a recurrent layer gets on a device, or why it gets none, and the ways to cut
//! it.

use burn::tensor::DType;

use super::{CoreTile, FragmentTile, Hardware, Tile};

/// A variant of the GPU kernels. Each layer gets the first that the device can run and has the memory for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GpuKernels {
    /// In f16 and bf16, with products on tensor cores (NVIDIA; matrix cores of AMD, SIMD-group matrices
    /// of Apple; cooperative matrices of Vulkan). The recurrent weights of a direction stay in registers
    /// or shared memory for the whole sequence, or are read from global memory at each step; on NVIDIA's devices a part in
    /// each where they do not fit nearer.
    TensorCores,
    /// The recurrent weights of a direction stay in shared memory for the whole sequence.
    Resident,
    /// The recurrent weights are read from global memory (the device's caches) at each step. Runs
    /// on small devices too: state for one sample is all that must fit into shared memory.
    Streamed,
}

/// Why a layer is composed of Burn's own operations and does not run in a GPU kernel.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NoGpuKernels {
    /// `FIREBOX_KERNELS` or [`CpuKernels::force`](crate::CpuKernels::force) asks for it.
    #[error("the composed variant was asked for")]
    Asked,
    /// Not a device of CubeCL.
    #[error("{device} is not a GPU")]
    NotGpu {
        /// The device.
        device: String,
    },
    /// A type that the kernels do not compute with, or that the device cannot store.
    #[error("the kernels take f32, f16 and bf16 where the device has them, but not {found:?} here")]
    Type {
        /// The type found.
        found: DType,
    },
    /// Fewer buffers for one kernel than the backward pass has.
    #[error("a kernel on this device can have {found} buffers, but {needed} are needed")]
    Buffers {
        /// What the device has.
        found: usize,
        /// What is needed.
        needed: usize,
    },
    /// More shared memory or cubes than the device has.
    #[error(
        "the state of {hidden} hidden units in f32 does not fit into the {found} bytes of shared \
         memory of this device, or a batch of {batch} has too many tiles for it"
    )]
    Size {
        /// Hidden units.
        hidden: usize,
        /// Samples.
        batch: usize,
        /// The device's shared memory for one cube, in bytes.
        found: usize,
    },
    /// A [`GpuKernels::force`]d variant that the device cannot run, or has no memory for.
    #[error("{asked:?} kernels were asked for, which this device cannot run or has no memory for")]
    Unavailable {
        /// The variant asked for.
        asked: GpuKernels,
    },
}

/// Buffers of the backward kernel, and one for the sizes.
const BUFFERS: usize = 12;

impl GpuKernels {
    /// All variants, the fastest first.
    pub const ALL: [Self; 3] = [Self::TensorCores, Self::Resident, Self::Streamed];

    /// The variant of a layer in a batch: the one that is asked for, or the fastest.
    ///
    /// # Errors
    /// If the device cannot run it.
    pub(crate) fn choose(
        hardware: &Hardware,
        dtype: DType,
        [directions, batch, units]: [usize; 3],
        asked: Option<Self>,
    ) -> Result<Self, NoGpuKernels> {
        if hardware.bindings < BUFFERS {
            return Err(NoGpuKernels::Buffers { found: hardware.bindings, needed: BUFFERS });
        }
        let fits = |kernels: Self| {
            [Pass::Forward, Pass::Backward].into_iter().all(|pass| {
                let layer = Layer { kernels, pass, dtype, directions, batch, units, gru: false };
                !layer.cuts(hardware).is_empty()
            })
        };
        match asked {
            Some(asked) if fits(asked) => Ok(asked),
            Some(asked) => Err(NoGpuKernels::Unavailable { asked }),
            None => Self::ALL
                .into_iter()
                .find(|kernels| fits(*kernels))
                .ok_or(NoGpuKernels::Size { hidden: units, batch, found: hardware.shared_memory }),
        }
    }
}

/// Which of the two passes a cut is for; the backward one keeps more in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pass {
    Forward,
    Backward,
}

/// The layer that is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Layer {
    pub(crate) kernels: GpuKernels,
    pub(crate) pass: Pass,
    pub(crate) dtype: DType,
    pub(crate) directions: usize,
    pub(crate) batch: usize,
    pub(crate) units: usize,
    pub(crate) gru: bool,
}

/// A tile of one of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// [`GpuKernels::Resident`] and [`GpuKernels::Streamed`].
    Plain(Tile),
    /// [`GpuKernels::TensorCores`] of NVIDIA's devices, up to some units.
    Fragments(FragmentTile),
    /// [`GpuKernels::TensorCores`] where these cannot be had.
    Cores(CoreTile),
}

/// At least as many cuts as a layer can have.
pub(crate) const CUTS: usize = 8;

impl Layer {
    /// The ways to cut it, the one to take untried first; none where the device has no memory for it.
    /// All of them give the same bits, so that a choice by time changes no result.
    ///
    /// Where they are tuned, batches up to the same power of two are cut alike: the fastest cut of one
    /// serves all. Batches of other sizes may be multiplied in tiles of another shape, and then differ in
    /// bits.
    pub(crate) fn cuts(&self, hardware: &Hardware) -> Vec<Cut> {
        let tuned = cfg!(feature = "autotune");
        let batch = if tuned { self.batch.next_power_of_two() } else { self.batch };
        let sizes = [self.directions, batch, self.units];
        let gru = self.gru;
        match self.kernels {
            GpuKernels::TensorCores => {
                let tiles = FragmentTile::candidates(hardware, sizes, self.dtype, self.pass);
                if !tiles.is_empty() {
                    let of = |tile| Cut::Fragments(FragmentTile { gru, ..tile });
                    return tiles.into_iter().map(of).collect();
                }
                let tiles = CoreTile::candidates(hardware, sizes, self.dtype, self.pass);
                tiles.into_iter().map(|tile| Cut::Cores(CoreTile { gru, ..tile })).collect()
            }
            GpuKernels::Resident | GpuKernels::Streamed => {
                let resident = self.kernels == GpuKernels::Resident;
                let weight = self.dtype.size();
                let tiles = Tile::candidates(hardware, sizes, weight, self.pass, resident);
                tiles.into_iter().map(|tile| Cut::Plain(Tile { gru, ..tile })).collect()
            }
        }
    }

    /// Units with those that are added, of weights zero, until the tiles of tensor cores are full, in these cuts of it.
    pub(crate) fn padded(&self, cuts: &[Cut]) -> usize {
        match cuts.first() {
            Some(Cut::Cores(tile)) => tile.padded(),
            _ => self.units,
        }
    }
}

/// How many parts a batch is cut into for the gradients of the weights. Those are sums over all
/// samples and steps for few numbers: as one matmul they would keep a few processors of the device
/// busy. The largest divisor of the batch up to 16, which also keeps each sum shorter, of which the results, of
/// `numbers` each, take no more than 64 MiB together: they lie in one buffer, and some devices bind no more than 128.
pub(crate) fn parts(batch: usize, numbers: usize) -> usize {
    let most = (PRODUCTS / numbers.max(1)).clamp(1, 16).min(batch);
    (1..=most).rev().find(|parts| batch.is_multiple_of(*parts)).unwrap_or(1)
}

/// Numbers of f32 that the products of all parts have at most, where there is more than one.
const PRODUCTS: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::super::tests::{CUDA, hardware, with_cores};
    use super::*;

    const BF16: DType = DType::BF16;

    /// The variant of a layer in both directions and a batch of 64, in f32 and in bf16.
    fn check(hardware: &Hardware, units: usize, expected: [Option<GpuKernels>; 2]) {
        let chosen = [DType::F32, BF16]
            .map(|dtype| GpuKernels::choose(hardware, dtype, [2, 64, units], None).ok());
        assert_eq!(chosen, expected, "{units} units on {hardware:?}");
    }

    #[test]
    fn a_layer_gets_the_fastest_variant_that_the_device_has_the_memory_for() {
        use GpuKernels::{Resident, Streamed, TensorCores};
        let plain = hardware(227 * 1024, 1024, Some(132));
        check(&plain, 115, [Some(Resident); 2]);
        check(&plain, 160, [Some(Streamed), Some(Resident)]);
        check(&plain, 512, [Some(Streamed); 2]);
        let hopper = with_cores(plain, &CUDA);
        check(&hopper, 1, [Some(Resident), Some(TensorCores)]);
        check(&hopper, 512, [Some(Streamed), Some(TensorCores)]);
        check(&hopper, 10_000, [None; 2]);
        let small = hardware(16 * 1024, 256, None);
        check(&small, 1, [Some(Resident); 2]);
        check(&small, 128, [Some(Streamed); 2]);
        check(&small, 682, [Some(Streamed); 2]);
        check(&small, 683, [None; 2]);
    }

    #[test]
    fn a_variant_that_is_asked_for_is_taken_or_refused() {
        let device = hardware(48 * 1024, 1024, Some(16));
        let choose = |asked| {
            GpuKernels::choose(&device, DType::F32, [1, 8, 64], Some(asked))
                .map_err(|e| e.to_string())
        };
        assert_eq!(choose(GpuKernels::Streamed), Ok(GpuKernels::Streamed));
        for asked in [GpuKernels::TensorCores, GpuKernels::Resident] {
            let refused = choose(asked).unwrap_err();
            assert!(refused.starts_with(&format!("{asked:?} kernels were asked for")), "{refused}");
        }
    }

    #[test]
    fn a_device_that_binds_too_few_buffers_gets_none() {
        let few = Hardware { bindings: BUFFERS - 1, ..hardware(48 * 1024, 256, None) };
        let refused = GpuKernels::choose(&few, DType::F32, [1, 8, 4], None).unwrap_err();
        assert_eq!(refused, NoGpuKernels::Buffers { found: 11, needed: 12 });
    }

    #[test]
    fn units_are_filled_up_for_tensor_cores_alone() {
        let hopper = with_cores(hardware(227 * 1024, 1024, Some(132)), &CUDA);
        let padded = |kernels| {
            let (pass, dtype) = (Pass::Backward, BF16);
            let layer =
                Layer { kernels, pass, dtype, directions: 2, batch: 64, units: 33, gru: true };
            layer.padded(&layer.cuts(&hopper))
        };
        assert_eq!(GpuKernels::ALL.map(padded), [64, 33, 33]);
    }

    #[test]
    fn a_batch_has_parts_of_one_size() {
        for (batch, expected) in [(0, 1), (1, 1), (7, 7), (16, 16), (17, 1), (36, 12), (512, 16)] {
            assert_eq!(parts(batch, 1), expected, "{batch}");
        }
        // Both directions of 768 units and of 512; more numbers than fit once.
        let of = |units: usize| parts(16, 2 * 4 * units * units);
        assert_eq!([of(768), of(520), of(512), of(1448), of(9000)], [2, 4, 8, 1, 1]);
    }
}
