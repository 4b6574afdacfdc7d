//! How rows are spread over threads and cubes, where threads work on one row together.

use super::Hardware;

/// The threads of a cube as `rows` teams beside each other, each of `columns` threads; both are powers
/// of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Team {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

/// Threads of a cube, if the device can have as many.
const THREADS: usize = 256;

/// Numbers that a thread should have of a row before another one joins it.
const EACH: usize = 4;

/// Cubes for each processor of the device where each leaves sums to be added up.
const CUBES_EACH: usize = 4;

impl Team {
    /// The whole cube as one team.
    pub(crate) fn whole(hardware: &Hardware) -> Self {
        Self { columns: threads(hardware), rows: 1 }
    }

    /// Teams for rows of `width` numbers.
    fn of_rows(hardware: &Hardware, width: usize) -> Self {
        let threads = threads(hardware);
        let columns = width.div_ceil(EACH).next_power_of_two().min(threads);
        let rows = (threads / columns).min(below(hardware.dim[1]));
        Self { columns, rows }
    }

    /// The threads of a cube.
    pub(crate) fn dim(&self) -> [usize; 2] {
        [self.columns, self.rows]
    }

    /// All threads of a cube.
    pub(crate) fn threads(&self) -> usize {
        self.columns * self.rows
    }
}

/// How rows are spread over cubes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spread {
    pub(crate) team: Team,
    /// Blocks of rows, each with one for each team of a cube.
    pub(crate) blocks: usize,
    /// Cubes, as many as there are blocks if the device can have them: they stride.
    pub(crate) cubes: usize,
}

impl Spread {
    /// For rows of `width` numbers.
    pub(crate) fn new(hardware: &Hardware, rows: usize, width: usize) -> Self {
        let team = Team::of_rows(hardware, width);
        let blocks = rows.div_ceil(team.rows);
        Self { team, blocks, cubes: blocks.min(hardware.count[0]) }
    }

    /// The same over few cubes, each of which leaves sums of its rows.
    pub(crate) fn summed(hardware: &Hardware, rows: usize, width: usize) -> Self {
        let spread = Self::new(hardware, rows, width);
        Self { cubes: spread.cubes.min(CUBES_EACH * hardware.processors()), ..spread }
    }
}

/// How a matrix is spread over cubes where each column is added up by itself: threads beside each other
/// take columns beside each other, so that memory is read in runs, and the teams of a cube take rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    pub(crate) team: Team,
    /// Blocks of columns, each of one cube's width.
    pub(crate) blocks: usize,
    /// Cubes of each block, which share the rows by strides.
    pub(crate) cubes: usize,
}

/// Columns that a cube takes beside each other at most: a run of memory of 128 bytes in f32.
const RUN: usize = 32;

/// Rows that a thread should have before another cube joins.
const ROWS_EACH: usize = 16;

/// Buffers that a kernel of a batch normalisation binds at most, numbers included.
const COLUMN_BUFFERS: usize = 7;

impl Columns {
    /// For a matrix of so many rows and columns.
    pub(crate) fn new(hardware: &Hardware, rows: usize, width: usize) -> Self {
        let threads = threads(hardware);
        let columns = width.next_power_of_two().min(RUN).min(threads);
        let team = Team { columns, rows: (threads / columns).min(below(hardware.dim[1])) };
        let blocks = width.div_ceil(columns);
        let most = (CUBES_EACH * hardware.processors()).div_ceil(blocks);
        let cubes = rows.div_ceil(team.rows * ROWS_EACH).min(most).min(hardware.count[1]).max(1);
        Self { team, blocks, cubes }
    }

    /// For the sums of so many matrices, whose rows may be few and wide.
    pub(crate) fn summed(hardware: &Hardware, matrices: usize, rows: usize, width: usize) -> Self {
        if rows >= ROWS_EACH {
            let columns = Self::new(hardware, rows, width);
            return Self { cubes: columns.cubes.div_ceil(matrices), ..columns };
        }
        let columns = width.next_power_of_two().min(threads(hardware));
        let team = Team { columns, rows: 1 };
        Self { team, blocks: width.div_ceil(columns), cubes: 1 }
    }

