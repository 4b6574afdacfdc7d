//! What Linux alone tells about processes and memory, from `/proc` (proc(5)). Elsewhere nothing is
//! known, and nothing here fails.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

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
    /// Hardware threads of the whole machine that were busy on average; none where it has more than these, on which
    /// others may be busy without taking anything of this process.
    pub(crate) fn busy_since(&self, before: &Self, own: u32) -> Option<f64> {
        let ([busy, all, threads], [busy_before, all_before, _]) = (self.ticks?, before.ticks?);
        let known = all > all_before && threads <= f64::from(own);
        known.then(|| threads * ((busy - busy_before) / (all - all_before)).max(0.0))
    }
}

/// What this process has done and takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Process {
    pub(crate) cpu_seconds: f64,
    pub(crate) resident_bytes: u64,
    /// Bytes that a disk gave and took.
    pub(crate) disk_read: f64,
    pub(crate) disk_written: f64,
}

/// Bytes of the machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) all: u64,
    pub(crate) available: u64,
    pub(crate) page_cache: u64,
}

/// Reads the files of `/proc`. They are kept open, and each is read at once: a sample a second must
/// cost next to nothing.
#[derive(Default)]
pub(crate) struct Reader {
    process: Kept,
    traffic: Kept,
    machine: Kept,
    memory: Kept,
    /// Bytes of a page of memory, and ticks of a second of processor time.
    units: Option<(f64, f64)>,
}

impl Reader {
    pub(crate) fn open() -> Self {
        Self {
            process: Kept::open("/proc/self/stat"),
            traffic: Kept::open("/proc/self/io"),
            machine: Kept::open("/proc/stat"),
            memory: Kept::open("/proc/meminfo"),
            units: std::fs::read("/proc/self/auxv").ok().and_then(|bytes| units(&bytes)),
        }
    }

    /// The process, where the system tells of it, and everything else that is counted.
    pub(crate) fn counters(&mut self) -> (Option<Process>, Counters) {
        let stat = self.process.text().and_then(Stat::of);
        let traffic = self.traffic.text().unwrap_or_default();
        let of = |name| field(traffic, name);
        let counters = Counters {
            minor_faults: stat.map(|stat| stat.minor_faults),
            major_faults: stat.map(|stat| stat.major_faults),
            read_by_calls: of("rchar:"),
            ticks: self.machine.text().and_then(ticks),
        };
        let process = stat.zip(self.units).map(|(stat, (page, second))| Process {
            cpu_seconds: stat.ticks / second,
            resident_bytes: (stat.pages * page) as u64,
            disk_read: of("read_bytes:").unwrap_or(0.0),
            disk_written: of("write_bytes:").unwrap_or(0.0),
        });
        (process, counters)
    }

    /// The memory of the machine.
    pub(crate) fn memory(&mut self) -> Option<Memory> {
        let text = self.memory.text()?;
        let bytes = |name| field(text, name).map(|kib| kib as u64 * 1024);
        Some(Memory {
            all: bytes("MemTotal:")?,
            available: bytes("MemAvailable:")?,
            page_cache: bytes("Cached:")?,
        })
    }
}

/// A file that is read from its beginning again and again.
#[derive(Default)]
struct Kept {
    file: Option<File>,
    bytes: Vec<u8>,
}

impl Kept {
    /// Nothing where it cannot be opened.
    fn open(path: &str) -> Self {
        Self { file: File::open(path).ok(), bytes: vec![] }
    }

    fn text(&mut self) -> Option<&str> {
        let Self { file, bytes } = self;
        let file = file.as_mut()?;
        file.seek(SeekFrom::Start(0)).ok()?;
        let mut read = 0;
        loop {
            if bytes.len() - read < ROOM {
                bytes.resize(read + ROOM, 0);
            }
            match file.read(&mut bytes[read..]).ok()? {
                0 => return std::str::from_utf8(&bytes[..read]).ok(),
                more => read += more,
            }
        }
    }
}

/// Bytes that are asked for at once: all of a file, on most machines.
const ROOM: usize = 4096;

/// What `/proc/self/stat` tells that is used here.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stat {
    minor_faults: f64,
    major_faults: f64,
    /// Ticks of processor time, the program's own and the system's for it.
    ticks: f64,
    /// Pages of resident memory.
    pages: f64,
}

impl Stat {
    /// Fields 10, 12, 14, 15 and 24. The second field, the program's name in parentheses, may hold
    /// anything.
    fn of(stat: &str) -> Option<Self> {
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = [0.0; 25];
        for (text, field) in rest.split_ascii_whitespace().skip(1).zip(&mut fields[4..]) {
            *field = text.parse().ok()?;
        }
        let [minor_faults, major_faults, pages] = [10, 12, 24].map(|place: usize| fields[place]);
        // No process is without memory: there are fewer fields.
        let ticks = fields[14] + fields[15];
        (pages > 0.0).then_some(Self { minor_faults, major_faults, ticks, pages })
    }
}

