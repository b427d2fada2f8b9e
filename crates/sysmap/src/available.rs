//! The unused resources of a host: its capacity less its load.

use serde::{Deserialize, Serialize};

/// The unused resources of a host. A resource whose capacity or load is unknown is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IdleResources {
    /// Hardware threads.
    pub processors: Option<f64>,
    /// Memory.
    pub memory_bytes: Option<u64>,
    /// Disks.
    pub disks: Vec<IdleDisk>,
    /// File systems.
    pub mounts: Vec<IdleMount>,
    /// Interfaces whose speed is known.
    pub interfaces: Vec<IdleInterface>,
}

/// The idle share of a disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IdleDisk {
    /// The disk.
    pub name: String,
    /// Part of the time in which it had nothing to do, 0 to 1.
    pub idle: f64,
}

/// The free space of a file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleMount {
    /// Mount point.
    pub path: String,
    /// Bytes.
    pub bytes: u64,
}

/// The unused bandwidth of an interface, in bits per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IdleInterface {
    /// The interface.
    pub name: String,
    /// To receive.
    pub receive_bits: f64,
    /// To send.
    pub send_bits: f64,
}
