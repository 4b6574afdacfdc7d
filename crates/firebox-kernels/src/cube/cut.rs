//! How a launch of a recurrent layer is cut into cubes, in whichever variant, and which of the ways to
//! cut it is the fastest.

use std::fmt;
use std::sync::Arc;

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::CubeTuneId;
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::tune::{
    AutotuneKey, LocalTuner, Tunable, TunableSet, TuneGroup, local_tuner,
};
use burn_cubecl::tensor::CubeTensor;
use serde::{Deserialize, Serialize};

use super::GpuKernels;
use super::tensor_cores::CoreTile;
use super::tile::{Pass, Tile};

/// A tile of one of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// [`GpuKernels::Resident`] and [`GpuKernels::Streamed`].
    Plain(Tile),
    /// [`GpuKernels::TensorCores`].
    Cores(CoreTile),
}

/// The layer that is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Layer {
    pub(super) kernels: GpuKernels,
    pub(super) pass: Pass,
    pub(super) dtype: DType,
    pub(super) directions: usize,
    pub(super) batch: usize,
    pub(super) units: usize,
    pub(super) gru: bool,
}

impl Layer {
    /// The ways to cut it, the one to take untried first; none where the device has no memory for it.
    /// All of them give the same bits, so that a choice by time changes no result.
    ///
    /// Where they are tuned, batches up to the same power of two are cut alike: the fastest cut of one
    /// serves all. Batches of other sizes may be multiplied in tiles of another shape, and then differ in
    /// bits.
    pub(super) fn cuts(&self, client: &Client) -> Vec<Cut> {
        let tuned = cfg!(feature = "autotune");
        let batch = if tuned { self.batch.next_power_of_two() } else { self.batch };
        let sizes = [self.directions, batch, self.units];
        let gru = self.gru;
        match self.kernels {
            GpuKernels::TensorCores => {
                let elem = dtype_to_storage_type(self.dtype);
                let tiles = CoreTile::candidates(client, sizes, elem, self.pass);
                tiles.into_iter().map(|tile| Cut::Cores(CoreTile { gru, ..tile })).collect()
            }
            GpuKernels::Resident | GpuKernels::Streamed => {
                let hardware = &client.properties().hardware;
                let resident = self.kernels == GpuKernels::Resident;
                let weight = self.dtype.size();
                let tiles = Tile::candidates(hardware, sizes, weight, self.pass, resident);
                tiles.into_iter().map(|tile| Cut::Plain(Tile { gru, ..tile })).collect()
            }
        }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (samples, threads, place) = match self {
            Self::Plain(tile) if tile.resident => (tile.samples(), tile.threads(), "shared memory"),
            Self::Plain(tile) => (tile.samples(), tile.threads(), "global memory"),
            Self::Cores(tile) => (tile.samples(), tile.threads(), tile.place.name()),
        };
        write!(f, "{samples} samples, {threads} threads, weights in {place}")
    }
}

impl Layer {
    /// Units with those that are added, of weights zero, until the tiles of tensor cores are full.
    pub(super) fn padded(&self, client: &Client) -> usize {
        match self.cuts(client).first() {
            Some(Cut::Cores(tile)) => tile.padded(),
            _ => self.units,
        }
    }
}

/// Runs a layer in one cut.
pub(super) type Run = Arc<dyn Fn(Cut) + Send + Sync>;

/// Runs a layer of so many steps in the cut of this index (the last if there are fewer), or, where none is
/// asked for, in the one that takes the least time. That is found out by timing each at the first use of
/// such a layer, and kept in CubeCL's cache of tunings; builds without the feature `autotune` take the first.
pub(super) fn run(layer: Layer, time: usize, like: &CubeTensor, asked: Option<usize>, run: Run) {
    let cuts = layer.cuts(&like.client);
    if asked.is_none() && cfg!(feature = "autotune") && cuts.len() > 1 {
        return tuned(layer, time, like, cuts, run);
    }
    match cuts.get(asked.unwrap_or(0)).or(cuts.last()) {
        Some(cut) => run(*cut),
        // `GpuKernels::of_layer` has asked for the same cuts.
        None => unreachable!("{layer:?} cannot be cut"),
    }
}

/// At least as many as a layer can have.
const CUTS: usize = 8;

/// What a tuning is kept for: a layer in batches and times up to the same powers of two, on a device of this
/// name that can cut it in these ways.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Tuning {
    layer: String,
    cuts: usize,
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.layer)
    }
}

impl AutotuneKey for Tuning {}

fn tuned(layer: Layer, time: usize, like: &CubeTensor, cuts: Vec<Cut>, run: Run) {
    /// A layer's tuning, its cuts, and what runs it.
    type Inputs = (Tuning, Arc<[Cut]>, Run);
    static TUNER: LocalTuner<Tuning, CubeTuneId> = local_tuner!("recurrent");
    debug_assert!(cuts.len() <= CUTS, "{cuts:?}");
    let device = CubeTuneId::new(&like.client, &like.device);
    let set = TUNER.init(&device, || {
        let key = |(key, _, _): &Inputs| key.clone();
        let group = TuneGroup::<Tuning>::new("recurrent", |_| 0);
        let mut set = TunableSet::<Tuning, Inputs, ()>::new_cloning_inputs(key);
        for index in 0..CUTS {
            let cut = move |(_, cuts, run): Inputs| match cuts.get(index).or(cuts.last()) {
                Some(cut) => {
                    run(*cut);
                    Ok(())
                }
                None => Err("the layer cannot be cut"),
            };
            // A layer with fewer cuts leaves out the others.
            let offered = move |key: &Tuning| if index < key.cuts { 0 } else { -1 };
            set = set.with(Tunable::new(&format!("cut {index}"), cut).group(&group, offered));
        }
        set
    });
    let rounded = Layer { batch: layer.batch.next_power_of_two(), ..layer };
    let time = time.next_power_of_two();
    let name = &like.client.properties().identity.name;
    let names: Vec<_> = cuts.iter().map(ToString::to_string).collect();
    let key =
        Tuning { layer: format!("{rounded:?}, {time} steps, {name}: {names:?}"), cuts: cuts.len() };
    TUNER.execute(&device, &like.client, set, (key, cuts.into(), run));
}
