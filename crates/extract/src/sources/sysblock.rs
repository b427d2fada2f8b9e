//! Disks by sysfs.

use bivouac_sysmap::{Disk, DiskKind, Part};

use super::{numa, number, pci_address, word};
use crate::machine::Machine;
use crate::sources::Source;

pub const SOURCE: Source<Vec<Disk>> = Source { name: "sysfs", look };

const BLOCK: &str = "/sys/block";
/// Unit of sizes in sysfs, whatever the disk does, in bytes.
const SECTOR: u64 = 512;

fn look(machine: &dyn Machine) -> Option<Vec<Disk>> {
    let names = machine.names(BLOCK);
    let disks = names.iter().filter(|name| is_disk(name)).map(|name| disk(machine, name)).collect();
    // No disk is an answer, too, where all block devices are files or memory.
    (!names.is_empty()).then_some(disks)
}

/// Returns true for a block device that is not backed by files, memory or removable media.
pub fn is_disk(name: &str) -> bool {
    !["loop", "ram", "zram", "sr", "fd", "nbd"].iter().any(|prefix| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    })
}

fn disk(machine: &dyn Machine, name: &str) -> Disk {
    let dir = format!("{BLOCK}/{name}");
    let rotational = number::<u8>(machine, &format!("{dir}/queue/rotational")).map(|flag| flag != 0);
    // The directory is a link to where the disk is on its bus.
    let address = machine.real(&dir).and_then(|path| pci_address(&path));
    let near = address.as_ref().map(|address| format!("/sys/bus/pci/devices/{address}"));
    let scheduler = word(machine, &format!("{dir}/queue/scheduler"));
    let partitions = machine
        .names(&dir)
        .into_iter()
        // Only partitions have that file; the other directories are attributes of the disk.
        .filter(|part| part.starts_with(name) && machine.text(&format!("{dir}/{part}/partition")).is_some());
    Disk {
        name: name.to_owned(),
        kind: kind(name, rotational),
        size_bytes: size(machine, &dir),
        model: word(machine, &format!("{dir}/device/model")),
        queue_depth: number(machine, &format!("{dir}/queue/nr_requests")),
        scheduler: scheduler.map(|all| chosen(&all)),
        numa: near.and_then(|device| numa(machine, &device)),
        address,
        partitions: partitions
            .map(|part| Part { size_bytes: size(machine, &format!("{dir}/{part}")), name: part })
            .collect(),
    }
}

fn size(machine: &dyn Machine, dir: &str) -> Option<u64> {
    number::<u64>(machine, &format!("{dir}/size"))?.checked_mul(SECTOR)
}

/// Returns the kind of a disk: by its name where that says it, else by whether it rotates. What a virtual disk says of
/// rotating is its host's fancy.
pub fn kind(name: &str, rotational: Option<bool>) -> Option<DiskKind> {
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    match rotational {
        _ if begins(&["nvme"]) => Some(DiskKind::Nvme),
        _ if begins(&["vd", "xvd"]) => Some(DiskKind::Virtual),
        _ if begins(&["dm-", "md"]) => Some(DiskKind::Mapped),
        Some(true) => Some(DiskKind::Hdd),
        Some(false) => Some(DiskKind::Ssd),
        None => None,
    }
}

/// Returns the one in brackets of `none [mq-deadline] kyber`.
fn chosen(all: &str) -> String {
    let bracketed = all.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(all, |(chosen, _)| chosen).to_owned()
}
