//! How a launch over several tensors is cut: how many it takes, and which cubes have which.

use super::{Hardware, Team};

/// Tensors of a launch at most: each has a branch of its own in the kernel.
const TENSORS: usize = 32;

/// Numbers that a thread has before the next one joins it.
const EACH: usize = 8;

/// Cubes of a launch at most, for devices that can have more: they stride.
const CUBES: usize = 65_535;

/// Buffers of a launch besides those of its tensors: a table, and the sizes.
const OTHER_BUFFERS: usize = 2;

/// Whether the kernels, which count in 32 bits, can count so many numbers and go a stride beyond them.
pub(crate) fn is_countable(numbers: usize) -> bool {
    numbers <= 1 << 31
}

/// How many tensors, or parameters with as many buffers, a launch can take.
pub(crate) fn tensors_at_once(hardware: &Hardware, buffers: usize) -> usize {
    (hardware.bindings.saturating_sub(OTHER_BUFFERS) / buffers).min(TENSORS)
}

/// The cubes of a launch over several tensors: for each its size, and where its cubes end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sweep {
    pub(crate) sizes: Vec<u32>,
    pub(crate) ends: Vec<u32>,
}

impl Sweep {
    /// For tensors of these sizes.
    pub(crate) fn new(
        hardware: &Hardware,
        team: Team,
        sizes: impl ExactSizeIterator<Item = usize>,
    ) -> Self {
        let most = CUBES.min(hardware.count[0]);
        let most = (most / sizes.len().max(1)).max(1);
        let mut end = 0;
        let (sizes, ends) = sizes
            .map(|size| {
                end += size.div_ceil(team.threads() * EACH).clamp(1, most) as u32;
                (size as u32, end)
            })
            .unzip();
        Self { sizes, ends }
    }

    /// The cubes of all tensors.
    pub(crate) fn cubes(&self) -> u32 {
        self.ends.last().copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::hardware;
    use super::*;

    #[test]
    fn each_tensor_has_cubes_of_its_own() {
        let device = hardware(48 * 1024, 256, None);
        let team = Team::whole(&device);
        let sweep = Sweep::new(&device, team, [1, 2048, 2049, 0].into_iter());
        assert_eq!(sweep, Sweep { sizes: vec![1, 2048, 2049, 0], ends: vec![1, 2, 4, 5] });
        assert_eq!(sweep.cubes(), 5);
        // Large tensors share what there is, and stride.
        let large = Sweep::new(&device, team, [1 << 30, 1, 1 << 30].into_iter());
        assert_eq!(large.ends, [21_845, 21_846, 43_691]);
        assert_eq!(Sweep::new(&device, team, [0; 0].into_iter()).cubes(), 0);
    }

    #[test]
    fn what_32_bits_do_not_count_is_not_taken() {
        assert!(is_countable(0) && is_countable(1 << 31));
        assert!(!is_countable((1 << 31) + 1) && !is_countable(1 << 32));
    }

    #[test]
    fn buffers_limit_what_a_launch_takes() {
        let with = |bindings| Hardware { bindings, ..hardware(48 * 1024, 256, None) };
        let check = |bindings, buffers, expected| {
            assert_eq!(tensors_at_once(&with(bindings), buffers), expected, "{bindings}");
        };
        check(8, 4, 1);
        check(5, 4, 0);
        check(1, 1, 0);
        check(31, 4, 7);
        check(10_000, 1, 32);
    }
}
