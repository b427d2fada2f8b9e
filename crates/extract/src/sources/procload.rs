//! Load of a machine, by procfs: two looks with some time between them.

use std::collections::BTreeMap;

use bivouac_sysmap::{DiskLoad, Host, InterfaceLoad, Load, MountLoad};

use super::meminfo;
use crate::machine::Machine;

/// Unit of /proc/diskstats, in bytes.
const SECTOR: f64 = 512.0;

/// Counters of the kernel.
struct Counts {
    /// Time of all processors: busy, and all of it.
    processors: Option<(u64, u64)>,
    /// Sectors read, sectors written, milliseconds busy.
    disks: BTreeMap<String, [u64; 3]>,
    /// Bytes received, bytes sent.
    interfaces: BTreeMap<String, [u64; 2]>,
}

pub fn look(machine: &dyn Machine, host: &Host, ms: u64) -> Option<Load> {
    let before = counts(machine);
    let over_ms = machine.pass(ms);
    let after = counts(machine);
    let seconds = over_ms as f64 / 1000.0;
    // A counter that began again, as of a device that was connected anew, counts as none.
    let per_second = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
    let processors = before.processors.zip(after.processors).and_then(|(before, after)| {
        let all = after.1.saturating_sub(before.1);
        let threads = f64::from(host.processors.as_ref()?.threads?);
        // In a short while no tick may pass.
        (all > 0).then(|| after.0.saturating_sub(before.0) as f64 / all as f64 * threads)
    });
    let disks = host.disks.iter().filter_map(|disk| {
        let (a, b) = (before.disks.get(&disk.name)?, after.disks.get(&disk.name)?);
        Some(DiskLoad {
            name: disk.name.clone(),
            read_bytes: per_second(a[0], b[0]) * SECTOR,
            written_bytes: per_second(a[1], b[1]) * SECTOR,
            busy: (b[2].saturating_sub(a[2]) as f64 / over_ms as f64).min(1.0),
        })
    });
    let interfaces = host.interfaces.iter().filter_map(|one| {
        let (a, b) = (before.interfaces.get(&one.name)?, after.interfaces.get(&one.name)?);
        Some(InterfaceLoad {
            name: one.name.clone(),
            received_bits: per_second(a[0], b[0]) * 8.0,
            sent_bits: per_second(a[1], b[1]) * 8.0,
        })
    });
    let mounts = host.mounts.iter().filter_map(|mount| {
        let space = machine.space(&mount.path)?;
        Some(MountLoad {
            path: mount.path.clone(),
            used_bytes: space.size.saturating_sub(space.left),
            used_files: (space.files > 0).then(|| space.files.saturating_sub(space.files_left)),
        })
    });
    let memory = machine.text("/proc/meminfo").and_then(|text| {
        let bytes = |key| meminfo::bytes(&text, key);
        // Not `MemFree`: the kernel gives up its caches when programs need the memory.
        Some(bytes("MemTotal")?.saturating_sub(bytes("MemAvailable")?))
    });
    let runnable = machine.text("/proc/loadavg").and_then(|text| text.split(' ').next()?.parse().ok());
    (before.processors.is_some() || memory.is_some()).then(|| Load {
        over_ms,
        processors,
        runnable,
        memory_bytes: memory,
        disks: disks.collect(),
        mounts: mounts.collect(),
        interfaces: interfaces.collect(),
    })
}

fn counts(machine: &dyn Machine) -> Counts {
    let lines = |path: &str| machine.text(path).unwrap_or_default();
    let disks = lines("/proc/diskstats");
    let disks = disks.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        // Sectors read, sectors written and milliseconds of input and output: admin-guide/iostats of the kernel.
        Some(((*fields.get(2)?).to_owned(), [number(5)?, number(9)?, number(12)?]))
    });
    let interfaces = lines("/proc/net/dev");
    let interfaces = interfaces.lines().filter_map(|line| {
        let (name, rest) = line.split_once(':')?;
        let numbers: Vec<u64> = rest.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        // Eight columns of what was received come before those of what was sent.
        Some((name.trim().to_owned(), [*numbers.first()?, *numbers.get(8)?]))
    });
    Counts {
        processors: processors(&lines("/proc/stat")),
        disks: disks.collect(),
        interfaces: interfaces.collect(),
    }
}

/// `cpu  user nice system idle iowait irq softirq steal …`: guests are in user already.
fn processors(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    let times: Vec<u64> =
        line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
    let all: u64 = times.iter().sum();
    // A processor that waits for a disk is free for others.
    let idle = times.get(3)? + times.get(4).unwrap_or(&0);
    Some((all.saturating_sub(idle), all))
}