/// Bytes of a page and ticks of a second, of the values that the kernel gives a program
/// (getauxval(3): `AT_PAGESZ` is 6, `AT_CLKTCK` is 17).
fn units(auxiliary: &[u8]) -> Option<(f64, f64)> {
    const WORD: usize = size_of::<usize>();
    let word = |bytes: &[u8]| Some(usize::from_ne_bytes(bytes.try_into().ok()?));
    let value = |wanted: usize| {
        let pair =
            auxiliary.chunks_exact(2 * WORD).find(|pair| word(&pair[..WORD]) == Some(wanted));
        word(&pair?[WORD..]).map(|value| value as f64)
    };
    Some((value(6)?, value(17)?))
}

/// Bytes of this process's memory that are no pages of files, whether its allocator has them in use or keeps them.
pub(crate) fn anonymous_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    field(&status, "RssAnon:").map(|kib| kib as u64 * 1024)
}

/// The number after a name at the start of a line.
fn field(text: &str, name: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Busy ticks, all ticks and hardware threads, of the lines of `/proc/stat` that begin with `cpu`. What the hypervisor
/// of a virtual machine gave others (`steal`) counts as idle: no process of this machine had it.
fn ticks(stat: &str) -> Option<[f64; 3]> {
    let mut lines = stat.lines().filter(|line| line.starts_with("cpu"));
    let all: Vec<f64> =
        lines.next()?.split_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
    let idle = all.get(3)? + all.get(4)? + all.get(7).unwrap_or(&0.0);
    let total: f64 = all.iter().sum();
    Some([total - idle, total, lines.count() as f64])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_those_of_the_manual_page() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1234 55 6 0 30 9 0 0 20 0 3 0 100 5 60 184";
        let expected = Stat { minor_faults: 1234.0, major_faults: 6.0, ticks: 39.0, pages: 60.0 };
        assert_eq!(Stat::of(stat), Some(expected));
        assert_eq!(Stat::of("7 (short) S 1"), None);
        assert_eq!(Stat::of("7 (odd) S 1 x"), None);
        let text =
            "cpu  10 0 20 60 10 0 0 0 0 0\ncpu0 5 0 10 30 5 0 0 0\ncpu1 5 0 10 30 5 0 0 0\nintr 1";
        assert_eq!(ticks(text), Some([30.0, 100.0, 2.0]));
        // Of a virtual machine, 25 ticks were stolen; those of guests are counted as the user's already.
        let stolen = "cpu  10 0 20 60 10 0 0 25 5 0\ncpu0 10 0 20 60 10 0 0 25 5 0\nintr 1";
        assert_eq!(ticks(stolen), Some([30.0, 125.0, 1.0]));
        assert_eq!(ticks("intr 1"), None);
        assert_eq!(field("rchar: 12\nwchar: 5\n", "wchar:"), Some(5.0));
        assert_eq!(field("rchar: x", "rchar:"), None);
    }

    #[test]
    fn units_are_found_among_the_kernel_s_values() {
        let bytes =
            |all: &[usize]| -> Vec<u8> { all.iter().flat_map(|word| word.to_ne_bytes()).collect() };
        assert_eq!(units(&bytes(&[33, 6, 6, 4096, 17, 100, 0, 0])), Some((4096.0, 100.0)));
        assert_eq!(units(&bytes(&[33, 17, 17])), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_that_is_written_to_is_this_process_s_own() {
        let kept = vec![1u8; 64 << 20];
        // The kernel counts by processor, and may be behind.
        assert!(anonymous_bytes().unwrap() > 32 << 20);
        assert_eq!(kept.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 64 << 20);
    }

    #[test]
    fn a_file_longer_than_a_read_is_whole_and_is_read_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let long = "0123456789".repeat(2000);
        std::fs::write(&path, &long).unwrap();
        let mut kept = Kept::open(path.to_str().unwrap());
        assert_eq!(kept.text(), Some(long.as_str()));
        std::fs::write(&path, "short").unwrap();
        assert_eq!(kept.text(), Some("short"));
        assert_eq!(Kept::open("/there/is/none").text(), None);
    }

    #[test]
    fn busy_threads_are_a_share_of_all() {
        let at = |busy, all| Counters { ticks: Some([busy, all, 4.0]), ..Counters::default() };
        assert_eq!(at(150.0, 400.0).busy_since(&at(100.0, 300.0), 4), Some(2.0));
        assert_eq!(at(100.0, 300.0).busy_since(&at(100.0, 300.0), 4), None);
        assert_eq!(Counters::default().busy_since(&at(1.0, 1.0), 4), None);
        // Of four threads this process has two: the others may be those that are busy.
        assert_eq!(at(150.0, 400.0).busy_since(&at(100.0, 300.0), 2), None);
    }
}
