//! How much memory a formation may take on this machine.

use std::path::Path;

/// Bytes of memory that are free for programs, as the kernel estimates it and as the control groups of
/// this process allow.
#[must_use]
pub fn available_memory() -> u64 {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| meminfo_available(&text)).unwrap_or(0);
    let group = read(Path::new("/proc/self/cgroup")).and_then(|text| unified_group(&text).map(str::to_owned));
    group.and_then(|group| group_available(&group, read)).map_or(machine, |group| group.min(machine))
}

fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Path of the group in the unified hierarchy.
fn unified_group(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// The least of what the group and those around it have left; `None` without limits.
fn group_available(group: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let root = Path::new("/sys/fs/cgroup");
    let groups = root.join(group.trim_start_matches('/'));
    let left = |dir: &Path| {
        let limit: u64 = read(&dir.join("memory.max"))?.trim().parse().ok()?;
        let used: u64 = read(&dir.join("memory.current"))?.trim().parse().ok()?;
        Some(limit.saturating_sub(used))
    };
    groups.ancestors().take_while(|dir| dir.starts_with(root)).filter_map(left).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_estimate_is_read() {
        assert_eq!(meminfo_available("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(meminfo_available("MemTotal: 9 kB\n"), None);
        assert!(available_memory() > 1 << 20);
    }

    #[test]
    fn the_tightest_group_counts() {
        assert_eq!(unified_group("1:name=x:/y\n0::/job/step\n"), Some("/job/step"));
        let read = |path: &Path| match path.to_str()? {
            "/sys/fs/cgroup/job/step/memory.max" => Some("max\n".into()),
            "/sys/fs/cgroup/job/memory.max" => Some("1000\n".into()),
            "/sys/fs/cgroup/job/memory.current" => Some("400\n".into()),
            _ => None,
        };
        assert_eq!(group_available("/job/step", read), Some(600));
        assert_eq!(group_available("/", read), None);
    }
}