    /// Whether the device can be given so many cubes at once, those of all matrices behind each other.
    pub(crate) fn fit(&self, hardware: &Hardware, matrices: usize) -> bool {
        let [along, down] = hardware.count;
        self.blocks <= along && self.cubes <= down && matrices <= down
    }

    /// The same with one cube for each block of columns.
    pub(crate) fn alone(self) -> Self {
        Self { cubes: 1, ..self }
    }
}

/// How the places of an embedding are spread: a cube takes one after the other, and its threads the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scatter {
    /// Threads of a cube, a power of two.
    pub(crate) threads: usize,
    /// Cubes, as many as there are places if the device can have them: they stride.
    pub(crate) cubes: usize,
}

impl Scatter {
    /// For so many places of a table of this width.
    pub(crate) fn new(hardware: &Hardware, places: usize, width: usize) -> Self {
        let threads = width.next_power_of_two().max(RUN).min(threads(hardware));
        Self { threads, cubes: places.min(hardware.count[0]) }
    }
}

/// Rows that a part of a long product has at least.
const PART: usize = 512;

/// Numbers of a result that one cube makes, at about which a product keeps few of them busy.
const PRODUCT_TILE: usize = 128 * 128;

/// Cubes that are enough for a large device.
const PRODUCT_CUBES: usize = 256;

/// How many parts the rows are cut into that a product sums over, where its result has so few numbers that it would keep a few
/// processors of the device busy. A power of two that divides them.
pub(crate) fn product_parts(rows: usize, numbers: usize) -> usize {
    let busy = numbers.div_ceil(PRODUCT_TILE);
    let mut parts = 1;
    while parts * busy < PRODUCT_CUBES
        && rows.is_multiple_of(2 * parts)
        && rows / (2 * parts) >= PART
    {
        parts *= 2;
    }
    parts
}

/// Whether a device can run the kernels of a batch normalisation of so many channels.
pub(crate) fn batch_norm_fits(hardware: &Hardware, width: usize) -> bool {
    let Columns { team, blocks, .. } = Columns::new(hardware, 1, width);
    // Each thread of a cube leaves three sums.
    4 * 3 * team.threads() <= hardware.shared_memory
        && hardware.bindings >= COLUMN_BUFFERS
        && blocks <= hardware.count[0]
}

/// Whether a device has the shared memory for the gradients of a normalisation of rows of this width.
pub(crate) fn norm_fits(hardware: &Hardware, width: usize) -> bool {
    let team = Team::of_rows(hardware, width);
    4 * (2 * width * team.rows + team.threads()) <= hardware.shared_memory
}

fn threads(hardware: &Hardware) -> usize {
    below(hardware.threads.min(hardware.dim[0]).min(THREADS))
}

