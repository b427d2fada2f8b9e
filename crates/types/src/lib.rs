//! The base of the house: identifiers, ranges, the one errno table, named limits and the
//! small options that every layer shares. Nothing here does I/O.

mod attr;
mod checksum;
mod error;
mod ids;
mod layout;
pub mod limits;
mod liveness;
mod magic;
mod name;
mod named;
mod partition;
pub mod put;
mod signals;
mod spread;
mod time;
pub mod units;
pub mod words;

pub use attr::{Attr, SetAttr, SetTime, StatFs, mode};
pub use checksum::Checksum;
pub use error::{Errno, FsError, FsResult};
pub use ids::{ClientId, FormationId, Ino, NodeId, OpId, OpenId, PartitionId, SeatIndex, Slot};
pub use layout::{Layout, Placement, check_stripe};
pub use liveness::{Liveness, News, epoch_of};
pub use magic::TMPFS_MAGIC;
pub use name::Name;
pub use named::named;
pub use partition::{
    Contract, FsyncPolicy, Glob, KEYS as PARTITION_KEYS, MasterHash, MirrorDeletes, PartitionSettings, Pin,
    ReadPolicy, Rule, SettingError, Site, Source, VolumeKind, WritePolicy,
};
pub use signals::{code_of_signal, format_signal};
pub use spread::SpreadAt;
pub use time::Timestamp;
