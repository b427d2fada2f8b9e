//! A machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::available::{IdleDisk, IdleInterface, IdleMount, IdleResources};
use crate::load::Load;

/// Name and version of the form in which maps are written.
pub const SCHEMA: &str = "bivouac-system/1";

/// A machine: what it has, and, if asked for, how busy it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Its own name for itself.
    pub name: String,
    /// Release of its kernel.
    pub kernel: Option<String>,
    /// Source of each part: `disks` from `sysfs`.
    pub sources: BTreeMap<String, String>,
    /// Processors, if any source knew them.
    pub processors: Option<Processors>,
    /// Memory, if any source knew it.
    pub memory: Option<Memory>,
    /// Parts of the machine with memory of their own.
    pub numa: Vec<NumaNode>,
    /// Devices on its buses.
    pub devices: Vec<Device>,
    /// Disks, without those that are files or memory.
    pub disks: Vec<Disk>,
    /// File systems with storage behind them.
    pub mounts: Vec<Mount>,
    /// Network interfaces.
    pub interfaces: Vec<Interface>,
    /// Load, if that was looked at.
    pub load: Option<Load>,
    /// Rest: what it has, less what is used. Only beside `load`.
    pub available: Option<IdleResources>,
}

impl Host {
    /// Returns the unused resources by capacity and load; `None` if the load was not measured.
    #[must_use]
    pub fn compute_available(&self) -> Option<IdleResources> {
        let load = self.load.as_ref()?;
        let threads = self.processors.as_ref().and_then(|processors| processors.threads);
        let memory = self.memory.as_ref().map(|memory| memory.total_bytes);
        let mounts = load.mounts.iter().filter_map(|used| {
            let size = self.mounts.iter().find(|mount| mount.path == used.path)?.size_bytes?;
            Some(IdleMount { path: used.path.clone(), bytes: size.saturating_sub(used.used_bytes) })
        });
        let interfaces = load.interfaces.iter().filter_map(|used| {
            let speed = self.interfaces.iter().find(|one| one.name == used.name)?.speed_bits? as f64;
            let left = |used: f64| (speed - used).max(0.0);
            let (receive_bits, send_bits) = (left(used.received_bits), left(used.sent_bits));
            Some(IdleInterface { name: used.name.clone(), receive_bits, send_bits })
        });
        let idle = |busy: f64| (1.0 - busy).clamp(0.0, 1.0);
        Some(IdleResources {
            processors: threads.zip(load.processors).map(|(all, busy)| (f64::from(all) - busy).max(0.0)),
            memory_bytes: memory.zip(load.memory_bytes).map(|(all, used)| all.saturating_sub(used)),
            disks: load
                .disks
                .iter()
                .map(|disk| IdleDisk { name: disk.name.clone(), idle: idle(disk.busy) })
                .collect(),
            mounts: mounts.collect(),
            interfaces: interfaces.collect(),
        })
    }
}

/// All processors of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processors {
    /// The maker's name for them.
    pub model: Option<String>,
    /// Sockets, by number.
    pub sockets: Vec<Socket>,
    /// Cores of all sockets.
    pub cores: Option<u32>,
    /// Hardware threads that the kernel schedules on.
    pub threads: Option<u32>,
    /// Caches of each level and kind.
    pub caches: Vec<Cache>,
}

/// A socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// Its number, as the kernel counts.
    pub id: u32,
    /// Its cores.
    pub cores: u32,
    /// Its hardware threads.
    pub threads: u32,
}

/// Caches of one level and kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// 1 is nearest to the core.
    pub level: u32,
    /// `data`, `instruction` or `unified`.
    pub kind: String,
    /// Bytes of one of them.
    pub size_bytes: u64,
    /// Number of them in the host.
    pub count: u32,
}

/// Memory of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All memory that the kernel uses.
    pub total_bytes: u64,
    /// Space to move pages to.
    pub swap_bytes: Option<u64>,
}

/// A part of the machine with memory of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    /// Its number, as the kernel counts.
    pub id: u32,
    /// Its processors, as the kernel writes them: `0-31,64-95`.
    pub processors: String,
    /// Its memory.
    pub memory_bytes: Option<u64>,
    /// Distance of each part, itself being 10.
    pub distances: Vec<u32>,
}

/// Kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// Computes or draws.
    Gpu,
    /// A disk or what disks are connected to.
    Storage,
    /// Ethernet and its like.
    Network,
    /// InfiniBand.
    InfiniBand,
    /// Computes, but is no GPU.
    Accelerator,
}

/// A device with a place on a bus. Bridges and the like are left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its location: domain, bus, device, function.
    pub address: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// The PCI class, as the kernel writes it.
    pub class: String,
    /// Number of its maker.
    pub vendor: Option<String>,
    /// The maker's number for it.
    pub device: Option<String>,
    /// Its driver.
    pub driver: Option<String>,
    /// The part of the machine that it is nearest to.
    pub numa: Option<u32>,
}

/// Kind of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskKind {
    /// Flash on the bus itself.
    Nvme,
    /// Flash behind a controller.
    Ssd,
    /// Rotating.
    Hdd,
    /// Of a virtual machine; what is behind it cannot be seen.
    Virtual,
    /// Made of other disks: volumes, arrays.
    Mapped,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// The kernel's name.
    pub name: String,
    /// Its kind, where that can be told.
    pub kind: Option<DiskKind>,
    /// Its size.
    pub size_bytes: Option<u64>,
    /// The maker's name for it.
    pub model: Option<String>,
    /// Requests that may wait in its queue.
    pub queue_depth: Option<u32>,
    /// Scheduler of its queue.
    pub scheduler: Option<String>,
    /// Its address on the bus.
    pub address: Option<String>,
    /// The part of the machine that it is nearest to.
    pub numa: Option<u32>,
    /// Its partitions.
    pub partitions: Vec<Part>,
}

/// A partition of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The kernel's name.
    pub name: String,
    /// Its size.
    pub size_bytes: Option<u64>,
}

/// Kind of a file system, by where it keeps its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MountKind {
    /// On a disk of this host.
    Local,
    /// In its memory.
    Memory,
    /// On servers that many hosts share.
    Site,
    /// Behind a program.
    Fuse,
    /// On another file system.
    Overlay,
}

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Mount point.
    pub path: String,
    /// Source of the mount.
    pub source: String,
    /// Its type, as the kernel calls it.
    #[serde(rename = "type")]
    pub fs_type: String,
    /// Location of its content, where the type says so.
    pub kind: Option<MountKind>,
    /// Of site storage: what it is called.
    pub product: Option<String>,
    /// True if it may not be written.
    pub read_only: bool,
    /// Its size.
    pub size_bytes: Option<u64>,
    /// The disk or partition under it.
    pub disk: Option<String>,
}

/// Kind of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InterfaceKind {
    /// Ethernet with a device behind it.
    Ethernet,
    /// InfiniBand.
    InfiniBand,
    /// To this host itself.
    Loopback,
    /// Made by software: bridges, tunnels, containers, virtual machines' own.
    Virtual,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// The kernel's name.
    pub name: String,
    /// Its kind.
    pub kind: Option<InterfaceKind>,
    /// True if it has a link.
    pub up: Option<bool>,
    /// Bits per second in each direction.
    pub speed_bits: Option<u64>,
    /// Longest packet, in bytes.
    pub mtu: Option<u32>,
    /// Its hardware address.
    pub hardware_address: Option<String>,
    /// Its driver.
    pub driver: Option<String>,
    /// Address of its device on the bus.
    pub address: Option<String>,
    /// The part of the machine that it is nearest to.
    pub numa: Option<u32>,
}
