//! The control groups that bound the memory of this process: those of version 1 (the controller has a hierarchy of its
//! own) and of version 2, its own and all around it.
//!
//! What is left of a limit is not limit minus usage: files that were read count as used until somebody needs the
//! memory. They are given back by half, as the kernel's own estimate (`MemAvailable`) does it. Pages of memory volumes
//! are never.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use bivouac_types::mount_table::{MountLine, mount_lines, unescape};

/// Limits above this stand for none: version 1 writes a number near the largest then.
const UNLIMITED: u64 = 1 << 60;

/// A group with a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) dir: PathBuf,
    pub(crate) limit: u64,
    used: u64,
}

impl Group {
    /// Returns the number of bytes that its processes may still take.
    pub(crate) fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// Syntax of one version.
struct Version {
    /// Name of the controller in a process's list; empty in version 2.
    controller: &'static str,
    /// Its file system's type.
    kind: &'static str,
    limits: &'static [&'static str],
    usage: &'static str,
    /// Prefix of the figures that include groups below.
    prefix: &'static str,
    /// The file that counts processes killed for memory.
    kills: &'static str,
}

const VERSIONS: [Version; 2] = [
    Version {
        controller: "memory",
        kind: "cgroup",
        limits: &["memory.limit_in_bytes"],
        usage: "memory.usage_in_bytes",
        prefix: "total_",
        kills: "memory.oom_control",
    },
    Version {
        controller: "",
        kind: "cgroup2",
        limits: &["memory.max", "memory.high"],
        usage: "memory.current",
        prefix: "",
        kills: "memory.events",
    },
];

/// Returns all groups around this process that have a limit.
pub(crate) fn groups(read: impl Fn(&Path) -> Option<String>) -> Vec<Group> {
    let dirs = |version: &'static Version| dirs_of(version, &read).into_iter().map(move |dir| (version, dir));
    VERSIONS.iter().flat_map(dirs).filter_map(|(version, dir)| group_at(version, dir, &read)).collect()
}

/// Returns the number of processes of this process's group that were killed for memory so far.
pub(crate) fn kills(read: impl Fn(&Path) -> Option<String>) -> u64 {
    let count = |text: String| number_of(&text, "oom_kill");
    let own = |version| dirs_of(version, &read).into_iter().next();
    let of_groups =
        VERSIONS.iter().filter_map(|version| count(read(&own(version)?.join(version.kills))?)).max();
    // The kernel counts for the whole machine what no group does.
    of_groups.or_else(|| count(read(Path::new("/proc/vmstat"))?)).unwrap_or(0)
}

/// Returns the directories of this process's group and those around it, the innermost first.
fn dirs_of(version: &Version, read: &impl Fn(&Path) -> Option<String>) -> Vec<PathBuf> {
    let group =
        read(Path::new("/proc/self/cgroup")).and_then(|text| group_of(version, &text).map(str::to_owned));
    let mounts = read(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    let mounted = mount_lines(mounts.as_bytes()).find_map(|mount| mounted_at(version, mount));
    let (Some(group), Some((root, at))) = (group, mounted) else { return Vec::new() };
    // A container sees its own part of the hierarchy, and may be told its group from the machine's point of view.
    let below = Path::new(&group).strip_prefix(&root).unwrap_or(Path::new(""));
    let innermost = at.join(below);
    innermost.ancestors().take_while(|dir| dir.starts_with(&at)).map(Path::to_owned).collect()
}

/// Returns the path of the group in a hierarchy.
fn group_of<'a>(version: &Version, text: &'a str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        controllers.split(',').any(|controller| controller == version.controller).then_some(path)
    })
}

/// Returns the part of a hierarchy that is mounted, and its place.
fn mounted_at(version: &Version, mount: MountLine<'_>) -> Option<(PathBuf, PathBuf)> {
    let has_controller = |option: &[u8]| option == version.controller.as_bytes();
    let is_it = mount.fs_type == version.kind.as_bytes()
        && (version.controller.is_empty()
            || mount.fs_options.split(|byte| *byte == b',').any(has_controller));
    let path = |field| PathBuf::from(OsString::from_vec(unescape(field)));
    is_it.then(|| (path(mount.root), path(mount.dir)))
}

