//! What holds of every cut, on all kinds of devices and for sizes at random: it fits the device that it was
//! made for, and the threads of its cubes have every row, unit and column once. Threads take here what the
//! kernels give them.

use burn::tensor::DType;
use firebox_core::{Draws, Stream};

use super::*;
use crate::cpu::AttentionSizes;

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
        by_hand: vec![],
    }
}

/// The same with tensor cores of these shapes, `[m, n, k]`, in half precision.
pub(super) fn with_cores(hardware: Hardware, shapes: &[[usize; 3]]) -> Hardware {
    let of = |dtype| shapes.iter().map(move |[m, n, k]| (dtype, Shape { m: *m, n: *n, k: *k }));
    Hardware { cores: of(DType::F16).chain(of(DType::BF16)).collect(), ..hardware }
}

fn one<T: Copy>(draws: &mut Draws, of: &[T]) -> T {
    of[draws.below(of.len() as u64) as usize]
}

/// From 1 up to `most`, a power of two; every magnitude is as likely.
fn size(draws: &mut Draws, most: u64) -> usize {
    let magnitude = draws.below(u64::from(most.ilog2()) + 1);
    1 + draws.below(1 << magnitude) as usize
}

/// Some device: with 16 to 227 KiB of shared memory, narrow, wide or unknown planes, and all kinds of tensor
/// cores or none.
fn device(draws: &mut Draws) -> Hardware {
    const NARROW: [[usize; 3]; 1] = [[8, 8, 8]];
    const SQUARE: [[usize; 3]; 1] = [[16, 16, 16]];
    const WIDE: [[usize; 3]; 1] = [[8, 32, 16]];
    // Neither can be cut for.
    const ODD: [[usize; 3]; 2] = [[16, 4, 16], [12, 16, 16]];
    let shared = 1024 * one(draws, &[16, 32, 48, 64, 100, 227]);
    let processors = one(draws, &[None, Some(1), Some(16), Some(132)]);
    let any = hardware(shared, one(draws, &[256, 512, 1024]), processors);
    let any = with_cores(any, one(draws, &[&[], &CUDA[..], &NARROW, &SQUARE, &WIDE, &ODD]));
    let dim = one(draws, &[any.dim, any.dim, [any.threads, 64], [128, 8], [128, 2]]);
    let count = one(draws, &[any.count, any.count, [1 << 31, 65_535], [7, 5]]);
    let plane = one(draws, &[[32, 32], [32, 32], [64, 64], [8, 8], [8, 32], [0, 0]]);
    let by_hand = if draws.chance(0.3) { vec![DType::F16, DType::BF16] } else { vec![] };
    Hardware { dim, count, plane, by_hand, plane_barrier: draws.chance(0.8), ..any }
}

/// Whether tensor cores of a device multiply a shape that the kernels can be compiled for.
fn multiplies(hardware: &Hardware, dtype: DType, shape @ Shape { m, n, k }: Shape) -> bool {
    let whole = [m, n, k].iter().all(|size| size.is_power_of_two() && *size >= 8);
    whole && hardware.cores.contains(&(dtype, shape))
}

/// Whether a launch of these cubes and threads is one that the device can have.
#[track_caller]
fn runs(hardware: &Hardware, count: [usize; 2], dim: [usize; 2], threads: usize) {
    assert_eq!(dim[0] * dim[1], threads);
    assert!(threads > 0 && threads <= hardware.threads);
    assert!(dim[0] <= hardware.dim[0] && dim[1] <= hardware.dim[1]);
    assert!(count[0] > 0 && count[0] <= hardware.count[0] && count[1] <= hardware.count[1]);
}

/// Each of `count` places is taken once; those beyond are left alone by the kernels.
#[track_caller]
fn once(count: usize, taken: impl Iterator<Item = usize>) {
    let mut times = vec![0u8; count];
    for place in taken.filter(|place| *place < count) {
        times[place] += 1;
    }
    assert!(times.iter().all(|times| *times == 1), "{times:?} times");
}

/// What a thread takes from its own place on.
fn strided(first: usize, end: usize, step: usize) -> impl Iterator<Item = usize> {
    (first..end).step_by(step)
}

