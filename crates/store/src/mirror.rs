//! Volumes that are mirrored to a backup node, and the replicas that a backup keeps. Rules: the crate `mirror`;
//! reasons:
//! docs/decisions/0140-mirrored-volumes.md.

mod channels;
mod deferred;
mod mirrored_volume;
mod note;
mod part;
mod primary;
mod replica;
mod replica_dirs;
#[cfg(test)]
mod tests;
mod tree;

pub use deferred::with_deferred_writes;
pub use mirrored_volume::mirrored_volumes;
pub use note::{MirrorNote, MirrorRole, read_mirror_note, write_mirror_note};
pub use primary::{MirrorOptions, MirrorStatus, MirroredVolumes, ReplicaBackup, ServeState};
pub use replica::{Replica, ReplicaVolumes, SealError};
pub use replica_dirs::{ReplicaDirs, replica_dir_name};
