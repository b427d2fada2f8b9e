//! Bytes and records on one node.
//!
//! - [`Volume`]: the seam to the files of a node. [`DirVolume`] is a directory, [`MemVolume`] is memory. Tests put a
//!   [`FailingVolume`] around either, or use a [`CrashVolume`], which remembers every change and can go back
//!   to the state after any of them. [`conformance`] is what all must pass.
//! - [`Records`]: ordered records per slot, in memory, with a log on a volume. [`Txn`] changes several
//!   records of several slots at once: all or nothing, also after a kill.
//! - [`DataStore`]: the subfiles of one node over its volumes.
//!
//! - [`MirroredVolumes`]: volumes all of whose changes a backup node has too, and [`Replica`], what that keeps of them.
//!
//! Formats are in docs/format.md. Only this crate and `stage` name files.

pub mod conformance;
mod crc;
mod data;
mod error;
mod group_sync;
mod mirror;
mod records;
mod volume;

pub use data::{
    Access, ChangeCondition, DataOptions, DataStore, DirectClient, Granted, Headroom, ListedSubfile,
    LocalFile, MARK_WORDS, PartUsage, RecordsRoom, ReplicaRoom, Scrubbed, SpaceChange, SubfileId,
    SubfileSpec, SubfileStat, Subfiles, VolumeConfig, VolumeUsage, Written, WrongPart, open_volumes,
};
pub use error::{StoreError, StoreResult};
pub use mirror::{
    MirrorNote, MirrorOptions, MirrorRole, MirrorStatus, MirroredVolumes, Replica, ReplicaBackup,
    ReplicaDirs, ReplicaVolumes, SealError, ServeState, mirrored_volumes, read_mirror_note, replica_dir_name,
    with_deferred_writes, write_mirror_note,
};
pub use records::{
    Compaction, Damage, LostRecord, Records, RecordsOptions, RecordsStats, Recovery, Salvage, Txn,
};
pub use volume::{
    CrashLoss, CrashVolume, DirVolume, Entry, FailingVolume, FileStat, IDENTITY_NAME, LIVES_NAME, MemVolume,
    NOTE_LEN_MAX, NOTE_NAME, OpenMode, Operation, OperationKind, Places, ReadOnlyVolume, Space, Volume,
    VolumeFault, VolumeFile, VolumeIdentity, VolumeKind, claim_existing, claim_existing_within, identity_of,
    read_lives, read_note, remove_volume, write_lives, write_note,
};
