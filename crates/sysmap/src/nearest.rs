//! Choice of the part of a machine that a daemon runs on, where the machine has several parts and several daemons.

use std::path::Path;

use crate::host::Host;

/// Parts of a machine that are near to what a daemon uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaPlacement {
    /// Their numbers, as the kernel counts.
    pub parts: Vec<u32>,
    /// Their processors, as the kernel writes them.
    pub processors: String,
    /// The disk that they are near to; `None` if daemons only take turns.
    pub disk: Option<String>,
}

/// Returns the place of the daemon with these volumes, the `index`-th of `count` on a host: on its share of the parts
/// of memory, that with the disk of its volumes if all are on disks of one place, else they take turns. Nothing if
/// there is only one daemon, or one part, or the map does not say: then it may run anywhere.
#[must_use]
pub fn nearest(host: &Host, volumes: &[&str], index: usize, count: usize) -> Option<NumaPlacement> {
    // Parts without processors are memory only (HBM, CXL): no daemon can run there.
    let parts: Vec<_> = host.numa.iter().filter(|part| !part.processors.is_empty()).collect();
    let groups = parts.len().min(count);
    if groups < 2 {
        return None;
    }
    let group_of = |part: usize| part * groups / parts.len();
    let disk = one_place(host, volumes);
    let by_disk = disk.and_then(|(_, numa)| parts.iter().position(|part| part.id == numa)).map(group_of);
    let group = by_disk.unwrap_or(index % groups);
    let own = || parts.iter().enumerate().filter(|(at, _)| group_of(*at) == group).map(|(_, part)| part);
    Some(NumaPlacement {
        parts: own().map(|part| part.id).collect(),
        processors: own().map(|part| part.processors.as_str()).collect::<Vec<_>>().join(","),
        disk: by_disk.and(disk).map(|(name, _)| name.to_owned()),
    })
}

/// Returns the first disk and the part of the machine of all volumes, if these are on disks of one part.
fn one_place<'a>(host: &'a Host, volumes: &[&str]) -> Option<(&'a str, u32)> {
    let places: Option<Vec<(&str, u32)>> = volumes.iter().map(|volume| disk_of(host, volume)).collect();
    let places = places?;
    let (first, numa) = *places.first()?;
    places.iter().all(|(_, other)| *other == numa).then_some((first, numa))
}

/// Returns the disk of a path, and the part of the machine that it is nearest to.
fn disk_of<'a>(host: &'a Host, path: &str) -> Option<(&'a str, u32)> {
    let holds = host.mounts.iter().filter(|mount| Path::new(path).starts_with(&mount.path));
    // The innermost one; of several at one path the last one, which hides the others.
    let mount = holds.max_by_key(|mount| mount.path.len())?;
    let name = mount.disk.as_deref()?;
    let is_it =
        |disk: &&crate::Disk| disk.name == name || disk.partitions.iter().any(|part| part.name == name);
    let disk = host.disks.iter().find(is_it)?;
    Some((disk.name.as_str(), disk.numa?))
}

/// Returns the numbers of a list as the kernel writes it, `0-31,64-95`, below `end`.
#[must_use]
pub fn listed(list: &str, end: usize) -> Vec<usize> {
    let mut numbers = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.trim().split_once('-').unwrap_or((range.trim(), range.trim()));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            // The text may be anybody's, and `0-4294967295` would fill the memory.
            numbers.extend(first..last.saturating_add(1).min(end));
        }
    }
    numbers
}