fn holds_for_plain(tile: &Tile, layer: &Layer, hardware: &Hardware) {
    let Layer { kernels, pass, dtype, directions, batch, units, gru } = *layer;
    assert_eq!((tile.units, tile.directions, tile.gru), (units, directions, gru));
    assert_eq!(tile.resident, kernels == GpuKernels::Resident);
    assert!(tile.shared_bytes(dtype.size(), pass) <= hardware.shared_memory);
    assert!([1, 2, 4].contains(&tile.rows));
    let count @ [cubes, _] = tile.count(batch);
    runs(hardware, count, tile.dim(), tile.threads());
    assert_eq!(count[1], directions);
    let groups = (0..cubes).flat_map(|cube| (0..tile.groups).map(move |g| cube * tile.groups + g));
    once(batch, groups.flat_map(|group| (0..tile.rows).map(move |row| group * tile.rows + row)));
    once(units, (0..tile.columns).flat_map(|column| strided(column, units, tile.columns)));
    assert!(cubes * tile.samples() < batch + tile.samples(), "no cube without a sample");
}

fn holds_for_cores(tile: &CoreTile, layer: &Layer, hardware: &Hardware) {
    let Layer { pass, dtype, directions, batch, units, gru, .. } = *layer;
    assert_eq!((tile.units, tile.directions, tile.gru), (units, directions, gru));
    assert!(multiplies(hardware, dtype, tile.shape));
    assert!(tile.shared_bytes(pass) <= hardware.shared_memory);
    assert_eq!(hardware.plane, [tile.lanes; 2]);
    let count @ [cubes, _] = tile.count(batch);
    runs(hardware, count, tile.dim(), tile.threads());
    assert_eq!(count[1], directions);
    once(batch, 0..cubes * tile.samples());
    assert!(cubes * tile.samples() < batch + tile.samples(), "no cube without a sample");
    // Planes multiply whole tiles of the shape: all columns of each quarter, over all of the sum.
    let Shape { n, k, .. } = tile.shape;
    assert!(tile.padded() >= units && tile.padded() < units + n.max(k));
    assert_eq!((tile.columns() * n, tile.steps() * k), (tile.padded(), tile.padded()));
    assert_eq!(tile.planes(), 4 * tile.quarter);
    let columns =
        || (0..tile.quarter).flat_map(|p| (0..tile.own()).map(move |c| p * tile.own() + c));
    once(tile.columns(), columns());
    assert_eq!(tile.ragged(), columns().any(|column| column >= tile.columns()));
    // Threads take pairs of a sample and a unit, one after the other.
    assert_eq!(tile.slots(), (tile.samples() * units).div_ceil(tile.threads()));
    // A thread of NVIDIA's has 255 registers, and all of a multiprocessor have 65,536.
    assert!(tile.registers(dtype) < 255.min(65_536 / tile.threads()));
    // Rows in shared memory hold what is multiplied, and begin where a vector of four does.
    for stride in [tile.rows_stride(pass), tile.sums_stride(), tile.weights_stride()] {
        assert!(stride.is_multiple_of(4) && stride >= tile.padded());
    }
}

