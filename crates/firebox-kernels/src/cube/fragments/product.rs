//! The product of a step: the recurrent weights, or their transpose, by a tile of samples.

use burn_cubecl::cubecl::cmma::{MatrixIdent, MmaDefinition};
use burn_cubecl::cubecl::{self, prelude::*};

use crate::cuts::{ALIGN, FragmentTile, Pass, Place};

/// What a thread has of a tile of 16 by 16 of the weights, in the order of its registers: rows `r` and `r + 8` of
/// columns `2 c` and `2 c + 1`, then both of the columns eight behind; its number is `4 r + c` (PTX ISA, "Matrix
/// Fragments for mma.m16n8k16").
pub(super) type Fragment<F> = Vector<F, Const<8>>;

type Two<F> = Vector<F, Const<2>>;

/// Where in a cube a thread's pairs of a unit and a sample are.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Pair {
    pub(super) unit: usize,
    /// Among the samples of the cube.
    pub(super) row: usize,
}

/// The pair of a `slot`: first along the samples.
#[cube]
pub(super) fn pair_of(#[comptime] slot: usize, #[comptime] tile: FragmentTile) -> Pair {
    let (octet, column) = comptime!((slot / (2 * tile.tiles), slot % (2 * tile.tiles)));
    let lane = UNIT_POS_X as usize;
    let first = UNIT_POS_Y as usize * comptime!(tile.octets()) + octet;
    let row = lane % 4 * 2 + comptime!(column / 2 * 8 + column % 2);
    Pair { unit: first * 8 + lane / 4, row }
}

/// Whether a unit is one of the layer's.
#[cube]
pub(super) fn is_unit(unit: usize, #[comptime] tile: FragmentTile) -> bool {
    if comptime!(tile.whole()) { true.runtime() } else { unit < comptime!(tile.units) }
}

/// The lengths of a thread's own samples; zero for those beyond the batch.
#[cube]
pub(super) fn lengths_of(
    lengths: &[i32],
    first: usize,
    batch: usize,
    #[comptime] tile: FragmentTile,
) -> Array<u32> {
    let mut own = Array::<u32>::new(comptime!(2 * tile.tiles));
    #[unroll]
    for column in 0..comptime!(2 * tile.tiles) {
        let sample = first + pair_of(column, tile).row;
        own[column] = 0u32.runtime();
        if sample < batch {
            own[column] = u32::cast_from(lengths[sample]);
        }
    }
    own
}

/// The length of a slot's sample, of those of [`lengths_of`].
#[cube]
pub(super) fn length_of(
    own: &Array<u32>,
    #[comptime] slot: usize,
    #[comptime] tile: FragmentTile,
) -> usize {
    own[comptime!(slot % (2 * tile.tiles))] as usize
}

/// Where in the weights of a step a thread's part of one of its tiles lies. A plane that has fewer tiles than the others
/// multiplies by the last one again; its units are none of the layer's.
#[cube]
fn place_of(#[comptime] of: usize, #[comptime] tile: FragmentTile) -> usize {
    let all = comptime!(tile.high_tiles());
    let own = comptime!(tile.own_tiles());
    let mut at = UNIT_POS_Y as usize * own + of;
    if comptime!(tile.planes * own > all) {
        at = at.min(comptime!(all - 1));
    }
    at * 32 + UNIT_POS_X as usize
}

/// The weights of some steps of the sum in shared memory.
///
/// # Shapes
/// - weights: `[directions, steps, tiles of rows, lanes]` of eight
#[cube]
pub(super) fn in_shared<F: Float>(
    weights: &[Fragment<F>],
    #[comptime] tile: FragmentTile,
) -> Shared<[Fragment<F>]> {
    let [first, end] = comptime!(tile.steps_in(Place::Shared));
    let count = comptime!(tile.vectors(end - first));
    let mut kept =
        Shared::<[Fragment<F>]>::new_aligned_slice(comptime!(count.max(1)), comptime!(ALIGN));
    if comptime!(count > 0) {
        let from = CUBE_POS_Y as usize * comptime!(tile.vectors(tile.steps()))
            + comptime!(tile.vectors(first));
        for at in range_stepped(UNIT_POS as usize, count, CUBE_DIM as usize) {
            kept[at] = weights[from + at];
        }
    }
    kept
}