/// The largest power of two up to a number.
fn below(number: usize) -> usize {
    1 << number.max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::super::tests::hardware;
    use super::*;

    #[test]
    fn a_thread_has_four_numbers_of_a_row_as_long_as_there_are_threads() {
        let device = hardware(48 * 1024, 1024, Some(64));
        let check = |width, columns, rows| {
            assert_eq!(Team::of_rows(&device, width), Team { columns, rows }, "{width}");
        };
        check(1, 1, 256);
        check(17, 8, 32);
        check(128, 32, 8);
        check(768, 256, 1);
        check(100_000, 256, 1);
        assert_eq!(Team::whole(&device), Team { columns: 256, rows: 1 });
        // Powers of two where the device's numbers are none.
        let odd = Hardware { dim: [200, 5], ..device.clone() };
        assert_eq!(Team::of_rows(&odd, 17), Team { columns: 8, rows: 4 });
        assert_eq!(Team::whole(&odd), Team { columns: 128, rows: 1 });
    }

    #[test]
    fn more_blocks_than_a_device_has_cubes_are_strided_over() {
        let few = Hardware { count: [10, 1], ..hardware(48 * 1024, 256, Some(2)) };
        let Spread { blocks, cubes, .. } = Spread::new(&few, 1000, 128);
        assert_eq!((blocks, cubes), (125, 10));
        let Spread { blocks, cubes, .. } = Spread::summed(&few, 1000, 128);
        assert_eq!((blocks, cubes), (125, 8));
        assert_eq!(Spread::new(&few, 9, 128).cubes, 2);
    }

    #[test]
    fn long_sums_for_few_numbers_are_cut_into_parts_that_divide_them() {
        let gradient = 128 * 512;
        assert_eq!(product_parts(512 * 105, gradient), 64);
        assert_eq!(product_parts(512 * 105, 3072 * 768), 2);
        // Not enough rows for two parts, an odd number of them, and a result that keeps a device busy by itself.
        assert_eq!(product_parts(1022, gradient), 1);
        assert_eq!(product_parts(26_881, gradient), 1);
        assert_eq!(product_parts(1 << 20, 4096 * 4096), 1);
    }

    #[test]
    fn sums_of_few_wide_rows_take_a_thread_a_column_and_long_ones_share_the_cubes() {
        let hardware = hardware(227 * 1024, 1024, Some(132));
        let few = Columns::summed(&hardware, 1, 2, 3072 * 768);
        assert_eq!((few.team.rows, few.cubes), (1, 1));
        assert!(few.blocks * few.team.columns >= 3072 * 768);
        let [one, two] = [1, 2].map(|count| Columns::summed(&hardware, count, 53_760, 512));
        assert_eq!(one, Columns::new(&hardware, 53_760, 512));
        assert_eq!(two, Columns { cubes: one.cubes.div_ceil(2), ..one });
    }

    #[test]
    fn columns_are_read_in_runs_and_cubes_share_the_rows() {
        let device = hardware(48 * 1024, 1024, Some(64));
        let check = |rows, width, team: (usize, usize), blocks, cubes| {
            let team = Team { columns: team.0, rows: team.1 };
            assert_eq!(Columns::new(&device, rows, width), Columns { team, blocks, cubes });
        };
        check(1, 1, (1, 256), 1, 1);
        check(53_760, 64, (32, 8), 2, 128);
        check(53_760, 5, (8, 32), 1, 105);
        // One more than a run takes another block, and no cube is without rows to do.
        check(129, 33, (32, 8), 2, 2);
        check(512, 420, (32, 8), 14, 4);
        assert_eq!(Columns::new(&device, 53_760, 64).alone().cubes, 1);
        let few = Hardware { count: [10, 3], dim: [16, 4], ..device.clone() };
        let Columns { team, blocks, cubes } = Columns::new(&few, 53_760, 64);
        assert_eq!((team.columns, team.rows, blocks, cubes), (16, 1, 4, 3));
        assert!(batch_norm_fits(&few, 160) && !batch_norm_fits(&few, 161));
        assert!(!batch_norm_fits(&Hardware { bindings: 6, ..device.clone() }, 64));
        assert!(!batch_norm_fits(&Hardware { shared_memory: 2048, ..device }, 64));
    }

    #[test]
    fn places_of_an_embedding_have_a_cube_each() {
        let device = hardware(48 * 1024, 1024, Some(64));
        assert_eq!(Scatter::new(&device, 2048, 768), Scatter { threads: 256, cubes: 2048 });
        assert_eq!(Scatter::new(&device, 5, 1), Scatter { threads: 32, cubes: 5 });
        let few = Hardware { count: [10, 1], threads: 20, ..device };
        assert_eq!(Scatter::new(&few, 2048, 100), Scatter { threads: 16, cubes: 10 });
    }

    #[test]
    fn a_normalisation_has_each_row_in_shared_memory_twice() {
        let small = hardware(16 * 1024, 256, None);
        assert!(norm_fits(&small, 1920) && !norm_fits(&small, 1921));
        assert!(norm_fits(&small, 1));
    }
}
