//! The sources of each kind of facts, in order of preference, and a host as they describe it.

use bivouac_sysmap::{Device, Disk, Host, Interface, Load, Memory, Mount, Network, NumaNode, Processors};

use crate::machine::{FileSystemSpace, Machine};
use crate::sources::{
    Source, cpuinfo, hwloc, iblinkinfo, ibnetdiscover, iplink, lldp, lsblk, lspci, meminfo, mountinfo,
    mounts, procload, slurm, sysblock, syscpu, sysnet, sysnuma, syspci,
};

// The whole machine first, then what hides what this process may not use, then what knows less.
const PROCESSORS: [Source<Processors>; 3] = [syscpu::SOURCE, hwloc::SOURCE, cpuinfo::SOURCE];
const MEMORY: [Source<Memory>; 2] = [meminfo::SOURCE, hwloc::MEMORY];
const NUMA: [Source<Vec<NumaNode>>; 2] = [sysnuma::SOURCE, hwloc::NUMA];
const DEVICES: [Source<Vec<Device>>; 2] = [syspci::SOURCE, lspci::SOURCE];
const DISKS: [Source<Vec<Disk>>; 2] = [sysblock::SOURCE, lsblk::SOURCE];
const MOUNTS: [Source<Vec<Mount>>; 2] = [mountinfo::SOURCE, mounts::SOURCE];
const INTERFACES: [Source<Vec<Interface>>; 2] = [sysnet::SOURCE, iplink::SOURCE];
// What was found on the wires before what somebody wrote down.
const INFINIBAND: [Source<Network>; 2] = [ibnetdiscover::SOURCE, iblinkinfo::SOURCE];
const SLURM: [Source<Network>; 2] = [slurm::SHOWN, slurm::WRITTEN];

/// Describes a machine, with its load over so many milliseconds; 0 is without. Its neighbours on the network, if it
/// knows them, are a network of their own.
#[must_use]
pub fn host(machine: &dyn Machine, name: &str, load_ms: u64) -> (Host, Option<Network>) {
    let mut host = Host { name: name.to_owned(), ..Host::default() };
    host.kernel = machine.text("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned());
    host.processors = first(&PROCESSORS, machine, &mut host, "processors");
    host.memory = first(&MEMORY, machine, &mut host, "memory");
    host.numa = first(&NUMA, machine, &mut host, "numa").unwrap_or_default();
    host.devices = first(&DEVICES, machine, &mut host, "devices").unwrap_or_default();
    host.disks = first(&DISKS, machine, &mut host, "disks").unwrap_or_default();
    host.mounts = first(&MOUNTS, machine, &mut host, "mounts").unwrap_or_default();
    host.interfaces = first(&INTERFACES, machine, &mut host, "interfaces").unwrap_or_default();
    if load_ms > 0 {
        host.load = load(machine, &mut host, load_ms);
    }
    // After the interfaces: their names say where the name ends in a key of lldpd, which may have dots in it.
    let neighbours = lldp::look(machine, &host);
    (host, neighbours)
}

/// Returns the network interfaces of a machine, and nothing else.
#[must_use]
pub fn interfaces(machine: &dyn Machine) -> Vec<Interface> {
    INTERFACES.iter().find_map(|source| (source.look)(machine)).unwrap_or_default()
}

/// Returns the network as Slurm was told, without asking any other source.
#[must_use]
pub fn slurm_network(machine: &dyn Machine) -> Option<Network> {
    SLURM.iter().find_map(|source| (source.look)(machine))
}

/// Returns the parts of a machine with several parts of memory: those, its disks and what is mounted, without asking
/// anybody how full that is. Of a machine that is in one part, nothing.
#[must_use]
pub fn places(machine: &dyn Machine) -> Option<Host> {
    let machine = MachineWithoutSpace(machine);
    let mut host = Host::default();
    host.numa = first(&NUMA, &machine, &mut host, "numa").filter(|parts| parts.len() > 1)?;
    host.disks = first(&DISKS, &machine, &mut host, "disks").unwrap_or_default();
    host.mounts = first(&MOUNTS, &machine, &mut host, "mounts").unwrap_or_default();
    Some(host)
}

/// A machine whose file systems are not asked: a server that is gone would have who asks wait.
struct MachineWithoutSpace<'a>(&'a dyn Machine);

impl Machine for MachineWithoutSpace<'_> {
    fn text(&self, path: &str) -> Option<String> {
        self.0.text(path)
    }

    fn names(&self, dir: &str) -> Vec<String> {
        self.0.names(dir)
    }

    fn real(&self, path: &str) -> Option<String> {
        self.0.real(path)
    }

    fn space(&self, _: &str) -> Option<FileSystemSpace> {
        None
    }

    fn output(&self, program: &[&str]) -> Option<String> {
        self.0.output(program)
    }

    fn pass(&self, ms: u64) -> u64 {
        self.0.pass(ms)
    }
}

fn load(machine: &dyn Machine, host: &mut Host, ms: u64) -> Option<Load> {
    let load = procload::look(machine, host, ms)?;
    host.sources.insert("load".into(), "procfs".into());
    Some(load)
}

fn first<T>(sources: &[Source<T>], machine: &dyn Machine, host: &mut Host, what: &str) -> Option<T> {
    let (name, found) = sources.iter().find_map(|source| Some((source.name, (source.look)(machine)?)))?;
    host.sources.insert(what.to_owned(), name.to_owned());
    Some(found)
}

/// Networks that one machine knows as a whole. They are asked of one host only: a fabric that is swept by a thousand is
/// busy with it.
#[must_use]
pub fn networks(machine: &dyn Machine) -> Vec<Network> {
    let one = |sources: &[Source<Network>]| sources.iter().find_map(|source| (source.look)(machine));
    [one(&INFINIBAND), one(&SLURM)].into_iter().flatten().collect()
}
