//! Processors and caches by sysfs: the whole machine, also what this process may not run on.

use std::collections::{BTreeMap, BTreeSet};

use bivouac_sysmap::{Cache, Processors, listed};

use super::{cpuinfo, number, word};
use crate::machine::Machine;
use crate::sources::Source;

pub const SOURCE: Source<Processors> = Source { name: "sysfs", look };

const CPUS: &str = "/sys/devices/system/cpu";
/// More processors than any machine has.
const CPUS_MAX: usize = 1 << 16;

fn look(machine: &dyn Machine) -> Option<Processors> {
    let online = listed(&word(machine, &format!("{CPUS}/online"))?, CPUS_MAX);
    let mut sockets: BTreeMap<u32, (BTreeSet<(u32, u32)>, u32)> = BTreeMap::new();
    let mut caches: BTreeMap<(u32, String, u64), BTreeSet<String>> = BTreeMap::new();
    for cpu in &online {
        let topology = format!("{CPUS}/cpu{cpu}/topology");
        let (Some(socket), Some(core)) = (
            number::<u32>(machine, &format!("{topology}/physical_package_id")),
            number::<u32>(machine, &format!("{topology}/core_id")),
        ) else {
            // It has gone offline since the list was read, or this kernel does not say.
            continue;
        };
        // Cores of several dies of a socket may have the same numbers.
        let die = number(machine, &format!("{topology}/die_id")).unwrap_or(0);
        let (cores, threads) = sockets.entry(socket).or_default();
        cores.insert((die, core));
        *threads += 1;
        let dir = format!("{CPUS}/cpu{cpu}/cache");
        for index in machine.names(&dir).iter().filter(|name| name.starts_with("index")) {
            if let Some((key, shared)) = cache(machine, &format!("{dir}/{index}")) {
                // Threads that share a cache name the same list, so that it counts once.
                caches.entry(key).or_default().insert(shared);
            }
        }
    }
    if sockets.is_empty() {
        return None;
    }
    let caches = caches.into_iter().map(|((level, kind, size_bytes), all)| Cache {
        level,
        kind,
        size_bytes,
        count: u32::try_from(all.len()).unwrap_or(u32::MAX),
    });
    let sockets = cpuinfo::listed_sockets(sockets);
    Some(Processors {
        model: cpuinfo::model(machine),
        cores: Some(sockets.iter().map(|socket| socket.cores).sum()),
        threads: Some(sockets.iter().map(|socket| socket.threads).sum()),
        sockets,
        caches: caches.collect(),
    })
}

/// Returns a cache, and who shares it.
fn cache(machine: &dyn Machine, dir: &str) -> Option<((u32, String, u64), String)> {
    let level = number(machine, &format!("{dir}/level"))?;
    let kind = word(machine, &format!("{dir}/type"))?.to_lowercase();
    let size = size(&word(machine, &format!("{dir}/size"))?)?;
    let shared = word(machine, &format!("{dir}/shared_cpu_list"))?;
    Some(((level, kind, size), shared))
}

/// Parses a size: `32K`, `1M`.
fn size(text: &str) -> Option<u64> {
    let (digits, unit) = text.split_at(text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len());
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}
