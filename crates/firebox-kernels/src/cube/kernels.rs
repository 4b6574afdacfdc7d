//! Which variant a layer gets on a GPU, or why it gets none.

use std::cell::Cell;

use burn::backend::DispatchDevice;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Device};
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::features::TypeUsage;

use super::cut::Layer;
use super::tile::Pass;
use crate::CpuKernels;

/// A variant of the GPU kernels. Each layer gets the first that the device can run and has the memory for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GpuKernels {
    /// In f16 and bf16, with products on tensor cores (NVIDIA; matrix cores of AMD, SIMD-group matrices
    /// of Apple; cooperative matrices of Vulkan). The recurrent weights of a direction stay in registers
    /// or shared memory for the whole sequence, or are read from global memory at each step.
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
    /// `FIREBOX_KERNELS` or [`CpuKernels::force`] asks for it.
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

thread_local! {
    static FORCED: Cell<Option<(GpuKernels, Option<usize>)>> = const { Cell::new(None) };
}

impl GpuKernels {
    /// All variants, the fastest first.
    pub const ALL: [Self; 3] = [Self::TensorCores, Self::Resident, Self::Streamed];

    /// The variant that a layer of `directions` and `hidden` units gets for a batch, and therefore
    /// the way to find out which one runs, and why no faster one does.
    ///
    /// # Errors
    /// If the layer is composed of Burn's own operations instead.
    pub fn of_layer(
        device: &Device,
        dtype: DType,
        directions: usize,
        batch: usize,
        hidden: usize,
    ) -> Result<Self, NoGpuKernels> {
        let client = Self::takes(device, dtype)?;
        let properties = client.properties();
        let hardware = &properties.hardware;
        if (hardware.max_bindings as usize) < BUFFERS {
            let found = hardware.max_bindings as usize;
            return Err(NoGpuKernels::Buffers { found, needed: BUFFERS });
        }
        let fits = |kernels: Self| {
            [Pass::Forward, Pass::Backward].into_iter().all(|pass| {
                let units = hidden;
                let layer = Layer { kernels, pass, dtype, directions, batch, units, gru: false };
                !layer.cuts(&client).is_empty()
            })
        };
        match FORCED.get() {
            Some((asked, _)) if fits(asked) => Ok(asked),
            Some((asked, _)) => Err(NoGpuKernels::Unavailable { asked }),
            None => Self::ALL.into_iter().find(|k| fits(*k)).ok_or(NoGpuKernels::Size {
                hidden,
                batch,
                found: hardware.max_shared_memory_size,
            }),
        }
    }

    /// The tiles that this variant could run a layer's forward and backward pass in: samples and threads of
    /// a cube, and where it keeps the recurrent weights. Empty if it cannot run the layer. Builds with the
    /// feature `autotune` time each at the first use of such a layer and keep the fastest; others take the
    /// first.
    pub fn tiles(
        self,
        device: &Device,
        dtype: DType,
        directions: usize,
        batch: usize,
        hidden: usize,
    ) -> [Vec<String>; 2] {
        let client = Self::takes(device, dtype).ok();
        [Pass::Forward, Pass::Backward].map(|pass| {
            let (kernels, units, gru) = (self, hidden, false);
            let layer = Layer { kernels, pass, dtype, directions, batch, units, gru };
            let cuts = client.as_ref().map(|client| layer.cuts(client)).unwrap_or_default();
            cuts.iter().map(ToString::to_string).collect()
        })
    }

    /// Whether any kernel takes tensors of this type on this device.
    pub(crate) fn takes(device: &Device, dtype: DType) -> Result<Client, NoGpuKernels> {
        let device = device.clone().without_autodiff();
        let DispatchDevice::Cube(cube) = device.as_dispatch() else {
            return Err(NoGpuKernels::NotGpu { device: format!("{device:?}") });
        };
        if CpuKernels::current() == Ok(CpuKernels::Composed) {
            return Err(NoGpuKernels::Asked);
        }
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(NoGpuKernels::Type { found: dtype });
        }
        let client = cube.client();
        let uses = client.properties().type_usage(dtype_to_storage_type(dtype));
        if !uses.is_superset(TypeUsage::Buffer | TypeUsage::Conversion) {
            return Err(NoGpuKernels::Type { found: dtype });
        }
        Ok(client)
    }

    /// Runs `f` with this variant alone: for tests and comparisons. A layer that does not fit is
    /// composed. Attention multiplies on tensor cores with [`TensorCores`](Self::TensorCores) alone, as
    /// without this.
    pub fn force<T>(self, f: impl FnOnce() -> T) -> T {
        self.forced(None, f)
    }

    /// [`force`](Self::force), with the tile of this index among those that the variant could run a layer
    /// in, the last where there are fewer, instead of the one that takes the least time. They sum the same
    /// numbers in the same order, and gave the same bits wherever they ran.
    pub fn force_tile<T>(self, tile: usize, f: impl FnOnce() -> T) -> T {
        self.forced(Some(tile), f)
    }

    /// Whether tensor cores may be used: no other variant is asked for.
    pub(crate) fn cores_allowed() -> bool {
        FORCED.get().is_none_or(|(asked, _)| asked == Self::TensorCores)
    }

    /// The tile that [`force_tile`](Self::force_tile) asks for.
    pub(crate) fn forced_tile() -> Option<usize> {
        FORCED.get().and_then(|(_, tile)| tile)
    }

    fn forced<T>(self, tile: Option<usize>, f: impl FnOnce() -> T) -> T {
        struct Restore(Option<(GpuKernels, Option<usize>)>);
        impl Drop for Restore {
            fn drop(&mut self) {
                FORCED.set(self.0);
            }
        }
        let _restore = Restore(FORCED.replace(Some((self, tile))));
        f()
    }
}
