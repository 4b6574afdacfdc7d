//! What Linux alone tells about processes and memory, from `/proc` (proc(5)). Elsewhere nothing is
//! known, and nothing here fails.

/// Counters that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counters {
    /// Page faults of this process that needed no disk.
    pub(crate) minor_faults: Option<f64>,
    /// Page faults of this process that a disk served.
    pub(crate) major_faults: Option<f64>,
    /// Bytes that this process read by calls, from the page cache or a disk.
    pub(crate) read_by_calls: Option<f64>,
    /// Busy ticks, all ticks, and hardware threads of the whole machine.
    ticks: Option<[f64; 3]>,
}

impl Counters {
    pub(crate) fn read() -> Self {
        let text = |path| std::fs::read_to_string(path).ok();
        let faults = text("/proc/self/stat").as_deref().and_then(faults);
        Self {
            minor_faults: faults.map(|faults| faults[0]),
            major_faults: faults.map(|faults| faults[1]),
            read_by_calls: text("/proc/self/io").and_then(|text| field(&text, "rchar:")),
            ticks: text("/proc/stat").as_deref().and_then(ticks),
        }
    }

    /// Hardware threads of the whole machine that were busy on average.
    pub(crate) fn busy_since(&self, before: &Self) -> Option<f64> {
        let ([busy, all, threads], [busy_before, all_before, _]) = (self.ticks?, before.ticks?);
        (all > all_before).then(|| threads * ((busy - busy_before) / (all - all_before)).max(0.0))
    }
}

/// Bytes in the page cache of the machine.
pub(crate) fn page_cache_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    field(&text, "Cached:").map(|kib| kib as u64 * 1024)
}

/// The number after a name at the start of a line.
fn field(text: &str, name: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Minor and major faults: fields 10 and 12 of `/proc/self/stat`. The second field, the program's
/// name in parentheses, may hold anything.
fn faults(stat: &str) -> Option<[f64; 2]> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    Some([number(10)?, number(12)?])
}

/// Busy ticks, all ticks and hardware threads, of the lines of `/proc/stat` that begin with `cpu`.
fn ticks(stat: &str) -> Option<[f64; 3]> {
    let mut lines = stat.lines().filter(|line| line.starts_with("cpu"));
    let all: Vec<f64> =
        lines.next()?.split_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
    let idle = all.get(3)? + all.get(4)?;
    let total: f64 = all.iter().sum();
    Some([total - idle, total, lines.count() as f64])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_those_of_the_manual_page() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1234 55 6 0 30 9 0 0 20 0 3 0 100 5 6";
        assert_eq!(faults(stat), Some([1234.0, 6.0]));
        assert_eq!(faults("7 (short) S 1"), None);
        let text =
            "cpu  10 0 20 60 10 0 0 0 0 0\ncpu0 5 0 10 30 5 0 0 0\ncpu1 5 0 10 30 5 0 0 0\nintr 1";
        assert_eq!(ticks(text), Some([30.0, 100.0, 2.0]));
        assert_eq!(ticks("intr 1"), None);
        assert_eq!(field("rchar: 12\nwchar: 5\n", "wchar:"), Some(5.0));
        assert_eq!(field("rchar: x", "rchar:"), None);
    }

    #[test]
    fn busy_threads_are_a_share_of_all() {
        let at = |busy, all| Counters { ticks: Some([busy, all, 4.0]), ..Counters::default() };
        assert_eq!(at(150.0, 400.0).busy_since(&at(100.0, 300.0)), Some(2.0));
        assert_eq!(at(100.0, 300.0).busy_since(&at(100.0, 300.0)), None);
        assert_eq!(Counters::default().busy_since(&at(1.0, 1.0)), None);
    }
}
