//! Memory of the control groups that this process is in, from `/sys/fs/cgroup`
//! (<https://docs.kernel.org/admin-guide/cgroup-v2.html>, and `cgroup-v1/memory.html` there). Where there are none,
//! nothing limits it so.

use std::path::{Path, PathBuf};

use crate::linux::anonymous_bytes;

/// Where control groups are shown.
const MOUNT: &str = "/sys/fs/cgroup";
/// The part of a control group's memory that may be held. The rest is for the program itself, for pages that the
/// allocator keeps, and for files in use; beyond the limit the system kills without a word.
const SHARE: f64 = 0.85;

/// Names of files, and of what in `memory.stat` the system gives up when others need memory.
#[derive(Debug)]
struct Version {
    limit: &'static str,
    used: &'static str,
    given_up: &'static [&'static str],
}

static FIRST: Version = Version {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    given_up: &["total_active_file", "total_inactive_file"],
};
static SECOND: Version = Version {
    limit: "memory.max",
    used: "memory.current",
    given_up: &["active_file", "inactive_file", "slab_reclaimable"],
};

/// The smallest limit on the memory of this process's control group and those around it, in bytes; none where nothing
/// limits it. Where nobody set one, the first version of control groups says more than there is.
pub fn group_limit() -> Option<u64> {
    MemoryGroups::own().0.iter().filter_map(Group::limit).min()
}

/// Bytes that this process may hold at most, by its control group and those around it: 85 % of what other processes of
/// the group leave of its limit now. None where nothing limits it.
pub fn group_leaves() -> Option<u64> {
    MemoryGroups::own().left_by_others(SHARE, anonymous_bytes)
}

/// Bytes of memory that are left in this process's control group and those around it, with what the system gives up of
/// files; none where nothing limits it.
pub fn group_free() -> Option<u64> {
    MemoryGroups::own().below(u64::MAX).map(|limited| limited.available)
}

/// The control group of this process and those around it, as far as they tell a limit on memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryGroups(Vec<Group>);

/// Memory under a limit, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limited {
    /// The limit.
    pub(crate) all: u64,
    /// What is left of it, with what the system keeps of files and gives up when it is needed.
    pub(crate) available: u64,
}

#[derive(Debug)]
struct Group {
    folder: PathBuf,
    version: &'static Version,
}

impl MemoryGroups {
    /// Those of this process.
    pub(crate) fn own() -> Self {
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::of(&groups, Path::new(MOUNT))
    }

    /// Those in the table of a process, shown in a folder.
    fn of(groups: &str, mount: &Path) -> Self {
        let mut found = vec![];
        for line in groups.lines() {
            // The second version has one hierarchy, without a name; the first has one for memory.
            let (root, own, version) = match (line.split_once("::/"), line.split_once(":memory:/"))
            {
                (Some((_, own)), _) => (mount.to_path_buf(), own, &SECOND),
                (None, Some((_, own))) => (mount.join("memory"), own, &FIRST),
                (None, None) => continue,
            };
            let own = root.join(own);
            let around = own.ancestors().take_while(|folder| folder.starts_with(&root));
            let groups = around.map(|folder| Group { folder: folder.to_path_buf(), version });
            found.extend(groups.filter(|group| group.limit().is_some()));
        }
        Self(found)
    }

    /// The smallest limit below that of the machine, and the least that is left of any; none where no limit is.
    pub(crate) fn below(&self, machine: u64) -> Option<Limited> {
        let limits = self.0.iter().filter_map(|group| {
            let all = group.limit().filter(|limit| *limit < machine)?;
            Some(Limited { all, available: all.saturating_sub(group.needed()?) })
        });
        limits.reduce(|one, other| Limited {
            all: one.all.min(other.all),
            available: one.available.min(other.available),
        })
    }

    /// This share of the least that other processes leave of a limit, where this one says how many bytes it holds that
    /// are no pages of files. Where it cannot say so, nothing is known of others, and they leave all.
    fn left_by_others(&self, share: f64, own: impl Fn() -> Option<u64>) -> Option<u64> {
        let left = self.0.iter().filter_map(|group| {
            let limit = group.limit()?;
            let others = group.needed().zip(own()).map_or(0, |(all, own)| all.saturating_sub(own));
            Some((limit.saturating_sub(others) as f64 * share) as u64)
        });
        left.min()
    }
}

impl Group {
    /// Its limit, if it has one: the second version says `max` where there is none.
    fn limit(&self) -> Option<u64> {
        self.number(self.version.limit)
    }

