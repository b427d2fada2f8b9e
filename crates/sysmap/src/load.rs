//! Load of a machine.

use serde::{Deserialize, Serialize};

/// Use of a machine, over a while.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Time that it was looked at, in milliseconds.
    pub over_ms: u64,
    /// Hardware threads that were busy, in the mean.
    pub processors: Option<f64>,
    /// Processes that ran or wanted to, as the kernel counts over a minute.
    pub runnable: Option<f64>,
    /// Memory that programs cannot have.
    pub memory_bytes: Option<u64>,
    /// Disks.
    pub disks: Vec<DiskLoad>,
    /// File systems.
    pub mounts: Vec<MountLoad>,
    /// Network interfaces.
    pub interfaces: Vec<InterfaceLoad>,
}

/// Load of a disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskLoad {
    /// The disk.
    pub name: String,
    /// Bytes per second.
    pub read_bytes: f64,
    /// Bytes per second.
    pub written_bytes: f64,
    /// Part of the time in which it had something to do, 0 to 1.
    pub busy: f64,
}

/// Use of a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountLoad {
    /// Mount point.
    pub path: String,
    /// Bytes that this user cannot have.
    pub used_bytes: u64,
    /// Inodes that are used, where it counts them.
    pub used_files: Option<u64>,
}

/// Load of an interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InterfaceLoad {
    /// The interface.
    pub name: String,
    /// Bits per second.
    pub received_bits: f64,
    /// Bits per second.
    pub sent_bits: f64,
}
