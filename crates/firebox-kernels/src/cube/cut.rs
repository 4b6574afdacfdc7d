//! Which of the ways to cut a recurrent layer is taken: the fastest.

use std::fmt;
use std::sync::Arc;

use burn_cubecl::CubeTuneId;
use burn_cubecl::cubecl::tune::{
    AutotuneKey, LocalTuner, Tunable, TunableSet, TuneGroup, local_tuner,
};
use burn_cubecl::tensor::CubeTensor;
use serde::{Deserialize, Serialize};

use super::device::hardware;
use crate::cuts::{CUTS, Cut, Layer};

/// Runs a layer in one cut.
pub(super) type Run = Arc<dyn Fn(Cut) + Send + Sync>;

/// Runs a layer of so many steps in the cut of this index (the last if there are fewer), or, where none is
/// asked for, in the one that takes the least time. That is found out by timing each at the first use of
/// such a layer, and kept in CubeCL's cache of tunings; builds without the feature `autotune` take the first.
pub(super) fn run(layer: Layer, time: usize, like: &CubeTensor, asked: Option<usize>, run: Run) {
    let cuts = layer.cuts(&hardware(&like.client));
    if asked.is_none() && cfg!(feature = "autotune") && cuts.len() > 1 {
        return tuned(layer, time, like, cuts, run);
    }
    match cuts.get(asked.unwrap_or(0)).or(cuts.last()) {
        Some(cut) => run(*cut),
        // `GpuKernels::of_layer` has asked for the same cuts.
        None => unreachable!("{layer:?} cannot be cut"),
    }
}

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