/// The weights of the first steps of the sum in registers.
#[cube]
pub(super) fn in_registers<F: Float>(
    weights: &[Fragment<F>],
    #[comptime] tile: FragmentTile,
) -> Array<Two<F>> {
    let own = comptime!(tile.own_tiles());
    let steps = comptime!(tile.kept[0]);
    let mut kept = Array::<Two<F>>::new(comptime!((4 * own * steps).max(1)));
    let begin = CUBE_POS_Y as usize * comptime!(tile.vectors(tile.steps()));
    #[unroll]
    for at in 0..comptime!(own * steps) {
        let (step, of) = comptime!((at / own, at % own));
        let from = begin + comptime!(tile.vectors(step)) + place_of(of, tile);
        let four = pairs_of::<F>(weights[from]);
        #[unroll]
        for register in 0..4usize {
            kept[comptime!(4 * at + register)] = four[register];
        }
    }
    kept
}

/// Eight numbers as the four registers that have them.
#[cube]
fn pairs_of<F: Float>(fragment: Fragment<F>) -> Array<Two<F>> {
    let mut four = Array::<Two<F>>::new(4usize);
    #[unroll]
    for register in 0..4usize {
        let mut two = Two::<F>::new(F::new(0.0));
        two.insert(0usize, fragment.extract(comptime!(2 * register)));
        two.insert(1usize, fragment.extract(comptime!(2 * register + 1)));
        four[register] = two;
    }
    four
}

/// Room for a plane's sums, zeros.
#[cube]
pub(super) fn sums_of(#[comptime] tile: FragmentTile) -> Array<Two<f32>> {
    let mut sums = Array::<Two<f32>>::new(comptime!(tile.sums()));
    clear(&mut sums, tile);
    sums
}

#[cube]
fn clear(sums: &mut Array<Two<f32>>, #[comptime] tile: FragmentTile) {
    #[unroll]
    for at in 0..comptime!(tile.sums()) {
        sums[at] = Two::<f32>::new(0.0f32);
    }
}

/// Where the sums of a tile of rows and one of samples are.
fn sums_at(of: usize, samples: usize, chain: usize, tile: &FragmentTile) -> usize {
    2 * ((of * tile.tiles + samples) * tile.chains() + chain)
}

/// The sum of a slot: of one of its four columns or, on the way back, the only one.
#[cube]
pub(super) fn sum_of(
    sums: &Array<Two<f32>>,
    #[comptime] slot: usize,
    #[comptime] column: usize,
    #[comptime] tile: FragmentTile,
) -> f32 {
    let (octet, own) = comptime!((slot / (2 * tile.tiles), slot % (2 * tile.tiles)));
    // A tile of rows has two columns of an octet, or two octets.
    let (of, row) = comptime!(match tile.pass {
        Pass::Forward => (2 * octet + column / 2, column % 2),
        Pass::Backward => (octet / 2, octet % 2),
    });
    let mut sum = sums[comptime!(sums_at(of, own / 2, 0, &tile) + row)].extract(comptime!(own % 2));
    #[unroll]
    for chain in 1..comptime!(tile.chains()) {
        sum +=
            sums[comptime!(sums_at(of, own / 2, chain, &tile) + row)].extract(comptime!(own % 2));
    }
    sum
}