fn holds_for_fragments(tile: &FragmentTile, layer: &Layer, hardware: &Hardware) {
    let Layer { pass, dtype, directions, batch, units, gru, .. } = *layer;
    assert_eq!((tile.units, tile.directions, tile.gru), (units, directions, gru));
    assert_eq!(tile.pass, pass);
    assert!(hardware.by_hand.contains(&dtype));
    assert!(tile.shared_bytes() <= hardware.shared_memory);
    assert_eq!(hardware.plane, [32; 2]);
    let count @ [cubes, _] = tile.count(batch);
    runs(hardware, count, tile.dim(), tile.threads());
    assert_eq!(count[1], directions);
    once(batch, 0..cubes * tile.samples());
    assert!(cubes * tile.samples() < batch + tile.samples(), "no cube without a sample");
    // Every unit of every sample has a thread, and what is added to the units has its place.
    let octets = tile.octets();
    let own = |plane| (0..octets).map(move |octet| plane * octets + octet);
    once(units.div_ceil(8), (0..tile.planes).flat_map(own));
    assert_eq!(tile.pairs(), 2 * octets * tile.tiles);
    assert_eq!(tile.whole(), 8 * octets * tile.planes == units);
    assert!(tile.own_tiles() * (tile.planes - 1) < tile.high_tiles(), "no plane without a tile");
    // A tile of the weights has 16 rows, a step 16 columns: of the four gates of each unit, and of the units before.
    let [high, deep] = tile.padded();
    assert!(high >= units && high < units + 16 && deep >= units && deep < units + 32);
    let gates = |own: Pass| if pass == own { 4 } else { 1 };
    assert_eq!(16 * tile.high_tiles(), high * gates(Pass::Forward));
    assert_eq!(16 * tile.steps(), deep * gates(Pass::Backward));
    assert!(tile.steps().is_multiple_of(2));
    assert_eq!(8 * tile.vectors(tile.steps()), 16 * tile.high_tiles() * 16 * tile.steps());
    let places = [Place::Registers, Place::Shared, Place::Global].map(|place| tile.steps_in(place));
    assert_eq!(places.map(|[first, _]| first), [0, places[0][1], places[1][1]]);
    assert!(places[2][0] <= places[2][1] && places[2][1] == tile.steps());
    // A thread of NVIDIA's has 255 registers, and each quarter of a multiprocessor a quarter of 65,536.
    let sums = 4 * tile.own_tiles() * tile.tiles * tile.chains();
    let weights = 4 * tile.own_tiles() * tile.kept[0];
    let most = 255.min(65_536 / 32 / tile.planes.next_multiple_of(4));
    assert!(sums + weights + 5 * tile.pairs() < most, "{tile:?}");
    // A row begins where `ldmatrix` wants it, and eight rows do not meet on a bank.
    assert!(tile.rows_stride() > 16 * tile.steps() && tile.rows_stride() % 16 == 8);
    assert_eq!(tile.rows_room(), 2 * tile.samples() * tile.rows_stride());
}

/// Cuts a layer in every way, and returns the variant that it gets.
fn variant(
    hardware: &Hardware,
    dtype: DType,
    sizes @ [directions, batch, units]: [usize; 3],
    gru: bool,
) -> Result<GpuKernels, NoGpuKernels> {
    println!("{sizes:?} in {dtype:?} on {hardware:?}"); // shown where a test fails
    let layer = |kernels, pass| Layer { kernels, pass, dtype, directions, batch, units, gru };
    let holds = |kernels, pass| {
        let layer = layer(kernels, pass);
        let cuts = layer.cuts(hardware);
        println!("{kernels:?}, {pass:?}: {cuts:?}");
        assert!(cuts.len() <= CUTS);
        for (index, cut) in cuts.iter().enumerate() {
            assert!(!cuts[..index].contains(cut), "tried twice");
            match cut {
                Cut::Plain(tile) => holds_for_plain(tile, &layer, hardware),
                Cut::Fragments(tile) => holds_for_fragments(tile, &layer, hardware),
                Cut::Cores(tile) => holds_for_cores(tile, &layer, hardware),
            }
        }
        !cuts.is_empty()
    };
    let possible = GpuKernels::ALL.map(|kernels| {
        let [forward, backward] = [Pass::Forward, Pass::Backward].map(|pass| holds(kernels, pass));
        let asked = GpuKernels::choose(hardware, dtype, sizes, Some(kernels));
        assert_eq!(asked.is_ok(), forward && backward);
        asked
    });
    let none = hardware.shapes(dtype).is_empty() && !hardware.by_hand.contains(&dtype);
    if none || hardware.lanes().is_none() {
        assert!(possible[0].is_err(), "tensor cores that are not there");
    }
    let chosen = GpuKernels::choose(hardware, dtype, sizes, None);
    assert_eq!(chosen.as_ref().ok(), possible.iter().flatten().next(), "the fastest");
    // The state of one sample on its way back, and a stand-in for the weights.
    let smallest = 6 * 4 * units + 4 * dtype.size();
    if smallest > hardware.shared_memory {
        let found = hardware.shared_memory;
        assert_eq!(chosen, Err(NoGpuKernels::Size { hidden: units, batch, found }));
    } else if batch.next_power_of_two() <= hardware.count[0] {
        assert!(chosen.is_ok(), "{chosen:?}");
    }
    chosen
}

