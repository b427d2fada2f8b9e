//! Bytes and records on one node.
//!
//! - [`Volume`]: the seam to the files of a node. [`DirVolume`] is a directory, [`MemVolume`] is memory. Tests put a
//!   [`FailingVolume`] around either, or use a [`CrashVolume`], which remembers every change and can go back
//!   to the state after any of them. [`conformance`] is what all must pass.
//! - [`Records`]: ordered records per slot, in memory, with a log on a volume. [`Txn`] changes several
//!   records of several slots at once: all or nothing, also after a kill.
//! - [`DataStore`]: the subfiles of one node over its volumes.
//!
//! Formats are in docs/format.md. Only this crate and `stage` name files.

pub mod conformance;
mod crc;
mod data;
mod error;
mod records;
mod volume;

pub use data::{
    Access, Awaited, DataOptions, DataStore, Granted, Headroom, Holder, ListedSubfile, LocalFile, MARK_WORDS,
    PartUsage, RecordsRoom, Scrubbed, SpaceChange, SubfileId, SubfileSpec, SubfileStat, Subfiles,
    VolumeConfig, VolumeUsage, Written, WrongPart,
};
pub use error::{StoreError, StoreResult};
pub use records::{
    Compaction, Damage, LostRecord, Records, RecordsOptions, RecordsStats, Recovery, Salvage, Txn,
};
pub use volume::{
    CrashVolume, DirVolume, Entry, FailingVolume, Fault, FileStat, IDENTITY_NAME, LIVES_NAME, Loss,
    MemVolume, NOTE_LEN_MAX, NOTE_NAME, OpenMode, Operation, OperationKind, Places, ReadOnlyVolume, Space,
    Volume, VolumeFile, VolumeIdentity, VolumeKind, claim_existing, claim_existing_within, identity_of,
    read_lives, read_note, remove_volume, write_lives, write_note,
};
