//! What is left of a machine: what it has, less what is used.

use serde::{Deserialize, Serialize};

use crate::host::Host;

/// What is left of a host. What is not known of either side is not known here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Available {
    /// Hardware threads.
    pub processors: Option<f64>,
    /// Memory.
    pub memory_bytes: Option<u64>,
    /// Disks.
    pub disks: Vec<DiskLeft>,
    /// File systems.
    pub mounts: Vec<MountLeft>,
    /// Interfaces whose speed is known.
    pub interfaces: Vec<InterfaceLeft>,
}

/// What is left of a disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskLeft {
    /// The disk.
    pub name: String,
    /// Part of the time in which it had nothing to do, 0 to 1.
    pub idle: f64,
}

/// What is left of a file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountLeft {
    /// Where it is mounted.
    pub path: String,
    /// Bytes.
    pub bytes: u64,
}

/// What is left of an interface, in bits per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterfaceLeft {
    /// The interface.
    pub name: String,
    /// To receive.
    pub receive_bits: f64,
    /// To send.
    pub send_bits: f64,
}

/// What is left of a host whose load is known; nothing without that.
#[must_use]
pub fn available(host: &Host) -> Option<Available> {
    let load = host.load.as_ref()?;
    let threads = host.processors.as_ref().and_then(|processors| processors.threads);
    let memory = host.memory.as_ref().map(|memory| memory.total_bytes);
    let mounts = load.mounts.iter().filter_map(|used| {
        let size = host.mounts.iter().find(|mount| mount.path == used.path)?.size_bytes?;
        Some(MountLeft { path: used.path.clone(), bytes: size.saturating_sub(used.used_bytes) })
    });
    let interfaces = load.interfaces.iter().filter_map(|used| {
        let speed = host.interfaces.iter().find(|one| one.name == used.name)?.speed_bits? as f64;
        let left = |used: f64| (speed - used).max(0.0);
        let (receive_bits, send_bits) = (left(used.received_bits), left(used.sent_bits));
        Some(InterfaceLeft { name: used.name.clone(), receive_bits, send_bits })
    });
    let idle = |busy: f64| (1.0 - busy).clamp(0.0, 1.0);
    Some(Available {
        processors: threads.zip(load.processors).map(|(all, busy)| (f64::from(all) - busy).max(0.0)),
        memory_bytes: memory.zip(load.memory_bytes).map(|(all, used)| all.saturating_sub(used)),
        disks: load
            .disks
            .iter()
            .map(|disk| DiskLeft { name: disk.name.clone(), idle: idle(disk.busy) })
            .collect(),
        mounts: mounts.collect(),
        interfaces: interfaces.collect(),
    })
}