#[test]
fn a_recurrent_layer_of_any_size_fits_its_device_and_leaves_nothing_out() {
    let mut draws = Stream::new(1337, "recurrent layers to cut").draws();
    let mut seen = [0; 4];
    for _ in 0..2_000 {
        let hardware = device(&mut draws);
        let dtype = one(&mut draws, &[DType::F32, DType::F16, DType::BF16]);
        let directions = one(&mut draws, &[1, 2]);
        let sizes = [directions, size(&mut draws, 512), size(&mut draws, 8_192)];
        let chosen = variant(&hardware, dtype, sizes, draws.chance(0.5));
        seen[chosen.map_or(3, |kernels| kernels as usize)] += 1;
    }
    assert!(seen.iter().all(|times| *times > 100), "too few of one kind: {seen:?}");
}

#[test]
fn the_smallest_odd_and_largest_layers_have_a_variant_where_the_state_of_a_sample_fits() {
    // Directions, samples and units.
    let layers = [[1, 1, 1], [2, 1, 1], [2, 511, 1], [1, 1, 33], [2, 7, 101], [1, 511, 101]];
    let layers = layers.into_iter().chain([[1, 1, 1_001], [2, 512, 1_001], [2, 64, 100_000]]);
    for layer @ [_, _, units] in layers {
        for shared in [16, 32, 48, 64, 100, 227].map(|kibibytes| 1024 * kibibytes) {
            for (plane, cores) in [(32, &CUDA[..]), (64, &CUDA), (32, &[]), (64, &[])] {
                let device = with_cores(hardware(shared, 1024, None), cores);
                let device = Hardware { plane: [plane; 2], ..device };
                for dtype in [DType::F32, DType::BF16] {
                    let found = variant(&device, dtype, layer, false);
                    assert_eq!(found.is_ok(), 24 * units < shared, "{layer:?} on {device:?}");
                }
            }
        }
    }
}

fn holds_for_strips(strips: &Strips, task: &AttentionTask, hardware: &Hardware) {
    let Strips { plan, shape, planes, lanes } = *strips;
    assert!(hardware.plane_barrier && hardware.plane == [lanes; 2]);
    assert!(multiplies(hardware, task.dtype, shape));
    assert!(strips.shared_bytes() <= hardware.shared_memory);
    let Shape { m, n, k } = shape;
    // Every lane belongs to a team, and every row of a strip has one.
    let team = strips.team();
    assert!(team.is_power_of_two() && team * m == lanes);
    once(
        strips.rows(),
        (0..planes)
            .flat_map(|plane| strided(0, lanes, team).map(move |lane| plane * m + lane / team)),
    );
    // A team has its row of scores, in vectors of four and whole groups of eight keys.
    let each = 4 * strips.vectors();
    assert!(each.is_multiple_of(8));
    once(strips.block(), (0..team).flat_map(|of| of * each..(of + 1) * each));
    // Products go over whole tiles of the shape.
    assert!(strips.block().is_multiple_of(n) && strips.block().is_multiple_of(k));
    assert!(strips.padded() >= plan.size && strips.padded() < plan.size + n.max(k));
    assert_eq!(strips.columns() * n, strips.padded());
    assert!(strips.padded().is_multiple_of(k));
    for stride in [strips.row_stride(), strips.shares_stride()] {
        assert!(stride.is_multiple_of(8));
    }
    // Four words for each row of a block and eight keys of a strip.
    assert!(!plan.dropped || strips.words() == m.div_ceil(8) * strips.block() * 4);
}

