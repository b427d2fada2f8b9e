//! One machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::available::Available;
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
    /// Which source each kind of knowledge comes from: `disks` from `sysfs`.
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
    /// How busy it was, if that was looked at.
    pub load: Option<Load>,
    /// What is left: what it has, less what is used. Only beside `load`.
    pub available: Option<Available>,
}

/// All processors of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processors {
    /// What the maker calls them.
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
    /// How many there are in the host.
    pub count: u32,
}

/// Memory of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All that the kernel uses.
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
    /// How far each part is, itself being 10.
    pub distances: Vec<u32>,
}

/// What a device is for.
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
    /// Where it is: domain, bus, device, function.
    pub address: String,
    /// What it is for.
    pub kind: DeviceKind,
    /// The PCI class, as the kernel writes it.
    pub class: String,
    /// Number of its maker.
    pub vendor: Option<String>,
    /// The maker's number for it.
    pub device: Option<String>,
    /// What drives it.
    pub driver: Option<String>,
    /// The part of the machine that it is nearest to.
    pub numa: Option<u32>,
}

/// What a disk is.
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
    /// What it is, where that can be told.
    pub kind: Option<DiskKind>,
    /// Its size.
    pub size_bytes: Option<u64>,
    /// What the maker calls it.
    pub model: Option<String>,
    /// Requests that may wait in its queue.
    pub queue_depth: Option<u32>,
    /// Who orders the queue.
    pub scheduler: Option<String>,
    /// Where it is on the bus.
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

/// Where a file system keeps its content.
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
    /// Where it is mounted.
    pub path: String,
    /// What is mounted.
    pub source: String,
    /// Its type, as the kernel calls it.
    #[serde(rename = "type")]
    pub fs_type: String,
    /// Where its content is, where the type says so.
    pub kind: Option<MountKind>,
    /// Of site storage: what it is called.
    pub product: Option<String>,
    /// Whether it may be written.
    pub read_only: bool,
    /// Its size.
    pub size_bytes: Option<u64>,
    /// The disk or partition under it.
    pub disk: Option<String>,
}

/// What an interface is.
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
    /// What it is.
    pub kind: Option<InterfaceKind>,
    /// Whether it has a link.
    pub up: Option<bool>,
    /// Bits per second in each direction.
    pub speed_bits: Option<u64>,
    /// Longest packet, in bytes.
    pub mtu: Option<u32>,
    /// Its hardware address.
    pub hardware_address: Option<String>,
    /// What drives it.
    pub driver: Option<String>,
    /// Where its device is on the bus.
    pub address: Option<String>,
    /// The part of the machine that it is nearest to.
    pub numa: Option<u32>,
}
