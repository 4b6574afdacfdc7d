//! Limits that the system sets this process on its memory. Linux alone says them; those of its control group are in
//! `firebox_train::memory`.

/// Bytes of memory of each kind that this process may have; none where nothing limits them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Addresses: `ulimit -v`.
    pub(crate) addresses: Option<u64>,
    /// Data: `ulimit -d`.
    pub(crate) data: Option<u64>,
}

/// The least memory, in bytes, that the system lets this process have of addresses or of data; none where nothing limits it.
pub fn memory_limit() -> Option<u64> {
    let Limits { addresses, data } = Limits::now();
    [addresses, data].into_iter().flatten().min()
}

impl Limits {
    /// Those of now.
    pub(crate) fn now() -> Self {
        Self::of(&std::fs::read_to_string("/proc/self/limits").unwrap_or_default())
    }

    /// Those in force in the table of a process.
    fn of(table: &str) -> Self {
        let limit = |name: &str| {
            let rest = table.lines().find_map(|line| line.strip_prefix(name))?;
            rest.split_whitespace().next()?.parse::<u64>().ok()
        };
        Self { addresses: limit("Max address space"), data: limit("Max data size") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_in_force_are_read_and_none_is_none() {
        let table = "Limit                     Soft Limit           Hard Limit           Units\n\
                     Max cpu time              7                    unlimited            seconds\n\
                     Max data size             409600000            819200000            bytes\n\
                     Max address space         unlimited            unlimited            bytes\n";
        assert_eq!(Limits::of(table), Limits { addresses: None, data: Some(409_600_000) });
        let other = table.replace("unlimited            unlimited", "1024                 2048");
        assert_eq!(Limits::of(&other).addresses, Some(1024));
        assert_eq!(Limits::of(""), Limits::default());
    }
}
