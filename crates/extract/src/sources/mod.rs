//! A file per source.

pub mod cpuinfo;
pub mod hwloc;
pub mod iblinkinfo;
pub mod ibnetdiscover;
pub mod iplink;
pub mod lldp;
pub mod lsblk;
pub mod lspci;
pub mod meminfo;
pub mod mountinfo;
pub mod mounts;
pub mod procload;
pub mod slurm;
pub mod sysblock;
pub mod syscpu;
pub mod sysnet;
pub mod sysnuma;
pub mod syspci;

use crate::machine::Machine;

/// A source of one kind of facts about a machine.
#[derive(Debug)]
pub struct Source<T> {
    /// Its name in the map.
    pub name: &'static str,
    /// Reads the facts of a machine; `None` if this source does not have them.
    pub look: fn(&dyn Machine) -> Option<T>,
}

/// Returns a word of a file.
fn word(machine: &dyn Machine, path: &str) -> Option<String> {
    Some(machine.text(path)?.trim().to_owned()).filter(|word| !word.is_empty())
}

/// Returns a number of a file.
fn number<T: std::str::FromStr>(machine: &dyn Machine, path: &str) -> Option<T> {
    word(machine, path)?.parse().ok()
}

/// Returns the last part of a path.
fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns the part of the machine that a device is in; -1 is the kernel's word for not knowing.
fn numa(machine: &dyn Machine, device: &str) -> Option<u32> {
    u32::try_from(number::<i64>(machine, &format!("{device}/numa_node"))?).ok()
}

/// Returns the last PCI address in a path of sysfs.
fn pci_address(path: &str) -> Option<String> {
    let is_address = |part: &&str| {
        let (rest, function) = part.rsplit_once('.').unwrap_or(("", ""));
        let numbers: Vec<&str> = rest.split(':').collect();
        let hex = |text: &str, len: usize| text.len() >= len && text.bytes().all(|c| c.is_ascii_hexdigit());
        // Domains may have more digits, such as those of Intel's VMD.
        matches!(numbers.as_slice(), [a, b, c] if hex(a, 4) && hex(b, 2) && hex(c, 2)) && hex(function, 1)
    };
    // The bridges before it are in the path, too.
    path.split('/').rev().find(is_address).map(str::to_owned)
}