fn group_at(version: &Version, dir: PathBuf, read: &impl Fn(&Path) -> Option<String>) -> Option<Group> {
    let number = |name: &str| read(&dir.join(name))?.trim().parse::<u64>().ok();
    let limit =
        version.limits.iter().filter_map(|name| number(name)).min().filter(|limit| *limit < UNLIMITED)?;
    let stat = read(&dir.join("memory.stat")).unwrap_or_default();
    let figure = |name: &str| number_of(&stat, &format!("{}{name}", version.prefix)).unwrap_or(0);
    let files = figure("inactive_file").saturating_add(figure("active_file"));
    let used = number(version.usage)?.saturating_sub(files / 2);
    Some(Group { dir, limit, used })
}

fn number_of(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    const V2: &str = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    fn files<'a>(all: &'a [(&'a str, &'a str)]) -> impl Fn(&Path) -> Option<String> + 'a {
        |path| all.iter().find(|(name, _)| path == Path::new(name)).map(|(_, text)| (*text).to_owned())
    }

    /// S326.
    #[test]
    fn limits_of_version_1_are_read_on_the_whole_way_up() {
        let top = "/sys/fs/cgroup/memory";
        let all = [
            ("/proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/slurm/job/step\n0::/\n"),
            ("/proc/self/mountinfo", V1),
            (&format!("{top}/slurm/job/step/memory.limit_in_bytes"), "9223372036854771712\n"),
            (&format!("{top}/slurm/job/memory.limit_in_bytes"), "419430400\n"),
            (&format!("{top}/slurm/job/memory.usage_in_bytes"), "219430400\n"),
            (
                &format!("{top}/slurm/job/memory.stat"),
                "inactive_file 1\ntotal_inactive_file 60\ntotal_active_file 40\n",
            ),
            (&format!("{top}/slurm/memory.limit_in_bytes"), "1000000000000\n"),
            (&format!("{top}/slurm/memory.usage_in_bytes"), "0\n"),
        ]
        .map(|(name, text)| (name.to_owned(), text.to_owned()));
        let all: Vec<(&str, &str)> = all.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let found = groups(files(&all));
        let lefts: Vec<u64> = found.iter().map(Group::left).collect();
        assert_eq!(lefts, [200_000_050, 1_000_000_000_000], "half of what files take is given back");
        assert_eq!(found[0].dir, Path::new(top).join("slurm/job"));
    }

    /// S326.
    #[test]
    fn limits_of_version_2_are_read_where_they_are_mounted() {
        let all = [
            ("/proc/self/cgroup", "0::/job/step\n"),
            ("/proc/self/mountinfo", V2),
            ("/sys/fs/cgroup/unified/job/step/memory.max", "max\n"),
            ("/sys/fs/cgroup/unified/job/step/memory.high", "5000\n"),
            ("/sys/fs/cgroup/unified/job/step/memory.current", "400\n"),
            ("/sys/fs/cgroup/unified/job/memory.max", "1000\n"),
            ("/sys/fs/cgroup/unified/job/memory.current", "300\n"),
        ];
        let lefts: Vec<u64> = groups(files(&all)).iter().map(Group::left).collect();
        assert_eq!(lefts, [4600, 700]);
        assert_eq!(groups(files(&[])), []);
    }

    #[test]
    fn a_container_sees_its_part() {
        let all = [
            ("/proc/self/cgroup", "4:memory:/docker/x/inner\n"),
            (
                "/proc/self/mountinfo",
                "35 31 0:32 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            ),
            ("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "1000\n"),
            ("/sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "1\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "500\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "2\n"),
        ];
        let lefts: Vec<u64> = groups(files(&all)).iter().map(Group::left).collect();
        assert_eq!(lefts, [999, 498]);
    }

    #[test]
    fn what_was_killed_for_memory_is_counted() {
        let v1 = [
            ("/proc/self/cgroup", "4:memory:/job\n0::/\n"),
            ("/proc/self/mountinfo", V1),
            ("/sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
        ];
        assert_eq!(kills(files(&v1)), 3);
        assert_eq!(kills(files(&[("/proc/vmstat", "pgfault 7\noom_kill 2\n")])), 2);
        assert_eq!(kills(files(&[])), 0);
    }
}