/// One step's product of the weights and a copy of `rows`, `[samples, padded units]` or, on the way back, `[samples,
/// padded units]` of four, into a plane's sums. All threads of the cube must have put down what they have of them.
#[cube]
#[allow(clippy::too_many_arguments, reason = "the weights are in three places")]
pub(super) fn multiply<F: Float, N: Size>(
    rows: &Shared<[Vector<F, N>]>,
    copy: usize,
    global: &[Fragment<F>],
    shared: &Shared<[Fragment<F>]>,
    registers: &Array<Two<F>>,
    sums: &mut Array<Two<f32>>,
    #[comptime] tile: FragmentTile,
) {
    let multiplier = MmaDefinition::<F, F, f32>::new(16usize, 8usize, 16usize);
    let own = comptime!(tile.own_tiles());
    clear(sums, tile);
    let begin = CUBE_POS_Y as usize * comptime!(tile.vectors(tile.steps()));
    #[unroll]
    for both in 0..comptime!(tile.steps() / 2) {
        let mut samples = Sequence::<Array<Two<F>>>::new();
        #[unroll]
        for of in 0..comptime!(tile.tiles) {
            samples.push(samples_of::<F, N>(&multiplier, rows, copy, of, both, tile));
        }
        #[unroll]
        for at in 0..comptime!(2 * own) {
            let (half, of) = comptime!((at / own, at % own));
            let step = comptime!(2 * both + half);
            let weights = weights_of::<F>(global, shared, registers, begin, of, step, tile);
            #[unroll]
            for column in 0..comptime!(tile.tiles) {
                let mut two = Array::<Two<F>>::new(2usize);
                two[0] = samples.index(column)[comptime!(2 * half)];
                two[1] = samples.index(column)[comptime!(2 * half + 1)];
                let at = comptime!(sums_at(of, column, step % tile.chains(), &tile));
                let mut total = Array::<Two<f32>>::new(2usize);
                total[0] = sums[at];
                total[1] = sums[comptime!(at + 1)];
                let total = multiplier.execute(&weights, &two, &total);
                sums[at] = total[0];
                sums[comptime!(at + 1)] = total[1];
            }
        }
    }
}

/// The part of eight samples that two steps multiply, two registers for each.
#[cube]
fn samples_of<F: Float, N: Size>(
    multiplier: &MmaDefinition<F, F, f32>,
    rows: &Shared<[Vector<F, N>]>,
    copy: usize,
    #[comptime] of: usize,
    #[comptime] both: usize,
    #[comptime] tile: FragmentTile,
) -> Array<Two<F>> {
    let width = N::value().comptime();
    let lane = UNIT_POS_X as usize;
    let stride = comptime!(tile.rows_stride());
    let row = copy * comptime!(tile.samples()) + comptime!(8 * of) + lane % 8;
    let at = row * stride + comptime!(32 * both) + lane / 8 * 8;
    let row = &rows[at / width..rows.len()];
    multiplier.load_matrix::<Vector<F, N>, Const<2>>(row, MatrixIdent::B, 4usize, false)
}

/// The weights of a plane's tile for a step, from where they are.
#[cube]
fn weights_of<F: Float>(
    global: &[Fragment<F>],
    shared: &Shared<[Fragment<F>]>,
    registers: &Array<Two<F>>,
    begin: usize,
    #[comptime] of: usize,
    #[comptime] step: usize,
    #[comptime] tile: FragmentTile,
) -> Array<Two<F>> {
    let [first, end] = comptime!(tile.steps_in(Place::Shared));
    if comptime!(step < first) {
        let mut four = Array::<Two<F>>::new(4usize);
        #[unroll]
        for register in 0..4usize {
            four[register] = registers[comptime!((step * tile.own_tiles() + of) * 4 + register)];
        }
        four
    } else if comptime!(step < end) {
        pairs_of::<F>(shared[comptime!(tile.vectors(step - first)) + place_of(of, tile)])
    } else {
        pairs_of::<F>(global[begin + comptime!(tile.vectors(step)) + place_of(of, tile)])
    }
}
