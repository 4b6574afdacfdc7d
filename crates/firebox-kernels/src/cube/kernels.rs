//! Which variant of the kernels runs on a device, or is asked for: see [`cuts`](crate::cuts) for what it
//! follows from.

use std::cell::Cell;

use burn::backend::DispatchDevice;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Device};
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::features::TypeUsage;

use super::device::{TYPES, hardware};
use crate::CpuKernels;
use crate::cuts::{GpuKernels, Layer, NoGpuKernels, Pass};
use crate::scoped::while_set;

thread_local! {
    static FORCED: Cell<Option<(GpuKernels, Option<usize>)>> = const { Cell::new(None) };
}

impl GpuKernels {
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
        let hardware = hardware(&Self::takes(device, dtype)?);
        let asked = FORCED.get().map(|(asked, _)| asked);
        Self::choose(&hardware, dtype, [directions, batch, hidden], asked)
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
        let hardware = Self::takes(device, dtype).ok().map(|client| hardware(&client));
        [Pass::Forward, Pass::Backward].map(|pass| {
            let (kernels, units, gru) = (self, hidden, false);
            let layer = Layer { kernels, pass, dtype, directions, batch, units, gru };
            let cuts = hardware.as_ref().map(|hardware| layer.cuts(hardware)).unwrap_or_default();
            cuts.iter().map(ToString::to_string).collect()
        })
    }

    /// Whether any kernel takes tensors of this type on this device.
    pub(crate) fn takes(device: &Device, dtype: DType) -> Result<Client, NoGpuKernels> {
        let client = Self::computes(device, dtype)?;
        match Self::composes() {
            true => Err(NoGpuKernels::Asked),
            false => Ok(client),
        }
    }

    /// Whether Burn's own operations are asked for in place of kernels.
    pub(crate) fn composes() -> bool {
        CpuKernels::current() == Ok(CpuKernels::Composed)
    }

    /// Whether tensors of this type can be computed with on this device, kernels or not.
    pub(crate) fn computes(device: &Device, dtype: DType) -> Result<Client, NoGpuKernels> {
        let device = device.clone().without_autodiff();
        let DispatchDevice::Cube(cube) = device.as_dispatch() else {
            return Err(NoGpuKernels::NotGpu { device: format!("{device:?}") });
        };
        if !TYPES.contains(&dtype) {
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
        while_set(&FORCED, Some((self, tile)), f)
    }
}