    /// Bytes that its processes use and the system cannot give up: without pages of files, which it reads again.
    fn needed(&self) -> Option<u64> {
        let used = self.number(self.version.used)?;
        let table = std::fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let given_up = table.lines().filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            self.version.given_up.contains(&name).then(|| bytes.trim().parse::<u64>().ok())?
        });
        Some(used.saturating_sub(given_up.sum()))
    }

    fn number(&self, file: &str) -> Option<u64> {
        std::fs::read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, files: &[(&str, &str)]) {
        std::fs::create_dir_all(folder).unwrap();
        for (name, text) in files {
            std::fs::write(folder.join(name), format!("{text}\n")).unwrap();
        }
    }

    fn limited(all: u64, available: u64) -> Option<Limited> {
        Some(Limited { all, available })
    }

    #[test]
    fn pages_of_files_are_no_memory_in_use_and_limits_may_be_anywhere_around() {
        let mount = tempfile::tempdir().unwrap();
        let (slice, own) = (mount.path().join("user.slice"), mount.path().join("user.slice/run-1"));
        // 900 in use, of which 500 + 150 + 50 are given up; pages of `shmem` and `anon` are not.
        let stat = "anon 120\nfile 700\nshmem 50\nactive_file 500\ninactive_file 150\n\
                    slab_reclaimable 50\nslab_unreclaimable 30";
        write(&slice, &[("memory.max", "1000"), ("memory.current", "900"), ("memory.stat", stat)]);
        write(&own, &[("memory.max", "max"), ("memory.current", "800")]);
        let of = |table: &str| MemoryGroups::of(table, mount.path());
        let groups = of("1:net_cls:/x\n0::/user.slice/run-1\n");
        assert_eq!(groups.below(5000), limited(1000, 800));
        // A limit that the machine does not reach is none.
        assert_eq!(groups.below(1000), None);
        // Another one, within it, of which less is left.
        write(&own, &[("memory.max", "950"), ("memory.stat", "active_file 10")]);
        let groups = of("0::/user.slice/run-1");
        assert_eq!(groups.below(5000), limited(950, 160));
        assert_eq!(groups.0.iter().filter_map(Group::limit).min(), Some(950));
        for none in ["", "0::/", "0::/elsewhere", "1:cpu:/user.slice"] {
            assert_eq!(of(none).below(5000), None, "{none}");
        }
    }

    #[test]
    fn what_others_hold_under_a_limit_is_taken() {
        let mount = tempfile::tempdir().unwrap();
        let (around, own) = (mount.path().join("pod"), mount.path().join("pod/run"));
        let stat = "anon 700\nactive_file 100";
        write(&around, &[("memory.max", "1000"), ("memory.current", "800"), ("memory.stat", stat)]);
        write(&own, &[("memory.max", "max"), ("memory.current", "50")]);
        let left = |table: &str, share, own| {
            MemoryGroups::of(table, mount.path()).left_by_others(share, || own)
        };
        // 700 cannot be given up, of which 60 are this process's: 640 of 1000 are others'.
        let table = "0::/pod/run";
        assert_eq!([1.0, 0.85].map(|share| left(table, share, Some(60))), [Some(360), Some(306)]);
        // They hold nothing where all is this process's, nor where it does not know what is its own.
        assert_eq!([left(table, 0.85, Some(900)), left(table, 0.85, None)], [Some(850); 2]);
        // More than the limit for a moment, and nearly all of it.
        write(&around, &[("memory.current", "1200")]);
        assert_eq!(left(table, 0.85, Some(10)), Some(0));
        write(&around, &[("memory.current", "1000")]);
        assert_eq!(left(table, 0.85, Some(10)), Some(93));
        // The group that leaves less, whichever limit is the smaller one.
        write(&own, &[("memory.max", "400")]);
        assert_eq!(left(table, 1.0, Some(50)), Some(150));
        write(&around, &[("memory.current", "500")]);
        assert_eq!(left(table, 1.0, Some(50)), Some(400));
        assert_eq!(left("0::/elsewhere", 1.0, Some(50)), None);
    }

    #[test]
    fn the_first_version_has_a_hierarchy_for_memory() {
        let mount = tempfile::tempdir().unwrap();
        // A container sees its own group as the root, under the name that it has outside.
        let root = mount.path().join("memory");
        let stat =
            "cache 600\nrss 200\nactive_file 1\ntotal_active_file 400\ntotal_inactive_file 100";
        let files = [
            ("memory.limit_in_bytes", "1000"),
            ("memory.usage_in_bytes", "800"),
            ("memory.stat", stat),
        ];
        write(&root, &files);
        let groups =
            MemoryGroups::of("4:memory:/docker/0123\n1:name=systemd:/docker", mount.path());
        assert_eq!(groups.below(5000), limited(1000, 700));
    }
}