#[test]
fn attention_of_any_size_fits_its_device_and_leaves_no_row_out() {
    let mut draws = Stream::new(1337, "attention to cut").draws();
    let mut seen = [0; 3];
    for _ in 0..4_000 {
        let hardware = device(&mut draws);
        let [batch, heads] = [8, 16].map(|most| size(&mut draws, most));
        let [queries, keys] = [1_024; 2].map(|most| size(&mut draws, most));
        let sizes = AttentionSizes { batch, queries, keys, heads, size: size(&mut draws, 256) };
        let dtype = one(&mut draws, &[DType::F32, DType::F16, DType::BF16]);
        let [packed, causal, windowed, dropped] = [0.5, 0.5, 0.2, 0.5].map(|p| draws.chance(p));
        let cores = draws.chance(0.8);
        let task = AttentionTask { sizes, dtype, packed, causal, windowed, dropped, cores };
        let cut = task.cut(&hardware);
        println!("{task:?} on {hardware:?}: {cut:?}"); // shown where the test fails
        assert_eq!(task.on_cores(&hardware), matches!(cut, Some(AttentionCut::Strips(_))));
        assert_eq!(task.fits(&hardware), cut.is_some());
        seen[cut.map_or(2, |cut| usize::from(matches!(cut, AttentionCut::Strips(_))))] += 1;
        let Some(cut) = cut else {
            let rows = queries.max(keys).div_ceil(64);
            let few = rows > hardware.count[0] || batch * heads > hardware.count[1];
            assert!(sizes.size > 128 || few);
            continue;
        };
        let (plan, rows, threads) = match &cut {
            AttentionCut::Threads(plan) => {
                assert!(plan.shared_bytes() <= hardware.shared_memory);
                (plan, plan.threads, plan.threads)
            }
            AttentionCut::Strips(strips) => {
                assert!(cores && dtype != DType::F32 && !windowed);
                holds_for_strips(strips, &task, &hardware);
                (&strips.plan, strips.rows(), strips.threads())
            }
        };
        let kind = (plan.size, plan.packed, plan.causal, plan.windowed, plan.dropped);
        assert_eq!(kind, (sizes.size, packed, causal, windowed, dropped));
        assert_eq!(cut.packed(), packed);
        // Random numbers are drawn for eight keys at once.
        assert!(plan.tile.is_multiple_of(8) && plan.vectors() * 4 >= plan.size);
        for of in [queries, keys] {
            let count @ [cubes, tasks] = cut.count(of, &sizes);
            runs(&hardware, count, cut.dim(), threads);
            assert_eq!(tasks, batch * heads);
            once(of, (0..cubes).flat_map(|cube| cube * rows..(cube + 1) * rows));
            assert!(cubes * rows < of + rows, "no cube without a row");
        }
    }
    assert!(seen.iter().all(|times| *times > 100), "too few of one kind: {seen:?}");
}

#[test]
fn teams_have_every_row_and_number_once() {
    let mut draws = Stream::new(1337, "rows to spread").draws();
    for _ in 0..2_000 {
        let hardware = device(&mut draws);
        let (rows, width) = (size(&mut draws, 4_096), size(&mut draws, 4_096));
        let whole = Team::whole(&hardware);
        runs(&hardware, [1, 1], whole.dim(), whole.threads());
        for spread in [Spread::new, Spread::summed].map(|spread| spread(&hardware, rows, width)) {
            println!("{rows} × {width} on {hardware:?}: {spread:?}"); // shown where the test fails
            let Spread { team, blocks, cubes } = spread;
            runs(&hardware, [cubes, 1], team.dim(), team.threads());
            assert!(team.columns.is_power_of_two() && team.rows.is_power_of_two());
            let blocks = (0..cubes).flat_map(|cube| strided(cube, blocks, cubes));
            once(rows, blocks.flat_map(|block| block * team.rows..(block + 1) * team.rows));
            once(width, (0..team.columns).flat_map(|c| strided(c, width, team.columns)));
        }
    }
}

#[test]
fn every_number_of_every_tensor_has_one_thread() {
    let mut draws = Stream::new(1337, "tensors to sweep").draws();
    for _ in 0..100 {
        let hardware = device(&mut draws);
        let team = Team::whole(&hardware);
        let most = tensors_at_once(&hardware, one(&mut draws, &[1, 4])).min(hardware.count[0]);
        let sizes: Vec<usize> = (0..most).map(|_| size(&mut draws, 1 << 16) - 1).collect();
        let sweep = Sweep::new(&hardware, team, sizes.iter().copied());
        println!("{sizes:?} on {hardware:?}: {sweep:?}"); // shown where the test fails
        runs(&hardware, [sweep.cubes() as usize, 1], team.dim(), team.threads());
        let mut begin = 0;
        for ((size, end), told) in sizes.iter().zip(&sweep.ends).zip(&sweep.sizes) {
            assert_eq!(*size, *told as usize);
            let threads = (*end - begin) as usize * team.threads();
            assert!(threads > 0);
            once(*size, (0..threads).flat_map(|thread| strided(thread, *size, threads)));
            begin = *end;
        }
    }
}
